"""Settings of table 1 of RPTP18, chosen on validation rows: python -m reproduce.hybrid_search STAGE TABLE [options].

Stages, each of which goes on from what hybrid*.json in results/ and in --out hold:
    generative  fits of many sizes; every digit takes the size with which validation errors are fewest (LL);
    averaged    averages of several starts, one size for all digits;
    search      trials of trade-off, margin, step size, start and schedule, spread evenly, until --seconds are over;
    refine      trials near the best ones;
    listed      the trials of TRIALS, suggested by the results of the others;
    raced       those of the numbers in RACES, with several seeds each;
    final       the best settings with --seeds, and their test errors;
    merge       (FOLDER FILE) what the files of a folder hold, as one file.
Test rows are read by the generative stages, which choose without them, and by `final` alone.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from mixtura.covariances import COVARIANCES, FullCovariance, LowRankCovariance
from mixtura.engine.passes import map_rows
from mixtura.engine.sources import TensorSource
from mixtura.model.mixture import Mixture
from mixtura.objectives import class_log_joint
from reproduce import hybrid as base
from reproduce.hybrid import RUN, Settings
from reproduce.stamps import RESULTS

ROWS = ("LL+LM", "LM", "LL+CLL", "CLL")
NEAR, LISTED = 1000, 2000  # numbers of trials near the best, and of those in TRIALS
SEARCH_SEED = 100  # of starts and minibatches in the search; those of the final runs are others
RACE_SEEDS = (100, 101, 102)


# ---- what is searched ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """Components per digit and prior (strength, variance) of the generative start; None: ridge, as for pixels.

    `hybrid` is the structure of the hybrids that start there, if it is not that of the table. `n_averaged` fits are
    averaged, each with a part of the weight: a mixture of so many times the components. `rank` is that of the hybrids,
    if it is not that of the table, and `epsilon` is added to the variances of pixels.
    """

    k: tuple[int, ...]
    prior: tuple[float, float] | None = None
    covariance: str = "full"
    hybrid: str | None = None
    n_averaged: int = 1
    rank: int | None = None
    epsilon: float = 0.1


@dataclass(frozen=True)
class Space:
    """A table: its rows of data, starts, the structure of the hybrids, and between which ends settings are drawn."""

    table: str
    make: Callable[[], dict[str, Any]]
    starts: dict[str, Start]
    kind: str
    rank: int
    margins: tuple[float, float]
    steps: tuple[float, float]
    epochs: int
    options: tuple[Start, ...] = ()  # for the generative row
    n_starts: int = 2
    one_seed: bool = False  # whether the chosen trial itself gives the test error

    @cached_property
    def data(self) -> dict[str, Any]:
        return self.make()


def each(count: int) -> tuple[int, ...]:
    return (count,) * 10


def grid(counts: tuple[int, ...], priors: tuple[tuple[float, float], ...], kind: str) -> tuple[Start, ...]:
    return tuple(Start(each(k), prior, kind) for k in counts for prior in priors)


BASIC = (6, 19, 20, 4, 13, 4, 9, 6, 7, 7)  # published for Basic (pca50)
FULL_OPTIONS = grid((10, 15, 20, 30, 40), ((20.0, 0.3), (50.0, 0.3)), "full")
DIAGONAL_OPTIONS = grid((60, 100, 150, 200, 300), ((1.0, 0.5), (4.0, 0.5), (4.0, 0.3)), "diag")
VARIANT_OPTIONS = grid((2, 4, 7, 10, 15, 20), ((50.0, 0.3), (100.0, 0.3), (100.0, 0.6)), "full")


# Components per digit that `generative` chose.
CHOSEN = {
    "basic": (15, 7, 7, 4, 4, 4, 4, 10, 4, 20),
    "rotated": (10, 4, 10, 7, 15, 4, 10, 15, 10, 15),
    "random": (2, 4, 4, 7, 2, 4, 4, 7, 4, 4),
}


AVERAGED = {
    "MNIST (pca50)": tuple(Start(each(k), (50.0, 0.3), n_averaged=5) for k in (15, 20, 30)),
    "MNIST (pca50), diagonal": (Start(each(100), (1.0, 0.5), "diag", n_averaged=5),),
    **{f"{name} (pca50)": (Start(k, (50.0, 0.3), n_averaged=5),) for name, k in CHOSEN.items()},
}


def of_variant(name: str) -> Space:
    starts = {
        "published": Start(BASIC, (100.0, 0.3)),
        "4 each": Start(each(4), (50.0, 0.3)),
        "10 each": Start(each(10), (100.0, 0.3)),
        "full": Start(CHOSEN[name], (50.0, 0.3), hybrid="full"),
        "averaged": Start(CHOSEN[name], (50.0, 0.3), hybrid="full", n_averaged=3),
    }
    return Space(
        f"{name} (pca50)",
        lambda: base.projected(base.variant(name)),
        starts,
        "low_rank_precision",
        24,
        (3.0, 100.0),
        (1e-4, 1e-2),
        60,
        VARIANT_OPTIONS,
    )


SPACES = [
    Space(
        "MNIST",
        base.pixels,
        {
            "full": Start(base.PIXELS["margin"].k),
            "low rank": Start(base.PIXELS["margin"].k, covariance="low_rank"),
            "averaged": Start(base.PIXELS["margin"].k, n_averaged=2),
            "30 each": Start(each(30)),
            "three averaged": Start(base.PIXELS["margin"].k, n_averaged=3),
            "rank 50": Start(base.PIXELS["margin"].k, rank=50),
            "rank 50, averaged": Start(base.PIXELS["margin"].k, rank=50, n_averaged=2),
            "epsilon 0.2": Start(base.PIXELS["margin"].k, epsilon=0.2),
            "epsilon 0.05": Start(base.PIXELS["margin"].k, epsilon=0.05),
            "rank 50, epsilon 0.05": Start(base.PIXELS["margin"].k, rank=50, epsilon=0.05),
            "rank 50, epsilon 0.03": Start(base.PIXELS["margin"].k, rank=50, epsilon=0.03),
            "rank 50, epsilon 0.05, averaged": Start(base.PIXELS["margin"].k, rank=50, epsilon=0.05, n_averaged=2),
            "rank 100, epsilon 0.05": Start(base.PIXELS["margin"].k, rank=100, epsilon=0.05),
            "rank 100, epsilon 0.03": Start(base.PIXELS["margin"].k, rank=100, epsilon=0.03),
            "10 each, rank 50, epsilon 0.05": Start(each(10), rank=50, epsilon=0.05),
            "6 each, rank 50, epsilon 0.05": Start(each(6), rank=50, epsilon=0.05),
        },
        "low_rank",
        25,
        (6.0, 60.0),
        (3e-5, 5e-4),
        15,
    ),
    Space(
        "MNIST (pca50)",
        lambda: base.projected(base.pixels()),
        {
            "published": Start(base.PCA50["margin"].k, (100.0, 0.3)),
            "15 each": Start(each(15), (50.0, 0.3)),
            "30 each": Start(each(30), (50.0, 0.3)),
            "full, 15 each": Start(each(15), (50.0, 0.3), hybrid="full"),
            "averaged": Start(each(15), (50.0, 0.3), hybrid="full", n_averaged=3),
        },
        "low_rank_precision",
        25,
        (3.0, 100.0),
        (1e-4, 5e-3),
        25,
        FULL_OPTIONS,
    ),
    Space(
        "MNIST (pca50), diagonal",
        lambda: base.projected(base.pixels()),
        {
            "published": Start(base.DIAGONAL["margin"].k, (10.0, 0.3), "diag"),
            "100 each": Start(each(100), (1.0, 0.5), "diag"),
            "150 each": Start(each(150), (1.0, 0.5), "diag"),
            "250 each": Start(each(250), (4.0, 0.5), "diag"),
        },
        "diag",
        1,
        (5.0, 200.0),
        (1e-3, 2e-2),
        40,
        DIAGONAL_OPTIONS,
    ),
    *(of_variant(name) for name in ("basic", "rotated", "random")),
    Space(
        "CIFAR-10 (pca50)",
        base.cifar,
        {
            **{f"{k} each": Start(each(k), (50.0, 0.3)) for k in (5, 10, 20)},
            "full": Start(each(10), (50.0, 0.3), hybrid="full"),
        },
        "low_rank_precision",
        25,
        (3.0, 100.0),
        (1e-4, 5e-3),
        15,
        grid((5, 10, 20), ((50.0, 0.3),), "full"),
        n_starts=1,
        one_seed=True,
    ),
    Space(
        "CIFAR-10 (pca50), diagonal",
        base.cifar,
        {f"{k} each": Start(each(k), (4.0, 0.5), "diag") for k in (20, 50, 100)},
        "diag",
        1,
        (3.0, 100.0),
        (1e-3, 2e-2),
        20,
        grid((20, 50), ((4.0, 0.5),), "diag"),
        n_starts=1,
        one_seed=True,
    ),
]
SPACE = {space.table: space for space in SPACES}


# Start, trade-off, margin, step, weight of a step in the moving average, epochs; the step size falls along a cosine.
Trial = tuple[str, float, float | None, float, float, int]
OF_VARIANTS: dict[str, list[Trial]] = {
    "LL+LM": [
        ("full", 0.3, 30.0, 5e-4, 1.0, 40),
        ("full", 0.3, 60.0, 1e-3, 1.0, 40),
        ("full", 0.6, 30.0, 3e-4, 1.0, 40),
        ("averaged", 0.3, 30.0, 5e-4, 1.0, 40),
        ("full", 0.05, 30.0, 3e-4, 1.0, 40),
        ("averaged", 0.6, 60.0, 5e-4, 1.0, 40),
    ],
    "LM": [
        ("full", 0.0, 15.0, 1e-4, 1.0, 20),
        ("full", 0.0, 30.0, 3e-4, 1.0, 20),
        ("averaged", 0.0, 30.0, 3e-4, 1.0, 20),
        ("full", 0.0, 50.0, 6e-4, 1.0, 20),
    ],
    "LL+CLL": [
        ("full", 0.5, None, 2e-4, 1.0, 40),
        ("full", 0.9, None, 2e-4, 1.0, 40),
        ("averaged", 0.5, None, 2e-4, 1.0, 40),
    ],
    "CLL": [
        ("full", 0.0, None, 1e-4, 1.0, 20),
        ("full", 0.0, None, 3e-5, 1.0, 20),
        ("averaged", 0.0, None, 5e-5, 1.0, 20),
    ],
}
TRIALS: dict[str, dict[str, list[Trial]]] = {
    "MNIST": {
        "LM": [
            ("full", 0.0, 30.0, 4e-4, 0.01, 8),
            ("averaged", 0.0, 30.0, 2.6e-4, 1.0, 8),
            ("full", 0.0, 40.0, 4e-4, 1.0, 8),
            ("averaged", 0.0, 40.0, 4e-4, 0.01, 8),
            ("full", 0.0, 50.0, 6e-4, 0.01, 15),
            ("rank 50", 0.0, 30.0, 4e-4, 0.01, 8),
            ("30 each", 0.0, 30.0, 4e-4, 0.01, 8),
            ("epsilon 0.05", 0.0, 50.0, 4e-4, 0.01, 8),
            ("epsilon 0.2", 0.0, 20.0, 4e-4, 0.01, 8),
            ("three averaged", 0.0, 40.0, 4e-4, 0.01, 8),
            ("rank 50, epsilon 0.05", 0.0, 50.0, 4e-4, 0.01, 8),
            ("rank 50", 0.0, 40.0, 8e-4, 0.01, 8),
            ("30 each", 0.0, 40.0, 8e-4, 0.01, 8),
            ("epsilon 0.05", 0.0, 80.0, 8e-4, 0.01, 8),
            ("epsilon 0.2", 0.0, 20.0, 8e-4, 0.01, 8),
            ("rank 50, averaged", 0.0, 40.0, 4e-4, 0.01, 8),
            ("rank 50, epsilon 0.05", 0.0, 80.0, 8e-4, 0.01, 8),
            ("rank 50", 0.0, 30.0, 8e-4, 0.003, 12),
            ("three averaged", 0.0, 60.0, 8e-4, 0.01, 8),
            ("rank 50, epsilon 0.03", 0.0, 80.0, 4e-4, 0.01, 8),
            ("full", 0.0, 30.0, 8e-4, 0.003, 12),
            ("rank 50, averaged", 0.0, 60.0, 8e-4, 0.01, 8),
            ("rank 50, epsilon 0.03", 0.0, 120.0, 8e-4, 0.01, 8),
            ("full", 0.0, 40.0, 1.2e-3, 0.01, 12),
            ("rank 50, epsilon 0.05, averaged", 0.0, 50.0, 4e-4, 0.01, 8),
            ("rank 100, epsilon 0.05", 0.0, 50.0, 4e-4, 0.01, 8),
            ("rank 50, epsilon 0.05", 0.0, 65.0, 6e-4, 0.01, 8),
            ("rank 100, epsilon 0.03", 0.0, 80.0, 4e-4, 0.01, 8),
            ("rank 50, epsilon 0.05, averaged", 0.0, 80.0, 8e-4, 0.01, 8),
            ("rank 100, epsilon 0.05", 0.0, 80.0, 8e-4, 0.01, 8),
            ("rank 50, epsilon 0.05", 0.0, 50.0, 3e-4, 0.01, 12),
            ("rank 100, epsilon 0.03", 0.0, 60.0, 3e-4, 0.01, 8),
            ("rank 50, epsilon 0.05, averaged", 0.0, 65.0, 4e-4, 0.01, 12),
            ("rank 100, epsilon 0.05", 0.0, 65.0, 4e-4, 0.01, 12),
            ("rank 50, epsilon 0.05", 0.0, 40.0, 3e-4, 0.01, 8),
            ("rank 50, epsilon 0.03", 0.0, 60.0, 3e-4, 0.01, 8),
            ("rank 50, epsilon 0.05, averaged", 0.0, 65.0, 6e-4, 0.003, 12),
            ("rank 100, epsilon 0.05", 0.0, 65.0, 6e-4, 0.003, 12),
            ("10 each, rank 50, epsilon 0.05", 0.0, 50.0, 4e-4, 0.01, 8),
            ("6 each, rank 50, epsilon 0.05", 0.0, 50.0, 4e-4, 0.01, 8),
            ("10 each, rank 50, epsilon 0.05", 0.0, 80.0, 8e-4, 0.003, 8),
            ("rank 50, epsilon 0.05", 0.0, 40.0, 3e-4, 0.003, 8),
            ("rank 50, epsilon 0.05", 0.0, 60.0, 2e-4, 0.01, 6),
        ],
        "LL+LM": [
            ("full", 0.08, 60.0, 4e-4, 1.0, 30),
            ("full", 0.25, 60.0, 4e-4, 1.0, 30),
            ("averaged", 0.2, 60.0, 4e-4, 1.0, 25),
            ("full", 0.08, 40.0, 3e-4, 1.0, 25),
            ("full", 0.25, 100.0, 5e-4, 1.0, 40),
            ("averaged", 0.08, 40.0, 3e-4, 1.0, 20),
            ("rank 50, epsilon 0.05", 0.08, 80.0, 4e-4, 0.01, 15),
            ("rank 50, epsilon 0.05, averaged", 0.08, 80.0, 4e-4, 0.01, 15),
            ("rank 100, epsilon 0.05", 0.08, 80.0, 4e-4, 0.01, 15),
        ],
        "LL+CLL": [
            ("rank 50, epsilon 0.05", 0.08, None, 1e-4, 0.01, 15),
            ("rank 50, epsilon 0.05, averaged", 0.08, None, 2e-4, 0.01, 15),
            ("rank 100, epsilon 0.05", 0.01, None, 2e-4, 0.01, 15),
        ],
        "CLL": [
            ("rank 50, epsilon 0.05", 0.0, None, 2e-4, 0.01, 8),
            ("rank 50, epsilon 0.05, averaged", 0.0, None, 1e-4, 0.01, 8),
            ("rank 100, epsilon 0.05", 0.0, None, 1e-4, 0.01, 8),
        ],
    },
    "MNIST (pca50)": {
        "LL+LM": [
            ("full, 15 each", 0.3, 30.0, 5e-4, 1.0, 15),
            ("averaged", 0.3, 60.0, 1e-3, 1.0, 15),
            ("published", 0.25, 60.0, 2e-3, 1.0, 20),
            ("full, 15 each", 0.3, 60.0, 1e-3, 1.0, 15),
            ("averaged", 0.3, 30.0, 5e-4, 1.0, 15),
            ("full, 15 each", 0.1, 30.0, 5e-4, 1.0, 15),
        ],
        "LM": [
            ("full, 15 each", 0.0, 30.0, 2e-4, 1.0, 10),
            ("full, 15 each", 0.0, 15.0, 1e-4, 1.0, 10),
            ("averaged", 0.0, 20.0, 2e-4, 1.0, 10),
            ("full, 15 each", 0.0, 45.0, 5e-4, 1.0, 10),
        ],
        "LL+CLL": [
            ("full, 15 each", 0.5, None, 3e-4, 1.0, 15),
            ("full, 15 each", 0.1, None, 1e-4, 1.0, 10),
            ("averaged", 0.5, None, 2e-4, 1.0, 10),
        ],
        "CLL": [
            ("full, 15 each", 0.0, None, 3e-5, 1.0, 10),
            ("full, 15 each", 0.0, None, 1e-4, 1.0, 10),
            ("averaged", 0.0, None, 5e-5, 1.0, 10),
        ],
    },
    "MNIST (pca50), diagonal": {
        "LM": [
            ("250 each", 0.0, 90.0, 1.8e-2, 0.01, 40),
            ("150 each", 0.0, 130.0, 2e-2, 0.01, 40),
        ],
        "LL+LM": [
            ("150 each", 0.01, 90.0, 1.8e-2, 0.01, 40),
            ("150 each", 0.05, 90.0, 1.8e-2, 0.01, 40),
            ("250 each", 0.05, 90.0, 1.8e-2, 0.01, 40),
        ],
    },
    # The settings that MNIST (pca50) has chosen, and of the diagonal model those of MNIST (pca50), diagonal: one trial.
    "CIFAR-10 (pca50)": {
        "LL+LM": [("full", 0.3, 60.0, 1e-3, 1.0, 10)],
        "LM": [("full", 0.0, 20.0, 2e-4, 1.0, 10)],
        "LL+CLL": [("full", 0.5, None, 2e-4, 1.0, 10)],
        "CLL": [("full", 0.0, None, 5e-5, 1.0, 10)],
    },
    "CIFAR-10 (pca50), diagonal": {
        "LL+LM": [("50 each", 0.01, 90.0, 1.8e-2, 0.01, 10)],
        "LM": [("50 each", 0.0, 130.0, 2e-2, 0.01, 10)],
        "LL+CLL": [("50 each", 0.074, None, 1e-2, 0.01, 10)],
        "CLL": [("50 each", 0.0, None, 1.2e-2, 0.01, 10)],
    },
    **{f"{name} (pca50)": OF_VARIANTS for name in ("basic", "rotated", "random")},
}


# Listed trials that were near the best with one seed, and those that they suggested.
RACES = {("MNIST", "LM"): [2010, 2038, 2034, 2016, 2041, 2039, 2042, 2033, 2040]}


def drawn(space: Space, row: str, number: int) -> tuple[str, Settings, int]:
    """Start, settings, epochs: points that fill the space evenly; from 1000 on near the best, from 2000 on listed."""
    if number >= LISTED:
        return listed(space, row, number - LISTED)
    place = torch.quasirandom.SobolEngine(6, scramble=True, seed=len(row)).draw(number % NEAR + 1)[-1].tolist()
    if number >= NEAR:
        return near(space, row, place, number)
    margin, step = between(place[0], space.margins), between(place[1], space.steps)
    tradeoff = 1 / (1 + math.exp(7 - 9 * place[2])) if row.startswith("LL") else 0.0  # logits from -7 to 2
    names = [name for name in space.starts if wanted_start(name)]
    decay, averaging = ((True, 1.0), (True, 0.01), (False, 0.002))[int(3 * place[3])]
    name = names[int(len(names) * place[4])]
    own = of_start(space, name, step, tradeoff, margin, decay, averaging)
    return name, own if row.endswith("LM") else replace(own, margin=None), space.epochs


def listed(space: Space, row: str, number: int) -> tuple[str, Settings, int]:
    name, tradeoff, margin, step, averaging, epochs = TRIALS[space.table][row][number]
    return name, of_start(space, name, step, tradeoff, margin, True, averaging), epochs


def of_start(
    space: Space, name: str, step: float, tradeoff: float, margin: float | None, decay: bool, averaging: float
) -> Settings:
    start = space.starts[name]
    return Settings(start.k, step, tradeoff, start.rank or space.rank, margin, decay, averaging, start.epsilon)


def near(space: Space, row: str, place: list[float], number: int) -> tuple[str, Settings, int]:
    """One of the best three, a little changed."""
    places = ranked(trials(space, row))
    best = places[number % min(3, len(places))][1]
    own = Settings(**{**best["settings"], "k": tuple(best["settings"]["k"])})
    if own.margin is not None:
        own = replace(own, margin=own.margin * between(place[0], (0.6, 1.7)))
    if own.tradeoff > 0:
        logit = math.log(own.tradeoff / (1 - own.tradeoff)) + 2 * place[2] - 1
        own = replace(own, tradeoff=1 / (1 + math.exp(-logit)))
    return best["start"], replace(own, step=own.step * between(place[1], (0.6, 1.7))), best["epochs"]


def wanted_start(name: str) -> bool:
    """Whether --starts has it; without it all are."""
    return not RUN.starts or name in RUN.starts


def between(share: float, ends: tuple[float, float]) -> float:
    """A point between two ends on a log scale."""
    return ends[0] * (ends[1] / ends[0]) ** share


# ---- what is known ---------------------------------------------------------------------------------------------------


def known(*folders: Path) -> dict[str, Any]:
    """All results so far in some folders, or of this process and of the files of others."""
    usual = (RUN.folder,) if RUN.quick else (RUN.folder, RESULTS)
    record: dict[str, Any] = {}
    for path in sorted(path for folder in set(folders or usual) for path in folder.glob("hybrid*.json")):
        for table, rows in json.loads(path.read_text()).items():
            if table == "stamps":
                record.setdefault(table, []).extend(stamp for stamp in rows if stamp not in record[table])
            elif table == "versions":
                record.setdefault(table, {}).update(rows)
            else:
                for row, runs in rows.items():
                    record.setdefault(table, {}).setdefault(row, {}).update(runs)
    return record


def trials(space: Space, row: str) -> dict[str, Any]:
    return known().get(f"{space.table}, search", {}).get(row, {})


def ranked(runs: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Numbers of trials and the first run of each, with its mean validation error, the best first.

    Where some were run with several seeds, only those with the most seeds are compared.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for key, run in runs.items():
        groups.setdefault(key.partition("/")[0], []).append(run)
    most = max(map(len, groups.values()), default=0)
    means = {
        number: {**own[0], "validation": sum(run["validation"] for run in own) / most, "seeds": most}
        for number, own in groups.items()
        if len(own) == most
    }
    return sorted(means.items(), key=lambda item: item[1]["validation"])


def is_known(table: str, row: str, seed: Any) -> bool:
    return str(seed) in known().get(table, {}).get(row, {})


# ---- starts ----------------------------------------------------------------------------------------------------------


def fitted(space: Space, start: Start, seed: int) -> Mixture:
    """The mixture that EM fits from a start, or the average of those from several starts."""
    if start.n_averaged == 1:
        return fitted_once(space, start, seed)
    fits = [fitted_once(space, start, 1000 * (seed + 1) + number) for number in range(start.n_averaged)]
    classes = [
        [fit.select(torch.arange(*part.indices(10**9), device=fit.means.device)) for part in fit.class_slices]
        for fit in fits
    ]
    return base.joined([base.joined(list(parts)) for parts in zip(*classes, strict=True)])


def fitted_once(space: Space, start: Start, seed: int) -> Mixture:
    if start.prior is not None:
        return base.generative(space.data, start.k, start.covariance, 1, start.prior, seed)
    own = Settings(start.k, 0.0, 0.0, start.rank or space.rank, epsilon=start.epsilon)
    return base.generative_pixels(space.data, own, seed, start.covariance)


def prepared(space: Space, start: Start, mixture: Mixture) -> Mixture:
    """The mixture in the structure of the hybrids."""
    kind = start.hybrid or space.kind
    if kind == start.covariance:
        return mixture
    if kind == "low_rank":
        assert isinstance(mixture.covariance, FullCovariance)
        return replace(mixture, covariance=split(mixture.covariance, start.rank or space.rank, start.epsilon))
    structure: Any = COVARIANCES[kind](space.rank)
    return replace(mixture, covariance=structure.converted(mixture.covariance))


def split(covariance: FullCovariance, rank: int, epsilon: float) -> LowRankCovariance:
    """Leading directions of the covariances less epsilon I; the diagonal that is left has at least epsilon."""
    diagonals, columns = [], []
    for matrix in covariance.dense():
        less = matrix - epsilon * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        values, vectors = torch.linalg.eigh(less)
        own = vectors[:, -rank:] * values[-rank:].clamp_min(0).sqrt()
        columns.append(own)
        diagonals.append((less.diagonal() - own.square().sum(-1)).clamp_min(0) + epsilon * (1 + 1e-6))
    return LowRankCovariance(torch.stack(diagonals), torch.stack(columns))


# ---- generative rows -------------------------------------------------------------------------------------------------


def class_log_joints(mixture: Mixture, rows: torch.Tensor) -> torch.Tensor:
    """(n, C)"""
    source = TensorSource(rows)
    limit = 8 * 2**30 if rows.device.type == "cuda" else 2**28
    with torch.no_grad():
        return map_rows(mixture, source, lambda a: class_log_joint(a, mixture.class_sizes).T, limit)


def errors(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """In per cent, with the log-loss as a small part, so that equal errors are ranked by it."""
    wrong = (scores.argmax(1) != labels).double().mean()
    own = scores.gather(1, labels.unsqueeze(1))[:, 0] - scores.logsumexp(1)
    return 100 * float(wrong) - 1e-3 * float(own.mean())


def chosen(tables: list[torch.Tensor], labels: torch.Tensor) -> list[int]:
    """The option of every class with which the errors are fewest: coordinates one after the other.

    Every start has a table (options, n, C): log joints of the rows under every option.
    """

    def mean_error(picks: list[int]) -> float:
        index = torch.tensor(picks, device=labels.device)
        columns = torch.arange(len(picks), device=labels.device)
        return sum(errors(table[index, :, columns].T, labels) for table in tables) / len(tables)

    n_options, _, n_classes = tables[0].shape
    best = min(([option] * n_classes for option in range(n_options)), key=mean_error)
    value, improved = mean_error(best), True
    while improved:
        improved = False
        for c in range(n_classes):
            for option in range(n_options):
                trial = [*best[:c], option, *best[c + 1 :]]
                mean = mean_error(trial)
                if mean < value - 1e-9:
                    best, value, improved = trial, mean, True
    return best


def generative(space: Space) -> None:
    """LL with sizes by validation: one choice for all starts, by their mean error."""
    row = "LL, sizes by validation"
    if all(is_known(space.table, row, seed) for seed in RUN.seeds):
        return
    parts = ("validation", "test")
    scores: dict[str, list[torch.Tensor]] = {name: [] for name in parts}
    seeds, first = [], time.time()
    for seed in RUN.seeds:
        if seeds and time.time() + (time.time() - first) / len(seeds) > RUN.end:
            break
        seeds.append(seed)
        errors: dict[str, list[torch.Tensor]] = {name: [] for name in parts}
        for option in space.options:
            began = time.perf_counter()
            mixture = likeliest(space, option, seed)
            for name in parts:
                errors[name].append(class_log_joints(mixture, space.data[name][0]))
            print(space.table, seed, option.k[0], option.prior, f"{time.perf_counter() - began:.1f} s", flush=True)
        for name in parts:
            scores[name].append(torch.stack(errors[name]))
    y = space.data["validation"][1]
    picks = chosen(scores["validation"], y)
    halves = halved(scores["validation"], y)
    named = [[space.options[pick].k[0], space.options[pick].prior] for pick in picks]
    for seed, validation, test in zip(seeds, scores["validation"], scores["test"], strict=True):
        columns = torch.arange(10, device=y.device)
        index = torch.tensor(picks, device=y.device)
        kept = {"chosen": named, "validation of the other half": halves}
        for name, table in (("validation", validation), ("test", test)):
            labels = space.data[name][1]
            kept[name] = 100 * float((table[index, :, columns].T.argmax(1) != labels).double().mean())
        base.keep(space.table, row, seed, kept)


def generative_averaged(space: Space) -> None:
    """LL of averages over starts (OT95), which are mixtures again: the size by the mean validation error."""
    row, options, record = "LL, average of 5 starts", AVERAGED[space.table], {}
    for option in options:
        for seed in RUN.seeds:
            if time.time() > RUN.end or is_known(space.table, row, seed):
                return
            mixture = fitted(space, option, seed)
            record[option, seed] = {name: base.error(mixture, space.data[name]) for name in ("validation", "test")}
            print(row, option, seed, record[option, seed]["validation"], flush=True)
    means = {o: sum(record[o, seed]["validation"] for seed in RUN.seeds) / len(RUN.seeds) for o in options}
    best = min(options, key=lambda option: means[option])
    compared = [[o.k[0], o.n_averaged, value] for o, value in means.items()]
    for seed in RUN.seeds:
        own = {"chosen": [best.k[0], best.n_averaged], "compared": compared}
        base.keep(space.table, row, seed, {**record[best, seed], **own})


def likeliest(space: Space, option: Start, seed: int) -> Mixture:
    """The mixture of every digit that is likeliest on the training rows, of a few starts."""
    x, y = space.data["train"]
    best: list[tuple[float, Mixture]] = []
    for start in range(space.n_starts):
        mixture = fitted(space, option, space.n_starts * seed + start)
        own = class_log_joints(mixture, x).gather(1, y.unsqueeze(1))[:, 0]
        for c, part in enumerate(mixture.class_slices):
            value, members = float(own[y == c].mean()), torch.arange(part.start, part.stop, device=y.device)
            single = mixture.select(members)
            if start == 0:
                best.append((value, single))
            elif value > best[c][0]:
                best[c] = (value, single)
    return base.joined([single for _, single in best])


def halved(tables: list[torch.Tensor], labels: torch.Tensor) -> float:
    """Chosen on one half of the validation rows, the error on the other: what the choice is worth."""
    trials = []
    half = torch.arange(len(labels), device=labels.device) % 2 == 0
    for own, other in ((half, ~half), (~half, half)):
        picks = torch.tensor(chosen([table[:, own] for table in tables], labels[own]), device=labels.device)
        columns = torch.arange(len(picks), device=labels.device)
        trials += [errors(table[:, other][picks, :, columns].T, labels[other]) for table in tables]
    return sum(trials) / len(trials)


# ---- trials ----------------------------------------------------------------------------------------------------------


class Searcher:
    """Trials of one table; starts are made once."""

    def __init__(self, space: Space):
        self.space = space
        self.starts: dict[tuple[str, int], Mixture] = {}

    def start(self, name: str, seed: int) -> Mixture:
        if (name, seed) not in self.starts:
            start = self.space.starts[name]
            self.starts[name, seed] = prepared(self.space, start, fitted(self.space, start, seed))
        return self.starts[name, seed]

    def trial(self, row: str, number: int, seed: int = SEARCH_SEED) -> None:
        name, own, epochs = drawn(self.space, row, number)
        try:
            record = self.run(name, own, epochs, seed, test=self.space.one_seed)
        except FloatingPointError as error:
            record = {"validation": 100.0, "failed": str(error)}
        kept = {**record, "start": name, "settings": asdict(own), "epochs": epochs}
        key: Any = number if seed == SEARCH_SEED else f"{number}/{seed}"
        base.keep(f"{self.space.table}, search", row, key, kept)

    def run(self, name: str, own: Settings, epochs: int, seed: int, test: bool) -> dict[str, Any]:
        return base.hybrid(self.space.data, self.start(name, seed), own, own.tradeoff, seed, epochs, test)[1]

    def listed(self, rows: list[str], first: int, stride: int) -> None:
        """The trials of TRIALS, those of the rows in turn, while there is time for another."""
        wanted = {row: TRIALS[self.space.table].get(row, []) for row in rows}
        numbers = [(n, row) for row in rows for n, trial in enumerate(wanted[row]) if wanted_start(trial[0])]
        longest = 0.0
        for number, row in sorted(numbers)[first::stride]:
            began = time.time()
            if began + longest < RUN.end and not is_known(f"{self.space.table}, search", row, LISTED + number):
                self.trial(row, LISTED + number)
                longest = max(longest, time.time() - began)

    def raced(self, row: str, seed: int, first: int, stride: int) -> None:
        """The trials of RACES with one seed."""
        for number in RACES[self.space.table, row][first::stride]:
            key = number if seed == SEARCH_SEED else f"{number}/{seed}"
            if not is_known(f"{self.space.table}, search", row, key):
                self.trial(row, number, seed)

    def search(self, rows: list[str], first: int, stride: int) -> None:
        """One trial of each row in turn, while there is time for another."""
        numbers = dict.fromkeys(rows, first)
        longest = 0.0
        while time.time() + longest < RUN.end:
            for row in rows:
                began = time.time()
                while is_known(f"{self.space.table}, search", row, numbers[row]):
                    numbers[row] += stride
                if began + longest < RUN.end:
                    self.trial(row, numbers[row])
                    longest = max(longest, time.time() - began)

    def final(self, rows: list[str]) -> None:
        if self.space.one_seed:
            for row in rows:
                for number, best in ranked(trials(self.space, row))[:1]:
                    base.keep(f"{self.space.table}, searched", row, SEARCH_SEED, {**best, "trial": number})
            return
        for seed in RUN.seeds:
            for row in rows:
                places = ranked(trials(self.space, row))
                done = known().get(f"{self.space.table}, searched", {}).get(row, {}).get(str(seed))
                if not (places or row == "LL") or (done and (row == "LL" or done["trial"] == places[0][0])):
                    continue
                if time.time() > RUN.end:
                    return
                if row == "LL":
                    self.generative(seed)
                    continue
                number, best = places[0]
                own = Settings(**{**best["settings"], "k": tuple(best["settings"]["k"])})
                record = self.run(best["start"], own, best["epochs"], seed, test=True)
                kept = {**record, "start": best["start"], "settings": asdict(own), "trial": number}
                base.keep(f"{self.space.table}, searched", row, seed, kept)

    def generative(self, seed: int) -> None:
        """LL of the first start."""
        data, mixture = self.space.data, fitted(self.space, next(iter(self.space.starts.values())), seed)
        errors = {name: base.error(mixture, data[name]) for name in ("validation", "test")}
        base.keep(f"{self.space.table}, searched", "LL", seed, errors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("stage", choices=[*STAGES, "merge"])
    parser.add_argument("table")
    parser.add_argument("file", nargs="?", type=Path)
    options = base.read_arguments(parser)
    if options.stage == "merge":
        options.file.write_text(json.dumps(known(Path(options.table)), indent=1) + "\n")
    else:
        STAGES[options.stage](SPACE[options.table], [row for row in RUN.rows if row in (*ROWS, "LL")])


def raced(space: Space, rows: list[str]) -> None:
    for seed in RACE_SEEDS:
        if seed in RUN.seeds:
            Searcher(space).raced(rows[0], seed, RUN.first, RUN.stride)


def listed_trials(space: Space, rows: list[str]) -> None:
    """Listed trials; of a table with one seed the best of them is the final run too."""
    searcher = Searcher(space)
    searcher.listed(rows, RUN.first, RUN.stride)
    if space.one_seed:
        searcher.final(rows)


STAGES: dict[str, Callable[[Space, list[str]], None]] = {
    "generative": lambda space, rows: generative(space),
    "averaged": lambda space, rows: generative_averaged(space),
    "search": lambda space, rows: Searcher(space).search(rows, RUN.first, RUN.stride),
    "refine": lambda space, rows: Searcher(space).search(rows, RUN.first + NEAR, RUN.stride),
    "listed": listed_trials,
    "raced": raced,
    "final": lambda space, rows: Searcher(space).final(rows),
}


if __name__ == "__main__":
    main()
