"""Mixtures as the last layer of a network: modules from features to class logits."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from mixtura import checks
from mixtura.covariances import automatic_rank
from mixtura.nn import conversion
from mixtura.nn.components import MAPS, FreeComponents, SparseComponents
from mixtura.nn.gaussians import GaussianComponents
from mixtura.nn.logits import class_logits, in_autocast
from mixtura.nn.pruned import PrunedHead, pruned
from mixtura.nn.running_density import FollowedGaussians
from mixtura.objectives import Conditional, Hybrid
from mixtura.roles import Objective
from mixtura.values.targets import Targets

CONDITIONAL = Conditional()


class MixtureHead(nn.Module):
    """Class logits from a mixture per class: a drop-in for the last nn.Linear (discriminative mixture, HU21).

        logit_c = log sum_{k in c} exp a_k((x - centre) / scale)                                      (head-logits)

    with the scores of (scores). softmax of the logits is p(c | x), so that nn.CrossEntropyLoss trains it.

    Parameters:
        n_features, n_classes: sizes of input and output.
        n_components: components per class.
        quadratic: "full" (all products of two features), "diagonal" (squares), "low_rank" (squares and `rank`
            projections), or "none": with one component that is nn.Linear.
        rank: projections per component of "low_rank"; "auto" is min(10, max(1, D // 2)).
        normalise: centre and scale the features by running means and variances, as batch normalisation does, before
            products are taken; "none" needs no such thing and does without.
        density: proper Gaussians, with `log_density` and `hybrid_loss`.

    Examples:
        >>> import torch
        >>> from mixtura.nn import MixtureHead
        >>> network = torch.nn.Sequential(torch.nn.Linear(784, 10), MixtureHead(10, 10, n_components=2))
        >>> network(torch.zeros(5, 784)).shape
        torch.Size([5, 10])
    """

    def __init__(
        self,
        n_features: int,
        n_classes: int,
        n_components: int = 1,
        quadratic: str = "full",
        *,
        rank: int | str = "auto",
        normalise: bool = True,
        density: bool = False,
    ):
        super().__init__()
        checks.one_of("quadratic", quadratic, MAPS)
        self.n_features = checks.count("n_features", n_features)
        self.n_classes = checks.count("n_classes", n_classes, 2)
        self.n_components = checks.count("n_components", n_components)
        self.density = checks.switch("density", density)
        n_factors = checks.rank(rank, self.n_features) or max(1, automatic_rank(self.n_features))
        self.components = self._make_components(self.n_classes * self.n_components, quadratic, n_factors)
        normalise = checks.switch("normalise", normalise) and (quadratic != "none" or density)
        self.normaliser = self._make_normaliser() if normalise else None
        sizes = (self.n_features, self.n_classes * self.n_components, quadratic, n_factors, self.n_components)
        self.followed = FollowedGaussians(*sizes) if self.density else None

    def _make_components(self, n_components: int, quadratic: str, rank: int) -> FreeComponents | GaussianComponents:
        kind = GaussianComponents if self.density else FreeComponents
        return kind(self.n_features, n_components, quadratic, rank)

    def _make_normaliser(self) -> nn.BatchNorm1d:
        """Batch normalisation to a spread that is fixed."""
        normaliser = nn.BatchNorm1d(self.n_features).requires_grad_(False)
        nn.init.constant_(normaliser.weight, self.components.spread)
        normaliser.num_batches_tracked = None  # of no use with a fixed momentum, and an operation in every step
        normaliser.register_load_state_dict_pre_hook(_without_count)
        return normaliser

    @property
    def quadratic(self) -> str:
        return self.components.quadratic

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits (..., C) of features (..., D).

        Labels (...) are for the Gaussians of `log_density`, which follow the rows of their classes in training. Other
        heads take them, and do not use them, so that all look alike.
        """
        if self.followed is None or labels is None:
            scores = self._scores(features)
        else:
            scores = self._followed_scores(features, labels.reshape(-1))
        logits = class_logits(scores, self.n_components)
        return logits if features.ndim == 2 else logits.reshape(*features.shape[:-1], self.n_classes)

    def scores(self, features: Tensor) -> Tensor:
        """Scores (n, K) of the components, sorted by class, of features (..., D); log joints with density=True."""
        return self._scores(features).T

    def _scores(self, features: Tensor) -> Tensor:
        """Scores (K, n) of features (..., D)."""
        rows, parts = self._rows(features), self.components
        if not parts.in_own_precision or not in_autocast(rows):
            return parts.forward(self._normalised(rows))
        with torch.autocast(rows.device.type, enabled=False):
            return parts.forward(self._normalised(rows.to(parts.bias.dtype)))

    def _rows(self, features: Tensor) -> Tensor:
        """Features (..., D) as rows (n, D)."""
        checks.head_features(features, self.n_features, type(self).__name__)
        return features if features.ndim == 2 else features.reshape(-1, self.n_features)

    def _normalised(self, rows: Tensor) -> Tensor:
        """Rows (n, D) in their units."""
        return rows if self.normaliser is None else self.normaliser(rows)

    def penalty(self) -> Tensor:
        """What else a training loop adds, times a weight, to the mean cross-entropy: nothing here."""
        return self.components.bias.new_zeros(())

    # ---- density=True ----

    def log_density(self, features: Tensor) -> Tensor:
        """log p(features), (..., D) -> (...); low where a row is unlike those of training. Needs density=True.

        It is that of Gaussians which followed the features in training by online EM (head-follows), as long as there
        was any: those of the logits stand where they separate the classes, which most of the loss is about.
        """
        self._check_density("log_density")
        if self.followed is not None and bool(self.followed.n_batches):
            normalised = self.followed(self._normalised(self._rows(features).to(self.followed.means.dtype)))
        else:
            normalised = self._scores(features).logsumexp(0)
        return (normalised - self.frame()[1].log().sum()).reshape(features.shape[:-1])

    def hybrid_loss(
        self, features: Tensor, labels: Tensor, tradeoff: float = 0.1, discriminative: Objective = CONDITIONAL
    ) -> Tensor:
        """-[tradeoff log p(x, c) + (1 - tradeoff) discriminative], mean over rows (n, D); label -1 means unlabeled.

        The discriminative objective is log p(c | x), or another one such as `Margin(10)` of mixtura.objectives. The
        density is that of the normalised features, whose variances are one: a network could raise that of its raw
        features without end by shrinking them. Needs density=True.
        """
        self._check_density("hybrid_loss")
        log_joint = self._followed_scores(features, labels)  # (K, n)
        class_of = torch.arange(self.n_classes, device=labels.device).repeat_interleave(self.n_components)
        objective = Hybrid(tradeoff, discriminative)
        return -objective.evaluate(log_joint, Targets(class_of, labels)).values.mean()

    def _followed_scores(self, features: Tensor, labels: Tensor) -> Tensor:
        """Scores (K, n) of rows, which the Gaussians of the density follow in training."""
        scores = self._scores(features)
        checks.head_labels(labels, scores.shape[1], self.n_classes, smallest=-1)
        if self.followed is not None and self.training:
            # Not as normalised by the statistics of their batch, which shake more than the rows of a class differ.
            centre, scale = self.frame()
            rows = features.detach().reshape(-1, self.n_features)
            self.followed.follow((rows - centre) / scale, scores.detach(), labels)
        return scores

    def _check_density(self, method: str) -> None:
        if not self.density:
            raise ValueError(
                f"{method} needs proper Gaussians, which a head with density=False has not; use "
                f"{type(self).__name__}({self.n_features}, {self.n_classes}, ..., density=True)."
            )

    # ---- from and to estimators ----

    def frame(self) -> tuple[Tensor, Tensor]:
        """Centre and scale (D,) that evaluation applies to features."""
        if self.normaliser is None:
            like = self.components.bias
            return like.new_zeros(self.n_features), like.new_ones(self.n_features)
        means, variances = self.normaliser.running_mean, self.normaliser.running_var
        assert means is not None
        assert variances is not None
        return means, (variances + self.normaliser.eps).sqrt() / self.normaliser.weight

    @classmethod
    def from_features(cls, X: Any, y: Any, n_components: int = 1, quadratic: str = "full", **options: Any) -> Self:
        """A head that starts from a mixture fitted to features X (n, D) and labels y, classes in sorted order.

        The mixture is MixtureClassifier's with its default prior, so that few rows per class will do: take
        "low_rank" or "diagonal" in high dimensions. In evaluation the head predicts what the mixture predicts.
        Options are those of the head (rank, density, threshold) and the arguments of MixtureClassifier.
        """
        own = {name: options.pop(name) for name in ("rank", "density", "threshold") if name in options}
        rows, labels, n_classes = conversion.read_features(X, y)
        head = cls(rows.shape[1], n_classes, n_components, quadratic, **own).to(rows.device)
        return head.refit(rows, labels, **options)

    def refit(self, X: Any, y: Any, *, logits: bool = True, **options: Any) -> Self:
        """Let the head begin anew at a mixture fitted to features X (n, D) and labels y; see `from_features`.

        With density=True both the Gaussians of the logits and those of `log_density` do; with logits=False the latter
        alone, and predictions stay as they are. Features as the network gives them in evaluation are narrower than
        those that the Gaussians could follow in training, with dropout and normalised by the batch.
        """
        if not checks.switch("logits", logits):
            self._check_density("refit with logits=False")
        conversion.refit(self, X, y, logits, options)
        return self

    def to_estimator(self, classes: Any = None) -> Any:
        """A fitted MixtureClassifier with the probabilities of this head; its labels are `classes`, or 0, 1, ...

        Without density=True the quadratic forms get a common one added that makes them Gaussian, which changes no
        probability of a class (head-gauge), but makes up the density.
        """
        return conversion.to_estimator(self, classes)

    def extra_repr(self) -> str:
        text = f"{self.n_features}, {self.n_classes}, n_components={self.n_components}, quadratic={self.quadratic!r}"
        return f"{text}, density=True" if self.density else text


def _without_count(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Batch normalisation adds the count of batches to a state without a version, as files of safetensors have it."""
    state.pop(f"{prefix}num_batches_tracked", None)


class SparseMixtureHead(MixtureHead):
    """A mixture head that empties most of its weights while it trains (SDGM, HU21).

        loss = cross_entropy(head(features), labels) + head.kl() * warm_up(epoch)

    with `warm_up = WarmUp(n_rows)`, adds the divergence (dropout-kl) with its proper weight, one over the number of
    training rows. `prune()` afterwards gives a smaller module with the same outputs.

    Parameters:
        n_features, n_classes, n_components, quadratic, rank, normalise: as in MixtureHead.
        threshold: a weight with log alpha of at least this is zero in evaluation; 3 is a signal-to-noise ratio of 0.2.

    Examples:
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
        """The divergence of the weights from the prior, in nats (dropout-kl)."""
        return self.components.kl()

    def penalty(self) -> Tensor:
        return self.kl()

    @property
    def n_weights(self) -> int:
        """Weights at the start, biases left out."""
        return sum(part.numel() for part in self.components.log_alphas())

    @property
    def n_weights_left(self) -> int:
        """Weights that evaluation uses."""
        return sum(int((part < self.threshold).sum()) for part in self.components.log_alphas())

    def prune(self) -> PrunedHead:
        """A module without the weights, features and components that are gone, with the same outputs in evaluation."""
        return pruned(self)


class WarmUp:
    """The weight of the divergence in a mean loss: from 0 at epoch `start` in a line to 1 / n_rows at epoch `stop`.

    A network that has not yet learned anything needs no weight, and would lose them all; the ends are Molchanov's.
    """

    def __init__(self, n_rows: int, start: float = 5, stop: float = 20):
        self.n_rows = checks.count("n_rows", n_rows)
        self.start, self.stop = checks.non_negative("start", start), checks.non_negative("stop", stop)

    def __call__(self, epoch: float) -> float:
        share = (epoch - self.start) / max(self.stop - self.start, 1e-9)
        return min(max(share, 0.0), 1.0) / self.n_rows
