"""Figures of small versions of the tables: a record of the behaviour that results depend on.

Every table has a small version on small data (`--quick`). Its figures, to nine digits, are in behaviour.json; a digest
of them is the stamp of results that are computed then. `tests/test_reproduce.py` computes them again. If they change on
purpose, `python -m reproduce behaviour TABLE` records them again, and the README lists the results that are older.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from sklearn.datasets import load_digits

from reproduce import discriminative
from reproduce.options import Options
from reproduce.registry import TABLES

FILE = Path(__file__).parent / "behaviour.json"
# Times, places and versions: no behaviour.
LEFT_OUT = {"stamps", "machine", "versions", "device", "about", "made"}
TIMES = ("seconds", "milliseconds", "microseconds")
DIGITS = 9
# Smaller than --quick, where that takes minutes.
SMALLER = {"kjo03": {"N_FOLDS": 2, "N_DIVISIONS": 1, "WIDTHS": (0.3,)}}


def write_small_data(folder: Path) -> None:
    """Files with the names and shapes of the published sets, of a few hundred samples."""
    rng = np.random.default_rng(0)
    images, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(images))
    images, labels = images[order] / 16, labels[order]
    large = np.pad(np.kron(images.reshape(-1, 8, 8) * 255, np.ones((3, 3))), ((0, 0), (2, 2), (2, 2))).astype(np.uint8)

    def save(name: str, X: np.ndarray, y: np.ndarray, n_train: int, **others: Any) -> None:
        parts = {"X_train": X[:n_train], "y_train": y[:n_train], "X_test": X[n_train:], "y_test": y[n_train:]}
        np.savez(folder / f"{name}.npz", **parts, **others)

    for name in ("mnist", "fashion_mnist"):
        save(name, large, labels.astype(np.uint8), 1500)
    save("usps", np.kron(images.reshape(-1, 8, 8), np.ones((2, 2))).reshape(-1, 256) * 2 - 1, labels, 400)
    faces = rng.integers(0, 255, (300, 19, 19), dtype=np.uint8)
    faces[:120, 5:14] //= 2
    np.savez(folder / "cbcl_faces.npz", X_train=faces, y_train=np.repeat([1, 0], [120, 180]).astype(np.uint8))
    y = rng.integers(0, 2, 400)
    X = rng.normal(size=(400, 2)) + 2 * y[:, None] * [1, -1]
    save("ripley", X, y, 150, feature_names=np.array(["xs", "ys"]))
    X, y = rng.normal(size=(345, 6)), rng.integers(1, 3, 345)
    np.savez(folder / "bupa.npz", X=X, y=y, feature_names=np.array(list("abcdef")))


def forget() -> None:
    """Empty the caches of these scripts, whose keys are names of data and not folders."""
    for module in [module for name, module in sys.modules.items() if name.startswith("reproduce.")]:
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def run_small(name: str, data: Path, out: Path) -> None:
    """The small version of a table, from small data, on a CPU."""
    forget()
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the last digits of sums depend on it
    smaller = patch.multiple(discriminative, **SMALLER[name]) if name in SMALLER else nullcontext()
    with patch.dict(os.environ, {"MIXTURA_DATA": str(data)}), smaller:
        TABLES[name].run(Options(out, device="cpu", quick=True))
    forget()
    torch.set_num_threads(n_threads)


def figures_of(name: str, folder: Path) -> dict[str, float]:
    """The figures in the result files of a table, by their place, to nine digits."""
    files = [file for file in TABLES[name].results if (folder / file).exists()]
    pairs = (pair for file in files for pair in _numbers(json.loads((folder / file).read_text()), file))
    return {place: float(f"{value:.{DIGITS}g}") for place, value in pairs if math.isfinite(value)}


def _numbers(record: Any, place: str) -> Iterator[tuple[str, float]]:
    if isinstance(record, dict):
        for key, value in record.items():
            if key not in LEFT_OUT and not key.startswith(TIMES):
                yield from _numbers(value, f"{place}/{key}")
    elif isinstance(record, list):
        for number, value in enumerate(record):
            yield from _numbers(value, f"{place}/{number}")
    elif isinstance(record, int | float):
        yield place, float(record)


def digest(figures: dict[str, float]) -> str:
    """Eight hexadecimal digits."""
    return hashlib.sha256(json.dumps(sorted(figures.items())).encode()).hexdigest()[:8]


def recorded() -> dict[str, Any]:
    return json.loads(FILE.read_text()) if FILE.exists() else {"tables": {}}


def digest_of(name: str) -> str:
    """The digest of the recorded behaviour of a table; empty where there is none."""
    figures = recorded()["tables"].get(name)
    return "" if figures is None else digest(figures)


def computer() -> dict[str, str]:
    """The versions and instructions that the last digits of sums depend on."""
    return {"torch": torch.__version__.partition("+")[0], "instructions": torch.backends.cpu.get_cpu_capability()}


def changes(name: str, figures: dict[str, float]) -> list[str]:
    """Figures that are not as recorded: to nine digits, or to three on another kind of computer."""
    record = recorded()
    before, same = record["tables"][name], record["computer"] == computer()
    tolerance = 2 * 10.0 ** -(DIGITS - 1) if same else 1e-3
    return [
        f"{place}: {before.get(place)} before, {figures.get(place)} now"
        for place in sorted({*before, *figures})
        if place not in before
        or place not in figures
        or not math.isclose(before[place], figures[place], rel_tol=tolerance, abs_tol=tolerance)
    ]


def measure(name: str) -> dict[str, float]:
    """The figures of the small version of a table, computed now."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_small_data(Path(folder))
        run_small(name, Path(folder), Path(folder))
        return figures_of(name, Path(folder))


def stamp_of(name: str) -> str:
    """The digest of the behaviour now: the recorded one, if that is it."""
    figures = measure(name)
    return digest_of(name) if digest_of(name) and not changes(name, figures) else digest(figures)


def record(names: Sequence[str]) -> None:
    """Compute the small versions of tables and keep their figures."""
    tables = recorded()["tables"]
    for name in names or TABLES:
        tables[name] = measure(name)
        text = {"computer": computer(), "tables": {name: tables[name] for name in TABLES if name in tables}}
        FILE.write_text(json.dumps(text, indent=0) + "\n")
        print(f"{name}: {len(tables[name])} figures, {digest(tables[name])}", flush=True)


def state_of(stamps: list[dict[str, str]], name: str) -> str:
    """Whether results were computed with the behaviour that is recorded now."""
    codes = {stamp.get("behaviour", "") for stamp in stamps}
    if codes == {digest_of(name)}:
        return "as now"
    if digest_of(name) in codes:
        return "in part as now"
    return "before behaviour was recorded" if codes == {""} else "older than the behaviour now"
