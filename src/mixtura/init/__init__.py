"""Initialisation: description of the rows, k-means, label spreading, splitting."""
