"""python -m benchmarks.average: what an average of members costs and gains, beside one member and a random forest.

Two sets of scikit-learn, divided twice in halves: error, log-loss and processor time of a fit with one thread, beside a
forest of 300 trees in the same run. Then predictions and model files, with the default and with `average=1`. The tables
of development and evaluation sets are those of `python -m benchmarks defaults`, put together by kind of features:
nothing is measured for them here.
"""

from __future__ import annotations

import json
import platform
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedShuffleSplit
from threadpoolctl import threadpool_limits

from benchmarks import defaults
from benchmarks.classifiers import OURS
from benchmarks.defaults_page import newest
from mixtura import MixtureClassifier

RESULTS = Path(__file__).parent / "results"
SETS = {"iris": load_iris, "wine": load_wine, "breast cancer": load_breast_cancer, "digits": load_digits}
JUDGED = ("breast cancer", "digits")  # beside a forest
MODELS: dict[str, Callable[[], Any]] = {
    OURS: lambda: MixtureClassifier(random_state=0),
    "MixtureClassifier(average=1)": lambda: MixtureClassifier(average=1, random_state=0),
    "forest of 300 trees": lambda: RandomForestClassifier(300, random_state=0, n_jobs=1),
}
SINGLE, FOREST = list(MODELS)[1:]
N_PREDICTED, N_REPEATS = 10_000, 7
VERSIONS = {"dbe5dc4": "one model is selected", "f8f29c7": "average, without members that are trained on"}
KINDS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "numeric features": lambda row: row["categories"] == 0,
    "with categories": lambda row: row["categories"] > 0,
    "all": lambda row: True,
}
INTRODUCTIONS = {
    "development": """From [defaults](defaults.md): rules of the default were chosen on these sets. Settings of other
classifiers are chosen by cross-validation, which their seconds include. Seconds are of several runs on a shared
machine, so that their ratios are rough. The worst set is the one with the largest log-loss of the default beside the
other.""",
    "evaluation": "From [defaults](defaults.md): no rule was chosen on these sets.",
}
CONDITIONS = {
    "complete": "no values removed",
    "random 30": "30 % of the values removed at random",
    "by class 30": "30 % removed with probabilities that depend on the class",
}
OTHERS = ("random forest", "logistic regression", "LightGBM", "histogram boosting", "CatBoost", "RBF-SVM")


def halves(name: str) -> list[tuple[np.ndarray, ...]]:
    X, y = SETS[name](return_X_y=True)
    splitter = StratifiedShuffleSplit(2, test_size=0.5, random_state=5)
    return [(X[train], y[train], X[test], y[test]) for train, test in splitter.split(X, y)]


def measure_fits() -> list[dict[str, Any]]:
    """Error, log-loss and seconds of every classifier on every split."""
    rows = []
    for name in JUDGED:
        for number, (X, y, X_test, y_test) in enumerate(halves(name)):
            for classifier, make in MODELS.items():
                start = time.process_time()
                model = make().fit(X, y)
                seconds, proba = time.process_time() - start, model.predict_proba(X_test)
                error = float((model.classes_[proba.argmax(1)] != y_test).mean())
                rows += [
                    {
                        "set": name,
                        "split": number,
                        "classifier": classifier,
                        "error": error,
                        "log-loss": float(log_loss(y_test, proba.clip(1e-15))),
                        "seconds": seconds,
                    }
                ]
                print(rows[-1], flush=True)
    return rows


def measure_predictions() -> list[dict[str, Any]]:
    """Milliseconds of predict_proba and bytes of the model file, with several members and with one."""
    rows = []
    for name in SETS:
        for number, (X, y, X_test, _) in enumerate(halves(name)):
            many = X_test[np.random.default_rng(0).integers(len(X_test), size=N_PREDICTED)]
            for classifier in (OURS, SINGLE):
                model = MODELS[classifier]().fit(X, y)
                rows += [
                    {
                        "set": name,
                        "split": number,
                        "classifier": classifier,
                        "members": len(model.members_),
                        "parameters": model.n_parameters_,
                        "one row": milliseconds(model, X_test[:1], 50),
                        "many rows": milliseconds(model, many, 1),
                        "bytes": size_of(model),
                    }
                ]
                print(rows[-1], flush=True)
    return rows


def milliseconds(model: Any, rows: np.ndarray, n_calls: int) -> float:
    """Processor time of a call, the smallest of several."""
    times = []
    for _ in range(N_REPEATS):
        start = time.process_time()
        for _ in range(n_calls):
            model.predict_proba(rows)
        times.append((time.process_time() - start) / n_calls)
    return 1000 * min(times)


def size_of(model: Any) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        model.save(path)
        return path.stat().st_size


# ---- the page --------------------------------------------------------------------------------------------------------


def fits_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| set | classifier | error | log-loss | fit s | times the forest |", "|---" * 6 + "|"]
    for name in (*JUDGED, "mean"):
        chosen = [row for row in rows if name in (row["set"], "mean")]
        seconds = {c: np.sum([row["seconds"] for row in chosen if row["classifier"] == c]) for c in MODELS}
        for classifier in MODELS:
            own = [row for row in chosen if row["classifier"] == classifier]
            error, loss, each = (np.mean([row[key] for row in own]) for key in ("error", "log-loss", "seconds"))
            ratio = seconds[classifier] / seconds[FOREST]
            lines.append(f"| {name} | {classifier} | {error:.2%} | {loss:.3f} | {each:.2f} | {ratio:.1f} |")
    return lines


def predictions_table(rows: list[dict[str, Any]]) -> list[str]:
    head = "set | members | one row, ms | with one member | times | 10 000 rows, ms | with one member | times"
    lines = [f"| {head} | file, kB | with one member | times |", "|---" * 11 + "|"]
    ratios = []
    for name in SETS:
        ours, single = ([r for r in rows if r["set"] == name and r["classifier"] == c] for c in (OURS, SINGLE))
        cells = [", ".join(str(row["members"]) for row in ours)]
        for key, factor, digits in (("one row", 1, 2), ("many rows", 1, 1), ("bytes", 1e-3, 1)):
            values = [factor * np.mean([row[key] for row in part]) for part in (ours, single)]
            cells += [f"{value:.{digits}f}" for value in values] + [f"{values[0] / values[1]:.1f}"]
            each = [a[key] / b[key] for a, b in zip(ours, single, strict=True)]
            ratios += [{"key": key, "mean": values[0] / values[1], "largest": max(each)}]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    words = []
    for key, title in (("one row", "one row"), ("many rows", "10 000 rows"), ("bytes", "file")):
        own = [ratio for ratio in ratios if ratio["key"] == key]
        mean, largest = np.mean([ratio["mean"] for ratio in own]), max(ratio["largest"] for ratio in own)
        words += [f"{title} {mean:.1f} times one member (at most {largest:.1f} on a split)"]
    return [*lines, "", f"Means over the sets: {'; '.join(words)}."]


def sets_table(rows: list[dict[str, Any]], part: str, condition: str) -> list[str]:
    """Sets by kind of features, over the sets and folds that a classifier and this default share."""
    rows = [row for row in rows if row["part"] == part and row["condition"] == condition]
    now = {(row["set"], row["fold"]): row for row in newest(rows) if row["classifier"] == OURS}
    earlier = {
        f"{OURS}, {code}: {what}": [row for row in rows if (row["classifier"], row["code"]) == (OURS, code)]
        for code, what in VERSIONS.items()
    }
    compared = earlier | {name: [row for row in rows if row["classifier"] == name] for name in OTHERS}
    head = "features | compared with | sets x folds | error, ours | its | log-loss, ours | its | ratio | worst set"
    lines = [f"| {head} | fit seconds, ratio |", "|---" * 10 + "|"]
    for kind, of_kind in KINDS.items():
        for name, other in compared.items():
            pairs = [(now[row["set"], row["fold"]], row) for row in other if (row["set"], row["fold"]) in now]
            pairs = [pair for pair in pairs if of_kind(pair[0])]
            if not pairs:
                continue
            (error, its_error), (loss, its_loss) = (
                [np.mean([row[key] for row in side]) for side in zip(*pairs, strict=True)]
                for key in ("error", "log-loss")
            )
            timed = [pair for pair in pairs if pair[0].get("machine") == pair[1].get("machine")]
            seconds, its_seconds = (sum(pair[side]["fit seconds"] for pair in timed) for side in (0, 1))
            worst = max(pairs, key=lambda pair: pair[0]["log-loss"] - pair[1]["log-loss"])
            gap = worst[0]["log-loss"] - worst[1]["log-loss"]
            folds = len({row["fold"] for _, row in pairs})
            cells = [kind, name, f"{len({row['set'] for _, row in pairs})} x {folds}", f"{error:.1%}"]
            cells += [f"{its_error:.1%}", f"{loss:.3f}", f"{its_loss:.3f}", f"{loss / its_loss:.2f}"]
            cells += [f"{worst[0]['set']} {gap:+.3f}", f"{seconds / its_seconds:.1f}" if timed else ""]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def page(results: dict[str, Any]) -> str:
    lines = ["# Averages of members", "", "Written by `python -m benchmarks.average`.", "", results["machine"], ""]
    lines += ["## Two sets beside a forest", ""]
    lines += ["Halves of the sets, two splits; processor time with one thread.", ""]
    lines += [*fits_table(results["fits"]), "", "## Predictions and files", ""]
    lines += ["Fits to the halves of four sets; `predict_proba`, processor time with one thread.", ""]
    lines += [*predictions_table(results["predictions"]), ""]
    for part, text in INTRODUCTIONS.items():
        lines += [f"## {part.capitalize()} sets, by kind of features", "", text, ""]
        for condition, title in CONDITIONS.items():
            table = sets_table(defaults.results(), part, condition)
            if len(table) > 2:
                lines += [f"### {part.capitalize()} sets, {title}", "", *table, ""]
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results: dict[str, Any] = {"fits": measure_fits(), "predictions": measure_predictions()}
    versions = f"scikit-learn {sklearn.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    results["machine"] = f"Code {defaults.version()}; {versions}; {platform.machine()}."
    (RESULTS / "average.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    write()


def read() -> dict[str, Any]:
    return json.loads((RESULTS / "average.json").read_text("utf-8"))


def write() -> None:
    (RESULTS / "average.md").write_text(page(read()), "utf-8")


if __name__ == "__main__":
    main()
