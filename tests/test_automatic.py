"""The automatic choice: the temperature against slow twins, and what is chosen."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.utils.estimator_checks import check_estimator

from cases import assert_close
from mixtura import AveragedMixtureClassifier, MixtureClassifier, load
from mixtura.covariances import Diagonal, Full
from mixtura.datasets import make_rings, make_ripley, remove_values
from mixtura.init.starts import bisect
from mixtura.model.temperature import Temperature
from mixtura.selection import automatic
from mixtura.selection.members import select_simplest
from mixtura.selection.scores import estimate_temperature, grid, mean_and_error, tempered_losses
from test_bad_input import refused

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_temperature_divides_log_joints_before_the_softmax(rng):
    scores, observed = rng.normal(size=(3, 6)) * 5, np.linspace(0, 1, 6)
    actual = Temperature(2.5).apply(torch.from_numpy(scores), torch.from_numpy(observed)).log_softmax(0)
    assert_close(actual, log_softmax(scores / (1 + 1.5 * observed), axis=0))
    assert_close(actual[:, 0], log_softmax(scores[:, 0]))  # nothing observed: the class prior as it is


def test_a_changed_class_prior_acts_after_the_temperature(rng):
    old, new = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    densities = rng.normal(size=(3, 6))
    before = densities + np.log(old)[:, None]
    after = torch.from_numpy(densities + np.log(new)[:, None])
    actual = Temperature(3.0, torch.from_numpy(np.log(new / old))).apply(after).softmax(0).numpy()
    expected = np.exp(log_softmax(before / 3, axis=0)) * (new / old)[:, None]
    assert_close(actual, expected / expected.sum(0))


def test_random_labels_bound_posteriors(rng):
    old, new = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    scores = rng.normal(size=(3, 6)) * 50 + np.log(new)[:, None]
    change = np.log(new / old)
    known = (torch.from_numpy(change), 0.01, torch.from_numpy(np.log(old)))
    actual = Temperature(2.0, *known).apply(torch.from_numpy(scores)).softmax(0).numpy()
    tempered = np.exp(log_softmax((scores - change[:, None]) / 2, axis=0))
    expected = (0.99 * tempered + 0.01 * old[:, None]) * (new / old)[:, None]
    assert_close(actual, expected / expected.sum(0))
    shares, prior = np.eye(3)[[0, 1, 2, 0, 1, 2]], torch.from_numpy(old)
    given = (torch.from_numpy(shares), torch.ones(6, dtype=torch.float64))
    losses = tempered_losses(torch.from_numpy(scores.T), *given, noise=0.01, prior=prior)
    mixed = 0.99 * np.exp(log_softmax(scores / float(grid(losses)[7]), axis=0)) + 0.01 * old[:, None]
    assert_close(losses[7], -np.log((shares.T * mixed).sum(0)))


def test_the_default_is_never_surer_than_its_held_out_samples(ripley, tmp_path):
    X, y = ripley
    model = MixtureClassifier(warp=None, random_state=0).fit(X, y)
    assert_close(model.label_noise_, 1 / (len(y) + 1))
    far = np.array([[50.0, 50.0], [-50.0, 0.0]])
    assert model.predict_proba(far).min() > 0.9 * model.label_noise_ * model.class_prior_.min()
    tempered = np.exp(log_softmax(model.predict_joint_log_proba(X) / model.temperature_, axis=1))
    expected = (1 - model.label_noise_) * tempered + model.label_noise_ * model.class_prior_
    assert_close(model.predict_proba(X), expected)
    assert_close(model.predict_log_proba(X), np.log(expected))
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict_proba(X), model.predict_proba(X))
    assert MixtureClassifier(temperature=1.0, warp=None, random_state=0).fit(X, y).label_noise_ == 0


def test_the_temperature_of_many_samples_is_the_one_that_their_labels_were_drawn_with(rng):
    scores = torch.from_numpy(rng.normal(size=(4000, 3)) * 6)
    drawn = torch.distributions.Categorical(logits=scores / 3)
    torch.manual_seed(0)
    shares = torch.nn.functional.one_hot(drawn.sample(), 3).double()
    losses = tempered_losses(scores, shares, torch.ones(4000, dtype=torch.float64))
    best = estimate_temperature(losses, torch.ones(4000, dtype=torch.float64))
    assert abs(float(grid(losses)[best]) / 3 - 1) < 0.12
    direct = -(shares * (scores / grid(losses)[best]).log_softmax(1)).sum(1)
    assert_close(losses[best], direct)


def test_few_samples_do_not_set_the_temperature_alone():
    """Without errors it is 1, the smallest one; one error of ten asks for more than the prior grants."""
    shares = torch.tensor([[1.0, 0.0]] * 10, dtype=torch.float64)
    observed = torch.ones(10, dtype=torch.float64)
    scores = torch.tensor([[0.0, -2.0]] * 10, dtype=torch.float64)
    losses = tempered_losses(scores, shares, observed)
    assert float(grid(losses).min()) == 1
    assert estimate_temperature(losses, observed) == 0
    scores[0] = torch.tensor([-20.0, 0.0])
    losses = tempered_losses(scores * 5, shares, observed)
    assert 0 < estimate_temperature(losses, observed) < int(losses.sum(1).argmin())
    coarse = tempered_losses(scores, shares, observed, 4)
    assert_close(coarse, tempered_losses(scores, shares, observed)[::4])


def test_bisected_centres_follow_weights_as_repetitions(rng):
    rows, weights = rng.normal(size=(40, 3)), rng.integers(1, 4, size=40)
    weighted = bisect(torch.from_numpy(rows), torch.from_numpy(weights).double(), 5)
    repeated = np.repeat(rows, weights, axis=0)
    plain = bisect(torch.from_numpy(repeated), torch.ones(len(repeated), dtype=torch.float64), 5)
    order = [np.lexsort(centres.numpy().T) for centres in (weighted, plain)]
    assert_close(weighted[order[0].copy()], plain[order[1].copy()])
    same = bisect(torch.zeros(4, 2, dtype=torch.float64), torch.ones(4, dtype=torch.float64), 3)
    assert_close(same, np.zeros((3, 2)))


def test_the_temperature_acts_on_observed_values_alone(rng):
    scores, observed = rng.normal(size=(6, 3)) * 5, np.linspace(0, 1, 6)
    shares = np.eye(3)[[0, 1, 2, 0, 1, 2]]
    for noise in (0.0, 0.01):
        prior = torch.full((3,), 1 / 3, dtype=torch.float64)
        losses = tempered_losses(*map(torch.from_numpy, (scores, shares, observed)), noise=noise, prior=prior)
        temperatures = grid(losses).numpy()
        for number in (0, 7, len(temperatures) - 1):
            divisors = 1 + (temperatures[number] - 1) * observed
            posteriors = np.exp(log_softmax(scores / divisors[:, None], axis=1))
            assert_close(losses[number], -np.log((shares * ((1 - noise) * posteriors + noise / 3)).sum(1)))


def test_samples_without_observed_values_say_nothing_about_the_temperature(rng):
    """Held-out samples of which nothing is known have the class prior at every temperature, though it errs on them."""
    y = (np.arange(300) % 10 == 0).astype(int)
    X = rng.normal(size=(300, 2)) + y[:, None]
    y[200::4] = 1 - y[200::4]  # the held-out samples are less certain than the others
    empty, rare = np.full((60, 2), np.nan), np.ones(60, dtype=int)
    options = {"covariance_type": "diag", "prior": "default", "warp": None, "random_state": 0}
    alone, more = (
        MixtureClassifier(cv=[(np.arange(200), np.arange(200, len(rows)))], **options)
        .fit(rows, labels)
        .search_.candidates[0]
        .what
        for rows, labels in ((X, y), (np.vstack([X, empty]), np.append(y, rare)))
    )
    assert 1 < alone["temperature"] < 10
    assert more == alone  # one component


def simplest(losses, sizes, weights=None):
    """The position chosen among candidates with these losses of held-out samples, (n, T), and numbers of parameters."""
    losses = torch.as_tensor(losses, dtype=torch.float64)
    weights = torch.ones(len(losses), dtype=torch.float64) if weights is None else torch.as_tensor(weights)
    return select_simplest(losses.T, weights, torch.tensor(sizes, dtype=torch.float64))


def test_the_smallest_model_within_a_standard_error_of_the_best_is_chosen(rng):
    """The error is that of the difference of paired losses, not that of either mean."""
    best, difference = 3 * rng.random(400), rng.normal(size=400)
    difference = (difference - difference.mean()) / difference.std(ddof=1)  # of standard error 1 / 20

    def other(errors):
        return best + difference + errors / 20

    assert simplest(np.stack([other(0.95), best], 1), [5, 9]) == 0
    assert simplest(np.stack([other(1.05), best], 1), [5, 9]) == 1
    assert simplest(np.stack([best, other(0.95)], 1), [9, 5]) == 1
    assert simplest(np.stack([other(0.95), best], 1), [9, 5]) == 1  # the best one is small already
    assert simplest(np.stack([other(0.9), other(0.5), best], 1), [5, 5, 9]) == 1  # of equal size, the better one
    assert simplest(np.stack([other(1.05), other(0.9), other(0.1), best], 1), [3, 5, 6, 9]) == 1
    constant = best + 0.01  # a small difference without any error is not noise
    assert simplest(np.stack([constant, best], 1), [5, 9]) == 1
    halves = np.where(np.arange(400) < 200, 1.0, 0.0)  # samples of weight zero
    assert simplest(np.stack([np.where(halves, best, best + 9), best], 1), [5, 9], halves) == 0


def test_a_small_model_that_is_hardly_worse_is_preferred_to_the_best_one():
    X, y = load_iris(return_X_y=True)
    table = MixtureClassifier(random_state=0).fit(X[::2], y[::2]).search_
    assert min(candidate.score for candidate in table) < table.best.score  # the rule was of consequence
    rings = make_rings(120, random_state=0)
    assert MixtureClassifier(random_state=0).fit(*rings).n_components_.max() > 1  # and it has an end


SELECTIONS = {
    "all": MixtureClassifier(prior="default", warp=None, random_state=0),
    "full": MixtureClassifier(covariance_type="full", prior="default", warp=None, random_state=0),
    "diag": MixtureClassifier(covariance_type="diag", prior="default", warp=None, random_state=0),
    "tied": MixtureClassifier(covariance_type="tied", prior="default", warp=None, random_state=0),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_candidates_are_compared_without_samples_that_no_split_names(name, rng):
    """Fits of folds start from clusters of their own training samples: others must not show in any score."""
    X, y = make_rings(150, random_state=0)
    order = rng.permutation(len(y))
    cv = [(order[:80], order[80:110]), (order[20:100], order[100:120])]
    tables = []
    for shift in (0.0, 0.3):
        moved = X.copy()
        moved[order[120:]] = moved[order[120:]][:, ::-1] * (1 - shift)
        tables.append(clone(SELECTIONS[name]).set_params(cv=cv).fit(moved, y).search_)
    assert max(np.max(candidate.what["n_components"]) for candidate in tables[0]) > 1
    assert_close(*([candidate.score for candidate in table] for table in tables), 1e-7)


@pytest.fixture(scope="module")
def ripley():
    return make_ripley(40, random_state=0)


def test_the_default_chooses_and_says_what_it_compared(ripley):
    X, y = ripley
    model = MixtureClassifier(random_state=0).fit(X, y)
    best = model.search_.best
    assert {"full", "tied", "diag"} == {c.what["covariance_type"] for c in model.search_}
    lowest = min(candidate.score for candidate in model.search_)
    assert lowest <= best.score <= lowest + best.standard_error
    assert set(model.n_components_) <= set(np.atleast_1d(best.what["n_components"]))
    assert_close(model.temperature_, best.what["temperature"], 1e-3)
    again = MixtureClassifier(random_state=1).fit(X, y)
    assert model.score(X, y) > 0.8
    assert again.temperature_ > 0


def test_a_number_of_components_means_plain_values_for_the_rest(ripley):
    X, y = ripley
    plain = MixtureClassifier(2, covariance_type="full", prior="default", warp=None, temperature=1.0, random_state=0)
    short = MixtureClassifier(2, random_state=0).fit(X, y)
    np.testing.assert_array_equal(short.predict_proba(X), plain.fit(X, y).predict_proba(X))
    assert short.search_ is None
    assert short.temperature_ == 1


def test_what_is_given_is_not_compared(ripley):
    X, y = ripley
    model = MixtureClassifier(covariance_type="diag", prior="default", warp=None, random_state=0).fit(X, y)
    assert {(c.what["covariance_type"], c.what["prior"], c.what["warp"]) for c in model.search_} == {
        ("diag", "default", None)
    }


def test_tempered_posteriors_have_the_order_of_the_others(ripley, tmp_path):
    X, y = ripley
    holes = remove_values(X, 0.3, random_state=0)
    plain, tempered = (MixtureClassifier(2, temperature=t, random_state=0).fit(X, y) for t in (1.0, 2.0))
    np.testing.assert_array_equal(plain.score_samples(X), tempered.score_samples(X))
    observed = 1 - np.isnan(holes).mean(1)
    expected = log_softmax(plain.predict_joint_log_proba(holes) / (1 + observed)[:, None], axis=1)
    assert_close(tempered.predict_log_proba(holes), expected)
    assert_close(tempered.predict_proba(holes), np.exp(expected))
    assert_close(tempered.decision_function(X), plain.decision_function(X) / 2)
    tempered.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict_proba(holes), tempered.predict_proba(holes))


def test_explanations_are_those_of_tempered_posteriors(ripley):
    X, y = ripley
    model = MixtureClassifier(2, temperature=2.0, random_state=0).fit(X, y)
    explanation = model.explain(X[:5], classes=(1, 0))
    log_posteriors = model.predict_log_proba(X[:5])
    assert_close(explanation.base_values + explanation.values.sum(1), log_posteriors[:, 1] - log_posteriors[:, 0])


def test_a_class_prior_of_the_user_acts_after_the_temperature(ripley):
    X, y = ripley
    kept = np.flatnonzero((y == 0) | (np.arange(len(y)) % 3 == 0))
    X, y = X[kept], y[kept]
    learned, even = (
        MixtureClassifier(1, temperature=2.0, class_prior=prior).fit(X, y) for prior in ("empirical", "uniform")
    )
    shares = np.bincount(y) / len(y)
    expected = learned.predict_proba(X) * 0.5 / shares
    assert_close(even.predict_proba(X), expected / expected.sum(1, keepdims=True))


def test_missing_values_unlabeled_samples_weights_and_soft_labels(ripley):
    X, y = ripley
    holes, unlabeled = remove_values(X, 0.1, random_state=0), np.where(np.arange(len(y)) % 3, y, -1)
    weights = np.random.default_rng(0).uniform(0.5, 2, len(y))
    assert MixtureClassifier(unlabeled=-1, random_state=0).fit(holes, unlabeled, weights).score(X, y) > 0.8
    soft = MixtureClassifier(random_state=0).fit(X, np.eye(2)[y] * 0.9 + 0.05)
    assert (soft.predict(X) == y).mean() > 0.8


@pytest.mark.parametrize("columns", [[0, 1], [2, 3]])
def test_few_samples_get_one_component(columns):
    """More components gain a quarter of a standard error on two columns of iris."""
    X, y = load_iris(return_X_y=True)
    assert MixtureClassifier(random_state=0).fit(X[:, columns], y).n_components_.tolist() == [1, 1, 1]


def test_splits_are_taken_as_they_are(ripley):
    X, y = ripley
    splits = [(np.arange(len(y)) % 4 != part, np.arange(len(y)) % 4 == part) for part in range(4)]
    splits = [(np.flatnonzero(kept), np.flatnonzero(part)) for kept, part in splits]
    weights = np.where(np.arange(len(y)) < 5, 0.0, 1.0)
    model = MixtureClassifier(covariance_type="diag", warp=None, cv=splits).fit(X, y, weights)
    fewer = [(kept[kept >= 5] - 5, part[part >= 5] - 5) for kept, part in splits]
    other = MixtureClassifier(covariance_type="diag", warp=None, cv=fewer).fit(X[5:], y[5:])
    assert_close([c.score for c in model.search_], [c.score for c in other.search_])


@pytest.fixture
def compared(monkeypatch):
    """The function from samples to the comparison of a fit, and its trials."""

    def compare(X, y, **options):
        seen = []
        monkeypatch.setattr(automatic, "estimate_selection", lambda *known: seen.extend(known))
        MixtureClassifier(random_state=0, **options).fit(X, y)
        return seen[:2]

    return compare


def test_a_transform_has_two_parameters_per_feature_that_it_transforms(compared, rng):
    y = np.arange(120) % 2
    X = np.column_stack([np.exp(rng.normal(size=(120, 2))) + y[:, None], rng.normal(size=120)])
    _, trials = compared(X, y, covariance_type="diag")
    sizes = {False: set(), True: set()}
    for trial in trials:
        candidate = trial.fit.candidate
        if set(candidate.n_components) == {1}:
            sizes[candidate.transformed].add(trial.fit.n_parameters)
            n_transformed = 0 if trial.fit.warp is None else int(trial.fit.warp.transformed.sum())
            assert (n_transformed > 0) == candidate.transformed
            assert trial.fit.n_parameters == 1 + 2 * 6 + 2 * n_transformed
    assert all(sizes.values())


def test_samples_are_scored_by_folds_that_held_them_out(compared, rng):
    X, y = make_ripley(40, random_state=0)
    order = rng.permutation(len(y))
    comparison, _ = compared(X, y, cv=[(order[30:], order[:30]), (order[:50], order[50:]), (order[20:], order[:20])])
    scored = comparison.scored.numpy()
    scores, held_out = rng.normal(size=(scored.sum(), 3, 2)), comparison.held_out[scored].numpy()
    expected = [np.log(np.exp(own[unseen]).mean(0)) for own, unseen in zip(scores, held_out, strict=True)]
    assert_close(comparison._combine(torch.from_numpy(scores)), np.array(expected), 1e-6)


def test_components_have_enough_samples_of_the_smallest_fold(compared, rng):
    y = np.repeat([0, 1], [100, 40])
    comparison, _ = compared(rng.normal(size=(140, 7)), y)
    assert comparison.smallest_weights.tolist() == [80, 32]
    assert comparison.components(8, Full()) == (8, 4)  # seven samples each
    assert comparison.components(8, Diagonal()) == (8, 6)  # five
    assert comparison.components(32, Diagonal()) == (16, 6)


def test_no_time_leaves_one_candidate(ripley):
    X, y = ripley
    assert len(MixtureClassifier(time_budget=1e-9).fit(X, y).search_) == 1


def test_a_fit_that_goes_on_keeps_what_was_chosen(ripley):
    X, y = ripley
    model = MixtureClassifier(warm_start=True, random_state=0).fit(X, y)
    first, temperature = model.search_, model.temperature_
    model.fit(X, y)
    assert model.search_ is first
    assert model.temperature_ == temperature


def test_single_samples_cannot_be_held_out():
    model = MixtureClassifier().fit([[0.0], [1.0]], [0, 1])
    assert model.search_ is None
    assert model.predict([[0.1], [0.9]]).tolist() == [0, 1]


def test_averages_of_automatic_members_choose_once(ripley):
    X, y = ripley
    model = AveragedMixtureClassifier(MixtureClassifier(), 3, random_state=0).fit(X, y)
    assert len(model.mixtures_) == 3
    assert model.score(X, y) > 0.8
    assert len(model.search_) > 5
    assert all(m.n_components == 2 for m in AveragedMixtureClassifier(n_estimators=2).fit(X, y).mixtures_)


def test_mistakes(ripley):
    X, y = ripley
    refused(lambda: MixtureClassifier(cv=1).fit(X, y), "cv must be ...2; got 1.")
    refused(lambda: MixtureClassifier(time_budget=-1).fit(X, y), "time_budget must be ...; got -1.")
    refused(lambda: MixtureClassifier(temperature=0).fit(X, y), "temperature must be ...; got 0.")
    refused(lambda: MixtureClassifier("many").fit(X, y), "n_components must be ...; got 'many'.")
    refused(lambda: MixtureClassifier(prior="strong").fit(X, y), "prior must be one of ...; got 'strong'.")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")  # array API of SciPy
def test_scikit_learn_agrees_with_the_default():
    """Weights as repetitions too, through the splits that the check passes."""
    check_estimator(MixtureClassifier())


def test_within_a_standard_error_means_that_of_the_mean(rng):
    """A sample of weight 2 counts as two."""
    values, weights = rng.normal(size=50), rng.integers(1, 4, size=50)
    twin = np.repeat(values, weights)
    mean, error = mean_and_error(torch.from_numpy(values), torch.from_numpy(weights).double())
    assert mean == pytest.approx(twin.mean())
    assert error == pytest.approx(twin.std() / np.sqrt(len(twin)))
