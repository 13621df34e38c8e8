"""Coefficients of components as parameters: free ones, and sparse variational ones.

They are those of the feature map of a mixture (scores), but nothing ties them to a Gaussian. For "low_rank"
nothing of size D x D is made.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from mixtura.nn.logits import divergence, minus_log_alphas, noisy
from mixtura.values.features import LINEAR, QUADRATICS, SQUARES, Coefficients, SharedMap, project, weigh

MAPS: dict[str, SharedMap] = {"full": QUADRATICS, "diagonal": SQUARES, "low_rank": SQUARES, "none": LINEAR}
# The products start at this part of what the linear part adds to a score: a new head is nearly linear.
QUADRATIC_SHARE = 0.1
# Features are scaled so that the mean squares of their products add up to this: then a step of an optimiser that moves
# every weight by as much moves scores by as much, whatever the number of features. Weights of order one separate ten
# classes with two features, and ten features keep a standard deviation of about one.
SIZE_OF_PRODUCTS = 50.0
STARTING_LOG_VARIANCE = -8.0
# Larger heads follow autocast: there half precision saves more time than the casts take.
MOST_WEIGHTS_IN_OWN_PRECISION = 2**20


class FreeComponents(nn.Module):
    """Coefficients under no constraint: the discriminative mixture of HU21."""

    def __init__(self, n_features: int, n_components: int, quadratic: str, rank: int):
        super().__init__()
        self.n_features, self.n_components, self.rank = n_features, n_components, rank
        self.quadratic = quadratic
        self.weight = nn.Parameter(torch.empty(n_components, MAPS[quadratic].n_columns(n_features)))
        self.bias = nn.Parameter(torch.empty(n_components))
        projection = torch.empty(n_components, rank, n_features) if quadratic == "low_rank" else None
        self.projection = None if projection is None else nn.Parameter(projection)
        n_weights = self.weight.numel() + (0 if projection is None else projection.numel())
        self.in_own_precision = n_weights <= MOST_WEIGHTS_IN_OWN_PRECISION
        self.reset_parameters()

    @property
    def spread(self) -> float:
        """The standard deviation that features should have."""
        n_products = self.weight.shape[1] - self.n_features
        return math.sqrt(SIZE_OF_PRODUCTS / n_products) if n_products else 1.0

    def reset_parameters(self) -> None:
        """The linear part as in nn.Linear; products and projections small, but not zero, where they would stay."""
        bound = 1 / math.sqrt(self.n_features)
        n_products = self.weight.shape[1] - self.n_features
        with torch.no_grad():
            self.weight[:, : self.n_features].uniform_(-bound, bound).div_(self.spread)
            self.bias.uniform_(-bound, bound)
            if n_products:
                self.weight[:, self.n_features :].normal_(0, QUADRATIC_SHARE / math.sqrt(n_products) / self.spread**2)
            if self.projection is not None:
                self.projection.normal_(0, math.sqrt(QUADRATIC_SHARE / (self.n_features * self.rank)) / self.spread)

    def coefficients(self) -> Coefficients:
        """Of (scores), the projections with a sign that raises scores."""
        return Coefficients(MAPS[self.quadratic], self.bias, self.weight, self.projection, None, -1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (K, n) of normalised features (n, D)."""
        coefficients = self.coefficients()
        return coefficients.forward(coefficients.phi(x.T))[0]


class SparseComponents(FreeComponents):
    """Weights with a normal posterior and a log-uniform prior: variational dropout, which empties most of them.

        q(w) = N(w, alpha w^2),  log alpha = log variance - log w^2,
        KL = sum 1/2 log(1 + 1/alpha) - 0.63576 sigmoid(1.8732 + 1.48695 log alpha) + 0.63576         (dropout-kl)

    While training, a score gets the noise that the noise of its weights adds up to: mean phi w, variance phi^2 var
    (local-reparametrisation). HU21's code draws one set of weights per batch instead. In evaluation weights whose
    log alpha is at least the threshold are zero. Biases are free of noise and divergence.
    """

    def __init__(self, n_features: int, n_components: int, quadratic: str, rank: int, threshold: float):
        super().__init__(n_features, n_components, quadratic, rank)
        self.threshold = threshold
        self.log_variances = nn.Parameter(torch.full_like(self.weight, STARTING_LOG_VARIANCE))
        self.projection_log_variances = (
            None if self.projection is None else nn.Parameter(torch.full_like(self.projection, STARTING_LOG_VARIANCE))
        )

    def log_alphas(self) -> list[Tensor]:
        """log alpha of the weights and, for "low_rank", of the projections."""
        return [-minus_log_alphas(*pair) for pair in self._noisy()]

    def _noisy(self) -> list[tuple[Tensor, Tensor]]:
        """Means and log variances of the weights and, for "low_rank", of the projections."""
        found: list[tuple[Tensor, Tensor]] = [(self.weight, self.log_variances)]
        if self.projection is not None and self.projection_log_variances is not None:
            found.append((self.projection, self.projection_log_variances))
        return found

    def kl(self) -> Tensor:
        """The divergence of all weights together, in nats (dropout-kl)."""
        first, *others = (divergence(minus_log_alphas(*pair)) for pair in self._noisy())
        return first + others[0] if others else first

    def coefficients(self) -> Coefficients:
        """What evaluation uses: the means, zero where pruned."""
        means = [self.weight] if self.projection is None else [self.weight, self.projection]
        kept = [torch.where(a < self.threshold, w, 0.0) for w, a in zip(means, self.log_alphas(), strict=True)]
        return replace(super().coefficients(), weights=kept[0], projections=kept[1] if len(kept) > 1 else None)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        means = super().coefficients()
        phi = means.phi(x.T)
        scores = noisy(weigh(phi, self.weight, self.bias), phi * phi, self.log_variances)
        if self.projection is None or self.projection_log_variances is None:
            return scores
        along = project(x.T, self.projection, None)  # (K, R, n)
        flat = noisy(along.flatten(0, 1), (x * x).T, self.projection_log_variances.flatten(0, 1))
        return means.combined(scores, flat.unflatten(0, along.shape[:2]))
