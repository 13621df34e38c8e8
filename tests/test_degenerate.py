"""Data that make likelihoods infinite or matrices singular: with a prior nothing fails and everything stays finite.

A repair is a named warning. Without a prior the smallest variances are floored, and the repair says so.
"""

import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from mixtura import GaussianMixture, MixtureClassifier
from mixtura.checks import RepairWarning

COVARIANCE_TYPES = ["full", "tied", "diag", "spherical", "low_rank"]


def plain(rng, n_rows=40, size=3):
    X = rng.normal(size=(n_rows, size))
    y = np.arange(n_rows) % 2
    return X + 2 * y[:, None], y


def duplicated(rng):
    X, y = plain(rng, 6)
    return np.repeat(X, 10, axis=0), np.repeat(y, 10)


def constant_column(rng):
    X, y = plain(rng)
    X[:, 1] = 7.0
    return X, y


def constant_in_each_class(rng):
    X, y = plain(rng)
    X[:, 1] = 3.0 * y
    return X, y


def all_constant(rng):
    _, y = plain(rng)
    return np.full((40, 3), 5.0), y


def collinear(rng):
    X, y = plain(rng)
    return np.column_stack([X, X[:, 0] + X[:, 1], 2 * X[:, 2]]), y


def fewer_rows_than_features(rng):
    X = rng.normal(size=(12, 30))
    y = np.arange(12) % 2
    return X + y[:, None], y


def one_row_in_a_class(rng):
    X, _ = plain(rng)
    return X, (np.arange(40) == 7).astype(int)


def two_rows(rng):
    return rng.normal(size=(2, 3)), np.array([0, 1])


def identical_rows(rng):
    X, y = plain(rng)
    X[::2] = X[0]
    X[1::2] = X[1]
    return X, y


def classes_on_top_of_each_other(rng):
    X, y = plain(rng)
    return np.repeat(X[::2], 2, axis=0), y


def one_gaussian(rng):
    X = rng.normal(size=(60, 3))
    return X, rng.integers(0, 2, 60)


def huge_units(rng):
    X, y = plain(rng)
    return X * np.array([1e150, 1.0, 1e-150]), y


def far_away(rng):
    X, y = plain(rng)
    return X + 1e9, y


def an_outlier(rng):
    X, y = plain(rng)
    X[0] = 1e8
    return X, y


def one_feature(rng):
    X, y = plain(rng, size=1)
    return np.round(X), y


def empty_column(rng):
    X, y = plain(rng)
    X[:, 1] = np.nan
    return X, y


def empty_column_in_a_class(rng):
    X, y = plain(rng)
    X[y == 1, 1] = np.nan
    return X, y


def empty_rows(rng):
    X, y = plain(rng)
    X[::3] = np.nan
    return X, y


def a_class_of_empty_rows(rng):
    X, y = plain(rng)
    X[y == 1] = np.nan
    return X, y


def one_cell_per_row(rng):
    X, y = plain(rng)
    keep = rng.integers(0, 3, 40)
    return np.where(np.arange(3) == keep[:, None], X, np.nan), y


DATA = [
    duplicated,
    constant_column,
    constant_in_each_class,
    all_constant,
    collinear,
    fewer_rows_than_features,
    one_row_in_a_class,
    two_rows,
    identical_rows,
    classes_on_top_of_each_other,
    one_gaussian,
    huge_units,
    far_away,
    an_outlier,
    one_feature,
    empty_column,
    empty_column_in_a_class,
    empty_rows,
    a_class_of_empty_rows,
    one_cell_per_row,
]


def holes(X, rng):
    return np.where(rng.random(X.shape) < 0.25, np.nan, X)


@pytest.fixture
def quiet():
    """Repairs and small iteration limits are allowed to warn; anything else is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RepairWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def queries(X, rng):
    """The rows themselves, the same with holes, and rows that nobody has seen."""
    far = 1e3 * np.abs(np.nan_to_num(X)).max(0)
    return np.vstack([X, holes(X, rng), np.zeros_like(far), far])


def assert_usable(model, X, rng):
    Q = queries(X, rng)
    probabilities = model.predict_proba(Q)
    assert np.isfinite(probabilities).all()
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert not np.isnan(model.score_samples(Q)).any()
    observed = ~np.isnan(X).all(0)  # a column without an observed value stays missing
    assert np.isfinite(model.impute(Q)[:, observed]).all()
    assert np.isfinite(model.sample(5)[0]).all()
    assert model.mixture_.means.isfinite().all()
    assert model.mixture_.covariances.isfinite().all()


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
@pytest.mark.parametrize("data", DATA, ids=lambda d: d.__name__)
def test_the_default_classifier_survives(data, covariance_type, rng, quiet):
    X, y = data(rng)
    for rows in (X, holes(X, rng)):
        for n_components in (1, 3):
            model = MixtureClassifier(n_components, covariance_type=covariance_type, random_state=0, max_iter=15)
            assert_usable(model.fit(rows, y), rows, rng)
            assert set(model.predict(rows)) <= set(y.tolist())
            assert all(np.isfinite(record.objective) for record in model.history_)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
@pytest.mark.parametrize("data", DATA, ids=lambda d: d.__name__)
def test_a_density_with_the_default_prior_survives(data, covariance_type, rng, quiet):
    X, _ = data(rng)
    for rows in (X, holes(X, rng)):
        model = GaussianMixture(2, covariance_type=covariance_type, prior="default", random_state=0, max_iter=15)
        assert_usable(model.fit(rows), rows, rng)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
@pytest.mark.parametrize("data", DATA, ids=lambda d: d.__name__)
def test_without_a_prior_predictions_are_finite(data, covariance_type, rng, quiet):
    X, y = data(rng)
    for rows in (X, holes(X, rng)):
        model = MixtureClassifier(2, covariance_type=covariance_type, prior=None, random_state=0, max_iter=15)
        model.fit(rows, y)
        assert np.isfinite(model.predict_proba(rows)).all()


@pytest.mark.parametrize("data", [plain, fewer_rows_than_features, constant_in_each_class], ids=lambda d: d.__name__)
def test_unlabeled_rows_and_weights_on_top(data, rng, quiet):
    X, y = data(rng)
    y = np.where(np.arange(len(y)) > 4, -9, y)
    weights = np.where(np.arange(len(y)) % 3 == 2, 0.0, 1e-3)
    for covariance_type in COVARIANCE_TYPES:
        model = MixtureClassifier(2, covariance_type=covariance_type, unlabeled=-9, random_state=0, max_iter=15)
        assert_usable(model.fit(holes(X, rng), y, weights), X, rng)


class TestNamedRepairs:
    def test_more_components_than_rows(self, rng):
        X, y = one_row_in_a_class(rng)
        message = (
            "^There are fewer samples than components: class 1 has 1 samples for 3 components; such a class gets one "
            "component per sample. Lower n_components for it, for example with a dict.$"
        )
        with pytest.warns(RepairWarning, match=message) as caught:
            model = MixtureClassifier(3, random_state=0).fit(X, y)
        assert caught[0].filename == __file__
        assert model.n_components_.tolist() == [3, 1]

    @pytest.mark.parametrize("covariance_type", ["full", "tied"])
    def test_a_covariance_that_is_not_positive_definite(self, rng, covariance_type):
        X, y = collinear(rng)
        message = r"The covariance of component \d was not positive definite; a multiple of its diagonal was added"
        with pytest.warns(RepairWarning, match=message) as caught:
            MixtureClassifier(1, covariance_type=covariance_type, prior=None).fit(X, y)
        assert caught[0].filename == __file__

    @pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical", "low_rank"])
    def test_a_variance_at_its_floor(self, rng, covariance_type):
        X, y = identical_rows(rng)
        with pytest.warns(
            RepairWarning, match=r"A variance of component 0 was raised to the smallest allowed variance"
        ):
            MixtureClassifier(1, covariance_type=covariance_type, prior=None).fit(X, y)

    def test_the_default_prior_needs_no_repair(self, rng):
        for data in (duplicated, constant_column, collinear, fewer_rows_than_features, identical_rows, far_away):
            for covariance_type in COVARIANCE_TYPES:
                X, y = data(rng)
                # A repair would be a warning, and warnings are errors here.
                assert MixtureClassifier(1, covariance_type=covariance_type, max_iter=500).fit(X, y).converged_


@pytest.mark.parametrize("estimator", [MixtureClassifier(1), GaussianMixture()], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinities_are_refused_at_fit_and_predict(estimator, value, rng):
    X, y = plain(rng)
    bad = X.copy()
    bad[3, 1] = value
    for rows in (bad, torch.from_numpy(bad)):
        with pytest.raises(ValueError, match="contains infinity"):
            estimator.fit(rows, y)
        with pytest.raises(ValueError, match="contains infinity"):
            estimator.fit(X, y).predict(rows)


def test_values_too_large_to_square_are_named(rng):
    X, y = plain(rng)
    X[0, 0] = 1e200
    with pytest.raises(ValueError, match=r"X holds values up to 1e\+200 in column 0; their squares overflow"):
        MixtureClassifier(1).fit(X, y)
    with pytest.raises(ValueError, match=r"X holds values up to 1e\+200 in column 0; their squares overflow"):
        GaussianMixture().fit(X)


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "low_rank"])
@pytest.mark.parametrize("unit", [1.0, 1e-3])
def test_a_constant_column_tells_nothing(covariance_type, unit, rng, quiet):
    """It predicts as a column that was never observed, however unlike the sizes of the classes."""
    X, y = plain(rng, 60)
    y[:45] = 0
    model = MixtureClassifier(1, covariance_type=covariance_type, tol=1e-9, max_iter=3000)
    constant, empty = (np.column_stack([X * unit, np.full((60, 2), value)]) for value in (5.0, np.nan))
    actual = model.fit(constant, y).predict_log_proba(constant)
    np.testing.assert_allclose(actual, model.fit(empty, y).predict_log_proba(empty), atol=1e-3)


def test_a_constant_column_has_the_units_of_the_others_where_they_share_a_variance(rng):
    X, y = plain(rng, 60)
    X = np.column_stack([X, np.full(60, 5.0)])
    actual = [MixtureClassifier(1, covariance_type="spherical").fit(X * u, y).predict_proba(X * u) for u in (1.0, 1e-6)]
    np.testing.assert_allclose(actual[0], actual[1], atol=1e-9)


def test_many_identical_rows(rng):
    X = np.vstack([np.tile([1.0, 2.0], (20_000, 1)), rng.normal(size=(50, 2))])
    y = (np.arange(len(X)) % 2).astype(int)
    for covariance_type in COVARIANCE_TYPES:
        model = MixtureClassifier(2, covariance_type=covariance_type, random_state=0, max_iter=300)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(X, y)
        assert np.isfinite(model.score_samples(X)).all()
        assert model.predict_proba(X[:1])[0, 0] == pytest.approx(0.5, abs=0.01)


@pytest.mark.slow
def test_a_million_identical_rows():
    X = np.ones((1_000_000, 3))
    y = np.arange(1_000_000) % 2
    model = MixtureClassifier(2, random_state=0).fit(X, y)
    assert model.predict_proba(X[:1])[0, 0] == pytest.approx(0.5, abs=1e-3)


def test_many_components_on_one_gaussian_do_no_harm():
    rng = np.random.default_rng(0)
    X, held_out = rng.normal(size=(200, 50)), rng.normal(size=(1000, 50))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        many = GaussianMixture(10, prior="default", random_state=0).fit(X)
    one = GaussianMixture(1, reg_covar=1e-6).fit(X)
    assert many.score(held_out) >= one.score(held_out)


def test_two_tight_clusters_far_apart_in_single_precision():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(-1e4, 1, (500, 2)), rng.normal(1e4, 1, (500, 2))]).astype(np.float32)
    for covariance_type in COVARIANCE_TYPES:
        model = GaussianMixture(2, covariance_type=covariance_type, random_state=0).fit(X)
        np.testing.assert_allclose(model.mixture_.covariance.variances(), 1, atol=0.15)
