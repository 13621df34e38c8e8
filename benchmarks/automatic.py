"""python -m benchmarks.automatic: the default prior beside what "auto" chooses, by five shuffled folds.

Writes results/automatic.json and .md. What is measured is as in default_prior.py; the folds that choose are inside the
training part of those that measure.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.__main__ import machine
from benchmarks.default_prior import data_sets, measured
from mixtura import AveragedMixtureClassifier, MixtureClassifier

RESULTS = Path(__file__).parent / "results"
LEFT_OUT = ("digits", "breast cancer", "waveform 21", "waveform 40")  # longer than the others together

MODELS: dict[str, Callable[[], object]] = {
    "1 component, default prior": lambda: MixtureClassifier(1, random_state=0),
    "3 components, default prior": lambda: MixtureClassifier(3, random_state=0),
    "1 component, automatic prior": lambda: MixtureClassifier(1, prior="auto", random_state=0),
    "automatic number, default prior": lambda: MixtureClassifier("auto", random_state=0),
    "both automatic": lambda: MixtureClassifier("auto", prior="auto", random_state=0),
    "both automatic, average of 20": lambda: AveragedMixtureClassifier(
        MixtureClassifier("auto", prior="auto"), random_state=0
    ),
}


def as_markdown(found: dict) -> str:
    table = found["models"]
    sets = list(next(iter(table.values())))
    lines = [
        "# Default and automatic settings",
        "",
        "Written by `python -m benchmarks.automatic`: five shuffled folds, mean",
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
    options = parser.parse_args()
    torch.set_num_threads(1)
    models: dict[str, dict[str, list[dict[str, float]]]] = {}
    found = {"machine": machine(), "seeds": options.seeds, "models": models}
    for seed in range(options.seeds):
        for data, (X, y) in data_sets(seed).items():
            if data in LEFT_OUT:
                continue
            for name, make in MODELS.items():
                start = time.perf_counter()
                result = measured(make, X, y, seed)
                result["seconds"] = time.perf_counter() - start
                models.setdefault(name, {}).setdefault(data, []).append(result)
            print(f"seed {seed}: {data} done", flush=True)
    (RESULTS / "automatic.json").write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / "automatic.md").write_text(as_markdown(found))
    print(as_markdown(found))


if __name__ == "__main__":
    main()
