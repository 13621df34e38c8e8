"""Estimators around another, and methods of fitted models, with what a new user passes: a right answer, or words."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GroupKFold

from mixtura import (
    DiscriminativeMixtureClassifier,
    GaussianMixture,
    MarginalFeatureSelector,
    MixtureClassifier,
    MixtureImputer,
    RejectOption,
    SparseMixtureClassifier,
    load,
)
from mixtura.covariances import Diagonal, Tied
from mixtura.datasets import make_ripley
from mixtura.estimators.table_classifier import CONSTANT, TableClassifier, TableColumn
from mixtura.selection.splits import hold_outs

ROWS, LABELS = make_ripley(30, random_state=0)
HOLES = np.where(np.random.default_rng(0).random(ROWS.shape) < 0.2, np.nan, ROWS)
ONE = MixtureClassifier(1)
FRAME = pd.DataFrame({"a": ROWS[:, 0], "b": ROWS[:, 1], "kind": np.array(["red", "blue"])[LABELS]})

# ---- forms of input --------------------------------------------------------------------------------------------------

FORMS = {
    "masked": np.ma.masked_array(np.where(np.isnan(HOLES), 99.0, HOLES), np.isnan(HOLES)),
    "objects": np.where(np.isnan(HOLES), None, HOLES),
    "pd.NA": pd.DataFrame(np.where(np.isnan(HOLES), pd.NA, HOLES)).to_numpy(),
    "a tensor with gradients": torch.tensor(HOLES, requires_grad=True),
    "a list": HOLES.tolist(),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_missing_values_is_imputed_and_selected_alike(form):
    imputer = MixtureImputer().fit(FORMS[form])
    np.testing.assert_array_equal(imputer.transform(FORMS[form]), MixtureImputer().fit(HOLES).transform(HOLES))
    selector = MarginalFeatureSelector(ONE, n_features_to_select=2).fit(FORMS[form], LABELS)
    np.testing.assert_array_equal(selector.transform(FORMS[form]).astype(float), HOLES)


@pytest.mark.parametrize("estimator", [ONE, "five", GaussianMixture], ids=str)
def test_the_imputer_needs_a_density(estimator):
    with pytest.raises(TypeError, match="must be a GaussianMixture, an AveragedMixture or a number of components; got"):
        MixtureImputer(estimator).fit(HOLES)


@pytest.mark.parametrize("model", [ONE, GaussianMixture(), RejectOption(ONE), MixtureImputer()], ids=str)
def test_columns_of_one_name_and_integers_without_bound_are_refused(model):
    with pytest.raises(ValueError, match="X has more than one column named 'a'; rename one of them"):
        model.fit(pd.DataFrame(ROWS, columns=["a", "a"]), LABELS)
    with pytest.raises(ValueError, match="too large for dtype"):
        model.fit([[10**400, 1], [2, 3], [4, 5], [6, 6]], [0, 1, 0, 1])


@pytest.mark.parametrize("labels", [np.where(np.arange(60) % 4, LABELS, -1), np.where(np.arange(60) % 4, LABELS, 7)])
def test_features_are_selected_by_labeled_samples_of_positive_weight(labels):
    model = MarginalFeatureSelector(MixtureClassifier(1, unlabeled=-1), n_features_to_select=2)
    weights = (np.arange(60) % 4 > 0).astype(float)
    expected = MarginalFeatureSelector(ONE, n_features_to_select=2).fit(ROWS, LABELS, weights)
    actual = model.fit(ROWS, labels, weights if 7 in labels else None)
    assert actual.ranking_ == expected.ranking_
    assert len(actual.log_losses_) == 2


# ---- rejected samples ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "reject_label", "expected"),
    [
        (LABELS, "none of them", "none of them"),
        (LABELS, None, None),
        (LABELS.astype(np.uint8), "auto", -1),
        (np.where(LABELS, 0, -128).astype(np.int8), "auto", -129),
        (np.where(LABELS, 2**64 - 1, 2**64 - 2).astype(np.uint64), "auto", -1),
        (np.array(["a", "b"])[LABELS], "auto", "rejected"),
        (np.array(["a", "b"])[LABELS], -1, -1),
    ],
)
def test_rejection_changes_no_other_label(labels, reject_label, expected):
    model = RejectOption(ONE, confidence=0.9, reject_label=reject_label).fit(ROWS, labels)
    predicted, plain = model.predict(ROWS), model.estimator_.predict(ROWS)
    rejected = model.abstains(ROWS)
    assert 0 < rejected.sum() < 60
    assert predicted[~rejected].tolist() == plain[~rejected].tolist()
    assert set(predicted[rejected].tolist()) == {expected}
    assert model.score(ROWS, labels) == np.mean(plain[~rejected] == labels[~rejected]) > 0.9


def test_rejection_with_classes_of_few_samples():
    labels = np.where(np.arange(60) == 5, 9, LABELS)
    model = RejectOption(ONE).fit(ROWS, labels)
    assert model.predict(ROWS).shape == (60,)
    assert len(model.estimator_.suspicious_labels(ROWS, labels).positions) < 20
    assert RejectOption(ONE).fit(ROWS[::10], LABELS[::10]).predict(ROWS).shape == (60,)
    with pytest.raises(ValueError, match="No sample can be held out: every class has a single sample"):
        RejectOption(ONE).fit(ROWS[[0, -1]], LABELS[[0, -1]])
    with pytest.raises(ValueError, match=r"reject_label must be a single label; got \[1, 2\]"):
        RejectOption(ONE, reject_label=[1, 2]).fit(ROWS, LABELS)


@pytest.mark.parametrize("kind", ["unlabeled", "soft", "weights", "tensors"])
def test_outliers_are_calibrated_with_every_kind_of_label(kind):
    labels = {"unlabeled": np.where(np.arange(60) % 4, LABELS, -1), "soft": np.eye(2)[LABELS]}.get(kind, LABELS)
    weights = np.where(np.arange(60) < 9, 0.0, 1.0) if kind == "weights" else None
    model = MixtureClassifier(1, unlabeled=-1 if kind == "unlabeled" else None)
    rows = ROWS
    if kind == "tensors":
        rows, labels = torch.from_numpy(ROWS), torch.from_numpy(LABELS)
    model.fit(rows, labels, weights).calibrate_outliers(rows, labels, weights)
    assert 0 <= int(model.is_outlier(rows, 0.1).sum()) < 15


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_outlier_scores_of_constant_features_are_finite():
    model = GaussianMixture(2, prior="default", covariance_type="low_rank", max_iter=1, tol=10.0, random_state=0)
    assert np.isfinite(model.fit(np.full((20, 1), 1e-21)).outlier_score(np.full((3, 1), 1e-21))).all()


# ---- tables and categories -------------------------------------------------------------------------------------------

COLUMNS = (TableColumn("a"), TableColumn("kind", ("red", "blue")))


def test_tables_are_kept_and_refused_in_words(tmp_path):
    model = TableClassifier(ONE, COLUMNS).fit(FRAME, LABELS)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict_proba(FRAME), model.predict_proba(FRAME))
    for X in (ROWS, ROWS.tolist(), None, {"a": [1.0]}):
        with pytest.raises(TypeError, match="X must be a pandas data frame, whose columns have names; got"):
            model.predict(X)
    with pytest.raises(ValueError, match="X has more than one column named 'a'"):
        model.predict(FRAME[["a", "a", "kind"]])
    with pytest.raises(ValueError, match=r"columns must be a list of at least one TableColumn; got \['a'\]"):
        TableClassifier(ONE, ["a"]).fit(FRAME, LABELS)
    with pytest.raises(TypeError, match="estimator must be a classifier of mixtura; got int"):
        TableClassifier(5, COLUMNS).fit(FRAME, LABELS)


def test_tables_of_categories_alone_have_no_other_column(tmp_path):
    model = TableClassifier(ONE, COLUMNS[1:]).fit(FRAME, LABELS)
    assert model.estimator_.n_features_in_ == 1
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict_proba(FRAME), model.predict_proba(FRAME))
    model.estimator_ = MixtureClassifier(1).fit(FRAME[["kind"]].assign(**{CONSTANT: 0.0}), LABELS)  # as version 0.1 did
    model.save(tmp_path / "old")
    assert load(tmp_path / "old").predict_proba(FRAME).shape == (len(FRAME), 2)


def test_a_category_may_be_named_twice():
    twice, once = (MixtureClassifier(1, categorical_features=c).fit(FRAME, LABELS) for c in ([2, 2], [2]))
    np.testing.assert_array_equal(twice.predict_proba(FRAME), once.predict_proba(FRAME))


def test_methods_that_do_not_support_categories_say_so():
    model = MixtureClassifier(1).fit(FRAME, LABELS)
    for work in (model.to_sklearn, lambda: model.partial_fit(FRAME, LABELS)):
        with pytest.raises(ValueError, match="does not support categorical features"):
            work()
    with pytest.raises(ValueError, match="MixtureImputer take categories of a data frame"):
        SparseMixtureClassifier().fit(FRAME, LABELS)
    with pytest.raises(ValueError, match="A tensor must hold encoded samples, 2 numeric features and 2 indicators"):
        model.predict(torch.from_numpy(ROWS))
    with pytest.raises(ValueError, match="a minimum of 1 is required by MixtureClassifier"):
        model.predict(FRAME[:0])


# ---- splits and labels -----------------------------------------------------------------------------------------------

PARTS = (np.arange(60) % 2 == 0, np.arange(60) % 2 == 1)
WRONG_SPLITS = {
    "a generator": (iter([PARTS]), "cv is a list_iterator, which can be iterated only once; pass a list of splits"),
    "too large": ([(np.arange(30), np.arange(30, 61))], "two arrays of sample indices below 60, or two masks"),
    "fractions": ([(np.array([0.5]), np.array([1.5]))], "two arrays of sample indices below 60, or two masks"),
    "triples": ([(0, 1, 2)], r"cv must hold pairs of index arrays, \(training, held out\); got \(0, 1, 2\)"),
    "groups": (GroupKFold(2), "cannot split the samples: The 'groups' parameter should not be None. Pass a number"),
    "a class": ([(np.flatnonzero(LABELS == 0), np.flatnonzero(LABELS))], "must have samples of every class"),
}


@pytest.mark.parametrize("name", WRONG_SPLITS)
def test_splits_that_cannot_be_used_are_refused_in_words(name):
    cv, text = WRONG_SPLITS[name]
    with pytest.raises(ValueError, match=text):
        DiscriminativeMixtureClassifier(1, cv=cv, max_iter=2).fit(ROWS, LABELS)


def test_masks_are_splits_too():
    numbers = [tuple(np.flatnonzero(part) for part in PARTS)]
    for cv in ([PARTS], [list(PARTS)]):
        (actual,) = hold_outs(cv, torch.from_numpy(LABELS), torch.Generator())
        (expected,) = hold_outs(numbers, torch.from_numpy(LABELS), torch.Generator())
        assert torch.equal(actual.kept, expected.kept)
        assert torch.equal(actual.held_out, expected.held_out)


def test_methods_of_fitted_models_refuse_wrong_labels_in_words():
    model = MixtureClassifier(1).fit(ROWS, LABELS)
    for work in (model.summary, model.coverage_curve, model.feature_importances):
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            work(ROWS, LABELS[:7])
    with pytest.raises(ValueError, match="classes must be a label or a pair of different labels; got"):
        model.explain(ROWS[:2], classes=())
    assert model.explain(ROWS[:2], classes=np.array([0, 1])).against == 1
    with pytest.raises(NotFittedError):
        MixtureClassifier(1).calibrate_outliers(ROWS, LABELS)


@pytest.mark.parametrize("structure", [Tied(Diagonal()), Diagonal(), "low_rank"], ids=str)
def test_any_covariance_is_converted_to_scikit_learn(structure):
    model = GaussianMixture(2, covariance_type=structure, random_state=0).fit(ROWS)
    np.testing.assert_allclose(model.to_sklearn().score_samples(ROWS), model.score_samples(ROWS))


# ---- parts of model files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("outlier_reference_", np.empty(0)),
        ("outlier_reference_", np.array([2.0, 1.0])),
        ("outlier_reference_", np.array([[2.0, 0.1], [1.0, 0.2]])),
        ("outlier_reference_", np.array([[1.0, np.inf]])),
        ("outlier_reference_", np.array([[1.0, 0.1, 0.1]])),
        ("class_offsets_", np.array([np.inf, 0.0])),
        ("set_reference_", np.array([[0.0, np.nan]])),
        ("set_reference_", np.array([[7.0, 1.0]])),
        ("training_prior_", np.array([0.0, 1.0])),
        ("unobserved_", (7,)),
        ("unobserved_", 0.5),
        ("feature_names_in_", np.array(["a", ["b"]], dtype=object)),
    ],
)
def test_parts_that_cannot_predict_are_neither_saved_nor_loaded(name, value, tmp_path):
    model = MixtureClassifier(1).fit(ROWS, LABELS)
    setattr(model, name, value)
    with pytest.raises(ValueError, match=name):
        model.save(tmp_path / "model")
