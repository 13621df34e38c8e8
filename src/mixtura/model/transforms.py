"""Transforms: of features towards normality (warp), of categories to numbers (recoding), of rows of counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mixtura import checks
from mixtura.files.registry import storable
from mixtura.values.sparse_rows import is_dense, numbers_of_rows, row_squares, with_values


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
    >>> from mixtura.model.transforms import Warp
    >>> warp = Warp([0.0, 0.0], [1.0, math.inf])
    >>> warp.forward(torch.tensor([[math.sinh(2.0), 5.0]]))
    tensor([[2., 5.]])
    """

    locations: Tensor
    scales: Tensor

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
    tables: tuple[Tensor, ...]
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


ROW_TRANSFORMS = ("counts", "log", "tfidf")


@storable("row_transform", check=lambda transform: transform.check())
@dataclass(frozen=True, eq=False)
class RowTransform:
    """A transform of rows of counts x with a weight for each feature (row-transform).

    Parameters
    ----------
    name : {"counts", "log", "tfidf"}
        "counts" is x itself, "log" is log(1 + x) times the weight, and "tfidf" is x times the weight. The last two give
        rows of length one.
    weights : Tensor of shape (n_features,)
        log((1 + N) / (1 + n_u)) + 1 for a feature that is not zero in n_u of N rows. Zero for a feature that is zero in
        all of them: a word that training never saw says nothing.

    Examples
    --------
    >>> import torch
    >>> from mixtura.model.transforms import RowTransform
    >>> transform = RowTransform("tfidf", torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64))
    >>> transform.forward(torch.tensor([[3.0, 2.0, 7.0]]))
    tensor([[0.6000, 0.8000, 0.0000]], dtype=torch.float64)
    """

    name: str
    weights: Tensor

    def check(self) -> None:
        """Raise a ValueError unless the parts are consistent."""
        checks.one_of("the name of a transform of rows", self.name, ROW_TRANSFORMS)
        checks.numbers("weights of features", self.weights, (len(self.weights),))

    def to(self, device: torch.device | str) -> RowTransform:
        """Copy the transform to a device."""
        return RowTransform(self.name, self.weights.to(device))

    def forward(self, rows: Tensor) -> Tensor:
        """Transform rows (n, D), dense or CSR, in double precision."""
        weights = self.weights.to(rows.device)
        if is_dense(rows):
            values = self._weighted(rows.double(), weights)
            return values if self.name == "counts" else values / _lengths(values.square().sum(1)).unsqueeze(1)
        values = with_values(rows, self._weighted(rows.values().double(), weights[rows.col_indices()]))
        if self.name == "counts":
            return values
        return with_values(rows, values.values() / _lengths(row_squares(values))[numbers_of_rows(rows)])

    def _weighted(self, values: Tensor, weights: Tensor) -> Tensor:
        if self.name == "counts":
            return torch.where(weights > 0, values, 0.0)
        # Predictions take negative values, of which log(1 + x) would not exist.
        return weights * (values.sign() * values.abs().log1p() if self.name == "log" else values)


def _lengths(squares: Tensor) -> Tensor:
    """Lengths of rows from their squares; 1 for a row of zeros."""
    return torch.where(squares > 0, squares.sqrt(), 1.0)


def document_counts(rows: Tensor, weights: Tensor) -> Tensor:
    """The weight of the rows in which each feature is not zero, (D,)."""
    if is_dense(rows):
        return weights @ (rows != 0).double()
    zeros = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    return zeros.index_add_(0, rows.col_indices(), weights[numbers_of_rows(rows)] * (rows.values() != 0))


def make_row_transform(name: str, counts: Tensor, total: float) -> RowTransform:
    """The transform from the weight of the rows with each feature, and of all rows."""
    weights = ((1 + total) / (1 + counts)).log() + 1
    return RowTransform(name, torch.where(counts > 0, weights, 0.0))
