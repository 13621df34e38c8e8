"""The log-linear mixture, which has class probabilities but no density, and the loops over its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mixtura import checks
from mixtura.engine.tuning import CACHE_BYTES, FEWEST_ROWS
from mixtura.files.registry import storable
from mixtura.values.features import gather, weigh
from mixtura.values.sparse_rows import empty_rows, is_dense, pick, row_slice, squared, transposed, turned

# Class probabilities below this are computed in logarithms, because quotients of such numbers lose precision.
SMALLEST_PROBABILITY = 1e-290
# Share of the uniform distribution in the score of held-out rows. A column that is zero in nearly all rows may give one
# held-out row a log posterior of -1000, and early stopping would end at the initialisation.
SMOOTHING = 0.01
# Bytes of temporary arrays per row and basis: scores, gates, numerators and one intermediate result.
SCRATCH_PER_VALUE = 4 * 8


def rows_per_chunk(n_bases: int, n_features: int, memory_limit: int, device: torch.device) -> int:
    """Rows whose temporary arrays stay within the limit, and on a CPU in the cache of a core.

    With 480 bases and 100 features an iteration over 5000 rows takes 57 ms in chunks of 546 rows, and 102 ms in one.
    A chunk has several times as many rows as features, since it adds to the sums of all features and bases.
    """
    most = max(1, memory_limit // (SCRATCH_PER_VALUE * n_bases))
    if device.type != "cpu":
        return most
    return min(most, max(CACHE_BYTES // (SCRATCH_PER_VALUE * n_bases), FEWEST_ROWS, 4 * n_features))


@storable("log_linear_mixture", check=lambda mixture: mixture.check())
@dataclass(frozen=True)
class LogLinearMixture:
    """A mixture of log-linear bases exp(theta_j . x) with a weight for each class that uses a basis (log-linear):

        a[n, k] = log W_k + theta_{basis_of[k]} . x_n,      p(c | x) = sum_{k: class_of[k] = c} e^a_k / sum_k e^a_k.

    A component k is a pair of a class and a basis with positive weight. Probabilities are invariant to a common factor
    of all weights, so weights need not sum to one. Bases are not normalised over x: there is no density.
    """

    log_weights: Tensor  # (K,)
    coefficients: Tensor  # (J, D) of the J bases
    class_of: Tensor  # (K,), sorted
    basis_of: Tensor  # (K,)
    n_classes: int

    def check(self) -> None:
        """Raise a ValueError unless the parts are consistent."""
        if self.coefficients.ndim != 2 or self.coefficients.numel() == 0 or self.n_components == 0:
            raise ValueError("a mixture needs at least one basis, one feature and one weight")
        checks.numbers("coefficients", self.coefficients, (self.n_bases, self.n_features))
        checks.numbers("log weights", self.log_weights, (self.n_components,))
        checks.positions("class numbers", self.class_of, self.n_classes)
        checks.positions("numbers of bases", self.basis_of, self.n_bases)
        if not len(self.class_of) == len(self.basis_of) == self.n_components or bool((self.class_of.diff() < 0).any()):
            raise ValueError("class numbers are not sorted, or not one for each weight")

    @property
    def n_components(self) -> int:
        """Number of positive weights."""
        return len(self.log_weights)

    @property
    def n_bases(self) -> int:
        return self.coefficients.shape[0]

    @property
    def n_features(self) -> int:
        return self.coefficients.shape[1]

    @property
    def n_parameters(self) -> int:
        """Free parameters: weights up to their common scale, and coefficients."""
        return self.n_components - 1 + self.coefficients.numel()

    @property
    def weights(self) -> Tensor:
        """Dense view W, (C, J), summing to one; zero where a class does not use a basis."""
        dense = self.coefficients.new_zeros(self.n_classes, self.n_bases)
        dense[self.class_of, self.basis_of] = self.log_weights.softmax(0)
        return dense

    @cached_property
    def log_totals(self) -> Tensor:
        """log sum_c W_cj of each basis, (J,)."""
        largest = self.log_weights.new_full((self.n_bases,), -torch.inf)
        largest = largest.scatter_reduce(0, self.basis_of, self.log_weights, "amax")
        shares = (self.log_weights - largest[self.basis_of]).exp()
        return largest + torch.zeros_like(largest).index_add_(0, self.basis_of, shares).log()

    @cached_property
    def shares(self) -> Tensor:
        """Class shares of the bases, V_cj = W_cj / sum_c W_cj, (C, J); columns sum to one (basis-shares)."""
        dense = self.coefficients.new_zeros(self.n_classes, self.n_bases)
        dense[self.class_of, self.basis_of] = (self.log_weights - self.log_totals[self.basis_of]).exp()
        return dense

    def log_joint(self, rows: Tensor) -> Tensor:
        """Log joints up to a constant per row: (n, D) -> (K, n)."""
        scores = weigh(turned(rows), self.coefficients, torch.zeros_like(self.log_totals))
        return scores[self.basis_of] + self.log_weights.unsqueeze(1)

    def log_probabilities(self, rows: Tensor) -> Tensor:
        """log p(c | x), (n, D) -> (C, n)."""
        return log_shares(weigh(turned(rows), self.coefficients, self.log_totals), self.shares)

    def kept(self, chosen: Tensor) -> LogLinearMixture:
        """Keep the chosen components (K,) only, and drop bases without a component."""
        used, basis_of = self.basis_of[chosen].unique(return_inverse=True)
        log_weights, class_of = self.log_weights[chosen], self.class_of[chosen]
        return LogLinearMixture(log_weights, self.coefficients[used], class_of, basis_of, self.n_classes)

    def rescaled(self, scales: Tensor, shifts: Tensor) -> LogLinearMixture:
        """Convert a mixture of scaled rows, (x - shifts) / scales, to one of rows x with the same probabilities."""
        coefficients = self.coefficients / scales
        moved = self.log_weights - (coefficients @ shifts)[self.basis_of]
        return replace(self, log_weights=moved - moved.logsumexp(0), coefficients=coefficients)

    def to(self, device: torch.device | str) -> LogLinearMixture:
        """Copy the mixture to a device."""
        names = ("log_weights", "coefficients", "class_of", "basis_of")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def log_shares(scores: Tensor, shares: Tensor) -> Tensor:
    """log sum_j V_cj e^a_j / sum_j e^a_j: the class log-sum-exp where bases are shared, (J, n), (C, J) -> (C, n)."""
    probabilities = shares @ scores.softmax(0)
    if bool((probabilities > SMALLEST_PROBABILITY).all()):
        return probabilities.log()
    each = [(scores + own.log().unsqueeze(1)).logsumexp(0) for own in shares]
    return torch.stack(each).log_softmax(0)


@dataclass(frozen=True)
class ClassChunk:
    """Rows in memory together, and their classes.

    Sparse rows are kept by rows for scores and by features for sums: either product is fast in one of the two forms.
    """

    rows: Tensor  # (n, D), dense or CSR
    features: Tensor  # (D, n), dense or CSR
    labels: Tensor  # (n,)
    weights: Tensor  # (n,)

    def scores(self, mixture: LogLinearMixture) -> Tensor:
        """log sum_c W_cj + theta_j . x_n, (J, n)."""
        return weigh(turned(self.rows), mixture.coefficients, mixture.log_totals)

    def by_class(self, values: Tensor, n_classes: int) -> Tensor:
        """Weighted sums over the rows of each class: (J, n) -> (C, J)."""
        zeros = values.new_zeros(n_classes, len(values))
        return zeros.index_add_(0, self.labels, (values * self.weights).T)


@dataclass(frozen=True)
class LabeledRows:
    """Non-negative rows with their classes, in chunks."""

    chunks: Iterable[ClassChunk]  # read in every pass
    n_rows: int
    n_features: int
    weight: float
    largest_sum: float  # of the features of a row
    means: Tensor  # (D,)
    squares: Tensor  # (D,), means of the squared features

    @property
    def mean_square(self) -> float:
        """Mean squared length of a row."""
        return float(self.squares.sum())


def labeled_rows(features: Tensor, labels: Tensor, weights: Tensor, step: int) -> LabeledRows:
    """Rows (n, D), dense or CSR, with class numbers (n,) and weights (n,), in chunks of at most step rows."""
    counted = (weights > 0).nonzero()[:, 0]
    if len(counted) < len(weights):
        features, labels, weights = pick(features, counted), labels[counted], weights[counted]
    return with_totals([chunk_of(*part) for part in parts_of(features, labels, weights, step)])


def parts_of(features: Tensor, labels: Tensor, weights: Tensor, step: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Divide rows, labels and weights into parts of at most step rows."""
    for start in range(0, len(labels), step):
        part = slice(start, start + step)
        yield row_slice(features, part), labels[part], weights[part]


def chunk_of(rows: Tensor, labels: Tensor, weights: Tensor) -> ClassChunk:
    """The chunk of rows (n, D)."""
    return ClassChunk(rows, transposed(rows), labels, weights)


def with_totals(chunks: Iterable[ClassChunk]) -> LabeledRows:
    """Chunks with the totals that a fit needs, in one pass."""
    n_rows, n_features, total, largest = 0, 0, 0.0, 0.0
    sums: Tensor | None = None
    for chunk in chunks:
        n_rows, n_features, total = n_rows + len(chunk.labels), chunk.rows.shape[1], total + float(chunk.weights.sum())
        ones = chunk.weights.new_ones(1, n_features)
        largest = max(largest, float(weigh(turned(chunk.rows), ones, ones[:, 0] * 0).max()))
        parts = (chunk.features, squared(chunk.features))
        own = torch.stack([gather(part, chunk.weights.unsqueeze(0))[0] for part in parts])
        sums = own if sums is None else sums + own
    assert sums is not None
    return LabeledRows(chunks, n_rows, n_features, total, largest, *(sums / total))


def posterior(mixture: LogLinearMixture, chunk: ClassChunk) -> tuple[Tensor, Tensor, Tensor]:
    """log p(c | x_n) of the row's own class, (n,); numerators r+ and gates r- of the bases, (J, n) (gate-posterior):

        r-_nj, the posterior of basis j among all;  r+_nj = r-_nj V_cj / p(c | x_n), that among those of the own class,

    computed in logarithms if the probability is too small for a quotient.
    """
    scores = chunk.scores(mixture)
    gates, own = scores.softmax(0), mixture.shares.T[:, chunk.labels]
    numerators = gates * own
    probabilities = numerators.sum(0)
    safe = probabilities.clamp_min(SMALLEST_PROBABILITY)
    log_probabilities = safe.log()
    numerators /= safe
    lost = (probabilities < SMALLEST_PROBABILITY).nonzero()[:, 0]
    if len(lost):
        in_class = scores[:, lost] + own[:, lost].log()
        log_probabilities[lost] = in_class.logsumexp(0) - scores[:, lost].logsumexp(0)
        numerators[:, lost] = in_class.softmax(0)
    return log_probabilities, numerators, gates


@dataclass(frozen=True)
class Counts:
    """Sufficient statistics of the weights: log-likelihood, numerator counts (C, J), denominator counts (J,)."""

    value: float
    numerators: Tensor
    denominators: Tensor

    def __add__(self, other: Counts) -> Counts:
        numerators = self.numerators + other.numerators
        return Counts(self.value + other.value, numerators, self.denominators + other.denominators)


def counts_of(
    mixture: LogLinearMixture, chunk: ClassChunk, log_probabilities: Tensor, numerators: Tensor, gates: Tensor
) -> Counts:
    """The counts of a chunk, from its posterior."""
    by_class = chunk.by_class(numerators, mixture.n_classes)
    return Counts(float(chunk.weights @ log_probabilities), by_class, gates @ chunk.weights)


def basis_moments(chunk: ClassChunk, responsibilities: Tensor) -> Tensor:
    """sum_n r_nj x_n, (J, D), by numerators, gates, or their difference (basis-moments)."""
    return gather(chunk.features, responsibilities * chunk.weights)


def losses_without(mixture: LogLinearMixture, rows: LabeledRows) -> Tensor:
    """An upper bound of the loss of log-likelihood when one weight becomes zero, (C, J) (weight-removal)."""
    losses = torch.zeros_like(mixture.shares)
    for chunk in rows.chunks:
        _, numerators, gates = posterior(mixture, chunk)
        gone = -torch.log1p(-numerators.clamp_max(1 - 1e-15))
        losses += chunk.by_class(gone, mixture.n_classes) - (gates @ chunk.weights) * mixture.shares
    return losses


def log_likelihood(mixture: LogLinearMixture, rows: LabeledRows) -> float:
    """sum_n weight_n log p(c_n | x_n)."""
    return sum(float(chunk.weights @ posterior(mixture, chunk)[0]) for chunk in rows.chunks)


def smoothed_likelihood(mixture: LogLinearMixture, rows: LabeledRows) -> float:
    """sum_n weight_n log((1 - SMOOTHING) p(c_n | x_n) + SMOOTHING / C), which no single row dominates."""
    total = 0.0
    for chunk in rows.chunks:
        probabilities = posterior(mixture, chunk)[0].exp()
        total += float(chunk.weights @ ((1 - SMOOTHING) * probabilities + SMOOTHING / mixture.n_classes).log())
    return total


# Standard deviation of initial coefficients of columns of unit variance, and of initial scores of rows in other units:
# bases differ, and none dominates.
START_SCALE, SCORE_SCALE = 0.1, 0.5


def random_start(
    n_components: int,
    shared: bool,
    rows: LabeledRows,
    log_prior: Tensor,
    generator: torch.Generator,
    has_units: bool = True,
) -> LogLinearMixture:
    """Random coefficients, with equal bases and approximate class priors at the mean row.

    `has_units`: whether the columns have unit variance.
    """
    n_classes = len(log_prior)
    n_bases = n_components if shared else n_components * n_classes
    class_of = torch.arange(n_classes).repeat_interleave(n_components)
    basis_of = torch.arange(n_components).repeat(n_classes) if shared else torch.arange(n_bases)
    draws = torch.randn(n_bases, rows.n_features, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(class_of), generator=generator, dtype=torch.float64)
    device = log_prior.device
    scale = START_SCALE if has_units else SCORE_SCALE / max(rows.mean_square, 1e-300) ** 0.5
    coefficients = scale * draws.to(device)
    at_mean = log_prior[class_of.to(device)] + START_SCALE * noise.to(device)
    log_weights = at_mean - (coefficients @ rows.means)[basis_of.to(device)]
    log_weights = log_weights - log_weights.logsumexp(0)
    return LogLinearMixture(log_weights, coefficients, class_of.to(device), basis_of.to(device), n_classes)


def column_units(features: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The shift of each column (its smallest value) and its standard deviation, (D,); 0 and 1 for sparse rows.

    A rare word has a small standard deviation: divided by it, it would count for more than a frequent one. A constant
    column is divided by its value, or by one.
    """
    weights = weights.to(features.device)
    total = weights.sum()
    if not is_dense(features):
        zeros = torch.zeros(features.shape[1], dtype=torch.float64, device=features.device)
        return zeros, torch.ones_like(zeros)
    present = features[weights > 0]
    shifts = present.amin(0)
    means = (weights @ (features - shifts)) / total
    variances = (weights @ (features - shifts - means).square()) / total
    scales, values = variances.sqrt(), shifts + means
    flat = torch.where(values > 0, values, 1.0)
    return shifts, torch.where(scales > 1e-12 * values, scales, flat).clamp_min(1e-300)


def without_empty_rows(features: Tensor, weights: Tensor, class_totals: Callable[[Tensor], Tensor]) -> Tensor:
    """Set the weights of rows of zeros, which always get the class prior, to zero, unless a class has no other rows."""
    left = torch.where(empty_rows(features).to(weights.device), 0.0, weights)
    return left if bool((class_totals(left) > 0).all()) else weights
