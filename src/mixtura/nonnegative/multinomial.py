"""Mixtures of multinomials in the family of log-linear mixtures: naive Bayes, and EM (multinomial-start)."""

from __future__ import annotations

import torch
from torch import Tensor

from mixtura.nonnegative.mixture import ClassChunk, LabeledRows, LogLinearMixture
from mixtura.values.features import gather, weigh
from mixtura.values.sparse_rows import is_dense, row_slice, turned

ROWS_PER_COMPONENT = 5  # at least; a class with fewer rows gets fewer components
MAX_ITER, TOL = 20, 1e-4  # of EM; the tolerance is relative


def fit_multinomials(
    rows: LabeledRows,
    n_components: int,
    n_classes: int,
    pseudo_count: float,
    generator: torch.Generator,
    unlabeled: LabeledRows | None = None,
) -> LogLinearMixture:
    """Fit a mixture of multinomials to each class by EM, with `pseudo_count` added to every word of every component.

    With one component per class and no unlabeled rows this is naive Bayes. Coefficients are log shares of words
    relative to those of all components: a constant of a row changes no probability.

    Parameters
    ----------
    n_components : int
        Of each class; fewer in classes with few rows.
    unlabeled : LabeledRows, optional
        Rows that may belong to any class.
    """
    seen = rows.means > 0 if unlabeled is None else (rows.means > 0) | (unlabeled.means > 0)
    sizes = _class_sizes(rows, n_components, n_classes)
    class_of = torch.arange(n_classes).repeat_interleave(sizes.cpu()).to(rows.means.device)
    words, weights, _ = _first_counts(rows, class_of, generator)
    log_weights, log_shares = _m_step(words, weights, class_of, seen, pseudo_count, n_classes)
    previous = -float("inf")
    for _ in range(0 if len(class_of) == n_classes and unlabeled is None else MAX_ITER):
        words, weights, value = _e_step(log_weights, log_shares, class_of, rows, unlabeled)
        if value - previous < TOL * abs(value):
            break
        previous = value
        log_weights, log_shares = _m_step(words, weights, class_of, seen, pseudo_count, n_classes)
    average = torch.where(seen, (log_shares + log_weights.unsqueeze(1)).logsumexp(0), 0.0)
    return LogLinearMixture(
        log_weights, log_shares - average, class_of, torch.arange(len(class_of), device=class_of.device), n_classes
    )


def _class_sizes(rows: LabeledRows, n_components: int, n_classes: int) -> Tensor:
    n_rows = torch.zeros(n_classes, dtype=torch.int64, device=rows.means.device)
    for chunk in rows.chunks:
        n_rows += torch.bincount(chunk.labels, minlength=n_classes)
    return (n_rows // ROWS_PER_COMPONENT).clamp(1, n_components)


def _first_counts(rows: LabeledRows, class_of: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, float]:
    """Words of each class, plus as many of one of its rows for each of its components; then one `_e_step`."""
    n_classes = int(class_of.max()) + 1
    by_class = torch.zeros(n_classes, rows.n_features, dtype=torch.float64, device=class_of.device)
    weights = torch.zeros(n_classes, dtype=torch.float64, device=class_of.device)
    seeds: Tensor | None = None
    for chunk in rows.chunks:
        own = torch.nn.functional.one_hot(chunk.labels, n_classes).T * chunk.weights  # (C, n)
        by_class += gather(chunk.features, own)
        weights += own.sum(1)
        if seeds is None and len(class_of) > n_classes:
            seeds = _seeds(chunk, class_of, generator)
    if seeds is None:
        return by_class, weights, -float("inf")
    shares = by_class / by_class.sum(1, keepdim=True).clamp_min(1e-300)
    mixed = shares[class_of] + seeds / seeds.sum(1, keepdim=True).clamp_min(1e-300)  # (J, D)
    logs = (mixed + (1e-3 / rows.n_features)).log()
    return _e_step(torch.zeros_like(logs[:, 0]), logs, class_of, rows, None)


def _seeds(chunk: ClassChunk, class_of: Tensor, generator: torch.Generator) -> Tensor:
    """A different row of its class for each component, (J, D)."""
    seeds = torch.zeros(len(class_of), chunk.rows.shape[1], dtype=torch.float64, device=class_of.device)
    for c in range(int(class_of.max()) + 1):
        own, components = (chunk.labels == c).nonzero()[:, 0], (class_of == c).nonzero()[:, 0]
        order = torch.randperm(len(own), generator=generator)[: len(components)]
        for component, place in zip(components.tolist(), own[order.to(own.device)].tolist(), strict=False):
            row = row_slice(chunk.rows, slice(place, place + 1))
            seeds[component] = row[0] if is_dense(row) else row.to_dense()[0]
    return seeds


def _m_step(
    words: Tensor, weights: Tensor, class_of: Tensor, seen: Tensor, pseudo_count: float, n_classes: int
) -> tuple[Tensor, Tensor]:
    """The M-step: log weights (J,), and log shares of words (J, D), zero for words without a row."""
    words = torch.where(seen, words + pseudo_count, 0.0)
    shares = (words / words.sum(1, keepdim=True).clamp_min(1e-300)).clamp_min(1e-300)
    by_class = torch.zeros(n_classes, dtype=torch.float64, device=class_of.device)
    sizes = torch.bincount(class_of, minlength=n_classes)
    totals = by_class.index_add(0, class_of, weights)
    # A row is added to every component of a class that has several: none dies out.
    several = (sizes[class_of] > 1).to(weights)
    parts = (weights + several) / (totals + torch.where(sizes > 1, sizes, 0)).clamp_min(1e-300)[class_of]
    log_weights = (parts * (totals / totals.sum())[class_of]).clamp_min(1e-300).log()
    return log_weights, torch.where(seen, shares.log(), 0.0)


def _e_step(
    log_weights: Tensor, logs: Tensor, class_of: Tensor, rows: LabeledRows, unlabeled: LabeledRows | None
) -> tuple[Tensor, Tensor, float]:
    """The sums of the rows of each component (J, D), their weight (J,), and the log-likelihood.

    Labeled rows belong to components of their class, unlabeled ones to any.
    """
    words, weights, value = torch.zeros_like(logs), torch.zeros_like(log_weights), 0.0
    for part, labeled in ((rows, True), (unlabeled, False)):
        for chunk in () if part is None else part.chunks:
            scores = weigh(turned(chunk.rows), logs, log_weights)
            if labeled:
                scores = scores.masked_fill(class_of.unsqueeze(1) != chunk.labels, -torch.inf)
            value += float(chunk.weights @ scores.logsumexp(0))
            shares = scores.softmax(0) * chunk.weights
            words += gather(chunk.features, shares)
            weights += shares.sum(1)
    return words, weights, value
