"""Loops over rows: summaries for training, scores and posteriors for prediction.

Rows are read in blocks and grouped by missing values (and by label if only the components of the own class matter).
Groups are divided into chunks that fit the cache. On the CPU, threads process chunks with single-threaded operations.
For sums, the assignment of chunks to threads and the order of addition are fixed; for predictions, each thread takes
the next chunk when it is ready. No array of size rows x components outlives a chunk.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from mixtura.engine.evaluator import (
    Buffers,
    Evaluator,
    LoadedChunk,
    Sums,
    computing_dtype,
    evaluator_for,
    frame_of,
    move_for_passes,
)
from mixtura.engine.fused import FusedPass, consists_of_launches, fused_pass, fused_scores, responsibility_kernels
from mixtura.engine.recorded import Recording
from mixtura.engine.sources import Block, BlockSource, Group, Source, joined
from mixtura.engine.threads import available_threads, check_time, computing, share_out, threads_for
from mixtura.engine.tuning import (
    CACHE_BYTES,
    DEFAULT_MEMORY_LIMIT,
    FEATURE_BYTES,
    FEATURE_MULTIPLE,
    FEW_KEPT_PARAMETERS,
    FEWEST_ROWS,
    RECORDED_AFTER,
    REPLAYED_TOLERANCE,
    ROW_MULTIPLE,
    SMALL_PASS,
)
from mixtura.model.mixture import Mixture
from mixtura.numerics.gpu import kernels_for
from mixtura.roles import Covariance, LogSumObjective, Objective
from mixtura.roles.covariance import DENSE, VALUES_TOGETHER
from mixtura.values.extents import Frame
from mixtura.values.moments import Moments, Summary
from mixtura.values.sparse_rows import row_slice
from mixtura.values.targets import Targets

if TYPE_CHECKING:
    from mixtura.numerics.kernels.split import Totals


@dataclass(frozen=True)
class Chunk:
    """A part of a group of a block, not loaded yet."""

    block: Block
    group: Group
    part: slice
    components: slice
    fused: FusedPass | None = None  # if kernels do all the work

    @property
    def work(self) -> float:
        return work_of(self.part.stop - self.part.start, self.components, self.block.rows.shape[1])

    def load(self, dtype: torch.dtype | None) -> LoadedChunk:
        """Load the rows, converted to a precision if given."""
        rows, index = self.block.rows, self.part
        if self.group.index is None:
            rows = rows[index]
        else:
            index = self.group.index[index]
            rows = rows.index_select(0, index)
        return LoadedChunk(rows if dtype is None else rows.to(dtype), index, self.components, self.group.missing)

    def targets(self, chunk: LoadedChunk, evaluator: Evaluator) -> Targets:
        """The labels of the rows."""
        block, index = self.block, chunk.index
        shares = block.shares if self.group.label is None else None
        return Targets(
            evaluator.class_of[self.components],
            self.labels(chunk),
            None if shares is None else shares[index],
            None if block.counts is None else block.counts[index],
            self.components,
            evaluator.given.n_classes,
        )

    def labels(self, chunk: LoadedChunk) -> Tensor | None:
        """The labels of its rows; None if they are evaluated with the components of their own class only."""
        labels = self.block.labels if self.group.label is None else None
        return None if labels is None else labels[chunk.index]

    def weights(self, chunk: LoadedChunk, dtype: torch.dtype) -> Tensor | None:
        weights = self.block.weights
        return None if weights is None else weights[chunk.index].to(dtype)


def work_of(n_rows: int, components: slice, n_features: int) -> float:
    """Approximate number of multiplications."""
    return n_rows * (components.stop - components.start) * float(n_features) ** 2


def chunks_of(
    block: Block,
    by_label: bool,
    evaluator: Evaluator,
    memory_limit: int,
    n_threads: int,
    objective: Objective | None = None,
    fused: FusedPass | None = None,
    bytes_per_row: int | None = None,  # of complete rows, if not those of the evaluator
) -> list[Chunk]:
    """Divide the rows of a block into equal chunks, so that the temporary arrays of all threads stay within the limit.

    Kernels for whole passes divide the rows of a group themselves.
    """
    n_scores = _arrays_of_scores(block, objective)
    groups, chunks = [(group, _components_of(group, evaluator)) for group in block.groups(by_label)], []
    if sum(work_of(group.n_rows, own, evaluator.n_features) for group, own in groups) < SMALL_PASS:
        n_threads = 1  # as in `share_out`: chunks for several threads would only be more and smaller
    for group, components in groups:
        if fused is not None and group.n_rows and fused.serves(block, group):
            chunks.append(Chunk(block, group, slice(0, group.n_rows), components, fused))
            continue
        if bytes_per_row is None or group.missing:
            scratch = 8 * _scratch(evaluator, components.stop - components.start, group, n_scores)
        else:
            scratch = bytes_per_row
        # On a GPU weights and sums count too: a few tensors of components x features.
        fixed = 64 * evaluator.n_components * evaluator.n_columns if evaluator.homogeneous else 0
        most = max(1, (memory_limit - min(fixed, memory_limit // 2)) // n_threads // scratch)
        if block.rows.device.type == "cpu":
            most = min(most, _rows_in_cache(evaluator, group, scratch))
        elif most > ROW_MULTIPLE:
            most -= most % ROW_MULTIPLE
        n_chunks = -(-group.n_rows // (most * n_threads)) * n_threads  # the same number for every thread
        size = max(1, -(-group.n_rows // max(1, n_chunks)), min(most, FEWEST_ROWS))
        if block.rows.device.type != "cpu":
            size = min(most, -(-size // ROW_MULTIPLE) * ROW_MULTIPLE)
        chunks += [
            Chunk(block, group, slice(start, min(start + size, group.n_rows)), components)
            for start in range(0, group.n_rows, size)
        ]
    return chunks


def _components_of(group: Group, evaluator: Evaluator) -> slice:
    """The components that the rows of a group are evaluated with."""
    if group.label is None or group.label < 0:
        return slice(0, evaluator.n_components)
    return evaluator.given.class_slices[group.label]


def _arrays_of_scores(block: Block, objective: Objective | None) -> int:
    """Number of arrays of the size of the scores in memory at a time."""
    if objective is None and kernels_for(block.rows) is not None:
        return 2  # log joints and posteriors
    if block.rows.device.type == "cpu" or not isinstance(objective, LogSumObjective):
        return 4
    if block.shares is None and kernels_for(block.rows) is not None:
        return 1  # a kernel replaces scores by responsibilities
    return 6 if objective.needs_denominator else 4


def _scratch(evaluator: Evaluator, n_components: int, group: Group, n_scores: int = 4) -> int:
    """Size of the temporary arrays per row of a group, in numbers."""
    if group.missing and not evaluator.has_marginals:
        return n_components * (8 * evaluator.n_features + 3 * group.largest_side**2)
    projections = evaluator.coefficients.projections
    rank = 0 if projections is None else projections.shape[1]
    n_exact = min(len(evaluator.exact), n_components, max(1, VALUES_TOGETHER // evaluator.n_features))
    n_columns = evaluator.n_shared + (FEATURE_MULTIPLE if evaluator.homogeneous else 0)
    return n_columns + (n_scores + 2 * rank) * n_components + 4 * evaluator.n_features * n_exact


def _rows_in_cache(evaluator: Evaluator, group: Group, scratch: int) -> int:
    """Rows per chunk: enough to amortise a call, with temporary arrays in the cache of a core if possible."""
    if group.missing:
        tables = evaluator.has_marginals  # recomputed for every chunk
        return max(2 * CACHE_BYTES // scratch, FEWEST_ROWS * (4 if tables else 1))
    return max(min(CACHE_BYTES // scratch, FEATURE_BYTES // max(1, 8 * evaluator.n_shared)), FEWEST_ROWS)


def summarise(
    mixture: Mixture,
    source: Source,
    objective: Objective,
    frame: Frame,
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
    buffers: Buffers | None = None,
) -> Summary:
    """Compute value and moments of an objective over all rows.

    All rows lie within `frame`. `buffers` are those of the first thread, reused from pass to pass.
    """
    if source.is_local:
        return _summarise(mixture, objective, frame, memory_limit, buffers, source)
    # Rows in another place may have taken another path, and their moments may have another reference.
    return source.total(partial(_summarise_part, mixture, objective, frame, memory_limit))


def _summarise_part(mixture: Mixture, objective: Objective, frame: Frame, memory_limit: int, source: Source) -> Summary:
    return _summarise(mixture, objective, frame, memory_limit, None, source).about(mixture.means)


def _summarise(
    mixture: Mixture, objective: Objective, frame: Frame, memory_limit: int, buffers: Buffers | None, source: Source
) -> Summary:
    """The summary of rows that lie in one place."""
    evaluator = evaluator_for(mixture, source, frame)
    fused = fused_pass(evaluator, objective, source)
    summary = _total(evaluator, objective, fused, memory_limit, buffers, source)
    if fused is not None and not fused.keeps_digits(summary, source):
        return _total(evaluator, objective, None, memory_limit, buffers, source)
    return summary


def _total(
    evaluator: Evaluator,
    objective: Objective,
    fused: FusedPass | None,
    memory_limit: int,
    buffers: Buffers | None,
    source: Source,
) -> Summary:
    """The summary by an evaluator, and by kernels for whole passes where they support the rows."""
    buffers = buffers or Buffers()
    total = None if fused is not None else _replayed(evaluator, objective, memory_limit, buffers, source)
    if total is None:
        total = _added_up(evaluator, objective, fused, memory_limit, buffers, source)
    counts = torch.zeros_like(evaluator.given.log_weights)
    if total.denominators is not None:
        counts = total.denominators.to(counts.device)
    sums = evaluator.own_sums(total.sums)
    for components, parts in total.fused:
        value, own_counts, moments, denominators = parts.read()
        total.values.append(value)
        sums.products[0][components] += own_counts
        sums.products[1][components] += moments
        if objective.needs_denominator and fused is not None:
            counts = counts - fused.log_sums[1] * denominators
    values = [part.to(counts.device) for part in total.values] or [counts.new_zeros(())]
    value = values[0] if len(values) == 1 else torch.stack(values).sum(0)  # one, or one for each objective
    number = value if value.ndim else float(value)
    return Summary(cast("float", number), float(total.weight), evaluator.moments(sums), counts)


def _added_up(
    evaluator: Evaluator,
    objective: Objective,
    fused: FusedPass | None,
    memory_limit: int,
    buffers: Buffers,
    source: Source,
) -> _Total:
    """The sums of all chunks."""
    n_threads = available_threads(source.device)
    totals = [_Total(evaluator, objective) for _ in range(n_threads)]
    totals[0].buffers = buffers
    for block in source.blocks():
        chunks = chunks_of(block, objective.own_class_only, evaluator, memory_limit, n_threads, objective, fused)
        size = sum(chunk.work for chunk in chunks)
        share_out(chunks, size, lambda chunk, t: totals[t].add_chunk(chunk, memory_limit), n_threads, in_order=True)
    total = totals[0]
    for other in totals[1:]:
        total.add(other)
    return total


def _replayed(
    evaluator: Evaluator, objective: Objective, memory_limit: int, buffers: Buffers, source: Source
) -> _Total | None:
    """The same sums by a recording, if the last passes were like this one and consist of launches."""
    if not isinstance(source, BlockSource) or not consists_of_launches(evaluator, source):
        return None
    (block,), repeats = source.blocks(), buffers.repeats
    number = repeats.count(block, objective, evaluator.centre, evaluator.given.class_of, evaluator.coefficients.shared)
    if number == RECORDED_AFTER:
        repeats.recorded = _recorded(evaluator, objective, memory_limit, buffers, block)
    if repeats.recorded is None:
        return None
    check_time()
    weights, recording = repeats.recorded
    weights.copy_(evaluator.homogeneous_weights())
    total = recording.replay()
    if number == RECORDED_AFTER + 1:  # the first with other coefficients than those of the recording
        expected = _added_up(evaluator, objective, None, memory_limit, buffers, source)
        if not total.agrees_with(expected):
            repeats.recorded = None
            return expected
    return total


def _recorded(
    evaluator: Evaluator, objective: Objective, memory_limit: int, buffers: Buffers, block: Block
) -> tuple[Tensor, Recording[_Total]] | None:
    """Where a recording reads its coefficients, and the recording; None if an operation may wait for the device."""
    chunks = chunks_of(block, objective.own_class_only, evaluator, memory_limit, 1, objective)
    if any(chunk.group.missing or responsibility_kernels(objective, block, chunk.group) is None for chunk in chunks):
        return None
    weights = evaluator.homogeneous_weights().to(evaluator.device)
    evaluator.read_from(weights)
    own_buffers = buffers.handed_over()

    def run() -> _Total:
        total = _Total(evaluator, objective, own_buffers)
        for chunk in chunks:
            total.add_chunk(chunk, memory_limit)
        return total

    try:
        return weights, Recording(run, evaluator.device)
    except RuntimeError:  # such as where every launch waits, for debugging
        return None


@dataclass
class _Total:
    """The sums of one thread."""

    evaluator: Evaluator
    objective: Objective
    buffers: Buffers = field(default_factory=Buffers)
    sums: Sums | None = None
    values: list[Tensor] = field(default_factory=list)  # of the chunks
    weight: float | Tensor = 0.0  # a tensor if rows have weights, to avoid synchronising with the device
    denominators: Tensor | None = None  # counts, (K,)
    fused: list[tuple[slice, Totals]] = field(default_factory=list)  # components, and their sums by kernels

    def add_chunk(self, chunk: Chunk, memory_limit: int) -> None:
        evaluator = self.evaluator
        if chunk.fused is not None:
            self._add_fused(chunk, chunk.fused, memory_limit)
            return
        self.sums = self.sums or evaluator.no_sums()
        loaded = chunk.load(evaluator.loaded_dtype)
        log_joint, accumulate = evaluator.evaluate(loaded, self.buffers)
        weights = chunk.weights(loaded, evaluator.dtype)
        kernels = responsibility_kernels(self.objective, chunk.block, chunk.group)
        if kernels is not None and len(log_joint) <= kernels.MOST_COMPONENTS:
            values, signed, counts = self._by_kernel(kernels, log_joint, chunk.labels(loaded), weights)
        else:
            values, signed, counts = self._by_objective(log_joint, chunk.targets(loaded, evaluator), weights)
        if counts is not None:
            self.denominators = counts if self.denominators is None else self.denominators + counts
        self.values.append(values.sum(-1, dtype=torch.float64))
        self.weight = self.weight + (len(loaded.rows) if weights is None else weights.sum(dtype=torch.float64))
        accumulate(self.sums, signed)

    def _by_objective(
        self, log_joint: Tensor, targets: Targets, weights: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Weighted values (n,), signed responsibilities (K, n) and counts of the denominator (K,)."""
        evaluation, counts = self.objective.evaluate(log_joint, targets), None
        values, signed, denominator = evaluation.values, evaluation.numerator, evaluation.denominator
        if denominator is not None:
            signed = signed - denominator
            counts = (denominator if weights is None else denominator * weights).sum(1, dtype=torch.float64)
        if weights is not None:
            values, signed = values * weights, signed * weights
        return values, signed, counts

    def _by_kernel(
        self, kernels: ModuleType, log_joint: Tensor, labels: Tensor | None, weights: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The same in one launch; the signed responsibilities replace the log joints."""
        assert isinstance(self.objective, LogSumObjective)
        assert self.objective.log_sums is not None
        own_weight, every_weight = self.objective.log_sums
        known = None if labels is None or own_weight == 0 else (labels, self.evaluator.class_of)
        values, counts = kernels.responsibilities(log_joint, known, weights, (own_weight, every_weight))
        return values, log_joint, -every_weight * counts if self.objective.needs_denominator else None

    def _add_fused(self, chunk: Chunk, fused: FusedPass, memory_limit: int) -> None:
        self.fused.append((chunk.components, fused.totals(chunk.block, chunk.group, chunk.components, memory_limit)))
        weights, index = chunk.block.weights, chunk.group.index
        if weights is None:
            self.weight = self.weight + chunk.group.n_rows
        else:
            self.weight = self.weight + (weights if index is None else weights[index]).sum(dtype=torch.float64)

    def agrees_with(self, other: _Total) -> bool:
        """Whether homogeneous sums, and values, are the same to rounding errors."""
        assert self.sums is not None
        assert other.sums is not None
        pairs = [(self.sums.homogeneous, other.sums.homogeneous), (self.denominators, other.denominators)]
        pairs += [(sum(self.values), sum(other.values))]
        known = [(a, b) for a, b in pairs if isinstance(a, Tensor) and isinstance(b, Tensor)]
        return all(bool((a - b).abs().amax() <= REPLAYED_TOLERANCE * b.abs().amax()) for a, b in known)

    def add(self, other: _Total) -> None:
        if other.sums is None:
            return
        if self.sums is None:  # this thread had no chunk
            self.sums, self.denominators = other.sums, other.denominators
        else:
            self.sums.add(other.sums)
            if other.denominators is not None:
                self.denominators = other.denominators + (0.0 if self.denominators is None else self.denominators)
        self.values += other.values
        self.weight = self.weight + other.weight


def moments_by_label(
    means: Tensor, source: Source, covariance: Covariance | None = None, memory_limit: int = DEFAULT_MEMORY_LIMIT
) -> Moments:
    """The moments about the means (K, D) of complete rows whose labels or shares are components (class-moments).

    No score is computed: a row costs D^2 multiplications, whatever the number of components. Second moments have the
    form of the covariance; without one they are matrices.
    """
    return source.total(partial(_moments_part, means, covariance, memory_limit)).moments


def without_rows(moments: Moments, block: Block) -> Moments:
    """The moments of components without the rows of a block, which were among those that were added up."""
    weights = torch.ones_like(block.rows[:, 0], dtype=torch.float64) if block.weights is None else block.weights
    rest = moments.copied()
    _add_by_label(
        rest, replace(block, weights=-weights), None, DEFAULT_MEMORY_LIMIT, computing_dtype(BlockSource(block))
    )
    return rest


def _moments_part(means: Tensor, covariance: Covariance | None, memory_limit: int, source: Source) -> Summary:
    means = means.to(source.device)
    if covariance is None:
        form, seconds = DENSE, (means.new_zeros(len(means), *2 * means.shape[1:]),)
    else:
        covariance = covariance.to(source.device)
        form, seconds = covariance.form, tuple(torch.zeros_like(part) for part in covariance.own_moments())
    total = Moments(torch.zeros_like(means[:, 0]), torch.zeros_like(means), seconds, form, means)
    held, fewest = [], means.numel() // 8  # adding up all matrices takes as long as so many rows
    for block in source.blocks():
        held.append(block)
        if sum(len(part.rows) for part in held) >= fewest:
            _add_by_label(total, joined(held), covariance, memory_limit, computing_dtype(source))
            held = []
    if held:
        _add_by_label(total, joined(held), covariance, memory_limit, computing_dtype(source))
    return Summary(0.0, float(total.counts.sum()), total, torch.zeros_like(total.counts))


def _by_label(block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """Labels of the rows of a block in ascending order, the rows, and their weights; soft labels repeat a row."""
    if block.shares is not None:
        labels, places = block.shares.nan_to_num(nan=0.0).T.nonzero(as_tuple=True)
        weights = block.shares[places, labels].double()
    else:
        assert block.labels is not None
        labels, places = block.labels.sort(stable=True)
        weights = torch.ones_like(labels, dtype=torch.float64)
    return labels, places, weights if block.weights is None else weights * block.weights[places]


def scatter_by_label(means: Tensor, source: Source) -> tuple[Tensor, Tensor, Tensor]:
    """Counts (K,), first moments (K, D) and the sum of the second moments (D, D) of `moments_by_label`."""
    summary = source.total(partial(_scatter_part, means))
    return summary.moments.counts, summary.moments.firsts, summary.moments.seconds[0][0]


def _scatter_part(means: Tensor, source: Source) -> Summary:
    means = means.to(source.device)
    counts, firsts, second = torch.zeros_like(means[:, 0]), torch.zeros_like(means), means[:0].T @ means[:0]
    for block in source.blocks():
        labels, places, weights = _by_label(block)
        for part in torch.arange(len(labels), device=means.device).split(max(1024, 2**22 // means.shape[1])):
            deviations = block.rows[places[part]].double() - means[labels[part]]
            weighted = deviations * weights[part].unsqueeze(-1)
            counts.index_add_(0, labels[part], weights[part])
            firsts.index_add_(0, labels[part], weighted)
            with threads_for(float(deviations.numel()) * means.shape[1]):
                second += weighted.T @ deviations
    total = Moments(counts, firsts, (second.unsqueeze(0),), DENSE, means)
    return Summary(0.0, float(counts.sum()), total, torch.zeros_like(counts))


def _add_by_label(
    total: Moments, block: Block, covariance: Covariance | None, memory_limit: int, dtype: torch.dtype
) -> None:
    """Add the rows of a block: on a GPU many components together, padded to the same number of rows."""
    labels, places, weights = _by_label(block)
    (n_components, size), rows = total.firsts.shape, block.rows
    starts = torch.searchsorted(labels, torch.arange(n_components + 1, device=rows.device))
    edges = starts.tolist()
    most = max(1, *(b - a for a, b in itertools.pairwise(edges)))
    step = max(1, memory_limit // (32 * size * most)) if rows.is_cuda else 1
    parts = [slice(k, min(k + step, n_components)) for k in range(0, n_components, step)]

    def add(part: slice, thread: int) -> None:
        own = slice(edges[part.start], edges[part.stop])
        numbers = labels[own] - part.start
        among = torch.arange(own.start, own.stop, device=rows.device) - starts[labels[own]]
        shape = (part.stop - part.start, max(b - a for a, b in itertools.pairwise(edges[part.start : part.stop + 1])))
        deviations, shares = rows.new_zeros(*shape, size, dtype=dtype), rows.new_zeros(shape, dtype=dtype)
        # Subtracted in double precision, then rounded.
        own_deviations = rows[places[own]].double() - total.reference[labels[own]]
        deviations[numbers, among], shares[numbers, among] = own_deviations.to(dtype), weights[own].to(dtype)
        if covariance is None:
            seconds: tuple[Tensor, ...] = ((deviations * shares.unsqueeze(-1)).mT @ deviations,)
        else:
            seconds = covariance.select(part).second_moments(deviations, shares)
        total.counts[part] += shares.sum(1)
        total.firsts[part] += (shares.unsqueeze(1) @ deviations).squeeze(1)
        for sums, added in zip(total.seconds, seconds, strict=True):
            sums[part] += added

    parts = [part for part in parts if edges[part.stop] > edges[part.start]]
    share_out(parts, len(labels) * float(size) ** 2, add, available_threads(rows.device), in_order=True)


def map_rows(
    mixture: Mixture,
    source: Source,
    compute: Callable[[Tensor], Tensor],
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
    frame: Frame | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """compute(log joints (K, n)) -> (n, ...) for every row of the source, in order.

    `frame` is the expected range of the rows, by default that of the mixture; `dtype` the precision of the answers, by
    default that of the computation.
    """
    mixture = move_for_passes(mixture, source, FEW_KEPT_PARAMETERS)
    n_threads = available_threads(source.device)
    by_kernels = fused_scores(mixture, source) if frame is None else None
    if by_kernels is None:
        evaluator = evaluator_for(mixture, source, frame or frame_of(mixture))
    else:
        evaluator = by_kernels.evaluator
    empty = torch.empty(mixture.n_components, 0, dtype=torch.float64, device=source.device)
    inside, shape = evaluator.frame.holds(source.extents), compute(empty).shape[1:]
    writer = None if by_kernels is None or not by_kernels.writes(compute, dtype) else by_kernels
    answers = _Results(source, shape, dtype or evaluator.dtype, by_rows=writer is not None)
    buffers = [Buffers() for _ in range(n_threads)]

    for block in source.blocks():
        answers.begin(block)

        def answer(chunk: Chunk, thread: int) -> None:
            loaded = chunk.load(evaluator.loaded_dtype)
            if writer is not None and not loaded.missing:
                values = answers.part(empty)[loaded.index]
                writer.write(loaded.rows, values, memory_limit)
                if not inside and (among := evaluator.far_rows(loaded)) is not None:
                    values[among[0]] = compute(among[1]).to(values.dtype)
                if isinstance(loaded.index, slice):
                    return
            else:
                scores_of = None if by_kernels is None else by_kernels.of
                values = compute(evaluator.log_joint(loaded, buffers[thread], inside, scores_of))
            output = answers.part(values)
            if isinstance(loaded.index, slice):
                output[loaded.index].copy_(values)
            else:
                output[loaded.index] = values.to(output.dtype)

        bytes_per_row = None if by_kernels is None else by_kernels.bytes_per_row
        if writer is not None and inside and block.complete and block.rows.stride(1) == 1:
            bytes_per_row = 1  # the kernels divide the rows themselves
        chunks = chunks_of(block, False, evaluator, memory_limit, n_threads, bytes_per_row=bytes_per_row)
        share_out(chunks, sum(chunk.work for chunk in chunks), answer, n_threads, in_order=False)
    return answers.joined()


class _Results:
    """Memory for the results of all rows of a source, allocated once if their number is known.

    Results are stored in the order in which they are computed: class by class on a CPU, on a GPU also row by row.
    Transposing them would take a quarter to a half of the time of `predict_proba`.
    """

    def __init__(self, source: Source, shape: tuple[int, ...], dtype: torch.dtype, by_rows: bool = False):
        self._device, self._n_all, self._shape, self._dtype = source.device, source.n_rows, shape, dtype
        self._by_rows = by_rows
        self._whole: Tensor | None = None
        self._parts: list[Tensor] = []
        self._first = self._end = 0

    def begin(self, block: Block) -> None:
        """Continue with the rows of a block."""
        self._first, self._end = self._end, self._end + len(block.rows)
        if self._n_all is None:
            self._whole = None
        if self._device.type == "cpu":  # before several threads ask for it
            self._allocate(self._by_rows)

    def part(self, values: Tensor) -> Tensor:
        """Return the memory for the results of the block, some of which are given."""
        self._allocate(by_rows=self._by_rows or (values.ndim > 1 and values.stride(-1) == 1))
        assert self._whole is not None
        return self._whole if self._n_all is None else self._whole[self._first : self._end]

    def _allocate(self, by_rows: bool) -> None:
        if self._whole is not None:
            return
        n_rows = self._end - self._first if self._n_all is None else self._n_all
        self._whole = _empty_results((n_rows, *self._shape), self._dtype, self._device, by_rows)
        self._parts.append(self._whole)

    def joined(self) -> Tensor:
        if not self._parts:
            return torch.empty(0, *self._shape, dtype=self._dtype, device=self._device)
        if self._n_all is not None:
            return self._parts[0][: self._end]  # without rows of weight zero
        return self._parts[0] if len(self._parts) == 1 else torch.cat(self._parts)


def _empty_results(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, by_rows: bool) -> Tensor:
    """Allocate memory for results. NumPy requests huge pages: the first write to 100 MB takes 11 ms instead of 44."""
    if device.type == "cpu":
        return torch.from_numpy(np.empty(shape, str(dtype).removeprefix("torch."), order="C" if by_rows else "F"))
    if by_rows:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.empty(shape[::-1], dtype=dtype, device=device).permute(*reversed(range(len(shape))))


def map_parts(rows: Tensor, bytes_per_row: int, memory_limit: int, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """compute(rows (n, ...)) -> (n, ...) for rows in memory, dense or sparse, part by part."""
    step = max(1, memory_limit // bytes_per_row)
    starts = range(0, rows.shape[0], step)
    with computing():
        first = compute(row_slice(rows, slice(0, step)))
        if len(starts) < 2:
            return first
        whole = first.new_empty(rows.shape[0], *first.shape[1:])
        whole[:step] = first
        for start in starts[1:]:
            whole[start : start + step] = compute(row_slice(rows, slice(start, start + step)))
        return whole


def impute(mixture: Mixture, source: Source, memory_limit: int = DEFAULT_MEMORY_LIMIT) -> Tensor:
    """Replace missing values by E[x | observed values]."""
    evaluator = evaluator_for(mixture, source, frame_of(mixture))
    answers = _Results(source, (source.n_features,), evaluator.dtype)
    for block in source.blocks():
        answers.begin(block)
        output = answers.part(block.rows).copy_(block.rows)
        for chunk in chunks_of(block, False, evaluator, memory_limit, 1):
            if chunk.group.missing:
                loaded = chunk.load(evaluator.dtype)
                output[loaded.index] = torch.where(loaded.rows.isnan(), evaluator.expected(loaded), loaded.rows)
    return answers.joined()
