"""Safe factorisations: Cholesky with repair, triangular solves, inverses of many small matrices."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor
from torch.autograd import Function

from mixtura.numerics.cached_property import cached_property

# Relative to each diagonal entry, so that the repair does not depend on the units of a column.
JITTERS = (1e-13, 1e-11, 1e-9, 1e-7, 1e-5, 1e-3, 1e-1)


class NumericalError(FloatingPointError, ValueError):
    """The input leads to non-finite numbers. It is both a ValueError and an ArithmeticError."""


def safe_cholesky(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Compute lower Cholesky factors, and a mask of the repaired matrices.

    A matrix that is not positive definite gets the smallest sufficient multiple of its own diagonal added.

    Parameters
    ----------
    matrices : Tensor of shape (..., D, D)
        Symmetric matrices.

    Returns
    -------
    factors : Tensor of shape (..., D, D)
    repaired : Tensor of shape (...)
        Mask of the repaired matrices.

    Raises
    ------
    NumericalError
        If a matrix has a non-finite entry or a diagonal that is not positive.
    """
    factors, info = torch.linalg.cholesky_ex(matrices)
    repaired = info > 0
    if torch.compiler.is_compiling() or (matrices.is_cuda and torch.cuda.is_current_stream_capturing()):
        return factors, repaired  # control flow cannot depend on recorded values
    total = float(factors.detach().diagonal(dim1=-2, dim2=-1).sum())  # an infinite variance has an infinite root
    if math.isfinite(total) and not bool(repaired.any()):
        return factors, repaired
    diagonals = matrices.diagonal(dim1=-2, dim2=-1)
    if not bool(torch.isfinite(matrices).all()) or bool((diagonals <= 0).any()):
        raise NumericalError(
            "a covariance matrix has a non-finite entry or a variance that is not positive; bring the columns of X to "
            "similar units, or use prior='default'"
        )
    for jitter in JITTERS:
        attempt = matrices + torch.diag_embed(diagonals * jitter * (info > 0).unsqueeze(-1))
        factors, info = torch.linalg.cholesky_ex(attempt)
        if not bool((info > 0).any()):
            return factors, repaired
        # Matrices repaired by this jitter keep it; the next round adds more to the others only.
        matrices = torch.where((info > 0)[..., None, None], matrices, attempt)
    diagonal_only = torch.diag_embed(diagonals.sqrt())
    return torch.where((info > 0)[..., None, None], diagonal_only, factors), repaired


def recording(values: Tensor) -> bool:
    """Whether a compiler or a CUDA graph records operations, so that control flow cannot depend on values."""
    return torch.compiler.is_compiling() or (values.is_cuda and torch.cuda.is_current_stream_capturing())


def log_determinants(factors: Tensor) -> Tensor:
    """log |L L'| of lower Cholesky factors: (..., D, D) -> (...)."""
    return 2 * factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def solve_lower(factors: Tensor, right: Tensor) -> Tensor:
    """L^-1 right, for lower triangular L."""
    return torch.linalg.solve_triangular(factors, right, upper=False)


def solve_squared(factors: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """(L L')^-1 right, and the squared distances right' (L L')^-1 right of the columns, (..., n)."""
    halves = solve_lower(factors, right)
    return torch.linalg.solve_triangular(factors.mT, halves, upper=True), halves.square().sum(-2)


VALUES_TOGETHER = 2**24  # of deviations of rows from several means on a GPU


def distances_of(factors: Tensor, means: Tensor, rows: Tensor) -> Tensor:
    """Squared distances (K, n) of rows (n, D) from means (K, D) under L L', for factors L (K, D, D).

    On a GPU products with the inverse of L take less time than substitutions; on a CPU it is the other way.
    """
    if not rows.is_cuda:
        pairs = zip(factors, means, strict=True)
        return torch.stack([solve_lower(factor, (rows - mean).T).square_().sum(0) for factor, mean in pairs])
    step = max(1, VALUES_TOGETHER // max(1, rows.numel()))
    parts = zip(inverse_lower(factors).split(step), means.split(step), strict=True)
    return torch.cat([((rows - mean.unsqueeze(1)) @ inverse.mT).square_().sum(2) for inverse, mean in parts])


def inverse_lower(factors: Tensor) -> Tensor:
    """L^-1 of lower triangular factors (..., D, D)."""
    identity = torch.eye(factors.shape[-1], dtype=factors.dtype, device=factors.device)
    return solve_lower(factors, identity.expand_as(factors))


def precisions(factors: Tensor) -> Tensor:
    """(L L')^-1, as coefficients of feature maps."""
    return torch.cholesky_inverse(factors).mT  # the same numbers, contiguous


# A sweep over all matrices is faster than LAPACK calls for each, up to this size and from this number on:
# inverses of 10,000 matrices of size 2 / 6 / 10 take 0.3 / 2.4 / 8.8 ms instead of 2.4 / 5.7 / 11.2; of 100 matrices
# 0.08 / 0.23 / 0.39 instead of 0.06 / 0.09 / 0.14.
LARGEST_SWEEP = 10
FEWEST_SWEPT = 400


class Inverses:
    """Log-determinants and inverses of many small positive definite matrices; the inverses are computed when needed.

    Parameters
    ----------
    matrices : Tensor of shape (..., M, M)
    may_sweep : bool, default=True
        Whether many matrices may be inverted by another algorithm than a few.

    Attributes
    ----------
    log_determinants : Tensor of shape (...)
        Of the matrices.
    """

    log_determinants: Tensor

    def __init__(self, matrices: Tensor, may_sweep: bool = True):
        size, shape = matrices.shape[-1], matrices.shape[:-2]
        self._factors: Tensor | None = None
        if may_sweep and size <= LARGEST_SWEEP and (size == 0 or shape.numel() >= FEWEST_SWEPT):
            stack = matrices.flatten(0, -3).permute(1, 2, 0).clone(memory_format=torch.contiguous_format)
            inverses, logs = _sweep(stack)
            vars(self)["every"] = inverses.permute(2, 0, 1).reshape(matrices.shape)
            self.log_determinants = logs.reshape(shape)
        else:
            self._factors, _ = safe_cholesky(matrices)
            self.log_determinants = log_determinants(self._factors)

    @property
    def factors(self) -> Tensor:
        """Lower Cholesky factors (..., M, M); only without sweeps."""
        assert self._factors is not None
        return self._factors

    @cached_property
    def every(self) -> Tensor:
        """All inverses, (..., M, M)."""
        assert self._factors is not None
        return torch.cholesky_inverse(self._factors)

    def some(self, chosen: Tensor) -> Tensor:
        """The inverses at a mask (...), (n, M, M)."""
        return self.every[chosen] if self._factors is None else torch.cholesky_inverse(self._factors[chosen])

    def times(self, vectors: Tensor) -> Tensor:
        """Every inverse times a vector: (..., M) -> (..., M)."""
        if self._factors is None:
            return (self.every @ vectors.unsqueeze(-1)).squeeze(-1)
        return torch.cholesky_solve(vectors.unsqueeze(-1), self._factors).squeeze(-1)


def _sweep(stack: Tensor) -> tuple[Tensor, Tensor]:
    """Inverses (M, M, n) and log-determinants (n,), by Gauss-Jordan sweeps vectorised over the last axis.

    Positive definite matrices need no pivoting. The input is overwritten.
    """
    size = stack.shape[0]
    log_determinant = stack.new_zeros(stack.shape[2])
    tiny = torch.finfo(stack.dtype).tiny
    for j in range(size):
        pivot = stack[j, j].clamp_min(tiny)
        log_determinant += pivot.log()
        column = stack[:, j].clone()
        row = stack[j] / pivot
        stack.addcmul_(column.unsqueeze(1), row.unsqueeze(0), value=-1)
        stack[j] = row
        stack[:, j] = column / -pivot
        stack[j, j] = 1 / pivot
    return stack, log_determinant


def inverse_softplus(values: Tensor) -> Tensor:
    """x with log(1 + exp x) = values; values below 1e-8 are raised to 1e-8."""
    values = values.clamp_min(1e-8)
    return values + torch.log(-torch.expm1(-values))


class _LogDeterminants(Function):
    """See `low_rank_log_determinants`. With W = diag^-1 columns M^-1: gradients -diag(columns W') / diag and 2 W."""

    @staticmethod
    def forward(ctx: Function, diagonals: Tensor, columns: Tensor) -> Tensor:
        scaled = columns / diagonals.unsqueeze(-1)
        inverse, log_determinants = _inner_factors(scaled, columns)
        ctx.save_for_backward(diagonals, columns, scaled, inverse)
        return log_determinants

    @staticmethod
    def backward(ctx: Function, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        diagonals, columns, scaled, inverse = tuple(ctx.saved_tensors)
        by_columns = scaled @ (inverse.mT @ (inverse * gradients[0][..., None, None]))
        return -(columns * by_columns).sum(-1) / diagonals, 2 * by_columns


class _Inverse(Function):
    """See `low_rank_inverse`. With P = diag^-1 columns, T = L^-1, V = P T', G the gradient by V of what depends
    on V V' alone and g that by log |M|: B = g M^-1 - T' V' G T / 2, symmetrised, is the gradient by M, and those by
    columns and diagonals are (G T) / diag + 2 P B and -diag[(G T / diag + P B) P'].
    """

    @staticmethod
    def forward(ctx: Function, diagonals: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        scaled = columns / diagonals.unsqueeze(-1)
        inverse, log_determinants = _inner_factors(scaled, columns)
        others = scaled @ inverse.mT
        ctx.save_for_backward(diagonals, scaled, inverse, others)
        return others, log_determinants

    @staticmethod
    def backward(ctx: Function, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        diagonals, scaled, inverse, others = tuple(ctx.saved_tensors)
        by_others, by_log_determinants = gradients
        inner = -0.25 * (others.mT @ by_others)
        inner = inner + inner.mT
        inner.diagonal(dim1=-2, dim2=-1).add_(by_log_determinants.unsqueeze(-1))
        by_inner = scaled @ (inverse.mT @ inner @ inverse)  # P B
        direct = (by_others @ inverse) / diagonals.unsqueeze(-1)
        return -((direct + by_inner) * scaled).sum(-1), direct + 2 * by_inner


def _inner_factors(scaled: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    inner = columns.mT @ scaled
    inner.diagonal(dim1=-2, dim2=-1).add_(1)
    return inverse_factors(inner)


def low_rank_log_determinants(diagonals: Tensor, columns: Tensor) -> Tensor:
    """log |I + columns' diag^-1 columns|, differentiable: (..., D), (..., D, R) -> (...)."""
    return cast(Tensor, _LogDeterminants.apply(diagonals, columns))


def low_rank_inverse(diagonals: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """V with diag^-1 - V V' = (diag + columns columns')^-1, and the log-determinants of `low_rank_log_determinants`.

    Differentiable, for uses that depend on V through V V' alone: the gradient then takes a few small products instead
    of backpropagation through a factorisation.
    """
    return cast(tuple[Tensor, Tensor], _Inverse.apply(diagonals, columns))


def inverse_factors(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """L^-1 and log |L L'| of positive definite matrices, (..., R, R); unchecked, to avoid a synchronisation."""
    factors, _ = torch.linalg.cholesky_ex(matrices)
    return inverse_lower(factors), log_determinants(factors)
