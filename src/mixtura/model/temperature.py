"""The temperature of class posteriors (temperature).

A mixture counts dependent features as independent evidence, so that its posteriors are too confident. Dividing the log
joints of the classes by one number T before the softmax corrects for that.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Temperature:
    """T of samples whose features are all observed.

    A sample with a share q of its features observed has T(q) = 1 + (T - 1) q (temperature): with few observed values
    there is little evidence to be counted twice, and with none the posterior is the class prior.

    Parameters
    ----------
    value : float
        T; 1 leaves the posteriors as they are.
    log_prior_change : Tensor of shape (C,), or None
        log of new over old class probabilities. A changed class prior acts after the temperature.
    """

    value: float
    log_prior_change: Tensor | None = None

    def apply(self, scores: Tensor, observed: Tensor | float = 1.0) -> Tensor:
        """Tempered scores of the classes, up to a term of the sample.

        Parameters
        ----------
        scores : Tensor of shape (C, n)
            log p(x, c), under the new class probabilities where these changed.
        observed : Tensor of shape (n,) or float
            The share of the features that is observed.
        """
        if self.value == 1:
            return scores
        divisors = 1 + (self.value - 1) * observed
        if self.log_prior_change is None:
            return scores / divisors
        change = self.log_prior_change.to(scores).unsqueeze(-1)  # (C, 1)
        return (scores - change) / divisors + change
