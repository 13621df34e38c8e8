"""python -m benchmarks.gpu [PART ...] [--out FILE] [--code COMMIT]: passes of EM and whole fits on a GPU, float32 rows.

Parts: `passes`, `fits`. Those that are not measured are kept as they are.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import mixtura
from mixtura import (
    AveragedMixtureClassifier,
    DiscriminativeMixtureClassifier,
    GaussianMixture,
    HybridMixtureClassifier,
    MixtureClassifier,
)
from mixtura.engine.evaluator import Buffers, move_for_passes
from mixtura.engine.passes import summarise
from mixtura.engine.sources import TensorSource, locate
from mixtura.model.mixture import Mixture
from mixtura.numerics.gpu import plain_torch
from mixtura.objectives import Conditional, Marginal
from mixtura.solvers import Gradient
from mixtura.values.moments import Summary

EXPLANATION = (
    "A pass is one E-step with the moments of all components. Its error is that of the log-likelihood and of "
    'every moment, relative to the same pass over float64 rows in plain torch. "unfused" is the pass without '
    'Triton kernels, "plain torch" the two matrix products of an iteration in float32, written by hand. '
    '"Writing" fills an array of the size of the answers of predict_proba. '
    "Scratch is the memory that a pass allocates beyond the rows. Times are medians. The mixture has had three "
    'iterations from means that are random samples, or, in "known centres", from those by which the rows were drawn: '
    "a random start of 1024 components leaves some with a single sample, whose passes are computed in float64, as are "
    "probabilities with an error of 3e-8."
)
RESULTS = Path(__file__).parent / "results"
# covariance type, rows, features, components, milliseconds that a pass may take at most, whether centres are known
WORKLOADS = (
    ("diag", 1_000_000, 128, 1024, 16.0, True),
    ("diag", 1_000_000, 128, 1024, 25.0, False),
    ("diag", 10_000_000, 32, 64, 5.0, False),
    ("full", 200_000, 2, 16, 0.6, False),
    ("full", 1_000_000, 16, 32, 2.5, False),
    ("full", 1_000_000, 32, 64, 6.0, False),
)
COMPARED = 10**6  # rows whose moments are compared with float64
WARM_UP = 0.25  # seconds


def centres_of(size: int, n_components: int) -> Tensor:
    return 3 * torch.randn(n_components, size, generator=torch.Generator("cuda").manual_seed(0), device="cuda")


def rows_of(n_rows: int, size: int, n_components: int) -> Tensor:
    """Components a few standard deviations apart."""
    centres, generator = centres_of(size, n_components), torch.Generator("cuda").manual_seed(1)
    labels = torch.randint(n_components, (n_rows,), generator=generator, device="cuda")
    return centres[labels] + torch.randn(n_rows, size, generator=generator, device="cuda")


def median_ms(run: Callable[[], object], repeats: int = 9) -> float:
    """After a quarter of a second, in which the card reaches its clock rate."""
    times, began = [], time.perf_counter()
    while time.perf_counter() - began < WARM_UP:
        run()
        torch.cuda.synchronize()
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1e3 * sorted(times)[repeats // 2]


def by_hand(rows: Tensor, kind: str, means: Tensor) -> Callable[[], object]:
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


def pomegranate(rows: Tensor, kind: str, mixture: Mixture) -> float | None:
    """Milliseconds of its pass over the same rows; None where it is not installed."""
    if importlib.util.find_spec("pomegranate") is None or mixture.n_components > 100:
        return None
    from pomegranate.distributions import Normal
    from pomegranate.gmm import GeneralMixtureModel

    covariances = mixture.covariances if kind == "full" else mixture.covariance.variances()
    pairs = zip(mixture.means.float().cpu(), covariances.float().cpu(), strict=True)
    model = GeneralMixtureModel([Normal(mean, part, covariance_type=kind) for mean, part in pairs]).cuda()

    def run() -> None:
        model.summarize(rows)
        model.from_summaries()

    return median_ms(run, 3)


def error_of(approximate: Summary, exact: Summary, centre: Tensor) -> float:
    """The largest relative error of value, counts, first and second moments about a centre."""
    centre = centre.to(approximate.moments.counts.device)
    moments = (summary.about(centre).moments for summary in (approximate, exact))
    pairs = zip(*((m.counts, m.firsts, *m.seconds) for m in moments), strict=True)
    errors = [float((a - b).abs().amax() / b.abs().amax()) for a, b in pairs]
    return max(abs(approximate.value / exact.value - 1), *errors)


def measure(kind: str, n_rows: int, size: int, n_components: int, limit: float, known: bool) -> dict:
    rows = rows_of(n_rows, size, n_components)
    model = GaussianMixture(
        n_components, covariance_type=kind, init_params="random_from_data", max_iter=3, random_state=0
    )
    if known:
        model.set_params(
            means_init=centres_of(size, n_components).cpu(), precisions_init=torch.ones(n_components, size)
        )
    mixture = model.fit(rows).mixture_
    source = TensorSource(rows)
    mixture = move_for_passes(mixture, source)
    frame = locate(source).to(mixture.means.device)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    buffers = Buffers()  # kept from pass to pass, as in a fit
    marginal, conditional = Marginal(), Conditional()  # as in a fit, whose passes over few rows are recorded
    ours = median_ms(lambda: summarise(mixture, source, marginal, frame, buffers=buffers))
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    part, exact = (TensorSource(rows[:COMPARED].to(dtype)) for dtype in (torch.float32, torch.float64))
    with plain_torch():
        unfused = median_ms(lambda: summarise(mixture, source, marginal, frame, buffers=buffers), 5)
        reference = summarise(mixture, exact, Marginal(), frame)
    classes = torch.arange(n_components, device=mixture.means.device) * 2 // n_components
    two = Mixture(mixture.log_weights, mixture.means, mixture.covariance, classes)
    labels = TensorSource(rows, torch.arange(n_rows, device="cuda") % 2)
    signed = median_ms(lambda: summarise(two, labels, conditional, frame, buffers=buffers))
    answers = model.predict_proba(rows)
    writing = median_ms(partial(answers.fill_, 0.0), 5)
    del answers
    seconds = [record.seconds for record in model.set_params(max_iter=12, tol=0.0).fit(rows).history_]
    iterations = sorted(1e3 * (after - before) for before, after in itertools.pairwise(seconds))
    return {
        "workload": f"{kind} N={n_rows:,} D={size} K={n_components}" + ", known centres" * known,
        "at most": limit,
        "pass": ours,
        "signed pass": signed,
        "iteration of fit": iterations[len(iterations) // 2],
        "predict_proba": median_ms(lambda: model.predict_proba(rows), 5),
        "writing": writing,
        "unfused": unfused,
        "plain torch": median_ms(by_hand(rows, kind, mixture.means.float()), 5),
        "pomegranate": pomegranate(rows, kind, mixture),
        "scratch MB": peak,
        "error": error_of(summarise(mixture, part, Marginal(), frame), reference, frame.centre),
        "error of probabilities": probability_error(model, rows[:100_000]),
    }


def probability_error(model: GaussianMixture, rows: Tensor) -> float:
    """The largest difference to the probabilities of the same rows in float64."""
    with plain_torch():
        exact = model.predict_proba(rows.double())
    return float((model.predict_proba(rows).double() - exact).abs().amax())


def with_missing(rows: Tensor) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(1)
    return rows.masked_fill(torch.rand(rows.shape, generator=generator, device="cuda") < 0.1, torch.nan)


class InBatches:
    """A mixture that learns from its rows in four batches."""

    def set_params(self, random_state: int) -> InBatches:
        self.model = GaussianMixture(8, random_state=random_state)
        return self

    def fit(self, rows: Tensor) -> None:
        for part in rows.chunk(4):
            self.model.partial_fit(part)


# name, estimator, rows, features, whether it is a classifier, what is done to the rows
FITS = (
    ("GaussianMixture(16)", lambda: GaussianMixture(16), 200_000, 8, False, None),
    ("GaussianMixture(16, 'diag')", lambda: GaussianMixture(16, covariance_type="diag"), 200_000, 32, False, None),
    ("GaussianMixture(8), 10 % missing", lambda: GaussianMixture(8, max_iter=10), 20_000, 8, False, with_missing),
    ("MixtureClassifier(4)", lambda: MixtureClassifier(4), 200_000, 16, True, None),
    ("MixtureClassifier(4), 5 iterations", lambda: MixtureClassifier(4, max_iter=5), 1_000_000, 16, True, None),
    ("MixtureClassifier(4, 'low_rank')", lambda: MixtureClassifier(4, covariance_type="low_rank", max_iter=50), 50_000,
     64, True, None),
    ("MixtureClassifier(2), small", lambda: MixtureClassifier(2), 2_000, 8, True, None),
    ("MixtureClassifier(), automatic", lambda: MixtureClassifier(), 5_000, 8, True, None),
    ("DiscriminativeMixtureClassifier(4, cv=2)", lambda: DiscriminativeMixtureClassifier(4, cv=2, max_iter=20), 100_000,
     16, True, None),
    ("MixtureClassifier(4), conditional likelihood by L-BFGS, 3 iterations", lambda: MixtureClassifier(
        4, objective="conditional", solver=Gradient("lbfgs"), max_iter=3), 100_000, 16, True, None),
    ("HybridMixtureClassifier(2)", lambda: HybridMixtureClassifier(2, n_epochs=5, tradeoff=0.5, margin=10.0), 20_000,
     16, True, None),
    ("AveragedMixtureClassifier, 10 members", lambda: AveragedMixtureClassifier(MixtureClassifier(2), 10), 20_000, 16,
     True, None),
    ("GaussianMixture(8).partial_fit, 4 batches", InBatches, 400_000, 16, False, None),
)  # fmt: skip
CPU_THREADS = 2


def fits() -> list[dict]:
    """Whole fits, starts included, on the GPU and on two cores of the CPU; the faster of two after a first one."""
    torch.set_num_threads(CPU_THREADS)
    measured = []
    for name, make, n_rows, size, labeled, change in FITS:
        rows = rows_of(n_rows, size, 8)
        labels = (rows[:, 0] + rows[:, 1] > 0).long()
        rows = rows if change is None else change(rows)
        times = {}
        for device in ("cuda", "cpu"):
            known = tuple(part.to(device) for part in ((rows, labels) if labeled else (rows,)))
            seconds = []
            while len(seconds) < 2 or (len(seconds) < 3 and sum(seconds) < 4):
                torch.cuda.synchronize()
                start = time.perf_counter()
                make().set_params(random_state=0).fit(*known)
                torch.cuda.synchronize()
                seconds.append(time.perf_counter() - start)
            times[device] = min(seconds[1:])
        measured.append({"fit": f"{name}, {n_rows:,} x {size}", **times})
        print(json.dumps(measured[-1]), flush=True)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=("passes", "fits"), default=["passes", "fits"])
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu.json")
    parser.add_argument("--code", help="the commit, where git does not know it")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # fits of few iterations do not converge
    torch.zeros(1, device="cuda")
    known = options.out if options.out.exists() else RESULTS / "gpu.json"
    results = json.loads(known.read_text("utf-8"))
    if options.code is None:
        from benchmarks.defaults import version

        options.code = version()
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, mixtura {mixtura.__version__}"
    results["machines"] |= dict.fromkeys(options.parts, f"{machine}, code {options.code}")
    if "passes" in options.parts:
        results["passes"] = []
        for workload in WORKLOADS:
            results["passes"].append(measure(*workload))
            print(json.dumps(results["passes"][-1]), flush=True)
            torch.cuda.empty_cache()
            write(results, options.out)
    if "fits" in options.parts:
        results["fits"] = fits()
        write(results, options.out)


def write(results: dict, out: Path) -> None:
    out.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", "utf-8")
    out.with_suffix(".md").write_text(table(results), "utf-8")


def table(results: dict) -> str:
    machines, passes, whole = results["machines"], results["passes"], results["fits"]
    names = list(passes[0])
    lines = [
        "# Passes of EM on a GPU, float32 rows, milliseconds", "", f"{machines['passes']}. {EXPLANATION}",
        "", "| " + " | ".join(names) + " |", "|" + "---|" * len(names),
    ]  # fmt: skip
    form = {"error": "{:.0e}", "error of probabilities": "{:.0e}", "workload": "{}", "scratch MB": "{:.0f}"}
    cells = [[form.get(n, "{:.2f}").format(p[n]) if p[n] is not None else "" for n in names] for p in passes]
    lines += ["| " + " | ".join(line) + " |" for line in cells]
    lines += [
        "",
        "## Whole fits, starts included, seconds",
        "",
        f"{machines['fits']}.",
        "",
        f"| fit | GPU | CPU, {CPU_THREADS} threads |",
        "|---|---|---|",
    ]
    lines += [f"| {f['fit']} | {f['cuda']:.2f} | {f['cpu']:.2f} |" for f in whole]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
