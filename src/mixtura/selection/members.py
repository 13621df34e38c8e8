"""The rule that selects the members of an average: the simplest good candidate, then others (averaged-posterior)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mixtura.selection.comparison import COARSE, CandidateFit, Comparison
from mixtura.selection.scores import mean_and_error
from mixtura.selection.search import Trial

# The simplest candidate within this many standard errors of the best one is chosen.
STANDARD_ERRORS = 1.0
# An average is kept if it gains more than this many standard errors of the paired difference. Mean over the 43
# development sets of benchmarks/data_sets.toml, first fold, complete / 30 % of the values missing:
#                                                                      error            log-loss
#   the simplest candidate within one standard error                   12.3 / 16.7 %    0.295 / 0.408
#   the best candidate                                                 12.2 / 16.5 %    0.296 / 0.401
#   the two best                                                       12.2 / 16.7 %    0.288 / 0.394
#   the three best                                                     12.2 / 16.4 %    0.285 / 0.389
#   the three best, gate 0.5 (else the best / else the simplest)       12.3 / 16.6 %    0.290 / 0.393; 0.288 / 0.392
#   all within one standard error                                      12.5 / 16.3 %    0.291 / 0.393
#   added one by one to the best, at most 3                            11.9 / 16.3 %    0.284 / 0.390
#   added one by one to the simplest, at most 2                        12.0 / 16.3 %    0.286 / 0.394
#   added one by one to the simplest, at most 3                        11.8 / 16.4 %    0.283 / 0.390
#   the same without a temperature of the average                      11.8 / 16.4 %    0.286 / 0.394
#   the same, at most 4                                                12.1 / 16.3 %    0.283 / 0.390
#   at most 3, gate 0.5                                                11.9 / 16.3 %    0.283 / 0.391
#   at most 3, every one passes a gate of 1                            12.1 / 16.2 %    0.287 / 0.397
GATE = 0.5
MOST_WEIGHT = 6  # members at most, if one of weight 2 counts as two
ROUNDING = 1e-12  # share of a loss that is no gain: the mean of equal probabilities may differ in the last digit


def select_trials(
    comparison: Comparison, trials: Sequence[Trial[CandidateFit]], most: int
) -> tuple[list[Trial[CandidateFit]], float]:
    """The trials whose posteriors are averaged, the selected one first, and the temperature of the average."""

    def average(members: Sequence[int], every: int = 1) -> tuple[Tensor, float]:
        return comparison.calibrate_average([trials[number] for number in members], every)

    def averages(members: list[int], able: list[int]) -> Tensor:
        return torch.stack([average([*members, number], COARSE)[0] for number in able])

    losses, weights = torch.stack([trial.fit.losses for trial in trials]), comparison.weights[comparison.scored]
    sizes = sizes_of(trials).to(losses.device)
    members = select_members(losses, weights, sizes, most, averages, lambda members: average(members)[0])
    return [trials[number] for number in members], average(members)[1] if len(members) > 1 else 1.0


def sizes_of(trials: Sequence[Trial[CandidateFit]]) -> Tensor:
    """Numbers of parameters, (T,); infinite where a candidate is no density, and can only join an average."""
    sizes = [trial.fit.n_parameters if trial.fit.candidate.is_density else math.inf for trial in trials]
    return torch.tensor(sizes, dtype=torch.float64)


def select_members(
    losses: Tensor,
    weights: Tensor,
    sizes: Tensor,
    most: int,
    averages: Callable[[list[int], list[int]], Tensor],
    average: Callable[[list[int]], Tensor] | None = None,
) -> list[int]:
    """Select by losses of every candidate and held-out sample, (T, n), and numbers of parameters, (T,).

    Each further member is that with which the average has the smallest loss, if this is a gain; a member of weight 2 is
    there twice. There are at most `most` different ones. `averages` gives the losses (m, n) of the averages of some
    candidates with each of m others, `average` those (n,) of one average, if they are more exact.
    """
    first = select_simplest(losses, weights, sizes)
    members, own = [first], losses[first]
    while most > 1 and len(members) < MOST_WEIGHT:
        different = list(dict.fromkeys(members))
        able = list(range(len(losses))) if len(different) < most else different
        of_others = averages(members, able)
        best = int((of_others @ weights).argmin())
        longer = [*members, able[best]]
        averaged = of_others[best] if average is None else average(longer)
        if not averaged @ weights < (1 - ROUNDING) * (own @ weights):
            break
        members, own = longer, averaged
    gain, error = mean_and_error(losses[first] - own, weights)
    return members if gain > GATE * error else [first]


def select_simplest(losses: Tensor, weights: Tensor, sizes: Tensor) -> int:
    """The candidate with the fewest parameters whose loss is not significantly larger than the smallest one."""
    means = (losses @ weights / weights.sum()).masked_fill(sizes.isinf(), math.inf)
    differences, gaps = losses - losses[means.argmin()], means - means.min()
    errors = ((differences - gaps.unsqueeze(1)).square() @ weights).sqrt() / weights.sum()
    able = (gaps <= STANDARD_ERRORS * errors).nonzero()[:, 0]
    smallest = able[sizes[able] == sizes[able].min()]
    return int(smallest[means[smallest].argmin()])
