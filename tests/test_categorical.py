"""Categorical features: one likelihood with numeric ones, missing values in both, and everything that reads a model."""

import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal
from sklearn.base import clone, is_classifier
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss
from sklearn.naive_bayes import CategoricalNB, GaussianNB

from mixtura import (
    AveragedMixture,
    AveragedMixtureClassifier,
    DiscriminativeMixtureClassifier,
    GaussianMixture,
    HybridMixtureClassifier,
    MixtureClassifier,
    RejectOption,
    load,
)
from mixtura.covariances import Diagonal, Full, Product, Tied
from mixtura.covariances.product import STRENGTHS, estimate_strength
from mixtura.model.transforms import Recoding
from mixtura.priors import Shrinkage
from test_export import answers

COVARIANCES = ["full", "tied", "diag", "spherical"]
two_and_ten = pytest.mark.parametrize("n_classes", [2, 10])


def mixed_samples(n_classes=2, n_samples=400, missing=0.15, seed=0):
    """Two numeric and two categorical features, text labels; within a class sex and income depend on each other."""
    rng = np.random.default_rng(seed)
    law = np.random.default_rng(5)
    centres, tables = law.normal(size=(n_classes, 2, 2)), law.dirichlet([0.7] * 3, size=(n_classes, 2))
    numbers, hidden = rng.integers(n_classes, size=n_samples), rng.integers(2, size=n_samples)
    numeric = 1.5 * centres[numbers, hidden] + rng.normal(size=(n_samples, 2))
    towns = [rng.choice(3, p=tables[c, h]) for c, h in zip(numbers, hidden, strict=True)]
    frame = pd.DataFrame(
        {
            "income": numeric[:, 0],
            "sex": pd.Categorical(np.where(rng.random(n_samples) < 0.2 + 0.6 * hidden, "f", "m")),
            "debt": numeric[:, 1],
            "town": np.array(["Rome", "Oslo", "Bern"], dtype=object)[towns],
        },
        index=np.arange(n_samples) + 100,
    )
    for name in frame:
        frame.loc[rng.random(n_samples) < missing, name] = None
    return frame, np.array([f"kind {c}" for c in range(n_classes)])[numbers]


def slow_log_joint(model, row):
    """Log joints of a row of a frame, component by component and feature by feature."""
    mixture, encoding = model.mixture_, model.encoding_
    frequencies = np.exp(mixture.covariance.log_frequencies.numpy())
    numeric = np.array([row.iloc[j] for j in encoding.numeric], float)
    seen = ~np.isnan(numeric)
    totals = []
    for k in range(mixture.n_components):
        total = float(mixture.log_weights[k])
        if seen.any():
            matrix = mixture.covariance.inner.dense()[k].numpy()[np.ix_(seen, seen)]
            total += multivariate_normal(mixture.means[k, : len(seen)].numpy()[seen], matrix).logpdf(numeric[seen])
        first = 0
        for j, values in zip(encoding.categorical, encoding.categories, strict=True):
            if isinstance(row.iloc[j], str):
                total += np.log(frequencies[k, first + values.tolist().index(row.iloc[j])])
            first += len(values)
        totals.append(total)
    return np.array(totals)


@two_and_ten
@pytest.mark.parametrize("covariance_type", COVARIANCES)
def test_the_likelihood_is_that_of_a_slow_twin(covariance_type, n_classes):
    X, y = mixed_samples(n_classes)
    model = MixtureClassifier(2, covariance_type=covariance_type, random_state=0, max_iter=500).fit(X, y)
    rows = X[:25]
    expected = np.array([slow_log_joint(model, row) for _, row in rows.iterrows()])
    assert_allclose(model.score_samples(rows), np.logaddexp.reduce(expected, axis=1), atol=1e-8)
    shares = np.exp(expected - np.logaddexp.reduce(expected, axis=1, keepdims=True))
    assert_allclose(model.responsibilities(rows), shares, atol=1e-8)


@pytest.mark.parametrize("covariance_type", COVARIANCES)
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_em_never_lowers_the_objective(covariance_type, missing):
    X, y = mixed_samples(missing=missing)
    model = MixtureClassifier(3, covariance_type=covariance_type, random_state=0, max_iter=500).fit(X, y)
    assert np.diff([record.objective for record in model.history_]).min() > -1e-6
    assert model.converged_


def test_every_structure_can_be_asked_for_its_categories():
    whole, counts = Product(Full(), 2, (3, 2)), torch.tensor([[4.0, 1.0, 0.0, 2.0, 3.0], [1.0, 1.0, 3.0, 5.0, 0.0]])
    assert whole.category_sizes == (3, 2)
    assert not whole.is_gaussian
    assert whole.with_numeric(Diagonal()) == Product(Diagonal(), 2, (3, 2))
    assert whole.of_classes(counts).without_categories == Full()
    for structure in (Diagonal(), Full(), Tied(Full())):
        assert structure.category_sizes == ()
        assert structure.is_gaussian
        assert structure.with_numeric(Diagonal()) == Diagonal()
        assert structure.of_classes(counts[:, :0]) is structure
        assert [part.shape for part in structure.frequencies(counts.sum(1), counts[:, :0])] == [(2, 0)] * 2


def test_parameters_count_free_frequencies():
    """A component has two means and one frequency less than there are categories, for two and three categories."""
    X, y = mixed_samples(n_classes=3)
    covariances = {"full": 6 * 3, "tied": 3, "diag": 6 * 2, "spherical": 6}
    for kind, n_covariances in covariances.items():
        model = MixtureClassifier(2, covariance_type=kind, random_state=0).fit(X, y)
        assert model.n_parameters_ == (6 - 1) + 6 * (2 + 1 + 2) + n_covariances, kind


def test_categories_have_a_part_in_the_moments_of_distances():
    """The distance of an observed category is -2 log of its frequency, which varies between samples of a component."""
    X, y = mixed_samples()
    covariance = MixtureClassifier(2, random_state=0).fit(X, y).mixture_.covariance
    sizes, n_numeric = covariance.kind.sizes, covariance.n_numeric
    for seen in itertools.product((False, True), repeat=1 + len(sizes)):
        mask = np.repeat(seen, [n_numeric, *sizes])
        means, variances = covariance.distance_moments(torch.from_numpy(mask[None]))
        for k, log_frequencies in enumerate(covariance.log_frequencies.numpy()):
            mean, variance, first = n_numeric * seen[0], 2 * n_numeric * seen[0], 0
            for size, known in zip(sizes, seen[1:], strict=True):
                distances = -2 * log_frequencies[first : first + size]
                shares, first = np.exp(distances / -2), first + size
                mean += known * (shares @ distances)
                variance += known * (shares @ (distances - shares @ distances) ** 2)
            assert_allclose([float(means[k, 0]), float(variances[k, 0])], [mean, variance], atol=1e-9)


def test_the_densities_of_all_samples_sum_to_one():
    X, y = mixed_samples(missing=0.0)
    model = MixtureClassifier(2, random_state=0).fit(X[["sex", "town"]].assign(x=X["income"]), y)
    grid = np.linspace(-30, 30, 2001)
    combinations = itertools.product(("f", "m"), ("Rome", "Oslo", "Bern"))
    total = sum(
        np.exp(model.score_samples(pd.DataFrame({"sex": sex, "town": town, "x": grid}))).sum() * (grid[1] - grid[0])
        for sex, town in combinations
    )
    assert_allclose(total, 1, rtol=1e-6)


def test_one_component_is_naive_bayes_of_both_kinds_of_features():
    X, y = mixed_samples(missing=0.0, n_samples=2000)
    model = MixtureClassifier(1, covariance_type="diag", prior=None).fit(X, y)
    numeric = GaussianNB().fit(X[["income", "debt"]], y)
    codes = np.stack([pd.Categorical(X[name]).codes for name in ("sex", "town")], 1)
    counted = CategoricalNB(alpha=1e-9).fit(codes, y)
    joint = numeric.predict_joint_log_proba(X[["income", "debt"]]) + counted.predict_joint_log_proba(codes)
    joint -= np.log(numeric.class_prior_)
    expected = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
    assert_allclose(model.predict_proba(X), expected, atol=0.01)  # smoothing differs


@pytest.mark.parametrize("covariance_type", COVARIANCES)
def test_frequencies_are_shrunk_towards_those_of_all_samples(covariance_type):
    """By two samples with the overall frequencies, in which every category occurs once more."""
    X, y = mixed_samples(missing=0.0)
    model = MixtureClassifier(1, covariance_type=covariance_type).fit(X, y)
    first = 0
    for name, values in zip(("sex", "town"), model.encoding_.categories, strict=True):
        counts = np.array([[((X[name] == value) & (y == c)).sum() for value in values] for c in model.classes_])
        overall = (counts.sum(0) + 1) / (counts.sum() + len(values))
        expected = (counts + 2 * overall) / (counts.sum(1, keepdims=True) + 2)
        actual = model.mixture_.covariance.log_frequencies[:, first : first + len(values)].exp()
        assert_allclose(actual, expected, atol=1e-9)
        first += len(values)


def test_indicators_have_no_density_and_missing_ones_their_frequencies():
    X, y = mixed_samples(missing=0.0)
    mixture = MixtureClassifier(2, random_state=0).fit(X, y).mixture_
    covariance, n_numeric = mixture.covariance, mixture.covariance.n_numeric
    rows, _ = mixture.sample(7, torch.Generator().manual_seed(0))
    deviations, observed = rows - mixture.means.unsqueeze(1), torch.ones_like(rows, dtype=torch.bool)
    given = covariance.condition(deviations, observed)
    plain = covariance.squared_distances(deviations) + covariance.log_determinants.unsqueeze(1)
    assert_allclose(plain, given.squared_distances + given.log_determinants, atol=1e-8)
    observed[:, n_numeric:] = False
    given = covariance.condition(torch.where(observed, deviations, 0.0), observed)
    expected = covariance.log_frequencies.exp() - covariance.centres
    assert float(expected.abs().max()) > 1e-4  # frequencies are shrunk, centres are not
    assert_allclose(given.deviations[:, 3, n_numeric:], expected, atol=1e-12)


@pytest.mark.parametrize(
    "wanted",
    ["from_dtype", ["sex", "town"], [1, 3], [False, True, False, True]],
    ids=["dtype", "names", "places", "mask"],
)
def test_features_are_chosen_as_in_boosting(wanted):
    X, y = mixed_samples()
    model = MixtureClassifier(1, categorical_features=wanted).fit(X, y)
    assert model.encoding_.categorical == (1, 3)
    assert [v.tolist() for v in model.encoding_.categories] == [["f", "m"], ["Bern", "Oslo", "Rome"]]
    assert_allclose(model.predict_proba(X), MixtureClassifier(1).fit(X, y).predict_proba(X))


def test_arrays_take_numbers_as_categories():
    X, y = mixed_samples(missing=0.1)
    codes = X.assign(sex=X["sex"].cat.codes.replace(-1, np.nan), town=X["town"].map({"Bern": 0, "Oslo": 1, "Rome": 2}))
    named, coded = (
        MixtureClassifier(2, random_state=0, **options).fit(samples, y)
        for samples, options in ((X, {}), (codes.to_numpy(float), {"categorical_features": [1, 3]}))
    )
    assert_allclose(coded.predict_proba(codes.to_numpy(float)), named.predict_proba(X), atol=1e-8)


def test_unknown_and_missing_categories_are_marginalised():
    X, y = mixed_samples(missing=0.0)
    model = MixtureClassifier(2, random_state=0).fit(X, y)
    strange, without = X.assign(town="Paris"), X.assign(town=None)
    assert_allclose(model.predict_proba(strange), model.predict_proba(without))
    assert not np.allclose(model.predict_proba(X), model.predict_proba(without))
    nothing = X.assign(town=None, sex=None, income=np.nan, debt=np.nan)
    assert_allclose(model.predict_proba(nothing)[0], model.class_prior_, atol=1e-9)


@two_and_ten
def test_everything_that_reads_a_model_takes_categories(n_classes, tmp_path):
    X, y = mixed_samples(n_classes)
    model = MixtureClassifier(2, random_state=0, max_iter=500).fit(X, y)
    model.calibrate_outliers(X, y)
    assert model.is_outlier(X, 0.1).mean() < 0.15
    explanation = model.explain(X[:40])
    assert explanation.feature_names == ["income", "sex", "debt", "town"]
    assert_allclose(explanation.base_values + explanation.values.sum(1), explanation.log_odds, atol=1e-10)
    assert (explanation.values[X[:40].isna().to_numpy()] == 0).all()
    assert "Rome" in str([str(explanation[n]) for n in range(40)])
    importances = model.feature_importances(X, y)
    assert importances.index.tolist() == X.columns.tolist()
    frame = model.summary(X, y).to_frame()
    assert set(frame["town category"]) <= {"Rome", "Oslo", "Bern"}
    model.save(tmp_path / "model")
    assert_allclose(load(tmp_path / "model").predict_proba(X), model.predict_proba(X), atol=1e-12)
    changed = model.with_class_prior("uniform")
    assert_allclose(changed.class_prior_, 1 / n_classes)
    assert set(model.suspicious_labels(X, y, cv=2).suggestions) <= set(model.classes_)
    assert (RejectOption(MixtureClassifier(1)).fit(X, y).predict(X) == "rejected").any()


def test_imputed_and_drawn_samples_have_categories():
    X, y = mixed_samples(n_samples=1000)
    model = MixtureClassifier(2, random_state=0, max_iter=500).fit(X, y)
    for completed in (model.impute(X), model.impute(X, "draw", 0)):
        assert completed.index.equals(X.index)
        assert completed.dtypes["sex"] == X.dtypes["sex"]
        assert not completed.isna().any(axis=None)
        known = X["town"].notna()
        assert (completed["town"][known] == X["town"][known]).all()
        assert set(completed["town"]) == {"Rome", "Oslo", "Bern"}
    drawn, labels = model.sample(20_000)
    for label in model.classes_:
        shares = drawn[labels == label]["town"].value_counts(normalize=True)
        observed = X[y == label]["town"].value_counts(normalize=True)
        assert_allclose(shares[observed.index], observed, atol=0.03)


def categories_alone(n_samples=400, missing=0.1, seed=0):
    """Six categorical features that tell the classes apart only together: which latent class goes with them."""
    rng = np.random.default_rng(seed)
    labels, hidden = rng.integers(2, size=(2, n_samples))
    kinds = np.stack([hidden, hidden ^ labels] * 3, 1)
    values = np.where(rng.random(kinds.shape) < 0.8, kinds, rng.integers(3, size=kinds.shape))
    frame = pd.DataFrame(np.array(["low", "mid", "top"], dtype=object)[values], columns=list("abcdef"))
    return frame.mask(rng.random(frame.shape) < missing), labels


def test_a_table_of_categories_alone_is_a_mixture_of_frequencies(tmp_path):
    X, y = categories_alone()
    model = MixtureClassifier(2, random_state=0, max_iter=500).fit(X, y)
    expected = np.array([slow_log_joint(model, row) for _, row in X[:25].iterrows()])
    assert_allclose(model.score_samples(X[:25]), np.logaddexp.reduce(expected, axis=1), atol=1e-8)
    shares = np.exp(expected - np.logaddexp.reduce(expected, axis=1, keepdims=True))
    assert_allclose(model.responsibilities(X[:25]), shares, atol=1e-8)
    assert np.diff([record.objective for record in model.history_]).min() > -1e-9
    assert model.n_parameters_ == 3 + 4 * 6 * 2
    every = pd.DataFrame(list(itertools.product(("low", "mid", "top"), repeat=6)), columns=list("abcdef"))
    assert_allclose(np.exp(model.score_samples(every)).sum(), 1)
    model.save(tmp_path / "model")
    assert_allclose(load(tmp_path / "model").predict_proba(X), model.predict_proba(X), atol=1e-12)
    assert not model.impute(X).isna().any(axis=None)
    assert set(model.sample(100)[0]["a"]) == {"low", "mid", "top"}
    explanation = model.explain(X[:5])
    assert_allclose(explanation.base_values + explanation.values.sum(1), explanation.log_odds, atol=1e-10)
    assert "low" in str(model.summary(X, y))
    assert model.calibrate_outliers(X, y).is_outlier(X, 0.1).mean() < 0.2


def test_one_component_of_categories_is_naive_bayes():
    X, y = categories_alone(missing=0.0)
    codes = np.stack([pd.Categorical(X[name]).codes for name in X], 1)
    expected = CategoricalNB(alpha=1e-9).fit(codes, y).predict_proba(codes)
    assert_allclose(MixtureClassifier(1).fit(X, y).predict_proba(X), expected, atol=0.01)  # smoothing differs


def test_the_search_finds_latent_classes():
    X, y = categories_alone()
    test, labels = categories_alone(2000, seed=1)
    model = MixtureClassifier(random_state=0).fit(X, y)
    assert model.n_components_.min() >= 2
    assert model.score(test, labels) > 0.85
    assert MixtureClassifier(1).fit(X, y).score(test, labels) < 0.6
    assert model.search_.best.what["covariance_type"] == "diag"  # a density of the table, whatever joins the average


@pytest.mark.parametrize("covariance_type", COVARIANCES)
def test_weights_soft_labels_and_unlabeled_samples_of_categories_alone(covariance_type):
    X, y = categories_alone(200)
    options = {"n_components": 2, "covariance_type": covariance_type, "random_state": 0, "init": "kmeans"}
    model = MixtureClassifier(**options).fit(X, y)
    soft = MixtureClassifier(**options).fit(X, np.eye(2)[y])
    assert_allclose(soft.predict_proba(X), model.predict_proba(X), atol=1e-9)
    weights = np.where(np.arange(200) < 150, 1.0, 0.0)
    part = MixtureClassifier(**options).fit(X[:150], y[:150])
    weighted = MixtureClassifier(**options).fit(X, y, sample_weight=weights)
    assert_allclose(weighted.predict_proba(X), part.predict_proba(X), atol=1e-9)
    some = MixtureClassifier(**options, unlabeled=-1).fit(X, np.where(np.arange(200) < 150, y, -1))
    assert some.score(X, y) > 0.8


def test_averages_and_searches_take_categories():
    X, y = mixed_samples(n_samples=300)
    test, labels = mixed_samples(n_samples=1000, seed=1)
    single = MixtureClassifier(2, random_state=0, max_iter=500).fit(X, y)
    averaged = AveragedMixtureClassifier(MixtureClassifier(2, max_iter=500), n_estimators=4, random_state=0).fit(X, y)
    chosen = MixtureClassifier(random_state=0, max_iter=500).fit(X, y)
    for model in (averaged, averaged.to_mixture(), averaged.reduce(2), chosen):
        assert model.score(test, labels) > single.score(test, labels) - 0.04
    assert {candidate.what["covariance_type"] for candidate in chosen.search_} == {"full", "tied", "diag"}
    assert "chosen by" in str(chosen.summary())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"categorical_features": ["sex", "town", "x"]}, "categorical_features names 'x', which is not a feature of X"),
        ({"categorical_features": [True]}, r"categorical_features is a mask of shape \(1,\), but X has 4 features"),
        ({"categorical_features": "all"}, "categorical_features must be one of 'from_dtype', None, a mask"),
        ({"categorical_features": None}, "X has columns that are not numeric"),
        ({"categorical_features": ["sex"]}, "Name the feature in categorical_features, or leave it out"),
    ],
)
def test_what_is_not_there_is_refused_in_words(options, message):
    X, y = mixed_samples()
    with pytest.raises(ValueError, match=message):
        MixtureClassifier(1, **options).fit(X, y)


def slow_log_evidence(counts, strength):
    """The probability of one sample after the other, each class with a Dirichlet prior of its own."""
    pooled = counts.sum(0) + 1 / counts.shape[1]
    total = 0.0
    for row in counts:
        seen = np.zeros(len(row))
        for v in np.repeat(np.arange(len(row)), row.astype(int)):
            total += np.log((seen[v] + strength * pooled[v] / pooled.sum()) / (seen.sum() + strength))
            seen[v] += 1
    return total


@pytest.mark.parametrize("differing", [0.0, 0.3, 1.0])
def test_the_strength_of_many_categories_is_the_most_likely_one(differing):
    rng = np.random.default_rng(2)
    common = rng.dirichlet(np.ones(25))
    shares = (1 - differing) * common + differing * rng.dirichlet(np.ones(25) * 0.3, size=3)
    counts = np.stack([rng.multinomial(80, share) for share in shares]).astype(float)
    values = [slow_log_evidence(counts, strength) for strength in STRENGTHS]
    assert estimate_strength(torch.from_numpy(counts)) == STRENGTHS[int(np.argmax(values))]
    structure = Product(Diagonal(), 0, (25, 3)).of_classes(torch.from_numpy(np.hstack((counts, counts[:, :3]))))
    assert structure.strength == (STRENGTHS[int(np.argmax(values))], 2.0)


def test_a_column_of_hundreds_of_random_categories_is_harmless():
    """540 samples with 282 categories, most of which a class never has."""
    X, y = mixed_samples(n_samples=540, missing=0.0)
    names = np.random.default_rng(3).integers(362, size=540)
    wide = X.assign(name=[f"n{number}" for number in names])
    with_names, without = (MixtureClassifier(1, prior=Shrinkage(2.0)).fit(samples, y) for samples in (wide, X))
    assert_allclose(with_names.predict_proba(wide), without.predict_proba(X), atol=0.02)


NUMBERS = [
    DiscriminativeMixtureClassifier(1, random_state=0),
    HybridMixtureClassifier(1, n_epochs=2, validation_fraction=None, tradeoff=0.5, margin=1.0, random_state=0),
    MixtureClassifier(1, objective="conditional", prior="default"),
    MixtureClassifier(1, covariance_type="low_rank"),
    MixtureClassifier(1, covariance_type="low_rank", warp="johnson"),
]
FREQUENCIES = [
    MixtureClassifier(2, random_state=0, max_iter=500),
    MixtureClassifier(2, covariance_type="diag", warp="johnson", random_state=0, max_iter=500),
    AveragedMixtureClassifier(MixtureClassifier(2, max_iter=500), n_estimators=3, random_state=0),
    GaussianMixture(2, categorical_features="from_dtype", prior="default", random_state=0),
    AveragedMixture(n_estimators=3, random_state=0),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("model", NUMBERS + FREQUENCIES, ids=str)
def test_every_estimator_with_a_density_takes_categories(model, tmp_path):
    X, y = mixed_samples(n_samples=150)
    model = clone(model).fit(X, y)
    assert isinstance(model.warp_, Recoding) == any(str(model) == str(other) for other in NUMBERS)
    completed, (drawn, _) = model.impute(X), model.sample(5)
    assert not completed.isna().any().any()
    assert completed[["sex", "town"]].where(X[["sex", "town"]].notna()).equals(X[["sex", "town"]].where(X.notna()))
    assert set(drawn["town"]) <= {"Bern", "Oslo", "Rome"}
    assert np.isfinite(model.score_samples(X)).all()
    assert np.isfinite(model.outlier_score(X)).all()
    assert "town" in str(model.summary())
    model.save(tmp_path / "model")
    assert_allclose(load(tmp_path / "model").score_samples(X), model.score_samples(X), rtol=0, atol=0)
    if is_classifier(model):
        assert model.score(X, y) > 0.7
        strange, without = X.assign(town="Paris"), X.assign(town=None)
        assert_allclose(model.predict_proba(strange), model.predict_proba(without), atol=1e-12)
        explanation = model.explain(X[:2], classes="kind 1")
        assert_allclose(explanation.values.sum(1) + explanation.base_values, explanation.log_odds, atol=1e-8)


def coded(model, X):
    """Numbers of categories in place of the categories."""
    pairs = zip(model.encoding_.categorical, model.encoding_.categories, strict=True)
    columns = {j: values.tolist() for j, values in pairs}
    names = list(X.columns)
    return X.assign(
        **{names[j]: [v.index(value) if value in v else np.nan for value in X[names[j]]] for j, v in columns.items()}
    ).to_numpy(np.float32)


@pytest.mark.parametrize("model", [NUMBERS[0], *FREQUENCIES[:4], "numbers alone", "categories alone"], ids=str)
def test_onnx_graphs_take_numbers_of_categories(model, tmp_path):
    X, y = mixed_samples(n_samples=120)
    names = ["sex", "town"] if model == "categories alone" else list(X.columns)
    model = clone(FREQUENCIES[0] if isinstance(model, str) else model).fit(X[names], y)
    session, actual = answers(model, tmp_path / "model.onnx", coded(model, X[names]))
    if is_classifier(model):
        assert_allclose(actual[0], model.predict_proba(X[names]), atol=1e-5)
    assert_allclose(actual[1], model.score_samples(X[names]), atol=1e-4)
    notes = session.get_modelmeta().custom_metadata_map
    assert json.loads(notes["categories"]) == {"sex": ["f", "m"], "town": ["Bern", "Oslo", "Rome"]}


class TestColumns:
    """Columns of a frame at prediction, and types of columns."""

    def test_absent_columns_are_missing_and_new_ones_have_no_effect(self):
        X, y = mixed_samples()
        for features in (["income", "sex", "debt", "town"], ["income", "debt"]):
            model = MixtureClassifier(2, random_state=0, max_iter=500).fit(X[features], y)
            other = X[features].drop(columns="debt").assign(new=1.0)
            text = re.escape(
                "Columns of X differ from those in training: ['debt'] of the training samples are absent and count as "
                "missing; ['new'] are new and have no effect."
            )
            with pytest.warns(UserWarning, match=text):
                probabilities = model.predict_proba(other)
            assert_allclose(probabilities, model.predict_proba(X[features].assign(debt=np.nan)))
            with pytest.warns(UserWarning, match="absent"):
                completed = model.impute(other)
            assert list(completed.columns) == features
            assert completed["debt"].notna().all()

    @pytest.mark.parametrize("kind", ["category", "object", "string", "arrow", "boolean"])
    def test_types_of_a_column_mean_the_same(self, kind):
        X, y = mixed_samples()
        expected = MixtureClassifier(2, random_state=0, max_iter=500).fit(X, y).predict_proba(X)
        if kind == "arrow":
            other = pytest.importorskip("pyarrow").Table.from_pandas(X, preserve_index=False)
        elif kind == "boolean":
            other = X.assign(sex=pd.array(X["sex"].map({"f": False, "m": True}).astype(object), dtype="boolean"))
        else:
            other = X.astype({"sex": kind, "town": kind})
        model = MixtureClassifier(2, random_state=0, max_iter=500).fit(other, y)
        assert_allclose(model.predict_proba(other), expected, atol=1e-9)
        if kind == "boolean":  # as objects, as CSV files and other libraries have them
            objects = other.assign(sex=other["sex"].astype(object))
            model.fit(objects, y)
            assert_allclose(model.predict_proba(objects), expected, atol=1e-9)

    def test_categories_of_polars(self):
        polars = pytest.importorskip("polars")
        X, y = mixed_samples()
        sex, town = (X[name].astype(object).where(X[name].notna(), None).tolist() for name in ("sex", "town"))
        frame = polars.DataFrame(
            {
                "income": X["income"].to_numpy(),
                "sex": polars.Series(sex, dtype=polars.Enum(["m", "f"])),
                "debt": X["debt"].to_numpy(),
                "town": polars.Series(town).cast(polars.Categorical),
            }
        )
        model = MixtureClassifier(1).fit(frame, y)
        assert model.encoding_.categories[0].tolist() == ["m", "f"]
        assert_allclose(model.predict_proba(frame), MixtureClassifier(1).fit(X, y).predict_proba(X), atol=1e-9)


def test_mixed_features_are_predicted_better_than_by_boosting_and_by_numbers_alone():
    X, y = mixed_samples(n_samples=800, missing=0.2)
    test, labels = mixed_samples(n_samples=4000, missing=0.2, seed=1)
    ours = MixtureClassifier(2, random_state=0, max_iter=500).fit(X, y)
    boosting = HistGradientBoostingClassifier(random_state=0).fit(X.astype({"town": "category"}), y)
    numbers = MixtureClassifier(2, random_state=0, max_iter=500).fit(X[["income", "debt"]], y)
    losses = [
        log_loss(labels, model.predict_proba(samples))
        for model, samples in (
            (ours, test),
            (boosting, test.astype({"town": "category"})),
            (numbers, test[["income", "debt"]]),
        )
    ]
    assert losses[0] < min(losses[1:])


def test_covariances_of_another_number_of_numeric_features_are_refused():
    X, y = mixed_samples(n_samples=80)
    covariance = MixtureClassifier(1).fit(X, y).mixture_.covariance
    covariance.check()
    with pytest.raises(ValueError, match="covariances and numeric features have inconsistent sizes"):
        replace(covariance, kind=replace(covariance.kind, n_numeric=covariance.n_numeric + 1)).check()
