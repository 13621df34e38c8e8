"""Saving and loading of fitted models as safetensors files with a JSON header. Loading runs no code."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixtura.files.codec import Decoder, Encoder, fitted_of
from mixtura.files.registry import CHECKS, NAMES
from mixtura.files.tensor_files import read_tensors, write_tensors

METADATA = "mixtura"  # key of the header in the file
FORMAT = "mixtura model"
FORMAT_VERSION = 3  # see docs/model_files.md for compatibility


def save(estimator: Any, path: Any) -> None:
    """Write a fitted estimator; see `Estimator.save`."""
    if type(estimator) not in NAMES:
        raise ValueError(
            f"{type(estimator).__name__} cannot be saved, since it is not an estimator of mixtura. Register the class "
            "with mixtura.files.registry.storable."
        )
    CHECKS.get(type(estimator), lambda _: None)(estimator)
    encoder = Encoder()
    header = {"format": FORMAT, "format_version": FORMAT_VERSION, "model": encoder.estimator(estimator)}
    tensors = {name: part.contiguous() for name, part in encoder.tensors.items()}
    header["checksum"] = _checksum(header, tensors)
    write_tensors(path, tensors, METADATA, header)


def load(path: Any) -> Any:
    """Load a model saved with `save`.

    Parameters
    ----------
    path : str or path-like
        File to read.

    Returns
    -------
    estimator : estimator
        The fitted estimator, on the CPU. Its numbers and predictions are bitwise identical.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is damaged, has another format version, or was not written by mixtura.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"No model file at {str(path)!r}. Check the path, or write a file with model.save(path)."
        )
    try:
        header, tensors = read_tensors(path, METADATA)
    except ValueError as error:
        raise ValueError(
            f"{str(path)!r} is not a model file of mixtura, or it is damaged ({error}). Save the model again with "
            "model.save."
        ) from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(f"{str(path)!r} was not written by mixtura. Pass a file written by model.save.")
    if header.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{str(path)!r} has format version {header.get('format_version')}, but this mixtura reads version "
            f"{FORMAT_VERSION}. Install the version that wrote it, or save the model again."
        )
    if header.pop("checksum", None) != _checksum(header, tensors):
        raise ValueError(f"The model file {str(path)!r} is damaged: its checksum does not match. Save the model again.")
    try:
        return _rebuild(header["model"], tensors)
    except Exception as error:  # a forged file may cause any error
        raise ValueError(f"The model file {str(path)!r} is damaged ({error!r}). Save the model again.") from error


def _rebuild(code: Any, tensors: dict[str, Tensor]) -> Any:
    decoder = Decoder(tensors)
    model = decoder.estimator(code["estimator"], code["arguments"], code["fitted"])
    if not fitted_of(model):
        raise ValueError("it holds a model that is not fitted")
    if decoder.unused:
        raise ValueError(f"it holds an unused tensor, {min(decoder.unused)!r}")
    return model


def _checksum(header: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """A digest of the whole file, against accidental damage; forged files cannot run code in any case."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        if tensors[name].numel():  # an empty tensor may have no strides to view it with
            digest.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
