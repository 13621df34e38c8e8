"""Marginals of diagonal plus low rank: matrix products for all rows and components and any missing values.

Sigma = diag(psi) + sign F F' without the missing rows and columns is of the same kind. With o the observed features
of row n and y = F_o' Psi_o^-1 d_o (marginal-woodbury),

    M_n = I + sign sum_o F_d F_d' / psi_d,   d_o' Sigma_oo^-1 d_o = sum_o d^2 / psi - sign y' M_n^-1 y,
    |Sigma_oo| = |M_n| prod_o psi_d,         E[x_m | x_o] = mu_m + sign F_m M_n^-1 y.

M_n is linear in the mask, and so is what the means add to y: with g = (F, mu) / sqrt(psi), both are parts of
A_n = I + sign sum_o g_d g_d', S x S: all but its last row and column, and the rest of that row. For many rows A_n is
one product of the mask with a table of S (S + 1) / 2 numbers per feature. Where few values are missing, or few
observed, the vectors g of just those are multiplied with themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from mixtura.numerics import linalg

# Numbers in the R x R systems held at once, on a CPU and on a GPU.
MOST_IN_CACHE, MOST_TOGETHER = 2**17, 2**27
# Largest table, in numbers, for which a product with the whole mask is cheap for any number of missing values.
SMALL_TABLE = 2**16
# Fraction of missing (or observed) values below which their own products cost less than one with the whole mask.
FEW = 0.2
BLOCK_ROWS = 250  # rows whose systems are computed together: more exceed the cache, far fewer need many calls


@dataclass(frozen=True)
class MaskBlock:
    """Neighbours with few missing values, with few observed ones, or with many of both kinds."""

    where: slice
    values: Tensor | None = None  # (n', m): positions of the few that are missing, or observed, filled up with D
    missing: bool = False  # whether these are missing


def _blocks_of(mask: Tensor, side: int) -> list[MaskBlock]:
    """Blocks of neighbouring rows; best if rows are sorted by number of missing values."""
    n_rows, size = mask.shape
    if mask.device.type != "cpu" or size * side * (side + 1) // 2 <= SMALL_TABLE:
        return [MaskBlock(slice(0, n_rows))]
    observed = mask.sum(1)
    kinds = torch.where(observed >= (1 - FEW) * size, 0, torch.where(observed <= FEW * size, 1, 2))
    blocks, start = [], 0
    for run in kinds.split(kinds.unique_consecutive(return_counts=True)[1].tolist()):
        kind = int(run[0])
        for part in run.chunk(-(-len(run) // BLOCK_ROWS)):
            where = slice(start, start + len(part))
            blocks.append(MaskBlock(where, _positions(mask[where] == kind) if kind < 2 else None, kind == 0))
            start = where.stop
    return blocks


def _positions(chosen: Tensor) -> Tensor:
    """Positions of True in rows (n, D): (n, m), padded with D."""
    size = chosen.shape[1]
    places = torch.where(chosen, torch.arange(size), size).sort(1).values
    return places[:, : int(chosen.sum(1).max())]


def _tables(vectors: Tensor) -> Tensor:
    """The lower triangles of g_d g_d': (K, D, S) -> (K, D, S (S + 1) / 2)."""
    rows, columns = torch.tril_indices(vectors.shape[-1], vectors.shape[-1], device=vectors.device)
    return vectors[..., rows] * vectors[..., columns]


def _unpacked(packed: Tensor, side: int) -> Tensor:
    """Symmetric matrices from their lower triangles: (..., S (S + 1) / 2) -> (..., S, S)."""
    rows, columns = torch.tril_indices(side, side, device=packed.device)
    places = rows.new_empty(side, side)
    places[rows, columns] = places[columns, rows] = torch.arange(len(rows), device=packed.device)
    return packed[..., places]


@dataclass(frozen=True)
class LowRankMarginals:
    """K components and n rows; rows are zero for missing values and have the same reference as the means."""

    uniquenesses: Tensor  # (K, D)
    loadings: Tensor  # (K, D, R)
    roots: Tensor  # (K, R, R), of M of a complete row
    means: Tensor  # (K, D)
    sign: float
    rows: Tensor  # (n, D)
    mask: Tensor  # (n, D), one where observed

    def solved(self) -> tuple[Tensor, Tensor]:
        """Squared distances and log-determinants, (K, n)."""
        weights = 1 / self.uniquenesses
        distances = weights @ self.rows.square().T
        distances += torch.addmm(
            (self.means.square() * weights) @ self.mask.T, self.means * weights, self.rows.T, alpha=-2
        )
        log_determinants = self.uniquenesses.log() @ self.mask.T
        step = self._n_together
        for first in range(0, len(self.loadings), step):
            part = slice(first, first + step)
            for where, inner, pulled in self._systems(part):
                factors = linalg.safe_cholesky(inner)[0]
                solved = linalg.solve_lower(factors, pulled.unsqueeze(-1)).squeeze(-1)
                distances[part, where].sub_(solved.square().sum(-1), alpha=self.sign)
                log_determinants[part, where] += linalg.log_determinants(factors)
        return distances, log_determinants

    @property
    def _n_together(self) -> int:
        """Components whose R x R systems are solved together: limited by the cache on a CPU, many on a GPU."""
        if any(block.values is not None for block in self._blocks):
            return 1
        (n_rows, size), rank = self.rows.shape, self.loadings.shape[-1]
        if self.rows.device.type != "cpu":
            return max(1, MOST_TOGETHER // max(1, n_rows * rank**2))
        return max(1, MOST_IN_CACHE // max(1, n_rows * rank**2, size * rank**2 // 2))

    def _systems(self, part: slice) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Some rows, their M_n (K', n', R, R) and y (K', n', R) for some components."""
        loadings, uniquenesses = self.loadings[part], self.uniquenesses[part].unsqueeze(-1)
        vectors = torch.cat((loadings, self.means[part].unsqueeze(-1)), -1) / uniquenesses.sqrt()  # g, (K', D, R + 1)
        pulled = (loadings / uniquenesses).mT.contiguous() @ self.rows.T  # (K', R, n)
        complete = self.sign * vectors.mT @ vectors
        # Subtracting the missing values from larger sums could cancel more than half of the digits.
        precise = bool(complete.abs().amax() <= torch.finfo(complete.dtype).eps ** -0.5)
        identity, tables = torch.eye(vectors.shape[-1], dtype=vectors.dtype, device=vectors.device), None
        for block in self._blocks:
            if block.values is None or (block.missing and not precise):
                tables = _tables(vectors) if tables is None else tables
                systems = identity + self.sign * _unpacked(self.mask[block.where] @ tables, vectors.shape[-1])
            else:
                chosen = functional.pad(vectors, (0, 0, 0, 1))[:, block.values]  # (K', n', m, S)
                start, factor = (identity + complete, -self.sign) if block.missing else (identity, self.sign)
                systems = start.unsqueeze(-3) + factor * chosen.mT @ chosen
            inner, shifts = systems[..., :-1, :-1], systems[..., -1, :-1]
            yield block.where, inner, pulled[..., block.where].mT - self.sign * shifts

    @cached_property
    def _blocks(self) -> list[MaskBlock]:
        return _blocks_of(self.mask, self.loadings.shape[-1] + 1)

    # For fits: the conditional moments of one component.

    def posterior(self, k: int) -> tuple[Tensor, Tensor]:
        """M_n^-1 (n, R, R) and M_n^-1 y (n, R): covariance and mean of the factors given the observed values."""
        inverses, factors = [], []
        for _, inner, pulled in self._systems(slice(k, k + 1)):
            inverse = linalg.precisions(linalg.safe_cholesky(inner)[0][0])
            inverses.append(inverse)
            factors.append((inverse @ pulled[0].unsqueeze(-1)).squeeze(-1))
        return torch.cat(inverses), torch.cat(factors)

    def filled(self, k: int, factors: Tensor) -> Tensor:
        """Deviations from mean k, with missing values at their conditional expectation, (n, D)."""
        deviations = self.rows - self.mask * self.means[k]
        return deviations + self.sign * (1 - self.mask) * (factors @ self.loadings[k].T)

    def conditional_moments(self, k: int, inverse: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """sum_n weights Cov[x | x_o]: its diagonal (D,), and its product with the projections, (D, R).

        Cov = E_m (Psi + sign F M_n^-1 F') E_m with E_m the missing features. With T_d = sum over rows without value d
        of weights M_n^-1, row d of the product is F_d' T_d L, L the root of M of a complete row: since
        F' E_m P = sign (M - M_n) L^-T for the projections P, the rest cancels.
        """
        missing, loadings, rank = 1 - self.mask, self.loadings[k], self.loadings.shape[-1]
        weighted = inverse * weights[:, None, None]
        sums = (missing.T @ weighted.flatten(1)).unflatten(1, (rank, rank))  # T, (D, R, R)
        spread = (loadings.unsqueeze(1) @ sums).squeeze(1)  # F_d' T_d, (D, R)
        diagonal = (weights @ missing) * self.uniquenesses[k] + self.sign * (spread * loadings).sum(-1)
        return diagonal, spread @ self.roots[k]
