"""Averages of class posteriors: MixtureClassifier with several members (averaged-posterior)."""

import copy

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

import mixtura
from mixtura import MixtureClassifier
from mixtura.datasets import make_ripley, remove_values
from mixtura.model.member import Member

X, Y = make_ripley(60, random_state=0)
HOLES = remove_values(X, 0.3, random_state=1)


def with_members(n_members=3, temperature=0.8, **arguments):
    """A model with members of different structures, transforms and temperatures."""
    model = MixtureClassifier(2, random_state=0, **arguments).fit(X, Y)
    others = [
        MixtureClassifier(1, warp="johnson", temperature=2.5, random_state=0).fit(np.sinh(X), Y),
        MixtureClassifier(3, covariance_type="diag", temperature=1.5, random_state=1).fit(X, Y),
    ][: n_members - 1]
    model.temperature_, model.label_noise_ = 1.3, 0.01
    model.further_members_ = tuple(Member(other.mixture_, other.warp_, other.temperature_) for other in others)
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
        total = total + np.exp(calibrated(scores - change, member.temperature))
    average = calibrated(np.log(total / len(model.members_)), model.average_temperature_) + change
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
    model.further_members_ = (Member(model.mixture_, None, model.temperature_),) * 2
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
    model.further_members_ = (Member(other.mixture_),)
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
