"""A covariance of the fewest lines: the laws run over it, and estimators fit it by name and as an object."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from mixtura.roles import Covariance, Structure
from mixtura.values.storable import storable

LARGEST = 0.9999  # correlation of neighbours


@storable("tests.chain")
@dataclass(frozen=True)
class Chain(Structure):
    """Each feature depends on the one before it: Markov chains, whose precisions are tridiagonal."""

    name = "chain"

    def start(self, variances, deviations, assignments, class_of) -> "ChainCovariance":
        return ChainCovariance(variances, torch.zeros_like(variances[:, 1:]))

    def from_tensors(self, tensors) -> "ChainCovariance":
        return ChainCovariance(tensors["entries"], tensors["correlations"])


@dataclass(frozen=True)
class ChainCovariance(Covariance):
    """Variances (K, D), and correlations (K, D - 1) of neighbours, whose products are those of other pairs."""

    entries: Tensor
    correlations: Tensor
    structure = Chain()

    def dense(self) -> Tensor:
        size = self.entries.shape[1]
        steps = pad(self.correlations, (1, 0), value=1.0).unsqueeze(1).expand(-1, size, -1)
        upper = (steps.triu(1) + torch.ones_like(steps).tril()).cumprod(-1).triu()
        return (upper + upper.triu(1).mT) * (self.entries.unsqueeze(-1) * self.entries.unsqueeze(-2)).sqrt()

    def tensors(self) -> dict[str, Tensor]:
        return {"entries": self.entries, "correlations": self.correlations}

    def updated(self, scatter, pseudo, floor) -> "ChainCovariance":
        matrices = self.unrestricted_update(scatter, pseudo, floor)  # the likelihood depends on two diagonals alone
        variances, beside = (matrices.diagonal(offset, 1, 2) for offset in (0, 1))
        correlations = beside / (variances[:, 1:] * variances[:, :-1]).sqrt()
        return ChainCovariance(variances, correlations.clamp(-LARGEST, LARGEST))

    def unconstrained(self) -> dict[str, Tensor]:
        return {"log_variances": self.entries.log(), "angles": (self.correlations / LARGEST).atanh()}

    def constrained(self, free) -> "ChainCovariance":
        return ChainCovariance(free["log_variances"].exp(), LARGEST * free["angles"].tanh())
