"""Joint, marginal and conditional likelihood, with their signed responsibilities."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.values.targets import Evaluation, Targets

LOG2_E = math.log2(math.e)


def largest_of(log_joint: Tensor, dim: int = 0) -> Tensor:
    """The largest log joints along an axis; a finite number also where they are all -inf."""
    return log_joint.amax(dim).clamp_min(torch.finfo(log_joint.dtype).min)


def exponentials(log_joint: Tensor, largest: Tensor, overwrite: bool = False) -> Tensor:
    """exp of the differences from larger numbers, in the same memory if that may be written over; zero where it would
    be smaller than normal numbers are.

    On a CPU numbers that are not normal slow down what is done with them, and powers of two, which torch makes itself,
    take half the time of exp by MKL on an AMD EPYC. (On an Intel Xeon they take 1.2 times as long.)
    """
    # Differences first, which are exact where they matter: the factor would round each of two large numbers by itself.
    differences = log_joint.sub_(largest) if overwrite else log_joint - largest
    if differences.requires_grad or not differences.is_cpu:
        return differences.exp_()
    smallest = math.log2(torch.finfo(differences.dtype).tiny) + 4
    return torch.threshold_(differences.mul_(LOG2_E), smallest, -math.inf).exp2_()


def posteriors(log_joint: Tensor, overwrite: bool = False) -> tuple[Tensor, Tensor]:
    """log sum_k exp a_k (n,) and its gradient, the posterior over components, (K, n); that may overwrite log_joint.

    A row whose log joints are all -inf has zeros, not NaN. In the same memory an EM iteration of 64 diagonal
    components takes 0.8 of the time.
    """
    largest = largest_of(log_joint)
    powers = exponentials(log_joint, largest, overwrite)
    totals = powers.sum(0)
    inverse = totals.clamp_min(torch.finfo(totals.dtype).tiny).reciprocal()
    # In place where no gradient is recorded: this is the innermost loop of every pass.
    posterior = powers * inverse if powers.requires_grad else powers.mul_(inverse)
    return largest + totals.log(), posterior


def shares(log_joint: Tensor, out: Tensor | None = None) -> Tensor:
    """The posterior over components alone, row by row and without a gradient: (K, n), written over, -> (n, K)."""
    powers = exponentials(log_joint, largest_of(log_joint), overwrite=True)
    totals = powers.sum(0, keepdim=True).clamp_min_(torch.finfo(powers.dtype).tiny)
    if out is None:
        return (powers / totals).T
    torch.div(powers, totals, out=out.T)  # written in this order single precision takes 0.8 of the time
    return out


def class_posteriors(log_joint: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """log p(x, c) of every class, (C, n), and the posteriors over the components of each class, (K, n).

    A class whose log joints are all -inf gets zero posteriors, not NaN.
    """
    class_of, n_rows = targets.class_of, log_joint.shape[1]
    # The largest log joint of each class; it cancels, so no gradient need pass through it.
    lowest = log_joint.new_full((targets.n_classes, n_rows), torch.finfo(log_joint.dtype).min)
    largest = lowest.scatter_reduce_(0, class_of.unsqueeze(-1).expand(-1, n_rows), log_joint.detach(), "amax")
    shares = exponentials(log_joint, largest[class_of])
    members = (torch.arange(targets.n_classes, device=class_of.device).unsqueeze(-1) == class_of).to(shares.dtype)
    totals = members @ shares
    inverse = totals.clamp_min(torch.finfo(totals.dtype).tiny).reciprocal()
    return largest + totals.log(), shares * inverse[class_of]


def _own_class(log_joint: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """log p(x, c) of each row and the posterior over the components of its class (numerator).

    An unlabeled row has all components in its numerator: log p(x). A soft row means sum_c y_c log p(x, c).
    """
    if targets.shares is not None:
        return _soft_class(log_joint, targets.shares, targets.class_of)
    if targets.labels is None:
        return posteriors(log_joint, targets.overwrite)
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
        marginals, everywhere = posteriors(log_joint[:, unlabeled])
        values[unlabeled] = marginals
        numerator[:, unlabeled] = everywhere
    return values, numerator


@dataclass(frozen=True)
class Joint:
    """log p(x, c) of labeled rows, log p(x) of unlabeled ones (joint-likelihood)."""

    name = "joint"
    own_class_only = True
    needs_denominator = False
    has_density = True
    overwrites = True

    def evaluate(self, log_joint: Tensor, targets: Targets) -> Evaluation:
        return Evaluation(*_own_class(log_joint, targets))


@dataclass(frozen=True)
class Marginal:
    """log p(x), whatever the labels (marginal-likelihood)."""

    name = "marginal"
    own_class_only = False
    needs_denominator = False
    has_density = True
    overwrites = True

    def evaluate(self, log_joint: Tensor, targets: Targets) -> Evaluation:
        return Evaluation(*posteriors(log_joint, targets.overwrite))


# A row whose class has less than this power of the smallest number of the posterior has lost digits of it; near that
# number itself reciprocals, and with them gradients, would be infinite.
SMALLEST_POWER = 2 / 3


def _from_posteriors(denominator: Tensor, labels: Tensor, class_of: Tensor) -> Evaluation | None:
    """log p(c | x) without a second exponential, as long as no row has lost its class (asking costs a GPU a wait)."""
    own = labels == class_of.unsqueeze(-1)  # (K, n)
    if bool((labels < 0).any()):
        own |= labels < 0
    joint = torch.where(own, denominator, 0.0)
    probabilities = joint.sum(0)
    if not bool((probabilities > torch.finfo(probabilities.dtype).tiny ** SMALLEST_POWER).all()):
        return None
    return Evaluation(probabilities.log(), joint * probabilities.reciprocal(), denominator)


@dataclass(frozen=True)
class Conditional:
    """log p(c | x); an unlabeled row contributes nothing (conditional-likelihood)."""

    name = "conditional"
    own_class_only = False
    needs_denominator = True
    has_density = False

    def evaluate(self, log_joint: Tensor, targets: Targets) -> Evaluation:
        marginals, denominator = posteriors(log_joint)
        if targets.labels is not None and targets.shares is None and log_joint.device.type == "cpu":
            found = _from_posteriors(denominator, targets.labels, targets.class_of)
            if found is not None:
                return found
        values, numerator = _own_class(log_joint, targets)
        return Evaluation(values - marginals, numerator, denominator)


@dataclass(frozen=True)
class Assigned:
    """No likelihood, but responsibilities that are given: labels or shares name components. For starts."""

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
