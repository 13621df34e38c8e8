"""Numbers in place of categories, as members of the default: their values, and everything that reads such a model."""

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.metrics import log_loss

from mixtura import MixtureClassifier, load
from mixtura.covariances.product import estimate_strength
from mixtura.engine.sources import TensorSource
from mixtura.init.transform_fits import MOST_INDICATORS, N_FOLDS, recode, with_frequencies
from mixtura.model.transforms import Recoding, Warp
from mixtura.selection.automatic import NUMBERS_TRADEOFF
from test_bad_input import refused
from test_categorical import mixed_samples, slow_log_joint

SIZES = (3, 4, MOST_INDICATORS + 5)


@pytest.fixture
def coded(rng):
    """Two numbers, then indicators of features of few, ordered and many categories, some missing; three classes."""
    y, numbers = np.arange(200) % 3, rng.normal(size=(200, 2))
    places = np.stack([(rng.integers(size, size=200) + 3 * y) % size for size in SIZES], 1)
    places[rng.random(places.shape) < 0.1] = -1
    columns = zip(places.T[:, :, None], SIZES, strict=True)
    indicators = [np.where(column < 0, np.nan, column == np.arange(size)) for column, size in columns]
    return np.hstack([numbers, *indicators]), places, y


def slow_numbers(numbers, places, y, weights, of_all):
    """One sample after the other; the frequencies for training samples come from the other folds."""
    frequent = [np.bincount(column[column >= 0]).argmax() for column in places.T]
    every = np.arange(len(y))
    counts = np.array([[weights[(places[:, 2] == v) & (y == c)].sum() for c in range(3)] for v in range(SIZES[2])])
    strength = estimate_strength(torch.from_numpy(counts))
    rows = []
    for n in every:
        own = places[n]
        row = [*numbers[n], *(np.nan if own[0] < 0 else own[0] == v for v in range(SIZES[0]) if v != frequent[0])]
        row.append(np.nan if own[1] < 0 else own[1] / (SIZES[1] - 1))
        others = np.ones(len(y), bool) if of_all else every % N_FOLDS != n % N_FOLDS
        for c in (1, 2):
            if own[2] < 0:
                row.append(np.nan)
                continue
            alike, known = others & (places[:, 2] == own[2]), others & (places[:, 2] >= 0)
            share = weights[known & (y == c)].sum() / weights[known].sum()
            row.append((weights[alike & (y == c)].sum() + strength * share) / (weights[alike].sum() + strength))
        rows.append(row)
    return np.array(rows, float)


@pytest.mark.parametrize("labels", ["numbers", "weights", "soft"])
def test_numbers_are_those_of_a_slow_twin(coded, rng, labels):
    X, places, y = coded
    weights = rng.uniform(0.2, 2.0, 200) if labels == "weights" else np.ones(200)
    numbers, shares = torch.from_numpy(y), torch.eye(3, dtype=torch.float64)[torch.from_numpy(y)]
    source = TensorSource(
        torch.from_numpy(X),
        None if labels == "soft" else numbers,
        shares if labels == "soft" else None,
        torch.from_numpy(weights),
    )
    recoding, training = with_frequencies(recode(source, 3, 2, SIZES, ordered=(1,)), source, 3)
    assert (recoding.learned, recoding.n_inputs, recoding.n_outputs) == ((False, False, True), 2 + sum(SIZES), 7)
    assert recoding.n_parameters == 2 * SIZES[2]
    assert_allclose(recoding.forward(torch.from_numpy(X)), slow_numbers(X[:, :2], places, y, weights, True), atol=1e-12)
    (block,) = training.blocks()
    assert_allclose(block.rows, slow_numbers(X[:, :2], places, y, weights, False), atol=1e-12)


def test_the_transform_comes_last(coded):
    X, _, y = coded
    source = TensorSource(torch.from_numpy(X), torch.from_numpy(y))
    plain, _ = with_frequencies(recode(source, 3, 2, SIZES), source, 3)
    warp = Warp(torch.zeros(plain.n_outputs), torch.full((plain.n_outputs,), 0.5))
    bent = Recoding(plain.n_numeric, plain.tables, plain.learned, warp)
    assert_allclose(bent.forward(torch.from_numpy(X)), warp.forward(plain.forward(torch.from_numpy(X))))
    assert bent.n_parameters == plain.n_parameters + warp.n_parameters


def test_tables_of_a_file_are_checked():
    table = torch.zeros(3, 2, dtype=torch.float64)
    refused(lambda: Recoding(1, (table,), ()).check(), "learned has size 0, other parts have 1")
    refused(lambda: Recoding(1, (table[0],), (True,)).check(), "a table of a recoding is not a matrix ...")


def doubled_samples(seed, n_samples=400):
    """Five copies of a feature, and a number whose mean depends on the place: frequencies see neither."""
    rng = np.random.default_rng(seed)
    y, X = np.arange(n_samples) % 2, {}
    kind = np.where(rng.random(n_samples) < 0.3, 1 - y, y)
    for j in range(5):
        X[f"copy {j}"] = np.array([[f"a{j}", f"b{j}"], [f"c{j}", f"d{j}"]])[kind, rng.integers(2, size=n_samples)]
    place = rng.integers(12, size=n_samples)
    X["place"] = np.array(list("ABCDEFGHIJKL"))[place]
    X["x"] = 0.5 * rng.normal(size=n_samples) + y + np.random.default_rng(3).normal(size=12)[place] * 4
    return pd.DataFrame(X).astype({name: "category" for name in X if name != "x"}), y


@pytest.fixture(scope="module")
def averaged():
    X, y = doubled_samples(0)
    model = MixtureClassifier(random_state=0).fit(X, y)
    assert any(isinstance(member.warp, Recoding) for member in model.members_)
    return model


class TestMembers:
    """The density is that of the best member; predictions and explanations are those of the average."""

    def test_numbers_help_where_categories_depend_on_each_other(self, averaged):
        test, labels = doubled_samples(1, 4000)
        alone = MixtureClassifier(random_state=0, average=1).fit(*doubled_samples(0))
        losses = [log_loss(labels, each.predict_proba(test)) for each in (averaged, alone)]
        assert losses[0] < 0.9 * losses[1]

    def test_the_density_is_that_of_the_samples(self, averaged):
        X, _ = doubled_samples(1, 20)
        expected = np.array([slow_log_joint(averaged, row) for _, row in X.iterrows()])
        if averaged.warp_ is None:
            assert_allclose(averaged.score_samples(X), np.logaddexp.reduce(expected, axis=1), atol=1e-8)
        assert averaged.responsibilities(X).shape == (20, len(averaged.weights_))
        drawn, _ = averaged.sample(5)
        assert list(drawn.columns) == list(X.columns)
        assert averaged.impute(X.mask(X == "a0")).notna().all().all()
        assert np.isfinite(averaged.outlier_score(X)).all()

    def test_missing_and_unknown_categories_are_marginalised_in_all_members(self, averaged):
        X, _ = doubled_samples(1, 50)
        strange, without = X.assign(**{"copy 2": "new"}), X.assign(**{"copy 2": None})
        assert_allclose(averaged.predict_proba(strange), averaged.predict_proba(without), atol=1e-12)
        nothing = pd.DataFrame(None, index=[0], columns=X.columns)
        assert_allclose(averaged.predict_proba(nothing)[0], averaged.class_prior_, atol=1e-9)

    def test_refits_and_other_class_priors_keep_the_members(self, averaged):
        X, y = doubled_samples(2, 100)
        assert len(averaged.suspicious_labels(X, y).positions) < 60
        assert averaged.calibrate_outliers(X, y).is_outlier(X).mean() < 0.2
        even = averaged.with_class_prior([0.9, 0.1])
        assert even.predict_proba(X)[:, 1].mean() < averaged.predict_proba(X)[:, 1].mean()

    def test_a_file_holds_all_members(self, averaged, tmp_path):
        X, _ = doubled_samples(1, 50)
        averaged.save(tmp_path / "model")
        read = load(tmp_path / "model")
        assert_allclose(read.predict_proba(X), averaged.predict_proba(X), rtol=0, atol=0)

    def test_explanations_add_up_to_the_log_odds_of_the_average(self, averaged):
        X, y = doubled_samples(1, 200)
        explanation = averaged.explain(X[:5], classes=1)
        log_proba = averaged.predict_log_proba(X[:5])
        assert_allclose(
            explanation.values.sum(1) + explanation.base_values, log_proba[:, 1] - log_proba[:, 0], atol=1e-6
        )
        assert averaged.feature_importances(X, y)["x"] > 0.05


def test_ordered_categories_keep_their_order():
    X, y = mixed_samples(n_samples=90)
    names = ["small", "middle", "large"]
    size = pd.Categorical(np.array(names)[np.arange(90) % 3], names, ordered=True)
    model = MixtureClassifier(1, objective="conditional", prior="default", max_iter=50).fit(X.assign(size=size), y)
    assert model.encoding_.categories[-1].tolist() == names
    assert model.encoding_.ordered == (2,)
    assert_allclose(model.warp_.tables[2], [[0.0], [0.5], [1.0]])


def wavy_samples(n_samples, seed):
    """Log-odds of both kinds of features, whose categories depend on each other."""
    rng = np.random.default_rng(seed)
    hidden, X = rng.normal(size=n_samples), {"x": rng.normal(size=n_samples)}
    log_odds = 2 * X["x"] ** 2 - 2
    for j in range(5):
        codes = np.clip(np.round(3 + 1.5 * hidden + rng.normal(size=n_samples)), 0, 7).astype(int)
        log_odds += 1.6 * (-1) ** j * np.cos(1.3 * codes + j)
        X[f"c{j}"] = np.array(list("abcdefgh"))[codes]
    return pd.DataFrame(X), (rng.random(n_samples) < 1 / (1 + np.exp(-log_odds))).astype(int)


def test_numbers_are_trained_on_by_the_posteriors():
    """Indicators of categories that depend on each other have no density worth keeping; the boundary is simple."""
    (X, y), (test, labels) = wavy_samples(1000, 0), wavy_samples(5000, 1)
    model = MixtureClassifier(random_state=0).fit(X, y)
    what = [candidate.what for candidate in model.search_.members]
    assert [(each["categories"], each["tradeoff"]) for each in what[1:]] == [("numbers", NUMBERS_TRADEOFF)]
    alone = MixtureClassifier(average=1, random_state=0).fit(X, y)
    assert log_loss(labels, model.predict_proba(test)) < 0.88 * log_loss(labels, alone.predict_proba(test))
