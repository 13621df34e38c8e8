"""Sparse Bayesian learning of discriminative mixtures (HU21)."""
