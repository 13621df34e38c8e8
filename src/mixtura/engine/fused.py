"""Passes by fused kernels on a GPU: whole passes over float32 rows, and signed responsibilities of log joints.

A whole pass is for covariances whose scores are sums of shared features. Products are split into halves, so that the
moments of ordinary rows are right to 1e-5 in single precision. Rows that need more take the way of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mixtura.engine.evaluator import Evaluator, evaluator_for, frame_of
from mixtura.engine.sources import Block, Group, Source
from mixtura.engine.tuning import FEW_PRODUCTS, LEAST_VARIANCE, NEAR_DEVIATIONS
from mixtura.model.mixture import Mixture
from mixtura.numerics.gpu import kernels_for
from mixtura.objectives.likelihood import component_posteriors
from mixtura.roles import LogSumObjective, Objective
from mixtura.values.features import SQUARES
from mixtura.values.moments import DiagonalForm, Summary

if TYPE_CHECKING:
    from mixtura.numerics.kernels.split import SplitCoefficients, Totals


@dataclass(frozen=True)
class FusedPass:
    """The coefficients of one pass, as the kernels take them."""

    kernels: ModuleType
    evaluator: Evaluator
    split: SplitCoefficients
    log_sums: tuple[float, float]
    needs_denominator: bool

    def serves(self, block: Block, group: Group) -> bool:
        """Whether the kernels support the rows of a group of a block."""
        if group.missing or block.rows.dtype != torch.float32 or block.rows.stride(1) != 1:
            return False
        return _by_labels(self.log_sums, self.needs_denominator, block, group)

    def totals(self, block: Block, group: Group, components: slice, memory: int) -> Totals:
        """The sums of the rows of a group; nothing waits for the device."""
        labels = block.labels if group.label is None and self.log_sums[0] != 0 else None
        targets = None if labels is None else (labels, self.evaluator.class_of[components])
        split = self.split.select(components)
        given = (split, block.rows, group.index, targets, block.weights, self.log_sums)
        if _in_one_kernel(self.kernels, self.evaluator, split):
            return self.kernels.pass_by_squares(*given)
        return self.kernels.pass_by_pairs(*given, memory)

    def keeps_digits(self, summary: Summary, source: Source) -> bool:
        """Whether the covariances that follow from the moments have two digits at least.

        A component may become narrow in a single pass, such as one that is left with one row: its covariance is then
        the small difference of large moments (split-product).
        """
        if self.needs_denominator:  # solvers add the moments of the model itself
            return True
        moments, evaluator = summary.moments, self.evaluator
        counts = moments.counts.clamp_min(torch.finfo(torch.float64).tiny)
        own = moments.about(moments.reference + moments.firsts / counts.unsqueeze(-1))
        groups = evaluator.given.covariance.matrix_of
        own = own.pooled(groups, int(groups.max()) + 1)
        counts, radii = own.counts.clamp_min(torch.finfo(torch.float64).tiny), evaluator.frame.radii
        units = torch.where(radii > 0, radii, 1.0)
        constant = (radii == 0).to(units.dtype)  # their variances are exactly zero
        rows = counts if source.n_rows is None else counts * (source.n_rows / summary.weight)
        limits = LEAST_VARIANCE / rows.clamp_min(1.0).sqrt()
        if isinstance(own.form, DiagonalForm):
            variances = own.seconds[0] / (counts.unsqueeze(-1) * units.square()) + constant
            return bool((variances.amin(1) > limits).all())
        matrices = own.seconds[0] / (counts.reshape(-1, 1, 1) * torch.outer(units, units))
        matrices.diagonal(dim1=1, dim2=2).add_(constant - limits.unsqueeze(-1))
        return not bool(torch.linalg.cholesky_ex(matrices).info.any())


def _in_one_kernel(kernels: ModuleType, evaluator: Evaluator, split: SplitCoefficients) -> bool:
    """Whether one kernel holds all coefficients of values and their squares."""
    sizes = zip((split.n_components, split.n_features), kernels.MOST_SQUARES, strict=True)
    return evaluator.coefficients.shared is SQUARES and all(size <= most for size, most in sizes)


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


def _is_large(evaluator: Evaluator, source: Source) -> bool:
    """Whether a pass takes longer than the launches of the kernels."""
    return source.n_rows is None or source.n_rows * evaluator.n_columns * evaluator.n_components >= FEW_PRODUCTS


def consists_of_launches(evaluator: Evaluator, source: Source) -> bool:
    """Whether launches are most of a pass: few rows on a GPU, and coefficients of the host."""
    by_products = evaluator.homogeneous and not evaluator.given.means.is_cuda
    return by_products and kernels_for(evaluator.centre) is not None and not _is_large(evaluator, source)


def fused_pass(evaluator: Evaluator, objective: Objective, source: Source) -> FusedPass | None:
    """The pass by kernels for whole passes, if rows, covariance, objective and precision allow it."""
    kernels = kernels_for(evaluator.centre) if source.dtype == torch.float32 else None
    if kernels is None or not _is_large(evaluator, source):
        return None
    if not isinstance(objective, LogSumObjective) or objective.log_sums is None:
        return None
    split = evaluator.split(kernels)
    if split is None:
        return None
    return FusedPass(kernels, evaluator, split, objective.log_sums, objective.needs_denominator)


@dataclass(frozen=True)
class FusedScores:
    """Log joints of float32 rows by kernels, within a frame that suits single precision."""

    kernels: ModuleType
    evaluator: Evaluator  # for the other rows
    split: SplitCoefficients

    @property
    def bytes_per_row(self) -> int:
        """Of values, log joints and posteriors."""
        return 4 * (self.split.n_values + 3 * self.split.n_padded)

    def of(self, rows: Tensor) -> Tensor:
        """Log joints (K, n) of rows (n, D)."""
        return self.kernels.scores_by_pairs(self.split, _side_by_side(rows))

    def writes(self, compute: Callable[[Tensor], Tensor], dtype: torch.dtype | None) -> bool:
        """Whether kernels write the answers of rows in the frame to where they are wanted."""
        return compute is component_posteriors and dtype == torch.float32

    def write(self, rows: Tensor, out: Tensor, memory: int) -> None:
        """Write the posteriors (n, K) of rows (n, D) in the frame."""
        rows = _side_by_side(rows)
        if _in_one_kernel(self.kernels, self.evaluator, self.split):
            self.kernels.posteriors_by_squares(self.split, rows, out)
        else:
            self.kernels.posteriors_by_pairs(self.split, rows, out, memory)


def _side_by_side(rows: Tensor) -> Tensor:
    """Rows whose values lie side by side in memory."""
    return rows if rows.stride(1) == 1 else rows.contiguous()


def fused_scores(mixture: Mixture, source: Source) -> FusedScores | None:
    """The kernels for log joints, if rows, covariance and precision allow it."""
    kernels = kernels_for(torch.empty(0, device=source.device)) if source.dtype == torch.float32 else None
    if kernels is None:
        return None
    evaluator = evaluator_for(mixture, source, frame_of(mixture, NEAR_DEVIATIONS))
    split = evaluator.split(kernels)  # for any number of rows: answers do not depend on it
    return None if split is None else FusedScores(kernels, evaluator, split)
