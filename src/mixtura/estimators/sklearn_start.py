"""Initialisation as by scikit-learn's GaussianMixture: the same responsibilities from the same random numbers."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from mixtura import checks
from mixtura.covariances import FullCovariance, TiedCovariance
from mixtura.init.starts import clusters_of, plus_plus
from mixtura.model.mixture import Mixture
from mixtura.roles import Covariance

# Values up to this size can be squared and summed in single precision.
LARGEST_SINGLE = 1e15


class InitialResponsibilities:
    """Initial responsibilities: indices of rows, their components or shares of all components, and their weight."""

    def __init__(self, index: Tensor, labels: Tensor | None, shares: Tensor | None, weight: float):
        self.index, self.labels, self.weight = index, labels, weight
        self.shares = shares

    def assigned(self, rows: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The rows, their weights, and the component of each, or the one with the largest share."""
        chosen = rows[self.index].double()
        components = self.labels
        if components is None:
            assert self.shares is not None
            components = self.shares.argmax(1)
        return chosen, torch.ones_like(chosen[:, 0]) if weights is None else weights[self.index], components


def on_host(filled: Tensor, weights: Tensor | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows and weights for scikit-learn."""
    rows = filled.double() if float(filled.abs().amax()) > LARGEST_SINGLE else filled
    return rows.cpu().numpy(), None if weights is None else weights.cpu().numpy()


def cluster_like_scikit_learn(
    filled: Tensor, weights: Tensor | None, n_components: int, random_state: np.random.RandomState
) -> Tensor:
    """The cluster of every row, by scikit-learn's k-means."""
    means: Any = KMeans(n_clusters=n_components, n_init=1, random_state=random_state)  # pyright: ignore[reportArgumentType]
    rows, row_weights = on_host(filled, weights)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Number of distinct clusters", ConvergenceWarning)
        labels = means.fit(rows, sample_weight=row_weights).labels_
    return torch.from_numpy(labels.astype(np.int64)).to(filled.device)


def centres_of(rows: Tensor, weights: Tensor, components: Tensor, n_components: int) -> Tensor:
    sizes = torch.zeros(n_components, dtype=rows.dtype, device=rows.device).index_add_(0, components, weights)
    sums = torch.zeros(n_components, rows.shape[1], dtype=rows.dtype, device=rows.device)
    sums.index_add_(0, components, rows * weights.unsqueeze(-1))
    return torch.where(sizes.unsqueeze(-1) > 0, sums / sizes.clamp_min(1e-300).unsqueeze(-1), rows.mean(0))


def initial_responsibilities(
    method: str, n_components: int, filled: Tensor, weights: Tensor | None, random_state: np.random.RandomState
) -> InitialResponsibilities:
    """Initial responsibilities; on the CPU by scikit-learn's own functions, so that random draws are the same.

    On a GPU they are computed there.
    """
    n_rows, device = len(filled), filled.device
    every = torch.arange(n_rows, device=device)
    total = float(n_rows) if weights is None else float(weights.sum())
    if method == "random":
        shape = (n_rows, n_components)
        if filled.is_cuda:
            drawn = torch.Generator(device).manual_seed(int(random_state.randint(2**31)))
            shares = torch.rand(shape, generator=drawn, dtype=torch.float64, device=device)
        else:
            shares = torch.from_numpy(random_state.uniform(size=shape))
        return InitialResponsibilities(every, None, shares / shares.sum(1, keepdim=True), total)
    if method == "kmeans":
        if filled.is_cuda:
            generator = torch.Generator().manual_seed(int(random_state.randint(2**31)))
            labels = clusters_of(filled, weights, n_components, generator)
        else:
            labels = cluster_like_scikit_learn(filled, weights, n_components, random_state)
        n_clusters = len(labels.unique())
        if n_clusters < n_components:
            checks.warn(
                f"X has {n_clusters} distinct samples for {n_components} components: some components start "
                f"without samples. Lower n_components to {n_clusters}.",
                ConvergenceWarning,  # as scikit-learn's own
            )
        return InitialResponsibilities(every, labels, None, total)
    if method == "k-means++" and filled.is_cuda:
        generator = torch.Generator().manual_seed(int(random_state.randint(2**31)))
        weights_of = torch.ones_like(filled[:, 0]) if weights is None else weights.to(filled.dtype)
        centred = filled - weights_of @ filled / weights_of.sum()
        chosen = plus_plus(centred.double(), weights_of.double(), n_components, generator)
    elif method == "k-means++":
        rows, row_weights = on_host(filled, weights)
        _, chosen = kmeans_plusplus(rows, n_components, random_state=random_state, sample_weight=row_weights)
    else:
        chosen = random_state.choice(n_rows, size=n_components, replace=False)
    index = torch.from_numpy(np.asarray(chosen)).to(device)
    count = float(len(index)) if weights is None else float(weights[index].sum())
    return InitialResponsibilities(index, torch.arange(n_components, device=device), None, count)


def wide_tied(start: Mixture, filled: Tensor, weights: Tensor | None, weight: float, reg_covar: float) -> Covariance:
    """scikit-learn's tied covariance for initialisation from single rows.

    It is the scatter of all rows about zero over the weight of the chosen rows, since responsibilities do not sum
    to one there. Single rows have no scatter; this wide covariance lets every component reach the other rows.
    """
    rows = filled.double()
    weighted = rows if weights is None else rows * weights.unsqueeze(-1)
    chosen = (start.weights * weight / start.weights.sum()).unsqueeze(-1)
    seconds = weighted.T @ rows - (chosen * start.means).T @ start.means
    covariance = start.covariance
    assert isinstance(covariance, TiedCovariance)
    if not isinstance(covariance.inner, FullCovariance):
        return covariance
    ridge = reg_covar * torch.eye(len(seconds), dtype=seconds.dtype, device=seconds.device)
    return TiedCovariance(FullCovariance((seconds / weight + ridge).unsqueeze(0)), covariance.groups)
