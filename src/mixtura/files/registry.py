"""Registry of the classes in model files. A file holds the name of a class and the fields of a value, never code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from operator import methodcaller
from typing import Any, TypeVar

import torch
from torch import Tensor

Class = TypeVar("Class", bound=type)

# Names are part of the file format: they do not change when a class is renamed or moved.
CLASSES: dict[str, type] = {}
NAMES: dict[type, str] = {}
CHECKS: dict[type, Callable[..., None]] = {}
UPGRADES: dict[type, Callable[[dict[str, object]], dict[str, object]]] = {}


def storable(
    name: str,
    check: Callable[..., None] | None = None,
    upgrade: Callable[[dict[str, object]], dict[str, object]] | None = None,
) -> Callable[[Class], Class]:
    """Register a class for model files: a frozen dataclass, or an estimator.

    Fields that begin with an underscore are caches and are not stored. New fields need a default, so that older files
    can still be read.

    Parameters
    ----------
    name : str
        The name of the class in files.
    check : callable, optional
        Raises a ValueError if the fields of a value are inconsistent; called before saving and after loading.
    upgrade : callable, optional
        Turns the arguments of an estimator in a file of an older version into those of today.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from mixtura.files.registry import storable
    >>> @storable("example.prior")
    ... @dataclass(frozen=True)
    ... class MyPrior:
    ...     strength: float = 1.0
    """

    def register(cls: Class) -> Class:
        if CLASSES.get(name, cls).__qualname__ != cls.__qualname__:
            raise ValueError(f"the name {name!r} is already used by {CLASSES[name].__qualname__}; choose another.")
        CLASSES[name], NAMES[cls] = cls, name
        if check is not None:
            CHECKS[cls] = check
        if upgrade is not None:
            UPGRADES[cls] = upgrade
        return cls

    return register


class Structured(ABC):
    """A value that is stored as a structure, which is storable, and tensors."""

    @property
    @abstractmethod
    def structure(self) -> object:
        """A storable value whose `from_tensors` restores this one."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The tensors, by name."""

    @abstractmethod
    def check(self) -> None:
        """Raise a ValueError if the tensors are inconsistent; called before saving and after loading."""


def as_loaded(value: object) -> Any:
    """Return the value as loaded from a file: contiguous tensors, without caches.

    The same numbers in another memory layout, or a factor computed in another way, may round differently.
    """
    return map_tensors(value, Tensor.contiguous)


def on_device(value: object, device: torch.device) -> Any:
    """Return a copy of a storable value with all of its tensors on a device."""
    return map_tensors(value, lambda part: part.to(device))


def map_tensors(value: object, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a storable value, rebuilt with all of its tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: map_tensors(part, change) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(part, change) for part in value)
    if isinstance(value, Structured):
        return methodcaller("from_tensors", map_tensors(value.tensors(), change))(value.structure)
    if type(value) not in NAMES or not is_dataclass(value):
        return value
    return type(value)(**{name: map_tensors(getattr(value, name), change) for name in stored_fields(type(value))})


def device_of(value: object) -> torch.device:
    """The device of the first tensor of a storable value; the CPU if there is none."""
    pending = [value]
    while pending:
        part = pending.pop(0)
        if isinstance(part, Tensor):
            return part.device
        if isinstance(part, Structured):
            pending += part.tensors().values()
        elif isinstance(part, list | tuple):
            pending += part
        elif type(part) in NAMES and is_dataclass(part):
            pending += [getattr(part, name) for name in stored_fields(type(part))]
    return torch.device("cpu")


def stored_fields(cls: type) -> list[str]:
    """Names of the stored fields of a dataclass."""
    return [field.name for field in fields(cls) if field.init and not field.name.startswith("_")]
