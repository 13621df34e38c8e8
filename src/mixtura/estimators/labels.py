"""Labels of users become class numbers; weights of classes; scores of labeled samples."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeGuard

import numpy as np
import torch
from sklearn.metrics import get_scorer
from sklearn.utils import _safe_indexing
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from mixtura import checks
from mixtura.estimators.frames import is_missing, is_table, missing_objects
from mixtura.selection.splits import Grouped

FEW_LABELS = 2**14  # largest number of labels on a GPU that are read on the host
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True)
class ClassNumbers:
    """From labels to numbers of classes: of all rows, of batches, of later rows, on the host and on a GPU.

    Parameters
    ----------
    classes : ndarray
        Sorted.
    unlabeled : object, default=None
        As the argument of the estimators.
    advice : str, default=""
        What the error about a label that is not a class adds.
    """

    classes: np.ndarray
    unlabeled: object = None
    advice: str = ""

    def read(self, y: object, n_rows: int, weights: Tensor | None, what: str) -> Tensor:
        """Check labels and number them, (n,); -1 for unlabeled rows. `what` names the labels in errors."""
        if integers_on_gpu(y) and weights is None and self.classes.dtype.kind in "iu":
            checks.as_many_labels(y, n_rows)
            return self.number_integers(y, unlabeled_integers(y, self.unlabeled))
        return self.number(*read_one_per_row(y, n_rows, weights, self.unlabeled, what))

    def number(self, known: np.ndarray, labeled: np.ndarray) -> Tensor:
        """The numbers of the labels of the labeled rows, -1 for all others."""
        numbers = np.full(len(labeled), -1)
        numbers[labeled] = checks.known_labels(known, self.classes, self.advice)
        return torch.from_numpy(numbers)

    def number_integers(self, y: Tensor, free: Tensor) -> Tensor:
        """The numbers of integers on their device, -1 where they are `free`."""
        y = y.long()
        known = torch.from_numpy(self.classes).to(y)
        places = torch.searchsorted(known, y.contiguous()).clamp_max(len(known) - 1)
        strange = (known[places] != y) & ~free
        if bool(strange.any()):
            raise checks.strange_label(int(y[strange][0]), self.classes, self.advice)
        return torch.where(free, -1, places)


def read_one_per_row(
    y: object, n_rows: int, weights: Tensor | None, unlabeled: object, what: str
) -> tuple[np.ndarray, np.ndarray]:
    """Check one label per row; the labels of the labeled rows, and their mask. `what` names them in errors."""
    values, missing = as_labels(y)
    checks.as_many_labels(values, n_rows)
    if values.ndim != 1:
        raise ValueError(
            f"{what} must hold one label per row; got shape {values.shape}. Soft labels need all rows at once: pass X "
            "and y as arrays or memory maps."
        )
    return labeled_rows(values, missing, weights, unlabeled, takes_unlabeled=True)


@dataclass(frozen=True)
class Labels:
    """Checked labels: class numbers (-1 unlabeled) or soft labels, and the classes."""

    classes: np.ndarray
    numbers: Tensor | None
    shares: Tensor | None

    @property
    def unlabeled(self) -> Tensor:
        if self.shares is not None:
            return self.shares[:, 0].isnan()
        assert self.numbers is not None
        return self.numbers < 0


def read_labels(
    y: object, n_rows: int, weights: Tensor | None, name: str, unlabeled: object = None, takes_unlabeled: bool = False
) -> Labels:
    """Check y: one label per row, a matrix of shares, or checked labels. Rows of weight zero count as absent."""
    if isinstance(y, Labels):
        return y
    if y is None:
        raise ValueError(
            f"{name} requires y to be passed, but the target y is None; use GaussianMixture for rows without labels."
        )
    if integers_on_gpu(y) and n_rows > FEW_LABELS:
        return read_integers(y, n_rows, weights, name, unlabeled)
    values, missing = as_labels(y)
    checks.as_many_labels(values, n_rows)
    if values.ndim == 2 and values.shape[1] > 1:
        return _read_shares(
            np.where(missing, np.nan, values) if missing.any() else values,
            y.columns if is_table(y) else range(values.shape[1]),
            name,
        )
    values, missing = column_or_1d(values, warn=True), missing.ravel()
    known, labeled = labeled_rows(values, missing, weights, unlabeled, takes_unlabeled)
    classes = checks.distinct(known)
    check_classification_targets(known)
    n_present = n_rows if weights is None else int((weights > 0).sum())
    checks.enough_classes(classes, n_present - len(known), name, n_rows - n_present)
    return Labels(classes, ClassNumbers(classes).number(known, labeled), None)


def with_groups(cv: object, groups: object, n_rows: int) -> object:
    """Splits that do not divide groups, one per row; `cv` itself without groups."""
    if groups is None:
        return cv
    values, missing = as_labels(groups)
    checks.groups(values, missing, n_rows)
    numbers: dict[Hashable, int] = {}
    return Grouped(cv, torch.tensor([numbers.setdefault(value, len(numbers)) for value in values.tolist()]))


def integers_on_gpu(y: object) -> TypeGuard[Tensor]:
    """Whether labels are integers on a GPU: the host would take longer to number a million than twenty passes take."""
    return isinstance(y, Tensor) and y.is_cuda and y.ndim == 1 and y.dtype in INTEGERS


def read_integers(y: Tensor, n_rows: int, weights: Tensor | None, name: str, unlabeled: object) -> Labels:
    """Check integer labels on their device, like `read_labels`."""
    checks.as_many_labels(y, n_rows)
    free = unlabeled_integers(y, unlabeled)
    absent = torch.zeros_like(free) if weights is None else weights.to(y.device) <= 0
    classes = y[~(free | absent)].unique()
    known, n_absent = classes.cpu().numpy(), int(absent.sum())
    checks.enough_classes(known, int((free & ~absent).sum()), name, n_absent)
    return Labels(known, ClassNumbers(known).number_integers(y, free | absent), None)


def unlabeled_integers(y: Tensor, unlabeled: object) -> Tensor:
    """Which integer labels mean unlabeled, (n,)."""
    if isinstance(unlabeled, int | float | np.integer | np.floating) and not is_missing(unlabeled):
        return y.eq(float(unlabeled))
    return torch.zeros_like(y, dtype=torch.bool)


def as_labels(y: object) -> tuple[np.ndarray, np.ndarray]:
    """The labels, and a mask of missing ones: NaN, None, pd.NA, NaT, or masked."""
    values = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    missing = np.array(np.ma.getmaskarray(y)) if isinstance(y, np.ma.MaskedArray) else np.zeros(values.shape, bool)
    if values.dtype.kind == "f":
        missing |= np.isnan(values)
    elif values.dtype.kind == "O":
        missing |= missing_objects(values)
    return values, missing


def _of_one_kind(values: np.ndarray) -> np.ndarray:
    """Convert numeric labels of dtype object, caused by missing labels, to numbers."""
    if values.dtype.kind != "O" or not all(isinstance(value, Real) for value in values):
        return values
    return np.array(values.tolist())


def labeled_rows(
    values: np.ndarray, missing: np.ndarray, weights: Tensor | None, unlabeled: object, takes_unlabeled: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The labels of the labeled rows, and their mask; rows of weight zero are excluded."""
    labeled = np.ones(len(values), bool) if weights is None else weights.cpu().numpy() > 0
    values, missing = values[labeled], missing[labeled]
    free = _unlabeled_rows(values, missing, unlabeled, takes_unlabeled)
    labeled[labeled] = ~free
    return _of_one_kind(values[~free]), labeled


def _unlabeled_rows(values: np.ndarray, missing: np.ndarray, unlabeled: object, takes_unlabeled: bool) -> np.ndarray:
    """Which rows have no label, by the argument `unlabeled`."""
    if unlabeled is not None and is_missing(unlabeled):
        checks.finite_labels(values[~missing])
        return missing
    if missing.any():
        fix = "Pass unlabeled=np.nan to use them as unlabeled samples, or remove them."
        if not takes_unlabeled:
            fix = "Remove them, or use MixtureClassifier(unlabeled=np.nan), which supports unlabeled samples."
        raise ValueError(f"Input y contains NaN or another missing label for {int(missing.sum())} samples. {fix}")
    checks.finite_labels(values)
    nowhere = np.zeros(len(values), bool)
    return nowhere if unlabeled is None else np.asarray(values == unlabeled) | nowhere


def labeled_samples(y: object, unlabeled: object) -> np.ndarray:
    """Which samples have a label, (n,), by the argument `unlabeled` of an estimator."""
    checks.require("unlabeled", unlabeled, checks.UNLABELED)
    values, missing = as_labels(y)
    if unlabeled is None or values.ndim != 1:
        return np.ones(len(values), bool)
    return ~_unlabeled_rows(values, missing, unlabeled, takes_unlabeled=True)


def _read_shares(values: np.ndarray, columns: Iterable[Hashable], name: str) -> Labels:
    shares = checks.soft_labels(values)
    classes = np.array(list(columns))
    if np.isnan(shares).all():
        checks.enough_classes([], len(shares), name)
    checks.shared_classes(shares, classes)
    return Labels(classes, None, torch.from_numpy(shares))


def weigh_classes(class_weight: object, labels: Labels, weights: Tensor | None) -> Tensor | None:
    """Multiply sample weights by the weights of the classes."""
    if class_weight is None:
        return weights
    if labels.numbers is None:
        raise ValueError(
            "class_weight needs one label per sample; got soft labels. Set class_weight=None and multiply "
            "sample_weight by the weights of the classes."
        )
    numbers = labels.numbers.cpu()
    known = numbers >= 0
    table = _factors_of(class_weight, labels.classes, numbers[known], None if weights is None else weights.cpu()[known])
    factors = torch.where(known, table[numbers.clamp_min(0)], 1.0)
    products = factors if weights is None else weights * factors.to(weights.device)
    checks.total_weight(float(products.sum()))
    return products


def _factors_of(class_weight: object, classes: np.ndarray, numbers: Tensor, weights: Tensor | None) -> Tensor:
    """The factor of each class; "balanced" gives all classes the same total weight."""
    if isinstance(class_weight, str) and class_weight == "balanced":
        totals = torch.zeros(len(classes), dtype=torch.float64)
        totals.index_add_(0, numbers, torch.ones(len(numbers), dtype=torch.float64) if weights is None else weights)
        return totals.sum() / (len(classes) * totals)
    return torch.from_numpy(compute_class_weight(class_weight, classes=classes, y=classes[numbers]).astype(float))


@dataclass(frozen=True)
class LabeledScorer:
    """A scikit-learn scorer of the labeled samples.

    Cross-validation holds out unlabeled samples too. Most scorers count them as errors; this one ignores them.

    Parameters
    ----------
    scoring : str or callable, default="accuracy"
        A scorer, as `sklearn.metrics.get_scorer` takes it.
    unlabeled : object, default=-1
        The label of unlabeled samples; np.nan stands for every missing label.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import cross_val_score
    >>> from mixtura import LabeledScorer, MixtureClassifier
    >>> from mixtura.datasets import make_ripley
    >>> X, y = make_ripley(60, random_state=0)
    >>> y[::3] = -1
    >>> model = MixtureClassifier(1, unlabeled=-1)
    >>> scores = cross_val_score(model, X, y, scoring=LabeledScorer("neg_log_loss", unlabeled=-1))
    >>> bool((scores > -0.6).all())
    True
    """

    scoring: str | Callable[..., float] = "accuracy"
    unlabeled: object = -1

    def __call__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the score of the labeled samples of X and y."""
        X, y, sample_weight = only_labeled(X, y, sample_weight, self.unlabeled)
        known = {} if sample_weight is None else {"sample_weight": sample_weight}
        return float(get_scorer(self.scoring)(estimator, X, y, **known))


def only_labeled(X: object, y: object, sample_weight: object, unlabeled: object) -> tuple[object, object, object]:
    """The samples that have a label."""
    labeled = labeled_samples(y, unlabeled)
    if labeled.all():
        return X, y, sample_weight
    if not labeled.any():
        raise ValueError(f"y holds no labeled sample to score: every label is {unlabeled!r}.")
    return _some(X, labeled), _some(y, labeled), _some(sample_weight, labeled)


def _some(values: object, chosen: np.ndarray) -> object:
    if values is None or isinstance(values, Tensor):
        return None if values is None else values[chosen]
    return _safe_indexing(values, np.flatnonzero(chosen))
