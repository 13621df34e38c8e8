"""The covariance role: a structure, and the covariances of K components in it, with dense defaults."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from mixtura import checks
from mixtura.files.registry import Structured
from mixtura.numerics import linalg
from mixtura.numerics.cached_property import cached_property
from mixtura.numerics.conditioning import DenseGaussians, PatternBlock
from mixtura.numerics.low_rank_marginals import LowRankMarginals
from mixtura.values.features import QUADRATICS, Coefficients
from mixtura.values.moments import DenseForm, Form, Moments, PseudoMoments, image

DENSE = DenseForm()
# Values of means from which the deviations of rows are formed together.
VALUES_TOGETHER = 2**12


@dataclass(frozen=True)
class Conditioned:
    """Components conditioned on the observed values of rows with missing values.

    Deviations are from the component means, with missing values at their conditional expectation.
    """

    squared_distances: Tensor  # (K, n), of the observed values
    log_determinants: Tensor  # (K, n), of the observed blocks
    deviations: Tensor  # (K, n, D)
    state: object  # input of conditional_moments


@dataclass(frozen=True)
class Quadratic:
    """Lambda_k = diag(diagonals_k) + sign factors_k factors_k', for optimisers (free-form).

    Results may depend on the factors only through factors factors'.
    """

    log_determinants: Tensor  # log |Lambda_k|, (K,)
    diagonals: Tensor | None  # (K, D); None: zero
    factors: Tensor | None  # (K, D, R); None: zero
    sign: float = 1.0


class Structure(ABC):
    """A covariance structure, as requested by the user, without parameters. A frozen dataclass.

    A new structure implements `name`, `start` and `from_tensors`.
    """

    name: ClassVar[str]
    # Whether the numeric features of a model with categorical ones can have this structure.
    takes_categories: ClassVar[bool] = False
    # Whether components have a few directions of their own, for which wide features have room where matrices are many.
    has_directions: ClassVar[bool] = False

    @abstractmethod
    def start(self, variances: Tensor, deviations: Tensor, assignments: Tensor, class_of: Tensor) -> Covariance:
        """Make a first covariance with these variances (K, D).

        Rows (n, D) about the mean of their assigned component (n,) may refine it; class_of (K,) are the classes.
        """

    @abstractmethod
    def from_tensors(self, tensors: dict[str, Tensor]) -> Covariance:
        """Make a covariance from its parameters; the inverse of `Covariance.tensors`."""

    @property
    def category_sizes(self) -> tuple[int, ...]:
        """Number of categories of each categorical feature, whose indicators are the last columns."""
        return ()

    @property
    def without_categories(self) -> Structure:
        """The structure of the numeric features."""
        return self

    def with_numeric(self, structure: Structure) -> Structure:
        """The same with another structure of the numeric features."""
        return structure

    def of_classes(self, counts: Tensor) -> Structure:
        """The same with what depends on the counts of the categories in the classes, (C, V)."""
        return self

    def frequencies(self, counts: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Frequencies (K, V) of components with counts (K,) and shares (K, V) of the categories, and their targets."""
        return shares, shares

    @property
    def has_update(self) -> bool:
        """Whether `Covariance.updated` has a closed form; if not, EM fits the structure `for_em` instead."""
        return True

    @property
    def is_unrestricted(self) -> bool:
        """Whether the structure includes every positive definite matrix."""
        return False

    @property
    def is_diagonal(self) -> bool:
        """Whether features are independent within a component."""
        return False

    @property
    def shares_across_classes(self) -> bool:
        """Whether components of different classes share a covariance."""
        return False

    @property
    def is_gaussian(self) -> bool:
        """Whether all features are Gaussian; if not, only EM can train the model."""
        return not self.category_sizes

    def n_gaussian(self, n_features: int) -> int:
        """Number of Gaussian features; they come first."""
        return n_features

    def for_em(self, n_features: int) -> Structure:
        """The structure that EM fits instead of this one."""
        return self

    def converted(self, covariance: Covariance) -> Covariance:
        """Convert a covariance fitted by EM to this structure."""
        return covariance

    def concatenated(self, covariances: Sequence[Covariance]) -> Covariance:
        """Join the components of several covariances of this structure, in order."""
        parts = [covariance.tensors() for covariance in covariances]
        return self.from_tensors({name: torch.cat([part[name] for part in parts]) for name in parts[0]})


class Covariance(Structured):
    """The covariances of K components in one structure: a frozen dataclass.

    A new structure implements `structure`, `dense`, `tensors`, `updated`, and `unconstrained` with its inverse
    `constrained`. The defaults of all other methods use the dense matrices; they are overridden only for speed. `dense`
    and `constrained` are differentiable, without repairs of matrices and without synchronisation with the device.
    `form` and `coefficients` belong together: the moments of the feature map are the input of `updated`.
    """

    # Cached values that `select` carries over to the selected components.
    _carried: ClassVar[tuple[str, ...]] = ("_factorised", "_repaired", "precisions", "_inverse_factors")

    # ---- to be implemented ----

    @property
    @abstractmethod
    def structure(self) -> Structure:
        """The structure whose `from_tensors` restores this covariance."""

    @abstractmethod
    def dense(self) -> Tensor:
        """The matrices, (K, D, D)."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The parameters by name, each (K, ...); the inverse of the structure's `from_tensors`."""

    @abstractmethod
    def updated(self, scatter: Moments, pseudo: PseudoMoments, floor: Tensor) -> Covariance:
        """The covariance that maximises the expected log-likelihood plus log prior (map-update).

        `unrestricted_update` gives the matrices of a covariance without restrictions.

        Parameters
        ----------
        scatter : Moments
            Moments about the new means; the counts are the divisors. Components without a positive count do not change.
        pseudo : PseudoMoments
            Of the prior.
        floor : Tensor of shape (D,)
            The smallest variances.
        """

    @abstractmethod
    def unconstrained(self) -> dict[str, Tensor]:
        """Unconstrained parameters for optimisers, without redundancy (free-form)."""

    @abstractmethod
    def constrained(self, free: dict[str, Tensor]) -> Covariance:
        """The inverse of `unconstrained`: a covariance of the same structure."""

    # ---- size and kind ----

    @property
    def n_components(self) -> int:
        return len(next(iter(self.tensors().values())))

    @property
    def n_features(self) -> int:
        return self._matrices.shape[-1]

    @property
    def n_parameters(self) -> int:
        """Number of free parameters."""
        return sum(part.numel() for part in self.unconstrained().values())

    @property
    def is_diagonal(self) -> bool:
        return self.structure.is_diagonal

    @property
    def has_one_scale(self) -> bool:
        """Whether `scaled` needs the same scale for all features."""
        return False

    @property
    def matrix_of(self) -> Tensor:
        """The distinct matrix of each component, (K,): fewer than K if components share matrices."""
        return torch.arange(self.n_components, device=next(iter(self.tensors().values())).device)

    @property
    def form(self) -> Form:
        """The form of the second moments that `updated` takes."""
        return DENSE

    # ---- matrices ----

    @cached_property
    def _matrices(self) -> Tensor:
        return self.dense()

    @cached_property
    def _factorised(self) -> tuple[Tensor, Tensor]:
        return linalg.safe_cholesky(self._matrices)

    @property
    def factors(self) -> Tensor:
        """Lower Cholesky factors of the matrices, (K, D, D)."""
        return self._factorised[0]

    @property
    def repaired(self) -> Tensor:
        """Mask of the matrices that are not positive definite or were repaired, (K,)."""
        return self._repaired

    @cached_property
    def _repaired(self) -> Tensor:
        return self._factorised[1]

    @cached_property
    def precisions(self) -> Tensor:
        """The inverse matrices, (K, D, D)."""
        return linalg.precisions(self.factors)

    @cached_property
    def _inverse_factors(self) -> Tensor:
        """Inverses of the factors, (K, D, D): on a GPU products take less time than substitutions."""
        return linalg.inverse_lower(self.factors)

    @cached_property
    def _log_determinants(self) -> Tensor:
        return linalg.log_determinants(self.factors)

    @property
    def log_determinants(self) -> Tensor:
        """``log |Sigma_k|``, (K,)."""
        return self._log_determinants

    @property
    def distinct_log_determinants(self) -> Tensor:
        """``log |Sigma_g|`` of every distinct matrix, (G,)."""
        return self.log_determinants

    def variances(self) -> Tensor:
        """The diagonals of the matrices, (K, D)."""
        return self._matrices.diagonal(dim1=-2, dim2=-1)

    def penalty(self, scatter: Tensor) -> Tensor:
        """tr(Sigma_g^-1 scatter) of every distinct matrix, (G,): the Wishart part of a conjugate prior.

        scatter is as in PseudoMoments.
        """
        return (self.precisions * image(DENSE, scatter, self.n_components)[0]).sum((-2, -1))

    # ---- other covariances of the structure ----

    def select(self, components: slice | Tensor) -> Covariance:
        """The covariances of some components."""
        chosen = self.structure.from_tensors({name: part[components] for name, part in self.tensors().items()})
        for name in self._carried:  # keeps results that are already computed
            if name in vars(self):
                value = vars(self)[name]
                several = isinstance(value, tuple)
                vars(chosen)[name] = tuple(v[components] for v in value) if several else value[components]
        return chosen

    def compacted(self) -> Covariance:
        """Remove matrices that no component uses."""
        return self

    def at(self, means: Tensor) -> Covariance:
        """The covariance for components with these means (K, D); only categorical features depend on them."""
        return self

    def to(self, device: torch.device | str) -> Covariance:
        """Copy the covariances to a device."""
        return self.structure.from_tensors({name: part.to(device) for name, part in self.tensors().items()})

    def safe(self) -> Covariance:
        """Repair matrices that have no Cholesky factor because of rounding."""
        return self

    def matched(self, scatter: Tensor) -> Covariance:
        """The covariance of this structure with these variances (K, D) or matrices (K, D, D).

        Shared matrices, and structures without a closed-form update, do not change.
        """
        if not self.structure.has_update:
            return self
        zeros = torch.zeros_like(scatter[:, 0] if scatter.ndim == 3 else scatter)  # (K, D)
        moments = Moments(torch.ones_like(zeros[:, 0]), zeros, image(self.form, scatter, len(zeros)), self.form, zeros)
        return self.updated(moments, PseudoMoments(0.0, 0.0, 0.0, zeros[0], zeros[0]), zeros[0])

    def scaled(self, scales: Tensor) -> Covariance:
        """The covariances of scales * x; scales (D,) are all equal if `has_one_scale`."""
        return self.matched(self._matrices * (scales.unsqueeze(-1) * scales))

    def with_smallest(self, smallest: float) -> Covariance:
        """Set the smallest diagonal entry for optimisers, if the structure has one."""
        return self

    def check(self) -> None:
        """Raise a ValueError unless all matrices are finite and, up to rounding, positive definite."""
        variances = self.variances()  # fails unless there are two dimensions
        checks.positive_numbers("a variance", variances)
        scales = variances.rsqrt()
        checks.definite("a covariance", self._matrices * scales.unsqueeze(-1) * scales.unsqueeze(-2))

    # ---- complete rows ----

    def coefficients(self, means: Tensor, constants: Tensor) -> Coefficients:
        """The feature map of complete rows.

        Parameters
        ----------
        means : Tensor of shape (K, D)
            Means about the centre of the rows.
        constants : Tensor of shape (K,)
            Added to the log-densities.
        """
        precisions = self.precisions
        linear = torch.bmm(precisions, means.unsqueeze(-1)).squeeze(-1)  # (K, D)
        squared = (linear * means).sum(-1) + self.log_determinants + self.n_features * math.log(2 * math.pi)
        weights = torch.cat((linear, QUADRATICS.pack(precisions)), 1)
        return Coefficients(QUADRATICS, torch.sub(constants, squared, alpha=0.5), weights)

    def distances_from(self, means: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """d' Sigma^-1 d of rows (n, D) from means (K, D): (K, n); differences are rounded, and not rows."""
        step, parts = max(1, VALUES_TOGETHER // means.shape[1]), []
        for start in range(0, max(1, len(means)), step):  # also without any component
            deviations = (rows.double() - means[start : start + step].unsqueeze(1)).to(dtype)
            own = self if step >= len(means) else self.select(slice(start, start + step))
            parts.append(own.squared_distances(deviations))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def squared_distances(self, deviations: Tensor) -> Tensor:
        """d' Sigma^-1 d of deviations (K, n, D) from the means: (K, n)."""
        if deviations.is_cuda and not deviations.requires_grad:
            return (deviations @ self._inverse_factors.to(deviations.dtype).mT).square_().sum(2)
        return linalg.solve_lower(self.factors.to(deviations.dtype), deviations.mT).square().sum(1)

    def distance_moments(self, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the squared distances of a component's own rows with these observed values (n, D).

        Each is (n,), or (K, n) if components differ.
        """
        count = observed.sum(1).to(self.variances().dtype)
        return count, 2 * count

    def second_moments(self, deviations: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        """sum_n weights d d' in the form of the structure; deviations (K, n, D), weights (K, n)."""
        return self.form.matrix((deviations * weights.unsqueeze(-1)).mT @ deviations)

    def own_moments(self) -> tuple[Tensor, ...]:
        """The model's own second moments about its means, in the form of the structure."""
        return self.form.matrix(self._matrices)

    def sample(self, components: Tensor, generator: torch.Generator) -> Tensor:
        """Draw one zero-mean row for each entry of components: (n,) -> (n, D)."""
        shape, dtype = (len(components), self.n_features), self._matrices.dtype
        noise = torch.randn(*shape, generator=generator, dtype=dtype, device=generator.device).to(self._matrices.device)
        draws = torch.empty_like(noise)
        for k in components.unique().tolist():
            chosen = components == k
            draws[chosen] = noise[chosen] @ self.factors[k].T
        return draws

    # ---- rows with missing values ----

    @cached_property
    def _gaussians(self) -> DenseGaussians:
        return DenseGaussians(self._matrices, self.factors, self.precisions, self.log_determinants)

    def condition(self, deviations: Tensor, observed: Tensor) -> Conditioned:
        """Condition on the observed values (n, D); deviations (K, n, D) are zero for missing values."""
        return Conditioned(*self._gaussians.condition(deviations, observed))

    def conditional_moments(self, conditioned: Conditioned, weights: Tensor) -> tuple[Tensor, ...]:
        """sum_n weights Cov[x | observed values] in the form of the structure; weights (K, n)."""
        blocks = cast("list[PatternBlock]", conditioned.state)
        return self.form.matrix(self._gaussians.conditional_covariances(blocks, weights))

    @property
    def has_marginals(self) -> bool:
        """Whether `marginals` computes rows with missing values by matrix products, faster than `condition`."""
        return False

    def marginals(self, rows: Tensor, observed: Tensor, means: Tensor) -> LowRankMarginals:
        """The marginal densities of the observed values of rows (n, D), which are zero for missing values.

        Rows and means (K, D) have the same reference.
        """
        raise NotImplementedError(f"{type(self).__name__} has no marginals by matrix products; use condition")

    # ---- learning ----

    def unrestricted_update(self, scatter: Moments, pseudo: PseudoMoments, floor: Tensor) -> Tensor:
        """The update (K, D, D) of a covariance without restrictions (map-update).

        Moments are in the dense form. The matrices of components without a positive count do not change.
        """
        divisors = (scatter.counts + pseudo.covariance_count)[:, None, None]
        matrices = scatter.seconds[0] + scatter.seconds[0].mT  # twice, without the asymmetry of rounding
        if pseudo.has_scatter:
            matrices.add_(image(DENSE, pseudo.scatter, self.n_components)[0], alpha=2)
        matrices = torch.where(divisors > 0, matrices.div_((2 * divisors).clamp_min(1e-300)), self._matrices)
        diagonals = matrices.diagonal(dim1=-2, dim2=-1)
        torch.maximum(diagonals + pseudo.ridge, floor, out=diagonals)
        return matrices

    def definite(self, scatter: Moments, pseudo: PseudoMoments) -> Tensor:
        """Mask of the components whose update is positive definite without a repair, (K,).

        Net moments need not be the moments of any rows.
        """
        (prior,) = image(DENSE, pseudo.scatter, self.n_components)
        failures = torch.linalg.cholesky_ex(scatter.seconds[0] + prior)[1]  # of the lower triangles
        return (scatter.counts + pseudo.covariance_count > 0) & (failures == 0)

    def quadratic(self, free: dict[str, Tensor]) -> Quadratic:
        """The precisions of `constrained(free)`, differentiable, without repairs and without synchronisation."""
        inverse, log_determinants = linalg.inverse_factors(self.constrained(free).dense())
        return Quadratic(-log_determinants, None, inverse.mT)
