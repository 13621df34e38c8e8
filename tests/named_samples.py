"""Samples as people have them: a frame with names, labels of text, missing values, two classes or ten."""

import numpy as np
import pandas as pd

NAMES = ["height", "weight", "age", "size"]


def named_samples(n_classes: int, n_per_class: int = 40, missing: float = 0.1, seed: int = 0):
    """A frame and a series of text labels; classes differ in all features, with correlated noise."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(scale=2.0, size=(n_classes, len(NAMES)))
    mixing = np.random.default_rng(8).normal(size=(len(NAMES), len(NAMES))) / 2 + np.eye(len(NAMES))
    numbers = np.repeat(np.arange(n_classes), n_per_class)
    values = centres[numbers] + rng.normal(size=(len(numbers), len(NAMES))) @ mixing
    values[rng.random(values.shape) < missing] = np.nan
    order = rng.permutation(len(numbers))
    index = [f"person {i}" for i in range(len(numbers))]
    frame = pd.DataFrame(values[order], columns=NAMES, index=index)
    return frame, pd.Series([f"kind {c}" for c in numbers[order]], index=index)
