"""Data larger than memory: batches, rows of several processes, predictions batch by batch.

`mixtura.streams.files.FileBatches` reads Parquet, Arrow and CSV files (the extra `arrow`).
"""

from __future__ import annotations

from mixtura.streams.batches import Batch, BatchedPredictions, Sharded

__all__ = ["Batch", "BatchedPredictions", "Sharded"]
