"""Outlier detection by models with a density, with a threshold from held-out samples."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples
from torch import Tensor

from mixtura import checks
from mixtura.estimators.input import ArrayLike, FrameLike, read_labels
from mixtura.selection.splits import checked_cv, hold_outs


def folds(model: Any, X: Any, y: Any, cv: Any, sample_weight: Any = None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Positions of training and held-out samples, stratified by class.

    Unlabeled samples, samples of weight zero and the only sample of a class are in every training set.
    """
    n_samples, shares = _num_samples(X), None
    weights = checks.sample_weight(sample_weight, n_samples)
    weights = torch.ones(n_samples, dtype=torch.float64) if weights is None else weights.cpu()
    numbers = torch.zeros(n_samples, dtype=torch.int64)
    if is_classifier(model):
        labels = read_labels(y, n_samples, None, type(model).__name__, model.unlabeled, takes_unlabeled=True)
        numbers, shares = labels.numbers, labels.shares
    generator = torch.Generator().manual_seed(0)
    parts = hold_outs(checked_cv(cv), numbers, generator, shares=shares, weights=weights, every=True)
    if not parts:
        raise ValueError("No sample can be held out: every class has a single sample. Pass more samples.")
    return [(part.kept.nonzero()[:, 0].numpy(), part.held_out.nonzero()[:, 0].numpy()) for part in parts]


def indexable(X: Any) -> Any:
    """Samples from which some can be taken."""
    return X if isinstance(X, ArrayLike | FrameLike | list) else np.asarray(X)


def fitted_clone(model: Any, X: Any, y: Any, train: np.ndarray, **known: Any) -> Any:
    """Fit a copy of a model to some of the samples."""
    labels = None if y is None else as_array(y)[train]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the model itself has warned
        copy: Any = clone(model)
        return copy.fit(_safe_indexing(X, train), labels, **known)


def as_array(values: Any) -> np.ndarray:
    """Labels, samples or predictions as an array; NumPy has no bfloat16."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
