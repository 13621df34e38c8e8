"""python -m benchmarks.wide [PART ...]: wide features and texts beside linear classifiers. Writes results/wide.*.

Sets are docstrings of installed packages, whose module is the label, and those of the folder that MIXTURA_DATA names.
One thread, processor time. None of these sets served to choose a constant, except docstrings, fashion and usps.
"""

from __future__ import annotations

import ast
import gzip
import importlib.util
import json
import os
import platform
import random
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import TruncatedSVD
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer, TfidfVectorizer
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.naive_bayes import ComplementNB, MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from mixtura import MixtureClassifier, NonnegativeMixtureClassifier

RESULTS = Path(__file__).parent / "results"
DATA = Path(os.environ.get("MIXTURA_DATA", "."))
Sample = tuple[Any, np.ndarray, Any, np.ndarray]
PACKAGES = (
    "PIL",
    "fontTools",
    "hypothesis",
    "jinja2",
    "networkx",
    "onnx",
    "pip",
    "plotly",
    "pygments",
    "rich",
    "typer",
)
LIBRARY = ("asyncio", "distutils", "email", "http", "importlib", "logging", "multiprocessing", "tarfile", "tkinter")
LIBRARY += ("turtle", "typing", "unittest", "xml", "_pydecimal")
STRENGTHS = {"C": [0.3, 1.0, 3.0, 10.0, 30.0]}


def docstrings(modules: tuple[str, ...], per_module: int) -> tuple[list[str], np.ndarray]:
    """Docstrings of installed modules without their names, in random order, and the modules."""
    pairs, rng = [], random.Random(0)
    for module in modules:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            continue
        origin, texts = Path(spec.origin), {}
        for file in sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]:
            if "tests" in file.parts:
                continue
            for node in ast.walk(ast.parse(file.read_text("utf-8", errors="ignore"))):
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
                    text = re.sub(re.escape(module), " ", ast.get_docstring(node) or "", flags=re.IGNORECASE)
                    text = " ".join(text.split())[:400]
                    if len(text.split()) >= 6:
                        texts[text] = module
        own = list(texts.items())
        rng.shuffle(own)
        pairs += own[:per_module]
    rng.shuffle(pairs)
    return [text for text, _ in pairs], np.array([module for _, module in pairs])


def split_texts(texts: list[str], labels: np.ndarray) -> Sample:
    parts = train_test_split(texts, labels, train_size=0.5, stratify=labels, random_state=0)
    return parts[0], parts[2], parts[1], parts[3]


def texts() -> Iterator[tuple[str, Sample]]:
    """Training and test texts with their labels."""
    if (DATA / "docstrings.json.gz").exists():
        with gzip.open(DATA / "docstrings.json.gz") as file:
            known = json.load(file)
        every, labels, n = known["texts"], np.array(known["labels"]), known["n_train"]
        yield "docstrings", (every[:n], labels[:n], every[n:], labels[n:])
        order = np.random.default_rng(0).permutation(n)
        for size in (1500, 500, 200):
            some = order[:size]
            yield f"docstrings, {size}", ([every[i] for i in some], labels[some], every[n:], labels[n:])
    yield "other packages", split_texts(*docstrings(PACKAGES, 500))
    yield "standard library", split_texts(*docstrings(LIBRARY, 300))


def some_images(name: str) -> Sample:
    """3000 training and 2000 test images."""
    known, rng = np.load(DATA / f"{name}.npz"), np.random.default_rng(0)
    parts: list[Any] = []
    for part, size in (("train", 3000), ("test", 2000)):
        X, some = known[f"X_{part}"], rng.permutation(len(known[f"X_{part}"]))[:size]
        parts += [X[some].reshape(size, -1).astype(float), known[f"y_{part}"][some]]
    return parts[0], parts[1], parts[2], parts[3]


def half(X: np.ndarray, y: np.ndarray, n_train: int) -> Sample:
    X, X_test, y, y_test = train_test_split(X, y, train_size=n_train, stratify=y, random_state=0)
    return X, y, X_test, y_test


def wide_sets() -> Iterator[tuple[str, Sample]]:
    """Rows of 100 features or more."""
    for name, file in (("fashion", "fashion_mnist"), ("usps", "usps"), ("MNIST", "mnist")):
        if (DATA / f"{file}.npz").exists():
            yield f"{name}, pixels", some_images(file)
    if (DATA / "docstrings_minilm.npz").exists():
        known = np.load(DATA / "docstrings_minilm.npz")
        yield "docstrings, sentence embeddings", tuple(known[k] for k in ("X_train", "y_train", "X_test", "y_test"))
    if (DATA / "cbcl_faces.npz").exists():
        known = np.load(DATA / "cbcl_faces.npz")
        yield "faces, pixels", half(known["X_train"].reshape(-1, 361).astype(float), known["y_train"], 3000)
    for name, (train, y, test, y_test) in texts():
        if "," not in name:
            words, axes = TfidfVectorizer(min_df=2), TruncatedSVD(256, random_state=0)
            X = axes.fit_transform(words.fit_transform(train))
            yield f"{name}, singular vectors of tf-idf", (X, y, axes.transform(words.transform(test)), y_test)
    X, y = load_digits(return_X_y=True)
    yield (
        "digits, random features",
        half(RBFSampler(gamma=5e-4, n_components=500, random_state=0).fit_transform(X), y, 1000),
    )
    if (DATA / "cifar10_pca50.npz").exists():
        known, rng = np.load(DATA / "cifar10_pca50.npz"), np.random.default_rng(0)
        weights, some = rng.normal(size=(50, 400)) / 3, rng.permutation(50_000)[:4000]
        X, X_test = (np.maximum(part.astype(float) @ weights, 0) for part in (known["X_train"][some], known["X_test"]))
        yield "CIFAR-10, random layer", (X, known["y_train"][some], X_test[:2000], known["y_test"][:2000])
    if (DATA / "ratsch_waveform.npz").exists():
        for name, gamma, n in (("image", 0.1, 1300), ("waveform", 0.02, 2000)):
            known = np.load(DATA / f"ratsch_{name}.npz")
            X = RBFSampler(gamma=gamma, n_components=200, random_state=0).fit_transform(known["X"])
            yield f"{name} segments, random features".replace("waveform segments", "waveform"), half(X, known["y"], n)


def linear(**options: Any) -> LogisticRegression:
    return LogisticRegression(max_iter=1000, **options)


def cross_validated(first: Any) -> Any:
    """Logistic regression whose penalty is chosen by five folds."""
    return make_pipeline(first, GridSearchCV(linear(), STRENGTHS, scoring="neg_log_loss"))


def wide_classifiers() -> dict[str, Any]:
    return {
        "mixture": MixtureClassifier(random_state=0),
        "LDA": LinearDiscriminantAnalysis(),
        "logistic": linear(),
        "logistic, scaled": make_pipeline(StandardScaler(), linear()),
        "logistic, scaled, C by folds": cross_validated(StandardScaler()),
    }


def text_classifiers() -> dict[str, Any]:
    return {
        "mixture": NonnegativeMixtureClassifier(random_state=0),
        "naive Bayes": MultinomialNB(),
        "complement naive Bayes": ComplementNB(),
        "logistic, tf-idf, C by folds": cross_validated(TfidfTransformer()),
        "linear SVM, tf-idf": make_pipeline(TfidfTransformer(), LinearSVC()),
    }


def counted() -> Iterator[tuple[str, Sample]]:
    """Word counts of the texts."""
    for name, (train, y, test, y_test) in texts():
        words = CountVectorizer(stop_words="english", min_df=2)
        X = words.fit_transform(train)
        yield name, (X, y, words.transform(test), y_test)


def scores(model: Any, sample: Sample) -> tuple[float, float, float]:
    """Error in per cent, log-loss, and seconds of the fit."""
    X, y, X_test, y_test = sample
    began = time.process_time()
    model.fit(X, y)
    seconds = time.process_time() - began
    error = 100 * float((model.predict(X_test) != y_test).mean())
    if not hasattr(model, "predict_proba"):
        return error, float("nan"), seconds
    own = model.predict_proba(X_test)[np.arange(len(y_test)), np.searchsorted(model.classes_, y_test)]
    return error, float(-np.log(own.clip(1e-300)).mean()), seconds


PARTS: dict[str, tuple[str, Callable[[], Any], Callable[[], dict[str, Any]]]] = {
    "wide": ("Wide features", wide_sets, wide_classifiers),
    "texts": ("Counts of words", counted, text_classifiers),
}


def measure(part: str) -> list[dict[str, Any]]:
    _, sets, classifiers = PARTS[part]
    rows = []
    for name, sample in sets():
        X, y = sample[:2]
        results = {rival: scores(model, sample) for rival, model in classifiers().items()}
        rows.append({"set": name, "shape": list(X.shape), "n_classes": len(np.unique(y)), "results": results})
        print(rows[-1], flush=True)
    return rows


def as_markdown(results: dict[str, Any]) -> str:
    lines = [
        "# Wide features and texts",
        "",
        "Written by `python -m benchmarks.wide`. Error in %, log-loss, and seconds of",
    ]
    lines += ["processor time of the fit with one thread; the smallest error and log-loss of a row are bold."]
    lines += [
        "Docstrings, fashion and usps served to choose constants, the other sets did not.",
        "",
        results["versions"],
    ]
    for part, (title, _, _) in PARTS.items():
        rows = results.get(part, [])
        if not rows:
            continue
        rivals = list(rows[0]["results"])
        lines += ["", f"## {title}", "", f"| set | samples x features, classes | {' | '.join(rivals)} |"]
        lines += ["|---" * (len(rivals) + 2) + "|"]
        for row in rows:
            best = [np.nanmin([values[i] for values in row["results"].values()]) for i in (0, 1)]
            cells = []
            for error, loss, seconds in row["results"].values():
                texts = [f"{error:.1f}", "" if np.isnan(loss) else f"{loss:.3f}"]
                texts = [f"**{t}**" if v == b else t for t, v, b in zip(texts, (error, loss), best, strict=True)]
                cells.append(", ".join(filter(None, [*texts, f"{seconds:.2f} s"])))
            shape = " x ".join(str(size) for size in row["shape"])
            lines.append(f"| {row['set']} | {shape}, {row['n_classes']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    path = RESULTS / "wide.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    versions = f"scikit-learn {sklearn.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    results["versions"] = versions
    for part in sys.argv[1:] or PARTS:
        results[part] = measure(part)
        path.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        (RESULTS / "wide.md").write_text(as_markdown(results), "utf-8")


if __name__ == "__main__":
    main()
