"""Appendix B of Hayashi & Uchida (2021), initial numbers of components: python -m reproduce hu21-appendix-b.

A 4 x 4 checkerboard of Gaussians; error, components and weights that are left for 2 to 20 initial components in all,
by the published algorithm and by the defaults. Writes results/sparse_components.json after every fit, and .md and .png
from it.
"""

from __future__ import annotations

import itertools
import json
import warnings
from pathlib import Path

import numpy as np
import torch

from mixtura import SparseMixtureClassifier
from mixtura.datasets import make_checkerboard
from reproduce.options import Options
from reproduce.sparse_table import PUBLISHED
from reproduce.stamps import machine, write_json
from reproduce.tables import finished, machine_of, mean_and_error, page, row

INITIAL = [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
N_SETS = 5
METHODS = {"published": PUBLISHED, "defaults": {}}


def run_one(method: str, initial: int, seed: int) -> dict:
    X, y = make_checkerboard(20, random_state=seed)
    X_test, y_test = make_checkerboard(100, random_state=1000 + seed)
    settings = {"n_init": 1, "max_iter": 1000, "random_state": seed, **METHODS[method]}
    model = SparseMixtureClassifier(initial // 2, **settings).fit(X, y)
    n_start = (initial - 1) * (len(X) + 1)
    return {
        "error": 100 * float(np.mean(model.predict(X_test) != y_test)),
        "components": int(model.n_components_.sum()),
        "weights": model.n_weights_,
        "reduction": 100 * (1 - model.n_weights_ / n_start),
    }


KEYS = {"error": "test error %", "components": "components", "weights": "weights", "reduction": "weights removed %"}


def summary(results: dict, method: str, initial: int) -> list[tuple[float, float]]:
    """Mean and standard error of every measure; nothing where there is no run."""
    runs = list(results["runs"].get(f"{method}/{initial}", {}).values())
    return [mean_and_error([run[key] for run in runs]) for key in KEYS] if runs else []


def draw(results: dict, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(13, 3), layout="constrained")
    for place, (axis, label) in enumerate(zip(axes, KEYS.values(), strict=True)):
        for method, colour, marker in zip(METHODS, ("#0072B2", "#D55E00"), "o^", strict=True):
            done_for = [initial for initial in INITIAL if summary(results, method, initial)]
            parts = [summary(results, method, initial)[place] for initial in done_for]
            errors = [np.nan_to_num(error) for _, error in parts]
            axis.errorbar(done_for, [mean for mean, _ in parts], errors, color=colour, marker=marker, label=method)
        axis.set(xlabel="components at the start", ylabel=label, xticks=INITIAL[::3])
    axes[0].legend(frameon=False)
    axes[1].plot(INITIAL, INITIAL, ":", color="grey")
    figure.savefig(path, dpi=80)
    plt.close(figure)


def compute(options: Options) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    path = options.out / "sparse_components.json"
    results = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    cells = {f"{method}, {k}": (method, k) for k in ([4] if options.quick else reversed(INITIAL)) for method in METHODS}
    tasks = [
        (method, initial, seed)
        for seed in range(options.n_seeds(N_SETS))
        for method, initial in options.named(cells).values()
        if str(seed) not in results["runs"].get(f"{method}/{initial}", {})
    ]
    if tasks:
        results["machine"] = machine()
    for (method, initial, seed), record in finished(run_one, tasks, options.jobs):
        results["runs"].setdefault(f"{method}/{initial}", {})[str(seed)] = record
        print(method, initial, seed, record, flush=True)
        write_json(path, results)
    draw(results, path.with_suffix(".png"))


def pages(folder: Path) -> dict[str, str]:
    """Markdown from the JSON file, if it is there."""
    path, rows = folder / "sparse_components.json", []
    if not path.exists():
        return {}
    results = json.loads(path.read_text())
    for method, initial in itertools.product(METHODS, INITIAL):
        if parts := summary(results, method, initial):
            cells = [f"{mean:.2f} ± {error:.2f}".removesuffix(" ± nan") for mean, error in parts]
            rows.append(row(method, initial, len(results["runs"][f"{method}/{initial}"]), *cells))
    return {"sparse_components.md": page("sparse_components.md", rows=rows, machine=machine_of(results))}
