"""Stochastic gradients: any torch optimiser on minibatches, or L-BFGS on all rows (RPTP18).

A step is one epoch. The epoch that predicts rows kept out best is remembered. On CUDA the work of a minibatch is
captured once in a graph and replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixtura import checks
from mixtura.engine.evaluator import computing_dtype
from mixtura.engine.passes import map_rows, summarise
from mixtura.engine.sources import Block, Source, TensorSource, locate
from mixtura.engine.threads import threads_for
from mixtura.model.mixture import Mixture
from mixtura.numerics.optimisers import import_compiler
from mixtura.objectives import Joint
from mixtura.objectives.likelihood import class_posteriors
from mixtura.roles import Objective, Prior, Step
from mixtura.solvers.unconstrained import FreeMixture, Units
from mixtura.values.extents import Frame
from mixtura.values.storable import storable
from mixtura.values.targets import Targets
from mixtura.values.tensor_files import read_tensors, write_tensors

# Rows of which L-BFGS sees the gradient at once.
CHUNK_ROWS = 4096
# Rows up to which "auto" takes L-BFGS: it needs all rows for every step, and few steps.
MOST_FOR_LBFGS = 5000
CHECKPOINT = "mixtura checkpoint"  # key of the header in the file
MISSING = 0.5772156649  # stands for a missing value in the fingerprint of samples; any number that none of them has
LBFGS_STEPS = 10  # inner iterations that count as an epoch


@dataclass(frozen=True)
class GradientState:
    """Where a fit stands after some epochs: the live training, and copies of what it was and of what was best."""

    training: Training
    epoch: int = 0
    state: dict[str, Tensor] = field(default_factory=dict)
    best: dict[str, Tensor] = field(default_factory=dict)
    best_epoch: int = 0
    best_score: tuple[float, ...] = (-float("inf"),)
    scores: tuple[tuple[float, ...], ...] = ()  # of the rows kept out, by epoch
    objectives: tuple[float, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether the rows kept out have seen nothing better for long enough."""
        solver = self.training.solver
        return solver.held_out is not None and self.epoch - self.best_epoch >= solver.patience

    @property
    def mixture(self) -> Mixture:
        """The best mixture so far; without rows kept out, the last."""
        return self.training.mixture_of(self.best)


@storable("gradient")
@dataclass(frozen=True)
class Gradient:
    """Maximises any objective, plus a log prior where there is one, by a torch optimiser.

    Arguments:
        optimiser: "adam", "lbfgs", "auto" (L-BFGS where rows are few), or a function from parameters to an optimiser.
        learning_rate: of Adam, in units of standardised columns.
        decay_epochs: the step size falls to nothing over so many epochs, along half a cosine; None keeps it.
        averaging: the mixture is a moving average of the parameters that forgets so much of itself a step; 1 is none.
        batch_size: rows of a minibatch.
        patience: end after so many epochs without a better score of the rows kept out.
        criterion: what the rows kept out are judged by: "error" (ties by log-loss) or "log_loss".
        checkpoint: a file written after every epoch; a fit that finds it goes on from there.
        units: columns as the optimiser sees them; None standardises them.
        floor: smallest diagonal of a low-rank covariance, or precision, in these units; None is 1e-6.
        objective, prior, prior_weight, class_prior, held_out, seed: set by the estimator; `held_out` are labeled rows.
    """

    optimiser: Any = "auto"
    learning_rate: float = 1e-3
    decay_epochs: int | None = None
    averaging: float = 1.0
    batch_size: int = 100
    patience: int = 20
    criterion: str = "error"
    checkpoint: Any = None
    objective: Objective = field(default_factory=Joint)
    prior: Prior | None = None
    prior_weight: float = 1.0
    class_prior: Tensor | None = None
    held_out: TensorSource | None = None
    seed: int = 0
    units: Units | None = None
    floor: float | None = None
    name = "gradient"

    def start(self, mixture: Mixture, rows: Source) -> GradientState:
        """The start itself is the first candidate; a checkpoint of the same fit is taken up where it is."""
        checks.checkpoint(self.checkpoint)
        training = Training(self, mixture, rows)
        state = training.state()
        first = GradientState(training, 0, state, training.kept())
        if self.held_out is not None:
            score = training.score()
            first = replace(first, best_score=score, scores=(score,))
        return read_checkpoint(self.checkpoint, first) if self.checkpoint is not None else first

    def step(self, mixture: GradientState, rows: Source) -> Step:
        """One epoch; the value is the objective per unit of weight as the epoch met it."""
        now, training = mixture, mixture.training
        if training.epoch != now.epoch:
            training.load(now.state, now.epoch)
        value = training.run_epoch()
        then = replace(now, epoch=now.epoch + 1, state=training.state(), objectives=(*now.objectives, value))
        if self.held_out is None:
            then = replace(then, best=training.kept(), best_epoch=then.epoch)
        else:
            score = training.score()
            then = replace(then, scores=(*now.scores, score))
            if score > now.best_score:
                then = replace(then, best=training.kept(), best_epoch=then.epoch, best_score=score)
        if self.checkpoint is not None:
            write_checkpoint(self.checkpoint, then)
        return Step(then, value, finished=then.finished)


class Training:
    """The live state of a fit: free parameters, optimiser, rows in order, and on CUDA the captured step."""

    def __init__(self, solver: Gradient, mixture: Mixture, rows: Source):
        self.solver, self.epoch = solver, 0
        block = together(rows)
        self.frame = locate(rows)
        self.dtype = computing_dtype(rows)
        self.units = solver.units or standard_units(block, self.frame, _has_one_variance(mixture))
        prior = solver.prior, solver.prior_weight
        self.free = FreeMixture(mixture, self.units, *prior, solver.class_prior, self.dtype, solver.floor)
        self.labels, self.shares = block.labels, block.shares
        n_rows = len(block.rows)
        weights = torch.ones(n_rows, device=block.rows.device) if block.weights is None else block.weights
        self.weights = weights.to(self.dtype)
        self.total_weight = float(weights.sum(dtype=torch.float64))
        self.missing = bool(block.rows.isnan().any())
        self.rows = self._standardised(block.rows)
        self.lbfgs = self._takes_lbfgs(n_rows)
        self.averages = self.free.snapshot() if solver.averaging < 1 else {}
        self.optimiser = self._optimiser()
        self.order = torch.Generator().manual_seed(solver.seed)
        self.graph: CapturedStep | None = None

    def _standardised(self, rows: Tensor) -> Tensor:
        """Rows (N, D) in the units of the optimiser, subtracted in double precision."""
        return ((rows.double() - self.units.centre) / self.units.scales).to(self.dtype)

    def _takes_lbfgs(self, n_rows: int) -> bool:
        few = n_rows <= MOST_FOR_LBFGS and self.solver.held_out is None
        return self.solver.optimiser == "lbfgs" or (self.solver.optimiser == "auto" and few)

    def _optimiser(self) -> torch.optim.Optimizer:
        import_compiler()
        leaves, rate = list(self.free.leaves.values()), self.solver.learning_rate
        if self.lbfgs:
            return torch.optim.LBFGS(leaves, max_iter=LBFGS_STEPS, history_size=20, line_search_fn="strong_wolfe")
        make: Any = self.solver.optimiser
        if callable(make):
            return make(leaves)  # pyright: ignore[reportReturnType]
        if self.rows.device.type == "cpu":
            return torch.optim.Adam(leaves, lr=rate, fused=True)
        # A captured step reads its size from the device.
        return torch.optim.Adam(leaves, lr=torch.tensor(rate, device=self.rows.device), fused=True, capturable=True)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """By which a checkpoint knows its fit."""
        return fit_settings(self)

    # ---- epochs ------------------------------------------------------------------------------------------------

    def run_epoch(self) -> float:
        """One go through all rows; the objective per unit of weight."""
        self._set_rate()
        with threads_for(self.rows.shape[1] * self._batch_size * self.free.leaves["logits"].numel() * 50):
            total = self._whole() if self.lbfgs else self._minibatches()
        self.epoch += 1
        return float(total) / self.total_weight

    def _set_rate(self) -> None:
        if self.solver.decay_epochs is None:
            return
        share = 0.5 + 0.5 * math.cos(math.pi * min(1.0, self.epoch / self.solver.decay_epochs))
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
        step = self._captured(index[0], counted[0]) if self._can_capture() else self._step
        total = torch.zeros((), dtype=torch.float64, device=self.rows.device)
        for batch, known in zip(index, counted, strict=True):
            total += step(batch, known)
        return total

    def _can_capture(self) -> bool:
        plain = not self.missing and self.shares is None and not callable(self.solver.optimiser)
        return self.rows.device.type == "cuda" and plain

    def _captured(self, batch: Tensor, counted: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        if self.graph is None:
            kept = self.state()
            self.graph = CapturedStep(self._step, batch, counted)
            self.load(kept, self.epoch)
        return self.graph

    def _step(self, batch: Tensor, counted: Tensor) -> Tensor:
        """One minibatch: gradient and update; rows that are not counted only fill the last batch."""
        self.optimiser.zero_grad(set_to_none=self.rows.device.type == "cpu")  # a captured step keeps its places
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
            return self._gradient_of_moments(batch[counted], divisor, prior_share)
        targets = Targets(self.free.class_of, labels, shares, known_classes=self.free.n_classes)
        rows = self.rows.index_select(0, batch).T
        return self.free.add_gradient(self.solver.objective, rows, targets, weights, divisor, prior_share)

    def _gradient_of_moments(self, batch: Tensor, divisor: float, prior_share: float) -> Tensor:
        parts = (None if part is None else part[batch] for part in (self.labels, self.shares, self.weights))
        rows = self.rows[batch]
        frame = Frame(torch.zeros_like(self.units.centre), self.frame.radii / self.units.scales)
        mixture = self.free.standard_mixture()
        found = summarise(mixture, TensorSource(rows, *parts), self.solver.objective, frame)
        moments = found.moments.about(mixture.means)
        # Log joints of the rows as they are: by the scales of the observed cells less.
        seen = float(((~rows.isnan()).to(rows.dtype) @ self.units.scales.log().to(rows.dtype)).mean())
        log_prior = self.free.add_gradient_of_moments(moments, divisor, prior_share)
        return log_prior + found.value - seen * float(moments.counts.sum())

    def _whole(self) -> Tensor:
        """Some iterations of L-BFGS, each of which sees all rows; the objective before them."""
        every = torch.arange(len(self.rows), device=self.rows.device)

        def closure() -> Tensor:
            self.optimiser.zero_grad(set_to_none=False)
            total = torch.zeros((), dtype=self.dtype, device=self.rows.device)
            for part in every.split(CHUNK_ROWS):
                share = len(part) / len(self.rows)
                total += self._gradient(part, torch.ones_like(part, dtype=torch.bool), self.total_weight, share)
            return -total / self.total_weight

        loss = self.optimiser.step(closure)  # pyright: ignore[reportCallIssue, reportArgumentType]
        return -torch.as_tensor(loss).detach().double() * self.total_weight

    # ---- rows kept out -----------------------------------------------------------------------------------------

    def score(self) -> tuple[float, ...]:
        """Of the rows kept out, larger is better: minus the error and the mean log posterior of the class, or that."""
        live = self.free.snapshot()
        self.free.restore(self.kept())
        score = self._score()
        self.free.restore(live)
        return score

    def _score(self) -> tuple[float, ...]:
        held_out = self.solver.held_out
        assert held_out is not None
        block = next(iter(held_out.blocks()))
        assert block.labels is not None
        scores = self._class_scores(block.rows)  # (C, n)
        own = scores.gather(0, block.labels.unsqueeze(0))[0] - scores.logsumexp(0)
        right = (scores.argmax(0) == block.labels).to(own.dtype)
        weights = torch.ones_like(own) if block.weights is None else block.weights.to(own.dtype)
        total = float(weights.sum())
        log_posterior = float((own.clamp_min(-1e6) * weights).sum()) / total
        if self.solver.criterion == "log_loss":
            return (log_posterior,)
        return (float((right * weights).sum()) / total - 1.0, log_posterior)

    def _class_scores(self, rows: Tensor) -> Tensor:
        known = Targets(self.free.class_of, known_classes=self.free.n_classes)
        if bool(rows.isnan().any()):
            source = TensorSource(rows)
            mixture = self.free.mixture()
            return map_rows(mixture, source, lambda a: class_posteriors(a, known)[0].T).T
        chunks = self._standardised(rows).split(CHUNK_ROWS)
        return torch.cat([class_posteriors(self.free.log_joint(part.T), known)[0] for part in chunks], 1)

    # ---- state -------------------------------------------------------------------------------------------------

    def kept(self) -> dict[str, Tensor]:
        """Copies of the leaves of the mixture: the live ones, or their averages."""
        return {name: part.clone() for name, part in self.averages.items()} or self.free.snapshot()

    def mixture_of(self, leaves: dict[str, Tensor]) -> Mixture:
        kept = self.free.snapshot()
        self.free.restore(leaves)
        mixture = self.free.mixture()
        self.free.restore(kept)
        return mixture

    def state(self) -> dict[str, Tensor]:
        """Copies of everything that changes: leaves, what the optimiser remembers of them, the random order."""
        state = {f"leaf.{name}": part for name, part in self.free.snapshot().items()}
        state |= {f"average.{name}": part.clone() for name, part in self.averages.items()}
        state["order"] = self.order.get_state()
        if not self.lbfgs:  # L-BFGS begins anew with its curvature
            for name, leaf in self.free.leaves.items():
                for key, value in self.optimiser.state.get(leaf, {}).items():
                    if isinstance(value, Tensor):
                        state[f"optimiser.{name}.{key}"] = value.detach().clone()
        return state

    def load(self, state: dict[str, Tensor], epoch: int) -> None:
        """The inverse of `state`; in place, so that a captured step sees it."""
        self.free.restore({name: state[f"leaf.{name}"] for name in self.free.leaves})
        for name, average in self.averages.items():
            average.copy_(state[f"average.{name}"])
        self.order.set_state(state["order"])
        for name, leaf in self.free.leaves.items():
            own = self.optimiser.state[leaf]
            prefix = f"optimiser.{name}."
            saved = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
            for key, value in own.items():
                if isinstance(value, Tensor) and key not in saved:
                    value.zero_()
            for key, value in saved.items():
                if isinstance(own.get(key), Tensor):
                    own[key].copy_(value)
                else:
                    own[key] = value.to(leaf.device if value.ndim else value.device).clone()
        self.epoch = epoch


class CapturedStep:
    """A step on CUDA, captured once in a graph: its kernels start without Python."""

    def __init__(self, step: Callable[[Tensor, Tensor], Tensor], batch: Tensor, counted: Tensor):
        self.batch, self.counted = batch.clone(), counted.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # libraries make their workspaces before the capture
                step(self.batch, self.counted)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.value = step(self.batch, self.counted)

    def __call__(self, batch: Tensor, counted: Tensor) -> Tensor:
        self.batch.copy_(batch)
        self.counted.copy_(counted)
        self.graph.replay()
        return self.value


def standard_units(block: Block, frame: Frame, one_scale: bool = False) -> Units:
    """Mean and standard deviation of the observed cells of every column, or one for all columns."""
    observed = ~block.rows.isnan()
    weights = torch.ones_like(observed[:, 0], dtype=torch.float64) if block.weights is None else block.weights.double()
    counts = (weights @ observed.double()).clamp_min(1e-300)
    centred = torch.where(observed, block.rows.double() - frame.centre, 0.0)
    means = weights @ centred / counts
    variances = weights @ torch.where(observed, centred - means, 0.0).square() / counts
    varies = variances > 1e-13 * (frame.radii.square() + 1e-300)
    typical = variances[varies].mean() if bool(varies.any()) else torch.ones_like(variances[0])
    return Units(frame.centre + means, torch.where(varies & (not one_scale), variances, typical).sqrt())


def _has_one_variance(mixture: Mixture) -> bool:
    """Spherical covariances know one unit for all columns."""
    return mixture.covariance.has_one_scale


def together(rows: Source) -> Block:
    """All rows in one block: minibatches are drawn from anywhere."""
    blocks = list(rows.blocks())
    if len(blocks) == 1:
        return blocks[0]
    parts = {}
    for name in ("rows", "labels", "shares", "weights"):
        values = [getattr(block, name) for block in blocks]
        parts[name] = None if values[0] is None else torch.cat(values)
    return replace(blocks[0], **parts, _groups={})


# ---- checkpoints ---------------------------------------------------------------------------------------------------


def write_checkpoint(path: Any, progress: GradientState) -> None:
    """Write everything that a fit needs to go on."""
    tensors = {f"state.{name}": part for name, part in progress.state.items()}
    tensors |= {f"best.{name}": part for name, part in progress.best.items()}
    header = {
        "epoch": progress.epoch,
        "best_epoch": progress.best_epoch,
        "best_score": progress.best_score,
        "scores": progress.scores,
        "objectives": progress.objectives,
        "settings": progress.training.settings,
    }
    write_tensors(path, tensors, CHECKPOINT, header)


def read_checkpoint(path: Any, first: GradientState) -> GradientState:
    """The progress that a file holds, or the first where there is no file.

    Raises:
        ValueError: the file is damaged, or is that of another fit; it is left as it is.
    """
    if not Path(path).exists():
        return first
    advice = "name another file in `checkpoint`, or remove this one to begin anew."
    try:
        header, tensors = read_tensors(path, CHECKPOINT)
        saved = dict(header["settings"])
        _check_leaves(tensors, first)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{str(path)!r} is not a checkpoint of mixtura, or it is damaged ({error}); {advice}"
        ) from error
    settings = first.training.settings
    changed = [name for name in settings if saved.get(name) != settings[name]]
    if changed:
        raise ValueError(f"The checkpoint {str(path)!r} belongs to another fit (other {', '.join(changed)}); {advice}")
    device = first.training.rows.device

    def part(prefix: str) -> dict[str, Tensor]:
        chosen = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        return {
            name.removeprefix(prefix): tensor if name == "state.order" else tensor.to(device)
            for name, tensor in chosen.items()
        }

    first.training.epoch = -1  # the live training is not there yet: the next step loads the state
    return replace(
        first,
        epoch=header["epoch"],
        state=part("state."),
        best=part("best."),
        best_epoch=header["best_epoch"],
        best_score=tuple(header["best_score"]),
        scores=tuple(tuple(score) for score in header["scores"]),
        objectives=tuple(header["objectives"]),
    )


def _check_leaves(tensors: dict[str, Tensor], first: GradientState) -> None:
    """Every number that the fit goes on from is there and finite; shapes are compared with the settings."""
    needed = {f"{part}{name}" for part in ("state.leaf.", "best.") for name in first.best}
    missing = sorted(needed - tensors.keys())
    if missing or "state.order" not in tensors:
        raise ValueError(f"it lacks {(missing or ['state.order'])[0]!r}")
    if not all(bool(tensors[name].isfinite().all()) for name in needed):
        raise ValueError("it holds numbers that are not finite")


def fit_settings(training: Training) -> dict[str, Any]:
    """What must be the same for a checkpoint to be of this fit, by the names that an error message gives it."""
    solver = training.solver
    held_out = None if solver.held_out is None else together(solver.held_out)
    return {
        "optimiser": solver.optimiser if isinstance(solver.optimiser, str) else "another",
        "objective": repr(solver.objective),
        "criterion": solver.criterion,
        "learning_rate": solver.learning_rate,
        "decay_epochs": solver.decay_epochs,
        "averaging": solver.averaging,
        "batch_size": solver.batch_size,
        "random_state": solver.seed,
        "components or covariances": {n: list(leaf.shape) for n, leaf in sorted(training.free.leaves.items())},
        "floor": solver.floor,
        "prior": [solver.prior_weight, _prior_print(solver.prior)],
        "class_prior": _print(solver.class_prior),
        "samples": [_print(training.rows), _print(training.units.centre), _print(training.units.scales)],
        "labels": [_print(training.labels), _print(training.shares)],
        "sample weights": _print(training.weights),
        "held-out samples": held_out and _print(held_out.rows),
        "held-out labels": held_out and _print(held_out.labels),
        "held-out sample weights": held_out and _print(held_out.weights),
    }


def _prior_print(prior: Prior | None) -> list[Any] | None:
    """The class of a prior and its numbers; what it keeps for itself is left out."""
    if prior is None:
        return None
    public = {name: value for name, value in sorted(vars(prior).items()) if not name.startswith("_")}
    return [type(prior).__name__, [[n, _print(v) if isinstance(v, Tensor) else repr(v)] for n, v in public.items()]]


def _print(values: Tensor | None) -> list[Any] | None:
    """Shape and a weighted sum, which other values, or the same in another order, would hardly have.

    Eight digits, not all bits: standardised samples and priors are sums, whose last digits depend on the number of
    threads.
    """
    if values is None:
        return None
    flat = values.detach().double().cpu().flatten()
    flat = torch.where(flat.isnan(), MISSING, flat)
    mixed = flat @ torch.arange(1, len(flat) + 1, dtype=torch.float64).sin()
    return [list(values.shape), f"{float(mixed):.7e}"]
