"""The page of HU21 table 2: the paper's recipe (reproduce/heads.py) and ours (studies/heads.py)."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from reproduce import heads
from reproduce.heads import COLUMNS, METHODS, Column
from reproduce.stamps import RESULTS


def pages(folder: Path) -> dict[str, str]:
    """Markdown from the JSON files, if any is there."""
    files = [folder / f"heads{stem}_{name}.json" for name in COLUMNS for stem in ("", "_published")]
    return {"heads.md": report(folder)} if any(file.exists() for file in files) else {}


HEADINGS = (
    "head",
    "paper: error %",
    "ours: error %",
    "NLL",
    "ECE %",
    "weights pruned %",
    "unpruned: error %",
    "AUROC, MNIST outside",
    "chosen",
)


def spread(values: list[float], digits: int) -> str:
    mean, n_runs = float(np.mean(values)), len(values)
    if n_runs == 1:
        return f"{mean:.{digits}f}"
    error = float(np.std(values, ddof=1) / np.sqrt(n_runs)) if n_runs > 1 else float("nan")
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def report(results: Path = RESULTS) -> str:
    """The page, from the files."""
    lines = ["# HU21, table 2: heads of networks", "", INTRODUCTION, ""]
    for name, column in COLUMNS.items():
        path = results / f"heads_{name}.json"
        if path.is_file():
            lines += column_lines(name, column, json.loads(path.read_text()), results)
    for path in (results / "heads_density.json", results / "heads_small_density.json"):
        if path.is_file():
            lines += density_lines(json.loads(path.read_text()))
    lines += published_lines(results)
    return "\n".join(lines).rstrip("\n") + "\n"


def published_lines(results: Path) -> list[str]:
    """The recipe of the paper, and errors at equal numbers of weights."""
    files = {name: results / f"heads_published_{name}.json" for name in COLUMNS}
    parts = [(column.title, column.paper, files[name]) for name, column in COLUMNS.items()]
    parts = [(title, paper, json.loads(file.read_text())) for title, paper, file in parts if file.is_file()]
    if not parts:
        return []
    lines = ["## The paper's recipe", "", " ".join((heads.__doc__ or "").split("\n\n")[1].split()), ""]
    for title, paper, record in parts:
        lines += recipe_lines(title, paper, record)
    return [*lines, "![Error against the number of weights left](heads_weights.png)", ""]


def recipe_lines(title: str, paper: tuple[float, ...], record: dict[str, Any]) -> list[str]:
    """One column."""
    runs = record["runs"]
    epochs = sorted({run["epochs"] for run in runs})
    lines = [f"### {title}, the paper's recipe", ""]
    lines += [f"{len({run['seed'] for run in runs})} seeds, {epochs[0]} epochs, {record['about']['machine']}.", ""]
    lines += ["| head | paper: error % | ours: error % | NLL | ECE % | weights | weights left |", "|---" * 7 + "|"]
    for method, figure in zip(METHODS, paper, strict=True):
        own = [run for run in runs if run["method"] == method]
        cells = [METHODS[method], f"{figure:.2f}"]
        cells += [spread([run[key] for run in own], digits) for key, digits in (("error", 2), ("nll", 3), ("ece", 2))]
        cells += [f"{own[0]['weights']}", spread([run["weights_left"] for run in own], 1)]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", *equal_weights(runs)]


def equal_weights(runs: list[dict[str, Any]]) -> list[str]:
    """Mean test errors of the heads at the same numbers of weights."""
    curves = {method: [dict(map(tuple, run["curve"])) for run in runs if run["method"] == method] for method in METHODS}
    counts = sorted({count for own in curves.values() for count in own[0]})
    lines = ["| weights left | " + " | ".join(str(count) for count in counts) + " |", "|---" * (len(counts) + 1) + "|"]
    for method, own in curves.items():
        means = [f"{np.mean([each[count] for each in own]):.2f}" if count in own[0] else "" for count in counts]
        lines.append(f"| {METHODS[method]}, error % | " + " | ".join(means) + " |")
    return [*lines, ""]


INTRODUCTION = (
    "Our recipe: `python -m studies.heads`. The network has five convolutions and four poolings, with the "
    "widths of the authors' program; batch normalisation, dropout, augmentation and the one-cycle schedule are "
    "ours and the same for all heads. Settings were chosen by the error on the last 10 000 training images; the "
    "training settings by that of softmax. Test images were used for these figures alone. The paper's figures are "
    "single runs. ECE has 15 bins. A weight of the sparse head is pruned when its log alpha is at least the "
    "threshold (3 unless stated); `unpruned` is the error with all of them. The standard error that 10 000 test "
    "images alone make is about 0.1 at 1 % and 0.27 at 8 %."
)


def density_lines(record: dict[str, Any]) -> list[str]:
    """The generative head on Fashion-MNIST, with MNIST outside."""
    runs = [run for run in record["runs"] if "seed" in run]
    if not runs:
        return []
    tradeoff = runs[0]["settings"]["tradeoff"]
    names = {
        "error": "error %",
        "auroc": "AUROC of the largest probability",
        "auroc_trained": "of the Gaussians of the loss",
        "auroc_density": "of `log_density`, whose Gaussians followed the features",
        "auroc_anew": "of `log_density` after `refit`",
        "auroc_after": "of a Gaussian per class fitted to the features",
    }
    names = {key: text for key, text in names.items() if key in runs[0]}
    cells = [spread([run[key] for run in runs], 2 if key.startswith("error") else 4) for key in names]
    size = record["about"].get("size", "all images")
    return [
        f"## Density head, Fashion-MNIST with MNIST outside, {size}",
        "",
        f"{len(runs)} seeds, {record['about']['machine']}; `MixtureHead(10, 10, 2, density=True)`; trade-off by "
        f"held-out error: {tradeoff}.",
        "",
        "| " + " | ".join(names.values()) + " |",
        "|---" * len(names) + "|",
        "| " + " | ".join(cells) + " |",
        "",
    ]


LEAST_SPARSITY = 80.0  # of the sparse head, in per cent: of candidates that prune less, the one that prunes most


def chosen(name: str, folder: Path = RESULTS) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Settings of each method with the least held-out error, means over seeds; and the training settings."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for run in json.loads((folder / f"heads_select_{name}.json").read_text())["runs"]:
        groups[run["method"], json.dumps(run["settings"]), json.dumps(run["training"])].append(run)
    ranked = []
    for (method, settings, training), runs in groups.items():
        error, sparsity = (float(np.mean([run[key] for run in runs])) for key in ("error", "sparsity"))
        too_dense = method == "sparse" and sparsity < LEAST_SPARSITY
        ranked.append((too_dense, -sparsity if too_dense else error, method, settings, training))
    best = {method: min(entry for entry in ranked if entry[2] == method) for method in METHODS}
    return {method: json.loads(entry[3]) for method, entry in best.items()}, json.loads(best["softmax"][4])


def column_lines(name: str, column: Column, record: dict[str, Any], results: Path) -> list[str]:
    settings, variant = chosen(name, results)
    n_seeds = len({run["seed"] for run in record["runs"]})
    training = {**TRAINING, "flip": column.data == "fashion_mnist", **variant}
    lines = [
        f"## {column.title}",
        "",
        f"{n_seeds} seeds, mean and standard error, {record['about']['machine']}. Training: {json.dumps(training)}.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---" * len(HEADINGS) + "|",
    ]
    for method, paper in zip(METHODS, column.paper, strict=True):
        runs = [run for run in record["runs"] if run["method"] == method]
        if not runs:
            continue
        cells = [METHODS[method], f"{paper:.2f}"]
        for key, digits in (("error", 2), ("nll", 3), ("ece", 2), ("sparsity", 1), ("error_unpruned", 2), ("auroc", 4)):
            cells.append(spread([run[key] for run in runs], digits) if key in runs[0] else "")
        lines.append("| " + " | ".join([*cells, json.dumps(settings[method])]) + " |")
    sparse = [run for run in record["runs"] if run["method"] == "sparse"]
    if sparse:
        means = {key: np.mean([run[key] for run in sparse]) for key in PRUNING}
        lines += [
            "",
            "Sparse head, means: " + "; ".join(f"{text} {means[key]:.4g}" for key, text in PRUNING.items()) + ".",
            f"A linear layer has {10 * column.n_features} weights: pruning starts from more, and leaves "
            + ("more." if means["weights_left"] > 10 * column.n_features else "fewer."),
        ]
    return [*lines, ""]


# Of our recipe, where a validation set chose nothing else (studies/head_training.py).
TRAINING = {"epochs": 40, "batch": 500, "learning_rate": 6e-3, "weight_decay": 0.02, "dropout": 0.3, "rotation": 10.0,
            "shift": 2.0, "zoom": 0.1, "flip": False, "width": 32}  # fmt: skip
PRUNING = {
    "weights": "weights at the start",
    "weights_left": "weights left",
    "components_left": "components left",
    "pruned_difference": "largest difference of a logit after pruning",
    "microseconds": "microseconds for 256 rows before pruning, while other processes ran",
    "microseconds_pruned": "after",
}
