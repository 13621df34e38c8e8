"""python -m benchmarks defaults [--sets development|evaluation|generators]: the default beside other classifiers.

Development sets (data_sets.toml) may be used as often as one likes; evaluation sets are for a default that is done.
The folder MIXTURA_BENCHMARKS has the sets that `python -m benchmarks.export_data FOLDER` writes. Conditions are
"complete" (values that are missing in the set itself are missing), and "random 30", "at random 30", "informative 30":
30 % of the values removed in training and test rows, with 10, 30 or 60; "by class 30" depends on the class. In
"deployment 30" training rows are complete and test rows lack 30 % at random; this library's classifiers are trained on
the complete rows, others on these and three thinned copies. Every measurement is appended to a file of results at once,
and is not repeated. This library's classifiers are measured again for every version of the code. Seconds are processor
time of one thread.

    python -m benchmarks defaults --sets evaluation --merge rows.jsonl # measurements of another machine, as they are
    python -m benchmarks defaults --ours-only --folds 2                # the default alone on the development sets
    python -m benchmarks defaults --ours-only --quick --out /tmp/new.jsonl --against benchmarks/results/defaults.jsonl
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import subprocess
import time
import warnings
from collections.abc import Iterable, Iterator
from multiprocessing import TimeoutError, get_context
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import rankdata
from sklearn.model_selection import StratifiedGroupKFold
from threadpoolctl import threadpool_limits

from benchmarks.classifiers import CLASSIFIERS, IMPUTED, OURS, QUICK, Folds, log_loss
from benchmarks.data_sets import N_FOLDS, division, generate, load, names_of, remove

RESULTS = Path(__file__).parent / "results"
FILES = {"development": RESULTS / "defaults.jsonl", "evaluation": RESULTS / "defaults_evaluation.jsonl"}
FILES["generators"] = FILES["development"]
CONDITIONS = [
    "complete",
    *(f"{kind} {share}" for share in (30, 10, 60) for kind in ("random", "at random", "informative", "deployment")),
    "by class 30",
]
N_COPIES = 3  # thinned copies of the training rows, for other classifiers, in deployment
N_BINS = 10
Row = dict[str, Any]
Parts = tuple[pd.DataFrame, np.ndarray, pd.DataFrame, np.ndarray]


# ---- one measurement -------------------------------------------------------------------------------------------------


def split(part: str, name: str, fold: int) -> Parts:
    """Training and test rows of a fold of a measured set, or of a seed of a generator, complete."""
    if part == "generators":
        generator, _, n_train = name.rpartition(" ")
        return generate(generator, int(n_train), seed=10 + fold)
    data = load(name)
    train, test = list(data.folds())[fold]
    return data.X.iloc[train], data.y[train], data.X.iloc[test], data.y[test]


def groups_of(part: str, name: str, fold: int) -> np.ndarray | None:
    """The groups of the training rows of a fold, if the set has any."""
    data = None if part == "generators" else load(name)
    return None if data is None or data.groups is None else data.groups[list(data.folds())[fold][0]]


def thin(parts: Parts, condition: str, fold: int, copies: bool) -> tuple[Parts, np.ndarray]:
    """Rows with values removed, and numbers of the training rows, which copies of a row share."""
    X, y, X_test, y_test = parts
    mechanism, _, share = condition.rpartition(" ")
    rows = np.arange(len(X))
    if condition == "complete":
        return parts, rows
    together = pd.concat((X, X_test))
    if mechanism != "deployment":
        together = remove(together, mechanism, int(share) / 100, fold, np.append(y, y_test))
        return (together.iloc[: len(X)], y, together.iloc[len(X) :], y_test), rows
    X_test = remove(X_test, "random", int(share) / 100, fold)
    if copies:
        thinned = [remove(X, "random", int(share) / 100, 100 + 10 * fold + i) for i in range(N_COPIES)]
        X, y, rows = pd.concat((X, *thinned)), np.tile(y, 1 + N_COPIES), np.tile(rows, 1 + N_COPIES)
    return (X, y, X_test, y_test), rows


def inner_folds(y: np.ndarray, rows: np.ndarray) -> Folds:
    return list(StratifiedGroupKFold(3, shuffle=True, random_state=0).split(y, y, rows))


def measure(part: str, name: str, fold: int, condition: str, classifier: str) -> Row:
    """Scores and seconds. A classifier that fails predicts the class frequencies, and the row says why."""
    copies = not classifier.startswith("Mixture")
    (X, y, X_test, y_test), rows = thin(split(part, name, fold), condition, fold, copies)
    frequencies, groups = np.bincount(y) / len(y), groups_of(part, name, fold)
    given = {} if copies or groups is None else {"groups": groups}
    failure, start = {}, time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            folds = inner_folds(y, rows if groups is None else groups[rows])
            predict = CLASSIFIERS[classifier](X.reset_index(drop=True), y, folds, **given)
            fitted = time.process_time()
            probabilities = np.asarray(predict(X_test.reset_index(drop=True)), dtype=float)
            if not np.isfinite(probabilities).all():
                raise ValueError("probabilities are not finite")
        except ImportError:  # an absent package is no failure of its classifier
            raise
        except Exception as error:  # whatever another library raises
            fitted = time.process_time()
            failure = {"failure": f"{type(error).__name__}: {error}"[:200]}
            probabilities = np.tile(frequencies, (len(y_test), 1))
    seconds = {"fit seconds": fitted - start, "predict seconds": time.process_time() - fitted}
    categories = int((X.dtypes == "category").sum())
    size = {"samples": len(np.unique(rows)), "features": X.shape[1], "categories": categories}
    return {**size, **scores(probabilities, y_test), **{key: round(s, 4) for key, s in seconds.items()}, **failure}


def scores(probabilities: np.ndarray, y: np.ndarray) -> dict[str, float]:
    truth = np.eye(probabilities.shape[1])[y]
    values = {
        "error": (probabilities.argmax(1) != y).mean(),
        "log-loss": log_loss(probabilities, y),
        "Brier": ((probabilities - truth) ** 2).sum(1).mean(),
        "calibration": calibration_error(probabilities, y),
        "AUC": area(probabilities, y),
    }
    return {key: round(float(value), 6) for key, value in values.items()}


def calibration_error(probabilities: np.ndarray, y: np.ndarray) -> float:
    """Mean distance of confidence and accuracy over bins of equal size."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == y
    parts = np.array_split(np.argsort(confidence, kind="stable"), N_BINS)
    return sum(abs(confidence[part].sum() - right[part].sum()) for part in parts) / len(y)


def area(probabilities: np.ndarray, y: np.ndarray) -> float:
    """Area under the ROC curve, the mean over classes against the rest, of those in the test rows."""
    areas = []
    for c in np.unique(y):
        positive = y == c
        if (n := positive.sum()) < len(y):
            ranks = rankdata(probabilities[:, c])
            areas.append((ranks[positive].sum() - n * (n + 1) / 2) / (n * (len(y) - n)))
    return float(np.mean(areas))


# ---- all of them -----------------------------------------------------------------------------------------------------


def version() -> str:
    """The last commit that changed src, with a digest of what differs from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=RESULTS)
        return done.stdout.strip()

    changes = git("diff", "HEAD", "--", ":/src")
    digest = f"+{hashlib.sha1(changes.encode()).hexdigest()[:6]}" if changes else ""
    return git("log", "-1", "--format=%h", "--", ":/src") + digest


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def results() -> list[Row]:
    """All measurements that are kept."""
    return [row for path in dict.fromkeys(FILES.values()) for row in read(path)]


def key_of(row: Row) -> tuple[Any, ...]:
    """Identity of a measurement; other libraries do not change with our code."""
    code = row["code"] if row["classifier"].startswith("Mixture") else ""
    return row["set"], row["fold"], row["condition"], row["classifier"], code


def tasks(options: argparse.Namespace, code: str) -> Iterator[Row]:
    """All measurements, the first fold of all sets first."""
    names, absent = names_of(options.sets)
    if not names:
        raise SystemExit("No set is there; MIXTURA_BENCHMARKS must name the folder of benchmarks.export_data.")
    if absent:
        print("These sets are absent:", ", ".join(absent), flush=True)
    names = [n for n in names if (not options.names or n in options.names)]
    names = [n for n in names if n in division()["quick"]] if options.quick else names
    for fold in range(options.folds):
        for condition in options.conditions:
            for classifier in options.classifiers:
                if classifier.endswith(IMPUTED) and condition == "complete":
                    continue
                job = {"fold": fold, "condition": condition, "classifier": classifier, "code": code}
                job |= {"machine": options.machine} if options.machine else {}
                yield from ({"part": options.sets, "set": name, **job} for name in names)


def completed(row: Row) -> Row:
    """A measurement and its scores, computed with one thread."""
    torch.set_num_threads(1)
    with threadpool_limits(1):
        return row | measure(row["part"], row["set"], row["fold"], row["condition"], row["classifier"])


def merge(files: Iterable[Path], out: Path) -> int:
    """Append the measurements of other files that the file of results lacks, as they are; their number."""
    done = {key_of(row) for row in read(out)}
    new = {key_of(row): row for file in files for row in read(file) if key_of(row) not in done}
    with out.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in new.values())
    return len(new)


def run(rows: Iterable[Row], out: Path, n_processes: int = 1, minutes: float = math.inf) -> None:
    """Append measurements that the file lacks; after the given minutes those that are under way are abandoned."""
    deadline = time.monotonic() + 60 * min(minutes, 1e6)
    done = {key_of(row) for row in read(out)}
    rows = [row for row in rows if key_of(row) not in done]
    with get_context("fork").Pool(n_processes) if n_processes > 1 else ThreadPool(1) as pool:
        results = pool.imap_unordered(completed, rows)
        for _ in rows:
            try:
                row = results.next(deadline - time.monotonic())
            except TimeoutError:
                return
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(*(f"{key} {value}" for key, value in row.items()), sep=", ", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks defaults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", default="development", choices=["development", "evaluation", "generators"])
    parser.add_argument("--names", nargs="*", default=[], help="of sets; all unless given")
    parser.add_argument("--quick", action="store_true", help="12 small development sets")
    parser.add_argument("--classifiers", nargs="*", default=QUICK, choices=list(CLASSIFIERS))
    parser.add_argument("--ours-only", action="store_const", dest="classifiers", const=[OURS])
    parser.add_argument("--conditions", nargs="*", default=["complete", "random 30"], choices=CONDITIONS)
    parser.add_argument("--folds", type=int, default=N_FOLDS)
    parser.add_argument("--out", type=Path, help="results; measurements that it holds are not repeated")
    parser.add_argument("--machine", help="its name in the rows, where several measure one file of results")
    parser.add_argument("--merge", type=Path, nargs="*", help="results of others to append; nothing is measured")
    parser.add_argument("--processes", type=int, default=1, help="with one thread each")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which to stop; a later call continues")
    parser.add_argument("--against", type=Path, help="results of another version, to compare the default with")
    options = parser.parse_args(arguments)
    options.out = options.out or FILES[options.sets]
    if options.merge is None:
        run(tasks(options, version()), options.out, options.processes, options.minutes)
    else:
        print(merge(options.merge, options.out), "measurements appended")
    from benchmarks import average, defaults_page

    if options.against:
        print("\n".join(defaults_page.compare_versions(read(options.out), read(options.against), version())))
    if options.out == FILES[options.sets]:
        defaults_page.write(results())
        average.write()
