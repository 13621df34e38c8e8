"""A search over the settings of HybridMixtureClassifier by Optuna (the extra `tune`)."""

from __future__ import annotations

import math
from typing import Any

from sklearn.base import clone

from mixtura import checks

# RPTP18 searched the logit of the trade-off between these, margins from 0.01 to 100, and ranks up to 25.
LOGITS = (-7.0, 7.0)
MARGINS = (1e-1, 1e2)
LEARNING_RATES = (1e-4, 1e-2)
LARGEST_RANK = 25


def tuned(estimator: Any, X: Any, y: Any, sample_weight: Any, X_val: Any, y_val: Any) -> Any:
    """Fit the estimator with the settings that predict the rows kept out best; all trials keep the same rows out."""
    study = _study(estimator)
    n_trials = checks.count("tune", estimator.tune) if isinstance(estimator.tune, int) else 0

    def score(trial: Any) -> float:
        candidate: Any = clone(estimator)
        candidate.set_params(tune=None, refit=False, **_drawn(trial, estimator, X))
        candidate.fit(X, y, sample_weight, X_val, y_val)
        if not candidate.validation_scores_:
            raise ValueError(
                "tune needs rows that are kept out, but there are too few labeled ones for that; pass X_val and y_val, "
                "or raise validation_fraction."
            )
        (scores,) = candidate.validation_scores_.values()
        best = max(scores)
        return best[0] + 1e-3 * max(best[-1], -1e2)  # errors first; log-losses between equal errors

    study.optimize(score, n_trials=n_trials or None)
    estimator.study_, estimator.best_params_ = study, _settings(study.best_params)
    final: Any = clone(estimator)
    final.set_params(tune=None, **estimator.best_params_)
    final.fit(X, y, sample_weight, X_val, y_val)
    for name, value in vars(final).items():
        if name.endswith("_") and not name.endswith("__"):
            setattr(estimator, name, value)
    return estimator


def _study(estimator: Any) -> Any:
    if not isinstance(estimator.tune, int) or isinstance(estimator.tune, bool):
        if hasattr(estimator.tune, "optimize"):
            return estimator.tune
        raise ValueError(f"tune must be None, a number of trials or an optuna study; got {estimator.tune!r}.")
    try:
        import optuna
    except ImportError as error:
        raise ImportError("tune needs optuna; install it with: pip install 'mixtura[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.INFO if estimator.verbose else optuna.logging.WARNING)
    seed = estimator.random_state if isinstance(estimator.random_state, int) else None
    return optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))


def _drawn(trial: Any, estimator: Any, X: Any) -> dict[str, Any]:
    """One set of settings; what the estimator does not use is not searched."""
    drawn = {
        "tradeoff": trial.suggest_float("logit_of_tradeoff", *LOGITS),
        "learning_rate": trial.suggest_float("learning_rate", *LEARNING_RATES, log=True),
    }
    if estimator.discriminative == "margin":
        drawn["margin"] = trial.suggest_float("margin", *MARGINS, log=True)
    if estimator.covariance_type in ("low_rank", "low_rank_precision"):
        drawn["rank"] = trial.suggest_int("rank", 1, max(1, min(LARGEST_RANK, X.shape[1] - 1)))
    return {**drawn, "tradeoff": _sigmoid(drawn["tradeoff"])}


def _settings(found: dict[str, Any]) -> dict[str, Any]:
    settings = dict(found)
    return {"tradeoff": _sigmoid(settings.pop("logit_of_tradeoff")), **settings}


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))
