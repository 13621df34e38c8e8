"""Classification heads for neural networks: `torch.nn` modules that map features to class logits."""

from mixtura.nn.baselines import LargeMarginSoftmax, LinearHead
from mixtura.nn.heads import MixtureHead
from mixtura.nn.sparse_heads import PrunedHead, SparseMixtureHead, WarmUp

__all__ = ["LargeMarginSoftmax", "LinearHead", "MixtureHead", "PrunedHead", "SparseMixtureHead", "WarmUp"]
