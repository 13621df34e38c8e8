"""Log-linear mixtures by a named solver: held-out samples select the number of iterations, and candidates compete."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from mixtura.nonnegative.mixture import (
    LabeledRows,
    LogLinearMixture,
    NonnegativeProblem,
    random_start,
    smoothed_likelihood,
)
from mixtura.nonnegative.updates import finished
from mixtura.selection.search import Search, SearchTable, Trial
from mixtura.solvers import EarlyStopping, FitResult, Outcome, run

SCORING_INTERVAL = 5  # steps between two scores of the held-out samples


@dataclass(frozen=True)
class UpdateFit:
    """One fit: its solver, its start and its result."""

    solver: Any
    start: LogLinearMixture
    result: FitResult

    @property
    def score(self) -> float:
        """The best score of the held-out samples; without them the objective."""
        return max((score for _, score in self.result.scores), default=self.result.objective)


@dataclass(frozen=True)
class UpdateSearch:
    """Fits every penalty from the same initialisations, then the best one to all rows.

    Parameters
    ----------
    problem : NonnegativeProblem
        Rows, and those held out.
    solvers : list
        One for each penalty, the one to use without held-out rows last.
    prior : Normal, PseudoCounts or None
        On the coefficients; bound to the rows of each fit.
    n_components, shared : int and bool
        Of the initialisations.
    n_init : int
        Number of initialisations.
    max_iter, tol : int and float
        Limits of a fit.
    """

    problem: NonnegativeProblem
    solvers: list[Any]
    prior: Any
    n_components: int
    shared: bool
    n_init: int
    max_iter: int
    tol: float

    @property
    def compared(self) -> list[Any]:
        """The solvers that are compared: without held-out rows penalties cannot be."""
        return self.solvers if self.problem.held_out is not None else self.solvers[-1:]

    @property
    def n_candidates(self) -> int:
        return len(self.compared) * self.n_init

    def run(self, watch: Callable[[Trial[UpdateFit]], None] | None) -> tuple[UpdateFit, SearchTable | None]:
        """The selected fit, of all rows and without idle weights, and the table of several candidates."""
        problem = self.problem
        search: Search[UpdateFit] = Search("objective" if problem.held_out is None else "log_loss", watch)
        search.run(lambda: self._try_all(search))
        best = search.best.fit
        table = search.table(search.best) if len(search.trials) > 1 else None
        if search.interrupted:
            best = replace(best, result=replace(best.result, outcome=Outcome.INTERRUPTED))
        if problem.held_out is not None and best.result.outcome is not Outcome.INTERRUPTED:
            best = self._with_all_rows(best)
        solver, result = self._bound(best.solver, problem.rows, best.start), best.result
        mixture = finished(solver, result.mixture, result.best_iteration, problem.rows)
        return replace(best, result=replace(result, mixture=mixture)), table

    def _try_all(self, search: Search[UpdateFit]) -> None:
        problem = self.problem
        shape = (self.n_components, self.shared, problem.rows, problem.log_prior, problem.generator, problem.has_units)
        starts = [random_start(*shape) for _ in range(self.n_init)]
        for solver, (number, start) in product(self.compared, enumerate(starts)):
            trial = search.tried(lambda s=solver, n=number, m=start: self._trial(s, n, m))
            if trial.fit.result.outcome is Outcome.INTERRUPTED:
                raise KeyboardInterrupt

    def _trial(self, solver: Any, number: int, start: LogLinearMixture) -> Trial[UpdateFit]:
        fit = UpdateFit(solver, start, self._fit(solver, start))
        return Trial({"sparsity": solver.penalty.strength, "start": number}, -fit.score, math.nan, fit)

    def _fit(self, solver: Any, start: LogLinearMixture) -> FitResult:
        """Fit the rows that are not held out; the others say when to stop."""
        kept, held_out = self.problem.kept, self.problem.held_out
        bound = self._bound(solver, kept, start)
        if held_out is None:
            return run(bound, kept, start, self.max_iter, self.tol)

        def score(mixture: LogLinearMixture) -> float:
            return smoothed_likelihood(mixture, held_out) / held_out.weight

        judge = EarlyStopping(score, interval=SCORING_INTERVAL)
        return run(bound, kept, start, self.max_iter, self.tol, held_out=judge)

    def _with_all_rows(self, best: UpdateFit) -> UpdateFit:
        """Refit all rows with the number of iterations that was best for the held-out rows."""
        rows, before = self.problem.rows, best.result
        solver = self._bound(best.solver, rows, best.start)
        again = run(solver, rows, best.start, before.best_iteration, 0.0)
        if again.outcome is Outcome.INTERRUPTED:  # the fit without those rows is complete
            return replace(best, result=replace(before, outcome=Outcome.INTERRUPTED))
        return replace(best, result=replace(again, outcome=before.outcome, scores=before.scores))

    def _bound(self, solver: Any, rows: LabeledRows, start: LogLinearMixture) -> Any:
        """The solver with the prior in the units of the rows."""
        return solver if self.prior is None else replace(solver, prior=self.prior.bound(rows, start))
