"""A prior that counts more or less than once."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mixtura.roles import Parameters, Prior


@dataclass(frozen=True)
class Scaled:
    """A prior with its log density multiplied, as hybrid training counts it with the likelihood (RPTP18).

    Parameters
    ----------
    prior : Prior
    factor : float
    """

    prior: Prior
    factor: float

    def log_density(self, parameters: Parameters) -> Tensor:
        return self.factor * self.prior.log_density(parameters)
