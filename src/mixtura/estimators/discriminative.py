"""DiscriminativeMixtureClassifier: mixtures that separate the classes, with penalties that cross-validation chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from mixtura import checks
from mixtura.engine.sources import Source
from mixtura.estimators.classifier import MixtureClassifier
from mixtura.estimators.input import Labels, Rows
from mixtura.estimators.model_files import check_fitted
from mixtura.estimators.progress import watcher
from mixtura.model.mixture import Mixture
from mixtura.roles import Objective
from mixtura.selection.penalties import (
    SMALLEST_HELD_OUT,
    SMOOTHINGS,
    Compared,
    Grid,
    Growth,
    Limits,
    Search,
    Setting,
    counts_of,
    described,
    generative,
    grown,
    make_folds,
    separating,
    stopped,
    with_prior,
)
from mixtura.selection.plan import Plan, is_auto
from mixtura.solvers import BaumWelch, FitResult, Outcome, run
from mixtura.values.storable import storable


@storable("DiscriminativeMixtureClassifier", check=check_fitted)
class DiscriminativeMixtureClassifier(MixtureClassifier):
    """Separates the classes by Gaussian mixtures: conditional likelihood by extended Baum-Welch (KJO03).

    Such a fit, left to itself, puts the training rows right and learns little. Two penalties hold it: variances are
    shrunk towards a multiple of those that components may be expected to have, and the means of components towards the
    mean of their class. Both are chosen together by cross-validation, unless `prior` says otherwise.

    Parameters:
        n_components: components per class, an int, a dict class -> int, or "auto": classes grow as long as rows that
            are kept out are predicted better.
        covariance_type, rank: as in `MixtureClassifier`, "diag" unless set.
        prior: "auto" chooses the two penalties; or a prior as in `MixtureClassifier`, such as
            `priors.Shrinkage(scale=3.0, mean_strength=10.0)`.
        smoothing: the share of the likelihood of the rows in the objective, from 0 (that of the labels given the rows
            alone) to 1; above 0 unlabeled rows take part. "auto" chooses it with the penalties.
        cv: parts of the rows that are kept out in turn while penalties are compared, with 4000 rows or more only one;
            or a splitter or list of splits as in scikit-learn.
        early_stopping: keep a part of the rows out, find the number of steps that predicts it best, and take as many
            with all rows. Fits that compare penalties stop so too, each where its own rows kept out are predicted best.
        validation_fraction: that part of the rows of every class, where it is 20 rows or more.
        tol: as in `MixtureClassifier`; "auto" is 0.4 divided by the number of rows, from 1e-5 to 1e-3.
        class_prior, class_weight, unlabeled, init, n_init, max_iter, device, dtype, memory_limit,
            warm_start, random_state, verbose: as in `MixtureClassifier`.

    Attributes:
        prior_ (the penalties), smoothing_, search_ (one record a comparison), growth_ (cuts that made classes grow),
        validation_scores_ (with early_stopping: steps, and the mean log posterior of the labels kept out after so
        many), and those of `MixtureClassifier`.

    Examples:
        >>> from mixtura import DiscriminativeMixtureClassifier
        >>> from mixtura.datasets import make_waveform
        >>> X, y = make_waveform(200, random_state=0)
        >>> model = DiscriminativeMixtureClassifier(random_state=0).fit(X, y)
        >>> bool(model.score(*make_waveform(1000, random_state=1)) > 0.8)
        True
    """

    def __init__(
        self,
        n_components: Any = 1,
        *,
        covariance_type: Any = "diag",
        rank: Any = "auto",
        prior: Any = "auto",
        smoothing: Any = 0.0,
        cv: Any = 5,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        class_prior: Any = "empirical",
        class_weight: Any = None,
        unlabeled: Any = None,
        init: Any = "kmeans",
        n_init: int = 1,
        max_iter: int = 200,
        tol: Any = "auto",
        device: Any = None,
        dtype: Any = None,
        memory_limit: Any = None,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
    ):
        super().__init__(
            n_components,
            covariance_type=covariance_type,
            rank=rank,
            prior=prior,
            class_prior=class_prior,
            class_weight=class_weight,
            unlabeled=unlabeled,
            init=init,
            n_init=n_init,
            max_iter=max_iter,
            tol=tol,
            device=device,
            dtype=dtype,
            memory_limit=memory_limit,
            warm_start=warm_start,
            random_state=random_state,
            verbose=verbose,
        )
        self.smoothing = smoothing
        self.cv = cv
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction

    def _read_problem(self, X: Any, y: Any, sample_weight: Any, objective: Objective) -> tuple[Source, np.ndarray]:
        self._cv = self.cv
        return super()._read_problem(X, y, sample_weight, objective)

    def _read_known(
        self, X: Any, y: Any, sample_weight: Any, objective: Objective
    ) -> tuple[Rows, Labels, Tensor | None]:
        rows, labels, weights = super()._read_known(X, y, sample_weight, objective)
        if isinstance(self.cv, list | tuple) and weights is not None:  # splits number all rows, the source has fewer
            present = weights.cpu().numpy() > 0
            numbers = np.cumsum(present) - 1
            self._cv = [tuple(numbers[np.asarray(part)[present[part]]] for part in split) for split in self.cv]
        return rows, labels, weights

    def _objective(self) -> Objective:
        share = 0.0 if is_auto(self.smoothing) else checks.share("smoothing", self.smoothing, ' or "auto"')
        if not hasattr(self.cv, "split") and not isinstance(self.cv, list | tuple):
            checks.count("cv", self.cv, 2)
        checks.switch("early_stopping", self.early_stopping)
        checks.fraction("validation_fraction", self.validation_fraction)
        return separating(share)

    def _limits(self, plan: Plan) -> tuple[int, float]:
        """max_iter, and tol, which is by default what changes the log posterior of all labels by less than 0.4."""
        tol = min(max(0.4 / plan.description.weight, 1e-5), 1e-3) if is_auto(self.tol) else self.tol
        return checks.count("max_iter", self.max_iter, 0), checks.non_negative("tol", tol)

    @property
    def _goes_on(self) -> bool:
        return bool(self.warm_start) and hasattr(self, "mixture_")

    def _wanted(self, classes: np.ndarray) -> tuple[Any, Any]:
        """Where "auto" asks for a choice, one component per class and the default prior until it is made."""
        n_components = self.n_components
        if is_auto(n_components):
            known = self.n_components_.tolist() if self._goes_on else [1] * len(classes)
            n_components = dict(zip(classes.tolist(), known, strict=False))
        return n_components, "default" if is_auto(self.prior) else self.prior

    def _settled(self, plan: Plan) -> Plan:
        """With the penalties and the number of components that predict rows kept out best, where "auto" asks for it."""
        checks.has_update(plan.structure)
        if not self._goes_on:
            self.growth_: list[Growth] = []
            self.search_: list[Compared] = []
            self.prior_, self.smoothing_ = self.prior, self.smoothing
            if any(is_auto(value) for value in (self.prior, self.smoothing, self.n_components)):
                self._choose(plan)
        return self._setting.of(plan, plan.n_components)

    @property
    def _setting(self) -> Setting:
        return Setting(self.prior_, self.smoothing_)

    def _choose(self, plan: Plan) -> None:
        folds = make_folds(plan, self._cv, lambda part: self._generative(part, "kmeans"))
        checks.rows_to_hold_out(len(folds) > 0, "pass prior='default' and numbers for what is 'auto'")
        grid = Grid(self.prior, SMOOTHINGS if is_auto(self.smoothing) else (self.smoothing,))
        search = Search(folds, grid, self._limits(plan), bool(self.early_stopping))
        setting, self.growth_ = search.run(is_auto(self.n_components))
        self.prior_, self.smoothing_, self.search_ = setting.prior, setting.smoothing, search.records

    def _generative(self, plan: Plan, method: Any) -> Mixture:
        problem = with_prior(plan, "default", plan.n_components).generative
        return generative(plan, self._new_start(plan, method, problem), self._limits(plan))

    def _fit_once(self, plan: Plan) -> FitResult:
        given, limits = self._given_start(plan), self._limits(plan)
        steps = [] if self._goes_on else self.growth_

        def start_of(part: Plan) -> Mixture:
            if given is not None and not steps:
                return given
            start = self._generative(part, self.init) if given is None else given
            return described(part, self._setting, grown(part, start, steps, limits))

        start = start_of(plan)
        n_steps = self._n_steps(plan, start_of, limits)
        problem = self._setting.of(plan, counts_of(start)).problem
        max_iter, tol = limits[0] if n_steps is None else n_steps, limits[1]
        with watcher(self.verbose, max_iter, type(self).__name__) as watch:
            result = run(BaumWelch(), problem, start, max_iter, tol, watch)
        ended = n_steps is not None and result.outcome is Outcome.LIMIT
        return replace(result, outcome=Outcome.HELD_OUT) if ended else result

    def _n_steps(self, plan: Plan, start_of: Callable[[Plan], Mixture], limits: Limits) -> int | None:
        """After how many steps rows kept out are predicted best; None: they are not asked, or too few."""
        self.validation_scores_: list[tuple[int, float]] = []
        if not self.early_stopping:
            return None
        for fold in make_folds(plan, float(self.validation_fraction), start_of):
            if fold.n_held_out >= SMALLEST_HELD_OUT:
                result = stopped(fold, self._setting, fold.start, limits)
                weight = fold.score(result.mixture)[1]
                self.validation_scores_ = [(iteration, score / weight) for iteration, score in result.scores]
                return result.best_iteration
        return None
