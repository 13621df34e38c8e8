"""A first pass over the rows: extents, class means and variances, and a sample of every class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from mixtura.engine.sources import Block, Source
from mixtura.roles import DataScales
from mixtura.values.extents import Extents, Frame, extents_of, framed, no_extents
from mixtura.values.row_samples import RowSample, joined_samples, uniform_keys

# Rows of a class used for initialisation: k-means needs no more, and memory stays bounded. Of wide rows of many classes
# so many that there are this many values in all, 64 MB, but at least some of every class.
SAMPLED_ROWS, SAMPLED_VALUES, FEWEST_SAMPLED = 20_000, 2**23, 50


@dataclass(frozen=True)
class Description:
    """Statistics of the rows: extents, class means and variances, and a sample of every class.

    `samples` holds (rows, weights) of each class, then of the unlabeled rows. `within` holds the pooled within-class
    variances, `total` the variances about the common mean. A constant column gets the average variance of the others.
    """

    frame: Frame
    class_weights: Tensor  # (C,)
    unlabeled_weight: float
    class_means: Tensor  # (C, D)
    within: Tensor  # (D,)
    total: Tensor  # (D,)
    varies: Tensor  # (D,), false for a constant or empty column
    observed: Tensor  # (D,), false for a column without observed values
    observed_weights: Tensor  # (C, D), weights of the labeled samples in which a column is observed
    samples: list[tuple[Tensor, Tensor]]
    n_rows: int
    n_missing: int
    scatter: Tensor | None = None  # (D, D), within the classes, of all rows; None: that of the samples is used

    @property
    def weight(self) -> float:
        """Total weight of all rows."""
        return float(self.class_weights.sum()) + self.unlabeled_weight

    @property
    def labeled(self) -> tuple[Tensor, Tensor, Tensor]:
        """The labeled samples, class by class: rows (n, D), numbers of their classes (n,), and weights (n,)."""
        samples = self.samples[: len(self.class_means)]
        rows, weights = (torch.cat(part) for part in zip(*samples, strict=True))
        counts = torch.tensor([len(own) for own, _ in samples], device=rows.device)
        return rows, torch.arange(len(samples), device=rows.device).repeat_interleave(counts), weights

    def spread(self, n_components: float) -> Tensor:
        """Expected variances of the components of a class, (D,) (default-prior):

            sqrt(m4 / 3) * n_components^(-2 / D),

        with m4 the fourth moments within the classes. A Gaussian has m4 = 3 V^2, so the first factor is V for a
        Gaussian and larger for heavy tails. The second is the relative variance of one of n_components parts of
        equal volume.
        """
        scales = self.within.sqrt()
        fourths, weight = torch.zeros_like(scales), torch.zeros_like(scales)
        for deviations, weights in self._deviations:
            weight += weights @ (~deviations.isnan()).double()
            fourths += weights @ torch.nan_to_num(deviations / scales, nan=0.0) ** 4
        # At least 1 by Jensen's inequality, except for constant columns, whose `within` is that of the other columns.
        kurtosis = (fourths / weight.clamp_min(1e-300)).clamp_min(1)
        expected = self.within * (kurtosis / 3).sqrt()
        return torch.where(self.varies, expected * n_components ** (-2 / len(scales)), self.within)

    @property
    def _deviations(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Deviations of the labeled samples from the means of their classes, with their weights, several at a time."""
        labeled = self.samples[: len(self.class_means)]
        counts = torch.tensor([len(rows) for rows, _ in labeled], device=self.within.device)
        labels = torch.arange(len(labeled), device=self.within.device).repeat_interleave(counts)
        step = max(1, 2**22 // len(self.within))
        held, first, last = [], 0, 0
        for number, (pair, n_rows) in enumerate(zip(labeled, counts.tolist(), strict=True)):
            held.append(pair)
            last += n_rows
            if last - first >= step or number == len(labeled) - 1:
                rows, weights = (torch.cat(part) for part in zip(*held, strict=True))
                yield rows - self.class_means[labels[first:last]], weights
                held, first = [], last

    def scales_for(self, n_components: Sequence[int]) -> DataScales:
        """The statistics that a prior may use, for these numbers of components per class."""
        counts = torch.tensor(list(n_components), device=self.within.device)
        per_class = sum(n_components) / len(n_components)
        return DataScales(
            self.spread(per_class),
            self.within,
            self.class_means.repeat_interleave(counts, 0),
            lambda strength=None, identity=False: (
                (self.covariance if strength is None else self.shrunk_covariance(strength, identity))
                * per_class ** (-2 / len(self.within))
            ),
        )

    @cached_property
    def covariance(self) -> Tensor:
        """The pooled within-class covariance, (D, D), with variances `within`.

        Correlations are pairwise: from rows in which both values are observed. If there are few rows or pairs, they are
        shrunk, so that the matrix is positive definite.
        """
        correlations, _ = self._correlations
        size, scales = len(correlations), self.within.sqrt()
        n_rows = sum(len(rows) for (rows, _), _ in zip(self.samples, self.class_means, strict=False))
        lowest = float(torch.linalg.eigvalsh(correlations)[0])
        shrinkage = min(n_rows / (n_rows + 1 + size), 1.0 if lowest > 0 else 0.99 / (1 - lowest))
        return (shrinkage * correlations).fill_diagonal_(1.0) * scales * scales.unsqueeze(-1)

    def shrunk_covariance(self, strength: float, identity: bool) -> Tensor:
        """The pooled covariance with pseudo-observations of its variances, or of their mean, (D, D) (shrinkage):

        (S + strength T) / (W + strength),  S the scatter within the classes, W their weight.
        """
        correlations, scales = self._correlations
        if self.n_missing:  # correlations of pairs need not belong to any matrix
            lowest = float(torch.linalg.eigvalsh(correlations)[0])
            correlations = correlations * min(1.0, 0.99 / (1 - lowest)) if lowest <= 0 else correlations.clone()
            correlations.fill_diagonal_(1.0)
        own = 1.0 if math.isinf(strength) else strength / (float(self.class_weights.sum()) + strength)
        matrix = (1 - own) * correlations * scales * scales.unsqueeze(-1)
        matrix.diagonal().add_(own * (self.within.mean() if identity else self.within))
        return matrix

    @cached_property
    def _correlations(self) -> tuple[Tensor, Tensor]:
        """Pairwise correlations within the classes (D, D), and the standard deviations of the sampled rows (D,)."""
        scales, size = self.within.sqrt(), len(self.within)
        products = torch.zeros(size, size, dtype=scales.dtype, device=scales.device)
        pairs = torch.zeros_like(products)
        if self.scatter is not None:
            both = self.varies.unsqueeze(-1) & self.varies
            products = torch.where(both, self.scatter / scales / scales.unsqueeze(-1), products)
            pairs = both * self.class_weights.sum()
        for rows, weights in self._deviations if self.scatter is None else ():
            observed = (~rows.isnan()).double() * self.varies
            deviations = torch.nan_to_num(rows / scales, nan=0.0) * observed
            products += (deviations * weights.unsqueeze(-1)).T @ deviations
            pairs += (observed * weights.unsqueeze(-1)).T @ observed
        moments = (products + products.T) / (2 * pairs).clamp_min(1e-300)  # symmetric to the last digit
        roots = moments.diagonal().clamp_min(1e-300).sqrt()
        correlations = torch.nan_to_num(moments / roots / roots.unsqueeze(-1)).clamp(-1, 1).fill_diagonal_(1.0)
        return correlations, torch.where(self.varies, roots, 1.0) * scales


def describe(source: Source, n_classes: int, generator: torch.Generator) -> Description:
    """Describe all rows in one pass, in bounded memory; soft labels are weights of the classes."""
    seed = int(torch.randint(2**62, (), generator=generator))
    return source.total(partial(_describe_part, n_classes, seed, source.extents)).description()


def _describe_part(n_classes: int, seed: int, extents: Extents | None, source: Source) -> _Statistics:
    statistics = _Statistics(source, n_classes, seed, extents)
    for block in source.blocks():
        statistics.at(block)
    return statistics


class _Statistics:
    """Accumulates counts, means and variances of observed values by class, and samples of rows; instances add.

    If the `extents` of all rows are known, all sums have the same reference, independent of where rows are stored.
    """

    def __init__(self, source: Source, n_classes: int, seed: int, extents: Extents | None):
        size, device = source.n_features, source.device
        self.n_classes, self.seed = n_classes, seed
        self.unknown_extents = extents is None
        self.extents = no_extents(size, device) if extents is None else extents.to(device)
        self.reference = None if extents is None else framed(self.extents.low, self.extents.high).centre
        # Index n_classes is for unlabeled rows.
        self.counts = torch.zeros(n_classes + 1, size, dtype=torch.float64, device=device)  # observed weight
        self.firsts, self.seconds = torch.zeros_like(self.counts), torch.zeros_like(self.counts)
        self.row_weights = torch.zeros(n_classes + 1, dtype=torch.float64, device=device)
        most = max(FEWEST_SAMPLED, SAMPLED_VALUES // (n_classes * size)) if n_classes > 1 else SAMPLED_ROWS
        nothing, groups = self.row_weights[:0], torch.zeros(0, dtype=torch.int64, device=device)
        rows = torch.zeros(0, source.n_features, dtype=source.dtype, device=device)
        self.sample = RowSample((rows, nothing), nothing, min(SAMPLED_ROWS, most), groups)
        self.thresholds = self.row_weights.clone()  # of the keys of the sample, (C + 1,)
        self.held: list[RowSample] = []  # not added yet
        self.n_rows = self.n_missing = 0

    def __add__(self, other: _Statistics) -> _Statistics:
        if self.reference is None or other.reference is None:  # without rows
            return other if self.reference is None else self
        shift = other.reference - self.reference
        self.extents = self.extents + other.extents
        self.seconds += other.seconds + 2 * shift * other.firsts + other.counts * shift.square()  # (moments-shift)
        self.firsts += other.firsts + other.counts * shift
        self.counts += other.counts
        self.row_weights += other.row_weights
        self.held += [other.sample, *other.held]
        self._add_held()
        self.n_rows, self.n_missing = self.n_rows + other.n_rows, self.n_missing + other.n_missing
        return self

    def at(self, block: Block) -> None:
        rows = block.rows
        if not len(rows):
            return
        if self.unknown_extents:
            self.extents = self.extents + extents_of(rows).to(rows.device)
        if self.reference is None:
            self.reference = framed(self.extents.low, self.extents.high).centre
        self.n_rows += len(rows)
        # On a GPU every part waits for the counts of its samples: larger ones.
        step = max(65_536, 2**22 // rows.shape[1]) if rows.is_cuda else min(65_536, max(1024, 2**22 // rows.shape[1]))
        for part in range(0, len(rows), step):
            self._part(block, slice(part, part + step))

    def _part(self, block: Block, part: slice) -> None:
        rows = block.rows[part].double()
        weights = torch.ones(len(rows), dtype=torch.float64, device=rows.device)
        if block.weights is not None:
            weights = block.weights[part].double()
        shares = self._shares(block, part, rows) * weights.unsqueeze(-1)  # (n, C + 1)
        observed = ~rows.isnan()
        if not block.complete:
            self.n_missing += int((~observed).sum())
        assert self.reference is not None
        centred = torch.where(observed, rows - self.reference, 0.0)
        self.row_weights += shares.sum(0)
        self.counts += shares.T @ observed.double()
        self.firsts += shares.T @ centred
        self.seconds += shares.T @ centred.square()
        keys = uniform_keys(self.seed, block.start + part.start, len(rows), rows.device)
        groups, places = (shares > 0).T.nonzero(as_tuple=True)
        chosen = keys[places] >= self.thresholds[groups]
        groups, places = groups[chosen], places[chosen]
        own = (block.rows[part][places], shares[places, groups])  # in their own precision
        self.held.append(RowSample(own, keys[places], self.sample.size, groups))
        if sum(len(part) for part in self.held) > max(len(self.sample), 2**14):
            self._add_held()

    def _add_held(self) -> None:
        self.sample, self.held = joined_samples([self.sample, *self.held]), []
        assert self.sample.groups is not None
        self.thresholds = self.sample.thresholds(self.n_classes + 1)

    def _samples(self) -> list[tuple[Tensor, Tensor]]:
        """Rows and weights of every class, in the order of the rows."""
        self._add_held()
        rows, weights = self.sample.columns
        assert rows is not None
        assert weights is not None
        assert self.sample.groups is not None
        order = self.sample.groups.argsort(stable=True)
        counts = self.sample.groups.bincount(minlength=self.n_classes + 1).tolist()
        return list(zip(rows[order].double().split(counts), weights[order].split(counts), strict=True))

    def _shares(self, block: Block, part: slice, rows: Tensor) -> Tensor:
        shares = torch.zeros(len(rows), self.n_classes + 1, dtype=torch.float64, device=rows.device)
        if block.shares is not None:
            soft = block.shares[part].double()
            unlabeled = soft[:, 0].isnan()
            shares[:, :-1] = torch.where(unlabeled.unsqueeze(-1), 0.0, soft)
            shares[unlabeled, -1] = 1.0
        elif block.labels is not None:
            labels = block.labels[part]
            shares[torch.arange(len(rows), device=rows.device), torch.where(labels < 0, self.n_classes, labels)] = 1.0
        else:
            shares[:, 0] = 1.0
        return shares

    def description(self) -> Description:
        counts = self.counts[:-1]
        means = self.firsts[:-1] / counts.clamp_min(1e-300)
        scatter = (self.seconds[:-1] - counts * means.square()).clamp_min(0)
        all_counts = self.counts.sum(0).clamp_min(1e-300)
        all_means = self.firsts.sum(0) / all_counts
        total = (self.seconds.sum(0) / all_counts - all_means.square()).clamp_min(0)
        within = scatter.sum(0) / counts.sum(0).clamp_min(1e-300)
        reference = self.reference if self.reference is not None else torch.zeros_like(self.extents.low)
        frame = framed(self.extents.low, self.extents.high)
        # A variance below the rounding error of the sums about the reference is set to zero.
        noise = 1e-13 * (frame.radii.square() + 1e-300)
        varies = total > noise
        within = torch.where(within > noise, within, total)
        means = torch.where(counts > 0, means, all_means)
        return Description(
            frame=frame,
            class_weights=self.row_weights[:-1],
            unlabeled_weight=float(self.row_weights[-1]),
            class_means=means + reference,
            within=_filled(within, varies),
            total=_filled(total, varies),
            varies=varies,
            observed=self.counts.sum(0) > 0,
            observed_weights=counts,
            samples=self._samples(),
            n_rows=self.n_rows,
            n_missing=self.n_missing,
        )


def _filled(variances: Tensor, varies: Tensor) -> Tensor:
    return torch.where(varies, variances, variances[varies].mean() if bool(varies.any()) else 1.0)
