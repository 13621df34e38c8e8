"""Conversion between heads and estimators."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Protocol, Self, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from mixtura import checks
from mixtura.covariances import (
    Diagonal,
    DiagonalCovariance,
    Full,
    FullCovariance,
    LowRank,
    LowRankCovariance,
    Tied,
    TiedCovariance,
)
from mixtura.engine.threads import computing
from mixtura.estimators import MixtureClassifier
from mixtura.model.mixture import Mixture
from mixtura.nn.components import SMALLEST_VARIANCE, FreeComponents, GaussianComponents, without_offsets
from mixtura.nn.running_density import MOMENTUM, RunningDensity
from mixtura.numerics.linalg import inverse_softplus, safe_cholesky
from mixtura.roles import Covariance, Structure
from mixtura.selection.candidates import WIDE
from mixtura.selection.task import PriorChoice
from mixtura.solvers import Units
from mixtura.values.features import QUADRATICS, Coefficients

# Number of batches that a fit to all features counts as when training continues: the memory of the running density.
REMEMBERED = 1 / MOMENTUM
# Up to this many features heads are initialised from closed forms, whose time grows with the cube of their number;
# beyond, from covariances of low rank.
MOST_FEATURES_CLOSED = 1024
QUADRATIC_OF = {"tied": "none", "full": "full"}


class Head(Protocol):
    """A `MixtureHead`, which is above this file."""

    n_features: int
    n_classes: int
    n_components: int
    density: bool

    @property
    def quadratic(self) -> str: ...
    @property
    def components(self) -> FreeComponents | GaussianComponents: ...
    @property
    def normaliser(self) -> nn.BatchNorm1d | None: ...
    @property
    def running_density(self) -> RunningDensity | None: ...
    def frame(self) -> tuple[Tensor, Tensor]: ...
    def to(self, device: torch.device, /) -> Self: ...


AnyHead = TypeVar("AnyHead", bound=Head)
ClosedForm: TypeAlias = tuple[str, Mixture, float]  # kind of covariances, mixture, temperature

# ---- from features ---------------------------------------------------------------------------------------------------


def read_features(X: object, y: object) -> tuple[Tensor, np.ndarray, int]:
    """Read features as float64 rows, with their labels and the number of classes."""
    rows = torch.as_tensor(X).detach()
    checks.rows(rows, None, "from_features")
    checks.finite_rows(rows)
    labels = np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y)
    return rows.double(), labels, max(2, len(checks.distinct(labels)))


def from_features(
    make: Callable[..., AnyHead], X: object, y: object, n_components: int, quadratic: str, options: dict[str, Any]
) -> AnyHead:
    """See MixtureHead.from_features; `make` is the class of the head."""
    own = {name: options.pop(name) for name in ("rank", "density", "threshold") if name in options}
    rows, labels, n_classes = read_features(X, y)
    size, fits = rows.shape[1], None
    if quadratic == "auto":
        quadratic = "low_rank" if size > MOST_FEATURES_CLOSED else "full"
        if _has_closed_form(size, n_components, options) and not own.get("density"):
            fits = closed_forms(rows, labels, None, options)
            quadratic = QUADRATIC_OF[fits[0]]
    head = make(size, n_classes, n_components, quadratic, **own).to(rows.device)
    return refit(head, rows, labels, True, options, fits)


def refit(
    head: AnyHead, X: object, y: object, logits: bool, options: dict[str, Any], fits: ClosedForm | None = None
) -> AnyHead:
    """See MixtureHead.refit; `fits` is the result of `closed_forms`, if it is known."""
    rows, labels, n_classes = read_features(X, y)
    checks.head_sizes(rows, n_classes, head.n_features, head.n_classes)
    if logits:  # which the normalisation changes
        _normalise(head, rows.mean(0), rows.var(0, correction=0))
    centre, scale = (part.to(rows) for part in head.frame())
    kinds = {quadratic: kind for kind, quadratic in QUADRATIC_OF.items()}
    temperature = 1.0
    if head.quadratic in kinds and not head.density and _has_closed_form(rows.shape[1], head.n_components, options):
        _, mixture, temperature = fits or closed_forms(rows, labels, kinds[head.quadratic], options)
        with computing():
            mixture = Units(centre, scale).of(mixture)
    else:
        model = MixtureClassifier(head.n_components, covariance_type=_structure(head), **options)
        mixture = model.fit((rows - centre) / scale, labels).mixture_
    return initialise(head, mixture, logits, temperature)


def initialise(head: AnyHead, mixture: Mixture, logits: bool = True, temperature: float = 1.0) -> AnyHead:
    """Set a head from a mixture of normalised features, whose log joints are divided by the temperature."""
    with computing():
        if logits:
            _initialise(head, _padded(mixture, head.n_components), temperature)
        if head.running_density is not None:
            padded = _padded(mixture, head.n_components)
            head.running_density.keep(replace(padded, covariance=_without_smallest(padded.covariance)))
            head.running_density.n_batches.fill_(REMEMBERED)
    return head


def _normalise(head: Head, means: Tensor, variances: Tensor) -> None:
    """Set the running statistics of the features, if the head has them."""
    normaliser = head.normaliser
    if normaliser is not None and normaliser.running_mean is not None and normaliser.running_var is not None:
        normaliser.running_mean.copy_(means)
        normaliser.running_var.copy_(variances)


def _has_closed_form(size: int, n_components: int, options: Collection[str]) -> bool:
    """Whether held-out samples choose the strength of shrinkage of one Gaussian per class (closed-forms)."""
    return WIDE <= size <= MOST_FEATURES_CLOSED and n_components == 1 and "prior" not in options


def closed_forms(rows: Tensor, labels: np.ndarray, kind: str | None, options: dict[str, Any]) -> ClosedForm:
    """The kind of covariances, "tied" or "full" or the better one, the mixture of the features, and its temperature."""
    model = MixtureClassifier(average=1, **options).fit(rows, labels)
    if model.search_ is None:  # a class has a single sample
        return "full", model.mixture_, 1.0
    selected = str(model.search_.best.what["covariance_type"])
    if kind in (None, selected):
        return selected, model.mixture_, model.temperature_
    own = [trial for trial in model.search_ if trial.what["covariance_type"] == kind]
    chosen = min(own, key=lambda trial: trial.score).what
    prior, temperature = cast("PriorChoice", chosen["prior"]), cast("float", chosen["temperature"])
    again = MixtureClassifier(1, covariance_type=kind, prior=prior, **options).fit(rows, labels)
    return kind, again.mixture_, float(temperature)


def from_estimator(make: Callable[..., AnyHead], model: MixtureClassifier, density: bool) -> AnyHead:
    """See MixtureHead.from_estimator; `make` is the class of the head."""
    checks.convertible_to_head(model.warp_, model.encoding_, type(model).__name__)
    mixture, temperature = model.mixture_, 1.0 if density else model.temperature_
    shared, rank = mixture.covariance if isinstance(mixture.covariance, TiedCovariance) else None, "auto"
    if shared is not None and shared.n_groups == 1 and (shared.is_diagonal or not density):
        quadratic = "none"
    else:
        covariance = mixture.covariance if shared is None else shared.inner.select(shared.groups)
        if covariance.is_diagonal:
            quadratic, covariance = "diag", DiagonalCovariance(covariance.variances())
        elif isinstance(covariance, LowRankCovariance):
            quadratic, rank = "low_rank", covariance.rank
        else:
            quadratic, covariance = "full", FullCovariance(covariance.dense())
        mixture = replace(mixture, covariance=covariance)
    sizes = (mixture.n_features, len(model.classes_), max(mixture.class_sizes), quadratic)
    head = make(*sizes, rank=rank, density=density).to(mixture.means.device)
    mean = mixture.weights @ mixture.means
    _normalise(head, mean, mixture.weights @ (mixture.covariance.variances() + (mixture.means - mean).square()))
    with computing():
        mixture = Units(*(part.to(mixture.means) for part in head.frame())).of(mixture)
    return initialise(head, mixture, True, temperature)


def _structure(head: Head) -> Structure:
    low_rank = LowRank(head.components.rank)
    if head.quadratic == "none":
        if head.density:
            return Tied(Diagonal())
        return Tied(Full() if head.n_features <= MOST_FEATURES_CLOSED else low_rank)
    return {"full": Full(), "diag": Diagonal(), "low_rank": low_rank}[head.quadratic]


def _padded(mixture: Mixture, n_components: int) -> Mixture:
    """Give every class this many components: a class with fewer splits its first one into equal copies."""
    order, shares = [], []
    for part in mixture.class_slices:
        members = list(range(part.start, part.stop))
        n_copies = n_components - len(members) + 1
        order += [members[0]] * n_copies + members[1:]
        shares += [-float(np.log(n_copies))] * n_copies + [0.0] * (len(members) - 1)
    index = torch.tensor(order, device=mixture.means.device)
    log_weights = mixture.log_weights[index] + torch.tensor(shares, dtype=torch.float64, device=index.device)
    return Mixture(log_weights, mixture.means[index], mixture.covariance.select(index), mixture.class_of[index])


def _initialise(head: Head, mixture: Mixture, temperature: float) -> None:
    """Set the parameters of a head from a mixture of the normalised features, divided by the temperature."""
    parts = head.components
    if isinstance(parts, GaussianComponents):
        _initialise_gaussians(parts, mixture)
        return
    if head.quadratic == "none":
        weight, bias = _linear_coefficients(mixture)
    else:
        coefficients = without_offsets(mixture.covariance.coefficients(mixture.means, mixture.log_weights))
        weight, bias = coefficients.weights, coefficients.bias
        if coefficients.projections is not None:
            assert parts.projection is not None
            parts.projection.copy_(coefficients.projections / temperature**0.5)
    assert weight is not None
    parts.weight.copy_(weight / temperature)
    parts.bias.copy_((bias - bias.mean()) / temperature)  # a constant common to all scores has no effect


def _linear_coefficients(mixture: Mixture) -> tuple[Tensor, Tensor]:
    """Weights Lambda mean and biases of components with one covariance, whose quadratic parts cancel."""
    assert isinstance(mixture.covariance, TiedCovariance)
    shared, means = mixture.covariance.inner, mixture.means
    if isinstance(shared, FullCovariance):
        linear = torch.cholesky_solve(means.T, shared.factors[0]).T
    elif shared.is_diagonal:
        linear = means / shared.variances()
    else:
        assert isinstance(shared, LowRankCovariance)
        linear = means / shared.uniquenesses[0] - (means @ shared.projections[0]) @ shared.projections[0].T
    return linear, mixture.log_weights - 0.5 * (linear * means).sum(-1)


def _initialise_gaussians(parts: GaussianComponents, mixture: Mixture) -> None:
    """Set the parameters of (head-gaussians); too small variances are raised to just above the smallest allowed."""
    covariance = mixture.covariance.inner if isinstance(mixture.covariance, TiedCovariance) else mixture.covariance
    parts.bias.copy_(mixture.log_weights)
    parts.means.copy_(mixture.means)
    if isinstance(covariance, FullCovariance):
        floor = SMALLEST_VARIANCE * torch.eye(parts.n_features, dtype=torch.float64, device=covariance.matrices.device)
        values, vectors = torch.linalg.eigh(covariance.matrices - floor)
        roots = safe_cholesky((vectors * values.clamp_min(1e-2 * SMALLEST_VARIANCE).unsqueeze(-2)) @ vectors.mT)[0]
        scales = roots.diagonal(dim1=-2, dim2=-1)
        parts.roots.copy_(roots.tril(-1) + torch.diag_embed(inverse_softplus(scales)))
        return
    if isinstance(covariance, LowRankCovariance):
        variances = covariance.uniquenesses
    else:
        assert isinstance(covariance, DiagonalCovariance)
        variances = covariance.entries
    parts.roots.copy_(inverse_softplus(_lowered(variances).sqrt()))
    if parts.loadings is not None and isinstance(covariance, LowRankCovariance):
        parts.loadings.copy_(covariance.loadings)


def _without_smallest(covariance: Covariance) -> Covariance:
    """Subtract the smallest variance, which is added again later; the differences are kept positive."""
    if isinstance(covariance, TiedCovariance):
        return replace(covariance, inner=_without_smallest(covariance.inner))
    if isinstance(covariance, FullCovariance):
        values, vectors = torch.linalg.eigh(covariance.matrices)
        return FullCovariance((vectors * _lowered(values).unsqueeze(-2)) @ vectors.mT)
    if isinstance(covariance, LowRankCovariance):
        return replace(covariance, diagonals=_lowered(covariance.diagonals))
    return DiagonalCovariance(_lowered(covariance.variances()))


def _lowered(variances: Tensor) -> Tensor:
    return (variances - SMALLEST_VARIANCE).clamp_min(1e-2 * SMALLEST_VARIANCE)


# ---- to an estimator -------------------------------------------------------------------------------------------------


def to_estimator(head: Head, classes: object = None) -> MixtureClassifier:
    """See MixtureHead.to_estimator."""
    labels = np.arange(head.n_classes) if classes is None else np.asarray(classes)
    if len(np.unique(labels)) != head.n_classes or labels.ndim != 1:
        raise ValueError(
            f"classes must be {head.n_classes} different labels, one per class of the head; got {labels.tolist()}."
        )
    with computing():
        mixture = _mixture(head)
    types = {"full": "full", "low_rank": "low_rank"}
    rank = int(mixture.covariance.rank) if isinstance(mixture.covariance, LowRankCovariance) else "auto"
    model = MixtureClassifier(head.n_components, covariance_type=types.get(head.quadratic, "diag"), rank=rank)
    return _with_mixture(model, mixture, labels)


def _with_mixture(model: MixtureClassifier, mixture: Mixture, labels: np.ndarray) -> MixtureClassifier:
    model.mixture_, model.classes_, model.n_features_in_ = mixture, labels, mixture.n_features
    model.class_prior_ = mixture.log_class_prior.exp().numpy()
    model.n_iter_, model.converged_, model.history_ = 0, True, []
    return model


def _mixture(head: Head) -> Mixture:
    """The mixture of the raw features, in float64 on the CPU, with the class probabilities of the head."""
    parts = head.components
    centre, scale = (part.double().cpu() for part in head.frame())
    if isinstance(parts, GaussianComponents):
        covariance = parts.covariance()
        tensors = {name: part.detach().double().cpu() for name, part in covariance.tensors().items()}
        covariance, means = covariance.structure.from_tensors(tensors), parts.means.double().cpu()
        log_weights = parts.log_weights().double().cpu()
    else:
        covariance, means, log_weights = _fix_gauge(head.quadratic, head.n_features, parts.coefficients())
    class_of = torch.arange(head.n_classes).repeat_interleave(head.n_components)
    log_weights = log_weights - log_weights.logsumexp(0)
    return Units(centre, scale).back(Mixture(log_weights, means, covariance, class_of))


def _fix_gauge(quadratic: str, size: int, coefficients: Coefficients) -> tuple[Covariance, Tensor, Tensor]:
    """Gaussians whose scores equal those of the coefficients up to one quadratic form common to all components.

    With a_k(x) = b_k + l_k'x - 1/2 x'M_k x and Lambda_k = M_k + c I positive definite for all k (head-gauge):
    mean_k = Lambda_k^-1 l_k,  log weight_k = b_k - 1/2 log|Lambda_k| + 1/2 l_k' mean_k, up to a constant.
    """
    parts = (coefficients.weights, coefficients.bias, coefficients.projections)
    weight, bias, projections = (None if part is None else part.double().cpu() for part in parts)
    assert weight is not None
    assert bias is not None
    linear, products = weight[:, :size], weight[:, size:]
    covariance = _positive(quadratic, products, projections, size, len(weight))
    means = _times(covariance, linear)
    return covariance, means, bias + 0.5 * covariance.log_determinants + 0.5 * (linear * means).sum(-1)


def _positive(quadratic: str, products: Tensor, projections: Tensor | None, size: int, n_components: int) -> Covariance:
    """Covariances from the coefficients of the products, with c such that no precision is below one."""
    if quadratic == "full":
        matrices = -QUADRATICS.seconds(products, size)
        matrices.diagonal(dim1=-2, dim2=-1).mul_(2)  # -1/2 M holds half of the diagonal, and the rest twice
        values, vectors = torch.linalg.eigh(matrices)
        values = values + (1 - values.min()).clamp_min(0)
        return FullCovariance((vectors / values.unsqueeze(-2)) @ vectors.mT)
    precisions = -2 * products if products.shape[1] else products.new_zeros(n_components, size)
    if projections is None:
        return DiagonalCovariance(1 / (precisions + (1 - precisions.min()).clamp_min(0)))
    projections = projections.mT  # V, (K, D, R)
    # diag(p) - V V' has no eigenvalue below min p - the largest of V'V.
    largest = torch.linalg.eigvalsh(projections.mT @ projections).max()
    uniquenesses = 1 / (precisions + (1 + largest - precisions.min()).clamp_min(0))
    inner = projections.mT @ (uniquenesses.unsqueeze(-1) * projections)  # V' Psi V, (K, R, R)
    roots = safe_cholesky(torch.eye(inner.shape[-1], dtype=inner.dtype) - inner)[0]
    scaled = uniquenesses.unsqueeze(-1) * projections
    return LowRankCovariance(uniquenesses, torch.linalg.solve_triangular(roots, scaled.mT, upper=False).mT)


def _times(covariance: Covariance, vectors: Tensor) -> Tensor:
    """Sigma_k v_k: (K, D) -> (K, D)."""
    if isinstance(covariance, FullCovariance):
        return (covariance.matrices @ vectors.unsqueeze(-1)).squeeze(-1)
    if isinstance(covariance, LowRankCovariance):
        along = covariance.loadings.mT @ vectors.unsqueeze(-1)
        return covariance.uniquenesses * vectors + (covariance.loadings @ along).squeeze(-1)
    return covariance.variances() * vectors
