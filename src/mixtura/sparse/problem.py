"""The input of the sparse solvers: rows, basis, evidence and initial responsibilities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mixtura import checks
from mixtura.init.starts import cluster, nearest
from mixtura.sparse.kernels import (
    RBF,
    Basis,
    Custom,
    Kernel,
    KernelColumns,
    MonomialBasis,
    Polynomial,
    Scaling,
    count_features,
    feature_form,
    gram_factor,
    monomials,
)
from mixtura.sparse.newton import Evidence

# For larger Hessians a fit that starts with all columns takes ten seconds and more. Columns are then added one by one
# while the evidence rises, which takes less than a second (studies/results/sparse_settings.md).
LARGEST_HESSIAN = 1000
KERNELS = ("polynomial", "rbf", "precomputed")


def make_kernel(name: str | Callable[..., object] | None, degree: int, gamma: float, coef0: float) -> Kernel | None:
    """The kernel given by the arguments; None for monomials and for precomputed values."""
    degree, gamma, coef0 = int(degree), float(gamma), float(coef0)
    if name == "polynomial":
        checks.powers(degree, gamma, coef0)
        return Polynomial(degree, gamma, coef0)
    if name == "rbf":
        return RBF(gamma)
    return Custom(name) if callable(name) else None


@dataclass(frozen=True)
class SparseProblem:
    """The checked input of a fit, without rows of weight zero, and the columns of its basis.

    Kernels are placed at distinct rows only, because equal rows give equal columns. One column replaces its copies
    exactly if it starts at their common precision (equal-columns).
    """

    rows: Tensor  # (N, D), scaled; for a precomputed kernel the values themselves
    evidence: Evidence  # labels and weights alone if columns are added one by one
    basis: Basis
    classes: np.ndarray
    scaling: Scaling
    n_components: list[int]
    memory_limit: int
    precisions: Tensor | None = None  # (H,), initial precisions of columns, up to a common factor
    start_variance: float | None = None  # largest sum of their inverses

    @cached_property
    def class_of(self) -> Tensor:
        return torch.repeat_interleave(torch.tensor(self.n_components)).to(self.rows.device)

    @cached_property
    def class_weights(self) -> Tensor:
        totals = torch.zeros(len(self.classes), dtype=torch.float64, device=self.rows.device)
        return totals.index_add_(0, self.evidence.labels, self.evidence.weights)

    def columns(self, index: Tensor) -> Tensor:
        """Some columns of the basis at the rows, computed on demand: (H',) -> (H', N)"""
        return self.basis.select(index).evaluate(self.rows).T.contiguous()

    def precisions_at_start(self, index: Tensor | None = None) -> Tensor:
        """Initial precisions of all or some columns (start-variance): (H',) -> (H',)"""
        precisions = self.rows.new_ones(self.basis.n_columns) if self.precisions is None else self.precisions
        precisions = precisions if index is None else precisions[index]
        if self.start_variance is None:
            return precisions
        return precisions * (precisions.reciprocal().sum() / self.start_variance).clamp_min(1)


def make_problem(
    values: Tensor,
    numbers: Tensor,
    weights: Tensor | None,
    classes: np.ndarray,
    scaling: Scaling,
    kernel: Kernel | None,
    primal_degree: int | None,
    n_components: list[int],
    working_set: bool | None,
    memory_limit: int,
) -> SparseProblem:
    """The problem of scaled rows with positive weights."""
    weights = torch.ones(len(values), dtype=torch.float64) if weights is None else weights
    present = (weights > 0).nonzero()[:, 0]
    weights, labels = weights[present].to(values.device), numbers[present].to(values.device)
    present = present.to(values.device)
    rows, unscaled, constant = scaling(values)[present], values[present], present.new_tensor([-1])
    n_live = sum(n_components) - 1
    evidence, precisions = Evidence(rows.new_zeros(0, len(rows)), None, labels, weights), None
    if primal_degree is not None:
        columns = monomials(rows, primal_degree)  # (N, H)
        checks.bounded_features(columns, unscaled, rows)
        basis: Basis = MonomialBasis(primal_degree, torch.arange(columns.shape[1], device=rows.device))
        if columns.shape[1] > len(rows):  # more monomials than rows: N features span the columns
            features = torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
            evidence = replace(evidence, features=features, maps=columns)
        else:
            evidence = replace(evidence, features=columns.T.contiguous())
    elif kernel is None:
        rows = rows[:, present]
        checks.bounded_features(rows, rows, rows)
        factor = gram_factor(rows)
        ones = factor.new_ones(len(factor), 1)
        maps = torch.block_diag(ones[:1], factor)
        evidence = replace(evidence, features=torch.cat((ones, factor), 1).T.contiguous(), maps=maps.T.contiguous())
        basis = KernelColumns(None, None, torch.cat((constant, present)))
    else:
        checks.bounded_features(kernel.largest(rows), unscaled, rows)
        points, places, first = _distinct(rows)
        copies = weights.new_zeros(len(points)).index_add_(0, places, weights)
        precisions = torch.cat((copies.new_ones(1), 1 / copies.clamp_min(1)))  # (equal-columns)
        size = count_features(kernel, rows.shape[1], len(points))
        if working_set is None:
            numbers_held = max(2 * n_live * size * len(points), len(points) ** 2 * (size == len(points)))
            working_set = 8 * numbers_held > memory_limit or n_live * size > LARGEST_HESSIAN
        if not working_set:
            features, maps = feature_form(kernel, rows, points, places)
            evidence = replace(evidence, features=features, maps=maps)
        basis = KernelColumns(kernel, torch.cat((points[:1], points)), torch.cat((constant, present[first])))
    return SparseProblem(rows, evidence, basis, classes, scaling, n_components, memory_limit, precisions)


def _distinct(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct rows (H, D), the index of each row among them (N,), and the first occurrence of each (H,)."""
    points, places = torch.unique(rows, dim=0, return_inverse=True)
    first = torch.full((len(points),), len(rows), device=rows.device)
    first = first.scatter_reduce(0, places, torch.arange(len(rows), device=rows.device), "amin")
    return points, places, first


def starting_responsibilities(problem: SparseProblem, generator: torch.Generator) -> Tensor:
    """Assign every row to the nearest k-means centre of its class, (K, N).

    For a precomputed kernel the rows of the kernel matrix serve as coordinates.
    """
    responsibilities = torch.zeros(
        sum(problem.n_components), len(problem.rows), dtype=torch.float64, device=problem.rows.device
    )
    first = 0
    for c, count in enumerate(problem.n_components):
        members = (problem.evidence.labels == c).nonzero()[:, 0]
        rows = problem.rows[members]
        centres = cluster(rows, problem.evidence.weights[members], count, "kmeans", generator)
        responsibilities[first + nearest(rows, centres), members] = 1
        first += count
    return responsibilities
