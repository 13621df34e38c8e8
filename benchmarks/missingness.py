"""python -m benchmarks missingness: values that are missing because of the class. Writes results/missingness.*.

The 12 small development sets of data_sets.toml, in the folder that MIXTURA_BENCHMARKS names, two folds. 30 % of the
training values are missing with probabilities that depend on the class; values of test rows are missing for the same
reasons, not at all, or at random. A second call continues.
"""

from __future__ import annotations

import argparse
import json
import platform
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sklearn
import torch
from threadpoolctl import threadpool_limits

from benchmarks.classifiers import CLASSIFIERS, log_loss, mixture
from benchmarks.data_sets import division, remove
from benchmarks.defaults import inner_folds, split

RESULTS = Path(__file__).parent / "results"
SHARE, N_FOLDS = 0.3, 2
FOREST = "random forest, imputed"
METHODS = {
    'missing="auto"': mixture,
    'missing="ignorable"': partial(mixture, missing="ignorable"),
    FOREST: CLASSIFIERS[FOREST],
}
REASONS = ("the same", "none", "at random")  # why test values are missing


def measure(name: str, fold: int) -> dict[str, dict[str, float]]:
    """Log-losses of the test rows of a fold, by method and by what is missing there."""
    X, y, X_test, y_test = split("development", name, fold)
    thinned = remove(pd.concat((X, X_test)), "by class", SHARE, fold, np.append(y, y_test))
    tests = (thinned.iloc[len(X) :], X_test, remove(X_test, "random", SHARE, fold))
    losses: dict[str, dict[str, float]] = {}
    for method, fit in METHODS.items():
        rows = thinned.iloc[: len(X)].reset_index(drop=True)
        predict = fit(rows, y, inner_folds(y, np.arange(len(y))))
        each = [log_loss(np.asarray(predict(test.reset_index(drop=True))), y_test) for test in tests]
        losses[method] = dict(zip(REASONS, each, strict=True))
    return losses


def means(rows: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """Mean log-losses by reason and method."""
    return {(r, m): float(np.mean([row["losses"][m][r] for row in rows])) for r in REASONS for m in METHODS}


def as_markdown(results: dict[str, Any]) -> str:
    rows = results["rows"]
    averages, n_sets = means(rows), len({row["set"] for row in rows})
    lines = [
        "# Values that are missing because of the class",
        "",
        "Written by `python -m benchmarks missingness`. Mean log-loss of test rows; 30 % of the training values are",
        f"missing with probabilities that depend on the class. {n_sets} small development sets, {N_FOLDS} folds.",
        "Rules of the default were chosen on these sets. Settings of the forest are chosen by cross-validation.",
        "",
        results["versions"],
        "",
        f"| test values missing | {' | '.join(METHODS)} |",
        "|---" * (1 + len(METHODS)) + "|",
    ]
    lines += [f"| {r} | {' | '.join(f'{averages[r, m]:.3f}' for m in METHODS)} |" for r in REASONS]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    argparse.ArgumentParser(prog="python -m benchmarks missingness", description=__doc__).parse_args(arguments)
    torch.set_num_threads(1)
    path = RESULTS / "missingness.json"
    versions = f"scikit-learn {sklearn.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    results = json.loads(path.read_text("utf-8")) if path.exists() else {"versions": versions, "rows": []}
    done = {(row["set"], row["fold"]) for row in results["rows"]}
    for fold in range(N_FOLDS):
        for name in division()["quick"]:
            if (name, fold) not in done:
                with threadpool_limits(1):
                    results["rows"] += [{"set": name, "fold": fold, "losses": measure(str(name), fold)}]
                path.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
                print(results["rows"][-1], flush=True)
    (RESULTS / "missingness.md").write_text(as_markdown(results), "utf-8")


if __name__ == "__main__":
    main()
