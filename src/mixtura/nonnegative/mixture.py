"""The log-linear mixture as a frozen value, and the loops over its rows. It has class probabilities and no density."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from mixtura.numerics.cached_property import cached_property

# Below this a probability of the own class is taken in logs: the quotient of two such numbers has lost its digits.
SMALLEST_PROBABILITY = 1e-290
# What the scratch of a chunk holds for each row and basis: scores, gates, numerators and one intermediate.
SCRATCH_PER_CELL = 4 * 8


@dataclass(frozen=True)
class LogLinearMixture:
    """Bases exp(theta_j . x) with a weight for each class that uses them (log-linear):

        a[n, k] = log W_k + theta_{basis_of[k]} . x_n,      p(c | x) = sum_{k: class_of[k] = c} e^a_k / sum_k e^a_k.

    A component k is a pair of a class and a basis whose weight is not zero. Bases are private where each serves one
    class. The weights are natural ones: multiplying all of them by a number changes no probability, so that they need
    not sum to one; and nothing is normalised over x, so that there is no density.
    """

    log_weights: Tensor  # (K,)
    coefficients: Tensor  # (J, D) of the J bases
    class_of: Tensor  # (K,), sorted
    basis_of: Tensor  # (K,)
    n_classes: int

    @property
    def n_components(self) -> int:
        """Weights that are not zero."""
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
        """What part of a basis is of a class, V_cj = W_cj / sum_c W_cj, (C, J): columns sum to one (basis-shares)."""
        dense = self.coefficients.new_zeros(self.n_classes, self.n_bases)
        dense[self.class_of, self.basis_of] = (self.log_weights - self.log_totals[self.basis_of]).exp()
        return dense

    @cached_property
    def columns(self) -> list[slice | Tensor]:
        """The bases of each class: numbers, or a slice where they lie together; all bases where most are its own."""
        return [_as_slice(self.basis_of[self.class_of == c], self.n_bases) for c in range(self.n_classes)]

    def log_joint(self, rows: Tensor) -> Tensor:
        """Log joints, up to a number that is the same for all components of a row: (n, D) -> (n, K)."""
        return _times(rows, self.coefficients)[:, self.basis_of] + self.log_weights

    def log_probabilities(self, rows: Tensor) -> Tensor:
        """log p(c | x), (n, D) -> (n, C)."""
        scores = _times(rows, self.coefficients).add_(self.log_totals)  # (n, J)
        probabilities = scores.softmax(1) @ self.shares.T  # (n, C)
        if bool((probabilities > SMALLEST_PROBABILITY).all()):
            return probabilities.log()
        log_shares = self.shares.log()
        each = [(scores + log_shares[c]).logsumexp(1) for c in range(self.n_classes)]
        return torch.stack(each, 1).log_softmax(1)

    def kept(self, chosen: Tensor) -> LogLinearMixture:
        """With the chosen components (K,) alone; bases that nothing uses leave too."""
        used, basis_of = self.basis_of[chosen].unique(return_inverse=True)
        log_weights, class_of = self.log_weights[chosen], self.class_of[chosen]
        return LogLinearMixture(log_weights, self.coefficients[used], class_of, basis_of, self.n_classes)

    def rescaled(self, scales: Tensor, shifts: Tensor) -> LogLinearMixture:
        """The same probabilities for rows x that this mixture met as (x - shifts) / scales."""
        coefficients = self.coefficients / scales
        moved = self.log_weights - (coefficients @ shifts)[self.basis_of]
        return replace(self, log_weights=moved - moved.logsumexp(0), coefficients=coefficients)

    def to(self, device: torch.device | str) -> LogLinearMixture:
        """The same mixture on another device."""
        moved = {
            name: getattr(self, name).to(device) for name in ("log_weights", "coefficients", "class_of", "basis_of")
        }
        return replace(self, **moved)


def _as_slice(numbers: Tensor, n_bases: int) -> slice | Tensor:
    first, last = int(numbers.min()), int(numbers.max())
    if len(numbers) > n_bases // 2:  # picking columns costs a copy; zero shares do the same
        return slice(0, n_bases)
    return slice(first, last + 1) if last - first + 1 == len(numbers) else numbers


def _times(rows: Tensor, coefficients: Tensor) -> Tensor:
    """rows (n, D), dense or sparse, times coefficients' (D, J)."""
    if rows.layout is torch.strided:
        return rows @ coefficients.T
    with quietly():
        return rows @ coefficients.T.contiguous()


@contextmanager
def quietly() -> Iterator[None]:
    """Without torch's notes on sparse tensors: that they are new, and that their indices are not checked."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse", UserWarning)
        yield


def csr(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A sparse matrix by rows; indices as scipy checked them."""
    with quietly():
        return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)


@dataclass(frozen=True)
class ClassChunk:
    """Rows in memory together, sorted by class; `transposed` only where they are sparse."""

    features: Tensor  # (n, D), dense or CSR
    transposed: Tensor | None  # (D, n), CSR
    classes: tuple[slice, ...]  # the rows of each class
    weights: Tensor  # (n, 1)

    @cached_property
    def unweighted(self) -> bool:
        return bool((self.weights == 1).all())

    def scores(self, mixture: LogLinearMixture) -> Tensor:
        """log sum_c W_cj + theta_j . x_n, (n, J)."""
        return _times(self.features, mixture.coefficients).add_(mixture.log_totals)

    def firsts(self, responsibilities: Tensor, rows: slice | None = None) -> Tensor:
        """sum_n R_nj x_n, (n, J) -> (J, D); R may be of some rows only where these are dense."""
        if self.transposed is None:
            return responsibilities.T @ (self.features if rows is None else self.features[rows])
        with quietly():
            return (self.transposed @ responsibilities).T


@dataclass(frozen=True)
class LabeledRows:
    """Non-negative rows sorted by class, in chunks."""

    chunks: tuple[ClassChunk, ...]
    n_rows: int
    n_features: int
    weight: float
    largest_sum: float  # of the features of a row
    means: Tensor  # (D,)


def labeled_rows(features: Tensor, labels: Tensor, weights: Tensor, n_classes: int, step: int) -> LabeledRows:
    """Rows (n, D), dense or CSR, with class numbers (n,) and weights (n,), in chunks of at most step rows."""
    order = labels.argsort(stable=True)
    order = order[weights[order] > 0]
    labels, weights = labels[order], weights[order].unsqueeze(1)
    features = _picked(features, order)
    chunks = []
    for part in in_parts(len(labels), step):
        edges = torch.searchsorted(
            labels[part].contiguous(), torch.arange(n_classes + 1, device=labels.device)
        ).tolist()
        classes = tuple(slice(a, b) for a, b in pairwise(edges))
        block = features if step >= len(labels) else _picked(features, torch.arange(part.start, part.stop))
        chunks.append(ClassChunk(block, _transposed(block), classes, weights[part]))
    sums = _times(features, torch.ones(1, features.shape[1], dtype=features.dtype, device=features.device))
    total = float(weights.sum())
    means = sum(chunk.firsts(chunk.weights)[0] for chunk in chunks) / total
    assert isinstance(means, Tensor)
    return LabeledRows(tuple(chunks), len(labels), features.shape[1], total, float(sums.max()), means)


def _picked(features: Tensor, index: Tensor) -> Tensor:
    if features.layout is torch.strided:
        return features[index.to(features.device)]
    with quietly():
        chosen = features.to_sparse_coo().coalesce().index_select(0, index.to(features.device))
        return chosen.coalesce().to_sparse_csr()


def _transposed(features: Tensor) -> Tensor | None:
    if features.layout is torch.strided:
        return None
    with quietly():
        return features.to_sparse_coo().T.coalesce().to_sparse_csr()


@dataclass(frozen=True)
class Posterior:
    """The two sides of the signed responsibilities of a chunk, for bases (gate-posterior):

        r-_nj = gates_nj, the posterior of basis j among all;  r+_nj = r-_nj V_cj / p_n, that in the row's own class c,

    with p_n = p(c | x_n). Numerators are made where they are wanted. Rows whose p_n is too small for the quotient have
    factor zero, and their numerators are in `lost`.
    """

    gates: Tensor  # (n, J)
    factors: Tensor  # (n, 1), row weight over p_n
    log_probabilities: Tensor  # (n,)
    lost: tuple[tuple[int, Tensor, Tensor], ...] = ()  # class, numbers of rows, weighted numerators (n', J)


def posterior(
    mixture: LogLinearMixture,
    chunk: ClassChunk,
    scores: Tensor,
    gates: Tensor | None = None,
    log_factors: Tensor | None = None,
) -> Posterior:
    """Both sides at the mixture.

    Arguments:
        scores: of the mixture, (n, J); or of one with log weights of bases less by log_factors (J,), with gates given.
    """
    gates = scores.softmax(1) if gates is None else gates
    probabilities = torch.empty_like(chunk.weights[:, 0])
    for c, rows in enumerate(chunk.classes):
        columns = mixture.columns[c]
        probabilities[rows] = gates[rows][:, columns] @ mixture.shares[c, columns]
    small = probabilities < SMALLEST_PROBABILITY
    if not bool(small.any()):
        return Posterior(gates, chunk.weights / probabilities.unsqueeze(1), probabilities.log())
    factors = torch.where(
        small.unsqueeze(1), 0.0, chunk.weights / probabilities.clamp_min(SMALLEST_PROBABILITY).unsqueeze(1)
    )
    log_probabilities, lost = probabilities.clamp_min(SMALLEST_PROBABILITY).log(), []
    for c, rows in enumerate(chunk.classes):
        index = small[rows].nonzero()[:, 0] + rows.start
        everywhere = scores[index] if log_factors is None else scores[index] + log_factors
        own = everywhere + mixture.shares[c].log()
        log_probabilities[index] = own.logsumexp(1) - everywhere.logsumexp(1)
        lost.append((c, index, chunk.weights[index] * own.softmax(1)))
    return Posterior(gates, factors, log_probabilities, tuple(lost))


@dataclass(frozen=True)
class Counts:
    """What the weights need of the rows: log-likelihood, numerator counts (C, J), denominator counts (J,)."""

    value: float
    numerators: Tensor
    denominators: Tensor

    def __add__(self, other: Counts) -> Counts:
        numerators = self.numerators + other.numerators
        return Counts(self.value + other.value, numerators, self.denominators + other.denominators)


def counts_of(mixture: LogLinearMixture, chunk: ClassChunk, found: Posterior) -> Counts:
    """The counts of a chunk."""
    numerators = torch.zeros_like(mixture.shares)
    for c, rows in enumerate(chunk.classes):
        columns = mixture.columns[c]
        own = found.factors[rows][:, 0] @ found.gates[rows][:, columns]
        numerators[c, columns] = own * mixture.shares[c, columns]
    for c, _, parts in found.lost:
        numerators[c] += parts.sum(0)
    value = float(chunk.weights[:, 0] @ found.log_probabilities)
    return Counts(value, numerators, chunk.weights[:, 0] @ found.gates)


def sides(mixture: LogLinearMixture, chunk: ClassChunk, found: Posterior) -> tuple[Tensor, Tensor]:
    """sum_n r+_nj x_n and sum_n r-_nj x_n, (J, D) each (basis-moments)."""
    gates = found.gates if chunk.unweighted else found.gates * chunk.weights
    denominator = chunk.firsts(gates)
    if chunk.transposed is not None or found.lost or not _private(mixture):
        return chunk.firsts(_numerators(mixture, chunk, found)), denominator
    numerator = torch.zeros_like(mixture.coefficients)
    for c, rows in enumerate(chunk.classes):
        columns = mixture.columns[c]  # may hold bases of other classes, whose shares are zero
        own = chunk.firsts(found.gates[rows][:, columns] * found.factors[rows], rows)
        numerator[columns] += own * mixture.shares[c, columns].unsqueeze(1)
    return numerator, denominator


def net(mixture: LogLinearMixture, chunk: ClassChunk, found: Posterior) -> Tensor:
    """sum_n (r+_nj - r-_nj) x_n, (J, D): the gradient by the coefficients, in one product."""
    signed = _numerators(mixture, chunk, found)
    return chunk.firsts(signed.addcmul_(found.gates, chunk.weights, value=-1.0))


def _private(mixture: LogLinearMixture) -> bool:
    return mixture.n_components == mixture.n_bases and mixture.n_classes > 1


def _numerators(mixture: LogLinearMixture, chunk: ClassChunk, found: Posterior) -> Tensor:
    """Weighted numerators of all bases, (n, J)."""
    numerators = found.gates * found.factors
    for c, rows in enumerate(chunk.classes):
        numerators[rows] *= mixture.shares[c]
    for _, index, parts in found.lost:
        numerators[index] += parts
    return numerators


def losses_without(mixture: LogLinearMixture, rows: LabeledRows) -> Tensor:
    """An upper bound of what the log-likelihood loses when one weight becomes zero, (C, J) (weight-removal)."""
    losses = torch.zeros_like(mixture.shares)
    for chunk in rows.chunks:
        found = posterior(mixture, chunk, chunk.scores(mixture))
        shares_gone = (_numerators(mixture, chunk, found) / chunk.weights).clamp_max(1 - 1e-15)
        gone = shares_gone.neg_().log1p_().neg_()
        for c, part in enumerate(chunk.classes):
            losses[c] += chunk.weights[part][:, 0] @ gone[part]
        losses -= (chunk.weights[:, 0] @ found.gates) * mixture.shares
    return losses


def log_likelihood(mixture: LogLinearMixture, rows: LabeledRows) -> float:
    """sum_n weight_n log p(c_n | x_n)."""
    return sum(
        float(chunk.weights[:, 0] @ posterior(mixture, chunk, chunk.scores(mixture)).log_probabilities)
        for chunk in rows.chunks
    )


def chunk_rows(memory_limit: int, n_bases: int) -> int:
    """Rows whose scratch keeps within the limit."""
    return max(1, memory_limit // (SCRATCH_PER_CELL * n_bases))


def in_parts(n_rows: int, step: int) -> Iterator[slice]:
    """Slices of at most step rows."""
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))
