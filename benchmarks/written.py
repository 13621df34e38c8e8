"""python -m benchmarks.written: tables as people write them beside the same ones as numbers. Writes results/written.*.

Ten development sets of data_sets.toml, in the folder that MIXTURA_BENCHMARKS names. 5 % of the values are removed. The
clean table has numbers, categories and gaps. The other is a file with semicolons, compressed by gzip: its columns of
numbers have one of twelve ways of writing each, with the smallest value as a bound, gaps are "n/a", "-", "?" and the
like, classes of two are booleans, and there are an identifier, names, a counter, a constant, a copy of the target and
an empty column. The table of test rows has its columns in another order, one more, and other words for gaps. Both go
through the reader of the command line; the clean one also to the classifier itself.
"""

from __future__ import annotations

import json
import platform
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sklearn
import torch
from sklearn.metrics import log_loss

from benchmarks.data_sets import load
from mixtura import MixtureClassifier
from mixtura.cli.tables import read_problem, read_table
from mixtura.estimators import TableClassifier

RESULTS = Path(__file__).parent / "results"
SETS = (
    *("wine", "breast cancer", "german", "pima", "segment"),
    *("vehicle", "thyroid", "credit", "churn", "penguins"),
)
FOLDS, SHARE = 3, 0.05
NOTHING = (("n/a", "-", "?", "", "NULL"), ("NA", "none", "#N/A", ".", " - "))  # in training and test rows


def plain(value: float, thousand: str = "", decimal: str = ".") -> str:
    """A number without its sign; it reads as the same number."""
    return f"{abs(value):,}".replace(",", "T").replace(".", decimal).replace("T", thousand)


def signed(value: float, *marks: str) -> str:
    return ("-" if value < 0 else "") + plain(value, *marks)


WAYS: dict[str, Callable[[float], str]] = {
    "dollars": lambda v: ("-$" if v < 0 else "$") + plain(v, ","),
    "euros": lambda v: f"{signed(v, '.', ',')} \u20ac",
    "currency": lambda v: f"USD {signed(v, ',')}",
    "percent": lambda v: f"{v!r} %",
    "decimal comma": lambda v: signed(v, "", ","),
    "unit": lambda v: f"{v!r} kg",
    "speed": lambda v: f"{v!r}km/h",
    "parentheses": lambda v: f"({plain(v, ',')})" if v < 0 else plain(v, ","),
    "spaces": lambda v: signed(v, "\u202f", ","),
    "Swiss": lambda v: signed(v, "'"),
    "scientific": lambda v: f"{v:.17e}",
    "minus of print": lambda v: signed(v, ",").replace("-", "\u2212"),
}


def write(X: pd.DataFrame, classes: np.ndarray, ways: list[str], part: int, path: Path) -> None:
    """Write rows as people do."""
    rng, n = np.random.default_rng(part), len(X)
    columns: dict[str, Any] = {"serial": [f"R-{number:05d}x" for number in rng.permutation(10 * n)[:n]]}
    columns |= {"name": [f"Sample {part} {number}" for number in range(n)], "site": "A", "comment": None}
    for name, way in zip(X, ways, strict=True):
        values = X[name]
        smallest = None if values.dtype == "category" else values.min()
        gaps = rng.choice(NOTHING[part], n)
        texts = []
        for value, gap in zip(values.tolist(), gaps.tolist(), strict=True):
            if pd.isna(value):
                texts.append(gap)
            elif values.dtype == "category":
                texts.append(f" {value}")
            else:
                texts.append(("< " if value == smallest else "") + WAYS[way](value))
        columns[name] = texts
    columns |= {"outcome again": classes, "number": np.arange(n), "outcome": classes}
    order = list(columns) if part == 0 else [*list(columns)[::-1], "new"]
    frame = pd.DataFrame(columns).assign(new=range(n))[order]
    frame.to_csv(path, sep=";", index=False, compression="gzip")


def holed(X: pd.DataFrame) -> pd.DataFrame:
    return X.mask(np.random.default_rng(0).random(X.shape) < SHARE)


def measure(name: str, fold: int, make: Callable[[], Any], folder: Path) -> dict[str, tuple[float, float]]:
    """Error and log-loss of the classifier of the values, of the clean table, and of the written one."""
    data = load(name)
    train, test = list(data.folds())[fold]
    X, rng = holed(data.X), np.random.default_rng(fold)
    classes = np.array([f"class {number}" for number in range(data.y.max() + 1)])[data.y]
    if data.y.max() == 1:
        classes = np.array(["true", "false"])[data.y]
    ways, paths = rng.choice(list(WAYS), X.shape[1]).tolist(), [folder / "train.csv.gz", folder / "test.csv.gz"]
    for part, (rows, path) in enumerate(zip((train, test), paths, strict=True)):
        write(X.iloc[rows], classes[rows], ways, part, path)
    problem, table = read_problem(read_table(paths[0]), "outcome"), read_table(paths[1])
    expected = np.char.capitalize(classes[test]) if data.y.max() == 1 else classes[test]
    models = {
        "values": (make().fit(X.iloc[train], classes[train]), X.iloc[test], classes[test]),
        "clean table": (TableClassifier(make()).fit(X.iloc[train], classes[train]), X.iloc[test], classes[test]),
        "as written": (TableClassifier(make(), problem.columns).fit(problem.frame, problem.labels), table, expected),
    }
    return {
        kind: (
            float((model.predict(rows) != labels).mean()),
            float(log_loss(labels, model.predict_proba(rows), labels=model.classes_.tolist())),
        )
        for kind, (model, rows, labels) in models.items()
    }


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    results: dict[str, Any] = {}
    makers = {
        "MixtureClassifier(1)": lambda: MixtureClassifier(1),
        "default": lambda: MixtureClassifier(random_state=0),
    }
    with tempfile.TemporaryDirectory() as folder:
        for title, make in makers.items():
            for name in SETS:
                folds = [measure(name, fold, make, Path(folder)) for fold in range(FOLDS)]
                kinds = list(folds[0])
                results.setdefault(title, {})[name] = {k: np.mean([f[k] for f in folds], 0).tolist() for k in kinds}
                print(title, name, results[title][name], flush=True)
    (RESULTS / "written.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    (RESULTS / "written.md").write_text(as_markdown(results), "utf-8")


def as_markdown(results: dict[str, Any]) -> str:
    """The page of the results."""
    lines = [
        "# Tables as people write them",
        "",
        f"Written by `python -m benchmarks.written`: error in %, log-loss, means of {FOLDS} of 5 folds of development",
        "sets with 5 % of the values removed. Values: the classifier with the columns as they are typed. Clean table:",
        "`TableClassifier` with the same columns. As written: a compressed file with numbers in twelve ways of writing",
        "them, nine words for gaps, an identifier, names, a counter, a constant, an empty column and a copy of the",
        "target.",
        "",
        f"scikit-learn {sklearn.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
    ]
    for title, sets in results.items():
        kinds = list(next(iter(sets.values())))
        lines += ["", f"## {title}", "", f"| set | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
        for name, scores in sets.items():
            lines.append(
                f"| {name} | " + " | ".join(f"{100 * e:.2f}, {loss:.4f}" for e, loss in scores.values()) + " |"
            )
        means = {kind: np.mean([scores[kind] for scores in sets.values()], 0) for kind in kinds}
        lines.append("| mean | " + " | ".join(f"{100 * e:.2f}, {loss:.4f}" for e, loss in means.values()) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
