"""The estimators."""

from mixtura.estimators.classifier import MixtureClassifier
from mixtura.estimators.density import GaussianMixture
from mixtura.estimators.hybrid import HybridMixtureClassifier
from mixtura.estimators.nonnegative import NonnegativeMixtureClassifier, make_nonnegative_pipeline

__all__ = [
    "GaussianMixture",
    "HybridMixtureClassifier",
    "MixtureClassifier",
    "NonnegativeMixtureClassifier",
    "make_nonnegative_pipeline",
]
