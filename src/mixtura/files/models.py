"""Saving and loading of fitted models as safetensors files with a JSON header. Loading runs no code."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from mixtura.files.codec import Decoder, Encoder, Json, fitted_of
from mixtura.files.registry import CHECKS, NAMES

BINARY = os.O_BINARY if sys.platform == "win32" else 0  # otherwise files are opened in text mode


@contextmanager
def write_atomically(target: Path) -> Iterator[BinaryIO]:
    """A context with a file to write to, renamed when it is complete on disk; after an error it is deleted."""
    unfinished = target.with_name(f".mixtura-{secrets.token_hex(8)}")
    # Created without tempfile, so that permissions follow the umask as for any other file.
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the new name is on disk only after its folder is flushed
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


# Limits of the header: characters, and brackets among them. Parsed JSON takes up to 25 times the memory of its text,
# and empty lists take most of the time. Within these limits parsing takes less than 100 MB and half a second. A header
# usually has a few thousand characters.
LARGEST_HEADER = 4 * 10**6
MOST_BRACKETS = 100_000
MOST_TENSORS = 100_000
DEEPEST_HEADER = 100  # nested brackets


def write_tensors(path: str | os.PathLike[str], tensors: dict[str, Tensor], name: str, header: dict[str, Json]) -> None:
    """Replace the file at `path`, or the target of a link there, atomically.

    The content is first written to a temporary file in the same folder and flushed to disk. If the process is
    interrupted, `path` has either the old or the new content. A killed process may leave a temporary file
    (`.mixtura-*`) behind.

    Parameters
    ----------
    path : str or path-like
    tensors : dict of str to Tensor
    name : str
        Key of the header in the metadata of the file.
    header : dict
        Values that JSON can hold.

    Raises
    ------
    FileNotFoundError
        The folder does not exist.
    ValueError
        `path` is a folder, a device or anything else that is not a regular file.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {str(target.parent)!r} to save the model in; create it first.")
    if target.exists() and not target.is_file():
        raise ValueError(f"{str(path)!r} is not a regular file and cannot be replaced; choose another file.")
    text = json.dumps(header)
    try:
        _check_text(text)
    except ValueError as error:
        raise ValueError(f"The file cannot be written: {error}; pass long lists as arrays.") from error
    # Copies: safetensors refuses tensors that share memory.
    plain = {key: part.detach().cpu().contiguous().clone() for key, part in tensors.items()}
    with write_atomically(target) as file:
        file.write(to_bytes(plain, {name: text}))


def read_tensors(path: str | os.PathLike[str], name: str) -> tuple[Any, dict[str, Tensor]]:
    """Read the header and the tensors of a file written by `write_tensors`, on the CPU.

    Sizes are compared with the size of the file before memory is allocated.

    Raises
    ------
    ValueError
        The file is damaged, or is not of this kind.
    """
    try:
        _check_length(path)
        with safe_open(str(path), framework="pt") as file:  # compares offsets, shapes and types with the file's size
            header = _parsed((file.metadata() or {}).get(name))
            names = file.keys()
            if len(names) > MOST_TENSORS:
                raise ValueError(f"it holds {len(names)} tensors, more than {MOST_TENSORS}")
            # Copies: a tensor of safetensors is mapped from the file, and changes when another program writes there.
            return header, {key: file.get_tensor(key).clone() for key in names}
    except (SafetensorError, OSError) as error:
        raise ValueError(str(error)) from error


def _check_length(path: str | os.PathLike[str]) -> None:
    with Path(path).open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if not 0 < size <= min(LARGEST_HEADER * 2, Path(path).stat().st_size - 8):  # escapes may double the text
        raise ValueError(f"its header cannot have {size} bytes")


def _parsed(text: str | None) -> Json:
    if text is None:
        raise ValueError("it has no header of mixtura")
    _check_text(text)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its header is not JSON: {error}") from error
    _check_depth(header)
    return header


def _check_text(text: str) -> None:
    n_brackets = text.count("[") + text.count("{")
    if len(text) > LARGEST_HEADER or n_brackets > MOST_BRACKETS:
        raise ValueError(
            f"its header has {len(text)} characters and {n_brackets} brackets, more than {LARGEST_HEADER} and "
            f"{MOST_BRACKETS}"
        )


def _check_depth(value: object) -> None:
    level, depth = [[value]], 0
    while level:
        depth += 1
        if depth > DEEPEST_HEADER:
            raise ValueError(f"its header is nested more than {DEEPEST_HEADER} deep")
        parts = (part.values() if isinstance(part, dict) else part for part in level)
        level = [item for part in parts for item in part if isinstance(item, dict | list)]


METADATA = "mixtura"  # key of the header in the file
FORMAT = "mixtura model"
FORMAT_VERSION, READ = 4, (3, 4)  # written, and read; see docs/model_files.md


def save(estimator: object, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator; see `Estimator.save`."""
    model, tensors = _coded(estimator)
    header: dict[str, Json] = {"format": FORMAT, "format_version": FORMAT_VERSION, "model": model}
    header["checksum"] = _checksum(header, tensors)
    write_tensors(path, tensors, METADATA, header)


def _coded(estimator: object) -> tuple[dict[str, Json], dict[str, Tensor]]:
    """A fitted estimator as JSON and tensors."""
    if type(estimator) not in NAMES:
        raise ValueError(
            f"{type(estimator).__name__} cannot be saved, since it is not an estimator of mixtura. Register the class "
            "with mixtura.files.registry.storable."
        )
    CHECKS.get(type(estimator), lambda _: None)(estimator)
    encoder = Encoder()
    return encoder.estimator(estimator), {name: part.contiguous() for name, part in encoder.tensors.items()}


def as_arrays(estimator: object) -> dict[str, object]:
    """A fitted estimator as text and arrays, for programs that store nothing else, such as skops."""
    model, tensors = _coded(estimator)
    return {METADATA: json.dumps(model), "arrays": {name: part.cpu().numpy() for name, part in tensors.items()}}


def from_arrays(state: dict[str, Any]) -> Any:
    """The estimator of `as_arrays`."""
    return _rebuild(json.loads(state[METADATA]), {name: torch.tensor(part) for name, part in state["arrays"].items()})


def load(path: str | os.PathLike[str]) -> Any:
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
    if header.get("format_version") not in READ:
        raise ValueError(
            f"{str(path)!r} has format version {header.get('format_version')}, but this mixtura reads versions "
            f"{READ[0]} to {READ[-1]}. Install the version that wrote it, or save the model again."
        )
    if header.pop("checksum", None) != _checksum(header, tensors):
        raise ValueError(f"The model file {str(path)!r} is damaged: its checksum does not match. Save the model again.")
    try:
        return _rebuild(header["model"], tensors)
    except Exception as error:  # a forged file may cause any error
        raise ValueError(f"The model file {str(path)!r} is damaged ({error!r}). Save the model again.") from error


def _rebuild(code: Json, tensors: dict[str, Tensor]) -> object:
    decoder = Decoder(tensors)
    model = decoder.decode(code)
    if not fitted_of(model):
        raise ValueError("it holds a model that is not fitted")
    if decoder.unused:
        raise ValueError(f"it holds an unused tensor, {min(decoder.unused)!r}")
    return model


def _checksum(header: dict[str, Json], tensors: dict[str, Tensor]) -> str:
    """A digest of the whole file, against accidental damage; forged files cannot run code in any case."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        if tensors[name].numel():  # an empty tensor may have no strides to view it with
            digest.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
