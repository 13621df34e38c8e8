"""`mixtura demo`: compare mixtures with other classifiers on two data sets and draw a figure."""

from __future__ import annotations

import io
import platform
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from rich.text import Text
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from mixtura import __version__
from mixtura.cli.files import check_place
from mixtura.cli.output import Answer, progress
from mixtura.datasets import make_ripley, remove_values
from mixtura.estimators import MixtureClassifier
from mixtura.files.atomic_write import write_atomically
from mixtura.priors import Conjugate

FRACTIONS = (0.0, 0.3, 0.6)  # of the values of the digits that are removed


# ---- Problems --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DemoData:
    """A training and a test set."""

    name: str
    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def ripley(seed: int) -> DemoData:
    """250 training and 1000 test samples from the generator."""
    X, y = make_ripley(625, random_state=seed)
    return _split("Ripley", X, y, 250, seed)


def digits(fraction: float, quick: bool, seed: int) -> DemoData:
    """scikit-learn's digits, half of them for training, with values removed from the training and the test set."""
    X, y = (np.asarray(part) for part in load_digits(return_X_y=True))
    if quick:
        X, y = X[y < 3][:180], y[y < 3][:180]
    name = f"{fraction:.0%} removed".replace("%", " %") if fraction else "digits"
    whole = _split(name, X, y, len(y) // 2, seed)
    generator = np.random.default_rng([seed, round(100 * fraction)])
    X_train, X_test = (remove_values(part, fraction, generator) for part in (whole.X_train, whole.X_test))
    return DemoData(name, X_train, whole.y_train, X_test, whole.y_test)


def _split(name: str, X: np.ndarray, y: np.ndarray, n_train: int, seed: int) -> DemoData:
    parts = train_test_split(X, y, train_size=n_train, stratify=y, random_state=seed)
    X_train, X_test, y_train, y_test = (np.asarray(part) for part in parts)
    return DemoData(name, X_train, y_train, X_test, y_test)


# ---- Methods ---------------------------------------------------------------------------------------------------------

TWO = "mixture, 2 per class"
SCALED, EITHER = [StandardScaler()], [StandardScaler(), "passthrough"]
VERSION = tuple(int(part) for part in sklearn.__version__.split(".")[:2])


@dataclass(frozen=True)
class Method:
    """A classifier for a problem and a seed, with its name and description in the table."""

    name: str
    make: Callable[[DemoData, int], Any]
    note: str
    ours: bool = False


def one_variance(problem: DemoData) -> Conjugate:
    """A prior that shrinks to one variance for all features, for features in the same units, such as pixels.

    Its strength is one pseudo-observation per feature, the best of 1/4 to 4 by cross-validated log-loss on the complete
    training digits.
    """
    X, y = problem.X_train, problem.y_train
    deviations = np.concatenate([X[y == c] - np.nanmean(X[y == c], axis=0) for c in np.unique(y)])
    n_features = X.shape[1]
    variances = torch.full((n_features,), float(np.nanmean(deviations**2)), dtype=torch.float64)
    return Conjugate(float(n_features), variances)


def _searched(model: Any, **grid: list[Any]) -> GridSearchCV:
    """Mean imputation, scaling and a model, with a grid search by three-fold cross-validated log-loss."""
    imputer = SimpleImputer(keep_empty_features=True)
    steps = Pipeline([("impute", imputer), ("scale", StandardScaler()), ("model", model)])
    return GridSearchCV(steps, grid, scoring="neg_log_loss", cv=3)


def _qda(problem: DemoData, seed: int) -> GridSearchCV:
    if VERSION < (1, 8):  # has no shrinkage yet
        return _searched(QuadraticDiscriminantAnalysis(), scale=EITHER, model__reg_param=[0.0, 0.1, 0.3, 0.5, 0.7])
    model: Any = QuadraticDiscriminantAnalysis(solver="eigen")
    return _searched(model, scale=EITHER, model__shrinkage=[0.01, 0.1, 0.3, 0.5, 0.7])


def _svm(problem: DemoData, seed: int) -> GridSearchCV:
    method: Any = "temperature" if VERSION >= (1, 8) else "sigmoid"  # one temperature suits several classes better
    return _searched(CalibratedClassifierCV(SVC(), method=method), scale=EITHER, model__estimator__C=[1.0, 10.0])


LOOSE = 1e-3  # a third of the iterations; it matters with missing values, where an iteration takes 0.2 s
METHODS = (
    Method(
        "mixture, 1 per class",
        lambda problem, seed: MixtureClassifier(1, random_state=seed),
        "MixtureClassifier(1)",
        ours=True,
    ),
    Method(
        TWO,
        lambda problem, seed: MixtureClassifier(2, tol=LOOSE, random_state=seed),
        "MixtureClassifier(2, tol=1e-3)",
        ours=True,
    ),
    Method(
        "mixture, 2, same units",
        lambda problem, seed: MixtureClassifier(2, tol=LOOSE, prior=one_variance(problem), random_state=seed),
        "MixtureClassifier(2, tol=1e-3, prior=Conjugate(D, V)) with one variance V for all D features",
        ours=True,
    ),
    Method("QDA", _qda, "shrinkage and scaling by cross-validation"),
    Method(
        "GaussianNB",
        lambda problem, seed: _searched(GaussianNB(), scale=SCALED, model__var_smoothing=[1e-9, 1e-3, 0.01, 0.1, 1.0]),
        "var_smoothing by cross-validation",
    ),
    Method(
        "logistic regression",
        lambda problem, seed: _searched(
            LogisticRegression(max_iter=1000), scale=SCALED, model__C=[0.01, 0.1, 1.0, 10.0]
        ),
        "C by cross-validation",
    ),
    Method("RBF-SVM", _svm, "C and scaling by cross-validation; calibrated"),
    Method(
        "gradient boosting",
        lambda problem, seed: HistGradientBoostingClassifier(random_state=seed),
        "HistGradientBoostingClassifier()",
    ),
)


@dataclass(frozen=True)
class Score:
    """Test scores of a fitted model, and the seconds of one fit and one prediction."""

    model: Any
    error: float
    log_loss: float
    seconds: float


def score(method: Method, problem: DemoData, seed: int) -> Score:
    """Fit and evaluate a method; the seconds leave out a grid search."""
    model = method.make(problem, seed)
    with warnings.catch_warnings():
        if not method.ours:
            warnings.simplefilter("ignore")  # QDA on collinear columns, candidates that fail in a search
        start = time.perf_counter()
        model.fit(problem.X_train, problem.y_train)
        fitted = time.perf_counter()
        probabilities = model.predict_proba(problem.X_test)
        end = time.perf_counter()
    fit_time = model.refit_time_ if isinstance(model, GridSearchCV) else fitted - start
    seconds = fit_time + end - fitted
    error = float(np.mean(model.classes_[probabilities.argmax(1)] != problem.y_test))
    return Score(model, error, float(log_loss(problem.y_test, probabilities, labels=model.classes_)), seconds)


# ---- The demo --------------------------------------------------------------------------------------------------------

Scores = Mapping[tuple[str, str], Score]  # by names of method and problem


def run_demo(output: Path, quick: bool, seed: int) -> Answer:
    """Compare the methods and write the figure."""
    check_place(output, option="--output")
    start = time.perf_counter()
    problems = [ripley(seed)]
    problems += [digits(fraction, quick, seed) for fraction in FRACTIONS]
    scores = {}
    with progress(len(problems) * len(METHODS)) as say:
        for problem in problems:
            for method in METHODS:
                say(f"{problem.name}: {method.name}")
                scores[method.name, problem.name] = score(method, problem, seed)
    columns = [problem.name for problem in problems]
    texts = [
        _heading(problems, seed),
        table("Error, %", scores, columns, lambda result: 100 * result.error, "{:.1f}"),
        table("Log-loss", scores, columns, lambda result: result.log_loss, "{:.3f}"),
        table("Seconds", scores, columns, lambda result: result.seconds, "{:.2f}"),
        _notes(),
        _draw(problems, scores, output),
        f"Total time: {time.perf_counter() - start:.0f} seconds.",
    ]
    results = [
        {"method": method, "data": data, "error": s.error, "log_loss": s.log_loss, "seconds": s.seconds}
        for (method, data), s in scores.items()
    ]
    facts = {"results": results, "figure": str(output), "seconds": time.perf_counter() - start}
    return Answer([Text(text) for text in texts], facts)


def _heading(problems: Sequence[DemoData], seed: int) -> str:
    first, second = problems[0], problems[1]
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, scikit-learn {sklearn.__version__}"
    n_classes, n_features = len(np.unique(second.y_train)), second.X_train.shape[1]
    return (
        f"mixtura {__version__}, {versions}, seed {seed}, {torch.get_num_threads()} threads\n\n"
        f"Ripley: 2 classes, {len(first.y_train)} training samples, {len(first.y_test)} test samples, 2 features; "
        f"Bayes error 8.9 %\n"
        f"digits: {n_classes} classes, {len(second.y_train)} training samples, {len(second.y_test)} test samples, "
        f"{n_features} features;\n"
        f"        also with 30 % and 60 % of the values removed at random from both sets\n"
    )


def table(title: str, scores: Scores, columns: Sequence[str], measure: Callable[[Score], float], form: str) -> str:
    """A table of one score, methods by problems, with a star at the best of each column."""
    width = max(len(method.name) for method in METHODS)
    lines = [(f"{title:<{width}}" + "".join(f"{column:>14} " for column in columns)).rstrip()]
    shown = {key: form.format(measure(result)) for key, result in scores.items()}
    for method in METHODS:
        entries = []
        for column in columns:
            best = min((shown[other.name, column] for other in METHODS), key=float)
            text = shown[method.name, column]
            entries.append(f"{text:>14}{'*' if text == best else ' '}")
        lines.append((f"{method.name:<{width}}" + "".join(entries)).rstrip())
    return "\n".join(lines) + "\n"


def _notes() -> str:
    width = max(len(method.name) for method in METHODS)
    lines = [f"{method.name:<{width}}  {method.note}" for method in METHODS]
    return (
        "* best of the column, as printed. Seconds: one fit and one prediction, without the grid search.\n"
        "Missing values: mixtures marginalise them, gradient boosting handles them natively, the others use mean\n"
        "imputation. Cross-validation: three folds of the training set, by log-loss. The mixtures have the same\n"
        "settings on all four data sets.\n"
        "\n" + "\n".join(lines) + "\n"
    )


def _draw(problems: Sequence[DemoData], scores: Scores, output: Path) -> str:
    """Write the figure; return a message about it."""
    try:
        from mixtura.plotting import Curve, demo_picture
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        return "No figure: matplotlib is not installed; install it with pip install 'mixtura[plot]'."
    first, rest = problems[0], problems[1:]
    curves = [
        Curve(method.name, [100 * scores[method.name, problem.name].error for problem in rest], method.ours)
        for method in METHODS
    ]
    figure = demo_picture(scores[TWO, first.name].model, first.X_train, first.y_train, FRACTIONS, curves)
    picture = io.BytesIO()
    figure.savefig(picture, format=output.suffix[1:].lower())
    with write_atomically(output.resolve()) as file:
        file.write(picture.getvalue())
    return f"Figure: {output}"
