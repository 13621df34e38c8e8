"""The one pipeline of all mixture estimators: read, describe, search, train, keep.

data = read_training(estimator, settings, X, y, sample_weight)             # samples, classes, splits
chosen, results = fit_data(estimator, data, settings, search)              # what follows, for all estimators:
    task = make_task(estimator, data, settings)                            # the model to fit, and how
    chosen = select(estimator, search, task)                               # the task with selected settings
    results = train(chosen)                                                # fits to all samples
keep(estimator, settings, data, chosen, results)                           # fitted attributes and warnings
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import zip_longest
from typing import TypeVar, cast

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from torch import Tensor

from mixtura import checks
from mixtura.covariances import COVARIANCES, Product
from mixtura.engine.conditionals import map_distances
from mixtura.engine.sources import BlockSource, TensorSource
from mixtura.engine.threads import computing
from mixtura.estimators import arguments
from mixtura.estimators.categorical import Encoding
from mixtura.estimators.density_classifier import DensityClassifier
from mixtura.estimators.density_estimator import DensityEstimator
from mixtura.estimators.estimator import Estimator, candidates_shown, keeping_progress
from mixtura.estimators.frames import is_batches, is_dask
from mixtura.estimators.labels import ClassNumbers, read_labels, weigh_classes, with_groups
from mixtura.estimators.rows import Data, read_samples
from mixtura.estimators.streamed_rows import read_stream
from mixtura.files.registry import as_loaded
from mixtura.init.description import Description, describe
from mixtura.init.transform_fits import fit_warp, recode
from mixtura.inspection.outliers import left_out, outlier_scores, reference_of
from mixtura.model.missingness import Missingness, estimate_missingness
from mixtura.model.mixture import MemberGroup, Mixture
from mixtura.model.transforms import Recoding, Transform, Warp
from mixtura.roles import ConjugatePrior, MixtureSolver, Objective, Prior, Structure, is_smooth
from mixtura.selection.splits import renumbered
from mixtura.selection.task import (
    HybridTraining,
    PriorChoice,
    Selected,
    Task,
    TaskSearch,
    check_start,
    fit_once,
    is_auto,
    make_prior,
)
from mixtura.solvers import EM, FitResult, Outcome, best_of
from mixtura.streams.batches import Sharded

Part = TypeVar("Part", Mixture, Transform | None, Missingness | None)

# Training samples with outlier scores, at most: a pass over them takes 3 % of the time of a fit to 10,000.
SCORED_ROWS = 1000
# Mean log posterior of the labels above which classes count as perfectly separated.
SEPARATED = -1e-3


@dataclass(frozen=True)
class Settings:
    """The arguments of a fit, with values in place of "auto" except for what a search selects.

    Most are arguments of `MixtureClassifier`. `n_components` may be "auto", a number, a dict, or a list with one number
    per class; `missing` is "auto" only where a search decides. `init` may be a fitted estimator. `continues` means that
    it is the model of the last fit. `further` are the settings of members whose posteriors are averaged with those of
    this one; `recoded` (numbers in place of categories), `training` and `weight` are those of such a member.
    """

    n_components: arguments.Components | list[int]
    covariance_type: str | Structure
    rank: int | str
    objective: Objective
    prior: PriorChoice
    generator: torch.Generator
    memory_limit: int
    solver: MixtureSolver | None = None
    init: object = "kmeans"
    continues: bool = False
    n_init: int = 1
    max_iter: int = 200
    tol: float = 1e-4
    class_prior: object = "empirical"
    class_weight: arguments.ClassWeight = None
    unlabeled: object = None
    warp: str | Transform | None = None
    temperature: float = 1.0
    missing: str = "ignorable"
    cv: object = 5
    reg_covar: float | None = None
    recoded: bool = False
    training: HybridTraining | None = None
    weight: float = 1.0
    further: tuple[Settings, ...] = ()
    average_temperature: float = 1.0


def make_settings(estimator: DensityEstimator, **others: object) -> Settings:
    """Settings from the arguments of the same names, and from others; a warm start begins at the last fit, once."""
    known = {field.name for field in fields(Settings)}
    given = {name: value for name, value in estimator.get_params(deep=False).items() if name in known}
    given |= {"continues": continues(estimator), "memory_limit": checks.memory_limit(estimator.memory_limit)}
    given |= {"max_iter": int(given["max_iter"]), "prior": "default" if is_auto(estimator.prior) else estimator.prior}
    given |= others if "generator" in others else {"generator": make_generator(estimator.random_state), **others}
    return Settings(**given | ({"init": estimator, "n_init": 1} if given["continues"] else {}))


def fit_data(
    estimator: DensityEstimator,
    data: Data,
    settings: Settings,
    search: TaskSearch | None,
    *,
    base: DensityEstimator | None = None,
    training: Callable[[Selected[Task]], Sequence[FitResult]] | None = None,
    bar: bool = True,
) -> tuple[Selected[Task], Sequence[FitResult]]:
    """The steps of every fit between reading and keeping: describe, search, train.

    `base` is the estimator of the members of an average; `training` stands in place of `train`.
    """
    own = estimator if base is None else base
    with computing(), keeping_progress(estimator, bar=bar, training=data.source, held_out=data.held_out):
        task, *further = [make_task(own, data, part) for part in (settings, *settings.further)]
        chosen = select(own, search, task)
        if further:
            temperature = settings.average_temperature
            chosen = replace(chosen, tasks=(*chosen.tasks, *further), average_temperature=temperature)
        return chosen, (training or train)(chosen)


def read_training(
    estimator: DensityClassifier, settings: Settings, X: object, y: object, sample_weight: object, groups: object = None
) -> Data:
    """Check samples, labels and weights; the estimator gets the features and the encoding of categories."""
    if is_dask(X) or isinstance(X, Sharded) or (y is None and is_batches(X)):
        checks.alone_with_batches(class_weight=settings.class_weight, groups=groups)
        data = read_stream(estimator, X, y, sample_weight, labeled=True, unlabeled=settings.unlabeled)
        return replace(data, encoding=estimator.encoding_, cv=settings.cv)
    rows = read_samples(estimator, X, reset=True).nearby()
    n_rows = len(rows)
    weights = checks.sample_weight(sample_weight, n_rows)
    cv = with_groups(settings.cv, groups, n_rows)
    cv = cv if weights is None else renumbered(cv, weights > 0)
    labels = read_labels(y, n_rows, weights, type(estimator).__name__, settings.unlabeled, takes_unlabeled=True)
    free = labels.unlabeled
    n_unlabeled = int((free if weights is None else free & (weights.to(free.device) > 0)).sum())
    weights = weigh_classes(settings.class_weight, labels, weights)
    source = rows.source(labels.numbers, labels.shares, weights)
    return Data(source, labels.classes, n_unlabeled, estimator.encoding_, cv, rows=rows, labels=labels, weights=weights)


def read_validation(estimator: DensityClassifier, data: Data, X: object, y: object) -> TensorSource:
    """Check validation samples and their labels, which must be classes of the training set."""
    rows, classes = read_samples(estimator, X, reset=False), data.classes
    assert classes is not None
    checks.given_labels(y, type(estimator).__name__)
    advice = " y_val may hold labels of y alone."
    numbers = ClassNumbers(classes, estimator.unlabeled, advice).read(y, len(rows), None, "y_val")
    labeled = numbers >= 0
    values = rows.values if isinstance(rows.values, Tensor) else torch.from_numpy(np.array(rows.values))
    return TensorSource(values[labeled.to(values.device)], numbers[labeled].to(values.device))


def make_task(estimator: DensityEstimator, data: Data, settings: Settings) -> Task:
    """Describe the samples, and make the task: the model to fit, and how."""
    if data.n_unlabeled and not settings.objective.has_density:
        raise ValueError(
            f"{data.n_unlabeled} samples are unlabeled, but objective {settings.objective.name!r} is purely "
            "discriminative and cannot use them. Use HybridMixtureClassifier or objective='joint', or remove these "
            "samples."
        )
    source, classes, generator = data.source, data.classes, settings.generator
    recoding = recode_categories(estimator, data, settings)
    size, encoding = (source.n_features, data.encoding) if recoding is None else (recoding.n_outputs, None)
    structure = make_structure(settings.covariance_type, settings.rank, size, encoding)
    by_em = structure.for_em(size)
    checks.has_update(by_em.name, by_em.has_update)
    n_classes = 1 if classes is None else len(classes)
    description = describe(source, n_classes, generator)
    check_described(estimator, description)
    counts = description.class_means * description.class_weights.unsqueeze(-1)
    structure = structure.of_classes(counts[:, structure.n_gaussian(size) :])
    if classes is not None:
        checks.weighted_classes(classes.tolist(), description.class_weights)
    task = Task(
        source=source,
        classes=classes,
        description=description,
        structure=structure,
        n_components=[1] * n_classes,
        objective=settings.objective,
        prior=None,
        class_prior=checks.class_prior(settings.class_prior, description.class_weights, classes),
        generator=generator,
        memory_limit=settings.memory_limit,
        solver=settings.solver,
        n_init=settings.n_init,
        max_iter=settings.max_iter,
        tol=settings.tol,
        ordered=() if data.encoding is None else data.encoding.ordered,
        cv=data.cv,
        held_out=data.held_out,
        temperature=settings.temperature,
        reg_covar=settings.reg_covar,
        missingness=_describe_missingness(settings.missing, description, data.encoding),
        training=settings.training,
        weight=settings.weight,
    )
    wanted = settings.warp.warp if isinstance(settings.warp, Recoding) else settings.warp
    warp = make_warp(wanted, task.with_warp(recoding).description)
    task = task.with_warp(warp if recoding is None else replace(recoding, warp=warp))
    task = replace(task, init=_initial(settings.init, task))
    if is_auto(settings.n_components):
        return task
    counts = _count_components(settings, task)
    if classes is not None:
        warn_of_wide_samples(structure, source.n_rows, source.n_features)
    task = replace(task, n_components=counts, prior=make_prior(settings.prior, task.description, counts))
    check_start(task)
    return task


def recode_categories(estimator: DensityEstimator, data: Data, settings: Settings) -> Recoding | None:
    """Numbers in place of categories, for models that EM does not train; None where it estimates frequencies."""
    encoding, classes = data.encoding, data.classes
    if encoding is None or classes is None:
        return None
    if isinstance(settings.warp, Recoding):  # of a member that is continued
        return replace(settings.warp, warp=None)
    structure = make_structure(settings.covariance_type, settings.rank, encoding.n_columns, None)
    by_em = settings.objective.own_class_only and isinstance(settings.solver, EM | None)
    if by_em and structure.takes_categories and not settings.recoded:
        return None
    known = settings.warp if settings.recoded else estimator.warp_
    if settings.continues and isinstance(known, Recoding):
        return replace(known, warp=None)
    return recode(data.source, len(classes), len(encoding.numeric), encoding.sizes, encoding.ordered)


def _describe_missingness(missing: str, description: Description, encoding: Encoding | None) -> Missingness | None:
    """How often values are missing in each class; None if that is ignorable, or no feature tells it."""
    if missing == "ignorable":
        return None
    n_columns = description.observed_weights.shape[1]
    feature_of = np.arange(n_columns) if encoding is None else encoding.feature_of
    columns = torch.from_numpy(np.unique(feature_of, return_index=True)[1])  # the first column of each feature
    observed = description.observed_weights
    return estimate_missingness(observed, description.class_weights, columns.to(observed.device))


def make_structure(
    covariance_type: str | Structure, rank: int | str, n_features: int, encoding: Encoding | None
) -> Structure:
    """The covariance structure for the arguments of an estimator, with frequencies of categorical features."""
    n_numeric = n_features if encoding is None else len(encoding.numeric)
    checked = checks.rank(rank, n_numeric)
    inner = covariance_type if isinstance(covariance_type, Structure) else COVARIANCES[covariance_type](checked)
    if encoding is None:
        return inner
    if not inner.takes_categories:
        raise ValueError(
            f"covariance_type={covariance_type!r} does not support categorical features; use 'full', 'tied', 'diag' "
            "or 'spherical'."
        )
    if not n_numeric:  # no covariance: components are products of frequencies (categorical-block)
        inner = COVARIANCES["diag"](checked)
    return Product(inner, n_numeric, encoding.sizes)


def make_warp(value: str | Transform | None, description: Description) -> Warp | None:
    """The requested transform of the features; None also if it is to be selected."""
    value = value.warp if isinstance(value, Recoding) else value
    if value is None or is_auto(value):
        return None
    if isinstance(value, Warp):
        n_warped, n_features = len(value.locations), len(description.within)
        if n_warped != n_features:
            raise ValueError(
                f"warp has {n_warped} features, but X has {n_features}. Pass one location and scale for each."
            )
        return value
    warp = fit_warp(description)
    return warp if bool(warp.transformed.any()) else None


def _initial(init: object, task: Task) -> str | Mixture:
    """The method of initialisation, or the given initial mixture."""
    if isinstance(init, DensityEstimator):
        classes = vars(init).get("classes_", task.classes)
        if task.classes is not None and not np.array_equal(classes, task.classes):
            raise ValueError(
                f"The initial model has the classes {classes.tolist()}, but y has {task.classes.tolist()}; set "
                "warm_start=False, or start from a model of the same classes."
            )
        init = init.mixture_
    if not isinstance(init, Mixture):
        return cast("str", init)
    mixture = init.to(task.source.device)
    return mixture if task.class_prior is None else mixture.with_class_prior(task.class_prior)


def _count_components(settings: Settings, task: Task) -> list[int]:
    """Number of components of each class, at most that of its samples."""
    known = settings.n_components if isinstance(settings.n_components, list) else None
    if task.classes is None:
        return known or [int(cast("int", settings.n_components))]
    wanted = known or checks.components_per_class(settings.n_components, task.classes.tolist())
    available = [len(rows) for rows, _ in task.description.samples]
    if isinstance(settings.init, str) and settings.init == "spread":
        available = [n_rows + available[-1] for n_rows in available]  # unlabeled rows may belong to any class
    available = available[: len(wanted)]
    warn_of_few_rows(task.classes.tolist(), wanted, available)
    return [min(n, m) for n, m in zip(wanted, available, strict=True)]


def select(estimator: DensityEstimator, search: TaskSearch | None, task: Task) -> Selected[Task]:
    """Run the search; without one the task is selected as it is."""
    if search is None:
        return Selected((task,), table=estimator.search_)
    with candidates_shown(estimator.verbose, type(estimator).__name__):
        return search.run(task)


def train(chosen: Selected[Task]) -> tuple[FitResult, ...]:
    """Train the selected tasks with all samples, where the search did not end with their fits.

    After an interruption there is the best model alone.
    """
    results: list[FitResult] = []
    for task, known in zip_longest(chosen.tasks, chosen.results):
        if results and not isinstance(task.source, BlockSource):  # rows are read at most twice as often as by one
            task = replace(task, max_iter=min(task.max_iter, len(results[0].history)))
        results.append(known or best_of(task.n_init, partial(chosen.fit or fit_once, task)))
        if results[-1].outcome is Outcome.INTERRUPTED:
            return (replace(results[0], outcome=Outcome.INTERRUPTED, cause=results[-1].cause),)
    return tuple(results)


def keep(
    estimator: DensityClassifier, settings: Settings, data: Data, chosen: Selected[Task], results: Sequence[FitResult]
) -> None:
    """Store a fit, with warnings; raise the exception that interrupted it again."""
    task, result = chosen.task, results[0]
    assert data.classes is not None
    estimator.search_ = chosen.table
    vars(estimator).update(chosen.attributes)
    if result.scores:
        vars(estimator)["validation_scores_"] = list(result.scores)
    estimator.classes_, estimator.warp_ = data.classes, bring_home(task.warp, data)
    estimator.class_prior_ = result.mixture.log_class_prior.exp().cpu().numpy()
    estimator.further_members_ = tuple(
        MemberGroup(bring_home(other.mixture, data), bring_home(own.warp, data), own.temperature, own.weight)
        for own, other in zip(chosen.tasks[1:], results[1:], strict=False)  # the best alone after an interruption
    )
    estimator.average_temperature_ = chosen.average_temperature if estimator.further_members_ else 1.0
    if not settings.continues:  # the temperature belongs to the model that was compared
        estimator.temperature_, estimator.label_noise_ = task.temperature, task.label_noise
        estimator.missingness_ = bring_home(task.missingness, data)
        shares = task.description.class_weights / task.description.class_weights.sum()
        estimator.training_prior_ = None if task.class_prior is None else shares.cpu().numpy()
    keep_mixture(estimator, data, chosen, result)
    estimator.converged_ = all(other.outcome is Outcome.CONVERGED for other in results)
    for own, other in zip(chosen.tasks, results, strict=False):
        warn_of_repairs((*other.repairs, *own.collapsed(other.mixture)))
    warn_of_prior(estimator.prior, task.prior, result.mixture, task.description)
    raise_interruption(result)
    discriminative = is_smooth(task.objective) and not task.objective.has_density
    if task.prior is None and discriminative and result.objective > SEPARATED:
        checks.warn(
            "The classes are perfectly separable, so the conditional likelihood has no maximum; the fit was "
            f"stopped after {estimator.n_iter_} iterations. Use prior='default'.",
            checks.RepairWarning,
        )
    limited = [  # not those that `train` ends with the first
        other
        for own, other in zip(chosen.tasks, results, strict=False)
        if other.outcome is Outcome.LIMIT and len(other.history) >= own.max_iter
    ]
    if limited and estimator.n_iter_ > 0:
        arguments = estimator.get_params(deep=False)
        checks.warn(
            f"{type(estimator).__name__} {limited[0].outcome.value} (max_iter={arguments['max_iter']}, "
            f"tol={arguments['tol']}); increase max_iter or tol.",
            ConvergenceWarning,
        )


def keep_mixture(estimator: DensityEstimator, data: Data, chosen: Selected, result: FitResult) -> None:
    """Store what all densities have: the mixture, how the fit went, and outlier scores."""
    vars(estimator).pop("running_", None)
    if chosen.table is not None:
        estimator.search_ = chosen.table
    estimator.mixture_ = bring_home(result.mixture, data)
    keep_history(estimator, result)
    keep_unobserved(estimator, chosen.task.description)
    keep_outlier_scores(estimator, chosen, result.mixture)


def keep_outlier_scores(estimator: DensityEstimator, chosen: Selected[Task], mixture: Mixture) -> None:
    """Store the outlier scores of samples that the search held out; without any those of training samples."""
    parts, limit = chosen.folds, chosen.task.memory_limit
    with computing():
        scores = [
            map_distances(fit, rows, partial(outlier_scores, sizes=fit.class_sizes), limit) for fit, rows in parts
        ]
        if not parts:
            rows = _some_rows(chosen.task.description)
            scores = [map_distances(mixture, rows, _as_left_out(chosen.task, mixture), limit)]
    estimator.outlier_reference_ = reference_of(torch.cat(scores).cpu().numpy())
    estimator.outlier_source_ = "held-out" if parts else "training"


def _as_left_out(task: Task, mixture: Mixture) -> Callable[..., Tensor]:
    """The function from distances to scores for training samples."""
    weights, prior = task.description.class_weights, task.prior
    shares = weights / weights.sum() / mixture.log_class_prior.exp().clamp_min(1e-300)
    counts = (mixture.weights * shares.to(mixture.weights)[mixture.class_of] * task.description.n_rows).double()
    pseudo = prior.pseudo_moments(mixture.n_features).covariance_count if isinstance(prior, ConjugatePrior) else 0.0
    return left_out(mixture, counts, float(torch.as_tensor(pseudo).double().mean()))


def _some_rows(description: Description) -> TensorSource:
    """Labeled training samples, at equal distances within each class."""
    shares, parts = description.class_weights / description.class_weights.sum(), []
    for (rows, _), share in zip(description.samples, shares.tolist(), strict=False):
        size = min(len(rows), math.ceil(SCORED_ROWS * share))
        parts.append(rows[torch.linspace(0, len(rows) - 1, size, device=rows.device).round().long()])
    return TensorSource(torch.cat(parts))


def keep_history(estimator: Estimator, result: FitResult) -> None:
    """Store how a fit went."""
    estimator.n_iter_ = len(result.history)
    estimator.converged_ = result.outcome is Outcome.CONVERGED
    estimator.history_ = list(result.history)


def bring_home(part: Part, data: Data) -> Part:
    """A fitted mixture or transform, as loaded from a file, on the requested device."""
    return as_loaded(part if part is None or data.home is None else part.to(data.home))


def raise_interruption(result: FitResult | None) -> None:
    """Raise the exception that interrupted a fit, once its model is stored."""
    if result is not None and result.outcome is Outcome.INTERRUPTED:
        raise result.cause or KeyboardInterrupt


def continues(estimator: DensityEstimator) -> bool:
    """Whether a fit starts from the last one."""
    return bool(estimator.warm_start) and "mixture_" in vars(estimator)


def make_generator(random_state: arguments.RandomState) -> torch.Generator:
    """A random number generator of torch from an argument `random_state`."""
    seed = int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
    return torch.Generator().manual_seed(seed)


# A prior with this many times the weight of a component overrides the data.
OVERWHELMING = 1e3
# A variance this much below the pooled one, despite a prior, means a component collapsed onto a point, line or plane.
COLLAPSED = 1e-6


def warn_of_prior(wanted: PriorChoice, prior: Prior | None, mixture: Mixture, description: Description) -> None:
    """Warn of a prior that is so strong or so weak that the model cannot learn from the data."""
    if not isinstance(prior, ConjugatePrior) or isinstance(wanted, str):
        return
    pseudo, rows = prior.pseudo_moments(mixture.n_features), description.weight * float(mixture.weights.max())
    strengths = {"covariances": pseudo.covariance_count, "means": pseudo.mean_count}
    for name, strength in strengths.items():
        if float(torch.as_tensor(strength).min()) > OVERWHELMING * rows:
            checks.warn(
                f"The prior overrides the data: it has {float(torch.as_tensor(strength).min()):.3g} "
                f"pseudo-observations of the {name}, but no component has more than {rows:.3g} samples. Lower its "
                "strength.",
                checks.PriorWarning,
            )
    lowest = mixture.covariance.variances() / description.within
    if bool((lowest[:, description.varies] < COLLAPSED).any()):
        checks.warn(
            f"The prior is too weak: a variance fell to {float(lowest[:, description.varies].min()):.1g} of the "
            "pooled one, since a component collapsed onto a few samples. Raise its strength, or use prior='default'.",
            checks.PriorWarning,
        )


def check_described(estimator: DensityEstimator, description: Description) -> None:
    """Check that there are observed values whose squares, and weights whose sum, neither overflow nor underflow."""
    checks.total_weight(description.weight)
    checks.observed(description.observed)
    checks.squareable(estimator, description.frame.centre, description.frame.radii, description.weight)


def keep_unobserved(estimator: DensityEstimator, description: Description) -> None:
    """Store the weight of the samples and the columns without an observed value; warn of these columns."""
    estimator.training_weight_ = description.weight
    estimator.unobserved_ = tuple((~description.observed).nonzero()[:, 0].tolist())
    if estimator.unobserved_:
        names = checks.feature_names(estimator)
        columns = [column if names is None else names[column] for column in estimator.unobserved_]
        checks.warn(
            f"X has no observed value in columns {columns}: they have no effect, and impute leaves NaN there. "
            "Remove these columns.",
            checks.RepairWarning,
        )


# Features from which on full covariances get a hint: 60 samples of 1000 features in two classes take 1.3 s of processor
# time with full covariances and 0.2 with low rank; 2000 features took 12 s and 1.2 GB.
WIDE = 500


def warn_of_few_rows(classes: Sequence[Hashable], wanted: Sequence[int], available: Sequence[int]) -> None:
    """Warn of classes with fewer samples than components, which get one component per sample."""
    counts = zip(classes, wanted, available, strict=True)
    short = [f"class {c!r} has {m} samples for {n} components" for c, n, m in counts if m < n]
    if short:
        checks.warn(
            f"There are fewer samples than components: {', '.join(short)}; such a class gets one component per sample. "
            "Lower n_components for it, for example with a dict.",
            checks.RepairWarning,
        )


def warn_of_wide_samples(structure: Structure, n_samples: int | None, n_features: int) -> None:
    """Warn of covariance matrices that are large, and that the samples determine poorly."""
    if n_features >= WIDE and n_samples is not None and n_samples < n_features and structure.is_unrestricted:
        checks.warn(
            f"{n_samples} samples are few for covariance matrices of {n_features} x {n_features} numbers, which take "
            "much time and memory. covariance_type='low_rank' needs a fraction of both, and is often more accurate.",
            checks.RepairWarning,
        )


def warn_of_repairs(repairs: tuple[str, ...]) -> None:
    """Warn of repaired covariances."""
    if repairs:
        text = repairs[0][0].upper() + repairs[0][1:]
        checks.warn(
            f"{text}. Use prior='default', fewer components, or a simpler covariance_type.", checks.RepairWarning
        )
