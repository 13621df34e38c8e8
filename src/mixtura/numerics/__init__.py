"""Linear algebra that does not fail, and other numerical tools."""
