"""`mixtura fit` and `mixtura predict`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, cast

import numpy as np
import pandas as pd
import torch

from mixtura import __version__, load
from mixtura.cli.held_out_rows import HeldOut, decision, predict_held_out, threshold_for
from mixtura.cli.output import STANDARD, Answer, decimals, pairs, percents, progress
from mixtura.cli.tables import (
    MOST_VALUES,
    TableProblem,
    missing_values,
    names_of,
    number_classes,
    read_parts,
    read_problem,
    read_table,
)
from mixtura.estimators.averaged import AveragedMixtureClassifier
from mixtura.estimators.density_classifier import DensityClassifier, Trained
from mixtura.estimators.discriminative import DiscriminativeMixtureClassifier
from mixtura.estimators.mixture_classifier import MixtureClassifier
from mixtura.estimators.sparse import SparseMixtureClassifier
from mixtura.estimators.streamed_rows import n_columns
from mixtura.estimators.table_classifier import TableClassifier
from mixtura.estimators.table_columns import TableColumn, entries_of, listed, shorten
from mixtura.files.models import write_atomically
from mixtura.inspection.summaries import text_of

# Share of the budget for the choice of a model; the final fit and the held-out scores take the rest.
CHOICE, SHORTEST = 0.5, 0.05
OVERRUN = 1.2  # times the budget from which on a note says so
# Features from which on there is no choice: one diagonal Gaussian per class.
WIDE = 1000
REASONS = 3  # per row

METHODS: dict[
    str, Callable[[float | None, int], Trained]
] = {  # name of `--method` and of the comparison: how it is made
    "MixtureClassifier": lambda budget, seed: MixtureClassifier(time_budget=budget, random_state=seed),
    "MixtureClassifier(1)": lambda budget, seed: MixtureClassifier(1, random_state=seed),
    "AveragedMixture": lambda budget, seed: AveragedMixtureClassifier(n_estimators=10, random_state=seed),
    # A third of the time of the defaults. With tol=1e-2, half of that, a table of 5000 rows with eight categorical
    # columns has a log-loss of 0.740, with 1e-3 one of 0.323.
    "DiscriminativeMixture": lambda budget, seed: DiscriminativeMixtureClassifier(cv=2, tol=1e-3, random_state=seed),
    "SparseMixture": lambda budget, seed: SparseMixtureClassifier(n_init=1, random_state=seed),
}


@dataclass(frozen=True)
class FitOptions:
    """The arguments of `mixtura fit` beside the files."""

    budget: float
    drop: Sequence[str]
    seed: int
    method: str
    metric: str
    positive: str | None
    select: bool
    sep: str | None
    group: str | None


def run_fit(data: Path, target: str, out: Path, options: FitOptions) -> Answer:
    """Fit a classifier to a table and write a model file."""
    began = time.perf_counter()
    deadline = began + options.budget
    with progress(3) as say:
        say(f"Reading {data.name}")
        table = read_table(data, options.sep, MOST_VALUES)
        problem = read_problem(table, target, options.drop, options.group)
        positive = positive_class(problem.labels, options.positive)
        say(f"Choosing a model within {options.budget:g} s")
        model = fit_table(problem, deadline, options)
        say("Predicting held-out rows")
        evidence = predict_held_out(model, problem, options.seed, deadline)
        n_rows, n_trained = table.attrs["n_rows"], 0
        if n_rows > len(table) and isinstance(model.estimator_, MixtureClassifier) and data != STANDARD:
            say(f"Training with all of {n_rows} rows")
            n_trained = train_on_file(model, data, target, options.sep, out.resolve().parent)
    scores = _scores(evidence, positive, options.metric)
    if isinstance(model.estimator_, DensityClassifier) and len(evidence.reference):
        model.estimator_.outlier_reference_ = evidence.reference
    notes, seconds = [*shorten(problem.notes), *model.notes_], time.perf_counter() - began
    if n_trained:
        text = f"{len(table)} random rows chose and judged the model, which was then trained with {n_trained} rows."
        notes.append(text)
    elif n_rows > len(table):
        notes.append(f"The table has {n_rows} rows; a random sample of {len(table)} was used.")
    if seconds > OVERRUN * options.budget:
        notes.append(
            f"Reading the table and fitting {_n_candidates(model)} took longer than the budget of {options.budget:g} s."
        )
    model.about_ |= {"target": target, "file": data.name, "drop": list(options.drop), "version": __version__}
    model.about_ |= {"notes": notes, "seconds": seconds, "positive": positive, "group": options.group, **scores}
    model.save(out)
    facts = {"model": str(out), **_facts(model, problem), **scores, "notes": notes, "seconds": seconds}
    return Answer([pairs(describe_fit(facts, out))], facts)


def fit_table(problem: TableProblem, deadline: float, options: FitOptions) -> TableClassifier:
    """A model for a table; the choice ends early enough for the rest to be done at the deadline."""
    if options.method not in METHODS:
        raise ValueError(
            f"--method must be one of {', '.join(METHODS)}; got {options.method!r}. "
            "The others are scikit-learn's, which a model file cannot hold."
        )
    if options.method == "SparseMixture":
        _check_complete(problem)
    seconds = max(CHOICE * (deadline - time.perf_counter()), SHORTEST)
    estimator = METHODS[options.method](seconds, options.seed)
    if len(problem.columns) >= WIDE and options.method == "MixtureClassifier":
        estimator.set_params(n_components=1, covariance_type="diag")
    model = TableClassifier(estimator, problem.columns, select=options.select)
    return model.fit(problem.frame, problem.labels, groups=problem.groups)


def _check_complete(problem: TableProblem) -> None:
    """Raise a ValueError unless all features are numbers without gaps, as sparse learning needs them."""
    text = [column.feature for column in problem.columns if column.categories is not None]
    gaps = [c.feature for c in problem.columns if c.categories is None and pd.isna(c.read(problem.frame[c.name])).any()]
    for names, fault in ((text, "categories"), (gaps, "missing values")):
        if names:
            raise ValueError(
                f"--method SparseMixture takes complete tables of numbers, and there are {fault} in {listed(names)}; "
                "use --method DiscriminativeMixture, or leave these columns out with --drop."
            )


def train_on_file(model: TableClassifier, data: Path, target: str, sep: str | None, folder: Path) -> int:
    """Continue the training of a model of some rows of a file with all rows, in bounded memory; their number.

    The rows are stored as numbers in a temporary file of the folder, since training reads them several times.
    """
    fitted, lengths = cast("MixtureClassifier", model.estimator_), []
    encoding, classes = fitted.encoding_, model.classes_
    with TemporaryFile(dir=folder) as values, TemporaryFile(dir=folder) as labels:
        for part in read_parts(data, sep):
            numbers = number_classes(part[target], classes)
            frame = model.read(part[numbers >= 0])
            rows = frame.to_numpy(float) if encoding is None else encoding.encode(frame)
            rows.astype(np.float64).tofile(values)
            numbers[numbers >= 0].astype(np.int32).tofile(labels)
            lengths.append(len(rows))
        stored = np.memmap(values, np.float64, "r+", shape=(sum(lengths), n_columns(fitted)))
        numbered = np.memmap(labels, np.int32, "r", shape=sum(lengths))
        names = None if encoding is not None else fitted.feature_names_in_
        batches = []
        for end, length in zip(np.cumsum(lengths), lengths, strict=True):
            part = slice(end - length, end)
            batch = torch.from_numpy(stored[part]) if names is None else pd.DataFrame(stored[part], columns=names)
            batches.append((batch, classes[numbered[part]]))
        fitted.set_params(warm_start=True).fit(batches).set_params(warm_start=False)
    return sum(lengths)


def positive_class(labels: np.ndarray, name: str | None) -> object:
    """The class that decisions are about: the one with this name, or the rarer of two."""
    classes, counts = np.unique(labels, return_counts=True)
    if name is None:
        return classes[int(counts.argmin())].item() if len(classes) == 2 else None
    places = [number for number, label in enumerate(classes.tolist()) if str(label) == name]
    if not places:
        raise ValueError(f"--positive must be one of the classes {listed(classes.tolist())}; got {name!r}.")
    return classes[places[0]].item()


def _scores(evidence: HeldOut, positive: object, metric: str) -> dict[str, object]:
    """Scores of held-out rows, and the threshold that is best for the metric."""
    scores: dict[str, object] = {
        "held_out_rows": len(evidence.labels),
        **evidence.performance,
        "cross_validation_log_loss": evidence.log_loss,
        "metric": metric,
    }
    if metric in ("log-loss", "error") or not len(evidence.labels):
        return scores
    if positive is None:
        raise ValueError(f"--metric {metric} is about one of the classes; name it with --positive.")
    number = evidence.model.classes_.tolist().index(positive)
    truth, chances = evidence.labels == evidence.model.classes_[number], evidence.probabilities[:, number]
    threshold = threshold_for(metric, truth, chances, evidence.weights)
    return scores | decision(truth, chances, evidence.weights, 0.5 if threshold is None else threshold)


def _facts(model: TableClassifier, problem: TableProblem) -> dict[str, object]:
    fitted = model.estimator_
    numeric = [column.name for column in model.features if column.categories is None]
    return {
        "rows": len(problem.labels),
        "numeric_columns": len(numeric),
        "categorical_columns": len(model.features) - len(numeric),
        "missing_share": float(missing_values(problem.frame, names_of(model.features)).mean()),
        "classes": {str(label): int((problem.labels == label).sum()) for label in model.classes_.tolist()},
        "method": type(fitted).__name__,
        "choice": choice_of(fitted),
        "candidates": 0 if fitted.search_ is None else len(fitted.search_),
    }


def choice_of(fitted: Trained) -> dict[str, Any]:
    """The settings of a fitted classifier, as text and numbers."""
    counts = sorted(set(np.asarray(fitted.n_components_).ravel().tolist()))
    chosen = {} if fitted.search_ is None else fitted.search_.best.what
    covariance = fitted.mixture_.covariance.structure.name if isinstance(fitted, DensityClassifier) else "no"
    return {
        "covariance": str(chosen.get("covariance_type", covariance)),
        "components_per_class": counts[0] if len(counts) == 1 else counts,
        "prior": str(chosen.get("prior", "default")),
        "transform": chosen.get("warp"),
        "temperature": float(fitted.temperature_),
    }


def describe_fit(facts: Mapping[str, Any], out: Path) -> list[tuple[str, str]]:
    """The text printed after a fit."""
    choice, classes = facts["choice"], facts["classes"]
    shown = ", ".join(f"{label} ({count})" for label, count in list(classes.items())[:8])
    shown += f" and {len(classes) - 8} more" if len(classes) > 8 else ""
    transform = "" if choice["transform"] is None else ", transformed features"
    candidates = facts["candidates"]
    selection = f"the best of {candidates} candidates" if candidates > 1 else "without a selection"
    table = f"{facts['rows']} rows, {facts['numeric_columns']} numeric and {facts['categorical_columns']} categorical "
    interval, held_out = facts["held_out_error_interval"], "no row: every class but one has a single row"
    if facts["held_out_rows"] or interval:
        held_out = f"{percents(facts['held_out_error'], interval)} error, "
        held_out += f"log-loss {decimals(facts['held_out_log_loss'], facts['held_out_log_loss_interval'])} "
        held_out += f"({'corrected for the selection' if interval else 'cross-validation'})"
    threshold = []
    if "threshold" in facts:
        shares = f"precision {100 * facts['precision']:.0f} %, recall {100 * facts['recall']:.0f} %"
        threshold = [("Threshold", f"{facts['threshold']:.3g} for --metric {facts['metric']}: {shares}")]
    return [
        ("Table", f"{table}columns, {100 * facts['missing_share']:.1f} % of the values missing"),
        ("Classes", shown),
        (
            "Model",
            f"{facts['method']}, {choice['covariance']} covariances, "
            f"{components_text(choice['components_per_class'])} per class{transform}, "
            f"temperature {choice['temperature']:.2f} ({selection})",
        ),
        ("Held out", held_out),
        *threshold,
        *(("Note", note) for note in facts["notes"]),
        ("Written", f"{out} in {facts['seconds']:.1f} seconds"),
    ]


def _n_candidates(model: TableClassifier) -> str:
    search = model.estimator_.search_
    return "the simplest model" if search is None or len(search) == 1 else f"{len(search)} candidates"


def components_text(counts: object) -> str:
    return f"{text_of(counts)} {'component' if counts == 1 else 'components'}"


# ---- predict ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PredictOptions:
    """The arguments of `mixtura predict` beside the files."""

    confidence: float
    false_alarm: float
    threshold: float | None
    keep: Sequence[str]
    proba: bool
    explain: bool
    outliers: bool
    sep: str | None


def load_table_model(path: Path) -> TableClassifier:
    """Read a model file of `mixtura fit`."""
    model = load(path)
    if not isinstance(model, TableClassifier):
        raise ValueError(f"{str(path)!r} holds a {type(model).__name__}; pass a model file of `mixtura fit`.")
    return model


Unknown = tuple[str, int, str]  # kind of the values, how many there are, and an example


def run_predict(path: Path, data: Path, out: Path, options: PredictOptions) -> Answer:
    """Write the predictions for a table, part by part."""
    model = load_table_model(path)
    n_rows = n_empty = n_outliers = 0
    unknown: dict[str, Unknown] = {}
    with _written(out) as file:
        for part in read_parts(data, options.sep):
            result = predictions(model, part, options)
            _count_unknown(model, part, unknown)
            file.write(result.to_csv(index=False, header=not n_rows, lineterminator="\n", float_format="%.6g").encode())
            n_rows, n_empty = n_rows + len(result), n_empty + int(result["class"].isna().sum())
            n_outliers += int(result["outlier"].sum()) if "outlier" in result else 0
    notes = [
        f"Column {name!r} has {kind} in {count} of {n_rows} rows, such as {example!r}; they count as missing."
        for name, (kind, count, example) in unknown.items()
    ]
    facts = {"predictions": str(out), "rows": n_rows, "abstained": n_empty, "outliers": n_outliers, "notes": notes}
    if out == STANDARD:
        return Answer([], facts)
    line = f"{n_rows} rows: {n_empty} without an answer, {n_outliers} outliers; written to {out}"
    return Answer([line, *(f"Note: {note}" for note in notes)], facts)


@contextmanager
def _written(out: Path) -> Iterator[BinaryIO]:
    """A context with the standard output, or a file that appears when it is complete."""
    if out == STANDARD:
        yield sys.stdout.buffer
        sys.stdout.flush()
        return
    with write_atomically(out.resolve()) as file:
        yield file


def predictions(model: TableClassifier, frame: pd.DataFrame, options: PredictOptions) -> pd.DataFrame:
    """Kept columns, class, confidence, outlier flag, probabilities and reasons, for every row."""
    absent = [name for name in options.keep if name not in frame.columns]
    if absent:
        raise ValueError(f"There is no column {absent[0]!r} to keep; the columns are {listed(list(frame.columns))}.")
    probabilities, classes = np.asarray(model.predict_proba(frame)), model.classes_.tolist()
    numbers = _decide(model, probabilities, options.threshold)
    highest = probabilities[np.arange(len(frame)), numbers]
    chosen = pd.Series(model.classes_[numbers]).astype(object)
    columns: dict[str, object] = {name: frame[name].to_numpy() for name in options.keep}
    columns |= {"class": chosen.where(pd.Series(highest >= options.confidence), None), "confidence": highest}
    if options.outliers and isinstance(model.estimator_, DensityClassifier):
        flags = model.is_outlier(frame, options.false_alarm) if options.false_alarm else np.zeros(len(frame))
        columns["outlier"] = np.asarray(flags).astype(bool)
    if options.proba:
        columns |= {f"p({label})": probabilities[:, c] for c, label in enumerate(classes)}
    if options.explain:
        columns |= _reasons(model, frame)
    return pd.DataFrame(columns)


def _decide(model: TableClassifier, probabilities: np.ndarray, threshold: float | None) -> np.ndarray:
    """The number of the class of every row: the most probable one, or the positive class from a threshold on."""
    numbers, about = probabilities.argmax(1), model.about_
    threshold = about.get("threshold") if threshold is None else threshold
    if threshold is None:
        return numbers
    if about.get("positive") is None:
        raise ValueError("A threshold is about one of the classes; name it with `mixtura fit --positive`.")
    place = model.classes_.tolist().index(about["positive"])
    others = np.delete(np.arange(probabilities.shape[1]), place)
    best_other = others[probabilities[:, others].argmax(1)]
    return np.where(probabilities[:, place] >= threshold, place, best_other)


def _reasons(model: TableClassifier, frame: pd.DataFrame) -> dict[str, list[str]]:
    """The features with the largest contributions to the log-odds of the predicted class."""
    if not isinstance(model.estimator_, DensityClassifier):
        raise ValueError(
            f"{type(model.estimator_).__name__} cannot explain; use --method MixtureClassifier in the fit."
        )
    explanation = model.explain(frame)
    order = np.argsort(-np.abs(explanation.values), axis=1)[:, :REASONS]
    columns = {}
    for number in range(order.shape[1]):
        places, values = order[:, number], np.take_along_axis(explanation.values, order, 1)[:, number]
        names = [explanation.feature_names[place] for place in places]
        columns[f"reason {number + 1}"] = [f"{name} ({value:+.2f})" for name, value in zip(names, values, strict=True)]
    return columns


def _count_unknown(model: TableClassifier, frame: pd.DataFrame, unknown: dict[str, Unknown]) -> None:
    """Count values that count as missing because the model does not know them."""
    for column in {column.name: column for column in model.features if column.name in frame.columns}.values():
        entries = entries_of(frame[column.name])
        values = np.array([entry for entry in entries if entry is not None], dtype=object)
        strange = values[pd.isna(column.read(values))]
        if len(strange):
            kind, count, example = unknown.get(column.name, (_kind_of(column), 0, str(strange[0])))
            unknown[column.name] = kind, count + len(strange), example


def _kind_of(column: TableColumn) -> str:
    if column.part:
        return "other values than dates"
    return "other values than numbers" if column.categories is None else "unknown categories"
