"""Classes and posteriors of many rows: in single precision first, in double where that leaves a doubt (screening)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# By so many nats another class is so far behind, with a posterior below 1e-14, that it changes the first one no more
# than the last digit of log p(x, c) = -100 does.
SURE = 14 * math.log(10)
# Single precision is not tried where its log joints may be off by more than this,
LARGEST_ERROR = 8.0
# nor where too many of a sample, of at most so many rows of a block, would have to be looked at again.
SAMPLE = 128
# What a row costs besides its product, in monomials of that; measured with 153 and 1326 of them.
OTHER_COST = 320
# Roundings of a term of the product form: of the two cells, of their product, of its coefficient and of sums.
N_ROUNDINGS = 8


def bearable_share(n_monomials: int) -> float:
    """Of rows in doubt, up to which screening is faster: it saves half of every product, and a row in doubt costs 1.25
    times as much as it would alone.
    """
    return 0.5 / 1.25 * n_monomials / (n_monomials + OTHER_COST)


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
        # As numbers: truth values take three times as long to make and to add.
        near = torch.gt(scores, scores.amax(0) - (self.lead + 4 * error), out=torch.empty_like(scores))
        # None is near NaN, nor where the lead is below the last digit.
        return self.finish(scores, out), (near.sum(0) != 1).nonzero()[:, 0]


def first(scores: Tensor, out: Tensor | None = None) -> Tensor:
    """The number of the first class of each row, (C, n) -> (n,), as numbers of the same type."""
    return scores.max(0).indices.to(scores.dtype)  # argmax takes 4 to 20 times as long along this side
