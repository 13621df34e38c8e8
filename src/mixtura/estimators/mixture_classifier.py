"""MixtureClassifier: every class is a Gaussian mixture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if
from torch import Tensor

from mixtura import checks
from mixtura.covariances import COVARIANCES, Full
from mixtura.engine.sources import Source, TensorSource
from mixtura.engine.threads import computing
from mixtura.estimators.class_weights import weigh_classes
from mixtura.estimators.classifiers import DensityClassifier
from mixtura.estimators.conversion import classifier_from_sklearn, classifier_to_sklearn
from mixtura.estimators.density_estimator import DensityEstimator
from mixtura.estimators.estimator import atomic_fit, check_fitted
from mixtura.estimators.input import (
    Labels,
    Rows,
    is_batches,
    is_dask,
    read_labels,
)
from mixtura.estimators.online import classifies_online, update_classifier
from mixtura.estimators.progress import recorded, trial_watcher
from mixtura.estimators.streamed import read_stream
from mixtura.estimators.training import (
    check_described,
    check_start,
    keep_unobserved,
    warn_of_few_rows,
    warn_of_prior,
    warn_of_repairs,
    warn_of_wide_samples,
)
from mixtura.files.registry import storable
from mixtura.init.description import Description, describe
from mixtura.init.johnson import fit_warp
from mixtura.init.starts import starting_mixture
from mixtura.model.mixture import Mixture
from mixtura.model.warp import Warp
from mixtura.objectives import OBJECTIVES
from mixtura.priors import PRIORS, Shrinkage
from mixtura.roles import MixtureSolver, Objective, Prior, Structure
from mixtura.selection.automatic import LARGEST_DENSE, SearchSpace, choose_automatically
from mixtura.selection.plan import OTHER_PRIORS, Plan, PresetSearch, Trained, is_auto, make_prior
from mixtura.selection.splits import checked_cv, renumbered
from mixtura.solvers import EM, SOLVERS, FitResult, Outcome, Problem, Task, best_of, first_update, run
from mixtura.streams.sharded import Sharded

STARTS = ("kmeans", "k-means++", "random", "spread")
# Mean log posterior of the labels above which classes count as perfectly separated.
SEPARATED = -1e-3


@storable("MixtureClassifier", check=check_fitted)
class MixtureClassifier(DensityClassifier):
    """Classify with a Gaussian mixture per class.

    With no arguments the classifier selects the covariance structure, the number of components, the prior, the
    transform of the features and the temperature of the class probabilities on held-out samples (automatic). Missing
    values (NaN) are integrated out exactly, in training and in prediction; unlabeled samples, soft labels and sample
    weights enter one likelihood. The model gives class probabilities and a density.

    Parameters
    ----------
    n_components : "auto", int or dict of class to int, default="auto"
        Components per class. With a number or a dict nothing is selected: `covariance_type`, `prior`, `warp` and
        `temperature` left at "auto" then mean "full", "default", None and 1.
    covariance_type : str or Structure, default="auto"
        "full", "tied", "diag", "spherical", "low_rank", "low_rank_precision", or a structure such as
        `Tied(Diagonal())`. "auto" compares "full", "tied" and "diag"; from 100 features on "full" and "tied" with one
        component, in closed form (closed-forms), unless `time_budget` asks for more.
    rank : "auto" or int, default="auto"
        Rank of "low_rank" and "low_rank_precision"; "auto" is min(10, max(1, D // 2)).
    objective : str or Objective, default="joint"
        "joint" is the likelihood of samples and labels; "conditional" and "margin" are discriminative; or an object
        such as `Hybrid(0.5, Margin(10.0))`.
    solver : str or Solver, default="auto"
        "em", "baum_welch", "gradient", or a solver object.
    prior : str, Prior, Shrinkage or None, default="auto"
        "default" shrinks covariances towards the expected variances of a component, whatever the units; None is
        maximum likelihood; or an object such as `priors.Shrinkage` or `priors.Conjugate`.
    warp : "auto", "johnson", Warp or None, default="auto"
        Transform of the features: "johnson" transforms skewed or heavy-tailed features towards normality, None takes
        the features as they are. `mixture_` refers to the transformed features, everything else to the original ones.
    temperature : "auto" or float, default="auto"
        The log joints of the classes are divided by it before the softmax (temperature); 1 switches it off. "auto"
        estimates it on held-out samples, for objective "joint", and bounds probabilities by `label_noise_`.
    cv : int or splits, default=5
        Folds of the selection; a number, a scikit-learn splitter, or an iterable of pairs of index arrays.
    time_budget : float or None, default=None
        Seconds of the selection: no candidate is tried that would end later if it took as long as the last one.
        Results then depend on the speed of the machine.
    class_prior : "empirical", "uniform" or array of shape (n_classes,), default="empirical"
        Class probabilities; "empirical" learns them.
    class_weight : None, "balanced" or dict of class to float, default=None
        Multiplies the sample weights.
    unlabeled : object, default=None
        The label of unlabeled samples, such as -1; np.nan means every missing label (NaN, None, pd.NA or masked); None
        means that every label is a class. In soft labels a row of NaN is unlabeled.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Categorical features, by name, index or mask; "from_dtype" means those of categorical or text type.
    init : str or fitted mixture, default="kmeans"
        "kmeans" (on standardised features), "k-means++", "random", "spread" (for few labels among unlabeled samples),
        or a fitted mixture to start from. A selection brings its own initialisation.
    n_init : int, default=1
        Number of initialisations; the best objective wins.
    max_iter : int, default=200
        Largest number of steps.
    tol : float, default=1e-4
        Stop when the objective per sample changes by less.
    device : str or torch.device, default=None
        Where samples are held; by default where the input is.
    memory_limit : int or str, default=None
        Limit of the temporary arrays, in bytes or as text like "256 MB"; None means 256 MB.
    warm_start : bool, default=False
        Continue from the last fit, with what it selected.
    random_state : int, RandomState or None, default=None
        Seed of folds and initialisation.
    verbose : int, default=0
        1 shows progress, with the rows per second.
    checkpoint : str or path-like, optional
        A file that keeps the progress of a fit. A fit with the same arguments and data continues from it, and ends as
        it would have without the interruption; `random_state` must be an integer.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    class_prior_ : ndarray of shape (n_classes,)
        Class probabilities.
    mixture_ : Mixture
        The components of all classes.
    n_components_ : array of shape (n_classes,)
        Components per class.
    search_ : SearchTable or None
        The candidates of the selection with their scores; None if nothing was selected.
    temperature_ : float
        The temperature of the class probabilities.
    label_noise_ : float
        The share of random labels (label-noise), 1 / (n + 1) for n held-out samples: it bounds the class
        probabilities of a model that was fitted to few samples. 0 unless the temperature was estimated.
    warp_ : Warp or None
        The transform of the features.
    n_iter_ : int
        Number of iterations.
    converged_ : bool
        Whether the fit converged.
    history_ : list of Record
        Objective of each iteration.
    n_parameters_ : int
        Number of free parameters.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Feature names, if X has string column names.

    Examples
    --------
    >>> from mixtura import MixtureClassifier
    >>> from mixtura.datasets import make_ripley, remove_values
    >>> X, y = make_ripley(125, random_state=0)
    >>> model = MixtureClassifier(random_state=0).fit(X, y)
    >>> bool(model.score(remove_values(X, 0.2, random_state=0), y) > 0.8)
    True
    """

    search_: Any = None  # table of the automatic choice
    running_: Any = None
    _cv: Any = None  # `cv`, without samples of weight zero

    def __init__(
        self,
        n_components: Any = "auto",
        *,
        covariance_type: Any = "auto",
        rank: Any = "auto",
        objective: Any = "joint",
        solver: Any = "auto",
        prior: Any = "auto",
        warp: Any = "auto",
        temperature: Any = "auto",
        cv: Any = 5,
        time_budget: float | None = None,
        class_prior: Any = "empirical",
        class_weight: Any = None,
        unlabeled: Any = None,
        categorical_features: Any = "from_dtype",
        init: Any = "kmeans",
        n_init: int = 1,
        max_iter: int = 200,
        tol: float = 1e-4,
        device: Any = None,
        memory_limit: Any = None,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
        checkpoint: Any = None,
    ):
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.rank = rank
        self.objective = objective
        self.solver = solver
        self.prior = prior
        self.warp = warp
        self.temperature = temperature
        self.cv = cv
        self.time_budget = time_budget
        self.class_prior = class_prior
        self.class_weight = class_weight
        self.unlabeled = unlabeled
        self.categorical_features = categorical_features
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.device = device
        self.memory_limit = memory_limit
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose
        self.checkpoint = checkpoint

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> MixtureClassifier:
        """Fit the classifier.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples; NaN means missing. An array, a data frame, a tensor, a memory map, or an iterable of batches
            `(X, y)` or `(X, y, sample_weight)` that can be iterated repeatedly; then `y` is None.
        y : array-like of shape (n_samples,) or (n_samples, n_classes)
            Labels, or soft labels whose rows sum to 1; a row of NaN is unlabeled.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative sample weights.

        Returns
        -------
        self : MixtureClassifier
        """
        return self._fit(X, y, sample_weight)

    def _fit(self, X: Any, y: Any, sample_weight: Any, validation: tuple[Any, Any] | None = None) -> Any:
        """Fit the classifier; `validation` are samples and labels for a preset that selects settings on them."""
        with atomic_fit(self):
            checks.switch("warm_start", self.warm_start)
            self._check_choice()
            checks.verbosity(self.verbose)
            self._n_starts()
            objective = self._objective()
            self._requested_solver()
            source, classes = self._read_problem(X, y, sample_weight, objective)
            held_out = None if validation is None else self._read_validation(*validation, classes)
            self.running_ = None
            with computing(), recorded(self, training=source, held_out=held_out):
                trained = self._train(replace(self._plan(source, classes, objective), held_out=held_out))
            vars(self).update(trained.attributes)
            self._keep(trained.result, trained.plan)
        return self

    def _search(self, plan: Plan) -> PresetSearch | None:
        """The search of a preset, which also trains; None: the solver trains."""
        return None

    def _train(self, plan: Plan) -> Trained:
        search, selection = self._search(plan), plan.selection
        if search is not None:
            with trial_watcher(self.verbose, type(self).__name__) as watch:
                return search.fit(plan, self._given_start(plan), watch)
        if selection is not None and selection.interrupted:
            return Trained(plan.interrupted(selection.start), plan)
        return Trained(best_of(self._n_starts() if selection is None else 1, lambda: self._fit_once(plan)), plan)

    def _problem_of(self, source: Source, objective: Objective) -> Problem:
        """The problem of the fitted model for other samples, with the selected prior."""
        _, generator = self._generator()
        description, counts = describe(source, len(self.classes_), generator), self.n_components_.tolist()
        prior = "default" if is_auto(self.prior) else self.prior
        return Plan(
            source,
            self.classes_,
            description,
            self.mixture_.covariance.structure,
            counts,
            objective,
            make_prior(prior if self.search_ is None else self.search_.best.what["prior"], description, counts),
            checks.class_prior(self.class_prior, description.class_weights),
            generator,
            checks.memory_limit(self.memory_limit),
        ).problem

    def _n_starts(self) -> int:
        n_init = checks.count("n_init", self.n_init)
        return 1 if self.warm_start and "mixture_" in vars(self) else n_init

    def _objective(self) -> Objective:
        if isinstance(self.objective, Objective):
            return self.objective
        return OBJECTIVES[checks.one_of("objective", self.objective, OBJECTIVES, " or an objective object")]

    def _requested_solver(self) -> MixtureSolver | None:
        if is_auto(self.solver) or isinstance(self.solver, MixtureSolver):
            return None if is_auto(self.solver) else self.solver
        return SOLVERS[checks.one_of("solver", self.solver, SOLVERS, ', "auto" or a solver object')]

    def _solver(self, plan: Plan) -> MixtureSolver:
        """Return the requested solver; "auto" is the first registered one that supports the model."""
        asked, solver = (plan.objective, plan.prior, plan.structure), self._requested_solver()
        if solver is None:
            able_ones = [solver for solver in SOLVERS.values() if solver.refusal(*asked) is None]
            if not able_ones:
                reasons = "; ".join(f"{name!r}: {solver.refusal(*asked)}" for name, solver in SOLVERS.items())
                raise ValueError(f"No solver can fit this model. {reasons}.")
            return able_ones[0]
        reason = solver.refusal(*asked)
        if reason is not None:
            able = ", ".join(repr(name) for name, other in SOLVERS.items() if other.refusal(*asked) is None)
            raise ValueError(f"solver={self.solver!r} cannot be used here: {reason}. Use one of {able}.")
        return solver

    def _read_problem(self, X: Any, y: Any, sample_weight: Any, objective: Objective) -> tuple[Source, np.ndarray]:
        if is_dask(X) or isinstance(X, Sharded) or (y is None and is_batches(X)):
            checks.alone_with_batches(class_weight=self.class_weight)
            checks.no_streamed_categories(self.categorical_features)
            stream = read_stream(self, X, y, sample_weight, labeled=True, unlabeled=self.unlabeled)
            checks.density_for_unlabeled(stream.n_unlabeled, objective)
            assert stream.classes is not None
            self._cv, self._home = self.cv, None
            return stream.source, stream.classes
        rows, labels, weights = self._read_known(X, y, sample_weight, objective)
        self._home = rows.home
        return rows.source(labels.numbers, labels.shares, weights), labels.classes

    def _read_known(
        self, X: Any, y: Any, sample_weight: Any, objective: Objective
    ) -> tuple[Rows, Labels, Tensor | None]:
        """Rows in memory, their labels and weights."""
        rows = self._read_rows(X, reset=True).nearby()
        n_rows = len(rows)
        weights = checks.sample_weight(sample_weight, n_rows)
        self._cv = self.cv if weights is None else renumbered(self.cv, weights > 0)
        labels = read_labels(y, n_rows, weights, type(self).__name__, self.unlabeled, takes_unlabeled=True)
        free = labels.unlabeled
        counted = free if weights is None else free & (weights.to(free.device) > 0)
        checks.density_for_unlabeled(int(counted.sum()), objective)
        return rows, labels, weigh_classes(self.class_weight, labels, weights)

    def _read_validation(self, X: Any, y: Any, classes: np.ndarray) -> TensorSource:
        """Validation samples and their labels, which must be classes of the training set."""
        rows = self._read_rows(X, reset=False)
        labels = read_labels(y, len(rows), None, type(self).__name__)
        strangers = [] if labels.numbers is None else np.setdiff1d(labels.classes, classes).tolist()
        if labels.numbers is None or strangers:
            raise ValueError(
                f"y_val must hold one label per row, each of them a class of y; got {strangers or 'soft labels'}."
            )
        numbers = torch.from_numpy(np.searchsorted(classes, labels.classes))[labels.numbers.cpu()]
        values = rows.values if isinstance(rows.values, Tensor) else torch.from_numpy(np.array(rows.values))
        return TensorSource(values, numbers.to(values.device))

    def _plan(self, source: Source, classes: np.ndarray, objective: Objective) -> Plan:
        _, generator = self._generator()
        structure = self._structure(source.n_features)
        checks.has_update(structure.for_em(source.n_features))
        description = describe(source, len(classes), generator)
        check_described(self, description)
        checks.weighted_classes(classes.tolist(), description.class_weights)
        wanted, prior = self._wanted(classes)
        plan = Plan(
            source=source,
            classes=classes,
            description=description,
            structure=structure,
            n_components=[1] * len(classes),
            objective=objective,
            prior=None,
            class_prior=checks.class_prior(self.class_prior, description.class_weights),
            generator=generator,
            memory_limit=checks.memory_limit(self.memory_limit),
        ).with_warp(self._given_warp(description))
        if is_auto(wanted):
            return self._chosen_plan(plan, prior)
        if not self._goes_on:
            self.search_ = None
        counts = self._n_components(wanted, classes, description)
        warn_of_wide_samples(structure, source.n_rows, source.n_features)
        chosen = make_prior("default" if is_auto(prior) else prior, plan.description, counts)
        return replace(plan, n_components=counts, prior=chosen)

    def _check_choice(self) -> None:
        """Check the arguments of the automatic choice."""
        checked_cv(self.cv)
        if self.time_budget is not None:
            checks.positive("time_budget", self.time_budget, " or None")
        if not is_auto(self.temperature):
            checks.positive("temperature", self.temperature, ' or "auto"')

    def _gaussian(self, n_features: int) -> Structure:
        """The requested structure; "auto" is full covariances until another one is selected."""
        if not is_auto(self.covariance_type):
            return super()._gaussian(n_features)
        rank = checks.rank(self.rank, n_features)
        if self._goes_on and is_auto(self.n_components) and self.search_ is not None:
            return COVARIANCES[self.search_.best.what["covariance_type"]](rank)
        return Full()

    @property
    def _goes_on(self) -> bool:
        return bool(self.warm_start) and "mixture_" in vars(self)

    def _given_warp(self, description: Description) -> Warp | None:
        """The requested transform, or that of the continued fit; None if it is to be selected."""
        if self._goes_on:
            return self.warp_
        if self.warp is None or is_auto(self.warp):
            return None
        if isinstance(self.warp, Warp):
            checks.warped_features(len(self.warp.locations), len(description.within))
            return self.warp
        checks.one_of("warp", self.warp, ("johnson", "auto"), ", None or a Warp")
        warp = fit_warp(description)
        return warp if bool(warp.transformed.any()) else None

    def _wanted(self, classes: np.ndarray) -> tuple[Any, Any]:
        """n_components and prior; a warm start keeps the values selected before."""
        if not (self._goes_on and is_auto(self.n_components)):
            return self.n_components, self.prior
        counts = dict(zip(classes.tolist(), self.n_components_.tolist(), strict=False))
        table = self.search_
        return counts, "default" if table is None else table.best.what["prior"]

    def _chosen_plan(self, plan: Plan, prior: Any) -> Plan:
        """The plan with values for arguments "auto", selected by the log-loss of held-out samples."""
        wanted = SearchSpace(
            self._structures(plan),
            prior,
            transforms=is_auto(self.warp),
            cv=self.cv if self._cv is None else self._cv,
            time_budget=self.time_budget,
            is_default=is_auto(self.covariance_type) and self.time_budget is None,
        )
        if not isinstance(prior, Prior | Shrinkage | None) and not is_auto(prior):
            checks.one_of("prior", prior, PRIORS, OTHER_PRIORS)
        with trial_watcher(self.verbose, type(self).__name__) as watch:
            choice = choose_automatically(plan, wanted, watch)
        self.search_ = None if choice is None else choice.table
        if choice is None:  # no sample can be held out
            counts = [1] * len(plan.classes)
            return replace(plan, prior=make_prior("default" if is_auto(prior) else prior, plan.description, counts))
        plan = replace(plan.with_warp(choice.warp), n_components=choice.n_components, selection=choice)
        structure = choice.structure if is_auto(self.covariance_type) else plan.structure
        chosen = make_prior(choice.prior, plan.description, choice.n_components)
        return replace(plan, structure=structure, prior=chosen)

    def _structures(self, plan: Plan) -> dict[str, Structure]:
        """Covariance structures to compare, by their names."""
        if not is_auto(self.covariance_type):
            named = isinstance(self.covariance_type, str)
            return {self.covariance_type if named else plan.structure.name: plan.em_structure}
        size = plan.n_numeric
        many = size > LARGEST_DENSE and self.encoding_ is None
        names = ("full", "tied", "diag", "low_rank") if many else ("full", "tied", "diag")
        return {name: self._with_categories(COVARIANCES[name](checks.rank(self.rank, size))) for name in names}

    def _n_components(self, value: Any, classes: np.ndarray, description: Description) -> list[int]:
        wanted = checks.components_per_class(value, classes.tolist())
        available = [len(rows) for rows, _ in description.samples]
        if isinstance(self.init, str) and self.init == "spread":
            available = [n_rows + available[-1] for n_rows in available]  # unlabeled rows may belong to any class
        available = available[: len(wanted)]
        warn_of_few_rows(classes.tolist(), wanted, available)
        return [min(n, m) for n, m in zip(wanted, available, strict=True)]

    def _fit_once(self, plan: Plan) -> FitResult:
        solver, limits = self._solver(plan), self._limits(plan)
        start = self._given_start(plan)
        if start is None:
            start = self._new_start(plan)
            if solver.needs_fit:
                result = run(EM(), plan.generative, start, *limits)
                start = plan.converted(result.mixture)
                if result.outcome is Outcome.INTERRUPTED:
                    return replace(result, mixture=start)
        elif not solver.needs_fit:
            checks.has_update(plan.structure)
        seed = int(torch.randint(2**31 - 1, (), generator=plan.generator))
        result = run(solver, replace(plan.problem, seed=seed), start, *limits)
        return result if solver.needs_fit else replace(result, mixture=plan.converted(result.mixture))

    def _limits(self, plan: Plan) -> tuple[int, float]:
        """max_iter and tol."""
        tol = checks.non_negative("tol", self.tol)
        exact = plan.selection is not None and plan.selection.closed_form and plan.objective.name == "joint"
        return checks.count("max_iter", self.max_iter, 0), float("inf") if exact else tol

    def _task(self, plan: Plan, seen: Source, column: int) -> Task:
        """Return the same plan for a part of its samples, or with other weights, to be fitted together with others."""
        _, generator = self._generator()
        description = describe(seen, len(plan.classes), generator)
        own = replace(plan, source=seen, description=description, generator=generator, selection=None)
        start = self._given_start(own)
        # The prior, the frame and the smallest variances are those of all samples.
        start = self._new_start(own, problem=plan.problem) if start is None else start
        return Task(plan.problem, start, description.weight, column)

    def _selected_settings(self) -> dict[str, Any]:
        if not is_auto(self.n_components):
            return {}
        counts = self.n_components_.tolist()
        same = len(set(counts)) == 1
        chosen: dict[str, Any] = {
            "n_components": counts[0] if same else dict(zip(self.classes_.tolist(), counts, strict=True))
        }
        if self.search_ is None:  # no sample could be held out
            return chosen
        what = self.search_.best.what
        chosen |= {name: what[name] for name in ("covariance_type", "prior", "warp") if is_auto(getattr(self, name))}
        return chosen | {"temperature": self.temperature_, "time_budget": None}

    def _given_start(self, plan: Plan) -> Mixture | None:
        """The initial mixture given by `warm_start` or `init`, if any."""
        given = self if self.warm_start and "mixture_" in vars(self) else self.init
        if isinstance(given, DensityEstimator):
            given = self._mixture_of(given, plan)
        if not isinstance(given, Mixture):
            return None
        check_start(given, plan.source.n_features, plan.n_components, plan.structure)
        given = given.to(plan.source.device)
        return given if plan.class_prior is None else given.with_class_prior(plan.class_prior)

    def _new_start(self, plan: Plan, method: Any = None, problem: Problem | None = None) -> Mixture:
        """Return the initialisation, after one update by the generative problem of the plan unless another is given."""
        method = checks.one_of("init", method or self.init, STARTS, " or a fitted mixture")
        if plan.selection is not None:
            start = plan.selection.start
            return start if plan.class_prior is None else start.with_class_prior(plan.class_prior)
        rough, assigned = starting_mixture(
            plan.description, plan.em_structure, plan.n_components, method, plan.generator
        )
        return first_update(rough, assigned, problem or plan.generative)

    def _mixture_of(self, fitted: DensityEstimator, plan: Plan) -> Mixture:
        if "mixture_" not in vars(fitted):
            raise ValueError(
                f"init is a {type(fitted).__name__} that is not fitted; fit it first. Copies made by clone or a grid "
                "search are not fitted either: pass init=model.mixture_ instead."
            )
        classes = vars(fitted).get("classes_", plan.classes)
        if not np.array_equal(classes, plan.classes):
            raise ValueError(
                f"The initial model has the classes {classes.tolist()}, but y has {plan.classes.tolist()}; set "
                "warm_start=False, or start from a model of the same classes."
            )
        return fitted.mixture_

    def _keep_choice(self, plan: Plan) -> None:
        """Store the temperature: it belongs to the generative model that was compared."""
        if self._goes_on:
            return
        choice = plan.selection
        if is_auto(self.temperature) and choice is not None and plan.objective.name == "joint":
            self.temperature_, self.label_noise_ = choice.temperature, choice.noise
        else:
            self.temperature_ = 1.0 if is_auto(self.temperature) else float(self.temperature)
            self.label_noise_ = 0.0
        shares = plan.description.class_weights / plan.description.class_weights.sum()
        self.training_prior_ = None if plan.class_prior is None else shares.cpu().numpy()

    def _keep(self, result: FitResult, plan: Plan) -> None:
        """Store a result, with warnings; raise the exception that interrupted the fit again."""
        self.mixture_, self.warp_ = self._at_home(result.mixture), self._at_home(plan.warp)
        self.classes_ = plan.classes
        self.class_prior_ = result.mixture.log_class_prior.exp().cpu().numpy()
        self.n_iter_ = len(result.history)
        self.converged_ = result.outcome is Outcome.CONVERGED
        self.history_ = list(result.history)
        self._keep_choice(plan)
        keep_unobserved(self, plan.description)
        warn_of_repairs((*result.repairs, *plan.collapsed(result.mixture)))
        warn_of_prior(self.prior, plan.prior, result.mixture, plan.description)
        if result.outcome is Outcome.INTERRUPTED:
            raise result.cause or KeyboardInterrupt
        if plan.prior is None and plan.objective.name == "conditional" and result.objective > SEPARATED:
            checks.warn(
                "The classes are perfectly separable, so the conditional likelihood has no maximum; the fit was "
                f"stopped after {self.n_iter_} iterations. Use prior='default'.",
                checks.RepairWarning,
            )
        if result.outcome is Outcome.LIMIT and self.n_iter_ > 0:
            checks.warn(
                f"{type(self).__name__} {result.outcome.value} (max_iter={self.max_iter}, tol={self.tol}); "
                f"increase max_iter or tol.",
                ConvergenceWarning,
            )

    @available_if(classifies_online)
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, step: float | str = "decaying"
    ) -> Any:
        """Update the classifier with a batch of samples (stepwise EM); NaN means missing.

        The first batch is fitted as by `fit`, with at least four initialisations. It should have many samples of most
        classes. Each later batch is one step of stepwise EM.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            One label per sample; unlabeled samples as given by `unlabeled`.
        classes : array-like of shape (n_classes,), optional
            All class labels; required in the first call.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative sample weights.
        step : "decaying" or float, default="decaying"
            Step size: the fraction by which a batch reduces the weight of all earlier batches. A decaying step size
            converges on a stationary stream; a constant one, such as 0.1, follows a stream that changes.

        Returns
        -------
        self : MixtureClassifier
        """
        update_classifier(self, X, y, classes, sample_weight, step)
        return self

    @classmethod
    def from_sklearn(cls, model: Any) -> Any:
        """Convert a fitted discriminant analysis or naive Bayes classifier of scikit-learn, with the same predictions.

        Parameters
        ----------
        model : QuadraticDiscriminantAnalysis, LinearDiscriminantAnalysis or GaussianNB
            A LinearDiscriminantAnalysis needs `store_covariance=True`.

        Returns
        -------
        MixtureClassifier
            A model with a density: it supports missing values, `sample`, `impute` and `explain`.
        """
        return classifier_from_sklearn(cls, model)

    def to_sklearn(self) -> Any:
        """Convert to a fitted classifier of scikit-learn with the same predictions.

        Returns
        -------
        QuadraticDiscriminantAnalysis, LinearDiscriminantAnalysis or GaussianNB
            For full, tied and diagonal covariances of one component per class.
        """
        return classifier_to_sklearn(self)
