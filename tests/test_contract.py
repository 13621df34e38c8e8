"""scikit-learn's conventions: its own checks of every estimator, copies, pipelines, searches, routing, frames."""

import inspect
import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
import sklearn.ensemble
import torch
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score, cross_validate
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

import mixtura
from mixtura import (
    AveragedMixture,
    AveragedMixtureClassifier,
    DiscriminativeMixtureClassifier,
    GaussianMixture,
    HybridMixtureClassifier,
    MarginalFeatureSelector,
    MixtureClassifier,
    MixtureImputer,
    RejectOption,
)
from mixtura.covariances import Diagonal, Tied
from mixtura.priors import Conjugate

# One start, whatever the random state: scikit-learn's checks hold without an exception.
WITHOUT_CHANCE = [
    MixtureClassifier(1),
    MixtureClassifier(1, covariance_type="tied"),
    MixtureClassifier(1, covariance_type="diag", init="k-means++"),
    MixtureClassifier(1, covariance_type="spherical", memory_limit="2 MB"),
    MixtureClassifier(1, covariance_type="low_rank"),
    MixtureClassifier(1, covariance_type=Tied(Diagonal(), per_class=True), class_weight="balanced"),
    MixtureClassifier(1, device="cpu", unlabeled=None),
    MixtureClassifier(1, objective="conditional", solver="gradient", max_iter=30),
    MixtureClassifier(1, warp="johnson"),
    GaussianMixture(),
    GaussianMixture(covariance_type="diag", prior="default"),
    GaussianMixture(covariance_type="low_rank"),
    MixtureImputer(),
    MarginalFeatureSelector(),
    RejectOption(),
    AveragedMixture(n_estimators=2),  # one component: what is drawn shows in no prediction that is checked
]
WITH_CHANCE = [
    MixtureClassifier(n_components=2),
    MixtureClassifier(n_components=2, init="random", covariance_type="diag"),
    HybridMixtureClassifier(n_epochs=2),
    GaussianMixture(n_components=2),
    GaussianMixture(n_components=2, covariance_type="spherical", init_params="random"),
    AveragedMixtureClassifier(n_estimators=2, resampling="subset"),
]
FIRST_ROWS = "a start draws rows: a row of weight 2 and two rows give other draws from the same random state"


REJECTED = "a rejected sample gets no class, and the folds that set the threshold draw samples"


def expected_failures(estimator) -> dict[str, str]:
    if isinstance(estimator, RejectOption):
        names = ["check_classifiers_train", "check_sample_weight_equivalence_on_dense_data"]
        return dict.fromkeys(names, REJECTED)
    drawn = isinstance(estimator, AveragedMixtureClassifier)  # replicates
    one_start = getattr(estimator, "n_components", 1) == 1 and not drawn
    return {} if one_start else {"check_sample_weight_equivalence_on_dense_data": FIRST_ROWS}


@parametrize_with_checks([*WITHOUT_CHANCE, *WITH_CHANCE], expected_failed_checks=expected_failures)
def test_scikit_learn_agrees(estimator, check):
    check(estimator)


ESTIMATORS = [
    MixtureClassifier(n_components=2, random_state=0),
    HybridMixtureClassifier(n_components=2, random_state=0),
    GaussianMixture(n_components=3, random_state=0),
]


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def frame():
    data = load_iris(as_frame=True)
    return data.data, data.target_names[data.target]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
class TestEveryEstimator:
    def test_a_clone_has_the_arguments_and_not_the_fit(self, estimator, iris):
        fitted = clone(estimator).fit(*iris)
        copy = clone(fitted)
        assert copy.get_params() == estimator.get_params()
        assert not hasattr(copy, "mixture_")

    def test_arguments_can_be_set(self, estimator):
        changed = clone(estimator).set_params(n_components=4, covariance_type="diag")
        assert (changed.n_components, changed.covariance_type) == (4, "diag")
        with pytest.raises(ValueError, match="Invalid parameter 'colour'"):
            changed.set_params(colour="red")

    def test_a_pickle_predicts_the_same(self, estimator, iris):
        fitted = clone(estimator).fit(*iris)
        copy = pickle.loads(pickle.dumps(fitted))
        assert np.array_equal(copy.predict_proba(iris[0]), fitted.predict_proba(iris[0]))
        assert copy.history_ == fitted.history_

    def test_works_in_a_pipeline(self, estimator, iris):
        X, y = iris
        piped = make_pipeline(StandardScaler(), clone(estimator)).fit(X, y)
        alone = clone(estimator).fit(StandardScaler().fit_transform(X), y)
        assert np.array_equal(piped.predict(X), alone.predict(StandardScaler().fit_transform(X)))

    def test_tags_allow_missing_values(self, estimator):
        assert get_tags(estimator).input_tags.allow_nan

    @pytest.mark.parametrize(
        "method", ["predict", "predict_proba", "score_samples", "responsibilities", "impute", "score"]
    )
    def test_predicting_before_fitting_says_so(self, estimator, method, iris):
        X, y = iris
        arguments = (X, y) if method == "score" else (X,)
        with pytest.raises(NotFittedError, match=f"This {type(estimator).__name__} instance is not fitted yet"):
            getattr(clone(estimator), method)(*arguments)

    def test_sampling_and_saving_before_fitting_say_so(self, estimator, tmp_path):
        with pytest.raises(NotFittedError):
            clone(estimator).sample()
        with pytest.raises(NotFittedError):
            clone(estimator).save(tmp_path / "model")
        assert not hasattr(clone(estimator), "n_parameters_")

    def test_names_of_columns_are_kept_and_compared(self, estimator, frame):
        X, y = frame
        fitted = clone(estimator).fit(X, y)
        assert fitted.feature_names_in_.tolist() == X.columns.tolist()
        assert fitted.n_features_in_ == 4
        with pytest.raises(ValueError, match="Feature names must be in the same order"):
            fitted.predict(X[X.columns[::-1]])
        with pytest.warns(UserWarning, match="absent and count as missing"):
            fitted.predict(X.drop(columns=X.columns[0]))
        with pytest.warns(UserWarning, match="X does not have valid feature names"):
            fitted.predict(X.to_numpy())

    def test_a_fit_without_names_forgets_older_names(self, estimator, frame):
        X, y = frame
        for unnamed in (X.to_numpy(), torch.from_numpy(X.to_numpy())):
            fitted = clone(estimator).fit(X, y).fit(unnamed, y)
            assert not hasattr(fitted, "feature_names_in_")

    def test_tensors_in_tensors_out_on_their_device(self, estimator, iris, device, dtype):
        X, y = iris
        rows = torch.from_numpy(X).to(device, dtype)
        fitted = clone(estimator).fit(rows, torch.from_numpy(y).to(device))
        of_arrays = clone(estimator).fit(X, y)
        for method in ("predict_proba", "score_samples", "responsibilities", "impute"):
            actual = getattr(fitted, method)(rows)
            assert isinstance(actual, torch.Tensor)
            assert (actual.device, actual.dtype) == (rows.device, dtype)
            tolerance = 1e-6 if dtype == torch.float64 else 1e-2
            np.testing.assert_allclose(actual.cpu(), getattr(of_arrays, method)(X), atol=tolerance)
        labels = fitted.predict(rows)
        assert isinstance(labels, torch.Tensor)
        assert (labels.device, labels.dtype) == (rows.device, torch.int64)
        assert np.mean(labels.cpu().numpy() == of_arrays.predict(X)) > (0.999 if dtype == torch.float64 else 0.97)

    def test_arrays_in_arrays_out_from_a_model_of_tensors(self, estimator, iris):
        X, y = iris
        fitted = clone(estimator).fit(torch.from_numpy(X), torch.from_numpy(y))
        assert isinstance(fitted.predict_proba(X), np.ndarray)
        assert isinstance(fitted.predict(X), np.ndarray)
        assert isinstance(fitted.score(torch.from_numpy(X), torch.from_numpy(y)), float)

    def test_tensors_that_require_gradients_are_read_without_them(self, estimator, iris):
        X, y = iris
        rows = torch.from_numpy(X).requires_grad_()
        actual = clone(estimator).fit(rows, y).score_samples(rows)
        assert not actual.requires_grad

    def test_input_is_left_alone(self, estimator, iris):
        X, y = iris
        rows, weights = X.copy(), np.linspace(0.5, 2, len(X))
        rows[::7, 1] = np.nan
        before = rows.copy(), y.copy(), weights.copy()
        clone(estimator).fit(rows, y, weights).impute(rows)
        for now, then in zip((rows, y, weights), before, strict=True):
            np.testing.assert_array_equal(now, then)

    def test_repr_names_only_what_was_set(self, estimator):
        assert repr(estimator) == f"{type(estimator).__name__}(n_components={estimator.n_components}, random_state=0)"


PUBLIC = [
    part
    for name in mixtura.__all__
    if isinstance(part := getattr(mixtura, name), type) and issubclass(part, BaseEstimator)
]


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_no_constructor_has_more_than_26_arguments(kind):
    assert len(kind._get_param_names()) <= 26


@pytest.mark.parametrize("preset", [DiscriminativeMixtureClassifier, HybridMixtureClassifier])
def test_presets_are_constructors(preset):
    """A preset is its constructor, its settings and its search; all else is that of every classifier with a density."""
    own = {name for name, part in vars(preset).items() if inspect.isfunction(part)}
    assert own <= {"__init__", "fit", "_settings", "_search", "_objective", "_selected_settings"}
    assert preset.__base__ is MixtureClassifier.__base__
    assert not {"objective", "solver"} & set(preset().get_params())  # what they are follows from the other arguments
    assert vars(preset()).keys() == preset().get_params().keys()  # and nothing else is set
    assert not hasattr(preset, "from_sklearn")


@pytest.mark.parametrize("estimator", [*ESTIMATORS, AveragedMixture(random_state=0), AveragedMixtureClassifier()])
def test_components_are_counted(estimator, iris):
    model = clone(estimator).fit(*iris)
    assert np.sum(model.n_components_) == len(model.weights_) == len(model.means_)
    assert np.shape(model.n_components_) == (model.classes_.shape if is_classifier(model) else ())


def test_kinds_of_estimators():
    assert is_classifier(MixtureClassifier(1))
    assert get_tags(GaussianMixture()).estimator_type == "density_estimator"


def test_grid_search_over_components_and_covariances(iris):
    grid = {"n_components": [1, 2], "covariance_type": ["diag", "full"], "prior": ["default", None]}
    search = GridSearchCV(MixtureClassifier(1, random_state=1), grid, scoring="neg_log_loss", cv=3).fit(*iris)
    assert search.best_score_ > -0.15
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_grid_search_over_nested_arguments(iris):
    X = iris[0][np.random.default_rng(0).permutation(150)]
    piped = make_pipeline(StandardScaler(), GaussianMixture(random_state=0))
    search = GridSearchCV(piped, {"gaussianmixture__n_components": [1, 3]}, cv=3).fit(X)
    assert search.best_params_ == {"gaussianmixture__n_components": 3}


def test_arguments_that_are_objects_survive_copies(iris):
    prior = Conjugate(3.0, torch.ones(4, dtype=torch.float64))
    model = MixtureClassifier(1, covariance_type=Tied(Diagonal()), prior=prior)
    copy = pickle.loads(pickle.dumps(clone(model).fit(*iris)))
    assert copy.covariance_type == Tied(Diagonal())
    assert copy.prior.strength == 3.0


def test_cross_validation_helpers(iris):
    X, y = iris
    assert cross_val_score(MixtureClassifier(1), X, y, cv=3).min() > 0.93
    probabilities = cross_val_predict(MixtureClassifier(1), X, y, cv=3, method="predict_proba")
    assert probabilities.shape == (150, 3)
    assert OneVsRestClassifier(MixtureClassifier(1)).fit(X, y).score(X, y) > 0.95


def test_text_columns_after_encoding():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=60), "kind": rng.choice(["a", "b", "c"], 60)})
    y = (frame["kind"] == "a").to_numpy()
    encoded = ColumnTransformer([("kind", OneHotEncoder(sparse_output=False), ["kind"])], remainder="passthrough")
    model = make_pipeline(encoded, MixtureClassifier(1, covariance_type="diag")).fit(frame, y)
    assert model.score(frame, y) == 1


class TestRouting:
    """sample_weight reaches fit and score where it is requested, and nowhere else."""

    @pytest.fixture(autouse=True)
    def routing(self):
        with sklearn.config_context(enable_metadata_routing=True):
            yield

    @pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
    def test_weights_reach_a_pipeline_step(self, estimator, iris):
        X, y = iris
        weights = np.linspace(0.1, 3, len(X))
        asking = clone(estimator).set_fit_request(sample_weight=True)
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        piped = make_pipeline(scaler, asking).fit(X, y, sample_weight=weights)
        alone = clone(estimator).fit(StandardScaler().fit_transform(X), y, sample_weight=weights)
        np.testing.assert_array_equal(piped[-1].mixture_.means, alone.mixture_.means)

    def test_weights_reach_fit_and_score_in_cross_validation(self, iris):
        X, y = iris
        weights = (np.arange(150) % 3 == 0) + 0.01
        asking = MixtureClassifier(1).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        weighted = cross_validate(asking, X, y, params={"sample_weight": weights}, cv=3)["test_score"]
        plain = cross_validate(MixtureClassifier(1), X, y, cv=3)["test_score"]
        assert not np.array_equal(weighted, plain)

    def test_weights_that_were_not_requested_raise(self, iris):
        X, y = iris
        params = {"sample_weight": np.ones(150)}
        with pytest.raises(ValueError, match="not explicitly set as requested or not requested"):
            cross_validate(MixtureClassifier(1), X, y, params=params, cv=3, error_score="raise")


def test_frames_and_arrays_fit_alike(frame):
    X, y = frame
    of_frame = MixtureClassifier(1).fit(X, pd.Series(y, index=X.index[::-1]))
    of_arrays = MixtureClassifier(1).fit(X.to_numpy(), y)
    assert of_frame.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    np.testing.assert_array_equal(of_frame.predict_proba(X), of_arrays.predict_proba(X.to_numpy()))


def test_nullable_columns_of_pandas_mean_missing(iris):
    X, y = iris
    holed = X.copy()
    holed[::5, 2] = np.nan
    nullable = pd.DataFrame(holed, columns=list("abcd")).astype("Float64")
    assert nullable.isna().to_numpy().sum() == 30
    actual = MixtureClassifier(1).fit(nullable, y).predict_proba(nullable)
    np.testing.assert_allclose(actual, MixtureClassifier(1).fit(holed, y).predict_proba(holed), rtol=1e-9)


def test_stacks_with_other_classifiers(iris):
    X, y = iris
    votes = sklearn.ensemble.VotingClassifier(
        [("mixture", MixtureClassifier(1)), ("logistic", LogisticRegression(max_iter=1000))], voting="soft"
    )
    assert votes.fit(X, y).score(X, y) > 0.95
