"""Prefetching: a separate thread reads the next parts while the caller computes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from queue import Empty, Full, Queue
from typing import Any, TypeVar

import torch

from mixtura.engine.threads import OwnThreads
from mixtura.engine.tuning import PREFETCHED

T = TypeVar("T")
WAIT = 0.1  # seconds after which a waiting reader checks whether its parts are still needed


class _End:
    """End of the parts, with the error that ended them, if any."""

    def __init__(self, error: BaseException | None = None):
        self.error = error


def prefetched(parts: Iterable[T]) -> Iterator[T]:
    """Yield the same parts in the same order, with a few of them read ahead; errors are raised at the same place."""
    queue: Queue[Any] = Queue(PREFETCHED)
    stopped = threading.Event()
    reader = threading.Thread(target=_read, args=(parts, queue, stopped), name="mixtura-prefetch", daemon=True)
    reader.start()
    try:
        while not isinstance(part := _get(queue, reader), _End):
            yield part
        if part.error is not None:
            raise part.error
    finally:
        stopped.set()
        reader.join()


def _get(queue: Queue[Any], reader: threading.Thread) -> Any:
    """The next part; waits in short steps, so that Ctrl-C works on every system."""
    while True:
        try:
            return queue.get(timeout=WAIT)
        except Empty:
            assert reader.is_alive() or not queue.empty(), "the reader ended without a result or an error"


def _read(parts: Iterable[Any], queue: Queue[Any], stopped: threading.Event) -> None:
    end = _End()
    try:
        with OwnThreads(1), torch.no_grad():
            for part in parts:
                if not _put(part, queue, stopped):
                    return
    except BaseException as error:  # passed on to the calling thread
        end = _End(error)
    _put(end, queue, stopped)


def _put(part: Any, queue: Queue[Any], stopped: threading.Event) -> bool:
    """Put a part into the queue; False if it is not needed any more."""
    while not stopped.is_set():
        try:
            queue.put(part, timeout=WAIT)
            return True
        except Full:
            continue
    return False
