"""Leaving out components one by one where the evidence rises: tried, and not kept (sparse_settings.md).

Pruning takes weights one by one and cannot see that a whole component is not needed: HU21 name it as a limit of
their method. Here components are left out in turn, the others are refitted, and the evidence decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from mixtura.solvers.loop import Outcome, run
from mixtura.sparse.model import SparseMixture
from mixtura.sparse.newton import Evidence, SparseNewton, State, without_components

# Precision updates after which trials are compared, and of the one that is pursued: most weights that are not needed
# have gone by then.
FIRST_STEPS = 30
TRIAL_STEPS = 200


def simplifications(
    state: State, evidence: Evidence, solver: SparseNewton, judge: SparseNewton, n_steps: int
) -> Iterator[tuple[float, State]]:
    """The judge's log evidence and the state, then with one component less after another: the one missed least."""
    state, value = judge.settled(state, evidence)
    yield value, state
    while spare := _spare(state.mixture):
        trials = [_without(state, k, evidence, solver, min(n_steps, FIRST_STEPS)) for k in spare]
        best = max(trials, key=lambda trial: judge.settled(trial, evidence)[1])
        state, value = judge.settled(_fitted(best, evidence, solver, n_steps), evidence)
        yield value, state


def _spare(mixture: SparseMixture) -> list[int]:
    """Components that are not the only one of their class."""
    counts = torch.bincount(mixture.class_of)
    return [k for k, c in enumerate(mixture.class_of.tolist()) if counts[c] > 1]


def _without(state: State, k: int, evidence: Evidence, solver: SparseNewton, n_steps: int) -> State:
    """The state after a fit without component k."""
    gone = torch.zeros(state.mixture.n_components, dtype=torch.bool, device=state.responsibilities.device)
    gone[k] = True
    trial = without_components(state, gone, evidence)
    trial = replace(trial, mixture=_reopened(trial.mixture, evidence.n_columns))
    return _fitted(trial, evidence, solver, n_steps)


def _fitted(state: State, evidence: Evidence, solver: SparseNewton, n_steps: int) -> State:
    result = run(solver, evidence, state, n_steps, 0.0)
    if result.outcome is Outcome.INTERRUPTED:
        raise KeyboardInterrupt
    return result.mixture


def _reopened(mixture: SparseMixture, n_columns: int) -> SparseMixture:
    """All components but the last may use all columns again: what is new is zero with precision one."""
    components = torch.arange(mixture.n_components - 1, device=mixture.values.device).repeat_interleave(n_columns)
    columns = torch.arange(n_columns, device=mixture.values.device).repeat(mixture.n_components - 1)
    values = mixture.coefficients(n_columns)
    shifted = values - values[-1]  # the last component is the reference again: only differences count
    precisions = torch.ones_like(values)
    precisions[mixture.components, mixture.columns] = mixture.precisions
    return replace(
        mixture,
        components=components,
        columns=columns,
        values=shifted[components, columns],
        precisions=precisions[components, columns],
    )
