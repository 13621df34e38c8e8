"""Full covariance matrices, one per component."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from mixtura.files.registry import storable
from mixtura.numerics import linalg
from mixtura.roles import Covariance, Quadratic, Structure
from mixtura.values.moments import Moments, PseudoMoments


@storable("full")
@dataclass(frozen=True)
class Full(Structure):
    """Any positive definite matrix for each component."""

    name = "full"
    takes_categories = True

    @property
    def is_unrestricted(self) -> bool:
        return True

    def start(self, variances: Tensor, deviations: Tensor, assignments: Tensor, class_of: Tensor) -> FullCovariance:
        return FullCovariance(torch.diag_embed(variances))

    def from_tensors(self, tensors: dict[str, Tensor]) -> FullCovariance:
        return FullCovariance(tensors["matrices"])


@dataclass(frozen=True)
class FullCovariance(Covariance):
    """One covariance matrix per component.

    Parameters
    ----------
    matrices : Tensor of shape (K, D, D)
        Covariance matrices.
    """

    matrices: Tensor

    @classmethod
    def factorised(cls, matrices: Tensor, factors: Tensor, repaired: Tensor) -> FullCovariance:
        """Matrices with their factors, and a mask of those that were repaired."""
        covariance = cls(matrices)
        vars(covariance).update({"_factorised": (factors, torch.zeros_like(repaired)), "_repaired": repaired})
        return covariance

    @property
    def structure(self) -> Full:
        return Full()

    def dense(self) -> Tensor:
        return self.matrices

    def tensors(self) -> dict[str, Tensor]:
        return {"matrices": self.matrices}

    def updated(self, scatter: Moments, pseudo: PseudoMoments, floor: Tensor) -> FullCovariance:
        return FullCovariance(self.unrestricted_update(scatter, pseudo, floor)).safe()

    def safe(self) -> FullCovariance:
        repaired = self.repaired
        if not bool(repaired.any()):
            return self
        products = self.factors @ self.factors.mT
        return FullCovariance.factorised(
            torch.where(repaired[:, None, None], products, self.matrices), self.factors, repaired
        )

    def distances_from(self, means: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
        if rows.is_cuda:
            _ = self._inverse_factors  # once, before components are selected
        return super().distances_from(means, rows, dtype)

    def scaled(self, scales: Tensor) -> FullCovariance:
        return FullCovariance(self.matrices * (scales.unsqueeze(-1) * scales))

    @property
    def n_parameters(self) -> int:
        return self.n_components * self.n_features * (self.n_features + 1) // 2

    # For optimisers: the lower factors U of the precisions, Lambda = U U'. Densities then need no factorisation at all.

    def unconstrained(self) -> dict[str, Tensor]:
        factors, _ = linalg.safe_cholesky(self.precisions)
        diagonals = linalg.inverse_softplus(factors.diagonal(dim1=-2, dim2=-1))
        below, _ = _places(self.n_features, factors.device)
        return {"precision_diagonals": diagonals, "precision_factors": factors.flatten(1)[:, below]}

    def constrained(self, free: dict[str, Tensor]) -> FullCovariance:
        return FullCovariance(linalg.precisions(self._precision_factors(free)))

    def quadratic(self, free: dict[str, Tensor]) -> Quadratic:
        factors = self._precision_factors(free)
        return Quadratic(linalg.log_determinants(factors), None, factors)

    def _precision_factors(self, free: dict[str, Tensor]) -> Tensor:
        diagonals = torch.nn.functional.softplus(free["precision_diagonals"])
        size = diagonals.shape[1]
        below, diagonal = _places(size, diagonals.device)
        flat = diagonals.new_zeros(len(diagonals), size * size)
        flat = flat.index_copy(1, below, free["precision_factors"]).index_copy(1, diagonal, diagonals)
        return flat.unflatten(1, (size, size))


@lru_cache(maxsize=16)
def _places(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where a matrix that is laid out row by row has its entries below the diagonal, and those of the diagonal."""
    with torch.inference_mode(False):  # gradients may pass through them later
        rows, columns = torch.tril_indices(size, size, -1, device=device)
        return rows * size + columns, torch.arange(size, device=device) * (size + 1)
