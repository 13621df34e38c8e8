"""Choosing among models: candidates, criteria, folds, searches, merging."""
