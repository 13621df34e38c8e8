"""The base of all estimators: declared arguments and attributes, atomic fits with their progress, files and graphs."""

from __future__ import annotations

import copyreg
import functools
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral
from types import FunctionType, UnionType
from typing import Any, ClassVar, SupportsIndex, TypeVar, cast, dataclass_transform, get_args

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted
from torch import nn
from tqdm.auto import tqdm

from mixtura import checks
from mixtura.engine.sources import Source
from mixtura.estimators import arguments
from mixtura.estimators.categorical import Encoding
from mixtura.files.checkpoints import CheckpointFile, Journal, Show, digest, update_digest, writing_to
from mixtura.files.codec import fits, fitted_of
from mixtura.files.models import METADATA, as_arrays, from_arrays, save
from mixtura.inspection.graphs import coded_graph, export
from mixtura.selection.search import SearchTable, watching
from mixtura.solvers import Record

MODELS = {"mixture_", "model_", "estimator_"}  # attributes that hold a fitted model


# Fitted attributes of every estimator that is trained in iterations.
TRAINED: dict[str, object] = {
    "n_iter_": Integral,
    "n_features_in_": Integral,
    "converged_": bool,
    "history_": list[Record],
}


Class = TypeVar("Class", bound=type)
Model = TypeVar("Model", bound="Estimator")
Fit = TypeVar("Fit", bound=Callable[..., object])


@dataclass_transform(eq_default=False, field_specifiers=(field,))
def with_constructor(cls: Class) -> Class:
    """Make the constructor from the annotated arguments of a class; fitted attributes are `field(init=False)`.

    It remains an ordinary class, since other packages take two dataclasses with the same fields for equal.
    """
    constructed = dataclass(eq=False, repr=False)(cls)
    for name in ("__dataclass_fields__", "__dataclass_params__"):
        delattr(constructed, name)
    return constructed


class Estimator(BaseEstimator):
    """An estimator that can be saved: all of its arguments and all fitted attributes."""

    _arguments: ClassVar[Mapping[str, arguments.Rule]] = arguments.ARGUMENTS
    # Fitted attributes: their types, their rules, or functions of name, value and model; a tuple has several.
    _attributes: ClassVar[Mapping[str, object]] = {}
    fit: Callable[..., object]
    n_features_in_: int
    feature_names_in_: np.ndarray  # if X had column names that are text
    search_: SearchTable | None = None  # of what was compared
    n_iter_: int
    history_: list[Record]
    converged_: bool
    # Arguments of estimators that are trained, and what is read with them.
    device: arguments.Device
    memory_limit: arguments.MemoryLimit
    random_state: arguments.RandomState
    verbose: int
    checkpoint: arguments.PathName
    warm_start: bool
    unlabeled: object
    categorical_features: object
    encoding_: Encoding | None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a file, to be read with `mixtura.load`.

        The file (safetensors with a JSON header) holds all arguments and all fitted attributes, and no code. An
        existing file is replaced atomically.

        Parameters
        ----------
        path : str or path-like
            File to write. Links are followed.

        Raises
        ------
        ValueError
            If an argument or attribute cannot be saved, such as a function, a random generator, or an object of a
            class that is not registered; or if `path` is not a regular file.
        """
        check_is_fitted(self)
        save(self, path)

    def __getstate__(self) -> object:
        """The state for skops, which stores arrays and no tensors."""
        return as_arrays(self) if fitted_of(self) else super().__getstate__()

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(vars(from_arrays(state)) if METADATA in state else state)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        """The state for pickle, joblib and copies: tensors stay on their device."""
        return copyreg.__newobj__, (type(self),), vars(self).copy()  # type: ignore[attr-defined]

    def __sklearn_is_fitted__(self) -> bool:
        """Whether there is a model; an interrupted first fit may leave none."""
        return not MODELS.isdisjoint(vars(self))

    def _check_arguments(self) -> None:
        """Raise an error unless every argument is one that the estimator takes."""
        checks.check_arguments(self.get_params(deep=False), declared(type(self), "_arguments"))

    def _check_fitted(self) -> None:
        """Raise a ValueError unless the fitted attributes are complete and consistent."""
        for name, rule in declared(type(self), "_attributes").items():
            for part in rule if isinstance(rule, tuple) else (rule,):
                check_attribute(self, name, part)
        names = checks.feature_names(self)
        if names is not None:
            checks.is_kind("feature_names_in_", names, np.ndarray)
            checks.same_size("feature_names_in_", names.size, self.n_features_in_)
            for entry in names.tolist():
                checks.is_kind("feature_names_in_", entry, str)

    def _selected_settings(self) -> dict[str, object]:
        """Values that the fit selected for arguments "auto", and those of arguments that direct a selection alone."""
        return {}

    def _fit_as_selected(self, model: Estimator, X: object, y: object, **weights: object) -> None:
        """Fit to other samples with what the fit of `model`, of which this is a copy, selected."""
        self.set_params(**model._selected_settings())
        counts = self.get_params(deep=False).get("n_components")
        if isinstance(counts, dict) and y is not None and len(checks.shape_of(y)) == 1:
            present = set(np.asarray(y).tolist())
            self.set_params(n_components={label: count for label, count in counts.items() if label in present})
        self.fit(X, y, **weights)

    def _graph(self) -> nn.Module:
        """A torch module of plain operations from samples (n, D) to predictions, both float32."""
        raise NotImplementedError

    def _graph_outputs(self) -> tuple[str, ...]:
        return ("probabilities",)

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the model as an ONNX graph, which onnxruntime runs without torch or mixtura.

        The graph takes `X` (n_samples, n_features) as float32. Its outputs are `probabilities`, as `predict_proba`, and
        `log_density`, as `score_samples`, if there is a density. Missing values (NaN) are integrated out
        by diagonal covariances, and by others of up to 32 features. Classes and feature names are in the metadata, and
        the categories of categorical features, in whose place `X` has their numbers, from 0 on; any other number is an
        unknown category, which counts as missing.

        Parameters
        ----------
        path : str or path-like
            Where the file is to be.

        Raises
        ------
        ModuleNotFoundError
            onnxscript is not installed; `pip install 'mixtura[onnx]'`.
        """
        check_is_fitted(self)
        graph, encoding = self._graph(), vars(self).get("encoding_")
        if encoding is not None:
            sizes = dict(zip(encoding.categorical, encoding.sizes, strict=True))
            graph = coded_graph(graph, encoding.numeric, sizes)
        export(graph, path, self.n_features_in_, self._graph_outputs(), graph_notes(self))


def graph_notes(estimator: Estimator) -> dict[str, object]:
    """The metadata of an exported graph: names of features, classes, categories."""
    known, names = vars(estimator), list_features(estimator)
    notes: dict[str, object] = {"feature_names": names, "model": type(estimator).__name__}
    if "classes_" in known:
        notes["classes"] = known["classes_"].tolist()
    if known.get("encoding_") is not None:
        columns = zip(known["encoding_"].categorical, known["encoding_"].categories, strict=True)
        notes["categories"] = {names[j]: values.tolist() for j, values in columns}
    return notes


def list_features(estimator: Estimator) -> list[str]:
    """The feature names of the fit, or x0, x1, ... as in scikit-learn."""
    known = checks.feature_names(estimator)
    return [f"x{j}" for j in range(estimator.n_features_in_)] if known is None else [str(name) for name in known]


def check_attribute(estimator: Estimator, name: str, rule: object) -> None:
    """Check a fitted attribute by one rule of the table `_attributes`."""
    value = getattr(estimator, name)
    if isinstance(rule, checks.Rule):
        checks.require(name, value, rule)
    elif isinstance(rule, FunctionType):
        rule(name, value, estimator)
    elif not fits(value, rule):
        raise ValueError(f"{name} is a {type(value).__name__}")
    elif isinstance(value, list | tuple) and get_args(rule):
        for entry in value:
            checks.is_kind(name, entry, get_args(rule)[0])


def check_fitted(estimator: Estimator) -> None:
    """Check an estimator, if it is fitted."""
    if fitted_of(estimator):
        try:
            estimator._check_fitted()
        except AttributeError as error:
            raise ValueError(f"a part is missing: {error}") from error


def estimator_of(kind: type | UnionType, words: str) -> Callable[[object], None]:
    """A rule of the argument `estimator`: None, or one of this kind with arguments that it takes."""

    def check(value: object) -> None:
        if value is None:
            return
        if not (isinstance(value, kind) and isinstance(value, Estimator)):
            raise TypeError(f"estimator must be {words}; got {type(value).__name__}.")
        try:
            value._check_arguments()
        except (TypeError, ValueError) as error:
            raise type(error)(f"The {type(value).__name__} given as estimator has a wrong argument: {error}") from error

    return check


def unfitted_copy(model: Model) -> Model:
    """An unfitted copy of a model, with the same arguments."""
    return cast("Model", clone(model))


def with_selected_settings(model: Model) -> Model:
    """An unfitted copy of a fitted model: arguments "auto" have the values that the fit selected."""
    copy = unfitted_copy(model)
    given = {"checkpoint": None} if "checkpoint" in model.get_params(deep=False) else {}  # of the fit to all samples
    copy.set_params(**given, **model._selected_settings())
    return copy


def fit_as_selected(copy: Model, model: Model, X: object, y: object, **weights: object) -> None:
    """Fit an unfitted copy of a model to other samples, with what the fit of the model selected."""
    copy._fit_as_selected(model, X, y, **weights)


def declared(cls: type, name: str) -> dict[str, Any]:
    """The entries of a table of a class and its bases."""
    return {key: value for base in reversed(cls.__mro__) for key, value in vars(base).get(name, {}).items()}


def fitting(fit: Fit) -> Fit:
    """Decorate `fit`: its arguments are checked first, and a fit that fails leaves the last one unchanged."""

    @functools.wraps(fit)
    def checked_fit(self: Estimator, *samples: object, **named: object) -> object:
        self._check_arguments()
        with atomic_fit(self):
            return fit(self, *samples, **named)

    return cast("Fit", checked_fit)


# Results of methods other than `fit`, which belong to the model that they were called for.
LATER = ("class_offsets_", "outlier_reference_", "outlier_source_", "set_reference_")


@contextmanager
def atomic_fit(estimator: Estimator) -> Iterator[None]:
    """A context for the whole of `fit`.

    Attributes of the last fit are removed first; a warm start needs them, and keeps all but those of other methods.
    If the fit raises an error before it has stored a complete model, all attributes are restored. A fit that was
    interrupted by Ctrl-C may have stored a model.
    """
    before = dict(vars(estimator))
    goes_on = bool(estimator.get_params(deep=False).get("warm_start"))
    for name in LATER if goes_on else fitted_of(estimator):
        vars(estimator).pop(name, None)
    try:
        yield
    except BaseException:
        changed = any(vars(estimator).get(name) is not before.get(name) for name in MODELS)
        if not (changed and is_complete(estimator)):
            vars(estimator).clear()
            vars(estimator).update(before)
        raise


def is_complete(estimator: Estimator) -> bool:
    try:
        check_fitted(estimator)
    except ValueError:
        return False
    return not MODELS.isdisjoint(vars(estimator))


# Arguments that may differ when a fit is continued.
FREE = ("checkpoint", "verbose", "verbose_interval", "memory_limit")


@contextmanager
def keeping_progress(estimator: Estimator, bar: bool = True, **samples: Source | None) -> Iterator[None]:
    """A context for the computation of a fit, which writes checkpoints and shows a progress bar.

    Parameters
    ----------
    estimator : estimator
        With the arguments `checkpoint`, `verbose` and `random_state`.
    bar : bool, default=True
        Whether `verbose` asks for a progress bar.
    **samples : Source
        The training samples as `training`, and others by their name in messages.
    """
    file = None
    if estimator.checkpoint is not None:
        if isinstance(estimator.random_state, bool) or not isinstance(estimator.random_state, Integral):
            raise ValueError(
                "checkpoint needs a random_state that is an integer, so that a resumed fit draws the same "
                f"random numbers; got random_state={estimator.random_state!r}."
            )
        file = CheckpointFile(estimator.checkpoint, _settings(estimator, samples))
    shown = bool(estimator.verbose) and bar
    with _progress_bar(type(estimator).__name__, shown) as show, writing_to(Journal(file, show)):
        yield


def _settings(estimator: Estimator, samples: dict[str, Source | None]) -> dict[str, str]:
    """Settings that identify a fit in a checkpoint."""
    arguments = {n: v for n, v in estimator.get_params().items() if n.rpartition("__")[2] not in FREE}
    settings = {"estimator class": type(estimator).__name__} | {
        name: digest(value) for name, value in arguments.items()
    }
    for word, source in samples.items():
        if source is not None:
            settings |= digest_samples(source, "" if word == "training" else f"{word.replace('_', '-')} ")
    if arguments.get("warm_start"):
        settings["last fit"] = digest(vars(estimator).get("mixture_"))
    return settings


def digest_samples(source: Source, which: str = "") -> dict[str, str]:
    """Return digests of the samples of a source, of their labels and of their weights."""
    totals = {name: hashlib.blake2b(digest_size=12) for name in ("samples", "labels", "sample weights")}
    for block in source.blocks():
        update_digest(totals["samples"], block.rows)
        update_digest(totals["labels"], block.labels if block.shares is None else block.shares)
        update_digest(totals["sample weights"], torch.ones(0) if block.weights is None else block.weights)
    return {f"{which}{name}": total.hexdigest() for name, total in totals.items()}


@contextmanager
def _progress_bar(name: str, shown: bool) -> Iterator[Show | None]:
    """A bar that counts the iterations of all loops of a fit, whose number is not known in advance."""
    if not shown:
        yield None
        return
    with tqdm(desc=name, unit=" iterations") as bar:
        last = [time.perf_counter()]

        def show(solver: str, objective: float, change: float, n_rows: int | None) -> None:
            now = time.perf_counter()
            shown = {"solver": solver, "objective": f"{objective:.5f}", "change": f"{change:.2e}"}
            if n_rows is not None:
                shown["rows_per_second"] = f"{n_rows / max(now - last[0], 1e-9):.3g}"
            bar.set_postfix(shown, refresh=False)
            bar.update()
            last[0] = now

        yield show


@contextmanager
def candidates_shown(verbose: int, name: str) -> Iterator[None]:
    """A context that shows each candidate of a search in a progress bar."""
    if not verbose:
        yield
        return
    with tqdm(desc=f"{name}: comparing", unit="candidate") as bar:
        best = [float("inf")]

        def watch(score: float) -> None:
            best[0] = min(best[0], score)
            bar.set_postfix(score=f"{score:.4f}", best=f"{best[0]:.4f}", refresh=False)
            bar.update()

        with watching(watch):
            yield
