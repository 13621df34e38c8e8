"""Hybrid training by stochastic gradients; held-out samples select trade-off and number of epochs (RPTP18)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mixtura.engine.passes import map_rows
from mixtura.engine.sources import Block, TensorSource
from mixtura.model.mixture import Mixture
from mixtura.objectives import Hybrid, Margin
from mixtura.objectives.likelihood import class_posteriors
from mixtura.priors import Scaled
from mixtura.selection.plan import Plan, Trained, make_prior
from mixtura.selection.scores import classification_score
from mixtura.selection.search import Search, Trial
from mixtura.selection.splits import hold_outs
from mixtura.selection.table import SearchTable
from mixtura.solvers import EM, EarlyStopping, FitResult, Gradient, Outcome, Problem, run
from mixtura.solvers.gradient import together
from mixtura.values.targets import Targets

# The trade-offs that "auto" compares, from generative to discriminative; 1 is the generative initialisation itself.
PATH = (0.5, 0.1, 0.01)
PATIENCE = 10  # epochs without a better held-out score after which training stops
SMALLEST_HELD_OUT = 20  # with fewer samples trade-offs cannot be compared


@dataclass(frozen=True)
class TradeoffFit:
    """A fit with one trade-off, its best epoch, and the held-out score of that epoch."""

    tradeoff: float
    result: FitResult
    epoch: int
    score: tuple[float, ...] = (-math.inf,)

    @property
    def interrupted(self) -> bool:
        return self.result.outcome is Outcome.INTERRUPTED


@dataclass(frozen=True)
class TradeoffSearch:
    """Trains tradeoff * likelihood + (1 - tradeoff) * discriminative (hybrid-objective).

    Parameters
    ----------
    objective : Hybrid
        Trade-off and margin are those of the arguments, or placeholders for those to be selected.
    selects_tradeoff : bool
        Whether the values in PATH and the initialisation are compared.
    selects_margin : bool
        Whether the margin is `typical_margin`.
    prior : object
        The argument `prior` of the estimator.
    solver : Gradient
        Solver of all fits.
    n_epochs : int
        Largest number of epochs.
    limits : tuple
        max_iter and tol of EM, which fits the start.
    validation_fraction : float or None
        Fraction of every class that is held out.
    seed : int
        Seed of the held-out samples, and of the order of the minibatches, the same for every trade-off.
    new_start : callable
        From a plan and a problem to an initialisation.
    """

    objective: Hybrid
    selects_tradeoff: bool
    selects_margin: bool
    prior: Any
    solver: Gradient
    n_epochs: int
    limits: tuple[int, float]
    validation_fraction: float | None
    seed: int
    new_start: Callable[[Plan, Problem], Mixture]

    @property
    def margin(self) -> float | None:
        """Size of the margin; None with the conditional likelihood."""
        other = self.objective.discriminative
        return other.margin if isinstance(other, Margin) else None

    def fit(
        self, plan: Plan, given: Mixture | None, watch: Callable[[Trial[TradeoffFit]], None] | None = None
    ) -> Trained:
        """Select trade-off and number of epochs on held-out samples; then train with all samples.

        If the user passed a validation set, the selected model itself is the result.
        """
        part, held_out = self._split(plan)
        start = self._generative(part, given)
        search = self._with_margin(part, start.mixture)
        best, table = search.choose(part, start, held_out, watch)
        if part is not plan and not best.interrupted:
            best = search.again(plan, self._generative(plan, given), best)
        attributes = {
            "search_": table,
            "margin_": search.margin,
            "tradeoff_": best.tradeoff,
            "n_epochs_": best.epoch,
            "validation_scores_": list(best.result.scores),
        }
        result = best.result
        if result.outcome is Outcome.LIMIT:  # the number of epochs, which is not a failure to converge
            result = replace(result, outcome=Outcome.HELD_OUT)
        return Trained(result, plan, attributes)

    def _split(self, plan: Plan) -> tuple[Plan, TensorSource | None]:
        """The plan for the training samples, and the held-out samples, if any."""
        block = together(plan.source)
        if plan.held_out is not None:
            (given,) = plan.held_out.blocks()
            assert given.labels is not None
            return plan, TensorSource(given.rows.to(block.rows), given.labels.to(block.rows.device))
        if self.validation_fraction is None or block.labels is None:
            return plan, None
        generator = torch.Generator().manual_seed(self.seed)
        parts = hold_outs(
            self.validation_fraction, block.labels, generator, weights=block.weights, smallest=SMALLEST_HELD_OUT
        )
        if not parts:
            return plan, None
        part = plan.of_part(part_of(block, parts[0].kept))
        part = replace(part, prior=make_prior(self.prior, part.description, part.n_components))
        return part, part_of(block, parts[0].held_out)

    def _generative(self, plan: Plan, given: Mixture | None) -> FitResult:
        """The initial mixture: given, or fitted by EM."""
        if given is not None:
            return FitResult(given, Outcome.CONVERGED, ())
        problem = replace(plan.problem, objective=replace(self.objective, tradeoff=1.0))
        result = run(EM(), problem, self.new_start(plan, problem), *self.limits)
        return replace(result, mixture=plan.converted(result.mixture))

    def _with_margin(self, plan: Plan, start: Mixture) -> TradeoffSearch:
        if not self.selects_margin:
            return self
        return replace(self, objective=replace(self.objective, discriminative=Margin(typical_margin(start, plan))))

    def choose(
        self,
        plan: Plan,
        start: FitResult,
        held_out: TensorSource | None,
        watch: Callable[[Trial[TradeoffFit]], None] | None = None,
    ) -> tuple[TradeoffFit, SearchTable | None]:
        """Return the fit with the best held-out score; among equal ones the most generative."""
        if start.outcome is Outcome.INTERRUPTED:
            return TradeoffFit(1.0, start, 0), None
        if held_out is None:
            return self.trained(plan, start.mixture, self.objective.tradeoff), None
        search: Search[TradeoffFit] = Search("log_loss", watch)
        search.run(lambda: self._all(search, plan, start, held_out))
        best = max(search.trials, key=lambda trial: trial.fit.score)
        ended = best.fit
        if search.interrupted:
            ended = replace(ended, result=replace(ended.result, outcome=Outcome.INTERRUPTED))
        return ended, search.table(best)

    def _all(self, search: Search[TradeoffFit], plan: Plan, start: FitResult, held_out: TensorSource) -> None:
        """Try the trade-offs; if they are to be selected, the initialisation is a candidate too."""
        if self.selects_tradeoff:
            score = classification_score(held_out, self.margin is not None, plan.memory_limit)(start.mixture)
            search.tried(lambda: _trial(TradeoffFit(1.0, start, 0, score)))
        for tradeoff in PATH if self.selects_tradeoff else (self.objective.tradeoff,):
            trial = search.tried(
                lambda tradeoff=tradeoff: _trial(self.trained(plan, start.mixture, tradeoff, held_out))
            )
            if trial.fit.interrupted:
                raise KeyboardInterrupt

    def trained(
        self, plan: Plan, start: Mixture, tradeoff: float, held_out: TensorSource | None = None, n_epochs: Any = None
    ) -> TradeoffFit:
        """Train with one trade-off. The log prior is part of the likelihood term."""
        prior = None if plan.prior is None or tradeoff == 0 else Scaled(plan.prior, tradeoff)
        problem = replace(
            plan.problem, objective=replace(self.objective, tradeoff=tradeoff), prior=prior, seed=self.seed
        )
        judge = None
        if held_out is not None:
            score = classification_score(held_out, self.margin is not None, plan.memory_limit)
            judge = EarlyStopping(score, patience=PATIENCE)
        limit = self.n_epochs if n_epochs is None else n_epochs
        result = run(self.solver, problem, start, limit, 0.0, held_out=judge)
        scores = dict(result.scores)
        best = result.best_iteration
        return TradeoffFit(tradeoff, result, best, scores.get(best, (-math.inf,)))

    def again(self, plan: Plan, start: FitResult, best: TradeoffFit) -> TradeoffFit:
        """Train with all samples, with the selected trade-off and number of epochs."""
        if best.epoch == 0 or start.outcome is Outcome.INTERRUPTED:
            return replace(best, result=start)
        fit = self.trained(plan, start.mixture, best.tradeoff, n_epochs=best.epoch)
        return replace(best, result=replace(fit.result, scores=best.result.scores))


def _trial(fit: TradeoffFit) -> Trial[TradeoffFit]:
    error = {"error": -fit.score[0]} if len(fit.score) > 1 else {}
    what = {"tradeoff": fit.tradeoff, "n_epochs": fit.epoch, **error}
    log_loss = -fit.score[len(fit.score) - 1]
    return Trial(what, log_loss, math.nan, fit)


def part_of(block: Block, chosen: Tensor) -> TensorSource:
    """Some samples of a block, with their labels and weights."""
    known = (None if part is None else part[chosen] for part in (block.labels, block.shares, block.weights))
    return TensorSource(block.rows[chosen], *known)


def typical_margin(start: Mixture, plan: Plan) -> float:
    """Return the median margin of the initial mixture, or 1 if that is larger."""
    known = Targets(start.class_of, known_classes=start.n_classes)
    scores = map_rows(start, plan.source, lambda a: class_posteriors(a, known)[0].T, plan.memory_limit)  # (n, C)
    first, second = scores.topk(2, dim=1).values.unbind(1)
    return max(1.0, float((first - second).median()))
