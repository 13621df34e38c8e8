"""Fused Triton kernels: steps of a pass in one launch each, for rows on a GPU.

`gpu.kernels_for` imports this module where Triton is installed; every function has a counterpart in plain torch.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportOperatorIssue=false

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

# The largest number of components of which one program holds all scores of a row.
MOST_COMPONENTS = 4096
# The largest padded sizes for which `squares_pass` keeps all coefficients and sums in registers.
MOST_SQUARES = (64, 32)  # components, features

# Kernels are specialised for strides, not sizes: they are recompiled for other strides only.

TILE = 64  # rows of one step of `squares_pass`
TILES = 16  # steps in single precision before the sums are added to those in double precision


@triton.jit
def _log_sums(s, LOWEST: tl.constexpr, TINY: tl.constexpr):
    """log sum_k exp s_nk (n,) and the posteriors (n, K)."""
    largest = tl.maximum(tl.max(s, 1), LOWEST)
    powers = tl.exp(s - largest[:, None])
    totals = tl.sum(powers, 1)
    logs = tl.log(tl.where(totals > 0, totals, 1.0))
    return tl.where(totals > 0, largest + logs, -float("inf")), powers * (1.0 / tl.maximum(totals, TINY))[:, None]


@triton.jit(do_not_specialize=["n_rows", "n_components", "n_steps", "own_weight", "own_rest", "weight", "rest"])
def _responsibilities(
    scores, out, row_stride, component_stride, n_rows, n_components, n_steps, class_of, labels, row_weights,
    own_weight, own_rest, weight, rest, values, denominators,
    K: tl.constexpr, ROWS: tl.constexpr, LABELS: tl.constexpr, WEIGHTS: tl.constexpr, LOWEST: tl.constexpr,
    TINY: tl.constexpr,
):  # fmt: skip
    k = tl.arange(0, K)
    there = k < n_components
    owner = tl.load(class_of + k, mask=there, other=-2) if LABELS else k
    dtype = scores.dtype.element_ty
    one = tl.full([], 1.0, tl.float64)
    every_weight = one * weight + one * rest  # numbers reach a kernel in single precision
    own_factor = one * own_weight + one * own_rest
    count = tl.zeros([K], tl.float64)
    for step in range(n_steps):
        n = (tl.program_id(0) * n_steps + step) * ROWS + tl.arange(0, ROWS)
        valid = n < n_rows
        inside = valid[:, None] & there[None, :]
        places = n[:, None].to(tl.int64) * row_stride + k[None, :].to(tl.int64) * component_stride
        s = tl.load(scores + places, mask=inside, other=-float("inf"))
        s = tl.where(valid[:, None], s, 0.0)  # beyond the last row: any finite number
        log_sums, every = _log_sums(s, LOWEST, TINY)
        value = every_weight.to(dtype) * log_sums
        signed = every_weight.to(dtype) * every
        share = tl.load(row_weights + n, mask=valid, other=0.0).to(dtype) if WEIGHTS else valid.to(dtype)
        if LABELS:
            label = tl.load(labels + n, mask=valid, other=-1)
            own = (label < 0)[:, None] | (label[:, None] == owner[None, :])
            own_sums, own_shares = _log_sums(tl.where(own, s, -float("inf")), LOWEST, TINY)
            value += own_factor.to(dtype) * own_sums
            signed += own_factor.to(dtype) * own_shares
            count += tl.sum(tl.where(inside, every * share[:, None], 0.0).to(tl.float64), 0)
        tl.store(out + places, signed * share[:, None] if WEIGHTS else signed, mask=inside)
        tl.store(values + n, tl.where(share != 0, value, 0.0) * share if WEIGHTS else value, mask=valid)
    if LABELS:
        tl.atomic_add(denominators + k, count, mask=there)


def posteriors(log_joint: Tensor) -> tuple[Tensor, Tensor]:
    """log sum_k exp a_k (n,) and the posteriors over components, of log joints (K, n)."""
    shares = torch.empty_like(log_joint)  # with the same strides, unless there are gaps
    if shares.stride() != log_joint.stride():
        log_joint = log_joint.contiguous()
    return responsibilities(log_joint, None, None, (0.0, 1.0), shares)[0], shares


def responsibilities(
    log_joint: Tensor,
    targets: tuple[Tensor, Tensor] | None,
    row_weights: Tensor | None,
    log_sums: tuple[float, float],
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Weighted values and signed responsibilities of log joints, which they replace unless `out` is given.

    Parameters
    ----------
    log_joint : Tensor of shape (K, n)
    targets : tuple of Tensor or None
        Labels (n,), -1 for unlabeled, and the class of each component (K,); None without labels.
    row_weights : Tensor of shape (n,) or None
    log_sums : tuple of float
        Factors of log p(x, c) and of log p(x) in the objective.
    out : Tensor of shape (K, n), optional
        With the strides of the log joints.

    Returns
    -------
    values : Tensor of shape (n,)
        Objective of each row times its weight.
    denominators : Tensor of shape (K,)
        Weighted sums of the posteriors over all components; zero without targets.
    """
    n_components, n_rows = log_joint.shape
    out = log_joint if out is None else out
    values = log_joint.new_empty(n_rows)
    labels, class_of = (None, None) if targets is None else targets
    denominators = torch.zeros(n_components if labels is not None else 0, dtype=torch.float64, device=out.device)
    own, every = log_sums if targets is not None else (0.0, sum(log_sums))
    if n_rows:
        size = triton.next_power_of_2(n_components)
        # Measured for 16, 32, 64 components side by side (K, n), and for 1024 one row after the other (n, K).
        rows = max(1, min(64, (4096 if log_joint.stride(1) == 1 else 2048) // size))
        # Few programs, where each adds to the counts of all components at its end.
        n_steps = 1 if labels is None else max(1, n_rows // (rows * 2048))
        info = torch.finfo(log_joint.dtype)
        _responsibilities[(triton.cdiv(n_rows, rows * n_steps),)](
            log_joint, out, log_joint.stride(1), log_joint.stride(0), n_rows, n_components, n_steps, class_of, labels,
            row_weights, *_halves(own), *_halves(every), values, denominators,
            K=size, ROWS=rows, LABELS=labels is not None, WEIGHTS=row_weights is not None,
            LOWEST=info.min, TINY=info.tiny, num_warps=4,
        )  # fmt: skip
    return values, denominators


def _halves(number: float) -> tuple[float, float]:
    """A number as the sum of two of single precision."""
    rounded = float(np.float32(number))
    return rounded, number - rounded


@triton.jit(do_not_specialize=["n_rows", "n_products"])
def _products(x, out, n_rows, stride, first, second, n_products, PRODUCTS: tl.constexpr, ROWS: tl.constexpr):
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    q = tl.program_id(1) * PRODUCTS + tl.arange(0, PRODUCTS)
    there = q < n_products
    inside = there[:, None] & (n < n_rows)[None, :]
    i = tl.load(first + q, mask=there, other=0)
    j = tl.load(second + q, mask=there, other=0)
    left = tl.load(x + i[:, None] * stride + n[None, :], mask=inside)
    right = tl.load(x + j[:, None] * stride + n[None, :], mask=inside)
    tl.store(out + q[:, None].to(tl.int64) * stride + n[None, :], left * right, mask=inside)


def products(x: Tensor, first: Tensor, second: Tensor, out: Tensor) -> None:
    """x_i x_j for pairs of features: x (D, n), indices (Q,), out (Q, n) with the strides of x."""
    n_rows = x.shape[1]
    grid = (triton.cdiv(n_rows, 256), triton.cdiv(len(first), 16))
    _products[grid](x, out, n_rows, x.stride(0), first, second, len(first), PRODUCTS=16, ROWS=256, num_warps=8)


@triton.jit
def _shares(s, rest, share):
    """Values and weighted posteriors of scores (n, K) plus a remainder (K,) that is too small for single precision."""
    largest = tl.maximum(tl.max(s, 1), -3e38)
    powers = tl.exp(s - largest[:, None] + rest[None, :])
    totals = tl.sum(powers, 1)
    positive = totals > 0
    safe = tl.where(positive, totals, 1.0)
    values = tl.where(positive, largest + tl.log(safe), -float("inf"))
    return values, powers * (share / safe)[:, None]


@triton.jit(do_not_specialize=["n_rows", "n_components", "n_features"])
def _squares(
    x, row_stride, n_rows, index, centre, weights, bias, bias_rest, n_components, n_features,
    class_of, labels, row_weights, own_weight, every_weight, sums, values,
    K: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr,
    INDEX: tl.constexpr, LABELS: tl.constexpr, WEIGHTS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    k, d = tl.arange(0, K), tl.arange(0, D)
    there, inside = k < n_components, d < n_features
    both = there[None, :] & inside[:, None]
    place = weights + k[None, :] * 2 * n_features + d[:, None]
    linear = tl.load(place, mask=both, other=0.0)
    quadratic = tl.load(place + n_features, mask=both, other=0.0)
    constant = tl.load(bias + k, mask=there, other=-float("inf"))
    rest = tl.load(bias_rest + k, mask=there, other=0.0)
    middle = tl.load(centre + d, mask=inside, other=0.0)
    owner = tl.load(class_of + k, mask=there, other=-2) if LABELS else k
    value = tl.zeros([ROWS], tl.float64)
    home = sums + program * K * (2 * D + 2)
    firsts = home + k[:, None] * D + d[None, :]
    counts = home + 2 * K * D + k
    for start in range(program * ROWS * STEPS, n_rows, tl.num_programs(0) * ROWS * STEPS):
        first = tl.zeros([K, D], tl.float32)
        second = tl.zeros([K, D], tl.float32)
        count = tl.zeros([K], tl.float32)
        denominator = tl.zeros([K], tl.float32)
        for step in range(STEPS):
            n = start + step * ROWS + tl.arange(0, ROWS)
            valid = n < n_rows
            rows = (tl.load(index + n, mask=valid, other=0) if INDEX else n).to(tl.int64)
            cells = valid[:, None] & inside[None, :]
            z = tl.load(x + rows[:, None] * row_stride + d[None, :], mask=cells, other=0.0) - middle[None, :]
            squared = z * z
            s = tl.dot(z, linear, input_precision="tf32x3")
            s = tl.dot(squared, quadratic, s, input_precision="tf32x3") + constant[None, :]
            share = (
                tl.load(row_weights + rows, mask=valid, other=0.0).to(tl.float32) if WEIGHTS else valid.to(tl.float32)
            )
            log_sums, every = _shares(s, rest, share)
            log_sums = every_weight * log_sums
            signed = every_weight * every
            if LABELS:
                label = tl.load(labels + rows, mask=valid, other=-1)
                own = (label < 0)[:, None] | (label[:, None] == owner[None, :])
                own_log_sums, own_shares = _shares(tl.where(own, s, -float("inf")), rest, share)
                log_sums += own_weight * own_log_sums
                signed += own_weight * own_shares
                denominator += tl.sum(every, 0)
            value += tl.where(share != 0, log_sums * share, 0.0).to(tl.float64)
            count += tl.sum(signed, 0)
            turned = tl.trans(signed)
            first = tl.dot(turned, z, first, input_precision="tf32x3")
            second = tl.dot(turned, squared, second, input_precision="tf32x3")
        tl.store(firsts, tl.load(firsts) + first.to(tl.float64))
        tl.store(firsts + K * D, tl.load(firsts + K * D) + second.to(tl.float64))
        tl.store(counts, tl.load(counts) + count.to(tl.float64))
        tl.store(counts + K, tl.load(counts + K) + denominator.to(tl.float64))
    tl.store(values + program, tl.sum(value, 0))


@lru_cache(maxsize=16)
def _n_programs(device: torch.device) -> int:
    return 2 * torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3


def squares_pass(
    rows: Tensor,
    index: Tensor | None,
    centre: Tensor,
    weights: Tensor,
    bias: Tensor,
    targets: tuple[Tensor, Tensor] | None,
    row_weights: Tensor | None,
    log_sums: tuple[float, float],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A whole pass of scores bias_k + weights_k . (z, z^2), z = x - centre, over float32 rows.

    Products are split into three of reduced precision, which together have the accuracy of single precision; sums are
    in double precision. No array of size rows x components is stored.

    Parameters
    ----------
    rows : Tensor of shape (N, D)
        Rows in float32, with contiguous features.
    index : Tensor of shape (n,) or None
        Indices of the rows to use; None for all.
    centre : Tensor of shape (D,)
    weights : Tensor of shape (K, 2 D)
    bias : Tensor of shape (K,)
        In float64; these three on any device.
    targets : tuple of Tensor or None
        Labels (N,), -1 for unlabeled, and the class of each component (K,); None without labels.
    row_weights : Tensor of shape (N,) or None
    log_sums : tuple of float
        Factors of log p(x, c) and of log p(x) in the objective.

    Returns
    -------
    value : Tensor of shape ()
    counts : Tensor of shape (K,)
        Sums of the signed responsibilities.
    sums : Tensor of shape (K, 2 D)
        Sums of (z, z^2) weighted by signed responsibilities.
    denominators : Tensor of shape (K,)
        Sums of the posteriors over all components; zero without targets.
    """
    n_components, size = len(bias), rows.shape[1]
    k, d = (max(16, triton.next_power_of_2(length)) for length in (n_components, size))
    n_rows = len(rows) if index is None else len(index)
    n_programs = max(1, min(_n_programs(rows.device), triton.cdiv(n_rows, TILE * TILES)))
    sums = torch.zeros(n_programs, k * (2 * d + 2), dtype=torch.float64, device=rows.device)
    values = torch.zeros(n_programs, dtype=torch.float64, device=rows.device)
    labels, class_of = (None, None) if targets is None else targets
    own, every = log_sums if targets is not None else (0.0, sum(log_sums))
    rounded = bias.float()
    rest = (bias - rounded).nan_to_num(0.0).float()  # of a component of weight zero, whose bias is -inf
    centre, weights, rounded, rest = (part.to(rows.device, torch.float32) for part in (centre, weights, rounded, rest))
    _squares[(n_programs,)](
        rows, rows.stride(0), n_rows, index, centre, weights, rounded, rest,
        n_components, size, class_of, labels, row_weights, own, every, sums, values,
        K=k, D=d, ROWS=TILE, STEPS=TILES,
        INDEX=index is not None, LABELS=labels is not None, WEIGHTS=row_weights is not None, num_warps=4,
    )  # fmt: skip
    total = sums.sum(0)
    first, second = total[: 2 * k * d].view(2, k, d)[:, :n_components, :size]
    counts, denominators = total[2 * k * d :].view(2, k)[:, :n_components]
    return values.sum(), counts, torch.cat((first, second), 1), denominators
