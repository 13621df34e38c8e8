"""The command line: fit, predict, compare and report."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mixtura.files import look_up_moved

__getattr__ = look_up_moved(__name__, {"demo": "examples/demo.py of a source checkout"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        from mixtura.cli.commands import run
    except ModuleNotFoundError as error:
        print(
            f"mixtura: The command line needs {error.name}; install it with: pip install 'mixtura[cli]'.",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:  # while torch is imported
        print("mixtura: Interrupted; no file was written.", file=sys.stderr)
        return 130
    return run(sys.argv[1:] if arguments is None else list(arguments))


__all__ = ["main"]
