"""
Generative and discriminative training
======================================

Both kinds of training on the same samples: decision boundary and components. One class has more clusters than
components. Generative training places its components where most of its samples are, far from the other class.
Discriminative training moves components away from their samples until the boundary separates the classes. Arrows lead
from the generative to the discriminative means.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from mixtura import MixtureClassifier
from mixtura.plotting import MixtureDisplay

CLUSTERS = {0: [(-7.0, 0.0, 150), (0.0, 2.4, 60), (0.0, -2.4, 60)], 1: [(0.5, 0.0, 100)]}


def clusters(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Round clusters of standard deviation 0.8."""
    rng = np.random.default_rng(seed)
    parts = [(rng.normal((x, y), 0.8, (count, 2)), c) for c, places in CLUSTERS.items() for x, y, count in places]
    return np.concatenate([rows for rows, _ in parts]), np.concatenate([np.full(len(rows), c) for rows, c in parts])


def fitted(objective: str, X: np.ndarray, y: np.ndarray, **options) -> MixtureClassifier:
    model = MixtureClassifier(
        {0: 2, 1: 1}, covariance_type="diag", objective=objective, random_state=0, **options
    )  # class 0 has three clusters
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y)


def trace(start: MixtureClassifier, X: np.ndarray, y: np.ndarray, steps: list[int]) -> list[MixtureClassifier]:
    """Models after so many steps of extended Baum-Welch."""
    return [fitted("conditional", X, y, init=start.mixture_, max_iter=n, tol=0.0) for n in steps]


def log_posterior(model: MixtureClassifier, X: np.ndarray, y: np.ndarray) -> float:
    return float(model.predict_log_proba(X)[np.arange(len(y)), y].mean())


def main() -> None:
    X, y = clusters(0)
    X_test, y_test = clusters(1)
    generative = fitted("joint", X, y)
    steps = [0, 1, 2, 3, 5, 8, 12, 20, 30, 50]
    models = trace(generative, X, y, steps)
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for axis, model, title in zip(axes, (generative, models[-1]), ("generative", "discriminative"), strict=False):
        MixtureDisplay.from_estimator(model, X, y, ax=axis)
        axis.set_title(f"{title}: {100 * (1 - model.score(X_test, y_test)):.1f} % test error", fontsize=10)
    for before, after in zip(generative.mixture_.means.numpy(), models[-1].mixture_.means.numpy(), strict=True):
        arrow = {"arrowstyle": "-|>", "linewidth": 2, "color": "black", "mutation_scale": 14}
        axes[1].annotate("", after, before, arrowprops=arrow, zorder=7)
    axes[1].set_title(axes[1].get_title() + " (arrows: from the old means)", fontsize=10)
    for name, style, rows, labels in (("training samples", "o-", X, y), ("test samples", "s--", X_test, y_test)):
        losses = [-log_posterior(model, rows, labels) for model in models]
        axes[2].plot(steps, losses, style, markersize=4, label=name, color="#0072B2" if style == "o-" else "#D55E00")
    axes[2].set(xlabel="steps of extended Baum-Welch", ylabel="log-loss", title="log-loss during training")
    axes[2].title.set_fontsize(10)
    axes[2].legend(frameon=False)
    for title, model in (("generative", generative), ("discriminative", models[-1])):
        error, loss = 100 * (1 - model.score(X_test, y_test)), -log_posterior(model, X_test, y_test)
        print(f"{title:14} {error:4.1f} % test error, log-loss {loss:.3f}")
    if len(sys.argv) > 1:  # a folder for the picture
        figure.savefig(Path(sys.argv[1]) / "discriminative.png", dpi=80)
    plt.show()


if __name__ == "__main__":
    main()
