"""A search over the settings of HybridMixtureClassifier by Optuna (the extra `tune`)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.base import clone

from mixtura import checks
from mixtura.estimators.hybrid import HybridMixtureClassifier
from mixtura.selection.table import ScoredCandidate, SearchTable

# RPTP18 searched the logit of the trade-off between these, margins from 0.01 to 100, and ranks up to 25.
LOGITS = (-7.0, 7.0)
MARGINS = (1e-1, 1e2)
LEARNING_RATES = (1e-4, 1e-2)
LARGEST_RANK = 25


def tune(
    estimator: HybridMixtureClassifier,
    X: Any,
    y: Any,
    *,
    n_trials: int = 50,
    study: Any = None,
    sample_weight: Any = None,
    X_val: Any = None,
    y_val: Any = None,
) -> HybridMixtureClassifier:
    """Search the parameters of a `HybridMixtureClassifier` with Optuna, and fit it with the best ones.

    The search covers the trade-off, the learning rate, the margin (for `discriminative="margin"`) and the rank (for
    low-rank covariances). All trials hold out the same samples.

    Parameters
    ----------
    estimator : HybridMixtureClassifier
        Estimator whose other parameters are used; it is not changed.
    X : array-like of shape (n_samples, n_features)
        Samples.
    y : array-like of shape (n_samples,)
        Labels.
    n_trials : int, default=50
        Number of trials.
    study : optuna.Study, optional
        A study to continue, with direction="maximize"; None creates one from the `random_state` of the estimator.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative sample weights.
    X_val : array-like of shape (n_validation, n_features), optional
        Validation samples; held-out samples if None.
    y_val : array-like of shape (n_validation,), optional
        Labels of the validation samples.

    Returns
    -------
    model : HybridMixtureClassifier
        Fitted with the best parameters; `search_` holds all trials.
    """
    if not isinstance(estimator, HybridMixtureClassifier):
        raise TypeError(f"tune needs a HybridMixtureClassifier; got {type(estimator).__name__}.")
    checks.count("n_trials", n_trials)
    study = _checked_study(study, estimator)

    def score(trial: Any) -> float:
        candidate: Any = clone(estimator)
        candidate.set_params(**_drawn(trial, estimator, X))
        candidate.fit(X, y, sample_weight, X_val, y_val)
        if not candidate.validation_scores_:
            raise ValueError(
                "tune needs held-out samples, but there are too few labeled samples; pass X_val and y_val, or increase "
                "validation_fraction."
            )
        best = max(score for _, score in candidate.validation_scores_)
        trial.set_user_attr("log_loss", -best[-1])
        return best[0] + 1e-3 * max(best[-1], -1e2)  # errors first; log-losses between equal errors

    with _quiet(not estimator.verbose):
        study.optimize(score, n_trials=n_trials)
    final: Any = clone(estimator)
    final.set_params(**_settings(study.best_params))
    final.fit(X, y, sample_weight, X_val, y_val)
    trials = [trial for trial in study.trials if trial.value is not None]
    candidates = [
        ScoredCandidate(_settings(t.params), t.user_attrs["log_loss"], math.nan, t.duration.total_seconds())
        for t in trials
    ]
    numbers = [trial.number for trial in trials]
    final.search_ = SearchTable("log_loss", tuple(candidates), numbers.index(study.best_trial.number))
    return final


def _checked_study(study: Any, estimator: HybridMixtureClassifier) -> Any:
    """The study to continue, or a new one."""
    try:
        import optuna
    except ImportError as error:
        raise ImportError("tune needs optuna; install it with: pip install 'mixtura[tune]'") from error
    if study is not None:
        if not isinstance(study, optuna.Study):
            raise TypeError(f"study must be None or an optuna.Study; got {study!r}.")
        if study.directions != [optuna.study.StudyDirection.MAXIMIZE]:
            raise ValueError("study must maximise one score; create it with optuna.create_study(direction='maximize').")
        return study
    seed = estimator.random_state if isinstance(estimator.random_state, int) else None
    with _quiet(not estimator.verbose):
        return optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))


@contextmanager
def _quiet(quiet: bool) -> Iterator[None]:
    """Warnings of Optuna only, or a line for each trial."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING if quiet else optuna.logging.INFO)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _drawn(trial: Any, estimator: HybridMixtureClassifier, X: Any) -> dict[str, Any]:
    """Draw one set of settings, without those that the estimator does not use."""
    drawn = {
        "logit_of_tradeoff": trial.suggest_float("logit_of_tradeoff", *LOGITS),
        "learning_rate": trial.suggest_float("learning_rate", *LEARNING_RATES, log=True),
    }
    if estimator.discriminative == "margin":
        drawn["margin"] = trial.suggest_float("margin", *MARGINS, log=True)
    if estimator.covariance_type in ("low_rank", "low_rank_precision"):
        drawn["rank"] = trial.suggest_int("rank", 1, max(1, min(LARGEST_RANK, np.shape(X)[1] - 1)))
    return _settings(drawn)


def _settings(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters of a trial as arguments of the estimator."""
    settings = dict(parameters)
    return {"tradeoff": 1 / (1 + math.exp(-settings.pop("logit_of_tradeoff"))), **settings}
