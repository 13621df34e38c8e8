"""ExplanationDisplay: contributions of features, as bars for one sample and as points for many."""

from __future__ import annotations

from typing import Any

import numpy as np

from mixtura.plotting.style import COLOURS, GREY, axes_or_new, spread_out

FOR, AGAINST = COLOURS[0], COLOURS[4]


class ExplanationDisplay:
    """Contributions of features to the log-odds of a class.

    Parameters
    ----------
    explanation : Explanation
        Explanation of one sample (drawn as bars) or of several (drawn as points).
    max_features : int, default=12
        Number of features to draw.

    Attributes
    ----------
    ax_ : matplotlib.axes.Axes
        The axes.
    figure_ : matplotlib.figure.Figure
        The figure.
    """

    def __init__(self, explanation: Any, max_features: int = 12):
        self.explanation = explanation
        self.max_features = max_features

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, *, classes: Any = None, max_features: int = 12, ax: Any = None
    ) -> ExplanationDisplay:
        """Explain samples and draw the contributions.

        Parameters
        ----------
        estimator : classifier
            Fitted classifier with `explain`.
        X : array-like of shape (n_samples, n_features)
            Samples.
        classes : label or pair of labels, optional
            Classes to explain, as in `explain`.
        max_features : int, default=12
            Number of features to draw.
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; a new figure if None.

        Returns
        -------
        display : ExplanationDisplay
        """
        return cls(estimator.explain(X, classes=classes), max_features).plot(ax)

    def plot(self, ax: Any = None) -> ExplanationDisplay:
        """Draw the plot.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; a new figure if None.

        Returns
        -------
        display : ExplanationDisplay
        """
        order = np.argsort(-self.explanation.mean_sizes, kind="stable")
        n_shown = min(len(order), self.max_features)
        self.ax_, self.figure_ = axes_or_new(ax, (7.2, 1.6 + 0.36 * (n_shown + 2)))
        draw = self._bars if len(self.explanation) == 1 else self._points
        draw(order[:n_shown], order[n_shown:])
        self.ax_.axvline(0, color="black", linewidth=0.8, zorder=1)
        self.ax_.spines[["top", "right"]].set_visible(False)
        return self

    def _title(self) -> str:
        explanation = self.explanation
        against = "all others" if explanation.against is None else f"{explanation.against}"
        labels = np.unique(explanation.classes)
        return f"{labels[0] if len(labels) == 1 else 'predicted class'} against {against}"

    def _bars(self, shown: np.ndarray, others: np.ndarray) -> None:
        explanation, ax = self.explanation, self.ax_
        values, names = [float(explanation.base_values[0])], ["class prior"]
        for j in shown:
            text = explanation.text_of_value(0, int(j))
            names.append(f"{explanation.feature_names[j]} {'' if text == 'missing' else '= '}{text}")
            values.append(float(explanation.values[0, j]))
        if len(others):
            names.append(f"{len(others)} other features")
            values.append(float(explanation.values[0, others].sum()))
        places = np.arange(len(values))[::-1]
        colours = [GREY, *(FOR if value >= 0 else AGAINST for value in values[1:])]
        ax.barh(places, values, color=colours, height=0.7, zorder=2)
        for place, value, j in zip(places, values, [None, *shown, None], strict=False):
            text = f"{value:+.2f}"
            if j is not None and np.isnan(explanation.data[0, j]) and not value:
                text = f"could change it by ±{explanation.missing_effects[0, j]:.2f}"
                ax.errorbar(0, place, xerr=explanation.missing_effects[0, j], color=GREY, capsize=3, zorder=2)
                value = explanation.missing_effects[0, j]
            ax.annotate(
                text,
                (value, place),
                (5 if value >= 0 else -5, 0),
                textcoords="offset points",
                va="center",
                ha="left" if value >= 0 else "right",
                fontsize=8,
            )
        ax.set_yticks(places, names)
        ax.margins(x=0.2)
        ax.set_xlabel("contribution to the log-odds")
        ax.set_title(
            f"{self._title()}: log-odds {explanation.log_odds[0]:.2f}, probability {explanation.probabilities[0]:.4f}",
            fontsize=10,
        )

    def _points(self, shown: np.ndarray, others: np.ndarray) -> None:
        explanation, ax = self.explanation, self.ax_
        places = np.arange(len(shown))[::-1]
        points = None
        for place, j in zip(places, shown, strict=True):
            values, data = explanation.values[:, j], explanation.data[:, j]
            known = ~np.isnan(data)
            ranks = _ranks(data[known])
            heights = place + spread_out(values, 0.36)
            ax.scatter(values[~known], heights[~known], s=9, color="#bbbbbb", linewidths=0, zorder=2)
            points = ax.scatter(
                values[known], heights[known], s=12, c=ranks, cmap="viridis", vmin=0, vmax=1, linewidths=0, zorder=3
            )
        ax.set_yticks(places, [explanation.feature_names[j] for j in shown])
        ax.set_ylim(-0.8, len(shown) - 0.2)
        ax.set_xlabel("contribution to the log-odds")
        more = f" ({len(others)} more features)" if len(others) else ""
        ax.set_title(self._title() + more, fontsize=10)
        if points is not None:
            bar = self.figure_.colorbar(points, ax=ax, ticks=[0, 1], label="value of the feature (grey: missing)")
            bar.ax.set_yticklabels(["low", "high"])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks between 0 and 1; equal values have equal ranks."""
    distinct, places = np.unique(values, return_inverse=True)
    return places / max(len(distinct) - 1, 1)
