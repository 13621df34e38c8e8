"""Feature maps: the scores of rows, and their transpose, for every model and every head.

    a_k(x) = bias_k + weights_k . phi(x) - sign/2 |projections_k x - offsets_k|^2                       (scores)

The features phi are shared by all components: one matrix product computes the scores of all components. Projections
differ between components. A model has one of the two parts, or both. `forward` gives log joints; `pullback`, its
transpose, gives sum_n A_kn times the features. These are the weighted moments of the rows, and equally the gradient of
sum A a with respect to the coefficients.

Rows are columns here, x (D, n) and scores (K, n): reductions over components are then vectorised over rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import Tensor

from mixtura.values.moments import DenseForm, DiagonalForm, Form, Moments, ProjectedForm
from mixtura.values.sparse_rows import quietly


class SharedMap:
    """phi(x): the features x themselves, here alone; in subclasses followed by products of two of them."""

    form: Form = DiagonalForm()  # of the second moments given by its products

    def n_columns(self, size: int) -> int:
        """Length of phi for a number of features."""
        return size

    def products(self, x: Tensor) -> Tensor:
        """(D, n) -> (Q, n), differentiable."""
        return x[:0]

    def factors(self, x: Tensor, out: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The products as few in-place multiplications: targets in `out` (Q, n), and their two factors."""
        return []

    def seconds(self, sums: Tensor, size: int) -> Tensor:
        """Sums of the products (K, Q) as second moments in the form of the map."""
        raise NotImplementedError("a linear map has no second moments")


class Squares(SharedMap):
    """x, x_i^2."""

    def n_columns(self, size: int) -> int:
        return 2 * size

    def products(self, x: Tensor) -> Tensor:
        return x * x

    def factors(self, x: Tensor, out: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        return [(out, x, x)]

    def seconds(self, sums: Tensor, size: int) -> Tensor:
        return sums


class Quadratics(SharedMap):
    """x, x_i x_j for i <= j, row by row of the upper triangle."""

    form = DenseForm()

    def n_columns(self, size: int) -> int:
        return size + size * (size + 1) // 2

    def products(self, x: Tensor) -> Tensor:
        first, second, _ = triangle(len(x), x.device)
        return x.index_select(0, first) * x.index_select(0, second)

    def factors(self, x: Tensor, out: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        targets = out.split(list(range(len(x), 0, -1)))
        return [(target, x[i:], x[i]) for i, target in enumerate(targets)]

    def seconds(self, sums: Tensor, size: int) -> Tensor:
        return sums.index_select(1, triangle(size, sums.device)[2]).unflatten(1, (size, size))

    def pack(self, matrices: Tensor) -> Tensor:
        """Weights of the products in -1/2 x' M x: symmetric (K, D, D) -> (K, Q)."""
        first, second, _ = triangle(matrices.shape[-1], matrices.device)
        return matrices[:, first, second] * _pack_factors(matrices.shape[-1], matrices.device, matrices.dtype)


@lru_cache(maxsize=16)
def triangle(size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """i and j of each product x_i x_j with i <= j, (Q,), and the product at each place of a matrix, (D * D,)."""
    with torch.inference_mode(False):  # these may be used with gradients later
        first, second = torch.triu_indices(size, size, device=device)
        places = torch.empty(size, size, dtype=torch.int64, device=device)
        places[first, second] = places[second, first] = torch.arange(len(first), device=device)
        return first, second, places.flatten()


@lru_cache(maxsize=16)
def _pack_factors(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """-1/2 for x_i^2, -1 for x_i x_j, which represents x_j x_i as well, (Q,)."""
    with torch.inference_mode(False):
        first, second, _ = triangle(size, device)
        return torch.where(first == second, -0.5, -1.0).to(dtype)


LINEAR, SQUARES, QUADRATICS = SharedMap(), Squares(), Quadratics()


def weigh(features: Tensor, weights: Tensor, bias: Tensor, out: Tensor | None = None) -> Tensor:
    """bias_k + weights_k . phi, the forward of shared features: (P, n), dense or CSR, (K, P), (K,) -> (K, n)."""
    if features.layout is torch.strided:
        return torch.addmm(bias.unsqueeze(1), weights, features, out=out)
    with quietly():
        return (features.mT @ weights.T.contiguous()).T + bias.unsqueeze(1)


def gather(features: Tensor, signed: Tensor) -> Tensor:
    """sum_n A_kn phi_n, the pullback of shared features: (P, n), (K, n) -> (K, P)."""
    if features.layout is torch.strided:
        return signed @ features.T
    with quietly():
        return (features @ signed.T.contiguous()).T


def project(x: Tensor, projections: Tensor, offsets: Tensor | None) -> Tensor:
    """projections_k x - offsets_k: (D, n), (K, R, D), (K, R) -> (K, R, n)."""
    flat = projections.flatten(0, 1)
    along = flat @ x if offsets is None else torch.addmm(-offsets.reshape(-1, 1), flat, x)
    return along.unflatten(0, projections.shape[:2])


# The features of some rows, kept between forward and pullback: phi (P, n), the first D of them x, and the projections
# (K, R, n).
Features: TypeAlias = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Coefficients:
    """The coefficients of K components in (scores)."""

    shared: SharedMap | None  # None: projections alone
    bias: Tensor  # (K,)
    weights: Tensor | None  # (K, P)
    projections: Tensor | None = None  # (K, R, D)
    offsets: Tensor | None = None  # (K, R)
    sign: float = 1.0

    @property
    def parts(self) -> list[Tensor]:
        """The tensors of which `pullback` gives the gradients."""
        every = (self.bias, self.weights, self.projections, self.offsets)
        return [part for part in every if part is not None]

    def select(self, components: slice | Tensor, dtype: torch.dtype | None = None) -> Coefficients:
        """Select components, converted to a precision."""
        return self._each(lambda part: part[components].to(dtype or part.dtype))

    def to(self, device: torch.device) -> Coefficients:
        """The same on another device."""
        return self if self.bias.device == device else self._each(lambda part: part.to(device))

    def detached(self) -> Coefficients:
        return self._each(Tensor.detach)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Coefficients:
        """Change every tensor."""
        parts = (self.weights, self.projections, self.offsets)
        others = (None if part is None else change(part) for part in parts)
        return Coefficients(self.shared, change(self.bias), *others, sign=self.sign)

    def phi(self, x: Tensor) -> Tensor:
        """The shared features: (D, n) -> (P, n)."""
        return x if self.shared is None or self.shared is LINEAR else torch.cat((x, self.shared.products(x)))

    def forward(self, phi: Tensor, out: Tensor | None = None) -> tuple[Tensor, Features]:
        """Log joints (K, n) from phi (P, n), and the features for `pullback`."""
        if self.weights is None:
            scores = self.bias.unsqueeze(1).expand(-1, phi.shape[1])
        else:
            scores = weigh(phi, self.weights, self.bias, out)
        if self.projections is None:
            return scores, (phi, None)
        along = project(phi[: self.projections.shape[-1]], self.projections, self.offsets)
        return self.combined(scores, along), (phi, along)

    def combined(self, scores: Tensor, along: Tensor) -> Tensor:
        """Both parts of (scores)."""
        return torch.add(scores, along.square().sum(1), alpha=-0.5 * self.sign)

    def zeros(self) -> list[Tensor]:
        """Accumulators of `pullback`, like `parts` but in double precision."""
        zeros = [torch.zeros_like(part, dtype=torch.float64) for part in self.parts]
        if self.weights is not None and len(self.weights) > self.weights.shape[1]:
            # The longer dimension is contiguous: with 64 components and 32 features products take 3/4 of the time.
            zeros[1] = torch.zeros_like(self.weights.T, dtype=torch.float64, memory_format=torch.contiguous_format).T
        return zeros

    def pullback(self, sums: list[Tensor], features: Features, signed: Tensor, components: slice) -> None:
        """Add the gradients of sum A a with respect to `parts`, with A (K', n) for some components."""
        (phi, along), targets = features, iter(part[components] for part in sums)
        next(targets).add_(signed.sum(1))
        if self.weights is not None:
            target = next(targets)
            if target.dtype == signed.dtype and phi.layout is torch.strided:
                target.addmm_(signed, phi.T)
            else:
                target += gather(phi, signed)
        if self.projections is not None and along is not None:
            weighted = along * (-self.sign * signed).unsqueeze(1)  # (K', R, n)
            x = phi[: self.projections.shape[-1]]
            next(targets).add_((weighted.flatten(0, 1) @ x.T).unflatten(0, weighted.shape[:2]))
            if self.offsets is not None:
                next(targets).sub_(weighted.sum(-1))

    def moments(self, sums: list[Tensor], centre: Tensor) -> Moments:
        """Convert the sums of `pullback`, of rows about a centre (D,), to weighted moments."""
        assert self.shared is not None
        counts, weights, *projected = sums
        size = len(centre)
        firsts, seconds = weights[:, :size], self.shared.seconds(weights[:, size:], size)
        if self.projections is None:
            return Moments(counts, firsts, (seconds,), self.shared.form, centre)
        # sum A (V x) x' = sum A (V x - o) x' + o firsts'
        along = projected[0] / -self.sign
        if self.offsets is not None:
            along = along + self.offsets.unsqueeze(-1) * firsts.unsqueeze(1)
        return Moments(counts, firsts, (seconds, along.mT), ProjectedForm(self.projections.mT), centre)

    def magnitudes(self, radii: Tensor) -> Tensor:
        """The largest sum of the absolute terms of a score within the radii (D,): (K,).

        Rounding errors are below eps times a small multiple of it (product-error).
        """
        assert self.weights is not None
        total = self.weights.abs() @ self.phi(radii.unsqueeze(1))[:, 0]
        if self.projections is None or self.sign < 0:  # then the projections are smaller
            return total
        return total + 0.5 * (self.projections.abs() @ radii).square().sum(-1)
