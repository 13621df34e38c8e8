"""Priors on the coefficients of log-linear mixtures: normal, and pseudo-counts for the multiplicative rule;
a penalty on the shares of the classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

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

    centre: str | Tensor = "zero"
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

    @property
    def at_start(self) -> bool:
        """Whether the largest density is at the start, which is not known yet."""
        return isinstance(self.centre, str) and self.centre == "start"

    @property
    def _centre(self) -> Tensor:
        assert isinstance(self.centre, Tensor)
        return self.centre

    def value(self, coefficients: Tensor) -> float:
        """The log density up to a constant, of coefficients (J, D)."""
        return -0.5 * self.strength * float((coefficients - self._centre).square().sum())

    def gradient(self, coefficients: Tensor) -> Tensor:
        """The derivative of `value`, (J, D)."""
        return self.strength * (self._centre - coefficients)


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
    at_start: ClassVar[bool] = False  # as of `Normal`

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


# The penalty is linear for shares far below the corner, and a Dirichlet log density far above it.
CORNER = 0.01
N_NEWTON = 60  # Newton steps towards the root of a convex function; about five suffice


CoefficientPrior: TypeAlias = Normal | PseudoCounts


@dataclass(frozen=True)
class SparseShares:
    """A penalty on the class shares V_cj of bases, whose columns are on the simplex (sparse-shares):

        penalty(V) = strength sum_cj log(1 + V_cj / CORNER) / log(1 + 1 / CORNER).

    Above the corner it is, up to a constant, minus the log density of a Dirichlet distribution with exponents below
    one, which favours few and large shares. The corner keeps it finite at zero: a share of zero costs nothing, and a
    basis of a single class costs `strength`. Shares are invariant to the scale of the weights and of each basis, so
    that, unlike the sum of the weights (LZZ06, eq. 15), the penalty cannot be evaded by a change of scale.
    """

    strength: float

    @property
    def unit(self) -> float:
        """Factor of the logarithms."""
        return self.strength / math.log1p(1 / CORNER)

    def value(self, shares: Tensor) -> float:
        """The penalty of shares (C, J)."""
        return self.unit * float((shares / CORNER).log1p().sum())

    def slopes(self, shares: Tensor) -> Tensor:
        """Its derivative by each share, (C, J)."""
        return self.unit / (shares + CORNER)

    def gradient(self, shares: Tensor) -> Tensor:
        """Its derivative by the log weights, of which shares are the softmax over a column, (C, J)."""
        parts = self.slopes(shares) * shares
        return parts - shares * parts.sum(0)

    def savings(self, shares: Tensor) -> Tensor:
        """Decrease of the penalty when one share becomes zero and its column is renormalised, (C, J)."""
        costs = (shares / CORNER).log1p()  # (C, J)
        left = (1 - shares).clamp_min(1e-300)  # (C, J), by the share that goes
        others = (shares.unsqueeze(1) / (left * CORNER)).log1p()  # (C, C, J): first the one that stays
        others = others.sum(0) - (shares / (left * CORNER)).log1p()
        others = torch.where(shares < 1 - 1e-12, others, 0.0)  # the only share of a basis has no others
        return self.unit * (costs.sum(0) - others)

    def maximise(self, counts: Tensor, shares: Tensor) -> Tensor:
        """Shares V with a larger sum_c counts_cj log V_cj - penalty(V), columns summing to one (shares-update).

        The penalty is concave in V, so its tangent at the current shares is an upper bound. With the tangent, the
        maximum is V_cj = counts_cj / (slope_cj + m_j), with m_j such that the column sums to one.
        """
        if self.strength == 0:
            return counts / counts.sum(0).clamp_min(1e-300)
        slopes = self.slopes(shares)
        multipliers = (counts - slopes).amax(0)  # one term alone is one here, so this is not to the right of the root
        for _ in range(N_NEWTON):
            parts = counts / (slopes + multipliers).clamp_min(1e-300)
            excess = parts.sum(0) - 1
            if bool((excess.abs() < 1e-14).all()):
                break
            slope = (parts / (slopes + multipliers).clamp_min(1e-300)).sum(0)
            multipliers = multipliers + excess / slope.clamp_min(1e-300)
        updated = counts / (slopes + multipliers).clamp_min(1e-300)
        return updated / updated.sum(0).clamp_min(1e-300)
