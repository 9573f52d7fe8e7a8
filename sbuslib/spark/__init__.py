"""Journals in Spark: the data source ``sbus``, frames of sealed files, and the jobs over them.

Names are loaded when they are first used, so importing this package needs no PySpark. Nothing in it loads gevent. Do
not start Spark inside a process that serves a bus: its threads and its Java process would compete with the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import load_lazily

if TYPE_CHECKING:
    from .sessions import session as session

_HOMES = {"session": "sessions"}

__all__ = [*_HOMES]

__getattr__, __dir__ = load_lazily(__name__, _HOMES)
