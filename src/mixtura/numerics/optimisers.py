"""Optimisers of torch without their side effect on the process."""

from __future__ import annotations

import functools
import importlib
import os

CACHE_FOLDER = "TORCHINDUCTOR_CACHE_DIR"


@functools.cache
def import_compiler() -> None:
    """Import torch's compiler, which the first optimiser of a process imports, and leave the environment as it was.

    The import names a folder for compiled code in the environment, which programs started later would inherit.
    """
    before = os.environ.get(CACHE_FOLDER)
    importlib.import_module("torch._dynamo")
    if before is None:
        os.environ.pop(CACHE_FOLDER, None)
