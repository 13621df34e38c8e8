"""One EM fit from a given initialisation, with mixtura and with other libraries."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Fit = Callable[[int], Callable[[np.ndarray], float]]


@dataclass(frozen=True)
class Problem:
    """Rows around K centres, and a start near those."""

    rows: np.ndarray
    means: np.ndarray
    kind: str

    @property
    def precisions(self) -> np.ndarray:
        n_components, size = self.means.shape
        shapes = {
            "full": np.broadcast_to(np.eye(size), (n_components, size, size)).copy(),
            "diag": np.ones((n_components, size)),
            "spherical": np.ones(n_components),
            "tied": np.eye(size),
        }
        return shapes[self.kind]


def make_problem(n_rows: int, n_features: int, n_components: int, kind: str, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    centres = 3 * rng.normal(size=(n_components, n_features))
    rows = centres[rng.integers(n_components, size=n_rows)] + rng.normal(size=(n_rows, n_features))
    return Problem(rows, centres + 0.3 * rng.normal(size=centres.shape), kind)


def mixtura(problem: Problem) -> Fit:
    from mixtura import GaussianMixture

    return lambda n: _scikit_learn_like(GaussianMixture, problem, n)


def scikit_learn(problem: Problem) -> Fit:
    from sklearn.mixture import GaussianMixture

    return lambda n: _scikit_learn_like(GaussianMixture, problem, n)


def _scikit_learn_like(estimator, problem: Problem, n_iterations: int) -> Callable[[np.ndarray], float]:
    n_components = len(problem.means)
    model = estimator(
        n_components,
        covariance_type=problem.kind,
        weights_init=np.full(n_components, 1 / n_components),
        means_init=problem.means,
        precisions_init=problem.precisions,
        max_iter=n_iterations,
        tol=0.0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(problem.rows).score


def pomegranate(problem: Problem) -> Fit:
    import torch
    from pomegranate.distributions import Normal
    from pomegranate.gmm import GeneralMixtureModel

    rows = torch.from_numpy(problem.rows)
    size = rows.shape[1]
    identity = torch.eye(size, dtype=rows.dtype) if problem.kind == "full" else torch.ones(size, dtype=rows.dtype)

    def fit(n_iterations: int) -> Callable[[np.ndarray], float]:
        parts = [
            Normal(torch.from_numpy(m.copy()), identity.clone(), covariance_type=problem.kind) for m in problem.means
        ]
        model = GeneralMixtureModel(parts, max_iter=n_iterations, tol=0.0)
        model.fit(rows)
        return lambda held_out: float(model.log_probability(torch.from_numpy(held_out)).mean())

    return fit


def torchgmm(problem: Problem) -> Fit:
    import torch
    from torchgmm.bayes import GaussianMixture

    for name in list(logging.root.manager.loggerDict):
        if "lightning" in name:
            logging.getLogger(name).setLevel(logging.ERROR)
    rows, means = torch.from_numpy(problem.rows), torch.from_numpy(problem.means)

    def fit(n_iterations: int) -> Callable[[np.ndarray], float]:
        settings = {"max_epochs": n_iterations, "precision": 64, "enable_progress_bar": False, "logger": False}
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            model = GaussianMixture(
                len(means),
                covariance_type=problem.kind,
                init_strategy="kmeans",
                init_means=means,
                convergence_tolerance=0.0,
                trainer_params=settings,
            )
            model.fit(rows)
        return lambda held_out: -float(model.score(torch.from_numpy(held_out)))

    return fit


RIVALS: dict[str, Callable[[Problem], Fit]] = {
    "mixtura": mixtura,
    "scikit-learn": scikit_learn,
    "pomegranate": pomegranate,
    "torchgmm": torchgmm,
}
