"""python -m benchmarks.regularised: time saved by training mixtures together, and loss by reducing an average.

Writes results/regularised.json and .md. One thread; the two sides of a ratio alternate, and the minimum is used.
"""

from __future__ import annotations

import json
import resource
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.__main__ import machine
from mixtura import AveragedMixture, GaussianMixture
from mixtura.covariances import Full
from mixtura.datasets import make_rings
from mixtura.engine.sources import TensorSource
from mixtura.init.description import describe
from mixtura.init.starts import starting_mixture
from mixtura.model.mixture import Mixture
from mixtura.objectives import Joint, Marginal
from mixtura.priors import Conjugate
from mixtura.selection.clusters import LARGEST, ComponentPath, penalties
from mixtura.selection.search import Search
from mixtura.solvers import EM, MemberFit, Problem, first_update
from mixtura.solvers.batched_em import JointMembers

RESULTS = Path(__file__).parent / "results"
N_ROUNDS = 5


def clusters(n_rows: int, n_features: int, n_clusters: int, seed: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    means = 4 * rng.normal(size=(n_clusters, n_features))
    roots = rng.normal(size=(n_clusters, n_features, n_features)) / np.sqrt(n_features)
    labels = rng.integers(0, n_clusters, n_rows)
    return torch.from_numpy(
        means[labels] + np.einsum("nij,nj->ni", roots[labels], rng.normal(size=(n_rows, n_features)))
    )


def best_times(first: Callable[[], None], second: Callable[[], None]) -> tuple[float, float]:
    """Seconds of both, in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(N_ROUNDS):
        for call, kept in zip((first, second), times, strict=True):
            start = time.perf_counter()
            call()
            kept.append(time.perf_counter() - start)
    return min(times[0]), min(times[1])


def members(
    n_rows: int = 10_000, n_features: int = 10, n_components: int = 10, n_members: int = 20
) -> dict[str, float]:
    """One pass for all bootstrap members against a pass of a single fit for each."""
    rows, generator = clusters(n_rows, n_features, n_components, 0), torch.Generator().manual_seed(0)
    rng = np.random.default_rng(0)
    counts = torch.from_numpy(rng.multinomial(n_rows, np.full(n_rows, 1 / n_rows), size=n_members).T.astype(np.int16))
    seen = [TensorSource(rows, weights=counts[:, b].double()) for b in range(n_members)]
    frame = describe(seen[0], 1, generator).frame
    floor, prior = torch.zeros(n_features, dtype=torch.float64), Conjugate(2.0, rows.var(0))
    problem = Problem(seen[0], Joint(), frame, floor, prior)
    starts = []
    for source in seen:
        rough, assigned = starting_mixture(
            describe(source, 1, generator), Full(), [n_components], "k-means++", generator
        )
        starts.append(first_update(rough, assigned, problem))
    tasks = [MemberFit(problem, start, float(n_rows), b) for b, start in enumerate(starts)]
    state = [JointMembers.of(Full(), tasks, TensorSource(rows, counts=counts))]
    alone: list[Mixture] = list(starts)

    def pass_alone() -> None:
        for b, source in enumerate(seen):
            alone[b] = EM().step(replace(problem, source=source), alone[b])[0]

    def pass_together() -> None:
        state[0] = state[0].step(EM())[0]

    batched, separate = best_times(pass_together, pass_alone)
    furthest = max(
        float((state[0].stack.member(b).covariances - mixture.covariances).abs().max())
        for b, mixture in enumerate(alone)
    )
    return {"together": batched, "separate": separate, "ratio": separate / batched, "largest difference": furthest}


def path(n_rows: int, n_features: int) -> dict[str, float]:
    """Ten penalties x ten numbers of components by BIC, against 100 fits."""
    rows = clusters(n_rows, n_features, 5, 1)
    source = TensorSource(rows)
    priors = penalties(n_features)

    def walked() -> None:
        generator = torch.Generator().manual_seed(0)
        frame = describe(source, 1, generator).frame
        problem = Problem(source, Marginal(), frame, torch.zeros(n_features, dtype=torch.float64))
        ComponentPath(problem, Full(), priors, Search("bic"), generator).walk(None)

    def separate() -> None:
        for prior in priors:
            for k in range(1, LARGEST + 1):
                model = GaussianMixture(k, prior=prior, tol=1e-3, max_iter=100, random_state=0)
                model.fit(rows).bic(rows)

    start = time.perf_counter()
    walked()
    middle = time.perf_counter()
    separate()
    both = middle - start, time.perf_counter() - middle
    return {"path": both[0], "separate": both[1], "ratio": both[0] / both[1]}


def reduction() -> list[dict[str, float]]:
    """Density of new rows by an average, and by what is left of it after merging."""
    X, _ = make_rings(200, random_state=0)
    new, _ = make_rings(2000, random_state=1)
    model = AveragedMixture(GaussianMixture(8, prior="default"), 20, random_state=0).fit(X)
    single = GaussianMixture(8, prior="default", random_state=0).fit(X)
    results = [{"components": 8.0, "log density": single.score(new), "single fit": 1.0}]
    results.append({"components": float(model.mixture_.n_components), "log density": model.score(new)})
    for n in (80, 40, 20, 12, 8, 4):
        results.append({"components": float(n), "log density": model.reduce(n).score(new)})
    return results


def as_markdown(results: dict) -> str:
    together, lines = (
        results["members"],
        ["# Mixtures trained together", "", "Written by `python -m benchmarks.regularised`."],
    )
    lines += ["Machine: " + ", ".join(f"{key} {value}" for key, value in results["machine"].items()) + ".", ""]
    lines += [
        "## 20 bootstrap members, N=10 000, D=10, K=10, full: one iteration of all",
        "",
        "| together, ms | 20 single fits, ms | times faster | largest difference of a covariance |",
        "|---|---|---|---|",
        f"| {1e3 * together['together']:.1f} | {1e3 * together['separate']:.1f} | {together['ratio']:.1f} | "
        f"{together['largest difference']:.1e} |",
        "",
        f"Peak memory of the whole program: {results['peak_mb']:.0f} MB.",
        "",
        "## Path over 10 penalties x 10 numbers of components by BIC, against 100 fits with the same tolerance",
        "",
        "| rows | features | path, s | 100 fits, s | part |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {name.split(',')[0]} | {name.split(',')[1]} | {p['path']:.1f} | {p['separate']:.1f} | {p['ratio']:.2f} |"
        for name, p in results["path"].items()
    ]
    lines += ["", "## What a reduction costs: 20 x 8 components of two rings, mean log density of 4000 new rows", ""]
    lines += ["| components | log density | |", "|---|---|---|"]
    for line in results["reduction"]:
        word = "a single fit" if "single fit" in line else "the average" if line["components"] == 160 else "merged"
        lines.append(f"| {line['components']:.0f} | {line['log density']:.3f} | {word} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    results = {
        "machine": machine(),
        "members": members(),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "path": {f"{n},{d}": path(n, d) for n, d in ((500, 2), (2000, 8))},
        "reduction": reduction(),
    }
    (RESULTS / "regularised.json").write_text(json.dumps(results, indent=1) + "\n")
    (RESULTS / "regularised.md").write_text(as_markdown(results))
    print(as_markdown(results))


if __name__ == "__main__":
    main()
