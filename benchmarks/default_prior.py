"""python -m benchmarks.default_prior: held-out log-loss, calibration and error rate of the default prior.

Every candidate shrinks to the same variances (default-prior) with another strength, in pseudo-observations per feature,
or to the pooled variances. Writes results/default_prior.json and .md.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import GaussianNB

from benchmarks.__main__ import machine
from mixtura import GaussianMixture, MixtureClassifier
from mixtura.datasets import make_anisotropic, make_rings, make_ripley, make_waveform
from mixtura.init.description import Description
from mixtura.priors import PRIORS, Conjugate
from mixtura.roles import DataScales

RESULTS = Path(__file__).parent / "results"
STRENGTHS = (0.3, 1, 3, 5)
N_BINS = 15


def data_sets(seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {
        "digits": load_digits(return_X_y=True),
        "wine": load_wine(return_X_y=True),
        "breast cancer": load_breast_cancer(return_X_y=True),
        "iris": load_iris(return_X_y=True),
        "Ripley": make_ripley(125, random_state=seed),
        "waveform 21": make_waveform(400, random_state=seed),
        "waveform 40": make_waveform(400, n_noise=19, random_state=seed),
        "rings": make_rings(random_state=seed),
        "anisotropic": make_anisotropic(random_state=seed),
    }


class PooledVariances:
    """For the time of a `with`, the default prior shrinks to the pooled variances as they are."""

    def __enter__(self) -> None:
        self.spread = Description.spread
        Description.spread = lambda description, n_components: description.within  # type: ignore[method-assign]

    def __exit__(self, *exception: object) -> None:
        Description.spread = self.spread  # type: ignore[method-assign]


def with_strength(per_feature: float) -> Callable[[DataScales], Conjugate]:
    return lambda scales: Conjugate(max(2.0, per_feature * len(scales.expected)), scales.expected)


def calibration_error(probabilities: np.ndarray, numbers: np.ndarray) -> float:
    """Expected calibration error of the predicted class."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == numbers
    bins = np.minimum((confidence * N_BINS).astype(int), N_BINS - 1)
    gaps = [abs(confidence[bins == b].mean() - right[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)]
    return float(sum(gaps))


def measured(make: Callable[[], object], X: np.ndarray, y: np.ndarray, seed: int) -> dict[str, float]:
    """Log-loss, calibration error and error over five shuffled folds."""
    numbers = np.unique(y, return_inverse=True)[1]
    probabilities = np.empty((len(y), numbers.max() + 1))
    for train, test in StratifiedKFold(5, shuffle=True, random_state=seed).split(X, y):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            probabilities[test] = make().fit(X[train], y[train]).predict_proba(X[test])  # type: ignore[attr-defined]
    return {
        "log_loss": float(log_loss(numbers, np.nan_to_num(probabilities))),
        "calibration": calibration_error(probabilities, numbers),
        "error": float((probabilities.argmax(1) != numbers).mean()),
    }


def candidates() -> dict[str, tuple[str, Callable[[], object]]]:
    """Name -> (prior in the registry, maker)."""
    for strength in STRENGTHS:
        PRIORS[f"strength {strength}"] = with_strength(strength)
    makers: dict[str, tuple[str, Callable[[], object]]] = {}
    for k in (1, 3):
        for prior in ["default", *(f"strength {s}" for s in STRENGTHS)]:
            makers[f"mixtura K={k}, {prior}"] = (
                prior,
                lambda k=k, prior=prior: MixtureClassifier(k, prior=prior, random_state=0),
            )
    # Without reg_param it refuses digits and breast cancer.
    makers["QDA, reg_param 0.01"] = ("", lambda: QuadraticDiscriminantAnalysis(reg_param=0.01))
    makers["LDA"] = ("", LinearDiscriminantAnalysis)
    makers["GaussianNB"] = ("", GaussianNB)
    return makers


def study(n_seeds: int) -> dict[str, dict[str, list[dict[str, float]]]]:
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    for seed in range(n_seeds):
        for data, (X, y) in data_sets(seed).items():
            for name, (_, make) in candidates().items():
                results.setdefault(name, {}).setdefault(data, []).append(measured(make, X, y, seed))
            with PooledVariances():
                for k in (1, 3):
                    name = f"mixtura K={k}, pooled variances, strength 2"
                    result = measured(lambda k=k: MixtureClassifier(k, random_state=0), X, y, seed)
                    results.setdefault(name, {}).setdefault(data, []).append(result)
            print(f"seed {seed}: {data} done", flush=True)
    return results


def few_rows(n_seeds: int) -> dict[str, list[float]]:
    """Held-out log-likelihood of 10 components on 200 rows of one Gaussian in 50 features, beside one Gaussian's."""
    errors: dict[str, list[float]] = {"one Gaussian, maximum likelihood": [], "ten components, default prior": []}
    for seed in range(n_seeds):
        rng = np.random.default_rng(seed)
        train, test = rng.normal(size=(200, 50)), rng.normal(size=(2000, 50))
        errors["one Gaussian, maximum likelihood"].append(GaussianMixture().fit(train).score(test))
        model = GaussianMixture(10, prior="default", random_state=seed, max_iter=500).fit(train)
        errors["ten components, default prior"].append(model.score(test))
    return errors


def as_markdown(record: dict) -> str:
    table, sets = record["classification"], list(next(iter(record["classification"].values())))
    lines = [
        "# The default prior",
        "",
        "Written by `python -m benchmarks.default_prior`: five shuffled folds, mean +- standard",
    ]
    lines += [
        f"error over {record['seeds']} seeds. Strength: pseudo-samples per feature. `default`: that of the library.",
        "",
    ]
    lines += ["Machine: " + ", ".join(f"{key} {value}" for key, value in record["machine"].items()) + ".", ""]
    for measure, title in (("log_loss", "Log-loss"), ("calibration", "Expected calibration error"), ("error", "Error")):
        lines += [f"## {title}", "", "| model | " + " | ".join(sets) + " | mean |", "|---" * (len(sets) + 2) + "|"]
        for name, results in table.items():
            cells = [[r[measure] for r in results[data]] for data in sets]
            shown = [f"{np.mean(c):.3f} +- {np.std(c) / max(1, len(c) - 1) ** 0.5:.3f}" for c in cells]
            lines.append(f"| {name} | " + " | ".join(shown) + f" | {np.mean([np.mean(c) for c in cells]):.3f} |")
        lines.append("")
    lines += [
        "## 200 rows of one Gaussian in 50 features: held-out log-likelihood per row",
        "",
        "| model | mean |",
        "|---|---|",
    ]
    lines += [f"| {name} | {np.mean(values):.2f} |" for name, values in record["few_rows"].items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.default_prior", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {
        "machine": machine(),
        "seeds": options.seeds,
        "classification": study(options.seeds),
        "few_rows": few_rows(options.seeds),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "default_prior.json").write_text(json.dumps(results, indent=1) + "\n")
    (RESULTS / "default_prior.md").write_text(as_markdown(results))
    print(as_markdown(results))


if __name__ == "__main__":
    main()
