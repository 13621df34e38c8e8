"""Gradients of objectives by free parameters, and the solver that follows them."""

import re
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

import reference
from cases import (
    COVARIANCES,
    KINDS,
    PRIORS,
    VARIANCES,
    assert_close,
    assert_same_mixture,
    every_covariance,
    every_prior,
    problem_of,
    random_data,
    random_mixture,
    tensor,
)
from mixtura.engine.passes import summarise
from mixtura.engine.sources import TensorSource, locate
from mixtura.engine.tuning import DEFAULT_MEMORY_LIMIT
from mixtura.files.checkpoints import CheckpointFile, Journal, writing_to
from mixtura.numerics.linalg import NumericalError
from mixtura.objectives import Conditional, Hybrid, Joint, Margin
from mixtura.priors import Scaled
from mixtura.selection.scores import classification_score
from mixtura.solvers import EM, EarlyStopping, Gradient, Outcome, run
from mixtura.solvers.gradient import LBFGS, Adam, Training

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = {part.name for part in fields(Gradient)}
HYBRID = Hybrid(0.3, Margin(4.0), 0.6)
TRAINED = {"joint": Joint(), "conditional": Conditional(), "margin": Margin(3.0), "hybrid": HYBRID}
trained_objectives = pytest.mark.parametrize("objective", TRAINED.values(), ids=TRAINED)
gradient_kinds = pytest.mark.parametrize("name", ["some_labels", "soft_labels", "all_hard"])


def training_of(mixture, data, device="cpu", dtype=torch.float64, **options) -> Training:
    settings = {name: options.pop(name) for name in list(options) if name in SETTINGS}
    problem = problem_of(data.source(device, dtype), **options)
    return Training(Gradient(**{"optimiser": "adam", "batch_size": 16, **settings}), problem, mixture)


def gradient_and_value(training) -> tuple[dict, float]:
    """Of all rows at once."""
    every = torch.arange(len(training.rows), device=training.rows.device)
    training.optimiser.zero_grad()
    value = training._gradient(every, torch.ones_like(every, dtype=torch.bool), training.total_weight, 1.0)
    return {name: leaf.grad.clone() for name, leaf in training.free.leaves.items()}, float(value)


@every_covariance
@trained_objectives
@gradient_kinds
def test_a_pass_over_all_rows_gives_the_same_gradient(case, objective, name, rng, device):
    """L-BFGS on a GPU takes it from the moments of one pass."""
    mixture, data = random_mixture(case, rng, device), random_data(KINDS[name], rng, n_rows=60)
    training = training_of(mixture, data, device, objective=objective, optimiser="lbfgs")
    expected, value = gradient_and_value(training)
    training.optimiser.zero_grad()
    actual_value = training._gradient_of_moments(training._source(slice(None)), training.total_weight, 1.0)
    assert float(actual_value) == pytest.approx(value, rel=1e-9)
    for leaf, gradient in zip(training.free.leaves.values(), expected.values(), strict=True):
        assert_close(leaf.grad, gradient, 1e-8, max(1.0, float(gradient.abs().max())))


def slow_value(training, data, twin_objective, prior) -> float:
    """By dense matrices, row by row."""
    twin = reference.twin_of(training.free.mixture())
    value = reference.evaluated(twin, data, twin_objective).value
    if prior is not None:
        mixture = training.free.mixture()
        value += float(prior.log_density(mixture))
    return value


@every_covariance
@gradient_kinds
def test_gradients_are_central_differences_of_the_slow_objective(case, name, rng, device):
    data, prior = random_data(KINDS[name], rng), PRIORS["dirichlet"][0](tensor(VARIANCES, device))
    prior = Scaled(prior, 0.3)
    training = training_of(random_mixture(case, rng, device), data, device, objective=HYBRID, prior=prior)
    twin = reference.hybrid(0.3, reference.margin(4.0), 0.6)
    gradient, value = gradient_and_value(training)
    if name not in ("all_hard", "all_soft"):  # there the units of missing values are taken off on average
        assert_close(value, slow_value(training, data, twin, prior), 1e-8)
    start = training.free.snapshot()
    direction = {key: tensor(rng.normal(size=part.shape), device) for key, part in start.items()}
    h, values = 1e-5, []
    for sign in (1, -1):
        training.free.restore({key: part + sign * h * direction[key] for key, part in start.items()})
        values.append(slow_value(training, data, twin, prior))
    slope = -sum(float((gradient[key] * direction[key]).sum()) for key in start) * training.total_weight
    assert_close(slope, (values[0] - values[1]) / (2 * h), 1e-5, 10.0)


@every_covariance
@trained_objectives
def test_moments_give_the_gradient_of_the_products(case, objective, rng, device):
    data = random_data(KINDS["some_labels"], rng)
    training = training_of(random_mixture(case, rng, device), data, device, objective=objective)
    by_products, value = gradient_and_value(training)
    training.missing = True
    by_moments, other = gradient_and_value(training)
    assert_close(value, other)
    for name, part in by_products.items():
        assert_close(by_moments[name], part, 1e-8)


@every_covariance
@every_prior
def test_the_value_is_that_of_the_mixture(case, make_prior, twin_prior, rng, device):
    mixture, data = random_mixture(case, rng, device), random_data(KINDS["labels"], rng)
    prior = make_prior(tensor(VARIANCES, device))
    training = training_of(mixture, data, device, prior=prior)
    assert_same_mixture(training.free.mixture(), mixture, 1e-7)
    source = data.source(device)
    expected = summarise(mixture, source, Joint(), locate(source)).value
    if prior is not None:
        expected += float(prior.log_density(mixture))
    assert_close(gradient_and_value(training)[1], expected, 1e-7)


def test_units_of_the_columns_do_not_matter(rng, device):
    mixture, data = random_mixture(COVARIANCES["full"], rng, device), random_data(KINDS["labels"], rng)
    scales, shift = np.array([1.0, 1e6, 1e-3, 10.0]), np.array([0.0, 1e4, 5.0, -3.0])
    moved = replace(
        mixture,
        means=mixture.means * tensor(scales, device) + tensor(shift, device),
        covariance=mixture.covariance.scaled(tensor(scales, device)),
    )
    first = training_of(mixture, data, device, objective=HYBRID)
    second = training_of(moved, data.changed(rows=data.rows * scales + shift), device, objective=HYBRID)
    for training in (first, second):
        training.run_epoch(0)
    for name, leaf in first.free.leaves.items():
        assert_close(second.free.leaves[name], leaf, 1e-6)


# ---- the solver --------------------------------------------------------------------------------------------------


def fit(mixture, source, n_epochs=5, held_out=None, patience=20, checkpoint=None, **options):
    settings = {name: options.pop(name) for name in list(options) if name in SETTINGS}
    solver = Gradient(**{"optimiser": "adam", "batch_size": 20, "learning_rate": 1e-2, **settings})
    problem = problem_of(source, **{"objective": HYBRID, **options})
    judge = None
    if held_out is not None:
        judge = EarlyStopping(classification_score(held_out, False, DEFAULT_MEMORY_LIMIT), patience=patience)
    with writing_to(Journal(None if checkpoint is None else CheckpointFile(checkpoint, {}))):
        return run(solver, problem, mixture, n_epochs, 0.0, held_out=judge)


@pytest.mark.parametrize("optimiser", ["adam", "lbfgs", lambda leaves: torch.optim.SGD(leaves, lr=1e-2)])
@pytest.mark.parametrize("name", ["complete", "all_hard", "all_soft"])
def test_the_objective_rises(optimiser, name, rng, device):
    mixture, data = random_mixture(COVARIANCES["low_rank_2"], rng, device), random_data(KINDS[name], rng, n_rows=130)
    objective = Joint() if name == "complete" else HYBRID
    result = fit(mixture, data.source(device), 8, optimiser=optimiser, objective=objective)
    values = [record.objective for record in result.history]
    assert values[-1] > values[0] + 0.05
    if optimiser == "lbfgs":
        assert (np.diff(values) >= -1e-9).all()


@every_covariance
def test_lbfgs_finds_the_maximum_that_em_finds(case, rng, device):
    """One component a class and labels: the likelihood has one maximum, and EM finds it in closed form."""
    if case.restricted is None or "low_rank" in str(case.structure) or "LowRank" in str(case.structure):
        return
    data = random_data(KINDS["labels"], rng, n_rows=120)
    source = data.source(device)
    mixture = random_mixture(case, rng, device, class_of=np.array([0, 1, 2]))
    expected = run(EM(), problem_of(source), mixture, 3, 0.0).mixture
    actual = fit(mixture, source, 30, optimiser="lbfgs", objective=Joint()).mixture
    assert_same_mixture(actual, expected, 1e-4)


def test_fixed_class_probabilities_are_kept(rng, device):
    class_prior = torch.tensor([0.2, 0.7, 0.1], dtype=torch.float64, device=device)
    mixture = random_mixture(COVARIANCES["diag"], rng, device).with_class_prior(class_prior)
    source = random_data(KINDS["labels"], rng).source(device)
    actual = fit(mixture, source, class_prior=class_prior).mixture
    assert_close(actual.log_class_prior.exp(), class_prior)
    assert abs(actual.log_weights - mixture.log_weights).max() > 1e-3


def test_logits_of_classes_may_be_far_apart(rng, device):
    class_prior = torch.tensor([0.2, 0.7, 0.1], dtype=torch.float64, device=device)
    mixture = random_mixture(COVARIANCES["diag"], rng, device)
    free = training_of(mixture, random_data(KINDS["labels"], rng), device, class_prior=class_prior).free
    with torch.no_grad():
        free.leaves["logits"] += 1e3 * free.class_of  # only their differences within a class matter
    expected = class_prior.log()[free.class_of]
    totals = free.standard_mixture().log_class_prior[free.class_of]
    assert_close(totals, expected)


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_fit_that_diverges_names_the_learning_rate(rng, device, epochs):
    mixture = random_mixture(COVARIANCES["full"], rng, device)
    source = random_data(KINDS["labels"], rng).source(device)
    how = "a covariance is singular or not finite" if epochs == 1 else "the objective is nan"
    message = (
        f"the objective or a parameter became too large or not finite in epoch {epochs} of solver 'gradient' ({how}); "
        "decrease the learning rate, or use prior='default'"
    )
    with pytest.raises(NumericalError, match=f"^{re.escape(message)}$"):
        fit(mixture, source, epochs, learning_rate=1e10, batch_size=1000)


def held_out_of(data, device) -> TensorSource:
    return TensorSource(tensor(data.rows, device), tensor(data.labels, device))


def test_the_epoch_that_predicts_best_is_kept(rng, device):
    mixture, data = random_mixture(COVARIANCES["full"], rng, device), random_data(KINDS["labels"], rng, n_rows=60)
    kept = held_out_of(random_data(KINDS["labels"], rng, n_rows=40), device)
    result = fit(mixture, data.source(device), 60, held_out=kept, patience=4, learning_rate=0.05)
    assert result.outcome is Outcome.HELD_OUT
    assert len(result.history) == result.best_iteration + 4
    scores = dict(result.scores)
    assert scores[result.best_iteration] == max(scores.values())
    assert classification_score(kept, False, DEFAULT_MEMORY_LIMIT)(result.mixture) == scores[result.best_iteration]


@pytest.mark.parametrize("missing", [False, True])
def test_scores_are_minus_the_error_and_the_log_posterior(missing, rng, device):
    mixture, data = random_mixture(COVARIANCES["low_rank_2"], rng, device), random_data(KINDS["labels"], rng)
    if missing:
        data = data.changed(rows=np.where(rng.random(data.rows.shape) < 0.2, np.nan, data.rows))
    score = classification_score(held_out_of(data, device), True, DEFAULT_MEMORY_LIMIT)
    joint = reference.log_joint(data.rows, reference.twin_of(mixture))
    classes = np.array([np.logaddexp.reduce(joint[:, mixture.class_of.cpu().numpy() == c], axis=1) for c in range(3)])
    posterior = classes - np.logaddexp.reduce(classes, axis=0)
    error = np.mean(posterior.argmax(0) != data.labels)
    assert_close(score(mixture), [-error, posterior[data.labels, np.arange(len(data.labels))].mean()], 1e-7)


def test_the_step_size_falls_to_nothing_along_a_cosine(rng, device):
    mixture, data = random_mixture(COVARIANCES["full"], rng, device), random_data(KINDS["labels"], rng)
    training = training_of(mixture, data, device, objective=HYBRID, learning_rate=0.1, decay_epochs=4)
    rates = []
    for epoch in range(4):
        training.run_epoch(epoch)
        rates.append(float(training.optimiser.param_groups[0]["lr"]))
    assert_close(np.array(rates), 0.1 * np.cos(np.pi / 8 * np.arange(4)) ** 2, 1e-6)
    last = training.free.snapshot()
    training.run_epoch(4)
    for name, leaf in training.free.leaves.items():
        assert_close(leaf, last[name])


def test_the_mixture_is_a_moving_average_of_the_parameters(rng, device):
    mixture, data = random_mixture(COVARIANCES["full"], rng, device), random_data(KINDS["labels"], rng)
    training = training_of(mixture, data, device, objective=HYBRID, batch_size=10**6, averaging=0.25)
    average = training.free.snapshot()
    for epoch in range(3):
        training.run_epoch(epoch)
        average = {name: 0.75 * part + 0.25 * training.free.leaves[name].detach() for name, part in average.items()}
    for name, part in training.copies()["averages"].items():
        assert_close(part, average[name])


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (Adam, torch.optim.Adam, {"lr": 0.1, "fused": True}),
        (LBFGS, torch.optim.LBFGS, {"max_iter": 3, "line_search_fn": "strong_wolfe"}),
    ],
)
def test_optimisers_without_the_compiler_are_those_of_torch(ours, theirs, options, device):
    """Bit for bit: values, and the states that checkpoints keep."""
    answers = []
    for make in (ours, theirs):
        leaf = torch.linspace(-1, 2, 7, dtype=torch.float64, device=device, requires_grad=True)
        optimiser = make([leaf], **options)

        def closure(leaf=leaf, optimiser=optimiser):
            optimiser.zero_grad(set_to_none=False)
            loss = (leaf.cosh() + leaf.roll(1) * leaf).sum()
            loss.backward()
            return loss

        for _ in range(4):
            if theirs is torch.optim.Adam:
                closure()
                optimiser.step()
            else:
                optimiser.step(closure)
        assert leaf.requires_grad
        answers.append((leaf.detach(), optimiser.state_dict()["state"]))
    torch.testing.assert_close(*answers, rtol=0, atol=0)


# ---- checkpoints -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["labels", "all_hard"])
def test_a_fit_that_was_broken_off_goes_on_as_if_it_had_not_been(name, rng, device, tmp_path):
    mixture, source = random_mixture(COVARIANCES["full"], rng, device), random_data(KINDS[name], rng).source(device)
    kept = held_out_of(random_data(KINDS["labels"], rng), device)
    options = {"held_out": kept, "patience": 100, "checkpoint": tmp_path / "fit", "decay_epochs": 6, "averaging": 0.1}
    whole = fit(mixture, source, 6, **{**options, "checkpoint": None})
    fit(mixture, source, 4, **options)
    broken = fit(mixture, source, 6, **options)
    assert [r.objective for r in broken.history] == [r.objective for r in whole.history]
    assert broken.scores == whole.scores
    assert torch.equal(broken.mixture.means, whole.mixture.means)
