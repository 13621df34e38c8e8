"""python -m reproduce.sparse_components: Appendix B of Hayashi & Uchida (2021), initial numbers of components.

A 4 x 4 checkerboard of Gaussians; error, components and weights that are left for 2 to 20 initial components in all.
Writes results/sparse_components.json after every fit, and .md and .png from it.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import torch

from mixtura import SparseMixtureClassifier
from reproduce.sparse_table import RESULTS, machine, mean_and_error

INITIAL = [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
N_SETS = 3


def checkerboard(n_per_centre: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Centres at +-0.25 and +-0.75 in each axis, standard deviation 0.125, labels by colour."""
    rng = np.random.default_rng(seed)
    axis = np.array([-0.75, -0.25, 0.25, 0.75])
    centres = np.array([(a, b) for a in axis for b in axis])
    labels = np.array([(i + j) % 2 for i in range(4) for j in range(4)])
    rows = np.repeat(centres, n_per_centre, 0) + 0.125 * rng.normal(size=(16 * n_per_centre, 2))
    return rows, np.repeat(labels, n_per_centre)


def run_one(initial: int, seed: int) -> dict:
    X, y = checkerboard(20, seed)
    X_test, y_test = checkerboard(100, 1000 + seed)
    model = SparseMixtureClassifier(initial // 2, n_init=1, max_iter=1000, random_state=seed).fit(X, y)
    n_start = (initial - 1) * (len(X) + 1)
    return {
        "error": 100 * float(np.mean(model.predict(X_test) != y_test)),
        "components": int(model.n_components_.sum()),
        "weights": model.n_weights_,
        "reduction": 100 * (1 - model.n_weights_ / n_start),
    }


def as_markdown(found: dict) -> str:
    lines = ["# Appendix B of Hayashi & Uchida (2021)", ""]
    lines += ["Written by `python -m reproduce.sparse_components` from sparse_components.json: mean ± standard error"]
    lines += [f"over {N_SETS} drawn sets, one start each. Printed: components equal the initial number up to 8 and are"]
    lines += ["reduced from 10 on, 8 of 20 removed; more than 99 % of the weights removed in any case.", ""]
    lines += ["Machine: " + ", ".join(f"{key} {value}" for key, value in found["machine"].items()) + ".", ""]
    lines += ["| initial components | error % | components | weights | weights removed % |", "|---|---|---|---|---|"]
    for initial in INITIAL:
        runs = list(found["runs"].get(str(initial), {}).values())
        if runs:
            keys = ("error", "components", "weights", "reduction")
            parts = [mean_and_error([run[key] for run in runs]) for key in keys]
            lines.append(f"| {initial} | " + " | ".join(f"{mean:.2f} ± {error:.2f}" for mean, error in parts) + " |")
    return "\n".join([*lines, ""]).replace(" ± nan", "")


def draw(found: dict, path: Path) -> None:
    import matplotlib.pyplot as plt

    keys = {"error": "test error %", "components": "components", "weights": "weights", "reduction": "removed %"}
    figure, axes = plt.subplots(1, 4, figsize=(13, 3), layout="constrained")
    initial = [i for i in INITIAL if found["runs"].get(str(i))]
    for axis, (key, label) in zip(axes, keys.items(), strict=True):
        parts = [mean_and_error([run[key] for run in found["runs"][str(i)].values()]) for i in initial]
        axis.errorbar(initial, [mean for mean, _ in parts], [np.nan_to_num(error) for _, error in parts], marker="o")
        axis.set(xlabel="initial components", ylabel=label)
    axes[1].plot(initial, initial, ":", color="grey")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    path = RESULTS / "sparse_components.json"
    found = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    found["machine"] = machine()
    for seed in range(N_SETS):
        for initial in INITIAL:
            runs = found["runs"].setdefault(str(initial), {})
            if str(seed) not in runs:
                runs[str(seed)] = run_one(initial, seed)
                print(initial, seed, runs[str(seed)], flush=True)
                path.write_text(json.dumps(found, indent=1))
    path.with_suffix(".md").write_text(as_markdown(found))
    draw(found, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
