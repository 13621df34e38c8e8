"""The temperature of class posteriors (temperature).

A mixture that neglects dependences between features has overconfident posteriors. Dividing the log joints of the
classes by a temperature T before the softmax calibrates them.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Temperature:
    """Temperature T of samples without missing values.

    A sample with a fraction q of observed features has T(q) = 1 + (T - 1) q (temperature): with few observed values
    there is little evidence to be counted twice, and without any the posterior is the class prior.

    Parameters
    ----------
    value : float
        T; 1 does not change the posteriors.
    log_prior_change : Tensor of shape (C,), or None
        log of new over old class probabilities. A new class prior is applied after the temperature.
    """

    value: float
    log_prior_change: Tensor | None = None

    def apply(self, scores: Tensor, observed: Tensor | float = 1.0) -> Tensor:
        """Divide the scores of the classes by the temperature, up to a constant per sample.

        Parameters
        ----------
        scores : Tensor of shape (C, n)
            log p(x, c), under the new class probabilities if they changed.
        observed : Tensor of shape (n,) or float
            The fraction of observed features.
        """
        if self.value == 1:
            return scores
        divisors = 1 + (self.value - 1) * observed
        if self.log_prior_change is None:
            return scores / divisors
        change = self.log_prior_change.to(scores).unsqueeze(-1)  # (C, 1)
        return (scores - change) / divisors + change
