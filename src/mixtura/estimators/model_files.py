"""Saving and loading fitted models: safetensors with a JSON header. Nothing in a file is ever executed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mixtura import checks
from mixtura.solvers import Record
from mixtura.values.encoding import Decoder, Encoder, fitted_of
from mixtura.values.storable import NAMES
from mixtura.values.tensor_files import read_tensors, write_tensors

METADATA = "mixtura"  # key of the header in the file
FORMAT = "mixtura model"
FORMAT_VERSION = 2  # docs/model_files.md says who reads which


class Savable:
    """An estimator that can be written to a file: all of its arguments, and all attributes that a fit has set."""

    n_features_in_: int
    n_iter_: int
    history_: list[Record]
    converged_: bool

    def save(self, path: Any) -> None:
        """Write the fitted model to a file, to be read with `mixtura.load`.

        The file (safetensors with a JSON header) holds all arguments and all fitted attributes, and no code. It
        replaces an older one in one move.

        Parameters
        ----------
        path : str or path-like
            Where the file is to be. A link is followed.

        Raises
        ------
        ValueError
            An argument or attribute is nothing that a file can hold, such as a function, a random generator, or an
            object of a class that is not registered; or `path` is not a regular file.
        """
        check_is_fitted(self)  # pyright: ignore[reportArgumentType]
        save(self, path)

    def _check_fitted(self) -> None:
        """Raise a ValueError unless what a fit leaves is there and fits together."""
        checks.fitted_basics(self)
        for record in self.history_:
            checks.is_kind("history_", record, Record)


def check_fitted(estimator: Any) -> None:
    """Check an estimator, if it is fitted."""
    if fitted_of(estimator):
        try:
            estimator._check_fitted()
        except AttributeError as error:
            raise ValueError(f"a part is missing: {error}") from error


def save(estimator: Any, path: Any) -> None:
    """Write a fitted estimator; see `Savable.save`."""
    if type(estimator) not in NAMES:
        raise ValueError(
            f"{type(estimator).__name__} is not an estimator of mixtura, and a model file cannot name it; register the "
            "class with mixtura.values.storable.storable."
        )
    check_fitted(estimator)
    encoder = Encoder()
    header = {"format": FORMAT, "format_version": FORMAT_VERSION, "model": encoder.estimator(estimator)}
    tensors = {name: part.contiguous() for name, part in encoder.tensors.items()}
    header["checksum"] = _checksum(header, tensors)
    write_tensors(path, tensors, METADATA, header)


def load(path: Any) -> Any:
    """Read a model that `save` wrote.

    Parameters
    ----------
    path : str or path-like

    Returns
    -------
    estimator
        The fitted estimator, on the CPU. Its numbers are the same to the last bit, its predictions to 1e-12.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        The file is damaged, has another format version, or was not written by mixtura.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"No model file at {str(path)!r}; check the path, or write one with model.save(path).")
    try:
        header, tensors = read_tensors(path, METADATA)
    except ValueError as error:
        raise ValueError(
            f"{str(path)!r} is not a model file of mixtura, or it is damaged ({error}); save the model again with "
            "model.save."
        ) from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(f"{str(path)!r} was not written by mixtura; pass a file written by model.save.")
    if header.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{str(path)!r} has format version {header.get('format_version')}, but this mixtura reads version "
            f"{FORMAT_VERSION}; install the version that wrote it, or save the model again."
        )
    if header.pop("checksum", None) != _checksum(header, tensors):
        raise ValueError(f"The model file {str(path)!r} is damaged: its checksum does not match; save the model again.")
    try:
        return _rebuild(header["model"], tensors)
    except Exception as error:  # whatever a forged file may cause
        raise ValueError(f"The model file {str(path)!r} is damaged ({error!r}); save the model again.") from error


def _rebuild(code: Any, tensors: dict[str, Tensor]) -> Any:
    decoder = Decoder(tensors)
    model = decoder.estimator(code["estimator"], code["arguments"], code["fitted"])
    check_is_fitted(model)
    if decoder.unused:
        raise ValueError(f"it holds a tensor that nothing uses, {min(decoder.unused)!r}")
    return model


def _checksum(header: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """A digest of everything in the file: it finds accidents, not forgeries, which could execute nothing anyway."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
