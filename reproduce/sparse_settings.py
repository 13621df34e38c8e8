"""python -m reproduce.sparse_settings: settings of sparse learning chosen on training rows.

Folds of the training rows of several data sets; no test row is read. For every fold and start one fit, then what the
choices would make of it: the prior variance at the start and its own prior, the Hessian, one component per class, and -
with the published start - the evidence that judges starts, components that leave one by one; for a working set, with
how many columns it starts and which gain adds one. What counts is the log-loss of the rows of the other folds.
Simulated classes of one Gaussian each show which odds send them to one component. Writes results/sparse_settings.json
after every fit, and .md from it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold

from mixtura import SparseMixtureClassifier
from mixtura.bases import Polynomial, standard_scaling
from mixtura.estimators.sparse import EXPECTED_VARIANCE, START_VARIANCE, compact
from mixtura.estimators.sparse_problem import Problem, make_problem, starting_responsibilities
from mixtura.solvers import run, working_set
from mixtura.solvers.newton import Evidence, SparseNewton, State, starting_state
from mixtura.sparse_mixture import class_scores
from reproduce.sparse_removal import TRIAL_STEPS, simplifications
from reproduce.sparse_table import RESULTS, done, machines, mean_and_error, one_thread, splits

# Data set: training splits, folds of each, starts of each.
COMPONENTS = {"ripley": (1, 10, 3), "banana": (5, 3, 2), "titanic": (10, 3, 2), "breast_cancer": (10, 3, 2)}
COLUMNS = {"waveform": (10, 2, 2), "german": (5, 2, 2), "image": (5, 2, 2)}
TRIALS = {
    "ripley": (1, 10, 2), "banana": (5, 3, 1), "titanic": (10, 3, 1), "breast_cancer": (10, 3, 1),
    "waveform": (10, 2, 2), "german": (5, 2, 1), "image": (5, 2, 1),
}  # fmt: skip
WITH_WORKING_SETS = ("waveform", "german", "image")
WITH_ALL = ("0/0/0", "0/1/0", "1/0/0")  # folds of Waveform whose fit with all columns is made too; a minute each
# Prior variances: what they add up to at the start (None: one for every column), what is expected of each (None: all
# are as probable), and the Hessian.
SETTINGS: dict[str, dict] = {
    f"{start}, {expected}, {hessian}": {"start_variance": start, "expected_variance": expected, "hessian": hessian}
    for start, expected, hessian in (
        *((30.0, expected, "complete") for expected in (None, 1000.0, 300.0, 100.0, 30.0, 10.0)),
        *((start, expected, "complete") for start in (None, 100.0, 10.0) for expected in (None, 100.0)),
        *((30.0, expected, "exact") for expected in (None, 100.0, 30.0)),
    )
}
DEFAULT = f"{START_VARIANCE}, {EXPECTED_VARIANCE}, complete"
RISES = [0.0, 1.0, 2.0, 4.0]
# Columns at the start of a working set, and the gain of the log evidence that adds one.
WORKING = [
    *((size, 0.1) for size in (5, 10, 15, 30, 60)),
    *((size, gain) for size in (5, 15) for gain in (0.5, 1.0, 2.0, 4.0)),
]
N_SIMULATED = 30
LIMIT = 2**28


def folds(name: str, n_splits: int, n_folds: int) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
    """Parts of the training rows: most of them, and the rest."""
    for number, (X, y, _, _) in enumerate(splits(name)[:n_splits]):
        X, y = (X[:400], y[:400]) if len(X) > 400 else (X, y)
        cut = StratifiedKFold(n_folds, shuffle=True, random_state=0).split(X, y)
        for fold, (fitted, held_out) in enumerate(cut):
            yield f"{number}/{fold}", (X[fitted], y[fitted], X[held_out], y[held_out])


def problem_of(X: np.ndarray, y: np.ndarray, working: bool, n_components: int = 3) -> Problem:
    values = torch.from_numpy(np.asarray(X, float))
    classes, numbers = np.unique(y, return_inverse=True)
    scaling = standard_scaling(values, torch.ones(len(values), dtype=torch.float64))
    labels = torch.from_numpy(numbers)
    wanted = [n_components] * len(classes)
    return make_problem(values, labels, None, classes, scaling, Polynomial(), None, wanted, working, LIMIT)


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


def path(state: State, evidence: Evidence, solver: SparseNewton, score: Callable) -> list[dict]:
    """What is left after each component that leaves, as long as the evidence does not fall."""
    found: list[dict] = []
    for _, simpler in simplifications(state, evidence, solver, solver, TRIAL_STEPS):
        record = score(simpler)
        if found and record["complete"] < found[-1]["complete"]:
            break
        found.append(record)
    return found


def fitted(problem: Problem, seed: int, solver: SparseNewton) -> State:
    assert problem.evidence is not None
    responsibilities = starting_responsibilities(problem, torch.Generator().manual_seed(seed))
    n_columns = problem.evidence.n_columns
    start = starting_state(n_columns, problem.class_of, responsibilities, problem.precisions)
    return run(solver, start, problem.evidence, 2000, 0.0).mixture


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
    found = {}
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
            state, evidence, basis = problem.settled(run(working, start, problem.rows_only, 2000, 0.0).mixture)
        seconds = time.process_time() - begun
        record = judged(state, problem, (evidence, basis), X_out, y_out)
        found["all" if setting is None else named(setting)] = {**record, "seconds": seconds}
    return found


def simulated(seed: int, setting: str) -> dict:
    """Size and log evidence of three starts with ten components a class, and of one with one, which is the truth."""
    rng = np.random.default_rng(seed)
    n_classes, n_features = 2 + seed % 3 // 2, 2 + seed % 2
    parts = [rng.normal(0, 1.5, n_features) + rng.uniform(0.4, 2, n_features) * rng.normal(size=(80, n_features))
             for _ in range(n_classes)]  # fmt: skip
    X, y = np.concatenate(parts), np.repeat(np.arange(n_classes), 80)
    fits = []
    for n_components, start in ((10, 0), (10, 1), (10, 2), (1, 0)):
        settings = {"n_init": 1, "component_trials": False, "random_state": start, **SETTINGS[setting]}
        model = SparseMixtureClassifier(n_components, **settings).fit(X, y)
        record = {"components": int(model.n_components_.sum()), "weights": model.n_weights_}
        fits.append({**record, "complete": model.log_evidence_})
    return {"several": fits[:3], "one": fits[3], "classes": n_classes}


def named(setting: tuple[int, float]) -> str:
    return f"{setting[0]} | {setting[1]}"


def ended(records: list[dict], rise: float) -> dict:
    """Where a path ends when the evidence must rise by so much."""
    place = 0
    while place + 1 < len(records) and records[place + 1]["complete"] >= records[place]["complete"] + rise:
        place += 1
    return records[place]


def trials(X, y, X_out, y_out, seed: int, setting: str, **_: object) -> dict:
    """Three starts of three components per class and one of one.

    Where all rows would have a working set, folds have one too, and for one component as well: what starts with all
    columns has more evidence, whatever its components.
    """
    fits = []
    for n_components, start in ((3, 0), (3, 1), (3, 2), (1, 0)):
        settings = {"n_init": 1, "component_trials": False, **SETTINGS[setting]}
        model = SparseMixtureClassifier(
            n_components, working_set=X.shape[1] > 15 or "auto", random_state=3 * seed + start, **settings
        )
        fits.append(held_out(model.fit(X, y), X_out, y_out))
    return {"several": fits[:3], "one": fits[3]}


def held_out(model: SparseMixtureClassifier, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Log-loss and error, plug-in and moderated; weights; the log evidence."""
    places = (np.arange(len(y)), np.searchsorted(model.classes_, y))
    plain, moderated = (model.predict_proba(X, moderated=way) for way in (False, True))
    found = {
        "loss": -np.log(plain[places].clip(1e-15)).mean(),
        "moderated": -np.log(moderated[places].clip(1e-15)).mean(),
        "error": 100 * np.mean(plain.argmax(1) != places[1]),
        "moderated error": 100 * np.mean(moderated.argmax(1) != places[1]),
        "weights": model.n_weights_,
        "complete": model.log_evidence_,
    }
    return {key: round(float(value), 5) for key, value in found.items()}


def better(run: dict, odds: float, bounded: bool) -> dict:
    """The best start; or one component per class, of no more weights, unless there is so much evidence for more."""
    best, one = max(run["several"], key=lambda fit: fit["complete"]), run["one"]
    simple = not bounded or one["weights"] <= best["weights"]
    return one if simple and best["complete"] - one["complete"] <= np.log(odds) else best


# How components leave, and what is then left of a run.
ODDS = [1, 3, 10, 20, 100]
RULES: dict[str, Callable[[dict], dict]] = {
    "never: the published algorithm": lambda run: run["complete"],
    **{f"one by one, rise {rise:g}": lambda run, rise=rise: ended(run["one by one"], rise) for rise in RISES},
    "never; exact Hessian": lambda run: run["exact"],
}


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
        "Mean log-loss of held-out rows (error %; weights left) by how components leave after a fit of one start, as",
        "published; ± is the standard error of the difference of the log-loss to the first line over folds and starts.",
        "",
        row(["components leave", *COMPONENTS, "mean"]),
        row(["---"] * (2 + len(COMPONENTS))),
    ]
    for name, rule in RULES.items():
        cells, means = [], []
        for data in COMPONENTS:
            runs = list(found["components"].get(data, {}).values())
            ends = [rule(run) for run in runs]
            differences = [end["loss"] - run["complete"]["loss"] for end, run in zip(ends, runs, strict=True)]
            means.append(np.mean([end["loss"] for end in ends]))
            error, weights = (np.mean([end[key] for end in ends]) for key in ("error", "weights"))
            cells.append(f"{means[-1]:.4f} ± {mean_and_error(differences)[1]:.4f} ({error:.1f}; {weights:.1f})")
        lines.append(row([name, *cells, f"{np.mean(means):.4f}"]))
    return [*lines, ""]


KEYS = ("loss", "moderated", "error", "moderated error", "weights")


def runs_of(found: dict, setting: str, data: str) -> list[dict]:
    """In the order of folds. A working set starts with few columns: what they may add up to makes no difference."""
    start = SETTINGS[setting]["start_variance"]
    known = setting.replace(f"{start}", "30.0", 1) if data in WITH_WORKING_SETS else setting
    return [run for _, run in sorted(found["trials"].get(f"{known}, {data}", {}).items())]


def line_of(name: str, found: dict, setting: str, rule: Callable[[dict], list[dict]]) -> str:
    """What a rule makes of the runs of every set, and the mean over the sets."""
    cells, means = [], []
    for data in TRIALS:
        ends = [end for run in runs_of(found, setting, data) for end in rule(run)]
        means.append([np.mean([end[key] for end in ends]) for key in KEYS])
        cells.append("{:.4f}, {:.4f} ({:.1f}, {:.1f}; {:.1f})".format(*means[-1]))
    return row([name, *cells, "{:.4f}, {:.4f} ({:.2f}, {:.2f}; {:.1f})".format(*np.mean(means, 0))])


def variance_table(found: dict) -> list[str]:
    lines = [
        "## Prior variances",
        "",
        "Mean log-loss of held-out rows, plug-in and moderated (error %, plug-in and moderated; weights), by the most",
        "that prior variances of the weights of a component add up to at the start (start_variance), by the mean of",
        "their own prior (expected_variance) and by the Hessian: all starts of three components, and what the",
        "evidence chooses among three starts and one component per class. Waveform, German and Image have working",
        "sets, which start with few columns whatever the setting. The means are over the sets.",
        "",
    ]
    head = ["start_variance", "expected_variance", "Hessian", "starts"]
    lines += [row([*head, *TRIALS, "mean"]), row(["---"] * (5 + len(TRIALS)))]
    for setting in SETTINGS:
        if all(runs_of(found, setting, data) for data in TRIALS):
            name = " | ".join(setting.split(", "))
            lines.append(line_of(name + " | all", found, setting, lambda run: run["several"]))
            lines.append(line_of(name + " | chosen", found, setting, lambda run: [better(run, 10, False)]))
    return [*lines, ""]


def kinds_table(found: dict) -> list[str]:
    """What the evidence chooses among three starts of which each has a setting of its own."""
    sets = [data for data in TRIALS if data not in WITH_WORKING_SETS]
    lines = [
        "## Starts of different kinds",
        "",
        f"The same with expected_variance={EXPECTED_VARIANCE:g}, by the start_variance of each of the three starts.",
        "",
        row(["start_variance", *sets, "mean"]),
        row(["---"] * (2 + len(sets))),
    ]
    for kinds in ((30.0, 30.0, 30.0), (30.0, 30.0, 10.0), (None, 30.0, 10.0), (100.0, 30.0, 10.0), (10.0, None, 30.0)):
        cells, means = [], []
        for data in sets:
            starts = [runs_of(found, f"{kind}, {EXPECTED_VARIANCE}, complete", data) for kind in kinds]
            runs = zip(runs_of(found, DEFAULT, data), *starts, strict=True)
            mixed = [{**run, "several": [own["several"][i] for i, own in enumerate(every)]} for run, *every in runs]
            ends = [better(run, 10, False) for run in mixed]
            means.append([np.mean([end[key] for end in ends]) for key in KEYS])
            cells.append("{:.4f}, {:.4f} ({:.1f}, {:.1f}; {:.1f})".format(*means[-1]))
        mean = "{:.4f}, {:.4f} ({:.2f}, {:.2f}; {:.1f})".format(*np.mean(means, 0))
        lines.append(row([", ".join(map(str, kinds)), *cells, mean]))
    return [*lines, ""]


def trials_table(found: dict) -> list[str]:
    lines = [
        "## One component per class",
        "",
        f"The same with start_variance={START_VARIANCE:g} and expected_variance={EXPECTED_VARIANCE:g}, for the best",
        "of three starts or one component per class, as the evidence decides by odds; in the last lines one component",
        "must have no more weights as well.",
        "",
        row(["one component per class", *TRIALS, "mean"]),
        row(["---"] * (2 + len(TRIALS))),
    ]
    for bounded in (False, True):
        for odds in (*([] if bounded else [0]), *ODDS):
            name = f"unless {odds} : 1 for more" if odds else "never"
            rule = partial(better, odds=odds or 1e-300, bounded=bounded)
            name = f"if no more weights, {name}" if bounded else name
            lines.append(line_of(name, found, DEFAULT, lambda run, rule=rule: [rule(run)]))
    return [*lines, ""]


def simulated_table(found: dict) -> list[str]:
    runs = list(found["simulated"].get(f"{DEFAULT}, one Gaussian", {}).values())
    lines = [
        "## Classes of one Gaussian each",
        "",
        f"Of {len(runs)} simulated sets (2 or 3 classes, 2 or 3 features, 80 rows a class), started three times with",
        "ten components a class and the same settings: those that end with one component per class.",
        "",
        row(["one component per class", "sets", "sets, if no more weights"]),
        row(["---"] * 3),
    ]
    for odds in (0, *ODDS):
        cells = []
        for bounded in (False, True):
            ends = [better(run, odds or 1e-300, bounded) for run in runs]
            cells.append(sum(end["components"] == run["classes"] for end, run in zip(ends, runs, strict=True)))
        lines.append(row([f"unless {odds} : 1 for more" if odds else "never tried", *cells]))
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
        "## Columns of a working set",
        "",
        "Log evidence, held-out log-loss, error %, weights, processor seconds; means over folds, by the number of",
        "columns at the start and the gain of the log evidence that adds one.",
        "",
    ]
    lines += [row(["columns", "gain", *COLUMNS]), row(["---"] * (2 + len(COLUMNS)))]
    for setting in map(named, WORKING):
        lines.append(row([setting, *(columns_cell(found["columns"].get(d, {}).values(), setting) for d in COLUMNS)]))
    some = [found["columns"]["waveform"][key] for key in WITH_ALL if key in found["columns"].get("waveform", {})]
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


def as_markdown(found: dict) -> str:
    lines = ["# Settings of sparse learning, chosen on training rows", ""]
    lines += ["Written by `python -m reproduce.sparse_settings` from sparse_settings.json. No test row was read.", ""]
    lines += ["Machine: " + ", ".join(f"{key} {value}" for key, value in found["machine"].items()) + ".", ""]
    tables = (
        variance_table,
        kinds_table,
        trials_table,
        simulated_table,
        components_table,
        starts_table,
        moderation_table,
        columns_table,
    )
    return "\n".join([*lines, *(line for table in tables for line in table(found))])


MEASURES = {"trials": trials, "components": components, "columns": columns}
PLANS = {"trials": TRIALS, "components": COMPONENTS, "columns": COLUMNS}
PARTS = ["simulated", *MEASURES]


def measure(part: str, name: str, fold: str, seed: int) -> dict:
    """One record of a part; a setting stands before the name of the data."""
    setting, _, data = name.rpartition(", ")
    if part == "simulated":
        return simulated(seed, setting)
    plan = PLANS[part][data]
    rows = dict(folds(data, *plan[:2]))[fold]
    whole = data == "waveform" and f"{fold}/{seed}" in WITH_ALL
    return MEASURES[part](*rows, seed, setting=setting, whole=whole)


def planned(part: str, settings: list[str], data: list[str] | None) -> Iterator[tuple[str, str, str, int]]:
    """Tasks of a part."""
    if part == "simulated":
        yield from ((part, f"{DEFAULT}, one Gaussian", "-", seed) for seed in range(N_SIMULATED))
        return
    for setting in settings if part == "trials" else [""]:
        same_start = not setting or SETTINGS[setting]["start_variance"] == 30
        for name, (n_splits, n_folds, n_starts) in PLANS[part].items():
            if (data and name not in data) or (name in WITH_WORKING_SETS and not same_start):
                continue
            where = f"{setting}, {name}" if setting else name
            for fold, _ in folds(name, n_splits, n_folds):
                yield from ((part, where, fold, seed) for seed in range(n_starts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--data", nargs="*")
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=RESULTS)
    options = parser.parse_args()
    one_thread()
    file = options.folder / "sparse_settings.json"
    found = json.loads(file.read_text()) if file.exists() else {part: {} for part in PARTS}
    tasks = [task for part in options.parts for task in planned(part, options.settings, options.data)]
    tasks = [task for task in tasks if f"{task[2]}/{task[3]}" not in found.setdefault(task[0], {}).get(task[1], {})]
    if tasks:
        found["machine"] = machines(found)
    for (part, name, fold, seed), record in done(tasks, measure, options.processes):
        found[part].setdefault(name, {})[f"{fold}/{seed}"] = record
        print(part, name, fold, seed, flush=True)
        file.write_text(json.dumps(found, indent=0))
    file.with_suffix(".md").write_text(as_markdown(found))


if __name__ == "__main__":
    main()
