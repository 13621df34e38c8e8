"""The slow, obvious twin of sparse Bayesian learning (HU21, Algorithm 1): dense, in NumPy, one block at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, softmax

LARGEST, SMALLEST_WEIGHT = 1e5, 1e-5


@dataclass
class SparseTwin:
    """Weights (K, H), zero where pruned; mixture weights within the classes (K,); the evidence of every iteration."""

    values: np.ndarray
    precisions: np.ndarray
    mixing: np.ndarray
    responsibilities: np.ndarray
    class_of: np.ndarray
    evidences: list[float]
    n_iter: int = 0
    converged: bool = False

    @property
    def n_weights(self) -> int:
        return int((self.values != 0).sum())

    def probabilities(self, columns) -> np.ndarray:
        """p(c | x) from the columns of the basis."""
        joint = softmax(np.log(self.mixing) + columns @ self.values.T, axis=1)
        return np.stack([joint[:, self.class_of == c].sum(1) for c in range(self.class_of.max() + 1)], 1)


def complete_hessian(columns, posteriors, row_weights, precisions, active=None) -> np.ndarray:
    """(P, P) of the active weights: minus second derivatives with responsibilities held fixed, plus the precisions."""
    active = np.ones(precisions.shape, bool) if active is None else active
    components, places = np.nonzero(active)
    phi, p = columns[:, places], posteriors[:, components]
    same = components[:, None] == components
    weighted = row_weights[:, None] * p * phi
    return same * (weighted.T @ phi) - weighted.T @ (p * phi) + np.diag(precisions[active])


def exact_hessian(columns, posteriors, responsibilities, row_weights, precisions, active=None) -> np.ndarray:
    """The same of the likelihood of the labels alone."""
    own = complete_hessian(columns, responsibilities, row_weights, np.zeros_like(precisions), active)
    return complete_hessian(columns, posteriors, row_weights, precisions, active) - own


def log_posterior(values, columns, labels, class_of, mixing, row_weights, precisions) -> float:
    """sum_n weight_n log p(y_n | x_n) - 1/2 sum precision value^2: its second derivative is the exact Hessian."""
    joint = np.log(mixing) + columns @ values.T
    own = np.where(labels[:, None] == class_of, joint, -np.inf)
    return row_weights @ (logsumexp(own, axis=1) - logsumexp(joint, axis=1)) - 0.5 * (precisions * values**2).sum()


def newton(twin: SparseTwin, columns, active, row_weights) -> np.ndarray:
    """Values at which the gradient given the responsibilities vanishes; a step that raises the gradient is halved."""
    start, rate, previous = twin.values.copy(), 1.0, np.inf
    values = start.copy()
    for _ in range(100):
        posteriors = softmax(np.log(twin.mixing) + columns @ values.T, axis=1)
        residuals = (twin.responsibilities - posteriors) * row_weights[:, None]
        gradient = (residuals.T @ columns - twin.precisions * values)[active]
        norm = np.linalg.norm(gradient)
        if norm <= 1e-5:
            break
        if norm > previous:
            values, rate, previous = start.copy(), rate / 2, np.inf
            continue
        whole = complete_hessian(columns, posteriors, row_weights, twin.precisions, active)
        values[active] += rate * np.linalg.solve(whole, gradient)
        previous = norm
    return values


def fit(
    columns, labels, class_of, responsibilities, row_weights=None, max_iter=5000, exact=False, rate=0.0
) -> SparseTwin:
    """The algorithm from given responsibilities (N, K); the last component is the reference and has no weights."""
    n_components, size = len(class_of), columns.shape[1]
    row_weights = np.ones(len(labels)) if row_weights is None else row_weights
    shape = (n_components, size)
    mixing = 1 / np.bincount(class_of)[class_of]
    twin = SparseTwin(np.zeros(shape), np.ones(shape), mixing, responsibilities, class_of, [])
    active = np.ones(shape, bool)
    active[-1] = False
    while twin.n_iter < max_iter and active.any() and not twin.converged:
        twin.n_iter += 1
        for _ in range(200):
            twin.values = newton(twin, columns, active, row_weights)
            joint = np.log(twin.mixing) + columns @ twin.values.T
            updated = softmax(np.where(labels[:, None] == class_of, joint, -np.inf), axis=1)
            change = np.abs(updated - twin.responsibilities).mean()
            twin.responsibilities = updated
            if change <= 1e-3:
                break
        active = update(twin, columns, labels, active, row_weights, exact, rate)
    return twin


def negligible(values, precisions, determined, rate) -> np.ndarray:
    """Whether a weight is all but gone, and the evidence largest, others being held, at a variance below 1e-3."""
    actual = []
    for v, p, d in zip(values, precisions, determined, strict=True):
        curvature, gradient = p * d / (1 - d), p * v / (1 - d)  # of the evidence where the weight is left out
        # The derivative by the variance vanishes where u = 1 + curvature * variance solves a quadratic equation.
        u = np.roots([2 * rate, curvature, -(gradient**2)]).max() if curvature > 0 else 1.0
        actual.append(d < 0.01 and p > 1e3 and (u <= 1 or (u - 1) / curvature < 1e-3))
    return np.array(actual, bool)


def update(twin: SparseTwin, columns, labels, active, row_weights, exact, rate) -> np.ndarray:
    """Evidence, precisions, mixture weights, pruning; which weights stay."""
    joint = np.log(twin.mixing) + columns @ twin.values.T
    posteriors = softmax(joint, axis=1)
    whole = complete_hessian(columns, posteriors, row_weights, twin.precisions, active)
    if exact:
        other = exact_hessian(columns, posteriors, twin.responsibilities, row_weights, twin.precisions, active)
        whole = other if np.linalg.eigvalsh(other)[0] > 0 else whole
    covariance = np.linalg.inv(whole)
    precisions, values = twin.precisions[active], twin.values[active]
    posterior = log_posterior(
        twin.values, columns, labels, twin.class_of, twin.mixing, row_weights, np.where(active, twin.precisions, 0)
    )
    evidence = posterior + 0.5 * np.log(precisions).sum() - 0.5 * np.linalg.slogdet(whole)[1]
    twin.evidences.append(evidence - rate * (1 / precisions).sum())
    determined = 1 - precisions * np.diag(covariance)
    solved = [np.roots([v**2, -d, -2 * rate]).max() for v, d in zip(values, determined, strict=True)]
    moved = np.clip(np.where(determined > 0, solved, precisions), 1e-6, LARGEST)
    if rate:
        moved[negligible(values, precisions, determined, rate)] = LARGEST
    counts = row_weights @ twin.responsibilities
    twin.mixing = counts / np.bincount(twin.class_of, counts)[twin.class_of]
    stays = active.copy()
    stays[active] = moved < LARGEST
    stays[twin.mixing <= SMALLEST_WEIGHT] = False
    twin.converged = bool(((moved - precisions) ** 2).sum() <= 1e-5 and np.array_equal(stays, active))
    twin.precisions[active] = moved
    twin.values[~stays] = 0
    return stays
