"""DiscriminativeMixtureClassifier and MixtureClassifier(1, objective="conditional")."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from sklearn.utils.estimator_checks import parametrize_with_checks

import mixtura
from cases import assert_close
from mixtura import DiscriminativeMixtureClassifier, MixtureClassifier
from mixtura.checks import RepairWarning
from mixtura.datasets import make_ripley, make_waveform, remove_values
from mixtura.engine.sources import TensorSource
from mixtura.estimators.mixture_classifier import make_classifier_settings
from mixtura.estimators.training import make_task, read_training
from mixtura.init.starts import split, unexplained
from mixtura.priors import Shrinkage
from mixtura.selection.penalties import PULLS, SCALES, TRADEOFFS, HillClimb, make_grid, uphill
from mixtura.solvers import BaumWelch

pytestmark = pytest.mark.usefixtures("one_thread")

FIXED = Shrinkage(scale=1.0, variances="pooled", mean_strength=3.0)
QUICK = {"cv": 2, "tol": 3e-3, "random_state": 0}


EVERY = [
    DiscriminativeMixtureClassifier(prior=FIXED),
    DiscriminativeMixtureClassifier(prior=FIXED, early_stopping=True),
    DiscriminativeMixtureClassifier(cv=2, tol=0.1),  # the check of weights passes splits
]


@parametrize_with_checks(EVERY)
def test_scikit_learn_agrees(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def ripley():
    return make_ripley(60, random_state=0)


@pytest.fixture(scope="module")
def waveform():
    return make_waveform(150, 19, random_state=0)


def log_posterior(model, X, y) -> float:
    return -log_loss(y, model.predict_proba(X))


@pytest.mark.parametrize("covariance_type", ["full", "diag", "spherical", "tied", "low_rank"])
def test_separating_raises_the_likelihood_of_the_labels(covariance_type, ripley):
    X, y = ripley
    models = [
        MixtureClassifier(2, covariance_type=covariance_type, objective=objective, prior=None, random_state=0).fit(X, y)
        for objective in ("joint", "conditional")
    ]
    before, after = (log_posterior(model, X, y) for model in models)
    assert after > before
    assert models[1].history_[-1].objective <= after + 1e-9


def test_it_starts_where_the_likelihood_of_the_rows_ends(ripley):
    X, y = ripley
    joint = MixtureClassifier(2, covariance_type="diag", random_state=0).fit(X, y)
    start = MixtureClassifier(2, covariance_type="diag", objective="conditional", max_iter=0, init=joint).fit(X, y)
    np.testing.assert_allclose(start.predict_proba(X), joint.predict_proba(X))


def test_weights_and_missing_values_take_part(ripley):
    X, y = ripley
    holes = remove_values(X, 0.3, random_state=0)
    weights = np.where(np.arange(len(y)) % 3 == 0, 2.0, 1.0)
    twice = np.repeat(np.arange(len(y)), weights.astype(int))
    start = MixtureClassifier(1, covariance_type="diag").fit(holes, y).mixture_

    def fitted(rows, labels, sample_weight=None):
        model = MixtureClassifier(1, covariance_type="diag", objective="conditional", init=start, prior=None)
        return model.fit(rows, labels, sample_weight)

    weighted, repeated = fitted(holes, y, weights), fitted(holes[twice], y[twice])
    np.testing.assert_allclose(weighted.predict_proba(holes), repeated.predict_proba(holes), atol=1e-6)


def test_class_probabilities_that_are_given_are_kept(ripley):
    model = DiscriminativeMixtureClassifier(2, prior=FIXED, class_prior=[0.9, 0.1], random_state=0).fit(*ripley)
    np.testing.assert_allclose(model.class_prior_, [0.9, 0.1])


def test_the_default_does_not_overfit(waveform):
    """Unpenalised, training error goes to zero; the default predicts better."""
    test = make_waveform(1500, 19, random_state=1)
    free = DiscriminativeMixtureClassifier(prior=None, random_state=0, max_iter=300).fit(*waveform)
    model = DiscriminativeMixtureClassifier(**QUICK).fit(*waveform)
    assert free.score(*waveform) == 1.0
    assert model.score(*waveform) < 1.0
    assert log_posterior(model, *test) > log_posterior(free, *test) + 0.1
    assert model.score(*test) > free.score(*test)


def test_the_search_says_what_it_compared(ripley):
    model = DiscriminativeMixtureClassifier(2, **QUICK).fit(*ripley)
    best = model.search_.best.what
    assert (model.prior_.scale, model.prior_.mean_strength) == (best["scale"], best["mean_strength"])
    assert best["scale"] in SCALES
    assert best["mean_strength"] in PULLS
    assert model.tradeoff_ == 0.0
    assert len(model.search_) >= 5  # a place and its neighbours, unless it is at the edge of the grid
    assert {record.what["n_components"] for record in model.search_} == {(2, 2)}
    assert model.search_.best.score == min(record.score for record in model.search_)


@pytest.mark.parametrize("prior", ["auto", FIXED])
def test_tradeoff_is_chosen_with_the_penalties(prior, ripley):
    model = DiscriminativeMixtureClassifier(2, prior=prior, tradeoff="auto", **QUICK).fit(*ripley)
    best = model.search_.best.what["tradeoff"]
    assert model.tradeoff_ == best in TRADEOFFS
    assert len({record.what["tradeoff"] for record in model.search_}) > 1
    plain = DiscriminativeMixtureClassifier(2, prior=model.prior_, tradeoff=best, random_state=0)
    np.testing.assert_allclose(plain.set_params(tol=3e-3).fit(*ripley).score(*ripley), model.score(*ripley), atol=0.05)


def test_penalties_may_be_given(ripley):
    model = DiscriminativeMixtureClassifier(2, prior=FIXED, random_state=0).fit(*ripley)
    assert model.search_ is None
    assert model.prior_ is FIXED


def test_a_class_grows_where_it_needs_components():
    """One class is a ring of four clusters around the other: a single diagonal Gaussian a class is not enough."""
    rng = np.random.default_rng(0)
    corners = np.array([[0.0, 4.0], [0.0, -4.0], [4.0, 0.0], [-4.0, 0.0]])
    X = np.concatenate([corners[np.arange(120) % 4] + rng.normal(size=(120, 2)), 0.4 * rng.normal(size=(60, 2))])
    X[120:180:2] += 7.0
    y = np.repeat([0, 1], [120, 60])
    model = DiscriminativeMixtureClassifier("auto", prior=FIXED, **QUICK).fit(X, y)
    one = DiscriminativeMixtureClassifier(1, prior=FIXED, **QUICK).fit(X, y)
    counts = [1, 1]
    for step in model.growth_:
        for c in step.classes:
            counts[c] = 2 * counts[c] if step.every else counts[c] + 1
    assert model.n_components_.tolist() == counts
    assert sum(counts) > 2
    assert log_posterior(model, X, y) > log_posterior(one, X, y)


def test_penalties_are_compared_again_when_a_class_has_grown():
    """Ripley's classes have two parts each: what holds one Gaussian for both is not what holds two."""
    model = DiscriminativeMixtureClassifier("auto", **QUICK).fit(*make_ripley(100, random_state=9))
    scores = {sum(record.what["n_components"]): [] for record in model.search_}
    for record in model.search_:
        scores[sum(record.what["n_components"])].append(record.score)
    assert min(scores[model.n_components_.sum()]) < min(scores[2]) - 0.03
    assert model.growth_[0].setting.prior != model.prior_


@pytest.mark.parametrize(("gains", "kept"), [((-5, 10, 1, 0.5), 2), ((-5, 4, 10), 0), ((3, -1, 4), 3), ((1, 0.5), 0)])
def test_a_cut_that_loses_stays_where_the_next_one_gains(gains, kept):
    """Gains of the log posterior of all labels kept out: two more than the best before are needed."""

    class Scripted(HillClimb):
        weights = (100.0,)

        def _able(self, fits, every, left_out):
            return [0, 1] if every and len(fits) < len(gains) else []

        def _try_step(self, step, starts, place, fits):
            return [*starts, step], place, [*fits, (None, gains[len(fits)], 0.0)]

    samples = TensorSource(torch.zeros(100, 1))
    search = Scripted([SimpleNamespace(source=samples)], make_grid(FIXED, (0.0,)))
    actual, steps = search.growth([], (0, 0, 0), [])
    assert len(steps) == len(actual) == kept


@pytest.mark.parametrize("seed", range(20))
def test_places_that_cannot_win_are_given_up_without_changing_the_choice(seed):
    """Log posteriors of 5 folds at every place, drawn at random; the plain search looks at all folds of a place."""
    rng, grid = np.random.default_rng(seed), make_grid("auto", (0.0, 0.5))
    values = {place: -rng.gamma(0.5, size=5) - abs(place[0] - 4) - 0.3 * abs(place[1] - 2) for place in grid}
    n_fits = []

    class Tabled(HillClimb):
        weights = (1.0,) * 5

        def _fit_next(self, place, fits, starts):
            n_fits.append(place)
            return SimpleNamespace(class_sizes=[1, 1]), values[place][len(fits)], 1.0

    search = Tabled([None] * 5, grid)
    assert search.middle == (3, 4, 1)
    best, fits = search.best_setting([], [search.middle], search.corners)
    looked = set()

    def mean(place):
        looked.add(place)
        return np.mean(values[place]) if place in values else -np.inf

    tops = [uphill(lambda a, b: mean(a) > mean(b), max(g, key=mean)) for g in ([search.middle], search.corners)]
    assert best == max(tops, key=mean)
    assert_close(search.bound(fits), mean(best))
    assert len(fits) == 5
    assert len(n_fits) < 5 * len(looked & set(grid))
    assert len(set(n_fits)) == len(looked & set(grid))


def test_classes_that_need_no_more_do_not_grow():
    rng = np.random.default_rng(1)
    X = np.concatenate([rng.normal(size=(100, 2)), rng.normal(size=(100, 2)) + 2])
    model = DiscriminativeMixtureClassifier("auto", prior=FIXED, **QUICK).fit(X, np.repeat([0, 1], 100))
    assert model.n_components_.sum() <= 4


def test_a_split_keeps_the_class_and_cuts_a_component_in_two(ripley):
    X, y = ripley
    model = MixtureClassifier(2, covariance_type="diag", random_state=0)
    settings = make_classifier_settings(model)
    about = make_task(model, read_training(model, settings, X, y, None), settings).description
    mixture = model.fit(X, y).mixture_
    counts = unexplained(mixture, about, 1)
    own, joint = mixture.class_slices[1], mixture.log_joint(torch.from_numpy(X[y == 1]))
    expected = (joint[:, own].softmax(1) - joint.softmax(1)[:, own]).sum(0)
    torch.testing.assert_close(counts.sort().values, expected.sort().values)
    cut = split(mixture, about, 1, int(counts.argmax()))
    assert cut.class_of.tolist() == [0, 0, 1, 1, 1]
    torch.testing.assert_close(cut.log_class_prior, mixture.log_class_prior)
    k = 2 + int(counts.argmax())
    torch.testing.assert_close(cut.means[k : k + 2].mean(0), mixture.means[k])
    torch.testing.assert_close(cut.weights[k], cut.weights[k + 1])
    assert not torch.equal(cut.means[k], cut.means[k + 1])


def test_tradeoff_describes_the_rows_as_well(ripley):
    X, y = ripley
    densities = [
        DiscriminativeMixtureClassifier(2, prior=FIXED, tradeoff=s, random_state=0).fit(X, y).score_samples(X).mean()
        for s in (0.0, 0.5, 1.0)
    ]
    assert densities[0] < densities[1] < densities[2] + 1e-6


def test_unlabeled_rows_need_tradeoff(ripley):
    X, y = ripley
    some = np.where(np.arange(len(y)) % 4 == 0, y, -1)
    with pytest.raises(
        ValueError,
        match=r"90 samples are unlabeled, but objective 'conditional' is purely "
        r"discriminative",
    ):
        DiscriminativeMixtureClassifier(prior=FIXED, unlabeled=-1).fit(X, some)
    model = DiscriminativeMixtureClassifier(prior=FIXED, tradeoff=0.5, unlabeled=-1, random_state=0).fit(X, some)
    assert model.score(X, y) > 0.8


def test_minus_one_is_an_ordinary_class_without_a_density(ripley):
    X, y = ripley
    model = DiscriminativeMixtureClassifier(prior=FIXED).fit(X, np.where(y == 0, -1, y))
    assert model.classes_.tolist() == [-1, 1]
    three = DiscriminativeMixtureClassifier(prior=FIXED).fit(X, np.arange(len(y)) % 3 - 1)
    assert three.classes_.tolist() == [-1, 0, 1]


def test_separable_classes_stay_finite_and_say_so():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(40, 2)), rng.normal(size=(40, 2)) + 9])
    y = np.repeat([0, 1], 40)
    with pytest.warns(RepairWarning, match=r"The classes are perfectly separable.*Use prior='default'\."):
        model = MixtureClassifier(1, objective="conditional", prior=None, max_iter=50).fit(X, y)
    assert np.isfinite(model.predict_log_proba(X)).all()
    assert torch.isfinite(model.mixture_.covariances).all()
    default = DiscriminativeMixtureClassifier(**QUICK).fit(X, y)  # with penalties there is a maximum
    assert default.score(X, y) == 1.0
    assert torch.isfinite(default.mixture_.covariances).all()


def test_a_class_with_a_single_row_is_kept():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(30, 2)), rng.normal(size=(30, 2)) + 3, [[9.0, 9.0]]])
    model = DiscriminativeMixtureClassifier(**QUICK).fit(X, np.repeat([0, 1, 2], [30, 30, 1]))
    assert model.predict([[9.0, 9.0]]) == [2]
    assert np.isfinite(model.predict_proba(X)).all()


def test_one_class_is_an_error():
    with pytest.raises(ValueError, match="needs samples of at least two classes"):
        DiscriminativeMixtureClassifier().fit([[0.0], [1.0]], [1, 1])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"tradeoff": -0.1}, r"tradeoff must be a number from 0 to 1 or \"auto\"; got -0\.1\."),
        ({"cv": 1}, r"cv must be an integer of at least 2; got 1\."),
        ({"early_stopping": 1}, r"early_stopping must be True or False; got 1\."),
        ({"validation_fraction": 1.0}, r"validation_fraction must be a number above 0 and below 1; got 1\.0\."),
        ({"covariance_type": "low_rank_precision"}, r"covariance_type 'low_rank_precision' has no closed-form update"),
        ({"prior": "strong"}, r"prior must be one of 'default', \"auto\", None or a prior object; got 'strong'\."),
        ({"n_components": 0}, "n_components"),
    ],
)
def test_bad_arguments_are_named(argument, message, ripley):
    with pytest.raises(ValueError, match=message):
        DiscriminativeMixtureClassifier(**argument).fit(*ripley)


def test_the_same_seed_gives_the_same_model(ripley):
    first, second = (DiscriminativeMixtureClassifier("auto", **QUICK).fit(*ripley) for _ in range(2))
    np.testing.assert_array_equal(first.predict_proba(ripley[0]), second.predict_proba(ripley[0]))


def test_going_on_keeps_what_was_chosen(ripley):
    model = DiscriminativeMixtureClassifier("auto", prior=FIXED, warm_start=True, **QUICK)
    model.set_params(max_iter=5, tol=0.0)
    with pytest.warns(Warning, match="max_iter"):
        model.fit(*ripley)
    counts, prior, before = model.n_components_.tolist(), model.prior_, model.history_[-1].objective
    with pytest.warns(Warning, match="max_iter"):
        model.fit(*ripley)
    assert (model.n_components_.tolist(), model.prior_) == (counts, prior)
    assert model.history_[0].objective >= before


def test_saved_and_loaded_it_predicts_the_same(ripley, tmp_path):
    X, y = ripley
    model = DiscriminativeMixtureClassifier("auto", prior=FIXED, **QUICK).fit(X, y)
    model.save(tmp_path / "model.safetensors")
    again = mixtura.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert type(again) is DiscriminativeMixtureClassifier
    assert again.get_params()["n_components"] == "auto"


def test_splits_may_be_given(ripley, monkeypatch):
    X, y = ripley
    halves = [(np.arange(0, 120, 2), np.arange(1, 120, 2))]
    model = DiscriminativeMixtureClassifier(2, cv=halves, tol=0.01, random_state=0).fit(X, y)
    assert len(model.search_) > 3
    monkeypatch.setattr("mixtura.engine.sources.STREAMED_BYTES", 60 * 2 * 8)
    with pytest.raises(ValueError, match="Splits given by cv or by groups need samples in memory with one label each"):
        DiscriminativeMixtureClassifier(cv=halves).fit([(X[:60], y[:60]), (X[60:], y[60:])])


def test_batches_are_searched_through_a_sample(ripley):
    X, y = ripley
    batches = [(X[i : i + 40], y[i : i + 40]) for i in range(0, len(y), 40)]
    model = DiscriminativeMixtureClassifier(2, **QUICK).fit(batches)
    assert model.score(X, y) > 0.85


def test_early_stopping_takes_the_steps_with_the_best_held_out_score(waveform):
    """Under weak penalties the fit runs into the training rows: the steps end before that."""
    X, y = waveform
    X_new, y_new = make_waveform(2000, 19, random_state=1)
    weak = Shrinkage(strength=1.0, scale=0.1, variances="pooled")
    options = {"prior": weak, "tol": 0.0, "max_iter": 60, "random_state": 0}
    model = DiscriminativeMixtureClassifier(2, early_stopping=True, validation_fraction=0.3, **options).fit(X, y)
    steps, scores = zip(*model.validation_scores_, strict=True)
    assert steps == tuple(range(len(steps)))
    assert model.n_iter_ == int(np.argmax(scores)) < 60
    with pytest.warns(Warning, match="max_iter"):
        late = DiscriminativeMixtureClassifier(2, **options).fit(X, y)
    assert late.validation_scores_ == []
    assert log_posterior(model, X_new, y_new) > log_posterior(late, X_new, y_new)


def test_penalties_are_compared_by_fits_that_stop_early_too(ripley):
    plain = DiscriminativeMixtureClassifier(2, **QUICK).fit(*ripley)
    early = DiscriminativeMixtureClassifier(2, early_stopping=True, validation_fraction=0.4, **QUICK).fit(*ripley)
    losses = {(record.what["scale"], record.what["mean_strength"]): record.score for record in plain.search_}
    early_losses = {(record.what["scale"], record.what["mean_strength"]): record.score for record in early.search_}
    both = losses.keys() & early_losses.keys()
    assert both
    assert all(early_losses[place] <= losses[place] for place in both)
    assert early.n_iter_ <= max(early.validation_scores_, key=lambda pair: pair[1])[0]  # less where it converges


def test_too_few_rows_for_early_stopping_are_not_held_out(ripley):
    model = DiscriminativeMixtureClassifier(prior=FIXED, early_stopping=True, random_state=0).fit(*ripley)
    assert model.validation_scores_ == []
    assert model.converged_


def test_control_c_ends_a_search(ripley, monkeypatch):
    plain, steps = BaumWelch.step, []

    def step(self, mixture, rows):
        steps.append(1)
        if len(steps) == 5:
            raise KeyboardInterrupt
        return plain(self, mixture, rows)

    monkeypatch.setattr(BaumWelch, "step", step)
    with pytest.raises(KeyboardInterrupt):
        DiscriminativeMixtureClassifier(**QUICK).fit(*ripley)
    assert len(steps) == 5


def test_a_fit_begins_where_its_penalties_hold_the_variances(waveform):
    """Under strong penalties ten steps from there come further than ten from the generative start itself."""
    wide = Shrinkage(scale=30.0, mean_strength=3.0)
    options = {"prior": wide, "max_iter": 10, "tol": 0.0, "random_state": 0}
    generative = MixtureClassifier(2, covariance_type="diag", tol=1e-3, random_state=0).fit(*waveform)
    with pytest.warns(Warning, match="max_iter"):
        model = DiscriminativeMixtureClassifier(2, **options).fit(*waveform)
    with pytest.warns(Warning, match="max_iter"):
        plain = DiscriminativeMixtureClassifier(2, init=generative.mixture_, **options).fit(*waveform)
    assert model.history_[0].objective > plain.history_[0].objective + 10
    assert model.history_[-1].objective > plain.history_[-1].objective + 0.1


@pytest.mark.parametrize("seed", [0, 3])
def test_validation_scores_are_those_of_the_fit_that_is_kept(seed):
    """The first of three starts is kept here; its number of steps is the one with the best held-out score."""
    X, y = make_ripley(60, random_state=seed)
    options = {"prior": "default", "init": "random", "early_stopping": True, "validation_fraction": 0.3, "max_iter": 60}
    model = DiscriminativeMixtureClassifier(3, n_init=3, random_state=seed, **options).fit(X, y)
    best, _ = max(model.validation_scores_, key=lambda scored: scored[1])
    assert model.n_iter_ == best > 0
