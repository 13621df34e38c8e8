"""Feature transforms: their curves, their fit, and models of transformed features."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.metrics import log_loss

import mixtura
import reference
from cases import assert_close, tensor
from mixtura import AveragedMixtureClassifier, MixtureClassifier
from mixtura.datasets import make_rings
from mixtura.engine.sources import TensorSource
from mixtura.init.description import describe
from mixtura.init.transform_fits import fit_warp
from mixtura.model.transforms import Warp
from test_bad_input import refused

pytestmark = pytest.mark.usefixtures("one_thread")


def skewed(n_rows, seed):
    """Two classes that are Gaussian in the logarithm of the first feature and in the second."""
    rng = np.random.default_rng(seed)
    y = np.arange(n_rows) % 2
    X = rng.normal(size=(n_rows, 2)) + y[:, None] * [1.2, 0.8]
    return np.stack((np.exp(X[:, 0]), X[:, 1]), 1), y


def warp_of(X, y, weights=None) -> Warp:
    known = None if weights is None else torch.from_numpy(np.asarray(weights, float))
    source = TensorSource(torch.from_numpy(X), torch.from_numpy(y), weights=known)
    return fit_warp(describe(source, int(y.max()) + 1, torch.Generator().manual_seed(0)))


@pytest.fixture(scope="module")
def rows():
    return skewed(160, 0)


@pytest.fixture(scope="module")
def model(rows):
    return MixtureClassifier(1, warp="johnson", random_state=0).fit(*rows)


# ---- the curves --------------------------------------------------------------------------------------------------


def some_warp(device) -> Warp:
    return Warp([1.0, -2.0, 5.0], [0.3, 4.0, math.inf]).to(device)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_backward_undoes_forward(dtype, rng, device):
    values = tensor(rng.normal(size=(50, 3)) * 10, device).to(dtype)
    values[::7, 1] = torch.nan
    warp = some_warp(device)
    there = warp.forward(values)
    assert there.dtype == dtype
    torch.testing.assert_close(warp.backward(there), values, equal_nan=True, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(there[:, 2], values[:, 2])
    first = [1 + 0.3 * math.asinh((x - 1) / 0.3) for x in values[:, 0].tolist()]
    torch.testing.assert_close(there[:, 0].double(), tensor(first, device), rtol=1e-5, atol=1e-5)


def test_slopes_are_the_derivative(rng, device):
    values = tensor(rng.normal(size=(20, 3)) * 10, device).requires_grad_()
    warp = some_warp(device)
    (slopes,) = torch.autograd.grad(warp.forward(values).sum(), values)
    assert_close(warp.log_slopes(values.detach()), slopes.log().sum(1))
    missing = values.detach().clone()
    missing[:, 0] = torch.nan  # integrated out: nothing is left of its slope
    assert_close(warp.log_slopes(missing), slopes[:, 1:].log().sum(1))


def test_the_likelihood_equals_the_twin_and_is_nowhere_higher():
    X, y = skewed(80, 1)
    X[:, 0] = np.sinh(1 + np.log(X[:, 0]))
    warp = warp_of(X, y)
    assert warp.transformed.tolist() == [True, False]
    assert warp.n_parameters == 2
    actual = reference.warp_log_likelihood(X[:, 0], y.tolist(), float(warp.locations[0]), float(warp.scales[0]))
    start = np.array([float(warp.locations[0]), math.log(float(warp.scales[0]))])
    best = minimize(
        lambda p: -reference.warp_log_likelihood(X[:, 0], y.tolist(), p[0], math.exp(p[1])), start, method="Nelder-Mead"
    )
    assert actual > -best.fun - 0.05
    plain = -len(X) / 2 * math.log(np.mean([X[y == c, 0].var() for c in (0, 1)]))
    assert actual - plain > math.log(len(X))


def test_heavy_tails_are_transformed_and_gaussians_are_not():
    rng = np.random.default_rng(0)
    y = np.arange(400) % 2
    X = np.stack((rng.normal(size=400), rng.standard_t(2, 400), -np.exp(rng.normal(size=400)), np.ones(400)), 1)
    assert warp_of(X, y).transformed.tolist() == [False, True, True, False]


def test_few_different_values_stay_as_they_are():
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    X = np.stack((rng.integers(0, 2, 200), np.where(y == 0, 0.1, 0.3), 5.0 ** rng.integers(0, 4, 200)), 1).astype(float)
    assert warp_of(X, y).transformed.tolist() == [False, False, False]
    assert warp_of(np.stack((X[:, 0], 5.0 ** rng.integers(0, 6, 200)), 1), y).transformed.tolist() == [False, True]


def test_a_value_that_many_rows_share_is_no_peak():
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    X = np.where(rng.uniform(size=(200, 1)) < 0.6, 0.0, rng.exponential(size=(200, 1)))
    warp = warp_of(X, y)
    assert float(warp.scales[0]) > 0.05


def test_weights_are_repeated_rows():
    X, y = skewed(60, 2)
    times = np.random.default_rng(0).integers(0, 3, 60)
    weighted, repeated = warp_of(X, y, times), warp_of(np.repeat(X, times, 0), np.repeat(y, times))
    assert_close(weighted.locations, repeated.locations)
    assert_close(weighted.scales[0], repeated.scales[0])


# ---- models ------------------------------------------------------------------------------------------------------


def test_logarithms_are_found(rows, model):
    """Nearly as good as a model of the logarithms, and better than one without transforms."""
    X, y = rows
    new, labels = skewed(2000, 3)
    told = MixtureClassifier(1, random_state=0).fit(np.stack((np.log(X[:, 0]), X[:, 1]), 1), y)
    best = log_loss(labels, told.predict_proba(np.stack((np.log(new[:, 0]), new[:, 1]), 1)))
    plain = log_loss(labels, MixtureClassifier(1, random_state=0).fit(X, y).predict_proba(new))
    actual = log_loss(labels, model.predict_proba(new))
    assert actual < best + 0.01 < plain
    density = told.score_samples(np.stack((np.log(new[:, 0]), new[:, 1]), 1)) - np.log(new[:, 0])
    assert abs(model.score_samples(new).mean() - density.mean()) < 0.1


def test_the_density_is_one_of_the_rows():
    X, y = skewed(100, 4)
    model = MixtureClassifier(2, warp="johnson", random_state=0).fit(X[:, :1], y)
    grid = np.sinh(np.linspace(-9, 9, 20001))[:, None]
    assert_close(np.trapezoid(np.exp(model.score_samples(grid)), grid[:, 0]), 1.0, 1e-4)
    assert_close(logsumexp(model.predict_joint_log_proba(grid), axis=1), model.score_samples(grid))


def test_units_do_not_matter(rows, model):
    X, y = rows
    other = MixtureClassifier(1, warp="johnson", random_state=0).fit(X * [1e6, 1e-3] + [1e4, -5.0], y)
    assert_close(other.predict_proba(X * [1e6, 1e-3] + [1e4, -5.0]), model.predict_proba(X), 1e-6)


def test_sampling_and_imputing_give_rows(rows, model):
    X, _ = rows
    drawn, labels = model.sample(4000)
    for c in (0, 1):
        assert_close(np.median(drawn[labels == c, 0]), math.exp(1.2 * c), 0.4)
    holes = X.copy()
    holes[::3, 0] = np.nan
    filled = model.impute(holes)
    observed = ~np.isnan(holes)
    np.testing.assert_array_equal(filled[observed], X[observed])
    assert (np.abs(filled[::3, 0] - np.exp(0.6)) < 3).all()
    # A row without its first cell has the density of the second alone.
    alone = model.score_samples(holes[::3])
    fitted = model.mixture_
    means, scales = fitted.means[:, 1], fitted.covariances[:, 1, 1].sqrt()
    expected = fitted.log_weights + torch.distributions.Normal(means, scales).log_prob(tensor(X[::3, 1:], "cpu"))
    assert_close(alone, expected.logsumexp(1))


def test_auto_transforms_if_predictions_improve(rows):
    X, y = rows
    chosen = MixtureClassifier(covariance_type="full", random_state=0).fit(X, y)
    assert chosen.warp_.transformed.tolist() == [True, False]
    plain = MixtureClassifier(covariance_type="full", warp=None, random_state=0).fit(X, y)
    assert chosen.search_.best.score < plain.search_.best.score
    straight = MixtureClassifier(covariance_type="full", random_state=0).fit(*make_rings(60, random_state=0))
    assert straight.warp_ is None


def loaded(model, folder):
    model.save(folder / "model")
    return mixtura.load(folder / "model")


def test_averages_transform_once(rows, tmp_path):
    X, y = rows
    base = MixtureClassifier(2, warp="johnson")
    averaged = AveragedMixtureClassifier(base, 3, combine="density", random_state=0).fit(X, y)
    assert averaged.warp_.transformed.tolist() == [True, False]
    assert averaged.oob_score_ > 0.65
    for other in (averaged.to_mixture(), loaded(averaged, tmp_path)):
        assert_close(other.predict_joint_log_proba(X), averaged.predict_joint_log_proba(X))
    assert averaged.reduce(1).score(X, y) > 0.65


def test_every_way_in_gives_the_same(rows, model, tmp_path):
    X, y = rows
    mapped = np.memmap(tmp_path / "rows", dtype=float, mode="w+", shape=X.shape)
    mapped[:] = X
    batches = [(X[i : i + 40], y[i : i + 40]) for i in range(0, len(X), 40)]
    joint = model.predict_joint_log_proba(X)
    for given in ((torch.from_numpy(X), y), (mapped, y), (batches, None)):
        other = MixtureClassifier(1, warp="johnson", random_state=0).fit(*given)
        assert_close(other.predict_joint_log_proba(X), joint)
        assert_close(other.predict_joint_log_proba(mapped), joint)
    single = MixtureClassifier(1, warp="johnson", random_state=0).fit(X.astype(np.float32), y)
    assert_close(single.predict_joint_log_proba(X.astype(np.float32)), joint, 1e-3)
    assert_close(loaded(model, tmp_path).predict_joint_log_proba(X), joint)
    given = MixtureClassifier(1, warp=model.warp_, random_state=0).fit(X, y)
    assert_close(given.predict_joint_log_proba(X), joint)
    going_on = MixtureClassifier(1, warp="johnson", warm_start=True, random_state=0).fit(X, y)
    first = going_on.warp_.scales
    assert_close(going_on.fit(X[:100], y[:100]).warp_.scales[0], first[0])


DEGENERATE = {
    "few rows": lambda X, y: (np.exp(X[:6] @ np.ones((2, 20))), y[:6]),
    "huge": lambda X, y: (X * 1e100, y),
    "missing column": lambda X, y: (np.where([True, False], X, np.nan), y),
    "mostly missing": lambda X, y: (np.where(np.random.default_rng(0).uniform(size=X.shape) < 0.7, np.nan, X), y),
    "duplicated": lambda X, y: (np.repeat(X[:4], 20, 0), np.repeat(y[:4], 20)),
}


@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.filterwarnings("ignore:X has no observed value in columns")
def test_degenerate_rows(name, rows):
    X, y = DEGENERATE[name](*rows)
    model = MixtureClassifier(1, warp="johnson", random_state=0).fit(X, y)
    assert np.isfinite(model.predict_proba(X)).all()
    assert np.isfinite(model.score_samples(X)).all()
    assert np.isfinite(model.sample(20)[0]).all()


def test_components_are_drawn_where_their_rows_are(rows, model):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    from mixtura.plotting import plot_classifier

    ax = plot_classifier(model, *rows)
    (outline, *_) = ax.patches
    across = np.log(outline.get_xy()[:, 0].clip(1e-9))
    middle = np.log(np.median(rows[0][rows[1] == 0, 0]))
    assert across.min() < middle < across.max()
    pyplot.close("all")


def test_mistakes(rows):
    X, y = rows
    refused(
        lambda: MixtureClassifier(1, warp="log").fit(X, y),
        "warp must be one of 'johnson', 'auto', None or a Warp; got 'log'.",
    )
    refused(
        lambda: MixtureClassifier(1, warp=Warp([0.0], [1.0])).fit(X, y),
        "warp has 1 features, but X has 2. Pass one location and scale for each.",
    )
    refused(
        lambda: Warp([0.0, 1.0], [1.0]),
        "locations and scales must have one number per feature each; got shapes (2,) and (1,).",
    )
    refused(lambda: Warp([math.inf], [1.0]), "locations must be finite; got [inf].")
    refused(
        lambda: Warp([0.0], [0.0]),
        "scales must be above 0 (infinite for features that are not transformed); got [0.0].",
    )
