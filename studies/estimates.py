"""Bias of search_.estimate on small samples: python -m studies.estimates [--draws N] [--minutes M].

Estimates minus losses of 2000 new samples, over draws of the training samples. Variants fix what saw all samples:
without transforms, and with a temperature of 1. A run goes on where the last one stopped; the page is written from
estimates.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import log_loss

from mixtura import MixtureClassifier
from mixtura.datasets import make_ripley
from reproduce.stamps import stamp

RESULTS = Path(__file__).parent / "results"
N_SAMPLES, N_NEW = 60, 2000
Sample = tuple[np.ndarray, np.ndarray]


def coins(rng: np.random.Generator, n: int) -> Sample:
    return rng.normal(size=(n, 4)), rng.integers(2, size=n)


def skewed(rng: np.random.Generator, n: int) -> Sample:
    X, y = coins(rng, n)
    return np.exp(X), y


def missing(rng: np.random.Generator, n: int) -> Sample:
    X, y = coins(rng, n)
    return np.where(rng.random(X.shape) < 0.2, np.nan, X), y


def unequal(rng: np.random.Generator, n: int) -> Sample:
    return rng.normal(size=(n, 4)), rng.choice(3, n, p=(0.6, 0.25, 0.15))


def ripley(rng: np.random.Generator, n: int) -> Sample:
    return make_ripley(n // 2, random_state=int(rng.integers(2**31)))


def shifted(rng: np.random.Generator, n: int) -> Sample:
    """Skewed features, the first of which differs between the classes."""
    y = rng.integers(2, size=n)
    return np.exp(rng.normal(size=(n, 4)) + y[:, None] * [1.0, 0.0, 0.0, 0.0]), y


CASES: dict[str, tuple[str, Callable[[np.random.Generator, int], Sample]]] = {
    "coins": ("labels are fair coins, 4 Gaussian features", coins),
    "skewed": ("labels are fair coins, 4 log-normal features", skewed),
    "missing": ("labels are fair coins, 20 % of the values missing", missing),
    "unequal": ("three classes of 60, 25 and 15 % at random", unequal),
    "shifted": ("4 log-normal features, one of which differs", shifted),
    "ripley": ("Ripley's two classes", ripley),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "no transform": {"warp": None},
    "temperature 1": {"temperature": 1.0},
}
WITH_VARIANTS = ("coins", "skewed", "shifted")


def differences(case: str, variant: str, seed: int) -> list[float] | None:
    """Log-loss and error of the estimate, and log-loss of the winner, minus those of new samples."""
    rng = np.random.default_rng(seed)
    draw = CASES[case][1]
    (X, y), (X_new, y_new) = draw(rng, N_SAMPLES), draw(rng, N_NEW)
    if np.bincount(y).min() < 2:
        return None
    model = MixtureClassifier(random_state=seed, **VARIANTS[variant]).fit(X, y)
    assert model.search_ is not None
    probabilities, estimate = model.predict_proba(X_new), model.search_.estimate
    assert estimate is not None
    loss = log_loss(y_new, probabilities, labels=model.classes_)
    error = float(np.mean(probabilities.argmax(1) != y_new))
    return [estimate.log_loss - loss, estimate.error - error, model.search_.best.score - loss]


def read() -> dict[str, Any]:
    file = RESULTS / "estimates.json"
    return json.loads(file.read_text("utf-8")) if file.exists() else {"draws": {}}


def write(results: dict[str, Any]) -> None:
    results["stamp"] = stamp()
    (RESULTS / "estimates.json").write_text(json.dumps(results, separators=(",", ":")) + "\n", "utf-8")
    (RESULTS / "estimates.md").write_text(page(results), "utf-8")


def summary(results: dict[str, Any], case: str, variant: str) -> tuple[int, np.ndarray, np.ndarray]:
    """The number of draws, mean differences and their standard errors."""
    values = np.array([own for own in results["draws"][f"{case}, {variant}"] if own is not None])
    return len(values), values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))


def paired(results: dict[str, Any], case: str, variant: str) -> str:
    """The optimism of the default beyond that of a variant, on the same draws."""
    if variant == "default":
        return ""
    own, other = (results["draws"][f"{case}, {name}"] for name in (variant, "default"))
    differences = np.array([b[0] - a[0] for a, b in zip(own, other, strict=False) if a is not None and b is not None])
    return f"{differences.mean():+.4f} ± {differences.std(ddof=1) / np.sqrt(len(differences)):.4f}"


def page(results: dict[str, Any]) -> str:
    lines = [
        "# Bias of the estimate of a selection",
        "",
        "Written by `python -m studies.estimates`. `search_.estimate` of `MixtureClassifier()` minus the loss of"
        f" {N_NEW} new samples, after a fit to {N_SAMPLES} samples: mean ± standard error over draws. Below zero is"
        ' optimistic. "Winner" is the score of the selected candidate in the table of the search. Bootstraps do not fit'
        " the transform again: the last column is the log-loss of the default less that of the row, on the same draws."
        " Folds are stratified, so that a model that knows nothing but the class frequencies of the samples has a"
        " smaller estimated error than that of new samples.",
        "",
        "| samples | settings | draws | log-loss | error, points | winner, log-loss | default less this row |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in results["draws"]:
        case, variant = name.split(", ")
        n, means, errors = summary(results, case, variant)
        cells = [f"{means[0]:+.4f} ± {errors[0]:.4f}", f"{100 * means[1]:+.2f} ± {100 * errors[1]:.2f}"]
        cells += [f"{means[2]:+.4f} ± {errors[2]:.4f}", paired(results, case, variant)]
        lines.append(f"| {CASES[case][0]} | {variant} | {n} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000, help="of the first case; the others have a fifth")
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    end, results = time.monotonic() + 60 * options.minutes, read()
    for case in CASES:
        for variant in VARIANTS if case in WITH_VARIANTS else ["default"]:
            own = results["draws"].setdefault(f"{case}, {variant}", [])
            n = options.draws if (case, variant) == ("coins", "default") else options.draws // 5
            while len(own) < n and time.monotonic() < end:
                own.append(differences(case, variant, len(own)))
    results["draws"] = {name: own for name, own in results["draws"].items() if len(own) > 1}
    write(results)


if __name__ == "__main__":
    main()
