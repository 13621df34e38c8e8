"""DiscriminativeMixtureClassifier: discriminative training, with penalties selected by cross-validation."""

from __future__ import annotations

from typing import Any

import numpy as np

from mixtura import checks
from mixtura.estimators.estimator import check_fitted
from mixtura.estimators.mixture_classifier import MixtureClassifier
from mixtura.files.registry import storable
from mixtura.roles import Objective
from mixtura.selection.discriminative_fits import Growth, Setting, make_objective
from mixtura.selection.penalties import PenaltySearch
from mixtura.selection.plan import Plan, is_auto
from mixtura.selection.table import SearchTable


@storable("DiscriminativeMixtureClassifier", check=check_fitted)
class DiscriminativeMixtureClassifier(MixtureClassifier):
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
    class_prior : {"empirical", "uniform"} or array of shape (n_classes,), default="empirical"
        Class probabilities, learned or fixed.
    class_weight : dict, "balanced" or None, default=None
        Multiplies the sample weights.
    unlabeled : object, default=None
        Which labels mean "unlabeled", as in `MixtureClassifier`.
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

    search_: SearchTable | None
    growth_: tuple[Growth, ...]
    prior_: Any
    tradeoff_: float
    validation_scores_: list[tuple[int, float]]

    def __init__(
        self,
        n_components: Any = 1,
        *,
        covariance_type: Any = "diag",
        rank: Any = "auto",
        prior: Any = "auto",
        tradeoff: Any = 0.0,
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
        memory_limit: Any = None,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
        checkpoint: Any = None,
    ):
        super().__init__(
            n_components,
            covariance_type=covariance_type,
            rank=rank,
            objective="conditional",
            solver="baum_welch",
            prior=prior,
            class_prior=class_prior,
            class_weight=class_weight,
            unlabeled=unlabeled,
            init=init,
            n_init=n_init,
            max_iter=max_iter,
            tol=tol,
            device=device,
            memory_limit=memory_limit,
            warm_start=warm_start,
            random_state=random_state,
            verbose=verbose,
            checkpoint=checkpoint,
        )
        self.tradeoff = tradeoff
        self.cv = cv
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction

    def _objective(self) -> Objective:
        share = 0.0 if is_auto(self.tradeoff) else checks.share("tradeoff", self.tradeoff, ' or "auto"')
        checks.switch("early_stopping", self.early_stopping)
        checks.fraction("validation_fraction", self.validation_fraction)
        return make_objective(share)

    def _limits(self, plan: Plan) -> tuple[int, float]:
        """max_iter and tol; by default tol changes the log posterior of all labels by less than 0.4."""
        tol = min(max(0.4 / plan.description.weight, 1e-5), 1e-3) if is_auto(self.tol) else self.tol
        return checks.count("max_iter", self.max_iter, 0), checks.non_negative("tol", tol)

    def _wanted(self, classes: np.ndarray) -> tuple[Any, Any]:
        """Placeholders for arguments "auto": one component per class and the default prior."""
        n_components = self.n_components
        if is_auto(n_components):
            known = self.n_components_.tolist() if self._goes_on else [1] * len(classes)
            n_components = dict(zip(classes.tolist(), known, strict=False))
        return n_components, "default" if is_auto(self.prior) else self.prior

    def _selected_settings(self) -> dict[str, Any]:
        counts = dict(zip(self.classes_.tolist(), self.n_components_.tolist(), strict=True))
        chosen = {"prior": self.prior_, "tradeoff": self.tradeoff_}
        return chosen | ({"n_components": counts} if is_auto(self.n_components) else {})

    def _search(self, plan: Plan) -> PenaltySearch:
        checks.no_categories(type(self).__name__, self.encoding_)
        return PenaltySearch(
            prior=self.prior,
            tradeoff=self.tradeoff,
            known=Setting(self.prior_, self.tradeoff_) if self._goes_on else None,
            cv=self._cv,
            early_stopping=bool(self.early_stopping),
            validation_fraction=self.validation_fraction,
            grows=is_auto(self.n_components),
            limits=self._limits(plan),
            n_init=self._n_starts(),
            new_start=lambda part, problem: self._new_start(part, self.init, problem),
            first_start=lambda part, problem: self._new_start(part, "kmeans", problem),
        )
