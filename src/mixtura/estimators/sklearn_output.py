"""Output of `verbose` as by scikit-learn's GaussianMixture."""

from __future__ import annotations

import time
from collections.abc import Callable

from mixtura.solvers import FitResult, Outcome, Record


class Printer:
    """Prints what scikit-learn prints for each value of `verbose`."""

    def __init__(self, verbose: int, interval: int, init: int):
        self.verbose, self.interval = verbose, interval
        self.start = self.last = time.perf_counter()
        if verbose:
            _print(f"Initialization {init}")

    @property
    def iteration(self) -> Callable[[Record], None] | None:
        return self._iteration if self.verbose else None

    def _iteration(self, record: Record) -> None:
        if record.iteration % self.interval:
            return
        if self.verbose == 1:
            _print(f"  Iteration {record.iteration}")
            return
        now = time.perf_counter()
        _print(f"  Iteration {record.iteration}\t time lapse {now - self.last:.5f}s\t ll change {record.change:.5f}")
        self.last = now

    def end(self, result: FitResult) -> None:
        if not result.history:
            return
        said = "converged" if result.outcome is Outcome.CONVERGED else "did not converge"
        if self.verbose == 1:
            _print(f"Initialization {said}.")
        elif self.verbose > 1:
            elapsed = time.perf_counter() - self.start
            _print(f"Initialization {said}. time lapse {elapsed:.5f}s\t lower bound {result.objective:.5f}.")


def _print(text: str) -> None:
    print(text)  # noqa: T201 - verbose prints, as scikit-learn's does
