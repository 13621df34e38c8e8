"""GaussianMixture as scikit-learn has it: start from the same random numbers, and output; conversion of models."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar, cast

import numpy as np
import torch
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as SklearnMixture
from sklearn.naive_bayes import GaussianNB
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mixtura import checks
from mixtura.covariances import COVARIANCES, DiagonalCovariance, FullCovariance, TiedCovariance
from mixtura.engine.sources import TensorSource
from mixtura.estimators.density_classifier import DensityClassifier
from mixtura.estimators.density_estimator import DensityEstimator
from mixtura.estimators.rows import Rows, adopt_features
from mixtura.init.description import SAMPLED_ROWS
from mixtura.init.starts import clusters_of, plus_plus, starting_mixture, weighted_deviations
from mixtura.model.mixture import Mixture
from mixtura.numerics import linalg
from mixtura.objectives import Assigned
from mixtura.roles import Covariance, Structure
from mixtura.selection.task import Task
from mixtura.solvers import EM, FitResult, Outcome, Problem, Record, first_update, run

Own = TypeVar("Own", bound=DensityEstimator)
OwnClassifier = TypeVar("OwnClassifier", bound=DensityClassifier)
SklearnClassifier: TypeAlias = QuadraticDiscriminantAnalysis | LinearDiscriminantAnalysis | GaussianNB

FLOATS = [np.float64, np.float32]  # as in scikit-learn, other types are converted to the first


@dataclass(frozen=True)
class ScikitLearnStart:
    """Initialisation by the arguments of GaussianMixture; `random_state` goes on from start to start."""

    method: str
    weights: object
    means: object
    precisions: object
    covariance_type: str | Structure
    random_state: np.random.RandomState

    def draw(self, task: Task, rows: Rows | None, problem: Problem | None = None) -> Mixture:
        """An initial mixture, for weights, missing values and any covariance structure too.

        It is updated once by the problem of the task, unless another is given.
        """
        checks.has_update(task.structure.name, task.structure.has_update)
        (count,), size, device = task.n_components, task.source.n_features, task.source.device
        if all(part is not None for part in (self.weights, self.means, self.precisions)):
            class_of = torch.zeros(count, dtype=torch.int64)
            weights, means = _weights(self.weights, count), _means(self.means, count, size)
            covariance = _covariance(self.precisions, self.covariance_type, count, size)
            return Mixture(weights.log(), means, covariance, class_of).to(device)
        problem = problem or task.problem
        em = EM(strict=problem.prior is None)
        in_memory = rows is not None and isinstance(rows.values, Tensor)
        if not in_memory and task.description.n_rows > SAMPLED_ROWS:
            # Many rows that are not in memory: initialise from a standardised sample of them.
            generator = torch.Generator().manual_seed(int(self.random_state.randint(2**31 - 1)))
            rough, assigned = starting_mixture(task.description, task.structure, [count], "kmeans", generator)
            return self._with_given_parts(first_update(rough, assigned, problem, em))
        if in_memory:
            (block,) = task.source.blocks()
            return self._with_given_parts(self._update_rows(task, problem, em, block.rows, block.weights))
        whole, weights = task.description.samples[0]  # the sample holds all of them
        weights = None if bool((weights == 1).all()) else weights
        return self._with_given_parts(self._update_rows(task, problem, em, whole.to(task.source.dtype), weights))

    def _update_rows(self, task: Task, problem: Problem, em: EM, whole: Tensor, weights: Tensor | None) -> Mixture:
        """One update from the initial responsibilities of all rows."""
        about, (count,) = task.description, task.n_components
        filled = torch.where(whole.isnan(), about.class_means[0].to(whole.dtype), whole)
        index, labels, shares, weight = initial_responsibilities(self.method, count, filled, weights, self.random_state)
        variances = about.total.expand(count, task.source.n_features).contiguous()
        rows, counts = filled[index].double(), None if weights is None else weights[index]
        components = shares.argmax(1) if labels is None and shares is not None else labels
        assert components is not None
        assigned = rows, torch.ones_like(rows[:, 0]) if counts is None else counts, components
        centres = centres_of(*assigned, count)
        sampled = assigned[0][:SAMPLED_ROWS], assigned[1][:SAMPLED_ROWS], assigned[2][:SAMPLED_ROWS]
        class_of = torch.zeros(count, dtype=torch.int64, device=task.source.device)
        covariance = task.structure.start(variances, *weighted_deviations([sampled], centres), class_of)
        rough = Mixture(torch.zeros_like(variances[:, 0]), centres, covariance, class_of)
        chosen = TensorSource(whole[index], labels, shares, counts)
        start, _ = em.step(replace(problem, source=chosen, objective=Assigned()), rough)
        total = float(len(whole)) if weights is None else float(weights.sum())
        start = replace(start, log_weights=start.log_weights + math.log(weight / total))
        if isinstance(start.covariance, TiedCovariance) and len(index) < len(whole):
            wide = wide_tied(start, filled, weights, weight, task.reg_covar or 0.0)
            start = replace(start, covariance=wide)
        return start

    def _with_given_parts(self, start: Mixture) -> Mixture:
        """An initial mixture with the parts given by the user."""
        device, size, count = start.means.device, start.n_features, start.n_components
        if self.weights is not None:
            start = replace(start, log_weights=_weights(self.weights, count).log().to(device))
        if self.means is not None:
            start = replace(start, means=_means(self.means, count, size).to(device))
        if self.precisions is not None:
            covariance = _covariance(self.precisions, self.covariance_type, count, size)
            start = replace(start, covariance=covariance.to(device))
        return start


def _checked(values: object, **options: bool) -> np.ndarray:
    check = cast("Callable[..., np.ndarray]", check_array)  # scikit-learn declares a type as text
    return check(values, dtype=FLOATS, ensure_2d=False, **options)


def _check_shape(values: np.ndarray, shape: tuple[int, ...], name: str) -> None:
    if values.shape != shape:
        raise ValueError(f"The parameter '{name}' should have the shape of {shape}, but got {values.shape}")


def _weights(values: object, n_components: int) -> Tensor:
    weights = _checked(values)
    _check_shape(weights, (n_components,), "weights")
    if (weights < 0).any() or (weights > 1).any():
        raise ValueError(
            "The parameter 'weights' should be in the range [0, 1], but got max value "
            f"{weights.max():.5f}, min value {weights.min():.5f}"
        )
    if abs(1 - weights.sum()) > (1e-6 if weights.dtype == np.float32 else 1e-8):
        raise ValueError(f"The parameter 'weights' should be normalized, but got sum(weights) = {weights.sum():.5f}")
    return torch.from_numpy(weights.astype(float))


def _means(values: object, n_components: int, n_features: int) -> Tensor:
    means = _checked(values)
    _check_shape(means, (n_components, n_features), "means")
    return torch.from_numpy(means.astype(float))


def _covariance(precisions_init: object, kind: str | Structure, n_components: int, n_features: int) -> Covariance:
    shapes = {
        "full": (n_components, n_features, n_features),
        "tied": (n_features, n_features),
        "diag": (n_components, n_features),
        "spherical": (n_components,),
    }
    if not isinstance(kind, str) or kind not in shapes:
        raise ValueError(
            "precisions_init is for covariance_type "
            f"{', '.join(repr(name) for name in COVARIANCES if name in shapes)}; got covariance_type={kind!r}. Leave "
            "it out, or start from means_init alone."
        )
    values = _checked(precisions_init, allow_nd=kind == "full")
    _check_shape(values, shapes[kind], f"{kind} precision")
    precisions = torch.from_numpy(values.astype(float))
    if kind in ("diag", "spherical"):
        if bool((precisions <= 0).any()):
            raise ValueError(f"'{kind} precision' should be positive")
        entries = precisions if kind == "diag" else precisions.unsqueeze(-1).expand(-1, n_features)
        return DiagonalCovariance((1 / entries).contiguous(), spherical=kind == "spherical")
    stack = precisions.reshape(-1, n_features, n_features)
    if not torch.allclose(stack, stack.mT) or bool((torch.linalg.eigvalsh(stack) <= 0).any()):
        raise ValueError(f"'{kind} precision' should be symmetric, positive-definite")
    factors, _ = linalg.safe_cholesky(stack)
    full = FullCovariance(torch.cholesky_inverse(factors))
    return full if kind == "full" else TiedCovariance(full, torch.zeros(n_components, dtype=torch.int64))


# Values up to this size can be squared and summed in single precision.
LARGEST_SINGLE = 1e15


# Indices of rows, their components or shares of all components, and their weight.
Assignment = tuple[Tensor, Tensor | None, Tensor | None, float]


def on_host(filled: Tensor, weights: Tensor | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows and weights for scikit-learn."""
    rows = filled.double() if float(filled.abs().amax()) > LARGEST_SINGLE else filled
    return rows.cpu().numpy(), None if weights is None else weights.cpu().numpy()


def cluster_like_scikit_learn(
    filled: Tensor, weights: Tensor | None, n_components: int, random_state: np.random.RandomState
) -> Tensor:
    """The cluster of every row, by scikit-learn's k-means."""
    means = KMeans().set_params(n_clusters=n_components, n_init=1, random_state=random_state)
    rows, row_weights = on_host(filled, weights)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Number of distinct clusters", ConvergenceWarning)
        labels = means.fit_predict(rows, sample_weight=row_weights)
    return torch.from_numpy(labels.astype(np.int64)).to(filled.device)


def centres_of(rows: Tensor, weights: Tensor, components: Tensor, n_components: int) -> Tensor:
    sizes = torch.zeros(n_components, dtype=rows.dtype, device=rows.device).index_add_(0, components, weights)
    sums = torch.zeros(n_components, rows.shape[1], dtype=rows.dtype, device=rows.device)
    sums.index_add_(0, components, rows * weights.unsqueeze(-1))
    return torch.where(sizes.unsqueeze(-1) > 0, sums / sizes.clamp_min(1e-300).unsqueeze(-1), rows.mean(0))


def initial_responsibilities(
    method: str, n_components: int, filled: Tensor, weights: Tensor | None, random_state: np.random.RandomState
) -> Assignment:
    """Initial responsibilities; on the CPU by scikit-learn's own functions, so that random draws are the same.

    On a GPU they are computed there.
    """
    n_rows, device = len(filled), filled.device
    every = torch.arange(n_rows, device=device)
    total = float(n_rows) if weights is None else float(weights.sum())
    if method == "random":
        shape = (n_rows, n_components)
        if filled.is_cuda:
            drawn = torch.Generator(device).manual_seed(int(random_state.randint(2**31)))
            shares = torch.rand(shape, generator=drawn, dtype=torch.float64, device=device)
        else:
            shares = torch.from_numpy(random_state.uniform(size=shape))
        return every, None, shares / shares.sum(1, keepdim=True), total
    if method == "kmeans":
        if filled.is_cuda:
            generator = torch.Generator().manual_seed(int(random_state.randint(2**31)))
            labels = clusters_of(filled, weights, n_components, generator)
        else:
            labels = cluster_like_scikit_learn(filled, weights, n_components, random_state)
        n_clusters = len(labels.unique())
        if n_clusters < n_components:
            checks.warn(
                f"X has {n_clusters} distinct samples for {n_components} components: some components start "
                f"without samples. Lower n_components to {n_clusters}.",
                ConvergenceWarning,  # as scikit-learn's own
            )
        return every, labels, None, total
    if method == "k-means++" and filled.is_cuda:
        generator = torch.Generator().manual_seed(int(random_state.randint(2**31)))
        weights_of = torch.ones_like(filled[:, 0]) if weights is None else weights.to(filled.dtype)
        centred = filled - weights_of @ filled / weights_of.sum()
        chosen = plus_plus(centred.double(), weights_of.double(), n_components, generator)
    elif method == "k-means++":
        rows, row_weights = on_host(filled, weights)
        _, chosen = kmeans_plusplus(rows, n_components, random_state=random_state, sample_weight=row_weights)
    else:
        chosen = random_state.choice(n_rows, size=n_components, replace=False)
    index = torch.from_numpy(np.asarray(chosen)).to(device)
    count = float(len(index)) if weights is None else float(weights[index].sum())
    return index, torch.arange(n_components, device=device), None, count


def wide_tied(start: Mixture, filled: Tensor, weights: Tensor | None, weight: float, reg_covar: float) -> Covariance:
    """scikit-learn's tied covariance for initialisation from single rows.

    It is the scatter of all rows about zero over the weight of the chosen rows, since responsibilities do not sum
    to one there. Single rows have no scatter; this wide covariance lets every component reach the other rows.
    """
    rows = filled.double()
    weighted = rows if weights is None else rows * weights.unsqueeze(-1)
    chosen = (start.weights * weight / start.weights.sum()).unsqueeze(-1)
    seconds = weighted.T @ rows - (chosen * start.means).T @ start.means
    covariance = start.covariance
    assert isinstance(covariance, TiedCovariance)
    if not isinstance(covariance.inner, FullCovariance):
        return covariance
    ridge = reg_covar * torch.eye(len(seconds), dtype=seconds.dtype, device=seconds.device)
    return TiedCovariance(FullCovariance((seconds / weight + ridge).unsqueeze(0)), covariance.groups)


def run_printed(
    task: Task, draw: Callable[[], Mixture], previous: float, verbose: int, interval: int, number: int
) -> FitResult[Mixture]:
    """Draw an initial mixture, run EM from it, and print what scikit-learn prints for each value of `verbose`."""
    began = last = time.perf_counter()

    def watch(record: Record) -> None:
        nonlocal last
        if record.iteration % interval:
            return
        if verbose == 1:
            _print(f"  Iteration {record.iteration}")
            return
        now = time.perf_counter()
        _print(f"  Iteration {record.iteration}\t time lapse {now - last:.5f}s\t ll change {record.change:.5f}")
        last = now

    if verbose:
        _print(f"Initialization {number}")
    first, solver = draw(), EM(strict=task.prior is None)
    result = run(solver, task.problem, first, *task.limits, watch if verbose else None, previous)
    if verbose and result.history:
        said = f"Initialization {'converged' if result.outcome is Outcome.CONVERGED else 'did not converge'}."
        elapsed = time.perf_counter() - began
        _print(said if verbose == 1 else f"{said} time lapse {elapsed:.5f}s\t lower bound {result.objective:.5f}.")
    return result


def _print(text: str) -> None:
    print(text)  # noqa: T201 - verbose prints, as scikit-learn's does


VARIANCES = ("diag", "spherical")
SHAPES = ("full", "tied", *VARIANCES)


def mixture_from_sklearn(make: Callable[..., Own], model: object) -> Own:
    """A fitted GaussianMixture of this package with the parameters of scikit-learn's."""
    if not isinstance(model, SklearnMixture):
        raise TypeError(f"from_sklearn takes a GaussianMixture of scikit-learn; got {type(model).__name__}.")
    check_is_fitted(model)
    means = _tensor(model.means_)
    kind, size = str(model.covariance_type), means.shape[1]
    covariances = _tensor(model.covariances_)
    covariance: Covariance = FullCovariance(covariances)
    if kind == "tied":
        covariance = TiedCovariance(FullCovariance(covariances.unsqueeze(0)), _classes(len(means)))
    elif kind != "full":
        spherical = kind == "spherical"
        entries = covariances.unsqueeze(-1).expand(-1, size).contiguous() if spherical else covariances
        covariance = DiagonalCovariance(entries, spherical)
    own = make(**{name: value for name, value in model.get_params().items() if name in make().get_params()})
    own.mixture_ = Mixture(_tensor(model.weights_).log(), means, covariance, _classes(len(means)))
    own.warp_, own.unobserved_, own.history_ = None, (), []
    own.converged_, own.n_iter_ = bool(model.converged_), int(model.n_iter_)
    vars(own).update(lower_bound_=float(model.lower_bound_), lower_bounds_=[float(model.lower_bound_)])
    adopt_features(own, model)
    return own


def covariances_in_shape(model: DensityEstimator) -> Tensor:
    """The covariances in scikit-learn's shape for the covariance type; dense for others."""
    covariance = model.mixture_.covariance
    dense = covariance.dense()
    if model.covariance_type == "diag":
        return dense.diagonal(dim1=-2, dim2=-1)
    if model.covariance_type == "spherical":
        return dense[:, 0, 0]
    return dense[0] if isinstance(covariance, TiedCovariance) and covariance.n_groups == 1 else dense


def precision_factors_in_shape(model: DensityEstimator) -> Tensor:
    """Upper triangular U with U U' the precision, in the same shape; square roots of precisions of variances."""
    covariances = covariances_in_shape(model)
    if model.covariance_type in VARIANCES:
        return covariances.rsqrt()
    factors, _ = linalg.safe_cholesky(covariances)
    identity = torch.eye(covariances.shape[-1], dtype=covariances.dtype, device=covariances.device)
    return linalg.solve_lower(factors, identity.expand_as(covariances)).mT


def precisions_of(factors: np.ndarray, covariance_type: object) -> np.ndarray:
    """Inverse covariances from their factors, in the same shape."""
    return factors**2 if covariance_type in VARIANCES else factors @ np.swapaxes(factors, -1, -2)


def mixture_to_sklearn(model: DensityEstimator) -> SklearnMixture:
    """A fitted GaussianMixture of scikit-learn with the parameters of this one; other covariances become full."""
    check_is_fitted(model)
    known = isinstance(model.covariance_type, str) and model.covariance_type in SHAPES
    kind = model.covariance_type if known else "full"
    names = set(SklearnMixture().get_params()) & set(model.get_params())
    settings = {name: model.get_params()[name] for name in names}
    settings |= {"covariance_type": kind, "n_components": len(model.weights_)}
    other = SklearnMixture()
    other.set_params(**settings)
    other.weights_, other.means_ = model.weights_, model.means_
    if known:
        other.covariances_ = model.covariances_
        factors = precision_factors_in_shape(model).cpu().numpy()
    else:
        other.covariances_ = model.mixture_.to("cpu").covariance.dense().numpy()
        factors = np.linalg.inv(np.linalg.cholesky(other.covariances_)).swapaxes(1, 2)  # as scikit-learn keeps them
    other.precisions_cholesky_, other.precisions_ = factors, precisions_of(factors, kind)
    other.converged_, other.n_iter_, other.lower_bound_ = model.converged_, model.n_iter_, vars(model)["lower_bound_"]
    adopt_features(other, model)
    return other


def classifier_from_sklearn(make: Callable[..., OwnClassifier], model: object) -> OwnClassifier:
    """A fitted MixtureClassifier with the predictions of a discriminant analysis or naive Bayes of scikit-learn."""
    check_is_fitted(model)
    if isinstance(model, QuadraticDiscriminantAnalysis):
        matrices = [(r * s) @ r.T for r, s in zip(model.rotations_, model.scalings_, strict=True)]
        kind, prior = "full", model.priors_
        covariance: Covariance = FullCovariance(_tensor(matrices))
    elif isinstance(model, LinearDiscriminantAnalysis):
        if "covariance_" not in vars(model):
            raise ValueError("The LinearDiscriminantAnalysis has no covariance_; fit it with store_covariance=True.")
        kind, prior = "tied", model.priors_
        covariance = TiedCovariance(
            FullCovariance(_tensor(model.covariance_).unsqueeze(0)), torch.zeros(len(model.classes_), dtype=torch.int64)
        )
    elif isinstance(model, GaussianNB):
        kind, prior = "diag", model.class_prior_
        covariance = DiagonalCovariance(_tensor(model.var_))
    else:
        raise TypeError(
            "from_sklearn takes a QuadraticDiscriminantAnalysis, a LinearDiscriminantAnalysis or a GaussianNB; got "
            f"{type(model).__name__}."
        )
    means = _tensor(model.theta_ if isinstance(model, GaussianNB) else model.means_)
    own = make(1, covariance_type=kind)
    own.classes_, own.class_prior_ = np.asarray(model.classes_), np.asarray(prior, dtype=float)
    own.mixture_ = Mixture(_tensor(prior).log(), means, covariance, torch.arange(len(means)))
    own.warp_, own.unobserved_, own.history_ = None, (), []
    own.n_iter_, own.converged_ = 0, True
    adopt_features(own, model)
    return own


def classifier_to_sklearn(model: DensityClassifier) -> SklearnClassifier:
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
            f"to_sklearn needs a single member; this model averages {len(model.members_)}. {_convertible(model)}"
        )
    if not single or model.warp_ is not None or model.temperature_ != 1 or model.label_noise_ > 0:
        raise ValueError(
            "to_sklearn needs one component per class, no transform of the features (warp=None) and temperature=1; "
            f"this model has {mixture.class_sizes} components per class, "
            f"{'no transform' if model.warp_ is None else 'a transform'} and temperature {model.temperature_:g}"
            f"{', estimated with a share of random labels' if model.label_noise_ > 0 else ''}. {_convertible(model)}"
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
    vars(other)["classes_"] = model.classes_
    adopt_features(other, model)
    return other


def _convertible(model: DensityClassifier) -> str:
    """Which model can be converted, with the structure that this one selected."""
    name = model.mixture_.covariance.structure.name
    return f"MixtureClassifier(1, covariance_type={name!r}) can be converted, and to_onnx exports every model."


def _linear(means: np.ndarray, covariance: np.ndarray, prior: np.ndarray) -> LinearDiscriminantAnalysis:
    other = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True)
    coefficients = np.linalg.solve(covariance, means.T).T  # (C, D)
    intercepts = np.log(prior) - 0.5 * (coefficients * means).sum(1)
    if len(means) == 2:  # scikit-learn keeps the difference
        coefficients, intercepts = coefficients[1:] - coefficients[:1], intercepts[1:] - intercepts[:1]
    other.coef_, other.intercept_ = coefficients, intercepts
    other.means_, other.covariance_, other.priors_ = means, covariance, prior
    return other


def _tensor(values: object) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float64))


def _classes(n_components: int) -> Tensor:
    return torch.zeros(n_components, dtype=torch.int64)
