"""The page of RPTP18 from hybrid.json."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from reproduce.hybrid import OF_AVERAGE, ON_CPU, SETTINGS
from reproduce.stamps import published
from reproduce.tables import page, spread

HYBRID_ROWS = {  # of the paper -> tables of hybrid.json
    "MNIST": "MNIST", "MNIST (pca50)": "MNIST (pca50)", "Basic": "basic", "Basic (pca50)": "basic (pca50)",
    "Rotated": "rotated", "Rotated (pca50)": "rotated (pca50)", "Background Random": "random",
    "Background Random (pca50)": "random (pca50)", "CIFAR-10 (pca50)": "CIFAR-10 (pca50)",
}  # fmt: skip
COLUMNS = ("LL", "LL+LM", "LL+CLL", "LM", "CLL")


def published_errors() -> dict[str, tuple[float, ...]]:
    """Tables of hybrid.json -> test errors in per cent, in the order of COLUMNS."""
    table, errors = published()["RPTP18 table 1"], {}
    for row, name in HYBRID_ROWS.items():
        figures = dict(zip(table["columns"], table["rows"][row], strict=True))
        errors[name] = tuple(figures[column] for column in COLUMNS)
        errors[f"{name}, diagonal"] = tuple(figures[f"diagonal {column}"] for column in COLUMNS)
    return errors


PAPER = published_errors()
PAPER_FEW_ROWS = published()["RPTP18 table 2"]["rows"]
PAPER_FEW = [int(n_labels) for n_labels in published()["RPTP18 table 2"]["columns"]]


def shown(runs: dict[str, Any] | None, key: str = "test") -> str:
    """Mean, standard error and number of seeds."""
    if not runs:
        return ""
    return spread([run[key] for run in runs.values()]) + (f" ({len(runs)})" if len(runs) > 1 else "")


def table_one(results: dict[str, Any]) -> list[str]:
    """Published, ours with the published settings, and ours with settings by validation (studies/hybrid_search.py)."""
    lines = ["| data | | " + " | ".join(COLUMNS) + " |", "|---|---|" + "---|" * len(COLUMNS)]
    for name, figures in PAPER.items():
        runs_of, searched = results.get(name, {}), dict(results.get(f"{name}, searched", {}))
        searched.setdefault("LL", runs_of.get("LL, sizes by validation"))
        lines.append(f"| {name} | paper | " + " | ".join(f"{v:.2f}" for v in figures) + " |")
        averaged = {"LL": runs_of.get(OF_AVERAGE)}
        ways = {"published settings": runs_of, "settings by validation": searched, "average of 5 starts": averaged}
        for title, rows in ways.items():
            if not any(rows.get(c) for c in COLUMNS):
                continue
            lines.append(f"| | {title}, test | " + " | ".join(shown(rows.get(c)) for c in COLUMNS) + " |")
            lines.append("| | validation | " + " | ".join(shown(rows.get(c), "validation") for c in COLUMNS) + " |")
    return lines


def untouched(results: dict[str, Any]) -> str:
    """How many runs of table 1 are their start."""
    names = [table for name in PAPER for table in (name, f"{name}, searched")]
    rows = [own for name in names for row, own in results.get(name, {}).items() if row in COLUMNS and row != "LL"]
    runs = [run for own in rows for run in own.values()]
    return f"{sum(run.get('epoch') == 0 for run in runs)} of {len(runs)}"


def of_noise(results: dict[str, Any]) -> list[str]:
    """Why LL of Background Random is far from the paper with the sizes of Basic."""
    own = results.get("random", {})
    if not own.get("LL") or not own.get("LL, sizes by validation"):
        return []
    sizes = SETTINGS["BASIC_PIXELS"]["margin"]
    chosen = sorted({size[0] for size in next(iter(own["LL, sizes by validation"].values()))["chosen"]})
    return wrapped(
        f"Background Random, LL: the sizes of Basic, {min(sizes.k)} to {max(sizes.k)} components of rank {sizes.rank} "
        "per digit, have 50 to 140 images per component, whose directions are mostly those of the noise: "
        f"{shown(own['LL'])} %. Sizes by validation have {chosen[0]} to {chosen[-1]} components and "
        f"{shown(own['LL, sizes by validation'])} % (paper, with settings of this set: {PAPER['random'][0]:.2f} %)."
    )


def others(results: dict[str, Any]) -> list[str]:
    """Rows that the paper does not have, and the settings that were compared on validation rows."""
    lines = ["| data | row | validation | test |", "|---|---|---|---|"]
    for name in (*PAPER, ON_CPU):
        for row, runs in results.get(name, {}).items():
            if (row not in COLUMNS or name not in PAPER) and row not in ("LL, sizes by validation", OF_AVERAGE):
                lines.append(f"| {name} | {row} | {shown(runs, 'validation')} | {shown(runs)} |")
    return lines


def few(results: dict[str, Any]) -> list[str]:
    """A column for each number of labels."""
    named = []
    for key, runs in results.get("few labels", {}).items():
        n_labels, row = key.split(": ", 1)
        for name, own in (
            (row, {k: run for k, run in runs.items() if k != "paper"}),
            (f"{row}; the paper's labeled samples", {k: run for k, run in runs.items() if k == "paper"}),
        ):
            if own:
                named.append((n_labels, name, own))
    rows = list(dict.fromkeys(row for _, row, _ in named))
    runs_of = {(int(n_labels), row): runs for n_labels, row, runs in named}
    lines = ["| labels | " + " | ".join(map(str, PAPER_FEW)) + " |", "|---|" + "---|" * len(PAPER_FEW)]
    for row, figures in PAPER_FEW_ROWS.items():
        lines.append(f"| paper: {row} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |")
    lines += [f"| {row} | " + " | ".join(shown(runs_of.get((n, row))) for n in PAPER_FEW) + " |" for row in rows]
    return lines


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 118)


def missing(results: dict[str, Any]) -> list[str]:
    runs_of = results.get("missing", {})
    if not runs_of:
        return []
    shares = sorted(int(share) for share in next(iter(runs_of.values())))
    lines = ["| removed, % | " + " | ".join(map(str, shares)) + " |", "|---|" + "---|" * len(shares)]
    for row, runs in runs_of.items():
        lines.append(f"| {row} | " + " | ".join(f"{runs[str(s)]['test']:.2f}" for s in shares) + " |")
    return lines


def pages(folder: Path) -> dict[str, str]:
    """Markdown from the JSON file, if it is there."""
    path = folder / "hybrid.json"
    if not path.exists():
        return {}
    results, spread = json.loads(path.read_text()), folder / "label_spreading.json"
    if spread.exists():  # rows of ours (studies/README.md)
        own = json.loads(spread.read_text())["few labels"]
        results["few labels"] = {**own, **results.get("few labels", {})}
    return {"hybrid.md": text_of(results)}


def without_missing(results: dict[str, Any]) -> list[str]:
    """The first column of figure 3a beside settings by validation."""
    first, chosen = results.get("missing", {}).get("tradeoff 0", {}).get("0"), results.get("MNIST, searched", {})
    if first is None or "LM" not in chosen:
        return []
    return wrapped(
        f"All rows have the published settings. LM has {first['test']:.2f} % here without missing values; with "
        f"settings by validation it has {shown(chosen['LM'])} % (table 1), so that the comparison without missing "
        "values does not favour the hybrids."
    )


def text_of(results: dict[str, Any]) -> str:
    runs = [run for name in PAPER for run in results.get(name, {}).get("LM", {}).values()]
    on_cpu = [run for rows in results.get(ON_CPU, {}).values() for run in rows.values() if "curve" in run]
    epochs, cpu_epochs = (", ".join(map(str, sorted({len(run["curve"]) - 1 for run in own}))) for own in (runs, on_cpu))
    parts = {"table_one": table_one, "untouched": untouched, "of_noise": of_noise, "others": others, "few": few}
    parts |= {"missing": missing, "without_missing": without_missing}
    return page(
        "hybrid.md",
        versions=", ".join(f"{name} {version}" for name, version in results["versions"].items()),
        epochs=epochs,
        cpu_epochs=cpu_epochs,
        **{name: part(results) for name, part in parts.items()},
    )
