"""Names that a package loads when they are first used."""

from __future__ import annotations

import sys

import pytest
from support import python

import sbuslib


def test_importing_the_package_is_lazy() -> None:
    loaded = python("-c", "import sbuslib, sys; print(*sorted(m for m in sys.modules if m.startswith('sbuslib')))")
    assert loaded.split() == ["sbuslib", "sbuslib.lazy"]
    code = "import sbuslib, sys; print(*sorted({'gevent', 'socket', 'msgspec'} & set(sys.modules)))"
    assert python("-c", code).split() == []


def test_naming_what_needs_no_gevent_loads_none() -> None:
    code = """
import sys, sbuslib
sbuslib.matches, sbuslib.Message, sbuslib.Limits, sbuslib.Credentials, sbuslib.Topic, sbuslib.errors
print("socket" in sys.modules)
sbuslib.blocking, sbuslib.aio
print("gevent" in sys.modules)
sbuslib.Hub, sbuslib.Client
print("gevent" in sys.modules)
"""
    assert python("-c", code).split() == ["False", "False", "True"]


def test_what_the_package_offers_is_there() -> None:
    for name in sbuslib.__all__:
        assert getattr(sbuslib, name) is not None
        assert name in dir(sbuslib)
    assert [name for name in dir(sbuslib) if not name.startswith("__")] == sorted({*sbuslib.__all__} - {"__version__"})
    with pytest.raises(AttributeError, match="nonsense"):
        _ = sbuslib.nonsense
    assert sbuslib.Hub is sys.modules["sbuslib.hub"].Hub
