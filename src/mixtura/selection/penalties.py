"""Selecting penalties and numbers of components of discriminative training by cross-validation (KJO03)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from numbers import Real
from typing import TypeAlias, cast

from mixtura import checks
from mixtura.engine.passes import summarise
from mixtura.engine.sources import Block, BlockSource, Source, locate
from mixtura.files.registry import storable
from mixtura.init.starts import split, unexplained
from mixtura.model.mixture import Mixture
from mixtura.objectives import Conditional, Hybrid
from mixtura.priors import Shrinkage
from mixtura.roles import Objective
from mixtura.selection.search import Search, SearchTable, Trial, check_complete
from mixtura.selection.splits import hold_outs, regroup
from mixtura.selection.task import PriorChoice, Selected, Task, is_auto, make_prior, start
from mixtura.solvers import EM, BaumWelch, EarlyStopping, FitResult, Outcome, run


@storable("setting")
@dataclass(frozen=True)
class Setting:
    """A prior, as `MixtureClassifier` takes it, and the weight of the generative likelihood in the objective."""

    prior: PriorChoice
    tradeoff: float

    @property
    def what(self) -> dict[str, object]:
        """The setting as a table shows it."""
        penalties: dict[str, object] = {"prior": self.prior}
        if isinstance(self.prior, Shrinkage):
            penalties = {"scale": self.prior.scale, "mean_strength": self.prior.mean_strength}
        return penalties | {"tradeoff": self.tradeoff}

    def of(self, task: Task, n_components: list[int]) -> Task:
        """The task with this setting and these numbers of components."""
        return replace(with_prior(task, self.prior, n_components), objective=make_objective(self.tradeoff))


@storable("growth")
@dataclass(frozen=True)
class Growth:
    """A step that adds components: which classes, whether all of their components are split, and under which setting.

    If not all are split, the component that explains its samples worst is, in each of these classes.
    """

    classes: tuple[int, ...]
    every: bool
    setting: Setting


def with_prior(task: Task, prior: PriorChoice, n_components: list[int]) -> Task:
    """The task for these numbers of components, under a prior as `MixtureClassifier` takes it."""
    chosen = make_prior(prior, task.description, n_components)
    return replace(task, n_components=n_components, prior=chosen)


def make_objective(tradeoff: float) -> Objective:
    """The objective with this weight of the generative likelihood."""
    return Hybrid(tradeoff, Conditional()) if tradeoff > 0 else Conditional()


def fit_generative(task: Task, start: Mixture) -> Mixture:
    """EM with the default prior. Under strong penalties all components of a class would coincide."""
    problem = with_prior(task, "default", start.class_sizes).generative
    result = run(EM(), problem, start, *task.limits)
    check_complete(result)  # half a fit is no candidate
    return result.mixture


def adapt_to_prior(task: Task, setting: Setting, start: Mixture) -> Mixture:
    """A generative start after one step of EM under a prior.

    It moves the variances to the range of the prior. Baum-Welch alone would need many short steps for that.
    """
    return EM().step(setting.of(task, start.class_sizes).generative, start)[0]


def fit_discriminative(task: Task, setting: Setting, start: Mixture, early_stopping: bool = False) -> FitResult:
    """A fit by Baum-Welch, with early stopping up to the step that predicts the held-out samples best."""
    problem = setting.of(task, start.class_sizes).problem
    judge = EarlyStopping(lambda mixture: score_held_out(task, mixture)[0]) if early_stopping else None
    result = run(BaumWelch(), problem, start, *task.limits, held_out=judge)
    check_complete(result)
    return result


def score_held_out(task: Task, mixture: Mixture) -> tuple[float, float]:
    """Sum of the log posteriors of the held-out labels, and the weight of the samples."""
    assert task.held_out is not None
    summary = summarise(mixture, task.held_out, Conditional(), locate(task.held_out), task.memory_limit)
    return summary.value, summary.weight


def add_components(task: Task, start: Mixture, fit: Mixture, step: Growth) -> Mixture:
    """A generative start with more components: those that a fit explains worst are split (growing)."""
    about = task.description
    for own_class in step.classes:
        counts = unexplained(fit, about, own_class)
        numbers = range(len(counts) - 1, -1, -1) if step.every else [int(counts.argmax())]
        for number in numbers:  # from the last one, so that the others keep their numbers
            start = split(start, about, own_class, number)
    return fit_generative(task, start)


def repeat_growth(task: Task, start: Mixture, steps: Sequence[Growth]) -> Mixture:
    """A generative start with the components that a search added."""
    for step in steps:
        fit = fit_discriminative(task, step.setting, adapt_to_prior(task, step.setting, start))
        start = add_components(task, start, fit.mixture, step)
    return start


def make_folds(task: Task, cv: object, fit_start: Callable[[Task], Mixture]) -> list[Task]:
    """Hold out the labeled samples part by part: tasks without them, each with a generative start.

    `cv` is as in `hold_outs`. Given splits need samples in memory; otherwise those that the description holds are used.
    The limits are those of the last fit: stopping early is a penalty too.
    """
    cv = regroup(task.cv, cv) if isinstance(cv, Real) else cv
    samples = _described(task) if isinstance(cv, Real) else _in_memory(task)
    labels = samples.labels
    assert labels is not None
    parts = hold_outs(cv, labels, task.generator, weights=samples.weights)
    labeled = labels >= 0
    for part in parts:
        if set(labels[part.kept & labeled].tolist()) != set(labels[labeled].tolist()):
            raise ValueError("Every training set of cv must have samples of every class; pass a number of folds.")
    folds = []
    for part in parts:
        own = task.of_part(BlockSource(samples.part(part.kept & labeled)))
        held_out = BlockSource(samples.part(part.held_out))
        folds.append(replace(own, init="kmeans", start=fit_start(own), held_out=held_out))
    return folds


def _described(task: Task) -> Block:
    rows, labels, weights = task.description.labeled
    return Block(rows, labels, weights=weights)


def _in_memory(task: Task) -> Block:
    block = next(iter(task.source.blocks()))
    if block.labels is None or len(block.rows) < task.description.n_rows:
        raise ValueError(
            "Splits given by cv or by groups need samples in memory with one label each; pass a number for cv and no "
            "groups."
        )
    return Block(block.rows, block.labels, weights=block.weights)


def weight_of(rows: Source) -> float:
    """The weight of all rows."""
    return float(sum(len(b.rows) if b.weights is None else float(b.weights.sum()) for b in rows.blocks()))


# The two penalties: the target of the variances, in units of those that (default-prior) expects, and the number of
# pseudo-samples at the class mean for the mean of every component.
SCALES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
PULLS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
TRADEOFFS = (0.0, 0.1, 0.5, 0.9, 1.0)  # weights of the generative likelihood in the objective
# Start points of the search: the middle, and the best corner. From a single start the search may end at a local maximum
# at which all components of a class coincide.
CORNERS = ((1, 1, 0), (1, 7, 0), (5, 1, 0), (5, 7, 0))
LOOSE = 1  # position in PULLS of a weak penalty on means, under which the components of a class can separate
MOST_COMPONENTS = 20  # of a class that grows
SMALLEST_GAIN = 2.0  # in the summed log posterior of held-out labels, for one more component
PATIENCE = 2  # consecutive splits without a gain after which growing ends
SMALLEST_HELD_OUT = 20  # samples for early stopping


Place: TypeAlias = tuple[int, ...]  # of a setting in a grid: numbers of scale, pull and trade-off
# Of a setting to the folds, as far as they were tried: mixtures, summed log posteriors of held-out labels, and weights.
Fits: TypeAlias = list[tuple[Mixture, float, float]]


def make_grid(prior: PriorChoice, tradeoffs: Sequence[float]) -> dict[Place, Setting]:
    """Settings to compare: both penalties where the prior is "auto", and trade-offs from small to large."""
    penalties = {(0, 0): prior}
    if is_auto(prior):
        pairs = product(enumerate(SCALES), enumerate(PULLS))
        penalties = {(i, j): Shrinkage(scale=scale, mean_strength=pull) for (i, scale), (j, pull) in pairs}
    return {(*at, k): Setting(own, share) for at, own in penalties.items() for k, share in enumerate(tradeoffs)}


class HillClimb:
    """Compares settings and numbers of components by cross-validation.

    Parameters
    ----------
    folds : list of Task
        Training parts with their starts, and held-out samples.
    grid : dict of tuple to Setting
        Settings to compare.
    early_stopping : bool, default=False
        Whether held-out samples say when to stop.
    """

    def __init__(self, folds: list[Task], grid: dict[Place, Setting], early_stopping: bool = False):
        self.folds, self.grid, self.early_stopping = folds, grid, early_stopping
        self.search: Search[tuple[Setting, Fits]] = Search("log_loss")

    def run(self, grows: bool) -> tuple[Trial[tuple[Setting, Fits]], list[Growth]]:
        """The trial of the setting that predicts best, and the steps that added components."""
        ends: list[tuple[Fits, list[Growth]]] = []

        def climb() -> None:
            starts = [start(fold) for fold in self.folds]
            place, fits = self.best_setting(starts, [self.middle], self.corners)
            ends.append(self.growth(starts, place, fits) if grows else (fits, []))

        self.search.run(climb)
        for fits, steps in ends:
            return next(trial for trial in self.search.trials if trial.fit[1] is fits), steps
        return self.search.best, []

    @property
    def middle(self) -> Place:
        """The middle of every axis of the grid."""
        return tuple((last + 1) // 2 for last in max(self.grid))

    @property
    def corners(self) -> list[Place]:
        return [corner for corner in CORNERS if corner in self.grid] or [(0, 0, 0)]

    def best_setting(self, starts: list[Mixture], *groups: list[Place]) -> tuple[Place, Fits]:
        """The best setting for generative starts, one per fold, by hill climbing from the best place of every group."""
        seen: dict[Place, Fits] = {}

        def score(place: Place) -> float:
            return self.bound(seen[place])

        def exceeds(place: Place, other: Place) -> bool:
            self._race([place], starts, seen, score(other))
            return place in seen and score(place) > score(other)

        def best_place(group: list[Place]) -> Place:
            self._race(group, starts, seen)
            return max((place for place in group if place in seen), key=score)

        best = max((uphill(exceeds, best_place(group)) for group in groups), key=score)
        return best, seen[best]

    def bound(self, fits: Fits) -> float:
        """Mean log posterior of all held-out labels; an upper bound while folds are missing, as none is above zero."""
        return sum(value for _, value, _ in fits) / sum(self.weights)

    @cached_property
    def weights(self) -> list[float]:
        """Weight of the held-out samples of each fold."""
        return [weight_of(fold.held_out) for fold in self.folds if fold.held_out is not None]

    def _race(
        self, places: list[Place], starts: list[Mixture], seen: dict[Place, Fits], than: float = -float("inf")
    ) -> None:
        """Fit fold after fold at the most promising place, until it has all folds or no place can exceed a score.

        The best place is the same as if all folds were fitted everywhere.
        """
        live = {place: seen.get(place, []) for place in places if place in self.grid}
        extended: set[Place] = set()

        def most_promising() -> Place | None:
            """The place to go on with; None at the end."""
            best = max(live, key=lambda place: self.bound(live[place]), default=None)
            over = best is None or self.bound(live[best]) <= than or len(live[best]) == len(self.folds)
            return None if over else best

        def trials() -> list[Trial[tuple[Setting, Fits]]]:
            while (best := most_promising()) is not None:
                live[best] = [*live[best], self._fit_next(best, live[best], starts)]
                extended.add(best)
            return [self._trial(self.grid[place], fits) for place, fits in live.items() if place in extended]

        if most_promising() is not None:
            self.search.try_together(trials)
        seen.update(live)

    def _fit_next(self, place: Place, fits: Fits, starts: list[Mixture]) -> tuple[Mixture, float, float]:
        """The fit to the next fold, and its score."""
        fold, setting = self.folds[len(fits)], self.grid[place]
        first = adapt_to_prior(fold, setting, starts[len(fits)])
        mixture = fit_discriminative(fold, setting, first, self.early_stopping).mixture
        return mixture, *score_held_out(fold, mixture)

    def _trial(self, setting: Setting, fits: Fits) -> Trial[tuple[Setting, Fits]]:
        """The trial of a setting: mean log-loss of the folds that were tried, and its standard error."""
        total, error = sum(weight for _, _, weight in fits), math.nan
        mean = sum(value for _, value, _ in fits) / total
        if len(fits) > 1:
            spread = sum(weight * (value / weight - mean) ** 2 for _, value, weight in fits) / total
            error = math.sqrt(spread / (len(fits) - 1))
        sizes = {"n_components": tuple(fits[0][0].class_sizes), "n_folds": len(fits)}
        return Trial(setting.what | sizes, -mean, error, (setting, fits))

    def growth(self, starts: list[Mixture], place: Place, fits: Fits) -> tuple[Fits, list[Growth]]:
        """Split all components, then one at a time, while held-out samples gain (growing)."""
        starts, place, fits, steps = self._double(starts, place, fits)
        failed: list[int] = []
        while len(failed) < PATIENCE and (able := self._able(fits, False, failed)):
            step = Growth((able[0],), False, self.grid[place])
            more, near, tried = self._try_step(step, starts, place, fits)
            if self._gains(tried, fits):
                starts, place, fits, failed = more, near, tried, []
                steps.append(step)
            else:
                failed.append(able[0])
        return fits, steps

    def _double(
        self, starts: list[Mixture], place: Place, fits: Fits
    ) -> tuple[list[Mixture], Place, Fits, list[Growth]]:
        """Split all components repeatedly; a split without a gain is kept if the next one gains."""
        best, kept = (starts, place, fits), 0
        steps: list[Growth] = []
        while len(steps) < kept + PATIENCE and (able := self._able(fits, True, [])):
            steps.append(Growth(tuple(able), True, self.grid[place]))
            starts, place, fits = self._try_step(steps[-1], starts, place, fits)
            if self._gains(fits, best[-1]):
                best, kept = (starts, place, fits), len(steps)
        return *best, steps[:kept]

    def _gains(self, tried: Fits, fits: Fits) -> bool:
        """Whether fits gain, in units of the weight of all held-out samples, each counted once."""
        total = min(sum(self.weights), self.weights[0] + weight_of(self.folds[0].source))
        return self.bound(tried) > self.bound(fits) + SMALLEST_GAIN / total

    def _try_step(
        self, step: Growth, starts: list[Mixture], place: Place, fits: Fits
    ) -> tuple[list[Mixture], Place, Fits]:
        """Starts with more components, and the best setting for them near a place.

        That is this place or the one with a weak penalty on means, which has no effect with one component per class.
        """
        more = [
            add_components(fold, start, fit, step)
            for fold, start, (fit, _, _) in zip(self.folds, starts, fits, strict=True)
        ]
        return more, *self.best_setting(more, [place, (place[0], min(place[1], LOOSE), place[2])])

    def _able(self, fits: Fits, every: bool, left_out: list[int]) -> list[int]:
        """Classes that may get twice their components, or one more; the worst explained class first."""
        totals: dict[int, float] = {}
        mixtures = [mixture for mixture, _, _ in fits]
        for c in range(len(mixtures[0].class_slices)):
            most = min(MOST_COMPONENTS, *(len(fold.description.samples[c][0]) for fold in self.folds))
            count = max(mixture.class_sizes[c] for mixture in mixtures)
            if c not in left_out and (2 * count if every else count + 1) <= most:
                pairs = zip(mixtures, self.folds, strict=True)
                totals[c] = sum(float(unexplained(m, fold.description, c).max()) for m, fold in pairs)
        return sorted(totals, key=lambda c: -totals[c])


def uphill(exceeds: Callable[[Place, Place], bool], best: Place) -> Place:
    """The local maximum that hill climbing along the axes reaches from a place."""
    moved = True
    while moved:
        moved = False
        for axis in range(len(best)):
            for step in (1, -1):
                while exceeds(beside(best, axis, step), best):
                    best, moved = beside(best, axis, step), True
    return best


def beside(place: Place, axis: int, step: int) -> Place:
    """The neighbour of a place along an axis."""
    return (*place[:axis], place[axis] + step, *place[axis + 1 :])


@dataclass(frozen=True)
class PenaltySearch:
    """Selects penalties and numbers of components by cross-validation, for training by conditional likelihood (KJO03).

    Parameters
    ----------
    prior, tradeoff, tol, early_stopping, validation_fraction
        As in `DiscriminativeMixtureClassifier`.
    known : Setting or None
        The setting of a fit that is continued; None if it is to be selected.
    table : SearchTable or None
        Of the search that selected the known setting.
    grows : bool
        Whether the numbers of components are to be chosen.
    """

    prior: PriorChoice
    tradeoff: float | str
    tol: float | str
    known: Setting | None
    table: SearchTable | None
    early_stopping: bool
    validation_fraction: float
    grows: bool

    def run(self, task: Task) -> Selected[Task]:
        """Compare settings, if there is something to choose."""
        checks.has_update(task.structure.name, task.structure.has_update)
        if is_auto(self.tol):  # changes the log posterior of all labels by less than 0.4
            task = replace(task, tol=min(max(0.4 / task.description.weight, 1e-5), 1e-3))
        setting, growth, table = self.known, (), self.table
        climb, fits = None, []
        if setting is None and not (is_auto(self.prior) or is_auto(self.tradeoff) or self.grows):
            setting = Setting(self.prior, cast("float", self.tradeoff))
        elif setting is None:
            climb = self._climb(task)
            best, growth = climb.run(self.grows)
            table, (setting, fits) = climb.search.table(best), best.fit
        task = setting.of(task, task.n_components)
        attributes: dict[str, object] = {"validation_scores_": []}
        if self.known is None:
            attributes |= {"growth_": tuple(growth), "prior_": setting.prior, "tradeoff_": setting.tradeoff}
        results = (task.from_fit(fits[0][0]).interrupted(),) if climb is not None and climb.search.interrupted else ()
        pairs = zip(fits, climb.folds if climb else (), strict=False)
        folds = [(fit, fold.held_out) for (fit, _, _), fold in pairs if fold.held_out is not None]
        return Selected((task,), table, results, partial(self._train, setting, growth), attributes, folds=folds)

    def _climb(self, task: Task) -> HillClimb:
        """The comparison on folds of the samples."""
        folds = make_folds(task, task.cv, lambda part: start_generative(replace(part, init="kmeans")))
        checks.rows_to_hold_out(len(folds) > 0, "pass prior='default' and numbers for what is 'auto'")
        tradeoffs = TRADEOFFS if is_auto(self.tradeoff) else (cast("float", self.tradeoff),)
        return HillClimb(folds, make_grid(self.prior, tradeoffs), self.early_stopping)

    def _start(self, setting: Setting, growth: Sequence[Growth], task: Task) -> Mixture:
        """The generative start of a fit, with the components that the search added."""
        given = isinstance(task.init, Mixture)
        if given and not growth:
            return start(task)
        first = start(task) if given else start_generative(task)
        return adapt_to_prior(task, setting, repeat_growth(task, first, growth))

    def _train(self, setting: Setting, growth: Sequence[Growth], task: Task) -> FitResult:
        """Train with all samples; with early stopping, as many steps as were best for held-out samples."""
        first, length = self._start(setting, growth, task), self._length(setting, growth, task)
        problem = setting.of(task, first.class_sizes).problem
        max_iter = task.max_iter if length is None else length.best_iteration
        result = run(BaumWelch(), problem, first, max_iter, task.tol)
        if length is None:
            return result
        ended = result.outcome is Outcome.LIMIT
        return replace(result, scores=length.scores, outcome=Outcome.HELD_OUT if ended else result.outcome)

    def _length(self, setting: Setting, growth: Sequence[Growth], task: Task) -> FitResult | None:
        """A fit to a part of the samples, ended by the others; None without early stopping or with too few samples."""
        if not self.early_stopping:
            return None
        for fold in make_folds(task, float(self.validation_fraction), partial(self._start, setting, growth)):
            assert fold.held_out is not None
            if sum(len(block.rows) for block in fold.held_out.blocks()) >= SMALLEST_HELD_OUT:
                result = fit_discriminative(fold, setting, start(fold), early_stopping=True)
                weight = score_held_out(fold, result.mixture)[1]
                scores = tuple((number, cast("float", score) / weight) for number, score in result.scores)
                return replace(result, scores=scores)
        return None


def start_generative(task: Task) -> Mixture:
    """Fit the initial mixture of a task by EM with the default prior."""
    return fit_generative(task, start(with_prior(task, "default", task.n_components)))
