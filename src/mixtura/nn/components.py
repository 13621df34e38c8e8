"""Components of heads as module parameters: unconstrained, sparse variational, Gaussian densities; their logits.

The scores use the feature map of a mixture (scores), but their coefficients need not describe a Gaussian. For
"low_rank" no array of size D x D is allocated.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from mixtura.covariances import DiagonalCovariance, FullCovariance, LowRankCovariance
from mixtura.objectives import class_log_joint
from mixtura.roles import Covariance
from mixtura.values.features import LINEAR, QUADRATICS, SQUARES, Coefficients, SharedMap, project, weigh

# Molchanov, Ashukha & Vetrov (2017), eq. 14: a fit of the divergence from the log-uniform prior.
KL_SLOPE, KL_SHIFT, KL_STEEPNESS = 0.63576, 1.87320, 1.48695
# Beyond these the divergence is flat, and only the large gradients of weights near zero would remain.
LARGEST_LOG_ALPHA = LARGEST_LOG_VARIANCE = 8.0
TINY = 1e-8


def in_autocast(x: Tensor) -> bool:
    """Whether autocast is on for the device of these values."""
    kind = x.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)  # is_autocast_available does not compile in 2.11


def at_least_single(values: Tensor) -> Tensor:
    """Half precision as float32: half precision would round small differences of scores away."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def noisy(means: Tensor, squares: Tensor, log_variances: Tensor) -> Tensor:
    """Products of features with weights of these variances, given their means (K, n) and the squared features (P, n).

    (local-reparametrisation)
    """
    variances = functional.hardtanh(log_variances, -math.inf, LARGEST_LOG_VARIANCE).exp() @ squares
    scales = (at_least_single(variances) + TINY).sqrt()
    return torch.addcmul(means, scales, torch.randn_like(scales))


def class_logits(scores: Tensor, n_members: int) -> Tensor:
    """(head-logits) of scores (K, n) sorted by class, with this many components in each: (n, C)."""
    if n_members == 1:
        return scores.T
    return class_log_joint(at_least_single(scores), [n_members] * (len(scores) // n_members)).T


def minus_log_alphas(weight: Tensor, log_variances: Tensor) -> Tensor:
    """-log alpha of weights, alpha w^2 being their variances."""
    logs = (weight * weight + TINY).log() - log_variances
    return functional.hardtanh(logs, -LARGEST_LOG_ALPHA, LARGEST_LOG_ALPHA)


def divergence(minus_log_alpha: Tensor) -> Tensor:
    """(dropout-kl), the sum over weights; 1/2 log(1 + 1 / alpha) and 1 - sigmoid(z) = sigmoid(-z)."""
    missing = torch.rsub(minus_log_alpha, -KL_SHIFT, alpha=-KL_STEEPNESS).sigmoid()
    return 0.5 * torch.add(functional.softplus(minus_log_alpha), missing, alpha=2 * KL_SLOPE).sum()


def without_offsets(coefficients: Coefficients) -> Coefficients:
    """Move offsets into weights and biases: 1/2 |V x - o|^2 = 1/2 |V x|^2 - (V' o)' x + 1/2 |o|^2."""
    offsets, projections = coefficients.offsets, coefficients.projections
    if offsets is None or projections is None or coefficients.weights is None:
        return coefficients
    shift = (projections.mT @ offsets.unsqueeze(-1)).squeeze(-1)  # (K, D)
    weights = functional.pad(shift, (0, coefficients.weights.shape[1] - shift.shape[1])) * coefficients.sign
    bias = coefficients.bias - 0.5 * coefficients.sign * offsets.square().sum(-1)
    return replace(coefficients, weights=coefficients.weights + weights, bias=bias, offsets=None)


MAPS: dict[str, SharedMap] = {"full": QUADRATICS, "diag": SQUARES, "low_rank": SQUARES, "none": LINEAR}
# Initial contribution of the quadratic terms to a score, relative to the linear ones: a new head is nearly linear.
QUADRATIC_SHARE = 0.1
# Features are scaled so that the mean squares of their products sum to this. An optimiser step that changes every
# weight by the same amount then changes scores by the same amount, whatever the number of features. At 50, weights of
# order one separate ten classes with two features, and ten features have a standard deviation of about one.
SIZE_OF_PRODUCTS = 50.0
STARTING_LOG_VARIANCE = -8.0
# Larger heads follow autocast: half precision saves more time in their products than the casts cost.
MOST_WEIGHTS_IN_OWN_PRECISION = 2**20


class FreeComponents(nn.Module):
    """Unconstrained coefficients: the discriminative mixture of HU21."""

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
        """The standard deviation to which features are scaled."""
        n_products = self.weight.shape[1] - self.n_features
        return math.sqrt(SIZE_OF_PRODUCTS / n_products) if n_products else 1.0

    def reset_parameters(self) -> None:
        """Linear weights as in nn.Linear; quadratic ones small, but not zero, where projections have no gradient."""
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
        """Coefficients of (scores); the projections enter with a positive sign."""
        return Coefficients(MAPS[self.quadratic], self.bias, self.weight, self.projection, None, -1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (K, n) of normalised features (n, D)."""
        coefficients = self.coefficients()
        return coefficients.forward(coefficients.phi(x.T))[0]


class SparseComponents(FreeComponents):
    """Weights with a normal posterior and a log-uniform prior (variational dropout); most of them become zero.

        q(w) = N(w, alpha w^2),  log alpha = log variance - log w^2,
        KL = sum 1/2 log(1 + 1/alpha) - 0.63576 sigmoid(1.8732 + 1.48695 log alpha) + 0.63576         (dropout-kl)

    In training mode a score is drawn from its own distribution, with mean phi w and variance phi^2 var
    (local-reparametrisation); HU21's code draws one set of weights per batch instead. In evaluation mode weights whose
    log alpha is at least the threshold are zero. Biases have no noise and no divergence.
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
        pairs: list[tuple[Tensor, Tensor]] = [(self.weight, self.log_variances)]
        if self.projection is not None and self.projection_log_variances is not None:
            pairs.append((self.projection, self.projection_log_variances))
        return pairs

    def kl(self) -> Tensor:
        """The divergence of all weights together, in nats (dropout-kl)."""
        first, *others = (divergence(minus_log_alphas(*pair)) for pair in self._noisy())
        return first + others[0] if others else first

    def coefficients(self) -> Coefficients:
        """The coefficients of evaluation mode: the means, zero where pruned."""
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


# In units of the normalised features, whose variances are one. Without it the likelihood has no maximum.
SMALLEST_VARIANCE = 1e-3


class GaussianComponents(nn.Module):
    """Log joints a_k(x) = log weight_k + log N(x; mean_k, Sigma_k), by the feature map of (scores).

    Sigma_k is a lower triangular root times its transpose ("full"), variances ("diag"), variances and loadings
    ("low_rank"), each plus the smallest variance; "none" has one set of variances for all components (head-gaussians).
    """

    def __init__(self, n_features: int, n_components: int, quadratic: str, rank: int):
        super().__init__()
        self.quadratic, self.rank, self.n_features, self.n_components = quadratic, rank, n_features, n_components
        self.bias = nn.Parameter(torch.zeros(n_components))  # log weights, up to a constant
        self.means = nn.Parameter(torch.randn(n_components, n_features))
        shapes = {"full": (n_components, n_features, n_features), "none": (1, n_features)}
        start = torch.zeros(shapes.get(quadratic, (n_components, n_features)))
        # Roots of the covariances. Positive entries go through softplus, since exp would overflow after a large step.
        self.roots = nn.Parameter(start)
        loadings = torch.randn(n_components, n_features, rank) * 0.1 if quadratic == "low_rank" else None
        self.loadings = None if loadings is None else nn.Parameter(loadings)

    # The product form of a squared distance cancels: in half precision no correct digit would be left.
    in_own_precision = True
    spread = 1.0  # the standard deviation to which features are scaled; the unit of the smallest variance

    def log_weights(self) -> Tensor:
        return self.bias.log_softmax(0)

    def covariance(self) -> Covariance:
        """Covariances of the normalised features."""
        if self.quadratic == "full":
            scales = functional.softplus(self.roots.diagonal(dim1=-2, dim2=-1))
            roots = self.roots.tril(-1) + torch.diag_embed(scales)
            floor = SMALLEST_VARIANCE * torch.eye(self.n_features, device=roots.device, dtype=roots.dtype)
            return FullCovariance(roots @ roots.mT + floor)
        variances = functional.softplus(self.roots).square() + SMALLEST_VARIANCE
        if self.loadings is not None:
            return LowRankCovariance(variances, self.loadings)
        return DiagonalCovariance(variances.expand(self.n_components, -1))

    def coefficients(self) -> Coefficients:
        return self.covariance().coefficients(self.means, self.log_weights())

    def forward(self, x: Tensor) -> Tensor:
        """Log joints (K, n) of normalised features (n, D)."""
        coefficients = self.coefficients()
        return coefficients.forward(coefficients.phi(x.T.to(self.means.dtype)))[0]
