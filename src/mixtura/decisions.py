"""Classes and posteriors of many rows: in single precision first, in double where that leaves a doubt (screening)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# By so many nats the first of up to a thousand classes has the posterior 1, to the last digit of a double.
SURE = 45.0
# Single precision is not tried where its log joints may be off by more than this,
LARGEST_ERROR = 8.0
# and is given up once more than this share of the rows had to be looked at again.
LARGEST_SHARE = 1 / 3
# Roundings of a term of the product form: of the two cells, of their product, of its coefficient and of sums.
N_ROUNDINGS = 8


@dataclass(frozen=True)
class Decision:
    """What is known of a row as soon as one class leads the others by enough.

    Called with log joints (K, n), it gives what it decides, (n, ...).

    Arguments:
        scores: log joints (K, n) -> log p(x, c), (C, n), whose errors are at most twice as large.
        finish: those (C, n), which it may write over, and memory for the answer or None -> what is decided, (n, ...),
            there or elsewhere.
        lead: nats by which the first class must be ahead of all others to decide it.
    """

    scores: Callable[[Tensor], Tensor]
    finish: Callable[[Tensor, Tensor | None], Tensor]
    lead: float

    def __call__(self, log_joint: Tensor, out: Tensor | None = None) -> Tensor:
        return self.finish(self.scores(log_joint), out)

    def screened(self, log_joint: Tensor, error: float, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What is decided, and the numbers of the rows in doubt, where log joints may be off by an error."""
        scores = self.scores(log_joint)
        near = torch.gt(scores, scores.amax(0) - (self.lead + 4 * error), out=torch.empty_like(scores))
        return self.finish(scores, out), (near.sum(0) != 1).nonzero()[:, 0]  # none is near NaN


def first(scores: Tensor, out: Tensor | None = None) -> Tensor:
    """The number of the first class of each row, (C, n) -> (n,), as numbers of the same type."""
    return scores.argmax(0).to(scores.dtype)


def single_error(errors: Tensor) -> float:
    """How far log joints in single precision may be off, from bounds in units of eps (product-error)."""
    return N_ROUNDINGS * torch.finfo(torch.float32).eps * float(errors.max())


@dataclass
class Doubts:
    """How many rows one thread has looked at, and how many of them twice."""

    seen: int = 0
    doubted: int = 0

    @property
    def few(self) -> bool:
        return self.doubted <= LARGEST_SHARE * self.seen

    def count(self, seen: int, doubted: int) -> None:
        self.seen += seen
        self.doubted += doubted
