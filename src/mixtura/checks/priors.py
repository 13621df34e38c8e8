"""Checks of priors."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import Tensor


def concentration(value: object) -> float:
    """Check the concentration of a Dirichlet prior on weights."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 1 <= float(value) < float("inf"):
        raise ValueError(
            f"concentration must be a number of at least 1; got {value!r}. Below 1 the prior density is infinite at a "
            "weight of zero and has no maximum; 1 is a flat prior."
        )
    return float(value)


def scale_matrix(name: str, value: Any) -> Tensor:
    """Check variances (D,) or a positive definite matrix (D, D); returned in double precision."""
    values = _numbers(name, value)
    if values.ndim not in (1, 2) or not values.numel() or (values.ndim == 2 and values.shape[0] != values.shape[1]):
        raise ValueError(
            f"{name} must be one variance per feature (D,) or a matrix (D, D); got shape {_shape(values)}."
        )
    variances = values if values.ndim == 1 else values.diagonal()
    if not bool((variances > 0).all()):
        named = name if values.ndim == 1 else f"the diagonal of {name}"
        raise ValueError(f"{named} must be above 0; the smallest is {float(variances.min()):g}.")
    if values.ndim == 1:
        return values
    scales = variances.sqrt()  # correlations have no units, so that features of any size are judged alike
    correlations = values / scales / scales.unsqueeze(-1)
    if not torch.allclose(correlations, correlations.T, rtol=0.0, atol=1e-6):
        raise ValueError(f"{name} must be a symmetric matrix; it differs from its transpose. Pass (A + A.T) / 2.")
    if int(torch.linalg.cholesky_ex(correlations)[1]):
        smallest = float(torch.linalg.eigvalsh(correlations)[0])
        raise ValueError(
            f"{name} must be a positive definite matrix; the smallest eigenvalue of its correlations is {smallest:g}. "
            "Pass variances (D,) only, or add to the diagonal."
        )
    return values


def _numbers(name: str, value: Any) -> Tensor:
    """Check that values are finite numbers; returned in double precision."""
    try:
        values = torch.as_tensor(value).detach().to(torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must hold numbers; it could not be converted: {error}.") from error
    if not bool(values.isfinite().all()):
        raise ValueError(f"{name} must be finite; got {values.flatten()[~values.flatten().isfinite()][0].item()}.")
    return values


def _shape(values: Tensor) -> tuple[int, ...]:
    return tuple(values.shape)


def prior_mean(value: Any, variances: Tensor, mean_strength: float) -> Tensor | None:
    """Check a prior mean (D,) for all components, or (K, D) one for each; None if the means have no prior."""
    if value is None:
        if mean_strength > 0:
            raise ValueError(
                f"mean_strength={mean_strength:g} needs mean, which is None. Pass mean, or use Shrinkage, which "
                "shrinks to the class means."
            )
        return None
    values = _numbers("mean", value)
    if values.ndim not in (1, 2) or values.shape[-1] != len(variances):
        raise ValueError(
            f"mean must have shape (D,) or (K, D) with D = {len(variances)}, the number of features of variances; got "
            f"shape {_shape(values)}."
        )
    return values


def target_is_matrix(target_strength: float, variances: str) -> None:
    """Check that the target of a prior is a matrix, which can be shrunk itself."""
    if variances not in ("covariance", "identity"):
        raise ValueError(
            f"target_strength={target_strength:g} needs variances='covariance' or 'identity', whose target is a "
            f"matrix; got {variances!r}. Leave target_strength=None."
        )


def wishart_count(count: float, alpha: float, n_features: int, eta: float) -> None:
    """Check that the mode of a Wishart prior exists."""
    if not count > 0:
        raise ValueError(
            f"alpha must be above {'(D + 1) / 2' if eta > 0 else 'D / 2'} = {(n_features + (eta > 0)) / 2:g} for "
            f"{n_features} features and eta={eta:g}; got {alpha:g}. Otherwise the prior has no mode to shrink to."
        )


def prior_fits(pseudo: Any, n_features: int, n_components: int) -> None:
    """Check that a prior has the numbers of features and components of the mixture."""
    sizes = pseudo.scatter.shape[-1], pseudo.mean.shape[-1]
    if sizes != (n_features, n_features):
        wrong = next(size for size in sizes if size != n_features)
        raise ValueError(f"The prior has {wrong} features, but X has {n_features}. Pass a prior with {n_features}.")
    if pseudo.mean.ndim == 2 and len(pseudo.mean) != n_components:
        raise ValueError(
            f"The prior has {len(pseudo.mean)} means, but the mixture has {n_components} components. Pass one mean "
            "(D,) for all, or use Shrinkage, which shrinks to the class means."
        )
