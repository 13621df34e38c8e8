"""python -m benchmarks doubt: recognition of samples of classes that a model does not know. Writes results/doubt.*.

Near: samples of classes that were left out. Far: another set. Sets are those of the folder that MIXTURA_DATA names, and
the digits of scikit-learn. Features of "network" are the last hidden layer of a small convolutional network that was
trained on the known classes, those of "components" are 100 principal components of the pixels. Nothing is fitted to
unknown samples. The second table has the coverage of prediction sets in every class.
"""

from __future__ import annotations

import json
import os
import platform
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp, softmax
from scipy.stats import rankdata
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NearestNeighbors

from mixtura import MixtureClassifier

RESULTS = Path(__file__).parent / "results"
DATA = Path(os.environ.get("MIXTURA_DATA", "."))
LETTERS = "ACEFHJKMNPRTUVWXY"  # the others look like digits
OURS = "mixture, default"
SOFTMAX = "mixture, largest probability"
Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # training and test samples of known classes
Problem = tuple[str, Parts, dict[str, np.ndarray]]  # name; unknown samples by kind


# ---- sets ------------------------------------------------------------------------------------------------------------


def leave_out(parts: Parts, classes: tuple[Any, ...]) -> tuple[Parts, np.ndarray]:
    """The samples of all other classes, and the test samples of these."""
    X, y, X_test, y_test = parts
    known, known_test = ~np.isin(y, classes), ~np.isin(y_test, classes)
    return (X[known], y[known], X_test[known_test], y_test[known_test]), X_test[~known_test]


def drawn_letters(n_letters: int, seed: int = 0) -> np.ndarray:
    """Letters in two fonts, turned a little, as the digits of scikit-learn were made: counts of 4 x 4 pixels."""
    from matplotlib.font_manager import FontProperties, findfont
    from PIL import Image, ImageDraw, ImageFont

    rng, rows = np.random.default_rng(seed), []
    fonts = [ImageFont.truetype(findfont(FontProperties(family=name)), 30) for name in ("DejaVu Sans", "DejaVu Serif")]
    for _ in range(n_letters):
        image = Image.new("L", (48, 48))
        letter, font = LETTERS[rng.integers(len(LETTERS))], fonts[rng.integers(2)]
        ImageDraw.Draw(image).text((24, 24), letter, fill=255, font=font, anchor="mm")
        ink = np.asarray(image.rotate(8 * rng.normal())) > 100
        box = np.ix_(*(np.arange(ink.shape[1 - i])[slice(*_ends(ink.any(i)))] for i in (1, 0)))
        width = int(rng.integers(16, 26))
        small = Image.fromarray((255 * ink[box]).astype(np.uint8)).resize((width, 30))
        whole = np.zeros((32, 32))
        whole[1:31, (32 - width) // 2 : (32 - width) // 2 + width] = np.asarray(small) > 127
        rows.append(whole.reshape(8, 4, 8, 4).sum((1, 3)).ravel())
    return np.array(rows)


def _ends(used: np.ndarray) -> tuple[int, int]:
    places = np.flatnonzero(used)
    return int(places[0]), int(places[-1]) + 1


def network_features(X: np.ndarray, y: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """The last hidden layer of a network trained on X, for X and others."""
    torch.manual_seed(0)
    hidden = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 5, stride=2, padding=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 5, stride=2, padding=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 49, 128),
        torch.nn.ReLU(),
    )
    head = torch.nn.Linear(128, len(np.unique(y)))
    images = [torch.from_numpy(part).float().div(255).reshape(-1, 1, 28, 28) for part in (X, *others)]
    numbers = torch.from_numpy(np.unique(y, return_inverse=True)[1])
    optimiser = torch.optim.Adam([*hidden.parameters(), *head.parameters()], 1e-3)
    for _ in range(3):
        for batch in torch.randperm(len(numbers)).split(64):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(head(hidden(images[0][batch])), numbers[batch]).backward()
            optimiser.step()
    with torch.no_grad():
        return [hidden(part).numpy() for part in images]


def embeddings() -> Parts:
    known = np.load(DATA / "docstrings_minilm.npz")
    return tuple(known[name] for name in ("X_train", "y_train", "X_test", "y_test"))


def digits() -> Parts:
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, stratify=y, random_state=0)
    return X, y, X_test, y_test


def some_samples(name: str, n_train: int, n_test: int) -> Parts:
    known, rng, parts = np.load(DATA / f"{name}.npz"), np.random.default_rng(0), []
    for part, size in (("train", n_train), ("test", n_test)):
        some = rng.permutation(len(known[f"y_{part}"]))[:size]
        parts += [known[f"X_{part}"][some].reshape(size, -1), known[f"y_{part}"][some]]
    return tuple(parts)


def problems() -> Iterator[Problem]:
    """Training sets with unknown samples, by kind."""
    packages = ("torch", "sympy", "sklearn"), ("matplotlib", "sympy", "pandas"), ("numpy", "torch", "plotly")
    for classes in packages:
        parts, near = leave_out(embeddings(), classes)
        yield f"docstrings, embeddings, without {', '.join(classes)}", parts, {"near": near}
    for classes in ((7, 8, 9), (3, 4, 5)):
        names = ", ".join(map(str, classes))
        parts, near = leave_out(digits(), classes)
        yield f"digits, pixels, without {names}", parts, {"near": near, "far (letters)": drawn_letters(600)}
        parts, near = leave_out(some_samples("usps", 4000, 2000), classes)
        yield f"USPS, pixels, without {names}", parts, {"near": near}
        for title, name, other in (("MNIST", "mnist", "fashion_mnist"), ("Fashion", "fashion_mnist", "mnist")):
            (X, y, X_test, y_test), near = leave_out(some_samples(name, 9000, 4000), classes)
            far = np.load(DATA / f"{other}.npz")["X_test"][:1500].reshape(1500, -1)
            kinds = ["near", "far (Fashion)" if name == "mnist" else "far (MNIST)"]
            X_net, test, *unknown = network_features(X, y, X_test, near, far)
            yield f"{title}, network, without {names}", (X_net, y, test, y_test), dict(zip(kinds, unknown, strict=True))
            axes = PCA(100, random_state=0).fit(X.astype(np.float32))
            X_axes, test, *unknown = (axes.transform(part.astype(np.float32)) for part in (X, X_test, near, far))
            unknown = dict(zip(kinds, unknown, strict=True))
            yield f"{title}, components, without {names}", (X_axes, y, test, y_test), unknown
        parts, near = leave_out(some_samples("cifar10_pca50", 6000, 4000), classes)
        yield f"CIFAR-10, 50 components, without {names}", parts, {"near": near}


# ---- scores ----------------------------------------------------------------------------------------------------------


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)


def background(model: MixtureClassifier, rows: np.ndarray) -> np.ndarray:
    """log density of one Gaussian that has the mean and covariance of the mixture, up to a constant."""
    if model.warp_ is not None:
        rows = model.warp_.forward(torch.from_numpy(rows)).numpy()
    mean = model.weights_ @ model.means_
    offsets = (model.means_ - mean) * np.sqrt(model.weights_)[:, None]
    covariance = np.tensordot(model.weights_, model.covariances_, 1) + offsets.T @ offsets
    deviations = rows - mean
    return -0.5 * (deviations * cho_solve(cho_factor(covariance), deviations.T).T).sum(1)


def typicality(model: MixtureClassifier, X: np.ndarray, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """-log of the largest p-value of a class: the share of its training samples that are as improbable in it."""
    joint, own = model.predict_joint_log_proba(rows), model.predict_joint_log_proba(X)
    p_values = [
        (1 + np.searchsorted(np.sort(own[y == label, c]), joint[:, c], "right")) / (1 + (y == label).sum())
        for c, label in enumerate(model.classes_)
    ]
    return -np.log(np.max(p_values, 0))


def scores_of(parts: Parts, groups: list[np.ndarray]) -> dict[str, list[np.ndarray]]:
    """Scores of groups of samples by every rule; larger values are more unusual."""
    X, y = parts[0].astype(float), parts[1]
    model = MixtureClassifier(random_state=0).fit(X, y)
    of_length_1 = MixtureClassifier(random_state=0).fit(unit(X), y)
    scale = X.std()
    linear = LogisticRegression(max_iter=300).fit(X / scale, y)
    weights, offsets = linear.coef_ / scale, linear.intercept_
    neighbours = NearestNeighbors(n_neighbors=max(1, min(50, len(X) // 100))).fit(unit(X))
    origin = -np.linalg.pinv(weights) @ offsets  # of ViM (Wang et al. 2022), with half of the directions left
    residual = np.linalg.eigh((X - origin).T @ (X - origin))[1][:, : X.shape[1] - X.shape[1] // 2]
    length = np.linalg.norm((X - origin) @ residual, axis=1).mean()
    vim = (X @ weights.T + offsets).max(1).mean() / length
    scores: dict[str, list[np.ndarray]] = {}
    for rows in (group.astype(float) for group in groups):
        logits, density = rows @ weights.T + offsets, model.score_samples(rows)
        energy = -logsumexp(logits, axis=1)
        own = {
            OURS: model.outlier_score(rows, "auto"),
            "the same, rows of length 1": of_length_1.outlier_score(unit(rows), "auto"),
            "mixture, distance": model.outlier_score(rows),
            "mixture, density": -density,
            "mixture, density relative to one Gaussian": background(model, rows) - density,
            "mixture, typicality in a class": typicality(model, X, y, rows),
            SOFTMAX: -model.predict_proba(rows).max(1),
            "logistic regression, largest probability": -softmax(logits, 1).max(1),
            "logistic regression, energy": energy,
            "nearest neighbours": neighbours.kneighbors(unit(rows))[0][:, -1],
            "ViM": vim * np.linalg.norm((rows - origin) @ residual, axis=1) + energy,
        }
        for name, values in own.items():
            scores.setdefault(name, []).append(values)
    return scores


def compare(known: np.ndarray, unknown: np.ndarray) -> tuple[float, float]:
    """Area under the ROC curve, and the share of known samples above the threshold that 95 % of the unknown exceed."""
    both, which = np.append(known, unknown), np.repeat([0, 1], [len(known), len(unknown)])
    return float(roc_auc_score(which, both)), float((known >= np.quantile(unknown, 0.05)).mean())


# ---- prediction sets -------------------------------------------------------------------------------------------------


def set_coverage(parts: Parts, coverage: float = 0.9, n_splits: int = 100) -> dict[str, float]:
    """Coverage in every class over splits of the test samples into 50 calibration samples per class and others.

    The expected coverage is ceil(51 coverage) / 51; the error is that of the mean over the splits.
    """
    X, y, X_test, y_test = parts
    model, rng, shares, sizes = MixtureClassifier(random_state=0).fit(X, y), np.random.default_rng(0), [], []
    for _ in range(n_splits):
        order = rng.permutation(len(y_test))
        few = np.concatenate([order[y_test[order] == label][:50] for label in model.classes_])
        others = np.setdiff1d(order, few)
        sets = model.calibrate_sets(X_test[few], y_test[few]).predict_set(X_test[others], coverage)
        own = sets[np.arange(len(others)), np.searchsorted(model.classes_, y_test[others])]
        shares.append([own[y_test[others] == label].mean() for label in model.classes_])
        sizes.append(sets.sum(1).mean())
    mean, error = np.mean(shares, 0), np.std(shares, 0, ddof=1) / np.sqrt(n_splits)
    off = (mean - np.ceil(51 * coverage) / 51) / error
    return {
        "smallest": mean.min(),
        "largest": mean.max(),
        "classes": len(mean),
        "within": int((np.abs(off) <= 2).sum()),
        "farthest": float(np.abs(off).max()),
        "size": float(np.mean(sizes)),
    }


# ---- the table -------------------------------------------------------------------------------------------------------


def measure() -> dict[str, Any]:
    """The results of all rules on all problems, and the coverage of sets."""
    rows = []
    for name, parts, unknown in problems():
        scores = scores_of(parts, [parts[2], *unknown.values()])
        for place, kind in enumerate(unknown, 1):
            results = {rule: compare(values[0], values[place]) for rule, values in scores.items()}
            rows.append({"set": name, "kind": kind, "shape": list(parts[0].shape), "results": results})
            print(name, kind, {rule: round(area, 3) for rule, (area, _) in results.items()}, flush=True)
    sets = {"docstrings, embeddings": set_coverage(embeddings()), "digits, pixels": set_coverage(digits())}
    return {"rows": rows, "sets": sets}


def as_markdown(results: dict[str, Any]) -> str:
    """Areas under the ROC curve and false positive rates in one table, near sets first; the means; the coverage."""
    rows = sorted(results["rows"], key=lambda row: row["kind"] != "near")
    rules = list(rows[0]["results"])
    areas = np.array([[row["results"][rule][0] for rule in rules] for row in rows])
    lines = [
        "# Samples of unknown classes",
        "",
        "Written by `python -m benchmarks doubt`. Area under the ROC curve, and the false positive rate in % at a true",
        "positive rate of 95 %, of samples of unknown classes among test samples of known ones. The best area of a row",
        "is bold. Docstrings without torch, sympy, sklearn and sets without 7, 8, 9 served to choose the rule;",
        "the others, and USPS, did not.",
        "",
        results["versions"],
        "",
        f"| set | samples x features | {' | '.join(rules)} |",
        "|---" * (len(rules) + 2) + "|",
    ]
    for row, values in zip(rows, areas, strict=True):
        cells = [f"{area:.3f}, {100 * rate:.0f}" for area, rate in (row["results"][rule] for rule in rules)]
        cells = [f"**{cell}**" if value == values.max() else cell for cell, value in zip(cells, values, strict=True)]
        size = " x ".join(map(str, row["shape"]))
        lines.append(f"| {row['set']}, {row['kind']} | {size} | {' | '.join(cells)} |")
    ranks = np.mean([rankdata(-values) for values in areas], 0)
    near = np.array([row["kind"] == "near" for row in rows])
    rates = np.mean([[row["results"][rule][1] for rule in rules] for row in rows], 0)
    summaries = {
        "mean of near": areas[near].mean(0),
        "mean of far": areas[~near].mean(0),
        "mean": areas.mean(0),
        "mean rank": ranks,
        "smallest difference from the mixture's largest probability": (areas - areas[:, [rules.index(SOFTMAX)]]).min(0),
        "smallest difference from logistic regression's": (
            areas - areas[:, [rules.index("logistic regression, largest probability")]]
        ).min(0),
    }
    for title, values in summaries.items():
        text = [f"{value:.1f}" if title == "mean rank" else f"{value:.3f}" for value in values]
        lines.append(f"| {title} | | {' | '.join(text)} |")
    lines.append(f"| mean false positive rate, % | | {' | '.join(f'{100 * rate:.0f}' for rate in rates)} |")
    lost = [
        f"{row['set']}, {row['kind']} ({values[0]:.3f}, {rules[int(values.argmax())]} {values.max():.3f})"
        for row, values in zip(rows, areas, strict=True)
        if values[0] < values.max() - 0.02
    ]
    lines += [
        "",
        f"{OURS} is more than 0.02 below the best of the row: {'; '.join(lost)}.",
        "",
        "## Prediction sets",
        "",
    ]
    lines += [
        "Sets of coverage 0.9, with 50 calibration samples of every class, over 100 splits: the mean coverage of each",
        "class, beside the expected 46 / 51 = 0.902, in standard errors of the mean over the splits.",
        "",
        "| set | coverage of the classes | classes within two standard errors | farthest | mean size of a set |",
        "|---|---|---|---|---|",
    ]
    for name, row in results["sets"].items():
        span, inside = f"{row['smallest']:.3f} to {row['largest']:.3f}", f"{row['within']} of {row['classes']}"
        lines.append(f"| {name} | {span} | {inside} | {row['farthest']:.1f} | {row['size']:.2f} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    from benchmarks.defaults import version

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results = measure()
    libraries = f"scikit-learn {sklearn.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    results["versions"] = f"Code {version()}; {libraries}."
    (RESULTS / "doubt.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    (RESULTS / "doubt.md").write_text(as_markdown(results), "utf-8")
