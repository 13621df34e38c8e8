"""Many mixtures of the same rows, trained in one pass per iteration.

The monomials of a row are made once for all of them, and products of few components become one product of many. A
bootstrap replicate, a fold or a subset is a column of counts of the rows; each mixture may have a prior of its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mixtura.engine.passes import summarise
from mixtura.engine.sources import Source
from mixtura.engine.threads import threads_for
from mixtura.model.mixture import Mixture
from mixtura.objectives import Members
from mixtura.priors import log_terms
from mixtura.roles import Parameters, Structure
from mixtura.solvers.em import EM, ILL_DEFINED
from mixtura.solvers.loop import FitResult, Outcome, Record
from mixtura.values.pseudo_moments import PseudoMoments


@dataclass(frozen=True)
class Task:
    """One of the mixtures: the solver it would be given to alone, where it starts, and the rows that it sees."""

    solver: EM
    start: Mixture
    weight: float  # of its rows, in all
    column: int = 0  # of the counts of the rows


@dataclass(frozen=True)
class Stack:
    """B mixtures as one. Components are sorted by class, then by member, so that the rows of a class meet one slice."""

    structure: Structure
    mixture: Mixture  # weights sum to one in every member
    member_of: Tensor  # (K,)
    n_members: int

    @classmethod
    def of(cls, structure: Structure, mixtures: Sequence[Mixture]) -> Stack:
        class_of = torch.cat([m.class_of for m in mixtures])
        member_of = torch.cat([torch.full_like(m.class_of, b) for b, m in enumerate(mixtures)])
        order = class_of.argsort(stable=True)
        mixture = Mixture(
            torch.cat([m.log_weights for m in mixtures])[order],
            torch.cat([m.means for m in mixtures])[order],
            structure.concatenated([m.covariance for m in mixtures]).select(order),
            class_of[order],
        )
        return cls(structure, mixture, member_of[order], len(mixtures))

    @cached_property
    def places(self) -> list[Tensor]:
        """The components of each member."""
        return [(self.member_of == b).nonzero()[:, 0] for b in range(self.n_members)]

    @cached_property
    def matrix_member(self) -> Tensor:
        """The member that each distinct matrix belongs to, (G,)."""
        matrix_of = self.mixture.covariance.matrix_of
        return torch.zeros_like(self.member_of[: int(matrix_of.max()) + 1]).index_copy_(0, matrix_of, self.member_of)

    def member(self, b: int) -> Mixture:
        """One of the mixtures."""
        return self._chosen((self.member_of == b).nonzero()[:, 0])

    def members(self, kept: Sequence[int]) -> Stack:
        """Some of the mixtures, as one."""
        numbers = torch.full((self.n_members,), -1, device=self.member_of.device)
        numbers[list(kept)] = torch.arange(len(kept), device=numbers.device)
        chosen = (numbers[self.member_of] >= 0).nonzero()[:, 0]
        return Stack(self.structure, self._chosen(chosen), numbers[self.member_of[chosen]], len(kept))

    def _chosen(self, chosen: Tensor) -> Mixture:
        whole = self.mixture
        covariance = whole.covariance.select(chosen).compacted()
        return Mixture(whole.log_weights[chosen], whole.means[chosen], covariance, whole.class_of[chosen])

    def normalised(self, mixture: Mixture, class_prior: Tensor | None) -> Mixture:
        """With weights that sum to one in every member, or to the class probabilities in its classes."""
        if class_prior is None:
            return replace(mixture, log_weights=mixture.log_weights - self._totals(mixture, self.member_of))
        pairs = self.member_of * mixture.n_classes + mixture.class_of
        shares = mixture.log_weights - self._totals(mixture, pairs)
        kept = self.mixture.log_weights - self._totals(self.mixture, pairs)  # for a class that a member has no rows of
        shares = torch.where(shares.isnan(), kept, shares)
        return replace(mixture, log_weights=shares + class_prior.log()[mixture.class_of])

    def _totals(self, mixture: Mixture, groups: Tensor) -> Tensor:
        """log of the summed weights of the group of each component, (K,)."""
        weights = mixture.log_weights.exp()
        return weights.new_zeros(int(groups.max()) + 1).index_add_(0, groups, weights).log()[groups]


@dataclass(frozen=True)
class _Given:
    """A prior that is nothing but its pseudo-moments."""

    pseudo: PseudoMoments

    def pseudo_moments(self, n_features: int) -> PseudoMoments:
        return self.pseudo

    def log_density(self, parameters: Parameters) -> Tensor:
        of_components, of_matrices = log_terms(self.pseudo, parameters)
        return of_components.sum() + of_matrices.sum()


def _stacked_pseudo(stack: Stack, solvers: Sequence[EM]) -> PseudoMoments:
    """The pseudo-moments of every member's own prior."""
    parts = [solver.pseudo_moments for solver in solvers]
    of_component, of_matrix = stack.member_of, stack.matrix_member
    means = [part.mean.expand(len(places), -1) for part, places in zip(parts, stack.places, strict=True)]
    placed = torch.empty_like(stack.mixture.means)
    placed[torch.cat(stack.places)] = torch.cat(means)
    scatters = [part.scatter for part in parts]
    if any(scatter.ndim == 3 for scatter in scatters):
        scatters = [scatter if scatter.ndim == 3 else torch.diag(scatter).unsqueeze(0) for scatter in scatters]
        scatters = [scatter.squeeze(0) for scatter in scatters]

    def spread(values: list[float | Tensor], owners: Tensor) -> Tensor:
        return torch.stack([torch.as_tensor(v, dtype=torch.float64) for v in values]).to(owners.device)[owners]

    return PseudoMoments(
        weight_count=spread([part.weight_count for part in parts], of_component),
        mean_count=spread([part.mean_count for part in parts], of_component),
        covariance_count=spread([part.covariance_count for part in parts], of_matrix),
        mean=placed,
        scatter=torch.stack(scatters)[of_matrix],
        ridge=parts[0].ridge,
    )


class Together:
    """One iteration of EM for a stack of tasks; `members` are their numbers."""

    def __init__(self, members: Sequence[int], tasks: Sequence[Task], stack: Stack, pseudo: PseudoMoments):
        self.members, self.tasks, self.stack, self.pseudo = list(members), list(tasks), stack, pseudo
        columns = torch.tensor([task.column for task in tasks], device=stack.member_of.device)
        self.objective = Members(stack.member_of, columns)
        self.em = replace(tasks[0].solver, objective=self.objective, prior=_Given(pseudo), class_prior=None)

    @classmethod
    def of(cls, structure: Structure, tasks: Sequence[Task]) -> Together:
        stack = Stack.of(structure, [task.start for task in tasks])
        return cls(range(len(tasks)), tasks, stack, _stacked_pseudo(stack, [task.solver for task in tasks]))

    def step(self, rows: Source) -> tuple[Tensor, Tensor]:
        """Update all members; log-likelihood + log prior of what was, and likelihood of rows not seen, each (B,)."""
        mixture = self.stack.mixture
        summary = summarise(mixture, rows, self.objective, self.em.frame, self.em.memory_limit, self.em.buffers)
        values = torch.as_tensor(summary.value)
        seen, unseen = values[: len(self.members)], values[len(self.members) :]
        with threads_for(len(mixture.means) * float(mixture.means.shape[1]) ** 3):
            log_prior = self._log_priors(mixture)
            updated = self.em.maximised(mixture, summary.moments)
        self.stack = replace(self.stack, mixture=self.stack.normalised(updated, self.tasks[0].solver.class_prior))
        return seen + log_prior, unseen

    def _log_priors(self, mixture: Mixture) -> Tensor:
        of_components, of_matrices = log_terms(self.pseudo, mixture)
        totals = torch.zeros(len(self.members), dtype=torch.float64, device=of_components.device)
        totals.index_add_(0, self.stack.member_of, of_components)
        return totals.index_add_(0, self.stack.matrix_member, of_matrices)

    def repaired(self) -> list[bool]:
        """Which members have a covariance that had to be mended."""
        repaired = self.stack.mixture.covariance.repaired
        if not bool(repaired.any()):
            return [False] * len(self.members)
        return [bool(repaired[places].any()) for places in self.stack.places]

    def without(self, done: Sequence[int]) -> Together:
        """The members whose positions are not among these."""
        kept = sorted(set(range(len(self.members))).difference(done))
        gone = torch.zeros(len(self.members), dtype=torch.bool, device=self.stack.member_of.device)
        gone[list(done)] = True
        components, matrices = ~gone[self.stack.member_of], ~gone[self.stack.matrix_member]
        pseudo = PseudoMoments(
            weight_count=torch.as_tensor(self.pseudo.weight_count)[components],
            mean_count=torch.as_tensor(self.pseudo.mean_count)[components],
            covariance_count=torch.as_tensor(self.pseudo.covariance_count)[matrices],
            mean=self.pseudo.mean[components],
            scatter=self.pseudo.scatter[matrices],
            ridge=self.pseudo.ridge,
        )
        members, tasks = [self.members[b] for b in kept], [self.tasks[b] for b in kept]
        return Together(members, tasks, self.stack.members(kept), pseudo)


def run_together(
    structure: Structure, tasks: Sequence[Task], rows: Source, max_iter: int, tol: float
) -> list[FitResult]:
    """What `run` gives for each task alone, to rounding, with one pass over the rows per iteration for all.

    A member that has converged leaves the stack, and the passes after it are cheaper.

    Arguments:
        tasks: with the same frame, floor, ridge and class probabilities; they may start with unlike numbers of
            components, and have unlike priors.
        rows: with a column of counts for the tasks to name; without counts every task sees every row once.
    """
    results: list[FitResult | None] = [None] * len(tasks)
    histories: list[list[Record]] = [[] for _ in tasks]
    repairs: list[dict[str, None]] = [{} for _ in tasks]
    previous = [-float("inf")] * len(tasks)
    together = Together.of(structure, tasks)
    weights = torch.tensor([task.weight for task in tasks], dtype=torch.float64)
    start = time.perf_counter()

    def settle(position: int, outcome: Outcome) -> None:
        number = together.members[position]
        mixture = together.stack.member(position)
        results[number] = FitResult(mixture, outcome, tuple(histories[number]), tuple(repairs[number]))

    outcome = Outcome.LIMIT
    try:
        for iteration in range(1, max_iter + 1):
            values = (together.step(rows)[0].cpu() / weights[together.members]).tolist()
            done = []
            for position, (number, mended) in enumerate(zip(together.members, together.repaired(), strict=True)):
                value = values[position]
                _check(value, mended and tasks[number].solver.strict, iteration, number)
                change = value - previous[number]
                histories[number].append(Record(iteration, value, change, time.perf_counter() - start))
                previous[number] = value
                if mended:
                    repairs[number]["a covariance was not positive definite; a multiple of its diagonal was added"] = (
                        None
                    )
                if abs(change) < tol:
                    settle(position, Outcome.CONVERGED)
                    done.append(position)
            if len(done) == len(together.members):
                return [result for result in results if result is not None]
            together = together.without(done) if done else together
    except KeyboardInterrupt:
        outcome = Outcome.INTERRUPTED
    for position in range(len(together.members)):
        settle(position, outcome)
    return [result for result in results if result is not None]


def _check(value: float, ill_defined: bool, iteration: int, number: int) -> None:
    if ill_defined:
        raise ValueError(ILL_DEFINED)
    if not -float("inf") < value < float("inf"):
        raise FloatingPointError(
            f"the objective became {value} at iteration {iteration} of member {number}; the input may hold values too "
            "large to square, or a component may have collapsed"
        )
