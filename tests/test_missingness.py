"""Missing values that tell the class: the factor p(mask | class) of the class posteriors (missingness)."""

import copy
import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp

import mixtura
import reference
from mixtura import AveragedMixtureClassifier, MixtureClassifier, checks
from mixtura.estimators.density_classifier import marginal_log_proba
from mixtura.model.missingness import PSEUDO_SAMPLES, Missingness
from mixtura.model.temperature import Temperature
from mixtura.selection.missingness import STRENGTHS
from test_average import with_members

RATES = np.array([[0.1, 0.7, 0.0, 0.2], [0.7, 0.2, 0.0, 0.2], [0.2, 0.4, 0.0, 0.6]])  # by class and feature


def samples(n=240, seed=0, rates=RATES):
    """Three classes that overlap, with values missing by class; the third feature is always observed."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n) % 3)
    X = rng.normal(size=(n, 4)) + 1.5 * np.eye(4)[y]
    return np.where(rng.random(X.shape) < rates[y], np.nan, X), y


X, Y = samples()


def informed(**arguments):
    """A model of two components per class with the factor."""
    return MixtureClassifier(2, missing="informative", random_state=0, **arguments).fit(X, Y)


def searched(rows=X, labels=Y, **arguments):
    """A model that held-out samples choose, among few."""
    return MixtureClassifier(covariance_type="tied", warp=None, random_state=0, **arguments).fit(rows, labels)


CHOSEN = searched()


def without(model):
    plain = copy.copy(model)
    plain.missingness_ = None
    return plain


def centred(values):
    return values - logsumexp(values, axis=1, keepdims=True)


@pytest.mark.parametrize("strength", [1.0, 0.35])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("prior", [None, [0.7, 0.2, 0.1]])
def test_posteriors_are_those_of_the_twin(strength, temperature, noise, prior):
    model = informed()
    model.temperature_, model.label_noise_ = temperature, noise
    model.training_prior_ = model.class_prior_
    model.missingness_ = model.missingness_.scaled(strength)
    old = model.class_prior_
    scores = model.predict_joint_log_proba(X) / (1 + (temperature - 1) * (~np.isnan(X)).mean(1))[:, None]
    factors = reference.mask_log_factors(X, Y, X, 3, PSEUDO_SAMPLES)
    posteriors = np.exp(centred(scores + strength * factors))
    expected = np.log((1 - noise) * posteriors + noise * old)
    if prior is not None:
        model, expected = model.with_class_prior(prior), expected + np.log(prior) - np.log(old)
    assert_allclose(model.predict_log_proba(X), centred(expected), atol=1e-9)


def test_the_factor_of_an_average_stands_outside_of_its_members():
    model = with_members(3)
    model.label_noise_ = 0.0
    rows = np.array([[0.1, np.nan], [np.nan, np.nan], [0.3, 0.5]])
    plain = model.predict_log_proba(rows)
    odds = torch.tensor([[0.5, -1.0], [-0.4, 2.0]], dtype=torch.float64)
    model.missingness_ = Missingness(torch.tensor([0, 1]), odds, 0.5)
    factors = model.missingness_.log_factors(torch.from_numpy(np.isnan(rows))).T.numpy()
    assert_allclose(model.predict_log_proba(rows), centred(plain + factors), atol=1e-12)


@pytest.mark.parametrize("observed", [0.0, 0.4, 1.0])
def test_no_temperature_divides_the_factor(observed):
    scores, factors = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    with_factor, plain = (Temperature(4.0).apply(scores, observed, extra) for extra in (factors, 0.0))
    torch.testing.assert_close(with_factor - plain, factors)


def test_densities_and_completed_values_leave_the_mask_out():
    model = informed(temperature=1.5)
    plain = without(model)
    for method in ("score_samples", "outlier_score", "impute", "responsibilities", "predict_joint_log_proba"):
        assert_array_equal(getattr(model, method)(X), getattr(plain, method)(X))
    assert_array_equal(model.sample(5)[0], plain.sample(5)[0])
    assert np.abs(model.predict_proba(X) - plain.predict_proba(X)).max() > 0.2


def test_features_that_are_never_or_always_missing_have_no_bit():
    assert informed().missingness_.columns.tolist() == [0, 1, 3]
    assert MixtureClassifier(1, missing="informative").fit(np.nan_to_num(X), Y).missingness_ is None
    empty = np.column_stack((X, np.full(len(X), np.nan)))
    with pytest.warns(checks.RepairWarning, match="no observed value"):
        assert MixtureClassifier(1, missing="informative").fit(empty, Y).missingness_.columns.tolist() == [0, 1, 3]


# ---- what admits it ----


def test_held_out_samples_admit_the_factor():
    model, ignorable = CHOSEN, searched(missing="ignorable")
    test, labels = samples(600, seed=1)
    losses = [-m.predict_log_proba(test)[np.arange(600), labels].mean() for m in (model, ignorable)]
    assert ignorable.missingness_ is None
    assert model.missingness_.strength in STRENGTHS
    assert losses[0] < 0.8 * losses[1]
    assert_array_equal(model.predict_joint_log_proba(test), ignorable.predict_joint_log_proba(test))


@pytest.mark.parametrize("seed", range(3))
def test_values_missing_at_random_do_not(seed):
    rows, labels = samples(seed=seed, rates=np.full((3, 4), 0.3))
    assert searched(rows, labels).missingness_ is None


def test_dependent_features_count_less():
    """Features that are missing together are one piece of evidence."""
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 2
    gone = rng.random(400) < np.where(labels, 0.6, 0.3)
    rows = np.where(gone[:, None], np.nan, rng.normal(size=(400, 8)))
    model = searched(rows, labels, missing="informative")
    assert model.missingness_.strength < 0.5


def test_without_a_search_only_an_argument_admits_it():
    assert MixtureClassifier(1).fit(X, Y).missingness_ is None
    assert informed().missingness_.strength == 1
    with pytest.raises(ValueError, match="missing must be one of 'auto', 'ignorable', 'informative'; got 'yes'"):
        MixtureClassifier(missing="yes").fit(X, Y)


def test_refits_keep_the_strength_and_estimate_the_shares():
    from mixtura.estimators.refits import refit

    model, part = CHOSEN, np.arange(120)
    copied = refit(model, X, Y, part)
    assert copied.missingness_.strength == model.missingness_.strength
    own = copied.missingness_.scaled(1.0).log_factors(torch.from_numpy(np.isnan(X[:, [0, 1, 3]])))
    assert_allclose(own.T, reference.mask_log_factors(X[part], Y[part], X, 3, PSEUDO_SAMPLES), atol=1e-9)
    assert refit(without(model), X, Y, part).missingness_ is None


# ---- samples of every kind ----


def factors_of(model):
    return model.missingness_.log_odds


def test_soft_labels_and_weights():
    hard, ones = informed(), np.ones(len(X))
    soft = MixtureClassifier(2, missing="informative", random_state=0).fit(X, np.eye(3)[Y])
    assert_allclose(factors_of(soft), factors_of(hard))
    twice = MixtureClassifier(2, missing="informative").fit(np.vstack((X, X[:60])), np.append(Y, Y[:60]))
    weighted = MixtureClassifier(2, missing="informative").fit(X, Y, ones + (np.arange(len(X)) < 60))
    assert_allclose(factors_of(weighted), factors_of(twice))


def test_unlabeled_samples_add_nothing():
    rows, labels = np.vstack((X, np.full((20, 4), 0.1))), np.append(Y, np.full(20, -1))
    model = MixtureClassifier(2, missing="informative", unlabeled=-1, random_state=0).fit(rows, labels)
    assert_allclose(factors_of(model), factors_of(informed()))


def test_streams():
    batches = [(X[:100], Y[:100]), (X[100:], Y[100:])]
    model = MixtureClassifier(2, missing="informative", random_state=0).fit(batches)
    assert_allclose(factors_of(model), factors_of(informed()))
    assert_allclose(np.vstack(list(model.predict_proba([X[:100], X[100:]]))), model.predict_proba(X), atol=1e-9)


def test_categories():
    frame = pd.DataFrame(X, columns=list("abcd"))
    frame["b"] = np.where(np.isnan(X[:, 1]), None, np.where(np.nan_to_num(X[:, 1]) > 0, "high", "low"))
    model = MixtureClassifier(1, missing="informative", random_state=0).fit(frame, Y)
    assert_allclose(factors_of(model), factors_of(informed()))
    explanation = model.explain(frame[:5])
    assert_allclose(explanation.base_values + explanation.values.sum(1), explanation.log_odds, atol=1e-10)
    assert (explanation.values[frame[:5].isna().to_numpy()] != 0).all()


def test_the_first_batch_of_partial_fit_and_a_warm_start_keep_it():
    model = MixtureClassifier(2, missing="informative", random_state=0)
    model.partial_fit(X[:120], Y[:120], classes=[0, 1, 2])
    first = factors_of(model)
    assert_array_equal(factors_of(model.partial_fit(X[120:], Y[120:])), first)
    warm = searched(warm_start=True)
    before = warm.missingness_
    assert warm.fit(X[:200], Y[:200]).missingness_ is before


# ---- what is said of it ----


def test_explanations_are_shapley_values_of_values_and_masks():
    model = informed(temperature=1.3)

    def value(row, kept):
        return marginal_log_proba(model, row[None], kept)[0]

    explanation = model.explain(X[:4], classes=(0, 1))
    for n, row in enumerate(X[:4]):
        shares = np.zeros(4)
        for order in itertools.permutations(range(4)):
            kept = np.zeros(4, bool)
            for j in order:
                before = value(row, kept)
                kept[j] = True
                shares[j] += (value(row, kept) - before) @ [1, -1, 0] / 24
        assert_allclose(explanation.values[n], shares, atol=1e-9)
    assert_allclose(explanation.base_values, np.log(model.class_prior_[0] / model.class_prior_[1]), atol=1e-12)


def test_the_contribution_of_a_missing_value_is_printed():
    model = informed()
    row = np.array([[np.nan, 0.1, 0.2, 0.3]])
    explanation = model.explain(row, classes=(1, 0))
    shares = model.missingness_.log_odds[:, 0].numpy()
    assert_allclose(explanation.values[0, 0], -np.logaddexp(0, -shares[1]) + np.logaddexp(0, -shares[0]), atol=1e-9)
    for classes in ((0, 1), (1, 0)):
        text = str(model.explain(row, classes=classes))
        assert f"(is missing: +{explanation.values[0, 0]:.1f} towards 1; knowing it would change" in text


def test_importances_integrate_the_mask_out_too():
    model = informed()
    whole = -model.predict_log_proba(X)[np.arange(len(X)), Y].mean()
    kept = np.array([False, True, True, True])
    scores = without(model).predict_log_proba(np.where(kept, X, np.nan))
    known = model.missingness_
    counted = torch.tensor([[False, True, True]]).expand(len(X), 3)
    factors = known.log_factors(torch.from_numpy(np.isnan(X[:, [0, 1, 3]])), counted).T.numpy()
    own = -centred(scores + factors)[np.arange(len(X)), Y].mean()
    assert_allclose(model.feature_importances(X, Y)[0], own - whole, atol=1e-9)


def test_files_and_conversions(tmp_path):
    model = informed(temperature=1.5)
    model.save(tmp_path / "model.mixtura")
    assert_array_equal(mixtura.load(tmp_path / "model.mixtura").predict_proba(X), model.predict_proba(X))
    with pytest.raises(ValueError, match="fit with missing='ignorable'"):
        model.to_sklearn()
    with pytest.raises(ValueError, match="take no account of which values are missing; got missing='informative'"):
        AveragedMixtureClassifier(MixtureClassifier(1, missing="informative")).fit(X, Y)
    broken = informed()
    broken.missingness_ = Missingness(torch.tensor([0, 1, 9]), factors_of(broken))
    with pytest.raises(ValueError, match="missingness_ are not from 0 to 3"):
        broken.save(tmp_path / "broken.mixtura")


@pytest.mark.parametrize("n_members", [1, 3])
def test_onnx_graphs(tmp_path, n_members):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = with_members(n_members)
    odds = torch.tensor([[0.5, -1.0], [-0.4, 2.0]], dtype=torch.float64)
    model.missingness_ = Missingness(torch.tensor([0, 1]), odds, 0.5)
    rows = np.array([[0.1, np.nan], [np.nan, 0.2], [np.nan, np.nan], [0.3, 0.5]], dtype=np.float32)
    model.to_onnx(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert_allclose(session.run(None, {"X": rows})[0], model.predict_proba(rows.astype(float)), atol=1e-6)


# ---- the warning ----


def test_a_change_of_missingness_is_told_once():
    model, complete = copy.copy(CHOSEN), np.nan_to_num(X)
    with pytest.warns(UserWarning, match=r"0 % of the values of x1 are missing \(and 2 other features\), 44 % were"):
        model.predict_proba(complete)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict_proba(complete)
        informed().predict_proba(complete)
        other = copy.copy(CHOSEN)
        other.predict_proba(complete[:3])  # too few to tell
        other.predict_proba(samples(seed=5)[0])
        other.explain(X[:20])
        other.explain(complete[:3])
