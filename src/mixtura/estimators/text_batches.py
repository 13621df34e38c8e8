"""Batches of non-negative rows, which are read again in every pass of a fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixtura import checks
from mixtura.estimators.labels import ClassNumbers, read_one_per_row
from mixtura.estimators.parts import SAME_ROWS
from mixtura.model.transforms import document_counts
from mixtura.nonnegative.mixture import ClassChunk, LabeledRows, chunk_of, column_units, parts_of, with_totals
from mixtura.selection.log_linear import SELECTION_SAMPLES
from mixtura.selection.text_samples import RowFacts, RowsUnder, TextSamples, TransformedSamples
from mixtura.streams.batches import named_batches
from mixtura.values.sparse_rows import empty_rows, pick, stacked_rows


@dataclass(frozen=True)
class TextBatches:
    """Batches (X, y) or (X, y, sample_weight), checked like the rows of an estimator."""

    estimator: Any
    batches: Any

    def read(self, first_pass: bool = False) -> Iterator[tuple[Tensor, np.ndarray, np.ndarray, Tensor]]:
        """Rows, the labels of the labeled rows, their mask, and weights, batch by batch."""
        estimator, is_first, n_batches = self.estimator, first_pass, 0
        for batch in named_batches(self.batches):
            try:
                features, rows = estimator._read(batch.X, reset=is_first, training=first_pass)
                weights = checks.sample_weight(batch.sample_weight, len(rows), all_rows=False)
                weights = torch.ones(len(rows), dtype=torch.float64) if weights is None else weights.cpu()
                if batch.y is None:
                    raise ValueError(f"{type(estimator).__name__} needs batches of (X, y) or (X, y, sample_weight).")
                known, labeled = read_one_per_row(batch.y, len(rows), weights, estimator.unlabeled, "y of a batch")
            except ValueError as error:
                raise checks.unread(batch.origin, error) from error
            yield features, known, labeled, weights
            is_first, n_batches = False, n_batches + 1
        if not n_batches:
            raise checks.no_rows() if first_pass else checks.read_once(type(self.batches).__name__)

    def scan(self, generator: torch.Generator) -> tuple[np.ndarray, TextSamples, Tensor]:
        """The first pass: classes, some samples drawn at random with statistics of all, and the weight of classes."""
        parts: list[tuple[Tensor, np.ndarray, Tensor, Tensor]] = []  # rows, labels as objects, weights, keys
        weight, counts, totals = 0.0, None, {}
        for features, known, labeled, weights in self.read(first_pass=True):
            own = document_counts(features, weights)
            counts, weight = own if counts is None else counts + own, weight + float(weights.sum())
            for label, value in zip(known.tolist(), weights.numpy()[labeled].tolist(), strict=True):
                totals[label] = totals.get(label, 0.0) + value
            labels = np.full(len(weights), None, dtype=object)
            labels[labeled] = known
            keys = torch.rand(len(weights), generator=generator, dtype=torch.float64)
            parts = _smallest([*parts, (features, labels, weights, keys.masked_fill(weights <= 0, torch.inf))])
        assert counts is not None
        classes = checks.distinct(np.array(list(totals)))
        checks.enough_classes(classes, 0, type(self.estimator).__name__)
        rows, weights = stacked_rows([part[0] for part in parts]), torch.cat([part[2] for part in parts])
        labels = np.concatenate([part[1] for part in parts])
        is_known = np.array([label is not None for label in labels])
        numbers = ClassNumbers(classes).number(np.array(labels[is_known].tolist()), is_known)
        weights = torch.where(empty_rows(rows), 0.0, weights)
        facts = RowFacts(counts, weight, column_units(rows, weights))
        few = TextSamples(rows, numbers, None, weights, len(classes), facts=facts)
        return classes, few, torch.tensor([totals[label] for label in classes.tolist()], dtype=torch.float64)

    def rows_under(self, classes: np.ndarray, step: int) -> RowsUnder:
        """The rows of all batches under a transform, read again in every pass."""

        def rows_under(view: TransformedSamples) -> tuple[LabeledRows, LabeledRows | None]:
            rows = with_totals(TextChunks(self, classes, step, view, labeled=True))
            has_unlabeled = not bool(view.samples.known.all())
            return rows, with_totals(TextChunks(self, classes, step, view, labeled=False)) if has_unlabeled else None

        return rows_under


def _smallest(
    parts: list[tuple[Tensor, np.ndarray, Tensor, Tensor]],
) -> list[tuple[Tensor, np.ndarray, Tensor, Tensor]]:
    """The rows with the smallest keys, at most SELECTION_SAMPLES."""
    keys = torch.cat([part[3] for part in parts])
    limit = keys.kthvalue(SELECTION_SAMPLES).values if len(keys) > SELECTION_SAMPLES else keys.new_tensor(1.0)
    kept = []
    for rows, labels, weights, own in parts:
        index = (own <= limit).nonzero()[:, 0]
        if len(index):
            kept.append((pick(rows, index), labels[index.numpy()], weights[index], own[index]))
    return kept


@dataclass(frozen=True)
class TextChunks:
    """Chunks of the labeled or the unlabeled rows of all batches, without rows of zeros."""

    batches: TextBatches
    classes: np.ndarray
    step: int
    view: TransformedSamples
    labeled: bool

    def __iter__(self) -> Iterator[ClassChunk]:
        for features, known, labeled, weights in self.batches.read():
            numbers = ClassNumbers(self.classes, advice=SAME_ROWS).number(known, labeled)
            rows = self.view.transformed(features)
            chosen = torch.from_numpy(labeled) == self.labeled
            index = (chosen & (weights > 0) & ~empty_rows(features)).nonzero()[:, 0]
            if len(index):
                for part in parts_of(pick(rows, index), numbers[index], weights[index], self.step):
                    yield chunk_of(*part)
