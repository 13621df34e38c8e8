"""Evaluation of a mixture in one pass: log joints of chunks of rows, and the sums of their moments."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mixtura.engine.recorded import Repeats
from mixtura.engine.sources import Source
from mixtura.engine.tuning import (
    EXPECTED_DEVIATIONS,
    FAST_DOUBLE,
    FEATURE_MULTIPLE,
    FEW_PARAMETERS,
    LEAST_LOG_WEIGHT,
    MOST_FEATURES,
    ROUNDED_TOLERANCE,
    ROW_MULTIPLE,
    SIDE_BY_SIDE,
    TOLERANCES,
)
from mixtura.model.mixture import Mixture
from mixtura.numerics.gpu import kernels_for
from mixtura.numerics.low_rank_marginals import LowRankMarginals
from mixtura.roles import Conditioned, Covariance
from mixtura.roles.covariance import VALUES_TOGETHER
from mixtura.values.extents import Frame, framed
from mixtura.values.features import QUADRATICS, SQUARES, Coefficients, triangle
from mixtura.values.moments import DenseForm, Moments

if TYPE_CHECKING:
    from mixtura.numerics.kernels.split import SplitCoefficients

LOG_TWO_PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class LoadedChunk:
    """Rows, all with or all without missing values."""

    rows: Tensor  # (n, D)
    index: Tensor | slice  # positions in the block
    components: slice
    missing: bool


class Buffers:
    """The buffers of one thread, reused for all chunks: new memory pages cost several times the arithmetic on them.

    A buffer is valid until the next request with the same name.
    """

    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}  # bytes
        self.features: tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]]] | None = (
            None  # of a chunk, and the views used to compute them
        )
        self.homogeneous: tuple[int, Tensor] | None = None  # place of the ones, and features of a chunk on a GPU
        self.repeats = Repeats()

    def get(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor of this shape, of the type and on the device of another."""
        size = like.dtype.itemsize * math.prod(shape)
        held = self._memory.get(name)
        if held is None or len(held) < size or held.device != like.device:
            self._memory[name] = held = torch.empty(size, dtype=torch.uint8, device=like.device)
        return held[:size].view(like.dtype).view(shape)

    def handed_over(self) -> Buffers:
        """The same buffers for somebody who keeps them; these are empty then."""
        other = Buffers()
        other._memory, other.features, other.homogeneous = self._memory, self.features, self.homogeneous
        self._memory, self.features, self.homogeneous = {}, None, None
        return other


Accumulate = Callable[["Sums", Tensor], None]


class Evaluator:
    """A mixture prepared for one pass: log joints of chunks, and the sums of their moments.

    The fast path uses matrix products. Components for which these would lose too many digits at the given radii take
    the exact path, which subtracts the means before squaring (product-error).

    The rows may be on another device than the mixture. Coefficients are then computed on the device of the mixture, and
    moments are returned there.
    """

    def __init__(
        self,
        mixture: Mixture,
        frame: Frame,
        dtype: torch.dtype,
        tolerance: float | None = None,
        device: torch.device | None = None,  # of the rows
    ):
        self.given, self.frame, self.dtype = mixture, frame.to(mixture.means.device), dtype
        self.device = device or mixture.means.device
        frame = self.frame
        self.n_components, self.n_features = mixture.means.shape
        log_weights, covariance, means = mixture.log_weights, mixture.covariance, mixture.means - frame.centre
        wide = too_wide_for_products(covariance)
        if wide:  # no inverse is needed, nor are its entries laid out as weights of products
            covariance, means, log_weights = covariance.select(slice(0, 0)), means[:0], log_weights[:0]
        coefficients = covariance.coefficients(means, log_weights)
        assert coefficients.weights is not None
        self.n_columns = coefficients.weights.shape[1]
        limit = (tolerance or TOLERANCES[dtype]) / torch.finfo(dtype).eps if self.n_columns <= MOST_FEATURES else -1.0
        magnitudes, of_fast = torch.stack((coefficients.magnitudes(frame.radii), log_weights)).tolist()
        self.smallest = min(weight for weight in (*of_fast, 0.0) if weight > -math.inf)
        self.exact = [k for k in range(self.n_components) if wide or not magnitudes[k] <= limit]
        if self.exact and not wide:
            coefficients = coefficients.select(torch.tensor(self.fast, dtype=torch.int64, device=frame.centre.device))
        self.homogeneous = self.device.type == "cuda" and not self.exact and coefficients.projections is None
        self._homogeneous: Tensor | None = None
        self.given_coefficients = coefficients
        if dtype != coefficients.bias.dtype:
            coefficients = coefficients.select(slice(None), dtype)
        self.coefficients = coefficients if self.homogeneous else coefficients.to(self.device)
        self.centre = frame.to(self.device).centre.to(dtype)
        self._parts = {(0, len(coefficients.bias)): self.coefficients}
        self._divisions: dict[tuple[int, int], tuple[slice, Tensor, Tensor | slice, Tensor, Covariance]] = {}

    @cached_property
    def mixture(self) -> Mixture:
        """The mixture where the rows are; passes by products alone do not need it."""
        return self.given.to(self.device)

    @cached_property
    def class_of(self) -> Tensor:
        """The class of each component, where the rows are."""
        return self.given.class_of.to(self.device)

    @cached_property
    def _local_frame(self) -> Frame:
        return self.frame.to(self.device)

    @cached_property
    def fast(self) -> list[int]:
        """The components that take the fast path."""
        return sorted(set(range(self.n_components)) - set(self.exact))

    @cached_property
    def log_weights(self) -> Tensor:
        """The log weights as a column, (K, 1)."""
        return self.mixture.log_weights.to(self.dtype).unsqueeze(-1)

    @cached_property
    def _pairs(self) -> tuple[Tensor, Tensor]:
        """i and j of each product of two features, kept for a recording that reads them."""
        return triangle(self.n_features, self.device)[:2]

    @property
    def n_shared(self) -> int:
        """Number of shared features that are computed for a row."""
        return 0 if len(self.exact) == self.n_components else self.n_columns

    @property
    def loaded_dtype(self) -> torch.dtype | None:
        """The precision of the rows that `evaluate` takes; None if its first operation converts them."""
        return None if self.homogeneous else self.dtype

    @property
    def has_marginals(self) -> bool:
        """Whether matrix products serve for rows with missing values (marginal-woodbury) with sufficient precision."""
        return not self.exact and self.given.covariance.has_marginals

    def split(self, kernels: ModuleType) -> SplitCoefficients | None:
        """The coefficients in halves, for kernels that compute in single precision.

        None if these would lose too many digits: of rows far from the centre, in standard deviations, or of the moments
        of a component with next to no weight.
        """
        coefficients, frame = self.given_coefficients, self.frame
        shared, weights = coefficients.shared, coefficients.weights
        if self.exact or weights is None or coefficients.projections is not None:
            return None
        if shared not in (QUADRATICS, SQUARES) or self.n_components > kernels.MOST_COMPONENTS:
            return None
        spread = (weights * coefficients.phi(frame.radii.unsqueeze(1))[:, 0]).norm(dim=1).amax()
        if not float(spread) <= kernels.MOST_SPREAD or self.smallest < LEAST_LOG_WEIGHT:
            return None
        return kernels.SplitCoefficients.of(
            weights, coefficients.bias, frame.centre, frame.radii, shared is QUADRATICS, self.device
        )

    def log_joint(
        self, chunk: LoadedChunk, buffers: Buffers, inside: bool, scores_of: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Log joints (K, n) of rows inside or outside the frame; `scores_of` computes those of complete rows inside."""
        if scores_of is None or chunk.missing:
            scores, _ = self.evaluate(chunk, buffers)
        else:
            scores = scores_of(chunk.rows)
        if not inside and (among := self.far_rows(chunk)) is not None:
            far, own_scores = among
            scores[:, far] = own_scores.to(scores.dtype)
        return scores

    def far_rows(self, chunk: LoadedChunk) -> tuple[Tensor, Tensor] | None:
        """The rows outside the frame, and their log joints (K, n) by the exact path; None if all have taken it."""
        if len(self.exact) == self.n_components:
            return None
        far = ((chunk.rows - self.centre).abs() > self._local_frame.radii).any(1).nonzero()[:, 0]
        if not len(far):
            return None
        part = LoadedChunk(chunk.rows[far], far, chunk.components, chunk.missing)
        return far, self._everywhere_exact.evaluate(part, Buffers())[0]

    @cached_property
    def _everywhere_exact(self) -> Evaluator:
        everywhere = Frame(self.frame.centre, torch.full_like(self.frame.radii, torch.inf))
        return Evaluator(self.given, everywhere, self.dtype, device=self.device)

    def evaluate(self, chunk: LoadedChunk, buffers: Buffers) -> tuple[Tensor, Accumulate]:
        """Log joints (K', n), and a function that adds the moments with weights (K', n) to sums.

        Both are valid until the next chunk is evaluated with the same buffers.
        """
        if self.homogeneous and not chunk.missing:
            return self._by_homogeneous_products(chunk, buffers)
        chunk = replace(chunk, rows=chunk.rows.to(self.dtype))
        if chunk.missing:
            return self._by_marginals(chunk) if self.has_marginals else self._by_conditioning(chunk)
        if self.exact:
            return self._by_both(chunk, buffers)
        coefficients = self._part(chunk.components)
        shape = (len(coefficients.bias), len(chunk.rows))
        scores = buffers.get("scores", shape, chunk.rows)
        scores, features = coefficients.forward(self._phi(chunk.rows, buffers), scores)
        return scores, lambda sums, weights: coefficients.pullback(sums.products, features, weights, chunk.components)

    def _by_homogeneous_products(self, chunk: LoadedChunk, buffers: Buffers) -> tuple[Tensor, Accumulate]:
        """Log joints on a GPU, with the bias as the weight of a constant feature.

        One product gives the scores of all components, and one gives counts and moments. On a GPU each operation is a
        launch and a pass over memory.
        """
        weights, phi = self._homogeneous_weights(chunk.components), self._homogeneous_phi(chunk.rows, buffers)
        n_components = len(weights)
        if n_components > SIDE_BY_SIDE:  # the scores of a row lie side by side in memory
            scores = buffers.get("scores", (len(chunk.rows), n_components), phi)
            scores = torch.mm(phi.T, weights.T, out=scores).T
        else:
            scores = torch.mm(weights, phi, out=buffers.get("scores", (n_components, len(chunk.rows)), phi))

        def accumulate(sums: Sums, signed: Tensor) -> None:
            assert sums.homogeneous is not None
            total = sums.homogeneous[chunk.components]
            if signed.dtype == torch.float64:
                total.addmm_(signed, phi.T)
            else:
                total += torch.mm(signed, phi.T)

        return scores, accumulate

    def _homogeneous_weights(self, components: slice) -> Tensor:
        """The homogeneous weights of some components where the rows are, (K', Q)."""
        if self._homogeneous is None:
            self._homogeneous = self.homogeneous_weights().to(self.device)
        return self._homogeneous[components]

    def homogeneous_weights(self) -> Tensor:
        """Weights, bias and zeros up to a multiple of `FEATURE_MULTIPLE`, (K, Q), where the mixture is."""
        weights, bias = self.coefficients.weights, self.coefficients.bias
        assert weights is not None
        parts = torch.cat((weights, bias.unsqueeze(1)), 1)
        return torch.nn.functional.pad(parts, (0, -(self.n_columns + 1) % FEATURE_MULTIPLE))

    def read_from(self, weights: Tensor) -> None:
        """Read homogeneous weights (K, Q) from here in all operations that follow."""
        self._homogeneous = weights
        _ = self.class_of, self._pairs

    def _homogeneous_phi(self, rows: Tensor, buffers: Buffers) -> Tensor:
        """The shared features of rows about the centre, then a one, then zeros, (Q, n)."""
        (n_rows, size), n_columns = rows.shape, self.n_columns
        height = n_columns + 1 + -(n_columns + 1) % FEATURE_MULTIPLE
        place, known = buffers.homogeneous or (-1, self.centre[:0])
        if place != n_columns or known.shape[1] < n_rows or known.dtype != self.dtype:
            known = self.centre.new_zeros(height, -(-n_rows // ROW_MULTIPLE) * ROW_MULTIPLE)
            known[n_columns] = 1.0
            buffers.homogeneous = n_columns, known
        phi = known[:, :n_rows]
        torch.sub(rows.T, self.centre.unsqueeze(-1), out=phi[:size])
        kernels, shared = kernels_for(phi), self.coefficients.shared
        if kernels is not None and shared is QUADRATICS:
            kernels.products(phi[:size], *self._pairs, phi[size:n_columns])
        elif shared is not None:
            for target, left, right in shared.factors(phi[:size], phi[size:n_columns]):
                torch.mul(left, right, out=target)
        return phi

    def _part(self, components: slice) -> Coefficients:
        """The coefficients of some of the components that take the fast path."""
        key = (components.start, components.stop)
        if key not in self._parts:
            self._parts[key] = self.coefficients.select(components)
        return self._parts[key]

    def _phi(self, rows: Tensor, buffers: Buffers) -> Tensor:
        """The shared features of rows about the centre, (P, n)."""
        n_rows, size = rows.shape
        known, shared = buffers.features, self.coefficients.shared
        if known is None or known[0].shape != (self.n_columns, n_rows) or known[0].dtype != rows.dtype:
            phi = rows.new_empty(self.n_columns, n_rows)
            buffers.features = known = (phi, [] if shared is None else shared.factors(phi[:size], phi[size:]))
        phi, views = known
        torch.sub(rows.T, self.centre.unsqueeze(-1), out=phi[:size])
        for target, left, right in views:
            torch.mul(left, right, out=target)
        return phi

    def _by_both(self, chunk: LoadedChunk, buffers: Buffers) -> tuple[Tensor, Accumulate]:
        """Some components on the fast path, the others on the exact path."""
        first, last = chunk.components.start, chunk.components.stop
        fast, fast_positions, exact, exact_positions, covariance = self._division(first, last)
        scores = chunk.rows.new_empty(last - first, len(chunk.rows))
        coefficients, features = self._part(fast), None
        if len(fast_positions):  # the shared features of wide rows take longer than the exact path itself
            scores[fast_positions], features = coefficients.forward(self._phi(chunk.rows, buffers))
        log_determinants = covariance.log_determinants.to(self.dtype).unsqueeze(-1)
        distances = covariance.distances_from(self.mixture.means[exact], chunk.rows, self.dtype)
        constant = self.n_features * LOG_TWO_PI
        scores[exact_positions] = self.log_weights[exact] - 0.5 * (distances + log_determinants + constant)

        def accumulate(sums: Sums, weights: Tensor) -> None:
            if features is not None:
                coefficients.pullback(sums.products, features, weights[fast_positions], fast)
            step = max(1, VALUES_TOGETHER // self.n_features)
            for start in range(0, len(exact_positions), step):
                part = slice(start, start + step)
                numbers = torch.arange(self.n_components, device=exact_positions.device)[exact][part]
                seconds = covariance.select(part).second_moments
                own_weights = weights[exact_positions[part]]
                sums.add_direct(self.mixture, numbers, self._deviations(chunk.rows, numbers), own_weights, seconds)

        return scores, accumulate

    def _division(self, first: int, last: int) -> tuple[slice, Tensor, Tensor | slice, Tensor, Covariance]:
        """Divide the components from first to before last into those on the fast path and those on the exact path.

        Returns the numbers of the fast ones, their positions, the exact ones, their positions, and their covariance.
        Indices stay on the device.
        """
        if (first, last) not in self._divisions:
            places = [place for place, k in enumerate(self.fast) if first <= k < last]  # among the fast ones
            fast = slice(places[0], places[-1] + 1) if places else slice(0, 0)
            numbers = ([self.fast[place] - first for place in places], [k for k in self.exact if first <= k < last])
            positions, exact = (
                torch.tensor(part, dtype=torch.int64, device=self.mixture.means.device) for part in numbers
            )
            chosen: Tensor | slice = exact if len(positions) else slice(first, last)  # a slice copies nothing
            covariance = self.mixture.covariance
            _ = covariance.log_determinants  # factorised once
            own = covariance if len(exact) == self.n_components else covariance.select(chosen)
            self._divisions[first, last] = (fast, positions, chosen, exact - first, own)
        return self._divisions[first, last]

    def _deviations(self, rows: Tensor, components: slice | Tensor) -> Tensor:
        """Deviations of rows from the means, (K', n, D): subtracted in double precision, then rounded."""
        return (rows.double() - self.mixture.means[components].unsqueeze(1)).to(self.dtype)

    # ---- rows with missing values ----

    def _marginals(self, chunk: LoadedChunk) -> tuple[Tensor, Covariance, LowRankMarginals]:
        """Log joints (K', n) of rows with missing values, the components, and their marginals."""
        parts = chunk.components
        observed = ~chunk.rows.isnan()
        rows = torch.where(observed, chunk.rows - self.centre, 0.0)
        covariance = self.mixture.covariance.select(parts)
        given = covariance.marginals(rows, observed, self.mixture.means[parts] - self._local_frame.centre)
        distances, log_determinants = given.solved()
        return self._log_joint(observed, parts, distances, log_determinants), covariance, given

    def _log_joint(self, observed: Tensor, parts: slice, distances: Tensor, log_determinants: Tensor) -> Tensor:
        constant = observed.sum(1, dtype=self.dtype) * LOG_TWO_PI
        return self.log_weights[parts] - 0.5 * (constant + log_determinants + distances)

    def _by_marginals(self, chunk: LoadedChunk) -> tuple[Tensor, Accumulate]:
        scores, covariance, given = self._marginals(chunk)
        first = chunk.components.start

        def accumulate(sums: Sums, weights: Tensor) -> None:
            for k in range(len(weights)):  # one at a time, to avoid an array of rows x components x features
                alone, (inverse, factors) = covariance.select(slice(k, k + 1)), given.posterior(k)
                missing_part = given.conditional_moments(k, inverse, weights[k])

                def second_moments(filled: Tensor, own: Tensor, alone=alone, other=missing_part) -> tuple[Tensor, ...]:
                    return _added(alone.second_moments(filled, own), other)

                where, filled = slice(first + k, first + k + 1), given.filled(k, factors).unsqueeze(0)
                sums.add_direct(self.mixture, where, filled, weights[k : k + 1], second_moments)

        return scores, accumulate

    def _condition(self, chunk: LoadedChunk) -> tuple[Tensor, Covariance, Conditioned]:
        """Log joints (K', n) of rows with missing values, and the components conditioned on the observed values."""
        parts = chunk.components
        observed = ~chunk.rows.isnan()
        deviations = torch.where(observed, self._deviations(chunk.rows, parts), 0.0)  # (K', n, D)
        covariance = self.mixture.covariance.select(parts)
        given = covariance.condition(deviations, observed)
        return self._log_joint(observed, parts, given.squared_distances, given.log_determinants), covariance, given

    def _by_conditioning(self, chunk: LoadedChunk) -> tuple[Tensor, Accumulate]:
        scores, covariance, given = self._condition(chunk)

        def second_moments(filled: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
            return _added(covariance.second_moments(filled, weights), covariance.conditional_moments(given, weights))

        def accumulate(sums: Sums, weights: Tensor) -> None:
            sums.add_direct(self.mixture, chunk.components, given.deviations, weights, second_moments)

        return scores, accumulate

    def expected(self, chunk: LoadedChunk) -> Tensor:
        """E[x | observed values] of rows with missing values, (n, D) (imputation)."""
        means = self.mixture.means
        if not self.has_marginals:
            log_joint, _, given = self._condition(chunk)
            completed = means.unsqueeze(1) + given.deviations  # (K, n, D)
            return (log_joint.softmax(0).unsqueeze(-1) * completed).sum(0).to(self.dtype)
        log_joint, _, given = self._marginals(chunk)
        total = torch.zeros_like(chunk.rows)
        for k, share in enumerate(log_joint.softmax(0)):
            total += share.unsqueeze(-1) * (means[k] + given.filled(k, given.posterior(k)[1]))
        return total

    def no_sums(self) -> Sums:
        """Empty accumulators."""
        if not self.homogeneous:
            return Sums(self.coefficients.zeros())
        total = torch.zeros_like(self._homogeneous_weights(slice(None)), dtype=torch.float64)
        return Sums([total[:, self.n_columns], total[:, : self.n_columns]], homogeneous=total)

    def own_sums(self, sums: Sums | None) -> Sums:
        """Sums, or empty accumulators, where the mixture is."""
        return Sums(self.given_coefficients.zeros()) if sums is None else sums.moved(self.given.means.device)

    def moments(self, sums: Sums) -> Moments:
        """The sums as moments: about the centre if all rows took the fast path, otherwise about the means."""
        means, coefficients = self.given.means, self.given_coefficients
        total = coefficients.moments(sums.products, self.frame.centre)
        if self.exact:
            total = _placed(total.about(means[self.fast]), _empty_moments(self.given), self.fast)
        if sums.direct is None:
            return total
        return total.about(means) + sums.direct.moved(self.given.covariance.form, means)


def too_wide_for_products(covariance: Covariance) -> bool:
    """Whether products of two features would be too many; every row is then compared with every mean."""
    return isinstance(covariance.form, DenseForm) and QUADRATICS.n_columns(covariance.n_features) > MOST_FEATURES


def _added(parts: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(a + b for a, b in zip(parts, others, strict=True))


@dataclass
class Sums:
    """Accumulators of one thread: fast path about the centre, exact path about the means."""

    products: list[Tensor]
    direct: Moments | None = None
    homogeneous: Tensor | None = None  # (K, Q), counts and products together

    def add_direct(
        self,
        mixture: Mixture,
        components: slice | Tensor,
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

    def moved(self, device: torch.device) -> Sums:
        """The same sums on a device, in one copy where they are one tensor."""
        if self.products[0].device == device:
            return self
        if self.homogeneous is None:
            return Sums([part.to(device) for part in self.products], self.direct)
        whole, size = self.homogeneous.to(device), self.products[1].shape[1]
        return Sums([whole[:, size], whole[:, :size]], self.direct, whole)

    def add(self, other: Sums) -> None:
        for total, part in zip(self.products, other.products, strict=True):
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


def frame_of(mixture: Mixture, deviations: float = EXPECTED_DEVIATIONS) -> Frame:
    """The frame in which rows of a mixture are expected; it does not depend on the rows of a batch."""
    reach = deviations * mixture.covariance.variances().sqrt()
    frame = framed(mixture.means.amin(0), mixture.means.amax(0))
    return Frame(frame.centre, ((mixture.means - frame.centre).abs() + reach).amax(0))


def move_for_passes(mixture: Mixture, source: Source, few: int = FEW_PARAMETERS) -> Mixture:
    """Move a mixture to where passes use it: to the rows, or to the host if it has few parameters."""
    if source.device.type == "cuda" and mixture.n_parameters <= few:
        return mixture.on_host
    return mixture.to(source.device)


def computing_dtype(source: Source) -> torch.dtype:
    """float64 on the CPU and on GPUs with fast float64; otherwise the precision of the rows."""
    if source.device.type == "cuda" and torch.cuda.get_device_capability(source.device) not in FAST_DOUBLE:
        return source.dtype
    return torch.float64 if source.device.type in ("cpu", "cuda") else source.dtype


def evaluator_for(mixture: Mixture, source: Source, frame: Frame) -> Evaluator:
    """The evaluator for rows of a source."""
    dtype = computing_dtype(source)
    rounded = source.device.type == "cuda" and source.dtype == torch.float32 and dtype == torch.float64
    return Evaluator(mixture, frame, dtype, ROUNDED_TOLERANCE if rounded else None, source.device)
