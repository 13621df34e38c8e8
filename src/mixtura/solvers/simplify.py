"""Fewer components where the evidence rises: the last step of sparse Bayesian learning (component-trial).

Pruning takes weights one by one and cannot see that a whole component is not needed: HU21 name it as a limit of
their method. So components are left out in turn, the others are refitted, and the evidence decides.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    steps = simplifications(state, evidence, solver, solver, min(most_steps, TRIAL_STEPS))
    best, state = next(steps)
    for value, simpler in steps:
        if value < best + LEAST_RISE:
            break
        best, state = value, simpler
    return state


def simplifications(
    state: State, evidence: Evidence, solver: SparseNewton, judge: SparseNewton, n_steps: int
) -> Iterator[tuple[float, State]]:
    """The judge's log evidence and the state, then with one component less after another: the one missed least."""
    state, _, value = judge.posterior(state, evidence)
    yield value, state
    while spare := _spare(state.mixture):
        trials = [judge.posterior(_without(state, k, evidence, solver, n_steps), evidence) for k in spare]
        state, _, value = max(trials, key=lambda found: found[2])
        yield value, state


def _spare(mixture: SparseMixture) -> list[int]:
    """Components that are not the only one of their class."""
    counts = torch.bincount(mixture.class_of)
    return [k for k, c in enumerate(mixture.class_of.tolist()) if counts[c] > 1]


def _without(state: State, k: int, evidence: Evidence, solver: SparseNewton, n_steps: int) -> State:
    """The state after a fit without component k."""
    gone = torch.zeros(state.mixture.n_components, dtype=torch.bool, device=state.responsibilities.device)
    gone[k] = True
    columns = state.mixture.columns.unique()
    trial = without_components(state, gone, evidence)
    trial = replace(trial, mixture=_reopened(trial.mixture, columns))
    return run(solver, trial, evidence, n_steps, 0.0).mixture


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
