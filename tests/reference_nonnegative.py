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
