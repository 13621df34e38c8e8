"""Selection of the number of components and the prior of a density (GaussianMixture).

All candidates are trained together (solvers/batched_em.py): a fold or a bootstrap replicate is a column of counts of
the rows, and every member has its own prior. The path starts with many components. After every level the pair of
components with the smallest merge loss is merged, which initialises the next level close to its solution. Elongated
clusters, which k-means splits into pieces, are joined again in this way (selection-path).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import cast

import torch
from torch import Tensor

from mixtura import checks
from mixtura.engine.passes import map_rows
from mixtura.engine.sources import TensorSource
from mixtura.init.description import Description, describe
from mixtura.init.starts import starting_mixture
from mixtura.model.mixture import Mixture
from mixtura.priors import Shrinkage, default_strength
from mixtura.roles import Structure
from mixtura.selection.merging import one_fewer
from mixtura.selection.scores import mean_and_error
from mixtura.selection.search import Search, Trial, check_complete
from mixtura.selection.splits import Grouped, hold_outs, regroup, sample_of
from mixtura.selection.task import PriorChoice, Selected, Task, is_auto, make_prior
from mixtura.solvers import EM, MemberFit, Problem, Stack, first_update, run_together

INFORMATION = ("bic", "icl")  # criteria that need no held-out samples
CRITERIA = ("held_out", "out_of_bag", *INFORMATION)
LARGEST = 10  # number of components at the start of the path
ROWS_PER_COMPONENT = 5  # at least, at the start of the path
N_FOLDS = 5
N_REPLICATES = 10  # bootstrap replicates of "out_of_bag"
# Number of rows on which candidates are compared; more rows take longer without changing the choice.
SELECTION_ROWS = 20_000
# Candidates need not be fully converged to be compared, and the next level is initialised with them.
PATH_TOL = 1e-3
PATH_ITERATIONS = 40
REFIT_SHARE = (
    0.1  # largest share of the fits of a search that its best candidate may be fitted again for outlier scores
)
# The likelihood is unbounded: a component may collapse onto a few equal values, and every criterion prefers that.
# Candidates without a prior therefore get that of Fraley and Raftery (2007): D + 2 pseudo-samples of the expected
# variances.
REGULAR = 2.0


def penalties(n_features: int, dense: bool = True) -> list[Shrinkage]:
    """The ten priors that "auto" compares, from weak to strong.

    They are the default prior at several strengths, the penalty of OT95 (one pseudo-observation of large variance), and
    strong priors towards the covariance of the classes and their means. If a structure cannot represent a full
    covariance (dense=False), the target is diagonal.
    """
    unit, target = default_strength(n_features), "covariance" if dense else "expected"
    usual = [Shrinkage(factor * unit) for factor in (0.25, 1.0, 4.0)]
    wide = [Shrinkage(1.0, scale, "pooled") for scale in (0.05, 0.2, 0.8)]
    strong = [Shrinkage(factor * unit, variances=target, mean_strength=5.0) for factor in (1.0, 4.0, 16.0, 64.0)]
    return [*usual, *wide, *strong]


@dataclass(frozen=True)
class ComponentSearch:
    """Selects the number of components and the prior of a density.

    Parameters
    ----------
    prior : object
        "auto", or the prior of all candidates.
    n_components : int or None
        Number of components; None compares all numbers on the path.
    criterion : {"held_out", "out_of_bag", "bic", "icl"}
        Selection criterion; the first two are the negative log density of held-out or out-of-bag samples.
    generator : torch.Generator
        Random numbers for subsampling, folds and initialisation.
    """

    prior: PriorChoice
    n_components: int | None
    criterion: str
    generator: torch.Generator

    def run(self, task: Task) -> Selected[Task]:
        """Select a prior and a number of components; the task has no prior yet."""
        checks.has_update(task.structure.name, task.structure.has_update)
        priors = wanted_priors(self.prior, task.structure, task.source.n_features)
        problem = replace(task.problem, ridge=0.0)
        search: Search[Mixture] = Search(checks.one_of("criterion", self.criterion, CRITERIA))
        path = ComponentPath(problem, task.structure, priors, search, self.generator, regroup(task.cv, N_FOLDS))
        search.run(lambda: path.walk(self.n_components))
        best, folds = search.best, []
        if not search.interrupted:
            search.run(lambda: folds.extend(path.folds(best)))
        prior, count = settings_of(best)
        counts = [count]
        prior = make_prior(prior, task.description, counts)
        task = replace(task, n_components=counts, prior=prior, solver=EM(strict=prior is None)).from_fit(best.fit)
        results = (task.interrupted(),) if search.interrupted else ()
        return Selected((task,), search.table(best), results, folds=folds)


class ComponentPath:
    """All priors with decreasing numbers of components."""

    def __init__(
        self,
        problem: Problem,
        structure: Structure,
        priors: Sequence[PriorChoice],
        search: Search[Mixture],
        generator: torch.Generator,
        cv: object = N_FOLDS,
    ):
        self.problem, self.structure, self.priors, self.search = problem, structure, priors, search
        sample, cv = sample_of(problem.source, generator, SELECTION_ROWS, cv)
        rows, weights = sample.rows, sample.weights
        self.counts = counts_of(search.criterion, len(rows), weights, generator, rows.device, cv)
        if search.criterion not in INFORMATION:
            checks.rows_to_hold_out(bool((self.counts[:, :-1] == 0).any()), "choose with criterion='bic'")
        self.rows = TensorSource(rows, weights=weights, counts=self.counts)
        self.weights = torch.ones(len(rows), dtype=torch.float64, device=rows.device) if weights is None else weights
        self.columns: list[Description] = []  # of the training rows of each column of counts
        for count in self.counts.T.to(torch.float64):
            description = describe(TensorSource(rows, weights=count * self.weights), 1, generator)
            self.columns.append(description)
        self.generator, self.stack = generator, None

    def walk(self, n_components: int | None) -> None:
        """Fit all numbers of components on the path; each level starts from the previous one with components merged."""
        size = len(self.columns[-1].samples[0][0])
        count = max(1, min(LARGEST, size // ROWS_PER_COMPONENT)) if n_components is None else min(n_components, size)
        starts = [start for column in self.columns for start in [self._start(column, count)] * len(self.priors)]
        self.search.try_together(partial(self._level, count, starts))
        while n_components is None and count > 1:
            count -= 1
            assert self.stack is not None
            starts = one_fewer(self.stack, [count])
            self.search.try_together(partial(self._level, count, starts))

    def folds(self, best: Trial[Mixture]) -> list[tuple[Mixture, TensorSource]]:
        """Fits of the best candidate without some rows, and those; none if they are many beside the search."""
        columns, (prior, count) = self.columns[:-1], settings_of(best)
        if len(columns) > REFIT_SHARE * len(self.search.trials) * len(self.columns):
            return []
        members = [
            MemberFit(self._with_prior(prior, column, count), self._start(column, count), column.weight, number)
            for number, column in enumerate(columns)
        ]
        results = run_together(self.structure, members, self.rows, PATH_ITERATIONS, PATH_TOL) if members else []
        check_complete(*results)
        (block,) = self.rows.blocks()
        unseen = [TensorSource(block.rows[self.counts[:, number] == 0]) for number in range(len(columns))]
        return [(result.mixture, source) for result, source in zip(results, unseen, strict=True)]

    def _level(self, n_components: int, starts: list[Mixture]) -> list[Trial[Mixture]]:
        """The trials of all priors with one number of components."""
        members = [
            MemberFit(self._with_prior(prior, column, n_components), starts[b], column.weight, number)
            for b, ((number, column), prior) in enumerate(product(enumerate(self.columns), self.priors))
        ]
        results = run_together(self.structure, members, self.rows, PATH_ITERATIONS, PATH_TOL)
        check_complete(*results)
        self.stack = Stack.of(self.structure, [result.mixture for result in results])
        fits = [result.mixture for result in results[-len(self.priors) :]]  # to all rows
        scores = self._information(fits) if self.search.criterion in INFORMATION else self._held_out(self.stack)
        return [
            Trial({"n_components": n_components, "prior": prior}, *score, fit)
            for prior, score, fit in zip(self.priors, scores, fits, strict=True)
        ]

    def _start(self, column: Description, n_components: int) -> Mixture:
        """The initial mixture of the members of a column, the same for all priors."""
        rough, assigned = starting_mixture(column, self.structure, [n_components], "kmeans", self.generator)
        middle = self.priors[len(self.priors) // 2]
        return first_update(rough, assigned, self._with_prior(middle, column, n_components))

    def _with_prior(self, prior: PriorChoice, column: Description, n_components: int) -> Problem:
        """The problem with a prior scaled to the training rows of a column."""
        if prior is None:
            prior = Shrinkage(REGULAR + self.problem.source.n_features)
        return replace(self.problem, prior=make_prior(prior, column, [n_components]))

    def _held_out(self, stack: Stack) -> list[tuple[float, float]]:
        """Mean negative log density of held-out rows and its standard error, for every prior."""
        unseen = (self.counts[:, :-1] == 0).T.unsqueeze(1)  # (F, 1, n)
        (log_densities,) = self._mapped(stack, lambda joints: [joints.logsumexp(1)])  # (F * P, n)
        of_folds = log_densities.unflatten(0, (-1, len(self.priors)))[:-1]  # (F, P, n)
        sums = of_folds.masked_fill(~unseen, -torch.inf).logsumexp(0) - unseen.sum(0).log()  # (P, n)
        known = unseen[:, 0].any(0)  # false for a row that is in all bootstrap replicates
        return [mean_and_error(-part[known], self.weights[known]) for part in sums]

    def _information(self, fits: list[Mixture]) -> list[tuple[float, float]]:
        """BIC or ICL per sample (information-criteria), for every prior."""
        total = float(self.weights.sum())
        stack = Stack.of(self.structure, fits)
        log_densities, entropies = self._mapped(stack, _densities_and_entropies) @ self.weights  # (P,)
        values = -2 * log_densities + (2 * entropies if self.search.criterion == "icl" else 0)
        sizes = [fit.n_parameters * math.log(total) for fit in fits]
        return [((float(value) + size) / total, 0.0) for value, size in zip(values, sizes, strict=True)]

    def _mapped(self, stack: Stack, compute: Callable[[Tensor], Sequence[Tensor]]) -> Tensor:
        """Apply `compute` to the log joints of every member, (B, k, n) -> M x (B, n), for all rows: (M, B, n)."""

        def of_members(log_joint: Tensor) -> Tensor:
            return torch.stack(list(compute(log_joint.unflatten(0, (stack.n_members, -1))))).permute(2, 0, 1)

        return map_rows(stack.mixture, self.rows, of_members, self.problem.memory_limit).double().permute(1, 2, 0)


def settings_of(trial: Trial[Mixture]) -> tuple[PriorChoice, int]:
    """The prior and the number of components of a trial."""
    return cast("PriorChoice", trial.what["prior"]), cast("int", trial.what["n_components"])


def _densities_and_entropies(joints: Tensor) -> tuple[Tensor, Tensor]:
    """Log densities, and the entropies of the components given a sample."""
    total = joints.logsumexp(1)
    shares = (joints - total.unsqueeze(1)).nan_to_num(neginf=-1e4)
    return total, -(shares.exp() * shares).sum(1)


def counts_of(
    criterion: str,
    n_rows: int,
    weights: Tensor | None,
    generator: torch.Generator,
    device: torch.device,
    cv: object = N_FOLDS,
) -> Tensor:
    """Counts of each row in the training sets of the folds or replicates, (n, F + 1); all ones in the last column."""
    counts = torch.zeros(n_rows, 0, dtype=torch.int16)
    if criterion == "out_of_bag":
        units = cv.groups if isinstance(cv, Grouped) else torch.arange(n_rows)
        n_units = int(units.max()) + 1
        drawn = torch.randint(n_units, (N_REPLICATES, n_units), generator=generator)
        counts = torch.stack([replicate.bincount(minlength=n_units)[units] for replicate in drawn], 1)
    elif criterion == "held_out":
        one_class = torch.zeros(n_rows, dtype=torch.int64)
        parts = hold_outs(cv, one_class, generator, weights=weights)
        counts = torch.stack([part.kept for part in parts], 1) if parts else counts
    return torch.cat((counts.to(torch.int16), torch.ones(n_rows, 1, dtype=torch.int16)), 1).to(device)


def wanted_priors(value: PriorChoice, structure: Structure, n_features: int) -> Sequence[PriorChoice]:
    """The priors to compare: several if the argument is "auto", otherwise the given one."""
    if is_auto(value):
        # A full covariance matrix is a target only for structures that can represent it.
        return list(penalties(n_features, dense=structure.is_unrestricted))
    return [value]
