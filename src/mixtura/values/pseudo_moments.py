"""Pseudo-moments: the contribution of a prior to the moments of the rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class PseudoMoments:
    """The contribution of a prior to the moments. Weights, means and covariances have separate counts.

    (map-update)  weight_k ~ counts_k + weight_count,
                  mean_k = (sum A x + mean_count * mean) / (counts_k + mean_count),
                  Sigma_k = [S_k + mean_count (mean_k - mean)(.)' + scatter] / (counts_k + 1[mean_count > 0]
                            + covariance_count) + ridge I.

    Counts are numbers, or one number per component; the covariance count may have one per distinct matrix (G,).
    """

    weight_count: float | Tensor
    mean_count: float | Tensor
    covariance_count: float | Tensor
    mean: Tensor  # (D,) or (K, D)
    scatter: Tensor  # of a diagonal matrix (D,) or (G, D), of any matrix (1, D, D) or (G, D, D): see moments.image
    ridge: float = 0.0

    @classmethod
    def none(cls, like: Tensor, ridge: float = 0.0) -> PseudoMoments:
        """Return the pseudo-moments of a flat prior; `like` has one number per feature."""
        zeros = torch.zeros_like(like)
        return cls(0.0, 0.0, 0.0, zeros, zeros, ridge)

    @cached_property
    def mean_counts(self) -> Tensor | None:
        """The mean counts as a column, () or (K, 1); None without a prior on the means."""
        if not isinstance(self.mean_count, Tensor) and self.mean_count <= 0:
            return None
        counts = torch.as_tensor(self.mean_count, dtype=self.mean.dtype, device=self.mean.device)
        if not bool((counts > 0).any()):
            return None
        return counts.unsqueeze(-1) if counts.ndim else counts

    @cached_property
    def has_scatter(self) -> bool:
        return bool((self.scatter != 0).any())
