"""Rules of arguments: the values that an argument takes, in words, and the test of a value.

An estimator declares a rule for each argument in a table, `_arguments`; `check_arguments` checks all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Rule:
    """The values that an argument takes, in words, and the test of a value; `a | b` allows both."""

    words: str
    holds: Callable[[Any], bool]

    def __or__(self, other: Rule) -> Rule:
        return Rule(self.words + other.words, lambda value: self.holds(value) or other.holds(value))


def number(low: float, high: float, words: str, closed: str = "") -> Rule:
    """A finite number between two limits; those of `closed`, "low" and "high", are allowed too."""

    def holds(value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, Real):
            return False
        size = float(value)
        return low < size < high or (size == low and "low" in closed) or (size == high and "high" in closed)

    return Rule(f"a number {words}", holds)


def at_least(smallest: int) -> Rule:
    """An integer of at least this size."""
    return Rule(
        f"an integer of at least {smallest}",
        lambda value: isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= smallest,
    )


def among(names: Iterable[str], also: str = "") -> Rule:
    """One of these names; `also` tells of other values, which further rules allow."""
    options = list(names)
    words = f"one of {', '.join(map(repr, options))}{also}"
    return Rule(words, lambda value: isinstance(value, str) and value in options)


def of_type(types: Any, words: str = "") -> Rule:
    """An object of one of these types."""
    return Rule(words, lambda value: isinstance(value, types))


AUTO = Rule(' or "auto"', lambda value: isinstance(value, str) and value == "auto")
NONE = Rule(" or None", lambda value: value is None)
SWITCH = Rule("True or False", lambda value: isinstance(value, bool | np.bool_))
POSITIVE = number(0, float("inf"), "above 0")
NON_NEGATIVE = number(0, float("inf"), "of at least 0", "low")
SHARE = number(0, 1, "from 0 to 1", "low and high")
FRACTION = number(0, 1, "above 0 and below 1")
PART = number(0, 1, "above 0 and at most 1", "high")


def require(name: str, value: Any, rule: Rule) -> Any:
    """The value of an argument, which must obey a rule."""
    if not rule.holds(value):
        raise ValueError(f"{name} must be {rule.words}; got {value!r}.")
    return value


def check_arguments(values: Mapping[str, Any], rules: Mapping[str, Any]) -> None:
    """Check every argument that has a rule, or a function that raises an error."""
    for name, value in values.items():
        rule = rules.get(name)
        if isinstance(rule, Rule):
            require(name, value, rule)
        elif rule is not None:
            rule(value)
