"""Slow, obvious twins of the core in NumPy and SciPy: loops over rows and components, dense matrices, no tricks.

Shapes: N rows, D features, K components, C classes, G distinct matrices. NaN is a missing value.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal


@dataclass(frozen=True)
class Twin:
    """A mixture in NumPy: weights (K,), means (K, D), covariances (K, D, D), class_of (K,)."""

    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    class_of: np.ndarray

    def __iter__(self):
        """Weight, mean and covariance of each component."""
        return zip(self.weights, self.means, self.covariances, strict=True)


def twin_of(mixture) -> Twin:
    parts = (mixture.weights, mixture.means, mixture.covariances, mixture.class_of)
    return Twin(*(part.detach().cpu().numpy() for part in parts))


# ---- densities ---------------------------------------------------------------------------------------------------


def log_density(row, mean, covariance) -> float:
    """Of the observed values of a row; an empty row has density one."""
    seen = ~np.isnan(row)
    if not seen.any():
        return 0.0
    return float(multivariate_normal.logpdf(row[seen], mean[seen], covariance[np.ix_(seen, seen)]))


def log_joint(rows, twin: Twin) -> np.ndarray:
    """(N, K)"""
    return np.array([[np.log(w) + log_density(row, mean, matrix) for w, mean, matrix in twin] for row in rows])


def completed(row, mean, covariance) -> tuple[np.ndarray, np.ndarray]:
    """E[x | observed values] (D,) and Cov[x | observed values] (D, D)."""
    seen = ~np.isnan(row)
    gone = ~seen
    gain = covariance[np.ix_(gone, seen)] @ np.linalg.inv(covariance[np.ix_(seen, seen)])
    expected, spread = row.copy(), np.zeros_like(covariance)
    expected[gone] = mean[gone] + gain @ (row - mean)[seen]
    spread[np.ix_(gone, gone)] = covariance[np.ix_(gone, gone)] - gain @ covariance[np.ix_(seen, gone)]
    return expected, spread


def imputed(rows, twin: Twin) -> np.ndarray:
    """Rows with E[x | observed values] in their missing values."""
    posterior = softmax(log_joint(rows, twin), axis=1)
    filled = np.array([[completed(row, mean, matrix)[0] for _, mean, matrix in twin] for row in rows])  # (N, K, D)
    return np.where(np.isnan(rows), np.einsum("nk,nkd->nd", posterior, filled), rows)


# ---- objectives: value, numerator and denominator of one row -----------------------------------------------------


def marginal(a, class_of, share) -> tuple[float, np.ndarray, np.ndarray]:
    return logsumexp(a), softmax(a), np.zeros_like(a)


def joint(a, class_of, share) -> tuple[float, np.ndarray, np.ndarray]:
    """share (C,) are the class probabilities of the label; NaN: unlabeled."""
    if np.isnan(share).any():
        return marginal(a, class_of, share)
    value, numerator = 0.0, np.zeros_like(a)
    for c in np.flatnonzero(share):
        own = class_of == c
        value += share[c] * logsumexp(a[own])
        numerator[own] = share[c] * softmax(a[own])
    return value, numerator, np.zeros_like(a)


def conditional(a, class_of, share) -> tuple[float, np.ndarray, np.ndarray]:
    value, numerator, _ = joint(a, class_of, share)
    return value - logsumexp(a), numerator, softmax(a)


def tempered_conditional(temperature):
    """log p(c | x) from log joints of the classes that are divided by a temperature."""

    def of_row(a, class_of, share):
        scores = np.array([logsumexp(a[class_of == c]) for c in range(class_of.max() + 1)]) / temperature
        value, numerator, denominator = 0.0, np.zeros_like(a), np.zeros_like(a)
        for c in np.flatnonzero(np.nan_to_num(share)):
            value += share[c] * (scores[c] - logsumexp(scores))
            numerator[class_of == c] += share[c] * softmax(a[class_of == c]) / temperature
            for other, part in enumerate(softmax(scores)):
                denominator[class_of == other] += share[c] * part * softmax(a[class_of == other]) / temperature
        return value, numerator, denominator

    return of_row


def margin(wanted=1.0, sharpness=10.0):
    """The large margin: minus what the log joint of the class lacks to be `wanted` ahead of all others."""

    def of_row(a, class_of, share):
        value, numerator, denominator = 0.0, np.zeros_like(a), np.zeros_like(a)
        scores = np.array([logsumexp(a[class_of == c]) for c in range(class_of.max() + 1)])
        for c in np.flatnonzero(np.nan_to_num(share)):
            others = np.delete(np.arange(len(scores)), c)
            shortfall = wanted - scores[c] + logsumexp(sharpness * scores[others]) / sharpness
            if shortfall <= 0:
                continue
            value -= share[c] * shortfall
            numerator[class_of == c] += share[c] * softmax(a[class_of == c])
            for other, part in zip(others, softmax(sharpness * scores[others]), strict=True):
                denominator[class_of == other] += share[c] * part * softmax(a[class_of == other])
        return value, numerator, denominator

    return of_row


def hybrid(tradeoff, discriminative, unlabeled_weight=1.0):
    """tradeoff * likelihood + (1 - tradeoff) * discriminative."""

    def of_row(a, class_of, share):
        first, second = joint(a, class_of, share), discriminative(a, class_of, share)
        factor = tradeoff * (unlabeled_weight if np.isnan(share).any() else 1.0)
        return tuple(factor * one + (1 - tradeoff) * other for one, other in zip(first, second, strict=True))

    return of_row


def shares_of(labels, shares, n_rows, n_classes) -> np.ndarray:
    """Labels as one matrix (N, C), with a row of NaN for an unlabeled sample."""
    if shares is not None:
        return shares
    actual = np.full((n_rows, n_classes), np.nan)
    if labels is not None:
        actual[labels >= 0] = np.eye(n_classes)[labels[labels >= 0]]
    return actual


# ---- moments -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sums:
    """counts (K,), firsts (K, D), seconds (K, D, D) about a reference (K, D)."""

    counts: np.ndarray
    firsts: np.ndarray
    seconds: np.ndarray


def moments(rows, responsibilities, twin: Twin, reference) -> Sums:
    """Of E[x] and E[x x'] of every row under every component, weighted by responsibilities (N, K)."""
    counts, firsts = np.zeros(len(twin.weights)), np.zeros_like(twin.means)
    seconds = np.zeros_like(twin.covariances)
    for k, (_, mean, matrix) in enumerate(twin):
        for row, share in zip(rows, responsibilities[:, k], strict=True):
            expected, spread = completed(row, mean, matrix)
            off = expected - reference[k]
            counts[k] += share
            firsts[k] += share * off
            seconds[k] += share * (np.outer(off, off) + spread)
    return Sums(counts, firsts, seconds)


@dataclass(frozen=True)
class Evaluated:
    """An objective over all rows: weighted value, total weight, weighted numerator and denominator (N, K)."""

    value: float
    weight: float
    numerator: np.ndarray
    denominator: np.ndarray


def evaluated(twin: Twin, data, objective) -> Evaluated:
    shares = shares_of(data.labels, data.shares, len(data.rows), twin.class_of.max() + 1)
    weights = np.ones(len(data.rows)) if data.weights is None else data.weights
    actual = [objective(a, twin.class_of, s) for a, s in zip(log_joint(data.rows, twin), shares, strict=True)]
    values, numerator, denominator = (np.array(part) for part in zip(*actual, strict=True))
    return Evaluated(weights @ values, weights.sum(), weights[:, None] * numerator, weights[:, None] * denominator)


# ---- the M-step --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConjugatePrior:
    """(OT95) strength pseudo-samples of a matrix (D, D) or its diagonal (D,), a Dirichlet concentration, means
    N(mean, Sigma / eta) about one place (D,) or one for every component (K, D)."""

    strength: float
    variances: np.ndarray
    concentration: float = 1.0
    mean_count: float = 0.0  # eta
    mean: np.ndarray | float = 0.0

    @property
    def matrix(self) -> np.ndarray:
        return np.diag(self.variances) if self.variances.ndim == 1 else self.variances

    def log_density(self, twin: Twin, groups) -> float:
        """Up to a constant; components of one group share a matrix, which counts once."""
        value = (self.concentration - 1) * np.log(twin.weights).sum()
        for matrix in twin.covariances[np.unique(groups, return_index=True)[1]]:
            trace = np.trace(np.linalg.inv(matrix) @ self.matrix)
            value -= 0.5 * self.strength * (np.linalg.slogdet(matrix)[1] + trace)
        if self.mean_count:
            places = np.broadcast_to(self.mean, twin.means.shape)
            value += sum(
                log_density(m, place, matrix / self.mean_count)
                for (_, m, matrix), place in zip(twin, places, strict=True)
            )
        return value


def em_update(rows, responsibilities, twin: Twin, groups, restricted, prior: ConjugatePrior | None = None) -> Twin:
    """New parameters; components of one group share a matrix. `restricted` fits a structure to a matrix per group."""
    sums = moments(rows, responsibilities, twin, np.zeros_like(twin.means))
    prior = prior or ConjugatePrior(0.0, np.zeros(twin.means.shape[1]))
    weights = sums.counts + prior.concentration - 1
    places = np.broadcast_to(prior.mean, twin.means.shape)
    means = (sums.firsts + prior.mean_count * places) / (sums.counts + prior.mean_count)[:, None]
    scatters, n_groups = [], groups.max() + 1
    for count, first, second, mean, off in zip(
        sums.counts, sums.firsts, sums.seconds, means, means - places, strict=True
    ):
        about = second - np.outer(first, mean) - np.outer(mean, first) + count * np.outer(mean, mean)
        scatters.append(about + prior.mean_count * np.outer(off, off))
    own = sums.counts + (prior.mean_count > 0)
    pooled = [sum(s for s, g in zip(scatters, groups, strict=True) if g == which) for which in range(n_groups)]
    pooled = np.array(pooled) + prior.strength * prior.matrix
    counts = np.array([own[groups == g].sum() for g in range(n_groups)]) + prior.strength
    fitted = restricted(pooled / counts[:, None, None])
    return Twin(weights / weights.sum(), means, fitted[groups], twin.class_of)


def as_full(matrices):
    return matrices


def as_diagonal(matrices):
    return np.array([np.diag(np.diag(matrix)) for matrix in matrices])


def as_spherical(matrices):
    size = matrices.shape[1]
    return np.array([np.trace(matrix) / size * np.eye(size) for matrix in matrices])


def chain_matrix(variances, correlations):
    """Covariances of a Markov chain: the correlation of i and j is the product of those of the neighbours between."""
    size = len(variances)
    matrix = np.diag(variances)
    for i in range(size):
        for j in range(i + 1, size):
            product = np.prod(correlations[i:j])
            matrix[i, j] = matrix[j, i] = np.sqrt(variances[i] * variances[j]) * product
    return matrix


def as_chain(matrices):
    """The best tridiagonal precision, a sum over pairs of neighbours: inverses of their blocks, less what is double."""
    fitted = []
    for matrix in matrices:
        size = len(matrix)
        precision = np.zeros((size, size))
        for i in range(size - 1):
            precision[i : i + 2, i : i + 2] += np.linalg.inv(matrix[i : i + 2, i : i + 2])
        for i in range(1, size - 1):
            precision[i, i] -= 1 / matrix[i, i]
        fitted.append(np.linalg.inv(precision))
    return np.array(fitted)


def as_factors(uniquenesses, loadings):
    """One EM step of factor analysis from these uniquenesses (G, D) and loadings (G, D, R), by dense formulas."""

    def restricted(matrices):
        fitted = []
        for matrix, psi, S in zip(matrices, uniquenesses, loadings, strict=True):
            B = S.T @ np.linalg.inv(np.diag(psi) + S @ S.T)  # E[z | x] = B (x - mean)
            second = np.eye(S.shape[1]) - B @ S + B @ matrix @ B.T  # E[z z']
            new = matrix @ B.T @ np.linalg.inv(second)
            fitted.append(new @ new.T + np.diag(np.diag(matrix - new @ B @ matrix)))
        return np.array(fitted)

    return restricted


def warp_log_likelihood(column, labels, place, width):
    """(warp-likelihood) of one feature, row by row."""
    values = [place + width * math.asinh((x - place) / width) for x in column]
    slopes = [-0.5 * math.log(1 + ((x - place) / width) ** 2) for x in column]
    scatter = 0.0
    for c in set(labels):
        own = [value for value, label in zip(values, labels, strict=True) if label == c]
        scatter += sum((value - sum(own) / len(own)) ** 2 for value in own)
    return sum(slopes) - len(column) / 2 * math.log(scatter / len(column))


# ---- missing values that say something ---------------------------------------------------------------------------


def mask_log_factors(training, labels, rows, n_classes, pseudo=1.0, weights=None):
    """log p(mask | class), (N, C): a Bernoulli distribution per class and feature that is sometimes missing."""
    weights = np.ones(len(training)) if weights is None else weights
    factors = np.zeros((len(rows), n_classes))
    for j in range(training.shape[1]):
        gone = np.isnan(training[:, j])
        overall = weights[gone].sum() / weights.sum()
        if overall in (0, 1):
            continue
        for c in range(n_classes):
            own = labels == c
            share = (weights[gone & own].sum() + pseudo * overall) / (weights[own].sum() + pseudo)
            for n, row in enumerate(rows):
                factors[n, c] += math.log(share if np.isnan(row[j]) else 1 - share)
    return factors
