"""Scores of components and logits of classes, as functions of normalised features.

    a_k(x) = b_k + w_k' phi(x) + 1/2 |V_k' x|^2,    logit_c = log sum_{k in c} exp a_k              (head-scores)

phi holds the features and, for a quadratic part, their products; V is there for "low_rank" alone, where nothing of
size D x D is made. A step of a small network takes as long as its operations take to launch, not to run: hence one
gather instead of two, and functions where modules would do.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

# Molchanov, Ashukha & Vetrov (2017), eq. 14: a fit of the divergence from the log-uniform prior.
KL_SLOPE, KL_SHIFT, KL_STEEPNESS = 0.63576, 1.87320, 1.48695
# Beyond these the divergence is flat, and the gradients of weights near zero would be all there is.
LARGEST_LOG_ALPHA = LARGEST_LOG_VARIANCE = 8.0
TINY = 1e-8


class Monomials(nn.Module):
    """phi: (n, D) -> (n, P), the features and then x_i x_j for i <= j ("full") or x_i^2 ("diagonal", "low_rank")."""

    pairs: Tensor  # (2, P - D), i and j

    def __init__(self, n_features: int, quadratic: str):
        super().__init__()
        self.quadratic, self.n_features = quadratic, n_features
        pairs = torch.triu_indices(n_features, n_features) if quadratic == "full" else torch.empty(2, 0).long()
        self.register_buffer("pairs", pairs, persistent=False)
        extra = {"full": pairs.shape[1], "none": 0}.get(quadratic, n_features)
        self.n_monomials = n_features + extra

    def forward(self, x: Tensor) -> Tensor:
        if self.quadratic == "none":
            return x
        if self.quadratic == "full":
            first, second = x.index_select(1, self.pairs.view(-1)).chunk(2, 1)
            return torch.cat((x, first * second), 1)
        return torch.cat((x, x * x), 1)


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
) -> Tensor:
    """Scores (n, K) of normalised features (n, D).

    Arguments:
        weight, bias: (K, P) and (K,).
        projection: (K R, D), the V_k of "low_rank".
        log_variances, projection_log_variances: of the weights and projections, where they are noisy.
    """
    scores = _affine(monomials.forward(x), weight, bias, log_variances)
    if projection is None:
        return scores
    projected = _affine(x, projection, None, projection_log_variances)
    squares = projected.view(x.shape[0], len(weight), len(projection) // len(weight)).square()
    return torch.add(scores, squares.sum(-1), alpha=0.5)


def _affine(values: Tensor, weight: Tensor, bias: Tensor | None, log_variances: Tensor | None) -> Tensor:
    means = functional.linear(values, weight, bias)
    if log_variances is None:
        return means
    variances = functional.linear(values * values, log_variances.clamp(max=LARGEST_LOG_VARIANCE).exp())
    scales = (at_least_single(variances) + TINY).sqrt()
    return torch.addcmul(means, scales, torch.randn_like(scales))  # (local-reparametrisation)


def class_logits(scores: Tensor, n_members: int) -> Tensor:
    """(head-logits) of scores (n, K) sorted by class, with this many components in each: (n, C)."""
    if n_members == 1:
        return scores
    members = at_least_single(scores).view(scores.shape[0], scores.shape[1] // n_members, n_members)
    if n_members > 2:
        return members.logsumexp(-1)
    first, second = members.unbind(-1)
    return first + functional.softplus(second - first, threshold=40.0)  # the same in half as many operations


def minus_log_alphas(weight: Tensor, log_variances: Tensor) -> Tensor:
    """-log alpha of weights, alpha w^2 being their variances."""
    return ((weight * weight + TINY).log() - log_variances).clamp(-LARGEST_LOG_ALPHA, LARGEST_LOG_ALPHA)


def divergence(minus_log_alpha: Tensor) -> Tensor:
    """(dropout-kl), the sum over weights; 1/2 log(1 + 1 / alpha) and 1 - sigmoid(z) = sigmoid(-z)."""
    missing = torch.rsub(minus_log_alpha, -KL_SHIFT, alpha=-KL_STEEPNESS).sigmoid()
    return 0.5 * torch.add(functional.softplus(minus_log_alpha), missing, alpha=2 * KL_SLOPE).sum()
