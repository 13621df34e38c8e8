"""Threads that share out the chunks of a pass, each running single-threaded operations."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Protocol

import torch

from mixtura.linalg import threads_for


class Task(Protocol):
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


# Threads wait here for the next pass: to start them takes as long as a pass over a few thousand rows.
_pools: dict[int, ThreadPoolExecutor] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)  # where they would be no more


def share_out(tasks: Sequence[Task], work: Callable[[Any, Any], None], states: Any) -> None:
    """work(task, state of the thread) for all tasks, by as many threads as there are states.

    Thread t takes tasks t, t + T, ..., so that sums are added in a fixed order.
    """
    n_threads = len(states)
    if len(tasks) < 2 or n_threads == 1:
        for task in tasks:
            with threads_for(task.work):
                work(task, states[0])
        return
    stopped = False

    def share(thread: int) -> None:
        torch.set_num_threads(1)
        try:
            with torch.no_grad():
                for task in tasks[thread::n_threads]:
                    if stopped:
                        return
                    work(task, states[thread])
        finally:
            torch.set_num_threads(n_threads)  # threads born later start with what was set last

    pool = _pools.get(n_threads) or _pools.setdefault(n_threads, ThreadPoolExecutor(n_threads, "mixtura"))
    futures = [pool.submit(share, t) for t in range(n_threads)]
    try:
        for future in futures:
            future.result()
    finally:
        stopped = True  # after Ctrl-C a thread ends with its chunk, not with its share
        wait(futures)
