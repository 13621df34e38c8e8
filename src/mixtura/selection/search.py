"""Choosing the number of clusters and the prior of a density.

All candidates are trained together, as members of one stack (solvers/batched_em.py): a fold or a bootstrap replicate is
a column of counts of the rows, a penalty is a prior of the member. The path begins with many components; after every
level the cheapest pair of each member is merged, so that the next level starts close to where it ends. Elongated
clusters, which k-means cuts into pieces, are put together again on the way down (selection-path).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mixtura import checks
from mixtura.engine.passes import map_rows
from mixtura.engine.sources import TensorSource
from mixtura.init.description import Description, describe
from mixtura.init.starts import starting_mixture
from mixtura.model.mixture import Mixture
from mixtura.priors import PRIORS, Shrinkage, default_strength
from mixtura.roles import Outlook, Prior, Structure
from mixtura.selection.folds import sample_of
from mixtura.selection.merging import one_fewer
from mixtura.selection.plan import OTHER_PRIORS, is_auto
from mixtura.selection.table import ScoredCandidate, SearchTable
from mixtura.solvers import Outcome, Problem, Stack, Task, first_update, run_together

CRITERIA = ("held_out", "out_of_bag", "bic", "icl")
LARGEST = 10  # components per class at the start of the path
ROWS_PER_COMPONENT = 5  # fewer rows than this for each do not begin with so many
N_FOLDS = 5
N_REPLICATES = 10  # bootstrap replicates of "out_of_bag"
# Rows that candidates are compared on; more would not change the choice, only the time it takes.
SELECTION_ROWS = 20_000
SCORED_ROWS = 8_192
# Candidates need not be at their maximum to be compared, and the next level starts from them anyway.
PATH_TOL = 1e-3
PATH_ITERATIONS = 40
# Maximum likelihood has no maximum: a component may shrink to a few equal values, and no criterion survives that.
# Without a prior, candidates have that of Fraley and Raftery (2007), D + 2 pseudo-samples of the expected variances.
REGULAR = 2.0


def penalties(n_features: int, dense: bool = True) -> list[Shrinkage]:
    """The ten priors that "auto" compares, from weak to strong.

    The default prior weaker and stronger; one wide pseudo-observation, the penalty of OT95; and strong ones towards the
    covariance of the classes, which pull the means as well. Where structures do not follow a whole covariance
    (dense=False), its variances take its place.
    """
    unit, target = default_strength(n_features), "covariance" if dense else "expected"
    usual = [Shrinkage(factor * unit) for factor in (0.25, 1.0, 4.0)]
    wide = [Shrinkage(1.0, scale, "pooled") for scale in (0.05, 0.2, 0.8)]
    strong = [Shrinkage(factor * unit, variances=target, mean_strength=5.0) for factor in (1.0, 4.0, 16.0, 64.0)]
    return [*usual, *wide, *strong]


@dataclass(frozen=True)
class Selection:
    """What was compared, and the best candidate fitted to all samples."""

    table: SearchTable
    start: Mixture = field(repr=False)


@dataclass(frozen=True)
class Ground:
    """What candidates are compared on.

    Parameters
    ----------
    problem : Problem
        Of all samples, without a prior.
    method : str
        Of the start, as in `starting_mixture`.
    """

    problem: Problem
    n_classes: int
    structure: Structure
    method: str
    generator: torch.Generator


@dataclass(frozen=True)
class _Column:
    """Rows that some members see: what they look like, their weight and the column of counts."""

    number: int
    description: Description
    weight: float


@dataclass(frozen=True)
class _Level:
    """One number of components: scores of all priors, and the fits to all rows."""

    n_components: list[int]
    unseen: Tensor | None  # log p(x, c) by members that did not see the row, (P, C, n)
    seen: Tensor | None  # log p(x, c) by members that saw all rows, and entropies of the components, (2, P, C, n)
    fits: list[Mixture]  # one for each prior


def choose(ground: Ground, priors: Sequence[Any], n_components: Sequence[int] | None, criterion: str) -> Selection:
    """The best of all combinations of priors and numbers of components.

    Parameters
    ----------
    priors : sequence of Shrinkage, Prior or None
        Priors to compare.
    n_components : list of int or None
        Number of components of each class; None compares from many down to one.
    criterion : {"held_out", "out_of_bag", "bic", "icl"}
        Selection criterion; the first two are minus the log density of held-out or out-of-bag samples.
    """
    checks.one_of("criterion", criterion, CRITERIA)
    began = time.perf_counter()
    rows, columns = _prepared(ground, criterion)
    levels = _walk(ground, rows, columns, list(priors), n_components, criterion)
    return _chosen(ground, rows, levels, list(priors), criterion, began)


def _prepared(ground: Ground, criterion: str) -> tuple[TensorSource, list[_Column]]:
    """The rows to compare on with their counts, and what the members of every column see; all rows come last."""
    rows, labels, shares, weights = sample_of(ground.problem.source, ground.generator, SELECTION_ROWS)
    strata = labels if labels is not None else torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    counts = _counts(strata, criterion, ground.generator)
    if criterion not in ("bic", "icl"):
        checks.rows_to_hold_out(bool((counts[:, :-1] == 0).any()), "choose with criterion='bic'")
    columns = []
    for number in range(counts.shape[1]):
        own = counts[:, number].to(torch.float64)
        seen = TensorSource(rows, labels, shares, own if weights is None else own * weights)
        description = describe(seen, ground.n_classes, ground.generator)
        columns.append(_Column(number, description, description.weight))
    return TensorSource(rows, labels, shares, weights, counts), columns


def _counts(strata: Tensor, criterion: str, generator: torch.Generator) -> Tensor:
    """How often each column sees each row, (n, F + 1); the last one sees all once."""
    n_rows = len(strata)
    every = torch.ones(n_rows, 1, dtype=torch.int16)
    if criterion in ("bic", "icl"):
        return every.to(strata.device)
    n_columns = N_REPLICATES if criterion == "out_of_bag" else N_FOLDS
    counts = torch.zeros(n_rows, n_columns, dtype=torch.int16)
    for stratum in strata.unique().tolist():
        rows = (strata.cpu() == stratum).nonzero()[:, 0]
        if criterion == "out_of_bag":
            drawn = torch.randint(len(rows), (n_columns, len(rows)), generator=generator)
            for number in range(n_columns):
                counts[rows, number] = drawn[number].bincount(minlength=len(rows)).to(torch.int16)
        else:
            order = rows[torch.randperm(len(rows), generator=generator)]
            folds = torch.arange(len(rows)) % n_columns
            counts[order] = (folds.unsqueeze(-1) != torch.arange(n_columns)).to(torch.int16)
            if len(rows) == 1:  # seen by all: a class must not vanish
                counts[order] = 1
    return torch.cat((counts, every), 1).to(strata.device)


def _walk(
    ground: Ground,
    rows: TensorSource,
    columns: list[_Column],
    priors: list[Any],
    n_components: Sequence[int] | None,
    criterion: str,
) -> list[_Level]:
    sizes = [len(held) for held, _ in columns[-1].description.samples[: ground.n_classes]]
    largest = [max(1, min(LARGEST, size // ROWS_PER_COMPONENT)) for size in sizes]
    counts = largest if n_components is None else [min(k, size) for k, size in zip(n_components, sizes, strict=True)]
    mixtures = [start for column in columns for start in [_start(ground, column, counts, priors)] * len(priors)]
    levels: list[_Level] = []
    while True:
        tasks = _tasks(ground, columns, priors, counts, mixtures)
        results = run_together(ground.structure, tasks, rows, PATH_ITERATIONS, PATH_TOL)
        if any(result.outcome is Outcome.INTERRUPTED for result in results):
            raise KeyboardInterrupt
        stack = Stack.of(ground.structure, [result.mixture for result in results])
        levels.append(_scored(ground, rows, stack, len(priors), counts, criterion))
        if n_components is not None or max(counts) == 1:
            return levels
        fewer = max(counts) - 1
        counts = [min(k, fewer) for k in counts]
        mixtures = one_fewer(stack, counts)


def _tasks(
    ground: Ground, columns: list[_Column], priors: list[Any], n_components: list[int], mixtures: list[Mixture]
) -> list[Task]:
    """Every prior on every column, in the units of what its members see."""
    tasks = []
    for column in columns:
        outlook = column.description.outlook(n_components)
        for prior in priors:
            problem = replace(ground.problem, prior=_made(prior, outlook))
            tasks.append(Task(problem, mixtures[len(tasks)], column.weight, column.number))
    return tasks


def _made(prior: Any, outlook: Outlook) -> Prior:
    if isinstance(prior, str):
        return PRIORS[prior](outlook)
    if prior is None:
        prior = Shrinkage(REGULAR + len(outlook.pooled))
    return prior.prior(outlook) if isinstance(prior, Shrinkage) else prior


def _start(ground: Ground, column: _Column, n_components: list[int], priors: list[Any]) -> Mixture:
    """The start of the members of a column, the same for all priors."""
    rough, assigned = starting_mixture(
        column.description, ground.structure, n_components, ground.method, ground.generator
    )
    middle = _made(priors[len(priors) // 2], column.description.outlook(n_components))
    return first_update(rough, assigned, replace(ground.problem, prior=middle))


def _scored(
    ground: Ground, rows: TensorSource, stack: Stack, n_priors: int, n_components: list[int], criterion: str
) -> _Level:
    (block,) = rows.blocks()
    assert block.counts is not None
    n_columns = block.counts.shape[1]
    fits = [stack.member(b) for b in range((n_columns - 1) * n_priors, n_columns * n_priors)]
    scored = []
    for part in torch.arange(len(block.rows), device=block.rows.device).split(SCORED_ROWS):
        if criterion in ("bic", "icl"):
            chunk = Stack.of(ground.structure, fits)
            scores = _mapped(ground, chunk, block.rows[part], with_entropies=True)  # (2, C, P, n)
            scored.append(scores.transpose(1, 2))
        else:
            scores = _mapped(ground, stack, block.rows[part], with_entropies=False)[0]  # (C, F * P, n)
            scores = scores.unflatten(1, (n_columns, n_priors))[:, :-1]  # (C, F, P, n)
            unseen = (block.counts[part, :-1] == 0).T  # (F, n)
            sums = scores.masked_fill(~unseen.unsqueeze(1), -torch.inf).logsumexp(1)  # (C, P, n)
            scored.append((sums - unseen.sum(0).log()).transpose(0, 1))
    whole = torch.cat(scored, -1)
    held_out = criterion not in ("bic", "icl")
    return _Level(n_components, whole if held_out else None, None if held_out else whole, fits)


def _mapped(ground: Ground, stack: Stack, rows: Tensor, with_entropies: bool) -> Tensor:
    """log p_b(x, c), and the entropies of the components given x and c: (1 or 2, C, B, n)."""
    slices, n_members = stack.mixture.class_slices, stack.n_members

    def compute(log_joint: Tensor) -> Tensor:
        totals, entropies = [], []
        for part in slices:
            joints = log_joint[part].unflatten(0, (n_members, -1))  # (B, k, n)
            total = joints.logsumexp(1)
            totals.append(total)
            if with_entropies:
                shares = (joints - total.unsqueeze(1)).nan_to_num(neginf=-1e4)
                entropies.append(-(shares.exp() * shares).sum(1))
        kinds = [totals, entropies] if with_entropies else [totals]
        return torch.stack([torch.stack(kind) for kind in kinds]).permute(3, 0, 1, 2)

    return map_rows(stack.mixture, TensorSource(rows), compute, ground.problem.memory_limit).permute(1, 2, 3, 0)


def _chosen(
    ground: Ground, rows: TensorSource, levels: list[_Level], priors: list[Any], criterion: str, began: float
) -> Selection:
    (block,) = rows.blocks()
    judge = _Judge(block.weights, criterion)
    pairs = [(level, p) for level in levels for p in range(len(priors))]
    seconds = (time.perf_counter() - began) / len(pairs)
    candidates = [
        ScoredCandidate({"n_components": level.n_components[0], "prior": priors[p]}, *judge.score(level, p), seconds)
        for level, p in pairs
    ]
    best = min(range(len(pairs)), key=lambda number: candidates[number].score)
    level, p = pairs[best]
    return Selection(SearchTable(criterion, candidates, best), level.fits[p])


@dataclass(frozen=True)
class _Judge:
    """The criterion, from what the levels hold."""

    weights: Tensor | None
    criterion: str

    def score(self, level: _Level, p: int) -> tuple[float, float]:
        """The criterion and its standard error, both per sample."""
        if self.criterion in ("bic", "icl"):
            return self._information(level, p), 0.0
        assert level.unseen is not None
        return self.mean(-level.unseen[p, 0])

    def mean(self, values: Tensor) -> tuple[float, float]:
        """Weighted mean and standard error over the samples that have a value."""
        known = values.isfinite()
        weights = torch.ones_like(values) if self.weights is None else self.weights.to(values.dtype)
        weights, values = weights[known], values[known]
        total = weights.sum()
        mean = (weights * values).sum() / total
        variance = (weights * (values - mean).square()).sum() / total
        size = total.square() / weights.square().sum()
        return float(mean), float((variance / size.clamp_min(1)).sqrt())

    def _information(self, level: _Level, p: int) -> float:
        """BIC or ICL per sample (information-criteria)."""
        assert level.seen is not None
        likelihood, entropy = level.seen[:, p, 0]
        weights = torch.ones_like(likelihood) if self.weights is None else self.weights.to(likelihood.dtype)
        total, weight = -2 * float(weights @ likelihood), float(weights.sum())
        total += 2 * float(weights @ entropy) if self.criterion == "icl" else 0.0
        return (total + level.fits[p].n_parameters * math.log(weight)) / weight


def wanted_criterion(value: Any, usual: str) -> str:
    """The criterion that an argument asks for."""
    return usual if is_auto(value) else checks.one_of("criterion", value, CRITERIA, ', or "auto"')


def wanted_priors(value: Any, structure: Structure, n_features: int) -> list[Any]:
    """The priors that are compared: many where the argument is "auto", otherwise the one that it asks for."""
    if is_auto(value):
        # A whole covariance matrix is a target only for structures that can follow it.
        return list(penalties(n_features, dense=structure.is_unrestricted))
    if not isinstance(value, Prior | Shrinkage | None):
        checks.one_of("prior", value, PRIORS, OTHER_PRIORS)
    return [value]
