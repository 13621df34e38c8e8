"""Batches: parts of the rows, with their labels, their weights, and a name for messages."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from mixtura import checks


class Batch(NamedTuple):
    """A part of the rows."""

    X: Any
    y: Any = None
    sample_weight: Any = None
    origin: str = ""  # description of its origin


def named_batches(batches: Iterable[Any]) -> Iterator[Batch]:
    """Batches in any form (X, (X, y) or (X, y, sample_weight)), with names; failures of the iterable are named too."""
    iterator = iter(batches)
    for number in itertools.count():
        try:
            batch = next(iterator)
        except StopIteration:
            return
        except checks.SourceError:
            raise
        except Exception as error:  # a lost disk, or a process of a DataLoader that was killed
            raise checks.unread(f"Batch {number}", error) from error
        if isinstance(batch, Batch):
            yield batch
        elif isinstance(batch, tuple | list):
            yield Batch(*[*batch, None, None][:3], origin=f"Batch {number}")
        else:
            yield Batch(batch, origin=f"Batch {number}")
