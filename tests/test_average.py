"""Averages of class posteriors: MixtureClassifier with several members (averaged-posterior)."""

import copy
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import logsumexp
from sklearn.metrics import log_loss

import mixtura
from mixtura import AveragedMixtureClassifier, MixtureClassifier
from mixtura.datasets import make_ripley, remove_values
from mixtura.engine.sources import ArraySource
from mixtura.estimators.mixture_classifier import make_classifier_settings
from mixtura.estimators.refits import refit
from mixtura.estimators.training import make_task, read_training, train
from mixtura.model.mixture import MemberGroup
from mixtura.objectives import Conditional, Hybrid, class_log_joint
from mixtura.priors import Scaled
from mixtura.selection import automatic, comparison
from mixtura.selection.automatic import AutomaticSearch
from mixtura.selection.members import MOST_WEIGHT
from mixtura.selection.scores import grid
from mixtura.selection.search import distinct
from mixtura.selection.task import HybridTraining, Selected, fit_once
from mixtura.solvers import Gradient, Outcome, run

X, Y = make_ripley(60, random_state=0)
HOLES = remove_values(X, 0.3, random_state=1)


def with_members(n_members=3, temperature=0.8, **arguments):
    """A model with members of different structures, transforms and temperatures."""
    model = MixtureClassifier(2, random_state=0, **arguments).fit(X, Y)
    weights, others = (
        (2.0, 0.5),
        [
            MixtureClassifier(1, warp="johnson", temperature=2.5, random_state=0).fit(np.sinh(X), Y),
            MixtureClassifier(3, covariance_type="diag", temperature=1.5, random_state=1).fit(X, Y),
        ][: n_members - 1],
    )
    model.temperature_, model.label_noise_ = 1.3, 0.01
    model.further_members_ = tuple(
        MemberGroup(other.mixture_, other.warp_, other.temperature_, weight)
        for other, weight in zip(others, weights, strict=False)
    )
    model.average_temperature_ = temperature
    return model


def posterior_twin(model, X):
    """Log posteriors of the average, by loops over members and samples."""
    prior = model.training_prior_ if model.training_prior_ is not None else model.class_prior_
    change = np.log(model.class_prior_) - np.log(prior)
    observed = 1 - np.isnan(X).mean(1)

    def calibrated(scores, temperature):
        tempered = scores / (1 + (temperature - 1) * observed[:, None])
        tempered = tempered - logsumexp(tempered, axis=1, keepdims=True)
        return np.log((1 - model.label_noise_) * np.exp(tempered) + model.label_noise_ * prior)

    total = 0.0
    for member in model.members_:
        rows = torch.from_numpy(X)
        rows = rows if member.warp is None else member.warp.forward(rows)
        joint = member.mixture.log_joint(rows).numpy()
        scores = np.stack([logsumexp(joint[:, part], axis=1) for part in member.mixture.class_slices], 1)
        total = total + member.weight * np.exp(calibrated(scores - change, member.temperature))
    total = total / sum(member.weight for member in model.members_)
    average = calibrated(np.log(total), model.average_temperature_) + change
    return average - logsumexp(average, axis=1, keepdims=True)


@pytest.mark.parametrize("n_members", [2, 3])
@pytest.mark.parametrize("rows", [X, HOLES, X[:1]], ids=["complete", "missing", "one row"])
def test_posteriors_are_those_of_the_twin(n_members, rows):
    model = with_members(n_members)
    np.testing.assert_allclose(model.predict_log_proba(rows), posterior_twin(model, rows), atol=1e-10)
    assert (model.predict(rows) == model.classes_[posterior_twin(model, rows).argmax(1)]).all()


def test_one_more_member_changes_posteriors_and_not_the_density():
    alone, average = with_members(1), with_members(3)
    assert np.abs(alone.predict_proba(X) - average.predict_proba(X)).max() > 0.01
    np.testing.assert_array_equal(alone.score_samples(HOLES), average.score_samples(HOLES))
    assert average.responsibilities(X).shape[1] == len(average.weights_)
    assert average.n_parameters_ == sum(member.mixture.n_parameters for member in average.members_)


def test_equal_members_are_the_member():
    model = with_members(1)
    expected = model.predict_proba(HOLES)
    model.further_members_ = (MemberGroup(model.mixture_, None, model.temperature_),) * 2
    model.average_temperature_, model.label_noise_ = 1.0, 0.0
    alone = copy.copy(model)
    alone.further_members_ = ()
    np.testing.assert_allclose(model.predict_proba(HOLES), alone.predict_proba(HOLES), atol=1e-12)
    assert np.abs(expected - alone.predict_proba(HOLES)).max() > 1e-4  # noise matters


def test_a_new_class_prior_changes_the_odds_of_the_average_by_its_own():
    model = with_members()
    changed = model.with_class_prior([0.9, 0.1])
    odds, other = (np.diff(m.predict_log_proba(HOLES))[:, 0] for m in (model, changed))
    expected = np.log(0.1 / 0.9) - np.diff(np.log(model.class_prior_))
    np.testing.assert_allclose(other - odds, np.repeat(expected, len(odds)), atol=1e-9)
    np.testing.assert_allclose(changed.predict_log_proba(HOLES), posterior_twin(changed, HOLES), atol=1e-10)


def test_a_sample_without_observed_values_gets_the_class_prior():
    model = with_members()
    np.testing.assert_allclose(model.predict_proba([[np.nan, np.nan]])[0], model.class_prior_, atol=1e-3)


def test_files_keep_the_members(tmp_path):
    model = with_members()
    model.save(tmp_path / "model")
    loaded = mixtura.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(HOLES), model.predict_proba(HOLES))
    assert len(loaded.members_) == 3


def test_a_member_of_other_features_is_refused(tmp_path):
    model = with_members(1)
    other = MixtureClassifier(1).fit(np.c_[X, X[:, 0] ** 2], Y)
    model.further_members_ = (MemberGroup(other.mixture_),)
    with pytest.raises(ValueError, match="further_members_"):
        model.save(tmp_path / "model")


def test_tensors_batches_and_explanations_use_the_average():
    model = with_members()
    expected = model.predict_proba(HOLES)
    answer = model.predict_proba(torch.from_numpy(HOLES))
    np.testing.assert_allclose(answer.numpy(), expected, atol=1e-12)
    halves = np.concatenate([model.predict_proba(part) for part in (HOLES[:7], HOLES[7:])])
    np.testing.assert_allclose(halves, expected, atol=1e-12)
    explanation = model.explain(X[:5])
    probabilities = np.sort(model.predict_proba(X[:5]), 1)[:, -1]
    np.testing.assert_allclose(
        explanation.values.sum(1) + explanation.base_values, np.log(probabilities / (1 - probabilities))
    )


def test_graphs_compute_the_average(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = with_members().with_class_prior([0.7, 0.3])
    model.to_onnx(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    probabilities, log_density = session.run(None, {"X": HOLES.astype(np.float32)})
    np.testing.assert_allclose(probabilities, model.predict_proba(HOLES.astype(np.float32)), atol=1e-5)
    np.testing.assert_allclose(log_density, model.score_samples(HOLES.astype(np.float32)), atol=1e-4)


# ---- members from the selection --------------------------------------------------------------------------------------

RANDOM = np.random.default_rng(0)
LABELS = np.arange(150) % 2
SKEWED = np.exp(RANDOM.normal(size=(150, 3)) + 0.7 * LABELS[:, None])


@pytest.fixture(scope="module")
def selected():
    model = MixtureClassifier(random_state=0).fit(SKEWED, LABELS)
    assert len(model.members_) > 1
    return model


def test_the_best_member_is_the_single_model(selected):
    alone = MixtureClassifier(average=1, random_state=0).fit(SKEWED, LABELS)
    assert len(alone.members_) == 1
    np.testing.assert_array_equal(alone.means_, selected.means_)
    np.testing.assert_array_equal(alone.score_samples(SKEWED), selected.score_samples(SKEWED))
    np.testing.assert_array_equal(alone.impute(SKEWED), selected.impute(SKEWED))
    assert alone.bic(SKEWED, LABELS) == selected.bic(SKEWED, LABELS)
    assert alone.temperature_ == selected.temperature_
    assert alone.n_parameters_ < selected.n_parameters_
    assert selected.responsibilities(SKEWED).shape[1] == len(selected.weights_)


def test_the_table_marks_the_members(selected):
    table = selected.search_
    assert table.members[0] == table.best
    assert len(table.members) == len(selected.members_) == sum(record["member"] for record in table.records())
    for candidate, member in zip(table.members, selected.members_, strict=True):
        assert (candidate.what["warp"] is None) == (member.warp is None)
        assert candidate.what["temperature"] == pytest.approx(member.temperature, abs=1e-3)
    marks = [line[0] for line in repr(table).splitlines()[1 : len(selected.members_) + 2]]
    assert marks == ["*"] + ["+"] * (len(selected.members_) - 1) + [" "]


def loss_twin(members, comparison, temperature):
    """Held-out log-losses of the average of trials, by loops."""
    noise, prior, values = comparison.noise, comparison.prior.numpy(), []
    known, observed = comparison.known_shares.numpy(), comparison.observed[comparison.scored].numpy()
    for n in range(len(known)):
        mean = sum(np.exp(trial.fit.posteriors[n].numpy()) for trial in members) / len(members)
        tempered = mean ** (1 / (1 + (temperature - 1) * observed[n]))
        posterior = (1 - noise) * tempered / tempered.sum() + noise * prior
        values.append(-np.log(posterior[known[n].argmax()]))
    return np.array(values)


@pytest.mark.parametrize("rows", [SKEWED, remove_values(SKEWED, 0.3, random_state=0)], ids=["complete", "missing"])
def test_members_are_added_one_by_one_and_kept_if_held_out_samples_gain(rows, monkeypatch):
    calls, choose = [], automatic.select_trials
    monkeypatch.setattr(automatic, "select_trials", lambda *a: calls.append((a, choose(*a))) or calls[-1][1])
    model = MixtureClassifier(random_state=0).fit(rows, LABELS)
    ((comparison, trials, most), (members, temperature)) = calls[0]
    first = members[0]
    assert first.what == model.search_.best.what
    assert most == 3
    assert len({id(trial) for trial in members}) == len(model.members_) <= most
    assert len(members) <= MOST_WEIGHT
    counts = [sum(other is trial for other in members) for trial in distinct(members)]
    assert [member.weight for member in model.members_] == [count / counts[0] for count in counts]
    assert model.average_temperature_ == temperature
    temperatures = grid(first.fit.losses, average=True).tolist()

    def lowest(trials):  # over temperatures, with their prior
        means = [loss_twin(trials, comparison, t).sum() + 2 * np.log(t) ** 2 for t in temperatures]
        return loss_twin(trials, comparison, temperatures[int(np.argmin(means))])

    losses = [first.fit.losses.numpy()]
    for size in range(2, len(members) + 1):
        losses.append(lowest(members[:size]))
        assert losses[-1].mean() < losses[-2].mean()
    gains = losses[0] - losses[-1]
    if len(members) > 1:
        assert gains.mean() > 0.5 * gains.std() / np.sqrt(len(gains))
        np.testing.assert_allclose(loss_twin(members, comparison, temperature), losses[-1], atol=1e-10)
    np.testing.assert_allclose(comparison.calibrate_average(trials)[0], lowest(trials), atol=1e-10)


def test_an_average_that_does_not_gain_is_not_kept(monkeypatch):
    monkeypatch.setattr("mixtura.selection.members.GATE", 100.0)
    model = MixtureClassifier(random_state=0).fit(SKEWED, LABELS)
    assert len(model.members_) == 1
    assert model.average_temperature_ == 1


def test_refits_have_the_same_members(selected):
    copy = refit(selected, SKEWED, LABELS, np.arange(0, 150, 3))
    assert copy.search_ is None
    assert copy.average_temperature_ == selected.average_temperature_
    for own, member in zip(copy.members_, selected.members_, strict=True):
        assert own.temperature == member.temperature
        assert own.mixture.class_sizes == member.mixture.class_sizes
        assert type(own.mixture.covariance) is type(member.mixture.covariance)
    again = refit(selected, SKEWED, LABELS, np.arange(150))
    np.testing.assert_allclose(again.predict_proba(SKEWED), selected.predict_proba(SKEWED), atol=1e-3)


def test_a_warm_start_continues_every_member(selected):
    model = copy.deepcopy(selected).set_params(warm_start=True).fit(SKEWED, LABELS)
    assert len(model.members_) == len(selected.members_)
    assert [m.temperature for m in model.members_] == [m.temperature for m in selected.members_]
    assert model.average_temperature_ == selected.average_temperature_
    np.testing.assert_allclose(model.predict_proba(SKEWED), selected.predict_proba(SKEWED), atol=1e-3)


def test_partial_fit_continues_the_best_member_alone_and_says_so_once(selected):
    model = copy.deepcopy(selected)
    with pytest.warns(UserWarning, match=r"partial_fit continues the best of \d members"):
        model.partial_fit(SKEWED[:50], LABELS[:50])
    assert len(model.members_) == 1
    assert model.temperature_ == selected.temperature_
    model.partial_fit(SKEWED[50:100], LABELS[50:100])  # warnings are errors
    first = MixtureClassifier(random_state=0).partial_fit(SKEWED, LABELS, classes=[0, 1])
    assert len(first.members_) == 1


def test_members_of_an_ensemble_are_single_models():
    model = AveragedMixtureClassifier(MixtureClassifier(), 2, random_state=0).fit(SKEWED, LABELS)
    assert len(model.search_.members) == 1
    assert len(model.members_) == len(model.mixtures_) == 2


def test_an_ensemble_is_one_group_whose_members_add_up_to_the_whole_mixture():
    model = AveragedMixtureClassifier(MixtureClassifier(2, covariance_type="tied"), 3, random_state=0)
    model = model.fit(SKEWED, LABELS).with_class_prior([0.9, 0.1])
    parts = [member.log_joint(torch.from_numpy(SKEWED)) for member in model.members_]
    whole = model.mixture_.log_joint(torch.from_numpy(SKEWED))
    torch.testing.assert_close(torch.cat(parts, 1).exp().mean(1) * parts[0].shape[1], whole.exp().sum(1))
    posteriors = [np.exp(class_log_joint(part.T, [2, 2]).log_softmax(0).T.numpy()) for part in parts]
    np.testing.assert_allclose(model.predict_proba(SKEWED), np.mean(posteriors, 0), rtol=1e-12)
    for member in model.members_:
        assert float(member.log_weights.exp().sum()) == pytest.approx(1)
        assert member.covariance.dense()[0].equal(member.covariance.dense()[3])  # its own matrix, shared


@pytest.mark.parametrize(
    ("member_of", "message"),
    [([1, 0, 0, 1], "not sorted"), ([0, 0, 0, 1], "member_of"), ([0, 1], "member_of"), ([-1, 0, 0, 1], "from 0 to 3")],
)
def test_members_that_do_not_fit_the_mixture_are_refused(member_of, message):
    mixture = MixtureClassifier(2, random_state=0).fit(SKEWED, LABELS).mixture_
    MemberGroup(mixture, member_of=torch.tensor([0, 1, 0, 1])).check()
    with pytest.raises(ValueError, match=message):
        MemberGroup(mixture, member_of=torch.tensor(member_of)).check()


def test_only_a_single_member_converts_to_scikit_learn(selected):
    with pytest.raises(ValueError, match="to_sklearn needs a single member; this model averages") as told:
        selected.to_sklearn()
    advice = re.search(r"MixtureClassifier\(1, covariance_type='(\w+)'\) can be converted", str(told.value))
    assert advice is not None
    single = MixtureClassifier(1, covariance_type=advice[1]).fit(SKEWED, LABELS)
    assert_allclose(single.to_sklearn().predict_proba(SKEWED), single.predict_proba(SKEWED), atol=1e-8)


def test_a_new_class_prior_is_that_of_every_member(selected):
    for member in selected.with_class_prior([0.9, 0.1]).members_:
        np.testing.assert_allclose(member.mixture.log_class_prior.exp(), [0.9, 0.1])


def test_importances_marginalise_a_feature_in_every_member(selected):
    importances = selected.feature_importances(SKEWED, LABELS)
    without = SKEWED.copy()
    without[:, 1] = np.nan
    rows = np.arange(150), LABELS
    loss, other = (-posterior_twin(selected, part)[rows].mean() for part in (SKEWED, without))
    assert importances.shape == (3,)
    assert other > loss
    np.testing.assert_allclose(
        -selected.predict_log_proba(without)[rows].mean() - -selected.predict_log_proba(SKEWED)[rows].mean(),
        other - loss,
    )


def test_an_interrupted_fit_of_a_member_leaves_the_best_one(monkeypatch):
    model, rows = MixtureClassifier(random_state=0), remove_values(SKEWED, 0.2, random_state=1)
    fits = []

    def interrupted(task):
        fits.append(fit_once(task))
        return replace(fits[-1], outcome=Outcome.INTERRUPTED) if len(fits) > 1 else fits[-1]

    chosen = Selected(tuple(fake_tasks(rows)), fit=interrupted, average_temperature=0.7)
    results = train(chosen)
    assert len(fits) == 2
    assert len(results) == 1
    assert results[0].outcome is Outcome.INTERRUPTED
    monkeypatch.setattr(AutomaticSearch, "run", lambda *given: chosen)
    fits.clear()
    with pytest.raises(KeyboardInterrupt):
        model.fit(rows, LABELS)
    assert len(model.members_) == 1
    assert model.average_temperature_ == 1


def fake_tasks(rows):
    """The task of one Gaussian per class, twice."""
    model = MixtureClassifier(1)
    settings = make_classifier_settings(model)
    return [make_task(model, read_training(model, settings, rows, LABELS, None), settings)] * 2


def test_rows_outside_of_memory_are_read_at_most_twice_as_often(tmp_path, monkeypatch):
    rows = np.exp(RANDOM.normal(size=(1200, 3)) + 0.7 * (np.arange(1200) % 2)[:, None])
    np.save(tmp_path / "rows.npy", rows)
    passes, read = [], ArraySource.blocks
    monkeypatch.setattr(ArraySource, "blocks", lambda source: passes.append(1) or read(source))
    counts = {}
    for average in (1, 3):
        passes.clear()
        model = MixtureClassifier(average=average, random_state=0)
        model.fit(np.load(tmp_path / "rows.npy", mmap_mode="r"), np.arange(1200) % 2)
        counts[average] = len(passes)
        assert len(model.members_) <= min(average, 2)
    assert 0 < counts[3] <= 2 * counts[1]


@pytest.mark.parametrize("average", [1, 3])
def test_only_the_last_class_prior_counts(average):
    model = MixtureClassifier(average=average, random_state=0).fit(X, Y)
    assert model.temperature_ != 1 or model.label_noise_ > 0  # posteriors are not those of the mixture
    twice = model.with_class_prior([0.9, 0.1]).with_class_prior([0.3, 0.7])
    np.testing.assert_allclose(twice.predict_proba(X), model.with_class_prior([0.3, 0.7]).predict_proba(X), atol=1e-12)


# ---- members that are trained on ----------------------------------------------------------------------------------


def two_waves(n_samples, seed=0):
    """Classes on both sides of a wave: few Gaussians describe the density, and many the boundary."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n_samples, 2))
    return X, (X[:, 1] > np.sin(2 * X[:, 0])).astype(int)


@pytest.fixture(scope="module")
def trained():
    X, y = two_waves(600)
    return MixtureClassifier(random_state=0).fit(X, y)


def training_of(model):
    return [HybridTraining.from_what(candidate.what) for candidate in model.search_.members]


def test_members_are_trained_on_where_held_out_samples_gain(trained):
    trainings, (X, y) = training_of(trained), two_waves(2000, seed=1)
    assert trainings[0] is None  # the best member is a density
    assert any(training is not None for training in trainings)
    alone = copy.copy(trained)
    alone.further_members_ = ()
    assert log_loss(y, trained.predict_proba(X)) < 0.8 * log_loss(y, alone.predict_proba(X))


def test_a_trained_member_is_a_fit_of_em_trained_on(trained):
    """A fit by hand: EM, then the objective of (hybrid-member) by L-BFGS."""
    (X, y), number = two_waves(600), [training is not None for training in training_of(trained)].index(True)
    settings = make_classifier_settings(MixtureClassifier(random_state=0), trained, y)
    settings = [settings, *settings.further][number]
    task = make_task(trained, read_training(trained, settings, X, y, None), settings)
    task = replace(task, start=trained.members_[number].mixture, class_prior=torch.tensor([0.3, 0.7]).double())
    training, free = task.training, replace(task, training=None, class_prior=None)
    first = fit_once(free).mixture
    objective = Hybrid(training.tradeoff, Conditional(training.temperature))
    problem = replace(free.problem, objective=objective, prior=Scaled(task.prior, training.tradeoff))
    expected = run(Gradient("lbfgs"), problem, first, training.n_epochs, 0.0).mixture
    actual = fit_once(task).mixture
    rows = next(iter(task.source.blocks())).rows
    shift = (torch.tensor([0.3, 0.7]).log() - expected.log_class_prior)[expected.class_of].unsqueeze(0)
    torch.testing.assert_close(actual.log_joint(rows), expected.log_joint(rows) + shift.to(rows), atol=1e-6, rtol=1e-6)
    assert (actual.log_joint(rows) - first.log_joint(rows)).abs().max() > 1


def test_trained_members_are_refitted_and_continued(trained):
    (X, y), (X_test, y_test) = two_waves(600), two_waves(2000, seed=1)
    expected = log_loss(y_test, trained.predict_proba(X_test))
    for model in (refit(trained, X, y, np.arange(600)), copy.deepcopy(trained).set_params(warm_start=True).fit(X, y)):
        for own, member in zip(model.members_, trained.members_, strict=True):
            assert (own.weight, own.temperature) == (member.weight, member.temperature)
            assert own.mixture.class_sizes == member.mixture.class_sizes
        assert abs(log_loss(y_test, model.predict_proba(X_test)) - expected) < 0.1 * expected


def test_few_samples_and_one_member_train_nothing_on():
    X, y = two_waves(499)
    few, one = MixtureClassifier(random_state=0).fit(X, y), MixtureClassifier(average=1, random_state=0)
    for model in (few, one.fit(*two_waves(600))):
        assert all("n_epochs" not in candidate.what for candidate in model.search_)


def test_a_given_structure_is_trained_on_and_saved(tmp_path):
    X, y = two_waves(600)
    model = MixtureClassifier(covariance_type="diag", class_prior="uniform", random_state=0).fit(X, y)
    trials = [candidate.what for candidate in model.search_ if "n_epochs" in candidate.what]
    assert [what["covariance_type"] for what in trials] == ["diag"]
    assert all(member.mixture.log_class_prior.exp().allclose(torch.tensor(0.5).double()) for member in model.members_)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(mixtura.load(tmp_path / "model").predict_proba(X), model.predict_proba(X))


def test_a_training_that_never_gains_is_no_candidate(monkeypatch):
    monkeypatch.setattr(comparison, "MOST_EPOCHS", 0)
    model = MixtureClassifier(random_state=0).fit(*two_waves(600))
    assert all("n_epochs" not in candidate.what for candidate in model.search_)


def test_training_that_takes_too_long_is_not_tried(monkeypatch):
    monkeypatch.setattr(comparison, "MOST_TRAINING_WORK", 1.0)
    model = MixtureClassifier(random_state=0).fit(*two_waves(600))
    assert all("n_epochs" not in candidate.what for candidate in model.search_)
