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

import torch
from torch import Tensor

from mixtura import linalg
from mixtura.cached import cached_property

# Missing cells of which adding one after the other costs less than a product with the whole mask (measured: 18 %).
FEW = 0.15
# Numbers of the R x R systems that a GPU holds at once.
MOST_TOGETHER = 2**27


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
        """y, (K, R, n): a product with the rows, less a sum over their observed cells."""
        scaled = self.loadings / self.uniquenesses.unsqueeze(-1)
        shifted = scaled * self.means.unsqueeze(-1)
        n_components, _, rank = scaled.shape
        pulled = scaled.mT.flatten(0, 1) @ self.rows.T
        shifts = self._summed(shifted.transpose(0, 1).flatten(1))  # (n, K R)
        return pulled.sub_(shifts.T).unflatten(0, (n_components, rank))

    @cached_property
    def _solved(self) -> tuple[Tensor, Tensor]:
        weights = 1 / self.uniquenesses
        distances = weights @ self.rows.square().T
        distances += torch.addmm(
            (self.means.square() * weights) @ self.mask.T, self.means * weights, self.rows.T, alpha=-2
        )
        log_determinants = self.uniquenesses.log() @ self.mask.T
        step = self._n_together
        for first in range(0, len(self.loadings), step):
            part = slice(first, first + step)
            factors, _ = linalg.safe_cholesky(self._inner(part))  # (K', n, R, R)
            solved = linalg.solve_lower(factors, self._pulled[part].mT.unsqueeze(-1)).squeeze(-1)
            distances[part].sub_(solved.square().sum(-1), alpha=self.sign)
            log_determinants[part] += linalg.log_determinants(factors)
        return distances, log_determinants

    @property
    def _n_together(self) -> int:
        """Components whose R x R systems are solved at once: one stays in the cache, a GPU wants many."""
        if self.rows.device.type == "cpu":
            return 1
        return max(1, MOST_TOGETHER // max(1, len(self.rows) * self.loadings.shape[-1] ** 2))

    def _inner(self, part: slice) -> Tensor:
        """Lower triangles of M_n of all rows and some components, in (K', n, R, R)."""
        loadings, uniquenesses = self.loadings[part], self.uniquenesses[part]
        n_components, _, rank = loadings.shape
        columns, rows = torch.triu_indices(rank, rank, device=loadings.device).unbind()
        scaled = (loadings * (self.sign / uniquenesses).unsqueeze(-1)).transpose(0, 1)  # (D, K', R)
        tables = scaled[..., rows] * loadings.transpose(0, 1)[..., columns]  # (D, K', R (R + 1) / 2)
        packed = self._summed(tables.flatten(1))
        packed = packed.unflatten(1, (n_components, -1)).transpose(0, 1)  # (K', n, R (R + 1) / 2)
        inner = loadings.new_zeros(n_components, len(self.mask), rank * rank)
        inner[:, :, rows * rank + columns] = packed
        inner = inner.unflatten(-1, (rank, rank))
        inner.diagonal(dim1=-2, dim2=-1).add_(1)
        return inner

    @cached_property
    def _few_missing(self) -> tuple[Tensor, Tensor] | None:
        """The missing cells one after the other, and where those of each row begin, if they are few."""
        missing = self.mask == 0
        if self.rows.device.type != "cpu" or float(missing.to(self.mask.dtype).mean()) > FEW:
            return None
        counts = missing.sum(1)
        return missing.nonzero()[:, 1], counts.cumsum(0) - counts

    def _summed(self, tables: Tensor) -> Tensor:
        """Tables (D, T) summed over the observed cells of every row, (n, T)."""
        if self._few_missing is None:
            return self.mask @ tables
        cells, starts = self._few_missing
        missing = torch.nn.functional.embedding_bag(cells, tables, starts, mode="sum")
        return torch.sub(tables.sum(0), missing, out=missing)

    # What a fit needs of a component beyond its densities.

    def inverse(self, k: int) -> Tensor:
        """M_n^-1, (n, R, R)."""
        return linalg.precisions(linalg.safe_cholesky(self._inner(slice(k, k + 1))[0])[0])

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
