"""NonnegativeMixtureClassifier: mixtures of log-linear bases on non-negative features."""

from __future__ import annotations

from dataclasses import KW_ONLY, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from mixtura import checks
from mixtura.engine.passes import map_parts
from mixtura.engine.sources import TensorSource
from mixtura.engine.threads import computing
from mixtura.estimators.classifiers import ConditionalClassifier
from mixtura.estimators.estimator import check_fitted, fitting, recorded, trial_watcher, with_constructor
from mixtura.estimators.labels import read_labels, with_groups
from mixtura.estimators.rows import Rows, is_batches, read_rows
from mixtura.estimators.text_batches import TextBatches
from mixtura.files.registry import storable
from mixtura.inspection.explanations import ScoredWords, word_contributions
from mixtura.inspection.graphs import conditional_graph
from mixtura.inspection.summaries import Table
from mixtura.inspection.summaries import feature_names as known_names
from mixtura.model.transforms import ROW_TRANSFORMS, RowTransform, document_counts, make_row_transform
from mixtura.nonnegative.mixture import (
    SCRATCH_PER_VALUE,
    LabeledRows,
    LogLinearMixture,
    NonnegativeProblem,
    column_units,
    labeled_rows,
    rows_per_chunk,
    without_empty_rows,
)
from mixtura.nonnegative.priors import Normal, PseudoCounts, SparseShares
from mixtura.nonnegative.updates import NONNEGATIVE_SOLVERS
from mixtura.selection.log_linear import COMPONENTS, TextSearch, TextSettings, some_of
from mixtura.selection.splits import checked_cv, hold_outs, regroup, renumbered
from mixtura.selection.task import is_auto
from mixtura.selection.text_samples import RowsUnder, TextSamples, rows_in_memory
from mixtura.selection.update_search import UpdateSearch
from mixtura.solvers import FitResult, Outcome
from mixtura.values.features import weigh
from mixtura.values.sparse_rows import empty_rows, from_scipy, is_dense, largest_values, scaled_columns

# Early stopping needs at least this many held-out rows.
SMALLEST_HELD_OUT = 20
AUTO = (0.0, 1.0)  # candidates of sparsity="auto"
PLAIN_COMPONENTS = 4  # n_components="auto" of a named solver


@storable("NonnegativeMixtureClassifier", check=check_fitted)
@with_constructor
class NonnegativeMixtureClassifier(ConditionalClassifier):
    """Classifier of texts and other non-negative features, with mixtures of log-linear bases.

        p(c | x) proportional to sum_j W_cj exp(theta_j . x),  W_cj >= 0    (log-linear)

    It suits features whose zero means "absent": counts of words, histograms, codes of a non-negative matrix
    factorisation. Sparse matrices stay sparse. With one component per class it is multinomial logistic regression, or
    naive Bayes with `prior=Normal("start", math.inf)`. A sample of zeros gets the class prior. There is no density;
    `MixtureClassifier` and `GaussianMixture` have one.

    By default held-out samples select the transform of the rows, the prior, the number of components and the
    temperature (text-choice).

    Parameters
    ----------
    n_components : "auto" or int, default="auto"
        Number of bases per class, or of all bases with `shared=True`. "auto" compares 1 and 3 per class; with a named
        `solver` it means 4.
    prior : "auto", Normal, PseudoCounts or None, default="auto"
        Prior on the coefficients, see `mixtura.nonnegative.priors`. "auto" compares centres and strengths; with a named
        `solver` it means None. "multiplicative" takes `PseudoCounts` only.
    rows : {"auto", "counts", "log", "tfidf"} or None, default="auto"
        Transform of the rows (row-transform). "counts": as they are; "log": log(1 + x) times the inverse document
        frequency, and "tfidf": x times it, both with rows of length 1. None: as they are, and dense columns are shifted
        to start at zero and divided by their standard deviations. "auto" compares "log", "tfidf" and "counts" for
        sparse X, None and "log" for dense X; with a named `solver` it means None.
    shared : bool, default=False
        Whether every class has a weight for every basis ([2]_, eq. 12); otherwise a basis belongs to one class.
    sparsity : float or "auto", default="auto"
        Penalty of a basis of a single class, in units of the log-likelihood. Weights and bases whose likelihood gain
        is smaller are removed. 0 is the model of [1]_, and what "auto" means with `solver="auto"`. A penalty buys a
        smaller model, not accuracy: with 48 bases per class, 1 instead of 0 lowers test accuracy from 94.0 to 93.8 % on
        USPS digits (480 weights become 107) and from 98.1 to 97.5 % on CBCL faces (96 become 16). With a named solver
        "auto" fits both and takes the one with the larger likelihood of the held-out samples of early stopping;
        without them it is 1.
    solver : {"auto", "multiplicative", "accelerated"}, default="auto"
        "auto": L-BFGS under the prior, from a multinomial mixture. The others start at random and select nothing but
        the number of iterations and `sparsity`: the multiplicative updates of [1]_ and [2]_, or L-BFGS; both are
        monotone and maximise the same objective.
    temperature : "auto" or float, default="auto"
        The log posteriors are divided by it before the softmax; 1 switches it off. "auto" estimates it on held-out
        samples; with a named `solver` it means 1.
    cv : int or splits, default=5
        Folds of the selection; a number, a scikit-learn splitter, or an iterable of pairs of index arrays. Of a number
        of folds only as many are used as hold out 800 samples. The selection uses at most 10,000 samples.
    time_budget : float or None, default=None
        Seconds of the selection: no candidate is tried that would end later if it took as long as the last one, and
        one that takes longer is given up; the first is completed. Results then depend on the speed of the machine.
    unlabeled : object, default=None
        The label of unlabeled samples, such as -1; np.nan means every missing label (NaN, None, pd.NA or masked); None
        means that every label is a class. In soft labels a row of NaN is unlabeled. Unlabeled samples have an effect on
        the multinomial mixture alone, and through it on priors that are centred there.
    early_stopping : bool, default=True
        For a named solver: whether to select the number of iterations on held-out samples, then refit all samples with
        as many. Needs at least 20 held-out samples.
    validation_fraction : float, default=0.1
        For a named solver: fraction of the samples of each class held out for early stopping.
    n_init : int, default=1
        For a named solver: number of random initialisations; the fit with the best objective (of held-out samples, if
        any) is kept.
    max_iter : int, default=1000
        Maximum number of iterations.
    tol : float, default=1e-6
        Convergence threshold of the change of the objective per sample.
    device : str, torch.device or None, default=None
        Device of the computation; None means that of X.
    memory_limit : int, str or None, default=None
        Limit of the temporary arrays, in bytes or as text like "256 MB"; None means 256 MB. Samples, their scaled copy,
        the model and the predictions come on top.
    random_state : int, RandomState or None, default=None
        Seed of the initialisation and the held-out samples.
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
    mixture_ : LogLinearMixture
        The fitted mixture, in the units of X or of the transformed rows.
    rows_ : RowTransform or None
        The transform of the rows.
    temperature_ : float
        The temperature of the class probabilities.
    weights_ : ndarray of shape (n_classes, n_bases)
        Weights, summing to one.
    bases_ : ndarray of shape (n_bases, n_features)
        Coefficients of the bases, for transformed rows.
    n_components_ : ndarray of shape (n_classes,)
        Number of positive weights of each class.
    n_bases_ : int
        Number of bases.
    n_parameters_ : int
        Number of free parameters.
    sparsity_ : float
        The penalty of the fit: that of `sparsity`, or the chosen one.
    search_ : SearchTable or None
        The candidates of the selection with their scores, or the penalties and initialisations of a named solver; None
        for a single fit.
    n_iter_ : int
        Number of iterations.
    converged_ : bool
        Whether the fit converged, or ended by early stopping.
    history_ : list of Record
        Objective and time of each iteration.
    validation_scores_ : list of tuple
        Iteration and log-likelihood per held-out sample, with 1 % of the uniform distribution mixed in.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Feature names, if X has string column names.

    References
    ----------
    .. [1] Saul and Lee (2002). Multiplicative updates for classification by mixture models. NIPS 14.
    .. [2] Liu, Zheng and Zheng (2006). Sparse mixture model for discriminative classification.

    Examples
    --------
    >>> import numpy as np
    >>> from mixtura import NonnegativeMixtureClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat(["few", "many"], 100)
    >>> X = rng.poisson(np.where(y == "few", 1.0, 4.0)[:, None], (200, 5))
    >>> model = NonnegativeMixtureClassifier(2, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    n_components: Any = "auto"
    _: KW_ONLY
    prior: Any = "auto"
    rows: Any = "auto"
    shared: bool = False
    sparsity: Any = "auto"
    solver: str = "auto"
    temperature: Any = "auto"
    cv: Any = 5
    time_budget: float | None = None
    unlabeled: Any = None
    early_stopping: bool = True
    validation_fraction: float = 0.1
    n_init: int = 1
    max_iter: int = 1000
    tol: float = 1e-6
    device: Any = None
    memory_limit: Any = None
    random_state: Any = None
    verbose: int = 0
    checkpoint: Any = None

    rows_: RowTransform | None = field(default=None, init=False)
    _attributes: ClassVar = {"mixture_": LogLinearMixture, "rows_": RowTransform | None}
    _arguments: ClassVar = {
        "n_components": checks.at_least(1) | checks.SILENT_AUTO,
        "rows": checks.among(("auto", *ROW_TRANSFORMS), " or None") | checks.Rule("", checks.NONE.holds),
        "shared": checks.SWITCH,
        "sparsity": checks.NON_NEGATIVE | checks.AUTO,
        "solver": checks.among(("auto", *NONNEGATIVE_SOLVERS)),
    }

    # ---- fitting ---------------------------------------------------------------------------------------------------

    @fitting
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> NonnegativeMixtureClassifier:
        """Fit the classifier.

        Parameters
        ----------
        X : array-like, tensor or sparse matrix of shape (n_samples, n_features)
            Non-negative samples; sparse matrices stay sparse. Or an iterable of batches `(X, y)` or
            `(X, y, sample_weight)` that can be iterated repeatedly; then `y` is None. Memory is bounded by a batch,
            the model, and 10,000 samples for the selection.
        y : array-like of shape (n_samples,) or (n_samples, n_classes)
            Labels, or soft labels whose rows sum to 1; a row of NaN is unlabeled.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative sample weights.
        groups : array-like of shape (n_samples,), optional
            The group of each sample, such as a patient: samples of a group are never both in training and held out.

        Returns
        -------
        self : NonnegativeMixtureClassifier
        """
        if is_batches(X):
            checks.alone_with_batches(groups=groups)
            return self._fit_batches(X, y, sample_weight)
        features, rows = self._read(X, reset=True)
        weights = checks.sample_weight(sample_weight, len(rows))
        automatic = is_auto(self.solver)
        unlabeled = self.unlabeled if automatic else None
        labels = read_labels(y, len(rows), weights, type(self).__name__, unlabeled, takes_unlabeled=automatic)
        if not automatic:
            checks.hard_labels(labels.numbers, type(self).__name__)
        weights = torch.ones(len(rows), dtype=torch.float64) if weights is None else weights.cpu()
        checks.total_weight(float(weights.sum()))
        numbers, shares = (None if part is None else part.cpu() for part in (labels.numbers, labels.shares))
        samples = TextSamples(features, numbers, shares, weights, len(labels.classes))
        source = TensorSource(features, samples.labels, samples.shares, weights)
        with computing(), recorded(self, training=source):
            present = weights > 0
            cv = renumbered(with_groups(checked_cv(self.cv), groups, len(weights)), present)
            if not bool(present.all()):
                samples = samples.part(present)
            largest = largest_values(samples.features)
            checks.squareable(self, torch.zeros_like(largest), largest, float(weights.sum()))
            prior = samples.class_totals(samples.weights)
            self.classes_, self.class_prior_ = labels.classes, (prior / prior.sum()).numpy()
            outcome = self._fit_automatically(samples, cv) if automatic else self._fit_by_updates(samples, cv)
        self.mixture_ = self.mixture_.to(rows.home or rows.device)
        if self.rows_ is not None:
            self.rows_ = self.rows_.to(rows.home or rows.device)
        self._warn_or_raise(outcome)
        return self

    def _check_arguments(self) -> None:
        super()._check_arguments()
        checks.coefficient_prior(self.prior, (Normal, PseudoCounts), self.solver, self.shared, self.sparsity)

    def _generators(self) -> tuple[torch.Generator, torch.Generator]:
        """Separate generators, so that initialisation does not depend on the number of held-out rows."""
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=2)
        first, second = (torch.Generator().manual_seed(int(seed)) for seed in seeds)
        return first, second

    def _chunk_size(self, n_components: int, samples: TextSamples) -> int:
        n_bases = n_components if self.shared else n_components * samples.n_classes
        limit = checks.memory_limit(self.memory_limit)
        return rows_per_chunk(n_bases, samples.features.shape[1], limit, samples.features.device)

    # ---- fitting, with a search -------------------------------------------------------------------------------------

    def _fit_automatically(self, samples: TextSamples, cv: Any) -> Outcome:
        """Compare candidates on some of the samples, then fit the chosen one to all of them."""
        samples = samples.to(samples.features.device)
        weights = without_empty_rows(samples.features, samples.weights, samples.class_totals)
        samples = replace(samples, weights=weights, step=self._chunk_size(self._most_components(), samples))
        splitter, _ = self._generators()
        few, cv = some_of(samples, cv, splitter)
        return self._fit_candidates(few, rows_in_memory(samples), cv, splitter)

    def _most_components(self) -> int:
        return max(COMPONENTS) if is_auto(self.n_components) else self.n_components

    def _fit_candidates(self, few: TextSamples, every: RowsUnder, cv: Any, generator: torch.Generator) -> Outcome:
        """Compare candidates on the samples `few`, then fit the chosen one to all rows."""
        settings = TextSettings(
            rows=self.rows,
            n_components=self.n_components,
            prior=self.prior,
            temperature=self.temperature,
            sparsity=0.0 if is_auto(self.sparsity) else float(self.sparsity),
            shared=bool(self.shared),
            cv=cv,
            time_budget=self.time_budget,
        )
        with trial_watcher(self.verbose, type(self).__name__) as watch:
            search = TextSearch(few, settings, generator, watch)
            choice = search.run()
        result = search.final(choice, every, self.max_iter, self.tol)
        view = search.view(choice.candidate.rows)
        self.search_, self.temperature_, self.sparsity_ = choice.table, choice.temperature, settings.sparsity
        return self._keep(result, view.in_units_of_rows(result.mixture), view.transform)

    def _fit_batches(self, X: Any, y: Any, sample_weight: Any) -> NonnegativeMixtureClassifier:
        """Fit to batches: candidates are compared on some of the rows, and every pass reads the batches again."""
        checks.alone_with_batches(y=y, sample_weight=sample_weight)
        if not is_auto(self.solver):
            raise ValueError(
                f"solver={self.solver!r} does not support an X of batches. Use solver='auto', or pass all samples at "
                "once, as a sparse matrix if they are many."
            )
        cv = checked_cv(self.cv)
        if not isinstance(cv, int):
            raise ValueError(f"cv must be a number of folds for an X of batches; got {self.cv!r}.")
        generator, _ = self._generators()
        batches = TextBatches(self, X)
        classes, few, totals = batches.scan(generator)
        few = replace(few, step=self._chunk_size(self._most_components(), few))
        source = TensorSource(few.features, few.labels, few.shares, few.weights)
        with computing(), recorded(self, training=source):
            self.classes_, self.class_prior_ = classes, (totals / totals.sum()).numpy()
            outcome = self._fit_candidates(few, batches.rows_under(classes, few.step), cv, generator)
        self._warn_or_raise(outcome)
        return self

    # ---- fitting, by named updates ----------------------------------------------------------------------------------

    def _fit_by_updates(self, samples: TextSamples, cv: Any) -> Outcome:
        """Fit with the solver that `solver` names: the number of iterations and the penalty by held-out samples."""
        solvers = self._solvers()
        transform = None
        if isinstance(self.rows, str) and not is_auto(self.rows):
            counts = document_counts(samples.features, samples.weights.to(samples.features.device))
            transform = make_row_transform(self.rows, counts, float(samples.weights.sum()))
            samples = replace(samples, features=transform.forward(samples.features))
        problem = self._problem(samples, transform is None, cv)
        search = UpdateSearch(
            problem,
            solvers,
            None if is_auto(self.prior) else self.prior,
            self._n_components(),
            bool(self.shared),
            self.n_init,
            self.max_iter,
            self.tol,
        )
        with trial_watcher(self.verbose and search.n_candidates > 1, type(self).__name__) as watch:
            best, self.search_ = search.run(watch)
        self.sparsity_ = best.solver.penalty.strength
        self.temperature_ = 1.0 if is_auto(self.temperature) else float(self.temperature)
        return self._keep(best.result, best.result.mixture.rescaled(problem.scales, problem.shifts), transform)

    def _solvers(self) -> list[Any]:
        """The solver for each candidate of the penalty, the one to use without held-out rows last."""
        strengths = AUTO if is_auto(self.sparsity) else (float(self.sparsity),)
        name = "accelerated" if is_auto(self.solver) else self.solver
        return [NONNEGATIVE_SOLVERS[name](SparseShares(strength)) for strength in strengths]

    def _problem(self, samples: TextSamples, has_units: bool, cv: Any) -> NonnegativeProblem:
        generator, splitter = self._generators()
        features, device = samples.features.double(), samples.features.device
        assert samples.labels is not None
        labels, weights = samples.labels, without_empty_rows(features, samples.weights, samples.class_totals)
        ones = torch.ones(features.shape[1], dtype=torch.float64, device=device)
        shifts, scales = column_units(features, weights) if has_units else (0 * ones, ones)
        scaled = scaled_columns(features, shifts, scales)
        step = self._chunk_size(self._n_components(), samples)
        kept_out = self._held_out(labels, weights, splitter, cv)
        labels, weights, kept_out = (part.to(device) for part in (labels, weights, kept_out))

        def part(chosen: Tensor) -> LabeledRows:
            return labeled_rows(scaled, labels, torch.where(chosen, weights, 0.0), step)

        rows = part(torch.ones_like(kept_out))
        held_out = part(kept_out) if bool(kept_out.any()) else None
        kept = rows if held_out is None else part(~kept_out)
        log_prior = torch.from_numpy(self.class_prior_).log().to(device)
        return NonnegativeProblem(
            rows, kept, held_out, shifts, scales, log_prior, generator, has_units and is_dense(features)
        )

    def _n_components(self) -> int:
        return PLAIN_COMPONENTS if is_auto(self.n_components) else self.n_components

    def _held_out(self, labels: Tensor, weights: Tensor, generator: torch.Generator, cv: Any) -> Tensor:
        """Mask of the rows held out for early stopping, (n,), stratified by class."""
        parts = []
        if self.early_stopping:
            parts = hold_outs(
                regroup(cv, float(self.validation_fraction)),
                labels,
                generator,
                weights=weights,
                smallest=SMALLEST_HELD_OUT,
            )
        return parts[0].held_out if parts else torch.zeros(len(labels), dtype=torch.bool)

    # ---- the result -------------------------------------------------------------------------------------------------

    def _keep(self, result: FitResult, mixture: LogLinearMixture, transform: RowTransform | None) -> Outcome:
        """Store a result, with the mixture of transformed rows; return how the fit ended."""
        self.mixture_, self.rows_ = mixture, transform
        self._describe()
        self.n_iter_ = len(result.history)
        self.converged_ = result.outcome in (Outcome.CONVERGED, Outcome.HELD_OUT)
        self.history_ = list(result.history)
        self.validation_scores_ = list(result.scores)
        return result.outcome

    def _warn_or_raise(self, outcome: Outcome) -> None:
        """Warn of a fit that did not converge; raise KeyboardInterrupt again if it was interrupted."""
        if outcome is Outcome.INTERRUPTED:
            raise KeyboardInterrupt
        if outcome is Outcome.LIMIT and self.n_iter_ > 0 and not self.validation_scores_:
            fix = "" if is_auto(self.solver) else ", or use early_stopping=True or solver='accelerated'"
            checks.warn(
                f"{type(self).__name__} {outcome.value} (max_iter={self.max_iter}, tol={self.tol}); increase "
                f"max_iter or tol{fix}.",
                ConvergenceWarning,
            )

    def _describe(self) -> None:
        """The attributes that follow from the mixture."""
        self.n_bases_ = self.mixture_.n_bases
        counts = torch.bincount(self.mixture_.class_of, minlength=self.mixture_.n_classes)
        self.n_components_ = counts.cpu().numpy()

    # ---- reading ---------------------------------------------------------------------------------------------------

    def _read(self, X: Any, reset: bool, training: bool = False) -> tuple[Tensor, Rows]:
        """Checked features, dense in double precision or CSR, and the format of the results.

        Negative values are refused in training: the updates cannot take them, but predictions can.
        """
        training = training or reset
        name = type(self).__name__
        if sparse.issparse(X):
            matrix: Any = validate_data(
                self, X, reset=reset, accept_sparse="csr", dtype=[np.float64, np.float32], ensure_all_finite=False
            )
            checks.finite_features(matrix.data, lambda: matrix.indices, self._column_name, name)
            if training:
                checks.non_negative_features(matrix.data, lambda: matrix.indices, self._column_name, name)
            values = from_scipy(matrix).to(checks.device(self.device, required=reset) or "cpu")
            return values, Rows(values, values.device, torch.float64, as_tensor=False)
        if is_batches(X):
            raise ValueError(
                f"{name} does not support an X of batches. Pass all samples at once, as a sparse matrix if they are "
                "many."
            )
        rows = read_rows(self, X, reset=reset)
        rows = rows.nearby() if reset else rows
        values = torch.from_numpy(np.array(rows.values, float)) if isinstance(rows.values, np.ndarray) else rows.values
        values = values.to(rows.device, torch.float64)
        checks.finite_features(values, None, self._column_name, name)
        if training:
            checks.non_negative_features(values, None, self._column_name, name)
        return values, rows

    # ---- predicting ------------------------------------------------------------------------------------------------

    def _map(self, X: Any, compute: Any) -> Any:
        """compute(mixture, rows) over parts of the rows of X, returned in the format of X."""
        check_is_fitted(self)
        features, rows = self._read(X, reset=False)
        mixture = self.mixture_.to(features.device)
        if self.rows_ is None or self.rows_.name == "counts":  # other rows have length one
            checks.bounded_scores(self, largest_values(features).double(), mixture.coefficients)
        per_row = SCRATCH_PER_VALUE * max(mixture.n_bases, mixture.n_components)
        limit = checks.memory_limit(self.memory_limit)

        def compute_part(part: Tensor) -> Tensor:
            return compute(mixture, part.double() if self.rows_ is None else self.rows_.forward(part))

        return rows.answer(map_parts(features, per_row, limit, compute_part))

    def _map_scores(self, X: Any, finish: Any) -> Any:
        check_is_fitted(self)
        # The class prior of the training set; another class prior is applied later, to all scores.
        log_prior = torch.from_numpy(self.class_prior_).log() - self._log_prior_change()

        def compute(mixture: LogLinearMixture, part: Tensor) -> Tensor:  # a row of zeros gets the class prior
            scores = mixture.log_probabilities(part)
            if self.temperature_ != 1:
                scores = (scores / self.temperature_).log_softmax(0)
            return finish(self._offset(torch.where(empty_rows(part), log_prior.to(scores).unsqueeze(1), scores)))

        return self._map(X, compute)

    def _graph(self) -> Any:
        mixture, change = self.mixture_.to("cpu"), self._log_prior_change()
        log_prior = (torch.from_numpy(self.class_prior_).log() - change).unsqueeze(-1)
        log_shares = mixture.shares.log().clamp_min(-1e30).unsqueeze(-1)  # (C, J, 1)

        transform, temperature = None if self.rows_ is None else self.rows_.to("cpu"), self.temperature_

        def score(rows: Tensor) -> Tensor:
            rows = rows if transform is None else transform.forward(rows)
            bases = weigh(rows.T, mixture.coefficients, mixture.log_totals)  # (J, n)
            scores = ((log_shares + bases).logsumexp(1) - bases.logsumexp(0)) / temperature
            scores = scores - scores.logsumexp(0)
            return torch.where((rows == 0).all(1), log_prior, scores)

        return conditional_graph(score, change)

    def responsibilities(self, X: Any) -> Any:
        """Compute the posterior probability of each weight, a pair of a class and a basis.

        Parameters
        ----------
        X : array-like, tensor or sparse matrix of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        responsibilities : ndarray of shape (n_samples, n_weights)
        """
        return self._map(X, lambda mixture, part: mixture.log_joint(part).softmax(0).T)

    def explain(self, X: Any, feature_names: Any = None) -> Table:
        """Compute what each word adds to the log-odds of the predicted class against all others (word-contributions).

        Parameters
        ----------
        X : array-like, tensor or sparse matrix of shape (n_samples, n_features)
            A few samples.
        feature_names : array-like of shape (n_features,), optional
            Words, such as `vectorizer.get_feature_names_out()`; by default the column names of the training samples.

        Returns
        -------
        Table
            One line for each sample and word that is not zero, the largest contribution first: number of the sample,
            class, word, value in X and contribution. The line "(constant)" makes the sum of a sample its log-odds.
            `to_frame()` returns a pandas data frame.

        Examples
        --------
        >>> from sklearn.feature_extraction.text import CountVectorizer
        >>> from mixtura import NonnegativeMixtureClassifier
        >>> texts = ["red apple", "green apple", "fresh pear", "steel bolt", "brass bolt", "long screw"]
        >>> words = CountVectorizer()
        >>> model = NonnegativeMixtureClassifier().fit(words.fit_transform(texts), ["fruit"] * 3 + ["part"] * 3)
        >>> lines = model.explain(words.transform(["a brass apple"]), words.get_feature_names_out())
        >>> [(word, value > 0) for word, value in zip(lines.columns["feature"], lines.columns["contribution"])][:2]
        [('apple', True), ('brass', False)]
        """
        check_is_fitted(self)
        names = np.asarray(known_names(self) if feature_names is None else feature_names, dtype=object)
        checks.as_many_names(names, self.n_features_in_)
        model = ScoredWords(
            self.mixture_.to("cpu"), None if self.rows_ is None else self.rows_.to("cpu"), self.temperature_
        )
        scores = torch.as_tensor(self._map_scores(X, lambda scores: scores.T)).double()
        return word_contributions(model, self._read(X, reset=False)[0].to("cpu"), scores, self.classes_, names)

    @property
    def weights_(self) -> np.ndarray:
        """Weight of each class and basis, (n_classes, n_bases), summing to one."""
        check_is_fitted(self)
        return self.mixture_.weights.cpu().numpy()

    @property
    def bases_(self) -> np.ndarray:
        """Coefficients of the bases, (n_bases, n_features), for the transformed rows if there is a transform."""
        check_is_fitted(self)
        return self.mixture_.coefficients.cpu().numpy()

    @property
    def n_parameters_(self) -> int:
        """Number of free parameters of the fitted mixture."""
        check_is_fitted(self)
        return self.mixture_.n_parameters

    def _check_fitted(self) -> None:
        super()._check_fitted()
        checks.same_size("classes_", len(self.classes_), self.mixture_.n_classes)
        checks.same_size("n_features_in_", self.n_features_in_, self.mixture_.n_features)
        if self.rows_ is not None:
            checks.same_size("weights of features", len(self.rows_.weights), self.mixture_.n_features)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        return tags
