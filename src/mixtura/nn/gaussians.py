"""Components that are Gaussian densities of the normalised features, in unconstrained parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from mixtura.covariances import DiagonalCovariance, FullCovariance, LowRankCovariance
from mixtura.roles import Covariance
from mixtura.values.features import Coefficients

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
