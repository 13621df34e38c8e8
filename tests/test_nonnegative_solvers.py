"""Log-linear mixtures and their solvers: twins, laws, gradients, sparsity, and what the published penalty does."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse

import reference_nonnegative as reference
from cases import NONNEGATIVE_SOLVERS, assert_close
from mixtura import checks
from mixtura.nonnegative.mixture import (
    LogLinearMixture,
    basis_moments,
    counts_of,
    labeled_rows,
    log_likelihood,
    losses_without,
    posterior,
)
from mixtura.nonnegative.priors import CORNER, SparseShares
from mixtura.nonnegative.updates import NONNEGATIVE_SOLVERS as REGISTRY
from mixtura.nonnegative.updates import Accelerated, Multiplicative, pack, unpack, without_idle_weights
from mixtura.solvers import run
from mixtura.values.sparse_rows import from_scipy
from reproduce.nonnegative import SumPenalised, by_the_paper

pytestmark = pytest.mark.usefixtures("one_thread")

N_CLASSES, N_FEATURES, N_BASES = 3, 5, 4
every_solver = pytest.mark.parametrize("make_solver", NONNEGATIVE_SOLVERS.values(), ids=NONNEGATIVE_SOLVERS)
every_layout = pytest.mark.parametrize("layout", ["dense", "sparse"])
every_sharing = pytest.mark.parametrize("sharing", ["shared", "private", "uneven"])
every_strength = pytest.mark.parametrize("strength", [0.0, 2.0], ids=["plain", "penalised"])


class Counts:
    """Rows of counts whose classes overlap, with weights."""

    def __init__(self, rng, n_rows=90, n_features=N_FEATURES):
        self.labels = np.arange(n_rows) % N_CLASSES
        rates = rng.gamma(1.0, 1.5, (N_CLASSES, 2, n_features))
        self.rows = rng.poisson(rates[self.labels, rng.integers(0, 2, n_rows)]).astype(float)
        self.rows[:, -1] = 0  # a column without a positive cell
        self.weights = rng.uniform(0.3, 2.0, n_rows)
        self.weights[7] = 0.0

    def labeled(self, layout="dense", step=10**6):
        matrix = torch.from_numpy(self.rows) if layout == "dense" else from_scipy(sparse.csr_matrix(self.rows))
        known = torch.from_numpy(self.labels), torch.from_numpy(self.weights)
        return labeled_rows(matrix, *known, step)


@pytest.fixture
def data(rng):
    return Counts(rng)


def random_mixture(rng, sharing="shared", n_bases=N_BASES, scale=0.3) -> LogLinearMixture:
    """Bases that all classes share, as many private ones for each, or most of them one class's own."""
    class_of = np.repeat(np.arange(N_CLASSES), [2, n_bases + 1, 2] if sharing == "uneven" else n_bases)
    basis_of = np.tile(np.arange(n_bases), N_CLASSES) if sharing == "shared" else np.arange(len(class_of))
    coefficients = rng.normal(0, scale, (basis_of.max() + 1, N_FEATURES))
    log_weights = rng.normal(0, 1, len(class_of))
    parts = (torch.from_numpy(part) for part in (log_weights, coefficients, class_of, basis_of))
    return LogLinearMixture(*parts, N_CLASSES)


def raw_weights(mixture) -> np.ndarray:
    """Weights (C, J) with their scale."""
    dense = np.zeros((N_CLASSES, mixture.n_bases))
    dense[mixture.class_of, mixture.basis_of] = mixture.log_weights.exp()
    return dense


def test_the_table_is_the_registry():
    assert set(NONNEGATIVE_SOLVERS) == set(REGISTRY)


# ---- the model -------------------------------------------------------------------------------------------------------


@every_sharing
@every_layout
def test_probabilities_equal_the_twin(rng, data, sharing, layout):
    mixture = random_mixture(rng, sharing)
    rows = torch.from_numpy(data.rows) if layout == "dense" else from_scipy(sparse.csr_matrix(data.rows))
    expected = reference.probabilities(data.rows, raw_weights(mixture), mixture.coefficients.numpy())
    assert_close(mixture.log_probabilities(rows).exp().T, expected)
    joint = mixture.log_joint(rows).softmax(0)
    for c in range(N_CLASSES):
        assert_close(joint[mixture.class_of == c].sum(0), expected[:, c])


def test_probabilities_too_small_for_a_quotient_are_taken_in_logs(rng):
    mixture = random_mixture(rng, sharing="private", n_bases=1)
    coefficients = torch.zeros_like(mixture.coefficients)
    coefficients[0, 0] = 2000.0
    mixture = replace(mixture, coefficients=coefficients, log_weights=torch.zeros_like(mixture.log_weights))
    rows = torch.tensor([[1.0, 0, 0, 0, 0], [0.0, 1, 0, 0, 0]], dtype=torch.float64)
    assert_close(mixture.log_probabilities(rows)[:, 0], [0.0, -2000.0, -2000.0])
    labeled = labeled_rows(rows, torch.tensor([1, 2]), torch.ones(2, dtype=torch.float64), 10)
    assert_close(log_likelihood(mixture, labeled), -2000.0 - np.log(3))
    (chunk,) = labeled.chunks
    counts = counts_of(mixture, chunk, *posterior(mixture, chunk))
    assert_close(counts.numerators, [[0, 0, 0], [0, 1, 0], [0, 0, 1]])


@every_sharing
@every_layout
@pytest.mark.parametrize("step", [10**6, 13], ids=["one chunk", "chunks"])
def test_posteriors_and_what_they_sum_up_to_equal_the_twin(rng, data, sharing, layout, step):
    mixture, labeled = random_mixture(rng, sharing), data.labeled(layout, step)
    known = data.rows, data.labels, data.weights, raw_weights(mixture), mixture.coefficients.numpy()
    above, below = (part.sum(1) for part in reference.posteriors(*known))  # (N, J), times the row weights
    actual = [(chunk, posterior(mixture, chunk)) for chunk in labeled.chunks]
    counted = data.weights > 0
    for side, expected in ((1, above), (2, below)):
        parts = torch.cat([part[side] * chunk.weights for chunk, part in actual], 1)
        assert_close(parts.T, expected[counted])
        assert_close(sum(basis_moments(chunk, part[side]) for chunk, part in actual), expected.T @ data.rows)
    parts = [counts_of(mixture, chunk, *part) for chunk, part in actual]
    counts = sum(parts[1:], start=parts[0])
    assert_close(counts.value, reference.log_likelihood(*known))
    assert_close(counts.denominators, below.sum(0))
    by_class = [above[data.labels == c].sum(0) for c in range(N_CLASSES)]
    assert_close(counts.numerators, by_class)
    assert_close(labeled.means, data.weights @ data.rows / data.weights.sum())
    assert_close(labeled.largest_sum, data.rows[counted].sum(1).max())
    assert (labeled.n_rows, labeled.n_features) == (counted.sum(), N_FEATURES)
    assert_close(labeled.weight, data.weights.sum())


def test_other_units_change_no_probability(rng, data):
    mixture = random_mixture(rng)
    shifts, scales = torch.from_numpy(rng.uniform(0, 2, N_FEATURES)), torch.from_numpy(rng.uniform(0.5, 3, N_FEATURES))
    rows = torch.from_numpy(data.rows)
    moved = mixture.rescaled(scales, shifts)
    assert_close(moved.log_probabilities(rows), mixture.log_probabilities((rows - shifts) / scales))
    assert_close(moved.weights.sum(), 1.0)


def test_removed_weights_leave_the_tensors(rng):
    mixture = random_mixture(rng)
    chosen = (mixture.basis_of != 2) & ~((mixture.class_of == 1) & (mixture.basis_of == 0))
    smaller = mixture.kept(chosen)
    assert smaller.coefficients.shape == (N_BASES - 1, N_FEATURES)
    assert smaller.n_components == N_CLASSES * (N_BASES - 1) - 1
    assert smaller.weights[1, 0] == 0
    dense = raw_weights(mixture)
    dense[1, 0] = dense[:, 2] = 0
    row = torch.ones(1, N_FEATURES, dtype=torch.float64)
    expected = reference.probabilities(row.numpy(), dense, mixture.coefficients.numpy())
    assert_close(smaller.log_probabilities(row).exp().T, expected)


# ---- laws ------------------------------------------------------------------------------------------------------------


@every_sharing
@every_layout
def test_an_iteration_equals_the_twin(rng, data, sharing, layout):
    mixture = random_mixture(rng, sharing)
    solver, rows = Multiplicative(), data.labeled(layout)
    state, info = solver.step(rows, solver.init(rows, mixture))
    known = data.rows, data.labels, data.weights, raw_weights(mixture), mixture.coefficients.numpy()
    weights, coefficients = reference.iteration(*known)
    assert_close(info.value, reference.log_likelihood(*known) / data.weights.sum())
    assert_close(state.mixture.coefficients, coefficients)
    assert_close(state.mixture.weights, weights / weights.sum())


@every_solver
@every_layout
@every_sharing
@every_strength
@pytest.mark.parametrize("step", [10**6, 13], ids=["one chunk", "chunks"])
def test_no_step_lowers_the_objective(rng, data, make_solver, layout, sharing, strength, step):
    solver, rows = make_solver(strength, first_removal=15), data.labeled(layout, step)
    progress, values = solver.init(rows, random_mixture(rng, sharing)), []
    for _ in range(60):
        progress, info = solver.step(rows, progress)
        values.append(info.value)
    assert (np.diff(values) >= -1e-12).all(), np.diff(values).min()
    assert values[-1] > values[0] + 0.05
    assert progress.mixture.coefficients.isfinite().all()


@every_solver
@every_sharing
@every_strength
def test_chunks_and_layout_change_nothing(rng, data, make_solver, sharing, strength):
    start = random_mixture(rng, sharing)
    actual = []
    for layout, step in (("dense", 10**6), ("dense", 13), ("sparse", 10**6), ("sparse", 13)):
        solver, rows = make_solver(strength, first_removal=5), data.labeled(layout, step)
        progress = solver.init(rows, start)
        for _ in range(12):
            progress, _ = solver.step(rows, progress)
        actual.append(progress.mixture)
    for other in actual[1:]:
        assert other.n_components == actual[0].n_components
        assert_close(other.coefficients, actual[0].coefficients, 1e-7)


@every_sharing
@every_strength
def test_the_gradient_equals_differences(rng, data, sharing, strength):
    solver, rows = Accelerated(SparseShares(strength)), data.labeled()
    mixture = random_mixture(rng, sharing)
    here = pack(mixture, rows.means)
    value, gradient = solver.evaluate(mixture, rows)
    plain = reference.log_likelihood(
        data.rows, data.labels, data.weights, raw_weights(mixture), mixture.coefficients.numpy()
    )
    cost = reference.penalty(raw_weights(mixture), strength, CORNER)
    assert_close(value, (plain - cost) / data.weights.sum())
    for number in range(0, len(here), 3):
        unit = torch.zeros_like(here)
        unit[number] = 1e-6
        ends = [solver.evaluate(unpack(mixture, here + sign * unit, rows.means), rows)[0] for sign in (1, -1)]
        assert_close((ends[0] - ends[1]) / 2e-6, gradient[number], 1e-6)


@every_sharing
def test_the_accelerated_solver_is_not_behind_the_plain_rule(rng, data, sharing):
    start, rows = random_mixture(rng, sharing), data.labeled()
    plain, fast = Multiplicative(), Accelerated()
    slow = run(plain, rows, start, max_iter=500, tol=0)
    quick = run(fast, rows, start, max_iter=50, tol=0)
    assert quick.objective >= slow.objective - 1e-6


def test_both_solvers_find_the_one_maximum_of_private_single_bases(rng, data):
    """With one basis a class this is multinomial logistic regression, which has no other maximum."""
    rows = data.labeled()
    actual = []
    for solver, n_steps in ((Multiplicative(), 2500), (Accelerated(), 60)):
        start = random_mixture(np.random.default_rng(3), sharing="private", n_bases=1)
        actual.append(run(solver, rows, start, max_iter=n_steps, tol=0).mixture)
    probabilities = [mixture.log_probabilities(torch.from_numpy(data.rows)).exp() for mixture in actual]
    assert_close(probabilities[0], probabilities[1], 2e-2)


# ---- sparsity --------------------------------------------------------------------------------------------------------


def test_the_penalty_does_not_change_with_the_scale_of_weights_or_bases(rng):
    mixture, penalty = random_mixture(rng), SparseShares(2.0)
    scales = torch.from_numpy(rng.normal(0, 3, N_BASES))
    scaled = replace(mixture, log_weights=mixture.log_weights + scales[mixture.basis_of] + 7.0)
    assert_close(penalty.value(scaled.shares), penalty.value(mixture.shares))
    assert_close(penalty.value(mixture.shares), reference.penalty(raw_weights(mixture), 2.0, CORNER))


def test_a_basis_of_one_class_costs_the_strength():
    assert_close(SparseShares(2.5).value(torch.eye(3, dtype=torch.float64)), 7.5)


def test_updated_shares_are_no_worse_and_on_the_simplex(rng):
    penalty = SparseShares(3.0)
    shares = torch.from_numpy(rng.dirichlet(np.full(4, 0.4), 6).T)
    counts = torch.from_numpy(rng.gamma(0.5, 2.0, (4, 6)))

    def value(at):
        return float((counts * at.log()).sum()) - penalty.value(at)

    for _ in range(20):
        updated = penalty.maximise(counts, shares)
        assert_close(updated.sum(0), np.ones(6))
        assert value(updated) >= value(shares) - 1e-10
        shares = updated


def test_savings_are_differences_of_the_penalty(rng):
    penalty = SparseShares(1.5)
    shares = torch.from_numpy(rng.dirichlet(np.ones(3), 2).T)
    savings = penalty.savings(shares)
    for c in range(3):
        without = shares.clone()
        without[c, 0] = 0
        without[:, 0] /= without[:, 0].sum()
        assert_close(savings[c, 0], penalty.value(shares) - penalty.value(without))


@every_sharing
def test_the_bound_of_a_removal_holds(rng, data, sharing):
    mixture, rows = random_mixture(rng, sharing), data.labeled()
    before, bounds = log_likelihood(mixture, rows), losses_without(mixture, rows)
    for k in range(mixture.n_components):
        chosen = torch.arange(mixture.n_components) != k
        loss = before - log_likelihood(mixture.kept(chosen), rows)
        assert loss <= float(bounds[mixture.class_of[k], mixture.basis_of[k]]) + 1e-9


@every_sharing
def test_idle_weights_go_and_the_objective_does_not_fall(rng, data, sharing):
    mixture, rows, penalty = random_mixture(rng, sharing, scale=0.01), data.labeled(), SparseShares(1.0)
    value = log_likelihood(mixture, rows) - penalty.value(mixture.shares)
    smaller = without_idle_weights(mixture, rows, Multiplicative(penalty), value)
    assert smaller.n_components < mixture.n_components
    assert log_likelihood(smaller, rows) - penalty.value(smaller.shares) >= value
    assert set(smaller.class_of.tolist()) == set(range(N_CLASSES))


@every_solver
@every_sharing
def test_more_sparsity_leaves_fewer_weights(rng, data, make_solver, sharing):
    start, rows = random_mixture(rng, sharing), data.labeled()
    sizes = []
    for strength in (0.0, 1.0, 100.0):
        solver = make_solver(strength, first_removal=20)
        sizes.append(run(solver, rows, start, 80, 0).mixture.n_components)
    assert sizes[0] == start.n_components
    assert sizes[0] > sizes[1] >= sizes[2] >= N_CLASSES


# ---- the published penalty -------------------------------------------------------------------------------------------


@every_sharing
def test_the_published_rule_equals_the_twin(rng, data, sharing):
    mixture, solver = random_mixture(rng, sharing), SumPenalised(sum_penalty=0.7)
    rows = data.labeled()
    state, info = solver.step(rows, solver.init(rows, mixture))
    known = data.rows, data.labels, data.weights, raw_weights(mixture), mixture.coefficients.numpy()
    weights, coefficients = reference.iteration(*known, sum_penalty=0.7)
    assert_close(raw_weights(state.mixture), weights)
    assert_close(state.mixture.coefficients, coefficients)
    cost = 0.7 * raw_weights(mixture).sum()
    assert_close(info.value, (reference.log_likelihood(*known) - cost) / data.weights.sum())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_an_estimator_is_fitted_by_the_published_rule(data):
    """Its penalty removes no weight, and changes probabilities by rounding and unequal progress alone."""
    free, penalised = (
        by_the_paper(4, penalty, shared=True)(0).set_params(max_iter=60).fit(data.rows, data.labels)
        for penalty in (0.0, 0.5)
    )
    assert penalised.n_components_.tolist() == [4] * N_CLASSES
    assert penalised.history_[-1].objective < free.history_[-1].objective  # by the penalty
    assert_close(penalised.predict_proba(data.rows), free.predict_proba(data.rows), 0.05)


def test_the_published_penalty_changes_nothing_but_the_scale(rng, data):
    """Any penalty: the same probabilities, no weight at zero, and a sum of weights that only falls (LZZ06, eq. 15)."""
    rows, actual, totals = data.labeled(), [], []
    for strength in (0.0, 0.3, 5.0):
        solver = SumPenalised(sum_penalty=strength)
        progress = solver.init(rows, random_mixture(np.random.default_rng(3), sharing="private", n_bases=1))
        values, sums = [], []
        for _ in range(700):
            progress, info = solver.step(rows, progress)
            values.append(info.value)
            sums.append(float(progress.mixture.log_weights.exp().sum()))
        assert (np.diff(values) >= -1e-12).all()
        mixture = progress.mixture
        assert mixture.n_components == N_CLASSES
        assert (mixture.weights[mixture.class_of, mixture.basis_of] > 1e-6).all()
        if strength:
            assert (np.diff(sums[500:]) < 0).all()  # and towards zero: there is no other fixed point
        totals.append(sums[-1])
        actual.append(mixture.log_probabilities(torch.from_numpy(data.rows)).exp())
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] < 0.05 * totals[0]
    for probabilities in actual[1:]:
        assert_close(probabilities, actual[0], 2e-2)


def test_the_published_start_cannot_move(data):
    """All weights and coefficients 0.5 (LZZ06, section 5.1): bases stay equal, and the prior is all there is."""
    mixture = random_mixture(np.random.default_rng(0))
    mixture = replace(
        mixture,
        log_weights=torch.full_like(mixture.log_weights, np.log(0.5)),
        coefficients=torch.full_like(mixture.coefficients, 0.5),
    )
    solver, rows = Multiplicative(), data.labeled()
    fitted = run(solver, rows, mixture, 50, 0).mixture
    assert_close(fitted.coefficients, mixture.coefficients, 1e-12)
    prior = np.bincount(data.labels, data.weights) / data.weights.sum()
    assert_close(fitted.log_probabilities(torch.from_numpy(data.rows)).exp().T, np.tile(prior, (90, 1)))


# ---- the loop --------------------------------------------------------------------------------------------------------


def test_a_non_finite_start_is_named(rng, data):
    mixture = replace(
        random_mixture(rng), log_weights=torch.full((N_CLASSES * N_BASES,), torch.nan, dtype=torch.float64)
    )
    solver = Multiplicative()
    with pytest.raises(FloatingPointError, match="became nan at iteration 1 of solver 'multiplicative'"):
        run(solver, data.labeled(), mixture, 5, 0.0)


@pytest.mark.parametrize("value", [0, 1, "half", True])
def test_a_fraction_is_between_zero_and_one(value):
    with pytest.raises(ValueError, match=rf"part must be a number above 0 and below 1; got {value!r}\."):
        checks.require("part", value, checks.FRACTION)
