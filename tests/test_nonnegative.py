"""NonnegativeMixtureClassifier: input, messages, prediction, sparsity, model files, the pipeline."""

import pickle
import re

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import train_test_split
from sklearn.utils.estimator_checks import parametrize_with_checks

import mixtura
from mixtura import NonnegativeMixtureClassifier, make_nonnegative_pipeline
from mixtura.nonnegative.updates import Multiplicative
from mixtura.solvers import Record

pytestmark = pytest.mark.usefixtures("one_thread")


def quick(n_components=2, **options):
    """A model without early stopping that ends soon; the limit is not what these tests are about."""
    return NonnegativeMixtureClassifier(
        n_components,
        **{"solver": "multiplicative", "early_stopping": False, "max_iter": 15, "tol": 0.05, "random_state": 0}
        | options,
    )


SOON = {"max_iter": 300, "tol": 3e-3}
CHECKED = [
    quick(**SOON),
    quick(6, **SOON, shared=True, memory_limit="1 MiB"),
    quick(**SOON, solver="accelerated", sparsity=0.0),
    NonnegativeMixtureClassifier(1, solver="multiplicative", **SOON),
    NonnegativeMixtureClassifier(cv=2, random_state=0),
]
# The check fits negative values to every classifier with both methods, whatever its tags say (MultinomialNB has no
# decision_function and so never meets it).
FITS_NEGATIVES = {"check_decision_proba_consistency": "fits negative features although the tag positive_only is set"}


@parametrize_with_checks(CHECKED, expected_failed_checks=lambda estimator: FITS_NEGATIVES)
def test_scikit_learn_agrees(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def counts():
    rng = np.random.default_rng(0)
    y = np.arange(300) % 3
    rates = rng.gamma(1.0, 2.0, (3, 2, 6))
    return rng.poisson(rates[y, rng.integers(0, 2, 300)]).astype(float), np.array(["a", "b", "c"])[y]


@pytest.fixture(scope="module")
def fitted(counts):
    return NonnegativeMixtureClassifier(3, solver="multiplicative", random_state=0).fit(*counts)


# ---- fitting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("solver", ["multiplicative", "accelerated"])
def test_learns_overlapping_counts(counts, shared, solver):
    X, y = counts
    model = quick(4, shared=shared, solver=solver, tol=1e-4, max_iter=2000)
    model.fit(X[::2], y[::2])
    assert model.score(X[1::2], y[1::2]) > 0.65
    assert model.predict_proba(X).shape == (300, 3)
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)
    assert (model.predict(X) == model.classes_[model.predict_proba(X).argmax(1)]).all()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("rows", ["counts", "log"])
@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csc_array, sparse.coo_array])
def test_sparse_rows_give_what_dense_ones_give(counts, shared, rows, kind):
    X, y = counts
    with pytest.warns(ConvergenceWarning):
        dense = quick(shared=shared, rows=rows, tol=0.0, max_iter=80).fit(X, y)
    with pytest.warns(ConvergenceWarning):
        thin = quick(shared=shared, rows=rows, tol=0.0, max_iter=80).fit(kind(X), y)
    np.testing.assert_allclose(thin.predict_proba(kind(X)), dense.predict_proba(X), atol=1e-9)
    assert np.array_equal(thin.predict(kind(X)), dense.predict(X))


def test_sparse_rows_are_never_dense():
    """A matrix that would take 8 GB if it were."""
    rng = np.random.default_rng(0)
    y = np.arange(2000) % 2
    X = sparse.random(2000, 500_000, density=2e-5, random_state=rng, format="csr")
    marks = sparse.csr_array((np.ones(2000), (np.arange(2000), 499_990 + y)), X.shape)
    model = quick(1, tol=1e-3, max_iter=200, solver="accelerated").fit(X + marks, y)
    assert model.score(X + marks, y) == 1.0


@pytest.mark.parametrize("shared", [True, False])
def test_a_weight_is_a_repetition(counts, shared):
    X, y = counts
    repeats = np.random.default_rng(1).integers(0, 4, len(X))
    once = quick(shared=shared, sparsity=0.3).fit(X, y, sample_weight=repeats)
    often = quick(shared=shared, sparsity=0.3).fit(X.repeat(repeats, 0), y.repeat(repeats))
    np.testing.assert_allclose(once.predict_proba(X), often.predict_proba(X), atol=1e-9)


def test_units_and_offsets_of_columns_change_nothing(counts):
    X, y = counts
    scales, shifts = np.array([1, 10, 1e3, 1e-3, 5, 1]), np.array([0, 3.0, 100, 0, 7, 1e4])
    plain, moved = quick().fit(X, y), quick().fit(X * scales + shifts, y)
    np.testing.assert_allclose(plain.predict_proba(X), moved.predict_proba(X * scales + shifts), atol=1e-7)


def test_chunks_change_nothing(counts):
    X, y = counts
    X = np.tile(X, (8, 40))  # 1 MiB of scratch holds fewer rows
    one, many = quick(20, tol=0.5).fit(X, np.tile(y, 8)), quick(20, tol=0.5, memory_limit="1 MiB").fit(X, np.tile(y, 8))
    np.testing.assert_allclose(one.predict_proba(X), many.predict_proba(X), atol=1e-9)


def test_early_stopping_takes_as_many_steps_as_predict_held_out_rows_best(counts, fitted):
    best = max(fitted.validation_scores_, key=lambda pair: pair[1])
    assert fitted.n_iter_ == best[0]
    assert fitted.converged_
    assert all(isinstance(record, Record) for record in fitted.history_)
    assert quick().fit(*counts).validation_scores_ == []


@pytest.mark.parametrize("n_steps", [3, 40, 55])
def test_an_interrupted_fit_keeps_what_it_has(counts, monkeypatch, n_steps):
    """With the first sparsity, with the second, and while all rows are fitted."""
    plain, steps = Multiplicative.step, []

    def step(self, problem, state):
        steps.append(1)
        if len(steps) == n_steps:
            raise KeyboardInterrupt
        return plain(self, problem, state)

    monkeypatch.setattr(Multiplicative, "step", step)
    model = NonnegativeMixtureClassifier(2, solver="multiplicative", max_iter=25, random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(*counts)
    assert model.score(*counts) > 0.3
    assert not model.converged_


def test_few_rows_are_not_held_out(counts):
    X, y = counts
    with pytest.warns(ConvergenceWarning, match=re.escape("(max_iter=3, tol=1e-06); increase max_iter or tol, or use")):
        model = NonnegativeMixtureClassifier(2, solver="multiplicative", max_iter=3, random_state=0).fit(X[:60], y[:60])
    assert model.validation_scores_ == []


def test_deterministic_and_better_with_more_starts(counts):
    X, y = counts
    first, again = (quick(random_state=3).fit(X, y) for _ in range(2))
    assert np.array_equal(first.predict_proba(X), again.predict_proba(X))
    objectives = [quick(n_init=n, tol=0.01, max_iter=500).fit(X, y).history_[-1].objective for n in (1, 4)]
    assert objectives[1] >= objectives[0]


def test_sparsity_removes_weights_and_bases(counts):
    X, y = counts
    options = {"solver": "multiplicative", "early_stopping": False, "max_iter": 120, "tol": 0.0, "random_state": 0}
    sizes = {}
    for shared in (True, False):
        for sparsity in (0.0, 2.0):
            with pytest.warns(ConvergenceWarning):
                model = NonnegativeMixtureClassifier(10, shared=shared, sparsity=sparsity, **options).fit(X, y)
            assert model.weights_.shape == (3, model.n_bases_) == (3, model.bases_.shape[0])
            assert (model.weights_ > 0).sum() <= model.n_components_.sum()
            sizes[shared, sparsity] = model.n_components_.sum(), model.n_bases_, model.score(X, y)
    assert sizes[True, 0.0][:2] == (30, 10)
    assert sizes[False, 0.0][:2] == (30, 30)
    for shared in (True, False):
        assert sizes[shared, 2.0][0] <= 15
        assert sizes[shared, 2.0][2] > sizes[shared, 0.0][2] - 0.1


@pytest.mark.parametrize("seed", range(3))
def test_the_sparsity_is_that_of_the_better_held_out_likelihood(counts, seed):
    X, y = counts
    options = {"n_components": 3, "solver": "multiplicative", "random_state": seed}
    automatic = NonnegativeMixtureClassifier(**options).fit(X, y)
    fits = {value: NonnegativeMixtureClassifier(sparsity=value, **options).fit(X, y) for value in (0.0, 1.0)}
    scores = {value: max(score for _, score in model.validation_scores_) for value, model in fits.items()}
    assert automatic.sparsity_ == max(scores, key=scores.__getitem__) == automatic.search_.best.what["sparsity"]
    assert {row.what["sparsity"]: -row.score for row in automatic.search_} == scores
    assert all(model.search_ is None for model in fits.values())
    assert np.array_equal(automatic.predict_proba(X), fits[automatic.sparsity_].predict_proba(X))


def test_without_held_out_samples_the_sparsity_is_one(counts):
    X, y = counts
    assert quick(early_stopping=False).fit(X, y).sparsity_ == 1.0
    assert quick(sparsity=0.25).fit(X, y).sparsity_ == 0.25


def test_an_interrupted_fit_is_not_continued_with_another_start(counts, monkeypatch):
    """The first of several starts may be complete and the best when the second is interrupted."""
    X, y = counts
    steps, interrupted = [0], [0]

    def counting(self, *arguments):
        steps[0] += 1
        if steps[0] == interrupted[0]:
            raise KeyboardInterrupt
        return original(self, *arguments)

    original = Multiplicative.step
    monkeypatch.setattr(Multiplicative, "step", counting)
    model = quick(n_init=2, sparsity=1.0, tol=0.01, max_iter=1000)
    model.fit(X, y)
    steps[0], interrupted[0] = 0, steps[0] - 1
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert model.score(X, y) > 0.5


def test_n_parameters_count_weights_and_coefficients(fitted):
    assert fitted.n_parameters_ == fitted.n_components_.sum() - 1 + 6 * fitted.n_bases_


# ---- bad and strange input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix, torch.as_tensor])
def test_negative_features_name_the_first_column(counts, kind):
    X, y = counts
    X = X.copy()
    X[5, 4], X[9, 2], X[11, 2] = -1.0, -2.5, -0.5
    message = (
        "Negative values in data passed to NonnegativeMixtureClassifier: features must be at least 0; column 2 holds "
        "-2.5. Subtract the smallest value of that column."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        quick().fit(kind(X), y)


def test_negative_features_by_name(counts):
    X, y = counts
    frame = pd.DataFrame(X.copy(), columns=list("uvwxyz"))  # pandas 2 shares the memory otherwise
    frame.loc[3, "w"] = -1
    with pytest.raises(ValueError, match=re.escape("column 2 ('w') holds -1.")):
        quick().fit(frame, y)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix, torch.as_tensor])
def test_missing_values_name_the_models_that_take_them(counts, kind):
    X, y = counts
    X = X.copy()
    X[5, 3] = np.nan
    message = (
        "Input X contains NaN, first in column 3; NonnegativeMixtureClassifier does not accept it: impute the "
        "missing values first, or use an estimator that supports them: MixtureClassifier, "
        "DiscriminativeMixtureClassifier, HybridMixtureClassifier or AveragedMixtureClassifier."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        quick().fit(kind(X), y)
    with pytest.raises(ValueError, match=re.escape("Input X contains NaN, first in column 3")):
        quick().fit(*counts).predict(kind(X))


def test_one_class(counts):
    X, y = counts
    with pytest.raises(ValueError, match="needs samples of at least two classes, but y holds only one class: 'a'"):
        quick().fit(X[y == "a"], y[y == "a"])


def test_soft_labels_name_the_model_that_takes_them(counts):
    with pytest.raises(ValueError, match=r"needs one label per sample; y has several columns.* use MixtureClassifier"):
        quick().fit(counts[0], np.full((300, 3), 1 / 3))


def test_batches_are_refused_by_named_solvers(counts):
    message = "solver='multiplicative' does not support an X of batches. Use solver='auto', or pass all samples"
    with pytest.raises(ValueError, match=re.escape(message)):
        quick().fit([counts, counts])


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
def test_a_row_of_zeros_gets_the_prior(counts, kind):
    X, y = counts
    weights = np.where(y == "a", 4.0, 1.0)
    model = quick().fit(kind(X), y, sample_weight=weights)
    empty = kind(np.zeros((2, 6)))
    np.testing.assert_allclose(model.class_prior_, [4 / 6, 1 / 6, 1 / 6])
    np.testing.assert_allclose(model.predict_proba(empty), np.tile(model.class_prior_, (2, 1)))
    assert model.predict(empty).tolist() == ["a", "a"]


def test_nothing_but_zeros_gives_the_prior():
    X, y = np.zeros((30, 3)), np.arange(30) % 3 // 2
    model = quick().fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), np.tile([2 / 3, 1 / 3], (30, 1)))


@pytest.mark.parametrize("value", [0.0, 4.0])
def test_a_column_that_does_not_vary_says_nothing(counts, value):
    X, y = counts
    wide = np.column_stack([X, np.full(len(X), value)])
    plain, model = quick().fit(X, y), quick().fit(wide, y)
    assert np.isfinite(model.bases_).all()
    assert model.score(wide, y) > plain.score(X, y) - 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_components": 0}, "n_components must be an integer of at least 1; got 0."),
        ({"shared": "yes"}, "shared must be True or False; got 'yes'."),
        ({"sparsity": -1}, 'sparsity must be a number of at least 0 or "auto"; got -1.'),
        ({"solver": "em"}, "solver must be one of 'auto', 'accelerated', 'multiplicative'; got 'em'."),
        ({"validation_fraction": 1.0}, "validation_fraction must be a number above 0 and below 1; got 1.0."),
        ({"early_stopping": 1}, "early_stopping must be True or False; got 1."),
    ],
    ids=str,
)
def test_arguments_are_checked(counts, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        quick(**options).fit(*counts)


@pytest.mark.parametrize("method", ["sample", "impute", "score_samples", "predict_joint_log_proba"])
def test_what_needs_a_density_is_absent(fitted, method):
    assert not hasattr(fitted, method)
    message = (
        f"NonnegativeMixtureClassifier has no '{method}': it models p(class | x) and has no density p(x). Use "
        "MixtureClassifier or GaussianMixture."
    )
    with pytest.raises(AttributeError, match=f"^{re.escape(message)}$"):
        getattr(fitted, method)
    with pytest.raises(AttributeError, match="has no attribute 'colour'"):
        _ = fitted.colour


def test_before_fitting(counts, tmp_path):
    for use in (lambda m: m.predict(counts[0]), lambda m: m.save(tmp_path / "model"), lambda m: m.weights_):
        with pytest.raises(NotFittedError):
            use(NonnegativeMixtureClassifier())


# ---- predicting ------------------------------------------------------------------------------------------------------


def test_all_answers_agree(counts, fitted):
    X, _ = counts
    proba = fitted.predict_proba(X)
    np.testing.assert_allclose(np.exp(fitted.predict_log_proba(X)), proba)
    np.testing.assert_allclose(fitted.decision_function(X), fitted.predict_log_proba(X))
    shares = fitted.responsibilities(X)
    for c in range(3):
        np.testing.assert_allclose(shares[:, fitted.mixture_.class_of.numpy() == c].sum(1), proba[:, c], atol=1e-12)


def test_two_classes_give_log_odds(counts):
    X, y = counts
    model = quick().fit(X, y == "a")
    log_proba = model.predict_log_proba(X)
    np.testing.assert_allclose(model.decision_function(X), log_proba[:, 1] - log_proba[:, 0])


def test_tensors_in_tensors_out(counts, fitted):
    X = torch.from_numpy(counts[0])
    assert torch.is_tensor(fitted.predict_proba(X))
    assert fitted.predict(X).tolist() == fitted.predict(counts[0]).tolist()
    numbers = quick().fit(X, torch.from_numpy((counts[1] == "a").astype(int)))
    assert numbers.predict(X).dtype == torch.int64
    assert numbers.predict_proba(X.float()).dtype == torch.float32


# ---- files and pipelines ---------------------------------------------------------------------------------------------


def test_a_saved_model_predicts_the_same(counts, fitted, tmp_path):
    fitted.save(tmp_path / "model.safetensors")
    again = mixtura.load(tmp_path / "model.safetensors")
    assert isinstance(again, NonnegativeMixtureClassifier)
    assert np.array_equal(again.predict_proba(counts[0]), fitted.predict_proba(counts[0]))
    assert again.get_params() == fitted.get_params()
    assert (again.n_iter_, again.n_bases_, again.history_) == (fitted.n_iter_, fitted.n_bases_, fitted.history_)
    assert again.validation_scores_ == fitted.validation_scores_
    assert np.array_equal(again.class_prior_, fitted.class_prior_)
    assert again.n_components_.tolist() == fitted.n_components_.tolist()


def test_a_file_whose_parts_do_not_fit_is_refused(fitted, tmp_path):
    copy = pickle.loads(pickle.dumps(fitted))
    copy.class_prior_ = np.ones(2) / 2
    with pytest.raises(ValueError, match=r"class_prior_ \(2,\) of type torch.float64 should be \(3,\)"):
        copy.save(tmp_path / "model")


def test_a_pickle_predicts_the_same(counts, fitted):
    copy = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(copy.predict_proba(counts[0]), fitted.predict_proba(counts[0]))
    assert not hasattr(clone(fitted), "mixture_")


def test_the_pipeline_codes_new_rows_with_the_basis_fixed(counts):
    X, y = counts
    options = {"solver": "multiplicative", "early_stopping": False, "tol": 1e-3}
    model = make_nonnegative_pipeline(4, n_components=2, random_state=0, **options).fit(X[::2], y[::2])
    coder, classifier = model[0], model[-1]
    basis = coder.components_.copy()
    assert model.score(X[1::2], y[1::2]) > 0.6
    assert np.array_equal(coder.components_, basis)
    assert classifier.n_features_in_ == 4
    assert classifier.random_state == 0
    assert np.array_equal(model.predict(X), classifier.predict(coder.transform(X)))


def test_a_rare_column_does_not_end_the_training_at_its_start():
    """A pixel that is dark in nearly all digits gives one held-out row a log posterior below -1000."""
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=1, stratify=y)
    model = NonnegativeMixtureClassifier(solver="multiplicative", random_state=0, max_iter=60).fit(X_train, y_train)
    assert model.n_iter_ > 0
    assert model.score(X_test, y_test) > 0.85
