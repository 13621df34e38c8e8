"""python -m benchmarks.automatic [--seeds N] [--processes N]: the default prior beside what "auto" chooses, by folds.

Writes results/automatic.json and .md. What is measured is as in default_prior.py, over five shuffled folds; the folds
that choose are inside the training part of those that measure.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.__main__ import machine
from benchmarks.default_prior import data_sets, measured
from mixtura import AveragedMixtureClassifier, MixtureClassifier

RESULTS = Path(__file__).parent / "results"
LEFT_OUT = ("digits", "waveform 21", "waveform 40")  # longer than the others together

MODELS: dict[str, Callable[[], object]] = {
    "1 component, default prior": lambda: MixtureClassifier(1, random_state=0),
    "3 components, default prior": lambda: MixtureClassifier(3, random_state=0),
    "1 component, automatic prior": lambda: MixtureClassifier(1, prior="auto", random_state=0),
    "automatic number, default prior": lambda: MixtureClassifier("auto", random_state=0),
    "both automatic": lambda: MixtureClassifier("auto", prior="auto", random_state=0),
    "both automatic, average of 20": lambda: AveragedMixtureClassifier(
        MixtureClassifier("auto", prior="auto"), random_state=0
    ),
    "both automatic, and bent": lambda: MixtureClassifier("auto", prior="auto", warp="auto", random_state=0),
    "both automatic, and bent, average of 20": lambda: AveragedMixtureClassifier(
        MixtureClassifier("auto", prior="auto", warp="auto"), random_state=0
    ),
}


def job(place: tuple[int, str, str]) -> tuple[tuple[int, str, str], dict[str, float]]:
    """What one model makes of one data set."""
    seed, data, name = place
    torch.set_num_threads(1)
    start = time.perf_counter()
    result = measured(MODELS[name], *data_sets(seed)[data], seed)
    return place, result | {"seconds": time.perf_counter() - start}


def as_markdown(found: dict) -> str:
    table = found["models"]
    sets = list(next(iter(table.values())))
    lines = [
        "# Default and automatic settings",
        "",
        "Written by `python -m benchmarks.automatic`: five shuffled folds,",
    ]
    lines += [f"mean over {found['seeds']} seeds.", ""]
    lines += ["Machine: " + ", ".join(f"{key} {value}" for key, value in found["machine"].items()) + ".", ""]
    for measure, title in (("log_loss", "Log-loss"), ("error", "Error"), ("seconds", "Seconds of five fits")):
        lines += [f"## {title}", "", "| model | " + " | ".join(sets) + " | mean |", "|---" * (len(sets) + 2) + "|"]
        for name, results in table.items():
            means = [np.mean([r[measure] for r in results[data]]) for data in sets]
            lines.append(f"| {name} | " + " | ".join(f"{m:.3f}" for m in means) + f" | {np.mean(means):.3f} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.automatic", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    sets = sorted(set(data_sets(0)).difference(LEFT_OUT), key=lambda data: data != "breast cancer")  # the longest first
    places = [(seed, data, name) for seed in range(options.seeds) for data in sets for name in reversed(MODELS)]
    results = {}
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for place, result in pool.imap_unordered(job, places):
            results[place] = result
            print(*place, "done", flush=True)
    models = {
        name: {data: [results[seed, data, name] for seed in range(options.seeds)] for data in sets} for name in MODELS
    }
    found = {"machine": machine(), "seeds": options.seeds, "models": models}
    (RESULTS / "automatic.json").write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / "automatic.md").write_text(as_markdown(found))
    print(as_markdown(found))


if __name__ == "__main__":
    main()
