"""The plan of a fit of Gaussian mixtures, made from checked input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from mixtura import checks
from mixtura.engine.sources import Source, TensorSource, warped
from mixtura.init.description import Description, describe
from mixtura.model.mixture import Mixture
from mixtura.model.warp import Warp
from mixtura.objectives import Joint
from mixtura.priors import PRIORS, Conjugate, Shrinkage
from mixtura.roles import ConjugatePrior, Objective, Prior, Structure
from mixtura.solvers import FitResult, Outcome, Problem
from mixtura.values.extents import Frame

# Without a prior, variances stay above this fraction of the pooled variance, since the likelihood is unbounded.
SMALLEST_VARIANCE = 1e-9
OTHER_PRIORS = ', "auto", None or a prior object'


@dataclass(frozen=True)
class Plan:
    """The samples, their description, and the model to fit."""

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
    selection: Any = None  # the choice of the automatic search, if there was one
    held_out: TensorSource | None = None  # validation samples that the user passed
    warp: Warp | None = None  # already applied to source and description
    log_slope: float = 0.0  # mean contribution of the transform to the log density of a sample

    @property
    def n_numeric(self) -> int:
        """Number of numeric features; the others are indicators of categories."""
        return self.structure.n_gaussian(self.source.n_features)

    @property
    def em_structure(self) -> Structure:
        """The structure that EM fits: the requested one, or another one if that has no closed-form update."""
        return self.structure.for_em(self.source.n_features)

    def converted(self, mixture: Mixture) -> Mixture:
        """Convert a mixture fitted by EM to the requested structure."""
        return replace(mixture, covariance=self.structure.converted(mixture.covariance))

    def of_part(self, source: Source) -> Plan:
        """Return the same plan for some of the samples; its prior remains that of all samples."""
        description = describe(source, len(self.classes), self.generator)
        counts = [min(n, len(rows)) for n, (rows, _) in zip(self.n_components, description.samples, strict=False)]
        return replace(self, source=source, description=description, n_components=counts, selection=None)

    def interrupted(self, mixture: Mixture) -> FitResult:
        """The result of a search that Ctrl-C interrupted: its best model."""
        if self.class_prior is not None:
            mixture = mixture.with_class_prior(self.class_prior)
        return FitResult(self.converted(mixture), Outcome.INTERRUPTED, ())

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
        """The problem of a generative initialisation; with the default prior if `prior` has no pseudo-moments."""
        prior = self.prior
        if not isinstance(prior, ConjugatePrior | None):
            prior = make_prior("default", self.description, self.n_components)
        return replace(self.problem, objective=Joint(), prior=prior)

    @property
    def frame(self) -> Frame:
        return self.description.frame

    @property
    def floor(self) -> Tensor:
        """The smallest variances. A constant feature gets the same variance in all components."""
        within = self.description.within
        return torch.where(self.description.varies, SMALLEST_VARIANCE * within, within)

    def collapsed(self, mixture: Mixture) -> tuple[str, ...]:
        """Describe which variances ended at their lower limit."""
        low = (mixture.covariance.variances() <= 2 * self.floor) & self.description.varies
        numbers = low.any(1).nonzero()[:, 0].tolist()
        return (f"a variance of component {numbers[0]} was raised to the smallest allowed variance",) if numbers else ()


@dataclass(frozen=True)
class Trained:
    """The fit of a preset, its plan with the selected settings, and the fitted attributes that describe the search."""

    result: FitResult
    plan: Plan
    attributes: dict[str, Any] = field(default_factory=dict)


class PresetSearch(Protocol):
    """The training of a preset: it selects the settings that the arguments leave open, then trains with all samples."""

    def fit(self, plan: Plan, given: Mixture | None, watch: Callable[[Any], None] | None) -> Trained:
        """Train from the given mixture or, if it is None, from a new start; `watch` is called with every trial."""
        ...


def is_auto(value: Any) -> bool:
    """Whether the value of an argument is to be selected."""
    return isinstance(value, str) and value == "auto"


def make_prior(value: Any, description: Description, n_components: Sequence[int]) -> Prior | None:
    """Make the prior for a value of the argument `prior`."""
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
