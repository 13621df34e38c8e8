"""A sparse head without what training has emptied: smaller tensors, the same outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from mixtura import checks
from mixtura.nn.components import at_least_single

if TYPE_CHECKING:
    from mixtura.nn.heads import SparseMixtureHead


class SparseMatrix(nn.Module):
    """A matrix of which only the entries that are not zero are kept."""

    positions: Tensor

    def __init__(self, dense: Tensor):
        super().__init__()
        self.shape = tuple(dense.shape)
        flat = dense.flatten()
        kept = flat.nonzero()[:, 0]
        self.values = nn.Parameter(flat[kept])
        self.register_buffer("positions", kept)

    def forward(self) -> Tensor:
        empty = torch.zeros(self.shape[0] * self.shape[1], dtype=self.values.dtype, device=self.values.device)
        return empty.index_put((self.positions,), self.values).reshape(self.shape)


class PrunedHead(nn.Module):
    """What `SparseMixtureHead.prune` returns: logits (..., C) of features (..., D), by the weights that are left.

    Features, products of features, projections and components without a weight are gone. The components of a class
    that lost all weights have constant scores, and are one component with their sum (head-merge).

    Attributes:
        kept_features: the numbers of the features that are used.
        n_weights: weights that are left.
        n_components: components of each class that are left, the constant one counted.
    """

    kept_features: Tensor  # (D',)
    centre: Tensor  # (D',)
    inverse_scale: Tensor  # (D',)
    linear: Tensor  # which kept features have linear weights
    pairs: Tensor  # (2, Q), which of them are multiplied
    owners: Tensor  # the component of each projection
    members: Tensor  # (C, M), the components of each class

    def __init__(self, head: SparseMixtureHead):
        super().__init__()
        with torch.no_grad():
            weight, bias, projection, class_of = _merged(head, *head.components.coefficients())
        self.n_features, self.n_classes = head.n_features, head.n_classes
        pairs, columns = _used_products(head, weight)
        used = torch.cat((columns[columns < head.n_features], pairs.flatten()))
        if projection is not None:
            used = torch.cat((used, (projection != 0).any((0, 1)).nonzero()[:, 0]))
        features = used.unique()
        centre, scale = head.frame()
        self.register_buffer("kept_features", features)
        self.register_buffer("centre", centre[features].clone())
        self.register_buffer("inverse_scale", 1 / scale[features])
        place = torch.zeros(head.n_features, dtype=torch.int64, device=features.device)
        place[features] = torch.arange(len(features), device=features.device)
        self.register_buffer("linear", place[columns[columns < head.n_features]])
        self.register_buffer("pairs", place[pairs])
        self.weight = SparseMatrix(weight[:, columns])
        self.bias = nn.Parameter(bias)
        self._keep_projections(projection, features)
        self.n_components = torch.bincount(class_of, minlength=self.n_classes).tolist()
        self.register_buffer("members", _members(class_of, self.n_classes))

    def _keep_projections(self, projection: Tensor | None, features: Tensor) -> None:
        """Projections (K, R, D) without those of zeros, and the component that each adds to."""
        self.projection = None
        if projection is None:
            return
        owners, factors = (projection != 0).any(-1).nonzero().unbind(1)
        if len(owners):
            self.projection = SparseMatrix(projection[owners, factors][:, features])
            self.register_buffer("owners", owners)

    @property
    def n_weights(self) -> int:
        return len(self.weight.values) + (0 if self.projection is None else len(self.projection.values))

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        checks.head_features(features, self.n_features, type(self).__name__)
        x = features.reshape(-1, self.n_features).index_select(1, self.kept_features)
        x = (x - self.centre) * self.inverse_scale
        products = x.index_select(1, self.pairs[0]) * x.index_select(1, self.pairs[1])
        phi = torch.cat((x.index_select(1, self.linear), products), 1)
        scores = functional.linear(phi, self.weight(), self.bias)
        if self.projection is not None:
            squares = 0.5 * functional.linear(x, self.projection()).square()
            scores = scores.index_add(1, self.owners, squares.to(scores.dtype))
        if self.members.shape[1] > 1:
            padded = functional.pad(scores, (0, 1), value=-torch.inf)
            scores = at_least_single(padded[:, self.members]).logsumexp(-1)
        return scores.reshape(*features.shape[:-1], self.n_classes)


def pruned(head: SparseMixtureHead) -> PrunedHead:
    """The head without the weights that evaluation does not use."""
    if head.n_weights_left == 0:
        raise ValueError(
            f"All {head.n_weights} weights of the head are pruned (log alpha of at least {head.threshold:g}), so that "
            "nothing of the features would be left; train longer before the divergence sets in (WarmUp), give it "
            "less weight, or raise threshold."
        )
    return PrunedHead(head)


def _merged(
    head: SparseMixtureHead, weight: Tensor, bias: Tensor, projection: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Components with the weightless ones of a class made one, whose bias is logsumexp of theirs (head-merge)."""
    n_components = len(weight)
    class_of = torch.arange(head.n_classes, device=weight.device).repeat_interleave(head.n_components)
    by_component = None if projection is None else projection.unflatten(0, (n_components, -1))  # (K, R, D)
    empty = (weight == 0).all(1)
    if by_component is not None:
        empty &= (by_component == 0).flatten(1).all(1)
    kept = torch.ones_like(empty)
    bias = bias.clone()
    for c in range(head.n_classes):
        (constants,) = torch.where(empty & (class_of == c))
        if len(constants) > 1:
            bias[constants[0]] = bias[constants].logsumexp(0)
            kept[constants[1:]] = False
    return weight[kept], bias[kept], None if by_component is None else by_component[kept], class_of[kept]


def _used_products(head: SparseMixtureHead, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The factors (2, Q) of the products that some component uses, and the columns of weight that are used."""
    columns = (weight != 0).any(0).nonzero()[:, 0]
    products = columns[columns >= head.n_features] - head.n_features
    pairs = head.components.monomials.pairs[:, products] if head.quadratic == "full" else products.expand(2, -1)
    return pairs, columns


def _members(class_of: Tensor, n_classes: int) -> Tensor:
    """The components of each class (C, M), filled up with the number after the last."""
    table = [(class_of == c).nonzero()[:, 0] for c in range(n_classes)]
    return nn.utils.rnn.pad_sequence(table, batch_first=True, padding_value=len(class_of))
