"""The sparse mixture, and the fitted model around it: scaling of rows, basis and posterior covariance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import comb

import torch
from torch import Tensor

from mixtura import checks
from mixtura.files.registry import storable
from mixtura.objectives import class_log_joint
from mixtura.sparse.kernels import Basis, MonomialBasis, Scaling
from mixtura.values.features import weigh


@storable("sparse_mixture", check=lambda mixture: mixture.check())
@dataclass(frozen=True)
class SparseMixture:
    """a[n, k] = log weight_k + sum_i values_i phi_i(x_n) over the pairs i of component k (sparse-mixture), HU21 eq. 1.

    A pair is a component and a column of the basis; all other coefficients are zero. Weights sum to one within a class,
    and the constant column contains the class prior. Components are sorted by class, pairs by component.
    """

    log_weights: Tensor  # (K,)
    class_of: Tensor  # (K,), sorted
    components: Tensor  # (P,), sorted
    columns: Tensor  # (P,), of the basis
    values: Tensor  # (P,)
    precisions: Tensor  # (P,), of the prior of each value

    def check(self) -> None:
        """Raise a ValueError unless the parts are consistent; the basis checks the columns."""
        checks.class_numbers(self.class_of, self.n_components)
        checks.numbers("log weights", self.log_weights, (self.n_components,))
        checks.positions("components of the values", self.components, self.n_components)
        checks.numbers("values", self.values, self.components.shape)
        checks.numbers("precisions", self.precisions, self.components.shape)
        if self.columns.shape != self.components.shape:
            raise ValueError("components and columns of the values differ in number")

    @property
    def n_components(self) -> int:
        return len(self.log_weights)

    @property
    def n_pairs(self) -> int:
        return len(self.values)

    @cached_property
    def class_sizes(self) -> list[int]:
        """Number of components of each class."""
        return torch.bincount(self.class_of).tolist()

    @cached_property
    def members(self) -> Tensor:
        """Indicators of the component of each pair, (P, K)."""
        return torch.nn.functional.one_hot(self.components, self.n_components).to(self.values.dtype)

    def coefficients(self, n_columns: int) -> Tensor:
        """Dense view, (K, H)."""
        dense = self.values.new_zeros(self.n_components, n_columns)
        dense[self.components, self.columns] = self.values
        return dense

    def log_joint(self, columns: Tensor) -> Tensor:
        """Log joints from the columns of the basis: (n, H) -> (K, n)."""
        return weigh(columns.T, self.coefficients(columns.shape[1]), self.log_weights)


# Draws of the weights for moderated probabilities, whose error is then below 0.005.
N_DRAWS = 256
LARGEST_DEGREE = 1000  # of monomials in a model file


@storable("sparse_model", check=lambda model: model.check())
@dataclass(frozen=True)
class SparseModel:
    """A fitted model: the scaling of rows, the basis in use, the mixture over it, and the posterior covariance."""

    scaling: Scaling
    basis: Basis
    mixture: SparseMixture
    covariance: Tensor  # (P, P)

    def check(self) -> None:
        """Raise a ValueError unless the parts are consistent."""
        n_features, n_pairs, basis = len(self.scaling.centre), self.mixture.n_pairs, self.basis
        checks.numbers("covariances of the values", self.covariance, (n_pairs, n_pairs))
        checks.positions("columns of the values", self.mixture.columns, basis.n_columns)
        if isinstance(basis, MonomialBasis):
            if not 1 <= basis.degree <= LARGEST_DEGREE:
                raise ValueError(f"monomials of degree {basis.degree} are not supported")
            checks.positions("columns", basis.columns, comb(n_features + basis.degree, basis.degree))
        elif basis.points is None or basis.kernel is None:
            checks.positions("columns", basis.numbers, n_features, -1)
        else:
            checks.positions("numbers of rows", basis.numbers, 2**63 - 1, -1)
            checks.numbers("relevance vectors", basis.points, (len(basis.numbers), n_features))

    def features(self, rows: Tensor) -> Tensor:
        """The columns of the basis at rows, (n, D) -> (n, H)."""
        scaled = self.scaling(rows)
        values = self.basis.evaluate(scaled)
        checks.bounded_features(values, rows, scaled)
        return values

    def coefficients(self) -> Tensor:
        """The weights of the components for the columns of the basis, (K, H)."""
        return self.mixture.coefficients(self.basis.n_columns)

    def log_joint(self, rows: Tensor) -> Tensor:
        """(n, D) -> (K, n)"""
        return self.mixture.log_joint(self.features(rows))

    def draws(self) -> SparseMixture:
        """Draw values (S, P) from their posterior: a fixed low-discrepancy set, for reproducible predictions."""
        size = self.mixture.n_pairs
        uniform = torch.quasirandom.SobolEngine(size, scramble=True, seed=0).draw(N_DRAWS, dtype=torch.float64)
        normal = torch.special.ndtri(uniform.clamp(1e-10, 1 - 1e-10)).to(self.covariance.device)
        spectrum, vectors = torch.linalg.eigh(self.covariance)
        spread = normal * spectrum.clamp_min(0).sqrt() @ vectors.T
        return replace(self.mixture, values=self.mixture.values + spread)

    def class_scores(self, rows: Tensor) -> Tensor:
        """log p(x, c) up to a term of the row: (n, D) -> (C, n)."""
        return class_log_joint(self.log_joint(rows), self.mixture.class_sizes)

    def moderated_probabilities(self, rows: Tensor) -> Tensor:
        """Class probabilities averaged over the posterior of the values (moderated): (n, D) -> (n, C)."""
        mixture = self.mixture
        if mixture.n_pairs == 0:
            return self.class_scores(rows).softmax(0).T
        features = self.features(rows)[:, mixture.columns].T  # (P, n)
        total = torch.zeros(len(mixture.class_sizes), len(rows), dtype=torch.float64, device=rows.device)
        draws = self.draws().values
        for values in draws:
            log_joint = weigh(features, mixture.members.T * values, mixture.log_weights)
            total += class_log_joint(log_joint, mixture.class_sizes).softmax(0)
        return (total / len(draws)).T


def compact(scaling: Scaling, basis: Basis, mixture: SparseMixture, covariance: Tensor) -> SparseModel:
    """The model over the columns of the basis that are in use."""
    used, columns = mixture.columns.unique(return_inverse=True)
    return SparseModel(scaling, basis.select(used), replace(mixture, columns=columns), covariance)
