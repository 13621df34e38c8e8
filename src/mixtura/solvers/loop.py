"""The training loop of every solver: convergence, limits, non-finite values, early stopping, checkpoints and Ctrl-C."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Generic, TypeAlias, TypeVar, cast

import torch

from mixtura.checks import SourceError
from mixtura.files.checkpoints import next_loop
from mixtura.files.registry import device_of, on_device, storable
from mixtura.model.mixture import Mixture
from mixtura.numerics.linalg import NumericalError
from mixtura.roles import Solver
from mixtura.solvers.problem import Problem

Model = TypeVar("Model")
Score: TypeAlias = float | tuple[float, ...]


class Outcome(Enum):
    """How a fit ended; the value is the message."""

    CONVERGED = "converged"
    LIMIT = "did not converge: it reached max_iter before the objective changed by less than tol"
    HELD_OUT = "stopped early at the best score of the held-out samples"
    INTERRUPTED = "interrupted; the best parameters so far are kept"


@storable("record")
@dataclass(frozen=True)
class Record:
    """Record of one iteration.

    Parameters
    ----------
    iteration : int
        Number of the iteration, from 1.
    objective : float
        Objective per sample before the update.
    change : float
        Change of the objective.
    seconds : float
        Time since the start.
    """

    iteration: int
    objective: float
    change: float
    seconds: float


@dataclass(frozen=True)
class EarlyStopping:
    """Early stopping by held-out samples.

    Parameters
    ----------
    score : callable
        Takes a model and returns its score, a number or a tuple of numbers; larger is better.
    interval : int, default=1
        Steps between two scores.
    patience : int, default=20
        Number of scores without improvement after which training stops.
    """

    score: Callable[..., Score]
    interval: int = 1
    patience: int = 20


@storable("progress")
@dataclass(frozen=True)
class Progress:
    """The progress of a run, or of one member of several, as stored in a checkpoint.

    Attributes
    ----------
    state : object
        The last state; None for a member.
    model : object
        The model of the last state.
    history : tuple of Record
    repairs : tuple of str
    best : object
        With held-out samples, the model with the best score.
    scores : tuple of (int, score)
        Iterations and the scores of the held-out samples after them.
    outcome : str
        Name of the outcome; "LIMIT" if the run continues.
    """

    state: object
    model: object
    history: tuple[Record, ...] = ()
    repairs: tuple[str, ...] = ()
    best: object = None
    scores: tuple[tuple[int, Score], ...] = ()
    outcome: str = "LIMIT"


@dataclass(frozen=True)
class FitResult(Generic[Model]):
    """Result of a fit.

    Parameters
    ----------
    mixture : object
        The fitted model.
    outcome : Outcome
        How the fit ended.
    history : tuple of Record
        One record per iteration.
    repairs : tuple of str, default=()
        Repairs of covariances, in words.
    state : object, optional
        Last state of the solver.
    scores : tuple of (int, score), default=()
        Iterations and scores of the held-out samples.
    cause : BaseException or None, optional
        The exception that interrupted the fit; the caller raises it once the model is stored.
    """

    mixture: Model
    outcome: Outcome
    history: tuple[Record, ...]
    repairs: tuple[str, ...] = ()
    state: object = None
    scores: tuple[tuple[int, Score], ...] = ()
    cause: BaseException | None = None

    @property
    def objective(self) -> float:
        """The last objective; minus infinity before the first step."""
        return self.history[-1].objective if self.history else -float("inf")

    @property
    def best_iteration(self) -> int:
        """The iteration with the best held-out score (the first of equal scores); without held-out samples the last."""
        return best_score(self.scores)[0] if self.scores else len(self.history)


def best_score(scores: tuple[tuple[int, Score], ...]) -> tuple[int, Score]:
    """Return the best score and its iteration (the first one of equal scores)."""
    return max(scores, key=lambda pair: pair[1])


@dataclass
class RunRecords:
    """The records of one model while it is trained; with held-out samples their scores, and the model with the best."""

    solver_name: str
    previous: float = -float("inf")
    held_out: EarlyStopping | None = None
    start: float = field(default_factory=time.perf_counter)
    history: list[Record] = field(default_factory=list)
    repairs: dict[str, None] = field(default_factory=dict)
    best: object = None
    scores: tuple[tuple[int, Score], ...] = ()

    def add(self, value: float, repairs: tuple[str, ...], whom: str = "") -> Record:
        iteration = len(self.history) + 1
        if not -float("inf") < value < float("inf"):
            raise NumericalError(
                f"the objective became {value} at iteration {iteration} of solver {self.solver_name!r}{whom}; the "
                "input may hold values too large to square, or a component may have collapsed"
            )
        self.history.append(Record(iteration, value, value - self.previous, time.perf_counter() - self.start))
        self.previous = value
        self.repairs.update(dict.fromkeys(repairs))
        return self.history[-1]

    def see(self, mixture: object) -> bool:
        """Score a model with the held-out samples, if there are any; return whether patience is over."""
        if self.held_out is None:
            return False
        score = self.held_out.score(mixture)
        if not self.scores or cast("float", score) > cast("float", best_score(self.scores)[1]):
            self.best = mixture
        self.scores = (*self.scores, (len(self.history), score))
        best = [iteration for iteration, _ in self.scores].index(best_score(self.scores)[0])
        return len(self.scores) - 1 - best >= self.held_out.patience

    def progress(self, state: object, model: object, outcome: Outcome) -> Progress:
        """Return the progress that a checkpoint holds."""
        history, repairs = tuple(self.history), tuple(self.repairs)
        return Progress(state, model, history, repairs, self.best, self.scores, outcome.name)

    def resume(self, progress: Progress, device: torch.device) -> None:
        """Continue from a checkpoint."""
        self.history, self.repairs = list(progress.history), dict.fromkeys(progress.repairs)
        self.best, self.scores = on_device(progress.best, device), progress.scores
        if self.history:
            self.previous = self.history[-1].objective
            self.start -= self.history[-1].seconds

    def result(self, mixture: Model, outcome: Outcome) -> FitResult[Model]:
        model = cast("Model", self.best) if self.scores else mixture
        return FitResult(model, outcome, tuple(self.history), tuple(self.repairs), scores=self.scores)


def run(
    solver: Solver,
    problem: object,
    start: Model,
    max_iter: int,
    tol: float,
    watch: Callable[[Record], None] | None = None,
    previous: float = -float("inf"),
    held_out: EarlyStopping | None = None,
) -> FitResult[Model]:
    """Iterate until the objective per sample changes by less than tol, or max_iter steps are done.

    With held-out samples the model with the best score is returned. Ctrl-C, or a failure to read the samples, ends the
    loop with the last complete model and the outcome INTERRUPTED; the caller raises the exception again.

    Parameters
    ----------
    solver : Solver
        The solver.
    problem : object
        The problem that the solver maximises.
    start : object
        Initial model.
    max_iter : int
        Maximum number of steps.
    tol : float
        Convergence threshold of the change of the objective per sample.
    watch : callable, optional
        Called with the record of each iteration.
    previous : float, default=-inf
        Objective before the first step.
    held_out : EarlyStopping, optional
        Held-out samples for early stopping.

    Returns
    -------
    result : FitResult

    Raises
    ------
    NumericalError
        If the objective is not finite; the message names the iteration.
    """
    records = RunRecords(solver.name, previous, held_out)
    n_rows = problem.source.n_rows if isinstance(problem, Problem) else None
    outcome, state, model, cause, journal = Outcome.LIMIT, None, None, None, next_loop(solver.name, n_rows)
    try:
        progress = journal.read(Progress)
        if progress is None:
            state = solver.init(problem, start)
            records.see(start)
        else:
            device, outcome = device_of(start), Outcome[progress.outcome]
            state, model = on_device(progress.state, device), on_device(progress.model, device)
            records.resume(progress, device)
        while len(records.history) < max_iter and outcome is Outcome.LIMIT:
            state, info = solver.step(problem, state)
            model, record = None, records.add(float(info.value), info.repairs)
            if info.converged or (info.converged is None and (abs(record.change) < tol or tol == math.inf)):
                outcome = Outcome.CONVERGED
            ended = outcome is Outcome.CONVERGED or record.iteration == max_iter
            if held_out is not None and (ended or record.iteration % held_out.interval == 0):
                over = records.see(_result(solver, state, start))
                outcome = Outcome.HELD_OUT if over and outcome is Outcome.LIMIT else outcome
            journal.show(record.objective, record.change)
            if watch is not None:
                watch(record)
            ended = ended or outcome is Outcome.HELD_OUT
            journal.write(partial(_progress, solver, state, start, records, outcome), ended)
    except (KeyboardInterrupt, SourceError) as error:
        outcome, cause = Outcome.INTERRUPTED, error
    mixture = start if state is None else _result(solver, state, start) if model is None else model
    if outcome is Outcome.INTERRUPTED and state is not None:
        records.see(mixture)
    return replace(records.result(mixture, outcome), state=state, cause=cause)


def _progress(solver: Solver, state: object, start: object, records: RunRecords, outcome: Outcome) -> Progress:
    return records.progress(state, _result(solver, state, start), outcome)


def _result(solver: Solver, state: object, start: Model) -> Model:
    """The model of a state, on the device of the initial one: a solver may have moved it to the host."""
    model: Model = solver.result(state)
    if isinstance(model, Mixture) and isinstance(start, Mixture):
        return cast("Model", model.to(start.means.device))
    return model


def best_of(n_starts: int, fit_once: Callable[[], FitResult[Model]]) -> FitResult[Model]:
    """Return the fit with the largest objective (the first one of equal fits).

    Ctrl-C, or a failure to read the samples, ends the fits: the best one so far is returned with the outcome
    INTERRUPTED, and the caller raises the exception again.

    Parameters
    ----------
    n_starts : int
        Number of fits.
    fit_once : callable
        Function without arguments that returns a FitResult.

    Returns
    -------
    result : FitResult
    """
    best: FitResult[Model] | None = None
    for _ in range(n_starts):
        try:
            result = fit_once()
        except (KeyboardInterrupt, SourceError) as error:  # between two fits, where `run` does not see it
            if best is None:
                raise
            return replace(best, outcome=Outcome.INTERRUPTED, cause=error)
        interrupted = result.outcome is Outcome.INTERRUPTED
        if best is None or result.objective > best.objective:
            best = result
        if interrupted:
            return replace(best, outcome=Outcome.INTERRUPTED, cause=result.cause)
    assert best is not None
    return best
