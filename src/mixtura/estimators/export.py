"""Export of fitted models to ONNX."""

from __future__ import annotations

from typing import Any

from sklearn.utils.validation import check_is_fitted

from mixtura.model.mixture import Mixture
from mixtura.model.warp import Warp
from mixtura.reading.graphs import DensityGraph, GaussianScores, export
from mixtura.reading.summaries import feature_names


class Exportable:
    """A fitted estimator that can be exported to ONNX."""

    n_features_in_: int

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


class ExportableMixture(Exportable):
    """A fitted mixture that can be exported to ONNX."""

    mixture_: Mixture
    warp_: Warp | None

    def _graph(self) -> Any:
        return DensityGraph(GaussianScores(self.mixture_, self.warp_))

    def _graph_outputs(self) -> tuple[str, ...]:
        return ("probabilities", "log_density")
