"""Marginals of diagonal plus low rank: rows with any missing cells, all rows and components by matrix products.

Sigma = diag(psi) + sign F F' without the missing rows and columns is of the same kind. With o the observed cells of
row n and y = F_o' Psi_o^-1 d_o (marginal-woodbury),

    M_n = I + sign sum_o F_d F_d' / psi_d,   d_o' Sigma_oo^-1 d_o = sum_o d^2 / psi - sign y' M_n^-1 y,
    |Sigma_oo| = |M_n| prod_o psi_d,         E[x_m | x_o] = mu_m + sign F_m M_n^-1 y.

M_n is linear in the mask, and so is what the means add to y: with g = (F, mu) / sqrt(psi), both are parts of
A_n = I + sign sum_o g_d g_d', which systems.py makes for all rows by matrix products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.covariances.systems import MaskBlock, Systems, blocks_of
from mixtura.numerics import linalg
from mixtura.numerics.buffers import Scratch
from mixtura.numerics.cached_property import cached_property

# Numbers of the R x R systems that are held at once, on a CPU and on a GPU.
MOST_IN_CACHE, MOST_TOGETHER = 2**17, 2**27


@dataclass(frozen=True)
class Marginals:
    """K components and n rows; rows are zero in missing cells, and about the same point as the means."""

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
                factors = self._factors(inner)
                solved = linalg.solve_lower(factors, pulled.unsqueeze(-1)).squeeze(-1)
                distances[part, where].sub_(solved.square().sum(-1), alpha=self.sign)
                log_determinants[part, where] += linalg.log_determinants(factors)
        return distances, log_determinants

    @property
    def _n_together(self) -> int:
        """Components whose R x R systems are solved at once: what stays in the cache, but a GPU wants many."""
        if any(block.cells is not None for block in self._blocks):
            return 1
        (n_rows, size), rank = self.rows.shape, self.loadings.shape[-1]
        if self.rows.device.type != "cpu":
            return max(1, MOST_TOGETHER // max(1, n_rows * rank**2))
        return max(1, MOST_IN_CACHE // max(1, n_rows * rank**2, size * rank**2 // 2))

    def _systems(self, part: slice) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Some rows, their M_n (K', n', R, R) and y (K', n', R) for some components; good until the next."""
        loadings, uniquenesses = self.loadings[part], self.uniquenesses[part].unsqueeze(-1)
        vectors = torch.cat((loadings, self.means[part].unsqueeze(-1)), -1) / uniquenesses.sqrt()  # g, (K', D, R + 1)
        pulled = (loadings / uniquenesses).mT.contiguous() @ self.rows.T  # (K', R, n)
        systems = Systems(vectors, self.sign, self._scratch)
        for block in self._blocks:
            inner, shifts = systems.of(block)
            yield block.where, inner, pulled[..., block.where].mT.sub(shifts, alpha=self.sign)

    def _factors(self, inner: Tensor) -> Tensor:
        """Cholesky factors, good until the next."""
        factors = self._scratch.buffer("factors", tuple(inner.shape), inner).mT  # column by column, as LAPACK wants it
        info = torch.empty(inner.shape[:-2], dtype=torch.int32, device=inner.device)
        return linalg.safe_cholesky(inner, out=(factors, info))[0]

    @cached_property
    def _blocks(self) -> list[MaskBlock]:
        return blocks_of(self.mask, self.loadings.shape[-1] + 1)

    @cached_property
    def _scratch(self) -> Scratch:
        return Scratch()

    # What a fit needs of a component beyond its densities.

    def posterior(self, k: int) -> tuple[Tensor, Tensor]:
        """M_n^-1 (n, R, R) and M_n^-1 y (n, R): covariance and mean of the factors given the observed cells."""
        inverses, factors = [], []
        for _, inner, pulled in self._systems(slice(k, k + 1)):
            inverse = linalg.precisions(self._factors(inner)[0])
            inverses.append(inverse)
            factors.append((inverse @ pulled[0].unsqueeze(-1)).squeeze(-1))
        return torch.cat(inverses), torch.cat(factors)

    def filled(self, k: int, factors: Tensor) -> Tensor:
        """Deviations from mean k, with the missing cells at their conditional expectation, (n, D)."""
        deviations = self.rows - self.mask * self.means[k]
        return deviations + self.sign * (1 - self.mask) * (factors @ self.loadings[k].T)

    def conditional_moments(self, k: int, inverse: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """sum_n weights Cov[x | x_o]: its diagonal (D,), and its product with the projections, (D, R).

        Cov = E_m (Psi + sign F M_n^-1 F') E_m with E_m the missing cells. With T_d = sum over rows without cell d of
        weights M_n^-1, row d of the product is F_d' T_d L, L the root of M of a complete row: since
        F' E_m P = sign (M - M_n) L^-T for the projections P, the rest cancels.
        """
        missing, loadings, rank = 1 - self.mask, self.loadings[k], self.loadings.shape[-1]
        weighted = inverse * weights[:, None, None]
        sums = (missing.T @ weighted.flatten(1)).unflatten(1, (rank, rank))  # T, (D, R, R)
        spread = (loadings.unsqueeze(1) @ sums).squeeze(1)  # F_d' T_d, (D, R)
        diagonal = (weights @ missing) * self.uniquenesses[k] + self.sign * (spread * loadings).sum(-1)
        return diagonal, spread @ self.roots[k]
