"""A prior with a factor."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mixtura.roles import Parameters, Prior


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
