"""
From generative to discriminative training
==========================================

Likelihood, margin, error and samples against the trade-off (RPTP18, figures 1 and 2), on scikit-learn's digits with
two low-rank components per class; about two minutes on one core.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from mixtura import HybridMixtureClassifier

TRADEOFFS = (1.0, 0.9, 0.5, 0.1, 0.01, 0.001, 0.0)
SHOWN = (1.0, 0.5, 0.01, 0.0)
MARGIN = 30.0


def fitted(tradeoff: float, X: np.ndarray, y: np.ndarray) -> HybridMixtureClassifier:
    """Fit without early stopping, as in the figures of the paper."""
    model = HybridMixtureClassifier(
        2,
        covariance_type="low_rank",
        rank=8,
        tradeoff=tradeoff,
        margin=MARGIN,
        validation_fraction=None,
        n_epochs=120,
        learning_rate=1e-2,
        batch_size=50,
        random_state=0,
    )
    return model.fit(X, y)


def measured(model: HybridMixtureClassifier, X: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Mean log density, mean lack of margin, and error in per cent."""
    joint = model.predict_joint_log_proba(X)
    own = joint[np.arange(len(y)), y]
    others = np.where(np.eye(10, dtype=bool)[y], -np.inf, joint).max(1)
    lack = np.maximum(0, MARGIN - (own - others))
    return model.score_samples(X).mean(), lack.mean(), 100 * (1 - model.score(X, y))


def plot_tradeoff(models: dict, parts: dict) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    places = np.arange(len(TRADEOFFS))
    for name, (X, y) in parts.items():
        values = np.array([measured(models[t], X, y) for t in TRADEOFFS])
        for axis, column in zip(axes, values.T, strict=True):
            axis.plot(places, column, marker="o", label=name)
    titles = ("mean log density", f"mean lack of a margin of {MARGIN:g}", "error, %")
    for axis, title in zip(axes, titles, strict=True):
        axis.set(title=title, xlabel="trade-off (generative to discriminative)", xticks=places)
        axis.set_xticklabels([f"{t:g}" for t in TRADEOFFS])
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    save(figure, "hybrid_tradeoff.png", 90)


def plot_samples(models: dict) -> None:
    figure, axes = plt.subplots(len(SHOWN), 10, figsize=(8, 3.6), layout="constrained")
    for row, tradeoff in zip(axes, SHOWN, strict=True):
        for digit, axis in enumerate(row):
            drawn, _ = models[tradeoff].sample(1, class_label=digit)
            axis.imshow(drawn.reshape(8, 8), cmap="gray_r", vmin=0, vmax=16)
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(f"{tradeoff:g}", rotation=0, ha="right", va="center")
    figure.suptitle("one draw of every class; rows are trade-offs")
    save(figure, "hybrid_samples.png", 80)


def save(figure, name: str, dpi: int) -> None:
    """Write a figure into the requested folder."""
    if len(sys.argv) > 1:
        figure.savefig(Path(sys.argv[1]) / name, dpi=dpi)


X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=0, stratify=y)
models = {tradeoff: fitted(tradeoff, X_train, y_train) for tradeoff in TRADEOFFS}
for tradeoff, model in models.items():
    print(f"{tradeoff:g}", *(f"{value:.2f}" for value in measured(model, X_test, y_test)))

# %%
# Towards 0 the density gets worse and the margins get better; the test error is smallest in between.
plot_tradeoff(models, {"training samples": (X_train, y_train), "test samples": (X_test, y_test)})

# %%
# A discriminative mixture no longer draws digits.
plot_samples(models)
plt.show()
