"""MixtureClassifier: known classifiers as special cases, labels of every kind, units, sources of rows, Ctrl-C."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from packaging.version import Version
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine
from sklearn.decomposition import FactorAnalysis
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning
from sklearn.naive_bayes import GaussianNB

from mixtura import GaussianMixture, MixtureClassifier
from mixtura.covariances import Diagonal, Full, LowRank, Spherical, Tied
from mixtura.datasets import make_ripley
from mixtura.model.mixture import Mixture
from mixtura.objectives import Joint
from mixtura.solvers import EM

FIXTURES = Path(__file__).parent / "fixtures"
COVARIANCE_TYPES = ["full", "tied", "diag", "spherical", "low_rank"]
# mclust's names; E: equal in all classes.
MCLUST = {
    "VVV": Full(),
    "VVI": Diagonal(),
    "VII": Spherical(),
    "EEE": Tied(Full()),
    "EEI": Tied(Diagonal()),
    "EII": Tied(Spherical()),
}
IRIS, SPECIES = load_iris(return_X_y=True)


def fixture(name: str) -> dict:
    return json.loads((FIXTURES / f"{name}.json").read_text())


def quietly(call, *arguments, **named):
    """The call without its warning that max_iter was too small."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return call(*arguments, **named)


def holed(rows, share=0.2, seed=0):
    return np.where(np.random.default_rng(seed).random(rows.shape) < share, np.nan, rows)


@pytest.fixture(scope="module")
def ripley():
    """Two classes of two groups each."""
    return make_ripley(100, random_state=0)


@pytest.fixture(scope="module")
def fitted(ripley):
    return MixtureClassifier(2, random_state=0).fit(*ripley)


# ---- one component per class and no prior: classifiers that everyone knows ------------------------------------------


divides_by_n = pytest.mark.skipif(
    Version(sklearn.__version__) < Version("1.9"), reason="scikit-learn divided covariances by N - 1"
)


class TestSpecialCases:
    @divides_by_n
    @pytest.mark.parametrize("data", [load_iris, load_wine], ids=["iris", "wine"])
    def test_full_is_quadratic_discriminant_analysis(self, data):
        X, y = data(return_X_y=True)
        ours = MixtureClassifier(1, prior=None).fit(X, y)
        theirs = QuadraticDiscriminantAnalysis(store_covariance=True).fit(X, y)
        np.testing.assert_allclose(ours.mixture_.covariances, theirs.covariance_, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-9)
        np.testing.assert_allclose(ours.predict_log_proba(X), theirs.predict_log_proba(X), rtol=1e-6, atol=1e-8)

    @pytest.mark.parametrize("data", [load_iris, load_wine], ids=["iris", "wine"])
    @pytest.mark.parametrize("solver", ["lsqr", pytest.param("svd", marks=divides_by_n)])
    def test_tied_is_linear_discriminant_analysis(self, data, solver):
        X, y = data(return_X_y=True)
        ours = MixtureClassifier(1, covariance_type="tied", prior=None).fit(X, y)
        theirs = LinearDiscriminantAnalysis(solver=solver, store_covariance=True).fit(X, y)
        np.testing.assert_allclose(ours.mixture_.covariances[0], theirs.covariance_, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-9)
        np.testing.assert_allclose(ours.predict_log_proba(X), theirs.predict_log_proba(X), rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("data", [load_iris, load_wine], ids=["iris", "wine"])
    def test_diag_is_naive_bayes(self, data):
        X, y = data(return_X_y=True)
        weights = np.linspace(0.5, 2, len(X))
        for sample_weight in (None, weights):
            ours = MixtureClassifier(1, covariance_type="diag", prior=None).fit(X, y, sample_weight)
            theirs = GaussianNB(var_smoothing=0).fit(X, y, sample_weight)
            np.testing.assert_allclose(ours.mixture_.covariance.variances(), theirs.var_, rtol=1e-9)
            np.testing.assert_allclose(ours.mixture_.means, theirs.theta_, rtol=1e-12)
            np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-9)
            np.testing.assert_allclose(
                ours.predict_joint_log_proba(X), theirs.predict_joint_log_proba(X), rtol=1e-9, atol=1e-9
            )

    def test_low_rank_is_a_factor_analysis_per_class(self):
        rng = np.random.default_rng(0)
        loadings = rng.uniform(1, 2, size=(2, 1, 5))
        groups = [rng.normal(size=(200, 1)) @ loadings[c] + rng.normal(size=(200, 5)) for c in (0, 1)]
        X, y = np.vstack(groups), np.repeat([0, 1], 200)
        ours = MixtureClassifier(1, covariance_type="low_rank", rank=1, prior=None, tol=1e-9, max_iter=2000).fit(X, y)
        joint = ours.predict_joint_log_proba(X)[np.arange(400), y].sum()
        theirs = [FactorAnalysis(1, tol=1e-9, max_iter=5000, svd_method="lapack").fit(g) for g in groups]
        expected = sum(200 * f.score(g) for f, g in zip(theirs, groups, strict=True)) + 400 * np.log(0.5)
        assert joint / 400 == pytest.approx(expected / 400, abs=1e-6)

    @pytest.mark.parametrize("name", MCLUST)
    @pytest.mark.parametrize("part", ["balanced", "uneven"])
    def test_edda_of_mclust(self, part, name):
        case = fixture("mclust_edda")[part]
        expected = case["models"][name]
        X, y = IRIS[case["train_rows"]], SPECIES[case["train_rows"]]
        model = MixtureClassifier(1, covariance_type=MCLUST[name], prior=None).fit(X, y)
        assert model.score_samples(X).sum() == pytest.approx(expected["loglik_marginal"], rel=1e-10)
        joint = model.predict_joint_log_proba(X)[np.arange(len(y)), y].sum()
        assert joint == pytest.approx(expected["loglik_joint"], rel=1e-10)
        assert model.history_[-1].objective * len(y) == pytest.approx(expected["loglik_joint"], rel=1e-10)
        assert model.n_parameters_ == expected["n_parameters"]
        np.testing.assert_allclose(model.class_prior_, expected["weights"], atol=1e-12)
        np.testing.assert_allclose(model.mixture_.means, expected["means"], atol=1e-9)
        np.testing.assert_allclose(model.mixture_.covariances, expected["covariances"], atol=1e-9)
        np.testing.assert_allclose(model.predict_proba(IRIS[case["query_rows"]]), expected["posteriors"], atol=1e-9)

    def test_iris_has_the_published_likelihood(self):
        model = MixtureClassifier(1, prior=None).fit(IRIS, SPECIES)
        assert model.score_samples(IRIS).sum() == pytest.approx(-182.9208, abs=5e-5)
        assert model.n_iter_ <= 2  # one component per class is solved by one step; the second sees no change


def start_from_shares(X, y, shares, structure) -> Mixture:
    """The mixture of one M-step in which each row has given shares of the components of its class."""
    n_classes, n_each = len(np.unique(y)), shares.shape[1]
    responsibilities = np.zeros((len(X), n_classes * n_each))
    for k in range(n_each):
        responsibilities[np.arange(len(X)), y * n_each + k] = shares[:, k]
    counts = responsibilities.sum(0)
    means = responsibilities.T @ X / counts[:, None]
    deviations = X - means[:, None]  # (K, n, D)
    scatters = np.einsum("nk,kni,knj->kij", responsibilities, deviations, deviations)
    tied = isinstance(structure, Tied)
    matrices = scatters.sum(0, keepdims=True) / len(X) if tied else scatters / counts[:, None, None]
    inner = structure.inner if tied else structure
    variances = matrices.diagonal(axis1=1, axis2=2)
    if isinstance(inner, Spherical):
        variances = np.repeat(variances.mean(1, keepdims=True), X.shape[1], 1)
    tensors = {"matrices": matrices} if isinstance(inner, Full) else {"entries": variances.copy()}
    if tied:
        tensors["groups"] = np.zeros(len(counts), dtype=np.int64)
    covariance = structure.from_tensors({name: torch.from_numpy(t) for name, t in tensors.items()})
    class_of = torch.from_numpy(np.repeat(np.arange(n_classes), n_each))
    return Mixture(torch.from_numpy(np.log(counts / counts.sum())), torch.from_numpy(means), covariance, class_of)


class TestMixturesOfOthers:
    def test_mixture_discriminant_analysis(self):
        expected = fixture("mda")
        start = start_from_shares(IRIS, SPECIES, np.array(expected["start_responsibilities"]), Tied(Full()))
        model = MixtureClassifier(2, covariance_type="tied", prior=None, init=start, tol=1e-13, max_iter=20_000)
        quietly(model.fit, IRIS, SPECIES)
        joint = model.predict_joint_log_proba(IRIS)
        assert joint[np.arange(150), SPECIES].sum() == pytest.approx(expected["loglik_joint"], rel=1e-8)
        assert model.score_samples(IRIS).sum() == pytest.approx(expected["loglik_marginal"], rel=1e-6)
        np.testing.assert_allclose(model.mixture_.means, expected["means"], atol=1e-3)
        np.testing.assert_allclose(model.mixture_.covariances[0], expected["covariance"], atol=1e-4)
        np.testing.assert_allclose(model.predict_proba(IRIS), expected["posteriors"], atol=1e-3)

    @pytest.mark.parametrize("name", ["VVV", "VVI", "VII"])
    def test_two_components_per_class_of_mclust(self, name):
        numbers = fixture("mclust_discriminant")
        expected = numbers["models"][name]
        X, y = IRIS[numbers["train_rows"]], SPECIES[numbers["train_rows"]] - 1
        labels = np.zeros(len(X), dtype=int)
        for c, part in enumerate(expected["classes"]):
            labels[y == c] = part["start_labels"]
        start = start_from_shares(X, y, np.eye(2)[labels], MCLUST[name])
        model = MixtureClassifier(2, covariance_type=MCLUST[name], prior=None, init=start, tol=1e-12, max_iter=5000)
        quietly(model.fit, X, y)
        assert model.score_samples(X).sum() == pytest.approx(expected["loglik_marginal"], rel=1e-7)
        assert model.history_[-1].objective * len(X) == pytest.approx(expected["loglik_joint"], rel=1e-8)
        assert model.n_parameters_ == expected["n_parameters"]
        actual = model.predict_proba(IRIS[expected["query_rows"]])
        np.testing.assert_allclose(actual, expected["posteriors"], atol=1e-5)

    @pytest.mark.parametrize("name", MCLUST)
    def test_unlabeled_rows_of_mclust(self, name):
        numbers = fixture("mclust_semisupervised")
        expected = numbers["models"][name]
        y = np.full(150, -1)
        y[numbers["labeled_rows"]] = SPECIES[numbers["labeled_rows"]]
        model = MixtureClassifier(1, covariance_type=MCLUST[name], prior=None, tol=1e-13, max_iter=5000)
        if (
            name == "VVV"
        ):  # from 40 rows EM ends at another maximum; this one must be a fixed point, reached from nearby
            parts = {key: torch.tensor(expected[key]) * 1.01 for key in ("means", "covariances")}
            log_weights = torch.tensor(expected["weights"]).double().log()
            covariance = Full().from_tensors({"matrices": parts["covariances"].double()})
            model.set_params(init=Mixture(log_weights, parts["means"].double(), covariance, torch.arange(3)))
        model.set_params(unlabeled=-1).fit(IRIS, y)
        assert model.history_[-1].objective * 150 == pytest.approx(expected["loglik"], rel=1e-8)
        np.testing.assert_allclose(model.class_prior_, expected["weights"], atol=1e-4)
        np.testing.assert_allclose(model.mixture_.means, expected["means"], atol=1e-3)
        np.testing.assert_allclose(model.mixture_.covariances, expected["covariances"], atol=1e-3)

    def test_missing_values_of_lavaan(self):
        numbers = fixture("lavaan_missing")["iris"]
        X, y = np.array(numbers["X"], dtype=float), np.array(numbers["y"])
        assert np.isnan(X).sum() == 119
        full = MixtureClassifier(1, prior=None, tol=1e-12, max_iter=2000).fit(X, y)
        assert full.score_samples(X).sum() == pytest.approx(numbers["full"]["loglik_marginal"], rel=1e-7)
        assert full.history_[-1].objective * 150 == pytest.approx(numbers["full"]["loglik_joint"], rel=1e-9)
        actual = full.predict_proba(X[numbers["full"]["query_rows"]])
        np.testing.assert_allclose(actual, numbers["full"]["posteriors"], atol=1e-5)
        tied = MixtureClassifier(1, covariance_type="tied", prior=None, tol=1e-12, max_iter=2000).fit(X, y)
        assert tied.history_[-1].objective * 150 == pytest.approx(numbers["tied"]["loglik_joint"], rel=1e-8)
        np.testing.assert_allclose(tied.mixture_.covariances[0], numbers["tied"]["covariance"], atol=1e-4)


# ---- arguments about classes ---------------------------------------------------------------------------------------


class TestClasses:
    def test_class_prior_is_learned_and_can_be_given(self):
        X, y = IRIS[:130], SPECIES[:130]
        learned = MixtureClassifier(1).fit(X, y)
        np.testing.assert_allclose(learned.class_prior_, [50 / 130, 50 / 130, 30 / 130], atol=1e-12)
        uniform = MixtureClassifier(1, class_prior="uniform").fit(X, y)
        np.testing.assert_allclose(uniform.class_prior_, 1 / 3, atol=1e-12)
        given = MixtureClassifier(1, class_prior=[0.2, 0.2, 0.6]).fit(X, y)
        np.testing.assert_allclose(given.class_prior_, [0.2, 0.2, 0.6], atol=1e-12)
        difference = given.predict_joint_log_proba(X) - uniform.predict_joint_log_proba(X)
        np.testing.assert_allclose(difference, np.tile(np.log([0.6, 0.6, 1.8]), (130, 1)), atol=1e-9)

    @pytest.mark.parametrize("class_prior", ["uniform", [0.7, 0.3]])
    def test_class_prior_stays_through_iterations(self, ripley, class_prior):
        X, y = ripley
        y = np.where(np.random.default_rng(0).random(len(y)) < 0.3, -7, y)
        model = MixtureClassifier(2, class_prior=class_prior, unlabeled=-7, random_state=0).fit(X, y)
        assert model.n_iter_ > 2
        np.testing.assert_allclose(
            model.class_prior_, [0.5, 0.5] if class_prior == "uniform" else [0.7, 0.3], atol=1e-12
        )
        np.testing.assert_allclose(model.mixture_.weights.sum(), 1, atol=1e-12)

    def test_components_per_class(self, ripley):
        X, y = ripley
        names = np.array(["red", "blue"])[y]
        model = MixtureClassifier({"red": 3, "blue": 1}, random_state=0).fit(X, names)
        assert model.classes_.tolist() == ["blue", "red"]
        assert model.n_components_.tolist() == [1, 3]
        assert model.responsibilities(X).shape == (200, 4)
        numbers = MixtureClassifier({0: 3, np.int64(1): 1}, random_state=0).fit(X, y)
        assert numbers.n_components_.tolist() == [3, 1]

    def test_class_weight_multiplies_sample_weight(self):
        X, y = IRIS, SPECIES
        weights = np.linspace(0.5, 2, 150)
        by_class = MixtureClassifier(1, class_weight={0: 1.0, 1: 2.0, 2: 5.0}).fit(X, y, weights)
        by_hand = MixtureClassifier(1).fit(X, y, weights * np.array([1.0, 2.0, 5.0])[y])
        np.testing.assert_allclose(by_class.predict_proba(X), by_hand.predict_proba(X), atol=1e-12)

    def test_balanced_classes_have_equal_priors(self):
        X, y = IRIS[:110], SPECIES[:110]
        model = MixtureClassifier(1, class_weight="balanced").fit(X, y)
        np.testing.assert_allclose(model.class_prior_, 1 / 3, atol=1e-12)
        weighted = MixtureClassifier(1, class_weight="balanced").fit(X, y, np.linspace(0.1, 5, 110))
        np.testing.assert_allclose(weighted.class_prior_, 1 / 3, atol=1e-12)

    @pytest.mark.parametrize(
        "classes",
        [[10, 20, 30], ["a", "bb", "c"], [1.0, 2.0, 3.0], [False, True]],
        ids=["int", "text", "float", "bool"],
    )
    def test_labels_of_every_kind(self, classes):
        kind = np.array(classes)
        y = kind[SPECIES % len(classes)]
        model = MixtureClassifier(1).fit(IRIS, y)
        assert model.classes_.tolist() == classes
        assert model.predict(IRIS).dtype == kind.dtype
        assert set(model.predict(IRIS)) <= set(y)

    def test_objects_as_labels(self):
        y = np.array(["setosa", "versicolor", "virginica"], dtype=object)[SPECIES]
        assert MixtureClassifier(1).fit(IRIS, y).score(IRIS, y) > 0.95
        assert MixtureClassifier(1).fit(IRIS, pd.Series(y, dtype="category")).score(IRIS, y) > 0.95


# ---- unlabeled rows ------------------------------------------------------------------------------------------------


class TestUnlabeled:
    @pytest.fixture
    def partly(self, ripley):
        X, y = ripley
        return X, np.where(np.arange(len(y)) % 4 > 0, -1, y)

    def test_unlabeled_rows_help(self):
        test_rows, test_labels = make_ripley(500, random_state=100)

        def log_loss(model):
            return -model.predict_log_proba(test_rows)[np.arange(len(test_labels)), test_labels].mean()

        gains = []
        for seed in range(5):
            X, y = make_ripley(100, random_state=seed)
            some = np.where(np.arange(len(y)) % 10 > 0, -1, y)
            with_all = MixtureClassifier(2, random_state=0, unlabeled=-1, n_init=5).fit(X, some)
            without = MixtureClassifier(2, random_state=0, n_init=5).fit(X[some >= 0], y[some >= 0])
            gains.append(log_loss(without) - log_loss(with_all))
        assert np.mean(gains) > 0, gains

    def test_plus_and_minus_one_are_two_classes(self, ripley):
        X, y = ripley
        model = MixtureClassifier(1).fit(X, 2 * y - 1)
        assert model.classes_.tolist() == [-1, 1]

    @pytest.mark.parametrize("dtype", [int, float, str])
    def test_every_label_is_a_class_by_default(self, dtype):
        y = (SPECIES - 1).astype(dtype)
        assert MixtureClassifier(1).fit(IRIS, y).classes_.tolist() == sorted(set(y.tolist()))

    @pytest.mark.parametrize("mark", [-1, 9, "?", -1.0])
    def test_a_label_of_ones_own(self, partly, mark):
        X, y = partly
        labels = np.array([mark if c < 0 else "ab"[c] if isinstance(mark, str) else c for c in y])
        explicit = MixtureClassifier(2, unlabeled=mark, random_state=0).fit(X, labels)  # warns of nothing
        assert len(explicit.classes_) == 2
        missing = MixtureClassifier(2, unlabeled=np.nan, random_state=0).fit(X, np.where(y < 0, np.nan, y))
        np.testing.assert_array_equal(explicit.predict_proba(X), missing.predict_proba(X))

    def test_a_label_that_does_not_occur_changes_nothing(self):
        actual = MixtureClassifier(1, unlabeled="?").fit(IRIS, SPECIES).predict_proba(IRIS)
        np.testing.assert_array_equal(actual, MixtureClassifier(1).fit(IRIS, SPECIES).predict_proba(IRIS))

    @pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
    @pytest.mark.parametrize("prior", ["default", None])
    def test_objective_never_falls(self, partly, covariance_type, prior):
        X, y = partly
        weights = np.linspace(0.2, 2, len(X))
        model = MixtureClassifier(
            2, covariance_type=covariance_type, prior=prior, unlabeled=-1, tol=1e-7, max_iter=60, random_state=0
        )
        quietly(model.fit, holed(X), y, weights)
        objectives = np.array([record.objective for record in model.history_])
        assert len(objectives) > 2
        assert (np.diff(objectives) > -1e-10).all()

    def test_unlabeled_rows_count_in_the_class_prior(self, ripley):
        X, y = ripley
        y = np.where((y == 1) & (np.arange(len(y)) % 10 > 0), -1, y)  # a class that is hardly labeled
        model = MixtureClassifier(1, unlabeled=-1, random_state=0).fit(X, y)
        assert model.class_prior_[1] > 0.3 > (y == 1).sum() / (y >= 0).sum()

    def test_tensors(self, partly, device):
        X, y = partly
        rows, labels = torch.from_numpy(X).to(device), torch.from_numpy(y).to(device)
        model = MixtureClassifier(2, unlabeled=-1, random_state=0)
        expected = clone(model).fit(X, y).predict_proba(X)
        model.fit(rows, labels)
        np.testing.assert_allclose(model.predict_proba(rows).cpu(), expected, atol=1e-6)


# ---- soft labels ---------------------------------------------------------------------------------------------------


class TestSoftLabels:
    @pytest.mark.parametrize("n_components", [1, 2])
    def test_one_hot_is_hard(self, n_components):
        arguments = {"n_components": n_components, "random_state": 0}
        hard = MixtureClassifier(**arguments).fit(IRIS, SPECIES)
        soft = MixtureClassifier(**arguments).fit(IRIS, np.eye(3)[SPECIES])
        assert soft.classes_.tolist() == [0, 1, 2]
        np.testing.assert_allclose(soft.predict_proba(IRIS), hard.predict_proba(IRIS), atol=1e-9)
        integers = MixtureClassifier(**arguments).fit(IRIS, np.eye(3, dtype=int)[SPECIES])
        np.testing.assert_array_equal(integers.predict_proba(IRIS), soft.predict_proba(IRIS))

    def test_rows_of_nan_are_unlabeled(self, ripley):
        X, y = ripley
        free = np.arange(len(y)) % 3 > 0
        shares = np.eye(2)[y]
        shares[free] = np.nan
        soft = MixtureClassifier(2, random_state=0).fit(X, shares)
        hard = MixtureClassifier(2, unlabeled=-1, random_state=0).fit(X, np.where(free, -1, y))
        np.testing.assert_allclose(soft.predict_proba(X), hard.predict_proba(X), atol=1e-9)

    def test_names_of_columns_are_the_classes(self):
        shares = pd.DataFrame(np.eye(3)[SPECIES], columns=["setosa", "versicolor", "virginica"])
        model = MixtureClassifier(1).fit(IRIS, shares)
        assert model.classes_.tolist() == ["setosa", "versicolor", "virginica"]
        assert model.predict(IRIS[:1]).tolist() == ["setosa"]

    def test_shares_mean_weighted_rows_of_both_classes(self, ripley):
        X, _ = ripley
        shares = np.random.default_rng(0).dirichlet([1, 1], len(X))
        soft = MixtureClassifier(1).fit(X, shares)
        twice = MixtureClassifier(1).fit(np.vstack([X, X]), np.repeat([0, 1], len(X)), shares.T.ravel())
        np.testing.assert_allclose(soft.predict_proba(X), twice.predict_proba(X), atol=1e-9)
        np.testing.assert_allclose(soft.class_prior_, shares.mean(0), atol=1e-12)

    def test_one_column_is_an_ordinary_y(self):
        with pytest.warns(DataConversionWarning, match="A column-vector y was passed"):
            model = MixtureClassifier(1).fit(IRIS, SPECIES[:, None])
        np.testing.assert_array_equal(model.predict(IRIS), MixtureClassifier(1).fit(IRIS, SPECIES).predict(IRIS))

    def test_lists_and_tensors(self, device):
        shares = np.eye(3)[SPECIES]
        expected = MixtureClassifier(1).fit(IRIS, shares).predict_proba(IRIS)
        of_list = MixtureClassifier(1).fit(IRIS.tolist(), shares.tolist())
        np.testing.assert_array_equal(of_list.predict_proba(IRIS), expected)
        rows = torch.from_numpy(IRIS).to(device)
        of_tensor = MixtureClassifier(1).fit(rows, torch.from_numpy(shares).to(device))
        np.testing.assert_allclose(of_tensor.predict_proba(rows).cpu(), expected, atol=1e-6)

    def test_weights_multiply_shares(self):
        weights = np.linspace(0.5, 2, 150)
        soft = MixtureClassifier(1).fit(IRIS, np.eye(3)[SPECIES], weights)
        hard = MixtureClassifier(1).fit(IRIS, SPECIES, weights)
        np.testing.assert_allclose(soft.predict_proba(IRIS), hard.predict_proba(IRIS), atol=1e-9)


# ---- missing values -------------------------------------------------------------------------------------------------


class TestMissing:
    @pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
    @pytest.mark.parametrize("n_components", [1, 2])
    def test_fit_and_predict(self, covariance_type, n_components):
        X = holed(IRIS, 0.3)
        model = quietly(
            MixtureClassifier(n_components, covariance_type=covariance_type, random_state=0).fit, X, SPECIES
        )
        assert model.score(X, SPECIES) > 0.85
        assert model.score(IRIS, SPECIES) > 0.9
        np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)

    @pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
    def test_a_row_with_nothing_observed_gets_the_class_prior(self, covariance_type):
        X, y = IRIS[:130], SPECIES[:130]
        model = quietly(MixtureClassifier(2, covariance_type=covariance_type, random_state=0).fit, X, y)
        nothing = np.full((2, 4), np.nan)
        np.testing.assert_allclose(model.predict_proba(nothing), [model.class_prior_] * 2, atol=1e-12)
        np.testing.assert_allclose(model.score_samples(nothing), 0, atol=1e-12)

    @pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
    def test_a_missing_column_is_as_if_it_had_never_been(self, covariance_type):
        model = quietly(MixtureClassifier(2, covariance_type=covariance_type, random_state=0).fit, IRIS, SPECIES)
        dense = model.mixture_.covariances.numpy()[:, :2, :2]
        gone = IRIS.copy()
        gone[:, 2:] = np.nan
        deviations = IRIS[:, :2] - model.mixture_.means.numpy()[:, None, :2]
        distances = np.einsum("kni,kij,knj->kn", deviations, np.linalg.inv(dense), deviations)
        log_joint = model.mixture_.log_weights.numpy() - 0.5 * (
            distances.T + np.linalg.slogdet(dense)[1] + 2 * np.log(2 * np.pi)
        )
        np.testing.assert_allclose(model.score_samples(gone), logsumexp(log_joint, 1), atol=1e-9)

    def test_impute_fills_with_expectations(self):
        model = MixtureClassifier(1, prior=None).fit(IRIS, SPECIES)
        X = holed(IRIS, 0.3)
        completed = model.impute(X)
        np.testing.assert_array_equal(completed[~np.isnan(X)], X[~np.isnan(X)])
        mean_filled = np.where(np.isnan(X), np.nanmean(X, 0), X)
        assert ((completed - IRIS) ** 2).sum() < 0.3 * ((mean_filled - IRIS) ** 2).sum()
        nothing = model.impute(np.full((1, 4), np.nan))
        np.testing.assert_allclose(nothing[0], IRIS.mean(0), atol=1e-9)


# ---- methods agree with one another --------------------------------------------------------------------------------


class TestMethods:
    def test_probabilities(self, fitted, ripley):
        X, _ = ripley
        joint = fitted.predict_joint_log_proba(X)
        np.testing.assert_allclose(fitted.score_samples(X), logsumexp(joint, 1), atol=1e-10)
        np.testing.assert_allclose(fitted.predict_log_proba(X), joint - logsumexp(joint, 1, keepdims=True), atol=1e-10)
        np.testing.assert_allclose(fitted.predict_proba(X), np.exp(fitted.predict_log_proba(X)), atol=1e-12)
        np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[joint.argmax(1)])
        np.testing.assert_allclose(fitted.decision_function(X), joint[:, 1] - joint[:, 0], atol=1e-10)

    def test_decision_function_of_three_classes(self):
        model = MixtureClassifier(1).fit(IRIS, SPECIES)
        np.testing.assert_allclose(model.decision_function(IRIS), model.predict_log_proba(IRIS), atol=1e-12)

    def test_responsibilities_sum_to_class_probabilities(self, fitted, ripley):
        X, _ = ripley
        actual = fitted.responsibilities(X)
        assert actual.shape == (200, 4)
        sums = np.stack([actual[:, :2].sum(1), actual[:, 2:].sum(1)], 1)
        np.testing.assert_allclose(sums, fitted.predict_proba(X), atol=1e-12)

    def test_log_probabilities_do_not_underflow(self):
        model = MixtureClassifier(1).fit(IRIS, SPECIES)
        far = model.predict_log_proba(IRIS * 50)
        assert np.isfinite(far).all()
        assert far.min() < -1000

    def test_score_is_accuracy(self, fitted, ripley):
        X, y = ripley
        weights = np.linspace(0, 1, len(y))
        right = fitted.predict(X) == y
        assert fitted.score(X, y) == pytest.approx(right.mean())
        assert fitted.score(X, y, weights) == pytest.approx(np.average(right, weights=weights))

    def test_samples(self, fitted):
        X, y = fitted.sample(20_000)
        assert X.shape == (20_000, 2)
        np.testing.assert_allclose(np.bincount(y) / 20_000, fitted.class_prior_, atol=0.02)
        again, _ = fitted.sample(20_000)
        np.testing.assert_array_equal(X, again)
        refit = MixtureClassifier(2, random_state=0).fit(X, y)
        np.testing.assert_allclose(refit.predict_proba(X[:100]), fitted.predict_proba(X[:100]), atol=0.1)

    def test_samples_of_one_class(self, fitted, ripley):
        X, y = fitted.sample(5000, class_label=1)
        assert (y == 1).all()
        rows = ripley[0][ripley[1] == 1]
        np.testing.assert_allclose(X.mean(0), rows.mean(0), atol=0.05)
        np.testing.assert_allclose(X.std(0), rows.std(0), atol=0.05)
        with pytest.raises(ValueError, match=r"class_label must be one of \[0, 1\]; got 'x'\."):
            fitted.sample(1, class_label="x")

    def test_fitted_attributes(self, fitted):
        assert fitted.converged_
        assert fitted.n_iter_ == len(fitted.history_)
        assert fitted.history_[0].iteration == 1
        assert abs(fitted.history_[-1].change) < 1e-4
        assert fitted.n_parameters_ == 3 + 8 + 12
        assert fitted.mixture_.covariances.shape == (4, 2, 2)
        np.testing.assert_allclose(fitted.mixture_.weights.sum(), 1, atol=1e-12)


# ---- laws of units and precision -----------------------------------------------------------------------------------


def changes(covariance_type: str, size: int):
    """Moves and rescalings that must not change a prediction: factor and offset of every column."""
    one = np.ones(size)
    first = np.where(np.arange(size) == 0, 1e6, 1.0)
    yield "moved", one, 1e4 * one
    if covariance_type == "spherical":
        yield "rescaled", 1e6 * one, 0 * one
    else:
        yield "rescaled", first, 0 * one
        yield "both", first, 1e4 * first


@pytest.mark.parametrize("missing", [False, True], ids=["complete", "missing"])
@pytest.mark.parametrize("n_components", [1, 3])
@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_units_change_no_prediction(covariance_type, n_components, missing):
    # The last digits of a start may tip a row to another cluster only if it is as near to both: not in these data.
    X = holed(IRIS) if missing else IRIS
    model = MixtureClassifier(n_components, covariance_type=covariance_type, random_state=0, max_iter=12, tol=0)
    expected = quietly(model.fit, X, SPECIES).predict_log_proba(X)
    for name, factors, offsets in changes(covariance_type, 4):
        changed = X * factors + offsets
        actual = quietly(model.fit, changed, SPECIES).predict_log_proba(changed)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4, err_msg=name)
        np.testing.assert_array_equal(actual.argmax(1), expected.argmax(1))


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_single_precision_agrees_with_double(covariance_type, device):
    rows = IRIS.astype(np.float32)
    model = MixtureClassifier(2, covariance_type=covariance_type, random_state=0, max_iter=30, tol=0, device=device)
    single = quietly(model.fit, rows, SPECIES).predict_proba(rows)
    double = quietly(model.fit, rows.astype(float), SPECIES).predict_proba(rows.astype(float))
    np.testing.assert_allclose(single, double, atol=1e-6 if device.type == "cpu" else 1e-2)


def test_single_precision_far_from_zero():
    rng = np.random.default_rng(0)
    X = np.vstack([rng.normal(1e4, 1, (500, 2)), rng.normal(1e4 + 2, 1, (500, 2))]).astype(np.float32)
    model = MixtureClassifier(1, prior=None).fit(X, np.repeat([0, 1], 500))
    np.testing.assert_allclose(model.mixture_.covariance.variances(), 1, atol=0.15)


@pytest.mark.parametrize("random_state", [0, 7])
def test_deterministic(ripley, random_state):
    X, y = ripley
    first, second = (MixtureClassifier(3, random_state=random_state, n_init=2).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(first.predict_proba(X), second.predict_proba(X))
    assert [r.objective for r in first.history_] == [r.objective for r in second.history_]


def test_a_random_state_object_moves_on(ripley):
    state = np.random.RandomState(0)
    model = MixtureClassifier(3, init="random", random_state=state)
    first = quietly(model.fit, *ripley).history_[0].objective
    assert quietly(model.fit, *ripley).history_[0].objective != first


def test_more_starts_are_no_worse(ripley):
    objectives = [
        quietly(MixtureClassifier(4, init="random", n_init=n, random_state=0).fit, *ripley).history_[-1].objective
        for n in (1, 5)
    ]
    assert objectives[1] >= objectives[0]


@pytest.mark.parametrize("memory_limit", ["1 MiB", 2**20, "0.5 GB", None])
def test_memory_limit_changes_nothing(ripley, fitted, memory_limit):
    X, y = ripley
    model = MixtureClassifier(2, random_state=0, memory_limit=memory_limit).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), fitted.predict_proba(X), atol=1e-9)


# ---- sources of rows -----------------------------------------------------------------------------------------------


class Batches:
    """(X, y) in parts, which can be iterated repeatedly."""

    def __init__(self, *arrays, size=45):
        self.arrays, self.size = arrays, size

    def __iter__(self):
        for start in range(0, len(self.arrays[0]), self.size):
            yield tuple(a[start : start + self.size] for a in self.arrays)


class TestSources:
    @pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
    def test_batches_agree_with_arrays(self, covariance_type):
        order = np.random.default_rng(0).permutation(150)
        X, y = holed(IRIS)[order], SPECIES[order]
        model = MixtureClassifier(2, covariance_type=covariance_type, random_state=0, max_iter=15, tol=0)
        expected = quietly(model.fit, X, y).predict_proba(X)
        actual = quietly(model.fit, Batches(X, y)).predict_proba(X)
        np.testing.assert_allclose(actual, expected, atol=1e-9)

    def test_batches_of_every_kind(self):
        weights = np.linspace(0.5, 2, 150)
        expected = MixtureClassifier(1).fit(IRIS, SPECIES, weights).predict_proba(IRIS)
        parts = [slice(0, 60), slice(60, 61), slice(61, 150)]
        listed = [(IRIS[p], SPECIES[p], weights[p]) for p in parts]
        tensors = [tuple(torch.from_numpy(a.copy()) for a in batch) for batch in listed]
        for batches in (listed, tuple(listed), Batches(IRIS, SPECIES, weights), tensors):
            model = MixtureClassifier(1).fit(batches)
            assert model.classes_.tolist() == [0, 1, 2]
            np.testing.assert_allclose(model.predict_proba(IRIS), expected, atol=1e-9)

    def test_batches_of_frames_keep_names(self):
        frame = load_iris(as_frame=True)
        names = frame.target_names[frame.target]
        model = MixtureClassifier(1).fit([(frame.data[:70], names[:70]), (frame.data[70:], names[70:])])
        assert model.feature_names_in_.tolist() == frame.data.columns.tolist()
        assert model.score(frame.data, names) > 0.95

    def test_batches_with_unlabeled_rows(self, ripley):
        X, y = ripley
        y = np.where(np.arange(len(y)) % 3 > 0, -1, y)
        expected = MixtureClassifier(1, unlabeled=-1, random_state=0).fit(X, y).predict_proba(X)
        actual = MixtureClassifier(1, unlabeled=-1, random_state=0).fit(Batches(X, y))
        np.testing.assert_allclose(actual.predict_proba(X), expected, atol=1e-9)
        missing = MixtureClassifier(1, unlabeled=np.nan, random_state=0).fit(Batches(X, np.where(y < 0, np.nan, y)))
        assert missing.classes_.tolist() == [0, 1]
        np.testing.assert_array_equal(missing.predict_proba(X), actual.predict_proba(X))

    def test_class_weight_and_batches(self):
        weight = {0: 1.0, 1: 2.0, 2: 5.0}
        expected = MixtureClassifier(1, class_weight=weight).fit(IRIS, SPECIES).predict_proba(IRIS)
        with pytest.raises(ValueError, match="class_weight cannot be combined with an X of batches"):
            MixtureClassifier(1, class_weight=weight).fit(Batches(IRIS, SPECIES))
        by_hand = MixtureClassifier(1).fit(Batches(IRIS, SPECIES, np.array([1.0, 2.0, 5.0])[SPECIES]))
        np.testing.assert_allclose(by_hand.predict_proba(IRIS), expected, atol=1e-9)

    @pytest.mark.parametrize("kind", ["float64", "float32", "int16"])
    @pytest.mark.parametrize("missing", [False, True])
    def test_memory_map_agrees_with_array(self, tmp_path, kind, missing):
        X = (holed(IRIS) if missing and kind != "int16" else IRIS * 10).astype(kind)
        np.save(tmp_path / "rows.npy", X)
        mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
        model = MixtureClassifier(2, random_state=0, max_iter=30)
        expected = quietly(model.fit, X, SPECIES).predict_proba(X)
        actual = quietly(model.fit, mapped, SPECIES).predict_proba(mapped)
        np.testing.assert_allclose(actual, expected, atol=1e-9)
        np.testing.assert_allclose(model.explain(mapped).values, model.explain(X).values, atol=1e-9)

    def test_a_generator_can_be_read_only_once(self):
        message = "X is a generator, which can be iterated only once, but a fit makes many passes over the rows"
        with pytest.raises(ValueError, match=message):
            MixtureClassifier(1).fit((IRIS, SPECIES) for _ in range(2))

    def test_batches_that_do_not_fit(self):
        with pytest.raises(ValueError, match="this one has no y"):
            MixtureClassifier(1).fit([(IRIS, SPECIES), (IRIS, None)])
        with pytest.raises(
            ValueError, match="X has 3 features, but MixtureClassifier is expecting 4 features as input"
        ):
            MixtureClassifier(1).fit([(IRIS, SPECIES), (IRIS[:, :3], SPECIES)])
        with pytest.raises(ValueError, match="X has no rows: it has no batches, or all of them are empty"):
            MixtureClassifier(1).fit(Batches(IRIS[:0], SPECIES[:0]))
        with pytest.raises(ValueError, match=re.escape("inconsistent numbers of samples: [150, 100]")):
            MixtureClassifier(1).fit([(IRIS, SPECIES[:100])])
        with pytest.raises(ValueError, match=r"y of a batch must hold one label per row; got shape \(150, 3\)"):
            MixtureClassifier(1).fit([(IRIS, np.eye(3)[SPECIES])])
        with pytest.raises(ValueError, match="sample_weight cannot be combined with an X of batches"):
            MixtureClassifier(1).fit([(IRIS, SPECIES)], sample_weight=np.ones(150))
        with pytest.raises(ValueError, match="only one class: 0"):
            MixtureClassifier(1).fit([(IRIS[:10], SPECIES[:10]), (IRIS[10:20], SPECIES[10:20])])


# ---- going on, stopping, watching ----------------------------------------------------------------------------------


class TestStarts:
    def test_warm_start_goes_on(self, ripley):
        X, y = ripley
        settings = {"random_state": 0, "tol": 0, "solver": EM()}  # whose state is the mixture alone
        whole = quietly(MixtureClassifier(3, max_iter=12, **settings).fit, X, y)
        parts = MixtureClassifier(3, max_iter=4, **settings, warm_start=True)
        for _ in range(3):
            quietly(parts.fit, X, y)
        np.testing.assert_allclose(parts.predict_proba(X), whole.predict_proba(X), atol=1e-10)

    def test_warm_start_with_other_classes_says_so(self, ripley):
        X, y = ripley
        model = MixtureClassifier(1, warm_start=True).fit(X, y)
        with pytest.raises(ValueError, match=re.escape("has the classes [0, 1], but y has [5, 6]")):
            model.fit(X, y + 5)

    def test_from_another_model(self, ripley, fitted):
        X, y = ripley
        for init in (fitted, fitted.mixture_):
            model = quietly(MixtureClassifier(2, init=init, max_iter=1).fit, X, y)
            assert model.history_[0].objective == pytest.approx(fitted.history_[-1].objective, abs=1e-4)
        same = MixtureClassifier(2, init=fitted, max_iter=0).fit(X, y)
        np.testing.assert_array_equal(same.predict_proba(X), fitted.predict_proba(X))

    def test_from_a_model_with_other_settings(self, ripley, fitted):
        X, y = ripley
        with pytest.raises(
            ValueError,
            match=re.escape("2 features and [2, 2] components per class, but the model has 2 features and [3, 3]"),
        ):
            MixtureClassifier(3, init=fitted).fit(X, y)
        with pytest.raises(ValueError, match=r"has other covariances than covariance_type='diag'"):
            MixtureClassifier(2, covariance_type="diag", init=fitted).fit(X, y)
        with pytest.raises(ValueError, match=r"init is a MixtureClassifier that is not fitted.* init=model\.mixture_"):
            MixtureClassifier(2, init=MixtureClassifier(1)).fit(X, y)
        with pytest.raises(
            ValueError,
            match=r"init must be one of 'kmeans', 'k-means\+\+', 'random', 'spread' or a fitted mixture; got 3",
        ):
            MixtureClassifier(2, init=3).fit(X, y)

    def test_no_iterations_keep_the_start(self, ripley):
        model = MixtureClassifier(2, max_iter=0, random_state=0).fit(*ripley)
        assert model.n_iter_ == 0
        assert not model.converged_
        assert model.score(*ripley) > 0.7

    def test_too_few_iterations_warn(self, ripley):
        message = r"MixtureClassifier did not converge: .*\(max_iter=2, tol=0.0001\); increase max_iter or tol"
        with pytest.warns(ConvergenceWarning, match=message) as caught:
            MixtureClassifier(3, max_iter=2, random_state=0).fit(*ripley)
        assert caught[0].filename == __file__

    def test_an_objective_object(self, ripley):
        model = MixtureClassifier(1, objective=Joint(), solver="em").fit(*ripley)
        np.testing.assert_array_equal(model.predict(ripley[0]), MixtureClassifier(1).fit(*ripley).predict(ripley[0]))

    def test_rank(self):
        for rank in (1, 2, 3):
            model = quietly(MixtureClassifier(1, covariance_type="low_rank", rank=rank).fit, IRIS, SPECIES)
            assert model.mixture_.covariance.rank == rank
        automatic = quietly(MixtureClassifier(1, covariance_type="low_rank").fit, IRIS, SPECIES)
        assert automatic.mixture_.covariance.rank == 2
        tied = quietly(MixtureClassifier(1, covariance_type=Tied(LowRank(1))).fit, IRIS, SPECIES)
        assert tied.n_parameters_ == 2 + 12 + 8


class TestInterrupted:
    """Ctrl-C: the best parameters so far are on the estimator, and KeyboardInterrupt is raised again."""

    @pytest.fixture
    def after(self, monkeypatch):
        """A function that lets a number of steps pass and interrupts the next."""

        def arrange(n_steps):
            step, seen = EM.step, []

            def interrupted(solver, mixture, rows):
                seen.append(1)
                if len(seen) > n_steps:
                    raise KeyboardInterrupt
                return step(solver, mixture, rows)

            monkeypatch.setattr(EM, "step", interrupted)

        return arrange

    def test_parameters_so_far_are_kept(self, after, ripley, tmp_path):
        X, y = ripley
        three = quietly(MixtureClassifier(3, max_iter=3, tol=0, random_state=0).fit, X, y)
        after(1 + 3)  # the start is a step too
        model = MixtureClassifier(3, tol=0, random_state=0)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, y)
        assert model.n_iter_ == 3
        assert not model.converged_
        np.testing.assert_array_equal(model.predict_proba(X), three.predict_proba(X))
        model.save(tmp_path / "model")

    def test_before_the_first_iteration(self, after, ripley):
        after(1)
        model = MixtureClassifier(3, random_state=0)
        with pytest.raises(KeyboardInterrupt):
            model.fit(*ripley)
        assert model.n_iter_ == 0
        assert model.score(*ripley) > 0.7

    def test_during_a_later_start(self, after, ripley):
        """A later start that is interrupted early does not displace the first, and none follows it."""
        X, y = ripley
        first = quietly(MixtureClassifier(3, max_iter=20, tol=0, random_state=0, solver=EM()).fit, X, y)
        after(1 + 20 + 1 + 1)
        model = MixtureClassifier(3, n_init=5, max_iter=20, tol=0, random_state=0, solver=EM())
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, y)
        np.testing.assert_array_equal(model.predict_proba(X), first.predict_proba(X))

    def test_while_a_later_start_is_made(self, after, ripley):
        X, y = ripley
        after(1 + 20)
        model = MixtureClassifier(3, n_init=5, max_iter=20, tol=0, random_state=0, solver=EM())
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, y)
        assert model.n_iter_ == 20

    def test_nothing_to_keep(self, after, ripley):
        after(0)
        model = MixtureClassifier(3, random_state=0)
        with pytest.raises(KeyboardInterrupt):
            model.fit(*ripley)
        assert not hasattr(model, "mixture_")

    def test_warm_start_goes_on_afterwards(self, monkeypatch, after, ripley):
        X, y = ripley
        whole = quietly(MixtureClassifier(3, max_iter=8, tol=0, random_state=0, solver=EM()).fit, X, y)
        model = MixtureClassifier(3, max_iter=8, tol=0, random_state=0, solver=EM(), warm_start=True)
        with monkeypatch.context():
            after(1 + 3)
            with pytest.raises(KeyboardInterrupt):
                model.fit(X, y)
        monkeypatch.undo()
        quietly(model.set_params(max_iter=5).fit, X, y)
        np.testing.assert_allclose(model.predict_proba(X), whole.predict_proba(X), atol=1e-10)


class TestProgress:
    def test_shows_iterations_and_objective(self, ripley, capsys):
        model = MixtureClassifier(2, random_state=0, verbose=1).fit(*ripley)
        shown = capsys.readouterr().err
        assert "MixtureClassifier" in shown
        assert f"objective={model.history_[-1].objective:.5f}" in shown
        assert f"{model.n_iter_} iterations" in shown

    def test_is_silent_by_default(self, ripley, capsys):
        MixtureClassifier(2, random_state=0).fit(*ripley)
        assert capsys.readouterr() == ("", "")


def test_the_density_of_a_class_is_that_of_a_gaussian_mixture(ripley):
    """Without unlabeled rows the classes are fitted one by one."""
    X, y = ripley
    model = MixtureClassifier(2, prior=None, tol=1e-9, random_state=0, max_iter=2000).fit(X, y)
    for c in (0, 1):
        rows = X[y == c]
        alone = GaussianMixture(
            2, means_init=model.mixture_.means[2 * c : 2 * c + 2], tol=1e-9, max_iter=2000, reg_covar=0
        )
        joint = model.predict_joint_log_proba(rows)[:, c] - np.log(model.class_prior_[c])
        np.testing.assert_allclose(joint, alone.fit(rows).score_samples(rows), atol=1e-2)


@pytest.mark.parametrize(("n_features", "covariance_type"), [(499, "full"), (500, "full"), (500, "diag")])
def test_wide_samples_get_a_hint(n_features, covariance_type, rng):
    X, y = rng.normal(size=(20, n_features)), np.arange(20) % 2
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        MixtureClassifier(1, covariance_type=covariance_type).fit(X, y)
    hints = [str(warning.message) for warning in caught]
    if (n_features, covariance_type) == (500, "full"):
        assert len(hints) == 1
        assert "20 samples are few for covariance matrices of 500 x 500 numbers" in hints[0]
        assert "covariance_type='low_rank'" in hints[0]
    else:
        assert not hints
