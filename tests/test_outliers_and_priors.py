"""Outliers, abstaining, doubtful labels, other class priors, costs, imputed values."""

import copy
import math

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import log_softmax
from scipy.stats import entropy, norm
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.model_selection import TunedThresholdClassifierCV
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

from mixtura import (
    AveragedMixtureClassifier,
    DiscriminativeMixtureClassifier,
    GaussianMixture,
    HybridMixtureClassifier,
    MarginalFeatureSelector,
    MixtureClassifier,
    MixtureImputer,
    NonnegativeMixtureClassifier,
    RejectOption,
    SparseMixtureClassifier,
    load,
)
from mixtura.datasets import make_ripley
from mixtura.estimators import TableClassifier
from named_samples import NAMES, named_samples

two_and_ten = pytest.mark.parametrize("n_classes", [2, 10])
COVARIANCES = ["full", "tied", "diag", "spherical", "low_rank"]


# ---- doubt -----------------------------------------------------------------------------------------------------------


def simplex(n_samples, seed, n_features):
    """Six classes at the corners of a simplex: samples of a class are as far from all others, in many features."""
    rng = np.random.default_rng(seed)
    y = np.arange(n_samples) % 6
    return 3 * np.eye(6, n_features)[y] + rng.normal(size=(n_samples, n_features)), y


def test_doubt_and_distance_are_combined_by_their_ranks(tmp_path):
    """Against a slow twin: entropies at the temperature sqrt(2 D), and -log p with an exponential tail."""
    X, y = simplex(1500, 0, 40)
    model = MixtureClassifier(1, covariance_type="tied", random_state=0).fit(X, y).calibrate_outliers(X, y)
    reference, fresh = model.outlier_reference_, simplex(2000, 1, 40)[0]
    fresh[:5] *= 20
    tempered = np.exp(log_softmax(model.predict_joint_log_proba(fresh) / np.sqrt(80), axis=1))
    doubts, distances, expected = entropy(tempered, axis=1), model.outlier_score(fresh), []
    limit = np.sort(reference[:, 0])[math.ceil(0.9 * 1500) - 1]
    above = reference[:, 0][reference[:, 0] > limit]
    for distance, doubt in zip(distances, doubts, strict=True):
        as_far = (reference[:, 0] >= min(distance, limit)).sum()
        as_doubtful = (reference[:, 1] >= doubt).sum()
        surprise = -np.log((as_far + 1) / 1501) - np.log((as_doubtful + 1) / 1501)
        expected.append(surprise + max(0, distance - limit) / (above - limit).mean())
    scores = model.outlier_score(fresh, "auto")
    assert_allclose(scores, expected, rtol=1e-6)
    assert_allclose(model.outlier_score(torch.from_numpy(fresh), "auto"), scores)
    assert scores[:5].min() > scores[5:].max()
    for share in (0.1, 0.02):
        assert -0.04 < model.is_outlier(fresh, share).mean() - share < 0.02  # copies know fewer samples
    threshold = np.sort(reference[:, 0])[math.ceil(1501 * 0.95) - 1]
    assert (model.is_outlier(fresh, 0.05, "distance") == (distances > threshold)).all()
    model.save(tmp_path / "model")
    assert (load(tmp_path / "model").is_outlier(fresh) == model.is_outlier(fresh)).all()
    fresh[:, 0] = np.nan  # doubt is no surprise there
    order = np.argsort(model.outlier_score(fresh))
    assert (np.diff(model.outlier_score(fresh, "auto")[order]) >= 0).all()


def test_doubt_recognises_classes_between_the_others():
    X, y = simplex(1500, 0, 200)
    known = y < 5
    model = MixtureClassifier(1, covariance_type="tied", random_state=0).fit(X[known], y[known])
    model.calibrate_outliers(X[known], y[known])
    fresh, labels = simplex(1500, 1, 200)
    with_doubt, by_distance = (
        roc_auc_score(labels == 5, model.outlier_score(fresh, score)) for score in ("auto", "distance")
    )
    assert with_doubt > by_distance + 0.05


@pytest.mark.parametrize(("n_classes", "n_features"), [(1, 40), (2, 40), (6, 19)])
def test_with_few_classes_or_features_the_distance_decides(n_classes, n_features):
    X, y = simplex(600, 0, n_features)
    X, y = X[y < n_classes], y[y < n_classes]
    fresh = 1.3 * simplex(400, 1, n_features)[0]
    if n_classes == 1:
        model = GaussianMixture(2, random_state=0).fit(X).calibrate_outliers(X)
    else:
        model = MixtureClassifier(1, covariance_type="tied", random_state=0).fit(X, y).calibrate_outliers(X, y)
    assert np.isnan(model.outlier_reference_[:, 1]).all()
    assert (model.is_outlier(fresh, 0.1) == model.is_outlier(fresh, 0.1, "distance")).all()
    assert 0 < model.is_outlier(fresh, 0.1).mean() < 1
    with pytest.raises(ValueError, match="score"):
        model.is_outlier(X, score="energy")


def test_thresholds_of_models_of_version_0_1_are_distances():
    X, y = simplex(600, 0, 40)
    model = MixtureClassifier(1, random_state=0).fit(X, y).calibrate_outliers(X, y)
    expected = model.is_outlier(X, 0.1, "distance")
    model.outlier_reference_ = model.outlier_reference_[:, 0].copy()
    for score in ("auto", "distance"):
        assert (model.is_outlier(X, 0.1, score) == expected).all()


# ---- sets ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_sets_hold_the_class_as_often_as_they_say(coverage):
    """Over 100 splits, in every class, whatever the model is worth."""
    rng, shares = np.random.default_rng(0), []
    centres = np.array([[0.0, 0.0], [3.0, 1.0], [0.0, 5.0]])

    def draw(n_of_each):
        y = np.repeat([0, 1, 2], n_of_each)
        return centres[y] + rng.standard_t(3, (len(y), 2)), np.array(["a", "b", "c"])[y]

    model = MixtureClassifier(1, covariance_type="spherical").fit(*draw([20, 200, 30]))
    for _ in range(100):
        X, y = draw([50, 70, 60])
        rows, _ = draw([300, 300, 300])
        members = model.calibrate_sets(X, y).predict_set(rows, coverage)
        own = members[np.arange(900), np.repeat([0, 1, 2], 300)]
        shares.append(own.reshape(3, 300).mean(1))
    mean, error = np.mean(shares, 0), np.std(shares, 0, ddof=1) / 10
    expected = np.ceil(np.array([51, 71, 61]) * coverage) / np.array([51, 71, 61])
    assert (np.abs(mean - expected) < 3.5 * error).all()
    assert (mean > coverage - 2 * error).all()
    assert members.sum(1).mean() < 2.5


@pytest.mark.parametrize("kind", ["tied", "full"])
def test_p_values_of_a_class_are_uniform_for_its_samples(kind, tmp_path):
    """Over 60 splits, whatever the model is worth, and small for samples unlike the class."""
    rng, centres, shares = np.random.default_rng(0), np.array([[0.0, 0.0], [6.0, 1.0]]), []

    def draw(n_of_each):
        y = np.repeat([0, 1], n_of_each)
        return centres[y] + rng.standard_t(3, (len(y), 2)), np.array(["a", "b"])[y]

    model = MixtureClassifier(1, covariance_type=kind).fit(*draw([20, 200]))
    with pytest.raises(ValueError, match=r"typicality needs calibration samples. Call model.calibrate_sets\(X, y\)"):
        model.typicality(draw([1, 1])[0])
    for _ in range(60):
        model.calibrate_sets(*draw([50, 40]))
        p_values = model.typicality(draw([200, 200])[0])
        shares.append([(p_values[:200, 0] <= 0.2).mean(), (p_values[200:, 1] <= 0.2).mean()])
        assert np.median(p_values[200:, 0]) < 0.08
    mean, error = np.mean(shares, 0), np.std(shares, 0, ddof=1) / 60**0.5
    assert (np.abs(mean - np.floor(0.2 * np.array([51, 41])) / np.array([51, 41])) < 3.5 * error).all()
    X, y = draw([30, 20])
    p_values = model.calibrate_sets(X, y).typicality(X)
    density = model.predict_joint_log_proba(X)
    for n in range(50):
        assert p_values[n, 1] == (1 + (density[30:, 1] <= density[n, 1]).sum()) / 21
    assert (model.typicality([[90.0, 90.0]]) == [1 / 31, 1 / 21]).all()
    rows, _ = draw([30, 30])  # which are not at the same places as calibration samples, but for rounding
    p_values = model.typicality(rows)
    assert torch.equal(model.typicality(torch.from_numpy(rows)), torch.from_numpy(p_values))
    np.testing.assert_array_equal(np.concatenate(list(model.typicality([rows[:3], rows[3:]]))), p_values)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").typicality(rows), p_values)
    model.set_reference_ = model.set_reference_[:, :2]  # of a model that was stored before
    assert model.predict_set(X).any()
    with pytest.raises(ValueError, match="typicality needs calibration samples"):
        model.typicality(X)


def test_sets_are_order_statistics_of_the_class(tmp_path):
    X, y = make_ripley(100, random_state=0)
    model = MixtureClassifier(2, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match=r"Call model.calibrate_sets\(X, y\) first, with labeled samples"):
        model.predict_set(X)
    rows, labels = make_ripley(40, random_state=1)
    model.calibrate_sets(rows, labels)
    scores = -model.predict_log_proba(rows)
    for c, label in enumerate(model.classes_):
        own = np.sort(scores[labels == label, c])
        threshold = own[math.ceil((len(own) + 1) * 0.7) - 1]
        assert (model.predict_set(X, 0.7)[:, c] == (-model.predict_log_proba(X)[:, c] <= threshold)).all()
    model.save(tmp_path / "model")
    assert (load(tmp_path / "model").predict_set(X) == model.predict_set(X)).all()
    assert torch.equal(model.predict_set(torch.from_numpy(X)), torch.from_numpy(model.predict_set(X)))
    single = copy.copy(model).calibrate_sets(torch.from_numpy(rows).float(), torch.from_numpy(labels))
    np.testing.assert_allclose(single.set_reference_, model.set_reference_, rtol=1e-4, atol=1e-6)
    assert model.predict_set([X[:3], X[3:]]) is not None
    few = np.r_[np.flatnonzero(labels == 0)[:8], np.flatnonzero(labels == 1)]
    assert model.calibrate_sets(rows[few], labels[few]).predict_set(X)[:, 0].all()  # too few to leave it out
    assert model.with_class_prior([0.9, 0.1]).set_reference_ is None
    for coverage in (0.0, 1.0, "most"):
        with pytest.raises(ValueError, match="coverage"):
            model.predict_set(X, coverage)
    with pytest.raises(ValueError, match="which is not a class of the model"):
        model.calibrate_sets(rows, labels + 7)


# ---- outliers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("covariance_type", COVARIANCES)
def test_outlier_score_is_that_of_a_slow_twin(covariance_type):
    X, y = named_samples(2, missing=0.2)
    model = MixtureClassifier(2, covariance_type=covariance_type, random_state=0).fit(X, y)
    responsibilities, scores = model.responsibilities(X), model.outlier_score(X)
    for n in range(0, 80, 7):
        row = X.to_numpy()[n]
        seen = ~np.isnan(row)
        m, total = seen.sum(), 0.0
        if not m:
            assert scores[n] == 0
            continue
        for k, share in enumerate(responsibilities[n]):
            off = (row - model.means_[k])[seen]
            distance = off @ np.linalg.solve(model.covariances_[k][np.ix_(seen, seen)], off)
            total += share * ((distance / m) ** (1 / 3) - 1 + 2 / (9 * m)) / np.sqrt(2 / (9 * m))
        assert_allclose(scores[n], total, atol=1e-7)


@pytest.mark.parametrize("covariance_type", COVARIANCES)
def test_outlier_scores_near_the_means_do_not_depend_on_the_batch(covariance_type):
    X, y = named_samples(2)
    model = MixtureClassifier(1, covariance_type=covariance_type, random_state=0).fit(X.to_numpy(), y)
    rows = np.concatenate((model.means_, np.nextafter(model.means_, np.inf), X.to_numpy()[:30]))
    alone = [model.outlier_score(row[None])[0] for row in rows]
    assert_allclose(model.outlier_score(rows), alone, rtol=0, atol=1e-12)


@two_and_ten
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_false_alarms_are_as_rare_as_requested(n_classes, missing):
    X, y = named_samples(n_classes, 150, missing=missing)
    model = MixtureClassifier(1, random_state=0).fit(X, y).calibrate_outliers(X, y)
    fresh, _ = named_samples(n_classes, 400, missing=missing, seed=1)
    for share in (0.01, 0.1):
        alarms = model.is_outlier(fresh, share).mean()
        # Both the threshold (from 150 per class) and the rate have sampling errors.
        assert abs(alarms - share) < 4 * np.sqrt(share * (1 / len(X) + 1 / len(fresh)))
    far = fresh + 40
    assert model.is_outlier(far)[far.notna().any(axis=1).to_numpy()].all()
    assert not model.is_outlier(fresh * np.nan).any()


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag"])
def test_training_samples_are_scored_as_if_left_out(covariance_type):
    """Exactly for matrices without a prior; else nearer to the truth than their own scores."""
    X = named_samples(1, 30, missing=0)[0].to_numpy()
    model = GaussianMixture(1, covariance_type=covariance_type, reg_covar=0).fit(X)
    others = [np.delete(X, n, 0) for n in range(len(X))]
    left_out = [clone(model).fit(rest).outlier_score(X[n : n + 1])[0] for n, rest in enumerate(others)]
    error = np.abs(model.outlier_reference_[:, 0] - np.sort(left_out))
    uncorrected = np.abs(np.sort(model.outlier_score(X)) - np.sort(left_out))
    assert error.max() < 1e-6 if covariance_type != "diag" else error.mean() < 0.3 * uncorrected.mean()
    assert model.outlier_source_ == "training"


def test_a_selection_leaves_the_scores_of_samples_that_it_held_out(tmp_path):
    X, y = named_samples(2, 60)
    fresh = named_samples(2, 1000, seed=1)[0]
    models = [
        MixtureClassifier(random_state=0).fit(X, y),
        GaussianMixture("auto", prior="auto", random_state=0).fit(X),
        DiscriminativeMixtureClassifier(random_state=0).fit(X, y),
    ]
    for model in models:
        assert model.outlier_source_ == "held-out"
        assert "held-out samples" in str(model.summary())
        assert len(model.outlier_reference_) == len(X)
        assert 0.03 < model.is_outlier(fresh, 0.1).mean() < 0.2
        model.save(tmp_path / "model")
        assert (load(tmp_path / "model").is_outlier(fresh) == model.is_outlier(fresh)).all()
    held = fresh[:100].fillna(0), named_samples(2, 1000, seed=1)[1][:100]
    hybrid = HybridMixtureClassifier(1, n_epochs=3, random_state=0).fit(X.fillna(0), y, X_val=held[0], y_val=held[1])
    assert_allclose(hybrid.outlier_reference_[:, 0], np.sort(hybrid.outlier_score(held[0])), rtol=1e-6, atol=1e-6)
    table = TableClassifier(MixtureClassifier(1)).fit(X, y)
    assert table.is_outlier(X + 50)[X.notna().any(axis=1)].all()


def test_a_threshold_from_single_precision_is_saved(tmp_path):
    X, y = named_samples(2)
    rows = torch.from_numpy(X.to_numpy()).float()
    model = MixtureClassifier(1, random_state=0).fit(rows, y).calibrate_outliers(rows, y)
    model.save(tmp_path / "model")
    assert torch.equal(load(tmp_path / "model").is_outlier(rows, 0.1), model.is_outlier(rows, 0.1))


def test_small_training_sets_do_not_make_everything_an_outlier():
    """In-sample thresholds would: 12 samples in 4 dimensions fit themselves."""
    X, y = named_samples(2, 12, missing=0.0)
    model = MixtureClassifier(1, random_state=0).fit(X, y).calibrate_outliers(X, y)
    fresh, _ = named_samples(2, 500, missing=0.0, seed=1)
    assert model.is_outlier(fresh, 0.1).mean() < 0.25


def test_thresholds_are_stored_in_files_and_requested_by_a_message(tmp_path):
    X, y = named_samples(2)
    model = MixtureClassifier(1, random_state=0).fit(X, y)
    converted = MixtureClassifier.from_sklearn(GaussianNB().fit(X.fillna(0), y))
    with pytest.raises(ValueError, match=r"Call model.calibrate_outliers\(X, y\) with the training set first"):
        converted.is_outlier(X)
    model.calibrate_outliers(X, y)
    model.save(tmp_path / "model")
    assert (load(tmp_path / "model").is_outlier(X, 0.1) == model.is_outlier(X, 0.1)).all()
    density = GaussianMixture(2, random_state=0).fit(X).calibrate_outliers(X)
    assert density.is_outlier(X + 50).all()
    with pytest.raises(AttributeError, match="has no 'is_outlier'"):
        SparseMixtureClassifier().is_outlier  # noqa: B018


# ---- abstaining ------------------------------------------------------------------------------------------------------


@two_and_ten
def test_a_reject_option_answers_what_is_certain(n_classes):
    X, y = named_samples(n_classes)
    model = RejectOption(MixtureClassifier(1, random_state=0), confidence=0.9).fit(X, y)
    predicted = model.predict(X)
    rejected = predicted == "rejected"
    assert (rejected == model.abstains(X)).all()
    assert (model.predict_proba(X).max(1)[~rejected] >= 0.9).all()
    assert model.score(X, y) >= model.estimator_.score(X, y)
    assert (model.predict(X + 100)[X.notna().any(axis=1)] == "rejected").all()


def test_reject_options_say_what_is_wrong():
    X, y = make_ripley(30, random_state=0)
    with pytest.raises(TypeError, match="estimator must be a classifier of mixtura; got SVC"):
        RejectOption(SVC()).fit(X, y)
    with pytest.raises(ValueError, match=r"has no density and cannot detect outliers\. Set false_alarm=None"):
        RejectOption(SparseMixtureClassifier()).fit(X, y)
    with pytest.raises(ValueError, match="reject_label must not be a class; got 1"):
        RejectOption(MixtureClassifier(1), reject_label=1).fit(X, y)
    assert RejectOption(MixtureClassifier(1)).fit(X, y).predict([[99.0, 99.0]]).tolist() == [-1]


def test_coverage_curves_end_at_the_error_rate():
    X, y = named_samples(2)
    model = MixtureClassifier(1, random_state=0).fit(X, y)
    curve = model.coverage_curve(X, y)
    assert_allclose(curve.errors[-1], 1 - model.score(X, y))
    assert curve.coverages[-1] == 1
    most = model.predict_proba(X).max(1) >= curve.confidences[20]
    assert_allclose(curve.errors[most.sum() - 1], (model.predict(X) != y)[most].mean())
    assert curve.to_frame().shape == (len(X), 3)


@two_and_ten
def test_wrong_labels_are_suspicious(n_classes):
    X, y = named_samples(n_classes, 60, missing=0.05)
    wrong = np.random.default_rng(0).choice(len(X), len(X) // 20, replace=False)
    spoiled = y.copy()
    others = [f"kind {c}" for c in range(n_classes)]
    spoiled.iloc[wrong] = [others[(others.index(label) + 1) % n_classes] for label in y.iloc[wrong]]
    actual = MixtureClassifier(1, random_state=0).fit(X, spoiled).suspicious_labels(X, spoiled)
    hits = len(set(actual.positions) & set(wrong))
    assert hits >= 0.5 * len(actual)
    assert hits >= (0.6 * len(wrong) if n_classes == 2 else 3)  # ten classes overlap
    assert actual.to_frame()["label"].tolist() == spoiled.iloc[actual.positions].tolist()


def test_labels_are_not_suspicious_where_classes_overlap():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 1000)
    X = rng.normal(size=(1000, 2)) + y[:, None]
    assert len(MixtureClassifier(1, random_state=0).fit(X, y).suspicious_labels(X, y)) <= 10


def test_flipped_labels_of_real_samples_are_suspicious():
    X, y = load_iris(return_X_y=True)
    rng = np.random.default_rng(0)
    wrong = rng.choice(len(y), 8, replace=False)
    spoiled = y.copy()
    spoiled[wrong] = (y[wrong] + rng.integers(1, 3, 8)) % 3
    actual = MixtureClassifier(1, random_state=0).fit(X, spoiled).suspicious_labels(X, spoiled)
    hits = set(actual.positions) & set(wrong)
    assert len(hits) >= max(6, 0.5 * len(actual))
    assert (actual.suggestions == y[actual.positions])[np.isin(actual.positions, wrong)].mean() > 0.9


# ---- class priors ----------------------------------------------------------------------------------------------------

PRIORS = {
    "plain": MixtureClassifier(2, random_state=0),
    "averaged": AveragedMixtureClassifier(MixtureClassifier(2), n_estimators=3, random_state=0),
    "sparse": SparseMixtureClassifier(random_state=0),
    "nonnegative": NonnegativeMixtureClassifier(random_state=0, max_iter=5000, tol=1e-4),
}


@pytest.mark.parametrize("model", PRIORS.values(), ids=PRIORS)
def test_another_class_prior_changes_the_odds_by_its_ratio(model, tmp_path):
    X, y = make_ripley(60, random_state=0)
    X = X - X.min(0)
    model = clone(model).fit(X, y)
    before = model.predict_proba(X)
    prior = np.array([0.9, 0.1])
    changed = model.with_class_prior(prior)
    expected = before * prior / model.class_prior_
    if not isinstance(model, AveragedMixtureClassifier):  # whose members have class priors of their own
        assert_allclose(changed.predict_proba(X), expected / expected.sum(1, keepdims=True), atol=1e-9)
    assert_allclose(changed.with_class_prior(model.class_prior_).predict_proba(X), before, atol=1e-9)
    assert_allclose(model.predict_proba(X), before)  # the model itself stays
    assert_allclose(model.with_class_prior({0: 0.9, 1: 0.1}).predict_proba(X), changed.predict_proba(X))
    changed.save(tmp_path / "model")
    assert_allclose(load(tmp_path / "model").predict_proba(X), changed.predict_proba(X), atol=1e-12)
    assert_allclose(changed.class_prior_, prior)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ([0.5, 0.6], "class_prior must be positive and sum to 1"),
        ([1.0], "class_prior must have one probability for each of the 2 classes"),
        ({0: 1.0}, r"prior must have one probability for each of the classes \[0, 1\]; got \[0\]"),
    ],
)
def test_wrong_class_priors_are_refused(prior, message):
    model = MixtureClassifier(1).fit(*make_ripley(20, random_state=0))
    with pytest.raises(ValueError, match=message):
        model.with_class_prior(prior)


def test_trained_at_half_and_half_and_applied_at_nine_to_one():
    """Error within a point of a model that was trained at 90/10, the prior being estimated without labels."""
    X, y = make_ripley(4000, random_state=0)
    balanced = MixtureClassifier(2, random_state=0).fit(X[:2000], y[:2000])
    rest, labels = X[2000:], y[2000:]
    kept = (labels == 0) | (np.random.default_rng(0).random(len(labels)) < 1 / 9)
    rest, labels = rest[kept], labels[kept]
    half = len(rest) // 2
    skewed = MixtureClassifier(2, random_state=0).fit(rest[:half], labels[:half])
    prior = balanced.estimate_class_prior(rest[half:])
    assert_allclose(prior, [0.9, 0.1], atol=0.02)
    errors = [
        1 - model.score(rest[half:], labels[half:]) for model in (skewed, balanced.with_class_prior(prior), balanced)
    ]
    assert errors[1] < errors[0] + 0.01
    assert errors[2] > errors[0] + 0.01


@two_and_ten
def test_costs_choose_the_class_with_the_lowest_expected_cost(n_classes):
    X, y = named_samples(n_classes)
    model = MixtureClassifier(1, random_state=0).fit(X, y)
    costs = np.random.default_rng(0).random((n_classes, n_classes)) * (1 - np.eye(n_classes))
    expected = (model.predict_proba(X) @ costs).argmin(1)
    assert (model.predict(X, costs=costs) == model.classes_[expected]).all()
    assert (model.predict(X, costs=1 - np.eye(n_classes)) == model.predict(X)).all()
    with pytest.raises(ValueError, match="costs must be a finite matrix of shape"):
        model.predict(X, costs=[1, 2])


# ---- imputed values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("covariance_type", COVARIANCES)
def test_draws_have_the_conditional_distribution(covariance_type):
    X, _ = named_samples(2, 100, missing=0.0)
    model = GaussianMixture(2, covariance_type=covariance_type, random_state=0).fit(X)
    n_draws = 8000
    row = torch.tensor([[1.0, float("nan"), 0.5, float("nan")]], dtype=torch.float64)
    drawn = np.asarray(model.impute(row.expand(n_draws, -1), "draw", 0))
    seen = [0, 2]
    log_shares = np.log(model.responsibilities(row).numpy()[0])
    dense = model.mixture_.covariances.numpy()
    means = []
    for k in range(2):
        rest = dense[k][np.ix_([1, 3], seen)] @ np.linalg.inv(dense[k][np.ix_(seen, seen)])
        means.append(model.means_[k][[1, 3]] + rest @ (row.numpy()[0, seen] - model.means_[k][seen]))
    spread = drawn[:, [1, 3]].std(0)
    assert_allclose(drawn[:, [1, 3]].mean(0), np.exp(log_shares) @ means, atol=4 * spread.max() / np.sqrt(n_draws))
    cdf = np.zeros(n_draws)  # uniform under the mixture of conditionals
    for k in range(2):
        rest = dense[k][np.ix_([1], seen)] @ np.linalg.inv(dense[k][np.ix_(seen, seen)])
        variance = dense[k][1, 1] - (rest @ dense[k][np.ix_(seen, [1])]).item()
        cdf += np.exp(log_shares[k]) * norm.cdf(drawn[:, 1], means[k][0], np.sqrt(variance))
    assert abs(np.sort(cdf) - np.linspace(0, 1, n_draws)).max() < 1.95 / np.sqrt(n_draws)  # Kolmogorov, 0.1 %
    assert (drawn[:, seen] == row.numpy()[0, seen]).all()


def test_imputing_a_frame_gives_a_frame():
    X, y = named_samples(2)
    model = MixtureClassifier(1, random_state=0).fit(X, y)
    for completed in (model.impute(X), model.impute(X, "draw", 0)):
        assert isinstance(completed, pd.DataFrame)
        assert completed.columns.tolist() == NAMES
        assert completed.index.equals(X.index)
        assert not completed.isna().any(axis=None)
        assert_allclose(completed.to_numpy()[X.notna()], X.to_numpy()[X.notna()])
    assert isinstance(model.impute(torch.from_numpy(X.to_numpy()), "draw", 0), torch.Tensor)
    assert_allclose(model.impute(X, "draw", 3), model.impute(X, "draw", 3))
    with pytest.raises(ValueError, match="method must be one of 'mean', 'draw'; got 'median'"):
        model.impute(X, "median")


def test_the_imputer_serves_any_pipeline():
    X, y = named_samples(10)
    pipeline = make_pipeline(MixtureImputer(add_indicator=True), SVC()).fit(X, y)
    assert pipeline.score(X, y) > 0.5
    imputer = MixtureImputer(add_indicator=True).set_output(transform="pandas").fit(X)
    completed = imputer.transform(X)
    assert completed.columns.tolist() == NAMES + [f"missingindicator_{name}" for name in NAMES]
    assert (completed["missingindicator_age"] == X["age"].isna()).all()
    direct = GaussianMixture(prior="default", random_state=0).fit(X).impute(X)
    assert_allclose(completed[NAMES], direct)
    draws = [MixtureImputer(method="draw", random_state=seed).fit(X).transform(X) for seed in (0, 1)]
    assert not np.allclose(*draws)


def test_transformers_and_reject_options_are_kept_in_files(tmp_path):
    X, y = named_samples(2)
    models = [
        MixtureImputer(add_indicator=True).fit(X),
        MixtureImputer().fit(X.fillna(0.0)),  # no indicator
        RejectOption(MixtureClassifier(1, random_state=0)).fit(X, y),
        MarginalFeatureSelector(MixtureClassifier(1, random_state=0), n_features_to_select=2).fit(X, y),
    ]
    for model in models:
        model.save(tmp_path / "model")
        again = load(tmp_path / "model")
        if isinstance(model, RejectOption):
            assert (again.predict(X) == model.predict(X)).all()
        else:
            assert_allclose(again.transform(X), model.transform(X))


def test_features_of_bfloat16_tensors_are_selected():
    X, y = named_samples(2)
    rows = torch.from_numpy(X.to_numpy()).bfloat16()
    selector = MarginalFeatureSelector(MixtureClassifier(1), n_features_to_select=2).fit(rows, y)
    assert_allclose(selector.transform(rows), rows.float().numpy()[:, selector.get_support()])


def test_a_class_prior_is_given_by_label():
    X, y = make_ripley(60, random_state=0)
    by_label = MixtureClassifier(1, class_prior={1: 0.2, 0: 0.8}, random_state=0).fit(X, y)
    in_order = MixtureClassifier(1, class_prior=[0.8, 0.2], random_state=0).fit(X, y)
    np.testing.assert_array_equal(by_label.predict_proba(X), in_order.predict_proba(X))
    with pytest.raises(ValueError, match=r"one probability for each of the classes \[0, 1\]; got \[1\]"):
        MixtureClassifier(1, class_prior={1: 0.2}).fit(X, y)


def test_thresholds_are_tuned_by_scikit_learn():
    X, y = make_ripley(200, random_state=0)
    rare = (y == 0) | (np.arange(len(y)) % 10 == 0)
    model = MixtureClassifier(1, random_state=0)
    tuned = TunedThresholdClassifierCV(model, scoring="f1").fit(X[rare], y[rare])
    assert 0 < tuned.best_threshold_ < 0.5  # the positive class is rare
    assert f1_score(y[~rare], tuned.predict(X[~rare])) > f1_score(
        y[~rare], model.fit(X[rare], y[rare]).predict(X[~rare])
    )
