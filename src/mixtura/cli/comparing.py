"""`mixtura compare`: mixtures beside other classifiers on held-out rows of a table."""

from __future__ import annotations

import pickle
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table
from rich.text import Text
from sklearn.base import BaseEstimator
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from mixtura.cli.fitting import CHOICE, METHODS
from mixtura.cli.held_out_rows import calibration_error, log_loss_of
from mixtura.cli.output import STANDARD, Answer, progress
from mixtura.cli.tables import MOST_VALUES, read_problem, read_table
from mixtura.datasets import remove_values
from mixtura.estimators.table_classifier import TableClassifier
from mixtura.estimators.table_columns import TableColumn, shorten

HELD_OUT, REMOVED = 0.3, 0.3  # shares of the rows and of the values
MOST_ROWS = 5000
MOST_BOOSTED = 50  # classes
MOST_FOR_SPARSE = 5000  # rows times classes; the digits take 18 s of sparse learning


def _impute(model: BaseEstimator) -> Pipeline:
    """Mean imputation and scaling of numbers, indicators of categories, and a model."""
    numbers = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())
    indicators = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    kinds = [(numbers, make_column_selector(dtype_include="number")), (indicators, _categories)]
    return make_pipeline(make_column_transformer(*kinds), model)


_categories = make_column_selector(dtype_include="category")

Line = dict[str, str | float]  # the name of a method, and its scores or the reason why it failed
Makers = dict[str, Callable[[int], BaseEstimator]]  # names of classifiers, and how they are made from a seed
RIVALS: Makers = {
    "QDA": lambda seed: _impute(QuadraticDiscriminantAnalysis(reg_param=0.1)),
    "naive Bayes": lambda seed: _impute(GaussianNB()),
    "logistic regression": lambda seed: _impute(LogisticRegression(max_iter=1000)),
    "RBF-SVM": lambda seed: _impute(CalibratedClassifierCV(SVC(), cv=3)),
    "random forest": lambda seed: _impute(RandomForestClassifier(300, random_state=seed)),
    "gradient boosting": lambda seed: HistGradientBoostingClassifier(
        categorical_features="from_dtype", random_state=seed
    ),
}


def rivals_for(budget: float, X: pd.DataFrame, n_classes: int) -> Makers:
    """The mixtures, sparse learning for complete and small tables alone, and the others.

    Boosting fits a hundred trees per class and is left out where that takes minutes.
    """
    complete = X.select_dtypes("number").shape == X.shape and not bool(X.isna().to_numpy().any())
    left_out = [] if complete and len(X) * n_classes <= MOST_FOR_SPARSE else ["SparseMixture"]
    left_out += ["gradient boosting"] if n_classes > MOST_BOOSTED else []
    mixtures: Makers = {name: partial(make, budget) for name, make in METHODS.items()}
    sparse = mixtures["SparseMixture"]
    mixtures["SparseMixture"] = lambda seed: _impute(sparse(seed))  # for the table with values removed
    return {name: make for name, make in (mixtures | RIVALS).items() if name not in left_out}


def scores_of(name: str, model: Any, parts: tuple[object, object, np.ndarray, np.ndarray]) -> Line:
    """Fit a classifier and score held-out samples; the fields are empty, with a reason, where it fails."""
    X_train, X_test, y_train, y_test = parts
    classes = np.unique(np.concatenate([y_train, y_test]))
    train_numbers, numbers = (np.searchsorted(classes, part) for part in (y_train, y_test))  # 0.5 is a class too
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X_train, train_numbers)
            probabilities = np.asarray(model.predict_proba(X_test))
    except (ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
        return {"method": name, "failed": " ".join(str(error).split())[:120]}
    seconds = time.perf_counter() - began
    complete = np.zeros((len(y_test), len(classes)))
    complete[:, model.classes_] = probabilities
    return {
        "method": name,
        "error": float((complete.argmax(1) != numbers).mean()),
        "log_loss": log_loss_of(complete, numbers),
        "calibration_error": calibration_error(complete, numbers),
        "seconds": seconds,
        "kilobytes": len(pickle.dumps(model)) / 1024,
    }


def compare_rivals(X: pd.DataFrame, labels: np.ndarray, rivals: Makers, seed: int) -> dict[str, list[Line]]:
    """Scores on held-out rows, by whether values were removed."""
    _, counts = np.unique(labels, return_counts=True)
    stratify = labels if counts.min() >= 2 and HELD_OUT * len(labels) >= len(counts) else None
    rows = np.arange(len(labels))
    train, test = train_test_split(rows, test_size=HELD_OUT, stratify=stratify, random_state=seed)
    results: dict[str, list[Line]] = {}
    with progress(2 * len(rivals)) as say:
        for name, fraction in (("as it is", 0.0), (f"with {100 * REMOVED:.0f} % of the values removed", REMOVED)):
            values = X.mask(np.isnan(remove_values(np.zeros(X.shape), fraction, seed)))
            parts = (values.iloc[train], values.iloc[test], labels[train], labels[test])
            results[name] = []
            for rival, make in rivals.items():
                say(f"{rival}, table {name}")
                results[name].append(scores_of(rival, make(seed), parts))
    return results


def run_compare(
    data: Path, target: str, budget: float, drop: Sequence[str], seed: int, out: Path | None, sep: str | None
) -> Answer:
    """Compare classifiers on a table."""
    problem = read_problem(read_table(data, sep, MOST_VALUES), target, drop)
    rows = draw_rows(len(problem.labels), MOST_ROWS, problem.labels, seed)
    table = TableClassifier(columns=problem.columns).read(problem.frame.iloc[rows])
    X, labels = with_categories(table, problem.columns), problem.labels[rows]
    n_classes = len(np.unique(labels))
    results = compare_rivals(X, labels, rivals_for(CHOICE * budget, X, n_classes), seed)
    facts = {"rows": len(rows), "held_out_share": HELD_OUT, "results": results, "notes": shorten(problem.notes)}
    first = f"{len(rows)} rows, {X.shape[1]} features, {n_classes} classes; {100 * HELD_OUT:.0f} % of the rows held out"
    if len(rows) < len(problem.labels):
        first += f" (a sample of {len(problem.labels)} rows)"
    explained = (
        "Missing values: mixtures marginalise them and gradient boosting splits on them; the others get mean "
        "imputation. Calibration: expected calibration error. Seconds: fit and prediction. *: the best of a column."
    )
    facts |= {"advice": advice(results["as it is"], data, target, drop)}
    if out is not None:
        frames = [pd.DataFrame(lines).assign(table=name) for name, lines in results.items()]
        pd.concat(frames).to_csv(sys.stdout if out == STANDARD else out, index=False, float_format="%.6g")
    tables = [score_table(f"Table {name}", lines) for name, lines in results.items()]
    notes = [f"Note: {note}" for note in facts["notes"]]
    return Answer([first, *tables, *notes, explained, *map(Text, facts["advice"])], facts)


def advice(lines: list[Line], data: Path, target: str, drop: Sequence[str]) -> list[str]:
    """The command that fits the best mixture, and whether another classifier is better."""
    scored = sorted((line for line in lines if "failed" not in line), key=lambda line: float(line["log_loss"]))
    own = next(line for line in scored if line["method"] in METHODS)
    method = "" if own["method"] == "MixtureClassifier" else f" --method {shlex.quote(str(own['method']))}"
    left_out = "".join(f" --drop {shlex.quote(name)}" for name in drop)
    command = f"mixtura fit {shlex.quote(str(data))} --target {shlex.quote(target)}{method}{left_out}"
    texts = [f"The mixture with the smallest log-loss on the table as it is, {own['method']}: {command}"]
    if scored[0] is not own:
        texts.append(
            f"{scored[0]['method']} is better: log-loss {float(scored[0]['log_loss']):.3f}, ours "
            f"{float(own['log_loss']):.3f}."
        )
    return texts


def draw_rows(n_rows: int, most: int, labels: np.ndarray, seed: int) -> np.ndarray:
    """Positions of at most this number of rows, at least two of every class."""
    if n_rows <= most:
        return np.arange(n_rows)
    order = np.random.default_rng(seed).permutation(n_rows)
    first = [order[labels[order] == label][:2] for label in np.unique(labels)]
    return np.sort(np.unique(np.concatenate([order[:most], *first])))


def with_categories(table: pd.DataFrame, columns: Sequence[TableColumn]) -> pd.DataFrame:
    """A table whose categories have a type that all classifiers know."""
    return table.astype({column.feature: "category" for column in columns if column.categories is not None})


COLUMNS = {  # name in the results: heading, form, factor
    "error": ("error, %", "{:.1f}", 100),
    "log_loss": ("log-loss", "{:.3f}", 1),
    "calibration_error": ("calibration", "{:.3f}", 1),
    "seconds": ("seconds", "{:.2f}", 1),
    "kilobytes": ("size, kB", "{:.0f}", 1),
}


def score_table(title: str, lines: list[Line]) -> Table:
    """The scores of all classifiers as a table; a star marks the best of a column."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("method")
    for heading, _, _ in COLUMNS.values():
        table.add_column(heading, justify="right")
    scored = [line for line in lines if "failed" not in line]
    best = {name: min((float(line[name]) for line in scored), default=None) for name in COLUMNS}
    for line in lines:
        table.add_row(str(line["method"]), *(_entry(line, name, best[name]) for name in COLUMNS))
    return table


def _entry(line: Line, name: str, best: float | None) -> Text:
    if name not in line:
        return Text("failed")
    _, form, factor = COLUMNS[name]
    text, is_best = form.format(factor * float(line[name])), line[name] == best
    return Text(f"{text}*" if is_best else f"{text} ", style="bold" if is_best else "")
