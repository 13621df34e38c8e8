"""Model selection: candidates, criteria, folds, searches, merging."""
