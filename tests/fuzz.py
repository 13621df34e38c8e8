"""Random estimators on random data, and the laws that every fit obeys. `make fuzz` runs thousands of cases.

A case is a number: `python tests/fuzz.py --first 1234 --cases 1 --verbose` repeats one. Laws:

- a fit ends in a model, or in a ValueError or TypeError that this package (or scikit-learn's validation) raised;
- probabilities are finite and sum to one; densities and outlier scores are finite, for rows like those of the fit;
- rows that are unlike them get finite answers or are refused with a ValueError;
- the same seed and number of threads give the same bits;
- cutting the rows into batches changes no probability by more than 1e-9, or the rounding of its log density;
- a saved model answers the same to the last bit, and no global setting changes.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import mixtura
from mixtura import (
    AveragedMixture,
    AveragedMixtureClassifier,
    DiscriminativeMixtureClassifier,
    GaussianMixture,
    HybridMixtureClassifier,
    MarginalFeatureSelector,
    MixtureClassifier,
    MixtureImputer,
    NonnegativeMixtureClassifier,
    RejectOption,
    RelevanceVectorClassifier,
    SparseMixtureClassifier,
)
from mixtura.checks import PriorWarning, RepairWarning
from mixtura.engine import threads
from mixtura.priors import Shrinkage

OURS = (str(Path(mixtura.__file__).parent), f"{os.sep}sklearn{os.sep}utils{os.sep}")
EXPECTED_WARNINGS = (ConvergenceWarning, PriorWarning, RepairWarning)
COVARIANCES = ("full", "tied", "diag", "spherical", "low_rank", "low_rank_precision")
LARGEST_SCALE = 100  # powers of ten


@dataclass
class Case:
    """A model to fit, its data, rows to predict, and the number of threads."""

    model: Any
    X: Any
    y: Any
    weights: np.ndarray | None
    test_rows: Any
    strange_rows: Any
    n_threads: int
    is_single: bool  # float32
    by: str = "fit"  # or "batches", "partial_fit"


# ---- making cases ---------------------------------------------------------------------------------------------------


def make_case(number: int) -> Case:
    rng = np.random.default_rng(number)
    kind = KINDS[number % len(KINDS)]
    model, takes_nan, takes_unlabeled, takes_soft, smallest = MAKERS[kind](rng)
    n_rows, n_features, n_classes = int(rng.integers(2, 90)), int(rng.integers(1, 6)), int(rng.integers(2, 4))
    if rng.random() < 0.03 and kind not in ("sparse", "relevance"):
        n_rows = int(rng.integers(900, 1500))
    labels = rng.integers(n_classes, size=n_rows)
    X = make_rows(rng, n_rows, n_features, labels, non_negative=smallest == 0.0)
    test_rows = make_rows(rng, 37, n_features, rng.integers(n_classes, size=37), non_negative=smallest == 0.0)
    scales, offsets = make_units(rng, n_features, non_negative=smallest == 0.0)
    X, test_rows = X * scales + offsets, test_rows * scales + offsets
    if takes_nan and rng.random() < 0.5:
        X, test_rows = remove(rng, X), remove(rng, test_rows)
    y = make_labels(rng, labels, n_classes, takes_unlabeled, takes_soft, model)
    is_single = bool(rng.random() < 0.15)
    form = str(rng.choice(["array", "array", "frame", "tensor", "fortran", "list"]))
    form = "frame" if kind == "categorical" else "array" if kind in BY else form
    rows, tests, strange = (
        as_input(form, part, is_single) for part in (X, test_rows, test_rows * 10.0 ** rng.uniform(-30, 30))
    )
    if kind == "categorical":
        n_columns = int(rng.integers(1, 3))
        rows = with_categories(rng, rows, n_columns, labels)
        tests, strange = (with_categories(rng, part, n_columns) for part in (tests, strange))
    weights, n_threads = make_weights(rng, n_rows), int(rng.integers(1, 3))
    return Case(model, rows, y, weights, tests, strange, n_threads, is_single, BY.get(kind, "fit"))


def with_categories(rng, frame, n_columns, labels=None):
    """A frame with categorical features: some tell the class, and rows to predict have unknown categories."""
    names = np.array(["red", "green", "blue", "grey"], dtype=object)
    for column in range(n_columns):
        numbers = rng.integers(len(names) - (labels is not None), size=len(frame))
        if labels is not None and rng.random() < 0.5:
            numbers = np.where(rng.random(len(frame)) < 0.7, labels, numbers)
        values = names[numbers]
        values[rng.random(len(frame)) < 0.2] = None
        if values[0] is None and pd.isna(values).all():
            values[0] = "red"
        frame[f"category {column}"] = values
    return frame


def make_rows(rng, n_rows, n_features, labels, non_negative):
    shape = rng.choice(["clusters", "tails", "integers", "copies", "collinear", "noise"])
    X = rng.normal(size=(n_rows, n_features))
    if shape in ("clusters", "collinear", "copies"):
        X += rng.normal(scale=3, size=(4, n_features))[labels]
    if shape == "tails":
        X = np.exp(2 * X)
    if shape == "integers":
        X = rng.poisson(1.5, size=(n_rows, n_features)).astype(float)
    if shape == "copies":
        X = X[rng.integers(max(1, n_rows // 4), size=n_rows)]
    if shape == "collinear":
        X[:, -1] = X[:, 0]
    if rng.random() < 0.1:
        X[:, rng.integers(n_features)] = 1.0
    return np.abs(X) if non_negative else X


def make_units(rng, n_features, non_negative):
    kind = rng.choice(["plain", "one", "each"])
    power = rng.choice([3, 30, LARGEST_SCALE])
    scales = {
        "plain": np.ones(n_features),
        "one": np.full(n_features, 10.0 ** rng.uniform(-power, power)),
        "each": 10.0 ** rng.uniform(-power, power, n_features),
    }[kind]
    offsets = scales * rng.normal(size=n_features) * rng.choice([0.0, 1.0, 1e3, 1e6])
    return scales, np.abs(offsets) if non_negative else offsets


def remove(rng, X):
    X = X.copy()
    X[rng.random(X.shape) < rng.choice([0.05, 0.3, 0.7])] = np.nan
    if rng.random() < 0.2:
        X[rng.integers(len(X))] = np.nan
    if rng.random() < 0.05:
        X[:, rng.integers(X.shape[1])] = np.nan
    return X


def make_labels(rng, labels, n_classes, takes_unlabeled, takes_soft, model):
    chance = rng.random()
    if takes_soft and chance < 0.15:
        soft = rng.dirichlet(np.full(n_classes, 0.5), size=len(labels))
        soft[rng.random(len(labels)) < 0.2] = np.nan
        return soft
    if takes_unlabeled and chance < 0.4:
        y = labels.astype(float)
        y[rng.random(len(y)) < 0.4] = np.nan
        model.set_params(**{takes_unlabeled: np.nan})
        return y
    if chance < 0.6:
        return np.array(["first", "second", "third", "fourth"])[labels]
    return labels - 1  # -1 is a class


def make_weights(rng, n_rows):
    kind = rng.choice(["none", "none", "uniform", "zeros", "counts", "sizes", "small"])
    weights = rng.uniform(0.1, 3.0, n_rows)
    if kind == "none":
        return None
    if kind == "zeros":
        weights[rng.random(n_rows) < 0.4] = 0.0
    if kind == "counts":
        weights = rng.integers(0, 4, n_rows).astype(float)
    if kind == "sizes":
        weights = 10.0 ** rng.uniform(-8, 8, n_rows)
    if kind == "small":
        weights *= 10.0 ** rng.uniform(-40, 40)
    return weights


def as_input(kind, X, is_single):
    with np.errstate(over="ignore"):
        X = X.astype(np.float32) if is_single else X
    if kind == "frame":
        return pd.DataFrame(X, columns=[f"feature {i}" for i in range(X.shape[1])])
    if kind == "tensor":
        return torch.from_numpy(X)
    return X.tolist() if kind == "list" and not np.isnan(X).any() else np.asarray(X, order="F")


def gaussian(rng):
    return {
        "covariance_type": str(rng.choice(COVARIANCES)),
        "prior": [None, "default", "default", Shrinkage(4.0, 2.0)][rng.integers(4)],
        "max_iter": int(rng.choice([0, 1, 5, 30])),
        "n_init": int(rng.choice([1, 1, 2])),
    }


def classifier(rng):
    return gaussian(rng) | {
        "n_components": int(rng.integers(1, 4)),
        "class_prior": str(rng.choice(["empirical", "uniform"])),
        "class_weight": [None, None, "balanced"][rng.integers(3)],
        "init": str(rng.choice(["kmeans", "k-means++", "random"])),
    }


def make_density(rng):
    init = str(rng.choice(["kmeans", "k-means++", "random", "random_from_data"]))
    options = {**gaussian(rng), "covariance_type": str(rng.choice(COVARIANCES[:5]))}
    options["max_iter"] = max(1, options["max_iter"])
    return GaussianMixture(int(rng.integers(1, 5)), init_params=init, random_state=0, **options), True, "", False, None


def make_joint(rng):
    return MixtureClassifier(random_state=0, **classifier(rng)), True, "unlabeled", True, None


def make_conditional(rng):
    objective, solver = [("conditional", "auto"), ("conditional", "gradient"), ("margin", "gradient")][rng.integers(3)]
    options = classifier(rng) | {"max_iter": int(rng.choice([0, 1, 5])), "n_init": 1}
    return MixtureClassifier(objective=objective, solver=solver, random_state=0, **options), True, "", True, None


def make_automatic(rng):
    options = classifier(rng) | {"n_components": "auto", "init": "kmeans", "max_iter": 5}
    if rng.random() < 0.5:
        options["prior"] = "auto"
    options["covariance_type"] = str(rng.choice(["full", "diag"]))
    return MixtureClassifier(random_state=0, **options), True, "unlabeled", True, None


def make_categorical(rng):
    options = classifier(rng) | {"covariance_type": str(rng.choice(COVARIANCES[:4]))}
    if rng.random() < 0.3:
        options |= {"n_components": "auto", "covariance_type": "auto", "prior": "auto", "init": "kmeans", "max_iter": 5}
    return MixtureClassifier(random_state=0, **options), True, "unlabeled", True, None


def make_transformed(rng):
    options = classifier(rng) | {"warp": "johnson", "temperature": float(rng.choice([0.5, 1.0, 3.0]))}
    return MixtureClassifier(random_state=0, **options), True, "unlabeled", True, None


def make_streamed(rng):
    options = classifier(rng) | {"covariance_type": str(rng.choice(COVARIANCES[:4])), "class_weight": None}
    return MixtureClassifier(random_state=0, **options), True, "unlabeled", False, None


def make_reject(rng):
    options = classifier(rng) | {"max_iter": 5, "n_init": 1}
    confidence, false_alarm = float(rng.choice([0.0, 0.8, 1.0])), [None, 0.1][rng.integers(2)]
    model = RejectOption(MixtureClassifier(random_state=0, **options), confidence=confidence, false_alarm=false_alarm)
    return model, True, "", False, None


def make_selector(rng):
    options = classifier(rng) | {"max_iter": 5, "n_init": 1}
    base = MixtureClassifier(random_state=0, **options)
    return MarginalFeatureSelector(base, n_features_to_select=int(rng.integers(1, 4))), True, "", False, None


def make_imputer(rng):
    base = None if rng.random() < 0.3 else make_density(rng)[0].set_params(prior="default")
    return MixtureImputer(base, add_indicator=bool(rng.random() < 0.3), random_state=0), True, "", False, None


def make_discriminative(rng):
    options = classifier(rng) | {"max_iter": 5, "covariance_type": str(rng.choice(COVARIANCES[:4]))}
    if rng.random() < 0.3:
        options |= {"prior": "auto", "cv": 2, "n_components": 1, "n_init": 1}
    return DiscriminativeMixtureClassifier(random_state=0, **options), True, "", True, None


def make_hybrid(rng):
    options = classifier(rng) | {"max_iter": 5, "n_epochs": int(rng.integers(1, 3))}
    del options["n_init"]
    options |= {"tradeoff": ["auto", 0.5, 0.0, 1.0][rng.integers(4)]}
    options |= {"discriminative": str(rng.choice(["margin", "conditional"]))}
    options["batch_size"] = int(rng.choice([10, 100]))
    return HybridMixtureClassifier(random_state=0, **options), True, "unlabeled", True, None


def make_averaged_density(rng):
    base = make_density(rng)[0].set_params(random_state=None, max_iter=5, prior="default")
    resampling = str(rng.choice(["bootstrap", "subset", "none"]))
    return AveragedMixture(base, 3, resampling=resampling, random_state=0), True, "", False, None


def make_averaged(rng):
    options = classifier(rng) | {"max_iter": 5}
    names = {"resampling": str(rng.choice(["bootstrap", "subset", "none"]))}
    names["combine"] = str(rng.choice(["posterior", "density"]))
    model = AveragedMixtureClassifier(MixtureClassifier(**options), 3, random_state=0, **names)
    return model, True, "estimator__unlabeled", True, None


def sparse_options(rng):
    return {
        "kernel": [None, "polynomial", "rbf"][rng.integers(3)],
        "degree": int(rng.integers(1, 3)),
        "gamma": float(rng.choice([0.1, 1.0, 10.0])),
        "evidence": {"hessian": str(rng.choice(["complete", "exact"]))},
        "max_iter": int(rng.choice([1, 5, 20])),
        "working_set": ["auto", True, False][rng.integers(3)],
        "scaling": bool(rng.random() < 0.8),
    }


def make_sparse(rng):
    model = SparseMixtureClassifier(int(rng.integers(1, 3)), n_init=1, random_state=0, **sparse_options(rng))
    return model, False, "", False, None


def make_relevance(rng):
    return RelevanceVectorClassifier(random_state=0, **sparse_options(rng)), False, "", False, None


def make_nonnegative(rng):
    model = NonnegativeMixtureClassifier(
        int(rng.integers(1, 4)),
        shared=bool(rng.random() < 0.4),
        sparsity=float(rng.choice([0.0, 1.0, 10.0])),
        solver=str(rng.choice(["multiplicative", "accelerated"])),
        n_init=int(rng.integers(1, 3)),
        max_iter=int(rng.choice([0, 5, 40])),
        random_state=0,
    )
    return model, False, "", False, 0.0


MAKERS = {
    "density": make_density,
    "joint": make_joint,
    "conditional": make_conditional,
    "automatic": make_automatic,
    "discriminative": make_discriminative,
    "hybrid": make_hybrid,
    "averaged density": make_averaged_density,
    "averaged": make_averaged,
    "sparse": make_sparse,
    "relevance": make_relevance,
    "nonnegative": make_nonnegative,
    "categorical": make_categorical,
    "transformed": make_transformed,
    "batches": make_streamed,
    "online": make_streamed,
    "reject": make_reject,
    "selector": make_selector,
    "imputer": make_imputer,
}
KINDS = list(MAKERS)
BY = {"batches": "batches", "online": "partial_fit"}  # kinds whose samples come in parts


# ---- laws -----------------------------------------------------------------------------------------------------------


def violations(case: Case) -> tuple[str, list[str]]:
    """How a case ended ("fitted" or "refused"), and what is wrong with it."""
    before, actual = settings(), []
    with using_threads(case.n_threads), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first = attempt(lambda: fit(case))
        if isinstance(first, Exception):
            actual += unlike_ours(first, "fit")
        else:
            actual += attempt_laws(case, first)
    for warning in caught:
        if not issubclass(warning.category, EXPECTED_WARNINGS):
            actual.append(f"{warning.category.__name__} of {warning.filename}:{warning.lineno}: {warning.message}")
    after = settings()
    actual += [f"{name} changed" for name in before if before[name] != after[name]]
    return ("refused" if isinstance(first, Exception) else "fitted"), sorted(set(actual))


def attempt_laws(case: Case, model: Any) -> list[str]:
    actual = []
    answers = attempt(lambda: answers_of(model, case.test_rows))
    if isinstance(answers, Exception):
        return unlike_ours(answers, "predict")
    tolerance = 1e-5 if case.is_single else 1e-9
    actual += bad_answers(answers, tolerance)
    actual += unequal("batches", attempt(lambda: in_batches(model, case.test_rows)), answers, tolerance)
    actual += unequal("seed", attempt(lambda: answers_of(fit(case), case.test_rows)), answers, None)
    actual += unequal("file", attempt(lambda: answers_of(reloaded(model), case.test_rows)), answers, None)
    strange = attempt(lambda: answers_of(model, case.strange_rows))
    if isinstance(strange, Exception):
        actual += unlike_ours(strange, "predict strange rows")
    else:
        actual += [f"strange rows: {text}" for text in bad_answers(strange, tolerance)]
    return actual


def attempt(work: Any) -> Any:
    try:
        return work()
    except Exception as error:
        return error


def fit(case: Case) -> Any:
    model: Any = clone(case.model)
    if case.by == "fit":
        return model.fit(case.X, case.y, sample_weight=case.weights)
    weights = np.ones(len(case.X)) if case.weights is None else case.weights
    edges = [0, len(case.X) // 2, 3 * len(case.X) // 4, len(case.X)]
    batches = [tuple(part[i:j] for part in (case.X, case.y, weights)) for i, j in itertools.pairwise(edges)]
    if case.by == "batches":
        return model.fit(batches)
    classes = np.unique(case.y[~pd.isna(case.y)])
    for rows, labels, own_weights in batches:
        model.partial_fit(rows, labels, classes=classes, sample_weight=own_weights)
    return model


ANSWERS = ("predict_proba", "score_samples", "responsibilities", "outlier_score", "transform")


def answers_of(model: Any, rows: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(getattr(model, name)(rows)) for name in ANSWERS if hasattr(model, name)}


def in_batches(model: Any, rows: Any) -> dict[str, np.ndarray]:
    def part(start, stop):
        return rows.iloc[start:stop] if isinstance(rows, pd.DataFrame) else rows[start:stop]

    pieces = [answers_of(model, part(*ends)) for ends in ((0, 1), (1, 4), (4, 20), (20, 37))]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def reloaded(model: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        return mixtura.load(Path(folder) / "model")


def bad_answers(answers: dict[str, np.ndarray], tolerance: float) -> list[str]:
    # A selected feature may be missing, and one without a training value stays so.
    known = {name: values for name, values in answers.items() if name != "transform"}
    actual = [f"{name} is not finite" for name, values in known.items() if not np.isfinite(values).all()]
    sums = {name: values.sum(1) for name, values in known.items() if values.ndim == 2}
    return actual + [
        f"{name} sums to one but for {np.abs(total - 1).max():.1e}"
        for name, total in sums.items()
        if not np.allclose(total, 1.0, rtol=0, atol=tolerance) and f"{name} is not finite" not in actual
    ]


def unequal(what: str, other: Any, answers: dict[str, np.ndarray], tolerance: float | None) -> list[str]:
    if isinstance(other, Exception):
        return [f"{what}: {type(other).__name__}: {other}"]
    actual = []
    # A probability is no more exact than the log densities that it is made of: some tens of roundings for a distance.
    rounding = 1e-14 * np.abs(answers["score_samples"]) if "score_samples" in answers else 0.0
    for name, values in answers.items():
        if tolerance is None:
            if not np.array_equal(values, other[name], equal_nan=True):
                actual.append(f"{what}: {name} differs by {np.nanmax(np.abs(values - other[name])):.1e}")
        else:
            size = np.maximum(1.0, np.abs(values)) if values.ndim == 1 else 1.0
            if name == "transform":
                size = np.nanmax(np.abs(values), 0, initial=1e-300)
            allowed = np.reshape(rounding, (-1, *[1] * (values.ndim - 1))) + tolerance * size
            same = (np.abs(values - other[name]) <= allowed) | (np.isnan(values) & np.isnan(other[name]))
            if not np.all(same):
                actual.append(f"{what}: {name} differs by {np.nanmax(np.abs(values - other[name]) / size):.1e}")
    return actual


def unlike_ours(error: Exception, what: str) -> list[str]:
    """Nothing, where it is a ValueError or TypeError that our code or scikit-learn's validation raised."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, ValueError | TypeError) and any(place in frames[-1].filename for place in OURS):
        return []
    text = str(error).splitlines()[0] if str(error) else ""
    return [f"{what}: {type(error).__name__} of {Path(frames[-1].filename).name}:{frames[-1].lineno}: {text}"]


def settings() -> dict[str, Any]:
    return {
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "error state": np.geterr(),
        "environment": dict(os.environ),
        "torch's generator": torch.get_rng_state().numpy().tobytes(),
        "NumPy's generator": np.random.get_state()[1].tobytes(),  # noqa: NPY002 - whether it was touched
    }


@contextmanager
def using_threads(n_threads: int) -> Iterator[None]:
    """So many threads, for passes of any size where there are several."""
    before, smallest = torch.get_num_threads(), threads.SMALL_PASS
    torch.set_num_threads(n_threads)
    threads.SMALL_PASS = 0.0 if n_threads > 1 else smallest
    try:
        yield
    finally:
        torch.set_num_threads(before)
        threads.SMALL_PASS = smallest


# ---- running --------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=60.0, help="no case begins after so many")
    parser.add_argument("--verbose", action="store_true", help="show every case before it runs")
    options = parser.parse_args()
    end, outcomes, n_bad = time.monotonic() + 60 * options.minutes, Counter(), 0
    for number in range(options.first, options.first + options.cases):
        if time.monotonic() > end:
            break
        case = make_case(number)
        if options.verbose:
            print(number, case, flush=True)  # noqa: T201
        outcome, actual = violations(case)
        outcomes[f"{KINDS[number % len(KINDS)]}, {outcome}"] += 1
        if actual:
            n_bad += 1
            print(f"case {number} ({type(case.model).__name__}): {'; '.join(actual)}", flush=True)  # noqa: T201
    for name, count in sorted(outcomes.items()):
        print(f"{count:6d}  {name}")  # noqa: T201
    print(f"{sum(outcomes.values())} cases, {n_bad} break a law")  # noqa: T201
    return int(n_bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
