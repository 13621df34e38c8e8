"""A mixture made ready for one pass: log joints of chunks of rows, and the sums of their moments."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mixtura.engine.decisions import LARGEST_ERROR, N_ROUNDINGS
from mixtura.engine.sources import Group, Source
from mixtura.model.mixture import Mixture
from mixtura.numerics.buffers import Scratch
from mixtura.numerics.cached_property import cached_property
from mixtura.roles import Conditioned, Covariance
from mixtura.values.extents import Frame
from mixtura.values.moments import Moments

# More monomials than this (126 features in full) leave the cache by far: the exact path has the larger products then.
MOST_MONOMIALS = 2**13
# Single precision is tried first where products take most of the time: monomials, and rows x components x monomials. At
# 12 features (91) it takes as long, at 16 (153) 0.85 and at 50 (1326) 0.6 of the time if no row is in doubt; with 5e7
# in all it may take longer.
SCREENED_MONOMIALS, SCREENED_WORK = 120, 1e8
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
    product_rows: int  # that products of scores take at a time

    def positions(self, rows: Tensor) -> Tensor:
        """Of some of the rows in the block."""
        return self.index.start + rows if isinstance(self.index, slice) else self.index[rows]


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
            fast = (errors <= largest) & narrow
            self.product, self.exact = product.select(fast.nonzero()[:, 0]), (~fast).nonzero()[:, 0].tolist()
        self.rounded_centre = frame.centre.to(dtype)

    @cached_property
    def fast(self) -> list[int]:
        """The components that take the product form."""
        return sorted(set(range(self.mixture.n_components)) - set(self.exact))

    @cached_property
    def log_weights(self) -> Tensor:
        """As a column, (K, 1)."""
        return self.mixture.log_weights.to(self.dtype).unsqueeze(-1)

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
        if len(chunk.rows) <= chunk.product_rows:
            return self.product.expand(chunk.rows, self.rounded_centre, chunk.components, scratch)[0]
        n_components = chunk.components.stop - chunk.components.start
        scores = scratch.buffer("all scores", (n_components, len(chunk.rows)), chunk.rows)
        for rows, place in zip(chunk.rows.split(chunk.product_rows), scores.split(chunk.product_rows, 1), strict=True):
            place.copy_(self.product.expand(rows, self.rounded_centre, chunk.components, scratch)[0])
        return scores

    def single_error(self, n_rows: float) -> float | None:
        """How far log joints in single precision may be off (screening); None where that is too far or not worth it."""
        size = self.product.n_monomials
        if size < SCREENED_MONOMIALS or n_rows * self.mixture.n_components * size < SCREENED_WORK:
            return None
        if self.exact or self.dtype != torch.float64 or self.centre.device.type != "cpu":
            return None
        radii = torch.maximum(self.radii, (self.mixture.means - self.centre).abs().amax(0))  # means may lie elsewhere
        peaks = self.mixture.log_peaks
        largest = float(self.product.errors(radii).max()) + float(peaks[peaks.isfinite()].abs().max())
        error = N_ROUNDINGS * torch.finfo(torch.float32).eps * largest
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
        """E[x | observed cells] of rows with missing cells, (n, D) (imputation)."""
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
