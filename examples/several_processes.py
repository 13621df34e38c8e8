"""
A mixture for rows in several processes
=======================================

Every process generates, or reads, its own part of the rows. All processes get the same model, fitted to all rows. Run
with ::

    torchrun --nproc-per-node=2 examples/several_processes.py

or without torchrun: the script then starts two processes, and draws the model that they save.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
import torch.distributed as dist

import mixtura
from mixtura import GaussianMixture
from mixtura.plotting import MixtureDisplay
from mixtura.streams import Sharded

MEANS = np.array([[-3.0, 0.0], [3.0, 0.0], [0.0, 4.0]])


def rows_of(rank: int, n_rows: int = 100_000) -> np.ndarray:
    generator = np.random.default_rng(rank)
    return MEANS[generator.integers(3, size=n_rows)] + generator.normal(size=(n_rows, 2))


def main() -> None:
    dist.init_process_group("gloo")
    rank, n_processes = dist.get_rank(), dist.get_world_size()
    rows = rows_of(rank)
    model = GaussianMixture(3, random_state=0).fit(Sharded(rows))
    if rank == 0:
        print(f"{n_processes * len(rows)} rows in {n_processes} processes, {model.n_iter_} iterations")
        print(np.round(model.means_[np.argsort(model.means_[:, 0])], 2))
        if len(sys.argv) > 1:  # a folder for the model
            model.save(Path(sys.argv[1]) / "model")
    dist.destroy_process_group()


def start(script: str) -> None:
    """Start this script in two processes, and draw their model."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", script, folder]
        print(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        model = mixtura.load(Path(folder) / "model")
    MixtureDisplay.from_estimator(model, rows_of(0, 1000))
    plt.show()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        start(sys.argv[0])
