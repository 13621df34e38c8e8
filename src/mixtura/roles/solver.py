"""The solver role: steps from one state to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from mixtura.roles.covariance import Structure
from mixtura.roles.objective import Objective
from mixtura.roles.prior import Prior


@dataclass(frozen=True)
class Info:
    """The report of a step to the loop.

    Attributes
    ----------
    value : float
        Objective per unit of weight of the state that the step started from, log prior included.
    repairs : tuple of str
        Descriptions of repairs.
    converged : bool, optional
        Result of the solver's own convergence test; None leaves the decision to the change of the value.
    """

    value: float
    repairs: tuple[str, ...] = ()
    converged: bool | None = None


@runtime_checkable
class Solver(Protocol):
    """Improves a model in steps; solvers/loop.py checks convergence, limits and non-finite values for every solver.

    States are immutable: a step returns a new one, and `result` of the old one is the model before the step. They are
    storable values (numbers, tensors, registered dataclasses, and tuples or dicts of them), for checkpoints; fields
    that begin with an underscore are caches, which a file does not hold and `step` computes again.
    """

    name: str

    def init(self, problem: Any, start: Any) -> Any:
        """Return the initial state for a model of the kind that `result` returns."""
        ...

    def step(self, problem: Any, state: Any) -> tuple[Any, Info]: ...
    def result(self, state: Any) -> Any:
        """Return the model of a state."""
        ...


@runtime_checkable
class MixtureSolver(Solver, Protocol):
    """A solver of Gaussian mixtures, which estimators take by name or as an object."""

    @property
    def needs_fit(self) -> bool:
        """Whether the solver starts from a mixture fitted by EM instead of the initial one."""
        ...

    def refusal(self, objective: Objective, prior: Prior | None, structure: Structure) -> str | None:
        """Return a clause that says why the solver does not support such a mixture, or None."""
        ...
