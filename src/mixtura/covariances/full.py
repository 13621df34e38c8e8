"""Full covariance matrices, one per component."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mixtura import checks
from mixtura.numerics import linalg
from mixtura.roles import Conditioned, Quadratic
from mixtura.values.features import QUADRATICS, Coefficients
from mixtura.values.moments import DenseForm, Form, Moments, image
from mixtura.values.pseudo_moments import PseudoMoments
from mixtura.values.storable import storable

DENSE = DenseForm()
# The precision side of conditioning loses about eps * (variance inflation); beyond this the observed side is used.
LARGEST_INFLATION = 1e6


@storable("full")
@dataclass(frozen=True)
class Full:
    """Any positive definite matrix for each component."""

    name = "full"

    def start(self, variances: Tensor, deviations: Tensor, assignments: Tensor, class_of: Tensor) -> FullCovariance:
        return FullCovariance(torch.diag_embed(variances))

    def from_tensors(self, tensors: dict[str, Tensor]) -> FullCovariance:
        return FullCovariance(tensors["matrices"])


@storable("full_covariance", check=lambda covariance: covariance.check())
@dataclass(frozen=True)
class FullCovariance:
    """K matrices, (K, D, D)."""

    matrices: Tensor
    repairs: Tensor | None = None
    # What is computed once; not functools.cached_property, whose lock in Python 3.11 torch.compile cannot enter.
    _known: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def safe(cls, matrices: Tensor) -> FullCovariance:
        """With those that are not positive definite replaced by their repaired selves."""
        raw = cls(matrices)
        repaired = raw._factorised[1]
        if not bool(repaired.any()):
            return raw
        return cls(torch.where(repaired[:, None, None], raw.factors @ raw.factors.mT, matrices), repaired)

    @property
    def n_components(self) -> int:
        return self.matrices.shape[0]

    @property
    def n_features(self) -> int:
        return self.matrices.shape[-1]

    @property
    def form(self) -> Form:
        return DENSE

    @property
    def n_parameters(self) -> int:
        return self.n_components * self.n_features * (self.n_features + 1) // 2

    @property
    def _factorised(self) -> tuple[Tensor, Tensor]:
        if "factors" not in self._known:
            self._known["factors"] = linalg.safe_cholesky(self.matrices)
        return self._known["factors"]

    @property
    def factors(self) -> Tensor:
        """Lower Cholesky factors, (K, D, D)."""
        return self._factorised[0]

    @property
    def repaired(self) -> Tensor:
        return self._factorised[1] if self.repairs is None else self.repairs

    @property
    def precisions(self) -> Tensor:
        if "precisions" not in self._known:
            self._known["precisions"] = linalg.precisions(self._factorised[0])
        return self._known["precisions"]

    @property
    def log_determinants(self) -> Tensor:
        if "log_determinants" not in self._known:
            self._known["log_determinants"] = linalg.log_determinants(self._factorised[0])
        return self._known["log_determinants"]

    @property
    def distinct_log_determinants(self) -> Tensor:
        return self.log_determinants

    def penalty(self, scatter: Tensor) -> Tensor:
        (matrices,) = image(DENSE, scatter, self.n_components)
        return (self.precisions * matrices).sum((-2, -1))

    def dense(self) -> Tensor:
        return self.matrices

    def variances(self) -> Tensor:
        return self.matrices.diagonal(dim1=-2, dim2=-1)

    def select(self, components: slice | Tensor) -> FullCovariance:
        chosen = FullCovariance(self.matrices[components], None if self.repairs is None else self.repairs[components])
        if "factors" in self._known:  # a factorisation already made is not made again
            factors, repaired = self._factorised
            chosen._known["factors"] = factors[components], repaired[components]
        return chosen

    def tensors(self) -> dict[str, Tensor]:
        return {"matrices": self.matrices}

    def check(self) -> None:
        """Raise a ValueError unless all matrices are positive definite up to rounding."""
        variances = self.matrices.diagonal(dim1=-2, dim2=-1)  # fails where there are not two dimensions
        checks.positive_numbers("a variance", variances)
        scales = variances.rsqrt()
        correlations = self.matrices * scales.unsqueeze(-1) * scales.unsqueeze(-2)
        checks.definite("a covariance", correlations)
        if self.repairs is not None and (self.repairs.dtype != torch.bool or self.repairs.shape != variances.shape[:1]):
            raise ValueError("the marks of repaired covariances do not fit")

    def scaled(self, scales: Tensor) -> FullCovariance:
        return FullCovariance(self.matrices * (scales.unsqueeze(-1) * scales))

    def unconstrained(self) -> dict[str, Tensor]:
        # The lower factors U of the precisions, Lambda = U U': densities then need no factorisation at all.
        factors, _ = linalg.safe_cholesky(self.precisions)
        diagonals = linalg.inverse_softplus(factors.diagonal(dim1=-2, dim2=-1))
        return {"precision_diagonals": diagonals, "precision_factors": factors.tril(-1)}

    def constrained(self, free: dict[str, Tensor]) -> FullCovariance:
        return FullCovariance.safe(linalg.precisions(self._precision_factors(free)))

    def quadratic(self, free: dict[str, Tensor]) -> Quadratic:
        factors = self._precision_factors(free)
        return Quadratic(linalg.log_determinants(factors), None, factors)

    def _precision_factors(self, free: dict[str, Tensor]) -> Tensor:
        diagonals = torch.nn.functional.softplus(free["precision_diagonals"])
        return free["precision_factors"].tril(-1) + torch.diag_embed(diagonals)

    def coefficients(self, means: Tensor, constants: Tensor) -> Coefficients:
        precisions = self.precisions
        linear = torch.bmm(precisions, means.unsqueeze(-1)).squeeze(-1)  # (K, D)
        squared = (linear * means).sum(-1) + self.log_determinants + self.n_features * math.log(2 * math.pi)
        weights = torch.cat((linear, QUADRATICS.pack(precisions)), 1)
        return Coefficients(QUADRATICS, torch.sub(constants, squared, alpha=0.5), weights)

    def squared_distances(self, deviations: Tensor) -> Tensor:
        return linalg.solve_lower(self.factors.to(deviations.dtype), deviations.mT).square().sum(1)

    def second_moments(self, deviations: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        return ((deviations * weights.unsqueeze(-1)).mT @ deviations,)

    def own_moments(self) -> tuple[Tensor, ...]:
        return (self.matrices,)

    def updated(self, scatter: Moments, pseudo: PseudoMoments, floor: Tensor) -> FullCovariance:
        divisors = (scatter.counts + pseudo.covariance_count)[:, None, None]
        matrices = scatter.seconds[0] + scatter.seconds[0].mT  # twice, without the asymmetry of rounding
        if pseudo.has_scatter:
            matrices.add_(image(DENSE, pseudo.scatter, self.n_components)[0], alpha=2)
        matrices = torch.where(divisors > 0, matrices / (2 * divisors).clamp_min(1e-300), self.matrices)
        diagonals = matrices.diagonal(dim1=-2, dim2=-1)
        torch.maximum(diagonals + pseudo.ridge, floor, out=diagonals)
        return FullCovariance.safe(matrices)

    def definite(self, scatter: Moments, pseudo: PseudoMoments) -> Tensor:
        (prior,) = image(DENSE, pseudo.scatter, self.n_components)
        failures = torch.linalg.cholesky_ex(scatter.seconds[0] + prior)[1]  # of the lower triangles
        return (scatter.counts + pseudo.covariance_count > 0) & (failures == 0)

    def sample(self, components: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(
            len(components), self.n_features, 1, generator=generator, dtype=self.matrices.dtype, device=generator.device
        ).to(self.matrices.device)
        draws = torch.empty_like(noise[..., 0])
        for k in components.unique().tolist():
            chosen = components == k
            draws[chosen] = noise[chosen, :, 0] @ self.factors[k].T
        return draws

    # Missing cells. With m the missing and o the observed cells of a row, either side of the matrix will do:
    # precision side: Cov[x_m | x_o] = (Lambda_mm)^-1 =: C,  E[x_m | x_o] - mu_m = -C Lambda_mo d_o,
    # observed side:  P := (Sigma_oo)^-1,  E[x | x_o] - mu = Sigma_.o P d_o,  Cov[x | x_o] = Sigma - Sigma_.o P Sigma_o.
    # so a row costs the cube of the smaller of the two, and rows with equal patterns share it (conditional-covariance).

    @property
    def _well_conditioned(self) -> bool:
        inflation = self.precisions.diagonal(dim1=-2, dim2=-1) * self.matrices.diagonal(dim1=-2, dim2=-1)
        return bool((inflation < LARGEST_INFLATION).all())

    def condition(self, deviations: Tensor, observed: Tensor) -> Conditioned:
        n_components, n_rows, _ = deviations.shape
        distances = deviations.new_empty(n_components, n_rows)
        log_determinants = deviations.new_empty(n_components, n_rows)
        filled = deviations.clone()
        blocks = []
        for n_missing, rows in _rows_by_count((~observed).sum(1)):
            small_side = self._well_conditioned and 2 * n_missing <= self.n_features
            patterns, pattern_of = _patterns(observed[rows])
            chosen = ~patterns if small_side else patterns
            cells = chosen.nonzero()[:, 1].reshape(len(patterns), -1).T  # (m, u): u patterns
            matrices = (self.precisions if small_side else self.matrices).to(deviations.dtype)
            inverse, log_determinant = linalg.invert_many(self._blocks(matrices, cells))  # (m, m, u, K), (u, K)
            side = self._on_precision_side if small_side else self._on_observed_side
            answer = side(deviations[:, rows], cells[:, pattern_of], _Shared(inverse, pattern_of))
            distances[:, rows], filled[:, rows] = answer
            log_determinants[:, rows] = log_determinant.T[:, pattern_of]
            if small_side:
                log_determinants[:, rows] += self.log_determinants.to(deviations.dtype).unsqueeze(-1)
            blocks.append((small_side, rows, cells, _Shared(inverse, pattern_of)))
        return Conditioned(distances, log_determinants, filled, blocks)

    def _blocks(self, matrices: Tensor, cells: Tensor) -> Tensor:
        """Entries (i, j, u, k) of each matrix at pairs of the cells (m, u) of each pattern."""
        flat = cells.unsqueeze(1) * self.n_features + cells.unsqueeze(0)  # (m, m, u)
        by_entry = matrices.reshape(self.n_components, -1).T.contiguous()
        return by_entry[flat.reshape(-1)].reshape(*flat.shape, self.n_components)

    def _on_precision_side(self, deviations: Tensor, cells: Tensor, inverse: _Shared) -> tuple[Tensor, Tensor]:
        pulled = deviations @ self.precisions.to(deviations.dtype)  # Lambda d, (K, n, D)
        at_cells = _take(pulled, cells)  # (m, n, K)
        fill = inverse.times(at_cells)  # C Lambda_mo d_o, (m, n, K)
        distances = (deviations * pulled).sum(-1) - (fill * at_cells).sum(0).T
        return distances, _put(deviations, cells, -fill)

    def _on_observed_side(self, deviations: Tensor, cells: Tensor, inverse: _Shared) -> tuple[Tensor, Tensor]:
        at_cells = _take(deviations, cells)  # d_o, (o, n, K)
        pulled = inverse.times(at_cells)  # P d_o
        distances = (pulled * at_cells).sum(0).T
        matrices = self.matrices.to(deviations.dtype)
        filled = _put(torch.zeros_like(deviations), cells, pulled) @ matrices  # Sigma_.o P d_o
        return distances, _put(filled, cells, at_cells)

    def conditional_moments(self, conditioned: Conditioned, weights: Tensor) -> tuple[Tensor, ...]:
        size = self.n_features
        total = weights.new_zeros(self.n_components, size, size)
        for small_side, rows, cells, inverse in conditioned.state:
            flat = (cells.unsqueeze(1) * size + cells.unsqueeze(0)).reshape(-1)
            weighted = (inverse.matrices * inverse.summed(weights[:, rows].T)).reshape(-1, self.n_components)
            scattered = weights.new_zeros(size * size, self.n_components).index_add_(0, flat, weighted)
            block = scattered.T.reshape(-1, size, size)
            if small_side:
                total += block
            else:
                matrices = self.matrices.to(weights.dtype)
                total += weights[:, rows].sum(1)[:, None, None] * matrices - matrices @ block @ matrices
        return (total,)


# Rows per pattern from which a matrix product per pattern beats copying the pattern's matrix to every row.
ROWS_PER_PATTERN = 8


@dataclass(frozen=True)
class _Shared:
    """Matrices (m, m, u, K) of u patterns, and the pattern of every row, (n,); rows of a pattern are adjacent."""

    matrices: Tensor
    pattern_of: Tensor

    def times(self, vectors: Tensor) -> Tensor:
        """The matrix of each row's pattern times its vector: (m, n, K) -> (m, n, K)."""
        n_patterns, n_rows = self.matrices.shape[2], len(self.pattern_of)
        if n_patterns == n_rows:
            return (self.matrices * vectors).sum(1)
        if n_rows < ROWS_PER_PATTERN * n_patterns:
            return (self.matrices[:, :, self.pattern_of] * vectors).sum(1)
        sizes = self.pattern_of.bincount(minlength=n_patterns).tolist()
        parts = vectors.permute(2, 0, 1).split(sizes, 2)  # each (K, m, n_u)
        matrices = self.matrices.permute(2, 3, 0, 1)  # (u, K, m, m)
        return torch.cat([m @ part for m, part in zip(matrices, parts, strict=True)], 2).permute(1, 2, 0)

    def summed(self, values: Tensor) -> Tensor:
        """Values (n, K) of rows, summed over the rows of each pattern: (u, K)."""
        if self.matrices.shape[2] == len(self.pattern_of):
            return values
        return values.new_zeros(self.matrices.shape[2], values.shape[1]).index_add_(0, self.pattern_of, values)


def _patterns(observed: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows of a mask (u, D) as far as equal ones are adjacent, and the number of each row's, (n,)."""
    changed = (observed[1:] != observed[:-1]).any(1)
    pattern_of = torch.cat((changed.new_zeros(1, dtype=torch.int64), changed.cumsum(0)))
    first = torch.cat((changed.new_ones(1), changed))
    return observed[first], pattern_of


def _rows_by_count(counts: Tensor) -> list[tuple[int, Tensor]]:
    order = counts.argsort(stable=True)
    values, sizes = counts[order].unique_consecutive(return_counts=True)
    return list(zip(values.tolist(), order.split(sizes.tolist()), strict=True))


def _take(values: Tensor, cells: Tensor) -> Tensor:
    """values (K, n, D) at cells (m, n) of each row: (m, n, K)."""
    index = cells.T.expand(values.shape[0], -1, -1)
    return values.gather(2, index).permute(2, 1, 0)


def _put(values: Tensor, cells: Tensor, entries: Tensor) -> Tensor:
    """A copy of values (K, n, D) with entries (m, n, K) put at cells (m, n) of each row."""
    index = cells.T.expand(values.shape[0], -1, -1)
    return values.scatter(2, index, entries.permute(2, 1, 0))
