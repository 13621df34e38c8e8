"""EM with extrapolation: the fixed points of EM, in fewer passes, whatever the units."""

import numpy as np
import pytest
import torch

from mixtura import GaussianMixture, MixtureClassifier
from mixtura.datasets import make_ripley, remove_values
from mixtura.solvers import EM, AcceleratedEM
from mixtura.solvers.accelerated_em import extrapolate

SETTINGS = {"n_components": 3, "tol": 1e-7, "max_iter": 1000, "random_state": 0}


@pytest.fixture(scope="module")
def data():
    X, y = make_ripley(200, random_state=0)
    return remove_values(X, 0.2, random_state=0), y


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_it_ends_at_a_fixed_point_of_em_in_fewer_steps(data, covariance_type):
    settings = {**SETTINGS, "covariance_type": covariance_type}
    plain = MixtureClassifier(**settings, solver=EM()).fit(*data)
    fast = MixtureClassifier(**settings).fit(*data)
    assert fast.converged_
    assert fast.n_iter_ < 0.8 * plain.n_iter_
    again = MixtureClassifier(**settings, solver=EM(), init=fast).fit(*data)
    assert again.n_iter_ <= 3
    np.testing.assert_allclose(again.predict_proba(data[0]), fast.predict_proba(data[0]), atol=1e-3)


@pytest.mark.parametrize("class_prior", ["empirical", [0.3, 0.7]])
def test_the_objective_never_falls(data, class_prior):
    model = MixtureClassifier(**SETTINGS, class_prior=class_prior).fit(*data)
    assert min(record.change for record in model.history_[1:]) >= 0
    if class_prior != "empirical":
        np.testing.assert_allclose(model.class_prior_, class_prior)


def test_units_do_not_matter(data):
    X, y = data
    scales = np.array([1e-4, 1e5])
    settings = {**SETTINGS, "max_iter": 12}
    with pytest.warns(UserWarning, match="max_iter"):
        one = MixtureClassifier(**settings).fit(X, y)
    with pytest.warns(UserWarning, match="max_iter"):
        other = MixtureClassifier(**settings).fit(X * scales, y)
    np.testing.assert_allclose(other.predict_proba(X * scales), one.predict_proba(X), atol=1e-7)


def test_a_poor_extrapolation_is_dropped(data, monkeypatch):
    """Every extrapolation is far off: what remains is EM."""
    monkeypatch.setattr(
        "mixtura.solvers.accelerated_em.extrapolate",
        lambda first, second, third, longest: third.moved(third.log_weights, third.means + 1e3, third.covariance),
    )
    plain = MixtureClassifier(**SETTINGS, solver=EM()).fit(*data)
    dropped = MixtureClassifier(**SETTINGS).fit(*data)
    assert dropped.n_iter_ == plain.n_iter_
    np.testing.assert_allclose(dropped.means_, plain.means_, atol=1e-12)


def test_extrapolation_of_a_geometric_sequence_is_its_limit(data):
    """Means that approach their limit by a factor at each step."""
    mixture = MixtureClassifier(2, random_state=0).fit(*data).mixture_
    direction = torch.randn(mixture.means.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sequence = [
        mixture.moved(mixture.log_weights, mixture.means + 0.7**t * direction, mixture.covariance) for t in range(3)
    ]
    limit = extrapolate(*sequence, longest=100.0)
    assert limit is not None
    torch.testing.assert_close(limit.means, mixture.means)
    torch.testing.assert_close(limit.covariances, mixture.covariances)
    short = extrapolate(*sequence, longest=1.0)
    assert short is not None
    torch.testing.assert_close(short.means, sequence[2].means)


def test_gaussian_mixture_takes_plain_steps(data, monkeypatch):
    def step(*_):
        raise AssertionError("extrapolated")

    monkeypatch.setattr(AcceleratedEM, "step", step)
    GaussianMixture(2, random_state=0, prior="default").fit(data[0])
    with pytest.raises(AssertionError, match="extrapolated"):
        MixtureClassifier(2, random_state=0).fit(*data)
