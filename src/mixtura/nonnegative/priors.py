"""Priors on the coefficients of log-linear mixtures: normal, and pseudo-counts for the multiplicative rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mixtura import checks
from mixtura.files.registry import storable
from mixtura.nonnegative.mixture import LabeledRows, LogLinearMixture

CENTRES = ("zero", "start")


@storable("normal_coefficients")
@dataclass(frozen=True)
class Normal:
    """Normal prior on the coefficients, log p(theta) = -strength / 2 * s * |theta - centre|^2 (coefficient-prior).

    s is the mean squared length of the rows, so that the same strength suits rows of any scale.

    Parameters
    ----------
    centre : {"zero", "start"}, default="zero"
        "start" means the multinomial mixture that training starts from; with one component per class that is naive
        Bayes.
    strength : float, default=1.0
        Infinite strength keeps the coefficients at the centre, which must then be "start".

    Examples
    --------
    >>> from mixtura.nonnegative.priors import Normal
    >>> Normal("start", 0.3)
    Normal(centre='start', strength=0.3)
    """

    centre: Any = "zero"
    strength: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.centre, Tensor):
            checks.one_of("centre", self.centre, CENTRES)
            if self.centre == "start" and self.strength == float("inf"):
                return
        checks.positive("strength", self.strength, ', or infinity with centre="start"')

    def bound(self, rows: LabeledRows, start: LogLinearMixture) -> Normal:
        """The prior in the units of the rows: the centre as a tensor (J, D) or (1, 1), and the precision."""
        centre = start.coefficients if self.centre == "start" else torch.zeros_like(start.coefficients[:1, :1])
        return Normal(centre, max(self.strength * rows.mean_square, 1e-300))

    def value(self, coefficients: Tensor) -> float:
        """The log density up to a constant, of coefficients (J, D)."""
        return -0.5 * self.strength * float((coefficients - self.centre).square().sum())

    def gradient(self, coefficients: Tensor) -> Tensor:
        """The derivative of `value`, (J, D)."""
        return self.strength * (self.centre - coefficients)


@storable("pseudo_counts")
@dataclass(frozen=True)
class PseudoCounts:
    """Log-gamma prior on the coefficients, log p(theta) = sum_u a_u (theta_u - exp theta_u) (pseudo-counts).

    It adds a_u to the numerator and a_u exp(theta_u) to the denominator of the multiplicative rule. The largest density
    is at theta = 0.

    Parameters
    ----------
    strength : float, default=1.0
        a_u = strength * n_features * (share of the feature in the sum of all rows).

    Examples
    --------
    >>> from mixtura.nonnegative.priors import PseudoCounts
    >>> PseudoCounts(0.1)
    PseudoCounts(strength=0.1)
    """

    strength: float = 1.0
    _counts: Tensor | None = None  # (D,)

    def __post_init__(self) -> None:
        checks.positive("strength", self.strength)

    def __repr__(self) -> str:
        return f"PseudoCounts(strength={self.strength})"

    def bound(self, rows: LabeledRows, start: LogLinearMixture) -> PseudoCounts:
        """The prior with the pseudo-count of each feature."""
        total = float(rows.means.sum())
        counts = rows.means * (self.strength * rows.n_features / total) if total > 0 else torch.zeros_like(rows.means)
        return replace(self, _counts=counts)

    @property
    def counts(self) -> Tensor:
        """The pseudo-counts a_u, (D,)."""
        assert self._counts is not None, "bind the prior first"
        return self._counts

    def value(self, coefficients: Tensor) -> float:
        """The log density up to a constant, of coefficients (J, D)."""
        return float((self.counts * (coefficients - coefficients.exp())).sum())

    def gradient(self, coefficients: Tensor) -> Tensor:
        """The derivative of `value`, (J, D)."""
        return self.counts * (1 - coefficients.exp())
