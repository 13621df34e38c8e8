"""Figures 1, 2 and 3c of RPTP18: python -m studies hybrid-figures.

Figures 1 and 2: large-margin hybrids on MNIST (pca50) for several trade-offs with a margin of 100, the published sizes
and step size, without early stopping. Figure 1 shows log-likelihood, margin and error. Figure 2 shows samples of the
same models, mapped back from 50 principal components to pixels (the paper draws them from models of pixels), and of a
generative model with diagonal covariances. Figure 3c: time to classify one sample with missing values.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mixtura.covariances import FullCovariance, LowRankCovariance
from mixtura.model.mixture import Mixture
from mixtura.objectives import Hybrid, Margin
from mixtura.solvers import Gradient, Problem, run, score_classes
from reproduce import hybrid as base
from reproduce.hybrid_missing import holes
from reproduce.options import Options

FILE = "hybrid_figures.json"
MARGIN = 100.0
TRADEOFFS = (0.0, 0.001, 0.01, 0.1, 0.5, 0.9, 1.0)
SAMPLED = (0.0, 0.01, 0.1, 1.0)  # trade-offs of figure 2
N_JUDGED = 10_000  # training samples on which figure 1 is computed
RANKS = (5, 25)
SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
N_COVARIANCES, N_PIXELS = 170, 784  # of figure 3c
FULL_PART = 10  # full covariances are timed with so many times fewer components, for their memory


def turn_of(pixels: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean of the pixels and the matrix (50, 784) that maps principal components back to them."""
    rows = pixels["train"][0]
    mean = rows.mean(0)
    values, vectors = torch.linalg.eigh((rows - mean).T @ (rows - mean) / len(rows))
    return mean, (vectors[:, -50:].flip(1) * values[-50:].flip(0).sqrt()).T


def judged(mixture: Mixture, part: tuple[torch.Tensor, torch.Tensor]) -> dict[str, float]:
    """Mean log-likelihood log p(x, c), mean margin cut at the required one, and error in per cent."""
    x, y = part[0][:N_JUDGED], part[1][:N_JUDGED]
    scores = score_classes(mixture, x)
    own = scores.gather(1, y.unsqueeze(1))[:, 0]
    best_other = scores.scatter(1, y.unsqueeze(1), -torch.inf).amax(1)
    margins = (own - best_other).clamp_max(MARGIN)
    return {
        "log_likelihood": float(own.mean()),
        "margin": float(margins.mean()),
        "error": 100 * float((scores.argmax(1) != y).double().mean()),
    }


def trained(data: dict[str, Any], start: Mixture, tradeoff: float, epochs: int) -> Mixture:
    """The model of the last epoch."""
    x, y = data["train"]
    solver = Gradient(optimiser="adam", learning_rate=base.SETTINGS["PCA50"]["margin"].step)
    problem = Problem.from_samples(x, y, Hybrid(tradeoff, Margin(MARGIN)))
    return run(solver, problem, start, epochs, 0.0).mixture


def samples_of(mixture: Mixture, n: int = 4) -> torch.Tensor:
    """Samples of every class, (10, n, 50)."""
    generator = torch.Generator(device=mixture.means.device).manual_seed(0)
    drawn = []
    for part in mixture.class_slices:
        own = mixture.select(torch.arange(part.start, part.stop, device=mixture.means.device))
        picks = torch.multinomial(own.log_weights.exp(), n, replacement=True, generator=generator)
        drawn.append(own.means[picks] + own.covariance.sample(picks, generator))
    return torch.stack(drawn)


def one_and_two(results: dict[str, Any], options: Options) -> None:
    """Figure 1, and the samples of figure 2 as images of 8 bits."""
    pixels = base.pixels(options.device)
    data, (mean, back) = base.projected(pixels), turn_of(pixels)
    cell, epochs = base.PUBLISHED["MNIST (pca50)"]["LL+LM"], 1 if options.quick else base.EPOCHS
    start = base.restructured(base.fitted(data, cell.start, 0, options.quick), cell.start)
    pictures = {}
    for tradeoff in TRADEOFFS[:2] if options.quick else TRADEOFFS:
        began = time.perf_counter()
        mixture = trained(data, start, tradeoff, epochs)
        record = {name: judged(mixture, data[name]) for name in ("train", "test")}
        results.setdefault("figure 1", {})[f"{tradeoff:g}"] = {
            **record, "epochs": epochs, "seconds": time.perf_counter() - began,
        }  # fmt: skip
        print(tradeoff, record, flush=True)
        write(results, options.out)
        if tradeoff in SAMPLED:
            pictures[f"trade-off {tradeoff:g}"] = samples_of(mixture)
    diagonal = base.fitted(data, base.PUBLISHED["MNIST (pca50), diagonal"]["LL"].start, 0, options.quick)
    pictures["diagonal, trade-off 1"] = samples_of(diagonal)
    images = {name: (mean + rows.reshape(-1, 50) @ back).reshape(10, -1, 28, 28) for name, rows in pictures.items()}
    draw_samples({name: rows.clamp(0, 1).cpu().numpy() for name, rows in images.items()}, options.out)


def three_c(results: dict[str, Any], folder: Path, quick: bool) -> None:
    """Milliseconds of processor time to classify one sample with a pattern of its own; the median of a few."""
    generator = torch.Generator().manual_seed(0)
    size, count = (40, 20) if quick else (N_PIXELS, N_COVARIANCES)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    models = {}
    for rank in (2,) if quick else RANKS:
        covariance = LowRankCovariance(torch.full((count, size), 0.1).double(), 0.1 * normal(count, size, rank))
        models[f"R = {rank}"] = mixture_of(normal(count, size), covariance)
    small = count // FULL_PART
    loadings = 0.1 * normal(small, size, size)
    dense = 0.1 * torch.eye(size).double() + loadings @ loadings.mT
    models["full"] = mixture_of(normal(small, size), FullCovariance(dense))
    known = results.setdefault("figure 3c", {})
    for name, mixture in ((name, mixture) for name, mixture in models.items() if name not in known):
        factor = FULL_PART if name == "full" else 1
        for share in SHARES:
            times = []
            for seed in range(3 if name == "full" or quick else 10):
                row = holes(normal(1, size), share, seed)
                began = time.process_time()
                score_classes(mixture, row)
                times.append(1000 * factor * (time.process_time() - began))
            known.setdefault(name, {})[f"{100 * share:g}"] = float(np.median(times))
        print(name, known[name], flush=True)
        write(results, folder)


def mixture_of(means: torch.Tensor, covariance: Any) -> Mixture:
    """A mixture with equal weights, ten classes of about the same size."""
    count = len(means)
    class_of = (torch.arange(count) * min(10, count)) // count
    return Mixture(torch.full((count,), -float(np.log(count)), dtype=torch.float64), means, covariance, class_of)


def write(results: dict[str, Any], folder: Path) -> None:
    (folder / FILE).write_text(json.dumps(results, indent=1) + "\n")


def compute(options: Options) -> None:
    """Compute the figures that are missing; figure 2 comes with figure 1."""
    path = options.out / FILE
    results = json.loads(path.read_text()) if path.exists() else {}
    with torch.no_grad():
        three_c(results, options.out, options.quick)
    draw_times(results, options.out)
    if "figure 1" not in results:
        one_and_two(results, options)
        draw_tradeoffs(results, options.out)


# ---- pictures and page -----------------------------------------------------------------------------------------------


def draw_samples(images: dict[str, np.ndarray], folder: Path) -> None:
    """Figure 2: a panel for each model, a row of it for each digit."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(images), figsize=(1.55 * len(images), 3.9), layout="constrained", squeeze=False)
    for axis, (name, digits) in zip(axes[0], images.items(), strict=True):
        axis.imshow(np.block([list(row) for row in digits]), cmap="gray_r", vmin=0, vmax=1)
        axis.set_title(name, fontsize=8, pad=8)
        axis.set_axis_off()
    figure.savefig(folder / "hybrid_samples.png", dpi=110)
    plt.close(figure)


def draw_tradeoffs(results: dict[str, Any], folder: Path) -> None:
    """Figure 1: log-likelihood, margin and error against the trade-off."""
    import matplotlib.pyplot as plt

    record = results["figure 1"]
    names = sorted(record, key=float)
    keys = {"log_likelihood": "mean log p(x, c)", "margin": f"mean margin, at most {MARGIN:g}", "error": "error, %"}
    figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
    for axis, (key, label) in zip(axes, keys.items(), strict=True):
        for part, colour, marker in (("train", "#0072B2", "o"), ("test", "#D55E00", "s")):
            axis.plot([record[name][part][key] for name in names], color=colour, marker=marker, label=part)
        axis.set_xticks(range(len(names)), names, fontsize=8)
        axis.set(xlabel="trade-off (1: generative)", ylabel=label)
        axis.grid(alpha=0.3)
    axes[2].legend(frameon=False)
    figure.savefig(folder / "hybrid_tradeoffs.png", dpi=90)
    plt.close(figure)


def draw_times(results: dict[str, Any], folder: Path) -> None:
    """Figure 3c."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 3.4), layout="constrained")
    for marker, (name, times) in zip("osD^", results["figure 3c"].items(), strict=False):
        shares = sorted(times, key=float)
        axis.plot([float(s) for s in shares], [times[s] for s in shares], marker=marker, label=name)
    axis.set(yscale="log", xlabel="missing values, %", ylabel="ms per sample (processor time)")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    figure.savefig(folder / "hybrid_times.png", dpi=90)
    plt.close(figure)


def pages(folder: Path) -> dict[str, str]:
    path = folder / FILE
    return {"hybrid_figures.md": page(json.loads(path.read_text()))} if path.exists() else {}


def page(results: dict[str, Any]) -> str:
    lines = [
        "# RPTP18, figures 1, 2 and 3c",
        "",
        "Written by `python -m studies hybrid-figures`. Figure 3a is in",
        "[hybrid.md](../../reproduce/results/hybrid.md). Figure 3b is absent:",
        "TIMIT is licensed. The paper prints no numbers for its figures.",
        "",
    ]
    parts = {"figure 1": tradeoff_lines, "figure 3c": time_lines}
    absent = {"figure 1": "Figures 1 and 2 have", "figure 3c": "Figure 3c has"}
    for name, make in parts.items():
        lines += make(results[name]) if name in results else [f"{absent[name]} not been computed.", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def tradeoff_lines(record: dict[str, Any]) -> list[str]:
    """Figures 1 and 2."""
    epochs = ", ".join(map(str, sorted({run["epochs"] for run in record.values()})))
    lines = [
        "## Figure 1: influence of the trade-off",
        "",
        f"MNIST (pca50), published sizes and step size, margin {MARGIN:g}, no early stopping; {epochs} epochs (100 in",
        f"the paper); figures of {N_JUDGED} training samples and of all test samples.",
        "",
        "| trade-off | log-likelihood, train | test | margin, train | test | error %, train | test |",
        "|---" * 7 + "|",
    ]
    for name in sorted(record, key=float):
        cells = [name]
        for key, digits in (("log_likelihood", 1), ("margin", 1), ("error", 2)):
            cells += [f"{record[name][part][key]:.{digits}f}" for part in ("train", "test")]
        lines.append("| " + " | ".join(cells) + " |")
    return [
        *lines,
        "",
        "![Log-likelihood, margin and error against the trade-off](hybrid_tradeoffs.png)",
        "",
        "## Figure 2: samples of the models",
        "",
        "Samples of 50 principal components, mapped back to pixels; the paper has models of pixels.",
        "",
        "![Samples](hybrid_samples.png)",
        "",
    ]


def time_lines(times: dict[str, dict[str, float]]) -> list[str]:
    """Figure 3c."""
    shares = sorted(next(iter(times.values())), key=float)
    return [
        "## Figure 3c: time to classify one sample with missing values",
        "",
        f"{N_COVARIANCES} components, {N_PIXELS} features, random parameters; milliseconds of processor time with one",
        f"thread, median of ten samples (full covariances: of three, with {N_COVARIANCES // FULL_PART} components,",
        f"times {FULL_PART}), while other processes ran. The paper has up to 6600 ms for full covariances and at most",
        "500 ms with R = 25, on another processor.",
        "",
        "| missing, % | " + " | ".join(shares) + " |",
        "|---" * (len(shares) + 1) + "|",
        *(f"| {name} | " + " | ".join(f"{own[s]:.0f}" for s in shares) + " |" for name, own in times.items()),
        "",
        "![The same as curves](hybrid_times.png)",
        "",
    ]
