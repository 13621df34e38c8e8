"""Figures of README and docs that come from results: `python -m studies render` writes them, a test compares them.

A fragment is a piece of a document with fields for figures; in the document its words may be wrapped otherwise.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.stamps import RESULTS, ROOT, published
from studies.comparison import read

BENCHMARKS = ROOT / "benchmarks" / "results"
NUMBER = r"-?\d+(?:\.\d+)?"


def hybrid(table: str, row: str) -> float:
    """Mean test error of a row of RPTP18 table 1."""
    return float(np.mean([run["test"] for run in read(RESULTS, "hybrid.json")[table][row].values()]))


def discriminative(data: str, method: str) -> float:
    """Mean test error of KJO03."""
    records = read(RESULTS, "discriminative.json")["records"]
    return float(np.mean([r["test"] for r in records if (r["data"], r["method"]) == (data, method)]))


def spread(row: str) -> float:
    """Mean test error of label spreading."""
    return float(np.mean([run["test"] for run in read(RESULTS, "label_spreading.json")["few labels"][row].values()]))


def pca50() -> dict[str, float]:
    """MNIST, 50 principal components: one EM fit, averaged EM, and the hybrid that starts from averaged EM."""
    table, average = "MNIST (pca50)", "LL, average of 5 starts"
    return {
        "em": hybrid(table, "LL"),
        "average": hybrid(table, average),
        "hybrid": hybrid(f"{table}, searched", "LL+LM"),
    }


def sevens() -> dict[str, float]:
    figures = published()["KJO03 table 2, test error"]["rows"]["7-9"]
    return {"ours": discriminative("7-9", "dgmm"), "mixtures": figures[0], "machines": figures[1]}


def banana() -> dict[str, float]:
    runs = read(RESULTS, "sparse_table.json")["runs"]["banana/sdgm"].values()
    return {key: float(np.mean([run[key] for run in runs])) for key in ("error", "weights")}


def speed() -> dict[str, float]:
    """Smallest and largest ratios to scikit-learn of iterations and predictions, and that of a small fit."""
    results, figures = read(BENCHMARKS, "speed.json"), {}
    for part, word in (("iterations", "em"), ("predictions", "predict")):
        for threads, suffix in (("two threads", "two"), ("one thread", "one")):
            ratios = [run["ratios"]["scikit-learn"] for run in results[part][threads]]
            figures |= {f"{word}_{suffix}_low": min(ratios), f"{word}_{suffix}_high": max(ratios)}
    return figures | {"small": 1 / results["small"]["one thread"]["ratios"]["scikit-learn"]}


def card() -> dict[str, float]:
    """Milliseconds of a million samples of 32 features with 64 full components on a GPU."""
    passes = read(BENCHMARKS, "gpu.json")["passes"]
    own = next(run for run in passes if run["workload"] == "full N=1,000,000 D=32 K=64")
    return {"each": own["pass"], "iteration": own["iteration of fit"]}


def texts() -> dict[str, float]:
    """Errors and log-losses on 4500 docstrings, of counts and of sentence embeddings."""
    results, figures = read(BENCHMARKS, "wide.json"), {}
    names = {"mixture": "counts", "logistic, tf-idf, C by folds": "logistic", "linear SVM, tf-idf": "machine",
             "naive Bayes": "bayes", "complement naive Bayes": "complement"}  # fmt: skip
    of_counts = next(own for own in results["texts"] if own["set"] == "docstrings")["results"]
    of_sentences = next(own for own in results["wide"] if own["set"] == "docstrings, sentence embeddings")["results"]
    scores = {name: of_counts[key] for key, name in names.items()} | {"sentences": of_sentences["mixture"]}
    for name, (error, loss, *_) in scores.items():
        figures |= {name: error, f"{name}_loss": loss}
    return figures


def few() -> dict[str, float]:
    way = "no validation labels"
    return {
        "components": spread(f'100: init="spread"; {way}'),
        "pixels": spread(f"100: spread, EM; {way}"),
        "thousand": spread(f'1000: init="spread"; {way}'),
    }


START = "(averaged EM, from which it starts: {average:.2f} %; one EM fit: {em:.2f} %)"
# Document, fragment, and the function that has its figures.
FRAGMENTS: tuple[tuple[str, str, Callable[[], Mapping[str, Any]]], ...] = (
    ("README.md", f"the hybrid classifier has {{hybrid:.2f}} % test error {START}", pca50),
    (
        "README.md",
        "mixtures reach {ours:.1f} % (published mixtures: {mixtures} %, support vector machines: {machines} %)",
        sevens,
    ),
    ("README.md", "On Banana {weights:.0f} weights remain, at {error:.1f} % error", banana),
    (
        "README.md",
        "On two cores an EM iteration is {em_two_low:.1f} to {em_two_high:.1f} times as fast as scikit-learn's, with "
        "one thread {em_one_low:.1f} to {em_one_high:.1f} times, and `predict_proba` {predict_two_low:.1f} to "
        "{predict_two_high:.1f} times, with one thread {predict_one_low:.1f} to {predict_one_high:.1f} times; with one "
        "thread a fit to 250 samples takes {small:.1f} "
        "times as long",
        speed,
    ),
    ("README.md", "64 full components take {each:.1f} ms per pass, {iteration:.1f} ms per iteration of a fit", card),
    (
        "docs/texts.md",
        """| `NonnegativeMixtureClassifier` on counts | {counts:.1f} | {counts_loss:.3f} |
| `MixtureClassifier` on [sentence embeddings](embeddings.md) | {sentences:.1f} | {sentences_loss:.3f} |
| logistic regression on tf-idf, penalty by cross-validation | {logistic:.1f} | {logistic_loss:.3f} |
| linear support vector machine on tf-idf | {machine:.1f} | |
| naive Bayes on counts | {bayes:.1f} | {bayes_loss:.3f} |
| complement naive Bayes on counts | {complement:.1f} | {complement_loss:.3f} |""",
        texts,
    ),
    ("docs/which_estimator.md", f"MNIST, 50 principal components: {{hybrid:.2f}} % {START}", pca50),
    (
        "docs/choosing.md",
        "one EM fit has {em:.1f} % test error, the average of five {average:.2f} %, and hybrid training from the "
        "average of three {hybrid:.2f} %",
        pca50,
    ),
    (
        "docs/few_labels.md",
        "{components:.1f} % test error with 100 labels (five draws; {pixels:.1f} % with neighbours in pixel space), "
        "{thousand:.1f} % with 1000 labels",
        few,
    ),
)


def pattern(fragment: str) -> re.Pattern[str]:
    """The fragment with any numbers in its fields and any white space between its words."""
    parts = []
    for words, field, _, _ in string.Formatter().parse(fragment):
        parts.append(r"\s+".join(map(re.escape, re.split(r"\s+", words))))
        parts += [f"({NUMBER})"] if field is not None else []
    return re.compile("".join(parts))


def rendered(text: str, fragment: str, values: Mapping[str, Any]) -> str:
    """The text with the figures of a fragment replaced."""
    matches = list(pattern(fragment).finditer(text))
    if len(matches) != 1:
        raise ValueError(f"a fragment must be in its document once; got {len(matches)} times: {fragment}")
    numbers = re.findall(NUMBER, "|".join(
        format(values[field], form or "") for _, field, form, _ in string.Formatter().parse(fragment) if field
    ))  # fmt: skip
    for group, number in reversed(list(enumerate(numbers, 1))):
        text = text[: matches[0].start(group)] + number + text[matches[0].end(group) :]
    return text


def documents(root: Path = ROOT) -> dict[Path, str]:
    """Every document with its figures as in the results."""
    texts: dict[Path, str] = {}
    for name, fragment, values in FRAGMENTS:
        path = root / name
        texts[path] = rendered(texts.get(path, path.read_text("utf-8")), fragment, values())
    return texts


def write() -> None:
    for path, text in documents().items():
        path.write_text(text, "utf-8")
