"""The pass over rows: sources, chunks, threads, buffers, and the constants that tune them."""
