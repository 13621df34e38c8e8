"""Contributions of features to the log-odds of a class: Shapley values by exact marginalisation.

    v(S) = log-odds of the class given the features in S alone, the others integrated out
    phi_j = average over orders of v(features up to and including j) - v(features before j)           (shapley)

The same for words, without a density (word-contributions); and the importance of features by the log-loss with features
integrated out.

The values of a sample sum to its log-odds minus those of the class prior: within every order the differences
telescope. This holds for the average over all orders or a sample of them. A missing feature has the value zero, unless
the model takes into account that it is missing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mixtura.inspection.summaries import Table, data_frame
from mixtura.model.transforms import RowTransform
from mixtura.nonnegative.mixture import LogLinearMixture
from mixtura.values.sparse_rows import is_dense, row_slice

if TYPE_CHECKING:
    import pandas as pd

# Largest number of features for which all subsets are evaluated: 2^9 = 512 evaluations, as many as 32 orders of 16.
MOST_EXACT = 9
ORDERS = 32
# Masked samples per evaluation.
EVALUATED_ROWS = 65_536

# Rows (m, D) with NaN, original samples (m,), kept columns (m, D) -> (m,)
Game = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def log_odds(scores: np.ndarray, targets: np.ndarray, against: int | None) -> np.ndarray:
    """Log-odds of the target class of each sample against another class, or against all others together."""
    places = np.arange(len(scores))
    own = scores[places, targets]
    if against is not None:
        return own - scores[:, against]
    others = scores.copy()
    others[places, targets] = -np.inf
    return own - np.logaddexp.reduce(others, axis=1)


def shapley_values(
    rows: np.ndarray,
    feature_of: np.ndarray,
    game: Game,
    n_orders: int | None,
    random_state: np.random.RandomState,
    silent: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Shapley values (n, F) and the value of each sample without any feature, (n,).

    Parameters
    ----------
    rows : ndarray of shape (n, D)
        NaN means missing.
    feature_of : ndarray of shape (D,)
        The feature that each column belongs to: a categorical feature has several.
    game : callable
        v of rows whose other features are NaN.
    n_orders : int or None
        Number of sampled orders, used in pairs of an order and its reverse; None takes all subsets if there are few.
    random_state : RandomState
    silent : ndarray of shape (n, F)
        Missing features, whose values are zero.
    """
    size = silent.shape[1]

    def evaluate(masks: np.ndarray) -> np.ndarray:
        return _evaluate(rows, game, masks[:, feature_of])

    if n_orders is None and size <= MOST_EXACT:
        return _by_subsets(silent, evaluate)
    return _by_orders(silent, evaluate, ORDERS if n_orders is None else n_orders, random_state)


def _evaluate(rows: np.ndarray, game: Game, masks: np.ndarray) -> np.ndarray:
    """v of every sample with every mask (M, D) of kept columns: (n, M)."""
    values = np.empty((len(rows), len(masks)))
    if not len(masks):  # an order of a single feature has nothing between none and all
        return values
    step = max(1, EVALUATED_ROWS // len(masks))
    for first in range(0, len(rows), step):
        part = rows[first : first + step]
        samples = np.repeat(np.arange(first, first + len(part)), len(masks))
        kept = np.where(masks, part[:, None, :], np.nan).reshape(-1, rows.shape[1])
        counted = np.broadcast_to(masks, (len(part), *masks.shape)).reshape(-1, rows.shape[1])
        values[first : first + step] = game(kept, samples, counted).reshape(len(part), len(masks))
    return values


Evaluate = Callable[[np.ndarray], np.ndarray]  # masks of kept features (M, F) -> v (n, M)


def _by_subsets(missing: np.ndarray, evaluate: Evaluate) -> tuple[np.ndarray, np.ndarray]:
    size = missing.shape[1]
    masks = np.array(list(itertools.product((False, True), repeat=size)), bool).reshape(-1, size)
    values = evaluate(masks)  # (n, 2^F), the first of them without any feature
    codes = masks @ (1 << np.arange(size)[::-1])
    places = np.argsort(codes)
    shares = np.zeros(missing.shape)
    for j in range(size):
        without = np.flatnonzero(~masks[:, j])
        with_feature = places[codes[without] + (1 << (size - 1 - j))]
        counts = masks[without].sum(1)
        weights = 1 / (size * np.array([math.comb(size - 1, int(count)) for count in counts]))
        shares[:, j] = (values[:, with_feature] - values[:, without]) @ weights
    return _close(missing, shares, values[:, 0], values[:, -1])


def _by_orders(
    missing: np.ndarray, evaluate: Evaluate, n_orders: int, random_state: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    size, total = missing.shape[1], np.zeros(missing.shape)
    orders = [random_state.permutation(size) for _ in range(-(-n_orders // 2))]
    orders = [order for pair in orders for order in (pair, pair[::-1])][: max(n_orders, 1)]
    ends = evaluate(np.stack((np.zeros(size, bool), np.ones(size, bool))))
    for order in orders:
        masks = np.argsort(order) < np.arange(1, size)[:, None]  # (D - 1, D): the first 1, 2, ... features of the order
        inner = evaluate(masks)
        values = np.concatenate((ends[:, :1], inner, ends[:, 1:]), 1)
        total[:, order] += np.diff(values, axis=1)
    return _close(missing, total / len(orders), ends[:, 0], ends[:, 1])


def _close(
    missing: np.ndarray, shares: np.ndarray, base: np.ndarray, whole: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Set the values of missing features to zero; their rounding error is added to the largest value."""
    shares = np.where(missing, 0.0, shares)
    largest = np.abs(shares).argmax(1)
    shares[np.arange(len(shares)), largest] += (whole - base) - shares.sum(1)
    shares[missing.all(1)] = 0.0
    return shares, base


@dataclass(frozen=True)
class Explanation:
    """Contributions of the features of samples to the log-odds of a class.

    Attributes
    ----------
    values : ndarray of shape (n_samples, n_features)
        Shapley values in units of log-odds; zero for a missing feature unless it matters that it is missing.
        `base_values + values.sum(1)` are `log_odds`.
    base_values : ndarray of shape (n_samples,)
        Log-odds without any feature: those of the class prior.
    log_odds : ndarray of shape (n_samples,)
    probabilities : ndarray of shape (n_samples,)
        Of the explained class.
    data : ndarray of shape (n_samples, n_features)
        The samples; NaN means missing. A categorical feature has the number of its category in `categories`.
    feature_names : list of str
    classes : ndarray of shape (n_samples,)
        The class that each sample's values speak for.
    against : object or None
        The class that it is compared with; None means all others together.
    nearest_components : ndarray of shape (n_samples,)
        Number of the component of that class with the largest share in the sample.
    outlier_scores : ndarray of shape (n_samples,)
        How unusual each sample is, see `outlier_score`.
    missing_effects : ndarray of shape (n_samples, n_features)
        Standard deviation of the change of the log-odds if a missing value became known; NaN for observed values.
    """

    values: np.ndarray
    base_values: np.ndarray
    log_odds: np.ndarray
    probabilities: np.ndarray
    data: np.ndarray
    feature_names: list[str]
    classes: np.ndarray
    against: object
    nearest_components: np.ndarray
    outlier_scores: np.ndarray
    missing_effects: np.ndarray
    index: pd.Index | None = field(default=None, repr=False)  # of the frame that was explained
    categories: dict[int, list[Hashable]] = field(default_factory=dict)  # of categorical features, by their positions

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, samples: Any) -> Explanation:
        """Select samples, or one sample by position."""
        chosen = np.atleast_1d(np.arange(len(self))[samples])
        parts = dict(vars(self))
        for name, value in parts.items():
            if isinstance(value, np.ndarray):
                parts[name] = value[chosen]
        if self.index is not None:
            parts["index"] = self.index[chosen]
        return Explanation(**parts)

    def text_of_value(self, sample: int, feature: int) -> str:
        """A value as text: a rounded number, or the name of a category."""
        value = float(self.data[sample, feature])
        if np.isnan(value):
            return "missing"
        return str(self.categories[feature][int(value)]) if feature in self.categories else f"{value:.4g}"

    def __str__(self) -> str:
        if len(self) != 1:
            return self._ranking()
        against = "all other classes" if self.against is None else f"class {self.against}"
        order = np.argsort(-np.abs(self.values[0]), kind="stable")
        width = max(len(name) for name in self.feature_names)
        lines = [
            f"class {self.classes[0]} against {against}: log-odds {self.log_odds[0]:.3f}, probability "
            f"{self.probabilities[0]:.4f}",
            f"nearest component {self.nearest_components[0]}, outlier score {self.outlier_scores[0]:.2f}",
            f"{'class prior'.ljust(width)}  {'':>10}  {self.base_values[0]:+9.3f}",
        ]
        for j in order:
            value, note = self.text_of_value(0, int(j)), ""
            if np.isnan(self.data[0, j]):
                own, towards = self.values[0, j], self.classes[0] if self.values[0, j] > 0 else self.against
                told = f"is missing: {abs(own):+.1f} towards {'other classes' if towards is None else towards}"
                note = f"  ({told if own else 'missing'}; knowing it would change the log-odds by about "
                note += f"{self.missing_effects[0, j]:.2f})"
            lines.append(f"{self.feature_names[j].ljust(width)}  {value:>10}  {self.values[0, j]:+9.3f}{note}")
        return "\n".join(lines)

    __repr__ = __str__

    def _ranking(self) -> str:
        means = self.mean_sizes
        order = np.argsort(-means, kind="stable")[:10]
        width = max((len(self.feature_names[j]) for j in order), default=0)
        lines = [f"{len(self)} samples; mean size of the contributions in log-odds:"]
        lines += [f"{self.feature_names[j].ljust(width)}  {means[j]:9.3f}" for j in order]
        more = len(self.feature_names) - len(order)
        return "\n".join([*lines, *([f"and {more} more features"] if more else [])])

    @property
    def mean_sizes(self) -> np.ndarray:
        """Mean absolute value of the contributions of each feature, (n_features,)."""
        return np.abs(self.values).mean(0) if len(self) else np.zeros(len(self.feature_names))

    def to_frame(self) -> pd.DataFrame:
        """Convert to a pandas data frame with one line per sample and the index of the explained frame."""
        columns: dict[str, object] = {"class": self.classes, "log-odds": self.log_odds, "prior": self.base_values}
        columns |= {name: self.values[:, j] for j, name in enumerate(self.feature_names)}
        columns |= {"nearest component": self.nearest_components, "outlier score": self.outlier_scores}
        return data_frame(columns, self.index)

    def to_shap(self) -> Any:
        """Convert to a `shap.Explanation`, for the plots of that package."""
        try:
            shap = import_module("shap")
        except ImportError as error:
            raise ModuleNotFoundError("to_shap needs the package shap: pip install shap", name="shap") from error
        return shap.Explanation(
            values=self.values, base_values=self.base_values, data=self.data, feature_names=self.feature_names
        )

    def plot(self, ax: Any = None, max_features: int = 12) -> Any:
        """Draw bars for one sample, or a beeswarm plot for several.

        Parameters
        ----------
        ax : matplotlib Axes, optional
        max_features : int, default=12
            Number of features to draw, by size of their contributions; the others are summed.

        Returns
        -------
        ExplanationDisplay
        """
        from mixtura.plotting.explanations import ExplanationDisplay

        return ExplanationDisplay(self, max_features).plot(ax)


Loss = Callable[[np.ndarray], float]  # kept features (D,) of bool -> log-loss


def marginal_importances(loss: Loss, n_features: int) -> np.ndarray:
    """Increase of the log-loss when a single feature is integrated out, (D,)."""
    whole = loss(np.ones(n_features, bool))
    return np.array([loss(np.arange(n_features) != j) - whole for j in range(n_features)])


def forward_selection(loss: Loss, n_features: int, n_selected: int) -> tuple[list[int], list[float]]:
    """Select features one by one, each with the largest decrease of the log-loss; return them and the log-losses.

    The features that are not selected yet are integrated out.
    """
    chosen: list[int] = []
    losses: list[float] = []
    while len(chosen) < n_selected:
        trials = {j: loss(np.isin(np.arange(n_features), [*chosen, j])) for j in range(n_features) if j not in chosen}
        best = min(trials, key=lambda j: trials[j])
        chosen.append(best)
        losses.append(trials[best])
    return chosen, losses


def _contributions(
    mixture: LogLinearMixture, transform: RowTransform | None, raw: Tensor, score: Tensor
) -> tuple[Tensor, Tensor, Tensor, float, int]:
    """Columns of a row (1, D) that are not zero, their values and contributions, the log-odds, and the class.

    `score` holds the log posteriors (C,) of the row.
    """
    row = raw.double() if transform is None else transform.forward(raw)
    dense, plain = (part if is_dense(part) else part.to_dense() for part in (row, raw.double()))
    used = plain[0].nonzero()[:, 0]
    log_joint = mixture.log_joint(row)[:, 0]
    theta = mixture.coefficients[:, used][mixture.basis_of]  # (K, m)
    by_class = torch.stack(
        [log_joint[mixture.class_of == c].softmax(0) @ theta[mixture.class_of == c] for c in range(len(score))]
    )  # (C, m)
    c = int(score.argmax())
    others = score.clone()
    others[c] = -torch.inf
    difference = by_class[c] - others.softmax(0) @ by_class
    parts = difference * dense[0, used]
    if not bool(dense.any()):
        parts = torch.zeros_like(parts)
    return used, plain[0, used], parts, float(score[c] - others.logsumexp(0)), c


def word_contributions(
    mixture: LogLinearMixture,
    transform: RowTransform | None,
    temperature: float,
    features: Tensor,
    scores: Tensor,
    classes: np.ndarray,
    names: np.ndarray,
) -> Table:
    """One line for each row and word, the largest contribution first; with a constant they sum to the log-odds."""
    columns: dict[str, list[object]] = {name: [] for name in ("sample", "class", "feature", "value", "contribution")}
    for number, score in enumerate(scores):
        row = row_slice(features, slice(number, number + 1))
        used, values, parts, log_odds, c = _contributions(mixture, transform, row, score)
        parts = parts / temperature
        order = parts.abs().argsort(descending=True, stable=True)
        columns["sample"] += [number] * (len(used) + 1)
        columns["class"] += [classes[c]] * (len(used) + 1)
        columns["feature"] += [*names[used[order].numpy()].tolist(), "(constant)"]
        columns["value"] += [*values[order].tolist(), math.nan]
        columns["contribution"] += [*parts[order].tolist(), log_odds - float(parts.sum())]
    return Table(columns)
