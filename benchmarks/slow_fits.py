"""python -m benchmarks.slow_fits [--groups ...] [--only TEXT ...]: fits that users wait for, and every default fit.

Each fit runs in a process of its own, after a fit of the same estimator to 60 samples, which imports what is needed.
Seconds are processor time of one thread, the smallest of several repetitions where a fit is short; other processes on
the machine add to it. MB is the growth of the largest resident memory during the fit. A fit sees half of a data set;
the error is that of the other half. All are means over splits. A fit that takes longer than LONGEST seconds is stopped.
Writes results/slow_fits.json after every measurement (existing ones are not repeated) and results/slow_fits.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import TimeoutError, get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets as bundled
from sklearn import mixture as others
from sklearn.impute import SimpleImputer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.__main__ import machine
from benchmarks.defaults import version
from mixtura import (
    AveragedMixtureClassifier,
    DiscriminativeMixtureClassifier,
    GaussianMixture,
    HybridMixtureClassifier,
    MixtureClassifier,
    NonnegativeMixtureClassifier,
    RelevanceVectorClassifier,
    SparseMixtureClassifier,
)
from mixtura.datasets import remove_values

RESULTS = Path(__file__).parent / "results"
N_SPLITS = 3
SHORT = 1.0  # seconds below which a fit is repeated
N_REPETITIONS = 5
LONGEST = 600


def _filled(estimator: Any) -> Any:
    return make_pipeline(SimpleImputer(), StandardScaler(), estimator)


def generated(n_samples: int, n_features: int) -> tuple[np.ndarray, np.ndarray]:
    """3 classes of 4 clusters each with correlated features."""
    rng = np.random.default_rng(0)
    component = rng.integers(12, size=n_samples)
    mixing = np.eye(n_features) + 0.3 * rng.normal(size=(12, n_features, n_features)) / np.sqrt(n_features)
    centres = 2.5 * rng.normal(size=(12, n_features))
    noise = rng.normal(size=(n_samples, n_features))
    X = np.empty_like(noise)
    for k in range(12):
        X[component == k] = centres[k] + noise[component == k] @ mixing[k]
    return X, component % 3


def missing_digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = bundled.load_digits(return_X_y=True)
    return remove_values(X, 0.3, random_state=0), y


def wide() -> tuple[np.ndarray, np.ndarray]:
    """120 samples of 2000 features, 10 of them informative."""
    return bundled.make_classification(120, 2000, n_informative=10, n_redundant=0, random_state=0)


def plane() -> tuple[np.ndarray, np.ndarray]:
    """500 samples of 4 clusters in 2 dimensions, unlabeled."""
    X, _ = bundled.make_blobs(500, 2, centers=4, random_state=0)
    return X, np.zeros(500, int)


DATA: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    "wine": lambda: bundled.load_wine(return_X_y=True),
    "breast cancer": lambda: bundled.load_breast_cancer(return_X_y=True),
    "digits": lambda: bundled.load_digits(return_X_y=True),
    "20 000 x 20": lambda: generated(40_000, 20),
    "100 000 x 10": lambda: generated(200_000, 10),
    "digits, 30 % missing": missing_digits,
    "60 x 2000": wide,
    "250 x 2": plane,
}


class Shifted:
    """A classifier of non-negative features, after a shift of the features to start at zero."""

    def __init__(self, estimator: Any):
        self.estimator = estimator

    def fit(self, X: np.ndarray, y: np.ndarray) -> Shifted:
        self.low = X.min(0)
        self.estimator.fit(X - self.low, y)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.estimator.predict((X - self.low).clip(0))


DEFAULTS: dict[str, Callable[[], Any]] = {
    "MixtureClassifier()": lambda: MixtureClassifier(random_state=0),
    "AveragedMixtureClassifier()": lambda: AveragedMixtureClassifier(random_state=0),
    "DiscriminativeMixtureClassifier()": lambda: DiscriminativeMixtureClassifier(random_state=0),
    "HybridMixtureClassifier()": lambda: HybridMixtureClassifier(random_state=0),
    "NonnegativeMixtureClassifier()": lambda: Shifted(NonnegativeMixtureClassifier(random_state=0)),
    "SparseMixtureClassifier()": lambda: _filled(SparseMixtureClassifier(random_state=0)),
    "RelevanceVectorClassifier()": lambda: _filled(RelevanceVectorClassifier(random_state=0)),
    'GaussianMixture("auto")': lambda: GaussianMixture("auto", random_state=0),
}
ESTIMATORS: dict[str, Callable[[], Any]] = DEFAULTS | {
    "MixtureClassifier(2)": lambda: MixtureClassifier(2, random_state=0),
    'MixtureClassifier(1, covariance_type="full")': lambda: MixtureClassifier(
        1, covariance_type="full", random_state=0
    ),
    "GaussianMixture(4)": lambda: GaussianMixture(4, random_state=0),
    "scikit-learn's GaussianMixture(4)": lambda: others.GaussianMixture(4, random_state=0),
}
WAITED_FOR = [  # with a limit in seconds, if there is one
    ("digits, 30 % missing", "MixtureClassifier(2)", 1.0),
    ("wine", "SparseMixtureClassifier()", 3.0),
    ("digits", "DiscriminativeMixtureClassifier()", 5.0),
    ("digits", "NonnegativeMixtureClassifier()", 5.0),
    ("digits", "MixtureClassifier()", None),
    ("digits, 30 % missing", "MixtureClassifier()", None),
    ("60 x 2000", 'MixtureClassifier(1, covariance_type="full")', None),
    ("60 x 2000", "MixtureClassifier()", None),
    ("250 x 2", "GaussianMixture(4)", None),
    ("250 x 2", "scikit-learn's GaussianMixture(4)", None),
]
SETS = ("wine", "breast cancer", "digits", "20 000 x 20", "100 000 x 10")
GROUPS = {
    "waited": [(data, name) for data, name, _ in WAITED_FOR],
    "defaults": [(data, name) for data in SETS for name in DEFAULTS],
}


def resident() -> float:
    """The largest resident memory so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(data: str, name: str, split: int) -> dict[str, Any]:
    """Seconds, MB, error and warnings of a fit to half of a data set."""
    X, y = DATA[data]()
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=split, stratify=y)
    make = ESTIMATORS[name]
    rng = np.random.default_rng(0)
    with warnings.catch_warnings(record=True) as caught:
        make().fit(abs(rng.normal(size=(60, 3))), np.arange(60) % 2)
        caught.clear()
        before, seconds = resident(), []
        while not seconds or (min(seconds) < SHORT and len(seconds) < N_REPETITIONS):
            start = time.process_time()
            model = make().fit(X_train, y_train)
            seconds.append(time.process_time() - start)
        results = {"seconds": min(seconds), "MB": resident() - before}
        results["warnings"] = sorted({f"{type(w.message).__name__}: {w.message}" for w in caught})
        if "GaussianMixture" not in name:
            results["error"] = float((np.asarray(model.predict(X_test)) != y_test).mean())
    return results


def measured_task(task: tuple[str, str, int]) -> tuple[str, dict[str, Any]]:
    torch.set_num_threads(1)
    try:
        return " | ".join(map(str, task)), measured(*task)
    except Exception as error:  # a fit that fails is a row of the table
        return " | ".join(map(str, task)), {"failure": f"{type(error).__name__}: {error}"}


def run(groups: list[str], patterns: list[str], n_splits: int) -> dict[str, Any]:
    """Measure what is not in the results yet."""
    path = RESULTS / "slow_fits.json"
    results = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    results["machine"] = machine()
    tasks = [
        (data, name, split)
        for group in groups
        for data, name in GROUPS[group]
        for split in range(n_splits)
        if not patterns or any(pattern in f"{data} | {name}" for pattern in patterns)
    ]
    for task in dict.fromkeys(tasks):
        if " | ".join(map(str, task)) in results["runs"]:
            continue
        key, result = " | ".join(map(str, task)), {"failure": f"more than {LONGEST} seconds"}
        with get_context("spawn").Pool(1) as pool, suppress(TimeoutError):
            key, result = pool.apply_async(measured_task, (task,)).get(LONGEST)
        results["runs"][key] = {**result, "code": version()}
        path.write_text(json.dumps(results, indent=1) + "\n")
        print(key, {k: round(v, 3) if isinstance(v, float) else v for k, v in result.items()}, flush=True)
    return results


def row(results: dict[str, Any], data: str, name: str) -> list[str] | None:
    """Seconds, MB and error of a fit, the means over splits; None where there is no measurement."""
    runs = [result for key, result in results["runs"].items() if key.startswith(f"{data} | {name} | ")]
    failures = [result["failure"].split("\n")[0][:80] for result in runs if "failure" in result]
    if failures:
        return [failures[0], "", ""]
    if not runs:
        return None
    means = {key: np.mean([result[key] for result in runs]) for key in ("seconds", "MB")}
    classified = "error" in runs[0] and "GaussianMixture" not in name
    error = f"{100 * np.mean([result['error'] for result in runs]):.1f}" if classified else ""
    return [f"{means['seconds']:.3g}", f"{means['MB']:.0f}", error]


def as_markdown(results: dict[str, Any]) -> str:
    lines = ["# Fits that users wait for", ""]
    codes = sorted({result["code"] for result in results["runs"].values()})
    lines += [f"Written by `python -m benchmarks.slow_fits` with code {', '.join(codes)}.", ""]
    lines += ["Machine: " + ", ".join(f"{key} {value}" for key, value in results["machine"].items()) + ".", ""]
    lines += [__doc__.split("\n\n", 1)[1].strip(), ""]
    lines += ["| data | estimator | seconds | at most | MB | error % |", "|---" * 6 + "|"]
    for data, name, limit in WAITED_FOR:
        cells = row(results, data, name)
        if cells is not None:
            lines.append(f"| {data} | {name} | {cells[0]} | {limit or ''} | {cells[1]} | {cells[2]} |")
    lines += ["", "## Defaults", "", "Seconds (MB; error in %).", ""]
    lines += [f"| estimator | {' | '.join(SETS)} |", "|---" * (len(SETS) + 1) + "|"]
    for name in DEFAULTS:
        cells = [row(results, data, name) for data in SETS]
        shown = ["not measured" if c is None else f"{c[0]} ({'; '.join(filter(None, c[1:]))})" for c in cells]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_fits", description=__doc__)
    parser.add_argument("--groups", nargs="*", default=list(GROUPS), choices=list(GROUPS))
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of data sets and estimators")
    parser.add_argument("--splits", type=int, default=N_SPLITS)
    options = parser.parse_args()
    results = run(options.groups, options.only, options.splits)
    (RESULTS / "slow_fits.md").write_text(as_markdown(results))


if __name__ == "__main__":
    main()
