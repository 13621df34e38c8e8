"""The options that `python -m reproduce` passes to a script."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from reproduce.stamps import RESULTS


@dataclass(frozen=True)
class Options:
    """Where to write, how many seeds (None: as in the committed table), on what, and how many processes.

    `quick` is a small version of a table, for tests: one setting, one seed, few iterations. Its figures mean nothing.
    """

    out: Path = RESULTS
    seeds: int | None = None
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    jobs: int = 1
    quick: bool = False

    def n_seeds(self, usual: int) -> int:
        """Seeds, splits or repetitions to run, where the committed table has `usual`."""
        return 1 if self.quick else usual if self.seeds is None else self.seeds
