"""NonnegativeMixtureClassifier: mixtures of log-linear bases on non-negative features."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, field, fields, replace
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, cast

import numpy as np
import torch
from scipy import sparse
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from mixtura import checks
from mixtura.engine.passes import map_parts
from mixtura.engine.sources import TensorSource
from mixtura.engine.threads import computing
from mixtura.estimators import arguments
from mixtura.estimators.classifiers import ConditionalClassifier
from mixtura.estimators.estimator import (
    candidates_shown,
    check_fitted,
    fitting,
    keeping_progress,
    list_features,
    with_constructor,
)
from mixtura.estimators.frames import is_batches, is_table
from mixtura.estimators.labels import ClassNumbers, read_labels, read_one_per_row, with_groups
from mixtura.estimators.rows import Rows, read_rows
from mixtura.estimators.streamed_rows import SAME_ROWS
from mixtura.estimators.training import keep_history, raise_interruption
from mixtura.files.registry import on_device, storable
from mixtura.inspection.explanations import word_contributions
from mixtura.inspection.graphs import conditional_graph
from mixtura.inspection.summaries import Table
from mixtura.model.transforms import ROW_TRANSFORMS, RowTransform, document_counts
from mixtura.nonnegative.mixture import (
    SCRATCH_PER_VALUE,
    ClassChunk,
    LabeledRows,
    LogLinearMixture,
    chunk_of,
    column_units,
    parts_of,
    rows_per_chunk,
    with_totals,
    without_empty_rows,
)
from mixtura.nonnegative.priors import CoefficientPrior, Normal, PseudoCounts
from mixtura.nonnegative.updates import NONNEGATIVE_SOLVERS
from mixtura.selection.splits import check_splits, renumbered, strata_of
from mixtura.selection.task import Selected, is_auto
from mixtura.selection.texts import (
    COMPONENTS,
    PLAIN_COMPONENTS,
    SELECTION_SAMPLES,
    RowsUnder,
    TextSamples,
    TextSearch,
    TextTask,
    TransformedSamples,
    UpdateSearch,
    rows_in_memory,
    some_of,
)
from mixtura.solvers import FitResult, Outcome
from mixtura.streams.batches import EveryPass, named_batches
from mixtura.values.features import weigh
from mixtura.values.sparse_rows import empty_rows, from_scipy, largest_values, pick, stacked_rows


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

    n_components: int | str = "auto"
    _: KW_ONLY
    prior: str | CoefficientPrior | None = "auto"
    rows: str | None = "auto"
    shared: bool = False
    sparsity: float | str = "auto"
    solver: str = "auto"
    temperature: float | str = "auto"
    cv: object = 5
    time_budget: float | None = None
    unlabeled: object = None
    early_stopping: bool = True
    validation_fraction: float = 0.1
    n_init: int = 1
    max_iter: int = 1000
    tol: float = 1e-6
    device: arguments.Device = None
    memory_limit: arguments.MemoryLimit = None
    random_state: arguments.RandomState = None
    verbose: int = 0
    checkpoint: arguments.PathName = None

    mixture_: LogLinearMixture = field(init=False)
    sparsity_: float = field(init=False)
    n_bases_: int = field(init=False)
    validation_scores_: list[tuple[int, float]] = field(init=False)
    rows_: RowTransform | None = field(default=None, init=False)
    _attributes: ClassVar = {"mixture_": LogLinearMixture, "rows_": RowTransform | None}
    _arguments: ClassVar = {
        "n_components": checks.at_least(1) | checks.SILENT_AUTO,
        "prior": checks.Rule(
            '"auto", None, a Normal or a PseudoCounts of mixtura.nonnegative.priors',
            (checks.AUTO | checks.of_type(Normal | PseudoCounts | None)).holds,
        ),
        "rows": checks.among(("auto", *ROW_TRANSFORMS), " or None") | checks.of_type(type(None)),
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
        task = (read_batches if is_batches(X) else read)(self, X, y, sample_weight, groups)
        with computing(), keeping_progress(self, training=task.source):
            chosen = select(self, task)
            result = train(chosen)
        keep(self, chosen, result)
        return self

    def _check_arguments(self) -> None:
        super()._check_arguments()
        is_counts = isinstance(self.prior, PseudoCounts)
        checks.coefficient_prior(self.prior, is_counts, self.solver, self.shared, self.sparsity)

    # ---- predicting ------------------------------------------------------------------------------------------------

    def _map_rows(self, X: object, compute: Callable[[LogLinearMixture, Tensor], Tensor]) -> np.ndarray | Tensor:
        """compute(mixture, rows) over parts of the rows of X, returned in the format of X."""
        check_is_fitted(self)
        features, rows = read_features(self, X, reset=False)
        mixture = self.mixture_.to(features.device)
        if self.rows_ is None or self.rows_.name == "counts":  # other rows have length one
            _check_sizes(self, largest_values(features).double(), mixture.coefficients)
        per_row = SCRATCH_PER_VALUE * max(mixture.n_bases, mixture.n_components)
        limit = checks.memory_limit(self.memory_limit)

        def compute_part(part: Tensor) -> Tensor:
            return compute(mixture, part.double() if self.rows_ is None else self.rows_.forward(part))

        return rows.answer(map_parts(features, per_row, limit, compute_part))

    def _map_scores(self, X: object, finish: Callable[[Tensor], Tensor]) -> np.ndarray | Tensor:
        check_is_fitted(self)
        # The class prior of the training set; another class prior is applied later, to all scores.
        log_prior = torch.from_numpy(self.class_prior_).log() - self._log_prior_change()

        def compute(mixture: LogLinearMixture, part: Tensor) -> Tensor:  # a row of zeros gets the class prior
            scores = mixture.log_probabilities(part)
            if self.temperature_ != 1:
                scores = (scores / self.temperature_).log_softmax(0)
            return finish(self._offset(torch.where(empty_rows(part), log_prior.to(scores).unsqueeze(1), scores)))

        return self._map_rows(X, compute)

    def _graph(self) -> nn.Module:
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
        return self._map_rows(X, lambda mixture, part: mixture.log_joint(part).softmax(0).T)

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
        names = names_of_words(self, feature_names)
        transform = None if self.rows_ is None else self.rows_.to("cpu")
        model = self.mixture_.to("cpu"), transform, self.temperature_
        scores = torch.as_tensor(self._map_scores(X, lambda scores: scores.T)).double()
        rows = read_features(self, X, reset=False)[0].to("cpu")
        return word_contributions(*model, rows, scores, self.classes_, names)

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


def _check_sizes(model: NonnegativeMixtureClassifier, largest: Tensor, coefficients: Tensor) -> None:
    """Check that products of features, at most `largest` (D,), with coefficients (J, D) do not overflow."""
    products = largest * coefficients.abs().amax(0)
    if not float(products.sum()) < 1e150:
        column = int(products.nan_to_num(nan=torch.inf).argmax())
        raise ValueError(
            f"X holds {float(largest[column]):g} in {checks.column_name(model, column)}, too large to compute "
            "probabilities. Check the units of that column, or remove such values."
        )


# ---- a fit: read, describe, search and train, keep -----------------------------------------------------------------


def read(model: NonnegativeMixtureClassifier, X: object, y: object, sample_weight: object, groups: object) -> TextTask:
    """Check samples in memory; those on which an automatic search compares candidates are drawn at random."""
    features, rows = read_features(model, X, reset=True)
    weights = checks.sample_weight(sample_weight, len(rows))
    automatic = is_auto(model.solver)
    unlabeled = model.unlabeled if automatic else None
    labels = read_labels(y, len(rows), weights, type(model).__name__, unlabeled, takes_unlabeled=automatic)
    if not automatic:
        checks.hard_labels(labels.numbers, type(model).__name__)
    weights = torch.ones(len(rows), dtype=torch.float64) if weights is None else weights.cpu()
    checks.total_weight(float(weights.sum()))
    numbers, shares = (None if part is None else part.cpu() for part in (labels.numbers, labels.shares))
    source, present = TensorSource(features, numbers, shares, weights), weights > 0
    samples = TextSamples(features, strata_of(numbers, shares, None), shares, weights, len(labels.classes))
    samples = samples if bool(present.all()) else samples.part(present)
    cv = renumbered(with_groups(check_splits(model.cv), groups, len(weights)), present)
    largest = largest_values(samples.features)
    checks.squareable(model, torch.zeros_like(largest), largest, float(weights.sum()))
    totals = samples.class_totals(samples.weights)
    samples = samples.to(features.device)
    left = without_empty_rows(samples.features, samples.weights, samples.class_totals)
    first, second = make_generators(model.random_state)
    every = replace(samples, weights=left, step=_chunk_size(model, samples))
    few, cv = some_of(every, cv, first) if automatic else (every, cv)
    counted = left if automatic else samples.weights
    return make_task(
        model,
        samples=few,
        every=rows_in_memory(every),
        source=source,
        classes=labels.classes,
        class_prior=totals / totals.sum(),
        document_counts=document_counts(every.features, counted),
        weight=float(counted.sum()),
        units=column_units(every.features, left),
        home=rows.home or rows.device,
        generator=first,
        splitter=second,
        cv=cv,
    )


def read_batches(
    model: NonnegativeMixtureClassifier, X: object, y: object, sample_weight: object, groups: object
) -> TextTask:
    """Check batches: candidates are compared on some of the rows, and every pass reads the batches again."""
    checks.alone_with_batches(y=y, sample_weight=sample_weight, groups=groups)
    assert isinstance(X, Iterable)
    if not is_auto(model.solver):
        raise ValueError(
            f"solver={model.solver!r} does not support an X of batches. Use solver='auto', or pass all samples at "
            "once, as a sparse matrix if they are many."
        )
    cv = check_splits(model.cv)
    if not isinstance(cv, int):
        raise ValueError(f"cv must be a number of folds for an X of batches; got {model.cv!r}.")
    first, second = make_generators(model.random_state)
    classes, few, totals, document_counts, weight = scan_batches(model, X, first)
    few = replace(few, step=_chunk_size(model, few))
    return make_task(
        model,
        samples=few,
        every=rows_of_batches(model, X, classes, few.step),
        source=TensorSource(few.features, few.labels, few.shares, few.weights),
        classes=classes,
        class_prior=totals / totals.sum(),
        document_counts=document_counts,
        weight=weight,
        units=column_units(few.features, few.weights),
        home=None,
        generator=first,
        splitter=second,
        cv=cv,
    )


def make_task(model: NonnegativeMixtureClassifier, **samples: object) -> TextTask:
    """The task of checked samples, with the arguments of the estimator that have the same names."""
    names = {field.name for field in fields(TextTask)}
    arguments = {name: value for name, value in model.get_params(deep=False).items() if name in names}
    arguments["shared"] = bool(model.shared)
    arguments["validation_fraction"] = float(model.validation_fraction) if model.early_stopping else None
    arguments |= samples
    return TextTask(**arguments)


def select(model: NonnegativeMixtureClassifier, task: TextTask) -> Selected[TextTask]:
    """Compare candidates on some of the samples."""
    name = type(model).__name__
    if is_auto(model.solver):
        with candidates_shown(model.verbose, name):
            return TextSearch(task).run()
    search = UpdateSearch(task)
    with candidates_shown(model.verbose and search.n_candidates > 1, name):
        return search.run()


def train(chosen: Selected[TextTask]) -> FitResult:
    """Train with all samples, unless the search ended with a fit."""
    assert chosen.fit is not None
    (known,) = chosen.results or (None,)
    return known or chosen.fit(chosen.task)


def keep(model: NonnegativeMixtureClassifier, chosen: Selected[TextTask], result: FitResult) -> None:
    """Store a fit, with warnings; raise KeyboardInterrupt again if it was interrupted."""
    task, attributes, mixture = chosen.task, dict(chosen.attributes), result.mixture
    if task.home is not None:
        attributes, mixture = on_device(attributes, task.home), on_device(mixture, task.home)
    vars(model).update({"search_": chosen.table, **attributes})
    model.mixture_, model.n_bases_ = mixture, mixture.n_bases
    model.classes_, model.class_prior_ = task.classes, task.class_prior.numpy()
    model.n_components_ = torch.bincount(mixture.class_of, minlength=mixture.n_classes).cpu().numpy()
    keep_history(model, result)
    model.converged_ = result.outcome in (Outcome.CONVERGED, Outcome.HELD_OUT)
    model.validation_scores_ = cast("list[tuple[int, float]]", list(result.scores))
    raise_interruption(result)
    if result.outcome is Outcome.LIMIT and model.n_iter_ > 0 and not model.validation_scores_:
        fix = "" if is_auto(model.solver) else ", or use early_stopping=True or solver='accelerated'"
        checks.warn(
            f"{type(model).__name__} {result.outcome.value} (max_iter={model.max_iter}, tol={model.tol}); increase "
            f"max_iter or tol{fix}.",
            ConvergenceWarning,
        )


def make_generators(random_state: arguments.RandomState) -> tuple[torch.Generator, torch.Generator]:
    """Separate generators, so that initialisation does not depend on the number of held-out rows."""
    seeds = check_random_state(random_state).randint(2**31 - 1, size=2)
    first, second = (torch.Generator().manual_seed(int(seed)) for seed in seeds)
    return first, second


def _chunk_size(model: NonnegativeMixtureClassifier, samples: TextSamples) -> int:
    count = max(COMPONENTS) if is_auto(model.solver) else PLAIN_COMPONENTS
    count = count if is_auto(model.n_components) else cast("int", model.n_components)
    n_bases = count if model.shared else count * samples.n_classes
    limit = checks.memory_limit(model.memory_limit)
    return rows_per_chunk(n_bases, samples.features.shape[1], limit, samples.features.device)


def names_of_words(model: NonnegativeMixtureClassifier, given: object) -> np.ndarray:
    """The argument `feature_names` of `explain`; by default the features of the fit."""
    names = np.asarray(list_features(model) if given is None else given, dtype=object)
    if names.shape != (model.n_features_in_,):
        raise ValueError(
            f"feature_names must hold one name for each of the {model.n_features_in_} features; got shape "
            f"{names.shape}."
        )
    return names


def read_features(
    model: NonnegativeMixtureClassifier, X: object, reset: bool, training: bool = False
) -> tuple[Tensor, Rows]:
    """Checked features, dense in double precision or CSR, and the format of the results.

    Negative values are refused in training: the updates cannot take them, but predictions can.
    """
    name = type(model).__name__
    if is_batches(X):
        raise ValueError(
            f"{name} does not support an X of batches. Pass all samples at once, as a sparse matrix if they are many."
        )
    columns = None
    if sparse.issparse(X):
        kinds = [np.float64, np.float32]
        validate = cast("Callable[..., sparse.csr_array]", validate_data)  # scikit-learn declares X as text
        matrix = validate(model, X, reset=reset, accept_sparse="csr", dtype=kinds, ensure_all_finite=False)
        numbers, columns = matrix.data, lambda: matrix.indices
        values = from_scipy(matrix).to(checks.device(model.device, required=reset) or "cpu")
        rows = Rows(values, values.device, torch.float64, as_tensor=False)
    else:
        rows = read_rows(model, X, reset=reset)
        rows = rows.nearby() if reset else rows
        values = torch.from_numpy(np.array(rows.values, float)) if isinstance(rows.values, np.ndarray) else rows.values
        numbers = values = values.to(rows.device, torch.float64)
    named = partial(checks.column_name, model)
    checks.finite_features(numbers, columns, named, name)
    if training or reset:
        checks.non_negative_features(numbers, columns, named, name)
    return values, rows


def read_parts(
    estimator: NonnegativeMixtureClassifier, batches: Iterable[object], first_pass: bool = False
) -> Iterator[tuple[Tensor, np.ndarray, np.ndarray, Tensor]]:
    """Rows, the labels of the labeled rows, their mask, and weights, batch by batch."""
    is_first, n_batches = first_pass, 0
    for batch in named_batches(batches):
        try:
            features, rows = read_features(estimator, batch.X, reset=is_first, training=first_pass)
            weights = checks.sample_weight(batch.sample_weight, len(rows), all_rows=False)
            weights = torch.ones(len(rows), dtype=torch.float64) if weights is None else weights.cpu()
            if batch.y is None:
                raise ValueError(f"{type(estimator).__name__} needs batches of (X, y) or (X, y, sample_weight).")
            known, labeled = read_one_per_row(batch.y, len(rows), weights, estimator.unlabeled, "y of a batch")
        except ValueError as error:
            raise checks.unread(batch.origin, error) from error
        yield features, known, labeled, weights
        is_first, n_batches = False, n_batches + 1
    if not n_batches:
        raise checks.no_rows() if first_pass else checks.read_once(type(batches).__name__)


def scan_batches(
    estimator: NonnegativeMixtureClassifier, batches: Iterable[object], generator: torch.Generator
) -> tuple[np.ndarray, TextSamples, Tensor, Tensor, float]:
    """The first pass: classes, some samples drawn at random, weights of classes, of words, and of all rows."""
    parts: list[tuple[Tensor, np.ndarray, Tensor, Tensor]] = []  # rows, labels as objects, weights, keys
    weight, counts, totals = 0.0, None, {}
    for features, known, labeled, weights in read_parts(estimator, batches, first_pass=True):
        own = document_counts(features, weights)
        counts, weight = own if counts is None else counts + own, weight + float(weights.sum())
        for label, value in zip(known.tolist(), weights.numpy()[labeled].tolist(), strict=True):
            totals[label] = totals.get(label, 0.0) + value
        labels = np.full(len(weights), None, dtype=object)
        labels[labeled] = known
        keys = torch.rand(len(weights), generator=generator, dtype=torch.float64)
        parts = _smallest([*parts, (features, labels, weights, keys.masked_fill(weights <= 0, torch.inf))])
    assert counts is not None
    classes = checks.distinct(np.array(list(totals)))
    checks.enough_classes(classes, 0, type(estimator).__name__)
    rows, weights = stacked_rows([part[0] for part in parts]), torch.cat([part[2] for part in parts])
    labels = np.concatenate([part[1] for part in parts])
    is_known = np.array([label is not None for label in labels])
    numbers = ClassNumbers(classes).number(np.array(labels[is_known].tolist()), is_known)
    weights = torch.where(empty_rows(rows), 0.0, weights)
    few = TextSamples(rows, numbers, None, weights, len(classes))
    by_class = torch.tensor([totals[label] for label in classes.tolist()], dtype=torch.float64)
    return classes, few, by_class, counts, weight


def rows_of_batches(
    estimator: NonnegativeMixtureClassifier, batches: Iterable[object], classes: np.ndarray, step: int
) -> RowsUnder:
    """The rows of all batches under a transform, read again in every pass."""

    def rows_under(view: TransformedSamples) -> tuple[LabeledRows, LabeledRows | None]:
        def chunks(labeled_ones: bool) -> Iterator[ClassChunk]:
            """Chunks of the labeled or the unlabeled rows, without rows of zeros."""
            for features, known, labeled, weights in read_parts(estimator, batches):
                numbers = ClassNumbers(classes, advice=SAME_ROWS).number(known, labeled)
                rows = view.transformed(features)
                chosen = torch.from_numpy(labeled) == labeled_ones
                index = (chosen & (weights > 0) & ~empty_rows(features)).nonzero()[:, 0]
                if len(index):
                    for part in parts_of(pick(rows, index), numbers[index], weights[index], step):
                        yield chunk_of(*part)

        rows = with_totals(EveryPass(partial(chunks, True)))
        has_unlabeled = not bool(view.samples.known.all())
        return rows, with_totals(EveryPass(partial(chunks, False))) if has_unlabeled else None

    return rows_under


def _smallest(
    parts: list[tuple[Tensor, np.ndarray, Tensor, Tensor]],
) -> list[tuple[Tensor, np.ndarray, Tensor, Tensor]]:
    """The rows with the smallest keys, at most SELECTION_SAMPLES."""
    keys = torch.cat([part[3] for part in parts])
    limit = keys.kthvalue(SELECTION_SAMPLES).values if len(keys) > SELECTION_SAMPLES else keys.new_tensor(1.0)
    kept = []
    for rows, labels, weights, own in parts:
        index = (own <= limit).nonzero()[:, 0]
        if len(index):
            kept.append((pick(rows, index), labels[index.numpy()], weights[index], own[index]))
    return kept


def make_nonnegative_pipeline(
    n_basis: int = 100, *, nmf_max_iter: int = 200, random_state: arguments.RandomState = None, **options: Any
) -> Pipeline:
    """Create a pipeline of scikit-learn's NMF and a `NonnegativeMixtureClassifier` on its codes.

    The factorisation is fitted to the training set; other samples are coded with its basis fixed.

    Parameters
    ----------
    n_basis : int, default=100
        Number of columns of the codes.
    nmf_max_iter : int, default=200
        Maximum number of iterations of the factorisation. Codes need not be converged, so there is no warning.
    random_state : int, RandomState or None, default=None
        Seed of both steps.
    **options : dict
        Parameters of the classifier.

    Returns
    -------
    pipeline : sklearn.pipeline.Pipeline

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> model = make_nonnegative_pipeline(16, n_components=2, max_iter=100, random_state=0).fit(X[::2], y[::2])
    >>> bool(model.score(X[1::2], y[1::2]) > 0.85)
    True
    """
    coder = QuietNMF(
        n_components=cast("str", checks.count("n_basis", n_basis)),  # declared so by scikit-learn
        init="nndsvda",
        max_iter=nmf_max_iter,
        random_state=random_state,
    )
    return make_pipeline(coder, NonnegativeMixtureClassifier(**options, random_state=random_state))


class QuietNMF(NMF):
    """scikit-learn's NMF without its ConvergenceWarning, since codes are useful long before convergence.

    Its input is checked with messages that name `make_nonnegative_pipeline`.
    """

    def _check(self, X: object) -> None:
        rows = sparse.csr_array(X) if sparse.issparse(X) else np.asarray(X)
        if rows.ndim != 2 or rows.dtype.kind not in "fiu":
            return  # scikit-learn says what is wrong
        values, columns = (rows, None) if isinstance(rows, np.ndarray) else (rows.data, lambda: rows.indices)
        names = list(X.columns) if is_table(X) else None
        name = "make_nonnegative_pipeline"

        def named(column: int) -> str:
            return f"column {column}" if names is None else f"column {column} ({names[column]!r})"

        checks.finite_features(values, columns, named, name)
        checks.non_negative_features(values, columns, named, name)

    def fit_transform(self, X: Any, y: Any = None, W: Any = None, H: Any = None) -> Any:
        self._check(X)
        shape, count = tuple(checks.shape_of(X)), self.n_components
        if len(shape) == 2 and isinstance(count, Integral) and int(count) > min(shape):
            raise ValueError(
                f"n_basis must be at most min(n_samples, n_features) = {min(shape)} for X of shape {shape}; got "
                f"{count}."
            )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Maximum number of iterations", ConvergenceWarning)
            return super().fit_transform(X, y, W=W, H=H)

    def transform(self, X: Any) -> Any:
        self._check(X)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Maximum number of iterations", ConvergenceWarning)
            return super().transform(X)
