"""Table 2 of RPTP18 by the methods and with the settings of the paper: MNIST (pca50), few labels among 50000 samples.

SSL: EM on the labeled samples of each digit, then Adam on the hybrid objective over all samples; the settings are those
of the authors' program. SV: the same on the labeled samples alone, whose settings are not published; the validation
samples choose among those of `supervised_settings`, as many for LM as for CLL. Minibatches have the published sizes.
The error is that of the epoch with the best validation error (10000 labeled samples), as in the paper.

Three ingredients are not in the paper and are taken from the authors' program:

- The labeled samples: the first of a permutation by NumPy's generator with seed 1 (subset "paper"). Other subsets are
  drawn by torch.
- The start (`reproduce.hybrid.plain`): the leading eigenvectors of the whole covariance, epsilon I included. A
  covariance of few samples has few directions beyond epsilon I, and a column of the low-rank factor that starts at zero
  has a gradient of zero and is never learned.
- The coordinates (`reproduce.hybrid.PlainColumns`): Adam steps along the entries of the columns as they are.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from mixtura import GaussianMixture
from mixtura.covariances import LowRankCovariance
from mixtura.model.mixture import Mixture
from mixtura.objectives import Conditional, Hybrid, Margin
from mixtura.solvers import EarlyStopping, Gradient, Problem, Units, run
from reproduce import hybrid as base
from reproduce.hybrid import Data
from reproduce.options import Options

N_CLASSES = 10
N_SUBSETS = 3  # of labeled samples: that of the paper, and others
N_STARTS = 40  # of EM for each digit
PAPER = "paper"  # the labeled subset of the paper; other subsets have numbers
TRIANGULAR = " with triangular columns"  # rows with the parameters of mixtura instead of those of the authors' program
BATCHES = {100: 1, 250: 2, 500: 5, 1000: 10, 2500: 25, 5000: 50, 10_000: 100, 25_000: 100}  # of the supervised rows
SHOWN_EVERY = 2  # epochs between validations
EPOCHS = 100  # in the paper


@dataclass(frozen=True)
class Published:
    """Components per digit, epsilon, step size, lambda, kappa, margin (None: conditional likelihood), rank."""

    k: int
    epsilon: float
    step: float
    tradeoff: float
    kappa: float
    margin: float | None = None
    rank: int = 25


SETTINGS = {
    row: {int(count): Published(**own) for count, own in counts.items()}
    for row, counts in base.ENTRIES["few_labels"].items()
}
ROWS = ("SV (LM)", "SSL (LM)", "SV (CLL)", "SSL (CLL)")
EM_START = "EM start of SSL (LM)"


def supervised_settings(n_labels: int, margin: float | None) -> list[Published]:
    """Components per digit and epsilon of the supervised rows; trade-off 0.1, step size 1e-4, margin of LM 10."""
    counts = (1, 3) if n_labels <= 250 else (1, 5)
    return [Published(k, epsilon, 1e-4, 0.1, 1.0, margin) for k in counts for epsilon in (0.1, 0.3)]


def start_of(x: torch.Tensor, labels: torch.Tensor, own: Published, seed: int, plain: bool = True) -> Mixture:
    """EM on the labeled samples of each digit."""
    parts = []
    for c in range(N_CLASSES):
        rows = x[labels == c]
        model = GaussianMixture(
            min(own.k, len(rows)), reg_covar=own.epsilon, max_iter=500, n_init=N_STARTS, random_state=seed
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parts.append(model.fit(rows).mixture_)
    mixture = base.joined(parts)
    start = base.plain(mixture, own.rank, own.epsilon)
    covariance = start.covariance
    return start if plain else replace(start, covariance=LowRankCovariance(covariance.diagonals, covariance.columns))  # pyright: ignore


def trained(
    data: Data, labels: torch.Tensor, own: Published, seed: int, start: Mixture, epochs: int, batch_size: int = 100
) -> dict[str, Any]:
    """Adam on lambda (kappa log p(x, c) + (1 - kappa) log p(x)) + (1 - lambda) discriminative, errors in per cent."""
    x = data["train"][0]
    rows = slice(None) if own.kappa < 1 else labels >= 0
    weight = own.tradeoff * own.kappa  # the scale of the objective does not matter to Adam
    tradeoff, unlabeled = weight / (weight + 1 - own.tradeoff), (1 - own.kappa) / own.kappa
    other = Conditional() if own.margin is None else Margin(own.margin)
    solver = Gradient(
        optimiser="adam",
        learning_rate=own.step,
        batch_size=batch_size,
        units=Units(torch.zeros_like(x[0]), torch.ones_like(x[0])),
        floor=own.epsilon,
    )
    problem = Problem.from_samples(x[rows], labels[rows], Hybrid(tradeoff, other, unlabeled), seed=seed)
    judge = EarlyStopping(lambda m: -base.error(m, data["validation"]), interval=SHOWN_EVERY, patience=10**6)
    began = time.perf_counter()
    result = run(solver, problem, start, epochs, 0.0, held_out=judge)
    errors = base.errors(result.mixture, data)
    curve = [round(-score[0] if isinstance(score, tuple) else -score, 2) for _, score in result.scores]
    seconds = time.perf_counter() - began
    return {**errors, "epoch": result.best_iteration, "epochs": epochs, "seconds": seconds, "curve": curve}


def subset_of(data: Data, n_labels: int, subset: str) -> torch.Tensor:
    """Labels of a random subset, -1 elsewhere: that of the paper, or by torch."""
    y = data["train"][1]
    if subset == PAPER:
        order = torch.from_numpy(np.random.RandomState(1).permutation(len(y))).to(y.device)
    else:
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1 + int(subset))).to(y.device)
    labels = torch.full_like(y, -1)
    labels[order[:n_labels]] = y[order[:n_labels]]
    return labels


def seed_of(subset: str) -> int:
    return 0 if subset == PAPER else int(subset)


def settings_of(row: str, n_labels: int) -> Published:
    """The published ones of the next number of labels."""
    return SETTINGS[row][min(n for n in SETTINGS[row] if n >= n_labels)]


def keep(options: Options, n_labels: int, row: str, subset: str, record: dict[str, Any]) -> None:
    base.keep(options, "few labels", f"{n_labels}: {row}", subset, record)


def semi_supervised(data: Data, row: str, n_labels: int, subset: str, options: Options) -> None:
    """With the published settings."""
    plain = not row.endswith(TRIANGULAR)
    own, labels = settings_of(row.removesuffix(TRIANGULAR), n_labels), subset_of(data, n_labels, subset)
    start = start_of(data["train"][0], labels, own, seed_of(subset), plain)
    keep(options, n_labels, row, subset, trained(data, labels, own, seed_of(subset), start, epochs_of(options)))


def em_start(data: Data, row: str, n_labels: int, subset: str, options: Options) -> None:
    """The start of SSL (LM) itself, which shows how much labeled subsets differ."""
    own, labels = settings_of("SSL (LM)", n_labels), subset_of(data, n_labels, subset)
    start = start_of(data["train"][0], labels, own, seed_of(subset))
    keep(options, n_labels, row, subset, base.errors(start, data))


def supervised(data: Data, row: str, n_labels: int, subset: str, options: Options) -> None:
    """Labeled samples alone; validation samples choose components, epsilon and epoch."""
    settings = supervised_settings(n_labels, 10.0 if row == "SV (LM)" else None)
    labels, trials = subset_of(data, n_labels, subset), []
    batch_size = BATCHES[min(n for n in BATCHES if n >= n_labels)]
    for own in settings[:1] if options.quick else settings:
        start = start_of(data["train"][0], labels, own, seed_of(subset))
        record = trained(data, labels, own, seed_of(subset), start, epochs_of(options), batch_size)
        trials.append({**record, "setting": [own.k, own.epsilon]})
    best = min(trials, key=lambda record: record["validation"])
    keep(options, n_labels, row, subset, {**best, "trials": len(trials), "batch": batch_size})


def epochs_of(options: Options) -> int:
    return 1 if options.quick else EPOCHS


def compute(options: Options) -> None:
    """The cells that are missing, or the one that `--cell` names, "100: SSL (LM)"."""
    data = base.data_of("MNIST (pca50)", options.device)
    subsets = [PAPER, *map(str, range(options.n_seeds(N_SUBSETS) - 1))]
    cells = {f"{count}: {row}": (count, row) for count in BATCHES for row in (*ROWS, EM_START)}
    if options.quick:
        cells = {f"200: {row}": (200, row) for row in ROWS}
    for key, (count, row) in options.named(cells).items():
        for subset in subsets:
            if base.is_missing(options, "few labels", key, subset):
                method = em_start if row == EM_START else supervised if row.startswith("SV") else semi_supervised
                method(data, row, count, subset, options)
