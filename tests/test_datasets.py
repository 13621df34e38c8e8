"""Generators have the law they state, and mistakes are told in words."""

import re
import sys

import numpy as np
import pytest
from scipy.special import logsumexp

from mixtura import datasets

# name -> (draw about 3 * n rows from a random_state, features, classes)
GENERATORS = {
    "ripley": (lambda n, seed: datasets.make_ripley(n, random_state=seed), 2, 2),
    "waveform": (lambda n, seed: datasets.make_waveform(3 * n, random_state=seed), 21, 3),
    "waveform_40": (lambda n, seed: datasets.make_waveform(3 * n, n_noise=19, random_state=seed), 40, 3),
    "checkerboard": (lambda n, seed: datasets.make_checkerboard(n, random_state=seed), 2, 2),
    "rings": (lambda n, seed: datasets.make_rings(n, random_state=seed), 2, 2),
    "rings_3": (lambda n, seed: datasets.make_rings(n, n_classes=3, radii=(1, 2, 3), random_state=seed), 2, 3),
    "anisotropic": (lambda n, seed: datasets.make_anisotropic(n, n_features=4, random_state=seed), 4, 2),
    "one_class": (lambda n, seed: datasets.make_anisotropic(n, n_classes=1, random_state=seed), 2, 1),
}


@pytest.fixture(params=GENERATORS)
def generator_case(request):
    return GENERATORS[request.param]


# ---- Laws of all generators ------------------------------------------------------------------------------------------


def test_generators_give_finite_rows_of_every_class(generator_case):
    make, n_features, n_classes = generator_case
    X, y = make(30, 0)
    assert X.shape == (y.size, n_features)
    assert X.dtype == np.float64
    assert np.isfinite(X).all()
    assert y.dtype.kind == "i"
    np.testing.assert_array_equal(np.unique(y), np.arange(n_classes))


def test_generators_repeat_under_one_random_state(generator_case):
    make = generator_case[0]
    for seed in (7, np.int64(7)):
        for first, second in zip(make(20, 7), make(20, seed), strict=True):
            np.testing.assert_array_equal(first, second)
    assert not np.array_equal(make(20, 7)[0], make(20, 8)[0])
    assert not np.array_equal(make(20, None)[0], make(20, None)[0])


@pytest.mark.parametrize("source", [np.random.default_rng, np.random.RandomState])
def test_generators_draw_from_the_generator_passed_in(generator_case, source):
    make = generator_case[0]
    one, other = source(3), source(3)
    first = make(20, one)
    for a, b in zip(first, make(20, other), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first[0], make(20, one)[0])  # the state moved on


def test_generators_leave_the_global_random_state_alone(generator_case):
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    generator_case[0](20, 0)
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_generators_give_rows_in_random_order(generator_case):
    make, _, n_classes = generator_case
    _, y = make(300, 0)
    assert np.unique(y[:40]).size == n_classes


# ---- The law of each -------------------------------------------------------------------------------------------------


def assert_moments(X, mean, covariance, n_errors=5.0):
    """Sample mean and covariance within so many standard errors, those of X's own fourth moments."""
    covariance = np.atleast_2d(covariance)
    N = len(X)
    assert (abs(X.mean(0) - mean) <= n_errors * np.sqrt(np.diag(covariance) / N)).all()
    centred = X - mean
    products = centred[:, :, None] * centred[:, None, :]  # (N, D, D)
    error = products.std(0) / np.sqrt(N)
    assert (abs(products.mean(0) - covariance) <= n_errors * error).all()


def mixture_moments(means, variance):
    """Mean and covariance of an equal mixture of round Gaussians."""
    means = np.asarray(means, dtype=float)
    return means.mean(0), np.cov(means.T, bias=True) + variance * np.eye(means.shape[1])


def error_of_bayes_rule(X, y, means, scale):
    """Share of rows that the true densities, equal mixtures of round Gaussians per class, put into another class."""
    squared = ((X[:, None, None, :] - means) ** 2).sum(-1)  # (N, C, components)
    return np.mean(logsumexp(-squared / (2 * scale**2), axis=-1).argmax(1) != y)


def best_possible_error(means, scale, step=0.01):
    """Integral of the smaller of two class densities on a fine grid, for two equally likely classes."""
    grid = np.arange(-3, 3, step)
    points = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    squared = ((points[:, None, None, :] - means) ** 2).sum(-1)  # (points, 2, components)
    densities = np.exp(-squared / (2 * scale**2)).mean(-1) / (2 * np.pi * scale**2)
    return densities.min(1).sum() * step**2 / 2


def binomial_error(share, y):
    return np.sqrt(share * (1 - share) / y.size)


RIPLEY_MEANS = np.array([[(-0.7, 0.3), (0.3, 0.3)], [(-0.3, 0.7), (0.4, 0.7)]])


def test_ripley_has_the_published_moments_and_bayes_error():
    X, y = datasets.make_ripley(20_000, random_state=1)
    np.testing.assert_array_equal(np.bincount(y), [20_000, 20_000])
    for label, means in enumerate(RIPLEY_MEANS):
        assert_moments(X[y == label], *mixture_moments(means, 0.03))
    best = best_possible_error(RIPLEY_MEANS, np.sqrt(0.03))
    assert best == pytest.approx(0.0893, abs=5e-5)
    assert error_of_bayes_rule(X, y, RIPLEY_MEANS, np.sqrt(0.03)) == pytest.approx(
        best, abs=5 * binomial_error(best, y)
    )


def test_ripley_has_two_round_components_in_each_class():
    X, y = datasets.make_ripley(20_000, random_state=2)
    left = X[(y == 0) & (X[:, 0] < -0.2)]  # the components of class 0 are 5.8 standard deviations apart
    assert len(left) == pytest.approx(10_000, abs=5 * np.sqrt(5_000))
    np.testing.assert_allclose(left.mean(0), [-0.7, 0.3], atol=0.01)
    np.testing.assert_allclose(np.cov(left.T), 0.03 * np.eye(2), atol=0.002)


def triangle(peak):
    return [max(6 - abs(attribute - peak), 0) for attribute in range(1, 22)]


def test_waveform_classes_have_their_mean_and_covariance():
    X, y = datasets.make_waveform(30_000, n_noise=19, random_state=1)
    assert (abs(np.bincount(y) - 10_000) < 5 * np.sqrt(30_000 * 2 / 9)).all()
    for label, peaks in enumerate([(11, 15), (11, 7), (15, 7)]):
        first, second = np.array([triangle(peak) for peak in peaks])
        mean, covariance = np.zeros(40), np.eye(40)
        mean[:21] = (first + second) / 2
        covariance[:21, :21] += np.outer(first - second, first - second) / 12  # the variance of a uniform
        assert_moments(X[y == label], mean, covariance, n_errors=6.0)


def test_waveform_is_as_hard_as_published():
    X, y = datasets.make_waveform(10_000, random_state=0)
    u = (np.arange(50)[:, None] + 0.5) / 50
    scores = []
    for peaks in [(11, 15), (11, 7), (15, 7)]:
        first, second = np.array([triangle(peak) for peak in peaks])
        points = u * first + (1 - u) * second  # (50, 21), the class integrated over u
        squared = (X**2).sum(1)[:, None] - 2 * X @ points.T + (points**2).sum(1)
        scores.append(logsumexp(-squared / 2, axis=1))
    error = np.mean(np.argmax(scores, axis=0) != y)
    assert error == pytest.approx(0.14, abs=0.005 + 5 * binomial_error(0.14, y))  # "about 14 %", Breiman et al. (1984)


def test_checkerboard_has_equal_components_in_the_colours_of_a_board():
    X, y = datasets.make_checkerboard(2_000, scale=0.02, random_state=0)
    column, row = np.floor((X + 1) * 2).astype(int).T  # a scale of 0.02 keeps the rows inside their cells
    np.testing.assert_array_equal((column + row) % 2, y)
    np.testing.assert_array_equal(np.bincount(4 * column + row), np.full(16, 2_000))
    corner = X[(column == 0) & (row == 3)]
    assert_moments(corner, [-0.75, 0.75], 0.02**2 * np.eye(2))


def test_checkerboard_defaults_are_the_training_set_of_the_paper():
    assert datasets.make_checkerboard(random_state=0)[0].shape == (320, 2)
    centres = np.array([-0.75, -0.25, 0.25, 0.75])
    big, labels = datasets.make_checkerboard(4_000, random_state=0)
    np.testing.assert_array_equal(np.bincount(labels), [32_000, 32_000])
    assert_moments(big, [0, 0], (np.mean(centres**2) + 0.125**2) * np.eye(2))


def test_checkerboard_of_odd_size_has_one_cell_more_of_the_first_colour():
    _, y = datasets.make_checkerboard(10, n_cells=3, random_state=0)
    np.testing.assert_array_equal(np.bincount(y), [50, 40])


def ring_means(radii, n_blobs):
    n_classes = len(radii)
    return np.array(
        [
            [
                (
                    radius * np.cos(2 * np.pi * (blob * n_classes + label) / (n_blobs * n_classes)),
                    radius * np.sin(2 * np.pi * (blob * n_classes + label) / (n_blobs * n_classes)),
                )
                for blob in range(n_blobs)
            ]
            for label, radius in enumerate(radii)
        ]
    )


def test_rings_are_as_hard_as_they_say():
    X, y = datasets.make_rings(20_000, random_state=0)
    best = best_possible_error(ring_means([1, 1], 4), 0.25)
    assert best == pytest.approx(0.13, abs=0.005)
    assert error_of_bayes_rule(X, y, ring_means([1, 1], 4), 0.25) == pytest.approx(
        best, abs=5 * binomial_error(best, y)
    )


def test_rings_put_each_class_on_its_circle():
    X, y = datasets.make_rings(20_000, n_classes=3, n_blobs=5, radii=(1, 2, 3), scale=0.1, random_state=0)
    for label, means in enumerate(ring_means([1, 2, 3], 5)):
        assert_moments(X[y == label], *mixture_moments(means, 0.01))
        nearest = ((X[y == label][:, None] - means) ** 2).sum(-1).argmin(1)
        assert (abs(np.bincount(nearest) - 4_000) < 5 * np.sqrt(20_000 * 4 / 25)).all()


def test_one_radius_serves_all_classes():
    same = datasets.make_rings(10, n_classes=3, radii=2.0, random_state=0)
    np.testing.assert_array_equal(same[0], datasets.make_rings(10, n_classes=3, radii=(2, 2, 2), random_state=0)[0])


@pytest.mark.parametrize(("n_features", "elongation"), [(2, 10.0), (3, 4.0), (5, 1.0)])
def test_anisotropic_clusters_have_the_requested_scales(n_features, elongation):
    X, y = datasets.make_anisotropic(
        20_000, n_classes=3, n_clusters=1, n_features=n_features, elongation=elongation, random_state=0
    )
    wanted = np.geomspace(1, elongation, n_features)[::-1] / elongation
    axes = []
    for label in range(3):
        variances, vectors = np.linalg.eigh(np.cov(X[y == label].T))
        np.testing.assert_allclose(np.sqrt(variances[::-1]), wanted, rtol=0.05)
        axes.append(vectors[:, -1])
    if elongation > 1:
        assert abs(axes[0] @ axes[1]) < 0.999  # turned differently


def test_anisotropic_means_have_the_requested_spread():
    X, y = datasets.make_anisotropic(40, n_classes=400, n_clusters=1, spread=50.0, random_state=0)
    means = np.array([X[y == label].mean(0) for label in range(400)])
    assert means.std() == pytest.approx(50.0, rel=5 / np.sqrt(2 * means.size))


def test_anisotropic_classes_have_several_clusters():
    X, _ = datasets.make_anisotropic(500, n_classes=1, n_clusters=3, spread=1_000.0, random_state=0)
    squared = ((X[:, None] - X[None, :]) ** 2).sum(-1)
    assert np.unique(squared < 100, axis=0).shape[0] == 3  # far apart, so the neighbours of a row are its cluster


# ---- Removing cells --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.3, 0.617, 1.0])
def test_remove_values_removes_the_exact_fraction_and_nothing_else(fraction):
    X = np.random.default_rng(0).normal(size=(37, 11))
    kept = X.copy()
    removed = datasets.remove_values(X, fraction, random_state=0)
    assert np.isnan(removed).sum() == round(fraction * 37 * 11)
    np.testing.assert_array_equal(X, kept)
    np.testing.assert_array_equal(removed[~np.isnan(removed)], X[~np.isnan(removed)])
    assert not np.shares_memory(X, removed)


def test_remove_values_treats_all_values_alike():
    removed = np.isnan(datasets.remove_values(np.zeros((400, 50)), 0.3, random_state=0))
    assert (abs(removed.mean(0) - 0.3) < 5 * np.sqrt(0.21 / 400)).all()
    assert (abs(removed.mean(1) - 0.3) < 5 * np.sqrt(0.21 / 50)).all()


def test_remove_values_repeats_under_one_random_state():
    X = np.arange(60.0).reshape(12, 5)
    first, second, third = (datasets.remove_values(X, 0.4, random_state=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(np.isnan(first), np.isnan(third))


@pytest.mark.parametrize(
    ("dtype", "expected"), [("float32", "float32"), ("float64", "float64"), ("uint8", "float64"), ("bool", "float64")]
)
def test_remove_values_keeps_float_types(dtype, expected):
    assert datasets.remove_values(np.ones((4, 3), dtype=dtype), 0.5, random_state=0).dtype == expected


def test_remove_values_reaches_every_value_of_a_transposed_array():
    X = np.asfortranarray(np.ones((6, 4)))
    assert np.isnan(datasets.remove_values(X.T, 0.5, random_state=0)).sum() == 12


# ---- Mistakes --------------------------------------------------------------------------------------------------------

MISTAKES = [
    (
        lambda: datasets.make_ripley(0),
        "n_per_class must be an integer of at least 1; got 0. Pass n_per_class=1 or more.",
    ),
    (
        lambda: datasets.make_ripley(2.5),
        "n_per_class must be an integer of at least 1; got 2.5. Pass n_per_class=1 or more.",
    ),
    (
        lambda: datasets.make_ripley(True),
        "n_per_class must be an integer of at least 1; got True. Pass n_per_class=1 or more.",
    ),
    (
        lambda: datasets.make_ripley(random_state="x"),
        "random_state must be None, a non-negative integer, a numpy Generator or a numpy RandomState; "
        "got 'x'. Pass an integer such as 0 for reproducible samples.",
    ),
    (
        lambda: datasets.make_ripley(random_state=-1),
        "random_state must be None, a non-negative integer, a numpy Generator or a numpy RandomState; "
        "got -1. Pass an integer such as 0 for reproducible samples.",
    ),
    (
        lambda: datasets.make_waveform(-3),
        "n_rows must be an integer of at least 1; got -3. Pass n_rows=1 or more.",
    ),
    (
        lambda: datasets.make_waveform(3, n_noise=-1),
        "n_noise must be an integer of at least 0; got -1. Pass n_noise=0 or more.",
    ),
    (
        lambda: datasets.make_checkerboard(0),
        "n_per_component must be an integer of at least 1; got 0. Pass n_per_component=1 or more.",
    ),
    (
        lambda: datasets.make_checkerboard(n_cells=1),
        "n_cells must be an integer of at least 2; got 1. Pass n_cells=2 or more.",
    ),
    (
        lambda: datasets.make_checkerboard(scale=0),
        "scale must be a finite number above 0; got 0. Pass scale=1.0, for example.",
    ),
    (
        lambda: datasets.make_rings(n_classes=0),
        "n_classes must be an integer of at least 1; got 0. Pass n_classes=1 or more.",
    ),
    (
        lambda: datasets.make_rings(n_blobs="4"),
        "n_blobs must be an integer of at least 1; got '4'. Pass n_blobs=1 or more.",
    ),
    (
        lambda: datasets.make_rings(scale=float("nan")),
        "scale must be a finite number above 0; got nan. Pass scale=1.0, for example.",
    ),
    (
        lambda: datasets.make_rings(radii=(1, -2)),
        "radii must be a finite number above 0; got -2. Pass radii=1.0, for example.",
    ),
    (
        lambda: datasets.make_rings(n_classes=3, radii=(1, 2)),
        "radii must be one number or one per class; got 2 for n_classes=3. Pass one radius, or 3.",
    ),
    (
        lambda: datasets.make_anisotropic(n_clusters=0),
        "n_clusters must be an integer of at least 1; got 0. Pass n_clusters=1 or more.",
    ),
    (
        lambda: datasets.make_anisotropic(n_features=1),
        "n_features must be an integer of at least 2; got 1. Pass n_features=2 or more.",
    ),
    (
        lambda: datasets.make_anisotropic(elongation=0.5),
        "elongation must be a finite number of at least 1; got 0.5. Pass elongation=1.0, for example.",
    ),
    (
        lambda: datasets.make_anisotropic(spread="wide"),
        "spread must be a finite number above 0; got 'wide'. Pass spread=1.0, for example.",
    ),
    (
        lambda: datasets.remove_values(np.zeros((2, 2)), 30),
        "fraction must be a number from 0 to 1; got 30. Pass 0.3 to remove 30 % of the values.",
    ),
    (
        lambda: datasets.remove_values(np.zeros((2, 2)), float("nan")),
        "fraction must be a number from 0 to 1; got nan. Pass 0.3 to remove 30 % of the values.",
    ),
    (
        lambda: datasets.remove_values(np.array([["a", "b"]]), 0.5),
        "X must hold numbers, since missing values are NaN; got dtype <U1. Encode categories as numbers first.",
    ),
]


@pytest.mark.parametrize(("mistake", "message"), MISTAKES, ids=[message[:40] for _, message in MISTAKES])
def test_a_mistake_is_named_with_its_value_and_its_cure(mistake, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        mistake()


@pytest.mark.parametrize(
    ("name", "place"),
    [("load_usps", 'reproduce.data.load("usps")'), ("load_ratsch", 'reproduce.data.load("ratsch_banana")')],
)
def test_a_name_that_has_left_says_where_it_is(name, place):
    moved = getattr(datasets, name)
    message = f"`mixtura.datasets.{name}` has left the package; got a call of it. Use {place} of a source checkout."
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        moved(download=True)


def test_a_name_that_never_was_is_missing_as_everywhere():
    with pytest.raises(AttributeError, match=r"^module 'mixtura\.datasets' has no attribute 'load_iris'$"):
        datasets.load_iris  # noqa: B018


def test_penguins_have_categories_and_missing_values():
    pytest.importorskip("pandas")
    X, y = datasets.load_penguins()
    assert X.shape == (344, 7)
    assert y.value_counts().to_dict() == {"Adelie": 152, "Gentoo": 124, "Chinstrap": 68}
    assert X.dtypes[["island", "sex"]].eq("category").all()
    assert X.isna().sum().to_dict()["sex"] == 11
    assert X.isna().to_numpy().sum() == 19


def test_penguins_without_pandas_say_what_they_need(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    text = "`load_penguins` returns a pandas data frame; install pandas with: pip install 'mixtura[cli]'"
    with pytest.raises(ModuleNotFoundError, match=re.escape(text)):
        datasets.load_penguins()
