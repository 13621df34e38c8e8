"""AveragedMixtureClassifier: averages of mixture classifiers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mixtura import checks
from mixtura.engine.sources import Source
from mixtura.engine.threads import computing
from mixtura.estimators.averaged import (
    MEMBERS,
    check_members,
    draw_replicates,
    fitted_copy,
    judge_members,
    keep_members,
    mean_of,
    member_scores,
    prepare_base,
    replicate_of,
    score_unseen,
    select_base,
    train_members,
)
from mixtura.estimators.density_classifier import DensityClassifier
from mixtura.estimators.density_estimator import DensityEstimator
from mixtura.estimators.estimator import check_fitted, fitting, recorded, with_constructor
from mixtura.estimators.mixture_classifier import MixtureClassifier, make_search, make_settings
from mixtura.estimators.rows import Rows, adopt_features
from mixtura.estimators.training import (
    bring_home,
    describe,
    keep_unobserved,
    make_generator,
    raise_interruption,
    read_training,
    select,
)
from mixtura.files.registry import storable
from mixtura.init.description import describe as describe_samples
from mixtura.inspection.graphs import GaussianScores, class_scores, classifier_graph
from mixtura.model.mixture import Mixture
from mixtura.selection.merging import reduced
from mixtura.selection.task import Task, find_solver, start
from mixtura.solvers import EM, AcceleratedEM, MemberFit


@storable("AveragedMixtureClassifier", check=check_fitted)
@with_constructor
class AveragedMixtureClassifier(DensityClassifier):
    """Average of several mixture classifiers.

    The members are trained together, in one pass over the data per iteration. Resampling is stratified by class.

    Parameters
    ----------
    estimator : MixtureClassifier or None, default=None
        The members; None means `MixtureClassifier(1)`. If it has parameters "auto", they are selected
        once, for all members.
    n_estimators : int, default=20
        Number of members.
    resampling : {"bootstrap", "subset", "none"}, default="bootstrap"
        Training set of a member: a bootstrap replicate, a random subset, or all samples with its own initialisation.
    fraction : float, default=0.7
        Fraction of the samples in a subset.
    combine : {"posterior", "density"}, default="posterior"
        Whether to average class probabilities or, as in [1]_, densities; then the average is itself a mixture.
    random_state : int, RandomState or None, default=None
        Seed of resampling and initialisation.
    verbose : int, default=0
        Verbosity; 1 shows a progress bar over everything that is computed.
    checkpoint : str or path-like, optional
        A file that keeps the progress of a fit, as in `MixtureClassifier`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    class_prior_ : ndarray of shape (n_classes,)
        Class probabilities.
    mixture_ : Mixture
        The average, one mixture of all components.
    mixtures_ : list of Mixture
        The members.
    member_of_ : Tensor of shape (n_components,)
        MemberFit of each component.
    oob_decision_function_ : ndarray of shape (n_samples, n_classes)
        Out-of-bag class probabilities of each training sample; NaN if all members use it.
    oob_score_ : float
        Out-of-bag accuracy.
    oob_log_loss_ : float
        Out-of-bag log-loss.
    n_iter_ : int
        Largest number of iterations of a member.
    converged_ : bool
        Whether all members converged.
    history_ : list of Record
        Mean objective of the members at each iteration.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Feature names, if X has string column names.

    References
    ----------
    .. [1] Ormoneit and Tresp (1995). Improved Gaussian mixture density estimates using Bayesian penalty terms and
       network averaging. NIPS 8.

    Examples
    --------
    >>> from mixtura import AveragedMixtureClassifier, MixtureClassifier
    >>> from mixtura.datasets import make_ripley
    >>> X, y = make_ripley(125, random_state=0)
    >>> model = AveragedMixtureClassifier(MixtureClassifier(3), random_state=0).fit(X, y)
    >>> bool(model.oob_score_ > 0.85)
    True
    """

    estimator: Any = None
    n_estimators: int = 20
    _: KW_ONLY
    resampling: str = "bootstrap"
    fraction: float = 0.7
    combine: str = "posterior"
    random_state: Any = None
    verbose: int = 0
    checkpoint: Any = None

    _attributes: ClassVar = MEMBERS
    mixtures_: list[Mixture] = field(init=False)
    member_of_: Tensor = field(init=False)
    _arguments: ClassVar = {
        "estimator": checks.kind_of_estimator(
            MixtureClassifier, "a MixtureClassifier, or None for one with its defaults"
        ),
        "combine": checks.among(("posterior", "density")),
    }

    @property
    def _base(self) -> MixtureClassifier:
        return MixtureClassifier(1) if self.estimator is None else self.estimator

    @property
    def device(self) -> Any:
        """Device of the computation, as in the members."""
        return self._base.device

    @property
    def memory_limit(self) -> Any:
        """Limit of temporary arrays, as in the members."""
        return self._base.memory_limit

    def _selected_settings(self) -> dict[str, Any]:
        return select_base(self._base, self.search_, vars(self).get("classes_"))

    def _check_fitted(self) -> None:
        super()._check_fitted()
        checks.is_kind("estimator", self._base, DensityEstimator)
        check_members(self.mixtures_, self.member_of_, self.mixture_)

    @property
    def members_(self) -> Any:
        """The members, as `mixtures_`."""
        check_is_fitted(self)
        return self.mixtures_

    def _member_scores(self, log_joint: Tensor) -> Tensor:
        """log p_b(x, c) of every class and member: (K, n) -> (C, B, n)."""
        return member_scores(log_joint, self.mixture_.class_slices, self.member_of_, len(self.mixtures_))

    @fitting
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> AveragedMixtureClassifier:
        """Fit all members.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples; NaN means missing.
        y : array-like of shape (n_samples,) or (n_samples, n_classes)
            Labels or soft labels.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative sample weights.

        Returns
        -------
        self : AveragedMixtureClassifier
        """
        base = prepare_base(type(self).__name__, self._base, X)
        settings, search = make_settings(base), make_search(base, average=1)
        if settings.missing == "informative":
            raise ValueError(
                "The members of AveragedMixtureClassifier take no account of which values are missing; got "
                "missing='informative'. Set missing='ignorable', or use MixtureClassifier by itself."
            )
        data = read_training(base, settings, X, y, sample_weight)
        rows, labels, weights = data.rows, data.labels, data.weights
        assert rows is not None
        assert labels is not None
        adopt_features(self, base)
        self.encoding_ = data.encoding
        random_state = check_random_state(self.random_state)
        strata = _strata(labels)
        counts = draw_replicates(self.resampling, self.n_estimators, self.fraction, strata, weights, random_state)
        with computing(), recorded(self, training=data.source):
            settings = replace(settings, generator=_next_generator(random_state), missing="ignorable")
            chosen = select(base, search, describe(base, data, settings))
            for result in chosen.results:
                raise_interruption(result)
            task = chosen.task
            self._check_solver(base, task)
            rows, self.warp_ = replace(rows, warp=task.warp), bring_home(task.warp, data)
            members = []
            for b in range(self.n_estimators):
                _, seen = replicate_of(
                    rows, labels.numbers, labels.shares, weights, None if counts is None else counts[:, b]
                )
                for _ in range(settings.n_init):
                    members.append(_start_member(task, seen, _next_generator(random_state), b))
            all_rows = rows.source(labels.numbers, labels.shares, weights, counts)
            results = train_members(self.n_estimators, task, members, all_rows, EM())
            results = [replace(result, mixture=task.convert(result.mixture)) for result in results]
        self.classes_ = labels.classes
        if chosen.table is not None:
            self.search_ = chosen.table
        keep_unobserved(self, task.description)
        keep_members(self, results, task, data)
        self.class_prior_ = self.mixture_.log_class_prior.exp().cpu().numpy()
        judge_members(type(self).__name__, results, task)
        if counts is not None:
            self._keep_unseen(rows, labels, counts, weights)
        return self

    @property
    def unlabeled(self) -> Any:
        """The label of unlabeled samples, as in the members."""
        return None if self.estimator is None else self.estimator.unlabeled

    def _check_solver(self, base: MixtureClassifier, task: Task) -> None:
        solver = find_solver(task)
        if not isinstance(solver, EM | AcceleratedEM):
            raise ValueError(
                f'The members of {type(self).__name__} are trained together by solver="em", which maximises '
                f'objective="joint"; got objective {task.objective.name!r} and solver={base.solver!r}.'
            )

    def _keep_unseen(self, rows: Rows, labels: Any, counts: Tensor, weights: Tensor | None) -> None:
        combine = _mean_posterior if self.combine == "posterior" else _posterior_of_mean
        with computing():
            limit = checks.memory_limit(self.memory_limit)
            values = score_unseen(self.mixture_, self._member_scores, rows, counts, limit, combine)
        probabilities = values.cpu().numpy()
        self.oob_decision_function_ = probabilities
        numbers = np.full(len(rows), -1) if labels.numbers is None else labels.numbers.cpu().numpy()
        scored = (numbers >= 0) & ~np.isnan(probabilities[:, 0])
        own = probabilities[np.arange(len(probabilities)), numbers.clip(0)]
        self.oob_score_ = mean_of(probabilities.argmax(1) == numbers, scored, weights)
        self.oob_log_loss_ = mean_of(-np.log(own.clip(1e-300)), scored, weights)

    def _scores(self) -> Callable[[Tensor], Tensor]:
        if self.combine == "density" or "mixture_" not in vars(self):
            return super()._scores()

        def scores(log_joint: Tensor) -> Tensor:
            """log p(x) of the average and the logarithm of the average posterior, added: (K, n) -> (C, n)."""
            posterior = self._member_scores(log_joint).log_softmax(0).logsumexp(1) - math.log(len(self.mixtures_))
            return posterior + log_joint.logsumexp(0)

        return scores

    def _graph(self) -> Any:
        mixture, members = self.mixture_, None  # of an average of densities the whole mixture is one model
        if self.combine == "posterior":
            owners = mixture.class_of.cpu() * len(self.mixtures_) + self.member_of_.cpu()
            members = [
                [(owners == c * len(self.mixtures_) + b).nonzero()[:, 0].tolist() for c in range(mixture.n_classes)]
                for b in range(len(self.mixtures_))
            ]
        scores = GaussianScores(mixture, self.warp_)
        return classifier_graph(class_scores(scores, mixture.class_sizes, self._temperature(), members))

    def to_mixture(self) -> MixtureClassifier:
        """Convert the average of the densities (`combine="density"`) to a `MixtureClassifier` of all components.

        Returns
        -------
        model : MixtureClassifier
        """
        check_is_fitted(self)
        return _as_classifier(self, self.mixture_)

    def reduce(self, n_components: int) -> MixtureClassifier:
        """Reduce the average to a small `MixtureClassifier`; see `AveragedMixture.reduce`.

        Parameters
        ----------
        n_components : int
            Number of components of every class.

        Returns
        -------
        model : MixtureClassifier
        """
        check_is_fitted(self)
        mixture, _ = reduced(self.mixture_, [checks.count("n_components", n_components)] * len(self.classes_))
        return _as_classifier(self, mixture)


def _next_generator(random_state: np.random.RandomState) -> torch.Generator:
    return make_generator(random_state.randint(np.iinfo(np.int32).max))


def _start_member(task: Task, seen: Source, generator: torch.Generator, column: int) -> MemberFit:
    """The fit of a member, from its own samples; prior, frame and smallest variances are those of all samples."""
    description = describe_samples(seen, task.n_classes, generator)
    own = replace(task, source=seen, description=description, generator=generator, start=None)
    return MemberFit(task.problem, start(own, task.problem), description.weight, column)


def _mean_posterior(scores: Tensor, unseen: Tensor) -> Tensor:
    posterior = torch.where(unseen, scores.softmax(0), 0.0).sum(1)  # (C, n)
    return (posterior / unseen.sum(0)).T  # NaN where none is left


def _posterior_of_mean(scores: Tensor, unseen: Tensor) -> Tensor:
    return scores.masked_fill(~unseen, -torch.inf).logsumexp(1).softmax(0).T


def _strata(labels: Any) -> np.ndarray:
    """Strata of resampling: the classes, and the unlabeled rows."""
    if labels.shares is None:
        return labels.numbers.cpu().numpy()
    known = labels.shares.nan_to_num(nan=-1.0)
    return torch.where(labels.unlabeled, -1, known.argmax(1)).cpu().numpy()


def _as_classifier(averaged: AveragedMixtureClassifier, mixture: Mixture) -> MixtureClassifier:
    model = fitted_copy(averaged, averaged._base, mixture)
    model.classes_ = averaged.classes_
    model.class_prior_ = mixture.log_class_prior.exp().cpu().numpy()
    model.n_components = dict(zip(model.classes_.tolist(), model.n_components_.tolist(), strict=True))
    return model
