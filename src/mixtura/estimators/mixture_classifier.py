"""MixtureClassifier: every class is a Gaussian mixture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, field, replace
from typing import Any, ClassVar, cast

from sklearn.utils.metaestimators import available_if

from mixtura import checks
from mixtura.covariances import COVARIANCES
from mixtura.estimators import arguments
from mixtura.estimators.density_classifier import DensityClassifier, members_of
from mixtura.estimators.estimator import Estimator, check_fitted, fitting, with_constructor
from mixtura.estimators.frames import as_array
from mixtura.estimators.online import classifies_online, update_classifier
from mixtura.estimators.scikit_learn import classifier_from_sklearn, classifier_to_sklearn
from mixtura.estimators.training import Settings, continues, fit_data, keep, make_settings, read_training
from mixtura.files.registry import storable
from mixtura.model.mixture import MemberGroup
from mixtura.model.transforms import Transform, Warp
from mixtura.objectives import OBJECTIVES
from mixtura.roles import MixtureSolver, Objective, Structure
from mixtura.selection.automatic import AutomaticSearch
from mixtura.selection.task import HybridTraining, PriorChoice, is_auto
from mixtura.solvers import SOLVERS
from mixtura.solvers.em import RunningMoments


@storable("MixtureClassifier", check=check_fitted)
@with_constructor
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
    average : int, default=3
        Largest number of members: compared models whose class probabilities are averaged, where held-out samples gain
        by it (averaged-posterior). 1 keeps one model, and predictions then cost a third. Objective "joint" only.
    missing : {"auto", "ignorable", "informative"}, default="auto"
        Whether it tells something about the class which values are missing (missingness). "ignorable" leaves it out.
        "informative" multiplies the class posteriors by the probability of the missing values in each class, to a power
        that held-out samples choose (1 if nothing is selected). "auto" does so only if held-out samples gain by it
        significantly; if `n_components` is given, it means "ignorable". Densities, outlier scores, imputed values and
        generated samples do not depend on it.
    cv : int or splits, default=5
        Folds of the selection; a number, a scikit-learn splitter, or an iterable of pairs of index arrays.
    time_budget : float or None, default=None
        Seconds of the selection: no candidate is tried that would end later if it took as long as the last one, and
        one that takes longer is given up; the first is completed. Results then depend on the speed of the machine.
    class_prior : "empirical", "uniform", dict or array of shape (n_classes,), default="empirical"
        Class probabilities; "empirical" learns them.
    class_weight : None, "balanced" or dict of class to float, default=None
        Multiplies the sample weights.
    unlabeled : object, default=None
        The label of unlabeled samples, such as -1; np.nan means every missing label (NaN, None, pd.NA or masked); None
        means that every label is a class. In soft labels a row of NaN is unlabeled. A selection with 20 features or
        more uses unlabeled samples only where held-out labels gain by it (few-labels).
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
        The components of all classes, of the best member. So are all attributes and methods that are not about classes:
        `responsibilities`, `score_samples`, `sample`, `impute`, `bic`, outliers.
    members_ : list of MemberGroup
        The models whose class probabilities are averaged, each with its transform and its temperature, the best first.
    average_temperature_ : float
        The temperature of the average.
    n_components_ : array of shape (n_classes,)
        Components per class.
    search_ : SearchTable or None
        The candidates of the selection with their scores, and which are members; None if nothing was selected. Its
        `estimate` has the log-loss and the error rate to expect on new samples, corrected for the selection
        (honest-estimate).
    temperature_ : float
        The temperature of the class probabilities of the best member.
    label_noise_ : float
        The share of random labels (label-noise), 1 / (n + 1) for n held-out samples: it bounds the class
        probabilities of a model that was fitted to few samples. 0 unless the temperature was estimated.
    missingness_ : Missingness or None
        How often values are missing in each class, where that counts; None if it is ignorable. Set it to None to leave
        it out of a fitted model.
    warp_ : Warp or None
        The transform of the features.
    n_iter_ : int
        Number of iterations.
    converged_ : bool
        Whether the fits of all members converged.
    history_ : list of Record
        Objective of each iteration.
    n_parameters_ : int
        Number of free parameters of all members.
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

    n_components: arguments.Components = "auto"
    _: KW_ONLY
    covariance_type: str | Structure = "auto"
    rank: int | str = "auto"
    objective: object = "joint"
    solver: object = "auto"
    prior: PriorChoice = "auto"
    warp: str | Warp | None = "auto"
    temperature: float | str = "auto"
    average: int = 3
    missing: str = "auto"
    cv: object = 5
    time_budget: float | None = None
    class_prior: object = "empirical"
    class_weight: arguments.ClassWeight = None
    unlabeled: object = None
    categorical_features: object = "from_dtype"
    init: object = "kmeans"
    n_init: int = 1
    max_iter: int = 200
    tol: float = 1e-4
    device: arguments.Device = None
    memory_limit: arguments.MemoryLimit = None
    warm_start: bool = False
    random_state: arguments.RandomState = None
    verbose: int = 0
    checkpoint: arguments.PathName = None

    running_: RunningMoments | None = field(default=None, init=False)  # moments of `partial_fit`
    _arguments: ClassVar = {
        "n_components": checks.components_or_auto,
        "covariance_type": checks.among(COVARIANCES, ', "auto" or a structure such as mixtura.covariances.Tied')
        | checks.of_type(Structure)
        | checks.SILENT_AUTO,
        "warp": checks.among(("johnson", "auto"), ", None or a Warp") | checks.of_type(Transform | None),
        "average": checks.at_least(1),
        "objective": checks.among(OBJECTIVES, " or an objective object") | checks.of_type(Objective),
        "solver": checks.among(SOLVERS, ', "auto" or a solver object')
        | checks.of_type(MixtureSolver)
        | checks.SILENT_AUTO,
        "missing": checks.among(("auto", "ignorable", "informative")),
    }

    @fitting
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> MixtureClassifier:
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
        groups : array-like of shape (n_samples,), optional
            The group of each sample, such as a patient: samples of a group are never both in training and held out.

        Returns
        -------
        self : MixtureClassifier
        """
        settings, search = make_classifier_settings(self), make_classifier_search(self)
        data = read_training(self, settings, X, y, sample_weight, groups)
        keep(self, settings, data, *fit_data(self, data, settings, search))
        return self

    def _selected_settings(self) -> dict[str, object]:
        """Those of the best member: arguments give a single one."""
        return selected_settings(self) if is_auto(self.n_components) else {}

    @fitting
    def _fit_as_selected(self, model: Estimator, X: object, y: object, **weights: object) -> None:
        settings = make_classifier_settings(self, cast("MixtureClassifier", model), y)
        data = read_training(self, settings, X, y, weights.get("sample_weight"))
        keep(self, settings, data, *fit_data(self, data, settings, None))

    @available_if(classifies_online)
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, step: float | str = "decaying"
    ) -> Any:
        """Update the classifier with a batch of samples (stepwise EM); NaN means missing.

        The first batch is fitted as by `fit`, with at least four initialisations and one member. It should have many
        samples of most classes. Each later batch is one step of stepwise EM. After `fit` the best member is continued
        alone.

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
        self._check_arguments()
        settings, search = make_classifier_settings(self), make_classifier_search(self, average=1)
        update_classifier(self, settings, search, X, y, classes, sample_weight, step)
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


def selected_settings(model: MixtureClassifier) -> dict[str, object]:
    """The settings that the search of a fitted model has chosen, for its best member."""
    counts = model.n_components_.tolist()
    same = len(set(counts)) == 1
    chosen: dict[str, object] = {
        "n_components": counts[0] if same else dict(zip(model.classes_.tolist(), counts, strict=True)),
        "missing": "ignorable" if model.missingness_ is None else "informative",
    }
    if model.search_ is None:  # no sample could be held out
        return chosen
    what = model.search_.best.what
    chosen |= {name: what[name] for name in ("covariance_type", "prior", "warp") if is_auto(getattr(model, name))}
    return chosen | {"temperature": model.temperature_, "time_budget": None}


def make_classifier_settings(
    model: MixtureClassifier, chosen: MixtureClassifier | None = None, labels: object = None
) -> Settings:
    """The settings of a fit, with what was selected before if it continues, or by `chosen` for these labels."""
    on, solver, missing = continues(model), model.solver, model.missing
    settings = make_settings(
        model,
        covariance_type="full" if is_auto(model.covariance_type) else model.covariance_type,
        objective=OBJECTIVES[model.objective] if isinstance(model.objective, str) else model.objective,
        solver=None if is_auto(solver) else SOLVERS[solver] if isinstance(solver, str) else solver,
        temperature=1.0 if is_auto(model.temperature) else float(model.temperature),
        missing=missing if missing != "auto" or is_auto(model.n_components) else "ignorable",
    )
    if on:
        chosen, labels = model, None
    if chosen is None:
        return settings
    known = [{}] if chosen.search_ is None else [candidate.what for candidate in chosen.search_.members]
    first, *further = [
        _of_member(settings, chosen, member, what, labels)
        for member, what in zip(members_of(chosen), known, strict=False)  # the best alone, after partial_fit
    ]
    if on:
        first = replace(first, init=model)
    return replace(first, further=tuple(further), average_temperature=chosen.average_temperature_)


def _of_member(
    settings: Settings, chosen: MixtureClassifier, member: MemberGroup, what: Mapping[str, object], labels: object
) -> Settings:
    """The settings of a member of a fitted model, to continue it or to fit it to other samples."""
    if is_auto(chosen.n_components):
        counts = member.mixture.class_sizes
        if not settings.continues:
            counts = dict(zip(chosen.classes_.tolist(), counts, strict=True))
            if labels is not None and len(checks.shape_of(labels)) == 1:
                counts = {label: counts[label] for label in counts if label in set(as_array(labels).tolist())}
        missing = "ignorable" if chosen.missingness_ is None else "informative"
        prior = what.get("prior", settings.prior)
        settings = replace(settings, n_components=counts, prior=prior, missing=missing)
        if is_auto(chosen.covariance_type):
            settings = replace(settings, covariance_type=what.get("covariance_type", "full"))
        if is_auto(chosen.warp):
            settings = replace(settings, warp=what.get("warp"))
        settings = replace(
            settings,
            temperature=member.temperature,
            recoded="categories" in what,
            training=HybridTraining.from_what(what),
            weight=member.weight,
        )
    return replace(settings, init=member.mixture, warp=member.warp) if settings.continues else settings


def make_classifier_search(model: MixtureClassifier, average: int | None = None) -> AutomaticSearch | None:
    """The selection of what is "auto"; None if the number of components is given or continued."""
    if not is_auto(model.n_components) or continues(model):
        return None
    return AutomaticSearch(
        model.covariance_type,
        model.rank,
        model.prior,
        transforms=is_auto(model.warp),
        takes_temperature=is_auto(model.temperature),
        average=model.average if average is None else average,
        informative=model.missing == "informative",
        time_budget=model.time_budget,
    )
