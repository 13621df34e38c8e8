"""Threads of a pass: each takes chunks and runs its operations alone, so that none waits for another within a pass.

torch spreads single operations over threads, which wait for each other at the end of each of them: on a busy machine
that takes far longer than a small operation does. Here operations run on the thread that calls them, and a pass starts
threads of its own where it is long enough. OpenMP and MKL keep a number of threads for every calling thread: nothing
that other threads see is changed, nor what threads that start meanwhile begin with.

A process that was forked after OpenMP has started threads hangs in the first operation that wants several, also in
torch alone. There torch is limited to one thread before anything is computed.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from threadpoolctl import ThreadpoolController

from mixtura.engine.tuning import SMALL_OPERATION, SMALL_PASS


class _Outside(threading.local):
    """What the calling thread had before it was limited."""

    n_threads: int | None = None


_outside = _Outside()
_forked = threading.Event()  # set in a process that was forked
if os.name == "posix":
    os.register_at_fork(after_in_child=_forked.set)


@functools.cache
def _openmp() -> list[Any]:
    return ThreadpoolController().select(user_api="openmp").lib_controllers


@functools.cache
def _mkl() -> Callable[[int], int] | None:
    """MKL's own number of threads for the calling thread, which outranks OpenMP's; not every torch has MKL."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return library.mkl_serv_set_num_threads_local
    except (OSError, AttributeError):
        return None


def limit_after_fork() -> None:
    """Let torch use one thread in a process that was forked; called before anything is computed."""
    if _forked.is_set():
        torch.set_num_threads(1)
        _forked.clear()


class OwnThreads:
    """A context in which operations that this thread calls use so many threads."""

    def __init__(self, n_threads: int):
        self._n_threads = n_threads

    def __enter__(self) -> None:
        torch.get_num_threads()  # torch sets up a new thread when it is first asked
        self._before = [library.get_num_threads() for library in _openmp()]
        self._mkl_before = 0
        self._set([self._n_threads] * len(self._before))
        if (mkl := _mkl()) is not None:
            self._mkl_before = mkl(self._n_threads)

    def __exit__(self, *exception: object) -> None:
        self._set(self._before)
        if (mkl := _mkl()) is not None:
            mkl(self._mkl_before)

    def _set(self, counts: list[int]) -> None:
        for library, count in zip(_openmp(), counts, strict=True):
            library.set_num_threads(count)


class one_thread:  # noqa: N801 - a context, like those of torch
    """A context in which operations run on the calling thread alone; passes and `threads_for` know how many it had."""

    def __enter__(self) -> None:
        limit_after_fork()
        self._outer = _outside.n_threads
        if self._outer is None:
            _outside.n_threads = torch.get_num_threads()
            self._limit = OwnThreads(1)
            self._limit.__enter__()

    def __exit__(self, *exception: object) -> None:
        if self._outer is None:
            self._limit.__exit__()
            _outside.n_threads = None


class computing(one_thread):  # noqa: N801 - a context, like those of torch
    """`one_thread` without gradients: what every fit and every prediction runs in."""

    def __enter__(self) -> None:
        super().__enter__()
        self._gradients = torch.is_grad_enabled()
        torch.set_grad_enabled(False)

    def __exit__(self, *exception: object) -> None:
        torch.set_grad_enabled(self._gradients)
        super().__exit__(*exception)


def available_threads(device: torch.device | None = None) -> int:
    """Threads that the caller may use for rows on a device: on a CPU as many as it had outside of `one_thread`."""
    if device is not None and device.type != "cpu":
        return 1
    n_threads = _outside.n_threads
    return torch.get_num_threads() if n_threads is None else n_threads


def threads_for(multiplications: float) -> Any:
    """A context for one operation of this size: all threads where it is large, as many as there are otherwise."""
    return OwnThreads(available_threads()) if multiplications > SMALL_OPERATION else nullcontext()


class PassTask(Protocol):
    """A part of a pass."""

    @property
    def work(self) -> float:
        """Multiplications, roughly."""
        ...


def share_out(tasks: Sequence[PassTask], work: Callable[[Any, int], None], n_threads: int, in_order: bool) -> None:
    """work(task, thread) for all tasks; on the calling thread, as number 0, where they are few or small.

    With `in_order`, thread t does tasks t, t + T, ..., so that sums have a fixed order. Otherwise each thread takes the
    next task when it is ready, since cores may be unequally fast or shared with other programs.
    """
    if n_threads == 1 or len(tasks) < 2 or sum(task.work for task in tasks) < SMALL_PASS:
        with one_thread():
            for task in tasks:
                work(task, 0)
        return
    left, stopped = deque(tasks), threading.Event()

    def share(thread: int) -> None:
        with OwnThreads(1), torch.no_grad():
            for task in tasks[thread::n_threads] if in_order else iter(lambda: _next(left), None):
                if stopped.is_set():
                    return
                work(task, thread)

    with ThreadPoolExecutor(n_threads) as pool:
        try:
            for future in [pool.submit(share, thread) for thread in range(n_threads)]:
                future.result()
        finally:
            stopped.set()  # after Ctrl-C a thread ends with its chunk, not with its share


def _next(left: deque[Any]) -> Any:
    try:
        return left.popleft()
    except IndexError:
        return None
