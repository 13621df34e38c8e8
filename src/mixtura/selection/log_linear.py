"""Automatic choice for log-linear mixtures: transform of rows, prior, number of components, temperature.

Candidates are compared by the log-loss of held-out samples, each with its own temperature (text-choice). For every
transform of the rows the strength of a normal prior decreases, each fit starting from the last one, until the loss
rises. Then more components are tried where one was best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mixtura.nonnegative.mixture import LabeledRows, LogLinearMixture, random_start
from mixtura.nonnegative.multinomial import fit_multinomials
from mixtura.nonnegative.priors import Normal, SparseShares
from mixtura.nonnegative.updates import Accelerated, finished
from mixtura.selection.scores import mean_and_error
from mixtura.selection.search import Search, Trial
from mixtura.selection.splits import Grouped, draw_rows, hold_outs, plain_cv
from mixtura.selection.task import is_auto
from mixtura.selection.text_samples import RowsUnder, TextSamples, TransformedSamples, row_facts, view_samples
from mixtura.solvers import FitResult, Outcome, run
from mixtura.values.sparse_rows import is_dense

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
class TextSettings:
    """Arguments of the estimator that fix a setting, or leave it to the search ("auto")."""

    rows: Any
    n_components: Any
    prior: Any
    temperature: Any
    sparsity: float
    shared: bool
    cv: Any
    time_budget: float | None


@dataclass(frozen=True)
class TextCandidate:
    """TextSettings of one fit."""

    rows: str | None
    n_components: int
    prior: Any
    pseudo_count: float | None = None  # of the multinomial start
    start_temperature: float = 1.0  # that of the start itself, as a model

    @property
    def what(self) -> dict[str, Any]:
        """The settings, as a table shows them."""
        settings = {"rows": self.rows, "n_components": self.n_components, "prior": self.prior}
        return settings | ({} if self.pseudo_count is None else {"pseudo_count": self.pseudo_count})

    @property
    def from_start(self) -> bool:
        """Whether the prior is centred at the multinomial start."""
        return isinstance(self.prior, Normal) and self.prior.centre == "start"


@dataclass(frozen=True)
class TextFit:
    """A fitted candidate: its fits to the folds, its temperature, and the losses of the held-out samples."""

    candidate: TextCandidate
    mixtures: tuple[LogLinearMixture, ...]
    temperature: float
    losses: Tensor


@dataclass(frozen=True)
class TextChoice:
    """The selected settings, and a fit to start from."""

    candidate: TextCandidate
    temperature: float
    start: LogLinearMixture | None
    table: Any = field(repr=False, default=None)
    interrupted: bool = False


class TextSearch:
    """Compares candidates on the same held-out samples."""

    def __init__(
        self,
        samples: TextSamples,
        settings: TextSettings,
        generator: torch.Generator,
        watch: Callable[[Trial[TextFit]], None] | None = None,
    ):
        self.samples, self.settings = samples, settings
        self.seed = int(torch.randint(2**62, (), generator=generator))  # of every start
        self.search: Search[TextFit] = Search("log_loss", watch, settings.time_budget)
        known = (samples.labels, samples.shares, samples.weights)
        parts = hold_outs(settings.cv, known[0], generator, shares=known[1], weights=known[2])
        self.folds = [fold for fold in parts if self._is_complete(fold.kept)]
        self.unlabeled = not bool(samples.known.all())
        self._views: dict[str | None, TransformedSamples] = {}

    def _is_complete(self, kept: Tensor) -> bool:
        """Whether the training part of a fold has samples of all classes."""
        return bool((self.samples.class_totals(torch.where(kept, self.samples.weights, 0.0)) > 0).all())

    def view(self, name: str | None) -> TransformedSamples:
        """The samples under a transform, with their folds."""
        if name not in self._views:
            self._views[name] = view_samples(self.samples, name, self.folds)
        return self._views[name]

    # ---- candidates ----

    def run(self) -> TextChoice:
        """Compare the candidates and choose one."""
        if sum(len(fold.held_out.nonzero()) for fold in self.folds) < LEAST_HELD_OUT:
            return self._plain()
        self.search.run(self._try_all)
        best = self._chosen()
        return TextChoice(
            best.fit.candidate,
            best.fit.temperature,
            best.fit.mixtures[0],
            self.search.table(best) if len(self.search.trials) > 1 else None,
            self.search.interrupted,
        )

    def _plain(self) -> TextChoice:
        """The settings without held-out samples."""
        settings, first = self.settings, self._rows_to_try()[0]
        count = self._components_to_try()[0]
        prior = Normal("zero", PLAIN_STRENGTH) if is_auto(settings.prior) else settings.prior
        pseudo = PSEUDO_COUNTS[-1] if TextCandidate(first, count, prior).from_start else None
        temperature = 1.0 if is_auto(settings.temperature) else float(settings.temperature)
        return TextChoice(TextCandidate(first, count, prior, pseudo), temperature, None)

    def _rows_to_try(self) -> tuple[str | None, ...]:
        if not is_auto(self.settings.rows):
            return (self.settings.rows,)
        return DENSE_ROWS if is_dense(self.samples.features) else SPARSE_ROWS

    def _components_to_try(self) -> tuple[int, ...]:
        if not is_auto(self.settings.n_components):
            return (self.settings.n_components,)
        return tuple(self.samples.n_classes * count if self.settings.shared else count for count in COMPONENTS)

    def _try_all(self) -> None:
        first, *others = self._components_to_try()
        for name in self._rows_to_try():
            self._try(name, first)
        for count in others:
            best = self.search.best.fit.candidate
            most = best.prior.strength if is_auto(self.settings.prior) else math.inf
            self._try(best.rows, count, [value for value in STRENGTHS if value <= most])

    def _try(self, name: str | None, count: int, strengths: Sequence[float] = STRENGTHS) -> None:
        """The candidates with one transform and one number of components.

        Components that start under a strong prior become equal, and remain so: several components begin where one was
        best.
        """
        prior = self.settings.prior
        if not is_auto(prior):
            candidate = TextCandidate(name, count, prior)
            if candidate.from_start:
                self._try_from_start(name, count, [prior.strength])
            else:
                self._tried(candidate, None)
            return
        if name == "counts" and not self.settings.shared and not self.settings.sparsity:
            self._try_from_start(name, count, strengths)
        else:
            self._follow(TextCandidate(name, count, None), "zero", strengths)

    def _try_from_start(self, name: str | None, count: int, strengths: Any) -> None:
        """The multinomial start as a model, then as the centre of the prior."""
        starts = [
            self._tried(TextCandidate(name, count, Normal("start", math.inf), pseudo), None) for pseudo in PSEUDO_COUNTS
        ]
        best = min(starts, key=lambda trial: trial.score)
        tempered = replace(best.fit.candidate, start_temperature=best.fit.temperature)
        strengths = [value for value in strengths if math.isfinite(value)]
        self._follow(tempered, "start", strengths)

    def _follow(self, candidate: TextCandidate, centre: str, strengths: Any) -> None:
        """Try weaker and weaker priors, until the loss rises."""
        last: Trial[TextFit] | None = None
        for strength in strengths:
            trial = self._tried(replace(candidate, prior=Normal(centre, strength)), last)
            if last is not None and trial.score > last.score - SMALLEST_STEP:
                return
            last = trial

    def _tried(self, candidate: TextCandidate, last: Trial[TextFit] | None) -> Trial[TextFit]:
        return self.search.tried(lambda: self._evaluated(candidate, None if last is None else last.fit.mixtures))

    def _evaluated(self, candidate: TextCandidate, starts: tuple[LogLinearMixture, ...] | None) -> Trial[TextFit]:
        """Fit a candidate to all folds and score the held-out samples."""
        view, mixtures, scores, targets, weights = self.view(candidate.rows), [], [], [], []
        for number, (rows, held_out) in enumerate(view.folds):
            result = self.fit(candidate, rows, view, None if starts is None else starts[number], TOL, MAX_ITER)
            if result.outcome is Outcome.INTERRUPTED:
                raise KeyboardInterrupt
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
        if is_auto(self.settings.temperature):
            return torch.linspace(COLD, HOT, N_TEMPERATURES, dtype=torch.float64).exp()
        return torch.tensor([float(self.settings.temperature)], dtype=torch.float64)

    def _chosen(self) -> Trial[TextFit]:
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
        if candidate.from_start and not math.isfinite(prior.strength):
            return FitResult(first, Outcome.CONVERGED, ())
        bound = None if prior is None else prior.bound(rows, first)
        if start is not None and start.class_of.equal(first.class_of):  # all rows may allow more components
            first = start
        penalty = SparseShares(self.settings.sparsity)
        return run(Accelerated(penalty, prior=bound, n_plain=0), rows, first, max_iter, tol)

    def final(self, choice: TextChoice, rows_under: RowsUnder, max_iter: int, tol: float) -> FitResult:
        """Fit the chosen candidate to all samples; an interrupted search gives the fit to its first fold."""
        candidate = choice.candidate
        if choice.interrupted and choice.start is not None:
            return FitResult(choice.start, Outcome.INTERRUPTED, ())
        view = self.view(candidate.rows)
        rows, unlabeled = rows_under(view)
        start = None if candidate.from_start else choice.start
        result = self.fit(candidate, rows, view, start, tol, max_iter, unlabeled)
        if not self.settings.sparsity or result.outcome is Outcome.INTERRUPTED:
            return result
        solver = Accelerated(SparseShares(self.settings.sparsity))
        return replace(result, mixture=finished(solver, result.mixture, len(result.history), rows))

    def _start(
        self, candidate: TextCandidate, rows: LabeledRows, view: TransformedSamples, unlabeled: LabeledRows | None
    ) -> LogLinearMixture:
        n_classes, count = self.samples.n_classes, candidate.n_components
        generator = torch.Generator().manual_seed(self.seed)
        if self.settings.shared:
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


def some_of(samples: TextSamples, cv: Any, generator: torch.Generator) -> tuple[TextSamples, Any]:
    """At most SELECTION_SAMPLES samples, drawn at random, unless the splits name samples; and their splits."""
    n_rows = len(samples.weights)
    if n_rows <= SELECTION_SAMPLES or not isinstance(plain_cv(cv), int):
        return samples, cv
    grouped = isinstance(cv, Grouped)
    chosen = cv.whole(SELECTION_SAMPLES, generator) if grouped else draw_rows(n_rows, SELECTION_SAMPLES, generator)
    few = samples.part(chosen.to(samples.weights.device))
    few = replace(few, facts=row_facts(samples.features, samples.weights))
    if not bool((few.class_totals(few.weights) > 0).all()):
        return samples, cv
    return few, cv.of(chosen) if grouped else cv


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
