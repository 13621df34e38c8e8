"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

BINARY = os.O_BINARY if sys.platform == "win32" else 0  # files there are otherwise opened as text


@contextmanager
def written_whole(target: Path) -> Iterator[BinaryIO]:
    """A file to write to, which gets its name when all of it is on the disk; after an error nothing is left."""
    unfinished = target.with_name(f".mixtura-{secrets.token_hex(8)}")
    # Created here and not by tempfile: the umask then decides about permissions, as for any other file.
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
    if os.name == "posix":  # the new name itself is on the disk only when its folder is
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
