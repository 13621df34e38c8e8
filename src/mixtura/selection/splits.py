"""Splits into training and held-out samples, for model selection and early stopping."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Number, Real
from typing import cast

import numpy as np
import torch
from sklearn.model_selection import BaseCrossValidator, StratifiedGroupKFold, check_cv
from torch import Tensor

from mixtura import checks
from mixtura.engine.sources import Block, Source
from mixtura.values.row_samples import RowSample, largest, uniform_keys

# Held-out samples that suffice to compare candidates: further folds are not used.
ENOUGH_SAMPLES = 800


@dataclass(frozen=True)
class Grouped:
    """Splits, as in `hold_outs`, that never divide a group: its samples are all for training, or all held out."""

    cv: object
    groups: Tensor  # (n,), numbers from 0 on

    def of(self, chosen: Tensor) -> Grouped:
        """The splits of some of the samples, (n,)."""
        return Grouped(self.cv, self.groups[chosen.cpu()].unique(return_inverse=True)[1])

    def whole(self, most: int, generator: torch.Generator) -> Tensor:
        """Draw groups of at most `most` samples in all, but at least two: a mask of their samples, (n,)."""
        sizes = self.groups.bincount()
        order = torch.randperm(len(sizes), generator=generator)
        chosen = torch.zeros(len(sizes), dtype=torch.bool)
        chosen[order[(sizes[order].cumsum(0) <= most) | (torch.arange(len(sizes)) < 2)]] = True
        return chosen[self.groups]


def regroup(cv: object, other: object) -> object:
    """Other splits that keep the groups of `cv`, if it has any."""
    return Grouped(other, cv.groups) if isinstance(cv, Grouped) else other


def plain_cv(cv: object) -> object:
    """Splits as the user gave them, without groups."""
    return cv.cv if isinstance(cv, Grouped) else cv


@dataclass(frozen=True)
class Split:
    """Boolean masks of the training and the held-out samples, (n,)."""

    kept: Tensor
    held_out: Tensor


def hold_outs(
    cv: object,
    labels: Tensor | None,
    generator: torch.Generator,
    *,
    shares: Tensor | None = None,
    weights: Tensor | None = None,
    smallest: int = 1,
    every: bool = False,
) -> list[Split]:
    """Split samples into training and held-out parts, stratified by class.

    Unlabeled samples and samples of weight zero are always in the training part. So is the sample of a class with a
    single sample.

    Parameters
    ----------
    cv : int, float or splits
        An int is the number of folds, of which only as many are used as hold out 800 samples. A float between 0 and 1
        is the held-out fraction of every class in a single split. Otherwise a scikit-learn splitter or an iterable of
        pairs of index arrays. `Grouped` splits do not divide groups.
    labels : Tensor of shape (n,), or None
        Class numbers, -1 for an unlabeled sample. None with `shares` means soft labels, else one class.
    generator : torch.Generator
        Draws the folds.
    shares : Tensor of shape (n, C), optional
        Soft labels, NaN for an unlabeled sample. The stratum of a sample is its largest share.
    weights : Tensor of shape (n,), optional
        Sample weights.
    smallest : int, default 1
        Splits with fewer held-out samples are dropped.
    every : bool, default False
        Whether to return all folds, however many samples there are.

    Returns
    -------
    list of Split
        Empty if there are no samples to hold out.
    """
    strata = strata_of(labels, shares, weights)
    if isinstance(cv, Grouped):
        parts = _grouped(strata, cv, generator, every)
    elif isinstance(cv, Integral):
        parts = _folds(strata, int(cv), generator, every)
    elif isinstance(cv, Real):
        parts = [_fraction(strata, float(cv), generator)]
    else:
        parts = _given(strata, cv)
    device = next(part.device for part in (labels, shares, weights) if part is not None)
    splits = [Split(kept.to(device), held_out.to(device)) for kept, held_out in parts]
    return [part for part in splits if int(part.held_out.sum()) >= smallest]


def strata_of(labels: Tensor | None, shares: Tensor | None, weights: Tensor | None) -> Tensor:
    """The class of every sample that may be held out, -1 for the others, (n,)."""
    if shares is not None:
        strata = torch.where(shares[:, 0].isnan(), -1, shares.nan_to_num().argmax(1)).cpu()
    elif labels is not None:
        strata = labels.cpu()
    elif weights is not None:
        strata = torch.zeros(len(weights), dtype=torch.int64)
    else:
        raise ValueError("hold_outs needs labels, shares or weights to know the number of samples.")
    return strata if weights is None else torch.where(weights.cpu() > 0, strata, -1)


def sample_of(source: Source, generator: torch.Generator, most: int | None, cv: object = None) -> tuple[Block, object]:
    """Draw at most `most` samples of a source uniformly, and return them with their splits.

    Of `Grouped` splits whole groups are drawn. There are no weights if all are one.
    """
    seed, grouped = int(torch.randint(2**62, (), generator=generator)), cv if isinstance(cv, Grouped) else None
    rows, labels, shares, weights = source.total(
        partial(_sample_part, seed, most or 2**62 if grouped is None else 2**62)
    ).columns
    assert rows is not None
    assert weights is not None
    sample = Block(rows, labels, shares, weights)
    if grouped is not None and most is not None and len(rows) > most:
        chosen = grouped.whole(most, generator)
        sample, cv = sample.each(lambda part: part[chosen.to(part.device)]), grouped.of(chosen)
    assert sample.weights is not None
    return replace(sample, weights=None) if bool((sample.weights == 1).all()) else sample, cv


def draw_rows(n_rows: int, most: int, generator: torch.Generator) -> Tensor:
    """Draw at most `most` of the rows: a mask (n,)."""
    chosen = torch.zeros(n_rows, dtype=torch.bool)
    chosen[torch.randperm(n_rows, generator=generator)[:most]] = True
    return chosen


def _sample_part(seed: int, most: int, source: Source) -> RowSample:
    sample: RowSample | None = None
    for block in source.blocks():
        keys = uniform_keys(seed, block.start, len(block.rows), block.rows.device)
        weights = torch.ones_like(keys) if block.weights is None else block.weights
        own = largest((block.rows, block.labels, block.shares, weights), keys, most)
        sample = own if sample is None else sample + own
    assert sample is not None
    return sample


def check_splits(cv: object) -> object:
    """Check the argument `cv` of an estimator: an int of at least 2, a splitter, or an iterable of splits."""
    if isinstance(cv, Number | str) or cv is None:
        return checks.count("cv", cv, 2)
    if isinstance(cv, Iterator):
        raise ValueError(f"cv is a {type(cv).__name__}, which can be iterated only once; pass a list of splits.")
    return cv if isinstance(cv, Iterable) else check_cv(cast("int", cv))  # or a splitter


def renumbered(cv: object, present: Tensor) -> object:
    """Translate splits by indices of all samples to a source that holds only the samples `present`, (n,)."""
    if isinstance(cv, Grouped):
        return replace(cv.of(present), cv=renumbered(cv.cv, present))
    if not isinstance(cv, list | tuple) or bool(present.all()):
        return cv
    is_present = present.cpu().numpy()
    numbers = np.cumsum(is_present) - 1
    splits = [[positions_of(part, len(is_present)) for part in split] for split in _pairs(cv)]
    return [tuple(numbers[part[is_present[part]]] for part in split) for split in splits]


def positions_of(part: object, n_samples: int) -> np.ndarray:
    """The positions of samples given by numbers or by a mask."""
    values = np.asarray(part)
    if values.dtype == bool and values.shape == (n_samples,):
        return np.flatnonzero(values)
    whole = values.ndim == 1 and (values.dtype.kind in "iu" or not values.size)
    if not whole or (values.size and not (-n_samples <= values.min() and values.max() < n_samples)):
        raise ValueError(
            f"A split of cv must be two arrays of sample indices below {n_samples}, or two masks of that length; got "
            f"{part!r}."
        )
    return values.astype(np.int64)


def _pairs(splits: Iterable[object]) -> Iterator[tuple[object, object]]:
    for split in splits:
        if not isinstance(split, list | tuple | np.ndarray) or len(split) != 2:
            raise ValueError(f"cv must hold pairs of index arrays, (training, held out); got {split!r}.")
        yield split[0], split[1]


def _folds(strata: Tensor, n_folds: int, generator: torch.Generator, every: bool) -> list[tuple[Tensor, Tensor]]:
    numbers, first = torch.full_like(strata, -1), 0
    for stratum in strata[strata >= 0].unique().tolist():
        own = (strata == stratum).nonzero()[:, 0]
        if len(own) > 1:
            order = torch.randperm(len(own), generator=generator)
            # Each class continues with the fold after the last one of the previous class, so that folds have equal
            # sizes.
            numbers[own[order]] = (torch.arange(len(own)) + first) % n_folds
            first += len(own)
    enough = n_folds if every else math.ceil(ENOUGH_SAMPLES * n_folds / max(1, int((strata >= 0).sum())))
    n_parts = min(n_folds, enough)
    return [(numbers != part, numbers == part) for part in range(n_parts)]


def _grouped(strata: Tensor, cv: Grouped, generator: torch.Generator, every: bool) -> list[tuple[Tensor, Tensor]]:
    """Parts that do not divide groups, stratified by class as far as groups allow, for training sets of all classes.

    Unlabeled samples of a group that is held out are in neither part.
    """
    known = (strata >= 0).nonzero()[:, 0]
    labels, groups, seed = strata[known], cv.groups[known], int(torch.randint(2**31 - 1, (), generator=generator))
    if isinstance(cv.cv, Real):
        wanted = int(cv.cv) if isinstance(cv.cv, Integral) else round(1 / float(cv.cv))
        n_folds = min(wanted, len(groups.unique()), int(labels.bincount().max()))
        if n_folds < 2:
            return []
        if n_folds < wanted and isinstance(cv.cv, Integral):
            checks.warn(
                f"{len(groups.unique())} groups cannot be divided into {wanted} folds; {n_folds} folds are used.",
                UserWarning,
            )
        splitter = StratifiedGroupKFold(n_folds, shuffle=True, random_state=seed)
        enough = n_folds if every else math.ceil(ENOUGH_SAMPLES * n_folds / len(known))
        n_parts = min(n_folds, enough) if isinstance(cv.cv, Integral) else 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of classes with fewer samples than folds
            pairs = splitter.split(np.zeros((len(known), 1)), labels.numpy(), groups.numpy())
            parts = [torch.from_numpy(part) for _, part in pairs][:n_parts]
        held_out = [torch.zeros(len(strata), dtype=torch.bool).index_fill(0, known[part], True) for part in parts]
        pairs = [(~torch.isin(cv.groups, cv.groups[part]), part) for part in held_out]
    else:
        pairs = _given(strata, cv.cv, cv.groups)
        divided = [torch.isin(cv.groups[kept], cv.groups[part]) for kept, part in pairs]
        if any(bool(part.any()) for part in divided):
            raise ValueError(
                "cv divides a group: some of its samples are held out, others are for training. Pass a number."
            )
    classes = labels.unique()
    return [(kept, part) for kept, part in pairs if len(strata[kept & (strata >= 0)].unique()) == len(classes)]


def _fraction(strata: Tensor, fraction: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    held_out = torch.zeros(len(strata), dtype=torch.bool)
    for stratum in strata[strata >= 0].unique().tolist():
        own = (strata == stratum).nonzero()[:, 0]
        order = torch.randperm(len(own), generator=generator)
        held_out[own[order[: int(fraction * len(own))]]] = True
    return ~held_out, held_out


def _given(strata: Tensor, cv: object, groups: Tensor | None = None) -> list[tuple[Tensor, Tensor]]:
    if isinstance(cv, Iterable):
        splits = cv
    else:  # a splitter divides the labeled samples
        known, splitter = (strata >= 0).nonzero()[:, 0].numpy(), cast("BaseCrossValidator", cv)
        try:
            known_groups = None if groups is None else groups.numpy()[known]
            pairs = list(splitter.split(np.zeros((len(known), 1)), strata.numpy()[known], known_groups))
        except ValueError as error:
            raise ValueError(f"cv={cv!r} cannot split the samples: {error} Pass a number of folds.") from error
        splits = ((known[kept], known[part]) for kept, part in pairs)
    parts = []
    for kept, part in _pairs(splits):
        held_out = torch.zeros(len(strata), dtype=torch.bool)
        held_out[torch.from_numpy(positions_of(part, len(strata)))] = True
        held_out &= strata >= 0
        trained = torch.zeros(len(strata), dtype=torch.bool)
        trained[torch.from_numpy(positions_of(kept, len(strata)))] = True
        away = held_out if groups is None else torch.isin(groups, groups[held_out])
        parts.append((trained | ((strata < 0) & ~away), held_out))
    return parts
