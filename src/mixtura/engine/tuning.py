"""Constants of the engine, with their measurements."""

from __future__ import annotations

import torch

# Bytes of temporary arrays of all threads of a pass together.
DEFAULT_MEMORY_LIMIT = 256 * 2**20

# Bytes of temporary arrays of a chunk, and of its shared features: they fit a second-level cache of 1 to 2 MB per core,
# and calls stay few. At 16 features and 32 components 4 MB of features take 1.2 times as long as 2, or as 1.
CACHE_BYTES = 8 * 2**20
FEATURE_BYTES = 2 * 2**20
# Smallest chunk, in rows: below, the overhead of calls dominates. Chunks of wide rows may exceed the cache.
FEWEST_ROWS = 400
# Rows of a memory map per block: large enough to amortise Python, small enough for constant memory.
STREAMED_BYTES = 16 * 2**20
# Prefetched blocks. Two compensate for variation of reading and computing times; more only cost memory.
PREFETCHED = 2

# With more shared features than this (126 features, full covariances) the exact path is faster.
MOST_FEATURES = 2**13
# The largest admitted error of a log joint; beyond it a component takes the exact path (product-error).
# float32 is for GPUs that are slow in float64: the moments of 16 components of 32 features, a few standard deviations
# apart, are then right to 1e-5 (diag 3e-5), in 1/12 of the time of the exact path.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 5e-3}
# For float32 rows that a GPU computes with in float64: rounding a row changes its log joints more than this.
ROUNDED_TOLERANCE = 1e-5
# Standard deviations from its mean up to which rows of a component are expected: rows farther from every component
# take the exact path. At 30 correlated components of 100 features stay far within the tolerance.
EXPECTED_DEVIATIONS = 30.0

# Multiplications of a pass below which threads do not pay, and of a single operation below which torch's own threads
# do not. Starting two threads takes 0.1 ms; 1e7 multiplications take 1 to 2 ms.
SMALL_PASS = 2e7
SMALL_OPERATION = 2e9

# Compute capabilities of GPUs whose float64 products run at half the speed of float32 or better. There everything is
# computed in float64; elsewhere in the precision of the rows.
FAST_DOUBLE = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}

# Parameters of a mixture up to which they are computed on the host while the rows are on a GPU: an operation takes 25
# to 30 us there however small it is, and 2 to 10 us on the host. 32 components of 16 features have 5,000 parameters.
FEW_PARAMETERS = 2**14
FEW_KEPT_PARAMETERS = 2**16  # of a fitted mixture, whose factorisations are kept from prediction to prediction

# Values of X up to which a fit on a GPU is computed on the host as a whole, for the same reason.
FEW_VALUES = 2**17

# On a GPU: chunks are multiples of this many rows, and features of this many, so that 16 bytes can be loaded at a time:
# products of 32 features of 52,632 rows take 93 us, those of 40,064 rows, a multiple of 128, 49 us.
ROW_MULTIPLE = 128
FEATURE_MULTIPLE = 8
# From this number of components on, the scores of a row lie side by side in a GPU's memory: for 1024 components and
# 25,000 rows posteriors then take 0.22 ms instead of 0.58; up to 64 they take less time the other way.
SIDE_BY_SIDE = 128
# Kernels of single precision (split-product): standard deviations from its mean within which they score rows
# of a component, and log of the smallest weight of a component. Responsibilities are right to 1e-12, so that those of a
# component of less weight have fewer than 6 digits.
NEAR_DEVIATIONS = 8.0
LEAST_LOG_WEIGHT = -14.0
# The smallest variance of one row, in units of the squared radius of the data, that they compute with two digits: the
# rounding error of a square is 2^-22. Those of n rows are independent.
LEAST_VARIANCE = 100 * 2.0**-22
# Rows x features x components below which a pass by them does not pay: for 200,000 x 5 x 16 it takes 1.4 ms, and 0.9 by
# products in float64, all of it launches; for 1,000,000 x 152 x 32 it takes 2.4 ms, and 7.5.
FEW_PRODUCTS = 2**28
# Passes below that over the same rows after which they are recorded as a graph: for 200,000 x 5 x 16 an iteration of a
# fit on an H200 takes 0.57 ms thereafter instead of 1.12, and the one with the recording 2.25.
RECORDED_AFTER = 8
# Sums of the first replay with new coefficients may differ from those of an ordinary pass by this part of the largest:
# beyond rounding errors the recording is dropped.
REPLAYED_TOLERANCE = 1e-9
