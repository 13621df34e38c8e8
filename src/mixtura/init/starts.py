"""Initial mixtures: k-means (k-means++) in every class, random rows or label spreading; and splits of components."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.init.description import SAMPLED_ROWS, Description
from mixtura.model.mixture import Mixture
from mixtura.roles import Structure

# The usual number of neighbours, and the weight alpha of the neighbours relative to the row's own label.
N_NEIGHBOURS = 10
REACH = 0.99
# Relative residual of conjugate gradients that suffices for the labels, and steps to reach it for alpha up to 0.999.
TOLERANCE, MOST_STEPS = 1e-4, 500


def graph_of(rows: Tensor, n_neighbours: int = N_NEIGHBOURS) -> Callable[[Tensor], Tensor]:
    """The graph of the nearest neighbours of rows (n, D), as a product with values (n, C):

        S = D^-1/2 (W + W') D^-1/2 with W_ij = exp(-4 |x_i - x_j|^2 / r_i^2), r_i the distance of the last neighbour.

    It takes O(n^2 D) operations and O(n) memory.
    """
    squared, index = _neighbours(rows, min(n_neighbours, len(rows) - 1))
    weights = torch.exp(-4 * squared / squared[:, -1:].clamp_min(1e-30)).flatten()
    one = torch.arange(len(rows), device=rows.device).repeat_interleave(squared.shape[1])
    first, second = torch.cat((one, index.flatten())), torch.cat((index.flatten(), one))
    both = weights.repeat(2)
    roots = torch.zeros_like(rows[:, 0]).index_add_(0, first, both).clamp_min(1e-30).rsqrt()
    both = both * roots[first] * roots[second]  # of each pair, once in both directions

    def multiply(values: Tensor) -> Tensor:
        along = values.index_select(0, second).mul_(both.unsqueeze(-1))
        return torch.zeros_like(values).index_add_(0, first, along)

    return multiply


def _neighbours(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Squared distances (n, count) to the nearest other rows, and their indices."""
    squares, nearest = rows.square().sum(1), []
    everyone = torch.arange(len(rows), device=rows.device)
    for part in everyone.split(max(1, 2**25 // len(rows))):
        distances = torch.addmm(squares.unsqueeze(0), rows[part], rows.T, alpha=-2).add_(squares[part].unsqueeze(1))
        distances[everyone[: len(part)], part] = torch.inf  # not the row itself
        nearest.append(distances.topk(count, largest=False))
    return torch.cat([part.values for part in nearest]).clamp_min(0), torch.cat([part.indices for part in nearest])


def spread(graph: Callable[[Tensor], Tensor], labels: Tensor, frequencies: Tensor, reach: float = REACH) -> Tensor:
    """Assign a label to every row connected to a labeled one, -1 to others (label-spreading):

        F = (1 - reach) (I - reach S)^-1 Y,

    where column c of Y is 1 / n_c at the n_c rows labeled c. Columns of F are scaled to the class `frequencies` (C,).
    `labels` (n,) has -1 for unlabeled rows.
    """
    labeled = labels >= 0
    seeds = torch.zeros(len(labels), len(frequencies), dtype=torch.float64, device=labels.device)
    seeds[labeled, labels[labeled]] = 1.0
    seeds /= seeds.sum(0).clamp_min(1)
    shares = _solve(graph, seeds, reach)
    shares = shares / shares.sum(0).clamp_min(1e-30) * frequencies.to(shares)
    largest, best_class = shares.max(1)
    return torch.where(labeled, labels, torch.where(largest > 0, best_class, -1))


def _solve(graph: Callable[[Tensor], Tensor], right: Tensor, reach: float) -> Tensor:
    """(I - reach S)^-1 right, by conjugate gradients for all columns at once."""
    solution, residual = torch.zeros_like(right), right.clone()
    direction, squares = residual.clone(), residual.square().sum(0)
    tolerances = TOLERANCE**2 * squares
    for _ in range(MOST_STEPS):
        image = direction - reach * graph(direction)
        step = squares / (direction * image).sum(0).clamp_min(1e-30)
        solution += step * direction
        residual -= step * image
        previous, squares = squares, residual.square().sum(0)
        if bool((squares <= tolerances).all()):
            break
        direction = residual + squares / previous.clamp_min(1e-30) * direction
    return solution


STARTS = ("kmeans", "k-means++", "random", "spread")  # methods of `starting_mixture`
LLOYD_ITERATIONS = 25
CLUSTERED_ROWS = 2**17  # largest number of rows for k-means in `clusters_of`


@dataclass(frozen=True)
class Clusters:
    """Clusters of the rows of every class, which become the components of an initial mixture."""

    means: Tensor  # (K, D)
    weights: Tensor  # (K,)
    class_of: Tensor  # (K,)
    assigned: list[tuple[Tensor, Tensor, Tensor]]  # rows, their weights and their components, class by class


def starting_mixture(
    description: Description,
    structure: Structure,
    n_components: Sequence[int],
    method: str,
    generator: torch.Generator,
) -> tuple[Mixture, list[tuple[Tensor, Tensor, Tensor]]]:
    """Make an initial mixture, and the assigned rows (rows, weights, components) for its first M-step.

    `n_components` has one number per class. `method` is "kmeans", "k-means++" (without k-means
    iterations), "random" (random rows as centres) or "spread" (k-means of the rows reached by label spreading).
    """
    clusters = cluster_classes(description, n_components, method, generator)
    return mixture_of(clusters, structure, description), clusters.assigned


def mixture_of(clusters: Clusters, structure: Structure, description: Description) -> Mixture:
    """The initial mixture with a component for every cluster."""
    variances = description.within.expand_as(clusters.means).contiguous()
    deviations = weighted_deviations(clusters.assigned, clusters.means)
    covariance = structure.start(variances, *deviations, clusters.class_of)
    log_weights = clusters.weights.clamp_min(1e-300).log() - clusters.weights.sum().log()
    return Mixture(log_weights, clusters.means, covariance, clusters.class_of)


def cluster_classes(
    description: Description, n_components: Sequence[int], method: str, generator: torch.Generator
) -> Clusters:
    """Cluster the rows of every class; the arguments are those of `starting_mixture`."""
    scales, samples = description.within.sqrt(), description.samples
    if method == "spread":
        samples, method = spread_samples(description), "kmeans"
    means, weights, assigned, first = [], [], [], 0
    for c, count in enumerate(n_components):
        rows, row_weights = samples[c]
        # About the class mean, so that distances stay accurate far from zero; missing values are set to the mean.
        scaled = torch.nan_to_num((rows - description.class_means[c]) / scales, nan=0.0)
        seeds = cluster(scaled, row_weights, count, method, generator)
        components = nearest(scaled, seeds)
        sizes = torch.zeros(count, dtype=torch.float64, device=rows.device).index_add_(0, components, row_weights)
        means.append(description.class_means[c] + seeds * scales)
        # An empty cluster gets the weight of half a row, so that EM can still assign rows to it.
        weights.append(description.class_weights[c] * (sizes + 0.5) / (sizes + 0.5).sum())
        assigned.append((rows, row_weights, components + first))
        first += count
    class_of = torch.repeat_interleave(torch.tensor(list(n_components))).to(scales.device)
    return Clusters(torch.cat(means), torch.cat(weights), class_of, assigned)


def spread_samples(description: Description) -> list[tuple[Tensor, Tensor]]:
    """The sample of every class, plus the unlabeled rows that label spreading assigns to it."""
    *labeled, unlabeled = description.samples
    if not len(unlabeled[0]):
        return labeled
    most = max(1, SAMPLED_ROWS // len(labeled))  # labeled rows per class; a subset suffices where there are many
    seeds = [rows[:: -(-len(rows) // most) or 1] for rows, _ in labeled]
    rows = torch.cat((*seeds, unlabeled[0]))
    scaled = torch.nan_to_num((rows - description.frame.centre) / description.within.sqrt(), nan=0.0)
    counts = torch.tensor([len(part) for part in seeds], device=rows.device)
    labels = torch.full_like(rows[:, 0], -1, dtype=torch.int64)
    labels[: int(counts.sum())] = torch.repeat_interleave(counts)
    spread_labels = spread(graph_of(scaled), labels, description.class_weights)[int(counts.sum()) :]
    reached = [tuple(part[spread_labels == c] for part in unlabeled) for c in range(len(labeled))]
    return [(torch.cat((a, c)), torch.cat((b, d))) for (a, b), (c, d) in zip(labeled, reached, strict=True)]


def weighted_deviations(assigned: Sequence[tuple[Tensor, Tensor, Tensor]], means: Tensor) -> tuple[Tensor, Tensor]:
    """Deviations of rows from the mean of their component, zero where missing, and the components.

    Each is multiplied by the square root of its weight relative to the mean weight in the component, so that a row of
    weight 2 counts as two rows.
    """
    rows, weights, components = (torch.cat(parts) for parts in zip(*assigned, strict=True))
    totals = weights.new_zeros(2, len(means)).index_add_(
        1, components, torch.stack((weights, torch.ones_like(weights)))
    )
    averages = totals[0] / totals[1].clamp_min(1)
    factors = (weights / averages[components]).sqrt().unsqueeze(-1)
    return torch.nan_to_num(rows - means[components], nan=0.0) * factors, components


def cluster(rows: Tensor, weights: Tensor, n_clusters: int, method: str, generator: torch.Generator) -> Tensor:
    """Centres (K, D) of weighted rows."""
    if n_clusters == 1:
        return (weights @ rows / weights.sum()).unsqueeze(0)
    if method == "random":
        chosen = torch.multinomial(weights.cpu(), min(n_clusters, len(rows)), generator=generator).to(rows.device)
        return rows[chosen.repeat(n_clusters)[:n_clusters]]
    if method == "bisection":
        return lloyd(rows, weights, bisect(rows, weights, n_clusters))
    centres = rows[plus_plus(rows, weights, n_clusters, generator)]
    return centres if method == "k-means++" else lloyd(rows, weights, centres)


def clusters_of(rows: Tensor, weights: Tensor | None, n_clusters: int, generator: torch.Generator) -> Tensor:
    """The cluster of every row, by k-means on at most `CLUSTERED_ROWS` of them, on the device of the rows."""
    sampled: slice | Tensor = slice(None)
    if len(rows) > CLUSTERED_ROWS:
        sampled = torch.randperm(len(rows), generator=generator)[:CLUSTERED_ROWS].to(rows.device)
    some = rows[sampled].double()
    some_weights = torch.ones_like(some[:, 0]) if weights is None else weights[sampled].double()
    centre = some_weights @ some / some_weights.sum()
    centres = cluster(some - centre, some_weights, n_clusters, "kmeans", generator)
    return torch.cat([nearest(part.double() - centre, centres) for part in rows.split(CLUSTERED_ROWS)])


def plus_plus(rows: Tensor, weights: Tensor, n_clusters: int, generator: torch.Generator) -> list[int]:
    """Greedy k-means++ seeds: each is the best of a few rows drawn with probability weight x squared distance."""
    n_trials = 2 + int(math.log(n_clusters))

    def draw(probabilities: Tensor, count: int) -> Tensor:
        if not probabilities.is_cuda:
            return torch.multinomial(probabilities, count, replacement=True, generator=generator)
        # The generator is that of the host: only a few uniform numbers are copied, not the probabilities.
        sums = probabilities.cumsum(0)
        places = torch.rand(count, generator=generator, dtype=torch.float64).to(rows.device) * sums[-1]
        return torch.searchsorted(sums, places, right=True).clamp_max(len(sums) - 1)

    chosen = [int(draw(weights, 1))]
    closest = (rows - rows[chosen[0]]).square().sum(-1)
    while len(chosen) < n_clusters:
        potential = closest * weights
        if not bool(potential.sum() > 0):  # fewer distinct rows than centres
            chosen.extend(draw(weights, n_clusters - len(chosen)).tolist())
            break
        trials = draw(potential, n_trials)
        candidates = torch.minimum(closest, torch.cdist(rows[trials], rows).square())  # (T, n)
        best = int((candidates @ weights).argmin())
        closest = candidates[best]
        chosen.append(int(trials[best]))
    return chosen


def bisect(rows: Tensor, weights: Tensor, n_clusters: int) -> Tensor:
    """Deterministic centres by bisection: the cluster of largest scatter is halved repeatedly.

    A cluster is split at its mean, across its principal axis. A sample of weight 2 counts as two equal samples.
    """
    parts = [torch.arange(len(rows), device=rows.device)]
    cuts = [_axis(rows, weights)]
    while len(parts) < n_clusters:
        scatters = [scatter for scatter, _ in cuts]
        widest = max(range(len(parts)), key=scatters.__getitem__)
        part, (scatter, axis) = parts.pop(widest), cuts.pop(widest)
        if scatter <= 0:  # fewer distinct rows than centres
            parts.append(part)
            break
        offsets = (rows[part] - weights[part] @ rows[part] / weights[part].sum()) @ axis
        for half in (part[offsets > 0], part[offsets <= 0]):
            parts.append(half)
            cuts.append(_axis(rows[half], weights[half]))
    centres = torch.stack([weights[part] @ rows[part] / weights[part].sum() for part in parts])
    return torch.cat((centres, centres[-1:].expand(n_clusters - len(centres), -1)))


def _axis(rows: Tensor, weights: Tensor) -> tuple[float, Tensor]:
    """The scatter of weighted rows along their principal axis, and the axis, (D,)."""
    deviations = (rows - weights @ rows / weights.sum()) * weights.sqrt().unsqueeze(-1)
    noise = 1e-12 * float(weights @ rows.square().sum(1)) + 1e-300
    few = len(rows) < rows.shape[1]  # a decomposition of the products of rows then is the smaller one
    values, axes = torch.linalg.eigh(deviations @ deviations.T if few else deviations.T @ deviations)
    scatter, axis = float(values[-1]), axes[:, -1]
    axis = deviations.T @ axis / max(scatter, noise) ** 0.5 if few else axis
    return (scatter if scatter > noise else 0.0), axis


def lloyd(rows: Tensor, weights: Tensor, centres: Tensor) -> Tensor:
    """Weighted k-means from given centres; a centre without rows does not move."""
    for _ in range(LLOYD_ITERATIONS):
        components = nearest(rows, centres)
        sizes = torch.zeros_like(centres[:, 0]).index_add_(0, components, weights)
        sums = torch.zeros_like(centres).index_add_(0, components, rows * weights.unsqueeze(-1))
        moved = torch.where(sizes.unsqueeze(-1) > 0, sums / sizes.clamp_min(1e-300).unsqueeze(-1), centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def nearest(rows: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre of each row, in parts of bounded memory."""
    step = max(1, 2**21 // len(centres))
    return torch.cat([torch.cdist(part, centres).argmin(1) for part in rows.split(step)])


SOME_ROWS = 2000  # rows per class that are evaluated
HALF = 0.8  # distance of the mean of either half of a Gaussian from its centre, in standard deviations: sqrt(2 / pi)


def unexplained(mixture: Mixture, description: Description, own_class: int) -> Tensor:
    """Numerator minus denominator counts of the components of a class, over the rows of that class (unexplained).

    Over all rows the two counts are equal once the weights are trained, so only rows of the class are informative.
    """
    log_joint, weights, part = _log_joint(mixture, description, own_class)
    within = log_joint[:, part].softmax(1)
    return weights @ (within - log_joint.softmax(1)[:, part])


def split(mixture: Mixture, description: Description, own_class: int, number: int) -> Mixture:
    """Split a component of a class in two along the principal axis of its rows."""
    component = mixture.class_slices[own_class].start + number
    offset = HALF * _principal_axis(mixture, description, own_class, number)
    count = mixture.n_components
    index = torch.cat((torch.arange(component + 1), torch.arange(component, count))).to(mixture.class_of.device)
    log_weights, means = mixture.log_weights[index], mixture.means[index]
    log_weights[component : component + 2] -= torch.log(torch.tensor(2.0, dtype=log_weights.dtype))
    means[component] += offset
    means[component + 1] -= offset
    return Mixture(log_weights, means, mixture.covariance.select(index), mixture.class_of[index])


def _log_joint(mixture: Mixture, description: Description, own_class: int) -> tuple[Tensor, Tensor, slice]:
    rows, weights = description.samples[own_class]
    every = max(1, len(rows) // SOME_ROWS)
    return mixture.log_joint(rows[::every]), weights[::every], mixture.class_slices[own_class]


def _principal_axis(mixture: Mixture, description: Description, own_class: int, number: int) -> Tensor:
    """The principal axis of the rows of a component, in units of its scales, with the length of its spread, (D,)."""
    log_joint, weights, part = _log_joint(mixture, description, own_class)
    shares = weights * log_joint[:, part].softmax(1)[:, number]
    rows, _ = description.samples[own_class]
    scales = mixture.covariance.variances()[part.start + number].sqrt()
    every = max(1, len(rows) // SOME_ROWS)
    deviations = torch.nan_to_num((rows[::every] - mixture.means[part.start + number]) / scales, nan=0.0)
    weighted = deviations * (shares / shares.sum().clamp_min(1e-300)).sqrt().unsqueeze(-1)
    _, spreads, axes = torch.linalg.svd(weighted, full_matrices=False)
    largest = axes[0] * axes[0].sum().sign()  # fixes the arbitrary sign of a singular vector
    return spreads[0] * largest * scales
