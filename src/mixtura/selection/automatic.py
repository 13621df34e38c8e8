"""Automatic model selection of MixtureClassifier: covariance, number of components, prior, transform, temperature.

Candidates are compared by log-loss on the same held-out samples, each calibrated with its own temperature (automatic).
All folds of a candidate are trained together.
The first candidates are closed forms: one Gaussian per class, for all strengths of shrinkage; of wide features they are
the only ones (closed-forms). Then the number of components of every covariance structure is increased while the
held-out log-loss decreases. The best candidates are fitted again with transformed features. If the differences are
within the standard error, the candidate with the fewest parameters wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from mixtura import checks
from mixtura.covariances import COVARIANCES, Product
from mixtura.engine.passes import map_rows
from mixtura.engine.sources import TensorSource
from mixtura.init.description import Description, describe
from mixtura.init.johnson import fit_warp
from mixtura.init.starts import Clusters, cluster_classes, mixture_of
from mixtura.model.mixture import Mixture
from mixtura.model.warp import Warp
from mixtura.objectives import Joint
from mixtura.priors import PRIORS, Shrinkage
from mixtura.roles import Prior, Structure
from mixtura.selection.closed_forms import ShrinkagePath
from mixtura.selection.scores import mean_and_error
from mixtura.selection.search import Search, Trial
from mixtura.selection.splits import Split, hold_outs, sample_of, strata_of
from mixtura.selection.task import OTHER_PRIORS, Selected, Task, check_start, is_auto, make_prior
from mixtura.selection.temperature import estimate_temperature, grid, tempered_losses
from mixtura.solvers import MemberFit, Outcome, Stack, first_update, run_together

# Rules and candidates were selected on one split of 41 published and simulated data sets (benchmarks/data_sets.py), by
# their log-loss; with each set left out in turn, 37 of 41 times the same ones were best. Mean test error and log-loss,
# complete / 30 % missing, by fits to four fifths of the training samples; the last column has 26 sets of
# benchmarks/export_r.R that were not used to select anything:
#                                                          41 sets                         26 other sets
#   half a standard error, T near 1, levels 1, 2, ..., 32  16.0 / 22.9 %  0.370 / 0.480    0.457 / 0.551
#   temperature of at least 1, wide prior                  16.1 / 23.0 %  0.365 / 0.475
#   + one standard error                                   16.0 / 23.0 %  0.363 / 0.475    0.346 / 0.413
#   + label noise                                          15.9 / 22.9 %  0.362 / 0.472    0.310 / 0.382
#   + fewer levels, 0.6 times the work                     15.9 / 23.0 %  0.361 / 0.471    0.306 / 0.379
# Dropping a structure that lags behind the others by more than twice its last gain loses what 32 diagonal components
# gain (image: log-loss 0.27 instead of 0.16). Starts from clusters of all samples, instead of clusters within the fold,
# make many components look good: wine, log-loss 0.09 instead of 0.05.
# What each part gains: benchmarks/results/earlier_defaults.md. Hybrid training of the chosen model, decided by held-out
# samples, changed the mean log-loss from 0.356 to 0.354 on complete test sets and from 0.464 to 0.465 with 30 % missing
# values, for 1.3 times the work: it is not in the selection.
# Components per class of each structure, where several are compared; of any other one, and of a structure alone.
LEVELS = {"full": (1, 2, 4, 8), "tied": (1, 2), "diag": (1, 2, 8, 32)}
OTHER_LEVELS, MOST_FULL = (1, 2, 4, 8, 16, 32), 8
SAMPLES_PER_COMPONENT = 5  # at least; at least as many as features if every component has its own covariance matrix
# Pseudo-samples per feature of one Gaussian per class: of the tied covariance, and of those of the classes towards it.
TIED_PATH = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
FULL_PATH = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
LEAST_GAIN = 0.01  # of the loss, by a larger strength of a target or by another target than the usual one
COARSE = 4  # strengths are compared at every fourth temperature
FULL_STRENGTH, TIED_STRENGTHS, DIAG_STRENGTH = 0.5, (0.2, 2.0), 4.0  # the first two per feature
# Features from which on closed forms are the whole search, equal variances are a target, and features stay as they are.
WIDE = 100
# From this number of samples on a fifth of them, held out once, decides between wide Gaussians, if every class keeps
# this many for training and `cv` has its default.
DEFAULT_FOLDS = 5
ENOUGH_SAMPLES, ENOUGH_KEPT = 1000, 20
TRANSFORMED = 2  # structures that are fitted again with transformed features
# The simplest candidate within this many standard errors of the best one is chosen.
STANDARD_ERRORS = 1.0
SELECTION_SAMPLES = 10_000
TOL, MAX_ITER = 1e-3, 40  # candidates need not be fully converged to be compared
MOST_WORK, MOST_NUMBERS = 2e10, 6e7  # multiplications of one comparison, and numbers in its covariances
LARGEST_DENSE = 300  # number of features above which no full covariance matrices are compared


@dataclass(frozen=True)
class Candidate:
    """Settings to compare."""

    name: str
    structure: Structure
    n_components: tuple[int, ...]
    prior: Any
    transformed: bool = False

    @property
    def what(self) -> dict[str, Any]:
        counts = set(self.n_components)
        return {
            "covariance_type": self.name,
            "n_components": counts.pop() if len(counts) == 1 else self.n_components,
            "prior": self.prior,
            "warp": "johnson" if self.transformed else None,
        }


@dataclass(frozen=True)
class CandidateFit:
    """A candidate: losses of the held-out samples at its temperature, and its fit to the first fold."""

    candidate: Candidate
    losses: Tensor  # (n,)
    temperature: float
    n_parameters: int
    mixture: Mixture | None  # None: a closed form
    warp: Warp | None


@dataclass(frozen=True)
class _View:
    """The samples as they are, or transformed, and their descriptions."""

    rows: Tensor  # (n, D)
    warp: Warp | None
    every: Description  # of all samples
    folds: list[Description]  # of the training samples of each fold


class Comparison:
    """The samples on which candidates are compared, and their folds."""

    def __init__(self, task: Task, once: bool = False):
        most = SELECTION_SAMPLES if isinstance(task.cv, int) else None
        self.rows, self.labels, self.shares, weights = sample_of(task.source, task.generator, most)
        self.task, self.n_classes = task, task.n_classes
        self.weights = torch.ones_like(self.rows[:, 0], dtype=torch.float64) if weights is None else weights.double()
        strata = strata_of(self.labels, self.shares, self.weights)
        assert strata is not None
        cv = 0.2 if once and _suffices_once(strata, self.n_classes) else task.cv
        folds = hold_outs(cv, self.labels, task.generator, shares=self.shares, weights=self.weights)
        self.strata = strata.to(self.rows.device)
        folds = [fold for fold in folds if self._has_all_classes(fold.kept)]
        self.n_folds = len(folds)
        nothing = self.strata.new_zeros(len(self.strata), 0, dtype=torch.bool)
        self.kept, self.held_out = (
            torch.stack(masks, 1) if folds else nothing  # (n, F)
            for masks in ([fold.kept for fold in folds], [fold.held_out for fold in folds])
        )
        self.observed = (~self.rows.isnan()).double().mean(1)
        self.n_numeric = task.n_numeric
        self.missing = bool((self.observed < 1).any())
        self._clusters: dict[tuple[bool, int, tuple[int, ...]], Clusters] = {}

    @property
    def has_closed_forms(self) -> bool:
        """Whether one Gaussian per class has a closed form: all values are observed numbers, all samples labeled."""
        is_labeled = bool(((self.strata >= 0) | (self.weights <= 0)).all())
        return not self.missing and is_labeled and self.n_numeric == self.rows.shape[1]

    def _has_all_classes(self, kept: Tensor) -> bool:
        return len(self.strata[kept & (self.strata >= 0)].unique()) == self.n_classes

    @cached_property
    def plain(self) -> _View:
        """The samples as they are."""
        return self._view(self.rows, None)

    @cached_property
    def transformed(self) -> _View:
        """The samples under one transform for all folds, which the labels of held-out samples hardly influence."""
        warp = fit_warp(self.plain.every)
        return self._view(warp.forward(self.rows), warp)

    @property
    def transforms_any(self) -> bool:
        """Whether any feature is transformed."""
        warp = self.transformed.warp
        return warp is not None and bool(warp.transformed.any())

    def _view(self, rows: Tensor, warp: Warp | None) -> _View:
        every, *folds = (
            describe(self.source(rows, kept), self.n_classes, self.task.generator) for kept in (None, *self.kept.T)
        )
        return _View(rows, warp, every, folds)

    def source(self, rows: Tensor, kept: Tensor | None = None, counts: Tensor | None = None) -> TensorSource:
        """The samples, or some of them."""
        known = (self.labels, self.shares, self.weights)
        labels, shares, weights = (p if p is None or kept is None else p[kept] for p in known)
        return TensorSource(rows if kept is None else rows[kept], labels, shares, weights, counts)

    @property
    def scored(self) -> Tensor:
        """Samples that are held out in some fold, (n,)."""
        return self.held_out.any(1)

    @property
    def known_shares(self) -> Tensor:
        """Labels of the scored samples as shares of the classes, (n, C)."""
        if self.shares is not None:
            return self.shares[self.scored].double()
        return torch.nn.functional.one_hot(self.strata[self.scored], self.n_classes).double()

    @cached_property
    def noise(self) -> float:
        """The share of random labels (label-noise): one more error than was seen, of one more sample."""
        return 1 / (1 + float(self.weights[self.scored].sum()))

    @cached_property
    def smallest_weights(self) -> Tensor:
        """Smallest weight of each class over the folds, (C,)."""
        return torch.stack([fold.class_weights for fold in self.plain.folds]).amin(0)

    def components(self, level: int, structure: Structure) -> tuple[int, ...]:
        """Number of components of each class: `level`, or fewer in classes with few samples."""
        needed = max(SAMPLES_PER_COMPONENT, self.n_numeric if has_own_matrices(structure) else 0)
        most = (self.smallest_weights / needed).floor().clamp_min(1)
        return tuple(min(level, int(count)) for count in most)

    def affordable(self, candidate: Candidate) -> bool:
        """Whether a comparison stays within the limits of computing time and memory."""
        size, members = self.n_numeric, self.n_folds
        dense = candidate.structure.is_unrestricted
        largest, total = max(candidate.n_components), sum(candidate.n_components)
        numbers = members * total * size * (size if dense else 1)
        features = size * size / 2 if dense else 2 * size
        if self.missing and dense:
            features = float(size) ** 3  # one factorisation for every sample
        work = len(self.rows) * largest * features * 2 * members * (MAX_ITER if total > self.n_classes else 2)
        return numbers <= MOST_NUMBERS and work <= MOST_WORK and not (dense and size > LARGEST_DENSE)

    def difference(self, trial: Trial[CandidateFit], other: Trial[CandidateFit]) -> tuple[float, float]:
        """The mean difference of the losses of two trials, and its standard error."""
        return mean_and_error(trial.fit.losses - other.fit.losses, self.weights[self.scored])

    def evaluate(self, candidate: Candidate) -> Trial[CandidateFit]:
        """Train a candidate on all folds and score the held-out samples."""
        view = self.transformed if candidate.transformed else self.plain
        members = [self._member(candidate, view, number) for number in range(self.n_folds)]
        fits = _train(candidate.structure, members, self.source(view.rows, counts=self.kept.to(torch.int16)))
        scores = self._combined(self._scores(candidate, fits, view.rows[self.scored]))
        return self.judge(candidate, scores, fits[0].n_parameters, fits[0])

    def judge(
        self, candidate: Candidate, scores: Tensor, n_parameters: int, mixture: Mixture | None = None
    ) -> Trial[CandidateFit]:
        """The trial of a candidate with held-out log joints (n, C), at the temperature that suits them best."""
        warp = self.transformed.warp if candidate.transformed else None
        losses, temperature = self.tempered(scores)
        what = {**candidate.what, "temperature": round(temperature, 3)}
        n_parameters += 0 if warp is None else warp.n_parameters
        fit = CandidateFit(candidate, losses, temperature, n_parameters, mixture, warp)
        return Trial(what, *mean_and_error(losses, self.weights[self.scored]), fit)

    def tempered(self, scores: Tensor, every: int = 1) -> tuple[Tensor, float]:
        """Losses (n,) at the best temperature, and that temperature; of every fourth one if `every` is 4."""
        known, weights = self.known_shares, self.weights[self.scored]
        prior = weights @ known / weights.sum()
        at_all = tempered_losses(scores, known, self.observed[self.scored], every, self.noise, prior)
        best = estimate_temperature(at_all, weights, every)
        return at_all[best], float(grid(at_all, every)[best])

    def path(self, target: str, transformed: bool) -> ShrinkagePath:
        """The closed forms on all folds."""
        view = self.transformed if transformed else self.plain
        splits = [Split(*masks) for masks in zip(self.kept.T, self.held_out.T, strict=True)]
        described = list(zip(view.folds, splits, strict=True))
        every = torch.nn.functional.one_hot(self.strata.clamp_min(0), self.n_classes)
        shares = every if self.shares is None else self.shares
        return ShrinkagePath(view.rows, shares, self.weights, described, target)

    def best_of_path(self, scores: list[Tensor]) -> tuple[int, Tensor, float]:
        """The position of the strength with the smallest loss, its combined scores (n, C), and the loss."""
        combined = [self._combined(each[self.scored]) for each in scores]
        weights = self.weights[self.scored]
        losses = [float(self.tempered(each, COARSE)[0] @ weights / weights.sum()) for each in combined]
        best = min(range(len(losses)), key=losses.__getitem__)
        return best, combined[best], losses[best]

    def _member(self, candidate: Candidate, view: _View, number: int) -> MemberFit:
        """The fit of one fold. Its clusters serve all structures and priors."""
        fold, counts = view.folds[number], candidate.n_components
        key = (candidate.transformed, number, counts)
        if key not in self._clusters:
            self._clusters[key] = cluster_classes(fold, counts, "bisection", self.task.generator)
        clusters, prior = self._clusters[key], make_prior(candidate.prior, fold, counts)
        problem = replace(self.task, description=view.every, prior=prior, objective=Joint(), class_prior=None).problem
        rough = mixture_of(clusters, candidate.structure, fold)
        return MemberFit(problem, first_update(rough, clusters.assigned, problem), fold.weight, number)

    def _scores(self, candidate: Candidate, fits: list[Mixture], rows: Tensor) -> Tensor:
        """log p(x, c) by every fit, (n, F, C)."""
        stack = Stack.of(candidate.structure, fits)
        slices, n_members = stack.mixture.class_slices, len(fits)

        def compute(log_joint: Tensor) -> Tensor:
            return torch.stack(
                [log_joint[part].unflatten(0, (n_members, -1)).logsumexp(1) for part in slices], -1
            ).transpose(0, 1)

        return map_rows(stack.mixture, TensorSource(rows), compute, self.task.memory_limit).double()

    def _combined(self, scores: Tensor) -> Tensor:
        """The average density over the folds that hold out a sample, (n, F, C) -> (n, C)."""
        unseen = self.held_out[self.scored].unsqueeze(-1)  # (n, F, 1)
        return scores.masked_fill(~unseen, -torch.inf).logsumexp(1) - unseen.sum(1).log()


def _train(structure: Structure, members: list[MemberFit], source: TensorSource) -> list[Mixture]:
    results = run_together(structure, members, source, MAX_ITER, TOL)
    if any(result.outcome is Outcome.INTERRUPTED for result in results):
        raise KeyboardInterrupt
    return [result.mixture for result in results]


def has_own_matrices(structure: Structure) -> bool:
    """Whether every component has its own covariance matrix."""
    return structure.is_unrestricted and not structure.shares_across_classes


class _Candidates:
    """The order in which candidates are tried."""

    def __init__(
        self,
        comparison: Comparison,
        structures: dict[str, Structure],
        prior: Any,
        transforms: bool,
        search: Search[CandidateFit],
    ):
        self.comparison, self.structures, self.prior = comparison, structures, prior
        self.transforms, self.search = transforms, search
        size = comparison.n_numeric
        affordable = comparison.n_classes * size * size <= MOST_NUMBERS
        self.have_path = affordable and is_auto(prior) and comparison.has_closed_forms
        self._of_path: dict[tuple[str, bool], list[Trial[CandidateFit]]] = {}

    def all(self) -> None:
        """Closed forms, then more components of every structure, then transformed features."""
        if self.have_path:
            self.closed_forms()
        trials = [self._with_more_components(name, structure) for name, structure in self.structures.items()]
        if self.transforms and self.comparison.n_numeric < WIDE:
            best = sorted((trial for trial in trials if trial is not None), key=lambda trial: trial.score)
            for trial in best[:TRANSFORMED]:
                self._transformed(trial.fit.candidate)

    # ---- one Gaussian per class ----

    def closed_forms(self, transformed: bool = False, only: str | None = None) -> None:
        """Try tied and full covariances of one component for all strengths of their prior (closed-forms)."""
        kinds = {
            _kind(structure): Candidate(name, structure, (), None, transformed)
            for name, structure in self.structures.items()
            if only in (None, name)
        }
        if not {"tied", "full"} & set(kinds):
            return
        path, place = self._tied(kinds.get("tied"), transformed)
        if path is not None and "full" in kinds:
            self._full(kinds["full"], path, place)

    def _tied(self, settings: Candidate | None, transformed: bool) -> tuple[ShrinkagePath | None, int]:
        """Try tied covariances, where they are wanted; the best target, and the position of its best strength."""
        comparison, best = self.comparison, (float("inf"), None, 0)

        def evaluate(target: str) -> list[Trial[CandidateFit]]:
            nonlocal best
            if transformed and not comparison.transforms_any:
                return []
            path = comparison.path(target, transformed)
            place, scores, loss = comparison.best_of_path(path.tied(self._strengths[:-1]))
            best = min(best, (loss, path, place), key=lambda other: other[0])
            if settings is None:
                return []
            candidate, n_parameters = self._closed(settings, path.tied_prior(self._strengths[place]))
            return [comparison.judge(candidate, scores, n_parameters)]

        for target in ("pooled", "identity") if comparison.n_numeric >= WIDE else ("pooled",):
            trials = self.search.tried_together(partial(evaluate, target))
            if settings is not None:
                self._of_path.setdefault((settings.name, transformed), []).extend(trials)
        return best[1:]

    def _full(self, settings: Candidate, path: ShrinkagePath, place: int) -> None:
        """Try covariances of the classes: towards the best tied ones, then of larger strengths while this helps."""

        def evaluate(path: ShrinkagePath, tied: float) -> Trial[CandidateFit]:
            strengths = [strength * self.comparison.n_numeric for strength in FULL_PATH]
            number, scores, _ = self.comparison.best_of_path(path.full(tied, strengths))
            candidate, n_parameters = self._closed(settings, path.full_prior(tied, strengths[number]))
            return self.comparison.judge(candidate, scores, n_parameters)

        known, best = self._of_path.setdefault((settings.name, settings.transformed), []), float("inf")
        for tied in self._strengths[place:]:
            known.append(self.search.tried(partial(evaluate, path, tied)))
            if known[-1].score > (1 - LEAST_GAIN) * best:
                break
            best = known[-1].score
        if self.comparison.n_numeric < WIDE:  # variances of heavy tails are larger
            expected = self.comparison.path("expected", settings.transformed)
            known.append(self.search.tried(partial(evaluate, expected, float("inf"))))

    @cached_property
    def _strengths(self) -> list[float]:
        """Strengths of tied covariances, and an infinite one."""
        return [*(strength * self.comparison.n_numeric for strength in TIED_PATH), float("inf")]

    def _closed(self, settings: Candidate, prior: Shrinkage) -> tuple[Candidate, int]:
        """The settings of a closed form, and the number of its parameters."""
        size, n_classes = self.comparison.n_numeric, self.comparison.n_classes
        n_matrices = n_classes if has_own_matrices(settings.structure) else 1
        n_parameters = n_classes - 1 + n_classes * size + n_matrices * size * (size + 1) // 2
        counts = self.comparison.components(1, settings.structure)
        return replace(settings, n_components=counts, prior=prior), n_parameters

    # ---- more components ----

    def _transformed(self, best: Candidate) -> None:
        """Fit one component, and the best number of components of a structure, with transformed features."""
        one = self.comparison.components(1, best.structure)
        if self.have_path and _kind(best.structure) is not None:
            self.closed_forms(transformed=True, only=best.name)
            counts = [best.n_components] if best.n_components != one else []
        else:
            counts = list(dict.fromkeys((one, best.n_components)))
        for each in counts:
            for prior in self._priors(best, max(each), transformed=True):
                self._try(replace(best, n_components=each, prior=prior, transformed=True))

    def _with_more_components(self, name: str, structure: Structure) -> Trial[CandidateFit] | None:
        """The best trial of a structure; the number of components increases while the held-out log-loss decreases."""
        best: Trial[CandidateFit] | None = None
        last = None
        for level in self._levels(name, structure):
            counts = self.comparison.components(level, structure)
            if counts == last:
                break
            last, gains = counts, False
            settings = Candidate(name, structure, counts, None)
            for trial in self._at_level(settings, level):
                if trial is None:
                    return best
                if best is None or trial.score < best.score:
                    best, gains = trial, True
            if not gains:
                break
        return best

    def _at_level(self, settings: Candidate, level: int) -> Iterator[Trial[CandidateFit] | None]:
        """The trials of a number of components, with every prior."""
        if level == 1 and (settings.name, False) in self._of_path:
            yield from self._of_path[settings.name, False]
            return
        for prior in self._priors(settings, level):
            yield self._try(replace(settings, prior=prior))

    def _levels(self, name: str, structure: Structure) -> tuple[int, ...]:
        levels = OTHER_LEVELS if len(self.structures) == 1 else LEVELS.get(name, OTHER_LEVELS)
        return tuple(level for level in levels if level <= MOST_FULL or not has_own_matrices(structure))

    def _try(self, candidate: Candidate) -> Trial[CandidateFit] | None:
        """Run a trial; None if it exceeds the limits of computing time and memory."""
        others = self.search.trials or len(self.structures) > 1
        if others and not self.comparison.affordable(candidate):
            return None

        def tried() -> list[Trial[CandidateFit]]:
            if candidate.transformed and not self.comparison.transforms_any:
                return []
            return [self.comparison.evaluate(candidate)]

        return next(iter(self.search.tried_together(tried)), None)

    def _priors(self, settings: Candidate, level: int, transformed: bool = False) -> list[Any]:
        if not is_auto(self.prior):
            return [self.prior]
        size, structure = self.comparison.n_numeric, settings.structure
        if has_own_matrices(structure):
            return [replace(self._target(settings.name, transformed), strength=FULL_STRENGTH * size)]
        if structure.is_unrestricted:
            return [Shrinkage(strength * size) for strength in TIED_STRENGTHS[: 2 if level == 1 else 1]]
        return [Shrinkage(DIAG_STRENGTH)]

    def _target(self, name: str, transformed: bool) -> Shrinkage:
        """The prior whose target is the best for one component; the usual target unless another one gains."""
        trials = self._of_path.get((name, transformed), [])
        best = min(trials, key=lambda trial: trial.score, default=None)
        for trial in trials:
            usual = trial.fit.candidate.prior.variances == Shrinkage().variances
            if usual and best is not None and trial.score <= (1 + LEAST_GAIN) * best.score:
                return trial.fit.candidate.prior
        return Shrinkage() if best is None else best.fit.candidate.prior


def _kind(structure: Structure) -> str | None:
    """Whether one component per class has a closed form with a tied covariance, or with covariances of the classes."""
    if not structure.is_unrestricted:
        return None
    return "full" if has_own_matrices(structure) else "tied"


def _suffices_once(strata: Tensor, n_classes: int) -> bool:
    """Whether there are so many samples that one split decides, and enough of every class are left for training."""
    counts = torch.bincount(strata[strata >= 0], minlength=n_classes)
    kept = counts - (counts * 0.2).floor()
    return int(counts.sum()) >= ENOUGH_SAMPLES and int(kept.min()) >= ENOUGH_KEPT


def _first_update(task: Task, chosen: CandidateFit) -> Mixture:
    """One Gaussian per class, from all samples."""
    task, candidate = task.with_warp(chosen.warp), chosen.candidate
    prior = make_prior(candidate.prior, task.description, candidate.n_components)
    clusters = cluster_classes(task.description, candidate.n_components, "kmeans", task.generator)
    problem = replace(task, prior=prior, objective=Joint(), class_prior=None).problem
    return first_update(mixture_of(clusters, candidate.structure, task.description), clusters.assigned, problem)


def _simplest(search: Search[CandidateFit], comparison: Comparison) -> Trial[CandidateFit]:
    """The trial with the fewest parameters whose loss is not significantly larger than the smallest one."""
    best, able = search.best, []
    for trial in search.trials:
        gap, error = comparison.difference(trial, best)
        if trial is best or gap <= STANDARD_ERRORS * error:
            able.append(trial)
    return min(able, key=lambda trial: (trial.fit.n_parameters, trial.score))


@dataclass(frozen=True)
class AutomaticSearch:
    """Compares candidates on held-out samples and selects one.

    Parameters
    ----------
    covariance_type : str or Structure
        "auto", or the structure of all candidates.
    rank : "auto" or int
        Rank of "low_rank".
    prior : object
        "auto", or the prior of all candidates.
    transforms : bool
        Whether transformed features are compared with the features as they are.
    takes_temperature : bool
        Whether the selected temperature is that of the model.
    time_budget : float or None
        As in `Search`.
    """

    covariance_type: Any
    rank: Any
    prior: Any
    transforms: bool
    takes_temperature: bool
    time_budget: float | None = None

    def run(self, task: Task, watch: Callable[[Trial[CandidateFit]], None] | None = None) -> Selected:
        """Select settings; structure, prior and numbers of components of the task are ignored."""
        if not isinstance(self.prior, Prior | Shrinkage | None) and not is_auto(self.prior):
            checks.one_of("prior", self.prior, PRIORS, OTHER_PRIORS)
        structures = self._structures(task)
        wide = task.n_numeric >= WIDE and is_auto(self.covariance_type) and self.time_budget is None
        comparison = Comparison(task, once=wide and isinstance(task.cv, int) and task.cv == DEFAULT_FOLDS)
        if not comparison.n_folds:  # no sample can be held out
            counts = [1] * task.n_classes
            prior = make_prior("default" if is_auto(self.prior) else self.prior, task.description, counts)
            return Selected((replace(task, n_components=counts, prior=prior),))
        search: Search[CandidateFit] = Search("log_loss", watch, self.time_budget)
        candidates = _Candidates(comparison, structures, self.prior, self.transforms, search)
        search.run(candidates.closed_forms if wide and candidates.have_path else candidates.all)
        chosen = _simplest(search, comparison)
        chosen_task, start = self._with_choice(task, chosen.fit, comparison.noise)
        results = (chosen_task.interrupted(start),) if search.interrupted else ()
        return Selected((chosen_task,), search.table(chosen), results)

    def _structures(self, task: Task) -> dict[str, Structure]:
        """Covariance structures to compare, by their names."""
        if not is_auto(self.covariance_type):
            named = isinstance(self.covariance_type, str)
            return {self.covariance_type if named else task.structure.name: task.em_structure}
        size, whole = task.n_numeric, task.structure
        many = size > LARGEST_DENSE and not isinstance(whole, Product)
        names = ("full", "tied", "diag", "low_rank") if many else ("full", "tied", "diag")
        inner = {name: COVARIANCES[name](checks.rank(self.rank, size)) for name in names}
        if not isinstance(whole, Product):
            return inner
        return {name: replace(whole, inner=structure) for name, structure in inner.items()}

    def _with_choice(self, task: Task, fit: CandidateFit, noise: float) -> tuple[Task, Mixture]:
        """The task with the selected settings, and a fit with them, from which it starts.

        That is the fit to the first fold; the first update of a closed form is the maximum, and training ends with it.
        """
        choice, is_joint = fit.candidate, task.objective.name == "joint"
        start = _first_update(task, fit) if fit.mixture is None else fit.mixture
        if fit.mixture is None and is_joint:
            task = replace(task, tol=math.inf)
        task = replace(task.with_warp(fit.warp), n_components=list(choice.n_components))
        prior = make_prior(choice.prior, task.description, task.n_components)
        structure = choice.structure if is_auto(self.covariance_type) else task.structure
        task = replace(task, structure=structure, prior=prior).from_fit(start)
        check_start(task)
        if self.takes_temperature and is_joint:
            task = replace(task, temperature=fit.temperature, label_noise=noise)
        return task, start
