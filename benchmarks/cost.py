"""Cost of an iteration: processor seconds per row for several sizes, and a regression model of them.

    python -m benchmarks.scale cost

The seconds are those of one core (processor time of a process with one thread, the difference of a long and a short
fit), so that other programs on the machine have little influence. The model is

    seconds per row = c . (1, M, K, K M, D [low rank], K D R, q K D, m K D^2)

with D features, K components, M monomials (D (D + 3) / 2 for full covariances, 2 D for diagonal and low-rank ones), R
the rank of low-rank covariances, m the share of missing values and q that of rows with any (full covariances). Its
coefficients are non-negative and minimise the squared relative errors. Held-out problems show its accuracy.
"""

from __future__ import annotations

import itertools
import time
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from mixtura import GaussianMixture
from mixtura.covariances import LowRank

FEW, MANY = 2, 6  # iterations of the two fits whose difference is measured


@dataclass(frozen=True)
class Size:
    """The size of a problem."""

    covariance: str
    n_features: int
    n_components: int
    rank: int = 0
    missing: float = 0.0  # share of the values
    n_rows: int = 0  # 0: as many as take a moment

    @property
    def n_monomials(self) -> int:
        full = self.n_features * (self.n_features + 3) // 2
        return full if self.covariance == "full" else 2 * self.n_features

    @property
    def terms(self) -> np.ndarray:
        """The terms that the coefficients of the model multiply."""
        d, k, m = self.n_features, self.n_components, self.n_monomials
        missing = self.missing if self.covariance == "full" else 0.0
        incomplete, low_rank = 1 - (1 - missing) ** d, d * (self.covariance == "low_rank")
        return np.array(
            [1, m, k, k * m, low_rank, k * d * self.rank, incomplete * k * d, missing * k * d**2], np.float64
        )


TERMS = ("1", "M", "K", "K M", "D, low rank", "K D R", "q K D", "m K D^2")
FITTED = [
    *(Size("full", d, k) for d, k in itertools.product((2, 8, 16, 32, 64), (2, 8, 32))),
    *(Size("diag", d, k) for d, k in itertools.product((8, 32, 128), (4, 16, 64))),
    *(Size("low_rank", d, k, rank) for d, k, rank in itertools.product((32, 64), (4, 16), (2, 8))),
    *(Size("full", d, k, missing=share) for d, k, share in itertools.product((8, 16, 32), (4, 16), (0.02, 0.2))),
    Size("full", 16, 8, n_rows=20_000),
    Size("full", 16, 8, n_rows=400_000),
]
CHECKED = [
    Size("full", 12, 5),
    Size("full", 24, 16),
    Size("full", 48, 12),
    Size("full", 16, 8, n_rows=1_000_000),
    Size("diag", 64, 24),
    Size("low_rank", 48, 8, 4),
    Size("full", 12, 8, missing=0.1),
    Size("full", 24, 8, missing=0.05),
]


def seconds_per_row(size: Size, n_repeats: int = 3) -> float:
    """Processor seconds of one EM iteration, per row; the smallest of several."""
    work = size.n_components * (size.n_monomials + 100) * (1 if not size.missing else size.n_features)
    n_rows = size.n_rows or int(np.clip(3e8 / work, 5_000, 200_000))
    rng = np.random.default_rng(0)
    means = rng.normal(scale=2, size=(size.n_components, size.n_features))
    rows = means[rng.integers(size.n_components, size=n_rows)] + rng.normal(size=(n_rows, size.n_features))
    rows[rng.random(rows.shape) < size.missing] = np.nan
    covariance: Any = LowRank(size.rank) if size.covariance == "low_rank" else size.covariance

    def fit(n_iterations: int) -> float:
        start = time.process_time()
        GaussianMixture(
            size.n_components,
            covariance_type=covariance,
            means_init=means,
            init_params="random",
            max_iter=n_iterations,
            tol=0.0,
            random_state=0,
        ).fit(rows)
        return time.process_time() - start

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(1)
        times = [(fit(FEW), fit(MANY)) for _ in range(n_repeats)]
    few, many = (min(column) for column in zip(*times, strict=True))
    return max(many - few, 1e-6) / (MANY - FEW) / n_rows


def fitted(sizes: list[Size], seconds: list[float]) -> np.ndarray:
    """Coefficients of the least squared relative errors."""
    matrix = np.stack([size.terms / each for size, each in zip(sizes, seconds, strict=True)])
    scales = matrix.max(0)
    coefficients, _ = nnls(matrix / scales, np.ones(len(sizes)))
    return coefficients / scales


def iteration_on_workers(per_row: float, n_rows: float, n_workers: int, network: dict[str, float]) -> dict[str, float]:
    """Seconds of an iteration over rows on several workers: their passes, then a tree of sums on its way to one place.

    Sums of a worker are added there, so that one sum per worker travels, in as many rounds as the tree is high.
    """
    n_rounds = int(np.ceil(np.log2(n_workers))) if n_workers > 1 else 0
    travel = n_rounds * (network["latency"] + network["bytes of a sum"] / network["bytes per second"])
    tasks = network["seconds per task"] * network["partitions per worker"] * n_workers
    return {"workers": n_workers, "pass": n_rows * per_row / n_workers, "network": travel, "scheduler": tasks}


def cost(n_rows: int) -> dict[str, Any]:
    """Measure; `n_rows` is what predictions are made for."""
    torch.set_num_threads(1)
    measured = {}
    for size in [*FITTED, *CHECKED]:
        measured[size] = seconds_per_row(size)
        print(f"{size}: {1e9 * measured[size]:.1f} ns per row", flush=True)
    return report(measured, n_rows)


def report(measured: dict[Size, float], n_rows: int) -> dict[str, Any]:
    """Fit the model to measurements, check it, and predict."""
    coefficients = fitted(FITTED, [measured[size] for size in FITTED])
    predicted = {size: float(size.terms @ coefficients) for size in measured}
    common, network = Size("full", 16, 8), network_of(16, 8)
    return {
        "nanoseconds per term": dict(zip(TERMS, (1e9 * coefficients).tolist(), strict=True)),
        "relative errors": {
            name: {
                "median": float(np.median([abs(predicted[s] / measured[s] - 1) for s in sizes])),
                "largest": max(abs(predicted[s] / measured[s] - 1) for s in sizes),
            }
            for name, sizes in {"fitted": FITTED, "checked": CHECKED}.items()
        },
        "measurements": [
            {**asdict(s), "checked": s in CHECKED, "ns": 1e9 * measured[s], "predicted ns": 1e9 * predicted[s]}
            for s in measured
        ],
        "predicted seconds per iteration": {
            "rows": n_rows,
            "problem": "full, 16 features, 8 components",
            "assumed network": network,
            "workers": [iteration_on_workers(predicted[common], n_rows, n, network) for n in (1, 8, 64)],
        },
    }


def network_of(n_features: int, n_components: int) -> dict[str, float]:
    """Ordinary Ethernet, and the time that the scheduler of Dask needs for a task."""
    return {
        "latency": 1e-3,
        "bytes per second": 1.25e8,
        "bytes of a sum": 8.0 * n_components * (1 + n_features + n_features**2),
        "partitions per worker": 16.0,
        "seconds per task": 1e-3,
    }
