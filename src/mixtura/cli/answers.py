"""The answer of a command: text for people and facts for machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What a command prints.

    Parameters
    ----------
    text : str
        For people.
    facts : dict
        For ``--json``.
    """

    text: str
    facts: dict[str, Any]
