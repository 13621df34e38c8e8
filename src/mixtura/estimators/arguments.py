"""Arguments that several estimators share: their types and their rules."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeAlias

import numpy as np
import torch
from sklearn.utils import check_random_state

from mixtura import checks
from mixtura.covariances import COVARIANCES
from mixtura.priors import PRIORS, Shrinkage
from mixtura.roles import Prior, Structure
from mixtura.selection.splits import check_splits

RandomState: TypeAlias = int | np.random.RandomState | None
Device: TypeAlias = str | torch.device | None
MemoryLimit: TypeAlias = int | str | None
PathName: TypeAlias = str | os.PathLike[str] | None
Components: TypeAlias = int | str | dict[Hashable, int]
ClassWeight: TypeAlias = str | dict[Hashable, float] | None

Rule: TypeAlias = checks.Rule | Callable[..., object]  # or a function that raises an error

# Arguments that mean the same in all estimators.
ARGUMENTS: Mapping[str, Rule] = {
    "n_components": checks.components,
    "covariance_type": checks.among(COVARIANCES, " or a structure such as mixtura.covariances.Tied")
    | checks.of_type(Structure),
    "rank": checks.RANK,
    "prior": checks.among(PRIORS, ', "auto", None or a prior object')
    | checks.of_type(Prior | Shrinkage | None)
    | checks.SILENT_AUTO,
    "class_prior": checks.CLASS_PRIOR,
    "class_weight": checks.CLASS_WEIGHT,
    "unlabeled": checks.UNLABELED,
    "n_init": checks.at_least(1),
    "max_iter": checks.at_least(0),
    "tol": checks.NON_NEGATIVE,
    "warm_start": checks.SWITCH,
    "verbose": checks.at_least(0) | checks.Rule("", lambda value: isinstance(value, bool)),
    "device": checks.device,
    "memory_limit": checks.memory_limit,
    "random_state": check_random_state,
    "checkpoint": checks.checkpoint,
    "cv": check_splits,
    "time_budget": checks.POSITIVE | checks.NONE,
    "temperature": checks.POSITIVE | checks.AUTO,
    "tradeoff": checks.SHARE | checks.AUTO,
    "early_stopping": checks.SWITCH,
    "validation_fraction": checks.FRACTION,
    "n_estimators": checks.at_least(1),
    "resampling": checks.among(("none", "subset", "bootstrap")),
    "fraction": checks.PART,
    "categorical_features": checks.among(("from_dtype",), ", None, a mask, positions or names of features")
    | checks.Rule("", lambda value: not isinstance(value, str) and isinstance(value, Iterable | None)),
}
