"""Blocks and sources: every row once, in order, grouped by what is known of it."""

import numpy as np
import pytest
import torch

from cases import KINDS, every_kind, random_data, tensor
from mixtura.engine.sources import ArraySource, BatchSource, Block, TensorSource


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
    found = [i for group in groups for i in indices_of(group, len(data.rows))]
    assert sorted(found) == list(range(len(data.rows)))
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


def test_rows_with_missing_cells_come_sorted_by_their_number(rng, device):
    data = random_data(KINDS["missing"], rng)
    (group,) = (group for group in block_of(data, device).groups(False) if group.missing)
    counts = np.isnan(data.rows[group.index.cpu().numpy()]).sum(1)
    assert (np.diff(counts) >= 0).all()


def test_complete_rows_without_labels_are_one_group_in_order(rng, device):
    (group,) = block_of(random_data(KINDS["complete"], rng), device).groups(True)
    assert (group.index, group.label, group.missing) == (None, None, False)


def test_infinities_that_cancel_are_not_missing_cells(device):
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
    assert {block.rows.dtype for block in blocks} == {torch.float32 if kind == "float32" else torch.float64}
    assert np.array_equal(torch.cat([block.rows for block in blocks]).cpu().numpy(), rows.astype(float))
    assert torch.cat([block.labels for block in blocks]).tolist() == labels.tolist()


def test_batches_can_be_gone_through_again(rng, device):
    batches = [rng.normal(size=(n, 2)) for n in (3, 0, 2)]
    source = BatchSource(batches, lambda rows: Block(tensor(rows, device)), 2, device, torch.float64)
    for _ in range(2):
        blocks = list(source.blocks())
        assert [block.start for block in blocks] == [0, 3, 3]
        assert np.array_equal(torch.cat([block.rows for block in blocks]).cpu().numpy(), np.concatenate(batches))
