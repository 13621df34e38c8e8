"""Fewer components where the evidence rises: the last step of sparse Bayesian learning (component-trial).

Pruning takes weights one by one and cannot see that a whole component is not needed: HU21 name it as a limit of
their method. So components are left out in turn, the others are refitted, and the evidence decides.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mixtura.solvers.loop import run
from mixtura.solvers.newton import Evidence, SparseNewton, State, without_components
from mixtura.sparse_mixture import SparseMixture

# Precision updates of a trial: weights that are not needed have mostly gone by then.
TRIAL_STEPS = 200
# In nats; less is within the error of Laplace's approximation.
LEAST_RISE = 1.0


def simplified(state: State, evidence: Evidence, solver: SparseNewton, most_steps: int = TRIAL_STEPS) -> State:
    """The state, without components as long as leaving one out raises the log evidence clearly."""
    state, _, best = solver.posterior(state, evidence)
    while True:
        counts = torch.bincount(state.mixture.class_of)
        spare = [k for k in range(state.mixture.n_components) if counts[state.mixture.class_of[k]] > 1]
        trials = [_without(state, k, evidence, solver, min(most_steps, TRIAL_STEPS)) for k in spare]
        trials = [(value, trial) for value, trial in trials if value >= best + LEAST_RISE]
        if not trials:
            return state
        best, state = max(trials, key=lambda pair: pair[0])


def _without(state: State, k: int, evidence: Evidence, solver: SparseNewton, n_steps: int) -> tuple[float, State]:
    """The log evidence and the state after a fit without component k."""
    gone = torch.zeros(state.mixture.n_components, dtype=torch.bool, device=state.responsibilities.device)
    gone[k] = True
    columns = state.mixture.columns.unique()
    trial = without_components(state, gone, evidence)
    trial = replace(trial, mixture=_reopened(trial.mixture, columns))
    found = run(solver, trial, evidence, n_steps, 0.0).mixture
    found, _, value = solver.posterior(found, evidence)
    return value, found


def _reopened(mixture: SparseMixture, columns: Tensor) -> SparseMixture:
    """All components but the last may use all of these columns again: what is new is zero with precision one."""
    components = torch.arange(mixture.n_components - 1, device=columns.device).repeat_interleave(len(columns))
    repeated = columns.repeat(mixture.n_components - 1)
    n_columns = int(columns.max()) + 1 if len(columns) else 1
    values = mixture.coefficients(n_columns)
    shifted = values - values[-1]  # the last component is the reference again: only differences count
    precisions = torch.ones_like(values)
    precisions[mixture.components, mixture.columns] = mixture.precisions
    return replace(
        mixture,
        components=components,
        columns=repeated,
        values=shifted[components, repeated],
        precisions=precisions[components, repeated],
    )
