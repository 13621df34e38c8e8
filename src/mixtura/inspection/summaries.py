"""Summaries of models, and tables: text in a terminal, HTML in a notebook, pandas data frames."""

from __future__ import annotations

import html
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mixtura import checks
from mixtura.model.mixture import Mixture
from mixtura.model.transforms import Transform
from mixtura.objectives import posteriors
from mixtura.selection.search import SearchTable

if TYPE_CHECKING:
    import pandas as pd


def data_frame(columns: Mapping[str, object], index: np.ndarray | pd.Index | None = None) -> pd.DataFrame:
    """A pandas data frame of named columns.

    Raises
    ------
    ModuleNotFoundError
        pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ModuleNotFoundError(
            "Data frames need pandas; install it with: pip install pandas", name="pandas"
        ) from error
    return pd.DataFrame(dict(columns), index=index)


@dataclass(frozen=True)
class Table:
    """Named columns of equal length.

    Parameters
    ----------
    columns : dict of str to list
        The values of each column, from top to bottom. Numbers are rounded only where they are shown.
    shown : sequence of str, optional
        The columns that text and HTML show; None shows all.
    """

    columns: Mapping[str, Sequence[object]]
    shown: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    @property
    def visible(self) -> dict[str, list[str]]:
        """The text of each visible entry."""
        names = self.columns if self.shown is None else self.shown
        return {name: column_text(self.columns[name]) for name in names}

    def __str__(self) -> str:
        columns = [[str(name), *cells] for name, cells in self.visible.items()]
        widths = [max(len(cell) for cell in column) for column in columns]
        lines = zip(*columns, strict=True)
        return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines)

    def _repr_html_(self) -> str:
        columns = self.visible
        head = "".join(f"<th>{html.escape(str(name))}</th>" for name in columns)
        rows = zip(*columns.values(), strict=True)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def to_frame(self) -> pd.DataFrame:
        """All columns as a pandas data frame."""
        return data_frame(self.columns)


@dataclass(frozen=True)
class Entry:
    """An entry of a table that is shown as one text, and has a column for each of its parts in a data frame."""

    text: str
    parts: Mapping[str, object]

    def __str__(self) -> str:
        return self.text


def spread(value: float, scale: float) -> Entry:
    """A centre and a spread, shown as "5.01 ± 0.35"."""
    parts = {"mean": value, "scale": scale}
    if not (math.isfinite(value) and 1e-4 < abs(scale) < 1e6):
        return Entry(f"{value:.3g} ± {scale:.2g}", parts)
    decimals = 1 - math.floor(math.log10(abs(scale)))  # two digits of the spread
    value, scale = (round(number, decimals) + 0.0 for number in (value, scale))
    return Entry(f"{value:.{max(decimals, 0)}f} ± {scale:.{max(decimals, 0)}f}", parts)


def category_share(category: Hashable, share: float) -> Entry:
    """The most frequent category, shown as "male 72 %"."""
    return Entry(f"{category} {100 * share:.0f} %", {"category": category, "share": share})


@dataclass(frozen=True)
class ModelSummary:
    """Summary of a fitted model, shown as text in a terminal and as HTML in a notebook.

    Attributes
    ----------
    title : str
        Name of the estimator.
    facts : dict of str to object
        Properties of the model, such as its log-likelihood and number of parameters.
    components : Table
        One line per component (or per class, where there are no components): class, number, weight, typical values.
    note : str
        Note on units and on features that are not shown.
    """

    title: str
    facts: Mapping[str, object]
    components: Table
    note: str = ""

    def __str__(self) -> str:
        width = max((len(name) for name in self.facts), default=0)
        lines = [self.title, "-" * len(self.title)]
        lines += [f"{name.ljust(width)}  {text_of(value)}" for name, value in self.facts.items()]
        lines += ["", str(self.components)]
        return "\n".join([*lines, *(["", self.note] if self.note else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        facts = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(text_of(value))}</td></tr>"
            for name, value in self.facts.items()
        )
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        title = f"<h4>{html.escape(self.title)}</h4>"
        return f"{title}<table>{facts}</table>{self.components._repr_html_()}{note}"

    def to_frame(self) -> pd.DataFrame:
        """The components as a pandas data frame, with the means and the scales of all features as numbers."""
        columns: dict[str, object] = {}
        for name, values in self.components.columns.items():
            entries = [value for value in values if isinstance(value, Entry)]
            if entries:
                columns |= {f"{name} {part}": [entry.parts[part] for entry in entries] for part in entries[0].parts}
            else:
                columns[name] = values
        return data_frame(columns)


def column_text(values: Sequence[object]) -> list[str]:
    """The cells of a column; numbers of one column have the same number of decimals."""
    numbers = [value for value in values if isinstance(value, float | np.floating)]
    if not values or len(numbers) < len(values):
        return [text_of(value) for value in values]
    largest = max((abs(float(value)) for value in numbers if np.isfinite(value)), default=0.0)
    if largest >= 1e6 or 0 < largest < 1e-3:
        return [f"{value:.3g}" for value in numbers]
    return [f"{value:.{1 if largest >= 10 else 3}f}" for value in numbers]


def text_of(value: object) -> str:
    """A value as text, rounded to four digits."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        size = abs(float(value))
        if size >= 1e6 or 0 < size < 1e-4:
            return f"{value:.3g}"
        return f"{value:.{max(0, 2 if size >= 10 else 3 if size >= 1 else 4)}f}" if np.isfinite(size) else str(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{text_of(key)}: {text_of(item)}" for key, item in value.items())
    if isinstance(value, list | tuple | np.ndarray):
        return ", ".join(text_of(item) for item in value)
    return str(value)


# Number of features in a printed summary, limited by the line width.
SHOWN_FEATURES = 6


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
    classes: Sequence[Hashable] | np.ndarray | None,
    weight: float | None,
    feature_of: np.ndarray,
    categories: Mapping[int, Sequence[Hashable]],
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
    columns: dict[str, list[object]] = {}
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
            columns[column] = [
                category_share(categories[j][int(row.argmax())], float(row.max())) for row in frequencies
            ]
        else:
            pairs = zip(centres[0][:, own[0]].tolist(), centres[1][:, own[0]].tolist(), strict=True)
            columns[column] = [spread(*pair) for pair in pairs]
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


def model_facts(model: object, mixture: Mixture, n_free: int) -> dict[str, object]:
    """Facts about the size of a model: features, classes, components, parameters, training samples."""
    known = vars(model)
    facts: dict[str, object] = {"features": known["n_features_in_"], "components": mixture.n_components}
    if "classes_" in known:
        classes = known["classes_"].tolist()
        prior = dict(zip(classes, known["class_prior_"].tolist(), strict=True))
        counts = dict(zip(classes, mixture.class_sizes, strict=True))
        facts = {"features": known["n_features_in_"], "class prior": prior, "components per class": counts}
    facts["parameters"] = n_free
    if "training_weight_" in known:
        weight = known["training_weight_"]
        facts["training samples"] = weight if weight != round(weight) else round(weight)
    return facts


def likelihood_facts(value: float, entropy: float, weight: float, n_free: int) -> dict[str, object]:
    """Log-likelihood of samples and criteria that add the size of the model."""
    bic = -2 * value + n_free * math.log(weight)
    return {"log-likelihood": value, "BIC": bic, "ICL": bic + 2 * entropy}


def fit_facts(model: object) -> dict[str, object]:
    """Facts about the fit and its automatic choices."""
    known = vars(model)
    facts: dict[str, object] = {}
    if "n_iter_" in known:
        facts["iterations"] = f"{known['n_iter_']} ({'converged' if known.get('converged_') else 'not converged'})"
    if known.get("history_"):
        facts["objective per sample"] = known["history_"][-1].objective
    if known.get("further_members_"):
        facts["members"] = 1 + len(known["further_members_"])
    if known.get("temperature_", 1.0) != 1.0:
        facts["temperature"] = known["temperature_"]
    if known.get("outlier_source_"):
        facts["outliers judged by"] = f"{known['outlier_source_']} samples"
    if known.get("search_"):
        facts |= chosen_facts(known["search_"])
    return facts


def chosen_facts(search: SearchTable) -> dict[str, object]:
    """Facts about a search: candidates, criterion and choice."""
    criterion, n_compared = search.criterion.replace("_", " "), len(search.candidates)
    chosen = {f"chosen {name.replace('_', ' ')}": value for name, value in search.best.what.items()}
    expected = {} if search.estimate is None else {"expected on new samples": str(search.estimate)}
    return {"chosen by": f"{criterion} {search.best.score:.4f} ({n_compared} compared)", **chosen, **expected}


def label_facts(log_proba: np.ndarray, y: object, classes: np.ndarray, sample_weight: object) -> dict[str, float]:
    """Log-loss and error rate of samples with labels, by their log probabilities of the classes (n, C)."""
    numbers = checks.known_labels(y, classes)
    checks.as_many_labels(numbers, len(log_proba))
    weights = checks.sample_weight(sample_weight, len(numbers))
    weights = np.ones(len(numbers)) if weights is None else weights.cpu().numpy()
    own = log_proba[np.arange(len(numbers)), numbers]
    return {
        "log-loss": float(-(weights @ own) / weights.sum()),
        "error rate": float(weights @ (log_proba.argmax(1) != numbers) / weights.sum()),
    }
