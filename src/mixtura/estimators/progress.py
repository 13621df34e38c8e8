"""Progress of a fit: on the screen (`verbose`), and in a file to resume it from (`checkpoint`)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tqdm.auto import tqdm

from mixtura import checks
from mixtura.engine.sources import Source
from mixtura.files.checkpoints import CheckpointFile, digest, update_digest
from mixtura.solvers.journal import Journal, Show, recording

# Arguments that may differ when a fit is continued.
FREE = ("checkpoint", "verbose", "verbose_interval", "memory_limit")


@contextmanager
def recorded(estimator: Any, bar: bool = True, **samples: Source | None) -> Iterator[None]:
    """A context for the computation of a fit.

    Parameters
    ----------
    estimator : estimator
        With the arguments `checkpoint`, `verbose` and `random_state`.
    bar : bool, default=True
        Whether `verbose` asks for a progress bar.
    **samples : Source
        The training samples as `training`, and others by their name in messages.
    """
    checks.verbosity(estimator.verbose)
    file = None
    if estimator.checkpoint is not None:
        checks.checkpoint(estimator.checkpoint)
        checks.repeatable(estimator.random_state)
        file = CheckpointFile(estimator.checkpoint, _settings(estimator, samples))
    shown = bool(estimator.verbose) and bar
    with _progress_bar(type(estimator).__name__, shown) as show, recording(Journal(file, show)):
        yield


def _settings(estimator: Any, samples: dict[str, Source | None]) -> dict[str, str]:
    """Settings that identify a fit in a checkpoint."""
    arguments = {n: v for n, v in estimator.get_params().items() if n.rpartition("__")[2] not in FREE}
    settings = {"estimator class": type(estimator).__name__} | {
        name: digest(value) for name, value in arguments.items()
    }
    for word, source in samples.items():
        settings |= digest_samples(source, "" if word == "training" else f"{word.replace('_', '-')} ")
    if arguments.get("warm_start"):
        settings["last fit"] = digest(vars(estimator).get("mixture_"))
    return settings


def digest_samples(source: Source | None, which: str = "") -> dict[str, str]:
    """Return digests of the samples of a source, of their labels and of their weights."""
    totals = {name: hashlib.blake2b(digest_size=12) for name in ("samples", "labels", "sample weights")}
    for block in () if source is None else source.blocks():
        update_digest(totals["samples"], block.rows)
        update_digest(totals["labels"], block.labels if block.shares is None else block.shares)
        update_digest(totals["sample weights"], torch.ones(0) if block.weights is None else block.weights)
    return {f"{which}{name}": total.hexdigest() for name, total in totals.items()}


@contextmanager
def _progress_bar(name: str, shown: bool) -> Iterator[Show | None]:
    """A bar that counts the iterations of all loops of a fit, whose number is not known in advance."""
    if not shown:
        yield None
        return
    with tqdm(desc=name, unit=" iterations") as bar:
        last = [time.perf_counter()]

        def show(solver: str, objective: float, change: float, n_rows: int | None) -> None:
            now = time.perf_counter()
            shown = {"solver": solver, "objective": f"{objective:.5f}", "change": f"{change:.2e}"}
            if n_rows is not None:
                shown["rows_per_second"] = f"{n_rows / max(now - last[0], 1e-9):.3g}"
            bar.set_postfix(shown, refresh=False)
            bar.update()
            last[0] = now

        yield show


@contextmanager
def trial_watcher(verbose: int, name: str) -> Iterator[Callable[[Any], None] | None]:
    """A function that shows each candidate of a search in a progress bar; None without a bar."""
    if not verbose:
        yield None
        return
    with tqdm(desc=f"{name}: comparing", unit="candidate") as bar:
        best = [float("inf")]

        def watch(trial: Any) -> None:
            best[0] = min(best[0], trial.score)
            bar.set_postfix(score=f"{trial.score:.4f}", best=f"{best[0]:.4f}", refresh=False)
            bar.update()

        yield watch
