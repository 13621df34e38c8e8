"""
A mixture for rows in several processes
=======================================

Run with ::

    torchrun --nproc-per-node=2 examples/several_processes.py

Every process generates, or reads, its own part of the rows. All processes get the same model, fitted to all rows.
"""

from __future__ import annotations

import numpy as np
import torch.distributed as dist

from mixtura import GaussianMixture
from mixtura.streams import Sharded


def main() -> None:
    dist.init_process_group("gloo")
    rank, n_processes = dist.get_rank(), dist.get_world_size()
    generator = np.random.default_rng(rank)
    means = np.array([[-3.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    rows = means[generator.integers(3, size=100_000)] + generator.normal(size=(100_000, 2))
    model = GaussianMixture(3, random_state=0).fit(Sharded(rows))
    if rank == 0:
        print(f"{n_processes * len(rows)} rows in {n_processes} processes, {model.n_iter_} iterations")
        print(np.round(model.means_[np.argsort(model.means_[:, 0])], 2))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
