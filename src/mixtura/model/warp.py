"""Features that are skewed or heavy-tailed, bent until Gaussians describe them (warp).

A mixture of Gaussians in the warped features is a density of the rows themselves, once the slopes of the warp are
multiplied in. Johnson's (1949) S_U curves are the warp: each has a place and a width, is smooth and increasing, maps
the real line onto itself, and is the identity where the width is infinite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mixtura import checks
from mixtura.values.storable import storable


@storable("warp")
@dataclass(frozen=True, eq=False)
class Warp:
    """g(x) = place + width asinh((x - place) / width) in every feature (warp).

    Far from its place, in units of the width, it is a logarithm, and near to it the identity.

    Arguments:
        places: where it is steepest, with the slope one, (D,).
        widths: (D,), infinite where a feature stays as it is.

    Examples:
        >>> import math, torch
        >>> from mixtura.model.warp import Warp
        >>> warp = Warp([0.0, 0.0], [1.0, math.inf])
        >>> warp.forward(torch.tensor([[math.sinh(2.0), 5.0]]))
        tensor([[2., 5.]])
    """

    places: Any
    widths: Any

    def __post_init__(self) -> None:
        for name, value in zip(("places", "widths"), checks.curves(self.places, self.widths), strict=True):
            object.__setattr__(self, name, value)

    def to(self, device: torch.device | str) -> Warp:
        return Warp(self.places.to(device), self.widths.to(device))

    @property
    def bent(self) -> Tensor:
        """The features that do not stay as they are, (D,)."""
        return self.widths.isfinite()

    @property
    def n_parameters(self) -> int:
        """A place and a width of every feature that is bent."""
        return 2 * int(self.bent.sum())

    def forward(self, rows: Tensor) -> Tensor:
        """g of each cell, (n, D); missing cells stay missing."""
        off, widths = self._scaled(rows)
        return torch.where(self.bent, self.places + widths * off.asinh(), rows.double()).to(rows.dtype)

    def backward(self, values: Tensor) -> Tensor:
        """The rows that have these values."""
        off, widths = self._scaled(values)
        return torch.where(self.bent, self.places + widths * off.sinh(), values.double()).to(values.dtype)

    def log_slopes(self, rows: Tensor) -> Tensor:
        """log |dg/dx| of the observed cells of each row, (n,): log p(x) = log p(g(x)) + this."""
        off, _ = self._scaled(rows)
        return torch.where(self.bent, -0.5 * off.square().log1p(), 0.0).nan_to_num(nan=0.0).sum(1).to(rows.dtype)

    def _scaled(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        widths = torch.where(self.bent, self.widths, 1.0)
        return (rows.double() - self.places) / widths, widths
