"""Smallest and largest values of rows, computed together with a check for missing and infinite values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# Numbers compared with as many others in one operation. Single rows are too short for vector registers, or too long for
# the first-level cache. One thread takes half of the time of torch with two threads.
LINE = 2**10
STRETCH = 2**17  # numbers that fit the cache and are read twice, for the minimum and the maximum


@dataclass(frozen=True)
class Extents:
    """Smallest and largest observed values of every feature, (D,), in double precision; inf and -inf without values.

    `extents_of` returns them on the host, wherever the rows are.
    """

    low: Tensor
    high: Tensor
    complete: bool  # whether no value is missing

    def __add__(self, other: Extents) -> Extents:
        """Extents of the rows of both."""
        low, high = torch.minimum(self.low, other.low), torch.maximum(self.high, other.high)
        return Extents(low, high, self.complete and other.complete)

    def to(self, device: torch.device) -> Extents:
        return Extents(self.low.to(device), self.high.to(device), self.complete)

    def within(self, dtype: torch.dtype) -> bool:
        """Whether all values are finite in this type."""
        largest = torch.finfo(dtype).max
        return bool((self.low >= -largest).all()) and bool((self.high <= largest).all())


def extents_of(rows: Tensor | np.ndarray) -> Extents:
    """Compute the extents of rows (n, D); NaN is a missing value."""
    if isinstance(rows, np.ndarray):
        return _extents_of_array(rows)
    if rows.device.type == "cpu":
        return _extents_of_array(rows.numpy())
    if not len(rows):
        return no_extents(rows.shape[1], torch.device("cpu"))
    low, high = torch.stack(torch.aminmax(rows, dim=0)).cpu()
    complete = not bool(low.isnan().any())
    if not complete:
        missing = rows.isnan()
        low, high = rows.masked_fill(missing, torch.inf).amin(0), rows.masked_fill(missing, -torch.inf).amax(0)
        low, high = torch.stack((low, high)).cpu()
    return Extents(low.double(), high.double(), complete)


def no_extents(size: int, device: torch.device) -> Extents:
    """The extents of zero rows."""
    infinite = torch.full((size,), torch.inf, dtype=torch.float64, device=device)
    return Extents(infinite, -infinite, True)


def _extents_of_array(rows: np.ndarray) -> Extents:
    low, high = _reduced(rows, np.minimum, np.maximum)
    complete = not np.isnan(low).any()
    if not complete:
        low, high = _reduced(rows, np.fmin, np.fmax)
    return Extents(torch.from_numpy(low.astype(float)), torch.from_numpy(high.astype(float)), complete)


def _reduced(rows: np.ndarray, smaller: np.ufunc, larger: np.ufunc) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest value of every column, comparing several rows at a time."""
    n_rows, size = rows.shape
    together = max(1, LINE // size) if rows.flags.c_contiguous else 1
    even = n_rows - n_rows % together
    lines = rows[:even].reshape(-1, together * size)
    step = max(1, STRETCH // (together * size))
    low, high = np.full(together * size, np.inf), np.full(together * size, -np.inf)
    with np.errstate(invalid="ignore"):
        for start in range(0, len(lines), step):
            stretch = lines[start : start + step]
            smaller(low, smaller.reduce(stretch, 0), out=low)
            larger(high, larger.reduce(stretch, 0), out=high)
        lows, highs = (np.concatenate((part.reshape(together, size), rows[even:])) for part in (low, high))
        return smaller.reduce(lows, 0), larger.reduce(highs, 0)


@dataclass(frozen=True)
class Frame:
    """The region of the rows: a centre (D,), and the largest distance from it in every feature, (D,)."""

    centre: Tensor
    radii: Tensor

    def to(self, device: torch.device | str) -> Frame:
        """The same frame on a device; copies are kept, since every pass of a fit asks for them."""
        if self.centre.device == torch.device(device):
            return self
        copies = self.__dict__.setdefault("_copies", {})
        if str(device) not in copies:
            copies[str(device)] = Frame(self.centre.to(device), self.radii.to(device))
        return copies[str(device)]

    def holds(self, extents: Extents | None) -> bool:
        """Whether all rows are known to lie inside."""
        if extents is None:
            return False
        low, high = (part.to(self.centre.device) - self.centre for part in (extents.low, extents.high))
        return bool(((low >= -self.radii) & (high <= self.radii)).all())


def framed(smallest: Tensor, largest: Tensor) -> Frame:
    """The frame of rows between these values; its centre is representable in single precision, if this is near it."""
    empty = smallest > largest  # a column without an observed value
    smallest, largest = torch.where(empty, 0.0, smallest).double(), torch.where(empty, 0.0, largest).double()
    middle = 0.5 * smallest + 0.5 * largest
    rounded = middle.float().double()
    near = (rounded - middle).abs() <= 1e-6 * middle.abs()  # not outside the range of single precision
    centre = torch.where(near, rounded, middle)
    return Frame(centre, torch.maximum(largest - centre, centre - smallest))
