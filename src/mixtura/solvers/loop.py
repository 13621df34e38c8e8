"""The one loop: it checks convergence, limits, non-finite values and interruption for every solver."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from mixtura.roles import Solver
from mixtura.values.storable import storable


class Outcome(Enum):
    """How a fit ended; the value is the message."""

    CONVERGED = "converged"
    LIMIT = "stopped at max_iter before the objective changed by less than tol"
    HELD_OUT = "stopped where the rows that were kept out were predicted best"
    INTERRUPTED = "interrupted; the best parameters so far are kept"


@storable("record")
@dataclass(frozen=True)
class Record:
    """One iteration: the objective per row before the update, its change, and the seconds since the start."""

    iteration: int
    objective: float
    change: float
    seconds: float


@dataclass(frozen=True)
class FitResult:
    """The mixture, how the fit ended, one record an iteration, and what had to be repaired."""

    mixture: Any  # of the kind the solver improves
    outcome: Outcome
    history: tuple[Record, ...]
    repairs: tuple[str, ...] = ()

    @property
    def objective(self) -> float:
        """The last objective seen; minus infinity before the first."""
        return self.history[-1].objective if self.history else -float("inf")


def run(
    solver: Solver,
    mixture: Any,
    rows: Any,
    max_iter: int,
    tol: float,
    watch: Callable[[Record], None] | None = None,
    previous: float = -float("inf"),
) -> FitResult:
    """Step until the objective per row changes by less than tol, or max_iter steps are done.

    Ctrl-C ends the loop with the last complete mixture and the outcome INTERRUPTED; the caller raises again.

    Raises:
        FloatingPointError: the objective is not finite; the message names the iteration.
    """
    history: list[Record] = []
    repairs: dict[str, None] = {}
    start = time.perf_counter()
    outcome = Outcome.LIMIT
    try:
        for iteration in range(1, max_iter + 1):
            step = solver.step(mixture, rows)
            if not -float("inf") < step.value < float("inf"):
                raise FloatingPointError(
                    f"the objective became {step.value} at iteration {iteration} of solver {solver.name!r}; the input "
                    "may hold values too large to square, or a component may have collapsed"
                )
            mixture = step.mixture
            repairs.update(dict.fromkeys(step.repairs))
            record = Record(iteration, step.value, step.value - previous, time.perf_counter() - start)
            history.append(record)
            previous = step.value
            if watch is not None:
                watch(record)
            if step.finished:
                outcome = Outcome.HELD_OUT
                break
            if step.converged or (step.converged is None and abs(record.change) < tol):
                outcome = Outcome.CONVERGED
                break
    except KeyboardInterrupt:
        outcome = Outcome.INTERRUPTED
    return FitResult(mixture, outcome, tuple(history), tuple(repairs))


def run_held_out(
    solver: Solver,
    mixture: Any,
    rows: Any,
    score: Callable[[Any], float],
    max_iter: int,
    tol: float,
    watch: Callable[[Record], None] | None = None,
    interval: int = 5,
    patience: int = 20,
) -> FitResult:
    """`run`, a few steps at a time, with the mixture of the best score of held-out rows handed back.

    Ends when no score of the last `patience` was better; or as `run` ends.
    """
    best, best_score, n_worse = mixture, score(mixture), 0
    history: tuple[Record, ...] = ()
    repairs: dict[str, None] = {}
    outcome, previous, seconds = Outcome.LIMIT, -float("inf"), 0.0
    while len(history) < max_iter and outcome is Outcome.LIMIT:
        result = run(solver, mixture, rows, min(interval, max_iter - len(history)), tol, watch, previous)
        mixture, outcome, previous = result.mixture, result.outcome, result.objective
        history += tuple(
            replace(r, iteration=r.iteration + len(history), seconds=r.seconds + seconds) for r in result.history
        )
        seconds = history[-1].seconds if history else 0.0
        repairs.update(dict.fromkeys(result.repairs))
        found = score(mixture)
        best, best_score, n_worse = (mixture, found, 0) if found > best_score else (best, best_score, n_worse + 1)
        if outcome is Outcome.LIMIT and n_worse >= patience:
            outcome = Outcome.HELD_OUT
    return FitResult(best, outcome, history, tuple(repairs))


def best_of(n_starts: int, fit_once: Callable[[], FitResult]) -> FitResult:
    """The best of several fits, the first of equals.

    Ctrl-C ends the fits: what is best so far is handed back with the outcome INTERRUPTED, and the caller raises again.
    """
    best: FitResult | None = None
    for _ in range(n_starts):
        try:
            result = fit_once()
        except KeyboardInterrupt:  # between two fits, where `run` does not see it
            if best is None:
                raise
            return replace(best, outcome=Outcome.INTERRUPTED)
        interrupted = result.outcome is Outcome.INTERRUPTED
        if best is None or result.objective > best.objective:
            best = result
        if interrupted:
            return replace(best, outcome=Outcome.INTERRUPTED)
    assert best is not None
    return best
