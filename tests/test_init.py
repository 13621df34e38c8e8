"""A first look at the rows, and the mixtures that fits start from."""

import numpy as np
import pytest
import torch

from cases import KINDS, Data, assert_close, every_covariance, every_kind, random_data, tensor
from mixtura.covariances import Diagonal
from mixtura.engine.sources import BatchSource, Block, locate
from mixtura.init import starts
from mixtura.init.description import describe
from mixtura.init.starts import cluster, lloyd, nearest, plus_plus, starting_mixture

N_CLASSES = 3


@pytest.fixture
def seeded() -> torch.Generator:
    """Starts draw on the CPU, so that they are the same on every device."""
    return torch.Generator().manual_seed(0)


def shares_and_weights(data):
    """Weighted share of each class and, last, of no class in every row, (N, C + 1)."""
    n_rows = len(data.rows)
    shares = np.zeros((n_rows, N_CLASSES + 1))
    if data.shares is not None:
        unlabeled = np.isnan(data.shares[:, 0])
        shares[:, :-1] = np.where(unlabeled[:, None], 0, data.shares)
        shares[unlabeled, -1] = 1
    elif data.labels is not None:
        shares[np.arange(n_rows), np.where(data.labels < 0, N_CLASSES, data.labels)] = 1
    else:
        shares[:, 0] = 1
    return shares if data.weights is None else shares * data.weights[:, None]


@every_kind
def test_a_description_has_the_means_and_variances_of_the_observed_values(kind, rng, device, seeded):
    data = random_data(kind, rng)
    actual, shares = describe(data.source(device), N_CLASSES, seeded), shares_and_weights(data)
    assert_close(actual.class_weights, shares.sum(0)[:-1])
    assert_close(actual.unlabeled_weight, shares.sum(0)[-1])
    assert (actual.n_rows, actual.n_missing) == (len(data.rows), np.isnan(data.rows).sum())
    seen, rows = ~np.isnan(data.rows), np.nan_to_num(data.rows)
    scatter, weight = 0, 0
    for c in range(N_CLASSES):
        cells = shares[:, c : c + 1] * seen
        if cells.sum():
            mean = (cells * rows).sum(0) / cells.sum(0)
            assert_close(actual.class_means[c], mean)
            scatter, weight = scatter + (cells * (rows - mean) ** 2).sum(0), weight + cells.sum(0)
    assert_close(actual.within, scatter / weight)
    cells = shares.sum(1, keepdims=True) * seen
    mean = (cells * rows).sum(0) / cells.sum(0)
    assert_close(actual.total, (cells * (rows - mean) ** 2).sum(0) / cells.sum(0))


def test_a_description_of_batches_is_that_of_the_whole(rng, device, seeded):
    data = random_data(KINDS["all_hard"], rng)
    batches = [data.select(index) for index in np.split(np.arange(len(data.rows)), [5, 5, 30])]

    def read(batch):
        return Block(tensor(batch.rows, device), tensor(batch.labels, device), None, tensor(batch.weights, device))

    source = BatchSource(batches, read, data.rows.shape[1], device, torch.float64)
    actual, expected = (describe(s, N_CLASSES, seeded) for s in (source, data.source(device)))
    for name in ("class_weights", "class_means", "within", "total"):
        assert_close(getattr(actual, name), getattr(expected, name))
    assert_close(actual.frame.radii, locate(data.source(device)).radii)


def test_variances_survive_an_offset_that_dwarfs_them(rng, device, seeded):
    rows = rng.normal(size=(200, 2))
    far, near = (describe(Data(r).source(device), 1, seeded) for r in (rows + 1e6, rows))
    assert_close(far.within, near.within, 1e-8)


def test_tight_classes_far_apart_keep_their_variances(rng, device, seeded):
    labels = np.arange(200) % 2
    rows = rng.normal(size=(200, 2)) + 2e4 * labels[:, None]
    actual = describe(Data(rows, labels=labels).source(device), 2, seeded)
    assert_close(actual.within, np.mean([rows[labels == c].var(0) for c in (0, 1)], 0), 1e-6)
    assert (actual.total > 1e7).all()


def test_a_column_that_does_not_vary_has_the_average_variance_of_the_others(rng, device, seeded):
    rows = np.column_stack([rng.normal(size=(50, 2)), np.full(50, 1234.5), np.full(50, np.nan)])
    actual = describe(Data(rows).source(device), 1, seeded)
    average = rows[:, :2].var(0).mean()
    assert actual.varies.tolist() == [True, True, False, False]
    assert_close(actual.within[2:], [average, average])
    assert_close(actual.total[2:], [average, average])


def test_columns_that_do_not_vary_at_all_have_variance_one(device, seeded):
    actual = describe(Data(np.full((5, 2), 7.0)).source(device), 1, seeded)
    assert_close(actual.within, [1.0, 1.0])
    assert_close(actual.total, [1.0, 1.0])


@every_covariance
@pytest.mark.parametrize("method", ["kmeans", "k-means++", "random", "spread"])
def test_a_start_has_the_requested_components_and_class_weights(case, method, rng, device, seeded):
    data = random_data(KINDS["all_hard"], rng)
    description = describe(data.source(device), N_CLASSES, seeded)
    mixture, assigned = starting_mixture(description, case.structure, [2, 1, 3], method, seeded)
    assert mixture.class_of.tolist() == [0, 0, 1, 2, 2, 2]
    expected = description.class_weights / description.class_weights.sum()
    assert_close(mixture.log_class_prior.exp(), expected)
    assert torch.isfinite(mixture.means).all()
    assert (torch.linalg.eigvalsh(mixture.covariances) > 0).all()
    for c, (rows, weights, components) in enumerate(assigned):
        assert len(rows) == len(weights) == len(components)
        assert (mixture.class_of[components] == c).all()


def test_a_start_does_not_depend_on_units(rng, device):
    data, scales = random_data(KINDS["labels"], rng), np.array([1.0, 1e6, 1e-6, 10.0])
    means = []
    for rows in (data.rows, data.rows * scales):
        generator = torch.Generator().manual_seed(1)
        description = describe(data.changed(rows=rows).source(device), N_CLASSES, generator)
        means.append(starting_mixture(description, Diagonal(), [2, 2, 2], "kmeans", generator)[0].means)
    assert_close(means[1] / tensor(scales, device), means[0], 1e-7)


def test_a_start_is_the_same_from_the_same_seed(rng, device):
    source = random_data(KINDS["complete"], rng).source(device)
    means = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(5)
        means.append(starting_mixture(describe(source, 1, generator), Diagonal(), [4], "kmeans", generator)[0].means)
    assert_close(*means, 0.0 if device.type == "cpu" else 1e-12)  # sums by index have no fixed order elsewhere


def separated(rng, device):
    """Four tight clusters and their centres."""
    centres = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
    return tensor(np.repeat(centres, 25, 0) + 0.1 * rng.normal(size=(100, 2)), device), centres


@pytest.mark.parametrize("method", ["kmeans", "k-means++"])
def test_seeds_find_separated_clusters(method, rng, device, seeded):
    rows, centres = separated(rng, device)
    actual = cluster(rows, torch.ones_like(rows[:, 0]), 4, method, seeded).cpu().numpy()
    distances = np.linalg.norm(actual[:, None] - centres, axis=-1)
    assert sorted(distances.argmin(1)) == [0, 1, 2, 3]
    assert distances.min(1).max() < (0.1 if method == "kmeans" else 0.5)


def test_k_means_ends_at_weighted_means_of_the_nearest_rows(rng, device, seeded):
    rows, weights = tensor(rng.normal(size=(80, 2)), device), tensor(rng.uniform(0.1, 3, 80), device)
    centres = lloyd(rows, weights, rows[plus_plus(rows, weights, 3, seeded)])
    components = nearest(rows, centres)
    expected = [
        np.average(rows[components == k].cpu(), axis=0, weights=weights[components == k].cpu()) for k in range(3)
    ]
    assert_close(centres, expected)


def test_a_row_of_weight_zero_is_never_a_centre(rng, device, seeded):
    rows, _ = separated(rng, device)
    weights = torch.ones_like(rows[:, 0])
    weights[50:] = 0
    for method in ("kmeans", "k-means++", "random"):
        assert (cluster(rows, weights, 2, method, seeded)[:, 1] < 5).all()


@pytest.mark.parametrize("method", ["kmeans", "k-means++", "random"])
def test_more_centres_than_distinct_rows_are_still_centres(method, device, seeded):
    rows = torch.tensor([[0.0, 1.0], [0.0, 1.0], [2.0, 3.0]], dtype=torch.float64, device=device)
    centres = cluster(rows, torch.ones_like(rows[:, 0]), 5, method, seeded)
    assert centres.shape == (5, 2)
    assert torch.isfinite(centres).all()


def test_one_centre_is_the_weighted_mean(rng, device, seeded):
    rows, weights = rng.normal(size=(20, 3)), rng.uniform(size=20)
    centre = cluster(tensor(rows, device), tensor(weights, device), 1, "kmeans", seeded)
    assert_close(centre[0], np.average(rows, axis=0, weights=weights))


def test_clusters_of_many_rows_are_those_of_a_sample(rng, device, seeded, monkeypatch):
    """Far from zero, in single precision, with more rows than determine the centres."""
    monkeypatch.setattr(starts, "CLUSTERED_ROWS", 60)
    truth = np.arange(200) % 3
    rows = tensor(1e4 + 10 * truth[:, None] + rng.normal(size=(200, 2)), device).float()
    for weights in (None, torch.ones(200, device=device)):
        clusters = starts.clusters_of(rows, weights, 3, seeded).cpu().numpy()
        assert len(np.unique(clusters)) == 3
        assert all(len(np.unique(clusters[truth == c])) == 1 for c in range(3))
