"""`mixtura fit` and `mixtura predict`."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mixtura import __version__, load
from mixtura.cli.columns import TableProblem, read_problem
from mixtura.cli.files import read_table
from mixtura.cli.held_out_rows import predict_held_out
from mixtura.cli.output import Answer, check_place, pairs, progress
from mixtura.cli.scores import decimals, percents, performance, sampled
from mixtura.estimators.mixture_classifier import MixtureClassifier
from mixtura.estimators.table_classifier import TableClassifier
from mixtura.files.tensor_files import write_atomically
from mixtura.inspection.outliers import reference_of
from mixtura.inspection.tables import text_of

# Share of the budget for the choice of a model; the final fit and the held-out scores take the rest.
CHOICE, SHORTEST = 0.5, 0.05
OVERRUN = 1.2  # times the budget from which on a note says so
# Features from which on there is no choice: one diagonal Gaussian per class.
WIDE = 1000
# Rows that are held out for outlier scores and the error rate, and how many values these may hold.
MOST_HELD_OUT, MOST_VALUES = 3000, 300_000


def run_fit(data: Path, target: str, out: Path, budget: float, drop: Sequence[str], seed: int) -> Answer:
    """Fit a classifier to a table and write a model file."""
    began = time.perf_counter()
    check_place(out, data)
    with progress(3) as say:
        say(f"Reading {data.name}")
        problem = read_problem(read_table(data), target, drop)
        say(f"Choosing a model within {budget:g} s")
        model = fit_table(problem, began + budget, seed)
        say("Predicting held-out rows")
        scores = _keep_held_out(model, problem, began + budget, seed)
    notes = problem.notes
    seconds = time.perf_counter() - began
    if seconds > OVERRUN * budget:
        notes = [*notes, f"Reading the table and fitting {_tried(model)} took longer than the budget of {budget:g} s."]
    model.about_ |= {"target": target, "file": data.name, "drop": list(drop), "version": __version__}
    model.about_ |= {"notes": notes, "seconds": seconds}
    model.about_ |= scores
    model.save(out)
    facts = {"model": str(out), **_facts(model, problem), **scores, "notes": notes, "seconds": seconds}
    return Answer([pairs(_lines(facts, out))], facts)


def fit_table(problem: TableProblem, deadline: float, seed: int) -> TableClassifier:
    """A model for a table; the choice ends early enough for the rest to be done at the deadline."""
    wide = len(problem.columns) >= WIDE
    settings: dict[str, Any] = {"n_components": 1, "covariance_type": "diag"} if wide else {}
    seconds = max(CHOICE * (deadline - time.perf_counter()), SHORTEST)
    estimator = MixtureClassifier(time_budget=seconds, random_state=seed, **settings)
    return TableClassifier(estimator, problem.columns).fit(problem.frame, problem.labels)


def _keep_held_out(model: TableClassifier, problem: TableProblem, deadline: float, seed: int) -> dict[str, Any]:
    """Learn which outlier scores are usual from held-out rows; return the scores of these rows."""
    most = max(100, min(MOST_HELD_OUT, MOST_VALUES // len(model.features)))
    rows = sampled(len(problem.labels), most, problem.labels, seed)
    labels, table = problem.labels[rows], model.read(problem.frame.iloc[rows])
    probabilities, outlier_scores = predict_held_out(model.estimator_, table, labels, seed, deadline)
    judged = ~np.isnan(outlier_scores)
    probabilities, numbers = probabilities[judged], np.searchsorted(model.classes_, labels[judged])
    model.estimator_.outlier_reference_ = reference_of(outlier_scores[judged])
    return {"held_out_rows": int(judged.sum()), **performance(model.estimator_, probabilities, numbers)}


def _facts(model: TableClassifier, problem: TableProblem) -> dict[str, Any]:
    fitted = model.estimator_
    numeric = [column.name for column in model.features if column.categories is None]
    missing: Any = problem.frame[[column.name for column in model.features]].isna()
    return {
        "rows": len(problem.labels),
        "numeric_columns": len(numeric),
        "categorical_columns": len(model.features) - len(numeric),
        "missing_share": float(missing.to_numpy().mean()),
        "classes": {str(label): int((problem.labels == label).sum()) for label in model.classes_.tolist()},
        "choice": choice_of(fitted),
        "candidates": 0 if fitted.search_ is None else len(fitted.search_),
    }


def choice_of(fitted: Any) -> dict[str, Any]:
    """The settings of a fitted MixtureClassifier, as text and numbers."""
    counts = sorted(set(fitted.n_components_.tolist()))
    chosen = {} if fitted.search_ is None else fitted.search_.best.what
    return {
        "covariance": str(chosen.get("covariance_type", fitted.covariance_type)),
        "components_per_class": counts[0] if len(counts) == 1 else fitted.n_components_.tolist(),
        "prior": str(chosen.get("prior", "default")),
        "transform": chosen.get("warp"),
        "temperature": float(fitted.temperature_),
    }


def _lines(facts: dict[str, Any], out: Path) -> list[tuple[str, str]]:
    """The text printed after a fit."""
    choice, classes = facts["choice"], facts["classes"]
    shown = ", ".join(f"{label} ({count})" for label, count in list(classes.items())[:8])
    shown += f" and {len(classes) - 8} more" if len(classes) > 8 else ""
    transform = "" if choice["transform"] is None else ", transformed features"
    return [
        (
            "Table",
            f"{facts['rows']} rows, {facts['numeric_columns']} numeric and {facts['categorical_columns']} categorical "
            f"columns, {100 * facts['missing_share']:.1f} % of the values missing",
        ),
        ("Classes", shown),
        (
            "Model",
            f"{choice['covariance']} covariances, {components_text(choice['components_per_class'])} per class"
            f"{transform}, temperature {choice['temperature']:.2f} ({_selection_text(facts['candidates'])})",
        ),
        (
            "Held out",
            f"{percents(facts['held_out_error'], facts['held_out_error_interval'])} error, "
            f"log-loss {decimals(facts['held_out_log_loss'], facts['held_out_log_loss_interval'])} "
            f"({'corrected for the selection' if facts['held_out_error_interval'] else 'cross-validation'})",
        ),
        *(("Note", note) for note in facts["notes"]),
        ("Written", f"{out} in {facts['seconds']:.1f} seconds"),
    ]


def _selection_text(n_candidates: int) -> str:
    return f"the best of {n_candidates} candidates" if n_candidates > 1 else "without a selection"


def _tried(model: TableClassifier) -> str:
    search = model.estimator_.search_
    return "the simplest model" if search is None or len(search) == 1 else f"{len(search)} candidates"


def components_text(counts: Any) -> str:
    return f"{text_of(counts)} {'component' if counts == 1 else 'components'}"


# ---- predict ---------------------------------------------------------------------------------------------------------


def load_table_model(path: Path) -> TableClassifier:
    """Read a model file of `mixtura fit`."""
    model = load(path)
    if not isinstance(model, TableClassifier):
        raise ValueError(f"{str(path)!r} holds a {type(model).__name__}; pass a model file of `mixtura fit`.")
    return model


def run_predict(path: Path, data: Path, out: Path, confidence: float, false_alarm: float) -> Answer:
    """Write the predictions for a table."""
    check_place(out, path, data)
    model = load_table_model(path)
    frame = read_table(data)
    notes = _unknown_values(model, frame)
    result = predictions(model, frame, confidence, false_alarm)
    text = io.StringIO()
    result.to_csv(text, index=False, lineterminator="\n", float_format="%.6g")
    with write_atomically(out.resolve()) as file:
        file.write(text.getvalue().encode())
    n_empty, n_outliers = int(result["class"].isna().sum()), int(result["outlier"].sum())
    facts = {"predictions": str(out), "rows": len(result), "abstained": n_empty, "outliers": n_outliers, "notes": notes}
    line = f"{len(result)} rows: {n_empty} without an answer, {n_outliers} outliers; written to {out}"
    return Answer([line, *(f"Note: {note}" for note in notes)], facts)


def predictions(model: TableClassifier, frame: pd.DataFrame, confidence: float, false_alarm: float) -> pd.DataFrame:
    """Class, confidence, outlier flag and the probabilities of all classes, for every row."""
    features = model.read(frame)
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


def _unknown_values(model: TableClassifier, frame: pd.DataFrame) -> list[str]:
    """Notes on values that count as missing because the model does not know them."""
    notes = []
    for column in model.features:
        if column.name not in frame.columns:
            continue
        known: Any = frame[column.name].dropna()
        unknown = known[pd.isna(column.read(known))]
        if not len(unknown):
            continue
        kind = "other values than numbers" if column.categories is None else "unknown categories"
        notes.append(
            f"Column {column.name!r} has {kind} in {len(unknown)} of {len(frame)} rows, such as "
            f"{str(unknown.iloc[0])!r}; they count as missing."
        )
    return notes
