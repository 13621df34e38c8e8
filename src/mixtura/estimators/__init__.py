"""The estimators."""

from mixtura.estimators.classifier import MixtureClassifier
from mixtura.estimators.density import GaussianMixture

__all__ = ["GaussianMixture", "MixtureClassifier"]
