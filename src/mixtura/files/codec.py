"""Encoding of values as JSON and tensors, and decoding, for all attributes and arguments of estimators.

JSON has None, booleans, integers, finite numbers, text and lists; everything else is an object with a tag:

    {"float": "nan"}                                     NaN or an infinity, which JSON lacks
    {"tuple": [...]}, {"dict": [[key, value], ...]}
    {"tensor": name}, {"array": name, "dtype": "<f8"}    numbers in the tensors of the file
    {"array": [...], "dtype": "<U3", "shape": [2]}       text, or objects ("|O")
    {"scalar": value, "dtype": "<f8"}                    of NumPy
    {"floats": name}, {"ints": name}                     long lists of numbers
    {"value": class, "fields": {...}}                    a frozen dataclass of files/registry.py
    {"each": class, "columns": {...}}                    a long list of them
    {"structure": {...}, "tensors": {...}}               a value that its structure makes of tensors
    {"estimator": class, "arguments": {...}, "fitted": {...}}
    {"device": "cpu"}, {"path": "..."}
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache
from operator import methodcaller
from pathlib import Path, PurePath
from typing import Any, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from mixtura.files.registry import CHECKS, CLASSES, NAMES, UPGRADES, Structured, stored_fields

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
TENSOR_DTYPES = {*FLOATS, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
LONG = 8  # length from which lists of numbers, and of values of one class, are stored as tensors
LARGEST_TEXT_ARRAY = 5 * 10**7  # bytes; in arrays of text every entry takes the memory of the longest one
PLAIN = (bool, int, str, type(None))


def arguments_of(estimator: object) -> dict[str, Any]:
    """The arguments, as scikit-learn has them."""
    return methodcaller("get_params", deep=False)(estimator)


def fitted_of(estimator: object) -> dict[str, Any]:
    """The fitted attributes, by scikit-learn's convention."""
    return {name: value for name, value in vars(estimator).items() if name.endswith("_") and not name.startswith("_")}


# ---- writing --------------------------------------------------------------------------------------------------------


class Encoder:
    """Encodes values as JSON and collects their tensors; `place` is the name of a value, such as `solver.optimiser`."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def encode(self, value: object, place: str) -> Json:
        if isinstance(value, np.generic):
            return self._scalar(value, place)
        if type(value) in PLAIN:
            return cast("Json", value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": repr(float(value))}
        if isinstance(value, Tensor):
            return self._tensor(value, place)
        if isinstance(value, np.ndarray):
            return self._array(value, place)
        if isinstance(value, list):
            return self._list(value, place)
        if isinstance(value, tuple):
            return {"tuple": self._list(list(value), place)}
        if isinstance(value, Mapping):
            pairs = enumerate(value.items())
            return {
                "dict": [[self.encode(k, f"{place}.key{i}"), self.encode(v, f"{place}.{i}")] for i, (k, v) in pairs]
            }
        return self._object(value, place)

    def _object(self, value: object, place: str) -> Json:
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if isinstance(value, PurePath):
            return {"path": str(value)}
        if isinstance(value, Structured):
            return self._structured(value, place)
        if type(value) not in NAMES:
            raise ValueError(refusal(value, place))
        check(value, place)
        if not is_dataclass(value):  # an estimator
            return self.estimator(value, place)
        fields: dict[str, Json] = {
            name: self.encode(getattr(value, name), f"{place}.{name}") for name in stored_fields(type(value))
        }
        return {"value": NAMES[type(value)], "fields": fields}

    def _structured(self, value: Structured, place: str) -> dict[str, Json]:
        check(value, place)
        tensors: dict[str, Json] = {name: self._kept(part, f"{place}.{name}") for name, part in value.tensors().items()}
        return {"structure": self.encode(value.structure, f"{place}.structure"), "tensors": tensors}

    def estimator(self, value: object, place: str = "") -> dict[str, Json]:
        before = f"{place}." if place else ""
        known = {"arguments": arguments_of(value), "fitted": fitted_of(value)}
        coded = {
            part: {name: self.encode(item, f"{before}{name}") for name, item in items.items()}
            for part, items in known.items()
        }
        return {"estimator": NAMES[type(value)], **coded}

    def _kept(self, value: Tensor, place: str) -> str:
        self.tensors[place] = value.detach().cpu()
        return place

    def _tensor(self, value: Tensor, place: str) -> Json:
        if value.dtype not in TENSOR_DTYPES or value.layout is not torch.strided:
            raise ValueError(refusal(value, place))
        return {"tensor": self._kept(value, place)}

    def _array(self, value: np.ndarray, place: str) -> Json:
        kind = {"dtype": value.dtype.str}
        if value.dtype.kind in "biuf" and value.dtype.itemsize <= 8 and not isinstance(value, np.ma.MaskedArray):
            native = np.array(value, dtype=value.dtype.newbyteorder("="))
            numbers = native.view(f"i{native.itemsize}") if value.dtype.kind == "u" else native
            return {"array": self._kept(torch.from_numpy(numbers), place), **kind}
        if value.dtype.kind in "UO" and not isinstance(value, np.ma.MaskedArray):
            entries = [self.encode(item, f"{place}.{i}") for i, item in enumerate(value.ravel().tolist())]
            return {"array": entries, **kind, "shape": list(value.shape)}
        raise ValueError(refusal(value, place))

    def _scalar(self, value: np.generic, place: str) -> Json:
        if value.dtype.kind not in "biufU" or (value.dtype.kind != "U" and value.dtype.itemsize > 8):
            raise ValueError(refusal(value, place))
        return {"scalar": self.encode(value.item(), place), "dtype": value.dtype.str}

    def _list(self, value: list[object], place: str) -> Json:
        kinds = {type(item) for item in value}
        if len(value) >= LONG and kinds == {float}:
            return {"floats": self._kept(torch.tensor(value, dtype=torch.float64), place)}
        if len(value) >= LONG and kinds == {int} and all(-(2**63) <= item < 2**63 for item in cast("list[int]", value)):
            return {"ints": self._kept(torch.tensor(value, dtype=torch.int64), place)}
        kind = next(iter(kinds)) if len(kinds) == 1 else None
        if len(value) >= LONG and kind in NAMES and is_dataclass(kind) and stored_fields(kind):
            for item in value:
                check(item, place)
            columns = {
                name: self._list([getattr(item, name) for item in value], f"{place}.{name}")
                for name in stored_fields(kind)
            }
            return {"each": NAMES[kind], "columns": columns}
        return [self.encode(item, f"{place}.{i}") for i, item in enumerate(value)]


def refusal(value: object, place: str) -> str:
    """The message for a value that a file cannot hold, with the fix."""
    name, what = place.partition(".")[0], f"a {type(value).__name__}"
    advice = f"set it with model.set_params({name}=...) to numbers, text, arrays or an object of mixtura, or register"
    advice += " its class with mixtura.files.registry.storable"
    if isinstance(value, np.ndarray | np.generic | Tensor):
        what, advice = f"{what} of type {value.dtype}", "arrays must be dense, and hold numbers or text"
    elif isinstance(value, np.random.RandomState | np.random.Generator | torch.Generator):
        advice = f"pass an integer, or set it with model.set_params({name}=0) before saving"
    elif name.endswith("_"):
        advice = f"remove it with `del model.{name}` before saving"
    elif callable(value):
        named = isinstance(value, types.FunctionType | types.BuiltinFunctionType | type)
        what = f"a function ({value.__name__ if named else type(value).__name__})"
        advice = 'use a named one (kernel="precomputed" takes the values of any kernel)'
    return f"{place} is {what}, which a model file cannot hold; {advice}."


def check(value: object, place: str) -> None:
    """Check the fields of a registered value."""
    try:
        value.check() if isinstance(value, Structured) else CHECKS.get(type(value), lambda _: None)(value)
    except ValueError as error:
        raise ValueError(f"{place or type(value).__name__} cannot be saved: {error}.") from error


# ---- reading --------------------------------------------------------------------------------------------------------


class Decoder:
    """The inverse of `Encoder`. Input that the encoder cannot have written raises a ValueError."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors, self.unused = tensors, set(tensors)

    def decode(self, code: Json) -> Any:
        if isinstance(code, list):
            return [self.decode(item) for item in code]
        if not isinstance(code, dict):
            return code
        read = READERS.get(tuple(code))
        if read is None:
            raise ValueError(f"it holds an unknown kind of value, {sorted(code)}")
        return read(self, *code.values())

    def take(self, name: str) -> Tensor:
        if name not in self.unused:
            raise ValueError(f"it lacks the tensor {name!r}, or uses it twice")
        self.unused.discard(name)
        if self.tensors[name].dtype not in TENSOR_DTYPES:
            raise ValueError(f"its tensor {name!r} has type {self.tensors[name].dtype}")
        return self.tensors[name]

    def _float(self, text: str) -> float:
        if text not in ("nan", "inf", "-inf"):
            raise ValueError(f"{text!r} is neither NaN nor an infinity")
        return float(text)

    def _list(self, code: Json) -> list[object]:
        items = self.decode(code)
        if not isinstance(items, list):
            raise ValueError(f"it has a {type(items).__name__} in place of a list")
        return items

    def _numbers(self, name: str, dtype: torch.dtype) -> list[float]:
        values = self.take(name)
        if values.dtype != dtype or values.ndim != 1:
            raise ValueError(f"its tensor {name!r} is not a list of numbers")
        return values.tolist()

    def _array(self, name: str, dtype: str) -> np.ndarray:
        values, kind = self.take(name).numpy(), np.dtype(dtype)
        native = kind.newbyteorder("=")
        stored = np.dtype(f"i{kind.itemsize}") if kind.kind == "u" else native
        if kind.kind not in "biuf" or values.dtype != stored:
            raise ValueError(f"its tensor {name!r} is not an array of {dtype}")
        return values.view(native).astype(kind, copy=False)

    def _entries(self, code: list[Json], dtype: str, shape: list[int]) -> np.ndarray:
        kind, entries = np.dtype(dtype), self._list(code)
        text = kind.kind == "U" and all(isinstance(item, str) for item in entries)
        if not (text or kind.kind == "O") or kind.itemsize * max(len(entries), 1) > LARGEST_TEXT_ARRAY:
            raise ValueError(f"it has an array of {dtype} that is not one")
        if not all(type(n) is int and 0 <= n <= len(entries) for n in shape) or math.prod(shape) != len(entries):
            raise ValueError(f"it has an array of {len(entries)} entries and shape {shape}")
        array = np.empty(len(entries), dtype=kind)
        for i, item in enumerate(entries):  # lists in arrays of objects stay lists
            array[i] = item
        return array.reshape(shape)

    def _scalar(self, code: Json, dtype: str) -> np.generic:
        kind, value = np.dtype(dtype), self.decode(code)
        if kind.kind not in "biufU" or (kind.kind == "U") != isinstance(value, str):
            raise ValueError(f"{value!r} is not a number of type {dtype}")
        if kind.itemsize > LARGEST_TEXT_ARRAY or not isinstance(value, str | int | float):
            raise ValueError(f"{value!r} is not a number of type {dtype}")
        return kind.type(value)

    def _value(self, name: str, codes: dict[str, Json]) -> object:
        return self._build(name, {key: self.decode(code) for key, code in codes.items()})

    def _each(self, name: str, columns: dict[str, Json]) -> list[object]:
        lists = {key: self._list(code) for key, code in columns.items()}
        rows = zip(*lists.values(), strict=True)
        return [self._build(name, dict(zip(lists, row, strict=True))) for row in rows]

    def _build(self, name: str, values: dict[str, object]) -> object:
        """Make a dataclass from its fields; a field that is not in the file gets its default."""
        cls = CLASSES[name]
        hints = field_types(cls)
        wrong = [key for key in values if key not in hints or not fits(values[key], hints[key])]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is no field of {name!r}, or of another type")
        value = cls(**values)
        CHECKS.get(cls, lambda _: None)(value)
        return value

    def _structured(self, structure: Json, tensors: dict[str, str]) -> object:
        value = self.decode(structure).from_tensors({name: self.take(place) for name, place in tensors.items()})
        value.check()
        return value

    def estimator(self, name: str, arguments: dict[str, Json], fitted: dict[str, Json]) -> Any:
        cls = CLASSES[name]
        if is_dataclass(cls):
            raise ValueError(f"{name!r} is not an estimator")
        known = {key: self.decode(code) for key, code in arguments.items()}
        model = cls(**UPGRADES.get(cls, dict)(known))
        for key, code in fitted.items():
            if not key.endswith("_") or key.startswith("_"):
                raise ValueError(f"{key!r} is not a fitted attribute")
            setattr(model, key, self.decode(code))
        CHECKS.get(cls, lambda _: None)(model)
        return model


READERS: dict[tuple[str, ...], Callable[..., object]] = {
    ("float",): Decoder._float,
    ("tuple",): lambda self, code: tuple(self._list(code)),
    ("dict",): lambda self, pairs: {self.decode(key): self.decode(value) for key, value in pairs},
    ("tensor",): Decoder.take,
    ("array", "dtype"): Decoder._array,
    ("array", "dtype", "shape"): Decoder._entries,
    ("scalar", "dtype"): Decoder._scalar,
    ("floats",): lambda self, name: self._numbers(name, torch.float64),
    ("ints",): lambda self, name: self._numbers(name, torch.int64),
    ("value", "fields"): Decoder._value,
    ("each", "columns"): Decoder._each,
    ("structure", "tensors"): Decoder._structured,
    ("estimator", "arguments", "fitted"): Decoder.estimator,
    ("device",): lambda self, name: torch.device(name),
    ("path",): lambda self, name: Path(name),
}


@cache
def field_types(cls: type) -> dict[str, object]:
    """The types of the fields that a file may set."""
    if not is_dataclass(cls):
        raise ValueError(f"{cls.__name__} has no fields")
    hints = get_type_hints(cls)
    return {name: hints[name] for name in stored_fields(cls)}


def fits(value: object, hint: object) -> bool:
    """Whether a value is of an annotated type; the contents of containers are not checked."""
    if hint is Any:
        return True
    if get_origin(hint) in (Union, types.UnionType):
        return any(fits(value, part) for part in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, cast("type", get_origin(hint) or hint))
