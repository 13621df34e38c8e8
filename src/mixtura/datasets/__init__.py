"""Data sets: generators of synthetic samples, and loaders of published data sets.

Generators return `(X, y)` in random order and draw all randomness from `random_state`. For a training and a test set
from one distribution, draw once and split.

Loaders read one NumPy archive from a folder, given by `data_home` or the environment variable `MIXTURA_DATA`. They
return a `sklearn.utils.Bunch` of its arrays: `X_train`, `y_train`, `X_test`, `y_test` where a split was published,
`X` and `y` otherwise. With `download=True` they fetch public data that the folder does not hold. They never unpickle.
"""

from mixtura.datasets.generators import (
    make_anisotropic,
    make_checkerboard,
    make_rings,
    make_ripley,
    make_waveform,
    remove_values,
)
from mixtura.datasets.loaders import (
    load_bupa,
    load_cbcl_faces,
    load_cifar10_pca50,
    load_fashion_mnist,
    load_mnist,
    load_peterson_barney,
    load_pima,
    load_ratsch,
    load_ripley,
    load_usps,
)

__all__ = [
    "load_bupa",
    "load_cbcl_faces",
    "load_cifar10_pca50",
    "load_fashion_mnist",
    "load_mnist",
    "load_peterson_barney",
    "load_pima",
    "load_ratsch",
    "load_ripley",
    "load_usps",
    "make_anisotropic",
    "make_checkerboard",
    "make_rings",
    "make_ripley",
    "make_waveform",
    "remove_values",
]
