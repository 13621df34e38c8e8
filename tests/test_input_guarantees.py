"""Laws of trust, over all estimators: answers are finite and mean what the input says, or the input is refused."""

import importlib
import re
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from mixtura import (
    AveragedMixture,
    AveragedMixtureClassifier,
    DiscriminativeMixtureClassifier,
    GaussianMixture,
    HybridMixtureClassifier,
    MixtureClassifier,
    NonnegativeMixtureClassifier,
    RelevanceVectorClassifier,
    SparseMixtureClassifier,
    load,
    make_nonnegative_pipeline,
)
from mixtura.checks import PriorWarning, RepairWarning
from mixtura.datasets import make_ripley
from mixtura.priors import Shrinkage
from mixtura.solvers import Gradient

ROWS, LABELS = make_ripley(30, random_state=0)
ROWS = ROWS - ROWS.min(0)  # the non-negative estimator takes them too

# Few steps of everything: laws hold at any step.
DENSITIES = {
    "density": GaussianMixture(2, random_state=0, max_iter=5),
    "averaged density": AveragedMixture(
        GaussianMixture(2, prior="default", max_iter=5), n_estimators=2, random_state=0
    ),
}
CLASSIFIERS = {
    "joint": MixtureClassifier(2, random_state=0, max_iter=5),
    "averaged": AveragedMixtureClassifier(MixtureClassifier(2, max_iter=5), n_estimators=2, random_state=0),
    "discriminative": DiscriminativeMixtureClassifier(2, prior=Shrinkage(4.0), random_state=0, max_iter=5),
    "hybrid": HybridMixtureClassifier(2, tradeoff=0.5, n_epochs=2, random_state=0, max_iter=5),
    "sparse": SparseMixtureClassifier(2, n_init=1, max_iter=20, random_state=0),
    "relevance": RelevanceVectorClassifier(max_iter=20),
    "nonnegative": NonnegativeMixtureClassifier(2, max_iter=20, random_state=0),
}
ESTIMATORS = DENSITIES | CLASSIFIERS
every_estimator = pytest.mark.parametrize("model", ESTIMATORS.values(), ids=ESTIMATORS)
every_classifier = pytest.mark.parametrize("model", CLASSIFIERS.values(), ids=CLASSIFIERS)


def fitted(model, *arguments, **named):
    """A fitted copy, without the warning that it took few steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return clone(model).fit(*arguments, **named)


def answers(model, rows=ROWS):
    """Probabilities, or log densities where there are no classes."""
    return model.predict_proba(rows) if hasattr(model, "predict_proba") else model.score_samples(rows)


def takes_unlabeled(model) -> bool:
    return "unlabeled" in model.get_params() or "estimator__unlabeled" in model.get_params()


# ---- unlabeled samples ---------------------------------------------------------------------------------------------


def with_unlabeled(model, value):
    if isinstance(model, AveragedMixtureClassifier):
        return clone(model).set_params(estimator__unlabeled=value)
    extra = {"tradeoff": 0.5} if isinstance(model, DiscriminativeMixtureClassifier) else {}
    return clone(model).set_params(unlabeled=value, **extra)


SOME = np.where(np.arange(len(LABELS)) % 3 == 0, -1, LABELS)
MISSING_LABELS = {
    "NaN": np.where(SOME < 0, np.nan, SOME),
    "None": np.where(SOME < 0, None, SOME),
    "pd.NA": pd.array(np.where(SOME < 0, pd.NA, SOME), dtype="Int64"),
    "a series": pd.Series(np.where(SOME < 0, pd.NA, SOME), dtype="Int64"),
    "masked": np.ma.masked_array(LABELS, SOME < 0),
    "a tensor": torch.from_numpy(np.where(SOME < 0, np.nan, SOME)),
}
every_missing_label = pytest.mark.parametrize("labels", MISSING_LABELS.values(), ids=MISSING_LABELS)


@every_classifier
def test_minus_one_is_a_class(model):
    assert fitted(model, ROWS, SOME).classes_.tolist() == [-1, 0, 1]


@every_missing_label
@every_classifier
def test_a_missing_label_needs_an_opt_in(model, labels):
    cure = "Remove them, or use MixtureClassifier\\(unlabeled=np.nan\\), which supports unlabeled samples."
    if takes_unlabeled(model):
        cure = "Pass unlabeled=np.nan to use them as unlabeled samples, or remove them."
    with pytest.raises(ValueError, match=f"^Input y contains NaN or another missing label for 20 samples. {cure}$"):
        fitted(model, ROWS, labels)


@every_missing_label
@every_classifier
def test_missing_labels_are_unlabeled_where_requested(model, labels):
    if not takes_unlabeled(model):
        assert model.get_params().get("unlabeled") is None
        return
    actual = fitted(with_unlabeled(model, np.nan), ROWS, labels)
    expected = fitted(with_unlabeled(model, -1), ROWS, SOME)
    assert actual.classes_.tolist() == [0, 1]
    np.testing.assert_array_equal(actual.predict_proba(ROWS), expected.predict_proba(ROWS))


def test_missing_text_labels():
    names = np.array(["red", "blue"], dtype=object)[LABELS]
    names[::3] = None
    assert MixtureClassifier(1, unlabeled=np.nan).fit(ROWS, names).classes_.tolist() == ["blue", "red"]


def test_a_missing_label_among_others_that_mean_unlabeled():
    labels = np.where(np.arange(len(LABELS)) == 5, np.nan, SOME)
    with pytest.raises(ValueError, match="missing label for 1 samples"):
        MixtureClassifier(1, unlabeled=-1).fit(ROWS, labels)


def test_unlabeled_batches_for_an_objective_without_a_density():
    with pytest.raises(
        ValueError, match="20 samples are unlabeled, but objective 'conditional' is purely discriminative"
    ):
        MixtureClassifier(1, objective="conditional", unlabeled=-1).fit([(ROWS, SOME)])


# ---- rows of weight zero -------------------------------------------------------------------------------------------

STARTS = {
    **{f"density, {init}": GaussianMixture(2, init_params=init, random_state=0, max_iter=5)
       for init in ("kmeans", "k-means++", "random", "random_from_data")},
    **{f"{kind}, {init}": GaussianMixture(2, covariance_type=kind, init_params=init, random_state=0, max_iter=5)
       for kind in ("tied", "low_rank") for init in ("k-means++", "random_from_data")},
    "density, auto": GaussianMixture("auto", random_state=0, max_iter=5),
    "averaged density, starts": AveragedMixture(
        GaussianMixture(2, init_params="random_from_data", prior="default", max_iter=5),
        n_estimators=3, resampling="none", random_state=0,
    ),
    **{f"classifier, {init}": MixtureClassifier(2, init=init, random_state=0, max_iter=5)
       for init in ("kmeans", "k-means++", "random")},
    "spread": MixtureClassifier(2, init="spread", unlabeled=0, random_state=0, max_iter=5),
    "warped": MixtureClassifier(2, warp="johnson", random_state=0, max_iter=5),
    "auto": MixtureClassifier("auto", prior="auto", random_state=0, max_iter=5),
    "gradient": MixtureClassifier(2, solver="gradient", random_state=0, max_iter=5),
    "subsets": AveragedMixtureClassifier(
        MixtureClassifier(2, max_iter=5), n_estimators=2, resampling="subset", random_state=0
    ),
    "splitting": DiscriminativeMixtureClassifier("auto", cv=2, random_state=0, max_iter=5),
    "stopped early": DiscriminativeMixtureClassifier(
        2, prior=Shrinkage(4.0), early_stopping=True, validation_fraction=0.4, random_state=0, max_iter=5
    ),
    "monomials": SparseMixtureClassifier(2, kernel=None, n_init=1, max_iter=20, random_state=0),
    "working set": SparseMixtureClassifier(2, working_set=True, n_init=1, max_iter=20, random_state=0),
    "shared bases": NonnegativeMixtureClassifier(2, shared=True, max_iter=20, random_state=0),
}  # fmt: skip


@pytest.fixture
def with_absent_rows(rng):
    """Rows, labels and weights, and the same with rows of weight zero among them: far away, and of another class."""
    labels = np.where(np.arange(60) % 5 == 0, 2, LABELS)
    weights = rng.uniform(0.5, 2.0, 60)
    places = np.sort(rng.integers(0, 61, 25))
    wild = np.abs(rng.normal(0, 1, (25, 2))) * 10.0 ** rng.integers(0, 200, (25, 1))
    more = (np.insert(ROWS, places, wild, 0), np.insert(labels, places, 7), np.insert(weights, places, 0.0))
    return (ROWS, labels, weights), more


@pytest.mark.parametrize("model", (ESTIMATORS | STARTS).values(), ids=ESTIMATORS | STARTS)
def test_rows_of_weight_zero_change_nothing(model, with_absent_rows):
    without, more = with_absent_rows
    expected, actual = fitted(model, *without), fitted(model, *more)
    np.testing.assert_array_equal(answers(actual), answers(expected))
    for name in ("oob_score_", "oob_log_loss_"):
        assert getattr(actual, name, None) == getattr(expected, name, None)


def test_rows_of_weight_zero_in_batches_and_memory_maps(with_absent_rows, tmp_path):
    (X, y, weights), more = with_absent_rows
    model = MixtureClassifier(2, random_state=0, max_iter=5)
    expected = fitted(model, X, y, weights).predict_proba(ROWS)
    batches = [tuple(part[start : start + 20] for part in more) for start in range(0, len(more[0]), 20)]
    np.testing.assert_allclose(fitted(model, batches).predict_proba(ROWS), expected, atol=1e-9)
    mapped = np.memmap(tmp_path / "rows", float, "w+", shape=more[0].shape)
    mapped[:] = more[0]
    np.testing.assert_allclose(fitted(model, mapped, *more[1:]).predict_proba(ROWS), expected, atol=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_no_component_starts_on_a_row_of_weight_zero(seed):
    weights = np.where(np.arange(60) % 2 == 0, 0.0, 1.0)
    model = GaussianMixture(3, init_params="random_from_data", max_iter=0, random_state=seed)
    means = model.fit(ROWS, sample_weight=weights).means_
    assert all(np.abs(ROWS[1::2] - mean).sum(1).min() < 1e-9 for mean in means)


def test_splits_number_all_rows(with_absent_rows):
    without, more = with_absent_rows
    present = np.flatnonzero(more[2])
    splits = [(np.arange(30), np.arange(30, 60)), (np.arange(30, 60), np.arange(30))]
    expected = fitted(DiscriminativeMixtureClassifier(cv=splits, max_iter=5), *without)
    renumbered = [(present[a], present[b]) for a, b in splits]
    actual = fitted(DiscriminativeMixtureClassifier(cv=renumbered, max_iter=5), *more)
    np.testing.assert_array_equal(answers(actual), answers(expected))


def test_components_need_rows_of_positive_weight():
    weights = np.where(np.arange(60) < 2, 1.0, 0.0)
    with pytest.raises(ValueError, match="n_components = 3, n_samples = 2"):
        GaussianMixture(3).fit(ROWS, sample_weight=weights)


# ---- missing values ------------------------------------------------------------------------------------------------

HOLES = np.where(np.random.default_rng(1).random(ROWS.shape) < 0.2, np.nan, ROWS)
TAKES_NAN = {name: model for name, model in ESTIMATORS.items() if model.__sklearn_tags__().input_tags.allow_nan}
every_nan_taker = pytest.mark.parametrize("model", TAKES_NAN.values(), ids=TAKES_NAN)
MISSING_VALUES = {
    "masked": np.ma.masked_array(np.where(np.isnan(HOLES), 99.0, HOLES), np.isnan(HOLES)),
    "None": np.where(np.isnan(HOLES), None, HOLES),
    "pd.NA": np.where(np.isnan(HOLES), pd.NA, HOLES),
    "objects": pd.DataFrame(np.where(np.isnan(HOLES), pd.NA, HOLES)),
    "Float64": pd.DataFrame(HOLES).astype("Float64"),
}
every_missing_value = pytest.mark.parametrize("rows", MISSING_VALUES.values(), ids=MISSING_VALUES)


@every_missing_value
@every_nan_taker
def test_masked_values_are_missing_at_fit_and_predict(model, rows):
    expected = fitted(model, HOLES, LABELS)
    actual = fitted(model, rows, LABELS)
    # Columns of a frame lie one after another in memory: sums round otherwise, and Adam's first steps are signs.
    np.testing.assert_allclose(answers(actual, rows), answers(expected, HOLES), atol=1e-2)
    np.testing.assert_allclose(actual.impute(rows), expected.impute(HOLES), atol=1e-2)


@every_missing_value
@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - set(TAKES_NAN)))
def test_masked_values_are_refused_where_missing_values_are(name, rows):
    with pytest.raises(ValueError, match="Input X contains NaN"):
        fitted(ESTIMATORS[name], rows, LABELS)
    model = fitted(ESTIMATORS[name], ROWS, LABELS)
    with pytest.raises(ValueError, match="Input X contains NaN"):
        model.predict(rows)


def test_masked_integers_soft_labels_and_weights():
    masked = np.ma.masked_array([[1, 2], [3, 4], [5, 9], [6, 1]], [[0, 0], [0, 1], [0, 0], [1, 0]])
    holes = np.array([[1, 2], [3, np.nan], [5, 9], [np.nan, 1]])
    model = GaussianMixture(prior="default")
    np.testing.assert_array_equal(model.fit(masked).score_samples(masked), model.fit(holes).score_samples(holes))
    shares = np.eye(2)[LABELS]
    gone = np.repeat(SOME[:, None] < 0, 2, 1)
    soft = MixtureClassifier(1).fit(ROWS, np.ma.masked_array(shares, gone))
    expected = MixtureClassifier(1).fit(ROWS, np.where(gone, np.nan, shares))
    np.testing.assert_array_equal(answers(soft), answers(expected))
    with pytest.raises(ValueError, match="sample_weight must be finite; 20 weights are NaN or infinite"):
        MixtureClassifier(1).fit(ROWS, LABELS, np.ma.masked_array(np.ones(60), SOME < 0))


@every_nan_taker
def test_rows_without_an_observed_value_are_refused(model):
    text = "X has no observed value: all values of samples with positive weight are NaN. Check how X was read."
    with pytest.raises(ValueError, match=text):
        fitted(model, np.full_like(ROWS, np.nan), LABELS)
    with pytest.raises(ValueError, match=text):
        fitted(model, np.where(np.arange(60)[:, None] < 5, ROWS, np.nan), LABELS, np.where(np.arange(60) < 5, 0.0, 1.0))


@every_nan_taker
def test_a_column_without_an_observed_value_is_named_and_stays_missing(model, tmp_path):
    frame = pd.DataFrame({"a": ROWS[:, 0], "empty": np.nan, "b": HOLES[:, 1]})
    with pytest.warns(
        RepairWarning, match=r"^X has no observed value in columns \['empty'\]: they have no effect"
    ) as caught:
        actual = fitted(model, frame, LABELS)
    assert len(caught) == 1
    filled = np.asarray(actual.impute(frame))
    assert np.isnan(filled[:, 1]).all()
    assert np.isfinite(filled[:, [0, 2]]).all()
    actual.save(tmp_path / "model")
    assert np.isnan(np.asarray(load(tmp_path / "model").impute(frame))[:, 1]).all()
    with pytest.warns(RepairWarning, match=r"no observed value in columns \[1\]"):
        fitted(model, frame.to_numpy(), LABELS)


# ---- sizes of weights ----------------------------------------------------------------------------------------------

SOLVERS = {
    "density without steps": GaussianMixture(2, random_state=0, max_iter=0),
    "density with a prior": GaussianMixture(2, prior="default", random_state=0, max_iter=5),
    "without steps": MixtureClassifier(2, random_state=0, max_iter=0),
    "baum_welch": MixtureClassifier(2, objective="conditional", random_state=0, max_iter=5),
    "lbfgs": MixtureClassifier(2, solver="gradient", random_state=0, max_iter=5),
    "adam": MixtureClassifier(2, solver=Gradient("adam"), random_state=0, max_iter=5),
    "accelerated": NonnegativeMixtureClassifier(2, solver="accelerated", max_iter=20, random_state=0),
    **{name: STARTS[name] for name in ("warped", "auto", "splitting", "monomials", "working set")},
}
WEIGHTS = np.random.default_rng(2).uniform(0.5, 2.0, 60)
SIZES = {
    "1e300": 1e300 * WEIGHTS,
    "1e160": 1e160 * WEIGHTS,
    "1e28": 1e28 * WEIGHTS,
    "1e-20": 1e-20 * WEIGHTS,
    "1e-300": 1e-300 * WEIGHTS,
    "every size": 10.0 ** np.random.default_rng(3).uniform(-300, 300, 60),
    "every small size": 10.0 ** np.random.default_rng(4).uniform(-300, 0, 60),
    "a heavy row": np.where(np.arange(60) == 7, 1e29, 1.0),
    "a light class": np.where(LABELS == 0, 1e-250, 1.0),
}


@pytest.mark.parametrize("weights", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("model", (ESTIMATORS | SOLVERS).values(), ids=ESTIMATORS | SOLVERS)
def test_weights_of_any_size_give_a_finite_model_or_are_named(model, weights):
    text = (
        "The sum of all sample weights (sample_weight times class_weight) must be between 1e-30 and 1e+30; got "
        f"{weights.sum():g}. Weights are counts of samples: divide sample_weight by its mean."
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RepairWarning)
        warnings.simplefilter("ignore", PriorWarning)
        if 1e-30 <= weights.sum() <= 1e30:
            assert np.isfinite(answers(fitted(model, ROWS, LABELS, weights))).all()
        else:
            with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
                fitted(model, ROWS, LABELS, weights)


WITHOUT_PRIOR = {
    "density": GaussianMixture(2, random_state=0, max_iter=50),
    "low rank": GaussianMixture(2, covariance_type="low_rank", random_state=0, max_iter=50),
    "random": GaussianMixture(2, init_params="random_from_data", random_state=0, max_iter=50),
    "joint": MixtureClassifier(2, prior=None, random_state=0, max_iter=50),
    "baum_welch": MixtureClassifier(2, prior=None, objective="conditional", random_state=0, max_iter=10),
    # At its maximum: the line search of L-BFGS takes differences of the objective, so that on the way there a rounding
    # error of 1e-16 in the objective becomes one of up to 1e-8 in the length of a step.
    "gradient": MixtureClassifier(2, prior=None, solver="gradient", random_state=0, max_iter=100, tol=0.0),
}


@pytest.mark.parametrize("factor", [1e-20, 1e-3, 7.0, 1e20])
@pytest.mark.parametrize("model", WITHOUT_PRIOR.values(), ids=WITHOUT_PRIOR)
def test_without_a_prior_a_common_factor_of_weights_changes_nothing(model, factor):
    expected, actual = (answers(fitted(model, ROWS, LABELS, weights)) for weights in (WEIGHTS, factor * WEIGHTS))
    np.testing.assert_allclose(actual, expected, atol=1e-9)


def test_with_a_prior_weights_count_against_it():
    light, heavy = (MixtureClassifier(1).fit(ROWS, LABELS, weights).mixture_ for weights in (1e-20, 1e20))
    pooled = heavy.covariances.mean(0)
    assert float((light.covariances[0] - light.covariances[1]).abs().max()) < 1e-9
    assert float((heavy.covariances - pooled).abs().max()) > 1e-2


def test_class_weights_that_overflow_are_named():
    with pytest.raises(ValueError, match=r"^The sum of all sample weights .* got inf\. Weights are counts"):
        MixtureClassifier(1, class_weight={0: 1e200, 1: 1.0}).fit(ROWS, LABELS, np.full(60, 1e200))


# ---- sizes of values -----------------------------------------------------------------------------------------------

COVARIANCES = {
    kind: MixtureClassifier(2, covariance_type=kind, random_state=0, max_iter=5)
    for kind in ("tied", "diag", "spherical", "low_rank")
}
ANSWERING = ESTIMATORS | COVARIANCES | {name: STARTS[name] for name in ("warped", "auto", "monomials", "working set")}
REFUSAL = r"X holds -?[\d.e+]+ in column 1.*(Check the units of that column|Rescale that column), or remove such values"


@pytest.mark.parametrize("value", [1e10, 1e80, 1e99, 1e101, 1e155, 1e200, 1e307, -1e155, 1e-200, -1e307])
@pytest.mark.parametrize("model", ANSWERING.values(), ids=ANSWERING)
def test_any_value_gets_finite_answers_or_is_named(model, value):
    model = already_fitted(model)
    rows = ROWS.copy()
    rows[3, 1] = value
    for method in ("predict_proba", "predict_log_proba", "score_samples", "decision_function", "responsibilities"):
        if not hasattr(model, method):
            continue
        try:
            actual = getattr(model, method)(rows)
        except ValueError as error:
            refusal = str(error)
        else:
            assert not np.isnan(actual).any()
            if method == "predict_proba":
                np.testing.assert_allclose(actual.sum(1), 1)
            continue
        assert re.search(REFUSAL, refusal)
        assert abs(value) > 1e10


FITTED = {}


def already_fitted(model):
    if id(model) not in FITTED:
        FITTED[id(model)] = fitted(model, ROWS, LABELS)
    return FITTED[id(model)]


@pytest.mark.parametrize("factor", [1e140, 1e-140, 1e200, 1e-160, 1e-200])
@every_estimator
def test_columns_in_any_unit_are_fitted_or_named(model, factor):
    rows = ROWS * [1.0, factor]
    expected = answers(already_fitted(model))
    if factor in (1e140, 1e-140):
        if not isinstance(model, GaussianMixture | AveragedMixture):  # scikit-learn's ridge and starts have units
            np.testing.assert_allclose(answers(fitted(model, rows, LABELS), rows), expected, atol=1e-2)
        return
    large, small = "holds values up to .* their squares overflow", "varies by at most .* its variance underflows"
    reason = rf"X ({large}|{small})\. Rescale that column"
    with pytest.raises(ValueError, match=reason):
        fitted(model, rows, LABELS)


# ---- refusals in our own words -------------------------------------------------------------------------------------


def refused(call, text, kind=ValueError):
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        call()


@pytest.mark.parametrize("name", ["sparse", "relevance", "monomials", "working set"])
def test_values_too_large_for_a_kernel(name):
    model = (ESTIMATORS | STARTS)[name]
    text = r"X holds values up to 1.56418e\+200 in column 0; their squares overflow. Rescale that column"
    with pytest.raises(ValueError, match=text):
        fitted(model, ROWS * 1e200, LABELS)
    with pytest.raises(
        ValueError, match=r"X holds [\d.]+e\+110 in column \d, too large for the kernel\. Check the units"
    ):
        fitted(clone(model).set_params(scaling=False), ROWS * 1e110, LABELS)


def test_kernels_that_overflow():
    text = "gamma=1e+200 to the power of degree=2 exceeds 1e+100. Lower gamma or degree."
    refused(lambda: SparseMixtureClassifier(gamma=1e200).fit(ROWS, LABELS), text)
    text = "coef0=1e+60 to the power of degree=2 exceeds 1e+100. Lower coef0 or degree."
    refused(lambda: SparseMixtureClassifier(coef0=1e60).fit(ROWS, LABELS), text)
    with pytest.raises(ValueError, match=r"X holds [\d.]+e\+20\d in column \d+, too large for the kernel"):
        SparseMixtureClassifier(kernel="precomputed").fit(1e200 * ROWS @ ROWS.T, LABELS)


SINGLE = (
    "Candidates are compared on held-out samples, but every class has a single sample, which cannot be held out. Add "
    "samples, or "
)


def test_a_row_for_each_class_cannot_be_held_out():
    cure = "pass prior='default' and numbers for what is 'auto'."
    refused(lambda: DiscriminativeMixtureClassifier().fit(ROWS[[0, -1]], [0, 1]), SINGLE + cure)


def test_missing_values_in_lists():
    rows = [[1.0, pd.NA], [None, 2.0], *ROWS.tolist()]
    holes = np.vstack(([1.0, np.nan], [np.nan, 2.0], ROWS))
    labels = [0, 1, *LABELS]
    actual, expected = (MixtureClassifier(1).fit(part, labels).predict_proba(part) for part in (rows, holes))
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("device", ["mps", "xpu", "vulkan"])
@pytest.mark.parametrize("name", ["density", "joint", "sparse", "nonnegative"])
def test_devices_that_are_absent(name, device):
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        model = clone(ESTIMATORS[name]).set_params(device=device)
        refused(lambda: model.fit(ROWS, LABELS), f"device='{device}' is not available. Use device=None or \"cpu\".")


def test_checkpoints_that_cannot_be_written(tmp_path):
    for model in (lambda path: HybridMixtureClassifier(checkpoint=path),):
        refused(lambda model=model: model(3).fit(ROWS, LABELS), "checkpoint must be None or the path of a file; got 3.")
        text = f"checkpoint must be the path of a file; got the folder '{tmp_path}'. Add a file name."
        refused(lambda model=model: model(tmp_path).fit(ROWS, LABELS), text)
        text = (
            f"checkpoint='{tmp_path}/none/file' cannot be written: the folder '{tmp_path}/none' does not exist. Create "
            "the folder, or choose another file."
        )
        refused(lambda model=model: model(tmp_path / "none" / "file").fit(ROWS, LABELS), text)


@pytest.mark.parametrize("name", ["nonnegative", "sparse"])
def test_pictures_of_models_without_gaussians(name):
    pytest.importorskip("matplotlib")
    from mixtura.plotting import plot_classifier

    model = already_fitted(ESTIMATORS[name])
    text = (
        "plot_classifier needs a classifier with Gaussian components, such as MixtureClassifier; got "
        f"{type(model).__name__}."
    )
    refused(lambda: plot_classifier(model, ROWS, LABELS), text, TypeError)


def test_pictures_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "mixtura.plotting", raising=False)
    with pytest.raises(
        ImportError, match=r"^mixtura\.plotting needs matplotlib; install it with: pip install 'mixtura\[plot\]'$"
    ):
        importlib.import_module("mixtura.plotting")


def test_what_a_factorisation_cannot_take():
    pipeline = make_nonnegative_pipeline(2, tol=0.1, random_state=0)
    text = (
        "Negative values in data passed to make_nonnegative_pipeline: features must be at least 0; column 1 ('b') "
        "holds -2. Subtract the smallest value of that column."
    )
    frame = pd.DataFrame({"a": ROWS[:, 0], "b": np.where(np.arange(60) == 7, -2.0, ROWS[:, 1])})
    refused(lambda: pipeline.fit(frame, LABELS), text)
    refused(lambda: clone(pipeline).fit(abs(frame), LABELS).predict(frame), text)
    with pytest.raises(ValueError, match="first in column 0; make_nonnegative_pipeline does not accept it"):
        pipeline.fit(HOLES, LABELS)
    text = "n_basis must be at most min(n_samples, n_features) = 2 for X of shape (60, 2); got 5."
    refused(lambda: make_nonnegative_pipeline(5).fit(ROWS, LABELS), text)
    refused(lambda: make_nonnegative_pipeline(0), "n_basis must be an integer of at least 1; got 0.")


@pytest.mark.parametrize("prior", [None, "default"])
def test_fewer_distinct_rows_than_components(prior):
    text = (
        "^X has 2 distinct samples for 3 components: some components start without samples. Lower n_components to 2.$"
    )
    with pytest.warns(ConvergenceWarning, match=text) as caught:
        GaussianMixture(3, prior=prior, random_state=0).fit(np.repeat(ROWS[:2], 10, 0))
    assert len(caught) == 1
    assert caught[0].filename == __file__


# ---- cures that help -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy], ids=["array", "tensor"])
@every_estimator
def test_infinities_are_to_become_nan_only_where_nan_is_taken(model, make):
    rows = ROWS.copy()
    rows[3, 1] = np.inf
    with pytest.raises(ValueError, match="Input X contains infinity") as caught:
        fitted(model, make(rows), LABELS)
    advised = "set the values to NaN (missing)" in str(caught.value)
    assert advised == (model in TAKES_NAN.values())
    assert "emove those samples" in str(caught.value)


def test_the_refusal_of_nan_names_all_classifiers_that_take_it():
    takers = {type(model).__name__ for model in TAKES_NAN.values() if hasattr(model, "predict_proba")}
    with pytest.raises(ValueError, match="Input X contains NaN") as caught:
        fitted(ESTIMATORS["sparse"], HOLES, LABELS)
    named = set(re.findall(r"\w+Classifier", str(caught.value).split("supports them: ")[1]))
    assert named == {name for name in takers if name.endswith("Classifier")}


@pytest.mark.parametrize("name", ["joint", "hybrid", "sparse"])
def test_every_class_with_fewer_rows_than_components_is_named(name):
    rows, labels = ROWS[[0, 1, 2, -3, -2, -1, 30]], ["a", "b", "b", "c", "c", "c", "c"]
    model = clone(ESTIMATORS[name]).set_params(n_components=4)
    text = (
        "There are fewer samples than components: class 'a' has 1 samples for 4 components, class 'b' has 2 samples "
        "for 4 components; such a class gets one component per sample. Lower n_components for it, for example with a "
        "dict."
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(rows, labels)
    (actual,) = [warning for warning in caught if "fewer samples" in str(warning.message)]
    assert str(actual.message) == text
    assert actual.filename == __file__


def test_an_unknown_criterion_is_refused_where_nothing_is_chosen():
    with pytest.raises(ValueError, match=r"^criterion must be one of .*; got 'x'\.$"):
        GaussianMixture(criterion="x").fit(ROWS)


@every_estimator
def test_a_model_of_another_machine_predicts_here(model, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    model = fitted(model, ROWS, LABELS)
    expected = answers(model)
    base = "estimator__device" if "estimator__device" in model.get_params() else "device"
    model.set_params(**{base: "cuda"})
    np.testing.assert_array_equal(answers(model), expected)
    with pytest.raises(ValueError, match="device='cuda' is not available: torch sees 0 GPUs"):
        clone(model).fit(ROWS, LABELS)
