"""Rows that come in batches, in Dask collections or in several processes: sources of them, and predictions."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce, wraps
from typing import TypeVar, cast

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mixtura import checks
from mixtura.engine.distributed import DaskSource, Processes, ProcessSource, add_partitions
from mixtura.engine.sources import BatchSource, Block, BlockSource, Source, moved
from mixtura.estimators.categorical import FoundCategories, find_categories
from mixtura.estimators.estimator import Estimator
from mixtura.estimators.frames import is_batches, is_dask
from mixtura.estimators.labels import ClassNumbers, read_one_per_row
from mixtura.estimators.rows import Data, Rows, read_encoded, read_rows, read_samples
from mixtura.streams.batches import Batch, BatchedPredictions, EveryPass, Sharded, named_batches

Method = TypeVar("Method", bound=Callable[..., object])

# What the error about a label adds that the first pass over batches did not see.
SAME_ROWS = " Batches must hold the same rows in every pass."


def is_streamed(X: object) -> bool:
    """Whether X is rows in parts, rather than one array."""
    return isinstance(X, Sharded) or is_dask(X) or is_batches(X)


# The first pass over the parts of each place: rows, distinct labels of the parts, and unlabeled rows. Places add.
Scan = tuple[tuple[int, list[np.ndarray], int], ...]


@dataclass(frozen=True)
class Reader:
    """Checks batches like arrays and converts them to blocks.

    `labeled`: whether batches must have labels. `classes` are sorted, or None before they are known.
    """

    estimator: Estimator
    labeled: bool
    unlabeled: object
    device: torch.device
    dtype: torch.dtype
    classes: np.ndarray | None = None

    def scan(self, batches: Iterable[object]) -> Scan:
        """Make the first pass over all batches of one place."""
        n_rows, n_unlabeled, labels = 0, 0, [np.empty(0)]
        for batch in named_batches(batches):
            try:
                rows, weights, known, labeled = self._check_part(batch)
            except ValueError as error:
                raise checks.unread(batch.origin, error) from error
            n_absent = 0 if weights is None else int((weights <= 0).sum())
            n_rows += len(rows) - n_absent
            if known is not None:
                labels.append(checks.distinct(known))
                n_unlabeled += len(rows) - n_absent - int(labeled.sum())
        return ((n_rows, labels, n_unlabeled),)

    def __call__(self, batch: Batch) -> Block:
        """The rows of a batch, without those of weight zero."""
        try:
            return self._block(*self._check_part(batch))
        except ValueError as error:
            raise checks.unread(batch.origin, error) from error

    def _check_part(self, batch: Batch) -> tuple[Rows, Tensor | None, np.ndarray | None, np.ndarray]:
        """The rows, their weights, the labels of the labeled rows, and the mask of these."""
        if not batch.n_rows:
            return self._empty_rows(batch)
        rows = read_samples(self.estimator, batch.X, reset=False)
        weights = checks.sample_weight(batch.sample_weight, len(rows), all_rows=False)
        if not self.labeled:
            return rows, weights, None, np.zeros(0, bool)
        known, labeled = self._labels(batch.y, len(rows), weights)
        return rows, weights, known, labeled

    def _empty_rows(self, batch: Batch) -> tuple[Rows, Tensor | None, np.ndarray | None, np.ndarray]:
        shape, expected = checks.shape_of(batch.X), self.estimator.n_features_in_
        if len(shape) == 2 and shape[1] != expected:
            name = type(self.estimator).__name__
            raise ValueError(f"X has {shape[1]} features, but {name} is expecting {expected} features as input.")
        rows = Rows(torch.empty(0, n_columns(self.estimator), dtype=self.dtype), self.device, self.dtype, False)
        return rows, None, np.empty(0) if self.labeled else None, np.zeros(0, bool)

    def _labels(self, y: object, n_rows: int, weights: Tensor | None) -> tuple[np.ndarray, np.ndarray]:
        if y is None:
            name = type(self.estimator).__name__
            raise ValueError(f"{name} needs batches of (X, y) or (X, y, sample_weight); this one has no y.")
        return read_one_per_row(y, n_rows, weights, self.unlabeled, "y of a batch")

    def _block(self, rows: Rows, weights: Tensor | None, known: np.ndarray | None, labeled: np.ndarray) -> Block:
        numbers = None
        if known is not None and self.classes is not None:
            numbers = ClassNumbers(self.classes, advice=SAME_ROWS).number(known, labeled)
        block = next(iter(rows.source(numbers, None, weights).blocks()))
        values = block.rows.to(self.dtype)
        return Block(values, block.labels, None, block.weights, complete=block.complete)


def read_stream(
    estimator: Estimator,
    X: object,
    y: object,
    sample_weight: object,
    labeled: bool,
    unlabeled: object = None,
) -> Data:
    """Check rows in parts; sets features on the estimator.

    `labeled`: whether the rows must have labels.
    """
    if is_dask(X):
        return _read_dask(estimator, X, y, sample_weight, labeled, unlabeled)
    checks.alone_with_batches(y=y, sample_weight=sample_weight)
    if isinstance(X, Sharded):
        return _read_sharded(estimator, X, labeled, unlabeled)
    assert isinstance(X, Iterable)
    first = first_batch(X)
    _keep_encoding(estimator, first.X, lambda: _find_categories(estimator.categorical_features, _named_again(X)))
    reader = _reader(estimator, first, labeled, unlabeled)
    scan = reader.scan(_named_again(X)) if labeled else ()
    reader, n_rows, n_unlabeled = _with_classes(reader, scan)
    source = BatchSource(_named_again(X), reader, n_columns(estimator), reader.device, reader.dtype)
    if labeled:
        source.n_rows = n_rows
    return Data(source, reader.classes, n_unlabeled)


def _named_again(batches: Iterable[object]) -> EveryPass:
    """Batches with names, which can be iterated repeatedly. There is at least one (see `first_batch`)."""

    def named() -> Iterator[Batch]:
        batch = None
        for batch in named_batches(batches):
            yield batch
        if batch is None:
            raise checks.read_once(type(batches).__name__)

    return EveryPass(named)


def first_batch(batches: Iterable[object]) -> Batch:
    """The first non-empty batch of a re-iterable."""
    if isinstance(batches, Iterator):
        raise checks.read_once(type(batches).__name__)
    for batch in named_batches(batches):
        if batch.n_rows:
            return batch
    raise checks.no_rows()


def n_columns(estimator: Estimator) -> int:
    """Number of columns of the samples, with one for every category."""
    return estimator.n_features_in_ if estimator.encoding_ is None else estimator.encoding_.n_columns


def _keep_encoding(estimator: Estimator, example: object, find: Callable[[], tuple[FoundCategories, ...]]) -> None:
    """Store the encoding of categorical features, which takes a pass over the rows; that of a continued fit remains.

    If an example has no categorical feature, there is none.
    """
    if not (estimator.warm_start and estimator.encoding_ is not None):
        of_example = _find_categories(estimator.categorical_features, [Batch(example, origin="X")])
        parts = find() if any(part.values for part in of_example) else ()
        estimator.encoding_ = reduce(operator.add, parts).encoding if parts else None


def _find_categories(wanted: object, batches: Iterable[object]) -> tuple[FoundCategories, ...]:
    """The categories in the batches of one place, added up; none if no feature can be categorical."""
    parts: list[FoundCategories] = []
    for batch in named_batches(batches):
        try:
            part = find_categories(batch.X, wanted, is_part=True) if batch.n_rows else None
            parts = parts if part is None else [reduce(operator.add, [*parts, part])]
        except ValueError as error:
            raise checks.unread(batch.origin, error) from error
    return tuple(parts)


def _reader(estimator: Estimator, example: Batch, labeled: bool, unlabeled: object) -> Reader:
    """The reader of rows with the features of an example, which are stored in the estimator."""
    try:
        known = estimator.encoding_
        read = read_rows if known is None else partial(read_encoded, encoding=known)
        rows = read(estimator, X=example.X, reset=True)
    except ValueError as error:
        raise checks.unread(example.origin, error) from error
    return Reader(copy.copy(estimator), labeled, unlabeled, rows.device, rows.dtype)


def _with_classes(reader: Reader, scan: Scan) -> tuple[Reader, int, int]:
    """The reader with the classes of a first pass, the number of rows and that of unlabeled rows."""
    n_rows, n_unlabeled = sum(rows for rows, _, _ in scan), sum(unlabeled for _, _, unlabeled in scan)
    if not reader.labeled:
        return reader, n_rows, n_unlabeled
    labels = [part for _, parts, _ in scan for part in parts]
    known = [part for part in labels if len(part)] or labels
    if len({part.dtype.kind in "iufb" for part in known}) > 1:  # numbers must not be converted to text
        known = [part.astype(object) for part in known]
    classes = checks.distinct(np.concatenate(known))
    checks.enough_classes(classes, n_unlabeled, type(reader.estimator).__name__)
    return replace(reader, classes=classes), n_rows, n_unlabeled


def _read_sharded(estimator: Estimator, shard: Sharded, labeled: bool, unlabeled: object) -> Data:
    if not isinstance(estimator.random_state, int | np.integer):
        raise ValueError(
            "random_state must be an integer and the same in all processes if X is Sharded; got "
            f"{estimator.random_state!r}."
        )
    whole = Batch(shard.X, shard.y, shard.sample_weight, "The part of this process")
    given: Iterable[object] = [whole]
    if is_batches(shard.X):
        checks.alone_with_batches(y=shard.y, sample_weight=shard.sample_weight)
        given = shard.X
    processes, readers = Processes(shard.group), []

    def find_here() -> tuple[FoundCategories, ...]:
        return _find_categories(estimator.categorical_features, _named_again(given))

    _keep_encoding(estimator, first_batch(given).X, lambda: processes.total(find_here))

    def scan_here() -> Scan:
        readers.append(_reader(estimator, first_batch(given), labeled, unlabeled))
        return readers[0].scan(_named_again(given))

    scan = processes.total(scan_here)
    widths = processes.total(lambda: (estimator.n_features_in_,))
    other = next((rank for rank, n_features in enumerate(widths) if n_features != widths[0]), None)
    if other is not None:
        raise ValueError(
            f"Process {other} has rows of {widths[other]} features, but process 0 has rows of {widths[0]}. Pass the "
            "same features in all processes."
        )
    reader, n_rows, n_unlabeled = _with_classes(readers[0], scan)
    start = sum(rows for rows, _, _ in scan[: processes.rank])
    n_features = n_columns(estimator)
    if is_batches(shard.X):
        local: Source = BatchSource(_named_again(given), reader, n_features, reader.device, reader.dtype, start=start)
    else:
        block = moved(reader(whole), reader.device)
        block.start = start
        local = BlockSource(block)
    return Data(ProcessSource(local, processes, n_rows), reader.classes, n_unlabeled)


def _read_dask(
    estimator: Estimator, X: object, y: object, sample_weight: object, labeled: bool, unlabeled: object
) -> Data:
    from mixtura.estimators.dask_collections import example_of, partitions_of

    if labeled:
        checks.given_labels(y, type(estimator).__name__)
    example, find = example_of(X), partial(_find_in_part, estimator.categorical_features)
    partitions = partitions_of(X, y, sample_weight)
    _keep_encoding(estimator, example, lambda: add_partitions(partitions, find, "categories"))
    reader = _reader(estimator, Batch(example, origin="X"), labeled, unlabeled)
    scan = add_partitions(partitions, partial(_scan_part, reader), "scan")
    reader, _, n_unlabeled = _with_classes(reader, scan)
    source = DaskSource(
        partitions,
        partial(_read_part, reader),
        n_columns(estimator),
        reader.device,
        reader.dtype,
        tuple(rows for rows, _, _ in scan),
    )
    return Data(source, reader.classes, n_unlabeled)


def _find_in_part(wanted: object, number: int, *part: object) -> tuple[FoundCategories, ...]:
    return _find_categories(wanted, [Batch(*part, origin=f"Partition {number}")])


def _scan_part(reader: Reader, number: int, *part: object) -> Scan:
    return reader.scan([Batch(*part, origin=f"Partition {number}")])


def _read_part(reader: Reader, number: int, *part: object) -> Block:
    return moved(reader(Batch(*part, origin=f"Partition {number}")), reader.device)


def by_batches(columns: str = "") -> Callable[[Method], Method]:
    """A decorator for methods whose result for a row does not depend on other rows.

    Parameters
    ----------
    columns : str, default=""
        Meaning of the columns of the result: "class", "component" or "feature".
    """

    def decorate(method: Method) -> Method:
        name = method.__name__

        @wraps(method)
        def over_parts(self: Estimator, X: object, *arguments: object, **options: object) -> object:
            if is_dask(X) or is_batches(X):
                check_is_fitted(self)
                predict = partial(_predict_part, getattr(self, name), arguments, options)
                if is_batches(X):
                    return BatchedPredictions(predict, X, name, _labels(self, columns))
                from mixtura.estimators.dask_collections import lazily

                return lazily(predict, X)
            return method(self, X, *arguments, **options)

        return cast("Method", over_parts)

    return decorate


def _predict_part(
    predict: Callable[..., object], arguments: tuple[object, ...], options: dict[str, object], X: object
) -> object:
    return predict(X, *arguments, **options)


def _labels(estimator: Estimator, columns: str) -> list[object]:
    if columns == "class":
        return vars(estimator)["classes_"].tolist()
    if columns == "component":
        return list(range(vars(estimator)["mixture_"].n_components))
    named = columns == "feature" and "feature_names_in_" in vars(estimator)
    return list(vars(estimator)["feature_names_in_"] if named else range(estimator.n_features_in_))
