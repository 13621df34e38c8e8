"""Threads that share out the chunks of a pass, each running single-threaded operations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

import torch

from mixtura.numerics.linalg import threads_for


class Work(Protocol):
    """A part of a pass."""

    @property
    def work(self) -> int:
        """Operations, roughly."""
        ...


def threads_on(device: torch.device) -> int:
    """Threads that a pass over rows on this device is worth."""
    return max(1, torch.get_num_threads()) if device.type == "cpu" else 1


class PerThread:
    """One state for each thread, made when it is first asked for."""

    def __init__(self, make: Callable[[], Any], n_threads: int):
        self._make = make
        self._states: list[Any] = [None] * n_threads

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, thread: int) -> Any:
        if self._states[thread] is None:
            self._states[thread] = self._make()
        return self._states[thread]

    def made(self) -> list[Any]:
        return [state for state in self._states if state is not None]


class Workers:
    """Threads that do a list of tasks, each with a state of its own."""

    def __init__(self, n_threads: int):
        self._n_threads = n_threads
        self._stop = False
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop = True  # after Ctrl-C a thread ends with its chunk, not with its share
        if self._pool is not None:
            self._pool.shutdown(wait=exception[0] is not None)  # otherwise all is done: their end need not be awaited

    def share_out(self, tasks: Sequence[Work], work: Callable[[Any, Any], None], states: Any) -> None:
        """Thread t does tasks t, t + T, ..., so that what a state adds up comes in a fixed order."""
        self._run(tasks, [tasks[t :: self._n_threads] for t in range(self._n_threads)], work, states)

    def hand_out(self, tasks: Sequence[Work], work: Callable[[Any, Any], None], states: Any) -> None:
        """Each thread takes the next task when it is ready: cores are not equally fast, nor always their own."""
        left = deque(tasks)
        self._run(tasks, [_taken(left) for _ in range(self._n_threads)], work, states)

    def _run(self, tasks: Sequence[Work], shares: list[Any], work: Callable[[Any, Any], None], states: Any) -> None:
        if len(tasks) < 2 or self._n_threads == 1:
            for task in tasks:
                with threads_for(task.work):
                    work(task, states[0])
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._n_threads)

        def share(thread: int) -> None:
            torch.set_num_threads(1)
            try:
                with torch.no_grad():
                    for task in shares[thread]:
                        if self._stop:
                            return
                        work(task, states[thread])
            finally:
                torch.set_num_threads(self._n_threads)  # threads born later start with what was set last

        for future in [self._pool.submit(share, t) for t in range(self._n_threads)]:
            future.result()


def _taken(left: deque[Any]) -> Iterator[Any]:
    """What is left, as long as there is something; several threads may take from it."""
    with suppress(IndexError):
        while True:
            yield left.popleft()
