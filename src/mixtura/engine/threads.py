"""Threads of a pass: each processes its own chunks with single-threaded operations, without waiting for the others.

torch distributes single operations over threads, which synchronise after each operation. On a busy machine that takes
much longer than a small operation. Here operations run on the calling thread, and a long pass starts its own threads.
OpenMP and MKL have a separate number of threads for every calling thread, so the settings of other threads do not
change.

A process that was forked after OpenMP has started threads hangs in the first multi-threaded operation, also in torch
alone. In such a process torch is limited to one thread before anything is computed.

Prefetching uses a thread too: it reads the next parts while the caller computes.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar, cast

import torch
from threadpoolctl import LibController, ThreadpoolController

from mixtura.engine.tuning import PREFETCHED, SMALL_OPERATION, SMALL_PASS


class TimeOverError(Exception):
    """A limit of time is over."""


T = TypeVar("T")


# Of every thread: its number of threads before it was limited, and when its passes are given up.
_n_threads: ContextVar[int | None] = ContextVar("n_threads", default=None)
_latest: ContextVar[float] = ContextVar("latest", default=math.inf)
_forked = threading.Event()  # set in a process that was forked
if os.name == "posix":
    os.register_at_fork(after_in_child=_forked.set)


@functools.cache
def _openmp() -> list[LibController]:
    return ThreadpoolController().select(user_api="openmp").lib_controllers


@functools.cache
def _mkl() -> Callable[[int], int] | None:
    """MKL's number of threads for the calling thread, which overrides OpenMP's; not every torch has MKL."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return library.mkl_serv_set_num_threads_local
    except (OSError, AttributeError):
        return None


def limit_after_fork() -> None:
    """Limit torch to one thread in a forked process; called before anything is computed."""
    if _forked.is_set():
        torch.set_num_threads(1)
        _forked.clear()


@contextmanager
def own_threads(n_threads: int) -> Iterator[None]:
    """A context in which operations called by this thread use the given number of threads."""
    torch.get_num_threads()  # torch initialises a new thread at the first call
    libraries, mkl = _openmp(), _mkl()
    before = [library.get_num_threads() for library in libraries]
    for library in libraries:
        library.set_num_threads(n_threads)
    mkl_before = 0 if mkl is None else mkl(n_threads)
    try:
        yield
    finally:
        for library, count in zip(libraries, before, strict=True):
            library.set_num_threads(count)
        if mkl is not None:
            mkl(mkl_before)


@contextmanager
def one_thread() -> Iterator[None]:
    """A context in which operations run on the calling thread alone; passes use the previous number of threads."""
    limit_after_fork()
    if _n_threads.get() is not None:
        yield
        return
    _n_threads.set(torch.get_num_threads())
    try:
        with own_threads(1):
            yield
    finally:
        _n_threads.set(None)


@contextmanager
def computing() -> Iterator[None]:
    """`one_thread` without gradients: the context of every fit and every prediction."""
    with one_thread(), torch.no_grad():
        yield


@contextmanager
def until(latest: float) -> Iterator[None]:
    """A context in which passes raise TimeOverError once `time.perf_counter()` exceeds `latest`."""
    before = _latest.get()
    _latest.set(min(latest, before))
    try:
        yield
    finally:
        _latest.set(before)


def check_time(latest: float | None = None) -> None:
    """Raise TimeOverError if the limit of `until` is over, or that of another thread."""
    if time.perf_counter() > (_latest.get() if latest is None else latest):
        raise TimeOverError


def available_threads(device: torch.device | None = None) -> int:
    """Number of threads for rows on a device: on a CPU the number of the caller outside `one_thread`."""
    if device is not None and device.type != "cpu":
        return 1
    n_threads = _n_threads.get()
    return torch.get_num_threads() if n_threads is None else n_threads


def threads_for(multiplications: float) -> AbstractContextManager[None]:
    """A context for one operation of a given size: large operations use all threads."""
    return own_threads(available_threads()) if multiplications > SMALL_OPERATION else nullcontext()


def share_out(tasks: Sequence[T], size: float, work: Callable[[T, int], None], n_threads: int, in_order: bool) -> None:
    """Call work(task, thread) for all tasks; few or small tasks run on the calling thread (number 0).

    `size` is the approximate number of multiplications of all tasks.
    With `in_order`, thread t does tasks t, t + T, ..., so that sums have a fixed order. Otherwise each thread takes the
    next task when it is ready, since cores may be unequally fast or shared with other programs.
    """
    if n_threads == 1 or len(tasks) < 2 or size < SMALL_PASS:
        with one_thread():
            for task in tasks:
                check_time()
                work(task, 0)
        return
    left, stopped, latest = deque(tasks), threading.Event(), _latest.get()

    def share(thread: int) -> None:
        with own_threads(1), torch.no_grad():
            for task in tasks[thread::n_threads] if in_order else iter(lambda: _next(left), None):
                if stopped.is_set():
                    return
                check_time(latest)
                work(task, thread)

    with ThreadPoolExecutor(n_threads) as pool:
        try:
            for future in [pool.submit(share, thread) for thread in range(n_threads)]:
                future.result()
        finally:
            stopped.set()  # after Ctrl-C a thread ends after its current chunk


def _next(left: deque[T]) -> T | None:
    try:
        return left.popleft()
    except IndexError:
        return None


WAIT = 0.1  # seconds after which a waiting caller looks for Ctrl-C, which not every system does by itself


def prefetched(parts: Iterable[T]) -> Iterator[T]:
    """Yield the same parts in the same order, with a few of them read ahead; errors are raised at the same place."""
    reader, ended = iter(parts), object()

    def read() -> object:
        with own_threads(1), torch.no_grad():
            return next(reader, ended)

    with ThreadPoolExecutor(1, "mixtura-prefetch") as pool:
        ahead = deque(pool.submit(read) for _ in range(PREFETCHED))
        try:
            while True:
                while not ahead[0].done():
                    wait(ahead, WAIT, FIRST_COMPLETED)
                part = ahead.popleft().result()
                if part is ended:
                    return
                ahead.append(pool.submit(read))
                yield cast("T", part)
        finally:
            pool.shutdown(cancel_futures=True)
