"""The page of HU21 table 2 with the paper's recipe; ours is studies/heads_page.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from reproduce import heads
from reproduce.heads import COLUMNS, METHODS
from reproduce.tables import row, spread


def pages(folder: Path) -> dict[str, str]:
    """Markdown from the JSON files, if any is there."""
    lines = published_lines(folder)
    return {"heads.md": "\n".join(lines).rstrip("\n") + "\n"} if lines else {}


def published_lines(results: Path) -> list[str]:
    """The recipe of the paper, and errors at equal numbers of weights."""
    files = {name: results / f"heads_published_{name}.json" for name in COLUMNS}
    parts = [(column.title, column.paper, files[name]) for name, column in COLUMNS.items()]
    parts = [(title, paper, json.loads(file.read_text())) for title, paper, file in parts if file.is_file()]
    if not parts:
        return []
    lines = [
        "# HU21, table 2: heads of networks, the paper's recipe",
        "",
        " ".join((heads.__doc__ or "").split("\n\n")[1].split()),
        "",
    ]
    for title, paper, record in parts:
        lines += recipe_lines(title, paper, record)
    return [*lines, "![Error against the number of weights left](heads_weights.png)", ""]


def recipe_lines(title: str, paper: tuple[float, ...], record: dict[str, Any]) -> list[str]:
    """One column."""
    runs = record["runs"]
    epochs = sorted({run["epochs"] for run in runs})
    lines = [f"## {title}, the paper's recipe", ""]
    stopped = f" (stopped, and continued {runs[0]['continued']})" if "continued" in runs[0] else ""
    seeds = len({run["seed"] for run in runs})
    lines += [f"{seeds} seeds, {epochs[0]} epochs{stopped}, {record['about']['machine']}.", ""]
    lines += ["| head | paper: error % | ours: error % | NLL | ECE % | weights | weights left |", "|---" * 7 + "|"]
    for method, figure in zip(METHODS, paper, strict=True):
        own = [run for run in runs if run["method"] == method]
        cells = [METHODS[method], f"{figure:.2f}"]
        cells += [spread([run[key] for run in own], digits) for key, digits in (("error", 2), ("nll", 3), ("ece", 2))]
        cells += [f"{own[0]['weights']}", spread([run["weights_left"] for run in own], 1)]
        lines.append(row(*cells))
    if any(run["method"] == "large_margin" and "decay" not in run["settings"] for run in runs):
        lines += ["", "Large-margin softmax was run with the full margin after half an epoch, by which classes merge."]
    return [*lines, "", *equal_weights(runs)]


def equal_weights(runs: list[dict[str, Any]]) -> list[str]:
    """Mean test errors of the heads at the same numbers of weights."""
    curves = {method: [dict(map(tuple, run["curve"])) for run in runs if run["method"] == method] for method in METHODS}
    counts = sorted({count for own in curves.values() for count in own[0]})
    lines = [row("weights left", *counts), "|---" * (len(counts) + 1) + "|"]
    for method, own in curves.items():
        means = [f"{np.mean([each[count] for each in own]):.2f}" if count in own[0] else "" for count in counts]
        lines.append(row(f"{METHODS[method]}, error %", *means))
    return [*lines, ""]
