"""A Gaussian mixture with classes, and the members of an average of class posteriors (averaged-posterior)."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mixtura import checks
from mixtura.files.registry import storable
from mixtura.model.transforms import Transform
from mixtura.roles import Covariance
from mixtura.values.moments import Moments


@storable("mixture", check=lambda mixture: mixture.check())
@dataclass(frozen=True)
class Mixture:
    """K Gaussian components, each of one class: a[n, k] = log weight_k + log N(x_n; mean_k, Sigma_k) (log-joint).

    The weights of all components sum to one; those of a class sum to its prior probability. Components are sorted by
    class.
    """

    log_weights: Tensor  # (K,)
    means: Tensor  # (K, D)
    covariance: Covariance
    class_of: Tensor  # (K,), sorted

    def __post_init__(self) -> None:
        object.__setattr__(self, "covariance", self.covariance.at(self.means))

    def __str__(self) -> str:
        weights = ", ".join(f"{weight:.3g}" for weight in self.weights.tolist())
        return (
            f"Mixture of {self.n_components} components ({self.covariance.structure.name}) of {self.n_features} "
            f"features, {self.class_sizes} per class; weights {weights}"
        )

    @property
    def n_components(self) -> int:
        return self.means.shape[0]

    @property
    def n_features(self) -> int:
        return self.means.shape[1]

    @cached_property
    def n_classes(self) -> int:
        return int(self.class_of[-1]) + 1

    @cached_property
    def class_slices(self) -> list[slice]:
        """The components of each class."""
        edges = torch.searchsorted(
            self.class_of, torch.arange(self.n_classes + 1, device=self.class_of.device)
        ).tolist()
        return [slice(a, b) for a, b in itertools.pairwise(edges)]

    @property
    def class_sizes(self) -> list[int]:
        """Number of components of each class."""
        return [part.stop - part.start for part in self.class_slices]

    @property
    def weights(self) -> Tensor:
        """Weights, (K,), summing to one."""
        return self.log_weights.exp()

    @property
    def covariances(self) -> Tensor:
        """Dense covariance matrices, (K, D, D)."""
        return self.covariance.dense()

    @property
    def log_class_prior(self) -> Tensor:
        """Log of the total weight of each class, (C,)."""
        if self.n_classes == self.n_components:
            return self.log_weights
        return torch.stack([self.log_weights[part].logsumexp(0) for part in self.class_slices])

    @property
    def log_determinants(self) -> Tensor:
        return self.covariance.log_determinants

    @property
    def distinct_log_determinants(self) -> Tensor:
        return self.covariance.distinct_log_determinants

    def traces(self, scatter: Tensor) -> Tensor:
        """tr(Sigma_g^-1 scatter) of every distinct matrix, (G,)."""
        return self.covariance.penalty(scatter)

    def distances(self, vectors: Tensor) -> Tensor:
        """v_k' Sigma_k^-1 v_k: (K, D) -> (K,)."""
        return self.covariance.squared_distances(vectors.unsqueeze(1)).squeeze(1)

    @property
    def n_parameters(self) -> int:
        """Free parameters: weights, means, covariances."""
        return self.n_components - 1 + self.means.numel() + self.covariance.n_parameters

    def moved(self, log_weights: Tensor, means: Tensor, covariance: Covariance) -> Mixture:
        """Replace the parameters; cached properties of the classes are kept."""
        other = Mixture(log_weights, means, covariance, self.class_of)
        other.__dict__.update(
            {name: self.__dict__[name] for name in ("n_classes", "class_slices") if name in self.__dict__}
        )
        return other

    def with_class_prior(self, class_prior: Tensor) -> Mixture:
        """Replace the class prior, (C,)."""
        change = class_prior.log() - self.log_class_prior
        return Mixture(self.log_weights + change[self.class_of], self.means, self.covariance, self.class_of)

    def select(self, components: slice | Tensor) -> Mixture:
        """Select components as one class, with normalised weights."""
        log_weights = self.log_weights[components]
        return Mixture(
            log_weights - log_weights.logsumexp(0),
            self.means[components],
            self.covariance.select(components),
            torch.zeros_like(self.class_of[components]),
        )

    def log_joint(self, rows: Tensor) -> Tensor:
        """Log joints of rows on the exact path; NaN is a missing value: (n, D) -> (n, K)."""
        observed = ~rows.isnan()
        deviations = torch.where(observed, rows - self.means.unsqueeze(1), 0.0)  # (K, n, D)
        given = self.covariance.condition(deviations, observed)
        constant = observed.sum(1, dtype=deviations.dtype) * math.log(2 * math.pi)
        log_densities = -0.5 * (constant + given.log_determinants + given.squared_distances)
        return (self.log_weights.unsqueeze(-1) + log_densities).T

    def sample(self, n_rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Rows (n, D) and the components (n,) they came from."""
        weights = self.weights.to(generator.device)
        components = torch.multinomial(weights, n_rows, replacement=True, generator=generator).to(self.means.device)
        return self.means[components] + self.covariance.sample(components, generator), components

    def own_moments(self, counts: Tensor) -> Moments:
        """Expected moments of rows drawn from this mixture, about its means, with counts (K,)."""
        seconds = self.covariance.own_moments()
        scaled = Moments(
            torch.ones_like(counts), torch.zeros_like(self.means), seconds, self.covariance.form, self.means
        )
        return scaled.scaled(counts)

    def check(self) -> None:
        """Raise a ValueError unless shapes are consistent and values finite; covariances are checked separately."""
        if self.means.ndim != 2 or self.means.numel() == 0 or self.means.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"means {tuple(self.means.shape)} of type {self.means.dtype} are not those of components")
        sizes, variances = (self.n_components, self.n_features), self.covariance.variances()
        if variances.shape != sizes or self.log_weights.shape != sizes[:1]:
            raise ValueError("means, covariances and weights have inconsistent shapes")
        if not self.means.dtype == variances.dtype == self.log_weights.dtype:
            raise ValueError("means, covariances and weights have different types")
        checks.class_numbers(self.class_of, self.n_components)
        if not bool(self.means.square().isfinite().all()) or not bool((self.log_weights < torch.inf).all()):
            raise ValueError("a mean or a weight is not finite, or too large to square")
        if not bool(self.log_class_prior.isfinite().all()):
            raise ValueError("a class has no weight")

    def to(self, device: torch.device | str) -> Mixture:
        """Copy the mixture to a device."""
        device = torch.device(device)
        if self.means.device == device:
            return self
        return self.on_host if device.type == "cpu" else self._copied(device)

    @cached_property
    def on_host(self) -> Mixture:
        """The mixture in the memory of the CPU, cached for predictions on a GPU."""
        return self if self.means.device.type == "cpu" else self._copied(torch.device("cpu"))

    @cached_property
    def ranges(self) -> tuple[Tensor, Tensor]:
        """Means and standard deviations, (K, D), in the memory of the CPU, without the matrices."""
        return self.means.cpu(), self.covariance.variances().sqrt().cpu()

    def _copied(self, device: torch.device) -> Mixture:
        copy = Mixture(
            self.log_weights.to(device), self.means.to(device), self.covariance.to(device), self.class_of.to(device)
        )
        if self.means.device.type == "cpu":
            copy.__dict__["on_host"] = self
        return copy


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
    weight : float, default=1.0
        Weight of its class posteriors in the average, that of the first member being 1.
    """

    mixture: Mixture
    warp: Transform | None = None
    temperature: float = 1.0
    weight: float = 1.0

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
        warp = None if self.warp is None else self.warp.to(device)
        return replace(self, mixture=self.mixture.to(device), warp=warp)

    def check(self) -> None:
        """Raise a ValueError unless the transform has as many features as the mixture."""
        checks.positive("temperature", self.temperature)
        checks.positive("weight", self.weight)
        n_features = self.mixture.n_features
        checks.same_size("warp", n_features if self.warp is None else self.warp.n_outputs, n_features)
