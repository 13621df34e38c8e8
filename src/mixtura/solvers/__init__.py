"""Solvers. A new one: one file here, one line in SOLVERS, one line in tests/cases.py."""

from __future__ import annotations

from mixtura.solvers.baum_welch import BaumWelch
from mixtura.solvers.em import EM, first_update
from mixtura.solvers.gradient import Gradient
from mixtura.solvers.loop import FitResult, Outcome, Record, best_of, run, run_held_out
from mixtura.solvers.newton import SparseNewton
from mixtura.solvers.together import Stack, Task, run_together, taken

# Solvers of Gaussian mixtures; SparseNewton improves log-linear ones, and its laws are in tests/test_sparse_solver.py.
SOLVERS = {"em": EM, "baum_welch": BaumWelch, "gradient": Gradient}

__all__ = [
    "EM",
    "SOLVERS",
    "BaumWelch",
    "FitResult",
    "Gradient",
    "Outcome",
    "Record",
    "SparseNewton",
    "Stack",
    "Task",
    "best_of",
    "first_update",
    "run",
    "run_held_out",
    "run_together",
    "taken",
]
