"""Training samples of log-linear mixtures, and the same samples under a transform of the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mixtura.model.transforms import RowTransform, document_counts, make_row_transform
from mixtura.nonnegative.mixture import LabeledRows, LogLinearMixture, column_units, labeled_rows
from mixtura.selection.splits import Split
from mixtura.values.sparse_rows import pick, scaled_columns


@dataclass(frozen=True)
class RowFacts:
    """Statistics of all rows, from which their transforms are made."""

    document_counts: Tensor  # (D,), the weight of the rows with each feature
    weight: float
    units: tuple[Tensor, Tensor]  # shifts and scales of dense columns


def row_facts(features: Tensor, weights: Tensor) -> RowFacts:
    """The statistics of rows in memory."""
    counts = document_counts(features, weights)
    return RowFacts(counts, float(weights.sum()), column_units(features, weights))


@dataclass(frozen=True)
class TextSamples:
    """Training samples: rows (n, D) as they are, class numbers (-1 unlabeled) or soft labels, and weights."""

    features: Tensor
    labels: Tensor | None  # (n,)
    shares: Tensor | None  # (n, C), NaN for an unlabeled sample
    weights: Tensor  # (n,)
    n_classes: int
    step: int = 2**31  # rows of a chunk
    facts: RowFacts | None = None  # of all samples, where these are some of them

    @cached_property
    def known(self) -> Tensor:
        """Which samples have labels, (n,)."""
        if self.shares is not None:
            return ~self.shares[:, 0].isnan()
        assert self.labels is not None
        return self.labels >= 0

    @cached_property
    def targets(self) -> Tensor:
        """Shares of the classes, (n, C); zero for unlabeled samples."""
        if self.shares is not None:
            return self.shares.nan_to_num().double()
        assert self.labels is not None
        one_hot = torch.nn.functional.one_hot(self.labels.clamp_min(0), self.n_classes).double()
        return one_hot * self.known.unsqueeze(1)

    def to(self, device: torch.device) -> TextSamples:
        """Labels and weights on the device of the rows."""
        labels, shares = (None if part is None else part.to(device) for part in (self.labels, self.shares))
        return replace(self, labels=labels, shares=shares, weights=self.weights.to(device))

    def class_totals(self, weights: Tensor) -> Tensor:
        """The weight of each class with these weights of the samples, (C,)."""
        if self.shares is not None:
            return torch.where(self.known, weights, 0.0) @ self.targets
        assert self.labels is not None
        totals = torch.zeros(self.n_classes, dtype=torch.float64, device=weights.device)
        return totals.index_add_(0, self.labels[self.known], weights[self.known])

    def part(self, chosen: Tensor) -> TextSamples:
        """Some of the samples, by a mask (n,)."""
        index = chosen.nonzero()[:, 0]
        labels, shares = (None if part is None else part[index] for part in (self.labels, self.shares))
        return replace(
            self, features=pick(self.features, index), labels=labels, shares=shares, weights=self.weights[index]
        )

    def labeled(self, chosen: Tensor) -> LabeledRows:
        """Labeled rows; a row with soft labels is repeated with the weight of each share."""
        if self.shares is None:
            assert self.labels is not None
            return labeled_rows(
                self.features, self.labels, torch.where(chosen & self.known, self.weights, 0.0), self.step
            )
        index, classes = (self.targets * chosen.unsqueeze(1)).nonzero().T
        weights = self.weights[index] * self.targets[index, classes]
        return labeled_rows(pick(self.features, index), classes, weights, self.step)

    def unlabeled(self) -> LabeledRows | None:
        """Rows without labels, if any."""
        weights = torch.where(self.known, 0.0, self.weights)
        if not bool((weights > 0).any()):
            return None
        return labeled_rows(self.features, torch.full_like(weights, -1, dtype=torch.int64), weights, self.step)


@dataclass(frozen=True)
class TransformedSamples:
    """The samples with transformed rows, and the transform."""

    samples: TextSamples
    transform: RowTransform | None
    units: tuple[Tensor, Tensor] | None  # shifts and scales of dense columns
    folds: tuple[tuple[LabeledRows, TextSamples], ...]  # training rows and held-out samples

    def transformed(self, features: Tensor) -> Tensor:
        """Other rows under the same transform."""
        if self.transform is not None:
            return self.transform.forward(features)
        assert self.units is not None
        return scaled_columns(features.double(), *self.units)

    def in_units_of_rows(self, mixture: LogLinearMixture) -> LogLinearMixture:
        """A mixture of these rows as one of the rows that the transform gives."""
        if self.units is None:
            return mixture
        shifts, scales = self.units
        return mixture.rescaled(scales, shifts)


def view_samples(samples: TextSamples, name: str | None, folds: list[Split]) -> TransformedSamples:
    """Transform the rows: by a transform of rows, or dense columns to unit variance."""
    transform = units = None
    facts = row_facts(samples.features, samples.weights) if samples.facts is None else samples.facts
    if name is not None:
        transform = make_row_transform(name, facts.document_counts, facts.weight)
        rows = transform.forward(samples.features)
    else:
        units = facts.units
        rows = scaled_columns(samples.features.double(), *units)
    moved = replace(samples, features=rows)
    parts = tuple((moved.labeled(fold.kept), moved.part(fold.held_out)) for fold in folds)
    return TransformedSamples(moved, transform, units, parts)


# All rows, labeled and unlabeled, under the transform of a view.
RowsUnder = Callable[[TransformedSamples], tuple[LabeledRows, LabeledRows | None]]


def rows_in_memory(samples: TextSamples) -> RowsUnder:
    """The rows of samples under the transform of a view."""

    def rows_under(view: TransformedSamples) -> tuple[LabeledRows, LabeledRows | None]:
        moved = replace(samples, features=view.transformed(samples.features))
        return moved.labeled(samples.known), moved.unlabeled()

    return rows_under
