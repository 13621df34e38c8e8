"""Diagonal plus low rank, Sigma = diag(uniquenesses) + S S', fitted as a factor analyser; nothing is D x D.

With M = I + S' Psi^-1 S = L L' and V = Psi^-1 S L^-T:  Sigma^-1 = Psi^-1 - V V',  |Sigma| = |Psi| |M| (woodbury).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from mixtura import linalg
from mixtura.covariances.product import squares
from mixtura.moments import Form, Moments, Projected, image
from mixtura.roles import Conditioned, PseudoMoments
from mixtura.scratch import Scratch

# A uniqueness may not fall below this part of its feature's variance (a Heywood case: the likelihood is unbounded).
SMALLEST_UNIQUENESS = 1e-6


def automatic_rank(n_features: int) -> int:
    """min(10, max(1, D // 2)), never above D - 1."""
    return min(10, max(1, n_features // 2), max(n_features - 1, 0))


@dataclass(frozen=True)
class LowRank:
    """Diagonal plus low rank; rank None chooses min(10, max(1, D // 2))."""

    rank: int | None = None
    name = "low_rank"

    def start(self, variances: Tensor, deviations: Tensor, assignments: Tensor, class_of: Tensor) -> LowRankCovariance:
        """Principal directions of the assigned rows; what they leave is the uniqueness, at least a tenth."""
        n_components, n_features = variances.shape
        rank = automatic_rank(n_features) if self.rank is None else self.rank
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


def _principal(rows: Tensor, rank: int) -> Tensor:
    """Principal directions of rows (n, D) times their scales: (D, rank), zero columns where rows are too few."""
    _, scales, directions = torch.linalg.svd(rows[:2000], full_matrices=False)
    found = min(rank, len(scales))
    loadings = rows.new_zeros(rows.shape[1], rank)
    loadings[:, :found] = directions[:found].T * scales[:found] / math.sqrt(len(rows[:2000]))
    return loadings


@dataclass(frozen=True)
class LowRankCovariance:
    """Uniquenesses (K, D) and loadings (K, D, R)."""

    uniquenesses: Tensor
    loadings: Tensor

    @property
    def n_components(self) -> int:
        return self.loadings.shape[0]

    @property
    def n_features(self) -> int:
        return self.loadings.shape[1]

    @property
    def rank(self) -> int:
        return self.loadings.shape[2]

    @property
    def form(self) -> Form:
        return Projected(self.projections)

    @property
    def n_parameters(self) -> int:
        # Loadings are determined up to a rotation of the R factors.
        rotations = self.rank * (self.rank - 1) // 2
        return self.n_components * (self.n_features * (self.rank + 1) - rotations)

    @property
    def repaired(self) -> Tensor:
        return (self.uniquenesses <= 0).any(-1)

    @cached_property
    def inner_factors(self) -> Tensor:
        """L with L L' = I + S' Psi^-1 S, (K, R, R)."""
        inner = self.loadings.mT @ (self.loadings / self.uniquenesses.unsqueeze(-1))
        return linalg.safe_cholesky(inner + torch.eye(self.rank, dtype=inner.dtype, device=inner.device))[0]

    @cached_property
    def projections(self) -> Tensor:
        """V, (K, D, R)."""
        scaled = self.loadings / self.uniquenesses.unsqueeze(-1)
        return linalg.solve_lower(self.inner_factors, scaled.mT).mT

    @cached_property
    def _log_determinants(self) -> Tensor:
        return self.uniquenesses.log().sum(-1) + linalg.log_determinants(self.inner_factors)

    @property
    def log_determinants(self) -> Tensor:
        return self._log_determinants

    @property
    def distinct_log_determinants(self) -> Tensor:
        return self.log_determinants

    def penalty(self, scatter: Tensor) -> Tensor:
        variances, projected = image(self.form, scatter, self.n_components)
        return (variances / self.uniquenesses).sum(-1) - (self.projections * projected).sum((-2, -1))

    def dense(self) -> Tensor:
        return torch.diag_embed(self.uniquenesses) + self.loadings @ self.loadings.mT

    def variances(self) -> Tensor:
        return self.uniquenesses + self.loadings.square().sum(-1)

    def select(self, components: slice | Tensor) -> LowRankCovariance:
        return LowRankCovariance(self.uniquenesses[components], self.loadings[components])

    def tensors(self) -> dict[str, Tensor]:
        return {"uniquenesses": self.uniquenesses, "loadings": self.loadings}

    def product(self, means: Tensor) -> LowRankProduct:
        linear = means / self.uniquenesses
        constant = self.n_features * math.log(2 * math.pi) + self.log_determinants + (linear * means).sum(-1)
        return LowRankProduct(
            weights=torch.cat((linear, -0.5 / self.uniquenesses), 1),
            biases=-0.5 * constant.unsqueeze(-1),
            projections=self.projections,
            offsets=(means.unsqueeze(1) @ self.projections).squeeze(1),
        )

    def squared_distances(self, deviations: Tensor) -> Tensor:
        scaled = deviations.square() / self.uniquenesses.to(deviations.dtype).unsqueeze(1)
        return scaled.sum(-1) - (deviations @ self.projections.to(deviations.dtype)).square().sum(-1)

    def second_moments(self, deviations: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        weighted = deviations * weights.unsqueeze(-1)
        along = deviations @ self.projections.to(deviations.dtype)  # (K, n, R)
        return (weighted * deviations).sum(1), weighted.mT @ along

    def own_moments(self) -> tuple[Tensor, ...]:
        # Sigma V = Psi V + S S' V
        spread = self.loadings @ (self.loadings.mT @ self.projections)
        return self.variances(), self.uniquenesses.unsqueeze(-1) * self.projections + spread

    def updated(self, scatter: Moments, pseudo: PseudoMoments, floor: Tensor) -> LowRankCovariance:
        """One step of EM for factor analysis (factor-update), with C the scatter matrix over its count:

        S = C B' (M^-1 + B C B')^-1,  Psi = diag(C - S B C),  B = M^-1 S' Psi^-1 = L^-T V'.
        """
        divisors = (scatter.counts + pseudo.covariance_count).unsqueeze(-1)
        alive = divisors > 0
        divisors = divisors.clamp_min(1e-300)
        prior_diagonal, prior_projected = image(scatter.form, pseudo.scatter, self.n_components)
        variances = (scatter.seconds[0] + prior_diagonal) / divisors + pseudo.ridge
        projected = (scatter.seconds[1] + prior_projected) / divisors.unsqueeze(-1) + pseudo.ridge * self.projections
        identity = torch.eye(self.rank, dtype=projected.dtype, device=projected.device)
        inverse = linalg.solve_lower(self.inner_factors, identity.expand_as(self.inner_factors))  # L^-1
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
        """Whether (factor-update) meets a Cholesky factor and leaves positive uniquenesses: with n the count,

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
        noise = torch.randn(*shape, generator=generator, dtype=self.loadings.dtype, device=generator.device)
        noise = noise.to(self.loadings.device)
        draws = noise[:, : self.n_features] * self.uniquenesses.sqrt()[components]
        for k in components.unique().tolist():
            chosen = components == k
            draws[chosen] += noise[chosen, self.n_features :] @ self.loadings[k].T
        return draws

    # Missing cells: drop their rows of Psi and S. M_n = I + sum over observed d of S_d S_d' / psi_d is, for all rows at
    # once, a product of the mask with a table of D x R^2 numbers per component.

    def condition(self, deviations: Tensor, observed: Tensor) -> Conditioned:
        mask = observed.to(deviations.dtype)
        loadings, uniquenesses = self.loadings.to(deviations.dtype), self.uniquenesses.to(deviations.dtype)
        scaled = loadings / uniquenesses.unsqueeze(-1)
        rank, identity = self.rank, torch.eye(self.rank, dtype=deviations.dtype, device=deviations.device)
        tables = (loadings.unsqueeze(-1) * scaled.unsqueeze(-2)).flatten(2)  # (K, D, R R)
        inner = (mask @ tables).unflatten(-1, (rank, rank)) + identity  # (K, n, R, R)
        inverse, log_determinant = linalg.invert_many(inner.permute(2, 3, 0, 1).contiguous())
        inverse = inverse.permute(2, 3, 0, 1)  # (K, n, R, R)
        pulled = deviations @ scaled  # S' Psi^-1 d, (K, n, R)
        factors = (inverse @ pulled.unsqueeze(-1)).squeeze(-1)  # E[z | x_o]
        distances = (deviations.square() / uniquenesses.unsqueeze(1)).sum(-1) - (pulled * factors).sum(-1)
        log_determinants = uniquenesses.log() @ mask.T + log_determinant
        filled = deviations + (1 - mask) * (factors @ loadings.mT)
        return Conditioned(distances, log_determinants, filled, (1 - mask, inverse))

    def conditional_moments(self, conditioned: Conditioned, weights: Tensor) -> tuple[Tensor, ...]:
        """Cov = E_m (Psi + S M_n^-1 S') E_m with E_m the missing cells; here its diagonal and its product with V."""
        missing, inverse = conditioned.state  # (n, D), (K, n, R, R)
        rank, dtype = self.rank, weights.dtype
        projections = self.projections.to(dtype)
        diagonals, projected = [], []
        for k in range(self.n_components):
            loadings = self.loadings[k].to(dtype)  # (D, R)
            crossing = (missing @ (loadings.unsqueeze(-1) * projections[k].unsqueeze(-2)).flatten(1)).unflatten(
                -1, (rank, rank)
            )  # S' E_m V, (n, R, R)
            weighted = inverse[k] * weights[k][:, None, None]
            both = torch.cat((weighted, weighted @ crossing), -1).flatten(1)  # (n, 2 R R)
            summed = (missing.T @ both).unflatten(-1, (rank, 2 * rank))  # (D, R, 2 R)
            spread = (loadings.unsqueeze(1) @ summed).squeeze(1)  # (D, 2 R)
            missing_weight = (weights[k] @ missing) * self.uniquenesses[k].to(dtype)  # (D,)
            diagonals.append(missing_weight + (spread[:, :rank] * loadings).sum(-1))
            projected.append(missing_weight.unsqueeze(-1) * projections[k] + spread[:, rank:])
        return torch.stack(diagonals), torch.stack(projected)


@dataclass(frozen=True)
class LowRankProduct:
    """Products for diagonal plus low rank: the diagonal in squares of features, the rest in projections."""

    weights: Tensor  # (K, 2 D)
    biases: Tensor  # (K, 1)
    projections: Tensor  # (K, D, R)
    offsets: Tensor  # V' mean, (K, R)

    @property
    def n_features(self) -> int:
        n_components, _, rank = self.projections.shape
        return self.weights.shape[1] + 2 * n_components * rank

    def errors(self, radii: Tensor) -> Tensor:
        size = self.weights.shape[1] // 2
        return -2 * (self.weights[:, size:] @ radii.square())

    def select(self, components: Tensor) -> Self:
        return replace(
            self,
            weights=self.weights[components],
            biases=self.biases[components],
            projections=self.projections[components],
            offsets=self.offsets[components],
        )

    def raised(self, constants: Tensor) -> Self:
        return replace(self, biases=self.biases + constants.unsqueeze(-1))

    def expand(self, centred: Tensor, components: slice, scratch: Scratch) -> tuple[Tensor, Tensor]:
        dtype, rank, n_rows = centred.dtype, self.projections.shape[-1], centred.shape[1]
        features = squares(centred, scratch)
        linear = (self.weights[components].to(dtype) @ features).add_(self.biases[components].to(dtype))
        projections = self.projections[components].to(dtype).mT.flatten(0, 1)  # (K' R, D)
        along = projections @ centred  # (K' R, n)
        deviations = (along - self.offsets[components].to(dtype).reshape(-1, 1)).reshape(len(linear), rank, n_rows)
        return linear + 0.5 * deviations.square().sum(1), torch.cat((features, along))

    def zeros(self) -> list[Tensor]:
        return [torch.zeros_like(self.biases[:, 0]), torch.zeros_like(self.weights), torch.zeros_like(self.projections)]

    def accumulate(self, sums: list[Tensor], features: Tensor, weights: Tensor, components: slice) -> None:
        counts, firsts_and_seconds, projected = sums
        size, n_rows = self.weights.shape[1], features.shape[1]
        counts[components] += weights.sum(1)
        firsts_and_seconds[components] += weights @ features[:size].T
        along = features[size:].reshape(len(weights), -1, n_rows) * weights.unsqueeze(1)  # (K', R, n)
        products = along.flatten(0, 1) @ features[: size // 2].T  # (K' R, D)
        projected[components] += products.unflatten(0, (len(weights), -1)).mT

    def moments(self, sums: list[Tensor], centre: Tensor) -> Moments:
        counts, firsts_and_seconds, projected = sums
        size = centre.shape[0]
        seconds = (firsts_and_seconds[:, size:], projected)
        return Moments(counts, firsts_and_seconds[:, :size], seconds, Projected(self.projections), centre)
