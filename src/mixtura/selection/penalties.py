"""Selecting penalties and numbers of components of discriminative training by cross-validation (KJO03)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import cast

import torch
from torch import Tensor

from mixtura import checks
from mixtura.engine.passes import summarise
from mixtura.engine.sources import Source, TensorSource, locate
from mixtura.files.registry import storable
from mixtura.init.starts import split, unexplained
from mixtura.model.mixture import Mixture
from mixtura.objectives import Conditional, Hybrid
from mixtura.priors import Shrinkage
from mixtura.roles import Objective
from mixtura.selection.search import Search, SearchTable, Trial
from mixtura.selection.splits import hold_outs, regroup
from mixtura.selection.task import PriorChoice, Selected, Task, is_auto, make_prior, start
from mixtura.solvers import EM, BaumWelch, EarlyStopping, FitResult, Outcome, run

# max_iter and tol, the same in the comparison and in the last fit: stopping early is a penalty too.
Limits = tuple[int, float]


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


@dataclass(frozen=True)
class Fold:
    """A task without the held-out samples, those samples, and a generative start."""

    task: Task
    held_out: TensorSource
    start: Mixture

    @property
    def n_held_out(self) -> int:
        """Number of held-out samples."""
        return sum(len(block.rows) for block in self.held_out.blocks())

    def score(self, mixture: Mixture) -> tuple[float, float]:
        """Sum of the log posteriors of the held-out labels, and the weight of the samples."""
        summary = summarise(mixture, self.held_out, Conditional(), locate(self.held_out), self.task.memory_limit)
        return summary.value, summary.weight


def with_prior(task: Task, prior: PriorChoice, n_components: list[int]) -> Task:
    """The task for these numbers of components, under a prior as `MixtureClassifier` takes it."""
    chosen = make_prior(prior, task.description, n_components)
    return replace(task, n_components=n_components, prior=chosen)


def make_objective(tradeoff: float) -> Objective:
    """The objective with this weight of the generative likelihood."""
    return Hybrid(tradeoff, Conditional()) if tradeoff > 0 else Conditional()


def fit_generative(task: Task, start: Mixture, limits: Limits) -> Mixture:
    """EM with the default prior. Under strong penalties all components of a class would coincide."""
    return check_complete(run(EM(), with_prior(task, "default", start.class_sizes).generative, start, *limits)).mixture


def adapt_to_prior(task: Task, setting: Setting, start: Mixture) -> Mixture:
    """A generative start after one step of EM under a prior.

    It moves the variances to the range of the prior. Baum-Welch alone would need many short steps for that.
    """
    return EM().step(setting.of(task, start.class_sizes).generative, start)[0]


def fit_discriminative(task: Task, setting: Setting, start: Mixture, limits: Limits) -> Mixture:
    """A fit by Baum-Welch from a start."""
    return check_complete(run(BaumWelch(), setting.of(task, start.class_sizes).problem, start, *limits)).mixture


def fit_until_best(fold: Fold, setting: Setting, start: Mixture, limits: Limits) -> FitResult:
    """A fit by Baum-Welch, stopped at the step that predicts the held-out samples best."""
    problem = setting.of(fold.task, start.class_sizes).problem
    return check_complete(
        run(BaumWelch(), problem, start, *limits, held_out=EarlyStopping(lambda mixture: fold.score(mixture)[0]))
    )


def check_complete(result: FitResult) -> FitResult:
    """Return a fit; raise KeyboardInterrupt again if Ctrl-C interrupted it, since half a fit is no candidate."""
    if result.outcome is Outcome.INTERRUPTED:
        raise KeyboardInterrupt
    return result


def add_components(task: Task, start: Mixture, fit: Mixture, step: Growth, limits: Limits) -> Mixture:
    """A generative start with more components: those that a fit explains worst are split (growing)."""
    about = task.description
    for own_class in step.classes:
        counts = unexplained(fit, about, own_class)
        numbers = range(len(counts) - 1, -1, -1) if step.every else [int(counts.argmax())]
        for number in numbers:  # from the last one, so that the others keep their numbers
            start = split(start, about, own_class, number)
    return fit_generative(task, start, limits)


def repeat_growth(task: Task, start: Mixture, steps: Sequence[Growth], limits: Limits) -> Mixture:
    """A generative start with the components that a search added."""
    for step in steps:
        fit = fit_discriminative(task, step.setting, adapt_to_prior(task, step.setting, start), limits)
        start = add_components(task, start, fit, step, limits)
    return start


def make_folds(task: Task, cv: object, start: Callable[[Task], Mixture]) -> list[Fold]:
    """Hold out the labeled samples part by part.

    `cv` is as in `hold_outs`. Given splits need samples in memory; otherwise those that the description holds are used.
    """
    cv = regroup(task.cv, cv) if isinstance(cv, Real) else cv
    rows, labels, weights = _described(task) if isinstance(cv, Real) else _in_memory(task, cv)

    def source(chosen: Tensor) -> TensorSource:
        return TensorSource(rows[chosen], labels=labels[chosen], weights=None if weights is None else weights[chosen])

    parts = hold_outs(cv, labels, task.generator, weights=weights)
    labeled = labels >= 0
    for part in parts:
        if set(labels[part.kept & labeled].tolist()) != set(labels[labeled].tolist()):
            raise ValueError("Every training set of cv must have samples of every class; pass a number of folds.")
    folds = []
    for part in parts:
        own = task.of_part(source(part.kept & labeled))
        folds.append(Fold(own, source(part.held_out), start(own)))
    return folds


def _described(task: Task) -> tuple[Tensor, Tensor, Tensor | None]:
    samples = task.description.samples[: len(task.n_components)]
    rows = torch.cat([rows for rows, _ in samples])
    labels = torch.cat([torch.full((len(part),), c, device=rows.device) for c, (part, _) in enumerate(samples)])
    return rows, labels, torch.cat([weights for _, weights in samples])


def _in_memory(task: Task, cv: object) -> tuple[Tensor, Tensor, Tensor | None]:
    block = next(iter(task.source.blocks()))
    if block.labels is None or len(block.rows) < task.description.n_rows:
        raise ValueError(
            "Splits given by cv or by groups need samples in memory with one label each; pass a number for cv and no "
            "groups."
        )
    return block.rows, block.labels, block.weights


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
MIDDLE, CORNERS = (3, 4), ((1, 1), (1, 7), (5, 1), (5, 7))
LOOSE = 1  # position in PULLS of a weak penalty on means, under which the components of a class can separate
MOST_COMPONENTS = 20  # of a class that grows
SMALLEST_GAIN = 2.0  # in the summed log posterior of held-out labels, for one more component
PATIENCE = 2  # consecutive splits without a gain after which growing ends
SMALLEST_HELD_OUT = 20  # samples for early stopping


@dataclass(frozen=True)
class SettingChoice:
    """The setting that a search chose, and the table of the search; None if there was no search.

    Where Ctrl-C ended the search, `mixture` is that of the chosen setting for the samples of a fold. `folds` are its
    fits to all folds, and the samples that they have not seen.
    """

    setting: Setting
    growth: tuple[Growth, ...] = ()
    table: SearchTable | None = None
    mixture: Mixture | None = None
    folds: tuple[tuple[Mixture, Source], ...] = ()


Place = tuple[int, ...]


@dataclass(frozen=True)
class Grid:
    """Settings to compare: both penalties where the prior is "auto", and trade-offs from small to large.

    It has three axes, the two penalties and the trade-off; a given value has an axis of length one.
    """

    prior: PriorChoice
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
    """A place, its score, larger is better, and the mixtures of the folds there.

    While folds are missing, the score is an upper bound: log posteriors are at most zero.
    """

    place: Place
    score: float
    mixtures: list[Mixture]
    values: tuple[tuple[float, float], ...] = ()  # summed log posteriors of the held-out labels, and weights


class HillClimb:
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
            optimum = self.best_setting(starts, [self.grid.middle], self.grid.corners)
            choices.append(self.growth(starts, optimum) if grows else (optimum, []))

        self.search.run(climb)
        best, steps = choices[0] if choices else (self.search.best.fit, [])
        chosen = next(trial for trial in self.search.trials if trial.fit is best)
        half = best.mixtures[0] if self.search.interrupted else None
        held_out = tuple((mixture, fold.held_out) for mixture, fold in zip(best.mixtures, self.folds, strict=False))
        return SettingChoice(self.grid[best.place], tuple(steps), self.search.table(chosen), half, held_out)

    def best_setting(self, starts: list[Mixture], *groups: list[Place]) -> Optimum:
        """The best setting for generative starts, one per fold, by hill climbing from the best place of every group."""
        seen: dict[Place, Optimum] = {}

        def exceeds(place: Place, other: Place) -> bool:
            self._race([place], starts, seen, seen[other].score)
            return place in seen and seen[place].score > seen[other].score

        def best_place(group: list[Place]) -> Place:
            self._race(group, starts, seen)
            return max((place for place in group if place in seen), key=lambda place: seen[place].score)

        return max((seen[uphill(exceeds, best_place(group))] for group in groups), key=lambda optimum: optimum.score)

    def _race(
        self, places: list[Place], starts: list[Mixture], seen: dict[Place, Optimum], than: float = -float("inf")
    ) -> None:
        """Fit fold after fold at the most promising place, until it has all folds or no place can exceed a score.

        The best place is the same as if all folds were fitted everywhere.
        """
        live = {place: seen.get(place, Optimum(place, 0.0, [])) for place in places if place in self.grid}
        extended: set[Place] = set()

        def most_promising() -> Optimum | None:
            """The place to go on with; None at the end."""
            best = max(live.values(), key=lambda optimum: optimum.score, default=None)
            over = best is None or best.score <= than or len(best.mixtures) == len(self.folds)
            return None if over else best

        def trials() -> list[Trial[Optimum]]:
            while (best := most_promising()) is not None:
                live[best.place] = self._with_next_fold(best, starts)
                extended.add(best.place)
            return [self._trial(optimum) for place, optimum in live.items() if place in extended]

        if most_promising() is not None:
            self.search.try_together(trials)
        seen.update(live)

    def _with_next_fold(self, optimum: Optimum, starts: list[Mixture]) -> Optimum:
        number = len(optimum.mixtures)
        mixture = self._fit(self.folds[number], self.grid[optimum.place], starts[number])
        values = (*optimum.values, self.folds[number].score(mixture))
        score = sum(value for value, _ in values) / sum(weight_of(fold.held_out) for fold in self.folds)
        return Optimum(optimum.place, score, [*optimum.mixtures, mixture], values)

    def _trial(self, optimum: Optimum) -> Trial[Optimum]:
        mean, error = _mean(optimum.values)
        sizes = {"n_components": tuple(optimum.mixtures[0].class_sizes), "n_folds": len(optimum.mixtures)}
        return Trial(self.grid[optimum.place].what | sizes, -mean, error, optimum)

    def _fit(self, fold: Fold, setting: Setting, start: Mixture) -> Mixture:
        start = adapt_to_prior(fold.task, setting, start)
        if self.early_stopping:
            return fit_until_best(fold, setting, start, self.limits).mixture
        return fit_discriminative(fold.task, setting, start, self.limits)

    def growth(self, starts: list[Mixture], optimum: Optimum) -> tuple[Optimum, list[Growth]]:
        """Split all components, then one at a time, while held-out samples gain (growing)."""
        starts, optimum, steps = self._double(starts, optimum)
        failed: list[int] = []
        while len(failed) < PATIENCE and (able := self._able(optimum.mixtures, False, failed)):
            step = Growth((able[0],), False, self.grid[optimum.place])
            more, tried = self._try_step(step, starts, optimum)
            if self._gains(tried, optimum):
                starts, optimum, failed = more, tried, []
                steps.append(step)
            else:
                failed.append(able[0])
        return optimum, steps

    def _double(self, starts: list[Mixture], optimum: Optimum) -> tuple[list[Mixture], Optimum, list[Growth]]:
        """Split all components repeatedly; a split without a gain is kept if the next one gains."""
        best, best_starts, kept = optimum, starts, 0
        steps: list[Growth] = []
        while len(steps) < kept + PATIENCE and (able := self._able(optimum.mixtures, True, [])):
            steps.append(Growth(tuple(able), True, self.grid[optimum.place]))
            starts, optimum = self._try_step(steps[-1], starts, optimum)
            if self._gains(optimum, best):
                best, best_starts, kept = optimum, starts, len(steps)
        return best_starts, best, steps[:kept]

    def _gains(self, tried: Optimum, optimum: Optimum) -> bool:
        return tried.score > optimum.score + SMALLEST_GAIN / self.weight

    def _try_step(self, step: Growth, starts: list[Mixture], optimum: Optimum) -> tuple[list[Mixture], Optimum]:
        more = [
            add_components(fold.task, start, fit, step, self.limits)
            for fold, start, fit in zip(self.folds, starts, optimum.mixtures, strict=True)
        ]
        return more, self.best_setting(more, self.grid.near(optimum.place))

    def _able(self, mixtures: list[Mixture], every: bool, left_out: list[int]) -> list[int]:
        """Classes that may get twice their components, or one more; the worst explained class first."""
        totals: dict[int, float] = {}
        for c in range(len(mixtures[0].class_slices)):
            most = min(MOST_COMPONENTS, *(len(fold.task.description.samples[c][0]) for fold in self.folds))
            count = max(mixture.class_sizes[c] for mixture in mixtures)
            if c not in left_out and (2 * count if every else count + 1) <= most:
                pairs = zip(mixtures, self.folds, strict=True)
                totals[c] = sum(float(unexplained(m, fold.task.description, c).max()) for m, fold in pairs)
        return sorted(totals, key=lambda c: -totals[c])

    @property
    def weight(self) -> float:
        """Weight of all held-out samples, each counted once."""
        held_out = [weight_of(fold.held_out) for fold in self.folds]
        return min(sum(held_out), held_out[0] + weight_of(self.folds[0].task.source))


def _mean(values: tuple[tuple[float, float], ...]) -> tuple[float, float]:
    """Mean log posterior of the held-out labels, from the sums and weights of folds, and its standard error."""
    total = sum(weight for _, weight in values)
    mean = sum(value for value, _ in values) / total
    if len(values) == 1:
        return mean, math.nan
    spread = sum(weight * (value / weight - mean) ** 2 for value, weight in values) / total
    return mean, math.sqrt(spread / (len(values) - 1))


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

    def run(self, task: Task, watch: Callable[[Trial[Optimum]], None] | None = None) -> Selected[Task]:
        """Compare settings, if there is something to choose."""
        checks.has_update(task.structure.name, task.structure.has_update)
        if is_auto(self.tol):  # changes the log posterior of all labels by less than 0.4
            task = replace(task, tol=min(max(0.4 / task.description.weight, 1e-5), 1e-3))
        choice = self.choose(task, watch) if self.known is None else SettingChoice(self.known, table=self.table)
        task = choice.setting.of(task, task.n_components)
        results = () if choice.mixture is None else (task.interrupted(choice.mixture),)
        attributes: dict[str, object] = {"validation_scores_": []}
        if self.known is None:
            attributes |= {"growth_": choice.growth}
            attributes |= {"prior_": choice.setting.prior, "tradeoff_": choice.setting.tradeoff}
        return Selected((task,), choice.table, results, partial(self._train, choice), attributes, folds=choice.folds)

    def choose(self, task: Task, watch: Callable[[Trial[Optimum]], None] | None = None) -> SettingChoice:
        """Compare settings, if there is something to choose."""
        if not (is_auto(self.prior) or is_auto(self.tradeoff) or self.grows):
            return SettingChoice(Setting(self.prior, cast("float", self.tradeoff)))
        folds = make_folds(task, task.cv, lambda part: start_generative(replace(part, init="kmeans")))
        checks.rows_to_hold_out(len(folds) > 0, "pass prior='default' and numbers for what is 'auto'")
        grid = Grid(self.prior, TRADEOFFS if is_auto(self.tradeoff) else (cast("float", self.tradeoff),))
        return HillClimb(folds, grid, task.limits, self.early_stopping, watch).run(self.grows)

    def _start(self, choice: SettingChoice, task: Task) -> Mixture:
        """The generative start of a fit, with the components that the search added."""
        given = isinstance(task.init, Mixture)
        if given and not choice.growth:
            return start(task)
        first = start(task) if given else start_generative(task)
        return adapt_to_prior(task, choice.setting, repeat_growth(task, first, choice.growth, task.limits))

    def _train(self, choice: SettingChoice, task: Task) -> FitResult:
        """Train with all samples; with early stopping, as many steps as were best for held-out samples."""
        first, length = self._start(choice, task), self._length(choice, task)
        problem = choice.setting.of(task, first.class_sizes).problem
        max_iter = task.max_iter if length is None else length.best_iteration
        result = run(BaumWelch(), problem, first, max_iter, task.tol)
        if length is None:
            return result
        ended = result.outcome is Outcome.LIMIT
        return replace(result, scores=length.scores, outcome=Outcome.HELD_OUT if ended else result.outcome)

    def _length(self, choice: SettingChoice, task: Task) -> FitResult | None:
        """A fit to a part of the samples, ended by the others; None without early stopping or with too few samples."""
        if not self.early_stopping:
            return None
        for fold in make_folds(task, float(self.validation_fraction), partial(self._start, choice)):
            if fold.n_held_out >= SMALLEST_HELD_OUT:
                result = fit_until_best(fold, choice.setting, fold.start, task.limits)
                weight = fold.score(result.mixture)[1]
                scores = tuple((number, cast("float", score) / weight) for number, score in result.scores)
                return replace(result, scores=scores)
        return None


def start_generative(task: Task) -> Mixture:
    """Fit the initial mixture of a task by EM with the default prior."""
    default = with_prior(task, "default", task.n_components)
    return fit_generative(task, start(default), task.limits)
