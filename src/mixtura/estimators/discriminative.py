"""DiscriminativeMixtureClassifier: discriminative training, with penalties selected by cross-validation."""

from __future__ import annotations

from dataclasses import KW_ONLY, field
from typing import Any, ClassVar

from mixtura import checks
from mixtura.estimators import arguments
from mixtura.estimators.density_classifier import DensityClassifier
from mixtura.estimators.estimator import check_fitted, fitting, with_constructor
from mixtura.estimators.training import Settings, continues, fit_data, keep, make_settings, read_training
from mixtura.files.registry import storable
from mixtura.roles import Structure
from mixtura.selection.penalties import Growth, PenaltySearch, Setting, make_objective
from mixtura.selection.task import PriorChoice, is_auto


@storable("DiscriminativeMixtureClassifier", check=check_fitted)
@with_constructor
class DiscriminativeMixtureClassifier(DensityClassifier):
    """Classify with a Gaussian mixture per class, trained discriminatively (KJO03).

    It maximises the conditional likelihood of the classes by extended Baum-Welch. Unpenalised, this objective overfits:
    training error goes to zero. Two penalties prevent that: variances are shrunk towards a multiple of their expected
    values, and the means of components towards the mean of their class. Both are chosen together by cross-validation,
    unless `prior` is given.

    Parameters
    ----------
    n_components : int, dict or "auto", default=1
        Components per class; "auto" adds components while the held-out log-loss decreases.
    covariance_type : str or Structure, default="diag"
        As in `MixtureClassifier`.
    rank : int or "auto", default="auto"
        Rank of "low_rank".
    prior : str, Prior or None, default="auto"
        "auto" chooses the two penalties; otherwise a prior as in `MixtureClassifier`, such as
        `priors.Shrinkage(scale=3.0, mean_strength=10.0)`.
    tradeoff : float or "auto", default=0.0
        Weight of the likelihood of the samples in the objective: 0 is the conditional likelihood alone, 1 the
        likelihood alone. Above 0, unlabeled samples contribute. "auto" chooses it together with the penalties.
    cv : int, splitter or iterable of splits, default=5
        Folds by which penalties are compared; of an int only as many folds are used as hold out 800 samples.
    early_stopping : bool, default=False
        Whether held-out samples determine the number of iterations, which is then used with all samples. The fits that
        compare penalties stop early as well, each by its own held-out samples.
    validation_fraction : float, default=0.1
        Fraction of every class that early stopping holds out, if that is 20 samples or more.
    class_prior : {"empirical", "uniform"}, dict or array of shape (n_classes,), default="empirical"
        Class probabilities, learned or fixed.
    class_weight : dict, "balanced" or None, default=None
        Multiplies the sample weights.
    unlabeled : object, default=None
        Which labels mean "unlabeled", as in `MixtureClassifier`.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Categorical features, as in `MixtureClassifier`; the model has numbers in place of them (recoding).
    init : str or Mixture, default="kmeans"
        As in `MixtureClassifier`.
    n_init : int, default=1
        Number of initialisations; the fit with the largest objective is kept.
    max_iter : int, default=200
        Maximum number of iterations.
    tol : float or "auto", default="auto"
        Stop when the objective per sample changes by less; "auto" is 0.4 divided by the number of samples, from 1e-5
        to 1e-3.
    device : str, torch.device or None, default=None
        Device of the computation; None means that of X.
    memory_limit : int, str or None, default=None
        Limit of the temporary arrays, in bytes or as text like "256 MB"; None means 256 MB.
    warm_start : bool, default=False
        Go on from the last fit.
    random_state : int, RandomState or None, default=None
        Seed of the initialisation and the folds.
    verbose : int, default=0
        1 shows progress.
    checkpoint : str or path-like, optional
        A file that keeps the progress of a fit, as in `MixtureClassifier`.

    Attributes
    ----------
    prior_ : Prior
        The chosen penalties.
    tradeoff_ : float
        The chosen trade-off.
    search_ : SearchTable or None
        The settings that were compared.
    growth_ : tuple of Growth
        The components that were split to add others.
    validation_scores_ : list of (int, float)
        With early stopping, steps and the mean log posterior of the held-out labels after them.

    Examples
    --------
    >>> from mixtura import DiscriminativeMixtureClassifier
    >>> from mixtura.datasets import make_waveform
    >>> X, y = make_waveform(200, random_state=0)
    >>> model = DiscriminativeMixtureClassifier(random_state=0).fit(X, y)
    >>> bool(model.score(*make_waveform(1000, random_state=1)) > 0.8)
    True
    """

    n_components: arguments.Components = 1
    _: KW_ONLY
    covariance_type: str | Structure = "diag"
    rank: int | str = "auto"
    prior: PriorChoice = "auto"
    tradeoff: float | str = 0.0
    cv: object = 5
    early_stopping: bool = False
    validation_fraction: float = 0.1
    class_prior: object = "empirical"
    class_weight: arguments.ClassWeight = None
    unlabeled: object = None
    categorical_features: object = "from_dtype"
    init: object = "kmeans"
    n_init: int = 1
    max_iter: int = 200
    tol: float | str = "auto"
    device: arguments.Device = None
    memory_limit: arguments.MemoryLimit = None
    warm_start: bool = False
    random_state: arguments.RandomState = None
    verbose: int = 0
    checkpoint: arguments.PathName = None

    growth_: tuple[Growth, ...] = field(init=False)
    prior_: PriorChoice = field(init=False)
    tradeoff_: float = field(init=False)
    validation_scores_: list[tuple[int, float]] = field(init=False)
    _arguments: ClassVar = {"n_components": checks.components_or_auto, "tol": checks.NON_NEGATIVE | checks.AUTO}

    @fitting
    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None
    ) -> DiscriminativeMixtureClassifier:
        """Fit the classifier.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples; NaN means missing. Also an iterable of batches, as in `MixtureClassifier`.
        y : array-like of shape (n_samples,) or (n_samples, n_classes)
            Labels or soft labels.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative sample weights.
        groups : array-like of shape (n_samples,), optional
            The group of each sample, such as a patient: samples of a group are never both in training and held out.

        Returns
        -------
        self : DiscriminativeMixtureClassifier
        """
        settings, search = make_discriminative_settings(self), make_penalty_search(self)
        data = read_training(self, settings, X, y, sample_weight, groups)
        keep(self, settings, data, *fit_data(self, data, settings, search))
        return self

    def _selected_settings(self) -> dict[str, object]:
        counts = dict(zip(self.classes_.tolist(), self.n_components_.tolist(), strict=True))
        chosen: dict[str, object] = {"prior": self.prior_, "tradeoff": self.tradeoff_}
        return chosen | ({"n_components": counts} if is_auto(self.n_components) else {})


def make_discriminative_settings(model: DiscriminativeMixtureClassifier) -> Settings:
    """The settings; what is to be selected begins as one component per class and the default prior."""
    on, n_components = continues(model), model.n_components
    if is_auto(n_components):
        n_components = model.n_components_.tolist() if on else 1
    objective = make_objective(0.0 if is_auto(model.tradeoff) else float(model.tradeoff))
    tol = 0.0 if is_auto(model.tol) else float(model.tol)
    return make_settings(model, n_components=n_components, objective=objective, tol=tol)


def make_penalty_search(model: DiscriminativeMixtureClassifier) -> PenaltySearch:
    """The selection of what is "auto"; a fit that continues keeps the last one."""
    return PenaltySearch(
        prior=model.prior,
        tradeoff=model.tradeoff,
        tol=model.tol,
        known=Setting(model.prior_, model.tradeoff_) if continues(model) else None,
        table=model.search_ if continues(model) else None,
        early_stopping=model.early_stopping,
        validation_fraction=model.validation_fraction,
        grows=is_auto(model.n_components),
    )
