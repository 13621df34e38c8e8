"""Large-margin objective: the difference of log p(x, c) between the own class and the best other class (RPTP18)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.files.registry import storable
from mixtura.objectives.likelihood import class_posteriors, posteriors
from mixtura.values.targets import Evaluation, Targets


@storable("margin")
@dataclass(frozen=True)
class Margin:
    """Large-margin objective, -max(0, margin - beta) (large-margin).

    beta = log p(x, c) - smax over c' != c of log p(x, c') is the margin of the true class. The soft maximum
    smax(v) = log sum exp(sharpness v) / sharpness exceeds the largest v by at most log(C - 1) / sharpness. Samples with
    beta >= margin, and unlabeled samples, contribute nothing. For soft labels the objective is sum_c y_c (...).

    Parameters
    ----------
    margin : float, default=1.0
        Required margin (gamma of [1]_), in units of the log density.
    sharpness : float, default=10.0
        Sharpness of the soft maximum (nu of [1]_).

    References
    ----------
    .. [1] Roth, Peharz, Tschiatschek and Pernkopf (2018). Hybrid generative-discriminative training of Gaussian
       mixture models. Pattern Recognition Letters 112.
    """

    margin: float = 1.0
    sharpness: float = 10.0
    name = "margin"
    own_class_only = False
    needs_denominator = True
    has_density = False
    is_smooth = False

    def evaluate(self, log_joint: Tensor, targets: Targets) -> Evaluation:
        scores, within = class_posteriors(log_joint, targets)  # (C, n), (K, n)
        values, numerator, denominator = torch.zeros_like(scores[0]), torch.zeros_like(scores), torch.zeros_like(scores)
        for own, share in self._known(targets, scores):
            own_values, active, rivals = self._of_class(scores, own)
            values = values + torch.where(share > 0, share * own_values, 0.0)
            numerator = numerator + share * active * own
            denominator = denominator + share * active * rivals
        class_of = targets.class_of
        return Evaluation(values, numerator[class_of] * within, denominator[class_of] * within)

    def _known(self, targets: Targets, scores: Tensor) -> list[tuple[Tensor, Tensor]]:
        """True classes as masks (C, n), with the share of each row in them, (n,)."""
        numbers = torch.arange(len(scores), device=scores.device).unsqueeze(-1)
        if targets.shares is not None:
            shares = torch.nan_to_num(targets.shares, nan=0.0).to(scores.dtype)
            return [((numbers == c).expand_as(scores), shares[:, c]) for c in range(len(scores))]
        if targets.labels is None:
            return []
        return [(numbers == targets.labels, (targets.labels >= 0).to(scores.dtype))]

    def _of_class(self, scores: Tensor, own: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values (n,), the rows that violate the margin (n,), and the posterior over the other classes, (C, n)."""
        ahead = scores.masked_fill(~own, -torch.inf).amax(0)  # minus infinity for an unlabeled row, whose share is zero
        smoothed, rivals = posteriors(self.sharpness * scores.masked_fill(own, -torch.inf))
        shortfall = self.margin - ahead + smoothed / self.sharpness
        return -shortfall.clamp_min(0), (shortfall > 0).to(scores.dtype), rivals
