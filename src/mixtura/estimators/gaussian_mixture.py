"""GaussianMixture for density estimation and clustering, a drop-in replacement for scikit-learn's class."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import DensityMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mixtura import checks
from mixtura.covariances import COVARIANCES, TiedCovariance
from mixtura.engine.sources import Source, TensorSource
from mixtura.engine.threads import computing
from mixtura.estimators.by_parts import by_parts
from mixtura.estimators.conversion import mixture_from_sklearn, mixture_to_sklearn
from mixtura.estimators.density_estimator import DensityEstimator
from mixtura.estimators.estimator import atomic_fit, check_fitted
from mixtura.estimators.given_start import given_start, with_given_parts
from mixtura.estimators.input import Rows, read_rows
from mixtura.estimators.online import advance, begin, check_batch, learns_online, remember_first, resume
from mixtura.estimators.progress import recorded, trial_watcher
from mixtura.estimators.sklearn_output import Printer
from mixtura.estimators.sklearn_start import centres_of, initial_responsibilities, wide_tied
from mixtura.estimators.streamed import is_streamed, read_stream
from mixtura.estimators.training import check_described, check_start, keep_unobserved, warn_of_prior, warn_of_repairs
from mixtura.files.registry import storable
from mixtura.init.description import SAMPLED_ROWS, Description, describe
from mixtura.init.starts import starting_mixture, weighted_deviations
from mixtura.model.mixture import Mixture
from mixtura.numerics import linalg
from mixtura.objectives import Assigned, Marginal
from mixtura.roles import Objective, Prior, Structure
from mixtura.selection.clusters import Selection, choose_clusters, wanted_criterion, wanted_priors
from mixtura.selection.plan import is_auto, make_prior
from mixtura.solvers import EM, FitResult, Outcome, Problem, best_of, first_update, run


@storable("GaussianMixture", check=check_fitted)
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

    running_: Any = None

    _parameter_constraints: dict = {  # noqa: RUF012 - scikit-learn's own form
        "n_components": [Interval(Integral, 1, None, closed="left")],  # and "auto"
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
    }  # beyond these, arguments are checked in words of our own

    def __init__(
        self,
        n_components: Any = 1,
        *,
        covariance_type: Any = "full",
        tol: float = 1e-3,
        reg_covar: float = 1e-6,
        max_iter: int = 100,
        n_init: int = 1,
        init_params: str = "kmeans",
        weights_init: Any = None,
        means_init: Any = None,
        precisions_init: Any = None,
        random_state: Any = None,
        warm_start: bool = False,
        verbose: int = 0,
        verbose_interval: int = 10,
        checkpoint: Any = None,
        prior: Any = None,
        criterion: str = "auto",
        rank: Any = "auto",
        device: Any = None,
        memory_limit: Any = None,
    ):
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.tol = tol
        self.reg_covar = reg_covar
        self.max_iter = max_iter
        self.n_init = n_init
        self.init_params = init_params
        self.weights_init = weights_init
        self.means_init = means_init
        self.precisions_init = precisions_init
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.verbose_interval = verbose_interval
        self.checkpoint = checkpoint
        self.prior = prior
        self.criterion = criterion
        self.rank = rank
        self.device = device
        self.memory_limit = memory_limit

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> GaussianMixture:
        """Fit the mixture; NaN means missing.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples; also a memory map, or an iterable of batches that can be iterated repeatedly.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative sample weights.

        Returns
        -------
        self : GaussianMixture
        """
        with atomic_fit(self):
            self._check_arguments()
            rows, source = self._read_source(X, sample_weight)
            self.running_ = None
            searches = is_auto(self.n_components) or is_auto(self.prior)
            # Otherwise verbose prints, as scikit-learn's, which reads arrays only.
            with computing(), recorded(self, bar=searches or rows is None, training=source):
                best, problem, description = self._best_fit(rows, source)
            keep_unobserved(self, description)
            self._keep(best)
            warn_of_prior(self.prior, problem.prior, best.mixture, description)
        return self

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
        check_batch(self, X, step)
        first = "mixture_" not in vars(self)
        if first:
            begin(self, X, None, sample_weight)
        self._check_arguments()
        rows = read_rows(self, X, reset=False)
        source = rows.source(weights=checks.sample_weight(sample_weight, len(rows), all_rows=False))
        if first:
            remember_first(self, self._problem_of(source, Marginal()))
        elif source.n_rows:
            self._step(source, step)
        return self

    def _problem_of(self, source: Source, objective: Objective) -> Problem:
        """The problem of the fitted model for other samples, with the selected prior."""
        description = describe(source, 1, torch.Generator().manual_seed(0))
        check_described(self, description)
        return replace(self._last_problem(source, description), objective=objective)

    def _step(self, source: Source, step: float | str) -> None:
        if self.running_ is None:
            resume(self, self._problem_of(source, Marginal()))
        assert self.running_ is not None
        alone = self.running_.prior is None
        record = advance(self, source, Marginal(), step, self.reg_covar if alone else 0.0, strict=alone)
        self.n_iter_, self.lower_bound_ = self.n_iter_ + 1, record.objective
        self.lower_bounds_ = [*self.lower_bounds_, record.objective]
        self.history_ = [*self.history_, record]

    def _check_arguments(self) -> None:
        """Check arguments as scikit-learn does, with its messages; "auto" is not among its values."""
        plain: Any = clone(self) if is_auto(self.n_components) else self
        if plain is not self:
            plain.set_params(n_components=1)
        plain._validate_params()
        wanted_criterion(self.criterion, "bic")

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

    def _read_source(self, X: Any, sample_weight: Any) -> tuple[Rows | None, Source]:
        if is_streamed(X):
            self._home = None
            return None, read_stream(self, X, None, sample_weight, labeled=False).source
        rows = read_rows(self, X, reset=True, smallest=2).nearby()
        self._home = rows.home
        weights = checks.sample_weight(sample_weight, len(rows))
        n_rows = len(rows) if weights is None else int((weights > 0).sum())
        checks.enough_rows(n_rows, 2, type(self).__name__)
        if not is_auto(self.n_components) and n_rows < self.n_components:
            raise ValueError(
                f"Expected n_samples >= n_components but got n_components = {self.n_components}, n_samples = {n_rows}"
            )
        return rows, rows.source(weights=weights)

    def _best_fit(self, rows: Rows | None, source: Source) -> tuple[FitResult, Problem, Description]:
        going_on = self.warm_start and "converged_" in vars(self)
        random_state = check_random_state(self.random_state)
        description = describe(source, 1, torch.Generator().manual_seed(0))
        check_described(self, description)
        if not going_on and (is_auto(self.n_components) or is_auto(self.prior)):
            chosen, selection = self._chosen(source, description, random_state)
            self.search_ = selection.table
            problem = chosen._problem(source, description)
            if selection.interrupted:
                return FitResult(selection.start, Outcome.INTERRUPTED, ()), problem, description
            result = run(chosen._em(problem), problem, selection.start, self.max_iter, self.tol)
            return result, problem, description
        problem = self._last_problem(source, description) if going_on else self._problem(source, description)
        numbers = itertools.count()

        def fit_once() -> FitResult:
            printer = Printer(0 if rows is None else self.verbose, self.verbose_interval, next(numbers))
            start = self._last(source) if going_on else self._start(rows, problem, description, random_state)
            previous = self.lower_bound_ if going_on else -math.inf
            result = run(self._em(problem), problem, start, self.max_iter, self.tol, printer.iteration, previous)
            printer.end(result)
            return result

        n_starts = 1 if going_on else self.n_init
        if self.max_iter == 0:  # without likelihoods to compare, scikit-learn keeps the last initialisation
            return [fit_once() for _ in range(n_starts)][-1], problem, description
        return best_of(n_starts, fit_once), problem, description

    def _last(self, source: Source) -> Mixture:
        wanted = self.mixture_.n_components if is_auto(self.n_components) else self.n_components
        check_start(self.mixture_, source.n_features, [wanted], self._structure(source.n_features))
        return self.mixture_.to(source.device)

    def _chosen(
        self, source: Source, description: Description, random_state: np.random.RandomState
    ) -> tuple[GaussianMixture, Selection]:
        """A copy with the selected number of components and prior in place of "auto"."""
        structure = self._structure(source.n_features)
        priors = wanted_priors(self.prior, structure, source.n_features)
        generator = torch.Generator().manual_seed(int(random_state.randint(np.iinfo(np.int32).max)))
        problem = replace(self._problem_with(None, source, description), ridge=0.0)
        fixed = None if is_auto(self.n_components) else self.n_components
        usual = "held_out" if is_auto(self.prior) else "bic"
        with trial_watcher(self.verbose, type(self).__name__) as watch:
            criterion = wanted_criterion(self.criterion, usual)
            selection = choose_clusters(problem, structure, priors, fixed, criterion, generator, watch)
        copy: Any = clone(self)
        return copy.set_params(**selection.table.best.what), selection

    def _selected_settings(self) -> dict[str, Any]:
        what = self.search_.best.what if "search_" in vars(self) else {}
        return {name: value for name, value in what.items() if is_auto(getattr(self, name))}

    def _last_problem(self, source: Source, description: Description) -> Problem:
        """Return the problem of a warm start, with the prior selected before."""
        prior = self.search_.best.what["prior"] if is_auto(self.prior) else self.prior
        return self._problem_with(make_prior(prior, description, [self.mixture_.n_components]), source, description)

    def _problem(self, source: Source, description: Description) -> Problem:
        return self._problem_with(make_prior(self.prior, description, [self.n_components]), source, description)

    def _problem_with(self, prior: Prior | None, source: Source, description: Description) -> Problem:
        # With a prior, a constant feature has the same variance in all components, so that it has no influence.
        floor = torch.where(description.varies | (prior is None), 0.0, description.total)
        memory_limit = checks.memory_limit(self.memory_limit)
        ridge = self.reg_covar if prior is None else 0.0
        return Problem(source, Marginal(), description.frame, floor, prior, memory_limit=memory_limit, ridge=ridge)

    def _em(self, problem: Problem) -> EM:
        """Return the EM solver; without a prior it raises the same errors as scikit-learn."""
        return EM(strict=problem.prior is None)

    def _start(
        self,
        rows: Rows | None,
        problem: Problem,
        description: Description,
        random_state: np.random.RandomState,
    ) -> Mixture:
        """scikit-learn's initialisation, extended to weights, missing values and any covariance structure."""
        source, em = problem.source, self._em(problem)
        structure = self._structure(source.n_features)
        checks.has_update(structure)
        size = source.n_features
        if all(part is not None for part in (self.weights_init, self.means_init, self.precisions_init)):
            return given_start(self, size, source.device)
        in_memory = rows is not None and isinstance(rows.values, Tensor)
        if not in_memory and description.n_rows > SAMPLED_ROWS:
            # Many rows that are not in memory: initialise from a standardised sample of them.
            generator = torch.Generator().manual_seed(int(random_state.randint(2**31 - 1)))
            start = first_update(
                *starting_mixture(description, structure, [self.n_components], "kmeans", generator), problem, em
            )
            return with_given_parts(self, start)
        if in_memory:
            (block,) = source.blocks()
            whole, weights = block.rows, block.weights
        else:  # the sample holds all of them
            whole, weights = description.samples[0]
            whole, weights = whole.to(source.dtype), None if bool((weights == 1).all()) else weights
        filled = torch.where(whole.isnan(), description.class_means[0].to(whole.dtype), whole)
        parts = initial_responsibilities(self.init_params, self.n_components, filled, weights, random_state)
        variances = description.total.expand(self.n_components, size).contiguous()
        assigned = parts.assigned(filled, weights)
        centres = centres_of(*assigned, self.n_components)
        sampled = assigned[0][:SAMPLED_ROWS], assigned[1][:SAMPLED_ROWS], assigned[2][:SAMPLED_ROWS]
        class_of = torch.zeros(self.n_components, dtype=torch.int64, device=source.device)
        covariance = structure.start(variances, *weighted_deviations([sampled], centres), class_of)
        rough = Mixture(torch.zeros_like(variances[:, 0]), centres, covariance, class_of)
        chosen = TensorSource(
            whole[parts.index], parts.labels, parts.shares, None if weights is None else weights[parts.index]
        )
        start, _ = em.step(replace(problem, source=chosen, objective=Assigned()), rough)
        total = float(len(whole)) if weights is None else float(weights.sum())
        log_weights = start.log_weights + math.log(parts.weight / total)
        start = replace(start, log_weights=log_weights)
        if isinstance(start.covariance, TiedCovariance) and len(parts.index) < len(whole):
            start = replace(start, covariance=wide_tied(start, filled, weights, parts.weight, self.reg_covar))
        return with_given_parts(self, start)

    def _keep(self, result: FitResult) -> None:
        self.mixture_ = self._at_home(result.mixture)
        self.converged_ = result.outcome is Outcome.CONVERGED
        self.n_iter_ = len(result.history)
        self.lower_bound_ = result.objective
        self.lower_bounds_ = [record.objective for record in result.history]
        self.history_ = list(result.history)
        warn_of_repairs(result.repairs)
        if result.outcome is Outcome.INTERRUPTED:
            raise result.cause or KeyboardInterrupt
        if not self.converged_ and self.max_iter > 0:
            checks.warn(
                "Best performing initialization did not converge. Try different init parameters, or increase max_iter, "
                "tol, or check for degenerate data.",
                ConvergenceWarning,
            )

    def _check_fitted(self) -> None:
        super()._check_fitted()
        checks.same_size("mixture_", self.mixture_.n_classes, 1)
        checks.is_kind("lower_bound_", self.lower_bound_, float)

    @by_parts()
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
        numbers = self._map(X, lambda log_joint: log_joint.max(0).indices)
        return numbers.long() if isinstance(numbers, Tensor) else numbers.astype(np.int64)

    @by_parts("component")
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

    def score(self, X: Any, y: Any = None) -> float:  # pyright: ignore[reportIncompatibleMethodOverride]
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

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
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
        return rows[order].numpy(), components[order].numpy()

    def _view(self, values: Tensor) -> np.ndarray:
        return values.cpu().numpy()

    @property
    def covariances_(self) -> np.ndarray:
        """Covariances in scikit-learn's shape for the covariance type; dense for others."""
        return self._view(self._in_shape(self._fitted("covariances_").covariance.dense()))

    @property
    def precisions_cholesky_(self) -> np.ndarray:
        """Upper triangular U with U U' the precision; square roots of precisions for "diag" and "spherical"."""
        dense = self._in_shape(self._fitted("precisions_cholesky_").covariance.dense())
        if self.covariance_type in ("diag", "spherical"):
            return self._view(dense.rsqrt())
        factors, _ = linalg.safe_cholesky(dense)
        identity = torch.eye(dense.shape[-1], dtype=dense.dtype, device=dense.device).expand_as(dense)
        return self._view(linalg.solve_lower(factors, identity).mT)

    @property
    def precisions_(self) -> np.ndarray:
        """Inverse covariances, in the same shape."""
        upper = self.precisions_cholesky_
        return upper**2 if self.covariance_type in ("diag", "spherical") else upper @ np.swapaxes(upper, -1, -2)

    def _in_shape(self, dense: Tensor) -> Tensor:
        """(K, D, D) -> scikit-learn's shape."""
        if self.covariance_type == "diag":
            return dense.diagonal(dim1=-2, dim2=-1)
        if self.covariance_type == "spherical":
            return dense[:, 0, 0]
        covariance = self.mixture_.covariance
        tied = isinstance(covariance, TiedCovariance) and covariance.n_groups == 1
        return dense[0] if tied else dense
