"""Bases and sparsity of LZZ06 by cross-validation on training samples: python -m studies.nonnegative_choice usps|cbcl.

The chosen settings are CHOSEN in reproduce/nonnegative.py.
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import delayed
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold

from reproduce import nonnegative
from reproduce.nonnegative import coded, default, in_parallel, machine, mean_and_error
from reproduce.options import Options
from reproduce.stamps import write_json

RESULTS = Path(__file__).parent / "results"
# What cross-validation chooses from, for each number of bases.
CHOICES = {"shared": (True, False), "sparsity": (0.0, 0.3, 1.0, 3.0)}


def choose(name: str, data: dict[str, np.ndarray], n_basis: int, sizes: tuple[int, ...], options: Options) -> None:
    """Cross-validate the choices on the training rows alone, with codes computed from the training part of a fold."""
    path = options.out / f"{name}_choice.json"
    known = json.loads(path.read_text())["rows"] if path.is_file() else []
    computed = {(row["M"], row["shared"], row["sparsity"]): row for row in known}
    grid = list(itertools.product(sizes, *CHOICES.values()))[: 1 if options.quick else None]
    sizes = sizes[: 1 if options.quick else None]
    missing = [choice for choice in grid if choice not in computed]
    if not missing:
        return
    folds = list(StratifiedKFold(4, shuffle=True, random_state=0).split(data["X"], data["y"]))
    parts = [
        coded({"X": data["X"][a], "y": data["y"][a], "X_test": data["X"][b], "y_test": data["y"][b]}, n_basis)[0]
        for a, b in folds
    ]
    tasks = [delayed(_validated)(*choice, part) for choice in missing for part in parts]
    results = (
        np.array(list(in_parallel(tasks, options.jobs, "generator"))).reshape(len(missing), len(parts), 2).tolist()
    )
    for choice, each in zip(missing, results, strict=True):
        accuracies, losses = zip(*each, strict=True)
        computed[choice] = dict(zip(("M", "shared", "sparsity"), choice, strict=True))
        computed[choice] |= {"accuracy": list(accuracies), "loss": list(losses)}
    rows = [computed[choice] for choice in grid]
    chosen = {size: min((r for r in rows if r["M"] == size), key=lambda r: np.mean(r["loss"])) for size in sizes}
    write_json(path, {"machine": machine(), "rows": rows, "chosen": list(chosen.values())})


def _validated(size: int, shared: bool, sparsity: float, part: dict[str, np.ndarray]) -> tuple[float, float]:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = default(size, sparsity, shared=shared)(0).fit(part["X"], part["y"])
    shares = model.predict_proba(part["X_test"])[np.arange(len(part["y_test"])), part["y_test"]]
    loss = -np.log(np.maximum(shares, np.finfo(float).tiny)).mean()
    return 100 * model.score(part["X_test"], part["y_test"]), float(loss)


def choice_text(name: str, results: dict[str, Any]) -> list[str]:
    lines = [
        f"# What cross-validation chooses on the training rows of {name}",
        "Mean and standard error over four folds; of each M the smallest log-loss is chosen.",
        "",
        "| M | bases | sparsity | accuracy % | log-loss | chosen |",
        "|---|---|---|---|---|---|",
    ]
    for r in results["rows"]:
        cells = [r["M"], "shared" if r["shared"] else "per class", f"{r['sparsity']:g}", mean_and_error(r["accuracy"])]
        cells += [mean_and_error(r["loss"], 3), "yes" if r in results["chosen"] else ""]
        lines.append("| " + " | ".join(str(c) for c in cells) + " |")
    return lines


if __name__ == "__main__":
    name = sys.argv[1]
    data, n_basis, paper = {
        "usps": (nonnegative.usps, 100, nonnegative.USPS_PAPER),
        "cbcl": (nonnegative.cbcl, 80, nonnegative.CBCL_PAPER),
    }[name]
    choose(name, data(), n_basis, tuple(paper), Options(RESULTS))
    results = json.loads((RESULTS / f"{name}_choice.json").read_text())
    (RESULTS / f"{name}_choice.md").write_text(nonnegative.page(results, choice_text(name, results)))
