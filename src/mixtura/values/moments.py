"""Weighted moments, which can be added, scaled and shifted to another reference; pseudo-moments of a prior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, cast

import torch
from torch import Tensor

# Numbers in matrices above which they are shifted by products of vectors, which need no other array of this size.
MOST_TOGETHER = 2**22


class Form(Protocol):
    """Storage of second moments: a linear function of the D x D matrix of a component, one tensor per part.

    A covariance stores only what its update needs: the whole matrix, its diagonal, or diagonal and projections.
    """

    def outer(self, left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
        """The image of left right' for each component: (K, D), (K, D) -> parts (K, ...)."""
        ...

    def diagonal(self, variances: Tensor) -> tuple[Tensor, ...]:
        """The image of diag(variances) for each component: (K, D) -> parts (K, ...)."""
        ...

    def matrix(self, matrices: Tensor) -> tuple[Tensor, ...]:
        """The image of a symmetric matrix for each component: (K, D, D) -> parts (K, ...)."""
        ...


class DenseForm:
    """The whole matrix: one part, (K, D, D)."""

    def outer(self, left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
        return (left.unsqueeze(-1) * right.unsqueeze(-2),)

    def diagonal(self, variances: Tensor) -> tuple[Tensor, ...]:
        return (torch.diag_embed(variances),)

    def matrix(self, matrices: Tensor) -> tuple[Tensor, ...]:
        return (matrices,)


class DiagonalForm:
    """The diagonal: one part, (K, D)."""

    def outer(self, left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
        return (left * right,)

    def diagonal(self, variances: Tensor) -> tuple[Tensor, ...]:
        return (variances,)

    def matrix(self, matrices: Tensor) -> tuple[Tensor, ...]:
        return (matrices.diagonal(dim1=-2, dim2=-1),)


@dataclass(frozen=True)
class ProjectedForm:
    """The diagonal (K, D), and the matrix times the columns of a projection (K, D, R)."""

    projections: Tensor

    def outer(self, left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
        along = (right.unsqueeze(-2) @ self.projections).squeeze(-2)  # (K, R)
        return left * right, left.unsqueeze(-1) * along.unsqueeze(-2)

    def diagonal(self, variances: Tensor) -> tuple[Tensor, ...]:
        return variances, variances.unsqueeze(-1) * self.projections

    def matrix(self, matrices: Tensor) -> tuple[Tensor, ...]:
        return matrices.diagonal(dim1=-2, dim2=-1), matrices @ self.projections


def image(form: Form, scatter: Tensor, n_components: int) -> tuple[Tensor, ...]:
    """A scatter in a form: variances (D,) or (K, D), matrices (1, D, D) or (K, D, D) -> parts (K, ...)."""
    if scatter.ndim == 3:
        return form.matrix(scatter.expand(n_components, -1, -1))
    return form.diagonal(scatter.expand(n_components, -1))


@dataclass(frozen=True)
class Moments:
    """Weighted moments of rows about a reference (moments):

        counts_k = sum_n A_nk,  firsts_k = sum_n A_nk (x_n - m_k),  seconds_k = sum_n A_nk (x_n - m_k)(x_n - m_k)'

    with m the reference, (D,) or (K, D), and seconds in the form of the covariance structure. The weights A may be
    negative. Moments about the same reference add; `about` moves them to another.
    """

    counts: Tensor
    firsts: Tensor
    seconds: tuple[Tensor, ...]
    form: Form
    reference: Tensor

    def __add__(self, other: Moments) -> Moments:
        same = self.reference is other.reference or torch.equal(self.reference, other.reference)
        if not same:
            raise ValueError("moments about different references cannot be added; use about(reference) first")
        seconds = tuple(a + b for a, b in zip(self.seconds, other.seconds, strict=True))
        return Moments(self.counts + other.counts, self.firsts + other.firsts, seconds, self.form, self.reference)

    def copied(self) -> Moments:
        """The same numbers in memory of their own."""
        seconds = tuple(part.clone() for part in self.seconds)
        return Moments(self.counts.clone(), self.firsts.clone(), seconds, self.form, self.reference)

    def select(self, components: slice) -> Moments:
        """The moments of some components."""
        seconds = tuple(part[components] for part in self.seconds)
        reference = self.reference.expand_as(self.firsts)[components]
        return Moments(self.counts[components], self.firsts[components], seconds, self.form, reference)

    @property
    def within(self) -> Tensor:
        """The sum of the scatters of all components about their means, (D, D), of the dense form."""
        means = self.firsts / self.counts.clamp_min(1e-300).unsqueeze(-1)
        return self.seconds[0].sum(0) - self.firsts.T @ means

    def scaled(self, factor: float | Tensor) -> Moments:
        """Multiply A by a factor: a number, or one number per component."""
        if not isinstance(factor, Tensor):
            seconds = tuple(part * factor for part in self.seconds)
            return Moments(self.counts * factor, self.firsts * factor, seconds, self.form, self.reference)
        factors = factor.expand_as(self.counts)
        seconds = tuple(part * _like(factors, part) for part in self.seconds)
        firsts = self.firsts * factors.unsqueeze(-1)
        return Moments(self.counts * factors, firsts, seconds, self.form, self.reference)

    def about(self, reference: Tensor) -> Moments:
        """Shift the moments to another reference (moments-shift): with d = new - old,

        firsts - counts d,   seconds - firsts d' - d firsts' + counts d d'.
        """
        shift = (reference - self.reference).expand_as(self.firsts)  # (K, D)
        weighted = self.counts.unsqueeze(-1) * shift
        if self.seconds[0].ndim == 3 and len(self.seconds) == 1 and self.seconds[0].numel() > MOST_TOGETHER:
            both = torch.stack((shift, self.firsts), 2), torch.stack((weighted - self.firsts, -shift), 1)
            seconds: tuple[Tensor, ...] = (torch.baddbmm(self.seconds[0], *both),)
            return Moments(self.counts, self.firsts - weighted, seconds, self.form, reference)
        # counts d d' - d firsts' - firsts d' = d (counts d - firsts)' - firsts d': two outer products instead of three.
        forward = self.form.outer(shift, weighted - self.firsts)
        backward = self.form.outer(self.firsts, shift)
        # In place, since new memory for matrices of many features takes longer than the sums.
        seconds = tuple(f.add_(s).sub_(b) for s, f, b in zip(self.seconds, forward, backward, strict=True))
        return Moments(self.counts, self.firsts - weighted, seconds, self.form, reference)

    def moved(self, form: Form, reference: Tensor) -> Moments:
        """The same moments beside a copy of the reference on another device, with the form there."""
        device = reference.device
        seconds = tuple(part.to(device) for part in self.seconds)
        return Moments(self.counts.to(device), self.firsts.to(device), seconds, form, reference)

    def plus_scatter(self, scatter: tuple[Tensor, ...]) -> Moments:
        """Add a scatter about the component's own mean to the second moments."""
        seconds = tuple(a + b for a, b in zip(self.seconds, scatter, strict=True))
        return Moments(self.counts, self.firsts, seconds, self.form, self.reference)

    def pooled(self, groups: Tensor, n_groups: int) -> Moments:
        """Sum over groups of components, each about its own reference: the scatter within the group.

        Only counts and seconds are meaningful; firsts are summed deviations.
        """

        def pool(part: Tensor) -> Tensor:
            return part.new_zeros((n_groups, *part.shape[1:])).index_add_(0, groups, part)

        return replace(
            self,
            counts=pool(self.counts),
            firsts=pool(self.firsts),
            seconds=tuple(pool(part) for part in self.seconds),
            reference=torch.zeros_like(self.firsts[0]),
        )


@dataclass(frozen=True)
class Summary:
    """The result of one pass over rows; summaries can be added.

    It has the weighted objective, the weight of the rows, the moments of their signed responsibilities (net-moments),
    and the counts of the denominator, (K,).
    """

    value: float
    weight: float
    moments: Moments
    denominator_counts: Tensor

    def __add__(self, other: Summary) -> Summary:
        counts = self.denominator_counts + other.denominator_counts
        return Summary(self.value + other.value, self.weight + other.weight, self.moments + other.moments, counts)

    def about(self, reference: Tensor) -> Summary:
        """Shift the moments to another reference."""
        return Summary(self.value, self.weight, self.moments.about(reference), self.denominator_counts)

    def tensors(self) -> list[Tensor]:
        """All summable parts, in double precision; `with_tensors` is the inverse."""
        moments, like = self.moments, self.moments.counts
        numbers = [torch.as_tensor(part, dtype=like.dtype, device=like.device) for part in (self.value, self.weight)]
        return [*numbers, self.denominator_counts, like, moments.firsts, *moments.seconds]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Summary:
        """Replace the summable parts."""
        value, weight, denominator, counts, firsts, *seconds = tensors
        moments = replace(self.moments, counts=counts, firsts=firsts, seconds=tuple(seconds))
        number = value if value.ndim else float(value)  # one for each objective, where there are several
        return Summary(cast("float", number), float(weight), moments, denominator)

    @property
    def mean_value(self) -> float:
        """Objective per unit of row weight."""
        return self.value / self.weight


def _like(factors: Tensor, part: Tensor) -> Tensor:
    return factors.reshape(-1, *(1,) * (part.ndim - 1))


@dataclass(frozen=True)
class PseudoMoments:
    """The contribution of a prior to the moments. Weights, means and covariances have separate counts.

    (map-update)  weight_k ~ counts_k + weight_count,
                  mean_k = (sum A x + mean_count * mean) / (counts_k + mean_count),
                  Sigma_k = [S_k + mean_count (mean_k - mean)(.)' + scatter] / (counts_k + 1[mean_count > 0]
                            + covariance_count) + ridge I.

    Counts are numbers, or one number per component; the covariance count may have one per distinct matrix (G,).
    """

    weight_count: float | Tensor
    mean_count: float | Tensor
    covariance_count: float | Tensor
    mean: Tensor  # (D,) or (K, D)
    scatter: Tensor  # of a diagonal matrix (D,) or (G, D), of any matrix (1, D, D) or (G, D, D): see moments.image
    ridge: float = 0.0

    @classmethod
    def none(cls, like: Tensor, ridge: float = 0.0) -> PseudoMoments:
        """Return the pseudo-moments of a flat prior; `like` has one number per feature."""
        zeros = torch.zeros_like(like)
        return cls(0.0, 0.0, 0.0, zeros, zeros, ridge)

    @cached_property
    def mean_counts(self) -> Tensor | None:
        """The mean counts as a column, () or (K, 1); None without a prior on the means."""
        if not isinstance(self.mean_count, Tensor) and self.mean_count <= 0:
            return None
        counts = torch.as_tensor(self.mean_count, dtype=self.mean.dtype, device=self.mean.device)
        if not bool((counts > 0).any()):
            return None
        return counts.unsqueeze(-1) if counts.ndim else counts

    @cached_property
    def has_scatter(self) -> bool:
        return bool((self.scatter != 0).any())
