"""
A mixture as the last layer of a network
========================================

A mixture head replaces the last linear layer of a network for scikit-learn's digits. The network maps every image to
two features, from which the head predicts ten classes. Two lines change: the last layer and, for the sparse head, the
divergence in the loss. The example takes some seconds.
"""

from __future__ import annotations

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


def main() -> None:
    X, X_test, y, y_test = digits()
    heads = {
        "nn.Linear": lambda: nn.Linear(2, 10),
        "MixtureHead": lambda: MixtureHead(2, 10, n_components=4),
        "SparseMixtureHead": lambda: SparseMixtureHead(2, 10, n_components=4),
    }
    for name, make in heads.items():
        errors, head = [], None
        for seed in range(3):
            torch.manual_seed(seed)
            head = make()
            network = train(head, X, y)
            with torch.no_grad():
                errors.append(100 * (network(X_test).argmax(1) != y_test).float().mean().item())
        print(f"{name:18} " + ", ".join(f"{error:.1f}" for error in errors) + " % errors on test images, three seeds")
        if isinstance(head, SparseMixtureHead):
            print(f"{'':18} {head.prune().n_weights} of {head.n_weights} weights are left in the last one")


if __name__ == "__main__":
    main()
