"""A pipeline of non-negative matrix factorisation and NonnegativeMixtureClassifier."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import Pipeline, make_pipeline

from mixtura import checks
from mixtura.estimators.nonnegative import NonnegativeMixtureClassifier
from mixtura.estimators.rows import ArrayLike, FrameLike


def make_nonnegative_pipeline(
    n_basis: int = 100, *, nmf_max_iter: int = 200, random_state: Any = None, **options: Any
) -> Pipeline:
    """Create a pipeline of scikit-learn's NMF and a `NonnegativeMixtureClassifier` on its codes.

    The factorisation is fitted to the training set; other samples are coded with its basis fixed.

    Parameters
    ----------
    n_basis : int, default=100
        Number of columns of the codes.
    nmf_max_iter : int, default=200
        Maximum number of iterations of the factorisation. Codes need not be converged, so there is no warning.
    random_state : int, RandomState or None, default=None
        Seed of both steps.
    **options : dict
        Parameters of the classifier.

    Returns
    -------
    pipeline : sklearn.pipeline.Pipeline

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> model = make_nonnegative_pipeline(16, n_components=2, max_iter=100, random_state=0).fit(X[::2], y[::2])
    >>> bool(model.score(X[1::2], y[1::2]) > 0.85)
    True
    """
    rank: Any = checks.count("n_basis", n_basis)
    coder = QuietNMF(
        n_components=rank,
        init="nndsvda",
        max_iter=nmf_max_iter,
        random_state=random_state,
    )
    return make_pipeline(coder, NonnegativeMixtureClassifier(**options, random_state=random_state))


class QuietNMF(NMF):
    """scikit-learn's NMF without its ConvergenceWarning, since codes are useful long before convergence.

    Its input is checked with messages that name `make_nonnegative_pipeline`.
    """

    def _check(self, X: Any) -> None:
        rows = X.tocsr() if sparse.issparse(X) else np.asarray(X)
        if rows.ndim != 2 or rows.dtype.kind not in "fiu":
            return  # scikit-learn says what is wrong
        values, columns = (rows, None) if isinstance(rows, np.ndarray) else (rows.data, lambda: rows.indices)
        names = X.columns if isinstance(X, FrameLike) else None
        name = "make_nonnegative_pipeline"

        def named(column: int) -> str:
            return f"column {column}" if names is None else f"column {column} ({names[column]!r})"

        checks.finite_features(values, columns, named, name)
        checks.non_negative_features(values, columns, named, name)

    def fit_transform(self, X: Any, y: Any = None, W: Any = None, H: Any = None) -> Any:
        self._check(X)
        checks.rank_of_codes(self.n_components, X.shape if isinstance(X, ArrayLike) else np.shape(X))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Maximum number of iterations", ConvergenceWarning)
            return super().fit_transform(X, y, W=W, H=H)

    def transform(self, X: Any) -> Any:
        self._check(X)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Maximum number of iterations", ConvergenceWarning)
            return super().transform(X)
