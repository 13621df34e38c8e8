"""Progress of a fit on the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
