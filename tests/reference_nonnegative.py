"""Slow, obvious twins of the log-linear mixture: loops over rows, classes and bases, straight from the equations."""

import numpy as np


def joint(row, weights, coefficients) -> np.ndarray:
    """W_cj exp(theta_j . x), (C, J)."""
    return weights * np.exp(coefficients @ row)


def probabilities(rows, weights, coefficients) -> np.ndarray:
    """p(c | x), (N, C)."""
    actual = []
    for row in rows:
        each = joint(row, weights, coefficients)
        actual.append(each.sum(1) / each.sum())
    return np.array(actual)


def posteriors(rows, labels, row_weights, weights, coefficients):
    """P+ and P- of LZZ06, eq. 21 with corrected exponents, times the row weights: (N, C, J) each."""
    above, below = [], []
    for row, label, share in zip(rows, labels, row_weights, strict=True):
        each = joint(row, weights, coefficients)
        own = np.zeros_like(each)
        own[label] = each[label] / each[label].sum()
        above.append(share * own)
        below.append(share * each / each.sum())
    return np.array(above), np.array(below)


def log_likelihood(rows, labels, row_weights, weights, coefficients) -> float:
    actual = probabilities(rows, weights, coefficients)
    return float(sum(w * np.log(p[c]) for w, p, c in zip(row_weights, actual, labels, strict=True)))


def iteration(rows, labels, row_weights, weights, coefficients, sum_penalty=0.0):
    """One alternating iteration of LZZ06, eq. 16, 17 and 20; sum_penalty 0 is Saul & Lee's."""
    above, below = posteriors(rows, labels, row_weights, weights, coefficients)
    slopes = np.divide(below.sum(0), weights, out=np.zeros_like(weights), where=weights > 0)
    new_weights = np.divide(above.sum(0), slopes + sum_penalty, out=np.zeros_like(weights), where=weights > 0)
    above, below = posteriors(rows, labels, row_weights, new_weights, coefficients)
    exponent = 1 / max(row.sum() for row, w in zip(rows, row_weights, strict=True) if w > 0)
    new_coefficients = coefficients.copy()
    for j in range(coefficients.shape[0]):
        for u in range(coefficients.shape[1]):
            numerator = (above[:, :, j].sum(1) * rows[:, u]).sum()
            denominator = (below[:, :, j].sum(1) * rows[:, u]).sum()
            if denominator > 0:
                new_coefficients[j, u] += exponent * np.log(numerator / denominator)
    return new_weights, new_coefficients


def penalty(weights, strength, corner) -> float:
    """sum over classes and bases of strength log(1 + V / corner) / log(1 + 1 / corner), V = W / sum over classes."""
    total = 0.0
    for column in weights.T:
        if column.sum() > 0:
            for share in column / column.sum():
                total += strength * np.log(1 + share / corner) / np.log(1 + 1 / corner)
    return total


def transformed_rows(rows, name, training) -> np.ndarray:
    """Rows as the transform `name`, fitted to the rows `training`, gives them (row-transform)."""
    actual = np.zeros_like(rows, dtype=float)
    for n, row in enumerate(rows):
        for u, value in enumerate(row):
            n_with = (training[:, u] > 0).sum()
            if n_with:
                weight = np.log((1 + len(training)) / (1 + n_with)) + 1
                actual[n, u] = {"counts": value, "log": weight * np.log(1 + value), "tfidf": weight * value}[name]
        length = np.sqrt((actual[n] ** 2).sum())
        if name != "counts" and length > 0:
            actual[n] /= length
    return actual


def pseudo_counted_step(rows, labels, row_weights, weights, coefficients, counts) -> np.ndarray:
    """The coefficients after a multiplicative step with pseudo-counts (pseudo-counts)."""
    above, below = posteriors(rows, labels, row_weights, weights, coefficients)
    exponent = min(1.0, 1 / max(row.sum() for row, w in zip(rows, row_weights, strict=True) if w > 0))
    new_coefficients = coefficients.copy()
    for j in range(coefficients.shape[0]):
        for u in range(coefficients.shape[1]):
            numerator = (above[:, :, j].sum(1) * rows[:, u]).sum() + counts[u]
            denominator = (below[:, :, j].sum(1) * rows[:, u]).sum() + counts[u] * np.exp(coefficients[j, u])
            if denominator > 0:
                new_coefficients[j, u] += exponent * np.log(numerator / denominator)
    return new_coefficients


def naive_bayes(rows, labels, row_weights, alpha) -> tuple[np.ndarray, np.ndarray]:
    """Log class shares (C,) and log shares of words (C, D) (multinomial-start)."""
    n_classes = labels.max() + 1
    prior = np.array([row_weights[labels == c].sum() for c in range(n_classes)])
    counts = np.array([row_weights[labels == c] @ rows[labels == c] for c in range(n_classes)]) + alpha
    return np.log(prior / prior.sum()), np.log(counts / counts.sum(1, keepdims=True))


def multinomial_step(rows, allowed, row_weights, log_weights, log_shares) -> tuple[float, np.ndarray]:
    """The log-likelihood of a mixture of multinomials, and the responsibilities (N, K) of the allowed components."""
    value, shares = 0.0, []
    for row, own, weight in zip(rows, allowed, row_weights, strict=True):
        joint = np.where(own, np.exp(log_weights + log_shares @ row), 0.0)
        value += weight * np.log(joint.sum())
        shares.append(weight * joint / joint.sum())
    return value, np.array(shares)
