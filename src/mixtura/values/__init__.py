"""Frozen values that parts exchange: moments, summaries, pseudo-moments, targets, extents."""
