"""The temperature of class posteriors (temperature).

A mixture that neglects dependences between features has overconfident posteriors. Dividing the log joints of the
classes by a temperature T before the softmax calibrates them. A share of random labels bounds them: however sure a
mixture is, n samples cannot show that errors are rarer than 1 in n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Temperature:
    """Temperature T of samples without missing values, and the share of random labels.

    A sample with a fraction q of observed features has T(q) = 1 + (T - 1) q (temperature): with few observed values
    there is little evidence to be counted twice, and without any the posterior is the class prior.

    Parameters
    ----------
    value : float
        T; 1 does not change the posteriors.
    log_prior_change : Tensor of shape (C,), or None
        log of new over old class probabilities. A new class prior is applied after the temperature.
    noise : float, default=0.0
        Share of labels that are drawn from the class probabilities, whatever the sample (label-noise).
    log_prior : Tensor of shape (C,), or None
        log of the old class probabilities; needed with `noise`.
    """

    value: float
    log_prior_change: Tensor | None = None
    noise: float = 0.0
    log_prior: Tensor | None = None

    @property
    def changes(self) -> bool:
        """Whether posteriors change at all."""
        return self.value != 1 or self.noise > 0

    def apply(self, scores: Tensor, observed: Tensor | float = 1.0, log_factors: Tensor | float = 0.0) -> Tensor:
        """Return the log posteriors of the classes, up to a constant per sample.

        Parameters
        ----------
        scores : Tensor of shape (C, n)
            log p(x, c), under the new class probabilities if they changed.
        observed : Tensor of shape (n,) or float
            The fraction of observed features.
        log_factors : Tensor of shape (C, n) or float, default=0.0
            Logarithms of further factors, which the temperature does not concern (missingness).
        """
        if not self.changes:
            return scores + log_factors
        change = 0.0 if self.log_prior_change is None else self.log_prior_change.to(scores).unsqueeze(-1)  # (C, 1)
        tempered = (scores - change) / (1 + (self.value - 1) * observed) + log_factors
        if self.log_prior is not None:
            tempered = with_noise(tempered.log_softmax(0), self.noise, self.log_prior.to(scores).unsqueeze(-1))
        return tempered + change


def with_noise(log_posteriors: Tensor, noise: float, log_prior: Tensor) -> Tensor:
    """log((1 - noise) p + noise prior), the posteriors of labels of which this share is random (label-noise)."""
    if noise == 0:
        return log_posteriors
    log_rest = math.log1p(-noise) if noise < 1 else -math.inf  # weights that add up to next to nothing: all is noise
    return torch.logaddexp(log_posteriors + log_rest, log_prior + math.log(noise))


def average_posteriors(
    scores: Sequence[Tensor],
    temperatures: Sequence[Temperature],
    observed: Tensor | float = 1.0,
    weights: Sequence[float] | None = None,
) -> Tensor:
    """Average the class posteriors of several models, each at its own temperature (averaged-posterior).

    Parameters
    ----------
    scores : sequence of Tensor of shape (C, n)
        log p(x, c) of each model, under the new class probabilities if they changed.
    temperatures : sequence of Temperature
        Of each model, with the same change of the class probabilities.
    observed : Tensor of shape (n,) or float
        The fraction of observed features.
    weights : sequence of float, optional
        Of each model, up to a factor; equal unless given.

    Returns
    -------
    Tensor of shape (C, n)
        Log posteriors up to a constant per sample. A new class prior is applied to the average.
    """
    change = temperatures[0].log_prior_change
    changes = 0.0 if change is None else change.to(scores[0]).unsqueeze(-1)  # (C, 1)
    weights = [1.0] * len(scores) if weights is None else weights
    posteriors = [
        (temperature.apply(own, observed) - changes).log_softmax(0) + math.log(weight)
        for own, temperature, weight in zip(scores, temperatures, weights, strict=True)
    ]
    return torch.stack(posteriors).logsumexp(0) - math.log(sum(weights)) + changes
