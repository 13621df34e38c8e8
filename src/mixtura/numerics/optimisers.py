"""Optimisers of torch without torch's compiler.

torch decorates the methods of its optimisers for `torch.compile`: the first call imports the compiler, which takes two
to four seconds and sets an environment variable. The functions below the decorators are the same code without it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os

import torch
from torch.optim import Optimizer

CACHE_FOLDER = "TORCHINDUCTOR_CACHE_DIR"


class _Uncompiled(Optimizer):
    """The methods that all optimisers share."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)


class Adam(_Uncompiled, torch.optim.Adam):
    """`torch.optim.Adam`; its updates cannot be differentiated."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class LBFGS(_Uncompiled, torch.optim.LBFGS):
    """`torch.optim.LBFGS`."""


@functools.cache
def import_compiler() -> None:
    """Import torch's compiler, as other optimisers do when they are first used, and restore the environment variables.

    The import sets an environment variable, a folder for compiled code, that child processes would inherit.
    """
    before = os.environ.get(CACHE_FOLDER)
    importlib.import_module("torch._dynamo")
    if before is None:
        os.environ.pop(CACHE_FOLDER, None)
