"""Heads for networks: torch.nn modules that turn features into class logits."""

from mixtura.nn.baselines import LargeMarginSoftmax, LinearHead
from mixtura.nn.heads import MixtureHead, SparseMixtureHead, WarmUp
from mixtura.nn.pruned import PrunedHead

__all__ = ["LargeMarginSoftmax", "LinearHead", "MixtureHead", "PrunedHead", "SparseMixtureHead", "WarmUp"]
