"""The published updates of LZZ06, with a penalty on the sum of the weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mixtura.nonnegative import SMALLEST_COUNT, Counts, LogLinearMixture, Multiplicative


@dataclass(frozen=True)
class SumPenalised(Multiplicative):
    """Multiplicative updates with the penalty of eq. 16, which changes only the scale of the weights (weight-scale).

    Parameters
    ----------
    sum_penalty : float, default=0.0
        Factor of the sum of the weights; 0 is Saul and Lee's rule.
    """

    sum_penalty: float = 0.0

    def cost(self, mixture: LogLinearMixture) -> float:
        return self.sum_penalty * float(mixture.log_weights.exp().sum())

    def with_weights(self, mixture: LogLinearMixture, counts: Counts) -> LogLinearMixture:
        if not self.sum_penalty:
            return super().with_weights(mixture, counts)
        numerators = counts.numerators[mixture.class_of, mixture.basis_of].clamp_min(SMALLEST_COUNT)
        divisors = counts.denominators / mixture.log_totals.exp() + self.sum_penalty  # (J,)
        return replace(mixture, log_weights=numerators.log() - divisors.log()[mixture.basis_of])
