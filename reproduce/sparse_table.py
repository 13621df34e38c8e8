"""Table 1 of Hayashi & Uchida (2021), errors and numbers of weights: python -m reproduce hu21-table1.

Every fit adds one record to sparse_table.json at once, and is not repeated when the script is run again without
--fresh; sparse_table.md is written from that file alone. Settings are defaults or, where a row says so, chosen for each
data set on the training rows of its first five splits (one for Ripley) by the largest evidence.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mixtura
from mixtura import RelevanceVectorClassifier, SparseMixtureClassifier
from mixtura.datasets import load_ratsch, load_ripley
from reproduce.options import Options
from reproduce.stamps import write_json

RESULTS = Path(__file__).parent / "results"
NAMES = ["ripley", "titanic", "breast_cancer", "banana", "waveform"]
GAMMAS = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0]
# Error % and number of weights as printed; the figures for the relevance vector machine are Tipping's (2001).
PAPER = {
    "sdgm": {"ripley": (9.1, 6), "waveform": (10.1, 11.0), "banana": (10.6, 11.1), "titanic": (22.6, 74.5),
             "breast_cancer": (29.4, 15.7)},
    "rvm": {"ripley": (9.3, 4), "waveform": (10.9, 14.6), "banana": (10.8, 11.4), "titanic": (23.0, 65.3),
            "breast_cancer": (29.9, 6.3)},
    "gp": {"ripley": (9.1, 250), "waveform": (10.4, 400), "banana": (10.5, 400), "titanic": (22.6, 150),
           "breast_cancer": (30.4, 200)},
}  # fmt: skip
METHODS = {
    "sdgm": "SparseMixtureClassifier, defaults (best evidence of 3 starts)",
    "sdgm_one_start": "SparseMixtureClassifier, one start",
    "sdgm_published": "the published algorithm, best evidence of 3 starts",
    "sdgm_published_one_start": "the published algorithm, one start",
    "sdgm_unscaled": "the published algorithm, one start, inputs not scaled",
    "sdgm_exact": "SparseMixtureClassifier, exact Hessian",
    "rvm": "RelevanceVectorClassifier, gamma by evidence",
    "rvm_cv": "RelevanceVectorClassifier, gamma by 5-fold cross-validation, as Tipping (2001)",
    "gp": "Gaussian process (scikit-learn), RBF, marginal likelihood",
}


@cache
def splits(name: str) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Distinct published splits."""
    if name == "ripley":
        data = load_ripley()
        return [(data.X_train, data.y_train, data.X_test, data.y_test)]
    data = load_ratsch(name)
    seen, distinct = set(), []
    for train, test in zip(data.train, data.test, strict=True):
        if (key := train.tobytes()) not in seen:
            seen.add(key)
            distinct.append((data.X[train], data.y[train], data.X[test], data.y[test]))
    return distinct


def done(tasks: list[tuple], work: Callable, processes: int) -> Iterator[tuple[tuple, dict]]:
    """Tasks and what work(*task) gave, in the order in which they end; each process has one thread."""
    if processes == 1:
        for task in tasks:
            yield task, work(*task)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=one_thread) as pool:
        pending = {pool.submit(work, *task): task for task in tasks}
        for future in as_completed(pending):
            yield pending[future], future.result()


def one_thread() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def score_of(name: str, gamma: float, number: int) -> float:
    """The log evidence of a relevance vector machine on the training rows of a split."""
    X, y, _, _ = splits(name)[number]
    return RelevanceVectorClassifier(gamma=gamma, max_iter=2000).fit(X, y).log_evidence_


def accuracy_of(name: str, gamma: float, number: int) -> float:
    """The accuracy of five-fold cross-validation on the training rows of a split."""
    X, y, _, _ = splits(name)[number]
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    return float(cross_val_score(RelevanceVectorClassifier(gamma=gamma, max_iter=500), X, y, cv=folds).mean())


SCORES = {"rvm": score_of, "rvm_cv": accuracy_of}


def scores(name: str, method: str, processes: int) -> list[float]:
    """Of every gamma the mean score over the first five splits."""
    numbers = range(min(5, len(splits(name))))
    totals = dict.fromkeys(GAMMAS, 0.0)
    tasks = [(name, gamma, number) for gamma in GAMMAS for number in numbers]
    for (_, gamma, _), losses in done(tasks, SCORES[method], processes):
        totals[gamma] += losses / len(numbers)
    return list(totals.values())


PUBLISHED = {"component_trials": False, "start_variance": None, "expected_variance": None}
OPTIONS = {
    "sdgm": {},
    "sdgm_one_start": {"n_init": 1},
    "sdgm_published": PUBLISHED,
    "sdgm_published_one_start": {**PUBLISHED, "n_init": 1},
    "sdgm_unscaled": {**PUBLISHED, "n_init": 1, "scaling": False},
    "sdgm_exact": {"hessian": "exact"},
}


def model_of(method: str, name: str, number: int, chosen: dict | None) -> Any:
    if method in SCORES:
        return RelevanceVectorClassifier(**(chosen or {}))
    if method == "gp":
        start = splits(name)[0][0].shape[1] ** 0.5  # from 1 the search ends at no width at all where features are many
        return make_pipeline(StandardScaler(), GaussianProcessClassifier(1.0 * RBF(start), random_state=0))
    return SparseMixtureClassifier(random_state=number, **OPTIONS[method])


STARTS = ("sdgm_one_start", "sdgm_published_one_start", "sdgm_unscaled")  # of Ripley, which has one split


def n_runs(method: str, name: str) -> int:
    """All distinct splits; of Ripley, which has one, many starts."""
    if name == "ripley":
        return 50 if method in STARTS else 10 if method.startswith("sdgm") else 1
    return 0 if method in STARTS else len(splits(name))


def run_one(method: str, name: str, number: int, chosen: dict | None) -> dict:
    every = splits(name)
    X, y, X_test, y_test = every[number % len(every)]
    model = model_of(method, name, number, chosen)
    start = time.process_time()
    model.fit(X, y)
    seconds = time.process_time() - start
    record = {"error": 100 * float(np.mean(model.predict(X_test) != y_test)), "seconds": seconds}
    if method == "gp":
        return {**record, "weights": len(X)}
    record |= {"weights": model.n_weights_, "components": int(model.n_components_.sum())}
    record |= {"vectors": len(model.relevance_)}
    record |= {"log_evidence": model.log_evidence_, "iterations": model.n_iter_, "converged": model.converged_}
    return record | (chosen or {})


def machine() -> dict:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor())
    versions = {"mixtura": mixtura.__version__, "torch": torch.__version__, "scikit-learn": sklearn.__version__}
    return {"processor": cpu, "threads": torch.get_num_threads(), "python": platform.python_version(), **versions}


def machines(before: dict) -> dict:
    """This machine, and in words the one of records that are there already, if it is another."""
    now, other = machine(), before.get("machine", {})
    parts = {key: value for key, value in other.items() if now.get(key) != value and key != "some rows on"}
    text = "; ".join([other.get("some rows on", ""), ", ".join(f"{key} {value}" for key, value in parts.items())])
    return now | ({"some rows on": text.strip("; ")} if text.strip("; ") else {})


def mean_and_error(values: list[float]) -> tuple[float, float]:
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return float(np.mean(values)), error


def as_markdown(results: dict) -> str:
    lines = ["# Table 1 of Hayashi & Uchida (2021)", ""]
    lines += ["Written by `python -m reproduce hu21-table1` from sparse_table.json. Mean ± standard error over"]
    lines += ["distinct splits (Ripley: over starts). Seconds are processor time of one fit.", ""]
    lines += ["Machine: " + ", ".join(f"{key} {value}" for key, value in results["machine"].items()) + ".", ""]
    lines += overview(results)
    lines += ["## Table", ""]
    lines += [
        "The published algorithm is component_trials=False, start_variance=None, expected_variance=None; the exact"
    ]
    lines += ['Hessian is hessian="exact", all else as by default.', ""]
    lines += ["| data | method | runs | error % | paper | weights | paper | seconds |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for name in NAMES:
        for method, title in METHODS.items():
            runs = list(results["runs"].get(f"{name}/{method}", {}).values())
            if not runs:
                continue
            error, weights = (mean_and_error([run[key] for run in runs]) for key in ("error", "weights"))
            paper = PAPER.get(method.split("_")[0], {}).get(name, ("", ""))
            seconds = np.mean([run["seconds"] for run in runs])
            lines.append(
                f"| {name} | {title} | {len(runs)} | {error[0]:.2f} ± {error[1]:.2f} | {paper[0]} | {weights[0]:.1f} ± "
                f"{weights[1]:.1f} | {paper[1]} | {seconds:.2f} |"
            )
    lines += [
        "",
        *chosen_by_evidence(results),
        *variation(results),
        "A mixture of Gaussian processes is missing: there is no public code for the",
    ]
    lines += ["one that the paper compares with, and the paper does not state its settings.", ""]
    return "\n".join(lines).replace(" ± nan", "")


# Targets, at most: error % and weights; of Ripley the mean of 50 starts, and the start of most evidence.
ASKED = {
    "ripley, mean of starts": (9.3, 7.6), "ripley, start chosen by evidence": (9.1, 7.6), "banana": (10.6, 11.2),
    "waveform": (10.1, 11.0), "titanic": (22.6, 74.0), "breast_cancer": (29.4, 15.7),
}  # fmt: skip


def reached(results: dict, what: str, method: str) -> tuple[float, float] | None:
    """Error % and weights of a method."""
    name, _, way = what.partition(", ")
    runs = list(results["runs"].get(f"{name}/{method}", {}).values())
    if not runs:
        return None
    if way.startswith("start"):
        runs = [max(runs, key=lambda run: run["log_evidence"])]
    return float(np.mean([run["error"] for run in runs])), float(np.mean([run["weights"] for run in runs]))


def overview(results: dict) -> list[str]:
    """Targets and results: the defaults, and the variant of the table with the smallest error."""
    lines = ["## Asked and reached", ""]
    lines += ["Error % and weights, at most; figures count as printed, with one decimal. The variant is the one of the"]
    lines += [
        "smallest error below, which only test rows can tell: it shows what the method can do, not what to choose.",
        "",
    ]
    lines += ["| data | asked | defaults | | best variant | | which |", "|---|---|---|---|---|---|---|"]
    for what, (error, weights) in ASKED.items():
        start = what.startswith("ripley")
        methods = STARTS if start else ("sdgm", "sdgm_published", "sdgm_exact")
        cells = {method: result for method in methods if (result := reached(results, what, method))}
        if not cells:
            continue
        best = min(cells, key=lambda method: cells[method])
        shown = []
        for method in (next(iter(cells)), best):
            met = round(cells[method][0], 1) <= error and round(cells[method][1], 1) <= weights
            shown += ["{:.1f}, {:.1f}".format(*cells[method]), "reached" if met else "missed"]
        lines.append("| " + " | ".join([what, f"{error}, {weights:g}", *shown, METHODS[best]]) + " |")
    return [*lines, ""]


def variation(results: dict) -> list[str]:
    """Whether the published figures lie within the variation of starts and splits."""
    starts = results["runs"].get("ripley/sdgm_published_one_start", {})
    splits_of_waveform = results["runs"].get("waveform/sdgm", {})
    if not starts or len(splits_of_waveform) < 2:
        return []
    errors = np.array([run["error"] for run in starts.values()])
    below = int((errors.round(1) <= PAPER["sdgm"]["ripley"][0]).sum())
    waves = np.array([run["error"] for run in splits_of_waveform.values()])
    apart = (waves.mean() - PAPER["sdgm"]["waveform"][0]) / (waves.std(ddof=1) / np.sqrt(len(waves)))
    return [
        f"Ripley is one split, and the published {PAPER['sdgm']['ripley'][0]} % is one run: of {len(errors)} starts "
        f"of the published algorithm {below} have at most",
        f"that error (mean {errors.mean():.2f} %, standard deviation {errors.std(ddof=1):.2f}).",
        f"On Waveform the errors of the {len(waves)} splits at hand range from {waves.min():.2f} to "
        f"{waves.max():.2f} %; our mean is {apart:.1f} standard errors",
        "above the published one, which is of 100 splits.",
        "",
        "The relevance vector machine has more weights than published where its kernel is narrower, and the evidence",
        "prefers narrow kernels. Tipping (2001), whose figures the paper quotes, chose widths by cross-validation; the",
        'rows "gamma by 5-fold cross-validation" do the same. They were added after the test figures of the other rows',
        "were known.",
        "",
    ]


def chosen_by_evidence(results: dict) -> list[str]:
    lines = []
    for method in STARTS:
        runs = list(results["runs"].get(f"ripley/{method}", {}).values())
        if runs:
            best = max(runs, key=lambda run: run["log_evidence"])
            lines += [
                f"Of the {len(runs)} starts on Ripley ({METHODS[method]}) the evidence chooses one with "
                f"{best['error']:.1f} % error and {best['weights']} weights (log evidence {best['log_evidence']:.2f}); "
                f"errors range from {min(r['error'] for r in runs):.1f} to {max(r['error'] for r in runs):.1f} %.",
                "",
            ]
    return lines


def compute(options: Options) -> None:
    one_thread()
    path = options.out / "sparse_table.json"
    results = json.loads(path.read_text()) if path.exists() else {"runs": {}, "scores": {}}
    chosen = {}
    for name in ["ripley"] if options.quick else NAMES:
        for method in SCORES:
            key = f"{name}/{method}"
            if key not in results["scores"]:
                results["scores"][key] = scores(name, method, options.jobs)
                print(key, results["scores"][key], flush=True)
                write_json(path, results)
            chosen[key] = {"gamma": GAMMAS[int(np.argmax(results["scores"][key]))]}
    tasks = [
        (method, name, number, chosen.get(f"{name}/{method}"))
        for method in METHODS
        for name in (["ripley"] if options.quick else NAMES)
        for number in range(min(options.n_seeds(10**6), n_runs(method, name)))
        if str(number) not in results["runs"].get(f"{name}/{method}", {})
    ]
    if tasks:
        results["machine"] = machines(results)
    for (method, name, number, _), record in done(tasks, run_one, options.jobs):
        results["runs"].setdefault(f"{name}/{method}", {})[str(number)] = record
        print(name, method, number, record, flush=True)
        write_json(path, results)


def pages(folder: Path) -> dict[str, str]:
    """Markdown from the JSON file, if it is there."""
    path = folder / "sparse_table.json"
    return {"sparse_table.md": as_markdown(json.loads(path.read_text()))} if path.exists() else {}
