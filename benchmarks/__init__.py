"""Benchmarks of time, peak memory and scores, with other libraries in the same run."""
