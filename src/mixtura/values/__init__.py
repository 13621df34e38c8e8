"""Frozen values that parts hand to each other: moments, summaries, pseudo-moments, targets, extents."""
