"""The base of estimators with a density: reading X, prediction, imputation, sampling, and warnings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from mixtura import checks
from mixtura.engine.conditionals import draw_missing, map_distances
from mixtura.engine.evaluator import computing_dtype
from mixtura.engine.passes import impute, map_rows
from mixtura.engine.threads import computing
from mixtura.estimators import arguments
from mixtura.estimators.categorical import Encoding, frame_of
from mixtura.estimators.estimator import TRAINED, Estimator, list_features
from mixtura.estimators.frames import as_array, framed_like
from mixtura.estimators.refits import held_out
from mixtura.estimators.rows import Rows, aligned, read_samples
from mixtura.estimators.streamed_rows import by_batches
from mixtura.inspection.graphs import GaussianScores, density_graph
from mixtura.inspection.outliers import outlier_scores, reference_of, surprises, threshold_of
from mixtura.inspection.summaries import (
    ModelSummary,
    component_entropies,
    component_table,
    data_frame,
    fit_facts,
    likelihood_facts,
    model_facts,
)
from mixtura.model.mixture import Mixture
from mixtura.model.transforms import Recoding, Transform
from mixtura.objectives import posteriors
from mixtura.objectives.likelihood import component_posteriors
from mixtura.roles import Structure
from mixtura.selection.task import PriorChoice
from mixtura.solvers.em import RunningMoments

if TYPE_CHECKING:
    import pandas as pd


# Largest distance of a value from a component, in standard deviations, by the precision of the computation.
FARTHEST = {torch.float64: 1e100, torch.float32: 1e15}


def _check_positions(name: str, columns: tuple[int, ...], model: DensityEstimator) -> None:
    checks.positions(name, torch.tensor(columns, dtype=torch.int64), model.mixture_.n_features)


def check_reference(name: str, scores: np.ndarray | None, model: object) -> None:
    """Check the sorted outlier scores of held-out samples, and their doubts, if there are any."""
    if scores is not None:
        checks.is_kind(name, scores, np.ndarray)
        distances = scores if scores.ndim == 1 else scores[:, 0]
        checks.numbers(name, torch.from_numpy(distances), (max(1, distances.size),))
        if scores.ndim > 1:  # doubts; NaN with missing values
            checks.numbers(name, torch.from_numpy(np.nan_to_num(scores[:, 1:])), (len(scores), 1))
        if bool((np.diff(distances) < 0).any()):
            raise ValueError(f"{name} is not sorted")


class DensityEstimator(Estimator):
    """Base of estimators with a fitted Gaussian mixture, `mixture_`."""

    _attributes: ClassVar = TRAINED | {
        "mixture_": Mixture,
        "warp_": Transform | None,
        "encoding_": Encoding | None,
        "unobserved_": (tuple, _check_positions),
        "outlier_reference_": check_reference,
    }
    mixture_: Mixture
    warp_: Transform | None = None  # transform of the features, fitted before the mixture
    n_features_in_: int
    unobserved_: tuple[int, ...] = ()  # columns without an observed value in the training rows
    encoding_: Encoding | None = None  # of categorical features
    categorical_features: object = None  # argument of estimators that support them
    # Arguments of all estimators.
    covariance_type: str | Structure
    rank: int | str
    prior: PriorChoice
    running_: RunningMoments | None  # moments of `partial_fit`, where an estimator has it

    @by_batches()
    def score_samples(self, X: Any) -> Any:
        """Compute the log density of each sample; missing values (NaN) are marginalised.

        Which values are missing does not count, also if class probabilities depend on it (missingness).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        log_density : ndarray of shape (n_samples,)
        """
        return map_log_joints(self, X, lambda log_joint: posteriors(log_joint)[0], density=True)

    @by_batches("component")
    def responsibilities(self, X: Any) -> Any:
        """Compute the posterior probability of each component.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        responsibilities : ndarray of shape (n_samples, n_components)
        """
        return map_log_joints(self, X, component_posteriors)

    @by_batches("feature")
    def impute(self, X: Any, method: str = "mean", random_state: arguments.RandomState = None) -> Any:
        """Fill in missing values given the observed values of the same sample.

        Which other values are missing does not count, also if class probabilities depend on it (missingness).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        method : {"mean", "draw"}, default="mean"
            "mean" imputes the conditional expectation (with `warp`, that of the transformed feature, transformed
            back); "draw" samples from the conditional distribution, which preserves variances and correlations.
        random_state : int or RandomState, optional
            Seed of the draws; that of the model if None.

        Returns
        -------
        completed : ndarray of shape (n_samples, n_features), or a data frame for a data frame
            Columns without an observed value in the training set stay missing.
        """
        return impute_samples(self, X, method, random_state)

    def _draw(self, mixture: Mixture, n_samples: int) -> tuple[Tensor, Tensor]:
        checks.count("n_samples", n_samples)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        generator = torch.Generator().manual_seed(seed)
        with computing():
            rows, components = mixture.to("cpu").sample(int(n_samples), generator)
            return (rows if self.warp_ is None else self.warp_.to("cpu").backward(rows)), components

    def _drawn_samples(self, rows: Tensor) -> np.ndarray | pd.DataFrame:
        """Samples as an array, or as a data frame where features are categorical."""
        if self.encoding_ is None:
            return rows.numpy()
        columns = self.encoding_.decode(rows.numpy())
        return data_frame({name: columns[j] for j, name in enumerate(list_features(self))})

    @property
    def n_components_(self) -> Any:
        """Number of components."""
        check_is_fitted(self)
        return self.mixture_.n_components

    @property
    def n_parameters_(self) -> int:
        """Number of free parameters of the fitted mixture."""
        check_is_fitted(self)
        return self.mixture_.n_parameters

    def _check_fitted(self) -> None:
        super()._check_fitted()
        n_features, encoding, warp = self.mixture_.n_features, self.encoding_, self.warp_
        expected = self.n_features_in_ if encoding is None else encoding.n_columns
        checks.same_size("n_features_in_", expected, n_features if warp is None else warp.n_inputs)
        checks.same_size("warp_", n_features if warp is None else warp.n_outputs, n_features)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    outlier_reference_: np.ndarray | None = None  # scores and doubts of samples, sorted; whether they were held out
    outlier_source_: str | None = None

    @by_batches()
    def outlier_score(self, X: Any, score: str = "distance") -> Any:
        """Compute outlier scores; larger values are more unusual.

        The distance is the squared distance of the observed features from the components of a sample. It is
        standardised to mean 0 and variance 1 for Gaussian samples with any missing values (outlier-score). Which values
        are missing does not count, also if class probabilities depend on it (missingness).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples; NaN means missing. A sample without observed values has distance 0.
        score : {"distance", "auto"}, default="distance"
            "auto" combines the distance with the doubt between the classes: the sum of -log p of both, where p is the
            share of held-out training samples with as large a value (doubt). Doubt counts for complete samples of 20
            features or more, among three classes or more.

        Returns
        -------
        scores : ndarray of shape (n_samples,)
        """
        if checks.one_of("score", score, ("distance", "auto")) == "distance":
            return self._outlier_scores(X, lambda scores: scores[:, 0])
        reference = self._outlier_reference()
        return self._outlier_scores(X, lambda scores: surprises(reference, scores))

    def _outlier_scores(self, X: object, finish: Callable[[Tensor], Tensor]) -> np.ndarray | Tensor:
        """finish(distances and doubts (n, 2)) of samples, in the format of X."""
        rows = read_as_fitted(self, X)
        source = rows.source()
        with computing():
            mixture = self.mixture_.to(source.device)
            compute = partial(outlier_scores, sizes=mixture.class_sizes)
            return rows.answer(finish(map_distances(mixture, source, compute, checks.memory_limit(self.memory_limit))))

    def _outlier_reference(self) -> np.ndarray:
        """Distances and doubts of held-out samples, (n, 2); models of version 0.1 have distances alone."""
        reference = self.outlier_reference_
        if reference is None:
            raise ValueError(
                "is_outlier needs a calibrated threshold, which this model does not have. Call "
                "model.calibrate_outliers(X, y) with the training set first, or use outlier_score with your own "
                "threshold."
            )
        return np.column_stack((reference, np.full(len(reference), np.nan))) if reference.ndim == 1 else reference

    def calibrate_outliers(
        self, X: Any, y: Any = None, sample_weight: Any = None, cv: Any = 5, reselect: bool = False, groups: Any = None
    ) -> Any:
        """Estimate the distribution of outlier scores by cross-validation, for `is_outlier`.

        `fit` itself has kept the scores of samples that its selection held out, or else corrected ones of training
        samples (`outlier_source_` is "held-out" or "training"). This method is more exact, and slower: copies of the
        model are fitted to the training folds and score the held-out samples. No distribution of the scores is assumed.
        The copies have the settings that the model selected: its selection has seen the samples that they hold out.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The training samples.
        y : array-like of shape (n_samples,), optional
            Their labels, for classifiers.
        sample_weight : array-like of shape (n_samples,), optional
            Sample weights.
        cv : int or cross-validation splitter, default=5
            Number of folds, or a splitter.
        reselect : bool, default=False
            Whether every copy selects its own settings, without the held-out samples. It then takes as long as `cv`
            fits of the model.
        groups : array-like of shape (n_samples,), optional
            The group of each sample, as in `fit`: no group is divided between folds.

        Returns
        -------
        self : estimator
        """
        check_is_fitted(self)
        given = {"sample_weight": sample_weight, "groups": groups}
        parts = held_out(self, X, y, cv, _distances_and_doubts, reselect=reselect, **given)
        self.outlier_reference_ = reference_of(np.concatenate([scores for _, scores in parts]))
        self.outlier_source_ = "held-out"
        return self

    @by_batches()
    def is_outlier(self, X: Any, false_alarm: float = 0.01, score: str = "auto") -> Any:
        """Detect outliers: samples with larger scores than all but a small fraction of ordinary samples.

        `fit` keeps the scores of samples that its selection held out, if it made one (`outlier_source_` is "held-out");
        else those of training samples ("training"), as if each had been left out (left-out-distance), which is an
        approximation: new samples of wine are flagged at rates of 6 to 9 % in place of 5 %. `calibrate_outliers` takes
        held-out samples in any case. `partial_fit` keeps the scores of its first batch.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        false_alarm : float, default=0.01
            False alarm rate: the fraction of ordinary samples that are detected as outliers.
        score : {"auto", "distance"}, default="auto"
            The score, as in `outlier_score`: distance and doubt between the classes, or the distance alone.

        Returns
        -------
        outliers : ndarray of bool of shape (n_samples,)

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from mixtura import MixtureClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = MixtureClassifier(random_state=0).fit(X, y)
        >>> model.is_outlier([[50.0, 50, 50, 50], [5.8, 2.7, 4.2, 1.3]])
        array([ True, False])
        >>> model.outlier_source_
        'held-out'
        """
        share, scores = float(checks.require("false_alarm", false_alarm, checks.PART)), self.outlier_score(X, score)
        reference = self._outlier_reference()
        known = reference[:, 0] if score == "distance" else surprises(reference, torch.from_numpy(reference)).numpy()
        return scores > threshold_of(np.sort(known), share)

    training_weight_: float
    n_iter_: int
    converged_: bool

    def _fitted(self, name: str) -> Mixture:
        if "mixture_" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}: it is not fitted yet")
        return self.mixture_

    @property
    def weights_(self) -> np.ndarray:
        """Weight of each component, (n_components,); those of all classes sum to one."""
        return self._fitted("weights_").weights.cpu().numpy()

    @property
    def means_(self) -> np.ndarray:
        """Mean of each component, (n_components, n_features); of the transformed features under `warp`."""
        return self._fitted("means_").means.cpu().numpy()

    @property
    def covariances_(self) -> np.ndarray:
        """Covariance matrix of each component, dense; of the transformed features under `warp`."""
        return self._fitted("covariances_").covariance.dense().cpu().numpy()

    def _likelihood(self, X: object, y: object, sample_weight: object) -> tuple[float, float, float]:
        """Log-likelihood of samples in their own units, entropy of their components, and their weight."""
        self._fitted("mixture_")
        values, entropies = self._densities(X, y)
        weights = checks.sample_weight(sample_weight, len(values))
        weights = np.ones(len(values)) if weights is None else weights.cpu().numpy()
        return float(weights @ values), float(weights @ entropies), float(weights.sum())

    def _densities(self, X: object, y: object) -> tuple[np.ndarray, np.ndarray]:
        """Log density of each sample, with its label if it has one, and the entropy of its components."""
        if y is not None:
            raise ValueError(f"{type(self).__name__} has no classes; leave y out.")
        entropies = map_log_joints(self, X, lambda log_joint: component_entropies(log_joint, [len(log_joint)]))
        return as_array(self.score_samples(X)), as_array(entropies)[:, 0]

    @property
    def _n_free(self) -> int:
        return self._fitted("n_parameters_").n_parameters + (0 if self.warp_ is None else self.warp_.n_parameters)

    def bic(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Compute the Bayesian information criterion; lower is better.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), optional
            Labels; with labels the criterion uses the joint likelihood of samples and labels.
        sample_weight : array-like of shape (n_samples,), optional

        Returns
        -------
        float
            -2 log-likelihood + n_parameters log(n_samples).
        """
        value, _, weight = self._likelihood(X, y, sample_weight)
        return -2 * value + self._n_free * math.log(weight)

    def aic(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Compute the Akaike information criterion, -2 log-likelihood + 2 n_parameters; lower is better.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,), optional
            Labels, as in `bic`.
        sample_weight : array-like of shape (n_samples,), optional
            Sample weights.

        Returns
        -------
        aic : float
        """
        value, _, _ = self._likelihood(X, y, sample_weight)
        return -2 * value + 2 * self._n_free

    def icl(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Compute the integrated completed likelihood, BIC plus twice the entropy of the components; lower is better.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,), optional
            Labels, as in `bic`.
        sample_weight : array-like of shape (n_samples,), optional
            Sample weights.

        Returns
        -------
        icl : float
        """
        value, entropy, weight = self._likelihood(X, y, sample_weight)
        return -2 * value + self._n_free * math.log(weight) + 2 * entropy

    def _label_facts(self, X: object, y: object, sample_weight: object) -> dict[str, float]:
        """Facts about predictions of labels, of classifiers."""
        return {}

    def summary(self, X: Any = None, y: Any = None, sample_weight: Any = None) -> ModelSummary:
        """Summarise the fitted model: classes, components with weights and typical feature values, and the fit.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), optional
            Samples. The summary then includes their log-likelihood, BIC and ICL and, if y is given, their log-loss and
            error rate. Pass the training samples for the likelihood of the fit, others for held-out scores.
        y : array-like of shape (n_samples,), optional
            Labels of X.
        sample_weight : array-like of shape (n_samples,), optional

        Returns
        -------
        ModelSummary
            A table as text, or as HTML in a notebook; `to_frame()` returns a pandas data frame of the components.
        """
        mixture, known = self._fitted("summary"), vars(self)
        categories = {} if self.encoding_ is None else self.encoding_.labels
        about = known.get("classes_"), known.get("training_weight_"), feature_of(self), categories
        table, note = component_table(mixture, self.warp_, list_features(self), *about)
        facts = model_facts(self, mixture, self._n_free) | fit_facts(self)
        if X is not None:
            facts |= likelihood_facts(*self._likelihood(X, y, sample_weight), self._n_free)
            facts |= {} if y is None else self._label_facts(X, y, sample_weight)
        return ModelSummary(type(self).__name__, facts, table, note)

    def _graph(self) -> nn.Module:
        return density_graph(GaussianScores(self.mixture_, self.warp_))

    def _graph_outputs(self) -> tuple[str, ...]:
        return ("probabilities", "log_density")


def _distances_and_doubts(model: DensityEstimator, X: object) -> np.ndarray:
    """Distances of samples, and their doubts, (n, 2)."""
    return as_array(model._outlier_scores(X, lambda scores: scores))


def read_as_fitted(model: DensityEstimator, X: object) -> Rows:
    """The rows of X, checked like those of the fit, with the transform of the model."""
    check_is_fitted(model)
    rows = replace(read_samples(model, X, reset=False), warp=model.warp_)
    check_distances(model, rows, model.mixture_)
    return rows


def check_distances(model: DensityEstimator, rows: Rows, mixture: Mixture) -> None:
    """Reject values so far from a component that their distance cannot be computed."""
    extents = rows.extents
    assert extents is not None
    ends = torch.stack((extents.low, extents.high))
    ends = torch.where(extents.low > extents.high, torch.nan, ends)  # none observed
    values = ends if rows.warp is None else rows.warp.to("cpu").forward(ends)
    with computing():  # threads take longer to start than this
        means, scales = mixture.ranges  # (K, D)
        distances = ((values.unsqueeze(1) - means).abs() / scales).amax(1)  # (2, D)
    if isinstance(rows.warp, Recoding):  # numbers for categories are near
        ends, distances = ends[:, : rows.warp.n_numeric], distances[:, : rows.warp.n_numeric]
    # Results for tensors have the precision of the input, which must also hold the log density.
    dtype = rows.dtype if rows.as_tensor else computing_dtype(replace(rows, warp=None).source())
    far = ~(distances <= FARTHEST[dtype]) & ~ends.isnan()
    if bool(far.any()):
        place = int(torch.where(far, distances.nan_to_num(posinf=torch.inf, nan=torch.inf), 0.0).argmax())
        raise ValueError(
            f"X holds {float(ends.flatten()[place]):g} in {checks.column_name(model, place % ends.shape[1])}, more "
            f"than {FARTHEST[dtype]:g} standard deviations from a component: probabilities cannot be computed. Check "
            "the units of that column, or remove such values."
        )


def map_log_joints(
    model: DensityEstimator, X: object, compute: Callable[[Tensor], Tensor], density: bool = False
) -> np.ndarray | Tensor:
    """compute(log joints (K, n)) -> (n, ...) over the rows of X, returned in the format of X.

    Log densities refer to the original features, also if the mixture is fitted to transformed features (warp).
    """
    rows = read_as_fitted(model, X)
    source, limit = rows.source(), checks.memory_limit(model.memory_limit)
    with computing():
        final = not (density and rows.warp is not None)
        dtype = rows.dtype if rows.as_tensor and final else None
        values = map_rows(model.mixture_, source, compute, limit, dtype=dtype)
        if density and rows.warp is not None:
            values = values + rows.log_slopes().reshape(-1, *[1] * (values.ndim - 1))
    return rows.answer(values)


def feature_of(model: DensityEstimator) -> np.ndarray:
    """The feature that each column of the encoded rows belongs to."""
    return np.arange(model.mixture_.n_features) if model.encoding_ is None else model.encoding_.feature_of


def impute_samples(model: DensityEstimator, X: object, method: str, random_state: arguments.RandomState) -> object:
    """Samples with their missing values filled in, as `DensityEstimator.impute` documents them."""
    samples = aligned(model, X)
    rows = read_as_fitted(model, samples)
    source, limit = rows.source(), checks.memory_limit(model.memory_limit)
    drawn = checks.one_of("method", method, ("mean", "draw")) == "draw"
    with computing():
        mixture = model.mixture_.to(source.device)
        if drawn:
            random = check_random_state(model.random_state if random_state is None else random_state)
            generator = torch.Generator().manual_seed(int(random.randint(2**31 - 1)))
            completed = draw_missing(mixture, source, generator, limit)
        else:
            completed = impute(mixture, source, limit)
        if model.warp_ is not None:
            given = torch.cat([block.rows for block in replace(rows, warp=None).source().blocks()])
            completed = torch.where(given.isnan(), model.warp_.to(completed.device).backward(completed), given)
        for column in model.unobserved_:
            given = torch.cat([block.rows[:, column] for block in replace(rows, warp=None).source().blocks()])
            completed[:, column] = given.to(completed)
    if model.encoding_ is not None and not rows.as_tensor:
        return frame_of(samples, model.encoding_.decode(completed.cpu().numpy()))
    return framed_like(samples, rows.answer(completed))
