"""A Gaussian mixture with classes, and groups of mixtures whose class posteriors are averaged (averaged-posterior)."""

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

    def part(self, components: Tensor) -> Mixture:
        """Select components, with their classes and weights as they are."""
        covariance = self.covariance.select(components).compacted()
        return Mixture(self.log_weights[components], self.means[components], covariance, self.class_of[components])

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


@storable("member", check=lambda group: group.check())
@dataclass(frozen=True)
class MemberGroup:
    """One mixture or several (members) under one transform, whose class posteriors are averaged.

    Class posteriors of several groups, each with its transform, are averaged too.

    Parameters
    ----------
    mixture : Mixture
        The mixture of the transformed features; of several members all components as one mixture.
    warp : Warp, Recoding or None, default=None
        The transform of the features.
    temperature : float, default=1.0
        The temperature of the class posteriors.
    weight : float, default=1.0
        Weight of the class posteriors in the average of the groups, that of the first group being 1.
    member_of : Tensor of shape (K,), optional
        The member of each component, sorted within a class; None if there is one member.
    """

    mixture: Mixture
    warp: Transform | None = None
    temperature: float = 1.0
    weight: float = 1.0
    member_of: Tensor | None = None

    @cached_property
    def n_members(self) -> int:
        return 1 if self.member_of is None else int(self.member_of.max()) + 1

    @cached_property
    def sizes(self) -> list[int]:
        """Number of components of each class and member, those of a class together."""
        if self.member_of is None:
            return self.mixture.class_sizes
        return self._owners.bincount().tolist()

    @property
    def _owners(self) -> Tensor:
        """The number of the class and member of each component, (K,)."""
        assert self.member_of is not None
        return self.mixture.class_of * self.n_members + self.member_of.to(self.mixture.class_of)

    @property
    def members(self) -> list[Mixture]:
        """Every member by itself."""
        if self.member_of is None:
            return [self.mixture]
        parts = [self.mixture.part((self.member_of == b).nonzero()[:, 0]) for b in range(self.n_members)]
        return [replace(part, log_weights=part.log_weights - part.log_weights.logsumexp(0)) for part in parts]

    @property
    def n_inputs(self) -> int:
        """Number of columns of the samples."""
        return self.mixture.n_features if self.warp is None else self.warp.n_inputs

    @property
    def n_parameters(self) -> int:
        """Free parameters of the mixture and of the transform."""
        return self.mixture.n_parameters + (0 if self.warp is None else self.warp.n_parameters)

    def to(self, device: torch.device | str) -> MemberGroup:
        """Copy the group to a device."""
        warp = None if self.warp is None else self.warp.to(device)
        return replace(self, mixture=self.mixture.to(device), warp=warp)

    def check(self) -> None:
        """Raise a ValueError unless the transform and the members fit the mixture."""
        checks.positive("temperature", self.temperature)
        checks.positive("weight", self.weight)
        mixture, n_features = self.mixture, self.mixture.n_features
        checks.same_size("warp", n_features if self.warp is None else self.warp.n_outputs, n_features)
        if self.member_of is not None:
            checks.positions("member_of", self.member_of, mixture.n_components)
            checks.same_size("member_of", len(self.member_of), mixture.n_components)
            checks.same_size("member_of", len(self._owners.unique()), mixture.n_classes * self.n_members)
            if not bool((self._owners.diff() >= 0).all()):
                raise ValueError("member_of is not sorted within each class")
