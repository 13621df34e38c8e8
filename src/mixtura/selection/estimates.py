"""The performance of a selected model on new samples (honest-estimate).

Held-out losses of the winner of a comparison are too low: it won on these samples. The bootstrap bias-corrected
cross-validation of Tsamardinos, Greasidou and Borboudakis (2018) selects again by bootstrap samples of the held-out
samples, and scores each selection on the others. It needs no further fit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from mixtura.engine.tuning import FEW_VALUES
from mixtura.model.temperature import Temperature, average_posteriors
from mixtura.selection.comparison import COARSE, CandidateFit, Comparison
from mixtura.selection.members import select_members, sizes_of
from mixtura.selection.missingness import choose_strength, held_out_factors
from mixtura.selection.scores import estimate_temperature, grid, penalties_of, tempered_losses
from mixtura.selection.search import Estimate, Trial
from mixtura.selection.splits import draw_rows

N_BOOTSTRAPS, LEVEL = 200, 0.95
FEWEST_BOOTSTRAPS = (
    20  # however little of the time budget is left: the mean then has a fourth of their deviation as its error
)
# Of more held-out samples a random part will do: the correction is then below the last digit. Of many classes fewer.
MOST_SAMPLES, MOST_VALUES = 2000, 2**20


def estimate_selection(
    comparison: Comparison,
    trials: Sequence[Trial[CandidateFit]],
    most: int,
    temperature: float | None,
    informative: bool,
    latest: float = math.inf,
) -> Estimate | None:
    """The performance on new samples: bootstraps estimate class prior and temperatures and select (honest-estimate).

    They also choose the strength of the factor of missing values. No bootstrap begins after `latest`, but a few.

    Parameters
    ----------
    most : int
        Largest number of different members.
    temperature : float or None
        Given for the model, without a share of random labels; None estimates it.
    informative : bool
        Whether the factor of missing values is always admitted.
    """
    device = trials[0].fit.scores.device if trials[0].fit.scores.numel() > FEW_VALUES else torch.device("cpu")
    sizes = sizes_of(trials).to(device)
    scored = comparison.scored.nonzero()[:, 0].to(device)
    n_drawn = min(MOST_SAMPLES, MOST_VALUES // comparison.n_classes)
    part = draw_rows(len(scored), n_drawn, torch.Generator().manual_seed(0)).to(device)
    shares, scores = comparison.known_shares.to(device)[part], [trial.fit.scores.to(device)[part] for trial in trials]
    weights, observed = (values.to(device)[scored[part]] for values in (comparison.weights, comparison.observed))
    prior, missingness = weights @ shares / weights.sum(), comparison.task.missingness
    class_prior = comparison.task.class_prior  # acts after the temperature
    given = None if class_prior is None else torch.where(prior > 0, class_prior.to(device) / prior, 1.0).log()
    at_all = torch.stack([tempered_losses(own, shares, observed, 1, comparison.noise, prior) for own in scores])
    temperatures, penalties = grid(at_all), penalties_of(at_all)
    factors = None if missingness is None else held_out_factors(comparison, missingness).to(device)[part]
    noise = comparison.noise if temperature is None else 0.0
    calibration = partial(Temperature, log_prior_change=given, noise=noise, log_prior=prior.log() if noise else None)

    def log_posteriors(weights: Tensor) -> Tensor:
        numbers = (at_all @ weights + penalties).argmin(1)  # (T,)
        losses = at_all[torch.arange(len(trials), device=device), numbers]  # (T, n)
        probabilities = (-losses).exp()

        def averages(members: list[int], able: list[int]) -> Tensor:  # of temperature 1: by the mean probability
            return ((len(members) + 1) / (probabilities[members].sum(0) + probabilities[able])).log()

        members = select_members(losses, weights, sizes, most, averages)
        values = temperatures[numbers[members]].tolist() if temperature is None else [temperature] * len(members)
        # Folds are stratified: scores know the frequencies of the held-out classes, a new sample's are others. Those of
        # all rows are known.
        own_prior = (weights @ shares + prior) / (weights.sum() + 1) if comparison.whole is None else prior
        change = torch.where(prior > 0, own_prior / prior, 1.0).log() if given is None else given
        average, tempered = (scores[members[0]] + change).T, calibration(values[0])
        if len(members) > 1:
            every = [calibration(value) for value in values[: len(members)]]
            average = average_posteriors([(scores[number] + change).T for number in members], every, observed)
            plain = average.T if given is None else average.T - given
            losses = tempered_losses(plain, shares, observed, COARSE, comparison.noise, prior, average=True)
            best = estimate_temperature(losses, weights, COARSE, average=True)
            tempered = calibration(float(grid(losses, COARSE, True)[best]) if temperature is None else 1.0)
        if factors is None:
            return tempered.apply(average, observed).log_softmax(0).T
        alone = Temperature(tempered.value).apply(average, observed).log_softmax(0).T
        strength = choose_strength(alone, factors, shares, weights, comparison.noise, informative)
        return tempered.apply(average, observed, strength * factors.T).log_softmax(0).T

    groups = None if comparison.groups is None else comparison.groups[scored[part].cpu()].unique(return_inverse=True)[1]
    return estimate_performance(log_posteriors, shares, weights, groups, latest)


def estimate_performance(
    rule: Callable[[Tensor], Tensor],
    shares: Tensor,
    weights: Tensor,
    groups: Tensor | None = None,
    latest: float = math.inf,
) -> Estimate | None:
    """Select again by bootstrap samples, and average the losses of the samples that each leaves out (honest-estimate).

    Parameters
    ----------
    rule : callable
        From weights (n,) of the held-out samples to the log probabilities (n, C) of all of them, by the model that
        these weights select.
    shares : Tensor of shape (n, C)
        Labels as shares of the classes.
    weights : Tensor of shape (n,)
        Sample weights.
    groups : Tensor of shape (n,), optional
        Numbers of groups of samples, which are drawn as a whole.
    latest : float, optional
        Value of `time.perf_counter()` after which no bootstrap begins, but for the first few.

    Returns
    -------
    Estimate or None
        None if every bootstrap sample has all samples.
    """
    generator, scores = torch.Generator().manual_seed(0), []
    units = torch.arange(len(weights)) if groups is None else groups.cpu()
    n_units = int(units.max()) + 1
    for number in range(N_BOOTSTRAPS):
        if number >= FEWEST_BOOTSTRAPS and time.perf_counter() > latest:
            break
        counts = torch.randint(n_units, (n_units,), generator=generator).bincount(minlength=n_units)[units]
        inside, outside = (part.to(weights) * weights for part in (counts, counts == 0))
        if float(inside.sum()) > 0 and float(outside.sum()) > 0:
            scores.append(_scores(rule(inside), shares, outside))
    if not scores:
        return None
    results = torch.tensor(scores, dtype=torch.float64)
    log_loss, error = results.mean(0).tolist()
    ends = results.quantile(torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64), 0).T.tolist()
    return Estimate(log_loss, error, tuple(ends[0]), tuple(ends[1]))


def _scores(log_posteriors: Tensor, shares: Tensor, weights: Tensor) -> tuple[float, float]:
    """Mean log-loss and error rate; a label of share zero costs nothing, however improbable."""
    losses = -torch.where(shares > 0, shares * log_posteriors, 0.0).sum(1)
    errors = 1 - shares.gather(1, log_posteriors.argmax(1, keepdim=True))[:, 0]
    return tuple((torch.stack((losses, errors)) @ weights / weights.sum()).tolist())
