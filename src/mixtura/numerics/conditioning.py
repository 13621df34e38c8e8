"""Gaussians with dense covariance matrices, conditioned on the observed values of rows.

With m the missing and o the observed features of a row, either side of the matrix gives the conditional distribution
(conditional-covariance):

    precision side: Cov[x_m | x_o] = (Lambda_mm)^-1 =: C,  E[x_m | x_o] - mu_m = -C Lambda_mo d_o,
    observed side:  P := (Sigma_oo)^-1,  E[x | x_o] - mu = Sigma_.o P d_o,  Cov[x | x_o] = Sigma - Sigma_.o P Sigma_o.

so a row costs the cube of the smaller of the two, and rows with the same missing features share it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.numerics import linalg
from mixtura.numerics.cached_property import cached_property

# The precision side of conditioning loses about eps * (variance inflation); beyond this the observed side is used.
LARGEST_INFLATION = 1e6
# Rows per pattern from which a matrix product per pattern beats copying the pattern's matrix to every row.
ROWS_PER_PATTERN = 8


@dataclass(frozen=True)
class PatternBlock:
    """Rows with equally many missing features, and the inverses from which their conditional covariances are made."""

    on_precision_side: bool
    rows: Tensor  # (n',), positions
    features: Tensor  # (m, u): those of the side, for each of u patterns
    inverses: PatternMatrices


@dataclass(frozen=True)
class DenseGaussians:
    """K zero-mean Gaussians, to be conditioned on some of their features."""

    matrices: Tensor  # (K, D, D)
    precisions: Tensor  # (K, D, D)
    log_determinants: Tensor  # (K,), of the matrices

    @cached_property
    def _well_conditioned(self) -> bool:
        inflation = self.precisions.diagonal(dim1=-2, dim2=-1) * self.matrices.diagonal(dim1=-2, dim2=-1)
        return bool((inflation < LARGEST_INFLATION).all())

    def condition(self, deviations: Tensor, observed: Tensor) -> tuple[Tensor, Tensor, Tensor, list[PatternBlock]]:
        """Condition on the observed values of rows.

        Parameters
        ----------
        deviations : Tensor of shape (K, n, D)
            Deviations from the means, zero where a value is missing.
        observed : Tensor of shape (n, D)

        Returns
        -------
        squared_distances : Tensor of shape (K, n)
            Of the observed values.
        log_determinants : Tensor of shape (K, n)
            Of the observed blocks.
        filled : Tensor of shape (K, n, D)
            The deviations, with missing values at their conditional expectation.
        blocks : list of PatternBlock
            What `conditional_covariances` needs.
        """
        n_components, n_rows, size = deviations.shape
        distances = deviations.new_empty(n_components, n_rows)
        log_determinants = deviations.new_empty(n_components, n_rows)
        filled = deviations.clone()
        blocks = []
        for n_missing, rows in _rows_by_count((~observed).sum(1)):
            small_side = self._well_conditioned and 2 * n_missing <= size
            patterns, pattern_of = _patterns(observed[rows])
            chosen = ~patterns if small_side else patterns
            features = chosen.nonzero()[:, 1].reshape(len(patterns), -1).T  # (m, u): u patterns
            matrices = (self.precisions if small_side else self.matrices).to(deviations.dtype)
            inverse, log_determinant = linalg.invert_many(_submatrices(matrices, features))  # (m, m, u, K), (u, K)
            inverses = PatternMatrices(inverse, pattern_of)
            side = self._on_precision_side if small_side else self._on_observed_side
            distances[:, rows], filled[:, rows] = side(deviations[:, rows], features[:, pattern_of], inverses)
            log_determinants[:, rows] = log_determinant.T[:, pattern_of]
            if small_side:
                log_determinants[:, rows] += self.log_determinants.to(deviations.dtype).unsqueeze(-1)
            blocks.append(PatternBlock(small_side, rows, features, inverses))
        return distances, log_determinants, filled, blocks

    def _on_precision_side(
        self, deviations: Tensor, features: Tensor, inverses: PatternMatrices
    ) -> tuple[Tensor, Tensor]:
        pulled = deviations @ self.precisions.to(deviations.dtype)  # Lambda d, (K, n, D)
        at_missing = _take(pulled, features)  # (m, n, K)
        fill = inverses.times(at_missing)  # C Lambda_mo d_o, (m, n, K)
        distances = (deviations * pulled).sum(-1) - (fill * at_missing).sum(0).T
        return distances, _put(deviations, features, -fill)

    def _on_observed_side(
        self, deviations: Tensor, features: Tensor, inverses: PatternMatrices
    ) -> tuple[Tensor, Tensor]:
        at_observed = _take(deviations, features)  # d_o, (o, n, K)
        pulled = inverses.times(at_observed)  # P d_o
        distances = (pulled * at_observed).sum(0).T
        matrices = self.matrices.to(deviations.dtype)
        filled = _put(torch.zeros_like(deviations), features, pulled) @ matrices  # Sigma_.o P d_o
        return distances, _put(filled, features, at_observed)

    def conditional_covariances(self, blocks: list[PatternBlock], weights: Tensor) -> Tensor:
        """sum_n weights Cov[x | observed values], (K, D, D); blocks are those of `condition`, weights (K, n)."""
        n_components, size = self.matrices.shape[:2]
        total = weights.new_zeros(n_components, size, size)
        for block in blocks:
            features, inverses, own = block.features, block.inverses, weights[:, block.rows]
            places = (features.unsqueeze(1) * size + features.unsqueeze(0)).reshape(-1)
            weighted = (inverses.matrices * inverses.summed(own.T)).reshape(-1, n_components)
            scattered = weights.new_zeros(size * size, n_components).index_add_(0, places, weighted)
            matrices_of_side = scattered.T.reshape(-1, size, size)
            if block.on_precision_side:
                total += matrices_of_side
            else:
                matrices = self.matrices.to(weights.dtype)
                total += own.sum(1)[:, None, None] * matrices - matrices @ matrices_of_side @ matrices
        return total


@dataclass(frozen=True)
class PatternMatrices:
    """Matrices (m, m, u, K) of u patterns, and the pattern of every row, (n,); rows of a pattern are adjacent."""

    matrices: Tensor
    pattern_of: Tensor

    def times(self, vectors: Tensor) -> Tensor:
        """The matrix of each row's pattern times its vector: (m, n, K) -> (m, n, K)."""
        n_patterns, n_rows = self.matrices.shape[2], len(self.pattern_of)
        if n_patterns == n_rows:
            return (self.matrices * vectors).sum(1)
        if n_rows < ROWS_PER_PATTERN * n_patterns:
            return (self.matrices[:, :, self.pattern_of] * vectors).sum(1)
        sizes = self.pattern_of.bincount(minlength=n_patterns).tolist()
        parts = vectors.permute(2, 0, 1).split(sizes, 2)  # each (K, m, n_u)
        matrices = self.matrices.permute(2, 3, 0, 1)  # (u, K, m, m)
        return torch.cat([m @ part for m, part in zip(matrices, parts, strict=True)], 2).permute(1, 2, 0)

    def summed(self, values: Tensor) -> Tensor:
        """Values (n, K) of rows, summed over the rows of each pattern: (u, K)."""
        if self.matrices.shape[2] == len(self.pattern_of):
            return values
        return values.new_zeros(self.matrices.shape[2], values.shape[1]).index_add_(0, self.pattern_of, values)


def _submatrices(matrices: Tensor, features: Tensor) -> Tensor:
    """Entries (i, j, u, k) of each matrix at pairs of the features (m, u) of each pattern."""
    n_components, size = matrices.shape[:2]
    places = features.unsqueeze(1) * size + features.unsqueeze(0)  # (m, m, u)
    by_entry = matrices.reshape(n_components, -1).T.contiguous()
    return by_entry[places.reshape(-1)].reshape(*places.shape, n_components)


def _patterns(observed: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows of a mask (u, D) as far as equal ones are adjacent, and the number of each row's, (n,)."""
    changed = (observed[1:] != observed[:-1]).any(1)
    pattern_of = torch.cat((changed.new_zeros(1, dtype=torch.int64), changed.cumsum(0)))
    first = torch.cat((changed.new_ones(1), changed))
    return observed[first], pattern_of


def _rows_by_count(counts: Tensor) -> list[tuple[int, Tensor]]:
    order = counts.argsort(stable=True)
    values, sizes = counts[order].unique_consecutive(return_counts=True)
    return list(zip(values.tolist(), order.split(sizes.tolist()), strict=True))


def _take(values: Tensor, features: Tensor) -> Tensor:
    """values (K, n, D) at features (m, n) of each row: (m, n, K)."""
    index = features.T.expand(values.shape[0], -1, -1)
    return values.gather(2, index).permute(2, 1, 0)


def _put(values: Tensor, features: Tensor, entries: Tensor) -> Tensor:
    """A copy of values (K, n, D) with entries (m, n, K) put at features (m, n) of each row."""
    index = features.T.expand(values.shape[0], -1, -1)
    return values.scatter(2, index, entries.permute(2, 1, 0))
