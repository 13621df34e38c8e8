"""What is left of a sparse mixture: boundaries, relevance vectors, snapshots of training (HU21, Figures 1 and 3).

python examples/plot_sparse_mixture.py sparse_mixture.png
"""

from __future__ import annotations

import sys
import warnings

import matplotlib.pyplot as plt
import numpy as np

from mixtura import RelevanceVectorClassifier, SparseMixtureClassifier
from mixtura.datasets import make_ripley


def draw(axis, model, X, y, title: str) -> None:
    """Probability of the second class, rows, and the rows whose kernels are in use."""
    low, high = X.min(0) - 0.2, X.max(0) + 0.2
    first, second = np.meshgrid(*(np.linspace(a, b, 120) for a, b in zip(low, high, strict=True)))
    grid = np.column_stack((first.ravel(), second.ravel()))
    axis.contourf(first, second, model.predict_proba(grid)[:, 1].reshape(first.shape), 20, cmap="RdBu_r", alpha=0.6)
    axis.contour(first, second, model.predict_proba(grid)[:, 1].reshape(first.shape), [0.5], colors="black")
    axis.scatter(*X.T, c=y, s=5, cmap="RdBu_r")
    axis.scatter(*model.relevance_vectors_.T, s=70, facecolors="none", edgecolors="black")
    axis.set(title=f"{title}\n{model.n_weights_} weights, {model.n_components_.sum()} components", xticks=[], yticks=[])


def main(path: str) -> None:
    X, y = make_ripley(125, random_state=0)
    figure, axes = plt.subplots(1, 5, figsize=(18, 4), layout="constrained")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the snapshots are stopped early on purpose
        for axis, n_steps in zip(axes[:3], (2, 20, 60), strict=True):
            model = SparseMixtureClassifier(3, n_init=1, max_iter=n_steps, random_state=0).fit(X, y)
            draw(axis, model, X, y, f"after {n_steps} updates")
    draw(axes[3], SparseMixtureClassifier(3, random_state=0).fit(X, y), X, y, "sparse mixture")
    draw(axes[4], RelevanceVectorClassifier(gamma=2.0).fit(X, y), X, y, "relevance vector machine")
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sparse_mixture.png")
