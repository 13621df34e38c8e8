"""Mixtures of log-linear units on non-negative features (LZZ06)."""

from mixtura.nonnegative.mixture import Counts, LogLinearMixture
from mixtura.nonnegative.updates import NONNEGATIVE_SOLVERS, SMALLEST_COUNT, Multiplicative

__all__ = ["NONNEGATIVE_SOLVERS", "SMALLEST_COUNT", "Counts", "LogLinearMixture", "Multiplicative"]
