"""Averages of mixtures, trained on bootstrap replicates, on subsets or from several initialisations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
from sklearn.base import DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mixtura import checks
from mixtura.engine.passes import map_rows
from mixtura.engine.sources import Source
from mixtura.engine.threads import computing
from mixtura.estimators import arguments
from mixtura.estimators.density_classifier import DensityClassifier
from mixtura.estimators.density_estimator import DensityEstimator
from mixtura.estimators.estimator import Model, check_fitted, estimator_of, fitting, unfitted_copy, with_constructor
from mixtura.estimators.frames import is_batches, is_dask
from mixtura.estimators.gaussian_mixture import (
    GaussianMixture,
    make_density_search,
    make_density_settings,
    make_start,
    read_density,
)
from mixtura.estimators.labels import Labels, with_groups
from mixtura.estimators.mixture_classifier import MixtureClassifier, make_classifier_search, make_classifier_settings
from mixtura.estimators.rows import Data, Rows, adopt_features
from mixtura.estimators.scikit_learn import ScikitLearnStart
from mixtura.estimators.training import (
    Settings,
    bring_home,
    fit_data,
    keep_mixture,
    make_generator,
    raise_interruption,
    read_training,
    warn_of_repairs,
)
from mixtura.files.registry import as_loaded, storable
from mixtura.init.description import describe
from mixtura.model.mixture import MemberGroup, Mixture
from mixtura.objectives import class_log_joint
from mixtura.selection.merging import reduce_components
from mixtura.selection.search import SearchTable
from mixtura.selection.splits import Grouped
from mixtura.selection.task import Selected, Task, TaskSearch, find_solver, is_auto, start
from mixtura.solvers import EM, AcceleratedEM, FitResult, MemberFit, Outcome, Record, Stack, run_together
from mixtura.streams.batches import Sharded

if TYPE_CHECKING:
    import pandas as pd

# Number of rows scored by all members at a time.
SCORED_ROWS = 16_384


Fitted = TypeVar("Fitted", bound=DensityEstimator)


def group_of(averaged: AveragedMixture | AveragedMixtureClassifier) -> MemberGroup:
    """The members, which were trained together, as one group (averaged-density)."""
    check_is_fitted(averaged)
    return MemberGroup(averaged.mixture_, averaged.warp_, member_of=averaged.member_of_)


def ignore(averaged: object, members: object) -> None:
    """Files of version 0.1 hold the members beside the average."""


base_device = property(lambda averaged: averaged._base.device, doc="Device of the computation, as in the members.")
base_limit = property(lambda averaged: averaged._base.memory_limit, doc="Limit of temporary arrays, as in the members.")


def list_members(averaged: AveragedMixture | AveragedMixtureClassifier) -> list[Mixture]:
    """The members."""
    return group_of(averaged).members


def check_members(averaged: AveragedMixture | AveragedMixtureClassifier) -> None:
    """Check the estimator of the members, and that they are parts of one mixture."""
    checks.is_kind("estimator", averaged._base, DensityEstimator)
    group_of(averaged).check()


def prepare_base(name: str, base: Model, X: object) -> Model:
    """A copy of the estimator of the members of an average of this name, if X can be resampled."""
    if is_dask(X) or isinstance(X, Sharded):
        raise checks.not_in_memory(name, f"a {type(X).__module__}.{type(X).__name__}")
    if is_batches(X):
        raise ValueError(
            f"{name} does not support an X of batches, since it resamples. Pass an array, a tensor or a memory map."
        )
    copy = unfitted_copy(base)
    copy.set_params(random_state=0)  # generators are made for the members
    return copy


def select_base(base: DensityEstimator, table: SearchTable | None, classes: np.ndarray | None) -> dict[str, object]:
    """The argument `estimator` with the settings that were selected for all members."""
    if table is None:
        return {}
    what = dict(table.best.what)
    copy = unfitted_copy(base)
    if isinstance(what["n_components"], tuple):
        assert classes is not None
        what["n_components"] = dict(zip(classes.tolist(), what["n_components"], strict=True))
    given = copy.get_params(deep=False)
    copy.set_params(**{k: v for k, v in what.items() if is_auto(given[k])})
    return {"estimator": copy}


def draw_counts(
    model: AveragedMixture | AveragedMixtureClassifier, data: Data, groups: object, random_state: np.random.RandomState
) -> Tensor | None:
    """The count of each row in the replicate of each member, (n, B); None: once each."""
    assert data.rows is not None
    n_rows = len(data.rows)
    grouped = with_groups(None, groups, n_rows)
    return draw_replicates(
        model.resampling,
        model.n_estimators,
        model.fraction,
        np.zeros(n_rows, np.int64) if data.labels is None else _strata(data.labels),
        data.weights,
        random_state,
        grouped.groups if isinstance(grouped, Grouped) else None,
    )


def draw_replicates(
    resampling: str,
    n_members: int,
    fraction: float,
    strata: np.ndarray,
    weights: Tensor | None,
    random_state: np.random.RandomState,
    groups: Tensor | None = None,
) -> Tensor | None:
    """The count of each row in the replicate of each member, (n, B), stratified; None: once each.

    Rows of weight zero are in no stratum. Groups of rows, (n,), are drawn as a whole, each in the stratum of its rarest
    class.
    """
    if resampling == "none":
        return None
    present = np.ones(len(strata), bool) if weights is None else weights.cpu().numpy() > 0
    rows, counts = np.flatnonzero(present), np.zeros((len(strata), n_members), np.int16)
    unit_of, units = np.arange(len(rows)), strata[rows]  # what is drawn: its number for every row, and the strata
    if groups is not None:
        unit_of = np.unique(groups.numpy()[rows], return_inverse=True)[1]
        units = _rarest(strata[rows], unit_of)
    times = np.zeros((len(units), n_members), np.int16)
    for stratum in np.unique(units):
        own = np.flatnonzero(units == stratum)
        for b in range(n_members):
            if resampling == "bootstrap":
                drawn = random_state.randint(len(own), size=len(own))
                times[own, b] = np.bincount(drawn, minlength=len(own))
            else:
                times[random_state.choice(own, max(1, round(float(fraction) * len(own))), replace=False), b] = 1
    counts[rows] = times[unit_of]
    for stratum in np.unique(strata[rows]) if groups is not None else ():
        if not (counts[strata == stratum] > 0).any(0).all():
            raise ValueError(
                f"resampling={resampling!r} of groups drew a replicate without a sample of some class, since few "
                "groups have it. Use resampling='none', or leave groups out."
            )
    return torch.from_numpy(counts)


def _rarest(strata: np.ndarray, unit_of: np.ndarray) -> np.ndarray:
    """The stratum of every unit of rows, that of its rarest class; unlabeled rows (-1) count last."""
    values, codes, sizes = np.unique(strata, return_inverse=True, return_counts=True)
    order = np.argsort(np.where(values < 0, len(strata) + 1, sizes), kind="stable")
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    rarest = np.full(unit_of.max() + 1, len(order))
    np.minimum.at(rarest, unit_of, ranks[codes])
    return values[order[rarest]]


# The fits of a member from all of its starts, for its own samples and the column of their counts.
Begin = Callable[[Task, Rows, Source, int], list[MemberFit]]


def fit_members(
    model: AveragedMixture | AveragedMixtureClassifier,
    base: DensityEstimator,
    data: Data,
    settings: Settings,
    search: TaskSearch | None,
    counts: Tensor | None,
    begin: Begin,
) -> None:
    """Fit all members to their counts of the samples, and keep them and their average."""
    adopt_features(model, base)
    model.encoding_ = data.encoding
    training = partial(train_members, data, counts, model.n_estimators, begin)
    keep_members(model, data, *fit_data(model, data, settings, search, base=base, training=training))


def train_members(
    data: Data, counts: Tensor | None, n_members: int, begin: Begin, chosen: Selected[Task]
) -> list[FitResult]:
    """The best fit of every member of an average of the selected model."""
    for result in chosen.results:
        raise_interruption(result)
    task, labels, weights = chosen.task, data.labels, data.weights
    assert data.rows is not None
    rows = replace(data.rows, warp=task.warp)
    known = (None, None) if labels is None else (labels.numbers, labels.shares)
    members: list[MemberFit] = []
    for b in range(n_members):
        own = None if counts is None else counts[:, b]
        members += begin(task, *replicate_of(rows, *known, weights, own), b)
    every, solver = rows.source(*known, weights, counts), EM(strict=labels is None and task.prior is None)
    results = run_together(task.em_structure, members, every, task.max_iter, task.tol, solver)
    n_starts = len(members) // n_members
    of_members = [results[b : b + n_starts] for b in range(0, len(results), n_starts)]
    best = [max(fits, key=lambda result: result.objective) for fits in of_members]
    return [replace(result, mixture=task.convert(result.mixture)) for result in best]


def keep_members(model: DensityEstimator, data: Data, chosen: Selected[Task], results: Sequence[FitResult]) -> None:
    """Store the members and their average, with warnings; raise KeyboardInterrupt after an interruption."""
    task, mixtures = chosen.task, [bring_home(result.mixture, data) for result in results]
    stack = Stack.of(task.structure, mixtures)
    average = replace(stack.mixture, log_weights=stack.mixture.log_weights - math.log(len(results)))
    open_ends = [result.outcome for result in results if result.outcome is not Outcome.CONVERGED]
    history = _mean_history([result.history for result in results])
    fitted = FitResult(average, open_ends[0] if open_ends else Outcome.CONVERGED, tuple(history))
    vars(model)["member_of_"] = stack.member_of
    if isinstance(model, DensityClassifier):
        assert data.classes is not None
        model.classes_, model.warp_ = data.classes, bring_home(task.warp, data)
        model.class_prior_ = average.log_class_prior.exp().cpu().numpy()
    keep_mixture(model, data, replace(chosen, folds=()), fitted)
    warn_of_repairs(tuple(dict.fromkeys(text for result in results for text in result.repairs)))
    for result in results:
        raise_interruption(result)
    slow = sum(result.outcome is Outcome.LIMIT for result in results)
    if slow and any(result.history for result in results):
        checks.warn(
            f"{slow} of the {len(results)} members of {type(model).__name__} {Outcome.LIMIT.value} "
            f"(max_iter={task.max_iter}, tol={task.tol}); increase max_iter or tol of the estimator.",
            ConvergenceWarning,
        )


def score_unseen(
    model: AveragedMixture | AveragedMixtureClassifier,
    data: Data,
    counts: Tensor,
    combine: Callable[[Tensor, Tensor], Tensor],
) -> np.ndarray:
    """combine(log p_b(x, c) (C, B, n), members that do not use a row (B, n)) -> (n, ...), chunk by chunk."""
    group, limit, outputs = group_of(model), checks.memory_limit(model.memory_limit), []
    assert data.rows is not None
    sizes, rows = group.sizes, replace(data.rows, warp=group.warp)
    with computing():
        for first in range(0, len(rows), SCORED_ROWS):
            part = slice(first, first + SCORED_ROWS)
            source = replace(rows, values=rows.values[part]).source()
            scores = map_rows(group.mixture, source, lambda a: class_log_joint(a, sizes).T, limit)
            unseen = (counts[part] == 0).T.to(scores.device)
            outputs.append(combine(scores.T.unflatten(0, (-1, group.n_members)), unseen))
        return torch.cat(outputs).cpu().numpy()


@storable("AveragedMixture", check=check_fitted)
@with_constructor
class AveragedMixture(DensityMixin, DensityEstimator):
    """Average of the densities of several Gaussian mixtures, p(x) = 1/B sum_b p_b(x) (averaged-density).

    Averaging reduces overfitting: peaks of single members are smoothed out [1]_. The members are trained together, in
    one pass over the data per iteration.

    Parameters
    ----------
    estimator : GaussianMixture or None, default=None
        The members; None means `GaussianMixture(prior="default")`.
    n_estimators : int, default=20
        Number of members.
    resampling : {"bootstrap", "subset", "none"}, default="bootstrap"
        Training set of a member: a bootstrap replicate, a random subset, or all samples with its own initialisation.
    fraction : float, default=0.7
        Fraction of the samples in a subset.
    random_state : int, RandomState or None, default=None
        Seed of resampling and initialisation.
    verbose : int, default=0
        Verbosity; 1 shows a progress bar over everything that is computed.
    checkpoint : str or path-like, optional
        A file that keeps the progress of a fit, as in `MixtureClassifier`.

    Attributes
    ----------
    mixture_ : Mixture
        The average, one mixture of all components.
    members_ : list of Mixture
        The members, also as `mixtures_`.
    member_of_ : Tensor of shape (n_components,)
        The member of each component.
    oob_log_density_ : ndarray of shape (n_samples,)
        Out-of-bag log density of each training sample; NaN if all members use it.
    oob_score_ : float
        Mean out-of-bag log density.
    n_iter_ : int
        Largest number of iterations of a member.
    converged_ : bool
        Whether all members converged.
    history_ : list of Record
        Mean objective of the members at each iteration.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Feature names, if X has string column names.

    References
    ----------
    .. [1] Ormoneit and Tresp (1995). Improved Gaussian mixture density estimates using Bayesian penalty terms and
       network averaging. NIPS 8.

    Examples
    --------
    >>> from mixtura import AveragedMixture, GaussianMixture
    >>> from mixtura.datasets import make_rings
    >>> X, _ = make_rings(random_state=0)
    >>> model = AveragedMixture(GaussianMixture(8, prior="default"), random_state=0).fit(X)
    >>> model.mixture_.n_components
    160
    >>> small = model.reduce(12)
    >>> bool(small.score(X) > model.score(X) - 0.2)
    True
    """

    estimator: GaussianMixture | None = None
    n_estimators: int = 20
    _: KW_ONLY
    resampling: str = "bootstrap"
    fraction: float = 0.7
    random_state: arguments.RandomState = None
    verbose: int = 0
    checkpoint: arguments.PathName = None

    _arguments: ClassVar = {
        "estimator": estimator_of(GaussianMixture, "a GaussianMixture, or None for one with its defaults")
    }

    _attributes: ClassVar = {"member_of_": Tensor}
    member_of_: Tensor = field(init=False)
    device, memory_limit = base_device, base_limit  # pyright: ignore[reportAssignmentType]
    members_ = property(list_members)
    mixtures_ = members_.setter(ignore)

    @property
    def _base(self) -> GaussianMixture:
        usual = GaussianMixture(prior="default", categorical_features="from_dtype")
        return usual if self.estimator is None else self.estimator

    def _selected_settings(self) -> dict[str, object]:
        return select_base(self._base, self.search_, None)

    def _check_fitted(self) -> None:
        super()._check_fitted()
        check_members(self)

    @fitting
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> AveragedMixture:
        """Fit all members.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples; NaN means missing.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative sample weights.
        groups : array-like of shape (n_samples,), optional
            The group of each sample, such as a patient: replicates and folds do not divide a group.

        Returns
        -------
        self : AveragedMixture
        """
        base = prepare_base(type(self).__name__, self._base, X)
        settings = make_density_settings(base)
        data = read_density(base, X, sample_weight, groups)
        random_state = check_random_state(self.random_state)
        counts = draw_counts(self, data, groups, random_state)
        search, start = make_density_search(base, random_state), make_start(base, random_state)
        begin = partial(begin_density, self.resampling, start, settings.n_init)
        fit_members(self, base, data, settings, search, counts, begin)
        if counts is not None:
            self.oob_log_density_ = score_unseen(self, data, counts, _mean_density)
            self.oob_score_ = mean_of(self.oob_log_density_, ~np.isnan(self.oob_log_density_), data.weights)
        return self

    def score(self, X: Any, y: Any = None) -> Any:
        """Compute the mean log density of samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : None
            Ignored.

        Returns
        -------
        log_density : float
        """
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray | pd.DataFrame, np.ndarray]:
        """Draw samples from the average.

        Parameters
        ----------
        n_samples : int, default=1
            Number of samples.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
        components : ndarray of shape (n_samples,)
        """
        check_is_fitted(self)
        rows, components = self._draw(self.mixture_, n_samples)
        return self._drawn_samples(rows), components.numpy()

    def to_mixture(self) -> GaussianMixture:
        """Convert the average to a fitted `GaussianMixture` of all components.

        Returns
        -------
        model : GaussianMixture
        """
        check_is_fitted(self)
        return _as_density(self, self.mixture_)

    def reduce(self, n_components: int) -> GaussianMixture:
        """Reduce the average to a small `GaussianMixture` with the same mean and covariance (merge-loss).

        Pairs of components are merged in order of their loss. Diagonal covariances stay diagonal, others become full.

        Parameters
        ----------
        n_components : int
            Number of components.

        Returns
        -------
        model : GaussianMixture
        """
        check_is_fitted(self)
        mixture, _ = reduce_components(self.mixture_, [checks.count("n_components", n_components)])
        return _as_density(self, mixture)


def begin_density(
    resampling: str, start: ScikitLearnStart, n_init: int, task: Task, seen: Rows, source: Source, column: int
) -> list[MemberFit]:
    """The fits of a member of `AveragedMixture` from all of its starts."""
    if len(seen) < task.n_components[0]:
        raise ValueError(
            f"resampling={resampling!r} drew {len(seen)} distinct samples for a member with {task.n_components[0]} "
            "components. Use resampling='none', fewer components, or more samples."
        )
    description = describe(source, 1, torch.Generator().manual_seed(0))
    part = replace(task, source=source, description=description)
    problem, weight = replace(task.problem, source=source), float(description.class_weights.sum())
    starts = [start.draw(part, seen, problem) for _ in range(n_init)]
    return [MemberFit(task.problem, mixture, weight, column) for mixture in starts]


def mean_of(values: np.ndarray, scored: np.ndarray, weights: Tensor | None) -> float:
    """The weighted mean of the values of scored rows; NaN if there are none."""
    weights_of = np.where(scored, 1.0 if weights is None else weights.cpu().numpy(), 0.0)
    return (
        float(np.average(values[weights_of > 0], weights=weights_of[weights_of > 0])) if weights_of.any() else math.nan
    )


def _mean_density(scores: Tensor, unseen: Tensor) -> Tensor:
    """Log of the mean density of the members that do not use a row: (1, B, n), (B, n) -> (n,)."""
    n_members = len(unseen)
    totals = (scores[0] + math.log(n_members)).masked_fill(~unseen, -torch.inf).logsumexp(0)
    return torch.where(unseen.any(0), totals - unseen.sum(0).log(), torch.nan)


def replicate_of(
    rows: Rows, labels: Tensor | None, shares: Tensor | None, weights: Tensor | None, counts: Tensor | None
) -> tuple[Rows, Source]:
    """The rows of the replicate of a member, with counts in their weights, for its initialisation."""
    if counts is None:
        return rows, rows.source(labels, shares, weights)
    index = counts.nonzero()[:, 0]
    parts = [None if t is None else t[index.to(t.device)] for t in (labels, shares, weights)]
    times = counts[index].double()
    own = times if parts[2] is None else parts[2].cpu() * times
    values = rows.values[index.numpy()] if isinstance(rows.values, np.ndarray) else rows.values[index]
    part = replace(rows, values=values, extents=None)
    return part, part.source(parts[0], parts[1], own)


def _mean_history(histories: Sequence[Sequence[Record]]) -> list[Record]:
    """The mean objective of all members at every iteration; a converged member keeps its last value."""
    means: list[Record] = []
    for number in range(max(len(history) for history in histories)):
        now = [history[min(number, len(history) - 1)] for history in histories if history]
        value = float(np.mean([record.objective for record in now]))
        change = value - (means[-1].objective if means else -math.inf)
        means.append(Record(number + 1, value, change, max(record.seconds for record in now)))
    return means


def fitted_copy(averaged: DensityEstimator, base: Fitted, mixture: Mixture) -> Fitted:
    """A copy of the estimator of the members with this mixture."""
    model = unfitted_copy(base)
    if not isinstance(mixture.covariance, type(averaged.mixture_.covariance)):
        model.set_params(covariance_type="full")
    model.mixture_, model.warp_ = as_loaded(mixture), averaged.warp_
    adopt_features(model, averaged)
    model.encoding_ = averaged.encoding_
    model.unobserved_, model.training_weight_ = averaged.unobserved_, averaged.training_weight_
    model.n_iter_, model.converged_, model.history_ = averaged.n_iter_, averaged.converged_, list(averaged.history_)
    return model


def _as_density(averaged: AveragedMixture, mixture: Mixture) -> GaussianMixture:
    model = fitted_copy(averaged, averaged._base, mixture).set_params(n_components=mixture.n_components)
    model.lower_bounds_ = [record.objective for record in averaged.history_]
    model.lower_bound_ = model.lower_bounds_[-1] if model.lower_bounds_ else -math.inf
    return model


@storable("AveragedMixtureClassifier", check=check_fitted)
@with_constructor
class AveragedMixtureClassifier(DensityClassifier):
    """Average of several mixture classifiers.

    The members are trained together, in one pass over the data per iteration. Resampling is stratified by class.

    Parameters
    ----------
    estimator : MixtureClassifier or None, default=None
        The members; None means `MixtureClassifier(1)`. If it has parameters "auto", they are selected
        once, for all members.
    n_estimators : int, default=20
        Number of members.
    resampling : {"bootstrap", "subset", "none"}, default="bootstrap"
        Training set of a member: a bootstrap replicate, a random subset, or all samples with its own initialisation.
    fraction : float, default=0.7
        Fraction of the samples in a subset.
    combine : {"posterior", "density"}, default="posterior"
        Whether to average class probabilities or, as in [1]_, densities; then the average is itself a mixture.
    random_state : int, RandomState or None, default=None
        Seed of resampling and initialisation.
    verbose : int, default=0
        Verbosity; 1 shows a progress bar over everything that is computed.
    checkpoint : str or path-like, optional
        A file that keeps the progress of a fit, as in `MixtureClassifier`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    class_prior_ : ndarray of shape (n_classes,)
        Class probabilities.
    mixture_ : Mixture
        The average, one mixture of all components.
    members_ : list of Mixture
        The members, also as `mixtures_`.
    member_of_ : Tensor of shape (n_components,)
        The member of each component.
    oob_decision_function_ : ndarray of shape (n_samples, n_classes)
        Out-of-bag class probabilities of each training sample; NaN if all members use it.
    oob_score_ : float
        Out-of-bag accuracy.
    oob_log_loss_ : float
        Out-of-bag log-loss.
    n_iter_ : int
        Largest number of iterations of a member.
    converged_ : bool
        Whether all members converged.
    history_ : list of Record
        Mean objective of the members at each iteration.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Feature names, if X has string column names.

    References
    ----------
    .. [1] Ormoneit and Tresp (1995). Improved Gaussian mixture density estimates using Bayesian penalty terms and
       network averaging. NIPS 8.

    Examples
    --------
    >>> from mixtura import AveragedMixtureClassifier, MixtureClassifier
    >>> from mixtura.datasets import make_ripley
    >>> X, y = make_ripley(125, random_state=0)
    >>> model = AveragedMixtureClassifier(MixtureClassifier(3), random_state=0).fit(X, y)
    >>> bool(model.oob_score_ > 0.85)
    True
    """

    estimator: MixtureClassifier | None = None
    n_estimators: int = 20
    _: KW_ONLY
    resampling: str = "bootstrap"
    fraction: float = 0.7
    combine: str = "posterior"
    random_state: arguments.RandomState = None
    verbose: int = 0
    checkpoint: arguments.PathName = None

    _arguments: ClassVar = {
        "estimator": estimator_of(MixtureClassifier, "a MixtureClassifier, or None for one with its defaults"),
        "combine": checks.among(("posterior", "density")),
    }

    _attributes: ClassVar = {"member_of_": Tensor}
    member_of_: Tensor = field(init=False)
    device, memory_limit = base_device, base_limit  # pyright: ignore[reportAssignmentType]

    @property
    def members_(self) -> list[Mixture]:
        """The members."""
        return list_members(self)

    mixtures_ = members_.setter(ignore)

    @property
    def _base(self) -> MixtureClassifier:
        return MixtureClassifier(1) if self.estimator is None else self.estimator

    def _selected_settings(self) -> dict[str, object]:
        return select_base(self._base, self.search_, vars(self).get("classes_"))

    def _check_fitted(self) -> None:
        super()._check_fitted()
        check_members(self)

    @property
    def _member_groups(self) -> list[MemberGroup]:
        return [group_of(self)] if self.combine == "posterior" else super()._member_groups

    @fitting
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> AveragedMixtureClassifier:
        """Fit all members.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples; NaN means missing.
        y : array-like of shape (n_samples,) or (n_samples, n_classes)
            Labels or soft labels.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative sample weights.
        groups : array-like of shape (n_samples,), optional
            The group of each sample, such as a patient: replicates and folds do not divide a group.

        Returns
        -------
        self : AveragedMixtureClassifier
        """
        base = prepare_base(type(self).__name__, self._base, X)
        settings, search = make_classifier_settings(base), make_classifier_search(base, average=1)
        data = read_training(base, settings, X, y, sample_weight, groups)
        random_state = check_random_state(self.random_state)
        counts = draw_counts(self, data, groups, random_state)
        settings = replace(settings, generator=_next_generator(random_state), missing="ignorable")
        begin = partial(begin_classifier, base.solver, random_state, settings.n_init)
        fit_members(self, base, data, settings, search, counts, begin)
        if counts is not None:
            self.oob_decision_function_, self.oob_score_, self.oob_log_loss_ = predict_unseen(self, data, counts)
        return self

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self._base.missing == "informative":
            raise ValueError(
                "The members of AveragedMixtureClassifier take no account of which values are missing; got "
                "missing='informative'. Set missing='ignorable', or use MixtureClassifier by itself."
            )

    @property
    def unlabeled(self) -> object:
        """The label of unlabeled samples, as in the members."""
        return None if self.estimator is None else self.estimator.unlabeled

    def to_mixture(self) -> MixtureClassifier:
        """Convert the average of the densities (`combine="density"`) to a `MixtureClassifier` of all components.

        Returns
        -------
        model : MixtureClassifier
        """
        check_is_fitted(self)
        return _as_classifier(self, self.mixture_)

    def reduce(self, n_components: int) -> MixtureClassifier:
        """Reduce the average to a small `MixtureClassifier`; see `AveragedMixture.reduce`.

        Parameters
        ----------
        n_components : int
            Number of components of every class.

        Returns
        -------
        model : MixtureClassifier
        """
        check_is_fitted(self)
        mixture, _ = reduce_components(self.mixture_, [checks.count("n_components", n_components)] * len(self.classes_))
        return _as_classifier(self, mixture)


def _next_generator(random_state: np.random.RandomState) -> torch.Generator:
    return make_generator(random_state.randint(np.iinfo(np.int32).max))


def begin_classifier(
    asked: object, random_state: np.random.RandomState, n_init: int, task: Task, _: Rows, source: Source, column: int
) -> list[MemberFit]:
    """The fits of a member of `AveragedMixtureClassifier` from all of its starts; `asked` is the argument `solver`.

    They start from its own samples; prior, frame and smallest variances are those of all samples.
    """
    if not isinstance(find_solver(task), EM | AcceleratedEM):
        raise ValueError(
            'The members of AveragedMixtureClassifier are trained together by solver="em", which maximises '
            f'objective="joint"; got objective {task.objective.name!r} and solver={asked!r}.'
        )
    fits = []
    for generator in [_next_generator(random_state) for _ in range(n_init)]:
        description = describe(source, task.n_classes, generator)
        own = replace(task, source=source, description=description, generator=generator, start=None)
        fits.append(MemberFit(task.problem, start(own, task.problem), description.weight, column))
    return fits


def predict_unseen(model: AveragedMixtureClassifier, data: Data, counts: Tensor) -> tuple[np.ndarray, float, float]:
    """Class probabilities by the members that do not use a sample (n, C), their accuracy and log-loss."""
    labels, combine = data.labels, _mean_posterior if model.combine == "posterior" else _posterior_of_mean
    probabilities = score_unseen(model, data, counts, combine)
    known = None if labels is None else labels.numbers
    numbers = np.full(len(probabilities), -1) if known is None else known.cpu().numpy()
    scored = (numbers >= 0) & ~np.isnan(probabilities[:, 0])
    own = probabilities[np.arange(len(probabilities)), numbers.clip(0)]
    accuracy = mean_of(probabilities.argmax(1) == numbers, scored, data.weights)
    return probabilities, accuracy, mean_of(-np.log(own.clip(1e-300)), scored, data.weights)


def _mean_posterior(scores: Tensor, unseen: Tensor) -> Tensor:
    posterior = torch.where(unseen, scores.softmax(0), 0.0).sum(1)  # (C, n)
    return (posterior / unseen.sum(0)).T  # NaN where none is left


def _posterior_of_mean(scores: Tensor, unseen: Tensor) -> Tensor:
    return scores.masked_fill(~unseen, -torch.inf).logsumexp(1).softmax(0).T


def _strata(labels: Labels) -> np.ndarray:
    """Strata of resampling: the classes, and the unlabeled rows."""
    if labels.shares is None:
        assert labels.numbers is not None
        return labels.numbers.cpu().numpy()
    known = labels.shares.nan_to_num(nan=-1.0)
    return torch.where(labels.unlabeled, -1, known.argmax(1)).cpu().numpy()


def _as_classifier(averaged: AveragedMixtureClassifier, mixture: Mixture) -> MixtureClassifier:
    model = fitted_copy(averaged, averaged._base, mixture)
    model.classes_ = averaged.classes_
    model.class_prior_ = mixture.log_class_prior.exp().cpu().numpy()
    model.n_components = dict(zip(model.classes_.tolist(), model.n_components_.tolist(), strict=True))
    return model
