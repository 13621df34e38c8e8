"""The conjugate prior of a Gaussian mixture: Dirichlet, normal and Wishart (OT95 eq. 5-7), as pseudo-moments.

And a prior with a factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from mixtura import checks
from mixtura.files.registry import storable
from mixtura.roles import DataScales, Parameters, Prior
from mixtura.values.moments import PseudoMoments

TARGETS = ("expected", "pooled", "covariance", "identity")


@storable("conjugate")
@dataclass(frozen=True)
class Conjugate:
    """Conjugate (Dirichlet-normal-Wishart) prior of a Gaussian mixture.

    It shrinks covariances and means towards given ones, and weights towards equal ones:

        Sigma_k = (S_k + strength * diag(variances)) / (counts_k + strength),
        mean_k = (sum_n A_nk x_n + mean_strength * mean) / (counts_k + mean_strength),
        weight_k ~ counts_k + concentration - 1  (conjugate-prior).

    With `mean_strength` above 0, the deviation of mean_k from `mean` adds to Sigma_k as well (map-update).

    Parameters
    ----------
    strength : float
        Number of pseudo-observations of the covariances.
    variances : array-like of shape (n_features,) or (n_features, n_features)
        Variances, or a covariance matrix, to shrink the covariances to.
    concentration : float, default=1.0
        Concentration of the Dirichlet prior on the weights, at least 1; 1 is flat.
    mean : array-like of shape (n_features,) or (n_components, n_features), optional
        Mean to shrink the means to, common to all components or one for each.
    mean_strength : float, default=0.0
        Number of pseudo-observations of the means; 0 is a flat prior on the means.

    References
    ----------
    .. [1] Ormoneit and Tresp (1995). Improved Gaussian mixture density estimates using Bayesian penalty terms and
       network averaging. NIPS 8.

    Examples
    --------
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
        checked = {
            "strength": checks.positive("strength", self.strength),
            "variances": check_matrix("variances", self.variances),
            "concentration": check_concentration(self.concentration),
            "mean_strength": checks.non_negative("mean_strength", self.mean_strength),
        }
        checked["mean"] = check_mean(self.mean, checked["variances"], checked["mean_strength"])
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def wishart(cls, alpha: float, beta: Any, gamma: float = 1.0, mean: Any = None, eta: float = 0.0) -> Conjugate:
        """Create the prior in the parametrisation of Ormoneit and Tresp (1995).

        The prior is Dirichlet(gamma), N(mean, Sigma_k / eta), Wishart(alpha, beta). As in their update (7), the divisor
        is counts_k + 2 alpha - D, for eta = 0 as well, where one of the counts comes
        from an improper prior on the means.

        Parameters
        ----------
        alpha : float
            Degrees of freedom of the Wishart prior, in units of one half.
        beta : array-like of shape (n_features,) or (n_features, n_features)
            Scale of the Wishart prior: variances or a matrix.
        gamma : float, default=1.0
            Concentration of the Dirichlet prior.
        mean : array-like, optional
            Mean of the normal prior.
        eta : float, default=0.0
            Number of pseudo-observations of the means.

        Returns
        -------
        prior : Conjugate
        """
        scale = check_matrix("beta", beta)
        count = 2 * checks.positive("alpha", alpha) - len(scale) - (checks.non_negative("eta", eta) > 0)
        if not count > 0:
            limit = "(D + 1) / 2" if eta > 0 else "D / 2"
            raise ValueError(
                f"alpha must be above {limit} = {(len(scale) + (eta > 0)) / 2:g} for {len(scale)} features and "
                f"eta={eta:g}; got {alpha:g}. Otherwise the prior has no mode to shrink to."
            )
        return cls(count, 2 * scale / count, gamma, mean, eta)

    @classmethod
    def penalty(cls, beta: float, n_features: int) -> Conjugate:
        """Create the penalty of the experiments of Ormoneit and Tresp (1995).

        It is the Wishart part with scale beta I alone: Sigma_k = (S_k + 2 beta I) / (counts_k + 1).

        Parameters
        ----------
        beta : float
            Penalty, in squared units of the features.
        n_features : int
            Number of features.

        Returns
        -------
        prior : Conjugate
        """
        scale = checks.positive("beta", beta) * torch.ones(checks.count("n_features", n_features), dtype=torch.float64)
        return cls.wishart((n_features + 1) / 2, scale)

    def to(self, device: torch.device | str) -> Conjugate:
        """Copy the prior to a device.

        Parameters
        ----------
        device : torch.device or str
            Target device.

        Returns
        -------
        prior : Conjugate
        """
        mean = None if self.mean is None else self.mean.to(device)
        return replace(self, variances=self.variances.to(device), mean=mean)

    def pseudo_moments(self, n_features: int) -> PseudoMoments:
        """Return the pseudo-moments that the prior adds before the M-step (map-update).

        Parameters
        ----------
        n_features : int
            Number of features of the data.

        Returns
        -------
        pseudo_moments : PseudoMoments
        """
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
        """Compute the log density of the parameters of a mixture, up to a constant.

        Parameters
        ----------
        parameters : Parameters
            A mixture, or the parameters of an optimiser.

        Returns
        -------
        log_density : Tensor of shape ()
        """
        of_components, of_matrices = log_terms(self._pseudo, parameters)
        return of_components.sum() + of_matrices.sum()


def log_terms(pseudo: PseudoMoments, parameters: Parameters) -> tuple[Tensor, Tensor]:
    """Compute the terms of the log density of a conjugate prior, up to a constant (conjugate-prior).

    ::

        of components (K,)  weight_count log w_k - 1/2 [log |Sigma_k| + mean_count (mean_k - mean)' Sigma_k^-1 (.)],
        of matrices (G,)    -1/2 [covariance_count log |Sigma_g| + tr Sigma_g^-1 scatter],

    The bracket of the first line is present only if mean_count > 0. A tied covariance is counted once.

    Parameters
    ----------
    pseudo : PseudoMoments
        Pseudo-moments of the prior.
    parameters : Parameters
        A mixture, or the parameters of an optimiser.

    Returns
    -------
    of_components : Tensor of shape (n_components,)
    of_matrices : Tensor of shape (n_distinct_covariances,)
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


# Pseudo-observations per feature; held-out log-losses: benchmarks/results/default_prior.md (default-strength).
DEFAULT_STRENGTH_PER_FEATURE = 2.0


def default_strength(n_features: int) -> float:
    """Return the number of pseudo-observations of the default prior.

    Parameters
    ----------
    n_features : int
        Number of features.

    Returns
    -------
    strength : float
    """
    return max(2.0, DEFAULT_STRENGTH_PER_FEATURE * n_features)


@storable("shrinkage")
@dataclass(frozen=True)
class Shrinkage:
    """Conjugate prior whose target is estimated from the data (shrinkage).

    It is invariant to the units of the features, except with the target "identity", which is meant for features of a
    common unit, such as pixels or the coordinates of an embedding: another unit of a single column changes the model.

    Parameters
    ----------
    strength : float or None, default=None
        Number of pseudo-observations of the covariances; None means `default_strength(n_features)`.
    scale : float, default=1.0
        Factor of the target of the covariances.
    variances : {"expected", "pooled", "covariance", "identity"}, default="expected"
        Target of the covariances. "expected": the expected variances of a component, which is narrower than its class
        (default-prior). "pooled": the pooled within-class variances. "covariance": the pooled within-class covariance
        matrix, reduced by the same factor as the expected variances. "identity": the mean of the pooled within-class
        variances for every feature, reduced in the same way.
    mean_strength : float, default=0.0
        Number of pseudo-observations of the means, which are shrunk to the class means; 0 is a flat prior.
    concentration : float, default=1.0
        Concentration of the Dirichlet prior on the weights, at least 1; 1 is flat.
    target_strength : float or None, default=None
        Number of pseudo-observations by which the pooled covariance matrix is itself shrunk before it is a target: for
        "covariance" towards its variances, where None means n_features + 1; for "identity" towards the equal variances,
        which are the whole target if it is None.

    Examples
    --------
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
    target_strength: float | None = None

    def __post_init__(self) -> None:
        if self.strength is not None:
            checks.positive("strength", self.strength)
        checks.positive("scale", self.scale)
        checks.one_of("variances", self.variances, TARGETS)
        if self.target_strength is not None:
            checks.positive("target_strength", self.target_strength, " or None")
            if self.variances not in ("covariance", "identity"):
                raise ValueError(
                    f"target_strength={self.target_strength:g} needs variances='covariance' or 'identity', whose "
                    f"target is a matrix; got {self.variances!r}. Leave target_strength=None."
                )
        checks.non_negative("mean_strength", self.mean_strength)
        check_concentration(self.concentration)

    def __str__(self) -> str:
        """A short description, for tables and legends."""
        rows = "default strength" if self.strength is None else f"{self.strength:g} rows"
        words = [rows, f"{self.scale:g} x {self.variances}"]
        if self.target_strength is not None:
            words.append(f"target {self.target_strength:g} rows")
        if self.mean_strength:
            words.append(f"means {self.mean_strength:g}")
        if self.concentration != 1:
            words.append(f"weights {self.concentration:g}")
        return ", ".join(words)

    def prior(self, scales: DataScales) -> Conjugate:
        """Create the conjugate prior for a data set.

        Parameters
        ----------
        scales : DataScales
            Estimates from the data: class means, pooled and expected variances.

        Returns
        -------
        prior : Conjugate
        """
        strength = default_strength(len(scales.pooled)) if self.strength is None else self.strength
        variances = self.scale * self._target(scales)
        return Conjugate(strength, variances, self.concentration, scales.means, self.mean_strength)

    def _target(self, scales: DataScales) -> Tensor:
        """Variances (D,) or a matrix (D, D)."""
        if self.variances in ("expected", "pooled"):
            return scales.expected if self.variances == "expected" else scales.pooled
        if self.target_strength is not None:
            return scales.covariance(self.target_strength, self.variances == "identity")
        return scales.covariance() if self.variances == "covariance" else scales.covariance(math.inf, True).diagonal()


@dataclass(frozen=True)
class Scaled:
    """Prior whose log density is multiplied by a factor, as in hybrid training (RPTP18).

    Parameters
    ----------
    prior : Prior
        The prior.
    factor : float
        Factor of its log density.
    """

    prior: Prior
    factor: float

    def log_density(self, parameters: Parameters) -> Tensor:
        """Compute the log density of the parameters of a mixture, up to a constant.

        Parameters
        ----------
        parameters : Parameters
            A mixture, or the parameters of an optimiser.

        Returns
        -------
        log_density : Tensor of shape ()
        """
        return self.factor * self.prior.log_density(parameters)


def check_concentration(value: object) -> float:
    """Check the concentration of a Dirichlet prior on weights."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 1 <= float(value) < float("inf"):
        raise ValueError(
            f"concentration must be a number of at least 1; got {value!r}. Below 1 the prior density is infinite at a "
            "weight of zero and has no maximum; 1 is a flat prior."
        )
    return float(value)


def check_matrix(name: str, value: object) -> Tensor:
    """Check variances (D,) or a positive definite matrix (D, D); returned in double precision."""
    values = check_numbers(name, value)
    if values.ndim not in (1, 2) or not values.numel() or (values.ndim == 2 and values.shape[0] != values.shape[1]):
        raise ValueError(
            f"{name} must be one variance per feature (D,) or a matrix (D, D); got shape {tuple(values.shape)}."
        )
    variances = values if values.ndim == 1 else values.diagonal()
    if not bool((variances > 0).all()):
        named = name if values.ndim == 1 else f"the diagonal of {name}"
        raise ValueError(f"{named} must be above 0; the smallest is {float(variances.min()):g}.")
    if values.ndim == 1:
        return values
    scales = variances.sqrt()  # correlations have no units, so that features of any size are judged alike
    correlations = values / scales / scales.unsqueeze(-1)
    if not torch.allclose(correlations, correlations.T, rtol=0.0, atol=1e-6):
        raise ValueError(f"{name} must be a symmetric matrix; it differs from its transpose. Pass (A + A.T) / 2.")
    if int(torch.linalg.cholesky_ex(correlations)[1]):
        smallest = float(torch.linalg.eigvalsh(correlations)[0])
        raise ValueError(
            f"{name} must be a positive definite matrix; the smallest eigenvalue of its correlations is {smallest:g}. "
            "Pass variances (D,) only, or add to the diagonal."
        )
    return values


def check_numbers(name: str, value: object) -> Tensor:
    """Check that values are finite numbers; returned in double precision."""
    try:
        values = torch.as_tensor(value).detach().to(torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must hold numbers; it could not be converted: {error}.") from error
    if not bool(values.isfinite().all()):
        raise ValueError(f"{name} must be finite; got {values.flatten()[~values.flatten().isfinite()][0].item()}.")
    return values


def check_mean(value: object, variances: Tensor, mean_strength: float) -> Tensor | None:
    """Check a prior mean (D,) for all components, or (K, D) one for each; None if the means have no prior."""
    if value is None:
        if mean_strength > 0:
            raise ValueError(
                f"mean_strength={mean_strength:g} needs mean, which is None. Pass mean, or use Shrinkage, which "
                "shrinks to the class means."
            )
        return None
    values = check_numbers("mean", value)
    if values.ndim not in (1, 2) or values.shape[-1] != len(variances):
        raise ValueError(
            f"mean must have shape (D,) or (K, D) with D = {len(variances)}, the number of features of variances; got "
            f"shape {tuple(values.shape)}."
        )
    return values
