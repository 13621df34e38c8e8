"""Checkpoints: a file with the progress of every loop of a fit.

A fit runs several loops: initialisations, candidates of a search, folds, the final fit. With the same input and seed
they run in the same order, so a number identifies a loop. The file holds the final states of completed loops and the
last state of the current one. A fit with an existing file repeats the same sequence: completed loops return their
results at once, and the current one continues from its state. The file also identifies the fit that it belongs to.

The journal of a fit, a context variable that only the loop reads, takes the progress of its loops to that file and to
the screen. Nested searches need not pass it on, it changes no result, and every thread has its own.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import os
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from mixtura.files.codec import Decoder, Encoder, Json
from mixtura.files.models import read_tensors, write_tensors

Kind = TypeVar("Kind")

METADATA = "mixtura checkpoint"  # key of the header in the file
FORMAT_VERSION = 3
# Largest fraction of the time that is spent on writing.
LARGEST_SHARE = 0.05
ADVICE = "choose another file for `checkpoint`, or remove this one to start again."


class CheckpointFile:
    """A file with the progress of the loops of one fit.

    Parameters
    ----------
    path : str or path-like
    settings : dict of str to str
        Values that identify the fit, by their names in error messages.

    Raises
    ------
    ValueError
        The file is damaged, belongs to another fit, or cannot be written. An existing file is left as it is.
    """

    def __init__(self, path: str | os.PathLike[str], settings: Mapping[str, str]):
        self._path, self._settings = path, dict(settings)
        self._codes: dict[int, Json] = {}
        self._tensors: dict[int, dict[str, Tensor]] = {}
        self._written, self._cost, self._pending = -float("inf"), 0.0, False
        if Path(path).exists():
            self._read()
        else:
            self.flush()  # refuses a path that cannot be written before the computation

    def _read(self) -> None:
        try:
            header, tensors = read_tensors(self._path, METADATA)
            if header["format_version"] != FORMAT_VERSION:
                raise ValueError(f"it has format version {header['format_version']}, not {FORMAT_VERSION}")
            saved = dict(header["settings"])
            self._codes = {int(number): code for number, code in header["loops"].items()}
            for name, part in tensors.items():
                self._tensors.setdefault(int(name.partition(".")[0]), {})[name] = part
        except Exception as error:  # a damaged file may cause any error
            raise ValueError(self._damaged(error)) from error
        names = {**self._settings, **saved}
        changed = [name for name in names if saved.get(name) != self._settings.get(name)]
        if changed:
            raise ValueError(
                f"The checkpoint {str(self._path)!r} belongs to another fit (other {', '.join(changed)}); {ADVICE}"
            )

    def _damaged(self, error: Exception) -> str:
        return f"{str(self._path)!r} is not a checkpoint of mixtura, or it is damaged ({error}); {ADVICE}"

    def read(self, number: int, kind: type[Kind]) -> Kind | None:
        """Return the progress of a loop, or None."""
        if number not in self._codes:
            return None
        try:
            progress = Decoder(dict(self._tensors.get(number, {}))).decode(self._codes[number])
            if not isinstance(progress, kind):
                raise ValueError(f"it holds a {type(progress).__name__}")
        except Exception as error:
            raise ValueError(self._damaged(error)) from error
        return progress

    def write(self, number: int, progress: object) -> None:
        """Store the progress of a loop; the file itself is written from time to time."""
        encoder = Encoder()
        self._codes[number] = encoder.encode(progress, str(number))
        self._tensors[number] = {name: part.clone() for name, part in encoder.tensors.items()}
        self._pending = True
        if self.is_due:
            self.flush()

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed since the file was last written."""
        return LARGEST_SHARE * (time.perf_counter() - self._written) >= self._cost

    def flush(self) -> None:
        """Write the file."""
        start = time.perf_counter()
        header = {"format_version": FORMAT_VERSION, "settings": self._settings, "loops": self._codes}
        tensors = {name: part for parts in self._tensors.values() for name, part in parts.items()}
        try:
            write_tensors(self._path, tensors, METADATA, header)
        except OSError as error:
            raise ValueError(
                f"The checkpoint {str(self._path)!r} cannot be written ({error.strerror or error}); use another file."
            ) from error
        self._written, self._pending = time.perf_counter(), False
        self._cost = self._written - start

    def close(self) -> None:
        """Write pending progress."""
        if self._pending:
            self.flush()


def digest(value: object) -> str:
    """Return a hash of a value: numbers, arrays, and all objects that model files can hold."""
    total = hashlib.blake2b(digest_size=12)
    update_digest(total, value)
    return total.hexdigest()


def update_digest(total: hashlib.blake2b, value: object) -> None:
    """Add a value to a hash."""
    if isinstance(value, Tensor) and value.layout is torch.sparse_csr:
        for part in (value.crow_indices(), value.col_indices(), value.values()):
            update_digest(total, part)
        return
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        total.update(f"{value.dtype.str} {value.shape}".encode())
        total.update(np.ascontiguousarray(value).data)
    else:
        encoder = Encoder()
        try:
            code = encoder.encode(value, "value")
        except ValueError:
            _add_object(total, value)
            return
        total.update(json.dumps(code, sort_keys=True).encode())
        for name in sorted(encoder.tensors):
            update_digest(total, encoder.tensors[name])


def _add_object(total: hashlib.blake2b, value: object) -> None:
    """Add an object that files cannot hold by its class and its attributes, such as a splitter or a function."""
    total.update(repr(type(value)).encode())
    if isinstance(value, types.FunctionType):
        update_digest(total, (value.__qualname__, value.__code__.co_code.hex(), repr(value.__code__.co_consts)))
    if isinstance(value, Mapping):
        parts: Iterable[object] = [part for pair in value.items() for part in pair]
    elif isinstance(value, list | tuple):
        parts = value
    else:
        try:
            parts = [part for pair in sorted(vars(value).items()) for part in pair]
        except TypeError:  # without attributes
            parts = ()
    for part in parts:
        update_digest(total, part)


# Takes the name of a solver, an objective, its change, and the number of rows of an iteration (None: unknown).
Show = Callable[[str, float, float, int | None], None]


class Journal:
    """Takes the progress of the loops of a fit to a file and to the screen.

    Parameters
    ----------
    file : CheckpointFile, optional
    show : callable, optional
        Called after every iteration with the name of the solver, the objective, its change and the number of rows.
    """

    _number: int
    _name: str
    _n_rows: int | None

    def __init__(self, file: CheckpointFile | None = None, show: Show | None = None):
        self.file, self._show, self._numbers = file, show, itertools.count()

    def of_next_loop(self, name: str, n_rows: int | None) -> Journal:
        """Return the journal of one loop, with its number."""
        own = copy.copy(self)
        own._number, own._name, own._n_rows = next(self._numbers), name, n_rows
        return own

    def read(self, kind: type[Kind]) -> Kind | None:
        """Return the progress of this loop at the interruption of the fit, or None."""
        return None if self.file is None else self.file.read(self._number, kind)

    def write(self, progress: Callable[[], object], ended: bool) -> None:
        """Store the progress of this loop if it has ended, or if it is time to; without a file nothing."""
        if self.file is not None and (ended or self.file.is_due):
            self.file.write(self._number, progress())

    def show(self, objective: float, change: float) -> None:
        """Show an iteration of this loop."""
        if self._show is not None:
            self._show(self._name, objective, change, self._n_rows)


_current: ContextVar[Journal | None] = ContextVar("journal", default=None)


def next_loop(name: str, n_rows: int | None = None) -> Journal:
    """Return the journal of the next loop, with the number of rows of an iteration."""
    return (_current.get() or Journal()).of_next_loop(name, n_rows)


@contextmanager
def writing_to(journal: Journal) -> Iterator[None]:
    """A context whose loops write to a journal."""
    token = _current.set(journal)
    try:
        yield
    finally:
        _current.reset(token)
        if journal.file is not None:
            journal.file.close()
