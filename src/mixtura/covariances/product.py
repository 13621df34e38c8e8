"""Components that are products of a Gaussian and categorical distributions, in one likelihood.

Rows hold the numeric features first, then an indicator column per category. The log joint is the sum over both blocks
of features: a quadratic map of the numeric ones, and a linear map of the indicators, whose coefficients are log
frequencies (categorical-block). A missing category has NaN in all of its indicators and adds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from mixtura.files.registry import storable
from mixtura.roles import Conditioned, Covariance, Quadratic, Structure
from mixtura.values.features import Coefficients, SharedMap
from mixtura.values.moments import Form, Moments, PseudoMoments

# Added to the frequencies that are derived from means, so that none is zero.
SMALLEST_FREQUENCY = 1e-3
# Pseudo-samples of the overall frequencies, and those that are compared for features of many categories. Log-loss of
# the default, mean of two folds: churn with its 51 states .311 with 2 pseudo-samples, .286 with the most likely number;
# a column of 282 random categories among 540 samples .81 and .69. Few categories distinguish the components of a class,
# which the counts of whole classes do not show: chosen for all of them, tic-tac-toe has .55 instead of .04; from ten
# categories on, hpc (14) .68 instead of .65 and ljubljana (11) .60 instead of .57.
USUAL_STRENGTH, MANY_CATEGORIES = 2.0, 20
STRENGTHS = tuple(2.0**power for power in range(1, 15))
LOG_TWO_PI = math.log(2 * math.pi)
EM_ALONE = "categorical features need solver='em' and objective='joint'"


def estimate_strength(counts: Tensor) -> float:
    """The most likely Dirichlet strength for counts of categories in the classes, (C, L) -> s (category-strength)."""
    pooled = counts.sum(0) + 1 / counts.shape[1]
    strengths = torch.tensor(STRENGTHS, dtype=torch.float64, device=counts.device)
    priors = strengths[:, None, None] * pooled / pooled.sum()  # (S, 1, L)
    own = (torch.lgamma(counts + priors) - torch.lgamma(priors)).sum(-1)  # (S, C)
    whole = torch.lgamma(strengths).unsqueeze(-1) - torch.lgamma(counts.sum(1) + strengths.unsqueeze(-1))
    return float(strengths[(own + whole).sum(1).argmax()])


@dataclass(frozen=True)
class NumericForm:
    """Second moments of the numeric features alone, in the form of their covariance."""

    inner: Form
    n_numeric: int

    def outer(self, left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
        return self.inner.outer(left[..., : self.n_numeric], right[..., : self.n_numeric])

    def diagonal(self, variances: Tensor) -> tuple[Tensor, ...]:
        return self.inner.diagonal(variances[..., : self.n_numeric])

    def matrix(self, matrices: Tensor) -> tuple[Tensor, ...]:
        return self.inner.matrix(matrices[..., : self.n_numeric, : self.n_numeric])


@dataclass
class NumericMap(SharedMap):
    """All columns, then products of numeric ones."""

    inner: SharedMap
    n_numeric: int
    form: Form

    def n_columns(self, size: int) -> int:
        return size + self.inner.n_columns(self.n_numeric) - self.n_numeric

    def products(self, x: Tensor) -> Tensor:
        return self.inner.products(x[: self.n_numeric])

    def factors(self, x: Tensor, out: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        return self.inner.factors(x[: self.n_numeric], out)

    def seconds(self, sums: Tensor, size: int) -> Tensor:
        return self.inner.seconds(sums, self.n_numeric)


@storable("product")
@dataclass(frozen=True)
class Product(Structure):
    """A covariance structure for the numeric features, and frequencies for the categorical ones.

    Parameters
    ----------
    inner : Structure
        Structure of the numeric features, which are the first columns.
    n_numeric : int
        Number of numeric features.
    sizes : tuple of int
        Number of categories of each categorical feature.
    strength : float or tuple of float, default=2.0
        Number of pseudo-samples per component with the overall frequencies (Dirichlet prior), of all categorical
        features or of each.
    """

    inner: Structure
    n_numeric: int
    sizes: tuple[int, ...]
    strength: float | tuple[float, ...] = 2.0

    name = "product"

    def start(self, variances: Tensor, deviations: Tensor, assignments: Tensor, class_of: Tensor) -> ProductCovariance:
        n = self.n_numeric
        inner = self.inner.start(variances[:, :n], deviations[:, :n], assignments, class_of)
        sizes = torch.tensor(self.sizes, dtype=variances.dtype, device=variances.device)
        uniform = (1 / sizes).repeat_interleave(sizes.long()).expand(len(variances), -1).contiguous()  # (K, V)
        return ProductCovariance(inner, uniform.log(), uniform, uniform, self)

    def from_tensors(self, tensors: dict[str, Tensor]) -> ProductCovariance:
        own = ("log_frequencies", "centres", "targets")
        inner = self.inner.from_tensors({name: part for name, part in tensors.items() if name not in own})
        return ProductCovariance(inner, tensors[own[0]], tensors[own[1]], tensors[own[2]], self)

    def of_classes(self, counts: Tensor) -> Product:
        """Choose the strengths by the marginal likelihood of the counts (C, V) in the classes (category-strength)."""
        strengths = [
            estimate_strength(part) if part.shape[1] >= MANY_CATEGORIES else USUAL_STRENGTH
            for part in counts.split(list(self.sizes), 1)
        ]
        return replace(self, strength=tuple(strengths))

    @property
    def strengths(self) -> Tensor:
        """The strength for every indicator, (V,)."""
        sizes = torch.tensor(self.sizes)
        strengths = torch.as_tensor(self.strength, dtype=torch.float64)
        return strengths.expand(len(sizes)).repeat_interleave(sizes)

    def frequencies(self, counts: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        counts = counts.clamp_min(0).unsqueeze(-1)
        pooled = (counts * shares).sum(0) + 1  # avoids a frequency of zero
        targets = torch.cat([part / part.sum() for part in pooled.split(list(self.sizes))]).expand_as(shares)
        strengths = self.strengths.to(targets)
        shrunk = ((counts * shares + strengths * targets) / (counts + strengths)).split(list(self.sizes), 1)
        return torch.cat([part / part.sum(1, keepdim=True) for part in shrunk], 1), targets

    @property
    def category_sizes(self) -> tuple[int, ...]:
        return self.sizes

    @property
    def without_categories(self) -> Structure:
        return self.inner

    def with_numeric(self, structure: Structure) -> Product:
        return replace(self, inner=structure)

    @property
    def has_update(self) -> bool:
        return self.inner.has_update

    @property
    def is_unrestricted(self) -> bool:
        return self.inner.is_unrestricted

    @property
    def shares_across_classes(self) -> bool:
        return self.inner.shares_across_classes

    def n_gaussian(self, n_features: int) -> int:
        return self.n_numeric

    def concatenated(self, covariances: Sequence[Covariance]) -> ProductCovariance:
        parts = [covariance for covariance in covariances if isinstance(covariance, ProductCovariance)]
        inner = self.inner.concatenated([part.inner for part in parts])
        log_frequencies = torch.cat([part.log_frequencies for part in parts])
        centres, targets = torch.cat([part.centres for part in parts]), torch.cat([part.targets for part in parts])
        return ProductCovariance(inner, log_frequencies, centres, targets, self)


@storable("product_covariance", check=lambda covariance: covariance.check())
@dataclass(frozen=True)
class ProductCovariance(Covariance):
    """The covariances of the numeric features, and the frequencies of the categories, of K components.

    Parameters
    ----------
    inner : Covariance
        Covariances of the numeric features.
    log_frequencies : Tensor of shape (K, V)
        Log frequencies of the V categories of all categorical features; those of a feature sum to one.
    centres : Tensor of shape (K, V)
        Means of the mixture in the indicator columns.
    targets : Tensor of shape (K, V)
        Frequencies of all samples, towards which those of a component are shrunk.
    kind : Product
        The structure.
    """

    inner: Covariance
    log_frequencies: Tensor
    centres: Tensor
    targets: Tensor
    kind: Product

    @property
    def structure(self) -> Product:
        return self.kind

    @property
    def n_numeric(self) -> int:
        return self.kind.n_numeric

    @property
    def n_components(self) -> int:
        return len(self.log_frequencies)

    @property
    def n_features(self) -> int:
        return self.n_numeric + self.log_frequencies.shape[1]

    @property
    def n_parameters(self) -> int:
        """Parameters of the covariances, corrected for the means of the indicators, which sum to one."""
        return self.inner.n_parameters - self.n_components * len(self.kind.sizes)

    @property
    def matrix_of(self) -> Tensor:
        return self.inner.matrix_of

    @property
    def form(self) -> Form:
        return NumericForm(self.inner.form, self.n_numeric)

    def tensors(self) -> dict[str, Tensor]:
        own = {"log_frequencies": self.log_frequencies, "centres": self.centres, "targets": self.targets}
        return {**self.inner.tensors(), **own}

    def dense(self) -> Tensor:
        """The matrices of the numeric features, and an identity for the indicators."""
        dense = torch.diag_embed(self.variances())
        dense[:, : self.n_numeric, : self.n_numeric] = self.inner.dense()
        return dense

    def variances(self) -> Tensor:
        return torch.cat((self.inner.variances(), torch.ones_like(self.log_frequencies)), 1)

    @property
    def repaired(self) -> Tensor:
        return self.inner.repaired

    @property
    def log_determinants(self) -> Tensor:
        """Those of the numeric features, without the factor 2 pi for the indicators."""
        return self.inner.log_determinants - self.log_frequencies.shape[1] * LOG_TWO_PI

    @property
    def distinct_log_determinants(self) -> Tensor:
        return self.inner.distinct_log_determinants

    def penalty(self, scatter: Tensor) -> Tensor:
        """The Wishart part, and the Dirichlet part of the frequencies: -2 sum_v strength target_v log frequency_v."""
        n = self.n_numeric
        wishart = self.inner.penalty(scatter[..., :n, :n] if scatter.ndim == 3 else scatter[..., :n])
        dirichlet = -2 * (self.kind.strengths.to(self.targets) * self.targets * self.log_frequencies).sum()
        return wishart + dirichlet / len(wishart)

    # ---- other covariances of the structure ----

    def select(self, components: slice | Tensor) -> ProductCovariance:
        return replace(
            self,
            inner=self.inner.select(components),
            log_frequencies=self.log_frequencies[components],
            centres=self.centres[components],
            targets=self.targets[components],
        )

    def at(self, means: Tensor) -> ProductCovariance:
        """Take the frequencies from the means of the indicators, unless these have not changed."""
        centres = means[:, self.n_numeric :]
        if centres.shape != self.centres.shape or torch.equal(centres, self.centres):
            return self
        parts = centres.clamp(0, 1).split(list(self.kind.sizes), 1)
        smooth = [part + SMALLEST_FREQUENCY for part in parts]
        frequencies = torch.cat([part / part.sum(1, keepdim=True) for part in smooth], 1)
        return replace(self, log_frequencies=frequencies.log(), centres=centres)

    def matched(self, scatter: Tensor) -> ProductCovariance:
        n = self.n_numeric
        return replace(self, inner=self.inner.matched(scatter[..., :n, :n] if scatter.ndim == 3 else scatter[..., :n]))

    def compacted(self) -> ProductCovariance:
        return replace(self, inner=self.inner.compacted())

    def safe(self) -> ProductCovariance:
        return replace(self, inner=self.inner.safe())

    def check(self) -> None:
        """Raise a ValueError unless the covariances are valid and frequencies sum to one."""
        if self.n_numeric:
            self.inner.check()
        if self.inner.n_features != self.n_numeric:
            raise ValueError("covariances and numeric features have inconsistent sizes")
        shapes = {part.shape for part in (self.log_frequencies, self.centres, self.targets)}
        if shapes != {(self.inner.n_components, sum(self.kind.sizes))}:
            raise ValueError("frequencies of categories and components have inconsistent shapes")
        own = (self.log_frequencies, self.centres, self.targets)
        types = {part.dtype for part in (*self.inner.tensors().values(), *own)}
        if types - {torch.float64, torch.int64}:
            raise ValueError("covariances and frequencies of categories are not of type float64")
        if not all(bool(part.isfinite().all()) for part in (self.centres, self.targets)):
            raise ValueError("frequencies of categories are not finite")
        totals = [part.exp().sum(1) for part in self.log_frequencies.split(list(self.kind.sizes), 1)]
        if not all(bool(((total - 1).abs() < 1e-6).all()) for total in totals):
            raise ValueError("frequencies of categories do not sum to one")

    # ---- rows ----

    def coefficients(self, means: Tensor, constants: Tensor) -> Coefficients:
        n = self.n_numeric
        inner = self.inner.coefficients(means[:, :n], constants)
        assert inner.weights is not None
        assert inner.shared is not None
        # Indicators and means are relative to the centre of the rows.
        bias = inner.bias + ((self.centres - means[:, n:]) * self.log_frequencies).sum(1)
        weights = torch.cat((inner.weights[:, :n], self.log_frequencies, inner.weights[:, n:]), 1)
        return Coefficients(NumericMap(inner.shared, n, self.form), bias, weights)

    def _surprises(self, deviations: Tensor) -> Tensor:
        """-2 log frequency of the categories, summed over the features: (K, n, V) -> (K, n)."""
        indicators = deviations + self.centres.to(deviations.dtype).unsqueeze(1)
        return -2 * (indicators * self.log_frequencies.to(deviations.dtype).unsqueeze(1)).sum(-1)

    def squared_distances(self, deviations: Tensor) -> Tensor:
        n = self.n_numeric
        return self.inner.squared_distances(deviations[..., :n]) + self._surprises(deviations[..., n:])

    def second_moments(self, deviations: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        return self.inner.second_moments(deviations[..., : self.n_numeric], weights)

    def own_moments(self) -> tuple[Tensor, ...]:
        return self.inner.own_moments()

    def sample(self, components: Tensor, generator: torch.Generator) -> Tensor:
        numeric = self.inner.sample(components, generator)
        drawn = []
        for log_frequencies in self.log_frequencies.split(list(self.kind.sizes), 1):
            shares = log_frequencies.exp()[components].to(generator.device)
            categories = torch.multinomial(shares, 1, generator=generator).squeeze(1)
            drawn.append(torch.nn.functional.one_hot(categories, log_frequencies.shape[1]).to(numeric))
        return torch.cat((numeric, torch.cat(drawn, 1) - self.centres[components]), 1)

    def condition(self, deviations: Tensor, observed: Tensor) -> Conditioned:
        n, known = self.n_numeric, observed[:, self.n_numeric :]
        given = self.inner.condition(deviations[..., :n], observed[:, :n])
        indicators = torch.where(known, deviations[..., n:] + self.centres.to(deviations.dtype).unsqueeze(1), 0.0)
        surprises = -2 * (indicators * self.log_frequencies.to(deviations.dtype).unsqueeze(1)).sum(-1)
        constants = known.sum(1).to(deviations.dtype) * LOG_TWO_PI  # (n,)
        expected = (self.log_frequencies.exp() - self.centres).to(deviations.dtype).unsqueeze(1)
        filled = torch.cat((given.deviations, torch.where(known, deviations[..., n:], expected)), -1)
        return Conditioned(
            given.squared_distances + surprises, given.log_determinants - constants, filled, (given, known)
        )

    def conditional_moments(self, conditioned: Conditioned, weights: Tensor) -> tuple[Tensor, ...]:
        given, _ = cast("tuple[Conditioned, Tensor]", conditioned.state)
        return self.inner.conditional_moments(given, weights)

    def distance_moments(self, observed: Tensor) -> tuple[Tensor, Tensor]:
        n, dtype = self.n_numeric, self.log_frequencies.dtype
        known = observed[:, n:].to(dtype)
        frequencies, values = self.log_frequencies.exp(), -2 * self.log_frequencies
        means, variances = torch.zeros(2, len(frequencies), len(observed), dtype=dtype, device=known.device)
        parts = (part.split(list(self.kind.sizes), 1) for part in (frequencies, values, known))
        for share, value, seen in zip(*parts, strict=True):
            mean = (share * value).sum(1)
            means = means + torch.outer(mean, seen[:, 0])
            variances = variances + torch.outer((share * value.square()).sum(1) - mean.square(), seen[:, 0])
        count = observed[:, :n].sum(1).to(dtype)
        return count + means, 2 * count + variances

    # ---- learning ----

    def updated(self, scatter: Moments, pseudo: PseudoMoments, floor: Tensor) -> ProductCovariance:
        n = self.n_numeric
        prior = pseudo.scatter[..., :n, :n] if pseudo.scatter.ndim == 3 else pseudo.scatter[..., :n]
        own = replace(pseudo, mean=pseudo.mean[..., :n], scatter=prior)
        reference = scatter.reference.expand_as(scatter.firsts)
        numeric = Moments(scatter.counts, scatter.firsts[:, :n], scatter.seconds, self.inner.form, reference[:, :n])
        frequencies, targets = self.kind.frequencies(scatter.counts, reference[:, n:].clamp(0, 1))
        inner = self.inner.updated(numeric, own, floor[:n])
        centres = reference[:, n:].contiguous()
        return ProductCovariance(inner, frequencies.log(), centres, targets.contiguous(), self.kind)

    def unconstrained(self) -> dict[str, Tensor]:
        raise ValueError(f"{EM_ALONE}, not an optimiser.")

    def constrained(self, free: dict[str, Tensor]) -> ProductCovariance:
        raise ValueError(f"{EM_ALONE}, not an optimiser.")

    def quadratic(self, free: dict[str, Tensor]) -> Quadratic:
        raise ValueError(f"{EM_ALONE}, not an optimiser.")
