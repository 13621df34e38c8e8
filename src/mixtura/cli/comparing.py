"""`mixtura compare`: mixtures beside other classifiers on held-out rows of a table."""

from __future__ import annotations

import argparse
import pickle
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from mixtura.cli.answers import Answer
from mixtura.cli.columns import read_problem
from mixtura.cli.files import read_table
from mixtura.cli.fitting import CHOICE
from mixtura.cli.settled import calibration_error, log_loss_of, sampled
from mixtura.datasets import remove_values
from mixtura.estimators.classifier import MixtureClassifier
from mixtura.estimators.discriminative import DiscriminativeMixtureClassifier
from mixtura.estimators.table_classifier import TableClassifier
from mixtura.reading.tables import Table

HELD_OUT, REMOVED = 0.3, 0.3  # shares of the rows and of the values
MOST_ROWS = 5000
MOST_PARAMETERS_DISCRIMINATIVE = 5000  # features times classes, above which its search takes minutes


@dataclass(frozen=True)
class Rival:
    """A classifier of the comparison and how it is made."""

    name: str
    make: Callable[[int], Any]
    ours: bool = False


def _imputed(model: Any) -> Any:
    return make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler(), model)


RIVALS = (
    Rival("QDA", lambda seed: _imputed(QuadraticDiscriminantAnalysis(reg_param=0.1))),
    Rival("naive Bayes", lambda seed: _imputed(GaussianNB())),
    Rival("logistic regression", lambda seed: _imputed(LogisticRegression(max_iter=1000))),
    Rival("RBF-SVM", lambda seed: _imputed(CalibratedClassifierCV(SVC(), cv=3))),
    Rival("random forest", lambda seed: _imputed(RandomForestClassifier(300, random_state=seed))),
    Rival("gradient boosting", lambda seed: HistGradientBoostingClassifier(random_state=seed)),
)


def family(budget: float, size: int) -> list[Rival]:
    """The mixtures of the comparison; `size` is features times classes."""
    mixtures = [
        Rival(
            "MixtureClassifier",
            lambda seed: MixtureClassifier(time_budget=CHOICE * budget, random_state=seed),
            ours=True,
        )
    ]
    if size <= MOST_PARAMETERS_DISCRIMINATIVE:
        mixtures.append(Rival("DiscriminativeMixture", lambda seed: _discriminative(seed), ours=True))
    return mixtures


def _discriminative(seed: int) -> Any:
    return DiscriminativeMixtureClassifier(random_state=seed)


def scores_of(rival: Rival, parts: tuple[Any, Any, Any, Any], seed: int) -> dict[str, Any]:
    """Fit a classifier and score held-out samples; the fields are empty, with a reason, where it fails."""
    X_train, X_test, y_train, y_test = parts
    model = rival.make(seed)
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X_train, y_train)
            probabilities = np.asarray(model.predict_proba(X_test))
    except (ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
        return {"method": rival.name, "failed": " ".join(str(error).split())[:120]}
    seconds = time.perf_counter() - began
    classes = np.unique(np.concatenate([y_train, y_test]))
    complete = np.zeros((len(y_test), len(classes)))
    complete[:, np.searchsorted(classes, model.classes_)] = probabilities
    numbers = np.searchsorted(classes, y_test)
    return {
        "method": rival.name,
        "error": float((complete.argmax(1) != numbers).mean()),
        "log_loss": log_loss_of(complete, numbers),
        "calibration_error": calibration_error(complete, numbers),
        "seconds": seconds,
        "kilobytes": len(pickle.dumps(model)) / 1024,
    }


def compared(X: Any, labels: np.ndarray, rivals: list[Rival], seed: int, progress: bool) -> dict[str, list[Any]]:
    """Scores on held-out rows, by whether values were removed."""
    _, counts = np.unique(labels, return_counts=True)
    stratify = labels if counts.min() >= 2 and HELD_OUT * len(labels) >= len(counts) else None
    rows = np.arange(len(labels))
    train, test = train_test_split(rows, test_size=HELD_OUT, stratify=stratify, random_state=seed)
    results: dict[str, list[Any]] = {}
    for name, fraction in (("as it is", 0.0), (f"{REMOVED:.0%} of the values removed", REMOVED)):
        values = X if not fraction else remove_values(np.asarray(X), fraction, seed)
        values = np.asarray(values)
        parts = (values[train], values[test], labels[train], labels[test])
        results[name] = []
        for rival in rivals:
            if progress:
                print(f"... {rival.name}, table {name}", file=sys.stderr, flush=True)
            results[name].append(scores_of(rival, parts, seed))
    return results


def run_compare(options: argparse.Namespace) -> Answer:
    """Compare classifiers on a table."""
    problem = read_problem(read_table(options.data), options.target, options.drop)
    rows = sampled(len(problem.labels), MOST_ROWS, problem.labels, options.seed)
    X = TableClassifier(columns=problem.columns).encode(problem.frame.iloc[rows])
    labels = problem.labels[rows]
    rivals = [*family(options.budget, X.shape[1] * len(np.unique(labels))), *RIVALS]
    results = compared(X, labels, rivals, options.seed, sys.stderr.isatty() and not options.json)
    facts = {"rows": len(rows), "held_out_share": HELD_OUT, "results": results, "notes": problem.notes}
    texts = [f"{len(rows)} rows, {X.shape[1]} features, {len(np.unique(labels))} classes; 30 % of the rows held out"]
    if len(rows) < len(problem.labels):
        texts[0] += f" (a sample of {len(problem.labels)} rows)"
    for name, lines in results.items():
        texts += [f"\nTable {name}", str(score_table(lines))]
    texts += [f"Note: {note}" for note in problem.notes]
    texts.append(
        "\nMissing values: mixtures marginalise them and gradient boosting splits on them; the others get mean "
        "imputation. Calibration: expected calibration error. Seconds: fit and prediction."
    )
    return Answer("\n".join(texts), facts)


def score_table(lines: list[dict[str, Any]]) -> Table:
    """The scores of all classifiers as a table."""

    def column(name: str, form: str, factor: float = 1.0) -> list[str]:
        return [form.format(factor * line[name]) if name in line else "failed" for line in lines]

    return Table(
        {
            "method": [line["method"] for line in lines],
            "error, %": column("error", "{:.1f}", 100),
            "log-loss": column("log_loss", "{:.3f}"),
            "calibration": column("calibration_error", "{:.3f}"),
            "seconds": column("seconds", "{:.2f}"),
            "size, kB": column("kilobytes", "{:.0f}"),
        }
    )
