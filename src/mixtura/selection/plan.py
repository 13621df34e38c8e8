"""What a fit of Gaussian mixtures is to do, once the input is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixtura import checks
from mixtura.engine.sources import Source, warped
from mixtura.init.description import Description, describe
from mixtura.model.mixture import Mixture
from mixtura.model.warp import Warp
from mixtura.objectives import Joint
from mixtura.priors import PRIORS, Conjugate, Shrinkage
from mixtura.roles import ConjugatePrior, Objective, Prior, Structure
from mixtura.solvers.problem import Problem
from mixtura.values.extents import Frame

# Without a prior a variance may not fall below this part of the pooled variance: the likelihood has no maximum there.
SMALLEST_VARIANCE = 1e-9
OTHER_PRIORS = ', "auto", None or a prior object'


@dataclass(frozen=True)
class Plan:
    """Samples, what they look like, and the model to fit to them."""

    source: Source
    classes: np.ndarray
    description: Description
    structure: Structure
    n_components: list[int]
    objective: Objective
    prior: Prior | None
    class_prior: Tensor | None
    generator: torch.Generator
    memory_limit: int
    selection: Any = None  # what a search compared, where there was one
    interrupted: Mixture | None = None  # the best model of a search that Ctrl-C ended
    warp: Warp | None = None  # that source and description have gone through
    log_slope: float = 0.0  # what it adds to the log density of a sample, on average

    @property
    def n_numeric(self) -> int:
        """Features that are numbers; the others are indicators of categories."""
        return self.structure.n_gaussian(self.source.n_features)

    @property
    def em_structure(self) -> Structure:
        """What EM fits: the structure itself, or another where it has no closed update."""
        return self.structure.for_em(self.source.n_features)

    def converted(self, mixture: Mixture) -> Mixture:
        """Return a mixture that EM fitted, in the structure that was asked for."""
        return replace(mixture, covariance=self.structure.converted(mixture.covariance))

    def with_warp(self, warp: Warp | None) -> Plan:
        """Return the same plan for transformed features."""
        if warp is None:
            return self
        warp = warp.to(self.source.device)
        source = warped(self.source, warp)
        description = describe(source, len(self.classes), self.generator)
        rows, weights = (torch.cat(part) for part in zip(*self.description.samples[: len(self.classes)], strict=True))
        log_slope = float(weights @ warp.log_slopes(rows).double() / weights.sum())
        return replace(self, source=source, description=description, warp=warp, log_slope=log_slope)

    @property
    def problem(self) -> Problem:
        """The problem for a solver."""
        return Problem(
            self.source,
            self.objective,
            self.frame,
            self.floor,
            self.prior,
            self.class_prior,
            self.memory_limit,
        )

    @property
    def generative(self) -> Problem:
        """The problem of a generative start; with the default prior where that of the fit has no pseudo-moments."""
        prior = self.prior
        if not isinstance(prior, ConjugatePrior | None):
            prior = make_prior("default", self.description, self.n_components)
        return replace(self.problem, objective=Joint(), prior=prior)

    @property
    def frame(self) -> Frame:
        return self.description.frame

    @property
    def floor(self) -> Tensor:
        """The smallest variances. A feature that does not vary says nothing about the classes: one variance for all."""
        within = self.description.within
        return torch.where(self.description.varies, SMALLEST_VARIANCE * within, within)

    def collapsed(self, mixture: Mixture) -> tuple[str, ...]:
        """Return which variances ended at their floor, in words."""
        low = (mixture.covariance.variances() <= 2 * self.floor) & self.description.varies
        numbers = low.any(1).nonzero()[:, 0].tolist()
        return (f"a variance of component {numbers[0]} was raised to the smallest allowed variance",) if numbers else ()


def is_auto(value: Any) -> bool:
    """Return whether an argument is to be chosen."""
    return isinstance(value, str) and value == "auto"


def make_prior(value: Any, description: Description, n_components: Sequence[int]) -> Prior | None:
    """Return the prior that an argument asks for."""
    if value is None:
        return None
    if not isinstance(value, Prior):
        named = isinstance(value, Shrinkage)
        make = value.prior if named else PRIORS[checks.one_of("prior", value, PRIORS, OTHER_PRIORS)]
        value = make(description.scales_for(n_components))
    elif isinstance(value, Conjugate):
        value = value.to(description.within.device)
    if isinstance(value, ConjugatePrior):
        checks.prior_fits(value.pseudo_moments(len(description.within)), len(description.within), sum(n_components))
    return value
