"""What classifiers without a density share: naming classes, scoring, saving, and saying what they lack."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mixtura import checks
from mixtura.estimators.model_files import Savable


class ConditionalClassifier(ClassifierMixin, Savable, BaseEstimator):
    """A model of classes given rows; `classes_` is fitted."""

    classes_: np.ndarray
    n_features_in_: int

    def _named(self, numbers: Any) -> Any:
        """Class numbers (n,), an array or a tensor, as classes; a tensor stays one where classes are numbers."""
        if not isinstance(numbers, Tensor):
            return self.classes_[numbers]
        if self.classes_.dtype.kind not in "iufb":
            return self.classes_[numbers.cpu().numpy()]
        return torch.from_numpy(self.classes_).to(numbers.device)[numbers]

    def predict(self, X: Any) -> Any:
        """The most probable class of each row."""
        raise NotImplementedError

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy."""
        known = [v.detach().cpu().numpy() if isinstance(v, Tensor) else v for v in (y, self.predict(X))]
        return float(accuracy_score(*known, sample_weight=sample_weight))

    def _column_name(self, column: int) -> str:
        names = getattr(self, "feature_names_in_", None)
        return f"column {column}" if names is None else f"column {column} ({names[column]!r})"

    def __getattr__(self, name: str) -> Any:
        if name in checks.NEEDS_DENSITY:
            raise AttributeError(checks.no_density(type(self).__name__, name))
        if hasattr(type(self), name):  # a property that failed: say why
            check_is_fitted(self)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
