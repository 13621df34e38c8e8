"""python -m benchmarks.baum_welch: cost per iteration of extended Baum-Welch, and convergence compared with L-BFGS.

1. Time of one iteration, compared with unsupervised EM with the same components; interleaved, minimum of several.
2. Seconds until the objective (conditional likelihood and log prior, per row) is within 0.01 and 0.001 of the
   best value of both solvers, from the same generative initialisation.
3. A pass that omits components with a negligible bound, compared with the complete pass: a modern form of the k-d tree
   of Klautau, Jevtic & Orlitsky (2003). Rows are divided into regions. A component is omitted in a region if its
   largest joint density there is below 1e-10 of the smallest density of the mixture there. The bounds must be
   recomputed whenever the parameters change; the regions need not.

Writes results/baum_welch.json and .md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from torch import Tensor

from benchmarks.__main__ import machine
from mixtura import MixtureClassifier
from mixtura.covariances import DiagonalCovariance, FullCovariance
from mixtura.datasets import make_ripley, make_waveform
from mixtura.engine.sources import TensorSource, locate
from mixtura.init.description import describe
from mixtura.model.mixture import Mixture
from mixtura.objectives import Conditional, Marginal
from mixtura.selection.task import make_prior
from mixtura.solvers import EM, BaumWelch, Gradient, Problem

RESULTS = Path(__file__).parent / "results"
SIZES = {
    "N=60k D=256 K=80 diag": (60_000, 256, 80, 2, False),
    "N=100k D=16 K=32 full": (100_000, 16, 32, 4, True),
}
SMALLEST_SHARE = 1e-10  # of a density that may be left out


def seconds_of(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# ---- 1. the cost of an iteration ---------------------------------------------------------------------------------


def random_problem(n_rows: int, size: int, count: int, n_classes: int, full: bool) -> tuple[TensorSource, Mixture]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(n_rows, size, generator=generator, dtype=torch.float64)
    labels = torch.arange(n_rows) % n_classes
    rows[:, :4] += 0.5 * labels.unsqueeze(-1)
    means = rows[torch.randperm(n_rows, generator=generator)[:count]].clone()
    identity = torch.eye(size, dtype=torch.float64).expand(count, -1, -1).contiguous()
    covariance = FullCovariance(identity) if full else DiagonalCovariance(torch.ones_like(means))
    class_of = torch.arange(count) * n_classes // count
    log_weights = torch.full((count,), -math.log(count), dtype=torch.float64)
    return TensorSource(rows, labels=labels), Mixture(log_weights, means, covariance, class_of)


def iteration_costs(n_repeats: int) -> list[dict[str, Any]]:
    records = []
    for name, size in SIZES.items():
        rows, mixture = random_problem(*size)
        frame, floor = locate(rows), torch.zeros(size[1], dtype=torch.float64)
        em, solver = EM(), BaumWelch()
        plain, problem = (Problem(rows, objective, frame, floor) for objective in (Marginal(), Conditional()))
        now = solver.init(problem, mixture)

        def iteration(solver=solver, now=now, problem=problem) -> None:
            solver.init(problem, solver.updated(problem, now, 2.0))

        pairs = [
            (seconds_of(lambda em=em, m=mixture, p=plain: em.step(p, m)), seconds_of(iteration))
            for _ in range(n_repeats)
        ]
        fastest = np.min(pairs, 0).tolist()
        records.append({"case": name, "em": fastest[0], "baum_welch": fastest[1], "ratio": fastest[1] / fastest[0]})
        print(records[-1], flush=True)
    return records


# ---- 2. climbing -------------------------------------------------------------------------------------------------


def problems() -> dict[str, tuple[np.ndarray, np.ndarray, int, str]]:
    digits, numbers = load_digits(return_X_y=True)
    kept = digits[:, digits.var(0) > 0.5]
    return {
        "Ripley, 2 diag": (*make_ripley(125, random_state=0), 2, "diag"),
        "waveform 40, 2 diag": (*make_waveform(400, 19, random_state=0), 2, "diag"),
        "waveform 40, 1 full": (*make_waveform(400, 19, random_state=0), 1, "full"),
        "digits, 2 diag": (kept, numbers, 2, "diag"),
        "digits, 1 low rank": (kept, numbers, 1, "low_rank"),
        "waveform 40, 20 000 rows, 4 diag": (*make_waveform(20_000, 19, random_state=0), 4, "diag"),
    }


def climb(solver: Any, problem: Problem, start: Mixture, limit: float) -> list[tuple[float, float]]:
    """(seconds, objective) after every step."""
    begin = time.perf_counter()
    state = solver.init(problem, start)
    trace: list[tuple[float, float]] = []
    while time.perf_counter() - begin < limit:
        before = time.perf_counter() - begin
        state, info = solver.step(problem, state)
        trace.append((before, info.value))
        if len(trace) > 1 and abs(trace[-1][1] - trace[-2][1]) < 1e-7:
            break
    return trace


def climbs(limit: float) -> list[dict[str, Any]]:
    records = []
    for name, (X, y, count, kind) in problems().items():
        model = MixtureClassifier(count, covariance_type=kind, random_state=0, max_iter=500).fit(X, y)
        rows = TensorSource(torch.from_numpy(X), labels=torch.from_numpy(np.searchsorted(model.classes_, y)))
        with torch.no_grad():
            description = describe(rows, len(model.classes_), torch.Generator().manual_seed(0))
            prior = make_prior("default", description, model.n_components_.tolist())
            problem = Problem(rows, Conditional(), description.frame, 1e-9 * description.within, prior)
            baum_welch = climb(BaumWelch(), problem, model.mixture_, limit)
        traces = {"baum_welch": baum_welch, "lbfgs": climb(Gradient("lbfgs"), problem, model.mixture_, limit)}
        best = max(value for trace in traces.values() for _, value in trace)
        record: dict[str, Any] = {"case": name, "start": baum_welch[0][1], "best": best}
        for method, trace in traces.items():
            record[method] = {"last": trace[-1][1]}
            for gap in (0.01, 0.001):
                record[method][str(gap)] = next((s for s, value in trace if value >= best - gap), None)
        records.append(record)
        print(record, flush=True)
    return records


# ---- 3. leaving components out -----------------------------------------------------------------------------------


def log_joints(rows: Tensor, parameters: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """By matrix products, (n, M)."""
    linear, quadratic, constants = parameters
    return rows @ linear.T + rows.square() @ quadratic.T + constants


def all_components(rows: Tensor, parameters: tuple[Tensor, Tensor, Tensor], cells: list[Any]) -> Tensor:
    size = 2**19 // len(parameters[2])  # 4 MB of log joints: in the cache
    return torch.cat([log_joints(part, parameters).logsumexp(1) for part in rows.split(size)])


def some_components(rows: Tensor, parameters: tuple[Tensor, Tensor, Tensor], cells: list[Any]) -> Tensor:
    values = torch.empty(len(rows), dtype=rows.dtype)
    for members, kept in cells:
        own = tuple(part[kept] for part in parameters)
        values[members] = log_joints(rows[members], own).logsumexp(1)  # pyright: ignore[reportArgumentType]
    return values


def shortlists(rows: Tensor, means: Tensor, variances: Tensor, constants: Tensor, cells: np.ndarray) -> list[Any]:
    """Of every cell its rows and the components that matter to any of them, by the corners of its box."""
    regions = []
    for cell in range(int(cells.max()) + 1):
        members = torch.from_numpy(np.flatnonzero(cells == cell))
        low, high = rows[members].amin(0), rows[members].amax(0)
        nearest = torch.maximum(torch.maximum(low - means, means - high), torch.zeros_like(means))
        farthest = torch.maximum((means - low).abs(), (means - high).abs())
        upper = constants - 0.5 * (nearest.square() / variances).sum(1)
        lower = (constants - 0.5 * (farthest.square() / variances).sum(1)).logsumexp(0)
        regions.append((members, (upper > lower + math.log(SMALLEST_SHARE / len(means))).nonzero()[:, 0]))
    return regions


def truncation(n_repeats: int, n_rows: int = 20_000) -> list[dict[str, Any]]:
    records = []
    for size, count in ((2, 1000), (2, 4000), (8, 1000), (8, 4000), (32, 1000), (256, 1000)):
        rng = np.random.default_rng(0)
        centres = rng.normal(0, 3, (count, size))
        rows = torch.from_numpy(centres[rng.integers(0, count, n_rows)] + 0.3 * rng.normal(size=(n_rows, size)))
        means, variances = torch.from_numpy(centres), torch.full((count, size), 0.09, dtype=torch.float64)
        constants = -0.5 * (size * math.log(2 * math.pi) + variances.log().sum(1)) - math.log(count)
        parameters = (means / variances, -0.5 / variances, constants - 0.5 * (means.square() / variances).sum(1))
        cells = KMeans(256, n_init=1, max_iter=10, random_state=0).fit_predict(rows.numpy())
        bound_seconds = seconds_of(lambda r=rows, m=means, v=variances, c=constants, p=cells: shortlists(r, m, v, c, p))
        lists = shortlists(rows, means, variances, constants, cells)
        share = float(np.mean([len(kept) for _, kept in lists]) / count)
        times = [
            [
                seconds_of(lambda w=work, r=rows, p=parameters, c=lists: w(r, p, c))
                for work in (all_components, some_components)
            ]
            for _ in range(n_repeats)
        ]
        error = float((all_components(rows, parameters, lists) - some_components(rows, parameters, lists)).abs().max())
        fastest = np.min(times, 0).tolist()
        records.append({"D": size, "M": count, "kept": share, "all": fastest[0], "some": fastest[1],
                        "bounds": bound_seconds, "largest error": error})  # fmt: skip
        print(records[-1], flush=True)
    return records


# ---- results -----------------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    return "not reached" if value is None else f"{value:.2f}"


def report(results: dict[str, Any]) -> str:
    """The tables in Markdown."""
    lines = ["# Extended Baum-Welch", "", *[line.strip() for line in (__doc__ or "").splitlines()[2:-2]], ""]
    lines += ["| one iteration | EM, seconds | Baum-Welch, seconds | ratio |", "|---|---|---|---|"]
    for r in results["iterations"]:
        lines.append(f"| {r['case']} | {r['em']:.3f} | {r['baum_welch']:.3f} | {r['ratio']:.2f} |")
    lines += [
        "",
        "| seconds to within | Baum-Welch 0.01 | L-BFGS 0.01 | Baum-Welch 0.001 | L-BFGS 0.001 | start | best |",
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    for r in results["climbs"]:
        cells = [number(r[method][gap]) for gap in ("0.01", "0.001") for method in ("baum_welch", "lbfgs")]
        lines.append(f"| {r['case']} | {' | '.join(cells)} | {r['start']:.3f} | {r['best']:.3f} |")
    lines += [
        "",
        "| D | M | components kept | all, seconds | some, seconds | bounds, seconds | largest error of log p |",
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    for r in results["truncation"]:
        lines.append(
            f"| {r['D']} | {r['M']} | {100 * r['kept']:.1f} % | {r['all']:.3f} | {r['some']:.3f} | {r['bounds']:.3f} "
            f"| {r['largest error']:.0e} |"
        )
    return "\n".join([*lines, "", results["machine"] + "."]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for each climb")
    parser.add_argument("--only", choices=["iterations", "climbs", "truncation"], default=None)
    parser.add_argument("--folder", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = options.folder / "baum_welch.json"
    results = json.loads(path.read_text()) if path.exists() else {"iterations": [], "climbs": [], "truncation": []}
    parts: dict[str, Callable[[], Any]] = {
        "iterations": lambda: iteration_costs(options.repeats),
        "climbs": lambda: climbs(options.limit),
        "truncation": lambda: truncation(options.repeats),
    }
    before = os.getloadavg()[0]
    for name, part in parts.items():
        if options.only in (None, name):
            results[name] = part()
            results["machine"] = ", ".join(f"{k} {v}" for k, v in machine().items())
            results["machine"] += f"; one thread, load average {before:.1f} before and {os.getloadavg()[0]:.1f} after"
            path.write_text(json.dumps(results, indent=1) + "\n")
            path.with_suffix(".md").write_text(report(results))


if __name__ == "__main__":
    main()
