"""Laws of objectives: values and signed responsibilities against twins, gradients and differences."""

import numpy as np
import pytest
import torch

import reference
from cases import CLASS_OF, OBJECTIVES, assert_close, every_objective, soft_labels, tensor
from mixtura.objectives import OBJECTIVES as REGISTRY
from mixtura.objectives import Conditional, Hybrid, Joint, Margin, Marginal, posteriors, shares
from mixtura.objectives.likelihood import exponentials
from mixtura.values.targets import Targets

N_ROWS, N_CLASSES = 12, 3
KNOWLEDGE = ("nothing", "labels", "some", "none_labeled", "soft", "one_hot")
every_knowledge = pytest.mark.parametrize("known", KNOWLEDGE)


def labels_and_shares(known, rng):
    labels = np.arange(N_ROWS) % N_CLASSES
    if known == "nothing":
        return None, None
    if known == "labels":
        return labels, None
    if known == "some":
        return np.where(np.arange(N_ROWS) % 4 == 0, -1, labels), None
    if known == "none_labeled":
        return np.full(N_ROWS, -1), None
    return None, soft_labels(labels, N_CLASSES, rng) if known == "soft" else np.eye(N_CLASSES)[labels]


def targets_of(known, rng, device) -> tuple[Targets, np.ndarray]:
    """What the objective is told, and the same as one matrix of shares."""
    labels, shares = labels_and_shares(known, rng)
    parts = (None if part is None else tensor(part, device) for part in (labels, shares))
    return Targets(tensor(CLASS_OF, device), *parts), reference.shares_of(labels, shares, N_ROWS, N_CLASSES)


@pytest.fixture
def log_joint(rng, device):
    return tensor(rng.normal(0, 3, (len(CLASS_OF), N_ROWS)), device)


def test_every_objective_of_the_registry_is_in_the_table():
    assert {name: OBJECTIVES[name][0] for name in REGISTRY} == REGISTRY


@every_objective
@every_knowledge
def test_values_and_responsibilities_equal_the_twin(objective, twin_objective, known, log_joint, rng, device):
    targets, shares = targets_of(known, rng, device)
    found = objective.evaluate(log_joint.clone(), targets)
    rows = zip(log_joint.T.cpu().numpy(), shares, strict=True)
    values, numerator, denominator = map(np.array, zip(*(twin_objective(a, CLASS_OF, s) for a, s in rows), strict=True))
    assert_close(found.values, values)
    assert_close(found.numerator.T, numerator)
    assert_close(found.signed.T, numerator - denominator)
    assert (found.denominator is not None) == objective.needs_denominator


@every_objective
@every_knowledge
def test_signed_responsibilities_are_the_gradient(objective, twin_objective, known, log_joint, rng, device):
    targets, _ = targets_of(known, rng, device)
    variable = log_joint.clone().requires_grad_()
    value = objective.evaluate(variable, targets).values.sum() + 0 * variable.sum()  # a margin may ask for nothing
    (gradient,) = torch.autograd.grad(value, variable)
    assert_close(objective.evaluate(log_joint.clone(), targets).signed, gradient)


@every_objective
@every_knowledge
def test_signed_responsibilities_are_central_differences(objective, twin_objective, known, log_joint, rng, device):
    targets, _ = targets_of(known, rng, device)
    signed, h = objective.evaluate(log_joint.clone(), targets).signed, 1e-5
    for k in range(len(log_joint)):
        step = torch.zeros_like(log_joint)
        step[k] = h
        up, down = (objective.evaluate(log_joint + sign * step, targets).values for sign in (1, -1))
        assert_close(signed[k], (up - down) / (2 * h), 1e-8)


@every_objective
def test_evaluating_leaves_the_log_joints_alone(objective, twin_objective, log_joint, rng, device):
    before = log_joint.clone()
    objective.evaluate(log_joint, targets_of("some", rng, device)[0])
    assert torch.equal(log_joint, before)


@every_objective
def test_numerator_and_denominator_are_not_negative(objective, twin_objective, log_joint, rng, device):
    found = objective.evaluate(log_joint, targets_of("soft", rng, device)[0])
    assert (found.numerator >= 0).all()
    assert found.denominator is None or (found.denominator >= 0).all()


@every_objective
def test_certain_soft_labels_are_labels(objective, twin_objective, log_joint, rng, device):
    hard = objective.evaluate(log_joint, targets_of("labels", rng, device)[0])
    soft = objective.evaluate(log_joint, targets_of("one_hot", rng, device)[0])
    assert_close(soft.values, hard.values)
    assert_close(soft.signed, hard.signed)


@every_objective
def test_soft_labels_average_hard_ones(objective, twin_objective, log_joint, rng, device):
    shares = rng.dirichlet(np.ones(N_CLASSES), N_ROWS)
    class_of = tensor(CLASS_OF, device)
    soft = objective.evaluate(log_joint, Targets(class_of, shares=tensor(shares, device)))
    hard = [
        objective.evaluate(log_joint, Targets(class_of, torch.full((N_ROWS,), c, device=device))).values
        for c in range(N_CLASSES)
    ]
    assert_close(soft.values, (tensor(shares, device) * torch.stack(hard, 1)).sum(1))


@every_knowledge
def test_joint_is_marginal_plus_conditional(known, log_joint, rng, device):
    targets, _ = targets_of(known, rng, device)
    joint, marginal, conditional = (o.evaluate(log_joint, targets) for o in (Joint(), Marginal(), Conditional()))
    assert_close(joint.values, marginal.values + conditional.values)
    assert_close(joint.signed, marginal.signed + conditional.signed)


@every_knowledge
def test_responsibilities_sum_to_one_and_conditional_ones_to_zero(known, log_joint, rng, device):
    targets, _ = targets_of(known, rng, device)
    assert_close(Joint().evaluate(log_joint, targets).signed.sum(0), np.ones(N_ROWS))
    assert_close(Marginal().evaluate(log_joint, targets).signed.sum(0), np.ones(N_ROWS))
    assert_close(Conditional().evaluate(log_joint, targets).signed.sum(0), np.zeros(N_ROWS))


def test_an_unlabeled_row_tells_nothing_of_its_class(log_joint, rng, device):
    found = Conditional().evaluate(log_joint, targets_of("none_labeled", rng, device)[0])
    assert_close(found.values, np.zeros(N_ROWS))
    assert_close(found.signed, np.zeros((len(CLASS_OF), N_ROWS)))


def test_a_row_with_the_margin_asks_for_nothing(device):
    log_joint = torch.tensor([[0.0], [-3.0]], dtype=torch.float64, device=device)
    targets = Targets(torch.tensor([0, 1], device=device), torch.tensor([0], device=device))
    ahead, short = (Margin(margin).evaluate(log_joint, targets) for margin in (2.9, 3.5))
    assert (ahead.values == 0).all()
    assert (ahead.signed == 0).all()
    assert_close(short.values, [-0.5])
    assert_close(short.signed, [[1.0], [-1.0]])


@pytest.mark.parametrize("discriminative", [Conditional(), Margin(4.0)])
def test_the_slider_goes_from_the_likelihood_to_the_other_objective(discriminative, log_joint, rng, device):
    targets, _ = targets_of("some", rng, device)
    ends = [(1.0, Joint()), (0.0, discriminative)]
    for tradeoff, expected in ends:
        found, alone = (o.evaluate(log_joint, targets) for o in (Hybrid(tradeoff, discriminative), expected))
        assert_close(found.values, alone.values)
        assert_close(found.signed, alone.signed)
        hybrid = Hybrid(tradeoff, discriminative)
        assert (hybrid.own_class_only, hybrid.has_density) == (alone.denominator is None, alone.denominator is None)


@every_objective
def test_far_log_joints_neither_overflow_nor_vanish(objective, twin_objective, log_joint, rng, device):
    targets, _ = targets_of("some", rng, device)
    near, far = (objective.evaluate(log_joint + shift, targets) for shift in (0.0, -1e5))
    assert_close(far.numerator, near.numerator)
    assert torch.isfinite(far.values).all()


@every_objective
def test_a_component_of_no_weight_has_no_responsibility(objective, twin_objective, log_joint, rng, device):
    log_joint[1] = -torch.inf
    found = objective.evaluate(log_joint, targets_of("soft", rng, device)[0])
    assert torch.isfinite(found.values).all()
    assert (found.signed[1] == 0).all()
    assert torch.isfinite(found.signed).all()


def test_a_row_that_no_component_can_explain_has_value_minus_infinity_and_no_responsibilities(log_joint, rng, device):
    log_joint[:, 5] = -torch.inf
    for objective in (Joint(), Marginal()):
        found = objective.evaluate(log_joint, targets_of("some", rng, device)[0])
        assert found.values[5] == -torch.inf
        assert (found.numerator[:, 5] == 0).all()
        assert torch.isfinite(found.values).sum() == N_ROWS - 1


def test_shares_are_the_posteriors(rng, device):
    log_joint = torch.tensor(rng.normal(size=(4, 6)), device=device)
    log_joint[:, 2] = -torch.inf  # a row that no component explains
    log_joint[1, 3] = -torch.inf
    values, expected = posteriors(log_joint)
    assert_close(shares(log_joint.clone()), expected.T)
    there = log_joint.clone()
    found = posteriors(there, overwrite=True)
    assert_close(found[0], values)
    assert_close(found[1], expected)
    assert found[1].data_ptr() == there.data_ptr()


@pytest.mark.parametrize("size", [1e5, 1e16, 1e19, 1e150, 1e300])
def test_posteriors_of_rows_far_away_sum_to_one(size, rng, device):
    log_joint = -size * torch.tensor(1 + rng.random(size=(4, 200)), device=device)
    for found in (posteriors(log_joint)[1].T, shares(log_joint.clone())):
        assert_close(found.sum(1), torch.ones(200))
        assert torch.equal(found.argmax(1), log_joint.argmax(0))


@pytest.mark.parametrize("distance", [80.0, 95.0, 200.0])
def test_a_row_far_from_its_class_has_a_finite_gradient_in_single_precision(distance):
    log_joint = torch.tensor([[-distance], [0.0]], requires_grad=True)
    found = Conditional().evaluate(log_joint, Targets(torch.tensor([0, 1]), torch.tensor([0])))
    (gradient,) = torch.autograd.grad(found.values.sum(), log_joint)
    assert found.values.item() == pytest.approx(-distance)
    assert_close(gradient, torch.tensor([[1.0], [-1.0]]), 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponentials_are_right_or_zero(dtype, device):
    tiny = torch.finfo(dtype).tiny
    x = torch.linspace(2 * np.log(tiny), 0, 4001, dtype=dtype, device=device)
    x[0] = -torch.inf
    expected, found = x.exp(), exponentials(x, torch.zeros_like(x))
    large = expected > 20 * tiny
    errors = (found[large] / expected[large] - 1).abs() / (1 - x[large])  # an exponent is off by the last digit
    assert float(errors.max()) <= 2 * torch.finfo(dtype).eps
    assert float(found[~large].max()) <= 20 * tiny
    if device.type == "cpu":
        assert bool((found[expected < 15 * tiny] == 0).all())
