"""python -m benchmarks: times relative to other libraries, temporary memory, cost per row. Writes results/speed.*.

Others: `python -m benchmarks defaults` compares the default with other classifiers, `embeddings` fits many features of
a frozen network, `doubt` compares outlier scores, `few_labels` classifiers of few labeled samples, and `missingness`
classifiers where the class decides which values are missing.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rivals import RIVALS, make_problem

RESULTS = Path(__file__).parent / "results"
OTHERS = ("defaults", "embeddings", "doubt", "few_labels", "missingness")

# (rows, features, components, covariance, target ratio against scikit-learn)
ITERATIONS = [
    (100_000, 16, 32, "full", 8),
    (100_000, 50, 20, "full", 4.5),
    (200_000, 2, 16, "full", 8),
    (200_000, 16, 64, "diag", 5),
    (100_000, 16, 32, "tied", None),
    (100_000, 16, 32, "spherical", None),
]
SLOW_RIVALS = ("pomegranate", "torchgmm")  # timed once, on one full and one diagonal problem


# The idle threads of a library spin for about 30 ms after its last call (OpenBLAS), which
# would slow the next measurement: each begins when they sleep.
PAUSE = 0.1


def seconds(call: Callable[[], object]) -> float:
    time.sleep(PAUSE)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def iteration_times(names: list[str], problem, rounds: int, few: int = 1, many: int = 5) -> dict[str, float]:
    """Median seconds of one EM iteration: longer minus shorter fit, in turns with other libraries."""
    fits = {name: RIVALS[name](problem) for name in names}
    seconds_of: dict[str, list[float]] = {name: [] for name in names}
    for fit in fits.values():
        fit(few)
    for _ in range(rounds):
        for name, fit in fits.items():
            short, long = seconds(lambda fit=fit: fit(few)), seconds(lambda fit=fit: fit(many))
            seconds_of[name].append((long - short) / (many - few))
    return {name: statistics.median(times) for name, times in seconds_of.items()}


def bench_iterations(rounds: int, scale: float) -> list[dict]:
    table = []
    for n_rows, size, n_components, kind, target in ITERATIONS:
        problem = make_problem(int(n_rows * scale), size, n_components, kind)
        times = iteration_times(["mixtura", "scikit-learn"], problem, rounds)
        scores = {name: RIVALS[name](problem)(5)(problem.rows[:2000]) for name in ("mixtura", "scikit-learn")}
        table.append(
            {
                "problem": title(problem, n_components),
                "milliseconds": {name: 1e3 * t for name, t in times.items()},
                "ratios": {name: t / times["mixtura"] for name, t in times.items() if name != "mixtura"},
                "target": target,
                "score_difference": abs(scores["mixtura"] - scores["scikit-learn"]),
            }
        )
        print(table[-1], flush=True)
    return table


def bench_slow_rivals(scale: float) -> dict[str, dict[str, float]]:
    """Seconds of one iteration relative to ours, on one full and one diagonal problem."""
    ratios = {}
    for n_rows, size, n_components, kind, _ in (ITERATIONS[0], ITERATIONS[3]):
        problem = make_problem(int(n_rows * scale), size, n_components, kind)
        ours = iteration_times(["mixtura"], problem, rounds=3)["mixtura"]
        times = {}
        for name in SLOW_RIVALS:
            try:
                times |= iteration_times([name], problem, rounds=1, many=3)
            except ImportError:
                print(f"{name} is not installed; left out")
        ratios[title(problem, n_components)] = {name: value / ours for name, value in times.items()}
    return ratios


def title(problem: Any, n_components: int) -> str:
    n_rows, size = problem.rows.shape
    return f"{problem.kind}, N={n_rows:,} D={size} K={n_components}"


def bench_predictions(rounds: int, scale: float) -> list[dict]:
    """predict_proba of a fitted mixture."""
    from sklearn.mixture import GaussianMixture as Theirs

    from mixtura import GaussianMixture as Ours

    table = []
    for n_rows, size, n_components, kind, _ in ITERATIONS[:4]:
        problem = make_problem(int(n_rows * scale), size, n_components, kind)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            models = [
                e(n_components, covariance_type=kind, means_init=problem.means, max_iter=2, random_state=0)
                .fit(problem.rows[:20_000])
                for e in (Ours, Theirs)
            ]  # fmt: skip
        pairs = [[seconds(partial(m.predict_proba, problem.rows)) for m in models] for _ in range(3 * rounds)]
        ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
        table.append(
            {
                "problem": title(problem, n_components),
                "milliseconds": {"mixtura": 1e3 * ours, "scikit-learn": 1e3 * theirs},
                "ratios": {"scikit-learn": theirs / ours},
            }
        )
    return table


def bench_small_fits(rounds: int) -> dict:
    """A whole fit at N=250 D=2 K=4, starts included."""
    from sklearn.mixture import GaussianMixture as Theirs

    from mixtura import GaussianMixture as Ours

    rows = make_problem(250, 2, 4, "full").rows
    times: dict[str, list[float]] = {"mixtura": [], "scikit-learn": []}
    for seed in range(10 * rounds):
        for name, estimator in (("mixtura", Ours), ("scikit-learn", Theirs)):
            times[name].append(seconds(lambda e=estimator, s=seed: e(4, random_state=s).fit(rows)))
    medians = {name: statistics.median(t) for name, t in times.items()}
    return {
        "problem": "whole fit, N=250 D=2 K=4",
        "milliseconds": {name: 1e3 * t for name, t in medians.items()},
        "ratios": {"scikit-learn": medians["scikit-learn"] / medians["mixtura"]},
    }


def bench_missing(rounds: int) -> dict:
    """One EM iteration with 30 % of the values missing, and without missing values."""
    from mixtura.datasets import remove_values

    problem = make_problem(10_000, 20, 10, "full")
    holes = type(problem)(remove_values(problem.rows, 0.3, random_state=0), problem.means, "full")
    fits = {"complete": RIVALS["mixtura"](problem), "missing": RIVALS["mixtura"](holes)}
    times: dict[str, list[float]] = {name: [] for name in fits}
    for _ in range(rounds + 1):
        for name, fit in fits.items():
            times[name].append((seconds(lambda f=fit: f(5)) - seconds(lambda f=fit: f(1))) / 4)
    medians = {name: statistics.median(t[1:]) for name, t in times.items()}
    return {
        "problem": "full with 30 % NaN, N=10,000 D=20 K=10",
        "milliseconds": {name: 1e3 * t for name, t in medians.items()},
        "missing_over_complete": medians["missing"] / medians["complete"],
    }


def bench_classes(rounds: int, scale: float) -> dict:
    """One EM iteration of a ten-class classifier beside one of a plain mixture with as many components."""
    from mixtura import MixtureClassifier

    problem = make_problem(int(100_000 * scale), 16, 50, "full")
    labels = np.random.default_rng(0).integers(10, size=len(problem.rows))
    times: dict[str, list[float]] = {"ten classes of 5": [], "one mixture of 50": []}
    calls = {
        "ten classes of 5": lambda n: MixtureClassifier(5, max_iter=n, tol=0, random_state=0).fit(problem.rows, labels),
        "one mixture of 50": RIVALS["mixtura"](problem),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(rounds):
            for name, call in calls.items():
                times[name].append((seconds(lambda c=call: c(7)) - seconds(lambda c=call: c(1))) / 6)
    medians = {name: statistics.median(t) for name, t in times.items()}
    return {
        "problem": f"classifier, N={len(problem.rows):,} D=16, 10 classes x 5 components, full",
        "milliseconds": {name: 1e3 * t for name, t in medians.items()},
        "cost_of_own_class_pass": medians["ten classes of 5"] / medians["one mixture of 50"],
    }


def in_a_new_process(function: str, *arguments: object, environment: dict[str, str] | None = None) -> Any:
    """Peak memory needs a process of its own, and so does another environment."""
    code = f"import json; from benchmarks.__main__ import {function}; print(json.dumps({function}(*{arguments!r})))"
    call = [sys.executable, "-W", "ignore", "-c", code]
    began = time.perf_counter()
    done = subprocess.run(call, check=True, capture_output=True, text=True, env=environment)
    print(f"{function}{arguments} {time.perf_counter() - began:.0f} s", flush=True)
    return json.loads(done.stdout.splitlines()[-1])


CONDITIONS = ("two threads", "two threads, a core busy", "one thread", "one thread, a core busy")


def under_conditions(function: str, *arguments: object) -> dict[str, Any]:
    """On an idle machine and beside a process that keeps one core busy, with two threads and with one; no other
    environment variable is set.
    """
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MKL_", "OPENBLAS_"))}
    results = {}
    for condition in CONDITIONS:
        count = "1" if condition.startswith("one") else "2"
        environment = plain | {"OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count}
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if "busy" in condition else None
        try:
            results[condition] = in_a_new_process(function, *arguments, environment=environment)
        finally:
            if busy is not None:
                busy.kill()
    return results


def measure_scratch(n_rows: int, size: int, n_components: int) -> dict:
    """Largest growth of memory during EM iterations, watched from a thread, with the libraries warm."""
    RIVALS["mixtura"](make_problem(2000, size, n_components, "full"))(1)
    problem = make_problem(n_rows, size, n_components, "full")
    return {
        "problem": f"full, N={n_rows:,} D={size} K={n_components}",
        "scratch_megabytes": growth(lambda: RIVALS["mixtura"](problem)(2)),
    }


def measure_memmap(n_rows: int, size: int, n_components: int) -> dict:
    """Seconds per row and iteration, and peak memory, of a fit to a memory map."""
    from mixtura import GaussianMixture

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        rng = np.random.default_rng(0)
        centres = 3 * rng.normal(size=(n_components, size))
        rows = np.memmap(path, np.float32, "w+", shape=(n_rows, size))
        for start in range(0, n_rows, 100_000):
            stop = min(start + 100_000, n_rows)
            rows[start:stop] = centres[rng.integers(n_components, size=stop - start)] + rng.normal(
                size=(stop - start, size)
            )
        rows.flush()
        rows = np.memmap(path, np.float32, "r", shape=(n_rows, size))
        start_values = {
            "weights_init": np.full(n_components, 1 / n_components),
            "means_init": centres,
            "precisions_init": np.broadcast_to(np.eye(size), (n_components, size, size)).copy(),
        }
        times = [
            seconds(lambda n=n: GaussianMixture(n_components, max_iter=n, tol=0, **start_values).fit(rows))
            for n in (1, 4)
        ]
        return {
            "rows": n_rows,
            "nanoseconds_per_row": 1e9 * (times[1] - times[0]) / 3 / n_rows,
            "anonymous_megabytes": anonymous_megabytes(),
        }


def growth(work: Callable[[], object]) -> float:
    """Megabytes by which memory grows at most meanwhile, watched from a thread."""
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before is not at hand for this
    before = anonymous_megabytes()
    peak, done = [before], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], anonymous_megabytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return peak[0] - before


def anonymous_megabytes() -> float:
    """Resident memory that is not a mapped file (pages of the memory map belong to the operating system's cache)."""
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) / 1024


def machine() -> dict:
    import sklearn
    import torch

    import mixtura

    return {
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "scikit-learn": sklearn.__version__,
        "numpy": np.__version__,
        "mixtura": mixtura.__version__,
    }


def as_markdown(results: dict) -> str:
    lines = [
        "# Benchmarks",
        "",
        "Written by `python -m benchmarks`. Medians of interleaved runs in one process, with a pause before each, as",
        "idle threads of the library before would still be spinning; float64.",
        "",
    ]
    lines += ["Machine: " + ", ".join(f"{key} {value}" for key, value in results["machine"].items()) + ".", ""]
    lines += ["## One EM iteration, same start: times as fast as scikit-learn", ""]
    heading = " | ".join(CONDITIONS)
    lines += [f"| problem | {heading} | at least | mixtura ms | pomegranate | torchgmm | score difference |"]
    lines += ["|---" * (len(CONDITIONS) + 6) + "|"]
    for rows in zip(*results["iterations"].values(), strict=True):
        row = rows[0]
        ratios = " | ".join(f"{each['ratios']['scikit-learn']:.1f} x" for each in rows)
        rivals = results["slow rivals"].get(row["problem"], {})
        others = " | ".join(f"{rivals[name]:.1f} x" if name in rivals else "" for name in SLOW_RIVALS)
        target = "" if row["target"] is None else f"{row['target']} x"
        lines.append(
            f"| {row['problem']} | {ratios} | {target} | {row['milliseconds']['mixtura']:.1f} | {others} "
            f"| {row['score_difference']:.0e} |"
        )
    lines += ["", "## predict_proba: times as fast as scikit-learn (at least 4 with two threads)", ""]
    lines += [f"| problem | {heading} | mixtura ms |", "|---" * (len(CONDITIONS) + 2) + "|"]
    lines += [
        f"| {rows[0]['problem']} | "
        + " | ".join(f"{each['ratios']['scikit-learn']:.1f} x" for each in rows)
        + f" | {rows[0]['milliseconds']['mixtura']:.1f} |"
        for rows in zip(*results["predictions"].values(), strict=True)
    ]
    missing, classes, scratch = (results[name] for name in ("missing", "classes", "scratch"))
    lines += [
        "",
        "## The rest",
        "",
        "| what | measured | target |",
        "|---|---|---|",
        *(
            f"| {small['problem']}, {condition} | {small['ratios']['scikit-learn']:.2f} x as fast as "
            f"scikit-learn ({small['milliseconds']['mixtura']:.1f} ms) | not slower |"
            for condition, small in results["small"].items()
        ),
        f"| {missing['problem']}: one iteration | {missing['milliseconds']['missing']:.0f} ms, "
        f"{missing['missing_over_complete']:.1f} x the complete rows | 1 s, 40 x |",
        f"| {classes['problem']}: one iteration "
        f"| {classes['cost_of_own_class_pass']:.2f} of a pass over all 50 components | |",
        f"| scratch memory, {scratch['problem']} | {scratch['scratch_megabytes']:.0f} MB | 256 MB |",
        "",
        "## Rows from a memory map (full, D=8 K=8, float32)",
        "",
        "| rows | ns per row and iteration | resident memory without file pages, MB |",
        "|---|---|---|",
    ]
    lines += [
        f"| {row['rows']:,} | {row['nanoseconds_per_row']:.0f} | {row['anonymous_megabytes']:.0f} |"
        for row in results["memmap"]
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one round, nothing written over")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    scale, rounds = (0.1, 1) if options.quick else (1.0, options.rounds)
    results = {
        "machine": machine(),
        "iterations": under_conditions("bench_iterations", rounds, scale),
        "slow rivals": in_a_new_process("bench_slow_rivals", scale),
        "predictions": under_conditions("bench_predictions", rounds, scale),
        "small": under_conditions("bench_small_fits", rounds),
        "missing": bench_missing(rounds),
        "classes": bench_classes(rounds, scale),
        "scratch": in_a_new_process("measure_scratch", int(1_000_000 * scale), 16, 64),
        "memmap": [in_a_new_process("measure_memmap", int(n * scale), 8, 8) for n in (100_000, 1_000_000, 10_000_000)],
    }
    print(as_markdown(results))
    if not options.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "speed.json").write_text(json.dumps(results, indent=1) + "\n")
        (RESULTS / "speed.md").write_text(as_markdown(results))


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in OTHERS:
        importlib.import_module(f"benchmarks.{sys.argv[1]}").main(sys.argv[2:])
    else:
        main()
