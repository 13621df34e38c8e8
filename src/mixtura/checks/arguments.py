"""Rules and checks of arguments, and warnings. A message says what is wrong, the value, and how to fix it.

An estimator declares a rule for each argument in a table, `_arguments`; `check_arguments` checks all of them.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class Rule:
    """The values that an argument takes, in words, and the test of a value; `a | b` allows both."""

    words: str
    holds: Callable[[object], bool]

    def __or__(self, other: Rule) -> Rule:
        return Rule(self.words + other.words, lambda value: self.holds(value) or other.holds(value))


def number(low: float, high: float, words: str, closed: str = "") -> Rule:
    """A finite number between two limits; those of `closed`, "low" and "high", are allowed too."""

    def holds(value: object) -> bool:
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
    options = names if isinstance(names, Mapping) else list(names)  # a registry may grow
    words = f"one of {', '.join(map(repr, options))}{also}"
    return Rule(words, lambda value: isinstance(value, str) and value in options)


def of_type(kind: type | UnionType) -> Rule:
    """An object of one of these types, where the words of another rule tell of them."""
    # isinstance takes a class for an object of a protocol whose members it has.
    return Rule("", lambda value: isinstance(value, kind) and not isinstance(value, type))


def shape_of(values: object) -> tuple[int, ...]:
    """The shape of what NumPy takes for an array."""
    return np.shape(cast("npt.ArrayLike", values))


def is_single(value: object) -> bool:
    """Whether this may be a label: no array, and no other collection."""
    return shape_of(value) == () and not isinstance(value, Mapping | set)


AUTO = Rule(' or "auto"', lambda value: isinstance(value, str) and value == "auto")
NONE = Rule(" or None", lambda value: value is None)
SILENT_AUTO = Rule("", AUTO.holds)  # where the words of another rule tell of "auto"
SWITCH = Rule("True or False", lambda value: isinstance(value, bool | np.bool_))
POSITIVE = number(0, float("inf"), "above 0")
NON_NEGATIVE = number(0, float("inf"), "of at least 0", "low")
SHARE = number(0, 1, "from 0 to 1", "low and high")
FRACTION = number(0, 1, "above 0 and below 1")
PART = number(0, 1, "above 0 and at most 1", "high")
RANK = Rule('"auto" or an integer of at least 1', (at_least(1) | AUTO).holds)
UNLABELED = Rule("None, np.nan (missing labels) or one label", is_single)


def require(name: str, value: object, rule: Rule) -> Any:
    """The value of an argument, which must obey a rule."""
    if not rule.holds(value):
        raise ValueError(f"{name} must be {rule.words}; got {value!r}.")
    return value


def check_arguments(values: Mapping[str, object], rules: Mapping[str, Rule | Callable[..., object]]) -> None:
    """Check every argument that has a rule, or a function that raises an error."""
    for name, value in values.items():
        rule = rules.get(name)
        if isinstance(rule, Rule):
            require(name, value, rule)
        elif rule is not None:
            rule(value)


class RepairWarning(UserWarning):
    """Warning that degenerate data or a degenerate component was repaired so that the fit could continue."""


class PriorWarning(UserWarning):
    """Warning that a prior is so strong or so weak that the model cannot learn from the data."""


PACKAGE = str(Path(__file__).parents[1])


def warn(text: str, category: type[Warning]) -> None:
    """Warn at the line outside of this package that called it, however deep the call is."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def one_of(name: str, value: object, table: Iterable[str], also: str = "") -> str:
    """Check that a value is one of these names."""
    return require(name, value, among(table, also))


def count(name: str, value: object, smallest: int = 1) -> int:
    """Check that a value is an integer of at least `smallest`."""
    return int(require(name, value, at_least(smallest)))


def non_negative(name: str, value: object) -> float:
    """Check that a value is a finite number of at least 0."""
    return float(require(name, value, NON_NEGATIVE))


def positive(name: str, value: object, also: str = "") -> float:
    """Check that a value is a finite number above 0."""
    return float(require(name, value, Rule(POSITIVE.words + also, POSITIVE.holds)))


def switch(name: str, value: object) -> bool:
    """Check that a value is True or False."""
    return bool(require(name, value, SWITCH))


def components(value: object) -> None:
    """Check the argument `n_components`, for all classes or as a dict."""
    numbers = {"": value} if not isinstance(value, Mapping) else {f"[{c!r}]": n for c, n in value.items()}
    for which, number in numbers.items():
        count(f"n_components{which}", number)


def components_or_auto(value: object) -> None:
    """Check the argument `n_components` of an estimator that may select it."""
    if not AUTO.holds(value):
        components(value)


def components_per_class(value: object, classes: Sequence[Hashable]) -> list[int]:
    """Number of components of each class, from a valid `n_components`."""
    if not isinstance(value, Mapping):
        return [int(cast("int", value))] * len(classes)
    unknown = [key for key in value if key not in classes]
    absent = [c for c in classes if c not in value]
    if unknown or absent:
        raise ValueError(
            f"n_components as a dict must have one entry per class, and the classes are {list(classes)}; "
            f"{_listed('missing', absent)}{' and ' if absent and unknown else ''}{_listed('unknown', unknown)}."
        )
    return [int(value[c]) for c in classes]


def _listed(word: str, values: list[Hashable]) -> str:
    return f"{word} are {values}" if values else ""


def coefficient_prior(value: object, is_counts: bool, solver: str, shared: bool, sparsity: object) -> None:
    """Check that a prior of a log-linear mixture suits the other arguments; `is_counts`: if it is of pseudo-counts."""
    if value is None or AUTO.holds(value):
        return
    if solver == "multiplicative" and not is_counts:
        raise ValueError(
            f"solver='multiplicative' takes a prior of pseudo-counts only; got prior={value!r}. Use "
            "PseudoCounts, or solver='auto'."
        )
    if vars(value).get("centre") == "start":
        obstacles = (
            (solver != "auto", f"solver={solver!r} starts at random", "solver='auto'"),
            (shared, "shared=True starts at random", "shared=False"),
            (sparsity not in ("auto", 0), f"sparsity={sparsity!r} removes bases", "sparsity=0"),
        )
        for is_there, reason, fix in obstacles:
            if is_there:
                raise ValueError(f"{reason}, so that prior={value!r} has no meaning; use {fix}, or Normal('zero').")


def rank(value: object, n_features: int) -> int | None:
    """Check the rank of low-rank covariances; None for "auto"."""
    known = None if AUTO.holds(value) else int(require("rank", value, RANK))
    if known is not None and known > n_features:
        raise ValueError(
            f'rank must not exceed the number of features, {n_features}; got {value}. Lower it, or use rank="auto".'
        )
    return known


def has_update(structure: str, holds: bool) -> None:
    """Check that EM can fit a covariance structure of this name."""
    if not holds:
        raise ValueError(
            f"covariance_type {structure!r} has no closed-form update, so EM cannot fit it; use 'low_rank', or a "
            "classifier with solver='gradient'."
        )


def device(value: object, required: bool = True) -> torch.device | None:
    """Check that a torch device is available; None for None, or for a device that is absent and not required."""
    if value is None:
        return None
    try:
        chosen = torch.device(cast("str", value))
    except (RuntimeError, TypeError) as error:
        raise ValueError(f'device must be None, "cpu", "cuda" or a torch.device; got {value!r}.') from error
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        if not required:
            return None
        n_gpus = torch.cuda.device_count()
        raise ValueError(f'device={value!r} is not available: torch sees {n_gpus} GPUs. Use device=None or "cpu".')
    if chosen.type == "meta":
        raise ValueError(f'device must be one that stores values, such as "cpu" or "cuda"; got {value!r}.')
    if chosen.type not in ("cpu", "cuda"):
        try:
            torch.zeros(1, device=chosen)
        except (RuntimeError, AssertionError, ImportError, NotImplementedError) as error:
            if not required:
                return None
            raise ValueError(f'device={value!r} is not available. Use device=None or "cpu".') from error
    return chosen


def checkpoint(value: object) -> None:
    """Check that a checkpoint is None or a file that can be written."""
    if value is None:
        return
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise ValueError(f"checkpoint must be None or the path of a file; got {value!r}.")
    path = Path(value)
    if path.is_dir():
        raise ValueError(f"checkpoint must be the path of a file; got the folder {str(path)!r}. Add a file name.")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        reason = "is not writable" if path.parent.is_dir() else "does not exist"
        raise ValueError(
            f"checkpoint={str(path)!r} cannot be written: the folder {str(path.parent)!r} {reason}. Create the folder, "
            "or choose another file."
        )


MEMORY_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def memory_limit(value: object) -> int:
    """Bytes of temporary memory, from a number or text like "256 MB"; None is the default."""
    if value is None:
        return 256 * 2**20
    size = _bytes(value) if isinstance(value, str) else value
    if isinstance(size, bool) or not isinstance(size, Real) or not 2**20 <= float(size) < float("inf"):
        raise ValueError(f'memory_limit must be at least 1 MiB, as bytes or text like "256 MB"; got {value!r}.')
    return int(float(size))


def _bytes(text: str) -> float | None:
    """The number of bytes in text like "256 MB", or None."""
    text = text.strip().upper()
    unit = next((u for u in sorted(MEMORY_UNITS, key=len, reverse=True) if text.endswith(u)), None)
    number = text.removesuffix(unit).strip() if unit else text
    if not number.replace(".", "", 1).isdigit():
        return None
    return float(number) * (MEMORY_UNITS[unit] if unit else 1)
