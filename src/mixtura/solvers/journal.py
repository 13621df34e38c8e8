"""The journal of a fit: output of its loops on the screen, and their checkpoints.

It is a context variable that only the loop reads, so nested searches need not pass it on. It does not change any
result. Every thread has its own journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from mixtura.files.checkpoints import CheckpointFile

# Takes the name of a solver, an objective, its change, and the number of rows of an iteration (None: unknown).
Show = Callable[[str, float, float, int | None], None]


class Journal:
    """Numbers the loops of a fit.

    Parameters
    ----------
    file : CheckpointFile, optional
    show : callable, optional
        Called after every iteration with the name of the solver, the objective, its change and the number of rows.
    """

    def __init__(self, file: CheckpointFile | None = None, show: Show | None = None):
        self.file, self.show, self._n_loops = file, show, 0

    def next_loop(self, name: str, n_rows: int | None) -> LoopJournal:
        self._n_loops += 1
        return LoopJournal(self, self._n_loops - 1, name, n_rows)


class LoopJournal:
    """The part of a journal that belongs to one loop."""

    def __init__(self, journal: Journal, number: int, name: str, n_rows: int | None):
        self._journal, self._number, self._name, self._n_rows = journal, number, name, n_rows

    def read(self, kind: type) -> Any:
        """Return the progress of this loop at the interruption of the fit, or None."""
        return None if self._journal.file is None else self._journal.file.read(self._number, kind)

    def write(self, progress: Callable[[], Any], ended: bool) -> None:
        """Store the progress of this loop if it has ended, or if it is time to; without a file nothing."""
        file = self._journal.file
        if file is not None and (ended or file.is_due):
            file.write(self._number, progress())

    def show(self, objective: float, change: float) -> None:
        if self._journal.show is not None:
            self._journal.show(self._name, objective, change, self._n_rows)


_current: ContextVar[Journal | None] = ContextVar("journal", default=None)


def next_loop(name: str, n_rows: int | None = None) -> LoopJournal:
    """Return the journal of the next loop, with the number of rows of an iteration."""
    return (_current.get() or Journal()).next_loop(name, n_rows)


@contextmanager
def recording(journal: Journal) -> Iterator[None]:
    """A context whose loops write to a journal."""
    token = _current.set(journal)
    try:
        yield
    finally:
        _current.reset(token)
        if journal.file is not None:
            journal.file.close()
