"""Choosing the number of components and the penalty from the training rows alone.

All candidates are trained together, as members of one stack (solvers/batched_em.py): a fold or a bootstrap replicate is
a column of counts of the rows, a penalty is a prior of the member. The path begins with many components; after every
level the cheapest pair of each member is merged, so that the next level starts close to where it ends. Elongated
clusters, which k-means cuts into pieces, are put together again on the way down (selection-path).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mixtura import checks
from mixtura.engine.passes import map_rows
from mixtura.engine.sources import Source, TensorSource
from mixtura.init.description import Description, describe
from mixtura.init.starts import starting_mixture
from mixtura.model.mixture import Mixture
from mixtura.priors import PRIORS, Shrinkage, default_strength
from mixtura.roles import Outlook, Prior, Structure
from mixtura.selection.merging import one_fewer
from mixtura.solvers import Outcome, Problem, Stack, Task, first_update, run_together
from mixtura.values.row_samples import RowSample, largest, uniform_keys
from mixtura.values.storable import storable

CRITERIA = ("log_loss", "held_out", "out_of_bag", "bic", "icl")
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
# Of the weights of an average of the candidates; more would only sharpen what few rows cannot tell.
STACKING_ITERATIONS = 300
# Maximum likelihood has no maximum: a component may shrink to a few equal values, and no criterion survives that.
# Without a prior, candidates have that of Fraley and Raftery (2007), D + 2 pseudo-samples of the expected variances.
REGULAR = 2.0


def penalties(n_features: int, dense: bool = True) -> list[Shrinkage]:
    """The ten priors that "auto" compares, from weak to strong.

    The default prior weaker and stronger; one pseudo-row that is wide, the penalty of OT95; and strong ones towards the
    covariance of the classes, which pull the means as well. Where structures do not follow a whole covariance
    (dense=False), its variances take its place.
    """
    unit, target = default_strength(n_features), "covariance" if dense else "expected"
    usual = [Shrinkage(factor * unit) for factor in (0.25, 1.0, 4.0)]
    wide = [Shrinkage(1.0, scale, "pooled") for scale in (0.05, 0.2, 0.8)]
    strong = [Shrinkage(factor * unit, variances=target, mean_strength=5.0) for factor in (1.0, 4.0, 16.0, 64.0)]
    return [*usual, *wide, *strong]


@storable("candidate")
@dataclass(frozen=True)
class Candidate:
    """Numbers of components of the classes, a prior, and the criterion (smaller is better) with its standard error.

    Its share is its weight in the average of all candidates that predicts the rows held out best (stacking).
    """

    n_components: tuple[int, ...]
    prior: Any
    score: float
    error: float
    share: float = 0.0


@storable("selection")
@dataclass(frozen=True)
class Selection:
    """What was compared, and what was chosen."""

    criterion: str
    candidates: tuple[Candidate, ...]
    best: Candidate
    start: Mixture = field(repr=False)  # the best candidate, fitted to all rows
    weight: float = 1.0  # of the rows that were compared on

    def of_rows(self, log_slope: float, n_parameters: int) -> Selection:
        """The same with scores of the rows, where they were those of warped features (warp).

        Arguments:
            log_slope: of the warp, the mean over the rows.
            n_parameters: of the warp.
        """
        price = n_parameters * math.log(self.weight) / self.weight
        shift = {"held_out": -log_slope, "bic": price - 2 * log_slope, "icl": price - 2 * log_slope}
        by = shift.get(self.criterion, 0.0)
        candidates = tuple(replace(candidate, score=candidate.score + by) for candidate in self.candidates)
        places = [id(candidate) for candidate in self.candidates]
        return replace(self, candidates=candidates, best=candidates[places.index(id(self.best))])

    def shared_out(self, n_members: int) -> list[Candidate]:
        """The candidates that so many members of an average are, by their shares; what is left of shares, by size."""
        places = sorted(self.candidates, key=lambda candidate: -candidate.share)
        counts = [math.floor(n_members * candidate.share) for candidate in places]
        left = [n_members * candidate.share - count for candidate, count in zip(places, counts, strict=True)]
        for place in sorted(range(len(places)), key=lambda place: -left[place])[: n_members - sum(counts)]:
            counts[place] += 1
        return [candidate for candidate, count in zip(places, counts, strict=True) for _ in range(count)]

    def table(self) -> list[dict[str, Any]]:
        """One line for each candidate."""
        return [
            {"n_components": c.n_components, "prior": c.prior, self.criterion: c.score, "error": c.error}
            for c in self.candidates
        ]


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

    Arguments:
        priors: Shrinkage, prior objects, or None.
        n_components: of each class; None walks down from many to one.
        criterion: "log_loss" and "held_out" (log p(x, c)) by cross-validation; "out_of_bag", the log-loss, or log p(x)
            where there is one class; "bic", "icl".
    """
    checks.one_of("criterion", criterion, CRITERIA)
    rows, columns = _prepared(ground, criterion)
    levels = _walk(ground, rows, columns, list(priors), n_components, criterion)
    return _chosen(ground, rows, levels, list(priors), criterion)


def _prepared(ground: Ground, criterion: str) -> tuple[TensorSource, list[_Column]]:
    """The rows to compare on with their counts, and what the members of every column see; all rows come last."""
    rows, labels, shares, weights = _sampled(ground.problem.source, ground.generator)
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


def _sampled(source: Source, generator: torch.Generator) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Rows, labels, shares and weights, of at most SELECTION_ROWS rows."""
    seed = int(torch.randint(2**62, (), generator=generator))
    sample = source.total(partial(_sample_part, seed))
    rows, labels, shares, weights = sample.columns
    assert rows is not None
    assert weights is not None
    return rows, labels, shares, None if bool((weights == 1).all()) else weights


def _sample_part(seed: int, source: Source) -> RowSample:
    sample: RowSample | None = None
    for block in source.blocks():
        keys = uniform_keys(seed, block.start, len(block.rows), block.rows.device)
        weights = torch.ones_like(keys) if block.weights is None else block.weights
        own = largest((block.rows, block.labels, block.shares, weights), keys, SELECTION_ROWS)
        sample = own if sample is None else sample + own
    assert sample is not None
    return sample


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
    found = []
    for part in torch.arange(len(block.rows), device=block.rows.device).split(SCORED_ROWS):
        if criterion in ("bic", "icl"):
            chunk = Stack.of(ground.structure, fits)
            scores = _mapped(ground, chunk, block.rows[part], with_entropies=True)  # (2, C, P, n)
            found.append(scores.transpose(1, 2))
        else:
            scores = _mapped(ground, stack, block.rows[part], with_entropies=False)[0]  # (C, F * P, n)
            scores = scores.unflatten(1, (n_columns, n_priors))[:, :-1]  # (C, F, P, n)
            unseen = (block.counts[part, :-1] == 0).T  # (F, n)
            sums = scores.masked_fill(~unseen.unsqueeze(1), -torch.inf).logsumexp(1)  # (C, P, n)
            found.append((sums - unseen.sum(0).log()).transpose(0, 1))
    whole = torch.cat(found, -1)
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


def _chosen(ground: Ground, rows: TensorSource, levels: list[_Level], priors: list[Any], criterion: str) -> Selection:
    (block,) = rows.blocks()
    labels = block.labels
    if block.shares is not None:  # judged by the largest share
        labels = torch.where(block.shares[:, 0].isnan(), -1, block.shares.nan_to_num().argmax(1))
    judge = _Judge(ground.structure, labels, block.weights, ground.n_classes, criterion)
    candidates, places = [], []
    for level in levels:
        for p, prior in enumerate(priors):
            score, error = judge.score([level] * ground.n_classes, p)
            candidates.append(Candidate(tuple(level.n_components), prior, score, error))
            places.append((level, p))
    best = min(range(len(candidates)), key=lambda number: candidates[number].score)
    level, p = places[best]
    mixed = [level] * ground.n_classes
    if criterion not in ("bic", "icl"):
        shares = judge.shares([([own] * ground.n_classes, other) for own, other in places])
        candidates = [replace(candidate, share=share) for candidate, share in zip(candidates, shares, strict=True)]
    if ground.n_classes > 1 and len(levels) > 1 and _separable(ground, block.labels):
        mixed = _per_class(judge, levels, mixed, p)
    winner = candidates[best]
    if any(own is not level for own in mixed):
        score, error = judge.score(mixed, p)
        counts = tuple(own.n_components[c] for c, own in enumerate(mixed))
        winner = Candidate(counts, priors[p], score, error)
        candidates.append(winner)
    if criterion in ("bic", "icl"):
        candidates = [replace(candidate, share=float(candidate is winner)) for candidate in candidates]
        winner = next(candidate for candidate in candidates if candidate.share)
    start = _assembled(ground.structure, [own.fits[p] for own in mixed])
    weight = float(len(block.rows) if block.weights is None else block.weights.sum())
    return Selection(criterion, tuple(candidates), winner, start, weight)


def _separable(ground: Ground, labels: Tensor | None) -> bool:
    """Whether the classes share neither rows nor covariances, so that each may have its own number of components."""
    return labels is not None and bool((labels >= 0).all()) and not ground.structure.shares_across_classes


def _per_class(judge: _Judge, levels: list[_Level], mixed: list[_Level], p: int) -> list[_Level]:
    """Other numbers of components in single classes, where they help by more than a standard error of the help."""
    for c in range(len(mixed)):
        for level in levels:
            trial = [level if d == c else own for d, own in enumerate(mixed)]
            gain, error = judge.gain(mixed, p, trial, p)
            mixed = trial if gain > error else mixed
    return mixed


def _assembled(structure: Structure, fits: list[Mixture]) -> Mixture:
    """Class c of the c-th fit, for every class."""
    if all(fit is fits[0] for fit in fits):
        return fits[0]
    parts = []
    for c, fit in enumerate(fits):
        index = torch.arange(fit.n_components, device=fit.means.device)[fit.class_slices[c]]
        covariance = fit.covariance.select(index).compacted()
        parts.append(Mixture(fit.log_weights[index], fit.means[index], covariance, fit.class_of[index]))
    return Stack.of(structure, parts).mixture


@dataclass(frozen=True)
class _Judge:
    """The criterion, from what the levels hold."""

    structure: Structure
    labels: Tensor | None
    weights: Tensor | None
    n_classes: int
    criterion: str

    def losses(self, levels: list[_Level], p: int) -> Tensor:
        """Of every row, where class c is taken from the c-th level, (n,); NaN where there is nothing to judge."""
        unseen = [level.unseen for level in levels]
        assert unseen[0] is not None
        scores = torch.stack([part[p, c] for c, part in enumerate(unseen) if part is not None])  # (C, n)
        labels = torch.zeros_like(scores[0], dtype=torch.int64) if self.labels is None else self.labels
        own = scores.gather(0, labels.clamp_min(0).unsqueeze(0))[0]
        joint = self.criterion == "held_out" or self.n_classes == 1
        found = -own if joint else scores.logsumexp(0) - own
        return torch.where(labels >= 0, found, torch.nan)

    def score(self, levels: list[_Level], p: int) -> tuple[float, float]:
        """The criterion and its standard error; both per row."""
        if self.criterion in ("bic", "icl"):
            return self._information(levels, p), 0.0
        return self.mean(self.losses(levels, p))

    def mean(self, values: Tensor) -> tuple[float, float]:
        """Weighted mean and standard error over the rows that have a value."""
        known = ~values.isnan()
        weights = torch.ones_like(values) if self.weights is None else self.weights.to(values.dtype)
        weights, values = weights[known], values[known]
        total = weights.sum()
        mean = (weights * values).sum() / total
        variance = (weights * (values - mean).square()).sum() / total
        size = total.square() / weights.square().sum()
        return float(mean), float((variance / size.clamp_min(1)).sqrt())

    def gain(self, levels: list[_Level], p: int, others: list[_Level], q: int) -> tuple[float, float]:
        """By how much the others are better, and the standard error of that."""
        if self.criterion in ("bic", "icl"):
            return self._information(levels, p) - self._information(others, q), 0.0
        return self.mean(self.losses(levels, p) - self.losses(others, q))

    def shares(self, candidates: list[tuple[list[_Level], int]]) -> list[float]:
        """Weights v of the candidates that maximise sum_n w_n log sum_m v_m exp(-loss_mn), by EM (stacking)."""
        losses = torch.stack([self.losses(levels, p) for levels, p in candidates])  # (M, n)
        known = ~losses[0].isnan()
        weights = torch.ones_like(losses[0]) if self.weights is None else self.weights.to(losses.dtype)
        losses, weights = losses[:, known], weights[known] / weights[known].sum()
        likelihoods = (losses.amin(0) - losses).exp()
        shares = torch.full_like(losses[:, 0], 1 / len(losses))
        for _ in range(STACKING_ITERATIONS):
            parts = shares.unsqueeze(-1) * likelihoods
            shares = (parts / parts.sum(0)) @ weights
        return shares.tolist()

    def _information(self, levels: list[_Level], p: int) -> float:
        """BIC or ICL per row (information-criteria)."""
        total = weight = 0.0
        for c, level in enumerate(levels):
            assert level.seen is not None
            likelihood, entropy = level.seen[:, p, c]
            weights = torch.ones_like(likelihood) if self.weights is None else self.weights.to(likelihood.dtype)
            own = weights if self.labels is None else torch.where(self.labels == c, weights, 0.0)
            weight = float(weights.sum())
            total -= 2 * float((own * likelihood).sum())
            total += 2 * float((own * entropy).sum()) if self.criterion == "icl" else 0.0
        parameters = _assembled(self.structure, [level.fits[p] for level in levels]).n_parameters
        return (total + parameters * math.log(weight)) / weight
