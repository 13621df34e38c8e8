"""Scores of held-out samples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mixtura.engine.passes import map_rows
from mixtura.engine.sources import TensorSource
from mixtura.model.mixture import Mixture
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
    held_out: TensorSource, errors_first: bool, memory_limit: int
) -> Callable[[Mixture], tuple[float, ...]]:
    """Return a score of mixtures; larger is better.

    Parameters
    ----------
    held_out : TensorSource
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
