"""Curvature of the conditional likelihood of a log-linear mixture plus the precisions, in the smaller of two spaces.

DirectCurvature works with the active columns, FeatureCurvature with the features that span them; both give the same
numbers (feature-form). They compute log joints, gradients and Hessians with respect to the values of pairs, and are
valid while the pairs are the same. `factored` gives the sum A of precisions and Hessian as factors: with posteriors
(K, N) alone for the complete Hessian, with responsibilities (K, N) for the exact one.
"""

from __future__ import annotations

import math
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from mixtura.numerics.linalg import NumericalError, safe_cholesky, solve_lower
from mixtura.sparse.model import SparseMixture
from mixtura.values.features import gather, weigh

# From this number of pairs on, operations take longer than their calls.
MANY_PAIRS = 150


class DirectCurvature:
    """Curvature in the space of the pairs, with one row and column for each."""

    def __init__(self, mixture: SparseMixture, columns: Tensor, weights: Tensor):
        self.components, self.weights = mixture.components, weights
        self.rooted = columns * weights.sqrt()  # (P, N)
        self.members = mixture.members.T.contiguous()  # (K, P)
        self.features, places = columns, torch.arange(len(columns), device=columns.device)  # (P, N), (P,)
        self.many = len(columns) >= MANY_PAIRS
        if self.many:  # columns that several components use are multiplied once
            used, places = mixture.columns.unique(return_inverse=True)
            self.features = columns[torch.empty_like(used).scatter_(0, places, torch.arange(len(places)).to(used))]
        self.shape = (mixture.n_components, len(self.features))
        self.places = mixture.components * len(self.features) + places  # in (K, H)

    def log_joint(self, values: Tensor, log_weights: Tensor) -> Tensor:
        """(P,), (K,) -> (K, N)"""
        if self.many:
            coefficients = values.new_zeros(math.prod(self.shape)).index_copy_(0, self.places, values).view(self.shape)
        else:
            coefficients = self.members * values
        return weigh(self.features, coefficients, log_weights)

    def gradient(self, residuals: Tensor) -> Tensor:
        """Sums over rows by their weights: (K, N) -> (P,)"""
        return gather(self.features, residuals * self.weights).take(self.places)

    @cached_property
    def _parts(self) -> list[slice]:
        """The pairs of every component."""
        edges = [0, *self.members.sum(1).long().cumsum(0).tolist()]
        return [slice(start, stop) for start, stop in pairwise(edges) if stop > start]

    @cached_property
    def _same(self) -> Tensor:
        """(P, P), one for pairs of one component."""
        return self.members.T @ self.members

    def hessian(self, posteriors: Tensor, responsibilities: Tensor | None = None) -> Tensor:
        """Minus second derivatives, (P, P).

        (complete-hessian)  sum_n weight_n p_k (1[k = l] - p_l) phi phi', HU21 eq. 15 corrected;
        (exact-hessian)     minus the same with responsibilities in place of posteriors.
        """
        total = self._complete(posteriors)
        return total if responsibilities is None else total - self._complete(responsibilities)

    def _complete(self, posteriors: Tensor) -> Tensor:
        mixed = posteriors.index_select(0, self.components).mul_(self.rooted)  # (P, N); indexing would be slower
        if not self.many:
            return torch.addmm(torch.mm(mixed, self.rooted.T).mul_(self._same), mixed, mixed.T, alpha=-1)
        total = torch.mm(mixed, mixed.T).neg_()
        for part in self._parts:  # half the multiplications
            total[part, part].addmm_(mixed[part], self.rooted[part].T)
        return total

    def factored(
        self, precisions: Tensor, posteriors: Tensor, responsibilities: Tensor | None = None
    ) -> DirectFactored:
        return DirectFactored(self.hessian(posteriors, responsibilities), precisions)


class DirectFactored:
    """A Cholesky factor of A."""

    def __init__(self, matrix: Tensor, precisions: Tensor):
        self.precisions = precisions
        whole = matrix
        whole.diagonal().add_(precisions)
        self.factor, info = torch.linalg.cholesky_ex(whole)  # reads the lower half only
        self.is_positive = int(info) == 0
        if not self.is_positive:
            self.factor, _ = safe_cholesky(whole + torch.diag((-whole.diagonal()).clamp_min(0) + 1e-12))

    @property
    def log_determinant(self) -> Tensor:
        """log |A| - sum log precisions."""
        return (self.factor.diagonal().square() / self.precisions).log().sum()

    @property
    def determined(self) -> Tensor:
        """1 - precision * variance of every value, (P,)."""
        return 1 - self.precisions * self.covariance().diagonal()

    def solve(self, gradient: Tensor) -> Tensor:
        # Two calls take half the time of cholesky_solve, which copies the factor.
        half = solve_lower(self.factor, gradient.unsqueeze(1))
        return torch.linalg.solve_triangular(self.factor.mT, half, upper=True)[:, 0]

    def covariance(self) -> Tensor:
        """A^-1, (P, P)."""
        return torch.cholesky_inverse(self.factor)


class FeatureCurvature:
    """Curvature in the space of the features, for components with pairs: A^-1 by the matrix inversion lemma."""

    def __init__(self, mixture: SparseMixture, features: Tensor, maps: Tensor, weights: Tensor):
        self.components, self.members = mixture.components, mixture.members
        self.features, self.maps, self.weights = features, maps, weights  # (R, N), (R, P), (N,)
        sizes = mixture.members.sum(0).long().tolist()
        self.live = [k for k, size in enumerate(sizes) if size > 0]
        edges = torch.tensor([0, *sizes]).cumsum(0).tolist()
        self.parts = [slice(edges[k], edges[k + 1]) for k in self.live]
        self.places = torch.tensor(
            [self.live.index(k) if k in self.live else 0 for k in range(len(sizes))], device=maps.device
        )[mixture.components]  # (P,)

    def log_joint(self, values: Tensor, log_weights: Tensor) -> Tensor:
        return weigh(self.features, ((self.maps * values) @ self.members).T, log_weights)

    def gradient(self, residuals: Tensor) -> Tensor:
        return self.back(gather(self.features, residuals * self.weights).T, self.components)

    def back(self, vectors: Tensor, components: Tensor) -> Tensor:
        """Convert derivatives by features (R, K) to derivatives by values (P,)."""
        return (self.maps * vectors[:, components]).sum(0)

    def spreads(self, precisions: Tensor) -> Tensor:
        """U precisions^-1 U' of every live component, (K', R, R)."""
        scaled = self.maps / precisions
        return torch.stack([scaled[:, part] @ self.maps[:, part].T for part in self.parts])

    def factored(
        self, precisions: Tensor, posteriors: Tensor, responsibilities: Tensor | None = None
    ) -> FeatureFactored:
        matrix = self._hessian(posteriors)
        if responsibilities is not None:
            matrix = matrix - self._hessian(responsibilities)
        return FeatureFactored(self, matrix, precisions)

    def _hessian(self, posteriors: Tensor) -> Tensor:
        """(complete-hessian) of the features, (Q, Q) with Q = live components x features."""
        size, n_rows = self.features.shape
        p = (posteriors[self.live].unsqueeze(1) * self.features).view(-1, n_rows)  # (Q, N)
        weighted = self.weights * p
        total = -(weighted @ p.T)
        own = (self.features @ weighted.T).view(size, len(self.live), size)
        total.view(len(self.live), size, len(self.live), size).diagonal(dim1=0, dim2=2).add_(own.transpose(1, 2))
        return total


class FeatureFactored:
    """T = (I + H S)^-1 H, with which A^-1 = P^-1 - P^-1 U' T U P^-1 for precisions P (feature-form)."""

    def __init__(self, curvature: FeatureCurvature, matrix: Tensor, precisions: Tensor):
        self.curvature, self.matrix, self.precisions = curvature, matrix, precisions
        self.spreads = curvature.spreads(precisions)
        n_live, size = len(curvature.live), len(curvature.features)
        blocks = matrix.view(n_live * size, n_live, size).transpose(0, 1)  # (K', Q, R)
        product = (blocks @ self.spreads).transpose(0, 1).reshape(n_live * size, n_live * size)
        product.diagonal().add_(1)
        self.factors, self.pivots, info = torch.linalg.lu_factor_ex(product)
        if int(info) > 0:
            raise NumericalError("the Hessian is numerically singular")

    @property
    def is_positive(self) -> bool:
        """Whether I + L' H L has a Cholesky factor, with L L' = S."""
        spreads = self.spreads
        lower, _ = safe_cholesky(spreads + 1e-12 * torch.diag_embed(spreads.diagonal(dim1=1, dim2=2) + 1e-300))
        whole = torch.block_diag(*lower)
        symmetric = whole.T @ self.matrix @ whole
        symmetric.diagonal().add_(1)
        return int(torch.linalg.cholesky_ex(symmetric)[1]) == 0

    @property
    def log_determinant(self) -> Tensor:
        return self.factors.diagonal().abs().log().sum()

    def solve(self, gradient: Tensor) -> Tensor:
        scaled = gradient / self.precisions
        up = ((self.curvature.maps * scaled) @ self.curvature.members)[:, self.curvature.live].T.reshape(
            -1, 1
        )  # (Q, 1)
        down = torch.linalg.lu_solve(self.factors, self.pivots, self.matrix @ up)
        down = down.view(len(self.curvature.live), -1).T
        return scaled - self.curvature.back(down, self.curvature.places) / self.precisions

    @property
    def determined(self) -> Tensor:
        """u' T u / precision, which avoids a difference of nearly equal numbers."""
        n_live, size = len(self.curvature.live), len(self.curvature.features)
        inner = torch.linalg.lu_solve(self.factors, self.pivots, self.matrix)
        blocks = inner.view(n_live, size, n_live, size).diagonal(dim1=0, dim2=2)  # (R, R, K')
        maps, parts = self.curvature.maps, self.curvature.parts
        quadratics = [(maps[:, part] * (blocks[..., k] @ maps[:, part])).sum(0) for k, part in enumerate(parts)]
        return torch.cat(quadratics) / self.precisions


Curvature: TypeAlias = DirectCurvature | FeatureCurvature
Factored: TypeAlias = DirectFactored | FeatureFactored
