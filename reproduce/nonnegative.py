"""Tables of Liu, Zheng & Zheng (2006) beside ours: python -m reproduce lzz06-table1, lzz06-table2.

Every setting is the paper's, a default of the library, or chosen by cross-validation on the training rows; test rows
are used for accuracies only. Each line of a table is written as soon as it is done.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler

from mixtura import MixtureClassifier, NonnegativeMixtureClassifier
from reproduce.data import load
from reproduce.options import Options
from reproduce.stamps import machine, write_json
from reproduce.sum_penalty import SumPenalised

STARTS = range(5)
FEW = range(3)
HELD_OUT = "0 or 1 by held-out rows"
RULES = 'Settings are the paper\'s or defaults. Rows "defaults" have sparsity=1, the default until "auto" came.'
LATER = f'"auto" is the row "{HELD_OUT}", which was computed later, on another machine beside other work.'
# LZZ06, table 2: M -> lambda -> accuracy on training and test rows, in per cent.
USPS_PAPER = {
    24: {0.0: (88.74, 84.55), 0.1: (88.78, 84.55), 0.2: (88.80, 84.60), 0.3: (88.76, 84.60)},
    48: {0.0: (95.20, 88.99), 0.1: (95.30, 89.14), 0.2: (95.30, 89.04), 0.3: (95.26, 89.19)},
}
# LZZ06, table 1: M -> lambda -> accuracy on faces and on non-faces, in per cent (on a test set that is not at hand).
CBCL_PAPER = {
    8: {0.0: (66.5, 51.7), 0.1: (67.4, 52.2), 0.5: (69.5, 52.9), 1.0: (72.0, 53.6), 5.0: (74.8, 56.4)},
    16: {0.0: (75.2, 49.9), 0.1: (77.1, 50.9), 0.5: (79.0, 53.1), 1.0: (80.9, 56.0), 5.0: (82.8, 58.6)},
    24: {0.0: (75.2, 72.2), 0.1: (79.7, 73.0), 0.5: (82.2, 74.1), 1.0: (83.9, 74.0), 5.0: (86.4, 73.1)},
    32: {0.0: (76.2, 61.4), 0.1: (82.2, 62.2), 0.5: (87.5, 61.4), 1.0: (90.5, 60.7), 5.0: (92.0, 60.1)},
    48: {0.0: (85.6, 57.8), 0.1: (89.6, 58.9), 0.5: (93.2, 58.8), 1.0: (93.9, 58.0), 5.0: (96.8, 57.7)},
}


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


def in_parallel(tasks: list[Any], n_jobs: int, order: str = "generator_unordered") -> Iterator[Any]:
    return cast(Iterator[Any], Parallel(n_jobs, return_as=order)(tasks))


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


class Published(NonnegativeMixtureClassifier):
    """The rule of eq. 16, whose penalty acts on the sum of the weights (weight-scale)."""

    def _solvers(self) -> list[SumPenalised]:
        return [SumPenalised(sum_penalty=self.sparsity)]


def published(n_bases: int, penalty: float, shared: bool) -> Callable[[int], Any]:
    """The paper's rule: 100 plain iterations, its penalty, a random start."""
    return lambda start: Published(
        n_bases,
        shared=shared,
        sparsity=penalty,
        solver="multiplicative",
        early_stopping=False,
        max_iter=100,
        tol=0,
        random_state=start,
    )


def default(n_bases: int, sparsity: Any, solver: str = "multiplicative", **options: Any) -> Callable[[int], Any]:
    """The defaults of the named solvers."""
    return lambda start: NonnegativeMixtureClassifier(
        n_bases, sparsity=sparsity, solver=solver, random_state=start, **options
    )


# ---- writing ---------------------------------------------------------------------------------------------------------


def mean_and_error(values: list[float], digits: int = 2) -> str:
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.{digits}f}"


def page(results: dict[str, Any], text: list[str]) -> str:
    heads = [f"Machine: {', '.join(f'{key} {value}' for key, value in results['machine'].items())}.", ""]
    return "\n".join([text[0], "", *heads, *text[1:]]) + "\n"


def pages(folder: Path) -> dict[str, str]:
    """Markdown from the JSON files that are there."""
    texts: dict[str, Callable[[dict[str, Any]], list[str]]] = {
        "usps": lambda record: usps_text(record["rows"]),
        "cbcl": lambda record: cbcl_text(record["rows"]),
    }
    files = {name: folder / f"{name}.json" for name in texts}
    results = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    return {f"{name}.md": page(record, texts[name](record)) for name, record in results.items()}


def usps_text(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "# LZZ06, table 2: USPS digits",
        "Accuracy in per cent, mean and standard error over starts of the classifier; codes of 100 columns by NMF, the "
        f"same for all. {RULES} {LATER} The standard error from 2007 test digits is about 0.55.",
        "",
        "| rule | M | penalty | paper: train | test | ours: train | test | weights | bases | iterations | s per fit |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        paper = row.get("paper") or ("", "")
        ours = row["measured"]
        sizes = [f"{np.mean(ours[key]):.0f}" if key in ours else "" for key in ("weights", "bases", "iterations")]
        cells = [
            row["rule"],
            row["M"],
            row["penalty"],
            *paper,
            mean_and_error(ours["train"]),
            mean_and_error(ours["test"]),
        ]
        lines.append("| " + " | ".join(str(c) for c in [*cells, *sizes, f"{np.mean(ours['seconds']):.1f}"]) + " |")
    return lines


def cbcl_text(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "# LZZ06, table 1: CBCL faces",
        "Accuracy in per cent on faces (F) and non-faces (NF), mean and standard error over starts; codes of 80 "
        "columns by NMF. The published test set is not at hand: 472 faces and 2048 non-faces of the training part are "
        "held out, so that the paper's columns are of other and harder images. "
        f"{RULES} {LATER}",
        "",
        "| rule | M | penalty | paper: F | NF | ours: F | NF | all | weights | bases | iterations | s per fit |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        paper = row.get("paper") or ("", "")
        ours = row["measured"]
        others, faces = ([each[c] for each in ours["by_class"]] for c in (0, 1))
        sizes = [f"{np.mean(ours[key]):.0f}" if key in ours else "" for key in ("weights", "bases", "iterations")]
        means = [mean_and_error(values) for values in (faces, others, ours["test"])]
        cells = [row["rule"], row["M"], row["penalty"], *paper, *means, *sizes, f"{np.mean(ours['seconds']):.1f}"]
        lines.append("| " + " | ".join(str(c) for c in cells) + " |")
    return lines


class Table:
    """Lines of a table, written after every one; lines that an earlier run wrote are kept and not measured again."""

    def __init__(self, name: str, data: dict[str, np.ndarray], n_basis: int, options: Options):
        self.name, self.data, self.options = name, data, options
        self.codes, self.coder = coded(data, n_basis)
        self.path = options.out / f"{name}.json"
        before = json.loads(self.path.read_text()) if self.path.is_file() else {"rows": []}
        self.machine = before.get("machine") or machine()
        self.known = {(row["rule"], row["M"], row["penalty"]): row for row in before["rows"]}
        self.lines: dict[tuple[str, str, str], Any] = {}  # in the order of the table

    def add(
        self,
        rule: str,
        size: str,
        penalty: str,
        make: Any,
        figures: Any = None,
        starts: Any = STARTS,
        coded: bool = True,
    ) -> None:
        line = {"rule": rule, "M": size, "penalty": penalty, "paper": figures}
        starts = list(starts)[: self.options.n_seeds(len(starts))]
        if not self.options.quick or not any(line["rule"] == rule for line, *_ in self.lines.values()):
            self.lines[rule, size, penalty] = line, make, starts, coded

    def write(self) -> None:
        """Measure the lines that are not known yet."""
        missing = {key: line for key, line in self.lines.items() if key not in self.known}
        tasks = [
            delayed(_measured)(key, start, make, self.codes if coded else self.data)
            for key, (_, make, starts, coded) in missing.items()
            for start in starts
        ]
        results: dict[Any, dict[int, Any]] = {key: {} for key in missing}
        self._save()
        for key, start, result in in_parallel(tasks, self.options.jobs):
            results[key][start] = result
            line, _, starts, _ = missing[key]
            if len(results[key]) == len(starts):
                each = [results[key][start] for start in starts]
                self.known[key] = {**line, "measured": {name: [e[name] for e in each] for name in each[0]}}
                self._save()
                print(self.name, *key, mean_and_error([e["test"] for e in each]), flush=True)

    def _save(self) -> None:
        rows = [self.known[key] for key in self.lines if key in self.known]
        write_json(self.path, {"machine": self.machine, "rows": rows})

    def add_published(self, paper: dict[int, dict[float, tuple[float, float]]]) -> None:
        for size, row in paper.items():
            for penalty, figures in row.items():
                make = published(size, penalty, shared=True)
                self.add("published, 100 iterations", f"{size} shared", f"sum {penalty:g}", make, figures)

    def add_others(self) -> None:
        """Other classifiers for these rows."""
        logistic = make_pipeline(MaxAbsScaler(), LogisticRegression(max_iter=300))
        self.add("logistic regression on pixels", "", "", lambda s: logistic, starts=[0], coded=False)
        gaussian = MixtureClassifier(2, covariance_type="tied")
        self.add(
            "MixtureClassifier(2, 'tied') on codes", "", "", lambda s: gaussian.set_params(random_state=s), starts=FEW
        )


def _measured(key: Any, start: int, make: Any, data: dict[str, np.ndarray]) -> tuple[Any, int, Any]:
    return key, start, measured(make, data, start)


def add_chosen(table: Table, sizes: Iterable[int]) -> None:
    """The settings that cross-validation on the training rows chose for every M (studies/results/usps_choice.md)."""
    for size in sizes:
        table.add("chosen on training rows", f"{size} per class", "shares 0", default(size, 0.0, shared=False))


def to_the_end(n_bases: int) -> Callable[[int], Any]:
    return default(n_bases, 0.0, shared=True, solver="accelerated", early_stopping=False, max_iter=300)


def run_usps(options: Options) -> None:
    data = usps()
    table = Table("usps", data, 100, options)
    add_chosen(table, USPS_PAPER)
    for size in (48, 24):
        table.add("defaults", f"{size} per class", "shares 1", default(size, 1.0))
    table.add(HELD_OUT, "24 per class", "auto", default(24, "auto"), starts=[0])
    table.add_published(USPS_PAPER)
    for size, paper in USPS_PAPER.items():
        for penalty in (*paper, 1.0):
            make = default(size, penalty, shared=True)
            table.add("acting penalty", f"{size} shared", f"shares {penalty:g}", make)
    table.add("acting penalty", "48 per class", "shares 0", default(48, 0.0))
    table.add("acting penalty", "48 per class", "shares 3", default(48, 3.0))
    for size in (24, 48):
        table.add("published, 100 iterations", f"{size} per class", "sum 0", published(size, 0.0, shared=False))
        table.add("accelerated, to convergence", f"{size} shared", "shares 0", to_the_end(size))
    table.add_others()
    table.write()
    picture(table, 24, (16, 16))


def run_cbcl(options: Options) -> None:
    data = cbcl()
    table = Table("cbcl", data, 80, options)
    add_chosen(table, CBCL_PAPER)
    for size in CBCL_PAPER:
        table.add("defaults", f"{size} per class", "shares 1", default(size, 1.0))
    table.add(HELD_OUT, "16 per class", "auto", default(16, "auto"), starts=FEW)
    table.add_published(CBCL_PAPER)
    for size, paper in CBCL_PAPER.items():
        for penalty in paper:
            table.add("acting penalty", f"{size} shared", f"shares {penalty:g}", default(size, penalty, shared=True))
    table.add("acting penalty", "48 per class", "shares 0", default(48, 0.0))
    table.add("accelerated, to convergence", "48 shared", "shares 0", to_the_end(48))
    table.add_others()
    table.write()
    picture(table, 24, (19, 19))


def picture(table: Table, n_bases: int, shape: tuple[int, int]) -> None:
    """The parts of the factorisation, the bases of the classifier as images, and its weights."""
    from reproduce.figures import plot_bases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = default(n_bases, 1.0, shared=True)(0).fit(table.codes["X"], table.codes["y"])
    figure = plot_bases(model, table.codes["X"], table.coder.components_, shape)
    figure.savefig(table.options.out / f"{table.name}_bases.png", dpi=110)
