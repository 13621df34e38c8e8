"""Times of the multiplicative and the accelerated solver of LZZ06: python -m studies.nonnegative_speed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mixtura.engine.tuning import DEFAULT_MEMORY_LIMIT
from mixtura.nonnegative.mixture import LabeledRows, LogLinearMixture, labeled_rows, rows_per_chunk
from mixtura.nonnegative.updates import Accelerated, Multiplicative
from reproduce.nonnegative import coded, machine, page, usps
from reproduce.stamps import write_json


def start_of(rows: LabeledRows, n_classes: int, n_bases: int, shared: bool, seed: int) -> LogLinearMixture:
    """As the estimator starts."""
    from mixtura.nonnegative.mixture import random_start

    prior = torch.full((n_classes,), 1 / n_classes, dtype=torch.float64).log()
    return random_start(n_bases, shared, rows, prior, torch.Generator().manual_seed(seed))


def seconds(compute: Callable[[], Any], rounds: int) -> float:
    """The median of process times: other processes on the machine do not count."""
    compute()
    times = []
    for _ in range(rounds):
        began = time.process_time()
        compute()
        times.append(time.process_time() - began)
    return statistics.median(times)


def floor_of(features: torch.Tensor, n_bases: int) -> Callable[[], Any]:
    """Three products of size rows x features x bases and two exponentials per row and basis."""
    coefficients = torch.randn(n_bases, features.shape[1], dtype=torch.float64)
    scores = torch.randn(len(features), n_bases, dtype=torch.float64)
    return lambda: (features @ coefficients.T, scores.T @ features, scores.T @ features, scores.exp(), scores.exp())


def rows_of(features: torch.Tensor, y: np.ndarray, n_bases: int) -> LabeledRows:
    """In the chunks of the estimator."""
    step = rows_per_chunk(n_bases, features.shape[1], DEFAULT_MEMORY_LIMIT, features.device)
    return labeled_rows(features, torch.from_numpy(y), torch.ones(len(y), dtype=torch.float64), step)


def compare(X: np.ndarray, y: np.ndarray, n_iterations: int = 1000) -> dict[str, Any]:
    features = torch.from_numpy(X / X.std(0))
    n_classes = int(y.max()) + 1
    iterations = []
    for shared in (True, False):
        rows = rows_of(features, y, 48 if shared else 48 * n_classes)
        begin = start_of(rows, n_classes, 48, shared, 0)
        plain = Multiplicative()
        here = plain.init(rows, begin)
        ours = seconds(lambda plain=plain, here=here, rows=rows: plain.step(rows, here), 9)
        least = seconds(floor_of(features, begin.n_bases), 9)
        name = "48 shared" if shared else "48 for each of 10 classes"
        iterations.append({"bases": name, "milliseconds": 1e3 * ours, "floor": 1e3 * least, "ratio": ours / least})
    rows = rows_of(features, y, 48)
    return {"iterations": iterations, "race": [race(rows, n_classes, seed, n_iterations) for seed in range(3)]}


def race(rows: LabeledRows, n_classes: int, seed: int, n_iterations: int) -> dict[str, Any]:
    """Process seconds of many plain iterations, and of the accelerated solver to the same objective."""
    begin = start_of(rows, n_classes, 48, True, seed)
    plain, fast = Multiplicative(), Accelerated()
    here, value = plain.init(rows, begin), -np.inf
    began = time.process_time()
    for _ in range(n_iterations):
        here, info = plain.step(rows, here)
        value = info.value
    plainly = time.process_time() - began
    here = fast.init(rows, begin)
    began = time.process_time()
    for _ in range(n_iterations):
        here, info = fast.step(rows, here)
        if info.value >= value:
            break
    quickly = time.process_time() - began
    return {"start": seed, "objective": value, "plain": plainly, "accelerated": quickly, "part": quickly / plainly}


def speed_text(results: dict[str, Any]) -> list[str]:
    lines = [
        "# Speed of the solvers on USPS codes",
        "5000 rows, 100 features, one thread, double precision. Floor: the three matrix products and two exponentials "
        "that an iteration needs. Times are of the processor, while other processes ran. All rows in one chunk, as "
        "before, an iteration with bases for each class took 82 to 109 ms.",
        "",
    ]
    lines += ["| bases | iteration, ms | floor, ms | ratio |", "|---|---|---|---|"]
    lines += [
        f"| {r['bases']} | {r['milliseconds']:.1f} | {r['floor']:.1f} | {r['ratio']:.2f} |"
        for r in results["iterations"]
    ]
    lines += [
        "",
        "| start | objective of 1000 plain iterations | plain, s | accelerated, s | part of the time |",
        "|---|---|---|---|---|",
    ]
    return lines + [
        f"| {r['start']} | {r['objective']:.4f} | {r['plain']:.2f} | {r['accelerated']:.2f} | {r['part']:.3f} |"
        for r in results["race"]
    ]


def main() -> None:
    """An iteration beside three products and two exponentials of its size; time to the plain rule's objective."""
    torch.set_num_threads(1)
    codes, _ = coded(usps(), 100)
    results = {"machine": machine(), **compare(codes["X"], codes["y"])}
    folder = Path(__file__).parent / "results"
    write_json(folder / "nonnegative_speed.json", results)
    (folder / "nonnegative_speed.md").write_text(page(results, speed_text(results)))


if __name__ == "__main__":
    main()
