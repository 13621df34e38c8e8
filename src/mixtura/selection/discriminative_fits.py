"""Discriminative fits of one setting by extended Baum-Welch: starts, folds, and components that are added (KJO03)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from mixtura.engine.passes import summarise
from mixtura.engine.sources import Source, TensorSource, locate
from mixtura.files.registry import storable
from mixtura.init.starts import split, unexplained
from mixtura.model.mixture import Mixture
from mixtura.objectives import Conditional, Hybrid
from mixtura.priors import Shrinkage
from mixtura.roles import Objective
from mixtura.selection.splits import hold_outs, regroup
from mixtura.selection.task import Task, make_prior
from mixtura.solvers import EM, BaumWelch, EarlyStopping, FitResult, Outcome, run

# max_iter and tol, the same in the comparison and in the last fit: stopping early is a penalty too.
Limits = tuple[int, float]


@storable("setting")
@dataclass(frozen=True)
class Setting:
    """A prior, as `MixtureClassifier` takes it, and the weight of the generative likelihood in the objective."""

    prior: Any
    tradeoff: float

    @property
    def what(self) -> dict[str, Any]:
        """The setting as a table shows it."""
        penalties = {"prior": self.prior}
        if isinstance(self.prior, Shrinkage):
            penalties = {"scale": self.prior.scale, "mean_strength": self.prior.mean_strength}
        return penalties | {"tradeoff": self.tradeoff}

    def of(self, task: Task, n_components: list[int]) -> Task:
        """The task with this setting and these numbers of components."""
        return replace(with_prior(task, self.prior, n_components), objective=make_objective(self.tradeoff))


@storable("growth")
@dataclass(frozen=True)
class Growth:
    """A step that adds components: which classes, whether all of their components are split, and under which setting.

    If not all are split, the component that explains its samples worst is, in each of these classes.
    """

    classes: tuple[int, ...]
    every: bool
    setting: Setting


@dataclass(frozen=True)
class Fold:
    """A task without the held-out samples, those samples, and a generative start."""

    task: Task
    held_out: TensorSource
    start: Mixture

    @property
    def n_held_out(self) -> int:
        """Number of held-out samples."""
        return sum(len(block.rows) for block in self.held_out.blocks())

    def score(self, mixture: Mixture) -> tuple[float, float]:
        """Sum of the log posteriors of the held-out labels, and the weight of the samples."""
        summary = summarise(mixture, self.held_out, Conditional(), locate(self.held_out), self.task.memory_limit)
        return summary.value, summary.weight


def with_prior(task: Task, prior: Any, n_components: list[int]) -> Task:
    """The task for these numbers of components, under a prior as `MixtureClassifier` takes it."""
    chosen = make_prior(prior, task.description, n_components)
    return replace(task, n_components=n_components, prior=chosen)


def make_objective(tradeoff: float) -> Objective:
    """The objective with this weight of the generative likelihood."""
    return Hybrid(tradeoff, Conditional()) if tradeoff > 0 else Conditional()


def fit_generative(task: Task, start: Mixture, limits: Limits) -> Mixture:
    """EM with the default prior. Under strong penalties all components of a class would coincide."""
    return check_complete(run(EM(), with_prior(task, "default", start.class_sizes).generative, start, *limits)).mixture


def adapt_to_prior(task: Task, setting: Setting, start: Mixture) -> Mixture:
    """A generative start after one step of EM under a prior.

    It moves the variances to the range of the prior. Baum-Welch alone would need many short steps for that.
    """
    return EM().step(setting.of(task, start.class_sizes).generative, start)[0]


def fit_discriminative(task: Task, setting: Setting, start: Mixture, limits: Limits) -> Mixture:
    """A fit by Baum-Welch from a start."""
    return check_complete(run(BaumWelch(), setting.of(task, start.class_sizes).problem, start, *limits)).mixture


def fit_until_best(fold: Fold, setting: Setting, start: Mixture, limits: Limits) -> FitResult:
    """A fit by Baum-Welch, stopped at the step that predicts the held-out samples best."""
    problem = setting.of(fold.task, start.class_sizes).problem
    return check_complete(
        run(BaumWelch(), problem, start, *limits, held_out=EarlyStopping(lambda mixture: fold.score(mixture)[0]))
    )


def check_complete(result: FitResult) -> FitResult:
    """Return a fit; raise KeyboardInterrupt again if Ctrl-C interrupted it, since half a fit is no candidate."""
    if result.outcome is Outcome.INTERRUPTED:
        raise KeyboardInterrupt
    return result


def add_components(task: Task, start: Mixture, fit: Mixture, step: Growth, limits: Limits) -> Mixture:
    """A generative start with more components: those that a fit explains worst are split (growing)."""
    about = task.description
    for own_class in step.classes:
        counts = unexplained(fit, about, own_class)
        numbers = range(len(counts) - 1, -1, -1) if step.every else [int(counts.argmax())]
        for number in numbers:  # from the last one, so that the others keep their numbers
            start = split(start, about, own_class, number)
    return fit_generative(task, start, limits)


def repeat_growth(task: Task, start: Mixture, steps: Sequence[Growth], limits: Limits) -> Mixture:
    """A generative start with the components that a search added."""
    for step in steps:
        fit = fit_discriminative(task, step.setting, adapt_to_prior(task, step.setting, start), limits)
        start = add_components(task, start, fit, step, limits)
    return start


def make_folds(task: Task, cv: Any, start: Callable[[Task], Mixture]) -> list[Fold]:
    """Hold out the labeled samples part by part.

    `cv` is as in `hold_outs`. Given splits need samples in memory; otherwise those that the description holds are used.
    """
    cv = regroup(task.cv, cv) if isinstance(cv, Real) else cv
    rows, labels, weights = _described(task) if isinstance(cv, Real) else _in_memory(task, cv)

    def source(chosen: Tensor) -> TensorSource:
        return TensorSource(rows[chosen], labels=labels[chosen], weights=None if weights is None else weights[chosen])

    parts = hold_outs(cv, labels, task.generator, weights=weights)
    labeled = labels >= 0
    for part in parts:
        if set(labels[part.kept & labeled].tolist()) != set(labels[labeled].tolist()):
            raise ValueError("Every training set of cv must have samples of every class; pass a number of folds.")
    return [_fold(task, source(part.kept & labeled), source(part.held_out), start) for part in parts]


def _described(task: Task) -> tuple[Tensor, Tensor, Tensor | None]:
    samples = task.description.samples[: len(task.n_components)]
    rows = torch.cat([rows for rows, _ in samples])
    labels = torch.cat([torch.full((len(part),), c, device=rows.device) for c, (part, _) in enumerate(samples)])
    return rows, labels, torch.cat([weights for _, weights in samples])


def _in_memory(task: Task, cv: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    block = next(iter(task.source.blocks()))
    if block.labels is None or len(block.rows) < task.description.n_rows:
        raise ValueError(
            "Splits given by cv or by groups need samples in memory with one label each; pass a number for cv and no "
            "groups."
        )
    return block.rows, block.labels, block.weights


def _fold(task: Task, kept: TensorSource, held_out: TensorSource, start: Callable[[Task], Mixture]) -> Fold:
    part = task.of_part(kept)
    return Fold(part, held_out, start(part))


def weight_of(rows: Source) -> float:
    """The weight of all rows."""
    return float(sum(len(b.rows) if b.weights is None else float(b.weights.sum()) for b in rows.blocks()))
