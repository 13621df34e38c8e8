"""The conjugate prior of a Gaussian mixture: Dirichlet, normal and Wishart (OT95 eq. 5-7), as pseudo-moments."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.roles import Covariance, PseudoMoments


@dataclass(frozen=True)
class Conjugate:
    """Shrinks every covariance towards a diagonal one (conjugate-prior):

        Sigma_k = (S_k + strength * diag(variances)) / (counts_k + strength).

    In the notation of OT95: 2 alpha - d - 1 = strength and 2 beta = strength * diag(variances), with a flat prior on
    the means; their printed update keeps one more count, from an improper prior on the means that is not flat.

    Arguments:
        strength: pseudo-rows behind the variances.
        variances: the variances to shrink to, (D,).
        concentration: of the Dirichlet prior on the weights; 1 is flat.
    """

    strength: float
    variances: Tensor
    concentration: float = 1.0

    def pseudo_moments(self, n_features: int) -> PseudoMoments:
        return PseudoMoments(
            weight_count=self.concentration - 1,
            mean_count=0.0,
            covariance_count=self.strength,
            mean=torch.zeros_like(self.variances),
            scatter=self.strength * self.variances,
        )

    def log_density(self, log_weights: Tensor, means: Tensor, covariance: Covariance) -> float:
        """Up to a constant: sum_k (concentration - 1) log w_k - strength / 2 sum_g [log |Sigma_g| + tr Sigma_g^-1 V].

        The second sum runs over distinct matrices: a tied covariance meets the prior once.
        """
        spread = covariance.distinct_log_determinants + covariance.penalty(self.variances)
        value = -0.5 * self.strength * spread.sum()
        if self.concentration != 1:
            value = value + (self.concentration - 1) * log_weights.sum()
        return float(value)


# Pseudo-rows per feature; benchmarks/results/default_prior.md has the held-out log-losses behind it (default-strength).
DEFAULT_STRENGTH_PER_FEATURE = 2.0


def default_strength(n_features: int) -> float:
    """Pseudo-rows of the default prior for this many features."""
    return max(2.0, DEFAULT_STRENGTH_PER_FEATURE * n_features)
