"""Buffers that are used again from chunk to chunk: fresh pages cost several times the arithmetic done on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Scratch:
    """The buffers of one thread. A buffer holds until the next one of the same name is asked for."""

    def __init__(self) -> None:
        self._dtype: torch.dtype | None = None
        self._memory: dict[str, Tensor] = {}  # bytes
        self._shaped: dict[str, Tensor] = {}
        self._kept: dict[str, tuple[Tensor, Any]] = {}

    def retyped(self, dtype: torch.dtype | None) -> Scratch:
        """Itself, and from now on all buffers have this type, whatever they are for: numbers are rounded on their way
        into them. None: the type of what they are for. What they held is lost.
        """
        if dtype != self._dtype:
            self._dtype = dtype
            self._shaped.clear()
            self._kept.clear()
        return self

    def buffer(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor of this shape, of the type and on the device of another."""
        shaped, dtype = self._shaped.get(name), self._dtype or like.dtype
        if shaped is not None and shaped.shape == shape and shaped.dtype == dtype and shaped.device == like.device:
            return shaped
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        held = self._memory.get(name)
        if held is None or len(held) < size or held.device != like.device:
            self._memory[name] = held = torch.empty(size, dtype=torch.uint8, device=like.device)
        self._shaped[name] = held[:size].view(dtype).view(shape)
        return self._shaped[name]

    def kept(self, name: str, owner: Tensor, make: Callable[[], Any]) -> Any:
        """Something made once for a buffer, and made again when the buffer is another."""
        known = self._kept.get(name)
        if known is None or known[0] is not owner:
            self._kept[name] = known = (owner, make())
        return known[1]


def fresh(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised tensor for an answer of many rows.

    On the CPU the memory is NumPy's, which asks for huge pages: writing 100 MB for the first time took 11 ms instead
    of 44.
    """
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(shape, torch.empty(0, dtype=dtype).numpy().dtype))
