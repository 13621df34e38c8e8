"""The search behind every automatic choice: order, time, and Ctrl-C in the middle of it."""

import math

import numpy as np
import pytest

from mixtura import (
    AveragedMixtureClassifier,
    DiscriminativeMixtureClassifier,
    GaussianMixture,
    HybridMixtureClassifier,
    MixtureClassifier,
)
from mixtura.datasets import make_ripley
from mixtura.selection.search import Search, Trial

pytestmark = pytest.mark.usefixtures("one_thread")

SEARCHES = {
    "automatic": MixtureClassifier(random_state=0),
    "full": MixtureClassifier(covariance_type="full", class_prior="uniform", random_state=0),
    "density": GaussianMixture("auto", random_state=0),
    "prior": GaussianMixture("auto", prior="auto", random_state=0),
    "discriminative": DiscriminativeMixtureClassifier(random_state=0, tol=0.01),
    "growing": DiscriminativeMixtureClassifier("auto", random_state=0, tol=0.01),
    "hybrid": HybridMixtureClassifier(2, random_state=0, n_epochs=3),
}


def trial(score):
    return Trial({"score": score}, score, math.nan, object())


def break_off(monkeypatch, after: int) -> None:
    """Let Ctrl-C come in the middle of a trial, when there are `after` trials or more."""
    plain = Search.tried_together

    def interrupted(self, evaluate):
        def broken():
            raise KeyboardInterrupt

        return plain(self, evaluate if len(self.trials) < after else broken)

    monkeypatch.setattr(Search, "tried_together", interrupted)


@pytest.mark.parametrize("name", SEARCHES)
def test_an_interrupted_search_keeps_its_best_model(name, monkeypatch):
    X, y = make_ripley(100, random_state=0)
    model = SEARCHES[name]
    whole = model.fit(X, y).search_
    break_off(monkeypatch, after=2)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert 2 <= len(model.search_) < len(whole)
    assert [c.score for c in model.search_] == [c.score for c in whole][: len(model.search_)]
    # Among these candidates no smaller model is as good as the best one, within a standard error.
    best = min(model.search_, key=lambda candidate: candidate.score)
    assert model.search_.best is best
    if "n_components" in best.what:
        assert set(np.atleast_1d(model.n_components_)) == set(np.atleast_1d(best.what["n_components"]))
    if "tradeoff" in best.what:
        assert model.tradeoff_ == best.what["tradeoff"]
    assert sum(candidate is not best for candidate in model.search_) > 0
    assert np.isfinite(model.score_samples(X)).all()
    if name not in ("density", "prior"):
        assert model.score(X, y) > 0.8


@pytest.mark.parametrize("name", SEARCHES)
def test_an_interruption_before_the_first_candidate_leaves_no_model(name, monkeypatch):
    X, y = make_ripley(100, random_state=0)
    model = type(SEARCHES[name])(**SEARCHES[name].get_params())
    break_off(monkeypatch, after=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert "mixture_" not in vars(model)


def test_members_of_an_average_are_not_trained_after_an_interrupted_search(monkeypatch):
    X, y = make_ripley(100, random_state=0)
    model = AveragedMixtureClassifier(MixtureClassifier(), 2, random_state=0)
    break_off(monkeypatch, after=2)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert "mixtures_" not in vars(model)


def test_the_first_candidate_is_tried_however_little_time_there_is():
    search = Search("loss", time_budget=0.0)
    tried = []

    def candidates():
        for score in (3.0, 1.0):
            tried.append(search.tried(lambda score=score: trial(score)))

    search.run(candidates)
    assert [t.score for t in tried] == [3.0]
    assert not search.interrupted


def test_candidates_that_are_trained_together_share_the_time():
    seen = []
    search = Search("loss", watch=seen.append)
    trials = search.tried_together(lambda: [trial(2.0), trial(1.0), trial(1.0)])
    assert seen == trials == search.trials
    assert len({t.seconds for t in trials}) == 1
    assert search.best is trials[1]
    assert search.table(search.best).chosen == 1
