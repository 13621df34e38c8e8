"""Automatic model selection of MixtureClassifier: covariance, number of components, prior, transform, temperature.

Candidates are compared by log-loss on the same held-out samples (comparison.py), in the order of candidates.py. If the
differences are within the standard error, the candidate with the fewest parameters wins (automatic). Its posteriors are
averaged with those of other candidates as long as held-out samples gain by it (averaged-posterior).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import one_hot

from mixtura import checks
from mixtura.covariances import COVARIANCES, FullCovariance, TiedCovariance
from mixtura.engine.passes import moments_by_label
from mixtura.engine.sources import BlockSource, Source
from mixtura.init.starts import starting_mixture
from mixtura.model.mixture import Mixture
from mixtura.numerics.linalg import safe_cholesky
from mixtura.objectives import Joint
from mixtura.priors import Conjugate
from mixtura.roles import ConjugatePrior, Structure
from mixtura.selection.candidates import WIDE, CandidateOrder
from mixtura.selection.closed_forms import follow_unlabeled, identity_scores, kept_covariance
from mixtura.selection.comparison import DEFAULT_FOLDS, LARGEST_DENSE, SELECTION_SAMPLES, CandidateFit, Comparison
from mixtura.selection.estimates import estimate_selection
from mixtura.selection.members import select_trials
from mixtura.selection.missingness import choose_missingness
from mixtura.selection.scores import estimate_temperature, grid, mean_and_error, tempered_losses
from mixtura.selection.search import ScoredCandidate, Search, distinct
from mixtura.selection.splits import hold_outs, plain_cv
from mixtura.selection.task import PriorChoice, Selected, Task, check_start, is_auto, make_prior
from mixtura.solvers import FitResult, Outcome, Record, first_update, mixture_of_moments, tied_mixture

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
# What each part gains: benchmarks/results/earlier_defaults.md. Hybrid training of the chosen model itself, decided by
# held-out samples, changed the mean log-loss from 0.356 to 0.354 on complete test sets and from 0.464 to 0.465 with
# 30 % missing values, for 1.3 times the work; larger models that are trained on join the average instead.
# Structures that are trained on by the hybrid objective, and their components per class. Log-loss of the first fold
# without these, with equal weights and four and two components of low rank, and as it is; processor seconds of a fit
# without these, and as it is:
#               without   equal weights   as it is   seconds
#   segment      0.164        0.151         0.145    1.9  4.3
#   satellite    0.290        0.284         0.252    1.5  4.1
#   spam         0.205        0.184         0.159    2.4  4.0
#   cells        0.391        0.369         0.374    1.5  2.9
#   hpc          0.594        0.585         0.570    1.0  1.9
#   churn        0.234        0.214         0.211    1.2  2.1
#   letter       0.337        0.338         0.289    3.1  9.0
#   digits       0.048        0.049         0.046    2.3  5.5
#   vowel        0.156        0.091         0.075    1.7  3.7
#   vehicle      0.306        0.302         0.308    0.9  2.4
# german, pima, vowels and biopsy differ by less than 0.005.
LARGER = (("low_rank", 8), ("full", 2))
# Tables with categories: candidates with numbers in place of the categories (recoding) join the average. Log-loss and
# processor seconds of a fit, mean of two folds of the 18 development sets with categories, and some of these:
#                             mean   seconds   votes   soybean   german   hpc    churn
#   without average           .373     0.60     .118     .212     .497    .653    .309
#   average, no numbers       .362     0.75     .116     .191     .499    .653    .265
#   average, with numbers     .354     1.05     .098     .162     .486    .610    .261
# One component per class of numbers is enough: a whole search of them takes twice the time. One diagonal component
# per class is trained on by the posteriors nearly alone, as in logistic regression: most numbers are indicators, whose
# density says little. The 11 of these sets with 500 samples or more, folds 0 and 1; a generated table of 3 numbers and
# 8 categories with 81 levels, 30 000 samples (own DiscriminativeMixtureClassifier 16.3 %, .358; boosting 16.2, .359):
#                     11 sets, error, log-loss, seconds                generated table
#   without           18.2, 19.4 %   .413, .433   2.4, 2.7             17.3 %   .375   4.2
#   trade-off 0.02                                                     17.0     .370   9.3
#   trade-off 0.002   17.9, 19.3     .410, .429   2.6, 2.9             16.4     .359   5.5
#   trade-off 0.0005        19.4           .428        2.9             16.4     .357   (0.0002)
NUMBERS_TRADEOFF = 0.002
# Features from which on EM of few labels keeps a covariance, and its pseudo-samples per sample in refits.
LEAST_FEATURES, KEPT = 20, 1000
# Share of the time budget for candidates; the last one may end a fifth later. The rest is for the average and the
# estimate: 200 bootstraps take up to 0.4 s.
COMPARING = 0.75
MOST_OUTSIDE = 2  # members of samples that are not in memory, so that rows are read at most twice as often


# Numbers in the scatters of all classes up to which moments of all rows are taken: 1 GB on the host, on a GPU an eighth
# of the memory.
MOST_SCATTERED = 2**27


def _suits_moments(task: Task) -> str | None:
    """Whether samples are held out of the sums of all rows, "full" or, where classes have too many matrices, "tied"."""
    known, numbers = task.description, task.n_classes * task.n_numeric**2
    most = MOST_SCATTERED
    if task.source.device.type == "cuda":
        most = torch.cuda.get_device_properties(task.source.device).total_memory // (8 * torch.float64.itemsize)
    plain = task.structure.is_gaussian and not known.n_missing and not known.unlabeled_weight
    if not plain or known.n_rows <= SELECTION_SAMPLES or not _by_default(task.cv):
        return None
    return "full" if numbers <= most else "tied" if task.n_numeric**2 <= most else None


def _has_labels(source: Source) -> bool:
    """Whether samples in memory have one label each, if any."""
    return isinstance(source, BlockSource) and next(iter(source.blocks())).labels is not None


def _by_default(cv: object) -> bool:
    """Whether the folds are those of the default."""
    return isinstance(cv, int) and cv == DEFAULT_FOLDS


def _from_moments(task: Task, structure: Structure, comparison: Comparison, prior: PriorChoice) -> Task:
    """The task that starts from one Gaussian per class, by the moments of all samples if these are complete."""
    known, moments, sums = task.description, comparison.moments, comparison.sums
    if known.n_missing or known.unlabeled_weight or not task.structure.is_gaussian:
        task = replace(task, prior=make_prior(prior, known, task.n_components))
        start = starting_mixture(known, structure, task.n_components, "kmeans", task.generator)
        return task.from_fit(first_update(*start, replace(task, objective=Joint(), class_prior=None).problem))
    if sums is not None:
        scatter = sums[2]
    else:
        moments = moments or moments_by_label(known.class_means, task.source, memory_limit=task.memory_limit)
        scatter = moments.within
    task = replace(task, description=replace(known, scatter=scatter))
    task = replace(task, prior=make_prior(prior, task.description, task.n_components))
    if moments is None or structure.shares_across_classes:
        fit = tied_mixture(known.class_weights, known.class_means, scatter, structure, task.problem)
    else:
        fit = mixture_of_moments(moments, structure, task.problem)
    return task.from_fit(fit)


def _fit_of(task: Task, fit: CandidateFit) -> FitResult | None:
    """The fit that ends with the first update of a closed form, if that needed no repair.

    There the trace of (S + nu P) / Sigma is n + nu per feature, and nu of a constant one, whose variance is that of P:
    the objective needs no pass (closed-forms).
    """
    if fit.mixture is not None or task.tol < math.inf:
        return None
    known, mixture, prior = task.description, task.start, task.prior
    assert mixture is not None
    repaired = bool(mixture.covariance.repaired.any())
    if known.scatter is None or repaired or not isinstance(prior, ConjugatePrior):
        return None
    counts, determinants, size = known.class_weights, mixture.distinct_log_determinants, mixture.n_features
    totals = counts if len(determinants) == len(counts) else counts.sum()
    pseudo, n_constant = prior.pseudo_moments(size).covariance_count, int((~known.varies).sum())
    value = counts @ mixture.log_weights - 0.5 * counts.sum() * size * math.log(2 * math.pi)
    value -= 0.5 * ((totals + pseudo) * (determinants + size) - totals * n_constant).sum()
    record = Record(1, float(value) / known.weight, math.inf, 0.0)
    return FitResult(task.convert(mixture), Outcome.CONVERGED, (record,))


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
    average : int
        Largest number of candidates whose posteriors are averaged.
    informative : bool
        Whether missing values count even if held-out samples do not gain by it; only if the task has a `missingness`.
    time_budget : float or None
        As in `Search`.
    """

    covariance_type: str | Structure
    rank: int | str
    prior: PriorChoice
    transforms: bool
    takes_temperature: bool
    average: int
    informative: bool
    time_budget: float | None

    def run(self, task: Task) -> Selected[Task]:
        """Select settings; structure, prior and numbers of components of the task are ignored."""
        if self._may_keep_covariance(task):
            return self._with_few_labels(task)
        return self._run(task)

    def _may_keep_covariance(self, task: Task) -> bool:
        """Whether many features, all numbers and complete, have unlabeled samples, and nothing is given."""
        known, free = task.description, is_auto(self.covariance_type) and is_auto(self.prior)
        suits = task.structure.is_gaussian and _has_labels(task.source) and not known.n_missing
        plain = task.objective.own_class_only and _by_default(task.cv) and isinstance(task.init, str)
        plain = plain and task.class_prior is None
        return free and suits and plain and known.unlabeled_weight > 0 and task.n_numeric >= LEAST_FEATURES

    def _with_few_labels(self, task: Task) -> Selected[Task]:
        """The model of the labeled samples alone, or EM with all and a kept covariance if held-out labels gain by it.

        The gain has to be a standard error of the loss: Fashion-MNIST with 5 labels per class lost 1.3 % otherwise.
        Where no label can be held out there is no covariance within the classes either, and EM decides (few-labels).
        """
        (block,) = task.source.blocks()
        labels, rows = block.labels, block.rows.double()
        assert labels is not None
        weights = rows.new_ones(len(rows)) if block.weights is None else block.weights.double()
        known = labels >= 0
        alone = self._run(task.of_part(BlockSource(block.part(known))))
        if any(result is not None and result.outcome is Outcome.INTERRUPTED for result in alone.results):
            return alone
        began, covariance, centre = time.perf_counter(), kept_covariance(rows, weights), weights @ rows / weights.sum()
        factor = safe_cholesky(covariance)[0]
        white = torch.linalg.solve_triangular(factor, (rows - centre).T, upper=False).T
        shares = torch.where(known.unsqueeze(-1), one_hot(labels.clamp_min(0), task.n_classes).double(), torch.nan)
        log_prior = (weights @ shares.nan_to_num(nan=0.0)).log().log_softmax(0)
        score, error, temperature = math.nan, math.nan, task.temperature
        splits = hold_outs(plain_cv(task.cv), labels, task.generator, weights=weights) if alone.table else []
        if splits:
            scores, held = [], torch.cat([split.held_out.nonzero()[:, 0] for split in splits])
            for split in splits:
                means = follow_unlabeled(white, shares.masked_fill(split.held_out.unsqueeze(-1), torch.nan), weights)
                scores.append(identity_scores(white[split.held_out], means, log_prior))
            losses = tempered_losses(torch.cat(scores), shares[held], weights.new_ones(len(held)))
            best = estimate_temperature(losses, weights[held])
            score, error = mean_and_error(losses[best], weights[held])
            if alone.table is not None and score + error >= alone.table.best.score:
                return alone
            temperature = float(grid(losses)[best]) if self.takes_temperature else temperature
        means = follow_unlabeled(white, shares, weights) @ factor.T + centre
        structure = COVARIANCES["tied"](checks.rank(self.rank, task.n_numeric))
        class_of, tied = (
            torch.arange(task.n_classes, device=rows.device),
            torch.zeros(task.n_classes, dtype=torch.int64),
        )
        inner = FullCovariance(covariance.unsqueeze(0))
        mixture = Mixture(log_prior, means, TiedCovariance(inner, tied.to(rows.device)), class_of)
        prior = Conjugate(KEPT * len(rows), covariance.cpu())
        what = {"covariance_type": "tied", "n_components": 1, "prior": prior, "warp": None, "temperature": temperature}
        tried = ScoredCandidate(what, score, error, time.perf_counter() - began)
        table = None if alone.table is None else replace(alone.table, candidates=[*alone.table.candidates, tried])
        if table is not None:
            table = replace(table, chosen=len(table.candidates) - 1, further=(), estimate=None)
        task = replace(task, structure=structure, n_components=[1] * task.n_classes, prior=prior.to(rows.device))
        result = FitResult(mixture, Outcome.CONVERGED, (Record(1, math.nan, math.inf, 0.0),))
        return Selected((replace(task, temperature=temperature, missingness=None),), table, (result,))

    def _run(self, task: Task) -> Selected[Task]:
        """Compare candidates that all have the same samples."""
        structures = self._structures(task)
        once = task.n_numeric >= WIDE and is_auto(self.covariance_type)
        wide = once and self.time_budget is None
        whole = _suits_moments(task) if wide and is_auto(self.prior) else None
        comparison = Comparison(task, structures, once=once and _by_default(plain_cv(task.cv)), whole=whole)
        if not comparison.n_folds:  # no sample can be held out
            counts = [1] * task.n_classes
            prior = make_prior("default" if is_auto(self.prior) else self.prior, task.description, counts)
            missingness = task.missingness if self.informative else None
            return Selected((replace(task, n_components=counts, prior=prior, missingness=missingness),))
        began, budget = time.perf_counter(), math.inf if self.time_budget is None else self.time_budget
        search: Search[CandidateFit] = Search("log_loss", None if math.isinf(budget) else COMPARING * budget)
        candidates = CandidateOrder(comparison, structures, self.prior, self.transforms, search)
        has_categories = not task.structure.is_gaussian and isinstance(task.source, BlockSource)
        averages = self.average > 1 and task.objective.own_class_only

        def try_candidates() -> None:
            (candidates.closed_forms if wide and candidates.have_path else candidates.all)()
            if has_categories and averages:
                self._try_numbers(comparison.recoded(), search)
            elif averages and isinstance(task.source, BlockSource):
                candidates.try_trained_on(self._larger(task))

        search.run(try_candidates)
        vars(comparison).pop("matrices", None)  # their memory is needed for the model
        most = self.average if averages and not search.interrupted else 1
        if not isinstance(task.source, BlockSource):  # rows outside of memory are read once per iteration of a member
            most = min(most, MOST_OUTSIDE)
        return self._choose(comparison, search, most, began + budget)

    def _choose(self, comparison: Comparison, search: Search[CandidateFit], most: int, latest: float) -> Selected[Task]:
        """Select members among the trials, and estimate their performance on new samples."""
        task = comparison.task
        pool, temperature = select_trials(comparison, search.trials, most)
        chosen, members = pool[0], distinct(pool)
        tasks = [self._with_choice(task, member.fit, comparison) for member in members]
        comparison.moments = comparison.sums = None
        counts = [sum(other is member for other in pool) for member in members]
        tasks = [replace(own, weight=n / counts[0]) for own, n in zip(tasks, counts, strict=True)]
        if task.missingness is not None:
            if len(members) > 1:
                posteriors = comparison.log_posteriors(comparison.mean_posteriors(pool), temperature)
            else:
                posteriors = comparison.log_posteriors(chosen.fit.scores, tasks[0].temperature)
            missingness = choose_missingness(comparison, posteriors, task.missingness, self.informative)
            tasks = [replace(own, missingness=missingness) for own in tasks]
        estimate, folds = None, []

        def judge() -> None:
            nonlocal estimate
            given = None if self.takes_temperature else task.temperature
            estimate = estimate_selection(comparison, search.trials, most, given, self.informative, latest)
            if estimate is not None and not comparison.whole:  # otherwise one more fit as large
                folds.extend(comparison.folds(chosen.fit))

        if not search.interrupted and task.objective.own_class_only:  # otherwise the model is not what was compared
            search.run(judge)
        results = tuple(
            own.interrupted() if search.interrupted else _fit_of(own, member.fit)
            for own, member in zip(tasks, members, strict=True)
        )
        table = replace(search.table(*members), estimate=estimate)
        temperature = temperature if self.takes_temperature else 1.0
        return Selected(tuple(tasks), table, results, average_temperature=temperature, folds=folds)

    def _try_numbers(self, comparison: Comparison, search: Search[CandidateFit]) -> None:
        """Try candidates with numbers in place of categories."""
        structures = self._structures(comparison.task)
        order = CandidateOrder(comparison, structures, self.prior, self.transforms, search)
        order.single()
        order.try_trained_on(self._larger(comparison.task))
        if is_auto(self.covariance_type):
            order.try_trained_on([("diag", COVARIANCES["diag"](None), 1)], NUMBERS_TRADEOFF)

    def _structures(self, task: Task) -> dict[str, Structure]:
        """Covariance structures to compare, by their names."""
        if not task.n_numeric:
            return {"diag": task.em_structure}
        if not is_auto(self.covariance_type):
            given = self.covariance_type
            return {given if isinstance(given, str) else task.structure.name: task.em_structure}
        size = task.n_numeric
        many = size > LARGEST_DENSE and task.structure.is_gaussian
        names = ("full", "tied", "diag", "low_rank") if many else ("full", "tied", "diag")
        rank = checks.rank(self.rank, size)
        return {name: task.structure.with_numeric(COVARIANCES[name](rank)) for name in names}

    def _larger(self, task: Task) -> list[tuple[str, Structure, int]]:
        """Structures to train on, with their names and numbers of components: more than EM would choose."""
        if not is_auto(self.covariance_type):
            return [(name, structure, LARGER[0][1]) for name, structure in self._structures(task).items()]
        rank = checks.rank(self.rank, task.n_numeric)
        return [(name, COVARIANCES[name](rank), level) for name, level in LARGER]

    def _with_choice(self, task: Task, fit: CandidateFit, comparison: Comparison) -> Task:
        """The task with the selected settings, which starts from a fit with them.

        That is the fit to the first fold; the first update of a closed form is the maximum, and training ends with it.
        """
        choice, is_joint = fit.candidate, task.objective.own_class_only
        if fit.mixture is None and is_joint:
            task = replace(task, tol=math.inf)
        task = replace(task.with_warp(fit.warp), n_components=list(choice.n_components))
        structure = choice.structure if is_auto(self.covariance_type) else task.structure
        task = replace(task, structure=structure, training=choice.training)
        if fit.mixture is None:
            task = _from_moments(task, choice.structure, comparison, choice.prior)
        else:
            task = replace(task, prior=make_prior(choice.prior, task.description, task.n_components))
            task = task.from_fit(fit.mixture)
        check_start(task)
        if self.takes_temperature and is_joint:
            task = replace(task, temperature=fit.temperature, label_noise=comparison.noise)
        return task
