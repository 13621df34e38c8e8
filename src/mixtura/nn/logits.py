"""Computations of heads beyond the feature maps: class logits, noise of weights and its divergence."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from mixtura.objectives import class_log_joint

# Molchanov, Ashukha & Vetrov (2017), eq. 14: a fit of the divergence from the log-uniform prior.
KL_SLOPE, KL_SHIFT, KL_STEEPNESS = 0.63576, 1.87320, 1.48695
# Beyond these the divergence is flat, and only the large gradients of weights near zero would remain.
LARGEST_LOG_ALPHA = LARGEST_LOG_VARIANCE = 8.0
TINY = 1e-8


def in_autocast(x: Tensor) -> bool:
    """Whether autocast is on for the device of these values."""
    kind = x.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)  # is_autocast_available does not compile in 2.11


def at_least_single(values: Tensor) -> Tensor:
    """Half precision as float32: half precision would round small differences of scores away."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def noisy(means: Tensor, squares: Tensor, log_variances: Tensor) -> Tensor:
    """Products of features with weights of these variances, given their means (K, n) and the squared features (P, n).

    (local-reparametrisation)
    """
    variances = functional.hardtanh(log_variances, -math.inf, LARGEST_LOG_VARIANCE).exp() @ squares
    scales = (at_least_single(variances) + TINY).sqrt()
    return torch.addcmul(means, scales, torch.randn_like(scales))


def class_logits(scores: Tensor, n_members: int) -> Tensor:
    """(head-logits) of scores (K, n) sorted by class, with this many components in each: (n, C)."""
    if n_members == 1:
        return scores.T
    return class_log_joint(at_least_single(scores), [n_members] * (len(scores) // n_members)).T


def minus_log_alphas(weight: Tensor, log_variances: Tensor) -> Tensor:
    """-log alpha of weights, alpha w^2 being their variances."""
    logs = (weight * weight + TINY).log() - log_variances
    return functional.hardtanh(logs, -LARGEST_LOG_ALPHA, LARGEST_LOG_ALPHA)


def divergence(minus_log_alpha: Tensor) -> Tensor:
    """(dropout-kl), the sum over weights; 1/2 log(1 + 1 / alpha) and 1 - sigmoid(z) = sigmoid(-z)."""
    missing = torch.rsub(minus_log_alpha, -KL_SHIFT, alpha=-KL_STEEPNESS).sigmoid()
    return 0.5 * torch.add(functional.softplus(minus_log_alpha), missing, alpha=2 * KL_SLOPE).sum()
