"""EM with extrapolation (squared-em): a step in the direction of two EM steps, unless it lowers the objective."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from mixtura.files.registry import storable
from mixtura.model.mixture import Mixture
from mixtura.roles import Info, Objective, Prior, Structure
from mixtura.solvers.em import EM
from mixtura.solvers.problem import Problem
from mixtura.values.moments import ProjectedForm

PLAIN = EM()
# The longest reach of the first extrapolation (1 means two EM steps), and its factor after each accepted one.
FIRST_REACH, GROWTH = 4.0, 2.0


@storable("accelerated_state")
@dataclass(frozen=True)
class AcceleratedState:
    """The result of the last EM step, and what the next extrapolation needs.

    Attributes
    ----------
    mixture : Mixture
        After the last EM step; never an extrapolation.
    previous : Mixture or None
        Before the last EM step, if the next step may extrapolate.
    candidate : Mixture or None
        An extrapolation that the next step evaluates.
    value : float
        Objective and log prior, per unit of weight, at the last accepted mixture.
    longest : float
        Limit of the reach of an extrapolation; it grows with accepted extrapolations and shrinks with rejected ones.
    """

    mixture: Mixture
    previous: Mixture | None = None
    candidate: Mixture | None = None
    value: float = -float("inf")
    longest: float = FIRST_REACH


@storable("accelerated_em")
@dataclass(frozen=True)
class AcceleratedEM:
    """EM with extrapolation (squared-em): never lowers the objective, and has the fixed points of EM.

    Every second step evaluates an extrapolation. One that lowers the objective is dropped, and the step is an EM step
    from the mixture before it. Structures without moments that add (low rank, categories) get plain EM steps.
    """

    name = "em"
    needs_fit = False

    def refusal(self, objective: Objective, prior: Prior | None, structure: Structure) -> str | None:
        return PLAIN.refusal(objective, prior, structure)

    def init(self, problem: Problem, start: Mixture) -> AcceleratedState:
        return AcceleratedState(start)

    def step(self, problem: Problem, state: AcceleratedState) -> tuple[AcceleratedState, Info]:
        """Evaluate the extrapolation, or take an EM step where there is none or it lowers the objective."""
        if state.candidate is not None:
            try:
                updated, info = PLAIN.step(problem, state.candidate)
            except (ValueError, RuntimeError):  # overflow; any other cause shows again at the mixture before
                pass
            else:
                if info.value >= state.value and not info.repairs:
                    return AcceleratedState(updated, state.candidate, None, info.value, GROWTH * state.longest), info
        updated, info = PLAIN.step(problem, state.mixture)
        longest = state.longest if state.candidate is None else max(GROWTH, state.longest / GROWTH)  # rejected
        after = AcceleratedState(updated, state.mixture, None, info.value, longest)
        if state.previous is None or info.repairs:
            return after, info
        candidate = extrapolate(state.previous, state.mixture, updated, longest)
        if candidate is not None and problem.class_prior is not None:
            candidate = candidate.with_class_prior(problem.class_prior)
        return after if candidate is None else replace(after, previous=None, candidate=candidate), info

    def result(self, state: AcceleratedState) -> Mixture:
        return state.mixture


def extrapolate(first: Mixture, second: Mixture, third: Mixture, longest: float) -> Mixture | None:
    """Extrapolate three successive mixtures of EM (squared-em); None if it is no longer than a step of EM.

    Log weights, means and the free parameters of the covariances are extrapolated in units of the model itself, so that
    the units of the features do not matter.
    """
    structure = third.covariance.structure
    if not structure.is_gaussian or not structure.has_update or isinstance(third.covariance.form, ProjectedForm):
        return None
    weights = third.weights.clamp_min(1e-300)
    scales = (weights @ third.covariance.variances() / weights.sum()).sqrt()  # (D,)
    points = [_free(mixture, third.means, scales) for mixture in (first, second, third)]
    steps = {name: points[1][name] - points[0][name] for name in points[0]}  # r
    changes = {name: points[2][name] - points[1][name] - steps[name] for name in steps}  # v
    lengths = [sum(float(part.square().sum()) for part in parts.values()) for parts in (steps, changes)]
    reach = (lengths[0] / lengths[1]) ** 0.5 if lengths[1] > 0 else 1.0
    if not reach > 1:  # not a number where a weight is zero
        return None
    reach = min(reach, longest)
    free = {name: points[0][name] + 2 * reach * steps[name] + reach**2 * changes[name] for name in steps}
    log_weights, means = free.pop("log_weights"), third.means + scales * free.pop("means")
    try:
        covariance = third.covariance.scaled(1 / scales).constrained(free).scaled(scales)
    except RuntimeError:  # torch.linalg.LinAlgError, from a variance that overflows
        return None
    return third.moved(log_weights - log_weights.logsumexp(0), means, covariance)


def _free(mixture: Mixture, centres: Tensor, scales: Tensor) -> dict[str, Tensor]:
    """All parameters as numbers without constraints, means about some centres, in these units of the features."""
    free = mixture.covariance.scaled(1 / scales).unconstrained()
    return {"log_weights": mixture.log_weights, "means": (mixture.means - centres) / scales, **free}
