"""Checks of labels and class probabilities."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from mixtura.checks.arguments import Rule, among, of_type, require


def as_many_labels(labels: np.ndarray | Tensor, n_rows: int) -> None:
    if labels.ndim > 0 and len(labels) != n_rows:
        raise ValueError(
            f"Found input variables with inconsistent numbers of samples: [{n_rows}, {len(labels)}]; y must have one "
            f"label per sample of X."
        )


def distinct(labels: np.ndarray) -> np.ndarray:
    """The distinct labels, sorted."""
    try:
        return np.unique(labels)
    except TypeError as error:
        kinds = sorted({type(label).__name__ for label in labels})
        raise ValueError(
            f"y holds labels of types that cannot be sorted together: {', '.join(kinds)}. Convert all labels to text, "
            "or all to numbers."
        ) from error


def known_labels(labels: object, classes: np.ndarray, advice: str = "") -> np.ndarray:
    """The number of the class of every label, in the order of classes."""
    values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if values.ndim != 1:
        raise ValueError(f"y must hold one label per sample; got shape {values.shape}.")
    numbers = np.searchsorted(classes, values).clip(0, len(classes) - 1)
    strange = classes[numbers] != values
    if strange.any():
        raise strange_label(values[strange.argmax()], classes, advice)
    return numbers


def strange_label(label: object, classes: np.ndarray, advice: str = "") -> ValueError:
    """A label that is not a class; `advice` is what to do about it."""
    return ValueError(
        f"y holds {_plain(label)!r}, which is not a class of the model; the classes are {classes.tolist()}.{advice}"
    )


def groups(values: np.ndarray, missing: np.ndarray, n_rows: int) -> None:
    """Check that there is one group for every sample, and more than one in all."""
    if values.shape != (n_rows,):
        raise ValueError(f"groups must hold one group for each of the {n_rows} samples; got shape {values.shape}.")
    if missing.any():
        raise ValueError(
            f"groups contains NaN or another missing group for {int(missing.sum())} samples. A sample that belongs to "
            "no other needs a group of its own."
        )
    if len(set(values.tolist())) < 2:
        raise ValueError("groups holds the same group for all samples, so that none can be held out; leave it out.")


def finite_labels(values: np.ndarray) -> None:
    """Check that numeric labels are not infinite."""
    if values.dtype.kind == "f" and np.isinf(values).any():
        raise ValueError("Input y contains infinity; labels must be finite numbers or text.")


def soft_labels(values: np.ndarray) -> np.ndarray:
    """Check that rows of soft labels are non-negative and sum to one, or are all NaN."""
    try:
        shares = np.array(values, dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"y with several columns means soft labels, which must be numbers; {error}. Pass one label per sample "
            "instead."
        ) from error
    missing = np.isnan(shares)
    partly = missing.any(1) & ~missing.all(1)
    if partly.any():
        raise ValueError(
            f"Row {int(partly.argmax())} of the soft labels y is partly NaN; either all of its values must be NaN "
            "(unlabeled) or none."
        )
    sums = np.where(missing.all(1), 1.0, shares.sum(1))
    bad = (shares < 0).any(1) | ~np.isclose(sums, 1, atol=1e-6)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"y with several columns means soft labels: rows must be non-negative and sum to 1; row {row} is "
            f"{shares[row].tolist()}, which sums to {sums[row]:g}. Divide each row by its sum, or pass one label per "
            "sample."
        )
    return shares


def shared_classes(shares: np.ndarray, classes: np.ndarray) -> None:
    """Check that every column of soft labels has a positive entry."""
    empty = ~(np.nan_to_num(shares) > 0).any(0)
    if empty.any():
        column = int(empty.argmax())
        raise ValueError(
            f"Class {_plain(classes[column])!r} (column {column} of the soft labels y) has probability 0 for every "
            "sample. Remove the column, or add samples of that class."
        )


def given_labels(y: object, name: str) -> None:
    """Check that there are labels."""
    if y is None:
        raise ValueError(f"{name} requires y to be passed, but the target y is None.")


def enough_classes(classes: Sequence[Hashable] | np.ndarray, n_unlabeled: int, name: str, n_absent: int = 0) -> None:
    """Check that there are two classes among the samples of positive weight; `n_absent` others have weight zero."""
    if len(classes) == 0:
        raise ValueError(
            f"{name} needs labeled samples, but all {n_unlabeled} samples are unlabeled. Label some samples of every "
            f"class, or use GaussianMixture, which needs no labels."
        )
    if len(classes) == 1:
        holder, fix = "y holds", "Add samples of another class"
        if n_absent:
            holder = f"the samples of positive weight ({n_absent} others have weight 0) hold"
            fix = "Give samples of another class a positive weight"
        raise ValueError(
            f"{name} needs samples of at least two classes, but {holder} only one class: {_plain(classes[0])!r}. "
            f"{fix}, or use GaussianMixture to estimate the density of a single class."
        )


def weighted_classes(classes: Sequence[Hashable], class_weights: Tensor) -> None:
    """Check that every class has a sample of positive weight."""
    empty = (class_weights <= 0).nonzero()[:, 0].tolist()
    if empty:
        raise ValueError(
            f"Class {classes[empty[0]]!r} has no sample of positive weight (sample_weight times class_weight). Give it "
            "a positive weight, or remove its samples."
        )


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic | Tensor) else value


def _has_numbers(value: object) -> bool:
    """Whether this is an array of numbers, or a dict of them."""
    try:
        np.array(list(value.values()) if isinstance(value, Mapping) else value, dtype=float)
    except (TypeError, ValueError):
        return False
    return value is not None


CLASS_PRIOR = among(("empirical", "uniform"), " or an array with one probability per class") | Rule("", _has_numbers)
CLASS_WEIGHT = (
    among(("balanced",), ", a dict of class to number or None")
    | of_type(type(None))
    | Rule("", lambda value: isinstance(value, dict) and all(isinstance(weight, Real) for weight in value.values()))
)


def class_prior(value: object, class_weights: Tensor, classes: np.ndarray | None = None) -> Tensor | None:
    """Check fixed class probabilities (C,), which a dict names by label; None if they are learned."""
    require("class_prior", value, CLASS_PRIOR)
    n_classes = len(class_weights)
    if isinstance(value, Mapping) and classes is not None:
        labels = classes.tolist()
        if set(value) != set(labels):
            raise ValueError(
                f"A class prior must have one probability for each of the classes {labels}; got {list(value)}."
            )
        value = [value[label] for label in labels]
    if isinstance(value, str):
        return None if value == "empirical" else torch.full_like(class_weights, 1 / n_classes)
    prior = torch.as_tensor(np.array(value, dtype=float), device=class_weights.device)
    if prior.shape != (n_classes,):
        raise ValueError(
            f"class_prior must have one probability for each of the {n_classes} classes, in the order of classes_; "
            f"got shape {tuple(prior.shape)}."
        )
    if not bool((prior > 0).all()) or abs(float(prior.sum()) - 1) > 1e-6:
        raise ValueError(
            f"class_prior must be positive and sum to 1; got {prior.tolist()}, summing to {float(prior.sum()):g}."
        )
    return prior / prior.sum()
