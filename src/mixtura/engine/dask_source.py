"""Rows on the workers of a Dask cluster: partitions stay on their workers, only sums are sent (the extra `dask`)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import operator
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any, TypeVar

import dask
import torch

from mixtura import checks
from mixtura.engine.sources import Block, BlockSource, Source
from mixtura.engine.threads import OwnThreads, computing
from mixtura.values.extents import Extents

T = TypeVar("T")
SPLIT_EVERY = 8  # sums added per task, so that the client receives one object


class DaskPartitions:
    """Partitions as delayed values, each a tuple of arguments of the computation."""

    def __init__(self, parts: Sequence[tuple[Any, ...]]):
        self.parts = list(parts)

    def total(self, compute: Callable[..., T], name: str) -> T:
        """The sum of compute(number, *part) over all parts, computed and added on the workers.

        `name` is the name of the tasks on the dashboard of Dask.
        """
        token, shared = uuid.uuid4().hex, dask.delayed(compute, traverse=False)  # pyright: ignore[reportPrivateImportUsage]
        work, add = dask.delayed(_alone), dask.delayed(_added)  # pyright: ignore[reportPrivateImportUsage]
        sums = [
            work(shared, number, *part, dask_key_name=f"mixtura_{name}-{token}-{number}")
            for number, part in enumerate(self.parts)
        ]
        while len(sums) > 1:
            groups = [sums[i : i + SPLIT_EVERY] for i in range(0, len(sums), SPLIT_EVERY)]
            sums = [add(*group) for group in groups]
        return _computed(sums[0])

    def part(self, number: int) -> tuple[Any, ...]:
        """One part, in this process."""
        return _computed(dask.delayed(self.parts[number]))  # pyright: ignore[reportPrivateImportUsage]


def _alone(compute: Callable[..., T], number: int, *part: Any) -> T:
    """Compute on one thread: Dask runs as many tasks in parallel as a worker has threads."""
    with OwnThreads(1), computing():
        return compute(number, *part)


def _added(*parts: Any) -> Any:
    with computing():
        return reduce(operator.add, parts)


def _computed(value: Any) -> Any:
    """Compute a delayed value; failures of the cluster or of a file raise an error with a message of this library."""
    try:
        return dask.compute(value)[0]  # pyright: ignore[reportPrivateImportUsage]
    except (asyncio.CancelledError, concurrent.futures.CancelledError, OSError, RuntimeError) as error:
        lost = type(error).__module__.startswith("distributed") or not isinstance(error, OSError | RuntimeError)
        if lost:
            raise checks.lost_scheduler(error) from error
        if isinstance(error, OSError):
            raise checks.unread("A partition", error) from error
        raise


class DaskSource:
    """Rows in partitions, each turned into a block by `read` on the worker that has it."""

    def __init__(
        self,
        partitions: DaskPartitions,
        read: Callable[..., Block],
        n_features: int,
        device: torch.device,
        dtype: torch.dtype,
        lengths: Sequence[int],
    ):
        self.n_features, self.device, self.dtype = n_features, device, dtype
        self.n_rows, self.extents = sum(lengths), None
        self._partitions, self._read = partitions, read
        self._starts = [sum(lengths[:number]) for number in range(len(lengths))]

    extents: Extents | None

    def blocks(self) -> Iterator[Block]:
        """All partitions, fetched into this process one after the other."""
        for number, start in enumerate(self._starts):
            yield replace(self._read(number, *self._partitions.part(number)), start=start)

    def total(self, compute: Callable[[Source], T]) -> T:
        task = partial(_compute_part, compute, self._read, self._starts)
        return self._partitions.total(task, _name(compute))


def _compute_part(
    compute: Callable[[Source], T], read: Callable[..., Block], starts: list[int], number: int, *part: Any
) -> T:
    return compute(BlockSource(replace(read(number, *part), start=starts[number])))


def _name(compute: Callable[..., Any]) -> str:
    """The name of the tasks on the dashboard."""
    while isinstance(compute, partial):
        compute = compute.func
    return compute.__name__.strip("_<>").removesuffix("_part")
