"""Initial parameters given by the user of GaussianMixture: weights_init, means_init, precisions_init."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_array
from torch import Tensor

from mixtura.covariances import COVARIANCES, TiedCovariance
from mixtura.covariances.diagonal import DiagonalCovariance
from mixtura.covariances.full import FullCovariance
from mixtura.model.mixture import Mixture
from mixtura.numerics import linalg
from mixtura.roles import Covariance

FLOATS: Any = [np.float64, np.float32]  # as in scikit-learn, other types are converted to the first


def given_start(estimator: Any, n_features: int, device: torch.device) -> Mixture:
    """The initial mixture if all three arguments are given."""
    weights = _weights(estimator.weights_init, estimator.n_components)
    means = _means(estimator.means_init, estimator.n_components, n_features)
    covariance = _covariance(estimator, n_features)
    class_of = torch.zeros(estimator.n_components, dtype=torch.int64)
    return Mixture(weights.log(), means, covariance, class_of).to(device)


def with_given_parts(estimator: Any, start: Mixture) -> Mixture:
    """An initial mixture with the parts given by the user."""
    device, size = start.means.device, start.n_features
    if estimator.weights_init is not None:
        start = replace(start, log_weights=_weights(estimator.weights_init, estimator.n_components).log().to(device))
    if estimator.means_init is not None:
        start = replace(start, means=_means(estimator.means_init, estimator.n_components, size).to(device))
    if estimator.precisions_init is not None:
        start = replace(start, covariance=_covariance(estimator, size))
    return start


def _check_shape(values: np.ndarray, shape: tuple[int, ...], name: str) -> None:
    if values.shape != shape:
        raise ValueError(f"The parameter '{name}' should have the shape of {shape}, but got {values.shape}")


def _weights(values: Any, n_components: int) -> Tensor:
    weights = check_array(values, dtype=FLOATS, ensure_2d=False)
    _check_shape(weights, (n_components,), "weights")
    if (weights < 0).any() or (weights > 1).any():
        raise ValueError(
            "The parameter 'weights' should be in the range [0, 1], but got max value "
            f"{weights.max():.5f}, min value {weights.min():.5f}"
        )
    if abs(1 - weights.sum()) > (1e-6 if weights.dtype == np.float32 else 1e-8):
        raise ValueError(f"The parameter 'weights' should be normalized, but got sum(weights) = {weights.sum():.5f}")
    return torch.from_numpy(weights.astype(float))


def _means(values: Any, n_components: int, n_features: int) -> Tensor:
    means = check_array(values, dtype=FLOATS, ensure_2d=False)
    _check_shape(means, (n_components, n_features), "means")
    return torch.from_numpy(means.astype(float))


def _covariance(estimator: Any, n_features: int) -> Covariance:
    kind, n_components = estimator.covariance_type, estimator.n_components
    shapes = {
        "full": (n_components, n_features, n_features),
        "tied": (n_features, n_features),
        "diag": (n_components, n_features),
        "spherical": (n_components,),
    }
    if kind not in shapes:
        raise ValueError(
            "precisions_init is for covariance_type "
            f"{', '.join(repr(name) for name in COVARIANCES if name in shapes)}; got covariance_type={kind!r}. Leave "
            "it out, or start from means_init alone."
        )
    values = check_array(estimator.precisions_init, dtype=FLOATS, ensure_2d=False, allow_nd=kind == "full")
    _check_shape(values, shapes[kind], f"{kind} precision")
    precisions = torch.from_numpy(values.astype(float))
    if kind in ("diag", "spherical"):
        if bool((precisions <= 0).any()):
            raise ValueError(f"'{kind} precision' should be positive")
        entries = precisions if kind == "diag" else precisions.unsqueeze(-1).expand(-1, n_features)
        return DiagonalCovariance((1 / entries).contiguous(), spherical=kind == "spherical")
    stack = precisions.reshape(-1, n_features, n_features)
    if not torch.allclose(stack, stack.mT) or bool((torch.linalg.eigvalsh(stack) <= 0).any()):
        raise ValueError(f"'{kind} precision' should be symmetric, positive-definite")
    factors, _ = linalg.safe_cholesky(stack)
    full = FullCovariance(torch.cholesky_inverse(factors))
    return full if kind == "full" else TiedCovariance(full, torch.zeros(n_components, dtype=torch.int64))
