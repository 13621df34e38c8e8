"""RelevanceVectorClassifier: the relevance vector machine, a sparse mixture of one component per class."""

from __future__ import annotations

from typing import Any

from mixtura.estimators.estimator import check_fitted
from mixtura.estimators.sparse import SparseMixtureClassifier
from mixtura.files.registry import storable


@storable("RelevanceVectorClassifier", check=check_fitted)
class RelevanceVectorClassifier(SparseMixtureClassifier):
    """Relevance vector machine [1]_ for any number of classes.

    It is a `SparseMixtureClassifier` with one component per class and an RBF kernel, with the attributes of that class.

    Parameters
    ----------
    kernel : {"polynomial", "rbf", "precomputed"}, callable or None, default="rbf"
        Basis functions, as in `SparseMixtureClassifier`.
    degree : int, default=2
        Degree of the polynomial kernel or of the monomials.
    gamma : float, default=1.0
        Coefficient of the RBF kernel, ``exp(-gamma |x - z|^2)``, and of the polynomial kernel.
    coef0 : float, default=1.0
        Constant of the polynomial kernel.
    scaling : bool, default=True
        Whether to standardise the features internally.
    hessian : {"complete", "exact"}, default="complete"
        Hessian of the Laplace approximation.
    start_variance : float or None, default=None
        Upper limit of the sum of the initial prior variances of the weights of a component; None starts each at one.
    expected_variance : float or None, default=None
        Mean of the hyperprior on the prior variances; None means a flat hyperprior.
    max_iter : int, default=5000
        Maximum number of updates of the precisions.
    tol : float, default=1e-5
        Squared change of the precisions below which the fit has converged.
    working_set : "auto" or bool, default="auto"
        Whether to add columns one by one while they raise the evidence, instead of starting with all.
    device : str, torch.device or None, default=None
        Device of the computation; None means that of X.
    memory_limit : int, str or None, default=None
        Limit of the temporary arrays, in bytes or as text like "256 MB"; None means 256 MB.
    random_state : int, RandomState or None, default=None
        Seed of the initialisation.
    verbose : int, default=0
        Verbosity; 1 shows a progress bar.
    checkpoint : str or path-like, optional
        A file that keeps the progress of a fit, as in `MixtureClassifier`.

    References
    ----------
    .. [1] Tipping (2001). Sparse Bayesian learning and the relevance vector machine. JMLR 1.

    Examples
    --------
    >>> from mixtura import RelevanceVectorClassifier
    >>> from mixtura.datasets import make_ripley
    >>> X, y = make_ripley(60, random_state=0)
    >>> model = RelevanceVectorClassifier().fit(X, y)
    >>> bool(model.score(X, y) > 0.85 and len(model.relevance_vectors_) < 15)
    True
    """

    def __init__(
        self,
        *,
        kernel: Any = "rbf",
        degree: int = 2,
        gamma: float = 1.0,
        coef0: float = 1.0,
        scaling: bool = True,
        hessian: str = "complete",
        start_variance: float | None = None,
        expected_variance: float | None = None,
        max_iter: int = 5000,
        tol: float = 1e-5,
        working_set: Any = "auto",
        device: Any = None,
        memory_limit: Any = None,
        random_state: Any = None,
        verbose: int = 0,
        checkpoint: Any = None,
    ):
        super().__init__(
            1, kernel=kernel, degree=degree, gamma=gamma, coef0=coef0, scaling=scaling, hessian=hessian, n_init=1,
            start_variance=start_variance, expected_variance=expected_variance, max_iter=max_iter, tol=tol,
            working_set=working_set, device=device, memory_limit=memory_limit, random_state=random_state,
            verbose=verbose, checkpoint=checkpoint,
        )  # fmt: skip
