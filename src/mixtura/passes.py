"""The loops over rows: summaries for learning, scores and posteriors for predicting.

Rows come in blocks, are grouped (by missing cells, and by label where only the components of the own class matter) and
cut into chunks that fit the cache. On the CPU chunks are shared out among threads, each running single-threaded
operations: no barrier per operation, and the sums of the threads are added in a fixed order. Nothing of size
rows x components outlives a chunk.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mixtura.cached import cached_property
from mixtura.decisions import LARGEST_ERROR, Decision, Doubts, single_error
from mixtura.frames import Frame
from mixtura.linalg import threads_for
from mixtura.mixture import Mixture
from mixtura.moments import Moments, SignedMoments, Summary
from mixtura.roles import Conditioned, Covariance, Objective, Product, Targets
from mixtura.scratch import Scratch, fresh
from mixtura.shards import Block, Group, Source
from mixtura.workers import PerThread, Workers, threads_on

DEFAULT_MEMORY_LIMIT = 256 * 2**20
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
# More monomials than this (126 features in full) leave the cache by far: the exact path has the larger products then.
MOST_MONOMIALS = 2**13
# Single precision is tried first where products take most of the time: monomials, and rows x components x monomials. At
# 16 features (153) what else there is to do eats up the gain; at 50 (1326) a row takes two thirds of the time.
SCREENED_MONOMIALS, SCREENED_WORK = 500, 1e9
LARGEST_SINGLE = 1e15  # its range holds the squares of smaller numbers
# The largest admitted error of a log joint; beyond it a component takes the exact path (product-error).
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4}


@dataclass(frozen=True)
class Chunk:
    """Rows in the precision of the computation, all with or all without missing cells."""

    rows: Tensor  # (n, D)
    index: Tensor | slice  # positions in the block
    components: slice
    missing: bool

    def part(self, rows: Tensor) -> Chunk:
        """Some of the rows."""
        index = self.index.start + rows if isinstance(self.index, slice) else self.index[rows]
        return Chunk(self.rows[rows], index, self.components, self.missing)


class Evaluator:
    """A mixture made ready for one pass: log joints of chunks, and the sums of their moments.

    Components whose product form would lose too many digits at the given radii take the exact path.
    """

    def __init__(self, mixture: Mixture, frame: Frame, dtype: torch.dtype):
        self.mixture, self.centre, self.dtype = mixture, frame.centre, dtype
        product = mixture.covariance.product(mixture.means - frame.centre, mixture.log_weights)
        errors, largest = product.errors(frame.radii), TOLERANCES[dtype] / torch.finfo(dtype).eps
        narrow = product.n_monomials <= MOST_MONOMIALS
        self.product, self.exact, self.radii = product, [], frame.radii
        if not narrow or not float(errors.max()) <= largest:
            self.product, self.exact = self._split(product, (errors <= largest) & narrow)
        self.rounded_centre = frame.centre.to(dtype)

    @cached_property
    def fast(self) -> list[int]:
        """The components that take the product form."""
        return sorted(set(range(self.mixture.n_components)) - set(self.exact))

    @cached_property
    def log_weights(self) -> Tensor:
        """As a column, (K, 1)."""
        return self.mixture.log_weights.to(self.dtype).unsqueeze(-1)

    def _split(self, product: Product, fast: Tensor) -> tuple[Product, list[int]]:
        """The product of the components that may take it, and the numbers of the others."""
        return product.select(fast.nonzero()[:, 0]), (~fast).nonzero()[:, 0].tolist()

    def scratch(self, components: slice, group: Group) -> int:
        """Numbers of scratch per row of a group."""
        n_components, size = components.stop - components.start, self.mixture.n_features
        if group.missing and not self.has_marginals:
            return n_components * (8 * size + 3 * group.largest_side**2)
        return self.product.n_features + 4 * n_components + 4 * size * min(len(self.exact), n_components)

    def scores(self, chunk: Chunk, scratch: Scratch) -> Tensor:
        """Log joints (K', n) alone."""
        if chunk.missing or self.exact:
            return self.evaluate(chunk, scratch)[0]
        return self.product.expand(chunk.rows, self.rounded_centre, chunk.components, scratch)[0]

    def single_error(self, n_rows: float) -> float | None:
        """How far log joints in single precision may be off; None where they are not worth the trouble, or too far."""
        size = self.product.n_monomials
        if size < SCREENED_MONOMIALS or n_rows * self.mixture.n_components * size < SCREENED_WORK:
            return None
        if self.exact or self.dtype != torch.float64 or self.centre.device.type != "cpu":
            return None
        radii = torch.maximum(self.radii, (self.mixture.means - self.centre).abs().amax(0))  # means may lie elsewhere
        error = single_error(self.product.errors(radii))
        return error if error <= LARGEST_ERROR and float(radii.max()) < LARGEST_SINGLE else None

    @property
    def has_marginals(self) -> bool:
        """Whether matrix products are enough for rows with missing cells (marginal-woodbury), and exact enough."""
        return not self.exact and getattr(self.mixture.covariance, "marginals", None) is not None

    def zeros(self) -> Sums:
        return Sums(self.product.zeros(), None)

    def evaluate(self, chunk: Chunk, scratch: Scratch) -> tuple[Tensor, Callable[[Sums, Tensor], None]]:
        """Log joints (K', n) and a function that adds the moments of weights (K', n) to sums.

        Both are good until the next chunk is evaluated with the same scratch.
        """
        if chunk.missing:
            return self._marginal(chunk) if self.has_marginals else self._incomplete(chunk)
        if not self.exact:
            return self._product(chunk, scratch)
        return self._mixed(chunk, scratch)

    def _deviations(self, rows: Tensor, components: slice | list[int]) -> Tensor:
        """Rows about the means, (K', n, D): subtracted in double precision, where both are exact, then rounded."""
        return (rows.double() - self.mixture.means[components].unsqueeze(1)).to(self.dtype)

    def _product(self, chunk: Chunk, scratch: Scratch) -> tuple[Tensor, Callable[[Sums, Tensor], None]]:
        scores, expanded = self.product.expand(chunk.rows, self.rounded_centre, chunk.components, scratch)

        def accumulate(sums: Sums, weights: Tensor) -> None:
            self.product.accumulate(sums.product, expanded, weights, chunk.components)

        return scores, accumulate

    def _mixed(self, chunk: Chunk, scratch: Scratch) -> tuple[Tensor, Callable[[Sums, Tensor], None]]:
        first, last = chunk.components.start, chunk.components.stop
        fast = slice(bisect_left(self.fast, first), bisect_left(self.fast, last))
        exact = self.exact[bisect_left(self.exact, first) : bisect_left(self.exact, last)]
        scores = chunk.rows.new_empty(last - first, len(chunk.rows))
        fast_positions = [k - first for k in self.fast[fast]]
        exact_positions = [k - first for k in exact]
        fast_scores, expanded = self.product.expand(chunk.rows, self.rounded_centre, fast, scratch)
        scores[fast_positions] = fast_scores
        covariance = self.mixture.covariance.select(torch.tensor(exact, dtype=torch.int64, device=scores.device))
        deviations = self._deviations(chunk.rows, exact)  # (K'', n, D)
        scores[exact_positions] = (
            -0.5
            * (
                covariance.squared_distances(deviations)
                + covariance.log_determinants.to(self.dtype).unsqueeze(-1)
                + self.mixture.n_features * math.log(2 * math.pi)
            )
            + self.log_weights[exact]
        )

        def accumulate(sums: Sums, weights: Tensor) -> None:
            if fast_positions:
                self.product.accumulate(sums.product, expanded, weights[fast_positions], fast)
            if exact:
                sums.add_direct(self.mixture, exact, deviations, weights[exact_positions], covariance.second_moments)

        return scores, accumulate

    def _marginals(self, chunk: Chunk) -> tuple[Tensor, Covariance, Any]:
        """Log joints (K', n) of rows with missing cells, the components, and their marginals."""
        parts = chunk.components
        observed = ~chunk.rows.isnan()
        rows = torch.where(observed, chunk.rows - self.rounded_centre, 0.0)
        covariance: Any = self.mixture.covariance.select(parts)
        given = covariance.marginals(rows, observed, self.mixture.means[parts] - self.centre)
        constant = observed.sum(1, dtype=self.dtype) * math.log(2 * math.pi)
        distances, log_determinants = given.solved()
        scores = -0.5 * (constant + log_determinants + distances)
        return scores.add_(self.log_weights[parts]), covariance, given

    def _marginal(self, chunk: Chunk) -> tuple[Tensor, Callable[[Sums, Tensor], None]]:
        scores, covariance, given = self._marginals(chunk)
        first = chunk.components.start

        def accumulate(sums: Sums, weights: Tensor) -> None:
            for k in range(len(weights)):  # one at a time: rows x components x features would be too many numbers
                alone, (inverse, factors) = covariance.select(slice(k, k + 1)), given.posterior(k)
                conditional = given.conditional_moments(k, inverse, weights[k])

                def second_moments(
                    filled: Tensor, own: Tensor, alone=alone, conditional=conditional
                ) -> tuple[Tensor, ...]:
                    return tuple(a + b for a, b in zip(alone.second_moments(filled, own), conditional, strict=True))

                where, filled = slice(first + k, first + k + 1), given.filled(k, factors).unsqueeze(0)
                sums.add_direct(self.mixture, where, filled, weights[k : k + 1], second_moments)

        return scores, accumulate

    def condition(self, chunk: Chunk) -> tuple[Tensor, Covariance, Conditioned]:
        """Log joints (K', n) of rows with missing cells, and the components conditioned on what they show."""
        parts = chunk.components
        observed = ~chunk.rows.isnan()
        deviations = torch.where(observed, self._deviations(chunk.rows, parts), 0.0)  # (K', n, D)
        covariance = self.mixture.covariance.select(parts)
        given = covariance.condition(deviations, observed)
        constant = observed.sum(1, dtype=self.dtype) * math.log(2 * math.pi)
        scores = -0.5 * (constant + given.log_determinants + given.squared_distances)
        return scores.add_(self.log_weights[parts]), covariance, given

    def _incomplete(self, chunk: Chunk) -> tuple[Tensor, Callable[[Sums, Tensor], None]]:
        scores, covariance, given = self.condition(chunk)

        def second_moments(filled: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
            observed_part = covariance.second_moments(filled, weights)
            missing_part = covariance.conditional_moments(given, weights)
            return tuple(a + b for a, b in zip(observed_part, missing_part, strict=True))

        def accumulate(sums: Sums, weights: Tensor) -> None:
            sums.add_direct(self.mixture, chunk.components, given.deviations, weights, second_moments)

        return scores, accumulate

    def expected(self, chunk: Chunk) -> Tensor:
        """E[x | observed cells] of rows with missing cells, (n, D)."""
        means = self.mixture.means
        if not self.has_marginals:
            log_joint, _, given = self.condition(chunk)
            completed = means.unsqueeze(1) + given.deviations  # (K, n, D)
            return (log_joint.softmax(0).unsqueeze(-1) * completed).sum(0).to(self.dtype)
        log_joint, _, given = self._marginals(chunk)
        total = torch.zeros_like(chunk.rows)
        for share, k in zip(log_joint.softmax(0), range(len(means)), strict=True):
            total += share.unsqueeze(-1) * (means[k] + given.filled(k, given.posterior(k)[1]))
        return total

    def moments(self, sums: Sums) -> Moments:
        """All sums as moments: about the current means, where all of them add whatever path the rows took; about the
        centre where every row took the product form.
        """
        means = self.mixture.means
        total = self.product.moments(sums.product, self.centre)
        if self.exact:
            total = _placed(total.about(means[self.fast]), _empty_moments(self.mixture), self.fast)
        return total if sums.direct is None else total.about(means) + sums.direct


@dataclass
class Sums:
    """Accumulators of one thread: products about the centre, the rest directly about the means."""

    product: list[Tensor]
    direct: Moments | None

    def add_direct(
        self,
        mixture: Mixture,
        components: slice | list[int],
        deviations: Tensor,
        weights: Tensor,
        second_moments: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
    ) -> None:
        """Add the moments of deviations (K', n, D) from the means with weights (K', n)."""
        if self.direct is None:
            self.direct = _empty_moments(mixture)
        self.direct.counts[components] += weights.sum(1)
        self.direct.firsts[components] += (weights.unsqueeze(1) @ deviations).squeeze(1)
        for total, part in zip(self.direct.seconds, second_moments(deviations, weights), strict=True):
            total[components] += part

    def add(self, other: Sums) -> None:
        for total, part in zip(self.product, other.product, strict=True):
            total += part
        if other.direct is not None:
            self.direct = other.direct if self.direct is None else self.direct + other.direct


def _empty_moments(mixture: Mixture) -> Moments:
    seconds = tuple(torch.zeros_like(part) for part in mixture.covariance.own_moments())
    zeros = torch.zeros_like(mixture.means)
    return Moments(torch.zeros_like(mixture.log_weights), zeros, seconds, mixture.covariance.form, mixture.means)


def _placed(moments: Moments, empty: Moments, components: list[int]) -> Moments:
    empty.counts[components] = moments.counts
    empty.firsts[components] = moments.firsts
    for total, part in zip(empty.seconds, moments.seconds, strict=True):
        total[components] = part
    return empty


def computing_dtype(source: Source) -> torch.dtype:
    """float64 on the CPU whatever the rows are; on an accelerator the precision of the rows."""
    return torch.float64 if source.device.type == "cpu" else source.dtype


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
            workers.share_out(list(pieces(block, evaluator, by_label, memory_limit, len(totals))), work, totals)
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
        evaluator = Evaluator(mixture, frame, computing_dtype(source))
        error = evaluator.single_error(n_rows) if isinstance(compute, Decision) else None
    shape = compute(evaluator.log_weights[:, :0]).shape[1:]
    outputs = []

    def work(piece: Piece, state: _Answers) -> None:
        chunk = piece.load(evaluator.dtype)
        if error is not None and not chunk.missing and state.doubts.few:
            assert isinstance(compute, Decision)
            place = state.place(chunk)
            values, again = compute.screened(evaluator.scores(chunk, state.single), error, place)
            state.put(chunk, values, place)
            state.doubts.count(len(chunk.rows), len(again))
            if not len(again):
                return
            chunk = chunk.part(again)
        scores, place = evaluator.scores(chunk, state.scratch), state.place(chunk)
        state.put(chunk, compute(scores, place) if isinstance(compute, Decision) else compute(scores), place)

    n_threads = threads_on(source.device)
    states = [_Answers() for _ in range(n_threads)]
    with Workers(n_threads) as workers:
        for block in source.blocks():
            output = fresh((len(block.rows), *shape), evaluator.dtype, block.rows.device)
            for state in states:
                state.output = output
            cut = pieces(block, evaluator, False, memory_limit, n_threads, error is not None)
            workers.share_out(list(cut), work, states)
            outputs.append(output)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


@dataclass
class _Answers:
    """What one thread needs: where answers go, and buffers for both precisions."""

    output: Tensor = field(default_factory=lambda: torch.empty(0))
    scratch: Scratch = field(default_factory=Scratch)
    single: Scratch = field(default_factory=lambda: Scratch(torch.float32))
    doubts: Doubts = field(default_factory=Doubts)

    def place(self, chunk: Chunk) -> Tensor | None:
        """Where the answers for a chunk may be written at once: rows that lie side by side."""
        return self.output[chunk.index] if isinstance(chunk.index, slice) else None

    def put(self, chunk: Chunk, values: Tensor, place: Tensor | None) -> None:
        if values is not place:
            self.output[chunk.index] = values.to(self.output.dtype)


def impute(mixture: Mixture, source: Source, frame: Frame, memory_limit: int = DEFAULT_MEMORY_LIMIT) -> Tensor:
    """Rows with their missing cells replaced by E[x | observed cells] (imputation)."""
    evaluator = Evaluator(mixture, frame, computing_dtype(source))
    outputs = []
    for block in source.blocks():
        output = block.rows.to(evaluator.dtype, copy=True)
        for piece in pieces(block, evaluator, False, memory_limit, 1):
            if piece.group.missing:
                chunk = piece.load(evaluator.dtype)
                output[chunk.index] = torch.where(chunk.rows.isnan(), evaluator.expected(chunk), chunk.rows)
        outputs.append(output)
    return torch.cat(outputs)
