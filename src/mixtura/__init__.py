"""Gaussian mixtures for classification: generative, with missing cells, unlabeled rows and sample weights."""

from mixtura.estimators import (
    GaussianMixture,
    HybridMixtureClassifier,
    MixtureClassifier,
    NonnegativeMixtureClassifier,
    make_nonnegative_pipeline,
)
from mixtura.model_files import load

__version__ = "0.1.0"
__all__ = [
    "GaussianMixture",
    "HybridMixtureClassifier",
    "MixtureClassifier",
    "NonnegativeMixtureClassifier",
    "load",
    "make_nonnegative_pipeline",
]
