"""Expectation-maximisation: moments of the responsibilities, turned into parameters (em-update)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mixtura.engine.evaluator import Buffers
from mixtura.engine.passes import summarise
from mixtura.engine.sources import Source, TensorSource
from mixtura.engine.threads import threads_for
from mixtura.engine.tuning import DEFAULT_MEMORY_LIMIT
from mixtura.model.mixture import Mixture
from mixtura.objectives import Assigned
from mixtura.roles import ConjugatePrior, Covariance, Objective, Prior, Step
from mixtura.values.extents import Frame
from mixtura.values.moments import DiagonalForm, Moments
from mixtura.values.pseudo_moments import PseudoMoments

ILL_DEFINED = (
    "Fitting the mixture model failed because some components have ill-defined empirical covariance (for instance "
    "caused by singleton or collapsed samples). Try to decrease the number of components, increase reg_covar, or scale "
    "the input data. Or use prior='default', which never fails."
)


@dataclass(frozen=True)
class EM:
    """Maximises a likelihood, plus a log prior where there is one; never lowers it.

    Arguments:
        objective: one without a denominator.
        frame: where the rows lie.
        prior: added to the likelihood, or None.
        class_prior: fixed class probabilities (C,), or None to learn them.
        ridge: added to every variance after an update (scikit-learn's reg_covar); not part of the objective.
        floor: the smallest variance of each feature, (D,).
        strict: raise where a covariance is not positive definite, as scikit-learn does, instead of repairing it.
    """

    objective: Objective
    frame: Frame
    floor: Tensor
    prior: Prior | None = None
    class_prior: Tensor | None = None
    ridge: float = 0.0
    memory_limit: int = DEFAULT_MEMORY_LIMIT
    strict: bool = False
    name = "em"

    def step(self, mixture: Mixture, rows: Source) -> Step:
        """One iteration; the value is that of the mixture given, (log-likelihood + log prior) per unit of weight."""
        summary = summarise(mixture, rows, self.objective, self.frame, self.memory_limit, self.buffers)
        log_prior = 0.0
        if self.prior is not None:
            log_prior = float(self.prior.log_density(mixture))
        with threads_for(len(mixture.means) * float(mixture.means.shape[1]) ** 3):
            updated = self.maximised(mixture, summary.moments)
        repairs = repairs_of(updated)
        if repairs and self.strict:
            raise ValueError(ILL_DEFINED)
        return Step(updated, (summary.value + log_prior) / summary.weight, repairs)

    def maximised(self, mixture: Mixture, moments: Moments) -> Mixture:
        """The mixture that moments ask for; a component without rows keeps its place (em-update)."""
        pseudo = self.pseudo_moments
        means, scatter = placed(mixture, moments, pseudo)
        covariance = self._covariance(mixture, means, scatter, pseudo)
        log_weights = self._log_weights(mixture, moments.counts + pseudo.weight_count)
        return mixture.moved(log_weights, means, covariance)

    def _covariance(self, mixture: Mixture, means: Tensor, scatter: Moments, pseudo: PseudoMoments) -> Covariance:
        floor = self.floor
        if self.strict and isinstance(scatter.form, DiagonalForm):
            # scikit-learn divides by counts + 10 eps, which leaves so much variance to a component on a single sample.
            counts = scatter.counts.unsqueeze(-1)
            rounding = 10 * torch.finfo(means.dtype).eps * means.square() / counts.clamp_min(1e-300)
            floor = torch.maximum(floor, torch.where(counts > 0, rounding, 0.0).amin(0))
        try:
            return mixture.covariance.updated(scatter, pseudo, floor)
        except FloatingPointError as error:
            raise ValueError(ILL_DEFINED) from error

    def _log_weights(self, mixture: Mixture, counts: Tensor) -> Tensor:
        counts = counts.clamp_min(0)
        log_counts = counts.log() - counts.sum().log()
        if self.class_prior is None:
            return log_counts
        totals = torch.stack([log_counts[part].logsumexp(0) for part in mixture.class_slices])[mixture.class_of]
        kept = mixture.log_weights - mixture.log_class_prior[mixture.class_of]  # for a class without rows
        return torch.where(totals.isfinite(), log_counts - totals, kept) + self.class_prior.log()[mixture.class_of]

    @cached_property
    def buffers(self) -> Buffers:
        """Buffers of the passes, used again from step to step."""
        return Buffers()

    @cached_property
    def pseudo_moments(self) -> PseudoMoments:
        """What the prior adds to moments, and the ridge."""
        return replace(pseudo_moments_of(self.prior, self.floor), ridge=self.ridge)


def pseudo_moments_of(prior: Prior | None, floor: Tensor) -> PseudoMoments:
    """What a prior, or none, adds; floor (D,) says how many features there are, and where."""
    if prior is None:
        zeros = torch.zeros_like(floor)
        return PseudoMoments(0.0, 0.0, 0.0, zeros, zeros)
    if not isinstance(prior, ConjugatePrior):
        raise ValueError(
            f"EM and extended Baum-Welch need a prior with pseudo-moments, such as priors.Conjugate; got "
            f"{type(prior).__name__}, which has a density alone. Use solver='gradient'."
        )
    return prior.pseudo_moments(len(floor))


def placed(mixture: Mixture, moments: Moments, pseudo: PseudoMoments) -> tuple[Tensor, Moments]:
    """The means that moments ask for, and the scatter about them (map-update); without rows a mean stays."""
    pulls = pseudo.mean_counts
    firsts, divisors = moments.firsts, moments.counts.unsqueeze(-1)
    if pulls is not None:
        firsts = firsts + pulls * (pseudo.mean - moments.reference)
        divisors = divisors + pulls
    moved = moments.reference + firsts / divisors.clamp_min(1e-300)
    means = torch.where(divisors > 0, moved, mixture.means)
    scatter = moments.about(means)
    if pulls is not None:
        off = means - pseudo.mean
        scatter = scatter.plus_scatter(scatter.form.outer(pulls * off, off))
        scatter = replace(scatter, counts=scatter.counts + (pulls > 0).squeeze(-1))
    return means, scatter


def repairs_of(mixture: Mixture) -> tuple[str, ...]:
    """What an update had to mend, in words."""
    found = []
    repaired = mixture.covariance.repaired
    if bool(repaired.any()):
        numbers = repaired.nonzero()[:, 0].tolist()
        found.append(
            f"the covariance of component {numbers[0]} was not positive definite; a multiple of its diagonal was added"
        )
    return tuple(found)


def first_update(rough: Mixture, assigned: Sequence[tuple[Tensor, Tensor, Tensor]], solver: EM) -> Mixture:
    """One EM step in which every row belongs to its assigned component."""
    rows, weights, components = (torch.cat(parts) for parts in zip(*assigned, strict=True))
    class_weights = torch.zeros(rough.n_classes, dtype=torch.float64, device=rows.device)
    class_weights.index_add_(0, rough.class_of, rough.weights)
    by_hand = replace(solver, objective=Assigned(), class_prior=None)
    updated = by_hand.step(rough, TensorSource(rows, labels=components, weights=weights)).mixture
    floored = torch.maximum(updated.log_weights, rough.log_weights - 20)  # a centre without rows stays in the game
    return replace(updated, log_weights=floored).with_class_prior(
        solver.class_prior if solver.class_prior is not None else class_weights
    )
