"""Parts of a pass: rows cut into chunks that fit the cache and the memory limit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.engine.evaluator import Chunk, Evaluator
from mixtura.engine.sources import Block, Group
from mixtura.model.mixture import Mixture
from mixtura.values.targets import Targets

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
# Where only scores are wanted, calls other than products meet so many rows at a time: with 50 features in single
# precision predict_proba takes 0.9 of the time that it takes with those of one product.
SCORED_ROWS = 8 * FEWEST_ROWS


@dataclass(frozen=True)
class Piece:
    """A part of a group of a block: a chunk that is not read yet."""

    block: Block
    group: Group
    part: slice
    components: slice
    product_rows: int

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
        return Chunk(rows.to(dtype), index, self.components, self.group.missing, self.product_rows)

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
    block: Block,
    group: Group,
    evaluator: Evaluator,
    memory_limit: int,
    n_threads: int,
    scored_in: torch.dtype | None = None,
) -> list[Piece]:
    """A group of rows of a block, cut into equal parts, so that the scratch of all threads stays within the limit.

    Arguments:
        scored_in: the precision, if only scores are wanted.
    """
    mixture = evaluator.mixture
    own = mixture.class_slices[group.label] if group.label is not None and group.label >= 0 else None
    components = slice(0, mixture.n_components) if own is None else own
    scratch = 8 * evaluator.scratch(components, group)
    most = max(1, memory_limit // n_threads // scratch)
    at_once, n_products = most, 1
    if block.rows.device.type == "cpu":
        at_once = min(most, _rows_in_cache(evaluator, group, scratch, scored_in))
        if scored_in is not None and not group.missing and not evaluator.exact:
            n_products = max(1, min(most, SCORED_ROWS) // at_once)
    shared = n_threads if group.n_rows * scratch > CACHE_BYTES // 8 else 1  # enough work for every thread
    at_once, size = _evened(group.n_rows, at_once, n_products, shared)
    return [
        Piece(block, group, slice(start, min(start + size, group.n_rows)), components, at_once)
        for start in range(0, group.n_rows, size)
    ]


def _rows_in_cache(evaluator: Evaluator, group: Group, scratch: int, scored_in: torch.dtype | None) -> int:
    """Rows that are worth a call and whose scratch, so many bytes each, stays near a core if that can be."""
    if group.missing:
        tables = evaluator.has_marginals  # made anew for every chunk
        return max(2 * CACHE_BYTES // scratch, FEWEST_ROWS * (4 if tables else 1))
    per_number = 8 if scored_in is None else scored_in.itemsize
    monomials = MONOMIAL_BYTES // (per_number * evaluator.product.n_monomials)
    return max(min(CACHE_BYTES // scratch, monomials), FEWEST_ROWS * 8 // per_number)


def _evened(n_rows: int, at_once: int, n_products: int, n_threads: int) -> tuple[int, int]:
    """Rows of a product, at most so many at once, and of a piece, at most so many products: all pieces but the last
    have the same size, and every thread gets as many of them, up to the rounding to tiles.
    """
    if at_once > TILE:
        at_once -= (at_once - TILE) % (2 * TILE)
    n_pieces = -(-n_rows // (at_once * n_products * n_threads)) * n_threads
    size = -(-n_rows // max(1, n_pieces))
    n_products = max(1, -(-size // at_once))
    even = max(1, -(-size // n_products))
    if even > TILE:
        even += (TILE - even) % (2 * TILE)
    return even, even * n_products
