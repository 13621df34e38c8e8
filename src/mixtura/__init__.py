"""Classification with Gaussian mixtures: generative, discriminative, hybrid and sparse, with missing values."""

from mixtura.estimators import (
    DiscriminativeMixtureClassifier,
    GaussianMixture,
    HybridMixtureClassifier,
    LabeledScorer,
    MarginalFeatureSelector,
    MixtureClassifier,
    MixtureImputer,
    NonnegativeMixtureClassifier,
    RejectOption,
    RelevanceVectorClassifier,
    SparseMixtureClassifier,
    make_nonnegative_pipeline,
)
from mixtura.estimators.averaged import AveragedMixture
from mixtura.estimators.averaged_classifier import AveragedMixtureClassifier
from mixtura.estimators.tuning import tune
from mixtura.files.models import load

__version__ = "0.1.0"
__all__ = [
    "AveragedMixture",
    "AveragedMixtureClassifier",
    "DiscriminativeMixtureClassifier",
    "GaussianMixture",
    "HybridMixtureClassifier",
    "LabeledScorer",
    "MarginalFeatureSelector",
    "MixtureClassifier",
    "MixtureImputer",
    "NonnegativeMixtureClassifier",
    "RejectOption",
    "RelevanceVectorClassifier",
    "SparseMixtureClassifier",
    "load",
    "make_nonnegative_pipeline",
    "tune",
]
