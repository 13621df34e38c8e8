"""Hybrid objective: a weighted sum of a likelihood and a discriminative objective (RPTP18)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mixtura.files.registry import storable
from mixtura.objectives.likelihood import Joint
from mixtura.objectives.margin import Margin
from mixtura.roles import LogSumObjective, Objective, is_smooth
from mixtura.values.targets import Evaluation, Targets


@storable("hybrid")
@dataclass(frozen=True)
class Hybrid:
    """Hybrid objective, tradeoff * likelihood + (1 - tradeoff) * discriminative (hybrid-objective).

    The likelihood is log p(x, c) for a labeled sample and unlabeled_weight * log p(x) for an unlabeled one.

    Parameters
    ----------
    tradeoff : float, default=0.5
        Weight of the likelihood: 1 is generative, 0 discriminative.
    discriminative : Objective, default=Margin()
        Any objective, such as `Margin(50)` or `Conditional()`.
    unlabeled_weight : float, default=1.0
        Weight of an unlabeled sample relative to a labeled one. The kappa of [1]_ is
        unlabeled_weight = (1 - kappa) / kappa, with lambda rescaled.

    References
    ----------
    .. [1] Roth, Peharz, Tschiatschek and Pernkopf (2018). Hybrid generative-discriminative training of Gaussian
       mixture models. Pattern Recognition Letters 112.

    Examples
    --------
    >>> from mixtura.objectives import Conditional, Hybrid
    >>> Hybrid(0.1, Conditional()).has_density
    True
    """

    tradeoff: float = 0.5
    discriminative: Objective = field(default_factory=Margin)
    unlabeled_weight: float = 1.0
    name = "hybrid"

    @property
    def own_class_only(self) -> bool:
        """Whether a labeled sample needs the components of its own class only."""
        # After grouping by label, labeled and unlabeled rows cannot be distinguished, so both must have weight one.
        return self.tradeoff == 1 and self.unlabeled_weight == 1

    @property
    def needs_denominator(self) -> bool:
        """Whether signed responsibilities have a denominator."""
        return self.tradeoff < 1 and self.discriminative.needs_denominator

    @property
    def has_density(self) -> bool:
        """Whether the objective contains log p(x), so that unlabeled samples contribute."""
        return self.tradeoff > 0

    @property
    def is_smooth(self) -> bool:
        return self.tradeoff == 1 or is_smooth(self.discriminative)

    @property
    def log_sums(self) -> tuple[float, float] | None:
        sums = self.discriminative.log_sums if isinstance(self.discriminative, LogSumObjective) else None
        if self.unlabeled_weight != 1 or sums is None:
            return None
        own, everything = sums
        return 1 + (1 - self.tradeoff) * (own - 1), (1 - self.tradeoff) * everything

    def evaluate(self, log_joint: Tensor, targets: Targets) -> Evaluation:
        if self.tradeoff == 0:
            return self.discriminative.evaluate(log_joint, targets)
        likelihood = Joint().evaluate(log_joint, targets)
        shares = self.tradeoff * self._likelihood_weights(targets, likelihood.values)  # (n,)
        values, numerator = shares * likelihood.values, shares * likelihood.numerator
        if self.tradeoff == 1:
            return Evaluation(values, numerator)
        other, rest = self.discriminative.evaluate(log_joint, targets), 1 - self.tradeoff
        denominator = None if other.denominator is None else rest * other.denominator
        return Evaluation(values + rest * other.values, numerator + rest * other.numerator, denominator)

    def _likelihood_weights(self, targets: Targets, like: Tensor) -> Tensor:
        """1 for a labeled row, unlabeled_weight for an unlabeled one, (n,)."""
        weight = torch.full_like(like, self.unlabeled_weight)
        if targets.shares is not None:
            return torch.where(targets.shares[:, 0].isnan(), weight, 1.0)
        if targets.labels is not None:
            return torch.where(targets.labels < 0, weight, 1.0)
        return weight
