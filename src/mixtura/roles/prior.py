"""The prior role: a density of the parameters, and pseudo-moments where it is conjugate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from mixtura.values.pseudo_moments import PseudoMoments


@dataclass(frozen=True)
class DataScales:
    """What a first look at the rows tells a prior that is given without numbers."""

    expected: Tensor  # (D,), variances that components may be expected to have
    pooled: Tensor  # (D,), variances about the class means
    means: Tensor  # (K, D), the mean of the class of every component
    covariance: Callable[[], Tensor]  # (D, D), about the class means, and as much smaller as `expected` is for parts


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
        """``log |Sigma_k|``, (K,)."""
        ...

    @property
    def distinct_log_determinants(self) -> Tensor:
        """``log |Sigma_g|`` of every distinct matrix, (G,): fewer than K where components share one."""
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
