"""One Gaussian per class for many strengths of shrinkage, from a few eigendecompositions and without EM (closed-forms).

With scatters S_c, their sum S, class weights n_c of sum N and a diagonal target T, all in units in which T is the
identity, the covariances are

    tied   (S + kappa I) / (N + kappa),
    full   (S_c + nu P) / (n_c + nu),  P one of the tied covariances.

They are the first EM update with `Shrinkage`, so that a selected prior gives the model that was scored here.

Few samples are kept as factors of their scatters. Of many, whose moments are sums over all rows, the matrices are kept
(class-moments): held-out samples are taken away from the sums.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from mixtura.engine.threads import available_threads, check_time, share_out
from mixtura.init.description import Description
from mixtura.numerics import linalg
from mixtura.priors import Shrinkage
from mixtura.roles import Structure
from mixtura.selection.splits import Split
from mixtura.values.moments import Moments

PARTS = 8  # of the classes, whose matrices are factored together on a GPU
# Eigenvalues below this fraction of their sum are zero: they are rounding errors of products of rows.
FLAT = 1e-15


def shrinkage_units(description: Description, target: str) -> Tensor:
    """Units (D,) of the features in which a target of `Shrinkage` is the identity."""
    within = description.within
    variances = {"pooled": within, "identity": within.mean().expand_as(within)}.get(target)
    return (description.spread(1.0) if variances is None else variances).sqrt()


def score_categories(structure: Structure, indicators: Tensor, shares: Tensor, weights: Tensor, kept: Tensor) -> Tensor:
    """The log frequencies of the categories of samples in the classes of the kept samples, (n, C)."""
    parts = shares[kept].nan_to_num(nan=0.0).double() * weights[kept].double().unsqueeze(-1)  # (m, C)
    counts, sums = parts.sum(0), parts.T @ indicators[kept].double()
    frequencies, _ = structure.frequencies(counts, sums / counts.clamp_min(1e-300).unsqueeze(-1))
    return indicators.double() @ frequencies.log().T


@dataclass(frozen=True)
class ClassScatters:
    """Weights, means and scatters of the classes of complete samples.

    The scatter of a class is the sum of d d' over its deviations d, each multiplied by the root of its weight. As
    factors the scatters of many classes need no more memory than their samples.
    """

    counts: Tensor  # (C,), sums of weights
    means: Tensor  # (C, D)
    deviations: Tensor  # (m, D)
    labels: Tensor  # (m,)

    @classmethod
    def of(cls, rows: Tensor, shares: Tensor, weights: Tensor) -> ClassScatters:
        """Sum up rows (n, D) with labels as shares of the classes (n, C), NaN without a label, and weights (n,)."""
        parts = shares.nan_to_num(nan=0.0).double() * weights.double().unsqueeze(-1)
        labels, places = parts.T.nonzero(as_tuple=True)  # class by class
        own, each = rows[places].double(), parts[places, labels]
        counts = parts.sum(0)
        sums = own.new_zeros(len(counts), own.shape[1]).index_add_(0, labels, own * each.unsqueeze(-1))
        means = sums / counts.clamp_min(1e-300).unsqueeze(-1)
        return cls(counts, means, (own - means[labels]) * each.sqrt().unsqueeze(-1), labels)

    def in_units(self, scales: Tensor) -> ClassScatters:
        """The same for features divided by scales (D,)."""
        return ClassScatters(self.counts, self.means / scales, self.deviations / scales, self.labels)

    @cached_property
    def pooled(self) -> Spectrum:
        """The spectrum of the sum of the scatters."""
        return Spectrum.of(self.deviations)

    def full(self, rows: Tensor, tied: float, strengths: Sequence[float]) -> list[Tensor]:
        """Log joints (n, C) of rows with the covariances (S_c + nu P) / (n_c + nu), for every nu.

        P is the tied covariance of kappa = `tied`; the target itself if that is infinite. In coordinates in which P is
        the identity, one decomposition of each class serves every nu.
        """
        pooled, count, size = self.pooled, float(self.counts.sum()), rows.shape[1]
        target, whiten = torch.zeros_like(self.counts[0]), lambda vectors: vectors
        if tied < math.inf:
            target = pooled.log_determinant(tied) - size * math.log(count + tied)  # log |P|
            whiten = partial(pooled.whiten, strength=tied, count=count)
        white, means, by_class = whiten(rows), whiten(self.means), []
        for c, mean in enumerate(means):
            check_time()
            own = Spectrum.of(whiten(self.deviations[self.labels == c]))
            distances = own.distances(white, mean.unsqueeze(0), strengths)
            of_strengths = []
            for strength, each in zip(strengths, distances, strict=True):
                divisor = float(self.counts[c]) + strength
                log_determinant = target + own.log_determinant(strength) - size * math.log(divisor)
                of_strengths.append(_log_joint(self.counts, slice(c, c + 1), log_determinant, divisor * each))
            by_class.append(of_strengths)
        return [torch.cat(scores, 1) for scores in zip(*by_class, strict=True)]


@dataclass(frozen=True)
class ClassMatrices:
    """Weights, means and scatter matrices of the classes of samples that need not be in memory (class-moments).

    Weights and means are in units of the features, (D,); scatters are divided by them where they are used.
    """

    counts: Tensor  # (C,), sums of weights
    means: Tensor  # (C, D)
    within: Tensor  # (D, D), the sum of the scatters
    scatters: Tensor | None  # (C, D, D); None where they are too many
    units: Tensor

    @classmethod
    def of(cls, moments: Moments) -> ClassMatrices:
        """From moments of the classes."""
        means = moments.reference + moments.firsts / moments.counts.clamp_min(1e-300).unsqueeze(-1)
        scatters = moments.about(means).seconds[0]
        return cls(moments.counts, means, scatters.sum(0), scatters, torch.ones_like(means[0]))

    def in_units(self, units: Tensor, varies: Tensor) -> ClassMatrices:
        """The same for the features that vary, divided by units (D',)."""
        whole = self.scatters is None or bool(varies.all())
        scatters = self.scatters if whole or self.scatters is None else self.scatters[:, varies][:, :, varies]
        within = self.within[varies][:, varies]
        return ClassMatrices(self.counts, self.means[:, varies] / units, within, scatters, units)

    def described(self, known: Description) -> Description:
        """The description of these samples, of which that of all samples is known."""
        within = self.within.diagonal() / self.counts.sum()
        within = torch.where(known.varies & (within > 0), within, known.within)
        return replace(known, class_weights=self.counts, class_means=self.means, within=within)

    @cached_property
    def pooled(self) -> Spectrum:
        """The spectrum of the sum of the scatters."""
        values, axes = torch.linalg.eigh(self.within / torch.outer(self.units, self.units))
        return Spectrum(values.clamp_min(0), axes)

    def full(self, rows: Tensor, tied: float, strengths: Sequence[float]) -> list[Tensor]:
        """As of `ClassScatters`, by factors of the covariances."""
        scatters = self.scatters
        assert scatters is not None
        pooled, count, (n_classes, size) = self.pooled, float(self.counts.sum()), self.means.shape
        target = torch.eye(size, dtype=rows.dtype, device=rows.device)
        if tied < math.inf:
            target = (pooled.axes * ((pooled.values + tied) / (count + tied))) @ pooled.axes.T
        scale = torch.outer(self.units, self.units)
        scores = [rows.new_empty(len(rows), n_classes) for _ in strengths]
        step = max(1, n_classes // PARTS) if rows.is_cuda else 1

        def score(part: slice, thread: int) -> None:
            own = scatters[part] / scale
            for strength, of_strength in zip(strengths, scores, strict=True):
                factors, _ = torch.linalg.cholesky_ex(own + strength * target)  # the target is positive definite
                divisors = self.counts[part] + strength
                log_determinants = linalg.log_determinants(factors) - size * divisors.log()
                distances = divisors.unsqueeze(-1) * linalg.distances_of(factors, self.means[part], rows)
                of_strength[:, part] = _log_joint(self.counts, part, log_determinants, distances.T)

        parts = [slice(c, min(c + step, n_classes)) for c in range(0, n_classes, step)]
        share_out(parts, n_classes * len(rows) * float(size) ** 2, score, available_threads(rows.device), in_order=True)
        return scores


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues and eigenvectors of a scatter; directions without an eigenvector have eigenvalue zero."""

    values: Tensor  # (R,)
    axes: Tensor  # (D, R)

    @classmethod
    def of(cls, deviations: Tensor) -> Spectrum:
        """Decompose the scatter of deviations (n, D), by products of rows if there are fewer rows than features."""
        n_rows, size = deviations.shape
        if n_rows >= size:
            values, axes = torch.linalg.eigh(deviations.T @ deviations)
            return cls(values.clamp_min(0), axes)
        values, vectors = torch.linalg.eigh(deviations @ deviations.T)
        present = values > FLAT * values.sum()
        values, vectors = values[present], vectors[:, present]
        return cls(values, deviations.T @ vectors / values.sqrt())

    @property
    def is_complete(self) -> bool:
        return self.axes.shape[0] == self.axes.shape[1]

    def log_determinant(self, strength: float) -> Tensor:
        """``log |S + strength I|``."""
        size, rank = self.axes.shape
        return (self.values + strength).log().sum() + (size - rank) * math.log(strength)

    def distances(self, rows: Tensor, means: Tensor, strengths: Sequence[float]) -> list[Tensor]:
        """d' (S + strength I)^-1 d of the deviations of rows (n, D) from means (C, D), (n, C) for every strength."""
        centre = means.mean(0)
        rows, means = rows - centre, means - centre
        along, places = rows @ self.axes, means @ self.axes  # (n, R), (C, R)
        beyond = None
        if not self.is_complete:
            whole = torch.stack([(rows - mean).square().sum(1) for mean in means], 1)
            inside = torch.stack([(along - place).square().sum(1) for place in places], 1)
            beyond = (whole - inside).clamp_min(0)
        squares, results = along.square(), []
        for strength in strengths:
            precisions = 1 / (self.values + strength)
            both = (squares @ precisions).unsqueeze(-1) - 2 * along @ (places * precisions).T
            distances = both + places.square() @ precisions
            results.append((distances if beyond is None else distances + beyond / strength).clamp_min(0))
        return results

    def whiten(self, vectors: Tensor, strength: float, count: float) -> Tensor:
        """Vectors (n, D) in coordinates in which (S + strength I) / (count + strength) is the identity."""
        factors = ((count + strength) / (self.values + strength)).sqrt()
        along = vectors @ self.axes
        if self.is_complete:
            return along * factors
        beyond = math.sqrt((count + strength) / strength)
        return torch.addmm(vectors, along * (factors / beyond - 1), self.axes.T).mul_(beyond)


def score_tied(classes: ClassScatters | ClassMatrices, rows: Tensor, strengths: Sequence[float]) -> list[Tensor]:
    """Log joints (n, C) of rows with the covariance (S + kappa I) / (N + kappa), for every kappa.

    One decomposition serves all of them: another strength only rescales the axes.
    """
    count, size = float(classes.counts.sum()), rows.shape[1]
    distances = classes.pooled.distances(rows, classes.means, strengths)
    scores = []
    for strength, own in zip(strengths, distances, strict=True):
        log_determinant = classes.pooled.log_determinant(strength) - size * math.log(count + strength)
        scores.append(_log_joint(classes.counts, slice(None), log_determinant, (count + strength) * own))
    return scores


class ShrinkagePath:
    """Held-out scores of one Gaussian per class, for all strengths of shrinkage to one target.

    Parameters
    ----------
    rows : Tensor of shape (n, D)
        Complete samples.
    structure : Structure
        Says which columns are numeric, and what the others are.
    shares : Tensor of shape (n, C)
        Labels as shares of the classes; NaN without a label.
    weights : Tensor of shape (n,)
        Sample weights.
    splits : sequence of (Description, Split)
        Training parts with their descriptions, and held-out samples.
    target : {"pooled", "identity", "expected"}
        Variances towards which tied covariances are shrunk, as in `Shrinkage`.
    matrices : ClassMatrices or None, default=None
        Of the training part of the only split, where its samples are not among the rows.
    """

    def __init__(
        self,
        rows: Tensor,
        structure: Structure,
        shares: Tensor,
        weights: Tensor,
        splits: Sequence[tuple[Description, Split]],
        target: str,
        matrices: ClassMatrices | None = None,
    ):
        self.target, self.shape = target, (len(rows), len(splits), shares.shape[1])
        self._held_out = [split.held_out for _, split in splits]
        self._parts: list[tuple[ClassScatters | ClassMatrices, Tensor]] = []
        self._others: list[Tensor] = []  # of the categories
        size = structure.n_gaussian(rows.shape[1])
        for description, split in splits:
            kept = split.kept
            varies = description.varies & (torch.arange(rows.shape[1], device=rows.device) < size)  # constant features
            units = shrinkage_units(description, target)[varies]  # are equal in all classes
            if matrices is None:
                scatters = ClassScatters.of(rows[kept][:, varies], shares[kept], weights[kept])
                classes: ClassScatters | ClassMatrices = scatters.in_units(units)
            else:
                classes = matrices.in_units(units, varies)
            self._parts.append((classes, rows[split.held_out][:, varies].double() / units))
            others = score_categories(structure, rows[:, size:], shares, weights, kept)
            self._others.append(others[split.held_out])

    def thinned(self, every: int) -> ShrinkagePath:
        """The same for every so many of the rows, where their scatters are given."""
        other, held_out = copy.copy(self), [mask[::every] for mask in self._held_out]
        parts = [(classes, rows[::every]) for classes, rows in self._parts]
        others = [part[::every] for part in self._others]
        vars(other).update(_parts=parts, _others=others, _held_out=held_out, shape=(len(held_out[0]), *self.shape[1:]))
        return other

    def tied(self, strengths: Sequence[float]) -> list[Tensor]:
        """Scores (n, F, C) of tied covariances for every strength; minus infinity where a sample is not held out."""
        return self._together([score_tied(classes, rows, strengths) for classes, rows in self._parts])

    def full(self, tied: float, strengths: Sequence[float]) -> list[Tensor]:
        """The same for covariances of the classes, which are shrunk towards tied ones."""
        return self._together([classes.full(rows, tied, strengths) for classes, rows in self._parts])

    def tied_prior(self, strength: float) -> Shrinkage:
        """The prior of tied covariances with this strength."""
        return Shrinkage(strength, variances=self.target)

    def full_prior(self, tied: float, strength: float) -> Shrinkage:
        """The prior of covariances of the classes, which are shrunk towards tied ones."""
        if math.isinf(tied):
            return self.tied_prior(strength)
        variances = "covariance" if self.target == "pooled" else self.target
        return Shrinkage(strength, variances=variances, target_strength=tied)

    def _together(self, of_splits: list[list[Tensor]]) -> list[Tensor]:
        scores = []
        for parts in zip(*of_splits, strict=True):
            whole = parts[0].new_full(self.shape, -torch.inf)
            for place, (held_out, part) in enumerate(zip(self._held_out, parts, strict=True)):
                whole[held_out, place] = part + self._others[place]
            scores.append(whole)
        return scores


def _log_joint(counts: Tensor, part: slice, log_determinant: Tensor, distances: Tensor) -> Tensor:
    """log p(x, c) of some classes, up to the constant of the number of features, (n, C')."""
    return (counts.log() - counts.sum().log())[part] - 0.5 * (log_determinant + distances)


# Weight of equal variances in the covariance that EM of few labels keeps. Test error in % with 1, 2 and 5 labels per
# class, eight draws, and of the nearest class mean of the labeled samples:
#              0.5             0.7             0.85            1               labeled alone
#   docstrings 65.5 62.6 52.2  65.3 59.6 53.1  65.6 61.4 54.6  69.8 66.3 57.9  71.5 65.5 57.9
#   digits     23.8 21.2 15.4  23.0 16.1 14.6  21.9 14.8 14.0  24.0 17.7 14.6  35.6 27.0 16.3
#   USPS       39.5 32.7       40.7 32.7       43.3 33.6       42.9 38.2       50.2 40.1
EQUAL, MOST_ITERATIONS = 0.7, 100


def kept_covariance(rows: Tensor, weights: Tensor) -> Tensor:
    """The covariance of all samples, shrunk towards equal variances (few-labels)."""
    deviations = rows.double() - weights @ rows.double() / weights.sum()
    covariance = (deviations * weights.unsqueeze(-1)).T @ deviations / weights.sum()
    mean = covariance.diagonal().mean().expand(len(covariance))
    return (1 - EQUAL) * covariance + EQUAL * mean.diag()


def follow_unlabeled(rows: Tensor, shares: Tensor, weights: Tensor) -> Tensor:
    """Class means by EM with the identity as covariance and fixed class probabilities, (C, D) (few-labels).

    Parameters
    ----------
    rows : Tensor of shape (n, D)
        In coordinates in which the covariance is the identity.
    shares : Tensor of shape (n, C)
        Labels as shares of the classes; NaN without a label.
    weights : Tensor of shape (n,)
    """
    free = shares[:, 0].isnan()
    given = shares.nan_to_num(nan=0.0) * weights.unsqueeze(-1)
    counts, sums = given.sum(0), given.T @ rows
    log_prior, means = (counts / counts.sum()).log(), sums / counts.unsqueeze(-1)
    others, own_weights = rows[free], weights[free].unsqueeze(-1)
    for _ in range(MOST_ITERATIONS):
        check_time()
        assigned = identity_scores(others, means, log_prior).softmax(1) * own_weights
        updated = (sums + assigned.T @ others) / (counts + assigned.sum(0)).unsqueeze(-1)
        change, means = float((updated - means).abs().max()), updated
        if change < 1e-4:
            break
    return means


def identity_scores(rows: Tensor, means: Tensor, log_prior: Tensor) -> Tensor:
    """log p(x, c) with the identity as covariance, up to a constant per sample, (n, C)."""
    return rows @ means.T - 0.5 * means.square().sum(1) + log_prior
