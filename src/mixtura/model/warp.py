"""Transforms of skewed or heavy-tailed features towards normality: Johnson's (1949) S_U family (warp).

A mixture of the transformed features, times the derivative of the transform, is a density of the features themselves.
Each transform is smooth, increasing and maps the real line onto itself; an infinite scale is the identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mixtura import checks
from mixtura.files.registry import storable


@storable("warp")
@dataclass(frozen=True, eq=False)
class Warp:
    """Johnson transform of each feature, g(x) = location + scale * asinh((x - location) / scale) (warp).

    Close to its location, in units of the scale, it is the identity; far away it is logarithmic.

    Parameters
    ----------
    locations : array-like of shape (n_features,)
        Where the transform is steepest, with slope one.
    scales : array-like of shape (n_features,)
        Width of the linear region; infinite for features that are not transformed.

    Examples
    --------
    >>> import math, torch
    >>> from mixtura.model.warp import Warp
    >>> warp = Warp([0.0, 0.0], [1.0, math.inf])
    >>> warp.forward(torch.tensor([[math.sinh(2.0), 5.0]]))
    tensor([[2., 5.]])
    """

    locations: Any
    scales: Any

    def __post_init__(self) -> None:
        checked = checks.warp_parameters(self.locations, self.scales)
        for name, value in zip(("locations", "scales"), checked, strict=True):
            object.__setattr__(self, name, value)

    def to(self, device: torch.device | str) -> Warp:
        """Copy the transform to a device.

        Parameters
        ----------
        device : torch.device or str
            Target device.

        Returns
        -------
        warp : Warp
        """
        return Warp(self.locations.to(device), self.scales.to(device))

    @property
    def transformed(self) -> Tensor:
        """Mask of the features that are transformed, of shape (n_features,)."""
        return self.scales.isfinite()

    @property
    def n_inputs(self) -> int:
        """Number of features."""
        return len(self.locations)

    @property
    def n_outputs(self) -> int:
        """Number of transformed features."""
        return len(self.locations)

    @property
    def n_parameters(self) -> int:
        """Number of parameters: a location and a scale for each transformed feature."""
        return 2 * int(self.transformed.sum())

    def forward(self, rows: Tensor) -> Tensor:
        """Transform features; missing values stay missing.

        Parameters
        ----------
        rows : Tensor of shape (n_samples, n_features)
            Features.

        Returns
        -------
        values : Tensor of shape (n_samples, n_features)
        """
        standardised, scales = self._standardised(rows)
        values = self.locations + scales * standardised.asinh()
        return torch.where(self.transformed, values, rows.double()).to(rows.dtype)

    def backward(self, values: Tensor) -> Tensor:
        """Invert the transform.

        Parameters
        ----------
        values : Tensor of shape (n_samples, n_features)
            Transformed features.

        Returns
        -------
        rows : Tensor of shape (n_samples, n_features)
        """
        standardised, scales = self._standardised(values)
        rows = self.locations + scales * standardised.sinh()
        return torch.where(self.transformed, rows, values.double()).to(values.dtype)

    def log_slopes(self, rows: Tensor) -> Tensor:
        """Compute the log derivative, `log |dg/dx|`, summed over the observed features of each sample.

        The density of the original features is log p(x) = log p(g(x)) + `log |dg/dx|`.

        Parameters
        ----------
        rows : Tensor of shape (n_samples, n_features)
            Features.

        Returns
        -------
        log_slopes : Tensor of shape (n_samples,)
        """
        standardised, _ = self._standardised(rows)
        log_slopes = torch.where(self.transformed, -0.5 * standardised.square().log1p(), 0.0)
        return log_slopes.nan_to_num(nan=0.0).sum(1).to(rows.dtype)

    def _standardised(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(x - location) / scale, and the scales; 1 for features that are not transformed."""
        scales = torch.where(self.transformed, self.scales, 1.0)
        return (rows.double() - self.locations) / scales, scales
