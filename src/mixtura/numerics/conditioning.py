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
from torch.nn import functional

from mixtura.numerics import linalg
from mixtura.numerics.cached_property import cached_property

# The precision side of conditioning loses about eps * (variance inflation); beyond this the observed side is used.
LARGEST_INFLATION = 1e6
# Rows per pattern from which a matrix product per pattern is faster than copying the pattern's matrix to every row.
ROWS_PER_PATTERN = 8
# Share of the largest weight below which the conditional covariance of a row is left out: it does not change the sum.
NEGLIGIBLE = 1e-16
# Largest cost of padding, in cubed matrix sizes summed over matrices, before a separate block is cheaper: the calls for
# a block take about 0.5 ms, inverses 0.3 to 0.5 ns per unit. A fit of 899 x 64 values, 30 % missing, with 2 components
# for each of 10 classes takes 4.1 s with a block for every number of missing values, and 1.7 to 2.0 s from 3e5 to 4e6
# on.
PADDED_CUBES = 1e6


@dataclass(frozen=True)
class DenseGaussians:
    """K zero-mean Gaussians, to be conditioned on some of their features."""

    matrices: Tensor  # (K, D, D)
    factors: Tensor  # (K, D, D), their lower Cholesky factors
    precisions: Tensor  # (K, D, D)
    log_determinants: Tensor  # (K,), of the matrices

    @cached_property
    def _well_conditioned(self) -> bool:
        inflation = self.precisions.diagonal(dim1=-2, dim2=-1) * self.matrices.diagonal(dim1=-2, dim2=-1)
        return bool((inflation < LARGEST_INFLATION).all())

    @cached_property
    def _whitening(self) -> Tensor:
        """L^-T of the factors L: the squared distance of a row d is |d' L^-T|^2."""
        identity = torch.eye(self.factors.shape[-1], dtype=self.factors.dtype, device=self.factors.device)
        return linalg.solve_lower(self.factors, identity.expand_as(self.factors)).mT.contiguous()

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
            Squared distances of the observed values.
        log_determinants : Tensor of shape (K, n)
            Of the observed blocks.
        filled : Tensor of shape (K, n, D)
            The deviations, with missing values at their conditional expectation.
        blocks : list of PatternBlock
            Input of `conditional_covariances`.
        """
        n_components, n_rows, _ = deviations.shape
        distances = deviations.new_empty(n_components, n_rows)
        log_determinants = deviations.new_empty(n_components, n_rows)
        filled = deviations.clone()
        blocks = []
        for on_precision_side, rows in self._rows_of_blocks(observed):
            patterns, pattern_of = _patterns(observed[rows])
            features = _padded_features(~patterns if on_precision_side else patterns)  # (u, m): u patterns
            matrices = (self.precisions if on_precision_side else self.matrices).to(deviations.dtype)
            inverses = linalg.Inverses(_submatrices(matrices, features), may_sweep=self._well_conditioned)
            block = PatternBlock(on_precision_side, rows, features, pattern_of, inverses)
            side = self._on_precision_side if on_precision_side else self._on_observed_side
            distances[:, rows], filled[:, rows] = side(deviations[:, rows], block)
            log_determinants[:, rows] = inverses.log_determinants[:, pattern_of]
            if on_precision_side:
                log_determinants[:, rows] += self.log_determinants.to(deviations.dtype).unsqueeze(-1)
            blocks.append(block)
        return distances, log_determinants, filled, blocks

    def _rows_of_blocks(self, observed: Tensor) -> list[tuple[bool, Tensor]]:
        """Group rows whose matrices are inverted together, by the side that is used and the size of the matrices.

        Padding changes the last digits of a factor; it is left out if covariances are so ill-conditioned that results
        would depend on the other rows.
        """
        size = observed.shape[1]
        n_missing = size - observed.sum(1)
        on_precision_side = (2 * n_missing <= size) & self._well_conditioned
        sizes = torch.where(on_precision_side, n_missing, size - n_missing)
        keys = sizes + (size + 1) * on_precision_side
        order = keys.argsort(stable=True)
        values, counts = keys[order].unique_consecutive(return_counts=True)
        blocks: list[tuple[bool, int, int]] = []  # side, size of the matrices, number of rows
        for key, count in zip(values.tolist(), counts.tolist(), strict=True):
            side, m = divmod(key, size + 1)
            if blocks and blocks[-1][0] == bool(side):
                _, smaller, n_before = blocks[-1]
                if self._well_conditioned and len(self.matrices) * n_before * (m**3 - smaller**3) < PADDED_CUBES:
                    count += n_before
                    blocks.pop()
            blocks.append((bool(side), m, count))
        parts = order.split([count for _, _, count in blocks])
        return [(side, rows) for (side, _, _), rows in zip(blocks, parts, strict=True)]

    def _on_precision_side(self, deviations: Tensor, block: PatternBlock) -> tuple[Tensor, Tensor]:
        features = block.features[block.pattern_of]  # (n, m)
        pulled = deviations @ self.precisions.to(deviations.dtype)  # Lambda d, (K, n, D)
        at_missing = _take(pulled, features)  # (K, n, m)
        fill = block.times(at_missing)  # C Lambda_mo d_o, (K, n, m)
        filled = _put(deviations, features, -fill)
        # The fill minimises the distance of the whole row, so that its rounding errors have no effect of first order.
        # d_o' Lambda_oo d_o less its part along the fill would lose as many digits as variances are inflated.
        distances = (filled @ self._whitening.to(deviations.dtype)).square().sum(-1)
        return distances, filled

    def _on_observed_side(self, deviations: Tensor, block: PatternBlock) -> tuple[Tensor, Tensor]:
        features = block.features[block.pattern_of]  # (n, o)
        at_observed = _take(deviations, features)  # d_o, (K, n, o)
        if self._well_conditioned:
            pulled = block.times(at_observed)  # P d_o
            distances = (pulled * at_observed).sum(-1)
        else:
            pulled, distances = block.times_by_factors(at_observed)
        matrices = self.matrices.to(deviations.dtype)
        filled = _put(torch.zeros_like(deviations), features, pulled) @ matrices  # Sigma_.o P d_o
        return distances, _put(filled, features, at_observed)

    def conditional_covariances(self, blocks: list[PatternBlock], weights: Tensor) -> Tensor:
        """sum_n weights Cov[x | observed values], (K, D, D); blocks are those of `condition`, weights (K, n)."""
        n_components, size = self.matrices.shape[:2]
        total = weights.new_zeros(n_components, size, size)
        for block in blocks:
            features, own = block.features, weights[:, block.rows]
            places, width = _places(features, size)
            scattered = block.scattered(own, places, width * width)
            matrices_of_side = scattered.unflatten(1, (width, width))[:, :size, :size]
            if block.on_precision_side:
                total += matrices_of_side
            else:
                matrices = self.matrices.to(weights.dtype)
                total += own.sum(1)[:, None, None] * matrices - matrices @ matrices_of_side @ matrices
        return total


@dataclass(frozen=True)
class PatternBlock:
    """Rows with about equally many missing features, and the inverses that give their conditional covariances.

    Rows of a pattern are adjacent. Inverses are computed for the patterns that need them.
    """

    on_precision_side: bool
    rows: Tensor  # (n,), positions
    features: Tensor  # (u, m): those of the side, for each of u patterns, filled up with D, D + 1, ...
    pattern_of: Tensor  # (n,)
    matrices: linalg.Inverses  # (K, u, m, m)

    def times(self, vectors: Tensor) -> Tensor:
        """The inverse of each row's pattern times its vector: (K, n, m) -> (K, n, m)."""
        n_patterns, n_rows = self.matrices.log_determinants.shape[1], len(self.pattern_of)
        if n_patterns == n_rows:
            return self.matrices.times(vectors)
        inverses = self.matrices.every
        if n_rows < ROWS_PER_PATTERN * n_patterns:
            return (inverses[:, self.pattern_of] @ vectors.unsqueeze(-1)).squeeze(-1)
        sizes = self.pattern_of.bincount(minlength=n_patterns).tolist()
        parts = zip(vectors.split(sizes, 1), inverses.unbind(1), strict=True)  # (K, n_u, m), (K, m, m)
        return torch.cat([part @ matrices for part, matrices in parts], 1)

    def times_by_factors(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """As `times`, and the squared distances (K, n), with the digits that factors have and inverses have not."""
        factors = self.matrices.factors  # (K, u, m, m)
        if len(self.pattern_of) < ROWS_PER_PATTERN * factors.shape[1]:
            pulled, distances = linalg.solve_squared(factors[:, self.pattern_of], vectors.unsqueeze(-1))
            return pulled.squeeze(-1), distances.squeeze(-1)
        sizes = self.pattern_of.bincount(minlength=factors.shape[1]).tolist()
        parts = zip(vectors.split(sizes, 1), factors.unbind(1), strict=True)  # (K, n_u, m), (K, m, m)
        pulled, distances = zip(*(linalg.solve_squared(own, part.mT) for part, own in parts), strict=True)
        return torch.cat(pulled, 2).mT, torch.cat(distances, 1)

    def scattered(self, weights: Tensor, places: Tensor, n_places: int) -> Tensor:
        """The sum of weights (K, n) times inverses, whose entries have places (u m m,): (K, n_places)."""
        n_components, n_patterns = self.matrices.log_determinants.shape
        if n_patterns < len(self.pattern_of):
            weights = weights.new_zeros(n_components, n_patterns).index_add_(1, self.pattern_of, weights)
        size = weights.abs()
        chosen = size > NEGLIGIBLE * size.amax()  # components far away from a row have no weight there
        total = weights.new_zeros(n_components, n_places)
        if bool(chosen.all()):
            weighted = self.matrices.every * weights[..., None, None]
            return total.index_add_(1, places, weighted.reshape(n_components, -1))
        weighted = self.matrices.some(chosen) * weights[chosen][:, None, None]
        component, pattern = chosen.nonzero(as_tuple=True)
        places = places.view(n_patterns, -1)[pattern] + n_places * component.unsqueeze(1)
        return total.view(-1).index_add_(0, places.view(-1), weighted.reshape(-1)).view(n_components, n_places)


def _padded_features(chosen: Tensor) -> Tensor:
    """The features of each pattern of a mask (u, D), filled up to equally many with D, D + 1, ...: (u, m)."""
    counts = chosen.sum(1)
    largest = int(counts.max())
    filled_up = torch.arange(largest - int(counts.min()), device=chosen.device) < (largest - counts).unsqueeze(1)
    return torch.cat((chosen, filled_up), 1).nonzero()[:, 1].reshape(len(chosen), largest)


def _places(features: Tensor, size: int) -> tuple[Tensor, int]:
    """Positions of the pairs of features (u, m) in flattened matrices, (u m m,), and the width of these, at least D."""
    width = max(size, int(features.max()) + 1) if features.numel() else size
    return (features.unsqueeze(2) * width + features.unsqueeze(1)).reshape(-1), width


def _submatrices(matrices: Tensor, features: Tensor) -> Tensor:
    """Each matrix (K, D, D) at the features (u, m) of each pattern, (K, u, m, m); beyond D it is the identity."""
    n_components, size = matrices.shape[:2]
    places, width = _places(features, size)
    if width > size:
        matrices = functional.pad(matrices, (0, width - size, 0, width - size))
        matrices.diagonal(dim1=-2, dim2=-1)[:, size:] = 1.0
    entries = matrices.reshape(n_components, -1).index_select(1, places)
    return entries.reshape(n_components, *features.shape, features.shape[1])


def _patterns(observed: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct rows (u, D) of a mask whose equal rows are adjacent, and the pattern number of each row, (n,)."""
    changed = (observed[1:] != observed[:-1]).any(1)
    pattern_of = torch.cat((changed.new_zeros(1, dtype=torch.int64), changed.cumsum(0)))
    first = torch.cat((changed.new_ones(1), changed))
    return observed[first], pattern_of


def _take(values: Tensor, features: Tensor) -> Tensor:
    """values (K, n, D), zero beyond D, at features (n, m) of each row: (K, n, m)."""
    return _widened(values, features).gather(2, features.expand(len(values), -1, -1))


def _put(values: Tensor, features: Tensor, entries: Tensor) -> Tensor:
    """Copy values (K, n, D) with entries (K, n, m) put at features (n, m) of each row; those beyond D are dropped."""
    widened = _widened(values, features).scatter(2, features.expand(len(values), -1, -1), entries)
    return widened[..., : values.shape[-1]]


def _widened(values: Tensor, features: Tensor) -> Tensor:
    """Values (K, n, D) with zeros for the features beyond D."""
    width = int(features.max()) + 1 if features.numel() else 0
    return functional.pad(values, (0, max(0, width - values.shape[-1])))
