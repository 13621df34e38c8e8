"""Training and held-out parts of the samples, and the table of a search."""

import numpy as np
import pytest
import torch
from sklearn.model_selection import KFold

from cases import assert_close
from mixtura import MixtureClassifier
from mixtura.files.codec import Decoder, Encoder
from mixtura.selection.search import ScoredCandidate, SearchTable
from mixtura.selection.splits import ENOUGH_SAMPLES, check_splits, hold_outs, renumbered
from test_bad_input import refused

LABELS = torch.tensor([0] * 10 + [1] * 7 + [2] + [-1] * 4)


def parts(cv, labels=LABELS, seed=0, **known):
    return hold_outs(cv, labels, torch.Generator().manual_seed(seed), **known)


def test_folds_partition_the_labeled_samples_of_every_class():
    folds = parts(5)
    times = torch.stack([fold.held_out for fold in folds]).sum(0)
    assert times.tolist() == [1] * 17 + [0] * 5  # neither the only sample of class 2 nor unlabeled ones
    for fold in folds:
        assert torch.equal(fold.kept, ~fold.held_out)
        sizes = [int((fold.held_out & (c == LABELS)).sum()) for c in (0, 1)]
        assert sizes[0] == 2
        assert sizes[1] in (1, 2)
    assert max(int(fold.held_out.sum()) for fold in folds) - min(int(fold.held_out.sum()) for fold in folds) <= 1


def test_small_classes_share_out_their_last_samples():
    """Twelve classes of six samples: every fold has one of each class and one or two more, never all of them."""
    sizes = [int(fold.held_out.sum()) for fold in parts(5, torch.arange(72) % 12)]
    assert max(sizes) - min(sizes) <= 1


def test_a_fraction_of_every_class_is_held_out_once():
    (fold,) = parts(0.3)
    assert [int((fold.held_out & (c == LABELS)).sum()) for c in (0, 1, 2, -1)] == [3, 2, 0, 0]
    assert parts(0.3, smallest=6) == []


def test_samples_of_weight_zero_are_never_held_out():
    weights = torch.ones(len(LABELS), dtype=torch.float64)
    weights[:5] = 0
    assert not any(bool(fold.held_out[:5].any()) for fold in parts(4, weights=weights))


def test_soft_labels_are_stratified_by_the_largest_share():
    shares = torch.nn.functional.one_hot(LABELS.clamp_min(0), 3).double() * 0.8 + 0.2 / 3
    shares[LABELS < 0] = torch.nan
    for hard, soft in zip(parts(5), parts(5, labels=None, shares=shares), strict=True):
        assert torch.equal(hard.held_out, soft.held_out)


def test_given_splits_and_splitters():
    splits = [(np.arange(5, 22), np.arange(5)), (np.arange(15), np.arange(15, 22))]
    folds = parts(splits)
    assert folds[0].held_out.nonzero()[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert folds[1].held_out.nonzero()[:, 0].tolist() == [15, 16, 17]  # unlabeled samples stay
    assert bool(folds[1].kept[18:].all())
    assert sum(int(fold.held_out.sum()) for fold in parts(KFold(3))) == 18
    assert check_splits(splits) is splits
    refused(lambda: check_splits(1), "cv must be ...2; got 1.")


def test_splits_follow_samples_that_leave():
    present = torch.tensor([True, False, True, True])
    ((kept, held_out),) = renumbered([(np.array([0, 1]), np.array([2, 3]))], present)
    assert kept.tolist() == [0]
    assert held_out.tolist() == [1, 2]


def test_many_samples_are_held_out_once():
    for n_folds, count in ((5, ENOUGH_SAMPLES), (3, 2 * ENOUGH_SAMPLES), (1, 5 * ENOUGH_SAMPLES)):
        assert len(parts(5, labels=torch.zeros(count, dtype=torch.int64))) == n_folds


@pytest.fixture
def table():
    scores = {1: 0.31, 2: 0.25, 3: 0.26}
    return SearchTable("log_loss", [ScoredCandidate({"n_components": k}, s, 0.02, 0.1) for k, s in scores.items()], 2)


def test_a_table_has_the_chosen_candidate_first(table):
    assert table.best.what == {"n_components": 3}
    assert table.ranked() == [2, 1, 0]
    assert [line.split() for line in repr(table).splitlines()] == [
        ["n_components", "log_loss", "standard_error", "seconds"],
        ["*", "3", "0.2600", "0.0200", "0.10"],
        ["2", "0.2500", "0.0200", "0.10"],
        ["1", "0.3100", "0.0200", "0.10"],
    ]
    assert_close([record["log_loss"] for record in table.records()], [0.31, 0.25, 0.26])
    assert [record["chosen"] for record in table.records()] == [False, False, True]


def test_long_tables_are_cut(table):
    many = SearchTable("log_loss", list(table) * 10, 0)
    assert repr(many).splitlines()[-1] == "  ... and 10 more"


def test_tables_are_storable(table):
    encoder = Encoder()
    assert Decoder(encoder.tensors).decode(encoder.encode(table, "search_")) == table


def test_a_search_is_drawn(table):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    from mixtura.plotting import SearchDisplay

    model = MixtureClassifier(1).fit([[0.0], [1.0], [3.0], [4.0]], [0, 0, 1, 1])
    refused(
        lambda: SearchDisplay.from_estimator(model),
        "SearchDisplay draws the candidates of a search; this MixtureClassifier compared...",
    )
    model.search_ = table
    ax = SearchDisplay.from_estimator(model).ax_
    assert [label.get_text() for label in ax.get_yticklabels()] == ["1 component", "2 components", "3 components"]
    assert ax.get_xlabel() == "log loss of held-out samples"
    pyplot.close("all")
