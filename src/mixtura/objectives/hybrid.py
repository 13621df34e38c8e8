"""Hybrids: a likelihood and a discriminative objective, weighted (RPTP18)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mixtura.objectives.likelihood import Joint
from mixtura.objectives.margin import Margin
from mixtura.roles import Objective
from mixtura.values.storable import storable
from mixtura.values.targets import Evaluation, Targets


@storable("hybrid")
@dataclass(frozen=True)
class Hybrid:
    """tradeoff * likelihood + (1 - tradeoff) * discriminative (hybrid-objective).

    The likelihood is log p(x, c) of a labeled row and unlabeled_weight * log p(x) of an unlabeled one.

    Arguments:
        tradeoff: lambda; 1 is the likelihood alone, 0 the discriminative objective alone.
        discriminative: any objective, such as `Margin(50)` or `Conditional()`.
        unlabeled_weight: u. The kappa of RPTP18 is u = (1 - kappa) / kappa, with lambda rescaled.
    """

    tradeoff: float = 0.5
    discriminative: Objective = field(default_factory=Margin)
    unlabeled_weight: float = 1.0
    name = "hybrid"

    @property
    def own_class_only(self) -> bool:
        # Grouped by label, rows no longer say whether they had one: only a weight of one allows that.
        return self.tradeoff == 1 and self.unlabeled_weight == 1

    @property
    def needs_denominator(self) -> bool:
        return self.tradeoff < 1 and self.discriminative.needs_denominator

    @property
    def has_density(self) -> bool:
        return self.tradeoff > 0

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
        """One for a labeled row, unlabeled_weight for another, (n,)."""
        weight = torch.full_like(like, self.unlabeled_weight)
        if targets.shares is not None:
            return torch.where(targets.shares[:, 0].isnan(), weight, 1.0)
        if targets.labels is not None:
            return torch.where(targets.labels < 0, weight, 1.0)
        return weight
