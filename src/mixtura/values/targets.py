"""What an objective is given of some rows, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Targets:
    """What is known of the classes of some rows.

    `labels` (n,) holds class numbers, -1 for an unlabeled row; or `shares` (n, C) holds soft labels, a row of NaN for
    an unlabeled one. class_of (K,) says which class owns a component. Where several mixtures are trained together,
    `counts` (n, B) says how often each of them has seen a row, and `components` which of all components these are.
    """

    class_of: Tensor
    labels: Tensor | None = None
    shares: Tensor | None = None
    counts: Tensor | None = None
    components: slice | None = None
    known_classes: int | None = None  # their number, where it need not be read off class_of

    @property
    def n_classes(self) -> int:
        return int(self.class_of.max()) + 1 if self.known_classes is None else self.known_classes


@dataclass(frozen=True)
class Evaluation:
    """An objective at some rows: values (n,), or (m, n) where there are m of them; numerator and denominator of the
    signed responsibilities, (K, n)."""

    values: Tensor
    numerator: Tensor
    denominator: Tensor | None = None

    @property
    def signed(self) -> Tensor:
        """A = d sum(values) / d log_joint, (K, n)."""
        return self.numerator if self.denominator is None else self.numerator - self.denominator
