"""The conjugate prior of a Gaussian mixture: Dirichlet, normal and Wishart (OT95 eq. 5-7), as pseudo-moments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mixtura import checks
from mixtura.roles import Outlook, Parameters
from mixtura.values.pseudo_moments import PseudoMoments
from mixtura.values.storable import storable

TARGETS = ("expected", "pooled", "covariance")


@storable("conjugate")
@dataclass(frozen=True)
class Conjugate:
    """Shrinks covariances towards a given one, means towards a given one, and weights towards equal ones:

        Sigma_k = (S_k + strength * diag(variances)) / (counts_k + strength),
        mean_k = (sum_n A_nk x_n + mean_strength * mean) / (counts_k + mean_strength),
        weight_k ~ counts_k + concentration - 1  (conjugate-prior);

    where the means are shrunk, their distance from `mean` widens Sigma_k as well (map-update).

    Arguments:
        strength: pseudo-rows behind the covariances.
        variances: what to shrink covariances to: variances (D,), or a matrix (D, D).
        concentration: of the Dirichlet prior on the weights; 1 is flat.
        mean: what to shrink means to, (D,), or (K, D) for a place of its own for every component.
        mean_strength: pseudo-rows behind the mean; 0 leaves the means free.

    Examples:
        >>> from mixtura import GaussianMixture
        >>> from mixtura.priors import Conjugate
        >>> model = GaussianMixture(prior=Conjugate(4.0, [1.0, 1.0])).fit([[0.0, 0.0], [4.0, 2.0]])
        >>> model.covariances_[0].diagonal()  # (8 + 4 * 1) / (2 + 4), (2 + 4 * 1) / (2 + 4)
        array([2., 1.])
    """

    strength: float
    variances: Tensor
    concentration: float = 1.0
    mean: Tensor | None = None
    mean_strength: float = 0.0

    def __post_init__(self) -> None:
        known = {
            "strength": checks.positive("strength", self.strength),
            "variances": checks.scale_matrix("variances", self.variances),
            "concentration": checks.concentration(self.concentration),
            "mean_strength": checks.non_negative("mean_strength", self.mean_strength),
        }
        known["mean"] = checks.prior_mean(self.mean, known["variances"], known["mean_strength"])
        for name, value in known.items():
            object.__setattr__(self, name, value)

    @classmethod
    def wishart(cls, alpha: float, beta: Any, gamma: float = 1.0, mean: Any = None, eta: float = 0.0) -> Conjugate:
        """The prior by the names of OT95: Dirichlet(gamma), N(mean, Sigma_k / eta), Wishart(alpha, beta).

        Their update (7) divides by counts_k + 2 alpha - D, for eta = 0 too, where one of those counts comes from a
        prior on the means that is improper and not flat. So does this one.

        Arguments:
            beta: variances (D,) or a matrix (D, D).
        """
        scale = checks.scale_matrix("beta", beta)
        count = 2 * checks.positive("alpha", alpha) - len(scale) - (checks.non_negative("eta", eta) > 0)
        checks.wishart_count(count, alpha, len(scale), eta)
        return cls(count, 2 * scale / count, gamma, mean, eta)

    @classmethod
    def penalty(cls, beta: float, n_features: int) -> Conjugate:
        """The penalty of the experiments of OT95, beta I alone: Sigma_k = (S_k + 2 beta I) / (counts_k + 1)."""
        scale = checks.positive("beta", beta) * torch.ones(checks.count("n_features", n_features), dtype=torch.float64)
        return cls.wishart((n_features + 1) / 2, scale)

    def to(self, device: torch.device | str) -> Conjugate:
        """The same prior on another device."""
        mean = None if self.mean is None else self.mean.to(device)
        return replace(self, variances=self.variances.to(device), mean=mean)

    def pseudo_moments(self, n_features: int) -> PseudoMoments:
        return self._pseudo

    @cached_property
    def _pseudo(self) -> PseudoMoments:
        matrices = self.variances.ndim == 2
        return PseudoMoments(
            weight_count=self.concentration - 1,
            mean_count=self.mean_strength,
            covariance_count=self.strength,
            mean=self.variances.new_zeros(self.variances.shape[-1]) if self.mean is None else self.mean,
            scatter=self.strength * (self.variances.unsqueeze(0) if matrices else self.variances),
        )

    def log_density(self, parameters: Parameters) -> Tensor:
        """Up to a constant; see `log_terms`."""
        of_components, of_matrices = log_terms(self._pseudo, parameters)
        return of_components.sum() + of_matrices.sum()


def log_terms(pseudo: PseudoMoments, parameters: Parameters) -> tuple[Tensor, Tensor]:
    """Log density of the conjugate prior with these pseudo-moments, up to a constant (conjugate-prior):

        of components (K,)  weight_count log w_k - 1/2 [log |Sigma_k| + mean_count (mean_k - mean)' Sigma_k^-1 (.)],
        of matrices (G,)    -1/2 [covariance_count log |Sigma_g| + tr Sigma_g^-1 scatter],

    the bracket of the first line only where mean_count > 0. A tied covariance meets its part of the prior once.
    """
    log_weights, means = parameters.log_weights, parameters.means
    of_matrices = pseudo.covariance_count * parameters.distinct_log_determinants + parameters.traces(pseudo.scatter)
    of_components = torch.zeros_like(log_weights)
    if isinstance(pseudo.weight_count, Tensor) or pseudo.weight_count != 0:  # 0 * log 0 is zero here
        of_components = of_components + torch.nan_to_num(pseudo.weight_count * log_weights, nan=0.0, neginf=-torch.inf)
    if pseudo.mean_counts is not None:
        pulls = (pseudo.mean_counts.squeeze(-1) if pseudo.mean_counts.ndim else pseudo.mean_counts).to(means.dtype)
        spread = parameters.log_determinants + pulls * parameters.distances(means - pseudo.mean.to(means.dtype))
        of_components = of_components - 0.5 * torch.where(pulls > 0, spread, 0.0)
    return of_components, -0.5 * of_matrices


# Pseudo-rows per feature; benchmarks/results/default_prior.md has the held-out log-losses behind it (default-strength).
DEFAULT_STRENGTH_PER_FEATURE = 2.0


def default_strength(n_features: int) -> float:
    """Pseudo-rows of the default prior for this many features."""
    return max(2.0, DEFAULT_STRENGTH_PER_FEATURE * n_features)


@storable("shrinkage")
@dataclass(frozen=True)
class Shrinkage:
    """A conjugate prior in the units of the rows, whatever they will be (shrinkage).

    Arguments:
        strength: pseudo-rows behind the covariances; None is `default_strength(D)`.
        scale: covariances are shrunk to this multiple of the variances.
        variances: "expected", those that components may be expected to have (default-prior); "pooled", those of the
            rows about their class means; or "covariance", the whole covariance matrix of the rows about their class
            means, as much smaller as the components are parts of a class.
        mean_strength: pseudo-rows behind the mean of the class, which means are shrunk to; 0 leaves them free.
        concentration: of the Dirichlet prior on the weights; 1 is flat.

    Examples:
        >>> from mixtura import MixtureClassifier, datasets
        >>> from mixtura.priors import Shrinkage
        >>> X, y = datasets.make_ripley(50, random_state=0)
        >>> wide = Shrinkage(scale=3.0, variances="pooled", mean_strength=5.0)
        >>> bool(MixtureClassifier(2, prior=wide, random_state=0).fit(X, y).score(X, y) > 0.8)
        True
    """

    strength: float | None = None
    scale: float = 1.0
    variances: str = "expected"
    mean_strength: float = 0.0
    concentration: float = 1.0

    def __post_init__(self) -> None:
        if self.strength is not None:
            checks.positive("strength", self.strength)
        checks.positive("scale", self.scale)
        checks.one_of("variances", self.variances, TARGETS)
        checks.non_negative("mean_strength", self.mean_strength)
        checks.concentration(self.concentration)

    def __str__(self) -> str:
        """In a few words, for tables and legends."""
        rows = "default strength" if self.strength is None else f"{self.strength:g} rows"
        words = [rows, f"{self.scale:g} x {self.variances}"]
        if self.mean_strength:
            words.append(f"means {self.mean_strength:g}")
        if self.concentration != 1:
            words.append(f"weights {self.concentration:g}")
        return ", ".join(words)

    def prior(self, outlook: Outlook) -> Conjugate:
        """The prior for rows that look like this."""
        strength = default_strength(len(outlook.pooled)) if self.strength is None else self.strength
        targets = {"expected": lambda: outlook.expected, "pooled": lambda: outlook.pooled}
        variances = self.scale * targets.get(self.variances, outlook.covariance)()
        return Conjugate(strength, variances, self.concentration, outlook.means, self.mean_strength)
