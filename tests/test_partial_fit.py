"""Batches that are seen once: the recursion against its twin, convergence, streams that move, and refusals."""

import warnings

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import mixtura
from mixtura import GaussianMixture, MixtureClassifier
from mixtura.datasets import make_ripley, remove_values
from mixtura.estimators.labels import ClassNumbers, read_integers, read_labels, unlabeled_integers
from mixtura.solvers.em import DECAY


def clusters(rng, n_rows, shift=0.0):
    means = np.array([[-3.0, 0], [3, 0], [0, 4]]) + shift
    return means[rng.integers(3, size=n_rows)] + rng.normal(size=(n_rows, 2)) * [1.0, 0.5]


def responsibilities(model, rows):
    parts = zip(model.weights_, model.means_, model.covariances_, strict=True)
    scores = np.stack([np.log(w) + multivariate_normal(m, c).logpdf(rows) for w, m, c in parts], 1)
    return np.exp(scores - logsumexp(scores, axis=1, keepdims=True))


def twin_sums(shares, weights, rows):
    """Counts, sums and sums of products, about zero."""
    shares = shares * weights[:, None]
    return [shares.sum(0), shares.T @ rows, np.einsum("nk,ni,nj->kij", shares, rows, rows)]


def twin_update(sums, reg_covar):
    counts, firsts, seconds = sums
    means = firsts / counts[:, None]
    covariances = seconds / counts[:, None, None] - means[:, :, None] * means[:, None, :]
    return counts / counts.sum(), means, covariances + reg_covar * np.eye(means.shape[1])


@pytest.mark.parametrize("step", ["decaying", 0.3])
def test_steps_equal_the_twin(step, rng):
    """(stepwise-em): S <- (1 - gamma) S + s, then the M-step."""
    batches = [clusters(rng, n_rows) for n_rows in (60, 40, 80)]
    weights = [rng.uniform(0.5, 2, len(batch)) for batch in batches]
    model = GaussianMixture(3, random_state=0).partial_fit(batches[0], sample_weight=weights[0], step=step)
    sums = twin_sums(responsibilities(model, batches[0]), weights[0], batches[0])
    for number, (batch, own) in enumerate(zip(batches[1:], weights[1:], strict=True)):
        gamma = (number + 2) ** -DECAY if step == "decaying" else step
        added = twin_sums(responsibilities(model, batch), own, batch)
        sums = [(1 - gamma) * before + now for before, now in zip(sums, added, strict=True)]
        model.partial_fit(batch, sample_weight=own, step=step)
        for actual, expected in zip(
            (model.weights_, model.means_, model.covariances_), twin_update(sums, model.reg_covar), strict=True
        ):
            np.testing.assert_allclose(actual, expected, rtol=1e-9)


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_one_pass_comes_close_to_many(covariance_type, rng):
    rows, held_out = clusters(rng, 20_000), clusters(rng, 5_000)
    options = {"covariance_type": covariance_type, "random_state": 0}
    online = GaussianMixture(3, **options)
    for batch in np.split(rows, 40):
        online.partial_fit(batch)
    assert online.score(held_out) > GaussianMixture(3, **options).fit(rows).score(held_out) - 0.01
    assert online.running_.n_steps == 40


def test_the_first_batch_is_fitted_from_several_initialisations(rng):
    """A stream cannot go back to it."""
    rows = clusters(rng, 300)
    online = GaussianMixture(6, init_params="random", random_state=0).partial_fit(rows)
    best = GaussianMixture(6, init_params="random", n_init=4, random_state=0).fit(rows)
    single = GaussianMixture(6, init_params="random", random_state=0).fit(rows)
    assert np.array_equal(online.means_, best.means_)
    assert online.lower_bound_ > single.lower_bound_ + 0.01
    assert online.n_init == 1


def test_a_constant_step_follows_clusters_that_move(rng):
    steady, following = GaussianMixture(3, random_state=0), GaussianMixture(3, random_state=0)
    shifts = np.linspace(0, 10, 100)
    for shift in shifts:
        batch = clusters(rng, 200, shift)
        steady.partial_fit(batch)
        following.partial_fit(batch, step=0.4)
    now = clusters(rng, 2000, shifts[-1])
    best = GaussianMixture(3, random_state=0).fit(now).score(now)
    assert following.score(now) > best - 0.1
    assert following.score(now) > steady.score(now) + 0.5


# ---- classifiers ---------------------------------------------------------------------------------------------------


def streamed(model, X, y, n_batches=10, **options):
    for number, index in enumerate(np.array_split(np.arange(len(y)), n_batches)):
        extra = {name: values[index] for name, values in options.items()}
        model.partial_fit(X[index], y[index], classes=np.unique(y[y != -1]) if number == 0 else None, **extra)
    return model


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_a_classifier_comes_close_to_its_fit(missing):
    X, y = make_ripley(1000, random_state=0)
    X = remove_values(X, missing, random_state=0)
    test_rows, test_labels = make_ripley(500, random_state=1)
    model = streamed(MixtureClassifier(2, random_state=0), X, y, sample_weight=np.linspace(0.5, 1.5, len(y)))
    whole = MixtureClassifier(2, random_state=0).fit(X, y)
    assert model.score(test_rows, test_labels) > whole.score(test_rows, test_labels) - 0.01
    assert np.allclose(model.class_prior_.sum(), 1)
    assert model.n_iter_ == len(model.history_)


def test_unlabeled_samples_and_transforms():
    X, y = make_ripley(1000, random_state=0)
    some = np.where(np.arange(len(y)) % 4, y, -1)
    model = streamed(MixtureClassifier(2, unlabeled=-1, warp="johnson", random_state=0), np.exp(X), some)
    assert model.score(np.exp(X), y) > 0.85
    assert model.warp_ is not None


def test_a_class_may_come_later():
    """It starts from all samples, with a trace of their weight."""
    X, y = make_ripley(600, random_state=0)
    order = np.argsort(y, kind="stable")[: 600 + 500]
    first, later = order[:600], order[600:]
    model = MixtureClassifier(2, random_state=0).partial_fit(X[first], y[first], classes=[0, 1])
    assert model.class_prior_[1] < 1e-5
    for part in np.array_split(later, 5):
        model.partial_fit(X[part], y[part])
    assert model.score(X, y) > 0.85


def test_class_weights_as_a_dict_and_a_fixed_class_prior(rng):
    X, y = make_ripley(500, random_state=0)
    heavy = streamed(MixtureClassifier(1, random_state=0, class_weight={0: 3.0}), X, y)
    assert np.isclose(heavy.class_prior_[0], 0.75, atol=0.02)
    fixed = streamed(MixtureClassifier(1, random_state=0, class_prior=[0.3, 0.7]), X, y)
    assert np.allclose(fixed.class_prior_, [0.3, 0.7])


def test_the_first_batch_decides_what_is_automatic():
    X, y = make_ripley(400, random_state=0)
    model = streamed(MixtureClassifier(random_state=0), X, y, 2)
    assert model.search_ is not None
    assert model.running_.n_steps == 2
    assert model.score(X, y) > 0.85


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
@pytest.mark.parametrize("unlabeled", [None, 3, np.nan, 7.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_integers_are_numbered_on_a_gpu_as_on_the_host(dtype, unlabeled, weighted):
    """The functions that number labels on a GPU, on tensors of the host."""
    y = (torch.arange(50) % 4 * 2 + 1).to(dtype)  # 1, 3, 5, 7
    weights = torch.arange(50).double() % 3 if weighted else None
    actual = read_integers(y, 50, weights, "Model", unlabeled)
    expected = read_labels(y.numpy(), 50, weights, "Model", unlabeled, True)
    assert np.array_equal(actual.classes, expected.classes)
    assert torch.equal(actual.numbers, expected.numbers)
    free = unlabeled_integers(y, unlabeled)
    assert torch.equal(free, expected.unlabeled) or weighted
    with pytest.raises(ValueError, match=r"y holds 5, which is not a class .* \[1, 3, 7, 300\]"):
        ClassNumbers(np.array([1, 3, 7, 300])).number_integers(y, free)


# ---- life of a model -----------------------------------------------------------------------------------------------


def test_a_saved_model_goes_on_where_it_was(tmp_path):
    X, y = make_ripley(300, random_state=0)
    model = streamed(MixtureClassifier(2, random_state=0), X, y, 3)
    model.save(tmp_path / "model")
    loaded = mixtura.load(tmp_path / "model")
    for other in (model, loaded):
        other.partial_fit(X[:100], y[:100])
    assert np.array_equal(loaded.mixture_.means, model.mixture_.means)
    assert loaded.running_.n_steps == 4


def test_a_fit_starts_again_and_a_warm_start_continues(rng):
    rows = clusters(rng, 2000)
    model = GaussianMixture(3, random_state=0).partial_fit(rows[:500]).partial_fit(rows[500:])
    model.fit(rows)
    assert model.running_ is None
    before = model.score(rows)
    for batch in np.split(rows, 10):
        model.partial_fit(batch)
    assert model.score(rows) > before - 0.02
    X, y = make_ripley(300, random_state=0)
    classifier = MixtureClassifier(2, random_state=0).fit(X, y)
    accuracy = classifier.score(X, y)
    assert classifier.partial_fit(X, y).score(X, y) > accuracy - 0.02


def test_batches_of_one_sample_and_of_weight_zero(rng):
    model = GaussianMixture(2, prior="default", random_state=0).partial_fit(clusters(rng, 200))
    before = model.means_
    model.partial_fit(clusters(rng, 3), sample_weight=[0.0, 0.0, 0.0])
    assert np.array_equal(model.means_, before)
    for row in clusters(rng, 20):
        model.partial_fit(row[None])
    assert np.isfinite(model.means_).all()


def test_no_warning_of_few_iterations_at_the_first_batch(rng):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model = GaussianMixture(3, max_iter=1, random_state=0).partial_fit(clusters(rng, 100))
    with pytest.warns(ConvergenceWarning):  # as a fit would
        clone(model).fit(clusters(rng, 100))


# ---- refusals ------------------------------------------------------------------------------------------------------


def refused(call, text, kind=ValueError):
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value)


def test_refusals():
    X, y = make_ripley(50, random_state=0)
    new = MixtureClassifier(1, random_state=0)
    refused(lambda: new.partial_fit(X, y), "classes must be passed on the first call to partial_fit.")
    refused(lambda: new.partial_fit(X, y, classes=[1]), "classes must name at least two classes; got [1].")
    refused(
        lambda: new.partial_fit(X, y, classes=[0, 2]),
        "y holds 1, which is not a class of the model",
    )
    model = MixtureClassifier(1, random_state=0).partial_fit(X, y, classes=[0, 1])
    refused(
        lambda: model.partial_fit(X, y + 1),
        "y holds 2, which is not a class of the model",
    )
    refused(lambda: model.partial_fit(X, y, classes=[0, 1, 2]), "classes=[0, 1, 2] is not the same as on the first")
    refused(lambda: model.partial_fit(X[:, :1], y), "X has 1 features, but MixtureClassifier is expecting 2 features")
    refused(lambda: model.partial_fit(X, y, step=1.5), 'step must be "decaying" or a number between 0 and 1; got 1.5.')
    refused(lambda: model.partial_fit(X, np.eye(2)[y]), "y of partial_fit must hold one label per row; got shape")
    refused(lambda: model.partial_fit(X, None), "requires y to be passed")


@pytest.mark.parametrize("model", [GaussianMixture(2), MixtureClassifier(1)])
def test_several_batches_at_once_are_refused(model):
    X, y = make_ripley(50, random_state=0)
    known = () if isinstance(model, GaussianMixture) else (y,)
    refused(
        lambda: model.partial_fit([X[:50], X[50:]], *known), "partial_fit takes one batch, as an array or a data frame"
    )
    assert "mixture_" not in vars(model)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (MixtureClassifier(1, objective="margin"), "partial_fit supports only the joint likelihood"),
        (
            MixtureClassifier(1, class_weight="balanced"),
            "class_weight='balanced' needs all labels at once",
        ),
        (
            MixtureClassifier(1, covariance_type="low_rank"),
            "partial_fit cannot be used with covariance_type=",
        ),
        (GaussianMixture(covariance_type="low_rank"), "its moments are projections that change with every step"),
    ],
)
def test_what_cannot_learn_so_says_why(model, reason):
    assert not hasattr(model, "partial_fit")
    with pytest.raises(AttributeError, match="has no attribute 'partial_fit'") as caught:
        model.partial_fit  # noqa: B018
    assert reason in str(caught.value.__cause__)


def test_a_failed_step_changes_nothing(rng):
    model = GaussianMixture(2, random_state=0).partial_fit(clusters(rng, 100))
    before, n_steps = model.means_, model.running_.n_steps
    refused(lambda: model.partial_fit(np.full((3, 2), np.inf)), "infinity")
    assert np.array_equal(model.means_, before)
    assert model.running_.n_steps == n_steps


@pytest.mark.parametrize("make", [lambda: GaussianMixture(2, random_state=0), lambda: MixtureClassifier(1)])
@pytest.mark.parametrize(
    ("scale", "weight", "message"),
    [
        (1e153, 1.0, "their squares overflow. Rescale that column, or remove such values."),
        (1e160, 1.0, "their squares overflow. Rescale that column, or remove such values."),
        (1e300, 1.0, "their squares overflow. Rescale that column, or remove such values."),
        (1.0, 1e30, "must be between 1e-30 and 1e+30; got 1e+32."),
    ],
)
def test_later_batches_are_as_limited_as_the_first(make, scale, weight, message, rng):
    model, rows, labels = make(), clusters(rng, 100), np.arange(100) % 2
    more = {"classes": [0, 1]} if isinstance(model, MixtureClassifier) else {}
    model.partial_fit(rows, labels, **more)
    before = model.means_
    refused(lambda: model.partial_fit(rows * scale, labels, sample_weight=np.full(100, weight)), message)
    assert np.array_equal(model.means_, before)
