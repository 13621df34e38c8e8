"""Buffers that are used again from chunk to chunk: fresh pages cost several times the arithmetic done on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Buffers:
    """The buffers of one thread. A buffer holds until the next one of the same name is asked for."""

    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}  # bytes
        self._shaped: dict[str, Tensor] = {}
        self._kept: dict[str, tuple[Tensor, Any]] = {}

    def get(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor of this shape, of the type and on the device of another."""
        shaped = self._shaped.get(name)
        if shaped is not None and shaped.shape == shape and shaped.dtype == like.dtype and shaped.device == like.device:
            return shaped
        size = like.dtype.itemsize * math.prod(shape)
        held = self._memory.get(name)
        if held is None or len(held) < size or held.device != like.device:
            self._memory[name] = held = torch.empty(size, dtype=torch.uint8, device=like.device)
        self._shaped[name] = held[:size].view(like.dtype).view(shape)
        return self._shaped[name]

    def kept(self, name: str, owner: Tensor, make: Callable[[], Any]) -> Any:
        """Something made once for a buffer, such as views of it, and made again when the buffer is another."""
        known = self._kept.get(name)
        if known is None or known[0] is not owner:
            self._kept[name] = known = (owner, make())
        return known[1]
