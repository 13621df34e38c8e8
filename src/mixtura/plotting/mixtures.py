"""Displays of classes and components: in two features, in a discriminant plane, in all pairs of features."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Polygon

from mixtura.covariances import FullCovariance
from mixtura.objectives import class_log_joint
from mixtura.plotting.curves import last_step
from mixtura.plotting.style import GREY, axes_or_new, colour, line, marker, names_of, outside_legend

GRID_POINTS = 150
MARGIN = 0.06
TINT = 0.3
N_SCALES = (1, 2)  # standard deviations of the ellipses of a component
MOST_NAMED = 20  # classes in a legend
CIRCLE = np.stack((np.cos(np.linspace(0, 2 * np.pi, 100)), np.sin(np.linspace(0, 2 * np.pi, 100))), 1)


def complete(points: np.ndarray) -> np.ndarray:
    """The points without missing values."""
    return points[~np.isnan(points).any(1)]


def limits_of(points: np.ndarray) -> np.ndarray:
    """Limits of two axes, (2, 2): the range of the complete points and a margin."""
    low, high = complete(points).min(0), complete(points).max(0)
    margin = np.where(high > low, MARGIN * (high - low), 1.0)
    return np.stack((low - margin, high + margin), 1)


class View:
    """A fitted model and samples in two coordinates.

    Parameters
    ----------
    model : fitted estimator
        Not a Pipeline.
    rows : ndarray of shape (n_samples, n_features)
        As the model takes them.
    features : pair of int, or None
        Columns to draw; the other features are integrated out. None is the plane that separates best.
    names : list of str
    """

    def __init__(self, model: Any, rows: np.ndarray, features: tuple[int, int] | None, names: list[str]):
        self.model, self.features = model, features
        self.mixture = vars(model).get("mixture_")
        self.has_components = self.mixture is not None and "means_" in dir(type(model))
        self.warp = vars(model).get("warp_") if self.has_components else None
        self.rows = rows
        if features is None:
            self.axes, self.names = self._plane(names)
            warped = self._warped(rows)
            self.points = np.where(np.isnan(warped).any(1, keepdims=True), np.nan, np.nan_to_num(warped) @ self.axes)
        else:
            self.axes = np.eye(rows.shape[1])[:, list(features)]
            self.points, self.names = rows[:, list(features)], [names[j] for j in features]
        self.box = (
            limits_of(self.points) if len(complete(self.points)) else limits_of(self.outline(self.components()[0]))
        )
        if self.has_components:
            self.box = self._with_ellipses()

    def _with_ellipses(self) -> np.ndarray:
        """Limits that hold the ellipses too, up to half of the range of the samples beyond them."""
        means, matrices, _ = self.components()
        reach = N_SCALES[-1] * np.sqrt(np.diagonal(matrices, axis1=1, axis2=2).clip(0))
        corners = limits_of(self.outline(np.concatenate((means - reach, means + reach))))
        room = 0.5 * (self.box[:, 1] - self.box[:, 0])
        low = np.minimum(self.box[:, 0], np.maximum(corners[:, 0], self.box[:, 0] - room))
        high = np.maximum(self.box[:, 1], np.minimum(corners[:, 1], self.box[:, 1] + room))
        return np.stack((low, high), 1)

    def _warped(self, rows: np.ndarray) -> np.ndarray:
        return rows if self.warp is None else self.warp.to("cpu").forward(torch.from_numpy(rows)).numpy()

    def _plane(self, names: list[str]) -> tuple[np.ndarray, list[str]]:
        """Two directions in which component means differ most, in units of the spread within components."""
        if not self.has_components:
            raise ValueError(f"{type(self.model).__name__} has no components; choose two features to draw.")
        mixture = self.mixture.to("cpu")
        weights, means = mixture.weights.numpy(), mixture.means.numpy()
        within = np.einsum("k,kij->ij", weights, mixture.covariances.numpy())
        off = means - weights @ means
        between = (weights[:, None] * off).T @ off
        roots, vectors = np.linalg.eigh(within)
        whitening = vectors / np.sqrt(roots.clip(1e-12 * roots.max()))
        _, directions = np.linalg.eigh(whitening.T @ between @ whitening)
        axes = whitening @ directions[:, ::-1][:, :2]
        if axes.shape[1] < 2:
            raise ValueError("A plot of a plane needs two features; this model has one.")
        scales = np.sqrt(np.diag(within))
        largest = [np.argsort(-np.abs(axis * scales))[:2] for axis in axes.T]
        labels = [
            "discriminant " + f"{i + 1} (mostly " + ", ".join(names[j] for j in most) + ")"
            for i, most in enumerate(largest)
        ]
        return axes, labels

    def components(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Means (K, 2), covariances (K, 2, 2) and classes (K,) in the two coordinates."""
        mixture = self.mixture.to("cpu")
        means, matrices = mixture.means.numpy() @ self.axes, self.axes.T @ mixture.covariances.numpy() @ self.axes
        return means, matrices, mixture.class_of.numpy()

    def posteriors(self, grid: np.ndarray) -> np.ndarray:
        """Class probabilities of points of the grid (m, 2), everything else integrated out."""
        if self.features is None:
            means, matrices, _ = self.components()
            covariance = FullCovariance(torch.from_numpy(matrices))
            plane = replace(self.mixture.to("cpu"), means=torch.from_numpy(means), covariance=covariance)
            scores = class_log_joint(plane.log_joint(torch.from_numpy(grid)).T, plane.class_sizes)
            return scores.softmax(0).T.numpy()
        rows = np.full((len(grid), self.rows.shape[1]), np.nan)
        if not self.has_components:  # without a density no feature can be integrated out
            rows[:] = np.nanmedian(self.rows, 0)
        rows[:, list(self.features)] = grid
        return np.asarray(self.model.predict_proba(torch.from_numpy(rows)))

    def outline(self, points: np.ndarray) -> np.ndarray:
        """Points of an ellipse of the mixture in the units of the axes."""
        if self.warp is None or self.features is None:
            return points
        rows = np.zeros((len(points), self.rows.shape[1]))
        rows[:, list(self.features)] = points
        return self.warp.to("cpu").backward(torch.from_numpy(rows)).numpy()[:, list(self.features)]


class MixtureDisplay:
    """Class boundaries, components and samples in two features, or in the plane that separates best.

    Shades are class probabilities, black lines boundaries, ellipses components at one and two standard deviations with
    their numbers as in `summary()`. Features that are not drawn are marginalised.

    Parameters
    ----------
    view : View
        Model and samples in two coordinates.
    labels : ndarray of shape (n_samples,) or None
        Labels of the samples.
    classes : ndarray of shape (n_classes,) or None
        Class labels of the model.

    Attributes
    ----------
    ax_ : matplotlib.axes.Axes
        The axes.
    figure_ : matplotlib.figure.Figure
        The figure.
    """

    def __init__(self, view: View, labels: np.ndarray | None, classes: Any):
        self.view, self.labels, self.classes = view, labels, classes

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any = None, *, features: Any = None, ax: Any = None
    ) -> MixtureDisplay:
        """Draw a fitted estimator, or a pipeline that ends in one.

        Parameters
        ----------
        estimator : estimator or Pipeline
            Fitted estimator.
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), optional
            Labels of the samples.
        features : pair of int or str, optional
            Features to draw. None draws both of two features, and the most discriminative plane of more.
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; a new figure if None.

        Returns
        -------
        display : MixtureDisplay
        """
        model, rows, names = prepare(estimator, X)
        view = View(model, rows, choose_features(features, names), names)
        classes = vars(model).get("classes_")
        return cls(view, None if y is None else np.asarray(y), classes).plot(ax)

    def plot(self, ax: Any = None, numbers: bool = True) -> MixtureDisplay:
        """Draw the plot.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; a new figure if None.
        numbers : bool, default=True
            Whether to draw the numbers of the components.

        Returns
        -------
        display : MixtureDisplay
        """
        self.ax_, self.figure_ = axes_or_new(ax)
        view = self.view
        if self.classes is not None:
            self._shades()
        if view.has_components:
            self._ellipses(numbers)
        self._samples()
        self.ax_.set(xlim=view.box[0], ylim=view.box[1], xlabel=view.names[0], ylabel=view.names[1])
        n_entries = len(self.ax_.get_legend_handles_labels()[1])
        if n_entries <= MOST_NAMED:
            outside_legend(self.ax_, n_entries, None if self.classes is None else "class")
        return self

    def _shades(self) -> None:
        ax, box = self.ax_, self.view.box
        across, up = (np.linspace(low, high, GRID_POINTS) for low, high in box)
        grid = np.stack(np.meshgrid(across, up), -1).reshape(-1, 2)
        probabilities = self.view.posteriors(grid)
        colours = np.array([to_rgb(colour(c)) for c in range(probabilities.shape[1])])
        ground = (1 - TINT * (1 - probabilities @ colours)).clip(0, 1).reshape(GRID_POINTS, GRID_POINTS, 3)
        ax.imshow(ground, extent=(*box[0], *box[1]), origin="lower", aspect="auto", interpolation="bilinear", zorder=0)
        ordered = np.sort(probabilities, 1)
        for c in range(probabilities.shape[1] if probabilities.shape[1] > 2 else 1):
            best_other = np.where(probabilities[:, c] == ordered[:, -1], ordered[:, -2], ordered[:, -1])
            lead = (probabilities[:, c] - best_other).reshape(GRID_POINTS, GRID_POINTS)
            if lead.min() < 0 < lead.max():
                ax.contour(across, up, lead, levels=[0.0], colors="black", linewidths=1.2, zorder=3)

    def _ellipses(self, numbers: bool) -> None:
        means, matrices, class_of = self.view.components()
        for k, (mean, matrix, c) in enumerate(zip(means, matrices, class_of, strict=True)):
            lengths, axes = np.linalg.eigh(matrix)
            for n_scales, width in zip(N_SCALES, (1.6, 0.8), strict=True):
                outline = self.view.outline(mean + n_scales * (CIRCLE * np.sqrt(lengths)) @ axes.T)
                patch = Polygon(outline, fill=False, edgecolor=colour(c), linewidth=width, linestyle=line(c), zorder=4)
                self.ax_.add_patch(patch)
            if numbers:
                place = self.view.outline(mean[None])[0]
                inside = (self.view.box[:, 0] < place).all() and (place < self.view.box[:, 1]).all()
                box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": colour(c), "alpha": 0.85}
                if inside:
                    self.ax_.text(
                        float(place[0]),
                        float(place[1]),
                        str(k),
                        color="black",
                        fontsize=8,
                        ha="center",
                        va="center",
                        bbox=box,
                        zorder=6,
                    )

    def _samples(self) -> None:
        points, look = self.view.points, {"s": 18, "edgecolors": "white", "linewidths": 0.4, "alpha": 0.9}
        if self.labels is None or self.classes is None:
            self.ax_.scatter(*points.T, color=GREY, label="samples", zorder=2, **look)
            return
        unlabeled = ~np.isin(self.labels, self.classes)
        if unlabeled.any():
            self.ax_.scatter(*points[unlabeled].T, color=GREY, marker=".", label="unlabeled", zorder=1, **look)
        for c, label in enumerate(self.classes):
            chosen = self.labels == label
            style = {"color": colour(c), "marker": marker(c)}
            self.ax_.scatter(*points[chosen].T, label=str(label), zorder=2, gid=f"class-{c}", **style, **look)


def draw_classes(figure: Any, estimator: Any, X: Any, y: Any, chosen: Any) -> None:
    """Draw every one of some classes by itself among all samples, in the plane that separates best."""
    model, rows, names = prepare(estimator, X)
    view = View(model, rows, choose_features(None, names), names)
    axes = figure.subplots(-(-len(chosen) // 5), 5, sharex=True, sharey=True, squeeze=False).ravel()
    for ax, label in zip(axes, chosen, strict=False):
        own = np.asarray(y) == label
        ax.scatter(*view.points[~own].T, color=GREY, s=3, alpha=0.25, linewidths=0)
        ax.scatter(*view.points[own].T, color=colour(0), s=9, linewidths=0)
        ax.set(xlim=view.box[0], ylim=view.box[1], xticks=[], yticks=[], title=str(label)[:24])
    for ax in axes[len(chosen) :]:
        ax.remove()


class PairsDisplay:
    """Scatter plots of all pairs of some features with components, and histograms on the diagonal.

    Parameters
    ----------
    model : estimator
        Fitted estimator with a density.
    rows : ndarray of shape (n_samples, n_features)
        Samples.
    labels : ndarray of shape (n_samples,) or None
        Labels of the samples.
    features : list of int
        Features to draw.
    names : list of str
        Names of all features.

    Attributes
    ----------
    axes_ : ndarray of matplotlib.axes.Axes
        The axes.
    figure_ : matplotlib.figure.Figure
        The figure.
    """

    def __init__(self, model: Any, rows: np.ndarray, labels: np.ndarray | None, features: list[int], names: list[str]):
        self.model, self.rows, self.labels, self.features, self.names = model, rows, labels, features, names

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, y: Any = None, *, features: Any = None) -> PairsDisplay:
        """Draw a fitted estimator with a density, or a pipeline that ends in one.

        Parameters
        ----------
        estimator : estimator or Pipeline
            Fitted estimator.
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), optional
        features : sequence of int or str, optional
            Features to draw; the first five if None.

        Returns
        -------
        display : PairsDisplay
        """
        model, rows, names = prepare(estimator, X)
        chosen = range(min(5, len(names))) if features is None else features
        numbers = [names.index(f) if isinstance(f, str) else int(f) for f in chosen]
        return cls(model, rows, None if y is None else np.asarray(y), numbers, names).plot()

    def plot(self) -> PairsDisplay:
        """Draw the plot.

        Returns
        -------
        display : PairsDisplay
        """
        import matplotlib.pyplot as plt

        size, classes = len(self.features), vars(self.model).get("classes_")
        self.figure_, self.axes_ = plt.subplots(
            size, size, figsize=(1 + 1.9 * size, 0.6 + 1.8 * size), squeeze=False, layout="constrained"
        )
        for i, upper in enumerate(self.features):
            for j, across in enumerate(self.features):
                ax = self.axes_[i, j]
                if i == j:
                    self._histogram(ax, upper, classes)
                else:
                    view = View(self.model, self.rows, (across, upper), self.names)
                    display = MixtureDisplay(view, self.labels, classes)
                    display.ax_ = ax
                    display._samples()
                    if view.has_components:
                        display._ellipses(numbers=False)
                    ax.set(xlim=view.box[0], ylim=view.box[1])
                ax.set_xlabel(self.names[across] if i == size - 1 else "", fontsize=8)
                ax.set_ylabel(self.names[upper] if j == 0 else "", fontsize=8)
                ax.tick_params(labelsize=7)
        handles, labels = self.axes_[0, 1 if size > 1 else 0].get_legend_handles_labels()
        self.figure_.legend(handles, labels, loc="outside right upper", fontsize=8)
        return self

    def _histogram(self, ax: Axes, feature: int, classes: np.ndarray | None) -> None:
        values = self.rows[:, feature]
        if self.labels is None or classes is None:
            ax.hist(values[~np.isnan(values)], bins=20, color=GREY)
            return
        edges = np.histogram_bin_edges(values[~np.isnan(values)], 20)
        for c, label in enumerate(classes):
            own = values[(self.labels == label) & ~np.isnan(values)]
            ax.hist(own, bins=edges.tolist(), histtype="step", color=colour(c), linestyle=line(c), linewidth=1.3)
        ax.set_yticks([])


def prepare(estimator: Any, X: Any) -> tuple[Any, np.ndarray, list[str]]:
    """The model at the end of a Pipeline, samples as it takes them, and the names of its features."""
    model = last_step(estimator)
    if model is not estimator:
        before = estimator[:-1]
        X = before.transform(X)
        known = before.get_feature_names_out() if "get_feature_names_out" in dir(before) else None
        names = None if known is None else [str(name) for name in known]
    else:
        names = None
    encoding = vars(model).get("encoding_")
    if encoding is not None:
        known = names or names_of(model, encoding.n_features)
        pairs = zip(encoding.categorical, encoding.categories, strict=True)
        indicators = [f"{known[j]} = {value}" for j, values in pairs for value in values]
        return model, encoding.encode(X), [*(known[j] for j in encoding.numeric), *indicators]
    rows = X.detach().cpu().numpy() if isinstance(X, torch.Tensor) else np.asarray(X)
    rows = rows.astype(float)
    return model, rows, names or names_of(model, rows.shape[1])


def choose_features(features: Any, names: list[str]) -> tuple[int, int] | None:
    """Two features by name or number; None for the plane that separates best."""
    if features is None:
        return (0, 1) if len(names) == 2 else None
    numbers = [names.index(f) if isinstance(f, str) else int(f) for f in features]
    if len(numbers) != 2:
        raise ValueError(f"features must be two of {names}; got {features!r}.")
    return numbers[0], numbers[1]
