"""Priors. A new one: one file here, one line in PRIORS, one line in tests/cases.py."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from mixtura.priors.conjugate import Conjugate, default_strength
from mixtura.roles import Prior

# Each entry makes a prior from the variances (D,) that the data suggest.
PRIORS: dict[str, Callable[[Tensor], Prior]] = {
    "default": lambda variances: Conjugate(default_strength(len(variances)), variances),
}

__all__ = ["PRIORS", "Conjugate", "default_strength"]
