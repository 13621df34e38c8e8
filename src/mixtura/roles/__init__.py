"""The four roles (covariance, objective, prior, solver) and their methods. Read this first.

The log joint of row n and component k is a[n, k] = log weight_k + log f_k(x_n). Every solver depends on the rows only
through the signed responsibilities A[n, k] = d objective / d a[n, k] and their weighted moments:

    a pass over the rows computes moments; a covariance computes parameters from moments; solvers combine the two.

Shapes: N rows, D features, K components, C classes, R rank, G matrices of a shared structure.
Work inside a pass is component-major, (K, n), because reductions over components are then vectorised over rows.
"""

from __future__ import annotations

from mixtura.roles.covariance import Conditioned, Covariance, Quadratic, Structure
from mixtura.roles.objective import KinkedObjective, LogSumObjective, Objective, is_smooth
from mixtura.roles.prior import ConjugatePrior, DataScales, MovablePrior, Parameters, Prior
from mixtura.roles.solver import Info, MixtureSolver, Solver

__all__ = [
    "Conditioned",
    "ConjugatePrior",
    "Covariance",
    "DataScales",
    "Info",
    "KinkedObjective",
    "LogSumObjective",
    "MixtureSolver",
    "MovablePrior",
    "Objective",
    "Parameters",
    "Prior",
    "Quadratic",
    "Solver",
    "Structure",
    "is_smooth",
]
