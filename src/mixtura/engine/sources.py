"""Sources of rows: tensors, arrays, memory maps, re-iterables of batches. All of them yield blocks.

Sums over all rows are computed by `Source.total`, which adds the results of all places where rows are stored. Rows in
one process are one place; those of engine/distributed.py are in several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from mixtura import checks
from mixtura.engine.threads import prefetched
from mixtura.engine.tuning import STREAMED_BYTES
from mixtura.model.transforms import Transform
from mixtura.values.extents import Extents, Frame, extents_of, framed, no_extents


@dataclass(frozen=True)
class Group:
    """Rows of a block that are processed together: one label (None: mixed), with or without missing values."""

    label: int | None
    missing: bool
    index: Tensor | None  # None: all rows of the block, in order
    n_rows: int
    largest_side: int = 0  # maximum over rows of the smaller of the numbers of missing and observed values


@dataclass
class Block:
    """Rows that are in memory together, with their labels and weights."""

    rows: Tensor
    labels: Tensor | None = None  # (n,), -1 for unlabeled
    shares: Tensor | None = None  # (n, C) soft labels
    weights: Tensor | None = None  # (n,)
    start: int = 0  # position of the first row among all rows of the source
    counts: Tensor | None = None  # (n, B), counts of each row in the training sets of B mixtures
    complete: bool = False  # whether no value is known to be missing
    _groups: dict[bool, list[Group]] = field(default_factory=dict, repr=False)

    def each(self, change: Callable[[Tensor], Tensor]) -> Block:
        """Change every tensor of the block."""
        parts = (self.rows, self.labels, self.shares, self.weights, self.counts)
        rows, labels, shares, weights, counts = (None if part is None else change(part) for part in parts)
        assert rows is not None
        return Block(rows, labels, shares, weights, self.start, counts, self.complete)

    def part(self, chosen: Tensor | slice) -> Block:
        """Some of the rows, by a mask, positions, or a slice."""
        return self.each(lambda part: part[chosen])

    @cached_property
    def _n_missing(self) -> Tensor | None:
        """Missing values per row, or None if there are none."""
        if self.complete:
            return None
        if not bool(self.rows.sum().isnan()):  # a cheap test; after a false alarm by inf - inf the exact test follows
            return None
        counts = self.rows.isnan().sum(1)
        return counts if bool(counts.any()) else None

    def groups(self, by_label: bool) -> list[Group]:
        """Group rows with and without missing values, and by label if requested."""
        if by_label not in self._groups:
            self._groups[by_label] = self._grouped(self.labels if by_label else None)
        return self._groups[by_label]

    def _grouped(self, labels: Tensor | None) -> list[Group]:
        counts, n_rows = self._n_missing, len(self.rows)
        if counts is None and labels is None:
            return [Group(None, False, None, n_rows)]
        key = torch.zeros(n_rows, dtype=torch.int64, device=self.rows.device)
        width = 1
        if counts is not None:  # sorted by number of missing values, so that a chunk has few different numbers
            key, width = counts, self.rows.shape[1] + 1
        if labels is not None:
            key = key + (labels + 1) * width
        order = self._by_pattern()
        order = order[key[order].argsort(stable=True)]
        parts = key[order]
        groups: dict[tuple[int | None, bool], list[tuple[int, Tensor]]] = {}
        values, sizes = parts.unique_consecutive(return_counts=True)
        for value, index in zip(values.tolist(), order.split(sizes.tolist()), strict=True):
            label = None if labels is None else value // width - 1
            n_missing = value % width
            groups.setdefault((label, n_missing > 0), []).append((min(n_missing, width - 1 - n_missing), index))
        return [_group(label, missing, parts) for (label, missing), parts in groups.items()]

    def _by_pattern(self) -> Tensor:
        """An order in which rows with the same missing values are adjacent, so that they can share their algebra."""
        if self._n_missing is None:
            return torch.arange(len(self.rows), device=self.rows.device)
        # Any hash with few collisions suffices: neighbours are compared exactly later.
        generator = torch.Generator().manual_seed(0)
        codes = torch.randint(2**62, (self.rows.shape[1],), generator=generator).to(self.rows.device)
        return torch.where(self.rows.isnan(), codes, 0).sum(1).argsort(stable=True)


def _group(label: int | None, missing: bool, parts: list[tuple[int, Tensor]]) -> Group:
    index = torch.cat([index for _, index in parts])
    return Group(label, missing, index, len(index), max(side for side, _ in parts))


def present(block: Block) -> Block:
    """The block without rows of weight zero, which must not affect a fit, its initialisation or its frame."""
    if block.weights is None or bool((block.weights > 0).all()):
        return block
    return block.part((block.weights > 0).nonzero()[:, 0])


T = TypeVar("T")


class Source:
    """Rows that can be iterated over repeatedly, in one place or in several."""

    n_features: int
    n_rows: int | None  # None if it is unknown before all rows are read
    extents: Extents | None = None  # of all rows, or bounds of them, if known
    device: torch.device
    dtype: torch.dtype
    is_local = True  # whether all rows are in this process, as they are

    def blocks(self) -> Iterator[Block]:
        """All rows, in order, in this process."""
        raise NotImplementedError

    def total(self, compute: Callable[[Source], T]) -> T:
        """The sum, in a fixed order, of compute(part) over the places where rows are stored.

        `compute` is called where the rows are, so that only its results are transferred. They must support `+`.
        """
        return compute(self)


def _complete(extents: Extents | None) -> bool:
    return extents is not None and extents.complete


class BlockSource(Source):
    """Rows in memory, on any device: one block, grouped once."""

    def __init__(self, block: Block, extents: Extents | None = None):
        self.n_rows, self.n_features = block.rows.shape
        self.device, self.dtype = block.rows.device, block.rows.dtype
        self.extents, self._block = extents, block

    def blocks(self) -> Iterator[Block]:
        return iter((self._block,))


class TensorSource(BlockSource):
    """The same, from tensors."""

    def __init__(
        self,
        rows: Tensor,
        labels: Tensor | None = None,
        shares: Tensor | None = None,
        weights: Tensor | None = None,
        counts: Tensor | None = None,
        *,
        extents: Extents | None = None,
    ):
        super().__init__(Block(rows, labels, shares, weights, 0, counts, _complete(extents)), extents)


class ArraySource(Source):
    """Rows in a memory-mapped array, read block by block; rows of weight zero are skipped."""

    def __init__(
        self,
        rows: np.ndarray,
        labels: Tensor | None = None,
        shares: Tensor | None = None,
        weights: Tensor | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        counts: Tensor | None = None,
        *,
        extents: Extents | None = None,
    ):
        self.n_rows, self.n_features = rows.shape
        self.extents = extents
        self.device = torch.device(device)
        self.dtype = dtype or (torch.float32 if rows.dtype in (np.float32, np.float16) else torch.float64)
        self._rows, self._known = rows, (labels, shares, weights, counts)
        self._path = _path_of(rows)
        self._state = _state_of(self._path)

    def blocks(self) -> Iterator[Block]:
        return prefetched(self._read())

    def _check_state(self) -> None:
        """Check that no other program has written to the file; a file that was replaced stays in memory as it was."""
        state = _state_of(self._path)
        if state is not None and self._state is not None and state != self._state and state[0] == self._state[0]:
            raise checks.changed_file(str(self._path))

    def _read(self) -> Iterator[Block]:
        self._check_state()
        step = streamed_rows(self.n_features)
        native = np.float32 if self.dtype == torch.float32 else np.float64  # a file may have another byte order
        n_seen = 0
        for start in range(0, len(self._rows), step):
            part = slice(start, start + step)
            rows = torch.from_numpy(np.array(self._rows[part], dtype=native))
            labels, shares, weights, counts = (None if t is None else t[part] for t in self._known)
            block = present(Block(rows, labels, shares, weights, n_seen, counts, _complete(self.extents)))
            n_seen += len(block.rows)
            yield moved(block, self.device)
        self._check_state()


def _path_of(rows: object) -> Path | None:
    """The file of an array that is a memory map opened for reading, or a view of one."""
    while rows is not None and not isinstance(rows, np.memmap):
        rows = rows.base if isinstance(rows, np.ndarray) else None
    return Path(rows.filename) if rows is not None and rows.filename is not None and rows.mode in ("r", "c") else None


def _state_of(path: Path | None) -> tuple[int, int, int] | None:
    """Number, size and time of the last change of a file; None if there is no such file."""
    if path is None or not path.exists():
        return None
    info = path.stat()
    return info.st_ino, info.st_size, info.st_mtime_ns


class BatchSource(Source):
    """Rows from a re-iterable of batches, each turned into a block by `read`.

    Batches are prefetched, and small ones are joined, since small blocks leave threads idle.

    `start` is the position of the first row if the batches are a part of a larger source.
    """

    def __init__(
        self,
        batches: Iterable[T],
        read: Callable[[T], Block],
        n_features: int,
        device: torch.device,
        dtype: torch.dtype,
        start: int = 0,
    ):
        self.n_rows, self.n_features, self.device, self.dtype = None, n_features, device, dtype
        self._batches, self._read, self.start = batches, read, start

    def blocks(self) -> Iterator[Block]:
        n_rows = 0
        for block in prefetched(self._joined()):
            yield block
            n_rows += len(block.rows)
        if self.n_rows is not None and n_rows != self.n_rows:
            raise checks.other_number_of_rows(self.n_rows, n_rows)
        self.n_rows = n_rows

    def _joined(self) -> Iterator[Block]:
        wanted, held, start = streamed_rows(self.n_features), [], self.start
        for batch in self._batches:
            held.append(self._read(batch))
            if sum(len(block.rows) for block in held) >= wanted:
                yield self._placed(held, start)
                start, held = start + sum(len(block.rows) for block in held), []
        if held:
            yield self._placed(held, start)

    def _placed(self, blocks: list[Block], start: int) -> Block:
        return replace(moved(joined(blocks), self.device), start=start, _groups={})


def streamed_rows(n_features: int) -> int:
    """Rows per block of a source that is read in parts."""
    return max(1, STREAMED_BYTES // (8 * n_features))


def joined(blocks: list[Block]) -> Block:
    """Join blocks; blocks without weights get weights of 1 if others have weights."""
    blocks = [block for block in blocks if len(block.rows)] or blocks[:1]
    if len(blocks) == 1:
        return blocks[0]
    weights = None
    if any(block.weights is not None for block in blocks):
        ones = (torch.ones_like(block.rows[:, 0], dtype=torch.float64) for block in blocks)
        weights = torch.cat([one if b.weights is None else b.weights for b, one in zip(blocks, ones, strict=True)])
    labels, shares, counts = (
        None if parts[0] is None else torch.cat([part for part in parts if part is not None])
        for parts in zip(*((block.labels, block.shares, block.counts) for block in blocks), strict=True)
    )
    rows = torch.cat([block.rows for block in blocks])
    complete = all(block.complete for block in blocks)
    return Block(rows, labels, shares, weights, blocks[0].start, counts, complete)


def moved(block: Block, device: torch.device) -> Block:
    """Move a block to a device."""
    return block if block.rows.device == device else block.each(lambda part: _copied(part, device))


def _copied(part: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device; to a GPU from pinned memory on a separate stream, in parallel with computation."""
    if device.type != "cuda" or part.device.type != "cpu":
        return part.to(device)
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        copied = part.pin_memory().to(device, non_blocking=True)
    stream.synchronize()
    copied.record_stream(torch.cuda.default_stream(device))  # not to be overwritten while kernels read it
    return copied


def warped(source: Source, warp: Transform) -> Source:
    """The same rows, with their features transformed."""
    if not isinstance(source, BlockSource):
        return WarpedSource(source, warp)
    (block,) = source.blocks()
    return BlockSource(replace(block, rows=warp.forward(block.rows), _groups={}))


class WarpedSource(Source):
    """A source with transformed features, transformed block by block."""

    is_local = False

    def __init__(self, source: Source, warp: Transform):
        self.n_features, self.n_rows = warp.n_outputs, source.n_rows
        self.device, self.dtype = source.device, source.dtype
        self._source, self._warp = source, warp

    def blocks(self) -> Iterator[Block]:
        for block in self._source.blocks():
            yield replace(block, rows=self._warp.forward(block.rows), _groups={})

    def total(self, compute: Callable[[Source], T]) -> T:
        warp = self._warp

        def transformed(part: Source) -> T:
            return compute(warped(part, warp))

        return self._source.total(transformed)


def locate(source: Source) -> Frame:
    """Centre and radii of the observed values, from their smallest and largest values."""
    extents = source.extents or source.total(_extents)
    return framed(extents.low.to(source.device), extents.high.to(source.device))


def _extents(source: Source) -> Extents:
    parts = (extents_of(block.rows) for block in source.blocks())
    return sum(parts, no_extents(source.n_features, torch.device("cpu")))
