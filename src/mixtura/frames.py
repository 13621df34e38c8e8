"""Where rows lie: from that the passes know how far their numbers can be trusted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.ends import ends_of, nowhere, outermost
from mixtura.shards import Source


@dataclass(frozen=True)
class Frame:
    """Where the rows lie: a centre (D,), and the largest distance from it in every feature, (D,)."""

    centre: Tensor
    radii: Tensor


def locate(source: Source) -> Frame:
    """Centre and radii of the observed cells, from their smallest and largest values."""
    ends = source.ends
    if ends is None:
        parts = (ends_of(block.rows) for block in source.blocks())
        ends = outermost(parts, nowhere(source.n_features, source.device))
    return framed(ends.low.to(source.device), ends.high.to(source.device))


def framed(smallest: Tensor, largest: Tensor) -> Frame:
    """The frame of rows between these values; the centre is exact in single precision: nothing is lost there."""
    empty = smallest > largest  # a column without an observed cell
    smallest, largest = torch.where(empty, 0.0, smallest).double(), torch.where(empty, 0.0, largest).double()
    middle = 0.5 * smallest + 0.5 * largest
    rounded = middle.float().double()
    centre = torch.where(rounded.isfinite(), rounded, middle)  # beyond the range of single precision
    return Frame(centre, torch.maximum(largest - centre, centre - smallest))
