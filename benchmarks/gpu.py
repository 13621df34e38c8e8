"""python -m benchmarks.gpu [--out FILE]: one pass of EM on a GPU, float32 rows, against plain torch.

Through the public API: the time of an iteration is the difference of fits of one and of several iterations, divided by
their number. The error is that of log-likelihood and of every moment, relative to the same iteration in float64 (log
likelihood per row, counts, means, covariances). Peak memory is what the pass allocates beyond the rows.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import mixtura
from mixtura import GaussianMixture, MixtureClassifier
from mixtura.engine.passes import map_rows, summarise
from mixtura.engine.sources import TensorSource, locate
from mixtura.objectives import Conditional, Marginal

RESULTS = Path(__file__).parent / "results"
# covariance type, rows, features, components, most milliseconds that a pass may take
WORKLOADS = (
    ("full", 200_000, 2, 16, 0.6),
    ("full", 1_000_000, 16, 32, 2.5),
    ("full", 1_000_000, 32, 64, 6.0),
    ("diag", 10_000_000, 32, 64, 5.0),
    ("diag", 1_000_000, 128, 1024, 25.0),
)


def rows_of(n_rows: int, size: int, n_components: int) -> Tensor:
    """Components a few standard deviations apart."""
    generator = torch.Generator("cuda").manual_seed(0)
    centres = 3 * torch.randn(n_components, size, generator=generator, device="cuda")
    labels = torch.randint(n_components, (n_rows,), generator=generator, device="cuda")
    return centres[labels] + torch.randn(n_rows, size, generator=generator, device="cuda")


def median_ms(run: Callable[[], object], repeats: int = 7) -> float:
    run()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1e3 * sorted(times)[repeats // 2]


def plain(rows: Tensor, kind: str, means: Tensor) -> Callable[[], object]:
    """The two products of an iteration in float32, in chunks, with unit covariances."""
    size = rows.shape[1]
    pairs = torch.triu_indices(size, size, device="cuda") if kind == "full" else None
    n_columns = 1 + size + (size if pairs is None else pairs.shape[1])
    weights = torch.zeros(n_columns, len(means), device="cuda")
    weights[0], weights[1 : 1 + size] = -0.5 * means.square().sum(1), means.T
    squares = slice(1 + size, None) if pairs is None else 1 + size + (pairs[0] == pairs[1]).nonzero()[:, 0]
    weights[squares] = -0.5
    step = max(1, 2**28 // (4 * (n_columns + len(means))))

    def run() -> Tensor:
        total = torch.zeros(len(means), n_columns, device="cuda")
        for part in rows.split(step):
            products = part * part if pairs is None else part[:, pairs[0]] * part[:, pairs[1]]
            features = torch.cat((torch.ones_like(part[:, :1]), part, products), 1)
            total += (features @ weights).softmax(1).T @ features
        return total

    return run


def measure(kind: str, n_rows: int, size: int, n_components: int, limit: float) -> dict:
    rows = rows_of(n_rows, size, n_components)
    model = GaussianMixture(
        n_components, covariance_type=kind, init_params="random_from_data", max_iter=2, random_state=0
    )
    mixture = model.fit(rows).mixture_
    source = TensorSource(rows)
    frame = locate(source)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    ours = median_ms(lambda: summarise(mixture, source, Marginal(), frame))
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    found = summarise(mixture, source, Marginal(), frame)
    exact = summarise(mixture, TensorSource(rows[: 2 * 10**6].double()), Marginal(), frame)
    part = summarise(mixture, TensorSource(rows[: 2 * 10**6]), Marginal(), frame)
    errors = [abs(part.value / exact.value - 1)]
    pairs = zip(
        (part.moments.counts, *part.moments.seconds), (exact.moments.counts, *exact.moments.seconds), strict=True
    )
    errors += [float((a - b).abs().amax() / b.abs().amax()) for a, b in pairs]
    labels = (torch.arange(n_components, device="cuda") % 2)[
        map_rows(mixture, source, lambda a: a.max(0).indices).long()
    ]
    classes = mixture.class_of.new_tensor([0] * (n_components // 2) + [1] * (n_components - n_components // 2))
    two = type(mixture)(mixture.log_weights, mixture.means, mixture.covariance, classes)
    signed = median_ms(lambda: summarise(two, TensorSource(rows, labels), Conditional(), frame))
    predict = median_ms(lambda: model.predict_proba(rows), 3) if n_rows * n_components <= 10**8 else math.nan
    one, several = (median_ms(lambda k=k: model.set_params(max_iter=k, tol=0.0).fit(rows), 3) for k in (1, 6))
    return {
        "workload": f"{kind} N={n_rows:,} D={size} K={n_components}",
        "at most ms": limit,
        "pass ms": ours,
        "iteration of fit ms": (several - one) / 5,
        "signed pass ms": signed,
        "predict_proba ms": predict,
        "plain torch ms": median_ms(plain(rows, kind, mixture.means.float())),
        "scratch MB": peak,
        "error": max(errors),
        "value": found.value,
    }


def fits() -> list[dict]:
    """Whole fits, starts included, on the CPU and on the GPU."""
    cases = {
        "GaussianMixture(16), 200,000 x 8": (lambda: GaussianMixture(16, random_state=0), 200_000, 8, False),
        "GaussianMixture(16, diag), 200,000 x 32": (
            lambda: GaussianMixture(16, covariance_type="diag", random_state=0), 200_000, 32, False,
        ),
        "MixtureClassifier(4), 200,000 x 16": (lambda: MixtureClassifier(4, random_state=0), 200_000, 16, True),
        "MixtureClassifier(4, low_rank), 50,000 x 64": (
            lambda: MixtureClassifier(4, covariance_type="low_rank", random_state=0, max_iter=50), 50_000, 64, True,
        ),
        "MixtureClassifier(2), 2,000 x 8": (lambda: MixtureClassifier(2, random_state=0), 2_000, 8, True),
    }  # fmt: skip
    found = []
    for name, (make, n_rows, size, labeled) in cases.items():
        rows = rows_of(n_rows, size, 8)
        labels = (rows[:, 0] > 0).long()
        times = {}
        for device in ("cuda", "cpu"):
            known = (rows.to(device), labels.to(device)) if labeled else (rows.to(device),)
            make().fit(*(part[:1000] for part in known))
            start = time.perf_counter()
            make().fit(*known)
            torch.cuda.synchronize()
            times[device] = time.perf_counter() - start
        found.append({"fit": name, **times})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu.json")
    out = parser.parse_args().out
    torch.zeros(1, device="cuda")
    passes = []
    for workload in WORKLOADS:
        passes.append(measure(*workload))
        print(json.dumps(passes[-1]), flush=True)
        torch.cuda.empty_cache()
    whole = fits()
    print(json.dumps(whole), flush=True)
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, mixtura {mixtura.__version__}"
    out.write_text(json.dumps({"machine": machine, "passes": passes, "fits": whole}, indent=1) + "\n")
    out.with_suffix(".md").write_text(table(machine, passes, whole))


def table(machine: str, passes: list[dict], whole: list[dict]) -> str:
    names = [name for name in passes[0] if name != "value"]
    lines = [
        "# One pass of EM on a GPU, float32 rows", "", f"{machine}. Medians.", "",
        "| " + " | ".join(names) + " |", "|" + "---|" * len(names),
    ]  # fmt: skip
    form = {"error": "{:.0e}", "workload": "{}", "scratch MB": "{:.0f}"}
    lines += ["| " + " | ".join(form.get(n, "{:.2f}").format(p[n]) for n in names) + " |" for p in passes]
    lines += ["", "## Whole fits, starts included, seconds", "", "| fit | GPU | CPU |", "|---|---|---|"]
    lines += [f"| {f['fit']} | {f['cuda']:.2f} | {f['cpu']:.2f} |" for f in whole]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
