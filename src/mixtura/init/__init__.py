"""Where fits start: a description of the rows, k-means, label spreading, splitting."""
