"""Slow, obvious twins of the heads: one row and one component at a time, in NumPy."""

import math

import numpy as np


def score(x, weight, bias, projection, quadratic):
    """b + w' phi(x) + 1/2 |V' x|^2 of one component."""
    products = []
    if quadratic == "full":
        products = [x[i] * x[j] for i in range(len(x)) for j in range(i, len(x))]
    elif quadratic in ("diag", "low_rank"):
        products = [value * value for value in x]
    total = bias + float(np.dot(weight, [*x, *products]))
    if projection is not None:
        total += sum(0.5 * float(np.dot(row, x)) ** 2 for row in projection)
    return total


def logits(rows, centre, scale, weights, biases, projections, quadratic, n_classes):
    """log sum over the components of a class of exp(score), (n, C)."""
    n_components = len(weights)
    actual = np.zeros((len(rows), n_classes))
    for n, row in enumerate(rows):
        x = (row - centre) / scale
        for c in range(n_classes):
            members = [k for k in range(n_components) if k * n_classes // n_components == c]
            scores = [
                score(x, weights[k], biases[k], None if projections is None else projections[k], quadratic)
                for k in members
            ]
            actual[n, c] = math.log(sum(math.exp(s) for s in scores))
    return actual


def dropout_kl(weights, log_variances):
    """Molchanov et al. (2017), eq. 14, weight by weight."""
    total = 0.0
    for w, log_variance in zip(np.ravel(weights), np.ravel(log_variances), strict=True):
        log_alpha = min(max(log_variance - math.log(w * w + 1e-8), -8), 8)
        fitted = 0.63576 / (1 + math.exp(-(1.87320 + 1.48695 * log_alpha)))
        total -= fitted - 0.5 * math.log1p(math.exp(-log_alpha)) - 0.63576
    return total


def large_margin(rows, weight, labels, margin, blend):
    """Liu et al. (2016), eq. 5 and 8, with psi found by looking for its interval."""
    actual = rows @ weight.T
    for n, (row, label) in enumerate(zip(rows, labels, strict=True)):
        norm = np.linalg.norm(row) * np.linalg.norm(weight[label])
        angle = math.acos(np.dot(row, weight[label]) / norm)
        k = next(k for k in range(margin) if k * math.pi / margin <= angle <= (k + 1) * math.pi / margin)
        psi = (-1) ** k * math.cos(margin * angle) - 2 * k
        actual[n, label] = norm * (psi + blend * math.cos(angle)) / (1 + blend)
    return actual


def running_density(rows, scores, labels, weights, means, covariances, class_of, rate, quadratic):
    """One step of EM, row by row, in which what the mixture has seen counts 1 - rate and the rows rate."""
    counts = (1 - rate) * weights
    firsts = counts[:, None] * means
    seconds = counts[:, None, None] * (covariances + means[:, :, None] * means[:, None, :])
    for row, score, label in zip(rows, scores, labels, strict=True):
        joint = np.array([math.exp(a) if label in (-1, c) else 0.0 for a, c in zip(score, class_of, strict=True)])
        shares = rate * joint / joint.sum() / len(rows)
        counts = counts + shares
        firsts = firsts + shares[:, None] * row
        seconds = seconds + shares[:, None, None] * np.outer(row, row)
    new = firsts / counts[:, None]
    scatters = seconds - counts[:, None, None] * new[:, :, None] * new[:, None, :]
    diagonal = np.eye(rows.shape[1])
    if quadratic == "none":
        return counts, new, (scatters.sum(0) * diagonal)[None] / counts.sum()
    actual = scatters / counts[:, None, None]
    return counts, new, actual if quadratic == "full" else actual * diagonal
