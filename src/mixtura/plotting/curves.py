"""Displays of curves: coverage, reliability, confusion of classes, the history of a fit, the candidates of a search."""

from __future__ import annotations

from typing import Any

import numpy as np

from mixtura.plotting.style import COLOURS, GREY, axes_or_new, colour, line, marker, outside_legend
from mixtura.selection.search import SearchTable


class CoverageDisplay:
    """Plot of the error rate of accepted samples against the coverage, the fraction of samples accepted.

    Parameters
    ----------
    coverages : ndarray of shape (n_points,)
        Fraction of samples that are not rejected, as in `CoverageCurve`.
    errors : ndarray of shape (n_points,)
        Error rate of these samples.
    name : str, optional
        Name of the curve in the legend.

    Attributes
    ----------
    ax_ : matplotlib.axes.Axes
        The axes.
    figure_ : matplotlib.figure.Figure
        The figure.
    line_ : matplotlib.lines.Line2D
        The curve.
    """

    def __init__(self, coverages: np.ndarray, errors: np.ndarray, name: str | None = None):
        self.coverages, self.errors, self.name = coverages, errors, name

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any, *, name: str | None = None, ax: Any = None
    ) -> CoverageDisplay:
        """Compute the curve of a classifier and draw it.

        Parameters
        ----------
        estimator : estimator or Pipeline
            Fitted estimator.
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,)
            Labels.
        name : str, optional
            Name of the curve in the legend.
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; a new figure if None.

        Returns
        -------
        display : CoverageDisplay
        """
        curve = estimator.coverage_curve(X, y)
        return cls(curve.coverages, curve.errors, name or type(estimator).__name__).plot(ax)

    def plot(self, ax: Any = None, name: str | None = None) -> CoverageDisplay:
        """Draw the plot.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; a new figure if None.
        name : str, optional
            Name of the curve in the legend.

        Returns
        -------
        display : CoverageDisplay
        """
        self.ax_, self.figure_ = axes_or_new(ax)
        number = len(self.ax_.lines)
        label = name or self.name or "error rate of accepted samples"
        (self.line_,) = self.ax_.plot(
            100 * self.coverages, 100 * self.errors, label=label, color=colour(number), linestyle=line(number)
        )
        self.ax_.set(xlabel="coverage (accepted samples), %", ylabel="error rate of accepted samples, %")
        self.ax_.set_ylim(bottom=0)
        self.ax_.set_xlim(0, 100)
        self.ax_.legend()
        self.ax_.spines[["top", "right"]].set_visible(False)
        return self


class ReliabilityDisplay:
    """Reliability diagram: observed frequency against predicted probability, with the diagonal for perfect calibration.

    Parameters
    ----------
    probabilities : ndarray of shape (n_samples, n_classes)
        Predicted probabilities.
    outcomes : ndarray of bool of shape (n_samples, n_classes)
        Whether a sample belongs to a class.
    classes : sequence
        Class labels.
    n_bins : int, default=10
        Number of bins of the probabilities.

    Attributes
    ----------
    ax_ : matplotlib.axes.Axes
        The axes.
    figure_ : matplotlib.figure.Figure
        The figure.
    """

    def __init__(self, probabilities: np.ndarray, outcomes: np.ndarray, classes: Any, n_bins: int = 10):
        self.probabilities, self.outcomes, self.classes, self.n_bins = probabilities, outcomes, classes, n_bins

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, y: Any, *, n_bins: int = 10, ax: Any = None) -> ReliabilityDisplay:
        """Predict class probabilities and draw the diagram.

        Parameters
        ----------
        estimator : estimator or Pipeline
            Fitted estimator.
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,)
            Labels.
        n_bins : int, default=10
            Number of bins of the probabilities.
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; a new figure if None.

        Returns
        -------
        display : ReliabilityDisplay
        """
        outcomes = np.asarray(y)[:, None] == np.asarray(estimator.classes_)
        return cls(np.asarray(estimator.predict_proba(X)), outcomes, estimator.classes_, n_bins).plot(ax)

    def plot(self, ax: Any = None) -> ReliabilityDisplay:
        """Draw the plot: the second of two classes, or the probabilities of all of several classes.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; a new figure if None.

        Returns
        -------
        display : ReliabilityDisplay
        """
        self.ax_, self.figure_ = axes_or_new(ax)
        two = len(self.classes) == 2
        predicted = self.probabilities[:, 1] if two else self.probabilities.ravel()
        happened = self.outcomes[:, 1] if two else self.outcomes.ravel()
        bins = np.minimum((predicted * self.n_bins).astype(int), self.n_bins - 1)
        used = np.unique(bins)
        means = np.array([predicted[bins == b].mean() for b in used])
        shares = np.array([happened[bins == b].mean() for b in used])
        counts = np.array([(bins == b).sum() for b in used])
        errors = np.sqrt((shares * (1 - shares)).clip(1e-4) / counts)
        self.ax_.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, label="perfectly calibrated")
        name = f"class {self.classes[1]}" if two else "all classes"
        self.ax_.errorbar(means, shares, errors, color=COLOURS[0], marker="o", markersize=4, capsize=2, label=name)
        for mean, share, count in zip(means, shares, counts, strict=True):
            self.ax_.annotate(str(count), (mean, share), (5, -9), textcoords="offset points", fontsize=7, color=GREY)
        self.ax_.set(xlabel="predicted probability", ylabel="observed frequency (small numbers: samples)")
        self.ax_.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        self.ax_.legend(loc="upper left")
        self.ax_.spines[["top", "right"]].set_visible(False)
        return self


class ConfusionDisplay:
    """Confusion matrix: rows are true classes, columns predicted classes.

    Parameters
    ----------
    matrix : ndarray of shape (n_classes, n_classes)
        Number of samples.
    classes : sequence
        Class labels.

    Attributes
    ----------
    ax_ : matplotlib.axes.Axes
        The axes.
    figure_ : matplotlib.figure.Figure
        The figure.
    """

    def __init__(self, matrix: np.ndarray, classes: Any):
        self.matrix, self.classes = matrix, classes

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, y: Any, *, ax: Any = None) -> ConfusionDisplay:
        """Predict classes and draw the confusion matrix.

        Parameters
        ----------
        estimator : estimator or Pipeline
            Fitted estimator.
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,)
            Labels.
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; a new figure if None.

        Returns
        -------
        display : ConfusionDisplay
        """
        from sklearn.metrics import confusion_matrix

        return cls(confusion_matrix(y, estimator.predict(X), labels=estimator.classes_), estimator.classes_).plot(ax)

    def plot(self, ax: Any = None) -> ConfusionDisplay:
        """Draw the plot; shades are fractions of the true class.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; a new figure if None.

        Returns
        -------
        display : ConfusionDisplay
        """
        n_classes = len(self.classes)
        self.ax_, self.figure_ = axes_or_new(ax, (2.2 + 0.5 * n_classes, 1.6 + 0.45 * n_classes))
        shares = self.matrix / self.matrix.sum(1, keepdims=True).clip(1)
        image = self.ax_.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for i, j in np.argwhere(self.matrix > 0):
            tint = "white" if shares[i, j] > 0.6 else "black"
            self.ax_.text(j, i, str(self.matrix[i, j]), ha="center", va="center", color=tint, fontsize=8)
        names = [str(label) for label in self.classes]
        turned = max(len(name) for name in names) > 4
        self.ax_.set_xticks(range(n_classes), names, rotation=45 if turned else 0, ha="right" if turned else "center")
        self.ax_.set_yticks(range(n_classes), names)
        self.ax_.set(xlabel="predicted class", ylabel="true class")
        self.figure_.colorbar(image, ax=self.ax_, label="fraction of the true class", shrink=0.8)
        return self


class HistoryDisplay:
    """Plot of the objective per sample against the iteration.

    Parameters
    ----------
    histories : dict of str to list of Record
        Histories by the name of the model.

    Attributes
    ----------
    ax_ : matplotlib.axes.Axes
        The axes.
    figure_ : matplotlib.figure.Figure
        The figure.
    """

    def __init__(self, histories: dict[str, Any]):
        self.histories = histories

    @classmethod
    def from_estimator(cls, estimator: Any, *, name: str | None = None, ax: Any = None) -> HistoryDisplay:
        """Draw the history of a fitted estimator, or of the last step of a pipeline.

        Parameters
        ----------
        estimator : estimator or Pipeline
            Fitted estimator.
        name : str, optional
            Name of the curve in the legend.
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; a new figure if None.

        Returns
        -------
        display : HistoryDisplay
        """
        final = last_step(estimator)
        if not vars(final).get("history_"):
            raise ValueError(
                f"HistoryDisplay needs at least one iteration; this {type(final).__name__} has none. Fit it with "
                "max_iter=1 or more."
            )
        return cls({name or type(final).__name__: final.history_}).plot(ax)

    def plot(self, ax: Any = None) -> HistoryDisplay:
        """Draw the plot.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; a new figure if None.

        Returns
        -------
        display : HistoryDisplay
        """
        self.ax_, self.figure_ = axes_or_new(ax)
        for name, history in self.histories.items():
            number = len(self.ax_.lines)
            style = {"color": colour(number), "linestyle": line(number), "marker": marker(number), "markersize": 3}
            across, up = [record.iteration for record in history], [record.objective for record in history]
            self.ax_.plot(across, up, label=name, **style)
        self.ax_.set(xlabel="iteration", ylabel="objective per sample")
        self.ax_.locator_params(axis="x", integer=True)
        outside_legend(self.ax_, len(self.ax_.lines))
        return self


def _setting(name: str, value: object) -> str:
    """A setting of a candidate in words."""
    counts = sorted(set(value)) if isinstance(value, tuple) else [value]
    if name == "n_components":
        return f"{' or '.join(map(str, counts))} component{'' if counts == [1] else 's'}"
    known = {"covariance_type": f"{value}", "warp": "transformed features", "categories": f"categories as {value}"}
    return known.get(name, f"{name.replace('_', ' ')} {value}")


class SearchDisplay:
    """Plot of the candidates of a search with standard errors, the best at the top and the selected one in bold.

    Parameters
    ----------
    table : SearchTable
        The `search_` of a fitted estimator.
    n_shown : int, default=20
        Number of candidates to draw.

    Attributes
    ----------
    ax_ : matplotlib.axes.Axes
        The axes.
    figure_ : matplotlib.figure.Figure
        The figure.
    """

    def __init__(self, table: SearchTable, n_shown: int = 20):
        self.table, self.n_shown = table, n_shown

    @classmethod
    def from_estimator(cls, estimator: Any, *, n_shown: int = 20, ax: Any = None) -> SearchDisplay:
        """Draw the search of a fitted estimator, or of the last step of a pipeline.

        Parameters
        ----------
        estimator : estimator or Pipeline
            Fitted estimator.
        n_shown : int, default=20
            Number of candidates to draw.
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; a new figure if None.

        Returns
        -------
        display : SearchDisplay
        """
        final = last_step(estimator)
        table = vars(final).get("search_")
        if not table:
            raise ValueError(
                f"SearchDisplay draws the candidates of a search; this {type(final).__name__} compared none. Fit it "
                'with an argument that is "auto", such as n_components.'
            )
        return cls(table, n_shown).plot(ax)

    def plot(self, ax: Any = None) -> SearchDisplay:
        """Draw the plot.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; a new figure if None.

        Returns
        -------
        display : SearchDisplay
        """
        table, shown = self.table, self.table.ranked()[: self.n_shown][::-1]  # the best one is drawn last, at the top
        self.ax_, self.figure_ = axes_or_new(ax, (8, 1.2 + 0.27 * len(shown)))
        ax = self.ax_
        for height, number in enumerate(shown):
            candidate, tint = table.candidates[number], colour(0 if number == table.chosen else 1)
            error = 0.0 if np.isnan(candidate.standard_error) else candidate.standard_error
            ax.errorbar(candidate.score, height, xerr=error, color=tint, marker="o", markersize=5, capsize=2)
        whats = [table.candidates[number].what for number in shown]
        names = dict.fromkeys(name for what in whats for name in what)
        varying = [name for name in names if len({str(what.get(name)) for what in whats}) > 1] or list(names)
        labels = [
            ", ".join(_setting(name, what[name]) for name in varying if what.get(name) is not None) for what in whats
        ]
        ax.set_yticks(range(len(shown)), labels, fontsize=8)
        ax.get_yticklabels()[-1].set_fontweight("bold")
        ax.set(xlabel=table.criterion.replace("_", " ") + " of held-out samples")
        ax.grid(axis="x", alpha=0.3)
        return self


def draw_decisions(figure: Any, positive: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> None:
    """Draw the ROC curve, the precision-recall curve and the cost curve of a class on a figure.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    positive : ndarray of bool of shape (n_samples,)
        Whether a sample belongs to the class.
    scores : ndarray of shape (n_samples,)
        Its predicted probability.
    weights : ndarray of shape (n_samples,)
    """
    from sklearn import metrics

    left, middle, right = figure.subplots(1, 3)
    rate = float(weights[positive].sum() / weights.sum())
    false, true, _ = metrics.roc_curve(positive, scores, sample_weight=weights)
    area = metrics.roc_auc_score(positive, scores, sample_weight=weights)
    left.plot(false, true, color=COLOURS[0], label=f"AUC {area:.3f}")
    left.plot([0, 1], [0, 1], color=GREY, linestyle="--", label="guessing")
    precision, recall, _ = metrics.precision_recall_curve(positive, scores, sample_weight=weights)
    area = metrics.average_precision_score(positive, scores, sample_weight=weights)
    middle.step(recall, precision, where="post", color=COLOURS[0], label=f"average precision {area:.3f}")
    middle.axhline(rate, color=GREY, linestyle="--", label="guessing")
    ratios = np.geomspace(1, 100, 60)
    flagged = scores[:, None] >= 1 / (1 + ratios)  # (n, 60)
    shares = weights[:, None] / weights.sum()
    costs = (shares * np.where(positive[:, None], ratios * ~flagged, flagged)).sum(0)
    right.plot(ratios, costs, color=COLOURS[0], label="by the probability")
    right.plot(ratios, np.minimum(ratios * rate, 1 - rate), color=GREY, linestyle="--", label="all or none")
    right.set(xscale="log", xlabel="cost of a missed row (false alarm: 1)", ylabel="cost per row")
    left.set(xlabel="false positive rate", ylabel="true positive rate (recall)")
    middle.set(xlabel="recall", ylabel="precision", ylim=(-0.02, 1.02))
    right.set_xticks([1, 10, 100], ["1", "10", "100"])
    for ax in (left, middle, right):
        ax.legend(loc="best", fontsize=8)


def last_step(estimator: Any) -> Any:
    """The fitted model at the end of a Pipeline, or the estimator itself."""
    from sklearn.pipeline import Pipeline

    return estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator
