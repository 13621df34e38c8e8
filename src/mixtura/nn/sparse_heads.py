"""Heads that learn to do without most of their weights, and pruned copies that hold only the weights in use."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from mixtura import checks
from mixtura.nn.components import SparseComponents, at_least_single, without_offsets
from mixtura.nn.heads import MixtureHead
from mixtura.values.features import LINEAR, QUADRATICS, Coefficients, triangle


class SparseMixtureHead(MixtureHead):
    """Mixture head that learns to do without most of its weights (sparse variational dropout, SDGM [1]_).

        loss = cross_entropy(head(features), labels) + head.kl() * warm_up(epoch)

    with `warm_up = WarmUp(n_rows)` weights the divergence (dropout-kl) by one over the number of training samples.
    After training, `prune` returns a smaller module with the same outputs.

    Parameters
    ----------
    n_features : int
        Number of input features.
    n_classes : int
        Number of classes, at least 2.
    n_components : int, default=2
        Number of components per class.
    quadratic : {"full", "diag", "low_rank", "none"}, default="full"
        Quadratic terms of a score, as in `MixtureHead`.
    rank : int or "auto", default="auto"
        Number of projections per component, for "low_rank" only.
    normalise : bool, default=True
        Whether to centre and scale the features by running means and variances.
    threshold : float, default=3.0
        Weights whose log alpha is at least `threshold` are zero in evaluation mode. 3 corresponds to a
        signal-to-noise ratio of 0.2.

    References
    ----------
    .. [1] Hayashi and Uchida (2021). A discriminative Gaussian mixture model with sparsity. ICLR.

    Examples
    --------
    >>> head = SparseMixtureHead(10, 3, n_components=2)
    >>> loss = head(torch.randn(8, 10)).logsumexp(1).mean() + head.kl() * WarmUp(n_rows=8)(epoch=30)
    >>> loss.backward()
    """

    def __init__(
        self,
        n_features: int,
        n_classes: int,
        n_components: int = 2,
        quadratic: str = "full",
        *,
        rank: int | str = "auto",
        normalise: bool = True,
        threshold: float = 3.0,
    ):
        self.threshold = checks.non_negative("threshold", threshold)
        super().__init__(n_features, n_classes, n_components, quadratic, rank=rank, normalise=normalise)

    components: SparseComponents

    def _make_components(self, n_components: int, quadratic: str, rank: int) -> SparseComponents:
        return SparseComponents(self.n_features, n_components, quadratic, rank, self.threshold)

    def kl(self) -> Tensor:
        """Compute the divergence of the posterior of the weights from their prior (dropout-kl).

        Returns
        -------
        kl : Tensor of shape ()
            In nats, summed over all weights.
        """
        return self.components.kl()

    def penalty(self) -> Tensor:
        """Compute the penalty, which is `kl()`.

        Returns
        -------
        penalty : Tensor of shape ()
        """
        return self.kl()

    @property
    def n_weights(self) -> int:
        """Number of weights before pruning, without biases."""
        return sum(part.numel() for part in self.components.log_alphas())

    @property
    def n_weights_left(self) -> int:
        """Number of weights that evaluation mode uses."""
        return sum(int((part < self.threshold).sum()) for part in self.components.log_alphas())

    def prune(self) -> PrunedHead:
        """Remove the weights, features and components that evaluation mode does not use.

        Returns
        -------
        head : PrunedHead
            A smaller module with the same outputs as this one in evaluation mode.
        """
        if self.n_weights_left == 0:
            raise ValueError(
                f"The pruned head would be constant: all {self.n_weights} weights have log alpha >= threshold "
                f"({self.threshold:g}). Train longer before the divergence is added (a later `start` of WarmUp), give "
                "it a smaller weight, or raise threshold."
            )
        return PrunedHead(self)


class WarmUp:
    """Linear schedule for the weight of the divergence: 0 until epoch `start`, 1 / `n_rows` from epoch `stop` on.

    With the full weight from the first epoch, an untrained network would lose all of its weights.

    Parameters
    ----------
    n_rows : int
        Number of training samples.
    start : float, default=5
        Epoch up to which the weight is 0.
    stop : float, default=20
        Epoch from which the weight is 1 / `n_rows`. Both defaults are those of [1]_.

    References
    ----------
    .. [1] Molchanov, Ashukha and Vetrov (2017). Variational dropout sparsifies deep neural networks. ICML.

    Examples
    --------
    >>> warm_up = WarmUp(n_rows=100)
    >>> warm_up(0), warm_up(20)
    (0.0, 0.01)
    """

    def __init__(self, n_rows: int, start: float = 5, stop: float = 20):
        self.n_rows = checks.count("n_rows", n_rows)
        self.start, self.stop = checks.non_negative("start", start), checks.non_negative("stop", stop)

    def __call__(self, epoch: float) -> float:
        """Return the weight of the divergence at this epoch."""
        share = (epoch - self.start) / max(self.stop - self.start, 1e-9)
        return min(max(share, 0.0), 1.0) / self.n_rows


class SparseMatrix(nn.Module):
    """A matrix that stores only its non-zero entries, in the state dict too."""

    values: Tensor
    positions: Tensor  # in the flattened matrix
    dense: Tensor  # built from the other two, because small products are faster with it

    def __init__(self, dense: Tensor):
        super().__init__()
        self.register_buffer("positions", dense.flatten().nonzero()[:, 0])
        self.register_buffer("values", dense.flatten()[self.positions])
        self.register_buffer("dense", dense.clone(), persistent=False)
        self.register_load_state_dict_post_hook(_fill)


def _fill(matrix: SparseMatrix, _: object) -> None:
    """Build the dense matrix from the entries loaded."""
    matrix.dense.zero_().view(-1)[matrix.positions] = matrix.values


class PrunedHead(nn.Module):
    """Prediction-only copy of a head that holds the weights in use; returned by `SparseMixtureHead.prune`.

    Features, products, projections and components without weights are removed. Components of a class that lost all
    of their weights have constant scores; they are merged into one (head-merge). Gradients reach the features, but
    the weights are fixed. A copy of any other mixture head gives its logits without the density, in operations
    that ONNX supports (a head with `density=True` factorises covariances, for which ONNX has no operator).

    Parameters
    ----------
    head : MixtureHead or SparseMixtureHead
        The head to copy.

    Attributes
    ----------
    kept_features : Tensor of shape (n_kept_features,)
        Indices of the features in use.
    n_weights : int
        Number of weights in use.
    n_components : list of int
        Number of components of each class, including a constant one.
    """

    used: Tensor  # (D' + 1,), the features in use, and any one for the constant
    centre: Tensor  # (D' + 1,)
    inverse_scale: Tensor  # (D' + 1,), zero for the constant
    constant: Tensor  # (D' + 1,), zeros and a one
    factors: Tensor  # (2, Q), the two of those whose product is a monomial
    bias: Tensor  # (K',)
    owners: Tensor  # the component of each projection
    members: Tensor  # (C, M), the components of each class

    def __init__(self, head: MixtureHead):
        super().__init__()
        self.n_features, self.n_classes = head.n_features, head.n_classes
        with torch.no_grad():
            weight, bias, projection, class_of = _merge(head, without_offsets(head.components.coefficients()))
        columns = (weight != 0).any(0).nonzero()[:, 0]
        factors = _factors(head)[:, columns]  # D stands for the constant
        in_use = [factors.flatten()]
        if projection is not None:
            in_use.append((projection != 0).any(1).any(0).nonzero()[:, 0])
        features = torch.cat(in_use).unique()
        features = features[features < head.n_features]
        self._keep_frame(head, features)
        place = torch.full((head.n_features + 1,), len(features), device=features.device)
        place[features] = torch.arange(len(features), device=features.device)
        self.register_buffer("factors", place[factors])
        self.weight = SparseMatrix(weight[:, columns])
        self.register_buffer("bias", bias)
        self._keep_projections(projection, features)
        self.n_components = torch.bincount(class_of, minlength=self.n_classes).tolist()
        self.register_buffer("members", _members(class_of, self.n_classes))

    def _keep_frame(self, head: MixtureHead, features: Tensor) -> None:
        """Centre and scale of the features in use, followed by those of the constant."""
        centre, scale = head.frame()
        one = torch.zeros(len(features) + 1, dtype=centre.dtype, device=centre.device)
        one[-1] = 1
        self.register_buffer("used", torch.cat((features, features[:1])))
        self.register_buffer("centre", centre[self.used])
        self.register_buffer("inverse_scale", (1 - one) / scale[self.used])
        self.register_buffer("constant", one)

    def _keep_projections(self, projection: Tensor | None, features: Tensor) -> None:
        """Non-zero projections of (K, R, D), and the component that each belongs to."""
        self.projection = None
        if projection is None:
            return
        owners, factors = (projection != 0).any(-1).nonzero().unbind(1)
        if len(owners):
            kept = functional.pad(projection[owners, factors][:, features], (0, 1))
            self.projection = SparseMatrix(kept)
            self.register_buffer("owners", owners)

    @property
    def kept_features(self) -> Tensor:
        """Indices of the features in use."""
        return self.used[:-1]

    @property
    def n_weights(self) -> int:
        """Number of weights in use."""
        return len(self.weight.values) + (0 if self.projection is None else len(self.projection.values))

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        """Compute class logits.

        Parameters
        ----------
        features : Tensor of shape (..., n_features)
            Features of floating point.
        labels : Tensor of shape (...), optional
            Ignored; present so that all heads have one interface.

        Returns
        -------
        logits : Tensor of shape (..., n_classes)
        """
        checks.head_features(features, self.n_features, type(self).__name__)
        x = features.reshape(-1, self.n_features).index_select(1, self.used) - self.centre
        x = torch.addcmul(self.constant, x, self.inverse_scale)  # (n, D' + 1)
        phi = x.index_select(1, self.factors[0]) * x.index_select(1, self.factors[1])
        scores = functional.linear(phi, self.weight.dense, self.bias)
        if self.projection is not None:
            squares = 0.5 * functional.linear(x, self.projection.dense).square()
            scores = scores.index_add(1, self.owners, squares.to(scores.dtype))
        return self._logits(scores).reshape(*features.shape[:-1], self.n_classes)

    def _logits(self, scores: Tensor) -> Tensor:
        if scores.shape[1] == self.n_classes:
            return scores
        if len(set(self.n_components)) > 1:
            scores = functional.pad(scores, (0, 1), value=-torch.inf).index_select(1, self.members.flatten())
        return at_least_single(scores.unflatten(1, self.members.shape)).logsumexp(-1)


def _merge(head: MixtureHead, coefficients: Coefficients) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Merge the components of a class that have no weights; the bias is the logsumexp of theirs (head-merge)."""
    weight, bias, projection = coefficients.weights, coefficients.bias.clone(), coefficients.projections
    assert weight is not None
    class_of = torch.arange(head.n_classes, device=weight.device).repeat_interleave(head.n_components)
    empty = (weight == 0).all(1)
    if projection is not None:
        empty &= (projection == 0).flatten(1).all(1)
    kept = torch.ones_like(empty)
    for c in range(head.n_classes):
        (constants,) = torch.where(empty & (class_of == c))
        if len(constants) > 1:
            bias[constants[0]] = bias[constants].logsumexp(0)
            kept[constants[1:]] = False
    return weight[kept], bias[kept], None if projection is None else projection[kept], class_of[kept]


def _factors(head: MixtureHead) -> Tensor:
    """The two factors of every monomial, (2, P), as indices of features; index D stands for the constant 1."""
    device = head.components.bias.device
    linear = torch.arange(head.n_features, device=device)
    single = torch.stack((linear, torch.full_like(linear, head.n_features)))
    shared = head.components.coefficients().shared
    if shared is LINEAR:
        return single
    products = torch.stack(triangle(head.n_features, device)[:2]) if shared is QUADRATICS else linear.expand(2, -1)
    return torch.cat((single, products), 1)


def _members(class_of: Tensor, n_classes: int) -> Tensor:
    """The components of each class (C, M), padded with the number of components."""
    table = [(class_of == c).nonzero()[:, 0] for c in range(n_classes)]
    return nn.utils.rnn.pad_sequence(table, batch_first=True, padding_value=len(class_of))
