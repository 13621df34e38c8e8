"""partial_fit: training with batches that are seen once (stepwise-em)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from typing import cast

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from mixtura import checks
from mixtura.covariances import COVARIANCES
from mixtura.engine.passes import summarise
from mixtura.engine.sources import Source, locate
from mixtura.engine.threads import computing
from mixtura.estimators import arguments
from mixtura.estimators.density_classifier import DensityClassifier
from mixtura.estimators.density_estimator import DensityEstimator
from mixtura.estimators.estimator import atomic_fit
from mixtura.estimators.labels import ClassNumbers, Labels
from mixtura.estimators.rows import read_rows
from mixtura.estimators.streamed_rows import is_streamed
from mixtura.estimators.training import Settings, check_described, fit_data, keep, make_generator, read_training
from mixtura.files.registry import as_loaded
from mixtura.init.description import describe
from mixtura.model.mixture import Mixture
from mixtura.numerics.linalg import NumericalError
from mixtura.objectives import OBJECTIVES
from mixtura.roles import Objective
from mixtura.selection.task import PriorChoice, Task, TaskSearch, make_prior
from mixtura.solvers import EM, Problem, Record
from mixtura.solvers.em import adds_over_time, keep_moments
from mixtura.values.moments import Moments, Summary

# Soft label of all samples for a class without samples, so that it can be initialised; negligible for other classes.
TRACE = 1e-6
# Initialisations that are compared on the first batch, which is not available later. Held-out log-likelihood per
# sample after one pass of 1 000 000 samples in batches of 10 000 (16 features, 8 components; benchmarks.scale stream),
# relative to 20 full EM iterations from one initialisation on all of them:
#
#     data of seed            0        1        2
#     1 initialisation    +1.96    -1.84   -0.001
#     4 initialisations   +1.96   -0.001   -0.001
FIRST_STARTS = 4


# What the error about a strange label in a batch adds.
ALL_CLASSES = " Pass all classes in the first call of partial_fit, or mark samples without a label with `unlabeled`."


def learns_online(estimator: DensityEstimator) -> bool:
    """Whether `partial_fit` supports these covariances; raises an AttributeError with the reason otherwise."""
    named = estimator.covariance_type
    if isinstance(named, str) and named in COVARIANCES:
        one, none = torch.ones(1, 1), torch.zeros(0, dtype=torch.int64)
        if not adds_over_time(COVARIANCES[named](None).start(one, one[:0], none, torch.zeros(1, dtype=torch.int64))):
            raise AttributeError(checks.not_over_time(named))
    return True


def classifies_online(estimator: DensityClassifier) -> bool:
    """The same for classifiers, which need the joint likelihood. Presets with another objective are not supported."""
    arguments = estimator.get_params(deep=False)
    objective, class_weight = arguments.get("objective"), arguments.get("class_weight")
    if isinstance(objective, str):
        objective = OBJECTIVES.get(objective)
    if not isinstance(objective, Objective) or not objective.own_class_only:
        raise AttributeError(
            "partial_fit supports only the joint likelihood; use MixtureClassifier with objective='joint'"
        )
    if class_weight is not None and not isinstance(class_weight, dict):
        raise AttributeError(f"class_weight={class_weight!r} needs all labels at once; pass None or a dict")
    return learns_online(estimator)


def _classes(given: object, known: np.ndarray | None) -> np.ndarray:
    """The sorted classes."""
    if given is None and known is None:
        raise ValueError("classes must be passed on the first call to partial_fit.")
    if given is None:
        assert known is not None
        return known
    wanted = checks.distinct(np.asarray(given))
    if known is not None and not np.array_equal(wanted, known):
        raise ValueError(f"classes={wanted.tolist()} is not the same as on the first call, {known.tolist()}.")
    if len(wanted) < 2:
        raise ValueError(f"classes must name at least two classes; got {wanted.tolist()}.")
    return wanted


def _shares_of(numbers: Tensor, weights: Tensor | None, n_classes: int) -> Tensor | None:
    """Soft labels that give classes without samples a small share of every sample; None if all classes have samples."""
    counted = numbers if weights is None else numbers[(weights > 0).to(numbers.device)]
    absent = torch.bincount(counted[counted >= 0], minlength=n_classes) == 0
    if not bool(absent.any()):
        return None
    shares = torch.nn.functional.one_hot(numbers.clamp_min(0), n_classes).double()
    shares[:, absent] = TRACE
    shares = shares / shares.sum(1, keepdim=True)
    return torch.where((numbers < 0).unsqueeze(-1), torch.nan, shares)


def _summary(mixture: Mixture, problem: Problem) -> Summary:
    device = problem.source.device
    return summarise(mixture.to(device), problem.source, problem.objective, problem.frame, problem.memory_limit)


def check_batch(X: object, step: float | str) -> None:
    if is_streamed(X):
        raise ValueError(
            f"partial_fit takes one batch, as an array or a data frame; got a {type(X).__module__}.{type(X).__name__}. "
            "Call it once for every batch, or pass all of them to fit."
        )
    decays = isinstance(step, str) and step == "decaying"
    if not decays and not (isinstance(step, Real) and not isinstance(step, bool) and 0 < float(step) < 1):
        raise ValueError(f'step must be "decaying" or a number between 0 and 1; got {step!r}.')


def learn_batch(
    self: DensityEstimator, settings: Settings, step: float | str, fit: Callable[[], None], read: Callable[[], Source]
) -> Record | None:
    """Fit the first batch, or take one step with the rows of a later one, whose record is returned."""
    if "mixture_" not in vars(self):
        with warnings.catch_warnings(), atomic_fit(self):
            warnings.simplefilter("ignore", ConvergenceWarning)  # more batches are to come
            fit()
        if not adds_over_time(self.mixture_.covariance):
            raise ValueError(checks.not_over_time(self.mixture_.covariance.structure.name))
        problem = problem_of(self, settings, read())
        with computing():
            remember(self, _summary(self.mixture_, problem).moments, problem, n_steps=1)
        return None
    source = read()
    if not source.n_rows:
        return None
    if self.running_ is None:
        resume(self, problem_of(self, settings, source))
    record = advance(self, settings, source, step)
    self.n_iter_ += 1
    self.history_ = [*self.history_, record]
    return record


def settings_of_first(settings: Settings) -> Settings:
    """The settings of the first batch, with several initialisations."""
    return replace(settings, n_init=FIRST_STARTS) if settings.n_init == 1 else settings


def resume(self: DensityEstimator, problem: Problem) -> None:
    """Continue from a mixture fitted by other means, with the weight of the first batch."""
    _continue_best(self)
    with computing():
        mixture = self.mixture_.to(problem.source.device)
        counts = mixture.weights * _summary(mixture, problem).weight
        seconds = tuple(part * counts.reshape(-1, *[1] * (part.ndim - 1)) for part in mixture.covariance.own_moments())
        firsts = torch.zeros_like(mixture.means)
        moments = Moments(counts, firsts, seconds, mixture.covariance.form, mixture.means)
        remember(self, moments, problem, n_steps=1)


def advance(self: DensityEstimator, settings: Settings, source: Source, step: float | str) -> Record:
    """One step (stepwise-em); a failed step does not change the estimator."""
    running, objective = self.running_, settings.objective
    assert running is not None
    strict = settings.reg_covar is not None and running.prior is None
    ridge = (settings.reg_covar or 0.0) if strict else 0.0
    with computing():
        limit = checks.memory_limit(self.memory_limit)
        known: list[Tensor | None] = [
            None if part is None else part.to(source.device) for part in (running.floor, running.class_prior)
        ]
        assert known[0] is not None
        problem = Problem(source, objective, locate(source), known[0], running.prior, known[1], limit, ridge=ridge)
        mixture = self.mixture_.to(source.device)
        summary = summarise(mixture, source, objective, problem.frame, limit)
        weight = float(running.counts.sum()) + summary.weight
        checks.total_weight(weight)
        checks.small_enough(self, problem.frame.centre, problem.frame.radii, weight)
        moments = running.added(summary.moments, mixture, step)
        updated = EM(strict=strict).m_step(problem, mixture, moments)
        if not bool(updated.means.isfinite().all() & updated.log_weights.isfinite().any()):
            raise NumericalError(f"the parameters became infinite at batch {running.n_steps + 1}")
        self.mixture_ = as_loaded(updated)
        remember(self, moments, problem, running.n_steps + 1)
    return Record(running.n_steps + 1, summary.mean_value, 0.0, 0.0)


def remember(self: DensityEstimator, moments: Moments, problem: Problem, n_steps: int) -> None:
    self.running_ = as_loaded(keep_moments(moments, n_steps, problem.floor, problem.prior, problem.class_prior))


def update_classifier(
    self: DensityClassifier,
    settings: Settings,
    search: TaskSearch | None,
    X: object,
    y: object,
    classes: object,
    sample_weight: object,
    step: float | str,
) -> None:
    """Fit the first batch, or take one step with a later one."""
    check_batch(X, step)
    checks.no_categories("partial_fit", self.encoding_)
    first = "mixture_" not in vars(self)
    known = _classes(classes, None if first else self.classes_)
    rows = read_rows(self, X, reset=first)
    weights = checks.sample_weight(sample_weight, len(rows), all_rows=first)
    checks.given_labels(y, type(self).__name__)
    numbers = ClassNumbers(known, self.unlabeled, ALL_CLASSES).read(y, len(rows), weights, "y of partial_fit")
    weights = _weigh_classes(settings.class_weight, weights, numbers, known)
    shares = _shares_of(numbers, weights, len(known)) if first else None

    def fit() -> None:
        several, labels = settings_of_first(settings), y if shares is None else Labels(known, None, shares.cpu())
        data = read_training(self, several, X, labels, sample_weight)
        keep(self, several, data, *fit_data(self, data, several, search))

    def read() -> Source:
        return replace(rows, warp=self.warp_).source(None if shares is not None else numbers, shares, weights)

    if learn_batch(self, settings, step, fit, read) is not None:
        self.class_prior_ = self.mixture_.log_class_prior.exp().cpu().numpy()


def problem_of(self: DensityEstimator, settings: Settings, source: Source) -> Problem:
    """The problem of the fitted model for other samples, with the selected prior."""
    counts, classes = self.mixture_.class_sizes, vars(self).get("classes_")
    generator = torch.Generator().manual_seed(0) if classes is None else make_generator(self.random_state)
    description = describe(source, len(counts), generator)
    check_described(self, description)
    prior = settings.prior if self.search_ is None else cast("PriorChoice", self.search_.best.what["prior"])
    return Task(
        source=source,
        classes=classes,
        description=description,
        structure=self.mixture_.covariance.structure,
        n_components=counts,
        objective=settings.objective,
        prior=make_prior(prior, description, counts),
        class_prior=checks.class_prior(settings.class_prior, description.class_weights, classes),
        generator=generator,
        memory_limit=settings.memory_limit,
        reg_covar=settings.reg_covar,
    ).problem


def _continue_best(self: DensityEstimator) -> None:
    """Drop all members of an average but the best one, with a warning."""
    if isinstance(self, DensityClassifier) and self.further_members_:
        n_members, self.further_members_, self.average_temperature_ = len(self.members_), (), 1.0
        checks.warn(
            f"partial_fit continues the best of {n_members} members, with its own temperature, and drops the others. "
            "Set average=1 to fit one member.",
            UserWarning,
        )


def _weigh_classes(
    class_weight: arguments.ClassWeight, weights: Tensor | None, numbers: Tensor, classes: np.ndarray
) -> Tensor | None:
    if not isinstance(class_weight, dict):
        return weights
    table = torch.tensor([float(class_weight.get(label, 1.0)) for label in classes.tolist()] + [1.0])
    factors = table.double().to(numbers.device)[numbers]  # unlabeled samples, -1, have the last one
    return factors if weights is None else weights * factors.to(weights.device)
