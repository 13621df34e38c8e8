"""A second fit of the same object: it keeps nothing of the first, and if it fails it changes nothing."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from mixtura import (
    AveragedMixture,
    AveragedMixtureClassifier,
    DiscriminativeMixtureClassifier,
    GaussianMixture,
    HybridMixtureClassifier,
    MarginalFeatureSelector,
    MixtureClassifier,
    MixtureImputer,
    NonnegativeMixtureClassifier,
    RejectOption,
    RelevanceVectorClassifier,
    SparseMixtureClassifier,
)
from mixtura.datasets import make_ripley
from mixtura.estimators import density_estimator, imputer
from mixtura.estimators.estimator import with_selected_settings
from mixtura.estimators.refits import held_out, refit
from mixtura.estimators.table_classifier import TableClassifier, TableColumn
from mixtura.priors import Shrinkage
from mixtura.selection.automatic import AutomaticSearch
from mixtura.selection.task import is_auto

ROWS, LABELS = make_ripley(30, random_state=0)
ROWS = ROWS - ROWS.min(0)
ONE = MixtureClassifier(1, random_state=0)
MODELS = {
    "density": GaussianMixture(2, random_state=0),
    "averaged density": AveragedMixture(GaussianMixture(1, prior="default"), 2, random_state=0),
    "joint": MixtureClassifier(2, random_state=0),
    "averaged": AveragedMixtureClassifier(ONE, 2, random_state=0),
    "discriminative": DiscriminativeMixtureClassifier(1, prior=Shrinkage(4.0), random_state=0, max_iter=5),
    "hybrid": HybridMixtureClassifier(1, tradeoff=0.5, n_epochs=2, random_state=0),
    "sparse": SparseMixtureClassifier(1, n_init=1, max_iter=5, random_state=0),
    "relevance": RelevanceVectorClassifier(max_iter=5),
    "nonnegative": NonnegativeMixtureClassifier(1, max_iter=5, random_state=0),
    "reject": RejectOption(ONE),
    "selector": MarginalFeatureSelector(ONE),
    "imputer": MixtureImputer(),
}
every_model = pytest.mark.parametrize("name", MODELS)
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def answers(model, rows=ROWS):
    names = [name for name in ("predict_proba", "score_samples", "transform") if hasattr(model, name)]
    return {name: np.asarray(getattr(model, name)(rows)) for name in names}


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values)


FAILURES = {
    "infinite values": (np.full((60, 3), np.inf), LABELS, None),
    "another width": (np.ones((60, 3)), LABELS, -np.ones(60)),
    "names": (pd.DataFrame(ROWS, columns=["a", "b"]), LABELS, np.full(60, np.nan)),
    "categories": (pd.DataFrame({"a": ROWS[:, 0], "kind": ["red", "blue"] * 30}), LABELS, -np.ones(60)),
    "batches": ([(ROWS[:30, :1], LABELS[:30], -np.ones(30))], None, None),
}


@pytest.mark.parametrize("failure", FAILURES)
@every_model
def test_a_fit_that_fails_leaves_the_last_one_as_it_was(name, failure):
    model = clone(MODELS[name]).fit(ROWS, LABELS)
    attributes, expected = set(vars(model)), answers(model)
    X, y, weights = FAILURES[failure]
    with pytest.raises((ValueError, TypeError)):
        model.fit(X, y, sample_weight=weights)
    assert set(vars(model)) == attributes
    assert_same(answers(model), expected)


@every_model
def test_a_first_fit_that_fails_leaves_nothing(name):
    model = clone(MODELS[name])
    with pytest.raises((ValueError, TypeError)):
        model.fit(*FAILURES["another width"])
    assert set(vars(model)) == set(vars(clone(model)))


OTHER_ROWS, OTHER_LABELS = 3 * ROWS[::-1] ** 2 + 1, np.array(["red", "blue"])[LABELS]


@every_model
def test_a_second_fit_is_like_a_first(name):
    model = clone(MODELS[name]).fit(pd.DataFrame(ROWS, columns=["a", "b"]), LABELS)
    if hasattr(model, "with_class_prior"):
        model = model.with_class_prior([0.9, 0.1])
    if hasattr(model, "calibrate_outliers"):
        model.calibrate_outliers(ROWS, LABELS)
    fresh = clone(model).fit(OTHER_ROWS, OTHER_LABELS)
    model.fit(OTHER_ROWS, OTHER_LABELS)
    assert set(vars(model)) == set(vars(fresh))
    assert_same(answers(model, OTHER_ROWS), answers(fresh, OTHER_ROWS))


def test_categories_searches_and_replicates_are_forgotten():
    frame = pd.DataFrame({"a": ROWS[:, 0], "b": ROWS[:, 1], "kind": np.array(["red", "blue"])[LABELS]})
    model = MixtureClassifier(random_state=0, cv=2, max_iter=5).fit(frame, LABELS)
    model.set_params(n_components=1).fit([(ROWS[:30], LABELS[:30]), (ROWS[30:], LABELS[30:])])
    assert model.encoding_ is None
    assert model.search_ is None
    average = AveragedMixtureClassifier(ONE, 2, random_state=0).fit(ROWS, LABELS)
    assert not hasattr(average.set_params(resampling="none").fit(ROWS, LABELS), "oob_score_")


def test_a_warm_start_keeps_the_model_and_forgets_its_threshold():
    model = MixtureClassifier(2, random_state=0, warm_start=True).fit(ROWS, LABELS).calibrate_outliers(ROWS, LABELS)
    first = model.mixture_
    with pytest.raises(ValueError, match="infinity"):
        model.fit(np.full((60, 2), np.inf), LABELS)
    assert model.mixture_ is first
    assert model.is_outlier(ROWS).shape == (60,)
    assert model.fit(ROWS, LABELS).n_iter_ <= 2
    assert model.outlier_source_ == "training"


# ---- Ctrl-C in estimators around another ----------------------------------------------------------------------------


def interrupt(*arguments, **named):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("model", "place"),
    [
        (RejectOption(ONE), (density_estimator.DensityEstimator, "calibrate_outliers")),
        (MarginalFeatureSelector(ONE), (imputer, "forward_selection")),
        (TableClassifier(ONE, [TableColumn("a"), TableColumn("b")]), (MixtureClassifier, "fit")),
    ],
    ids=["reject", "selector", "table"],
)
def test_ctrl_c_leaves_a_whole_model_or_none(model, place, monkeypatch):
    model, frame = clone(model), pd.DataFrame(ROWS, columns=["a", "b"])
    answer = "transform" if hasattr(model, "transform") else "predict"
    with monkeypatch.context() as patch:
        patch.setattr(*place, interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.fit(frame, LABELS)
        with pytest.raises(NotFittedError):
            getattr(model, answer)(frame)
    expected = getattr(model.fit(frame, LABELS), answer)(frame)
    monkeypatch.setattr(*place, interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(3 * frame, LABELS)
    np.testing.assert_array_equal(getattr(model, answer)(frame), expected)


# ---- refits to a part of the samples ---------------------------------------------------------------------------------

GAPS = np.where(np.random.default_rng(0).random(ROWS.shape) < 0.1, np.nan, ROWS)
SELECTING = {
    "density": GaussianMixture("auto", prior="auto", random_state=0),
    "joint": MixtureClassifier(random_state=0, time_budget=9.0),
    "averaged density": AveragedMixture(GaussianMixture("auto", prior="default"), 2, random_state=0),
    "averaged": AveragedMixtureClassifier(MixtureClassifier(), 2, random_state=0),
    "discriminative": DiscriminativeMixtureClassifier("auto", tradeoff="auto", random_state=0, max_iter=5, cv=2),
    "hybrid": HybridMixtureClassifier(1, n_epochs=2, random_state=0),
}


@pytest.mark.parametrize("name", SELECTING)
def test_refits_have_the_selected_settings_and_select_nothing(name):
    model = clone(SELECTING[name]).fit(GAPS, LABELS)
    copy = with_selected_settings(model)
    assert "mixture_" not in vars(copy)
    inner = copy.estimator if "averaged" in name else copy
    selected = {"n_components", "prior", "covariance_type", "warp", "tradeoff", "margin"} & set(
        inner.get_params(deep=False)
    )
    assert not [name for name in selected if is_auto(getattr(inner, name))]
    assert set(np.ravel(copy.fit(GAPS, LABELS).n_components_)) == set(np.ravel(model.n_components_))
    table = getattr(copy, "search_", None)
    assert table is None or len(table) == 1
    for attribute in ("prior_", "tradeoff_", "margin_", "n_epochs_", "temperature_"):
        assert getattr(copy, attribute, None) == getattr(model, attribute, None)


def test_the_selected_settings_are_those_of_the_table():
    model = MixtureClassifier(random_state=0, checkpoint="unused").set_params(checkpoint=None).fit(ROWS, LABELS)
    copy = with_selected_settings(model.set_params(checkpoint="a file"))
    what = model.search_.best.what
    actual = {name: value for name, value in copy.get_params().items() if name in what}
    assert actual == {**what, "temperature": model.temperature_}
    assert copy.checkpoint is None
    ready = refit(model, ROWS, LABELS, np.arange(0, 60, 2))
    assert ready.label_noise_ == model.label_noise_ > 0


def test_without_a_selection_refits_are_copies():
    for name in ("joint", "sparse", "nonnegative", "density"):
        model = clone(MODELS[name]).fit(ROWS, LABELS)
        assert repr(with_selected_settings(model)) == repr(clone(model))


def test_refits_select_again_if_asked(monkeypatch):
    model = MixtureClassifier(random_state=0).fit(ROWS, LABELS)
    calls = []
    run = AutomaticSearch.run
    monkeypatch.setattr(AutomaticSearch, "run", lambda *given: calls.append(1) or run(*given))
    chosen = model.calibrate_outliers(ROWS, LABELS, cv=2).outlier_reference_
    model.suspicious_labels(ROWS, LABELS, cv=2)
    assert not calls
    assert len(model.calibrate_outliers(ROWS, LABELS, cv=2, reselect=True).outlier_reference_) == len(chosen)
    model.suspicious_labels(ROWS, LABELS, cv=2, reselect=True)
    assert len(calls) == 4


def test_a_class_that_the_training_part_of_a_split_lacks_is_left_out():
    labels = np.array(["a", "b", "c"])[np.arange(60) // 20]
    model = MixtureClassifier(random_state=0).fit(ROWS, labels)
    model.n_components = "auto"
    splits = [(np.arange(40), np.arange(40, 60)), (np.arange(20, 60), np.arange(20))]
    assert set(model.suspicious_labels(ROWS, labels, cv=splits).positions) <= set(range(60)) - set(range(20, 40))


def test_every_sample_is_answered_by_a_copy_that_has_not_seen_it():
    model = MixtureClassifier(1, random_state=0).fit(ROWS, LABELS)
    for test, values in held_out(model, ROWS, LABELS, 3, lambda copy, part: copy.predict_proba(part)):
        others = np.setdiff1d(np.arange(60), test)
        expected = clone(model).fit(ROWS[others], LABELS[others]).predict_proba(ROWS[test])
        np.testing.assert_array_equal(values, expected)
