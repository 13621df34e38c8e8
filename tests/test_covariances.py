"""Laws of every covariance structure, against dense matrices."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import reference
from cases import (
    CLASS_OF,
    COVARIANCES,
    N_FEATURES,
    assert_close,
    every_covariance,
    every_updated_covariance,
    image,
    low_rank,
    low_rank_precision,
    random_covariance,
    tensor,
    with_missing_values,
)
from mixtura.covariances import COVARIANCES as REGISTRY
from mixtura.covariances import FullCovariance, LowRank, LowRankPrecision, Spherical, Tied, automatic_rank
from mixtura.numerics import conditioning, linalg
from mixtura.numerics.low_rank_marginals import _blocks_of as blocks_of
from mixtura.values.moments import Moments, PseudoMoments

N_COMPONENTS, N_ROWS = len(CLASS_OF), 15


def deviations_of(rng, device):
    return tensor(rng.normal(size=(N_COMPONENTS, N_ROWS, N_FEATURES)), device)


def is_spherical(case) -> bool:
    return case.structure in (Spherical(), Tied(Spherical()))


def nothing_added(device, ridge=0.0) -> PseudoMoments:
    zeros = torch.zeros(N_FEATURES, dtype=torch.float64, device=device)
    return PseudoMoments(0.0, 0.0, 0.0, zeros, zeros, ridge)


def scatter_of(covariance, matrices, counts) -> Moments:
    """Moments about the means with these seconds (K, D, D)."""
    zeros = torch.zeros_like(matrices[:, 0])
    return Moments(counts, zeros, image(covariance.form, matrices), covariance.form, zeros)


def test_every_structure_of_the_registry_is_in_the_table():
    assert {make(1) for make in REGISTRY.values()} <= {case.structure for case in COVARIANCES.values()}


@every_covariance
def test_dense_and_variances_are_the_truth(case, rng, device):
    covariance, tensors = random_covariance(case, rng, device)
    assert_close(covariance.dense(), case.dense(tensors))
    assert_close(covariance.variances(), np.diagonal(case.dense(tensors), axis1=1, axis2=2))
    assert (covariance.n_components, covariance.n_features) == (N_COMPONENTS, N_FEATURES)
    assert not covariance.repaired.any()
    assert covariance.repaired.shape == (N_COMPONENTS,)


@every_covariance
def test_tensors_make_the_same_covariance_again(case, rng, device):
    covariance, _ = random_covariance(case, rng, device)
    assert torch.equal(case.structure.from_tensors(covariance.tensors()).dense(), covariance.dense())


@every_covariance
def test_parameters_are_counted_once_for_every_distinct_matrix(case, rng, device):
    covariance, tensors = random_covariance(case, rng, device)
    assert covariance.n_parameters == case.n_parameters(case.groups(tensors).max() + 1, N_FEATURES)


@every_covariance
def test_log_determinants_are_those_of_the_dense_matrices(case, rng, device):
    covariance, tensors = random_covariance(case, rng, device)
    expected = np.linalg.slogdet(case.dense(tensors))[1]
    assert_close(covariance.log_determinants, expected)
    _, firsts = np.unique(case.groups(tensors), return_index=True)
    assert_close(covariance.distinct_log_determinants, expected[firsts])


@every_covariance
def test_penalty_is_the_trace_of_the_precision_times_a_diagonal(case, rng, device):
    covariance, tensors = random_covariance(case, rng, device)
    scatter = rng.uniform(size=N_FEATURES)
    _, firsts = np.unique(case.groups(tensors), return_index=True)
    expected = [np.trace(np.linalg.inv(matrix) @ np.diag(scatter)) for matrix in case.dense(tensors)[firsts]]
    assert_close(covariance.penalty(tensor(scatter, device)), expected)


@every_covariance
@pytest.mark.parametrize("components", [slice(1, 4), torch.tensor([3, 0])], ids=["slice", "index"])
def test_selected_components_keep_their_matrices(case, components, rng, device):
    covariance, tensors = random_covariance(case, rng, device)
    chosen = components if isinstance(components, slice) else components.to(device)
    picked = case.dense(tensors)[components if isinstance(components, slice) else components.numpy()]
    assert_close(covariance.select(chosen).dense(), picked)
    _ = covariance.log_determinants  # factorised before, as within a pass
    assert_close(covariance.select(chosen).log_determinants, np.linalg.slogdet(picked)[1])


@every_covariance
def test_squared_distances_are_quadratic_forms(case, rng, device):
    covariance, tensors = random_covariance(case, rng, device)
    deviations = deviations_of(rng, device)
    precisions = np.linalg.inv(case.dense(tensors))
    d = deviations.cpu().numpy()
    assert_close(covariance.squared_distances(deviations), np.einsum("kni,kij,knj->kn", d, precisions, d))


@every_covariance
def test_second_moments_are_weighted_outer_products(case, rng, device):
    covariance, _ = random_covariance(case, rng, device)
    deviations, weights = deviations_of(rng, device), tensor(rng.normal(size=(N_COMPONENTS, N_ROWS)), device)
    expected = image(covariance.form, torch.einsum("kn,kni,knj->kij", weights, deviations, deviations))
    actual = covariance.second_moments(deviations, weights)
    assert len(actual) == len(expected)
    for part, expected_part in zip(actual, expected, strict=True):
        assert_close(part, expected_part)


@every_covariance
def test_own_moments_are_the_matrices(case, rng, device):
    covariance, tensors = random_covariance(case, rng, device)
    expected = image(covariance.form, tensor(case.dense(tensors), device))
    for part, expected_part in zip(covariance.own_moments(), expected, strict=True):
        assert_close(part, expected_part)


@every_covariance
def test_coefficients_give_log_densities_and_moments(case, rng, device):
    covariance, tensors = random_covariance(case, rng, device)
    means, rows = rng.normal(size=(N_COMPONENTS, N_FEATURES)), rng.normal(size=(N_ROWS, N_FEATURES))
    constants = rng.normal(size=N_COMPONENTS)
    coefficients = covariance.coefficients(tensor(means, device), tensor(constants, device))
    chosen = coefficients.select(slice(1, 4))
    scores, features = chosen.forward(chosen.phi(tensor(rows.T, device)))
    parts = list(zip(constants, means, case.dense(tensors), strict=True))[1:4]
    assert_close(scores, [[c + reference.log_density(row, m, s) for row in rows] for c, m, s in parts])
    weights, sums = rng.uniform(size=(3, N_ROWS)), coefficients.zeros()
    chosen.pullback(sums, features, tensor(weights, device), slice(1, 4))
    moments = coefficients.moments(sums, torch.zeros(N_FEATURES, dtype=torch.float64, device=device))
    assert_close(moments.counts, np.pad(weights.sum(1), 1))
    assert_close(moments.firsts[1:4], weights @ rows)
    seconds = np.zeros((N_COMPONENTS, N_FEATURES, N_FEATURES))
    seconds[1:4] = np.einsum("kn,ni,nj->kij", weights, rows, rows)
    for part, expected in zip(moments.seconds, image(covariance.form, tensor(seconds, device)), strict=True):
        assert_close(part, expected)
    assert type(moments.form) is type(covariance.form)


@every_covariance
def test_coefficients_can_be_differentiated(case, rng, device):
    """By means and constants, as heads need it."""
    covariance, _ = random_covariance(case, rng, device)
    rows = tensor(rng.normal(size=(N_FEATURES, 3)), device)
    means, constants = (tensor(rng.normal(size=shape), device) for shape in ((N_COMPONENTS, N_FEATURES), N_COMPONENTS))

    def scores(means, constants):
        coefficients = covariance.coefficients(means, constants)
        return coefficients.forward(coefficients.phi(rows))[0]

    assert torch.autograd.gradcheck(scores, (means.requires_grad_(), constants.requires_grad_()))


# ---- missing values -----------------------------------------------------------------------------------------------


def conditioned(case, rng, device, n_features=N_FEATURES):
    """A covariance, rows with missing values about its (zero) means, and the twins' completions [k][n]."""
    covariance, tensors = random_covariance(case, rng, device, n_features=n_features)
    rows = with_missing_values(rng.normal(size=(N_ROWS, n_features)), rng)
    observed = tensor(~np.isnan(rows), device)
    deviations = tensor(np.nan_to_num(rows), device).expand(N_COMPONENTS, -1, -1)
    mean = np.zeros(n_features)
    completions = [[reference.completed(row, mean, matrix) for row in rows] for matrix in case.dense(tensors)]
    return covariance, case.dense(tensors), rows, covariance.condition(deviations, observed), completions


@every_covariance
@pytest.mark.parametrize("n_features", [N_FEATURES, 7])
def test_conditioning_marginalises_and_fills_missing_values(case, n_features, rng, device):
    _, dense, rows, given, completions = conditioned(case, rng, device, n_features)
    constant = (~np.isnan(rows)).sum(1) * np.log(2 * np.pi)
    mean = np.zeros(n_features)
    expected = [[-2 * reference.log_density(row, mean, matrix) for row in rows] for matrix in dense]
    assert_close(given.squared_distances + given.log_determinants, np.array(expected) - constant)
    assert_close(given.deviations, [[filled for filled, _ in of_component] for of_component in completions])


@every_covariance
@pytest.mark.parametrize("n_features", [N_FEATURES, 7])
def test_conditional_moments_sum_the_conditional_covariances(case, n_features, rng, device):
    covariance, _, _, given, completions = conditioned(case, rng, device, n_features)
    weights = rng.normal(size=(N_COMPONENTS, N_ROWS))
    spreads = np.array([[spread for _, spread in of_component] for of_component in completions])
    expected = image(covariance.form, tensor(np.einsum("kn,knij->kij", weights, spreads), device))
    for part, expected_part in zip(
        covariance.conditional_moments(given, tensor(weights, device)), expected, strict=True
    ):
        assert_close(part, expected_part)


@pytest.mark.parametrize("shared_rows", [1, 20])
def test_padding_patterns_to_one_size_changes_nothing(shared_rows, monkeypatch, rng, device):
    """Rows with 0 to 9 of 9 missing values, each pattern met by one row or by many."""
    roots = rng.normal(size=(3, 9, 9))
    covariance = FullCovariance(tensor(roots @ roots.swapaxes(1, 2) + np.eye(9), device))
    observed = np.repeat(rng.random((40, 9)) < np.linspace(0, 1, 40)[:, None], shared_rows, 0)
    deviations = tensor(np.where(observed, rng.normal(size=(3, *observed.shape)), 0.0), device)
    weights = tensor(rng.normal(size=(3, len(observed))), device)
    answers = []
    for padded_cubes in (0, np.inf):
        monkeypatch.setattr(conditioning, "PADDED_CUBES", padded_cubes)
        given = covariance.condition(deviations, tensor(observed, device))
        answers.append((given.squared_distances, given.log_determinants, given.deviations))
        answers[-1] += covariance.conditional_moments(given, weights)
        assert len(given.state) == 2 if padded_cubes else len(given.state) > 5
    for separate, padded in zip(*answers, strict=True):
        assert_close(padded, separate, 1e-12)


@pytest.mark.parametrize("n_patterns", [30, 300])
@pytest.mark.parametrize("shared_rows", [1, 20])
def test_conditioning_on_collinear_features_does_not_depend_on_the_other_rows(n_patterns, shared_rows, rng, device):
    roots = rng.normal(size=(3, 6, 6))
    roots[:, -1] = roots[:, 0] + roots[:, 1]
    roots[:, -1, -1] += 1e-6
    covariance = FullCovariance(tensor(roots @ roots.swapaxes(1, 2), device))
    observed = np.repeat(rng.random((n_patterns, 6)) < 0.7, shared_rows, 0)
    rows = rng.normal(size=(3, len(observed), 6)) @ roots.swapaxes(1, 2)
    deviations, observed = tensor(np.where(observed, rows, 0.0), device), tensor(observed, device)
    together = covariance.condition(deviations, observed)
    for n in range(0, len(observed), 17):
        alone = covariance.condition(deviations[:, n : n + 1], observed[n : n + 1])
        assert_close(together.squared_distances[:, n], alone.squared_distances[:, 0], 1e-7)
        assert_close(together.log_determinants[:, n], alone.log_determinants[:, 0], 1e-12)
        assert_close(together.deviations[:, n], alone.deviations[:, 0], 1e-6)


def test_conditioning_where_collinear_features_are_missing_is_exact(rng, device):
    roots = rng.normal(size=(3, 6, 6))
    roots[:, -1] = roots[:, 0] + roots[:, 1]
    roots[:, -1, -1] += 0.04
    matrices = roots @ roots.swapaxes(1, 2)
    assert 1e4 < (np.linalg.inv(matrices) * matrices).max() < conditioning.LARGEST_INFLATION
    observed = np.array([False, False, True, True, True, True])
    rows = np.where(observed, rng.normal(size=(3, 50, 6)) @ roots.swapaxes(1, 2), 0.0)
    known = tensor(np.tile(observed, (50, 1)), device)
    given = FullCovariance(tensor(matrices, device)).condition(tensor(rows, device), known)
    for k, matrix in enumerate(matrices):
        own = rows[k][:, observed]
        distances = (own * np.linalg.solve(matrix[np.ix_(observed, observed)], own.T).T).sum(1)
        assert_close(given.squared_distances[k], distances, 1e-12)


@pytest.mark.parametrize("shared_rows", [1, 20])
def test_conditional_moments_of_rows_without_weight_are_left_out(shared_rows, rng, device):
    roots = rng.normal(size=(3, 15, 15))
    covariance = FullCovariance(tensor(roots @ roots.swapaxes(1, 2) + np.eye(15), device))
    observed = np.repeat(rng.random((10, 15)) < 0.6, shared_rows, 0)
    deviations = tensor(np.where(observed, rng.normal(size=(3, *observed.shape)), 0.0), device)
    weights = rng.normal(size=(3, len(observed)))
    weights[np.arange(3), :] *= np.repeat(rng.random((3, 10)) < 0.5, shared_rows, 1)
    given = covariance.condition(deviations, tensor(observed, device))
    (total,) = covariance.conditional_moments(given, tensor(weights, device))
    each = [
        np.linalg.inv(np.linalg.inv(covariance.matrices[k].cpu().numpy())[np.ix_(~row, ~row)])
        for k in range(3)
        for row in observed
    ]
    expected = np.zeros((3, 15, 15))
    for number, inverse in enumerate(each):
        k, n = divmod(number, len(observed))
        expected[k][np.ix_(~observed[n], ~observed[n])] += weights[k, n] * inverse
    assert_close(total, expected)


@pytest.mark.parametrize("gap", [1e-4, 1e-8, 1e-12])
def test_a_missing_value_that_another_column_repeats_costs_no_digits(gap, rng, device):
    """The precisions are about 1 / gap; what is observed is well conditioned all the same."""
    pair = np.array([[1.0, 1 - gap], [1 - gap, 1.0]])
    matrix = np.kron(np.array([[1.0, 0.3], [0.3, 2.0]]), pair)
    row = np.array([0.7, np.nan, np.nan, -1.1])
    covariance = FullCovariance(tensor(matrix[None], device))
    given = covariance.condition(tensor(np.nan_to_num(row)[None, None], device), tensor(~np.isnan(row[None]), device))
    log_densities = -0.5 * (2 * np.log(2 * np.pi) + given.log_determinants + given.squared_distances)
    assert_close(log_densities[0], [reference.log_density(row, np.zeros(4), matrix)], 1e-9)
    expected, spread = reference.completed(row, np.zeros(4), matrix)
    assert_close(given.deviations[0, 0], expected, 1e-9)
    (total,) = covariance.conditional_moments(given, torch.ones(1, 1, dtype=torch.float64, device=device))
    assert_close(total[0], spread, 1e-9)


@pytest.mark.parametrize("small_table", [2**16, 0])
@pytest.mark.parametrize("case", [low_rank(2), low_rank_precision(2)], ids=["covariance", "precision"])
def test_a_missing_value_that_is_nearly_determined_costs_no_digits(case, small_table, rng, device, monkeypatch):
    """Its part of the systems is 1e13 times the others': to take it away from a sum would leave nothing."""
    monkeypatch.setattr("mixtura.numerics.low_rank_marginals.SMALL_TABLE", small_table)
    covariance, _ = random_covariance(case, rng, device, n_features=20)
    scales = torch.ones(20, dtype=torch.float64, device=device)
    scales[3] = 1e-13
    diagonals = covariance.diagonals * (1 / scales if case.structure.name == "low_rank_precision" else scales)
    covariance = type(covariance)(diagonals, covariance.columns, covariance.of_precision)
    rows = rng.normal(size=(4, 20))
    rows[:, 3] = rows[2:, 7] = np.nan
    given = covariance.condition(
        tensor(np.nan_to_num(rows), device).expand(N_COMPONENTS, -1, -1), tensor(~np.isnan(rows), device)
    )
    expected = [
        [-2 * reference.log_density(row, np.zeros(20), matrix) for row in rows]
        for matrix in covariance.dense().cpu().numpy()
    ]
    constant = (~np.isnan(rows)).sum(1) * np.log(2 * np.pi)
    assert_close(given.squared_distances + given.log_determinants, np.array(expected) - constant, 1e-9)


def test_threads_do_not_take_turns_at_missing_values(rng, monkeypatch):
    """As they would with a lock around the work, as functools.cached_property has it before Python 3.12."""
    covariance, _ = random_covariance(low_rank(2), rng, "cpu")
    rows = with_missing_values(rng.normal(size=(N_ROWS, N_FEATURES)), rng)
    observed, means = tensor(~np.isnan(rows), "cpu"), torch.zeros(N_COMPONENTS, N_FEATURES, dtype=torch.float64)
    both, factorise = threading.Barrier(2), linalg.safe_cholesky

    def meet(*arguments, **options):
        both.wait(timeout=20)
        return factorise(*arguments, **options)

    parts = [covariance.marginals(tensor(np.nan_to_num(rows), "cpu"), observed, means) for _ in range(2)]
    monkeypatch.setattr("mixtura.numerics.linalg.safe_cholesky", meet)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda part: part.solved(), parts)
    assert_close(first[0], second[0], 0)


# ---- updates -----------------------------------------------------------------------------------------------------


@every_updated_covariance
def test_an_update_fits_the_structure_to_the_scatter(case, rng, device):
    covariance, tensors = random_covariance(case, rng, device)
    matrices = COVARIANCES["full"].tensors(rng, CLASS_OF, N_FEATURES)["matrices"]
    counts, groups = rng.uniform(5, 10, N_COMPONENTS), case.groups(tensors)
    scatter = scatter_of(covariance, tensor(counts[:, None, None] * matrices, device), tensor(counts, device))
    floor = torch.zeros(N_FEATURES, dtype=torch.float64, device=device)
    updated = covariance.updated(scatter, nothing_added(device), floor)
    pooled = [np.average(matrices[groups == g], axis=0, weights=counts[groups == g]) for g in range(groups.max() + 1)]
    assert_close(updated.dense(), case.restricted(tensors)(np.array(pooled))[groups])


@every_updated_covariance
def test_components_without_rows_keep_their_matrices(case, rng, device):
    covariance, _ = random_covariance(case, rng, device)
    zeros = torch.zeros(N_COMPONENTS, N_FEATURES, N_FEATURES, dtype=torch.float64, device=device)
    floor = torch.zeros(N_FEATURES, dtype=torch.float64, device=device)
    updated = covariance.updated(scatter_of(covariance, zeros, zeros[:, 0, 0]), nothing_added(device), floor)
    assert_close(updated.dense(), covariance.dense(), 1e-15)


@every_updated_covariance
def test_no_variance_falls_below_the_floor(case, rng, device):
    covariance, _ = random_covariance(case, rng, device)
    counts = torch.full((N_COMPONENTS,), 9.0, dtype=torch.float64, device=device)
    zeros = torch.zeros(N_COMPONENTS, N_FEATURES, N_FEATURES, dtype=torch.float64, device=device)
    floor = tensor(np.array([1e-3, 1e-2, 1e-4, 1e-5]), device)
    updated = covariance.updated(scatter_of(covariance, zeros, counts), nothing_added(device), floor)
    assert_close(updated.variances(), (floor.mean() if is_spherical(case) else floor).expand_as(updated.variances()))
    assert torch.isfinite(updated.log_determinants).all()


def test_a_feature_that_the_factors_explain_keeps_a_millionth_of_its_variance(device):
    """A Heywood case: the likelihood is unbounded where the uniqueness of a feature goes to zero."""
    column = torch.tensor([2.0, 1.0, 3.0, 1.0], dtype=torch.float64, device=device)
    scatter = (torch.outer(column, column) + torch.diag(torch.tensor([0.0, 1.0, 1.0, 1.0]).to(column))).unsqueeze(0)
    counts, zeros = torch.full((1,), 50.0, dtype=torch.float64, device=device), torch.zeros_like(column)
    uniquenesses = torch.ones_like(column).index_fill(0, torch.tensor(0, device=device), 1e-9)
    covariance = LowRank(1).from_tensors({"uniquenesses": uniquenesses[None], "loadings": column[None, :, None]})
    covariance = covariance.updated(scatter_of(covariance, 50 * scatter, counts), nothing_added(device), zeros)
    assert_close(covariance.uniquenesses[0, 0], 1e-6 * 4.0, 1e-12)


@every_updated_covariance
def test_a_ridge_is_added_to_every_variance(case, rng, device):
    """Exactly so where the structure is closed under it; a factor analyser takes it as part of the scatter."""
    covariance, tensors = random_covariance(case, rng, device)
    matrices, ridge = COVARIANCES["full"].tensors(rng, CLASS_OF, N_FEATURES)["matrices"], 0.25
    counts, groups = np.full(N_COMPONENTS, 10.0), case.groups(tensors)
    scatter = scatter_of(covariance, tensor(10.0 * matrices, device), tensor(counts, device))
    floor = torch.zeros(N_FEATURES, dtype=torch.float64, device=device)
    updated = covariance.updated(scatter, nothing_added(device, ridge), floor)
    pooled = np.array([matrices[groups == g].mean(0) for g in range(groups.max() + 1)]) + ridge * np.eye(N_FEATURES)
    assert_close(updated.dense(), case.restricted(tensors)(pooled)[groups])


def test_a_singular_scatter_is_repaired_and_named(device):
    covariance = FullCovariance(torch.eye(N_FEATURES, dtype=torch.float64, device=device).repeat(2, 1, 1))
    identity = covariance.matrices[1]
    matrices = torch.stack([torch.ones_like(identity) - 1e-9 * identity, identity])
    counts = torch.ones(2, dtype=torch.float64, device=device)
    floor = torch.zeros(N_FEATURES, dtype=torch.float64, device=device)
    updated = covariance.updated(scatter_of(covariance, matrices, counts), nothing_added(device), floor)
    assert updated.repaired.tolist() == [True, False]
    assert torch.isfinite(updated.log_determinants).all()
    assert torch.linalg.eigvalsh(updated.dense()[0]).min() > 0


# ---- starts and draws --------------------------------------------------------------------------------------------


@every_covariance
def test_a_start_has_the_requested_variances(case, rng, device):
    variances = tensor(np.tile(rng.uniform(0.5, 2, N_FEATURES), (N_COMPONENTS, 1)), device)
    assignments = tensor(np.arange(60) % N_COMPONENTS, device)
    deviations = tensor(rng.normal(size=(60, N_FEATURES)), device)
    covariance = case.structure.start(variances, deviations, assignments, tensor(CLASS_OF, device))
    expected = variances.mean(-1, keepdim=True).expand_as(variances) if is_spherical(case) else variances
    assert_close(covariance.variances(), expected)
    assert covariance.n_components == N_COMPONENTS
    assert (torch.linalg.eigvalsh(covariance.dense()) > 0).all()


@every_covariance
def test_draws_have_the_requested_covariance(case, rng, device, generator):
    covariance, tensors = random_covariance(case, rng, device)
    n_draws = 4000
    components = torch.arange(N_COMPONENTS, device=device).repeat(n_draws)
    draws = covariance.sample(components, generator)
    for k, matrix in enumerate(case.dense(tensors)):
        own = draws[components == k].cpu().numpy()
        variances = np.diag(matrix)
        error = np.sqrt((np.outer(variances, variances) + matrix**2) / n_draws)  # standard error of a covariance
        assert (abs(own.T @ own / n_draws - matrix) < 5 * error).all()
        assert (abs(own.mean(0)) < 5 * np.sqrt(variances / n_draws)).all()


def test_draws_are_the_same_from_the_same_seed(rng, device):
    covariance, _ = random_covariance(COVARIANCES["low_rank_2"], rng, device)
    components = torch.tensor([0, 1, 1, 4], device=device)
    first, second = (covariance.sample(components, torch.Generator(device).manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)


# ---- low rank ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_features", "rank"), [(1, 0), (2, 1), (3, 1), (8, 4), (20, 10), (100, 10)])
def test_automatic_rank_is_half_the_features_at_most_ten(n_features, rank):
    assert automatic_rank(n_features) == rank


def test_a_start_of_low_rank_follows_the_rows_and_leaves_a_tenth(rng, device):
    factor = rng.normal(size=(400, 1))
    rows = tensor(factor * np.array([1.0, -2.0, 3.0, 0.0]) + 1e-3 * rng.normal(size=(400, 4)), device)
    variances = rows.var(0, keepdim=True)
    alone = torch.zeros(400, dtype=torch.int64, device=device)
    covariance = LowRank(1).start(variances, rows, alone, torch.zeros(1, dtype=torch.int64, device=device))
    assert_close(covariance.uniquenesses[0, :3] / variances[0, :3], [0.1, 0.1, 0.1], 1e-6)
    dense = covariance.dense()[0]
    assert_close(dense[0, 1] / (dense[0, 0] * dense[1, 1]).sqrt(), -0.9, 1e-6)


def test_rank_zero_is_a_diagonal_covariance(rng, device):
    covariance, tensors = random_covariance(low_rank(0), rng, device)
    rows, weights = rng.normal(size=(N_ROWS, N_FEATURES)), rng.uniform(size=(N_COMPONENTS, N_ROWS))
    zeros = torch.zeros(N_COMPONENTS, N_FEATURES, dtype=torch.float64, device=device)
    coefficients = covariance.coefficients(zeros, zeros[:, 0])
    scores, features = coefficients.forward(coefficients.phi(tensor(rows.T, device)))
    mean = np.zeros(N_FEATURES)
    dense = [np.diag(u) for u in tensors["uniquenesses"]]
    assert_close(scores, [[reference.log_density(row, mean, matrix) for row in rows] for matrix in dense])
    sums = coefficients.zeros()
    coefficients.pullback(sums, features, tensor(weights, device), slice(0, N_COMPONENTS))
    assert_close(coefficients.moments(sums, torch.zeros(N_FEATURES, device=device)).seconds[0], weights @ rows**2)


@pytest.mark.parametrize("rank", [0, 2, 10, 13])
@pytest.mark.parametrize("missing", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("small_table", [2**30, 0], ids=["by products with the mask", "by blocks"])
@pytest.mark.parametrize("make", [low_rank, low_rank_precision], ids=["covariance", "precision"])
def test_marginals_of_many_features_are_those_of_dense_matrices(make, small_table, missing, rank, rng, monkeypatch):
    """Few missing values, few observed ones and many of both kinds; also nothing of one kind."""
    monkeypatch.setattr("mixtura.numerics.low_rank_marginals.SMALL_TABLE", small_table)
    monkeypatch.setattr("mixtura.numerics.low_rank_marginals.BLOCK_ROWS", 4)
    size, n_rows, class_of = 40, 9, np.array([0, 1])
    covariance, tensors = random_covariance(make(rank), rng, "cpu", class_of, size)
    rows, means = rng.normal(size=(n_rows, size)), rng.normal(size=(2, size))
    gone = rng.random((n_rows, size)) < missing
    gone[0] = missing > 0.5
    rows = np.where(gone, np.nan, rows)[gone.sum(1).argsort()]
    given = covariance.marginals(tensor(np.nan_to_num(rows)), tensor(~np.isnan(rows)), tensor(means))
    distances, log_determinants = given.solved()
    dense, constant = make(rank).dense(tensors), (~np.isnan(rows)).sum(1) * np.log(2 * np.pi)
    expected = [[-2 * reference.log_density(row, m, s) for row in rows] for m, s in zip(means, dense, strict=True)]
    assert_close(distances + log_determinants, np.array(expected) - constant, 1e-9)
    for k in range(2):
        inverse, factors = given.posterior(k)
        completions = [reference.completed(row, means[k], dense[k]) for row in rows]
        assert_close(given.filled(k, factors), [filled - means[k] for filled, _ in completions], 1e-9)
        weights = rng.normal(size=n_rows)
        spread = sum(weight * own for weight, (_, own) in zip(weights, completions, strict=True))
        alone = covariance.select(slice(k, k + 1))
        expected_parts = image(alone.form, tensor(spread[None]))
        actual = given.conditional_moments(k, inverse, tensor(weights))
        for part, expected_part in zip(actual, expected_parts, strict=True):
            assert_close(part, expected_part[0], 1e-9)


@pytest.mark.parametrize("missing", [0.02, 0.5, 0.98])
def test_neighbours_with_few_values_of_a_kind_are_separated(missing, rng, monkeypatch):
    monkeypatch.setattr("mixtura.numerics.low_rank_marginals.SMALL_TABLE", 0)
    mask = tensor((rng.random((600, 30)) > missing).astype(float))
    mask = mask[mask.sum(1).argsort(descending=True)]
    blocks = blocks_of(mask, 5)
    assert [row for block in blocks for row in range(600)[block.where]] == list(range(600))
    assert {(block.values is not None, block.missing) for block in blocks} >= {
        0.02: {(True, True)},
        0.5: {(False, False)},
        0.98: {(True, False)},
    }[missing]
    for block in blocks:
        if block.values is not None:
            for row, places in zip(mask[block.where], block.values, strict=True):
                expected = (row == (0 if block.missing else 1)).nonzero()[:, 0]
                assert places[: len(expected)].tolist() == expected.tolist()
                assert (places[len(expected) :] == 30).all()


# ---- what optimisers move ----------------------------------------------------------------------------------------


@every_covariance
def test_scaled_covariances_are_those_of_scaled_rows(case, rng, device):
    covariance, tensors = random_covariance(case, rng, device)
    scales = np.full(N_FEATURES, 3.0) if is_spherical(case) else np.array([0.5, 2.0, 10.0, 1.0])
    expected = case.dense(tensors) * np.outer(scales, scales)
    assert_close(covariance.scaled(tensor(scales, device)).dense(), expected)


@every_covariance
def test_unconstrained_numbers_give_the_covariance_back(case, rng, device):
    covariance, _ = random_covariance(case, rng, device)
    assert_close(covariance.constrained(covariance.unconstrained()).dense(), covariance.dense(), 1e-7)


@every_covariance
def test_any_numbers_are_a_covariance(case, rng, device):
    covariance, _ = random_covariance(case, rng, device)
    free = {name: tensor(rng.normal(0, 3, part.shape), device) for name, part in covariance.unconstrained().items()}
    assert (torch.linalg.eigvalsh(covariance.constrained(free).dense()) > 0).all()


@every_covariance
def test_quadratics_are_the_precisions(case, rng, device):
    covariance, _ = random_covariance(case, rng, device)
    actual = covariance.quadratic(covariance.unconstrained())
    precisions = torch.zeros_like(covariance.dense())
    if actual.diagonals is not None:
        precisions = precisions + torch.diag_embed(actual.diagonals)
    if actual.factors is not None:
        precisions = precisions + actual.sign * actual.factors @ actual.factors.mT
    assert_close(precisions, torch.linalg.inv(covariance.dense()), 1e-7)
    assert_close(actual.log_determinants, -covariance.log_determinants, 1e-7)


@every_covariance
def test_quadratics_can_be_differentiated(case, rng, device):
    """Of a function of the precisions and determinants, as an objective is."""
    covariance, _ = random_covariance(case, rng, device)
    free = covariance.unconstrained()
    directions = {name: tensor(rng.normal(size=part.shape), device) for name, part in free.items()}
    pull = tensor(rng.normal(size=(N_COMPONENTS, N_FEATURES, N_FEATURES)), device)

    def value(t: torch.Tensor) -> torch.Tensor:
        actual = covariance.quadratic({name: part + t * directions[name] for name, part in free.items()})
        total = (actual.log_determinants * pull[:, 0, 0]).sum()
        if actual.diagonals is not None:
            total = total + (actual.diagonals * pull.diagonal(dim1=1, dim2=2)).sum()
        if actual.factors is not None:
            total = total + actual.sign * (actual.factors @ actual.factors.mT * pull).sum()
        return total

    t, h = torch.zeros((), dtype=torch.float64, device=device, requires_grad=True), 1e-5
    (slope,) = torch.autograd.grad(value(t), t)
    with torch.no_grad():
        assert_close(slope, (value(t + h) - value(t - h)) / (2 * h), 1e-6, 10.0)


@pytest.mark.parametrize("structure", [LowRank(2), LowRankPrecision(2)], ids=["covariance", "precision"])
def test_leading_directions_of_a_matrix_of_that_kind_are_found(structure, rng, device):
    diagonals = np.full((3, 6), 0.7)
    columns = np.linalg.qr(rng.normal(size=(3, 6, 6)))[0][:, :, :2] * 2.0
    original = structure.from_tensors(
        {name: tensor(part, device) for name, part in zip(tensor_names(structure), (diagonals, columns), strict=True)}
    )
    actual = structure.converted(FullCovariance(original.dense()))
    assert type(actual) is type(original)
    assert actual.of_precision == original.of_precision
    ratio = actual.dense().diagonal(dim1=1, dim2=2) / original.dense().diagonal(dim1=1, dim2=2)
    assert (abs(ratio.log()) < 0.7).all()
    assert structure.converted(original) is original


def tensor_names(structure) -> tuple[str, str]:
    return ("uniquenesses", "loadings") if isinstance(structure, LowRank) else ("precisions", "directions")


def test_low_rank_precisions_say_that_they_have_no_update(rng, device):
    covariance, _ = random_covariance(low_rank_precision(1), rng, device)
    scatter = scatter_of(covariance, covariance.dense(), torch.ones(N_COMPONENTS, dtype=torch.float64, device=device))
    with pytest.raises(NotImplementedError, match=r"no closed-form update.*solver='gradient'"):
        covariance.updated(scatter, nothing_added(device), torch.zeros(N_FEATURES, dtype=torch.float64, device=device))


# ---- the least that a structure must say -------------------------------------------------------------------------


@every_updated_covariance
def test_an_update_from_its_own_moments_changes_nothing(case, rng, device):
    covariance, _ = random_covariance(case, rng, device)
    counts = tensor(rng.uniform(5, 10, N_COMPONENTS), device)
    scatter = scatter_of(covariance, covariance.dense() * counts[:, None, None], counts)
    floor = torch.zeros(N_FEATURES, dtype=torch.float64, device=device)
    assert_close(covariance.updated(scatter, nothing_added(device), floor).dense(), covariance.dense())


@every_covariance
def test_optimisers_move_no_redundant_numbers(case, rng, device):
    """With seven features, so that matrices have more numbers than factor models of rank two."""
    covariance, _ = random_covariance(case, rng, device, n_features=7)
    free = covariance.unconstrained()
    assert sum(part.numel() for part in free.values()) == covariance.n_parameters
    flat = torch.cat([part.flatten() for part in free.values()])

    def dense(flat: torch.Tensor) -> torch.Tensor:
        parts = flat.split([part.numel() for part in free.values()])
        shaped = {name: part.reshape(free[name].shape) for name, part in zip(free, parts, strict=True)}
        return covariance.constrained(shaped).dense().flatten()

    jacobian = torch.autograd.functional.jacobian(dense, flat)
    assert torch.linalg.matrix_rank(jacobian, rtol=1e-9) == len(flat)


@every_covariance
def test_components_of_several_covariances_are_concatenated_and_selected(case, rng, device):
    first, second = (random_covariance(case, rng, device)[0] for _ in range(2))
    both = case.structure.concatenated([first, second])
    assert_close(both.dense(), torch.cat((first.dense(), second.dense())), 1e-15)
    last = both.select(torch.arange(N_COMPONENTS, 2 * N_COMPONENTS, device=device)).compacted()
    assert_close(last.dense(), second.dense(), 1e-15)
    assert last.n_parameters == second.n_parameters


@every_covariance
def test_the_structure_is_enough_to_make_the_covariance_again(case, rng, device):
    covariance, _ = random_covariance(case, rng, device)
    assert torch.equal(covariance.structure.from_tensors(covariance.tensors()).dense(), covariance.dense())
    assert torch.equal(covariance.to(device).dense(), covariance.dense())
    covariance.check()


@every_covariance
def test_matrices_that_are_not_finite_are_refused(case, rng, device):
    covariance, _ = random_covariance(case, rng, device)
    tensors = covariance.tensors()
    name = next(iter(tensors))
    tensors[name] = torch.full_like(tensors[name], torch.nan)
    with pytest.raises(ValueError, match="not"):
        case.structure.from_tensors(tensors).check()


@every_covariance
def test_marginals_are_offered_or_refused(case, rng, device):
    covariance, _ = random_covariance(case, rng, device)
    rows = tensor(with_missing_values(rng.normal(size=(N_ROWS, N_FEATURES)), rng), device)
    observed, zeros = ~rows.isnan(), torch.zeros(N_COMPONENTS, N_FEATURES, dtype=torch.float64, device=device)
    if not covariance.has_marginals:
        with pytest.raises(NotImplementedError, match="use condition"):
            covariance.marginals(rows.nan_to_num(), observed, zeros)
        return
    given = covariance.condition(rows.nan_to_num().expand(N_COMPONENTS, -1, -1), observed)
    distances, log_determinants = covariance.marginals(rows.nan_to_num(), observed, zeros).solved()
    assert_close(distances, given.squared_distances)
    assert_close(log_determinants, given.log_determinants)


@pytest.mark.parametrize("rank", [1, 3, 5])
@pytest.mark.parametrize("kind", [LowRank, LowRankPrecision])
def test_a_rank_above_the_number_of_features_is_that_number(kind, rank, rng):
    variances, class_of = tensor(rng.uniform(0.5, 2, (2, 3))), tensor([0, 1])
    rows, assignments = tensor(rng.normal(size=(20, 3))), tensor(np.arange(20) % 2)
    covariance = kind(rank).start(variances, rows, assignments, class_of)
    assert covariance.structure == kind(min(rank, 3))
    assert_close(covariance.constrained(covariance.unconstrained()).dense(), covariance.dense(), 1e-5)


def test_a_single_feature_has_rank_zero(rng):
    ones, class_of = torch.ones(2, 1, dtype=torch.float64), tensor([0, 1])
    covariance = LowRank().start(ones, ones[:0], class_of[:0], class_of)
    assert covariance.rank == 0
    assert_close(covariance.constrained(covariance.unconstrained()).dense(), covariance.dense(), 1e-7)
    assert_close(covariance.quadratic(covariance.unconstrained()).log_determinants, torch.zeros(2), 1e-6)
