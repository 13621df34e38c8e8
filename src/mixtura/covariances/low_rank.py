"""Diagonal plus low rank, of the covariance or of the precision, without D x D matrices.

Covariance form: Sigma = Psi + S S', fitted as a factor analyser. With M = I + S' Psi^-1 S = L L' and V = Psi^-1 S L^-T:
Sigma^-1 = Psi^-1 - V V',  |Sigma| = |Psi| |M| (woodbury). Precision form: the same the other way round,
Lambda = Delta + S S' and Sigma = Delta^-1 - V V'. In both, with a sign of + or -,

    Sigma = Psi + sign F F',  Lambda = Psi^-1 - sign P P'   with uniquenesses Psi, loadings F and projections P.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

import torch
from torch import Tensor

from mixtura import checks
from mixtura.covariances.full import Full
from mixtura.files.registry import storable
from mixtura.numerics import linalg
from mixtura.numerics.cached_property import cached_property
from mixtura.numerics.low_rank_marginals import LowRankMarginals
from mixtura.roles import Conditioned, Covariance, Quadratic, Structure
from mixtura.values.features import SQUARES, Coefficients
from mixtura.values.moments import Form, Moments, ProjectedForm, PseudoMoments, image

# A uniqueness may not fall below this part of its feature's variance (a Heywood case: the likelihood is unbounded).
SMALLEST_UNIQUENESS = 1e-6
# Largest number of features for which precisions are computed from full covariances; beyond, D x D matrices are too
# large.
MOST_FULL_FEATURES = 200


def automatic_rank(n_features: int) -> int:
    """Return the rank that "auto" means: min(10, max(1, D // 2)), at most D - 1.

    Parameters
    ----------
    n_features : int
        Number of features D.

    Returns
    -------
    rank : int
    """
    return min(10, max(1, n_features // 2), max(n_features - 1, 0))


def _rank_of(rank: int | None, n_features: int) -> int:
    return automatic_rank(n_features) if rank is None else min(rank, n_features)


@storable("low_rank")
@dataclass(frozen=True)
class LowRank(Structure):
    """Covariances that are diagonal plus low rank: Psi + S S'.

    Parameters
    ----------
    rank : int, optional
        Number of columns of S; None means min(10, max(1, D // 2)).
    """

    rank: int | None = None
    name = "low_rank"
    has_directions = True

    def start(self, variances: Tensor, deviations: Tensor, assignments: Tensor, class_of: Tensor) -> LowRankCovariance:
        """Start from principal directions of the assigned rows; uniquenesses are at least a tenth of the variances."""
        n_components, n_features = variances.shape
        rank = _rank_of(self.rank, n_features)
        loadings = variances.new_zeros(n_components, n_features, rank)
        for k in range(n_components):
            scaled = deviations[assignments == k] / variances[k].sqrt()
            if len(scaled) > 1 and rank > 0:
                loadings[k] = _principal(scaled, rank) * variances[k].sqrt().unsqueeze(-1)
        share = loadings.square().sum(-1)
        shrink = (0.9 * variances / share.clamp_min(1e-300)).clamp_max(1).sqrt()  # explains 90 % of a variance at most
        loadings = loadings * shrink.unsqueeze(-1)
        return LowRankCovariance(variances - loadings.square().sum(-1), loadings)

    def from_tensors(self, tensors: dict[str, Tensor]) -> LowRankCovariance:
        return LowRankCovariance(tensors["uniquenesses"], tensors["loadings"])

    def converted(self, covariance: Covariance) -> LowRankCovariance:
        """The leading directions of another covariance, and the remaining diagonal (eigen-split)."""
        if isinstance(covariance, LowRankCovariance) and not covariance.of_precision:
            return covariance
        return LowRankCovariance(*eigen_split(covariance.dense(), _rank_of(self.rank, covariance.n_features)))


@storable("low_rank_precision")
@dataclass(frozen=True)
class LowRankPrecision(Structure):
    """Precisions that are diagonal plus low rank: few directions in which a component is narrow.

    There is no closed-form M-step: EM fits the structure `for_em`, and `converted` converts it to precisions.

    Parameters
    ----------
    rank : int, optional
        Number of directions; None means min(10, max(1, D // 2)).
    """

    rank: int | None = None
    name = "low_rank_precision"
    has_directions = True

    @property
    def has_update(self) -> bool:
        return False

    def for_em(self, n_features: int) -> Structure:
        """The structure that EM fits in place of this one."""
        return Full() if n_features <= MOST_FULL_FEATURES else LowRank(self.rank)

    def start(self, variances: Tensor, deviations: Tensor, assignments: Tensor, class_of: Tensor) -> LowRankCovariance:
        covariance = self.converted(LowRank(self.rank).start(variances, deviations, assignments, class_of))
        return covariance.rescaled((covariance.variances() / variances).sqrt())

    def from_tensors(self, tensors: dict[str, Tensor]) -> LowRankCovariance:
        return LowRankCovariance(tensors["precisions"], tensors["directions"], of_precision=True)

    def converted(self, covariance: Covariance) -> LowRankCovariance:
        """The leading directions of the precisions, and the remaining diagonal (eigen-split)."""
        if isinstance(covariance, LowRankCovariance) and covariance.of_precision:
            return covariance
        size = covariance.n_features
        rank = _rank_of(self.rank, size)
        if size > MOST_FULL_FEATURES:
            return _nearly_diagonal(covariance, rank)
        factors, _ = linalg.safe_cholesky(covariance.dense())
        return LowRankCovariance(*eigen_split(linalg.precisions(factors), rank), of_precision=True)


def _nearly_diagonal(covariance: Covariance, rank: int) -> LowRankCovariance:
    """Precisions with the same variances; a tenth of each is along random directions, as a start for optimisers."""
    precisions = 1 / covariance.variances()
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(*precisions.shape, rank, generator=generator, dtype=precisions.dtype).to(precisions.device)
    columns = noise * (0.1 * precisions / rank).sqrt().unsqueeze(-1)
    nearly_diagonal = LowRankCovariance(0.9 * precisions, columns, of_precision=True)
    return nearly_diagonal.rescaled((nearly_diagonal.variances() / covariance.variances()).sqrt())


def eigen_split(matrices: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Approximate matrices (K, D, D) by diagonals (K, D) plus columns (K, D, R) times their transpose (eigen-split).

    The columns are the leading eigenvectors of the correlation matrices, scaled by the roots of their eigenvalues and
    back to the units of the features (RPTP18 takes the matrices themselves). The diagonals are the remainders.
    """
    scales = matrices.diagonal(dim1=-2, dim2=-1).sqrt()  # (K, D)
    values, vectors = torch.linalg.eigh(matrices / (scales.unsqueeze(-1) * scales.unsqueeze(-2)))
    columns = vectors[..., -rank:] * values[..., None, -rank:].clamp_min(0).sqrt()
    left = (1 - columns.square().sum(-1)).clamp_min(SMALLEST_UNIQUENESS)
    return left * scales.square(), columns * scales.unsqueeze(-1)


@lru_cache(maxsize=16)
def _upper_triangle(size: int, device: torch.device) -> Tensor:
    """Positions of the upper triangle in a flattened matrix."""
    with torch.inference_mode(False):  # gradients may pass through them later
        rows, columns = torch.triu_indices(size, size, device=device)
        return rows * size + columns


def _principal(rows: Tensor, rank: int) -> Tensor:
    """Principal directions of rows (n, D) times their scales: (D, rank), zero columns where rows are too few."""
    _, scales, directions = torch.linalg.svd(rows[:2000], full_matrices=False)
    n_directions = min(rank, len(scales))
    loadings = rows.new_zeros(rows.shape[1], rank)
    leading = directions[:n_directions].T * scales[:n_directions]
    loadings[:, :n_directions] = leading / math.sqrt(len(rows[:2000]))
    return loadings


@dataclass(frozen=True)
class LowRankCovariance(Covariance):
    """Covariances, or precisions, that are diagonal plus low rank.

    Parameters
    ----------
    diagonals : Tensor of shape (K, D)
        Diagonals.
    columns : Tensor of shape (K, D, R)
        Factors of the low-rank part.
    of_precision : bool, default=False
        Whether diagonals and columns are those of the precisions.
    smallest : float, default=1e-6
        Smallest diagonal entry that an optimiser may reach (the epsilon of RPTP18).
    """

    diagonals: Tensor
    columns: Tensor
    of_precision: bool = False
    smallest: float = SMALLEST_UNIQUENESS
    _carried = ("_factors", "_other_columns", "_log_determinants")

    @property
    def structure(self) -> LowRank | LowRankPrecision:
        return LowRankPrecision(self.rank) if self.of_precision else LowRank(self.rank)

    @property
    def n_components(self) -> int:
        return self.columns.shape[0]

    @property
    def n_features(self) -> int:
        return self.columns.shape[1]

    @property
    def rank(self) -> int:
        return self.columns.shape[2]

    @property
    def form(self) -> Form:
        return ProjectedForm(self.projections)

    @property
    def n_parameters(self) -> int:
        # Columns are determined up to a rotation.
        rotations = self.rank * (self.rank - 1) // 2
        return self.n_components * (self.n_features * (self.rank + 1) - rotations)

    @property
    def repaired(self) -> Tensor:
        return (self.diagonals <= 0).any(-1)

    @property
    def sign(self) -> float:
        return -1.0 if self.of_precision else 1.0

    @cached_property
    def _factors(self) -> Tensor:
        """L with L L' = I + columns' diag^-1 columns, (K, R, R)."""
        inner = self.columns.mT @ (self.columns / self.diagonals.unsqueeze(-1))
        return linalg.safe_cholesky(inner + torch.eye(self.rank, dtype=inner.dtype, device=inner.device))[0]

    @cached_property
    def _other_columns(self) -> Tensor:
        """diag^-1 columns L^-T, (K, D, R)."""
        return linalg.solve_lower(self._factors, (self.columns / self.diagonals.unsqueeze(-1)).mT).mT

    @cached_property
    def roots(self) -> Tensor:
        """Lower L with L L' = I + sign loadings' diag(uniquenesses)^-1 loadings, (K, R, R)."""
        if not self.of_precision:
            return self._factors
        return linalg.solve_lower(self._factors, torch.eye(self.rank, dtype=self.columns.dtype).to(self._factors))

    @cached_property
    def uniquenesses(self) -> Tensor:
        """(K, D)"""
        return 1 / self.diagonals if self.of_precision else self.diagonals

    @property
    def loadings(self) -> Tensor:
        """(K, D, R)"""
        return self._other_columns if self.of_precision else self.columns

    @property
    def projections(self) -> Tensor:
        """(K, D, R)"""
        return self.columns if self.of_precision else self._other_columns

    @cached_property
    def _log_determinants(self) -> Tensor:
        return self.sign * (self.diagonals.log().sum(-1) + linalg.log_determinants(self._factors))

    def penalty(self, scatter: Tensor) -> Tensor:
        variances, projected = image(self.form, scatter, self.n_components)
        return (variances / self.uniquenesses).sum(-1) - self.sign * (self.projections * projected).sum((-2, -1))

    def dense(self) -> Tensor:
        return torch.diag_embed(self.uniquenesses) + self.sign * self.loadings @ self.loadings.mT

    def variances(self) -> Tensor:
        return self.uniquenesses + self.sign * self.loadings.square().sum(-1)

    def tensors(self) -> dict[str, Tensor]:
        if self.of_precision:
            return {"precisions": self.diagonals, "directions": self.columns}
        return {"uniquenesses": self.diagonals, "loadings": self.columns}

    def check(self) -> None:
        """Raise a ValueError unless the diagonals are positive: the matrices are then positive definite."""
        checks.positive_numbers("a diagonal entry", self.diagonals)
        if self.columns.ndim != 3 or self.columns.shape[:2] != self.diagonals.shape:
            raise ValueError(f"columns {tuple(self.columns.shape)} do not fit {tuple(self.diagonals.shape)} diagonals")
        checks.numbers("columns", self.columns, self.columns.shape, self.diagonals.dtype)

    def scaled(self, scales: Tensor) -> LowRankCovariance:
        return self.rescaled(1 / scales if self.of_precision else scales)

    def rescaled(self, factors: Tensor) -> LowRankCovariance:
        """Multiply diagonals and columns by factors, (D,) or (K, D)."""
        return replace(self, diagonals=self.diagonals * factors.square(), columns=self.columns * factors.unsqueeze(-1))

    def with_smallest(self, smallest: float) -> LowRankCovariance:
        return replace(self, smallest=smallest)

    # ---- for optimisers (free-form) ----

    def unconstrained(self) -> dict[str, Tensor]:
        # Rotating the columns does not change the matrices: the first R rows are made lower triangular.
        turned = self.columns @ torch.linalg.qr(self.columns[:, : self.rank].mT)[0]
        corners = turned[:, : self.rank].mT.flatten(1)[:, _upper_triangle(self.rank, turned.device)]
        # Contiguous columns are faster in the products of many components with rows.
        rest = turned[:, self.rank :].mT.contiguous()  # (K, R, D - R)
        return {
            "diagonals": linalg.inverse_softplus(self.diagonals - self.smallest),
            "corners": corners,
            "columns": rest,
        }

    def constrained(self, free: dict[str, Tensor]) -> LowRankCovariance:
        diagonals, columns = self._parts_of(free)
        return replace(self, diagonals=diagonals, columns=columns)

    def quadratic(self, free: dict[str, Tensor]) -> Quadratic:
        diagonals, columns = self._parts_of(free)
        log_sum = diagonals.log().sum(-1)
        if self.of_precision:
            return Quadratic(log_sum + linalg.low_rank_log_determinants(diagonals, columns), diagonals, columns, 1.0)
        projections, log_inner = linalg.low_rank_inverse(diagonals, columns)
        return Quadratic(-log_sum - log_inner, 1 / diagonals, projections, -1.0)

    def _parts_of(self, free: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Diagonals (K, D) and columns (K, D, R)."""
        corners, rest, rank = free["corners"], free["columns"], self.rank
        places = _upper_triangle(rank, corners.device)
        flat = corners.new_zeros(len(corners), rank * rank).index_copy(1, places, corners)
        columns = torch.cat((flat.unflatten(1, (rank, rank)), rest), -1).mT
        return torch.nn.functional.softplus(free["diagonals"]) + self.smallest, columns

    # ---- complete rows ----

    def coefficients(self, means: Tensor, constants: Tensor) -> Coefficients:
        linear, projections = means / self.uniquenesses, self.projections.mT
        squared = (linear * means).sum(-1) + self.log_determinants + self.n_features * math.log(2 * math.pi)
        return Coefficients(
            SQUARES,
            torch.sub(constants, squared, alpha=0.5),
            torch.cat((linear, -0.5 / self.uniquenesses), 1),
            projections,
            (projections @ means.unsqueeze(-1)).squeeze(-1),
            -self.sign,
        )

    def squared_distances(self, deviations: Tensor) -> Tensor:
        scaled = deviations.square() / self.uniquenesses.to(deviations.dtype).unsqueeze(1)
        along = (deviations @ self.projections.to(deviations.dtype)).square().sum(-1)
        return scaled.sum(-1) - self.sign * along

    def second_moments(self, deviations: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        weighted = deviations * weights.unsqueeze(-1)
        along = deviations @ self.projections.to(deviations.dtype)  # (K, n, R)
        return (weighted * deviations).sum(1), weighted.mT @ along

    def own_moments(self) -> tuple[Tensor, ...]:
        # Sigma P = Psi P + sign F F' P, with F the loadings and P the projections
        spread = self.loadings @ (self.loadings.mT @ self.projections)
        return self.variances(), self.uniquenesses.unsqueeze(-1) * self.projections + self.sign * spread

    def updated(self, scatter: Moments, pseudo: PseudoMoments, floor: Tensor) -> LowRankCovariance:
        """One step of EM for factor analysis (factor-update), with C the scatter matrix over its count:

        S = C B' (M^-1 + B C B')^-1,  Psi = diag(C - S B C),  B = M^-1 S' Psi^-1 = L^-T V'.
        """
        if self.of_precision:
            raise NotImplementedError(
                "precisions of low rank have no closed-form update; fit LowRankPrecision.for_em(n_features) by EM and "
                "convert, or use solver='gradient'"
            )
        divisors = (scatter.counts + pseudo.covariance_count).unsqueeze(-1)
        alive = divisors > 0
        divisors = divisors.clamp_min(1e-300)
        prior_diagonal, prior_projected = image(scatter.form, pseudo.scatter, self.n_components)
        variances = (scatter.seconds[0] + prior_diagonal) / divisors + pseudo.ridge
        projected = (scatter.seconds[1] + prior_projected) / divisors.unsqueeze(-1) + pseudo.ridge * self.projections
        identity = torch.eye(self.rank, dtype=projected.dtype, device=projected.device)
        inverse = linalg.solve_lower(self.roots, identity.expand_as(self.roots))  # L^-1
        along = projected @ inverse  # C B'
        inner = inverse.mT @ (identity + self.projections.mT @ projected) @ inverse  # M^-1 + B C B'
        inner_factors, _ = linalg.safe_cholesky(0.5 * (inner + inner.mT))
        loadings = torch.cholesky_solve(along.mT, inner_factors).mT
        smallest = floor.maximum(SMALLEST_UNIQUENESS * variances)
        uniquenesses = (variances - (loadings * along).sum(-1)).maximum(smallest)
        return LowRankCovariance(
            torch.where(alive, uniquenesses, self.uniquenesses),
            torch.where(alive.unsqueeze(-1), loadings, self.loadings),
        )

    def definite(self, scatter: Moments, pseudo: PseudoMoments) -> Tensor:
        """Whether matrices and uniquenesses of (factor-update) are positive: with n the count,

        diag C > diag C V (n I + V' C V)^-1 V' C, where C is the scatter matrix itself.
        """
        counts = scatter.counts + pseudo.covariance_count
        priors = image(scatter.form, pseudo.scatter, self.n_components)
        diagonals, projected = (a + b for a, b in zip(scatter.seconds, priors, strict=True))
        gram = self.projections.mT @ projected + torch.diag_embed(counts.unsqueeze(-1).expand(-1, self.rank))
        factors, failures = torch.linalg.cholesky_ex(gram)
        explained = linalg.solve_lower(factors, projected.mT).square().sum(-2)
        return (counts > 0) & (failures == 0) & (diagonals > explained).all(-1)

    def sample(self, components: Tensor, generator: torch.Generator) -> Tensor:
        shape = (len(components), self.n_features + self.rank)
        noise = torch.randn(*shape, generator=generator, dtype=self.columns.dtype, device=generator.device)
        noise = noise.to(self.columns.device)
        draws = noise[:, : self.n_features] * self.diagonals.sqrt()[components]
        for k in components.unique().tolist():
            chosen = components == k
            draws[chosen] += noise[chosen, self.n_features :] @ self.columns[k].T
            if self.of_precision:  # so far with covariance Lambda: Sigma times that has covariance Sigma
                loadings = self.loadings[k]
                draws[chosen] = draws[chosen] * self.uniquenesses[k] - (draws[chosen] @ loadings) @ loadings.T
        return draws

    # ---- rows with missing values: drop their rows of uniquenesses and loadings, in either form ----

    @property
    def has_marginals(self) -> bool:
        return True

    def marginals(self, rows: Tensor, observed: Tensor, means: Tensor) -> LowRankMarginals:
        """The marginal densities of the observed values of rows (n, D), zero in missing values; means as the rows."""
        uniquenesses, loadings, roots = (part.to(rows.dtype) for part in (self.uniquenesses, self.loadings, self.roots))
        return LowRankMarginals(
            uniquenesses, loadings, roots, means.to(rows.dtype), self.sign, rows, observed.to(rows.dtype)
        )

    def condition(self, deviations: Tensor, observed: Tensor) -> Conditioned:
        # One mean at a time: deviations have different references.
        nowhere = torch.zeros_like(deviations[:1, 0])
        parts = [self.select(slice(k, k + 1)) for k in range(self.n_components)]
        each = [part.marginals(own, observed, nowhere) for part, own in zip(parts, deviations, strict=True)]
        inverses, factors = zip(*(part.posterior(0) for part in each), strict=True)
        distances, log_determinants = zip(*(part.solved() for part in each), strict=True)
        return Conditioned(
            torch.cat(distances),
            torch.cat(log_determinants),
            torch.stack([part.filled(0, own) for part, own in zip(each, factors, strict=True)]),
            (each, inverses),
        )

    def conditional_moments(self, conditioned: Conditioned, weights: Tensor) -> tuple[Tensor, ...]:
        parts, inverses = cast("tuple[list[LowRankMarginals], list[Tensor]]", conditioned.state)
        each = [
            part.conditional_moments(0, inverse, own)
            for part, inverse, own in zip(parts, inverses, weights, strict=True)
        ]
        diagonals, projected = (torch.stack(parts) for parts in zip(*each, strict=True))
        return diagonals, projected
