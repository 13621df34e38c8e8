"""Tables of Liu, Zheng & Zheng (2006) beside ours: python -m reproduce lzz06-table1, lzz06-table2.

Every setting is the paper's, a default of the library, or chosen by cross-validation on the training rows; test rows
are used for accuracies only. Each line of a table is written as soon as it is done.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler

from mixtura import MixtureClassifier, NonnegativeMixtureClassifier
from mixtura.nonnegative import NONNEGATIVE_SOLVERS, SMALLEST_COUNT, Counts, LogLinearMixture, Multiplicative
from reproduce.data import load
from reproduce.figures import plot_bases
from reproduce.options import Options
from reproduce.stamps import machine, published, write_json
from reproduce.tables import finished, machine_of, page, row, spread

STARTS = range(5)
FEW = range(3)
HELD_OUT = "0 or 1 by held-out rows"
RULES = 'Settings are the paper\'s or defaults. Rows "defaults" have sparsity=1, the default until "auto" came.'
OF_AUTO = f'"auto" is the row "{HELD_OUT}", which was computed on another machine beside other work.'
PAPER = {"usps": "LZZ06 table 2", "cbcl": "LZZ06 table 1"}  # in published.json: two figures for each lambda
SHAPES = {"usps": (100, (16, 16)), "cbcl": (80, (19, 19))}  # columns of the factorisation, and pixels


# ---- data ------------------------------------------------------------------------------------------------------------


def usps() -> dict[str, np.ndarray]:
    """500 rows of each digit, drawn once, to train; all 2007 test rows; pixels mapped to [0, 1]."""
    data = load("usps")
    rng = np.random.default_rng(0)
    chosen = np.concatenate([rng.permutation(np.flatnonzero(data.y_train == c))[:500] for c in range(10)])
    rows = (np.float64(data.X_train[chosen]) + 1) / 2
    return {
        "X": rows,
        "y": data.y_train[chosen].astype(int),
        "X_test": (np.float64(data.X_test) + 1) / 2,
        "y_test": data.y_test.astype(int),
    }


def cbcl() -> dict[str, np.ndarray]:
    """The training part alone: 472 faces and 2048 non-faces, drawn once, are held out; 1957 and 2500 train."""
    data = load("cbcl_faces")
    rows, labels = np.float64(data.X_train).reshape(len(data.X_train), -1) / 255, data.y_train.astype(int)
    rng = np.random.default_rng(0)
    faces, others = (rng.permutation(np.flatnonzero(labels == c)) for c in (1, 0))
    n_faces, n_others = len(faces) * 472 // 2429, len(others) * 2048 // 4548
    test, train = np.r_[faces[:n_faces], others[:n_others]], np.r_[faces[n_faces:], others[n_others:]]
    return {"X": rows[train], "y": labels[train], "X_test": rows[test], "y_test": labels[test]}


def coded(data: dict[str, np.ndarray], n_basis: int) -> tuple[dict[str, np.ndarray], NMF]:
    """Codes of a factorisation of the training rows; test rows are coded with its basis fixed."""
    n_basis = min(n_basis, len(data["X"]) // 10)
    coder = NMF(n_basis, init="nndsvda", max_iter=200, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # codes are useful long before convergence
        codes = coder.fit_transform(data["X"])
        return {**data, "X": codes, "X_test": coder.transform(data["X_test"])}, coder


# ---- fits ------------------------------------------------------------------------------------------------------------


def measured(make: Callable[[int], Any], data: dict[str, np.ndarray], start: int) -> dict[str, Any]:
    """Accuracies in per cent from one start, number of weights and bases, seconds of the fit."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = make(start).fit(data["X"], data["y"])
    seconds = time.perf_counter() - began
    right = model.predict(data["X_test"]) == data["y_test"]
    record = {
        "train": 100 * model.score(data["X"], data["y"]),
        "test": 100 * float(right.mean()),
        "by_class": [100 * float(right[data["y_test"] == c].mean()) for c in np.unique(data["y"])],
        "seconds": seconds,
    }
    if isinstance(model, NonnegativeMixtureClassifier):
        sizes = {"weights": model.n_components_.sum(), "bases": model.n_bases_, "iterations": model.n_iter_}
        record.update({key: int(value) for key, value in sizes.items()})
    return record


@dataclass(frozen=True)
class SumPenalised(Multiplicative):
    """Multiplicative updates with the penalty of eq. 16, which changes only the scale of the weights (weight-scale).

    `sum_penalty` is the factor of the sum of the weights; 0 is Saul and Lee's rule.
    """

    sum_penalty: float = 0.0

    def cost(self, mixture: LogLinearMixture) -> float:
        return self.sum_penalty * float(mixture.log_weights.exp().sum())

    def with_weights(self, mixture: LogLinearMixture, counts: Counts) -> LogLinearMixture:
        if not self.sum_penalty:
            return super().with_weights(mixture, counts)
        numerators = counts.numerators[mixture.class_of, mixture.basis_of].clamp_min(SMALLEST_COUNT)
        divisors = counts.denominators / mixture.log_totals.exp() + self.sum_penalty  # (J,)
        return replace(mixture, log_weights=numerators.log() - divisors.log()[mixture.basis_of])


class PublishedRule(NonnegativeMixtureClassifier):
    """The rule of eq. 16, whose penalty acts on the sum of the weights (weight-scale)."""

    def fit(self, X: Any, y: Any) -> PublishedRule:
        own = {"multiplicative": lambda penalty: SumPenalised(sum_penalty=penalty.strength)}
        with patch.dict(NONNEGATIVE_SOLVERS, own):
            super().fit(X, y)
        return self


def by_the_paper(n_bases: int, penalty: float, shared: bool) -> Callable[[int], Any]:
    """The paper's rule: 100 plain iterations, its penalty, a random start."""
    options: dict[str, Any] = {"solver": "multiplicative", "early_stopping": False, "max_iter": 100, "tol": 0}
    return lambda start: PublishedRule(n_bases, shared=shared, sparsity=penalty, random_state=start, **options)


def default(n_bases: int, sparsity: Any, solver: str = "multiplicative", **options: Any) -> Callable[[int], Any]:
    """The defaults of the named solvers."""
    return lambda start: NonnegativeMixtureClassifier(
        n_bases, sparsity=sparsity, solver=solver, random_state=start, **options
    )


def to_the_end(n_bases: int) -> Callable[[int], Any]:
    return default(n_bases, 0.0, shared=True, solver="accelerated", early_stopping=False, max_iter=300)


# ---- lines of the tables ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A line of a table: its names, how its classifier is made from a start, and whether it gets codes or pixels."""

    rule: str
    M: str
    penalty: str
    make: Callable[[int], Any]
    starts: Iterable[int] = STARTS
    on_codes: bool = True
    paper: tuple[float, float] | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.rule, self.M, self.penalty


def paper_of(name: str) -> dict[int, dict[float, tuple[float, float]]]:
    """M -> lambda -> the two published accuracies."""
    table = published()[PAPER[name]]
    penalties = [float(column.rpartition(" ")[2]) for column in table["columns"][::2]]
    return {
        int(key.removeprefix("M = ")): dict(zip(penalties, zip(row[::2], row[1::2], strict=True), strict=True))
        for key, row in table["rows"].items()
    }


def lines_of(name: str) -> Iterator[Line]:
    paper = paper_of(name)
    defaults, rule = {"usps": (48, 24), "cbcl": paper}[name], "published, 100 iterations"
    for size in paper:  # which cross-validation on the training rows chose for every M (studies/results)
        yield Line("chosen on training rows", f"{size} per class", "shares 0", default(size, 0.0, shared=False))
    for size in defaults:
        yield Line("defaults", f"{size} per class", "shares 1", default(size, 1.0))
    size, starts = {"usps": (24, range(1)), "cbcl": (16, FEW)}[name]
    yield Line(HELD_OUT, f"{size} per class", "auto", default(size, "auto"), starts)
    for size, columns in paper.items():
        for penalty, figures in columns.items():
            make = by_the_paper(size, penalty, shared=True)
            yield Line(rule, f"{size} shared", f"sum {penalty:g}", make, paper=figures)
    for size, columns in paper.items():
        for penalty in (*columns, 1.0) if name == "usps" else columns:
            make = default(size, penalty, shared=True)
            yield Line("acting penalty", f"{size} shared", f"shares {penalty:g}", make)
    yield Line("acting penalty", "48 per class", "shares 0", default(48, 0.0))
    if name == "usps":
        yield Line("acting penalty", "48 per class", "shares 3", default(48, 3.0))
    for size in (24, 48) if name == "usps" else (48,):
        if name == "usps":
            yield Line(rule, f"{size} per class", "sum 0", by_the_paper(size, 0.0, shared=False))
        yield Line("accelerated, to convergence", f"{size} shared", "shares 0", to_the_end(size))
    logistic = make_pipeline(MaxAbsScaler(), LogisticRegression(max_iter=300))
    yield Line("logistic regression on pixels", "", "", lambda start: logistic, range(1), on_codes=False)
    yield Line(
        "MixtureClassifier(2, 'tied') on codes", "", "",
        lambda start: MixtureClassifier(2, covariance_type="tied", random_state=start), FEW,
    )  # fmt: skip


def run_table(name: str, options: Options) -> None:
    """Measure the lines that the results lack; each is written when all of its starts are done."""
    lines: dict[Any, Line] = {}
    for line in lines_of(name):
        if not options.quick or not any(line.rule == other.rule for other in lines.values()):
            lines[line.key] = line
    wanted = options.named({", ".join(map(str, key)): key for key in lines}).values()
    pixels, path = {"usps": usps, "cbcl": cbcl}[name](), options.out / f"{name}.json"
    codes, coder = coded(pixels, SHAPES[name][0])
    before = json.loads(path.read_text()) if path.is_file() else {"rows": []}
    known = {(row["rule"], row["M"], row["penalty"]): row for row in before["rows"]}
    starts = {key: list(line.starts)[: options.n_seeds(len(list(line.starts)))] for key, line in lines.items()}
    tasks = [
        (key, lines[key].make, codes if lines[key].on_codes else pixels, start)
        for key in wanted
        if key not in known
        for start in starts[key]
    ]
    results: dict[Any, dict[int, Any]] = {key: {} for key in lines}

    def save() -> None:
        rows = [known[key] for key in lines if key in known]
        write_json(path, {"machine": before.get("machine") or machine(), "rows": rows})

    save()
    for (key, _, _, start), result in finished(lambda key, *task: measured(*task), tasks, options.jobs):
        results[key][start] = result
        if len(results[key]) == len(starts[key]):
            each, line = [results[key][start] for start in starts[key]], lines[key]
            known[key] = {"rule": line.rule, "M": line.M, "penalty": line.penalty, "paper": line.paper}
            known[key]["measured"] = {figure: [one[figure] for one in each] for figure in each[0]}
            save()
            print(name, *key, spread([one["test"] for one in each]), flush=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = default(24, 1.0, shared=True)(0).fit(codes["X"], codes["y"])
    figure = plot_bases(model, codes["X"], coder.components_, SHAPES[name][1])
    figure.savefig(options.out / f"{name}_bases.png", dpi=110)


def run_usps(options: Options) -> None:
    run_table("usps", options)


def run_cbcl(options: Options) -> None:
    run_table("cbcl", options)


def pages(folder: Path) -> dict[str, str]:
    """Markdown from the JSON files that are there."""
    texts = {}
    for name in PAPER:
        if (folder / f"{name}.json").exists():
            record = json.loads((folder / f"{name}.json").read_text())
            lines = [cells_of(name, line) for line in record["rows"]]
            texts[f"{name}.md"] = page(f"{name}.md", rows=lines, machine=machine_of(record), rules=f"{RULES} {OF_AUTO}")
    return texts


def cells_of(name: str, line: dict[str, Any]) -> str:
    ours = line["measured"]
    others, faces = ([each[c] for each in ours["by_class"]] for c in (0, 1))
    means = [spread(values) for values in {"usps": (ours["train"],), "cbcl": (faces, others)}[name]]
    sizes = [f"{np.mean(ours[key]):.0f}" if key in ours else "" for key in ("weights", "bases", "iterations")]
    names = [line["rule"], line["M"], line["penalty"], *(line.get("paper") or ("", ""))]
    return row(*names, *means, spread(ours["test"]), *sizes, f"{np.mean(ours['seconds']):.1f}")
