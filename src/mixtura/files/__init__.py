"""Model files and checkpoints, which hold numbers and text; never code. Names that have left say where they are."""

from collections.abc import Callable, Mapping


def look_up_moved(module: str, places: Mapping[str, str]) -> Callable[[str], Callable[..., None]]:
    """Return the `__getattr__` of a module for names that have left it; `places` say what to use instead."""

    def look_up(name: str) -> Callable[..., None]:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")

        def moved(*arguments: object, **options: object) -> None:
            raise ImportError(f"`{module}.{name}` has left the package; got a call of it. Use {places[name]}.")

        return moved

    return look_up
