"""python -m benchmarks.sparse: sparse mixtures compared with a dense textbook implementation, sklearn-rvm, and unpruned
models.

Needs the data of the reproductions (MIXTURA_DATA) and, for the rival, the package sklearn-rvm. Every part writes its
results to results/sparse.json immediately; results/sparse.md is written from that file. Ratios are of processor
seconds in one run with one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import resource
import signal
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch

from mixtura import RelevanceVectorClassifier, SparseMixtureClassifier
from mixtura.datasets import make_ripley
from mixtura.objectives import class_log_joint
from mixtura.solvers import run
from mixtura.sparse.kernels import Polynomial, standard_scaling
from mixtura.sparse.newton import SparseNewton, starting_state
from mixtura.sparse.problem import make_problem, starting_responsibilities
from reproduce.data import load
from reproduce.sparse_table import done, machine, run_one, splits

RESULTS = Path(__file__).parent / "results"
WIDTHS = [0.5, 1.0, 2.0, 4.0]
LIMIT = 150  # processor seconds of a rival's fit


def seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def textbook() -> dict:
    """One start on the first Banana split, by the twin of the tests and by the solver, to the end of both."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    import reference_sparse as reference

    X, y, X_test, _ = splits("banana")[0]
    values = torch.from_numpy(X)
    scaling = standard_scaling(values, torch.ones(len(X), dtype=torch.float64))
    labels = torch.from_numpy((y > 0).astype(int))
    problem = make_problem(values, labels, None, np.array([-1, 1]), scaling, Polynomial(), None, [3, 3], False, 2**28)
    responsibilities = starting_responsibilities(problem, torch.Generator().manual_seed(0))
    start = starting_state(problem.evidence.n_columns, problem.class_of, responsibilities)
    solver = SparseNewton(merge=False)
    results: list = []
    with torch.inference_mode():  # as in the estimator
        times = [seconds(lambda: results.append(run(solver, problem.evidence, start, 5000, 0.0))) for _ in range(5)]
    ours, mixture = statistics.median(times), results[0].mixture.mixture
    columns = problem.basis.evaluate(problem.rows).numpy()
    twins = []
    theirs = seconds(
        lambda: twins.append(
            reference.fit(columns, labels.numpy(), problem.class_of.numpy(), responsibilities.T.numpy())
        )
    )
    at_test = problem.basis.evaluate(scaling(torch.from_numpy(X_test)))
    probabilities = class_log_joint(mixture.log_joint(at_test), mixture.class_sizes).softmax(0).T.numpy()
    difference = float(np.abs(probabilities - twins[0].probabilities(at_test.numpy())).max())
    return {
        "seconds": ours, "textbook seconds": theirs, "ratio": theirs / ours, "largest difference": difference,
        "iterations": len(results[0].history), "textbook iterations": twins[0].n_iter,
        "weights": mixture.n_pairs, "textbook weights": twins[0].n_weights,
    }  # fmt: skip


def machines(n_rows: int, names: tuple[str, ...]) -> dict:
    """Relevance vector machines on equal rows, scaled outside, with the same kernel; the rival stops at its limit."""
    from sklearn_rvm import EMRVC

    results = {}
    for name in names:
        X, y, X_test, y_test = parted(name, n_rows)
        fits = [RelevanceVectorClassifier(gamma=gamma, scaling=False).fit(X, y) for gamma in WIDTHS]
        best = max(fits, key=lambda model: model.log_evidence_).gamma
        results[name] = {"gamma": best}
        ours = RelevanceVectorClassifier(gamma=best, scaling=False)
        for who, model in (("mixtura", ours), ("sklearn-rvm", EMRVC(kernel="rbf", gamma=best))):
            record: dict = {"seconds": seconds(partial(within_limit, model.fit, X, y))}
            if record["seconds"] < LIMIT:
                record["error"] = 100 * float(np.mean(model.predict(X_test) != y_test))
                record["vectors"] = len(model.relevance_vectors_)
            results[name][who] = record
        results[name]["ratio"] = results[name]["sklearn-rvm"]["seconds"] / results[name]["mixtura"]["seconds"]
        print(name, n_rows, results[name], flush=True)
    return results


def within_limit(fit: Callable[..., object], *arguments: object) -> None:
    """A fit that is given up after LIMIT processor seconds."""

    def give_up(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    with contextlib.suppress(TimeoutError):
        fit(*arguments)
    signal.setitimer(signal.ITIMER_PROF, 0)


def parted(name: str, n_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """So many training rows and the rest, in the units that mixtura scales to."""
    if name == "ripley":
        X, y = make_ripley(2500, random_state=0)
    else:
        data = load(f"ratsch_{name}")
        X, y = data.X, (data.y > 0).astype(int)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order], y[order]
    X = (X - X[:n_rows].mean(0)) / (X[:n_rows].std(0) * X.shape[1] ** 0.5)
    return X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:]


def large() -> dict:
    """20 000 rows: seconds and the rise of the peak memory of a process of its own, beside the square matrix."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(large_fit).result()


def large_fit(n_rows: int = 20_000) -> dict:
    torch.set_num_threads(1)
    X, y = make_ripley(n_rows // 2, random_state=0)
    X_test, y_test = make_ripley(5000, random_state=1)
    RelevanceVectorClassifier().fit(X[::200], y[::200])  # what is loaded once does not count
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    model = RelevanceVectorClassifier(gamma=2.0, random_state=0).fit(X, y)
    return {
        "rows": n_rows, "seconds": time.process_time() - start,
        "megabytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "megabytes of the square matrix": 8 * n_rows**2 / 2**20,
        "error": 100 * float(np.mean(model.predict(X_test) != y_test)),
        "vectors": len(model.relevance_vectors_), "converged": model.converged_,
    }  # fmt: skip


def pruning() -> list[dict]:
    """One start on the first Banana split, stopped early and not: weights, time to predict, bytes of the file."""
    X, y, X_test, y_test = splits("banana")[0]
    results = []
    for n_steps in (1, 10, 30, 100, 5000):
        model = SparseMixtureClassifier(n_init=1, max_iter=n_steps, random_state=0).fit(X, y)
        times = [seconds(lambda model=model: model.predict_proba(X_test)) for _ in range(21)]
        moderated = [seconds(lambda model=model: model.predict_proba(X_test, moderated=True)) for _ in range(3)]
        with tempfile.TemporaryDirectory() as folder:
            model.save(Path(folder) / "model")
            size = (Path(folder) / "model").stat().st_size
        results.append({
            "updates": model.n_iter_, "weights": model.n_weights_, "vectors": len(model.relevance_),
            "milliseconds": 1e3 * statistics.median(times), "moderated": 1e3 * statistics.median(moderated),
            "bytes": size, "error": 100 * float(np.mean(model.predict(X_test) != y_test)),
        })  # fmt: skip
    return results


def all_splits() -> dict:
    """All distinct Banana splits with the defaults, in two processes of one thread."""
    tasks = [("sdgm", "banana", number, None) for number in range(len(splits("banana")))]
    begun = time.perf_counter()
    runs = [record for _, record in done(tasks, run_one, 2)]
    means = {key: float(np.mean([run[key] for run in runs])) for key in ("error", "weights")}
    wall = time.perf_counter() - begun
    return {"splits": len(runs), "wall": wall, "seconds": sum(run["seconds"] for run in runs), **means}


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in [heads, ["---"] * len(heads), *rows]]


def textbook_page(part: dict) -> list[str]:
    lines = ["## The dense textbook algorithm", ""]
    lines += ["One start on the first Banana split, 400 rows, 3 components a class, to convergence.", ""]
    rows = [
        [who, f"{part[f'{prefix}seconds']:.2f}", str(part[f"{prefix}iterations"]), str(part[f"{prefix}weights"])]
        for who, prefix in (("mixtura", ""), ("textbook", "textbook "))
    ]
    lines += [*table(["", "seconds", "iterations", "weights"], rows), ""]
    lines += [f"Ratio {part['ratio']:.0f}; largest difference of a test probability {part['largest difference']:.1e}."]
    return lines


def machines_page(n_rows: int, part: dict) -> list[str]:
    heads = ["data", "gamma", "mixtura s", "sklearn-rvm s", "ratio", "error %", "its error %", "vectors", "its vectors"]
    rows = []
    for name, record in part.items():
        ours, theirs = record["mixtura"], record["sklearn-rvm"]
        more = "" if "error" in theirs else "over "
        times = [f"{ours['seconds']:.2f}", f"{more}{theirs['seconds']:.1f}", f"{more}{record['ratio']:.0f}"]
        errors = [f"{r['error']:.2f}" if "error" in r else "" for r in (ours, theirs)]
        rows.append([name, str(record["gamma"]), *times, *errors, *(str(r.get("vectors", "")) for r in (ours, theirs))])
    limit = f"A fit that took more than {LIMIT} s was given up: its ratio is a lower bound, and it has no error."
    return [f"## Relevance vector machines, N = {n_rows}", "", *table(heads, rows), "", limit]


def large_page(part: dict) -> list[str]:
    return [
        "## Relevance vector machine, 20 000 rows",
        "",
        f"{part['seconds']:.0f} s, {part['megabytes']:.0f} MB above the start of the process (the square matrix alone",
        f"would take {part['megabytes of the square matrix']:.0f} MB), {part['vectors']} vectors,",
        f"{part['error']:.2f} % error, converged: {part['converged']}.",
    ]


def pruning_page(part: list[dict]) -> list[str]:
    lines = ["## Before and after pruning", "", "First Banana split, one start; probabilities of 4900 rows.", ""]
    heads = ["updates", "weights", "vectors", "ms", "moderated ms", "file, bytes", "error %"]
    rows = [
        [
            *(str(r[key]) for key in ("updates", "weights", "vectors")),
            *(f"{r['milliseconds']:.2f}", f"{r['moderated']:.0f}", f"{r['bytes']:,}", f"{r['error']:.1f}"),
        ]
        for r in part
    ]
    return [*lines, *table(heads, rows)]


def all_splits_page(part: dict) -> list[str]:
    return [
        "## All Banana splits",
        "",
        f"{part['splits']} distinct splits, defaults, in two processes: {part['wall']:.0f} s with their start and the",
        f"test rows, {part['seconds']:.0f} s of processor time for the fits; {part['error']:.2f} % error,",
        f"{part['weights']:.1f} weights.",
    ]


PARTS = {
    "textbook": (textbook, textbook_page),
    "machines": (partial(machines, 250, ("ripley", "banana")), partial(machines_page, 250)),
    "large machines": (partial(machines, 1000, ("ripley",)), partial(machines_page, 1000)),
    "large": (large, large_page),
    "pruning": (pruning, pruning_page),
    "all splits": (all_splits, all_splits_page),
}


def as_markdown(results: dict) -> str:
    lines = ["# Sparse mixtures: speed, memory, size", ""]
    lines += ["Written by `python -m benchmarks.sparse` from sparse.json. Processor seconds, one thread;"]
    lines += ["other programs ran meanwhile.", ""]
    for name, (_, page) in PARTS.items():
        if name in results:
            on = ", ".join(f"{key} {value}" for key, value in results["run on"][name].items())
            lines += [*page(results[name]), "", f"Machine: {on}.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--folder", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    path = options.folder / "sparse.json"
    results = json.loads(path.read_text()) if path.exists() else {"run on": {}}
    for part in options.parts:
        results[part], results["run on"][part] = PARTS[part][0](), machine()
        print(part, results[part], flush=True)
        path.write_text(json.dumps(results, indent=1))
        path.with_suffix(".md").write_text(as_markdown(results))


if __name__ == "__main__":
    main()
