"""Input and output of objectives."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Targets:
    """The labels of rows.

    `labels` (n,) are class numbers, -1 for an unlabeled row; or `shares` (n, C) are soft labels, NaN for an unlabeled
    row. `class_of` (K,) is the class of each component. If several mixtures are trained together, `counts` (n, B) are
    the counts of the rows in their training sets, and `components` the positions of these components among all.
    """

    class_of: Tensor
    labels: Tensor | None = None
    shares: Tensor | None = None
    counts: Tensor | None = None
    components: slice | None = None
    known_classes: int | None = None  # number of classes, if not derived from class_of

    @property
    def n_classes(self) -> int:
        return int(self.class_of.max()) + 1 if self.known_classes is None else self.known_classes


@dataclass(frozen=True)
class Evaluation:
    """An objective at some rows: values (n,), or (m, n) of m objectives, and signed responsibilities.

    The numerator and the denominator of the responsibilities are (K, n)."""

    values: Tensor
    numerator: Tensor
    denominator: Tensor | None = None

    @property
    def signed(self) -> Tensor:
        """A = d sum(values) / d log_joint, (K, n)."""
        return self.numerator if self.denominator is None else self.numerator - self.denominator
