"""Extended Baum-Welch: update from the net moments plus D times the model's own moments (KJO03).

A sufficiently large D increases any objective with a denominator; the size of D is found by trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mixtura.engine.passes import summarise
from mixtura.engine.threads import threads_for
from mixtura.files.registry import storable
from mixtura.model.mixture import Mixture
from mixtura.roles import Info, Objective, Prior, Structure, is_smooth
from mixtura.solvers.em import repairs_of, update_means
from mixtura.solvers.problem import Problem, needs_pseudo_moments
from mixtura.values.moments import Moments, ProjectedForm, Summary

FIRST_FACTOR = 1.0  # E; speech recognition uses 2, without evaluating the objective
SMALLEST_FACTOR = 0.01
SHRINKING, GROWING = 0.95, 3.0  # factor of E after an accepted step, and after a rejected one
MOST_REJECTIONS = 20  # E is then 1e9 times as large, and steps are negligibly small
MOST_DOUBLINGS = 100
SMALLEST_COUNT = 1e-12  # per row; a component without rows then keeps its parameters
N_NEWTON = 100


@storable("baum_welch_state")
@dataclass(frozen=True)
class BaumWelchState:
    """A mixture, the summary of its pass, and the first factor E of the next step."""

    mixture: Mixture
    value: float  # objective plus log prior, per unit of weight
    factor: float = FIRST_FACTOR
    previous: Mixture | None = None  # mixture before the last step
    n_steps: int = 0  # accepted steps since the last rejected one
    _summary: Summary | None = None

    @property
    def summary(self) -> Summary:
        assert self._summary is not None
        return self._summary


@storable("baum_welch")
@dataclass(frozen=True)
class BaumWelch:
    """Extended Baum-Welch: maximises an objective plus a log prior monotonically (baum-welch)."""

    name = "baum_welch"
    needs_fit = True

    def refusal(self, objective: Objective, prior: Prior | None, structure: Structure) -> str | None:
        if not is_smooth(objective):
            return f'it needs a differentiable objective, and the margin in objective "{objective.name}" has kinks'
        if not structure.is_gaussian:
            return "only EM supports categorical features"
        if not structure.has_update:
            return f"covariance_type={structure.name!r} has no closed-form update"
        return needs_pseudo_moments(prior)

    def init(self, problem: Problem, start: Mixture) -> BaumWelchState:
        """Make one pass over the samples."""
        start = problem.move_for_updates(start)
        problem = problem.beside(start)
        summary = summarise(
            start, problem.source, problem.objective, problem.frame, problem.memory_limit, problem.buffers
        )
        summary = summary.about(start.means)
        value = (summary.value + problem.log_prior(start)) / summary.weight
        return BaumWelchState(start, value, _summary=summary)

    def step(self, problem: Problem, state: BaumWelchState) -> tuple[BaumWelchState, Info]:
        """Shorten the step until it does not lower the objective.

        The first retry omits momentum, the next ones increase E.
        """
        if state._summary is None:  # the state is from a file, with its mixtures on the device of the rows
            here = self.init(problem, state.mixture)
            previous = None if state.previous is None else problem.move_for_updates(state.previous)
            state = replace(state, mixture=here.mixture, previous=previous, _summary=here.summary)
        factor, n_steps, problem = state.factor, state.n_steps, problem.beside(state.mixture)
        for _ in range(MOST_REJECTIONS):
            candidate = self.update(problem, state, factor, n_steps)
            if not repairs_of(candidate):
                then = self.init(problem, candidate)
                if then.value >= state.value:
                    factor = max(SHRINKING * factor, SMALLEST_FACTOR)
                    then = replace(then, factor=factor, previous=state.mixture, n_steps=n_steps + 1)
                    return then, Info(state.value)
            if n_steps == 0:  # otherwise the first retry omits momentum
                factor *= GROWING
            n_steps = 0
        return replace(state, n_steps=0), Info(state.value)

    def result(self, state: BaumWelchState) -> Mixture:
        return state.mixture

    def update(self, problem: Problem, now: BaumWelchState, factor: float, n_steps: int = 0) -> Mixture:
        """Return the mixture estimated from the net moments plus D times its own moments, with momentum."""
        mixture, problem = now.mixture, problem.beside(now.mixture)
        pseudo = problem.pseudo_moments
        with threads_for(len(mixture.means) * float(mixture.means.shape[1]) ** 3):
            anchor = self.anchor(now, n_steps)
            constants = self.constants(problem, now, factor, anchor)
            means, scatter = update_means(mixture, now.summary.moments + anchor.scaled(constants), pseudo)
            covariance = mixture.covariance.updated(scatter, pseudo, problem.floor)
        return Mixture(_log_weights(problem, mixture, now.summary), means, covariance, mixture.class_of)

    def anchor(self, now: BaumWelchState, n_steps: int) -> Moments:
        """The model's own moments with counts of one, extrapolated in the direction of the last step (momentum)."""
        ones = torch.ones_like(now.mixture.log_weights)
        own = now.mixture.own_moments(ones)
        if now.previous is None or n_steps == 0 or isinstance(own.form, ProjectedForm):
            return own  # projections change with every step
        share = n_steps / (n_steps + 3)  # as Nesterov's
        before = now.previous.own_moments(ones).about(own.reference)
        return own.scaled(1 + share) + before.scaled(-share)

    def constants(self, problem: Problem, now: BaumWelchState, factor: float, anchor: Moments) -> Tensor:
        """D (K,): at least factor * denominator counts, and twice the value that makes new covariances definite."""
        net, denominators, problem = now.summary.moments, now.summary.denominator_counts, problem.beside(now.mixture)
        halves = (0.5 * factor * denominators).clamp_min(SMALLEST_COUNT * now.summary.weight)
        for _ in range(MOST_DOUBLINGS):
            _, scatter = update_means(now.mixture, net + anchor.scaled(halves), problem.pseudo_moments)
            sound = now.mixture.covariance.definite(scatter, problem.pseudo_moments)
            if bool(sound.all()):
                break
            halves = torch.where(sound, halves, 2 * halves)
        return 2 * halves


def _log_weights(problem: Problem, mixture: Mixture, summary: Summary) -> Tensor:
    denominators = summary.denominator_counts
    numerators = (summary.moments.counts + denominators + problem.pseudo_moments.weight_count).clamp_min(0)
    groups, totals = [slice(0, mixture.n_components)], [1.0]
    if problem.class_prior is not None:
        groups, totals = mixture.class_slices, problem.class_prior.tolist()
    # Newton's method for K numbers runs on the CPU: on a GPU every operation is a launch and every test a
    # synchronisation.
    logs, numerators, denominators = torch.stack((mixture.log_weights, numerators, denominators)).cpu()
    return maximising_weights(logs, numerators, denominators, groups, totals).to(mixture.log_weights.device)


def maximising_weights(
    log_weights: Tensor, numerators: Tensor, denominators: Tensor, groups: Sequence[slice], totals: Sequence[float]
) -> Tensor:
    """Return the weights v that maximise a bound of the objective; each group sums to its total (weight-growth):

        sum_k n_k log v_k - d_k v_k / w_k,   so   v_k = n_k / (lambda + d_k / w_k).

    Newton's method on 1 / sum_k v_k, which is concave in lambda, converges to the root from below. A group without
    numerators does not change.
    """
    # NumPy's calls take a quarter of the time of torch's, and these numbers are few.
    logs, counts = log_weights.numpy().copy(), numerators.numpy()
    rates = denominators.numpy() / np.exp(logs).clip(1e-300)
    for group, total in zip(groups, totals, strict=True):
        wanted = counts[group] > 0
        if not wanted.any():
            continue
        n, d = counts[group][wanted], rates[group][wanted]
        multiplier = (n / total - d).max()  # the value at which one weight alone equals the total
        shares = n
        for _ in range(N_NEWTON):
            divisors = np.maximum(multiplier + d, n / total)  # true at the root; violated only by rounding
            shares = n / divisors
            sum_of_shares = shares.sum()
            change = sum_of_shares * (sum_of_shares / total - 1) / (shares / divisors).sum()
            multiplier = multiplier + change
            if not change > 1e-15 * abs(multiplier):
                break
        own = np.full(len(wanted), -np.inf)
        own[wanted] = np.log(shares / shares.sum() * total)
        logs[group] = own
    return torch.from_numpy(logs)
