"""Averages of mixtures: trained together as they would be alone, out-of-bag figures, merging."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss

import mixtura
import reference
from cases import (
    COVARIANCES,
    KINDS,
    VARIANCES,
    assert_close,
    assert_same_mixture,
    every_updated_covariance,
    problem_of,
    random_data,
    random_mixture,
    tensor,
)
from mixtura import AveragedMixture, AveragedMixtureClassifier, GaussianMixture, MixtureClassifier
from mixtura.datasets import make_ripley
from mixtura.engine.sources import TensorSource
from mixtura.objectives import Joint, Members
from mixtura.priors import Conjugate
from mixtura.selection.merging import reduce_components
from mixtura.solvers import EM, MemberFit, Outcome, Stack, run, run_together
from mixtura.values.targets import Targets
from test_bad_input import refused

pytestmark = pytest.mark.usefixtures("one_thread")

N_MEMBERS = 3


def priors(device):
    variances = tensor(VARIANCES, device)
    return [None, Conjugate(3.0, variances), Conjugate(1.0, variances, 2.0, torch.ones_like(variances), 2.0)]


@every_updated_covariance
@pytest.mark.parametrize("name", ["all_hard", "all_soft"])
def test_members_end_where_each_would_end_alone(case, name, rng, device):
    data = random_data(KINDS[name], rng, n_rows=150)
    counts = rng.multinomial(150, np.full(150, 1 / 150), size=N_MEMBERS).T
    base = np.ones(150) if data.weights is None else data.weights
    starts = [random_mixture(case, rng, device) for _ in range(N_MEMBERS)]
    source = data.source(device)
    problems = [problem_of(source, prior) for prior in priors(device)]
    block = next(source.blocks())
    together = TensorSource(block.rows, block.labels, block.shares, block.weights, tensor(counts, device))
    tasks = [
        MemberFit(problem, start, float(counts[:, b] @ base), b)
        for b, (problem, start) in enumerate(zip(problems, starts, strict=True))
    ]
    results = run_together(case.structure, tasks, together, 12, 1e-3)
    for b, (task, result) in enumerate(zip(tasks, results, strict=True)):
        seen = data.changed(weights=counts[:, b] * base).source(device)
        alone = run(EM(), replace(task.problem, source=seen), task.start, 12, 1e-3)
        assert_same_mixture(result.mixture, alone.mixture, 1e-8)
        assert_close([r.objective for r in result.history], [r.objective for r in alone.history])
        assert result.outcome is alone.outcome


def test_members_with_unlike_numbers_of_components(rng, device):
    case, data = COVARIANCES["full"], random_data(KINDS["complete"], rng, n_rows=80)
    starts = [random_mixture(case, rng, device, class_of=np.zeros(k, int)) for k in (1, 4, 2)]
    source = data.source(device)
    problem = problem_of(source)
    results = run_together(case.structure, [MemberFit(problem, start, 80.0) for start in starts], source, 5, 0.0)
    for start, result in zip(starts, results, strict=True):
        assert_same_mixture(result.mixture, run(EM(), problem, start, 5, 0.0).mixture)
        assert result.outcome is Outcome.LIMIT


def test_rows_that_a_member_has_not_seen_are_scored(rng, device):
    mixtures = [random_mixture(COVARIANCES["full"], rng, device, class_of=np.zeros(2, int)) for _ in range(2)]
    stack = Stack.of(COVARIANCES["full"].structure, mixtures)
    counts = torch.tensor([[0, 2], [1, 0], [3, 1]], device=device)
    rows = tensor(rng.normal(size=(3, 4)), device)
    log_joint = stack.mixture.log_joint(rows).T
    source = TensorSource(rows, counts=counts)
    block = next(source.blocks())
    objective = Members(stack.member_of, torch.arange(2, device=device))
    actual = objective.evaluate(log_joint, Targets(stack.mixture.class_of, counts=block.counts, components=slice(0, 4)))
    own = torch.stack([m.log_joint(rows).logsumexp(1) for m in mixtures])  # (B, n)
    assert_close(actual.values[:2], counts.T * own)
    assert_close(actual.values[2:], torch.where(counts.T == 0, own, 0.0))
    for b, mixture in enumerate(mixtures):
        alone = Joint().evaluate(mixture.log_joint(rows).T, Targets(mixture.class_of))
        assert_close(actual.numerator[stack.places[b]], alone.numerator * counts[:, b])


# ---- estimators --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ripley():
    return make_ripley(60, random_state=0)


def test_the_average_is_the_mean_of_the_densities(ripley):
    X, _ = ripley
    model = AveragedMixture(GaussianMixture(2, prior="default"), 4, random_state=0).fit(X)
    densities = [np.exp(reference.log_joint(X[:9], reference.twin_of(m))).sum(1) for m in model.mixtures_]
    assert_close(model.score_samples(X[:9]), np.log(np.mean(densities, 0)))
    assert_close(model.to_mixture().score_samples(X), model.score_samples(X))
    assert (model.mixture_.n_components, len(model.mixtures_)) == (8, 4)
    assert_close(model.mixture_.weights.sum(), 1.0)


@pytest.mark.parametrize("combine", ["posterior", "density"])
def test_posteriors_or_densities_are_averaged(ripley, combine):
    X, y = ripley
    model = AveragedMixtureClassifier(MixtureClassifier(2), 4, combine=combine, random_state=0).fit(X, y)
    joints = []
    for mixture in model.mixtures_:
        densities = np.exp(reference.log_joint(X[:9], reference.twin_of(mixture)))
        joints.append(np.stack([densities[:, mixture.class_of == c].sum(1) for c in (0, 1)], 1))
    joints = np.array(joints)  # (B, n, C)
    posterior = (joints / joints.sum(2, keepdims=True)).mean(0)
    if combine == "density":
        posterior = joints.mean(0) / joints.mean(0).sum(1, keepdims=True)
    assert_close(model.predict_proba(X[:9]), posterior)
    assert_close(model.score_samples(X[:9]), np.log(joints.mean(0).sum(1)))
    assert_close(np.exp(model.predict_joint_log_proba(X[:9])).sum(1), joints.mean(0).sum(1))
    if combine == "density":
        assert_close(model.to_mixture().predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_members_are_classifiers_of_their_rows(ripley, seed):
    """A member is what MixtureClassifier makes of the same rows: EM that goes on from it stays where it is."""
    X, y = ripley
    options = {"prior": Conjugate(4.0, X.var(0)), "tol": 1e-10, "max_iter": 2000}
    base = MixtureClassifier(2, **options)
    model = AveragedMixtureClassifier(base, 1, resampling="subset", fraction=0.5, random_state=seed).fit(X, y)
    (member,), seen = model.mixtures_, np.isnan(model.oob_decision_function_[:, 0])
    assert np.bincount(y[seen]).tolist() == (np.bincount(y) // 2).tolist()  # of each class, whatever their number
    again, others = (MixtureClassifier(2, init=member, **options).fit(X[own], y[own]).mixture_ for own in (seen, ~seen))
    assert_same_mixture(again, member, 1e-4)
    assert float((others.means - member.means).abs().max()) > 0.01


@pytest.mark.parametrize("resampling", ["none", "subset", "bootstrap"])
def test_out_of_bag_figures(ripley, resampling):
    X, y = ripley
    model = AveragedMixtureClassifier(MixtureClassifier(2), 8, resampling=resampling, random_state=0).fit(X, y)
    density = AveragedMixture(GaussianMixture(3, prior="default"), 8, resampling=resampling, random_state=0).fit(X)
    if resampling == "none":
        assert not hasattr(model, "oob_score_")
        assert not hasattr(density, "oob_score_")
        return
    judged = ~np.isnan(model.oob_decision_function_[:, 0])
    assert judged.mean() > 0.9
    assert_close(model.oob_decision_function_[judged].sum(1), 1.0)
    assert_close(model.oob_score_, (model.oob_decision_function_[judged].argmax(1) == y[judged]).mean())
    assert_close(model.oob_log_loss_, log_loss(y[judged], model.oob_decision_function_[judged]), 1e-7)
    assert model.oob_score_ > 0.75
    assert density.oob_score_ < density.score(X)
    assert_close(density.oob_score_, np.nanmean(density.oob_log_density_))


def test_out_of_bag_figures_are_those_of_the_members_that_did_not_see_the_row(ripley):
    """The rows of a member are found from these figures; EM on them that goes on from the member stays where it is."""
    X, _ = ripley
    options = {"prior": Conjugate(4.0, X.var(0)), "tol": 1e-10, "max_iter": 2000}
    model = AveragedMixture(GaussianMixture(2, **options), 2, resampling="subset", fraction=0.5, random_state=3).fit(X)
    own = np.stack([m.log_joint(torch.from_numpy(X)).logsumexp(1).numpy() for m in model.mixtures_])
    actual = model.oob_log_density_
    by_both = np.isclose(actual, np.logaddexp(*own) - np.log(2), rtol=1e-9)
    by_one = np.isclose(actual, own, rtol=1e-9)  # (2, n)
    assert (by_one.sum(0) + by_both + np.isnan(actual) == 1).all()
    for member, unseen, other in zip(model.mixtures_, by_one | by_both, own[::-1], strict=True):
        seen = ~unseen
        assert seen.sum() == len(X) // 2
        assert_close(actual[seen & ~np.isnan(actual)], other[seen & ~np.isnan(actual)])
        start = {"weights_init": member.weights, "means_init": member.means}
        start["precisions_init"] = torch.linalg.inv(member.covariances)
        again, others = (GaussianMixture(2, **start, **options).fit(X[rows]).mixture_ for rows in (seen, unseen))
        assert_same_mixture(again, member, 1e-4)
        assert float((others.means - member.means).abs().max()) > 0.01


def test_missing_values_unlabeled_rows_and_weights(ripley, rng):
    X, y = ripley
    X, y = X.copy(), y.copy()
    X[::4, 0], y[::3] = np.nan, -1
    weights = rng.uniform(0.5, 2, len(y))
    base = MixtureClassifier(2, covariance_type="tied", unlabeled=-1, max_iter=500)
    model = AveragedMixtureClassifier(base, 3, random_state=0).fit(X, y, weights)
    assert np.isfinite(model.predict_proba(X)).all()
    assert model.classes_.tolist() == [0, 1]
    filled = model.impute(X)
    assert np.isfinite(filled).all()
    soft = np.where(np.eye(2)[ripley[1]] == 1, 0.9, 0.1)
    assert AveragedMixtureClassifier(base, 3, random_state=0).fit(X, soft).score(*ripley) > 0.8


def test_the_same_seed_gives_the_same_average(ripley):
    X, y = ripley
    first, second = (
        AveragedMixtureClassifier(MixtureClassifier(2), 3, random_state=5).fit(X, y).predict_proba(X) for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)


def test_tensors_and_memory_maps(ripley, tmp_path):
    X, y = ripley
    path = tmp_path / "rows"
    mapped = np.memmap(path, dtype=float, mode="w+", shape=X.shape)
    mapped[:] = X
    expected = AveragedMixtureClassifier(MixtureClassifier(2), 3, random_state=5).fit(X, y).predict_proba(X)
    for rows in (torch.from_numpy(X), mapped):
        model = AveragedMixtureClassifier(MixtureClassifier(2), 3, random_state=5).fit(rows, y)
        assert_close(model.predict_proba(rows), expected)


def test_several_starts_for_every_member(ripley):
    X, _ = ripley
    one, five = (
        AveragedMixture(GaussianMixture(4, prior="default", n_init=n, init_params="random"), 3, random_state=0).fit(X)
        for n in (1, 5)
    )
    assert five.history_[-1].objective > one.history_[-1].objective


def test_members_that_do_not_converge_are_counted(ripley):
    X, y = ripley
    with pytest.warns(ConvergenceWarning, match="4 of the 4 members of AveragedMixtureClassifier did not converge"):
        AveragedMixtureClassifier(MixtureClassifier(3, max_iter=2, tol=0.0), 4, random_state=0).fit(X, y)


# ---- merging -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["full", "diag", "spherical", "tied_full", "low_rank_2"])
def test_merging_keeps_the_moments_of_every_class(name, rng, device):
    mixture = random_mixture(COVARIANCES[name], rng, device)
    small, merges = reduce_components(mixture, [1, 1, 1])
    assert small.class_of.tolist() == [0, 1, 2]
    assert [left for left, _ in merges] == [1, 1]
    assert all(loss > 0 for _, loss in merges)
    for c, part in enumerate(mixture.class_slices):
        weights = mixture.weights[part] / mixture.weights[part].sum()
        mean = weights @ mixture.means[part]
        off = mixture.means[part] - mean
        matrix = (weights[:, None, None] * (mixture.covariances[part] + off.unsqueeze(-1) * off.unsqueeze(-2))).sum(0)
        assert_close(small.means[c], mean)
        assert_close(small.weights[c], mixture.weights[part].sum())
        actual = small.covariances[c]
        if name in ("diag", "spherical"):
            matrix = torch.diag(matrix.diagonal())
        assert_close(actual, matrix)


def test_the_cheapest_pair_is_merged_first(rng, device):
    """Against all pairs, by the loss of Runnalls (2007) written out."""
    mixture = random_mixture(COVARIANCES["full"], rng, device, class_of=np.zeros(5, int))
    twin = reference.twin_of(mixture)
    losses = {}
    for i in range(5):
        for j in range(i + 1, 5):
            w, m, S = zip(*[(twin.weights[k], twin.means[k], twin.covariances[k]) for k in (i, j)], strict=True)
            total, mean = sum(w), (w[0] * m[0] + w[1] * m[1]) / sum(w)
            union = sum(a * (s + np.outer(b - mean, b - mean)) for a, b, s in zip(w, m, S, strict=True)) / total
            parts = sum(a * np.linalg.slogdet(s)[1] for a, s in zip(w, S, strict=True))
            losses[i, j] = 0.5 * (total * np.linalg.slogdet(union)[1] - parts)
    (i, j), loss = min(losses.items(), key=lambda item: item[1])
    small, merges = reduce_components(mixture, [4])
    assert_close(merges[0][1], loss)
    kept = [k for k in range(5) if k not in (i, j)]
    assert all(bool((small.means == mixture.means[k]).all(1).any()) for k in kept)


def test_a_reduced_average_is_a_model_of_its_own(ripley, tmp_path):
    X, y = ripley
    model = AveragedMixtureClassifier(MixtureClassifier(2), 6, random_state=0).fit(X, y)
    small = model.reduce(3)
    assert isinstance(small, MixtureClassifier)
    assert small.n_components_.tolist() == [3, 3]
    assert small.score(X, y) > model.score(X, y) - 0.05
    small.save(tmp_path / "small")
    np.testing.assert_array_equal(mixtura.load(tmp_path / "small").predict_proba(X), small.predict_proba(X))
    density = AveragedMixture(GaussianMixture(3, covariance_type="tied", prior="default"), 4, random_state=0).fit(X)
    assert density.reduce(5).covariances_.shape == (5, 2, 2)
    assert density.reduce(50).n_components == 12  # no more than there are


@pytest.mark.parametrize(
    "model",
    [
        AveragedMixture(GaussianMixture(2, covariance_type="tied", prior="default"), 3, random_state=0),
        AveragedMixtureClassifier(MixtureClassifier(2, covariance_type="diag"), 3, random_state=0),
        AveragedMixtureClassifier(n_estimators=3, resampling="none", combine="density", random_state=0),
    ],
    ids=["density", "posterior", "averaged densities"],
)
def test_an_average_is_saved_whole(model, ripley, tmp_path):
    X, y = ripley
    model.fit(X, y).save(tmp_path / "model")
    loaded = mixtura.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.score_samples(X), model.score_samples(X))
    if hasattr(model, "predict_proba"):
        np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert repr(loaded) == repr(model)
    for mixture, expected in zip(loaded.mixtures_, model.mixtures_, strict=True):
        assert_same_mixture(mixture, expected, 1e-14)
        assert mixture.n_parameters == expected.n_parameters


# ---- mistakes ----------------------------------------------------------------------------------------------------

ARGUMENTS = [
    ({"n_estimators": 0}, "n_estimators must be an integer of at least 1; got 0."),
    ({"resampling": "jackknife"}, "resampling must be one of 'none', 'subset', 'bootstrap'; got 'jackknife'."),
    ({"fraction": 0.0}, "fraction must be a number above 0 and at most 1; got 0.0."),
    ({"fraction": 1.5}, "fraction must be a number above 0 and at most 1; got 1.5."),
]


@pytest.mark.parametrize(("arguments", "text"), ARGUMENTS)
@pytest.mark.parametrize("estimator", [AveragedMixture, AveragedMixtureClassifier])
def test_bad_arguments(estimator, arguments, text, ripley):
    refused(lambda: estimator(**arguments).fit(*ripley), text)


def test_other_mistakes(ripley):
    X, y = ripley
    refused(
        lambda: AveragedMixtureClassifier(combine="vote").fit(X, y),
        "combine must be one of 'posterior', 'density'; got 'vote'.",
    )
    refused(
        lambda: AveragedMixtureClassifier(GaussianMixture()).fit(X, y),
        "estimator must be a MixtureClassifier, or None for one with its defaults; got GaussianMixture.",
        TypeError,
    )
    refused(
        lambda: AveragedMixture().fit([(X, y)]),
        "AveragedMixture does not support an X of batches, since it resamples. Pass an array, a tensor or a memory "
        "map.",
    )
    refused(
        lambda: AveragedMixtureClassifier(MixtureClassifier(1, objective="conditional")).fit(X, y),
        'The members of AveragedMixtureClassifier are trained together by solver="em", which maximises '
        "objective=\"joint\"; got objective 'conditional' and solver='auto'.",
    )
    fitted = AveragedMixture(n_estimators=2, random_state=0).fit(X)
    refused(lambda: fitted.reduce(0), "n_components must be an integer of at least 1; got 0.")
