"""Slow, obvious twins of extended Baum-Welch in NumPy: dense matrices, loops over components."""

import numpy as np

import reference


def updated(rows, actual: reference.Evaluated, constants, twin: reference.Twin, groups, restricted, prior=None):
    """Means and covariances after a step with these D (K,), as KJO03 print it, for any structure.

    The model's own moments are D rows' worth of mean mu and second moment Sigma + mu mu'.
    """
    sums = reference.moments(rows, actual.numerator - actual.denominator, twin, np.zeros_like(twin.means))
    prior = prior or reference.ConjugatePrior(0.0, np.zeros(twin.means.shape[1]))
    places = np.broadcast_to(prior.mean, twin.means.shape)
    means, scatters, counts = [], [], []
    for k, (_, mean, matrix) in enumerate(twin):
        count = sums.counts[k] + constants[k]
        first = sums.firsts[k] + constants[k] * mean
        second = sums.seconds[k] + constants[k] * (matrix + np.outer(mean, mean))
        new = (first + prior.mean_count * places[k]) / (count + prior.mean_count)
        about = second - np.outer(first, new) - np.outer(new, first) + count * np.outer(new, new)
        off = new - places[k]
        means.append(new)
        scatters.append(about + prior.mean_count * np.outer(off, off))
        counts.append(count + (prior.mean_count > 0))
    scatters, counts = np.array(scatters), np.array(counts)
    pooled = np.array([scatters[groups == g].sum(0) + prior.strength * prior.matrix for g in range(groups.max() + 1)])
    divisors = np.array([counts[groups == g].sum() + prior.strength for g in range(groups.max() + 1)])
    return np.array(means), restricted(pooled / divisors[:, None, None])[groups]


def grow_weights(weights, numerators, denominators, n_iterations=20_000):
    """The growth transform of the speech recognisers (facts: k_m = max_l d_l / w_l - d_m / w_m), iterated."""
    rates = denominators / weights
    slack = rates.max() - rates
    for _ in range(n_iterations):
        weights = numerators + slack * weights
        weights = weights / weights.sum()
    return weights
