"""The prior of sparse Bayesian learning: every value has a precision of its own, which the evidence sets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Relevance:
    """value_i ~ N(0, 1 / precision_i) (relevance-prior), HU21 eq. 9.

    Arguments:
        largest: a value whose precision reaches this is zero and leaves the model.
        smallest: bounds the precisions of values that separable classes would drive to infinity.
    """

    largest: float = 1e5
    smallest: float = 1e-6

    def log_density(self, values: Tensor, precisions: Tensor) -> Tensor:
        """Up to the terms in log(precisions), which the evidence shares with its determinant."""
        return -0.5 * (precisions * values.square()).sum()

    def updated(self, values: Tensor, precisions: Tensor, determined: Tensor) -> Tensor:
        """determined_i / value_i^2 (precision-update), HU21 eq. 17 with the square that print lost.

        determined_i = 1 - precision_i * variance_i, between 0 (the prior decides) and 1 (the data decide).
        Where rounding leaves none of it, the precision stays.
        """
        moved = determined / values.square().clamp_min(1e-300)
        return torch.where(determined > 0, moved, precisions).clamp(self.smallest, self.largest)

    def relevant(self, precisions: Tensor) -> Tensor:
        """Which values stay, (P,)."""
        return precisions < self.largest
