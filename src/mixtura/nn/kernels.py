"""What small heads do in training on a GPU, in few launches: kernels for Triton, which torch brings along there.

They compute what logits.py does with operations of torch, and its derivatives. They are for batches: most programs go
through all rows, so that batch normalisation, whose statistics need them all, is part of what comes before or after.
Matrix products are in single precision, not in that of tensor cores.
"""
# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportIndexIssue=false

from __future__ import annotations

import inspect
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixtura.nn.logits import KL_SHIFT, KL_SLOPE, KL_STEEPNESS, LARGEST_LOG_ALPHA, LARGEST_LOG_VARIANCE, TINY, Monomials

ROWS, ENTRIES = 128, 1024  # of a block


def kernel(function: Any) -> Any:
    """A kernel that is compiled once for all sizes, whatever they are divisible by."""
    sizes = [name for name, part in inspect.signature(function).parameters.items() if part.annotation is part.empty]
    return triton.jit(function, do_not_specialize=sizes, do_not_specialize_on_alignment=sizes)


def launch(function: Any, grid: tuple[int, int, int], values: tuple[Any, ...], constants: tuple[Any, ...]) -> None:
    """function[grid](*values, *constants), the first of the values being the only one that may be of several types.

    With a version of Triton whose compiled kernels are known, these are called without what it does to find them: that
    takes several times as long, and half of what a head adds to a step.
    """
    key = function.__name__, constants, values[0].dtype, values[0].get_device()
    found = COMPILED.get(key)
    if found is None:
        found = function[grid](*values, *constants)
        if DIRECT and found is not None:
            COMPILED[key] = found
        return
    stream = torch._C._cuda_getCurrentRawStream(key[-1])
    found.run(*grid, stream, found.function, found.packed_metadata, None, None, None, *values, *constants)


COMPILED: dict[Any, Any] = {}
DIRECT = triton.__version__.startswith("3.6.")


def _blocks(size: int, of_block: int) -> int:
    """triton.cdiv, which takes as long as an allocation."""
    return -(-size // of_block)


def _power_of_two(size: int) -> int:
    """The first that is not smaller."""
    return 1 << max(size - 1, 0).bit_length()


@kernel
def normalise_kernel(
    rows, scale, shift, running_mean, running_var, x, deviation, n_rows, n_features, width, rate, eps,
    SQUARES: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Rows (n, D) as batch normalisation has them, into x with this width, squares behind them."""
    columns = tl.program_id(0) * D + tl.arange(0, D)
    inside = columns < n_features
    total = tl.zeros((D,), tl.float32)
    for start in range(0, n_rows, N):
        places = start + tl.arange(0, N)
        mask = (places < n_rows)[:, None] & inside[None, :]
        values = tl.load(rows + places[:, None] * n_features + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(values, 0)
    mean = total / n_rows
    total = tl.zeros((D,), tl.float32)
    for start in range(0, n_rows, N):
        places = start + tl.arange(0, N)
        mask = (places < n_rows)[:, None] & inside[None, :]
        values = tl.load(rows + places[:, None] * n_features + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        values = tl.where(mask, values - mean[None, :], 0.0)
        total += tl.sum(values * values, 0)
    inverse = 1.0 / tl.sqrt(total / n_rows + eps)
    tl.store(deviation + columns, inverse, mask=inside)
    known = tl.load(running_mean + columns, mask=inside)
    tl.store(running_mean + columns, known + rate * (mean - known), mask=inside)
    known = tl.load(running_var + columns, mask=inside)
    tl.store(running_var + columns, known + rate * (total / (n_rows - 1) - known), mask=inside)
    factor = inverse * tl.load(scale + columns, mask=inside)
    offset = tl.load(shift + columns, mask=inside)
    for start in range(0, n_rows, N):
        places = start + tl.arange(0, N)
        mask = (places < n_rows)[:, None] & inside[None, :]
        values = tl.load(rows + places[:, None] * n_features + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        values = (values - mean[None, :]) * factor[None, :] + offset[None, :]
        target = x + places[:, None] * width + columns[None, :]
        tl.store(target, values, mask=mask)
        if SQUARES:
            tl.store(target + n_features, values * values, mask=mask)


@kernel
def expand_kernel(x, pairs, phi, n_entries, n_features, n_monomials, B: tl.constexpr):
    """phi (n, P): the features x (n, D), then the products of these pairs (2, P - D)."""
    entries = tl.program_id(0) * B + tl.arange(0, B)
    inside = entries < n_entries
    row = entries // n_monomials
    column = entries % n_monomials
    product = inside & (column >= n_features)
    first = tl.load(pairs + column - n_features, mask=product, other=0)
    second = tl.load(pairs + n_monomials - 2 * n_features + column, mask=product, other=0)
    first = tl.where(product, first, column)
    values = tl.load(x + row * n_features + first, mask=inside, other=0.0)
    factors = tl.load(x + row * n_features + second, mask=product, other=1.0)
    tl.store(phi + entries, values * factors, mask=inside)


@kernel
def weights_kernel(
    grad, factors, products, values, ratios, log_variances, to_weight, to_bias, to_log_variances, n_rows, n_lines,
    n_columns, stride, width, LARGEST: tl.constexpr, NOISY: tl.constexpr, GROUP: tl.constexpr, FACTORS: tl.constexpr,
    BIAS: tl.constexpr, N: tl.constexpr, L: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """products[n, l] = grad[n, l // GROUP] factors[n, l], their products with values (n, P), and their sums.

    Where weights are noisy, also the derivative by log variances.
    """
    lines = tl.program_id(0) * L + tl.arange(0, L)
    columns = tl.program_id(1) * P + tl.arange(0, P)
    used = lines < n_lines
    inside = columns < n_columns
    found = tl.zeros((L, P), tl.float32)
    doubled = tl.zeros((L, P), tl.float32)  # twice the derivative by variances
    total = tl.zeros((L,), tl.float32)
    for start in range(0, n_rows, N):
        places = start + tl.arange(0, N)
        mask = (places < n_rows)[:, None] & used[None, :]
        left = tl.load(grad + places[:, None] * stride + (lines // GROUP)[None, :], mask=mask, other=0.0)
        if FACTORS:
            left *= tl.load(factors + places[:, None] * n_lines + lines[None, :], mask=mask, other=0.0)
            once = mask & (tl.program_id(1) == 0)
            tl.store(products + places[:, None] * n_lines + lines[None, :], left, mask=once)
        noisy = left
        if NOISY:
            noisy = left * tl.load(ratios + places[:, None] * n_lines + lines[None, :], mask=mask, other=0.0)
        mask = (places < n_rows)[:, None] & inside[None, :]
        right = tl.load(values + places[:, None] * width + columns[None, :], mask=mask, other=0.0)
        found += tl.dot(tl.trans(left), right, input_precision="ieee")
        if NOISY:
            doubled += tl.dot(tl.trans(noisy), right * right, input_precision="ieee")
        total += tl.sum(left, 0)
    target = lines[:, None] * n_columns + columns[None, :]
    tl.store(to_weight + target, found, mask=used[:, None] & inside[None, :])
    if NOISY:
        logs = tl.load(log_variances + target, mask=used[:, None] & inside[None, :], other=0.0)
        slopes = tl.where(logs < LARGEST, 0.5 * doubled * tl.exp(tl.minimum(logs, LARGEST)), 0.0)
        tl.store(to_log_variances + target, slopes, mask=used[:, None] & inside[None, :])
    if BIAS:
        tl.store(to_bias + lines, total, mask=used & (tl.program_id(1) == 0))


@triton.jit
def unframe(
    to_x, x, scale, shift, deviation, to_rows, n_rows, n_features, width, columns, inside, N: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    """Batch normalisation backward, for these columns."""
    factor = tl.load(scale + columns, mask=inside, other=1.0)
    offset = tl.load(shift + columns, mask=inside, other=0.0)
    total = tl.zeros((D,), tl.float32)
    along = tl.zeros((D,), tl.float32)
    for start in range(0, n_rows, N):
        places = start + tl.arange(0, N)
        mask = (places < n_rows)[:, None] & inside[None, :]
        values = tl.load(x + places[:, None] * width + columns[None, :], mask=mask, other=0.0)
        found = tl.load(to_x + places[:, None] * n_features + columns[None, :], mask=mask, other=0.0)
        total += tl.sum(found, 0)
        along += tl.sum(found * (values - offset[None, :]), 0)
    total = total / n_rows
    along = along / n_rows / (factor * factor)
    inverse = tl.load(deviation + columns, mask=inside, other=0.0) * factor
    for start in range(0, n_rows, N):
        places = start + tl.arange(0, N)
        mask = (places < n_rows)[:, None] & inside[None, :]
        values = tl.load(x + places[:, None] * width + columns[None, :], mask=mask, other=0.0)
        found = tl.load(to_x + places[:, None] * n_features + columns[None, :], mask=mask, other=0.0)
        found = (found - total[None, :] - (values - offset[None, :]) * along[None, :]) * inverse[None, :]
        target = to_rows + places[:, None] * n_features + columns[None, :]
        tl.store(target, found.to(to_rows.dtype.element_ty), mask=mask)


@triton.jit
def slopes(left, noisy, weight, log_variances, place, mask, phi, LARGEST: tl.constexpr, NOISY: tl.constexpr):
    """Derivatives by monomials phi from those by scores, and by scores times the ratios of their noise."""
    found = tl.dot(left, tl.load(weight + place, mask=mask, other=0.0), input_precision="ieee")
    if NOISY:
        logs = tl.load(log_variances + place, mask=mask, other=0.0)
        found += phi * tl.dot(noisy, tl.exp(tl.minimum(logs, LARGEST)), input_precision="ieee")
    return found


@kernel
def rows_kernel(
    to_rows, grad, weight, to_projected, projection, ratios, log_variances, x, scale, shift, deviation, to_x, n_rows,
    n_features, n_monomials, n_components, n_lines, width, per_program, LARGEST: tl.constexpr, NOISY: tl.constexpr,
    SQUARES: tl.constexpr, WHOLE: tl.constexpr, N: tl.constexpr,
    D: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """The derivative by normalised rows (n, D) from those by scores (n, K) and by projections (n, K R).

    If the program has all rows, that by raw rows.
    """
    columns = tl.program_id(0) * D + tl.arange(0, D)
    inside = columns < n_features
    begin = tl.program_id(1) * per_program
    for start in range(begin, tl.minimum(begin + per_program, n_rows), N):
        places = start + tl.arange(0, N)
        present = places < n_rows
        mask = present[:, None] & inside[None, :]
        values = tl.load(x + places[:, None] * width + columns[None, :], mask=mask, other=0.0)
        found = tl.zeros((N, D), tl.float32)
        for first in range(0, n_components, K):
            components = first + tl.arange(0, K)
            used = components < n_components
            source = places[:, None] * n_components + components[None, :]
            left = tl.load(grad + source, mask=present[:, None] & used[None, :], other=0.0)
            noisy = left
            if NOISY:
                noisy = left * tl.load(ratios + source, mask=present[:, None] & used[None, :], other=0.0)
            source = components[:, None] * n_monomials
            both = used[:, None] & inside[None, :]
            place = source + columns[None, :]
            found += slopes(left, noisy, weight, log_variances, place, both, values, LARGEST, NOISY)
            if SQUARES:
                place += n_features
                found += (2.0 * values) * slopes(
                    left, noisy, weight, log_variances, place, both, values * values, LARGEST, NOISY
                )
            else:
                for other in range(0, n_features):
                    low = tl.minimum(columns, other)
                    high = tl.maximum(columns, other)
                    place = source + (n_features + low * n_features - low * (low - 1) // 2 + high - low)[None, :]
                    others = tl.load(x + places * width + other, mask=present, other=0.0)[:, None]
                    times = others * tl.where(columns == other, 2.0, 1.0)[None, :]
                    found += times * slopes(
                        left, noisy, weight, log_variances, place, both, values * others, LARGEST, NOISY
                    )
        for first in range(0, n_lines, K):
            lines = first + tl.arange(0, K)
            used = lines < n_lines
            left = tl.load(
                to_projected + places[:, None] * n_lines + lines[None, :],
                mask=present[:, None] & used[None, :],
                other=0.0,
            )
            right = tl.load(
                projection + lines[:, None] * n_features + columns[None, :],
                mask=used[:, None] & inside[None, :],
                other=0.0,
            )
            found += tl.dot(left, right, input_precision="ieee")
        tl.store(to_x + places[:, None] * n_features + columns[None, :], found, mask=mask)
    if WHOLE:
        tl.debug_barrier()
        unframe(to_x, x, scale, shift, deviation, to_rows, n_rows, n_features, width, columns, inside, N, D)


@kernel
def unframe_kernel(
    to_rows, to_x, x, scale, shift, deviation, n_rows, n_features, width, N: tl.constexpr, D: tl.constexpr
):
    """The derivative by raw rows (n, D) from that by normalised ones."""
    columns = tl.program_id(0) * D + tl.arange(0, D)
    inside = columns < n_features
    unframe(to_x, x, scale, shift, deviation, to_rows, n_rows, n_features, width, columns, inside, N, D)


@kernel
def score_kernel(
    phi, weight, bias, projection, log_variances, noise, logits, shares, projected, ratios, n_rows, n_features,
    n_monomials, n_classes, n_components, TINY: tl.constexpr, LARGEST: tl.constexpr, NOISY: tl.constexpr,
    MEMBERS: tl.constexpr, M: tl.constexpr, RANK: tl.constexpr, R: tl.constexpr, C: tl.constexpr, N: tl.constexpr,
    P: tl.constexpr,
):  # fmt: skip
    """(head-logits) of a block of rows and classes, the shares of members in them, and projections."""
    places = tl.program_id(0) * N + tl.arange(0, N)
    present = places < n_rows
    columns = tl.arange(0, C * M)
    owner = tl.program_id(1) * C + columns // M
    member = columns % M
    valid = (owner < n_classes) & (member < MEMBERS)
    component = owner * MEMBERS + member
    scores = tl.zeros((N, C * M), tl.float32)
    spread = tl.zeros((N, C * M), tl.float32)
    for start in range(0, n_monomials, P):
        inner = start + tl.arange(0, P)
        mask = present[:, None] & (inner < n_monomials)[None, :]
        values = tl.load(phi + places[:, None] * n_monomials + inner[None, :], mask=mask, other=0.0)
        place = component[None, :] * n_monomials + inner[:, None]
        mask = (inner < n_monomials)[:, None] & valid[None, :]
        scores += tl.dot(values, tl.load(weight + place, mask=mask, other=0.0), input_precision="ieee")
        if NOISY:
            logs = tl.load(log_variances + place, mask=mask, other=0.0)
            spread += tl.dot(values * values, tl.exp(tl.minimum(logs, LARGEST)), input_precision="ieee")
    scores += tl.load(bias + component, mask=valid, other=0.0)[None, :]
    if NOISY:  # (local-reparametrisation)
        scales = tl.sqrt(spread + TINY)
        source = places[:, None] * n_components + component[None, :]
        drawn = tl.load(noise + source, mask=present[:, None] & valid[None, :], other=0.0)
        scores += scales * drawn
        tl.store(ratios + source, drawn / scales, mask=present[:, None] & valid[None, :])
    if RANK > 0:
        wide = tl.arange(0, C * M * R)
        owner_of = tl.program_id(1) * C + wide // R // M
        member_of = wide // R % M
        used = (owner_of < n_classes) & (member_of < MEMBERS) & (wide % R < RANK)
        line = (owner_of * MEMBERS + member_of) * RANK + wide % R
        lengths = tl.zeros((N, C * M * R), tl.float32)
        for start in range(0, n_features, 16):  # more would not fit into the fast memory of small GPUs
            inner = start + tl.arange(0, 16)
            mask = present[:, None] & (inner < n_features)[None, :]
            values = tl.load(phi + places[:, None] * n_monomials + inner[None, :], mask=mask, other=0.0)
            mask = (inner < n_features)[:, None] & used[None, :]
            weights = tl.load(projection + line[None, :] * n_features + inner[:, None], mask=mask, other=0.0)
            lengths += tl.dot(values, weights, input_precision="ieee")
        target = projected + places[:, None] * (n_components * RANK) + line[None, :]
        tl.store(target, lengths, mask=present[:, None] & used[None, :])
        scores += 0.5 * tl.sum(tl.reshape(lengths * lengths, (N, C * M, R)), 2)
    if MEMBERS == 1:
        target = logits + places[:, None] * n_classes + component[None, :]
        tl.store(target, scores, mask=present[:, None] & valid[None, :])
    else:
        absent = (owner < n_classes) & (member >= MEMBERS)
        grouped = tl.reshape(tl.where(absent[None, :], float("-inf"), scores), (N, C, M))
        top = tl.max(grouped, 2)
        found = top + tl.log(tl.sum(tl.exp(grouped - top[:, :, None]), 2))
        classes = tl.program_id(1) * C + tl.arange(0, C)
        target = logits + places[:, None] * n_classes + classes[None, :]
        tl.store(target, found, mask=present[:, None] & (classes < n_classes)[None, :])
        parts = tl.reshape(tl.exp(grouped - found[:, :, None]), (N, C * M))
        target = shares + places[:, None] * n_components + component[None, :]
        tl.store(target, parts, mask=present[:, None] & valid[None, :])


def logits_of(
    phi: Tensor, weight: Tensor, bias: Tensor, projection: Tensor | None, log_variances: Tensor | None,
    n_features: int, n_members: int,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """(head-logits) (n, C) of monomials (n, P), shares (n, C, M) of the members, projections (n, K R).

    With log variances of weights also the ratios (n, K) of noise to its scale.
    """
    n_rows, n_components = len(phi), len(weight)
    n_classes = n_components // n_members
    rank = 0 if projection is None else len(projection) // n_components
    logits = phi.new_empty(n_rows, n_classes)
    shares = phi.new_empty(n_rows, n_classes, n_members) if n_members > 1 else None
    projected = None if projection is None else phi.new_empty(n_rows, len(projection))
    noise = None if log_variances is None else torch.randn(n_rows, n_components, device=phi.device)
    ratios = None if noise is None else torch.empty_like(noise)
    members = _power_of_two(n_members)
    classes = 16 // members  # a block has 16 columns
    values = (
        phi, weight, bias, bias if projection is None else projection, bias if log_variances is None else log_variances,
        bias if noise is None else noise, logits, logits if shares is None else shares,
        logits if projected is None else projected, logits if ratios is None else ratios, n_rows, n_features,
        phi.shape[1], n_classes, n_components,
    )  # fmt: skip
    sizes = (n_members, members, rank, _power_of_two(rank), classes, 16, 64)
    blocks = _blocks(n_rows, 16), _blocks(n_classes, classes), 1
    launch(score_kernel, blocks, values, (TINY, LARGEST_LOG_VARIANCE, noise is not None, *sizes))
    return logits, shares, projected, ratios


def expanded(monomials: Monomials, rows: Tensor, frame: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised rows, phi (n, P) and the inverse deviations (D,) of raw rows (n, D)."""
    n_rows, n_features = rows.shape
    scale, shift, running_mean, running_var, _, rate, eps = frame
    n_monomials, full = monomials.n_monomials, monomials.quadratic == "full"
    phi = torch.empty(n_rows, n_monomials, device=rows.device)
    deviation = torch.empty_like(scale)
    x = torch.empty(n_rows, n_features, device=rows.device) if full else phi
    n_columns = 4 if full else 16
    numbers = n_rows, n_features, x.shape[1], float(rate), float(eps)
    values = rows, scale, shift, running_mean, running_var, x, deviation, *numbers
    launch(normalise_kernel, (_blocks(n_features, n_columns), 1, 1), values, (not full, ROWS, n_columns))
    if full:
        n_entries = phi.numel()
        values = x, monomials.pairs, phi, n_entries, n_features, n_monomials
        launch(expand_kernel, (_blocks(n_entries, ENTRIES), 1, 1), values, (ENTRIES,))
    return x, phi, deviation


def weights_back(
    grad: Tensor, factors: Tensor | None, values: Tensor, n_columns: int, group: int, bias: bool = False,
    ratios: Tensor | None = None, log_variances: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Products (n, L) of grad (n, L / group) and factors, theirs with values (n, P), (L, P), and their sums (L,).

    They are the derivatives by scores, weights and biases; with ratios and log variances, also by these.
    """
    n_rows, n_lines = len(values), grad.shape[1] * group
    products = grad if factors is None else grad.new_empty(n_rows, n_lines)
    to_weight = grad.new_empty(n_lines, n_columns)
    to_bias = grad.new_empty(n_lines) if bias else grad
    to_log_variances = None if ratios is None else torch.empty_like(to_weight)
    numbers = (
        grad, grad if factors is None else factors, products, values, grad if ratios is None else ratios,
        grad if log_variances is None else log_variances, to_weight, to_bias,
        grad if to_log_variances is None else to_log_variances, n_rows, n_lines, n_columns, grad.stride(0),
        values.shape[1],
    )  # fmt: skip
    switches = (LARGEST_LOG_VARIANCE, ratios is not None, group, factors is not None, bias)
    launch(weights_kernel, (_blocks(n_lines, 16), _blocks(n_columns, 64), 1), numbers, (*switches, 32, 16, 64))
    return products, to_weight, to_bias, to_log_variances


def rows_back(
    monomials: Monomials, grad: Tensor, weight: Tensor, to_projected: Tensor | None, projection: Tensor | None,
    ratios: Tensor | None, log_variances: Tensor | None, x: Tensor, frame: tuple[Any, ...], deviation: Tensor,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """The derivative by raw rows (n, D) from those by scores (n, K) and by projections (n, K R)."""
    n_features, n_components, squares = monomials.n_features, len(weight), monomials.quadratic != "full"
    to_x = x.new_empty(len(x), n_features)
    to_rows = to_x if dtype == torch.float32 else x.new_empty(len(x), n_features, dtype=dtype)
    # Many pairs are shared out among programs by rows; then batch normalisation, which needs them all, comes after.
    whole, n_rows, columns = squares or n_features <= 16, len(x), _blocks(n_features, 16)
    block = 64 if whole else 16
    blocks = 1 if whole else _blocks(n_rows, block)
    frames = frame[0], frame[1], deviation
    values = (
        to_rows, grad, weight, grad if to_projected is None else to_projected,
        weight if projection is None else projection, grad if ratios is None else ratios,
        weight if log_variances is None else log_variances, x, *frames, to_x, n_rows, n_features, monomials.n_monomials,
        n_components, 0 if projection is None else len(projection), x.shape[1], n_rows if whole else block,
    )  # fmt: skip
    sizes = (block, 16, 16 if n_components <= 16 else 32)
    switches = (LARGEST_LOG_VARIANCE, ratios is not None, squares, whole)
    launch(rows_kernel, (columns, blocks, 1), values, (*switches, *sizes))
    if not whole:
        values = to_rows, to_x, x, *frames, n_rows, n_features, x.shape[1]
        launch(unframe_kernel, (columns, 1, 1), values, (ROWS, 16))
    return to_rows


@kernel
def divergence_kernel(
    weight, log_variance, value, to_weight, to_log_variance, n_entries,
    TINY: tl.constexpr, LARGEST: tl.constexpr, SLOPE: tl.constexpr, SHIFT: tl.constexpr, STEEPNESS: tl.constexpr,
    B: tl.constexpr,
):  # fmt: skip
    """(dropout-kl) of a block of weights, and its derivatives."""
    entries = tl.program_id(0) * B + tl.arange(0, B)
    inside = entries < n_entries
    w = tl.load(weight + entries, mask=inside, other=1.0)
    square = w * w + TINY
    raw = tl.log(square) - tl.load(log_variance + entries, mask=inside, other=0.0)
    z = tl.minimum(tl.maximum(raw, -LARGEST), LARGEST)
    missing = 1.0 / (1.0 + tl.exp(SHIFT - STEEPNESS * z))
    found = 0.5 * tl.log(1.0 + tl.exp(z)) + SLOPE * missing
    tl.store(value + tl.program_id(0), tl.sum(tl.where(inside, found, 0.0), 0))
    slope = 0.5 / (1.0 + tl.exp(-z)) + SLOPE * STEEPNESS * missing * (1.0 - missing)
    slope = tl.where(raw == z, slope, 0.0)
    tl.store(to_weight + entries, 2.0 * slope * w / square, mask=inside)
    tl.store(to_log_variance + entries, -slope, mask=inside)


def divergence(weight: Tensor, log_variances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(dropout-kl) and its derivatives by weights and log variances."""
    n_entries = weight.numel()
    n_blocks = _blocks(n_entries, ENTRIES)
    values = torch.empty(n_blocks, device=weight.device)
    to_weight, to_log_variances = torch.empty_like(weight), torch.empty_like(weight)
    constants = TINY, LARGEST_LOG_ALPHA, KL_SLOPE, KL_SHIFT, KL_STEEPNESS, ENTRIES
    pointers = weight, log_variances, values, to_weight, to_log_variances
    launch(divergence_kernel, (n_blocks, 1, 1), (*pointers, n_entries), constants)
    return values.sum(), to_weight, to_log_variances
