"""Checks of priors."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import Tensor


def concentration(value: object) -> float:
    """Of a Dirichlet prior on weights."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 1 <= float(value) < float("inf"):
        raise ValueError(
            f"concentration must be a number of at least 1; got {value!r}. Below 1 the prior is infinite where a "
            "weight is zero, and there is no maximum to find; 1 leaves the weights alone."
        )
    return float(value)


def scale_matrix(name: str, value: Any) -> Tensor:
    """Variances (D,) or a positive definite matrix (D, D), in double precision."""
    found = _numbers(name, value)
    if found.ndim not in (1, 2) or not found.numel() or (found.ndim == 2 and found.shape[0] != found.shape[1]):
        raise ValueError(f"{name} must be one variance per feature (D,) or a matrix (D, D); got shape {_shape(found)}.")
    if found.ndim == 1:
        if not bool((found > 0).all()):
            raise ValueError(f"{name} must be above 0; the smallest is {float(found.min()):g}.")
        return found
    if not torch.allclose(found, found.T, rtol=1e-6, atol=0.0):
        raise ValueError(f"{name} must be a symmetric matrix; it differs from its transpose. Pass (A + A.T) / 2.")
    smallest = float(torch.linalg.eigvalsh(found)[0])
    if not smallest > 0:
        raise ValueError(
            f"{name} must be a positive definite matrix; its smallest eigenvalue is {smallest:g}. Pass the variances "
            "alone, (D,), or add to the diagonal."
        )
    return found


def _numbers(name: str, value: Any) -> Tensor:
    """Finite numbers, in double precision."""
    try:
        found = torch.as_tensor(value).detach().to(torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must hold numbers; it could not be read as such: {error}.") from error
    if not bool(found.isfinite().all()):
        raise ValueError(f"{name} must be finite; got {found.flatten()[~found.flatten().isfinite()][0].item()}.")
    return found


def _shape(values: Tensor) -> tuple[int, ...]:
    return tuple(values.shape)


def prior_mean(value: Any, variances: Tensor, mean_strength: float) -> Tensor | None:
    """A place (D,) for all means, or one for each, (K, D); None where means are free."""
    if value is None:
        if mean_strength > 0:
            raise ValueError(
                f"mean_strength={mean_strength:g} shrinks the means, but mean is not given; pass mean, or use "
                "Shrinkage, which takes the means of the classes."
            )
        return None
    found = _numbers("mean", value)
    if found.ndim not in (1, 2) or found.shape[-1] != len(variances):
        raise ValueError(
            f"mean must have one number for each of the {len(variances)} features of variances, (D,) or (K, D); got "
            f"shape {_shape(found)}."
        )
    return found


def wishart_count(count: float, alpha: float, n_features: int, eta: float) -> None:
    """A Wishart prior must have covariances that it prefers."""
    if not count > 0:
        raise ValueError(
            f"alpha must be above {'(D + 1) / 2' if eta > 0 else 'D / 2'} = {(n_features + (eta > 0)) / 2:g} for "
            f"{n_features} features and eta={eta:g}; got {alpha:g}. Below that the prior has no covariance to "
            "shrink to."
        )


def prior_fits(pseudo: Any, n_features: int, n_components: int) -> None:
    """The parts of a prior must have the sizes of the mixture."""
    sizes = pseudo.scatter.shape[-1], pseudo.mean.shape[-1]
    if sizes != (n_features, n_features):
        wrong = next(size for size in sizes if size != n_features)
        raise ValueError(f"The prior is for {wrong} features, but X has {n_features}; make one of that size.")
    if pseudo.mean.ndim == 2 and len(pseudo.mean) != n_components:
        raise ValueError(
            f"The prior has {len(pseudo.mean)} means for {n_components} components; give one mean (D,) for all, or use "
            "Shrinkage, which takes the means of the classes."
        )
