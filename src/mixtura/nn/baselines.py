"""Baseline heads with the interface of the mixture heads: linear, with or without L1 penalty, and large margin."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from mixtura import checks
from mixtura.nn.components import at_least_single


class LinearHead(nn.Linear):
    """Linear head whose `penalty` is the sum of its absolute weights, for L1 regularisation.

    Parameters
    ----------
    n_features : int
        Number of input features.
    n_classes : int
        Number of classes, at least 2.

    Examples
    --------
    >>> head = LinearHead(2, 3)
    >>> torch.equal(head.penalty(), head.weight.abs().sum())
    True
    """

    def __init__(self, n_features: int, n_classes: int):
        super().__init__(checks.count("n_features", n_features), checks.count("n_classes", n_classes, 2))

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
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
        checks.head_features(features, self.in_features, type(self).__name__)
        return super().forward(features)

    def penalty(self) -> Tensor:
        """Compute the sum of the absolute weights.

        Returns
        -------
        penalty : Tensor of shape ()
        """
        return self.weight.abs().sum()


class LargeMarginSoftmax(nn.Module):
    """Linear head without bias, trained with an angular margin (large-margin softmax [1]_).

    ::

        logit_c = |w_c| |x| cos(angle_c);  in training with labels, that of the label is
        |w| |x| [psi(angle) + blend cos(angle)] / (1 + blend),  psi(t) = (-1)^k cos(m t) - 2 k,  k = floor(m t / pi)

    by (large-margin-softmax). Training with the full margin does not converge from a random start, so `blend` starts
    large, where the head is linear, and shrinks with every training batch. In evaluation mode, or without labels, the
    logits are those of the linear layer.

    Parameters
    ----------
    n_features : int
        Number of input features.
    n_classes : int
        Number of classes, at least 2.
    margin : int, default=2
        The multiple m of the angle; 1 is a linear layer.
    blend : float, default=100.0
        Initial weight of the linear logit.
    decay : float, default=0.99
        Factor by which `blend` shrinks per training batch. With the default the margin is complete after about 1000
        batches; in longer training classes may then merge and stay so. `(1 / blend) ** (1 / n)` reaches equal weights
        of both logits after n batches; half of the training is a good n.
    smallest_blend : float, default=0.0
        Lower limit of `blend`.

    References
    ----------
    .. [1] Liu, Wen, Yu and Yang (2016). Large-margin softmax loss for convolutional neural networks. ICML.

    Examples
    --------
    >>> head = LargeMarginSoftmax(2, 3)
    >>> x, y = torch.randn(8, 2), torch.arange(8) % 3
    >>> bool((head(x, y) <= head(x)).all())  # a margin only lowers the logit of the label
    True
    """

    blend: Tensor

    def __init__(
        self,
        n_features: int,
        n_classes: int,
        margin: int = 2,
        *,
        blend: float = 100.0,
        decay: float = 0.99,
        smallest_blend: float = 0.0,
    ):
        super().__init__()
        self.n_features = checks.count("n_features", n_features)
        self.n_classes = checks.count("n_classes", n_classes, 2)
        self.margin = checks.count("margin", margin)
        self.decay = float(checks.require("decay", decay, checks.FRACTION))
        self.smallest_blend = checks.non_negative("smallest_blend", smallest_blend)
        self.weight = nn.Parameter(torch.empty(n_classes, n_features))
        bound = 1 / math.sqrt(n_features)
        nn.init.uniform_(self.weight, -bound, bound)
        self.register_buffer("blend", torch.tensor(checks.non_negative("blend", blend)))

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        """Compute class logits.

        Parameters
        ----------
        features : Tensor of shape (..., n_features)
            Features of floating point.
        labels : Tensor of shape (...), optional
            Class numbers. In training mode they switch the margin on.

        Returns
        -------
        logits : Tensor of shape (..., n_classes)
        """
        checks.head_features(features, self.n_features, type(self).__name__)
        logits = functional.linear(features, self.weight)
        if labels is None or not self.training:
            return logits
        rows = features.reshape(-1, self.n_features)
        checks.head_labels(labels.reshape(-1), len(rows), self.n_classes)
        return self._with_margin(rows, logits.reshape(-1, self.n_classes), labels.reshape(-1)).reshape(logits.shape)

    def _with_margin(self, rows: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        own = labels.unsqueeze(1)
        logits = at_least_single(logits)
        norms = at_least_single(rows).norm(dim=1, keepdim=True) * self.weight.norm(dim=1)[labels].unsqueeze(1)  # (n, 1)
        # The derivative of the angle is unbounded at 0 and pi.
        cosines = (logits.gather(1, own) / norms.clamp_min(1e-12)).clamp(-1 + 1e-6, 1 - 1e-6)
        angles = cosines.acos()
        turns = (self.margin * angles / math.pi).floor().detach()
        psi = (1 - 2 * (turns % 2)) * (self.margin * angles).cos() - 2 * turns
        blend = self.blend.to(logits.dtype, copy=True)
        self.blend.mul_(self.decay).clamp_min_(self.smallest_blend)
        return logits.scatter(1, own, norms * (psi + blend * cosines) / (1 + blend))  # (large-margin-softmax)

    def penalty(self) -> Tensor:
        """Compute the penalty, which is zero for this head.

        Returns
        -------
        penalty : Tensor of shape ()
        """
        return self.weight.new_zeros(())

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        return f"{self.n_features}, {self.n_classes}, margin={self.margin}"
