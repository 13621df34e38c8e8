"""Hybrid training by stochastic gradients; held-out samples select trade-off and number of epochs (RPTP18)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch

from mixtura.engine.passes import map_rows
from mixtura.engine.sources import BlockSource, TensorSource, joined
from mixtura.model.mixture import Mixture
from mixtura.objectives import Hybrid, Margin
from mixtura.objectives.likelihood import class_posteriors
from mixtura.priors import Scaled
from mixtura.selection.scores import classification_score
from mixtura.selection.search import Search, SearchTable, Trial, check_complete
from mixtura.selection.splits import hold_outs, regroup
from mixtura.selection.task import PriorChoice, Selected, Task, make_prior, start
from mixtura.solvers import EM, EarlyStopping, FitResult, Gradient, Outcome, run
from mixtura.values.targets import Targets

# The trade-offs that "auto" compares, from generative to discriminative; 1 is the generative initialisation itself.
PATH = (0.5, 0.1, 0.01)
PATIENCE = 10  # epochs without a better held-out score after which training stops
SMALLEST_HELD_OUT = 20  # with fewer samples trade-offs cannot be compared


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

    def run(self, task: Task) -> Selected[Task]:
        """Select trade-off and number of epochs on held-out samples.

        If the user passed a validation set, or nothing is held out, the selected model itself is the result.
        """
        part, held_out = self._split(task)
        first = self._start(part)
        search = self._with_margin(part, first.mixture)
        best, table = search.choose(part, first, held_out)
        tradeoff, n_epochs = settings_of(best)
        attributes = {
            "search_": table,
            "margin_": search.margin,
            "tradeoff_": tradeoff,
            "n_epochs_": n_epochs,
            "validation_scores_": [],
        }
        done = part is task or best.fit.outcome is Outcome.INTERRUPTED
        results = (_end(best.fit),) if done else ()
        folds = () if held_out is None else ((best.fit.mixture, held_out),)
        return Selected((task,), table, results, partial(search.again, best), attributes, folds=folds)

    def _split(self, task: Task) -> tuple[Task, BlockSource | None]:
        """The task for the training samples, and the held-out samples, if any."""
        block = joined(list(task.source.blocks()))
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
        part = task.of_part(BlockSource(block.part(parts[0].kept)))
        part = replace(part, prior=make_prior(self.prior, part.description, part.n_components))
        return part, BlockSource(block.part(parts[0].held_out))

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
        self, task: Task, first: FitResult, held_out: BlockSource | None
    ) -> tuple[Trial[FitResult], SearchTable | None]:
        """Return the trial with the best held-out score; among equal ones the most generative."""
        if first.outcome is Outcome.INTERRUPTED:
            return _trial(1.0, first), None
        if held_out is None:
            tradeoff = self.objective.tradeoff
            result = self.train(task, first.mixture, tradeoff)
            return _trial(tradeoff, result, result.best_iteration), None
        search: Search[FitResult] = Search("log_loss")
        search.run(lambda: self._try_all(search, task, first, held_out))
        best = min(search.trials, key=lambda trial: (trial.what.get("error", trial.score), trial.score))
        table = search.table(best)
        ended = replace(best.fit, outcome=Outcome.INTERRUPTED) if search.interrupted else best.fit
        return replace(best, fit=ended), table

    def _try_all(self, search: Search[FitResult], task: Task, first: FitResult, held_out: BlockSource) -> None:
        """Try the trade-offs; if they are to be selected, the initialisation is a candidate too."""
        score = classification_score(held_out, self.margin is not None, task.memory_limit)
        if self.selects_tradeoff:
            search.try_one(lambda: _trial(1.0, first, 0, score(first.mixture)))

        def evaluate(tradeoff: float) -> Trial[FitResult]:
            result = self.train(task, first.mixture, tradeoff, EarlyStopping(score, patience=PATIENCE))
            best = result.best_iteration
            own = cast("tuple[float, ...] | None", dict(result.scores).get(best))
            return _trial(tradeoff, result, best, own)

        for tradeoff in PATH if self.selects_tradeoff else (self.objective.tradeoff,):
            check_complete(search.try_one(partial(evaluate, tradeoff)).fit)

    def train(
        self,
        task: Task,
        first: Mixture,
        tradeoff: float,
        judge: EarlyStopping | None = None,
        n_epochs: int | None = None,
    ) -> FitResult:
        """Train with one trade-off. The log prior is part of the likelihood term."""
        prior = None if task.prior is None or tradeoff == 0 else Scaled(task.prior, tradeoff)
        problem = replace(
            task.problem, objective=replace(self.objective, tradeoff=tradeoff), prior=prior, seed=self.seed
        )
        return run(self.solver, problem, first, self.n_epochs if n_epochs is None else n_epochs, 0.0, held_out=judge)

    def again(self, best: Trial[FitResult], task: Task) -> FitResult:
        """Train with all samples, with the selected trade-off and number of epochs."""
        first, tradeoff, n_epochs = self._start(task), *settings_of(best)
        if n_epochs == 0 or first.outcome is Outcome.INTERRUPTED:
            return _end(replace(first, scores=best.fit.scores))
        result = self.train(task, first.mixture, tradeoff, n_epochs=n_epochs)
        return _end(replace(result, scores=best.fit.scores))


def _end(result: FitResult) -> FitResult:
    """A result in whose outcome the limit is the number of epochs, which is not a failure to converge."""
    return replace(result, outcome=Outcome.HELD_OUT) if result.outcome is Outcome.LIMIT else result


def _trial(
    tradeoff: float, result: FitResult, n_epochs: int = 0, score: tuple[float, ...] | None = None
) -> Trial[FitResult]:
    """The trial of a fit, with the number of epochs after which its held-out score was best, and that score."""
    *errors, log_loss = [-part for part in score or (-math.inf,)]
    what = {"tradeoff": tradeoff, "n_epochs": n_epochs} | ({"error": errors[0]} if errors else {})
    return Trial(what, log_loss, math.nan, result)


def settings_of(trial: Trial[FitResult]) -> tuple[float, int]:
    """The trade-off and the number of epochs of a trial."""
    return cast("float", trial.what["tradeoff"]), cast("int", trial.what["n_epochs"])


def typical_margin(first: Mixture, task: Task) -> float:
    """Return the median margin of the initial mixture, or 1 if that is larger."""
    known = Targets(first.class_of, known_classes=first.n_classes)
    scores = map_rows(first, task.source, lambda a: class_posteriors(a, known)[0].T, task.memory_limit)  # (n, C)
    largest, second = scores.topk(2, dim=1).values.unbind(1)
    return max(1.0, float((largest - second).median()))
