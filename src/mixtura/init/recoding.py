"""Choice of numbers in place of categories: indicators, ranks, or frequencies of the classes (recoding)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mixtura.covariances.product import estimate_strength
from mixtura.engine.sources import Block, Source, TensorSource
from mixtura.model.transforms import Recoding

MOST_INDICATORS = 20  # categories of a feature; more of them get the frequencies of the classes
N_FOLDS = 5  # of the frequencies for training samples


def recode(
    source: Source, n_classes: int, n_numeric: int, sizes: Sequence[int], ordered: Sequence[int] = ()
) -> Recoding:
    """Choose the numbers: ranks of ordered categories, indicators of few ones, frequencies of the classes of others.

    The indicator of the most frequent category is left out. `ordered` are positions among the categorical features.
    """
    (block,) = source.blocks()
    indicators = block.rows[:, n_numeric:].nan_to_num(nan=0.0).split(list(sizes), 1)
    tables, learned = [], [j not in ordered and size > MOST_INDICATORS for j, size in enumerate(sizes)]
    for j, part in enumerate(indicators):
        size = part.shape[1]
        if j in ordered:
            table = torch.linspace(0, 1, size, dtype=torch.float64, device=part.device).unsqueeze(1)
        elif learned[j]:
            table = torch.zeros(size, n_classes - 1, dtype=torch.float64, device=part.device)
        else:
            others = torch.arange(size, device=part.device) != part.sum(0).argmax()
            table = torch.eye(size, dtype=torch.float64, device=part.device)[:, others]
        tables.append(table)
    return Recoding(n_numeric, tuple(tables), tuple(learned))


def with_frequencies(recoding: Recoding, source: Source, n_classes: int) -> tuple[Recoding, TensorSource]:
    """Estimate frequencies of the classes in the categories from all samples, and recode these samples (recoding).

    A sample gets the frequencies of the other folds, so that its numbers do not depend on its own label.
    """
    (block,) = source.blocks()
    rows, shares = block.rows, _shares(block, n_classes)
    parts = rows[:, recoding.n_numeric :].split(recoding.sizes, 1)
    folds = torch.arange(len(rows), device=rows.device) % N_FOLDS
    tables, coded = [], recoding.coded(rows)
    for j, (part, table) in enumerate(zip(parts, recoding.tables, strict=True)):
        if recoding.learned[j]:
            seen = part.double().nan_to_num(nan=0.0)
            counts = torch.stack([seen[folds == k].T @ shares[folds == k] for k in range(N_FOLDS)])  # (F, L, C)
            strength = estimate_strength(counts.sum(0))
            table = _frequencies(counts.sum(0), strength)
            without = torch.stack([_frequencies(counts.sum(0) - fold, strength) for fold in counts])  # (F, L, C - 1)
            own = without[folds, seen.argmax(1)]
            coded[j] = torch.where(part[:, :1].isnan(), torch.nan, own).to(rows.dtype)
        tables.append(table)
    known = (block.labels, block.shares, block.weights, block.counts)
    estimated = replace(recoding, tables=tuple(tables))
    return estimated, TensorSource(estimated.finished(rows, coded), *known, start=block.start)


def _frequencies(counts: Tensor, strength: float) -> Tensor:
    """Frequencies of all classes but the first in every category, shrunk towards those of all samples, (L, C - 1)."""
    totals = counts.sum(0)
    prior = strength * totals / totals.sum().clamp_min(1e-300)
    return ((counts + prior) / (counts.sum(1, keepdim=True) + strength))[:, 1:]


def _shares(block: Block, n_classes: int) -> Tensor:
    """Weighted labels as shares of the classes, zero for unlabeled samples, (n, C)."""
    if block.shares is not None:
        shares = block.shares.double().nan_to_num(nan=0.0)
    else:
        labels = block.labels
        assert labels is not None
        shares = torch.nn.functional.one_hot(labels.clamp_min(0), n_classes).double() * (labels >= 0).unsqueeze(-1)
    return shares if block.weights is None else shares * block.weights.double().unsqueeze(-1)
