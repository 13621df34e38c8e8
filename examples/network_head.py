"""
A mixture as the last layer of a network
========================================

A mixture head replaces the last linear layer of a network for scikit-learn's digits. The network maps every image to
two features, from which the head predicts ten classes. Two lines change: the last layer and, for the sparse head, the
divergence in the loss. The example takes some seconds.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional

from mixtura.nn import MixtureHead, SparseMixtureHead, WarmUp

N_EPOCHS, BATCH = 80, 64


def digits() -> tuple[Tensor, ...]:
    X, y = load_digits(return_X_y=True)
    return tuple(torch.as_tensor(part) for part in train_test_split(X.astype("float32") / 16, y, random_state=0))


def train(head: nn.Module, X: Tensor, y: Tensor) -> nn.Module:
    """Train a network with this head; the training loop is the same for any last layer."""
    body = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 2))
    network = nn.Sequential(body, head)  # head was nn.Linear(2, 10)
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    n_batches = len(X) // BATCH  # a last batch of few rows would spoil the running means
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, N_EPOCHS * n_batches)
    warm_up = WarmUp(n_rows=len(X), start=0.1 * N_EPOCHS, stop=0.5 * N_EPOCHS)
    for epoch in range(N_EPOCHS):
        for rows in torch.randperm(len(X))[: n_batches * BATCH].split(BATCH):
            loss = functional.cross_entropy(network(X[rows]), y[rows])
            if isinstance(head, SparseMixtureHead):
                loss = loss + head.kl() * warm_up(epoch)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return network.eval()


def draw(axis: plt.Axes, network: nn.Module, X: Tensor, y: Tensor) -> None:
    """The two features of images, in the colours of their digits, and where the head predicts each digit."""
    with torch.no_grad():
        features = network[0](X)
        low, high = features.amin(0) - 0.5, features.amax(0) + 0.5
        grid = torch.cartesian_prod(
            *(torch.linspace(a, b, 300) for a, b in zip(low.tolist(), high.tolist(), strict=True))
        )
        predictions = network[1](grid).argmax(1).reshape(300, 300).T
    extent = (low[0].item(), high[0].item(), low[1].item(), high[1].item())
    axis.imshow(predictions, origin="lower", extent=extent, aspect="auto", cmap="tab10", alpha=0.3, vmin=0, vmax=9)
    axis.scatter(*features.T, c=y, s=4, cmap="tab10", vmin=0, vmax=9)
    axis.set(xticks=[], yticks=[])


def main() -> None:
    X, X_test, y, y_test = digits()
    _, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
    heads = {
        "nn.Linear": lambda: nn.Linear(2, 10),
        "MixtureHead": lambda: MixtureHead(2, 10, n_components=4),
        "SparseMixtureHead": lambda: SparseMixtureHead(2, 10, n_components=4),
    }
    for axis, (name, make) in zip(axes, heads.items(), strict=True):
        errors, head, network = [], None, nn.Sequential()
        for seed in range(3):
            torch.manual_seed(seed)
            head = make()
            network = train(head, X, y)
            with torch.no_grad():
                errors.append(100 * (network(X_test).argmax(1) != y_test).float().mean().item())
        print(f"{name:18} " + ", ".join(f"{error:.1f}" for error in errors) + " % errors on test images, three seeds")
        if isinstance(head, SparseMixtureHead):
            print(f"{'':18} {head.prune().n_weights} of {head.n_weights} weights are left in the last one")
        draw(axis, network, X_test, y_test)
        axis.set_title(f"{name}: {errors[-1]:.1f} % test error", fontsize=10)
    plt.show()


if __name__ == "__main__":
    main()
