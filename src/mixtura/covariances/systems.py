"""The small systems of rows with any missing cells: A_n = I + sign sum_o g_d g_d' over the observed cells of row n.

Of A_n, S x S, what is asked for is M_n, all but its last row and column, and the rest of that row.

A_n is linear in the mask (marginal-woodbury). For all rows it is one product of the mask with a table of
S (S + 1) / 2 numbers per feature and component, where g has S. Where a CPU meets few cells of one kind, missing or
observed, it takes the vectors of just those cells and multiplies them with themselves, many rows in one call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.numerics.buffers import Scratch

# Numbers of a table up to which a product with the whole mask is cheap, however many cells are missing.
SMALL_TABLE = 2**16
# Cells of one kind, as a part of all, whose own products cost less than one with the whole mask.
FEW = 0.2
# Rows whose systems are made together, and the vectors that are multiplied in one call, at most: more leave the cache,
# much fewer make many calls.
BLOCK_ROWS = 250
GATHERED_BYTES = 2 * 2**20
# Small products are twice as fast where their sides are multiples of these: for a side of 26, 28 x 24 and the corner
# that this leaves out take 3.8 microseconds, 28 x 36 take 4.8, and 26 x 26 more.
TILE_ROWS, TILE_COLUMNS = 4, 12


@dataclass(frozen=True)
class MaskBlock:
    """Rows whose systems are made together."""

    where: slice
    mask: Tensor  # (n', D), one where observed
    cells: Tensor | None = None  # (n', m): positions of the few that are missing, or observed, filled up with D
    missing: bool = False  # whether these are missing


def blocks_of(mask: Tensor, side: int) -> list[MaskBlock]:
    """Neighbours with few missing, with few observed, and with many cells of both kinds.

    Best for rows in the order of their numbers of missing cells.
    """
    n_rows, size = mask.shape
    if mask.device.type != "cpu" or size * _triangle(side) <= SMALL_TABLE:
        return [MaskBlock(slice(0, n_rows), mask)]
    observed = mask.sum(1)
    kinds = torch.where(observed >= (1 - FEW) * size, 0, torch.where(observed <= FEW * size, 1, 2))
    found, start = [], 0
    for run in kinds.split(kinds.unique_consecutive(return_counts=True)[1].tolist()):
        kind = int(run[0])
        for part in run.chunk(-(-len(run) // BLOCK_ROWS)):
            where = slice(start, start + len(part))
            cells = _positions(mask[where] == kind) if kind < 2 else None
            found.append(MaskBlock(where, mask[where], cells, kind == 0))
            start = where.stop
    return found


def _positions(chosen: Tensor) -> Tensor:
    """Where rows (n, D) are True, (n, m), filled up with D."""
    counts = chosen.sum(1)
    rows, cells = chosen.nonzero().unbind(1)
    places = torch.arange(len(cells)) - (counts.cumsum(0) - counts)[rows]
    found = cells.new_full((len(chosen), int(counts.max())), chosen.shape[1])
    found[rows, places] = cells
    return found


def _triangle(side: int) -> int:
    return side * (side + 1) // 2


def _multiple(size: int, of: int) -> int:
    return -(-size // of) * of


class Systems:
    """A_n of K components with the vectors g, (K, D, S); one component where blocks have cells."""

    def __init__(self, vectors: Tensor, sign: float, scratch: Scratch):
        self._vectors, self._sign, self._scratch = vectors, sign, scratch
        self._tables: Tensor | None = None
        self._complete: tuple[Tensor, Tensor, bool] | None = None

    def of(self, block: MaskBlock) -> tuple[Tensor, Tensor]:
        """M_n (K, n', S - 1, S - 1) and the row beside it, (K, n', S - 1); good until the next are asked for."""
        if block.cells is None:
            return self._masked(block.mask)
        if self._complete is None:
            self._complete = self._complete_row()
        table, complete, few_digits = self._complete
        if not block.missing:
            return self._gathered(block.cells, table, torch.eye(len(complete), dtype=complete.dtype), self._sign)
        return self._masked(block.mask) if few_digits else self._gathered(block.cells, table, complete, -self._sign)

    def _masked(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        n_components, _, side = self._vectors.shape
        rows, columns = torch.tril_indices(side, side, device=mask.device).unbind()
        if self._tables is None:
            parts = self._vectors.mT.contiguous()
            products = parts.index_select(1, rows).mul_(parts.index_select(1, columns))
            self._tables = products.mul_(self._sign).flatten(0, 1)  # (K S (S + 1) / 2, D)
        packed = self._scratch.buffer("packed", (len(self._tables), len(mask)), mask)
        packed = torch.mm(self._tables, mask.T, out=packed).view(n_components, -1, len(mask))
        places = rows.new_empty(side, side)
        places[rows, columns] = places[columns, rows] = torch.arange(len(rows), device=mask.device)
        systems = self._scratch.buffer("systems", (n_components, side * side, len(mask)), mask)
        torch.index_select(packed, 1, places.flatten(), out=systems)
        systems = systems.view(n_components, side, side, -1)
        systems.diagonal(dim1=1, dim2=2).add_(1)
        systems = systems.movedim(-1, 1)
        inner, beside = systems[..., :-1, :-1], systems[..., -1, :-1]
        if mask.device.type == "cpu":  # LAPACK would copy it, too, to fresh pages
            inner = self._scratch.buffer("inner", tuple(inner.shape), mask).copy_(inner)
        return inner, beside

    def _complete_row(self) -> tuple[Tensor, Tensor, bool]:
        """The vectors with zeros for a cell and for columns that are none, A of a complete row, and whether its numbers
        are so large that less than half of the digits might be left where missing cells are taken away.
        """
        _, size, side = self._vectors.shape
        table = self._vectors.new_zeros(size + 1, max(_multiple(side, TILE_ROWS), TILE_COLUMNS))
        table[:size, :side] = self._vectors[0]
        complete = self._sign * (table.T @ table)
        largest = float(complete.diagonal().abs().max())
        complete.diagonal().add_(1)
        return table, complete, not largest <= torch.finfo(table.dtype).eps ** -0.5

    def _gathered(self, cells: Tensor, table: Tensor, start: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """Of start + factor times the sum over cells of g g': columns that fill tiles, and the corner after them."""
        (n_rows, _), width, rank = cells.shape, table.shape[1], self._vectors.shape[-1] - 1
        height, tiled = _multiple(rank + 1, TILE_ROWS), width - width % TILE_COLUMNS
        columns = self._scratch.buffer("columns", (n_rows, height, tiled), table)
        corner = self._scratch.buffer("corner", (n_rows, width - tiled, width - tiled), table)
        n_calls = 1 + 8 * cells.numel() * width // GATHERED_BYTES
        for part, sides, ends in zip(cells.chunk(n_calls), columns.chunk(n_calls), corner.chunk(n_calls), strict=True):
            taken = self._scratch.buffer("vectors", (part.numel(), width), table)
            taken = torch.index_select(table, 0, part.flatten(), out=taken).view(*part.shape, width)
            first, rest = taken[..., :tiled], taken[..., tiled:]
            torch.baddbmm(
                start[:height, :tiled].expand_as(sides), taken[..., :height].mT, first, alpha=factor, out=sides
            )
            if rank > tiled:
                torch.baddbmm(start[tiled:, tiled:].expand_as(ends), rest.mT, rest, alpha=factor, out=ends)
        inner, n_tiled = self._scratch.buffer("inner", (1, n_rows, rank, rank), table), min(rank, tiled)
        inner[0, :, :, :n_tiled] = columns[:, :rank, :n_tiled]
        beside = columns[:, rank, :n_tiled]
        if rank > tiled:
            inner[0, :, :tiled, tiled:] = columns[:, tiled:rank].mT
            inner[0, :, tiled:, tiled:] = corner[:, : rank - tiled, : rank - tiled]
            beside = torch.cat((beside, corner[:, rank - tiled, : rank - tiled]), 1)
        return inner, beside.unsqueeze(0)
