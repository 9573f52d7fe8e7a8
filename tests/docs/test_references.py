"""What docstrings refer to exists, in the package and with the names that they give."""

from __future__ import annotations

import builtins
import importlib
import inspect
import re
from collections.abc import Iterator

from test_imports import ENTRANCES, modules, path_of

REFERENCE = re.compile(r":(class|meth|func|attr|mod|data|exc):`(~?)([\w.]+)`")
OTHERS = {"asyncio", "select", "socket", "threading", "time", "pyarrow", "gevent", "pyspark"}
"""Packages that docstrings refer to besides ours."""


def references(name: str) -> list[str]:
    text = path_of(name).read_text("utf-8")
    return sorted({target for _, _, target in REFERENCE.findall(text)})


def places(name: str, target: str) -> Iterator[str]:
    """The absolute names that a reference in a module may mean."""
    package = f"sbuslib.{name}" if path_of(name).name == "__init__.py" else f"sbuslib.{name}".rpartition(".")[0]
    if target.startswith("."):
        yield package + target
    elif target.partition(".")[0] == "sbuslib":
        yield target
    else:
        yield f"sbuslib.{name}.{target}"


def exists(whole: str) -> bool:
    """Whether an absolute name leads to a module, or to something in one."""
    parts = whole.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for position, part in enumerate(parts[cut:], cut):
            if hasattr(found, part):
                found = getattr(found, part)
                continue
            is_last = position == len(parts) - 1
            return is_last and inspect.isclass(found) and has_attribute(found, part)
        return True
    return False


def has_attribute(kind: type, name: str) -> bool:
    ours = [base for base in kind.__mro__ if base.__module__.startswith("sbuslib")]
    return any(re.search(rf"(self\.{name}\b|^    {name}:)", inspect.getsource(base), re.MULTILINE) for base in ours)


def in_a_class(name: str, target: str) -> bool:
    """Whether a class of the module has what is named by itself: ``:meth:`start```."""
    module = importlib.import_module(f"sbuslib.{name}")
    kinds = [kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__]
    return any(hasattr(kind, target) or has_attribute(kind, target) for kind in kinds)


def test_references_of_docstrings_lead_somewhere() -> None:
    missing = [
        (name, target)
        for name in modules()
        if name not in ENTRANCES
        for target in references(name)
        if target.partition(".")[0] not in OTHERS
        and not hasattr(builtins, target)
        and not any(exists(place) for place in places(name, target))
        and not ("." not in target and in_a_class(name, target))
    ]
    assert missing == []
