"""The fitted sparse model: scaling of rows, basis, mixture and posterior covariance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import comb

import torch
from torch import Tensor

from mixtura import checks
from mixtura.files.registry import storable
from mixtura.objectives import class_log_joint
from mixtura.sparse.kernels import (
    Basis,
    MonomialBasis,
    Scaling,
)
from mixtura.sparse.mixture import SparseMixture
from mixtura.values.features import weigh

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
        checks.positions("columns of the values", self.mixture.columns, _n_columns(basis))
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
        return self.mixture.coefficients(_n_columns(self.basis))

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


def _n_columns(basis: Basis) -> int:
    return len(basis.columns if isinstance(basis, MonomialBasis) else basis.numbers)
