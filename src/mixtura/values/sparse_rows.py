"""Sparse rows as CSR tensors (n, D), and operations for sparse and dense rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch
from scipy import sparse
from torch import Tensor


@contextmanager
def quietly() -> Iterator[None]:
    """A context without torch's warnings about sparse tensors (beta state, unchecked indices)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse", UserWarning)
        yield


def csr(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A CSR tensor; the indices were checked by scipy."""
    with quietly():
        return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)


def from_scipy(matrix: sparse.csr_array | sparse.csr_matrix) -> Tensor:
    matrix.sort_indices()
    starts, columns = (torch.from_numpy(part.astype(np.int64)) for part in (matrix.indptr, matrix.indices))
    return csr(starts, columns, torch.from_numpy(matrix.data), cast("tuple[int, int]", matrix.shape))


def is_dense(rows: Tensor) -> bool:
    return rows.layout is torch.strided


def row_slice(rows: Tensor, part: slice) -> Tensor:
    """A slice of the rows of a dense or CSR tensor."""
    if is_dense(rows):
        return rows[part]
    first, last, _ = part.indices(rows.shape[0])
    starts = rows.crow_indices()[first : last + 1]
    values = slice(int(starts[0]), int(starts[-1]))
    return csr(starts - starts[0], rows.col_indices()[values], rows.values()[values], (last - first, rows.shape[1]))


def largest_values(rows: Tensor) -> Tensor:
    """The largest absolute value of each column, (D,)."""
    if is_dense(rows):
        return rows.abs().amax(0)
    zeros = torch.zeros(rows.shape[1], dtype=rows.dtype, device=rows.device)
    return zeros.scatter_reduce(0, rows.col_indices(), rows.values().abs(), "amax")


def pick(rows: Tensor, index: Tensor) -> Tensor:
    """Rows by index."""
    index = index.to(rows.device)
    if is_dense(rows):
        return rows[index]
    with quietly():
        return rows.to_sparse_coo().coalesce().index_select(0, index).coalesce().to_sparse_csr()


def stacked_rows(parts: list[Tensor]) -> Tensor:
    """Rows of several tensors, all dense or all CSR, in one."""
    if is_dense(parts[0]):
        return torch.cat(parts)
    ends = torch.cat([part.crow_indices().diff() for part in parts]).cumsum(0)
    columns, values = torch.cat([part.col_indices() for part in parts]), torch.cat([part.values() for part in parts])
    return csr(torch.cat((ends.new_zeros(1), ends)), columns, values, (len(ends), parts[0].shape[1]))


def transposed(rows: Tensor) -> Tensor:
    """Transpose (n, D) -> (D, n); a sparse result is sorted by features."""
    if is_dense(rows):
        return rows.T
    with quietly():
        return rows.to_sparse_coo().T.coalesce().to_sparse_csr()


def turned(rows: Tensor) -> Tensor:
    """Transpose (n, D) -> (D, n) without a copy: fast for scores, slow for sums over sparse rows."""
    with quietly():
        return rows.mT


def numbers_of_rows(rows: Tensor) -> Tensor:
    """The row of each stored value of CSR rows."""
    return torch.arange(rows.shape[0], device=rows.device).repeat_interleave(rows.crow_indices().diff())


def with_values(rows: Tensor, values: Tensor) -> Tensor:
    """CSR rows with other values at the same places."""
    return csr(rows.crow_indices(), rows.col_indices(), values, (rows.shape[0], rows.shape[1]))


def squared(rows: Tensor) -> Tensor:
    """The square of every value."""
    return rows.square() if is_dense(rows) else with_values(rows, rows.values().square())


def row_squares(rows: Tensor) -> Tensor:
    """Squared length of each row, (n,)."""
    if is_dense(rows):
        return rows.square().sum(1)
    sums = torch.zeros(rows.shape[0], dtype=rows.dtype, device=rows.device)
    return sums.index_add_(0, numbers_of_rows(rows), rows.values().square())


def scaled_columns(rows: Tensor, shifts: Tensor, scales: Tensor) -> Tensor:
    """(x - shifts) / scales; the shifts of sparse rows are zero."""
    if is_dense(rows):
        return (rows - shifts) / scales
    return with_values(rows, rows.values() / scales[rows.col_indices()])


def empty_rows(rows: Tensor) -> Tensor:
    """Mask of the rows without non-zero values, (n,)."""
    if is_dense(rows):
        return (rows == 0).all(1)
    filled = (rows.values() != 0).to(torch.float64)
    sums = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
    return sums.index_add_(0, numbers_of_rows(rows), filled) == 0
