"""Extended Baum-Welch: laws over every covariance, its twin, its gradient."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import reference
import reference_baum_welch
from cases import (
    COVARIANCES,
    KINDS,
    PRIORS,
    UPDATED,
    VARIANCES,
    assert_close,
    assert_same_mixture,
    every_updated_covariance,
    problem_of,
    random_data,
    random_mixture,
    tensor,
)
from mixtura.model.mixture import Mixture
from mixtura.objectives import Conditional
from mixtura.solvers import EM, BaumWelch, EarlyStopping, Outcome, Problem, run
from mixtura.solvers.baum_welch import maximising_weights

pytestmark = pytest.mark.usefixtures("one_thread")

some_kinds = pytest.mark.parametrize("name", ["all_hard", "all_soft"])
some_priors = pytest.mark.parametrize("prior_name", ["no_prior", "everything"])


def conditional(source, prior=None, **options) -> Problem:
    return problem_of(source, prior, Conditional(), **options)


def prior_of(name, device="cpu"):
    return PRIORS[name][0](tensor(VARIANCES, device))


@every_updated_covariance
@some_kinds
@some_priors
def test_no_step_lowers_the_objective(case, name, prior_name, rng, device, dtype):
    source = random_data(KINDS[name], rng, dtype, n_rows=200).source(device, dtype)
    solver, problem = BaumWelch(), conditional(source, prior_of(prior_name, device))
    progress = solver.init(problem, random_mixture(case, rng, device))
    values = [progress.value]
    for _ in range(6):
        progress, info = solver.step(problem, progress)
        assert info.value == values[-1]
        values.append(progress.value)
    assert (np.diff(values) >= 0).all(), values
    assert values[-1] > values[0] + 0.1
    assert torch.isfinite(progress.mixture.covariances).all()
    assert_close(progress.mixture.weights.sum(), 1.0)


@every_updated_covariance
@pytest.mark.parametrize("name", ["all_hard", "all_soft"])
@some_priors
def test_a_step_equals_the_twin(case, name, prior_name, rng, device, dtype, tolerance):
    mixture, data = random_mixture(case, rng, device), random_data(KINDS[name], rng, dtype)
    source = data.source(device, dtype)
    solver, problem = BaumWelch(), conditional(source, prior_of(prior_name, device))
    progress = solver.init(problem, mixture)
    constants = solver.constants(problem, progress, 1.5, solver.anchor(progress, 0))
    new = solver.update(problem, progress, 1.5)
    twin = reference.twin_of(mixture)
    actual = reference.evaluated(twin, data, reference.conditional)
    assert (constants.cpu().numpy() >= 1.5 * actual.denominator.sum(0) * (1 - 1e-9)).all()
    tensors = {key: part.cpu().numpy() for key, part in mixture.covariance.tensors().items()}
    means, covariances = reference_baum_welch.updated(
        data.rows, actual, constants.cpu().numpy(), twin, case.groups(tensors), case.restricted(tensors),
        PRIORS[prior_name][1],
    )  # fmt: skip
    assert_close(new.means, means, 10 * tolerance)
    assert_close(new.covariances, covariances, 10 * tolerance)


@every_updated_covariance
def test_half_of_d_makes_covariances_definite_and_a_quarter_does_not(case, rng, device):
    data = random_data(KINDS["labels"], rng)
    source = data.source(device)
    mixture = random_mixture(case, rng, device)
    solver, problem = BaumWelch(), conditional(source)
    progress = solver.init(problem, mixture)
    constants = solver.constants(problem, progress, 1e-6, solver.anchor(progress, 0)).cpu().numpy()
    lowest = 1e-6 * progress.summary.denominator_counts.cpu().numpy()
    raised = constants > 1.5 * lowest
    assert raised.any()
    twin = reference.twin_of(mixture)
    actual = reference.evaluated(twin, data, reference.conditional)
    tensors = {key: part.cpu().numpy() for key, part in mixture.covariance.tensors().items()}
    groups, restricted = case.groups(tensors), case.restricted(tensors)

    def sound(d):
        with np.errstate(all="ignore"):
            _, matrices = reference_baum_welch.updated(data.rows, actual, d, twin, groups, restricted)
        counts = (actual.numerator - actual.denominator).sum(0) + d
        group_counts = np.array([counts[groups == g].sum() for g in groups])
        return (group_counts > 0) & (np.linalg.eigvalsh(matrices).min(-1) > 0)

    assert sound(constants / 2).all()
    if case in (COVARIANCES["full"], COVARIANCES["diag"]):  # others are pooled, averaged, or stepped towards
        assert not sound(constants / 4)[raised].any()


def test_momentum_carries_the_moments_on(rng, device):
    source = random_data(KINDS["labels"], rng).source(device)
    first, second = (random_mixture(COVARIANCES["full"], rng, device) for _ in range(2))
    solver, problem = BaumWelch(), conditional(source)
    progress = replace(solver.init(problem, second), previous=problem.move_for_updates(first))
    anchor = solver.anchor(progress, 3)  # half of the last step once more
    off = second.means - first.means
    assert_close(anchor.counts, np.ones(5))
    assert_close(anchor.firsts, 0.5 * off)
    before = first.covariances + off.unsqueeze(-1) * off.unsqueeze(-2)  # about the new means
    assert_close(anchor.seconds[0], 1.5 * second.covariances - 0.5 * before)
    assert_close(solver.anchor(progress, 0).seconds[0], second.covariances)


def test_mixtures_of_a_stored_state_move_to_where_updates_are_computed(rng, monkeypatch):
    """On a GPU a file gives them back on the device of the rows, and the moments of few parameters are on the host."""
    solver, problem = BaumWelch(), conditional(random_data(KINDS["all_hard"], rng, n_rows=60).source())
    state, moved, used = solver.init(problem, random_mixture(COVARIANCES["full"], rng)), [], []
    for _ in range(2):
        state, _ = solver.step(problem, state)
    update, move = BaumWelch.update, Problem.move_for_updates

    def move_and_remember(self, mixture):
        moved.append(replace(move(self, mixture)))  # another object, as on another device
        return moved[-1]

    def remember(self, problem, now, *others):
        used.extend((now.mixture, now.previous))
        return update(self, problem, now, *others)

    monkeypatch.setattr(Problem, "move_for_updates", move_and_remember)
    monkeypatch.setattr(BaumWelch, "update", remember)
    solver.step(problem, replace(state, _summary=None))
    assert used
    assert all(any(part is other for other in moved) for part in used)


def test_without_a_denominator_it_is_em(rng, device, dtype, tolerance):
    source = random_data(KINDS["all_hard"], rng, dtype).source(device, dtype)
    for case in UPDATED.values():
        mixture, prior = random_mixture(case, rng, device), prior_of("everything", device)
        solver, problem = BaumWelch(), problem_of(source, prior)
        state, info = solver.step(problem, solver.init(problem, mixture))
        expected, expected_info = EM().step(problem, mixture)
        assert_same_mixture(solver.result(state), expected, max(tolerance, 1e-7))
        assert_close(info.value, expected_info.value, tolerance)


@every_updated_covariance
def test_fixed_class_probabilities_are_kept(case, rng, device):
    source = random_data(KINDS["all_hard"], rng, n_rows=200).source(device)
    class_prior = torch.tensor([0.2, 0.7, 0.1], dtype=torch.float64, device=device)
    solver, problem = BaumWelch(), conditional(source, class_prior=class_prior)
    progress = solver.init(problem, random_mixture(case, rng, device).with_class_prior(class_prior))
    for _ in range(3):
        before = progress.value
        progress, _ = solver.step(problem, progress)
        assert progress.value > before
        assert_close(progress.mixture.log_class_prior.exp(), class_prior)


def free_value(case, mixture, tensors, prior, source) -> torch.Tensor:
    """Objective plus log prior, differentiable in log weights, means and the tensors of the covariance."""
    covariance = case.structure.from_tensors(tensors)
    log_weights = mixture.log_weights - mixture.log_weights.logsumexp(0)
    block = next(iter(source.blocks()))
    distances = covariance.squared_distances(block.rows - mixture.means.unsqueeze(1))  # (K, n)
    log_joint = (log_weights.unsqueeze(-1) - 0.5 * (distances + covariance.log_determinants.unsqueeze(-1))).T
    own = log_joint.masked_fill(block.labels.unsqueeze(-1) != mixture.class_of, -torch.inf)
    value = (own.logsumexp(1) - log_joint.logsumexp(1)).sum()
    return value + prior.log_density(replace(mixture, log_weights=log_weights, covariance=covariance))


@every_updated_covariance
def test_short_steps_follow_the_gradient(case, rng, device):
    """D times a step tends to Sigma times the gradient by the means, so that it rests where the gradient is zero."""
    source = random_data(KINDS["labels"], rng).source(device)
    mixture, prior = random_mixture(case, rng, device), prior_of("everything", device)
    solver, problem = BaumWelch(), conditional(source, prior)
    progress = solver.init(problem, mixture)
    constants = solver.constants(problem, progress, 1e7, solver.anchor(progress, 0))
    new, constants = solver.update(problem, progress, 1e7).to(device), constants.to(device)
    leaves = {key: part.clone() for key, part in mixture.covariance.tensors().items()}
    floats = [part.requires_grad_() for part in leaves.values() if part.is_floating_point()]
    means = mixture.means.clone().requires_grad_()
    moving = Mixture(mixture.log_weights, means, mixture.covariance, mixture.class_of)
    value = free_value(case, moving, leaves, prior, source)
    by_means, *by_tensors = torch.autograd.grad(value, [means, *floats])
    expected = (mixture.covariances @ by_means.unsqueeze(-1)).squeeze(-1)
    assert_close(constants.unsqueeze(-1) * (new.means - mixture.means), expected, 1e-4)
    pairs = zip(new.covariance.tensors().items(), mixture.covariance.tensors().values(), strict=True)
    changes = [(after - before) for (_, after), before in pairs if after.is_floating_point()]
    slope = sum((change * by).sum() for change, by in zip(changes, by_tensors, strict=True))
    assert slope > 0
    if "matrices" in leaves and case is COVARIANCES["full"]:
        natural = 2 * mixture.covariances @ by_tensors[0] @ mixture.covariances
        assert_close(constants[:, None, None] * changes[0], 0.5 * (natural + natural.mT), 1e-4, scale=10)


def test_weights_are_those_of_the_growth_transform(rng):
    weights = rng.dirichlet(np.ones(6))
    numerators, denominators = rng.uniform(0, 5, 6), rng.uniform(0, 5, 6)
    actual = maximising_weights(
        *(torch.from_numpy(v) for v in (np.log(weights), numerators, denominators)), [slice(0, 6)], [1.0]
    )
    assert_close(actual.exp(), reference_baum_welch.grow_weights(weights, numerators, denominators), 1e-6)


def test_weights_of_any_size_stay_finite(rng):
    """Components that nearly vanished, with counts to match: a root right beside a pole."""
    log_weights = torch.tensor([-85.0, -1.1, -1.05, -87.0, -49.0, -1.12], dtype=torch.float64)
    weights = (log_weights - log_weights.logsumexp(0)).exp()
    denominators = 400 * weights * torch.from_numpy(rng.uniform(0.5, 2, 6))
    numerators = 400 * weights * torch.from_numpy(rng.uniform(0.5, 2, 6))
    actual = maximising_weights(weights.log(), numerators, denominators, [slice(0, 6)], [1.0])
    assert torch.isfinite(actual).all()
    main = [1, 2, 5]
    twin = reference_baum_welch.grow_weights(*(v[main].numpy() for v in (weights, numerators, denominators)))
    assert_close(actual[main].exp(), twin, 1e-6)


def test_weights_rest_where_both_sides_agree(rng):
    weights = torch.from_numpy(rng.dirichlet(np.ones(5)))
    counts = torch.from_numpy(rng.uniform(1, 5, 5))
    assert_close(maximising_weights(weights.log(), counts, counts, [slice(0, 5)], [1.0]).exp(), weights)


def test_weights_of_groups_keep_their_totals_and_vanish_without_numerators(rng):
    log_weights = torch.tensor([0.3, 0.2, 0.4, 0.1], dtype=torch.float64).log()
    numerators = torch.tensor([3.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    denominators = torch.tensor([1.0, 1.0, 2.0, 0.0], dtype=torch.float64)
    actual = maximising_weights(log_weights, numerators, denominators, [slice(0, 2), slice(2, 4)], [0.5, 0.5])
    assert_close(actual[:2].exp(), [0.5, 0.0])
    assert torch.equal(actual[2:], log_weights[2:])  # nothing asks for another share


def test_it_ends_where_nothing_is_to_be_gained(rng, device):
    source = random_data(KINDS["labels"], rng).source(device)
    solver, problem = BaumWelch(), conditional(source, prior_of("everything", device))
    result = run(solver, problem, random_mixture(COVARIANCES["diag"], rng, device), max_iter=2000, tol=1e-9)
    assert result.outcome is Outcome.CONVERGED
    mixture = result.mixture
    means = mixture.means.clone().requires_grad_()
    moving = Mixture(mixture.log_weights, means, mixture.covariance, mixture.class_of)
    leaves = {"entries": mixture.covariance.entries.clone().requires_grad_()}
    value = free_value(COVARIANCES["diag"], moving, leaves, prior_of("everything", device), source)
    for gradient in torch.autograd.grad(value, [means, *leaves.values()]):
        assert gradient.abs().max() < 1e-2


def test_it_stops_at_the_best_held_out_score(rng, device):
    """Few rows and no prior: the conditional likelihood of other rows rises first and falls later."""
    data = random_data(KINDS["labels"], rng, n_rows=400)
    source, others = data.select(np.arange(40)).source(device), data.select(np.arange(40, 400)).source(device)
    solver, problem = BaumWelch(), conditional(source)

    def score(mixture) -> float:
        return solver.init(conditional(others), mixture).value

    start = random_mixture(COVARIANCES["diag"], rng, device)
    result = run(solver, problem, start, max_iter=300, tol=0.0, held_out=EarlyStopping(score, interval=2, patience=5))
    assert result.outcome is Outcome.HELD_OUT
    last = run(solver, problem, start, max_iter=len(result.history), tol=0.0)
    assert score(result.mixture) > score(last.mixture)
    assert score(result.mixture) >= score(start)
    assert score(result.mixture) == dict(result.scores)[result.best_iteration]
