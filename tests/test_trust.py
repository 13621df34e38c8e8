"""Laws of trust, over all estimators: answers are finite and mean what the input says, or the input is refused."""

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
)
from mixtura.datasets import make_ripley
from mixtura.priors import Shrinkage

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
    extra = {"smoothing": 0.5} if isinstance(model, DiscriminativeMixtureClassifier) else {}
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
    cure = "Leave these rows out; MixtureClassifier\\(unlabeled=np.nan\\) can use unlabeled samples."
    if takes_unlabeled(model):
        cure = "Pass unlabeled=np.nan to use them as unlabeled samples, or leave them out."
    with pytest.raises(ValueError, match=f"^Input y contains NaN or another missing label in 20 rows. {cure}$"):
        fitted(model, ROWS, labels)


@every_missing_label
@every_classifier
def test_missing_labels_are_unlabeled_where_asked_for(model, labels):
    if not takes_unlabeled(model):
        assert model.get_params().get("unlabeled") is None
        return
    found = fitted(with_unlabeled(model, np.nan), ROWS, labels)
    expected = fitted(with_unlabeled(model, -1), ROWS, SOME)
    assert found.classes_.tolist() == [0, 1]
    np.testing.assert_array_equal(found.predict_proba(ROWS), expected.predict_proba(ROWS))


def test_missing_text_labels():
    names = np.array(["red", "blue"], dtype=object)[LABELS]
    names[::3] = None
    assert MixtureClassifier(unlabeled=np.nan).fit(ROWS, names).classes_.tolist() == ["blue", "red"]


def test_a_missing_label_among_others_that_mean_unlabeled():
    labels = np.where(np.arange(len(LABELS)) == 5, np.nan, SOME)
    with pytest.raises(ValueError, match="missing label in 1 rows"):
        MixtureClassifier(unlabeled=-1).fit(ROWS, labels)


def test_unlabeled_batches_for_an_objective_without_a_density():
    with pytest.raises(ValueError, match="20 rows are unlabeled, but objective 'conditional' only separates classes"):
        MixtureClassifier(objective="conditional", unlabeled=-1).fit([(ROWS, SOME)])
