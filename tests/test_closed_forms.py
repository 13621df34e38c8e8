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
