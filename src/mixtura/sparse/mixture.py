"""The sparse mixture: log-linear in a basis, with few weights; it has class probabilities but no density."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mixtura import checks
from mixtura.files.registry import storable
from mixtura.values.features import weigh


@storable("sparse_mixture", check=lambda mixture: mixture.check())
@dataclass(frozen=True)
class SparseMixture:
    """a[n, k] = log weight_k + sum_i values_i phi_i(x_n) over the pairs i of component k (sparse-mixture), HU21 eq. 1.

    A pair is a component and a column of the basis; all other coefficients are zero. Weights sum to one within a class,
    and the constant column contains the class prior. Components are sorted by class, pairs by component.
    """

    log_weights: Tensor  # (K,)
    class_of: Tensor  # (K,), sorted
    components: Tensor  # (P,), sorted
    columns: Tensor  # (P,), of the basis
    values: Tensor  # (P,)
    precisions: Tensor  # (P,), of the prior of each value

    def check(self) -> None:
        """Raise a ValueError unless the parts are consistent; the basis checks the columns."""
        checks.class_numbers(self.class_of, self.n_components)
        checks.numbers("log weights", self.log_weights, (self.n_components,))
        checks.positions("components of the values", self.components, self.n_components)
        checks.numbers("values", self.values, self.components.shape)
        checks.numbers("precisions", self.precisions, self.components.shape)
        if self.columns.shape != self.components.shape:
            raise ValueError("components and columns of the values differ in number")

    @property
    def n_components(self) -> int:
        return len(self.log_weights)

    @property
    def n_pairs(self) -> int:
        return len(self.values)

    @cached_property
    def class_sizes(self) -> list[int]:
        """Number of components of each class."""
        return torch.bincount(self.class_of).tolist()

    @cached_property
    def members(self) -> Tensor:
        """Indicators of the component of each pair, (P, K)."""
        return torch.nn.functional.one_hot(self.components, self.n_components).to(self.values.dtype)

    def coefficients(self, n_columns: int) -> Tensor:
        """Dense view, (K, H)."""
        dense = self.values.new_zeros(self.n_components, n_columns)
        dense[self.components, self.columns] = self.values
        return dense

    def log_joint(self, columns: Tensor) -> Tensor:
        """Log joints from the columns of the basis: (n, H) -> (K, n)."""
        return weigh(columns.T, self.coefficients(columns.shape[1]), self.log_weights)
