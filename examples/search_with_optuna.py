"""
Search the settings of the hybrid classifier with Optuna
========================================================

`HybridMixtureClassifier` selects its trade-off and its epoch by itself. This search (`pip install optuna`) covers the
learning rate, the margin and the rank of low-rank covariances as well. All trials hold out the same samples: those that
the estimator itself holds out.
"""

import math

import matplotlib.pyplot as plt
import optuna
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split

from mixtura import HybridMixtureClassifier

X, y = load_wine(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)


def settings_of(trial):
    """Draw one set of settings; the ranges are those of Roth et al. (2018), with margins from 0.1 on."""
    return {
        "tradeoff": 1 / (1 + math.exp(-trial.suggest_float("logit_of_tradeoff", -7.0, 7.0))),
        "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
        "margin": trial.suggest_float("margin", 1e-1, 1e2, log=True),
        "rank": trial.suggest_int("rank", 1, 4),
    }


def fitted(trial):
    model = HybridMixtureClassifier(
        1, covariance_type="low_rank", n_epochs=10, validation_fraction=0.25, random_state=0
    )
    return model.set_params(**settings_of(trial)).fit(X_train, y_train)


def score(trial):
    """Accuracy of the held-out samples; their log-loss decides between equal ones."""
    accuracy, *_, negative_log_loss = max(score for _, score in fitted(trial).validation_scores_)
    return accuracy + 1e-3 * max(negative_log_loss, -100.0)


optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
study.optimize(score, n_trials=10)
model = fitted(study.best_trial)
print(settings_of(study.best_trial))
print(f"test error {1 - model.score(X_test, y_test):.3f}")

# %%
# What the trials found
errors = [-100 * trial.value for trial in study.trials]
figure, axis = plt.subplots(figsize=(6, 3.4), layout="constrained")
axis.plot(errors, "o", label="a trial")
axis.step(range(10), [min(errors[: n + 1]) for n in range(10)], "--", where="post", label="the best so far")
axis.set(xlabel="trial", ylabel="error of held-out samples, %")
axis.legend(frameon=False)
plt.show()
