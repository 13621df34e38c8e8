"""Unconstrained parameters of a mixture, and the gradient of an objective with respect to them (free-form).

Features are standardised internally, so that one step size suits all of them. Rows with missing values contribute
moments, by Fisher's identity (gradient-moments).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mixtura.files.registry import storable
from mixtura.model.mixture import Mixture
from mixtura.numerics.linalg import NumericalError
from mixtura.roles import Objective, Prior, Quadratic
from mixtura.values.features import SQUARES, Coefficients
from mixtura.values.moments import DenseForm, Moments
from mixtura.values.targets import Targets

LOWEST_LOGIT = -60.0  # of a component with weight zero: its gradient is negligible but finite


@storable("units")
@dataclass(frozen=True)
class Units:
    """Standardisation of the features in an optimiser: (x - centre) / scales.

    Parameters
    ----------
    centre : Tensor of shape (n_features,)
        Subtracted from the samples.
    scales : Tensor of shape (n_features,)
        Divide them.
    """

    centre: Tensor  # (D,)
    scales: Tensor  # (D,)

    def of(self, mixture: Mixture) -> Mixture:
        """Return a mixture in these units.

        Parameters
        ----------
        mixture : Mixture
            In the units of the samples.

        Returns
        -------
        mixture : Mixture
        """
        return replace(
            mixture,
            means=(mixture.means - self.centre) / self.scales,
            covariance=mixture.covariance.scaled(1 / self.scales),
        )

    def back(self, mixture: Mixture) -> Mixture:
        """Return a mixture in the units of the samples.

        Parameters
        ----------
        mixture : Mixture
            In these units.

        Returns
        -------
        mixture : Mixture
        """
        means = mixture.means * self.scales + self.centre
        return replace(mixture, means=means, covariance=mixture.covariance.scaled(self.scales))


@dataclass(frozen=True)
class FreeParameters:
    """The parameters as a prior sees them: differentiable and in the units of the rows."""

    log_weights: Tensor  # (K,)
    standard_means: Tensor  # (K, D)
    quadratic: Quadratic
    units: Units
    distinct: Tensor  # (G,), one component for each distinct matrix

    @property
    def means(self) -> Tensor:
        dtype = self.standard_means.dtype
        return self.standard_means * self.units.scales.to(dtype) + self.units.centre.to(dtype)

    @property
    def log_determinants(self) -> Tensor:
        units = 2 * self.units.scales.log().sum()
        return units.to(self.log_weights.dtype) - self.quadratic.log_determinants

    @property
    def distinct_log_determinants(self) -> Tensor:
        return self.log_determinants[self.distinct]

    def traces(self, scatter: Tensor) -> Tensor:
        scales, quadratic = self.units.scales, self.quadratic
        of_matrix = scatter.ndim == 3
        scatter = (scatter / (torch.outer(scales, scales) if of_matrix else scales.square())).to(self.log_weights.dtype)
        total = torch.zeros_like(quadratic.log_determinants)
        if quadratic.diagonals is not None:
            total = total + (quadratic.diagonals * (scatter.diagonal(dim1=1, dim2=2) if of_matrix else scatter)).sum(-1)
        if quadratic.factors is not None:
            along = scatter @ quadratic.factors if of_matrix else scatter.unsqueeze(-1) * quadratic.factors
            total = total + quadratic.sign * (quadratic.factors * along).sum((1, 2))
        return total[self.distinct]

    def distances(self, vectors: Tensor) -> Tensor:
        scaled = vectors / self.units.scales.to(vectors.dtype)
        return (scaled * _times(self.quadratic, scaled)).sum(-1)


def _times(quadratic: Quadratic, vectors: Tensor) -> Tensor:
    """Lambda_k v_k, (K, D)"""
    total = torch.zeros_like(vectors)
    if quadratic.diagonals is not None:
        total = total + quadratic.diagonals * vectors
    if quadratic.factors is not None:
        along = quadratic.factors.mT @ vectors.unsqueeze(-1)
        total = total + quadratic.sign * (quadratic.factors @ along).squeeze(-1)
    return total


class FreeMixture:
    """The leaves (logits of the weights, means, unconstrained covariances) and the mixture computed from them."""

    def __init__(
        self,
        mixture: Mixture,
        units: Units,
        prior: Prior | None,
        class_prior: Tensor | None,
        dtype: torch.dtype,
        floor: float | None = None,
    ):
        standard = units.of(mixture)
        self.units, self.dtype = units, dtype
        self.prior = prior
        self._template = standard.covariance if floor is None else standard.covariance.with_smallest(floor)
        self.class_of, self.n_classes = mixture.class_of, mixture.n_classes
        self._log_class_prior = None if class_prior is None else class_prior.to(dtype).log()
        self._members = (torch.arange(self.n_classes, device=self.class_of.device).unsqueeze(-1) == self.class_of).to(
            dtype
        )
        matrix_of = mixture.covariance.matrix_of
        every = torch.arange(mixture.n_components, device=self.class_of.device)
        # One component for each of the matrices.
        self._distinct = torch.zeros_like(every[: int(matrix_of.max()) + 1]).index_copy_(0, matrix_of, every)
        self._constant = float(-0.5 * mixture.n_features * math.log(2 * math.pi) - units.scales.log().sum())
        start = {"logits": standard.log_weights.clamp_min(LOWEST_LOGIT), "means": standard.means}
        start |= self._template.unconstrained()
        self.leaves = {
            name: part.detach().to(dtype, copy=True).contiguous().requires_grad_() for name, part in start.items()
        }

    # ---- parameters --------------------------------------------------------------------------------------------

    def log_weights(self) -> Tensor:
        """(K,), from logits: a softmax over all components, or within each class where class priors are fixed."""
        logits = self.leaves["logits"]
        if self._log_class_prior is None:
            return logits.log_softmax(0)
        largest = logits.new_zeros(self.n_classes).scatter_reduce(  # of each class: they may be far apart
            0, self.class_of, logits.detach(), "amax", include_self=False
        )
        totals = (self._members @ (logits - largest[self.class_of]).exp()).log() + largest
        return logits - totals[self.class_of] + self._log_class_prior[self.class_of]

    def _quadratic(self) -> Quadratic:
        return self._template.quadratic({k: v for k, v in self.leaves.items() if k not in ("logits", "means")})

    def _log_prior(self, log_weights: Tensor, quadratic: Quadratic) -> Tensor | None:
        if self.prior is None:
            return None
        means = self.leaves["means"]
        parameters = FreeParameters(log_weights, means, quadratic, self.units, self._distinct)
        return self.prior.log_density(parameters)

    def mixture(self) -> Mixture:
        """The mixture in the units of the rows, in double precision."""
        with torch.no_grad():
            mixture = self.units.back(self.standard_mixture())
        if not bool(mixture.means.isfinite().all() & (mixture.log_weights < torch.inf).all()):
            raise NumericalError("a mean or a weight is not finite")
        return mixture

    def standard_mixture(self) -> Mixture:
        """The mixture of the standardised features."""
        with torch.no_grad():
            free = {k: v.detach().double() for k, v in self.leaves.items() if k not in ("logits", "means")}
            covariance = self._template.constrained(free).safe()
            means = self.leaves["means"].detach().double()
            return Mixture(self.log_weights().double(), means, covariance, self.class_of)

    def snapshot(self) -> dict[str, Tensor]:
        return {name: leaf.detach().clone() for name, leaf in self.leaves.items()}

    def restore(self, snapshot: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, leaf in self.leaves.items():
                leaf.copy_(snapshot[name])

    # ---- complete rows -----------------------------------------------------------------------------------------

    def coefficients(self) -> tuple[Coefficients, Quadratic, Tensor]:
        """The coefficients of the feature map, differentiable, and the precisions and log weights behind them."""
        quadratic, log_weights, means = self._quadratic(), self.log_weights(), self.leaves["means"]
        bias = log_weights + 0.5 * quadratic.log_determinants + self._constant
        diagonals, factors = quadratic.diagonals, quadratic.factors
        shared = weights = projections = offsets = None
        if diagonals is not None:
            linear = diagonals * means
            bias = bias - 0.5 * (linear * means).sum(-1)
            shared, weights = SQUARES, torch.cat((linear, -0.5 * diagonals), 1)
        if factors is not None:
            projections = factors.mT  # (K, R, D)
            offsets = torch.linalg.vecdot(projections, means.unsqueeze(1))  # (K, R)
        return Coefficients(shared, bias, weights, projections, offsets, quadratic.sign), quadratic, log_weights

    def log_joint(self, x: Tensor) -> Tensor:
        """Log joints (K, n) of standardised rows (D, n), without gradients."""
        with torch.no_grad():
            coefficients, _, _ = self.coefficients()
            return coefficients.forward(coefficients.phi(x))[0]

    def add_gradient(
        self, objective: Objective, x: Tensor, targets: Targets, weights: Tensor, divisor: float, prior_share: float
    ) -> Tensor:
        """Add the gradient of -(objective of the rows + prior_share * log prior) / divisor; return the objective.

        Rows (D, n) are complete: the pullback of the signed responsibilities is the gradient with respect to the
        coefficients, and autograd continues from there to the leaves, at a cost independent of the number of rows.
        """
        with torch.enable_grad():
            coefficients, quadratic, log_weights = self.coefficients()
            log_prior = self._log_prior(log_weights, quadratic)
        with torch.no_grad():
            held = coefficients.detached()
            log_joint, features = held.forward(held.phi(x))
            evaluation = objective.evaluate(log_joint, targets)
            gradients = held.zeros()
            held.pullback(gradients, features, evaluation.signed * (weights / -divisor), slice(None))
            value = (evaluation.values * weights).sum()
        roots = coefficients.parts
        if log_prior is not None:
            roots.append(log_prior)
            gradients.append(torch.full_like(log_prior, -prior_share / divisor))
            value = value + prior_share * log_prior.detach()
        torch.autograd.backward(roots, gradients)
        return value

    # ---- rows with missing values -------------------------------------------------------------------------------

    def add_gradient_of_moments(self, moments: Moments, divisor: float, prior_share: float) -> Tensor:
        """Add the gradient given moments of the signed responsibilities about the current means; return the log prior.

        The gradient of sum A log f is that of counts (log w + log|Lambda| / 2) + mean . Lambda firsts - tr(Lambda C)
        / 2, with firsts, C and the first Lambda held (gradient-moments).
        """
        counts, firsts = moments.counts.to(self.dtype), moments.firsts.to(self.dtype)
        seconds = [part.to(self.dtype) for part in moments.seconds]
        dense = isinstance(moments.form, DenseForm)
        with torch.enable_grad():
            quadratic, log_weights, means = self._quadratic(), self.log_weights(), self.leaves["means"]
            total = counts @ (log_weights + 0.5 * quadratic.log_determinants)
            total = total + (means * _times(quadratic, firsts).detach()).sum()
            if quadratic.diagonals is not None:
                total = total - 0.5 * (quadratic.diagonals * seconds[0]).sum()
            if quadratic.factors is not None:
                spread = seconds[0] @ quadratic.factors.detach() if dense else seconds[1]
                total = total - quadratic.sign * (quadratic.factors * spread).sum()
            log_prior = self._log_prior(log_weights, quadratic)
            if log_prior is not None:
                total = total + prior_share * log_prior
            (-total / divisor).backward()
        return torch.zeros_like(counts[0]) if log_prior is None else prior_share * log_prior.detach()
