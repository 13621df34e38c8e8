"""SparseMixtureClassifier and RelevanceVectorClassifier: what users see."""

import pickle
import re
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.utils.estimator_checks import parametrize_with_checks

import mixtura
from mixtura import RelevanceVectorClassifier, SparseMixtureClassifier
from mixtura.checks import RepairWarning
from mixtura.datasets import make_ripley
from mixtura.estimators.sparse import LOG_ODDS
from mixtura.files.registry import on_device
from mixtura.sparse.newton import SparseNewton

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = {"n_components": 2, "n_init": 1, "max_iter": 300, "random_state": 0}


def quietly(function, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", RepairWarning)
        return function(*arguments)


@pytest.fixture(scope="module")
def ripley():
    return make_ripley(60, random_state=0)


@pytest.fixture(scope="module")
def fitted(ripley):
    return quietly(SparseMixtureClassifier(**QUICK).fit, *ripley)


@pytest.fixture(scope="module")
def machine(ripley):
    return RelevanceVectorClassifier().fit(*ripley)


FIRST_ROWS = "a start draws rows: a row of weight 2 and two rows give other draws from the same random state"


def expected_failures(estimator) -> dict[str, str]:
    """The trial of one component per class, which draws no rows, wins on the rows of that check."""
    one = estimator.evidence
    return {} if isinstance(one, str) else {"check_sample_weight_equivalence_on_dense_data": FIRST_ROWS}


@parametrize_with_checks(
    [
        RelevanceVectorClassifier(max_iter=5),
        SparseMixtureClassifier(2, n_init=1, max_iter=10),
        SparseMixtureClassifier(2, n_init=1, max_iter=10, kernel=None, evidence={"component_trials": False}),
    ],
    expected_failed_checks=expected_failures,
)
def test_scikit_learn_agrees(estimator, check):
    quietly(check, estimator)


class TestModel:
    def test_learns_and_is_sparse(self, fitted, ripley):
        X, y = ripley
        assert fitted.score(X, y) > 0.85
        assert fitted.n_weights_ == (fitted.coef_ != 0).sum() < 20
        assert fitted.coef_.shape == (fitted.n_components_.sum(), len(fitted.basis_names_))
        assert fitted.n_parameters_ == fitted.n_weights_ + fitted.n_components_.sum() - 2

    def test_tensors_shrink_with_the_model(self, fitted):
        model = fitted.model_
        assert len(model.mixture.values) == fitted.n_weights_
        assert model.covariance.shape == (fitted.n_weights_, fitted.n_weights_)
        assert len(model.basis.points) == len(fitted.basis_names_) <= fitted.n_weights_

    def test_relevance_vectors_are_training_rows(self, fitted, ripley):
        assert len(fitted.relevance_) > 0
        np.testing.assert_allclose(fitted.relevance_vectors_, ripley[0][fitted.relevance_], atol=1e-12)
        assert f"k(x, row {fitted.relevance_[0]})" in fitted.basis_names_

    def test_probabilities_from_the_view(self, fitted, ripley):
        X, _ = ripley
        joint = (
            fitted.model_.mixture.log_weights.numpy()
            + fitted.model_.basis.evaluate(fitted.model_.scaling(torch.from_numpy(X))).numpy() @ fitted.coef_.T
        )
        np.testing.assert_allclose(fitted.responsibilities(X), torch.tensor(joint).softmax(1), atol=1e-12)
        slices = np.cumsum([0, *fitted.n_components_])
        by_class = np.add.reduceat(fitted.responsibilities(X), slices[:-1], axis=1)
        np.testing.assert_allclose(fitted.predict_proba(X), by_class, atol=1e-12)
        np.testing.assert_allclose(fitted.predict_log_proba(X), np.log(by_class), atol=1e-9)
        np.testing.assert_allclose(fitted.decision_function(X), np.log(by_class[:, 1] / by_class[:, 0]), atol=1e-9)

    def test_history_ends_at_the_evidence(self, machine):
        assert machine.converged_
        assert machine.history_[-1].objective * 120 == pytest.approx(machine.log_evidence_, abs=1e-3)
        assert len(machine.history_) == machine.n_iter_

    def test_the_evidence_chooses_the_start(self, ripley):
        brief = QUICK | {"max_iter": 20, "evidence": {"component_trials": False}}
        best = quietly(SparseMixtureClassifier(**brief | {"n_init": 4}).fit, *ripley)
        one = quietly(SparseMixtureClassifier(**brief).fit, *ripley)
        assert best.history_[-1].objective > one.history_[-1].objective

    def test_monomials_are_named(self, ripley):
        model = quietly(SparseMixtureClassifier(kernel=None, **QUICK).fit, *ripley)
        assert set(model.basis_names_) <= {"1", "x0", "x1", "x0 x0", "x0 x1", "x1 x1"}
        assert model.relevance_vectors_.shape == (0, 2)
        assert model.score(*ripley) > 0.85

    def test_many_classes(self):
        X, y = load_iris(return_X_y=True)
        names = np.array(["setosa", "versicolor", "virginica"])[y]
        model = RelevanceVectorClassifier().fit(X, names)
        assert model.classes_.tolist() == ["setosa", "versicolor", "virginica"]
        assert model.score(X, names) > 0.95
        assert model.predict_proba(X).shape == (150, 3)

    def test_minus_one_is_a_class(self, ripley, machine):
        X, y = ripley
        signed = RelevanceVectorClassifier().fit(X, 2 * y - 1)
        assert signed.classes_.tolist() == [-1, 1]
        np.testing.assert_allclose(signed.predict_proba(X), machine.predict_proba(X), rtol=1e-9)

    def test_units_do_not_matter(self, ripley, machine):
        X, y = ripley
        moved = RelevanceVectorClassifier().fit(X * [1e4, 1e-3] + [5e3, 7], y)
        other = moved.predict_proba(X * [1e4, 1e-3] + [5e3, 7])
        np.testing.assert_allclose(other, machine.predict_proba(X), atol=1e-5)

    def test_weights_mean_copies(self, ripley):
        X, y = ripley
        weights = np.arange(len(X)) % 3
        weighted = RelevanceVectorClassifier().fit(X, y, weights)
        copied = RelevanceVectorClassifier().fit(np.repeat(X, weights, 0), np.repeat(y, weights))
        np.testing.assert_allclose(weighted.predict_proba(X), copied.predict_proba(X), atol=1e-6)

    def test_tensors_in_tensors_out(self, fitted, ripley):
        rows = torch.from_numpy(ripley[0]).float()
        actual = fitted.predict_proba(rows)
        assert actual.dtype == torch.float32
        np.testing.assert_allclose(actual, fitted.predict_proba(ripley[0]), atol=1e-4)
        assert isinstance(fitted.predict(rows), torch.Tensor)


class TestKernels:
    def test_a_function_and_a_matrix_do_what_the_name_does(self, ripley):
        X, y = ripley
        X, y = X[::3], y[::3]
        by_name = RelevanceVectorClassifier(gamma=0.8, scaling=False).fit(X, y)
        function = RelevanceVectorClassifier(kernel=lambda a, b: rbf_kernel(a, b, gamma=0.8), scaling=False)
        by_function = function.fit(X, y)
        by_matrix = RelevanceVectorClassifier(kernel="precomputed").fit(rbf_kernel(X, gamma=0.8), y)
        assert by_matrix.relevance_.tolist() == sorted(by_name.relevance_)
        np.testing.assert_allclose(by_function.predict_proba(X), by_name.predict_proba(X), atol=1e-6)
        of_matrix = by_matrix.predict_proba(rbf_kernel(X, gamma=0.8))
        np.testing.assert_allclose(of_matrix, by_name.predict_proba(X), atol=1e-6)

    def test_a_working_set_needs_no_square_matrix(self):
        X, y = make_ripley(500, random_state=0)
        model = RelevanceVectorClassifier(gamma=2.0, memory_limit="4 MB", random_state=0).fit(X, y)
        assert model.converged_
        assert model.score(X, y) > 0.88
        assert model.n_weights_ < 30

    def test_equal_rows_are_one_column(self, ripley):
        X, y = ripley
        twice = RelevanceVectorClassifier().fit(np.tile(X, (2, 1)), np.tile(y, 2))
        assert len(np.unique(twice.relevance_vectors_, axis=0)) == len(twice.relevance_vectors_)


class TestModeration:
    def test_moderated_probabilities_are_less_sure(self, ripley):
        X, y = ripley
        model = RelevanceVectorClassifier(gamma=2.0).fit(X[::3], y[::3])
        plain, moderated = model.predict_proba(X), model.predict_proba(X, moderated=True)
        np.testing.assert_allclose(moderated.sum(1), 1)
        assert np.abs(moderated - 0.5).mean() < np.abs(plain - 0.5).mean()
        np.testing.assert_array_equal(moderated, model.predict_proba(X, moderated=True))

    def test_against_plain_sampling(self, fitted, ripley, rng):
        X = ripley[0][:5]
        model, mixture = fitted.model_, fitted.model_.mixture
        draws = rng.multivariate_normal(mixture.values.numpy(), model.covariance.numpy(), 20000)
        columns = model.basis.evaluate(model.scaling(torch.from_numpy(X)))[:, mixture.columns].numpy()
        parts = np.einsum("sp,pk,np->snk", draws, mixture.members.numpy(), columns) + mixture.log_weights.numpy()
        joint = torch.tensor(parts).softmax(2).numpy()
        expected = joint[..., mixture.class_of.numpy() == 1].sum(2).mean(0)
        np.testing.assert_allclose(fitted.predict_proba(X, moderated=True)[:, 1], expected, atol=0.01)


class TestFiles:
    @pytest.mark.parametrize("kernel", ["polynomial", "rbf", None, "precomputed"])
    def test_a_model_comes_back(self, ripley, kernel, tmp_path):
        X, y = ripley[0][::2], ripley[1][::2]
        rows = rbf_kernel(X) if kernel == "precomputed" else X
        model = quietly(SparseMixtureClassifier(kernel=kernel, **QUICK | {"max_iter": 12}).fit, rows, y)
        model.save(tmp_path / "model")
        actual = mixtura.load(tmp_path / "model")
        for moderated in (False, True):
            np.testing.assert_array_equal(actual.predict_proba(rows, moderated), model.predict_proba(rows, moderated))
        assert actual.history_ == model.history_
        assert actual.log_evidence_ == model.log_evidence_
        assert actual.basis_names_ == model.basis_names_
        assert actual.get_params() == model.get_params()

    def test_the_file_is_small(self, machine, tmp_path):
        machine.save(tmp_path / "model")
        assert (tmp_path / "model").stat().st_size < 20_000 + 120 * 600  # the history is the larger part

    def test_a_function_cannot_be_stored(self, ripley, tmp_path):
        model = quietly(RelevanceVectorClassifier(kernel=rbf_kernel, max_iter=5).fit, *ripley)
        with pytest.raises(ValueError, match=r"kernel is a function \(rbf_kernel\), .*cannot hold; use .*precomputed"):
            model.save(tmp_path / "model")

    def test_a_pickle_predicts_the_same(self, fitted, ripley):
        copy = pickle.loads(pickle.dumps(fitted))
        np.testing.assert_array_equal(copy.predict_proba(ripley[0]), fitted.predict_proba(ripley[0]))


class TestInterruption:
    @pytest.mark.parametrize(("n_steps", "n_kept"), [(5, 5), (310, 300)], ids=["mixture", "one_component"])
    def test_what_is_there_is_kept(self, ripley, monkeypatch, n_steps, n_kept):
        step, calls = SparseNewton.step, []

        def interrupted(self, *arguments):
            calls.append(1)
            if len(calls) > n_steps:
                raise KeyboardInterrupt
            return step(self, *arguments)

        monkeypatch.setattr(SparseNewton, "step", interrupted)
        model = SparseMixtureClassifier(**QUICK)
        with pytest.raises(KeyboardInterrupt):
            quietly(model.fit, *ripley)
        assert model.n_iter_ == n_kept
        assert model.predict(ripley[0]).shape == (120,)

    def test_nothing_is_computed_after_an_interrupt_in_the_first_step(self, ripley, monkeypatch):
        def interrupted(self, *arguments):
            raise KeyboardInterrupt

        def late(self, *arguments):
            raise AssertionError("the posterior of all candidates takes long")

        monkeypatch.setattr(SparseNewton, "step", interrupted)
        monkeypatch.setattr(SparseNewton, "posterior", late)
        model = SparseMixtureClassifier(**QUICK)
        with pytest.raises(KeyboardInterrupt):
            model.fit(*ripley)
        with pytest.raises(NotFittedError):
            model.predict(ripley[0])


class TestHardData:
    @pytest.mark.parametrize("scales", [(1.0, 1.0), (0.4, 2.0)], ids=["round", "long"])
    def test_components_that_are_not_needed_leave(self, rng, scales):
        X, y = np.concatenate([rng.normal(0, 1, (60, 2)), rng.normal([2, 1], scales, (60, 2))]), np.repeat([0, 1], 60)
        model = SparseMixtureClassifier(10, n_init=1, random_state=0).fit(X, y)
        assert model.n_components_.tolist() == [1, 1]
        published = clone(model).set_params(evidence="published").fit(X, y)
        assert published.n_components_.sum() > 2
        several = clone(model).set_params(evidence={"component_trials": False}).fit(X, y)
        assert several.log_evidence_ <= model.log_evidence_ + LOG_ODDS

    def test_components_that_are_needed_stay(self, rng):
        X = rng.normal(0, 0.5, (120, 2)) + np.repeat([[-3, 0], [1, 0], [-1, 0], [3, 0]], 30, 0)
        y = np.repeat([0, 0, 1, 1], 30)
        model = quietly(SparseMixtureClassifier(2, n_init=1, max_iter=200, random_state=0).fit, X, y)
        assert model.n_components_.sum() > 2
        assert model.score(X, y) > 0.9

    def test_separable_classes_keep_finite_weights(self, rng):
        X = np.concatenate([rng.normal(-5, 0.5, (50, 2)), rng.normal(5, 0.5, (50, 2))])
        y = np.repeat([0, 1], 50)
        for model in (RelevanceVectorClassifier(max_iter=200), SparseMixtureClassifier(**QUICK | {"max_iter": 100})):
            quietly(model.fit, X, y)
            assert model.score(X, y) == 1
            assert np.abs(model.coef_).max() < 1e3
            assert np.isfinite(model.predict_log_proba(X)).all()

    def test_nothing_to_learn_gives_the_class_prior(self):
        X, y = np.zeros((30, 2)), np.repeat([0, 1], 15)
        with pytest.warns(RepairWarning, match="it predicts the class prior for every sample"):
            model = RelevanceVectorClassifier().fit(X, y)
        np.testing.assert_allclose(model.predict_proba(X), 0.5)
        np.testing.assert_allclose(model.predict_proba(X, moderated=True), 0.5)
        assert model.n_weights_ == 0

    def test_columns_that_tell_nothing_leave_the_class_prior(self):
        X, y = np.zeros((30, 2)), np.repeat([0, 1, 1], 10)
        model = RelevanceVectorClassifier().fit(X, y)
        np.testing.assert_allclose(model.predict_proba(X), np.tile([1 / 3, 2 / 3], (30, 1)), atol=0.05)

    def test_a_constant_column_changes_nothing(self, ripley, machine):
        X, y = ripley
        wide = np.hstack([X, np.full((len(X), 1), 7.0)])
        model = RelevanceVectorClassifier(gamma=1.5).fit(wide, y)  # sqrt(3) instead of sqrt(2) is gamma 1.5
        np.testing.assert_allclose(model.predict_proba(wide), machine.predict_proba(X), atol=1e-5)

    def test_more_components_than_rows(self, rng):
        y = np.array([0, 0, 0, 0, 0, 1, 1])
        X = rng.normal(size=(7, 2)) + 3 * y[:, None]
        with pytest.warns(
            RepairWarning, match="fewer samples than components: class 1 has 2 samples for 4 components; such a class"
        ):
            SparseMixtureClassifier(4, n_init=1).fit(X, y)


BAD = [
    ({"kernel": "sigmoid"}, "kernel must be one of 'polynomial', 'rbf', 'precomputed', None (the features themselves)"),
    ({"gamma": 0.0}, "gamma must be a number above 0; got 0.0."),
    ({"degree": 0}, "degree must be an integer of at least 1; got 0."),
    ({"coef0": -1.0}, "coef0 must be a number of at least 0; got -1.0."),
    ({"evidence": "strong"}, "evidence must be one of 'default', 'published' or a dict of settings; got 'strong'."),
    ({"evidence": {"odds": 2}}, "a setting of evidence must be one of 'hessian', 'component_trials', 'start_variance'"),
    ({"evidence": {"hessian": "full"}}, "evidence['hessian'] must be one of 'complete', 'exact'; got 'full'."),
    ({"n_components": 0}, "n_components must be an integer of at least 1; got 0."),
    ({"n_init": 0}, "n_init must be an integer of at least 1; got 0."),
    ({"max_iter": 0}, "max_iter must be an integer of at least 1; got 0."),
    ({"tol": -1}, "tol must be a number of at least 0; got -1."),
    ({"scaling": "yes"}, "scaling must be True or False; got 'yes'."),
    ({"evidence": {"component_trials": 2}}, "evidence['component_trials'] must be True or False; got 2."),
    ({"evidence": {"start_variance": 0}}, "evidence['start_variance'] must be a number above 0 or None; got 0."),
    ({"evidence": {"expected_variance": 0}}, "evidence['expected_variance'] must be a number above 0 or None; got 0."),
    ({"working_set": "never"}, "working_set must be one of 'auto', True or False; got 'never'."),
]


class TestBadInput:
    @pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda value: str(value)[:30])
    def test_arguments(self, arguments, message, ripley):
        with pytest.raises(ValueError, match=re.escape(message)):
            SparseMixtureClassifier(**arguments).fit(*ripley)

    @pytest.mark.parametrize(
        ("kind", "former", "evidence"),
        [
            (SparseMixtureClassifier, {"component_trials": False}, {"component_trials": False}),
            (
                SparseMixtureClassifier,
                {"component_trials": False, "start_variance": None, "expected_variance": None},
                "published",
            ),
            (SparseMixtureClassifier, {"hessian": "exact"}, {"hessian": "exact"}),
            (RelevanceVectorClassifier, {"hessian": "complete"}, "published"),
        ],
    )
    def test_former_arguments_are_settings_of_the_evidence(self, kind, former, evidence):
        with pytest.warns(FutureWarning, match=re.escape(f"use evidence={evidence!r}.")):
            model = kind(**former)
        assert model.evidence == evidence
        assert not set(former) & set(model.get_params())

    def test_missing_values(self, ripley, fitted):
        X, y = ripley[0].copy(), ripley[1]
        X[3, 1] = np.nan
        message = "Input X contains NaN, first in column 1; .* use an estimator that supports them: MixtureClassifier, "
        for call in (lambda: RelevanceVectorClassifier().fit(X, y), lambda: fitted.predict(X)):
            with pytest.raises(ValueError, match=message):
                call()

    def test_one_class(self, ripley):
        with pytest.raises(ValueError, match="needs samples of at least two classes, but y holds only one class: 1"):
            SparseMixtureClassifier().fit(ripley[0], np.ones(120, int))

    def test_soft_labels(self, ripley):
        with pytest.raises(
            ValueError, match="needs one label per sample; y has several columns, which means soft labels"
        ):
            SparseMixtureClassifier().fit(ripley[0], np.full((120, 2), 0.5))

    def test_kernels(self, ripley):
        X, y = ripley
        with pytest.raises(ValueError, match="The kernel is not positive definite: the smallest eigenvalue"):
            RelevanceVectorClassifier(kernel=lambda a, b: np.linalg.norm(a[:, None] - b, axis=-1)).fit(X, y)
        with pytest.raises(ValueError, match=r"Precomputed kernel matrix is not square.* got shape \(120, 2\)"):
            RelevanceVectorClassifier(kernel="precomputed").fit(X, y)

    def test_an_early_end_is_a_warning(self, ripley):
        with pytest.warns(
            ConvergenceWarning,
            match="did not converge: the precisions still change by more than tol=1e-05 after max_iter=3",
        ):
            RelevanceVectorClassifier(max_iter=3).fit(*ripley)

    def test_predicting_before_fitting(self, ripley):
        with pytest.raises(NotFittedError):
            SparseMixtureClassifier().predict(ripley[0])


def test_all_tensors_of_a_model_move_to_a_device(fitted):
    """Small fits on a GPU are computed on the host; "meta" stands for the GPU."""
    moved = on_device(fitted.model_, torch.device("meta"))
    parts = {**vars(moved), **vars(moved.mixture), **vars(moved.basis), **vars(moved.scaling)}
    devices = {name: part.device.type for name, part in parts.items() if isinstance(part, torch.Tensor)}
    assert len(devices) >= 9
    assert set(devices.values()) == {"meta"}
