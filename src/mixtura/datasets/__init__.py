"""Generators of synthetic samples, and one real table.

All return `(X, y)`. Generators return samples in random order and draw all randomness from `random_state`. For a
training and a test set from one distribution, draw once and split.
"""

from mixtura.datasets.generators import (
    load_penguins,
    make_anisotropic,
    make_checkerboard,
    make_rings,
    make_ripley,
    make_waveform,
    remove_values,
)
from mixtura.files import look_up_moved

__all__ = [
    "load_penguins",
    "make_anisotropic",
    "make_checkerboard",
    "make_rings",
    "make_ripley",
    "make_waveform",
    "remove_values",
]

LOADED = ("bupa", "cbcl_faces", "cifar10_pca50", "fashion_mnist", "mnist", "peterson_barney", "pima", "ripley", "usps")
__getattr__ = look_up_moved(
    __name__,
    {f"load_{name}": f'reproduce.data.load("{name}") of a source checkout' for name in LOADED}
    | {"load_ratsch": 'reproduce.data.load("ratsch_banana") of a source checkout'},
)
