"""
Penalties, averages and automatic selection
===========================================

Figures 1 to 3 of Ormoneit & Tresp (1995): two classes of four clusters each on a circle, with 100 samples per class and
20 components with full covariances. The script prints mean log densities.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from mixtura import AveragedMixture, GaussianMixture, MixtureClassifier
from mixtura.datasets import make_rings
from mixtura.plotting import MixtureDisplay, SearchDisplay, plot_classifier, plot_density
from mixtura.priors import Conjugate

N_COMPONENTS = 20
SCALE = 0.25  # of a cluster


def truth(rows: np.ndarray) -> GaussianMixture:
    """The true density of the first class."""
    angles = np.pi / 2 * np.arange(4)
    means = np.stack([np.cos(angles), np.sin(angles)], 1)
    spheres = {"covariance_type": "spherical", "precisions_init": np.full(4, SCALE**-2), "reg_covar": 0.0}
    return GaussianMixture(4, weights_init=np.full(4, 0.25), means_init=means, max_iter=0, **spheres).fit(rows)


def densities(rows: np.ndarray) -> dict[str, GaussianMixture | AveragedMixture]:
    def penalised(beta: float) -> GaussianMixture:
        return GaussianMixture(N_COMPONENTS, prior=Conjugate.penalty(beta, 2), random_state=0, max_iter=500)

    unregularised = penalised(5e-7)
    models = {
        "unregularised": unregularised,
        "penalty, beta = 0.01": penalised(0.01),
        "penalty, beta = 0.2": penalised(0.2),
        "average of 20 unregularised, bootstrap": AveragedMixture(unregularised, 20, random_state=0),
        "automatic": GaussianMixture("auto", prior="auto", random_state=0, max_iter=500),
    }
    return {"truth": truth(rows)} | {name: model.fit(rows) for name, model in models.items()}


def draw_densities(X: np.ndarray, new: np.ndarray) -> None:
    estimates = densities(X)
    figure, axes = plt.subplots(2, 3, figsize=(10.5, 7), layout="constrained", sharex=True, sharey=True)
    highest = 1.5 * np.exp(estimates["truth"].score_samples(X)).max()
    for ax, (name, model) in zip(axes.ravel(), estimates.items(), strict=True):
        plot_density(model, X, ax, highest)
        ax.set(title=f"{name}\nnew samples: {model.score(new):.2f} per sample", xlabel="", ylabel="")
        print(f"{name:40s} training {model.score(X):6.2f}   new samples {model.score(new):6.2f}")
    save(figure, "regularised_densities.png", 70)


def draw_classes(X: np.ndarray, y: np.ndarray) -> None:
    model = MixtureClassifier(random_state=0, max_iter=500).fit(X, y)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    plot_classifier(model, X, y, left)
    left.set_title(f"automatic: {model.n_components_.tolist()} components")
    SearchDisplay.from_estimator(model, ax=right)
    right.set_title("candidates, by samples held out")
    save(figure, "regularised_choice.png", 68)


def draw_transformed(X: np.ndarray, y: np.ndarray, new: np.ndarray, labels: np.ndarray) -> None:
    """The same classes with long tails, as they are and transformed."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    for ax, warp in zip(axes, (None, "johnson"), strict=True):
        model = MixtureClassifier(4, warp=warp, random_state=0, max_iter=500).fit(X, y)
        MixtureDisplay.from_estimator(model, X, y, ax=ax)
        loss = -model.predict_log_proba(new)[np.arange(len(labels)), labels].mean()
        name = "components in the original features" if warp is None else "components in transformed features"
        ax.set(title=f"{name} (warp={warp!r})\nlog-loss of new samples {loss:.2f}")
        print(f"warp={warp!r:35} log-loss of new samples {loss:6.2f}")
    save(figure, "regularised_skewed.png", 68)


def save(figure, name: str, dpi: int) -> None:
    """Write a figure into the requested folder."""
    if len(sys.argv) > 1:
        figure.savefig(Path(sys.argv[1]) / name, dpi=dpi)


warnings.simplefilter("ignore")  # unregularised mixtures collapse, and say so
X, y = make_rings(100, scale=SCALE, random_state=0)
new, labels = make_rings(2000, scale=SCALE, random_state=1)

# %%
# Densities of one class: without a penalty the mixture has peaks at single samples.
draw_densities(X[y == 0], new[labels == 0])

# %%
# The automatic choice of a classifier.
draw_classes(X, y)

# %%
# The same classes with long tails, as they are and transformed.
draw_transformed(np.exp(1.2 * X), y, np.exp(1.2 * new), labels)
plt.show()
