"""Label spreading along nearest neighbours (Zhou et al. 2004), for initialisation with few labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# The usual number of neighbours, and the weight alpha of the neighbours relative to the row's own label.
N_NEIGHBOURS = 10
REACH = 0.99
# Relative residual of conjugate gradients that suffices for the labels, and steps to reach it for alpha up to 0.999.
TOLERANCE, MOST_STEPS = 1e-4, 500


@dataclass(frozen=True)
class Graph:
    """S = D^-1/2 (W + W') D^-1/2 with W_ij = exp(-4 |x_i - x_j|^2 / r_i^2), r_i the distance of the last neighbour."""

    first: Tensor  # (E,), each pair once in both directions
    second: Tensor  # (E,)
    weights: Tensor  # (E,)
    n_rows: int

    def __matmul__(self, values: Tensor) -> Tensor:
        along = values.index_select(0, self.second).mul_(self.weights.unsqueeze(-1))
        return torch.zeros_like(values).index_add_(0, self.first, along)


def graph_of(rows: Tensor, n_neighbours: int = N_NEIGHBOURS) -> Graph:
    """The graph of the nearest neighbours of rows (n, D); O(n^2 D) operations, O(n) memory."""
    squared, index = _neighbours(rows, min(n_neighbours, len(rows) - 1))
    weights = torch.exp(-4 * squared / squared[:, -1:].clamp_min(1e-30)).flatten()
    one = torch.arange(len(rows), device=rows.device).repeat_interleave(squared.shape[1])
    first, second = torch.cat((one, index.flatten())), torch.cat((index.flatten(), one))
    both = weights.repeat(2)
    roots = torch.zeros_like(rows[:, 0]).index_add_(0, first, both).clamp_min(1e-30).rsqrt()
    return Graph(first, second, both * roots[first] * roots[second], len(rows))


def _neighbours(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Squared distances (n, count) to the nearest other rows, and their indices."""
    squares, nearest = rows.square().sum(1), []
    everyone = torch.arange(len(rows), device=rows.device)
    for part in everyone.split(max(1, 2**25 // len(rows))):
        distances = torch.addmm(squares.unsqueeze(0), rows[part], rows.T, alpha=-2).add_(squares[part].unsqueeze(1))
        distances[everyone[: len(part)], part] = torch.inf  # not the row itself
        nearest.append(distances.topk(count, largest=False))
    return torch.cat([part.values for part in nearest]).clamp_min(0), torch.cat([part.indices for part in nearest])


def spread(graph: Graph, labels: Tensor, frequencies: Tensor, reach: float = REACH) -> Tensor:
    """Assign a label to every row connected to a labeled one, -1 to others (label-spreading):

        F = (1 - reach) (I - reach S)^-1 Y,

    where column c of Y is 1 / n_c at the n_c rows labeled c. Columns of F are scaled to the class `frequencies` (C,).
    `labels` (n,) has -1 for unlabeled rows.
    """
    labeled = labels >= 0
    seeds = graph.weights.new_zeros(graph.n_rows, len(frequencies))
    seeds[labeled, labels[labeled]] = 1.0
    seeds /= seeds.sum(0).clamp_min(1)
    shares = _solved(graph, seeds, reach)
    shares = shares / shares.sum(0).clamp_min(1e-30) * frequencies.to(shares)
    largest, best_class = shares.max(1)
    return torch.where(labeled, labels, torch.where(largest > 0, best_class, -1))


def _solved(graph: Graph, right: Tensor, reach: float) -> Tensor:
    """(I - reach S)^-1 right, by conjugate gradients for all columns at once."""
    solution, residual = torch.zeros_like(right), right.clone()
    direction, squares = residual.clone(), residual.square().sum(0)
    tolerances = TOLERANCE**2 * squares
    for _ in range(MOST_STEPS):
        image = direction - reach * (graph @ direction)
        step = squares / (direction * image).sum(0).clamp_min(1e-30)
        solution += step * direction
        residual -= step * image
        previous, squares = squares, residual.square().sum(0)
        if bool((squares <= tolerances).all()):
            break
        direction = residual + squares / previous.clamp_min(1e-30) * direction
    return solution
