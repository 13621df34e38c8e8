"""Marginals of diagonal plus low rank: rows with any missing cells, all rows and components by matrix products.

Sigma = diag(psi) + sign F F' without the missing rows and columns is of the same kind. With o the observed cells of
row n and y = F_o' Psi_o^-1 d_o (marginal-woodbury),

    M_n = I + sign sum_o F_d F_d' / psi_d,   d_o' Sigma_oo^-1 d_o = sum_o d^2 / psi - sign y' M_n^-1 y,
    |Sigma_oo| = |M_n| prod_o psi_d,         E[x_m | x_o] = mu_m + sign F_m M_n^-1 y.

M_n is linear in the mask: for all rows it is one product of the mask with a table of D x R (R + 1) / 2 numbers per
component, of which only one is held at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mixtura import linalg
from mixtura.covariances.product import unpack


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

    @property
    def squared_distances(self) -> Tensor:
        """(K, n)"""
        return self._solved[0]

    @property
    def log_determinants(self) -> Tensor:
        """(K, n)"""
        return self._solved[1]

    @cached_property
    def _pulled(self) -> Tensor:
        """y, (K, R, n): a product with the rows, less one with the mask."""
        scaled = self.loadings / self.uniquenesses.unsqueeze(-1)
        shifted = scaled * self.means.unsqueeze(-1)
        n_components, _, rank = scaled.shape
        pulled = scaled.mT.flatten(0, 1) @ self.rows.T
        return pulled.sub_(shifted.mT.flatten(0, 1) @ self.mask.T).unflatten(0, (n_components, rank))

    @cached_property
    def _solved(self) -> tuple[Tensor, Tensor]:
        weights = 1 / self.uniquenesses
        distances = weights @ self.rows.square().T
        distances += torch.addmm(
            (self.means.square() * weights) @ self.mask.T, self.means * weights, self.rows.T, alpha=-2
        )
        log_determinants = self.uniquenesses.log() @ self.mask.T
        for k in range(len(self.loadings)):
            squared, log_determinant = linalg.solve_many(self._inner(k), self._pulled[k])
            distances[k].sub_(squared, alpha=self.sign)
            log_determinants[k] += log_determinant
        return distances, log_determinants

    def _inner(self, k: int) -> Tensor:
        """M_n of all rows as lower triangles, (R (R + 1) / 2, n)."""
        rank = self.loadings.shape[-1]
        rows, columns = linalg.lower_triangle(rank, self.rows.device)
        scaled = self.loadings[k].T / self.uniquenesses[k]  # (R, D)
        table = scaled[rows] * self.loadings[k].T[columns]
        packed = table.mul_(self.sign) @ self.mask.T
        packed[rows == columns] += 1
        return packed

    # What a fit needs of a component beyond its densities.

    def inverse(self, k: int) -> Tensor:
        """M_n^-1, (n, R, R)."""
        matrices = unpack(self._inner(k).T, self.loadings.shape[-1])
        inverse, _ = linalg.invert_many(matrices.permute(1, 2, 0).contiguous())
        return inverse.permute(2, 0, 1)

    def filled(self, k: int, inverse: Tensor) -> Tensor:
        """Deviations from mean k, with the missing cells at their conditional expectation, (n, D)."""
        factors = (inverse @ self._pulled[k].T.unsqueeze(-1)).squeeze(-1)  # (n, R)
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
