"""Refits of a model to some of its samples with the settings that it selected, and answers for held-out samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from sklearn.base import is_classifier
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples, has_fit_parameter

from mixtura import checks
from mixtura.estimators.estimator import Estimator, Model, fit_as_selected, unfitted_copy
from mixtura.estimators.frames import as_array, is_table, offers
from mixtura.estimators.labels import read_labels, with_groups
from mixtura.selection.splits import check_splits, hold_outs


def fit_copy(model: Model, X: object, y: object, sample_weight: object = None, groups: object = None) -> Model:
    """Fit a copy of a model, with sample weights and groups only where they are given."""
    copy = unfitted_copy(model)
    given = {} if sample_weight is None else {"sample_weight": sample_weight}
    copy.fit(X, y, **given, **fit_groups(copy, groups))
    return copy


def refit(
    model: Model,
    X: object,
    y: object,
    train: np.ndarray,
    sample_weight: object = None,
    reselect: bool = False,
    groups: object = None,
) -> Model:
    """Fit a copy of a model to some of the samples, without the warnings that the model itself has given.

    The copy has the settings that the model selected; with `reselect` it selects its own.
    """
    copy = unfitted_copy(model)
    if "checkpoint" in model.get_params(deep=False):
        copy.set_params(checkpoint=None)  # of the fit to all samples
    labels = None if y is None else as_array(y)[train]
    given = {} if sample_weight is None else {"sample_weight": as_array(sample_weight)[train]}
    given |= fit_groups(copy, None if groups is None else as_array(groups)[train])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = _safe_indexing(indexable(X), train)
        if reselect:
            copy.fit(rows, labels, **given)
        else:
            fit_as_selected(copy, model, rows, labels, **given)
    if not reselect:
        adopt_estimates(copy, model)
    return copy


def adopt_estimates(copy: Estimator, model: Estimator) -> None:
    """Give a fitted copy what the selection of the model estimated, and the fit of the copy does not."""
    estimates, known = vars(copy), vars(model)
    if "label_noise_" in known:
        estimates["label_noise_"] = known["label_noise_"]
    if estimates.get("missingness_") is not None:
        estimates["missingness_"] = estimates["missingness_"].scaled(known["missingness_"].strength)


def held_out(
    model: Model,
    X: object,
    y: object,
    cv: object,
    answer: Callable[[Model, object], np.ndarray],
    *,
    sample_weight: object = None,
    reselect: bool = False,
    groups: object = None,
    seed: int = 0,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For every split, the positions of the held-out samples and answer(copy fitted without them, samples)."""
    X = indexable(X)
    for train, test in split_samples(model, X, y, cv, sample_weight, seed, groups):
        yield test, answer(refit(model, X, y, train, sample_weight, reselect, groups), _safe_indexing(X, test))


def split_samples(
    model: Estimator,
    X: object,
    y: object,
    cv: object,
    sample_weight: object = None,
    seed: int = 0,
    groups: object = None,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Positions of training and held-out samples, stratified by class.

    Unlabeled samples, samples of weight zero and the only sample of a class are in every training set.
    """
    n_samples, shares = _num_samples(X), None
    weights = checks.sample_weight(None if sample_weight is None else as_array(sample_weight), n_samples)
    weights = torch.ones(n_samples, dtype=torch.float64) if weights is None else weights.cpu()
    numbers = torch.zeros(n_samples, dtype=torch.int64)
    if is_classifier(model):
        labels = read_labels(y, n_samples, None, type(model).__name__, model.unlabeled, takes_unlabeled=True)
        numbers, shares = labels.numbers, labels.shares
    generator = torch.Generator().manual_seed(seed)
    splits = with_groups(check_splits(cv), groups, n_samples)
    parts = hold_outs(splits, numbers, generator, shares=shares, weights=weights, every=True)
    if not parts:
        unit = "sample" if groups is None else "group"
        raise ValueError(f"No {unit} can be held out: every class has a single {unit}. Pass more samples.")
    return [(part.kept.nonzero()[:, 0].numpy(), part.held_out.nonzero()[:, 0].numpy()) for part in parts]


def fit_groups(model: Estimator, groups: object) -> dict[str, object]:
    """The argument `groups` of `fit`, if the model has it and there is more than one group."""
    if groups is None or not has_fit_parameter(model, "groups") or len(set(np.asarray(groups).tolist())) < 2:
        return {}
    return {"groups": groups}


def indexable(X: object) -> object:
    """Samples from which some can be taken."""
    return X if isinstance(X, list) or offers(X, "shape") or is_table(X) else np.asarray(X)
