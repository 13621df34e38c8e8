"""Parts of the rows: batches with their labels, weights and a name for messages; rows of one process of several."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Sharded:
    """The training rows of this process.

    Every process of a `torch.distributed` group calls `fit` with its own part; each pass sums the moments over all
    processes. All processes get the same model, that of all rows together.

    Parameters
    ----------
    X : array-like, tensor, memory map or re-iterable of batches
        Rows of this process.
    y : array-like, default=None
        One label per row; None for `GaussianMixture`, or if X has batches of (X, y).
    sample_weight : array-like, default=None
        One weight per row.
    group : torch.distributed.ProcessGroup, default=None
        The processes that share the rows; None means all.

    Examples
    --------
    Start with ``torchrun --nproc-per-node=2 script.py``:

    >>> import torch.distributed as dist
    >>> from mixtura import GaussianMixture
    >>> from mixtura.streams import Sharded
    >>> dist.init_process_group("gloo")  # doctest: +SKIP
    >>> model = GaussianMixture(8, random_state=0).fit(Sharded(own_rows))  # doctest: +SKIP
    """

    X: Any
    y: Any = None
    sample_weight: Any = None
    group: Any = None
