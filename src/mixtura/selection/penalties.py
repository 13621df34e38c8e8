"""Selecting penalties and numbers of components of discriminative training by cross-validation (KJO03)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from mixtura import checks
from mixtura.engine.passes import summarise
from mixtura.engine.sources import Source, TensorSource, locate
from mixtura.init.description import describe
from mixtura.init.splitting import split, unexplained
from mixtura.model.mixture import Mixture
from mixtura.objectives import Conditional, Hybrid
from mixtura.priors import Shrinkage
from mixtura.roles import Objective
from mixtura.selection.folds import hold_outs
from mixtura.selection.plan import Plan, is_auto, make_prior
from mixtura.selection.search import Search, Trial
from mixtura.selection.table import SearchTable
from mixtura.solvers import EM, BaumWelch, FitResult, HeldOut, Outcome, Problem, run
from mixtura.values.storable import storable

# The two penalties: the target of the variances, in units of those that (default-prior) expects, and the number of
# pseudo-samples at the class mean for the mean of every component.
SCALES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
PULLS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
TRADEOFFS = (0.0, 0.1, 0.5, 0.9, 1.0)  # weights of the generative likelihood in the objective
# Start points of the search: the middle, and the best corner. From a single start the search may end at a local maximum
# at which all components of a class coincide.
MIDDLE, CORNERS = (3, 4), ((1, 1), (1, 7), (5, 1), (5, 7))
LOOSE = 1  # position in PULLS of a weak penalty on means, under which the components of a class can separate
MOST_COMPONENTS = 20  # of a class that grows
SMALLEST_GAIN = 2.0  # in the summed log posterior of held-out labels, for one more component
PATIENCE = 2  # consecutive splits without a gain after which growing ends
SMALLEST_HELD_OUT = 20  # samples for early stopping

# max_iter and tol, the same in the comparison and in the last fit: stopping early is a penalty too.
Limits = tuple[int, float]


@storable("setting")
@dataclass(frozen=True)
class Setting:
    """A prior, as `MixtureClassifier` takes it, and the weight of the generative likelihood in the objective."""

    prior: Any
    tradeoff: float

    @property
    def what(self) -> dict[str, Any]:
        """The setting as a table shows it."""
        penalties = {"prior": self.prior}
        if isinstance(self.prior, Shrinkage):
            penalties = {"scale": self.prior.scale, "mean_strength": self.prior.mean_strength}
        return penalties | {"tradeoff": self.tradeoff}

    def of(self, plan: Plan, n_components: list[int]) -> Plan:
        """The plan with this setting and these numbers of components."""
        return replace(with_prior(plan, self.prior, n_components), objective=separating(self.tradeoff))


@storable("growth")
@dataclass(frozen=True)
class Growth:
    """A step that adds components: which classes, whether all of their components are split, and under which setting.

    If not all are split, the component that explains its samples worst is, in each of these classes.
    """

    classes: tuple[int, ...]
    every: bool
    setting: Setting


@dataclass(frozen=True)
class SettingChoice:
    """The setting that a search chose, and the table of the search; None if there was no search.

    Where Ctrl-C ended the search, `mixture` is that of the chosen setting for the samples of a fold.
    """

    setting: Setting
    growth: tuple[Growth, ...] = ()
    table: SearchTable | None = None
    mixture: Mixture | None = None


@dataclass(frozen=True)
class Fold:
    """A plan without the held-out samples, those samples, and a generative start."""

    plan: Plan
    held_out: TensorSource
    start: Mixture

    @property
    def n_held_out(self) -> int:
        """Number of held-out samples."""
        return sum(len(block.rows) for block in self.held_out.blocks())

    def score(self, mixture: Mixture) -> tuple[float, float]:
        """Sum of the log posteriors of the held-out labels, and the weight of the samples."""
        summary = summarise(mixture, self.held_out, Conditional(), locate(self.held_out), self.plan.memory_limit)
        return summary.value, summary.weight


def with_prior(plan: Plan, prior: Any, n_components: list[int]) -> Plan:
    """The plan for these numbers of components, under a prior as `MixtureClassifier` takes it."""
    chosen = make_prior(prior, plan.description, n_components)
    return replace(plan, n_components=n_components, prior=chosen)


def counts_of(mixture: Mixture) -> list[int]:
    """Components per class."""
    return [part.stop - part.start for part in mixture.class_slices]


def separating(tradeoff: float) -> Objective:
    """The objective with this weight of the generative likelihood."""
    return Hybrid(tradeoff, Conditional()) if tradeoff > 0 else Conditional()


def generative(plan: Plan, start: Mixture, limits: Limits) -> Mixture:
    """EM with the default prior. Under strong penalties all components of a class would coincide."""
    return complete(run(EM(), with_prior(plan, "default", counts_of(start)).generative, start, *limits)).mixture


def described(plan: Plan, setting: Setting, start: Mixture) -> Mixture:
    """A generative start after one step of EM under a prior.

    It moves the variances to the range of the prior. Baum-Welch alone would need many short steps for that.
    """
    return EM().step(setting.of(plan, counts_of(start)).generative, start)[0]


def refitted(plan: Plan, setting: Setting, start: Mixture, limits: Limits) -> Mixture:
    """A fit by Baum-Welch from a start."""
    return complete(run(BaumWelch(), setting.of(plan, counts_of(start)).problem, start, *limits)).mixture


def stopped(fold: Fold, setting: Setting, start: Mixture, limits: Limits) -> FitResult:
    """A fit by Baum-Welch, stopped at the step that predicts the held-out samples best."""
    problem = setting.of(fold.plan, counts_of(start)).problem
    return complete(run(BaumWelch(), problem, start, *limits, held_out=HeldOut(lambda mixture: fold.score(mixture)[0])))


def complete(result: FitResult) -> FitResult:
    """A fit, unless Ctrl-C broke it off: half a fit is no candidate."""
    if result.outcome is Outcome.INTERRUPTED:
        raise KeyboardInterrupt
    return result


def cut(plan: Plan, start: Mixture, fit: Mixture, step: Growth, limits: Limits) -> Mixture:
    """A generative start with more components: those that a fit explains worst are split (growing)."""
    about = plan.description
    for own_class in step.classes:
        counts = unexplained(fit, about, own_class)
        numbers = range(len(counts) - 1, -1, -1) if step.every else [int(counts.argmax())]
        for number in numbers:  # from the last one, so that the others keep their numbers
            start = split(start, about, own_class, number)
    return generative(plan, start, limits)


def grow(plan: Plan, start: Mixture, steps: Sequence[Growth], limits: Limits) -> Mixture:
    """A generative start with the components that a search added."""
    for step in steps:
        fit = refitted(plan, step.setting, described(plan, step.setting, start), limits)
        start = cut(plan, start, fit, step, limits)
    return start


def make_folds(plan: Plan, cv: Any, start: Callable[[Plan], Mixture]) -> list[Fold]:
    """Hold out the labeled samples part by part.

    `cv` is as in `hold_outs`. Given splits need samples in memory; otherwise those that the description holds are used.
    """
    rows, labels, weights = _described(plan) if isinstance(cv, Real) else _in_memory(plan, cv)

    def source(chosen: Tensor) -> TensorSource:
        return TensorSource(rows[chosen], labels=labels[chosen], weights=None if weights is None else weights[chosen])

    parts = hold_outs(cv, labels, plan.generator, weights=weights)
    labeled = labels >= 0
    return [_fold(plan, source(part.kept & labeled), source(part.held_out), start) for part in parts]


def _described(plan: Plan) -> tuple[Tensor, Tensor, Tensor | None]:
    samples = plan.description.samples[: len(plan.n_components)]
    rows = torch.cat([rows for rows, _ in samples])
    labels = torch.cat([torch.full((len(part),), c, device=rows.device) for c, (part, _) in enumerate(samples)])
    return rows, labels, torch.cat([weights for _, weights in samples])


def _in_memory(plan: Plan, cv: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    block = next(iter(plan.source.blocks()))
    if block.labels is None or len(block.rows) < plan.description.n_rows:
        raise ValueError(
            f"cv as splits needs samples in memory with one label each; pass a number instead of a {type(cv).__name__}."
        )
    return block.rows, block.labels, block.weights


def _fold(plan: Plan, kept: TensorSource, held_out: TensorSource, start: Callable[[Plan], Mixture]) -> Fold:
    description = describe(kept, len(plan.n_components), plan.generator)
    counts = [min(n, len(rows)) for n, (rows, _) in zip(plan.n_components, description.samples, strict=False)]
    smaller = replace(plan, source=kept, description=description, n_components=counts)
    return Fold(smaller, held_out, start(smaller))


Place = tuple[int, ...]


@dataclass(frozen=True)
class Grid:
    """Settings to compare: both penalties where the prior is "auto", and trade-offs from small to large.

    It has three axes, the two penalties and the trade-off; a given value has an axis of length one.
    """

    prior: Any
    tradeoffs: tuple[float, ...]

    @property
    def sizes(self) -> Place:
        """Places along every axis."""
        return (*((len(SCALES), len(PULLS)) if is_auto(self.prior) else (1, 1)), len(self.tradeoffs))

    def __contains__(self, place: Place) -> bool:
        return all(0 <= number < size for number, size in zip(place, self.sizes, strict=True))

    def __getitem__(self, place: Place) -> Setting:
        scale, pull, share = place
        free = is_auto(self.prior)
        prior = Shrinkage(scale=SCALES[scale], mean_strength=PULLS[pull]) if free else self.prior
        return Setting(prior, self.tradeoffs[share])

    @property
    def middle(self) -> Place:
        return (*(MIDDLE if is_auto(self.prior) else (0, 0)), len(self.tradeoffs) // 2)

    def near(self, place: Place) -> list[Place]:
        """A place, and the one with a weak penalty on means, which has no effect with one component per class."""
        return [place, (place[0], min(place[1], LOOSE), place[2])]

    @property
    def corners(self) -> list[Place]:
        return [(*corner, 0) for corner in CORNERS] if is_auto(self.prior) else [(0, 0, 0)]


@dataclass(frozen=True)
class Optimum:
    """The best place of a climb, its score, larger is better, and the mixtures of the folds there."""

    place: Place
    score: float
    mixtures: list[Mixture]


class Climb:
    """Compares settings and numbers of components by cross-validation.

    Parameters
    ----------
    folds : list of Fold
        Training parts with their starts, and held-out samples.
    grid : Grid
        Settings to compare.
    limits : tuple
        max_iter and tol.
    early_stopping : bool, default=False
        Whether held-out samples say when to stop.
    watch : callable, optional
        Called with every trial.
    """

    def __init__(
        self,
        folds: list[Fold],
        grid: Grid,
        limits: Limits,
        early_stopping: bool = False,
        watch: Callable[[Trial[Optimum]], None] | None = None,
    ):
        self.folds, self.grid, self.limits, self.early_stopping = folds, grid, limits, early_stopping
        self.search: Search[Optimum] = Search("log_loss", watch)

    def run(self, grows: bool) -> SettingChoice:
        """Choose the setting that predicts best, and the classes that are worth more components."""
        choices: list[tuple[Optimum, list[Growth]]] = []

        def climb() -> None:
            starts = [fold.start for fold in self.folds]
            optimum = self.climbed(starts, [self.grid.middle], self.grid.corners)
            choices.append(self.growth(starts, optimum) if grows else (optimum, []))

        self.search.run(climb)
        best, steps = choices[0] if choices else (self.search.best.fit, [])
        chosen = next(trial for trial in self.search.trials if trial.fit is best)
        half = best.mixtures[0] if self.search.interrupted else None
        return SettingChoice(self.grid[best.place], tuple(steps), self.search.table(chosen), half)

    def climbed(self, starts: list[Mixture], *groups: list[Place]) -> Optimum:
        """The best setting for generative starts, one per fold, by hill climbing from the best place of every group."""
        seen: dict[Place, Optimum] = {}

        def look(place: Place) -> float:
            if place not in self.grid:
                return -float("inf")
            if place not in seen:
                seen[place] = self.search.tried(lambda: self.compared(place, starts)).fit
            return seen[place].score

        return seen[max((uphill(look, max(group, key=look)) for group in groups), key=look)]

    def compared(self, place: Place, starts: list[Mixture]) -> Trial[Optimum]:
        """The trial of a setting from generative starts, one per fold."""
        setting = self.grid[place]
        mixtures = [self._fitted(fold, setting, start) for fold, start in zip(self.folds, starts, strict=True)]
        score, error = self.score(mixtures)
        what = setting.what | {"n_components": tuple(counts_of(mixtures[0]))}
        return Trial(what, -score, error, Optimum(place, score, mixtures))

    def _fitted(self, fold: Fold, setting: Setting, start: Mixture) -> Mixture:
        start = described(fold.plan, setting, start)
        if self.early_stopping:
            return stopped(fold, setting, start, self.limits).mixture
        return refitted(fold.plan, setting, start, self.limits)

    def growth(self, starts: list[Mixture], optimum: Optimum) -> tuple[Optimum, list[Growth]]:
        """Split all components, then one at a time, while held-out samples gain (growing)."""
        starts, optimum, steps = self._doubled(starts, optimum)
        failed: list[int] = []
        while len(failed) < PATIENCE and (able := self._able(optimum.mixtures, False, failed)):
            step = Growth((able[0],), False, self.grid[optimum.place])
            more, tried = self._tried(step, starts, optimum)
            if self._gains(tried, optimum):
                starts, optimum, failed = more, tried, []
                steps.append(step)
            else:
                failed.append(able[0])
        return optimum, steps

    def _doubled(self, starts: list[Mixture], optimum: Optimum) -> tuple[list[Mixture], Optimum, list[Growth]]:
        """Split all components repeatedly; a split without a gain is kept if the next one gains."""
        best, best_starts, kept = optimum, starts, 0
        steps: list[Growth] = []
        while len(steps) < kept + PATIENCE and (able := self._able(optimum.mixtures, True, [])):
            steps.append(Growth(tuple(able), True, self.grid[optimum.place]))
            starts, optimum = self._tried(steps[-1], starts, optimum)
            if self._gains(optimum, best):
                best, best_starts, kept = optimum, starts, len(steps)
        return best_starts, best, steps[:kept]

    def _gains(self, tried: Optimum, optimum: Optimum) -> bool:
        return tried.score > optimum.score + SMALLEST_GAIN / self.weight

    def _tried(self, step: Growth, starts: list[Mixture], optimum: Optimum) -> tuple[list[Mixture], Optimum]:
        more = [
            cut(fold.plan, start, fit, step, self.limits)
            for fold, start, fit in zip(self.folds, starts, optimum.mixtures, strict=True)
        ]
        return more, self.climbed(more, self.grid.near(optimum.place))

    def _able(self, mixtures: list[Mixture], every: bool, left_out: list[int]) -> list[int]:
        """Classes that may get twice their components, or one more; the worst explained class first."""
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
        """Weight of all held-out samples, each counted once."""
        held_out = [weight_of(fold.held_out) for fold in self.folds]
        return min(sum(held_out), held_out[0] + weight_of(self.folds[0].plan.source))

    def score(self, mixtures: list[Mixture]) -> tuple[float, float]:
        """Mean log posterior of the held-out labels under the mixture of their fold, and its standard error."""
        pairs = [fold.score(mixture) for fold, mixture in zip(self.folds, mixtures, strict=True)]
        total = sum(weight for _, weight in pairs)
        mean = sum(value for value, _ in pairs) / total
        if len(pairs) == 1:
            return mean, math.nan
        spread = sum(weight * (value / weight - mean) ** 2 for value, weight in pairs) / total
        return mean, math.sqrt(spread / (len(pairs) - 1))


def weight_of(rows: Source) -> float:
    """The weight of all rows."""
    return float(sum(len(b.rows) if b.weights is None else float(b.weights.sum()) for b in rows.blocks()))


def uphill(look: Callable[[Place], float], best: Place) -> Place:
    """The local maximum that hill climbing along the axes reaches from a place."""
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


@dataclass(frozen=True)
class PenaltySearch:
    """Training by conditional likelihood, with penalties and numbers of components by cross-validation (KJO03).

    Parameters
    ----------
    prior, tradeoff, cv, early_stopping, validation_fraction
        As in `DiscriminativeMixtureClassifier`.
    grows : bool
        Whether the numbers of components are to be chosen.
    limits : tuple
        max_iter and tol.
    new_start : callable
        From a plan and a problem to an initialisation of the user's choice.
    first_start : callable
        The same for the fits that are compared.
    """

    prior: Any
    tradeoff: Any
    cv: Any
    early_stopping: bool
    validation_fraction: float
    grows: bool
    limits: Limits
    new_start: Callable[[Plan, Problem], Mixture]
    first_start: Callable[[Plan, Problem], Mixture]

    def choose(self, plan: Plan, watch: Callable[[Trial[Optimum]], None] | None = None) -> SettingChoice:
        """Compare settings, if there is something to choose."""
        if not (is_auto(self.prior) or is_auto(self.tradeoff) or self.grows):
            return SettingChoice(Setting(self.prior, self.tradeoff))
        folds = make_folds(plan, self.cv, lambda part: self._generative(part, self.first_start))
        checks.rows_to_hold_out(len(folds) > 0, "pass prior='default' and numbers for what is 'auto'")
        grid = Grid(self.prior, TRADEOFFS if is_auto(self.tradeoff) else (self.tradeoff,))
        return Climb(folds, grid, self.limits, self.early_stopping, watch).run(self.grows)

    def _generative(self, plan: Plan, new_start: Callable[[Plan, Problem], Mixture]) -> Mixture:
        problem = with_prior(plan, "default", plan.n_components).generative
        return generative(plan, new_start(plan, problem), self.limits)

    def start_of(self, plan: Plan, choice: SettingChoice, given: Mixture | None) -> Mixture:
        """Return the generative start of a fit, with the components that the search added."""
        if given is not None and not choice.growth:
            return given
        start = self._generative(plan, self.new_start) if given is None else given
        return described(plan, choice.setting, grow(plan, start, choice.growth, self.limits))

    def fit(self, plan: Plan, choice: SettingChoice, given: Mixture | None) -> FitResult:
        """Train with all samples; the scores of the result are those of the held-out samples that set its length."""
        start = self.start_of(plan, choice, given)
        length = self._length(plan, choice, given)
        problem = choice.setting.of(plan, counts_of(start)).problem
        max_iter = self.limits[0] if length is None else length.best_iteration
        result = run(BaumWelch(), problem, start, max_iter, self.limits[1])
        if length is None:
            return result
        ended = result.outcome is Outcome.LIMIT
        return replace(result, scores=length.scores, outcome=Outcome.HELD_OUT if ended else result.outcome)

    def _length(self, plan: Plan, choice: SettingChoice, given: Mixture | None) -> FitResult | None:
        """Return a fit that held-out samples ended; None where they are not asked, or too few."""
        if not self.early_stopping:
            return None
        folds = make_folds(plan, float(self.validation_fraction), lambda part: self.start_of(part, choice, given))
        for fold in folds:
            if fold.n_held_out >= SMALLEST_HELD_OUT:
                result = stopped(fold, choice.setting, fold.start, self.limits)
                weight = fold.score(result.mixture)[1]
                return replace(result, scores=tuple((number, score / weight) for number, score in result.scores))
        return None
