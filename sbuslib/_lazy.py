"""Names of a package that are loaded when they are first used (:pep:`562`).

So importing a package costs nothing, and a program needs only what the modules that it uses import. Source: the
``__getattr__`` and ``__dir__`` of modules.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # the typing module takes longer to load than all other imports here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

__all__ = ["load_lazily"]


def load_lazily(
    package: str, homes: Mapping[str, str], modules: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of ``package``: ``homes`` has the module of each name.

    ``modules`` are those of its modules that are names themselves.
    """

    def load(name: str) -> Any:
        if name in homes:
            value = getattr(import_module(f"{package}.{homes[name]}"), name)
        elif name in modules:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        own = {name for name in vars(sys.modules[package]) if name.startswith("__")}
        return sorted({*own, *homes, *modules})  # not what the package imports for itself

    return load, names
