"""HybridMixtureClassifier: mixtures trained by a generative and a discriminative objective (RPTP18)."""

from __future__ import annotations

from dataclasses import KW_ONLY, field, replace
from typing import Any, ClassVar

import numpy as np
from sklearn.utils import check_random_state

from mixtura import checks
from mixtura.estimators import arguments
from mixtura.estimators.density_classifier import DensityClassifier
from mixtura.estimators.estimator import check_fitted, fitting, with_constructor
from mixtura.estimators.training import fit_data, keep, make_settings, read_training, read_validation
from mixtura.files.registry import storable
from mixtura.objectives import Conditional, Hybrid, Margin
from mixtura.roles import Structure
from mixtura.selection.task import PriorChoice, is_auto
from mixtura.selection.tradeoffs import PATH, TradeoffSearch
from mixtura.solvers import Gradient

DISCRIMINATIVE = ("margin", "conditional")


@storable("HybridMixtureClassifier", check=check_fitted)
@with_constructor
class HybridMixtureClassifier(DensityClassifier):
    """Classify with a Gaussian mixture per class, trained by a generative and a discriminative objective.

    It maximises tradeoff * likelihood + (1 - tradeoff) * discriminative (hybrid-objective) by Adam on minibatches,
    starting from a mixture fitted by EM. The model has a density: missing values, unlabeled samples, `sample`, `impute`
    and `score_samples` work as in `MixtureClassifier`. The larger the trade-off, the better the density estimate.

    Part of the labeled samples is held out to select the trade-off and the number of epochs; then the model is refitted
    to all samples. Pass `X_val` and `y_val` to `fit` to use a given validation set.

    Parameters
    ----------
    n_components : int or dict, default=1
        Components per class.
    covariance_type : str or Structure, default="full"
        As in `MixtureClassifier`.
    rank : int or "auto", default="auto"
        Rank of "low_rank" and "low_rank_precision".
    tradeoff : float or "auto", default="auto"
        1 is generative, 0 discriminative; "auto" compares 1, 0.5, 0.1 and 0.01 on the held-out samples.
    discriminative : {"margin", "conditional"}, default="margin"
        Large margin, or the log-likelihood of the classes given the samples.
    margin : float or "auto", default="auto"
        Target margin of log p(x, c) over the best other class; "auto" is the median margin of the initial mixture, at
        least 1.
    unlabeled_weight : float, default=1.0
        Weight of an unlabeled sample in the likelihood.
    prior : str, Prior or None, default="default"
        As in `MixtureClassifier`. The log prior is multiplied by the trade-off, as the likelihood is.
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
    max_iter : int, default=200
        Largest number of EM iterations for the start.
    validation_fraction : float or None, default=0.1
        Fraction of every class that is held out, if that is 20 samples or more. None holds out nothing, and
        `tradeoff="auto"` is then 0.5.
    n_epochs : int, default=50
        Largest number of epochs; training stops after 10 epochs without a better score of the held-out samples.
    batch_size : int, default=100
        Samples of a minibatch.
    learning_rate : float, default=1e-3
        Of Adam, in units of standardised features.
    checkpoint : str or path-like, optional
        A file that keeps the progress of a fit, as in `MixtureClassifier`.
    device : str, torch.device or None, default=None
        Device of the computation; None means that of X.
    memory_limit : int, str or None, default=None
        Limit of the temporary arrays, in bytes or as text like "256 MB"; None means 256 MB.
    warm_start : bool, default=False
        Go on from the last fit.
    random_state : int, RandomState or None, default=None
        Seed of the start, the held-out samples and the minibatches.
    verbose : int, default=0
        1 shows progress.

    Attributes
    ----------
    tradeoff_ : float
        The trade-off of the fitted mixture.
    margin_ : float or None
        The target margin.
    n_epochs_ : int
        Epochs of the fitted mixture.
    search_ : SearchTable or None
        The trade-offs that were compared.
    validation_scores_ : list of (int, tuple)
        Epochs and the scores of the held-out samples after them, for the chosen trade-off: accuracy - 1 and mean log
        posterior of the class, or the latter alone.

    Examples
    --------
    >>> from mixtura import HybridMixtureClassifier
    >>> from mixtura.datasets import make_ripley
    >>> X, y = make_ripley(125, random_state=0)
    >>> model = HybridMixtureClassifier(2, n_epochs=10, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.85)
    True
    """

    n_components: arguments.Components = 1
    _: KW_ONLY
    covariance_type: str | Structure = "full"
    rank: int | str = "auto"
    tradeoff: float | str = "auto"
    discriminative: str = "margin"
    margin: float | str = "auto"
    unlabeled_weight: float = 1.0
    prior: PriorChoice = "default"
    class_prior: object = "empirical"
    class_weight: arguments.ClassWeight = None
    unlabeled: object = None
    categorical_features: object = "from_dtype"
    init: object = "kmeans"
    max_iter: int = 200
    validation_fraction: float | None = 0.1
    n_epochs: int = 50
    batch_size: int = 100
    learning_rate: float = 1e-3
    checkpoint: arguments.PathName = None
    device: arguments.Device = None
    memory_limit: arguments.MemoryLimit = None
    warm_start: bool = False
    random_state: arguments.RandomState = None
    verbose: int = 0

    tradeoff_: float = field(init=False)
    margin_: float | None = field(init=False)
    n_epochs_: int = field(init=False)
    validation_scores_: list[tuple[int, tuple[float, ...]]] = field(init=False)
    _arguments: ClassVar = {
        "discriminative": checks.among(DISCRIMINATIVE),
        "margin": checks.POSITIVE | checks.AUTO,
        "unlabeled_weight": checks.NON_NEGATIVE,
        "validation_fraction": checks.FRACTION | checks.NONE,
        "n_epochs": checks.at_least(0),
        "batch_size": checks.at_least(1),
        "learning_rate": checks.POSITIVE,
    }

    @fitting
    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, X_val: Any = None, y_val: Any = None, groups: Any = None
    ) -> HybridMixtureClassifier:
        """Fit the mixture.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples; NaN means missing. All samples are held in memory.
        y : array-like of shape (n_samples,) or (n_samples, n_classes)
            Labels or soft labels.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative sample weights.
        X_val : array-like of shape (n_validation, n_features), optional
            Validation set to select the trade-off and the number of epochs, instead of `validation_fraction`. The
            model is then not refitted.
        y_val : array-like of shape (n_validation,), optional
            Labels of the validation set.
        groups : array-like of shape (n_samples,), optional
            The group of each sample, such as a patient: samples of a group are never both in training and held out.

        Returns
        -------
        self : HybridMixtureClassifier
        """
        objective = make_objective(self)
        settings, search = make_settings(self, objective=objective), make_tradeoff_search(self, objective)
        data = read_training(self, settings, X, y, sample_weight, groups)
        if X_val is not None:
            data = replace(data, held_out=read_validation(self, data, X_val, y_val))
        keep(self, settings, data, *fit_data(self, data, settings, search))
        return self

    def _selected_settings(self) -> dict[str, object]:
        """The copy holds nothing out: it trains for the selected number of epochs."""
        margin = self.margin if self.margin_ is None else self.margin_
        return {"tradeoff": self.tradeoff_, "margin": margin, "n_epochs": self.n_epochs_, "validation_fraction": None}


def make_objective(model: HybridMixtureClassifier) -> Hybrid:
    """The objective, with placeholders for a trade-off and a margin that are selected later."""
    margin = 1.0 if is_auto(model.margin) else float(model.margin)
    tradeoff = PATH[0] if is_auto(model.tradeoff) else float(model.tradeoff)
    other = Margin(margin) if model.discriminative == "margin" else Conditional()
    return Hybrid(tradeoff, other, float(model.unlabeled_weight))


def make_tradeoff_search(model: HybridMixtureClassifier, objective: Hybrid) -> TradeoffSearch:
    """The selection of what is "auto", and of the number of epochs."""
    random_state = check_random_state(model.random_state)
    random_state.randint(np.iinfo(np.int32).max)  # the seed of the start
    return TradeoffSearch(
        objective=objective,
        selects_tradeoff=is_auto(model.tradeoff),
        selects_margin=model.discriminative == "margin" and is_auto(model.margin),
        prior="default" if is_auto(model.prior) else model.prior,
        solver=Gradient("adam", float(model.learning_rate), batch_size=model.batch_size),
        n_epochs=model.n_epochs,
        validation_fraction=None if model.validation_fraction is None else float(model.validation_fraction),
        seed=int(random_state.randint(2**31 - 1)),
    )
