"""Rows distributed over several processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
