"""Parts of a pass: rows cut into chunks that fit the cache and the memory limit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.engine.evaluator import Evaluator, LoadedChunk
from mixtura.engine.sources import Block, Group
from mixtura.engine.tuning import CACHE_BYTES, FEATURE_BYTES, FEWEST_ROWS
from mixtura.model.mixture import Mixture
from mixtura.values.targets import Targets


@dataclass(frozen=True)
class Chunk:
    """A part of a group of a block that is not read yet."""

    block: Block
    group: Group
    part: slice
    components: slice

    @property
    def work(self) -> float:
        n_components = self.components.stop - self.components.start
        return (self.part.stop - self.part.start) * n_components * float(self.block.rows.shape[1]) ** 2

    def load(self, dtype: torch.dtype) -> LoadedChunk:
        """Its rows in the precision of the computation."""
        rows, index = self.block.rows, self.part
        if self.group.index is None:
            rows = rows[index]
        else:
            index = self.group.index[index]
            rows = rows.index_select(0, index)
        return LoadedChunk(rows.to(dtype), index, self.components, self.group.missing)

    def targets(self, chunk: LoadedChunk, mixture: Mixture) -> Targets:
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
        )

    def weights(self, chunk: LoadedChunk) -> Tensor | None:
        weights = self.block.weights
        return None if weights is None else weights[chunk.index].to(chunk.rows.dtype)


def chunks_of(block: Block, by_label: bool, evaluator: Evaluator, memory_limit: int, n_threads: int) -> list[Chunk]:
    """The rows of a block in equal parts, so that the scratch of all threads stays within the limit."""
    mixture, found = evaluator.mixture, []
    for group in block.groups(by_label):
        own = mixture.class_slices[group.label] if group.label is not None and group.label >= 0 else None
        components = slice(0, mixture.n_components) if own is None else own
        scratch = 8 * evaluator.scratch(components, group)
        most = max(1, memory_limit // n_threads // scratch)
        if block.rows.device.type == "cpu":
            most = min(most, _rows_in_cache(evaluator, group, scratch))
        n_chunks = -(-group.n_rows // (most * n_threads)) * n_threads  # as many for every thread
        size = max(1, -(-group.n_rows // max(1, n_chunks)), min(most, FEWEST_ROWS))
        found += [
            Chunk(block, group, slice(start, min(start + size, group.n_rows)), components)
            for start in range(0, group.n_rows, size)
        ]
    return found


def _rows_in_cache(evaluator: Evaluator, group: Group, scratch: int) -> int:
    """Rows that are worth a call and whose scratch, so many bytes each, stays near a core if that can be."""
    if group.missing:
        tables = evaluator.has_marginals  # made anew for every chunk
        return max(2 * CACHE_BYTES // scratch, FEWEST_ROWS * (4 if tables else 1))
    return max(min(CACHE_BYTES // scratch, FEATURE_BYTES // (8 * evaluator.n_columns)), FEWEST_ROWS)
