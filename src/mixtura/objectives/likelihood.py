"""Joint, marginal and conditional log-likelihood, with their signed responsibilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.files.registry import storable
from mixtura.numerics.gpu import kernels_for
from mixtura.values.targets import Evaluation, Targets


def posteriors(log_joint: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Compute log sum_k exp a_k over components and its gradient, the posterior probabilities.

    All solvers use this log-sum-exp. A sample whose log joints are all -inf has posteriors of zero, not NaN.

    Parameters
    ----------
    log_joint : Tensor of shape (n_components, n_samples)
        Log joints.
    dim : int, default=0
        Dimension of the components.

    Returns
    -------
    log_sums : Tensor of shape (n_samples,)
    posteriors : Tensor of shape (n_components, n_samples)
    """
    if log_joint.is_cuda and dim == 0 and log_joint.ndim == 2:
        kernels = kernels_for(log_joint)
        if kernels is not None and len(log_joint) <= kernels.MOST_COMPONENTS:
            return kernels.posteriors(log_joint)
    largest = log_joint.detach().amax(dim, keepdim=True).clamp_min(torch.finfo(log_joint.dtype).min)
    powers = (log_joint - largest).exp_()
    totals = powers.sum(dim, keepdim=True)
    inverse = totals.clamp_min(torch.finfo(totals.dtype).tiny).reciprocal()
    # In place where no gradient is recorded: this is the innermost loop of every pass.
    posterior = powers * inverse if powers.requires_grad else powers.mul_(inverse)
    return (largest + totals.log()).squeeze(dim), posterior


def component_posteriors(log_joint: Tensor) -> Tensor:
    """The posterior probabilities of the components, (n, K), from log joints (K, n)."""
    return posteriors(log_joint)[1].T


def class_posteriors(log_joint: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """log p(x, c) of every class, (C, n), and the posteriors over the components of each class, (K, n).

    A class whose log joints are all -inf has posteriors of zero, not NaN. No operation waits for the device.
    """
    class_of, n_rows = targets.class_of, log_joint.shape[1]
    lowest = log_joint.new_full((targets.n_classes, n_rows), torch.finfo(log_joint.dtype).min)
    # The largest log joint of each class; it cancels, so no gradient need pass through it.
    largest = lowest.scatter_reduce_(0, class_of.unsqueeze(-1).expand(-1, n_rows), log_joint.detach(), "amax")
    powers = (log_joint - largest[class_of]).exp()
    members = (torch.arange(targets.n_classes, device=class_of.device).unsqueeze(-1) == class_of).to(powers.dtype)
    totals = members @ powers
    inverse = totals.clamp_min(torch.finfo(totals.dtype).tiny).reciprocal()
    return largest + totals.log(), powers * inverse[class_of]


def class_log_joint(log_joint: Tensor, sizes: Sequence[int]) -> Tensor:
    """Compute log p(x, c) of each class from the log joints of its components.

    All solvers and heads use this log-sum-exp over classes.

    Parameters
    ----------
    log_joint : Tensor of shape (n_components, n_samples)
        Log joints, with components sorted by class.
    sizes : sequence of int
        Number of components of each class.

    Returns
    -------
    class_log_joint : Tensor of shape (n_classes, n_samples)
    """
    if len(sizes) == len(log_joint):
        return log_joint
    if len(set(sizes)) == 1:
        return log_joint.unflatten(0, (len(sizes), sizes[0])).logsumexp(1)
    return torch.stack([part.logsumexp(0) for part in log_joint.split(list(sizes))])


def _own_class(log_joint: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """log p(x, c) of each row and the posterior over the components of its class (numerator).

    For an unlabeled row it is log p(x), with all components in the numerator; for a soft one sum_c y_c log p(x, c).
    """
    if targets.shares is not None:
        return _soft_class(log_joint, targets.shares, targets.class_of)
    if targets.labels is None:
        return posteriors(log_joint)
    foreign = (targets.labels >= 0) & (targets.labels != targets.class_of.unsqueeze(-1))  # (K, n)
    return posteriors(log_joint.masked_fill(foreign, -torch.inf))


def _soft_class(log_joint: Tensor, shares: Tensor, class_of: Tensor) -> tuple[Tensor, Tensor]:
    unlabeled = shares[:, 0].isnan()
    values = torch.zeros_like(log_joint[0])
    numerator = torch.zeros_like(log_joint)
    for c in range(shares.shape[1]):
        own = class_of == c
        class_values, class_posteriors = posteriors(log_joint[own])
        share = torch.where(unlabeled, 0.0, shares[:, c]).to(log_joint.dtype)
        values += torch.where(share > 0, share * class_values, 0.0)
        numerator[own] = share * class_posteriors
    if bool(unlabeled.any()):
        marginals, all_posteriors = posteriors(log_joint[:, unlabeled])
        values[unlabeled] = marginals
        numerator[:, unlabeled] = all_posteriors
    return values, numerator


@storable("joint")
@dataclass(frozen=True)
class Joint:
    """Joint log-likelihood: log p(x, c) of labeled samples, log p(x) of unlabeled ones (joint-likelihood)."""

    name = "joint"
    own_class_only = True
    needs_denominator = False
    has_density = True
    log_sums = (1.0, 0.0)

    def evaluate(self, log_joint: Tensor, targets: Targets) -> Evaluation:
        return Evaluation(*_own_class(log_joint, targets))


@storable("marginal")
@dataclass(frozen=True)
class Marginal:
    """Marginal log-likelihood, log p(x); labels are ignored (marginal-likelihood)."""

    name = "marginal"
    own_class_only = False
    needs_denominator = False
    has_density = True
    log_sums = (0.0, 1.0)

    def evaluate(self, log_joint: Tensor, targets: Targets) -> Evaluation:
        return Evaluation(*posteriors(log_joint))


# A class probability below this power of the smallest normal number has lost digits; near the smallest number itself
# its reciprocal, and with it the gradient, overflows.
SMALLEST_POWER = 2 / 3


def _from_posteriors(denominator: Tensor, labels: Tensor, class_of: Tensor) -> Evaluation | None:
    """log p(c | x) without a second exponential; None if the probability of a class underflows.

    The check waits for the device, so it is for the CPU only.
    """
    own = labels == class_of.unsqueeze(-1)  # (K, n)
    if bool((labels < 0).any()):
        own |= labels < 0
    joint = torch.where(own, denominator, 0.0)
    probabilities = joint.sum(0)
    if not bool((probabilities > torch.finfo(probabilities.dtype).tiny ** SMALLEST_POWER).all()):
        return None
    return Evaluation(probabilities.log(), joint * probabilities.reciprocal(), denominator)


@storable("conditional")
@dataclass(frozen=True)
class Conditional:
    """Conditional log-likelihood, log p(c | x); unlabeled samples contribute nothing (conditional-likelihood).

    Parameters
    ----------
    temperature : float, default=1.0
        The log joints of the classes are divided by it before the softmax (tempered-conditional).

    Examples
    --------
    >>> from mixtura.objectives import Conditional
    >>> Conditional(temperature=3.0).log_sums is None
    True
    """

    temperature: float = 1.0
    name = "conditional"
    own_class_only = False
    needs_denominator = True
    has_density = False

    @property
    def log_sums(self) -> tuple[float, float] | None:
        return (1.0, -1.0) if self.temperature == 1 else None

    def evaluate(self, log_joint: Tensor, targets: Targets) -> Evaluation:
        if self.temperature != 1:
            return self._tempered(log_joint, targets)
        marginals, denominator = posteriors(log_joint)
        if targets.labels is not None and targets.shares is None and log_joint.device.type == "cpu":
            evaluation = _from_posteriors(denominator, targets.labels, targets.class_of)
            if evaluation is not None:
                return evaluation
        values, numerator = _own_class(log_joint, targets)
        return Evaluation(values - marginals, numerator, denominator)

    def _tempered(self, log_joint: Tensor, targets: Targets) -> Evaluation:
        """The signed responsibilities within a class are those without a temperature, divided by it."""
        scores, within = class_posteriors(log_joint, targets)  # (C, n), (K, n)
        log_posteriors = (scores / self.temperature).clamp_min(torch.finfo(scores.dtype).min).log_softmax(0)
        if targets.shares is not None:
            shares = targets.shares.T.to(scores).nan_to_num()
        elif targets.labels is not None:
            shares = (torch.arange(len(scores), device=scores.device).unsqueeze(-1) == targets.labels).to(scores.dtype)
        else:
            shares = torch.zeros_like(scores)
        values = torch.where(shares > 0, shares * log_posteriors, 0.0).sum(0)
        expected = shares.sum(0) * log_posteriors.exp()  # zero for an unlabeled row
        shares, expected = (part[targets.class_of] * within / self.temperature for part in (shares, expected))
        return Evaluation(values, shares, expected)


@dataclass(frozen=True)
class Assigned:
    """Given responsibilities instead of a likelihood, for initialisation: labels or shares refer to components."""

    name = "assigned"
    own_class_only = False
    needs_denominator = False
    has_density = True

    def evaluate(self, log_joint: Tensor, targets: Targets) -> Evaluation:
        if targets.shares is not None:
            numerator = targets.shares.T.to(log_joint.dtype).contiguous()
        else:
            assert targets.labels is not None
            components = torch.arange(len(log_joint), device=log_joint.device)
            numerator = (components.unsqueeze(-1) == targets.labels).to(log_joint.dtype)
        return Evaluation(torch.zeros_like(log_joint[0]), numerator)
