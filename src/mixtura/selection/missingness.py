"""The strength of the factor p(mask | class), chosen on held-out samples (missingness)."""

from __future__ import annotations

import torch
from torch import Tensor

from mixtura.model.missingness import Missingness, estimate_missingness
from mixtura.model.temperature import with_noise
from mixtura.selection.comparison import Comparison
from mixtura.selection.scores import mean_and_error

# Mean test log-loss on 16 development sets, one fold, with values removed by class (every feature in every class
# with a probability from 0 to 0.6), by the rank of the value itself, or at random (30 %), and as they are:
#                                                      by class   by value   at random   as they are
#   ignorable                                            0.369      0.422      0.393       0.388
#   factor of strength 1, always                         0.203      0.428      0.407       0.440
#   factor of the best strength, always                  0.197      0.385      0.390       0.388
#   the same if it gains two standard errors             0.197      0.388      0.393       0.388
#     multiplied before the temperature                  0.203      0.390      0.393       0.388
#   a mask bit of every feature in every component       0.203      0.381      0.404       0.445
#   random forest of 300 trees with indicators           0.309      0.433      0.487       0.451
STRENGTHS = (0.125, 0.25, 0.35, 0.5, 0.7, 1.0)
STANDARD_ERRORS = 2.0  # of the held-out gain in log-loss, above which the factor is admitted


def choose_missingness(
    comparison: Comparison, log_posteriors: Tensor, missingness: Missingness, always: bool
) -> Missingness | None:
    """Choose the strength with the smallest held-out log-loss.

    Parameters
    ----------
    comparison : Comparison
        The samples and their folds.
    log_posteriors : Tensor of shape (n, C)
        Of the held-out samples by the selected model, at its temperature and without label noise.
    missingness : Missingness
        Of all samples.
    always : bool
        Whether the factor is kept although held-out samples do not gain by it.

    Returns
    -------
    Missingness or None
        None if the factor is not admitted.
    """
    factors, weights = held_out_factors(comparison, missingness), comparison.weights[comparison.scored]
    strength = choose_strength(log_posteriors, factors, comparison.known_shares, weights, comparison.noise, always)
    return missingness.scaled(strength) if strength > 0 else None


def choose_strength(
    log_posteriors: Tensor, factors: Tensor, known: Tensor, weights: Tensor, noise: float, always: bool
) -> float:
    """The strength of log factors (n, C) for labels as shares of the classes (n, C); 0 if it is not admitted."""
    prior = (weights @ known / weights.sum()).log()
    losses = torch.stack(
        [
            -(known * with_noise((log_posteriors + s * factors).log_softmax(1), noise, prior)).sum(1)
            for s in (0.0, *STRENGTHS)
        ]
    )
    best = 1 + int((losses[1:] @ weights).argmin())
    gain, error = mean_and_error(losses[0] - losses[best], weights)
    return STRENGTHS[best - 1] if always or gain > STANDARD_ERRORS * error else 0.0


def held_out_factors(comparison: Comparison, missingness: Missingness) -> Tensor:
    """Log factors of strength 1 of the scored samples, (n, C), the mean over the folds that hold out a sample."""
    missing, held_out = comparison.rows[comparison.scored].isnan(), comparison.held_out[comparison.scored]
    total = comparison.weights.new_zeros(len(missing), comparison.n_classes)
    for fold, unseen in zip(comparison.described[1], held_out.T, strict=True):
        own = estimate_missingness(fold.observed_weights, fold.class_weights, missingness.columns)
        if own is not None:
            total[unseen] += own.log_factors(missing[unseen][:, own.columns]).T
    return total / held_out.sum(1, keepdim=True)
