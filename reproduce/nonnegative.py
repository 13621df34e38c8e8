"""python -m reproduce.nonnegative [usps cbcl speed pictures more]: tables of Liu, Zheng & Zheng (2006) beside ours.

Data: set MIXTURA_DATA to the folder of usps.npz and cbcl_faces.npz. Every setting is either the paper's or a default of
the library; test rows are used for accuracies only. Each line of a table is written as soon as it is done.
"""

from __future__ import annotations

import json
import platform
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import sklearn
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler

import mixtura
from mixtura import MixtureClassifier, NonnegativeMixtureClassifier
from mixtura.datasets import load_cbcl_faces, load_usps
from mixtura.estimators.nonnegative import QuietNMF

RESULTS = Path(__file__).parent / "results"
STARTS = range(5)
FEW = range(3)  # for the slow rows without any sparsity
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
    data = load_usps()
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
    data = load_cbcl_faces()
    rows, labels = np.float64(data.X_train).reshape(len(data.X_train), -1) / 255, data.y_train.astype(int)
    rng = np.random.default_rng(0)
    faces, others = (rng.permutation(np.flatnonzero(labels == c)) for c in (1, 0))
    test, train = np.r_[faces[:472], others[:2048]], np.r_[faces[472:], others[2048:]]
    return {"X": rows[train], "y": labels[train], "X_test": rows[test], "y_test": labels[test]}


def coded(data: dict[str, np.ndarray], n_basis: int) -> tuple[dict[str, np.ndarray], QuietNMF]:
    """Codes of a factorisation of the training rows; test rows are coded with its basis fixed."""
    coder = QuietNMF(n_basis, init="nndsvda", max_iter=200, random_state=0)
    codes = coder.fit_transform(data["X"])
    return {**data, "X": codes, "X_test": coder.transform(data["X_test"])}, coder


# ---- fits ------------------------------------------------------------------------------------------------------------


def measured(make: Callable[[int], Any], data: dict[str, np.ndarray], starts: Any = STARTS) -> dict[str, Any]:
    """Accuracies in per cent over starts, number of weights and bases, seconds of one fit."""
    found: dict[str, list[Any]] = {key: [] for key in ("train", "test", "by_class", "weights", "bases", "iterations")}
    began = time.perf_counter()
    for start in starts:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = make(start).fit(data["X"], data["y"])
        predicted = model.predict(data["X_test"])
        right = predicted == data["y_test"]
        found["train"].append(100 * model.score(data["X"], data["y"]))
        found["test"].append(100 * float(right.mean()))
        found["by_class"].append([100 * float(right[data["y_test"] == c].mean()) for c in np.unique(data["y"])])
        if isinstance(model, NonnegativeMixtureClassifier):
            found["weights"].append(int(model.n_components_.sum()))
            found["bases"].append(int(model.n_bases_))
            found["iterations"].append(int(model.n_iter_))
    return {**found, "seconds": (time.perf_counter() - began) / len(found["test"])}


def published(n_bases: int, penalty: float, shared: bool) -> Callable[[int], Any]:
    """The paper's rule: 100 plain iterations, its penalty, a random start."""
    return lambda start: NonnegativeMixtureClassifier(
        n_bases,
        shared=shared,
        penalty="sum",
        sparsity=penalty,
        early_stopping=False,
        max_iter=100,
        tol=0,
        random_state=start,
    )


def default(n_bases: int, sparsity: float, **options: Any) -> Callable[[int], Any]:
    return lambda start: NonnegativeMixtureClassifier(n_bases, sparsity=sparsity, random_state=start, **options)


# ---- writing ---------------------------------------------------------------------------------------------------------


def machine() -> dict[str, str]:
    """Where and with what the numbers were made."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        model = next(
            (line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line), model
        )
    versions = {"torch": torch.__version__, "scikit-learn": sklearn.__version__, "numpy": np.__version__}
    return {
        "processor": model,
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "mixtura": mixtura.__version__,
        "scipy": scipy.__version__,
        **versions,
    }


def mean_and_error(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.2f}"
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.2f}"


def save(name: str, found: dict[str, Any], text: list[str]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n")
    heads = [f"Machine: {', '.join(f'{key} {value}' for key, value in machine().items())}.", ""]
    (RESULTS / f"{name}.md").write_text("\n".join([text[0], "", *heads, *text[1:]]) + "\n")


def usps_text(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "# LZZ06, table 2: USPS digits",
        "Accuracy in per cent, mean and standard error over starts of the classifier; codes of 100 columns by NMF, the "
        "same for all. Settings are the paper's or defaults. The standard error from 2007 test digits is about 0.55.",
        "",
        "| rule | M | penalty | paper: train | test | ours: train | test | weights | bases | iterations | s per fit |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        paper = row.get("paper") or ("", "")
        ours = row["measured"]
        sizes = [f"{np.mean(ours[key]):.0f}" if ours[key] else "" for key in ("weights", "bases", "iterations")]
        cells = [
            row["rule"],
            row["M"],
            row["penalty"],
            *paper,
            mean_and_error(ours["train"]),
            mean_and_error(ours["test"]),
        ]
        lines.append("| " + " | ".join(str(c) for c in [*cells, *sizes, f"{ours['seconds']:.1f}"]) + " |")
    return lines


def cbcl_text(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "# LZZ06, table 1: CBCL faces",
        "Accuracy in per cent on faces (F) and non-faces (NF), mean and standard error over starts; codes of 80 "
        "columns by NMF. The published test set is not at hand: 472 faces and 2048 non-faces of the training part are "
        "held out, so that the paper's columns are of other and harder images.",
        "",
        "| rule | M | penalty | paper: F | NF | ours: F | NF | all | weights | bases | iterations | s per fit |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        paper = row.get("paper") or ("", "")
        ours = row["measured"]
        others, faces = ([each[c] for each in ours["by_class"]] for c in (0, 1))
        sizes = [f"{np.mean(ours[key]):.0f}" if ours[key] else "" for key in ("weights", "bases", "iterations")]
        means = [mean_and_error(values) for values in (faces, others, ours["test"])]
        cells = [row["rule"], row["M"], row["penalty"], *paper, *means, *sizes, f"{ours['seconds']:.1f}"]
        lines.append("| " + " | ".join(str(c) for c in cells) + " |")
    return lines


class Table:
    """Rows of a table, written after every one; rows that an earlier run wrote are kept and not measured again."""

    def __init__(self, name: str, data: dict[str, np.ndarray], n_basis: int, text: Callable[[Any], list[str]]):
        self.name, self.text, self.data = name, text, data
        self.codes, self.coder = coded(data, n_basis)
        path = RESULTS / f"{name}.json"
        self.rows = json.loads(path.read_text())["rows"] if path.is_file() else []

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
        if any((row["rule"], row["M"], row["penalty"]) == (rule, size, penalty) for row in self.rows):
            return
        result = measured(make, self.codes if coded else self.data, starts)
        self.rows.append({"rule": rule, "M": size, "penalty": penalty, "paper": figures, "measured": result})
        save(self.name, {"rows": self.rows}, self.text(self.rows))
        print(
            self.name, rule, size, penalty, f"{np.mean(result['test']):.2f}", f"{result['seconds']:.1f} s", flush=True
        )

    def add_published(self, paper: dict[int, dict[float, tuple[float, float]]]) -> None:
        for size, row in paper.items():
            for penalty, figures in row.items():
                make = published(size, penalty, shared=True)
                self.add("published, 100 iterations", f"{size} shared", f"sum {penalty:g}", make, figures)

    def add_others(self) -> None:
        """What else one would use on these rows."""
        logistic = make_pipeline(MaxAbsScaler(), LogisticRegression(max_iter=300))
        self.add("logistic regression on pixels", "", "", lambda s: logistic, starts=[0], coded=False)
        gaussian = MixtureClassifier(2, covariance_type="tied")
        self.add(
            "MixtureClassifier(2, 'tied') on codes", "", "", lambda s: gaussian.set_params(random_state=s), starts=FEW
        )


def to_the_end(n_bases: int) -> Callable[[int], Any]:
    return default(n_bases, 0.0, shared=True, solver="accelerated", early_stopping=False, max_iter=300)


def run_usps() -> None:
    table = Table("usps", usps(), 100, usps_text)
    table.add("defaults", "48 per class", "shares 1", default(48, 1.0))
    table.add_published(USPS_PAPER)
    table.add_others()
    table.add("published, 100 iterations", "48 per class", "sum 0", published(48, 0.0, shared=False))
    table.add("accelerated, to convergence", "48 shared", "shares 0", to_the_end(48))
    table.add("defaults", "48 per class", "shares 0", default(48, 0.0), starts=FEW)


def run_cbcl() -> None:
    table = Table("cbcl", cbcl(), 80, cbcl_text)
    for size in (48, 24, 8):
        table.add("defaults", f"{size} per class", "shares 1", default(size, 1.0))
    table.add_published(CBCL_PAPER)
    table.add_others()


def run_pictures() -> None:
    picture("usps", Table("usps", usps(), 100, usps_text), 24, (16, 16))
    picture("cbcl", Table("cbcl", cbcl(), 80, cbcl_text), 24, (19, 19))


def run_more() -> None:
    """Rows that take longest."""
    table = Table("usps", usps(), 100, usps_text)
    table.add("defaults", "24 per class", "shares 1", default(24, 1.0))
    table.add("published, 100 iterations", "24 per class", "sum 0", published(24, 0.0, shared=False))
    table.add("defaults", "48 shared", "shares 1", default(48, 1.0, shared=True))
    table.add("defaults", "48 per class", "shares 3", default(48, 3.0))
    table.add("defaults", "48 shared", "shares 0", default(48, 0.0, shared=True), starts=FEW)
    table = Table("cbcl", cbcl(), 80, cbcl_text)
    for size in (16, 32):
        table.add("defaults", f"{size} per class", "shares 1", default(size, 1.0))
    table.add("accelerated, to convergence", "48 shared", "shares 0", to_the_end(48))
    table.add("defaults", "48 per class", "shares 0", default(48, 0.0), starts=FEW)


def picture(name: str, table: Table, n_bases: int, shape: tuple[int, int]) -> None:
    """The parts that the factorisation found, the bases of the classifier as images, and its weights."""
    from mixtura.plotting import plot_bases

    model = NonnegativeMixtureClassifier(n_bases, shared=True, random_state=0).fit(table.codes["X"], table.codes["y"])
    figure = plot_bases(model, table.codes["X"], table.coder.components_, shape)
    figure.savefig(RESULTS / f"{name}_bases.png", dpi=110)


def run_speed() -> None:
    """An iteration beside three products and two exponentials of its size; time to the plain rule's objective."""
    torch.set_num_threads(1)
    from reproduce.speed import compare

    codes, _ = coded(usps(), 100)
    found = compare(codes["X"], codes["y"])
    lines = ["# Speed of the solvers on USPS codes", "5000 rows, 100 features, one thread, double precision.", ""]
    lines += ["| bases | iteration, ms | floor, ms | ratio |", "|---|---|---|---|"]
    lines += [
        f"| {r['bases']} | {r['milliseconds']:.1f} | {r['floor']:.1f} | {r['ratio']:.2f} |" for r in found["iterations"]
    ]
    lines += [
        "",
        "| start | objective of 1000 plain iterations | plain, s | accelerated, s | part of the time |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['start']} | {r['objective']:.4f} | {r['plain']:.2f} | {r['accelerated']:.2f} | {r['part']:.3f} |"
        for r in found["race"]
    ]
    save("nonnegative_speed", found, lines)
    print("\n".join(lines))


RUNS = {"usps": run_usps, "cbcl": run_cbcl, "speed": run_speed, "pictures": run_pictures, "more": run_more}

if __name__ == "__main__":
    for name in sys.argv[1:] or RUNS:
        RUNS[name]()
