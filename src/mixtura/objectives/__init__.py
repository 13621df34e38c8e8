"""Objectives. A new one: one file here, one line in OBJECTIVES, one line in tests/cases.py."""

from __future__ import annotations

from mixtura.objectives.likelihood import Assigned, Conditional, Joint, Marginal, posteriors, shares
from mixtura.objectives.members import Members
from mixtura.roles import Objective

OBJECTIVES: dict[str, Objective] = {
    "joint": Joint(),
    "marginal": Marginal(),
    "conditional": Conditional(),
}

__all__ = ["OBJECTIVES", "Assigned", "Conditional", "Joint", "Marginal", "Members", "posteriors", "shares"]
