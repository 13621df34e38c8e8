"""
Sparse mixtures
===============

Figures 1, 3 and 6 of Hayashi & Uchida (2021). Black lines are class boundaries, dashed lines are boundaries between the
components of a class in its colour, and circles mark the relevance vectors.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LogisticRegression

from mixtura import RelevanceVectorClassifier, SparseMixtureClassifier
from mixtura.datasets import make_checkerboard, make_ripley

COLOURS = ("#0072B2", "#D55E00")
PUBLISHED = {"n_init": 1, "evidence": "published"}


def draw(axis, model, X, y, title: str) -> None:
    """Draw samples, the class boundary and, for a sparse mixture, its components and relevance vectors."""
    low, high = X.min(0) - 0.15, X.max(0) + 0.15
    across, up = (np.linspace(a, b, 160) for a, b in zip(low, high, strict=True))
    grid = np.stack(np.meshgrid(across, up), -1).reshape(-1, 2)
    second = model.predict_proba(grid)[:, 1].reshape(160, 160)
    axis.contourf(across, up, second, np.linspace(0, 1, 11), colors=tints(), zorder=0)
    axis.contour(across, up, second, [0.5], colors="black", linewidths=1.5)
    for c, marker in enumerate("o^"):
        axis.scatter(*X[y == c].T, s=8, color=COLOURS[c], marker=marker, linewidths=0)
    if hasattr(model, "n_weights_"):
        draw_parts(axis, model, grid, across, up)
        title += f"\n{model.n_weights_} weights, {model.n_components_.sum()} components"
    axis.set(xticks=[], yticks=[])
    axis.set_title(title, fontsize=9)


MOST_CIRCLES = 40  # relevance vectors that circles can mark; more would hide the samples


def draw_parts(axis, model, grid, across, up) -> None:
    responsibilities = model.responsibilities(grid)
    edges = np.cumsum([0, *model.n_components_])
    for c, colour in enumerate(COLOURS):
        own = responsibilities[:, edges[c] : edges[c + 1]]
        for k in range(own.shape[1]):
            first = (own.argmax(1) == k).astype(float).reshape(160, 160)
            if 0 < first.mean() < 1:
                axis.contour(across, up, first, [0.5], colors=colour, linewidths=0.9, linestyles="dashed")
    if len(model.relevance_vectors_) <= MOST_CIRCLES:
        axis.scatter(*model.relevance_vectors_.T, s=60, facecolors="none", edgecolors="black", zorder=5)
    else:
        text = f"{len(model.relevance_vectors_)} samples are\nrelevance vectors"
        box = {"boxstyle": "round", "facecolor": "white", "alpha": 0.85}
        axis.text(0.5, 0.04, text, transform=axis.transAxes, ha="center", va="bottom", fontsize=8, bbox=box, zorder=6)


def tints() -> list[np.ndarray]:
    from matplotlib.colors import to_rgb

    ends = [1 - 0.35 * (1 - np.array(to_rgb(colour))) for colour in COLOURS]
    return [(1 - t) * ends[0] + t * ends[1] for t in np.linspace(0, 1, 10)]


def save(figure, name: str) -> None:
    """Write a figure into the requested folder, with a palette: a third of the bytes."""
    if len(sys.argv) < 2:
        return
    path = Path(sys.argv[1]) / name
    figure.savefig(path, dpi=75)
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)


def figure_1() -> None:
    """Boundaries of sparse mixtures and other classifiers."""
    X, y = make_ripley(125, random_state=0)
    models = {
        "logistic regression": LogisticRegression(),
        "Gaussian process": GaussianProcessClassifier(1.0 * RBF(1.0)),
        "relevance vector machine": RelevanceVectorClassifier(gamma=2.0),
        "mixture after one update": SparseMixtureClassifier(3, max_iter=1, random_state=0, **PUBLISHED),
        "sparse mixture": SparseMixtureClassifier(3, random_state=0),
    }
    figure, axes = plt.subplots(1, 5, figsize=(13, 3), layout="constrained")
    for axis, (title, model) in zip(axes, models.items(), strict=True):
        draw(axis, model.fit(X, y), X, y, title)
    save(figure, "sparse_boundaries.png")


def figure_3() -> None:
    """A sparse mixture in training."""
    X, y = make_ripley(125, random_state=0)
    figure, axes = plt.subplots(1, 5, figsize=(13, 3), layout="constrained")
    for axis, n_steps in zip(axes, (2, 10, 30, 100, 5000), strict=True):
        model = SparseMixtureClassifier(3, max_iter=n_steps, random_state=0, **PUBLISHED).fit(X, y)
        draw(axis, model, X, y, f"after {model.n_iter_} updates")
    save(figure, "sparse_training.png")


def figure_6() -> None:
    """The components that remain of several initial numbers."""
    X, y = make_checkerboard(20, random_state=0)
    figure, axes = plt.subplots(1, 5, figsize=(13, 3), layout="constrained")
    for axis, initial in zip(axes, (2, 4, 8, 14, 20), strict=True):
        model = SparseMixtureClassifier(initial // 2, max_iter=1000, random_state=0, **PUBLISHED).fit(X, y)
        draw(axis, model, X, y, f"{initial} components at the start")
        print(f"{initial:2} components at the start, {np.sum(model.n_components_)} at the end")
    save(figure, "sparse_components.png")


warnings.simplefilter("ignore")  # snapshots are stopped early on purpose

# %%
# A sparse mixture beside other classifiers.
figure_1()

# %%
# During training, weights that the evidence does not support are removed.
figure_3()

# %%
# Too many components at the start are removed too.
figure_6()
plt.show()
