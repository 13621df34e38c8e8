"""Atomic writing of files."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

BINARY = os.O_BINARY if sys.platform == "win32" else 0  # otherwise files are opened in text mode


@contextmanager
def write_atomically(target: Path) -> Iterator[BinaryIO]:
    """A context with a file to write to, renamed when it is complete on disk; after an error it is deleted."""
    unfinished = target.with_name(f".mixtura-{secrets.token_hex(8)}")
    # Created without tempfile, so that permissions follow the umask as for any other file.
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the new name is on disk only after its folder is flushed
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
