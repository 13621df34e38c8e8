"""Objectives. A new one: one file here, one line in OBJECTIVES, one line in tests/cases.py."""

from __future__ import annotations

from mixtura.objectives.hybrid import Hybrid
from mixtura.objectives.likelihood import Assigned, Conditional, Joint, Marginal, class_log_joint, posteriors
from mixtura.objectives.margin import Margin
from mixtura.objectives.per_member import Members
from mixtura.roles import Objective

OBJECTIVES: dict[str, Objective] = {
    "joint": Joint(),
    "marginal": Marginal(),
    "conditional": Conditional(),
    "margin": Margin(),
    "hybrid": Hybrid(),
}

__all__ = [
    "OBJECTIVES",
    "Assigned",
    "Conditional",
    "Hybrid",
    "Joint",
    "Margin",
    "Marginal",
    "Members",
    "class_log_joint",
    "posteriors",
]
