"""The former place of `mixtura.files.registry`, for one more release."""

import warnings

from mixtura.files.registry import storable

__all__ = ["storable"]
warnings.warn("mixtura.values.storable has moved to mixtura.files.registry.", DeprecationWarning, stacklevel=2)
