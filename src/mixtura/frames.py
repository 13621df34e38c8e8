"""Where rows lie: from that the passes know how far their numbers can be trusted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.shards import Source
from mixtura.workers import Workers, threads_on

STRETCH = 2**20  # numbers that a thread compares at a time, in the last cache: there are two passes over them
N_PARTS = 8

Ends = tuple[Tensor, Tensor]  # smallest and largest values, (D,) each


@dataclass(frozen=True)
class Frame:
    """Where the rows lie: a centre (D,), and the largest distance from it in every feature, (D,)."""

    centre: Tensor
    radii: Tensor


@dataclass(frozen=True)
class Stretch:
    """Rows that follow each other."""

    rows: Tensor

    @property
    def work(self) -> int:
        return self.rows.numel()


def locate(source: Source) -> Frame:
    """Centre and radii of the observed cells, from their smallest and largest values."""
    n_threads = threads_on(source.device)
    found: list[list[Ends]] = [[] for _ in range(n_threads)]
    with Workers(n_threads) as workers:
        for block in source.blocks():
            size = max(1, STRETCH // source.n_features) if block.rows.device.type == "cpu" else len(block.rows)
            stretches = [Stretch(rows) for rows in block.rows.split(max(1, size)) if len(rows)]
            workers.share_out(stretches, lambda stretch, own: own.append(extremes(stretch.rows)), found)
            found = [[outermost(own)] if own else [] for own in found]
    ends = [pair for own in found for pair in own]
    if not ends:
        zeros = torch.zeros(source.n_features, dtype=torch.float64, device=source.device)
        return Frame(zeros, zeros)
    return framed(*outermost(ends))


def outermost(ends: list[Ends]) -> Ends:
    lows, highs = zip(*ends, strict=True)
    return torch.stack(lows).amin(0), torch.stack(highs).amax(0)


def framed(smallest: Tensor, largest: Tensor) -> Frame:
    """The frame of rows between these values; the centre is exact in single precision: nothing is lost there."""
    empty = smallest > largest  # a column without an observed cell
    smallest, largest = torch.where(empty, 0.0, smallest).double(), torch.where(empty, 0.0, largest).double()
    middle = 0.5 * smallest + 0.5 * largest
    rounded = middle.float().double()
    centre = torch.where(rounded.isfinite(), rounded, middle)  # beyond the range of single precision
    return Frame(centre, torch.maximum(largest - centre, centre - smallest))


def extremes(rows: Tensor) -> Ends:
    """Smallest and largest observed value of every column; inf and -inf where there is none."""
    low, high = _reduced(rows, Tensor.amin), _reduced(rows, Tensor.amax)
    if bool((low + high).isnan().any()):
        missing = rows.isnan()
        low, high = rows.masked_fill(missing, torch.inf).amin(0), rows.masked_fill(missing, -torch.inf).amax(0)
    return low, high


def _reduced(rows: Tensor, reduce: Callable[[Tensor, int], Tensor]) -> Tensor:
    """reduce(rows, 0), eight long parts against each other at a time: row by row, narrow ones leave most of a vector
    register idle, and wide ones take four times as long.
    """
    ends = []
    while rows.is_contiguous() and len(rows) >= 8 * N_PARTS:
        length = len(rows) - len(rows) % N_PARTS
        ends.append(rows[length:])
        rows = reduce(rows[:length].view(N_PARTS, -1), 0).view(-1, rows.shape[1])
    return reduce(torch.cat([rows, *ends]) if ends else rows, 0)
