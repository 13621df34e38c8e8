"""
Numeric and categorical features together
=========================================

Passengers have age, fare, sex and class of travel, with missing values. One likelihood covers all features.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from mixtura import MixtureClassifier
from mixtura.plotting import ExplanationDisplay, MixtureDisplay, ReliabilityDisplay

RATES = {"first": (0.97, 0.37), "second": (0.92, 0.16), "third": (0.50, 0.14)}  # survivors among women and men


def passengers(n_samples: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    travel = rng.choice(list(RATES), n_samples, p=[0.24, 0.21, 0.55])
    female = rng.random(n_samples) < 0.36
    rates = np.array([RATES[name][0 if woman else 1] for name, woman in zip(travel, female, strict=True)])
    frame = pd.DataFrame(
        {
            "age": rng.normal(np.where(travel == "first", 38, 27), 13).clip(1, 80),
            "fare": np.exp(rng.normal(np.where(travel == "first", 4.2, 2.6), 0.5)),
            "sex": np.where(female, "female", "male"),
            "class": pd.Categorical(travel),
        }
    )
    frame.loc[rng.random(n_samples) < 0.2, "age"] = np.nan
    frame.loc[rng.random(n_samples) < 0.05, "sex"] = None
    return frame, np.where(rng.random(n_samples) < rates, "survived", "died")


X, y = passengers(800, 0)
X_test, y_test = passengers(2000, 1)
print(X.head())

# %%
# Columns of text and categories are recognised by their types; ``categorical_features`` names others.
model = MixtureClassifier(3, warp="johnson", random_state=0, max_iter=500).fit(X, y)
print(model.summary(X_test, y_test))

# %%
# Which features matter: the log-loss without each of them.
print(model.feature_importances(X_test, y_test).round(3))

# %%
# Missing values, numbers and categories alike, are estimated from the observed ones.
unknown = X_test[X_test["sex"].isna()]
print(model.impute(unknown).head(3))

# %%
# Why a passenger of unknown sex is predicted to survive, or not.
explanation = model.explain(unknown.iloc[:1], classes="survived")
print(explanation)

# %%
# Pictures, with the categories integrated out where two numeric features are drawn.
figure, axes = plt.subplots(1, 4, figsize=(24, 5), layout="constrained")
explanation.plot(axes[0])
ExplanationDisplay.from_estimator(model, X_test[:400], classes="survived", ax=axes[1])
MixtureDisplay.from_estimator(model, X_test[:300], y_test[:300], features=("age", "fare"), ax=axes[2])
axes[2].set(title="age and fare, sex and class integrated out", ylim=(0, 150))
ReliabilityDisplay.from_estimator(model, X_test, y_test, ax=axes[3])
if len(sys.argv) > 1:  # a folder for the picture
    figure.savefig(Path(sys.argv[1]) / "mixed_features.png", dpi=55)
plt.show()
