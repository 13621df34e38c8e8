"""The base of estimators with a density: reading X, prediction, imputation, sampling, and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mixtura import checks
from mixtura.covariances import COVARIANCES, Product
from mixtura.engine.conditionals import draw_missing
from mixtura.engine.evaluator import computing_dtype
from mixtura.engine.passes import impute, map_rows
from mixtura.engine.threads import computing
from mixtura.estimators.categorical import Encoding, find_encoding, frame_of
from mixtura.estimators.described import DescribedMixture
from mixtura.estimators.input import Rows, framed_like, read_rows
from mixtura.estimators.model_files import Savable
from mixtura.estimators.rowwise import rowwise
from mixtura.init.description import Description
from mixtura.model.mixture import Mixture
from mixtura.model.warp import Warp
from mixtura.objectives import posteriors
from mixtura.roles import ConjugatePrior, Covariance, Prior, Structure
from mixtura.values.storable import as_loaded


class MixtureEstimator(Savable, DescribedMixture, BaseEstimator):
    """Base of estimators with a fitted Gaussian mixture, `mixture_`."""

    mixture_: Mixture
    warp_: Warp | None = None  # transform of the features, fitted before the mixture
    n_features_in_: int
    unobserved_: tuple[int, ...] = ()  # columns without an observed value in the training rows
    encoding_: Encoding | None = None  # of categorical features
    _home: torch.device | None = None  # of fitted parameters, if they were computed on another device
    categorical_features: Any = None  # argument of estimators that support them
    # Arguments of all estimators.
    covariance_type: Any
    rank: Any
    random_state: Any
    memory_limit: Any

    def _structure(self, n_features: int) -> Structure:
        encoding = self.encoding_
        return self._with_categories(self._gaussian(n_features if encoding is None else len(encoding.numeric)))

    def _with_categories(self, inner: Structure) -> Structure:
        """The structure for the numeric features, with frequencies of categorical features if there are any."""
        if self.encoding_ is None:
            return inner
        if inner.name not in ("full", "tied", "diag", "spherical"):
            raise ValueError(
                f"covariance_type={self.covariance_type!r} does not support categorical features; use 'full', 'tied', "
                "'diag' or 'spherical'."
            )
        return Product(inner, len(self.encoding_.numeric), self.encoding_.sizes)

    def _gaussian(self, n_features: int) -> Structure:
        rank = checks.rank(self.rank, n_features)
        if not isinstance(self.covariance_type, str):
            if isinstance(self.covariance_type, Structure):
                return self.covariance_type
            raise ValueError(_unknown_covariance(self.covariance_type))
        if self.covariance_type not in COVARIANCES:
            raise ValueError(_unknown_covariance(self.covariance_type))
        return COVARIANCES[self.covariance_type](rank)

    def _at_home(self, part: Any) -> Any:
        """A fitted mixture or transform, as loaded from a file, on the requested device."""
        return as_loaded(part if part is None or self._home is None else part.to(self._home))

    def _generator(self) -> tuple[np.random.RandomState, torch.Generator]:
        """NumPy and torch random number generators from one random_state."""
        random_state = check_random_state(self.random_state)
        seed = int(random_state.randint(np.iinfo(np.int32).max))
        return random_state, torch.Generator().manual_seed(seed)

    def _read_rows(self, X: Any, reset: bool) -> Rows:
        """Checked rows, categorical features encoded."""
        if reset:
            self.encoding_ = find_encoding(X, self.categorical_features)
        if self.encoding_ is None:
            return read_rows(self, X, reset=reset)
        return self.encoding_.read(self, X, reset)

    def _read(self, X: Any) -> Rows:
        check_is_fitted(self)
        rows = replace(self._read_rows(X, reset=False), warp=self.warp_)
        self._check_distances(rows)
        return rows

    def _check_distances(self, rows: Rows) -> None:
        """Reject values so far from a component that their distance cannot be computed."""
        extents, mixture = rows.extents, self.mixture_.on_host
        assert extents is not None
        ends = torch.stack((extents.low, extents.high))
        ends = torch.where(extents.low > extents.high, torch.nan, ends)  # none observed
        values = ends if rows.warp is None else rows.warp.to("cpu").forward(ends)
        scales = mixture.covariance.variances().sqrt()  # (K, D)
        distances = ((values.unsqueeze(1) - mixture.means).abs() / scales).amax(1)  # (2, D)
        # Results for tensors have the precision of the input, which must also hold the log density.
        dtype = rows.dtype if rows.as_tensor else computing_dtype(replace(rows, warp=None).source())
        checks.near_enough(self, ends, distances, dtype)

    def _map(self, X: Any, compute: Any, density: bool = False, finish: Any = None) -> Any:
        """compute(log joints (K, n)) -> (n, ...) over the rows of X, returned in the format of X.

        Log densities refer to the original features, also if the mixture is fitted to transformed features (warp).
        finish(values, shares of observed features) -> (n, ...), if given, is applied to the result.
        """
        rows = self._read(X)
        source, limit = rows.source(), checks.memory_limit(self.memory_limit)
        with computing():
            final = finish is None and not (density and rows.warp is not None)
            dtype = rows.dtype if rows.as_tensor and final else None
            values = map_rows(self.mixture_, source, compute, limit, dtype=dtype)
            if density and rows.warp is not None:
                values = values + rows.log_slopes().reshape(-1, *[1] * (values.ndim - 1))
            if finish is not None:
                values = finish(values, rows.observed_shares())
        return rows.answer(values)

    @rowwise()
    def score_samples(self, X: Any) -> Any:
        """Compute the log density of each sample; missing values (NaN) are marginalised.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        log_density : ndarray of shape (n_samples,)
        """
        return self._map(X, lambda log_joint: posteriors(log_joint)[0], density=True)

    @rowwise("component")
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
        return self._map(X, lambda log_joint: posteriors(log_joint)[1].T)

    @rowwise("feature")
    def impute(self, X: Any, method: str = "mean", random_state: Any = None) -> Any:
        """Fill in missing values given the observed values of the same sample.

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
        rows = self._read(X)
        source, limit = rows.source(), checks.memory_limit(self.memory_limit)
        drawn = checks.one_of("method", method, ("mean", "draw")) == "draw"
        with computing():
            mixture = self.mixture_.to(source.device)
            if drawn:
                random = check_random_state(self.random_state if random_state is None else random_state)
                generator = torch.Generator().manual_seed(int(random.randint(2**31 - 1)))
                completed = draw_missing(mixture, source, generator, limit)
            else:
                completed = impute(mixture, source, limit)
            if rows.warp is not None:
                given = torch.cat([block.rows for block in replace(rows, warp=None).source().blocks()])
                completed = torch.where(given.isnan(), rows.warp.to(completed.device).backward(completed), given)
            for column in self.unobserved_:
                given = torch.cat([block.rows[:, column] for block in replace(rows, warp=None).source().blocks()])
                completed[:, column] = given.to(completed)
        if self.encoding_ is not None and not rows.as_tensor:
            return frame_of(X, self.encoding_.decoded(completed.cpu().numpy()))
        return framed_like(X, rows.answer(completed))

    def _draw(self, mixture: Mixture, n_samples: Any) -> tuple[Tensor, Tensor]:
        checks.count("n_samples", n_samples)
        _, generator = self._generator()
        with computing():
            rows, components = mixture.to("cpu").sample(int(n_samples), generator)
            return (rows if self.warp_ is None else self.warp_.to("cpu").backward(rows)), components

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
        checks.is_kind("mixture_", self.mixture_, Mixture)
        checks.is_kind("warp_", self.warp_, Warp | None)
        n_features = self.mixture_.n_features
        encoding = self.encoding_
        checks.is_kind("encoding_", encoding, Encoding | None)
        expected = self.n_features_in_ if encoding is None else encoding.n_columns
        checks.same_size("n_features_in_", expected, n_features)
        checks.fitted_reference(self.outlier_reference_)
        checks.is_kind("unobserved_", self.unobserved_, tuple)
        checks.positions("unobserved_", torch.tensor(self.unobserved_, dtype=torch.int64), n_features)
        checks.same_size("warp_", n_features if self.warp_ is None else len(self.warp_.locations), n_features)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _unknown_covariance(value: object) -> str:
    options = ", ".join(repr(n) for n in COVARIANCES)
    return (
        f"The 'covariance_type' parameter must be one of {options}, or a structure such as mixtura.covariances.Tied; "
        f"got {value!r} instead."
    )


def check_start(mixture: Mixture, n_features: int, n_components: list[int], structure: Structure) -> None:
    """Check that an initial mixture has the requested features, components and covariances."""
    counts = [part.stop - part.start for part in mixture.class_slices]
    if mixture.n_features != n_features or counts != n_components:
        raise ValueError(
            f"The initial mixture has {mixture.n_features} features and {counts} components per class, but the model "
            f"has {n_features} features and {n_components} components. Set warm_start=False, or start from a model "
            f"with the same settings."
        )
    variances = torch.ones_like(mixture.means)
    wanted = structure.start(variances, variances[:0], mixture.class_of[:0], mixture.class_of)
    if _kind(wanted) != _kind(mixture.covariance):
        raise ValueError(
            f"The initial mixture has other covariances than covariance_type={structure.name!r} "
            f"({mixture.covariance.n_parameters} parameters instead of {wanted.n_parameters}). Set warm_start=False, "
            "or start from a model with the same covariance_type and rank."
        )


def _kind(covariance: Covariance) -> tuple[Structure, int]:
    return covariance.structure, covariance.n_parameters


# A prior with this many times the weight of a component overrides the data.
OVERWHELMING = 1e3
# A variance this much below the pooled one, despite a prior, means a component collapsed onto a point, line or plane.
COLLAPSED = 1e-6


def warn_of_prior(wanted: Any, prior: Prior | None, mixture: Mixture, description: Description) -> None:
    """Warn of a prior that is so strong or so weak that the model cannot learn from the data."""
    if not isinstance(prior, ConjugatePrior) or isinstance(wanted, str):
        return
    pseudo, rows = prior.pseudo_moments(mixture.n_features), description.weight * float(mixture.weights.max())
    strengths = {"covariances": pseudo.covariance_count, "means": pseudo.mean_count}
    for name, strength in strengths.items():
        if float(torch.as_tensor(strength).min()) > OVERWHELMING * rows:
            checks.warn(
                f"The prior overrides the data: it has {float(torch.as_tensor(strength).min()):.3g} "
                f"pseudo-observations of the {name}, but no component has more than {rows:.3g} samples. Lower its "
                "strength.",
                checks.PriorWarning,
            )
    lowest = mixture.covariance.variances() / description.within
    if bool((lowest[:, description.varies] < COLLAPSED).any()):
        checks.warn(
            f"The prior is too weak: a variance fell to {float(lowest[:, description.varies].min()):.1g} of the "
            "pooled one, since a component collapsed onto a few samples. Raise its strength, or use prior='default'.",
            checks.PriorWarning,
        )


def check_described(estimator: Any, description: Description) -> None:
    """Check that there are observed values whose squares, and weights whose sum, neither overflow nor underflow."""
    checks.total_weight(description.weight)
    checks.observed(description.observed)
    checks.squareable(estimator, description.frame.centre, description.frame.radii, description.weight)


def keep_unobserved(estimator: Any, description: Description) -> None:
    """Store the weight of the samples and the columns without an observed value; warn of these columns."""
    estimator.training_weight_ = description.weight
    estimator.unobserved_ = tuple((~description.observed).nonzero()[:, 0].tolist())
    if estimator.unobserved_:
        names = checks.feature_names(estimator)
        columns = [column if names is None else names[column] for column in estimator.unobserved_]
        checks.warn(
            f"X has no observed value in columns {columns}: they have no effect, and impute leaves NaN there. "
            "Remove these columns.",
            checks.RepairWarning,
        )


# Features from which on full covariances get a hint: 60 samples of 1000 features in two classes take 1.3 s of processor
# time with full covariances and 0.2 with low rank; 2000 features took 12 s and 1.2 GB.
WIDE = 500


def warn_of_few_rows(classes: Sequence[Any], wanted: Sequence[int], available: Sequence[int]) -> None:
    """Warn of classes with fewer samples than components, which get one component per sample."""
    counts = zip(classes, wanted, available, strict=True)
    short = [f"class {c!r} has {m} samples for {n} components" for c, n, m in counts if m < n]
    if short:
        checks.warn(
            f"There are fewer samples than components: {', '.join(short)}; such a class gets one component per sample. "
            "Lower n_components for it, for example with a dict.",
            checks.RepairWarning,
        )


def warn_of_wide_samples(structure: Structure, n_samples: int | None, n_features: int) -> None:
    """Warn of covariance matrices that are large, and that the samples determine poorly."""
    if structure.is_unrestricted and n_features >= WIDE and n_samples is not None and n_samples < n_features:
        checks.warn(
            f"{n_samples} samples are few for covariance matrices of {n_features} x {n_features} numbers, which take "
            "much time and memory. covariance_type='low_rank' needs a fraction of both, and is often more accurate.",
            checks.RepairWarning,
        )


def warn_of_repairs(repairs: tuple[str, ...]) -> None:
    """Warn of repaired covariances."""
    if repairs:
        text = repairs[0][0].upper() + repairs[0][1:]
        checks.warn(
            f"{text}. Use prior='default', fewer components, or a simpler covariance_type.",
            checks.RepairWarning,
        )
