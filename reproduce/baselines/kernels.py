"""Kernel classifiers of KJO03's tables: regularised least squares and the informative vector machine.

Both take labels of two classes; `OneVsOneClassifier` of scikit-learn makes all pairs of more (Hamming decoding).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import log_ndtr, ndtri
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics.pairwise import rbf_kernel

LOG_ROOT_OF_TWO_PI = 0.5 * np.log(2 * np.pi)


class KernelClassifier(ClassifierMixin, BaseEstimator):
    """sign of sum_i a_i k(x_i, x) + bias over some rows, the support."""

    support_: np.ndarray
    weights_: np.ndarray
    bias_: float = 0.0
    gamma: float

    def fit(self, X: Any, y: Any) -> KernelClassifier:
        X, y = np.asarray(X, float), np.asarray(y)
        self.classes_ = np.unique(y)
        self._solve(X, np.where(y == self.classes_[1], 1.0, -1.0))
        return self

    def _solve(self, X: np.ndarray, signs: np.ndarray) -> None:
        raise NotImplementedError

    def decision_function(self, X: Any) -> np.ndarray:
        return rbf_kernel(np.asarray(X, float), self.support_, self.gamma) @ self.weights_ + self.bias_

    def predict(self, X: Any) -> np.ndarray:
        return self.classes_[(self.decision_function(X) > 0).astype(int)]


class LeastSquaresClassifier(KernelClassifier):
    """Regularised least squares (RLSC): (K + alpha I) a = y."""

    def __init__(self, gamma: float = 1.0, alpha: float = 1.0):
        self.gamma = gamma
        self.alpha = alpha

    def _solve(self, X: np.ndarray, signs: np.ndarray) -> None:
        matrix = rbf_kernel(X, X, self.gamma)
        matrix[np.diag_indices(len(X))] += self.alpha
        self.support_, self.weights_ = X, cho_solve(cho_factor(matrix, overwrite_a=True), signs)


class InformativeVectorMachine(KernelClassifier):
    """A Gaussian process with a probit likelihood on few rows, chosen greedily (Lawrence, Seeger & Herbrich 2003).

    Assumed-density filtering: the row whose inclusion lowers the entropy of the posterior most,
    -1/2 log(1 - v_j nu_j), is included next, with a Gaussian site that matches two moments.
    """

    def __init__(self, gamma: float = 1.0, amplitude: float = 1.0, n_vectors: int = 50):
        self.gamma = gamma
        self.amplitude = amplitude
        self.n_vectors = n_vectors

    def _solve(self, X: np.ndarray, signs: np.ndarray) -> None:
        n_rows = len(X)
        bias = float(ndtri(np.clip((signs > 0).mean(), 0.01, 0.99)))
        means, variances = np.zeros(n_rows), np.full(n_rows, self.amplitude)
        factors = np.zeros((min(self.n_vectors, n_rows), n_rows))  # K - factors' factors is the posterior covariance
        active, places, precisions = [], [], []
        free, lengths = np.ones(n_rows), np.einsum("nd,nd->n", X, X)
        for step in range(len(factors)):
            slopes, curvatures = _probit(signs, means + bias, variances)
            i = int((free * variances * curvatures).argmax())  # the largest entropy reduction too
            distances = np.maximum(lengths + lengths[i] - 2 * (X @ X[i]), 0)
            column = self.amplitude * np.exp(-self.gamma * distances) - factors[:step, i] @ factors[:step]
            precisions.append(curvatures[i] / max(1 - curvatures[i] * variances[i], 1e-9))
            places.append(means[i] + slopes[i] / curvatures[i])
            active.append(i)
            free[i] = 0
            factors[step] = np.sqrt(curvatures[i]) * column
            variances = np.maximum(variances - curvatures[i] * column**2, 1e-12)
            means = means + slopes[i] * column
        matrix = self.amplitude * rbf_kernel(X[active], X[active], self.gamma) + np.diag(1 / np.array(precisions))
        self.support_, self.bias_ = X[active], bias
        self.weights_ = self.amplitude * cho_solve(cho_factor(matrix), np.array(places))


def _probit(signs: np.ndarray, means: np.ndarray, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and minus second derivative of log Phi(y f / sqrt(1 + v)) by the mean."""
    scales = signs / np.sqrt(1 + variances)
    ratios = scales * means
    slopes = scales * np.exp(-0.5 * ratios**2 - LOG_ROOT_OF_TWO_PI - log_ndtr(ratios))
    return slopes, np.maximum(slopes * (slopes + ratios * scales), 1e-12)
