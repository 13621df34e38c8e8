"""Expectation-maximisation: parameters from the moments of the responsibilities (em-update).

Of all rows, or batch by batch (stepwise-em).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import cast

import torch
from torch import Tensor

from mixtura.covariances import Full, FullCovariance, TiedCovariance
from mixtura.engine.evaluator import too_wide_for_products
from mixtura.engine.passes import moments_by_label, summarise
from mixtura.engine.sources import TensorSource
from mixtura.engine.threads import threads_for
from mixtura.files.registry import storable
from mixtura.model.mixture import Mixture
from mixtura.objectives import Assigned, Joint
from mixtura.roles import Covariance, Info, Objective, Prior, Structure
from mixtura.solvers.problem import Problem, needs_pseudo_moments
from mixtura.values.moments import DenseForm, DiagonalForm, Form, Moments, PseudoMoments

ILL_DEFINED = (
    "Fitting the mixture model failed because some components have ill-defined empirical covariance (for instance "
    "caused by singleton or collapsed samples). Try to decrease the number of components, increase reg_covar, or scale "
    "the input data. Or use prior='default', which never fails."
)


@storable("em")
@dataclass(frozen=True)
class EM:
    """Expectation-maximisation: maximises a likelihood plus a log prior monotonically.

    The state is the mixture.

    Parameters
    ----------
    strict : bool, default=False
        Raise an error if a covariance is not positive definite, as scikit-learn does, instead of repairing it.
    """

    strict: bool = False
    name = "em"
    needs_fit = False

    def refusal(self, objective: Objective, prior: Prior | None, structure: Structure) -> str | None:
        if objective.needs_denominator:
            return f'it maximises likelihoods, and objective "{objective.name}" is not one'
        return needs_pseudo_moments(prior)

    def init(self, problem: Problem, start: Mixture) -> Mixture:
        return problem.move_for_updates(start)

    def step(self, problem: Problem, state: Mixture) -> tuple[Mixture, Info]:
        """Return the updated mixture, and (log-likelihood + log prior) per unit of weight before the update."""
        problem = problem.beside(state)
        summary = summarise(
            state, problem.source, problem.objective, problem.frame, problem.memory_limit, problem.buffers
        )
        log_prior = problem.log_prior(state)
        with threads_for(len(state.means) * float(state.means.shape[1]) ** 3):
            updated = self.m_step(problem, state, summary.moments)
        repairs = repairs_of(updated)
        if repairs and self.strict:
            raise ValueError(ILL_DEFINED)
        return updated, Info((summary.value + log_prior) / summary.weight, repairs)

    def result(self, state: Mixture) -> Mixture:
        return state

    def m_step(
        self, problem: Problem, mixture: Mixture, moments: Moments, pseudo: PseudoMoments | None = None
    ) -> Mixture:
        """Return the mixture that maximises the expected log-likelihood (em-update).

        A component without samples keeps its parameters. Pseudo-moments are those of the problem unless given.
        """
        pseudo = pseudo or problem.pseudo_moments
        means, scatter = update_means(mixture, moments, pseudo)
        covariance = self._covariance(problem.floor, mixture, means, scatter, pseudo)
        log_weights = _log_weights(problem.class_prior, mixture, moments.counts + pseudo.weight_count)
        return mixture.moved(log_weights, means, covariance)

    def _covariance(
        self, floor: Tensor, mixture: Mixture, means: Tensor, scatter: Moments, pseudo: PseudoMoments
    ) -> Covariance:
        if self.strict and isinstance(scatter.form, DiagonalForm):
            # scikit-learn divides by counts + 10 eps; for a component with a single sample that adds this much
            # variance.
            counts = scatter.counts.unsqueeze(-1)
            rounding = 10 * torch.finfo(means.dtype).eps * means.square() / counts.clamp_min(1e-300)
            floor = torch.maximum(floor, torch.where(counts > 0, rounding, 0.0).amin(0))
        try:
            return mixture.covariance.updated(scatter, pseudo, floor)
        except FloatingPointError as error:
            raise ValueError(ILL_DEFINED) from error


def _log_weights(class_prior: Tensor | None, mixture: Mixture, counts: Tensor) -> Tensor:
    counts = counts.clamp_min(0)
    log_counts = counts.log() - counts.sum().log()
    if class_prior is None:
        return log_counts
    totals = torch.stack([log_counts[part].logsumexp(0) for part in mixture.class_slices])[mixture.class_of]
    kept = mixture.log_weights - mixture.log_class_prior[mixture.class_of]  # for a class without samples
    return torch.where(totals.isfinite(), log_counts - totals, kept) + class_prior.log()[mixture.class_of]


def update_means(mixture: Mixture, moments: Moments, pseudo: PseudoMoments) -> tuple[Tensor, Moments]:
    """The updated means and the scatter about them (map-update); a component without rows keeps its mean."""
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
    """Describe the repairs of an update."""
    repaired = mixture.covariance.repaired
    if not bool(repaired.any()):
        return ()
    number = int(repaired.nonzero()[0, 0])
    return (f"the covariance of component {number} was not positive definite; a multiple of its diagonal was added",)


def first_update(
    rough: Mixture, assigned: Sequence[tuple[Tensor, Tensor, Tensor]], problem: Problem, solver: EM | None = None
) -> Mixture:
    """Return the mixture after one EM step in which every sample belongs to its assigned component.

    Parameters
    ----------
    rough : Mixture
        Initial mixture.
    assigned : sequence of tuple
        Rows, their weights and their components.
    problem : Problem
        The problem to solve.
    solver : EM, optional
        The solver.

    Returns
    -------
    mixture : Mixture
    """
    rows, weights, components = (torch.cat(parts) for parts in zip(*assigned, strict=True))
    class_weights = torch.zeros(rough.n_classes, dtype=torch.float64, device=rows.device)
    class_weights.index_add_(0, rough.class_of, rough.weights)
    source = TensorSource(rows, labels=components, weights=weights)
    by_hand, start = replace(problem, source=source, objective=Assigned(), class_prior=None), rough
    missing = bool(rows.sum().isnan())
    if not missing and too_wide_for_products(rough.covariance):
        moments = moments_by_label(rough.means, source, rough.covariance, problem.memory_limit)
        updated = (solver or EM()).m_step(by_hand, start, moments)
    else:
        if missing:
            # Each component is a class of its own: samples with missing values are conditioned on theirs alone.
            start = replace(rough, class_of=torch.arange(rough.n_components, device=rough.class_of.device))
            by_hand = replace(by_hand, objective=Joint())
        updated, _ = (solver or EM()).step(by_hand, start)
    floored = torch.maximum(updated.log_weights, rough.log_weights - 20)  # an empty component may still gain samples
    return replace(updated, log_weights=floored, class_of=rough.class_of).with_class_prior(
        problem.class_prior if problem.class_prior is not None else class_weights
    )


def tied_mixture(counts: Tensor, means: Tensor, scatter: Tensor, structure: Structure, problem: Problem) -> Mixture:
    """One component of each class with one covariance for all, from the sum of their scatters (map-update).

    Parameters
    ----------
    counts : Tensor of shape (n_classes,)
        Weights of the classes.
    means : Tensor of shape (n_classes, n_features)
        Their means.
    scatter : Tensor of shape (n_features, n_features)
        About these.
    structure : Structure
        A tied structure.
    problem : Problem
        The problem that the mixture solves.

    Returns
    -------
    mixture : Mixture
    """
    class_of, zeros = torch.arange(len(counts), device=means.device), torch.zeros_like(means[:1])
    start = structure.start(torch.ones_like(means), means[:0], class_of[:0], class_of)
    assert isinstance(start, TiedCovariance)
    pooled = Moments(counts.sum().reshape(1), zeros, (scatter.unsqueeze(0),), DenseForm(), zeros)
    inner = start.inner.updated(pooled, problem.pseudo_moments, problem.floor)
    return Mixture(counts.log() - counts.sum().log(), means, replace(start, inner=inner), class_of)


PARTS = 8  # of the classes, whose matrices are updated one part after the other


def mixture_of_moments(moments: Moments, structure: Structure, problem: Problem) -> Mixture:
    """One component of each class from the moments of the classes (map-update).

    Beside the moments and the result there are no arrays of the size of all matrices.

    Parameters
    ----------
    moments : Moments
        Of the classes, in the dense form.
    structure : Structure
        Of unrestricted covariances.
    problem : Problem
        The problem that the mixture solves.

    Returns
    -------
    mixture : Mixture
    """
    n_classes, log_weights = len(moments.counts), moments.counts.log() - moments.counts.sum().log()
    class_of = torch.arange(n_classes, device=log_weights.device)

    def updated(part: slice) -> tuple[Tensor, Covariance]:
        own, own_classes = moments.select(part), class_of[part] - part.start
        variances = torch.ones_like(own.firsts)
        start = structure.start(variances, variances[:0], own_classes[:0], own_classes)
        rough = Mixture(log_weights[part], own.reference, start, own_classes)
        means, scatter = update_means(rough, own, problem.pseudo_moments)
        return means, start.updated(scatter, problem.pseudo_moments, problem.floor)

    if not isinstance(structure, Full):
        return Mixture(log_weights, *updated(slice(0, n_classes)), class_of)
    means, matrices, factors = (torch.empty_like(part) for part in (moments.firsts, *2 * moments.seconds))
    repaired, step = torch.zeros_like(class_of, dtype=torch.bool), -(-n_classes // PARTS)
    for first in range(0, n_classes, step):
        part = slice(first, first + step)
        means[part], covariance = updated(part)
        own = cast("FullCovariance", covariance)
        matrices[part], factors[part], repaired[part] = own.matrices, own.factors, own.repaired
    return Mixture(log_weights, means, FullCovariance.factorised(matrices, factors, repaired), class_of)


# gamma_t = (t + 1)^-DECAY: any exponent between 0.5 and 1 converges (Cappé and Moulines 2009); small ones forget the
# initialisation sooner, large ones average more. Held-out log-likelihood per sample after one pass of 200 000 samples
# in batches of 4000 (16 features, 8 components), relative to 20 full EM iterations, for three sets of data (make_rows
# of benchmarks.scale with shape_seed 10, 11 and 12; the figures of docs/scale.md are of other seeds):
#
#     exponent     0.55     0.6     0.7     0.8     0.9
#     seed 10    -.0085  -.0068  -.0045  -.0029  -.0019
#     seed 11    -.0084  -.0068  -.0044  -.0029  -.0019
#     seed 12    -.0085  -.0068  -.0044  -.0029  -.0019
#
# Stationary data favour large exponents, which weight the first batches more; 0.7 loses little on them.
DECAY = 0.7


def check_running(running: RunningMoments) -> None:
    """Moments of as many components and features as their reference."""
    n_components, n_features = running.reference.shape
    shapes = ((n_components, n_features), (n_components, n_features, n_features))
    fits = running.counts.shape == (n_components,) and running.firsts.shape == running.reference.shape
    if not fits or tuple(running.seconds.shape) not in shapes or running.floor.shape != (n_features,):
        raise ValueError("running moments have different shapes")


@storable("running_moments", check=check_running)
@dataclass(frozen=True)
class RunningMoments:
    """The statistics of the samples seen so far.

    Attributes
    ----------
    counts, firsts, seconds : Tensor
        Decayed sums of moments about `reference`, with second moments as matrices or as diagonals.
    reference : Tensor of shape (n_components, n_features)
    n_steps : int
        Batches seen.
    floor : Tensor of shape (n_features,)
        Smallest variances.
    prior, class_prior : object
        As in the first batch.
    """

    counts: Tensor
    firsts: Tensor
    seconds: Tensor
    reference: Tensor
    n_steps: int
    floor: Tensor
    prior: Prior | None
    class_prior: Tensor | None

    @property
    def moments(self) -> Moments:
        form: Form = DenseForm() if self.seconds.ndim == 3 else DiagonalForm()
        return Moments(self.counts, self.firsts, (self.seconds,), form, self.reference)

    def forgotten(self, step: float | str) -> float:
        """Return gamma, the fraction by which the next batch reduces the moments so far."""
        return float(step) if isinstance(step, Real) else (self.n_steps + 1) ** -DECAY

    def added(self, moments: Moments, mixture: Mixture, step: float | str) -> Moments:
        """Return S <- (1 - gamma) S + s, about the means of the mixture (stepwise-em)."""
        return self.moments.about(mixture.means).scaled(1 - self.forgotten(step)) + moments.about(mixture.means)


def adds_over_time(covariance: Covariance) -> bool:
    """Return whether moments of different iterations can be added in the form of this covariance."""
    return isinstance(covariance.form, DenseForm | DiagonalForm)


def keep_moments(
    moments: Moments, n_steps: int, floor: Tensor, prior: Prior | None, class_prior: Tensor | None
) -> RunningMoments:
    """Return moments as a storable value."""
    (seconds,) = moments.seconds
    reference = moments.reference.expand_as(moments.firsts).contiguous()
    return RunningMoments(moments.counts, moments.firsts, seconds, reference, n_steps, floor, prior, class_prior)
