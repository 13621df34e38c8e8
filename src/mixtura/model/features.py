"""The fast path: log-densities and moments of complete rows as two matrix products (product-form).

With phi(x) the monomials of the centred row that a structure needs, 1 among them, log f_k(x) = weights_k . phi(x), and
the moments of responsibilities A, counts included, are A' phi(X). Half the operations of a factorisation per component,
all of it in GEMM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor

from mixtura.numerics.buffers import Scratch
from mixtura.values.moments import Form, Moments

Monomials = Callable[[Tensor, Tensor, Scratch], Tensor]


def squares(rows: Tensor, centre: Tensor, scratch: Scratch) -> Tensor:
    """1, x_i, then x_i^2, of the centred rows: (n, D) -> (1 + 2 D, n)."""
    n_rows, size = rows.shape
    features = scratch.buffer("squares", (1 + 2 * size, n_rows), rows)
    first, second = scratch.kept("square views", features, lambda: _square_views(features, size))
    torch.sub(rows.T, centre.unsqueeze(-1), out=first)
    torch.mul(first, first, out=second)
    return features


def _square_views(features: Tensor, size: int) -> tuple[Tensor, Tensor]:
    features[0] = 1.0
    return features[1 : 1 + size], features[1 + size :]


def quadratics(rows: Tensor, centre: Tensor, scratch: Scratch) -> Tensor:
    """All monomials of degree two and less of the centred rows, as products z_i z_j of z = (1, x), in the order of
    `_pairs`: (n, D) -> ((D + 1) (D + 2) / 2, n).

    One call makes them all: the pairs are taken by their distance round a circle, and the factors of every distance are
    rows of one buffer in which the end of z stands once more before its beginning.
    """
    n_rows, size = rows.shape
    features = scratch.buffer("quadratics", ((size + 1) * (size + 2) // 2, n_rows), rows)
    circle = scratch.buffer("circle", (size + 1 + (size + 1) // 2, n_rows), rows)
    x, end, before, products = scratch.kept("circle views", features, lambda: _circle_views(circle, features))
    torch.sub(rows.T, centre.unsqueeze(-1), out=x)
    before.copy_(end)
    for target, this, other in products:
        torch.mul(this, other, out=target)
    return features


def _circle_views(
    circle: Tensor, features: Tensor
) -> tuple[Tensor, Tensor, Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
    """Where x belongs, its end, where that stands once more, and for all distances the products and their factors."""
    length, n_rows = circle.shape
    half = length // 3
    n_entries = length - half
    n_whole = (n_entries + 1) // 2  # distances at which every entry has another
    z = circle[half:]
    z[0] = 1.0
    others = circle.as_strided((n_whole, n_entries, n_rows), (n_rows, n_rows, 1), (half - n_whole + 1) * n_rows)
    whole = features[: n_whole * n_entries].view(n_whole, n_entries, n_rows)
    products = [(whole, z.unsqueeze(0), others)]
    if n_entries % 2 == 0:  # opposite entries have each other
        products.append((features[n_whole * n_entries :], z[half:], z[:half]))
    return z[1:], z[n_entries - half :], circle[:half], products


def _pairs(n_entries: int) -> tuple[Tensor, Tensor]:
    """The two entries that every monomial is the product of."""
    entries, n_whole = torch.arange(n_entries), (n_entries + 1) // 2
    distances = torch.arange(n_whole - 1, -1, -1)
    first, second = entries.repeat(n_whole), ((entries - distances.unsqueeze(1)) % n_entries).flatten()
    if n_entries % 2 == 0:
        half = n_entries // 2
        first, second = torch.cat((first, entries[half:])), torch.cat((second, entries[:half]))
    return torch.minimum(first, second), torch.maximum(first, second)


@lru_cache(maxsize=16)
def _places(size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """With a constant, a vector and a matrix laid out flat beside each other, the place of the coefficient of every
    monomial there, its factor in constant + vector' x - x' M x / 2, and for each place the number of the monomial.
    """
    with torch.inference_mode(False):  # what is kept here may meet a gradient later
        first, second = _pairs(size + 1)
        places = torch.where(first == 0, second, 1 + size + (first - 1) * size + second - 1)
        mirrored = torch.where(first == 0, second, 1 + size + (second - 1) * size + first - 1)
        factors = torch.where(first == 0, 1.0, torch.where(first == second, -0.5, -1.0)).double()
        numbers = torch.empty(1 + size + size**2, dtype=torch.int64)
        numbers[places] = numbers[mirrored] = torch.arange(len(places))
        return places.to(device), factors.to(device), numbers.to(device)


def pack(constants: Tensor, vectors: Tensor, matrices: Tensor) -> Tensor:
    """Coefficients of the monomials in c + v' x - x' M x / 2: (K,), (K, D), (K, D, D) -> (K, (D + 1) (D + 2) / 2)."""
    places, factors, _ = _places(vectors.shape[1], vectors.device)
    return torch.cat((constants.unsqueeze(-1), vectors, matrices.flatten(1)), 1).index_select(1, places) * factors


def unpack(sums: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of 1, x and x x' from those of the monomials: (K, (D + 1) (D + 2) / 2) -> (K,), (K, D), (K, D, D)."""
    flat = sums.index_select(1, _places(size, sums.device)[2])
    counts, firsts, seconds = flat.split((1, size, size**2), 1)
    return counts.squeeze(1), firsts, seconds.unflatten(1, (size, size))


@lru_cache(maxsize=16)
def _triangle(size: int, device: torch.device) -> Tensor:
    """The numbers of the monomials 1, x_i, then x_i x_j for i <= j, row by row of the upper triangle."""
    with torch.inference_mode(False):
        numbers = _places(size, device)[2]
        upper = torch.ones(size, size, dtype=torch.bool, device=device).triu().flatten()
        return torch.cat((numbers[: 1 + size], numbers[1 + size :][upper]))


def in_rows(packed: Tensor, size: int) -> Tensor:
    """Coefficients from `pack` in the order of the upper triangle: of 1, x_i, then x_i x_j for i <= j, row by row."""
    return packed.index_select(1, _triangle(size, packed.device))


@dataclass(frozen=True)
class LinearProduct:
    """Log-densities that are linear in monomials of the centred row."""

    monomials: Monomials
    weights: Tensor  # (K, P)
    magnitudes: Callable[[Tensor], Tensor]  # radii (D,) -> largest sum of absolute terms, (K,)
    form: Form
    # Sums of the monomials (K, P) -> counts (K,), sums of x (K, D), and of the products that the form has
    unfold: Callable[[Tensor], tuple[Tensor, ...]]

    @property
    def n_features(self) -> int:
        return self.weights.shape[1]

    @property
    def n_monomials(self) -> int:
        return self.weights.shape[1]

    def errors(self, radii: Tensor) -> Tensor:
        return self.magnitudes(radii)

    def select(self, components: Tensor) -> Self:
        return replace(
            self,
            weights=self.weights[components],
            magnitudes=lambda radii: self.magnitudes(radii)[components],
        )

    def expand(self, rows: Tensor, centre: Tensor, components: slice, scratch: Scratch) -> tuple[Tensor, Tensor]:
        features = self.monomials(rows, centre, scratch)  # (P, n)
        # Component by component within a monomial: row by row products of 20 x 1326 weights take 1.25 times as long.
        weights = scratch.kept("weights", self.weights, lambda: self.weights.T.to(features.dtype).contiguous().T)
        weights = weights[components]
        scores = scratch.buffer("scores", (len(weights), len(rows)), rows)
        return torch.mm(weights, features, out=scores), features

    def zeros(self) -> list[Tensor]:
        n_components, size = self.weights.shape
        if n_components <= size:
            return [self.weights.new_zeros(n_components, size)]
        # The longer side along memory: with 64 components and 33 monomials products take 3/4 of the time.
        return [self.weights.new_zeros(size, n_components).T]

    def accumulate(self, sums: list[Tensor], expanded: Tensor, weights: Tensor, components: slice) -> None:
        target = sums[0][components]
        if target.dtype == expanded.dtype:
            target.addmm_(weights, expanded.T)
        else:
            target += weights @ expanded.T

    def moments(self, sums: list[Tensor], centre: Tensor) -> Moments:
        counts, firsts, *seconds = self.unfold(sums[0])
        return Moments(counts, firsts, tuple(seconds), self.form, centre)
