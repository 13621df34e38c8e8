"""Conversion from and to fitted models of scikit-learn: mixtures, discriminant analysis, naive Bayes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.mixture import GaussianMixture as SklearnMixture
from sklearn.naive_bayes import GaussianNB
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mixtura import checks
from mixtura.covariances import DiagonalCovariance, FullCovariance, TiedCovariance
from mixtura.estimators.rows import adopt_features
from mixtura.model.mixture import Mixture

SHAPES = ("full", "tied", "diag", "spherical")


def mixture_from_sklearn(cls: Any, model: Any) -> Any:
    """A fitted GaussianMixture of this package with the parameters of scikit-learn's."""
    if not isinstance(model, SklearnMixture):
        raise TypeError(f"from_sklearn takes a GaussianMixture of scikit-learn; got {type(model).__name__}.")
    check_is_fitted(model)
    means = _tensor(model.means_)
    kind, size = str(model.covariance_type), means.shape[1]
    covariances = _tensor(model.covariances_)
    covariance: Any = FullCovariance(covariances)
    if kind == "tied":
        covariance = TiedCovariance(FullCovariance(covariances.unsqueeze(0)), _classes(len(means)))
    elif kind != "full":
        spherical = kind == "spherical"
        entries = covariances.unsqueeze(-1).expand(-1, size).contiguous() if spherical else covariances
        covariance = DiagonalCovariance(entries, spherical)
    own = cls(**{name: value for name, value in model.get_params().items() if name in cls().get_params()})
    own.mixture_ = Mixture(_tensor(model.weights_).log(), means, covariance, _classes(len(means)))
    own.warp_, own.unobserved_, own.history_ = None, (), []
    own.converged_, own.n_iter_ = bool(model.converged_), int(model.n_iter_)
    own.lower_bound_, own.lower_bounds_ = float(model.lower_bound_), [float(model.lower_bound_)]
    adopt_features(own, model)
    return own


def mixture_to_sklearn(model: Any) -> SklearnMixture:
    """A fitted GaussianMixture of scikit-learn with the parameters of this one; other covariances become full."""
    check_is_fitted(model)
    known = isinstance(model.covariance_type, str) and model.covariance_type in SHAPES
    kind = model.covariance_type if known else "full"
    names = set(SklearnMixture().get_params()) & set(model.get_params())
    settings = {name: model.get_params()[name] for name in names}
    settings |= {"covariance_type": kind, "n_components": len(model.weights_)}
    other = SklearnMixture(**settings)
    other.weights_, other.means_ = model.weights_, model.means_
    if known:
        other.covariances_, other.precisions_ = model.covariances_, model.precisions_
        other.precisions_cholesky_ = model.precisions_cholesky_
    else:
        other.covariances_ = model.mixture_.to("cpu").covariance.dense().numpy()
        factors = np.linalg.inv(np.linalg.cholesky(other.covariances_)).swapaxes(1, 2)  # as scikit-learn keeps them
        other.precisions_cholesky_, other.precisions_ = factors, factors @ factors.swapaxes(1, 2)
    other.converged_, other.n_iter_, other.lower_bound_ = model.converged_, model.n_iter_, model.lower_bound_
    adopt_features(other, model)
    return other


def classifier_from_sklearn(cls: Any, model: Any) -> Any:
    """A fitted MixtureClassifier with the predictions of a discriminant analysis or naive Bayes of scikit-learn."""
    check_is_fitted(model)
    if isinstance(model, QuadraticDiscriminantAnalysis):
        matrices = [(r * s) @ r.T for r, s in zip(model.rotations_, model.scalings_, strict=True)]
        kind, prior = "full", model.priors_
        covariance: Any = FullCovariance(_tensor(matrices))
    elif isinstance(model, LinearDiscriminantAnalysis):
        if "covariance_" not in vars(model):
            raise ValueError("The LinearDiscriminantAnalysis has no covariance_; fit it with store_covariance=True.")
        kind, prior = "tied", model.priors_
        covariance = TiedCovariance(FullCovariance(_tensor(model.covariance_).unsqueeze(0)), _one_matrix(model))
    elif isinstance(model, GaussianNB):
        kind, prior = "diag", model.class_prior_
        covariance = DiagonalCovariance(_tensor(model.var_))
    else:
        raise TypeError(
            "from_sklearn takes a QuadraticDiscriminantAnalysis, a LinearDiscriminantAnalysis or a GaussianNB; got "
            f"{type(model).__name__}."
        )
    means = _tensor(model.theta_ if isinstance(model, GaussianNB) else model.means_)
    own = cls(1, covariance_type=kind)
    own.classes_, own.class_prior_ = np.asarray(model.classes_), np.asarray(prior, dtype=float)
    own.mixture_ = Mixture(_tensor(prior).log(), means, covariance, torch.arange(len(means)))
    own.warp_, own.unobserved_, own.history_ = None, (), []
    own.n_iter_, own.converged_ = 0, True
    adopt_features(own, model)
    return own


def classifier_to_sklearn(model: Any) -> Any:
    """A classifier of scikit-learn with the predictions of a model with one component per class."""
    check_is_fitted(model)
    checks.no_categories("to_sklearn", model.encoding_)
    mixture = model.mixture_.to("cpu")
    single = mixture.n_components == mixture.n_classes
    if model.missingness_ is not None:
        raise ValueError(
            "to_sklearn cannot convert what missing values tell about the classes; fit with missing='ignorable'. "
            "to_onnx exports every model."
        )
    if model.further_members_:
        raise ValueError(
            f"to_sklearn needs a single member; this model averages {len(model.members_)}. Fit it with n_components=1, "
            "or with average=1, warp=None and temperature=1. to_onnx exports every model."
        )
    if not single or model.warp_ is not None or model.temperature_ != 1 or model.label_noise_ > 0:
        raise ValueError(
            "to_sklearn needs one component per class, no transform of the features (warp=None) and temperature=1; "
            f"this model has {mixture.class_sizes} components per class, "
            f"{'no transform' if model.warp_ is None else 'a transform'} and temperature {model.temperature_:g}"
            f"{', estimated with a share of random labels' if model.label_noise_ > 0 else ''}. "
            "to_onnx exports every model."
        )
    covariance, means = mixture.covariance, mixture.means.numpy()
    if isinstance(covariance, TiedCovariance) and covariance.n_groups == 1:
        other = _linear(means, covariance.dense()[0].numpy(), model.class_prior_)
    elif isinstance(covariance, DiagonalCovariance):
        other = GaussianNB()
        other.theta_, other.var_, other.class_prior_ = means, covariance.variances().numpy(), model.class_prior_
        other.epsilon_ = 0.0
    else:
        scalings, rotations = np.linalg.eigh(covariance.dense().numpy())
        other = QuadraticDiscriminantAnalysis()
        other.means_, other.priors_ = means, model.class_prior_
        other.scalings_, other.rotations_ = list(scalings), list(rotations)
    other.classes_ = model.classes_
    adopt_features(other, model)
    return other


def _linear(means: np.ndarray, covariance: np.ndarray, prior: np.ndarray) -> LinearDiscriminantAnalysis:
    other = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True)
    coefficients = np.linalg.solve(covariance, means.T).T  # (C, D)
    intercepts = np.log(prior) - 0.5 * (coefficients * means).sum(1)
    if len(means) == 2:  # scikit-learn keeps the difference
        coefficients, intercepts = coefficients[1:] - coefficients[:1], intercepts[1:] - intercepts[:1]
    other.coef_, other.intercept_ = coefficients, intercepts
    other.means_, other.covariance_, other.priors_ = means, covariance, prior
    return other


def _tensor(values: Any) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float64))


def _classes(n_components: int) -> Tensor:
    return torch.zeros(n_components, dtype=torch.int64)


def _one_matrix(model: Any) -> Tensor:
    return torch.zeros(len(model.classes_), dtype=torch.int64)
