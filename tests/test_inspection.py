"""Summaries, explanations and importances, on frames with names, missing values and text labels."""

import functools
import itertools
import math

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.mixture import GaussianMixture as SklearnMixture
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mixtura import (
    AveragedMixtureClassifier,
    GaussianMixture,
    MarginalFeatureSelector,
    MixtureClassifier,
    NonnegativeMixtureClassifier,
    SparseMixtureClassifier,
    load,
)
from mixtura.inspection.summaries import spread
from mixtura.model.transforms import Warp
from named_samples import NAMES, named_samples

CLASSIFIERS = {
    "plain": MixtureClassifier(2, random_state=0),
    "diagonal": MixtureClassifier(1, covariance_type="diag", random_state=0),
    "warped": MixtureClassifier(1, warp=Warp([0.0] * 4, [1.0, math.inf, 2.0, math.inf]), random_state=0),
    "averaged": AveragedMixtureClassifier(MixtureClassifier(1), n_estimators=3, random_state=0),
}
each_classifier = pytest.mark.parametrize("model", CLASSIFIERS.values(), ids=CLASSIFIERS)
two_and_ten = pytest.mark.parametrize("n_classes", [2, 10])


def fitted(model, n_classes=2, missing=0.1):
    X, y = named_samples(n_classes, missing=missing)
    return clone(model).fit(X, y), X, y


# ---- summaries -------------------------------------------------------------------------------------------------------


@two_and_ten
@each_classifier
def test_summary_names_classes_features_and_components(model, n_classes):
    model, X, y = fitted(model, n_classes)
    summary = model.summary(X, y)
    frame = summary.to_frame()
    assert len(frame) == len(model.weights_)
    assert frame["class"].tolist() == [model.classes_[c] for c in model.mixture_.class_of.tolist()]
    assert_allclose(frame["weight"], model.weights_)
    assert_allclose(frame["size"], model.weights_ * len(X), atol=0.051)
    for name in NAMES:
        assert name in str(summary)
        assert f"<th>{name}</th>" in summary._repr_html_()
    assert_allclose(summary.facts["BIC"], model.bic(X, y))
    assert_allclose(summary.facts["error rate"], 1 - model.score(X, y))
    if model.warp_ is None:
        assert_allclose(frame["age mean"], model.means_[:, 2])
        assert_allclose(frame["age scale"] ** 2, model.covariances_[:, 2, 2])


def test_summary_shows_values_in_the_units_of_the_samples_under_a_transform():
    X, y = named_samples(2, missing=0.0)
    model = MixtureClassifier(1, warp=Warp([0.0] * 4, [0.5] * 4), random_state=0).fit(X, y)
    frame = model.summary().to_frame()
    drawn, labels = model.set_params(random_state=0).sample(40_000)
    for number, label in enumerate(model.classes_):
        assert_allclose(frame["age mean"][number], np.median(drawn[labels == label, 2]), atol=0.03)
    assert "medians" in model.summary().note


def test_criteria_of_a_density_are_those_of_scikit_learn():
    X, _ = named_samples(2, missing=0.0)
    ours, theirs = (kind(2, random_state=0).fit(X) for kind in (GaussianMixture, SklearnMixture))
    assert_allclose([ours.bic(X), ours.aic(X)], [theirs.bic(X), theirs.aic(X)])
    entropy = -(ours.predict_proba(X) * np.log(ours.predict_proba(X).clip(1e-300))).sum()
    assert_allclose(ours.icl(X), ours.bic(X) + 2 * entropy)


def test_likelihood_of_labels_and_samples_is_that_of_a_slow_twin():
    model, X, y = fitted(MixtureClassifier(2, random_state=0), 2, missing=0.0)
    total = 0.0
    for row, label in zip(X.to_numpy(), y, strict=True):
        own = [k for k, c in enumerate(model.mixture_.class_of) if model.classes_[c] == label]
        parts = [(model.weights_[k], model.means_[k], model.covariances_[k]) for k in own]
        total += math.log(sum(w * multivariate_normal(m, s).pdf(row) for w, m, s in parts))
    assert_allclose(model.summary(X, y).facts["log-likelihood"], total, rtol=1e-9)
    assert_allclose(model.aic(X, y), -2 * total + 2 * model.n_parameters_, rtol=1e-9)


@pytest.mark.parametrize("kind", [SparseMixtureClassifier, NonnegativeMixtureClassifier])
def test_models_without_a_density_have_a_summary_and_say_why_they_have_no_criteria(kind):
    X, y = named_samples(2, missing=0.0)
    model = kind(random_state=0, max_iter=2000, tol=1e-3).fit(X - X.min(), y)
    text = str(model.summary(X - X.min(), y))
    assert "log-loss" in text
    assert "kind 1" in text
    with pytest.raises(AttributeError, match=r"has no 'bic': it models p\(class \| x\) and has no density"):
        model.bic  # noqa: B018


def test_a_feature_may_be_named_like_a_column_of_the_summary():
    X, y = named_samples(2)
    frame = MixtureClassifier(1).fit(X.rename(columns={"size": "weight", "weight": "class"}), y).summary().to_frame()
    assert "weight (feature) mean" in frame
    assert "class (feature) mean" in frame


# ---- explanations ----------------------------------------------------------------------------------------------------


def slow_shapley(model, row, target):
    """Average over all orders of what each feature adds to the log-odds; others are missing."""
    n_features = len(row)

    @functools.cache
    def value(features):
        kept = np.full(n_features, np.nan)
        kept[list(features)] = row[list(features)]
        probabilities = model.predict_log_proba(pd.DataFrame([kept], columns=NAMES))[0]
        return probabilities[target] - np.logaddexp.reduce(np.delete(probabilities, target))

    shares = np.zeros(n_features)
    orders = list(itertools.permutations(range(n_features)))
    for order in orders:
        for place, feature in enumerate(order):
            shares[feature] += value(frozenset(order[: place + 1])) - value(frozenset(order[:place]))
    return shares / len(orders)


@each_classifier
def test_explanations_are_shapley_values_of_marginalisation(model):
    model, X, _ = fitted(model, 2)
    explanation = model.explain(X[:3])
    for n, (row, label) in enumerate(zip(X.to_numpy()[:3], explanation.classes, strict=True)):
        target = model.classes_.tolist().index(label)
        assert_allclose(explanation.values[n], slow_shapley(model, row, target), atol=1e-8)


@two_and_ten
@pytest.mark.parametrize("n_orders", [None, 1, 3])
@each_classifier
def test_contributions_sum_to_the_log_odds(model, n_classes, n_orders):
    model, X, _ = fitted(model, n_classes)
    explanation = model.explain(X, n_orders=n_orders)
    assert_allclose(explanation.base_values + explanation.values.sum(1), explanation.log_odds, atol=1e-10)
    assert (explanation.values[X.isna().to_numpy()] == 0).all()
    assert_allclose(explanation.probabilities, model.predict_proba(X).max(1), atol=1e-12)
    assert explanation.classes.tolist() == model.predict(X).tolist()


def test_a_pair_of_classes_is_compared():
    model, X, _ = fitted(MixtureClassifier(1, random_state=0), 10)
    a, b = "kind 3", "kind 7"
    there, back = model.explain(X, classes=(a, b)), model.explain(X, classes=(b, a))
    assert_allclose(there.values, -back.values, atol=1e-9)
    log_proba = model.predict_log_proba(X)
    assert_allclose(there.log_odds, log_proba[:, 3] - log_proba[:, 7], atol=1e-9)
    alone = model.explain(X, classes=a)
    assert_allclose(1 / (1 + np.exp(-alone.log_odds)), model.predict_proba(X)[:, 3], atol=1e-10)
    with pytest.raises(ValueError, match="classes must be a label or a pair of different labels"):
        model.explain(X, classes=(a, a))
    with pytest.raises(ValueError, match="y holds 'kind x', which is not a class of the model"):
        model.explain(X, classes="kind x")


def test_a_single_feature_explains_everything():
    X, y = np.random.default_rng(0).normal(size=(40, 1)), np.arange(40) % 2
    model = MixtureClassifier(1).fit(X + y[:, None], y)
    sampled, exact = (model.explain(X[:3], n_orders=n_orders) for n_orders in (4, None))
    assert_allclose(sampled.values, exact.values, atol=1e-12)
    assert_allclose(sampled.values[:, 0], sampled.log_odds - sampled.base_values, atol=1e-12)


def test_explanations_print_and_convert():
    model, X, _ = fitted(MixtureClassifier(2, random_state=0), 2)
    explanation = model.explain(X)
    frame = explanation.to_frame()
    assert frame.index.tolist() == X.index.tolist()
    assert_allclose(frame[NAMES].to_numpy(), explanation.values)
    holed = int(np.flatnonzero(X.isna().sum(1) == 1)[0])
    text = str(explanation[holed])
    assert "missing; knowing it would change the log-odds by about" in text
    assert all(name in text for name in NAMES)
    components = explanation.nearest_components
    owners = model.classes_[model.mixture_.class_of.numpy()[components]]
    assert owners.tolist() == explanation.classes.tolist()


def test_what_a_missing_value_would_change_is_the_spread_of_the_log_odds():
    model, X, _ = fitted(MixtureClassifier(1, random_state=0), 2, missing=0.0)
    X = X[:30].copy()
    X.iloc[:, 1] = np.nan
    explanation = model.explain(X, classes="kind 0")
    drawn = [model.impute(X, "draw", seed) for seed in range(40)]
    odds = [np.subtract(*model.predict_log_proba(frame).T) for frame in drawn]
    expected = np.std(odds, axis=0)
    assert_allclose(explanation.missing_effects[:, 1].mean(), expected.mean(), rtol=0.15)
    assert np.isnan(explanation.missing_effects[:, [0, 2, 3]]).all()


def test_explanations_survive_a_model_file(tmp_path):
    model, X, _ = fitted(MixtureClassifier(2, random_state=0), 2)
    model.save(tmp_path / "model")
    assert_allclose(load(tmp_path / "model").explain(X).values, model.explain(X).values, atol=1e-12)


# ---- importances -----------------------------------------------------------------------------------------------------


def test_importance_is_the_rise_of_the_log_loss_without_the_feature():
    model, X, y = fitted(MixtureClassifier(1, random_state=0), 2)
    importances = model.feature_importances(X, y)
    assert importances.index.tolist() == NAMES
    numbers = y.map({"kind 0": 0, "kind 1": 1}).to_numpy()

    def loss(samples):
        return -model.predict_log_proba(samples)[np.arange(len(y)), numbers].mean()

    assert_allclose(importances["age"], loss(X.assign(age=np.nan)) - loss(X), rtol=1e-9)


def test_selected_features_are_those_that_separate_the_classes():
    X, y = named_samples(2, 100, missing=0.0)
    noise = np.random.default_rng(0).normal(size=(len(X), 2))
    X = X.assign(noise=noise[:, 0], other=noise[:, 1])
    selector = MarginalFeatureSelector(MixtureClassifier(1), n_features_to_select=2).set_output(transform="pandas")
    kept = selector.fit_transform(X, y)
    assert not {"noise", "other"} & set(kept.columns)
    assert np.all(np.diff(selector.log_losses_) < 0)
    pipeline = make_pipeline(StandardScaler(), selector, MixtureClassifier(1)).fit(X, y)
    assert pipeline.score(X, y) > 0.8
    with pytest.raises(TypeError, match="estimator must be a classifier with a density; got SparseMixtureClassifier"):
        MarginalFeatureSelector(SparseMixtureClassifier()).fit(X, y)


def test_a_mixture_prints_as_one_sentence():
    model = MixtureClassifier({0: 1, 1: 2, 2: 1}, random_state=0).fit(*load_iris(return_X_y=True))
    text = str(model.mixture_)
    assert text.startswith("Mixture of 4 components (full) of 4 features, [1, 2, 1] per class; weights 0.333, ")
    assert "tensor" not in text


@pytest.mark.parametrize(
    ("value", "scale", "text"),
    [
        (55_712.3, 28_123.0, "56000 ± 28000"),
        (0.0621, 1.71, "0.1 ± 1.7"),
        (5.006, 0.3489, "5.01 ± 0.35"),
        (-0.004, 1.0, "0.0 ± 1.0"),
        (3.0, 0.0, "3 ± 0"),
        (2.5e7, 3e6, "2.5e+07 ± 3e+06"),
    ],
)
def test_spreads_have_two_digits(value, scale, text):
    assert str(spread(value, scale)) == text
