"""Table 1 of Roth, Peharz, Tschiatschek & Pernkopf (2018): python -m reproduce rptp18-table1 [--cell "TABLE, ROW"].

Cells have the published settings (of the authors' program, where the paper is silent), or settings that the validation
samples chose (TABLE ends with ", searched"; studies/hybrid_search.py). Test samples are used for errors only. As in the
paper an error is that of the epoch with the best validation error. Each run is added to hybrid.json at once, and a run
that is there is not repeated; reproduce.hybrid_tables writes hybrid.md.
"""

from __future__ import annotations

import json
import platform
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mixtura
from mixtura import GaussianMixture, MixtureClassifier
from mixtura.covariances import COVARIANCES, FullCovariance, LowRankCovariance
from mixtura.model.mixture import Mixture
from mixtura.objectives import Conditional, Hybrid, Margin
from mixtura.priors import Conjugate
from mixtura.solvers import EarlyStopping, Gradient, Problem, Units, run, score_classes
from reproduce.data import load
from reproduce.options import Options

EPOCHS = 100
N_SEEDS = 3
PARTS = ("train", "validation", "test")
Data = dict[str, tuple[torch.Tensor, torch.Tensor]]  # part -> samples and labels


# ---- settings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """Components per digit, step size, trade-off, rank, margin (None: conditional likelihood), and how steps are tamed.

    `decay` lets the step size fall along half a cosine; `averaging` is the weight of a step in a moving average.
    `epsilon` is added to every variance of a model of pixels.
    """

    k: tuple[int, ...]
    step: float
    tradeoff: float
    rank: int = 1
    margin: float | None = None
    decay: bool = False
    averaging: float = 1.0
    epsilon: float = 0.1


@dataclass(frozen=True)
class Start:
    """How EM fits the start of a hybrid, and the structure of the hybrid.

    `prior` has a strength and a variance of all features; without one epsilon is added to the variances in EM. The
    densities of `n_averaged` fits are averaged: a mixture of so many times the components.
    """

    k: tuple[int, ...]
    prior: tuple[float, float] | None = None
    em: str = "full"
    structure: str = "full"
    rank: int = 1
    epsilon: float = 0.1
    n_averaged: int = 1


@dataclass(frozen=True)
class Cell:
    """One row of a table of hybrid.json: a start, and the settings of training from it; None keeps the start."""

    start: Start
    settings: Settings | None = None
    epochs: int = EPOCHS
    seeds: tuple[int, ...] | None = None


def published_cells(plans: dict[str, Settings], em: str, structure: str, prior: Any = None) -> dict[str, Cell]:
    """LL, hybrids and discriminative fits; LM and CLL have the settings of the hybrids with a trade-off of 0."""
    cells = {}
    for kind, own in plans.items():
        start = Start(own.k, prior, em, structure, own.rank, own.epsilon)
        names = {"margin": ("LL", "LL+LM", "LM"), "conditional": ("LL (CLL)", "LL+CLL", "CLL")}[kind]
        settings = (None, own, replace(own, tradeoff=0.0))
        cells |= {name: Cell(start, setting) for name, setting in zip(names, settings, strict=True)}
    return cells


def read(kind: type, entry: dict[str, Any]) -> Any:
    """Settings or a start from an entry of hybrid.toml."""
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()})


def each(count: int) -> tuple[int, ...]:
    return (count,) * 10


ENTRIES = tomllib.loads((Path(__file__).parent / "hybrid.toml").read_text("utf-8"))
SETTINGS: dict[str, dict[str, Settings]] = {
    name: {kind: read(Settings, own) for kind, own in plans.items()} for name, plans in ENTRIES["settings"].items()
}
# Components per digit that validation samples chose for the variants, and the starts of chosen cells.
SIZES = {name: tuple(sizes) for name, sizes in ENTRIES["sizes"].items()}
STARTS: dict[str, Start] = {name: read(Start, own) for name, own in ENTRIES["starts"].items()}
OF_AVERAGE, ON_CPU = "LL, average of 5 starts", "MNIST (pca50), on a CPU"


def published_tables() -> dict[str, dict[str, Cell]]:
    """Tables with the settings of the authors' program."""
    tables: dict[str, dict[str, Cell]] = {}
    for entry in ENTRIES["published"]:
        prior = tuple(entry["prior"]) if "prior" in entry else None
        cells = published_cells(SETTINGS[entry["settings"]], entry["em"], entry["structure"], prior)
        for name in SIZES if "*" in entry["table"] else [""]:
            tables.setdefault(entry["table"].replace("*", name), {}).update(cells)
    return tables


def chosen_cell(entry: dict[str, Any]) -> Cell:
    """A start, what differs from it, and the training, if there is any."""
    entry = {"decay": True, **entry}
    start = STARTS[entry.pop("start")]
    if "each" in entry:
        entry["k"] = each(entry.pop("each"))
    if "sizes" in entry:
        entry["k"] = SIZES[entry.pop("sizes")]
    own = {field.name: entry.pop(field.name) for field in fields(Start) if field.name in entry}
    start, seeds, epochs = replace(start, **read(dict, own)), entry.pop("seeds", None), entry.pop("epochs", EPOCHS)
    if "step" not in entry:
        return Cell(start)
    settings = Settings(start.k, rank=start.rank, epsilon=start.epsilon, **entry)
    return Cell(start, settings, epochs, None if seeds is None else tuple(seeds))


PUBLISHED = published_tables()
CHOSEN = {table: {row: chosen_cell(own) for row, own in rows.items()} for table, rows in ENTRIES["chosen"].items()}
# LL of averages over five starts (Ormoneit & Tresp 1995), the start of most chosen cells with three.
AVERAGES = {
    "MNIST (pca50)": replace(STARTS["AVERAGE"], n_averaged=5),
    "MNIST (pca50), diagonal": replace(STARTS["OF_DIAGONAL"], k=each(100), n_averaged=5),
    **{f"{name} (pca50)": replace(STARTS["AVERAGE"], k=k, n_averaged=5) for name, k in SIZES.items()},
}
CELLS: dict[tuple[str, str], Cell] = {
    **{(table, row): cell for table, rows in PUBLISHED.items() for row, cell in rows.items()},
    **{(table, OF_AVERAGE): Cell(start) for table, start in AVERAGES.items()},
    **{(f"{table}, searched", row): cell for table, rows in CHOSEN.items() for row, cell in rows.items()},
}


# ---- data ------------------------------------------------------------------------------------------------------------


def split(rows: torch.Tensor, labels: torch.Tensor, sizes: tuple[int, int, int]) -> Data:
    """Training, validation and test rows one after the other."""
    x, y = rows.split(sizes), labels.split(sizes)
    return dict(zip(PARTS, zip(x, y, strict=True), strict=True))


def pixels(device: str) -> Data:
    """MNIST: the first 50000 train, the last 10000 of the training part validate."""
    data = load("mnist")
    rows = np.concatenate([data.X_train, data.X_test]).reshape(-1, 784) / 255.0
    labels = np.concatenate([data.y_train, data.y_test]).astype(np.int64)
    n_train, n_validation = len(data.y_train), len(data.y_train) // 6
    sizes = (n_train - n_validation, n_validation, len(data.y_test))
    return split(torch.from_numpy(rows).to(device), torch.from_numpy(labels).to(device), sizes)


def cifar(device: str) -> Data:
    """50 principal components of CIFAR-10, each divided by its standard deviation; the last 10000 validate."""
    data = load("cifar10_pca50")
    rows = torch.from_numpy(np.concatenate([data.X_train, data.X_test]).astype(np.float64)).to(device)
    labels = torch.from_numpy(np.concatenate([data.y_train, data.y_test]).astype(np.int64)).to(device)
    n_train, n_validation = len(data.y_train), len(data.y_train) // 5
    parts = split(rows, labels, (n_train - n_validation, n_validation, len(data.y_test)))
    x = parts["train"][0]
    return {name: ((own - x.mean(0)) / x.std(0), y) for name, (own, y) in parts.items()}


def projected(data: Data, n_components: int = 50) -> Data:
    """Principal components of the training rows, each divided by its standard deviation."""
    rows = data["train"][0]
    mean = rows.mean(0)
    values, vectors = torch.linalg.eigh((rows - mean).T @ (rows - mean) / len(rows))
    turn = vectors[:, -n_components:].flip(1) / values[-n_components:].flip(0).sqrt()
    return {name: ((x - mean) @ turn, y) for name, (x, y) in data.items()}


def variant(name: str, device: str, seed: int = 0) -> Data:
    """10000 / 2000 / 50000 rows of MNIST as it is, turned by any angle, or before a background of noise."""
    data = pixels(device)
    rows = torch.cat([x for x, _ in data.values()])
    labels = torch.cat([y for _, y in data.values()])
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(rows), generator=generator)[:62_000].to(rows.device)
    sizes = (len(order) * 10 // 62, len(order) * 2 // 62)
    rows, labels = rows[order], labels[order]
    if name == "rotated":
        angles = 2 * torch.pi * torch.rand(len(rows), generator=generator, dtype=torch.float64).to(rows.device)
        rows = turned(rows, angles)
    if name == "random":
        rows = torch.maximum(rows, torch.rand(rows.shape, generator=generator, dtype=torch.float64).to(rows.device))
    return split(rows, labels, (*sizes, len(order) - sum(sizes)))


def turned(rows: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Images turned about their middle, by bilinear interpolation."""
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    maps = torch.stack((torch.stack((cos, -sin, zero), 1), torch.stack((sin, cos, zero), 1)), 1)
    images = rows.reshape(-1, 1, 28, 28)
    parts = []
    for image, turn in zip(images.split(10_000), maps.split(10_000), strict=True):
        grid = torch.nn.functional.affine_grid(turn, list(image.shape), align_corners=False)
        parts.append(torch.nn.functional.grid_sample(image, grid, align_corners=False))
    return torch.cat(parts).reshape(-1, 784)


@lru_cache(maxsize=1)
def data_of(table: str, device: str) -> Data:
    """The samples of a table of hybrid.json, by the first word of its name."""
    name = table.partition(",")[0]
    if name.startswith("CIFAR"):
        return cifar(device)
    plain = name.removesuffix(" (pca50)")
    images = pixels(device) if plain == "MNIST" else variant(plain, device)
    return images if plain == name else projected(images)


# ---- the parameters of the authors' program --------------------------------------------------------------------------


def inverse_softplus(values: torch.Tensor) -> torch.Tensor:
    return values + torch.log(-torch.expm1(-values))


@dataclass(frozen=True)
class PlainColumns(LowRankCovariance):
    """Diagonal plus low rank with every entry of the columns a parameter.

    mixtura rotates the columns so that the first R rows are triangular, which leaves out redundant parameters. Adam
    steps along the entries, so that it takes another path there: the first features have few entries, each of which
    must move further.
    """

    def unconstrained(self) -> dict[str, torch.Tensor]:
        return {"diagonals": inverse_softplus(self.diagonals - self.smallest), "columns": self.columns.mT.contiguous()}

    def _parts_of(self, free: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.nn.functional.softplus(free["diagonals"]) + self.smallest, free["columns"].mT


def leading(matrices: torch.Tensor, rank: int, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Leading eigenvectors of covariances or precisions, and what is left of the diagonal beyond epsilon."""
    values, vectors = torch.linalg.eigh(matrices)
    columns = vectors[:, :, -rank:] * values[:, -rank:].clamp_min(0).sqrt().unsqueeze(1)  # (K, D, R)
    rest = matrices.diagonal(dim1=1, dim2=2) - columns.square().sum(2) - epsilon
    return rest.clamp_min(1e-8) + epsilon, columns


def plain(mixture: Mixture, rank: int, epsilon: float, of_precision: bool = False) -> Mixture:
    """The start of the authors' program: leading eigenvectors of whole matrices, epsilon I included."""
    assert isinstance(mixture.covariance, FullCovariance)
    matrices = mixture.covariance.dense()
    if of_precision:
        matrices, epsilon = torch.cholesky_inverse(torch.linalg.cholesky(matrices)), 1e-6
    diagonals, columns = leading(matrices, rank, epsilon)
    return replace(mixture, covariance=PlainColumns(diagonals, columns, of_precision, epsilon))


# ---- fits ------------------------------------------------------------------------------------------------------------


def limit_of(rows: torch.Tensor) -> int:
    return 8 * 2**30 if rows.device.type == "cuda" else 2**28


def counts_of(k: Any, quick: bool) -> Any:
    return (2,) * len(k) if quick else k


def generative(data: Data, start: Start, seed: int, quick: bool = False, **options: Any) -> Mixture:
    """EM, with classes equally probable as in the paper."""
    x, y = data["train"]
    assert start.prior is not None
    variances = torch.full((x.shape[1],), start.prior[1], dtype=torch.float64, device=x.device)
    model = MixtureClassifier(
        dict(enumerate(counts_of(start.k, quick))),
        covariance_type=start.em,
        rank=start.rank,
        prior=Conjugate(start.prior[0], variances),
        class_prior="uniform",
        random_state=seed,
        memory_limit="8 GB" if x.device.type == "cuda" else None,
        **{"max_iter": 100, "tol": 1e-3, **options},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(x, y).mixture_


def generative_by_class(data: Data, start: Start, seed: int, quick: bool = False) -> Mixture:
    """EM digit by digit with epsilon added to every variance, as in the paper, which has full covariances."""
    x, y = data["train"]
    parts = []
    for c, n_components in enumerate(counts_of(start.k, quick)):
        model = GaussianMixture(
            n_components,
            covariance_type=start.em,
            rank=start.rank,
            reg_covar=start.epsilon,
            max_iter=60,
            tol=1e-1 if x.shape[1] == 784 else 1e-3,
            random_state=seed,
            memory_limit="8 GB" if x.device.type == "cuda" else None,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parts.append(model.fit(x[y == c]).mixture_)
    return joined(parts)


STRUCTURES = {"FullCovariance": "full", "DiagonalCovariance": "diag", "LowRankCovariance": "low_rank"}


def joined(parts: list[Mixture]) -> Mixture:
    """One mixture of the mixtures of equally probable classes, all of the same structure."""
    tensors = [part.covariance.tensors() for part in parts]
    whole = {name: torch.cat([own[name] for own in tensors]) for name in tensors[0]}
    covariance = COVARIANCES[STRUCTURES[type(parts[0].covariance).__name__]](1).from_tensors(whole)
    log_weights = torch.cat([part.log_weights - part.log_weights.logsumexp(0) for part in parts])
    counts = torch.tensor([part.n_components for part in parts])
    class_of = torch.repeat_interleave(counts).to(log_weights.device)
    return Mixture(log_weights - float(np.log(len(parts))), torch.cat([p.means for p in parts]), covariance, class_of)


def fitted(data: Data, start: Start, seed: int, quick: bool = False) -> Mixture:
    """The mixture that EM fits, or the average of those from several starts."""
    fit = generative_by_class if start.prior is None else generative
    if start.n_averaged == 1:
        return fit(data, start, seed, quick)
    fits = [fit(data, start, 1000 * (seed + 1) + number, quick) for number in range(start.n_averaged)]
    classes = [[one.select(part) for part in one.class_slices] for one in fits]
    return joined([joined(list(parts)) for parts in zip(*classes, strict=True)])


def restructured(mixture: Mixture, start: Start) -> Mixture:
    """A fitted start in the structure of the hybrid."""
    if start.structure == start.em:
        return mixture
    if start.structure.startswith("plain"):
        return plain(mixture, start.rank, start.epsilon, start.structure == "plain precision")
    if start.structure == "low_rank":
        assert isinstance(mixture.covariance, FullCovariance)
        return replace(mixture, covariance=without_ridge(mixture.covariance, start.rank, start.epsilon))
    structure: Any = COVARIANCES[start.structure](start.rank)
    return replace(mixture, covariance=structure.converted(mixture.covariance))


def without_ridge(covariance: FullCovariance, rank: int, epsilon: float) -> LowRankCovariance:
    """Leading directions of the covariances less epsilon I; the diagonal that is left has at least epsilon."""
    identity = torch.eye(covariance.dense().shape[1], dtype=covariance.dense().dtype, device=covariance.dense().device)
    less = covariance.dense() - epsilon * identity
    values, vectors = torch.linalg.eigh(less)
    columns = vectors[:, :, -rank:] * values[:, -rank:].clamp_min(0).sqrt().unsqueeze(1)
    diagonals = (less.diagonal(dim1=1, dim2=2) - columns.square().sum(2)).clamp_min(0) + epsilon * (1 + 1e-6)
    return LowRankCovariance(diagonals, columns)


def error(mixture: Mixture, part: tuple[torch.Tensor, torch.Tensor]) -> float:
    """In per cent."""
    predicted = score_classes(mixture, part[0], limit_of(part[0])).argmax(1)
    return 100 * float((predicted != part[1]).double().mean())


def errors(mixture: Mixture, data: Data) -> dict[str, float]:
    return {name: error(mixture, data[name]) for name in PARTS[1:]}


def validation_score(x: torch.Tensor, y: torch.Tensor) -> Callable[[Mixture], tuple[float, float]]:
    """Accuracy - 1 and, where that is equal, the mean log posterior of the labels."""

    def score(mixture: Mixture) -> tuple[float, float]:
        scores = score_classes(mixture, x)
        own = scores.gather(1, y.unsqueeze(1))[:, 0] - scores.logsumexp(1)
        return float((scores.argmax(1) == y).double().mean()) - 1.0, float(own.clamp_min(-1e6).mean())

    return score


def hybrid(
    data: Data, start: Mixture, own: Settings, seed: int, epochs: int = EPOCHS, test: bool = True
) -> tuple[Mixture, dict[str, Any]]:
    """Adam from a start; the mixture of the epoch with the best validation error."""
    x, y = data["train"]
    other = Conditional() if own.margin is None else Margin(own.margin)
    own_units = x.shape[1] == 784 or isinstance(start.covariance, PlainColumns)  # pixels have the same units
    floor = start.covariance.smallest if isinstance(start.covariance, PlainColumns) else own.epsilon
    solver = Gradient(
        optimiser="adam",
        learning_rate=own.step,
        decay_epochs=epochs if own.decay else None,
        averaging=own.averaging,
        units=Units(x.mean(0), torch.ones_like(x[0])) if own_units else None,
        floor=floor if own_units else None,
    )
    began = time.perf_counter()
    problem = Problem.from_samples(x, y, Hybrid(own.tradeoff, other), seed=seed)
    judge = EarlyStopping(validation_score(*data["validation"]), patience=10**6)
    result = run(solver, problem, start, epochs, 0.0, held_out=judge)
    seconds, scores = time.perf_counter() - began, dict(result.scores)
    final = solver.result(result.state)
    tested = {"test": error(result.mixture, data["test"]), "last_test": error(final, data["test"])} if test else {}
    return result.mixture, {
        "tradeoff": own.tradeoff,
        "validation": -100 * scores[result.best_iteration][0],
        **tested,
        "epoch": result.best_iteration,
        "seconds": seconds,
        "curve": [round(-100 * score[0], 3) for score in scores.values()],
    }


# ---- results ---------------------------------------------------------------------------------------------------------


def known(options: Options) -> dict[str, Any]:
    file = options.out / "hybrid.json"
    return json.loads(file.read_text()) if file.exists() else {}


def keep(options: Options, table: str, row: str, seed: Any, record: dict[str, Any]) -> None:
    """Add one run, with where it was made."""
    results = known(options)
    device = torch.cuda.get_device_name() if options.device.startswith("cuda") else platform.machine()
    results.setdefault(table, {}).setdefault(row, {})[str(seed)] = {**record, "device": device}
    results["versions"] = {
        "mixtura": mixtura.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    unfinished = options.out / "hybrid.unfinished"
    unfinished.write_text(json.dumps(results, indent=1) + "\n")
    unfinished.replace(options.out / "hybrid.json")
    shown = {k: v for k, v in record.items() if k != "curve"}
    print(f"{table} {row} seed {seed}: {shown}", flush=True)


def is_missing(options: Options, table: str, row: str, seed: Any) -> bool:
    return str(seed) not in known(options).get(table, {}).get(row, {})


@lru_cache(maxsize=1)
def start_of(table: str, start: Start, seed: int, options: Options) -> tuple[Mixture, float]:
    """A fitted start, which the rows of a table share, and its seconds."""
    began = time.perf_counter()
    return fitted(data_of(table, options.device), start, seed, options.quick), time.perf_counter() - began


def compute_cell(table: str, row: str, seed: int, options: Options) -> dict[str, Any]:
    """One run of a cell."""
    cell = CELLS[table, row]
    data = data_of(table, options.device)
    mixture, seconds = start_of(table, cell.start, seed, options)
    if cell.settings is None:
        return {**errors(mixture, data), "seconds": seconds}
    epochs = 1 if options.quick else cell.epochs
    return hybrid(data, restructured(mixture, cell.start), cell.settings, seed, epochs)[1]


def compute(options: Options) -> None:
    """The cells of the table that are missing, or the one that `--cell` names."""
    for (table, row), seed in wanted(options):
        if is_missing(options, table, row, seed):
            keep(options, table, row, seed, compute_cell(table, row, seed, options))


def wanted(options: Options) -> Iterator[tuple[tuple[str, str], int]]:
    """Cells and seeds; the rows that share a start follow each other."""
    cells = options.named({f"{table}, {row}": (table, row) for table, row in CELLS})
    keys = [("MNIST (pca50)", row) for row in PUBLISHED["MNIST (pca50)"]] if options.quick else cells.values()
    for key in cells.values() if options.cell else keys:
        for seed in (CELLS[key].seeds or range(N_SEEDS))[: options.n_seeds(N_SEEDS)]:
            yield key, seed
