"""How far probabilities can be trusted, plug-in and moderated: python -m studies sparse-calibration.

Defaults, published splits; expected calibration error and log-loss of test rows, pooled reliability curves. Writes
results/sparse_calibration.json after every fit, and .md and .png from it.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import torch

from mixtura import RelevanceVectorClassifier, SparseMixtureClassifier
from reproduce.options import Options
from reproduce.sparse_table import machine, mean_and_error, splits
from reproduce.stamps import write_json

RUNS = {"ripley": 1, "banana": 5, "titanic": 10, "breast_cancer": 10, "waveform": 5}
MODELS = {
    "sparse mixture": lambda seed: SparseMixtureClassifier(random_state=seed),
    "relevance vector machine": lambda seed: RelevanceVectorClassifier(random_state=seed),
}
N_BINS = 10


def bins_of(probabilities: np.ndarray, positive: np.ndarray) -> list[list[float]]:
    """Of every tenth: rows, their mean probability of the second class, and its frequency."""
    place = np.minimum((probabilities * N_BINS).astype(int), N_BINS - 1)
    groups = [place == b for b in range(N_BINS)]
    means = [(probabilities[g].mean(), positive[g].mean()) if g.any() else (0.0, 0.0) for g in groups]
    return [[int(g.sum()), float(p), float(f)] for g, (p, f) in zip(groups, means, strict=True)]


def calibration_error(bins: list[list[float]]) -> float:
    """sum_b share_b |mean probability_b - frequency_b|."""
    total = sum(n for n, _, _ in bins)
    return sum(n / total * abs(p - f) for n, p, f in bins)


def run_one(kind: str, name: str, number: int) -> dict:
    X, y, X_test, y_test = splits(name)[number]
    model = MODELS[kind](number).fit(X, y)
    positive = y_test == model.classes_[1]
    record = {}
    for way in ("plug-in", "moderated"):
        p = model.predict_proba(X_test, moderated=way == "moderated")[:, 1]
        losses = -np.log(np.where(positive, p, 1 - p).clip(1e-15))
        record[way] = {"loss": float(losses.mean()), "bins": bins_of(p, positive)}
    return record


def as_markdown(results: dict) -> str:
    lines = ["# Calibration of sparse mixtures", ""]
    lines += [
        "Written by `python -m studies sparse-calibration` from sparse_calibration.json. Expected calibration error"
    ]
    lines += [
        f"over {N_BINS} bins of the probability of the second class, and log-loss; mean ± standard error over splits.",
        "",
    ]
    lines += ["Machine: " + ", ".join(f"{key} {value}" for key, value in results["machine"].items()) + ".", ""]
    lines += ["| model | data | splits | ECE, plug-in | ECE, moderated | log-loss, plug-in | log-loss, moderated |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for kind in MODELS:
        for name in RUNS:
            runs = list(results["runs"].get(f"{kind}/{name}", {}).values())
            if not runs:
                continue
            cells = []
            for measure in (lambda run: calibration_error(run["bins"]), lambda run: run["loss"]):
                for way in ("plug-in", "moderated"):
                    mean, error = mean_and_error([measure(run[way]) for run in runs])
                    cells.append(f"{mean:.4f} ± {error:.4f}")
            lines.append(f"| {kind} | {name} | {len(runs)} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""]).replace(" ± nan", "")


def draw(results: dict, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(RUNS), figsize=(14, 3.2), layout="constrained", sharey=True)
    looks = {"plug-in": ("#0072B2", "o"), "moderated": ("#D55E00", "s")}
    for axis, name in zip(axes, RUNS, strict=True):
        runs = list(results["runs"].get(f"sparse mixture/{name}", {}).values())
        axis.plot([0, 1], [0, 1], color="#999999", linewidth=0.8)
        for way, (colour, marker) in looks.items():
            rows = np.array([run[way]["bins"] for run in runs])  # (runs, bins, 3)
            total = rows[..., 0].sum(0)
            kept = total > 0
            p, f = ((rows[..., 0] * rows[..., i]).sum(0)[kept] / total[kept] for i in (1, 2))
            axis.plot(p, f, color=colour, marker=marker, markersize=4, label=way)
        axis.set(title=name, xlabel="probability of the second class")
    axes[0].set_ylabel("frequency")
    axes[0].legend()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def compute(options: Options) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    path = options.out / "sparse_calibration.json"
    results = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    results["machine"] = machine()
    for name, n_runs in {"ripley": 1}.items() if options.quick else RUNS.items():
        for kind in MODELS:
            runs = results["runs"].setdefault(f"{kind}/{name}", {})
            for number in range(min(n_runs, options.n_seeds(n_runs))):
                if str(number) not in runs:
                    runs[str(number)] = run_one(kind, name, number)
                    print(kind, name, number, flush=True)
                    write_json(path, results)
    if not options.quick:
        draw(results, path.with_suffix(".png"))


def pages(folder: Path) -> dict[str, str]:
    """Markdown from the JSON file, if it is there."""
    path = folder / "sparse_calibration.json"
    return {"sparse_calibration.md": as_markdown(json.loads(path.read_text()))} if path.exists() else {}
