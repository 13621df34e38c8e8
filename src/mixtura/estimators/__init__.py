"""The estimators."""

from mixtura.estimators.classifier import MixtureClassifier

__all__ = ["MixtureClassifier"]
