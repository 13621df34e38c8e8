"""The tables that the laws run over: covariance structures, objectives, priors, solvers and kinds of data.

A new part is one line in its table. What a table needs of it are slow twins from reference.py.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

import reference
from example_covariance import Chain
from mixtura.covariances import Diagonal, Full, LowRank, LowRankPrecision, Spherical, Tied
from mixtura.engine.sources import TensorSource, locate
from mixtura.engine.tuning import TOLERANCES
from mixtura.model.mixture import Mixture
from mixtura.nonnegative.priors import SparseShares
from mixtura.nonnegative.updates import Accelerated, Multiplicative
from mixtura.objectives import Conditional, Hybrid, Joint, Margin, Marginal
from mixtura.priors import Conjugate
from mixtura.roles import Objective, Structure
from mixtura.solvers import EM, AcceleratedEM, BaumWelch, Gradient, Problem
from mixtura.values.extents import Frame

CLASS_OF = np.array([0, 0, 1, 2, 2])
N_FEATURES = 4
N_ROWS = 48


# ---- covariances: structure, random tensors, dense truth, fit to a matrix -----------------------------------------


@dataclass(frozen=True)
class CovarianceCase:
    """A structure and its twins.

    tensors(rng, class_of, n_features) draws parameters, dense(tensors) is their truth (K, D, D), restricted(tensors)
    fits the structure to matrices (for factors: one step from tensors), n_parameters(G, D) counts those of G matrices.
    """

    structure: Structure
    tensors: Callable[..., dict[str, np.ndarray]]
    dense: Callable[[dict[str, np.ndarray]], np.ndarray]
    restricted: Callable[[dict[str, np.ndarray]], Callable[..., np.ndarray]] | None
    n_parameters: Callable[[int, int], int]

    def groups(self, tensors) -> np.ndarray:
        """Which distinct matrix each component has."""
        return tensors.get("groups", np.arange(len(next(iter(tensors.values())))))


def full_tensors(rng, class_of, size):
    roots = rng.normal(size=(len(class_of), size, size)) / np.sqrt(size)
    return {"matrices": roots @ roots.transpose(0, 2, 1) + 0.3 * np.eye(size)}


def diagonal_tensors(rng, class_of, size):
    return {"entries": rng.uniform(0.6, 2.0, (len(class_of), size))}


def spherical_tensors(rng, class_of, size):
    return {"entries": np.repeat(rng.uniform(0.6, 2.0, (len(class_of), 1)), size, 1)}


def diagonal_dense(tensors):
    return np.array([np.diag(entries) for entries in tensors["entries"]])


def chain_tensors(rng, class_of, size):
    return {
        "entries": rng.uniform(0.6, 2.0, (len(class_of), size)),
        "correlations": rng.uniform(-0.9, 0.9, (len(class_of), size - 1)),
    }


def chain_dense(t):
    return np.array([reference.chain_matrix(v, r) for v, r in zip(t["entries"], t["correlations"], strict=True)])


def low_rank_precision(rank: int) -> CovarianceCase:
    """There is no update to be restricted: EM fits another structure."""

    def tensors(rng, class_of, size):
        n_components = len(class_of)
        return {
            "precisions": rng.uniform(0.5, 2.0, (n_components, size)),
            "directions": 0.7 * rng.normal(size=(n_components, size, rank)),
        }

    def dense(t):
        parts = zip(t["precisions"], t["directions"], strict=True)
        return np.array([np.linalg.inv(np.diag(d) + s @ s.T) for d, s in parts])

    return CovarianceCase(LowRankPrecision(rank), tensors, dense, None, low_rank(rank).n_parameters)


def low_rank(rank: int) -> CovarianceCase:
    def tensors(rng, class_of, size):
        n_components = len(class_of)
        return {
            "uniquenesses": rng.uniform(0.3, 1.0, (n_components, size)),
            "loadings": rng.normal(size=(n_components, size, rank)),
        }

    def dense(t):
        return np.array([np.diag(u) + s @ s.T for u, s in zip(t["uniquenesses"], t["loadings"], strict=True)])

    return CovarianceCase(
        LowRank(rank),
        tensors,
        dense,
        lambda t: reference.as_factors(t["uniquenesses"], t["loadings"]),
        lambda n, size: n * (size * (rank + 1) - rank * (rank - 1) // 2),
    )


def tied(inner: CovarianceCase, per_class: bool = False) -> CovarianceCase:
    def tensors(rng, class_of, size):
        groups = class_of if per_class else np.zeros_like(class_of)
        return {**inner.tensors(rng, np.unique(groups), size), "groups": groups}

    def shared(t):
        return {name: part for name, part in t.items() if name != "groups"}

    return CovarianceCase(
        Tied(inner.structure, per_class),
        tensors,
        lambda t: inner.dense(shared(t))[t["groups"]],
        lambda t: inner.restricted(shared(t)),
        inner.n_parameters,
    )


FULL = CovarianceCase(
    Full(),
    full_tensors,
    lambda t: t["matrices"],
    lambda t: reference.as_full,
    lambda n, size: n * size * (size + 1) // 2,
)
DIAGONAL = CovarianceCase(
    Diagonal(), diagonal_tensors, diagonal_dense, lambda t: reference.as_diagonal, lambda n, size: n * size
)
SPHERICAL = CovarianceCase(
    Spherical(), spherical_tensors, diagonal_dense, lambda t: reference.as_spherical, lambda n, size: n
)
CHAIN = CovarianceCase(
    Chain(), chain_tensors, chain_dense, lambda t: reference.as_chain, lambda n, size: n * (2 * size - 1)
)

COVARIANCES = {
    "full": FULL,
    "diag": DIAGONAL,
    "spherical": SPHERICAL,
    "tied_full": tied(FULL),
    "tied_diag": tied(DIAGONAL),
    "tied_spherical": tied(SPHERICAL),
    "tied_low_rank": tied(low_rank(2)),
    "tied_per_class": tied(FULL, per_class=True),
    "low_rank_1": low_rank(1),
    "low_rank_2": low_rank(2),
    "low_rank_precision_1": low_rank_precision(1),
    "low_rank_precision_2": low_rank_precision(2),
    "chain": CHAIN,
    "tied_chain": tied(CHAIN),
}
every_covariance = pytest.mark.parametrize("case", COVARIANCES.values(), ids=COVARIANCES)
# Those with a closed-form update, which EM needs.
UPDATED = {name: case for name, case in COVARIANCES.items() if case.restricted is not None}
every_updated_covariance = pytest.mark.parametrize("case", UPDATED.values(), ids=UPDATED)


# ---- objectives, priors, solvers ---------------------------------------------------------------------------------

# The objective, and its twin: value, numerator and denominator of one row.
OBJECTIVES: dict[str, tuple[Objective, Callable[..., Any]]] = {
    "joint": (Joint(), reference.joint),
    "marginal": (Marginal(), reference.marginal),
    "conditional": (Conditional(), reference.conditional),
    "tempered": (Conditional(3.0), reference.tempered_conditional(3.0)),
    "margin": (Margin(), reference.margin()),
    "hybrid": (Hybrid(), reference.hybrid(0.5, reference.margin())),
    "wide_margin": (Margin(8.0, 2.0), reference.margin(8.0, 2.0)),
    "hybrid_conditional": (Hybrid(0.2, Conditional(), 3.0), reference.hybrid(0.2, reference.conditional, 3.0)),
    "hybrid_tempered": (Hybrid(0.2, Conditional(3.0)), reference.hybrid(0.2, reference.tempered_conditional(3.0))),
    "hybrid_generative": (Hybrid(1.0, Margin(), 0.3), reference.hybrid(1.0, reference.margin(), 0.3)),
    "hybrid_discriminative": (Hybrid(0.0, Margin(5.0)), reference.hybrid(0.0, reference.margin(5.0))),
}
every_objective = pytest.mark.parametrize(("objective", "twin_objective"), OBJECTIVES.values(), ids=OBJECTIVES)

VARIANCES = np.array([0.5, 2.0, 1.0, 1.5])  # what the priors below shrink to


MATRIX = np.diag(VARIANCES) + 0.3
PLACES = np.array(
    [[0.5, -0.5, 0.0, 1.0], [0.5, -0.5, 0.0, 1.0], [0.0, 0.0, 0.2, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0, 0, 0]]
)


# The prior from variances (D,), and its twin.
PRIORS = {
    "no_prior": (lambda variances: None, None),
    "conjugate": (lambda variances: Conjugate(5.5, variances), reference.ConjugatePrior(5.5, VARIANCES)),
    "dirichlet": (lambda variances: Conjugate(2.0, variances, 3.0), reference.ConjugatePrior(2.0, VARIANCES, 3.0)),
    "matrix": (
        lambda variances: Conjugate(2.0, torch.from_numpy(MATRIX).to(variances.device)),
        reference.ConjugatePrior(2.0, MATRIX),
    ),
    "pulled_means": (
        lambda variances: Conjugate(2.0, variances, mean=torch.full_like(variances, 0.5), mean_strength=3.0),
        reference.ConjugatePrior(2.0, VARIANCES, mean_count=3.0, mean=0.5),
    ),
    "everything": (
        lambda variances: Conjugate.wishart(
            4.0, variances, 2.0, mean=torch.from_numpy(PLACES).to(variances.device), eta=1.5
        ),
        reference.ConjugatePrior(3.0, VARIANCES * 2 / 3, 2.0, mean_count=1.5, mean=PLACES),
    ),
}
every_prior = pytest.mark.parametrize(("make_prior", "twin_prior"), PRIORS.values(), ids=PRIORS)


def problem_of(
    source, prior=None, objective: Objective | None = None, frame: Frame | None = None, **options
) -> Problem:
    frame = frame or locate(source)
    return Problem(source, objective or Joint(), frame, torch.zeros_like(frame.centre), prior, **options)


# Solvers, each with an objective and whether it must never lower that.
SOLVERS = {
    "em": (EM(), Joint(), True),
    "accelerated em": (AcceleratedEM(), Joint(), True),
    "baum_welch": (BaumWelch(), Conditional(), True),
    "gradient": (Gradient("lbfgs"), Conditional(), True),
    "gradient by minibatches": (Gradient("adam", 1e-2, decay_epochs=9, averaging=0.5, batch_size=20), Hybrid(), False),
}
every_solver = pytest.mark.parametrize(("solver", "objective", "monotone"), SOLVERS.values(), ids=SOLVERS)

# Solvers of log-linear mixtures on non-negative rows, made from the strength of the penalty on shares.
NONNEGATIVE_SOLVERS = {
    "multiplicative": lambda strength, **options: Multiplicative(SparseShares(strength), **options),
    "accelerated": lambda strength, **options: Accelerated(SparseShares(strength), **options),
}


# ---- mixtures ----------------------------------------------------------------------------------------------------


def tensor(values, device="cpu") -> torch.Tensor:
    return torch.as_tensor(np.asarray(values)).to(device)


def random_covariance(case: CovarianceCase, rng, device="cpu", class_of=CLASS_OF, n_features=N_FEATURES):
    """The covariance and the numpy tensors it was made of."""
    tensors = case.tensors(rng, class_of, n_features)
    return case.structure.from_tensors({name: tensor(part, device) for name, part in tensors.items()}), tensors


def random_mixture(case: CovarianceCase, rng, device="cpu", class_of=CLASS_OF, n_features=N_FEATURES) -> Mixture:
    covariance, _ = random_covariance(case, rng, device, class_of, n_features)
    weights = rng.uniform(0.5, 1.5, len(class_of))
    means = rng.normal(0, 0.7, (len(class_of), n_features))
    return Mixture(
        tensor(np.log(weights / weights.sum()), device), tensor(means, device), covariance, tensor(class_of, device)
    )


def updated_twin(case: CovarianceCase, mixture: Mixture, rows, responsibilities, prior=None) -> reference.Twin:
    """The slow M-step from a mixture."""
    tensors = {name: part.cpu().numpy() for name, part in mixture.covariance.tensors().items()}
    twin = reference.twin_of(mixture)
    return reference.em_update(rows, responsibilities, twin, case.groups(tensors), case.restricted(tensors), prior)


# ---- data --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """Rows and their labels, in NumPy."""

    rows: np.ndarray
    labels: np.ndarray | None = None
    shares: np.ndarray | None = None
    weights: np.ndarray | None = None

    def source(self, device="cpu", dtype=torch.float64) -> TensorSource:
        known = (None if part is None else tensor(part, device) for part in (self.labels, self.shares, self.weights))
        return TensorSource(tensor(self.rows, device).to(dtype), *known)

    def select(self, index) -> "Data":
        """Some rows, or all in another order, or some twice."""
        parts = (self.rows, self.labels, self.shares, self.weights)
        return Data(*(None if part is None else part[index] for part in parts))

    def changed(self, **parts) -> "Data":
        return replace(self, **parts)


@dataclass(frozen=True)
class Kind:
    """A kind of data; `known` says whether there are no labels, labels, some labels or soft labels."""

    missing: bool = False
    weighted: bool = False
    known: str = "nothing"


KINDS = {
    "complete": Kind(),
    "labels": Kind(known="labels"),
    "missing": Kind(missing=True),
    "weighted": Kind(weighted=True),
    "some_labels": Kind(known="some"),
    "soft_labels": Kind(known="soft"),
    "all_hard": Kind(missing=True, weighted=True, known="some"),
    "all_soft": Kind(missing=True, weighted=True, known="soft"),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
main_kinds = pytest.mark.parametrize("name", ["complete", "all_hard", "all_soft"])


def random_data(kind: Kind, rng, dtype=torch.float64, n_rows=N_ROWS, n_features=N_FEATURES, n_classes=3) -> Data:
    """Rows of overlapping classes; numbers that are exact in dtype, so that a twin sees the same."""
    labels = rng.integers(0, n_classes, n_rows)
    rows = rng.normal(0, 0.8, (n_classes, n_features))[labels] + rng.normal(size=(n_rows, n_features))
    weights = rng.uniform(0.2, 2.5, n_rows)
    weights[3] = 0.0
    if dtype == torch.float32:
        rows, weights = (part.astype(np.float32).astype(float) for part in (rows, weights))
    if kind.missing:
        rows = with_missing_values(rows, rng)
    known = {"weights": weights} if kind.weighted else {}
    if kind.known == "soft":
        return Data(rows, shares=soft_labels(labels, n_classes, rng), **known)
    if kind.known == "some":
        labels = np.where(rng.random(n_rows) < 0.4, -1, labels)
    return Data(rows, labels=None if kind.known == "nothing" else labels, **known)


def with_missing_values(rows, rng, share=0.35):
    """Also an empty row, a row with one cell, and a complete row."""
    gone = rng.random(rows.shape) < share
    gone[0], gone[1], gone[1, 1], gone[2] = True, True, False, False
    return np.where(gone, np.nan, rows)


def soft_labels(labels, n_classes, rng):
    """A third certain, a third shared between the classes, a third unlabeled."""
    shares = np.eye(n_classes)[labels]
    shares[1::3] = rng.dirichlet(np.ones(n_classes), len(shares[1::3]))
    shares[2::3] = np.nan
    return shares


# ---- paths through a pass ----------------------------------------------------------------------------------------


def frame_on(path: str, mixture: Mixture, frame: Frame, dtype: torch.dtype) -> Frame:
    """The frame with radii that send no component, all, or those above the median error down the exact path."""
    if path == "fast":
        return frame
    if path == "exact":
        return replace(frame, radii=1e12 * frame.radii)
    coefficients = mixture.covariance.coefficients(mixture.means - frame.centre, mixture.log_weights)

    def median(factor: float) -> float:
        return float(coefficients.magnitudes(factor * frame.radii).median()) * torch.finfo(dtype).eps

    factor = brentq(lambda factor: math.log(median(factor) / TOLERANCES[dtype]), 1e-12, 1e12, rtol=1e-13)
    return replace(frame, radii=frame.radii * factor * (1 - 1e-9))


every_path = pytest.mark.parametrize("path", ["fast", "exact", "mixed"])


# ---- comparing ---------------------------------------------------------------------------------------------------


def array(values) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def assert_close(actual, expected, tolerance: float = 1e-9, scale: float = 1.0) -> None:
    """To a relative and, in units of scale, an absolute tolerance."""
    np.testing.assert_allclose(array(actual), array(expected), rtol=tolerance, atol=tolerance * scale)


def assert_same_mixture(mixture, expected, tolerance: float = 1e-9) -> None:
    """expected is a mixture or a twin."""
    for name in ("weights", "means", "covariances"):
        assert_close(getattr(mixture, name), getattr(expected, name), tolerance)


def assert_same_summary(summary, expected, tolerance: float = 1e-10) -> None:
    assert_close([summary.value, summary.weight], [expected.value, expected.weight], tolerance)
    assert_same_moments(summary.moments, expected.moments, tolerance)
    scale = max(1.0, float(expected.denominator_counts.abs().max()))
    assert_close(summary.denominator_counts, expected.denominator_counts, tolerance, scale)


def assert_same_moments(moments, expected, tolerance: float = 1e-10) -> None:
    """The same rows, whatever reference they are about."""
    if not torch.equal(moments.reference, expected.reference):
        moments = moments.about(expected.reference)
    scale = max(1.0, float(expected.counts.abs().max()))
    assert_close(moments.counts, expected.counts, tolerance, scale)
    assert_close(moments.firsts, expected.firsts, tolerance, scale)
    assert len(moments.seconds) == len(expected.seconds)
    for part, expected_part in zip(moments.seconds, expected.seconds, strict=True):
        assert_close(part, expected_part, tolerance, scale)


def image(form, matrices) -> tuple[torch.Tensor, ...]:
    """Matrices (K, D, D) in a form, by linearity: M = sum_i e_i M_i'."""
    total = None
    for i in range(matrices.shape[1]):
        unit = torch.zeros_like(matrices[:, 0])
        unit[:, i] = 1
        parts = form.outer(unit, matrices[:, i])
        total = parts if total is None else tuple(a + b for a, b in zip(total, parts, strict=True))
    return total
