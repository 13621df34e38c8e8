"""A mixture in place of the last linear layer of a network, on scikit-learn's digits.

Two lines change: the last layer, and, for the sparse head, the divergence in the loss. It takes some seconds.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional

from mixtura.nn import MixtureHead, SparseMixtureHead, WarmUp


def digits() -> tuple[torch.Tensor, ...]:
    X, y = load_digits(return_X_y=True)
    return tuple(torch.as_tensor(part) for part in train_test_split(X.astype("float32") / 16, y, random_state=0))


def train(head: nn.Module, X: torch.Tensor, y: torch.Tensor, n_epochs: int = 60) -> nn.Module:
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8), head)  # head was nn.Linear(8, 10)
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    warm_up = WarmUp(n_rows=len(X), start=10, stop=30)
    for epoch in range(n_epochs):
        for rows in torch.randperm(len(X)).split(64):
            loss = functional.cross_entropy(network(X[rows]), y[rows])
            if isinstance(head, SparseMixtureHead):
                loss = loss + head.kl() * warm_up(epoch)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return network.eval()


def main() -> None:
    torch.manual_seed(0)
    X, X_test, y, y_test = digits()
    heads = {
        "nn.Linear": nn.Linear(8, 10),
        "MixtureHead": MixtureHead(8, 10, n_components=2),
        "SparseMixtureHead": SparseMixtureHead(8, 10, n_components=2),
    }
    for name, head in heads.items():
        network = train(head, X, y)
        with torch.no_grad():
            error = 100 * (network(X_test).argmax(1) != y_test).float().mean()
        print(f"{name:18} {error:.1f} % errors")
    sparse = heads["SparseMixtureHead"]
    small = sparse.prune()
    print(
        f"pruned: {small.n_weights} of {sparse.n_weights} weights, {sum(small.n_components)} of 20 components are left"
    )


if __name__ == "__main__":
    main()
