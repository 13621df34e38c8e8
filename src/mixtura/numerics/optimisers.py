"""Optimisers of torch without their side effects on the process."""

from __future__ import annotations

import functools
import importlib
import os

CACHE_FOLDER = "TORCHINDUCTOR_CACHE_DIR"


@functools.cache
def import_compiler() -> None:
    """Import torch's compiler, as the first optimiser of a process does, and restore the environment variables.

    The import sets an environment variable, a folder for compiled code, that child processes would inherit.
    """
    before = os.environ.get(CACHE_FOLDER)
    importlib.import_module("torch._dynamo")
    if before is None:
        os.environ.pop(CACHE_FOLDER, None)
