"""python -m benchmarks.hybrid: time and memory of gradient training and of missing values in low-rank mixtures.

1. An epoch of the sizes of MNIST (pca50) (10 classes, 132 components, D = 50, rank 25, minibatches of 100) compared
   with a direct implementation: deviations of all rows from all means, autograd, Adam.
2. Classifying a row of 784 features by 170 components of rank 25, complete and with missing values, in batches of 1000.
3. Memory of fits and predictions in addition to the rows, as a function of the number of features.

Times are minima of several interleaved runs. Adds the measurements, by device and number of threads, to
results/hybrid.json and writes hybrid.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.__main__ import growth, machine
from mixtura.covariances import LowRankCovariance
from mixtura.engine.passes import map_rows
from mixtura.engine.sources import TensorSource, locate
from mixtura.model.mixture import Mixture
from mixtura.objectives import Hybrid, Margin, class_log_joint
from mixtura.solvers import Gradient, Problem
from mixtura.solvers.gradient import Training
from mixtura.values.targets import Targets

RESULTS = Path(__file__).parent / "results"
COUNTS = (20, 4, 15, 12, 10, 8, 15, 13, 20, 15)  # of RPTP18 for MNIST (pca50)
BATCH = 100
SIZES = (1250, 2500, 5000, 10_000)


def least(calls: dict[str, Callable[[], object]], n_rounds: int) -> dict[str, float]:
    """The least seconds of each call; they take turns."""
    seconds_of: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(n_rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds_of[name].append(time.perf_counter() - began)
    return {name: min(times) for name, times in seconds_of.items()}


def drawn(n_components: int, size: int, rank: int, n_classes: int, device: torch.device, precision: bool) -> Mixture:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64).to(device)

    diagonals, columns = 0.05 + 0.1 * draw(n_components, size), 0.2 * draw(n_components, size, rank) - 0.1
    weights = torch.full((n_components,), -math.log(n_components), dtype=torch.float64, device=device)
    class_of = (torch.arange(n_components) * n_classes // n_components).to(device)
    covariance = LowRankCovariance(diagonals, columns, of_precision=precision)
    return Mixture(weights, draw(n_components, size), covariance, class_of)


# ---- an epoch --------------------------------------------------------------------------------------------------------


def plain_epoch(start: Mixture, x: Tensor, y: Tensor, objective: Hybrid) -> Callable[[], None]:
    """An epoch in plain PyTorch."""
    covariance: Any = start.covariance
    free = [start.log_weights, start.means, covariance.unconstrained()["diagonals"], covariance.columns]
    leaves = [part.detach().clone().requires_grad_() for part in free]
    optimiser = torch.optim.Adam(leaves, lr=1e-3)
    identity = torch.eye(covariance.rank, dtype=x.dtype, device=x.device)
    constant = x.shape[1] * math.log(2 * math.pi)

    def epoch() -> None:
        for index in torch.randperm(len(x), device=x.device).split(BATCH):
            logits, means, diagonals, columns = leaves
            diagonals = torch.nn.functional.softplus(diagonals) + 1e-6
            off = x[index] - means.unsqueeze(1)  # (K, n, D)
            distances = (off.square() * diagonals.unsqueeze(1)).sum(-1) + (off @ columns).square().sum(-1)
            inner = identity + columns.mT @ (columns / diagonals.unsqueeze(-1))
            log_determinants = diagonals.log().sum(-1) + torch.logdet(inner)
            densities = 0.5 * (log_determinants.unsqueeze(-1) - distances - constant)
            log_joint = logits.log_softmax(0).unsqueeze(-1) + densities
            evaluation = objective.evaluate(log_joint, Targets(start.class_of, y[index], known_classes=10))
            optimiser.zero_grad()
            (-evaluation.values.mean()).backward()
            optimiser.step()

    return epoch


def epochs(device: torch.device, n_rounds: int) -> dict[str, Any]:
    """Milliseconds of a step."""
    n_rows = 10 * BATCH
    start = drawn(sum(COUNTS), 50, 25, 10, device, precision=True)
    x = torch.rand(n_rows, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(device)
    y = (torch.arange(n_rows) % 10).to(device)
    objective = Hybrid(0.25, Margin(60.0))
    source = TensorSource(x, y)
    problem = Problem(source, objective, locate(source), torch.zeros_like(x[0]))
    ours = Training(Gradient("adam"), problem, start)
    calls = {"mixtura": lambda: ours.run_epoch(0), "plain autograd": plain_epoch(start, x, y, objective)}
    times = {name: 1e3 * BATCH * t / n_rows for name, t in least(calls, n_rounds).items()}
    return {"milliseconds": times, "ratio": times["plain autograd"] / times["mixtura"]}


# ---- missing values --------------------------------------------------------------------------------------------------


def with_holes(rows: Tensor, share: float) -> Tensor:
    """The same number of missing values in every row."""
    keys = torch.rand(rows.shape, generator=torch.Generator().manual_seed(2)).to(rows.device)
    gone = torch.zeros_like(rows, dtype=torch.bool)
    gone.scatter_(1, keys.argsort(1)[:, : round(share * rows.shape[1])], True)
    return torch.where(gone, torch.nan, rows)


def missing_values(device: torch.device, n_rounds: int) -> dict[str, Any]:
    """Microseconds of a row."""
    mixture = drawn(170, 784, 25, 10, device, precision=False)
    rows = torch.rand(1000, 784, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(device)
    limit = 8 * 2**30 if device.type == "cuda" else 2**28

    def classify(x: Tensor) -> Tensor:
        source = TensorSource(x)
        return map_rows(mixture, source, lambda a: class_log_joint(a, mixture.class_sizes).argmax(0).double(), limit)

    parts = {"complete": rows, "10 % missing": with_holes(rows, 0.1), "50 % missing": with_holes(rows, 0.5)}
    with torch.no_grad():
        times = least({name: (lambda x=x: classify(x)) for name, x in parts.items()}, n_rounds)
    each = {name: 1e6 * t / len(rows) for name, t in times.items()}
    return {"microseconds": each, "ratio": each["10 % missing"] / each["complete"]}


# ---- memory ----------------------------------------------------------------------------------------------------------


def peaks(size: int) -> dict[str, float]:
    """Megabytes that fits and predictions need beyond the rows; run in a process of its own."""
    from mixtura import HybridMixtureClassifier

    rows = torch.randn(200, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.arange(200) % 2
    rows[:, :20] += labels.unsqueeze(-1)
    holes = with_holes(rows, 0.1).numpy()
    options: dict[str, Any] = {"covariance_type": "low_rank", "rank": 10, "max_iter": 3, "n_epochs": 2}
    options |= {"validation_fraction": None, "tradeoff": 0.5, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in (rows[:, :100], holes[:, :100]):  # libraries make their workspaces
            HybridMixtureClassifier(2, **options).fit(part, labels)
        model = HybridMixtureClassifier(2, **options)
        return {
            "fit": growth(lambda: model.fit(rows, labels)),
            "predict with missing values": growth(lambda: model.predict(holes)),
            "fit with missing values": growth(lambda: HybridMixtureClassifier(2, **options).fit(holes, labels)),
        }


def memory() -> dict[str, Any]:
    """Peaks by the number of features, each in a process of its own."""
    results = {}
    for size in SIZES:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.hybrid", "--peak", str(size)], check=True, capture_output=True, text=True
        )
        results[str(size)] = json.loads(done.stdout)
    return results


# ---- results ---------------------------------------------------------------------------------------------------------


def page(results: dict[str, Any]) -> str:
    lines = ["# Hybrid training and missing values", "", "Written by `python -m benchmarks.hybrid`; float64.", ""]
    lines += ["The least of several rounds, in turns.", ""]
    for name, record in results.items():
        own = record["machine"]
        lines += [f"## {name}", "", f"{own['processor']}, {own['cores']} cores, torch {own['torch']}."]
        lines += [
            f"Load average {record['load']:.1f}: more than the threads means that other programs were running.",
            "",
        ]
        step = record["epoch"]["milliseconds"]
        lines += ["| a step of 100 rows, 132 components, D = 50, rank 25 | milliseconds |", "|---|---|"]
        lines += [f"| {way} | {value:.2f} |" for way, value in step.items()]
        lines += [f"| plain autograd over mixtura | {record['epoch']['ratio']:.1f} times |", ""]
        lines += ["| a row of 784 features, 170 components, rank 25 | microseconds |", "|---|---|"]
        lines += [f"| {way} | {value:.0f} |" for way, value in record["missing"]["microseconds"].items()]
        lines += [f"| 10 % missing over complete | {record['missing']['ratio']:.1f} times |", ""]
        if "memory" in record:
            lines += memory_table(record["memory"])
    return "\n".join(lines).rstrip() + "\n"


def memory_table(results: dict[str, Any]) -> list[str]:
    ways = list(next(iter(results.values())))
    lines = [
        "Memory beyond rows and libraries, at most, in MB; 200 rows, 4 components of rank 10",
        "",
    ]
    lines += ["| features | " + " | ".join(ways) + " | one D x D matrix |", "|---|" + "---|" * (len(ways) + 1)]
    for size, peaks in results.items():
        matrix = int(size) ** 2 * 8 / 2**20
        lines.append(f"| {size} | " + " | ".join(f"{peaks[way]:.0f}" for way in ways) + f" | {matrix:.0f} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--times", action="store_true", help="leave memory out")
    parser.add_argument("--peak", type=int, help="measure memory for so many features, and print it")
    parser.add_argument("--out", type=Path, default=RESULTS / "hybrid.json")
    options = parser.parse_args()
    if options.peak is not None:
        print(json.dumps(peaks(options.peak)))
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    record: dict[str, Any] = {"machine": machine()}
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    record["epoch"] = epochs(device, options.rounds)
    print(json.dumps(record["epoch"]), flush=True)
    record["missing"] = missing_values(device, max(3, options.rounds // 2))
    print(json.dumps(record["missing"]), flush=True)
    record["load"] = os.getloadavg()[0]
    if device.type == "cpu" and not options.times:
        record["memory"] = memory()
        print(json.dumps(record["memory"]), flush=True)
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    results[name] = {**results.get(name, {}), **record}
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(page(results))


if __name__ == "__main__":
    main()
