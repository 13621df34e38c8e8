"""Checks of warps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def curves(places: Any, widths: Any) -> tuple[Tensor, Tensor]:
    """A place and a width for every feature, in double precision."""
    places, widths = (torch.as_tensor(part, dtype=torch.float64) for part in (places, widths))
    if places.ndim != 1 or places.shape != widths.shape:
        raise ValueError(
            f"places and widths must be one number per feature each; got shapes {tuple(places.shape)} and "
            f"{tuple(widths.shape)}."
        )
    if not bool(places.isfinite().all()):
        raise ValueError(f"places must be finite; got {places.tolist()}.")
    if not bool((widths > 0).all()):
        raise ValueError(f"widths must be above 0, infinite for features that stay as they are; got {widths.tolist()}.")
    return places, widths


def warped_features(n_warped: int, n_features: int) -> None:
    """A warp must be one of the features that there are."""
    if n_warped != n_features:
        raise ValueError(f"warp has {n_warped} features, but X has {n_features}; pass one place and width for each.")
