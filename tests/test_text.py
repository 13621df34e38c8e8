"""Texts: priors on coefficients, transforms of rows, multinomial mixtures, and the automatic choice."""

import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline

import mixtura
import reference_nonnegative as reference
from cases import assert_close
from mixtura import MixtureClassifier, NonnegativeMixtureClassifier
from mixtura.estimators.nonnegative import read
from mixtura.model.transforms import ROW_TRANSFORMS, RowTransform, document_counts, make_row_transform
from mixtura.nonnegative.mixture import LogLinearMixture, column_units, labeled_rows, random_start
from mixtura.nonnegative.multinomial import fit_multinomials
from mixtura.nonnegative.priors import Normal, PseudoCounts
from mixtura.nonnegative.updates import Accelerated, Multiplicative, pack, unpack
from mixtura.selection import texts as selection
from mixtura.solvers import run
from mixtura.values.sparse_rows import from_scipy

pytestmark = pytest.mark.usefixtures("one_thread")

N_CLASSES = 3
every_layout = pytest.mark.parametrize("layout", ["dense", "sparse"])


def draw_texts(n_rows, n_words=120, seed=0, n_topics=1, length=12):
    """Counts of words with the frequencies of a language: a few words in every text, most in hardly any."""
    rng = np.random.default_rng(seed)
    base = 1 / np.arange(1, n_words + 1)
    topics = np.random.default_rng(99).gamma(0.4, size=(N_CLASSES, n_topics, n_words)) * base
    topics = 0.5 * topics / topics.sum(-1, keepdims=True) + 0.5 * base / base.sum()
    y = np.arange(n_rows) % N_CLASSES
    chosen = topics[y, rng.integers(0, n_topics, n_rows)]
    X = np.array([rng.multinomial(n, p) for n, p in zip(rng.poisson(length, n_rows) + 1, chosen, strict=True)])
    return sparse.csr_matrix(X.astype(float)), y


@pytest.fixture(scope="module")
def texts():
    return *draw_texts(600), *draw_texts(600, seed=1)


@pytest.fixture(scope="module")
def fitted(texts):
    return NonnegativeMixtureClassifier(random_state=0).fit(*texts[:2])


def rows_of(X, y, weights=None, layout="sparse", step=10**6):
    features = from_scipy(X.copy()) if layout == "sparse" else torch.from_numpy(X.toarray())
    weights = np.ones(len(y)) if weights is None else weights
    return labeled_rows(features, torch.from_numpy(y), torch.from_numpy(weights), step)


def small(seed=0, n_rows=60):
    X, y = draw_texts(n_rows, 7, seed, n_topics=2)
    weights = np.random.default_rng(seed).uniform(0.2, 2, n_rows)
    return X, y, weights


def random_mixture(rng, n_features=7, n_bases=2):
    class_of = torch.arange(N_CLASSES).repeat_interleave(n_bases)
    log_weights, coefficients = rng.normal(size=len(class_of)), rng.normal(0, 0.3, (len(class_of), n_features))
    parts = torch.from_numpy(log_weights), torch.from_numpy(coefficients), class_of, torch.arange(len(class_of))
    return LogLinearMixture(*parts, N_CLASSES)


def log_loss(model, X, y):
    return -model.predict_log_proba(X)[np.arange(len(y)), np.searchsorted(model.classes_, y)].mean()


# ---- transforms of rows ----------------------------------------------------------------------------------------------


@every_layout
@pytest.mark.parametrize("name", ROW_TRANSFORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_transformed_rows_equal_the_twin(layout, name, dtype):
    X = small()[0].toarray()
    X[:, 3] = 0
    X[5] = 0
    training, test = X.copy(), X[:20].copy()
    test[2, 3] = 4  # a word that training never saw
    features = torch.from_numpy(training)
    transform = make_row_transform(name, document_counts(features, torch.ones(len(X)).double()), float(len(X)))
    rows = torch.from_numpy(test).to(dtype) if layout == "dense" else from_scipy(sparse.csr_matrix(test)).to(dtype)
    actual = transform.forward(rows)
    assert actual.dtype == torch.float64
    assert_close(actual.to_dense(), reference.transformed_rows(test, name, training), 1e-6)


@every_layout
def test_weights_of_rows_are_repetitions_in_the_weights_of_words(layout):
    X = small()[0]
    repeats = np.random.default_rng(1).integers(0, 3, X.shape[0])
    features = [from_scipy(part.copy()) for part in (X, X[np.repeat(np.arange(X.shape[0]), repeats)])]
    features = [part.to_dense() for part in features] if layout == "dense" else features
    weights = torch.from_numpy(repeats.astype(float)), torch.ones(repeats.sum()).double()
    assert_close(document_counts(features[0], weights[0]), document_counts(features[1], weights[1]))


def test_an_unknown_transform_is_not_stored():
    with pytest.raises(ValueError, match="the name of a transform of rows must be one of"):
        RowTransform("square", torch.ones(2).double()).check()


def test_sparse_columns_are_not_divided_by_their_spread():
    X = small()[0]
    shifts, scales = column_units(from_scipy(X.copy()), torch.ones(60).double())
    assert_close(shifts, np.zeros(7))
    assert_close(scales, np.ones(7))
    assert_close(column_units(torch.from_numpy(X.toarray()), torch.ones(60).double())[1], X.toarray().std(0))


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("n_words", [50, 5000])
def test_scores_of_random_starts_do_not_grow_with_rows_or_vocabulary(factor, n_words):
    X, y = draw_texts(60, n_words)
    rows = rows_of(factor * X, y)
    start = random_start(4, False, rows, torch.zeros(3).double(), torch.Generator().manual_seed(0), has_units=False)
    scores = torch.from_numpy(factor * X.toarray()) @ start.coefficients.T
    assert 0.3 < float(scores.std()) < 0.8


# ---- priors ----------------------------------------------------------------------------------------------------------


@every_layout
def test_a_step_with_pseudo_counts_equals_the_twin(rng, layout):
    X, y, weights = small()
    mixture, rows = random_mixture(rng), rows_of(X, y, weights, layout)
    prior = PseudoCounts(0.7).bound(rows, mixture)
    shares = weights @ X.toarray() / (weights @ X.toarray()).sum()
    assert_close(prior.counts, 0.7 * 7 * shares)
    solver = Multiplicative(prior=prior)
    state, info = solver.step(rows, solver.init(rows, mixture))
    raw = np.zeros((N_CLASSES, mixture.n_bases))
    raw[mixture.class_of, mixture.basis_of] = state.mixture.log_weights.exp()
    known = X.toarray(), y, weights, raw, mixture.coefficients.numpy()
    assert_close(state.mixture.coefficients, reference.pseudo_counted_step(*known, prior.counts.numpy()))
    raw[mixture.class_of, mixture.basis_of] = mixture.log_weights.exp()
    theta = mixture.coefficients.numpy()
    log_prior = (prior.counts.numpy() * (theta - np.exp(theta))).sum()
    value = reference.log_likelihood(X.toarray(), y, weights, raw, theta) + log_prior
    assert_close(info.value, value / weights.sum())


@pytest.mark.parametrize("scale", [1.0, 0.01], ids=["long rows", "short rows"])
@pytest.mark.parametrize("strength", [1e-3, 0.3, 30.0])
def test_steps_with_pseudo_counts_never_lower_the_objective(rng, scale, strength):
    """Rows of a sum below one would have steps above one without the limit."""
    X, y, weights = small()
    mixture, rows = random_mixture(rng), rows_of(scale * X, y, weights)
    solver = Multiplicative(prior=PseudoCounts(strength).bound(rows, mixture))
    state, values = solver.init(rows, mixture), []
    for _ in range(80):
        state, info = solver.step(rows, state)
        values.append(info.value)
    assert (np.diff(values) >= -1e-12).all()
    assert values[-1] > values[0]


@pytest.mark.parametrize("prior", [Normal("zero", 0.3), Normal("start", 2.0), PseudoCounts(0.5)], ids=repr)
def test_the_gradient_with_a_prior_equals_differences(rng, prior):
    X, y, weights = small()
    rows, start, mixture = rows_of(X, y, weights), random_mixture(rng), random_mixture(rng)
    solver = Accelerated(prior=prior.bound(rows, start), n_plain=0)
    here = pack(mixture, rows.means)
    value, gradient = solver.evaluate(mixture, rows)
    for number in range(len(here)):
        unit = torch.zeros_like(here)
        unit[number] = 1e-5
        ends = [solver.evaluate(unpack(mixture, here + sign * unit, rows.means), rows)[0] for sign in (1, -1)]
        assert_close((ends[0] - ends[1]) / 2e-5, gradient[number], 1e-7)
    plain = Accelerated().evaluate(mixture, rows)[0]
    if isinstance(prior, Normal):
        square = (X.toarray() ** 2).sum(1) @ weights / weights.sum()
        centre = start.coefficients if prior.centre == "start" else 0.0
        distance = float((mixture.coefficients - centre).square().sum())
        assert_close(plain - value, prior.strength * square * distance / 2 / weights.sum())


def test_one_basis_per_class_under_a_normal_prior_is_logistic_regression():
    X, y, _ = small(n_rows=90)
    rows = rows_of(X, y)
    start = selection.one_basis_per_class(torch.zeros(3).double(), torch.zeros(3, 7).double())
    prior = Normal("zero", 0.3).bound(rows, start)
    mixture = run(Accelerated(prior=prior, n_plain=0), rows, start, 300, 1e-13).mixture
    other = LogisticRegression(C=1 / (0.3 * rows.mean_square), max_iter=10**4, tol=1e-9).fit(X, y)
    assert_close(mixture.log_probabilities(from_scipy(X.copy())).exp().T, other.predict_proba(X), 1e-5)


def test_units_of_rows_do_not_change_what_a_prior_does():
    X, y, _ = small(n_rows=90)
    start = selection.one_basis_per_class(torch.zeros(3).double(), torch.zeros(3, 7).double())
    probabilities = []
    for factor in (1.0, 100.0):
        rows = rows_of(factor * X, y)
        solver = Accelerated(prior=Normal("zero", 0.3).bound(rows, start), n_plain=0)
        mixture = run(solver, rows, start, 300, 1e-13).mixture
        probabilities.append(mixture.log_probabilities(from_scipy(factor * X)).exp())
    assert_close(*probabilities, 1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normal("middle"), "centre must be one of 'zero', 'start'; got 'middle'."),
        (lambda: Normal("zero", 0.0), 'strength must be a number above 0, or infinity with centre="start"; got 0.0.'),
        (lambda: Normal("zero", math.inf), 'strength must be a number above 0, or infinity with centre="start"; got'),
        (lambda: PseudoCounts(-1), "strength must be a number above 0; got -1."),
    ],
)
def test_priors_are_checked(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


# ---- multinomial mixtures --------------------------------------------------------------------------------------------


@every_layout
@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_one_multinomial_per_class_is_naive_bayes(layout, alpha):
    X, y, weights = small(n_rows=200)
    test = small(seed=5)[0]
    start = fit_multinomials(rows_of(X, y, weights, layout, step=37), 1, N_CLASSES, alpha, torch.Generator())
    actual = start.log_probabilities(from_scipy(test.copy())).exp().T
    assert_close(actual, MultinomialNB(alpha=alpha).fit(X, y, weights).predict_proba(test), 1e-12)
    log_prior, log_shares = reference.naive_bayes(X.toarray(), y, weights, alpha)
    scores = log_prior + test.toarray() @ log_shares.T
    assert_close(actual.log(), scores - np.logaddexp.reduce(scores, 1, keepdims=True), 1e-10)


def test_em_of_multinomials_raises_the_likelihood_as_its_twin_computes_it():
    X, y, weights = small(n_rows=240)
    rows, values = rows_of(X, y, weights), []
    for n_steps in (1, 3, 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mixtura.nonnegative.multinomial.MAX_ITER", n_steps)
            start = fit_multinomials(rows, 2, N_CLASSES, 1e-9, torch.Generator().manual_seed(0))
        allowed = y[:, None] == start.class_of.numpy()
        parts = start.log_weights.numpy(), start.coefficients.numpy()
        values.append(reference.multinomial_step(X.toarray(), allowed, weights, *parts)[0])
    assert start.n_components == 2 * N_CLASSES
    assert_close(start.log_weights.exp().sum(), 1.0)
    assert values[-1] > values[0]


def test_unlabeled_texts_improve_the_multinomials_of_few_labels(texts):
    X, y, X_test, y_test = texts
    few = np.arange(12)
    generator = torch.Generator().manual_seed(0)
    alone = fit_multinomials(rows_of(X[few], y[few]), 1, N_CLASSES, 0.3, generator)
    rest = rows_of(X[12:], np.full(588, -1))
    both = fit_multinomials(rows_of(X[few], y[few]), 1, N_CLASSES, 0.3, generator, rest)
    errors = [
        (m.log_probabilities(from_scipy(X_test.copy())).argmax(0).numpy() != y_test).mean() for m in (alone, both)
    ]
    assert errors[1] < errors[0] - 0.05


# ---- the estimator ---------------------------------------------------------------------------------------------------


def test_the_default_is_no_worse_than_naive_bayes_and_logistic_regression(texts, fitted):
    X, y, X_test, y_test = texts
    rivals = [MultinomialNB().fit(X, y), LogisticRegression(max_iter=1000).fit(X, y)]
    assert fitted.score(X_test, y_test) >= max(model.score(X_test, y_test) for model in rivals) - 0.01
    for model in rivals:
        loss = -np.log(model.predict_proba(X_test)[np.arange(600), y_test]).mean()
        assert log_loss(fitted, X_test, y_test) < loss + 0.01  # the texts are drawn from multinomials


def test_more_words_do_no_harm(texts):
    X, y, X_test, y_test = texts
    losses = []
    for n_words in (30, 120):
        model = NonnegativeMixtureClassifier(random_state=0).fit(X[:, :n_words], y)
        losses.append(log_loss(model, X_test[:, :n_words], y_test))
    assert losses[1] < losses[0]
    rng = np.random.default_rng(0)
    noise = [sparse.csr_matrix(rng.poisson(0.01, (600, 2000)).astype(float)) for _ in range(2)]
    model = NonnegativeMixtureClassifier(random_state=0).fit(sparse.hstack([X, noise[0]]).tocsr(), y)
    assert log_loss(model, sparse.hstack([X_test, noise[1]]).tocsr(), y_test) < losses[1] + 0.15


def test_fixed_settings_give_naive_bayes(texts):
    X, y, X_test, _ = texts
    options = {"n_components": 1, "rows": "counts", "prior": Normal("start", math.inf), "temperature": 1.0}
    model = NonnegativeMixtureClassifier(**options).fit(X, y)
    alpha = model.search_.best.what["pseudo_count"]
    seen = np.asarray(X.sum(0)).ravel() > 0
    other = MultinomialNB(alpha=alpha).fit(X[:, seen], y)
    assert_close(model.predict_proba(X_test), other.predict_proba(X_test[:, seen]), 1e-10)
    assert model.n_iter_ == 0
    assert model.converged_


def test_the_search_shows_the_candidates(texts, fitted):
    table = fitted.search_
    assert {row.what["rows"] for row in table} == {"log", "tfidf", "counts"}
    assert {row.what["n_components"] for row in table} == {1, 3}
    assert fitted.temperature_ == pytest.approx(table.best.what["temperature"], abs=1e-3)
    assert fitted.rows_.name == table.best.what["rows"]
    for name in ("log", "tfidf"):  # every path goes on until the loss rises
        scores = [r.score for r in table if (r.what["rows"], r.what["n_components"]) == (name, 1)]
        assert scores[-1] > min(scores) - selection.SMALLEST_STEP
        assert scores.index(min(scores)) >= len(scores) - 2


@pytest.mark.parametrize(("n_rows", "n_folds"), [(300, 5), (2000, 2), (6000, 1)])
def test_few_texts_are_cross_validated(n_rows, n_folds):
    X, y = draw_texts(n_rows, 20)
    task = read(NonnegativeMixtureClassifier(1, rows="log", random_state=0), X, y, None, None)
    assert len(selection.TextSearch(task).folds) == n_folds


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix, torch.as_tensor])
def test_empty_texts_and_unknown_words_get_the_class_prior(texts, kind):
    X, y = texts[:2]
    wide = np.column_stack([X.toarray(), np.zeros(600)])
    weights = np.where(y == 0, 3.0, 1.0)
    for rows in ("counts", "log", "tfidf"):
        model = NonnegativeMixtureClassifier(1, rows=rows, random_state=0).fit(kind(wide), y, sample_weight=weights)
        strange = np.zeros((2, 121))
        strange[1, -1] = 5.0
        assert_close(model.class_prior_, [0.6, 0.2, 0.2])
        assert_close(model.predict_proba(kind(strange)), np.tile(model.class_prior_, (2, 1)))
        known = wide[:3].copy()
        known[:, -1] = 7.0
        assert_close(model.predict_proba(kind(known)), model.predict_proba(kind(wide[:3])), 1e-12)


def test_single_precision_gives_the_same(texts, fitted):
    X, y, X_test, _ = texts
    model = NonnegativeMixtureClassifier(random_state=0).fit(X.astype(np.float32), y)
    assert_close(model.predict_proba(X_test.astype(np.float32)), fitted.predict_proba(X_test), 1e-12)


def test_dense_counts_with_a_transform_are_sparse_ones(texts):
    X, y, X_test, _ = texts
    options = {"rows": "log", "random_state": 0}
    thin = NonnegativeMixtureClassifier(**options).fit(X, y)
    dense = NonnegativeMixtureClassifier(**options).fit(X.toarray(), y)
    assert_close(dense.predict_proba(X_test.toarray()), thin.predict_proba(X_test), 1e-6)


def test_a_weight_is_a_repetition_and_soft_labels_are_labels(texts):
    X, y, X_test, _ = texts
    X, y = X[:150], y[:150]
    options = {"n_components": 1, "rows": "log", "prior": Normal("zero", 0.3), "temperature": 1.0, "tol": 1e-12}
    repeats = np.random.default_rng(1).integers(0, 3, 150)
    every = np.repeat(np.arange(150), repeats)
    once = NonnegativeMixtureClassifier(**options).fit(X, y, sample_weight=repeats)
    often = NonnegativeMixtureClassifier(**options).fit(X[every], y[every])
    soft = NonnegativeMixtureClassifier(**options).fit(X[every], np.eye(3)[y[every]])
    assert_close(once.predict_proba(X_test), often.predict_proba(X_test), 1e-5)
    assert_close(soft.predict_proba(X_test), often.predict_proba(X_test), 1e-5)
    half = np.eye(3)[y] / 2 + np.eye(3)[(y + 1) % 3] / 2
    mixed = NonnegativeMixtureClassifier(**options).fit(X, half)
    twice = NonnegativeMixtureClassifier(**options).fit(
        sparse.vstack([X, X]).tocsr(), np.r_[y, (y + 1) % 3], sample_weight=np.full(300, 0.5)
    )
    assert_close(mixed.predict_proba(X_test), twice.predict_proba(X_test), 1e-5)


def test_unlabeled_texts_move_the_start_alone(texts):
    X, y, X_test, y_test = texts
    partly = y.astype(float)
    partly[15:] = np.nan
    options = {"rows": "counts", "n_components": 1, "random_state": 0}
    start = Normal("start", math.inf)
    few = NonnegativeMixtureClassifier(prior=start, **options).fit(X[:15], y[:15])
    many = NonnegativeMixtureClassifier(prior=start, unlabeled=np.nan, **options).fit(X, partly)
    assert many.score(X_test, y_test) > few.score(X_test, y_test) + 0.03
    zero = Normal("zero", 0.3)
    soft = np.where(np.arange(600)[:, None] < 15, np.eye(3)[y], np.nan)
    for labels, unlabeled in ((partly, np.nan), (soft, None)):
        model = NonnegativeMixtureClassifier(prior=zero, temperature=1.0, unlabeled=unlabeled, **options).fit(X, labels)
        alone = NonnegativeMixtureClassifier(prior=zero, temperature=1.0, **options).fit(X[:15], y[:15])
        known = np.asarray(X[:15].sum(0)).ravel() > 0
        test = X_test.multiply(known).tocsr()
        assert_close(model.predict_proba(test), alone.predict_proba(test), 1e-3)
    with pytest.raises(ValueError, match="missing label"):
        NonnegativeMixtureClassifier().fit(X, partly)


def test_the_time_budget_ends_the_search(texts):
    X, y = texts[:2]
    model = NonnegativeMixtureClassifier(time_budget=1e-9, random_state=0).fit(X, y)
    assert model.search_ is None
    assert model.score(X, y) > 0.5


def test_several_components_are_chosen_where_classes_have_topics():
    X, y = load_digits(return_X_y=True)
    model = NonnegativeMixtureClassifier(random_state=0).fit(X[:1000], y[:1000])
    assert model.rows_ is None
    assert model.n_components_.tolist() == [3] * 10
    assert model.score(X[1000:], y[1000:]) > 0.93


@pytest.mark.parametrize("shared", [True, False])
def test_sparsity_and_shared_bases_with_a_prior(texts, shared):
    X, y, X_test, y_test = texts
    options = {"shared": shared, "rows": "log", "random_state": 0}
    plain = NonnegativeMixtureClassifier(6, **options).fit(X, y)
    thin = NonnegativeMixtureClassifier(6, sparsity=3.0, **options).fit(X, y)
    assert thin.n_components_.sum() < plain.n_components_.sum()
    assert thin.score(X_test, y_test) > plain.score(X_test, y_test) - 0.05


@pytest.mark.parametrize("n_rows", [6, 12])
def test_a_handful_of_texts(n_rows):
    X, y = draw_texts(n_rows, 20)
    model = NonnegativeMixtureClassifier(random_state=0).fit(X, y)
    assert model.score(X, y) > 0.5
    assert np.isfinite(model.predict_log_proba(X)).all()


def test_without_samples_to_hold_out_there_is_no_search():
    X, y = draw_texts(3, 20)
    model = NonnegativeMixtureClassifier().fit(X, y)
    assert model.search_ is None
    assert (model.rows_.name, model.temperature_) == ("log", 1.0)


def test_one_transform_and_one_prior_are_taken_by_named_solvers(texts):
    X, y, X_test, y_test = texts
    scores = {}
    for solver, prior in (("multiplicative", PseudoCounts(0.5)), ("accelerated", Normal("zero", 0.3))):
        model = NonnegativeMixtureClassifier(
            1, solver=solver, prior=prior, rows="counts", sparsity=0.0, max_iter=3000, tol=1e-7, random_state=0
        ).fit(X, y)
        scores[solver] = model.score(X_test, y_test)
    assert min(scores.values()) > MultinomialNB().fit(X, y).score(X_test, y_test) - 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": "square"}, "rows must be one of 'auto', 'counts', 'log', 'tfidf' or None; got 'square'."),
        ({"prior": 3}, 'prior must be "auto", None, a Normal or a PseudoCounts of mixtura.nonnegative.priors; got 3.'),
        (
            {"prior": Normal(), "solver": "multiplicative"},
            "solver='multiplicative' takes a prior of pseudo-counts only; got prior=Normal(centre='zero', "
            "strength=1.0). Use PseudoCounts, or solver='auto'.",
        ),
        (
            {"prior": Normal("start"), "solver": "accelerated"},
            "solver='accelerated' starts at random, so that prior=Normal(centre='start', strength=1.0) has no meaning; "
            "use solver='auto', or Normal('zero').",
        ),
        (
            {"prior": Normal("start"), "sparsity": 1.0},
            "sparsity=1.0 removes bases, so that prior=Normal(centre='start', strength=1.0) has no meaning; use "
            "sparsity=0, or Normal('zero').",
        ),
        (
            {"prior": Normal("start"), "shared": True},
            "shared=True starts at random, so that prior=Normal(centre='start', strength=1.0) has no meaning; use "
            "shared=False, or Normal('zero').",
        ),
        ({"temperature": 0.0}, 'temperature must be a number above 0 or "auto"; got 0.0.'),
        ({"cv": 1}, "cv must be an integer of at least 2; got 1."),
        ({"time_budget": -1.0}, "time_budget must be a number above 0 or None; got -1.0."),
    ],
    ids=str,
)
def test_arguments_are_checked(texts, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        NonnegativeMixtureClassifier(**options).fit(*texts[:2])


def test_an_interrupted_search_keeps_the_best_candidate(texts, monkeypatch):
    plain, steps = Accelerated.step, []

    def step(self, problem, state):
        steps.append(1)
        if len(steps) == 100:
            raise KeyboardInterrupt
        return plain(self, problem, state)

    monkeypatch.setattr(Accelerated, "step", step)
    model = NonnegativeMixtureClassifier(random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(*texts[:2])
    assert model.score(*texts[2:]) > 0.5
    assert not model.converged_


def test_a_saved_text_model_predicts_the_same(texts, fitted, tmp_path):
    fitted.save(tmp_path / "model")
    again = mixtura.load(tmp_path / "model")
    assert np.array_equal(again.predict_proba(texts[2]), fitted.predict_proba(texts[2]))
    assert (again.rows_.name, again.temperature_) == (fitted.rows_.name, fitted.temperature_)
    assert repr(again.search_) == repr(fitted.search_)


# ---- batches --------------------------------------------------------------------------------------------------------


def in_batches(X, y, size=70, weights=None):
    parts = [slice(first, first + size) for first in range(0, len(y), size)]
    return [(X[part], y[part], *(() if weights is None else (weights[part],))) for part in parts]


@pytest.mark.parametrize("rows", ["log", "counts", None])
@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_batches_give_what_all_rows_give(texts, rows, layout):
    X, y, X_test, _ = texts
    X, X_test = (X.toarray(), X_test.toarray()) if layout == "dense" else (X, X_test)
    weights = np.random.default_rng(0).uniform(0.5, 2, 600)
    options = {"n_components": 1, "rows": rows, "prior": Normal("zero", 0.3), "temperature": 1.0, "tol": 1e-11}
    names = np.array(["a", "b", "c"])[y]
    whole = NonnegativeMixtureClassifier(**options).fit(X, names, sample_weight=weights)
    parts = NonnegativeMixtureClassifier(**options).fit(in_batches(X, names, weights=weights))
    assert parts.classes_.tolist() == ["a", "b", "c"]
    assert_close(parts.class_prior_, whole.class_prior_)
    assert_close(parts.predict_proba(X_test), whole.predict_proba(X_test), 1e-4)


def test_the_default_from_batches(texts, fitted, monkeypatch):
    X, y, X_test, y_test = texts
    monkeypatch.setattr("mixtura.estimators.nonnegative.SELECTION_SAMPLES", 300)
    model = NonnegativeMixtureClassifier(random_state=0).fit(in_batches(X, y))
    assert log_loss(model, X_test, y_test) < log_loss(fitted, X_test, y_test) + 0.03
    again = np.concatenate(list(model.predict_proba([part for part, _ in in_batches(X_test, y_test)])))
    assert_close(again, model.predict_proba(X_test), 1e-12)


def test_unlabeled_rows_of_batches(texts):
    X, y, X_test, y_test = texts
    partly = np.where(np.arange(600) % 20, np.nan, y)
    options = {"rows": "counts", "n_components": 1, "prior": Normal("start", math.inf), "unlabeled": np.nan}
    whole = NonnegativeMixtureClassifier(random_state=0, **options).fit(X, partly)
    parts = NonnegativeMixtureClassifier(random_state=0, **options).fit(in_batches(X, partly))
    assert abs(parts.score(X_test, y_test) - whole.score(X_test, y_test)) < 0.05


@pytest.mark.parametrize(
    ("batches", "options", "message"),
    [
        (
            lambda X, y: [(X, None)],
            {},
            "NonnegativeMixtureClassifier needs batches of (X, y) or (X, y, sample_weight).",
        ),
        (lambda X, y: [(X, np.eye(3)[y])], {}, "y of a batch must hold one label per row; got shape"),
        (lambda X, y: [(X, y), (-X, y)], {}, "features must be at least 0"),
        (lambda X, y: iter([(X, y)]), {}, "can be iterated only once"),
        (lambda X, y: [(X, y)], {"cv": [(np.arange(300), np.arange(300, 600))]}, "cv must be a number of folds for an"),
    ],
)
def test_bad_batches(texts, batches, options, message):
    with pytest.raises((ValueError, OSError), match=re.escape(message)):
        NonnegativeMixtureClassifier(**options).fit(batches(*texts[:2]))


# ---- explanations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_components", [1, 3])
@pytest.mark.parametrize("rows", ["counts", "log"])
def test_contributions_and_the_constant_are_the_log_odds(texts, n_components, rows):
    X, y, X_test, _ = texts
    model = NonnegativeMixtureClassifier(n_components, rows=rows, random_state=0).fit(X, y)
    lines = model.explain(X_test[:4], [f"word{j}" for j in range(120)]).columns
    sums = np.bincount(lines["sample"], lines["contribution"])
    best = model.predict_proba(X_test[:4]).max(1)
    assert_close(sums, np.log(best / (1 - best)), 1e-8)
    own = [name for name, n in zip(lines["feature"], lines["sample"], strict=True) if n == 2]
    used = [int(name.removeprefix("word")) for name in own[:-1]]
    assert own[-1] == "(constant)"
    assert sorted(used) == sorted(X_test[2].indices.tolist())
    assert {lines["class"][i] for i, n in enumerate(lines["sample"]) if n == 1} == {model.predict(X_test[1])[0]}


def test_contributions_are_derivatives_times_values(texts):
    X, y, X_test, _ = texts
    model = NonnegativeMixtureClassifier(3, rows="counts", random_state=0).fit(X, y)
    lines, row = model.explain(X_test[:1]).columns, X_test[:1].toarray()
    c = int(model.predict(row)[0])

    def log_odds(values):
        probability = model.predict_proba(values)[0, c]
        return np.log(probability / (1 - probability))

    for name, value in list(zip(lines["feature"], lines["contribution"], strict=True))[:-1]:
        moved = np.zeros_like(row)
        moved[0, int(name[1:])] = 1e-5
        slope = (log_odds(row + moved) - log_odds(row - moved)) / 2e-5
        assert_close(value, slope * row[0, int(name[1:])], 1e-5)


def test_two_classes_and_one_component_give_differences_of_coefficients(texts):
    X, y = texts[:2]
    model = NonnegativeMixtureClassifier(1, rows="counts", temperature=1.0, random_state=0).fit(X, y == 0)
    lines = model.explain(X[:1]).columns
    difference = (model.bases_[1] - model.bases_[0]) * (1 if lines["class"][0] else -1)
    for name, value, part in zip(lines["feature"], lines["value"], lines["contribution"], strict=True):
        if name != "(constant)":
            assert_close(part, difference[int(name[1:])] * value)


def test_explanations_name_words_of_a_pipeline_and_check_their_number(texts):
    documents = ["good plot good cast", "bad plot", "good film", "bad cast bad film", "good", "bad"] * 5
    labels = ["yes", "no", "yes", "no", "yes", "no"] * 5
    model = make_pipeline(CountVectorizer(), NonnegativeMixtureClassifier(random_state=0)).fit(documents, labels)
    words = model[0].get_feature_names_out()
    frame = model[-1].explain(model[0].transform(["good plot", ""]), words).to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert frame[frame["sample"] == 0].iloc[0]["feature"] == "good"
    assert frame[frame["sample"] == 1]["feature"].tolist() == ["(constant)"]
    with pytest.raises(
        ValueError, match=r"feature_names must hold one name for each of the 5 features; got shape \(2,"
    ):
        model[-1].explain(model[0].transform(["good"]), words[:2])


def test_sparse_rows_for_gaussians_name_the_estimator_for_them(texts):
    message = (
        "MixtureClassifier has Gaussian components, which suit few dense features. For counts of words and other "
        "sparse rows of non-negative features use NonnegativeMixtureClassifier."
    )
    with pytest.raises(TypeError, match=re.escape(message)):
        MixtureClassifier().fit(*texts[:2])
    with pytest.raises(TypeError) as caught:
        MixtureClassifier().fit(-texts[0], texts[1])
    assert "NonnegativeMixtureClassifier" not in str(caught.value)


def test_a_mixture_under_replaced_weights_keeps_its_words(rng):
    """Bound priors follow the mixture: a removal of bases leaves a zero centre valid."""
    X, y, weights = small()
    rows, mixture = rows_of(X, y, weights), random_mixture(rng)
    prior = Normal("zero", 0.5).bound(rows, mixture)
    smaller = mixture.kept(torch.arange(mixture.n_components) != 1)
    assert prior.gradient(smaller.coefficients).shape == smaller.coefficients.shape
    assert prior.value(replace(smaller, coefficients=0 * smaller.coefficients).coefficients) == 0
