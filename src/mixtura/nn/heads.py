"""Mixtures as the last layer of a network: modules that map features to class logits."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from mixtura import checks
from mixtura.covariances import automatic_rank
from mixtura.nn import conversion
from mixtura.nn.components import MAPS, FreeComponents, GaussianComponents, class_logits, in_autocast
from mixtura.nn.running_density import RunningDensity
from mixtura.objectives import Conditional, Hybrid
from mixtura.roles import Objective
from mixtura.values.targets import Targets

CONDITIONAL = Conditional()


class MixtureHead(nn.Module):
    """Classification head with one mixture per class; a drop-in replacement for the last `nn.Linear`.

        logit_c = log sum_{k in c} exp a_k((x - centre) / scale)                                      (head-logits)

    where a_k is the score of component k, see (scores) in docs/theory.md. The softmax of the logits is p(c | x), so
    `nn.CrossEntropyLoss` trains the head. This is the discriminative mixture of [1]_.

    Parameters
    ----------
    n_features : int
        Number of input features.
    n_classes : int
        Number of classes, at least 2.
    n_components : int, default=1
        Number of components per class.
    quadratic : {"full", "diag", "low_rank", "none"}, default="full"
        Quadratic terms of a score: all products of two features, squares only, squares and `rank` projections, or
        none. With "none" and one component the head equals `nn.Linear`.
    rank : int or "auto", default="auto"
        Number of projections per component, for "low_rank" only. "auto" means min(10, max(1, n_features // 2)).
    normalise : bool, default=True
        Whether to centre and scale the features by running means and variances, as batch normalisation does. Has
        no effect with `quadratic="none"` and `density=False`.
    density : bool, default=False
        Whether components are normalised Gaussian densities. Required by `log_density` and `hybrid_loss`.

    References
    ----------
    .. [1] Hayashi and Uchida (2021). A discriminative Gaussian mixture model with sparsity. ICLR.

    Examples
    --------
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
        self.running_density = RunningDensity(*sizes) if self.density else None

    def _make_components(self, n_components: int, quadratic: str, rank: int) -> FreeComponents | GaussianComponents:
        kind = GaussianComponents if self.density else FreeComponents
        return kind(self.n_features, n_components, quadratic, rank)

    def _make_normaliser(self) -> nn.BatchNorm1d:
        """Batch normalisation to a fixed standard deviation."""
        normaliser = nn.BatchNorm1d(self.n_features).requires_grad_(False)
        nn.init.constant_(normaliser.weight, self.components.spread)
        normaliser.num_batches_tracked = None  # unused with a fixed momentum; counting costs one operation per step
        normaliser.register_load_state_dict_pre_hook(_without_count)
        return normaliser

    @property
    def quadratic(self) -> str:
        """The quadratic terms of a score."""
        return self.components.quadratic

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        """Compute class logits.

        Parameters
        ----------
        features : Tensor of shape (..., n_features)
            Features of floating point.
        labels : Tensor of shape (...), optional
            Class numbers, -1 for unlabeled. With `density=True` and in training mode they update the running density
            of `log_density`. Other heads accept and ignore them.

        Returns
        -------
        logits : Tensor of shape (..., n_classes)
        """
        if self.running_density is None or labels is None:
            scores = self._scores(features)
        else:
            scores = self._tracked_scores(features, labels.reshape(-1))
        logits = class_logits(scores, self.n_components)
        return logits if features.ndim == 2 else logits.reshape(*features.shape[:-1], self.n_classes)

    def scores(self, features: Tensor) -> Tensor:
        """Compute the scores of all components; with `density=True` these are log joints.

        Parameters
        ----------
        features : Tensor of shape (..., n_features)
            Features of floating point.

        Returns
        -------
        scores : Tensor of shape (n_samples, n_classes * n_components)
            One column per component, sorted by class.
        """
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
        """Normalised rows (n, D)."""
        return rows if self.normaliser is None else self.normaliser(rows)

    def penalty(self) -> Tensor:
        """Compute the penalty that a training loop adds, times a weight, to the mean cross-entropy.

        Returns
        -------
        penalty : Tensor of shape ()
            Zero for this head.
        """
        return self.components.bias.new_zeros(())

    # ---- density=True ----

    def log_density(self, features: Tensor) -> Tensor:
        """Compute the log density of features; low values indicate samples unlike the training set.

        The density is a mixture fitted by online EM during training (running-density), because the components of
        the logits are placed to separate the classes rather than to describe the features. Before the first training
        step it is the density of the components of the logits.

        Parameters
        ----------
        features : Tensor of shape (..., n_features)
            Features of floating point.

        Returns
        -------
        log_density : Tensor of shape (...)

        Raises
        ------
        ValueError
            If the head has `density=False`.
        """
        self._check_density("log_density")
        if self.running_density is not None and bool(self.running_density.n_batches):
            normalised = self.running_density(
                self._normalised(self._rows(features).to(self.running_density.means.dtype))
            )
        else:
            normalised = self._scores(features).logsumexp(0)
        return (normalised - self.frame()[1].log().sum()).reshape(features.shape[:-1])

    def hybrid_loss(
        self, features: Tensor, labels: Tensor, tradeoff: float = 0.1, discriminative: Objective = CONDITIONAL
    ) -> Tensor:
        """Compute the mean hybrid loss, -[tradeoff log p(x, c) + (1 - tradeoff) discriminative].

        The density is taken of the normalised features, whose variances are one. The density of the raw features is
        unbounded: a network could raise it without limit by shrinking its features.

        Parameters
        ----------
        features : Tensor of shape (n_samples, n_features)
            Features of floating point.
        labels : Tensor of shape (n_samples,)
            Class numbers, -1 for unlabeled.
        tradeoff : float, default=0.1
            Weight of the likelihood: 1 is generative, 0 discriminative.
        discriminative : Objective, default=Conditional()
            The discriminative objective, log p(c | x) or another one such as `mixtura.objectives.Margin(10)`.

        Returns
        -------
        loss : Tensor of shape ()

        Raises
        ------
        ValueError
            If the head has `density=False`.
        """
        self._check_density("hybrid_loss")
        log_joint = self._tracked_scores(features, labels)  # (K, n)
        class_of = torch.arange(self.n_classes, device=labels.device).repeat_interleave(self.n_components)
        objective = Hybrid(tradeoff, discriminative)
        return -objective.evaluate(log_joint, Targets(class_of, labels)).values.mean()

    def _tracked_scores(self, features: Tensor, labels: Tensor) -> Tensor:
        """Scores (K, n) of rows; in training mode the rows also update the running density."""
        scores = self._scores(features)
        checks.head_labels(labels, scores.shape[1], self.n_classes, smallest=-1)
        if self.running_density is not None and self.training:
            # By running statistics: those of one batch vary more than the samples of a class do.
            centre, scale = self.frame()
            rows = features.detach().reshape(-1, self.n_features)
            self.running_density.update((rows - centre) / scale, scores.detach(), labels)
        return scores

    def _check_density(self, method: str) -> None:
        if not self.density:
            raise ValueError(
                f"{method} needs normalised Gaussian densities; this head was created with density=False. Create it "
                f"with {type(self).__name__}({self.n_features}, {self.n_classes}, ..., density=True)."
            )

    # ---- from and to estimators ----

    def frame(self) -> tuple[Tensor, Tensor]:
        """Return the centre and scale that evaluation mode applies to features.

        Returns
        -------
        centre : Tensor of shape (n_features,)
        scale : Tensor of shape (n_features,)
        """
        if self.normaliser is None:
            like = self.components.bias
            return like.new_zeros(self.n_features), like.new_ones(self.n_features)
        means, variances = self.normaliser.running_mean, self.normaliser.running_var
        assert means is not None
        assert variances is not None
        return means, (variances + self.normaliser.eps).sqrt() / self.normaliser.weight

    @classmethod
    def from_features(cls, X: Any, y: Any, n_components: int = 1, quadratic: str = "auto", **options: Any) -> Self:
        """Create a head initialised from a `MixtureClassifier` fitted to features.

        In evaluation mode the head then has the class probabilities of the fitted mixture. From 100 to 1024 features,
        with one component per class, that is a closed form: held-out samples choose the strength of the prior and the
        temperature (closed-forms). Otherwise EM fits it with the default prior.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features without missing values.
        y : array-like of shape (n_samples,)
            Labels; the classes of the head are the distinct labels in sorted order.
        n_components : int, default=1
            Number of components per class.
        quadratic : {"auto", "full", "diag", "low_rank", "none"}, default="auto"
            Quadratic terms, as in the constructor. "auto" is "full" below 100 features, "low_rank" above 1024, and
            between them "full" or "none", a linear head, as held-out samples choose.
        **options : dict
            `rank`, `density` and `threshold` go to the head, all others to `MixtureClassifier`. With a `prior` there
            is no choice.

        Returns
        -------
        head : MixtureHead
        """
        return conversion.from_features(cls, X, y, n_components, quadratic, options)

    @classmethod
    def from_estimator(cls, model: Any, density: bool = False) -> Self:
        """Create a head with the class probabilities of a fitted `MixtureClassifier`; `to_estimator` is the inverse.

        Parameters
        ----------
        model : MixtureClassifier
            A fitted model without a transform of the features. Of several members the head takes the best one; its
            temperature divides the logits, unless `density` is set. The share of random labels is left out.
        density : bool, default=False
            As in the constructor.

        Returns
        -------
        head : MixtureHead
        """
        return conversion.from_estimator(cls, model, checks.switch("density", density))

    def refit(self, X: Any, y: Any, *, logits: bool = True, **options: Any) -> Self:
        """Initialise this head again from a mixture fitted to features; see `from_features`.

        Refitting the density after training is useful because features in evaluation mode vary less than those the
        running density saw during training, under dropout and batch statistics.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features without missing values.
        y : array-like of shape (n_samples,)
            Labels of all classes of the head.
        logits : bool, default=True
            Whether to replace the components of the logits as well. False refits the density of `log_density` alone
            and leaves predictions unchanged; it needs `density=True`.
        **options : dict
            Arguments of `MixtureClassifier`.

        Returns
        -------
        self : MixtureHead
        """
        if not checks.switch("logits", logits):
            self._check_density("refit with logits=False")
        conversion.refit(self, X, y, logits, options)
        return self

    def to_estimator(self, classes: Any = None) -> Any:
        """Convert the head to a fitted `MixtureClassifier` with the same class probabilities.

        With `density=False`, a quadratic form common to all components is added so that each becomes Gaussian
        (head-gauge). Class probabilities do not change, but the density of the estimator is then arbitrary.

        Parameters
        ----------
        classes : array-like of shape (n_classes,), optional
            Labels of the classes; 0, 1, ... if None.

        Returns
        -------
        estimator : MixtureClassifier
        """
        return conversion.to_estimator(self, classes)

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        text = f"{self.n_features}, {self.n_classes}, n_components={self.n_components}, quadratic={self.quadratic!r}"
        return f"{text}, density=True" if self.density else text


def _without_count(module: nn.Module, state: dict[str, object], prefix: str, *_: object) -> None:
    """Drop the batch count, which batch normalisation adds to a state without version (as safetensors files are)."""
    state.pop(f"{prefix}num_batches_tracked", None)
