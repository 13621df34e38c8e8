"""Saving and loading fitted models: safetensors with a JSON header. Nothing in a file is ever executed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mixtura.covariances import Diagonal, Full, LowRank, Spherical, Tied
from mixtura.estimators import (
    GaussianMixture,
    MixtureClassifier,
    RelevanceVectorClassifier,
    SparseMixtureClassifier,
)
from mixtura.mixture import Mixture
from mixtura.roles import Structure
from mixtura.solvers import Record

FORMAT = "mixtura model"
FORMAT_VERSION = 1
ESTIMATORS = {
    "GaussianMixture": GaussianMixture,
    "MixtureClassifier": MixtureClassifier,
    "RelevanceVectorClassifier": RelevanceVectorClassifier,
    "SparseMixtureClassifier": SparseMixtureClassifier,
}
# Fitted numbers that go into the header, besides the tensors of the mixture.
FITTED = ("n_features_in_", "n_iter_", "converged_", "lower_bound_", "lower_bounds_")


def save(estimator: Any, path: Any) -> None:
    """Write a fitted estimator; its constructor arguments go along where they are plain values.

    An estimator that is more than a mixture says what it stores: `_stored()` gives plain values and tensors, and
    `_restored(values, tensors)` takes them back.
    """
    if hasattr(estimator, "_stored"):
        _save_stored(estimator, path)
        return
    mixture: Mixture = estimator.mixture_
    tensors = {f"covariance.{name}": part for name, part in mixture.covariance.tensors().items()}
    tensors |= {"log_weights": mixture.log_weights, "means": mixture.means, "class_of": mixture.class_of}
    header = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "estimator": type(estimator).__name__,
        "parameters": {k: v for k, v in estimator.get_params(deep=False).items() if _is_plain(v)},
        "structure": _structure_to_json(estimator._structure(mixture.n_features)),
        "fitted": {name: _plain(getattr(estimator, name)) for name in FITTED if hasattr(estimator, name)},
        "history": [list(vars(record).values()) for record in estimator.history_],
        "feature_names": _plain(getattr(estimator, "feature_names_in_", None)),
        "classes": _classes_to_json(getattr(estimator, "classes_", None)),
    }
    _write(header, tensors, path)


def _write(header: dict[str, Any], tensors: dict[str, Tensor], path: Any) -> None:
    contiguous = {name: part.detach().cpu().contiguous().clone() for name, part in tensors.items()}
    save_file(contiguous, str(path), metadata={"mixtura": json.dumps(header)})


def _save_stored(estimator: Any, path: Any) -> None:
    values, tensors = estimator._stored()
    header = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "estimator": type(estimator).__name__,
        "parameters": {k: v for k, v in estimator.get_params(deep=False).items() if _is_plain(v)},
        "stored": {name: _plain(value) for name, value in values.items()},
        "n_features": estimator.n_features_in_,
        "history": [list(vars(record).values()) for record in estimator.history_],
        "feature_names": _plain(getattr(estimator, "feature_names_in_", None)),
        "classes": _classes_to_json(getattr(estimator, "classes_", None)),
    }
    _write(header, tensors, path)


def _rebuild_stored(header: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    if not all(bool(part.isfinite().all()) for part in tensors.values()):
        raise ValueError("The model file is damaged: it holds numbers that are not finite; save the model again.")
    estimator = ESTIMATORS[header["estimator"]](**header["parameters"])
    estimator.n_features_in_ = header["n_features"]
    estimator.history_ = [Record(*record) for record in header["history"]]
    if header["feature_names"] is not None:
        estimator.feature_names_in_ = np.array(header["feature_names"], dtype=object)
    if header["classes"] is not None:
        estimator.classes_ = _classes_from_json(header["classes"])
    estimator._restored(header["stored"], tensors)
    return estimator


def load(path: Any) -> Any:
    """Read a model that `save` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, or was not written by mixtura.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"No model file at {str(path)!r}; check the path, or write one with model.save(path).")
    header, tensors = _read(path)
    try:
        return _rebuild_stored(header, tensors) if "stored" in header else _rebuild(header, tensors)
    except (KeyError, TypeError, IndexError, RuntimeError, AttributeError) as error:
        raise ValueError(f"The model file {str(path)!r} is damaged ({error!r}); save the model again.") from error


def _read(path: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(
            f"{str(path)!r} is not a model file of mixtura, or it is damaged ({error}); save the model again with model.save."
        ) from error
    try:
        header = json.loads(metadata["mixtura"])
    except (KeyError, ValueError) as error:
        raise ValueError(f"{str(path)!r} was not written by mixtura: its header is missing or unreadable.") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT or header.get("estimator") not in ESTIMATORS:
        raise ValueError(f"{str(path)!r} was not written by mixtura: its header does not name one of its models.")
    if header.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{str(path)!r} has format version {header.get('format_version')}, but this mixtura reads version "
            f"{FORMAT_VERSION}; install the version that wrote it, or save the model again."
        )
    return header, tensors


def _rebuild(header: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    parts = {name.removeprefix("covariance."): t for name, t in tensors.items() if name.startswith("covariance.")}
    structure = _structure_from_json(header["structure"])
    covariance = structure.from_tensors(parts)
    mixture = Mixture(tensors["log_weights"], tensors["means"], covariance, tensors["class_of"])
    _check(mixture, tensors)
    parameters = dict(header["parameters"])
    estimator_class = ESTIMATORS[header["estimator"]]
    if not isinstance(parameters.get("covariance_type"), str):
        parameters["covariance_type"] = structure
    estimator = estimator_class(**parameters)
    estimator.mixture_ = mixture
    estimator.history_ = [Record(*record) for record in header["history"]]
    for name, value in header["fitted"].items():
        if name in FITTED:
            setattr(estimator, name, value)
    if header["feature_names"] is not None:
        estimator.feature_names_in_ = np.array(header["feature_names"], dtype=object)
    if header["classes"] is not None:
        estimator.classes_ = _classes_from_json(header["classes"])
        estimator.class_prior_ = mixture.log_class_prior.exp().numpy()
        estimator.n_components_ = np.array([part.stop - part.start for part in mixture.class_slices])
    return estimator


def _check(mixture: Mixture, tensors: dict[str, Tensor]) -> None:
    n_components, n_features = mixture.means.shape
    shapes = mixture.covariance.n_components == n_components and mixture.covariance.n_features == n_features
    if not shapes or len(mixture.log_weights) != n_components or len(mixture.class_of) != n_components:
        raise ValueError("The model file is damaged: its tensors do not fit together; save the model again.")
    finite = all(bool(t.isfinite().all()) for name, t in tensors.items() if name != "log_weights")
    if not finite or bool(tensors["log_weights"].isnan().any()):
        raise ValueError("The model file is damaged: it holds numbers that are not finite; save the model again.")


def _structure_to_json(structure: Structure) -> dict[str, Any]:
    if isinstance(structure, Tied):
        return {"name": "tied", "inner": _structure_to_json(structure.inner), "per_class": structure.per_class}
    if isinstance(structure, LowRank):
        return {"name": "low_rank", "rank": structure.rank}
    return {"name": structure.name}


def _structure_from_json(header: dict[str, Any]) -> Structure:
    name = header["name"]
    if name == "tied":
        return Tied(_structure_from_json(header["inner"]), bool(header["per_class"]))
    if name == "low_rank":
        return LowRank(header["rank"])
    return {"full": Full, "diag": Diagonal, "spherical": Spherical}[name]()


def _is_plain(value: Any) -> bool:
    """Whether JSON holds the value without loss; random states and objects stay behind."""
    if isinstance(value, list | tuple):
        return all(_is_plain(v) for v in value)
    return value is None or isinstance(value, bool | int | float | str)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic | Tensor) else value


def _classes_to_json(classes: np.ndarray | None) -> dict[str, Any] | None:
    if classes is None:
        return None
    return {"dtype": classes.dtype.str if classes.dtype != object else "object", "values": classes.tolist()}


def _classes_from_json(header: dict[str, Any]) -> np.ndarray:
    return np.array(header["values"], dtype=object if header["dtype"] == "object" else np.dtype(header["dtype"]))
