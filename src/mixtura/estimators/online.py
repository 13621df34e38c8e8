"""partial_fit: samples that come once, batch by batch (stepwise-em)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from mixtura import checks
from mixtura.engine.passes import summarise
from mixtura.engine.sources import Source, locate
from mixtura.engine.threads import computing
from mixtura.model.mixture import Mixture
from mixtura.roles import Objective
from mixtura.solvers import EM, Problem, Record
from mixtura.solvers.stepwise import RunningMoments, adds_over_time, kept
from mixtura.values.moments import Moments
from mixtura.values.storable import as_loaded


class OnlineFit:
    """What estimators with `partial_fit` share. The first batch is fitted as `fit` does; each later one is one step."""

    running_: RunningMoments | None = None  # what is kept of the samples so far
    mixture_: Mixture
    covariance_type: Any
    memory_limit: Any

    def _check_online(self, step: Any) -> None:
        if isinstance(self.covariance_type, str) and self.covariance_type.startswith("low_rank"):
            raise checks.not_over_time(self.covariance_type)
        decays = isinstance(step, str) and step == "decaying"
        if not decays and not (isinstance(step, Real) and not isinstance(step, bool) and 0 < step < 1):
            raise ValueError(f'step must be "decaying" or a number between 0 and 1; got {step!r}.')

    def _begin(self, fit: Callable[[], Problem]) -> None:
        """Fit the first batch, and keep its moments."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # more batches are to come
            problem = fit()
        if not adds_over_time(self.mixture_):
            raise checks.not_over_time(self.mixture_.covariance.structure.name)
        with computing():
            mixture = self.mixture_.to(problem.source.device)
            self._remember(_moments(mixture, problem), problem, n_steps=1)

    def _resume(self, source: Source, problem: Problem) -> None:
        """Take a mixture that was fitted otherwise as the first batch, with the weight of this one."""
        with computing():
            mixture = self.mixture_.to(source.device)
            summary = summarise(mixture, source, problem.objective, problem.frame, problem.memory_limit)
            counts = mixture.weights * summary.weight
            seconds = tuple(
                part * counts.reshape(-1, *[1] * (part.ndim - 1)) for part in mixture.covariance.own_moments()
            )
            firsts = torch.zeros_like(mixture.means)
            self._remember(
                Moments(counts, firsts, seconds, mixture.covariance.form, mixture.means), problem, n_steps=1
            )

    def _advance(self, source: Source, objective: Objective, step: Any, ridge: float, strict: bool) -> Record:
        """One step (stepwise-em); a step that fails changes nothing."""
        running = self.running_
        assert running is not None
        with computing():
            limit = checks.memory_limit(self.memory_limit)
            known: list[Tensor | None] = [
                None if part is None else part.to(source.device) for part in (running.floor, running.class_prior)
            ]
            assert known[0] is not None
            problem = Problem(source, objective, locate(source), known[0], running.prior, known[1], limit, ridge=ridge)
            mixture = self.mixture_.to(source.device)
            summary = summarise(mixture, source, objective, problem.frame, limit)
            moments = running.added(summary.moments, mixture, step)
            updated = EM(strict=strict).maximised(problem, mixture, moments)
            if not bool(updated.means.isfinite().all() & updated.log_weights.isfinite().any()):
                raise FloatingPointError(f"the parameters became infinite at batch {running.n_steps + 1}")
            self.mixture_ = as_loaded(updated)
            self._remember(moments, problem, running.n_steps + 1)
        return Record(running.n_steps + 1, summary.mean_value, 0.0, 0.0)

    def _remember(self, moments: Moments, problem: Problem, n_steps: int) -> None:
        self.running_ = as_loaded(kept(moments, n_steps, problem.floor, problem.prior, problem.class_prior))


def _moments(mixture: Mixture, problem: Problem) -> Moments:
    return summarise(mixture, problem.source, problem.objective, problem.frame, problem.memory_limit).moments

