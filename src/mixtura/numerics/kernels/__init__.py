"""Fused Triton kernels for rows on a GPU.

`gpu.kernels_for` imports this package where Triton is installed; every function has a counterpart in plain torch.
"""

from mixtura.numerics.kernels.responsibilities import MOST_COMPONENTS as MOST_COMPONENTS
from mixtura.numerics.kernels.responsibilities import posteriors as posteriors
from mixtura.numerics.kernels.responsibilities import products as products
from mixtura.numerics.kernels.responsibilities import responsibilities as responsibilities
from mixtura.numerics.kernels.split import MOST_SPREAD as MOST_SPREAD
from mixtura.numerics.kernels.split import SplitCoefficients as SplitCoefficients
from mixtura.numerics.kernels.split import Totals as Totals
from mixtura.numerics.kernels.split import pass_by_pairs as pass_by_pairs
from mixtura.numerics.kernels.split import posteriors_by_pairs as posteriors_by_pairs
from mixtura.numerics.kernels.split import scores_by_pairs as scores_by_pairs
from mixtura.numerics.kernels.squares import MOST_SQUARES as MOST_SQUARES
from mixtura.numerics.kernels.squares import pass_by_squares as pass_by_squares
from mixtura.numerics.kernels.squares import posteriors_by_squares as posteriors_by_squares
