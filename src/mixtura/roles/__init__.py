"""The four roles - covariance, objective, prior, solver - and what each must be able to do. Read this first.

A row n and a component k meet in the log joint a[n, k] = log weight_k + log f_k(x_n). Every learner needs from the rows
only the signed responsibilities A[n, k] = d objective / d a[n, k] and their weighted moments:

    a pass over the rows makes moments; a covariance turns moments into parameters; solvers do arithmetic in between.

Shapes: N rows, D features, K components, C classes, R rank, G matrices of a shared structure.
Work inside a pass is component-major, (K, n), because reductions over components are then vectorised over rows.
"""

from __future__ import annotations

from mixtura.roles.covariance import Conditioned, Covariance, Marginals, Quadratic, Structure
from mixtura.roles.objective import LogSumObjective, Objective
from mixtura.roles.prior import ConjugatePrior, DataScales, Parameters, Prior
from mixtura.roles.solver import Info, MemberSolver, MixtureSolver, Solver

__all__ = [
    "Conditioned",
    "ConjugatePrior",
    "Covariance",
    "DataScales",
    "Info",
    "LogSumObjective",
    "Marginals",
    "MemberSolver",
    "MixtureSolver",
    "Objective",
    "Parameters",
    "Prior",
    "Quadratic",
    "Solver",
    "Structure",
]
