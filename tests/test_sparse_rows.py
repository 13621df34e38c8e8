"""Rows with few values that are not zero: what is done to them is what is done to dense ones."""

import numpy as np
import pytest
import torch
from scipy import sparse

from cases import assert_close, tensor
from mixtura.values.sparse_rows import empty_rows, from_scipy, is_dense, pick, row_slice, scaled_columns, transposed

LAYOUTS = {"dense": tensor, "sparse": lambda rows: from_scipy(sparse.csr_matrix(rows))}
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


@pytest.fixture
def rows(rng):
    values = np.where(rng.random((11, 4)) < 0.6, 0.0, rng.normal(size=(11, 4)))
    values[[2, 10]], values[:, 3] = 0.0, 0.0
    return values


def dense(rows) -> torch.Tensor:
    return rows.to_dense()


def test_a_matrix_of_scipy_keeps_its_values(rows):
    actual = from_scipy(sparse.csr_matrix(rows))
    assert (is_dense(actual), is_dense(tensor(rows))) == (False, True)
    assert torch.equal(dense(actual), tensor(rows))


def test_indices_in_any_order_are_taken():
    matrix = sparse.csr_matrix((np.array([1.0, 2.0, 3.0]), np.array([2, 0, 1]), np.array([0, 2, 3])), (2, 3))
    assert dense(from_scipy(matrix)).tolist() == [[2.0, 0.0, 1.0], [0.0, 3.0, 0.0]]


@every_layout
@pytest.mark.parametrize("part", [slice(0, 11), slice(3, 7), slice(7, 100), slice(5, 5)], ids=str)
def test_slices_of_rows(layout, part, rows):
    assert torch.equal(dense(row_slice(layout(rows), part)), tensor(rows[part]))


@every_layout
def test_rows_by_their_numbers(layout, rows):
    index = np.array([9, 0, 2, 2, 5])
    assert torch.equal(dense(pick(layout(rows), torch.from_numpy(index))), tensor(rows[index]))


@every_layout
def test_transposed_rows(layout, rows):
    actual = transposed(layout(rows))
    assert actual.layout == layout(rows).layout
    assert torch.equal(dense(actual), tensor(rows.T))


@every_layout
def test_scaled_columns(layout, rows, rng):
    scales = rng.uniform(0.5, 2.0, 4)
    shifts = np.zeros(4) if layout is not tensor else rng.normal(size=4)
    assert_close(dense(scaled_columns(layout(rows), tensor(shifts), tensor(scales))), (rows - shifts) / scales)


@every_layout
def test_rows_of_zeros_are_seen(layout, rows):
    assert torch.equal(empty_rows(layout(rows)), tensor((rows == 0).all(1)))


def test_a_zero_that_is_written_down_is_a_zero():
    matrix = sparse.csr_matrix((np.array([0.0, 2.0]), np.array([1, 0]), np.array([0, 1, 2])), (2, 3))
    assert empty_rows(from_scipy(matrix)).tolist() == [True, False]
