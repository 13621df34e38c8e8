"""Atomic fits: a fit keeps nothing of the last one, and a fit that fails leaves the last one unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mixtura.estimators.estimator import MODELS, check_fitted
from mixtura.files.codec import arguments_of, fitted_of

# Results of methods other than `fit`, which belong to the model that they were called for.
LATER = ("class_offsets_", "outlier_reference_")


@contextmanager
def atomic_fit(estimator: Any) -> Iterator[None]:
    """A context for the whole of `fit`.

    Attributes of the last fit are removed first; a warm start needs them, and keeps all but those of other methods.
    If the fit raises an error before it has stored a complete model, all attributes are restored. A fit that was
    interrupted by Ctrl-C may have stored a model.
    """
    before = dict(vars(estimator))
    goes_on = bool(arguments_of(estimator).get("warm_start"))
    for name in LATER if goes_on else fitted_of(estimator):
        vars(estimator).pop(name, None)
    try:
        yield
    except BaseException:
        changed = any(vars(estimator).get(name) is not before.get(name) for name in MODELS)
        if not (changed and _is_complete(estimator)):
            vars(estimator).clear()
            vars(estimator).update(before)
        raise


def _is_complete(estimator: Any) -> bool:
    try:
        check_fitted(estimator)
    except ValueError:
        return False
    return not MODELS.isdisjoint(vars(estimator))
