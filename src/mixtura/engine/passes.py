"""The loops over rows: summaries for learning, scores and posteriors for predicting.

Rows come in blocks, are grouped (by missing cells, and by label where only the components of the own class matter) and
cut into chunks that fit the cache. On the CPU threads take them, each running single-threaded operations: no barrier
per operation. For sums each thread has its fixed share, and they are added in a fixed order; for answers whoever is
ready takes the next chunk. Nothing of size rows x components outlives a chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mixtura.engine.chunks import Piece, pieces
from mixtura.engine.decisions import SAMPLE, Decision, bearable_share
from mixtura.engine.evaluator import Chunk, Evaluator, Sums, computing_dtype
from mixtura.engine.sources import Block, Group, Source
from mixtura.engine.threads import PerThread, Workers, threads_on
from mixtura.model.mixture import Mixture
from mixtura.numerics.buffers import Scratch, fresh
from mixtura.numerics.linalg import threads_for
from mixtura.roles import Objective
from mixtura.values.extents import Frame
from mixtura.values.moments import SignedMoments, Summary

DEFAULT_MEMORY_LIMIT = 256 * 2**20


def summarise(
    mixture: Mixture,
    source: Source,
    objective: Objective,
    frame: Frame,
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
    both_sides: bool = False,
    scratch: Scratch | None = None,
    count_denominator: bool = False,
) -> Summary:
    """Value and moments of an objective over all rows.

    Arguments:
        both_sides: keep numerator and denominator moments apart; otherwise the numerator holds the net.
        scratch: buffers to use again from pass to pass, for the first thread.
        count_denominator: also count the denominator by itself, which costs far less than its moments.
    """
    with threads_for(mixture.n_components * mixture.n_features**3):
        evaluator = Evaluator(mixture, frame, computing_dtype(source))
    keep_apart = both_sides and objective.needs_denominator
    overwrite = getattr(objective, "overwrites", False)

    def work(piece: Piece, total: _Total) -> None:
        chunk = piece.load(evaluator.dtype)
        weights = piece.weights(chunk)
        log_joint, accumulate = evaluator.evaluate(chunk, total.scratch)
        found = objective.evaluate(log_joint, piece.targets(chunk, mixture, overwrite))
        values, numerator, denominator = found.values, found.numerator, found.denominator
        if weights is not None:
            values, numerator = values * weights, numerator * weights
            denominator = None if denominator is None else denominator * weights
        if count_denominator and denominator is not None:
            total.count(denominator)
        if not keep_apart and denominator is not None:
            numerator, denominator = numerator - denominator, None
        total.value = total.value + values.sum(-1, dtype=torch.float64)
        total.weight += len(chunk.rows) if weights is None else float(weights.sum(dtype=torch.float64))
        accumulate(total.sums[0], numerator)
        if denominator is not None:
            accumulate(total.sums[1], denominator)

    by_label = objective.own_class_only
    scratches = iter([scratch or Scratch()])

    def start() -> _Total:
        return _Total([evaluator.zeros() for _ in range(1 + keep_apart)], next(scratches, None) or Scratch())

    totals = PerThread(start, threads_on(source.device))
    with Workers(len(totals)) as workers:
        for block in source.blocks():
            groups = block.groups(by_label)
            cut = [piece for group in groups for piece in pieces(block, group, evaluator, memory_limit, len(totals))]
            workers.share_out(cut, work, totals)
    first, *others = totals.made() or [totals[0]]
    for other in others:
        first.add(other)
    value: Any = first.value  # a number, or one for each of several objectives
    value = float(value) if torch.as_tensor(value).ndim == 0 else value
    moments = SignedMoments(*(evaluator.moments(sums) for sums in first.sums))
    counts = first.denominator_counts
    if count_denominator and counts is None:
        counts = torch.zeros_like(mixture.log_weights)
    return Summary(value, first.weight, moments, counts)


@dataclass
class _Total:
    sums: list[Sums]
    scratch: Scratch = field(default_factory=Scratch)
    value: Any = 0.0
    weight: float = 0.0
    denominator_counts: Tensor | None = None

    def count(self, denominator: Tensor) -> None:
        """Add the denominators (K, n) of a chunk."""
        counts = denominator.sum(1, dtype=torch.float64)
        self.denominator_counts = counts if self.denominator_counts is None else self.denominator_counts + counts

    def add(self, other: _Total) -> None:
        if other.denominator_counts is not None:
            self.count(other.denominator_counts.unsqueeze(1))
        self.value += other.value
        self.weight += other.weight
        for total, part in zip(self.sums, other.sums, strict=True):
            total.add(part)


def map_rows(
    mixture: Mixture,
    source: Source,
    frame: Frame,
    compute: Callable[[Tensor], Tensor],
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
) -> Tensor:
    """compute(log joints (K, n)) -> (n, ...) for every row of the source, in order.

    A `Decision` about many rows is made in single precision where that decides it.
    """
    n_rows = math.inf if source.n_rows is None else source.n_rows
    with threads_for(mixture.n_components * mixture.n_features**3):
        if isinstance(compute, Decision):
            mixture = mixture.levelled()
        evaluator = Evaluator(mixture, frame, computing_dtype(source))
        error = evaluator.single_error(n_rows) if isinstance(compute, Decision) else None
    n_threads = threads_on(source.device)
    answering = _Answering(evaluator, compute, error, memory_limit, [_State() for _ in range(n_threads)])
    with Workers(n_threads) as workers:
        outputs = [answering.answered(block, workers) for block in source.blocks()]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


@dataclass
class _State:
    """What one thread has of its own: buffers, and the positions of the rows that it leaves for later."""

    scratch: Scratch = field(default_factory=Scratch)
    later: list[Tensor] = field(default_factory=list)

    def taken(self) -> list[Tensor]:
        """What was left until now."""
        later, self.later = self.later, []
        return later


@dataclass(frozen=True)
class _Answering:
    """What is computed of every row: in double precision, or in single where that decides it (screening)."""

    evaluator: Evaluator
    compute: Callable[[Tensor], Tensor]
    error: float | None  # of a log joint in single precision, where that is tried
    memory_limit: int
    states: list[_State]  # of the threads

    def answered(self, block: Block, workers: Workers) -> Tensor:
        """The answers for the rows of a block, in order."""
        evaluator = self.evaluator
        shape = self.compute(evaluator.log_weights[:, :0]).shape[1:]
        output = fresh((len(block.rows), *shape), evaluator.dtype, block.rows.device)

        def answer(piece: Piece, state: _State) -> None:
            chunk, compute = piece.load(evaluator.dtype), self.compute
            scores, place = evaluator.scores(chunk, state.scratch.retyped(None)), _place(output, chunk)
            _put(output, chunk, compute(scores, place) if isinstance(compute, Decision) else compute(scores), place)

        def screen(piece: Piece, state: _State) -> None:
            chunk = piece.load(evaluator.dtype)
            place = _place(output, chunk)
            values, doubtful = self._screened(chunk, state, place)
            _put(output, chunk, values, place)
            state.later.append(chunk.positions(doubtful))

        groups = []
        for group in block.groups(False):
            if self._worth_screening(block, group):
                workers.hand_out(self._pieces(block, group, torch.float32), screen, self.states)
                # Together later on: calls for the few of a chunk would take longer than what they do.
                later = [rows for state in self.states for rows in state.taken()]
                group = group.part(torch.cat(later).sort().values)
            groups.append(group)
        pieces_left = [piece for group in groups for piece in self._pieces(block, group, evaluator.dtype)]
        workers.hand_out(pieces_left, answer, self.states)
        return output

    def _pieces(self, block: Block, group: Group, dtype: torch.dtype) -> list[Piece]:
        return pieces(block, group, self.evaluator, self.memory_limit, len(self.states), dtype)

    def _screened(self, chunk: Chunk, state: _State, place: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What single precision says, and the numbers of the rows that it leaves in doubt."""
        assert isinstance(self.compute, Decision)
        assert self.error is not None
        scores = self.evaluator.scores(chunk, state.scratch.retyped(torch.float32))
        return self.compute.screened(scores, self.error, place)

    def _worth_screening(self, block: Block, group: Group) -> bool:
        """Whether a sample of the rows leaves so few in doubt that all of them are answered sooner."""
        if self.error is None or group.missing or group.n_rows == 0:
            return False
        sample, n_doubtful = group.sample(SAMPLE, block.rows.device), 0
        with threads_for(0):
            for piece in self._pieces(block, sample, torch.float32):
                n_doubtful += len(self._screened(piece.load(self.evaluator.dtype), self.states[0])[1])
        return n_doubtful <= bearable_share(self.evaluator.product.n_monomials) * sample.n_rows


def _place(output: Tensor, chunk: Chunk) -> Tensor:
    """Memory for the answers for a chunk: where they belong if its rows lie side by side."""
    if isinstance(chunk.index, slice):
        return output[chunk.index]
    return output.new_empty(len(chunk.rows), *output.shape[1:])


def _put(output: Tensor, chunk: Chunk, values: Tensor, place: Tensor) -> None:
    if not isinstance(chunk.index, slice):
        output.index_copy_(0, chunk.index, values.to(output.dtype))
    elif values is not place:
        output[chunk.index] = values.to(output.dtype)


def impute(mixture: Mixture, source: Source, frame: Frame, memory_limit: int = DEFAULT_MEMORY_LIMIT) -> Tensor:
    """Rows with their missing cells replaced by E[x | observed cells]."""
    evaluator = Evaluator(mixture, frame, computing_dtype(source))
    outputs = []
    for block in source.blocks():
        output = block.rows.to(evaluator.dtype, copy=True)
        for group in block.groups(False):
            for piece in pieces(block, group, evaluator, memory_limit, 1) if group.missing else []:
                chunk = piece.load(evaluator.dtype)
                output[chunk.index] = torch.where(chunk.rows.isnan(), evaluator.expected(chunk), chunk.rows)
        outputs.append(output)
    return torch.cat(outputs)
