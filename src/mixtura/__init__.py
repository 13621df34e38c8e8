"""Classification with Gaussian mixtures: generative, discriminative, hybrid and sparse, with missing values."""

from mixtura.checks.moved import look_up_moved
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
]

__getattr__ = look_up_moved(__name__, {"tune": "examples/search_with_optuna.py of a source checkout"})
