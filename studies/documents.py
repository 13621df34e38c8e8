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
    return {"error": float(np.mean([run["error"] for run in runs]))}


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
    ("README.md", "weights remain, at {error:.1f} % error", banana),
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
