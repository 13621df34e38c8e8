"""The table of a search: every candidate with its score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixtura.files.registry import storable

SHOWN = 20  # candidates that a printed table lists


@storable("scored_candidate")
@dataclass(frozen=True)
class ScoredCandidate:
    """One candidate of a search.

    Parameters
    ----------
    what : mapping of str to object
        The settings of the candidate, such as ``{"covariance_type": "diag", "n_components": 4}``.
    score : float
        The criterion, smaller is better.
    standard_error : float
        Standard error of the score over the held-out samples; NaN if unknown.
    seconds : float
        Time spent on the candidate. Candidates that are trained together share their time equally.
    """

    what: Mapping[str, Any]
    score: float
    standard_error: float
    seconds: float


@storable("estimate")
@dataclass(frozen=True)
class Estimate:
    """The performance to expect on new samples, corrected for the selection (honest-estimate).

    Parameters
    ----------
    log_loss : float
        Mean log-loss.
    error : float
        Error rate.
    log_loss_interval, error_interval : tuple of float
        Intervals with a confidence of 95 %, from below to above.

    Examples
    --------
    >>> from mixtura.selection.table import Estimate
    >>> print(Estimate(0.312, 0.121, (0.25, 0.4), (0.08, 0.17)))
    12.1 % error (8.0 to 17.0), log-loss 0.312 (0.250 to 0.400)
    """

    log_loss: float
    error: float
    log_loss_interval: tuple[float, float]
    error_interval: tuple[float, float]

    def __str__(self) -> str:
        (low, high), errors = self.log_loss_interval, (100 * self.error, *(100 * end for end in self.error_interval))
        error = "{:.1f} % error ({:.1f} to {:.1f})".format(*errors)
        return f"{error}, log-loss {self.log_loss:.3f} ({low:.3f} to {high:.3f})"


@storable("search_table")
@dataclass(frozen=True)
class SearchTable:
    """The candidates of a search and the chosen one.

    Parameters
    ----------
    criterion : str
        The name of the score, such as "log_loss"; smaller is better.
    candidates : sequence of ScoredCandidate
        All candidates, in the order in which they were compared.
    chosen : int
        The position of the chosen candidate. It need not have the smallest score: a simpler candidate is preferred
        when the difference is small compared with its standard error.
    estimate : Estimate or None, default=None
        The log-loss and error rate to expect on new samples. The scores of the table are lower than that, since the
        chosen candidate is the best of many on the held-out samples. None if the search does not keep their
        predictions.

    Examples
    --------
    >>> from mixtura.selection.table import ScoredCandidate, SearchTable
    >>> candidates = [ScoredCandidate({"n_components": k}, s, 0.02, 0.1) for k, s in ((1, 0.31), (2, 0.25))]
    >>> SearchTable("log_loss", candidates, chosen=1)
      n_components  log_loss  standard_error  seconds
    *            2    0.2500          0.0200     0.10
                 1    0.3100          0.0200     0.10
    """

    criterion: str
    candidates: Sequence[ScoredCandidate]
    chosen: int
    estimate: Estimate | None = None

    @property
    def best(self) -> ScoredCandidate:
        """The chosen candidate."""
        return self.candidates[self.chosen]

    def __len__(self) -> int:
        return len(self.candidates)

    def __iter__(self) -> Iterator[ScoredCandidate]:
        return iter(self.candidates)

    def records(self) -> list[dict[str, Any]]:
        """One dict per candidate, as ``pandas.DataFrame`` takes it."""
        return [
            {
                **candidate.what,
                self.criterion: candidate.score,
                "standard_error": candidate.standard_error,
                "seconds": candidate.seconds,
                "chosen": number == self.chosen,
            }
            for number, candidate in enumerate(self.candidates)
        ]

    def ranked(self) -> list[int]:
        """The positions of the candidates, the chosen one first, then by score."""
        scores = [candidate.score for candidate in self.candidates]
        order = sorted(range(len(scores)), key=scores.__getitem__)
        return sorted(order, key=lambda number: number != self.chosen)

    def __repr__(self) -> str:
        names = list(dict.fromkeys(name for candidate in self.candidates for name in candidate.what))
        lines = [["", *names, self.criterion, "standard_error", "seconds"]]
        ranked = self.ranked()
        for number in ranked[:SHOWN]:
            candidate = self.candidates[number]
            settings = [str(candidate.what.get(name, "")) for name in names]
            numbers = [f"{candidate.score:.4f}", f"{candidate.standard_error:.4f}", f"{candidate.seconds:.2f}"]
            lines.append(["*" if number == self.chosen else "", *settings, *numbers])
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        text = [
            f"{line[0]:1} " + "  ".join(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
            for line in lines
        ]
        left_out = len(ranked) - SHOWN
        text += [f"  ... and {left_out} more"] if left_out > 0 else []
        return "\n".join(text + ([] if self.estimate is None else [f"  expected on new samples: {self.estimate}"]))
