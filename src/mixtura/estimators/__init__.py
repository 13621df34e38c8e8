"""The estimators."""

from mixtura.estimators.averaged import AveragedMixture, AveragedMixtureClassifier
from mixtura.estimators.discriminative import DiscriminativeMixtureClassifier
from mixtura.estimators.gaussian_mixture import GaussianMixture
from mixtura.estimators.hybrid import HybridMixtureClassifier
from mixtura.estimators.imputer import MarginalFeatureSelector, MixtureImputer
from mixtura.estimators.labels import LabeledScorer
from mixtura.estimators.mixture_classifier import MixtureClassifier
from mixtura.estimators.nonnegative import NonnegativeMixtureClassifier, make_nonnegative_pipeline
from mixtura.estimators.reject_option import RejectOption
from mixtura.estimators.sparse import RelevanceVectorClassifier, SparseMixtureClassifier
from mixtura.estimators.table_classifier import TableClassifier
from mixtura.estimators.table_columns import TableColumn

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
    "TableClassifier",
    "TableColumn",
    "make_nonnegative_pipeline",
]
