"""python -m benchmarks.scale: rows from files, from Dask workers and in batches, compared with the same rows in memory.

    python -m benchmarks.scale parquet --rows 50000000
    python -m benchmarks.scale dask --rows 4000000
    python -m benchmarks.scale stream --rows 1000000
    python -m benchmarks.scale cost --rows 1000000000

Each writes its part of results/scale.json. Times are minima over several iterations; ratios are of alternating
iterations, since other programs may be running.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.__main__ import machine
from benchmarks.cost import cost
from mixtura import GaussianMixture

RESULTS = Path(__file__).parent / "results" / "scale.json"
N_FEATURES, N_COMPONENTS = 16, 8


def centres(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=3, size=(N_COMPONENTS, N_FEATURES))


def make_rows(n_rows: int, seed: int, shape_seed: int = 0) -> np.ndarray:
    """Rows of a mixture of correlated components, in single precision."""
    shape, generator = np.random.default_rng(shape_seed), np.random.default_rng(seed)
    means = centres(shape_seed)
    factors = shape.normal(size=(N_COMPONENTS, N_FEATURES, N_FEATURES)).astype(np.float32) / 4
    rows = generator.standard_normal((n_rows, N_FEATURES), dtype=np.float32)
    components = generator.integers(N_COMPONENTS, size=n_rows)
    for k in range(N_COMPONENTS):
        own = components == k
        rows[own] = rows[own] @ factors[k] + means[k].astype(np.float32)
    return rows


def estimator(n_iterations: int) -> GaussianMixture:
    """From a given start, so that iterations alone are timed."""
    start = np.random.default_rng(1)
    return GaussianMixture(
        N_COMPONENTS,
        weights_init=np.full(N_COMPONENTS, 1 / N_COMPONENTS),
        means_init=centres(0) + start.normal(size=(N_COMPONENTS, N_FEATURES)),
        precisions_init=np.tile(np.eye(N_FEATURES), (N_COMPONENTS, 1, 1)),
        max_iter=n_iterations,
        tol=0.0,
        random_state=0,
    )


def seconds_per_iteration(X: Any, n_iterations: int) -> float:
    """The smallest over the iterations of one fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = estimator(n_iterations).fit(X)
    ends = [0.0, *(record.seconds for record in model.history_)]
    return float(np.diff(ends).min())


@contextmanager
def resident_memory() -> Iterator[dict[str, float]]:
    """Resident memory of this process in MB: at the start, and the largest afterwards."""
    process, stopped = psutil.Process(), threading.Event()
    usage = {"start": process.memory_info().rss / 1e6, "largest": 0.0}

    def watch() -> None:
        while not stopped.wait(0.05):
            usage["largest"] = max(usage["largest"], process.memory_info().rss / 1e6)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield usage
    finally:
        stopped.set()
        thread.join()


def parquet(n_rows: int, n_iterations: int = 2, n_compared: int = 4_000_000) -> dict[str, Any]:
    """Memory of a fit of many rows in files; speed beside memory on a part that fits."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from mixtura.streams.files import FileBatches

    names, size = [f"x{j}" for j in range(N_FEATURES)], 1_000_000
    with tempfile.TemporaryDirectory(dir=os.environ.get("MIXTURA_SCRATCH")) as folder:
        for number, start in enumerate(range(0, n_rows, size)):
            rows = make_rows(min(size, n_rows - start), seed=number + 1)
            pq.write_table(pa.table(dict(zip(names, rows.T, strict=True))), f"{folder}/{number:04d}.parquet")
            del rows
        n_bytes = sum(file.stat().st_size for file in Path(folder).iterdir())
        few = sorted(str(path) for path in Path(folder).iterdir())[: n_compared // size]
        seconds_per_iteration(FileBatches(few[:1]), 1)  # libraries are loaded
        with resident_memory() as memory:
            streamed = seconds_per_iteration(FileBatches(folder), n_iterations)
        inside = np.concatenate([make_rows(size, seed=number + 1) for number in range(len(few))])
        turns = [(seconds_per_iteration(FileBatches(few), 3), seconds_per_iteration(inside, 3)) for _ in range(3)]
    from_files, from_memory = (min(times) for times in zip(*turns, strict=True))
    return {
        "rows": n_rows,
        "gigabytes": n_bytes / 1e9,
        "seconds per iteration": streamed,
        "rows per second": n_rows / streamed,
        "resident MB": memory,
        "compared rows": len(inside),
        "speed relative to memory": from_memory / from_files,
    }


def dask_workers(n_rows: int, n_iterations: int = 4, n_turns: int = 3) -> dict[str, Any]:
    """Processes with one thread each, beside as many threads in memory; and the bytes that travel."""
    import dask
    import dask.array as da
    from distributed import Client, LocalCluster

    n_blocks = 8
    size = n_rows // n_blocks
    parts = [dask.delayed(make_rows)(size, seed=number + 1) for number in range(n_blocks)]  # pyright: ignore[reportPrivateImportUsage]
    inside = np.concatenate([make_rows(size, seed=number + 1) for number in range(n_blocks)])
    threads = {"memory, 1 thread": 1, "memory, 2 threads": 2}
    times: dict[str, list[float]] = {name: [] for name in ("1 worker", "2 workers", *threads)}
    work: dict[str, list[float]] = {name: [] for name in times}
    n_bytes, n_passes = 0, n_iterations + 2  # a look, a description, then iterations
    for _ in range(n_turns):
        for n_workers in (1, 2):
            with (
                LocalCluster(
                    n_workers=n_workers, threads_per_worker=1, dashboard_address=":0", silence_logs=50
                ) as local,
                Client(local) as client,
            ):
                arrays = [da.from_delayed(part, shape=(size, N_FEATURES), dtype=np.float32) for part in parts]
                X = client.persist(da.concatenate(arrays))
                seconds_per_iteration(X, 1)  # libraries are loaded
                name = f"{n_workers} worker{'s' * (n_workers > 1)}"
                before, worked = _on_the_network(), sum(client.run(time.process_time).values()) + time.process_time()
                times[name].append(seconds_per_iteration(X, n_iterations))
                worked = sum(client.run(time.process_time).values()) + time.process_time() - worked
                n_bytes = _on_the_network() - before
                work[name].append(worked / n_passes)
        for name, n_threads in threads.items():
            torch.set_num_threads(n_threads)
            worked = time.process_time()
            times[name].append(seconds_per_iteration(inside, n_iterations))
            work[name].append((time.process_time() - worked) / n_passes)
    best, least = ({name: min(values) for name, values in part.items()} for part in (times, work))
    return {
        "rows": len(inside),
        "seconds per iteration": best,
        "processor seconds per pass": least,  # of client, scheduler and workers together
        "processor overhead relative to memory": least["2 workers"] / least["memory, 2 threads"] - 1,
        "speed of 2 workers relative to 1": best["1 worker"] / best["2 workers"],
        "speed of 2 threads relative to 1": best["memory, 1 thread"] / best["memory, 2 threads"],
        "overhead relative to memory": best["2 workers"] / best["memory, 2 threads"] - 1,
        "bytes of the rows": inside.nbytes,
        "bytes on the network per pass": n_bytes / n_passes,
    }


def stream(
    n_rows: int, batch_size: int = 10_000, n_iterations: int = 20, seeds: tuple[int, ...] = (0, 1, 2)
) -> dict[str, Any]:
    """Held-out log-likelihood per sample after one pass of partial_fit, beside full EM; both from four starts."""
    results = []
    for seed in seeds:
        rows, held_out = (make_rows(size, number, shape_seed=seed) for size, number in ((n_rows, 1), (100_000, 2)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole = GaussianMixture(N_COMPONENTS, max_iter=n_iterations, n_init=4, tol=0.0, random_state=0).fit(rows)
        online = GaussianMixture(N_COMPONENTS, random_state=0)
        for first in range(0, n_rows, batch_size):
            online.partial_fit(rows[first : first + batch_size])
        scores = {"EM": whole.score(held_out), "partial_fit": online.score(held_out)}
        results.append({"seed": seed, **scores, "difference": scores["partial_fit"] - scores["EM"]})
    return {"rows": n_rows, "batch size": batch_size, "EM iterations": n_iterations, "seeds": results}


def _on_the_network() -> int:
    """Bytes sent between processes of this machine, by any of them."""
    return psutil.net_io_counters(pernic=True)["lo"].bytes_sent


def write_result(name: str, result: dict[str, Any]) -> None:
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[name] = {**result, "machine": machine()}
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")
    print(json.dumps(result, indent=1))


PARTS = {"parquet": parquet, "dask": dask_workers, "stream": stream, "cost": cost}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--rows", type=int, default=2_000_000)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    began = time.perf_counter()
    write_result(arguments.part, PARTS[arguments.part](arguments.rows))
    print(f"{time.perf_counter() - began:.0f} s")
