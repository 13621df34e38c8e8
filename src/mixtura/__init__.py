"""Gaussian mixtures for classification: generative, with missing cells, unlabeled rows and sample weights."""

from mixtura.estimators import MixtureClassifier

__version__ = "0.1.0"
__all__ = ["MixtureClassifier"]
