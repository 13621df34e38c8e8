"""Laws of the pass over rows: it equals loops, whatever the path, the chunks, the threads, the order and the source."""

import math
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from mixtura.engine.decisions import SAMPLE, SURE, Decision, bearable_share, first
from mixtura.numerics.buffers import Scratch

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
from mixtura.engine.chunks import pieces
from mixtura.engine.evaluator import Chunk, Evaluator, computing_dtype
from mixtura.engine.passes import impute, map_rows, summarise
from mixtura.engine.sources import ArraySource, BatchSource, Block, Group, TensorSource, locate
from mixtura.engine.threads import Workers
from mixtura.model.mixture import Mixture
from mixtura.objectives import Conditional, Joint, Marginal, shares
from mixtura.values.extents import Frame, extents_of, framed
from mixtura.values.moments import Moments


def log_joint_of(mixture, source, frame) -> torch.Tensor:
    return map_rows(mixture, source, frame, lambda log_joint: log_joint.T)


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
    assert_same_moments(summary.moments.numerator, twin_moments(mixture, data, expected.numerator), tolerance)


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
    summary = summarise(mixture, source, objective, locate(source), both_sides=True)
    assert_close(summary.value, expected.value, tolerance)
    assert_same_moments(summary.moments.numerator, twin_moments(mixture, data, expected.numerator), tolerance)
    net = twin_moments(mixture, data, expected.numerator - expected.denominator)
    assert_same_moments(summary.moments.net, net, tolerance)
    assert (summary.moments.denominator is not None) == objective.needs_denominator


@every_covariance
@every_path
def test_one_sided_moments_are_the_net_of_both_sides(case, path, rng, device, dtype, tolerance):
    mixture, source = (
        random_mixture(case, rng, device),
        random_data(KINDS["all_hard"], rng, dtype).source(device, dtype),
    )
    frame = frame_on(path, mixture, locate(source), computing_dtype(source))
    both, one = (summarise(mixture, source, Conditional(), frame, both_sides=both) for both in (True, False))
    assert one.moments.denominator is None
    assert_same_moments(one.moments.numerator, both.moments.net, tolerance)
    assert_close(one.value, both.value, tolerance)


@every_covariance
@pytest.mark.parametrize("kind", [KINDS["labels"], KINDS["all_hard"]], ids=["labels", "all_hard"])
def test_meeting_own_components_only_changes_nothing(case, kind, rng, device, dtype, tolerance):
    """Certain soft labels take the way through all components."""
    data, mixture = random_data(kind, rng, dtype), random_mixture(case, rng, device)
    soft = data.changed(labels=None, shares=reference.shares_of(data.labels, None, len(data.rows), 3))
    by_label, by_all = (
        summarise(mixture, d.source(device, dtype), Joint(), locate(d.source(device, dtype))) for d in (data, soft)
    )
    assert_same_summary(by_label, by_all, tolerance)


@every_covariance
def test_imputed_cells_are_conditional_expectations(case, rng, device, dtype, tolerance):
    mixture, data = random_mixture(case, rng, device), random_data(KINDS["all_hard"], rng, dtype)
    source = data.source(device, dtype)
    filled = impute(mixture, source, locate(source))
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
def test_log_joints_keep_their_digits_whatever_the_radii(name, scale, rng, device):
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
    found = log_joint_of(mixture, source, locate(source)).cpu().numpy()
    with mpmath.workdps(60):
        truth = np.array([[precise_log_joint(mpmath, mixture, row, k) for k in range(5)] for row in rows])
    assert (abs(found - truth) <= 1e-8 * np.maximum(1, abs(truth))).all()


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
    assert_same_moments(summary.moments.numerator, twin_moments(mixture, data, expected.numerator))


@every_covariance
def test_rows_too_wide_for_products_take_the_exact_path(case, rng, device, monkeypatch):
    mixture, source = random_mixture(case, rng, device), random_data(KINDS["all_hard"], rng).source(device)
    frame = locate(source)
    expected = summarise(mixture, source, Joint(), frame)
    monkeypatch.setattr("mixtura.engine.evaluator.MOST_MONOMIALS", 2)
    assert Evaluator(mixture, frame, torch.float64).fast == []
    assert_same_summary(summarise(mixture, source, Joint(), frame), expected)


@pytest.mark.parametrize(("name", "small_table"), [("full", 0), ("low_rank_2", 2**16), ("low_rank_2", 0)])
def test_many_features_with_missing_cells_equal_the_twin(name, small_table, rng, device, monkeypatch):
    """More of them than the vectorised inverse takes; few missing and few observed cells apart, and not."""
    monkeypatch.setattr("mixtura.covariances.systems.SMALL_TABLE", small_table)
    monkeypatch.setattr("mixtura.covariances.systems.BLOCK_ROWS", 2)
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
    assert_same_moments(summary.moments.numerator, twin_moments(mixture, data, expected.numerator), 1e-9)
    assert_close(impute(mixture, source, locate(source)), reference.imputed(data.rows, reference.twin_of(mixture)))


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
def test_chunks_and_threads_do_not_matter(case, path, name, rng, device, threads):
    mixture, source = random_mixture(case, rng, device), random_data(KINDS[name], rng).source(device)
    frame = frame_on(path, mixture, locate(source), torch.float64)
    threads(1)
    expected = summarise(mixture, source, Joint(), frame)
    scores = log_joint_of(mixture, source, frame)
    for n_threads, memory_limit in [(1, 1), (3, 1), (2, 20_000)]:
        threads(n_threads)
        assert_same_summary(summarise(mixture, source, Joint(), frame, memory_limit), expected, 1e-11)
        assert_close(map_rows(mixture, source, frame, lambda a: a.T, memory_limit), scores, 1e-12)


@every_covariance
def test_imputation_does_not_depend_on_chunks(case, rng, device):
    mixture, source = random_mixture(case, rng, device), random_data(KINDS["missing"], rng).source(device)
    frame = locate(source)
    assert_close(impute(mixture, source, frame, memory_limit=1), impute(mixture, source, frame), 1e-12)


def test_the_same_pass_gives_the_same_bits(rng, device, threads):
    threads(3)
    mixture, source = (
        random_mixture(COVARIANCES["full"], rng, device),
        random_data(KINDS["all_hard"], rng).source(device),
    )
    first, second = (summarise(mixture, source, Joint(), locate(source), memory_limit=1) for _ in range(2))
    assert first.value == second.value
    assert torch.equal(first.moments.numerator.seconds[0], second.moments.numerator.seconds[0])


@every_covariance
@every_kind
def test_the_order_of_rows_does_not_matter(case, kind, rng, device, dtype, tolerance):
    mixture, data = random_mixture(case, rng, device), random_data(kind, rng, dtype)
    order = rng.permutation(N_ROWS)
    source, shuffled = data.source(device, dtype), data.taken(order).source(device, dtype)
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

    def watched(evaluator, chunk, *scratch):
        sizes.append(len(chunk.rows))
        return evaluate(evaluator, chunk, *scratch)

    monkeypatch.setattr(Evaluator, "evaluate", watched)
    summarise(mixture, source, Joint(), locate(source), limit)
    assert sum(sizes) == len(rows)
    assert max(sizes) * mixture.n_components * (N_FEATURES if missing else 1) * 8 <= limit


def test_own_class_components_are_the_only_ones_met(rng, device, monkeypatch):
    mixture, data = random_mixture(COVARIANCES["full"], rng, device), random_data(KINDS["some_labels"], rng)
    met, evaluate = {}, Evaluator.evaluate

    def watched(evaluator, chunk, *scratch):
        key = (chunk.components.start, chunk.components.stop)
        met[key] = met.get(key, 0) + len(chunk.rows)
        return evaluate(evaluator, chunk, *scratch)

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
    batches = [data.taken(index) for index in np.split(np.arange(len(data.rows)), np.cumsum(sizes)[:-1])]

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
        assert_close(impute(mixture, source, frame), impute(mixture, whole, frame), 1e-12)


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
def test_a_frame_holds_every_observed_cell(name, rng, device, dtype):
    data = random_data(KINDS[name], rng, dtype)
    frame = locate(data.source(device, dtype))
    off = abs(data.rows - frame.centre.cpu().numpy())
    assert_close(frame.radii, np.nanmax(off, 0), 1e-12)
    assert_close(frame.centre, (np.nanmin(data.rows, 0) + np.nanmax(data.rows, 0)) / 2, 1e-6)


def test_the_centre_is_exact_in_single_precision(device):
    centre = framed(torch.tensor([1e4 / 3], device=device), torch.tensor([2e4 / 3], device=device)).centre
    assert centre.dtype == torch.float64
    assert torch.equal(centre.float().double(), centre)


@pytest.mark.parametrize("size", [1e-300, 1e39, 1e150])
def test_a_frame_of_tiny_or_huge_units_is_finite(size, device):
    low, high = (torch.tensor([factor * size], dtype=torch.float64, device=device) for factor in (1.0, 2.0))
    frame = framed(low, high)
    assert torch.isfinite(frame.centre).all()
    assert (frame.centre + frame.radii >= high).all()
    assert (frame.centre - frame.radii <= low).all()
    assert (frame.radii <= high).all()


def test_a_column_without_observed_cells_lies_at_zero(device):
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
def test_ends_are_the_smallest_and_largest_observed_values(form, missing, n_rows, rng, device):
    rows = rng.normal(size=(n_rows, 3)).astype(np.float32).astype(float)
    rows[:, 2] = {"nothing": rows[:, 2], "a column": np.nan, "cells": np.where(rows[:, 2] > 0, np.nan, rows[:, 2])}[
        missing
    ]
    extents = extents_of(ROWS[form](rows, device))
    assert extents.complete == (not np.isnan(rows).any())
    assert np.array_equal(extents.low.cpu(), np.nanmin(rows, 0, initial=np.inf))
    assert np.array_equal(extents.high.cpu(), np.nanmax(rows, 0, initial=-np.inf))


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e39, -1e39])
def test_ends_tell_whether_values_are_finite_in_a_type(value, rng, device):
    rows = rng.normal(size=(30, 2))
    rows[0, 0] = np.nan
    rows[7, 1] = value
    extents = extents_of(tensor(rows, device))
    assert not extents.within(torch.float32)
    assert extents.within(torch.float64) == np.isfinite(value)


# ---- decisions in single precision -------------------------------------------------------------------------------


def decided(mixture, rows, lead) -> torch.Tensor:
    source = TensorSource(rows)
    decision = Decision(lambda log_joint: log_joint, shares if lead else first, lead)
    return map_rows(mixture, source, locate(source), decision, 2**20)


@pytest.fixture
def screened(monkeypatch):
    """Single precision comes first, however small the problem and whatever a sample says; how many rows each chunk had
    (the sample is the first), and how many of them were looked at again.
    """
    monkeypatch.setattr("mixtura.engine.evaluator.SCREENED_MONOMIALS", 0)
    monkeypatch.setattr("mixtura.engine.evaluator.SCREENED_WORK", 0)
    monkeypatch.setattr("mixtura.engine.passes.bearable_share", lambda n_monomials: 1.0)
    return looked_at(monkeypatch)


def looked_at(monkeypatch) -> list[tuple[int, int]]:
    """Rows that are looked at in single precision from now on, and how many of them stay in doubt."""
    found, screen = [], Decision.screened

    def count(self, log_joint, error, out=None):
        values, doubtful = screen(self, log_joint, error, out)
        found.append((log_joint.shape[1], len(doubtful)))
        return values, doubtful

    monkeypatch.setattr(Decision, "screened", count)
    return found


@every_covariance
@pytest.mark.parametrize("lead", [0.0, SURE])
@pytest.mark.parametrize("place", [0.0, 1e3])
@pytest.mark.parametrize("missing", [False, True])
def test_decisions_in_single_precision_are_those_in_double(case, lead, place, missing, rng, screened, monkeypatch):
    mixture = random_mixture(case, rng)
    apart = replace(mixture, means=30 * mixture.means + place)  # some rows are sure and some are not
    rows = 10 * tensor(rng.normal(size=(500, N_FEATURES)), "cpu") + place
    rows[::7, 0] = torch.nan if missing else rows[::7, 0]
    n_complete = int((~rows.isnan().any(1)).sum())
    found = decided(apart, rows, lead)
    seen, doubted = (sum(part) for part in zip(*screened[1:], strict=True))
    assert seen == n_complete
    assert doubted < n_complete
    assert doubted > 0 or lead == 0.0
    monkeypatch.setattr("mixtura.engine.evaluator.SCREENED_WORK", math.inf)
    torch.testing.assert_close(found, decided(apart, rows, lead), rtol=0, atol=1e-12)
    assert sum(seen for seen, _ in screened[1:]) == n_complete  # in double precision from the start


@every_covariance
@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
def test_close_decisions_do_not_depend_on_the_unit_of_the_rows(case, unit, rng, screened, monkeypatch):
    """In small units densities are large: their logarithms lose the digits that tell two classes apart."""
    mixture = random_mixture(case, rng)
    near = mixture.means[:1] + 1e-3 * (mixture.means - mixture.means[:1])
    alike = mixture.covariance.select(torch.zeros(mixture.n_components, dtype=torch.int64))
    close = Mixture(
        torch.full_like(mixture.log_weights, -math.log(mixture.n_components)),
        unit * near,
        alike.scaled(tensor(np.full(N_FEATURES, unit), "cpu")),
        mixture.class_of,
    )
    rows = unit * (near[0] + 0.1 * tensor(rng.normal(size=(20_000, N_FEATURES)), "cpu"))
    found = decided(close, rows, 0.0)
    assert sum(seen for seen, _ in screened[1:]) == 20_000
    monkeypatch.setattr("mixtura.engine.evaluator.SCREENED_WORK", math.inf)
    assert torch.equal(found, decided(close, rows, 0.0))


def test_single_precision_is_given_up_where_a_sample_leaves_many_in_doubt(rng, monkeypatch):
    monkeypatch.setattr("mixtura.engine.evaluator.SCREENED_MONOMIALS", 0)
    monkeypatch.setattr("mixtura.engine.evaluator.SCREENED_WORK", 0)
    looked = looked_at(monkeypatch)
    mixture = random_mixture(COVARIANCES["full"], rng)
    rows = tensor(rng.normal(size=(20_000, N_FEATURES)), "cpu")
    posterior = decided(mixture, rows, SURE)
    ((seen, doubted),) = looked
    assert seen <= SAMPLE
    assert doubted > bearable_share((N_FEATURES + 1) * (N_FEATURES + 2) // 2) * seen
    expected = log_joint_of(mixture, TensorSource(rows), locate(TensorSource(rows))).softmax(1)
    assert_close(posterior, expected, 1e-12)


@every_covariance
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_scores_are_the_same_however_many_rows_a_product_takes(case, dtype, rng):
    mixture = random_mixture(case, rng)
    rows = tensor(rng.normal(size=(50, N_FEATURES)), "cpu")
    evaluator = Evaluator(mixture, locate(TensorSource(rows)), torch.float64)
    scratch = Scratch()

    def scores(product_rows: int) -> torch.Tensor:
        chunk = Chunk(rows, slice(0, 50), slice(0, mixture.n_components), False, product_rows)
        return evaluator.scores(chunk, scratch.retyped(dtype)).clone()

    whole = scores(50)
    assert whole.dtype == dtype
    for product_rows in (1, 7, 25, 49):
        torch.testing.assert_close(scores(product_rows), whole, rtol=0, atol=200 * torch.finfo(dtype).eps * 50)
    evaluator.scores(Chunk(rows, slice(0, 50), slice(0, mixture.n_components), False, 50), scratch.retyped(None))
    torch.testing.assert_close(scores(50), whole, rtol=0, atol=0)  # after another precision


class Small:
    """A task of a pass."""

    work = 1


def test_a_slow_task_holds_up_no_other():
    tasks, others_done, done = [Small() for _ in range(6)], threading.Event(), []

    def work(task, state):
        if task is tasks[0]:
            assert others_done.wait(30)
        done.append(task)
        if len(done) == 5:
            others_done.set()

    with Workers(2) as workers:
        workers.hand_out(tasks, work, [None, None])
    assert done == [*tasks[1:], tasks[0]]


@pytest.mark.parametrize("way", [Workers.share_out, Workers.hand_out])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_tasks_are_done_once_and_an_error_in_one_is_raised(way, n_threads):
    tasks, states = [Small() for _ in range(20)], [[] for _ in range(n_threads)]
    with Workers(n_threads) as workers:
        way(workers, tasks, lambda task, state: state.append(task), states)
    done = [task for state in states for task in state]
    assert sorted(map(id, done)) == sorted(map(id, tasks))
    with pytest.raises(ZeroDivisionError), Workers(n_threads) as workers:
        way(workers, tasks, lambda task, state: 1 / 0, states)


@pytest.mark.parametrize("n_rows", [0, 1, 23, 100, 5000, 123_457])
@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("scored_in", [None, torch.float64, torch.float32])
@pytest.mark.parametrize("memory_limit", [1, 2**20, 2**28])
def test_pieces_are_all_rows_once_and_even(n_rows, n_threads, scored_in, memory_limit, rng):
    mixture = random_mixture(COVARIANCES["full"], rng)
    evaluator = Evaluator(mixture, framed(*torch.ones(2, N_FEATURES, dtype=torch.float64)), torch.float64)
    block = Block(torch.zeros(n_rows, N_FEATURES, dtype=torch.float64))
    group = Group(None, False, None, n_rows)
    cut = pieces(block, group, evaluator, memory_limit, n_threads, scored_in)
    sizes = [piece.part.stop - piece.part.start for piece in cut]
    assert [row for piece in cut for row in range(piece.part.start, piece.part.stop)] == list(range(n_rows))
    scratch = 8 * evaluator.scratch(slice(0, mixture.n_components), group)
    assert all(size == 1 or size * scratch * n_threads <= memory_limit for size in sizes)
    if n_rows == 123_457 and memory_limit > 1:
        shares = [sum(sizes[t::n_threads]) for t in range(n_threads)]
        assert min(shares) > 0.9 * max(shares)


@pytest.mark.parametrize(("scale", "shift", "tried"), [(1e-30, 0.0, True), (1e30, 0.0, False), (1.0, 1e6, False)])
def test_single_precision_decides_nothing_where_it_would_not_do(scale, shift, tried, rng, screened):
    """Beyond its range, and for rows so far from all means that differences between those are lost."""
    mixture = random_mixture(COVARIANCES["full"], rng)
    covariance = mixture.covariance.scaled(tensor(np.full(N_FEATURES, scale), "cpu"))
    mixture = replace(mixture, means=mixture.means * scale, covariance=covariance)
    rows = scale * (tensor(rng.normal(size=(50, N_FEATURES)), "cpu") + shift)
    posterior = decided(mixture, rows, SURE)
    assert bool(screened) == tried
    assert all(doubted == seen for seen, doubted in screened)
    expected = log_joint_of(mixture, TensorSource(rows), locate(TensorSource(rows))).softmax(1)
    torch.testing.assert_close(posterior, expected, rtol=0, atol=1e-12)
