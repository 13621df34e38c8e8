"""Choosing numbers of components and penalties: against slow twins, and on clusters that mislead k-means."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning

import reference
from cases import COVARIANCES, assert_close, problem_of, random_mixture
from mixtura import AveragedMixture, GaussianMixture
from mixtura.covariances import Full
from mixtura.datasets import make_ripley
from mixtura.engine.sources import TensorSource
from mixtura.init.description import describe
from mixtura.objectives import Marginal
from mixtura.priors import Conjugate, Shrinkage
from mixtura.selection import clusters
from mixtura.selection.clusters import ComponentPath, ComponentSearch, penalties
from mixtura.selection.merging import one_fewer, reduce_components
from mixtura.selection.search import Search
from mixtura.selection.task import Task
from mixtura.solvers import Stack
from test_bad_input import refused

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def short(monkeypatch):
    """A path of four levels, and few rows: long enough for what these tests ask."""
    monkeypatch.setattr(clusters, "LARGEST", 4)


@pytest.fixture(scope="module")
def ripley():
    return make_ripley(40, random_state=0)


def choose(X, priors, n_components, criterion):
    (prior,), generator = priors, torch.Generator().manual_seed(0)
    source = TensorSource(torch.from_numpy(X))
    about = describe(source, 1, torch.Generator().manual_seed(0))
    task = Task(source, None, about, Full(), [1], Marginal(), None, None, generator, 2**28, reg_covar=0.0)
    return ComponentSearch(prior, n_components, criterion, generator).run(task)


def path_of(X, priors, criterion) -> ComponentPath:
    return ComponentPath(problem_for(X), Full(), priors, Search(criterion), torch.Generator().manual_seed(0))


def problem_for(X):
    source = TensorSource(torch.from_numpy(X))
    return problem_of(source, frame=describe(source, 1, torch.Generator().manual_seed(0)).frame)


def stripes(seed, n_stripes=4):
    """Parallel and long: k-means cuts them across."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(size=(80, 2)) * [20, 1] + [0, 6 * i] for i in range(n_stripes)])


def test_rounded_values_are_not_taken_for_clusters():
    """The petals of iris are rounded to millimetres, so that many samples are equal."""
    petals = load_iris().data[:, 2:]
    model = GaussianMixture("auto", random_state=0).fit(petals)
    assert model.mixture_.n_components == 3
    smallest = np.linalg.eigvalsh(model.covariances_).min()
    assert smallest > 0.1 * np.linalg.eigvalsh(np.cov(petals.T)).min()
    widths = GaussianMixture("auto", random_state=0).fit(petals[:, 1:])
    assert float(widths.covariances_.min()) > 1e-3 * petals[:, 1].var()


def test_long_clusters_that_mislead_kmeans_are_counted_right():
    actual, usual = [], []
    for seed in range(3):
        X = stripes(seed)
        actual.append(GaussianMixture("auto", random_state=0).fit(X).mixture_.n_components)
        fits = [GaussianMixture(k, random_state=0, max_iter=500).fit(X) for k in range(1, 8)]
        usual.append(1 + int(np.argmin([fit.bic(X) for fit in fits])))
    assert actual == [4, 4, 4]
    assert sum(k == 4 for k in usual) <= 1


def test_bic_of_one_candidate_is_that_of_the_estimator(ripley, short):
    X, _ = ripley
    model = GaussianMixture("auto", prior="default", random_state=0, tol=1e-8, max_iter=1000).fit(X)
    best = model.search_.best
    assert_close(best.score * len(X), model.bic(X), 1e-3)
    assert best.score == min(c.score for c in model.search_)
    assert model.mixture_.n_components == best.what["n_components"]


def test_large_data_is_compared_on_a_part(monkeypatch):
    monkeypatch.setattr(clusters, "SELECTION_ROWS", 150)
    X = stripes(1)
    assert len(path_of(X, [None], "bic").counts) == 150
    batches = [X[i : i + 50] for i in range(0, len(X), 50)]
    model = GaussianMixture("auto", random_state=0).fit(batches)
    assert model.mixture_.n_components > 1


@pytest.mark.parametrize("name", COVARIANCES)
def test_one_component_fewer_is_the_cheapest_merge(name, rng, device):
    """Of every member by itself, as `reduced` merges it."""
    case = COVARIANCES[name]
    mixtures = [random_mixture(case, rng, device) for _ in range(3)]
    smaller = one_fewer(Stack.of(case.structure, mixtures), [1, 1, 2])
    for before, after in zip(mixtures, smaller, strict=True):
        expected, _ = reduce_components(before, [1, 1, 2])
        assert after.class_of.tolist() == expected.class_of.tolist() == [0, 1, 2, 2]
        assert_close(after.weights, expected.weights)
        assert_close(after.means, expected.means)
        if name in ("full", "diag"):
            assert_close(after.covariances, expected.covariances)


def test_penalties_are_ten_and_differ():
    for dense in (True, False):
        assert len(set(penalties(6, dense))) == 10


@pytest.mark.parametrize("criterion", ["bic", "icl"])
def test_information_criteria_equal_the_twin(criterion, ripley):
    X, _ = ripley
    actual = choose(X, [Shrinkage(4.0)], 3, criterion)
    (candidate,) = actual.table
    total = 0.0
    for own in reference.log_joint(X, reference.twin_of(actual.task.start)):
        total -= 2 * logsumexp(own)
        shares = np.exp(own - logsumexp(own))
        total -= 2 * (shares * np.log(shares)).sum() if criterion == "icl" else 0.0
    n_parameters = 3 - 1 + 3 * 2 + 3 * 3
    assert_close(candidate.score, (total + n_parameters * np.log(len(X))) / len(X))


def test_rows_are_judged_by_members_that_did_not_see_them(ripley, monkeypatch):
    """Against separate fits of the folds, which the counts of the rows describe."""
    X, _ = ripley
    monkeypatch.setattr(clusters, "PATH_TOL", 0.0)
    monkeypatch.setattr(clusters, "PATH_ITERATIONS", 150)
    prior = Conjugate(5.0, X.var(0))
    path = path_of(X, [prior], "held_out")
    path.walk(1)
    best, counts = path.search.best, path.counts.numpy()
    assert (counts[:, :-1].sum(1) == clusters.N_FOLDS - 1).all()
    losses = np.empty(len(X))
    for fold in range(clusters.N_FOLDS):
        seen = counts[:, fold] > 0
        losses[~seen] = -GaussianMixture(1, prior=prior, tol=1e-12).fit(X[seen]).score_samples(X[~seen])
    assert_close(best.score, losses.mean(), 1e-6)
    assert_close(best.standard_error, losses.std() / np.sqrt(len(X)), 1e-6)


def test_out_of_bag_densities_are_those_of_several_members(ripley):
    X, _ = ripley
    density = choose(X, [Shrinkage(4.0)], 2, "out_of_bag").table.best
    assert abs(density.score + GaussianMixture(2, prior="default").fit(X).score(X)) < 0.5


def test_going_on_keeps_what_was_chosen(ripley, short):
    X, _ = ripley
    density = GaussianMixture("auto", prior="auto", warm_start=True, max_iter=1, tol=0.0, random_state=0)
    with pytest.warns(ConvergenceWarning):
        density.fit(X)
    first = density.search_
    density.set_params(max_iter=500, tol=1e-4).fit(X)
    assert density.search_ is first
    assert density.mixture_.n_components == first.best.what["n_components"]


def test_averages_choose_once(ripley, short):
    X, _ = ripley
    density = AveragedMixture(GaussianMixture("auto"), 3, random_state=0).fit(X)
    assert {m.n_components for m in density.mixtures_} == {density.search_.best.what["n_components"]}


def test_mistakes(ripley):
    X, _ = ripley
    refused(
        lambda: choose(X, [None], None, "aic"),
        "criterion must be one of 'held_out', 'out_of_bag', 'bic', 'icl'; got 'aic'.",
    )
