"""Choosing numbers of components and penalties: against slow twins, and on clusters that mislead k-means."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning

import reference
from cases import COVARIANCES, assert_close, problem_of, random_mixture
from mixtura import AveragedMixture, AveragedMixtureClassifier, GaussianMixture, MixtureClassifier
from mixtura.covariances import Full, Tied
from mixtura.datasets import make_ripley
from mixtura.engine.sources import TensorSource
from mixtura.init.description import describe
from mixtura.priors import Conjugate, Shrinkage
from mixtura.selection import search
from mixtura.selection.merging import one_fewer, reduced
from mixtura.selection.search import Ground, choose, penalties
from mixtura.solvers import Stack
from test_bad_input import refused

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def short(monkeypatch):
    """A path of four levels, and few rows: long enough for what these tests ask."""
    monkeypatch.setattr(search, "LARGEST", 4)


@pytest.fixture(scope="module")
def ripley():
    return make_ripley(40, random_state=0)


def ground_of(X, y=None, structure=None, weights=None, seed=0) -> Ground:
    labels = None if y is None else torch.from_numpy(y)
    source = TensorSource(torch.from_numpy(X), labels, weights=None if weights is None else torch.from_numpy(weights))
    generator, n_classes = torch.Generator().manual_seed(seed), 1 if y is None else int(y.max()) + 1
    frame = describe(source, n_classes, generator).frame
    problem = problem_of(source, frame=frame)
    return Ground(problem, n_classes, structure or Full(), "kmeans", generator)


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
    found, usual = [], []
    for seed in range(3):
        X = stripes(seed)
        found.append(GaussianMixture("auto", random_state=0).fit(X).mixture_.n_components)
        fits = [GaussianMixture(k, random_state=0, max_iter=500).fit(X) for k in range(1, 8)]
        usual.append(1 + int(np.argmin([fit.bic(X) for fit in fits])))
    assert found == [4, 4, 4]
    assert sum(k == 4 for k in usual) <= 1


@pytest.mark.parametrize("criterion", ["bic", "icl"])
def test_information_criteria_equal_the_twin(criterion, ripley):
    X, y = ripley
    ground = ground_of(X, y)
    found = choose(ground, [Shrinkage(4.0)], [2, 1], criterion)
    (candidate,) = found.candidates
    twin = reference.twin_of(found.start)
    joint = reference.log_joint(X, twin)
    total = 0.0
    for row, label in zip(joint, y, strict=True):
        own = row[twin.class_of == label]
        total -= 2 * logsumexp(own)
        shares = np.exp(own - logsumexp(own))
        total -= 2 * (shares * np.log(shares)).sum() if criterion == "icl" else 0.0
    n_parameters = 3 - 1 + 3 * 2 + 3 * 3
    assert_close(candidate.score, (total + n_parameters * np.log(len(X))) / len(X))


def test_bic_of_one_candidate_is_that_of_the_estimator(ripley, short):
    X, _ = ripley
    model = GaussianMixture("auto", prior="default", random_state=0, tol=1e-8, max_iter=1000).fit(X)
    best = model.selection_.best
    assert_close(best.score * len(X), model.bic(X), 1e-3)
    assert best.score == min(c.score for c in model.selection_.candidates)
    assert model.mixture_.n_components == best.n_components[0]


@pytest.mark.parametrize("criterion", ["log_loss", "held_out"])
def test_rows_are_judged_by_members_that_did_not_see_them(criterion, ripley, monkeypatch):
    """Against separate fits of the folds, which the counts of the rows describe."""
    X, y = ripley
    monkeypatch.setattr(search, "PATH_TOL", 0.0)
    monkeypatch.setattr(search, "PATH_ITERATIONS", 150)
    prior = Conjugate(5.0, X.var(0))
    ground = ground_of(X, y)
    rows, columns = search._prepared(ground, criterion)
    levels = search._walk(ground, rows, columns, [prior], [1, 1], criterion)
    found = search._chosen(ground, rows, levels, [prior], criterion)
    counts = next(rows.blocks()).counts.numpy()
    assert counts.shape == (len(X), search.N_FOLDS + 1)
    assert (counts[:, :-1].sum(1) == search.N_FOLDS - 1).all()
    losses = np.empty(len(X))
    for fold in range(search.N_FOLDS):
        seen = counts[:, fold] > 0
        model = MixtureClassifier(prior=prior, tol=1e-12, max_iter=500).fit(X[seen], y[seen])
        joint = model.predict_joint_log_proba(X[~seen])
        own = joint[np.arange(len(joint)), y[~seen]]
        losses[~seen] = -own if criterion == "held_out" else logsumexp(joint, axis=1) - own
    assert_close(found.best.score, losses.mean(), 1e-6)
    assert_close(found.best.error, losses.std() / np.sqrt(len(X)), 1e-6)


def test_out_of_bag_rows_are_judged_by_several_members(ripley, short):
    X, y = ripley
    found = choose(ground_of(X, y), [Shrinkage(2.0), Shrinkage(8.0)], None, "out_of_bag")
    assert len(found.candidates) >= 2 * 4
    assert 0.1 < found.best.score < 0.6
    density = choose(ground_of(X), [Shrinkage(4.0)], [2], "out_of_bag")
    assert abs(density.best.score + GaussianMixture(2, prior="default").fit(X).score(X)) < 0.5


def test_every_class_may_have_its_own_number():
    rng = np.random.default_rng(0)
    X = np.concatenate([stripes(0, 3), rng.normal(size=(240, 2)) * 20 + [0, 80]])
    y = np.repeat([0, 1], 240)
    found = choose(ground_of(X, y), [None], None, "bic")
    assert found.best.n_components == (3, 1)
    assert [part.stop - part.start for part in found.start.class_slices] == [3, 1]
    assert_close(found.start.weights.sum(), 1.0)


def test_classes_that_share_a_covariance_have_one_number(ripley, short):
    X, y = ripley
    found = choose(ground_of(X, y, Tied(Full())), [Shrinkage(4.0)], None, "bic")
    assert len(set(found.best.n_components)) == 1


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical", "low_rank"])
def test_both_are_chosen_for_every_covariance(covariance_type, ripley, short):
    X, y = ripley
    model = MixtureClassifier("auto", prior="auto", covariance_type=covariance_type, random_state=0).fit(X, y)
    assert model.n_components_.tolist() == list(model.selection_.best.n_components)
    assert model.score(X, y) > 0.8
    assert len(model.selection_.table()) == len(model.selection_.candidates)
    assert set(model.selection_.table()[0]) == {"n_components", "prior", "log_loss", "error"}


def test_a_chosen_model_is_the_fit_with_those_arguments(ripley, short):
    X, y = ripley
    model = MixtureClassifier("auto", prior="auto", random_state=0).fit(X, y)
    best = model.selection_.best
    numbers = dict(zip([0, 1], best.n_components, strict=True))
    again = MixtureClassifier(numbers, prior=best.prior, init=model.mixture_, random_state=0).fit(X, y)
    assert_close(again.predict_proba(X), model.predict_proba(X), 1e-2)
    same = MixtureClassifier("auto", prior="auto", random_state=0).fit(X, y)
    np.testing.assert_array_equal(same.predict_proba(X), model.predict_proba(X))


def test_missing_cells_unlabeled_rows_weights_and_soft_labels(ripley, short):
    X, y = (part.copy() for part in ripley)
    soft = np.where(np.eye(2)[y] == 1, 0.9, 0.1)
    X[::5, 0], y[::4] = np.nan, -1
    weights = np.linspace(0.5, 2, len(y))
    model = MixtureClassifier("auto", prior=Shrinkage(4.0), unlabeled=-1, random_state=0, max_iter=500)
    assert model.fit(X, y, weights).score(*ripley) > 0.8
    # Soft labels have no row to judge by a label of its own: judged by the largest share.
    assert MixtureClassifier(1, prior="auto", random_state=0).fit(X, soft).score(*ripley) > 0.7


def test_averages_share_out_the_candidates(ripley, short):
    X, y = ripley
    model = AveragedMixtureClassifier(MixtureClassifier("auto", prior="auto"), 7, random_state=0).fit(X, y)
    found = model.selection_
    assert_close(sum(candidate.share for candidate in found.candidates), 1.0)
    chosen = found.shared_out(7)
    sizes = [tuple(m.class_of.bincount().tolist()) for m in model.mixtures_]
    assert sizes == [candidate.n_components for candidate in chosen]
    for candidate in found.candidates:
        assert abs(sum(other is candidate for other in chosen) - 7 * candidate.share) < 1
    assert 1 < len({id(candidate) for candidate in chosen}) < len(found.candidates)
    assert np.isfinite(model.predict_proba(X)).all()
    density = AveragedMixture(GaussianMixture("auto", prior="auto"), 3, random_state=0).fit(X)
    assert {m.n_components for m in density.mixtures_} == {density.selection_.best.n_components[0]}


@pytest.mark.parametrize("criterion", ["log_loss", "held_out"])
def test_shares_make_the_best_average_of_the_candidates(criterion, ripley, short, monkeypatch):
    """No other weights of the candidates predict the rows held out better: no slope on the simplex is above one."""
    X, y = ripley
    monkeypatch.setattr(search, "STACKING_ITERATIONS", 20_000)
    weights = np.linspace(0.5, 2, len(y))
    ground = ground_of(X, y, weights=weights)
    priors = [Shrinkage(2.0), Shrinkage(30.0, variances="covariance", mean_strength=5.0)]
    rows, columns = search._prepared(ground, criterion)
    levels = search._walk(ground, rows, columns, priors, None, criterion)
    found = search._chosen(ground, rows, levels, priors, criterion)
    own = []
    for level in levels:
        joint = level.unseen.numpy()  # (P, C, n)
        right = joint[:, y, np.arange(len(y))]
        own.append(right if criterion == "held_out" else right - logsumexp(joint, axis=1))
    likelihoods = np.exp(np.concatenate(own))  # (M, n)
    shares = np.array([candidate.share for candidate in found.candidates[: len(likelihoods)]])
    slopes = (likelihoods / (shares @ likelihoods)) @ weights / weights.sum()
    assert slopes.max() < 1.01
    assert_close(slopes[shares > 0.05], 1.0, 0.01)
    (only,) = {id(c) for c in choose(ground_of(X, y), priors, None, "bic").shared_out(3)}
    assert only


def test_going_on_keeps_what_was_chosen(ripley, short):
    X, y = ripley
    model = MixtureClassifier("auto", prior="auto", warm_start=True, max_iter=1, random_state=0)
    density = GaussianMixture("auto", prior="auto", warm_start=True, max_iter=1, tol=0.0, random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y), density.fit(X)
    first = model.selection_, density.selection_
    model.set_params(max_iter=500).fit(X, y)
    density.set_params(max_iter=500, tol=1e-4).fit(X)
    assert (model.selection_, density.selection_) == first
    assert model.converged_


def test_large_data_is_compared_on_a_part(monkeypatch):
    monkeypatch.setattr(search, "SELECTION_ROWS", 150)
    X = stripes(1)
    ground = ground_of(X)
    rows, _ = search._prepared(ground, "bic")
    assert len(next(rows.blocks()).rows) == 150
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
        expected, _ = reduced(before, [1, 1, 2])
        assert after.class_of.tolist() == expected.class_of.tolist() == [0, 1, 2, 2]
        assert_close(after.weights, expected.weights)
        assert_close(after.means, expected.means)
        if name in ("full", "diag"):
            assert_close(after.covariances, expected.covariances)


def test_the_path_is_drawn(ripley, short):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    from mixtura.plotting import plot_density, plot_selection

    X, y = ripley
    model = MixtureClassifier("auto", prior="auto", random_state=0).fit(X, y)
    ax = plot_selection(model)
    assert len(ax.containers) == 10
    assert ax.get_ylabel() == "log loss"
    assert_close(ax.lines[-1].get_ydata(), [model.selection_.best.score])
    assert plot_density(model, X).images[0].get_array().max() > 0
    pyplot.close("all")
    fixed = MixtureClassifier().fit(X, y)
    refused(
        lambda: plot_selection(fixed),
        "plot_selection needs the candidates of a search; this MixtureClassifier was fitted without one. "
        "Fit it with "
        'n_components="auto" or prior="auto".',
    )
    refused(lambda: plot_density(model, X[:, :1]), "X must have shape (n_samples, 2) for plot_density; got (80, 1).")


def test_penalties_are_ten_and_differ():
    for dense in (True, False):
        assert len(set(penalties(6, dense))) == 10


def test_mistakes(ripley):
    X, y = ripley
    refused(
        lambda: choose(ground_of(X), [None], None, "aic"),
        "criterion must be one of 'log_loss', 'held_out', 'out_of_bag', 'bic', 'icl'; got 'aic'.",
    )
    refused(
        lambda: MixtureClassifier("auto", prior="strong").fit(X, y),
        "prior must be one of 'default', \"auto\", None or a prior object; got 'strong'.",
    )
    refused(lambda: MixtureClassifier("many").fit(X, y), "n_components must be an integer of at least 1; got 'many'.")
