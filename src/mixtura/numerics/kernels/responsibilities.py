"""Signed responsibilities of log joints, and products of features, in one launch each."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportOperatorIssue=false

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

# The largest number of components of which one program holds all scores of a row.
MOST_COMPONENTS = 4096

# Kernels are specialised for strides, and for numbers of components that are multiples of 16: their masks then leave
# loads wide. For a million rows of 1024 components responsibilities in halves take 3.1 ms, otherwise 6.6.


@triton.jit
def log_sums(s, LOWEST: tl.constexpr, TINY: tl.constexpr):
    """log sum_k exp s_nk as the largest score (n,) and the rest (n,), and the posteriors (n, K)."""
    largest = tl.maximum(tl.max(s, 1), LOWEST)
    powers = tl.exp(s - largest[:, None])
    totals = tl.sum(powers, 1)
    logs = tl.log(tl.where(totals > 0, totals, 1.0))
    return largest, tl.where(totals > 0, logs, -float("inf")), powers * (1.0 / tl.maximum(totals, TINY))[:, None]


@triton.jit
def evaluate(
    s, share, labels, places, valid, owner, own_weight, weight, LABELS: tl.constexpr, LOWEST: tl.constexpr,
    TINY: tl.constexpr,
):  # fmt: skip
    """Values (n,), signed responsibilities (n, K) and posteriors (n, K) of log joints, times the weights of rows."""
    largest, rest, every = log_sums(s, LOWEST, TINY)
    value = weight * (largest + rest)
    signed = weight * every
    if LABELS:
        label = tl.load(labels + places, mask=valid, other=-1)
        own = (label < 0)[:, None] | (label[:, None] == owner[None, :])
        own_largest, own_rest, own_shares = log_sums(tl.where(own, s, -float("inf")), LOWEST, TINY)
        # The conditional likelihood is a small difference of large sums: the largest score is added last.
        value = weight * rest + own_weight * (own_largest - largest + own_rest) + (weight + own_weight) * largest
        signed += own_weight * own_shares
    return tl.where(share != 0, value, 0.0) * share, signed * share[:, None], every * share[:, None]


@triton.jit
def halves(values):
    """Numbers of single precision as sums of two of half precision, right to 22 bits."""
    high = values.to(tl.float16)
    return high, (values - high.to(tl.float32)).to(tl.float16)


@triton.jit(do_not_specialize=["n_rows", "n_steps", "own_weight", "own_rest", "weight", "rest"])
def _responsibilities(
    scores, out, row_stride, out_stride, component_stride, n_rows, n_components, n_steps, class_of, labels, row_weights,
    own_weight, own_rest, weight, rest, values, denominators,
    K: tl.constexpr, ROWS: tl.constexpr, LABELS: tl.constexpr, WEIGHTS: tl.constexpr, HALVES: tl.constexpr,
    LOWEST: tl.constexpr, TINY: tl.constexpr,
):  # fmt: skip
    k = tl.arange(0, K)
    there = k < n_components
    owner = tl.load(class_of + k, mask=there, other=-2) if LABELS else k
    dtype = scores.dtype.element_ty
    one = tl.full([], 1.0, tl.float64)
    every_factor = (one * weight + one * rest).to(dtype)  # numbers reach a kernel in single precision
    own_factor = (one * own_weight + one * own_rest).to(dtype)
    count = tl.zeros([K], tl.float64)
    for step in range(n_steps):
        n = (tl.program_id(0) * n_steps + step) * ROWS + tl.arange(0, ROWS)
        valid = n < n_rows
        inside = valid[:, None] & there[None, :]
        places = n[:, None].to(tl.int64) * row_stride + k[None, :].to(tl.int64) * component_stride
        s = tl.load(scores + places, mask=inside, other=-float("inf"))
        s = tl.where(valid[:, None], s, 0.0)  # beyond the last row: any finite number
        share = tl.load(row_weights + n, mask=valid, other=0.0).to(dtype) if WEIGHTS else valid.to(dtype)
        value, signed, every = evaluate(
            s, share, labels, n, valid, owner, own_factor, every_factor, LABELS, LOWEST, TINY
        )  # fmt: skip
        if LABELS:
            count += tl.sum(tl.where(inside, every, 0.0).to(tl.float64), 0)
        if HALVES:  # both halves of a row in its place
            high, low = halves(signed)
            half = out.to(tl.pointer_type(tl.float16)) + n[:, None].to(tl.int64) * (2 * out_stride) + k[None, :]
            tl.store(half, high, mask=inside)
            tl.store(half + out_stride, low, mask=inside)
        else:
            places = n[:, None].to(tl.int64) * out_stride + k[None, :].to(tl.int64) * component_stride
            tl.store(out + places, signed, mask=inside)
        tl.store(values + n, value, mask=valid)
    if LABELS:
        tl.atomic_add(denominators + k, count, mask=there)


def posteriors(log_joint: Tensor) -> tuple[Tensor, Tensor]:
    """log sum_k exp a_k (n,) and the posteriors over components, of log joints (K, n)."""
    shares = torch.empty_like(log_joint)  # with the same strides, unless there are gaps
    if shares.stride() != log_joint.stride():
        log_joint = shares.copy_(log_joint)
    return responsibilities(log_joint, None, None, (0.0, 1.0), shares)[0], shares


def responsibilities(
    log_joint: Tensor,
    targets: tuple[Tensor, Tensor] | None,
    row_weights: Tensor | None,
    log_sums: tuple[float, float],
    out: Tensor | None = None,
    in_halves: bool = False,
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
        With the stride of the log joints between components.
    in_halves : bool, default=False
        Whether to write responsibilities of single precision as two halves, one after the other in the place of the log
        joints of a row, which are contiguous.

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
            log_joint, out, log_joint.stride(1), out.stride(1), log_joint.stride(0), n_rows, n_components, n_steps,
            class_of, labels, row_weights, *_halves(own), *_halves(every), values, denominators,
            K=size, ROWS=rows, LABELS=labels is not None, WEIGHTS=row_weights is not None,
            HALVES=in_halves, LOWEST=info.min, TINY=info.tiny, num_warps=4,
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
