"""Parts of a pass: rows cut into chunks that fit the cache and the memory limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.evaluator import Chunk, Evaluator
from mixtura.mixture import Mixture
from mixtura.roles import Targets
from mixtura.shards import Block, Group

# Scratch of one thread. Measured with 1 MB of second-level cache and two threads: 1 MB costs up to twice as much as 8
# (calls, not memory), 4 MB up to 8 % more.
CACHE_BYTES = 8 * 2**20
# The monomials among it: at 16 features and 32 components 4 MB of them take 1.2 times as long as 2, or as 1.
MONOMIAL_BYTES = 2 * 2**20
# Rows of a chunk come in an odd number of these. They fill the tiles of a product, and its features, an odd number of
# cache lines apart in memory, do not crowd into a few places of the cache: at 50 features and 20 components products of
# 384 rows take 1.3 times as long, row by row, as those of 408; at 16 and 32 those of 768 as those of 984.
TILE = 24
# Below this calls take too large a part of the time; wide rows may leave the cache for it, never the memory limit. At
# 50 features a pass with half of it takes 1.08 times as long, with twice as many rows 1.25 times. In single precision
# twice as many take as much memory.
FEWEST_ROWS = 17 * TILE


@dataclass(frozen=True)
class Piece:
    """A part of a group of a block: a chunk that is not read yet."""

    block: Block
    group: Group
    part: slice
    components: slice

    @property
    def work(self) -> int:
        """Operations, roughly."""
        n_components = self.components.stop - self.components.start
        return (self.part.stop - self.part.start) * n_components * self.block.rows.shape[1] ** 2

    def load(self, dtype: torch.dtype) -> Chunk:
        """The rows of this piece in the precision of the computation."""
        rows, index = self.block.rows, self.part
        if self.group.index is None:
            rows = rows[index]
        else:
            index = self.group.index[index]
            rows = rows.index_select(0, index)
        return Chunk(rows.to(dtype), index, self.components, self.group.missing)

    def targets(self, chunk: Chunk, mixture: Mixture, overwrite: bool) -> Targets:
        """What is known of the classes of its rows."""
        block, index = self.block, chunk.index
        # Rows grouped by label meet only their own components: among those nothing more is known of them.
        labels, shares = (block.labels, block.shares) if self.group.label is None else (None, None)
        return Targets(
            mixture.class_of[self.components],
            None if labels is None else labels[index],
            None if shares is None else shares[index],
            None if block.counts is None else block.counts[index],
            self.components,
            mixture.n_classes,
            overwrite,
        )

    def weights(self, chunk: Chunk) -> Tensor | None:
        weights = self.block.weights
        return None if weights is None else weights[chunk.index].to(chunk.rows.dtype)


def pieces(
    block: Block, evaluator: Evaluator, by_label: bool, memory_limit: int, n_threads: int, single: bool = False
) -> Iterator[Piece]:
    """The rows of a block, cut so that the scratch of all threads stays within the limit, also if there is one of
    single precision besides, in which the monomials are.
    """
    mixture = evaluator.mixture
    if single:
        memory_limit = memory_limit * 2 // 3
    for group in block.groups(by_label):
        own = mixture.class_slices[group.label] if group.label is not None and group.label >= 0 else None
        components = slice(0, mixture.n_components) if own is None else own
        scratch = 8 * evaluator.scratch(components, group)
        most = memory_limit // n_threads // scratch
        if block.rows.device.type == "cpu":
            in_cache = CACHE_BYTES * (2 if group.missing else 1) // scratch
            if not group.missing:
                in_cache = min(in_cache, MONOMIAL_BYTES // ((4 if single else 8) * evaluator.product.n_monomials))
            tables = group.missing and evaluator.has_marginals  # made anew for every chunk
            most = min(most, max(in_cache, FEWEST_ROWS * (4 if tables else 2 if single else 1)))
        size = max(1, most - (most - TILE) % (2 * TILE) if most > TILE else most)
        if group.n_rows * scratch > CACHE_BYTES // 8:  # enough work for every thread
            size = min(size, -(-group.n_rows // n_threads))
        for start in range(0, group.n_rows, size):
            yield Piece(block, group, slice(start, min(start + size, group.n_rows)), components)
