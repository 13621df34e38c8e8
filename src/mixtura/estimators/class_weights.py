"""Weights of classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor

from mixtura import checks
from mixtura.estimators.input import Labels


def weigh_classes(class_weight: Any, labels: Labels, weights: Tensor | None) -> Tensor | None:
    """Multiply sample weights by the weights of the classes."""
    if class_weight is None:
        return weights
    if labels.numbers is None:
        raise ValueError(
            "class_weight needs one label per sample; got soft labels. Set class_weight=None and multiply "
            "sample_weight by the weights of the classes."
        )
    numbers = labels.numbers.cpu()
    known = numbers >= 0
    table = _factors_of(class_weight, labels.classes, numbers[known], None if weights is None else weights.cpu()[known])
    factors = torch.where(known, table[numbers.clamp_min(0)], 1.0)
    products = factors if weights is None else weights * factors.to(weights.device)
    checks.total_weight(float(products.sum()))
    return products


def _factors_of(class_weight: Any, classes: np.ndarray, numbers: Tensor, weights: Tensor | None) -> Tensor:
    """The factor of each class; "balanced" gives all classes the same total weight."""
    if isinstance(class_weight, str) and class_weight == "balanced":
        totals = torch.zeros(len(classes), dtype=torch.float64)
        totals.index_add_(0, numbers, torch.ones(len(numbers), dtype=torch.float64) if weights is None else weights)
        return totals.sum() / (len(classes) * totals)
    return torch.from_numpy(compute_class_weight(class_weight, classes=classes, y=classes[numbers]).astype(float))
