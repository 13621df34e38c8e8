"""The objective role: the value of a sample, and its signed responsibilities."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from mixtura.values.targets import Evaluation, Targets


@runtime_checkable
class Objective(Protocol):
    """A function of the log joints (K, n) of rows and of what is known of their classes."""

    name: str

    @property
    def own_class_only(self) -> bool:
        """Labeled rows meet the components of their own class and no others."""
        ...

    @property
    def needs_denominator(self) -> bool: ...
    @property
    def has_density(self) -> bool:
        """Can use unlabeled rows."""
        ...

    def evaluate(self, log_joint: Tensor, targets: Targets) -> Evaluation: ...


@runtime_checkable
class LogSumObjective(Objective, Protocol):
    """An objective that is a weighted sum of log p(x, c) and log p(x): a fused kernel knows its responsibilities."""

    @property
    def log_sums(self) -> tuple[float, float] | None:
        """The two weights; for an unlabeled row log p(x, c) stands for log p(x). None: not with these parameters."""
        ...
