"""Covariances shared by several components: by all of them, or by those of a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mixtura import checks
from mixtura.files.registry import storable
from mixtura.numerics import linalg
from mixtura.numerics.cached_property import cached_property
from mixtura.numerics.low_rank_marginals import LowRankMarginals
from mixtura.roles import Conditioned, Covariance, Quadratic, Structure
from mixtura.roles.covariance import DENSE
from mixtura.values.features import Coefficients
from mixtura.values.moments import DiagonalForm, Form, Moments, PseudoMoments

# Squared distance from the common mean up to which distances of rows from means are differences of squares.
FARTHEST = 1e7


@storable("tied")
@dataclass(frozen=True)
class Tied(Structure):
    """One covariance for all components, or one per class.

    Parameters
    ----------
    inner : Structure
        The structure of the shared covariance.
    per_class : bool, default=False
        Whether each class has its own covariance.
    """

    inner: Structure
    per_class: bool = False
    name = "tied"
    takes_categories = True

    @property
    def has_update(self) -> bool:
        return self.inner.has_update

    @property
    def is_unrestricted(self) -> bool:
        return self.inner.is_unrestricted

    @property
    def is_diagonal(self) -> bool:
        return self.inner.is_diagonal

    @property
    def shares_across_classes(self) -> bool:
        return not self.per_class

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

    def concatenated(self, covariances: Sequence[Covariance]) -> TiedCovariance:
        parts = [covariance for covariance in covariances if isinstance(covariance, TiedCovariance)]
        firsts = torch.tensor([0, *(part.n_groups for part in parts[:-1])]).cumsum(0).tolist()
        groups = torch.cat([part.groups + first for part, first in zip(parts, firsts, strict=True)])
        return TiedCovariance(self.inner.concatenated([part.inner for part in parts]), groups)


@dataclass(frozen=True)
class TiedCovariance(Covariance):
    """G covariances, shared by K components.

    Parameters
    ----------
    inner : Covariance
        Of the G distinct matrices.
    groups : Tensor of shape (K,)
        The matrix of each component.
    """

    inner: Covariance
    groups: Tensor

    @property
    def structure(self) -> Tied:
        return Tied(self.inner.structure)

    def dense(self) -> Tensor:
        return self.inner.dense()[self.groups]

    def tensors(self) -> dict[str, Tensor]:
        return {**self.inner.tensors(), "groups": self.groups}

    @property
    def n_components(self) -> int:
        return self.groups.shape[0]

    @property
    def n_features(self) -> int:
        return self.inner.n_features

    @property
    def matrix_of(self) -> Tensor:
        return self.groups

    @property
    def n_groups(self) -> int:
        return self.inner.n_components

    @property
    def n_parameters(self) -> int:
        return self.inner.n_parameters

    @property
    def has_one_scale(self) -> bool:
        return self.inner.has_one_scale

    @property
    def form(self) -> Form:
        own = self.inner.form  # that of the repeated covariances, unless it has numbers of each of them
        return own if own is DENSE or isinstance(own, DiagonalForm) else self._spread.form

    @cached_property
    def _spread(self) -> Covariance:
        """The shared covariances, repeated for every component; factorised once per group."""
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

    def variances(self) -> Tensor:
        return self.inner.variances()[self.groups]

    def penalty(self, scatter: Tensor) -> Tensor:
        return self.inner.penalty(scatter)

    # ---- other covariances of the structure ----

    def select(self, components: slice | Tensor) -> TiedCovariance:
        return replace(self, groups=self.groups[components])

    def compacted(self) -> TiedCovariance:
        used, groups = self.groups.unique(return_inverse=True)
        return TiedCovariance(self.inner.select(used), groups)

    def safe(self) -> TiedCovariance:
        return replace(self, inner=self.inner.safe())

    def matched(self, scatter: Tensor) -> TiedCovariance:
        return self

    def scaled(self, scales: Tensor) -> TiedCovariance:
        return replace(self, inner=self.inner.scaled(scales))

    def with_smallest(self, smallest: float) -> TiedCovariance:
        return replace(self, inner=self.inner.with_smallest(smallest))

    def check(self) -> None:
        """Raise a ValueError unless every component has the number of a shared covariance."""
        if isinstance(self.inner, TiedCovariance):
            raise ValueError("nested tied covariances are not supported")
        self.inner.check()
        checks.positions("numbers of shared covariances", self.groups, self.n_groups)

    # ---- rows ----

    def coefficients(self, means: Tensor, constants: Tensor) -> Coefficients:
        return self._spread.coefficients(means, constants)

    def distances_from(self, means: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """In coordinates in which the shared covariance is the identity, a row costs D numbers per mean."""
        if self.n_groups > 1 or self.form is not DENSE:
            return super().distances_from(means, rows, dtype)
        centre = means.mean(0)
        deviations = torch.cat((rows.double(), means)) - centre
        white = linalg.solve_lower(self.inner.factors[0], deviations.T).T
        white_rows, white_means = white.split((len(rows), len(means)))
        squares = white.square().sum(1)
        if float(squares.max()) > FARTHEST:  # a difference of such numbers has too few digits
            return super().distances_from(means, rows, dtype)
        lengths = squares[len(rows) :].unsqueeze(-1) + squares[: len(rows)]
        return torch.addmm(lengths, white_means, white_rows.T, alpha=-2).clamp_min_(0).to(dtype)

    def squared_distances(self, deviations: Tensor) -> Tensor:
        return self._spread.squared_distances(deviations)

    def second_moments(self, deviations: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        return self._spread.second_moments(deviations, weights)

    def own_moments(self) -> tuple[Tensor, ...]:
        return self._spread.own_moments()

    def sample(self, components: Tensor, generator: torch.Generator) -> Tensor:
        return self.inner.sample(self.groups[components], generator)

    @property
    def has_marginals(self) -> bool:
        return self.inner.has_marginals

    def marginals(self, rows: Tensor, observed: Tensor, means: Tensor) -> LowRankMarginals:
        return self._spread.marginals(rows, observed, means)

    def condition(self, deviations: Tensor, observed: Tensor) -> Conditioned:
        return self._spread.condition(deviations, observed)

    def conditional_moments(self, conditioned: Conditioned, weights: Tensor) -> tuple[Tensor, ...]:
        return self._spread.conditional_moments(conditioned, weights)

    # ---- learning ----

    def updated(self, scatter: Moments, pseudo: PseudoMoments, floor: Tensor) -> TiedCovariance:
        return replace(self, inner=self.inner.updated(self._pooled(scatter), pseudo, floor))

    def definite(self, scatter: Moments, pseudo: PseudoMoments) -> Tensor:
        return self.inner.definite(self._pooled(scatter), pseudo)[self.groups]

    def _pooled(self, scatter: Moments) -> Moments:
        # Scatters are about each component's own mean, so they simply add (tied-update); the prior is counted once.
        return replace(scatter.pooled(self.groups, self.n_groups), form=self.inner.form)

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
