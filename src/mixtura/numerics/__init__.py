"""Safe linear algebra and other numerical tools."""
