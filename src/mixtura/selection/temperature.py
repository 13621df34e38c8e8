"""Estimating the temperature on held-out samples (temperature-estimate)."""

from __future__ import annotations

import torch
from torch import Tensor

from mixtura.model.temperature import with_noise

# Standard deviation of the normal prior of log T about zero, for T of at least 1. Mean test log-loss on 41 data sets of
# benchmarks/data_sets.py, complete and with 30 % missing values: 0.370 and 0.480 with 0.3 and T from 0.3 on; 0.370 and
# 0.480 with 0.3, 0.365 and 0.475 with 1, 0.364 and 0.474 with 2, all three with T of at least 1.
PRIOR_SCALE = 1.0
LARGEST, N_STEPS = 30.0, 35


def estimate_temperature(losses_at: Tensor, weights: Tensor, every: int = 1) -> int:
    """Find the position of the temperature with the smallest penalised loss.

    Parameters
    ----------
    losses_at : Tensor of shape (G, n)
        Losses of the held-out samples at every temperature of `grid`.
    weights : Tensor of shape (n,)
        Sample weights.
    every : int, default 1
        As in `grid`.
    """
    return int((losses_at @ weights + penalties_of(losses_at, every)).argmin())


def penalties_of(like: Tensor, every: int = 1) -> Tensor:
    """Penalties of the temperatures of `grid`, (G,)."""
    return 0.5 * (grid(like, every).log() / PRIOR_SCALE).square()


def grid(like: Tensor, every: int = 1) -> Tensor:
    """Temperatures to compare, (G,), logarithmically spaced from 1 on; `every` 4 takes every fourth."""
    return LARGEST ** (torch.arange(0, N_STEPS, every) / (N_STEPS - 1)).to(like)


def tempered_losses(
    scores: Tensor, shares: Tensor, observed: Tensor, every: int = 1, noise: float = 0.0, prior: Tensor | None = None
) -> Tensor:
    """Compute the log-losses of samples at every temperature of `grid`, (G, n).

    Parameters
    ----------
    scores : Tensor of shape (n, C)
        Held-out log p(x, c).
    shares : Tensor of shape (n, C)
        Labels as class probabilities: one for the label, or soft labels.
    observed : Tensor of shape (n,)
        The share of observed features of each sample.
    every : int, default 1
        As in `grid`.
    noise : float, default 0.0
        Share of random labels.
    prior : Tensor of shape (C,), optional
        Class probabilities of random labels.
    """
    scores = (scores - scores.amax(1, keepdim=True)).clamp_min(-1e300)
    divisors = 1 + (grid(scores, every).unsqueeze(-1) - 1) * observed  # (G, n)
    if prior is None or noise == 0:
        own = (shares * scores).sum(1)
        return torch.stack([(scores / d.unsqueeze(-1)).logsumexp(1) - own / d for d in divisors])
    return torch.stack(
        [-(shares * with_noise((scores / d.unsqueeze(-1)).log_softmax(1), noise, prior.log())).sum(1) for d in divisors]
    )
