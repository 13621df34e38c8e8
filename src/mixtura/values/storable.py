"""Classes that model files may name. A file holds such a name and the fields of a value, never code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

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
