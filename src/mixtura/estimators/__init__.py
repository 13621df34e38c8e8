"""The estimators."""

from mixtura.estimators.classifier import MixtureClassifier
from mixtura.estimators.density import GaussianMixture
from mixtura.estimators.sparse import RelevanceVectorClassifier, SparseMixtureClassifier

__all__ = ["GaussianMixture", "MixtureClassifier", "RelevanceVectorClassifier", "SparseMixtureClassifier"]
