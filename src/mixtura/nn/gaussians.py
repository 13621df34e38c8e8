"""Components that are proper Gaussians of the normalised features, and follow them as a network learns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mixtura.covariances import Diagonal, Full, LowRank, Tied
from mixtura.covariances.low_rank import LowRankProduct
from mixtura.mixture import Mixture
from mixtura.nn.logits import Monomials, component_scores
from mixtura.objectives import Joint
from mixtura.roles import Covariance, Structure, Targets
from mixtura.scratch import Scratch
from mixtura.solvers.em import placed, pseudo_moments_of

# In units of the normalised features, whose variances are one. Without it the likelihood has no maximum.
SMALLEST_VARIANCE = 1e-3
# Of a batch in what is remembered: a hundred batches. It must hold several times as many rows of every component as
# there are features.
MOMENTUM = 0.01
SMALLEST_WEIGHT = 1e-12  # of a component that meets no rows any more
FLOOR = 1e-3  # of variances before the smallest is added, relative to it, so that they stay positive
STRUCTURES: dict[str, Structure] = {
    "full": Full(),
    "diagonal": Diagonal(),
    "low_rank": LowRank(),
    "none": Tied(Diagonal()),
}


class GaussianComponents(nn.Module):
    """Log joints a_k(x) = log weight_k + log N(x; mean_k, Sigma_k + smallest I), as (head-scores) (head-gaussians).

    Weights, means and covariances are no parameters but, as the running means of batch normalisation, follow the rows
    that come by: a step of EM in which the mixture's own moments count 1 - rate, and those of a batch rate
    (head-follows). The rate of batch t is 1 / (t + 2), so that the start counts as one batch, but at least `momentum`.
    "none" has one set of variances for all components.
    """

    bias: Tensor  # (K,), log weights
    means: Tensor  # (K, D)
    class_of: Tensor  # (K,)
    n_batches: Tensor

    spread = 1.0  # the standard deviation that features should have: the smallest variance is in these units

    def __init__(self, n_features: int, n_components: int, quadratic: str, rank: int, n_members: int):
        super().__init__()
        self.quadratic, self.rank, self.n_features, self.n_components = quadratic, rank, n_features, n_components
        self.momentum = MOMENTUM
        self.monomials = Monomials(n_features, "diagonal" if quadratic == "none" else quadratic)
        self.register_buffer("bias", torch.zeros(n_components).log_softmax(0))
        # Close together, so that each gets some rows of its class; far from them all it would never get any.
        self.register_buffer("means", 0.5 * torch.randn(n_components, n_features))
        self.register_buffer("class_of", torch.arange(n_components) // n_members, persistent=False)
        self.register_buffer("n_batches", torch.zeros(()))
        variances = torch.ones(1 if quadratic == "none" else n_components, n_features)
        starts = {
            "full": {"matrices": torch.diag_embed(variances)},
            "diagonal": {"entries": variances},
            "low_rank": {"uniquenesses": variances, "loadings": 0.1 * torch.randn(n_components, n_features, rank)},
            "none": {"entries": variances, "groups": torch.zeros(n_components, dtype=torch.int64)},
        }
        self.parts = tuple(starts[quadratic])  # of the covariances
        for name, values in starts[quadratic].items():
            self.register_buffer(name, values)

    def mixture(self, smallest: float = SMALLEST_VARIANCE) -> Mixture:
        """The mixture of the normalised features, in float64, with this added to all variances."""
        tensors = {name: self.get_buffer(name) for name in self.parts}
        tensors = {name: part.double() if part.is_floating_point() else part for name, part in tensors.items()}
        if "matrices" in tensors:
            tensors["matrices"] = tensors["matrices"] + smallest * torch.eye(self.n_features).to(tensors["matrices"])
        for name in ("entries", "uniquenesses"):
            if name in tensors:
                tensors[name] = tensors[name] + smallest
        covariance = STRUCTURES[self.quadratic].from_tensors(tensors)
        return Mixture(self.bias.double(), self.means.double(), covariance, self.class_of)

    def keep(self, mixture: Mixture) -> None:
        """Hold this mixture of the features from now on."""
        self.bias.copy_(mixture.log_weights)
        self.means.copy_(mixture.means)
        for name, part in mixture.covariance.tensors().items():
            self.get_buffer(name).copy_(part)

    @torch.no_grad()
    def follow(self, x: Tensor, scores: Tensor, labels: Tensor) -> None:
        """One step after normalised rows (n, D), their scores (n, K) and labels, -1 meaning unknown (head-follows)."""
        mixture, rows = self.mixture(0.0), x.double()
        shares = Joint().evaluate(scores.T.double(), Targets(self.class_of, labels)).numerator  # (K, n)
        product: Any = mixture.covariance.product(mixture.means, mixture.log_weights)
        sums, values = product.zeros(), product.expand(rows.T, slice(None), Scratch())[1]
        product.accumulate(sums, values, shares, slice(None))
        batch = product.moments(sums, torch.zeros_like(rows[0])).about(mixture.means)
        rate = (1 / (self.n_batches.double() + 2)).clamp_min(self.momentum)
        moments = mixture.own_moments(mixture.weights * (1 - rate)) + batch.scaled(rate / len(rows))
        floor = torch.full_like(rows[0], FLOOR * SMALLEST_VARIANCE)
        pseudo = pseudo_moments_of(None, floor)
        means, scatter = placed(mixture, moments, pseudo)
        covariance = mixture.covariance.updated(scatter, pseudo, floor)
        log_weights = moments.counts.clamp_min(SMALLEST_WEIGHT).log().log_softmax(0)
        self.keep(Mixture(log_weights, means, covariance, self.class_of))
        self.n_batches += 1

    def coefficients(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Weights (K, P), biases (K,) and projections (K R, D), as in FreeComponents."""
        mixture = self.mixture()
        found = product_coefficients(mixture.covariance, mixture.means, mixture.log_weights)
        weight, bias, projection = (None if part is None else part.to(self.means.dtype) for part in found)
        assert weight is not None
        assert bias is not None
        return weight, bias, projection

    def forward(self, x: Tensor) -> Tensor:
        """Log joints (n, K) of normalised features (n, D)."""
        # Squares of distances cancel in the product form: half precision would leave nothing of them.
        with torch.autocast(x.device.type, enabled=False):
            return component_scores(self.monomials, x.to(self.means.dtype), *self.coefficients())


def product_coefficients(
    covariance: Covariance, means: Tensor, log_weights: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The coefficients of (head-scores) for Gaussians: weights (K, P), biases (K,), projections (K R, D) or None."""
    product: Any = covariance.product(means, log_weights)
    bias, weight = product.weights[:, 0], product.weights[:, 1:]
    if not isinstance(product, LowRankProduct):
        return weight, bias, None
    # 1/2 |V' x - o|^2 = 1/2 |V' x|^2 - (V o)' x + 1/2 |o|^2: the offsets move into weights and biases.
    size, offsets = means.shape[1], product.offsets
    shift = (product.projections @ offsets.unsqueeze(-1)).squeeze(-1)  # (K, D)
    weight = torch.cat((weight[:, :size] - shift, weight[:, size:]), 1)
    return weight, bias + 0.5 * offsets.square().sum(-1), product.projections.mT.flatten(0, 1)
