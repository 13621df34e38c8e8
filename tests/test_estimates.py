"""The honest estimate: a twin in loops, the rule that it repeats, and its bias where labels are noise."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris, load_wine

from cases import assert_close
from mixtura import GaussianMixture, MixtureClassifier, load
from mixtura.datasets import make_ripley
from mixtura.selection import estimates
from mixtura.selection.estimates import FEWEST_BOOTSTRAPS, LEVEL, N_BOOTSTRAPS, estimate_performance
from mixtura.selection.members import select_members
from mixtura.selection.search import Estimate

N_SAMPLES = 60


@pytest.fixture
def problem(rng):
    """Log probabilities of two models, (2, n, 3), soft labels and weights of 30 samples."""
    models = torch.from_numpy(rng.normal(size=(2, 30, 3))).log_softmax(2)
    shares = torch.from_numpy(rng.dirichlet(np.ones(3), size=30))
    shares[:20] = torch.eye(3, dtype=torch.float64)[torch.arange(20) % 3]
    return models, shares, torch.from_numpy(rng.uniform(0.5, 2.0, 30))


def test_the_estimate_is_that_of_the_twin(problem):
    models, shares, weights = problem

    def rule(inside):
        losses = -(models * shares).sum(2) @ inside
        return models[int(losses.argmin())]

    generator, losses, errors = torch.Generator().manual_seed(0), [], []
    for _ in range(N_BOOTSTRAPS):
        drawn = torch.randint(30, (30,), generator=generator).tolist()
        totals = [-sum(float(weights[i] * shares[i] @ model[i]) for i in drawn) for model in models]
        best = models[int(np.argmin(totals))]
        outside = [i for i in range(30) if i not in drawn]
        own = np.array([float(weights[i]) for i in outside])
        losses.append(own @ [-float(shares[i] @ best[i]) for i in outside] / own.sum())
        errors.append(own @ [1 - float(shares[i, best[i].argmax()]) for i in outside] / own.sum())
    estimate, ends = estimate_performance(rule, shares, weights), [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    assert estimate is not None
    assert np.isclose(estimate.log_loss, np.mean(losses))
    assert np.isclose(estimate.error, np.mean(errors))
    np.testing.assert_allclose(estimate.log_loss_interval, np.quantile(losses, ends))
    np.testing.assert_allclose(estimate.error_interval, np.quantile(errors, ends))


def test_a_class_without_a_share_costs_nothing_and_a_single_sample_has_no_estimate():
    shares = torch.eye(2, dtype=torch.float64).repeat(5, 1)
    certain = shares.log()  # minus infinity for the other class
    assert estimate_performance(lambda inside: certain, shares, torch.ones(10).double()).log_loss == 0
    assert estimate_performance(lambda inside: certain[:1], shares[:1], torch.ones(1).double()) is None


@pytest.mark.parametrize(("latest", "expected"), [(math.inf, N_BOOTSTRAPS), (0.0, FEWEST_BOOTSTRAPS)])
def test_bootstraps_end_with_the_time_but_for_a_few(latest, expected):
    shares, calls = torch.eye(2).double().repeat(20, 1), []
    estimate_performance(lambda inside: calls.append(1) or shares.log(), shares, torch.ones(40).double(), latest=latest)
    assert len(calls) == expected


@pytest.mark.parametrize("class_prior", ["empirical", "uniform"])
def test_the_rule_of_all_samples_is_that_of_the_selection(class_prior, monkeypatch):
    X, y = load_iris(return_X_y=True)
    X, y = X[10:], y[10:]
    seen = {}

    def watched(rule, shares, weights, *others):
        seen.update(rule=rule, shares=shares, weights=weights)
        return estimate_performance(rule, shares, weights, *others)

    monkeypatch.setattr(estimates, "estimate_performance", watched)
    model = MixtureClassifier(class_prior=class_prior, average=1, random_state=0).fit(X, y)
    log_posteriors, shares, weights = seen["rule"](seen["weights"]), seen["shares"], seen["weights"]
    log_prior = torch.from_numpy(model.class_prior_).log() - (weights @ shares / weights.sum()).log()
    own = (log_posteriors - log_prior).log_softmax(1)  # another class prior acts after the temperature
    loss = -float((shares * own).sum(1) @ weights / weights.sum())
    assert np.isclose(loss, model.search_.best.score, rtol=1e-9)
    some = torch.where(torch.arange(len(weights)) % 4 == 0, weights, 0.0)  # a poor sample selects another model
    assert not torch.allclose(seen["rule"](some), log_posteriors)


def test_bootstraps_do_not_know_the_class_frequencies_of_the_samples_that_they_leave_out(rng, monkeypatch):
    seen = {}

    def watched(rule, shares, weights, *others):
        seen.update(rule=rule, shares=shares, weights=weights)
        return estimate_performance(rule, shares, weights, *others)

    monkeypatch.setattr(estimates, "estimate_performance", watched)
    y = np.arange(N_SAMPLES) % 2
    MixtureClassifier(average=1, random_state=0).fit(rng.normal(size=(N_SAMPLES, 2)) + y[:, None], y)
    for factor in (1.0, 3.0):
        weights = seen["weights"] * torch.where(seen["shares"][:, 0] > 0.5, factor, 1.0)
        average = weights @ seen["rule"](weights).exp() / weights.sum()
        assert_close(average[0], factor / (factor + 1), 0.03)


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_the_rule_of_all_samples_selects_the_members(missing, rng, monkeypatch):
    X, y = load_wine(return_X_y=True)
    X, seen = np.where(rng.random(X.shape) < missing, np.nan, X), []

    def watched(losses, weights, *others):
        chosen = select_members(losses, weights, *others)
        seen.append(chosen)
        return chosen

    def ended(rule, shares, weights, *others):
        seen.append(rule(weights))

    monkeypatch.setattr(estimates, "select_members", watched)
    monkeypatch.setattr(estimates, "estimate_performance", ended)
    table = MixtureClassifier(random_state=0).fit(X, y).search_
    members, log_posteriors = seen
    assert log_posteriors.shape == (len(X), 3)
    assert list(dict.fromkeys(members)) == [table.chosen, *table.further]
    assert bool(table.further) == (missing > 0)


def test_an_average_that_does_not_pass_the_gate_is_not_kept(rng, monkeypatch):
    X, y = load_wine(return_X_y=True)
    X = np.where(rng.random(X.shape) < 0.2, np.nan, X)
    assert MixtureClassifier(random_state=0).fit(X, y).further_members_
    monkeypatch.setattr("mixtura.selection.members.GATE", 1e9)
    model = MixtureClassifier(random_state=0).fit(X, y)
    assert not model.further_members_
    assert not model.search_.further


def optimism(n_draws, first=0):
    """Estimates, and scores of the winner, minus the losses of new samples whose labels are fair coins, (2, draws)."""
    differences = []
    for seed in range(first, first + n_draws):
        rng = np.random.default_rng(seed)
        X, y, new = rng.normal(size=(N_SAMPLES, 4)), rng.integers(2, size=N_SAMPLES), rng.normal(size=(2000, 4))
        model = MixtureClassifier(random_state=seed).fit(X, y)
        fresh = -model.predict_log_proba(new).mean()  # both labels are equally probable
        differences.append((model.search_.estimate.log_loss - fresh, model.search_.best.score - fresh))
    return np.transpose(differences)


def check_optimism(n_draws):
    estimates, scores = optimism(n_draws)
    error = estimates.std() / np.sqrt(n_draws)
    assert -0.005 - 2 * error < estimates.mean() < 0.02 + 2 * error * (n_draws < 100)
    assert scores.mean() < estimates.mean() - 0.02  # what is corrected


def test_the_estimate_is_not_optimistic_where_labels_are_noise():
    check_optimism(20)


@pytest.mark.slow
def test_the_mean_of_many_estimates_is_not_optimistic_where_labels_are_noise():
    check_optimism(1000)


@pytest.mark.parametrize("kind", ["soft", "unlabeled", "missing", "weights"])
def test_every_kind_of_label_has_an_estimate(kind, rng):
    X, y = make_ripley(60, random_state=0)
    options, weights = {}, None
    labels = y
    if kind == "soft":
        labels = np.where(np.eye(2)[y] > 0, 0.9, 0.1)
    elif kind == "unlabeled":
        labels, options = np.where(rng.random(len(y)) < 0.3, -1, y), {"unlabeled": -1}
    elif kind == "missing":
        X = np.where(rng.random(X.shape) < 0.2, np.nan, X)
    else:
        weights = rng.integers(0, 3, len(y)).astype(float)
    estimate = MixtureClassifier(random_state=0, **options).fit(X, labels, weights).search_.estimate
    assert 0 <= estimate.error_interval[0] <= estimate.error <= estimate.error_interval[1] < 0.6
    assert 0 < estimate.log_loss_interval[0] < estimate.log_loss < estimate.log_loss_interval[1] < 1.5


def test_the_estimate_is_saved_frozen_and_printed(tmp_path):
    X, y = make_ripley(60, random_state=0)
    model = MixtureClassifier(random_state=0).fit(X, y)
    estimate = model.search_.estimate
    assert isinstance(estimate, Estimate)
    assert load(model.save(tmp_path / "model.mixtura") or tmp_path / "model.mixtura").search_.estimate == estimate
    assert f"log-loss {estimate.log_loss:.3f}" in str(estimate)
    with pytest.raises(dataclasses.FrozenInstanceError):
        estimate.error = 0.0
    assert GaussianMixture("auto", random_state=0).fit(X).search_.estimate is None
