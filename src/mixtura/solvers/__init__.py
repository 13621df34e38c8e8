"""Solvers. A new one: one file here, one line in SOLVERS, one line in tests/cases.py."""

from __future__ import annotations

from mixtura.solvers.baum_welch import BaumWelch
from mixtura.solvers.em import EM
from mixtura.solvers.loop import FitResult, Outcome, Record, best_of, run, run_held_out

SOLVERS = {"em": EM, "baum_welch": BaumWelch}

__all__ = ["EM", "SOLVERS", "BaumWelch", "FitResult", "Outcome", "Record", "best_of", "run", "run_held_out"]
