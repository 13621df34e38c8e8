"""Labels that spread from labeled rows to others along nearest neighbours (Zhou et al. 2004): starts for few labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# The usual number of neighbours, and how much of a row's share comes from them.
N_NEIGHBOURS = 10
REACH = 0.99
# A residual that no longer changes which share is largest, and steps that suffice for it at a reach up to 0.999.
TOLERANCE, MOST_STEPS = 1e-4, 500


@dataclass(frozen=True)
class Graph:
    """S = D^-1/2 (W + W') D^-1/2 over rows, with W_ij = exp(-4 |x_i - x_j|^2 / r_i^2), r_i to the last neighbour."""

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
    """Squared distances (n, count) to the nearest other rows, and which they are."""
    squares, found = rows.square().sum(1), []
    everyone = torch.arange(len(rows), device=rows.device)
    for part in everyone.split(max(1, 2**25 // len(rows))):
        distances = torch.addmm(squares.unsqueeze(0), rows[part], rows.T, alpha=-2).add_(squares[part].unsqueeze(1))
        distances[everyone[: len(part)], part] = torch.inf  # not the row itself
        found.append(distances.topk(count, largest=False))
    return torch.cat([f.values for f in found]).clamp_min(0), torch.cat([f.indices for f in found])


def spread(graph: Graph, labels: Tensor, frequencies: Tensor, reach: float = REACH) -> Tensor:
    """A label for every row that is reached from a labeled one, -1 for others (label-spreading):

        F = (1 - reach) (I - reach S)^-1 Y,

    Y one for the class of a labeled row over the number of its labels; columns are scaled to `frequencies`.

    Arguments:
        labels: (n,), -1 where there is none.
        frequencies: how frequent the classes are, (C,).
    """
    known = labels >= 0
    given = graph.weights.new_zeros(graph.n_rows, len(frequencies))
    given[known, labels[known]] = 1.0
    given /= given.sum(0).clamp_min(1)
    shares = _solved(graph, given, reach)
    shares = shares / shares.sum(0).clamp_min(1e-30) * frequencies.to(shares)
    largest, found = shares.max(1)
    return torch.where(known, labels, torch.where(largest > 0, found, -1))


def _solved(graph: Graph, right: Tensor, reach: float) -> Tensor:
    """(I - reach S)^-1 right, by conjugate gradients for all columns at once."""
    solution, residual = torch.zeros_like(right), right.clone()
    direction, squares = residual.clone(), residual.square().sum(0)
    wanted = TOLERANCE**2 * squares
    for _ in range(MOST_STEPS):
        image = direction - reach * (graph @ direction)
        step = squares / (direction * image).sum(0).clamp_min(1e-30)
        solution += step * direction
        residual -= step * image
        previous, squares = squares, residual.square().sum(0)
        if bool((squares <= wanted).all()):
            break
        direction = residual + squares / previous.clamp_min(1e-30) * direction
    return solution
