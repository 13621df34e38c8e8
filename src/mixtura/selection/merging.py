"""Mixture reduction by merging pairs of components with their moments preserved (merge-loss)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mixtura.covariances import DiagonalCovariance, FullCovariance
from mixtura.model.mixture import Mixture
from mixtura.numerics.linalg import log_determinants, safe_cholesky
from mixtura.roles import Covariance
from mixtura.solvers.batched_em import Stack

# Largest number of matrix entries of pairs in memory at a time.
PAIR_NUMBERS = 2**22


def _union(
    weight: Tensor, weights: Tensor, mean: Tensor, means: Tensor, spread: Tensor, spreads: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, means and covariances of the unions of pairs of components."""
    total = weight + weights
    share = (weights / total.clamp_min(1e-300)).unsqueeze(-1)
    off = means - mean
    dense = spreads.ndim > means.ndim
    apart = off.unsqueeze(-1) * off.unsqueeze(-2) if dense else off.square()
    part = share.unsqueeze(-1) if dense else share
    return total, mean + share * off, spread + part * (spreads - spread) + part * (1 - part) * apart


def _spreads(covariance: Covariance) -> Tensor:
    """Variances (K, D) of diagonal covariances, matrices (K, D, D) of others."""
    return covariance.variances() if covariance.is_diagonal else covariance.dense()


def reduce_components(mixture: Mixture, n_components: Sequence[int]) -> tuple[Mixture, list[tuple[int, float]]]:
    """Merge components until each class has at most the given number; return the mixture and the merges (count, loss).

    The pair with the smallest loss is merged first. Weight, mean and covariance of every class do not change. Diagonal
    covariances stay diagonal, all others become full.
    """
    classes, merges = [], []
    whole = mixture.weights, mixture.means, _spreads(mixture.covariance)
    for part, wanted in zip(mixture.class_slices, n_components, strict=True):
        weights, means, spreads = (tensor[part].clone() for tensor in whole)
        table = _all_losses(weights, means, spreads) if len(weights) > wanted else means
        while len(weights) > wanted:
            i, j = divmod(int(table.argmin()), len(table))
            merges.append((len(weights) - 1, float(table[i, j])))
            weights[i], means[i], spreads[i] = _union(
                weights[i], weights[j], means[i], means[j], spreads[i], spreads[j]
            )
            kept = torch.arange(len(table), device=table.device) != j
            weights, means, spreads, table = weights[kept], means[kept], spreads[kept], table[kept][:, kept]
            others = torch.tensor([k for k in range(len(table)) if k != i], dtype=torch.int64, device=table.device)
            if len(others):
                losses = _losses(weights, means, spreads, i, others, _log_determinants(spreads, means))
                table[i, i + 1 :], table[:i, i] = losses[i:], losses[:i]
        classes.append((weights, means, spreads))
    counts = torch.tensor([len(weights) for weights, _, _ in classes])
    weights, means, spreads = (torch.cat(parts) for parts in zip(*classes, strict=True))
    covariance = FullCovariance(spreads).safe() if spreads.ndim == 3 else DiagonalCovariance(spreads)
    class_of = torch.repeat_interleave(counts).to(mixture.class_of.device)
    return Mixture(weights.log(), means, covariance, class_of), merges


def _all_losses(weights: Tensor, means: Tensor, spreads: Tensor) -> Tensor:
    """The losses of merging all pairs, (K, K), infinite on and below the diagonal."""
    n, known = len(weights), _log_determinants(spreads, means)
    table = torch.full((n, n), torch.inf, dtype=means.dtype, device=means.device)
    for i in range(n - 1):
        table[i, i + 1 :] = _losses(weights, means, spreads, i, torch.arange(i + 1, n, device=table.device), known)
    return table


def _losses(weights: Tensor, means: Tensor, spreads: Tensor, i: int, others: Tensor, known: Tensor) -> Tensor:
    """Upper bounds of the divergence caused by merging component i with each of m others (merge-loss), (m,):

    1/2 [(w_i + w_j) log |Sigma_ij| - w_i log |Sigma_i| - w_j log |Sigma_j|].
    """
    losses = []
    for part in others.split(max(1, PAIR_NUMBERS // spreads[0].numel())):
        total, _, united = _union(weights[i], weights[part], means[i], means[part], spreads[i], spreads[part])
        kept = weights[i] * known[i] + weights[part] * known[part]
        losses.append(0.5 * (total * _log_determinants(united, means) - kept))
    return torch.cat(losses)


def one_fewer(stack: Stack, n_components: Sequence[int]) -> list[Mixture]:
    """Merge one pair in every member and class of a stack with more components than given.

    All members have the same numbers of components. The pair with the smallest loss is merged. A shared matrix is that
    of the component with the larger weight until the next fit updates it.
    """
    mixture, n_members = stack.mixture, stack.n_members
    spreads = _spreads(mixture.covariance)
    parts, chosen = [], []
    for part, wanted in zip(mixture.class_slices, n_components, strict=True):
        place = torch.arange(part.start, part.stop, device=mixture.means.device).unflatten(0, (n_members, -1))
        own = [t[part].unflatten(0, (n_members, -1)) for t in (mixture.weights, mixture.means, spreads)]
        if place.shape[1] > wanted:
            own, kept = _merge_pairs(*own)
            place = place.gather(1, kept)
        parts.append([t.flatten(0, 1) for t in own])
        chosen.append(place.flatten())
    weights, means, united = (torch.cat(group) for group in zip(*parts, strict=True))
    index = torch.cat(chosen)
    covariance = mixture.covariance.select(index).matched(united)
    smaller = Mixture(weights.log(), means, covariance, mixture.class_of[index])
    left = Stack(stack.structure, smaller, stack.member_of[index], n_members)
    return [left.member(b) for b in range(n_members)]


def _merge_pairs(weights: Tensor, means: Tensor, spreads: Tensor) -> tuple[list[Tensor], Tensor]:
    """Merge one pair in each of B mixtures: weights (B, K - 1), means, covariances, and the original components."""
    n_members, n = weights.shape
    first, second = torch.triu_indices(n, n, 1, device=weights.device)
    known = _log_determinants(spreads, means)
    pairs = []
    for i, j in zip(first.split(_at_a_time(spreads)), second.split(_at_a_time(spreads)), strict=True):
        total, _, united = _union(weights[:, i], weights[:, j], means[:, i], means[:, j], spreads[:, i], spreads[:, j])
        kept = weights[:, i] * known[:, i] + weights[:, j] * known[:, j]
        pairs.append(total * _log_determinants(united, means) - kept)
    best = torch.cat(pairs, 1).argmin(1)  # (B,)
    i, j, members = first[best], second[best], torch.arange(n_members, device=weights.device)
    at_i, at_j = (members, i), (members, j)
    united = _union(weights[at_i], weights[at_j], means[at_i], means[at_j], spreads[at_i], spreads[at_j])
    heavier = torch.where(weights[at_i] >= weights[at_j], i, j)
    whole = [t.clone() for t in (weights, means, spreads)]
    place = torch.arange(n, device=weights.device).repeat(n_members, 1)
    for tensor, value in zip((*whole, place), (*united, heavier), strict=True):
        tensor[at_i] = value
    left = place.new_ones(n_members, n, dtype=torch.bool)
    left[at_j] = False
    return [t[left].unflatten(0, (n_members, n - 1)) for t in whole], place[left].unflatten(0, (n_members, n - 1))


def _at_a_time(spreads: Tensor) -> int:
    return max(1, PAIR_NUMBERS // spreads[:, 0].numel())


def _log_determinants(spreads: Tensor, means: Tensor) -> Tensor:
    """Of matrices (..., K, D, D), or of variances, which have the shape of the means (..., K, D)."""
    return log_determinants(safe_cholesky(spreads)[0]) if spreads.ndim > means.ndim else spreads.log().sum(-1)
