"""Numbers in place of categories: a linear map of the indicators of each categorical feature (recoding)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mixtura import checks
from mixtura.files.registry import storable
from mixtura.model.warp import Warp


@storable("recoding", check=lambda recoding: recoding.check())
@dataclass(frozen=True, eq=False)
class Recoding:
    """Numeric features, then some numbers for each categorical feature, given by its category (recoding).

    A missing category has missing numbers. A mixture of these numbers is not a density of the samples, but its class
    posteriors are.

    Parameters
    ----------
    n_numeric : int
        Number of numeric features, which are the first columns.
    tables : tuple of Tensor of shape (n_categories, n_numbers)
        The numbers for every category of each categorical feature.
    learned : tuple of bool
        Whether these are frequencies of the classes (target statistics), which were estimated.
    warp : Warp or None, default=None
        Transform of all numbers.
    """

    n_numeric: int
    tables: tuple[Any, ...]
    learned: tuple[bool, ...]
    warp: Warp | None = None

    @property
    def sizes(self) -> list[int]:
        """Number of categories of each categorical feature."""
        return [len(table) for table in self.tables]

    @property
    def n_inputs(self) -> int:
        """Number of columns of the samples."""
        return self.n_numeric + sum(self.sizes)

    @property
    def n_outputs(self) -> int:
        """Number of columns of the numbers."""
        return self.n_numeric + sum(table.shape[1] for table in self.tables)

    @property
    def n_parameters(self) -> int:
        """Number of estimated parameters."""
        estimated = (table.numel() for table, learned in zip(self.tables, self.learned, strict=True) if learned)
        return sum(estimated) + (0 if self.warp is None else self.warp.n_parameters)

    def to(self, device: torch.device | str) -> Recoding:
        """Copy the map to a device."""
        warp = None if self.warp is None else self.warp.to(device)
        return replace(self, tables=tuple(table.to(device) for table in self.tables), warp=warp)

    def forward(self, rows: Tensor) -> Tensor:
        """Compute the numbers of samples (n, n_inputs), numeric features first; missing values stay missing."""
        return self.finished(rows, self.coded(rows))

    def coded(self, rows: Tensor) -> list[Tensor]:
        """The numbers of the categorical features, each of shape (n, n_numbers)."""
        parts = rows[:, self.n_numeric :].split(self.sizes, 1)
        return [part @ table.to(part) for part, table in zip(parts, self.tables, strict=True)]

    def finished(self, rows: Tensor, coded: Sequence[Tensor]) -> Tensor:
        """Numeric features and these numbers, transformed."""
        values = torch.cat((rows[:, : self.n_numeric], *coded), 1)
        return values if self.warp is None else self.warp.forward(values)

    def backward(self, values: Tensor) -> Tensor:
        """Samples (n, n_inputs) from numbers: shares of the categories from indicators, else the nearest category."""
        values = values if self.warp is None else self.warp.backward(values)
        parts = [values[:, : self.n_numeric]]
        numbers = values[:, self.n_numeric :].split([table.shape[1] for table in self.tables], 1)
        for part, table in zip(numbers, self.tables, strict=True):
            table = table.to(part)
            if table.shape[1] == len(table) - 1 and bool(((table == 0) | (table == 1)).all()):
                shares = part.clamp(0, 1) @ table.T
                parts.append(torch.where((table == 0).all(1), (1 - shares.sum(1, keepdim=True)).clamp_min(0), shares))
            else:
                nearest = torch.cdist(part, table).argmin(1)
                parts.append(torch.nn.functional.one_hot(nearest, len(table)).to(part))
        return torch.cat(parts, 1)

    def log_slopes(self, rows: Tensor) -> Tensor:
        """Zero (n,), but for the transform: the density is that of the numbers."""
        if self.warp is None:
            return torch.zeros_like(rows[:, 0])
        return self.warp.log_slopes(replace(self, warp=None).forward(rows))

    def check(self) -> None:
        """Raise a ValueError unless the tables are matrices of finite numbers."""
        checks.same_size("learned", len(self.learned), len(self.tables))
        for table in self.tables:
            if not isinstance(table, Tensor) or table.ndim != 2 or not bool(table.isfinite().all()):
                raise ValueError("a table of a recoding is not a matrix of finite numbers")
        if self.warp is not None:
            checks.same_size("warp", self.warp.n_outputs, self.n_outputs)


Transform = Warp | Recoding  # of the columns of samples
