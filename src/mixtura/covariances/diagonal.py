"""Diagonal covariances; spherical ones are their one-number case."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from mixtura import checks
from mixtura.files.registry import storable
from mixtura.numerics import linalg
from mixtura.roles import Conditioned, Covariance, Quadratic, Structure
from mixtura.values.features import SQUARES, Coefficients
from mixtura.values.moments import DiagonalForm, Form, Moments, PseudoMoments, image

DIAGONAL = DiagonalForm()
# For optimisers, which work on columns of standard deviation one: a component is at most a thousand times as wide.
SMALLEST_PRECISION = 1e-6


@storable("diag")
@dataclass(frozen=True)
class Diagonal(Structure):
    """One variance per feature and component."""

    name = "diag"
    takes_categories = True

    @property
    def is_diagonal(self) -> bool:
        return True

    def start(self, variances: Tensor, deviations: Tensor, assignments: Tensor, class_of: Tensor) -> DiagonalCovariance:
        return DiagonalCovariance(variances)

    def from_tensors(self, tensors: dict[str, Tensor]) -> DiagonalCovariance:
        return DiagonalCovariance(tensors["entries"])


@storable("spherical")
@dataclass(frozen=True)
class Spherical(Structure):
    """One variance per component."""

    name = "spherical"
    takes_categories = True

    @property
    def is_diagonal(self) -> bool:
        return True

    def start(self, variances: Tensor, deviations: Tensor, assignments: Tensor, class_of: Tensor) -> DiagonalCovariance:
        return DiagonalCovariance(_averaged(variances), spherical=True)

    def from_tensors(self, tensors: dict[str, Tensor]) -> DiagonalCovariance:
        return DiagonalCovariance(tensors["entries"], spherical=True)


@dataclass(frozen=True)
class DiagonalCovariance(Covariance):
    """Diagonal covariance matrices.

    Parameters
    ----------
    entries : Tensor of shape (K, D)
        The variances.
    spherical : bool, default=False
        Whether the variances of a component are all equal.
    """

    entries: Tensor
    spherical: bool = False

    @property
    def structure(self) -> Diagonal | Spherical:
        return Spherical() if self.spherical else Diagonal()

    def dense(self) -> Tensor:
        return torch.diag_embed(self.entries)

    def tensors(self) -> dict[str, Tensor]:
        return {"entries": self.entries}

    @property
    def n_components(self) -> int:
        return self.entries.shape[0]

    @property
    def n_features(self) -> int:
        return self.entries.shape[-1]

    @property
    def has_one_scale(self) -> bool:
        return self.spherical

    @property
    def form(self) -> Form:
        return DIAGONAL

    @property
    def repaired(self) -> Tensor:
        return (self.entries <= 0).any(-1)

    @property
    def log_determinants(self) -> Tensor:
        return self.entries.log().sum(-1)

    def variances(self) -> Tensor:
        return self.entries

    def penalty(self, scatter: Tensor) -> Tensor:
        (variances,) = image(DIAGONAL, scatter, self.n_components)
        return (variances / self.entries).sum(-1)

    def scaled(self, scales: Tensor) -> DiagonalCovariance:
        return replace(self, entries=self.entries * scales.square())

    def check(self) -> None:
        """Raise a ValueError unless all variances are positive, and those of spherical covariances equal."""
        checks.positive_numbers("a variance", self.entries)
        if self.entries.ndim != 2 or (self.spherical and bool((self.entries != self.entries[:, :1]).any())):
            raise ValueError("the variances of spherical covariances differ, or are not one row per component")

    # ---- learning ----

    def updated(self, scatter: Moments, pseudo: PseudoMoments, floor: Tensor) -> DiagonalCovariance:
        divisors = (scatter.counts + pseudo.covariance_count).unsqueeze(-1)
        (prior,) = image(DIAGONAL, pseudo.scatter, self.n_components)
        entries = (scatter.seconds[0] + prior) / divisors.clamp_min(1e-300)
        entries = (torch.where(divisors > 0, entries, self.entries) + pseudo.ridge).maximum(floor)
        return replace(self, entries=_averaged(entries) if self.spherical else entries)

    def definite(self, scatter: Moments, pseudo: PseudoMoments) -> Tensor:
        (prior,) = image(DIAGONAL, pseudo.scatter, self.n_components)
        return (scatter.counts + pseudo.covariance_count > 0) & (scatter.seconds[0] + prior > 0).all(-1)

    def unconstrained(self) -> dict[str, Tensor]:
        # Of the precisions, as in RPTP18; a spherical one has a single number.
        precisions = 1 / (self.entries[:, :1] if self.spherical else self.entries)
        return {"precisions": linalg.inverse_softplus(precisions - SMALLEST_PRECISION)}

    def constrained(self, free: dict[str, Tensor]) -> DiagonalCovariance:
        return replace(self, entries=1 / self._precisions_of(free))

    def quadratic(self, free: dict[str, Tensor]) -> Quadratic:
        precisions = self._precisions_of(free)
        return Quadratic(precisions.log().sum(-1), precisions, None)

    def _precisions_of(self, free: dict[str, Tensor]) -> Tensor:
        precisions = torch.nn.functional.softplus(free["precisions"]) + SMALLEST_PRECISION
        return precisions.expand(-1, self.n_features) if self.spherical else precisions

    # ---- rows ----

    def coefficients(self, means: Tensor, constants: Tensor) -> Coefficients:
        linear = means / self.entries
        squared = (linear * means).sum(-1) + self.log_determinants + self.n_features * math.log(2 * math.pi)
        weights = torch.cat((linear, -0.5 / self.entries), 1)
        return Coefficients(SQUARES, torch.sub(constants, squared, alpha=0.5), weights)

    def squared_distances(self, deviations: Tensor) -> Tensor:
        return (deviations.square() / self.entries.to(deviations.dtype).unsqueeze(1)).sum(-1)

    def second_moments(self, deviations: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        return ((weights.unsqueeze(1) @ deviations.square()).squeeze(1),)

    def own_moments(self) -> tuple[Tensor, ...]:
        return (self.entries,)

    def sample(self, components: Tensor, generator: torch.Generator) -> Tensor:
        shape = (len(components), self.n_features)
        noise = torch.randn(*shape, generator=generator, dtype=self.entries.dtype, device=generator.device)
        return noise.to(self.entries.device) * self.entries.sqrt()[components]

    def condition(self, deviations: Tensor, observed: Tensor) -> Conditioned:
        # Independent features: missing values stay at the mean, a deviation of zero.
        log_determinants = self.entries.log().to(deviations.dtype) @ observed.to(deviations.dtype).T
        return Conditioned(self.squared_distances(deviations), log_determinants, deviations, observed)

    def conditional_moments(self, conditioned: Conditioned, weights: Tensor) -> tuple[Tensor, ...]:
        missing = (~cast("Tensor", conditioned.state)).to(weights.dtype)  # (n, D)
        return (self.entries.to(weights.dtype) * (weights @ missing),)


def _averaged(variances: Tensor) -> Tensor:
    return variances.mean(-1, keepdim=True).expand_as(variances).contiguous()
