"""The search behind every automatic choice: it fits candidates in turn and records their scores in a table."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from mixtura.engine.threads import TimeOverError, until
from mixtura.files.registry import storable
from mixtura.solvers import FitResult, Outcome

SHOWN = 20  # candidates that a printed table lists


@storable("scored_candidate")
@dataclass(frozen=True)
class ScoredCandidate:
    """One candidate of a search.

    Parameters
    ----------
    what : mapping of str to object
        The settings of the candidate, such as ``{"covariance_type": "diag", "n_components": 4}``.
    score : float
        The criterion, smaller is better.
    standard_error : float
        Standard error of the score over the held-out samples; NaN if unknown.
    seconds : float
        Time spent on the candidate. Candidates that are trained together share their time equally.
    """

    what: Mapping[str, object]
    score: float
    standard_error: float
    seconds: float


@storable("estimate")
@dataclass(frozen=True)
class Estimate:
    """The performance to expect on new samples, corrected for the selection (honest-estimate).

    Parameters
    ----------
    log_loss : float
        Mean log-loss.
    error : float
        Error rate.
    log_loss_interval, error_interval : tuple of float
        Intervals with a confidence of 95 %, from below to above.

    Examples
    --------
    >>> from mixtura.selection.search import Estimate
    >>> print(Estimate(0.312, 0.121, (0.25, 0.4), (0.08, 0.17)))
    12.1 % error (8.0 to 17.0), log-loss 0.312 (0.250 to 0.400)
    """

    log_loss: float
    error: float
    log_loss_interval: tuple[float, float]
    error_interval: tuple[float, float]

    def __str__(self) -> str:
        (low, high), errors = self.log_loss_interval, (100 * self.error, *(100 * end for end in self.error_interval))
        error = "{:.1f} % error ({:.1f} to {:.1f})".format(*errors)
        return f"{error}, log-loss {self.log_loss:.3f} ({low:.3f} to {high:.3f})"


@storable("search_table")
@dataclass(frozen=True)
class SearchTable:
    """The candidates of a search and the chosen one.

    Parameters
    ----------
    criterion : str
        The name of the score, such as "log_loss"; smaller is better.
    candidates : sequence of ScoredCandidate
        All candidates, in the order in which they were compared.
    chosen : int
        The position of the chosen candidate. It need not have the smallest score: a simpler candidate is preferred
        when the difference is small compared with its standard error.
    estimate : Estimate or None, default=None
        The log-loss and error rate to expect on new samples. The scores of the table are lower than that, since the
        chosen candidate is the best of many on the held-out samples. None if the search does not keep their
        predictions.
    further : sequence of int, default=()
        The positions of the candidates whose class probabilities are averaged with those of the chosen one. A printed
        table marks the chosen candidate with "*" and these with "+".

    Examples
    --------
    >>> from mixtura.selection.search import ScoredCandidate, SearchTable
    >>> candidates = [ScoredCandidate({"n_components": k}, s, 0.02, 0.1) for k, s in ((1, 0.31), (2, 0.25))]
    >>> SearchTable("log_loss", candidates, chosen=1)
      n_components  log_loss  standard_error  seconds
    *            2    0.2500          0.0200     0.10
                 1    0.3100          0.0200     0.10
    """

    criterion: str
    candidates: Sequence[ScoredCandidate]
    chosen: int
    estimate: Estimate | None = None
    further: Sequence[int] = ()

    @property
    def best(self) -> ScoredCandidate:
        """The chosen candidate."""
        return self.candidates[self.chosen]

    @property
    def members(self) -> list[ScoredCandidate]:
        """The candidates whose class probabilities are averaged, the chosen one first."""
        return [self.candidates[number] for number in (self.chosen, *self.further)]

    def __len__(self) -> int:
        return len(self.candidates)

    def __iter__(self) -> Iterator[ScoredCandidate]:
        return iter(self.candidates)

    def records(self) -> list[dict[str, object]]:
        """One dict per candidate, as ``pandas.DataFrame`` takes it."""
        return [
            {
                **candidate.what,
                self.criterion: candidate.score,
                "standard_error": candidate.standard_error,
                "seconds": candidate.seconds,
                "chosen": number == self.chosen,
                "member": number == self.chosen or number in self.further,
            }
            for number, candidate in enumerate(self.candidates)
        ]

    def ranked(self) -> list[int]:
        """The positions of the candidates: the chosen one, those averaged with it, and the others by score."""
        scores = [candidate.score for candidate in self.candidates]
        order = sorted(range(len(scores)), key=scores.__getitem__)
        first = [self.chosen, *self.further]
        return [*first, *(number for number in order if number not in first)]

    def __repr__(self) -> str:
        names = list(dict.fromkeys(name for candidate in self.candidates for name in candidate.what))
        lines = [["", *names, self.criterion, "standard_error", "seconds"]]
        ranked = self.ranked()
        for number in ranked[:SHOWN]:
            candidate = self.candidates[number]
            settings = [str(candidate.what.get(name, "")) for name in names]
            numbers = [f"{candidate.score:.4f}", f"{candidate.standard_error:.4f}", f"{candidate.seconds:.2f}"]
            mark = "*" if number == self.chosen else "+" if number in self.further else ""
            lines.append([mark, *settings, *numbers])
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        text = [
            f"{line[0]:1} " + "  ".join(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
            for line in lines
        ]
        left_out = len(ranked) - SHOWN
        text += [f"  ... and {left_out} more"] if left_out > 0 else []
        return "\n".join(text + ([] if self.estimate is None else [f"  expected on new samples: {self.estimate}"]))


Fit = TypeVar("Fit")
Item = TypeVar("Item")
# A trial is given up when the search has taken this many times its budget. Only the first one is completed in any case.
LATEST = 1.2


def distinct(items: Sequence[Item]) -> list[Item]:
    """The items without those that are there already, in order."""
    return list({id(item): item for item in items}.values())


def check_complete(*results: FitResult[Any]) -> None:
    """Raise KeyboardInterrupt, which ends a search, if Ctrl-C interrupted one of these fits."""
    if any(result.outcome is Outcome.INTERRUPTED for result in results):
        raise KeyboardInterrupt


@dataclass(frozen=True)
class Trial(Generic[Fit]):
    """A candidate that was tried.

    Parameters
    ----------
    what : mapping of str to object
        Its settings, as the table shows them.
    score : float
        The criterion, smaller is better.
    standard_error : float
        Standard error of the score; NaN if unknown.
    fit : object
        The fitted candidate.
    seconds : float, default=0.0
        Time of the trial, set by the search.
    """

    what: Mapping[str, object]
    score: float
    standard_error: float
    fit: Fit
    seconds: float = 0.0


_watch: ContextVar[Callable[[float], None] | None] = ContextVar("watch", default=None)


@contextmanager
def watching(watch: Callable[[float], None] | None) -> Iterator[None]:
    """A context whose searches call a function with the score of every trial, however deep they are."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


class Search(Generic[Fit]):
    """Fits candidates one after the other.

    The function passed to `run` decides which candidate comes next. The search measures the time, ends at Ctrl-C or
    when the time budget is used up, and keeps all trials up to then.

    Parameters
    ----------
    criterion : str
        Name of the score.
    time_budget : float or None, default=None
        Seconds; no candidate is tried that would end later if it took as long as the last one, and one that takes
        longer is given up.
    """

    def __init__(self, criterion: str, time_budget: float | None = None):
        self.criterion, self.time_budget = criterion, time_budget
        self.trials: list[Trial[Fit]] = []
        self.interrupted = False
        self._began = time.perf_counter()

    def run(self, try_candidates: Callable[[], None]) -> None:
        """Call a function that tries candidates.

        Ctrl-C ends the search and sets `interrupted`. It is raised again if there is no trial yet.
        """
        try:
            try_candidates()
        except TimeOverError:
            pass
        except KeyboardInterrupt:
            if not self.trials:
                raise
            self.interrupted = True

    def try_one(self, evaluate: Callable[[], Trial[Fit]]) -> Trial[Fit]:
        """Try a candidate."""
        return self.try_together(lambda: [evaluate()])[0]

    def try_together(self, evaluate: Callable[[], Sequence[Trial[Fit]]]) -> list[Trial[Fit]]:
        """Try candidates that are trained together; they share the time equally. There may be none after all."""
        began = time.perf_counter()
        # The next candidate is expected to take as long as the last one.
        expected = began - self._began + (self.trials[-1].seconds if self.trials else 0.0)
        latest = math.inf
        if self.time_budget is not None and self.trials:
            if expected > self.time_budget:
                raise TimeOverError
            latest = self._began + LATEST * self.time_budget
        with until(latest):
            trials = list(evaluate())
        seconds = (time.perf_counter() - began) / max(1, len(trials))
        trials = [replace(trial, seconds=seconds) for trial in trials]
        self.trials += trials
        watch = _watch.get()
        if watch is not None:
            for trial in trials:
                watch(trial.score)
        return trials

    @property
    def best(self) -> Trial[Fit]:
        """The trial with the smallest score, the first of equals."""
        return min(self.trials, key=lambda trial: trial.score)

    def table(self, chosen: Trial[Fit], *further: Trial[Fit]) -> SearchTable:
        """The table of all trials, with the selected one and those that are averaged with it."""
        rows = [ScoredCandidate(trial.what, trial.score, trial.standard_error, trial.seconds) for trial in self.trials]
        number_of = {id(trial): number for number, trial in enumerate(self.trials)}
        first, *others = (number_of[id(trial)] for trial in (chosen, *further))
        return SearchTable(self.criterion, rows, first, further=tuple(others))
