"""python -m benchmarks.mixed_features: numeric and categorical features, compared with one-hot encoding and boosting.

Passengers as on the Titanic: 800 samples, two numeric features (age and fare, a fifth of the ages missing) and three
categorical ones (sex, travel class, port). Survival depends on sex, class and age with their interactions, at the rates
of the real list. Every classifier is trained on 800 passengers and tested on 4000 others, ten times. All see the same
samples; log-loss and error rate are means with standard errors over the ten.
"""

from __future__ import annotations

import json
import platform
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sklearn
import torch
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from mixtura import MixtureClassifier, MixtureImputer

RESULTS = Path(__file__).parent / "results"
N_TRAIN, N_TEST, N_REPEATS = 800, 4000, 10
# Rates of the passenger list: share of each travel class, of women in it, and of survivors among women and men.
CLASSES = {"first": (0.24, 0.44, 0.97, 0.37), "second": (0.21, 0.41, 0.92, 0.16), "third": (0.55, 0.29, 0.50, 0.14)}
PORTS = {"first": (0.39, 0.01, 0.60), "second": (0.09, 0.02, 0.89), "third": (0.13, 0.15, 0.72)}
FARES = {"first": (4.2, 0.6), "second": (2.9, 0.4), "third": (2.4, 0.5)}  # of the logarithm
AGES = {"first": (38, 14), "second": (30, 14), "third": (25, 12)}


def passengers(n_samples: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Passengers and whether they survived."""
    rng = np.random.default_rng(seed)
    names = list(CLASSES)
    numbers = rng.choice(3, n_samples, p=[CLASSES[name][0] for name in names])
    travel = np.array(names)[numbers]
    female = rng.random(n_samples) < np.array([CLASSES[name][1] for name in travel])
    age = np.array([rng.normal(*AGES[name]) for name in travel]).clip(0.5, 80)
    fare = np.exp([rng.normal(*FARES[name]) for name in travel])
    port = np.array([rng.choice(["Cherbourg", "Queenstown", "Southampton"], p=PORTS[name]) for name in travel])
    rate = np.where(female, [CLASSES[name][2] for name in travel], [CLASSES[name][3] for name in travel])
    rate = np.where((age < 12) & (travel != "third"), 0.95, np.where(age < 12, 0.4, rate))
    survived = rng.random(n_samples) < rate
    frame = pd.DataFrame(
        {
            "age": np.where(rng.random(n_samples) < 0.2, np.nan, age),
            "fare": fare,
            "sex": pd.Categorical(np.where(female, "female", "male")),
            "class": pd.Categorical(travel, categories=names),
            "port": pd.Categorical(port),
        }
    )
    return frame, np.where(survived, "survived", "died")


def one_hot(classifier: Any, scaled: bool = False) -> Any:
    """A classifier behind one-hot coding; numeric features are passed on, or scaled."""
    categories = (OneHotEncoder(sparse_output=False), make_column_selector(dtype_include="category"))
    numeric = (StandardScaler() if scaled else "passthrough", make_column_selector(dtype_include="number"))
    return make_pipeline(make_column_transformer(numeric, categories), classifier)


def classifiers() -> dict[str, Any]:
    """Every classifier by its name in the table."""
    models: dict[str, Any] = {
        "mixture, categorical features, default": MixtureClassifier(random_state=0),
        "mixture, one-hot coding, default": one_hot(MixtureClassifier(random_state=0)),
    }
    for n in (1, 2, 3, 4):
        models[f"mixture, categorical features, {n} per class"] = MixtureClassifier(n, warp="johnson", random_state=0)
    for n in (1, 2, 3, 4):
        models[f"mixture, one-hot coding, {n} per class"] = one_hot(MixtureClassifier(n, random_state=0))
    counts = {"n_components": [1, 2, 3, 4]}
    models["mixture, categorical features, cross-validated"] = GridSearchCV(
        MixtureClassifier(warp="johnson", random_state=0), counts, scoring="neg_log_loss"
    )
    models["mixture, one-hot coding, cross-validated"] = GridSearchCV(
        one_hot(MixtureClassifier(random_state=0)),
        {f"mixtureclassifier__{name}": values for name, values in counts.items()},
        scoring="neg_log_loss",
    )
    models["boosting, native categories"] = HistGradientBoostingClassifier(
        categorical_features="from_dtype", random_state=0
    )
    models["boosting, native categories, early stopping"] = HistGradientBoostingClassifier(
        categorical_features="from_dtype", early_stopping=True, learning_rate=0.05, random_state=0
    )
    models["logistic regression, one-hot coding"] = one_hot(
        make_pipeline(MixtureImputer(), LogisticRegression()), scaled=True
    )
    return models


def measured() -> dict[str, dict[str, list[float]]]:
    """Log-losses and error rates of every repeat."""
    table: dict[str, dict[str, list[float]]] = {name: {"log_loss": [], "error": []} for name in classifiers()}
    for repeat in range(N_REPEATS):
        X, y = passengers(N_TRAIN, 2 * repeat)
        X_test, y_test = passengers(N_TEST, 2 * repeat + 1)
        for name, model in classifiers().items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fitted = model.fit(X, y)
            table[name]["log_loss"].append(
                float(log_loss(y_test, fitted.predict_proba(X_test), labels=fitted.classes_))
            )
            table[name]["error"].append(float((fitted.predict(X_test) != y_test).mean()))
    return table


def main() -> None:
    table = measured()
    lines = ["| classifier | log-loss | error rate, % |", "|---|---|---|"]
    for name, scores in table.items():
        cells = [
            f"{factor * np.mean(v):.{d}f} ± {factor * np.std(v, ddof=1) / np.sqrt(len(v)):.{d}f}"
            for v, factor, d in ((scores["log_loss"], 1, 4), (scores["error"], 100, 2))
        ]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} |")
    versions = f"scikit-learn {sklearn.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    head = f"{N_TRAIN} training and {N_TEST} test samples, {N_REPEATS} repeats, mean ± standard error; {versions}."
    text = "\n".join(["# Numeric and categorical features together", "", head, "", *lines, ""])
    (RESULTS / "mixed_features.md").write_text(text, "utf-8")
    (RESULTS / "mixed_features.json").write_text(json.dumps(table, indent=1), "utf-8")
    print(text)


if __name__ == "__main__":
    main()
