"""The prior role: a density of the parameters, with pseudo-moments if it is conjugate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from mixtura.values.moments import PseudoMoments


@dataclass(frozen=True)
class DataScales:
    """Statistics of the rows for a prior whose parameters are estimated from the data."""

    expected: Tensor  # (D,), expected variances of the components
    pooled: Tensor  # (D,), variances about the class means
    means: Tensor  # (K, D), the mean of the class of every component
    # (D, D), about the class means, reduced by the same factor as `expected`. `covariance(strength, identity)` has this
    # number of pseudo-observations of its variances, or of their mean for all features.
    covariance: Callable[..., Tensor]


class Parameters(Protocol):
    """The parameters of a mixture, in the units of the rows, as a prior sees them: of a `Mixture` or an optimiser."""

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
        """The log density up to a constant: a differentiable scalar."""
        ...


@runtime_checkable
class MovablePrior(Prior, Protocol):
    """A prior with tensors, which can be copied to a device."""

    def to(self, device: torch.device | str) -> Prior: ...


@runtime_checkable
class ConjugatePrior(Prior, Protocol):
    """A prior with closed-form updates from moments, as EM and extended Baum-Welch need."""

    def pseudo_moments(self, n_features: int) -> PseudoMoments: ...
