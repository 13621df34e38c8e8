"""HybridMixtureClassifier, and gradients in MixtureClassifier."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from torch.utils._python_dispatch import TorchDispatchMode

import mixtura
from mixtura import GaussianMixture, HybridMixtureClassifier, MixtureClassifier
from mixtura.covariances import LowRankPrecision, Tied
from mixtura.datasets import make_ripley, remove_values
from mixtura.objectives import Hybrid, Margin
from mixtura.priors import Shrinkage
from mixtura.selection import tradeoffs
from mixtura.solvers import Gradient, run

pytestmark = pytest.mark.usefixtures("one_thread")

RIPLEY, RIPLEY_LABELS = make_ripley(125, random_state=0)
TEST, TEST_LABELS = make_ripley(500, random_state=1)
IRIS, SPECIES = load_iris(return_X_y=True)


def hybrid(n_components=2, **options) -> HybridMixtureClassifier:
    return HybridMixtureClassifier(n_components, **{"n_epochs": 6, "random_state": 0, **options})


def quietly(call, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return call(*arguments)


# ---- gradients in MixtureClassifier ------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["joint", "conditional", "margin"])
@pytest.mark.parametrize("covariance_type", ["low_rank", "low_rank_precision", "tied"])
def test_gradients_fit_any_objective_and_covariance(objective, covariance_type):
    model = MixtureClassifier(
        2, objective=objective, solver="gradient", covariance_type=covariance_type, max_iter=15, random_state=0
    )
    quietly(model.fit, IRIS, SPECIES)
    assert model.score(IRIS, SPECIES) > 0.95
    assert model.history_[-1].objective > model.history_[0].objective


def test_the_conditional_likelihood_ends_higher_than_that_of_the_generative_fit():
    generative = MixtureClassifier(2, random_state=0).fit(RIPLEY, RIPLEY_LABELS)
    model = quietly(
        MixtureClassifier(2, objective="conditional", prior=None, random_state=0).fit, RIPLEY, RIPLEY_LABELS
    )
    own = np.arange(len(RIPLEY)), RIPLEY_LABELS
    assert model.predict_log_proba(RIPLEY)[own].mean() > generative.predict_log_proba(RIPLEY)[own].mean()


def test_a_gradient_object_brings_its_settings():
    settings = Gradient(optimiser="adam", learning_rate=1e-2, batch_size=50)
    model = MixtureClassifier(2, objective=Hybrid(0.5, Margin(2.0)), solver=settings, max_iter=3, random_state=0)
    assert quietly(model.fit, RIPLEY, RIPLEY_LABELS).n_iter_ == 3


def test_em_fits_another_structure_in_place_of_low_rank_precisions():
    model = MixtureClassifier(1, covariance_type="low_rank_precision", rank=2, prior=None).fit(IRIS, SPECIES)
    full = MixtureClassifier(1, prior=None).fit(IRIS, SPECIES)
    assert set(model.mixture_.covariance.tensors()) == {"precisions", "directions"}
    assert (model.predict(IRIS) == full.predict(IRIS)).mean() > 0.95


def test_low_rank_precisions_that_em_cannot_move_say_so():
    model = MixtureClassifier(1, covariance_type="low_rank_precision", rank=2).fit(IRIS, SPECIES)
    again = MixtureClassifier(1, covariance_type="low_rank_precision", rank=2, init=model.mixture_)
    with pytest.raises(ValueError, match="has no closed-form update, so EM cannot fit it; use 'low_rank'"):
        again.fit(IRIS, SPECIES)
    with pytest.raises(ValueError, match="has no closed-form update"):
        GaussianMixture(covariance_type=LowRankPrecision(1)).fit(IRIS)


class LargestTensor(TorchDispatchMode):
    """The most bytes that an operation gives."""

    def __init__(self):
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        actual = operation(*arguments, **(options or {}))
        for part in actual if isinstance(actual, tuple | list) else [actual]:
            if isinstance(part, torch.Tensor):
                self.size = max(self.size, part.nbytes)
        return actual


@pytest.mark.parametrize("covariance_type", ["low_rank", "low_rank_precision"])
@pytest.mark.parametrize("missing", [False, True])
def test_low_rank_needs_memory_in_proportion_to_the_features(covariance_type, missing, rng):
    """EM, gradients and prediction; twice the features, twice the largest tensor, and nothing of their square."""
    sizes = []
    for n_features in (400, 800):
        X, y = rng.normal(size=(40, n_features)), np.arange(40) % 2
        if missing:
            X[rng.random(X.shape) < 0.1] = np.nan
        model = hybrid(1, covariance_type=covariance_type, rank=3, n_epochs=1, max_iter=2, tradeoff=0.5)
        with LargestTensor() as largest:
            quietly(model.fit, X, y)
            model.predict_proba(X)
        sizes.append(largest.size)
    assert sizes[1] <= 2.1 * sizes[0]
    assert sizes[1] < 0.2 * 8 * 800**2


# ---- the hybrid --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discriminative", ["margin", "conditional"])
def test_defaults_classify(discriminative):
    model = hybrid(discriminative=discriminative, n_epochs=20).fit(RIPLEY, RIPLEY_LABELS)
    assert model.score(TEST, TEST_LABELS) > 0.89  # the best possible is about 0.91
    assert model.tradeoff_ in (1.0, 0.5, 0.1, 0.01)
    assert [candidate.what["tradeoff"] for candidate in model.search_] == [1.0, 0.5, 0.1, 0.01]
    assert (model.margin_ is not None) == (discriminative == "margin")


def test_the_choice_is_that_of_the_best_score():
    model = hybrid().fit(RIPLEY, RIPLEY_LABELS)
    keys = [(candidate.what["error"], candidate.score) for candidate in model.search_]
    assert model.search_.chosen == keys.index(min(keys))
    assert model.search_.best.what["tradeoff"] == model.tradeoff_
    assert model.search_.best.what["n_epochs"] == model.n_epochs_
    if model.tradeoff_ < 1:
        scores = dict(model.validation_scores_)
        assert scores[model.n_epochs_] == max(scores.values())


def test_scores_are_kept_where_the_start_is_best():
    """A hopeless learning rate: every epoch is worse than the start."""
    model = hybrid(tradeoff=0.5, learning_rate=10.0, n_epochs=2).fit(RIPLEY, RIPLEY_LABELS)
    assert model.n_epochs_ == 0
    scores = dict(model.validation_scores_)
    assert scores[0] == max(scores.values())


def test_the_prior_has_the_weight_of_the_likelihood(monkeypatch):
    seen = []

    def watched(solver, problem, *rest, **options):
        seen.append((problem.objective.tradeoff, problem.prior))
        return run(solver, problem, *rest, **options)

    monkeypatch.setattr(tradeoffs, "run", watched)
    model = quietly(hybrid(1, tradeoff=0.25, validation_fraction=None).fit, RIPLEY, RIPLEY_LABELS)
    whole, part = (dict(seen)[tradeoff].log_density(model.mixture_) for tradeoff in (1.0, 0.25))
    assert float(part) == pytest.approx(0.25 * float(whole))
    assert abs(float(whole)) > 1e-3


def test_the_slider_trades_likelihood_for_margins():
    models = [
        hybrid(tradeoff=t, margin=3.0, validation_fraction=None, n_epochs=40, learning_rate=1e-2).fit(
            RIPLEY, RIPLEY_LABELS
        )
        for t in (1.0, 0.3, 0.0)
    ]
    likelihoods = [m.score_samples(RIPLEY).mean() for m in models]
    odds = [m.decision_function(RIPLEY) * np.where(RIPLEY_LABELS == 1, 1, -1) for m in models]
    margins = [np.minimum(3.0, o).mean() for o in odds]
    assert likelihoods[0] > likelihoods[1] > likelihoods[2]
    assert margins[0] < margins[1] < margins[2]


def test_rows_of_ones_own_choose_without_a_refit():
    model = hybrid(n_epochs=4).fit(RIPLEY, RIPLEY_LABELS, X_val=TEST, y_val=TEST_LABELS)
    error = 1 - model.score(TEST, TEST_LABELS)
    assert error == pytest.approx(model.search_.best.what["error"])
    assert error == pytest.approx(min(candidate.what["error"] for candidate in model.search_))


def test_too_few_rows_are_not_split():
    few = np.r_[0:40, 125:165]
    model = hybrid(n_epochs=2).fit(RIPLEY[few], RIPLEY_LABELS[few])
    assert (model.validation_scores_, model.search_, model.tradeoff_, model.n_epochs_) == ([], None, 0.5, 2)


def test_missing_values_unlabeled_rows_and_weights_together():
    rows = remove_values(RIPLEY, 0.2, random_state=0)
    labels = np.where(np.arange(250) % 3 == 0, -1, RIPLEY_LABELS)
    model = hybrid(unlabeled=-1, tradeoff=0.3, n_epochs=3, validation_fraction=0.2).fit(
        rows, labels, np.linspace(1, 2, 250)
    )
    assert model.score(TEST, TEST_LABELS) > 0.85
    assert np.isfinite(model.score_samples(remove_values(TEST, 0.3, random_state=1))).all()
    empty = np.full((1, 2), np.nan)
    np.testing.assert_allclose(model.predict_proba(empty)[0], model.class_prior_)


def test_a_hybrid_stays_a_density():
    model = hybrid(tradeoff=0.5).fit(RIPLEY, RIPLEY_LABELS)
    drawn, labels = model.sample(400)
    assert MixtureClassifier(2, random_state=0).fit(RIPLEY, RIPLEY_LABELS).score(drawn, labels) > 0.8
    holes = remove_values(RIPLEY, 0.3, random_state=0)
    assert np.isfinite(model.impute(holes)).all()


def test_unlabeled_weights_reach_the_start():
    labels = np.where(np.arange(250) % 5 == 0, RIPLEY_LABELS, -1)
    light, heavy = (
        hybrid(1, unlabeled=-1, unlabeled_weight=w, n_epochs=0, tradeoff=0.5).fit(RIPLEY, labels) for w in (0.0, 1.0)
    )
    alone = hybrid(1, n_epochs=0, tradeoff=0.5).fit(RIPLEY[::5], RIPLEY_LABELS[::5])
    np.testing.assert_allclose(light.mixture_.means, alone.mixture_.means, atol=1e-6)
    assert abs(heavy.mixture_.means - light.mixture_.means).max() > 1e-3


@pytest.mark.parametrize("covariance_type", ["low_rank", "low_rank_precision"])
def test_saved_hybrids_come_back(covariance_type, tmp_path):
    X, y = load_wine(return_X_y=True)
    model = hybrid(1, covariance_type=covariance_type, rank=3, n_epochs=2, tradeoff=0.5).fit(X, y)
    model.save(tmp_path / "model")
    again = mixtura.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.get_params() == model.get_params()
    assert (again.tradeoff_, again.margin_, again.n_epochs_) == (0.5, model.margin_, 2)


def test_the_same_seed_gives_the_same_fit_and_tensors_give_tensors():
    first, second = (hybrid(n_epochs=3).fit(RIPLEY, RIPLEY_LABELS) for _ in range(2))
    np.testing.assert_array_equal(first.predict_proba(TEST), second.predict_proba(TEST))
    third = hybrid(n_epochs=3).fit(torch.from_numpy(RIPLEY), torch.from_numpy(RIPLEY_LABELS))
    assert isinstance(third.predict_proba(torch.from_numpy(TEST)), torch.Tensor)


# ---- broken off and taken up -------------------------------------------------------------------------------------


def test_a_checkpoint_is_refused_with_another_validation_set_or_prior(tmp_path):
    options = {"tradeoff": 0.5, "n_epochs": 3, "checkpoint": tmp_path / "fit"}
    X, y, X_val, y_val = RIPLEY[::2], RIPLEY_LABELS[::2], RIPLEY[1::2], RIPLEY_LABELS[1::2]
    hybrid(**options).fit(X, y, X_val=X_val, y_val=y_val)
    others = {
        "held-out samples": (hybrid(**options), X_val + 0.1, y_val),
        "held-out labels": (hybrid(**options), X_val, 1 - y_val),
        "prior": (hybrid(prior=Shrinkage(scale=2.0), **options), X_val, y_val),
    }
    for name, (model, rows, labels) in others.items():
        with pytest.raises(ValueError, match=rf"belongs to another fit \(other .*{name}.*\); choose another file"):
            model.fit(X, y, X_val=rows, y_val=labels)
    assert hybrid(**options).fit(X, y, X_val=X_val, y_val=y_val).n_iter_ == 3


# ---- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"tradeoff": 1.2}, 'tradeoff must be a number from 0 to 1 or "auto"; got 1.2.'),
        ({"tradeoff": "some"}, "tradeoff must be a number from 0 to 1 or \"auto\"; got 'some'."),
        ({"margin": 0.0}, 'margin must be a number above 0 or "auto"; got 0.0.'),
        ({"margin": -3}, 'margin must be a number above 0 or "auto"; got -3.'),
        ({"discriminative": "x"}, "discriminative must be one of 'margin', 'conditional'; got 'x'."),
        ({"unlabeled_weight": -1}, "unlabeled_weight must be a number of at least 0; got -1."),
        ({"learning_rate": 0}, "learning_rate must be a number above 0; got 0."),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1; got 0."),
        ({"n_components": "auto"}, "n_components must be an integer of at least 1; got 'auto'."),
        ({"n_epochs": -1}, "n_epochs must be an integer of at least 0; got -1."),
        ({"validation_fraction": 1.0}, "validation_fraction must be a number above 0 and below 1 or None; got 1.0."),
        ({"covariance_type": "low_rank", "rank": 3}, "rank must not exceed the number of features, 2; got 3."),
        ({"device": "cuda:77"}, "device='cuda:77' is not available: torch sees"),
    ],
)
def test_arguments(arguments, text):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the text is compared below
        hybrid(**arguments).fit(RIPLEY, RIPLEY_LABELS)
    assert text in str(error.value)


def test_rows_that_choose_must_be_of_known_classes():
    with pytest.raises(ValueError, match="y_val may hold labels of y alone"):
        hybrid().fit(RIPLEY, RIPLEY_LABELS, X_val=TEST, y_val=np.where(TEST_LABELS == 1, 7, 0))


def test_unlabeled_rows_do_not_choose():
    labels, free = np.where(RIPLEY_LABELS == 1, 1, 2), np.arange(len(TEST)) % 3 == 0
    known = np.where(TEST_LABELS == 1, 1, 2)
    some = hybrid(unlabeled=-1).fit(RIPLEY, labels, X_val=TEST, y_val=np.where(free, -1, known))
    expected = hybrid(unlabeled=-1).fit(RIPLEY, labels, X_val=TEST[~free], y_val=known[~free])
    assert some.validation_scores_ == expected.validation_scores_


def test_unlabeled_rows_need_a_share_of_the_likelihood():
    with pytest.raises(ValueError, match="50 samples are unlabeled, but objective 'hybrid' is purely discriminative"):
        hybrid(1, unlabeled=2, tradeoff=0.0).fit(IRIS, SPECIES)


def test_all_rows_unlabeled():
    with pytest.raises(ValueError, match="needs labeled samples, but all 250 samples are unlabeled"):
        hybrid(unlabeled=-1).fit(RIPLEY, np.full(250, -1))


def test_tied_precisions_are_refused():
    with pytest.raises(ValueError, match="has no closed-form update"):
        hybrid(covariance_type=Tied(LowRankPrecision(1))).fit(RIPLEY, RIPLEY_LABELS)
