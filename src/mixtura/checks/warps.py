"""Checks of feature transforms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def warp_parameters(locations: Any, scales: Any) -> tuple[Tensor, Tensor]:
    """Check the location and scale of every feature; returned in double precision."""
    locations, scales = (torch.as_tensor(part, dtype=torch.float64) for part in (locations, scales))
    if locations.ndim != 1 or locations.shape != scales.shape:
        raise ValueError(
            f"locations and scales must have one number per feature each; got shapes {tuple(locations.shape)} and "
            f"{tuple(scales.shape)}."
        )
    if not bool(locations.isfinite().all()):
        raise ValueError(f"locations must be finite; got {locations.tolist()}.")
    if not bool((scales > 0).all()):
        raise ValueError(
            f"scales must be above 0 (infinite for features that are not transformed); got {scales.tolist()}."
        )
    return locations, scales


def warped_features(n_warped: int, n_features: int) -> None:
    """Check that a transform has the features of X."""
    if n_warped != n_features:
        raise ValueError(f"warp has {n_warped} features, but X has {n_features}. Pass one location and scale for each.")
