"""Fitted models as torch modules of plain operations, and their export to ONNX.

Inputs and outputs are float32. The computation is in float64, so that outputs are as precise as the inputs.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from mixtura.covariances.product import ProductCovariance
from mixtura.model.missingness import Missingness
from mixtura.model.mixture import MemberGroup, Mixture
from mixtura.model.temperature import Temperature
from mixtura.model.transforms import Recoding, Transform
from mixtura.values.moments import DiagonalForm

LOG_TWO_PI = 1.8378770664093453
# Largest number of features with full matrices and missing values: each needs an elimination step in the graph.
MOST_ELIMINATED = 32


class GaussianScores(nn.Module):
    """Log joints (n, K) of samples (n, D) in double precision, and the log slopes of the transform (n,).

    Missing values are integrated out by diagonal covariances, and by full ones of up to 32 features: in the matrix of
    the observed features, completed by an identity, features are eliminated one after the other. Categories are
    indicators, behind the numeric features (categorical-block), or numbers are in place of them (recoding).
    """

    def __init__(self, mixture: Mixture, warp: Transform | None):
        super().__init__()
        mixture = mixture.to("cpu")
        self.recoding = replace(warp, warp=None).to("cpu") if isinstance(warp, Recoding) else None
        warp = warp.warp if isinstance(warp, Recoding) else warp
        self.log_frequencies = None
        if isinstance(mixture.covariance, ProductCovariance):
            self.log_frequencies = mixture.covariance.log_frequencies.T
            size, covariance = mixture.covariance.n_numeric, mixture.covariance.inner
            mixture = replace(mixture, means=mixture.means[:, :size], covariance=covariance)
        self.n_features = mixture.n_features
        self.warp_locations = None if warp is None else warp.locations.cpu().double()
        if warp is not None:
            self.warp_scales = torch.where(warp.transformed, warp.scales, 1.0).cpu().double()
            self.warp_transformed = warp.transformed.cpu().double()
        self.log_weights, self.means = mixture.log_weights.double(), mixture.means.double()
        self.diagonal = isinstance(mixture.covariance.form, DiagonalForm)
        self.variances = mixture.covariance.variances().double()
        self.takes_missing = self.diagonal or mixture.n_features <= MOST_ELIMINATED
        if not self.diagonal:
            scales = self.variances.sqrt()
            dense = mixture.covariance.dense().double()
            self.scales, self.correlations = scales, dense / scales.unsqueeze(-1) / scales.unsqueeze(-2)
            factors = torch.linalg.cholesky(dense)
            identity = torch.eye(mixture.n_features, dtype=torch.float64).expand_as(dense)
            self.whitening = torch.linalg.solve_triangular(factors, identity, upper=False)  # (K, D, D)
            self.log_determinants = mixture.covariance.log_determinants.double()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log joints (n, K), log slopes (n,), share of observed features (n,)."""
        x = x.double()
        share = (x == x).double().mean(1)  # false for NaN
        if self.recoding is not None:
            x = self.recoding.finished(x, self.recoding.coded(x))
        rows, slopes = self._warped(x)
        others = 0.0
        if self.log_frequencies is not None:
            indicators = rows[:, self.n_features :]
            rows = rows[:, : self.n_features]
            others = torch.where(indicators == indicators, indicators, 0.0) @ self.log_frequencies
        if not self.n_features:
            return self.log_weights + others, slopes, share
        observed = (rows == rows).double()
        deviations = torch.where(observed.unsqueeze(1) > 0, rows.unsqueeze(1) - self.means, 0.0)  # (n, K, D)
        count = observed.sum(1, keepdim=True)  # (n, 1)
        if self.diagonal:
            distances = (deviations * deviations / self.variances).sum(2)
            log_determinants = observed @ self.variances.log().T
        elif self.takes_missing:
            distances, log_determinants = self._eliminate(deviations / self.scales, observed)
            log_determinants = log_determinants + 2 * observed @ self.scales.log().T
        else:
            deviations = rows.unsqueeze(1) - self.means
            whitened = torch.matmul(self.whitening, deviations.permute(1, 2, 0))  # (K, D, n)
            distances, log_determinants = (whitened * whitened).sum(1).T, self.log_determinants
        log_joint = self.log_weights - 0.5 * (distances + log_determinants + count * LOG_TWO_PI) + others
        return log_joint, slopes, share

    def _warped(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        if self.warp_locations is None:
            return rows, torch.zeros_like(rows[:, 0])
        off = (rows - self.warp_locations) / self.warp_scales
        # asinh by operations that every runtime has in double precision.
        transformed = torch.sign(off) * (off.abs() + (off * off + 1).sqrt()).log()
        values = torch.where(self.warp_transformed > 0, self.warp_locations + self.warp_scales * transformed, rows)
        slopes = -0.5 * (off * off + 1).log() * self.warp_transformed
        return values, torch.where(slopes == slopes, slopes, 0.0).sum(1)

    def _eliminate(self, deviations: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distances and log-determinants of the observed features, (n, K) each."""
        pairs = (observed.unsqueeze(2) * observed.unsqueeze(1)).unsqueeze(1)  # (n, 1, D, D)
        identity = torch.eye(self.n_features, dtype=torch.float64)
        matrices = self.correlations * pairs + identity * (1 - observed).unsqueeze(1).unsqueeze(2)  # (n, K, D, D)
        distances = log_determinants = torch.zeros_like(deviations[:, :, 0])
        for _ in range(self.n_features):
            pivots, first = matrices[:, :, 0, 0], deviations[:, :, 0]
            distances = distances + first * first / pivots
            log_determinants = log_determinants + pivots.log()
            ratios = matrices[:, :, 1:, 0] / pivots.unsqueeze(-1)
            deviations = deviations[:, :, 1:] - ratios * first.unsqueeze(-1)
            matrices = matrices[:, :, 1:, 1:] - ratios.unsqueeze(-1) * matrices[:, :, :1, 1:]
        return distances, log_determinants


class FunctionGraph(nn.Module):
    """A function of samples (n, D), float32, as a module.

    Parameters
    ----------
    function : callable
    """

    def __init__(self, function: Callable[[Tensor], Tensor | tuple[Tensor, ...]]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.function(x)


def density_graph(scores: GaussianScores) -> FunctionGraph:
    """Responsibilities of the components and log densities of samples, float32."""

    def densities(x: Tensor) -> tuple[Tensor, Tensor]:
        log_joint, slopes, _ = scores(x)
        return torch.softmax(log_joint, 1).float(), (log_sum(log_joint) + slopes).float()

    return FunctionGraph(densities)


# The function from samples (n, D) to log posteriors of the classes up to a constant (n, C), log densities (n,), and
# shares of observed features (n,).
ClassScores = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


def class_scores(group: MemberGroup, temperature: Temperature, missingness: Missingness | None = None) -> ClassScores:
    """The scores of the classes by one mixture, or by several under one transform, as plain operations.

    `missingness` is what missing values tell about the classes.
    """
    scores, sizes, n_members = GaussianScores(group.mixture, group.warp), group.sizes, group.n_members
    calibrated = calibration(temperature, missingness)

    def scored(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_joint, slopes, share = scores(x)
        values = torch.stack([log_sum(part) for part in log_joint.split(sizes, 1)], 1)  # (n, C)
        if n_members > 1:
            posteriors = torch.softmax(values.unflatten(1, (-1, n_members)), 1).mean(2)
            values = posteriors.clamp_min(1e-300).log() + log_sum(log_joint).unsqueeze(1)
        return calibrated(values, share, x), log_sum(log_joint) + slopes, share

    return scored


def classifier_graph(scored: ClassScores) -> FunctionGraph:
    """Class probabilities and log densities of samples, float32."""

    def probabilities(x: Tensor) -> tuple[Tensor, Tensor]:
        scores, log_density, _ = scored(x)
        return torch.softmax(scores, 1).float(), log_density.float()

    return FunctionGraph(probabilities)


def average_graph(
    members: Sequence[ClassScores],
    weights: Sequence[float],
    temperature: Temperature,
    missingness: Missingness | None = None,
) -> FunctionGraph:
    """The average of the class probabilities of several models (averaged-posterior), and the log density of the first.

    `temperature` and `missingness` are of the average; the weights of the members are given up to a factor.
    """
    calibrated, change = calibration(temperature, missingness), change_of(temperature)
    shares = [weight / sum(weights) for weight in weights]

    def average(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        results = [member(x) for member in members]
        _, log_density, share = results[0]
        posteriors = [
            torch.softmax(scores - change, 1) * own for own, (scores, _, _) in zip(shares, results, strict=True)
        ]
        return calibrated(torch.stack(posteriors).sum(0).clamp_min(1e-300).log() + change, share, x), log_density, share

    return classifier_graph(average)


def change_of(temperature: Temperature) -> Tensor | float:
    """The change of the log class prior, (C,)."""
    change = temperature.log_prior_change
    return 0.0 if change is None else change.cpu().double()


def calibration(
    temperature: Temperature, missingness: Missingness | None
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """`Temperature.apply` and `Missingness.log_factors` as plain operations: (n, C), (n,), samples (n, D) -> (n, C)."""
    value, noise, change = float(temperature.value), float(temperature.noise), change_of(temperature)
    prior = None if temperature.log_prior is None else temperature.log_prior.cpu().double().exp()
    columns = None if missingness is None else missingness.columns.cpu()
    odds = base = torch.zeros(1, dtype=torch.float64)
    if missingness is not None:
        odds = missingness.strength * missingness.log_odds.cpu().T
        base = -missingness.strength * softplus(missingness.log_odds.cpu()).sum(1)

    def calibrated(scores: Tensor, share: Tensor, x: Tensor) -> Tensor:
        factors = 0.0
        if columns is not None:
            values = x[:, columns]
            factors = base + (values != values).double() @ odds  # true for NaN
        if value == 1 and prior is None:
            return scores + factors
        scores = (scores - change) / (1 + (value - 1) * share).unsqueeze(1) + factors
        if prior is not None:  # (label-noise)
            scores = ((1 - noise) * torch.softmax(scores, 1) + noise * prior).log()
        return scores + change

    return calibrated


def coded_graph(graph: nn.Module, numeric: Sequence[int], categories: Mapping[int, int]) -> FunctionGraph:
    """A graph for samples that have numbers of categories, from 0 on, in place of their indicators.

    Parameters
    ----------
    graph : Module
        For numeric features, then indicators.
    numeric : sequence of int
        Positions of the numeric features.
    categories : mapping of int to int
        Positions of the categorical features, and their numbers of categories.
    """

    def coded(x: Tensor) -> Tensor | tuple[Tensor, ...]:
        x = x.double()
        parts = [x[:, list(numeric)]] if numeric else []
        for position, size in categories.items():
            indicators = (x[:, position : position + 1] == torch.arange(size, dtype=torch.float64)).double()
            parts.append(torch.where(indicators.sum(1, keepdim=True) > 0, indicators, torch.nan))
        return graph(torch.cat(parts, 1))

    return FunctionGraph(coded)


def conditional_graph(score: Callable[[Tensor], Tensor], offsets: Tensor) -> FunctionGraph:
    """Class probabilities, float32, from scores (C, n) of samples in double precision plus offsets (C,)."""
    return FunctionGraph(lambda x: torch.softmax(score(x.double()) + offsets.unsqueeze(-1), 0).T.float())


def log_sum(values: Tensor) -> Tensor:
    """log sum exp over the columns: (n, K) -> (n,)."""
    largest = values.amax(1, keepdim=True)
    return (largest + (values - largest).exp().sum(1, keepdim=True).log()).squeeze(1)


def export(
    graph: nn.Module,
    path: str | os.PathLike[str],
    n_features: int,
    outputs: Sequence[str],
    notes: Mapping[str, object],
) -> None:
    """Write a module to an ONNX file with a free number of samples.

    Parameters
    ----------
    graph : Module
        Takes samples (n, D), float32.
    path : str or path-like
    n_features : int
    outputs : sequence of str
        Names of the outputs of the module.
    notes : mapping
        Written to the metadata of the file, as JSON.
    """
    try:
        import onnxscript  # noqa: F401 - what torch exports with
    except ImportError as error:
        text = "Exporting to ONNX needs onnxscript; install it with: pip install 'mixtura[onnx]'"
        raise ModuleNotFoundError(text, name="onnxscript") from error
    example = torch.zeros(3, n_features)
    log = logging.getLogger("torch.onnx")
    level = log.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        log.setLevel(logging.ERROR)  # and its messages about optional packages
        program = torch.onnx.export(
            graph.eval(),
            (example,),
            dynamo=True,
            verbose=False,
            input_names=["X"],
            output_names=list(outputs),
            dynamic_shapes=({0: torch.export.Dim("n_samples", min=1)},),
        )
        log.setLevel(level)
    assert program is not None
    for name, value in notes.items():
        program.model.metadata_props[name] = json.dumps(value)
    program.save(str(path))
