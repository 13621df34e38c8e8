"""Checks, warnings and attributes of a fit of any mixture estimator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mixtura import checks
from mixtura.init.description import Description
from mixtura.model.mixture import Mixture
from mixtura.roles import ConjugatePrior, Covariance, Prior, Structure


def check_start(mixture: Mixture, n_features: int, n_components: list[int], structure: Structure) -> None:
    """Check that an initial mixture has the requested features, components and covariances."""
    counts = [part.stop - part.start for part in mixture.class_slices]
    if mixture.n_features != n_features or counts != n_components:
        raise ValueError(
            f"The initial mixture has {mixture.n_features} features and {counts} components per class, but the model "
            f"has {n_features} features and {n_components} components. Set warm_start=False, or start from a model "
            f"with the same settings."
        )
    variances = torch.ones_like(mixture.means)
    wanted = structure.start(variances, variances[:0], mixture.class_of[:0], mixture.class_of)
    if _kind(wanted) != _kind(mixture.covariance):
        raise ValueError(
            f"The initial mixture has other covariances than covariance_type={structure.name!r} "
            f"({mixture.covariance.n_parameters} parameters instead of {wanted.n_parameters}). Set warm_start=False, "
            "or start from a model with the same covariance_type and rank."
        )


def _kind(covariance: Covariance) -> tuple[Structure, int]:
    return covariance.structure, covariance.n_parameters


# A prior with this many times the weight of a component overrides the data.
OVERWHELMING = 1e3
# A variance this much below the pooled one, despite a prior, means a component collapsed onto a point, line or plane.
COLLAPSED = 1e-6


def warn_of_prior(wanted: Any, prior: Prior | None, mixture: Mixture, description: Description) -> None:
    """Warn of a prior that is so strong or so weak that the model cannot learn from the data."""
    if not isinstance(prior, ConjugatePrior) or isinstance(wanted, str):
        return
    pseudo, rows = prior.pseudo_moments(mixture.n_features), description.weight * float(mixture.weights.max())
    strengths = {"covariances": pseudo.covariance_count, "means": pseudo.mean_count}
    for name, strength in strengths.items():
        if float(torch.as_tensor(strength).min()) > OVERWHELMING * rows:
            checks.warn(
                f"The prior overrides the data: it has {float(torch.as_tensor(strength).min()):.3g} "
                f"pseudo-observations of the {name}, but no component has more than {rows:.3g} samples. Lower its "
                "strength.",
                checks.PriorWarning,
            )
    lowest = mixture.covariance.variances() / description.within
    if bool((lowest[:, description.varies] < COLLAPSED).any()):
        checks.warn(
            f"The prior is too weak: a variance fell to {float(lowest[:, description.varies].min()):.1g} of the "
            "pooled one, since a component collapsed onto a few samples. Raise its strength, or use prior='default'.",
            checks.PriorWarning,
        )


def check_described(estimator: Any, description: Description) -> None:
    """Check that there are observed values whose squares, and weights whose sum, neither overflow nor underflow."""
    checks.total_weight(description.weight)
    checks.observed(description.observed)
    checks.squareable(estimator, description.frame.centre, description.frame.radii, description.weight)


def keep_unobserved(estimator: Any, description: Description) -> None:
    """Store the weight of the samples and the columns without an observed value; warn of these columns."""
    estimator.training_weight_ = description.weight
    estimator.unobserved_ = tuple((~description.observed).nonzero()[:, 0].tolist())
    if estimator.unobserved_:
        names = checks.feature_names(estimator)
        columns = [column if names is None else names[column] for column in estimator.unobserved_]
        checks.warn(
            f"X has no observed value in columns {columns}: they have no effect, and impute leaves NaN there. "
            "Remove these columns.",
            checks.RepairWarning,
        )


# Features from which on full covariances get a hint: 60 samples of 1000 features in two classes take 1.3 s of processor
# time with full covariances and 0.2 with low rank; 2000 features took 12 s and 1.2 GB.
WIDE = 500


def warn_of_few_rows(classes: Sequence[Any], wanted: Sequence[int], available: Sequence[int]) -> None:
    """Warn of classes with fewer samples than components, which get one component per sample."""
    counts = zip(classes, wanted, available, strict=True)
    short = [f"class {c!r} has {m} samples for {n} components" for c, n, m in counts if m < n]
    if short:
        checks.warn(
            f"There are fewer samples than components: {', '.join(short)}; such a class gets one component per sample. "
            "Lower n_components for it, for example with a dict.",
            checks.RepairWarning,
        )


def warn_of_wide_samples(structure: Structure, n_samples: int | None, n_features: int) -> None:
    """Warn of covariance matrices that are large, and that the samples determine poorly."""
    if structure.is_unrestricted and n_features >= WIDE and n_samples is not None and n_samples < n_features:
        checks.warn(
            f"{n_samples} samples are few for covariance matrices of {n_features} x {n_features} numbers, which take "
            "much time and memory. covariance_type='low_rank' needs a fraction of both, and is often more accurate.",
            checks.RepairWarning,
        )


def warn_of_repairs(repairs: tuple[str, ...]) -> None:
    """Warn of repaired covariances."""
    if repairs:
        text = repairs[0][0].upper() + repairs[0][1:]
        checks.warn(
            f"{text}. Use prior='default', fewer components, or a simpler covariance_type.",
            checks.RepairWarning,
        )
