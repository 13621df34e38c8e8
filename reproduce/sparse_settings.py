"""python -m reproduce.sparse_settings: settings of sparse learning chosen on training rows.

Folds of the training rows of several data sets; no test row is read. For every fold and start one fit, then what the
choices would make of it: the Hessian, the evidence that judges starts and components, how clearly the evidence must
rise for a component to leave; and for a working set, with how many columns it starts. What counts is the log-loss
of the rows of the other folds. Writes results/sparse_settings.json after every fit, and .md from it.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold

from mixtura.bases import Polynomial, standard_scaling
from mixtura.estimators.sparse import compact
from mixtura.estimators.sparse_problem import Problem, make_problem, starting_responsibilities
from mixtura.solvers import run, working_set
from mixtura.solvers.newton import Evidence, SparseNewton, State, starting_state
from mixtura.solvers.simplify import TRIAL_STEPS, simplifications
from mixtura.sparse_mixture import class_scores
from reproduce.sparse_table import RESULTS, machine, mean_and_error, splits

# Data set: training splits, folds of each, starts of each.
COMPONENTS = {"ripley": (1, 10, 2), "banana": (2, 3, 2), "titanic": (2, 3, 2), "breast_cancer": (2, 3, 2)}
COLUMNS = {"waveform": (5, 2, 2), "german": (3, 2, 2), "image": (3, 2, 2)}
WITH_ALL = ("0/0/0", "0/1/0", "1/0/0")  # folds of Waveform whose fit with all columns is made too; a minute each
RISES = [0.0, 0.5, 1.0, 2.0, 4.0]
STARTS = [15, 30, 60, 120]
LIMIT = 2**28


def folds(name: str, n_splits: int, n_folds: int) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
    """Parts of the training rows: most of them, and the rest."""
    for number, (X, y, _, _) in enumerate(splits(name)[:n_splits]):
        X, y = (X[:400], y[:400]) if len(X) > 400 else (X, y)
        cut = StratifiedKFold(n_folds, shuffle=True, random_state=0).split(X, y)
        for fold, (fitted, held_out) in enumerate(cut):
            yield f"{number}/{fold}", (X[fitted], y[fitted], X[held_out], y[held_out])


def problem_of(X: np.ndarray, y: np.ndarray, working: bool) -> Problem:
    values = torch.from_numpy(np.asarray(X, float))
    classes, numbers = np.unique(y, return_inverse=True)
    scaling = standard_scaling(values, torch.ones(len(values), dtype=torch.float64))
    labels = torch.from_numpy(numbers)
    return make_problem(values, labels, None, classes, scaling, Polynomial(), None, [3, 3], working, LIMIT)


def judged(state: State, problem: Problem, parts: tuple, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Log-loss and error of held-out rows, size, and the log evidence by either Hessian."""
    evidence, basis = parts
    rows, labels = torch.from_numpy(np.asarray(X, float)), torch.from_numpy(np.searchsorted(problem.classes, y))
    found = {}
    for name in ("complete", "exact"):
        solver = SparseNewton(exact=name == "exact")
        at_mode, found[name] = solver.settled(state, evidence)
        at_mode, covariance = solver.posterior(at_mode, evidence)
        model = compact(problem.scaling, basis, at_mode.mixture, covariance)
        moderated = model.moderated_scores(rows).clamp_min(1e-15).log()
        found[f"moderated {name}"] = float(torch.nn.functional.nll_loss(moderated, labels))
    scores = class_scores(model.log_joint(rows), model.mixture.class_of)
    return {
        "loss": float(torch.nn.functional.cross_entropy(scores, labels)),
        "error": 100 * float((scores.argmax(1) != labels).double().mean()),
        "weights": model.mixture.n_pairs,
        "components": model.mixture.n_components,
        **found,
    }


def path(state: State, evidence: Evidence, solver: SparseNewton, judge: SparseNewton, score: Callable) -> list[dict]:
    """What is left after each component that leaves, as long as the judge's evidence does not fall."""
    found: list[dict] = []
    key = "exact" if judge.exact else "complete"
    for _, simpler in simplifications(state, evidence, solver, judge, TRIAL_STEPS):
        record = score(simpler)
        if found and record[key] < found[-1][key]:
            break
        found.append(record)
    return found


def components(X, y, X_out, y_out, seed: int, **_: object) -> dict:
    """One start with either Hessian, and its simplifications by either evidence."""
    problem = problem_of(X, y, False)
    assert problem.evidence is not None
    parts = (problem.evidence, problem.basis)
    responsibilities = starting_responsibilities(problem, torch.Generator().manual_seed(seed))
    start = starting_state(problem.evidence.n_columns, problem.class_of, responsibilities)

    def score(state: State) -> dict:
        return judged(state, problem, parts, X_out, y_out)

    found = {}
    for name, solver in {"complete": SparseNewton(), "exact": SparseNewton(exact=True)}.items():
        begun = time.process_time()
        state = run(solver, start, problem.evidence, 2000, 0.0).mixture
        found[name] = {**score(state), "seconds": time.process_time() - begun}
        if name == "complete":
            for judge in ("complete", "exact"):
                by = replace(solver, exact=judge == "exact")
                found[f"judged by {judge}"] = path(state, parts[0], solver, by, score)
    return found


def columns(X, y, X_out, y_out, seed: int, whole: bool) -> dict:
    """A working set from different numbers of columns, and perhaps the fit with all of them."""
    found = {}
    for size in [*STARTS, None][: None if whole else -1]:
        problem = problem_of(X, y, size is not None)
        generator = torch.Generator().manual_seed(seed)
        responsibilities = starting_responsibilities(problem, generator)
        begun = time.process_time()
        if size is None:
            assert problem.evidence is not None
            start = starting_state(problem.evidence.n_columns, problem.class_of, responsibilities)
            result = run(SparseNewton(), start, problem.evidence, 2000, 0.0)
        else:
            working_set.COLUMNS_AT_START = size
            working = working_set.WorkingSet(SparseNewton(), problem.candidates(), LIMIT, generator)
            result = run(working, working.start(problem.class_of, responsibilities), problem.rows_only, 2000, 0.0)
        seconds = time.process_time() - begun
        state, evidence, basis = problem.settled(result.mixture)
        record = judged(state, problem, (evidence, basis), X_out, y_out)
        found["all" if size is None else str(size)] = {**record, "seconds": seconds}
    return found


def ended(records: list[dict], rise: float, key: str) -> dict:
    """Where a path ends when the evidence must rise by so much."""
    place = 0
    while place + 1 < len(records) and records[place + 1][key] >= records[place][key] + rise:
        place += 1
    return records[place]


def by_start(runs: dict) -> dict[str, list[dict]]:
    """The starts of every fold together."""
    found: dict[str, list[dict]] = {}
    for key, record in runs.items():
        found.setdefault(key.rsplit("/", 1)[0], []).append(record)
    return found


def row(cells: list) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def components_table(found: dict) -> list[str]:
    lines = [
        "## Components",
        "",
        "Mean log-loss of held-out rows (weights left) by how components leave after a fit with the complete",
    ]
    lines += [
        "Hessian; ± is the standard error of the difference to the first line over folds and starts. The last line is a"
    ]
    lines += ["fit with the exact Hessian.", ""]
    lines += [row(["judge", "least rise", *COMPONENTS, "mean"]), row(["---"] * (3 + len(COMPONENTS)))]
    rules = [("complete", None), *((judge, rise) for judge in ("complete", "exact") for rise in RISES), ("exact", None)]
    for judge, rise in rules:
        cells, means = [], []
        for data in COMPONENTS:
            runs = list(found["components"].get(data, {}).values())
            ends = [run[judge] if rise is None else ended(run[f"judged by {judge}"], rise, judge) for run in runs]
            differences = [end["loss"] - run["complete"]["loss"] for end, run in zip(ends, runs, strict=True)]
            means.append(np.mean([end["loss"] for end in ends]))
            weights = np.mean([end["weights"] for end in ends])
            cells.append(f"{means[-1]:.4f} ± {mean_and_error(differences)[1]:.4f} ({weights:.1f})")
        name = "exact Hessian" if (judge, rise) == ("exact", None) else judge
        lines.append(row([name, "never" if rise is None else rise, *cells, f"{np.mean(means):.4f}"]))
    return [*lines, ""]


def starts_table(found: dict) -> list[str]:
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
            for records in by_start(found["components"].get(data, {})).values():
                fits = [record["complete"] for record in records]
                chosen += fits if key == "all starts" else [max(fits, key=lambda fit: fit[key])]
            cells.append(f"{np.mean([c['loss'] for c in chosen]):.4f}, {np.mean([c['error'] for c in chosen]):.1f} %")
        lines.append(row([key, *cells]))
    return [*lines, ""]


def moderation_table(found: dict) -> list[str]:
    lines = [
        "## Moderated probabilities",
        "",
        "Mean held-out log-loss of fits with the complete Hessian, before components leave: plug-in, and",
    ]
    lines += ["moderated with the covariance of either Hessian.", ""]
    lines += [row(["probabilities", *COMPONENTS]), row(["---"] * (1 + len(COMPONENTS)))]
    for key in ("loss", "moderated complete", "moderated exact"):
        losses = [[r["complete"][key] for r in found["components"][data].values()] for data in COMPONENTS]
        lines.append(row(["plug-in" if key == "loss" else key, *(f"{np.mean(values):.4f}" for values in losses)]))
    return [*lines, ""]


def columns_table(found: dict) -> list[str]:
    lines = [
        "## Columns at the start of a working set",
        "",
        "Log evidence by the complete Hessian, held-out log-loss, weights, processor seconds; means over folds.",
        "",
    ]
    lines += [row(["columns", *COLUMNS]), row(["---"] * (1 + len(COLUMNS)))]
    for size in map(str, STARTS):
        lines.append(row([size, *(columns_cell(found["columns"].get(data, {}).values(), size) for data in COLUMNS)]))
    some = [found["columns"]["waveform"][key] for key in WITH_ALL]
    lines += ["", f"Of Waveform, the {len(some)} fits that were made with all columns too:", ""]
    lines += [row(["columns", "waveform"]), row(["---"] * 2)]
    return [*lines, *(row([size, columns_cell(some, size)]) for size in [*map(str, STARTS), "all"]), ""]


def columns_cell(records: Iterable[dict], size: str) -> str:
    runs = [record[size] for record in records]
    values = {key: np.mean([run[key] for run in runs]) for key in ("complete", "loss", "weights", "seconds")}
    return f"{values['complete']:.2f}, {values['loss']:.4f}, {values['weights']:.1f}, {values['seconds']:.1f} s"


def as_markdown(found: dict) -> str:
    lines = ["# Settings of sparse learning, chosen on training rows", ""]
    lines += ["Written by `python -m reproduce.sparse_settings` from sparse_settings.json. No test row was read.", ""]
    lines += ["Machine: " + ", ".join(f"{key} {value}" for key, value in found["machine"].items()) + ".", ""]
    return "\n".join(
        [*lines, *components_table(found), *starts_table(found), *moderation_table(found), *columns_table(found)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="*", default=["components", "columns"])
    parser.add_argument("--data", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    file = RESULTS / "sparse_settings.json"
    found = json.loads(file.read_text()) if file.exists() else {"components": {}, "columns": {}}
    found["machine"] = machine()
    for part, plan, measure in (("components", COMPONENTS, components), ("columns", COLUMNS, columns)):
        for name, (n_splits, n_folds, n_starts) in plan.items():
            if part not in options.parts or (options.data and name not in options.data):
                continue
            runs = found[part].setdefault(name, {})
            for fold, rows in folds(name, n_splits, n_folds):
                for seed in range(n_starts):
                    key = f"{fold}/{seed}"
                    if key not in runs:
                        begun = time.time()
                        runs[key] = measure(*rows, seed, whole=name == "waveform" and key in WITH_ALL)
                        print(part, name, key, round(time.time() - begun, 1), flush=True)
                        file.write_text(json.dumps(found, indent=1))
    file.with_suffix(".md").write_text(as_markdown(found))


if __name__ == "__main__":
    main()
