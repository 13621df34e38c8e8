"""The loops over rows: summaries for learning, scores and posteriors for predicting.

Rows come in blocks, are grouped (by missing values, and by label where only the components of the own class matter) and
cut into chunks that fit the cache. On the CPU threads take them, each running single-threaded operations. For sums each
thread has its fixed share, and they are added in a fixed order; for answers whoever is ready takes the next chunk.
Nothing of size rows x components outlives a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixtura.engine.buffers import Buffers
from mixtura.engine.chunks import Chunk, chunks_of
from mixtura.engine.evaluator import Evaluator, Sums, computing_dtype, frame_of
from mixtura.engine.sources import Block, Source
from mixtura.engine.threads import Workers, one_thread, threads_for
from mixtura.engine.tuning import DEFAULT_MEMORY_LIMIT
from mixtura.model.mixture import Mixture
from mixtura.roles import Objective
from mixtura.values.extents import Frame
from mixtura.values.moments import Summary
from mixtura.values.sparse_rows import row_slice


def summarise(
    mixture: Mixture,
    source: Source,
    objective: Objective,
    frame: Frame,
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
    buffers: Buffers | None = None,
) -> Summary:
    """Value and moments of an objective over all rows.

    Arguments:
        frame: where the rows lie; all of them are inside.
        buffers: to use again from pass to pass, for the first thread.
    """
    evaluator = prepared(mixture, frame, source)
    totals: dict[int, _Total] = {}

    def add(chunk: Chunk, thread: int) -> None:
        if thread not in totals:
            totals[thread] = _Total(evaluator.zeros(), buffers if buffers and not thread else Buffers())
        totals[thread].add_chunk(chunk, evaluator, objective)

    with Workers(source.device) as workers:
        for block in source.blocks():
            chunks = chunks_of(block, objective.own_class_only, evaluator, memory_limit, workers.n_threads)
            workers.run(chunks, add, in_order=True)
    total = totals.pop(0, None) or _Total(evaluator.zeros(), Buffers())
    for thread in sorted(totals):
        total.add(totals[thread])
    value: Any = total.value  # a number, or one for each of several objectives
    counts = torch.zeros_like(mixture.log_weights) if total.denominators is None else total.denominators
    value = float(value) if torch.as_tensor(value).ndim == 0 else value
    return Summary(value, total.weight, evaluator.moments(total.sums), counts)


def prepared(mixture: Mixture, frame: Frame, source: Source) -> Evaluator:
    """A mixture made ready for a pass over these rows."""
    with threads_for(mixture.n_components * float(mixture.n_features) ** 3):
        return Evaluator(mixture, frame, computing_dtype(source))


@dataclass
class _Total:
    """What one thread adds up."""

    sums: Sums
    buffers: Buffers = field(default_factory=Buffers)
    value: Any = 0.0
    weight: float = 0.0
    denominators: Tensor | None = None  # counts, (K,)

    def add_chunk(self, chunk: Chunk, evaluator: Evaluator, objective: Objective) -> None:
        loaded = chunk.load(evaluator.dtype)
        log_joint, accumulate = evaluator.evaluate(loaded, self.buffers)
        found = objective.evaluate(log_joint, chunk.targets(loaded, evaluator.mixture))
        values, signed, denominator = found.values, found.signed, found.denominator
        weights = chunk.weights(loaded)
        if weights is not None:
            values, signed = values * weights, signed * weights
            denominator = None if denominator is None else denominator * weights
        if denominator is not None:
            counts = denominator.sum(1, dtype=torch.float64)
            self.denominators = counts if self.denominators is None else self.denominators + counts
        self.value = self.value + values.sum(-1, dtype=torch.float64)
        self.weight += len(loaded.rows) if weights is None else float(weights.sum(dtype=torch.float64))
        accumulate(self.sums, signed)

    def add(self, other: _Total) -> None:
        if other.denominators is not None:
            self.denominators = other.denominators + (0.0 if self.denominators is None else self.denominators)
        self.value += other.value
        self.weight += other.weight
        self.sums.add(other.sums)


def map_rows(
    mixture: Mixture,
    source: Source,
    compute: Callable[[Tensor], Tensor],
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
    frame: Frame | None = None,
) -> Tensor:
    """compute(log joints (K, n)) -> (n, ...) for every row of the source, in order.

    Arguments:
        frame: where rows are expected; that of the mixture unless given.
    """
    frame = frame or frame_of(mixture)
    evaluator = prepared(mixture, frame, source)
    shape, inside = compute(evaluator.log_weights[:, :0]).shape[1:], frame.holds(source.extents)

    def answers(block: Block, workers: Workers) -> Tensor:
        output = _empty_answers((len(block.rows), *shape), evaluator.dtype, block.rows.device)

        def answer(chunk: Chunk, thread: int) -> None:
            loaded = chunk.load(evaluator.dtype)
            output[loaded.index] = compute(evaluator.log_joint(loaded, buffers[thread], inside)).to(output.dtype)

        workers.run(chunks_of(block, False, evaluator, memory_limit, workers.n_threads), answer, in_order=False)
        return output

    with Workers(source.device) as workers:
        buffers = [Buffers() for _ in range(workers.n_threads)]
        outputs = [answers(block, workers) for block in source.blocks()]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _empty_answers(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory for answers about many rows, which are computed class by class and kept so: copying them row by row takes
    half of the time of `predict_proba` of 64 diagonal components. NumPy asks for huge pages: the first write to 100 MB
    takes 11 ms instead of 44.
    """
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(shape, str(dtype).removeprefix("torch."), order="F"))


def map_parts(rows: Tensor, bytes_per_row: int, memory_limit: int, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """compute(rows (n, ...)) -> (n, ...) for rows that are all in memory, dense or sparse, a part at a time."""
    step = max(1, memory_limit // bytes_per_row)
    starts = range(0, rows.shape[0], step)
    with torch.no_grad(), one_thread():
        return torch.cat([compute(row_slice(rows, slice(start, start + step))) for start in starts])


def impute(mixture: Mixture, source: Source, memory_limit: int = DEFAULT_MEMORY_LIMIT) -> Tensor:
    """Rows with their missing values replaced by E[x | observed values]."""
    evaluator = prepared(mixture, frame_of(mixture), source)
    outputs = []
    for block in source.blocks():
        output = block.rows.to(evaluator.dtype, copy=True)
        for chunk in chunks_of(block, False, evaluator, memory_limit, 1):
            if chunk.group.missing:
                loaded = chunk.load(evaluator.dtype)
                output[loaded.index] = torch.where(loaded.rows.isnan(), evaluator.expected(loaded), loaded.rows)
        outputs.append(output)
    return torch.cat(outputs)
