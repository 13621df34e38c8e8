"""Rows distributed over the processes of torch.distributed: every sum is over all processes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from mixtura import checks
from mixtura.engine.sources import Block, Source
from mixtura.values.moments import Summary

T = TypeVar("T")


class Processes:
    """The processes of a group. Tensors are summed on the CPU by gloo, on the current GPU by NCCL."""

    def __init__(self, group: Any):
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
                return self._summed(value)
            parts: list[Any] = [None] * self.n_processes
            dist.all_gather_object(parts, value, self.group)
            return reduce(operator.add, parts)
        except RuntimeError as problem:
            raise checks.lost_process(problem) from problem

    def _all_well(self, error: Exception | None) -> None:
        """Raise in every process where one of them has failed."""
        failed = torch.tensor([float(error is not None)], device=self.device)
        dist.all_reduce(failed, dist.ReduceOp.MAX, self.group)
        if not bool(failed):
            return
        messages: list[Any] = [None] * self.n_processes
        dist.all_gather_object(messages, None if error is None else str(error), self.group)
        if error is not None:
            raise error
        rank, message = next((rank, text) for rank, text in enumerate(messages) if text is not None)
        raise checks.SourceError(f"Process {rank} of {self.n_processes} could not use its rows: {message}")

    def _summed(self, summary: Summary) -> Any:
        """One all-reduce. Its result is identical in all processes, so all of them make the same steps."""
        tensors = summary.tensors()
        flat = torch.cat([part.reshape(-1) for part in tensors]).to(self.device)
        dist.all_reduce(flat, dist.ReduceOp.SUM, self.group)
        parts = flat.to(tensors[0].device).split([part.numel() for part in tensors])
        return summary.with_tensors([part.reshape(own.shape) for part, own in zip(parts, tensors, strict=True)])


class ProcessSource:
    """The rows of all processes; those of this process are in a local source."""

    def __init__(self, local: Source, processes: Processes, n_rows: int):
        self.n_features, self.device, self.dtype = local.n_features, local.device, local.dtype
        self.n_rows, self.extents = n_rows, None
        self._local, self._processes = local, processes

    def blocks(self) -> Iterator[Block]:
        raise checks.in_one_place(f"{self._processes.n_processes} processes")

    def total(self, compute: Callable[[Source], T]) -> T:
        return self._processes.total(lambda: compute(self._local))
