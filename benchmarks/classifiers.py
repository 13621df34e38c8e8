"""Classifiers of the benchmark of the defaults: this library's default, and others as their careful users run them.

Each is a function of training rows, class numbers and folds that returns a function from rows to class probabilities.
Rows are a data frame whose categorical columns have that type. The folds, of training rows alone, serve to choose what
users of a method choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from mixtura import MixtureClassifier

Folds = list[tuple[np.ndarray, np.ndarray]]
Predict = Callable[[pd.DataFrame], np.ndarray]
Fit = Callable[..., Predict]  # of rows, class numbers and folds; ours also of groups
OURS = "MixtureClassifier()"
IMPUTED = ", imputed"  # with medians and indicators in place of native support of missing values
MOST_TREES, PATIENCE, RATE = 500, 30, 0.05  # of boosting: the number of trees is chosen


def log_loss(probabilities: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(probabilities[np.arange(len(y)), y].clip(1e-15)).mean())


def spread(probabilities: np.ndarray, classes: np.ndarray, n_classes: int) -> np.ndarray:
    """Columns for all classes, where some were not in the training rows."""
    wide = np.zeros((len(probabilities), n_classes))
    wide[:, classes] = probabilities
    return wide


def best(candidates: Iterable[Any], X: pd.DataFrame, y: np.ndarray, folds: Folds) -> Any:
    """The candidate with the smallest held-out log-loss, not fitted."""
    losses = []
    candidates = list(candidates)
    for model in candidates:
        total = 0.0
        for train, test in folds:
            model.fit(X.iloc[train], y[train])
            held_out = spread(model.predict_proba(X.iloc[test]), model.classes_, y.max() + 1)
            total += log_loss(held_out, y[test]) * len(test)
        losses.append(total)
    return candidates[int(np.argmin(losses))]


# ---- preparation of rows ---------------------------------------------------------------------------------------------


def as_text(X: pd.DataFrame) -> pd.DataFrame:
    """Categories as text, in which a missing one is a category of its own."""
    return X.assign(**{c: X[c].astype(object).fillna("missing") for c in X if X[c].dtype == "category"})


def numbers(imputed: bool, scaled: bool = False) -> Any:
    """Categories in one-hot coding; numeric columns as they are, or with medians and indicators, or scaled too."""
    steps = [SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)] if imputed else []
    steps += [StandardScaler()] if scaled else []
    numeric = (make_pipeline(*steps) if steps else "passthrough", make_column_selector(dtype_include="number"))
    coded = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_column_transformer(numeric, (coded, make_column_selector(dtype_exclude="number")))


def filled(X: pd.DataFrame, imputer: Any) -> pd.DataFrame:
    """Numeric columns with medians and indicators, categorical columns as they are."""
    numeric = X.select_dtypes("number")
    if numeric.shape[1] == 0:
        return X
    values = pd.DataFrame(imputer.transform(numeric.to_numpy()), index=X.index).add_prefix("number ")
    return pd.concat((values, X.select_dtypes(exclude="number")), axis=1)


def with_imputation(fit: Fit) -> Fit:
    """A classifier behind imputation of numeric columns."""

    def fit_imputed(X: pd.DataFrame, y: np.ndarray, folds: Folds) -> Predict:
        imputer = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
        numeric = X.select_dtypes("number")
        if numeric.shape[1]:
            imputer.fit(numeric.to_numpy())
        predict = fit(filled(X, imputer), y, folds)
        return lambda X: predict(filled(X, imputer))

    return fit_imputed


# ---- classifiers -----------------------------------------------------------------------------------------------------


def mixture(X: pd.DataFrame, y: np.ndarray, folds: Folds, groups: Any = None, **settings: Any) -> Predict:
    return MixtureClassifier(**settings, random_state=0).fit(X, y, groups=groups).predict_proba


def catboost(X: pd.DataFrame, y: np.ndarray, folds: Folds) -> Predict:
    """Its defaults, 1000 trees and a learning rate of its own choice, as its authors recommend."""
    from catboost import CatBoostClassifier

    categories = [name for name in X if X[name].dtype == "category"]
    model = CatBoostClassifier(
        cat_features=categories, thread_count=1, verbose=False, random_state=0, allow_writing_files=False
    )
    model.fit(as_text(X), y)
    return lambda X: model.predict_proba(as_text(X))


def lightgbm(X: pd.DataFrame, y: np.ndarray, folds: Folds) -> Predict:
    """The number of trees is the best one in cross-validation."""
    import lightgbm

    n_classes = y.max() + 1
    kind = {"objective": "multiclass", "num_class": n_classes} if n_classes > 2 else {"objective": "binary"}
    settings = {"learning_rate": RATE, "verbose": -1, "num_threads": 1, "seed": 0, **kind}
    X = X.set_axis([f"column {j}" for j in range(X.shape[1])], axis=1)
    data = lightgbm.Dataset(X, y, params=settings, free_raw_data=False)
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    history = lightgbm.cv(settings, data, MOST_TREES, folds=folds, callbacks=[stop])
    n_trees = len(next(iter(history.values())))
    model = lightgbm.train(settings, lightgbm.Dataset(X, y, params=settings), n_trees)

    def predict(X: pd.DataFrame) -> np.ndarray:
        probabilities = np.asarray(model.predict(X.set_axis(model.feature_name(), axis=1)))
        return probabilities if n_classes > 2 else np.column_stack((1 - probabilities, probabilities))

    return predict


def histogram_boosting(X: pd.DataFrame, y: np.ndarray, folds: Folds) -> Predict:
    """The number of trees is the best one in cross-validation."""
    make = partial(HistGradientBoostingClassifier, learning_rate=RATE, early_stopping=False, random_state=0)
    steps = 10
    losses = np.zeros(MOST_TREES // 2 // steps)
    for train, test in folds:
        model = make(max_iter=MOST_TREES // 2).fit(X.iloc[train], y[train])
        for i, probabilities in enumerate(model.staged_predict_proba(X.iloc[test])):
            if i % steps == steps - 1:
                held_out = spread(probabilities, model.classes_, y.max() + 1)
                losses[i // steps] += log_loss(held_out, y[test]) * len(test)
    return make(max_iter=steps * (int(losses.argmin()) + 1)).fit(X, y).predict_proba


def forest(X: pd.DataFrame, y: np.ndarray, folds: Folds, kind: Any, imputed: bool) -> Predict:
    """300 trees; the smallest number of samples in a leaf is chosen in cross-validation, with 100 trees."""
    X = as_text(X)
    candidates = (
        make_pipeline(numbers(imputed), kind(n_estimators=100, min_samples_leaf=n, n_jobs=1, random_state=0))
        for n in (1, 3, 10)
    )
    model = best(candidates, X, y, folds)
    model[-1].set_params(n_estimators=300)
    model.fit(X, y)
    return lambda X: model.predict_proba(as_text(X))


def support_vectors(X: pd.DataFrame, y: np.ndarray, folds: Folds) -> Predict:
    """C and the width of the kernel have the fewest errors in cross-validation, calibration the smallest log-loss."""
    X = as_text(X)
    width = 1.0 / numbers(imputed=True, scaled=True).fit(X).transform(X).var(0).sum()
    errors = {}
    for C in (1.0, 10.0, 100.0):
        for gamma in (0.2 * width, width, 5 * width):
            model = make_pipeline(numbers(imputed=True, scaled=True), SVC(C=C, gamma=gamma))
            wrong = [(model.fit(X.iloc[i], y[i]).predict(X.iloc[j]) != y[j]).sum() for i, j in folds]
            errors[C, gamma] = sum(wrong)
    C, gamma = min(errors, key=errors.__getitem__)
    model = make_pipeline(numbers(imputed=True, scaled=True), SVC(C=C, gamma=gamma))
    paired = make_pipeline(numbers(imputed=True, scaled=True), SVC(C=C, gamma=gamma, probability=True, random_state=0))
    calibrated = [CalibratedClassifierCV(model, method=m, cv=3, ensemble=False) for m in ("sigmoid", "temperature")]
    fitted = best([*calibrated, paired], X, y, folds).fit(X, y)
    return lambda X: fitted.predict_proba(as_text(X))


def logistic_regression(X: pd.DataFrame, y: np.ndarray, folds: Folds) -> Predict:
    """The penalty is chosen in cross-validation."""
    candidates = (
        make_pipeline(numbers(imputed=True, scaled=True), LogisticRegression(C=10.0**k, max_iter=1000))
        for k in range(-3, 3)
    )
    model = best(candidates, as_text(X), y, folds).fit(as_text(X), y)
    return lambda X: model.predict_proba(as_text(X))


def explainable_boosting(X: pd.DataFrame, y: np.ndarray, folds: Folds) -> Predict:
    from interpret.glassbox import ExplainableBoostingClassifier

    model = ExplainableBoostingClassifier(n_jobs=1, random_state=0).fit(as_text(X), y)
    return lambda X: model.predict_proba(as_text(X))


def neural(X: pd.DataFrame, y: np.ndarray, folds: Folds, kind: str) -> Predict:
    """Tuned defaults of pytabkit, with what its authors recommend where probabilities count."""
    import pytabkit

    names = [name for name in X if X[name].dtype == "category"]
    settings = {"use_ls": False} if kind == "RealMLP_TD" else {}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = getattr(pytabkit, f"{kind}_Classifier")(
        device=device, random_state=0, n_threads=1, val_metric_name="cross_entropy", **settings
    )
    model.fit(as_text(X), y, cat_col_names=names)
    return lambda X: model.predict_proba(as_text(X))


FORESTS = {"random forest": RandomForestClassifier, "extra trees": partial(ExtraTreesClassifier, bootstrap=True)}
CLASSIFIERS: dict[str, Fit] = {
    OURS: mixture,
    "MixtureClassifier(1)": partial(mixture, n_components=1),
    "logistic regression": logistic_regression,
    **{name: partial(forest, kind=kind, imputed=False) for name, kind in FORESTS.items()},
    "LightGBM": lightgbm,
    "RBF-SVM": support_vectors,
    "histogram boosting": histogram_boosting,
    "CatBoost": catboost,
    "explainable boosting": explainable_boosting,
    **{name + IMPUTED: partial(forest, kind=kind, imputed=True) for name, kind in FORESTS.items()},
    "LightGBM" + IMPUTED: with_imputation(lightgbm),
    "histogram boosting" + IMPUTED: with_imputation(histogram_boosting),
    "RealMLP": with_imputation(partial(neural, kind="RealMLP_TD")),
    "TabM": with_imputation(partial(neural, kind="TabM_D")),
    "xRFM": with_imputation(partial(neural, kind="XRFM_D")),
}
QUICK = [name for name in CLASSIFIERS if name not in ("explainable boosting", "RealMLP", "TabM", "xRFM")]
