"""The objective role: the value of a sample, and its signed responsibilities."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from mixtura.values.targets import Evaluation, Targets


@runtime_checkable
class Objective(Protocol):
    """A function of the log joints (K, n) of rows and of their labels."""

    name: str

    @property
    def own_class_only(self) -> bool:
        """Whether labeled rows are evaluated with the components of their own class only."""
        ...

    @property
    def needs_denominator(self) -> bool: ...
    @property
    def has_density(self) -> bool:
        """Whether unlabeled rows contribute."""
        ...

    def evaluate(self, log_joint: Tensor, targets: Targets) -> Evaluation: ...


@runtime_checkable
class KinkedObjective(Objective, Protocol):
    """An objective that may have kinks: points where it is not differentiable in the log joints."""

    @property
    def is_smooth(self) -> bool:
        """Whether the parameters exclude kinks."""
        ...


def is_smooth(objective: Objective) -> bool:
    """Whether an objective is differentiable in the log joints."""
    return objective.is_smooth if isinstance(objective, KinkedObjective) else True


@runtime_checkable
class LogSumObjective(Objective, Protocol):
    """An objective that is a weighted sum of log p(x, c) and log p(x), which the fused kernel supports."""

    @property
    def log_sums(self) -> tuple[float, float] | None:
        """The two weights; None if the parameters do not allow it. For unlabeled rows the first term is log p(x)."""
        ...
