"""Gradient training: any torch optimiser on minibatches, or L-BFGS on all rows (RPTP18).

A step is one epoch. On CUDA the work of a minibatch is captured once in a graph and replayed.

torch decorates the methods of its optimisers for `torch.compile`: the first call imports the compiler, which takes two
to four seconds and sets an environment variable. `Adam` and `LBFGS` here are the same code without the decorators.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TypedDict, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from mixtura.engine.evaluator import computing_dtype
from mixtura.engine.passes import summarise
from mixtura.engine.sources import Block, TensorSource, joined, locate
from mixtura.engine.threads import threads_for
from mixtura.files.registry import storable
from mixtura.model.mixture import Mixture
from mixtura.numerics.linalg import NumericalError
from mixtura.roles import Info, Objective, Prior, Structure
from mixtura.solvers.problem import Problem
from mixtura.solvers.unconstrained import FreeMixture, Units
from mixtura.values.extents import Frame
from mixtura.values.targets import Targets

CACHE_FOLDER = "TORCHINDUCTOR_CACHE_DIR"


class _Uncompiled(Optimizer):
    """The methods that all optimisers share."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)


class Adam(_Uncompiled, torch.optim.Adam):
    """`torch.optim.Adam`; its updates cannot be differentiated."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class LBFGS(_Uncompiled, torch.optim.LBFGS):
    """`torch.optim.LBFGS`."""


@functools.cache
def import_compiler() -> None:
    """Import torch's compiler, as other optimisers do when they are first used, and restore the environment variables.

    The import sets an environment variable, a folder for compiled code, that child processes would inherit.
    """
    before = os.environ.get(CACHE_FOLDER)
    importlib.import_module("torch._dynamo")
    if before is None:
        os.environ.pop(CACHE_FOLDER, None)


# Rows per evaluation of the gradient in L-BFGS.
CHUNK_ROWS = 4096
# Largest number of rows for which "auto" selects L-BFGS: it needs few steps, but all rows in each.
MOST_FOR_LBFGS = 5000
LBFGS_STEPS = 10  # inner iterations that count as an epoch


@storable("gradient_state")
@dataclass(frozen=True)
class GradientState:
    """The state of a fit after some epochs: copies of everything that changes in a training object."""

    start: Mixture
    epoch: int
    copies: dict[str, object]
    _training: Training | None = None


@storable("gradient")
@dataclass(frozen=True)
class Gradient:
    """A torch optimiser: maximises any objective plus a log prior. A step is one epoch.

    Parameters
    ----------
    optimiser : {"auto", "adam", "lbfgs"} or callable, default="auto"
        "auto" is L-BFGS up to 5000 samples and Adam on minibatches above. A callable takes a list of parameters and
        returns a torch optimiser.
    learning_rate : float, default=1e-3
        Learning rate of Adam for standardised features.
    decay_epochs : int, optional
        Number of epochs over which the learning rate decreases to zero (cosine schedule); None keeps it constant.
    averaging : float, default=1.0
        Rate of the exponential moving average of the parameters that gives the mixture; 1 is no averaging.
    batch_size : int, default=100
        Samples per minibatch.
    units : Units, optional
        Centre and scales of the features in the optimiser; None standardises.
    floor : float, optional
        Smallest diagonal of a low-rank covariance, or precision, in these units; None is 1e-6.
    """

    optimiser: str | Callable[..., object] = "auto"
    learning_rate: float = 1e-3
    decay_epochs: int | None = None
    averaging: float = 1.0
    batch_size: int = 100
    units: Units | None = None
    floor: float | None = None
    name = "gradient"
    needs_fit = True

    def refusal(self, objective: Objective, prior: Prior | None, structure: Structure) -> str | None:
        return None if structure.is_gaussian else "only EM supports categorical features"

    def init(self, problem: Problem, start: Mixture) -> GradientState:
        training = Training(self, problem, start)
        return GradientState(start, 0, dict(training.copies()), training)

    def step(self, problem: Problem, state: GradientState) -> tuple[GradientState, Info]:
        """Run one epoch; the value is the mean objective per unit of weight during the epoch."""
        training = state._training or Training(self, problem, state.start)  # a state from a file has none
        if training.epoch != state.epoch:  # after an interrupted epoch, or for another state of the same training
            training.load(cast("Copies", state.copies), state.epoch)
        training.epoch = -1  # until the epoch is complete
        with _divergence(state.epoch + 1):
            value = training.run_epoch(state.epoch)
        if not math.isfinite(value):
            raise _diverged(state.epoch + 1, f"the objective is {value}")
        return GradientState(state.start, state.epoch + 1, dict(training.copies()), training), Info(value)

    def result(self, state: GradientState) -> Mixture:
        assert state._training is not None
        with _divergence(state.epoch):
            return state._training.mixture_of(cast("Copies", state.copies))


def _diverged(epoch: int, how: str) -> NumericalError:
    """The error of a fit whose parameters are useless after an epoch."""
    return NumericalError(
        f"the objective or a parameter became too large or not finite in epoch {epoch} of solver 'gradient' ({how}); "
        "decrease the learning rate, or use prior='default'"
    )


@contextmanager
def _divergence(epoch: int) -> Iterator[None]:
    """Errors of linear algebra, in words that name their cause."""
    try:
        yield
    except (torch.linalg.LinAlgError, NumericalError) as error:  # pyright: ignore[reportPrivateImportUsage]
        raise _diverged(epoch, "a covariance is singular or not finite") from error


# By names: leaves, averages, the state of the random generator, and the state of the optimiser.
class Copies(TypedDict):
    """Copies of everything that changes in a training object."""

    leaves: dict[str, Tensor]
    averages: dict[str, Tensor]
    order: Tensor  # state of the random generator
    optimiser: dict[int, dict[str, Tensor]]


class Training:
    """The mutable state of a fit: free parameters, optimiser, rows in order, and on CUDA the captured step."""

    def __init__(self, solver: Gradient, problem: Problem, mixture: Mixture):
        self.solver, self.problem, self.start, self.epoch = solver, problem, mixture, 0
        rows = problem.source
        block = joined(list(rows.blocks()))  # minibatches are drawn from all rows
        self.frame = locate(rows)
        self.dtype = computing_dtype(rows)
        self.units = solver.units or standard_units(block, self.frame, mixture.covariance.has_one_scale)
        self.free = FreeMixture(mixture, self.units, problem.prior, problem.class_prior, self.dtype, solver.floor)
        self.labels, self.shares = block.labels, block.shares
        n_rows = len(block.rows)
        weights = torch.ones(n_rows, device=block.rows.device) if block.weights is None else block.weights
        self.weights = weights.to(self.dtype)
        self.total_weight = float(weights.sum(dtype=torch.float64))
        self.missing = bool(block.rows.isnan().any())
        self.lbfgs = self._takes_lbfgs(n_rows)
        by_passes = self.lbfgs and block.rows.device.type == "cuda"  # few launches, whatever the rows
        self.rows = self._standardised(block.rows).to(block.rows.dtype if by_passes else self.dtype)
        self.whole = self._source(slice(None)) if by_passes else None
        self.averages = self.free.snapshot() if solver.averaging < 1 else {}
        self.optimiser = self._optimiser()
        self.order = torch.Generator().manual_seed(problem.seed)
        self.graph: Callable[[Tensor, Tensor], Tensor] | None = None

    def _standardised(self, rows: Tensor) -> Tensor:
        """Standardised rows (N, D), in double precision."""
        return (rows.double() - self.units.centre) / self.units.scales

    def _takes_lbfgs(self, n_rows: int) -> bool:
        few = n_rows <= MOST_FOR_LBFGS
        return self.solver.optimiser == "lbfgs" or (self.solver.optimiser == "auto" and few)

    def _optimiser(self) -> torch.optim.Optimizer:
        leaves, rate = list(self.free.leaves.values()), self.solver.learning_rate
        if self.lbfgs:
            return LBFGS(leaves, max_iter=LBFGS_STEPS, history_size=20, line_search_fn="strong_wolfe")
        make = self.solver.optimiser
        if callable(make):
            import_compiler()
            return cast(torch.optim.Optimizer, make(leaves))
        if self.rows.device.type == "cpu":
            return Adam(leaves, lr=rate, fused=True)
        # A captured step reads its size from the device.
        return Adam(leaves, lr=torch.tensor(rate, device=self.rows.device), fused=True, capturable=True)

    # ---- epochs ------------------------------------------------------------------------------------------------

    def run_epoch(self, epoch: int) -> float:
        """Make one pass over all samples; return the objective per unit of weight."""
        self._set_rate(epoch)
        with threads_for(self.rows.shape[1] * self._batch_size * self.free.leaves["logits"].numel() * 50):
            total = self._whole() if self.lbfgs else self._minibatches()
        self.epoch = epoch + 1
        return float(total) / self.total_weight

    def _set_rate(self, epoch: int) -> None:
        if self.solver.decay_epochs is None:
            return
        share = 0.5 + 0.5 * math.cos(math.pi * min(1.0, epoch / self.solver.decay_epochs))
        for group in self.optimiser.param_groups:
            group.setdefault("first_rate", float(group["lr"]))
            rate = share * group["first_rate"]
            group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate

    @property
    def _batch_size(self) -> int:
        return min(self.solver.batch_size, len(self.rows))

    def _minibatches(self) -> Tensor:
        size, n_rows = self._batch_size, len(self.rows)
        order = torch.randperm(n_rows, generator=self.order)
        n_batches = -(-n_rows // size)
        index = order[torch.arange(n_batches * size) % n_rows].to(self.rows.device).reshape(n_batches, size)
        counted = torch.arange(n_batches * size, device=self.rows.device).reshape(n_batches, size) < n_rows
        step = self._capture(index[0], counted[0]) if self._can_capture() else self._step
        total = torch.zeros((), dtype=torch.float64, device=self.rows.device)
        for batch, known in zip(index, counted, strict=True):
            total += step(batch, known)
        return total

    def _can_capture(self) -> bool:
        plain = not self.missing and self.shares is None and not callable(self.solver.optimiser)
        return self.rows.device.type == "cuda" and plain

    def _capture(self, batch: Tensor, counted: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        if self.graph is None:
            before = self.copies()
            self.graph = capture(self._step, batch, counted)
            self.load(before, self.epoch)
        return self.graph

    def _step(self, batch: Tensor, counted: Tensor) -> Tensor:
        """Gradient and update of one minibatch; rows beyond the count only pad the last batch."""
        self.optimiser.zero_grad(set_to_none=self.rows.device.type == "cpu")  # a captured step reuses memory
        share = len(batch) / len(self.rows)
        value = self._gradient(batch, counted, self.total_weight * share, share)
        self.optimiser.step()
        for name, average in self.averages.items():
            average.lerp_(self.free.leaves[name].detach(), self.solver.averaging)
        return value

    def _gradient(self, batch: Tensor, counted: Tensor, divisor: float, prior_share: float) -> Tensor:
        labels = None if self.labels is None else self.labels.index_select(0, batch)
        shares = None if self.shares is None else self.shares.index_select(0, batch)
        weights = self.weights.index_select(0, batch) * counted
        if self.missing:
            return self._gradient_of_moments(self._source(batch[counted]), divisor, prior_share)
        targets = Targets(self.free.class_of, labels, shares, known_classes=self.free.n_classes)
        rows = self.rows.index_select(0, batch).T
        return self.free.add_gradient(self.problem.objective, rows, targets, weights, divisor, prior_share)

    def _source(self, part: slice | Tensor) -> TensorSource:
        known = (None if values is None else values[part] for values in (self.labels, self.shares, self.weights))
        return TensorSource(self.rows[part], *known)

    def _gradient_of_moments(self, source: TensorSource, divisor: float, prior_share: float) -> Tensor:
        """Gradient by one pass over the rows (gradient-moments)."""
        frame = Frame(torch.zeros_like(self.units.centre), self.frame.radii / self.units.scales)
        mixture = self.free.standard_mixture()
        summary = summarise(mixture, source, self.problem.objective, frame)
        moments = summary.moments.about(mixture.means)
        # Log joints of the rows in their original units: less the log scales of the observed values.
        log_scales, (block,) = self.units.scales.log(), source.blocks()
        seen = float(((~block.rows.isnan()).double() @ log_scales).mean() if self.missing else log_scales.sum())
        log_prior = self.free.add_gradient_of_moments(moments, divisor, prior_share)
        return log_prior + summary.value - seen * float(moments.counts.sum())

    def _whole(self) -> Tensor:
        """Some iterations of L-BFGS on all rows; returns the objective before them."""
        every = torch.arange(len(self.rows), device=self.rows.device)

        def closure() -> Tensor:
            self.optimiser.zero_grad(set_to_none=False)
            if self.whole is not None:
                return -self._gradient_of_moments(self.whole, self.total_weight, 1.0) / self.total_weight
            total = torch.zeros((), dtype=self.dtype, device=self.rows.device)
            for part in every.split(CHUNK_ROWS):
                share = len(part) / len(self.rows)
                total += self._gradient(part, torch.ones_like(part, dtype=torch.bool), self.total_weight, share)
            return -total / self.total_weight

        loss = cast(LBFGS, self.optimiser).step(closure)
        return -torch.as_tensor(loss).detach().double() * self.total_weight

    # ---- copies ------------------------------------------------------------------------------------------------

    def mixture_of(self, copies: Copies) -> Mixture:
        """Return the mixture of the averaged parameters in the copies, or of the leaves without averaging."""
        live = self.free.snapshot()
        self.free.restore(copies["averages"] or copies["leaves"])
        try:
            return self.free.mixture()
        finally:
            self.free.restore(live)

    def copies(self) -> Copies:
        """Copy everything that changes."""
        averages = {name: part.clone() for name, part in self.averages.items()}
        # By index of the leaves; torch's `state_dict` would return the mutable tensors themselves.
        memory = deepcopy(self.optimiser.state_dict()["state"])
        return {
            "leaves": self.free.snapshot(),
            "averages": averages,
            "order": self.order.get_state(),
            "optimiser": memory,
        }

    def load(self, copies: Copies, epoch: int) -> None:
        """Load copies, in place where tensors exist, so that a captured step uses them."""
        self.free.restore(copies["leaves"])
        for name, average in self.averages.items():
            average.copy_(copies["averages"][name])
        self.order.set_state(copies["order"].cpu())
        places = list(self.free.leaves.values())
        for place, leaf in enumerate(places):
            live, saved = self.optimiser.state[leaf], copies["optimiser"].get(place, {})
            if self.lbfgs:
                live.clear()
            for key, value in live.items():
                if isinstance(value, Tensor) and key not in saved:
                    value.zero_()
            for key, value in saved.items():
                if isinstance(value, Tensor) and isinstance(live.get(key), Tensor):
                    live[key].copy_(value)
                else:
                    live[key] = deepcopy(value)
        self.epoch = epoch


def capture(
    step: Callable[[Tensor, Tensor], Tensor], batch: Tensor, counted: Tensor
) -> Callable[[Tensor, Tensor], Tensor]:
    """A step on CUDA, captured once in a graph and replayed without Python."""
    batch, counted, stream = batch.clone(), counted.clone(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # libraries allocate their workspaces before the capture
            step(batch, counted)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = step(batch, counted)

    def replay(other_batch: Tensor, other_counted: Tensor) -> Tensor:
        batch.copy_(other_batch)
        counted.copy_(other_counted)
        graph.replay()
        return value

    return replay


def standard_units(block: Block, frame: Frame, one_scale: bool = False) -> Units:
    """Mean and standard deviation of the observed values of every column, or one for all columns."""
    observed = ~block.rows.isnan()
    weights = torch.ones_like(observed[:, 0], dtype=torch.float64) if block.weights is None else block.weights.double()
    counts = (weights @ observed.double()).clamp_min(1e-300)
    centred = torch.where(observed, block.rows.double() - frame.centre, 0.0)
    means = weights @ centred / counts
    variances = weights @ torch.where(observed, centred - means, 0.0).square() / counts
    varies = variances > 1e-13 * (frame.radii.square() + 1e-300)
    typical = variances[varies].mean() if bool(varies.any()) else torch.ones_like(variances[0])
    return Units(frame.centre + means, torch.where(varies & (not one_scale), variances, typical).sqrt())
