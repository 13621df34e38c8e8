"""python -m reproduce.heads select|table|density|report|pictures: table 2 and figure 5 of HU21 beside ours.

    select   settings of each method, by the error on the last 10 000 training rows  -> heads_select_<column>.json
    table    five methods, several seeds, all training rows, the test rows once      -> heads_<column>.json, features
    density  the generative head and a Gaussian per class fitted afterwards          -> heads_density.json
    report   the tables of the other parts as one page                               -> heads.md
    pictures figure 5, and the same features moving                                  -> docs/images

Data: set MIXTURA_DATA to the folder of mnist.npz and fashion_mnist.npz. A GPU needs minutes; --epochs, --rows and
--width make a small version. What a run found is written when it ends; runs go seed by seed, until --seconds are over.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mixtura
from mixtura import MixtureClassifier
from mixtura.datasets import load_fashion_mnist, load_mnist
from reproduce.head_training import Data, Trainer, Training, auroc, features_of, judged

RESULTS = Path(__file__).parent / "results"
N_VALIDATION = 10_000
N_SHOWN = 2000  # images whose features are followed through training

METHODS = {
    "softmax": "softmax",
    "softmax_l1": "softmax + L1",
    "large_margin": "large-margin softmax",
    "mixture": "discriminative mixture, `MixtureHead`",
    "sparse": "SDGM, `SparseMixtureHead`",
}


@dataclass(frozen=True)
class Column:
    """A column of table 2 of HU21, with its figures in the order of METHODS."""

    title: str
    data: str
    n_features: int
    paper: tuple[float, ...]


COLUMNS = {
    "mnist_2": Column("MNIST, D = 2", "mnist", 2, (3.19, 3.70, 2.52, 2.43, 1.81)),
    "mnist_10": Column("MNIST, D = 10", "mnist", 10, (1.01, 1.58, 0.80, 0.72, 0.86)),
    "fashion_10": Column("Fashion-MNIST, D = 10", "fashion_mnist", 10, (8.78, 9.20, 8.51, 8.30, 8.05)),
}
# What is tried of each method; training settings are tried with softmax alone, so that they suit it best.
CANDIDATES: dict[str, list[dict[str, Any]]] = {
    "softmax": [{}],
    "softmax_l1": [{"l1": 1e-5}, {"l1": 1e-4}, {"l1": 1e-3}],
    "large_margin": [{"margin": 2}, {"margin": 3}, {"margin": 4, "smallest_blend": 1.0}],
    "mixture": [
        {"n_components": 1, "head_rate": 3.0},
        {"n_components": 2, "head_rate": 1.0},
        {"n_components": 2, "head_rate": 10.0},
        {"n_components": 4, "head_rate": 3.0},
    ],
    "sparse": [
        {"n_components": 4, "head_rate": 3.0},
        {"n_components": 4, "head_rate": 10.0},
        {"n_components": 8, "head_rate": 3.0},
        {"n_components": 8, "head_rate": 10.0},
    ],
}
VARIANTS: list[dict[str, Any]] = [{}, {"learning_rate": 1e-2}, {"dropout": 0.1}, {"weight_decay": 0.1}]
LEAST_SPARSITY = 80.0  # of the sparse head, in per cent: candidates that prune less are not chosen where others do
TRADEOFFS = (0.01, 0.1, 0.5)


# ---- data ------------------------------------------------------------------------------------------------------------


def load(name: str, device: str, n_rows: int | None) -> tuple[Data, Data]:
    """Training and test images on the device, or the first of them."""
    bunch = {"mnist": load_mnist, "fashion_mnist": load_fashion_mnist}[name]()
    return tuple(  # pyright: ignore[reportReturnType]
        Data(
            torch.from_numpy(bunch[f"X_{part}"][:n_rows]).reshape(-1, 1, 28, 28).to(device),
            torch.from_numpy(bunch[f"y_{part}"][:n_rows].astype(np.int64)).to(device),
        )
        for part in ("train", "test")
    )


def base_training(column: Column, options: argparse.Namespace) -> Training:
    mirrored = column.data == "fashion_mnist"
    return Training(epochs=options.epochs, batch=options.batch, flip=mirrored, width=options.width)


def about() -> dict[str, Any]:
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "mixtura": mixtura.__version__}
    return {"machine": where, **versions}


def write(path: Path, runs: list[dict[str, Any]]) -> None:
    lines = ",\n".join("  " + json.dumps(run) for run in runs)
    path.write_text(f'{{"about": {json.dumps(about())},\n"runs": [\n{lines}\n]}}\n')


class Clock:
    """Says whether there is time for another run as long as the longest so far."""

    def __init__(self, seconds: float):
        self.end, self.longest, self.began = time.perf_counter() + seconds, 0.0, time.perf_counter()

    def allows_one_more(self) -> bool:
        now = time.perf_counter()
        self.longest, self.began = max(self.longest, now - self.began), now
        return now + self.longest < self.end


# ---- parts -----------------------------------------------------------------------------------------------------------


def select(name: str, options: argparse.Namespace) -> None:
    """Errors on held-out training rows."""
    column, path = COLUMNS[name], options.out / f"heads_select_{name}.json"
    train, _ = load(column.data, options.device, options.rows)
    n_validation = min(N_VALIDATION, len(train.labels) // 5)
    fitted, held_out = train.part(slice(0, -n_validation)), train.part(slice(-n_validation, None))
    jobs = [(method, settings, {}) for method in reversed(METHODS) for settings in CANDIDATES[method]]
    jobs += [("softmax", {}, variant) for variant in VARIANTS if variant]
    runs, clock = [], Clock(options.seconds)
    for seed in range(options.seeds):
        for method, settings, variant in jobs:
            if not clock.allows_one_more():
                return
            training = replace(base_training(column, options), **variant)
            trainer = Trainer(method, column.n_features, settings, training, fitted, 1000 + seed)
            found = judged(trainer.run(record=True), held_out)
            runs.append({"method": method, "settings": settings, "training": variant, "seed": seed, **found})
            print(name, json.dumps(runs[-1]), flush=True)
            write(path, runs)


def chosen(name: str, folder: Path = RESULTS) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Settings of each method with the least held-out error, means over seeds; and the training settings."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for run in json.loads((folder / f"heads_select_{name}.json").read_text())["runs"]:
        found[run["method"], json.dumps(run["settings"]), json.dumps(run["training"])].append(run)
    ranked = []
    for (method, settings, training), runs in found.items():
        too_dense = method == "sparse" and np.mean([run["sparsity"] for run in runs]) < LEAST_SPARSITY
        ranked.append((too_dense, np.mean([run["error"] for run in runs]), method, settings, training))
    best = {method: min(entry for entry in ranked if entry[2] == method) for method in METHODS}
    return {method: json.loads(entry[3]) for method, entry in best.items()}, json.loads(best["softmax"][4])


def table(name: str, options: argparse.Namespace) -> None:
    """All methods with the chosen settings, on all training rows; the test rows are looked at here alone."""
    column, path = COLUMNS[name], options.out / f"heads_{name}.json"
    train, test = load(column.data, options.device, options.rows)
    outside = load("mnist", options.device, options.rows)[1] if column.data == "fashion_mnist" else None
    settings, variant = chosen(name, options.selected)
    training = replace(base_training(column, options), **variant)
    runs, pictures, clock = [], {}, Clock(options.seconds)
    for seed in range(options.seeds):
        for method in METHODS:
            if not clock.allows_one_more():
                return
            shown = test.images[:N_SHOWN] if column.n_features == 2 and seed == 0 else None
            trainer = Trainer(method, column.n_features, settings[method], training, train, seed)
            trained = trainer.run(record=True, shown=shown)
            found = judged(trained, test, outside)
            runs.append({"method": method, "settings": settings[method], "seed": seed, **found})
            print(name, json.dumps(runs[-1]), flush=True)
            write(path, runs)
            if shown is not None and method in ("softmax", "sparse"):
                pictures |= followed(method, trained, train, test)
                np.savez_compressed(options.out / "heads_features.npz", **pictures)


def followed(method: str, trained: Any, train: Data, test: Data) -> dict[str, np.ndarray]:
    """Two-dimensional features for figure 5, and as they moved while training."""
    found = {"train": features_of(trained.network, train.images[: 2 * N_SHOWN])}
    found["test"] = features_of(trained.network, test.images[: 2 * N_SHOWN])
    arrays = {f"{method}_{part}": values.cpu().numpy().astype(np.float16) for part, values in found.items()}
    arrays[f"{method}_moving"] = np.stack(trained.snapshots).astype(np.float16)
    arrays["steps"] = np.array(trained.steps)
    labels = {"train_labels": train.labels, "test_labels": test.labels}
    return arrays | {part: values[: 2 * N_SHOWN].cpu().numpy().astype(np.int8) for part, values in labels.items()}


def density(name: str, options: argparse.Namespace) -> None:
    """The generative head against a Gaussian per class fitted to the same features afterwards, MNIST being outside.

    The trade-off is chosen by the error on held-out training rows.
    """
    column, path = COLUMNS[name], options.out / "heads_density.json"
    train, test = load(column.data, options.device, options.rows)
    outside = load("mnist", options.device, options.rows)[1]
    n_validation = min(N_VALIDATION, len(train.labels) // 5)
    fitted, held_out = train.part(slice(0, -n_validation)), train.part(slice(-n_validation, None))
    training = replace(base_training(column, options), **chosen(name, options.selected)[1])
    runs, errors, clock = [], {}, Clock(options.seconds)
    for tradeoff in TRADEOFFS:
        settings = {"n_components": 2, "tradeoff": tradeoff}
        short = replace(training, epochs=max(1, training.epochs // 2))
        trainer = Trainer("density", column.n_features, settings, short, fitted, 1000)
        errors[tradeoff] = judged(trainer.run(record=False), held_out)["error"]
        runs.append({"method": "density", "settings": settings, "held_out_error": errors[tradeoff]})
        print(name, json.dumps(runs[-1]), flush=True)
        write(path, runs)
    settings = {"n_components": 2, "tradeoff": min(errors, key=lambda key: errors[key])}
    for seed in range(options.seeds):
        if not clock.allows_one_more():
            return
        trained = Trainer("density", column.n_features, settings, training, train, seed).run(record=False)
        found = judged(trained, test, outside)
        inside, elsewhere = (features_of(trained.network, data.images).double() for data in (test, outside))
        known = features_of(trained.network, train.images).double()
        after = MixtureClassifier().fit(known, train.labels.cpu().numpy())
        found["auroc_after"] = auroc(after.score_samples(inside), after.score_samples(elsewhere))
        runs.append({"method": "density", "settings": settings, "seed": seed, **found})
        print(name, json.dumps(runs[-1]), flush=True)
        write(path, runs)


# ---- report ----------------------------------------------------------------------------------------------------------


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
    error = float(np.std(values, ddof=1) / np.sqrt(n_runs)) if n_runs > 1 else float("nan")
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def report(results: Path = RESULTS) -> str:
    """The page, from the files."""
    lines = ["# HU21, table 2: heads of networks", ""]
    for name, column in COLUMNS.items():
        path = results / f"heads_{name}.json"
        if path.is_file():
            lines += column_lines(name, column, json.loads(path.read_text()), results)
    return "\n".join(lines) + "\n"


def column_lines(name: str, column: Column, found: dict[str, Any], results: Path) -> list[str]:
    settings, variant = chosen(name, results)
    n_seeds = len({run["seed"] for run in found["runs"]})
    training = {**asdict(Training(flip=column.data == "fashion_mnist")), **variant}
    lines = [
        f"## {column.title}",
        "",
        f"{n_seeds} seeds, mean and standard error. Training: {json.dumps(training)}.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---" * len(HEADINGS) + "|",
    ]
    for method, paper in zip(METHODS, column.paper, strict=True):
        runs = [run for run in found["runs"] if run["method"] == method]
        if not runs:
            continue
        cells = [METHODS[method], f"{paper:.2f}"]
        for key, digits in (("error", 2), ("nll", 3), ("ece", 2), ("sparsity", 1), ("error_unpruned", 2), ("auroc", 4)):
            cells.append(spread([run[key] for run in runs], digits) if key in runs[0] else "")
        lines.append("| " + " | ".join([*cells, json.dumps(settings[method])]) + " |")
    return [*lines, ""]


# ---- pictures --------------------------------------------------------------------------------------------------------


def pictures(options: argparse.Namespace) -> None:
    """Figure 5 of HU21 and the same features moving, from heads_features.npz."""
    import matplotlib.pyplot as plt

    from mixtura.plotting import plot_features, save_moving_features

    found = dict(np.load(options.out / "heads_features.npz"))
    figure, axes = plt.subplots(2, 2, figsize=(7.5, 7), layout="constrained")
    titles = {"softmax": "softmax", "sparse": "SDGM"}
    for (method, title), pair in zip(titles.items(), axes.T, strict=True):
        for part, ax in zip(("train", "test"), pair, strict=True):
            plot_features(found[f"{method}_{part}"], found[f"{part}_labels"].astype(int), ax)
            ax.set_title(f"{title}, {'training' if part == 'train' else 'test'} images")
    figure.savefig(options.images / "heads_features.png", dpi=80)
    plt.close(figure)
    n_moments, n_rows = found["softmax_moving"].shape[:2]
    chosen_moments = np.unique(np.linspace(0, n_moments - 1, 16).round().astype(int))
    panels = {title: found[f"{method}_moving"][chosen_moments, :600] for method, title in titles.items()}
    steps = found["steps"][chosen_moments]
    labels = found["test_labels"][: min(600, n_rows)].astype(int)
    captions = [f"after {step} steps" for step in steps]
    save_moving_features(options.images / "heads_moving.gif", panels, labels, captions)


PARTS = {"select": select, "table": table, "density": density}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "report", "pictures"])
    parser.add_argument("columns", nargs="*", default=list(COLUMNS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=None, help="use the first rows only")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--images", type=Path, default=Path(__file__).parent.parent / "docs" / "images")
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--selected", type=Path, default=RESULTS, help="where the files of `select` are")
    options = parser.parse_args(arguments)
    if options.part == "report":
        (options.out / "heads.md").write_text(report(options.out))
        return
    if options.part == "pictures":
        pictures(options)
        return
    for name in options.columns:
        PARTS[options.part](name, options)


if __name__ == "__main__":
    main()
