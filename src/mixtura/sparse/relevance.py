"""The prior of sparse Bayesian learning: every weight has its own precision, which maximises the evidence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# A weight that the data determine by less than this share, and whose precision exceeds this, is negligible.
DETERMINED, NEGLIGIBLE = 0.01, 1e3


@dataclass(frozen=True)
class Relevance:
    """value_i ~ N(0, variance_i) with variance_i = 1 / precision_i (relevance-prior), HU21 eq. 9.

    Parameters
    ----------
    largest : float, default=1e5
        Weights whose precision reaches this are removed.
    smallest : float, default=1e-6
        Lower limit of the precisions; separable classes would drive weights to infinity.
    rate : float, default=0.0
        Rate of the exponential hyperprior on the variances (variance-prior); 0 is a flat hyperprior.
    """

    largest: float = 1e5
    smallest: float = 1e-6
    rate: float = 0.0

    def log_density(self, values: Tensor, precisions: Tensor) -> Tensor:
        """Log density without the terms in log(precisions), which cancel in the evidence, and in log(rate)."""
        log_density = -0.5 * (precisions * values.square()).sum()
        return log_density - self.rate * precisions.reciprocal().sum() if self.rate else log_density

    def updated(self, values: Tensor, precisions: Tensor, determined: Tensor) -> Tensor:
        """determined_i / value_i^2 (precision-update), HU21 eq. 17 with the square missing in print, if rate is 0.

        determined_i = 1 - precision_i * posterior variance_i, between 0 (determined by the prior) and 1 (by the data).
        If rounding makes it zero, the precision does not change. With a rate, the precision solves
        precision value^2 = determined + 2 rate / precision.
        """
        squares, known = values.square().clamp_min(1e-300), determined
        if self.rate:
            determined = 0.5 * (determined + (determined.square() + 8 * self.rate * squares).sqrt())
        moved = torch.where(determined > 0, determined / squares, precisions).clamp(self.smallest, self.largest)
        return moved.masked_fill_(self._negligible(values, precisions, known), self.largest) if self.rate else moved

    def _negligible(self, values: Tensor, precisions: Tensor, determined: Tensor) -> Tensor:
        """Negligible values, whose best precision is large as well (variance-prior).

        Such a value adds less than determined^2 / 4 to the log evidence, but its removal may take thousands of updates.
        """
        curvatures = precisions * determined / (1 - determined)
        _, best = self.gains((precisions * values / (1 - determined)).square(), curvatures)
        return (determined < DETERMINED) & (precisions > NEGLIGIBLE) & (best > NEGLIGIBLE)

    def relevant(self, precisions: Tensor) -> Tensor:
        """Mask of the values that are kept, (P,)."""
        return precisions < self.largest

    def gains(self, squared_gradients: Tensor, curvatures: Tensor) -> tuple[Tensor, Tensor]:
        """The largest gain of log evidence by new values, and the precisions that attain it (column-gain).

        With Q^2, S and u = 1 + S variance a value adds [Q^2 (1 - 1 / u) / S - log u] / 2 - rate * variance, most at
        u = 2 Q^2 / (S + sqrt(S^2 + 8 rate Q^2)), which is Q^2 / S if rate is 0 (Faul & Tipping 2002).
        """
        roots = (curvatures.square() + 8 * self.rate * squared_gradients).sqrt()
        growths = (2 * squared_gradients / (curvatures + roots)).clamp_min(1)
        variances = (growths - 1) / curvatures
        gains = 0.5 * (squared_gradients * variances / growths - growths.log()) - self.rate * variances
        return gains, variances.clamp_min(1e-300).reciprocal()
