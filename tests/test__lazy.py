"""What importing the package loads, its errors and its limits."""

from __future__ import annotations

import builtins
import re
import sys
from typing import Any

import msgspec
import pytest
from support import HubThread, python

import sbuslib
from sbuslib import errors
from sbuslib.errors import UsageError
from sbuslib.limits import CONTROL_EXTRA, PACKET_BYTES, ClientLimits, Limits

# -- Names that a package loads when they are first used


def test_importing_the_package_is_lazy() -> None:
    loaded = python("-c", "import sbuslib, sys; print(*sys.modules)").split()
    assert {name for name in loaded if name.startswith("sbuslib")} == {"sbuslib", "sbuslib._lazy"}
    assert not {"gevent", "socket", "msgspec"} & {*loaded}


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


# -- The blocking client: threads, and no gevent


def test_the_blocking_client_never_imports_gevent(server: HubThread, address: str) -> None:
    code = f"""
import sys
from sbuslib import blocking
with blocking.Client({address!r}, reconnect=True) as client:
    subscription = client.subscribe(b"a")
    client.publish(b"a", b"x")
    client.publish_many([(b"b", b"y")])
    client.sync()
    print(subscription.receive(timeout=10).payload)
print([name for name in sys.modules if name.partition(".")[0] in ("gevent", "greenlet", "zope")])
"""
    assert python("-c", code) == "b'x'\n[]\n"


# -- The exception tree


def test_all_is_what_the_module_defines() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert set(errors.__all__) == defined


def test_the_docstring_prints_the_tree() -> None:
    assert errors.__doc__ is not None
    path: list[str] = []
    seen = set()
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ((?:[│ ]   )*(?:[├└]── )?)(\w+Error)(?: \((\w+)\))?", line)
        if not found:
            continue
        depth = len(found[1]) // 4
        path[depth:] = [found[2]]
        kind = getattr(errors, found[2])
        parents = {base.__name__ for base in kind.__bases__}
        expected = {path[depth - 1]} if depth else {"Exception"}
        assert parents == expected | ({found[3]} if found[3] else set()), found[2]
        seen.add(found[2])
    assert seen == set(errors.__all__)


def test_each_says_what_it_means_by_a_name_of_its_own() -> None:
    for name in errors.__all__:
        assert getattr(errors, name).__doc__, name
        assert not hasattr(builtins, name)


# -- The limits of hubs and clients

BOTH = (Limits, ClientLimits)


def test_the_longest_packet_is_as_long_as_the_protocol_says() -> None:
    assert (PACKET_BYTES, CONTROL_EXTRA) == (409_600, 4_096)


def test_a_hub_has_no_more_than_forty_limits() -> None:
    """What only tunes the machine is a constant beside the code that uses it."""
    assert len(Limits.__struct_fields__) <= 40


@pytest.mark.parametrize("struct", BOTH)
def test_limits_are_immutable(struct: type[Any]) -> None:
    limits = struct()
    with pytest.raises(AttributeError):
        limits.batch = 1
    assert msgspec.structs.replace(limits, batch=8).batch == 8
    assert limits == struct()


@pytest.mark.parametrize("struct", BOTH)
@pytest.mark.parametrize("value", [0, -1, None, "64", True, float("nan")])
def test_a_limit_that_is_no_positive_number_is_refused(struct: type[Any], value: object) -> None:
    for name in struct.__struct_fields__:
        with pytest.raises(UsageError, match=name):
            struct(**{name: value})


@pytest.mark.parametrize("struct", BOTH)
def test_a_batch_is_a_whole_number_of_packets_that_one_system_call_takes(struct: type[Any]) -> None:
    """recvmmsg(2) and sendmmsg(2) take at most 1,024 packets: UIO_MAXIOV of Linux."""
    assert struct(batch=1_024).batch == 1_024
    for value in (1_025, 1.5, float("inf")):
        with pytest.raises(UsageError, match="batch"):
            struct(batch=value)
