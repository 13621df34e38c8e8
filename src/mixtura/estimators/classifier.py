"""MixtureClassifier: every class is a Gaussian mixture."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor

from mixtura import checks
from mixtura.engine.sources import Source
from mixtura.engine.threads import computing
from mixtura.estimators.base import (
    MixtureEstimator,
    check_described,
    check_start,
    keep_unobserved,
    warn_of_few_rows,
    warn_of_prior,
    warn_of_repairs,
)
from mixtura.estimators.conversion import SklearnConversion
from mixtura.estimators.input import (
    Labels,
    Rows,
    is_batches,
    is_dask,
    read_labels,
    read_rows,
)
from mixtura.estimators.model_files import check_fitted
from mixtura.estimators.online import OnlineClassifier
from mixtura.estimators.prediction import DensityClassifier
from mixtura.estimators.progress import watcher
from mixtura.estimators.streamed import read_stream
from mixtura.init.description import Description, describe
from mixtura.init.johnson import fit_warp
from mixtura.init.starts import starting_mixture
from mixtura.model.mixture import Mixture
from mixtura.model.warp import Warp
from mixtura.objectives import OBJECTIVES, Joint
from mixtura.priors import PRIORS, Shrinkage
from mixtura.roles import MixtureSolver, Objective, Prior, Structure
from mixtura.selection.plan import OTHER_PRIORS, Plan, is_auto, make_prior
from mixtura.selection.search import CRITERIA, Ground, choose, penalties
from mixtura.solvers import EM, SOLVERS, FitResult, Outcome, Problem, Task, best_of, first_update, run
from mixtura.streams.sharded import Sharded
from mixtura.values.storable import as_loaded, storable

STARTS = ("kmeans", "k-means++", "random", "spread")
# A log posterior of the labels above this, per row, is that of classes without a doubtful row.
SEPARATED = -1e-3


@storable("MixtureClassifier", check=check_fitted)
class MixtureClassifier(OnlineClassifier, SklearnConversion, DensityClassifier):
    """Classifies with a Gaussian mixture per class.

    Handles missing cells (NaN) at fit and predict by exact marginalisation, unlabeled rows, soft labels and sample
    weights in one likelihood; gives class probabilities and a density.

    Parameters:
        n_components: components per class, an int or a dict class -> int; "auto" chooses them by `criterion`, and
            `selection_` has what was compared.
        covariance_type: "full", "tied", "diag", "spherical", "low_rank", "low_rank_precision", or a structure such as
            `Tied(Diagonal())`.
        rank: rank of "low_rank" and "low_rank_precision"; "auto" is min(10, max(1, D // 2)).
        objective: "joint" describes classes and rows, "conditional" and "margin" separate the classes; or an objective
            object such as `Hybrid(0.5, Margin(10.0))`.
        solver: "auto", "em" (for "joint"), "baum_welch" (for "conditional" and hybrids), "gradient", or a `Gradient`
            object with settings of its own.
        prior: "default" shrinks covariances towards the spread within the classes, unit-free; "auto" chooses one as for
            n_components; None is maximum likelihood; or a prior object, such as `priors.Shrinkage` (in the units of
            the rows) or `priors.Conjugate`.
        criterion: by which "auto" chooses: "log_loss" (which "auto" means) and "held_out" (density) of rows held out,
            "out_of_bag", "bic", "icl".
        warp: None takes features as they are; "johnson" bends those that are skewed or heavy-tailed until Gaussians
            describe them (`mixture_` is then one of the bent features, everything else is of the rows); "auto" does so
            where `criterion` gains by it; or a `Warp`.
        class_prior: "empirical" (learned), "uniform", or one probability per class in the order of `classes_`.
        class_weight: None, "balanced", or a dict class -> weight; multiplies the sample weights.
        unlabeled: which samples have no label. None: none, every label is a class; np.nan: those with a missing label
            (NaN, None, pd.NA or masked); otherwise those with this label, such as -1. In soft labels a row of NaN is
            unlabeled.
        init: "kmeans" (on standardised columns), "k-means++", "random", "spread" (for few labels among unlabeled rows:
            labels first spread to nearest neighbours), or a fitted mixture to start from.
        n_init: number of starts; the best objective wins.
        max_iter, tol: stop after max_iter steps, or when the objective per row changes by less than tol.
        device, dtype: where and in which precision rows are held; None follows the input.
        memory_limit: bytes, or text like "256 MB" (the default): bound of the temporary arrays of a fit or prediction,
            of all threads together. Samples, labels, the model and the answer take their own memory on top; of a
            memory map or of batches some 32 MB are held at a time.
        warm_start: go on from the last fit.
        random_state, verbose: as in scikit-learn; verbose=1 shows progress.

    Attributes:
        classes_, class_prior_, mixture_, n_components_ (per class), n_iter_, converged_, history_, n_parameters_,
        n_features_in_, feature_names_in_; warp_ (None where features stay as they are).

    Examples:
        >>> from mixtura import MixtureClassifier
        >>> from mixtura.datasets import make_ripley, remove_values
        >>> X, y = make_ripley(125, random_state=0)
        >>> model = MixtureClassifier(n_components=2, random_state=0).fit(remove_values(X, 0.2, random_state=0), y)
        >>> bool(model.score(X, y) > 0.85)
        True
    """

    def __init__(
        self,
        n_components: Any = 1,
        *,
        covariance_type: Any = "full",
        rank: Any = "auto",
        objective: Any = "joint",
        solver: Any = "auto",
        prior: Any = "default",
        criterion: str = "auto",
        warp: Any = None,
        class_prior: Any = "empirical",
        class_weight: Any = None,
        unlabeled: Any = None,
        init: Any = "kmeans",
        n_init: int = 1,
        max_iter: int = 200,
        tol: float = 1e-4,
        device: Any = None,
        dtype: Any = None,
        memory_limit: Any = None,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.rank = rank
        self.objective = objective
        self.solver = solver
        self.prior = prior
        self.criterion = criterion
        self.warp = warp
        self.class_prior = class_prior
        self.class_weight = class_weight
        self.unlabeled = unlabeled
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.device = device
        self.dtype = dtype
        self.memory_limit = memory_limit
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> MixtureClassifier:
        """Fit the mixture.

        Arguments:
            X: rows; NaN means missing. An array, a frame, a torch tensor, a memory map, or a re-iterable of (X, y) or
                (X, y, sample_weight) batches, in which case y stays None.
            y: one label per row, or a matrix of soft labels (rows x classes, summing to 1; NaN rows are unlabeled).
            sample_weight: one non-negative weight per row.
        """
        objective = self._checked_objective()
        self._fit_source(*self._read_problem(X, y, sample_weight, objective), objective)
        return self

    def _checked_objective(self) -> Objective:
        """Check arguments that do not depend on the samples; return the objective."""
        checks.switch("warm_start", self.warm_start)
        wanted_criterion(self.criterion, "log_loss")
        checks.count("verbose", int(self.verbose) if isinstance(self.verbose, bool) else self.verbose, 0)
        self._asked_solver()
        return self._objective()

    def _fit_source(self, source: Source, classes: np.ndarray, objective: Objective) -> Problem:
        self.running_ = None
        with computing():
            plan = self._settled(self._plan(source, classes, objective))
            n_starts = self._n_starts() if plan.selection is None else 1
            best = best_of(n_starts, lambda: self._fit_once(plan))
        self._keep(best, plan)
        return plan.problem

    def _settled(self, plan: Plan) -> Plan:
        """The plan with what the rows are to decide; a preset may look at them for that."""
        return plan

    def _n_starts(self) -> int:
        n_init = checks.count("n_init", self.n_init)
        return 1 if self.warm_start and "mixture_" in vars(self) else n_init

    def _objective(self) -> Objective:
        if isinstance(self.objective, Objective):
            return self.objective
        return OBJECTIVES[checks.one_of("objective", self.objective, OBJECTIVES, " or an objective object")]

    def _asked_solver(self) -> MixtureSolver | None:
        if is_auto(self.solver) or isinstance(self.solver, MixtureSolver):
            return None if is_auto(self.solver) else self.solver
        return SOLVERS[checks.one_of("solver", self.solver, SOLVERS, ', "auto" or a solver object')]

    def _solver(self, plan: Plan) -> MixtureSolver:
        """Return the solver that was asked for; "auto" is the first registered one that does not refuse."""
        asked, solver = (plan.objective, plan.prior, plan.structure), self._asked_solver()
        if solver is None:
            return next(solver for solver in SOLVERS.values() if solver.refusal(*asked) is None)
        reason = solver.refusal(*asked)
        if reason is not None:
            able = ", ".join(repr(name) for name, other in SOLVERS.items() if other.refusal(*asked) is None)
            raise ValueError(f"solver={self.solver!r} cannot be used here: {reason}. Use one of {able}.")
        return solver

    def _read_problem(self, X: Any, y: Any, sample_weight: Any, objective: Objective) -> tuple[Source, np.ndarray]:
        if is_dask(X) or isinstance(X, Sharded) or (y is None and is_batches(X)):
            checks.alone_with_batches(class_weight=self.class_weight)
            stream = read_stream(self, X, y, sample_weight, labeled=True, unlabeled=self.unlabeled)
            checks.density_for_unlabeled(stream.n_unlabeled, objective)
            assert stream.classes is not None
            return stream.source, stream.classes
        rows, labels, weights = self._read_known(X, y, sample_weight, objective)
        return rows.source(labels.numbers, labels.shares, weights), labels.classes

    def _read_known(
        self, X: Any, y: Any, sample_weight: Any, objective: Objective
    ) -> tuple[Rows, Labels, Tensor | None]:
        """Rows that are there all at once, their labels and weights."""
        rows = read_rows(self, X, reset=True)
        n_rows = len(rows)
        weights = checks.sample_weight(sample_weight, n_rows)
        labels = read_labels(y, n_rows, weights, type(self).__name__, self.unlabeled, takes_unlabeled=True)
        counted = labels.unlabeled if weights is None else labels.unlabeled & (weights.cpu() > 0)
        checks.density_for_unlabeled(int(counted.sum()), objective)
        return rows, labels, self._with_class_weight(labels, weights)

    def _with_class_weight(self, labels: Labels, weights: Tensor | None) -> Tensor | None:
        if self.class_weight is None:
            return weights
        if labels.numbers is None:
            raise ValueError("class_weight needs one label per row; multiply sample_weight yourself for soft labels.")
        known = labels.numbers >= 0
        table = self._class_weights(
            labels.classes, labels.numbers[known], None if weights is None else weights.cpu()[known]
        )
        factors = torch.where(known, table[labels.numbers.clamp_min(0)], 1.0)
        products = factors if weights is None else weights * factors.to(weights.device)
        checks.total_weight(float(products.sum()))
        return products

    def _class_weights(self, classes: np.ndarray, numbers: Tensor, weights: Tensor | None) -> Tensor:
        """The factor of each class; "balanced" gives all classes the same total weight."""
        if isinstance(self.class_weight, str) and self.class_weight == "balanced":
            totals = torch.zeros(len(classes), dtype=torch.float64)
            totals.index_add_(0, numbers, torch.ones(len(numbers), dtype=torch.float64) if weights is None else weights)
            return totals.sum() / (len(classes) * totals)
        return torch.from_numpy(
            compute_class_weight(self.class_weight, classes=classes, y=classes[numbers]).astype(float)
        )

    def _plan(self, source: Source, classes: np.ndarray, objective: Objective) -> Plan:
        _, generator = self._generator()
        structure = self._structure(source.n_features)
        checks.has_update(structure.for_em(source.n_features))
        description = describe(source, len(classes), generator)
        check_described(self, description)
        checks.weighted_classes(classes.tolist(), description.class_weights)
        wanted, prior = self._wanted(classes)
        fixed = None if is_auto(wanted) else self._n_components(wanted, classes, description)
        plan = Plan(
            source=source,
            classes=classes,
            description=description,
            structure=structure,
            n_components=fixed or [1] * len(classes),
            objective=objective,
            prior=None,
            class_prior=checks.class_prior(self.class_prior, description.class_weights),
            generator=generator,
            memory_limit=checks.memory_limit(self.memory_limit),
        )
        options, found = [plan.with_warp(warp) for warp in self._warps(description)], []
        state = generator.get_state()
        chosen = fixed is None or is_auto(prior)
        for option in options if len(options) > 1 or chosen else ():
            generator.set_state(state)  # the same folds for all
            found.append(self._selected(option, fixed, prior))
        best = min(found, key=lambda option: option.selection.best.score) if found else options[0]
        if chosen:
            return best
        assert fixed is not None
        generator.set_state(state)
        return replace(best, prior=make_prior(prior, best.description, fixed), selection=None)

    def _warps(self, description: Description) -> list[Warp | None]:
        """What becomes of the features; more than one are compared."""
        if self.warm_start and "mixture_" in vars(self):
            return [self.warp_]
        if self.warp is None:
            return [None]
        if isinstance(self.warp, Warp):
            checks.warped_features(len(self.warp.locations), len(description.within))
            return [self.warp]
        name = checks.one_of("warp", self.warp, ("johnson", "auto"), ", None or a Warp")
        warp = fit_warp(description)
        if not bool(warp.transformed.any()):
            return [None]
        return [warp] if name == "johnson" else [None, warp]

    def _wanted(self, classes: np.ndarray) -> tuple[Any, Any]:
        """n_components and prior; a fit that goes on from the last one keeps what that has chosen."""
        last = vars(self).get("selection_") if self.warm_start else None
        if last is None:
            return self.n_components, self.prior
        return dict(zip(classes.tolist(), last.best.n_components, strict=False)), last.best.prior

    def _selected(self, plan: Plan, n_components: list[int] | None, prior: Any) -> Plan:
        """The plan with what is "auto" chosen, by the log-loss of rows held out."""
        priors = wanted_priors(prior, plan.em_structure, plan.source.n_features)
        method = self.init if isinstance(self.init, str) else "kmeans"
        problem = replace(plan.problem, objective=Joint())
        ground = Ground(problem, len(plan.classes), plan.em_structure, method, plan.generator)
        found = choose(ground, priors, n_components, wanted_criterion(self.criterion, "log_loss"))
        found = found.of_rows(plan.log_slope, 0 if plan.warp is None else plan.warp.n_parameters)
        counts = list(found.best.n_components)
        chosen = make_prior(found.best.prior, plan.description, counts)
        return replace(plan, n_components=counts, prior=chosen, selection=found)

    def _shared_out(self, plan: Plan, n_members: int) -> list[Plan]:
        """The problems of the members of an average: with the candidates that share them (stacking)."""
        if plan.selection is None:
            return [plan] * n_members
        found = []
        for choice in plan.selection.shared_out(n_members):
            counts = list(choice.n_components)
            found.append(replace(plan, n_components=counts, prior=make_prior(choice.prior, plan.description, counts)))
        return found

    def _n_components(self, value: Any, classes: np.ndarray, description: Description) -> list[int]:
        wanted = checks.components_per_class(value, classes.tolist())
        available = [len(rows) for rows, _ in description.samples]
        if isinstance(self.init, str) and self.init == "spread":
            available = [n_rows + available[-1] for n_rows in available]  # unlabeled rows may become those of any class
        available = available[: len(wanted)]
        warn_of_few_rows(classes.tolist(), wanted, available, stacklevel=5)
        return [min(n, m) for n, m in zip(wanted, available, strict=True)]

    def _fit_once(self, plan: Plan) -> FitResult:
        solver = self._solver(plan)
        start = self._given_start(plan)
        if start is None:
            start = self._new_start(plan)
            if solver.needs_fit:
                result = self._run(EM(), plan.generative, start)
                start = plan.converted(result.mixture)
                if result.outcome is Outcome.INTERRUPTED:
                    return replace(result, mixture=start)
        elif not solver.needs_fit:
            checks.has_update(plan.structure)
        seed = int(torch.randint(2**31 - 1, (), generator=plan.generator))
        result = self._run(solver, replace(plan.problem, seed=seed), start)
        return result if solver.needs_fit else replace(result, mixture=plan.converted(result.mixture))

    def _run(self, solver: MixtureSolver, problem: Problem, start: Mixture) -> FitResult:
        max_iter, tol = checks.count("max_iter", self.max_iter, 0), checks.non_negative("tol", self.tol)
        with watcher(self.verbose, max_iter, type(self).__name__) as watch:
            return run(solver, problem, start, max_iter, tol, watch)

    def _task(self, plan: Plan, seen: Source, column: int) -> Task:
        """Return the same plan for a part of its samples, or with other weights, to be fitted together with others."""
        _, generator = self._generator()
        description = describe(seen, len(plan.classes), generator)
        own = replace(plan, source=seen, description=description, generator=generator, selection=None)
        start = self._given_start(own)
        # The prior, the frame and the smallest variances are those of all samples.
        start = self._new_start(own, problem=plan.problem) if start is None else start
        return Task(plan.problem, start, description.weight, column)

    def _given_start(self, plan: Plan) -> Mixture | None:
        """The mixture that `warm_start` or `init` hands over, if any."""
        given = self if self.warm_start and "mixture_" in vars(self) else self.init
        if isinstance(given, MixtureEstimator):
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
            return plan.selection.start
        rough, assigned = starting_mixture(
            plan.description, plan.em_structure, plan.n_components, method, plan.generator
        )
        return first_update(rough, assigned, problem or plan.generative)

    def _mixture_of(self, fitted: MixtureEstimator, plan: Plan) -> Mixture:
        if "mixture_" not in vars(fitted):
            raise ValueError(
                f"init is a {type(fitted).__name__} that is not fitted; fit it first. Copies that clone or a grid "
                "search make are not fitted either: pass init=model.mixture_ there."
            )
        classes = vars(fitted).get("classes_", plan.classes)
        if not np.array_equal(classes, plan.classes):
            raise ValueError(
                f"The model to start from knows the classes {classes.tolist()}, but y holds "
                f"{plan.classes.tolist()}; set warm_start=False, or start from a model of the same classes."
            )
        return fitted.mixture_

    def _keep(self, result: FitResult, plan: Plan) -> None:
        """Store a result; warn about what the user should know; raise again what interrupted the fit."""
        self.mixture_, self.warp_ = as_loaded(result.mixture), as_loaded(plan.warp)
        self.classes_ = plan.classes
        self.class_prior_ = result.mixture.log_class_prior.exp().cpu().numpy()
        self.n_components_ = np.array([part.stop - part.start for part in result.mixture.class_slices])
        self.n_iter_ = len(result.history)
        self.converged_ = result.outcome is Outcome.CONVERGED
        self.history_ = list(result.history)
        if plan.selection is not None:
            self.selection_ = plan.selection
        keep_unobserved(self, plan.description, stacklevel=4)
        warn_of_repairs((*result.repairs, *plan.collapsed(result.mixture)), stacklevel=4)
        warn_of_prior(self.prior, plan.prior, result.mixture, plan.description)
        if result.outcome is Outcome.INTERRUPTED:
            raise result.cause or KeyboardInterrupt
        if plan.prior is None and plan.objective.name == "conditional" and result.objective > SEPARATED:
            warnings.warn(
                "The classes are perfectly separable, so that the likelihood of the labels has no maximum; the fit "
                f"was stopped after {self.n_iter_} steps, while its numbers were finite. Use prior='default'.",
                checks.RepairWarning,
                stacklevel=3,
            )
        if result.outcome is Outcome.LIMIT and self.n_iter_ > 0:
            warnings.warn(
                f"{type(self).__name__} {result.outcome.value} (max_iter={self.max_iter}, tol={self.tol}); "
                f"increase max_iter or tol.",
                ConvergenceWarning,
                stacklevel=3,
            )


def wanted_criterion(value: Any, usual: str) -> str:
    """The criterion that an argument asks for."""
    return usual if is_auto(value) else checks.one_of("criterion", value, CRITERIA, ', or "auto"')


def wanted_priors(value: Any, structure: Structure, n_features: int) -> list[Any]:
    """The priors that are compared: many where the argument is "auto", otherwise the one that it asks for."""
    if is_auto(value):
        # A whole covariance matrix is a target only for structures that can follow it.
        return list(penalties(n_features, dense=structure.is_unrestricted))
    if not isinstance(value, Prior | Shrinkage | None):
        checks.one_of("prior", value, PRIORS, OTHER_PRIORS)
    return [value]
