"""The automatic choice: leave-one-out and temperature against slow twins, and what is chosen."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from scipy.stats import multivariate_normal

from cases import assert_close
from mixtura.init.starts import bisected
from mixtura.model.temperature import Temperature
from mixtura.selection.leave_one_out import ClassScatters, leave_one_out
from mixtura.selection.temperature import PRIOR_SCALE, estimate_temperature, grid, tempered_losses

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("dense", [False, True])
def test_leave_one_out_is_what_fits_without_the_sample_give(rng, dense):
    rows, labels = rng.normal(size=(20, 3)) @ rng.normal(size=(3, 3)), np.arange(20) % 3
    weights = rng.integers(1, 4, size=20).astype(float)
    target = np.cov(rows.T) if dense else rows.var(0)
    given = (torch.from_numpy(rows), torch.from_numpy(labels), torch.from_numpy(weights))
    found = leave_one_out(ClassScatters.of(*given, 3), torch.from_numpy(target), (0.5, 30.0), None)
    for number, strength in enumerate((0.5, 30.0)):
        for left_out in (0, 7, 19):
            fewer = weights.copy()
            fewer[left_out] -= 1
            for c in range(3):
                own = labels == c
                count, mean = fewer[own].sum(), np.average(rows[own], axis=0, weights=fewer[own])
                scatter = (rows[own] - mean).T @ ((rows[own] - mean) * fewer[own, None])
                prior = strength * (target if dense else np.diag(target))
                density = multivariate_normal(mean, (scatter + prior) / (count + strength))
                expected = np.log(count / fewer.sum()) + density.logpdf(rows[left_out]) + 1.5 * np.log(2 * np.pi)
                assert_close(found[number, left_out, c], expected)


def test_the_only_sample_of_a_class_is_not_judged(rng):
    rows, labels = torch.from_numpy(rng.normal(size=(5, 2))), torch.tensor([0, 0, 0, 0, 1])
    classes = ClassScatters.of(rows, labels, torch.ones(5, dtype=torch.float64), 2)
    found = leave_one_out(classes, torch.ones(2, dtype=torch.float64), (1.0,), None)
    assert found[0].isnan().any(1).tolist() == [False] * 4 + [True]


def test_the_temperature_divides_log_joints_before_the_softmax(rng):
    scores, observed = rng.normal(size=(3, 6)) * 5, np.linspace(0, 1, 6)
    found = Temperature(2.5).apply(torch.from_numpy(scores), torch.from_numpy(observed)).log_softmax(0)
    assert_close(found, log_softmax(scores / (1 + 1.5 * observed), axis=0))
    assert_close(found[:, 0], log_softmax(scores[:, 0]))  # nothing observed: the class prior as it is


def test_a_changed_class_prior_acts_after_the_temperature(rng):
    old, new = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    densities = rng.normal(size=(3, 6))
    before = densities + np.log(old)[:, None]
    after = torch.from_numpy(densities + np.log(new)[:, None])
    found = Temperature(3.0, torch.from_numpy(np.log(new / old))).apply(after).softmax(0).numpy()
    expected = np.exp(log_softmax(before / 3, axis=0)) * (new / old)[:, None]
    assert_close(found, expected / expected.sum(0))


def test_the_temperature_of_many_samples_is_the_one_that_their_labels_were_drawn_with(rng):
    scores = torch.from_numpy(rng.normal(size=(4000, 3)) * 6)
    drawn = torch.distributions.Categorical(logits=scores / 3)
    torch.manual_seed(0)
    shares = torch.nn.functional.one_hot(drawn.sample(), 3).double()
    losses = tempered_losses(scores, shares, torch.ones(4000, dtype=torch.float64))
    best = estimate_temperature(losses, torch.ones(4000, dtype=torch.float64))
    assert abs(float(grid(losses)[best]) / 3 - 1) < 0.12
    direct = -(shares * (scores / grid(losses)[best]).log_softmax(1)).sum(1)
    assert_close(losses[best], direct)


def test_few_samples_without_errors_do_not_make_posteriors_certain():
    scores = torch.tensor([[0.0, -2.0]] * 10, dtype=torch.float64)
    shares = torch.tensor([[1.0, 0.0]] * 10, dtype=torch.float64)
    losses = tempered_losses(scores, shares, torch.ones(10, dtype=torch.float64))
    temperatures = grid(losses)
    assert float(temperatures[losses.sum(1).argmin()]) < 0.31  # alone they ask for the smallest temperature
    best = estimate_temperature(losses, torch.ones(10, dtype=torch.float64))
    assert 0.5 < float(temperatures[best]) < 1
    assert_close(temperatures.log().abs().min(), 0.0)
    assert PRIOR_SCALE < 1


def test_bisected_centres_follow_weights_as_repetitions(rng):
    rows, weights = rng.normal(size=(40, 3)), rng.integers(1, 4, size=40)
    weighted = bisected(torch.from_numpy(rows), torch.from_numpy(weights).double(), 5)
    repeated = np.repeat(rows, weights, axis=0)
    plain = bisected(torch.from_numpy(repeated), torch.ones(len(repeated), dtype=torch.float64), 5)
    order = [np.lexsort(centres.numpy().T) for centres in (weighted, plain)]
    assert_close(weighted[order[0].copy()], plain[order[1].copy()])
    same = bisected(torch.zeros(4, 2, dtype=torch.float64), torch.ones(4, dtype=torch.float64), 3)
    assert_close(same, np.zeros((3, 2)))
