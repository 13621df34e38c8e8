"""Gaussian mixtures for classification."""
__version__ = "0.1.0"
