"""GaussianMixture for density estimation and clustering, a drop-in replacement for scikit-learn's class."""

from __future__ import annotations

import itertools
import math
from dataclasses import KW_ONLY, field, replace
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
from sklearn.base import DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions, validate_parameter_constraints
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mixtura import checks
from mixtura.covariances import COVARIANCES
from mixtura.engine.sources import Source
from mixtura.estimators import arguments
from mixtura.estimators.density_estimator import DensityEstimator, map_log_joints
from mixtura.estimators.estimator import check_fitted, declared, fitting, with_constructor
from mixtura.estimators.labels import with_groups
from mixtura.estimators.online import check_batch, learn_batch, learns_online, settings_of_first
from mixtura.estimators.rows import Data, read_rows, read_samples
from mixtura.estimators.scikit_learn import (
    ScikitLearnStart,
    covariances_in_shape,
    mixture_from_sklearn,
    mixture_to_sklearn,
    precision_factors_in_shape,
    precisions_of,
    run_printed,
)
from mixtura.estimators.streamed_rows import by_batches, is_streamed, read_stream
from mixtura.estimators.training import (
    Settings,
    continues,
    fit_data,
    keep_mixture,
    make_generator,
    make_settings,
    raise_interruption,
    train,
    warn_of_prior,
    warn_of_repairs,
)
from mixtura.files.registry import storable
from mixtura.model.mixture import Mixture
from mixtura.objectives import Marginal
from mixtura.roles import Structure
from mixtura.selection.clusters import CRITERIA, ComponentSearch
from mixtura.selection.splits import renumbered
from mixtura.selection.task import PriorChoice, Selected, Task, is_auto
from mixtura.solvers import FitResult
from mixtura.solvers.em import RunningMoments

if TYPE_CHECKING:
    import pandas as pd

# Rules of scikit-learn's class for its arguments, with `n_components` other than "auto".
LIKE_SCIKIT_LEARN = {
    "n_components": [Interval(Integral, 1, None, closed="left")],
    "covariance_type": [StrOptions(COVARIANCES.keys()), Structure],  # keys are a view: also those added later
    "tol": [Interval(Real, 0.0, None, closed="left")],
    "reg_covar": [Interval(Real, 0.0, None, closed="left")],
    "max_iter": [Interval(Integral, 0, None, closed="left")],
    "n_init": [Interval(Integral, 1, None, closed="left")],
    "init_params": [StrOptions({"kmeans", "random", "random_from_data", "k-means++"})],
    "weights_init": ["array-like", None],
    "means_init": ["array-like", None],
    "precisions_init": ["array-like", None],
    "random_state": ["random_state"],
    "warm_start": ["boolean"],
    "verbose": ["verbose"],
    "verbose_interval": [Interval(Integral, 1, None, closed="left")],
}


@storable("GaussianMixture", check=check_fitted)
@with_constructor
class GaussianMixture(DensityMixin, DensityEstimator):
    """Gaussian mixture for density estimation and clustering.

    It has all parameters and attributes of scikit-learn's `GaussianMixture`; with the same `random_state` it has the
    same initialisation and iterations. In addition it supports missing values (NaN), `sample_weight`, low-rank
    covariances, priors, GPUs and data larger than memory.

    Parameters
    ----------
    n_components : int or "auto", default=1
        Number of components; "auto" selects it by `criterion`.
    covariance_type : str or Structure, default="full"
        "full", "tied", "diag", "spherical", "low_rank", or a structure of `mixtura.covariances`.
    tol : float, default=1e-3
        Convergence threshold of the change of the log-likelihood per sample.
    reg_covar : float, default=1e-6
        Number added to all variances; used only with `prior=None`.
    max_iter : int, default=100
        Maximum number of EM iterations.
    n_init : int, default=1
        Number of initialisations; the fit with the largest log-likelihood is kept.
    init_params : {"kmeans", "k-means++", "random", "random_from_data"}, default="kmeans"
        Method of initialisation.
    weights_init : array-like of shape (n_components,), optional
        Initial weights.
    means_init : array-like of shape (n_components, n_features), optional
        Initial means.
    precisions_init : array-like, optional
        Initial precisions, in the shape of the covariance type.
    random_state : int, RandomState or None, default=None
        Seed of the initialisation and of `sample`.
    warm_start : bool, default=False
        Whether `fit` starts from the previous fit.
    verbose : int, default=0
        Verbosity, as in scikit-learn.
    verbose_interval : int, default=10
        Number of iterations between two messages.
    checkpoint : str or path-like, optional
        A file that keeps the progress of a fit, as in `MixtureClassifier`.
    prior : None, "default", "auto" or Prior, default=None
        None is maximum likelihood, as in scikit-learn. "default" shrinks covariances towards the variances of the
        data, independent of the units of the features. "auto" selects a prior by `criterion`.
    criterion : {"auto", "bic", "icl", "held_out", "out_of_bag"}, default="auto"
        Selection criterion: BIC, ICL, or the density of held-out or out-of-bag samples. "auto" means "held_out" for
        `prior="auto"`, and "bic" otherwise.
    rank : int or "auto", default="auto"
        Rank of "low_rank"; "auto" means min(10, max(1, n_features // 2)).
    categorical_features : "from_dtype", array-like or None, default=None
        Categorical features, as in `MixtureClassifier`; None refuses them, as scikit-learn does.
    device : str, torch.device or None, default=None
        Device of the computation; None means that of X.
    memory_limit : int, str or None, default=None
        Limit of the temporary arrays, in bytes or as text like "256 MB"; None means 256 MB.

    Attributes
    ----------
    weights_ : ndarray of shape (n_components,)
        Weights of the components.
    means_ : ndarray of shape (n_components, n_features)
        Means of the components.
    covariances_ : ndarray
        Covariances, in scikit-learn's shape for the covariance type; dense for others.
    precisions_ : ndarray
        Inverse covariances, in the same shape.
    precisions_cholesky_ : ndarray
        Cholesky factors of the precisions, in the same shape.
    mixture_ : Mixture
        The fitted mixture.
    converged_ : bool
        Whether EM converged.
    n_iter_ : int
        Number of iterations of the best fit.
    lower_bound_ : float
        Log-likelihood per sample of the best fit, plus the log prior.
    lower_bounds_ : list of float
        The same for each iteration.
    history_ : list of Record
        Objective and time of each iteration.
    n_components_ : int
        Number of components.
    n_parameters_ : int
        Number of free parameters.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Feature names, if X has string column names.

    Examples
    --------
    >>> import numpy as np
    >>> from mixtura import GaussianMixture
    >>> X = np.array([[1.0, 2], [1, 4], [1, 0], [10, 2], [10, 4], [10, np.nan]])
    >>> model = GaussianMixture(n_components=2, random_state=0).fit(X)
    >>> np.unique(model.predict(X[:3])).size
    1
    """

    n_components: int | str = 1
    _: KW_ONLY
    covariance_type: str | Structure = "full"
    tol: float = 1e-3
    reg_covar: float = 1e-6
    max_iter: int = 100
    n_init: int = 1
    init_params: str = "kmeans"
    weights_init: object = None
    means_init: object = None
    precisions_init: object = None
    random_state: arguments.RandomState = None
    warm_start: bool = False
    verbose: int = 0
    verbose_interval: int = 10
    checkpoint: arguments.PathName = None
    prior: PriorChoice = None
    criterion: str = "auto"
    rank: int | str = "auto"
    categorical_features: object = None
    device: arguments.Device = None
    memory_limit: arguments.MemoryLimit = None

    running_: RunningMoments | None = field(default=None, init=False)  # moments of `partial_fit`
    lower_bound_: float = field(init=False)
    lower_bounds_: list[float] = field(init=False)

    _attributes: ClassVar = {"lower_bound_": float}
    _arguments: ClassVar = {"criterion": checks.among(CRITERIA, ', or "auto"') | checks.SILENT_AUTO}

    @fitting
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> GaussianMixture:
        """Fit the mixture; NaN means missing.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples; also a memory map, or an iterable of batches that can be iterated repeatedly.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative sample weights.
        groups : array-like of shape (n_samples,), optional
            The group of each sample, such as a patient: samples of a group are never both in training and held out.

        Returns
        -------
        self : GaussianMixture
        """
        fit_density(self, make_density_settings(self), X, sample_weight, groups)
        return self

    def _check_arguments(self) -> None:
        """Check arguments that scikit-learn has by its rules, with its messages; the others by ours."""
        values = self.get_params(deep=False)
        if is_auto(self.n_components):
            values["n_components"] = 1
        validate_parameter_constraints(LIKE_SCIKIT_LEARN, values, type(self).__name__)
        ours = {name: value for name, value in values.items() if name not in LIKE_SCIKIT_LEARN}
        checks.check_arguments(ours, declared(type(self), "_arguments"))

    @available_if(learns_online)
    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, step: float | str = "decaying"
    ) -> GaussianMixture:
        """Update the mixture with a batch of samples (stepwise EM); NaN means missing.

        The first batch is fitted as by `fit`, with at least four initialisations. It should have many samples of every
        component. Each later batch is one step of stepwise EM.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative sample weights.
        step : "decaying" or float, default="decaying"
            Step size: the fraction by which a batch reduces the weight of all earlier batches. A decaying step size
            converges on a stationary stream; a constant one, such as 0.1, follows a stream that changes.

        Returns
        -------
        self : GaussianMixture
        """
        check_batch(X, step)
        self._check_arguments()
        update_density(self, make_density_settings(self), X, sample_weight, step)
        return self

    def _selected_settings(self) -> dict[str, object]:
        what = {} if self.search_ is None else self.search_.best.what
        return {name: value for name, value in what.items() if is_auto(getattr(self, name))}

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Fit the mixture and predict the most probable component of each sample.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative sample weights.

        Returns
        -------
        components : ndarray of shape (n_samples,)
        """
        return self.fit(X, y, sample_weight).predict(X)

    def _check_fitted(self) -> None:
        super()._check_fitted()
        checks.same_size("mixture_", self.mixture_.n_classes, 1)

    @by_batches()
    def predict(self, X: Any) -> Any:
        """Predict the most probable component of each sample.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        components : ndarray of shape (n_samples,)
        """
        numbers = map_log_joints(self, X, lambda log_joint: log_joint.max(0).indices)
        return numbers.long() if isinstance(numbers, Tensor) else numbers.astype(np.int64)

    @by_batches("component")
    def predict_proba(self, X: Any) -> Any:
        """Compute the posterior probability of each component.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_components)
        """
        return self.responsibilities(X)

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

    @classmethod
    def from_sklearn(cls, model: Any) -> GaussianMixture:
        """Convert a fitted `sklearn.mixture.GaussianMixture`.

        Parameters
        ----------
        model : sklearn.mixture.GaussianMixture
            A fitted model.

        Returns
        -------
        GaussianMixture
        """
        return mixture_from_sklearn(cls, model)

    def to_sklearn(self) -> Any:
        """Convert to a fitted `sklearn.mixture.GaussianMixture`.

        Returns
        -------
        model : sklearn.mixture.GaussianMixture
            With `covariance_type="full"` if scikit-learn lacks the covariance type of this model.
        """
        return mixture_to_sklearn(self)

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray | pd.DataFrame, np.ndarray]:
        """Draw samples, ordered by component.

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
        if n_samples < 1:
            raise ValueError(f"Invalid value for 'n_samples': {n_samples} . The sampling requires at least one sample.")
        rows, components = self._draw(self.mixture_, n_samples)
        order = components.argsort(stable=True)
        return self._drawn_samples(rows[order]), components[order].numpy()

    @property
    def covariances_(self) -> np.ndarray:
        """Covariances in scikit-learn's shape for the covariance type; dense for others."""
        self._fitted("covariances_")
        return covariances_in_shape(self).cpu().numpy()

    @property
    def precisions_cholesky_(self) -> np.ndarray:
        """Upper triangular U with U U' the precision; square roots of precisions for "diag" and "spherical"."""
        self._fitted("precisions_cholesky_")
        return precision_factors_in_shape(self).cpu().numpy()

    @property
    def precisions_(self) -> np.ndarray:
        """Inverse covariances, in the same shape."""
        return precisions_of(self.precisions_cholesky_, self.covariance_type)


def make_density_settings(model: GaussianMixture) -> Settings:
    """The settings of a fit; a warm start keeps what was selected before."""
    n_components, prior = model.n_components, model.prior
    if continues(model):
        n_components = [model.mixture_.n_components] if is_auto(n_components) else n_components
        prior = model.search_.best.what["prior"] if is_auto(prior) and model.search_ is not None else prior
    return make_settings(
        model,
        n_components=n_components,
        objective=Marginal(),
        prior=None if is_auto(prior) else prior,
        generator=torch.Generator().manual_seed(0),
    )


def make_density_search(
    model: GaussianMixture, random_state: np.random.RandomState | None = None
) -> ComponentSearch | None:
    """The selection of what is "auto"; None if nothing is, or if the last fit is continued."""
    if continues(model) or not (is_auto(model.n_components) or is_auto(model.prior)):
        return None
    usual = "held_out" if is_auto(model.prior) else "bic"
    return ComponentSearch(
        model.prior,
        None if is_auto(model.n_components) else cast("int", model.n_components),
        usual if is_auto(model.criterion) else model.criterion,
        make_generator(model.random_state if random_state is None else random_state),
    )


def fit_density(
    model: GaussianMixture, settings: Settings, X: object, sample_weight: object, groups: object = None
) -> None:
    """Fit and keep a mixture."""
    search, random_state = make_density_search(model), check_random_state(model.random_state)
    data = read_density(model, X, sample_weight, groups)
    training = partial(train_like_scikit_learn, model, data, random_state) if search is None else train
    # Otherwise verbose prints, as scikit-learn's, which reads arrays only.
    bar = search is not None or data.rows is None
    chosen, (result,) = fit_data(model, data, settings, search, training=training, bar=bar)
    keep_density(model, data, chosen, result)


def train_like_scikit_learn(
    model: GaussianMixture, data: Data, random_state: np.random.RandomState, chosen: Selected
) -> tuple[FitResult, ...]:
    """Train from starts, and with output, as scikit-learn's class does."""
    task, begin_at, numbers = chosen.task, make_start(model, random_state), itertools.count()
    verbose = 0 if data.rows is None else model.verbose
    given = task.init if isinstance(task.init, Mixture) else None
    previous = -math.inf if given is None else model.lower_bound_

    def fit_once(task: Task) -> FitResult:
        def draw() -> Mixture:
            return begin_at.draw(task, data.rows) if given is None else given

        return run_printed(task, draw, previous, verbose, model.verbose_interval, next(numbers))

    if task.max_iter > 0:
        return train(replace(chosen, fit=fit_once))
    # Without likelihoods to compare, scikit-learn keeps the last initialisation.
    last = replace(chosen, tasks=(replace(task, n_init=1),))
    return train(replace(last, fit=lambda task: [fit_once(task) for _ in range(chosen.task.n_init)][-1]))


def update_density(
    model: GaussianMixture, settings: Settings, X: object, sample_weight: object, step: float | str
) -> None:
    """Fit the first batch, or take one step with a later one."""

    def read() -> Source:
        rows = read_rows(model, X, reset=False)
        return rows.source(weights=checks.sample_weight(sample_weight, len(rows), all_rows=False))

    first = partial(fit_density, model, settings_of_first(settings), X, sample_weight)
    record = learn_batch(model, settings, step, first, read)
    if record is not None:
        model.lower_bound_, model.lower_bounds_ = record.objective, [*model.lower_bounds_, record.objective]


def make_start(model: GaussianMixture, random_state: np.random.RandomState) -> ScikitLearnStart:
    """The initialisation of a mixture without a search."""
    given = model.weights_init, model.means_init, model.precisions_init
    return ScikitLearnStart(model.init_params, *given, model.covariance_type, random_state)


def read_density(model: GaussianMixture, X: object, sample_weight: object, groups: object = None) -> Data:
    """Check samples and their weights."""
    if is_streamed(X):
        checks.alone_with_batches(groups=groups)
        return replace(read_stream(model, X, None, sample_weight, labeled=False), encoding=model.encoding_)
    rows = read_samples(model, X, reset=True, smallest=2).nearby()
    weights = checks.sample_weight(sample_weight, len(rows))
    n_rows = len(rows) if weights is None else int((weights > 0).sum())
    checks.enough_rows(n_rows, 2, type(model).__name__)
    if not is_auto(model.n_components) and n_rows < cast("int", model.n_components):
        raise ValueError(
            f"Expected n_samples >= n_components but got n_components = {model.n_components}, n_samples = {n_rows}"
        )
    cv = with_groups(None, groups, len(rows))
    cv = cv if weights is None else renumbered(cv, weights > 0)
    return Data(rows.source(weights=weights), encoding=model.encoding_, rows=rows, weights=weights, cv=cv)


def keep_density(model: GaussianMixture, data: Data, chosen: Selected[Task], result: FitResult) -> None:
    """Store a fit, with warnings; raise the exception that interrupted it again."""
    keep_mixture(model, data, chosen, result)
    model.lower_bound_ = result.objective
    model.lower_bounds_ = [record.objective for record in result.history]
    warn_of_repairs(result.repairs)
    raise_interruption(result)
    if not model.converged_ and model.max_iter > 0:
        checks.warn(
            "Best performing initialization did not converge. Try different init parameters, or increase max_iter, "
            "tol, or check for degenerate data.",
            ConvergenceWarning,
        )
    warn_of_prior(model.prior, chosen.task.prior, result.mixture, chosen.task.description)
