"""The former place of `mixtura.files.registry`, for one more release."""

import warnings
from typing import Any

from mixtura.files import registry


def __getattr__(name: str) -> Any:
    if name != "storable":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("mixtura.values.storable has moved to mixtura.files.registry.", DeprecationWarning, stacklevel=2)
    return registry.storable
