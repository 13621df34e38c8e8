"""Fits of transforms of columns: Johnson transforms by maximum likelihood, numbers in place of categories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mixtura.covariances.product import estimate_strength
from mixtura.engine.sources import Block, BlockSource, Source, warped
from mixtura.engine.threads import check_time
from mixtura.init.description import Description
from mixtura.model.transforms import Recoding, Warp

# Number of samples that decide whether a feature is transformed, and of those with which its two parameters are
# searched: 4500 x 384 take 1.4 s of processor time, 18 s if all samples are compared at all pairs of parameters.
FITTED_ROWS, SEARCHED_ROWS = 5_000, 1_000
# Initial grid: quantiles of the feature as locations, and scales relative to its spread. The smallest scale prevents
# a value that many samples share, such as zero, from becoming a peak of infinite density.
QUANTILES = (0.0, 0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98, 1.0)
SCALES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
SPREAD = (0.05, 0.95)  # quantiles whose distance is the spread
FEWEST_VALUES = 5  # distinct values of a feature; location, scale, mean and variance fit four values exactly
ZOOMS = 6  # refinements of the grid around the best location and scale


def fit_warp(description: Description) -> Warp:
    """Maximise the log-likelihood of Gaussian classes over the transform of each feature (warp-likelihood):

        -W/2 log V(g) + sum_n w_n log g'(x_n),  V the variance of g(x) about the class means, W the total weight.

    A feature is transformed only if the log-likelihood rises by more than log W, the BIC penalty of two parameters.
    Features with few distinct values are never transformed, because every transform fits them equally well.
    """
    columns = _Columns.of(description)
    enough = columns.n_values >= FEWEST_VALUES
    columns = columns.select(enough)
    low, high = columns.quantiles(SPREAD)
    spread = torch.where(high > low, high - low, description.within[enough].sqrt())
    fewer = columns.thinned(SEARCHED_ROWS)
    starts = [(location, scale * spread) for location in columns.quantiles(QUANTILES) for scale in SCALES]
    locations, scales = fewer.best(starts)
    for zoom in range(ZOOMS):
        step = 0.5**zoom
        near = [
            (locations + across * step * scales, (scales * 2.0 ** (up * step)).clamp_min(SCALES[0] * spread))
            for across in (-1, 0, 1)
            for up in (-1, 0, 1)
        ]
        locations, scales = fewer.best(near)
    plain = columns.log_likelihood(torch.zeros_like(spread), torch.full_like(spread, torch.inf))
    better = columns.log_likelihood(locations, scales) - plain > columns.weight.clamp_min(1.0).log()
    every = description.within.new_zeros(len(enough))  # locations of features that are not transformed
    return Warp(
        every.masked_scatter(enough, torch.where(better, locations, 0.0)),
        (every + torch.inf).masked_scatter(enough, torch.where(better, scales, torch.inf)),
    )


@dataclass(frozen=True)
class _Columns:
    """Labeled rows, sorted by class: values (n, D), zero where missing, their weights (n, D) and the classes (n,)."""

    values: Tensor
    weights: Tensor
    labels: Tensor
    n_classes: int

    @classmethod
    def of(cls, description: Description) -> _Columns:
        (rows, labels, weights), n_classes = description.labeled, len(description.class_weights)
        columns = cls(rows.nan_to_num(nan=0.0), weights.unsqueeze(-1) * ~rows.isnan(), labels, n_classes)
        return columns.thinned(FITTED_ROWS)

    def thinned(self, n_rows: int) -> _Columns:
        """The same with about this number of rows, of all classes."""
        every = max(1, len(self.values) // n_rows)
        return _Columns(self.values[::every], self.weights[::every], self.labels[::every], self.n_classes)

    def select(self, features: Tensor) -> _Columns:
        """Some features, by a mask."""
        return _Columns(self.values[:, features], self.weights[:, features], self.labels, self.n_classes)

    @property
    def weight(self) -> Tensor:
        """Total weight of the observed values of each feature, (D,)."""
        return self.weights.sum(0)

    @property
    def n_values(self) -> Tensor:
        """Number of distinct values of each feature, (D,)."""
        ordered = torch.where(self.weights > 0, self.values, torch.inf).sort(0).values
        return ((ordered.diff(dim=0) > 0) & ordered[1:].isfinite()).sum(0) + 1

    def quantiles(self, shares: Sequence[float]) -> list[Tensor]:
        """For every share, the smallest values with at least this share of the weight at or below them, (D,)."""
        ordered, order = torch.where(self.weights > 0, self.values, torch.inf).sort(0)
        cumulative = self.weights.gather(0, order).cumsum(0) / self.weight.clamp_min(1e-300)
        last = ((self.weights > 0).sum(0) - 1).clamp_min(0)
        ranks = [torch.minimum((cumulative < share - 1e-12).sum(0), last) for share in shares]
        return [ordered.gather(0, rank.unsqueeze(0))[0].nan_to_num(posinf=0.0) for rank in ranks]

    def best(self, candidates: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """The most likely location and scale of each feature, (D,) each."""
        scores = torch.stack([self.log_likelihood(locations, scales) for locations, scales in candidates])  # (G, D)
        best = scores.argmax(0, keepdim=True)
        locations, scales = (torch.stack(part).gather(0, best)[0] for part in zip(*candidates, strict=True))
        return locations, scales

    def log_likelihood(self, locations: Tensor, scales: Tensor) -> Tensor:
        """Log-likelihood of each feature under this transform, up to a constant, (D,) (warp-likelihood)."""
        check_time()
        moved = scales.isfinite()
        finite = torch.where(moved, scales, 1.0)
        standardised = (self.values - locations) / finite
        roots = (standardised.square() + 1).sqrt_()
        curved = torch.copysign((standardised.abs() + roots).log_(), standardised)  # asinh, in a third of its time
        values = torch.where(moved, finite * curved, self.values)
        totals = torch.zeros(self.n_classes, self.values.shape[1], dtype=values.dtype, device=values.device)
        sums = totals.index_add(0, self.labels, self.weights * values)
        means = sums / totals.index_add(0, self.labels, self.weights).clamp_min(1e-300)
        scatter = (self.weights * (values - means[self.labels]).square_()).sum(0)
        variances = (scatter / self.weight.clamp_min(1e-300)).clamp_min(1e-300)
        slopes = torch.where(moved, (self.weights * roots.log_()).sum(0), 0.0)
        return -slopes - 0.5 * self.weight * variances.log()


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


def with_frequencies(recoding: Recoding, source: Source, n_classes: int) -> tuple[Recoding, Source]:
    """Estimate frequencies of the classes in the categories from all samples, and recode these samples (recoding).

    A sample gets the frequencies of the other folds, so that its numbers do not depend on its own label. Samples in
    parts, with which a model is trained further, keep the frequencies that they had.
    """
    if not isinstance(source, BlockSource):
        return recoding, warped(source, recoding)
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
    estimated = replace(recoding, tables=tuple(tables))
    return estimated, BlockSource(replace(block, rows=estimated.finished(rows, coded), _groups={}))


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
