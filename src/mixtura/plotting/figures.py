"""Plots of mixtures with two features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, Patch, Polygon
from sklearn.utils.validation import check_is_fitted

from mixtura.files.codec import fitted_of
from mixtura.model.mixture import Mixture
from mixtura.model.warp import Warp

# Okabe and Ito's palette for colour-blind readers; markers distinguish the classes as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")
GREY = "#777777"
GRID_POINTS = 240  # of the surface along each axis
MARGIN = 0.08  # free space around the samples, relative to their range
TINT = 0.32  # opacity of a class colour at probability one


def plot_classifier(model: Any, X: Any, y: Any, ax: Axes | None = None) -> Axes:
    """Plot the class probabilities, decision boundary and components of a classifier with two features.

    The background blends the class colours by their probabilities; black lines are the decision boundary. A component
    is a cross at its mean and two ellipses, at one and two standard deviations. Samples with missing values are not
    drawn; unlabeled samples are grey.

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
    mixture = _checked_mixture(model)
    rows, labels = _checked_rows(X, y)
    ax = plt.subplots()[1] if ax is None else ax
    complete = rows[~np.isnan(rows).any(1)]
    box = _box(complete if len(complete) else mixture.means.cpu().numpy())
    _draw_surface(ax, model, box)
    _draw_components(ax, mixture, fitted_of(model).get("warp_"))
    _draw_rows(ax, rows, labels, model.classes_)
    names = fitted_of(model).get("feature_names_in_", ("feature 0", "feature 1"))
    ax.set(xlim=box[0], ylim=box[1], xlabel=str(names[0]), ylabel=str(names[1]))
    ax.legend(title="class", fontsize=8, framealpha=0.9)
    return ax


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
    box = _box(rows[~np.isnan(rows).any(1)])
    across, up = (np.linspace(low, high, GRID_POINTS) for low, high in box)
    grid = np.stack(np.meshgrid(across, up), -1).reshape(-1, 2)
    density = np.exp(np.asarray(model.score_samples(torch.from_numpy(grid)).cpu())).reshape(GRID_POINTS, GRID_POINTS)
    top = density.max() if highest is None else highest
    ax.imshow(density, extent=(*box[0], *box[1]), origin="lower", aspect="auto", cmap="Greys", vmin=0, vmax=top)
    ax.plot(*rows.T, ".", color=COLOURS[1], markersize=3)
    ax.set(xlim=box[0], ylim=box[1], xlabel="feature 0", ylabel="feature 1")
    return ax


def _checked_mixture(model: Any) -> Mixture:
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
    return mixture


def _checked_rows(X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
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


def _box(rows: np.ndarray) -> np.ndarray:
    """Limits of the two axes, (2, 2): the range of the rows and a margin."""
    low, high = rows.min(0), rows.max(0)
    margin = np.where(high > low, MARGIN * (high - low), 1.0)
    return np.stack((low - margin, high + margin), 1)


def _draw_surface(ax: Axes, model: Any, box: np.ndarray) -> None:
    across, up = (np.linspace(low, high, GRID_POINTS) for low, high in box)
    grid = np.stack(np.meshgrid(across, up), -1).reshape(-1, 2)
    # A tensor has no column names, so a model fitted with names does not warn that they are missing.
    probabilities = np.asarray(model.predict_proba(torch.from_numpy(grid)).cpu())
    colours = np.array([to_rgb(_colour(c)) for c in range(probabilities.shape[1])])
    ground = 1 - TINT * (1 - probabilities @ colours)  # white at probability zero, the tint at one
    extent = (*box[0], *box[1])
    picture = ground.clip(0, 1).reshape(GRID_POINTS, GRID_POINTS, 3)
    ax.imshow(picture, extent=extent, origin="lower", aspect="auto", interpolation="bilinear", zorder=0)
    for ahead in _leads(probabilities):
        if ahead.min() < 0 < ahead.max():
            ahead = ahead.reshape(GRID_POINTS, GRID_POINTS)
            ax.contour(across, up, ahead, levels=[0.0], colors="black", linewidths=1.3, zorder=3)


def _leads(probabilities: np.ndarray) -> list[np.ndarray]:
    """The lead of each class over the best other class; with two classes, the first lead suffices."""
    n_classes = probabilities.shape[1]
    classes = range(1) if n_classes == 2 else range(n_classes)
    return [probabilities[:, c] - np.delete(probabilities, c, 1).max(1) for c in classes]


def _draw_components(ax: Axes, mixture: Mixture, warp: Warp | None) -> None:
    parts = (mixture.means, mixture.covariances, mixture.class_of)
    around = np.linspace(0, 2 * np.pi, GRID_POINTS)
    circle = np.stack((np.cos(around), np.sin(around)), 1)

    def original_units(points: np.ndarray) -> np.ndarray:
        return points if warp is None else warp.to("cpu").backward(torch.tensor(points)).numpy()

    for mean, covariance, c in zip(*(part.cpu().numpy() for part in parts), strict=True):
        lengths, axes = np.linalg.eigh(covariance)
        angle = float(np.degrees(np.arctan2(axes[1, 1], axes[0, 1])))
        for n_scales, style in ((1, "-"), (2, "--")):
            height, width = 2 * n_scales * np.sqrt(lengths)
            place = (float(mean[0]), float(mean[1]))
            outline: Patch = Ellipse(place, width, height, angle=angle)
            if warp is not None:
                outline = Polygon(original_units(mean + n_scales * (circle * np.sqrt(lengths)) @ axes.T))
            outline.set(fill=False, edgecolor=_colour(c), linewidth=1.6, linestyle=style, zorder=4)
            ax.add_patch(outline)
        ax.plot(*original_units(mean[None])[0], "+", color=_colour(c), markersize=9, markeredgewidth=2.2, zorder=5)


def _draw_rows(ax: Axes, rows: np.ndarray, labels: np.ndarray, classes: np.ndarray) -> None:
    # White edges separate samples from one another and from a background of the same colour.
    look: dict[str, Any] = {"s": 20, "edgecolors": "white", "linewidths": 0.5, "alpha": 0.9}
    unlabeled = ~np.isin(labels, classes)
    if unlabeled.any():
        ax.scatter(*rows[unlabeled].T, color=GREY, marker=".", zorder=1, label="unlabeled", **look)
    for c, label in enumerate(classes):
        chosen = labels == label
        ax.scatter(
            *rows[chosen].T, color=_colour(c), marker=MARKERS[c % len(MARKERS)], zorder=2, label=str(label), **look
        )


def _colour(number: int) -> str:
    return COLOURS[int(number) % len(COLOURS)]


# ---- The picture of the demo -----------------------------------------------------------------------------------------

OWN_COLOURS = ("#000000", "#0072B2", "#D55E00")
OTHER_COLOURS = ("#CC79A7", "#E69F00", "#009E73", "#56B4E9", "#777777")


@dataclass(frozen=True)
class Curve:
    """Test errors of one method against the fraction of removed values.

    Parameters
    ----------
    name : str
        Name of the method.
    errors : sequence of float
        Test errors in per cent, one per fraction.
    ours : bool
        Whether the method is one of mixtura, which is drawn in bold.
    """

    name: str
    errors: Sequence[float]
    ours: bool


def demo_picture(model: Any, X: Any, y: Any, fractions: Sequence[float], curves: Sequence[Curve]) -> Figure:
    """Draw a classifier with two features (left) and test errors against the fraction of removed values (right).

    Parameters
    ----------
    model : MixtureClassifier
        A fitted classifier with two features.
    X : array-like of shape (n_samples, 2)
        Samples to draw.
    y : array-like of shape (n_samples,)
        Their labels.
    fractions : sequence of float
        Fractions of removed values, from 0 to 1.
    curves : sequence of Curve
        One per method.

    Returns
    -------
    figure : matplotlib.figure.Figure
    """
    figure = Figure(figsize=(11, 4.6), dpi=100, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.12))
    plot_classifier(model, X, y, left)
    left.set_title("Decision boundary; components at 1 and 2 standard deviations")
    left.legend(title="class", loc="upper left", framealpha=0.9)
    _draw_curves(right, fractions, curves)
    right.set_title("Digits: test error with values removed at random")
    return figure


def _draw_curves(ax: Axes, fractions: Sequence[float], curves: Sequence[Curve]) -> None:
    per_cent = [100 * fraction for fraction in fractions]
    own, others = iter(OWN_COLOURS * len(curves)), iter(OTHER_COLOURS * len(curves))
    colours = [next(own if curve.ours else others) for curve in curves]
    for curve, colour in zip(curves, colours, strict=True):
        look: dict[str, Any] = {"linewidth": 2.4, "marker": "o"} if curve.ours else {"linewidth": 1.4, "marker": "s"}
        ax.plot(per_cent, curve.errors, color=colour, linestyle="-" if curve.ours else "--", markersize=5, **look)
    highest = max(max(curve.errors) for curve in curves)
    heights = _apart([curve.errors[-1] for curve in curves], 0.055 * highest)
    for curve, colour, height in zip(curves, colours, heights, strict=True):
        # Start at the left edge of the name, so that the line does not cross another name.
        line: dict[str, Any] = {"arrowstyle": "-", "color": colour, "relpos": (0, 0.5), "shrinkA": 0, "shrinkB": 3}
        look = {"weight": "bold", "color": "black"} if curve.ours else {"color": "#444444"}
        end, place = (per_cent[-1], curve.errors[-1]), (per_cent[-1] + 5, height)
        ax.annotate(curve.name, end, place, va="center", fontsize=9, arrowprops=line, **look)
    ax.set(xlabel="values removed from training and test set, %", ylabel="test error, %", xticks=per_cent)
    ax.set_ylim(0, 1.06 * max(highest, *heights))
    ax.set_xlim(-2, per_cent[-1] + 38)  # room for the names
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#dddddd", linewidth=0.6)


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Move heights up or down, as little as possible, until they are a gap apart; their order stays the same."""
    order = np.argsort(heights, kind="stable")
    moved = np.array(heights, dtype=float)[order]
    for _ in range(1000):  # overlapping neighbours each move away by half of the overlap
        overlap = gap - np.diff(moved)
        if (overlap <= 1e-9 * gap).all():
            break
        push = overlap.clip(0) / 2
        moved[:-1] -= push
        moved[1:] += push
    moved += max(0.0, gap / 2 - moved.min())  # none below the axis
    result = np.empty_like(moved)
    result[order] = moved
    return result.tolist()
