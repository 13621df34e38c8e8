"""Laws of the pass over rows: it equals loops, whatever the path, the chunks, the threads, the order and the source."""

import threading

import numpy as np
import pytest
import torch
from scipy import sparse

import reference
from cases import (
    COVARIANCES,
    KINDS,
    N_FEATURES,
    N_ROWS,
    Data,
    assert_close,
    assert_same_moments,
    assert_same_summary,
    every_covariance,
    every_kind,
    every_objective,
    every_path,
    frame_on,
    image,
    low_rank,
    main_kinds,
    random_data,
    random_mixture,
    tensor,
)
from mixtura import MixtureClassifier
from mixtura.engine import passes
from mixtura.engine.evaluator import Buffers, Evaluator, computing_dtype, frame_of
from mixtura.engine.passes import _scratch, chunks_of, impute, map_parts, map_rows, summarise
from mixtura.engine.sources import ArraySource, BatchSource, Block, TensorSource, locate
from mixtura.model.mixture import Mixture
from mixtura.objectives import Conditional, Joint, Marginal
from mixtura.values.extents import Frame, extents_of, framed
from mixtura.values.moments import Moments
from mixtura.values.sparse_rows import from_scipy


def log_joint_of(mixture, source, frame=None) -> torch.Tensor:
    return map_rows(mixture, source, lambda log_joint: log_joint.T, frame=frame)


def twin_moments(mixture, data, responsibilities) -> Moments:
    """By loops, about the means, in the form of the mixture's covariance."""
    twin, device = reference.twin_of(mixture), mixture.means.device
    sums = reference.moments(data.rows, responsibilities, twin, twin.means)
    seconds = image(mixture.covariance.form, tensor(sums.seconds, device))
    return Moments(
        tensor(sums.counts, device), tensor(sums.firsts, device), seconds, mixture.covariance.form, mixture.means
    )


# ---- against loops -----------------------------------------------------------------------------------------------


@every_covariance
@pytest.mark.parametrize(
    ("path", "name"), [("fast", "complete"), ("exact", "complete"), ("mixed", "complete"), ("fast", "missing")]
)
def test_log_joints_equal_the_twin(case, path, name, rng, device, dtype, tolerance):
    mixture, data = random_mixture(case, rng, device), random_data(KINDS[name], rng, dtype)
    source = data.source(device, dtype)
    frame = frame_on(path, mixture, locate(source), computing_dtype(source))
    assert_close(
        log_joint_of(mixture, source, frame), reference.log_joint(data.rows, reference.twin_of(mixture)), tolerance
    )


@every_covariance
@pytest.mark.parametrize("name", ["complete", "missing"])
def test_a_mixture_gives_the_log_joints_of_the_pass(case, name, rng, device):
    mixture, data = random_mixture(case, rng, device), random_data(KINDS[name], rng)
    expected = reference.log_joint(data.rows, reference.twin_of(mixture))
    assert_close(mixture.log_joint(tensor(data.rows, device)), expected)


@every_covariance
@pytest.mark.parametrize("name", ["complete", "labels", "all_hard", "all_soft"])
def test_values_and_moments_equal_the_twin(case, name, rng, device, dtype, tolerance):
    mixture, data = random_mixture(case, rng, device), random_data(KINDS[name], rng, dtype)
    source = data.source(device, dtype)
    expected = reference.evaluated(reference.twin_of(mixture), data, reference.joint)
    summary = summarise(mixture, source, Joint(), locate(source))
    assert_close([summary.value, summary.weight], [expected.value, expected.weight], tolerance)
    assert_same_moments(summary.moments, twin_moments(mixture, data, expected.numerator), tolerance)


@every_covariance
@pytest.mark.parametrize("path", ["exact", "mixed"])
@main_kinds
def test_moments_do_not_depend_on_the_path(case, path, name, rng, device, dtype, tolerance):
    mixture, source = random_mixture(case, rng, device), random_data(KINDS[name], rng, dtype).source(device, dtype)
    frame = locate(source)
    expected = summarise(mixture, source, Joint(), frame)
    other = frame_on(path, mixture, frame, computing_dtype(source))
    assert_same_summary(summarise(mixture, source, Joint(), other), expected, tolerance)


@every_objective
@main_kinds
def test_signed_moments_equal_the_twin(objective, twin_objective, name, rng, device, dtype, tolerance):
    mixture, data = random_mixture(COVARIANCES["full"], rng, device), random_data(KINDS[name], rng, dtype)
    source = data.source(device, dtype)
    expected = reference.evaluated(reference.twin_of(mixture), data, twin_objective)
    summary = summarise(mixture, source, objective, locate(source))
    assert_close([summary.value, summary.weight], [expected.value, expected.weight], tolerance)
    net = twin_moments(mixture, data, expected.numerator - expected.denominator)
    assert_same_moments(summary.moments, net, tolerance)
    assert_close(summary.denominator_counts, expected.denominator.sum(0), tolerance)


@every_covariance
@every_path
def test_signed_moments_equal_the_twin_on_every_path(case, path, rng, device, dtype, tolerance):
    mixture, data = random_mixture(case, rng, device), random_data(KINDS["all_hard"], rng, dtype)
    source = data.source(device, dtype)
    frame = frame_on(path, mixture, locate(source), computing_dtype(source))
    expected = reference.evaluated(reference.twin_of(mixture), data, reference.conditional)
    summary = summarise(mixture, source, Conditional(), frame)
    assert_close(summary.value, expected.value, tolerance)
    net = twin_moments(mixture, data, expected.numerator - expected.denominator)
    assert_same_moments(summary.moments, net, tolerance)
    assert_close(summary.denominator_counts, expected.denominator.sum(0), tolerance)


@every_covariance
@pytest.mark.parametrize("kind", [KINDS["labels"], KINDS["all_hard"]], ids=["labels", "all_hard"])
def test_evaluating_own_components_only_changes_nothing(case, kind, rng, device, dtype, tolerance):
    """Certain soft labels take the way through all components."""
    data, mixture = random_data(kind, rng, dtype), random_mixture(case, rng, device)
    soft = data.changed(labels=None, shares=reference.shares_of(data.labels, None, len(data.rows), 3))
    by_label, by_all = (
        summarise(mixture, d.source(device, dtype), Joint(), locate(d.source(device, dtype))) for d in (data, soft)
    )
    assert_same_summary(by_label, by_all, tolerance)


@every_covariance
def test_imputed_values_are_conditional_expectations(case, rng, device, dtype, tolerance):
    mixture, data = random_mixture(case, rng, device), random_data(KINDS["all_hard"], rng, dtype)
    source = data.source(device, dtype)
    filled = impute(mixture, source)
    assert_close(filled, reference.imputed(data.rows, reference.twin_of(mixture)), tolerance)
    seen = ~np.isnan(data.rows)
    assert np.array_equal(filled.cpu().numpy()[seen], data.rows[seen])


# ---- paths -------------------------------------------------------------------------------------------------------


@every_covariance
def test_radii_decide_the_path(case, rng, device, dtype):
    mixture = random_mixture(case, rng, device)
    frame = Frame(mixture.means[0], torch.ones_like(mixture.means[0]))
    everything = list(range(mixture.n_components))
    fast, exact, mixed = (
        Evaluator(mixture, frame_on(path, mixture, frame, dtype), dtype) for path in ("fast", "exact", "mixed")
    )
    assert (fast.fast, fast.exact) == (everything, [])
    assert (exact.fast, exact.exact) == ([], everything)
    assert sorted(mixed.fast + mixed.exact) == everything
    shared = len(mixture.covariance.distinct_log_determinants) == 1  # then all components go the same way
    assert shared or (mixed.fast and mixed.exact)


@pytest.mark.parametrize("name", ["full", "diag", "low_rank_2", "tied_full"])
@pytest.mark.parametrize("scale", [1e-2, 1e-3, 1e-5])
@pytest.mark.parametrize("where", ["rows", "mixture"])
def test_log_joints_keep_their_digits_whatever_the_radii(name, scale, where, rng, device):
    """Tight components among far rows: |error| <= 1e-8 max(1, |a|), the truth in 60 digits (product-error)."""
    mpmath = pytest.importorskip("mpmath")
    mixture = random_mixture(COVARIANCES[name], rng, device)
    shrunk = {
        key: part * {"matrices": scale**2, "entries": scale**2, "uniquenesses": scale**2, "loadings": scale}.get(key, 1)
        for key, part in mixture.covariance.tensors().items()
    }
    covariance = COVARIANCES[name].structure.from_tensors(shrunk)
    mixture = Mixture(mixture.log_weights, 100 * mixture.means, covariance, mixture.class_of)
    near = mixture.means.cpu().numpy() + scale * rng.normal(size=(5, N_FEATURES))
    rows = np.concatenate([100 * rng.normal(size=(3, N_FEATURES)), near])
    source = TensorSource(tensor(rows, device))
    actual = log_joint_of(mixture, source, locate(source) if where == "rows" else None).cpu().numpy()
    with mpmath.workdps(60):
        truth = np.array([[precise_log_joint(mpmath, mixture, row, k) for k in range(5)] for row in rows])
    assert (abs(actual - truth) <= 1e-8 * np.maximum(1, abs(truth))).all()


def precise_log_joint(mpmath, mixture, row, k) -> float:
    matrix = mpmath.matrix(dense_in_many_digits(mpmath, mixture.covariance, k))
    off = mpmath.matrix([mpmath.mpf(a) - mpmath.mpf(b) for a, b in zip(row, mixture.means[k].tolist(), strict=True)])
    distance = (off.T * mpmath.lu_solve(matrix, off))[0]
    log_determinant = mpmath.log(mpmath.det(matrix))
    constant = len(row) * mpmath.log(2 * mpmath.pi)
    return float(mpmath.mpf(float(mixture.log_weights[k])) - (constant + log_determinant + distance) / 2)


def dense_in_many_digits(mpmath, covariance, k):
    """Sigma = Psi + S S' without rounding, where the parameters are Psi and S."""
    if "loadings" not in covariance.tensors():
        return covariance.dense()[k].tolist()
    loadings = mpmath.matrix(covariance.loadings[k].tolist())
    return loadings * loadings.T + mpmath.diag(covariance.uniquenesses[k].tolist())


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("path", ["fast", "exact"])
def test_one_feature_is_enough(rank, path, rng, device):
    mixture = random_mixture(low_rank(rank), rng, device, n_features=1)
    data = Data(np.where(rng.random((20, 1)) < 0.2, np.nan, rng.normal(size=(20, 1))))
    source = data.source(device)
    frame = frame_on(path, mixture, locate(source), torch.float64)
    assert_close(log_joint_of(mixture, source, frame), reference.log_joint(data.rows, reference.twin_of(mixture)))
    summary = summarise(mixture, source, Joint(), frame)
    expected = reference.evaluated(reference.twin_of(mixture), data, reference.joint)
    assert_same_moments(summary.moments, twin_moments(mixture, data, expected.numerator))


@every_covariance
def test_rows_too_wide_for_products_take_the_exact_path(case, rng, device, monkeypatch):
    mixture, source = random_mixture(case, rng, device), random_data(KINDS["all_hard"], rng).source(device)
    frame = locate(source)
    expected = summarise(mixture, source, Joint(), frame)
    monkeypatch.setattr("mixtura.engine.evaluator.MOST_FEATURES", 2)
    assert Evaluator(mixture, frame, torch.float64).fast == []
    assert_same_summary(summarise(mixture, source, Joint(), frame), expected)


@pytest.mark.parametrize(("name", "small_table"), [("full", 0), ("low_rank_2", 2**16), ("low_rank_2", 0)])
def test_many_features_with_missing_values_equal_the_twin(name, small_table, rng, device, monkeypatch):
    """More of them than the vectorised inverse takes; few missing and few observed values in one block or in two."""
    monkeypatch.setattr("mixtura.numerics.low_rank_marginals.SMALL_TABLE", small_table)
    monkeypatch.setattr("mixtura.numerics.low_rank_marginals.BLOCK_ROWS", 2)
    size = 60
    mixture = random_mixture(COVARIANCES[name], rng, device, class_of=np.array([0, 0]), n_features=size)
    shares = np.array([0.02, 0.45, 0.5, 0.55, 0.98, 0.5, 0.1, 0.15, 0.2, 0.9, 0.8])
    gone = rng.random((len(shares), size)) < shares[:, None]
    gone[5], gone[9] = gone[2], True  # a pattern that two rows share, and a row without anything
    data = Data(np.where(gone, np.nan, rng.normal(size=gone.shape)))
    source = data.source(device)
    expected = reference.evaluated(reference.twin_of(mixture), data, reference.joint)
    summary = summarise(mixture, source, Joint(), locate(source))
    assert_close(summary.value, expected.value)
    assert_same_moments(summary.moments, twin_moments(mixture, data, expected.numerator), 1e-9)
    assert_close(impute(mixture, source), reference.imputed(data.rows, reference.twin_of(mixture)))


# ---- chunks, threads, order --------------------------------------------------------------------------------------


@pytest.fixture
def threads():
    """Sets the number of threads, and sets it back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@every_covariance
@every_path
@main_kinds
def test_chunks_and_threads_do_not_matter(case, path, name, rng, device, threads, monkeypatch):
    monkeypatch.setattr("mixtura.engine.threads.SMALL_PASS", 0)  # small passes have one thread
    mixture, source = random_mixture(case, rng, device), random_data(KINDS[name], rng).source(device)
    frame = frame_on(path, mixture, locate(source), torch.float64)
    threads(1)
    expected = summarise(mixture, source, Joint(), frame)
    scores = log_joint_of(mixture, source, frame)
    for n_threads, memory_limit in [(1, 1), (3, 1), (2, 20_000)]:
        threads(n_threads)
        assert_same_summary(summarise(mixture, source, Joint(), frame, memory_limit), expected, 1e-11)
        assert_close(map_rows(mixture, source, lambda a: a.T, memory_limit, frame), scores, 1e-12)


@every_covariance
def test_imputation_does_not_depend_on_chunks(case, rng, device):
    mixture, source = random_mixture(case, rng, device), random_data(KINDS["missing"], rng).source(device)
    assert_close(impute(mixture, source, memory_limit=1), impute(mixture, source), 1e-12)


def test_the_same_pass_gives_the_same_bits(rng, device, threads):
    threads(3)
    mixture, source = (
        random_mixture(COVARIANCES["full"], rng, device),
        random_data(KINDS["all_hard"], rng).source(device),
    )
    first, second = (summarise(mixture, source, Joint(), locate(source), memory_limit=1) for _ in range(2))
    assert first.value == second.value
    assert torch.equal(first.moments.seconds[0], second.moments.seconds[0])


@every_covariance
@every_kind
def test_the_order_of_rows_does_not_matter(case, kind, rng, device, dtype, tolerance):
    mixture, data = random_mixture(case, rng, device), random_data(kind, rng, dtype)
    order = rng.permutation(N_ROWS)
    source, shuffled = data.source(device, dtype), data.select(order).source(device, dtype)
    frame = locate(source)
    assert_same_summary(
        summarise(mixture, shuffled, Joint(), frame), summarise(mixture, source, Joint(), frame), tolerance
    )
    assert_close(log_joint_of(mixture, shuffled, frame), log_joint_of(mixture, source, frame)[order], tolerance)


def test_a_pass_leaves_the_number_of_threads_of_others_alone(rng, threads):
    threads(2)
    mixture, source = random_mixture(COVARIANCES["full"], rng), random_data(KINDS["complete"], rng).source()
    seen = []
    summarise(mixture, source, Joint(), locate(source), memory_limit=1)
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert (torch.get_num_threads(), seen) == (2, [2])


@pytest.mark.parametrize("name", ["full", "diag", "low_rank_2"])
@pytest.mark.parametrize("missing", [False, True])
def test_chunks_stay_within_the_memory_limit(name, missing, rng, device, monkeypatch):
    """No tensor of a chunk is larger than the limit, though all rows together would be."""
    mixture, limit = random_mixture(COVARIANCES[name], rng, device), 60_000
    rows = rng.normal(size=(4000, N_FEATURES))
    rows[rng.random(rows.shape) < 0.3 * missing] = np.nan
    source, sizes, evaluate = TensorSource(tensor(rows, device)), [], Evaluator.evaluate
    numbers_of_a_row = []

    def watched(evaluator, chunk, buffers):
        sizes.append(len(chunk.rows))
        numbers_of_a_row.append(mixture.n_components * (N_FEATURES if chunk.missing else 1))
        return evaluate(evaluator, chunk, buffers)

    monkeypatch.setattr(Evaluator, "evaluate", watched)
    summarise(mixture, source, Joint(), locate(source), limit)
    assert sum(sizes) == len(rows)
    assert max(size * n for size, n in zip(sizes, numbers_of_a_row, strict=True)) * 8 <= limit


def test_own_class_components_are_the_only_ones_met(rng, device, monkeypatch):
    mixture, data = random_mixture(COVARIANCES["full"], rng, device), random_data(KINDS["some_labels"], rng)
    met, evaluate = {}, Evaluator.evaluate

    def watched(evaluator, chunk, buffers):
        key = (chunk.components.start, chunk.components.stop)
        met[key] = met.get(key, 0) + len(chunk.rows)
        return evaluate(evaluator, chunk, buffers)

    monkeypatch.setattr(Evaluator, "evaluate", watched)
    source = data.source(device)
    summarise(mixture, source, Joint(), locate(source))
    counts = [int((data.labels == c).sum()) for c in (-1, 0, 1, 2)]
    assert met == dict(zip([(0, 5), (0, 2), (2, 3), (3, 5)], counts, strict=True))


# ---- sources -----------------------------------------------------------------------------------------------------


def array_source(data, device, folder) -> ArraySource:
    path = folder / "rows.npy"
    np.save(path, data.rows)
    known = (None if part is None else tensor(part) for part in (data.labels, data.shares, data.weights))
    return ArraySource(np.load(path, mmap_mode="r"), *known, device=device)


def batch_source(data, device, sizes=(1, 0, 20, 3, 24)) -> BatchSource:
    batches = [data.select(index) for index in np.split(np.arange(len(data.rows)), np.cumsum(sizes)[:-1])]

    def read(batch: Data) -> Block:
        parts = (batch.rows, batch.labels, batch.shares, batch.weights)
        return Block(*(None if part is None else tensor(part, device) for part in parts))

    return BatchSource(batches, read, data.rows.shape[1], device, torch.float64)


@every_kind
@pytest.mark.parametrize("objective", [Joint(), Marginal(), Conditional()], ids=lambda objective: objective.name)
def test_memory_maps_and_batches_give_the_summary_of_a_tensor(kind, objective, rng, device, tmp_path, monkeypatch):
    monkeypatch.setattr("mixtura.engine.sources.STREAMED_BYTES", 7 * 8 * N_FEATURES)  # blocks of seven rows
    mixture, data = random_mixture(COVARIANCES["full"], rng, device), random_data(kind, rng)
    expected = summarise(mixture, data.source(device), objective, locate(data.source(device)))
    for source in (array_source(data, device, tmp_path), batch_source(data, device)):
        frame = locate(source)
        assert_same_summary(summarise(mixture, source, objective, frame), expected, 1e-11)


@pytest.mark.parametrize("name", ["complete", "missing"])
def test_memory_maps_and_batches_give_rows_in_order(name, rng, device, tmp_path, monkeypatch):
    monkeypatch.setattr("mixtura.engine.sources.STREAMED_BYTES", 7 * 8 * N_FEATURES)
    mixture, data = random_mixture(COVARIANCES["tied_low_rank"], rng, device), random_data(KINDS[name], rng)
    whole = data.source(device)
    frame = locate(whole)
    for source in (array_source(data, device, tmp_path), batch_source(data, device)):
        assert_close(log_joint_of(mixture, source, frame), log_joint_of(mixture, whole, frame), 1e-12)
        assert_close(impute(mixture, source), impute(mixture, whole), 1e-12)


@every_covariance
@main_kinds
def test_single_precision_agrees_with_double(case, name, rng, device):
    mixture, data = random_mixture(case, rng, device), random_data(KINDS[name], rng)
    single, double = data.source(device, torch.float32), data.source(device)
    expected = summarise(mixture, double, Joint(), locate(double))
    assert_same_summary(summarise(mixture, single, Joint(), locate(single)), expected, 1e-3)


@every_covariance
@main_kinds
def test_on_the_cpu_single_precision_rows_are_summed_in_double(case, name, rng):
    mixture, data = random_mixture(case, rng), random_data(KINDS[name], rng, torch.float32)
    single, double = data.source(dtype=torch.float32), data.source()
    expected = summarise(mixture, double, Joint(), locate(double))
    assert_same_summary(summarise(mixture, single, Joint(), locate(single)), expected, 1e-12)


# ---- where rows lie ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["complete", "missing"])
def test_a_frame_holds_every_observed_value(name, rng, device, dtype):
    data = random_data(KINDS[name], rng, dtype)
    frame = locate(data.source(device, dtype))
    off = abs(data.rows - frame.centre.cpu().numpy())
    assert_close(frame.radii, np.nanmax(off, 0), 1e-12)
    assert_close(frame.centre, (np.nanmin(data.rows, 0) + np.nanmax(data.rows, 0)) / 2, 1e-6)


def test_the_centre_is_exact_in_single_precision(device):
    centre = framed(torch.tensor([1e4 / 3], device=device), torch.tensor([2e4 / 3], device=device)).centre
    assert centre.dtype == torch.float64
    assert torch.equal(centre.float().double(), centre)


@pytest.mark.parametrize("size", [1e-300, 1e-72, 1e-42, 1e39, 1e150])
def test_a_frame_of_tiny_or_huge_units_is_finite_and_tight(size, device):
    low, high = (torch.tensor([factor * size], dtype=torch.float64, device=device) for factor in (1.0, 2.0))
    frame = framed(low, high)
    assert torch.isfinite(frame.centre).all()
    assert (frame.centre + frame.radii >= high).all()
    assert (frame.centre - frame.radii <= low).all()
    assert_close(frame.radii / size, [0.5], 1e-5)


def test_a_column_without_observed_values_lies_at_zero(device):
    rows = torch.tensor([[1.0, torch.nan], [3.0, torch.nan]], dtype=torch.float64, device=device)
    extents = extents_of(rows)
    assert (extents.low.tolist(), extents.high.tolist(), extents.complete) == (
        [1.0, torch.inf],
        [3.0, -torch.inf],
        False,
    )
    frame = locate(TensorSource(rows))
    assert (frame.centre.tolist(), frame.radii.tolist()) == ([2.0, 0.0], [1.0, 0.0])


def test_no_rows_lie_at_zero(device):
    frame = locate(TensorSource(torch.zeros(0, 2, dtype=torch.float64, device=device)))
    assert (frame.centre.tolist(), frame.radii.tolist()) == ([0.0, 0.0], [0.0, 0.0])


ROWS = {  # of three columns: in memory, and as tensors or arrays
    "tensor": lambda rows, device: tensor(rows, device),
    "single precision": lambda rows, device: tensor(rows, device).float(),
    "every other row": lambda rows, device: tensor(rows.repeat(2, 0), device)[::2],
    "column by column": lambda rows, device: tensor(rows.T, device).T,
    "array": lambda rows, device: rows,
    "other byte order": lambda rows, device: rows.astype(">f8"),
    "long": lambda rows, device: rows.astype(np.longdouble),
    "backwards": lambda rows, device: rows[::-1],
}


@pytest.mark.parametrize("n_rows", [1, 1000, 1027, 100_000])
@pytest.mark.parametrize("missing", ["nothing", "cells", "a column"])
@pytest.mark.parametrize("form", ROWS)
def test_extents_are_the_smallest_and_largest_observed_values(form, missing, n_rows, rng, device):
    rows = rng.normal(size=(n_rows, 3)).astype(np.float32).astype(float)
    rows[:, 2] = {"nothing": rows[:, 2], "a column": np.nan, "cells": np.where(rows[:, 2] > 0, np.nan, rows[:, 2])}[
        missing
    ]
    extents = extents_of(ROWS[form](rows, device))
    assert extents.complete == (not np.isnan(rows).any())
    assert np.array_equal(extents.low.cpu(), np.nanmin(rows, 0, initial=np.inf))
    assert np.array_equal(extents.high.cpu(), np.nanmax(rows, 0, initial=-np.inf))


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e39, -1e39])
def test_extents_tell_whether_values_are_finite_in_a_type(value, rng, device):
    rows = rng.normal(size=(30, 2))
    rows[0, 0] = np.nan
    rows[7, 1] = value
    extents = extents_of(tensor(rows, device))
    assert not extents.within(torch.float32)
    assert extents.within(torch.float64) == np.isfinite(value)


@pytest.mark.parametrize("factor", [0.999, 1.001])
def test_a_frame_holds_extents_that_lie_inside(factor, device):
    centre = torch.tensor([1.0, -2.0], dtype=torch.float64, device=device)
    frame = Frame(centre, torch.tensor([2.0, 3.0], dtype=torch.float64, device=device))
    for corner in ([1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]):
        rows = torch.stack((centre, centre + factor * torch.tensor(corner, device=device) * frame.radii))
        assert frame.holds(extents_of(rows)) == (factor < 1)
    assert not frame.holds(None)


# ---- rows anywhere -----------------------------------------------------------------------------------------------


@every_covariance
def test_the_frame_of_a_mixture_reaches_many_deviations_from_every_mean(case, rng, device):
    mixture = random_mixture(case, rng, device)
    frame, means = frame_of(mixture), mixture.means
    scales = mixture.covariances.diagonal(dim1=1, dim2=2).sqrt()
    assert frame.holds(extents_of(torch.cat((means - 29.9 * scales, means + 29.9 * scales))))
    assert not frame.holds(extents_of(torch.cat((means - 100 * scales, means + 100 * scales))))


def rows_anywhere(rng, missing) -> np.ndarray:
    """Near the data, and up to a thousand times as far."""
    rows = rng.normal(size=(24, N_FEATURES)) * np.repeat([1.0, 10.0, 100.0, 1000.0], 6)[:, None]
    return np.where(rng.random(rows.shape) < 0.3 * missing, np.nan, rows)


@every_covariance
@pytest.mark.parametrize("missing", [False, True])
def test_answers_do_not_depend_on_which_rows_come_together(case, missing, rng, device):
    mixture, rows = random_mixture(case, rng, device), rows_anywhere(rng, missing)
    source = TensorSource(tensor(rows, device))
    together = log_joint_of(mixture, source)
    assert_close(together, reference.log_joint(rows, reference.twin_of(mixture)), 1e-9)
    each = [TensorSource(tensor(row[None], device)) for row in rows]
    assert_close(torch.cat([log_joint_of(mixture, one) for one in each]), together, 1e-12)
    near = TensorSource(tensor(rows[:6], device))
    assert_close(log_joint_of(mixture, near), together[:6], 1e-12)
    assert_close(torch.cat([impute(mixture, one) for one in each]), impute(mixture, source), 1e-11)


@every_covariance
@pytest.mark.parametrize("missing", [False, True])
def test_rows_outside_the_frame_are_not_taken_for_rows_inside(case, missing, rng, device):
    """Products would lose their digits for them; that all rows lie inside is believed of their extents alone."""
    mixture = random_mixture(case, rng, device)
    means, variances = mixture.means.cpu().numpy(), mixture.covariance.variances().cpu().numpy()
    rows = means.mean(0) + 1e6 * np.sqrt(variances.max(0)) * np.concatenate((np.eye(N_FEATURES), -np.eye(N_FEATURES)))
    rows[:, 0] = np.where(missing, np.nan, rows[:, 0])
    expected = reference.log_joint(rows, reference.twin_of(mixture))
    for extents in (None, extents_of(rows)):
        source = TensorSource(tensor(rows, device), extents=extents)
        assert_close(log_joint_of(mixture, source), expected, 1e-9)


def test_rows_inside_the_frame_are_scored_once_and_those_outside_exactly(rng, device, monkeypatch):
    mixture, scored, evaluate = random_mixture(COVARIANCES["full"], rng, device), [], Evaluator.evaluate

    def watched(evaluator, chunk, buffers):
        scored.append((len(chunk.rows), len(evaluator.exact)))
        return evaluate(evaluator, chunk, buffers)

    monkeypatch.setattr(Evaluator, "evaluate", watched)
    rows = tensor(rng.normal(size=(40, N_FEATURES)), device)
    log_joint_of(mixture, TensorSource(rows))
    rows[[3, 17], [0, 1]] = 1e4  # one feature is enough
    log_joint_of(mixture, TensorSource(rows))
    assert scored == [(40, 0), (40, 0), (2, mixture.n_components)]


def equal_precisions(size, scale, common) -> np.ndarray:
    """Rows whose sample covariance is a multiple of the identity plus a constant: all its off-diagonals are equal."""
    units, ones = scale * np.eye(size), np.full((1, size), common)
    return np.concatenate([units, -units, ones, -ones])


def test_classes_of_rows_of_equal_entries_are_those_of_the_log_joints():
    """Thousands of equal terms are rounded the same way: single precision once took classes for others here."""
    size = 125
    X = np.concatenate([equal_precisions(size, 1.0, 1.0), equal_precisions(size, 1.01, 1.02)])
    model = MixtureClassifier(1, prior=None).fit(X, np.repeat(["a", "b"], len(X) // 2))
    for largest in (1.0, 20.0, 1e4):
        rows = np.linspace(-largest, largest, 2001)[:, None].repeat(size, 1)
        joint, probabilities = model.predict_joint_log_proba(rows), model.predict_proba(rows)
        assert np.array_equal(model.predict(rows), model.classes_[joint.argmax(1)])
        assert_close(probabilities, np.exp(joint - np.logaddexp.reduce(joint, 1)[:, None]), 1e-12)
        alone = np.concatenate([model.predict_proba(row[None]) for row in rows[::50]])
        np.testing.assert_allclose(alone, probabilities[::50], rtol=0, atol=1e-9)


# ---- buffers and chunks --------------------------------------------------------------------------------------------


@every_covariance
@every_path
def test_buffers_can_be_used_again(case, path, rng, device):
    mixture, other = random_mixture(case, rng, device), random_mixture(COVARIANCES["full"], rng, device)
    source, buffers = random_data(KINDS["all_hard"], rng).source(device), Buffers()
    frame = frame_on(path, mixture, locate(source), torch.float64)
    expected = summarise(mixture, source, Conditional(), frame)
    for memory_limit in (2**28, 4000, 2**28):
        actual = summarise(mixture, source, Conditional(), frame, memory_limit, buffers)
        assert_same_summary(actual, expected, 1e-11)
        summarise(other, source, Joint(), locate(source), memory_limit, buffers)


def test_a_buffer_holds_until_the_next_of_its_name(device):
    buffers, like = Buffers(), torch.zeros(1, dtype=torch.float64, device=device)
    first = buffers.get("a", (3, 4), like)
    assert (first.shape, first.dtype, first.device) == ((3, 4), like.dtype, like.device)
    first.fill_(1.0)
    buffers.get("b", (3, 4), like).fill_(2.0)
    assert (first == 1.0).all()
    smaller = buffers.get("a", (2, 5), like.float())
    assert (smaller.shape, smaller.dtype) == ((2, 5), torch.float32)
    assert smaller.data_ptr() == first.data_ptr()
    assert buffers.get("a", (30, 40), like).shape == (30, 40)


@pytest.mark.parametrize("n_rows", [0, 1, 23, 100, 5000, 123_457])
@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("by_label", [False, True])
@pytest.mark.parametrize("memory_limit", [1, 2**20, 2**28])
def test_chunks_are_all_rows_once_and_even(n_rows, n_threads, by_label, memory_limit, rng, monkeypatch):
    monkeypatch.setattr(passes, "SMALL_PASS", 0)  # else they are for one thread
    mixture = random_mixture(COVARIANCES["full"], rng)
    evaluator = Evaluator(mixture, framed(*torch.ones(2, N_FEATURES, dtype=torch.float64)), torch.float64)
    labels = np.arange(n_rows) % 4 - 1
    block = Block(torch.zeros(n_rows, N_FEATURES, dtype=torch.float64), tensor(labels))
    seen, sizes = [], {}
    for chunk in chunks_of(block, by_label, evaluator, memory_limit, n_threads):
        index = chunk.group.index
        rows = range(n_rows)[chunk.part] if index is None else index.numpy()[chunk.part]
        seen.append(rows)
        sizes.setdefault(chunk.group.label, []).append(len(rows))
        assert chunk.group.label is None or (labels[rows] == chunk.group.label).all()
        scratch = 8 * _scratch(evaluator, chunk.components.stop - chunk.components.start, chunk.group)
        assert len(rows) == 1 or len(rows) * scratch * n_threads <= memory_limit
    order = np.concatenate([*seen, []])
    assert np.array_equal(np.sort(order) if by_label else order, np.arange(n_rows))
    if n_rows == 123_457 and memory_limit > 1:
        for of_group in sizes.values():
            shares = [sum(of_group[t::n_threads]) for t in range(n_threads)]
            assert min(shares) > 0.9 * max(shares)


@pytest.mark.parametrize("labels", [None, [1, 0, 1, -1, 2, 1]])
@pytest.mark.parametrize("by_label", [False, True])
def test_a_chunk_is_loaded_with_what_is_known_of_its_rows(labels, by_label, rng):
    mixture, data = random_mixture(COVARIANCES["full"], rng), rng.normal(size=(6, N_FEATURES))
    evaluator = Evaluator(mixture, framed(*torch.ones(2, N_FEATURES, dtype=torch.float64)), torch.float64)
    weights = rng.random(6)
    block = Block(tensor(data).float(), None if labels is None else torch.tensor(labels), weights=tensor(weights))
    for chunk in chunks_of(block, by_label, evaluator, 2**20, 1):
        loaded = chunk.load(torch.float64)
        rows, targets = torch.arange(6)[loaded.index].numpy(), chunk.targets(loaded, evaluator)
        assert loaded.rows.dtype == torch.float64
        assert_close(loaded.rows, data[rows], 1e-6)
        assert_close(chunk.weights(loaded, torch.float64), weights[rows], 0)
        assert torch.equal(targets.class_of, mixture.class_of[chunk.components])
        assert targets.n_classes == mixture.n_classes
        if labels is None or by_label:
            assert targets.labels is None
        else:
            assert targets.labels.tolist() == [labels[row] for row in rows]


@pytest.mark.parametrize("memory_limit", [1, 100, 2**20])
@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_parts_of_rows_in_memory_give_answers_in_order(layout, memory_limit, rng):
    rows = tensor(np.where(rng.random((23, 3)) < 0.5, 0.0, rng.normal(size=(23, 3))))
    given = rows if layout == "dense" else from_scipy(sparse.csr_matrix(rows.numpy()))
    actual = map_parts(given, 24, memory_limit, lambda part: 2 * part.to_dense())
    assert torch.equal(actual, 2 * rows)


def test_a_small_pass_has_the_same_chunks_for_any_number_of_threads(rng, monkeypatch):
    """A fit of 4000 x 10 runs on one thread: with chunks for two it was a tenth slower."""
    mixture, rows = random_mixture(COVARIANCES["full"], rng), torch.zeros(4000, N_FEATURES, dtype=torch.float64)
    evaluator = Evaluator(mixture, framed(*torch.ones(2, N_FEATURES, dtype=torch.float64)), torch.float64)

    def n_chunks(n_threads):
        return len(chunks_of(Block(rows), False, evaluator, 2**28, n_threads))

    assert n_chunks(2) == n_chunks(1) == 1
    monkeypatch.setattr(passes, "SMALL_PASS", 0)
    assert n_chunks(2) == 2
