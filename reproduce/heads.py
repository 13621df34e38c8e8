"""Table 2 and figure 5 of HU21 beside ours: python -m reproduce hu21-table2, or one part by python -m reproduce.heads.

    select   settings of each method, by the error on the last 10 000 training rows  -> heads_select_<column>.json
    table    five methods, several seeds, all training rows, the test rows once      -> heads_<column>.json, features
    density  the generative head and a Gaussian per class fitted afterwards          -> heads_density.json; a small
             version on a CPU (--rows 5000 --width 8 --epochs 25 --batch 100)        -> heads_small_density.json
    all      these three, in parallel processes
    pictures figure 5, and the same features moving                                  -> docs/images

A GPU needs minutes; --epochs, --rows and --width make a small version. The result of a run is written when it ends;
runs go seed by seed, until --seconds are over.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mixtura
from mixtura import MixtureClassifier
from reproduce import data
from reproduce.head_training import Data, Trainer, Training, auroc, features_of, judged
from reproduce.options import Options
from reproduce.stamps import RESULTS, write_json

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
LEAST_SPARSITY = 80.0  # of the sparse head, in per cent: of candidates that prune less, the one that prunes most
TRADEOFFS = (0.05, 0.3)


# ---- data ------------------------------------------------------------------------------------------------------------


def load(name: str, device: str, n_rows: int | None) -> tuple[Data, Data]:
    """Training and test images on the device, or the first of them."""
    bunch = data.load(name)
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


def write(path: Path, runs: list[dict[str, Any]], size: str | None = None) -> None:
    """Runs with where they ran; size says what a small version has less of."""
    write_json(path, {"about": about() | ({} if size is None else {"size": size}), "runs": runs})


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


# ---- everything ------------------------------------------------------------------------------------------------------


def everything(options: argparse.Namespace) -> None:
    """Select, then tables and density, a process for every column and seed, until --seconds are over."""
    began = time.perf_counter()
    common = ["--device", options.device, "--batch", options.batch, "--width", options.width, "--out", options.out]
    common += ["--selected", options.out] + ([] if options.rows is None else ["--rows", options.rows])

    def start(part: str, name: str, epochs: int, share: float, *more: Any) -> subprocess.Popen[bytes]:
        left = share * options.seconds - (time.perf_counter() - began)
        arguments = [part, name, *common, "--epochs", epochs, "--seconds", left, *more]
        return subprocess.Popen([sys.executable, "-m", "reproduce.heads", *map(str, arguments)])

    def wait(jobs: list[subprocess.Popen[bytes]], what: str) -> None:
        for job in jobs:
            job.wait()
        print(f"{what} after {time.perf_counter() - began:.0f} s", flush=True)

    short = max(1, 2 * options.epochs // 5)
    wait([start("select", name, short, 0.35, "--seeds", 1) for name in options.columns], "selected")
    one = [("--seeds", 1, "--first-seed", seed, "--suffix", f"_{seed}") for seed in range(options.seeds)]
    jobs = [start("density", "fashion_10", max(1, options.epochs // 2), 1.0, *more) for more in one[:3]]
    took = 0.0
    for first in range(
        0, options.seeds, 3
    ):  # in threes, as long as there is time for all methods with three more seeds
        round_began = time.perf_counter()
        if round_began - began + 1.2 * took > options.seconds:
            break
        seeds = range(first, min(first + 3, options.seeds))
        more = [one[seed] for seed in seeds]
        wait([start("table", name, options.epochs, 1.0, *m) for m in more for name in options.columns], f"{seeds}")
        took = time.perf_counter() - round_began
    wait(jobs, "density")
    for name in (*options.columns, "density"):
        merge(options.out, name)


def merge(folder: Path, name: str) -> None:
    """The files of single seeds as one; what all of them say is said once."""
    parts, runs, size = sorted(folder.glob(f"heads_{name}_*.json")), [], None
    for path in parts:
        record = json.loads(path.read_text())
        runs += [run for run in record["runs"] if run not in runs]
        size = record["about"].get("size")
        path.unlink()
    if parts:
        write(folder / f"heads_{name}.json", runs, size)


PARTS = {"select": select, "table": table, "density": density}


def compute(options: Options) -> None:
    """All parts; what the results hold already is kept, and a select file makes no new selection."""
    folder, device = options.out, options.device
    common = ["--device", device, "--out", str(folder), "--selected", str(folder), "--images", str(folder)]
    small = ["--epochs", "1", "--width", "4", "--batch", "50", "--rows", "400"] if options.quick else []
    seeds = ["--seeds", str(options.n_seeds(3))]
    for name in ["mnist_2"] if options.quick else COLUMNS:
        if not (folder / f"heads_select_{name}.json").exists():
            main(["select", name, *common, *small, "--seeds", "1"])
        if not (folder / f"heads_{name}.json").exists():
            main(["table", name, *common, *small, *seeds])
    if not options.quick and not (folder / "heads_density.json").exists():
        main(["density", "fashion_10", *common, *seeds])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "all", "pictures"])
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
    if options.part == "all":
        everything(options)
    elif options.part == "pictures":
        from reproduce import head_report

        head_report.draw(options.out, options.images)
    else:
        for name in options.columns:
            PARTS[options.part](name, options)


if __name__ == "__main__":
    main()
