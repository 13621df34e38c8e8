"""Memory, threads and open files of a process that fits and predicts for a long time.

    python -m benchmarks.soak --minutes 10

Random estimators are fitted to random data (those of tests/fuzz.py, of moderate size) in one process, saved and loaded.
Written to benchmarks/results/soak.md: medians of each tenth of the cases. The first tenth includes modules that
libraries load once. Warnings of other libraries are listed.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import platform
import resource
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sklearn
import torch

import mixtura

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import fuzz

RESULTS = Path(__file__).parent / "results" / "soak.md"
N_PARTS = 10
# Allowed growth of the medians from the second tenth to the last: memory in MB, numbers of threads and open files.
ALLOWED = {"memory": 30.0, "threads": 0, "handles": 0}


@dataclass(frozen=True)
class Look:
    """Memory, threads and open files of the process after a case."""

    seconds: float
    memory: float  # resident, MB
    threads: int
    handles: int


def look(start: float) -> Look:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    n_handles = len(list(Path("/proc/self/fd").iterdir()))
    return Look(time.monotonic() - start, int(status["VmRSS"].split()[0]) / 1024, int(status["Threads"]), n_handles)


def soak(minutes: float, first: int) -> tuple[list[Look], Counter, Counter]:
    """Cases until the time is over: looks, ends of cases by estimator, broken laws and foreign warnings."""
    start, looks, ends, broken = time.monotonic(), [], Counter(), Counter()
    number = first
    while time.monotonic() - start < 60 * minutes:
        case = fuzz.make_case(number)
        outcome, violations = fuzz.violations(case)
        ends[f"{type(case.model).__name__}, {outcome}"] += 1
        broken.update(violations)
        number += 1
        if number % 20 == 0:
            gc.collect()
        looks.append(look(start))
    return looks, ends, broken


def medians(looks: list[Look]) -> list[dict[str, float]]:
    """Of each tenth of the cases."""
    edges, parts = [len(looks) * part // N_PARTS for part in range(N_PARTS + 1)], []
    for first, end in itertools.pairwise(edges):
        own = looks[first:end]
        parts.append({name: statistics.median(getattr(x, name) for x in own) for name in ALLOWED} | {"n": len(own)})
    return parts


def growth_of(parts: list[dict[str, float]]) -> dict[str, float]:
    return {name: parts[-1][name] - parts[1][name] for name in ALLOWED}


def report(looks: list[Look], ends: Counter, broken: Counter, seconds: float) -> str:
    parts = medians(looks)
    versions = f"mixtura {mixtura.__version__}, Python {platform.python_version()}, torch {torch.__version__}"
    lines = [
        "# A process that fits and predicts for a long time",
        "",
        "Written by `python -m benchmarks.soak`: random estimators on random data, each fitted twice, predicted in",
        f"several ways, saved and loaded; {sum(ends.values())} cases in {looks[-1].seconds / 60:.1f} minutes,",
        f"{seconds:.0f} s of processor time. {versions}, NumPy {np.__version__}, scikit-learn {sklearn.__version__},",
        f"{platform.system()}, one or two threads of torch by case.",
        "",
        "Medians of each tenth of the cases:",
        "",
        "| tenth | cases | resident memory, MB | threads | open files |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {i + 1} | {p['n']:.0f} | {p['memory']:.0f} | {p['threads']:.0f} | {p['handles']:.0f} |"
        for i, p in enumerate(parts)
    ]
    growth = growth_of(parts)
    lines += [
        "",
        f"From the second tenth to the last: {growth['memory']:+.0f} MB, {growth['threads']:+.0f} threads, "
        f"{growth['handles']:+.0f} open files.",
        "",
        f"Laws of `tests/fuzz.py` broken, warnings of other libraries among them: {sum(broken.values())}.",
        *(f"- {count} x {text}" for text, count in broken.most_common()),
        "",
        "| case | number |",
        "|---|---|",
        *(f"| {name} | {count} |" for name, count in sorted(ends.items())),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--first", type=int, default=100_000, help="number of the first case")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    results = soak(options.minutes, options.first)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    text = report(*results, usage.ru_utime + usage.ru_stime)
    options.output.write_text(text)
    print(text)
    growth = growth_of(medians(results[0]))
    return int(any(growth[name] > ALLOWED[name] for name in ALLOWED) or bool(results[2]))


if __name__ == "__main__":
    raise SystemExit(main())
