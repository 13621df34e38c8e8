"""Basis functions of a log-linear mixture: monomials, or kernels at training points and a constant.

The columns of a basis at rows are maps' features(rows) (feature-form). A kernel of few features (a polynomial, or a
Gram matrix of low rank) makes thousands of columns as cheap as these features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from math import comb, factorial
from typing import TypeAlias

import numpy as np
import torch
from scipy.linalg import get_lapack_funcs
from torch import Tensor

from mixtura import checks
from mixtura.files.registry import storable

# Residue of a pivoted Cholesky factor of a Gram matrix, relative to its largest diagonal entry.
GRAM_RESIDUE = 1e-11
# Residue above which a kernel counts as indefinite; rounding errors of well-behaved kernels are 1e-10.
INDEFINITE = 1e-6


@storable("scaling", check=lambda scaling: scaling.check())
@dataclass(frozen=True)
class Scaling:
    """Rows in the units of the basis, (row - centre) / scale (input-scaling)."""

    centre: Tensor  # (D,)
    scale: Tensor  # (D,)

    def __call__(self, rows: Tensor) -> Tensor:
        return (rows.double() - self.centre) / self.scale

    def check(self) -> None:
        """Raise a ValueError unless centres and scales are valid."""
        checks.numbers("centres of the scaling", self.centre, (self.centre.numel(),))
        checks.numbers("scales", self.scale, self.centre.shape)
        checks.positive_numbers("a scale", self.scale)
        checks.numbers("reciprocals of scales", 1 / self.scale, self.centre.shape)


def standard_scaling(rows: Tensor, weights: Tensor) -> Scaling:
    """Z-scores divided by sqrt(D), so that the mean squared length is one; a constant column becomes zero."""
    rows = rows.double()
    first = rows[:1]
    total = weights.sum()
    shift = weights @ (rows - first) / total
    variances = weights @ (rows - first - shift).square() / total
    noise = 1e-26 * rows.abs().amax(0).square()
    scale = torch.where(variances > noise, variances, 1.0).sqrt() * rows.shape[1] ** 0.5
    return Scaling(first[0] + shift, scale)


def no_scaling(n_features: int, device: torch.device) -> Scaling:
    """The identity."""
    zeros = torch.zeros(n_features, dtype=torch.float64, device=device)
    return Scaling(zeros, torch.ones_like(zeros))


def monomials(rows: Tensor, degree: int) -> Tensor:
    """All products of at most `degree` columns, the constant first: (n, D) -> (n, R)."""
    parts = [rows.new_ones(len(rows), 1)]
    for size in range(1, degree + 1):
        index = torch.tensor(_products(rows.shape[1], size), device=rows.device)  # (R', size)
        parts.append(rows[:, index].prod(-1))
    return torch.cat(parts, 1)


def _products(n_columns: int, size: int) -> list[tuple[int, ...]]:
    return list(combinations_with_replacement(range(n_columns), size))


def monomial_names(names: list[str], degree: int) -> list[str]:
    """Names of the monomials, such as 1, x0, x0 x1."""
    labels = ["1"]
    for size in range(1, degree + 1):
        labels.extend(" ".join(names[i] for i in product) for product in _products(len(names), size))
    return labels


@storable("polynomial")
@dataclass(frozen=True)
class Polynomial:
    """(gamma x'z + coef0)^degree."""

    degree: int = 2
    gamma: float = 1.0
    coef0: float = 1.0

    def gram(self, left: Tensor, right: Tensor) -> Tensor:
        """(n, D), (m, D) -> (n, m)"""
        return (self.gamma * (left @ right.T) + self.coef0) ** self.degree

    def largest(self, rows: Tensor) -> Tensor:
        """An upper bound of the kernel values of each row, (n, 1)."""
        return (self.gamma * rows.square().sum(1, keepdim=True) + self.coef0) ** self.degree

    def features(self, rows: Tensor) -> Tensor:
        """Features, (n, R), whose products are the kernel: gram(a, b) = features(a) @ features(b)'.

        They are monomials times the roots of multinomial coefficients, which HU21 eq. 2 lacks (polynomial-features).
        """
        factors = [self.coef0**self.degree]
        for size in range(1, self.degree + 1):
            power = self.gamma**size * self.coef0 ** (self.degree - size) / factorial(self.degree - size)
            for product in _products(rows.shape[1], size):
                repeats = [factorial(product.count(i)) for i in set(product)]
                factors.append(power * factorial(self.degree) / float(np.prod(repeats)))
        roots = torch.tensor(factors, dtype=rows.dtype, device=rows.device).sqrt()
        return monomials(rows, self.degree) * roots


@storable("rbf")
@dataclass(frozen=True)
class RBF:
    """exp(-gamma |x - z|^2)."""

    gamma: float = 1.0

    def gram(self, left: Tensor, right: Tensor) -> Tensor:
        centre = right.mean(0)  # far from zero, differences of squares would lose digits
        left, right = left - centre, right - centre
        lengths = left.square().sum(1, keepdim=True) + right.square().sum(1)
        return torch.addmm(lengths, left, right.T, alpha=-2).clamp_min_(0).mul_(-self.gamma).exp_()

    def largest(self, rows: Tensor) -> Tensor:
        return rows.square().sum(1, keepdim=True)


@dataclass(frozen=True)
class Custom:
    """A function of two NumPy arrays of rows."""

    function: Callable[..., object]

    def gram(self, left: Tensor, right: Tensor) -> Tensor:
        values = np.asarray(self.function(left.cpu().numpy(), right.cpu().numpy()), dtype=float)
        checks.gram_shape(values, len(left), len(right))
        return torch.from_numpy(values).to(left.device)

    def largest(self, rows: Tensor) -> Tensor:
        return torch.zeros_like(rows[:, :1])  # unknown: the values themselves are checked


Kernel: TypeAlias = Polynomial | RBF | Custom


def count_features(kernel: Kernel, n_columns: int, n_points: int) -> int:
    """The number of features that reproduce a kernel at so many points, of which each can be one."""
    return min(comb(n_columns + kernel.degree, kernel.degree), n_points) if isinstance(kernel, Polynomial) else n_points


@storable("monomials")
@dataclass(frozen=True)
class MonomialBasis:
    """The basis of the primal form (HU21 eq. 2)."""

    degree: int
    columns: Tensor  # (H,), which monomials

    @property
    def n_columns(self) -> int:
        return len(self.columns)

    def evaluate(self, rows: Tensor) -> Tensor:
        return monomials(rows, self.degree)[:, self.columns]

    def select(self, columns: Tensor) -> MonomialBasis:
        return replace(self, columns=self.columns[columns])


@storable("kernel_columns")
@dataclass(frozen=True)
class KernelColumns:
    """A constant (number -1) and kernels at training rows, given by their indices.

    `points` holds these rows; it is None for a precomputed kernel, whose columns are the kernel values themselves.
    """

    kernel: Kernel | None
    points: Tensor | None  # (H, D); the row of the constant is unused
    numbers: Tensor  # (H,), -1 for the constant

    @property
    def n_columns(self) -> int:
        return len(self.numbers)

    def evaluate(self, rows: Tensor) -> Tensor:
        constant = self.numbers < 0
        if self.points is None or self.kernel is None:
            values = rows[:, self.numbers.clamp_min(0)]
        else:
            values = self.kernel.gram(rows, self.points)
        return torch.where(constant, 1.0, values)

    def select(self, columns: Tensor) -> KernelColumns:
        points = None if self.points is None else self.points[columns]
        return KernelColumns(self.kernel, points, self.numbers[columns])


Basis: TypeAlias = MonomialBasis | KernelColumns


def feature_form(kernel: Kernel, rows: Tensor, points: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Features (R, N) and maps (R, 1 + H) of a constant and kernels at the points; rows[n] equals points[places[n]].

    Raises a ValueError if the kernel is not positive definite.
    """
    if isinstance(kernel, Polynomial) and count_features(kernel, rows.shape[1], len(points)) < len(points):
        at_points = kernel.features(points)
    else:
        at_points = gram_factor(kernel.gram(points, points))
    constant = torch.zeros_like(at_points[:1])
    if len(points) > 1 and bool((at_points[:, 0] == at_points[0, 0]).all()) and at_points[0, 0] != 0:
        constant[0, 0] = 1 / at_points[0, 0]  # a polynomial with an offset has a constant among its features
        return at_points[places].T.contiguous(), torch.cat((constant, at_points)).T.contiguous()
    ones = at_points.new_ones(len(places), 1)
    maps = torch.block_diag(ones[:1], at_points)  # (1 + H, 1 + R)
    return torch.cat((ones, at_points[places]), 1).T.contiguous(), maps.T.contiguous()


def gram_factor(gram: Tensor) -> Tensor:
    """F with F F' = gram and R = rank columns (gram-rank): (H, H) -> (H, R), by pivoted Cholesky.

    Raises a ValueError if gram is not symmetric and positive semidefinite.
    """
    matrix = gram.cpu().numpy()
    checks.symmetric_gram(matrix)
    largest = float(np.abs(np.diag(matrix)).max())
    (pstrf,) = get_lapack_funcs(("pstrf",), (matrix,))
    factor, pivots, rank, _ = pstrf(matrix, tol=GRAM_RESIDUE * largest, lower=1)
    lower = np.tril(factor)[:, :rank]
    factors = np.empty_like(lower)
    factors[pivots - 1] = lower
    checks.positive_definite(matrix, float(np.abs(matrix - factors @ factors.T).max()), INDEFINITE * largest)
    return torch.from_numpy(factors).to(gram.device)
