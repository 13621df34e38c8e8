"""Hybrid training by stochastic gradients, with the trade-off and the number of epochs by held-out samples (RPTP18)."""

from __future__ import annotations

import math
import time
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
from mixtura.selection.table import ScoredCandidate, SearchTable
from mixtura.solvers import FitResult, Gradient, HeldOut, Outcome, run
from mixtura.values.targets import Targets

# The trade-offs that "auto" compares, from describing to separating; 1 is the generative start itself.
PATH = (0.5, 0.1, 0.01)
PATIENCE = 10  # epochs without a better score of the held-out samples


@dataclass(frozen=True)
class Trained:
    """A fit with one trade-off, the epoch that was kept, and the score of the held-out samples there."""

    tradeoff: float
    result: FitResult
    epoch: int
    score: tuple[float, ...] = ()
    seconds: float = 0.0

    @property
    def interrupted(self) -> bool:
        return self.result.outcome is Outcome.INTERRUPTED


@dataclass(frozen=True)
class TradeoffSearch:
    """Trains tradeoff * likelihood + (1 - tradeoff) * discriminative (hybrid-objective).

    Parameters
    ----------
    tradeoff : float or None
        None compares those of PATH and the start.
    margin : float or None
        Of the large margin; None trains by conditional likelihood.
    unlabeled_weight : float
    solver : Gradient
    n_epochs : int
    seed : int
        Of the order of the minibatches, the same for every trade-off.
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

    def choose(self, plan: Plan, start: FitResult, held_out: TensorSource | None) -> tuple[Trained, SearchTable | None]:
        """Return the fit that the held-out samples prefer, the most generative of equals."""
        if start.outcome is Outcome.INTERRUPTED:
            return Trained(1.0, start, 0), None
        if held_out is None:
            return self.trained(plan, start.mixture, PATH[0] if self.tradeoff is None else self.tradeoff), None
        fits: list[Trained] = []
        for tradeoff in PATH if self.tradeoff is None else (self.tradeoff,):
            fit = self.trained(plan, start.mixture, tradeoff, held_out)
            if not fits and self.tradeoff is None:  # the start is a candidate too
                fits.append(Trained(1.0, start, 0, fit.result.scores[0][1]))
            fits.append(fit)
            if fit.interrupted:
                break
        best = max(fits, key=lambda fit: fit.score)
        if fits[-1].interrupted:
            best = replace(best, result=replace(best.result, outcome=Outcome.INTERRUPTED))
        scores = [ScoredCandidate(_what(fit), -fit.score[-1], math.nan, fit.seconds) for fit in fits]
        numbers = [fit.tradeoff for fit in fits]
        return best, SearchTable("log_loss", tuple(scores), numbers.index(best.tradeoff))

    def trained(
        self, plan: Plan, start: Mixture, tradeoff: float, held_out: TensorSource | None = None, n_epochs: Any = None
    ) -> Trained:
        """Train with one trade-off. The log prior counts with the likelihood."""
        began = time.perf_counter()
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
        return Trained(tradeoff, result, best, scores.get(best, ()), time.perf_counter() - began)

    def again(self, plan: Plan, start: FitResult, best: Trained) -> Trained:
        """Train the chosen trade-off and number of epochs with all samples."""
        if best.epoch == 0 or start.outcome is Outcome.INTERRUPTED:
            return replace(best, result=start)
        fit = self.trained(plan, start.mixture, best.tradeoff, n_epochs=best.epoch)
        return replace(best, result=replace(fit.result, scores=best.result.scores))


def _what(fit: Trained) -> dict[str, Any]:
    error = {"error": -fit.score[0]} if len(fit.score) > 1 else {}
    return {"tradeoff": fit.tradeoff, "n_epochs": fit.epoch, **error}


def typical_margin(start: Mixture, plan: Plan) -> float:
    """Return the median margin at the start, and at least one."""
    known = Targets(start.class_of, known_classes=start.n_classes)
    scores = map_rows(start, plan.source, lambda a: class_posteriors(a, known)[0].T, plan.memory_limit)  # (n, C)
    first, second = scores.topk(2, dim=1).values.unbind(1)
    return max(1.0, float((first - second).median()))
