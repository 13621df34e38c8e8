"""A cached property without a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801 - as in functools
    """functools.cached_property without its lock, as in Python 3.12.

    The lock of 3.11 is shared by all objects: threads wait for each other, and torch.compile cannot trace it. Without
    the lock two threads may both compute a value.
    """

    def __init__(self, compute: Callable[[Any], T]):
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        value = instance.__dict__[self.name] = self.compute(instance)
        return value
