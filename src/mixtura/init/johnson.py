"""The Johnson transform of each feature under which the classes are most nearly Gaussian."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.init.description import Description
from mixtura.model.warp import Warp

# Rows that the curves are fitted to: two numbers a feature need no more.
FITTED_ROWS = 5_000
# Where the search for a curve begins: quantiles of the feature, and widths in units of its spread. The smallest width
# keeps a value that many rows share, such as zero, from being taken for a peak of infinite height.
QUANTILES = (0.0, 0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98, 1.0)
WIDTHS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
SPREAD = (0.05, 0.95)  # quantiles whose distance is the spread
FEWEST_VALUES = 5  # of a feature that is bent: place, width, mean and scale fit any four
ZOOMS = 6  # times that the steps around the best place and width are halved


def fit_warp(description: Description) -> Warp:
    """The curve of each feature under which the classes are most nearly Gaussian (warp-likelihood):

        -W/2 log V(g) + sum_n w_n log g'(x_n),  V the variance of g(x) about the class means, W the weight of the rows.

    A feature is bent only where that gains more than log W, the price of two parameters in BIC; else it stays as it is,
    as does one of few different values, for which all curves are as good.
    """
    columns = _Columns.of(description)
    low, high = (columns.quantile(q) for q in SPREAD)
    spread = torch.where(high > low, high - low, description.within.sqrt())
    plain = columns.log_likelihood(torch.zeros_like(spread), torch.full_like(spread, torch.inf))
    starts = [(columns.quantile(q), width * spread) for q in QUANTILES for width in WIDTHS]
    places, widths, best = columns.best(starts)
    for zoom in range(ZOOMS):
        step = 0.5**zoom
        near = [
            (places + across * step * widths, (widths * 2.0 ** (up * step)).clamp_min(WIDTHS[0] * spread))
            for across in (-1, 0, 1)
            for up in (-1, 0, 1)
        ]
        places, widths, best = columns.best(near)
    better = (columns.n_values >= FEWEST_VALUES) & (best - plain > columns.weight.clamp_min(1.0).log())
    return Warp(torch.where(better, places, 0.0), torch.where(better, widths, torch.inf))


@dataclass(frozen=True)
class _Columns:
    """Labeled rows, class by class: cells (n, D), zero where missing, their weights (n, D) and the classes (n,)."""

    cells: Tensor
    weights: Tensor
    labels: Tensor
    n_classes: int

    @classmethod
    def of(cls, description: Description) -> _Columns:
        samples = description.samples[: len(description.class_weights)]
        rows = torch.cat([rows for rows, _ in samples])
        weights = torch.cat([weights for _, weights in samples])
        labels = torch.cat([torch.full((len(own),), c, device=rows.device) for c, (own, _) in enumerate(samples)])
        every = max(1, len(rows) // FITTED_ROWS)
        rows, weights, labels = rows[::every], weights[::every], labels[::every]
        return cls(rows.nan_to_num(nan=0.0), weights.unsqueeze(-1) * ~rows.isnan(), labels, len(samples))

    @property
    def weight(self) -> Tensor:
        """Of the observed cells, (D,)."""
        return self.weights.sum(0)

    @property
    def n_values(self) -> Tensor:
        """How many different values there are, (D,)."""
        cells = torch.where(self.weights > 0, self.cells, torch.inf).sort(0).values
        return ((cells.diff(dim=0) > 0) & cells[1:].isfinite()).sum(0) + 1

    def quantile(self, share: float) -> Tensor:
        """The smallest value with at least this share of the weight at or below it, (D,)."""
        cells, order = torch.where(self.weights > 0, self.cells, torch.inf).sort(0)
        cumulated = self.weights.gather(0, order).cumsum(0) / self.weight.clamp_min(1e-300)
        found = (cumulated < share - 1e-12).sum(0).clamp_max((self.weights > 0).sum(0) - 1).clamp_min(0)
        return cells.gather(0, found.unsqueeze(0))[0].nan_to_num(posinf=0.0)

    def best(self, candidates: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
        """The most likely place and width of each feature, and the log-likelihood; all (D,)."""
        scores = torch.stack([self.log_likelihood(places, widths) for places, widths in candidates])  # (G, D)
        best = scores.argmax(0, keepdim=True)
        places, widths = (torch.stack(part).gather(0, best)[0] for part in zip(*candidates, strict=True))
        return places, widths, scores.gather(0, best)[0]

    def log_likelihood(self, places: Tensor, widths: Tensor) -> Tensor:
        """Of each feature, warped so, up to a constant that does not depend on the warp, (D,) (warp-likelihood)."""
        warp = Warp(places, widths)
        off, _ = warp._scaled(self.cells)
        values = warp.forward(self.cells)
        totals = torch.zeros(self.n_classes, self.cells.shape[1], dtype=values.dtype, device=values.device)
        sums = totals.index_add(0, self.labels, self.weights * values)
        means = sums / totals.index_add(0, self.labels, self.weights).clamp_min(1e-300)
        scatter = (self.weights * (values - means[self.labels]).square()).sum(0)
        slopes = torch.where(warp.bent, -0.5 * off.square().log1p(), 0.0)
        variances = (scatter / self.weight.clamp_min(1e-300)).clamp_min(1e-300)
        return (self.weights * slopes).sum(0) - 0.5 * self.weight * variances.log()
