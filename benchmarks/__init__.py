"""Time, peak memory and score, with rivals in the same run."""
