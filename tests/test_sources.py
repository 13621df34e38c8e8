"""Blocks and sources: every row once, in order, grouped by its label and its missing values."""

import functools
import itertools
import operator
import os
import threading

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from cases import KINDS, every_kind, random_data, tensor
from mixtura.checks import SourceError
from mixtura.engine.sources import ArraySource, BatchSource, Block, TensorSource, joined
from mixtura.engine.threads import prefetched
from mixtura.engine.tuning import PREFETCHED
from mixtura.values.row_samples import largest, uniform_keys


def block_of(data, device) -> Block:
    parts = (data.rows, data.labels, data.shares, data.weights)
    return Block(*(None if part is None else tensor(part, device) for part in parts))


def indices_of(group, n_rows) -> list[int]:
    return list(range(n_rows)) if group.index is None else group.index.tolist()


@every_kind
@pytest.mark.parametrize("by_label", [False, True])
def test_groups_hold_every_row_exactly_once(kind, by_label, rng, device):
    data = random_data(kind, rng)
    groups = block_of(data, device).groups(by_label)
    actual = [i for group in groups for i in indices_of(group, len(data.rows))]
    assert sorted(actual) == list(range(len(data.rows)))
    assert [group.n_rows for group in groups] == [len(indices_of(group, len(data.rows))) for group in groups]


@every_kind
@pytest.mark.parametrize("by_label", [False, True])
def test_rows_of_a_group_are_alike(kind, by_label, rng, device):
    data = random_data(kind, rng)
    keys = []
    for group in block_of(data, device).groups(by_label):
        keys.append((group.label, group.missing))
        index = indices_of(group, len(data.rows))
        assert (np.isnan(data.rows[index]).any(1) == group.missing).all()
        labels = data.labels if by_label else None
        assert group.label is None if labels is None else (labels[index] == group.label).all()
    assert len(set(keys)) == len(keys)


def test_rows_with_missing_values_come_sorted_by_their_number(rng, device):
    data = random_data(KINDS["missing"], rng)
    (group,) = (group for group in block_of(data, device).groups(False) if group.missing)
    counts = np.isnan(data.rows[group.index.cpu().numpy()]).sum(1)
    assert (np.diff(counts) >= 0).all()


def test_complete_rows_without_labels_are_one_group_in_order(rng, device):
    (group,) = block_of(random_data(KINDS["complete"], rng), device).groups(True)
    assert (group.index, group.label, group.missing) == (None, None, False)


def test_infinities_that_cancel_are_not_missing_values(device):
    rows = torch.tensor([[torch.inf, 1.0], [-torch.inf, 2.0]], dtype=torch.float64, device=device)
    (group,) = Block(rows).groups(False)
    assert not group.missing


def test_a_tensor_is_one_block(rng, device, dtype):
    rows = tensor(rng.normal(size=(5, 3)), device).to(dtype)
    source = TensorSource(rows)
    (block,) = source.blocks()
    assert block.rows is rows
    assert (source.n_features, source.dtype, source.device.type) == (3, dtype, device.type)


@pytest.mark.parametrize("kind", ["float32", "float64", "int64", "float16", ">f8"])
def test_an_array_is_read_in_blocks_of_bounded_size(kind, rng, device, tmp_path, monkeypatch):
    monkeypatch.setattr("mixtura.engine.sources.STREAMED_BYTES", 4 * 3 * 8)
    rows = rng.integers(0, 100, (10, 3)).astype(kind)
    np.save(tmp_path / "rows.npy", rows)
    labels = torch.arange(10)
    source = ArraySource(np.load(tmp_path / "rows.npy", mmap_mode="r"), labels, device=device)
    blocks = list(source.blocks())
    assert [len(block.rows) for block in blocks] == [4, 4, 2]
    assert [block.start for block in blocks] == [0, 4, 8]
    assert {block.rows.dtype for block in blocks} == {
        torch.float32 if kind in ("float32", "float16") else torch.float64
    }
    assert np.array_equal(torch.cat([block.rows for block in blocks]).cpu().numpy(), rows.astype(float))
    assert torch.cat([block.labels for block in blocks]).tolist() == labels.tolist()


@pytest.mark.parametrize(("n_streamed", "starts"), [(1, [0, 3]), (4, [0]), (100, [0])])
def test_batches_can_be_iterated_again(n_streamed, starts, rng, device, monkeypatch):
    monkeypatch.setattr("mixtura.engine.sources.STREAMED_BYTES", n_streamed * 2 * 8)
    batches = [rng.normal(size=(n, 2)) for n in (3, 0, 2)]
    source = BatchSource(batches, lambda rows: Block(tensor(rows, device)), 2, device, torch.float64)
    for _ in range(2):
        blocks = list(source.blocks())
        assert [block.start for block in blocks if len(block.rows)] == starts
        assert np.array_equal(torch.cat([block.rows for block in blocks]).cpu().numpy(), np.concatenate(batches))
    assert source.n_rows == 5


def test_batches_that_are_fewer_the_second_time(device):
    batches = [torch.zeros(3, 2, device=device), torch.zeros(4, 2, device=device)]
    source = BatchSource(batches, Block, 2, device, torch.float32)
    list(source.blocks())
    batches.pop()
    with pytest.raises(SourceError, match="The batches held 7 rows when they were first read and 3 rows now"):
        list(source.blocks())


def test_a_memory_map_that_another_program_changes(rng, tmp_path):
    np.save(tmp_path / "rows.npy", rng.normal(size=(10, 3)))
    source = ArraySource(np.asarray(np.load(tmp_path / "rows.npy", mmap_mode="r"))[2:])
    list(source.blocks())
    (tmp_path / "other.npy").write_bytes((tmp_path / "rows.npy").read_bytes())
    (tmp_path / "other.npy").replace(tmp_path / "rows.npy")  # the map still holds the old file
    list(source.blocks())
    source = ArraySource(np.load(tmp_path / "rows.npy", mmap_mode="r"))
    list(source.blocks())
    np.load(tmp_path / "rows.npy", mmap_mode="r+")[0, 0] = 7.0
    os.utime(tmp_path / "rows.npy", ns=(1, 1))
    with pytest.raises(SourceError, match=r"rows.npy' has changed since it was first read"):
        list(source.blocks())


def test_joined_batches_keep_labels_and_count_rows_without_weights_once(device):
    rows = torch.arange(8.0, device=device).reshape(4, 2)
    parts = [
        Block(rows[:2], labels=torch.tensor([0, 1], device=device)),
        Block(rows[2:], torch.tensor([1, -1], device=device), weights=torch.full((2,), 3.0, device=device)),
    ]
    block = joined(parts)
    assert torch.equal(block.rows, rows)
    assert (block.labels.tolist(), block.weights.tolist()) == ([0, 1, 1, -1], [1, 1, 3, 3])


def test_reading_ahead_changes_neither_parts_nor_their_order():
    assert list(prefetched(range(100))) == list(range(100))


def test_an_error_while_reading_comes_after_the_parts_before_it():
    def parts():
        yield 1
        raise OSError("no such disk")

    ahead = prefetched(parts())
    assert next(ahead) == 1
    with pytest.raises(OSError, match="no such disk"):
        next(ahead)


def test_reading_ends_when_nobody_wants_more():
    n_read, before = itertools.count(), threading.active_count()
    ahead = prefetched(next(n_read) for _ in itertools.count())
    assert next(ahead) == 0
    ahead.close()
    assert threading.active_count() == before
    assert next(n_read) <= PREFETCHED + 3


def test_reading_runs_while_parts_are_used():
    """The reader waits for a word that the caller says only after it has the first part."""
    said = threading.Event()

    def parts():
        yield 1
        assert said.wait(10)
        yield 2

    ahead = prefetched(parts())
    next(ahead)
    said.set()
    assert next(ahead) == 2


# ---- samples -----------------------------------------------------------------------------------------------------


def test_keys_are_uniform_and_belong_to_positions(device):
    keys = uniform_keys(7, 0, 100_000, device)
    assert torch.equal(uniform_keys(7, 60_000, 40_000, device), keys[60_000:])
    assert kstest(keys.cpu().numpy(), "uniform").pvalue > 0.01
    assert abs(np.corrcoef(keys[:-1].cpu(), keys[1:].cpu())[0, 1]) < 0.01
    assert kstest(uniform_keys(8, 0, 100_000, device).cpu().numpy(), keys.cpu().numpy()).pvalue > 0.01
    assert not torch.equal(uniform_keys(8, 0, 10, device), keys[:10])


@pytest.mark.parametrize("cuts", [[], [1], [3, 50, 51], [99]])
def test_a_sample_does_not_depend_on_the_parts(cuts, device):
    rows, keys = torch.arange(100.0, device=device), uniform_keys(1, 0, 100, device)
    expected = sorted(sorted(range(100), key=lambda i: -keys[i])[:10])
    parts = [largest((rows[i:j], None), keys[i:j], 10) for i, j in itertools.pairwise([0, *cuts, 100])]
    sample = functools.reduce(operator.add, parts)
    assert sample.columns[0].tolist() == expected
    assert sample.columns[1] is None
    assert sample.threshold == float(keys[expected].min())


def test_streamed_blocks_reach_the_device_whole(rng, device, monkeypatch):
    """On a GPU by copies from pinned memory, which run beside the kernels: none may be used before it has arrived."""
    pinned, pin = [0], torch.Tensor.pin_memory
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda part: (pinned.__setitem__(0, pinned[0] + 1), pin(part))[1])
    batches = [rng.normal(size=(300_000, 8)) for _ in range(4)]
    source = BatchSource(batches, lambda rows: Block(torch.from_numpy(rows)), 8, device, torch.float64)
    for _ in range(3):
        sums = [(block.rows.sum(0).cpu().numpy(), block.rows.device.type) for block in source.blocks()]
        np.testing.assert_allclose(sum(part for part, _ in sums), np.concatenate(batches).sum(0), rtol=1e-9)
        assert {where for _, where in sums} == {device.type}
    assert (pinned[0] > 0) == (device.type == "cuda")
