"""Plots of mixtures and of fits. The only package of mixtura that imports matplotlib."""

try:
    import matplotlib  # noqa: F401
except ImportError as error:
    text = "mixtura.plotting needs matplotlib; install it with: pip install 'mixtura[plot]'"
    raise ModuleNotFoundError(text, name="matplotlib") from error

from mixtura.files import look_up_moved
from mixtura.plotting.curves import ConfusionDisplay, CoverageDisplay, HistoryDisplay, ReliabilityDisplay, SearchDisplay
from mixtura.plotting.explanations import ExplanationDisplay
from mixtura.plotting.figures import plot_classifier, plot_density
from mixtura.plotting.mixtures import MixtureDisplay, PairsDisplay

__all__ = [
    "ConfusionDisplay",
    "CoverageDisplay",
    "ExplanationDisplay",
    "HistoryDisplay",
    "MixtureDisplay",
    "PairsDisplay",
    "ReliabilityDisplay",
    "SearchDisplay",
    "plot_classifier",
    "plot_density",
]

__getattr__ = look_up_moved(
    __name__,
    {
        "plot_bases": "reproduce.figures.plot_bases of a source checkout",
        "plot_features": "studies.heads.plot_features of a source checkout",
        "save_moving_features": "studies.heads.save_moving_features of a source checkout",
    }
    | dict.fromkeys(("Curve", "demo_picture"), "examples/demo.py of a source checkout"),
)
