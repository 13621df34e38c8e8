"""Progress of a fit on the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm.auto import tqdm

from mixtura.solvers import Record


@contextmanager
def watcher(verbose: int, max_iter: int, name: str) -> Iterator[Callable[[Record], None] | None]:
    """A function that shows each record in a progress bar, or None when nothing is to be shown."""
    if not verbose:
        yield None
        return
    with tqdm(total=max_iter, desc=name, unit="iteration") as bar:

        def watch(record: Record) -> None:
            bar.set_postfix(objective=f"{record.objective:.5f}", change=f"{record.change:.2e}", refresh=False)
            bar.update()

        yield watch


@contextmanager
def trial_watcher(verbose: int, name: str) -> Iterator[Callable[[Any], None] | None]:
    """A function that shows each candidate of a search in a progress bar, or None when nothing is to be shown."""
    if not verbose:
        yield None
        return
    with tqdm(desc=f"{name}: comparing", unit="candidate") as bar:
        best = [float("inf")]

        def watch(trial: Any) -> None:
            best[0] = min(best[0], trial.score)
            bar.set_postfix(log_loss=f"{trial.score:.4f}", best=f"{best[0]:.4f}", refresh=False)
            bar.update()

        yield watch
