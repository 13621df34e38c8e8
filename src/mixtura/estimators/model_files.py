"""Saving and loading fitted models: safetensors with a JSON header. Nothing in a file is ever executed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mixtura.covariances import (
    Diagonal,
    DiagonalCovariance,
    Full,
    FullCovariance,
    LowRank,
    LowRankCovariance,
    LowRankPrecision,
    Spherical,
    Tied,
    TiedCovariance,
)
from mixtura.model.mixture import Mixture
from mixtura.roles import Covariance, Structure
from mixtura.solvers import Record
from mixtura.values.tensor_files import write_tensors

METADATA = "mixtura"  # key of the header in the file
FORMAT = "mixtura model"
FORMAT_VERSION = 1
ESTIMATORS: dict[str, type] = {}  # by name; every estimator that can be saved enters itself
RANKED = {"low_rank": LowRank, "low_rank_precision": LowRankPrecision}
STRUCTURES = {"full": Full, "diag": Diagonal, "spherical": Spherical}


class Savable:
    """An estimator that can be written to a file.

    It says what it stores: `_stored()` gives plain values and tensors, and `_restored(values, tensors)` takes them
    back. `_saved` names numbers that the fit chose.
    """

    _saved: tuple[str, ...] = ()
    history_: list[Record]
    converged_: bool

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith("mixtura."):
            ESTIMATORS[cls.__name__] = cls

    def _stored(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        raise NotImplementedError

    def _restored(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        raise NotImplementedError

    def save(self, path: Any) -> None:
        """Write the fitted model to a file (safetensors with a JSON header); read it with `mixtura.load`."""
        check_is_fitted(self)  # pyright: ignore[reportArgumentType]
        save(self, path)


def save(estimator: Any, path: Any) -> None:
    """Write a fitted estimator.

    Its arguments go along where they are plain values, arrays or covariance structures; priors, starts and random
    states that are objects stay behind, and are at their defaults after loading. Predictions are the same to the last
    bit.
    """
    values, tensors = estimator._stored()
    tensors["history"] = torch.tensor([astuple(record) for record in estimator.history_], dtype=torch.float64).reshape(
        -1, 4
    )
    tensors = {name: part.detach().cpu().contiguous().clone() for name, part in tensors.items()}
    header = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "estimator": type(estimator).__name__,
        "parameters": _parameters_to_json(estimator),
        "stored": values,
        "chosen": {name: getattr(estimator, name) for name in estimator._saved},
        "converged": bool(estimator.converged_),
        "feature_names": getattr(estimator, "feature_names_in_", np.array([])).tolist() or None,
        "classes": _classes_to_json(getattr(estimator, "classes_", None)),
    }
    header["checksum"] = _checksum(header, tensors)
    write_tensors(path, tensors, METADATA, header)


def mixture_tensors(mixture: Mixture) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A Gaussian mixture as plain values and tensors."""
    tensors = {f"covariance.{name}": part for name, part in mixture.covariance.tensors().items()}
    tensors |= {"log_weights": mixture.log_weights, "means": mixture.means, "class_of": mixture.class_of}
    return {"structure": _structure_to_json(_structure_of(mixture.covariance))}, tensors


def mixture_from(values: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[Mixture, Structure]:
    """The inverse of `mixture_tensors`, and the structure of the covariances."""
    parts = {name.removeprefix("covariance."): t for name, t in tensors.items() if name.startswith("covariance.")}
    structure = _structure_from_json(values["structure"])
    mixture = Mixture(tensors["log_weights"], tensors["means"], structure.from_tensors(parts), tensors["class_of"])
    _check_shapes(mixture)
    return mixture, structure


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
        return _rebuild(header, tensors)
    except (KeyError, TypeError, IndexError, RuntimeError, AttributeError, ValueError) as error:
        raise ValueError(f"The model file {str(path)!r} is damaged ({error!r}); save the model again.") from error


def _read(path: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(
            f"{str(path)!r} is not a model file of mixtura, or it is damaged ({error}); save the model again with "
            "model.save."
        ) from error
    try:
        header = json.loads(metadata["mixtura"])
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"{str(path)!r} was not written by mixtura: its header is missing or unreadable; pass a file written by "
            "model.save."
        ) from error
    if not isinstance(header, dict) or header.get("format") != FORMAT or header.get("estimator") not in ESTIMATORS:
        raise ValueError(
            f"{str(path)!r} was not written by mixtura: its header does not name one of its models; pass a file "
            "written by model.save."
        )
    if header.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{str(path)!r} has format version {header.get('format_version')}, but this mixtura reads version "
            f"{FORMAT_VERSION}; install the version that wrote it, or save the model again."
        )
    if header.pop("checksum", None) != _checksum(header, tensors):
        raise ValueError(f"The model file {str(path)!r} is damaged: its checksum does not match; save the model again.")
    return header, tensors


def _checksum(header: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """A digest of everything in the file: it finds accidents, not forgeries, which could execute nothing anyway."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()


def _rebuild(header: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    estimator: Any = ESTIMATORS[header["estimator"]](**_parameters_from_json(header["parameters"]))
    estimator.history_ = [Record(int(number), *rest) for number, *rest in tensors["history"].tolist()]
    estimator.n_iter_ = len(estimator.history_)
    estimator.converged_ = bool(header["converged"])
    for name in estimator._saved:
        setattr(estimator, name, header["chosen"][name])
    if header["feature_names"] is not None:
        estimator.feature_names_in_ = np.array(header["feature_names"], dtype=object)
    if header["classes"] is not None:
        estimator.classes_ = _classes_from_json(header["classes"])
    estimator._restored(header["stored"], tensors)
    return estimator


def _check_shapes(mixture: Mixture) -> None:
    n_components, n_features = mixture.means.shape
    sizes = mixture.covariance.n_components, len(mixture.log_weights), len(mixture.class_of)
    if set(sizes) != {n_components} or mixture.covariance.n_features != n_features:
        raise ValueError("its tensors do not fit together")


def _structure_of(covariance: Covariance) -> Structure:
    """The structure of fitted covariances, whatever the arguments have become since the fit."""
    if isinstance(covariance, TiedCovariance):
        return Tied(_structure_of(covariance.inner), covariance.n_groups > 1)
    if isinstance(covariance, LowRankCovariance):
        return (LowRankPrecision if covariance.of_precision else LowRank)(covariance.rank)
    if isinstance(covariance, DiagonalCovariance):
        return Spherical() if covariance.spherical else Diagonal()
    if isinstance(covariance, FullCovariance):
        return Full()
    raise ValueError(
        f"A model with covariances of type {type(covariance).__name__} cannot be saved; use those of mixtura."
    )


def _structure_to_json(structure: Structure) -> dict[str, Any]:
    if isinstance(structure, Tied):
        return {"name": "tied", "inner": _structure_to_json(structure.inner), "per_class": structure.per_class}
    if isinstance(structure, LowRank | LowRankPrecision):
        return {"name": structure.name, "rank": structure.rank}
    return {"name": structure.name}


def _structure_from_json(header: dict[str, Any]) -> Structure:
    name = header["name"]
    if name == "tied":
        return Tied(_structure_from_json(header["inner"]), bool(header["per_class"]))
    if name in RANKED:
        return RANKED[name](header["rank"])
    return STRUCTURES[name]()


def _parameters_to_json(estimator: Any) -> dict[str, Any]:
    encoded = {name: _to_json(value) for name, value in estimator.get_params(deep=False).items()}
    return {name: value for name, value in encoded.items() if value is not LEFT_BEHIND}


def _parameters_from_json(header: dict[str, Any]) -> dict[str, Any]:
    return {name: _from_json(value) for name, value in header.items()}


LEFT_BEHIND = object()


def _to_json(value: Any) -> Any:
    """An argument as JSON, or LEFT_BEHIND where it is an object of another kind."""
    if isinstance(value, np.ndarray | np.generic | Tensor):
        value = value.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype | torch.device):
        return str(value).removeprefix("torch.")
    if isinstance(value, Tied | LowRank | LowRankPrecision | Full | Diagonal | Spherical):
        return {"structure": _structure_to_json(value)}
    if type(value) in ESTIMATORS.values() and not hasattr(value, "mixture_"):  # a fitted one is a start
        return {"estimator": type(value).__name__, "parameters": _parameters_to_json(value)}
    if isinstance(value, Mapping):
        parts = [[_to_json(k), _to_json(v)] for k, v in value.items()]
        return LEFT_BEHIND if any(LEFT_BEHIND in pair for pair in parts) else {"pairs": parts}
    if isinstance(value, list | tuple):
        parts = [_to_json(v) for v in value]
        return LEFT_BEHIND if LEFT_BEHIND in parts else parts
    return LEFT_BEHIND


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "estimator" in value:
        return ESTIMATORS[value["estimator"]](**_parameters_from_json(value["parameters"]))
    return _structure_from_json(value["structure"]) if "structure" in value else dict(value["pairs"])


def _classes_to_json(classes: np.ndarray | None) -> dict[str, Any] | None:
    if classes is None:
        return None
    values = classes.tolist()
    if not all(isinstance(value, bool | int | float | str) for value in values):
        raise ValueError(f"A model with classes_ {values} cannot be saved; labels must be numbers or text.")
    return {"dtype": "object" if classes.dtype == object else classes.dtype.str, "values": values}


def _classes_from_json(header: dict[str, Any]) -> np.ndarray:
    return np.array(header["values"], dtype=object if header["dtype"] == "object" else np.dtype(header["dtype"]))
