"""`mixtura fit` and `mixtura predict`."""

from __future__ import annotations

import argparse
import io
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mixtura import __version__, load
from mixtura.cli.answers import Answer
from mixtura.cli.columns import TableProblem, read_problem
from mixtura.cli.files import check_place, read_table
from mixtura.cli.settled import held_out, log_loss_of, sampled
from mixtura.estimators.classifier import MixtureClassifier
from mixtura.estimators.table_classifier import TableClassifier, category_of
from mixtura.reading.outliers import reference_of
from mixtura.reading.tables import text_of
from mixtura.values.whole_files import written_whole

# Share of the budget for the choice of a model; the final fit and the held-out scores take the rest.
CHOICE = 0.3
# Features from which on there is no choice: one diagonal Gaussian per class.
WIDE = 1000
# Rows that are held out for outlier scores and the error rate, and how many values these may hold.
MOST_HELD_OUT, MOST_VALUES = 3000, 300_000


def run_fit(options: argparse.Namespace) -> Answer:
    """Fit a classifier to a table and write a model file."""
    began = time.perf_counter()
    out = check_place(options.out)
    problem = read_problem(read_table(options.data), options.target, options.drop)
    model = fit_table(problem, options.budget, options.seed, verbose=_shows_progress(options))
    scores = _keep_held_out(model, problem, options.seed)
    model.about_ |= {"target": options.target, "file": options.data.name, "version": __version__, **scores}
    model.about_["notes"] = problem.notes
    model.about_["seconds"] = time.perf_counter() - began
    model.save(out)
    facts = {"model": str(out), **_facts(model, problem), **scores, "seconds": model.about_["seconds"]}
    return Answer(_fit_text(facts, problem, out), facts)


def fit_table(problem: TableProblem, budget: float, seed: int, verbose: int = 0) -> TableClassifier:
    """A model for a table, chosen within a time budget in seconds."""
    model = TableClassifier(None, problem.columns)
    wide = len(model.feature_names) >= WIDE
    settings: dict[str, Any] = {"n_components": 1, "covariance_type": "diag"} if wide else {}
    model.estimator = MixtureClassifier(time_budget=CHOICE * budget, random_state=seed, verbose=verbose, **settings)
    return model.fit(problem.frame, problem.labels)


def _shows_progress(options: argparse.Namespace) -> int:
    return int(sys.stderr.isatty() and not options.json)


def _keep_held_out(model: TableClassifier, problem: TableProblem, seed: int) -> dict[str, Any]:
    """Learn which outlier scores are usual from held-out rows; return the scores of these rows."""
    most = max(100, min(MOST_HELD_OUT, MOST_VALUES // len(model.feature_names)))
    rows = sampled(len(problem.labels), most, problem.labels, seed)
    labels = problem.labels[rows]
    probabilities, outlier_scores = held_out(model.estimator_, model.encode(problem.frame.iloc[rows]), labels, seed)
    model.estimator_.outlier_reference_ = reference_of(outlier_scores)
    numbers = np.searchsorted(model.classes_, labels)
    return {
        "held_out_rows": len(rows),
        "held_out_error": float((probabilities.argmax(1) != numbers).mean()),
        "held_out_log_loss": log_loss_of(probabilities, numbers),
    }


def _facts(model: TableClassifier, problem: TableProblem) -> dict[str, Any]:
    fitted = model.estimator_
    numeric = [column.name for column in model.columns if column.categories is None]
    missing: Any = problem.frame[[column.name for column in model.columns]].isna()
    return {
        "rows": len(problem.labels),
        "numeric_columns": len(numeric),
        "categorical_columns": len(model.columns) - len(numeric),
        "missing_share": float(missing.to_numpy().mean()),
        "classes": {str(label): int((problem.labels == label).sum()) for label in model.classes_.tolist()},
        "choice": choice_of(fitted),
        "candidates": 0 if fitted.search_ is None else len(fitted.search_),
        "notes": problem.notes,
    }


def choice_of(fitted: Any) -> dict[str, Any]:
    """The settings of a fitted MixtureClassifier, as text and numbers."""
    counts = sorted(set(fitted.n_components_.tolist()))
    chosen = {} if fitted.search_ is None else fitted.search_.best.what
    return {
        "covariance": str(chosen.get("covariance_type", fitted.covariance_type)),
        "components_per_class": counts[0] if len(counts) == 1 else fitted.n_components_.tolist(),
        "prior": str(chosen.get("prior", "default")),
        "transform": str(chosen.get("warp")),
        "temperature": float(fitted.temperature_),
    }


def _fit_text(facts: dict[str, Any], problem: TableProblem, out: Path) -> str:
    choice, classes = facts["choice"], facts["classes"]
    shown = ", ".join(f"{label} ({count})" for label, count in list(classes.items())[:8])
    shown += f" and {len(classes) - 8} more" if len(classes) > 8 else ""
    percent = 100 * facts["missing_share"]
    lines = [
        f"Table     {facts['rows']} rows, {facts['numeric_columns']} numeric and {facts['categorical_columns']} "
        f"categorical columns, {percent:.1f} % of the values missing",
        f"Classes   {shown}",
        f"Model     {choice['covariance']} covariances, {_components_text(choice['components_per_class'])} per class"
        f"{'' if choice['transform'] == 'None' else ', transformed features'}, temperature "
        f"{choice['temperature']:.2f} ({facts['candidates']} candidates compared)",
        f"Held out  {100 * facts['held_out_error']:.1f} % error, log-loss {facts['held_out_log_loss']:.3f} "
        f"({facts['held_out_rows']} rows, 5-fold cross-validation)",
        *(f"Note      {note}" for note in problem.notes),
        f"Written   {out} in {facts['seconds']:.1f} seconds",
    ]
    return "\n".join(lines)


def _components_text(counts: Any) -> str:
    return f"{text_of(counts)} {'component' if counts == 1 else 'components'}"


# ---- predict ---------------------------------------------------------------------------------------------------------


def load_table_model(path: Path) -> TableClassifier:
    """Read a model file of `mixtura fit`."""
    model = load(path)
    if not isinstance(model, TableClassifier):
        raise ValueError(f"{str(path)!r} holds a {type(model).__name__}; pass a model file of `mixtura fit`.")
    return model


def run_predict(options: argparse.Namespace) -> Answer:
    """Write the predictions for a table."""
    out = check_place(options.out)
    model = load_table_model(options.model)
    frame = read_table(options.data)
    notes = _unknown_categories(model, frame)
    result = predictions(model, frame, options.confidence, options.false_alarm)
    text = io.StringIO()
    result.to_csv(text, index=False, lineterminator="\n", float_format="%.6g")
    with written_whole(out.resolve()) as file:
        file.write(text.getvalue().encode())
    n_empty, n_outliers = int(result["class"].isna().sum()), int(result["outlier"].sum())
    facts = {"predictions": str(out), "rows": len(result), "abstained": n_empty, "outliers": n_outliers, "notes": notes}
    lines = [f"{len(result)} rows: {n_empty} without an answer, {n_outliers} outliers; written to {out}"]
    return Answer("\n".join([*lines, *(f"Note: {note}" for note in notes)]), facts)


def predictions(model: TableClassifier, frame: pd.DataFrame, confidence: float, false_alarm: float) -> pd.DataFrame:
    """Class, confidence, outlier flag and the probabilities of all classes, for every row."""
    features = model.encode(frame)
    probabilities = np.asarray(model.estimator_.predict_proba(features))
    classes = pd.Series(model.classes_[probabilities.argmax(1)]).astype(object)
    highest = probabilities.max(1)
    outliers = np.asarray(model.estimator_.is_outlier(features, false_alarm)) if false_alarm else np.zeros(len(frame))
    columns: dict[str, Any] = {
        "class": classes.where(pd.Series(highest >= confidence), None),
        "confidence": highest,
        "outlier": outliers.astype(bool),
    }
    columns |= {f"p({label})": probabilities[:, c] for c, label in enumerate(model.classes_.tolist())}
    return pd.DataFrame(columns)


def _unknown_categories(model: TableClassifier, frame: pd.DataFrame) -> list[str]:
    notes = []
    for column in model.columns:
        if column.categories is not None and column.name in frame.columns:
            present = {category_of(value) for value in frame[column.name].unique().tolist()} - {None}
            unknown = sorted(name for name in present - set(column.categories) if name is not None)
            if unknown:
                notes.append(f"Column {column.name!r} has unknown categories ({unknown[0]!r}); they count as missing.")
    return notes
