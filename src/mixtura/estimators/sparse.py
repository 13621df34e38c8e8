"""SparseMixtureClassifier, a mixture with as few weights as the evidence supports; RelevanceVectorClassifier."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, field, replace
from functools import partial
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from mixtura import checks
from mixtura.engine.passes import map_parts
from mixtura.engine.sources import TensorSource, present
from mixtura.engine.threads import computing
from mixtura.estimators import arguments
from mixtura.estimators.classifiers import ConditionalClassifier
from mixtura.estimators.estimator import check_fitted, fitting, keeping_progress, list_features, with_constructor
from mixtura.estimators.labels import read_labels
from mixtura.estimators.rows import Data, Rows, read_rows
from mixtura.estimators.training import keep_history, make_generator, raise_interruption, warn_of_few_rows
from mixtura.files.registry import on_device, storable
from mixtura.inspection.graphs import conditional_graph
from mixtura.objectives import class_log_joint
from mixtura.solvers import FitResult, Outcome, best_of, run
from mixtura.sparse.kernels import KernelColumns, monomial_names, no_scaling, standard_scaling
from mixtura.sparse.model import SparseMixture, SparseModel, compact
from mixtura.sparse.newton import SparseNewton, starting_state
from mixtura.sparse.problem import KERNELS, SparseProblem, make_kernel, make_problem, starting_responsibilities
from mixtura.sparse.relevance import Relevance
from mixtura.sparse.working_set import WorkingSet, columns_in_use
from mixtura.values.extents import extents_of, framed
from mixtura.values.features import weigh

Class = TypeVar("Class", bound=type)
Evidence: TypeAlias = str | dict[str, object]

# Evidence required for several components per class against one: ten to one, "strong evidence" on Jeffreys' scale. This
# and the two variances were selected on simulated data and by cross-validation on training sets
# (studies/results/sparse_simulations.md).
LOG_ODDS = math.log(10)
EVIDENCE: dict[str, dict[str, object]] = {
    "default": {"hessian": "complete", "component_trials": True, "start_variance": 30.0, "expected_variance": 100.0},
    "published": {
        "hessian": "complete", "component_trials": False, "start_variance": None, "expected_variance": None,
    },
}  # fmt: skip
EVIDENCE_RULES = {
    "hessian": checks.among(("complete", "exact")),
    "component_trials": checks.SWITCH,
    "start_variance": checks.POSITIVE | checks.NONE,
    "expected_variance": checks.POSITIVE | checks.NONE,
}


def check_evidence(evidence: object) -> None:
    """Raise an error unless it is a name, or a dict of settings."""
    if not isinstance(evidence, dict):
        checks.require("evidence", evidence, checks.among(EVIDENCE, " or a dict of settings"))
        return
    for name, value in evidence.items():
        checks.require("a setting of evidence", name, checks.among(EVIDENCE_RULES))
        checks.require(f"evidence[{name!r}]", value, EVIDENCE_RULES[name])


def evidence_settings(evidence: Evidence) -> dict[str, object]:
    """All settings of a name, or of a dict."""
    return EVIDENCE["default"] | evidence if isinstance(evidence, dict) else EVIDENCE[evidence]


def with_evidence(arguments: dict[str, object], evidence: str = "default") -> dict[str, object]:
    """Arguments of version 0.1, where each setting of `evidence` was an argument, as those of today."""
    former = {name: value for name, value in arguments.items() if name in EVIDENCE_RULES}
    settings, default = EVIDENCE[evidence] | former, EVIDENCE["default"]
    same = [name for name in EVIDENCE if EVIDENCE[name] == settings]
    different = {name: value for name, value in settings.items() if value != default[name]}
    rest = {name: value for name, value in arguments.items() if name not in former}
    return {"evidence": same[0] if same else different} | rest


def accept_former(evidence: str) -> Callable[[Class], Class]:
    """Let a constructor take the arguments of version 0.1 too, with a warning; `evidence` is its default."""

    def accept(cls: Class) -> Class:
        init = cast("Callable[..., None]", cls.__init__)

        @functools.wraps(init)
        def construct(self: object, *arguments: object, **named: object) -> None:
            former = [name for name in named if name in EVIDENCE_RULES]
            if former:
                named = with_evidence(named, evidence)
                checks.warn(
                    f"{', '.join(former)} of {type(self).__name__} became settings of one argument and will leave in "
                    f"version 0.3; use evidence={named['evidence']!r}.",
                    FutureWarning,
                )
            init(self, *arguments, **named)

        setattr(cls, "__init__", construct)  # noqa: B010 - the type checker refuses the assignment
        return cls

    return accept


@storable("SparseMixtureClassifier", check=check_fitted, upgrade=with_evidence)
@accept_former("default")
@with_constructor
class SparseMixtureClassifier(ConditionalClassifier):
    """Classifier with a sparse discriminative mixture per class, fitted by sparse Bayesian learning [1]_.

    Weights and components that the evidence does not support are removed from the model. There is no density, so
    missing values (NaN) are an error; `MixtureClassifier` handles them.

    Parameters
    ----------
    n_components : int or dict, default=3
        Initial number of components per class; a dict maps each class to its number.
    kernel : {"polynomial", "rbf", "precomputed"}, callable or None, default="polynomial"
        Basis functions: kernels at training samples, given by name or as a function of two arrays of samples;
        "precomputed" if X holds the kernel of every pair of samples; None for monomials of the features.
    degree : int, default=2
        Degree of the polynomial kernel, (gamma x'z + coef0)^degree, or of the monomials.
    gamma : float, default=1.0
        Coefficient of the polynomial kernel and of the RBF kernel, ``exp(-gamma |x - z|^2)``. It applies to scaled
        samples.
    coef0 : float, default=1.0
        Constant of the polynomial kernel.
    scaling : bool, default=True
        Whether to standardise the features internally, to z-scores divided by sqrt(n_features).
    evidence : {"default", "published"} or dict, default="default"
        The evidence that weights and components need. "published" is the algorithm of [1]_. A dict holds the settings
        that differ from the default:

        - "expected_variance", 100: mean of the hyperprior on the prior variances; smaller values give smoother
          boundaries, None means a flat hyperprior, as published.
        - "component_trials", True: whether to compare with one component per class, which is selected unless the odds
          for more are above ten to one; False as published.
        - "start_variance", 30: upper limit of the sum of the initial prior variances of the weights of a component;
          None starts each at one, as published.
        - "hessian", "complete": Hessian of the Laplace approximation; that of [1]_, with fixed responsibilities, prunes
          slightly more than "exact" and is always positive definite. See (exact-hessian) in docs/theory.md.
    n_init : int, default=3
        Number of initialisations, of which the one with the largest evidence is kept. One component per class needs
        only one.
    max_iter : int, default=5000
        Maximum number of updates of the precisions.
    tol : float, default=1e-5
        Squared change of the precisions below which the fit has converged.
    working_set : "auto" or bool, default="auto"
        Whether to add columns one by one while they raise the evidence, instead of starting with all. "auto" does so
        if all columns would take minutes, or not fit in `memory_limit`.
    device : str, torch.device or None, default=None
        Device of the computation; None means that of X.
    memory_limit : int, str or None, default=None
        Limit of the temporary arrays of predictions and of the columns that `working_set="auto"` holds, in bytes or as
        text like "256 MB"; None means 256 MB. A fit holds its samples, responsibilities and Hessian on top.
    random_state : int, RandomState or None, default=None
        Seed of the initialisation.
    verbose : int, default=0
        Verbosity; 1 shows a progress bar.
    checkpoint : str or path-like, optional
        A file that keeps the progress of a fit, as in `MixtureClassifier`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    class_prior_ : ndarray of shape (n_classes,)
        Class proportions of the training set.
    n_components_ : ndarray of shape (n_classes,)
        Number of components of each class after pruning.
    n_weights_ : int
        Number of weights after pruning.
    n_parameters_ : int
        Number of weights and mixture weights after pruning.
    coef_ : ndarray of shape (n_components, n_columns)
        Weights of the components for the basis functions in use; zero where pruned.
    basis_names_ : list of str
        Names of the basis functions in use.
    relevance_ : ndarray of shape (n_vectors,)
        Indices of the relevance vectors in the training set.
    relevance_vectors_ : ndarray of shape (n_vectors, n_features)
        The relevance vectors.
    log_evidence_ : float
        Laplace approximation of the log evidence.
    n_iter_ : int
        Number of iterations.
    converged_ : bool
        Whether the fit converged.
    history_ : list of Record
        Log evidence per sample of each iteration.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Feature names, if X has string column names.

    References
    ----------
    .. [1] Hayashi and Uchida (2021). A discriminative Gaussian mixture model with sparsity. ICLR.

    Examples
    --------
    >>> from mixtura import SparseMixtureClassifier
    >>> from mixtura.datasets import make_ripley
    >>> X, y = make_ripley(60, random_state=0)
    >>> model = SparseMixtureClassifier(n_components=2, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.85 and model.n_weights_ < 20)
    True
    """

    n_components: arguments.Components = 3
    _: KW_ONLY
    kernel: str | Callable[..., object] | None = "polynomial"
    degree: int = 2
    gamma: float = 1.0
    coef0: float = 1.0
    scaling: bool = True
    evidence: Evidence = "default"
    n_init: int = 3
    max_iter: int = 5000
    tol: float = 1e-5
    working_set: bool | str = "auto"
    device: arguments.Device = None
    memory_limit: arguments.MemoryLimit = None
    random_state: arguments.RandomState = None
    verbose: int = 0
    checkpoint: arguments.PathName = None

    model_: SparseModel = field(init=False)
    log_evidence_: float = field(init=False)

    _arguments: ClassVar = {
        "kernel": checks.among(KERNELS, ", None (the features themselves) or a function of two arrays of rows")
        | checks.Rule("", lambda value: value is None or callable(value)),
        "degree": checks.at_least(1),
        "gamma": checks.POSITIVE,
        "coef0": checks.NON_NEGATIVE,
        "scaling": checks.SWITCH,
        "evidence": check_evidence,
        "max_iter": checks.at_least(1),
        "working_set": checks.among(("auto",), ", True or False") | checks.Rule("", checks.SWITCH.holds),
    }
    _attributes: ClassVar = {"model_": SparseModel}

    @fitting
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> SparseMixtureClassifier:
        """Fit the classifier.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples without missing values; with `kernel="precomputed"` the kernel of every pair of samples.
        y : array-like of shape (n_samples,)
            Labels; -1 is a label like any other.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative sample weights.

        Returns
        -------
        self : SparseMixtureClassifier
        """
        data = read(self, X, y, sample_weight)
        with computing(), keeping_progress(self, training=data.source), explained_overflow(type(self).__name__):
            problem, solver = pose_problem(self, data), make_solver(self)
            keep(self, data, problem, solver, train(self, problem, solver))
        return self

    def _map_rows(self, X: object, compute: Callable[[Tensor], Tensor]) -> np.ndarray | Tensor:
        """compute(rows (m, D)) -> (m, ...) in parts of bounded memory."""
        check_is_fitted(self)
        rows, mixture = read_finite(self, X, reset=False), self.model_.mixture
        per_row = 8 * (4 * mixture.n_pairs + 64 * mixture.n_components + 4 * rows.values.shape[1] ** 2 + 64)
        values = _tensor(rows).to(mixture.values.device)
        outputs = map_parts(values, per_row, checks.memory_limit(self.memory_limit), compute)
        return rows.answer(outputs.to(rows.device))

    def _map_scores(self, X: object, finish: Callable[[Tensor], Tensor]) -> np.ndarray | Tensor:
        return self._map_rows(X, lambda part: finish(self._offset(self.model_.class_scores(part))))

    def _graph(self) -> nn.Module:
        model, mixture = self.model_, self.model_.mixture
        sizes, coefficients = mixture.class_sizes, model.coefficients()

        def score(rows: Tensor) -> Tensor:
            columns = model.basis.evaluate(model.scaling(rows))
            return class_log_joint(weigh(columns.T, coefficients, mixture.log_weights), sizes)

        return conditional_graph(score, self._log_prior_change())

    def predict_proba(self, X: Any, moderated: bool = False) -> Any:
        """Predict class probabilities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        moderated : bool, default=False
            Whether to average over the posterior of the weights, which gives less confident probabilities (moderated).

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes)
        """
        if checks.switch("moderated", moderated):
            return self._map_rows(X, lambda part: self.model_.moderated_probabilities(part))
        return super().predict_proba(X)

    def responsibilities(self, X: Any) -> Any:
        """Compute the posterior probability of each component.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        responsibilities : ndarray of shape (n_samples, n_components)
        """
        return self._map_rows(X, lambda part: self.model_.log_joint(part).softmax(0).T)

    @property
    def n_weights_(self) -> int:
        """Number of weights after pruning."""
        return self.model_.mixture.n_pairs

    @property
    def n_parameters_(self) -> int:
        """Number of weights and mixture weights after pruning."""
        mixture = self.model_.mixture
        return mixture.n_pairs + mixture.n_components - 1 - int(mixture.class_of[-1])

    @property
    def n_components_(self) -> np.ndarray:
        """Number of components of each class after pruning."""
        return np.bincount(self.model_.mixture.class_of.cpu().numpy())

    @property
    def coef_(self) -> np.ndarray:
        """Weights of the components (rows) for the basis functions in use (columns); zero where pruned."""
        model = self.model_
        return model.coefficients().cpu().numpy()

    @property
    def basis_names_(self) -> list[str]:
        """Names of the columns of `coef_`: monomials of scaled features, or kernels at training samples."""
        basis = self.model_.basis
        if isinstance(basis, KernelColumns):
            return ["1" if n < 0 else f"k(x, row {n})" for n in basis.numbers.tolist()]
        every = monomial_names(list_features(self), basis.degree)
        return [every[i] for i in basis.columns.tolist()]

    @property
    def relevance_(self) -> np.ndarray:
        """Indices of the relevance vectors in the training set."""
        basis = self.model_.basis
        numbers = basis.numbers.cpu().numpy() if isinstance(basis, KernelColumns) else np.zeros(0, int)
        return numbers[numbers >= 0]

    @property
    def relevance_vectors_(self) -> np.ndarray:
        """The relevance vectors in the units of X, of shape (n_vectors, n_features)."""
        basis, scaling = self.model_.basis, self.model_.scaling
        if not isinstance(basis, KernelColumns) or basis.points is None:
            return np.zeros((0, self.n_features_in_))
        return (basis.points[basis.numbers >= 0] * scaling.scale + scaling.centre).cpu().numpy()

    def _check_fitted(self) -> None:
        super()._check_fitted()
        checks.same_size("classes_", len(self.classes_), int(self.model_.mixture.class_of[-1]) + 1)
        checks.same_size("n_features_in_", self.n_features_in_, len(self.model_.scaling.centre))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.kernel == "precomputed"
        return tags


MIXTURE_PARTS = ("log_weights", "class_of", "components", "columns", "values", "precisions")


# ---- a fit: read, describe, search and train, keep -------------------------------------------------------------------


def read_finite(model: SparseMixtureClassifier, X: object, reset: bool) -> Rows:
    """Check rows, which may not have missing values."""
    rows = read_rows(model, X, reset=reset, smallest=2 if reset else 1)
    checks.finite_features(_tensor(rows), None, partial(checks.column_name, model), type(model).__name__)
    return rows


def read(model: SparseMixtureClassifier, X: object, y: object, sample_weight: object) -> Data:
    """Check samples, labels and weights."""
    rows, name = read_finite(model, X, reset=True).nearby(), type(model).__name__
    weights = checks.sample_weight(sample_weight, len(rows))
    if weights is not None:
        checks.total_weight(float(weights.sum()))
    labels = read_labels(y, len(rows), weights, name)
    numbers, values = checks.hard_labels(labels.numbers, name).cpu(), _tensor(rows).to(rows.device)
    if model.kernel == "precomputed" and len(values) != values.shape[1]:
        raise ValueError(
            f"Precomputed kernel matrix is not square: with kernel='precomputed' X must hold the kernel of every pair "
            f"of samples; got shape {tuple(values.shape)}. Pass a square matrix, or choose another kernel."
        )
    return Data(TensorSource(values, numbers, weights=weights), labels.classes, rows=rows)


def pose_problem(model: SparseMixtureClassifier, data: Data) -> SparseProblem:
    """The problem: candidates for basis functions of scaled samples, and numbers of components."""
    block, classes = next(iter(data.source.blocks())), data.classes
    assert classes is not None
    assert block.labels is not None
    seen = present(block)
    assert seen.labels is not None
    scaling = no_scaling(data.source.n_features, data.source.device)
    if model.kernel != "precomputed":
        extents = extents_of(seen.rows)
        frame = framed(extents.low, extents.high)
        checks.squareable(model, frame.centre, frame.radii)
        if model.scaling:
            ones = torch.ones(len(seen.rows), dtype=torch.float64)
            scaling = standard_scaling(seen.rows, (ones if seen.weights is None else seen.weights).to(seen.rows.device))
    wanted = checks.components_per_class(model.n_components, classes.tolist())
    available = torch.bincount(seen.labels, minlength=len(classes)).tolist()
    warn_of_few_rows(classes.tolist(), wanted, available)
    problem = make_problem(
        block.rows,
        block.labels,
        block.weights,
        classes,
        scaling,
        make_kernel(model.kernel, model.degree, model.gamma, model.coef0),
        int(model.degree) if model.kernel is None else None,
        [min(n, m) for n, m in zip(wanted, available, strict=True)],
        None if isinstance(model.working_set, str) else bool(model.working_set),
        checks.memory_limit(model.memory_limit),
    )
    return replace(problem, start_variance=evidence_settings(model.evidence)["start_variance"])


def make_solver(model: SparseMixtureClassifier) -> SparseNewton:
    """The solver with the settings of `evidence`."""
    settings = evidence_settings(model.evidence)
    expected = settings["expected_variance"]
    rate = 0.0 if expected is None else 1 / float(cast("float", expected))
    return SparseNewton(Relevance(rate=rate), settings["hessian"] == "exact", float(model.tol))


def train(model: SparseMixtureClassifier, problem: SparseProblem, solver: SparseNewton) -> FitResult:
    """Fit from several initialisations and, if requested, with one component per class (component-trial).

    Several components per class are kept if their evidence is LOG_ODDS larger.
    """
    several, generator, max_iter = max(problem.n_components) > 1, make_generator(model.random_state), model.max_iter
    best = best_of(int(model.n_init) if several else 1, lambda: fit_once(problem, solver, generator, max_iter))
    trial = several and evidence_settings(model.evidence)["component_trials"]
    if not trial or best.outcome is Outcome.INTERRUPTED:
        return best
    try:
        single = fit_once(replace(problem, n_components=[1] * len(problem.classes)), solver, generator, max_iter)
    except KeyboardInterrupt:
        return replace(best, outcome=Outcome.INTERRUPTED)
    if single.outcome is Outcome.INTERRUPTED:
        return replace(best, outcome=Outcome.INTERRUPTED)
    log_odds = (best.objective - single.objective) * float(problem.evidence.weights.sum())
    return single if log_odds <= LOG_ODDS else best


def fit_once(problem: SparseProblem, solver: SparseNewton, generator: torch.Generator, max_iter: int) -> FitResult:
    """A fit from random responsibilities."""
    responsibilities = starting_responsibilities(problem, generator)
    # The fit makes many small calls; recording for gradients would take a tenth of their time.
    with torch.inference_mode():
        if problem.evidence.n_columns:
            precisions = problem.precisions_at_start()
            start = starting_state(len(precisions), problem.class_of, responsibilities, precisions)
            return run(solver, problem.evidence, start, max_iter, 0.0)
        working = WorkingSet(solver, problem, generator)
        return run(working, problem.evidence, working.start(responsibilities), max_iter, 0.0)


@contextmanager
def explained_overflow(name: str) -> Iterator[None]:
    """A context for a fit, where numbers that are too large become an error that says what to do."""
    try:
        yield
    except FloatingPointError as error:
        raise ValueError(
            f"{name} cannot be fitted: the kernel columns of X are too large or too similar ({error}). Use "
            "scaling=True, a smaller degree, or kernel='rbf'."
        ) from error


def keep(
    model: SparseMixtureClassifier, data: Data, problem: SparseProblem, solver: SparseNewton, result: FitResult
) -> None:
    """Store a result, with warnings; raise KeyboardInterrupt again if the fit was interrupted."""
    if result.outcome is Outcome.INTERRUPTED and not result.history:
        raise KeyboardInterrupt  # nothing is learnt, and the posterior of all candidates takes long
    state, evidence, basis = columns_in_use(problem, result.mixture)
    # tensors that support gradients
    mixture = SparseMixture(**{name: getattr(state.mixture, name).clone() for name in MIXTURE_PARTS})
    state, model.log_evidence_ = solver.settle(replace(state, mixture=mixture), evidence)
    # The complete Hessian underestimates the posterior variance: it suits pruning, not uncertainty.
    state, covariance = replace(solver, exact=True).posterior(state, evidence)
    mixture, prior = state.mixture, problem.class_weights / problem.class_weights.sum()
    if not mixture.n_pairs:  # no weight is left, the constant included
        checks.warn(
            f"All weights of the {type(model).__name__} were pruned: it predicts the class prior for every sample. The "
            f"features may be independent of the classes; otherwise change gamma, or use scaling=True.",
            checks.RepairWarning,
        )
        mixture = replace(mixture, log_weights=mixture.log_weights + prior.log()[mixture.class_of])
    fitted = compact(problem.scaling, basis, mixture, covariance)
    model.model_ = fitted if data.home is None else on_device(fitted, data.home)
    model.classes_, model.class_prior_ = problem.classes, prior.cpu().numpy()
    keep_history(model, result)
    raise_interruption(result)
    if result.outcome is Outcome.LIMIT:
        checks.warn(
            f"{type(model).__name__} did not converge: the precisions still change by more than tol={model.tol} "
            f"after max_iter={model.max_iter} iterations. Increase max_iter or tol.",
            ConvergenceWarning,
        )


def _tensor(rows: Rows) -> Tensor:
    """The rows in memory: a fit needs all of them at once."""
    return rows.values if isinstance(rows.values, Tensor) else torch.from_numpy(np.array(rows.values)).to(rows.dtype)


@storable(
    "RelevanceVectorClassifier", check=check_fitted, upgrade=functools.partial(with_evidence, evidence="published")
)
@accept_former("published")
@with_constructor
class RelevanceVectorClassifier(SparseMixtureClassifier):
    """Relevance vector machine [1]_ for any number of classes.

    It is a `SparseMixtureClassifier` with one component per class and an RBF kernel, with the attributes of that class.

    Parameters
    ----------
    kernel : {"polynomial", "rbf", "precomputed"}, callable or None, default="rbf"
        Basis functions, as in `SparseMixtureClassifier`.
    degree : int, default=2
        Degree of the polynomial kernel or of the monomials.
    gamma : float, default=1.0
        Coefficient of the RBF kernel, ``exp(-gamma |x - z|^2)``, and of the polynomial kernel.
    coef0 : float, default=1.0
        Constant of the polynomial kernel.
    scaling : bool, default=True
        Whether to standardise the features internally.
    evidence : {"published", "default"} or dict, default="published"
        The evidence that weights need, as in `SparseMixtureClassifier`. "published" is the algorithm of [1]_.
    max_iter : int, default=5000
        Maximum number of updates of the precisions.
    tol : float, default=1e-5
        Squared change of the precisions below which the fit has converged.
    working_set : "auto" or bool, default="auto"
        Whether to add columns one by one while they raise the evidence, instead of starting with all.
    device : str, torch.device or None, default=None
        Device of the computation; None means that of X.
    memory_limit : int, str or None, default=None
        Limit of the temporary arrays, in bytes or as text like "256 MB"; None means 256 MB.
    random_state : int, RandomState or None, default=None
        Seed of the initialisation.
    verbose : int, default=0
        Verbosity; 1 shows a progress bar.
    checkpoint : str or path-like, optional
        A file that keeps the progress of a fit, as in `MixtureClassifier`.

    References
    ----------
    .. [1] Tipping (2001). Sparse Bayesian learning and the relevance vector machine. JMLR 1.

    Examples
    --------
    >>> from mixtura import RelevanceVectorClassifier
    >>> from mixtura.datasets import make_ripley
    >>> X, y = make_ripley(60, random_state=0)
    >>> model = RelevanceVectorClassifier().fit(X, y)
    >>> bool(model.score(X, y) > 0.85 and len(model.relevance_vectors_) < 15)
    True
    """

    n_components = n_init = 1
    _: KW_ONLY
    kernel: str | Callable[..., object] | None = "rbf"
    degree: int = 2
    gamma: float = 1.0
    coef0: float = 1.0
    scaling: bool = True
    evidence: Evidence = "published"
    max_iter: int = 5000
    tol: float = 1e-5
    working_set: bool | str = "auto"
    device: arguments.Device = None
    memory_limit: arguments.MemoryLimit = None
    random_state: arguments.RandomState = None
    verbose: int = 0
    checkpoint: arguments.PathName = None
