"""Leave-one-out log joints of one Gaussian per class, in closed form for many prior strengths (leave-one-out)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.numerics.linalg import safe_cholesky


@dataclass(frozen=True)
class ClassScatters:
    """Labeled, complete samples: weights, means and scatter matrices of the classes.

    Parameters
    ----------
    rows : Tensor of shape (n, D)
        Samples.
    labels : Tensor of shape (n,)
        Class numbers.
    weights : Tensor of shape (n,)
        Sample weights.
    """

    rows: Tensor
    labels: Tensor
    weights: Tensor
    class_weights: Tensor  # (C,)
    means: Tensor  # (C, D)
    scatters: Tensor  # (C, D, D)

    @classmethod
    def of(cls, rows: Tensor, labels: Tensor, weights: Tensor, n_classes: int) -> ClassScatters:
        totals = torch.zeros(n_classes, dtype=torch.float64, device=rows.device).index_add_(0, labels, weights)
        sums = torch.zeros(n_classes, rows.shape[1], dtype=torch.float64, device=rows.device)
        means = sums.index_add_(0, labels, weights.unsqueeze(-1) * rows) / totals.unsqueeze(-1)
        deviations = (rows - means[labels]) * weights.sqrt().unsqueeze(-1)
        scatters = torch.stack([deviations[labels == c].T @ deviations[labels == c] for c in range(n_classes)])
        return cls(rows, labels, weights, totals, means, scatters)


def leave_one_out(classes: ClassScatters, target: Tensor, strengths: Sequence[float]) -> Tensor:
    """Compute the log joints of every sample under the model fitted without it.

    The covariance of class c is (S_c + s T) / (n_c + s) for every strength s. In coordinates in which T is the identity
    and S_c is diagonal, every strength costs one division per sample and feature; leaving out a sample is a rank-one
    downdate. A sample of weight above one represents equal samples, of which one is left out.

    Parameters
    ----------
    classes : ClassScatters
        The samples.
    target : Tensor of shape (D,) or (D, D)
        Variances or covariance matrix T towards which covariances are shrunk; the same for all left-out samples.
    strengths : sequence of float
        Numbers s > 0 of pseudo-samples with the target covariance.

    Returns
    -------
    Tensor of shape (len(strengths), n, C)
        NaN for the only sample of a class.
    """
    size, total = classes.rows.shape[1], classes.weights.sum()
    factor = safe_cholesky(torch.diag(target) if target.ndim == 1 else target)[0]  # T = L L'
    log_determinant = 2 * factor.diagonal().log().sum()
    removed = classes.weights.clamp_max(1.0)  # u
    scores = []
    for c, (count, mean, scatter) in enumerate(
        zip(classes.class_weights, classes.means, classes.scatters, strict=True)
    ):
        half = torch.linalg.solve_triangular(factor, scatter, upper=False)
        roots, axes = torch.linalg.eigh(torch.linalg.solve_triangular(factor, half.T, upper=False))
        whitened = torch.linalg.solve_triangular(factor, (classes.rows - mean).T, upper=False)
        squares = (axes.T @ whitened).square()  # (D, n)
        own = classes.labels == c
        left = torch.where(own, count - removed, count)  # (n,), weight of the class without the sample
        growth = torch.where(own, count / left, 1.0)  # of deviations from the mean
        downdate = torch.where(own, removed * growth, 0.0)
        log_share = (left / (total - removed)).log()
        of_strengths = []
        for strength in strengths:
            precisions = 1 / (roots.clamp_min(0) + strength)
            distances = precisions @ squares  # (n,)
            kept = 1 - downdate * distances
            divisors = left + strength
            log_determinants = log_determinant - precisions.log().sum() + kept.log() - size * divisors.log()
            mahalanobis = divisors * growth.square() * distances / kept
            of_strengths.append(log_share - 0.5 * (log_determinants + mahalanobis))
        scores.append(torch.stack(of_strengths))
    return torch.where(
        (classes.class_weights[classes.labels] > removed).unsqueeze(-1), torch.stack(scores, -1), torch.nan
    )
