"""Settings of sparse learning chosen on training rows: python -m studies sparse-settings.

Folds of the training rows of several data sets; no test row is read. For every fold and start one fit, then what the
choices would make of it: with the published start the Hessian, the evidence that judges starts, components that leave
one by one; for a working set, with how many columns it starts and which gain adds one. What counts is the log-loss of
the rows of the other folds. Writes results/sparse_settings.json after every fit, and .md from it. Prior variances and
the trial of one component per class: studies.sparse_simulations.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold

from mixtura.solvers import run
from mixtura.sparse import working_set
from mixtura.sparse.kernels import Polynomial, standard_scaling
from mixtura.sparse.model import compact
from mixtura.sparse.newton import Evidence, SparseNewton, State, starting_state
from mixtura.sparse.problem import SparseProblem, make_problem, starting_responsibilities
from reproduce.options import Options
from reproduce.sparse_table import done, machines, mean_and_error, one_thread, splits
from reproduce.stamps import write_json
from studies.sparse_removal import TRIAL_STEPS, simplifications

# Data set: training splits, folds of each, starts of each.
COMPONENTS = {"ripley": (1, 10, 3), "banana": (5, 3, 2), "titanic": (10, 3, 2), "breast_cancer": (10, 3, 2)}
COLUMNS = {"waveform": (10, 2, 2), "german": (5, 2, 2), "image": (5, 2, 2)}
WITH_ALL = ("0/0/0", "0/1/0", "1/0/0")  # folds of Waveform whose fit with all columns is made too; a minute each
RISES = [0.0, 1.0, 2.0, 4.0]
# Columns at the start of a working set, and the gain of the log evidence that adds one.
WORKING = [
    *((size, 0.1) for size in (5, 10, 15, 30, 60)),
    *((size, gain) for size in (5, 15) for gain in (0.5, 1.0, 2.0, 4.0)),
]
LIMIT = 2**28


def folds(name: str, n_splits: int, n_folds: int) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
    """Parts of the training rows: most of them, and the rest."""
    for number, (X, y, _, _) in enumerate(splits(name)[:n_splits]):
        X, y = (X[:400], y[:400]) if len(X) > 400 else (X, y)
        cut = StratifiedKFold(n_folds, shuffle=True, random_state=0).split(X, y)
        for fold, (fitted, held_out) in enumerate(cut):
            yield f"{number}/{fold}", (X[fitted], y[fitted], X[held_out], y[held_out])


def problem_of(X: np.ndarray, y: np.ndarray, working: bool, n_components: int = 3) -> SparseProblem:
    values = torch.from_numpy(np.asarray(X, float))
    classes, numbers = np.unique(y, return_inverse=True)
    scaling = standard_scaling(values, torch.ones(len(values), dtype=torch.float64))
    labels = torch.from_numpy(numbers)
    wanted = [n_components] * len(classes)
    return make_problem(values, labels, None, classes, scaling, Polynomial(), None, wanted, working, LIMIT)


def judged(state: State, problem: SparseProblem, parts: tuple, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Log-loss and error of held-out rows, size, and the log evidence by either Hessian."""
    evidence, basis = parts
    rows, labels = torch.from_numpy(np.asarray(X, float)), torch.from_numpy(np.searchsorted(problem.classes, y))
    record = {}
    for name in ("complete", "exact"):
        solver = SparseNewton(exact=name == "exact")
        at_mode, record[name] = solver.settled(state, evidence)
        at_mode, covariance = solver.posterior(at_mode, evidence)
        model = compact(problem.scaling, basis, at_mode.mixture, covariance)
        moderated = model.moderated_probabilities(rows).clamp_min(1e-15).log()
        record[f"moderated {name}"] = float(torch.nn.functional.nll_loss(moderated, labels))
    scores = model.class_scores(rows).T
    return {
        "loss": float(torch.nn.functional.cross_entropy(scores, labels)),
        "error": 100 * float((scores.argmax(1) != labels).double().mean()),
        "weights": model.mixture.n_pairs,
        "components": model.mixture.n_components,
        **record,
    }


def path(state: State, evidence: Evidence, solver: SparseNewton, score: Callable) -> list[dict]:
    """The model after each removal of a component, as long as the evidence does not fall."""
    results: list[dict] = []
    for _, simpler in simplifications(state, evidence, solver, solver, TRIAL_STEPS):
        record = score(simpler)
        if results and record["complete"] < results[-1]["complete"]:
            break
        results.append(record)
    return results


def fitted(problem: SparseProblem, seed: int, solver: SparseNewton) -> State:
    assert problem.evidence is not None
    responsibilities = starting_responsibilities(problem, torch.Generator().manual_seed(seed))
    n_columns = problem.evidence.n_columns
    start = starting_state(n_columns, problem.class_of, responsibilities, problem.precisions)
    return run(solver, problem.evidence, start, 2000, 0.0).mixture


def components(X, y, X_out, y_out, seed: int, **_: object) -> dict:
    """One start with either Hessian, what is left as components leave it, and one component per class."""
    problem = problem_of(X, y, False)
    assert problem.evidence is not None
    parts = (problem.evidence, problem.basis)

    def score(state: State) -> dict:
        return judged(state, problem, parts, X_out, y_out)

    state = fitted(problem, seed, SparseNewton())
    return {
        "complete": score(state),
        "exact": score(fitted(problem, seed, SparseNewton(exact=True))),
        "one": score(fitted(replace(problem, n_components=[1, 1]), seed, SparseNewton())),
        "one by one": path(state, parts[0], SparseNewton(), score),
    }


def columns(X, y, X_out, y_out, seed: int, whole: bool) -> dict:
    """One start of a working set by its settings, and one with all columns."""
    results = {}
    for setting in [*WORKING, *([None] if whole else [])]:
        problem = problem_of(X, y, setting is not None)
        begun = time.process_time()
        if setting is None:
            state, evidence, basis = problem.settled(fitted(problem, seed, SparseNewton()))
        else:
            working_set.COLUMNS_AT_START, working_set.LEAST_GAIN = setting
            generator = torch.Generator().manual_seed(seed)
            responsibilities = starting_responsibilities(problem, generator)
            working = working_set.WorkingSet(SparseNewton(), problem.candidates(), LIMIT, generator)
            start = working.start(problem.class_of, responsibilities)
            state, evidence, basis = problem.settled(run(working, problem.rows_only, start, 2000, 0.0).mixture)
        seconds = time.process_time() - begun
        record = judged(state, problem, (evidence, basis), X_out, y_out)
        results["all" if setting is None else named(setting)] = {**record, "seconds": seconds}
    return results


def named(setting: tuple[int, float]) -> str:
    return f"{setting[0]} | {setting[1]}"


def ended(records: list[dict], rise: float) -> dict:
    """Where a path ends when the evidence must rise by so much."""
    place = 0
    while place + 1 < len(records) and records[place + 1]["complete"] >= records[place]["complete"] + rise:
        place += 1
    return records[place]


# How components leave, and what is then left of a run.
RULES: dict[str, Callable[[dict], dict]] = {
    "never: the published algorithm": lambda run: run["complete"],
    **{f"one by one, rise {rise:g}": lambda run, rise=rise: ended(run["one by one"], rise) for rise in RISES},
    "never; exact Hessian": lambda run: run["exact"],
}


def by_start(runs: dict) -> dict[str, list[dict]]:
    """The starts of every fold together."""
    results: dict[str, list[dict]] = {}
    for key, record in runs.items():
        results.setdefault(key.rsplit("/", 1)[0], []).append(record)
    return results


def row(cells: list) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def components_table(results: dict) -> list[str]:
    lines = [
        "## Components",
        "",
        "Mean log-loss of held-out rows (error %; weights left) by how components leave after a fit of one start, as",
        "published; ± is the standard error of the difference of the log-loss to the first line over folds and starts.",
        "",
        row(["components leave", *COMPONENTS, "mean"]),
        row(["---"] * (2 + len(COMPONENTS))),
    ]
    for name, rule in RULES.items():
        cells, means = [], []
        for data in COMPONENTS:
            runs = list(results["components"].get(data, {}).values())
            ends = [rule(run) for run in runs]
            differences = [end["loss"] - run["complete"]["loss"] for end, run in zip(ends, runs, strict=True)]
            means.append(np.mean([end["loss"] for end in ends]))
            error, weights = (np.mean([end[key] for end in ends]) for key in ("error", "weights"))
            cells.append(f"{means[-1]:.4f} ± {mean_and_error(differences)[1]:.4f} ({error:.1f}; {weights:.1f})")
        lines.append(row([name, *cells, f"{np.mean(means):.4f}"]))
    return [*lines, ""]


def starts_table(results: dict) -> list[str]:
    lines = [
        "## Starts",
        "",
        "Mean held-out log-loss and error of the start that the evidence chooses among those of a fold, and of",
    ]
    lines += ["all starts; fits with the complete Hessian, before any component leaves.", ""]
    lines += [row(["chosen by", *COMPONENTS]), row(["---"] * (1 + len(COMPONENTS)))]
    for key in ("all starts", "complete", "exact"):
        cells = []
        for data in COMPONENTS:
            chosen = []
            for records in by_start(results["components"].get(data, {})).values():
                fits = [record["complete"] for record in records]
                chosen += fits if key == "all starts" else [max(fits, key=lambda fit: fit[key])]
            cells.append(f"{np.mean([c['loss'] for c in chosen]):.4f}, {np.mean([c['error'] for c in chosen]):.1f} %")
        lines.append(row([key, *cells]))
    return [*lines, ""]


def moderation_table(results: dict) -> list[str]:
    lines = [
        "## Moderated probabilities",
        "",
        "Mean held-out log-loss of fits with the complete Hessian, before components leave: plug-in, and",
    ]
    lines += ["moderated with the covariance of either Hessian.", ""]
    lines += [row(["probabilities", *COMPONENTS]), row(["---"] * (1 + len(COMPONENTS)))]
    for key in ("loss", "moderated complete", "moderated exact"):
        losses = [[r["complete"][key] for r in results["components"][data].values()] for data in COMPONENTS]
        lines.append(row(["plug-in" if key == "loss" else key, *(f"{np.mean(values):.4f}" for values in losses)]))
    return [*lines, ""]


def columns_table(results: dict) -> list[str]:
    lines = [
        "## Columns of a working set",
        "",
        "Log evidence, held-out log-loss, error %, weights, processor seconds; means over folds, by the number of",
        "columns at the start and the gain of the log evidence that adds one.",
        "",
    ]
    lines += [row(["columns", "gain", *COLUMNS]), row(["---"] * (2 + len(COLUMNS)))]
    for setting in map(named, WORKING):
        lines.append(row([setting, *(columns_cell(results["columns"].get(d, {}).values(), setting) for d in COLUMNS)]))
    some = [results["columns"]["waveform"][key] for key in WITH_ALL if key in results["columns"].get("waveform", {})]
    lines += ["", f"Of Waveform, the {len(some)} fits that were made with all columns too:", ""]
    lines += [row(["columns", "waveform"]), row(["---"] * 2)]
    both = {"15": named((15, 0.1)), "all": "all"}
    return [*lines, *(row([name, columns_cell(some, key)]) for name, key in both.items()), ""]


def columns_cell(records: Iterable[dict], size: str) -> str:
    runs = [record[size] for record in records]
    if not runs:
        return ""
    keys = ("complete", "loss", "error", "weights", "seconds")
    evidence, loss, error, weights, seconds = (np.mean([run[key] for run in runs]) for key in keys)
    return f"{evidence:.2f}, {loss:.4f}, {error:.1f} %, {weights:.1f}, {seconds:.1f} s"


def as_markdown(results: dict) -> str:
    lines = ["# Settings of sparse learning, chosen on training rows", ""]
    lines += ["Written by `python -m studies sparse-settings` from sparse_settings.json. No test row was read.", ""]
    lines += ["Machine: " + ", ".join(f"{key} {value}" for key, value in results["machine"].items()) + ".", ""]
    tables = (components_table, starts_table, moderation_table, columns_table)
    return "\n".join([*lines, *(line for table in tables for line in table(results))])


MEASURES = {"components": components, "columns": columns}
PLANS = {"components": COMPONENTS, "columns": COLUMNS}


def measure(part: str, name: str, fold: str, seed: int) -> dict:
    """One record of a part."""
    rows = dict(folds(name, *PLANS[part][name][:2]))[fold]
    return MEASURES[part](*rows, seed, whole=name == "waveform" and f"{fold}/{seed}" in WITH_ALL)


def planned(part: str, data: list[str] | None) -> Iterator[tuple[str, str, str, int]]:
    """Tasks of a part."""
    for name, (n_splits, n_folds, n_starts) in PLANS[part].items():
        if data is None or name in data:
            for fold, _ in folds(name, n_splits, n_folds):
                yield from ((part, name, fold, seed) for seed in range(n_starts))


def compute(options: Options) -> None:
    one_thread()
    file = options.out / "sparse_settings.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    tasks = [task for part in MEASURES for task in planned(part, ["ripley"] if options.quick else None)]
    tasks = [task for task in tasks if f"{task[2]}/{task[3]}" not in results.setdefault(task[0], {}).get(task[1], {})]
    tasks = tasks[: 1 if options.quick else None]
    if tasks:
        results["machine"] = machines(results)
    for (part, name, fold, seed), record in done(tasks, measure, options.jobs):
        results[part].setdefault(name, {})[f"{fold}/{seed}"] = record
        print(part, name, fold, seed, flush=True)
        write_json(file, results)


def pages(folder: Path) -> dict[str, str]:
    """Markdown from the JSON file, if it is there and complete."""
    path = folder / "sparse_settings.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    complete = set(COMPONENTS) <= set(results.get("components", {}))
    return {"sparse_settings.md": as_markdown(results)} if complete else {}
