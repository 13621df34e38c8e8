"""Class posteriors given which values are missing (missingness).

Mixtures assume that values are missing at random. Where it depends on the class which values are missing,
p(mask | class) is one more factor of the class posteriors, outside the density of the values and the same for every
mixture.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from mixtura import checks
from mixtura.files.registry import storable

# Pseudo-samples of every class with the share of missing values of all classes.
PSEUDO_SAMPLES = 1.0
# A share of missing values is unusual if it is off the expected one by more than both, the second in standard errors.
UNUSUAL, UNUSUAL_ERRORS = 0.1, 4.0


@storable("missingness", check=lambda missingness: missingness.check())
@dataclass(frozen=True, eq=False)
class Missingness:
    """Independent Bernoulli distributions of missing values given the class, to the power of a strength.

    Parameters
    ----------
    columns : Tensor of shape (J,)
        Columns of the rows whose missing values count, one per feature.
    log_odds : Tensor of shape (C, J)
        Log-odds of a missing value in samples of each class.
    strength : float, default=1.0
        The factor is raised to this power: features that are missing together count less than independent ones.
    """

    columns: Tensor
    log_odds: Tensor
    strength: float = 1.0

    @property
    def shares(self) -> Tensor:
        """The share of missing values in samples of each class, (C, J)."""
        return self.log_odds.sigmoid()

    def log_factors(self, missing: Tensor, counted: Tensor | None = None) -> Tensor:
        """The logarithm of the factor of every class, (C, n) (missingness).

        Parameters
        ----------
        missing : Tensor of shape (n, J)
            Which values are missing.
        counted : Tensor of shape (n, J), optional
            Which features count: the factors of the others are left out, whether their values are missing or not.
        """
        odds = self.log_odds.to(missing.device)
        counts = torch.ones_like(missing) if counted is None else counted
        return self.strength * (odds @ (missing & counts).to(odds).T - softplus(odds) @ counts.to(odds).T)

    def unusual(self, missing: Tensor, class_prior: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The features that are missing far more or less often than in training.

        Parameters
        ----------
        missing : Tensor of shape (n, J)
            Which values are missing.
        class_prior : ndarray of shape (C,)
            Class probabilities of the samples.

        Returns
        -------
        numbers, shares, expected : ndarray
            Of these features: their numbers, their shares of missing values, and those that training lets expect.
        """
        expected = class_prior @ self.shares.cpu().numpy()
        errors = np.sqrt(expected * (1 - expected) / max(1, len(missing)))
        shares = missing.double().mean(0).cpu().numpy() if len(missing) else expected
        gaps = np.abs(shares - expected)
        numbers = np.flatnonzero((gaps > UNUSUAL) & (gaps > UNUSUAL_ERRORS * errors))
        return numbers, shares[numbers], expected[numbers]

    def scaled(self, strength: float) -> Missingness:
        """The same distributions to another power."""
        return replace(self, strength=strength)

    def to(self, device: torch.device | str) -> Missingness:
        """Copy the distributions to a device."""
        return Missingness(self.columns.to(device), self.log_odds.to(device), self.strength)

    def check(self) -> None:
        """Raise a ValueError unless there is a finite number for every class and column."""
        checks.non_negative("strength", self.strength)
        checks.numbers("log_odds", self.log_odds, (len(self.log_odds), len(self.columns)))


def estimate_missingness(observed_weights: Tensor, class_weights: Tensor, columns: Tensor) -> Missingness | None:
    """Estimate the shares of missing values of each class; None if no feature is both missing and observed.

    Parameters
    ----------
    observed_weights : Tensor of shape (C, D)
        Weight of the labeled samples of each class in which a column is observed.
    class_weights : Tensor of shape (C,)
        Weight of the labeled samples of each class.
    columns : Tensor of shape (F,)
        One column for every feature.
    """
    observed = observed_weights[:, columns]
    total, overall = class_weights.sum(), observed.sum(0)
    told = (overall > 0) & (total - overall > 1e-9 * total)
    if not bool(told.any()):
        return None
    common = PSEUDO_SAMPLES * overall[told] / total
    present = observed[:, told] + common
    absent = (class_weights.unsqueeze(-1) - observed[:, told]).clamp_min(0) + PSEUDO_SAMPLES - common
    return Missingness(columns[told], (absent / present).log())
