"""A sparse Dirichlet penalty on the class shares of bases, which drives small shares to zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# The penalty is linear for shares far below the corner, and a Dirichlet log density far above it.
CORNER = 0.01
N_NEWTON = 60  # Newton steps towards the root of a convex function; about five suffice


@dataclass(frozen=True)
class SparseShares:
    """A penalty on the class shares V_cj of bases, whose columns are on the simplex (sparse-shares):

        penalty(V) = strength sum_cj log(1 + V_cj / corner) / log(1 + 1 / corner).

    Above the corner it is, up to a constant, minus the log density of a Dirichlet distribution with exponents below
    one, which favours few and large shares. The corner keeps it finite at zero: a share of zero costs nothing, and a
    basis of a single class costs `strength`. Shares are invariant to the scale of the weights and of each basis, so
    that, unlike the sum of the weights (LZZ06, eq. 15), the penalty cannot be evaded by a change of scale.
    """

    strength: float
    corner: float = CORNER

    @property
    def unit(self) -> float:
        """Factor of the logarithms."""
        return self.strength / math.log1p(1 / self.corner)

    def value(self, shares: Tensor) -> float:
        """The penalty of shares (C, J)."""
        return self.unit * float((shares / self.corner).log1p().sum())

    def slopes(self, shares: Tensor) -> Tensor:
        """Its derivative by each share, (C, J)."""
        return self.unit / (shares + self.corner)

    def gradient(self, shares: Tensor) -> Tensor:
        """Its derivative by the log weights, of which shares are the softmax over a column, (C, J)."""
        parts = self.slopes(shares) * shares
        return parts - shares * parts.sum(0)

    def savings(self, shares: Tensor) -> Tensor:
        """Decrease of the penalty when one share becomes zero and its column is renormalised, (C, J)."""
        costs = (shares / self.corner).log1p()  # (C, J)
        left = (1 - shares).clamp_min(1e-300)  # (C, J), by the share that goes
        others = (shares.unsqueeze(1) / (left * self.corner)).log1p()  # (C, C, J): first the one that stays
        others = others.sum(0) - (shares / (left * self.corner)).log1p()
        others = torch.where(shares < 1 - 1e-12, others, 0.0)  # the only share of a basis has no others
        return self.unit * (costs.sum(0) - others)

    def maximised(self, counts: Tensor, shares: Tensor) -> Tensor:
        """Shares V with a larger sum_c counts_cj log V_cj - penalty(V), columns summing to one (shares-update).

        The penalty is concave in V, so its tangent at the current shares is an upper bound. With the tangent, the
        maximum is V_cj = counts_cj / (slope_cj + m_j), with m_j such that the column sums to one.
        """
        if self.strength == 0:
            return counts / counts.sum(0).clamp_min(1e-300)
        slopes = self.slopes(shares)
        multipliers = (counts - slopes).amax(0)  # one term alone is one here, so this is not to the right of the root
        for _ in range(N_NEWTON):
            parts = counts / (slopes + multipliers).clamp_min(1e-300)
            excess = parts.sum(0) - 1
            if bool((excess.abs() < 1e-14).all()):
                break
            slope = (parts / (slopes + multipliers).clamp_min(1e-300)).sum(0)
            multipliers = multipliers + excess / slope.clamp_min(1e-300)
        updated = counts / (slopes + multipliers).clamp_min(1e-300)
        return updated / updated.sum(0).clamp_min(1e-300)
