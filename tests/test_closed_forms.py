"""Closed forms of one Gaussian per class: what they select, and that the fitted model is the one they scored."""

import numpy as np
import pytest
import torch

from cases import assert_close
from mixtura import MixtureClassifier
from mixtura.covariances import Full, Tied
from mixtura.engine.evaluator import Evaluator
from mixtura.engine.sources import TensorSource
from mixtura.init.description import describe
from mixtura.init.starts import starting_mixture
from mixtura.priors import Shrinkage
from mixtura.solvers.em import moments_of_assigned
from test_bad_input import refused

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def wide(rng):
    """More features than products of them are formed for, and classes with fewer samples than features."""
    X = rng.normal(size=(150, 140)) @ rng.normal(size=(140, 140)) / 12
    y = np.arange(150) % 3
    return X + 0.6 * rng.normal(size=(3, 140))[y], y


@pytest.mark.parametrize("covariance_type", ["full", "tied"])
def test_one_gaussian_per_class_is_the_first_update(wide, covariance_type):
    X, y = wide
    model = MixtureClassifier(1, covariance_type=covariance_type, prior=Shrinkage(30.0, variances="pooled")).fit(X, y)
    means = np.stack([X[y == c].mean(0) for c in range(3)])
    scatters = np.stack([(X[y == c] - means[c]).T @ (X[y == c] - means[c]) for c in range(3)])
    target = 30.0 * np.diag(scatters.sum(0).diagonal() / 150)
    pooled = np.broadcast_to((scatters.sum(0) + target) / (150 + 30), scatters.shape)
    assert_close(model.means_, means)
    assert_close(
        model.mixture_.covariance.dense(), (scatters + target) / (50 + 30) if covariance_type == "full" else pooled
    )
    score = model.history_[-1].objective
    again = MixtureClassifier(
        1, covariance_type=covariance_type, prior=model.prior, warm_start=True, init=model.mixture_
    )
    assert_close(again.fit(X, y).history_[0].objective, score)


@pytest.mark.parametrize("structure", [Full(), Tied(Full())])
def test_moments_of_assigned_rows_are_those_of_a_pass(wide, rng, structure):
    X, y = wide
    weights = rng.uniform(0.1, 2, len(X))
    source = TensorSource(torch.from_numpy(X), torch.from_numpy(y), None, torch.from_numpy(weights))
    generator = torch.Generator().manual_seed(0)
    description = describe(source, 3, generator)
    rough, assigned = starting_mixture(description, structure, [2, 1, 1], "kmeans", generator)
    rows, shares, components = (torch.cat(parts) for parts in zip(*assigned, strict=True))
    actual = moments_of_assigned(rough, rows, shares, components)
    for k in range(4):
        own = (components == k).numpy()
        deviations = rows.numpy()[own] - rough.means[k].numpy()
        assert_close(actual.counts[k], shares.numpy()[own].sum())
        assert_close(actual.firsts[k], shares.numpy()[own] @ deviations)
        assert_close(actual.seconds[0][k], (deviations * shares.numpy()[own, None]).T @ deviations)
    assert Evaluator(rough, description.frame, torch.float64).n_shared == 0


class TestTargets:
    """The targets of `Shrinkage` against their formulas."""

    @pytest.fixture
    def classes(self, rng):
        X = rng.normal(size=(60, 5)) @ rng.normal(size=(5, 5)) * [1, 10, 0.1, 1, 1]
        y, weights = np.arange(60) % 3, rng.uniform(0.5, 2.0, 60)
        source = TensorSource(torch.from_numpy(X), torch.from_numpy(y), None, torch.from_numpy(weights))
        description = describe(source, 3, torch.Generator().manual_seed(0))
        means = np.stack([np.average(X[y == c], axis=0, weights=weights[y == c]) for c in range(3)])
        deviations = X - means[y]
        return description, (deviations * weights[:, None]).T @ deviations, weights.sum()

    @pytest.mark.parametrize("variances", ["covariance", "identity"])
    @pytest.mark.parametrize("n_components", [1, 4])
    def test_the_target_is_shrunk_itself(self, classes, variances, n_components):
        description, scatter, weight = classes
        scales = description.scales_for([n_components] * 3)
        prior = Shrinkage(4.0, 2.0, variances, target_strength=7.0).prior(scales)
        diagonal = scatter.diagonal() / weight
        own = np.diag(diagonal) if variances == "covariance" else np.eye(5) * diagonal.mean()
        expected = (scatter + 7.0 * own) / (weight + 7.0) * n_components ** (-2 / 5)
        assert_close(prior.variances, 2.0 * expected)
        assert prior.strength == 4

    def test_equal_variances(self, classes):
        description, scatter, weight = classes
        prior = Shrinkage(4.0, variances="identity").prior(description.scales_for([1] * 3))
        assert_close(prior.variances, np.full(5, scatter.diagonal().mean() / weight))

    def test_constant_features_have_the_variance_of_the_others(self, rng):
        X = rng.normal(size=(30, 4))
        X[:, 2] = 5.0
        source = TensorSource(torch.from_numpy(X), torch.from_numpy(np.arange(30) % 2))
        description = describe(source, 2, torch.Generator().manual_seed(0))
        shrunk = description.shrunk_covariance(3.0, False)
        assert_close(shrunk.diagonal(), description.within)
        assert_close(shrunk[2], float(description.within[2]) * np.eye(4)[2])

    def test_pairs_of_observed_values_give_a_matrix(self, rng):
        X = rng.normal(size=(40, 12)) @ rng.normal(size=(12, 12))
        X[rng.random(X.shape) < 0.6] = np.nan
        source = TensorSource(torch.from_numpy(X), torch.from_numpy(np.arange(40) % 2))
        description = describe(source, 2, torch.Generator().manual_seed(0))
        for identity in (False, True):
            assert torch.linalg.eigvalsh(description.shrunk_covariance(1e-3, identity))[0] > 0

    def test_what_has_no_matrix_is_refused(self):
        refused(
            lambda: Shrinkage(target_strength=3.0),
            "target_strength=3 needs variances='covariance' or 'identity', whose target is a matrix; got 'expected'. "
            "Leave target_strength=None.",
        )
        refused(
            lambda: Shrinkage(variances="identity", target_strength=0),
            "target_strength must be a number above 0 or None; got 0.",
        )

    def test_it_says_what_it_is(self):
        assert str(Shrinkage(4.0, variances="identity", target_strength=9)) == "4 rows, 1 x identity, target 9 rows"
