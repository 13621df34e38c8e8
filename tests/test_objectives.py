"""Laws of objectives: values and signed responsibilities against twins, gradients and differences."""

import itertools

import numpy as np
import pytest
import torch

import reference
from cases import CLASS_OF, OBJECTIVES, assert_close, every_objective, soft_labels, tensor
from mixtura.objectives import OBJECTIVES as REGISTRY
from mixtura.objectives import (
    Assigned,
    Conditional,
    Hybrid,
    Joint,
    Margin,
    Marginal,
    Members,
    class_log_joint,
    posteriors,
)
from mixtura.objectives.likelihood import class_posteriors
from mixtura.roles import LogSumObjective
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
    """The targets of an objective, and the same as one matrix of shares."""
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
    actual = objective.evaluate(log_joint, targets)
    rows = zip(log_joint.T.cpu().numpy(), shares, strict=True)
    values, numerator, denominator = map(np.array, zip(*(twin_objective(a, CLASS_OF, s) for a, s in rows), strict=True))
    assert_close(actual.values, values)
    assert_close(actual.numerator.T, numerator)
    assert_close(actual.signed.T, numerator - denominator)
    assert (actual.denominator is not None) == objective.needs_denominator


def every_hybrid():
    weights = itertools.product((0.0, 0.3, 1.0), (Conditional(), Margin(2.0)), (1.0, 0.5))
    return [Hybrid(tradeoff, other, unlabeled_weight) for tradeoff, other, unlabeled_weight in weights]


def log_sums_of(objective):
    return objective.log_sums if isinstance(objective, LogSumObjective) else None


@pytest.mark.parametrize("objective", [*REGISTRY.values(), *every_hybrid()], ids=str)
@pytest.mark.parametrize("known", ["nothing", "labels", "some", "none_labeled"])
def test_log_sums_are_the_weights_of_own_and_all_components(objective, known, log_joint, rng, device):
    """A fused kernel computes the value from the two weights alone, labeled rows and unlabeled ones alike."""
    weights = log_sums_of(objective)
    if weights is None:
        return
    targets, _ = targets_of(known, rng, device)
    own, every = Joint().evaluate(log_joint, targets).values, log_joint.logsumexp(0)
    assert_close(objective.evaluate(log_joint, targets).values, weights[0] * own + weights[1] * every)


def test_objectives_that_two_numbers_say_have_them():
    """Otherwise the fused kernels would not serve them."""
    assert all(log_sums_of(objective) for objective in (Joint(), Marginal(), Conditional()))
    for objective in every_hybrid():
        is_said = isinstance(objective.discriminative, Conditional) and objective.unlabeled_weight == 1
        assert log_sums_of(objective) is not None or not is_said


@every_objective
@every_knowledge
def test_signed_responsibilities_are_the_gradient(objective, twin_objective, known, log_joint, rng, device):
    targets, _ = targets_of(known, rng, device)
    variable = log_joint.clone().requires_grad_()
    value = objective.evaluate(variable, targets).values.sum() + 0 * variable.sum()  # a margin may ask for nothing
    (gradient,) = torch.autograd.grad(value, variable)
    assert_close(objective.evaluate(log_joint, targets).signed, gradient)


@every_objective
@every_knowledge
def test_signed_responsibilities_are_central_differences(objective, twin_objective, known, log_joint, rng, device):
    targets, _ = targets_of(known, rng, device)
    signed, h = objective.evaluate(log_joint, targets).signed, 1e-5
    for k in range(len(log_joint)):
        step = torch.zeros_like(log_joint)
        step[k] = h
        up, down = (objective.evaluate(log_joint + sign * step, targets).values for sign in (1, -1))
        assert_close(signed[k], (up - down) / (2 * h), 1e-8)


def assert_nothing_is_written_over(objective, log_joint, targets) -> None:
    given = {name: part for name, part in vars(targets).items() if isinstance(part, torch.Tensor)}
    given["log_joint"] = log_joint
    before = {name: part.clone() for name, part in given.items()}
    first, second = (objective.evaluate(log_joint, targets) for _ in range(2))
    for name, part in before.items():
        assert torch.equal(given[name].nan_to_num(-9), part.nan_to_num(-9)), name
    assert torch.equal(first.values, second.values)
    assert torch.equal(first.signed, second.signed)


@every_objective
@every_knowledge
def test_evaluating_leaves_the_log_joints_and_the_targets_alone(
    objective, twin_objective, known, log_joint, rng, device
):
    assert_nothing_is_written_over(objective, log_joint, targets_of(known, rng, device)[0])


@every_knowledge
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("member_of", [[0, 1, 0, 1, 0, 1], [0, 0, 1, 0, 1, 0, 1]], ids=["even", "uneven"])
def test_several_members_write_over_nothing_they_are_given(member_of, counted, known, rng, device):
    class_of = np.repeat([0, 1, 2], [len(member_of) - 4, 2, 2])
    labels, shares = labels_and_shares(known, rng)
    counts = rng.integers(0, 3, (N_ROWS, 2)) if counted else None
    known_parts = (None if part is None else tensor(part, device) for part in (labels, shares, counts))
    targets = Targets(tensor(class_of, device), *known_parts)
    objective = Members(torch.tensor(member_of, device=device), torch.tensor([0, 1], device=device))
    assert_nothing_is_written_over(objective, tensor(rng.normal(size=(len(member_of), N_ROWS)), device), targets)


def test_assigned_responsibilities_write_over_nothing_they_are_given(log_joint, rng, device):
    class_of, components = tensor(CLASS_OF, device), rng.integers(0, len(CLASS_OF), N_ROWS)
    for known in ({"labels": components}, {"shares": np.eye(len(CLASS_OF))[components]}):
        targets = Targets(class_of, **{name: tensor(part, device) for name, part in known.items()})
        assert_nothing_is_written_over(Assigned(), log_joint, targets)
        assert_close(Assigned().evaluate(log_joint, targets).signed.T, np.eye(len(CLASS_OF))[components])


@every_objective
def test_numerator_and_denominator_are_not_negative(objective, twin_objective, log_joint, rng, device):
    actual = objective.evaluate(log_joint, targets_of("soft", rng, device)[0])
    assert (actual.numerator >= 0).all()
    assert actual.denominator is None or (actual.denominator >= 0).all()


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
    actual = Conditional().evaluate(log_joint, targets_of("none_labeled", rng, device)[0])
    assert_close(actual.values, np.zeros(N_ROWS))
    assert_close(actual.signed, np.zeros((len(CLASS_OF), N_ROWS)))


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
        actual, alone = (o.evaluate(log_joint, targets) for o in (Hybrid(tradeoff, discriminative), expected))
        assert_close(actual.values, alone.values)
        assert_close(actual.signed, alone.signed)
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
    actual = objective.evaluate(log_joint, targets_of("soft", rng, device)[0])
    assert torch.isfinite(actual.values).all()
    assert (actual.signed[1] == 0).all()
    assert torch.isfinite(actual.signed).all()


def test_a_row_that_no_component_can_explain_has_value_minus_infinity_and_no_responsibilities(log_joint, rng, device):
    log_joint[:, 5] = -torch.inf
    for objective in (Joint(), Marginal()):
        actual = objective.evaluate(log_joint, targets_of("some", rng, device)[0])
        assert actual.values[5] == -torch.inf
        assert (actual.numerator[:, 5] == 0).all()
        assert torch.isfinite(actual.values).sum() == N_ROWS - 1


def test_a_class_without_a_share_may_be_impossible(log_joint, device):
    """Zero times minus infinity is zero: the label says nothing about that class."""
    class_of = tensor(CLASS_OF, device)
    log_joint[class_of == 1] = -torch.inf
    shares = tensor(np.tile([0.3, 0.0, 0.7], (N_ROWS, 1)), device)
    actual = Joint().evaluate(log_joint, Targets(class_of, shares=shares))
    sums = [torch.logsumexp(log_joint[class_of == c], 0) for c in (0, 2)]
    assert_close(actual.values, 0.3 * sums[0] + 0.7 * sums[1])
    assert (actual.numerator[class_of == 1] == 0).all()


@pytest.mark.parametrize("dim", [0, 1])
def test_posteriors_are_the_gradient_of_the_log_sum(dim, rng, device):
    log_joint = tensor(rng.normal(0, 3, size=(4, 6, 2)), device)
    variable = log_joint.clone().requires_grad_()
    values, actual = posteriors(variable, dim)
    (gradient,) = torch.autograd.grad(values.sum(), variable)
    assert_close(values, log_joint.logsumexp(dim))
    assert_close(actual, gradient)
    assert_close(actual, log_joint.softmax(dim))
    assert torch.autograd.gradcheck(lambda a: posteriors(a, dim), variable)


def test_posteriors_of_components_and_rows_without_a_density_are_zero(log_joint, device):
    log_joint[:, 2] = -torch.inf  # a row that no component explains
    log_joint[1, 3] = -torch.inf
    before = log_joint.clone()
    values, actual = posteriors(log_joint)
    assert values[2] == -torch.inf
    assert (actual[:, 2] == 0).all()
    assert actual[1, 3] == 0
    explained = torch.arange(N_ROWS, device=device) != 2
    assert_close(actual[:, explained], log_joint[:, explained].softmax(0))
    assert torch.equal(log_joint, before)


@pytest.mark.parametrize("size", [1e5, 1e16, 1e19, 1e150, 1e300])
def test_posteriors_of_rows_far_away_sum_to_one(size, rng, device):
    log_joint = -size * torch.tensor(1 + rng.random(size=(4, 200)), device=device)
    actual = posteriors(log_joint)[1].T
    assert_close(actual.sum(1), torch.ones(200))
    assert torch.equal(actual.argmax(1), log_joint.argmax(0))


@pytest.mark.parametrize("sizes", [[1, 1, 1, 1, 1, 1], [2, 2, 2], [3, 3], [6], [1, 3, 2]], ids=str)
def test_the_log_joint_of_a_class_sums_its_components(sizes, rng, device):
    log_joint = tensor(rng.normal(0, 3, size=(6, 5)), device)
    log_joint[:, 1] -= 1e5
    log_joint[:3, 2] = -torch.inf
    before = log_joint.clone()
    edges = np.cumsum([0, *sizes])
    expected = [log_joint[a:b].logsumexp(0) for a, b in itertools.pairwise(edges)]
    assert_close(class_log_joint(log_joint, sizes), torch.stack(expected))
    assert torch.equal(log_joint, before)


def test_the_two_log_joints_of_classes_agree(log_joint, device):
    values, within = class_posteriors(log_joint, Targets(tensor(CLASS_OF, device)))
    assert_close(values, class_log_joint(log_joint, [2, 1, 2]))
    assert_close(within, (log_joint - values[CLASS_OF]).exp())


@pytest.mark.parametrize("distance", [80.0, 95.0, 200.0])
def test_a_row_far_from_its_class_has_a_finite_gradient_in_single_precision(distance):
    log_joint = torch.tensor([[-distance], [0.0]], requires_grad=True)
    actual = Conditional().evaluate(log_joint, Targets(torch.tensor([0, 1]), torch.tensor([0])))
    (gradient,) = torch.autograd.grad(actual.values.sum(), log_joint)
    assert actual.values.item() == pytest.approx(-distance)
    assert_close(gradient, torch.tensor([[1.0], [-1.0]]), 1e-5)
