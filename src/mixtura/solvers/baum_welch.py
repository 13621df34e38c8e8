"""Extended Baum-Welch: net moments plus D times the model's own moments, turned into parameters (KJO03).

With D large enough such a step raises any objective that has a denominator; how large is found out by trying.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mixtura.engine.evaluator import Buffers
from mixtura.engine.passes import summarise
from mixtura.engine.sources import Source
from mixtura.engine.threads import threads_for
from mixtura.engine.tuning import DEFAULT_MEMORY_LIMIT
from mixtura.model.mixture import Mixture
from mixtura.roles import Objective, Prior, Step
from mixtura.solvers.em import placed, pseudo_moments_of, repairs_of
from mixtura.values.extents import Frame
from mixtura.values.moments import Moments, ProjectedForm, Summary
from mixtura.values.pseudo_moments import PseudoMoments

FIRST_FACTOR = 1.0  # E; speech recognisers, which do not look at the objective, take 2
SMALLEST_FACTOR = 0.01
SHRINKING, GROWING = 0.95, 3.0  # what becomes of E after a step that was taken, and after one that was not
MOST_REJECTIONS = 20  # E has grown by 1e9 then: nothing is to be gained
MOST_DOUBLINGS = 100
SMALLEST_COUNT = 1e-12  # per row: keeps a component that no row wants where it is
N_NEWTON = 100


@dataclass(frozen=True)
class BaumWelchState:
    """A mixture, what a pass over the rows found of it, and the factor E that the next step tries first."""

    mixture: Mixture
    summary: Summary
    value: float  # objective and log prior, per unit of weight
    factor: float = FIRST_FACTOR
    previous: Mixture | None = None  # before the last step
    n_steps: int = 0  # since the last one that was not taken
    iteration: int = 0


@dataclass(frozen=True)
class BaumWelch:
    """Maximises an objective, plus a log prior where there is one; never lowers it (baum-welch).

    Arguments:
        objective: any; the conditional likelihood, or another with a denominator.
        frame: where the rows lie.
        floor: the smallest variance of each feature, (D,).
        prior: added to the objective, or None.
        class_prior: fixed class probabilities (C,), or None to learn them.
    """

    objective: Objective
    frame: Frame
    floor: Tensor
    prior: Prior | None = None
    class_prior: Tensor | None = None
    memory_limit: int = DEFAULT_MEMORY_LIMIT
    name = "baum_welch"

    def start(self, mixture: Mixture, rows: Source) -> BaumWelchState:
        """One pass over the rows."""
        summary = summarise(mixture, rows, self.objective, self.frame, self.memory_limit, self._buffers)
        summary = summary.about(mixture.means)
        log_prior = 0.0
        if self.prior is not None:
            log_prior = float(self.prior.log_density(mixture))
        return BaumWelchState(mixture, summary, (summary.value + log_prior) / summary.weight)

    def step(self, mixture: BaumWelchState, rows: Source) -> Step:
        """The first of ever shorter steps that does not lower the objective; the value is that of what came in.

        Momentum is dropped first, then E grows.
        """
        now, factor, n_steps = mixture, mixture.factor, mixture.n_steps
        for _ in range(MOST_REJECTIONS):
            candidate = self.updated(now, factor, n_steps)
            if not repairs_of(candidate):
                then = self.start(candidate, rows)
                if then.value >= now.value:
                    factor = max(SHRINKING * factor, SMALLEST_FACTOR)
                    then = replace(then, factor=factor, previous=now.mixture, n_steps=n_steps + 1)
                    return Step(replace(then, iteration=now.iteration + 1), now.value)
            if n_steps == 0:  # otherwise momentum may be at fault
                factor *= GROWING
            n_steps = 0
        return Step(replace(now, n_steps=0, iteration=now.iteration + 1), now.value)

    def updated(self, now: BaumWelchState, factor: float, n_steps: int = 0) -> Mixture:
        """The mixture that the net moments and D times its own ask for, with momentum after some steps."""
        mixture, pseudo = now.mixture, self._pseudo_moments
        with threads_for(len(mixture.means) * float(mixture.means.shape[1]) ** 3):
            anchor = self.anchor(now, n_steps)
            constants = self.constants(now, factor, anchor)
            means, scatter = placed(mixture, now.summary.moments + anchor.scaled(constants), pseudo)
            covariance = mixture.covariance.updated(scatter, pseudo, self.floor)
        return Mixture(self._log_weights(mixture, now.summary), means, covariance, mixture.class_of)

    def anchor(self, now: BaumWelchState, n_steps: int) -> Moments:
        """The model's own moments, each component counting one, carried on as the last step moved them (momentum)."""
        ones = torch.ones_like(now.mixture.log_weights)
        own = now.mixture.own_moments(ones)
        if now.previous is None or n_steps == 0 or isinstance(own.form, ProjectedForm):
            return own  # projections change with every step
        share = n_steps / (n_steps + 3)  # as Nesterov's
        before = now.previous.own_moments(ones).about(own.reference)
        return own.scaled(1 + share) + before.scaled(-share)

    def constants(self, now: BaumWelchState, factor: float, anchor: Moments) -> Tensor:
        """D (K,): at least factor * denominator counts, and twice what makes the new covariances definite."""
        net, denominators = now.summary.moments, now.summary.denominator_counts
        halves = (0.5 * factor * denominators).clamp_min(SMALLEST_COUNT * now.summary.weight)
        for _ in range(MOST_DOUBLINGS):
            _, scatter = placed(now.mixture, net + anchor.scaled(halves), self._pseudo_moments)
            sound = now.mixture.covariance.definite(scatter, self._pseudo_moments)
            if bool(sound.all()):
                break
            halves = torch.where(sound, halves, 2 * halves)
        return 2 * halves

    def _log_weights(self, mixture: Mixture, summary: Summary) -> Tensor:
        denominators = summary.denominator_counts
        numerators = (summary.moments.counts + denominators + self._pseudo_moments.weight_count).clamp_min(0)
        groups, totals = [slice(0, mixture.n_components)], [1.0]
        if self.class_prior is not None:
            groups, totals = mixture.class_slices, self.class_prior.tolist()
        return grown(mixture.log_weights, numerators, denominators, groups, totals)

    @cached_property
    def _buffers(self) -> Buffers:
        return Buffers()

    @cached_property
    def _pseudo_moments(self) -> PseudoMoments:
        return pseudo_moments_of(self.prior, self.floor)


def grown(
    log_weights: Tensor, numerators: Tensor, denominators: Tensor, groups: Sequence[slice], totals: Sequence[float]
) -> Tensor:
    """The weights v that maximise a bound of the objective, those of a group summing to its total (weight-growth):

        sum_k n_k log v_k - d_k v_k / w_k,   so   v_k = n_k / (lambda + d_k / w_k).

    Newton's method on 1 / sum_k v_k, which is concave in lambda, climbs to the root from below. Without numerators a
    group stays.
    """
    found = log_weights.clone()
    rates = denominators / log_weights.exp().clamp_min(1e-300)
    for group, total in zip(groups, totals, strict=True):
        wanted = numerators[group] > 0
        if not bool(wanted.any()):
            continue
        n, d = numerators[group][wanted], rates[group][wanted]
        multiplier = (n / total - d).max()  # where one weight alone reaches the total
        shares = n
        for _ in range(N_NEWTON):
            divisors = (multiplier + d).maximum(n / total)  # so it is at the root; below that only by rounding
            shares = n / divisors
            change = shares.sum() * (shares.sum() / total - 1) / (shares / divisors).sum()
            multiplier = multiplier + change
            if not bool(change > 1e-15 * multiplier.abs()):
                break
        logs = torch.full_like(found[group], -torch.inf)
        logs[wanted] = (shares / shares.sum() * total).log()
        found[group] = logs
    return found
