"""python -m benchmarks.refinement [--seeds N ...] [--jobs N]: hybrid training of the model that the default chooses.

The mixture of `MixtureClassifier()` is trained on with tradeoff * log p(x, c) + (1 - tradeoff) * log p(c given x) by
extended Baum-Welch, from the fitted parameters and with the chosen prior. Every fold of a cross-validation on the
training samples does the same; its held-out samples give the temperature and the log-loss by which "chosen" decides
between the refined models and the plain one: the refined one is taken if it gains more than half a standard error.
Writes results/refinement.json and results/refinement.md.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import LabelEncoder

from benchmarks.__main__ import machine
from benchmarks.data_sets import splits
from mixtura import MixtureClassifier
from mixtura.datasets import remove_values
from mixtura.objectives import Conditional, Hybrid

RESULTS = Path(__file__).parent / "results"
TRADEOFFS = (0.9, 0.5, 0.1)
TEMPERATURES = np.geomspace(0.5, 20, 60)
N_FOLDS, MAX_ITER = 5, 50
FRACTIONS = (0.0, 0.3)


def losses(log_probabilities: np.ndarray, y: np.ndarray, temperature: float) -> np.ndarray:
    """Log-loss of every sample at a temperature."""
    scores = log_probabilities.clip(-1e4) / temperature
    return np.logaddexp.reduce(scores, 1) - scores[np.arange(len(y)), y]


def trained(chosen: MixtureClassifier, X: np.ndarray, y: np.ndarray) -> list[MixtureClassifier]:
    """The plain model with the chosen settings, and the refined ones."""
    prior = "default" if chosen.search_ is None else chosen.search_.best.what["prior"]
    settings: dict[str, Any] = {
        "n_components": dict(zip(chosen.classes_.tolist(), chosen.n_components_.tolist(), strict=True)),
        "covariance_type": chosen.mixture_.covariance.structure,
        "prior": prior,
        "warp": chosen.warp_,
        "random_state": 0,
    }
    plain = MixtureClassifier(**settings).fit(X, y)
    objectives = [Hybrid(tradeoff, Conditional()) for tradeoff in TRADEOFFS]
    return [plain] + [
        MixtureClassifier(**settings, objective=objective, init=plain, max_iter=MAX_ITER).fit(X, y)
        for objective in objectives
    ]


def measured(task: tuple[str, int]) -> tuple[str, dict[str, Any]]:
    """Log-losses on the test set of the plain, the refined and the chosen model."""
    warnings.simplefilter("ignore")
    data, seed = task
    split = splits()[data](seed)
    labels = LabelEncoder().fit(split.y_train)
    X, y = np.asarray(split.X_train, float), labels.transform(split.y_train)
    X_test, y_test = np.asarray(split.X_test, float), labels.transform(split.y_test)
    start = time.process_time()
    chosen = MixtureClassifier(random_state=0).fit(X, y)
    seconds = [time.process_time() - start]
    start = time.process_time()
    held_out = np.zeros((1 + len(TRADEOFFS), len(y), len(labels.classes_)))
    for train, test in StratifiedKFold(N_FOLDS, shuffle=True, random_state=seed).split(X, y):
        for number, model in enumerate(trained(chosen, X[train], y[train])):
            held_out[number, test] = model.predict_log_proba(X[test])
    models = trained(chosen, X, y)
    seconds.append(time.process_time() - start)
    every = np.array([[losses(scores, y, t) for t in TEMPERATURES] for scores in held_out])  # (M, T, n)
    temperatures = TEMPERATURES[every.mean(2).argmin(1)]
    own = every[np.arange(len(every)), every.mean(2).argmin(1)]  # (M, n)
    gains = own[0] - own
    errors = gains.std(1) / np.sqrt(len(y))
    best = int(own.mean(1).argmin())
    best = best if gains[best].mean() > 0.5 * errors[best] else 0
    result: dict[str, Any] = {"seconds": seconds, "chosen": best, "held out": own.mean(1).tolist()}
    for fraction in FRACTIONS:
        rows = remove_values(X_test, fraction, random_state=seed) if fraction else X_test
        pairs = zip(models, temperatures, strict=True)
        tests = [losses(model.predict_log_proba(rows), y_test, t) for model, t in pairs]
        result[f"log-loss {fraction:g}"] = [float(part.mean()) for part in tests]
        result[f"error {fraction:g}"] = [float((model.predict(rows) != y_test).mean()) for model in models]
    return f"{data} | {seed}", result


def as_markdown(results: dict[str, Any]) -> str:
    runs = results["runs"]
    lines = ["# Hybrid refinement of the default", "", __doc__.split("\n\n", 1)[1].strip(), ""]
    lines += ["Machine: " + ", ".join(f"{key} {value}" for key, value in results["machine"].items()) + ".", ""]
    lines += [f"{len(runs)} splits of {len({key.split(' | ')[0] for key in runs})} data sets.", ""]
    lines += [
        "| model | error % | log-loss | error %, 30 % missing | log-loss, 30 % missing | better / worse than plain |"
    ]
    lines += ["|---" * 6 + "|"]
    names = ["plain", *(f"tradeoff {tradeoff:g}" for tradeoff in TRADEOFFS), "chosen"]
    for number, name in enumerate(names):
        cells, better, worse = [], 0, 0
        for fraction in FRACTIONS:
            for measure, scale in (("error", 100), ("log-loss", 1)):
                values = []
                for run in runs.values():
                    row = run[f"{measure} {fraction:g}"]
                    values.append(row[run["chosen"]] if name == "chosen" else row[number])
                    if measure == "log-loss" and fraction == 0:
                        better += values[-1] < row[0] - 1e-3
                        worse += values[-1] > row[0] + 1e-3
                cells.append(f"{scale * np.mean(values):.{1 if scale > 1 else 3}f}")
        lines.append(f"| {name} | {' | '.join(cells)} | {better} / {worse} |")
    plain, more = np.sum([run["seconds"] for run in runs.values()], 0)
    n_chosen = sum(run["chosen"] > 0 for run in runs.values())
    lines += ["", f'"Chosen" takes a refined model on {n_chosen} of {len(runs)} splits.']
    lines += [f"Processor time: {plain:.0f} s for the selection of the default, {more:.0f} s for all refinements.", ""]
    lines += ["`MixtureClassifier()` does not refine: the gain on complete test sets does not pay for the work.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.refinement", description=__doc__)
    parser.add_argument("--seeds", nargs="*", type=int, default=[1], help="of the splits")
    parser.add_argument("--jobs", type=int, default=1, help="data sets at a time")
    parser.add_argument("--sets", nargs="*", default=[], help="parts of the names of data sets; all unless given")
    options = parser.parse_args()
    path = RESULTS / "refinement.json"
    results = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    results["machine"] = machine()
    tasks = [
        (data, seed)
        for seed in options.seeds
        for data in splits()
        if f"{data} | {seed}" not in results["runs"] and (not options.sets or any(t in data for t in options.sets))
    ]
    with get_context("spawn").Pool(options.jobs, torch.set_num_threads, (1,)) as pool:
        for key, result in pool.imap_unordered(measured, tasks):
            results["runs"][key] = result
            path.write_text(json.dumps(results, indent=1) + "\n")
            print(key, result, flush=True)
    (RESULTS / "refinement.md").write_text(as_markdown(results))


if __name__ == "__main__":
    main()
