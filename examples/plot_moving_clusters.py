"""
Clusters that move
==================

A stream of 300 batches of 100 samples, each seen once by ``partial_fit``. Three clusters move along a circle. A
constant step forgets old batches and follows the clusters. A decaying step averages over all batches, which is better
if nothing moves. Each batch is scored before a model learns from it; ellipses are two standard deviations wide to each
side.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from mixtura import GaussianMixture

N_BATCHES, BATCH_SIZE = 300, 100
SCALES = np.array([[1.2, 0.5], [0.6, 0.9], [0.5, 0.5]])  # standard deviations of the clusters
STEPS = {"decaying": "decaying", "0.1": 0.1}
COLOURS = {"decaying": "tab:orange", "0.1": "tab:blue", "true density": "0.3"}
SHOWN = (0, 100, 200, 299)


def centres(number: int) -> np.ndarray:
    """Means of the clusters when a batch is drawn: three quarters of a turn in all."""
    angles = 2 * np.pi * (np.arange(3) / 3 + 0.75 * number / N_BATCHES)
    return 4 * np.stack((np.cos(angles), np.sin(angles)), 1)


def batch(number: int) -> np.ndarray:
    rng = np.random.default_rng(number)
    clusters = rng.integers(3, size=BATCH_SIZE)
    return centres(number)[clusters] + rng.normal(size=(BATCH_SIZE, 2)) * SCALES[clusters]


def true_score(rows: np.ndarray, number: int) -> float:
    """Mean log density under the distribution that the batch was drawn from."""
    parts = zip(centres(number), SCALES, strict=True)
    densities = [multivariate_normal(mean, np.diag(scales**2)).logpdf(rows) for mean, scales in parts]
    return float((logsumexp(densities, axis=0) - np.log(3)).mean())


def draw_components(ax: Axes, model: GaussianMixture, name: str) -> None:
    """Ellipses of two standard deviations."""
    for mean, covariance in zip(model.means_, model.covariances_, strict=True):
        variances, vectors = np.linalg.eigh(covariance)
        angle = np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1]))
        width, height = 4 * np.sqrt(variances[::-1])
        ax.add_patch(Ellipse(mean, width, height, angle=angle, fill=False, lw=1.8, edgecolor=COLOURS[name]))


models = {name: GaussianMixture(3, random_state=0) for name in STEPS}
scores: dict[str, list[float]] = {name: [] for name in COLOURS}
figure = plt.figure(figsize=(11, 6.2), layout="constrained")
grid = figure.add_gridspec(2, len(SHOWN))
for number in range(N_BATCHES):
    rows = batch(number)
    for name, model in models.items():
        if number:
            scores[name].append(model.score(rows))
        model.partial_fit(rows, step=STEPS[name])
    if number:
        scores["true density"].append(true_score(rows, number))
    if number in SHOWN:
        ax = figure.add_subplot(grid[0, SHOWN.index(number)])
        ax.scatter(*rows.T, s=6, color="0.6")
        for name, model in models.items():
            draw_components(ax, model, name)
        ax.set(title=f"batch {number + 1}", xlim=(-8, 8), ylim=(-8, 8), aspect="equal")

ax = figure.add_subplot(grid[1, :])
for name, values in scores.items():
    smooth = np.convolve(values, np.full(10, 0.1), mode="valid")
    label = name if name == "true density" else f"step={name}" if name != "decaying" else 'step="decaying"'
    ax.plot(np.arange(len(smooth)) + 11, smooth, color=COLOURS[name], lw=1.8, label=label)
ax.set(xlabel="batch", ylabel="log density per sample", title="each batch before it is learned, mean of ten batches")
ax.legend(frameon=False)
ax.grid(alpha=0.3)
for name, values in scores.items():
    print(f"{name}: {np.mean(values[-50:]):.2f} nats per sample in the last 50 batches")
if len(sys.argv) > 1:
    figure.savefig(Path(sys.argv[1]) / "moving_clusters.png", dpi=90)
plt.show()
