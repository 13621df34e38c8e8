"""The search behind every automatic choice: order, time, and Ctrl-C in the middle of it."""

import math
import time
from functools import partial

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
from mixtura.engine.threads import TimeOverError, check_time, until
from mixtura.estimators import training
from mixtura.selection.search import Search, Trial, watching

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
    plain = Search.try_together

    def interrupted(self, evaluate):
        def broken():
            raise KeyboardInterrupt

        return plain(self, evaluate if len(self.trials) < after else broken)

    monkeypatch.setattr(Search, "try_together", interrupted)


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
            tried.append(search.try_one(lambda score=score: trial(score)))

    search.run(candidates)
    assert [t.score for t in tried] == [3.0]
    assert not search.interrupted


def test_candidates_that_are_trained_together_share_the_time():
    seen = []
    search = Search("loss")
    with watching(seen.append):
        trials = search.try_together(lambda: [trial(2.0), trial(1.0), trial(1.0)])
    assert trials == search.trials
    assert seen == [2.0, 1.0, 1.0]
    assert len({t.seconds for t in trials}) == 1
    assert search.best is trials[1]
    assert search.table(search.best).chosen == 1


def test_a_pass_ends_with_its_limit_of_time(monkeypatch):
    X, y = make_ripley(500, random_state=0)
    model = MixtureClassifier(2, random_state=0).fit(X, y)
    with until(math.inf), until(time.perf_counter() + 100):
        expected = model.predict_proba(X)
    for threads in (1, 2):
        monkeypatch.setattr("mixtura.engine.passes.available_threads", lambda *device, n=threads: n)
        monkeypatch.setattr("mixtura.engine.threads.SMALL_PASS", 0)
        with until(0.0), pytest.raises(TimeOverError), until(math.inf):
            model.predict_proba(X)
    check_time()
    assert np.array_equal(model.predict_proba(X), expected)


@pytest.mark.parametrize(
    ("n_samples", "n_features", "n_classes", "missing"),
    [(3000, 6, 3, False), (600, 120, 4, False), (1500, 40, 10, False), (800, 12, 2, True)],
)
def test_a_search_ends_with_its_time_budget(rng, monkeypatch, n_samples, n_features, n_classes, missing):
    """In processor time, at most 1.3 times the budget beside the final fit."""
    y = np.arange(n_samples) % n_classes
    X = rng.standard_t(4, size=(n_samples, n_features)) + rng.normal(size=(n_classes, n_features))[y]
    if missing:
        X[rng.random(X.shape) < 0.1] = np.nan
    spent, budget = {}, 1.0

    def timed(plain, name, *args):
        began = time.process_time()
        result = plain(*args)
        spent[name] = time.process_time() - began
        return result

    for step in ("select", "train"):
        monkeypatch.setattr(training, step, partial(timed, getattr(training, step), step))
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    began = time.process_time()
    model = MixtureClassifier(random_state=0, time_budget=budget).fit(X, y)
    whole = time.process_time() - began
    assert whole - spent["train"] < 1.3 * budget + 0.1
    assert len(model.search_) >= 1
    assert spent["select"] > 0.3 * budget
