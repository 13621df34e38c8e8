"""Laws of priors: log densities against twins, and pseudo-moments that maximise them."""

import numpy as np
import pytest

import reference
from cases import COVARIANCES, PRIORS, VARIANCES, assert_close, every_covariance, random_mixture, tensor
from mixtura.priors import PRIORS as REGISTRY
from mixtura.priors import Conjugate, default_strength

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
        value = prior.log_density(mixture.log_weights, mixture.means, mixture.covariance)
        offsets.append(value - twin_prior.log_density(reference.twin_of(mixture), groups_of(case, mixture)))
    assert_close(offsets, np.full(3, offsets[0]))


def test_a_tied_covariance_meets_the_prior_once(rng, device):
    mixture = random_mixture(COVARIANCES["tied_full"], rng, device)
    prior = Conjugate(3.0, tensor(VARIANCES, device))
    whole = prior.log_density(mixture.log_weights, mixture.means, mixture.covariance)
    one = mixture.select(slice(0, 1))
    assert_close(whole, prior.log_density(one.log_weights, one.means, one.covariance))


def test_a_strong_prior_is_a_count_and_a_scatter(device):
    pseudo = Conjugate(7.0, tensor(VARIANCES, device), concentration=2.5).pseudo_moments(len(VARIANCES))
    assert (pseudo.weight_count, pseudo.mean_count, pseudo.covariance_count) == (1.5, 0.0, 7.0)
    assert_close(pseudo.scatter, 7.0 * VARIANCES)


def test_default_prior_shrinks_to_the_variances_given(device):
    prior = REGISTRY["default"](tensor(VARIANCES, device))
    pseudo = prior.pseudo_moments(len(VARIANCES))
    assert pseudo.covariance_count == default_strength(len(VARIANCES)) > 0
    assert_close(pseudo.scatter / pseudo.covariance_count, VARIANCES)
