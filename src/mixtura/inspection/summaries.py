"""Summaries of fitted mixtures: a table of the components in the units of the features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixtura.inspection.tables import CategoryShare, Spread, Table
from mixtura.model.mixture import Mixture
from mixtura.model.recoding import Transform
from mixtura.objectives import posteriors

# Number of features in a printed summary, limited by the line width.
SHOWN_FEATURES = 6


def feature_names(estimator: Any) -> list[str]:
    """The feature names of the fit, or x0, x1, ... as in scikit-learn."""
    known = vars(estimator).get("feature_names_in_")
    return [f"x{j}" for j in range(estimator.n_features_in_)] if known is None else [str(name) for name in known]


def typical_values(mixture: Mixture, warp: Transform | None) -> tuple[np.ndarray, np.ndarray]:
    """The centre and the scale of every component and feature, (K, D) each, in the units of the samples.

    Without a transform these are means and standard deviations. With a transform the centre is the median of the
    component, and the scale half the width of its central 68 % interval.
    """
    mixture = mixture.to("cpu")
    means, scales = mixture.means, mixture.covariance.variances().sqrt()
    if warp is None:
        return means.numpy(), scales.numpy()
    warp = warp.to("cpu")
    centre, low, high = (warp.backward(values) for values in (means, means - scales, means + scales))
    return centre.numpy(), ((high - low) / 2).numpy()


def separating_features(mixture: Mixture, n_features: int) -> list[int]:
    """The features whose component means differ most, in units of the spread within components; in column order."""
    mixture = mixture.to("cpu")
    weights = mixture.weights.unsqueeze(-1)
    mean = (weights * mixture.means).sum(0)
    between = (weights * (mixture.means - mean).square()).sum(0)
    within = (weights * mixture.covariance.variances()).sum(0)
    ratios = between / within.clamp_min(torch.finfo(within.dtype).tiny)
    return sorted(ratios.argsort(descending=True, stable=True)[:n_features].tolist())


def component_table(
    mixture: Mixture,
    warp: Transform | None,
    names: Sequence[str],
    classes: Sequence[Any] | None,
    weight: float | None,
    feature_of: np.ndarray,
    categories: Mapping[int, Sequence[Any]],
) -> tuple[Table, str]:
    """Make a table with one line per component, and a note about its units.

    Parameters
    ----------
    mixture : Mixture
    warp : Warp or None
    names : sequence of str
        Of the features.
    classes : sequence or None
        Labels of the classes; None for a density.
    weight : float or None
        Total weight of the training samples; None omits the sizes.
    feature_of : ndarray
        The feature that each column of the mixture belongs to.
    categories : mapping of int to sequence
        The categories of categorical features, by their positions.
    """
    weights, centres = mixture.to("cpu").weights.numpy(), typical_values(mixture, warp)
    columns: dict[str, list[Any]] = {}
    if classes is not None:
        columns["class"] = [classes[c] for c in mixture.class_of.tolist()]
    columns["component"] = list(range(mixture.n_components))
    columns["weight"] = weights.tolist()
    if weight is not None:
        columns["size"] = [round(float(value), 1) for value in weights * weight]
    shown = [*columns]
    for j, name in enumerate(names):
        # A feature may have the same name as a column of the table.
        column = name if name not in columns else f"{name} (feature)"
        own = np.flatnonzero(feature_of == j)
        if j in categories:
            frequencies = centres[0][:, own]
            columns[column] = [CategoryShare(categories[j][int(row.argmax())], float(row.max())) for row in frequencies]
        else:
            pairs = zip(centres[0][:, own[0]].tolist(), centres[1][:, own[0]].tolist(), strict=True)
            columns[column] = [Spread(*pair) for pair in pairs]
    features = [name for name in columns if name not in shown]
    if categories or len(features) <= SHOWN_FEATURES:
        chosen = list(range(min(len(features), 2 * SHOWN_FEATURES)))
    else:
        chosen = separating_features(mixture, SHOWN_FEATURES)
    words = "means ± standard deviations"
    if warp is not None:
        words = "medians ± half the width of the central 68 % (features are transformed, see warp_)"
    note = f"Features: {words}{'; the most frequent category and its share' if categories else ''}."
    if len(features) > len(chosen):
        note += f" {len(chosen)} of {len(features)} are shown, those that differ most; to_frame() has all."
    return Table(columns, [*shown, *(features[j] for j in chosen)]), note


def component_entropies(log_joint: Tensor, sizes: Sequence[int]) -> Tensor:
    """Entropy of the components given the sample and its class, for every class: (K, n) -> (n, C)."""
    shares = [posteriors(part)[1] for part in log_joint.split(list(sizes))]
    return torch.stack([torch.special.entr(part).sum(0) for part in shares], 1)
