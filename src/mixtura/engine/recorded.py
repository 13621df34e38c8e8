"""Operations on a GPU that are recorded and then launched together, as one graph.

A launch takes longer than the work of a pass over few rows. A graph reads and writes at fixed addresses, so that it
serves the passes of one fit, over the same rows. The first replay with other coefficients than those of the recording
is compared with an ordinary pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Recording(Generic[T]):
    """The operations of `run`, which must not wait for the device. A replay overwrites the results of the last one."""

    def __init__(self, run: Callable[[], T], device: torch.device):
        self._graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self._graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._results = run()
            finally:
                self._graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(stream)

    def replay(self) -> T:
        """Launch the operations and return their results."""
        self._graph.replay()
        return self._results


class Repeats:
    """Passes over the same things, one after the other."""

    def __init__(self) -> None:
        self._things: tuple[object, ...] = ()
        self._number = 0
        self.recorded: tuple[Tensor, Recording] | None = None  # where coefficients are read, and the operations

    def count(self, *things: object) -> int:
        """How many passes in succession were over these very objects, this one included."""
        if len(things) != len(self._things) or any(a is not b for a, b in zip(things, self._things, strict=True)):
            self._things, self._number, self.recorded = things, 0, None
        self._number += 1
        return self._number
