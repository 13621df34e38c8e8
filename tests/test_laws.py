"""Laws of fitting, over every covariance structure and every kind of data."""

import numpy as np
import pytest
import torch

import reference
from cases import (
    COVARIANCES,
    KINDS,
    N_FEATURES,
    N_ROWS,
    PRIORS,
    SOLVERS,
    VARIANCES,
    Data,
    assert_close,
    assert_same_mixture,
    every_covariance,
    every_kind,
    every_prior,
    every_solver,
    every_updated_covariance,
    frame_on,
    main_kinds,
    problem_of,
    random_data,
    random_mixture,
    tensor,
    updated_twin,
)
from mixtura.covariances import LowRank
from mixtura.engine.evaluator import computing_dtype
from mixtura.engine.sources import TensorSource, locate
from mixtura.files.codec import Decoder, Encoder
from mixtura.files.registry import on_device
from mixtura.model.mixture import Mixture
from mixtura.solvers import EM, run
from mixtura.solvers import SOLVERS as REGISTRY
from mixtura.values.extents import Frame

pytestmark = pytest.mark.usefixtures("one_thread")

N_MANY = 200  # enough that no component of these mixtures collapses without a prior


def stepped(mixture, data, device="cpu", dtype=torch.float64, n_steps=1, **options) -> Mixture:
    """After some steps of EM."""
    problem = problem_of(data.source(device, dtype), **options)
    for _ in range(n_steps):
        mixture, _ = EM().step(problem, mixture)
    return mixture


def iterative(case) -> bool:
    """Whether the structure reaches its maximum only over several steps."""
    return isinstance(getattr(case.structure, "inner", case.structure), LowRank)


def test_every_solver_of_the_registry_is_in_the_table():
    assert {solver.name for solver, _, _ in SOLVERS.values()} == set(REGISTRY)


def constant_of(prior) -> float:
    """Of the twin's density of the means, which the prior leaves out."""
    n_means = 5 if prior.mean_count else 0
    return -0.5 * n_means * N_FEATURES * np.log(2 * np.pi / max(prior.mean_count, 1))


# ---- solvers -----------------------------------------------------------------------------------------------------


@every_solver
@pytest.mark.parametrize("name", ["full", "tied_diag", "low_rank_2"])
def test_steps_raise_the_objective(solver, objective, monotone, name, rng, device):
    source = random_data(KINDS["labels"], rng, n_rows=60).source(device)
    problem, values = problem_of(source, PRIORS["everything"][0](tensor(VARIANCES, device)), objective), []
    state = solver.init(problem, random_mixture(COVARIANCES[name], rng, device))
    for _ in range(6):
        state, info = solver.step(problem, state)
        values.append(info.value)
    assert values[-1] > values[0] + 0.01
    assert not monotone or (np.diff(values) >= -1e-12).all()


@every_solver
def test_a_step_leaves_the_state_before_it_as_it_was(solver, objective, monotone, rng, device):
    problem = problem_of(random_data(KINDS["labels"], rng, n_rows=60).source(device), objective=objective)
    start = random_mixture(COVARIANCES["full"], rng, device)
    first, _ = solver.step(problem, solver.init(problem, start))
    before = solver.result(first)
    second, _ = solver.step(problem, first)
    assert_same_mixture(solver.result(first), before, 1e-14)
    assert (solver.result(second).means - before.means).abs().max() > 1e-6
    again, _ = solver.step(problem, first)
    assert torch.equal(solver.result(again).means, solver.result(second).means)


@every_solver
@pytest.mark.parametrize("n_steps", [0, 3])
def test_a_stored_state_goes_on_as_the_one_in_memory(solver, objective, monotone, n_steps, rng, device):
    source = random_data(KINDS["labels"], rng, n_rows=60).source(device)
    start = random_mixture(COVARIANCES["full"], rng, device)
    problem = problem_of(source, PRIORS["everything"][0](tensor(VARIANCES, device)), objective)
    state = solver.init(problem, start)
    for _ in range(n_steps):
        state, _ = solver.step(problem, state)
    encoder = Encoder()
    code = encoder.encode(state, "state")
    other = problem_of(source, PRIORS["everything"][0](tensor(VARIANCES, device)), objective)
    restored = on_device(Decoder(encoder.tensors).decode(code), device)
    for _ in range(3):
        state, info = solver.step(problem, state)
        restored, other_info = solver.step(other, restored)
        assert other_info.value == pytest.approx(info.value, rel=1e-12)
    assert_same_mixture(solver.result(restored), solver.result(state), 1e-9)


# ---- EM ----------------------------------------------------------------------------------------------------------


@every_updated_covariance
@main_kinds
@every_prior
def test_an_em_step_equals_the_twin(case, name, make_prior, twin_prior, rng, device, dtype, tolerance):
    mixture, data = random_mixture(case, rng, device), random_data(KINDS[name], rng, dtype)
    source = data.source(device, dtype)
    updated, info = EM().step(problem_of(source, make_prior(tensor(VARIANCES, device))), mixture)
    twin = reference.twin_of(mixture)
    expected = reference.evaluated(twin, data, reference.joint)
    assert_same_mixture(updated, updated_twin(case, mixture, data.rows, expected.numerator, twin_prior), tolerance)
    log_prior = 0.0
    if twin_prior is not None:
        groups = case.groups({key: part.cpu().numpy() for key, part in mixture.covariance.tensors().items()})
        log_prior = twin_prior.log_density(twin, groups) - constant_of(twin_prior)
    assert_close(info.value, (expected.value + log_prior) / expected.weight, tolerance)
    assert info.repairs == ()


@every_updated_covariance
@pytest.mark.parametrize("path", ["exact", "mixed"])
def test_an_em_step_does_not_depend_on_the_path(case, path, rng, device, dtype, tolerance):
    mixture, source = (
        random_mixture(case, rng, device),
        random_data(KINDS["all_hard"], rng, dtype).source(device, dtype),
    )
    frame = locate(source)
    expected, expected_info = EM().step(problem_of(source), mixture)
    frame = frame_on(path, mixture, frame, computing_dtype(source))
    updated, info = EM().step(problem_of(source, frame=frame), mixture)
    assert_same_mixture(updated, expected, tolerance)
    assert_close(info.value, expected_info.value, tolerance)


@every_updated_covariance
@every_kind
@every_prior
def test_no_step_lowers_the_objective(case, kind, make_prior, twin_prior, rng, device, dtype, tolerance):
    mixture, values = random_mixture(case, rng, device), []
    source = random_data(kind, rng, dtype, n_rows=N_MANY).source(device, dtype)
    problem = problem_of(source, make_prior(tensor(VARIANCES, device)))
    for _ in range(8):
        mixture, info = EM().step(problem, mixture)
        values.append(info.value)
    assert (np.diff(values) >= -1e-3 * tolerance).all(), values
    assert values[-1] > values[0] + 0.01


@every_updated_covariance
def test_fixed_class_probabilities_are_kept_and_the_objective_still_rises(case, rng, device):
    source = random_data(KINDS["all_hard"], rng, n_rows=N_MANY).source(device)
    class_prior = torch.tensor([0.2, 0.7, 0.1], dtype=torch.float64, device=device)
    problem = problem_of(source, class_prior=class_prior)
    mixture = random_mixture(case, rng, device).with_class_prior(class_prior)
    values = []
    for _ in range(8):
        mixture, info = EM().step(problem, mixture)
        values.append(info.value)
        assert_close(mixture.log_class_prior.exp(), class_prior)
    assert (np.diff(values) >= -1e-12).all()


def test_a_class_without_rows_keeps_a_fixed_probability(rng, device):
    data = random_data(KINDS["labels"], rng)
    data = data.changed(labels=np.where(data.labels == 1, 0, data.labels))
    class_prior = torch.tensor([0.2, 0.7, 0.1], dtype=torch.float64, device=device)
    updated = stepped(random_mixture(COVARIANCES["full"], rng, device), data, device, class_prior=class_prior)
    assert_close(updated.log_class_prior.exp(), class_prior)


@every_updated_covariance
def test_a_component_without_rows_keeps_its_place_and_loses_its_weight(case, rng, device):
    data = random_data(KINDS["labels"], rng)
    data = data.changed(labels=np.where(data.labels == 1, 0, data.labels))
    mixture = random_mixture(case, rng, device)
    updated = stepped(mixture, data, device)
    assert_close(updated.means[2], mixture.means[2])
    assert updated.weights[2] == 0
    assert_close(updated.weights.sum(), 1.0)
    assert torch.isfinite(updated.covariances).all()
    again = stepped(updated, data, device)
    assert_close(again.means[2], mixture.means[2])


@every_updated_covariance
def test_a_step_does_not_change_the_mixture_it_was_given(case, rng, device):
    mixture, data = random_mixture(case, rng, device), random_data(KINDS["all_hard"], rng)
    before = [part.clone() for part in (mixture.log_weights, mixture.means, mixture.covariances)]
    rows = data.rows.copy()
    stepped(mixture, data, device)
    for part, kept in zip((mixture.log_weights, mixture.means, mixture.covariances), before, strict=True):
        assert torch.equal(part, kept)
    assert np.array_equal(data.rows, rows, equal_nan=True)


@every_updated_covariance
def test_a_mixture_fed_its_own_moments_stays(case, rng, device):
    mixture = random_mixture(case, rng, device)
    frame = Frame(mixture.means[0], torch.ones_like(mixture.means[0]))
    problem = problem_of(TensorSource(mixture.means), frame=frame)
    counts = 57.0 * mixture.weights
    assert_same_mixture(EM().m_step(problem, mixture, mixture.own_moments(counts)), mixture)
    moved = mixture.own_moments(counts).about(torch.full_like(mixture.means[0], 3.0))
    assert_same_mixture(EM().m_step(problem, mixture, moved), mixture)


# ---- weights and rows --------------------------------------------------------------------------------------------


@every_updated_covariance
@main_kinds
@every_prior
def test_weight_two_is_a_row_repeated(case, name, make_prior, twin_prior, rng, device, dtype, tolerance):
    mixture, data = random_mixture(case, rng, device), random_data(KINDS[name], rng, dtype, n_rows=N_MANY)
    twice = rng.random(N_MANY) < 0.4
    base = np.ones(N_MANY) if data.weights is None else data.weights
    weighted = data.changed(weights=np.where(twice, 2 * base, base))
    repeated = data.select(np.repeat(np.arange(N_MANY), 1 + twice))
    prior = make_prior(tensor(VARIANCES, device))
    first, second = (stepped(mixture, d, device, dtype, n_steps=3, prior=prior) for d in (weighted, repeated))
    assert_same_mixture(first, second, tolerance)


@every_updated_covariance
def test_weight_zero_is_a_row_left_out(case, rng, device, dtype, tolerance):
    mixture, data = random_mixture(case, rng, device), random_data(KINDS["missing"], rng, dtype, n_rows=N_MANY)
    kept = rng.random(N_MANY) < 0.7
    weighted, fewer = data.changed(weights=kept.astype(float)), data.select(kept)
    first, second = (stepped(mixture, d, device, dtype, n_steps=5) for d in (weighted, fewer))
    assert_same_mixture(first, second, tolerance)


@every_updated_covariance
def test_an_empty_row_votes_for_the_mixture_as_it_is(case, rng, device, dtype, tolerance):
    """A component's share of it is a row at its own mean, spread as itself: its own moments."""
    mixture, data = random_mixture(case, rng, device), random_data(KINDS["complete"], rng, dtype)
    empty = np.full((6, N_FEATURES), np.nan)
    more = Data(np.concatenate([data.rows, empty]))
    first, second = (stepped(mixture, d, device, dtype) for d in (data, more))
    expected = (N_ROWS * first.weights + 6 * mixture.weights) / (N_ROWS + 6)
    assert_close(second.weights, expected, tolerance)
    twin = reference.twin_of(mixture)
    responsibilities = reference.evaluated(twin, more, reference.joint).numerator
    assert_same_mixture(second, updated_twin(case, mixture, more.rows, responsibilities), tolerance)


# ---- units -------------------------------------------------------------------------------------------------------


def in_other_units(mixture, scales, shift) -> Mixture:
    """The mixture of scales * x + shift."""
    scales, shift = (tensor(part, mixture.means.device) for part in (scales, shift))
    covariance = mixture.covariance.scaled(scales)
    return Mixture(mixture.log_weights, mixture.means * scales + shift, covariance, mixture.class_of)


@every_updated_covariance
@main_kinds
def test_translation_moves_the_means_and_nothing_else(case, name, rng, device):
    mixture, data = random_mixture(case, rng, device), random_data(KINDS[name], rng, n_rows=N_MANY)
    shift, ones = np.full(N_FEATURES, 1e4), np.ones(N_FEATURES)
    moved = stepped(in_other_units(mixture, ones, shift), data.changed(rows=data.rows + shift), device, n_steps=3)
    expected = stepped(mixture, data, device, n_steps=3)
    assert_same_mixture(in_other_units(moved, ones, -shift), expected, 1e-7)


@every_updated_covariance
@main_kinds
def test_units_of_a_column_do_not_matter(case, name, rng, device):
    mixture, data = random_mixture(case, rng, device), random_data(KINDS[name], rng, n_rows=N_MANY)
    one_scale = mixture.covariance.has_one_scale
    scales = np.full(N_FEATURES, 1e6) if one_scale else np.array([1.0, 1e6, 1.0, 1e-6])
    zeros = np.zeros(N_FEATURES)
    scaled = stepped(in_other_units(mixture, scales, zeros), data.changed(rows=data.rows * scales), device, n_steps=3)
    expected = stepped(mixture, data, device, n_steps=3)
    assert_same_mixture(in_other_units(scaled, 1 / scales, zeros), expected, 1e-8)


@every_updated_covariance
@main_kinds
def test_fitting_single_precision_rows_agrees_with_double(case, name, rng, device):
    mixture, data = random_mixture(case, rng, device), random_data(KINDS[name], rng, n_rows=N_MANY)
    single, double = (stepped(mixture, data, device, dtype, n_steps=3) for dtype in (torch.float32, torch.float64))
    assert_same_mixture(single, double, 1e-4 if device.type == "cpu" else 1e-2)


@every_updated_covariance
def test_two_tight_clusters_far_apart_keep_their_variances_in_single_precision(case, rng, device):
    """Clusters of scale 1, 2e4 apart: squares of the distance are beyond single precision."""
    n_rows = 400
    rows = rng.normal(size=(2 * n_rows, N_FEATURES))
    rows[n_rows:] += 2e4
    data = Data(rows.astype(np.float32).astype(float))
    start = random_mixture(case, rng, device, class_of=np.array([0, 0]))
    means = torch.tensor([[0.3], [2e4 - 0.3]], dtype=torch.float64, device=device).expand(2, N_FEATURES)
    start = Mixture(start.log_weights, means.contiguous(), start.covariance, start.class_of)
    fitted, expected = (stepped(start, data, device, dtype, n_steps=25) for dtype in (torch.float32, torch.float64))
    clusters = data.rows.reshape(2, n_rows, N_FEATURES)
    assert_close(fitted.means, clusters.mean(1), 1e-6)
    assert_close(fitted.covariance.variances(), expected.covariance.variances(), 1e-9 if device.type == "cpu" else 1e-2)
    assert (abs(fitted.covariance.variances() - 1) < 0.2).all()


@every_updated_covariance
def test_rows_far_from_zero_keep_their_variances_in_single_precision(case, rng, device):
    data = Data(rng.normal(1e4, 1, (500, N_FEATURES)).astype(np.float32).astype(float))
    start = random_mixture(case, rng, device, class_of=np.array([0]))
    start = Mixture(start.log_weights, start.means + 1e4, start.covariance, start.class_of)
    fitted = stepped(start, data, device, torch.float32, n_steps=60)
    assert_close(fitted.means[0], data.rows.mean(0), 1e-7)
    truth = data.rows.var(0)  # also that of a factor analyser at its maximum
    if not iterative(case):
        truth = np.diag(case.restricted({})(np.cov(data.rows.T, bias=True)[None])[0])
    assert_close(fitted.covariance.variances()[0], truth, 1e-2 if iterative(case) or device.type != "cpu" else 1e-9)


# ---- mixtures ----------------------------------------------------------------------------------------------------


@every_covariance
def test_draws_have_the_weights_means_and_covariances_of_the_mixture(case, rng, device, generator):
    mixture, n_rows = random_mixture(case, rng, device), 30_000
    rows, components = mixture.sample(n_rows, generator)
    assert (rows.shape, components.shape) == ((n_rows, N_FEATURES), (n_rows,))
    for k, (weight, mean, matrix) in enumerate(reference.twin_of(mixture)):
        own = rows[components == k].cpu().numpy()
        assert abs(len(own) / n_rows - weight) < 5 * np.sqrt(weight * (1 - weight) / n_rows)
        variances = np.diag(matrix)
        assert (abs(own.mean(0) - mean) < 5 * np.sqrt(variances / len(own))).all()
        error = np.sqrt((np.outer(variances, variances) + matrix**2) / len(own))
        assert (abs(np.cov(own.T) - matrix) < 5 * error).all()


@every_updated_covariance
def test_fitting_draws_recovers_the_mixture_that_made_them(case, rng, device, generator):
    mixture = random_mixture(case, rng, device)
    rows, components = mixture.sample(20_000, generator)
    data = Data(rows.cpu().numpy(), labels=components.cpu().numpy())
    source = data.source(device)
    labeled = Mixture(mixture.log_weights, mixture.means, mixture.covariance, torch.arange(5, device=device))
    fitted = run(EM(), problem_of(source), labeled, max_iter=5, tol=0.0).mixture
    assert_same_mixture(fitted, mixture, 0.15)


@every_covariance
def test_selected_components_are_a_mixture_of_their_own(case, rng, device):
    mixture = random_mixture(case, rng, device)
    chosen = mixture.select(slice(3, 5))
    assert_close(chosen.weights, mixture.weights[3:] / mixture.weights[3:].sum())
    assert_close(chosen.covariances, mixture.covariances[3:])
    assert (chosen.n_components, chosen.n_classes) == (2, 1)


@every_covariance
def test_other_class_probabilities_leave_the_classes_as_they_are(case, rng, device):
    mixture = random_mixture(case, rng, device)
    class_prior = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64, device=device)
    changed = mixture.with_class_prior(class_prior)
    assert_close(changed.log_class_prior.exp(), class_prior)
    rows = tensor(rng.normal(size=(5, N_FEATURES)), device)
    for part in mixture.class_slices:
        before, after = (m.log_joint(rows)[:, part].log_softmax(1) for m in (mixture, changed))
        assert_close(after, before)


@every_covariance
def test_a_mixture_on_another_device_is_the_same_mixture(case, rng, device):
    mixture = random_mixture(case, rng)
    moved = mixture.to(device)
    assert all(part.device.type == device.type for part in moved.covariance.tensors().values())
    assert_same_mixture(moved.to("cpu"), mixture, 0.0)


@every_covariance
def test_parameters_count_weights_means_and_covariances(case, rng, device):
    mixture = random_mixture(case, rng, device)
    assert mixture.n_parameters == 4 + 5 * N_FEATURES + mixture.covariance.n_parameters
