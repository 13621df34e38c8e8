"""Stepwise EM for batches that are seen once: moments with exponential forgetting (stepwise-em)."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

from torch import Tensor

from mixtura.files.registry import storable
from mixtura.model.mixture import Mixture
from mixtura.roles import Covariance
from mixtura.values.moments import DenseForm, DiagonalForm, Form, Moments

# gamma_t = (t + 1)^-DECAY: any exponent between 0.5 and 1 converges (Cappé and Moulines 2009); small ones forget the
# initialisation sooner, large ones average more. Held-out log-likelihood per sample after one pass of 200 000 samples
# in batches of 4000 (16 features, 8 components), relative to 20 full EM iterations, for three sets of data (make_rows
# of benchmarks.scale with shape_seed 10, 11 and 12; the figures of docs/scale.md are of other seeds):
#
#     exponent     0.55     0.6     0.7     0.8     0.9
#     seed 10    -.0085  -.0068  -.0045  -.0029  -.0019
#     seed 11    -.0084  -.0068  -.0044  -.0029  -.0019
#     seed 12    -.0085  -.0068  -.0044  -.0029  -.0019
#
# Stationary data favour large exponents, which weight the first batches more; 0.7 loses little on them.
DECAY = 0.7


def check_running(running: RunningMoments) -> None:
    """Moments of as many components and features as their reference."""
    n_components, n_features = running.reference.shape
    shapes = ((n_components, n_features), (n_components, n_features, n_features))
    fits = running.counts.shape == (n_components,) and running.firsts.shape == running.reference.shape
    if not fits or tuple(running.seconds.shape) not in shapes or running.floor.shape != (n_features,):
        raise ValueError("running moments have different shapes")


@storable("running_moments", check=check_running)
@dataclass(frozen=True)
class RunningMoments:
    """The statistics of the samples seen so far.

    Attributes
    ----------
    counts, firsts, seconds : Tensor
        Decayed sums of moments about `reference`, with second moments as matrices or as diagonals.
    reference : Tensor of shape (n_components, n_features)
    n_steps : int
        Batches seen.
    floor : Tensor of shape (n_features,)
        Smallest variances.
    prior, class_prior : object
        As in the first batch.
    """

    counts: Tensor
    firsts: Tensor
    seconds: Tensor
    reference: Tensor
    n_steps: int
    floor: Tensor
    prior: Any
    class_prior: Tensor | None

    @property
    def moments(self) -> Moments:
        form: Form = DenseForm() if self.seconds.ndim == 3 else DiagonalForm()
        return Moments(self.counts, self.firsts, (self.seconds,), form, self.reference)

    def forgotten(self, step: float | str) -> float:
        """Return gamma, the fraction by which the next batch reduces the moments so far."""
        return float(step) if isinstance(step, Real) else (self.n_steps + 1) ** -DECAY

    def added(self, moments: Moments, mixture: Mixture, step: float | str) -> Moments:
        """Return S <- (1 - gamma) S + s, about the means of the mixture (stepwise-em)."""
        return self.moments.about(mixture.means).scaled(1 - self.forgotten(step)) + moments.about(mixture.means)


def adds_over_time(covariance: Covariance) -> bool:
    """Return whether moments of different iterations can be added in the form of this covariance."""
    return isinstance(covariance.form, DenseForm | DiagonalForm)


def kept(moments: Moments, n_steps: int, floor: Tensor, prior: Any, class_prior: Tensor | None) -> RunningMoments:
    """Return moments as a storable value."""
    (seconds,) = moments.seconds
    reference = moments.reference.expand_as(moments.firsts).contiguous()
    return RunningMoments(moments.counts, moments.firsts, seconds, reference, n_steps, floor, prior, class_prior)
