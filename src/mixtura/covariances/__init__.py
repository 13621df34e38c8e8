"""Covariance structures. A new one: one file here, one line in COVARIANCES, one line in tests/cases.py."""

from __future__ import annotations

from collections.abc import Callable

from mixtura.covariances.diagonal import Diagonal, DiagonalCovariance, Spherical
from mixtura.covariances.full import Full, FullCovariance
from mixtura.covariances.low_rank import LowRank, LowRankCovariance, LowRankPrecision, automatic_rank
from mixtura.covariances.product import Product, ProductCovariance
from mixtura.covariances.tied import Tied, TiedCovariance
from mixtura.roles import Structure

# Each entry makes a structure from a rank (None: automatic), which only some of them use.
COVARIANCES: dict[str, Callable[[int | None], Structure]] = {
    "full": lambda rank: Full(),
    "tied": lambda rank: Tied(Full()),
    "diag": lambda rank: Diagonal(),
    "spherical": lambda rank: Spherical(),
    "low_rank": LowRank,
    "low_rank_precision": LowRankPrecision,
}

__all__ = [
    "COVARIANCES",
    "Diagonal",
    "DiagonalCovariance",
    "Full",
    "FullCovariance",
    "LowRank",
    "LowRankCovariance",
    "LowRankPrecision",
    "Product",
    "ProductCovariance",
    "Spherical",
    "Tied",
    "TiedCovariance",
    "automatic_rank",
]
