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
        return "\n".join(text + ([f"  ... and {left_out} more"] if left_out > 0 else []))
