"""Classification with Gaussian mixtures: generative, discriminative, hybrid and sparse, with missing values.

Names are imported when they are first used, so that `import mixtura` does not import torch.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mixtura.files import look_up_moved

if TYPE_CHECKING:  # what `__getattr__` finds
    from mixtura.estimators import (
        AveragedMixture,
        AveragedMixtureClassifier,
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
    from mixtura.files.models import load

__version__ = "0.2.0"
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

_look_up = look_up_moved(__name__, {"tune": "examples/search_with_optuna.py of a source checkout"})


def __getattr__(name: str) -> Any:
    if name in __all__:
        estimators = import_module("mixtura.estimators")  # `load` too needs all parts: they register themselves
        return getattr(import_module("mixtura.files.models") if name == "load" else estimators, name)
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    return _look_up(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
