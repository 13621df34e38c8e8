"""Splitting of the component with the largest unexplained count."""

from __future__ import annotations

import torch
from torch import Tensor

from mixtura.init.description import Description
from mixtura.model.mixture import Mixture

SOME_ROWS = 2000  # rows per class that are evaluated
HALF = 0.8  # distance of the mean of either half of a Gaussian from its centre, in standard deviations: sqrt(2 / pi)


def unexplained(mixture: Mixture, description: Description, own_class: int) -> Tensor:
    """Numerator minus denominator counts of the components of a class, over the rows of that class (unexplained).

    Over all rows the two counts are equal once the weights are trained, so only rows of the class are informative.
    """
    log_joint, weights, part = _log_joint(mixture, description, own_class)
    within = log_joint[:, part].softmax(1)
    return weights @ (within - log_joint.softmax(1)[:, part])


def split(mixture: Mixture, description: Description, own_class: int, number: int) -> Mixture:
    """Split a component of a class in two along the principal axis of its rows."""
    component = mixture.class_slices[own_class].start + number
    offset = HALF * _principal_axis(mixture, description, own_class, number)
    count = mixture.n_components
    index = torch.cat((torch.arange(component + 1), torch.arange(component, count))).to(mixture.class_of.device)
    log_weights, means = mixture.log_weights[index], mixture.means[index]
    log_weights[component : component + 2] -= torch.log(torch.tensor(2.0, dtype=log_weights.dtype))
    means[component] += offset
    means[component + 1] -= offset
    return Mixture(log_weights, means, mixture.covariance.select(index), mixture.class_of[index])


def _log_joint(mixture: Mixture, description: Description, own_class: int) -> tuple[Tensor, Tensor, slice]:
    rows, weights = description.samples[own_class]
    every = max(1, len(rows) // SOME_ROWS)
    return mixture.log_joint(rows[::every]), weights[::every], mixture.class_slices[own_class]


def _principal_axis(mixture: Mixture, description: Description, own_class: int, number: int) -> Tensor:
    """The principal axis of the rows of a component, in units of its scales, with the length of its spread, (D,)."""
    log_joint, weights, part = _log_joint(mixture, description, own_class)
    shares = weights * log_joint[:, part].softmax(1)[:, number]
    rows, _ = description.samples[own_class]
    scales = mixture.covariance.variances()[part.start + number].sqrt()
    every = max(1, len(rows) // SOME_ROWS)
    deviations = torch.nan_to_num((rows[::every] - mixture.means[part.start + number]) / scales, nan=0.0)
    weighted = deviations * (shares / shares.sum().clamp_min(1e-300)).sqrt().unsqueeze(-1)
    _, spreads, axes = torch.linalg.svd(weighted, full_matrices=False)
    largest = axes[0] * axes[0].sum().sign()  # fixes the arbitrary sign of a singular vector
    return spreads[0] * largest * scales
