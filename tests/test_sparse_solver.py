"""Sparse Bayesian learning against its dense twin, and the parts it is made of."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import reference_sparse as reference
from cases import assert_close, tensor
from mixtura.objectives import class_log_joint
from mixtura.solvers.loop import Outcome, run
from mixtura.sparse.curvature import DirectCurvature, FeatureCurvature
from mixtura.sparse.kernels import (
    RBF,
    Custom,
    KernelColumns,
    MonomialBasis,
    Polynomial,
    feature_form,
    gram_factor,
    monomials,
    no_scaling,
)
from mixtura.sparse.model import SparseMixture
from mixtura.sparse.newton import (
    Evidence,
    SparseNewton,
    merge_components,
    starting_state,
    with_pairs,
    without_components,
)
from mixtura.sparse.problem import make_problem
from mixtura.sparse.relevance import Relevance
from mixtura.sparse.working_set import WorkingSet

pytestmark = pytest.mark.usefixtures("one_thread")


def rows_of(rng, n_classes=2, n_rows=50, n_features=2):
    """Two overlapping clusters a class, and hard responsibilities for them."""
    labels = np.arange(n_rows) % n_classes
    side = rng.integers(0, 2, n_rows)
    centres = rng.normal(0, 1.2, (n_classes, 2, n_features))
    rows = centres[labels, side] + 0.7 * rng.normal(size=(n_rows, n_features))
    responsibilities = np.eye(2 * n_classes)[2 * labels + side]
    return rows, labels, np.repeat(np.arange(n_classes), 2), responsibilities


def evidence_of(kernel, rows, labels, weights=None):
    values = tensor(rows)
    features, maps = feature_form(kernel, values, values, torch.arange(len(rows)))
    ones = torch.ones(len(rows), dtype=torch.float64)
    return Evidence(features, maps, tensor(labels), ones if weights is None else tensor(weights))


def dense_columns(evidence) -> np.ndarray:
    """(N, H), a constant first."""
    return evidence.columns(torch.arange(evidence.n_columns)).T.numpy()


def fitted(evidence, class_of, responsibilities, max_iter=2000, **options):
    start = starting_state(evidence.n_columns, tensor(class_of), tensor(responsibilities.T.copy()))
    return run(SparseNewton(merge=False, **options), evidence, start, max_iter, 0.0)


KERNELS = {
    "polynomial": Polynomial(),
    "cubic": Polynomial(3, 0.3, 0.5),
    "homogeneous": Polynomial(2, 1.0, 0.0),
    "rbf": RBF(0.7),
}
every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)


class TestTwin:
    @pytest.mark.parametrize(
        ("kernel", "n_classes", "weighted", "rate"),
        [
            (Polynomial(), 2, False, 0.0),
            (Polynomial(), 3, True, 0.1),
            (RBF(0.7), 2, True, 0.0),
            (RBF(0.7), 3, False, 0.0),
        ],
        ids=["polynomial", "polynomial_weighted", "rbf_weighted", "rbf"],
    )
    def test_same_trajectory_as_the_textbook(self, rng, kernel, n_classes, weighted, rate):
        rows, labels, class_of, responsibilities = rows_of(rng, n_classes, 30)
        weights = rng.uniform(0.5, 2, len(rows)) if weighted else None
        evidence = evidence_of(kernel, rows, labels, weights)
        columns = dense_columns(evidence)
        twin = reference.fit(columns, labels, class_of, responsibilities, weights, rate=rate)
        result = fitted(evidence, class_of, responsibilities, prior=Relevance(rate=rate))
        mixture = result.mixture.mixture
        assert len(result.history) == twin.n_iter
        assert mixture.n_pairs == twin.n_weights
        ours = class_log_joint(mixture.log_joint(tensor(columns)), mixture.class_sizes).softmax(0).T
        assert_close(ours, twin.probabilities(columns), 1e-6)
        total = float(evidence.weights.sum())
        evidences = [record.objective * total for record in result.history]
        assert_close(evidences, twin.evidences, 1e-4)  # a Newton step more or less shows before the end
        assert_close(evidences[-1], twin.evidences[-1], 1e-6)

    def test_same_end_in_the_primal_form(self, rng):
        rows, labels, class_of, responsibilities = rows_of(rng)
        features = monomials(tensor(rows), 2)
        evidence = Evidence(features.T.contiguous(), None, tensor(labels), torch.ones(len(rows), dtype=torch.float64))
        twin = reference.fit(features.numpy(), labels, class_of, responsibilities)
        result = fitted(evidence, class_of, responsibilities)
        assert result.outcome is Outcome.CONVERGED
        assert twin.converged
        assert_close(result.mixture.mixture.coefficients(6), twin.values, 1e-6)

    def test_one_column_stands_for_equal_rows(self, rng):
        copies = np.repeat(np.arange(12), rng.integers(1, 5, 12))
        rows, labels = rng.normal(size=(12, 2))[copies], np.arange(len(copies)) % 2
        columns = np.hstack([np.ones((len(rows), 1)), RBF(0.7).gram(tensor(rows), tensor(rows)).numpy()])
        twin = reference.fit(columns, labels, np.array([0, 1]), np.eye(2)[labels], max_iter=9)
        arguments = (None, np.array([0, 1]), no_scaling(2, torch.device("cpu")), RBF(0.7), None, [1, 1], False, 2**20)
        problem = make_problem(tensor(rows), tensor(labels), *arguments)
        start = starting_state(13, problem.class_of, tensor(np.eye(2)[labels].T.copy()), problem.precisions)
        result = run(SparseNewton(), problem.evidence, start, 9, 0.0)
        assert problem.evidence.n_columns == 13
        evidences = [record.objective * len(rows) for record in result.history]
        assert_close(evidences[:2], twin.evidences[:2], 1e-7)
        assert_close(evidences, twin.evidences, 1e-4)  # copies reach the largest precision a little earlier
        together = replace(problem, start_variance=7.0)
        every, some = together.precisions_at_start(), together.precisions_at_start(torch.tensor([0, 3, 4]))
        assert_close(every / problem.precisions, np.full(13, (1 + len(rows)) / 7))  # as many columns as rows, and 1
        assert_close(some / some[0], problem.precisions[[0, 3, 4]])
        assert_close(some.reciprocal().sum(), min(7.0, float(problem.precisions[[0, 3, 4]].reciprocal().sum())))

    def test_same_with_the_exact_hessian(self, rng):
        rows, labels, class_of, responsibilities = rows_of(rng, n_rows=36)
        evidence = evidence_of(Polynomial(), rows, labels)
        columns = dense_columns(evidence)
        twin = reference.fit(columns, labels, class_of, responsibilities, max_iter=25, exact=True)
        result = fitted(evidence, class_of, responsibilities, max_iter=25, exact=True)
        assert_close(result.history[-1].objective * len(rows), twin.evidences[-1], 1e-5)


class TestHessians:
    @pytest.fixture
    def parts(self, rng):
        rows, labels, class_of, _ = rows_of(rng, n_rows=20)
        columns = np.hstack([np.ones((20, 1)), rows])
        values = rng.normal(size=(4, 3))
        mixing = np.array([0.3, 0.7, 0.6, 0.4])
        return columns, labels, class_of, values, mixing, rng.uniform(0.5, 2, 20), rng.uniform(0.5, 2, (4, 3))

    def test_the_exact_one_is_the_second_derivative(self, parts):
        columns, labels, class_of, values, mixing, weights, precisions = parts

        def value(flat):
            return reference.log_posterior(flat.reshape(4, 3), columns, labels, class_of, mixing, weights, precisions)

        units, step = np.eye(12), 1e-3
        flat = values.ravel()

        def slope(at, along):
            return (value(at + step * along) - value(at - step * along)) / (2 * step)

        by_differences = np.array(
            [[(slope(flat + step * a, b) - slope(flat - step * a, b)) / (2 * step) for b in units] for a in units]
        )
        joint = np.log(mixing) + columns @ values.T
        posteriors = torch.tensor(joint).softmax(1)
        own = torch.where(tensor(labels).unsqueeze(1) == tensor(class_of), torch.tensor(joint), -torch.inf).softmax(1)
        exact = reference.exact_hessian(columns, posteriors.numpy(), own.numpy(), weights, precisions)
        assert_close(exact, -by_differences, 1e-4, scale=10)
        mixture = starting_state(3, torch.tensor([0, 0, 1, 1, 1]), own.T).mixture  # the fifth is the reference
        curvature = DirectCurvature(mixture, tensor(columns).T[mixture.columns], tensor(weights))
        ours = curvature.hessian(posteriors.T, own.T)
        assert_close(ours + torch.diag(tensor(precisions.ravel())), exact)

    @pytest.mark.parametrize("exact", [False, True])
    def test_both_spaces_give_the_same(self, rng, exact):
        rows, labels, class_of, responsibilities = rows_of(rng, 3, 40)
        evidence = evidence_of(Polynomial(), rows, labels)
        mixture = starting_state(evidence.n_columns, tensor(class_of), tensor(responsibilities.T)).mixture
        mixture = SparseMixture(
            mixture.log_weights, mixture.class_of, mixture.components, mixture.columns, mixture.values,
            tensor(rng.uniform(20, 40, mixture.n_pairs)),
        )  # fmt: skip
        posteriors = torch.tensor(rng.dirichlet(np.ones(6), 40).T.copy())
        given = tensor(0.01 * responsibilities.T) if exact else None
        weights = tensor(rng.uniform(0.5, 2, 40))
        direct = DirectCurvature(mixture, evidence.columns(mixture.columns), weights)
        features = FeatureCurvature(mixture, evidence.features, evidence.maps[:, mixture.columns], weights)
        values = tensor(rng.normal(size=mixture.n_pairs))
        known = values, mixture.log_weights
        assert_close(features.log_joint(*known), direct.log_joint(*known))
        assert_close(features.gradient(posteriors), direct.gradient(posteriors))
        one, other = (form.factored(mixture.precisions, posteriors, given) for form in (direct, features))
        assert_close(other.log_determinant, one.log_determinant, 1e-8)
        assert_close(other.determined, one.determined, 1e-7)
        assert_close(other.solve(values), one.solve(values), 1e-7)
        assert one.is_positive
        assert other.is_positive


class TestBases:
    @every_kernel
    def test_features_and_maps_make_the_columns(self, rng, kernel):
        points = tensor(rng.normal(size=(30, 3)))
        places = torch.tensor([*range(30), 4, 4])
        features, maps = feature_form(kernel, points[places], points, places)
        columns = KernelColumns(kernel, torch.cat((points[:1], points)), torch.arange(-1, 30))
        assert_close((maps.T @ features).T, columns.evaluate(points[places]), 1e-9)

    def test_a_polynomial_has_the_features_of_its_degree(self, rng):
        rows = tensor(rng.normal(size=(50, 2)))
        features, _ = feature_form(Polynomial(), rows, rows, torch.arange(50))
        assert features.shape == (6, 50)
        features, _ = feature_form(Polynomial(), rows[:4], rows[:4], torch.arange(4))
        assert len(features) <= 5

    def test_a_gram_matrix_has_a_factor_of_its_rank(self, rng):
        half = rng.normal(size=(20, 3))
        factor = gram_factor(tensor(half @ half.T))
        assert factor.shape == (20, 3)
        assert_close(factor @ factor.T, half @ half.T)

    def test_a_kernel_that_is_not_positive_definite(self, rng):
        rows = tensor(rng.normal(size=(10, 2)))
        distances = Custom(lambda a, b: np.linalg.norm(a[:, None] - b, axis=-1))
        with pytest.raises(ValueError, match=r"not positive definite: the smallest eigenvalue .* is -[0-9.]+"):
            gram_factor(distances.gram(rows, rows))
        with pytest.raises(ValueError, match=r"not symmetric: k\(x, z\) and k\(z, x\) differ by up to [0-9.]+"):
            gram_factor(tensor(rng.normal(size=(5, 5))))
        with pytest.raises(ValueError, match=r"must return an array of shape \(10, 3\).* got shape \(10,\)"):
            Custom(lambda a, b: a[:, 0]).gram(rows, rows[:3])

    def test_monomials(self):
        rows = torch.tensor([[2.0, 3.0]], dtype=torch.float64)
        assert monomials(rows, 2).tolist() == [[1, 2, 3, 4, 6, 9]]
        assert MonomialBasis(2, torch.tensor([0, 4])).evaluate(rows).tolist() == [[1, 6]]


class TestPrior:
    def test_precisions_move_to_what_the_data_determine(self):
        prior = Relevance()
        values = torch.tensor([2.0, 1e-4, 1e9, 1.0])
        moved = prior.updated(values, torch.ones(4), torch.tensor([1.0, 0.5, 1.0, -1e-9]))
        assert_close(moved, [0.25, 1e5, 1e-6, 1.0], 1e-6)
        assert prior.relevant(moved).tolist() == [True, False, True, True]

    @pytest.mark.parametrize("rate", [0.0, 0.05])
    def test_the_gain_of_a_column_is_the_most_over_its_variances(self, rate):
        squares, curvatures = tensor([0.5, 3.0, 40.0, 9.0]), tensor([1.0, 2.0, 5.0, 0.01])
        variances = torch.logspace(-6, 6, 200_001, dtype=torch.float64).unsqueeze(1)
        growths = 1 + curvatures * variances
        tried = 0.5 * (squares * variances / growths - growths.log()) - rate * variances  # from the evidence itself
        most, places = tried.max(0)
        gains, precisions = Relevance(rate=rate).gains(squares, curvatures)
        assert_close(gains, most.clamp_min(0), 1e-6)
        assert_close((precisions * variances[places, 0])[1:], np.ones(3), 1e-3)
        assert precisions[0] > 1e100


class TestComponents:
    @pytest.fixture
    def state(self, rng):
        rows, labels, class_of, responsibilities = rows_of(rng)
        evidence = evidence_of(Polynomial(), rows, labels)
        return starting_state(evidence.n_columns, tensor(class_of), tensor(responsibilities.T.copy())), evidence

    def test_merging_adds_weights_and_responsibilities(self, state):
        before, _ = state
        after = merge_components(before, torch.tensor([1, 1, 2, 3]))
        assert_close(after.mixture.log_weights.exp(), [1, 0.5, 0.5])
        assert after.mixture.class_of.tolist() == [0, 1, 1]
        assert_close(after.responsibilities.sum(0), torch.ones(50))
        assert after.mixture.components.unique().tolist() == [0, 1]

    def test_leaving_out_shares_the_rows(self, state):
        before, evidence = state
        after = without_components(before, torch.tensor([True, False, False, False]), evidence)
        assert_close(after.responsibilities.sum(0), torch.ones(50))
        assert_close(after.mixture.log_weights.exp(), [1, 0.5, 0.5])


def test_a_working_set_ends_near_the_whole(rng):
    rows, labels, class_of, responsibilities = rows_of(rng, n_rows=60)
    kernel, values = RBF(0.7), tensor(rows)
    evidence = evidence_of(kernel, rows, labels)
    whole = fitted(evidence, class_of, responsibilities)
    counts = np.bincount(class_of).tolist()
    scaling, classes = no_scaling(values.shape[1], values.device), np.unique(labels)
    problem = make_problem(values, tensor(labels), None, classes, scaling, kernel, None, counts, True, 2**26)
    assert problem.evidence.n_columns == 0
    working = WorkingSet(SparseNewton(), problem, torch.Generator().manual_seed(0))
    result = run(working, problem.evidence, working.start(tensor(responsibilities.T.copy())), 2000, 0.0)
    assert result.outcome is Outcome.CONVERGED
    assert result.mixture.features.shape[0] < 40
    assert result.history[-1].objective > whole.history[-1].objective - 0.05


def test_many_pairs_give_the_curvature_of_few(rng, monkeypatch):
    rows, labels, class_of, responsibilities = rows_of(rng, 3, 30)
    evidence = evidence_of(RBF(0.7), rows, labels, rng.uniform(0.5, 2, len(rows)))
    start = starting_state(evidence.n_columns, tensor(class_of), tensor(responsibilities.T.copy()))
    kept = torch.from_numpy(rng.random(start.mixture.n_pairs) < 0.6)  # components share some columns
    mixture = with_pairs(start.mixture, kept & (start.mixture.components != 1))  # and one has none
    values = torch.from_numpy(rng.normal(size=mixture.n_pairs))
    results = []
    for smallest in (1, 10**9):
        monkeypatch.setattr("mixtura.sparse.curvature.MANY_PAIRS", smallest)
        direct = DirectCurvature(mixture, evidence.columns(mixture.columns), evidence.weights)
        posteriors = direct.log_joint(values, mixture.log_weights).softmax(0)
        factored = direct.factored(mixture.precisions, posteriors)
        results.append((posteriors, direct.gradient(posteriors), factored.solve(values), factored.log_determinant))
    for many, few in zip(*results, strict=True):
        assert_close(many, few, 1e-12)
