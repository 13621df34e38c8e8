"""Passes by fused kernels on a GPU: signed responsibilities in one kernel, and whole passes in one.

A whole pass is for diagonal and spherical covariances, few components and float32 rows. The kernel keeps coefficients,
scores and sums on the chip, so that it reads only the rows: 10 million rows of 32 features with 64 components
take 5 ms on an H200, and 26 ms by matrix products in double precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from mixtura.engine.evaluator import Evaluator
from mixtura.engine.sources import Block, Group
from mixtura.engine.tuning import MOST_HALF_SQUARES
from mixtura.numerics.gpu import kernels_for
from mixtura.roles import LogSumObjective, Objective
from mixtura.values.features import SQUARES


@dataclass(frozen=True)
class FusedPass:
    """The coefficients and targets of one pass, as the kernel takes them."""

    kernels: ModuleType
    evaluator: Evaluator
    log_sums: tuple[float, float]
    needs_denominator: bool

    def serves(self, block: Block, group: Group, components: slice) -> bool:
        """Whether the kernel supports the rows of a group of a block."""
        if group.missing or block.rows.dtype != torch.float32 or block.rows.stride(1) != 1:
            return False
        if components.stop - components.start > self.kernels.MOST_SQUARES[0]:
            return False
        return _by_labels(self.log_sums, self.needs_denominator, block, group)

    def add(self, block: Block, group: Group, part: slice, components: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Value, counts, sums of the features and counts of the denominator of some rows of a group."""
        coefficients, frame = self.evaluator.given_coefficients, self.evaluator.frame
        assert coefficients.weights is not None
        rows, index = block.rows, group.index
        labels = block.labels if group.label is None and self.log_sums[0] != 0 else None
        weights = block.weights
        if index is None:
            rows, labels, weights = (None if t is None else t[part] for t in (rows, labels, weights))
        else:
            index = index[part]
        targets = None if labels is None else (labels, self.evaluator.class_of[components])
        value, counts, sums, posteriors = self.kernels.squares_pass(
            rows, index, frame.centre, coefficients.weights[components], coefficients.bias[components],
            targets, weights, self.log_sums,
        )  # fmt: skip
        return value, counts, sums, -self.log_sums[1] * posteriors


def _by_labels(log_sums: tuple[float, float], needs_denominator: bool, block: Block, group: Group) -> bool:
    """Whether an objective needs nothing but the labels of the rows of a group, if they have any."""
    own_weight, _ = log_sums
    apart = own_weight != 0 and group.label is None  # numerator and denominator
    if needs_denominator:
        return apart and block.shares is None and block.labels is not None
    return not apart or block.shares is None


def responsibility_kernels(objective: Objective, block: Block, group: Group) -> ModuleType | None:
    """The kernels, if one of them gives values and signed responsibilities of log joints of a group."""
    kernels = kernels_for(block.rows)
    if kernels is None or not isinstance(objective, LogSumObjective) or objective.log_sums is None:
        return None
    return kernels if _by_labels(objective.log_sums, objective.needs_denominator, block, group) else None


def fused_pass(evaluator: Evaluator, objective: Objective) -> FusedPass | None:
    """The pass in one kernel, if covariance, objective and precision allow it.

    In single precision the second moments of a component are right to 1e-5 if the rows lie within some tens of its
    standard deviations of the centre; otherwise double precision is used.
    """
    coefficients, frame = evaluator.given_coefficients, evaluator.frame
    kernels = kernels_for(evaluator.centre)
    if kernels is None or evaluator.exact or not isinstance(objective, LogSumObjective):
        return None
    size, weights, log_sums = evaluator.n_features, coefficients.weights, objective.log_sums
    if coefficients.shared is not SQUARES or coefficients.projections is not None or weights is None:
        return None
    if log_sums is None or size > kernels.MOST_SQUARES[1]:
        return None
    if not bool((-weights[:, size:] * frame.radii.square()).amax() <= MOST_HALF_SQUARES):
        return None
    return FusedPass(kernels, evaluator, log_sums, objective.needs_denominator)
