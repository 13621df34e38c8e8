"""The four roles - covariance, objective, prior, solver - and what each must be able to do. Read this first.

A row n and a component k meet in the log joint a[n, k] = log weight_k + log f_k(x_n). Every learner needs from the rows
only the signed responsibilities A[n, k] = d objective / d a[n, k] and their weighted moments:

    a pass over the rows makes moments; a covariance turns moments into parameters; solvers do arithmetic in between.

Shapes: N rows, D features, K components, C classes, R rank, G matrices of a shared structure.
Work inside a pass is component-major, (K, n), because reductions over components are then vectorised over rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mixtura.values.features import Coefficients
from mixtura.values.moments import Form, Moments
from mixtura.values.pseudo_moments import PseudoMoments
from mixtura.values.targets import Evaluation, Targets


@dataclass(frozen=True)
class Outlook:
    """What a first look at the rows tells a prior that is given without numbers."""

    expected: Tensor  # (D,), variances that components may be expected to have
    pooled: Tensor  # (D,), variances about the class means
    means: Tensor  # (K, D), the mean of the class of every component
    covariance: Callable[[], Tensor]  # (D, D), about the class means, and as much smaller as `expected` is for parts


@dataclass(frozen=True)
class Conditioned:
    """Components conditioned on the observed cells of rows with missing cells.

    Deviations are from the component means, with the missing cells filled in by their conditional expectation.
    """

    squared_distances: Tensor  # (K, n), of the observed cells
    log_determinants: Tensor  # (K, n), of the observed blocks
    deviations: Tensor  # (K, n, D)
    state: Any  # what conditional_moments needs


@dataclass(frozen=True)
class Quadratic:
    """Lambda_k = diag(diagonals_k) + sign factors_k factors_k', as optimisers move it (free-form).

    Whatever uses the factors depends on them through factors factors' alone.
    """

    log_determinants: Tensor  # log |Lambda_k|, (K,)
    diagonals: Tensor | None  # (K, D); None: zero
    factors: Tensor | None  # (K, D, R); None: zero
    sign: float = 1.0


@runtime_checkable
class Covariance(Protocol):
    """The covariances of K components in one structure: a frozen value."""

    @property
    def n_components(self) -> int: ...
    @property
    def n_features(self) -> int: ...
    @property
    def log_determinants(self) -> Tensor:
        """(K,)"""
        ...

    @property
    def repaired(self) -> Tensor:
        """Which components are not positive definite, or needed a repair to be, (K,)."""
        ...

    @property
    def form(self) -> Form:
        """The form in which `updated` wants second moments."""
        ...

    @property
    def n_parameters(self) -> int: ...
    def dense(self) -> Tensor:
        """The truth for tests and for views: (K, D, D)."""
        ...

    def variances(self) -> Tensor:
        """The diagonals of the matrices, (K, D)."""
        ...

    def select(self, components: slice | Tensor) -> Covariance: ...

    def tensors(self) -> dict[str, Tensor]:
        """The parameters by name; the inverse of the structure's `from_tensors`."""
        ...

    def scaled(self, scales: Tensor) -> Covariance:
        """The covariances of scales * x; scales (D,) are all equal where a structure has one variance for all."""
        ...

    def unconstrained(self) -> dict[str, Tensor]:
        """The parameters as numbers of any size and sign, for optimisers (free-form)."""
        ...

    def constrained(self, free: dict[str, Tensor]) -> Covariance:
        """The inverse of `unconstrained`: a covariance of the same structure."""
        ...

    def quadratic(self, free: dict[str, Tensor]) -> Quadratic:
        """The precisions of `constrained(free)`, differentiable, without a check or a wait for the device."""
        ...

    def coefficients(self, means: Tensor, constants: Tensor) -> Coefficients:
        """The feature map of complete rows; means (K, D) are about the centre of the rows, constants (K,) are added."""
        ...

    def squared_distances(self, deviations: Tensor) -> Tensor:
        """d' Sigma^-1 d of deviations (K, n, D) from the means: (K, n)."""
        ...

    def second_moments(self, deviations: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        """sum_n weights d d' in this form; deviations (K, n, D), weights (K, n)."""
        ...

    def condition(self, deviations: Tensor, observed: Tensor) -> Conditioned:
        """Condition on the observed cells (n, D); deviations (K, n, D) are zero in the missing ones."""
        ...

    def conditional_moments(self, conditioned: Conditioned, weights: Tensor) -> tuple[Tensor, ...]:
        """sum_n weights Cov[x | observed cells] in this form (conditional-covariance); weights (K, n)."""
        ...

    def own_moments(self) -> tuple[Tensor, ...]:
        """The model's own second moments about its means, in this form."""
        ...

    def updated(self, scatter: Moments, pseudo: PseudoMoments, floor: Tensor) -> Covariance:
        """The covariances that maximise the expected log-likelihood.

        scatter is about the new means, its counts are the divisors; floor (D,) is the smallest variance.
        """
        ...

    def definite(self, scatter: Moments, pseudo: PseudoMoments) -> Tensor:
        """Which components `updated` would give a positive definite matrix without a repair, (K,).

        Differences of moments need not be the moments of anything.
        """
        ...

    def sample(self, components: Tensor, generator: torch.Generator) -> Tensor:
        """One zero-mean draw for each entry of components: (n,) -> (n, D)."""
        ...

    def penalty(self, scatter: Tensor) -> Tensor:
        """tr(Sigma_g^-1 scatter) of every distinct matrix, (G,): the Wishart part of a conjugate prior.

        scatter is as in PseudoMoments.
        """
        ...

    @property
    def distinct_log_determinants(self) -> Tensor:
        """log |Sigma_g| of every distinct matrix, (G,): fewer than K where components share one."""
        ...


@runtime_checkable
class Structure(Protocol):
    """What a user asks for: a covariance structure without numbers."""

    @property
    def name(self) -> str: ...

    def start(self, variances: Tensor, deviations: Tensor, assignments: Tensor, class_of: Tensor) -> Covariance:
        """A first covariance with these variances (K, D), refined by rows about their assigned component's mean."""
        ...

    def from_tensors(self, tensors: dict[str, Tensor]) -> Covariance: ...


@runtime_checkable
class Objective(Protocol):
    """A function of the log joints (K, n) of rows and of what is known of their classes."""

    name: str

    @property
    def own_class_only(self) -> bool:
        """Labeled rows meet the components of their own class and no others."""
        ...

    @property
    def needs_denominator(self) -> bool: ...
    @property
    def has_density(self) -> bool:
        """Can use unlabeled rows."""
        ...

    def evaluate(self, log_joint: Tensor, targets: Targets) -> Evaluation: ...


class Parameters(Protocol):
    """What a prior sees of a mixture, in the units of the rows. A `Mixture` offers it, and so does an optimiser."""

    @property
    def log_weights(self) -> Tensor:
        """(K,)"""
        ...

    @property
    def means(self) -> Tensor:
        """(K, D)"""
        ...

    @property
    def log_determinants(self) -> Tensor:
        """log |Sigma_k|, (K,)"""
        ...

    @property
    def distinct_log_determinants(self) -> Tensor:
        """log |Sigma_g| of every distinct matrix, (G,): fewer than K where components share one."""
        ...

    def traces(self, scatter: Tensor) -> Tensor:
        """tr(Sigma_g^-1 scatter) of every distinct matrix, (G,); scatter is as in PseudoMoments."""
        ...

    def distances(self, vectors: Tensor) -> Tensor:
        """v_k' Sigma_k^-1 v_k: (K, D) -> (K,)"""
        ...


@runtime_checkable
class Prior(Protocol):
    """A density over the parameters of a mixture."""

    def log_density(self, parameters: Parameters) -> Tensor:
        """A number, differentiable, up to a constant."""
        ...


@runtime_checkable
class ConjugatePrior(Prior, Protocol):
    """A prior whose maximum combines with moments in closed form, which EM and extended Baum-Welch need."""

    def pseudo_moments(self, n_features: int) -> PseudoMoments: ...


@dataclass(frozen=True)
class Step:
    """One step of a solver: the new mixture, and the objective and moments of the one it started from."""

    mixture: Any
    value: float
    repairs: tuple[str, ...] = ()
    converged: bool | None = None  # where the solver has a rule of its own; None: by the change of the value
    finished: bool = False  # the solver itself sees that nothing better is to come


@runtime_checkable
class Solver(Protocol):
    """Improves a mixture by steps; solvers/loop.py checks convergence, limits and non-finite values for all."""

    name: str

    def step(self, mixture: Any, rows: Any) -> Step: ...
