"""The input of a fit of log-linear mixtures, in the units of its columns, and random starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.nonnegative.mixture import (
    LabeledRows,
    LogLinearMixture,
)
from mixtura.values.sparse_rows import empty_rows, is_dense

# Standard deviation of initial coefficients of columns of unit variance, and of initial scores of rows in other units:
# bases differ, and none dominates.
START_SCALE, SCORE_SCALE = 0.1, 0.5


@dataclass(frozen=True)
class NonnegativeProblem:
    """The checked input of a fit; dense columns start at zero and have standard deviation one."""

    rows: LabeledRows
    kept: LabeledRows  # the rows without those held out
    held_out: LabeledRows | None
    shifts: Tensor  # (D,)
    scales: Tensor  # (D,)
    log_prior: Tensor  # (C,)
    generator: torch.Generator
    has_units: bool  # whether columns have unit variance


def random_start(
    n_components: int,
    shared: bool,
    rows: LabeledRows,
    log_prior: Tensor,
    generator: torch.Generator,
    has_units: bool = True,
) -> LogLinearMixture:
    """Random coefficients, with equal bases and approximate class priors at the mean row.

    `has_units`: whether the columns have unit variance.
    """
    n_classes = len(log_prior)
    n_bases = n_components if shared else n_components * n_classes
    class_of = torch.arange(n_classes).repeat_interleave(n_components)
    basis_of = torch.arange(n_components).repeat(n_classes) if shared else torch.arange(n_bases)
    draws = torch.randn(n_bases, rows.n_features, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(class_of), generator=generator, dtype=torch.float64)
    device = log_prior.device
    scale = START_SCALE if has_units else SCORE_SCALE / max(rows.mean_square, 1e-300) ** 0.5
    coefficients = scale * draws.to(device)
    at_mean = log_prior[class_of.to(device)] + START_SCALE * noise.to(device)
    log_weights = at_mean - (coefficients @ rows.means)[basis_of.to(device)]
    log_weights = log_weights - log_weights.logsumexp(0)
    return LogLinearMixture(log_weights, coefficients, class_of.to(device), basis_of.to(device), n_classes)


def column_units(features: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The shift of each column (its smallest value) and its standard deviation, (D,); 0 and 1 for sparse rows.

    A rare word has a small standard deviation: divided by it, it would count for more than a frequent one. A constant
    column is divided by its value, or by one.
    """
    weights = weights.to(features.device)
    total = weights.sum()
    if not is_dense(features):
        zeros = torch.zeros(features.shape[1], dtype=torch.float64, device=features.device)
        return zeros, torch.ones_like(zeros)
    present = features[weights > 0]
    shifts = present.amin(0)
    means = (weights @ (features - shifts)) / total
    variances = (weights @ (features - shifts - means).square()) / total
    scales, values = variances.sqrt(), shifts + means
    flat = torch.where(values > 0, values, 1.0)
    return shifts, torch.where(scales > 1e-12 * values, scales, flat).clamp_min(1e-300)


def without_empty_rows(features: Tensor, weights: Tensor, class_totals: Callable[[Tensor], Tensor]) -> Tensor:
    """Set the weights of rows of zeros, which always get the class prior, to zero, unless a class has no other rows."""
    left = torch.where(empty_rows(features).to(weights.device), 0.0, weights)
    return left if bool((class_totals(left) > 0).all()) else weights
