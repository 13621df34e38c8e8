"""Splits into training and held-out samples, for model selection and early stopping."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Number, Real
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import check_cv
from torch import Tensor

from mixtura import checks
from mixtura.engine.sources import Source
from mixtura.values.row_samples import RowSample, largest, uniform_keys

# Held-out samples that suffice to compare candidates: further folds are not used.
ENOUGH_SAMPLES = 800


@dataclass(frozen=True)
class Split:
    """Boolean masks of the training and the held-out samples, (n,)."""

    kept: Tensor
    held_out: Tensor


def hold_outs(
    cv: Any,
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
        pairs of index arrays.
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
    if strata is None:
        raise ValueError("hold_outs needs labels, shares or weights to know the number of samples.")
    if isinstance(cv, Integral):
        parts = _folds(strata, int(cv), generator, every)
    elif isinstance(cv, Real):
        parts = [_fraction(strata, float(cv), generator)]
    else:
        parts = _given(strata, cv)
    device = next(part.device for part in (labels, shares, weights) if part is not None)
    splits = [Split(kept.to(device), held_out.to(device)) for kept, held_out in parts]
    return [part for part in splits if int(part.held_out.sum()) >= smallest]


def strata_of(labels: Tensor | None, shares: Tensor | None, weights: Tensor | None) -> Tensor | None:
    """The class of every sample that may be held out, -1 for the others, (n,)."""
    if shares is not None:
        strata = torch.where(shares[:, 0].isnan(), -1, shares.nan_to_num().argmax(1)).cpu()
    elif labels is not None:
        strata = labels.cpu()
    elif weights is not None:
        strata = torch.zeros(len(weights), dtype=torch.int64)
    else:
        return None
    return strata if weights is None else torch.where(weights.cpu() > 0, strata, -1)


def sample_of(
    source: Source, generator: torch.Generator, most: int | None
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return rows, labels, soft labels and weights of at most `most` samples of a source, drawn uniformly."""
    seed = int(torch.randint(2**62, (), generator=generator))
    rows, labels, shares, weights = source.total(partial(_sample_part, seed, most or 2**62)).columns
    assert rows is not None
    assert weights is not None
    return rows, labels, shares, None if bool((weights == 1).all()) else weights


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


def checked_cv(cv: Any) -> Any:
    """Check the argument `cv` of an estimator: an int of at least 2, a splitter, or an iterable of splits."""
    if isinstance(cv, Number | str) or cv is None:
        return checks.count("cv", cv, 2)
    if isinstance(cv, Iterator):
        raise ValueError(f"cv is a {type(cv).__name__}, which can be iterated only once; pass a list of splits.")
    return check_cv(cv) if not isinstance(cv, Iterable) else cv


def renumbered(cv: Any, present: Tensor) -> Any:
    """Translate splits by indices of all samples to a source that holds only the samples `present`, (n,)."""
    if not isinstance(cv, list | tuple) or bool(present.all()):
        return cv
    is_present = present.cpu().numpy()
    numbers = np.cumsum(is_present) - 1
    splits = [[positions_of(part, len(is_present)) for part in split] for split in _pairs(cv)]
    return [tuple(numbers[part[is_present[part]]] for part in split) for split in splits]


def positions_of(part: Any, n_samples: int) -> np.ndarray:
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


def _pairs(splits: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
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


def _fraction(strata: Tensor, fraction: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    held_out = torch.zeros(len(strata), dtype=torch.bool)
    for stratum in strata[strata >= 0].unique().tolist():
        own = (strata == stratum).nonzero()[:, 0]
        order = torch.randperm(len(own), generator=generator)
        held_out[own[order[: int(fraction * len(own))]]] = True
    return ~held_out, held_out


def _given(strata: Tensor, cv: Any) -> list[tuple[Tensor, Tensor]]:
    splits = cv
    if not isinstance(cv, Iterable):  # a splitter divides the labeled samples
        known = (strata >= 0).nonzero()[:, 0].numpy()
        try:
            pairs = list(cv.split(np.zeros((len(known), 1)), strata.numpy()[known]))
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
        parts.append((trained | ((strata < 0) & ~held_out), held_out))
    return parts
