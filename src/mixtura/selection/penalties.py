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

from mixtura.engine.passes import summarise
from mixtura.engine.sources import Source, TensorSource, locate
from mixtura.init.description import describe
from mixtura.init.splitting import split, unexplained
from mixtura.model.mixture import Mixture
from mixtura.objectives import Conditional, Hybrid
from mixtura.priors import Shrinkage
from mixtura.roles import Objective
from mixtura.selection.plan import Plan, is_auto, make_prior
from mixtura.solvers import EM, BaumWelch, FitResult, HeldOut, Outcome, run
from mixtura.values.storable import storable

# The two penalties, from weak to strong: what variances are shrunk to, in units of those that (default-prior) expects,
# and how many rows hold every mean at that of its class.
SCALES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
PULLS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
SMOOTHINGS = (0.0, 0.1, 0.5, 0.9, 1.0)  # shares of the likelihood of the rows in the objective
# Where the search climbs from: the middle, and the best corner, since from one place alone it may come to where all
# components of a class are one, and stay there.
MIDDLE, CORNERS = (3, 4), ((1, 1), (1, 7), (5, 1), (5, 7))
LOOSE = 1  # the pull of a corner, that lets the parts of a class go
# Rows from which one part is kept out once, instead of every part in turn.
MANY_ROWS = 4000
MOST_COMPONENTS = 20  # of a class that grows
SMALLEST_GAIN = 2.0  # in the log posterior of all labels kept out, that one more component must bring
PATIENCE = 2  # cuts that may fail to gain, one after the other: of all components, or of one class
SMALLEST_HELD_OUT = 20  # rows that may say when to stop

# max_iter and tol. A fit that compares must end as the last fit will: to stop early is a penalty too.
Limits = tuple[int, float]


@storable("compared")
@dataclass(frozen=True)
class Compared:
    """One comparison: penalties, smoothing, components per class, and the mean log posterior of the labels kept out."""

    scale: float | None
    pull: float | None
    smoothing: float
    n_components: tuple[int, ...]
    score: float


@storable("setting")
@dataclass(frozen=True)
class Setting:
    """What holds a fit: a prior as `MixtureClassifier` takes it, and the share of the likelihood in the objective."""

    prior: Any
    smoothing: float

    def of(self, plan: Plan, n_components: list[int]) -> Plan:
        """The plan for these numbers of components, held so."""
        return replace(with_prior(plan, self.prior, n_components), objective=separating(self.smoothing))


@storable("growth")
@dataclass(frozen=True)
class Growth:
    """More components for some classes, and what held the fit that was short of them.

    Cut in two are all components of these classes, or of every one the least explained.
    """

    classes: tuple[int, ...]
    every: bool
    setting: Setting


@dataclass(frozen=True)
class Fold:
    """A plan without the rows that are kept out, and a generative start for it."""

    plan: Plan
    held_out: TensorSource
    start: Mixture

    @property
    def n_held_out(self) -> int:
        """Rows that are kept out."""
        return sum(len(block.rows) for block in self.held_out.blocks())

    def score(self, mixture: Mixture) -> tuple[float, float]:
        """Log posteriors of the labels kept out, and their weight."""
        found = summarise(mixture, self.held_out, Conditional(), locate(self.held_out), self.plan.memory_limit)
        return found.value, found.weight


def with_prior(plan: Plan, prior: Any, n_components: list[int]) -> Plan:
    """The plan for these numbers of components, under a prior as `MixtureClassifier` takes it."""
    made = make_prior(prior, plan.description, n_components)
    return replace(plan, n_components=n_components, prior=made)


def counts_of(mixture: Mixture) -> list[int]:
    """Components per class."""
    return [part.stop - part.start for part in mixture.class_slices]


def separating(smoothing: float) -> Objective:
    """The objective with this share of the likelihood of the rows."""
    return Hybrid(smoothing, Conditional()) if smoothing > 0 else Conditional()


def generative(plan: Plan, start: Mixture, limits: Limits) -> Mixture:
    """A mixture that describes the classes, whatever the penalties: under strong ones components fall into one."""
    return run(EM(), with_prior(plan, "default", counts_of(start)).generative, start, *limits).mixture


def described(plan: Plan, setting: Setting, start: Mixture) -> Mixture:
    """A generative start after one step of EM under a prior.

    It brings variances to where the prior will hold them. Baum-Welch would come there by steps that it has to shorten
    again and again, and that stay short for long.
    """
    return EM().step(setting.of(plan, counts_of(start)).generative, start)[0]


def refitted(plan: Plan, setting: Setting, start: Mixture, limits: Limits) -> Mixture:
    """A fit from a start."""
    return complete(run(BaumWelch(), setting.of(plan, counts_of(start)).problem, start, *limits)).mixture


def stopped(fold: Fold, setting: Setting, start: Mixture, limits: Limits) -> FitResult:
    """A fit of a fold where it predicts the held-out samples best, with the log posteriors of their labels by steps."""
    problem = setting.of(fold.plan, counts_of(start)).problem
    return complete(run(BaumWelch(), problem, start, *limits, held_out=HeldOut(lambda mixture: fold.score(mixture)[0])))


def complete(result: FitResult) -> FitResult:
    """A fit, unless Ctrl-C broke it off: half a search has nothing to keep."""
    if result.outcome is Outcome.INTERRUPTED:
        raise KeyboardInterrupt
    return result


def cut(plan: Plan, start: Mixture, fit: Mixture, step: Growth, limits: Limits) -> Mixture:
    """A generative start with more components; those are cut that a fit from that start explains least (growing)."""
    about = plan.description
    for own_class in step.classes:
        counts = unexplained(fit, about, own_class)
        numbers = range(len(counts) - 1, -1, -1) if step.every else [int(counts.argmax())]
        for number in numbers:  # from the last, so that the others keep their numbers
            start = split(start, about, own_class, number)
    return generative(plan, start, limits)


def grown(plan: Plan, start: Mixture, steps: list[Growth], limits: Limits) -> Mixture:
    """A generative start with the components that a search found worth having."""
    for step in steps:
        fit = refitted(plan, step.setting, described(plan, step.setting, start), limits)
        start = cut(plan, start, fit, step, limits)
    return start


def make_folds(plan: Plan, cv: Any, start: Callable[[Plan], Mixture]) -> list[Fold]:
    """The labeled rows, kept out part by part.

    As many parts, or one part with a share of every class, or those that a splitter or a list of splits names.
    """
    find_parts = _sampled_parts if isinstance(cv, Real) else _given_parts
    rows, labels, weights, parts = find_parts(plan, cv)

    def source(chosen: Tensor) -> TensorSource:
        return TensorSource(rows[chosen], labels=labels[chosen], weights=None if weights is None else weights[chosen])

    return [_fold(plan, source(kept), source(part), start) for kept, part in parts if bool(part.any())]


Parts = tuple[Tensor, Tensor, Tensor | None, list[tuple[Tensor, Tensor]]]


def _sampled_parts(plan: Plan, cv: Any) -> Parts:
    """Rows that the description holds, stratified: so many parts, or one with a share of every class.

    A class with a single row never lends it.
    """
    samples = plan.description.samples[: len(plan.n_components)]
    rows = torch.cat([rows for rows, _ in samples])
    weights = torch.cat([weights for _, weights in samples])
    labels = torch.cat([torch.full((len(part),), c, device=rows.device) for c, (part, _) in enumerate(samples)])
    number = _numbers if isinstance(cv, Integral) else _shares
    numbers = torch.cat([number(len(part), cv, plan.generator) for part, _ in samples]).to(rows.device)
    n_parts = int(cv) if isinstance(cv, Integral) and len(rows) < MANY_ROWS else 1
    return rows, labels, weights, [(numbers != part, numbers == part) for part in range(n_parts)]


def _given_parts(plan: Plan, cv: Any) -> Parts:
    block = next(iter(plan.source.blocks()))
    labels = block.labels
    if labels is None or len(block.rows) < plan.description.n_rows:
        raise ValueError(f"cv as splits needs rows in memory with one label each; pass a number instead of {cv!r}.")
    splitter: Any = check_cv(cv)
    splits = splitter.split(block.rows.cpu().numpy(), labels.cpu().numpy())

    def mask(index: Any) -> Tensor:
        chosen = torch.zeros(len(block.rows), dtype=torch.bool)
        chosen[torch.from_numpy(np.asarray(index))] = True
        return (chosen & (labels.cpu() >= 0)).to(block.rows.device)

    return block.rows, labels, block.weights, [(mask(kept), mask(part)) for kept, part in splits]


def _fold(plan: Plan, kept: TensorSource, held_out: TensorSource, start: Callable[[Plan], Mixture]) -> Fold:
    description = describe(kept, len(plan.n_components), plan.generator)
    counts = [min(n, len(rows)) for n, (rows, _) in zip(plan.n_components, description.samples, strict=False)]
    smaller = replace(plan, source=kept, description=description, n_components=counts)
    return Fold(smaller, held_out, start(smaller))


def _numbers(n_rows: int, n_folds: Any, generator: torch.Generator) -> Tensor:
    """The part of every row of a class; -1: never kept out."""
    if n_rows < 2:
        return torch.full((n_rows,), -1)
    return (torch.arange(n_rows) % int(n_folds))[torch.randperm(n_rows, generator=generator)]


def _shares(n_rows: int, share: Any, generator: torch.Generator) -> Tensor:
    """0 for a share of the rows of a class, which are kept out; -1 for the others."""
    return (torch.randperm(n_rows, generator=generator) < int(share * n_rows)).long() - 1


Place = tuple[int, ...]


@dataclass(frozen=True)
class Grid:
    """Settings to compare: both penalties where the prior is "auto", and smoothings from small to large.

    Its axes are the penalties and the smoothings; what is given has one place.
    """

    prior: Any
    smoothings: tuple[float, ...]

    @property
    def sizes(self) -> Place:
        """Places along every axis."""
        return (*((len(SCALES), len(PULLS)) if is_auto(self.prior) else (1, 1)), len(self.smoothings))

    def __contains__(self, place: Place) -> bool:
        return all(0 <= number < size for number, size in zip(place, self.sizes, strict=True))

    def __getitem__(self, place: Place) -> Setting:
        scale, pull, share = place
        free = is_auto(self.prior)
        prior = Shrinkage(scale=SCALES[scale], mean_strength=PULLS[pull]) if free else self.prior
        return Setting(prior, self.smoothings[share])

    @property
    def middle(self) -> Place:
        return (*(MIDDLE if is_auto(self.prior) else (0, 0)), len(self.smoothings) // 2)

    def near(self, place: Place) -> list[Place]:
        """A place, and the one where means are free: those of one component a class may be held as one likes."""
        return [place, (place[0], min(place[1], LOOSE), place[2])]

    @property
    def corners(self) -> list[Place]:
        return [(*corner, 0) for corner in CORNERS] if is_auto(self.prior) else [(0, 0, 0)]


@dataclass(frozen=True)
class Found:
    """The best place of a search, its score, and the mixtures of the folds there."""

    place: Place
    score: float
    mixtures: list[Mixture]


@dataclass
class Search:
    """Compares settings, and numbers of components, by the rows kept out of every fold."""

    folds: list[Fold]
    grid: Grid
    limits: Limits
    early_stopping: bool = False
    records: list[Compared] = field(default_factory=list)

    def run(self, grows: bool) -> tuple[Setting, list[Growth]]:
        """The setting that predicts best, and the classes that grew on the way there."""
        starts = [fold.start for fold in self.folds]
        grid = self.grid
        found = self.climbed(starts, [grid.middle], grid.corners)
        steps: list[Growth] = []
        if grows:
            found, steps = self.growth(starts, found)
        return grid[found.place], steps

    def climbed(self, starts: list[Mixture], *groups: list[Place]) -> Found:
        """The best setting for generative starts, one a fold, by climbing from the best place of every group."""
        seen: dict[Place, Found] = {}

        def look(place: Place) -> float:
            if place not in self.grid:
                return -float("inf")
            if place not in seen:
                seen[place] = self.compared(place, starts)
            return seen[place].score

        return seen[max((uphill(look, max(group, key=look)) for group in groups), key=look)]

    def compared(self, place: Place, starts: list[Mixture]) -> Found:
        """What a setting comes to from generative starts, one a fold."""
        setting = self.grid[place]
        mixtures = [self._fitted(fold, setting, start) for fold, start in zip(self.folds, starts, strict=True)]
        score, prior = self.score(mixtures), setting.prior
        penalties = (prior.scale, prior.mean_strength) if isinstance(prior, Shrinkage) else (None, None)
        self.records.append(Compared(*penalties, setting.smoothing, tuple(counts_of(mixtures[0])), score))
        return Found(place, score, mixtures)

    def _fitted(self, fold: Fold, setting: Setting, start: Mixture) -> Mixture:
        start = described(fold.plan, setting, start)
        if self.early_stopping:
            return stopped(fold, setting, start, self.limits).mixture
        return refitted(fold.plan, setting, start, self.limits)

    def growth(self, starts: list[Mixture], found: Found) -> tuple[Found, list[Growth]]:
        """What gains by growing, in order, and where that leads: all components first, then one at a time (growing)."""
        starts, found, steps = self._doubled(starts, found)
        failed: list[int] = []
        while len(failed) < PATIENCE and (able := self._able(found.mixtures, False, failed)):
            step = Growth((able[0],), False, self.grid[found.place])
            more, tried = self._tried(step, starts, found)
            if self._gains(tried, found):
                starts, found, failed = more, tried, []
                steps.append(step)
            else:
                failed.append(able[0])
        return found, steps

    def _doubled(self, starts: list[Mixture], found: Found) -> tuple[list[Mixture], Found, list[Growth]]:
        """All components cut in two, again and again; cuts that gain nothing stay where the next one gains."""
        best, best_starts, kept = found, starts, 0
        steps: list[Growth] = []
        while len(steps) < kept + PATIENCE and (able := self._able(found.mixtures, True, [])):
            steps.append(Growth(tuple(able), True, self.grid[found.place]))
            starts, found = self._tried(steps[-1], starts, found)
            if self._gains(found, best):
                best, best_starts, kept = found, starts, len(steps)
        return best_starts, best, steps[:kept]

    def _gains(self, tried: Found, found: Found) -> bool:
        return tried.score > found.score + SMALLEST_GAIN / self.weight

    def _tried(self, step: Growth, starts: list[Mixture], found: Found) -> tuple[list[Mixture], Found]:
        more = [
            cut(fold.plan, start, fit, step, self.limits)
            for fold, start, fit in zip(self.folds, starts, found.mixtures, strict=True)
        ]
        return more, self.climbed(more, self.grid.near(found.place))

    def _able(self, mixtures: list[Mixture], every: bool, left_out: list[int]) -> list[int]:
        """Classes that may have twice their components, or one more; that of the least explained one first."""
        totals: dict[int, float] = {}
        for c in range(len(mixtures[0].class_slices)):
            most = min(MOST_COMPONENTS, *(len(fold.plan.description.samples[c][0]) for fold in self.folds))
            count = max(counts_of(mixture)[c] for mixture in mixtures)
            if c not in left_out and (2 * count if every else count + 1) <= most:
                pairs = zip(mixtures, self.folds, strict=True)
                totals[c] = sum(float(unexplained(m, fold.plan.description, c).max()) for m, fold in pairs)
        return sorted(totals, key=lambda c: -totals[c])

    @property
    def weight(self) -> float:
        """Of all rows that are kept out at some time, each of them once."""
        held_out = [weight_of(fold.held_out) for fold in self.folds]
        return min(sum(held_out), held_out[0] + weight_of(self.folds[0].plan.source))

    def score(self, mixtures: list[Mixture]) -> float:
        """Mean log posterior of the labels kept out, under the mixture of their fold."""
        values, weights = zip(*(fold.score(m) for fold, m in zip(self.folds, mixtures, strict=True)), strict=True)
        return sum(values) / sum(weights)


def weight_of(rows: Source) -> float:
    """The weight of all rows."""
    return float(sum(len(b.rows) if b.weights is None else float(b.weights.sum()) for b in rows.blocks()))


def uphill(look: Callable[[Place], float], best: Place) -> Place:
    """The place of a grid that is better than its neighbours along every axis, climbing from another."""
    moved = True
    while moved:
        moved = False
        for axis in range(len(best)):
            for step in (1, -1):
                while look(beside(best, axis, step)) > look(best):
                    best, moved = beside(best, axis, step), True
    return best


def beside(place: Place, axis: int, step: int) -> Place:
    """The neighbour of a place along an axis."""
    return (*place[:axis], place[axis] + step, *place[axis + 1 :])
