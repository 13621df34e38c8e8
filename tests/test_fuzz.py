"""A short part of `make fuzz`, and what it found once."""

import re

import numpy as np
import pytest
import torch
from sklearn.base import clone

from fuzz import KINDS, make_case, violations
from mixtura import (
    AveragedMixture,
    GaussianMixture,
    MixtureClassifier,
    NonnegativeMixtureClassifier,
    RelevanceVectorClassifier,
    SparseMixtureClassifier,
    load,
)
from mixtura.init.starts import bisect


@pytest.mark.parametrize("number", range(4 * len(KINDS)))
def test_random_fits_obey_the_laws(number):
    assert violations(make_case(number))[1] == []


def test_a_low_rank_of_one_feature_can_be_saved(rng, tmp_path):
    X = rng.normal(size=(40, 1))
    model = GaussianMixture(2, covariance_type="low_rank", random_state=0).fit(X)
    model.save(tmp_path / "model")
    assert np.array_equal(load(tmp_path / "model").score_samples(X), model.score_samples(X))


@pytest.mark.parametrize("covariance_type", ["full", "diag", "tied", "low_rank"])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_a_model_in_a_file_rounds_as_the_one_in_memory(rng, covariance_type, missing, tmp_path):
    X = 1e8 * (rng.normal(size=4) + 1e-3 * rng.normal(size=(60, 4)))
    X[rng.random(X.shape) < missing] = np.nan
    model = MixtureClassifier(3, covariance_type=covariance_type, random_state=0).fit(X, np.arange(60) % 3)
    model.save(tmp_path / "model")
    assert np.array_equal(load(tmp_path / "model").predict_proba(X), model.predict_proba(X))
    parts = [model.mixture_.means, *model.mixture_.covariance.tensors().values()]
    assert all(part.is_contiguous() for part in parts)


def test_log_densities_that_single_precision_cannot_hold_are_refused(rng):
    model = GaussianMixture(1, random_state=0).fit(rng.normal(size=(40, 2)))
    far = torch.tensor([[1e20, 0.0]])
    with pytest.raises(ValueError, match=r"X holds 1e\+20 in column 0, more than 1e\+15 standard deviations"):
        model.score_samples(far)
    assert bool(model.score_samples(far.double()).isfinite().all())


@pytest.mark.parametrize("init_params", ["kmeans", "k-means++", "random_from_data"])
def test_starts_in_single_precision_do_not_overflow(rng, init_params):
    X = (1e25 * rng.normal(size=(40, 2))).astype(np.float32)
    base = GaussianMixture(2, prior="default", init_params=init_params, tol=10.0)
    assert np.isfinite(AveragedMixture(base, 2, random_state=0).fit(X).score_samples(X)).all()


def test_kernels_that_are_alike_to_rounding_are_refused_in_words(rng, monkeypatch):
    monkeypatch.setattr(torch.linalg, "lu_factor_ex", lambda matrix: (matrix, matrix[0].int(), torch.tensor(3)))
    model = RelevanceVectorClassifier(kernel="polynomial", degree=1, scaling=False, working_set=False)
    text = (
        "RelevanceVectorClassifier cannot be fitted: the kernel columns of X are too large or too "
        "similar (the Hessian is numerically singular). Use scaling=True, a smaller degree, or kernel='rbf'."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        model.fit(1e5 + rng.normal(size=(60, 2)), np.arange(60) % 2)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_kernels_of_rows_far_from_zero_do_not_depend_on_the_batch(rng):
    X = rng.normal(size=(60, 3))
    y = (X[:, 0] > 0).astype(int)
    near = SparseMixtureClassifier(1, kernel="rbf", scaling=False, max_iter=20, random_state=0)
    far = clone(near).fit(X + 1e6, y)
    together, alone = far.predict_proba(X + 1e6), np.concatenate([far.predict_proba(row[None] + 1e6) for row in X])
    np.testing.assert_allclose(alone, together, atol=1e-9)
    np.testing.assert_allclose(together, near.fit(X, y).predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("init_params", ["kmeans", "k-means++", "random_from_data"])
def test_a_replicate_with_fewer_samples_than_components_is_refused_in_words(rng, init_params):
    base = GaussianMixture(4, prior="default", init_params=init_params)
    model = AveragedMixture(base, 3, resampling="subset", fraction=0.5, random_state=0)
    with pytest.raises(
        ValueError, match=r"^resampling='subset' drew 2 distinct samples for a member with 4 components"
    ):
        model.fit(rng.normal(size=(4, 2)))


def test_bisection_does_not_depend_on_the_unit_of_weights(rng):
    rows, weights = torch.from_numpy(rng.normal(size=(9, 3))), torch.from_numpy(rng.uniform(0.1, 3.0, 9))
    rows[4:] = rows[4]
    expected = bisect(rows, weights, 7)
    for unit in (1e-40, 1e28, 1e40):
        np.testing.assert_allclose(bisect(rows, unit * weights, 7), expected, rtol=1e-12)


@pytest.mark.parametrize("value", [6.4e16, 2.3e13, 0.0])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_large_constant_feature_does_not_make_scores_large(value):
    X, y = np.full((60, 1), value), np.arange(60) % 3
    model = NonnegativeMixtureClassifier(2, random_state=0, max_iter=5).fit(X, y)
    assert np.abs(model.mixture_.coefficients.numpy() * value).max() < 10
