"""Hybrid training by stochastic gradients; held-out samples select trade-off and number of epochs (RPTP18)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mixtura.engine.passes import map_rows
from mixtura.engine.sources import TensorSource
from mixtura.model.mixture import Mixture
from mixtura.objectives import Conditional, Hybrid, Margin
from mixtura.objectives.likelihood import class_posteriors
from mixtura.priors import Scaled
from mixtura.selection.plan import Plan
from mixtura.selection.scores import classification_score
from mixtura.selection.search import Search, Trial
from mixtura.selection.table import SearchTable
from mixtura.solvers import FitResult, Gradient, HeldOut, Outcome, run
from mixtura.values.targets import Targets

# The trade-offs that "auto" compares, from generative to discriminative; 1 is the generative initialisation itself.
PATH = (0.5, 0.1, 0.01)
PATIENCE = 10  # epochs without a better held-out score after which training stops


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
    tradeoff : float or None
        None compares the values in PATH and the initialisation.
    margin : float or None
        Size of the margin; None maximises the conditional likelihood.
    unlabeled_weight : float
    solver : Gradient
    n_epochs : int
    seed : int
        Seed of the order of the minibatches, the same for every trade-off.
    """

    tradeoff: float | None
    margin: float | None
    unlabeled_weight: float
    solver: Gradient
    n_epochs: int
    seed: int

    def objective(self, tradeoff: float) -> Hybrid:
        other = Conditional() if self.margin is None else Margin(self.margin)
        return Hybrid(tradeoff, other, self.unlabeled_weight)

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
            return self.trained(plan, start.mixture, PATH[0] if self.tradeoff is None else self.tradeoff), None
        search: Search[TradeoffFit] = Search("log_loss", watch)
        search.run(lambda: self._all(search, plan, start, held_out))
        best = max(search.trials, key=lambda trial: trial.fit.score)
        ended = best.fit
        if search.interrupted:
            ended = replace(ended, result=replace(ended.result, outcome=Outcome.INTERRUPTED))
        return ended, search.table(best)

    def _all(self, search: Search[TradeoffFit], plan: Plan, start: FitResult, held_out: TensorSource) -> None:
        """Try the trade-offs; if they are to be selected, the initialisation is a candidate too."""
        if self.tradeoff is None:
            score = classification_score(held_out, self.margin is not None, plan.memory_limit)(start.mixture)
            search.tried(lambda: _trial(TradeoffFit(1.0, start, 0, score)))
        for tradeoff in PATH if self.tradeoff is None else (self.tradeoff,):
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
        problem = replace(plan.problem, objective=self.objective(tradeoff), prior=prior, seed=self.seed)
        judge = None
        if held_out is not None:
            score = classification_score(held_out, self.margin is not None, plan.memory_limit)
            judge = HeldOut(score, patience=PATIENCE)
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


def typical_margin(start: Mixture, plan: Plan) -> float:
    """Return the median margin of the initial mixture, or 1 if that is larger."""
    known = Targets(start.class_of, known_classes=start.n_classes)
    scores = map_rows(start, plan.source, lambda a: class_posteriors(a, known)[0].T, plan.memory_limit)  # (n, C)
    first, second = scores.topk(2, dim=1).values.unbind(1)
    return max(1.0, float((first - second).median()))
