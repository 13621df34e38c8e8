"""Labels that spread along nearest neighbours, and starts made of them."""

import numpy as np
import pytest
import torch

from cases import assert_close, tensor
from mixtura import MixtureClassifier
from mixtura.checks import RepairWarning
from mixtura.engine.sources import TensorSource
from mixtura.init.description import SAMPLED_ROWS, describe
from mixtura.init.starts import graph_of, spread, spread_samples


def dense_graph(rows, n_neighbours):
    """S of (label-spreading), entry by entry."""
    n_rows = len(rows)
    squared = ((rows[:, None] - rows[None]) ** 2).sum(-1)
    weights = np.zeros((n_rows, n_rows))
    for i in range(n_rows):
        others = [j for j in np.argsort(squared[i], kind="stable") if j != i][:n_neighbours]
        for j in others:
            weights[i, j] = np.exp(-4 * squared[i, j] / squared[i, others[-1]])
    both = weights + weights.T
    degrees = both.sum(1)
    return both / np.sqrt(np.outer(degrees, degrees))


def rings(rng, n_rows=300):
    """A ring about a blob: a class each."""
    labels = np.arange(n_rows) % 2
    angles, radii = rng.uniform(0, 2 * np.pi, n_rows), np.where(labels == 1, 4.0, 0.5)
    rows = (radii * np.stack((np.cos(angles), np.sin(angles)))).T + 0.3 * rng.normal(size=(n_rows, 2))
    return rows, labels


def test_the_graph_is_that_of_the_slow_formula(rng, device):
    rows = rng.normal(size=(40, 3))
    graph = graph_of(tensor(rows, device), 4)
    identity = torch.eye(40, dtype=torch.float64, device=device)
    assert_close(graph(identity), dense_graph(rows, 4))


def test_labels_are_those_of_the_solved_system(rng, device):
    rows = np.concatenate((rng.normal(size=(40, 3)), rng.normal(size=(30, 3)) + 2))
    labels, frequencies = np.full(70, -1), np.array([0.7, 0.3])
    labels[[0, 3, 50]] = [0, 0, 1]
    given = np.zeros((70, 2))
    given[[0, 3], 0], given[50, 1] = 0.5, 1.0
    shares = np.linalg.solve(np.eye(70) - 0.9 * dense_graph(rows, 5), given)
    expected = (shares / shares.sum(0) * frequencies).argmax(1)
    known, graph = torch.tensor(labels, device=device), graph_of(tensor(rows, device), 5)
    actual = spread(graph, known, tensor(frequencies, device), 0.9)
    expected[[0, 3, 50]] = [0, 0, 1]  # labels that are given stay
    np.testing.assert_array_equal(actual.cpu(), expected)


def test_rows_that_no_label_reaches_stay_unlabeled(rng, device):
    near, far = rng.normal(size=(20, 2)), rng.normal(size=(20, 2)) + 1e3
    labels = torch.full((40,), -1, device=device)
    labels[0], labels[1] = 0, 1
    actual = spread(graph_of(tensor(np.concatenate((near, far)), device), 3), labels, torch.ones(2, device=device))
    assert bool((actual[20:] == -1).all())
    assert bool((actual[:20] >= 0).all())


def test_equal_rows_do_no_harm(device):
    labels = torch.tensor([0, 1, -1, -1], device=device)
    rows = torch.zeros(4, 2, dtype=torch.float64, device=device)
    actual = spread(graph_of(rows, 2), labels, torch.ones(2, device=device))
    assert actual[:2].tolist() == [0, 1]


def test_one_label_of_a_ring_finds_the_ring(rng):
    rows, truth = rings(rng)
    labels = np.full(len(rows), -1)
    labels[:2] = truth[:2]
    actual = MixtureClassifier({0: 1, 1: 6}, init="spread", unlabeled=-1, random_state=0).fit(rows, labels)
    assert actual.score(rows, truth) > 0.98
    with pytest.warns(RepairWarning, match="has 1 samples for 6 components"):  # the start sees the labeled rows alone
        other = MixtureClassifier({0: 1, 1: 6}, unlabeled=-1, random_state=0).fit(rows, labels)
    assert other.score(rows, truth) < 0.98


def test_without_unlabeled_rows_a_start_is_that_of_k_means(rng):
    rows, labels = rings(rng)
    fits = [MixtureClassifier(3, init=init, random_state=0).fit(rows, labels) for init in ("kmeans", "spread")]
    assert_close(fits[0].mixture_.means, fits[1].mixture_.means)


def test_of_many_labels_a_part_is_spread_and_all_are_kept(rng, monkeypatch):
    for file in ("description", "starts"):
        monkeypatch.setattr(f"mixtura.init.{file}.SAMPLED_ROWS", 40)
    assert SAMPLED_ROWS > 40
    rows, labels = rings(rng)
    labels[100:110] = -1
    generator = torch.Generator().manual_seed(0)
    description = describe(TensorSource(tensor(rows), torch.tensor(labels)), 2, generator)
    samples = spread_samples(description)
    assert sum(len(part) for part, _ in samples) == sum(len(part) for part, _ in description.samples)
