"""The solver role: steps from one state to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from mixtura.roles.covariance import Structure
from mixtura.roles.objective import Objective
from mixtura.roles.prior import Prior


@dataclass(frozen=True)
class Info:
    """What a step tells the loop.

    Attributes
    ----------
    value : float or tuple of float
        Objective per unit of weight of the state that the step started from, log prior included; one for each member
        where several mixtures are trained together.
    repairs : tuple of str
        What had to be repaired, in words; with several members one text for each, empty where nothing was.
    converged : bool, optional
        Where the solver has a rule of its own; None leaves it to the change of the value.
    """

    value: float | tuple[float, ...]
    repairs: tuple[str, ...] = ()
    converged: bool | None = None


@runtime_checkable
class Solver(Protocol):
    """Improves a model in steps; solvers/loop.py checks convergence, limits and non-finite values for every solver.

    States are values: a step returns a new one, so that `result` of the old one is the model before the step.
    """

    name: str

    def init(self, problem: Any, start: Any) -> Any:
        """Return the state at a start, a model of the kind that `result` returns."""
        ...

    def step(self, problem: Any, state: Any) -> tuple[Any, Info]: ...
    def result(self, state: Any) -> Any:
        """Return the model of a state."""
        ...

    def saved(self, state: Any) -> Any:
        """Return what a checkpoint keeps of a state: numbers, tensors, and values that can be stored."""
        ...

    def restored(self, problem: Any, saved: Any) -> Any:
        """Return the state that `saved` was made of."""
        ...


@runtime_checkable
class MixtureSolver(Solver, Protocol):
    """A solver of Gaussian mixtures, which estimators take by name or as an object."""

    @property
    def needs_fit(self) -> bool:
        """Whether it starts from a mixture that EM has fitted, and not from the first guess of an initialisation."""
        ...

    def refusal(self, objective: Objective, prior: Prior | None, structure: Structure) -> str | None:
        """Return why it cannot train such a mixture, as a clause; None where it can."""
        ...


@runtime_checkable
class MemberSolver(Protocol):
    """A solver that trains several mixtures together; members that converge leave."""

    name: str

    def step(self, problem: Any, state: Any) -> tuple[Any, Info]: ...
    def member(self, state: Any, position: int) -> Any:
        """Return the model of one member."""
        ...

    def without(self, state: Any, positions: list[int]) -> Any:
        """Return the state of the other members."""
        ...

    def restored(self, first: Any, members: Any) -> Any:
        """Return the state of some members of the first state, by pairs of number and model, for checkpoints."""
        ...
