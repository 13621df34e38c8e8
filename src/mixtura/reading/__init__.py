"""Values by which people read a fitted model: summaries, explanations, outliers, class priors, exported graphs."""
