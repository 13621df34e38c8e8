"""Groups of samples, such as those of a patient: no split divides one."""

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, cross_validate

from cases import assert_close
from mixtura import (
    AveragedMixture,
    AveragedMixtureClassifier,
    DiscriminativeMixtureClassifier,
    GaussianMixture,
    HybridMixtureClassifier,
    MixtureClassifier,
    NonnegativeMixtureClassifier,
    RejectOption,
    SparseMixtureClassifier,
)
from mixtura.estimators import averaged
from mixtura.estimators.averaged import draw_replicates
from mixtura.estimators.refits import split_samples
from mixtura.selection import splits
from mixtura.selection.splits import Grouped, hold_outs, sample_of

# Forty groups of five samples: nearly copies of each other, of random classes, so that neighbours tell the label.
RNG = np.random.default_rng(0)
GROUPS = np.repeat(np.arange(40), 5)
CENTRES, Y = 3 * RNG.normal(size=(40, 3)), np.repeat(RNG.permutation(np.arange(40) % 2), 5)
X = CENTRES[GROUPS] + 0.05 * RNG.normal(size=(200, 3))
NAMES = np.array([f"patient {number}" for number in GROUPS])
LABELS = torch.from_numpy(Y)


def parts(cv, labels=LABELS, groups=GROUPS, seed=0, **known):
    grouped = Grouped(cv, torch.from_numpy(groups))
    return hold_outs(grouped, labels, torch.Generator().manual_seed(seed), **known)


@pytest.fixture
def seen(monkeypatch):
    """The splits that are used, all of which must keep the groups of the 200 samples."""
    recorded = []

    def record(cv, *samples, **known):
        divided = splits_before(cv, *samples, **known)
        for part in divided:
            groups = cv.groups if isinstance(cv, Grouped) else torch.arange(len(part.kept))
            recorded.append((part, groups, isinstance(cv, Grouped)))
        return divided

    splits_before = splits.hold_outs
    for module in ("comparison", "clusters", "penalties", "tradeoffs", "texts"):
        monkeypatch.setattr(f"mixtura.selection.{module}.hold_outs", record)
    monkeypatch.setattr("mixtura.estimators.refits.hold_outs", record)
    return recorded


def check(recorded, at_least=1):
    assert len(recorded) >= at_least
    for part, groups, grouped in recorded:
        assert grouped
        assert not bool(torch.isin(groups[part.kept], groups[part.held_out]).any())
        assert bool(part.held_out.any())


@pytest.mark.parametrize("cv", [5, 2, 0.2, GroupKFold(4)])
def test_no_split_divides_a_group(cv):
    folds = parts(cv)
    assert len(folds) == (cv if isinstance(cv, int) else 1 if isinstance(cv, float) else 4)
    check([(part, torch.from_numpy(GROUPS), True) for part in folds])
    if isinstance(cv, int):
        assert torch.equal(torch.stack([part.held_out for part in folds]).sum(0), torch.ones(200, dtype=torch.int64))
        for part in folds:  # stratified as far as groups allow
            assert abs(float(LABELS[part.held_out].double().mean()) - Y.mean()) < 0.15


def test_unlabeled_samples_of_a_held_out_group_are_in_neither_part():
    labels = LABELS.clone()
    labels[::5] = -1
    for part in parts(4, labels):
        groups = torch.from_numpy(GROUPS)
        assert not bool(part.held_out[::5].any())
        assert not bool(torch.isin(groups[part.kept], groups[part.held_out]).any())
        assert bool(part.kept[::5].any())


def test_splits_that_divide_a_group_are_refused():
    with pytest.raises(
        ValueError, match="cv divides a group: some of its samples are held out, others are for training"
    ):
        parts([(np.arange(3, 200), np.arange(3))])
    (part,) = parts([(np.arange(5, 200), np.arange(5))])
    assert int(part.held_out.sum()) == 5


def test_few_groups():
    three = GROUPS % 3
    with pytest.warns(UserWarning, match="3 groups cannot be divided into 5 folds; 3 folds are used"):
        assert len(parts(5, groups=three)) == 3
    alone = np.where(Y == 1, 0, 1 + GROUPS)  # class 1 is one group: without it nothing is left of the class
    held_out = torch.stack([part.held_out for part in parts(5, groups=alone)]).any(0)
    assert not bool(held_out[LABELS == 1].any())
    with pytest.warns(UserWarning, match="2 groups cannot be divided into 5 folds"):
        assert parts(5, groups=Y) == []


def test_some_of_many_samples_are_whole_groups():
    from mixtura.engine.sources import TensorSource

    source = TensorSource(torch.from_numpy(X), LABELS)
    cv = Grouped(5, torch.from_numpy(GROUPS))
    sample, few = sample_of(source, torch.Generator().manual_seed(0), 60, cv)
    assert len(sample.rows) == len(sample.labels) == 60
    assert few.groups.bincount().tolist() == [5] * 12
    places = [int(np.flatnonzero((row == X).all(1))[0]) for row in sample.rows.numpy()]
    assert len(set(GROUPS[places])) == 12


@pytest.mark.parametrize(
    "model",
    [
        MixtureClassifier(covariance_type="diag", random_state=0),
        MixtureClassifier(covariance_type="diag", cv=GroupKFold(3), random_state=0),
        DiscriminativeMixtureClassifier(random_state=0, max_iter=5, early_stopping=True),
        HybridMixtureClassifier(1, n_epochs=2, random_state=0),
        GaussianMixture("auto", criterion="held_out", random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_searches_keep_groups(model, seen):
    model.fit(X, Y, groups=NAMES)
    check(seen)


@pytest.mark.parametrize("options", [{}, {"solver": "accelerated", "early_stopping": True, "max_iter": 3}])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_texts_keep_groups(options, seen):
    NonnegativeMixtureClassifier(random_state=0, **options).fit(np.abs(X), Y, groups=GROUPS)
    check(seen)


def test_out_of_bag_replicates_draw_whole_groups():
    from mixtura.selection.clusters import counts_of

    cv = Grouped(5, torch.from_numpy(GROUPS))
    counts = counts_of("out_of_bag", 200, None, torch.Generator().manual_seed(0), torch.device("cpu"), cv)
    assert torch.equal(counts[::5].repeat_interleave(5, 0), counts)
    assert (counts[:, :-1].sum(0) == 200).all()


@pytest.mark.parametrize("resampling", ["bootstrap", "subset"])
@pytest.mark.parametrize(
    "model",
    [
        AveragedMixture(GaussianMixture("auto", criterion="held_out"), 3, random_state=0),
        AveragedMixtureClassifier(MixtureClassifier(covariance_type="diag"), 3, random_state=0),
    ],
    ids=["density", "classifier"],
)
def test_replicates_of_averages_do_not_divide_groups(model, resampling, seen, monkeypatch):
    drawn = []
    monkeypatch.setattr(averaged, "draw_replicates", lambda *args: drawn.append(draw_replicates(*args)) or drawn[-1])
    clone(model).set_params(resampling=resampling).fit(X, Y, groups=NAMES)
    check(seen)
    (counts,) = drawn
    assert torch.equal(counts[::5].repeat_interleave(5, 0), counts)
    assert counts.shape == (200, 3)
    assert (counts == 0).any(0).all()
    if resampling == "bootstrap":
        assert (counts.sum(0) == 200).all()


def test_replicates_of_groups_have_all_classes_where_few_groups_do():
    """A group belongs to the stratum of its rarest class; rows of weight zero are not drawn."""
    random, groups = np.random.RandomState(0), torch.from_numpy(GROUPS)
    strata = np.where(GROUPS < 2, np.arange(200) % 5 == 0, 0)  # two rows of class 1
    weights = torch.ones(200).index_fill(0, torch.tensor([7, 199]), 0.0)
    counts = draw_replicates("bootstrap", 50, 0.7, strata, weights, random, groups)
    assert (counts[strata == 1].sum(0) == 2).all()
    assert (counts[[7, 199]] == 0).all()
    assert torch.equal(counts[5], counts[6])
    with pytest.raises(ValueError, match="drew a replicate without a sample of some class"):
        draw_replicates("bootstrap", 50, 0.7, np.array([0, 0, 1, 1, 1]), None, random, torch.tensor([0, 1, 1, 1, 1]))


def test_groups_of_single_samples_are_no_groups():
    model = AveragedMixtureClassifier(MixtureClassifier(1), 3, random_state=0)
    plain, grouped = (clone(model).fit(X, Y, groups=groups).predict_proba(X) for groups in (None, np.arange(200)))
    np.testing.assert_array_equal(plain, grouped)


def test_weights_of_zero():
    weights = np.ones(200)
    weights[::7] = 0
    model = MixtureClassifier(covariance_type="diag", random_state=0)
    with_zeros = model.fit(X, Y, weights, groups=GROUPS).search_
    without = model.fit(X[weights > 0], Y[weights > 0], groups=GROUPS[weights > 0]).search_
    assert_close([row.score for row in with_zeros], [row.score for row in without])


def test_groups_make_the_estimate_honest():
    """Copies of a sample on both sides say that many components are right; there is nothing to learn."""
    known = MixtureClassifier(covariance_type="diag", warp=None, random_state=0)
    divided, honest = (known.fit(X, Y, groups=groups).search_.best.score for groups in (None, GROUPS))
    assert divided < 0.5 * np.log(2)
    assert honest > 0.9 * np.log(2)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_refits_keep_groups(seen):
    model = MixtureClassifier(1, random_state=0).fit(X, Y)
    model.calibrate_outliers(X, Y, groups=NAMES)
    model.suspicious_labels(X, Y, groups=NAMES)
    model.calibrate_outliers(X, Y, cv=2, groups=GROUPS % 2)  # a training set of one group
    RejectOption(MixtureClassifier(covariance_type="diag", random_state=0)).fit(X, Y, groups=NAMES)
    SparseMixtureClassifier(random_state=0, max_iter=3).fit(X, Y).suspicious_labels(X, Y, cv=2, groups=NAMES)
    GaussianMixture(2, random_state=0).fit(X).calibrate_outliers(X, groups=NAMES)
    check(seen, 5 + 5 + 2 + 10 + 2 + 5)
    positions = split_samples(model, X, Y, 4, groups=NAMES)
    assert all(not set(NAMES[kept]) & set(NAMES[test]) for kept, test in positions)


@pytest.mark.parametrize("make", [np.array, list, pd.Series, torch.tensor])
def test_kinds_of_groups(make):
    model = MixtureClassifier(covariance_type="diag", random_state=0)
    expected = [row.score for row in model.fit(X, Y, groups=NAMES).search_]
    assert [row.score for row in model.fit(X, Y, groups=make(GROUPS.tolist())).search_] == expected


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (GROUPS[:7], r"groups must hold one group for each of the 200 samples; got shape \(7,\)"),
        (np.where(GROUPS < 3, np.nan, GROUPS), "groups contains NaN or another missing group for 15 samples"),
        (np.where(GROUPS < 3, None, NAMES), "groups contains NaN or another missing group for 15 samples"),
        (np.zeros(200), "groups holds the same group for all samples, so that none can be held out; leave it out"),
    ],
)
def test_wrong_groups(groups, message):
    for model in (MixtureClassifier(), MixtureClassifier(1), GaussianMixture(2), NonnegativeMixtureClassifier()):
        with pytest.raises(ValueError, match=message):
            model.fit(np.abs(X), Y, groups=groups)


def test_batches_have_no_groups():
    with pytest.raises(ValueError, match="groups cannot be combined with an X of batches or of Dask"):
        MixtureClassifier().fit([(X, Y)], groups=GROUPS)


def test_scikit_learn_routes_groups(seen):
    with sklearn.config_context(enable_metadata_routing=True):
        model = MixtureClassifier(covariance_type="diag", random_state=0).set_fit_request(groups=True)
        cross_validate(model, X, Y, cv=GroupKFold(2), params={"groups": GROUPS}, error_score="raise")
    check(seen, 10)


def test_the_estimate_of_a_selection_draws_whole_groups():
    from mixtura.selection.estimates import estimate_performance

    drawn, shares = [], torch.nn.functional.one_hot(LABELS, 2).double()

    def rule(weights):
        drawn.append(weights)
        return shares.new_full(shares.shape, 0.5).log()

    estimate = estimate_performance(rule, shares, torch.ones(200, dtype=torch.float64), torch.from_numpy(GROUPS))
    assert_close(estimate.log_loss, np.log(2))
    assert all(torch.equal(weights[::5].repeat_interleave(5), weights) for weights in drawn)
    chosen = MixtureClassifier(covariance_type="diag", random_state=0).fit(X, Y, groups=GROUPS)
    assert chosen.search_.estimate.log_loss > 0.9 * np.log(2)
