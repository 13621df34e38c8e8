"""Scores of components as functions of normalised features: free ones, and sparse variational ones.

    a_k(x) = b_k + w_k' phi(x) + 1/2 |V_k' x|^2                                                    (head-scores)

phi holds the features and, for a quadratic part, their products; V is there for "low_rank" alone, where nothing of
size D x D is made. The coefficients are those of the product form of a mixture, but nothing ties them to a Gaussian.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

QUADRATICS = ("full", "diagonal", "low_rank", "none")
# The products start at this part of what the linear part adds to a score: a new head is nearly linear.
QUADRATIC_SHARE = 0.1
# Features are scaled so that the mean squares of their products add up to this: then a step of an optimiser that moves
# every weight by as much moves scores by as much, whatever the number of features. Weights of order one separate ten
# classes with two features, and ten features keep a standard deviation of about one.
SIZE_OF_PRODUCTS = 50.0
# Molchanov, Ashukha & Vetrov (2017), eq. 14: a fit of the divergence from the log-uniform prior.
KL_SLOPE, KL_SHIFT, KL_STEEPNESS = 0.63576, 1.87320, 1.48695
# Beyond these the divergence is flat, and the gradients of weights near zero would be all there is.
LARGEST_LOG_ALPHA = 8.0
STARTING_LOG_VARIANCE = -8.0
TINY = 1e-8


class Monomials(nn.Module):
    """phi: (n, D) -> (n, P), the features and then x_i x_j for i <= j ("full") or x_i^2 ("diagonal", "low_rank")."""

    pairs: Tensor

    def __init__(self, n_features: int, quadratic: str):
        super().__init__()
        self.quadratic = quadratic
        pairs = torch.triu_indices(n_features, n_features) if quadratic == "full" else torch.empty(2, 0).long()
        self.register_buffer("pairs", pairs, persistent=False)
        extra = {"full": pairs.shape[1], "none": 0}.get(quadratic, n_features)
        self.n_monomials = n_features + extra

    def forward(self, x: Tensor) -> Tensor:
        if self.quadratic == "none":
            return x
        if self.quadratic == "full":
            return torch.cat((x, x.index_select(1, self.pairs[0]) * x.index_select(1, self.pairs[1])), 1)
        return torch.cat((x, x * x), 1)


class FreeComponents(nn.Module):
    """Coefficients under no constraint: the discriminative mixture of HU21."""

    def __init__(self, n_features: int, n_components: int, quadratic: str, rank: int):
        super().__init__()
        self.n_features, self.n_components, self.rank = n_features, n_components, rank
        self.monomials = Monomials(n_features, quadratic)
        self.weight = nn.Parameter(torch.empty(n_components, self.monomials.n_monomials))
        self.bias = nn.Parameter(torch.empty(n_components))
        projection = torch.empty(n_components * rank, n_features) if quadratic == "low_rank" else None
        self.projection = None if projection is None else nn.Parameter(projection)
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

    @property
    def quadratic(self) -> str:
        return self.monomials.quadratic

    def coefficients(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Weights (K, P), biases (K,) and, for "low_rank", projections (K R, D)."""
        return self.weight, self.bias, self.projection

    def forward(self, x: Tensor) -> Tensor:
        """Scores (n, K) of normalised features (n, D)."""
        return component_scores(self.monomials, x, *self.coefficients())


def component_scores(
    monomials: Monomials, x: Tensor, weight: Tensor, bias: Tensor, projection: Tensor | None
) -> Tensor:
    """(head-scores) of normalised features (n, D): (n, K)."""
    scores = functional.linear(monomials(x), weight, bias)
    return scores if projection is None else scores + _along(functional.linear(x, projection), len(weight))


def _along(projected: Tensor, n_components: int) -> Tensor:
    """1/2 |V_k' x|^2 from projections (n, K R): (n, K)."""
    return 0.5 * projected.unflatten(1, (n_components, -1)).square().sum(-1)


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
        found = [_log_alpha(self.weight, self.log_variances)]
        if self.projection is not None and self.projection_log_variances is not None:
            found.append(_log_alpha(self.projection, self.projection_log_variances))
        return found

    def kl(self) -> Tensor:
        """The divergence of all weights together, in nats (dropout-kl)."""
        return sum((_divergence(log_alpha) for log_alpha in self.log_alphas()), self.weight.new_zeros(()))

    def coefficients(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """What evaluation uses: the means, zero where pruned."""
        means = [self.weight] if self.projection is None else [self.weight, self.projection]
        kept = [torch.where(a < self.threshold, w, 0.0) for w, a in zip(means, self.log_alphas(), strict=True)]
        return kept[0], self.bias, kept[1] if len(kept) > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        scores = _noisy(self.monomials(x), self.weight, self.bias, self.log_variances)
        if self.projection is None or self.projection_log_variances is None:
            return scores
        projected = _noisy(x, self.projection, None, self.projection_log_variances)
        return scores + _along(projected, self.n_components)


def at_least_single(values: Tensor) -> Tensor:
    """In float32 where they were in half precision, in which small differences of scores would be rounded away."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def _log_alpha(weight: Tensor, log_variances: Tensor) -> Tensor:
    found = log_variances - (weight.square() + TINY).log()
    return found.clamp(-LARGEST_LOG_ALPHA, LARGEST_LOG_ALPHA)


def _divergence(log_alpha: Tensor) -> Tensor:
    missing = torch.sigmoid(-KL_STEEPNESS * log_alpha - KL_SHIFT)  # 1 - sigmoid(z) = sigmoid(-z)
    return KL_SLOPE * missing.sum() - 0.5 * functional.logsigmoid(log_alpha).sum()


def _noisy(values: Tensor, weight: Tensor, bias: Tensor | None, log_variances: Tensor) -> Tensor:
    means = at_least_single(functional.linear(values, weight, bias))
    variances = at_least_single(functional.linear(values * values, log_variances.clamp(max=LARGEST_LOG_ALPHA).exp()))
    return means + (variances + TINY).sqrt() * torch.randn_like(means)  # (local-reparametrisation)
