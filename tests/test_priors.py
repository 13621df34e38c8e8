"""Laws of priors: log densities against twins, and pseudo-moments that maximise them."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.base import clone

import reference
from cases import (
    COVARIANCES,
    KINDS,
    MATRIX,
    PLACES,
    PRIORS,
    VARIANCES,
    assert_close,
    every_covariance,
    every_updated_covariance,
    problem_of,
    random_data,
    random_mixture,
    tensor,
)
from mixtura import GaussianMixture, MixtureClassifier
from mixtura.checks import PriorWarning
from mixtura.datasets import make_ripley
from mixtura.engine.sources import TensorSource
from mixtura.init.description import describe
from mixtura.model.mixture import Mixture
from mixtura.objectives import Assigned
from mixtura.priors import PRIORS as REGISTRY
from mixtura.priors import Conjugate, Scaled, Shrinkage, default_strength
from mixtura.roles import DataScales
from mixtura.solvers import EM
from test_bad_input import refused

proper_priors = pytest.mark.parametrize(
    ("make_prior", "twin_prior"),
    [pair for pair in PRIORS.values() if pair[1] is not None],
    ids=[name for name, pair in PRIORS.items() if pair[1] is not None],
)


def groups_of(case, mixture):
    return case.groups({name: part.cpu().numpy() for name, part in mixture.covariance.tensors().items()})


@every_covariance
@proper_priors
def test_log_density_equals_the_twin_up_to_a_constant(case, make_prior, twin_prior, rng, device):
    prior = make_prior(tensor(VARIANCES, device))
    offsets = []
    for _ in range(3):
        mixture = random_mixture(case, rng, device)
        value = float(prior.log_density(mixture))
        offsets.append(value - twin_prior.log_density(reference.twin_of(mixture), groups_of(case, mixture)))
    assert_close(offsets, np.full(3, offsets[0]))


def test_a_scaled_prior_has_a_part_of_the_log_density(rng, device):
    prior, mixture = Conjugate(4.0, tensor(VARIANCES, device)), random_mixture(COVARIANCES["full"], rng, device)
    assert_close(Scaled(prior, 0.3).log_density(mixture), 0.3 * prior.log_density(mixture))


def test_a_tied_covariance_meets_the_prior_once(rng, device):
    mixture = random_mixture(COVARIANCES["tied_full"], rng, device)
    prior = Conjugate(3.0, tensor(VARIANCES, device))
    whole = float(prior.log_density(mixture))
    one = mixture.select(slice(0, 1))
    assert_close(whole, float(prior.log_density(one)))


def test_a_strong_prior_is_a_count_and_a_scatter(device):
    pseudo = Conjugate(7.0, tensor(VARIANCES, device), concentration=2.5).pseudo_moments(len(VARIANCES))
    assert (pseudo.weight_count, pseudo.mean_count, pseudo.covariance_count) == (1.5, 0.0, 7.0)
    assert_close(pseudo.scatter, 7.0 * VARIANCES)


def scales(device) -> DataScales:
    return DataScales(
        tensor(VARIANCES, device), tensor(3 * VARIANCES, device), tensor(PLACES, device), lambda: tensor(MATRIX, device)
    )


def test_default_prior_shrinks_to_the_variances_given(device):
    prior = REGISTRY["default"](scales(device))
    pseudo = prior.pseudo_moments(len(VARIANCES))
    assert pseudo.covariance_count == default_strength(len(VARIANCES)) > 0
    assert_close(pseudo.scatter / pseudo.covariance_count, VARIANCES)


@every_updated_covariance
@proper_priors
def test_the_gradient_is_zero_where_updates_stay(case, make_prior, twin_prior, rng, device):
    """With responsibilities that are given, updates end where likelihood + log prior has no slope, by autograd."""
    mixture = random_mixture(case, rng, device)
    rows = tensor(random_data(KINDS["complete"], rng, n_rows=60).rows, device)
    shares = torch.softmax(tensor(rng.normal(size=(60, 5)), device), 1)
    source = TensorSource(rows, shares=shares)
    prior = make_prior(tensor(VARIANCES, device))
    problem = problem_of(source, prior, Assigned())
    for _ in range(2):
        mixture, _ = EM().step(problem, mixture)
    free = {name: part.clone() for name, part in mixture.covariance.tensors().items()}
    leaves = [part.requires_grad_() for part in free.values() if part.is_floating_point()]
    logits, means = mixture.log_weights.clone().requires_grad_(), mixture.means.clone().requires_grad_()
    moved = Mixture(logits.log_softmax(0), means, case.structure.from_tensors(free), mixture.class_of)
    distances = moved.covariance.squared_distances(rows - means.unsqueeze(1))  # (K, n)
    densities = moved.log_weights.unsqueeze(-1) - 0.5 * (moved.covariance.log_determinants.unsqueeze(-1) + distances)
    value = (shares.T * densities).sum() + prior.log_density(moved)
    slopes = torch.autograd.grad(value, [logits, means, *leaves])
    if "entries" in free and case.restricted({}) is reference.as_spherical:  # one number, whose slope is the sum
        slopes = (*slopes[:2], slopes[2].sum(-1))
    for slope in slopes[:2] if "loadings" in free else slopes:  # factors reach their maximum over many steps only
        assert slope.abs().max() < 1e-8


def test_the_penalty_of_the_paper(rng, device):
    """Sigma = (S + 2 beta I) / (N + 1), OT95 eq. 7 with their neutral values."""
    X = rng.normal(size=(30, 3))
    model = GaussianMixture(prior=Conjugate.penalty(0.2, 3)).fit(X)
    scatter = (X - X.mean(0)).T @ (X - X.mean(0))
    assert_close(model.covariances_[0], (scatter + 0.4 * np.eye(3)) / 31)


def test_names_of_the_paper(rng, device):
    """OT95 eq. 6 and 7 in full, and with a matrix for beta."""
    X, beta, place = rng.normal(size=(30, 3)), np.diag([0.2, 0.3, 0.4]) + 0.1, np.array([1.0, 0, -1])
    model = GaussianMixture(prior=Conjugate.wishart(5.0, beta, mean=place, eta=2.0)).fit(X)
    mean = (X.sum(0) + 2 * place) / 32
    scatter = (X - mean).T @ (X - mean) + 2 * np.outer(mean - place, mean - place)
    assert_close(model.means_[0], mean)
    assert_close(model.covariances_[0], (scatter + 2 * beta) / (30 + 2 * 5 - 3))


def test_priors_in_single_precision_are_taken_in_double(rng):
    X = rng.normal(size=(40, 3)).astype(np.float32)
    for variances in (torch.ones(3), np.ones(3, np.float32), [1, 1, 1], torch.eye(3)):
        prior = Conjugate(2.0, variances, mean=torch.zeros(3), mean_strength=1.0)
        assert prior.variances.dtype == prior.mean.dtype == torch.float64
        fitted = MixtureClassifier(1, prior=prior).fit(X, X[:, 0] > 0)
        assert np.isfinite(fitted.predict_proba(X)).all()


def test_shrinkage_is_in_the_units_of_the_rows(device):
    prior = Shrinkage(strength=3.0, scale=2.0, variances="pooled", mean_strength=4.0).prior(scales(device))
    pseudo = prior.pseudo_moments(4)
    assert (pseudo.covariance_count, pseudo.mean_count) == (3.0, 4.0)
    assert_close(pseudo.scatter, 3.0 * 2.0 * 3 * VARIANCES)
    assert_close(pseudo.mean, PLACES)


def test_shrinkage_draws_means_to_those_of_their_class(rng):
    X = np.concatenate([rng.normal(c, 1, (40, 2)) for c in (0, 10, 100, 110)])
    y = np.repeat([0, 0, 1, 1], 40)
    means = np.array([X[y == c].mean(0) for c in (0, 1)])[[0, 0, 1, 1]]
    free, held = (
        MixtureClassifier(2, prior=Shrinkage(mean_strength=eta), random_state=0).fit(X, y).mixture_.means
        for eta in (0.0, 2e4)
    )
    assert (abs(free.numpy() - means) > 4).all()
    assert_close(held, means, 1e-2)


def test_a_prior_may_have_features_in_any_units(rng):
    """Correlations decide whether a matrix is positive definite: raw eigenvalues of this one are negative."""
    scales = np.geomspace(1e-17, 1.0, 40)
    rows = rng.normal(size=(60, 40))
    matrix = np.cov(rows.T) * scales * scales[:, None]
    assert np.linalg.eigvalsh(matrix)[0] < 0
    assert_close(Conjugate(1.0, matrix).variances, matrix)
    upper = matrix.copy()
    upper[0, 1] += 1e-30  # less than the rounding of the other entries, but as large as this one
    with pytest.raises(ValueError, match="symmetric"):
        Conjugate(1.0, upper)


def test_the_default_fits_columns_that_hardly_vary(rng):
    """Fewer samples than features, and a few columns of 1e-17: the pooled covariance is a valid prior."""
    X, y = rng.normal(size=(60, 101)), np.arange(60) % 3
    X[:, :5] *= 1e-17
    X[:, 5:10] += y[:, None]
    model = MixtureClassifier(random_state=0).fit(X, y)
    assert np.isfinite(model.predict_proba(X)).all()
    assert model.score(X, y) > 0.9


REFUSED = [
    (lambda: Conjugate(0.0, [1.0]), "strength must be a number above 0; got 0.0."),
    (lambda: Conjugate(-2, [1.0]), "strength must be a number above 0; got -2."),
    (lambda: Conjugate(1.0, [1.0, -0.5]), "variances must be above 0; the smallest is -0.5."),
    (lambda: Conjugate(1.0, [1.0, float("nan")]), "variances must be finite; got nan."),
    (lambda: Conjugate(1.0, "wide"), "variances must hold numbers; it could not be converted: ..."),
    (
        lambda: Conjugate(1.0, np.ones((2, 3))),
        "variances must be one variance per feature (D,) or a matrix (D, D); got shape (2, 3).",
    ),
    (
        lambda: Conjugate(1.0, [[1.0, 2.0], [2.0, 1.0]]),
        "variances must be a positive definite matrix; the smallest eigenvalue of its correlations is -1. Pass "
        "variances (D,) only, or add to the diagonal.",
    ),
    (
        lambda: Conjugate(1.0, [[1.0, 0.0], [0.0, -2.0]]),
        "the diagonal of variances must be above 0; the smallest is -2.",
    ),
    (
        lambda: Conjugate(1.0, [[1.0, 0.5], [0.0, 1.0]]),
        "variances must be a symmetric matrix; it differs from its transpose. Pass (A + A.T) / 2.",
    ),
    (
        lambda: Conjugate(1.0, [1.0], concentration=0.5),
        "concentration must be a number of at least 1; got 0.5. Below 1 the prior density is infinite at a weight of "
        "zero and has no maximum; 1 is a flat prior.",
    ),
    (
        lambda: Conjugate(1.0, [1.0], mean=[0.0], mean_strength=-1),
        "mean_strength must be a number of at least 0; got -1.",
    ),
    (
        lambda: Conjugate(1.0, [1.0], mean_strength=2.0),
        "mean_strength=2 needs mean, which is None. Pass mean, or use Shrinkage, which shrinks to the class means.",
    ),
    (
        lambda: Conjugate(1.0, [1.0, 1.0], mean=[1.0]),
        "mean must have shape (D,) or (K, D) with D = 2, the number of features of variances; got shape (1,).",
    ),
    (
        lambda: Conjugate.wishart(1.0, [1.0, 1.0]),
        "alpha must be above D / 2 = 1 for 2 features and eta=0; got 1. Otherwise the prior has no mode to shrink to.",
    ),
    (
        lambda: Conjugate.wishart(1.5, [1.0, 1.0], mean=[0.0, 0.0], eta=1.0),
        "alpha must be above (D + 1) / 2 = 1.5 for 2 features and eta=1; got 1.5. Otherwise the prior has no mode to "
        "shrink to.",
    ),
    (lambda: Conjugate.penalty(0.0, 2), "beta must be a number above 0; got 0.0."),
    (lambda: Shrinkage(strength=0), "strength must be a number above 0; got 0."),
    (lambda: Shrinkage(scale=-1.0), "scale must be a number above 0; got -1.0."),
    (
        lambda: Shrinkage(variances="wide"),
        "variances must be one of 'expected', 'pooled', 'covariance', 'identity'; got 'wide'.",
    ),
    (
        lambda: GaussianMixture(prior=Conjugate(1.0, [1.0])).fit(np.eye(3)),
        "The prior has 1 features, but X has 3. Pass a prior with 3.",
    ),
    (
        lambda: GaussianMixture(2, prior=Conjugate(1.0, [1.0] * 3, mean=np.eye(3), mean_strength=1.0)).fit(np.eye(3)),
        "The prior has 3 means, but the mixture has 2 components. Pass one mean (D,) for all, or use Shrinkage, "
        "which shrinks to the class means.",
    ),
]


@pytest.mark.parametrize(("call", "text"), REFUSED, ids=[text[:40] for _, text in REFUSED])
def test_bad_priors(call, text):
    refused(call, text)


@pytest.mark.parametrize("estimator", [GaussianMixture(2, random_state=0), MixtureClassifier(2, random_state=0)])
def test_priors_that_let_nothing_be_learned_are_announced(estimator, rng):
    X, y = rng.normal(size=(40, 2)), np.repeat([0, 1], 20)
    with pytest.warns(
        PriorWarning, match="has 1e[+]06 pseudo-observations of the covariances, but no component has more"
    ):
        clone(estimator).set_params(prior=Shrinkage(1e6)).fit(X, y)
    with pytest.warns(PriorWarning, match="has 1e[+]06 pseudo-observations of the means, but no component has more"):
        clone(estimator).set_params(prior=Shrinkage(mean_strength=1e6)).fit(X, y)
    X[:10] = 50.0
    with pytest.warns(PriorWarning, match="too weak: a variance fell to"):
        clone(estimator).set_params(prior=Shrinkage(1e-7)).fit(X, y)


def test_the_pooled_covariance_of_a_description(rng):
    X, y = rng.normal(size=(4000, 3)) @ rng.normal(size=(3, 3)), rng.integers(0, 2, 4000)
    X[y == 1] += [5.0, 0, -5]
    generator = torch.Generator().manual_seed(0)
    labels = torch.from_numpy(y)
    pooled = sum(np.cov(X[y == c].T, bias=True) * (y == c).mean() for c in (0, 1))
    whole = describe(TensorSource(torch.from_numpy(X), labels), 2, generator)
    assert_close(whole.covariance, pooled, 3e-3)
    assert_close(whole.covariance.diagonal(), whole.within)
    assert_close(whole.scales_for([3, 1]).covariance(), whole.covariance * 2 ** (-2 / 3))
    X[rng.random(X.shape) < 0.3] = np.nan
    holed = describe(TensorSource(torch.from_numpy(X), labels), 2, generator).covariance
    assert_close(holed, pooled, 0.15)
    few = describe(TensorSource(torch.from_numpy(X[:3]), labels[:3]), 2, generator).covariance
    assert torch.linalg.eigvalsh(few)[0] > 0


@dataclass(frozen=True)
class Pull:
    """A density of the means alone, with a constant slope and no pseudo-moments."""

    slope: float

    def log_density(self, parameters):
        assert parameters.log_determinants.shape == parameters.log_weights.shape
        return self.slope * parameters.means[:, 0].sum()


class TestADensityAlone:
    def test_the_gradient_solver_follows_it(self):
        X, y = make_ripley(50, random_state=0)
        fits = [
            MixtureClassifier(1, prior=Pull(slope), solver="gradient", random_state=0, max_iter=3, tol=10.0).fit(X, y)
            for slope in (0.0, 50.0)
        ]
        assert (fits[1].mixture_.means[:, 0] > fits[0].mixture_.means[:, 0] + 0.01).all()

    def test_em_names_the_solver_that_takes_it(self):
        X, y = make_ripley(50, random_state=0)
        with pytest.raises(ValueError, match="and Pull has a density alone; use solver='gradient'"):
            MixtureClassifier(1, prior=Pull(1.0), solver="em", random_state=0).fit(X, y)
