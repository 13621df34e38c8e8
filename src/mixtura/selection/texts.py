"""Selection of log-linear mixtures: transform of rows, prior, number of components, temperature (text-choice).

`TextSearch` compares candidates on held-out samples; `UpdateSearch` is that of a named solver, whose held-out samples
select the number of iterations and a penalty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import cast

import numpy as np
import torch
from torch import Tensor

from mixtura.engine.sources import TensorSource
from mixtura.model.transforms import RowTransform, make_row_transform
from mixtura.nonnegative.mixture import LabeledRows, LogLinearMixture, labeled_rows, random_start, smoothed_likelihood
from mixtura.nonnegative.multinomial import fit_multinomials
from mixtura.nonnegative.priors import CoefficientPrior, Normal, SparseShares
from mixtura.nonnegative.updates import NONNEGATIVE_SOLVERS, Accelerated, Multiplicative, finish
from mixtura.selection.scores import mean_and_error
from mixtura.selection.search import Search, SearchTable, Trial, check_complete
from mixtura.selection.splits import Grouped, Split, draw_rows, hold_outs, plain_cv, regroup
from mixtura.selection.task import Selected, is_auto
from mixtura.solvers import EarlyStopping, FitResult, Outcome, run
from mixtura.values.sparse_rows import is_dense, pick, scaled_columns


@dataclass(frozen=True)
class TextSamples:
    """Training samples: rows (n, D) as they are, class numbers or soft labels, and weights."""

    features: Tensor
    labels: Tensor  # (n,), -1 for an unlabeled sample; with soft labels the class of the largest share
    shares: Tensor | None  # (n, C), NaN for an unlabeled sample
    weights: Tensor  # (n,)
    n_classes: int
    step: int = 2**31  # rows of a chunk

    @cached_property
    def known(self) -> Tensor:
        """Which samples have labels, (n,)."""
        return self.labels >= 0

    @cached_property
    def targets(self) -> Tensor:
        """Shares of the classes, (n, C); zero for unlabeled samples."""
        if self.shares is not None:
            return self.shares.nan_to_num().double()
        one_hot = torch.nn.functional.one_hot(self.labels.clamp_min(0), self.n_classes).double()
        return one_hot * self.known.unsqueeze(1)

    def to(self, device: torch.device) -> TextSamples:
        """Labels and weights on the device of the rows."""
        shares = None if self.shares is None else self.shares.to(device)
        return replace(self, labels=self.labels.to(device), shares=shares, weights=self.weights.to(device))

    def class_totals(self, weights: Tensor) -> Tensor:
        """The weight of each class with these weights of the samples, (C,)."""
        if self.shares is not None:
            return torch.where(self.known, weights, 0.0) @ self.targets
        totals = torch.zeros(self.n_classes, dtype=torch.float64, device=weights.device)
        return totals.index_add_(0, self.labels[self.known], weights[self.known])

    def part(self, chosen: Tensor) -> TextSamples:
        """Some of the samples, by a mask (n,)."""
        index = chosen.nonzero()[:, 0]
        features, shares = pick(self.features, index), None if self.shares is None else self.shares[index]
        labels, weights = self.labels[index], self.weights[index]
        return replace(self, features=features, labels=labels, shares=shares, weights=weights)

    def labeled(self, chosen: Tensor) -> LabeledRows:
        """Labeled rows; a row with soft labels is repeated with the weight of each share."""
        if self.shares is None:
            weights = torch.where(chosen & self.known, self.weights, 0.0)
            return labeled_rows(self.features, self.labels, weights, self.step)
        index, classes = (self.targets * chosen.unsqueeze(1)).nonzero().T
        weights = self.weights[index] * self.targets[index, classes]
        return labeled_rows(pick(self.features, index), classes, weights, self.step)

    def unlabeled(self) -> LabeledRows | None:
        """Rows without labels, if any."""
        weights = torch.where(self.known, 0.0, self.weights)
        if not bool((weights > 0).any()):
            return None
        return labeled_rows(self.features, torch.full_like(weights, -1, dtype=torch.int64), weights, self.step)


@dataclass(frozen=True)
class TransformedSamples:
    """The samples with transformed rows, and the transform."""

    samples: TextSamples
    transform: RowTransform | None
    units: tuple[Tensor, Tensor] | None  # shifts and scales of dense columns
    folds: tuple[tuple[LabeledRows, TextSamples], ...]  # training rows and held-out samples

    def transformed(self, features: Tensor) -> Tensor:
        """Other rows under the same transform."""
        if self.transform is not None:
            return self.transform.forward(features)
        assert self.units is not None
        return scaled_columns(features.double(), *self.units)

    def in_units_of_rows(self, mixture: LogLinearMixture) -> LogLinearMixture:
        """A mixture of these rows as one of the rows that the transform gives."""
        if self.units is None:
            return mixture
        shifts, scales = self.units
        return mixture.rescaled(scales, shifts)


# All rows, labeled and unlabeled, under the transform of a view.
RowsUnder = Callable[[TransformedSamples], tuple[LabeledRows, LabeledRows | None]]


def rows_in_memory(samples: TextSamples) -> RowsUnder:
    """The rows of samples under the transform of a view."""

    def rows_under(view: TransformedSamples) -> tuple[LabeledRows, LabeledRows | None]:
        moved = replace(samples, features=view.transformed(samples.features))
        return moved.labeled(samples.known), moved.unlabeled()

    return rows_under


SELECTION_SAMPLES = 10_000
SPARSE_ROWS, DENSE_ROWS = ("log", "tfidf", "counts"), (None, "log")
COMPONENTS = (1, 3)
# Strengths of the prior, in the order of the path; 0.3 without held-out samples.
STRENGTHS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4)
PLAIN_STRENGTH = 0.3
PSEUDO_COUNTS = (0.1, 1.0)
# A candidate with more components needs a loss that is smaller by SMALLEST_STEP and this many standard errors of the
# difference: components of texts are often equal, with a loss that differs in the fourth digit.
STANDARD_ERRORS = 0.5
COLD, HOT, N_TEMPERATURES = -2.5, 3.5, 49  # log temperatures
TOL, MAX_ITER = 1e-4, 60  # candidates need not be fully converged to be compared
SPREAD = 0.3  # of the multinomial mixture, as the start of several components under a prior about zero
SMALLEST_STEP = 1e-3  # a decrease of the loss by less ends a path
LEAST_HELD_OUT = 5


@dataclass(frozen=True)
class TextTask:
    """Samples, statistics of all rows, from which their transforms are made, and the arguments of the estimator.

    An argument is "auto" if a search selects its value.
    """

    samples: TextSamples  # all of them, or some on which candidates are compared
    every: RowsUnder
    source: TensorSource  # what identifies the samples in a checkpoint
    classes: np.ndarray
    class_prior: Tensor  # (C,)
    document_counts: Tensor  # (D,), the weight of the rows with each feature
    weight: float
    units: tuple[Tensor, Tensor]  # shifts and scales of dense columns
    home: torch.device | None  # device of the fitted parameters, if it is another one
    generator: torch.Generator
    splitter: torch.Generator  # of a named solver, so that initialisation does not depend on the held-out rows
    cv: object
    rows: str | None
    n_components: int | str
    prior: str | CoefficientPrior | None
    temperature: float | str
    sparsity: float | str
    shared: bool
    max_iter: int
    tol: float
    time_budget: float | None
    solver: str
    n_init: int
    validation_fraction: float | None  # None: without early stopping

    @property
    def known_temperature(self) -> float:
        """The given temperature, or that of a model without held-out samples."""
        return 1.0 if is_auto(self.temperature) else float(self.temperature)

    @property
    def known_prior(self) -> CoefficientPrior | None:
        """The given prior."""
        return None if is_auto(self.prior) else cast("CoefficientPrior | None", self.prior)

    def view(self, name: str | None, folds: Sequence[Split] = ()) -> TransformedSamples:
        """The samples under a transform of rows, or with dense columns of unit variance."""
        transform = units = None
        if name is not None:
            transform = make_row_transform(name, self.document_counts, self.weight)
            rows = transform.forward(self.samples.features)
        else:
            units = self.units
            rows = scaled_columns(self.samples.features.double(), *units)
        moved = replace(self.samples, features=rows)
        parts = tuple((moved.labeled(fold.kept), moved.part(fold.held_out)) for fold in folds)
        return TransformedSamples(moved, transform, units, parts)


@dataclass(frozen=True)
class TextCandidate:
    """Settings of one fit."""

    rows: str | None
    n_components: int
    prior: CoefficientPrior | None
    pseudo_count: float | None = None  # of the multinomial start
    start_temperature: float = 1.0  # that of the start itself, as a model

    @property
    def what(self) -> dict[str, object]:
        """The settings, as a table shows them."""
        settings: dict[str, object] = {"rows": self.rows, "n_components": self.n_components, "prior": self.prior}
        return settings | ({} if self.pseudo_count is None else {"pseudo_count": self.pseudo_count})

    @property
    def strength(self) -> float:
        """That of its normal prior."""
        assert self.prior is not None
        return self.prior.strength

    @property
    def from_start(self) -> bool:
        """Whether the prior is centred at the multinomial start."""
        return self.prior is not None and self.prior.at_start


@dataclass(frozen=True)
class TextFit:
    """A fitted candidate: its fits to the folds, its temperature, and the losses of the held-out samples."""

    candidate: TextCandidate
    mixtures: tuple[LogLinearMixture, ...]
    temperature: float
    losses: Tensor


class TextSearch:
    """Compares candidates on the same held-out samples."""

    def __init__(self, task: TextTask):
        self.task, self.samples = task, task.samples
        self.sparsity = 0.0 if is_auto(task.sparsity) else float(task.sparsity)
        self.seed = int(torch.randint(2**62, (), generator=task.generator))  # of every start
        self.search: Search[TextFit] = Search("log_loss", task.time_budget)
        labels, shares, weights = task.samples.labels, task.samples.shares, task.samples.weights
        parts = hold_outs(task.cv, labels, task.generator, shares=shares, weights=weights)
        self.folds = [fold for fold in parts if self._is_complete(fold.kept)]
        self.unlabeled = not bool(task.samples.known.all())
        self._views: dict[str | None, TransformedSamples] = {}

    def _is_complete(self, kept: Tensor) -> bool:
        """Whether the training part of a fold has samples of all classes."""
        return bool((self.samples.class_totals(torch.where(kept, self.samples.weights, 0.0)) > 0).all())

    def view(self, name: str | None) -> TransformedSamples:
        """The samples under a transform, with their folds."""
        if name not in self._views:
            self._views[name] = self.task.view(name, self.folds)
        return self._views[name]

    # ---- candidates ----

    def run(self) -> Selected[TextTask]:
        """Compare the candidates; an interrupted search ends with the fit to one fold."""
        if sum(len(fold.held_out.nonzero()) for fold in self.folds) < LEAST_HELD_OUT:
            return self._select(self._plain(), self.task.known_temperature, None, None)
        self.search.run(self._try_all)
        best = self._choose()
        candidate, first = best.fit.candidate, best.fit.mixtures[0]
        table = self.search.table(best) if len(self.search.trials) > 1 else None
        return self._select(candidate, best.fit.temperature, first, table)

    def _select(
        self, candidate: TextCandidate, temperature: float, first: LogLinearMixture | None, table: SearchTable | None
    ) -> Selected[TextTask]:
        """The result for a candidate, from a fit to a fold if there is one."""
        view = self.view(candidate.rows)
        attributes = {"rows_": view.transform, "temperature_": temperature, "sparsity_": self.sparsity}
        results: tuple[FitResult, ...] = ()
        if self.search.interrupted:
            assert first is not None
            results = (FitResult(view.in_units_of_rows(first), Outcome.INTERRUPTED, ()),)
        train = partial(self._train, candidate, None if candidate.from_start else first)
        return Selected((self.task,), table, results, train, attributes)

    def _train(self, candidate: TextCandidate, first: LogLinearMixture | None, task: TextTask) -> FitResult:
        """Train a candidate with all rows."""
        view = self.view(candidate.rows)
        rows, unlabeled = task.every(view)
        result = self.fit(candidate, rows, view, first, task.tol, task.max_iter, unlabeled)
        mixture = result.mixture
        if self.sparsity and result.outcome is not Outcome.INTERRUPTED:
            mixture = finish(Accelerated(SparseShares(self.sparsity)), mixture, len(result.history), rows)
        return replace(result, mixture=view.in_units_of_rows(mixture))

    def _plain(self) -> TextCandidate:
        """The settings without held-out samples."""
        first, count = self._rows_to_try()[0], self._components_to_try()[0]
        prior = Normal("zero", PLAIN_STRENGTH) if is_auto(self.task.prior) else self.task.known_prior
        pseudo = PSEUDO_COUNTS[-1] if TextCandidate(first, count, prior).from_start else None
        return TextCandidate(first, count, prior, pseudo)

    def _rows_to_try(self) -> tuple[str | None, ...]:
        if not is_auto(self.task.rows):
            return (self.task.rows,)
        return DENSE_ROWS if is_dense(self.samples.features) else SPARSE_ROWS

    def _components_to_try(self) -> tuple[int, ...]:
        if not is_auto(self.task.n_components):
            return (cast("int", self.task.n_components),)
        return tuple(self.samples.n_classes * count if self.task.shared else count for count in COMPONENTS)

    def _try_all(self) -> None:
        first, *others = self._components_to_try()
        for name in self._rows_to_try():
            self._try(name, first)
        for count in others:
            best = self.search.best.fit.candidate
            most = best.strength if is_auto(self.task.prior) else math.inf
            self._try(best.rows, count, [value for value in STRENGTHS if value <= most])

    def _try(self, name: str | None, count: int, strengths: Sequence[float] = STRENGTHS) -> None:
        """The candidates with one transform and one number of components.

        Components that start under a strong prior become equal, and remain so: several components begin where one was
        best.
        """
        if not is_auto(self.task.prior):
            candidate = TextCandidate(name, count, self.task.known_prior)
            if candidate.from_start:
                self._try_from_start(name, count, [candidate.strength])
            else:
                self._try_candidate(candidate, None)
            return
        if name == "counts" and not self.task.shared and not self.sparsity:
            self._try_from_start(name, count, strengths)
        else:
            self._follow(TextCandidate(name, count, None), "zero", strengths)

    def _try_from_start(self, name: str | None, count: int, strengths: Sequence[float]) -> None:
        """The multinomial start as a model, then as the centre of the prior."""
        starts = [
            self._try_candidate(TextCandidate(name, count, Normal("start", math.inf), pseudo), None)
            for pseudo in PSEUDO_COUNTS
        ]
        best = min(starts, key=lambda trial: trial.score)
        tempered = replace(best.fit.candidate, start_temperature=best.fit.temperature)
        strengths = [value for value in strengths if math.isfinite(value)]
        self._follow(tempered, "start", strengths)

    def _follow(self, candidate: TextCandidate, centre: str, strengths: Sequence[float]) -> None:
        """Try weaker and weaker priors, until the loss rises."""
        last: Trial[TextFit] | None = None
        for strength in strengths:
            trial = self._try_candidate(replace(candidate, prior=Normal(centre, strength)), last)
            if last is not None and trial.score > last.score - SMALLEST_STEP:
                return
            last = trial

    def _try_candidate(self, candidate: TextCandidate, last: Trial[TextFit] | None) -> Trial[TextFit]:
        return self.search.try_one(lambda: self._evaluate(candidate, None if last is None else last.fit.mixtures))

    def _evaluate(self, candidate: TextCandidate, starts: tuple[LogLinearMixture, ...] | None) -> Trial[TextFit]:
        """Fit a candidate to all folds and score the held-out samples."""
        view, mixtures, scores, targets, weights = self.view(candidate.rows), [], [], [], []
        for number, (rows, held_out) in enumerate(view.folds):
            result = self.fit(candidate, rows, view, None if starts is None else starts[number], TOL, MAX_ITER)
            check_complete(result)
            mixtures.append(result.mixture)
            scores.append(result.mixture.log_probabilities(held_out.features).T)
            targets.append(held_out.targets)
            weights.append(held_out.weights)
        every = torch.cat(weights)
        temperature, losses = best_temperature(torch.cat(scores), torch.cat(targets), every, self._temperatures)
        what = {**candidate.what, "temperature": round(temperature, 3)}
        return Trial(what, *mean_and_error(losses, every), TextFit(candidate, tuple(mixtures), temperature, losses))

    @property
    def _temperatures(self) -> Tensor:
        if is_auto(self.task.temperature):
            return torch.linspace(COLD, HOT, N_TEMPERATURES, dtype=torch.float64).exp()
        return torch.tensor([self.task.known_temperature], dtype=torch.float64)

    def _choose(self) -> Trial[TextFit]:
        """The smallest loss; more components only if they are better by half a standard error."""
        best = self.search.best
        fewest = min(trial.fit.candidate.n_components for trial in self.search.trials)
        simple = [trial for trial in self.search.trials if trial.fit.candidate.n_components == fewest]
        simplest = min(simple, key=lambda trial: trial.score)
        weights = torch.cat([held_out.weights for _, held_out in self.view(best.fit.candidate.rows).folds])
        gain, error = mean_and_error(simplest.fit.losses - best.fit.losses, weights)
        return best if gain > STANDARD_ERRORS * error + SMALLEST_STEP else simplest

    # ---- fits ----

    def fit(
        self,
        candidate: TextCandidate,
        rows: LabeledRows,
        view: TransformedSamples,
        start: LogLinearMixture | None,
        tol: float,
        max_iter: int,
        unlabeled: LabeledRows | None = None,
    ) -> FitResult:
        """Fit a candidate to rows; `unlabeled` are other rows than those of the search."""
        prior, first = candidate.prior, start
        if start is None or candidate.from_start:
            first = self._start(candidate, rows, view, unlabeled)
        assert first is not None
        if candidate.from_start and not math.isfinite(candidate.strength):
            return FitResult(first, Outcome.CONVERGED, ())
        bound = None if prior is None else prior.bound(rows, first)
        if start is not None and start.class_of.equal(first.class_of):  # all rows may allow more components
            first = start
        penalty = SparseShares(self.sparsity)
        return run(Accelerated(penalty, prior=bound, n_plain=0), rows, first, max_iter, tol)

    def _start(
        self, candidate: TextCandidate, rows: LabeledRows, view: TransformedSamples, unlabeled: LabeledRows | None
    ) -> LogLinearMixture:
        n_classes, count = self.samples.n_classes, candidate.n_components
        generator = torch.Generator().manual_seed(self.seed)
        if self.task.shared:
            log_prior = class_weights(rows, n_classes).log()
            return random_start(count, True, rows, log_prior, generator, view.units is not None)
        if candidate.pseudo_count is None and count == 1:
            log_weights = class_weights(rows, n_classes).log()
            return one_basis_per_class(log_weights, torch.zeros(n_classes, rows.n_features, dtype=torch.float64))
        if not candidate.from_start:
            unlabeled = None
        elif unlabeled is None and self.unlabeled:
            unlabeled = view.samples.unlabeled()
        pseudo = candidate.pseudo_count or PSEUDO_COUNTS[0]
        start = fit_multinomials(rows, count, n_classes, pseudo, generator, unlabeled)
        if not candidate.from_start:
            return replace(start, coefficients=SPREAD * start.coefficients)
        shrunk = 1 / candidate.start_temperature
        return replace(start, coefficients=shrunk * start.coefficients, log_weights=shrunk * start.log_weights)


def some_of(samples: TextSamples, cv: object, generator: torch.Generator) -> tuple[TextSamples, object]:
    """At most SELECTION_SAMPLES samples, drawn at random, unless the splits name samples; and their splits."""
    n_rows = len(samples.weights)
    if n_rows <= SELECTION_SAMPLES or not isinstance(plain_cv(cv), int):
        return samples, cv
    if isinstance(cv, Grouped):
        chosen = cv.whole(SELECTION_SAMPLES, generator)
    else:
        chosen = draw_rows(n_rows, SELECTION_SAMPLES, generator)
    few = samples.part(chosen.to(samples.weights.device))
    if not bool((few.class_totals(few.weights) > 0).all()):
        return samples, cv
    return few, cv.of(chosen) if isinstance(cv, Grouped) else cv


def class_weights(rows: LabeledRows, n_classes: int) -> Tensor:
    """The share of each class, (C,)."""
    totals = rows.means.new_zeros(n_classes)
    for chunk in rows.chunks:
        totals.index_add_(0, chunk.labels, chunk.weights)
    return totals / totals.sum()


def one_basis_per_class(log_weights: Tensor, coefficients: Tensor) -> LogLinearMixture:
    numbers = torch.arange(len(log_weights), device=log_weights.device)
    return LogLinearMixture(log_weights, coefficients.to(log_weights.device), numbers, numbers, len(log_weights))


def best_temperature(scores: Tensor, targets: Tensor, weights: Tensor, temperatures: Tensor) -> tuple[float, Tensor]:
    """The temperature with the smallest loss, and the losses of the samples (n,) with it."""
    scores = scores.clamp_min(-1e300)
    own = (targets * scores).sum(1)
    losses = torch.stack([(scores / t).logsumexp(1) - own / t for t in temperatures])  # (G, n)
    best = int((losses @ weights).argmin())
    return float(temperatures[best]), losses[best]


PENALTIES = (0.0, 1.0)  # that sparsity="auto" compares
PLAIN_COMPONENTS = 4  # n_components="auto" of a named solver
SMALLEST_HELD_OUT = 20  # rows for early stopping
SCORING_INTERVAL = 5  # steps between two scores of the held-out samples


class UpdateSearch:
    """Fits every penalty from the same initialisations; the best one is fitted to all rows."""

    def __init__(self, task: TextTask):
        fraction, samples, parts = task.validation_fraction, task.samples, []
        if fraction is not None:
            cv, known = regroup(task.cv, fraction), (samples.labels, task.splitter)
            parts = hold_outs(cv, *known, weights=samples.weights, smallest=SMALLEST_HELD_OUT)
        named = isinstance(task.rows, str) and not is_auto(task.rows)
        self.task, self.view = task, task.view(task.rows if named else None)
        self.every = self.view.samples.labeled(samples.known)
        self.kept, self.held_out = self.every, None
        if parts:
            self.kept, self.held_out = (self.view.samples.labeled(m) for m in (parts[0].kept, parts[0].held_out))
        self.penalties = PENALTIES if is_auto(task.sparsity) else (float(task.sparsity),)
        if self.held_out is None:  # penalties cannot be compared
            self.penalties = self.penalties[-1:]
        self.n_candidates = len(self.penalties) * task.n_init

    def run(self) -> Selected[TextTask]:
        """Select a penalty and an initialisation, and the number of iterations."""
        search: Search[FitResult] = Search("objective" if self.held_out is None else "log_loss")
        starts = self._draw_starts(self.task.class_prior.to(self.every.means.device).log())
        search.run(lambda: self._try_all(search, starts))
        best, result = search.best, search.best.fit
        sparsity, start = cast("float", best.what["sparsity"]), starts[cast("int", best.what["start"])]
        if search.interrupted:
            result = replace(result, outcome=Outcome.INTERRUPTED)
        temperature = self.task.known_temperature
        attributes = {"rows_": self.view.transform, "temperature_": temperature, "sparsity_": sparsity}
        table = search.table(best) if len(search.trials) > 1 else None
        train = partial(self._train, self._solver(sparsity, self.every, start), start, result)
        return Selected((self.task,), table, fit=train, attributes=attributes)

    def _train(self, solver: Multiplicative, start: LogLinearMixture, before: FitResult, task: TextTask) -> FitResult:
        """Refit all rows with the number of iterations that was best for held-out ones, and remove idle weights."""
        result = before
        if self.held_out is not None and before.outcome is not Outcome.INTERRUPTED:
            again = run(solver, self.every, start, before.best_iteration, 0.0)
            if again.outcome is Outcome.INTERRUPTED:  # the fit without those rows is complete
                result = replace(before, outcome=Outcome.INTERRUPTED)
            else:
                result = replace(again, outcome=before.outcome, scores=before.scores)
        mixture = finish(solver, result.mixture, result.best_iteration, self.every)
        return replace(result, mixture=self.view.in_units_of_rows(mixture))

    def _draw_starts(self, log_prior: Tensor) -> list[LogLinearMixture]:
        task, has_units = self.task, self.view.units is not None and is_dense(self.view.samples.features)
        count = PLAIN_COMPONENTS if is_auto(task.n_components) else cast("int", task.n_components)
        return [
            random_start(count, task.shared, self.every, log_prior, task.generator, has_units)
            for _ in range(task.n_init)
        ]

    def _try_all(self, search: Search[FitResult], starts: list[LogLinearMixture]) -> None:
        for sparsity, number in product(self.penalties, range(len(starts))):
            check_complete(search.try_one(lambda s=sparsity, n=number: self._evaluate(s, n, starts[n])).fit)

    def _evaluate(self, sparsity: float, number: int, start: LogLinearMixture) -> Trial[FitResult]:
        """Fit the rows that are not held out; the others say when to stop, and score the fit."""
        held_out, judge = self.held_out, None
        if held_out is not None:

            def score(mixture: LogLinearMixture) -> float:
                return smoothed_likelihood(mixture, held_out) / held_out.weight

            judge = EarlyStopping(score, interval=SCORING_INTERVAL)
        solver, limits = self._solver(sparsity, self.kept, start), (self.task.max_iter, self.task.tol)
        result = run(solver, self.kept, start, *limits, held_out=judge)
        best = max((cast("float", score) for _, score in result.scores), default=result.objective)
        return Trial({"sparsity": sparsity, "start": number}, -best, math.nan, result)

    def _solver(self, sparsity: float, rows: LabeledRows, start: LogLinearMixture) -> Multiplicative:
        """The solver with a penalty, and with the prior in the units of the rows."""
        solver, prior = NONNEGATIVE_SOLVERS[self.task.solver](SparseShares(sparsity)), self.task.known_prior
        return solver if prior is None else replace(cast("Accelerated", solver), prior=prior.bound(rows, start))
