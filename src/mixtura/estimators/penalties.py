"""Choosing penalties, and how many components, by rows that are kept out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import check_cv
from torch import Tensor

from mixtura.estimators.classifier import Problem, make_prior
from mixtura.estimators.growing import split, unexplained
from mixtura.initialise import describe
from mixtura.mixture import Mixture
from mixtura.objectives import Conditional, Joint
from mixtura.passes import locate, summarise
from mixtura.priors import Shrinkage
from mixtura.shards import TensorSource
from mixtura.solvers import FitResult, Outcome, run, run_held_out
from mixtura.solvers.baum_welch import Progress

# The two penalties, from weak to strong: what variances are shrunk to, in units of those that (default-prior) expects,
# and how many rows hold every mean at that of its class.
SCALES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
PULLS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
# Where the search climbs from: the middle, and the best corner, since from one place alone it may come to where all
# components of a class are one, and stay there.
MIDDLE, CORNERS = (3, 4), ((1, 1), (1, 7), (5, 1), (5, 7))
# Rows from which one part is kept out once, instead of every part in turn.
MANY_ROWS = 4000
MOST_COMPONENTS = 20  # of a class that grows
SMALLEST_GAIN = 2.0  # in the log posterior of all labels kept out, that one more component must bring
PATIENCE = 2  # classes that may fail to gain by growing, one after the other
SMALLEST_HELD_OUT = 20  # rows that may say when to stop

# max_iter and tol. A fit that compares must end as the last fit will: to stop early is a penalty too.
Limits = tuple[int, float]


@dataclass(frozen=True)
class Compared:
    """One comparison: the penalties, components per class, and the mean log posterior of the labels kept out."""

    scale: float | None
    pull: float | None
    n_components: tuple[int, ...]
    score: float


@dataclass(frozen=True)
class Growth:
    """One more component for a class, and the prior from then on."""

    own_class: int
    prior: Any


@dataclass(frozen=True)
class Fold:
    """A problem without the rows that are kept out, and a generative start for it."""

    problem: Problem
    held_out: TensorSource
    start: Mixture

    @property
    def n_held_out(self) -> int:
        """Rows that are kept out."""
        return sum(len(block.rows) for block in self.held_out.blocks())

    def score(self, mixture: Mixture) -> tuple[float, float]:
        """Log posteriors of the labels kept out, and their weight."""
        found = summarise(mixture, self.held_out, Conditional(), locate(self.held_out), self.problem.memory_limit)
        return found.value, found.weight


def with_prior(problem: Problem, prior: Any, n_components: list[int]) -> Problem:
    """The problem for these numbers of components, under a prior as `MixtureClassifier` takes it."""
    made = make_prior(prior, problem.description, n_components)
    return replace(problem, n_components=n_components, prior=made)


def counts_of(mixture: Mixture) -> list[int]:
    """Components per class."""
    return [part.stop - part.start for part in mixture.class_slices]


def described(problem: Problem, prior: Any, start: Mixture) -> Mixture:
    """A generative start after one step of EM under a prior.

    It brings variances to where the prior will hold them. Baum-Welch would come there by steps that it has to shorten
    again and again, and that stay short for long.
    """
    return with_prior(problem, prior, counts_of(start)).em(Joint()).step(start, problem.source).mixture


def refitted(problem: Problem, prior: Any, start: Mixture, limits: Limits) -> Mixture:
    """A fit from a start."""
    solver = with_prior(problem, prior, counts_of(start)).baum_welch()
    source = problem.source
    return whole(run(solver, solver.start(start, source), source, *limits)).mixture


def stopped(fold: Fold, prior: Any, start: Mixture, limits: Limits) -> tuple[Progress, list[tuple[int, float]]]:
    """A fit of a fold where it predicts the rows kept out best, and their mean log posterior by steps."""
    solver = with_prior(fold.problem, prior, counts_of(start)).baum_welch()
    source = fold.problem.source
    scores: list[tuple[int, float]] = []

    def score(progress: Progress) -> float:
        value, weight = fold.score(progress.mixture)
        scores.append((progress.iteration, value / weight))
        return value

    found = run_held_out(solver, solver.start(start, source), source, score, *limits, interval=1)
    return whole(found), scores


def whole(result: FitResult) -> Progress:
    """What a fit came to, unless Ctrl-C broke it off: half a search has nothing to keep."""
    if result.outcome is Outcome.INTERRUPTED:
        raise KeyboardInterrupt
    return result.mixture


def grown(problem: Problem, prior: Any, start: Mixture, steps: list[Growth], limits: Limits) -> Mixture:
    """A start with the components that a search found worth having."""
    for step in steps:
        start = split(refitted(problem, prior, start, limits), problem.description, step.own_class)
        prior = step.prior
    return start


def make_folds(problem: Problem, cv: Any, start: Callable[[Problem], Mixture]) -> list[Fold]:
    """The labeled rows, kept out part by part.

    As many parts, or one part with a share of every class, or those that a splitter or a list of splits names.
    """
    find_parts = _sampled_parts if isinstance(cv, Real) else _given_parts
    rows, labels, weights, parts = find_parts(problem, cv)

    def source(chosen: Tensor) -> TensorSource:
        return TensorSource(rows[chosen], labels=labels[chosen], weights=None if weights is None else weights[chosen])

    return [_fold(problem, source(kept), source(part), start) for kept, part in parts if bool(part.any())]


Parts = tuple[Tensor, Tensor, Tensor | None, list[tuple[Tensor, Tensor]]]


def _sampled_parts(problem: Problem, cv: Any) -> Parts:
    """Rows that the description holds, stratified: so many parts, or one with a share of every class.

    A class with a single row never lends it.
    """
    samples = problem.description.samples[: len(problem.n_components)]
    rows = torch.cat([rows for rows, _ in samples])
    weights = torch.cat([weights for _, weights in samples])
    labels = torch.cat([torch.full((len(part),), c, device=rows.device) for c, (part, _) in enumerate(samples)])
    number = _numbers if isinstance(cv, Integral) else _shares
    numbers = torch.cat([number(len(part), cv, problem.generator) for part, _ in samples]).to(rows.device)
    n_parts = int(cv) if isinstance(cv, Integral) and len(rows) < MANY_ROWS else 1
    return rows, labels, weights, [(numbers != part, numbers == part) for part in range(n_parts)]


def _given_parts(problem: Problem, cv: Any) -> Parts:
    block = next(iter(problem.source.blocks()))
    labels = block.labels
    if labels is None or len(block.rows) < problem.description.n_rows:
        raise ValueError(f"cv as splits needs rows in memory with one label each; pass a number instead of {cv!r}.")
    splitter: Any = check_cv(cv)
    splits = splitter.split(block.rows.cpu().numpy(), labels.cpu().numpy())

    def mask(index: Any) -> Tensor:
        chosen = torch.zeros(len(block.rows), dtype=torch.bool)
        chosen[torch.from_numpy(np.asarray(index))] = True
        return (chosen & (labels.cpu() >= 0)).to(block.rows.device)

    return block.rows, labels, block.weights, [(mask(kept), mask(part)) for kept, part in splits]


def _fold(problem: Problem, kept: TensorSource, held_out: TensorSource, start: Callable[[Problem], Mixture]) -> Fold:
    description = describe(kept, len(problem.n_components), problem.generator)
    counts = [min(n, len(rows)) for n, (rows, _) in zip(problem.n_components, description.samples, strict=False)]
    smaller = replace(problem, source=kept, description=description, n_components=counts)
    return Fold(smaller, held_out, start(smaller))


def _numbers(n_rows: int, n_folds: Any, generator: torch.Generator) -> Tensor:
    """The part of every row of a class; -1: never kept out."""
    if n_rows < 2:
        return torch.full((n_rows,), -1)
    return (torch.arange(n_rows) % int(n_folds))[torch.randperm(n_rows, generator=generator)]


def _shares(n_rows: int, share: Any, generator: torch.Generator) -> Tensor:
    """0 for a share of the rows of a class, which are kept out; -1 for the others."""
    return (torch.randperm(n_rows, generator=generator) < int(share * n_rows)).long() - 1


@dataclass
class Search:
    """Compares priors, and numbers of components, by the rows kept out of every fold."""

    folds: list[Fold]
    limits: Limits
    early_stopping: bool = False
    records: list[Compared] = field(default_factory=list)

    def penalties(self) -> tuple[Shrinkage, list[Mixture]]:
        """The two penalties that predict best, by climbing on their grid, with the mixtures of the folds."""
        scores: dict[tuple[int, int], tuple[float, list[Mixture]]] = {}

        def look(place: tuple[int, int]) -> float:
            if not (0 <= place[0] < len(SCALES) and 0 <= place[1] < len(PULLS)):
                return -float("inf")
            if place not in scores:
                scores[place] = self.compared(penalty(*place), self.starts(penalty(*place)))
            return scores[place][0]

        best = max((climbed(look, place) for place in (MIDDLE, max(CORNERS, key=look))), key=look)
        return penalty(*best), scores[best][1]

    def starts(self, prior: Any) -> list[Mixture]:
        """Where fits under a prior begin, one a fold."""
        return [described(fold.problem, prior, fold.start) for fold in self.folds]

    def compared(self, prior: Any, starts: list[Mixture]) -> tuple[float, list[Mixture]]:
        """The score of a prior from these starts, one a fold, and the mixtures it comes to."""
        mixtures = [self._fitted(fold, prior, start) for fold, start in zip(self.folds, starts, strict=True)]
        score = self.score(mixtures)
        scale, pull = (prior.scale, prior.mean_strength) if isinstance(prior, Shrinkage) else (None, None)
        self.records.append(Compared(scale, pull, tuple(counts_of(mixtures[0])), score))
        return score, mixtures

    def _fitted(self, fold: Fold, prior: Any, start: Mixture) -> Mixture:
        if self.early_stopping:
            return stopped(fold, prior, start, self.limits)[0].mixture
        return refitted(fold.problem, prior, start, self.limits)

    def growth(self, prior: Any, mixtures: list[Mixture]) -> list[Growth]:
        """Classes that gain by one more component each, in order (unexplained)."""
        steps: list[Growth] = []
        score = self.score(mixtures)
        failed: list[int] = []
        while len(failed) < min(PATIENCE, len(mixtures[0].class_slices)):
            own_class = self._worst_class(mixtures, failed)
            if own_class is None:
                break
            starts = [split(m, f.problem.description, own_class) for m, f in zip(mixtures, self.folds, strict=True)]
            tried = [(option, *self.compared(option, starts)) for option in narrower(prior)]
            option, found, candidates = max(tried, key=lambda t: t[1])
            if found > score + SMALLEST_GAIN / self.weight:
                prior, score, mixtures, failed = option, found, candidates, []
                steps.append(Growth(own_class, prior))
            else:
                failed.append(own_class)
        return steps

    @property
    def weight(self) -> float:
        """Of all rows that are kept out at some time."""
        blocks = [block for fold in self.folds for block in fold.held_out.blocks()]
        return float(sum(len(b.rows) if b.weights is None else float(b.weights.sum()) for b in blocks))

    def score(self, mixtures: list[Mixture]) -> float:
        """Mean log posterior of the labels kept out, under the mixture of their fold."""
        values, weights = zip(*(fold.score(m) for fold, m in zip(self.folds, mixtures, strict=True)), strict=True)
        return sum(values) / sum(weights)

    def _worst_class(self, mixtures: list[Mixture], left_out: list[int]) -> int | None:
        """The class with the least explained component, among those that may grow."""
        totals: dict[int, float] = {}
        for mixture, fold in zip(mixtures, self.folds, strict=True):
            for c, part in enumerate(mixture.class_slices):
                n_rows = len(fold.problem.description.samples[c][0])
                if c not in left_out and part.stop - part.start < min(MOST_COMPONENTS, n_rows):
                    largest = float(unexplained(mixture, fold.problem.description, c).max())
                    totals[c] = totals.get(c, 0.0) + largest
        return max(totals, key=lambda c: totals[c]) if totals else None


def climbed(look: Callable[[tuple[int, int]], float], best: tuple[int, int]) -> tuple[int, int]:
    """The place of a grid that is better than its four neighbours, uphill from another."""
    moved = True
    while moved:
        moved = False
        for step in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            while look((best[0] + step[0], best[1] + step[1])) > look(best):
                best, moved = (best[0] + step[0], best[1] + step[1]), True
    return best


def penalty(scale: int, pull: int) -> Shrinkage:
    """The penalties at a place of the grid."""
    return Shrinkage(scale=SCALES[scale], mean_strength=PULLS[pull])


def narrower(prior: Any) -> list[Any]:
    """A prior, and where it is of the grid the next one with smaller variances: parts are narrower than a whole."""
    if not isinstance(prior, Shrinkage) or prior.scale not in SCALES[1:]:
        return [prior]
    return [prior, replace(prior, scale=SCALES[SCALES.index(prior.scale) - 1])]
