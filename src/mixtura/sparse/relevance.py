"""The prior of sparse Bayesian learning: every value has a precision of its own, which the evidence sets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# A value of which rows determine less than this share, and whose precision is this large, is all but gone.
DETERMINED, NEGLIGIBLE = 0.01, 1e3


@dataclass(frozen=True)
class Relevance:
    """value_i ~ N(0, variance_i) with variance_i = 1 / precision_i (relevance-prior), HU21 eq. 9.

    Arguments:
        largest: a value whose precision reaches this is zero and leaves the model.
        smallest: bounds the precisions of values that separable classes would drive to infinity.
        rate: variance_i has the density rate * exp(-rate * variance_i) (variance-prior); 0: all are as probable.
    """

    largest: float = 1e5
    smallest: float = 1e-6
    rate: float = 0.0

    def log_density(self, values: Tensor, precisions: Tensor) -> Tensor:
        """Up to the terms in log(precisions), which the evidence shares with its determinant, and in log(rate)."""
        found = -0.5 * (precisions * values.square()).sum()
        return found - self.rate * precisions.reciprocal().sum() if self.rate else found

    def updated(self, values: Tensor, precisions: Tensor, determined: Tensor) -> Tensor:
        """determined_i / value_i^2 (precision-update), HU21 eq. 17 with the square that print lost, if rate is 0.

        determined_i = 1 - precision_i * posterior variance_i, between 0 (the prior decides) and 1 (the data decide).
        Where rounding leaves none of it, the precision stays. The precision solves
        precision value^2 = determined + 2 rate / precision.
        """
        squares, known = values.square().clamp_min(1e-300), determined
        if self.rate:
            determined = 0.5 * (determined + (determined.square() + 8 * self.rate * squares).sqrt())
        moved = torch.where(determined > 0, determined / squares, precisions).clamp(self.smallest, self.largest)
        return moved.masked_fill_(self._negligible(values, precisions, known), self.largest) if self.rate else moved

    def _negligible(self, values: Tensor, precisions: Tensor, determined: Tensor) -> Tensor:
        """Values that are all but gone, where their best precision is no smaller (variance-prior).

        What is left of such a value adds less than determined^2 / 4 to the log evidence; to be rid of it may take
        thousands of updates.
        """
        curvatures = precisions * determined / (1 - determined)
        _, best = self.gains((precisions * values / (1 - determined)).square(), curvatures)
        return (determined < DETERMINED) & (precisions > NEGLIGIBLE) & (best > NEGLIGIBLE)

    def relevant(self, precisions: Tensor) -> Tensor:
        """Which values stay, (P,)."""
        return precisions < self.largest

    def gains(self, squared_gradients: Tensor, curvatures: Tensor) -> tuple[Tensor, Tensor]:
        """Most that new values add to the log evidence, and the precisions at which they do (column-gain).

        With Q^2, S and u = 1 + S variance a value adds [Q^2 (1 - 1 / u) / S - log u] / 2 - rate * variance, most at
        u = 2 Q^2 / (S + sqrt(S^2 + 8 rate Q^2)), which is Q^2 / S if rate is 0 (Faul & Tipping 2002).
        """
        roots = (curvatures.square() + 8 * self.rate * squared_gradients).sqrt()
        growths = (2 * squared_gradients / (curvatures + roots)).clamp_min(1)
        variances = (growths - 1) / curvatures
        gains = 0.5 * (squared_gradients * variances / growths - growths.log()) - self.rate * variances
        return gains, variances.clamp_min(1e-300).reciprocal()
