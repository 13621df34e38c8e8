"""Scores of held-out samples, and the temperature with the best ones (temperature-estimate)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from mixtura.engine.passes import map_rows
from mixtura.engine.sources import BlockSource
from mixtura.model.mixture import Mixture
from mixtura.model.temperature import with_noise
from mixtura.objectives.likelihood import class_posteriors
from mixtura.values.targets import Targets

LOWEST = -1e6  # lower limit of the log posterior of a label


def mean_and_error(values: Tensor, weights: Tensor) -> tuple[float, float]:
    """Weighted mean and its standard error, where a sample of weight 2 counts as two."""
    total = weights.sum()
    mean = values @ weights / total
    variance = (values - mean).square() @ weights / total
    return float(mean), float((variance / total).sqrt())


def classification_score(
    held_out: BlockSource, errors_first: bool, memory_limit: int
) -> Callable[[Mixture], tuple[float, ...]]:
    """Return a score of mixtures; larger is better.

    Parameters
    ----------
    held_out : BlockSource
        Labeled samples.
    errors_first : bool
        Score by accuracy - 1 and, where that is equal, by the mean log posterior of the labels; otherwise by the latter
        alone.
    memory_limit : int
        Limit of the temporary arrays, in bytes.
    """
    (block,) = held_out.blocks()
    labels = block.labels
    assert labels is not None

    def score(mixture: Mixture) -> tuple[float, ...]:
        known = Targets(mixture.class_of, known_classes=mixture.n_classes)
        scores = map_rows(mixture, held_out, lambda a: class_posteriors(a, known)[0].T, memory_limit)  # (n, C)
        own = scores.gather(1, labels.unsqueeze(1))[:, 0] - scores.logsumexp(1)
        weights = torch.ones_like(own) if block.weights is None else block.weights.to(own.dtype)
        log_posterior = float(weights @ own.clamp_min(LOWEST) / weights.sum())
        if not errors_first:
            return (log_posterior,)
        right = (scores.argmax(1) == labels).to(own.dtype)
        return float(weights @ right / weights.sum()) - 1.0, log_posterior

    return score


# Standard deviation of the normal prior of log T about zero, for T of at least 1. Mean test log-loss on 41 data sets of
# benchmarks/data_sets.py, complete and with 30 % missing values: 0.370 and 0.480 with 0.3 and T from 0.3 on; 0.370 and
# 0.480 with 0.3, 0.365 and 0.475 with 1, 0.364 and 0.474 with 2, all three with T of at least 1.
PRIOR_SCALE = 1.0
LARGEST, N_STEPS = 30.0, 35
# An average of calibrated posteriors is underconfident: its temperature may be 12 steps below 1, 0.3, and is near 1.
AVERAGE_SCALE, AVERAGE_STEPS = 0.5, 12


def estimate_temperature(losses_at: Tensor, weights: Tensor, every: int = 1, average: bool = False) -> int:
    """Find the position of the temperature with the smallest penalised loss.

    Parameters
    ----------
    losses_at : Tensor of shape (G, n)
        Losses of the held-out samples at every temperature of `grid`.
    weights : Tensor of shape (n,)
        Sample weights.
    every, average
        As in `grid`.
    """
    return int((losses_at @ weights + penalties_of(losses_at, every, average)).argmin())


def penalties_of(like: Tensor, every: int = 1, average: bool = False) -> Tensor:
    """Penalties of the temperatures of `grid`, (G,)."""
    return 0.5 * (grid(like, every, average).log() / (AVERAGE_SCALE if average else PRIOR_SCALE)).square()


def grid(like: Tensor, every: int = 1, average: bool = False) -> Tensor:
    """Temperatures to compare, (G,), logarithmically spaced from 1 on, of an average about 1; `every` 4 takes a fourth.

    An average takes no more than `AVERAGE_STEPS` steps to both sides.
    """
    return _grid(like.dtype, like.device, every, average)


@lru_cache(maxsize=16)
def _grid(dtype: torch.dtype, device: torch.device, every: int, average: bool) -> Tensor:
    steps = torch.arange(-AVERAGE_STEPS, AVERAGE_STEPS + 1, every) if average else torch.arange(0, N_STEPS, every)
    return LARGEST ** (steps / (N_STEPS - 1)).to(device, dtype)


def tempered_losses(
    scores: Tensor,
    shares: Tensor,
    observed: Tensor,
    every: int = 1,
    noise: float = 0.0,
    prior: Tensor | None = None,
    average: bool = False,
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
    every, average
        As in `grid`.
    noise : float, default 0.0
        Share of random labels.
    prior : Tensor of shape (C,), optional
        Class probabilities of random labels.
    """
    scores = (scores - scores.amax(1, keepdim=True)).clamp_min(-1e300)
    divisors = 1 + (grid(scores, every, average).unsqueeze(-1) - 1) * observed  # (G, n)
    if prior is None or noise == 0:
        own = (shares * scores).sum(1)
        return torch.stack([(scores / d.unsqueeze(-1)).logsumexp(1) - own / d for d in divisors])
    return torch.stack(
        [-(shares * with_noise((scores / d.unsqueeze(-1)).log_softmax(1), noise, prior.log())).sum(1) for d in divisors]
    )
