"""Factorisations that do not fail, against torch.linalg where that does not fail either."""

import pytest
import torch

from cases import assert_close
from mixtura.numerics import linalg


def positive_definite(n_matrices, size, generator, ridge=0.5):
    roots = torch.randn(n_matrices, size, size, generator=generator, dtype=torch.float64, device=generator.device)
    return roots @ roots.mT + ridge * torch.eye(size, dtype=torch.float64, device=generator.device)


def of_rank_one(size, device):
    direction = torch.arange(1.0, size + 1, dtype=torch.float64, device=device)
    return torch.outer(direction, direction)


def test_factors_of_positive_definite_matrices_are_not_touched(generator):
    matrices = positive_definite(5, 4, generator)
    factors, repaired = linalg.safe_cholesky(matrices)
    assert torch.equal(factors, torch.linalg.cholesky(matrices))
    assert not repaired.any()


def test_a_singular_matrix_is_repaired_alone(generator):
    matrices = positive_definite(3, 4, generator)
    matrices[1] = of_rank_one(4, generator.device) - 1e-9 * torch.eye(4, dtype=torch.float64, device=generator.device)
    factors, repaired = linalg.safe_cholesky(matrices)
    assert repaired.tolist() == [False, True, False]
    assert_close((factors @ factors.mT)[[0, 2]], matrices[[0, 2]], 1e-14)
    assert_close((factors @ factors.mT)[1], matrices[1], 1e-7, scale=16)
    assert torch.isfinite(linalg.log_determinants(factors)).all()


def test_a_batch_gets_the_repairs_its_matrices_would_get_alone(device):
    identity = torch.eye(4, dtype=torch.float64, device=device)
    matrices = torch.stack([of_rank_one(4, device) - shift * identity for shift in (0.0, 1e-9, 1e-6, 1e-3)])
    together, repaired = linalg.safe_cholesky(matrices)
    alone = torch.stack([linalg.safe_cholesky(matrix)[0] for matrix in matrices])
    assert repaired[1:].all()
    assert_close(together, alone, 1e-12)


def test_a_repair_does_not_depend_on_the_units_of_a_column(device):
    matrix = of_rank_one(3, device) - 1e-6 * torch.eye(3, dtype=torch.float64, device=device)
    scales = torch.tensor([1.0, 2.0**20, 2.0**-20], dtype=torch.float64, device=device)
    factors, _ = linalg.safe_cholesky(matrix)
    scaled, repaired = linalg.safe_cholesky(matrix * torch.outer(scales, scales))
    assert repaired
    assert_close(scaled, factors * scales.unsqueeze(-1), 1e-12, scale=0)


def test_a_matrix_beyond_repair_keeps_its_diagonal(device):
    matrix = torch.tensor([[1.0, 5.0], [5.0, 4.0]], dtype=torch.float64, device=device)
    factors, repaired = linalg.safe_cholesky(matrix)
    assert repaired
    assert_close(factors, [[1.0, 0.0], [0.0, 2.0]])


@pytest.mark.parametrize("place", [(0, 0), (1, 0), (2, 2)])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_non_finite_entry_raises(device, place, value):
    matrix = torch.eye(3, dtype=torch.float64, device=device)
    matrix[place] = matrix[place[::-1]] = value
    with pytest.raises(FloatingPointError, match=r"^a covariance matrix has a non-finite entry"):
        linalg.safe_cholesky(matrix)


@pytest.mark.parametrize("variance", [0.0, -1.0])
def test_a_variance_that_is_not_positive_raises(device, variance):
    matrix = torch.diag(torch.tensor([1.0, variance], dtype=torch.float64, device=device))
    with pytest.raises(FloatingPointError, match=r"a variance that is not positive; bring the columns"):
        linalg.safe_cholesky(matrix)


def test_solves_precisions_and_determinants_agree_with_the_inverse(generator):
    matrices = positive_definite(4, 5, generator)
    factors, _ = linalg.safe_cholesky(matrices)
    assert_close(linalg.precisions(factors), torch.linalg.inv(matrices))
    assert_close(linalg.log_determinants(factors), torch.linalg.slogdet(matrices).logabsdet)
    assert_close(factors @ linalg.solve_lower(factors, matrices), matrices)


@pytest.mark.parametrize("n_matrices", [3, linalg.FEWEST_SWEPT])
@pytest.mark.parametrize("size", range(13))
def test_many_inverses_equal_the_inverse(size, n_matrices, generator):
    matrices = positive_definite(2 * n_matrices, size, generator, ridge=1.0).reshape(2, n_matrices, size, size)
    before, expected = matrices.clone(), torch.linalg.inv(matrices)
    inverses = linalg.Inverses(matrices)
    assert_close(inverses.log_determinants, torch.linalg.slogdet(matrices).logabsdet, 1e-11)
    vectors = torch.randn(2, n_matrices, size, generator=generator, dtype=torch.float64)
    assert_close(inverses.times(vectors), (expected @ vectors.unsqueeze(-1)).squeeze(-1), 1e-10)
    chosen = torch.rand(2, n_matrices, generator=generator) < 0.5
    assert_close(inverses.some(chosen), expected[chosen], 1e-10)
    assert inverses.every.shape == matrices.shape
    assert_close(inverses.every, expected, 1e-10)
    assert torch.equal(matrices, before)


# ---- many small matrices -----------------------------------------------------------------------------------------


def test_inverse_factors(generator, device):
    matrices = positive_definite(7, 5, generator)
    inverse, log_determinants = linalg.inverse_factors(matrices)
    assert torch.equal(inverse, inverse.tril())
    identity = torch.eye(5, dtype=torch.float64, device=device).expand(7, 5, 5)
    torch.testing.assert_close(inverse @ matrices @ inverse.mT, identity)
    torch.testing.assert_close(log_determinants, torch.logdet(matrices))


def test_low_rank_inverses_and_their_gradients(rng, device):
    pull = torch.as_tensor(rng.normal(size=(3, 6, 6)), device=device)
    diagonals = torch.as_tensor(rng.uniform(0.5, 2, (3, 6)), device=device).requires_grad_()
    columns = torch.as_tensor(rng.normal(size=(3, 6, 2)), device=device).requires_grad_()

    def plain(diagonals, columns):
        left = columns / diagonals.unsqueeze(-1)
        factors = torch.linalg.cholesky(torch.eye(2, dtype=torch.float64, device=device) + columns.mT @ left)
        return torch.linalg.solve_triangular(factors, left.mT, upper=False).mT, torch.logdet(factors @ factors.mT)

    def value(inverse):
        actual, log_determinants = inverse(diagonals, columns)
        return (actual @ actual.mT * pull).sum() + (log_determinants * pull[:, 0, 0]).sum()

    torch.testing.assert_close(value(linalg.low_rank_inverse), value(plain))
    first, second = (torch.autograd.grad(value(way), (diagonals, columns)) for way in (linalg.low_rank_inverse, plain))
    torch.testing.assert_close(first, second)
    alone = linalg.low_rank_log_determinants(diagonals, columns)
    torch.testing.assert_close(alone, plain(diagonals, columns)[1])
    actual, expected = (
        torch.autograd.grad((way * pull[:, 0, 0]).sum(), (diagonals, columns))
        for way in (alone, plain(diagonals, columns)[1])
    )
    torch.testing.assert_close(actual, expected)
    full = torch.diag_embed(diagonals) + columns @ columns.mT
    inverse, _ = linalg.low_rank_inverse(diagonals, columns)
    torch.testing.assert_close(torch.diag_embed(1 / diagonals) - inverse @ inverse.mT, torch.linalg.inv(full))


def test_inverse_softplus(device):
    values = torch.tensor([1e-8, 1e-3, 1.0, 50.0, 1e4], dtype=torch.float64, device=device)
    torch.testing.assert_close(torch.nn.functional.softplus(linalg.inverse_softplus(values)), values)
