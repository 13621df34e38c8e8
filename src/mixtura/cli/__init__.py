"""The command line: fit, predict, compare, report and demo."""

from mixtura.cli.commands import main

__all__ = ["main"]
