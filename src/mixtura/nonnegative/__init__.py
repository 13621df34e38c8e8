"""Mixtures of log-linear units on non-negative features (LZZ06)."""
