"""The options that `python -m reproduce` passes to a script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from reproduce.stamps import RESULTS

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """Where to write, how many seeds (None: as in the committed table), on what, and how many processes.

    `cell` is the only one to compute, where a table has cells by name.
    `quick` is a small version of a table, for tests: one setting, one seed, few iterations. Its figures mean nothing.
    """

    out: Path = RESULTS
    seeds: int | None = None
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    jobs: int = 1
    quick: bool = False
    cell: str | None = None

    def n_seeds(self, usual: int) -> int:
        """Seeds, splits or repetitions to run, where the committed table has `usual`."""
        return 1 if self.quick else usual if self.seeds is None else self.seeds

    def named(self, cells: Mapping[str, T]) -> dict[str, T]:
        """All cells, or the one that `--cell` names."""
        if self.cell is None:
            return dict(cells)
        if self.cell not in cells:
            raise UnknownCellError("\n  ".join([f"--cell must be one of those below; got {self.cell!r}", *cells]))
        return {self.cell: cells[self.cell]}


class UnknownCellError(ValueError):
    """A cell that a table does not have."""
