"""The input of a fit of log-linear mixtures, in the units of its columns, and random starts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mixtura.nonnegative.mixture import (
    LabeledRows,
    LogLinearMixture,
)
from mixtura.values.sparse_rows import empty_rows, is_dense

START_SCALE = 0.1  # standard deviation of initial coefficients: bases differ, and none dominates


@dataclass(frozen=True)
class NonnegativeProblem:
    """The checked input of a fit, with columns that start at zero and have standard deviation one."""

    rows: LabeledRows
    kept: LabeledRows  # the rows without those held out
    held_out: LabeledRows | None
    shifts: Tensor  # (D,)
    scales: Tensor  # (D,)
    log_prior: Tensor  # (C,)
    n_bases: int
    generator: torch.Generator
    classes: np.ndarray
    class_prior: np.ndarray


def random_start(n_components: int, shared: bool, problem: NonnegativeProblem) -> LogLinearMixture:
    """Random coefficients, with equal bases and approximate class priors at the mean row."""
    n_classes, n_bases = len(problem.log_prior), problem.n_bases
    class_of = torch.arange(n_classes).repeat_interleave(n_components)
    basis_of = torch.arange(n_components).repeat(n_classes) if shared else torch.arange(n_bases)
    draws = torch.randn(n_bases, problem.rows.n_features, generator=problem.generator, dtype=torch.float64)
    noise = torch.randn(len(class_of), generator=problem.generator, dtype=torch.float64)
    device = problem.log_prior.device
    coefficients = START_SCALE * draws.to(device)
    at_mean = problem.log_prior[class_of.to(device)] + START_SCALE * noise.to(device)
    log_weights = at_mean - (coefficients @ problem.rows.means)[basis_of.to(device)]
    log_weights = log_weights - log_weights.logsumexp(0)
    return LogLinearMixture(log_weights, coefficients, class_of.to(device), basis_of.to(device), n_classes)


def column_units(features: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The shift of each column (its smallest value; zero for sparse rows) and its standard deviation, (D,).

    A constant column is divided by its value, or by one.
    """
    weights = weights.to(features.device)
    total = weights.sum()
    if not is_dense(features):
        columns, values = features.col_indices(), features.values()
        each = weights.repeat_interleave(features.crow_indices().diff())  # weight of the row of each stored value
        zeros = torch.zeros(features.shape[1], dtype=torch.float64, device=features.device)
        means = zeros.index_add(0, columns, each * values) / total
        squares = zeros.index_add(0, columns, each * values.square()) / total
        shifts, variances = zeros, (squares - means.square()).clamp_min(0)
    else:
        present = features[weights > 0]
        shifts = present.amin(0)
        means = (weights @ (features - shifts)) / total
        variances = (weights @ (features - shifts - means).square()) / total
    scales, values = variances.sqrt(), shifts + means
    flat = torch.where(values > 0, values, 1.0)
    return shifts, torch.where(scales > 1e-12 * values, scales, flat).clamp_min(1e-300)


def without_empty_rows(features: Tensor, labels: Tensor, weights: Tensor, n_classes: int) -> Tensor:
    """Set the weights of rows of zeros, which always get the class prior, to zero, unless a class has no other rows."""
    left = torch.where(empty_rows(features).cpu(), 0.0, weights)
    kept = torch.zeros(n_classes, dtype=torch.float64).index_add_(0, labels, left)
    return left if bool((kept > 0).all()) else weights
