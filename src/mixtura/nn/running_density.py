"""The running density of a head: a mixture fitted to the features by online EM while the network trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from mixtura.covariances import DiagonalCovariance, FullCovariance, LowRankCovariance, TiedCovariance
from mixtura.model.mixture import Mixture
from mixtura.nn.components import SMALLEST_VARIANCE
from mixtura.objectives import Joint
from mixtura.roles import Covariance
from mixtura.solvers.em import update_means
from mixtura.values.moments import PseudoMoments
from mixtura.values.targets import Targets

# Weight of a new batch: the memory is about fifty batches. Together they must hold several times as many samples of
# every component as there are features.
MOMENTUM = 0.02
SMALLEST_WEIGHT = 1e-12  # of a component without samples
FLOOR = 1e-3  # smallest variance before SMALLEST_VARIANCE is added, relative to it; keeps variances positive


class RunningDensity(nn.Module):
    """A mixture of the normalised features, updated by online EM like the running means of batch normalisation.

    Each batch is an EM step in which the moments of the current mixture have weight 1 - rate and those of the batch
    have weight rate (running-density). The rate of batch t is 1 / (t + 2), so that the initial mixture counts as one
    batch, but at least `momentum`.
    """

    log_weights: Tensor  # (K,)
    means: Tensor  # (K, D)
    class_of: Tensor  # (K,)
    n_batches: Tensor

    def __init__(self, n_features: int, n_components: int, quadratic: str, rank: int, n_members: int):
        super().__init__()
        self.quadratic, self.n_features, self.momentum = quadratic, n_features, MOMENTUM
        self.register_buffer("log_weights", torch.zeros(n_components).log_softmax(0))
        self.register_buffer("means", torch.zeros(n_components, n_features))
        self.register_buffer("class_of", torch.arange(n_components) // n_members, persistent=False)
        self.register_buffer("n_batches", torch.zeros(()))
        variances = torch.ones(1 if quadratic == "none" else n_components, n_features)
        starts: dict[str, Callable[[], Covariance]] = {
            "full": lambda: FullCovariance(torch.diag_embed(variances)),
            "diag": lambda: DiagonalCovariance(variances),
            "low_rank": lambda: LowRankCovariance(variances, 0.1 * torch.randn(n_components, n_features, rank)),
            "none": lambda: TiedCovariance(DiagonalCovariance(variances), torch.zeros(n_components, dtype=torch.int64)),
        }
        covariance = starts[quadratic]()
        self.structure, tensors = covariance.structure, covariance.tensors()
        self.parts = tuple(tensors)
        for name, values in tensors.items():
            self.register_buffer(name, values)

    def mixture(self, smallest: float = SMALLEST_VARIANCE) -> Mixture:
        """The mixture of the normalised features, in float64, with this added to all variances."""
        tensors = {name: self.get_buffer(name) for name in self.parts}
        tensors = {name: part.double() if part.is_floating_point() else part for name, part in tensors.items()}
        covariance = _plus_variance(self.structure.from_tensors(tensors), smallest)
        return Mixture(self.log_weights.double(), self.means.double(), covariance, self.class_of)

    def keep(self, mixture: Mixture) -> None:
        """Replace the mixture."""
        self.log_weights.copy_(mixture.log_weights)
        self.means.copy_(mixture.means)
        for name, part in mixture.covariance.tensors().items():
            self.get_buffer(name).copy_(part)

    @torch.no_grad()
    def update(self, x: Tensor, scores: Tensor, labels: Tensor) -> None:
        """One EM step (running-density) on normalised rows (n, D).

        The responsibilities follow from the scores (K, n) of the head and the labels, where -1 means unlabeled.
        """
        mixture, rows = self.mixture(0.0), x.double()
        shares = Joint().evaluate(scores.double(), Targets(self.class_of, labels)).numerator  # (K, n)
        coefficients = mixture.covariance.coefficients(mixture.means, mixture.log_weights)
        sums = coefficients.zeros()
        coefficients.pullback(sums, coefficients.forward(coefficients.phi(rows.T))[1], shares, slice(None))
        batch = coefficients.moments(sums, torch.zeros_like(rows[0])).about(mixture.means)
        rate = (1 / (self.n_batches.double() + 2)).clamp_min(self.momentum)
        moments = mixture.own_moments(mixture.weights * (1 - rate)) + batch.scaled(rate / len(rows))
        floor = torch.full_like(rows[0], FLOOR * SMALLEST_VARIANCE)
        pseudo = PseudoMoments.none(floor)
        means, scatter = update_means(mixture, moments, pseudo)
        covariance = mixture.covariance.updated(scatter, pseudo, floor)
        log_weights = moments.counts.clamp_min(SMALLEST_WEIGHT).log().log_softmax(0)
        self.keep(Mixture(log_weights, means, covariance, self.class_of))
        self.n_batches += 1

    def forward(self, x: Tensor) -> Tensor:
        """Log densities (n,) of normalised features (n, D)."""
        mixture = self.mixture()
        coefficients = mixture.covariance.coefficients(mixture.means, mixture.log_weights)
        coefficients = coefficients.select(slice(None), self.means.dtype)
        with torch.autocast(x.device.type, enabled=False):
            return coefficients.forward(coefficients.phi(x.T.to(self.means.dtype)))[0].logsumexp(0)


def _plus_variance(covariance: Covariance, variance: float) -> Covariance:
    """Add a value to all variances."""
    if isinstance(covariance, TiedCovariance):
        return replace(covariance, inner=_plus_variance(covariance.inner, variance))
    if isinstance(covariance, FullCovariance):
        return FullCovariance(covariance.matrices + variance * torch.eye(covariance.n_features).to(covariance.matrices))
    if isinstance(covariance, LowRankCovariance):
        return replace(covariance, diagonals=covariance.diagonals + variance)
    assert isinstance(covariance, DiagonalCovariance)
    return replace(covariance, entries=covariance.entries + variance)
