"""Loops over samples with missing values: squared distances of observed values, and draws of missing values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mixtura.engine.evaluator import LOG_TWO_PI, Buffers, Evaluator, LoadedChunk, evaluator_for, frame_of
from mixtura.engine.passes import Chunk, chunks_of
from mixtura.engine.sources import Source
from mixtura.engine.tuning import DEFAULT_MEMORY_LIMIT
from mixtura.model.mixture import Mixture
from mixtura.objectives import posteriors

# Fraction of its mean below which a squared distance is computed from the deviations: as a difference of log joints it
# has an error of up to 1e-8 that does not shrink with it, and its roots have a much larger one.
NEAR = 0.1


def map_distances(
    mixture: Mixture,
    source: Source,
    compute: Callable[[Tensor, Tensor, Tensor, Tensor, bool], Tensor],
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
) -> Tensor:
    """compute(log joints (K, n), squared distances (K, n), their means and variances, missing) -> (n, ...), in order.

    `missing` says whether each of the n rows has missing values; else none has.
    """
    evaluator = evaluator_for(mixture, source, frame_of(mixture))
    outputs = []
    for block in source.blocks():
        output: Tensor | None = None
        for part in _parts(block, evaluator, memory_limit):
            observed = ~part.rows.isnan()
            log_joint = evaluator.log_joint(part, Buffers(), inside=False).clone()
            means, variances = (part.to(log_joint) for part in mixture.covariance.distance_moments(observed))
            if part.missing:
                deviations = _deviations(mixture, part, observed)
                distances = mixture.covariance.condition(deviations, observed).squared_distances
            else:
                distances = _complete_distances(mixture, part, evaluator, log_joint, NEAR * means, memory_limit)
            answers = compute(log_joint, distances, means, variances, part.missing)
            if output is None:
                output = answers.new_empty((len(block.rows), *answers.shape[1:]))
            output[part.index] = answers
        outputs += [] if output is None else [output]
    if not outputs:
        empty = mixture.means[:, :0]
        return compute(empty, empty, empty[0], empty[0], False)
    return torch.cat(outputs)


def _complete_distances(
    mixture: Mixture,
    part: LoadedChunk,
    evaluator: Evaluator,
    log_joint: Tensor,
    limits: Tensor,
    memory_limit: int,
) -> Tensor:
    """Squared distances (K, n) of complete rows; those below the limits have as many digits as the rows allow."""
    constant = mixture.log_determinants + mixture.n_features * LOG_TWO_PI
    distances = 2 * (evaluator.log_weights - log_joint) - constant.to(log_joint).unsqueeze(-1)
    near = (distances < limits).any(0).nonzero()[:, 0]
    step = max(1, memory_limit // (8 * 4 * mixture.means.numel()))
    for some in near.split(step):
        deviations = (part.rows[some].double() - mixture.means.unsqueeze(1)).to(part.rows.dtype)  # (K, n', D)
        distances[:, some] = mixture.covariance.squared_distances(deviations)
    return distances


def draw_missing(
    mixture: Mixture, source: Source, generator: torch.Generator, memory_limit: int = DEFAULT_MEMORY_LIMIT
) -> Tensor:
    """Draw missing values from their distribution given the observed values (draws).

    A component is drawn by its responsibility, then a sample z of it; with E the linear map that fills in conditional
    means, E(x) + z - E(z) has the conditional distribution (Matheron's rule) for any covariance structure.
    """
    evaluator = evaluator_for(mixture, source, frame_of(mixture))
    outputs = []
    for block in source.blocks():
        output = block.rows.to(evaluator.dtype, copy=True)
        for part in _parts(block, evaluator, memory_limit):
            if part.missing:
                log_joint = evaluator.log_joint(part, Buffers(), inside=False)
                output[part.index] = _draw_missing(mixture, part, log_joint, generator)
        outputs.append(output)
    return torch.cat(outputs)


def _draw_missing(mixture: Mixture, part: LoadedChunk, log_joint: Tensor, generator: torch.Generator) -> Tensor:
    shares = posteriors(log_joint)[1].T.to(generator.device)
    components = torch.multinomial(shares, 1, generator=generator).squeeze(1).to(part.rows.device)
    completed, observed = part.rows.clone(), ~part.rows.isnan()
    for k in components.unique().tolist():
        chosen = (components == k).nonzero()[:, 0]
        alone, known = mixture.select(slice(k, k + 1)), observed[chosen]
        noise = alone.covariance.sample(torch.zeros_like(chosen), generator).to(part.rows)
        rows = torch.where(known, part.rows[chosen] - alone.means, 0.0)
        both = torch.cat((rows, torch.where(known, noise, 0.0))).unsqueeze(0)
        filled, filled_noise = alone.covariance.condition(both, known.repeat(2, 1)).deviations[0].chunk(2)
        drawn = alone.means + filled + noise - filled_noise
        completed[chosen] = torch.where(known, part.rows[chosen], drawn.to(part.rows))
    return completed


def _parts(block, evaluator: Evaluator, memory_limit: int) -> list[LoadedChunk]:
    """The chunks of a block; those with missing values are small enough for conditioning within the memory limit."""
    loaded = []
    for chunk in chunks_of(block, False, evaluator, memory_limit, 1):
        whole = chunk.load(evaluator.dtype)
        loaded += [whole] if not chunk.group.missing else _cut(whole, chunk, evaluator, memory_limit)
    return loaded


def _cut(whole: LoadedChunk, chunk: Chunk, evaluator: Evaluator, memory_limit: int) -> list[LoadedChunk]:
    per_row = 8 * evaluator.n_components * (8 * evaluator.n_features + 3 * chunk.group.largest_side**2)
    step = max(1, memory_limit // per_row)
    assert isinstance(whole.index, Tensor)
    parts = zip(whole.rows.split(step), whole.index.split(step), strict=True)
    return [LoadedChunk(rows, index, whole.components, whole.missing) for rows, index in parts]


def _deviations(mixture: Mixture, part: LoadedChunk, observed: Tensor) -> Tensor:
    return torch.where(observed, part.rows.double() - mixture.means.unsqueeze(1), 0.0).to(part.rows.dtype)
