"""Rows in several places: processes of torch.distributed, workers of a Dask cluster. Only sums are sent."""

from __future__ import annotations

import asyncio
import concurrent.futures
import operator
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from types import FunctionType
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from mixtura import checks
from mixtura.engine.sources import Block, BlockSource, Source
from mixtura.engine.threads import computing, own_threads
from mixtura.values.moments import Summary

T = TypeVar("T")
SPLIT_EVERY = 8  # sums added per task of Dask, so that the client receives one object


def added(parts: Sequence[T]) -> T:
    """The sum of parts that can be added."""
    return reduce(cast("Callable[[T, T], T]", operator.add), parts)


class Processes:
    """The processes of a group. Tensors are summed on the CPU by gloo, on the current GPU by NCCL."""

    def __init__(self, group: dist.ProcessGroup | None):
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError(
                "X is Sharded, but there is no process group; call torch.distributed.init_process_group first, in "
                "processes started by torchrun."
            )
        self.group, self.rank = group, dist.get_rank(group)
        self.n_processes = dist.get_world_size(group)
        self.device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")

    def total(self, compute: Callable[[], T]) -> T:
        """The sum of the results of all processes, added in a fixed order; the same in all processes."""
        value, error = None, None
        try:
            value = compute()
        except Exception as problem:  # the other processes wait and must be told
            error = problem
        try:
            self._all_well(error)
            if isinstance(value, Summary):
                return cast("T", self._sum(value))
            parts = cast("list[T]", [None] * self.n_processes)
            dist.all_gather_object(parts, value, self.group)
            return added(parts)
        except RuntimeError as problem:
            raise checks.lost_process(problem) from problem

    def _all_well(self, error: Exception | None) -> None:
        """Raise in every process where one of them has failed."""
        failed = torch.tensor([float(error is not None)], device=self.device)
        dist.all_reduce(failed, dist.ReduceOp.MAX, self.group)
        if not bool(failed):
            return
        messages: list[str | None] = [None] * self.n_processes
        dist.all_gather_object(messages, None if error is None else str(error), self.group)
        if error is not None:
            raise error
        rank, message = next((rank, text) for rank, text in enumerate(messages) if text is not None)
        raise checks.SourceError(f"Process {rank} of {self.n_processes} could not use its rows: {message}")

    def _sum(self, summary: Summary) -> Summary:
        """One all-reduce. Its result is identical in all processes, so all of them make the same steps."""
        tensors = summary.tensors()
        flat = torch.cat([part.reshape(-1) for part in tensors]).to(self.device)
        dist.all_reduce(flat, dist.ReduceOp.SUM, self.group)
        parts = flat.to(tensors[0].device).split([part.numel() for part in tensors])
        return summary.with_tensors([part.reshape(own.shape) for part, own in zip(parts, tensors, strict=True)])


class ProcessSource(Source):
    """The rows of all processes; those of this process are in a local source."""

    is_local = False

    def __init__(self, local: Source, processes: Processes, n_rows: int):
        self.n_features, self.device, self.dtype, self.n_rows = local.n_features, local.device, local.dtype, n_rows
        self._local, self._processes = local, processes

    def blocks(self) -> Iterator[Block]:
        raise checks.in_one_place(f"{self._processes.n_processes} processes")

    def total(self, compute: Callable[[Source], T]) -> T:
        return self._processes.total(lambda: compute(self._local))


class DaskSource(Source):
    """Rows in partitions, delayed values of Dask (the extra `dask`), which stay on their workers.

    A partition is a tuple of arguments of `read`, which turns it into a block where it is.
    """

    is_local = False

    def __init__(
        self,
        partitions: Sequence[tuple[object, ...]],
        read: Callable[..., Block],
        n_features: int,
        device: torch.device,
        dtype: torch.dtype,
        lengths: Sequence[int],
    ):
        self.n_features, self.device, self.dtype, self.n_rows = n_features, device, dtype, sum(lengths)
        self._partitions, self._read = partitions, read
        self._starts = [sum(lengths[:number]) for number in range(len(lengths))]

    def blocks(self) -> Iterator[Block]:
        """All partitions, fetched into this process one after the other."""
        from dask.delayed import delayed

        for number, start in enumerate(self._starts):
            part = compute_delayed(delayed(self._partitions[number]))
            yield replace(self._read(number, *part), start=start)

    def total(self, compute: Callable[[Source], T]) -> T:
        named = cast("FunctionType", compute)
        while isinstance(named, partial):
            named = named.func
        task = partial(_compute_part, compute, self._read, self._starts)
        return add_partitions(self._partitions, task, named.__name__.strip("_<>").removesuffix("_part"))


def _compute_part(
    compute: Callable[[Source], T], read: Callable[..., Block], starts: list[int], number: int, *part: object
) -> T:
    return compute(BlockSource(replace(read(number, *part), start=starts[number])))


def add_partitions(partitions: Sequence[tuple[object, ...]], compute: Callable[..., T], name: str) -> T:
    """The sum of compute(number, *partition) over all partitions, computed and added on the workers of Dask.

    `name` is the name of the tasks on the dashboard.
    """
    from dask.delayed import delayed

    token, shared = uuid.uuid4().hex, delayed(compute, traverse=False)
    work, add = delayed(_alone), delayed(_add)
    sums = [
        work(shared, number, *part, dask_key_name=f"mixtura_{name}-{token}-{number}")
        for number, part in enumerate(partitions)
    ]
    while len(sums) > 1:
        sums = [add(*sums[i : i + SPLIT_EVERY]) for i in range(0, len(sums), SPLIT_EVERY)]
    return compute_delayed(sums[0])


def _alone(compute: Callable[..., T], number: int, *part: object) -> T:
    """Compute on one thread: Dask runs as many tasks in parallel as a worker has threads."""
    with own_threads(1), computing():
        return compute(number, *part)


def _add(*parts: T) -> T:
    with computing():
        return added(parts)


def compute_delayed(value: object) -> Any:
    """Compute a delayed value; failures of the cluster or of a file raise an error with a message of this library."""
    from dask.base import compute

    try:
        return compute(value)[0]
    except (asyncio.CancelledError, concurrent.futures.CancelledError, OSError, RuntimeError) as error:
        lost = type(error).__module__.startswith("distributed") or not isinstance(error, OSError | RuntimeError)
        if lost:
            raise checks.lost_scheduler(error) from error
        if isinstance(error, OSError):
            raise checks.unread("A partition", error) from error
        raise
