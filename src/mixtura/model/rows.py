"""Transforms of rows of counts: the weights of words, and rows of length one (row-transform)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mixtura import checks
from mixtura.files.registry import storable
from mixtura.values.sparse_rows import is_dense, numbers_of_rows, row_squares, with_values

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
    >>> from mixtura.model.rows import RowTransform
    >>> transform = RowTransform("tfidf", torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64))
    >>> transform.forward(torch.tensor([[3.0, 2.0, 7.0]]))
    tensor([[0.6000, 0.8000, 0.0000]], dtype=torch.float64)
    """

    name: str
    weights: Any

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
