"""The base of all estimators: model files and graphs."""

from __future__ import annotations

from typing import Any

from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from mixtura import checks
from mixtura.files.codec import fitted_of
from mixtura.files.models import save
from mixtura.inspection.graphs import export
from mixtura.inspection.summaries import feature_names
from mixtura.solvers import Record

MODELS = {"mixture_", "model_", "estimator_"}  # attributes that hold a fitted model


class Estimator(BaseEstimator):
    """An estimator that can be saved: all of its arguments and all fitted attributes."""

    n_features_in_: int
    n_iter_: int
    history_: list[Record]
    converged_: bool

    def save(self, path: Any) -> None:
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
        check_is_fitted(self)  # pyright: ignore[reportArgumentType]
        save(self, path)

    def __sklearn_is_fitted__(self) -> bool:
        """Whether there is a model; an interrupted first fit may leave none."""
        return not MODELS.isdisjoint(vars(self))

    def _check_fitted(self) -> None:
        """Raise a ValueError unless the fitted attributes are complete and consistent."""
        checks.fitted_basics(self)
        for record in self.history_:
            checks.is_kind("history_", record, Record)

    def _selected_settings(self) -> dict[str, Any]:
        """Values that the fit selected for arguments "auto", and those of arguments that direct a selection alone."""
        return {}

    def _graph(self) -> Any:
        """A torch module of plain operations from samples (n, D) to predictions, both float32."""
        raise NotImplementedError

    def _graph_outputs(self) -> tuple[str, ...]:
        return ("probabilities",)

    def to_onnx(self, path: Any) -> None:
        """Write the model as an ONNX graph, which onnxruntime runs without torch or mixtura.

        The graph takes `X` (n_samples, n_features) as float32. Its outputs are `probabilities`, as `predict_proba`, and
        `log_density`, as `score_samples`, if there is a density. Missing values (NaN) are integrated out
        by diagonal covariances, and by others of up to 32 features. Classes and feature names are in the metadata.

        Parameters
        ----------
        path : str or path-like
            Where the file is to be.

        Raises
        ------
        ModuleNotFoundError
            onnxscript is not installed; `pip install 'mixtura[onnx]'`.
        """
        check_is_fitted(self)  # pyright: ignore[reportArgumentType]
        notes: dict[str, Any] = {"feature_names": feature_names(self), "model": type(self).__name__}
        if "classes_" in vars(self):
            notes["classes"] = vars(self)["classes_"].tolist()
        export(self._graph(), path, self.n_features_in_, self._graph_outputs(), notes)


def check_fitted(estimator: Any) -> None:
    """Check an estimator, if it is fitted."""
    if fitted_of(estimator):
        try:
            estimator._check_fitted()
        except AttributeError as error:
            raise ValueError(f"a part is missing: {error}") from error
