"""The task of a training: samples, description, model and how to train it; the values between the steps of a fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from mixtura import checks
from mixtura.engine.sources import BlockSource, Source, warped
from mixtura.init.description import Description, describe
from mixtura.init.starts import starting_mixture
from mixtura.init.transform_fits import with_frequencies
from mixtura.model.missingness import Missingness
from mixtura.model.mixture import Mixture
from mixtura.model.transforms import Recoding, Transform
from mixtura.objectives import Conditional, Hybrid, Joint
from mixtura.priors import PRIORS, Scaled, Shrinkage
from mixtura.roles import ConjugatePrior, Covariance, MixtureSolver, MovablePrior, Objective, Prior, Structure
from mixtura.selection.search import SearchTable
from mixtura.solvers import EM, SOLVERS, FitResult, Gradient, Outcome, Problem, first_update, run
from mixtura.values.extents import Frame

# Without a prior, variances stay above this fraction of the pooled variance, since the likelihood is unbounded.
SMALLEST_VARIANCE = 1e-9
PriorChoice: TypeAlias = str | Prior | Shrinkage | None  # an argument `prior`
AnyTask = TypeVar("AnyTask")  # `Task`, or `TextTask` of texts.py


@dataclass(frozen=True)
class HybridTraining:
    """Training of a fit of EM by the likelihood and by the posteriors at a temperature (hybrid-member).

    Parameters
    ----------
    tradeoff : float
        Weight of the likelihood and of the prior.
    temperature : float
        Of the posteriors.
    n_epochs : int
        Epochs of L-BFGS with all samples.
    """

    tradeoff: float
    temperature: float
    n_epochs: int

    solver: ClassVar = Gradient("lbfgs")

    @property
    def what(self) -> dict[str, float]:
        """The settings as a table shows them."""
        return {"tradeoff": self.tradeoff, "training_temperature": self.temperature, "n_epochs": self.n_epochs}

    @classmethod
    def from_what(cls, what: Mapping[str, object]) -> HybridTraining | None:
        """The settings that a table shows; None if it shows none."""
        if "training_temperature" not in what:
            return None
        shown = cast("Mapping[str, float]", what)
        return cls(shown["tradeoff"], shown["training_temperature"], int(shown["n_epochs"]))

    def of(self, problem: Problem) -> Problem:
        """The problem for the solver."""
        prior = None if problem.prior is None else Scaled(problem.prior, self.tradeoff)
        return replace(problem, objective=Hybrid(self.tradeoff, Conditional(self.temperature)), prior=prior)


@dataclass(frozen=True)
class Task:
    """Samples, their description, the model to fit to them, and how to fit it.

    Parameters
    ----------
    source : Source
        The samples, transformed by `warp`.
    classes : ndarray of shape (n_classes,), or None
        Labels of the classes; None for a density.
    description : Description
        Of the samples.
    structure : Structure
        Structure of the covariances.
    n_components : list of int
        Of each class.
    objective : Objective
        Maximised by the solver.
    prior : Prior or None
        Made for these samples.
    class_prior : Tensor of shape (n_classes,), or None
        Fixed class probabilities; None learns them.
    generator : torch.Generator
        Random numbers of folds, starts and solver.
    memory_limit : int
        Bytes of temporary memory of a pass.
    solver : MixtureSolver or None, default=None
        None takes the first registered one that supports the model.
    init : str or Mixture, default="kmeans"
        Method of initialisation, or the given initial mixture.
    start : Mixture or None, default=None
        A fit of a search, from which training starts if no mixture is given.
    n_init : int, default=1
        Number of starts.
    max_iter, tol : int and float
        Limits of the solver.
    cv : object, default=5
        Splits of the samples, as in `hold_outs`.
    held_out : BlockSource or None, default=None
        Validation samples that the user passed, or those that a fold holds out.
    warp : Warp or None, default=None
        Already applied to source and description.
    ordered : tuple of int, default=()
        Categorical features, by their position among them, whose categories have an order.
    temperature, label_noise : float
        Of the class probabilities.
    missingness : Missingness or None, default=None
        How often values are missing in each class; None: it does not matter which values are missing.
    reg_covar : float or None, default=None
        Added to variances without a prior, which then have no other limit, as in scikit-learn; None: they have one.
    training : HybridTraining or None, default=None
        By which the fit is trained on; only with EM.
    weight : float, default=1.0
        Of the class posteriors of the model, if they are averaged with others.
    """

    source: Source
    classes: np.ndarray | None
    description: Description
    structure: Structure
    n_components: list[int]
    objective: Objective
    prior: Prior | None
    class_prior: Tensor | None
    generator: torch.Generator
    memory_limit: int
    solver: MixtureSolver | None = None
    init: str | Mixture = "kmeans"
    start: Mixture | None = None
    n_init: int = 1
    max_iter: int = 200
    tol: float = 1e-4
    cv: object = 5
    held_out: BlockSource | None = None
    warp: Transform | None = None
    ordered: tuple[int, ...] = ()
    temperature: float = 1.0
    label_noise: float = 0.0
    missingness: Missingness | None = None
    reg_covar: float | None = None
    training: HybridTraining | None = None
    weight: float = 1.0

    @property
    def n_classes(self) -> int:
        return 1 if self.classes is None else len(self.classes)

    @property
    def limits(self) -> tuple[int, float]:
        """max_iter and tol."""
        return self.max_iter, self.tol

    @property
    def n_numeric(self) -> int:
        """Number of numeric features; the others are indicators of categories."""
        return self.structure.n_gaussian(self.source.n_features)

    @property
    def em_structure(self) -> Structure:
        """The structure that EM fits: the requested one, or another one if that has no closed-form update."""
        return self.structure.for_em(self.source.n_features)

    def convert(self, mixture: Mixture) -> Mixture:
        """Convert a mixture fitted by EM to the requested structure."""
        return replace(mixture, covariance=self.structure.converted(mixture.covariance))

    def of_part(self, source: Source) -> Task:
        """Return the same task for some of the samples; its prior remains that of all samples."""
        description = describe(source, self.n_classes, self.generator)
        counts = [min(n, len(rows)) for n, (rows, _) in zip(self.n_components, description.samples, strict=False)]
        return replace(self, source=source, description=description, n_components=counts, start=None)

    def interrupted(self) -> FitResult:
        """The result of a search that Ctrl-C interrupted: its best model."""
        assert self.start is not None
        return FitResult(self.convert(self.start), Outcome.INTERRUPTED, ())

    def _with_class_prior(self, mixture: Mixture) -> Mixture:
        return mixture if self.class_prior is None else mixture.with_class_prior(self.class_prior)

    def from_fit(self, mixture: Mixture) -> Task:
        """Return the same task, which starts from a fit of a search."""
        return replace(self, start=self._with_class_prior(mixture), n_init=1)

    def with_warp(self, warp: Transform | None) -> Task:
        """Return the same task for transformed features."""
        if warp is None:
            return self
        warp = warp.to(self.source.device)
        if isinstance(warp, Recoding):
            warp, source = with_frequencies(warp, self.source, self.n_classes)
            description = describe(source, self.n_classes, self.generator)
            structure = self.structure.without_categories
            held_out = None if self.held_out is None else warped(self.held_out, warp)
            changes = {"source": source, "description": description, "held_out": held_out}
            return replace(self, **changes, warp=warp, structure=structure)
        source = warped(self.source, warp)
        description = describe(source, self.n_classes, self.generator)
        return replace(self, source=source, description=description, warp=warp)

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
            ridge=self.reg_covar if self.reg_covar is not None and self.prior is None else 0.0,
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
        if self.reg_covar is not None:
            return torch.where(self.description.varies | (self.prior is None), 0.0, self.description.total)
        within = self.description.within
        return torch.where(self.description.varies, SMALLEST_VARIANCE * within, within)

    def collapsed(self, mixture: Mixture) -> tuple[str, ...]:
        """Describe which variances ended at their lower limit."""
        low = (mixture.covariance.variances() <= 2 * self.floor) & self.description.varies
        numbers = low.any(1).nonzero()[:, 0].tolist()
        return (f"a variance of component {numbers[0]} was raised to the smallest allowed variance",) if numbers else ()


def start(task: Task, problem: Problem | None = None) -> Mixture:
    """Return the initial mixture: the given one, the fit of a search, or a new one.

    A new one is updated once, by the generative problem of the task unless another is given.
    """
    if isinstance(task.init, Mixture):
        return task.init
    if task.start is not None:
        return task.start
    rough, assigned = starting_mixture(
        task.description, task.em_structure, task.n_components, task.init, task.generator
    )
    return first_update(rough, assigned, problem or task.generative)


def fit_once(task: Task) -> FitResult:
    """Fit a task from one start: by EM first, if the solver needs a fit to start from and none is given."""
    if task.training is not None:
        return _train_on(task, task.training)
    solver, first, given = find_solver(task), start(task), isinstance(task.init, Mixture)
    if solver.needs_fit and not given:
        result = run(EM(), task.generative, first, *task.limits)
        first = task.convert(result.mixture)
        if result.outcome is Outcome.INTERRUPTED:
            return replace(result, mixture=first)
    elif given and not solver.needs_fit:
        checks.has_update(task.structure.name, task.structure.has_update)
    seed = int(torch.randint(2**31 - 1, (), generator=task.generator))
    result = run(solver, replace(task.problem, seed=seed), first, *task.limits)
    return result if solver.needs_fit else replace(result, mixture=task.convert(result.mixture))


def _train_on(task: Task, training: HybridTraining) -> FitResult:
    """A fit of EM, or a given one, trained on (hybrid-member). Class probabilities are learned, then set if given."""
    free = replace(task, training=None, class_prior=None)
    first = FitResult(start(free), Outcome.CONVERGED, ()) if isinstance(task.init, Mixture) else fit_once(free)
    if first.outcome is Outcome.INTERRUPTED:
        return first
    result = run(training.solver, training.of(free.problem), first.mixture, training.n_epochs, 0.0)
    outcome = first.outcome if result.outcome is Outcome.LIMIT else result.outcome
    return replace(result, mixture=task._with_class_prior(result.mixture), outcome=outcome)


def find_solver(task: Task) -> MixtureSolver:
    """Return the requested solver, or the first registered one that supports the model."""
    asked, solver = (task.objective, task.prior, task.structure), task.solver
    if solver is None:
        for able in SOLVERS.values():
            if able.refusal(*asked) is None:
                return able
        reasons = "; ".join(f"{name!r}: {solver.refusal(*asked)}" for name, solver in SOLVERS.items())
        raise ValueError(f"No solver can fit this model. {reasons}.")
    reason = solver.refusal(*asked)
    if reason is not None:
        able = ", ".join(repr(name) for name, other in SOLVERS.items() if other.refusal(*asked) is None)
        known = next((name for name, other in SOLVERS.items() if other is solver), solver)
        raise ValueError(f"solver={known!r} cannot be used here: {reason}. Use one of {able}.")
    return solver


def check_start(task: Task) -> None:
    """Check that a given initial mixture has the features, components and covariances of the model."""
    mixture, structure, n_features = task.init, task.structure, task.source.n_features
    if not isinstance(mixture, Mixture):
        return
    if mixture.n_features != n_features or mixture.class_sizes != task.n_components:
        raise ValueError(
            f"The initial mixture has {mixture.n_features} features and {mixture.class_sizes} components per class, "
            f"but the model has {n_features} features and {task.n_components} components. Set warm_start=False, or "
            "start from a model with the same settings."
        )
    variances = torch.ones_like(mixture.means)
    wanted = structure.start(variances, variances[:0], mixture.class_of[:0], mixture.class_of)
    if _kind(wanted) != _kind(mixture.covariance):
        raise ValueError(
            f"The initial mixture has other covariances than covariance_type={structure.name!r} "
            f"({mixture.covariance.n_parameters} parameters instead of {wanted.n_parameters}). Set warm_start=False, "
            "or start from a model with the same covariance_type and rank."
        )


def _kind(covariance: Covariance) -> tuple[Structure, int]:
    return covariance.structure, covariance.n_parameters


@dataclass(frozen=True)
class Selected(Generic[AnyTask]):
    """The result of a search.

    Parameters
    ----------
    tasks : tuple of Task, or of TextTask
        The models to train, the best first; the class posteriors of several are averaged (averaged-posterior).
    table : SearchTable or None, default=None
        The candidates that were compared.
    results : tuple of FitResult or None, default=()
        Fits of the tasks, where the search ended with them: after Ctrl-C, or if it trained with all samples.
    fit : callable or None, default=None
        Fits a task from one start; None means `fit_once`.
    attributes : mapping of str to object
        Fitted attributes that describe the search.
    average_temperature : float, default=1.0
        The temperature of the average.
    folds : sequence of (Mixture, Source), default=()
        Fits of the best model to parts of the samples, each with samples that it has not seen.
    """

    tasks: tuple[AnyTask, ...]
    table: SearchTable | None = None
    results: tuple[FitResult | None, ...] = ()
    fit: Callable[[AnyTask], FitResult] | None = None
    attributes: Mapping[str, object] = field(default_factory=dict)
    average_temperature: float = 1.0
    folds: Sequence[tuple[Mixture, Source]] = ()

    @property
    def task(self) -> AnyTask:
        """The task of the best model."""
        return self.tasks[0]


class TaskSearch(Protocol):
    """Selects the settings of a task that the arguments of an estimator leave open."""

    def run(self, task: Task) -> Selected[Task]:
        """Compare candidates."""
        ...


def is_auto(value: object) -> bool:
    """Whether the value of an argument is to be selected."""
    return isinstance(value, str) and value == "auto"


def make_prior(value: PriorChoice, description: Description, n_components: Sequence[int]) -> Prior | None:
    """Make the prior for a value of the argument `prior`."""
    if value is None:
        return None
    if not isinstance(value, Prior):
        make = value.prior if isinstance(value, Shrinkage) else PRIORS[value]
        value = make(description.scales_for(n_components))
    elif isinstance(value, MovablePrior):
        value = value.to(description.within.device)
    if isinstance(value, ConjugatePrior):
        pseudo, n_features = value.pseudo_moments(len(description.within)), len(description.within)
        wrong = [size for size in (pseudo.scatter.shape[-1], pseudo.mean.shape[-1]) if size != n_features]
        if wrong:
            raise ValueError(
                f"The prior has {wrong[0]} features, but X has {n_features}. Pass a prior with {n_features}."
            )
        if pseudo.mean.ndim == 2 and len(pseudo.mean) != sum(n_components):
            raise ValueError(
                f"The prior has {len(pseudo.mean)} means, but the mixture has {sum(n_components)} components. Pass one "
                "mean (D,) for all, or use Shrinkage, which shrinks to the class means."
            )
    return value
