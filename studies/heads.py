"""Table 2 and figure 5 of HU21 beside ours: with our recipe: python -m studies.heads PART.

    select   settings of each method, by the error on the last 10 000 training rows  -> heads_select_<column>.json
    table    five methods, several seeds, all training rows, the test rows once      -> heads_<column>.json, features
    density  the generative head and a Gaussian per class fitted afterwards          -> heads_density.json; a small
             version on a CPU (--rows 5000 --width 8 --epochs 25 --batch 100)        -> heads_small_density.json
    pictures figure 5, and the same features moving                                  -> docs/images

A GPU needs minutes; --epochs, --rows and --width make a small version. The result of a run is written when it ends;
runs go seed by seed, until --seconds are over.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.axes import Axes

from mixtura import MixtureClassifier
from reproduce.heads import COLUMNS, METHODS, Column, Data, load, write
from reproduce.stamps import RESULTS
from studies.head_training import Trainer, Training, auroc, features_of, judged
from studies.heads_page import chosen

N_VALIDATION = 10_000
N_SHOWN = 2000  # images whose features are followed through training

# What is tried of each method; training settings are tried with softmax alone, so that they suit it best.
CANDIDATES: dict[str, list[dict[str, Any]]] = {
    "softmax": [{}],
    "softmax_l1": [{"l1": 1e-4}, {"l1": 1e-3}],
    "large_margin": [
        {"margin": 2, "decay": 0.999, "smallest_blend": 1.0},
        {"margin": 2, "decay": 0.999, "smallest_blend": 5.0},
        {"margin": 4, "decay": 0.999, "smallest_blend": 5.0},
    ],
    "mixture": [
        {"n_components": 1, "head_rate": 1.0},
        {"n_components": 2, "head_rate": 1.0},
        {"n_components": 4, "head_rate": 5.0},
    ],
    "sparse": [
        {"n_components": 8, "head_rate": 5.0},
        {"n_components": 8, "head_rate": 5.0, "threshold": 0.0},
        {"n_components": 16, "head_rate": 5.0},
        {"n_components": 16, "head_rate": 5.0, "threshold": 0.0},
    ],
}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"learning_rate": 3e-3},
    {"rotation": 0.0, "zoom": 0.0},
    {"dropout": 0.1},
    {"dropout": 0.1, "rotation": 0.0, "zoom": 0.0},
]
TRADEOFFS = (0.05, 0.3)


# ---- data ------------------------------------------------------------------------------------------------------------


def base_training(column: Column, options: argparse.Namespace) -> Training:
    mirrored = column.data == "fashion_mnist"
    return Training(epochs=options.epochs, batch=options.batch, flip=mirrored, width=options.width)


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
            record = judged(trainer.run(record=True), held_out)
            runs.append({"method": method, "settings": settings, "training": variant, "seed": seed, **record})
            print(name, json.dumps(runs[-1]), flush=True)
            write(path, runs)


def table(name: str, options: argparse.Namespace) -> None:
    """All methods with the chosen settings, on all training rows; the test rows are looked at here alone."""
    column, path = COLUMNS[name], options.out / f"heads_{name}{options.suffix}.json"
    train, test = load(column.data, options.device, options.rows)
    outside = load("mnist", options.device, options.rows)[1] if column.data == "fashion_mnist" else None
    settings, variant = chosen(name, options.selected)
    training = replace(base_training(column, options), **variant)
    runs, pictures, clock = [], {}, Clock(options.seconds)
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for method in METHODS:
            if not clock.allows_one_more():
                return
            shown = test.images[:N_SHOWN] if column.n_features == 2 and seed == 0 else None
            trainer = Trainer(method, column.n_features, settings[method], training, train, seed)
            trained = trainer.run(record=True, shown=shown)
            record = judged(trained, test, outside)
            runs.append({"method": method, "settings": settings[method], "seed": seed, **record})
            print(name, json.dumps(runs[-1]), flush=True)
            write(path, runs)
            if shown is not None and method in ("softmax", "sparse"):
                pictures |= followed(method, trained, train, test)
                np.savez_compressed(options.out / "heads_features.npz", **pictures)


def followed(method: str, trained: Any, train: Data, test: Data) -> dict[str, np.ndarray]:
    """Two-dimensional features for figure 5, and as they moved while training."""
    features = {"train": features_of(trained.network, train.images[: 2 * N_SHOWN])}
    features["test"] = features_of(trained.network, test.images[: 2 * N_SHOWN])
    arrays = {f"{method}_{part}": values.cpu().numpy().astype(np.float16) for part, values in features.items()}
    arrays[f"{method}_moving"] = np.stack(trained.snapshots).astype(np.float16)
    arrays["steps"] = np.array(trained.steps)
    labels = {"train_labels": train.labels, "test_labels": test.labels}
    return arrays | {part: values[: 2 * N_SHOWN].cpu().numpy().astype(np.int8) for part, values in labels.items()}


def density(name: str, options: argparse.Namespace) -> None:
    """The generative head against a Gaussian per class fitted to the same features afterwards, MNIST being outside.

    The trade-off is chosen by the error on held-out training rows.
    """
    column, path = COLUMNS[name], options.out / f"heads_density{options.suffix}.json"
    train, test = load(column.data, options.device, options.rows)
    outside = load("mnist", options.device, options.rows)[1]
    n_validation = min(N_VALIDATION, len(train.labels) // 5)
    fitted, held_out = train.part(slice(0, -n_validation)), train.part(slice(-n_validation, None))
    training = replace(base_training(column, options), **chosen(name, options.selected)[1])
    size = None if options.rows is None else f"{options.rows} images, width {options.width}, {options.epochs} epochs"
    runs, errors, clock = [], {}, Clock(options.seconds)
    for tradeoff in TRADEOFFS:
        settings = {"n_components": 2, "tradeoff": tradeoff}
        short = replace(training, epochs=max(1, training.epochs // 2))
        trainer = Trainer("density", column.n_features, settings, short, fitted, 1000)
        errors[tradeoff] = judged(trainer.run(record=False), held_out)["error"]
        runs.append({"method": "density", "settings": settings, "held_out_error": errors[tradeoff]})
        print(name, json.dumps(runs[-1]), flush=True)
        write(path, runs, size)
    settings = {"n_components": 2, "tradeoff": min(errors, key=lambda key: errors[key])}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        if not clock.allows_one_more():
            return
        trained = Trainer("density", column.n_features, settings, training, train, seed).run(record=False)
        record = judged(trained, test, outside)
        inside, elsewhere = (features_of(trained.network, data.images).double() for data in (test, outside))
        known = features_of(trained.network, train.images).double()
        after = MixtureClassifier(1).fit(known, train.labels.cpu().numpy())
        record["auroc_after"] = auroc(after.score_samples(inside), after.score_samples(elsewhere))
        refitted = trained.head.double().refit(known, train.labels, logits=False, random_state=seed)
        with torch.no_grad():
            record["auroc_anew"] = auroc(refitted.log_density(inside), refitted.log_density(elsewhere))
        runs.append({"method": "density", "settings": settings, "seed": seed, **record})
        print(name, json.dumps(runs[-1]), flush=True)
        write(path, runs, size)


def plot_features(features: np.ndarray, labels: np.ndarray, ax: Axes | None = None) -> Axes:
    """Plot two-dimensional features of a network in class colours, with the class number at the median."""
    rows = np.asarray(features, float)
    ax = plt.subplots()[1] if ax is None else ax
    colours = plt.get_cmap("tab10")
    ax.scatter(*rows.T, s=2, c=colours(labels % 10), linewidths=0, rasterized=True)
    for number in np.unique(labels):
        middle = np.median(rows[labels == number], axis=0)
        box = {"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": colours(number % 10), "alpha": 0.9}
        ax.text(middle[0], middle[1], str(number), fontsize=8, ha="center", va="center", bbox=box)
    ax.set(xlabel="feature 0", ylabel="feature 1")
    return ax


def save_moving_features(path: Any, panels: dict[str, np.ndarray], labels: np.ndarray, captions: Sequence[str]) -> None:
    """Write an animation (GIF) of features that change during training, one panel per network."""
    figure, axes = plt.subplots(1, len(panels), figsize=(3.1 * len(panels), 3.3), squeeze=False, layout="constrained")

    def draw(frame: int) -> None:
        for ax, (title, features) in zip(axes[0], panels.items(), strict=True):
            ax.clear()
            plot_features(features[frame], labels, ax)
            ax.set(title=title, xlabel="", ylabel="", xticks=[], yticks=[])
        figure.suptitle(captions[frame], fontsize=10)

    frames = [*range(len(captions)), *[len(captions) - 1] * 4]  # the last frame is shown longer
    FuncAnimation(figure, draw, frames).save(str(path), PillowWriter(fps=3), dpi=72)
    plt.close(figure)


N_MOVING = 400  # images in the moving picture, which must stay small


def draw(results: Path, images: Path) -> None:
    """Figure 5 of HU21 and the same features moving, from heads_features.npz."""
    features = dict(np.load(results / "heads_features.npz"))
    figure, axes = plt.subplots(2, 2, figsize=(7.5, 7), layout="constrained")
    titles = {"softmax": "softmax", "sparse": "SDGM"}
    for (method, title), pair in zip(titles.items(), axes.T, strict=True):
        for part, ax in zip(("train", "test"), pair, strict=True):
            plot_features(features[f"{method}_{part}"], features[f"{part}_labels"].astype(int), ax)
            ax.set_title(f"{title}, {'training' if part == 'train' else 'test'} images")
    figure.savefig(images / "heads_features.png", dpi=80)
    plt.close(figure)
    n_moments, n_rows = features["softmax_moving"].shape[:2]
    chosen_moments = np.unique(np.linspace(0, n_moments - 1, 12).round().astype(int))
    panels = {title: features[f"{method}_moving"][chosen_moments, :N_MOVING] for method, title in titles.items()}
    steps = features["steps"][chosen_moments]
    labels = features["test_labels"][: min(N_MOVING, n_rows)].astype(int)
    captions = [f"after {step} steps" for step in steps]
    save_moving_features(images / "heads_moving.gif", panels, labels, captions)


PARTS = {"select": select, "table": table, "density": density}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "pictures"])
    parser.add_argument("columns", nargs="*", default=list(COLUMNS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=Training.epochs)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--suffix", default="", help="of the names of the files of `table` and `density`")
    parser.add_argument("--rows", type=int, default=None, help="use the first rows only")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--images", type=Path, default=Path(__file__).parent.parent / "docs" / "images")
    parser.add_argument("--batch", type=int, default=Training.batch)
    parser.add_argument("--selected", type=Path, default=RESULTS, help="where the files of `select` are")
    options = parser.parse_args(arguments)
    if options.part == "pictures":
        draw(options.out, options.images)
    else:
        for name in options.columns:
            PARTS[options.part](name, options)


if __name__ == "__main__":
    main()
