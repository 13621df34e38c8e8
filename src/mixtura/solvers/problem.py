"""The problem that a solver of Gaussian mixtures maximises: an objective, a prior and the samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mixtura.engine.evaluator import Buffers, move_for_passes
from mixtura.engine.passes import map_rows
from mixtura.engine.sources import Source, TensorSource, locate
from mixtura.engine.tuning import DEFAULT_MEMORY_LIMIT
from mixtura.model.mixture import Mixture
from mixtura.objectives import class_log_joint
from mixtura.roles import ConjugatePrior, MovablePrior, Objective, Prior
from mixtura.values.extents import Frame
from mixtura.values.moments import PseudoMoments


@dataclass(frozen=True)
class Problem:
    """An objective plus a log prior, as a function of a mixture.

    Parameters
    ----------
    source : Source
        The samples.
    objective : Objective
        The objective.
    frame : Frame
        Centre and radii of the samples.
    floor : Tensor of shape (n_features,)
        Smallest variance of each feature.
    prior : Prior, optional
        Added to the objective.
    class_prior : Tensor of shape (n_classes,), optional
        Fixed class probabilities; None learns them.
    memory_limit : int, default=2**28
        Bytes of temporary memory of a pass.
    seed : int, default=0
        Seed of solvers that draw random numbers.
    ridge : float, default=0.0
        Added to every variance after an update (scikit-learn's `reg_covar`); not part of the objective.
    """

    source: Source
    objective: Objective
    frame: Frame
    floor: Tensor
    prior: Prior | None = None
    class_prior: Tensor | None = None
    memory_limit: int = DEFAULT_MEMORY_LIMIT
    seed: int = 0
    ridge: float = 0.0

    @classmethod
    def from_samples(
        cls,
        rows: Tensor,
        labels: Tensor | None,
        objective: Objective,
        *,
        prior: Prior | None = None,
        class_prior: Tensor | None = None,
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
        seed: int = 0,
    ) -> Problem:
        """Return the problem of samples in memory, without a smallest variance.

        Parameters
        ----------
        rows : Tensor of shape (n_samples, n_features)
            Samples; NaN is a missing value.
        labels : Tensor of shape (n_samples,), optional
            Class numbers, -1 for unlabeled samples.
        objective : Objective
            The objective.
        prior : Prior, optional
            Added to the objective.
        class_prior : Tensor of shape (n_classes,), optional
            Fixed class probabilities; None learns them.
        memory_limit : int, default=2**28
            Bytes of temporary memory of a pass.
        seed : int, default=0
            Seed of solvers that draw random numbers.

        Returns
        -------
        problem : Problem
        """
        source = TensorSource(rows, labels)
        floor = torch.zeros_like(rows[0])
        return cls(source, objective, locate(source), floor, prior, class_prior, memory_limit, seed)

    def move_for_updates(self, mixture: Mixture) -> Mixture:
        """Return a mixture on the device where its updates are computed: the host, for few parameters."""
        movable = self.prior is None or isinstance(self.prior, MovablePrior)
        return move_for_passes(mixture, self.source) if movable else mixture.to(self.source.device)

    def beside(self, mixture: Mixture) -> Problem:
        """Return the same problem with all but the samples on the device of a mixture."""
        return self if self.floor.device == mixture.means.device else self._on_host

    @cached_property
    def _on_host(self) -> Problem:
        return replace(
            self,
            frame=self.frame.to("cpu"),
            floor=self.floor.cpu(),
            prior=self.prior.to("cpu") if isinstance(self.prior, MovablePrior) else self.prior,
            class_prior=None if self.class_prior is None else self.class_prior.cpu(),
        )

    def log_prior(self, mixture: Mixture) -> float:
        """Return the log prior of a mixture, up to a constant."""
        return 0.0 if self.prior is None else float(self.prior.log_density(mixture))

    @cached_property
    def buffers(self) -> Buffers:
        """Buffers of the passes, reused between steps."""
        return Buffers()

    @cached_property
    def pseudo_moments(self) -> PseudoMoments:
        """The pseudo-moments of the prior."""
        if self.prior is None:
            return PseudoMoments.none(self.floor, self.ridge)
        reason = needs_pseudo_moments(self.prior)
        if reason is not None or not isinstance(self.prior, ConjugatePrior):
            raise ValueError(f"EM and extended Baum-Welch cannot use this prior: {reason}.")
        return replace(self.prior.pseudo_moments(len(self.floor)), ridge=self.ridge)


def score_classes(mixture: Mixture, rows: Tensor, memory_limit: int = DEFAULT_MEMORY_LIMIT) -> Tensor:
    """Compute log p(x, c) of every class.

    Parameters
    ----------
    mixture : Mixture
        The model.
    rows : Tensor of shape (n_samples, n_features)
        Samples; NaN is a missing value.
    memory_limit : int, default=2**28
        Bytes of temporary memory.

    Returns
    -------
    log_joints : Tensor of shape (n_samples, n_classes)
    """
    with torch.no_grad():
        sizes = mixture.class_sizes
        return map_rows(mixture, TensorSource(rows), lambda a: class_log_joint(a, sizes).T, memory_limit)


def needs_pseudo_moments(prior: Prior | None) -> str | None:
    """Return a clause that says why a solver with closed-form updates cannot use a prior, or None."""
    if prior is None or isinstance(prior, ConjugatePrior):
        return None
    return (
        f"it needs a prior with pseudo-moments, such as priors.Conjugate, and {type(prior).__name__} has a density "
        "alone; use solver='gradient'"
    )
