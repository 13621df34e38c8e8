"""How defaults were settled: see README.md."""
