"""Solvers. A new one: one file here, one line in SOLVERS, one line in tests/cases.py."""

from __future__ import annotations

from mixtura.roles import MixtureSolver
from mixtura.solvers.accelerated_em import AcceleratedEM
from mixtura.solvers.batched_em import MemberFit, Stack, run_together
from mixtura.solvers.baum_welch import BaumWelch
from mixtura.solvers.em import EM, first_update, mixture_of_moments, tied_mixture
from mixtura.solvers.gradient import Gradient
from mixtura.solvers.loop import EarlyStopping, FitResult, Outcome, Record, best_of, run
from mixtura.solvers.problem import Problem, score_classes
from mixtura.solvers.unconstrained import Units

# By the names that `solver=` takes. "auto" is the first one that does not refuse.
SOLVERS: dict[str, MixtureSolver] = {
    "em": AcceleratedEM(),
    "baum_welch": BaumWelch(),
    "gradient": Gradient(),
}

__all__ = [
    "EM",
    "SOLVERS",
    "AcceleratedEM",
    "BaumWelch",
    "EarlyStopping",
    "FitResult",
    "Gradient",
    "MemberFit",
    "Outcome",
    "Problem",
    "Record",
    "Stack",
    "Units",
    "best_of",
    "first_update",
    "mixture_of_moments",
    "run",
    "run_together",
    "score_classes",
    "tied_mixture",
]
