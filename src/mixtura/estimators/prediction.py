"""What classifiers that are mixtures share: class scores, and everything that follows from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mixtura.engine.decisions import SURE, Decision, first
from mixtura.estimators.base import MixtureEstimator
from mixtura.model.warp import Warp
from mixtura.objectives import posteriors, shares


class ClassPredictions(ClassifierMixin, MixtureEstimator):
    """Predictions of a fitted classifier from `_scores`, the log p(x, c) of each class."""

    classes_: np.ndarray
    class_prior_: np.ndarray

    def predict_joint_log_proba(self, X: Any) -> Any:
        """log p(x, c) of each row and class, (n_rows, n_classes)."""
        return self._map(X, self._scores(), density=True)

    def predict_log_proba(self, X: Any) -> Any:
        """log p(c | x) of each row and class; a row with nothing observed gets the class prior."""
        scores = self._scores()
        return self._map(X, lambda log_joint: scores(log_joint).log_softmax(1))

    def predict_proba(self, X: Any) -> Any:
        """p(c | x) of each row and class."""
        return self._map(X, self._decision(shares, SURE))

    def decision_function(self, X: Any) -> Any:
        """Log posteriors (n_rows, n_classes); with two classes the log odds of the second, (n_rows,)."""
        scores = self._scores()

        def compute(log_joint: Tensor) -> Tensor:
            found = scores(log_joint)
            return found[:, 1] - found[:, 0] if found.shape[1] == 2 else found.log_softmax(1)

        return self._map(X, compute)

    def predict(self, X: Any) -> Any:
        """The most probable class of each row."""
        rows = self._read(X)
        numbers = self._computed(rows, self._decision(first, 0.0)).long()
        if rows.as_tensor and self.classes_.dtype.kind in "iufb":
            return torch.from_numpy(self.classes_).to(numbers.device)[numbers]
        return self.classes_[numbers.cpu().numpy()]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy."""
        predicted = self.predict(X)
        known = [v.detach().cpu().numpy() if isinstance(v, Tensor) else v for v in (y, predicted)]
        return float(accuracy_score(*known, sample_weight=sample_weight))

    def sample(self, n_samples: int = 1, class_label: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows and their labels, from all classes or from one."""
        check_is_fitted(self)
        mixture = self.mixture_
        if class_label is not None:
            found = np.flatnonzero(self.classes_ == class_label)
            if not len(found):
                raise ValueError(f"class_label must be one of {self.classes_.tolist()}; got {class_label!r}.")
            mixture = mixture.select(mixture.class_slices[int(found[0])])
            rows, _ = self._draw(mixture, n_samples)
            return rows.numpy(), np.repeat(self.classes_[found], len(rows))
        rows, components = self._draw(mixture, n_samples)
        return rows.numpy(), self.classes_[mixture.class_of.cpu()[components].numpy()]

    def explain(self, X: Any) -> Any:
        """How much each feature speaks for the predicted class, (n_rows, n_features):

        log p(c | x) - log p(c | x without the feature), by exact marginalisation; zero for a missing cell.
        """
        rows = self._read(X)
        values = (
            rows.values if isinstance(rows.values, Tensor) else torch.from_numpy(np.array(rows.values)).to(rows.dtype)
        )
        whole = torch.as_tensor(self.predict_log_proba(values))
        best = whole.argmax(1, keepdim=True)
        parts = []
        for feature in range(values.shape[1]):
            without = values.clone()
            without[:, feature] = torch.nan
            parts.append((whole - self.predict_log_proba(without)).gather(1, best))
        # Rounding may differ where rows are grouped otherwise: a cell that was missing takes nothing away.
        return rows.answer(torch.cat(parts, 1).masked_fill(values.isnan().to(whole.device), 0.0))

    def _stored(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        values, tensors = super()._stored()
        if self.warp_ is not None:
            tensors |= {"warp.places": self.warp_.places, "warp.widths": self.warp_.widths}
        return values, tensors

    def _restored(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super()._restored(values, tensors)
        self.warp_ = Warp(tensors["warp.places"], tensors["warp.widths"]) if "warp.places" in tensors else None
        self.class_prior_ = self.mixture_.log_class_prior.exp().numpy()

    def _scores(self) -> Callable[[Tensor], Tensor]:
        """The function from log joints (K, n) to log p(x, c), (n, C)."""
        check_is_fitted(self)
        slices = self.mixture_.class_slices
        return lambda log_joint: class_scores(log_joint, slices)

    def _decision(self, finish: Callable[[Tensor, Tensor | None], Tensor], lead: float) -> Decision:
        scores = self._scores()
        return Decision(lambda log_joint: scores(log_joint).T, finish, lead)


def class_scores(log_joint: Tensor, slices: list[slice]) -> Tensor:
    """log p(x, c), (K, n) -> (n, C)."""
    if all(part.stop - part.start == 1 for part in slices):
        return log_joint.T
    return torch.stack([posteriors(log_joint[part])[0] for part in slices]).T
