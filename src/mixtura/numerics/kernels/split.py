"""Passes by products in half precision that are split in three, with nearly the accuracy of single precision.

A feature of a row is the product of two of its values, z_i z_j with z = x - centre; a further value is constant.
Numbers are scaled by powers of two and written as sums of two halves, a = a' + a''. A product of matrices is then
a'' b' + a' b'' + a' b' (split-product): half precision is twice as fast as any other that is nearly as accurate.

Rows are first written as columns of scaled values. The features are computed from these where a kernel needs them;
values and their squares are stored in halves instead where several tiles of components need them. The scores of a chunk
of rows are stored.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportOperatorIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixtura.numerics.kernels.responsibilities import evaluate, halves, responsibilities

# Scaled values are at most this; features then fit half precision, and coefficients within `MOST_SPREAD` do.
LARGEST = 128.0
SCORE_UNIT = 4096.0  # factor of the scores of scaled features and coefficients
RESPONSIBILITY_UNIT = 2.0**14
# The largest root of the sum of the squared terms of a score. The largest errors of scores are 5e-7 of it, their mean,
# and that of log-likelihoods, 7e-8: with 8 features 1e-5 of a log-likelihood is reached at 3500.
MOST_SPREAD = 3000.0
LOWEST, TINY = tl.constexpr(torch.finfo(torch.float32).min), tl.constexpr(torch.finfo(torch.float32).tiny)

# Rows that are summed in single precision before they are added to sums in double precision.
SUMMED = 1024
# Sizes by padded number of components: features and rows of a tile, and warps. The first is for scores, the second for
# sums. Measured on an H200 for 32 components of 16 features, 64 of 32 and 1024 of 128; other sizes took up to twice as
# long.
TILES = {
    16: ((32, 128, 4), (64, 64, 4)),
    32: ((32, 128, 4), (64, 64, 4)),
    64: ((32, 64, 4), (128, 32, 8)),
    128: ((32, 128, 8), (128, 32, 8)),
}
# The same for several tiles of components. Milliseconds on an H200 for 1024 components of 128 features, 10^6 rows:
#   features  scores      sums         loads ahead  columns  scores  sums  pass  posteriors
#   stored    32, 128, 4  128, 64, 8   3            1.1      5.2     5.8   12.2  7.1
#   stored    32, 64, 4   128, 32, 8   3            1.1      4.7     6.2   12.1  6.7
#   stored    32, 256, 8  128, 64, 8   3            1.2      5.3     5.8   12.4  7.3
#   stored    64, 128, 8  128, 64, 8   3            1.1      5.4     5.8   12.4  7.3
#   stored    32, 128, 8  128, 64, 8   3            1.2      5.5     5.8   12.7  7.6
#   stored    64, 128, 4  128, 32, 8   3            1.2      6.2     6.2   13.6  8.3
#   stored    32, 128, 4  128, 32, 8   4            1.2      6.4     6.5   14.0  8.4
#   computed  32, 128, 4  128, 32, 8   3            0.9      7.2     7.0   16.0  9.0
# Responsibilities take 3.0 in all lines. In chunks of half the memory the first pass takes 15.3, of twice 11.8.
SEVERAL = (32, 128, 4), (128, 32, 8)
STORED = (32, 128, 4), (128, 64, 8)
LARGE_MEMORY = 120 * 2**10  # shared memory of a block with which loads are three steps ahead, and not two
MEMORY_OF_STORED = 200 * 2**10  # shared memory of a block that the sums of stored features need
ROW_MULTIPLE = 128  # of chunks


@dataclass(frozen=True)
class SplitCoefficients:
    """Scaled coefficients of the scores bias_k + weights_k . phi, in halves, on the device of the rows."""

    pairs: Tensor  # (2, Q), the two factors of each feature
    halves: Tensor  # (2, K, Q)
    bias: Tensor  # (2, K), rounded, and the remainder
    frame: Tensor  # (3, D), scale, shift and its remainder
    units: Tensor  # (P,), of the features, where the mixture is
    n_components: int

    @property
    def n_features(self) -> int:
        return self.frame.shape[1]

    @property
    def tile(self) -> int:
        """Components of one program."""
        return _tile_of(self.n_components)

    @cached_property
    def stored(self) -> bool:
        """Whether features are stored: values and their squares, for several tiles of components."""
        of_squares, several = len(self.units) == 2 * self.n_features, self.n_components > self.tile
        return of_squares and several and _shared_memory(self.halves.device) >= MEMORY_OF_STORED

    @property
    def tiles(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Sizes for scores and for sums."""
        if self.n_components <= self.tile:
            return TILES[self.tile]
        return STORED if self.stored else SEVERAL

    @property
    def n_values(self) -> int:
        """Numbers of a row, in single precision or as two halves."""
        return self.pairs.shape[1] if self.stored else self.n_features + 2

    @property
    def n_padded(self) -> int:
        """Number of components, padded to whole tiles."""
        return self.halves.shape[1]

    @staticmethod
    def of(
        weights: Tensor,
        bias: Tensor,
        centre: Tensor,
        radii: Tensor,
        all_pairs: bool,
        device: torch.device,
    ) -> SplitCoefficients:
        """Split coefficients for rows within radii of a centre.

        Parameters
        ----------
        weights : Tensor of shape (K, P)
            Of the values themselves, then of their products.
        bias : Tensor of shape (K,)
        centre : Tensor of shape (D,)
        radii : Tensor of shape (D,)
        all_pairs : bool
            Whether products are of all pairs i <= j, and not squares alone.
        device : torch.device
            That of the rows; the other arguments are on any one device, in double precision.
        """
        (n_components, n_columns), size = weights.shape, len(centre)
        k, q = padded_sizes(n_components, n_columns)
        exponents = torch.frexp(radii).exponent.clamp_min(-100)  # scales fit single precision
        scale = torch.ldexp(torch.full_like(radii, LARGEST), -exponents)
        first, second = pairs_of(size, all_pairs, n_columns, weights.device)
        of_values = torch.nn.functional.pad(scale, (0, 1), value=LARGEST)
        units = of_values[first] * of_values[second]
        scaled = weights.new_zeros(k, q)
        scaled[:n_components, :n_columns] = weights * (SCORE_UNIT / units)
        high = scaled.half()
        padded = bias.new_full((k,), -torch.inf)
        padded[:n_components] = bias
        rounded = padded.float()
        shift = centre * scale
        rounded_shift = shift.float()
        parts = (
            torch.stack((high, (scaled - high).half())),
            torch.stack((rounded, (padded - rounded).nan_to_num(0.0).float())),  # of a component of weight zero: -inf
            torch.stack((scale.float(), rounded_shift, (shift - rounded_shift).float())),
        )
        return SplitCoefficients(pairs_of(size, all_pairs, q, device), *_moved(parts, device), units, n_components)

    def select(self, components: slice) -> SplitCoefficients:
        """The coefficients of some components."""
        n_components = components.stop - components.start
        if n_components == self.n_components:
            return self
        k, q = padded_sizes(n_components, len(self.units))
        weights = self.halves.new_zeros(2, k, q)
        weights[:, :n_components] = self.halves[:, components, :q]
        bias = torch.nn.functional.pad(self.bias[:, components], (0, k - n_components))
        bias[0, n_components:] = -torch.inf
        return SplitCoefficients(self.pairs[:, :q].contiguous(), weights, bias, self.frame, self.units, n_components)


@lru_cache(maxsize=64)
def pairs_of(size: int, all_pairs: bool, width: int, device: torch.device) -> Tensor:
    """Factors (2, width) of the features: values (times a constant), products, and zeros."""
    own = torch.arange(size)
    products = torch.triu_indices(size, size) if all_pairs else own.expand(2, -1)
    pairs = torch.cat((torch.stack((own, torch.full_like(own, size))), products), 1)
    return torch.nn.functional.pad(pairs, (0, width - pairs.shape[1]), value=size + 1).int().to(device)


def padded_sizes(n_components: int, n_columns: int) -> tuple[int, int]:
    """Numbers of components and features, padded to whole tiles."""
    tile = _tile_of(n_components)
    return -(-n_components // tile) * tile, -(-n_columns // TILES[tile][1][0]) * TILES[tile][1][0]


def _tile_of(n_components: int) -> int:
    return next((tile for tile in TILES if n_components <= tile), max(TILES))


def _moved(parts: tuple[Tensor, ...], device: torch.device) -> list[Tensor]:
    """Tensors on a device, in one copy."""
    if parts[0].device == device:
        return list(parts)
    flat = [torch.nn.functional.pad(part.flatten().view(torch.uint8), (0, -part.nbytes % 16)) for part in parts]
    whole, moved, start = torch.cat(flat).to(device), [], 0
    for part, padded in zip(parts, flat, strict=True):
        moved.append(whole[start : start + part.nbytes].view(part.dtype).view(part.shape))
        start += len(padded)
    return moved


@triton.jit(do_not_specialize=["n_rows", "n_features"])
def _columns(
    x, row_stride, n_rows, index, frame, n_features, z, stride, n_columns,
    INDEX: tl.constexpr, LARGEST: tl.constexpr, STORED: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """z (D + 2, n): scaled values, a constant, and zeros; with STORED (2, Q, n): values and squares in halves."""
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.program_id(1) * D + tl.arange(0, D)
    there, valid = d < n_features, n < n_rows
    inside = valid[:, None] & there[None, :]
    rows = (tl.load(index + n, mask=valid, other=0) if INDEX else n).to(tl.int64)
    values = tl.load(x + rows[:, None] * row_stride + d[None, :], mask=inside, other=0.0)
    scale = tl.load(frame + d, mask=there, other=0.0)
    shift = tl.load(frame + n_features + d, mask=there, other=0.0)
    rest = tl.load(frame + 2 * n_features + d, mask=there, other=0.0)
    values = values * scale[None, :] - shift[None, :] - rest[None, :]
    if STORED:
        values = tl.where(inside, values, 0.0)
        high, low = halves(values * LARGEST)
        square_high, square_low = halves(values * values)
        line = d[None, :]
        tl.store(z + line.to(tl.int64) * stride + n[:, None], high, mask=there[None, :])
        tl.store(z + (line + n_features).to(tl.int64) * stride + n[:, None], square_high, mask=there[None, :])
        line += n_columns
        tl.store(z + line.to(tl.int64) * stride + n[:, None], low, mask=there[None, :])
        tl.store(z + (line + n_features).to(tl.int64) * stride + n[:, None], square_low, mask=there[None, :])
    else:
        values = tl.where(inside, values, tl.where((d == n_features)[None, :], LARGEST, 0.0))
        tl.store(z + d[None, :].to(tl.int64) * stride + n[:, None], values, mask=(d < n_features + 2)[None, :])


@triton.jit
def _features(z, stride, n, pairs, n_columns, q, STORED: tl.constexpr):
    """Features (Q, n) in halves."""
    if STORED:
        high = tl.load(z + q.to(tl.int64)[:, None] * stride + n[None, :])
        low = tl.load(z + (q + n_columns).to(tl.int64)[:, None] * stride + n[None, :])
    else:
        first = tl.load(pairs + q).to(tl.int64) * stride
        second = tl.load(pairs + n_columns + q).to(tl.int64) * stride
        high, low = halves(tl.load(z + first[:, None] + n[None, :]) * tl.load(z + second[:, None] + n[None, :]))
    return high, low


@triton.jit
def split_dot(a_high, a_low, b_high, b_low, total):
    """total + a b (split-product).

    The sum starts from zero, since matrix units round the numbers that they add towards zero.
    """
    product = tl.dot(a_low, b_high)
    product = tl.dot(a_high, b_low, product)
    return total + tl.dot(a_high, b_high, product)


@triton.jit(do_not_specialize=["n_rows", "n_components", "n_blocks", "own_weight", "weight", "first_program"])
def _scores(
    z, stride, n_rows, pairs, weights, bias, n_components, n_blocks, n_all, n_columns, unit, out,
    class_of, labels, row_weights, own_weight, weight, partial, first_program,
    K: tl.constexpr, Q: tl.constexpr, ROWS: tl.constexpr, STORED: tl.constexpr,
    SIGNED: tl.constexpr, LABELS: tl.constexpr, WEIGHTS: tl.constexpr,
):  # fmt: skip
    """Scores (n, K); with SIGNED signed responsibilities in halves, and the sums of a program."""
    k = tl.program_id(0) * K + tl.arange(0, K)
    tile = tl.arange(0, ROWS)
    start = tl.program_id(1) * ROWS
    n = start + tile
    s = tl.zeros([K, ROWS], tl.float32)
    low = weights + n_all * n_columns
    for block in range(n_blocks):
        q = block * Q + tl.arange(0, Q)
        high_features, low_features = _features(z, stride, n, pairs, n_columns, q, STORED)
        places = k[:, None] * n_columns + q[None, :]
        s = split_dot(tl.load(weights + places), tl.load(low + places), high_features, low_features, s)
    s = tl.trans(s) * unit + tl.load(bias + k)[None, :] + tl.load(bias + n_all + k)[None, :]
    if SIGNED:
        valid = n < n_rows
        owner = tl.load(class_of + k, mask=k < n_components, other=-2) if LABELS else k
        share = tl.load(row_weights + n, mask=valid, other=0.0) if WEIGHTS else valid.to(tl.float32)
        value, signed, every = evaluate(
            s, share, labels, n, valid, owner, own_weight, weight, LABELS, LOWEST, TINY
        )  # fmt: skip
        width = n_all + 1 if LABELS else 1
        home = partial + (first_program + tl.program_id(1)).to(tl.int64) * width
        tl.store(home, tl.sum(value.to(tl.float64), 0))
        if LABELS:
            tl.store(home + 1 + k, tl.sum(every, 0).to(tl.float64))
        high, low_half = halves(signed)
        half = out.to(tl.pointer_type(tl.float16)) + start.to(tl.int64) * 2 * n_all
        half += 2 * n_all * tile[:, None] + k[None, :]
        tl.store(half, high)
        tl.store(half + n_all, low_half)
    else:
        tl.store(out + start.to(tl.int64) * n_all + (n_all * tile[:, None] + k[None, :]), s)


@triton.jit(do_not_specialize=["n_tiles", "n_outer"])
def _sums(
    z, stride, pairs, n_columns, signed, n_all, n_tiles, n_outer, sums,
    K: tl.constexpr, Q: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr, STORED: tl.constexpr,
):  # fmt: skip
    """Add sum_n A_nk phi_q of the rows of a program to its sums (Q, K), and sum_n A_nk to the line after them."""
    q = tl.program_id(0) * Q + tl.arange(0, Q)
    k = tl.program_id(1) * K + tl.arange(0, K)
    program = tl.program_id(2)
    home = sums + program.to(tl.int64) * n_all * (n_columns + 1)
    place = home + (q[:, None] * n_all + k[None, :])
    counts = home + n_columns * n_all + k
    counting = tl.program_id(0) == 0
    tile = tl.arange(0, ROWS)
    half = signed.to(tl.pointer_type(tl.float16))
    for outer in range(n_outer):
        total = tl.zeros([Q, K], tl.float32)
        count = tl.zeros([ROWS, K], tl.float32)
        begin = (program * n_outer + outer) * STEPS
        for step in range(begin, tl.minimum(begin + STEPS, n_tiles)):
            start = step * ROWS
            high_features, low_features = _features(z, stride, start + tile, pairs, n_columns, q, STORED)
            rows = half + start.to(tl.int64) * 2 * n_all + (2 * n_all * tile[:, None] + k[None, :])
            high, low = tl.load(rows), tl.load(rows + n_all)
            total = split_dot(high_features, low_features, high, low, total)
            if counting:
                count += high.to(tl.float32) + low.to(tl.float32)
        tl.store(place, tl.load(place) + total.to(tl.float64))
        if counting:
            tl.store(counts, tl.load(counts) + tl.sum(count, 0).to(tl.float64))


@lru_cache(maxsize=16)
def _shared_memory(device: torch.device) -> float:
    if device.type != "cuda":  # in Triton's interpreter
        return math.inf
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def _n_stages(device: torch.device) -> int:
    return 3 if _shared_memory(device) >= LARGE_MEMORY else 2


@lru_cache(maxsize=16)
def n_processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


@dataclass(frozen=True)
class _Chunks:
    """The buffers of chunks of rows, and the steps of a pass over one of them."""

    split: SplitCoefficients
    columns: Tensor  # (D + 2, n), or stored features (2 Q, n)
    scores: Tensor  # (n, K)

    @staticmethod
    def of(split: SplitCoefficients, n_rows: int, device: torch.device, memory: float = math.inf) -> _Chunks:
        """Buffers for equal parts of the rows, within a number of bytes."""
        n_blocks = -(-n_rows // ROW_MULTIPLE)
        most = max(1, min(n_blocks, memory // (4 * (split.n_values + split.n_padded)) // ROW_MULTIPLE))
        n_chunk = -(-n_blocks // -(-n_blocks // int(most))) * ROW_MULTIPLE
        if split.stored:
            columns = torch.zeros(2 * split.n_values, n_chunk, dtype=torch.float16, device=device)
        else:
            columns = torch.empty(split.n_values, n_chunk, dtype=torch.float32, device=device)
        return _Chunks(split, columns, torch.empty(n_chunk, split.n_padded, dtype=torch.float32, device=device))

    @property
    def n_rows(self) -> int:
        return len(self.scores)

    def fill(self, rows: Tensor, index: Tensor | None) -> int:
        """Write the columns of rows, and return their number."""
        n_rows, size, stored = len(rows) if index is None else len(index), self.split.n_features, self.split.stored
        width = max(4, min(32, triton.next_power_of_2(size + 2)))
        _columns[(triton.cdiv(n_rows, ROW_MULTIPLE), triton.cdiv(size + 2, width))](
            rows, rows.stride(0), n_rows, index, self.split.frame, size, self.columns, self.columns.stride(0),
            self.split.n_values, INDEX=index is not None, LARGEST=LARGEST, STORED=stored, D=width,
            ROWS=ROW_MULTIPLE, num_warps=4,
        )  # fmt: skip
        return n_rows

    def score(
        self, n_rows: int, targets=None, row_weights=None, factors=(0.0, 0.0), partial=None, first_program: int = 0
    ) -> int:
        """Write scores, or signed responsibilities if sums of programs are given; return the number of programs."""
        split, (n_columns, tile_rows, n_warps) = self.split, self.split.tiles[0]
        n_programs, n_components = triton.cdiv(n_rows, tile_rows), self.scores.shape[1]
        labels, class_of = (None, None) if targets is None else targets
        _scores[(n_components // split.tile, n_programs)](
            self.columns, self.columns.stride(0), n_rows, split.pairs, split.halves, split.bias, split.n_components,
            triton.cdiv(len(split.units), n_columns), n_components, split.pairs.shape[1], 1 / SCORE_UNIT, self.scores,
            class_of, labels, row_weights, *factors, partial, first_program,
            K=split.tile, Q=n_columns, ROWS=tile_rows, STORED=split.stored, SIGNED=partial is not None,
            LABELS=labels is not None, WEIGHTS=row_weights is not None, num_warps=n_warps,
            num_stages=_n_stages(self.scores.device),
        )  # fmt: skip
        return n_programs

    def add(self, n_rows: int, sums: Tensor) -> None:
        """Add the products of responsibilities and features, then counts, to the sums of programs (S, Q + 1, K)."""
        split, (n_columns, tile_rows, n_warps) = self.split, self.split.tiles[1]
        (n_programs, _, n_components), n_all = sums.shape, split.pairs.shape[1]
        n_steps, n_tiles = max(1, SUMMED // tile_rows), triton.cdiv(n_rows, tile_rows)
        _sums[(n_all // n_columns, n_components // split.tile, n_programs)](
            self.columns, self.columns.stride(0), split.pairs, n_all, self.scores, n_components, n_tiles,
            triton.cdiv(n_tiles, n_programs * n_steps), sums,
            K=split.tile, Q=n_columns, ROWS=tile_rows, STEPS=n_steps, STORED=split.stored,
            num_warps=n_warps, num_stages=_n_stages(self.scores.device),
        )  # fmt: skip


def scores_by_pairs(split: SplitCoefficients, rows: Tensor) -> Tensor:
    """Log joints (K, n) of float32 rows; those of a row lie side by side in memory."""
    chunk = _Chunks.of(split, len(rows), rows.device)
    chunk.score(chunk.fill(rows, None))
    return chunk.scores[: len(rows), : split.n_components].T


def posteriors_by_pairs(split: SplitCoefficients, rows: Tensor, out: Tensor, memory: int) -> None:
    """Write the posteriors of float32 rows to `out` (n, K), whose rows are contiguous, within a number of bytes."""
    chunk = _Chunks.of(split, len(rows), rows.device, memory)
    for start in range(0, len(rows), chunk.n_rows):
        part = slice(start, start + chunk.n_rows)
        n_rows = chunk.fill(rows[part], None)
        chunk.score(n_rows)
        scores = chunk.scores[:n_rows, : split.n_components]
        responsibilities(scores.T, None, None, (0.0, 1.0), out[part].T)


def pass_by_pairs(
    split: SplitCoefficients,
    rows: Tensor,
    index: Tensor | None,
    targets: tuple[Tensor, Tensor] | None,
    row_weights: Tensor | None,
    log_sums: tuple[float, float],
    memory: int,
) -> Totals:
    """A whole pass over float32 rows.

    Parameters
    ----------
    split : SplitCoefficients
    rows : Tensor of shape (N, D)
        Rows in float32, with contiguous features.
    index : Tensor of shape (n,) or None
        Indices of the rows to use; None for all.
    targets : tuple of Tensor or None
        Labels (N,), -1 for unlabeled, and the class of each component (K,); None without labels.
    row_weights : Tensor of shape (N,) or None
    log_sums : tuple of float
        Factors of log p(x, c) and of log p(x) in the objective.
    memory : int
        Bytes of temporary arrays.

    Returns
    -------
    totals : Totals
    """
    n_rows = len(rows) if index is None else len(index)
    (k, q), tile = split.halves.shape[1:], split.tile
    n_programs = max(1, 2 * n_processors(rows.device) // (k // tile * (q // split.tiles[1][0])))
    sums = torch.zeros(max(1, min(n_programs, n_rows // SUMMED)), q + 1, k, dtype=torch.float64, device=rows.device)
    chunk = _Chunks.of(split, n_rows, rows.device, memory - sums.nbytes)
    own, every, unit = scaled_factors(log_sums if targets is not None else (0.0, sum(log_sums)))
    row_weights, largest = scaled_weights(row_weights)
    in_one = k == tile  # all components of a row in one program
    n_parts = triton.cdiv(n_rows, split.tiles[0][1])
    partial = torch.zeros(n_parts, 1 if targets is None else k + 1, dtype=torch.float64, device=rows.device)
    if targets is not None and not in_one:
        targets = targets[0], torch.nn.functional.pad(targets[1], (0, k - split.n_components), value=-2)
    done = 0
    for start in range(0, n_rows, chunk.n_rows):
        part = slice(start, min(start + chunk.n_rows, n_rows))
        places = None if index is None else index[part]
        here = part if places is None else places
        n_part = chunk.fill(rows[part] if places is None else rows, places)
        known = None if targets is None else (targets[0][here], targets[1])
        weights = None if row_weights is None else row_weights[here]
        if in_one:
            done += chunk.score(n_part, known, weights, (own, every), partial, done)
        else:
            chunk.score(n_part)
            values, counts = responsibilities(chunk.scores[:n_part].T, known, weights, (own, every), in_halves=True)
            partial[0, 0] += values.sum(dtype=torch.float64)
            if known is not None:
                partial[0, 1:] += counts
            chunk.scores[n_part:].zero_()  # of an incomplete tile
        chunk.add(n_part, sums)
    return Totals(split, torch.cat((sums.sum(0).flatten(), partial.sum(0))), unit, largest)


def scaled_factors(log_sums: tuple[float, float]) -> tuple[float, float, float]:
    """The factors of the two log sums so that signed responsibilities fill half precision, and their unit."""
    own, every = log_sums
    unit = RESPONSIBILITY_UNIT / 2.0 ** math.ceil(math.log2(max(abs(own) + abs(every), 1e-30)))
    return unit * own, unit * every, unit


def scaled_weights(row_weights: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Weights of rows divided by the largest, and this."""
    if row_weights is None:
        return None, None
    largest = row_weights.amax().double().clamp_min(torch.finfo(torch.float64).tiny)
    return (row_weights / largest).float(), largest


@dataclass(frozen=True)
class Totals:
    """The sums of a pass on a device: of the features (Q, K), counts, the value, and with labels other counts (K,)."""

    split: SplitCoefficients
    packed: Tensor
    unit: float  # of signed responsibilities
    largest: Tensor | None  # the unit of the weights of rows

    def read(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Value (), counts (K,), sums of the features (K, P), counts of the denominator (K,), where the mixture is."""
        split, (_, k, q) = self.split, self.split.halves.shape
        packed = (self.packed if self.largest is None else self.packed * self.largest).to(split.units.device)
        sums = packed[: k * q].view(q, k)[: len(split.units), : split.n_components].T / (self.unit * split.units)
        counts, (value, *_), denominators = packed[k * q :].split([k, 1, len(packed) - k * (q + 1) - 1])
        denominators = denominators[: split.n_components]
        if not len(denominators):
            denominators = packed.new_zeros(split.n_components)
        return value / self.unit, counts[: split.n_components] / self.unit, sums, denominators
