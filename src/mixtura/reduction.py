"""Fewer components: merging those whose union is most nearly a Gaussian again, with the moments kept (merge-loss)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.covariances import DiagonalCovariance, FullCovariance
from mixtura.linalg import log_determinants, safe_cholesky
from mixtura.mixture import Mixture
from mixtura.roles import Covariance, Structure

# Matrices of pairs that are held at a time, in numbers.
PAIR_NUMBERS = 2**22


@dataclass
class _Parts:
    """Components of one class: weights (K,), means (K, D), matrices (K, D, D) or variances (K, D)."""

    weights: Tensor
    means: Tensor
    spreads: Tensor

    @property
    def dense(self) -> bool:
        return self.spreads.ndim == 3

    def log_determinants(self, spreads: Tensor) -> Tensor:
        return log_determinants(safe_cholesky(spreads)[0]) if self.dense else spreads.log().sum(-1)

    def unions(self, first: int, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The moments of component `first` and each of the others together: weights, means, spreads."""
        total = self.weights[first] + self.weights[others]
        share = self.weights[others] / total.clamp_min(1e-300)  # (m,)
        off = self.means[others] - self.means[first]
        means = self.means[first] + share.unsqueeze(-1) * off
        apart = off.unsqueeze(-1) * off.unsqueeze(-2) if self.dense else off.square()
        share = share.reshape(-1, *(1,) * (self.spreads.ndim - 1))
        inner = self.spreads[first] + share * (self.spreads[others] - self.spreads[first])
        return total, means, inner + share * (1 - share) * apart

    def losses(self, first: int, others: Tensor, known: Tensor) -> Tensor:
        """By how much more the mixture may differ from the present one when they are merged (merge-loss), (m,):

        1/2 [(w_i + w_j) log |Sigma_ij| - w_i log |Sigma_i| - w_j log |Sigma_j|].
        """
        found = []
        for part in others.split(max(1, PAIR_NUMBERS // self.spreads[0].numel())):
            total, _, spreads = self.unions(first, part)
            kept = self.weights[first] * known[first] + self.weights[part] * known[part]
            found.append(0.5 * (total * self.log_determinants(spreads) - kept))
        return torch.cat(found)

    def all_losses(self) -> Tensor:
        """(K, K), infinite on and below the diagonal."""
        n, known = len(self.weights), self.log_determinants(self.spreads)
        table = torch.full((n, n), torch.inf, dtype=self.means.dtype, device=self.means.device)
        for i in range(n - 1):
            table[i, i + 1 :] = self.losses(i, torch.arange(i + 1, n, device=table.device), known)
        return table

    def merge(self, i: int, j: int) -> None:
        """Put the union of i and j in the place of i, and leave j out."""
        weight, mean, spread = self.unions(i, torch.tensor([j], device=self.means.device))
        self.weights[i], self.means[i], self.spreads[i] = weight[0], mean[0], spread[0]
        kept = torch.arange(len(self.weights), device=self.means.device) != j
        self.weights, self.means, self.spreads = self.weights[kept], self.means[kept], self.spreads[kept]


def _parts_of(mixture: Mixture, part: slice) -> _Parts:
    covariance = mixture.covariance
    inner = getattr(covariance, "inner", covariance)
    spreads = covariance.variances() if isinstance(inner, DiagonalCovariance) else covariance.dense()
    return _Parts(mixture.weights[part].clone(), mixture.means[part].clone(), spreads[part].clone())


def reduced(mixture: Mixture, n_components: Sequence[int]) -> tuple[Mixture, list[tuple[int, float]]]:
    """A mixture with at most so many components in each class, and the merges: what was left in the class, the loss.

    Greedy: the pair with the smallest loss goes first. Weights, mean and covariance of every class are kept exactly.
    Covariances that are diagonal stay so, all others become full.
    """
    classes, merges = [], []
    for part, wanted in zip(mixture.class_slices, n_components, strict=True):
        parts = _parts_of(mixture, part)
        table = parts.all_losses() if len(parts.weights) > wanted else parts.means
        while len(parts.weights) > wanted:
            i, j = divmod(int(table.argmin()), len(table))
            merges.append((len(parts.weights) - 1, float(table[i, j])))
            parts.merge(i, j)
            kept = torch.arange(len(table), device=table.device) != j
            table = table[kept][:, kept]
            _refresh(table, parts, i)
        classes.append(parts)
    spreads = torch.cat([parts.spreads for parts in classes])
    counts = torch.tensor([len(parts.weights) for parts in classes])
    return Mixture(
        torch.cat([parts.weights for parts in classes]).log(),
        torch.cat([parts.means for parts in classes]),
        FullCovariance.safe(spreads) if spreads.ndim == 3 else DiagonalCovariance(spreads),
        torch.repeat_interleave(counts).to(mixture.class_of.device),
    ), merges


def _refresh(table: Tensor, parts: _Parts, i: int) -> None:
    """The losses of component i, which is new, with all others."""
    n = len(table)
    others = torch.tensor([j for j in range(n) if j != i], dtype=torch.int64, device=table.device)
    if not len(others):
        return
    found = parts.losses(i, others, parts.log_determinants(parts.spreads))
    table[i, i + 1 :] = found[i:]
    table[:i, i] = found[:i]


def merged_once(structure: Structure, mixture: Mixture) -> Mixture:
    """The same mixture of one class with the cheapest pair merged, in its own structure: a start for one fewer.

    Matrices and variances are those of the union. Factors, and matrices that components share, stay those of the
    heavier one of the pair; a fit sets them right.
    """
    parts = _parts_of(mixture, slice(0, mixture.n_components))
    table = parts.all_losses()
    i, j = divmod(int(table.argmin()), len(table))
    heavier = i if parts.weights[i] >= parts.weights[j] else j
    order = [heavier if k == i else k for k in range(mixture.n_components) if k != j]
    parts.merge(i, j)
    chosen = torch.tensor(order, device=mixture.means.device)
    covariance = _in_structure(structure, mixture.covariance, chosen, parts.spreads)
    return Mixture(parts.weights.log(), parts.means, covariance, mixture.class_of[chosen])


def _in_structure(structure: Structure, covariance: Covariance, chosen: Tensor, spreads: Tensor) -> Covariance:
    tensors = covariance.tensors()
    if "groups" in tensors:
        return structure.from_tensors({**tensors, "groups": tensors["groups"][chosen]})
    tensors = {name: part[chosen] for name, part in tensors.items()}
    if "matrices" in tensors:
        tensors["matrices"] = spreads
    if "entries" in tensors:
        one = structure.name == "spherical"
        tensors["entries"] = spreads.mean(-1, keepdim=True).expand_as(spreads).contiguous() if one else spreads
    return structure.from_tensors(tensors)
