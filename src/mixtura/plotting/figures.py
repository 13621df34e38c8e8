"""Plots of models with two features."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from sklearn.utils.validation import check_is_fitted

from mixtura.files.codec import fitted_of
from mixtura.model.mixture import Mixture
from mixtura.plotting.mixtures import MixtureDisplay, limits_of
from mixtura.plotting.style import COLOURS

GRID_POINTS = 240  # of the density along each axis


def plot_classifier(model: Any, X: Any, y: Any, ax: Axes | None = None) -> Axes:
    """Plot the class probabilities, decision boundary and components of a classifier with two features.

    The background blends the class colours by their probabilities; black lines are the decision boundary. A component
    is two ellipses, at one and two standard deviations, with its number. Samples with missing values are not drawn;
    unlabeled samples are grey. `MixtureDisplay` draws models of more features.

    Parameters
    ----------
    model : MixtureClassifier
        A fitted classifier with Gaussian components.
    X : array-like of shape (n_samples, 2)
        Samples to draw.
    y : array-like of shape (n_samples,)
        Their labels.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; a new figure if None.

    Returns
    -------
    ax : matplotlib.axes.Axes
    """
    _check_mixture(model)
    rows, labels = _check_rows(X, y)
    return MixtureDisplay.from_estimator(model, rows, labels, features=(0, 1), ax=ax).ax_


def plot_density(model: Any, X: Any, ax: Axes | None = None, highest: float | None = None) -> Axes:
    """Plot the density of a model with two features as shades of grey, with samples.

    Parameters
    ----------
    model : estimator
        A fitted estimator with `score_samples`.
    X : array-like of shape (n_samples, 2)
        Samples to draw.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; a new figure if None.
    highest : float, optional
        Density shown as black; the highest density in the plot if None.

    Returns
    -------
    ax : matplotlib.axes.Axes
    """
    check_is_fitted(model)
    rows = np.asarray(X.cpu() if isinstance(X, torch.Tensor) else X, dtype=float)
    if rows.ndim != 2 or rows.shape[1] != 2:
        raise ValueError(f"X must have shape (n_samples, 2) for plot_density; got {rows.shape}.")
    ax = plt.subplots()[1] if ax is None else ax
    box = limits_of(rows)
    across, up = (np.linspace(low, high, GRID_POINTS) for low, high in box)
    grid = np.stack(np.meshgrid(across, up), -1).reshape(-1, 2)
    density = np.exp(np.asarray(model.score_samples(torch.from_numpy(grid)).cpu())).reshape(GRID_POINTS, GRID_POINTS)
    top = density.max() if highest is None else highest
    ax.imshow(density, extent=(*box[0], *box[1]), origin="lower", aspect="auto", cmap="Greys", vmin=0, vmax=top)
    ax.plot(*rows.T, ".", color=COLOURS[4], markersize=3)
    ax.set(xlim=box[0], ylim=box[1], xlabel="feature 0", ylabel="feature 1")
    return ax


def _check_mixture(model: object) -> None:
    check_is_fitted(model)
    fitted = fitted_of(model)
    mixture = fitted.get("mixture_")
    if not isinstance(mixture, Mixture) or "classes_" not in fitted:
        raise TypeError(
            f"plot_classifier needs a classifier with Gaussian components, such as MixtureClassifier; got "
            f"{type(model).__name__}."
        )
    if mixture.n_features != 2:
        raise ValueError(
            f"plot_classifier needs a model with 2 features; this one has {mixture.n_features}. Fit a model to "
            f"two columns, or to two principal components."
        )


def _check_rows(X: object, y: object) -> tuple[np.ndarray, np.ndarray]:
    rows, labels = (
        part.detach().cpu().numpy() if isinstance(part, torch.Tensor) else np.asarray(part) for part in (X, y)
    )
    if rows.ndim != 2 or rows.shape[1] != 2:
        raise ValueError(f"X must have shape (n_samples, 2); got {rows.shape}.")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (len(rows),):
        raise ValueError(
            f"y must have shape ({len(rows)},), one label per sample of X; got {labels.shape}. "
            f"For soft labels pass the most probable class of each sample."
        )
    return rows.astype(float), labels
