"""Scores of estimators that take unlabeled samples."""

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV

from cases import assert_close
from mixtura import AveragedMixtureClassifier, LabeledScorer, MixtureClassifier
from mixtura.datasets import make_ripley
from test_bad_input import refused


@pytest.fixture(scope="module")
def few_labels():
    X, y = make_ripley(60, random_state=0)
    return X, np.where(np.arange(len(y)) % 4 == 0, y, -1)


def test_score_ignores_unlabeled_samples(few_labels):
    X, y = few_labels
    model = MixtureClassifier(1, unlabeled=-1, random_state=0).fit(X, y)
    labeled = y >= 0
    expected = float((model.predict(X[labeled]) == y[labeled]).mean())
    assert_close(model.score(X, y), expected)
    assert_close(model.score(torch.from_numpy(X), torch.from_numpy(y)), expected)
    weights = np.arange(len(y)) + 1.0
    assert_close(model.score(X, y, weights), model.score(X[labeled], y[labeled], weights[labeled]))
    missing = MixtureClassifier(1, unlabeled=np.nan, random_state=0).fit(X, np.where(labeled, y, np.nan))
    assert_close(missing.score(X, np.where(labeled, y, np.nan)), expected)


def test_averages_ignore_the_unlabeled_samples_of_their_members(few_labels):
    X, y = few_labels
    model = AveragedMixtureClassifier(MixtureClassifier(1, unlabeled=-1), 3, random_state=0).fit(X, y)
    assert_close(model.score(X, y), model.score(X[y >= 0], y[y >= 0]))


def test_every_label_is_a_class_unless_told_otherwise(few_labels):
    X, y = few_labels
    model = MixtureClassifier(1).fit(X, y)
    assert_close(model.score(X, y), float((model.predict(X) == y).mean()))


def test_grid_searches_score_labeled_samples(few_labels):
    X, y = few_labels
    labeled = y >= 0
    search = GridSearchCV(MixtureClassifier(1, unlabeled=-1, random_state=0), {"n_components": [1, 2]}, cv=3).fit(X, y)
    assert search.best_score_ > 0.7
    scorer = LabeledScorer("neg_log_loss", unlabeled=-1)
    model = MixtureClassifier(1, unlabeled=-1, random_state=0).fit(X, y)
    assert_close(scorer(model, X, y), -log_loss(y[labeled], model.predict_proba(X[labeled])))
    refused(lambda: scorer(model, X[~labeled], y[~labeled]), "y holds no labeled sample to score: every label is -1.")
