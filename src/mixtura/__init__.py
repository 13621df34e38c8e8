"""Gaussian mixtures for classification: generative, with missing cells, unlabeled rows and sample weights."""

from mixtura.estimators import GaussianMixture, MixtureClassifier, RelevanceVectorClassifier, SparseMixtureClassifier
from mixtura.model_files import load

__version__ = "0.1.0"
__all__ = ["GaussianMixture", "MixtureClassifier", "RelevanceVectorClassifier", "SparseMixtureClassifier", "load"]
