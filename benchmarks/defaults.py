"""python -m benchmarks.defaults [--seeds N ...] [--sets TEXT ...]: this library and others with default parameters.

Every estimator has its default parameters, apart from those in its name. Training and test sets are those of
data_sets.py; the test set is complete, or has 30 or 60 % of its values removed at random. For estimators that do not
support NaN, missing values are replaced by the mean of the feature. Seconds are processor time of one thread. The rules
of the automatic choice were chosen on one split (seed 1) of these sets; the tables have another seed: other splits of
the published sets, and other distributions from the generators. The last table compares both. Data sets that were not
used to choose anything are in results/unseen.md.
Writes results/defaults.json after every measurement (existing ones are not repeated), results/defaults.md, and
docs/images/defaults.png.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelEncoder, MinMaxScaler, StandardScaler
from sklearn.svm import SVC

from benchmarks.__main__ import machine
from benchmarks.data_sets import Split, exported, splits
from mixtura import (
    AveragedMixtureClassifier,
    DiscriminativeMixtureClassifier,
    HybridMixtureClassifier,
    MixtureClassifier,
    NonnegativeMixtureClassifier,
    RelevanceVectorClassifier,
    SparseMixtureClassifier,
)
from mixtura.datasets import remove_values

RESULTS = Path(__file__).parent / "results"
IMAGE = Path(__file__).parents[1] / "docs" / "images" / "defaults.png"
FRACTIONS = (0.0, 0.3, 0.6)
N_BINS = 10
OURS = "MixtureClassifier()"
EARLIER = "d38bb5d"  # code with which the parts of the selection were measured, before it became quick
SEEN = "1"  # the seed whose splits were used to choose the rules of the automatic choice


def filled(estimator: BaseEstimator) -> Any:
    return make_pipeline(SimpleImputer(), StandardScaler(), estimator)


def lightgbm() -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_jobs=1, verbose=-1, random_state=0)


def catboost() -> Any:
    from catboost import CatBoostClassifier

    return CatBoostClassifier(500, thread_count=1, verbose=False, random_state=0, allow_writing_files=False)


PEERS: dict[str, Callable[[], Any]] = {
    "random forest, 300 trees": lambda: RandomForestClassifier(300, random_state=0),
    "RBF-SVM, C=10": lambda: filled(SVC(C=10, random_state=0)),
    "histogram gradient boosting": lambda: HistGradientBoostingClassifier(random_state=0),
    "LightGBM": lightgbm,
    "CatBoost, 500 trees": catboost,
    "QDA, reg_param=0.001": lambda: filled(QuadraticDiscriminantAnalysis(reg_param=1e-3)),
    "logistic regression": lambda: filled(LogisticRegression(max_iter=1000)),
}
MIXTURES: dict[str, Callable[[], Any]] = {
    OURS: lambda: MixtureClassifier(random_state=0),
    "MixtureClassifier(1)": lambda: MixtureClassifier(1, random_state=0),
}
# What each part of the selection gains: the default with that part switched off.
PARTS: dict[str, Callable[[], Any]] = {
    "without temperature": lambda: MixtureClassifier(temperature=1.0, random_state=0),
    "without transforms": lambda: MixtureClassifier(warp=None, random_state=0),
    "full covariances only": lambda: MixtureClassifier(covariance_type="full", random_state=0),
    "default prior only": lambda: MixtureClassifier(prior="default", random_state=0),
}
OTHERS: dict[str, Callable[[], Any]] = {
    "AveragedMixtureClassifier()": lambda: AveragedMixtureClassifier(random_state=0),
    "DiscriminativeMixtureClassifier()": lambda: DiscriminativeMixtureClassifier(random_state=0),
    "HybridMixtureClassifier()": lambda: HybridMixtureClassifier(random_state=0),
    "SparseMixtureClassifier()": lambda: filled(SparseMixtureClassifier(random_state=0)),
    "RelevanceVectorClassifier()": lambda: filled(RelevanceVectorClassifier(random_state=0)),
    "NonnegativeMixtureClassifier()": lambda: make_pipeline(
        SimpleImputer(), MinMaxScaler(clip=True), NonnegativeMixtureClassifier(random_state=0)
    ),
}
GROUPS = {"mixtures": MIXTURES, "peers": PEERS, "parts": PARTS, "others": OTHERS}


def measured(make: Callable[[], Any], split: Split, seed: int) -> dict[str, float]:
    """Error, log-loss and calibration error on test sets with values removed, and seconds."""
    labels = LabelEncoder().fit(split.y_train)
    y_train, y_test = labels.transform(split.y_train), labels.transform(split.y_test)
    X_train, X_test = np.asarray(split.X_train, float), np.asarray(split.X_test, float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.process_time()
        model = make().fit(X_train, y_train)
        results = {"fit seconds": time.process_time() - start}
        for fraction in FRACTIONS:
            X = remove_values(X_test, fraction, random_state=seed) if fraction else X_test
            start = time.process_time()
            results |= {f"{name} {fraction:g}": value for name, value in scores(model, X, y_test).items()}
            results[f"predict seconds {fraction:g}"] = time.process_time() - start
    return results


def scores(model: Any, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    try:
        probabilities = np.asarray(model.predict_proba(X), dtype=float)
    except AttributeError:  # an SVM has no probabilities
        return {"error": float((np.asarray(model.predict(X)).ravel() != y).mean())}
    return {
        "error": float((probabilities.argmax(1) != y).mean()),
        "log-loss": float(-np.log(probabilities[np.arange(len(y)), y].clip(1e-15)).mean()),
        "calibration": calibration_error(probabilities, y),
    }


def calibration_error(probabilities: np.ndarray, y: np.ndarray) -> float:
    """Mean distance of confidence and accuracy over bins of equal size."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == y
    order = np.argsort(confidence)
    return float(
        sum(abs(confidence[part].sum() - right[part].sum()) for part in np.array_split(order, N_BINS)) / len(y)
    )


def run(names: list[str], seeds: list[int], patterns: list[str], jobs: int = 1, folder: str = "") -> dict[str, Any]:
    """Measure what is not in the results yet; `folder` has other data sets, whose results are kept apart."""
    path = RESULTS / ("unseen.json" if folder else "defaults.json")
    results = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    results["machine"], results["code"] = machine(), version()
    tasks = [
        (data, seed, name, folder)
        for seed in seeds
        for data in (exported(folder) if folder else splits())
        if not patterns or any(pattern in data for pattern in patterns)
        for name in names
        if key_of(data, seed, name, folder) not in results["runs"]
    ]
    with get_context("spawn").Pool(jobs, torch.set_num_threads, (1,)) as pool:
        for key, result in pool.imap_unordered(_measured_task, tasks):
            results["runs"][key] = result
            path.write_text(json.dumps(results, indent=1) + "\n")
            print(key, {k: round(v, 3) for k, v in result.items() if "0.6" not in k}, flush=True)
    return results


def key_of(data: str, seed: int, name: str, folder: str) -> str:
    """Name of a run; on the sets of a folder, this library's estimators are measured again for every version of it."""
    own = folder and name not in PEERS
    return f"{data} | {seed} | {name}" + (f", {version()}" if own else "")


def _measured_task(task: tuple[str, int, str, str]) -> tuple[str, dict[str, float]]:
    data, seed, name, folder = task
    make = next(group[name] for group in GROUPS.values() if name in group)
    split = (exported(folder) if folder else splits())[data](seed)
    return key_of(*task), measured(make, split, seed)


def version() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, cwd=RESULTS).stdout.strip()


def table(results: dict[str, Any], measure: str) -> tuple[list[str], list[str], np.ndarray]:
    """Estimators, data sets, and the measure of each pair, the mean over seeds; only sets that all have."""
    values: dict[tuple[str, str], list[float]] = {}
    for key, result in results["runs"].items():
        data, _, name = key.split(" | ")
        if measure in result:
            values.setdefault((name, data), []).append(result[measure])
    names = list(dict.fromkeys(name for name, _ in values))
    data_sets = [d for d in dict.fromkeys(d for _, d in values) if all((name, d) in values for name in names)]
    return names, data_sets, np.array([[np.mean(values[name, d]) for d in data_sets] for name in names])


def ranks(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean rank over data sets, and half the width of its 95 % interval."""
    each = np.array([[(column < v).sum() + ((column == v).sum() + 1) / 2 for v in column] for column in values.T])
    return each.mean(0), 1.96 * each.std(0) / np.sqrt(max(1, len(each)))


def as_markdown(results: dict[str, Any]) -> str:
    lines = ["# Defaults", "", f"Written by `python -m benchmarks.defaults` with code {results['code']}.", ""]
    lines += ["Machine: " + ", ".join(f"{key} {value}" for key, value in results["machine"].items()) + ".", ""]
    lines += [results["note"], ""] if "note" in results else []
    lines += [__doc__.split("\n\n", 1)[1].strip(), ""]
    seen = {key: result for key, result in results["runs"].items() if key.split(" | ")[1] == SEEN}
    results = {**results, "runs": {key: result for key, result in results["runs"].items() if key not in seen}}
    for title, groups, chosen in (
        ("Mixtures and peers", ("mixtures", "peers"), results["runs"]),
        ("What each part of the selection gains", ("mixtures", "parts"), results["runs"]),
        (f"Other estimators of the library, seed {SEEN}", ("mixtures", "others"), seen),
    ):
        names = [name for group in groups for name in GROUPS[group]]
        runs = {key: result for key, result in chosen.items() if key.split(" | ")[2] in names}
        if any(key.split(" | ")[2] in GROUPS[groups[1]] for key in runs):
            lines += [f"## {title}", "", *section({"runs": runs}), ""]
    earlier = {key: result for key, result in results["runs"].items() if key.endswith(f", {EARLIER}")}
    if earlier:
        lines += [f"## What each part of the selection gained in code {EARLIER}", "", *section({"runs": earlier}), ""]
    return "\n".join([*lines, *_comparison(seen, results["runs"])])


def _comparison(seen: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Log-losses and ranks on the splits on which rules were chosen, and on others, over the same sets."""
    names = [*MIXTURES, *PEERS]
    pairs = [{tuple(key.split(" | ")[::2]) for key in runs} for runs in (seen, new)]  # of sets and estimators
    both = {pair for pair in pairs[0] & pairs[1] if pair[1] in names}
    lines, columns, data_sets = ["## The splits on which rules were chosen, and others", ""], [], []
    for runs in (seen, new):
        chosen = {key: result for key, result in runs.items() if tuple(key.split(" | ")[::2]) in both}
        for fraction in FRACTIONS[:2]:
            estimators, data_sets, losses = table({"runs": chosen}, f"log-loss {fraction:g}")
            columns.append(dict(zip(estimators, zip(losses.mean(1), ranks(losses)[0], strict=True), strict=True)))
    lines += [f"Log-loss (rank), {len(data_sets)} data sets:", ""]
    lines += ["| estimator | seed 1, complete | seed 1, 30 % missing | others, complete | others, 30 % missing |"]
    lines += ["|---" * 5 + "|"]
    for name in sorted(columns[2], key=lambda name: columns[2][name][0]):
        lines.append(f"| {name} | " + " | ".join(f"{c[name][0]:.3f} ({c[name][1]:.1f})" for c in columns) + " |")
    return [*lines, ""]


def section(results: dict[str, Any]) -> list[str]:
    lines = []
    for fraction, title in zip(FRACTIONS, ("complete", "30 % of the values missing", "60 % missing"), strict=True):
        names, data_sets, errors = table(results, f"error {fraction:g}")
        probable, _, losses = table(results, f"log-loss {fraction:g}")
        _, _, calibrations = table(results, f"calibration {fraction:g}")
        fits, predictions = (
            dict(zip(names, table(results, f"{kind} seconds{end}")[2].sum(1), strict=True))
            for kind, end in (("fit", ""), ("predict", f" {fraction:g}"))
        )
        mean_ranks = dict(zip(probable, zip(*ranks(losses), strict=True), strict=True))
        rows = dict(zip(probable, zip(losses.mean(1), calibrations.mean(1), strict=True), strict=True))
        lines += [f"Test set {title}, {len(data_sets)} data sets:", ""]
        columns = "error %", "log-loss", "rank by log-loss", "calibration error %", "seconds of fits", "of predictions"
        lines += [f"| estimator | {' | '.join(columns)} |"]
        lines += ["|---" * 7 + "|"]
        for name, error in sorted(zip(names, errors.mean(1), strict=True), key=lambda pair: rows.get(pair[0], (9,))[0]):
            loss, calibration = rows.get(name, (np.nan, np.nan))
            rank, width = mean_ranks.get(name, (np.nan, np.nan))
            cells = [f"{loss:.3f}", f"{rank:.1f} ± {width:.1f}", f"{100 * calibration:.1f}"]
            cells = cells if name in rows else ["", "", ""]
            lines.append(
                f"| {name} | {100 * error:.1f} | {' | '.join(cells)} | {fits[name]:.1f} | {predictions[name]:.2f} |"
            )
        lines.append("")
    return lines


def draw(results: dict[str, Any]) -> None:
    """Mean errors and log-losses against the share of missing values."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    names = [*MIXTURES, *PEERS]
    parts = {key: key.split(" | ") for key in results["runs"]}
    chosen = [key for key, (_, seed, name) in parts.items() if seed != SEEN and name in names]
    runs = {"runs": {key: results["runs"][key] for key in chosen}}
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for ax, measure, title in zip(axes, ("error", "log-loss"), ("error, %", "log-loss"), strict=True):
        curves = [table(runs, f"{measure} {fraction:g}") for fraction in FRACTIONS]
        for name in curves[0][0]:
            number = names.index(name)
            heights = [values[estimators.index(name)].mean() for estimators, _, values in curves]
            heights = [100 * h for h in heights] if measure == "error" else heights
            own = name == OURS
            look = {"color": "black" if own else f"C{number}", "linewidth": 2.5 if own else 1.2}
            ax.plot([100 * f for f in FRACTIONS], heights, marker="os^vDP*Xh"[number % 9], label=name, **look)
        ax.set(xlabel="test values removed, %", ylabel=f"{title}, mean over data sets", xticks=[0, 30, 60])
        ax.grid(alpha=0.3)
    axes[0].set_ylim(top=62)  # for the legend
    axes[1].set_ylim(top=1.7)  # QDA is far above
    axes[0].legend(fontsize=7)
    figure.savefig(IMAGE, dpi=80)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.defaults", description=__doc__)
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2], help="of the splits")
    parser.add_argument("--jobs", type=int, default=1, help="fits at a time")
    parser.add_argument("--sets", nargs="*", default=[], help="parts of the names of data sets; all unless given")
    parser.add_argument("--groups", nargs="*", default=["mixtures", "peers"], choices=list(GROUPS))
    options = parser.parse_args()
    names = [name for group in options.groups for name in GROUPS[group]]
    results = run(names, options.seeds, options.sets, options.jobs)
    (RESULTS / "defaults.json").write_text(json.dumps(results, indent=1) + "\n")
    (RESULTS / "defaults.md").write_text(as_markdown(results))
    draw(results)


if __name__ == "__main__":
    main()
