"""Scores of components and logits of classes, as functions of normalised features.

    a_k(x) = b_k + w_k' phi(x) + 1/2 |V_k' x|^2,    logit_c = log sum_{k in c} exp a_k              (head-scores)

phi holds the features and, for a quadratic part, their products; V is there for "low_rank" alone, where nothing of
size D x D is made. On a GPU a step with a small head takes as long as its operations take to launch, not to run, so
what counts there is how many they are, backward as well as forward (tests/test_launches.py).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

# Molchanov, Ashukha & Vetrov (2017), eq. 14: a fit of the divergence from the log-uniform prior.
KL_SLOPE, KL_SHIFT, KL_STEEPNESS = 0.63576, 1.87320, 1.48695
# Beyond these the divergence is flat, and the gradients of weights near zero would be all there is.
LARGEST_LOG_ALPHA = LARGEST_LOG_VARIANCE = 8.0
TINY = 1e-8
# Up to so many features the factors of all products come from one matrix product with ones and zeros, whose derivative
# is another; beyond, where that would be too much work, from a gather, whose derivative is several operations.
MOST_FEATURES_SELECTED = {"cuda": 64, "cpu": 40}


class Monomials(nn.Module):
    """phi: (n, D) -> (n, P), the features and then x_i x_j for i <= j ("full") or x_i^2 ("diagonal", "low_rank")."""

    pairs: Tensor  # (2, P - D), i and j
    selection: Tensor  # (D, 2 P), of ones and zeros: the first factors of all monomials, then the second ones
    constants: Tensor  # (2 P,), one where the second factor is no feature

    def __init__(self, n_features: int, quadratic: str):
        super().__init__()
        self.quadratic, self.n_features = quadratic, n_features
        pairs = torch.triu_indices(n_features, n_features) if quadratic == "full" else torch.empty(2, 0).long()
        self.register_buffer("pairs", pairs, persistent=False)
        extra = {"full": pairs.shape[1], "none": 0}.get(quadratic, n_features)
        self.n_monomials = n_features + extra
        if quadratic == "full" and n_features <= max(MOST_FEATURES_SELECTED.values()):
            unit = torch.eye(n_features)
            factors = (unit, unit[:, pairs[0]], torch.zeros_like(unit), unit[:, pairs[1]])
            self.register_buffer("selection", torch.cat(factors, 1), persistent=False)
            self.register_buffer("constants", 1 - self.selection.sum(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.quadratic == "none":
            return x
        if self.quadratic != "full":
            return torch.cat((x, x * x), 1)
        if self.n_features <= MOST_FEATURES_SELECTED.get(x.device.type, 0):
            first, second = torch.addmm(self.constants, x, self.selection).chunk(2, 1)
            return first * second
        first, second = x.index_select(1, self.pairs.view(-1)).chunk(2, 1)
        return torch.cat((x, first * second), 1)


def in_autocast(x: Tensor) -> bool:
    """Whether autocast is on for the device of these values."""
    kind = x.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)  # is_autocast_available does not compile in 2.11


def at_least_single(values: Tensor) -> Tensor:
    """In float32 where they were in half precision, in which small differences of scores would be rounded away."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def component_scores(
    monomials: Monomials,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    projection: Tensor | None = None,
    log_variances: Tensor | None = None,
    projection_log_variances: Tensor | None = None,
    ratios: Tensor | None = None,
) -> Tensor:
    """Scores (n, K) of normalised features (n, D).

    Arguments:
        weight, bias: (K, P) and (K,).
        projection: (K R, D), the V_k of "low_rank".
        log_variances, projection_log_variances: of the weights and projections, where they are noisy.
        ratios: (n, K), of the noise of weights to its scale, if it was drawn before.
    """
    phi = monomials.forward(x)
    scores = functional.linear(phi, weight, bias)
    if log_variances is not None:
        scores = _noisy(scores, phi * phi, log_variances, ratios)
    if projection is None:
        return scores
    projected = functional.linear(x, projection)
    if projection_log_variances is not None:
        projected = _noisy(projected, x * x, projection_log_variances)
    projected = projected.view(x.shape[0], len(weight), len(projection) // len(weight))
    return torch.add(scores, (projected * projected).sum(-1), alpha=0.5)


def _noisy(means: Tensor, squares: Tensor, log_variances: Tensor, ratios: Tensor | None = None) -> Tensor:
    """Products of values with weights of these variances, given their means and the squares of the values."""
    variances = functional.linear(squares, functional.hardtanh(log_variances, -math.inf, LARGEST_LOG_VARIANCE).exp())
    scales = (at_least_single(variances) + TINY).sqrt()
    noise = torch.randn_like(scales) if ratios is None else ratios * scales.detach()
    return torch.addcmul(means, scales, noise)  # (local-reparametrisation)


def bound_by_launches(values: Tensor) -> bool:
    """Whether what counts on the device of these values is the number of operations."""
    return values.is_cuda


def class_logits(scores: Tensor, n_members: int) -> Tensor:
    """(head-logits) of scores (n, K) sorted by class, with this many components in each: (n, C)."""
    if n_members == 1:
        return scores
    members = at_least_single(scores).view(scores.shape[0], scores.shape[1] // n_members, n_members)
    if bound_by_launches(scores) and scores.requires_grad:
        return (members - members.log_softmax(-1)).mean(-1)  # the same in half as many operations
    return members.logsumexp(-1)


def minus_log_alphas(weight: Tensor, log_variances: Tensor) -> Tensor:
    """-log alpha of weights, alpha w^2 being their variances."""
    found = (weight * weight + TINY).log() - log_variances
    return functional.hardtanh(found, -LARGEST_LOG_ALPHA, LARGEST_LOG_ALPHA)


def divergence(minus_log_alpha: Tensor) -> Tensor:
    """(dropout-kl), the sum over weights; 1/2 log(1 + 1 / alpha) and 1 - sigmoid(z) = sigmoid(-z)."""
    missing = torch.rsub(minus_log_alpha, -KL_SHIFT, alpha=-KL_STEEPNESS).sigmoid()
    return 0.5 * torch.add(functional.softplus(minus_log_alpha), missing, alpha=2 * KL_SLOPE).sum()
