"""NonnegativeMixtureClassifier: mixtures of log-linear bases on non-negative features."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from mixtura import checks
from mixtura.engine.passes import map_parts
from mixtura.engine.threads import computing
from mixtura.estimators.input import Rows, is_batches, read_labels, read_rows
from mixtura.estimators.model_files import check_fitted
from mixtura.estimators.prediction import ConditionalClassifier
from mixtura.estimators.progress import watcher
from mixtura.nonnegative.mixture import (
    SCRATCH_PER_VALUE,
    LabeledRows,
    LogLinearMixture,
    labeled_rows,
    log_likelihood,
)
from mixtura.nonnegative.share_penalty import SparseShares
from mixtura.nonnegative.updates import NONNEGATIVE_SOLVERS, Multiplicative, finished
from mixtura.reading.graphs import ConditionalGraph
from mixtura.solvers import FitResult, HeldOut, Outcome, run
from mixtura.values.features import weigh
from mixtura.values.sparse_rows import empty_rows, from_scipy, is_dense, largest_values, pick, scaled_columns
from mixtura.values.storable import storable

PENALTIES = ("shares", "sum")
# Fewer rows than this say too little about when to stop.
SMALLEST_HELD_OUT = 20
SCORING_INTERVAL = 5  # steps between two scores of the held-out samples
START_SCALE = 0.1  # of the coefficients of columns with standard deviation one: bases differ, and none rules


@dataclass(frozen=True)
class NonnegativeProblem:
    """What a fit is about, once the input is checked; columns begin at zero and have standard deviation one."""

    rows: LabeledRows
    kept: LabeledRows  # the rows without those held out
    held_out: LabeledRows | None
    shifts: Tensor  # (D,)
    scales: Tensor  # (D,)
    log_prior: Tensor  # (C,)
    n_bases: int
    generator: torch.Generator


@storable("NonnegativeMixtureClassifier", check=check_fitted)
class NonnegativeMixtureClassifier(ConditionalClassifier):
    """Classifies non-negative features with a mixture of log-linear bases (log-linear):

        p(c | x) proportional to sum_j W_cj exp(theta_j . x),  W_cj >= 0.

    Saul & Lee (2002); Liu, Zheng & Zheng (2006). Meant for parts, counts and other features whose zero means "absent":
    codes of a non-negative matrix factorisation (`make_nonnegative_pipeline`), word counts, tf-idf, histograms. Sparse
    input stays sparse. A row of zeros gets the class prior. There is no density: `sample`, `impute` and
    `score_samples` are those of MixtureClassifier and GaussianMixture.

    Columns are shifted to begin at zero (where they are dense) and divided by their standard deviations inside; the
    constant feature is in the weights, which are free for every basis.

    Parameters:
        n_components: bases of each class; with `shared=True` the number of all bases.
        shared: False: a basis serves one class; True: every class has a weight for every basis (LZZ06, eq. 12).
        sparsity: what a basis of a single class costs, in units of log-likelihood; weights and bases that earn less
            leave the model. 0 is Saul & Lee's model.
        penalty: "shares" acts (sparse-shares); "sum" is the penalty of LZZ06 on the sum of all weights, which
            changes nothing but their scale (weight-scale) and is here for the record.
        solver: "multiplicative" (monotone, no step size) or "accelerated" (L-BFGS, monotone, the same objective).
        early_stopping: keep a part of the rows out, find the number of steps that predicts it best, and take as many
            steps with all rows; only where that part has at least 20 rows.
        validation_fraction: that part of the rows of each class.
        n_init: number of random starts; the best objective wins (on the rows kept out, where there are some).
        max_iter, tol: stop after max_iter steps, or when the objective per row changes by less than tol.
        device, dtype: where rows are held, and in which precision they are read; None follows the input.
        memory_limit: bytes, or text like "256 MB" (the default): bound of the temporary arrays of a fit or prediction.
            Samples, their scaled copy, the model and the answer take their own memory on top.
        random_state, verbose: as in scikit-learn; verbose=1 shows progress.

    Attributes:
        classes_, class_prior_, mixture_ (log weights and coefficients in the units of X), weights_ (classes x bases,
        summing to one), bases_ (bases x features), n_components_ (weights above zero, per class), n_bases_, n_iter_,
        converged_, history_, validation_scores_ (log-likelihood per row that was kept out, with its iteration),
        n_parameters_, n_features_in_, feature_names_in_.

    Examples:
        >>> import numpy as np
        >>> from mixtura import NonnegativeMixtureClassifier
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat(["few", "many"], 100)
        >>> X = rng.poisson(np.where(y == "few", 1.0, 4.0)[:, None], (200, 5))
        >>> model = NonnegativeMixtureClassifier(2, random_state=0).fit(X, y)
        >>> bool(model.score(X, y) > 0.9)
        True
    """

    def __init__(
        self,
        n_components: int = 4,
        *,
        shared: bool = False,
        sparsity: float = 1.0,
        penalty: str = "shares",
        solver: str = "multiplicative",
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        n_init: int = 1,
        max_iter: int = 1000,
        tol: float = 1e-6,
        device: Any = None,
        dtype: Any = None,
        memory_limit: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.n_components = n_components
        self.shared = shared
        self.sparsity = sparsity
        self.penalty = penalty
        self.solver = solver
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.device = device
        self.dtype = dtype
        self.memory_limit = memory_limit
        self.random_state = random_state
        self.verbose = verbose

    # ---- fitting ---------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> NonnegativeMixtureClassifier:
        """Fit the mixture.

        Arguments:
            X: non-negative rows: an array, a frame, a torch tensor or a scipy sparse matrix, which stays sparse.
            y: one label per row.
            sample_weight: one non-negative weight per row.
        """
        checks.count("n_components", self.n_components)
        checks.switch("shared", self.shared)
        solver = self._solver()
        features, rows = self._read(X, reset=True)
        weights = checks.sample_weight(sample_weight, len(rows))
        labels = read_labels(y, len(rows), weights, type(self).__name__)
        numbers = checks.hard_labels(labels.numbers, type(self).__name__)
        weights = torch.ones(len(rows), dtype=torch.float64) if weights is None else weights.cpu()
        checks.total_weight(float(weights.sum()))
        present = (weights > 0).nonzero()[:, 0]
        self.classes_ = labels.classes
        with computing():
            features = pick(features, present.to(features.device))
            largest = largest_values(features)
            checks.squareable(self, torch.zeros_like(largest), largest, float(weights.sum()))
            problem = self._problem(features, numbers[present], weights[present])
            best = max(self._fit_all(solver, problem), key=lambda result: result.score)
            if problem.held_out is not None and best.result.outcome is not Outcome.INTERRUPTED:
                best = with_all_rows(solver, best, problem.rows)
            mixture = finished(solver, best.result.mixture, best.result.best_iteration, problem.rows)
        self._keep(best, mixture, problem)
        return self

    def _solver(self) -> Any:
        strength = checks.non_negative("sparsity", self.sparsity)
        kind = checks.one_of("penalty", self.penalty, PENALTIES)
        name = checks.one_of("solver", self.solver, NONNEGATIVE_SOLVERS)
        if kind == "shares":
            return NONNEGATIVE_SOLVERS[name](SparseShares(strength))
        if name != Multiplicative.name:
            raise ValueError(
                f"penalty='sum' is the published rule, which only solver='multiplicative' follows; got solver="
                f"{name!r}. Use solver='multiplicative', or penalty='shares'."
            )
        return Multiplicative(sum_penalty=strength)

    def _problem(self, features: Tensor, labels: Tensor, weights: Tensor) -> NonnegativeProblem:
        n_classes, n_rows = len(self.classes_), features.shape[0]
        random_state = check_random_state(self.random_state)
        # One source for the starts and one for the rows kept out: how many rows there are must not change the starts.
        generator, splitter = (
            torch.Generator().manual_seed(int(seed)) for seed in random_state.randint(2**31 - 1, size=2)
        )
        totals = torch.zeros(n_classes, dtype=torch.float64).index_add_(0, labels, weights)
        self.class_prior_ = (totals / totals.sum()).numpy()
        weights = _without_empty_rows(features, labels, weights, n_classes)
        shifts, scales = column_units(features, weights)
        scaled = scaled_columns(features, shifts, scales)
        n_bases = self.n_components if self.shared else self.n_components * n_classes
        step = max(1, checks.memory_limit(self.memory_limit) // (SCRATCH_PER_VALUE * n_bases))
        kept_out = self._held_out(labels, weights, n_classes, splitter)
        device = features.device
        labels, weights, kept_out = (part.to(device) for part in (labels, weights, kept_out))

        def part(chosen: Tensor) -> LabeledRows:
            return labeled_rows(scaled, labels, torch.where(chosen, weights, 0.0), step)

        rows = part(torch.ones_like(kept_out))
        held_out = part(kept_out) if bool(kept_out.any()) else None
        kept = rows if held_out is None else part(~kept_out)
        log_prior = torch.from_numpy(self.class_prior_).log().to(device)
        assert n_rows > 0
        return NonnegativeProblem(rows, kept, held_out, shifts, scales, log_prior, n_bases, generator)

    def _held_out(self, labels: Tensor, weights: Tensor, n_classes: int, generator: torch.Generator) -> Tensor:
        """Which rows only say when to stop, (n,): the same part of every class."""
        checks.switch("early_stopping", self.early_stopping)
        fraction = checks.fraction("validation_fraction", self.validation_fraction)
        chosen = torch.zeros(len(labels), dtype=torch.bool)
        if self.early_stopping:
            for c in range(n_classes):
                own = ((labels == c) & (weights > 0)).nonzero()[:, 0]
                order = torch.randperm(len(own), generator=generator)
                chosen[own[order[: int(fraction * len(own))]]] = True
        return chosen if int(chosen.sum()) >= SMALLEST_HELD_OUT else torch.zeros_like(chosen)

    def _fit_all(self, solver: Any, problem: NonnegativeProblem) -> list[Fitted]:
        results = []
        for _ in range(checks.count("n_init", self.n_init)):
            start = random_start(self.n_components, bool(self.shared), problem)
            results.append(self._fit_once(solver, start, problem))
            if results[-1].result.outcome is Outcome.INTERRUPTED:
                break
        return results

    def _fit_once(self, solver: Any, start: LogLinearMixture, problem: NonnegativeProblem) -> Fitted:
        max_iter, tol = checks.count("max_iter", self.max_iter, 0), checks.non_negative("tol", self.tol)
        held_out = problem.held_out
        with watcher(self.verbose, max_iter, type(self).__name__) as watch:
            if held_out is None:
                return Fitted(start, run(solver, problem.rows, start, max_iter, tol, watch))

            def score(mixture: LogLinearMixture) -> float:
                return log_likelihood(mixture, held_out) / held_out.weight

            judge = HeldOut(score, interval=SCORING_INTERVAL)
            return Fitted(start, run(solver, problem.kept, start, max_iter, tol, watch, held_out=judge))

    def _keep(self, best: Fitted, mixture: LogLinearMixture, problem: NonnegativeProblem) -> None:
        """Store a result; warn about what the user should know; raise again what interrupted the fit."""
        result = best.result
        self.mixture_ = mixture.rescaled(problem.scales, problem.shifts)
        self._describe()
        self.n_iter_ = len(result.history)
        self.converged_ = result.outcome in (Outcome.CONVERGED, Outcome.HELD_OUT)
        self.history_ = list(result.history)
        self.validation_scores_ = list(best.result.scores)
        if result.outcome is Outcome.INTERRUPTED:
            raise KeyboardInterrupt
        if result.outcome is Outcome.LIMIT and self.n_iter_ > 0 and problem.held_out is None:
            warnings.warn(
                f"{type(self).__name__} {result.outcome.value} (max_iter={self.max_iter}, tol={self.tol}); increase "
                f"max_iter or tol, or use early_stopping=True or solver='accelerated'.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _describe(self) -> None:
        """The attributes that follow from the mixture."""
        self.n_bases_ = self.mixture_.n_bases
        counts = torch.bincount(self.mixture_.class_of, minlength=self.mixture_.n_classes)
        self.n_components_ = counts.cpu().numpy()

    # ---- reading ---------------------------------------------------------------------------------------------------

    def _read(self, X: Any, reset: bool) -> tuple[Tensor, Rows]:
        """Checked features in double precision, dense or CSR, and how answers are handed back."""
        name = type(self).__name__
        if sparse.issparse(X):
            matrix: Any = validate_data(
                self, X, reset=reset, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False
            )
            checks.finite_features(matrix.data, lambda: matrix.indices, self._column_name, name)
            if reset:
                checks.non_negative_features(matrix.data, lambda: matrix.indices, self._column_name, name)
            values = from_scipy(matrix).to(checks.device(self.device, required=reset) or "cpu")
            return values, Rows(values, values.device, torch.float64, as_tensor=False)
        if is_batches(X):
            raise ValueError(
                f"X is batches, which {name} does not take; pass all rows at once, as a sparse matrix if they are many."
            )
        rows = read_rows(self, X, reset=reset)
        values = torch.from_numpy(np.array(rows.values, float)) if isinstance(rows.values, np.ndarray) else rows.values
        values = values.to(rows.device, torch.float64)
        checks.finite_features(values, None, self._column_name, name)
        if reset:  # the rule needs it, the probabilities do not
            checks.non_negative_features(values, None, self._column_name, name)
        return values, rows

    # ---- predicting ------------------------------------------------------------------------------------------------

    def _map(self, X: Any, compute: Any) -> Any:
        """compute(mixture, rows) over parts of the rows of X, handed back as X came."""
        check_is_fitted(self)
        features, rows = self._read(X, reset=False)
        mixture = self.mixture_.to(features.device)
        checks.bounded_scores(self, largest_values(features), mixture.coefficients)
        per_row = SCRATCH_PER_VALUE * max(mixture.n_bases, mixture.n_components)
        limit = checks.memory_limit(self.memory_limit)
        return rows.answer(map_parts(features, per_row, limit, lambda part: compute(mixture, part)))

    def _map_scores(self, X: Any, finish: Any) -> Any:
        check_is_fitted(self)
        # That of the training: a changed one is added later, to all scores.
        log_prior = torch.from_numpy(self.class_prior_).log() - self._log_prior_change()

        def compute(mixture: LogLinearMixture, part: Tensor) -> Tensor:  # a row of zeros gets the class prior
            scores = mixture.log_probabilities(part)
            return finish(torch.where(empty_rows(part), log_prior.to(scores).unsqueeze(1), scores))

        return self._map(X, compute)

    def _graph(self) -> Any:
        mixture, change = self.mixture_.to("cpu"), self._log_prior_change()
        log_prior = (torch.from_numpy(self.class_prior_).log() - change).unsqueeze(-1)
        log_shares = mixture.shares.log().clamp_min(-1e30).unsqueeze(-1)  # (C, J, 1)

        def score(rows: Tensor) -> Tensor:
            bases = weigh(rows.T, mixture.coefficients, mixture.log_totals)  # (J, n)
            scores = (log_shares + bases).logsumexp(1) - bases.logsumexp(0)
            return torch.where((rows == 0).all(1), log_prior, scores)

        return ConditionalGraph(score, change)

    def responsibilities(self, X: Any) -> Any:
        """Posterior of each weight, that is of each pair of a class and a basis, given the row: (n_rows, n_weights)."""
        return self._map(X, lambda mixture, part: mixture.log_joint(part).softmax(0).T)

    @property
    def weights_(self) -> np.ndarray:
        """Weight of each class and basis, (n_classes, n_bases), summing to one."""
        check_is_fitted(self)
        return self.mixture_.weights.cpu().numpy()

    @property
    def bases_(self) -> np.ndarray:
        """Coefficients of the bases in the units of X, (n_bases, n_features)."""
        check_is_fitted(self)
        return self.mixture_.coefficients.cpu().numpy()

    @property
    def n_parameters_(self) -> int:
        """Number of free parameters of the fitted mixture."""
        check_is_fitted(self)
        return self.mixture_.n_parameters

    def _check_fitted(self) -> None:
        super()._check_fitted()
        checks.is_kind("mixture_", self.mixture_, LogLinearMixture)
        checks.fitted_classes(self, self.mixture_.n_classes)
        checks.fitted_prior(self)
        checks.same_size("n_features_in_", self.n_features_in_, self.mixture_.n_features)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        return tags


@dataclass(frozen=True)
class Fitted:
    """One fit: its start and its result."""

    start: LogLinearMixture
    result: FitResult

    @property
    def score(self) -> float:
        """What fits are compared by: the best score of the held-out samples; without them the objective."""
        return max((score for _, score in self.result.scores), default=self.result.objective)


def with_all_rows(solver: Any, best: Fitted, rows: LabeledRows) -> Fitted:
    """The fit of all rows that takes as many steps as were best for the rows kept out."""
    again = run(solver, rows, best.start, best.result.best_iteration, 0.0)
    if again.outcome is Outcome.INTERRUPTED:  # the fit without those rows is complete
        return replace(best, result=replace(best.result, outcome=Outcome.INTERRUPTED))
    return replace(best, result=replace(again, outcome=best.result.outcome, scores=best.result.scores))


def make_nonnegative_pipeline(
    n_basis: int = 100, *, nmf_max_iter: int = 200, random_state: Any = None, **options: Any
) -> Pipeline:
    """A pipeline of scikit-learn's NMF and a NonnegativeMixtureClassifier on its codes.

    The factorisation is fitted to the training rows; other rows are coded with its basis fixed.

    Arguments:
        n_basis: number of columns of the codes.
        nmf_max_iter: limit of the factorisation; codes need not be converged, and no warning says so.
        random_state: of both parts.
        options: of the classifier.

    Examples:
        >>> from sklearn.datasets import load_digits
        >>> X, y = load_digits(return_X_y=True)
        >>> model = make_nonnegative_pipeline(16, n_components=2, max_iter=100, random_state=0).fit(X[::2], y[::2])
        >>> bool(model.score(X[1::2], y[1::2]) > 0.85)
        True
    """
    coder = QuietNMF(
        n_components=checks.count("n_basis", n_basis),  # pyright: ignore[reportArgumentType]
        init="nndsvda",
        max_iter=nmf_max_iter,
        random_state=random_state,
    )
    return make_pipeline(coder, NonnegativeMixtureClassifier(**options, random_state=random_state))


class QuietNMF(NMF):
    """scikit-learn's NMF without its warning that it stopped at max_iter: a code is good long before it converges.

    What it cannot factorise is refused in the words of `make_nonnegative_pipeline`, whose part it is.
    """

    def _check(self, X: Any) -> None:
        rows = X.tocsr() if sparse.issparse(X) else np.asarray(X)
        if rows.ndim != 2 or rows.dtype.kind not in "fiu":
            return  # scikit-learn says what is wrong
        values, columns = (rows, None) if isinstance(rows, np.ndarray) else (rows.data, lambda: rows.indices)
        names = getattr(X, "columns", None)
        name = "make_nonnegative_pipeline"

        def named(column: int) -> str:
            return f"column {column}" if names is None else f"column {column} ({names[column]!r})"

        checks.finite_features(values, columns, named, name)
        checks.non_negative_features(values, columns, named, name)

    def fit_transform(self, X: Any, y: Any = None, W: Any = None, H: Any = None) -> Any:
        self._check(X)
        checks.rank_of_codes(self.n_components, X.shape if hasattr(X, "shape") else np.shape(X))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Maximum number of iterations", ConvergenceWarning)
            return super().fit_transform(X, y, W=W, H=H)

    def transform(self, X: Any) -> Any:
        self._check(X)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Maximum number of iterations", ConvergenceWarning)
            return super().transform(X)


def random_start(n_components: int, shared: bool, problem: NonnegativeProblem) -> LogLinearMixture:
    """Random coefficients; at the mean row all bases count the same, and classes have nearly their prior."""
    n_classes, n_bases = len(problem.log_prior), problem.n_bases
    class_of = torch.arange(n_classes).repeat_interleave(n_components)
    basis_of = torch.arange(n_components).repeat(n_classes) if shared else torch.arange(n_bases)
    draws = torch.randn(n_bases, problem.rows.n_features, generator=problem.generator, dtype=torch.float64)
    noise = torch.randn(len(class_of), generator=problem.generator, dtype=torch.float64)
    device = problem.log_prior.device
    coefficients = START_SCALE * draws.to(device)
    at_mean = problem.log_prior[class_of.to(device)] + START_SCALE * noise.to(device)
    log_weights = at_mean - (coefficients @ problem.rows.means)[basis_of.to(device)]
    log_weights = log_weights - log_weights.logsumexp(0)
    return LogLinearMixture(log_weights, coefficients, class_of.to(device), basis_of.to(device), n_classes)


def column_units(features: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """What to subtract from each column (its least value; zero where sparse), and its standard deviation, (D,).

    A column that does not vary is divided by its value, or by one.
    """
    weights = weights.to(features.device)
    total = weights.sum()
    if not is_dense(features):
        columns, values = features.col_indices(), features.values()
        each = weights.repeat_interleave(features.crow_indices().diff())  # of the row of each cell
        zeros = torch.zeros(features.shape[1], dtype=torch.float64, device=features.device)
        means = zeros.index_add(0, columns, each * values) / total
        squares = zeros.index_add(0, columns, each * values.square()) / total
        shifts, variances = zeros, (squares - means.square()).clamp_min(0)
    else:
        present = features[weights > 0]
        shifts = present.amin(0)
        means = (weights @ (features - shifts)) / total
        variances = (weights @ (features - shifts - means).square()) / total
    scales = variances.sqrt()
    flat = torch.where(means > 0, means, 1.0)
    return shifts, torch.where(scales > 1e-12 * means, scales, flat).clamp_min(1e-300)


def _without_empty_rows(features: Tensor, labels: Tensor, weights: Tensor, n_classes: int) -> Tensor:
    """Weights without rows of zeros, which get the class prior whatever is fitted; unless a class would lose all."""
    left = torch.where(empty_rows(features).cpu(), 0.0, weights)
    kept = torch.zeros(n_classes, dtype=torch.float64).index_add_(0, labels, left)
    return left if bool((kept > 0).all()) else weights
