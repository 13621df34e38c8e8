"""Uniform samples of rows, independent of the division of the rows into blocks and of their storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Multipliers and shifts of splitmix64 (Steele, Lea and Flood 2014), as signed numbers of 64 bits.
STEP = 0x9E3779B97F4A7C15 - 2**64
ROUNDS = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))


def uniform_keys(seed: int, start: int, n_rows: int, device: torch.device) -> Tensor:
    """Random numbers in [0, 1) for positions: (n,), in double precision.

    The generator is counter-based: the number of a row depends on its position and the seed only.
    """
    numbers = torch.arange(start, start + n_rows, dtype=torch.int64, device=device) * STEP + seed
    for shift, factor in ROUNDS:
        numbers = (numbers ^ _shifted(numbers, shift)) * factor
    numbers = numbers ^ _shifted(numbers, 31)
    return _shifted(numbers, 11).double() * 2.0**-53


def _shifted(numbers: Tensor, shift: int) -> Tensor:
    """Shift to the right, filling with zeros."""
    return (numbers >> shift) & ((1 << (64 - shift)) - 1)


@dataclass(frozen=True)
class RowSample:
    """The rows with the largest keys, at most `size` of each group, in the order of the rows.

    Samples of different rows add. `columns` holds the rows, labels and weights, each (n, ...), or None in all samples
    that are added.
    """

    columns: tuple[Tensor | None, ...]
    keys: Tensor  # (n,)
    size: int
    groups: Tensor | None = None  # (n,); None: all rows are one group

    def __len__(self) -> int:
        return len(self.keys)

    def __add__(self, other: RowSample) -> RowSample:
        return joined_samples((self, other))

    @property
    def threshold(self) -> float:
        """Rows with keys below it are not in the sample, of one group."""
        return float(self.keys.min()) if len(self.keys) == self.size else 0.0

    def thresholds(self, n_groups: int) -> Tensor:
        """The same of every group, (G,)."""
        assert self.groups is not None
        lowest = self.keys.new_ones(n_groups).scatter_reduce_(0, self.groups, self.keys, "amin")
        return torch.where(self.groups.bincount(minlength=n_groups) == self.size, lowest, 0.0)


def joined_samples(samples: Sequence[RowSample]) -> RowSample:
    """The sample of all rows of samples of different rows, in order."""
    columns = tuple(_joined([sample.columns[i] for sample in samples]) for i in range(len(samples[0].columns)))
    keys, groups = _joined([sample.keys for sample in samples]), _joined([sample.groups for sample in samples])
    assert keys is not None
    return largest(columns, keys, samples[0].size, groups)


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if len(present) == len(parts) else None


def largest(columns: Sequence[Tensor | None], keys: Tensor, size: int, groups: Tensor | None = None) -> RowSample:
    """The sample of rows with these keys."""
    if len(keys) <= size:
        return RowSample(tuple(columns), keys, size, groups)
    if groups is None:
        kept = keys.topk(size).indices.sort().values
    else:
        counts = groups.bincount()
        if int(counts.max()) <= size:
            return RowSample(tuple(columns), keys, size, groups)
        order = keys.argsort(descending=True)
        order = order[groups[order].argsort(stable=True)]
        firsts = counts.cumsum(0) - counts
        ranks = torch.arange(len(keys), device=keys.device) - firsts[groups[order]]
        kept = order[ranks < size].sort().values
        groups = groups[kept]
    return RowSample(tuple(None if part is None else part[kept] for part in columns), keys[kept], size, groups)
