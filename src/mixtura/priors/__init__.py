"""Priors. A new one: one file here, one line in PRIORS, one line in tests/cases.py."""

from __future__ import annotations

from collections.abc import Callable

from mixtura.priors.conjugate import Conjugate, Scaled, Shrinkage, default_strength, log_terms
from mixtura.roles import DataScales, Prior

# Each entry makes a prior from statistics of the rows.
PRIORS: dict[str, Callable[[DataScales], Prior]] = {
    "default": Shrinkage().prior,
}

__all__ = ["PRIORS", "Conjugate", "Scaled", "Shrinkage", "default_strength", "log_terms"]
