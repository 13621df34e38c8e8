"""Logits and divergence of small heads that train on a GPU, by the kernels of kernels.py.

A step with a small head takes as long as Python takes to launch its operations. With these it launches five for
logits and their derivatives, as many as nn.Linear under autocast; autograd would launch twenty.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from mixtura.nn.logits import Monomials, class_logits, component_scores, divergence, minus_log_alphas

# A program goes through all rows, and multiplies without tensor cores: beyond these, operations of torch are faster.
MOST_ROWS, MOST_PRODUCTS = 4096, 2**24
LARGEST_BLOCK = 16  # members of a class, or projections of a component


@functools.cache
def kernels() -> Any:
    """The module of kernels, or None where Triton is missing or does not work, as it does not without a compiler."""
    try:
        from mixtura.nn import kernels as found

        weight = torch.ones(1, device="cuda")
        found.divergence(weight, weight)
    except Exception:  # whatever it is, there is another way
        return None
    return found


def usable(values: Tensor, weight: Tensor) -> bool:
    """Whether kernels can take these: on the current GPU, weights in single precision, no transformation going on."""
    return (
        values.is_cuda
        and weight.dtype == torch.float32
        and torch.is_grad_enabled()
        and (weight.requires_grad or values.requires_grad)
        and not torch.compiler.is_compiling()
        and not torch._C._get_tracing_state()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
        and values.get_device() == torch.cuda.current_device()
        and kernels() is not None
    )


def few(rows: Tensor, weight: Tensor, projection: Tensor | None, log_variances: Tensor | None, n_members: int) -> bool:
    """Whether launches are what takes time with such rows (n, D) and coefficients."""
    (n_rows, n_features), (n_components, n_monomials) = rows.shape, weight.shape
    rank = 0 if projection is None else projection.shape[0] // n_components
    n_products = n_rows * n_components * (n_monomials + rank * n_features)
    fits = 2 <= n_rows <= MOST_ROWS and n_products <= MOST_PRODUCTS and max(n_members, rank) <= LARGEST_BLOCK
    return fits and all(part is None or part.is_contiguous() for part in (weight, projection, log_variances))


class FusedLogits(torch.autograd.Function):
    """(head-logits) (n, C) of raw rows (n, D), which batch normalisation brings to their frame."""

    @staticmethod
    def forward(ctx: Any, monomials: Monomials, frame: Any, n_members: int, rows: Tensor, *parts: Any) -> Tensor:
        """The frame is what torch.batch_norm takes after the rows; parts are what `component_scores` takes.

        These are weights, biases, projections and log variances of weights.
        """
        x, phi, deviation = kernels().expanded(monomials, rows.contiguous(), frame)
        logits, *made = kernels().logits_of(phi, *parts, monomials.n_features, n_members)
        ctx.monomials, ctx.frame, ctx.n_members = monomials, frame, n_members
        ctx.save_for_backward(rows, *parts, x, phi, deviation, *made)
        return logits

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (grad,) = gradients
        if torch.is_grad_enabled():
            return None, None, None, *_differentiable_again(ctx, grad)
        rows, weight, _, projection, log_variances, x, phi, deviation, shares, projected, ratios = ctx.saved_tensors
        back, noise = kernels().weights_back, (ratios, log_variances)
        found = back(grad.contiguous(), shares, phi, phi.shape[1], ctx.n_members, True, *noise)
        grad, to_weight, to_bias, to_log_variances = found
        to_projected = to_projection = to_rows = None
        if projection is not None:
            to_projected, to_projection, *_ = back(grad, projected, x, rows.shape[1], len(projection) // len(weight))
        if ctx.needs_input_grad[3]:
            parts = weight, to_projected, projection, *noise, x, ctx.frame, deviation, rows.dtype
            to_rows = kernels().rows_back(ctx.monomials, grad, *parts)
        return None, None, None, to_rows, to_weight, to_bias, to_projection, to_log_variances


def _differentiable_again(ctx: Any, grad: Tensor) -> list[Tensor | None]:
    """The same derivatives by autograd, for those who differentiate them once more."""
    rows, *parts = inputs = ctx.saved_tensors[:5]
    scale, shift, _, _, _, rate, eps = ctx.frame  # running means and variances have met these rows
    with torch.enable_grad(), torch.autocast(rows.device.type, enabled=False):
        x = torch.batch_norm(rows.to(parts[0].dtype), scale, shift, None, None, True, rate, eps, True)
        scores = component_scores(ctx.monomials, x, *parts, ratios=ctx.saved_tensors[-1])
        logits = class_logits(scores, ctx.n_members)
    return _derivatives(logits, inputs, grad)


def _derivatives(value: Tensor, inputs: tuple[Tensor | None, ...], grad: Tensor) -> list[Tensor | None]:
    wanted = [part for part in inputs if part is not None and part.requires_grad]
    found = iter(torch.autograd.grad(value, wanted, grad, create_graph=True))
    return [None if part is None or not part.requires_grad else next(found) for part in inputs]


class FusedDivergence(torch.autograd.Function):
    """(dropout-kl), the sum over weights."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, log_variances: Tensor) -> Tensor:
        value, to_weight, to_log_variances = kernels().divergence(weight.contiguous(), log_variances.contiguous())
        ctx.save_for_backward(weight, log_variances, to_weight, to_log_variances)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (grad,) = gradients
        weight, log_variances, to_weight, to_log_variances = ctx.saved_tensors
        if torch.is_grad_enabled():
            with torch.enable_grad():
                value = divergence(minus_log_alphas(weight, log_variances))
            return tuple(_derivatives(value, (weight, log_variances), grad))
        return to_weight * grad, to_log_variances * grad
