"""Covariances shared by several components: by all of them, or by those of a class."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mixtura import checks
from mixtura.roles import Conditioned, Covariance, Quadratic, Structure
from mixtura.values.features import Coefficients
from mixtura.values.moments import Form, Moments
from mixtura.values.pseudo_moments import PseudoMoments
from mixtura.values.storable import storable


@storable("tied")
@dataclass(frozen=True)
class Tied:
    """One covariance of the inner structure for all components, or one per class."""

    inner: Structure
    per_class: bool = False

    @property
    def name(self) -> str:
        return "tied"

    def start(self, variances: Tensor, deviations: Tensor, assignments: Tensor, class_of: Tensor) -> TiedCovariance:
        groups = class_of.clone() if self.per_class else torch.zeros_like(class_of)
        n_groups = int(groups.max()) + 1
        members = torch.zeros(n_groups, len(groups), dtype=variances.dtype, device=variances.device)
        members[groups, torch.arange(len(groups), device=groups.device)] = 1
        pooled = members @ variances / members.sum(1, keepdim=True).clamp_min(1)
        inner_classes = torch.arange(n_groups, device=groups.device)
        return TiedCovariance(self.inner.start(pooled, deviations, groups[assignments], inner_classes), groups)

    def from_tensors(self, tensors: dict[str, Tensor]) -> TiedCovariance:
        inner = {name: tensor for name, tensor in tensors.items() if name != "groups"}
        return TiedCovariance(self.inner.from_tensors(inner), tensors["groups"])


@storable("tied_covariance", check=lambda covariance: covariance.check())
@dataclass(frozen=True)
class TiedCovariance:
    """G covariances; component k has number groups[k]."""

    inner: Covariance
    groups: Tensor  # (K,)

    @property
    def n_components(self) -> int:
        return self.groups.shape[0]

    @property
    def n_features(self) -> int:
        return self.inner.n_features

    @property
    def n_groups(self) -> int:
        return self.inner.n_components

    @property
    def form(self) -> Form:
        return self._spread.form

    @property
    def n_parameters(self) -> int:
        return self.inner.n_parameters

    @cached_property
    def _spread(self) -> Covariance:
        """The shared covariances, repeated for every component; factorised before, so once a group."""
        _ = self.inner.log_determinants
        return self.inner.select(self.groups)

    @property
    def repaired(self) -> Tensor:
        return self.inner.repaired[self.groups]

    @property
    def log_determinants(self) -> Tensor:
        return self.inner.log_determinants[self.groups]

    @property
    def distinct_log_determinants(self) -> Tensor:
        return self.inner.distinct_log_determinants

    def penalty(self, scatter: Tensor) -> Tensor:
        return self.inner.penalty(scatter)

    def dense(self) -> Tensor:
        return self.inner.dense()[self.groups]

    def variances(self) -> Tensor:
        return self.inner.variances()[self.groups]

    def select(self, components: slice | Tensor) -> TiedCovariance:
        return replace(self, groups=self.groups[components])

    def tensors(self) -> dict[str, Tensor]:
        return {**self.inner.tensors(), "groups": self.groups}

    def check(self) -> None:
        """Raise a ValueError unless every component has the number of a shared covariance."""
        if isinstance(self.inner, TiedCovariance):
            raise ValueError("covariances that are shared twice are not known")
        checks.positions("numbers of shared covariances", self.groups, self.n_groups)

    def scaled(self, scales: Tensor) -> TiedCovariance:
        return replace(self, inner=self.inner.scaled(scales))

    def unconstrained(self) -> dict[str, Tensor]:
        return self.inner.unconstrained()

    def constrained(self, free: dict[str, Tensor]) -> TiedCovariance:
        return replace(self, inner=self.inner.constrained(free))

    def quadratic(self, free: dict[str, Tensor]) -> Quadratic:
        shared = self.inner.quadratic(free)
        diagonals, factors = (
            None if part is None else part[self.groups] for part in (shared.diagonals, shared.factors)
        )
        return Quadratic(shared.log_determinants[self.groups], diagonals, factors, shared.sign)

    def coefficients(self, means: Tensor, constants: Tensor) -> Coefficients:
        return self._spread.coefficients(means, constants)

    def squared_distances(self, deviations: Tensor) -> Tensor:
        return self._spread.squared_distances(deviations)

    def second_moments(self, deviations: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        return self._spread.second_moments(deviations, weights)

    def own_moments(self) -> tuple[Tensor, ...]:
        return self._spread.own_moments()

    @property
    def marginals(self) -> Any:
        """Those of the shared structure, where it has them."""
        return getattr(self._spread, "marginals", None)

    def condition(self, deviations: Tensor, observed: Tensor) -> Conditioned:
        return self._spread.condition(deviations, observed)

    def conditional_moments(self, conditioned: Conditioned, weights: Tensor) -> tuple[Tensor, ...]:
        return self._spread.conditional_moments(conditioned, weights)

    def updated(self, scatter: Moments, pseudo: PseudoMoments, floor: Tensor) -> TiedCovariance:
        return replace(self, inner=self.inner.updated(self._pooled(scatter), pseudo, floor))

    def definite(self, scatter: Moments, pseudo: PseudoMoments) -> Tensor:
        return self.inner.definite(self._pooled(scatter), pseudo)[self.groups]

    def _pooled(self, scatter: Moments) -> Moments:
        # Scatters are about each component's own mean, so they simply add (tied-update); the prior is counted once.
        return replace(scatter.pooled(self.groups, self.n_groups), form=self.inner.form)

    def sample(self, components: Tensor, generator: torch.Generator) -> Tensor:
        return self.inner.sample(self.groups[components], generator)
