"""The members of an average of class posteriors (averaged-posterior)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mixtura import checks
from mixtura.files.registry import storable
from mixtura.model.mixture import Mixture
from mixtura.model.recoding import Transform


@storable("member", check=lambda member: member.check())
@dataclass(frozen=True)
class Member:
    """A mixture of features under a transform of its own, whose class posteriors are averaged with those of others.

    Parameters
    ----------
    mixture : Mixture
        The mixture of the transformed features.
    warp : Warp, Recoding or None, default=None
        The transform of the features.
    temperature : float, default=1.0
        The temperature of its class posteriors.
    """

    mixture: Mixture
    warp: Transform | None = None
    temperature: float = 1.0

    @property
    def n_inputs(self) -> int:
        """Number of columns of the samples."""
        return self.mixture.n_features if self.warp is None else self.warp.n_inputs

    @property
    def n_parameters(self) -> int:
        """Free parameters of the mixture and of the transform."""
        return self.mixture.n_parameters + (0 if self.warp is None else self.warp.n_parameters)

    def to(self, device: torch.device | str) -> Member:
        """Copy the member to a device."""
        return Member(self.mixture.to(device), None if self.warp is None else self.warp.to(device), self.temperature)

    def check(self) -> None:
        """Raise a ValueError unless the transform has as many features as the mixture."""
        checks.positive("temperature", self.temperature)
        n_features = self.mixture.n_features
        checks.same_size("warp", n_features if self.warp is None else self.warp.n_outputs, n_features)
