"""Sparse Bayesian learning with a working set: columns are added while they raise the evidence, and removed again.

Memory is rows x columns in use, never rows x rows (working-set).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from mixtura.files.registry import storable
from mixtura.roles import Info
from mixtura.sparse.curvature import DirectCurvature
from mixtura.sparse.kernels import Basis
from mixtura.sparse.model import SparseMixture
from mixtura.sparse.newton import Evidence, SparseNewton, State, starting_state
from mixtura.sparse.problem import SparseProblem

# Enough to distinguish the components of a class. This and LEAST_GAIN give nearly the smallest log-loss on held-out
# training rows with the fewest weights (studies/results/sparse_settings.md); the evidence would prefer more columns.
COLUMNS_AT_START = 5
# Precision updates between two searches for new columns, and columns added at a search.
STEPS_BETWEEN = 10
MOST_ADDED = 10
# A column must raise the log evidence by this much to be added.
LEAST_GAIN = 0.5
# Of two candidates whose columns correlate more than this, only the better one is added at a search.
MOST_ALIKE = 0.9
# Candidates per search; different ones each time, until all have been evaluated without a gain.
CANDIDATES_PER_LOOK = 2000


@storable("working_state")
@dataclass(frozen=True)
class WorkingState:
    """A state over the columns in use: `columns` numbers them among all, `features` holds their values, (H', N)."""

    state: State
    columns: Tensor
    features: Tensor
    order: Tensor  # candidates in the order of evaluation
    n_seen: int = 0  # candidates evaluated since the last gain

    @property
    def mixture(self) -> SparseMixture:
        return self.state.mixture


@dataclass(frozen=True)
class WorkingSet:
    """Steps of an inner solver over a few columns, alternating with searches for columns that increase the evidence."""

    inner: SparseNewton
    problem: SparseProblem
    generator: torch.Generator
    name = "working set"

    def start(self, responsibilities: Tensor) -> WorkingState:
        """The constant and random columns: with the constant alone all components of a class would be equal."""
        device = responsibilities.device
        order = 1 + torch.randperm(self.problem.basis.n_columns - 1, generator=self.generator).to(device)
        columns = torch.cat((torch.zeros(1, dtype=torch.long, device=device), order[:COLUMNS_AT_START]))
        precisions = self.problem.precisions_at_start(columns)
        state = starting_state(len(columns), self.problem.class_of, responsibilities, precisions)
        return WorkingState(state, columns, self.problem.columns(columns), order.roll(-COLUMNS_AT_START))

    def init(self, problem: Evidence, start: WorkingState) -> WorkingState:
        return start

    def result(self, state: WorkingState) -> WorkingState:
        return state

    def step(self, problem: Evidence, state: WorkingState) -> tuple[WorkingState, Info]:
        """Update the precisions; every few updates, and after convergence, search for new columns."""
        evidence = replace(problem, features=state.features)
        inner, info = self.inner.step(evidence, state.state)
        settled = bool(info.converged)
        working = self._compact(replace(state, state=inner))
        if not settled and working.state.n_steps % STEPS_BETWEEN:
            return working, replace(info, converged=False)
        gains, precisions, index = self._look(working, problem)
        best = float(gains.max()) if gains.numel() else 0.0
        if best > LEAST_GAIN:
            return self._extend(working, gains, precisions, index), replace(info, converged=False)
        n_seen = working.n_seen + len(index)
        over = settled and n_seen >= len(working.order)
        order = working.order.roll(-len(index))
        return replace(working, n_seen=n_seen, order=order), replace(info, converged=over)

    def _compact(self, working: WorkingState) -> WorkingState:
        """Remove the columns that no pair uses."""
        used, numbers = working.mixture.columns.unique(return_inverse=True)
        if len(used) == len(working.columns):
            return working
        state = replace(working.state, mixture=replace(working.mixture, columns=numbers))
        return replace(working, state=state, columns=working.columns[used], features=working.features[used])

    def _look(self, working: WorkingState, rows: Evidence) -> tuple[Tensor, Tensor, Tensor]:
        """Gains of the log evidence (K, H') by adding candidates to components, and the precisions they would have.

        (column-gain) needs the gradient and the curvature left after the pairs in use (Faul & Tipping 2002).
        """
        mixture = working.mixture
        index = working.order[:CANDIDATES_PER_LOOK]
        columns = working.features[mixture.columns]  # (P, N)
        curvature = DirectCurvature(mixture, columns, rows.weights)
        posteriors = curvature.log_joint(mixture.values, mixture.log_weights).softmax(0)
        residuals = (working.state.responsibilities - posteriors) * rows.weights
        factor = curvature.factored(mixture.precisions, posteriors).factor if mixture.n_pairs else None
        gains, precisions = [], []
        for part in index.split(self._n_at_once(working)):
            added = self.problem.columns(part)  # (h, N)
            gradient = residuals @ added.T  # (K, h)
            left = torch.stack(
                [
                    self._curvature_left(k, added, columns, posteriors, rows.weights, mixture, factor)
                    for k in range(len(posteriors))
                ]
            )
            gain, precision = self.inner.prior.gains(gradient.square(), left)
            gains.append(gain)
            precisions.append(precision)
        gain = torch.cat(gains, 1)
        in_use = mixture.coefficients(len(working.columns)) != 0
        for place, number in enumerate(working.columns.tolist()):
            gain[:, index == number] *= ~in_use[:, place].unsqueeze(1)
        gain[-1] = 0  # the reference component has no columns
        return gain, torch.cat(precisions, 1), index

    def _curvature_left(
        self,
        k: int,
        added: Tensor,
        columns: Tensor,
        posteriors: Tensor,
        weights: Tensor,
        mixture: SparseMixture,
        factor: Tensor | None,
    ) -> Tensor:
        """S = phi' B phi - phi' B X A^-1 X' B phi of candidates (h, N) for component k, (h,)."""
        p = posteriors[k]
        own = added.square() @ (weights * p * (1 - p))
        if factor is None:
            return own.clamp_min(1e-12)
        same = (mixture.components == k).double().unsqueeze(1)
        mixed = columns * (weights * p * (same - posteriors[mixture.components]))  # (P, N)
        explained = torch.linalg.solve_triangular(factor, mixed @ added.T, upper=False)
        return (own - explained.square().sum(0)).clamp_min(1e-12)

    def _extend(self, working: WorkingState, gains: Tensor, precisions: Tensor, index: Tensor) -> WorkingState:
        """Add the best candidates, without those that correlate with a better one of the same component."""
        best, order = gains.flatten().sort(descending=True)
        order = order[: min(20 * MOST_ADDED, int((best > LEAST_GAIN).sum()))]
        chosen: list[tuple[int, int]] = []
        units: dict[tuple[int, int], Tensor] = {}
        for pairs in order.split(self._n_at_once(working)):
            columns = normalize(self.problem.columns(index[pairs % len(index)]), eps=1e-300)  # (h, N)
            for pair, unit in zip(pairs.tolist(), columns, strict=True):
                k, place = divmod(pair, len(index))
                alike = [float(unit @ units[other]) for other in chosen if other[0] == k]
                if len(chosen) < MOST_ADDED and max(alike, default=0.0) < MOST_ALIKE:
                    chosen.append((k, place))
                    units[k, place] = unit
        return self._with(working, chosen, precisions, index)

    def _n_at_once(self, working: WorkingState) -> int:
        """Number of candidates whose columns and temporaries fit in memory."""
        return max(1, self.problem.memory_limit // (64 * working.features.shape[1]))

    def _with(
        self, working: WorkingState, chosen: list[tuple[int, int]], precisions: Tensor, index: Tensor
    ) -> WorkingState:
        components = torch.tensor([k for k, _ in chosen], device=index.device)
        places = torch.tensor([place for _, place in chosen], device=index.device)
        new_columns, numbers = index[places].unique(return_inverse=True)
        fresh = new_columns[~torch.isin(new_columns, working.columns)]
        columns = torch.cat((working.columns, fresh))
        features = torch.cat((working.features, self.problem.columns(fresh))) if len(fresh) else working.features
        position = (columns == new_columns.unsqueeze(1)).double().argmax(1)[numbers]
        old = working.mixture
        joined = torch.cat((old.components, components))
        order = joined.argsort(stable=True)
        start = precisions[components, places].clamp(self.inner.prior.smallest, 0.5 * self.inner.prior.largest)
        mixture = replace(
            old,
            components=joined[order],
            columns=torch.cat((old.columns, position))[order],
            values=torch.cat((old.values, old.values.new_zeros(len(chosen))))[order],
            precisions=torch.cat((old.precisions, start))[order],
        )
        state = replace(working.state, mixture=mixture)
        return replace(working, state=state, columns=columns, features=features, n_seen=0)


def columns_in_use(problem: SparseProblem, state: State | WorkingState) -> tuple[State, Evidence, Basis]:
    """The state of a solver, with the evidence and the basis that its column indices refer to."""
    if isinstance(state, WorkingState):
        evidence = replace(problem.evidence, features=state.features)
        return state.state, evidence, problem.basis.select(state.columns)
    return state, problem.evidence, problem.basis
