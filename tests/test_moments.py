"""Moments are values: they add, scale, move to another reference and back, and equal sums by loops."""

import numpy as np
import pytest
import torch

from cases import assert_close, assert_same_moments, image, tensor
from mixtura.values.moments import DenseForm, DiagonalForm, Moments, ProjectedForm, Summary

SIZE, N_COMPONENTS, N_ROWS = 3, 2, 20

FORMS = {
    "dense": lambda rng: DenseForm(),
    "diagonal": lambda rng: DiagonalForm(),
    "projected": lambda rng: ProjectedForm(tensor(rng.normal(size=(N_COMPONENTS, SIZE, 2)))),
}
every_form = pytest.mark.parametrize("form", [make(np.random.default_rng(7)) for make in FORMS.values()], ids=FORMS)


def moments_by_loops(form, rows, weights, reference) -> Moments:
    """weights (K, n) of rows (n, D) about a reference (D,) or (K, D)."""
    counts, firsts = np.zeros(len(weights)), np.zeros((len(weights), SIZE))
    seconds = np.zeros((len(weights), SIZE, SIZE))
    references = np.broadcast_to(reference, firsts.shape)
    for k, row_weights in enumerate(weights):
        for row, weight in zip(rows, row_weights, strict=True):
            off = row - references[k]
            counts[k] += weight
            firsts[k] += weight * off
            seconds[k] += weight * np.outer(off, off)
    return Moments(tensor(counts), tensor(firsts), image(form, tensor(seconds)), form, tensor(np.array(reference)))


@pytest.fixture
def sample(rng):
    """Rows, signed weights and two references."""
    return (
        rng.normal(size=(N_ROWS, SIZE)),
        rng.normal(size=(N_COMPONENTS, N_ROWS)),
        rng.normal(size=SIZE),
        rng.normal(size=(N_COMPONENTS, SIZE)),
    )


def test_dense_form_keeps_the_whole_matrix(rng):
    left, right = rng.normal(size=(2, N_COMPONENTS, SIZE))
    (part,) = DenseForm().outer(tensor(left), tensor(right))
    assert_close(part, [np.outer(a, b) for a, b in zip(left, right, strict=True)])


def test_diagonal_form_keeps_the_diagonal(rng):
    left, right = rng.normal(size=(2, N_COMPONENTS, SIZE))
    (part,) = DiagonalForm().outer(tensor(left), tensor(right))
    assert_close(part, [np.diag(np.outer(a, b)) for a, b in zip(left, right, strict=True)])


def test_projected_form_keeps_the_diagonal_and_the_matrix_times_its_projections(rng):
    left, right = rng.normal(size=(2, N_COMPONENTS, SIZE))
    projections = rng.normal(size=(N_COMPONENTS, SIZE, 2))
    diagonals, projected = ProjectedForm(tensor(projections)).outer(tensor(left), tensor(right))
    matrices = [np.outer(a, b) for a, b in zip(left, right, strict=True)]
    assert_close(diagonals, [np.diag(m) for m in matrices])
    assert_close(projected, [m @ v for m, v in zip(matrices, projections, strict=True)])


@every_form
def test_diagonal_of_a_form_is_the_image_of_a_diagonal_matrix(form, rng):
    variances = tensor(rng.uniform(size=(N_COMPONENTS, SIZE)))
    for part, expected in zip(form.diagonal(variances), image(form, torch.diag_embed(variances)), strict=True):
        assert_close(part, expected)


@every_form
def test_moments_of_parts_add_to_those_of_the_whole(form, sample):
    rows, weights, reference, _ = sample
    first = moments_by_loops(form, rows[:7], weights[:, :7], reference)
    second = moments_by_loops(form, rows[7:], weights[:, 7:], reference)
    assert_same_moments(first + second, moments_by_loops(form, rows, weights, reference))


@every_form
def test_scaled_moments_are_those_of_scaled_weights(form, sample):
    rows, weights, reference, _ = sample
    moments = moments_by_loops(form, rows, weights, reference)
    assert_same_moments(moments.scaled(-2.5), moments_by_loops(form, rows, -2.5 * weights, reference))
    factors = np.array([0.5, -3.0])
    assert_same_moments(
        moments.scaled(tensor(factors)), moments_by_loops(form, rows, factors[:, None] * weights, reference)
    )


@every_form
def test_about_gives_the_moments_about_another_reference(form, sample):
    rows, weights, common, own = sample
    moved = moments_by_loops(form, rows, weights, common).about(tensor(own))
    assert_close(moved.reference, own, 0.0)
    assert_same_moments(moved, moments_by_loops(form, rows, weights, own))


@every_form
def test_about_is_invertible(form, sample):
    rows, weights, common, own = sample
    moments = moments_by_loops(form, rows, weights, common)
    assert_same_moments(moments.about(tensor(own)).about(tensor(common)), moments)


@every_form
def test_adding_moments_about_unlike_references_raises(form, sample):
    rows, weights, common, own = sample
    here, there = (moments_by_loops(form, rows, weights, reference) for reference in (common, own))
    message = r"^moments about different references cannot be added; use about\(reference\) first$"
    with pytest.raises(ValueError, match=message):
        here + there
    assert_same_moments(here + there.about(here.reference), here.scaled(2))


@every_form
def test_pooled_moments_are_sums_over_groups(form, sample):
    rows, weights, _, own = sample
    moments = moments_by_loops(form, rows, weights, own)
    pooled = moments.pooled(torch.tensor([0, 0]), 1)
    assert_close(pooled.counts, moments.counts.sum(0, keepdim=True))
    for part, parts in zip(pooled.seconds, moments.seconds, strict=True):
        assert_close(part, parts.sum(0, keepdim=True))


def summary_of(sample, part, value) -> Summary:
    rows, weights, reference, _ = sample
    moments = moments_by_loops(DenseForm(), rows[part], weights[:, part], reference)
    return Summary(value, float(len(rows[part])), moments, tensor(abs(weights[:, part]).sum(1)))


def test_summaries_of_parts_add_to_that_of_the_whole(sample):
    rows, weights, reference, _ = sample
    total = summary_of(sample, slice(0, 8), 1.5) + summary_of(sample, slice(8, None), -4.0)
    assert (total.value, total.weight, total.mean_value) == (-2.5, N_ROWS, -2.5 / N_ROWS)
    assert_same_moments(total.moments, moments_by_loops(DenseForm(), rows, weights, reference))
    assert_close(total.denominator_counts, abs(weights).sum(1))


def test_a_summary_moves_with_its_moments(sample):
    rows, weights, _, own = sample
    before = summary_of(sample, slice(None), 1.5)
    moved = before.about(tensor(own))
    assert_close(moved.moments.reference, own, 0.0)
    assert_same_moments(moved.moments, moments_by_loops(DenseForm(), rows, weights, own))
    assert (moved.value, moved.weight) == (before.value, before.weight)
    assert torch.equal(moved.denominator_counts, before.denominator_counts)
