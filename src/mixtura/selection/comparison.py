"""Candidates of the automatic selection, compared on the same held-out samples (automatic).

All folds of a candidate are trained together. Each candidate is calibrated with its own temperature, and so are the
averages of several of them (averaged-posterior).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mixtura.engine.passes import map_rows, moments_by_label, scatter_by_label, without_rows
from mixtura.engine.sources import Block, BlockSource, TensorSource
from mixtura.engine.threads import check_time
from mixtura.init.description import Description, describe
from mixtura.init.starts import Clusters, cluster_classes, mixture_of
from mixtura.init.transform_fits import fit_warp, recode, with_frequencies
from mixtura.model.mixture import Mixture
from mixtura.model.temperature import Temperature, with_noise
from mixtura.model.transforms import Recoding, Transform, Warp
from mixtura.numerics.linalg import NumericalError
from mixtura.objectives import Joint
from mixtura.roles import Structure
from mixtura.selection.closed_forms import ClassMatrices, ShrinkagePath
from mixtura.selection.scores import estimate_temperature, grid, mean_and_error, tempered_losses
from mixtura.selection.search import Trial, check_complete
from mixtura.selection.splits import Grouped, Split, hold_outs, plain_cv, regroup, sample_of, strata_of
from mixtura.selection.task import HybridTraining, PriorChoice, Task, make_prior
from mixtura.solvers import MemberFit, Stack, first_update, run_together

COARSE = 4  # strengths are compared at every fourth temperature
SAMPLES_PER_COMPONENT = 5  # at least; at least as many as features if every component has its own covariance matrix
# From this number of samples on a fifth of them, held out once, decides between wide Gaussians, if every class keeps
# this many for training and `cv` has its default.
DEFAULT_FOLDS = 5
ENOUGH_SAMPLES, ENOUGH_KEPT = 1000, 20
SELECTION_SAMPLES = 10_000
TOL, MAX_ITER = 1e-3, 40  # candidates need not be fully converged to be compared
MOST_WORK, MOST_NUMBERS = 2e10, 6e7  # multiplications of one comparison, and numbers in its covariances
LARGEST_DENSE = 300  # number of features above which no full covariance matrices are compared
# Epochs of hybrid training at most, and the share of the loss that another one must gain. It has to take fewer
# multiplications of all samples than this; one of a sample with missing values takes ten times as long.
MOST_EPOCHS, LEAST_EPOCH_GAIN = 20, 0.01
MOST_TRAINING_WORK = 1e11


@dataclass(frozen=True)
class Candidate:
    """Settings to compare."""

    name: str
    structure: Structure
    n_components: tuple[int, ...]
    prior: PriorChoice
    transformed: bool = False
    recoded: bool = False
    training: HybridTraining | None = None  # by which a fit of EM is trained on

    @property
    def is_density(self) -> bool:
        """Whether it is a density of the samples; others can only join an average."""
        return not self.recoded and self.training is None

    @property
    def what(self) -> dict[str, object]:
        counts = set(self.n_components)
        settings: dict[str, object] = {"categories": "numbers"} if self.recoded else {}
        settings |= {
            "covariance_type": self.name,
            "n_components": counts.pop() if len(counts) == 1 else self.n_components,
            "prior": self.prior,
            "warp": "johnson" if self.transformed else None,
        }
        return settings | ({} if self.training is None else {**self.training.what})


@dataclass(frozen=True)
class CandidateFit:
    """A candidate: the held-out samples at its temperature, and its fit to the first fold."""

    candidate: Candidate
    posteriors: Tensor  # log posteriors of the held-out samples, (n, C)
    losses: Tensor  # (n,)
    scores: Tensor  # (n, C), held-out log p(x, c)
    temperature: float
    n_parameters: int
    mixture: Mixture | None  # None: a closed form
    warp: Transform | None


class Comparison:
    """The samples on which candidates are compared, and their folds.

    Copies have the same samples and folds with other features: transformed ones, or numbers in place of categories.
    """

    def __init__(self, task: Task, structures: Mapping[str, Structure], once: bool, whole: str | None):
        apart = whole == "tied" and any(structure.has_directions for structure in structures.values())
        most = SELECTION_SAMPLES if isinstance(plain_cv(task.cv), int) else None
        most = 2 * SELECTION_SAMPLES if apart else most  # half of them may train a candidate
        sample, cv = sample_of(task.source, task.generator, most, task.cv)
        self.rows, self.labels, self.shares, weights = sample.rows, sample.labels, sample.shares, sample.weights
        self.task, self.n_classes = task, task.n_classes
        self.weights = torch.ones_like(self.rows[:, 0], dtype=torch.float64) if weights is None else weights.double()
        strata = strata_of(self.labels, self.shares, self.weights)
        self.whole, means = whole, task.description.class_means  # of all rows, whose samples are held out
        self.moments = moments_by_label(means, task.source) if whole == "full" else None
        self.sums = scatter_by_label(means, task.source) if whole == "tied" else None
        # Samples in memory that are not held out, and their number in the class that has the fewest of them.
        self.others, self.rows_apart = None, 0
        if whole:
            chosen, class_weights = torch.zeros(len(strata), dtype=torch.bool), task.description.class_weights
            half = slice(None, None, 2 if apart else 1)
            chosen[half] = few_of_each_class(strata[half], self.weights[half], class_weights)
            if apart:
                self.others = self.source(~chosen.to(self.rows.device))
                self.rows_apart = int(torch.bincount(strata[~chosen].clamp_min(0), minlength=self.n_classes).min())
            strata = self._take(chosen, strata)
        self.groups = cv.groups if isinstance(cv, Grouped) else None  # (n,)
        cv = regroup(cv, 0.2) if once and _suffices_once(strata, self.n_classes) else cv
        folds = hold_outs(cv, self.labels, task.generator, shares=self.shares, weights=self.weights)
        self.strata = strata.to(self.rows.device)
        if whole:  # the other rows are the training part
            folds = [Split(torch.zeros_like(self.weights, dtype=torch.bool), self.weights > 0)] if len(strata) else []
        folds = [fold for fold in folds if whole or self._has_all_classes(fold.kept)]
        self.n_folds = len(folds)
        nothing = self.strata.new_zeros(len(self.strata), 0, dtype=torch.bool)
        self.kept, self.held_out = (
            torch.stack(masks, 1) if folds else nothing  # (n, F)
            for masks in ([fold.kept for fold in folds], [fold.held_out for fold in folds])
        )
        self.observed = (~self.rows.isnan()).double().mean(1)
        self.n_numeric = task.n_numeric
        self.missing = bool((self.observed < 1).any())
        self.recoding: Recoding | None = None
        self.warp: Warp | None = None
        self.clusters: dict[tuple[int, tuple[int, ...]], Clusters] = {}

    def _take(self, chosen: Tensor, strata: Tensor) -> Tensor:
        """Keep a part of the samples, (n,), and of their strata."""
        there = chosen.to(self.rows.device)
        self.rows, self.weights = self.rows[there], self.weights[there]
        self.labels, self.shares = (part if part is None else part[there] for part in (self.labels, self.shares))
        return strata[chosen]

    @cached_property
    def matrices(self) -> ClassMatrices | None:
        """The scatters of all rows but the samples, where these are held out of all rows (class-moments)."""
        if self.moments is not None:
            return ClassMatrices.of(without_rows(self.moments, next(self.source().blocks())))
        if self.sums is None:
            return None
        reference = self.task.description.class_means
        pairs = zip(self.sums, scatter_by_label(reference, self.source()), strict=True)
        counts, firsts, second = (all_rows - own for all_rows, own in pairs)
        shifts = firsts / counts.clamp_min(1e-300).unsqueeze(-1)
        return ClassMatrices(counts, reference + shifts, second - firsts.T @ shifts, None, torch.ones_like(firsts[0]))

    def thinned(self, every: int) -> Comparison:
        """The comparison on every so many of the samples, where they are held out of all rows."""
        other = self._copy("described", "known_shares", "prior", "noise")
        for name in ("rows", "labels", "shares", "weights", "strata", "kept", "held_out", "observed"):
            part = vars(self)[name]
            vars(other)[name] = part if part is None else part[::every]
        return other

    def recoded(self) -> Comparison:
        """The same samples and folds with numbers in place of categories."""
        structure, source = self.task.structure, self.source()
        chosen = recode(source, self.n_classes, self.n_numeric, structure.category_sizes, self.task.ordered)
        other = self._copy("described", "transformed")
        other.recoding, recoded = with_frequencies(chosen, source, self.n_classes)
        other.rows, other.n_numeric = next(recoded.blocks()).rows, chosen.n_outputs
        other.task = replace(self.task, source=recoded, structure=structure.without_categories)
        return other

    @cached_property
    def transformed(self) -> Comparison:
        """The same under one transform for all folds, which the labels of held-out samples hardly influence."""
        every, _ = self.described
        other = self._copy("described")
        other.warp = fit_warp(every)
        other.rows = other.warp.forward(self.rows)
        return other

    def _copy(self, *stale: str) -> Comparison:
        """A copy for other features or samples, without the cached values of these."""
        other = copy.copy(self)
        for name in stale:
            vars(other).pop(name, None)
        other.clusters = {}
        return other

    def under(self, candidate: Candidate) -> Comparison:
        """The comparison with the features of a candidate."""
        return self.transformed if candidate.transformed and self.warp is None else self

    @property
    def has_closed_forms(self) -> bool:
        """Whether one Gaussian per class has a closed form: all values are observed, all samples labeled."""
        is_labeled = bool(((self.strata >= 0) | (self.weights <= 0)).all())
        return not self.missing and is_labeled and self.n_numeric > 0

    @property
    def n_frequencies(self) -> int:
        """Number of free frequencies of categories of a component."""
        sizes = self.task.structure.category_sizes
        return sum(sizes) - len(sizes)

    def _has_all_classes(self, kept: Tensor) -> bool:
        return len(self.strata[kept & (self.strata >= 0)].unique()) == self.n_classes

    @property
    def transforms_any(self) -> bool:
        """Whether any feature is transformed."""
        warp = self.transformed.warp
        return warp is not None and bool(warp.transformed.any())

    @cached_property
    def described(self) -> tuple[Description, list[Description]]:
        """Descriptions of all samples, and of the training samples of each fold."""
        if self.matrices is not None:
            return self.task.description, [self.matrices.described(self.task.description)]
        every, *folds = (
            describe(self.source(kept), self.n_classes, self.task.generator) for kept in (None, *self.kept.T)
        )
        return every, folds

    def source(self, kept: Tensor | None = None, counts: Tensor | None = None) -> BlockSource:
        """The samples, or some of them."""
        samples = Block(self.rows, self.labels, self.shares, self.weights, counts=counts)
        return BlockSource(samples if kept is None else samples.part(kept))

    @property
    def scored(self) -> Tensor:
        """Samples that are held out in some fold, (n,)."""
        return self.held_out.any(1)

    @cached_property
    def known_shares(self) -> Tensor:
        """Labels of the scored samples as shares of the classes, (n, C)."""
        if self.shares is not None:
            return self.shares[self.scored].double()
        return torch.nn.functional.one_hot(self.strata[self.scored], self.n_classes).double()

    @cached_property
    def prior(self) -> Tensor:
        """Shares of the classes among the scored samples, (C,)."""
        weights = self.weights[self.scored]
        return weights @ self.known_shares / weights.sum()

    @cached_property
    def noise(self) -> float:
        """The share of random labels (label-noise): one more error than was seen, of one more sample."""
        return 1 / (1 + float(self.weights[self.scored].sum()))

    @cached_property
    def smallest_weights(self) -> Tensor:
        """Smallest weight of each class over the folds, (C,)."""
        return torch.stack([fold.class_weights for fold in self.described[1]]).amin(0)

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

    def trainable(self, candidate: Candidate) -> bool:
        """Whether hybrid training with all samples stays within the limit of computing time."""
        size, n_rows = self.n_numeric, self.task.source.n_rows
        assert n_rows is not None
        incomplete = float((self.observed < 1).double().mean())
        numbers = size if candidate.structure.is_diagonal else size**2 * (1 + 10 * incomplete * size)
        work = 2 * 5 * MOST_EPOCHS * n_rows * sum(candidate.n_components) * numbers
        return work <= MOST_TRAINING_WORK and self.affordable(candidate)

    def evaluate(self, candidate: Candidate) -> Trial[CandidateFit]:
        """Train a candidate on all folds and score the held-out samples."""
        own = self.under(candidate)
        fits = own._fits(candidate, own._members(candidate))
        return self.judge(candidate, own._scores(candidate, fits), fits[0].n_parameters, fits[0])

    def _members(self, candidate: Candidate) -> list[MemberFit]:
        """The starts of a candidate for all folds. Their clusters serve all structures and priors."""
        members, counts, (every, folds) = [], candidate.n_components, self.described
        for number, fold in enumerate(folds):
            if (number, counts) not in self.clusters:
                clusters = cluster_classes(fold, counts, "bisection", self.task.generator)
                self.clusters[number, counts] = clusters
            members.append(self._start(candidate, fold, self.clusters[number, counts], every, number))
        return members

    def _fits(self, candidate: Candidate, members: list[MemberFit]) -> list[Mixture]:
        """The fits of a candidate to the training samples of all folds."""
        return _train(candidate.structure, members, self.source(counts=self.kept.to(torch.int16)))

    def evaluate_apart(self, candidate: Candidate) -> Trial[CandidateFit]:
        """Train a candidate on samples that are not held out, where most are not in memory (class-moments)."""
        assert self.others is not None
        fold = describe(self.others, self.n_classes, self.task.generator)
        clusters = cluster_classes(fold, candidate.n_components, "bisection", self.task.generator)
        member = self._start(candidate, fold, clusters, self.task.description)
        (fit,) = _train(candidate.structure, [member], self.others)
        return self.judge(candidate, self._scores(candidate, [fit]), fit.n_parameters, fit)

    def folds(self, fit: CandidateFit) -> list[tuple[Mixture, TensorSource]]:
        """The fits of a candidate, trained again, with the samples that they have not seen."""
        own = self.under(fit.candidate)
        members = own._members(fit.candidate)
        # a closed form is the first update
        fits = [m.start for m in members] if fit.mixture is None else own._fits(fit.candidate, members)
        return [(mixture, TensorSource(own.rows[out])) for mixture, out in zip(fits, self.held_out.T, strict=True)]

    def train_on(self, candidate: Candidate, tradeoff: float) -> list[Trial[CandidateFit]]:
        """Train the fits of EM on while held-out samples gain by it; no trial if they never do (hybrid-member)."""
        own = self.under(candidate)
        members = own._members(candidate)
        starts = own._fits(candidate, members)
        best = own._scores(candidate, starts)
        weights, (losses, temperature) = self.weights[self.scored], self.calibrate(best)
        training, smallest = HybridTraining(tradeoff, round(temperature, 3), 0), float(losses @ weights)
        sources = [own.source(kept) for kept in self.kept.T]
        problems = [training.of(replace(m.problem, source=s)) for m, s in zip(members, sources, strict=True)]
        states = [training.solver.init(problem, first) for problem, first in zip(problems, starts, strict=True)]
        for epoch in range(1, MOST_EPOCHS + 1):
            check_time()
            try:
                states = [training.solver.step(*pair)[0] for pair in zip(problems, states, strict=True)]
                fits = [training.solver.result(state) for state in states]
            except NumericalError:
                break
            scores = own._scores(candidate, fits)
            loss = float(self.calibrate(scores)[0] @ weights)
            if loss < smallest:
                best, training = scores, replace(training, n_epochs=epoch)
            if loss > (1 - LEAST_EPOCH_GAIN) * smallest:
                break
            smallest = loss
        if not training.n_epochs:
            return []
        return [self.judge(replace(candidate, training=training), best, starts[0].n_parameters, starts[0])]

    def judge(
        self, candidate: Candidate, scores: Tensor, n_parameters: int, mixture: Mixture | None = None
    ) -> Trial[CandidateFit]:
        """The trial of a candidate with held-out log joints (n, C), at the temperature that suits them best."""
        warp: Transform | None = self.under(candidate).warp
        if self.recoding is not None:
            candidate, warp = replace(candidate, recoded=True), replace(self.recoding, warp=warp)
        losses, temperature = self.calibrate(scores)
        tempered = self.log_posteriors(scores, temperature).log_softmax(1)
        posteriors = with_noise(tempered, self.noise, self.prior.log())
        what = {**candidate.what, "temperature": round(temperature, 3)}
        n_parameters += 0 if warp is None else warp.n_parameters
        fit = CandidateFit(candidate, posteriors, losses, scores, temperature, n_parameters, mixture, warp)
        return Trial(what, *mean_and_error(losses, self.weights[self.scored]), fit)

    def calibrate(self, scores: Tensor, every: int = 1, average: bool = False) -> tuple[Tensor, float]:
        """Losses (n,) at the best temperature, and that temperature; of every fourth one if `every` is 4."""
        known, weights, observed = self.known_shares, self.weights[self.scored], self.observed[self.scored]
        at_all = tempered_losses(scores, known, observed, every, self.noise, self.prior, average)
        best = estimate_temperature(at_all, weights, every, average)
        return at_all[best], float(grid(at_all, every, average)[best])

    def calibrate_average(self, trials: Sequence[Trial[CandidateFit]], every: int = 1) -> tuple[Tensor, float]:
        """The same for the average of the posteriors of several trials (averaged-posterior)."""
        return self.calibrate(self.mean_posteriors(trials), every, average=True)

    def mean_posteriors(self, trials: Sequence[Trial[CandidateFit]]) -> Tensor:
        """Logarithms of the mean posteriors of several trials, up to a constant, (n, C)."""
        return torch.stack([trial.fit.posteriors for trial in trials]).logsumexp(0)

    def log_posteriors(self, scores: Tensor, temperature: float) -> Tensor:
        """Log posteriors of the held-out samples from scores (n, C) at a temperature, without label noise."""
        scores = (scores - scores.amax(1, keepdim=True)).clamp_min(-1e300)
        return Temperature(temperature).apply(scores.T, self.observed[self.scored]).T

    def path(self, target: str, transformed: bool) -> ShrinkagePath:
        """The closed forms on all folds."""
        own = self.transformed if transformed else self
        splits = [Split(*masks) for masks in zip(self.kept.T, self.held_out.T, strict=True)]
        described = list(zip(own.described[1], splits, strict=True))
        every = torch.nn.functional.one_hot(self.strata.clamp_min(0), self.n_classes)
        shares = every if self.shares is None else self.shares
        return ShrinkagePath(own.rows, self.task.structure, shares, self.weights, described, target, self.matrices)

    def best_of_path(self, scores: list[Tensor]) -> tuple[int, Tensor, float]:
        """The position of the strength with the smallest loss, its combined scores (n, C), and the loss."""
        combined = [self._combine(each[self.scored]) for each in scores]
        weights = self.weights[self.scored]
        losses = [float(self.calibrate(each, COARSE)[0] @ weights / weights.sum()) for each in combined]
        best = min(range(len(losses)), key=losses.__getitem__)
        return best, combined[best], losses[best]

    def _start(
        self, candidate: Candidate, fold: Description, clusters: Clusters, every: Description, number: int = 0
    ) -> MemberFit:
        prior = make_prior(candidate.prior, fold, candidate.n_components)
        problem = replace(self.task, description=every, prior=prior, objective=Joint(), class_prior=None).problem
        rough = mixture_of(clusters, candidate.structure, fold)
        return MemberFit(problem, first_update(rough, clusters.assigned, problem), fold.weight, number)

    def _scores(self, candidate: Candidate, fits: list[Mixture]) -> Tensor:
        """log p(x, c) of the held-out samples, by the fits that have not seen them, (n, C)."""
        stack = Stack.of(candidate.structure, fits)
        slices, n_members = stack.mixture.class_slices, len(fits)

        def compute(log_joint: Tensor) -> Tensor:
            return torch.stack(
                [log_joint[part].unflatten(0, (n_members, -1)).logsumexp(1) for part in slices], -1
            ).transpose(0, 1)

        rows = TensorSource(self.rows[self.scored])
        return self._combine(map_rows(stack.mixture, rows, compute, self.task.memory_limit).double())

    def _combine(self, scores: Tensor) -> Tensor:
        """The average density over the folds that hold out a sample, (n, F, C) -> (n, C)."""
        unseen = self.held_out[self.scored].unsqueeze(-1)  # (n, F, 1)
        return scores.masked_fill(~unseen, -torch.inf).logsumexp(1) - unseen.sum(1).log()


def _train(structure: Structure, members: list[MemberFit], source: BlockSource) -> list[Mixture]:
    results = run_together(structure, members, source, MAX_ITER, TOL)
    check_complete(*results)
    return [result.mixture for result in results]


def has_own_matrices(structure: Structure) -> bool:
    """Whether every component has its own covariance matrix."""
    return structure.is_unrestricted and not structure.shares_across_classes


def few_of_each_class(strata: Tensor, weights: Tensor, class_weights: Tensor) -> Tensor:
    """Mask (n,) of the first samples of each class, up to a fifth of its weight; one, if that is at most half of it."""
    weights, class_weights = weights.cpu(), class_weights.cpu()
    order = strata.argsort(stable=True)
    sorted_strata, sorted_weights = strata[order], weights[order]
    totals = torch.zeros_like(class_weights).index_add_(0, strata, weights)
    sums = sorted_weights.cumsum(0) - (totals.cumsum(0) - totals)[sorted_strata]  # within the class
    is_first = torch.ones(len(strata), dtype=torch.bool)
    is_first[1:] = sorted_strata[1:] != sorted_strata[:-1]
    shares = torch.where(is_first, 0.5, 0.2) * class_weights[sorted_strata]
    chosen = torch.zeros(len(strata), dtype=torch.bool)
    chosen[order] = sums <= shares
    return chosen


def _suffices_once(strata: Tensor, n_classes: int) -> bool:
    """Whether there are so many samples that one split decides, and enough of every class are left for training."""
    counts = torch.bincount(strata[strata >= 0], minlength=n_classes)
    kept = counts - (counts * 0.2).floor()
    return int(counts.sum()) >= ENOUGH_SAMPLES and int(kept.min()) >= ENOUGH_KEPT
