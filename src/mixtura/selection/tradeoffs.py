"""Hybrid training by stochastic gradients; held-out samples select trade-off and number of epochs (RPTP18)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from mixtura.engine.passes import map_rows
from mixtura.engine.sources import Block, TensorSource
from mixtura.model.mixture import Mixture
from mixtura.objectives import Hybrid, Margin
from mixtura.objectives.likelihood import class_posteriors
from mixtura.priors import Scaled
from mixtura.selection.scores import classification_score
from mixtura.selection.search import Search, SearchTable, Trial
from mixtura.selection.splits import hold_outs, regroup
from mixtura.selection.task import PriorChoice, Selected, Task, make_prior, start
from mixtura.solvers import EM, EarlyStopping, FitResult, Gradient, Outcome, run
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
        Solver of all fits; EM fits the start.
    n_epochs : int
        Largest number of epochs.
    validation_fraction : float or None
        Fraction of every class that is held out.
    seed : int
        Seed of the held-out samples, and of the order of the minibatches, the same for every trade-off.
    """

    objective: Hybrid
    selects_tradeoff: bool
    selects_margin: bool
    prior: PriorChoice
    solver: Gradient
    n_epochs: int
    validation_fraction: float | None
    seed: int

    @property
    def margin(self) -> float | None:
        """Size of the margin; None with the conditional likelihood."""
        other = self.objective.discriminative
        return other.margin if isinstance(other, Margin) else None

    def run(self, task: Task, watch: Callable[[Trial[TradeoffFit]], None] | None = None) -> Selected:
        """Select trade-off and number of epochs on held-out samples.

        If the user passed a validation set, or nothing is held out, the selected model itself is the result.
        """
        part, held_out = self._split(task)
        first = self._start(part)
        search = self._with_margin(part, first.mixture)
        best, table = search.choose(part, first, held_out, watch)
        attributes = {
            "search_": table,
            "margin_": search.margin,
            "tradeoff_": best.tradeoff,
            "n_epochs_": best.epoch,
            "validation_scores_": [],
        }
        done = part is task or best.interrupted
        results = (_end(best.result),) if done else ()
        folds = () if held_out is None else ((best.result.mixture, held_out),)
        return Selected((task,), table, results, partial(search.again, best), attributes, folds=folds)

    def _split(self, task: Task) -> tuple[Task, TensorSource | None]:
        """The task for the training samples, and the held-out samples, if any."""
        block = together(task.source)
        if task.held_out is not None:
            (given,) = task.held_out.blocks()
            assert given.labels is not None
            return task, TensorSource(given.rows.to(block.rows), given.labels.to(block.rows.device))
        if self.validation_fraction is None or block.labels is None:
            return task, None
        generator = torch.Generator().manual_seed(self.seed)
        parts = hold_outs(
            regroup(task.cv, self.validation_fraction),
            block.labels,
            generator,
            weights=block.weights,
            smallest=SMALLEST_HELD_OUT,
        )
        if not parts:
            return task, None
        part = task.of_part(part_of(block, parts[0].kept))
        part = replace(part, prior=make_prior(self.prior, part.description, part.n_components))
        return part, part_of(block, parts[0].held_out)

    def _start(self, task: Task) -> FitResult:
        """The initial mixture: given, or fitted by EM."""
        if isinstance(task.init, Mixture):
            return FitResult(start(task), Outcome.CONVERGED, ())
        problem = replace(task.problem, objective=replace(self.objective, tradeoff=1.0))
        result = run(EM(), problem, start(task, problem), *task.limits)
        return replace(result, mixture=task.convert(result.mixture))

    def _with_margin(self, task: Task, first: Mixture) -> TradeoffSearch:
        if not self.selects_margin:
            return self
        return replace(self, objective=replace(self.objective, discriminative=Margin(typical_margin(first, task))))

    def choose(
        self,
        task: Task,
        first: FitResult,
        held_out: TensorSource | None,
        watch: Callable[[Trial[TradeoffFit]], None] | None = None,
    ) -> tuple[TradeoffFit, SearchTable | None]:
        """Return the fit with the best held-out score; among equal ones the most generative."""
        if first.outcome is Outcome.INTERRUPTED:
            return TradeoffFit(1.0, first, 0), None
        if held_out is None:
            return self.train(task, first.mixture, self.objective.tradeoff), None
        search: Search[TradeoffFit] = Search("log_loss", watch)
        search.run(lambda: self._all(search, task, first, held_out))
        best = max(search.trials, key=lambda trial: trial.fit.score)
        ended = best.fit
        if search.interrupted:
            ended = replace(ended, result=replace(ended.result, outcome=Outcome.INTERRUPTED))
        return ended, search.table(best)

    def _all(self, search: Search[TradeoffFit], task: Task, first: FitResult, held_out: TensorSource) -> None:
        """Try the trade-offs; if they are to be selected, the initialisation is a candidate too."""
        if self.selects_tradeoff:
            score = classification_score(held_out, self.margin is not None, task.memory_limit)(first.mixture)
            search.try_one(lambda: _trial(TradeoffFit(1.0, first, 0, score)))
        for tradeoff in PATH if self.selects_tradeoff else (self.objective.tradeoff,):
            trial = search.try_one(
                lambda tradeoff=tradeoff: _trial(self.train(task, first.mixture, tradeoff, held_out))
            )
            if trial.fit.interrupted:
                raise KeyboardInterrupt

    def train(
        self,
        task: Task,
        first: Mixture,
        tradeoff: float,
        held_out: TensorSource | None = None,
        n_epochs: int | None = None,
    ) -> TradeoffFit:
        """Train with one trade-off. The log prior is part of the likelihood term."""
        prior = None if task.prior is None or tradeoff == 0 else Scaled(task.prior, tradeoff)
        problem = replace(
            task.problem, objective=replace(self.objective, tradeoff=tradeoff), prior=prior, seed=self.seed
        )
        judge = None
        if held_out is not None:
            score = classification_score(held_out, self.margin is not None, task.memory_limit)
            judge = EarlyStopping(score, patience=PATIENCE)
        limit = self.n_epochs if n_epochs is None else n_epochs
        result = run(self.solver, problem, first, limit, 0.0, held_out=judge)
        scores = dict(result.scores)
        best = result.best_iteration
        return TradeoffFit(tradeoff, result, best, scores.get(best, (-math.inf,)))

    def again(self, best: TradeoffFit, task: Task) -> FitResult:
        """Train with all samples, with the selected trade-off and number of epochs."""
        first = self._start(task)
        if best.epoch == 0 or first.outcome is Outcome.INTERRUPTED:
            return _end(replace(first, scores=best.result.scores))
        fit = self.train(task, first.mixture, best.tradeoff, n_epochs=best.epoch)
        return _end(replace(fit.result, scores=best.result.scores))


def _end(result: FitResult) -> FitResult:
    """A result in whose outcome the limit is the number of epochs, which is not a failure to converge."""
    return replace(result, outcome=Outcome.HELD_OUT) if result.outcome is Outcome.LIMIT else result


def _trial(fit: TradeoffFit) -> Trial[TradeoffFit]:
    error = {"error": -fit.score[0]} if len(fit.score) > 1 else {}
    what = {"tradeoff": fit.tradeoff, "n_epochs": fit.epoch, **error}
    log_loss = -fit.score[len(fit.score) - 1]
    return Trial(what, log_loss, math.nan, fit)


def part_of(block: Block, chosen: Tensor) -> TensorSource:
    """Some samples of a block, with their labels and weights."""
    known = (None if part is None else part[chosen] for part in (block.labels, block.shares, block.weights))
    return TensorSource(block.rows[chosen], *known)


def typical_margin(first: Mixture, task: Task) -> float:
    """Return the median margin of the initial mixture, or 1 if that is larger."""
    known = Targets(first.class_of, known_classes=first.n_classes)
    scores = map_rows(first, task.source, lambda a: class_posteriors(a, known)[0].T, task.memory_limit)  # (n, C)
    largest, second = scores.topk(2, dim=1).values.unbind(1)
    return max(1.0, float((largest - second).median()))
