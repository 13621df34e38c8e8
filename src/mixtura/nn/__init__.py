"""Classification heads for neural networks: `torch.nn` modules that map features to class logits."""

from mixtura.nn.baselines import LargeMarginSoftmax, LinearHead
from mixtura.nn.heads import MixtureHead, SparseMixtureHead, WarmUp
from mixtura.nn.pruned import PrunedHead

__all__ = ["LargeMarginSoftmax", "LinearHead", "MixtureHead", "PrunedHead", "SparseMixtureHead", "WarmUp"]
