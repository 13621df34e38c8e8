"""Contributions of words to the log-odds of a class (word-contributions)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixtura.inspection.tables import Table
from mixtura.model.rows import RowTransform
from mixtura.nonnegative.mixture import LogLinearMixture
from mixtura.values.sparse_rows import is_dense, row_slice


@dataclass(frozen=True)
class ScoredWords:
    """A mixture of transformed rows, their transform, and the temperature of the posteriors."""

    mixture: LogLinearMixture
    transform: RowTransform | None
    temperature: float

    def contributions(self, raw: Tensor, score: Tensor) -> tuple[Tensor, Tensor, Tensor, float, int]:
        """Columns of a row (1, D) that are not zero, their values and contributions, the log-odds, and the class.

        `score` holds the log posteriors (C,) of the row.
        """
        mixture = self.mixture
        row = raw.double() if self.transform is None else self.transform.forward(raw)
        dense, plain = (part if is_dense(part) else part.to_dense() for part in (row, raw.double()))
        used = plain[0].nonzero()[:, 0]
        log_joint = mixture.log_joint(row)[:, 0]
        theta = mixture.coefficients[:, used][mixture.basis_of]  # (K, m)
        by_class = torch.stack(
            [log_joint[mixture.class_of == c].softmax(0) @ theta[mixture.class_of == c] for c in range(len(score))]
        )  # (C, m)
        c = int(score.argmax())
        others = score.clone()
        others[c] = -torch.inf
        difference = by_class[c] - others.softmax(0) @ by_class
        parts = difference * dense[0, used] / self.temperature
        if not bool(dense.any()):
            parts = torch.zeros_like(parts)
        return used, plain[0, used], parts, float(score[c] - others.logsumexp(0)), c


def word_contributions(
    model: ScoredWords, features: Tensor, scores: Tensor, classes: np.ndarray, names: np.ndarray
) -> Table:
    """One line for each row and word, the largest contribution first; with a constant they sum to the log-odds."""
    columns: dict[str, list[Any]] = {name: [] for name in ("sample", "class", "feature", "value", "contribution")}
    for number, score in enumerate(scores):
        row = row_slice(features, slice(number, number + 1))
        used, values, parts, log_odds, c = model.contributions(row, score)
        order = parts.abs().argsort(descending=True, stable=True)
        columns["sample"] += [number] * (len(used) + 1)
        columns["class"] += [classes[c]] * (len(used) + 1)
        columns["feature"] += [*names[used[order].numpy()].tolist(), "(constant)"]
        columns["value"] += [*values[order].tolist(), math.nan]
        columns["contribution"] += [*parts[order].tolist(), log_odds - float(parts.sum())]
    return Table(columns)
