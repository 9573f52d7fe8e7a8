"""Journals in Spark: the data source ``sbus``, the lake, and the jobs over it.

Names are loaded when they are first used: neither PySpark nor gevent is needed to import this package, and nothing in
it ever loads gevent. Never start Spark inside a process that serves a bus: its threads and its Java process would
compete with the event loop.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .envelope import unseal as unseal
    from .lake import compact as compact
    from .lake import ingest as ingest
    from .lake import read as read
    from .limits import SparkLimits as SparkLimits
    from .sessions import session as session

_HOMES = {
    "SparkLimits": "limits",
    "compact": "lake",
    "ingest": "lake",
    "read": "lake",
    "session": "sessions",
    "unseal": "envelope",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
