"""Selection of the fused kernels of `numerics.kernels`: on a GPU, if Triton is installed and works."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

_allowed = ContextVar("fused kernels", default=True)


@contextmanager
def plain_torch():
    """A context without fused kernels, for comparisons."""
    token = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(token)


def kernels_for(values: Tensor) -> ModuleType | None:
    """The kernels for tensors like this one; None if plain torch is used (CPU, gradients, no Triton)."""
    if not values.is_cuda or values.requires_grad or torch.compiler.is_compiling() or not _allowed.get():
        return None
    return working_kernels(values.device)


@lru_cache(maxsize=16)
def working_kernels(device: torch.device) -> ModuleType | None:
    """The kernels if they work on a device; otherwise None, with a warning."""
    try:
        kernels = import_module("mixtura.numerics.kernels")
        kernels.posteriors(torch.zeros(2, 2, device=device))  # compiling needs a C compiler, among others
    except Exception as error:
        warnings.warn(
            f"The fused GPU kernels cannot be used ({type(error).__name__}: {str(error).splitlines()[0]}); plain torch "
            "is used instead, up to 5 times slower. They need Triton (pip install triton) and a C compiler.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return kernels
