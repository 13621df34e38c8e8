"""Classes that model files may name. A file holds such a name and the fields of a value, never code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

from torch import Tensor

Class = TypeVar("Class", bound=type)

# Names are part of the file format: a class that is renamed or moved keeps its name here.
CLASSES: dict[str, type] = {}
NAMES: dict[type, str] = {}
CHECKS: dict[type, Callable[[Any], None]] = {}


def storable(name: str, check: Callable[[Any], None] | None = None) -> Callable[[Class], Class]:
    """Let model files hold values of a class: a frozen dataclass, or an estimator.

    A field that begins with an underscore is a cache and is left out. New fields need a default, so that files written
    before can still be read.

    Parameters
    ----------
    name : str
        The name of the class in files.
    check : callable, optional
        Raises a ValueError where the fields of a value do not fit together; called before saving and after loading.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from mixtura.values.storable import storable
    >>> @storable("example.prior")
    ... @dataclass(frozen=True)
    ... class MyPrior:
    ...     strength: float = 1.0
    """

    def register(cls: Class) -> Class:
        if CLASSES.get(name, cls).__qualname__ != cls.__qualname__:
            raise ValueError(f"the name {name!r} is that of {CLASSES[name].__qualname__} already; choose another.")
        CLASSES[name], NAMES[cls] = cls, name
        if check is not None:
            CHECKS[cls] = check
        return cls

    return register


class Structured(ABC):
    """A value that model files hold as its structure, which is storable, and its tensors."""

    @property
    @abstractmethod
    def structure(self) -> Any:
        """A storable value whose `from_tensors` makes this one again."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The numbers, by name."""

    @abstractmethod
    def check(self) -> None:
        """Raise a ValueError where the numbers do not fit together; called before saving and after loading."""


def contiguous(value: Any) -> Any:
    """The same value with its tensors laid out as a file lays them out, so that a loaded model rounds as this one does.

    Matrix products of the same numbers in another layout may differ in the last bit.
    """
    if isinstance(value, Tensor):
        return value.contiguous()
    if isinstance(value, Structured):
        tensors = value.tensors()
        if all(part.is_contiguous() for part in tensors.values()):
            return value
        return value.structure.from_tensors({name: part.contiguous() for name, part in tensors.items()})
    if type(value) not in NAMES:
        return value
    parts = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
    changed = {name: laid_out for name, part in parts.items() if (laid_out := contiguous(part)) is not part}
    return replace(value, **changed) if changed else value
