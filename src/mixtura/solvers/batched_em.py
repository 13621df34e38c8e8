"""EM for many mixtures of the same rows, with one pass per iteration for all of them.

The monomials of a row are computed once, and one large matrix product replaces many small ones. A bootstrap replicate,
a fold or a subset is a column of counts of the rows; each mixture may have its own prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from mixtura.engine.passes import summarise
from mixtura.engine.sources import Source
from mixtura.engine.threads import threads_for
from mixtura.files.checkpoints import next_loop
from mixtura.files.registry import device_of, on_device
from mixtura.model.mixture import Mixture
from mixtura.objectives import Members
from mixtura.priors import log_terms
from mixtura.roles import Structure
from mixtura.solvers.em import EM, ILL_DEFINED
from mixtura.solvers.loop import FitResult, Outcome, Progress, RunRecords
from mixtura.solvers.problem import Problem
from mixtura.values.moments import PseudoMoments

REPAIRED = "a covariance was not positive definite; a multiple of its diagonal was added"


@dataclass(frozen=True)
class MemberFit:
    """The fit of one of several mixtures (members) that are trained together.

    Parameters
    ----------
    problem : Problem
        The problem of the member.
    start : Mixture
        Initial mixture.
    weight : float
        Total weight of the samples of the member.
    column : int, default=0
        Column of the sample counts that belongs to the member.
    """

    problem: Problem
    start: Mixture
    weight: float  # total, of its samples
    column: int = 0  # of the counts of the samples


@dataclass(frozen=True)
class Stack:
    """Several mixtures as one, with components sorted by class, then by member.

    Parameters
    ----------
    structure : Structure
        Structure of the covariances.
    mixture : Mixture
        All components; the weights of each member sum to one.
    member_of : Tensor of shape (n_components,)
        Member of each component.
    n_members : int
        Number of mixtures.
    """

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
        return self.mixture.part((self.member_of == b).nonzero()[:, 0])

    def members(self, kept: Sequence[int]) -> Stack:
        """Some of the mixtures, as one."""
        numbers = torch.full((self.n_members,), -1, device=self.member_of.device)
        numbers[list(kept)] = torch.arange(len(kept), device=numbers.device)
        chosen = (numbers[self.member_of] >= 0).nonzero()[:, 0]
        return Stack(self.structure, self.mixture.part(chosen), numbers[self.member_of[chosen]], len(kept))

    def normalised(self, mixture: Mixture, class_prior: Tensor | None) -> Mixture:
        """Normalise the weights to sum to one in every member, or to the given class probabilities in its classes."""
        if class_prior is None:
            return replace(mixture, log_weights=mixture.log_weights - self._totals(mixture, self.member_of))
        pairs = self.member_of * mixture.n_classes + mixture.class_of
        shares = mixture.log_weights - self._totals(mixture, pairs)
        kept = self.mixture.log_weights - self._totals(self.mixture, pairs)  # for a class without rows in a member
        shares = torch.where(shares.isnan(), kept, shares)
        return replace(mixture, log_weights=shares + class_prior.log()[mixture.class_of])

    def _totals(self, mixture: Mixture, groups: Tensor) -> Tensor:
        """log of the summed weights of the group of each component, (K,)."""
        weights = mixture.log_weights.exp()
        return weights.new_zeros(int(groups.max()) + 1).index_add_(0, groups, weights).log()[groups]


def _stacked_pseudo(stack: Stack, problems: Sequence[Problem]) -> PseudoMoments:
    """The pseudo-moments of every member's own prior."""
    parts = [problem.pseudo_moments for problem in problems]
    of_component, of_matrix = stack.member_of, stack.matrix_member
    means = [part.mean.expand(len(places), -1) for part, places in zip(parts, stack.places, strict=True)]
    prior_means = torch.empty_like(stack.mixture.means)
    prior_means[torch.cat(stack.places)] = torch.cat(means)
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
        mean=prior_means,
        scatter=torch.stack(scatters)[of_matrix],
        ridge=parts[0].ridge,
    )


@dataclass(frozen=True)
class JointMembers:
    """Several tasks as one problem of EM, with their current mixtures and the pseudo-moments of all their priors."""

    tasks: tuple[MemberFit, ...]
    stack: Stack
    problem: Problem
    pseudo: PseudoMoments

    @classmethod
    def of(cls, structure: Structure, tasks: Sequence[MemberFit], rows: Source) -> JointMembers:
        stack = Stack.of(structure, [task.start for task in tasks])
        pseudo = _stacked_pseudo(stack, [task.problem for task in tasks])
        return cls._with(tuple(tasks), stack, pseudo, replace(tasks[0].problem, source=rows))

    @classmethod
    def _with(cls, tasks: tuple[MemberFit, ...], stack: Stack, pseudo: PseudoMoments, like: Problem) -> JointMembers:
        columns = torch.tensor([task.column for task in tasks], device=stack.member_of.device)
        objective = Members(stack.member_of, columns)
        return cls(tasks, stack, replace(like, objective=objective, prior=None, class_prior=None), pseudo)

    @cached_property
    def weights(self) -> Tensor:
        return torch.tensor([task.weight for task in self.tasks], dtype=torch.float64)

    def log_priors(self) -> Tensor:
        """Log prior of every member, (B,)."""
        of_components, of_matrices = log_terms(self.pseudo, self.stack.mixture)
        totals = torch.zeros(len(self.tasks), dtype=torch.float64, device=of_components.device)
        totals.index_add_(0, self.stack.member_of, of_components)
        return totals.index_add_(0, self.stack.matrix_member, of_matrices)

    def step(self, em: EM) -> tuple[JointMembers, list[float], list[bool]]:
        """Update all members; their values before the update, and which of them have a repaired covariance then."""
        problem, mixture = self.problem, self.stack.mixture
        summary = summarise(
            mixture, problem.source, problem.objective, problem.frame, problem.memory_limit, problem.buffers
        )
        seen = torch.as_tensor(summary.value)[: len(self.tasks)]
        with threads_for(len(mixture.means) * float(mixture.means.shape[1]) ** 3):
            values = (seen + self.log_priors()).cpu() / self.weights
            updated = self.moved(em.m_step(problem, mixture, summary.moments, self.pseudo))
        repaired = updated.repaired()
        if em.strict and any(repaired):
            raise ValueError(ILL_DEFINED)
        return updated, values.tolist(), repaired

    def moved(self, mixture: Mixture) -> JointMembers:
        """Return the same tasks with other mixtures."""
        normalised = self.stack.normalised(mixture, self.tasks[0].problem.class_prior)
        return replace(self, stack=replace(self.stack, mixture=normalised))

    def repaired(self) -> list[bool]:
        """The members with a repaired covariance."""
        repaired = self.stack.mixture.covariance.repaired
        if not bool(repaired.any()):
            return [False] * len(self.tasks)
        return [bool(repaired[places].any()) for places in self.stack.places]

    def without(self, positions: Sequence[int]) -> JointMembers:
        """Return the other members."""
        kept = sorted(set(range(len(self.tasks))).difference(positions))
        gone = torch.zeros(len(self.tasks), dtype=torch.bool, device=self.stack.member_of.device)
        gone[list(positions)] = True
        components, matrices = ~gone[self.stack.member_of], ~gone[self.stack.matrix_member]
        before = self.pseudo
        pseudo = PseudoMoments(
            weight_count=torch.as_tensor(before.weight_count)[components],
            mean_count=torch.as_tensor(before.mean_count)[components],
            covariance_count=torch.as_tensor(before.covariance_count)[matrices],
            mean=before.mean[components],
            scatter=before.scatter[matrices],
            ridge=before.ridge,
        )
        return self._with(tuple(self.tasks[b] for b in kept), self.stack.members(kept), pseudo, self.problem)


def run_together(
    structure: Structure, tasks: Sequence[MemberFit], rows: Source, max_iter: int, tol: float, solver: EM | None = None
) -> list[FitResult]:
    """Fit several mixtures together, with one pass over the samples per iteration.

    The results equal those of separate calls of `run`, up to rounding. Converged mixtures are not updated any more, so
    later steps are cheaper.

    Parameters
    ----------
    structure : Structure
        Structure of the covariances.
    tasks : sequence of MemberFit
        Fits with the same frame, floor and class probabilities; numbers of components and priors may differ.
    rows : Source
        Samples, with the columns of counts that the tasks refer to; without counts every sample counts once.
    max_iter : int
        Maximum number of iterations.
    tol : float
        Convergence threshold of the change of the objective per sample.
    solver : EM, optional
        The solver.

    Returns
    -------
    results : list of FitResult
    """
    em, starting = solver or EM(), list(tasks)
    records = [RunRecords(em.name) for _ in tasks]
    results: list[FitResult[Mixture] | None] = [None] * len(records)
    outcome, journal = Outcome.LIMIT, next_loop(em.name)
    for number, part in enumerate(journal.read(tuple) or ()):
        device = device_of(tasks[number].start)
        records[number].resume(part, device)
        mixture = on_device(part.model, device)
        starting[number] = replace(tasks[number], start=mixture)
        if part.outcome == Outcome.CONVERGED.name:
            results[number] = records[number].result(mixture, Outcome.CONVERGED)
    members = [number for number, result in enumerate(results) if result is None]
    n_steps = len(records[members[0]].history) if members else max_iter
    state = JointMembers.of(structure, [starting[b] for b in members or range(len(records))], rows)
    try:
        for iteration in range(n_steps + 1, max_iter + 1):
            state, values, repaired = state.step(em)
            done = []
            for position, (number, value, repair) in enumerate(zip(members, values, repaired, strict=True)):
                record = records[number].add(value, (REPAIRED,) if repair else (), f", member {number}")
                if abs(record.change) < tol:
                    results[number] = records[number].result(state.stack.member(position), Outcome.CONVERGED)
                    done.append(position)
            journal.show(sum(values) / len(members), max(records[number].history[-1].change for number in members))
            left = [number for number in members if results[number] is None]
            state, members = state.without(done) if done and left else state, left
            ended = not left or iteration == max_iter
            journal.write(partial(_progress, state, members, records, results), ended)
            if not left:
                break
    except KeyboardInterrupt:
        outcome = Outcome.INTERRUPTED
    for position, number in enumerate(members):
        results[number] = records[number].result(state.stack.member(position), outcome)
    return [result for result in results if result is not None]


def _progress(
    state: JointMembers, members: list[int], all_records: list[RunRecords], results: list[FitResult[Mixture] | None]
) -> tuple[Progress, ...]:
    """The progress of all members, those in training and those that have converged."""
    in_training = {number: state.stack.member(position) for position, number in enumerate(members)}
    return tuple(
        records.progress(None, in_training[number], Outcome.LIMIT)
        if result is None
        else records.progress(None, result.mixture, result.outcome)
        for number, (records, result) in enumerate(zip(all_records, results, strict=True))
    )
