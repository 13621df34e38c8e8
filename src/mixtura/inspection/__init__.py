"""Interpretation of fitted models: summaries, explanations, outliers, class priors, exported graphs."""
