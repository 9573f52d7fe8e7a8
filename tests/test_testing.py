"""What tests of users have: a hub in a thread, assertions, and the plugin of pytest."""

from __future__ import annotations

import configparser
import os
import threading
from pathlib import Path
from typing import Any

import gevent
import pytest
from docs.pages import DOCS, blocks
from support import PATIENCE, ROOT, in_thread, python

from sbuslib.errors import AddressInUseError, KeyFormatError, PayloadError, StateError
from sbuslib.testing import HubThread, Recording

# -- A hub in a thread that anybody can stop, and assertions about what was published through it


def failure(recorded: Recording, pattern: bytes, payload: bytes | None = None, count: int | None = None) -> list[str]:
    """The lines of a failed assertion."""
    with pytest.raises(AssertionError) as caught:
        recorded.assert_published(pattern, payload, count=count, timeout=0.01)
    return str(caught.value).splitlines()


def test_a_hub_serves_in_its_thread_until_any_thread_stops_it() -> None:
    with HubThread(separator=b".") as server:
        folder = os.path.dirname(server.address)
        with server.client() as client:
            assert (client.hub.whoami(), client.hub.separator) == (server.call(server.hub.whoami), b".")
        with pytest.raises(ZeroDivisionError):
            server.call(lambda: 1 / 0)
        with pytest.raises(AddressInUseError):
            HubThread(server.address).start()
        assert server.call(server.call, server.hub.whoami) == server.call(server.hub.whoami), "from its own thread, too"
        in_thread(server.stop)
        assert server.hub.closed
        assert not os.path.exists(folder)
        with pytest.raises(StateError, match="is not started, or was stopped"):
            server.call(server.hub.whoami)
        server.stop()


def test_a_call_that_waits_disturbs_no_other_and_ends_with_the_hub() -> None:
    with HubThread() as server:
        inbox = server.call(server.hub.subscribe, b"never")
        results: list[object] = []
        waiting = threading.Thread(target=lambda: results.append(in_thread(lambda: server.call(gevent.sleep, 3_600))))
        waiting.start()
        server.call(server.hub.publish, b"k", b"")
        assert server.call(lambda: len(inbox)) == 0
        while not server._answers:
            gevent.sleep(0.001)
    waiting.join(PATIENCE)
    assert [str(result) for result in results] == ["the hub was stopped meanwhile"]


def test_a_program_that_gevent_has_patched_has_a_real_thread() -> None:
    code = """
from gevent import monkey; monkey.patch_all()
from sbuslib.testing import HubThread
with HubThread() as server:
    recorded = server.record()
    with server.client() as client:
        client.publish(b"room/1", b"x")
    print(recorded.assert_published(b"room/1")[0].payload)
"""
    assert python("-c", code) == "b'x'\n"


def test_assertions_wait_for_what_is_published() -> None:
    with HubThread() as server, server.client() as client:
        recorded = server.record("room/")
        threading.Timer(0.05, client.publish_many, [[(b"hall", b""), (b"room/1", b"a"), (b"room/2", b"b")]]).start()
        (found,) = recorded.assert_published("room/*", b"b", timeout=PATIENCE)
        assert (found.key, found.sender) == (b"room/2", client.credentials)
        assert [message.payload for message in recorded.assert_published(b"room/", count=2)] == [b"a", b"b"]
        recorded.assert_not_published("hall")
        operations: list[Any] = [recorded.assert_published, recorded.assert_not_published]
        for verb in operations:
            with pytest.raises(PayloadError, match="payload is bytes, not str"):
                verb("room/1", "a")
            with pytest.raises(KeyFormatError, match="pattern is bytes or str, not int"):
                verb(5)
        recorded.clear()
        assert recorded.messages == []
        client.publish(b"room/3", b"c")
        assert [message.key for message in recorded.messages] == [b"room/3"]
    assert [message.key for message in recorded.messages] == [b"room/3"], "also once the hub was stopped"
    recorded.assert_published(b"room/3", b"c")


def test_nothing_that_was_published_before_is_missed_by_an_assertion() -> None:
    with HubThread() as server, server.client() as one, server.client() as other:
        recorded = server.record()
        for number in range(2_000):
            one.publish(b"a", b"%d" % number)
            other.publish(b"b", b"%d" % number)
        assert len(recorded.messages) == 4_000
        with pytest.raises(AssertionError, match="2000 messages under 'b' were published, not 0"):
            recorded.assert_not_published(b"b")


def test_failures_show_what_was_published_instead() -> None:
    with HubThread() as server, server.client() as client:
        recorded = server.record()
        assert failure(recorded, b"room/1", b"21") == [
            "0 messages under 'room/1' with payload '21' were published, not one or more, within 0.01 s; "
            "nothing was published at all"
        ]
        client.publish(b"room/1", b"20")
        client.publish(b"\x1b", b"x" * 100)
        assert failure(recorded, b"room/1", b"21") == [
            "0 messages under 'room/1' with payload '21' were published, not one or more, within 0.01 s; "
            "published were:",
            "  'room/1'  '20'",
            f"  '\\x1b'  '{'x' * 80}...' (100 bytes)",
        ]
        client.publish_many([(b"room/1", b"%d" % number) for number in range(30)])
        lines = failure(recorded, b"room/1", count=3)
        assert lines[0] == "31 messages under 'room/1' were published, not 3; of 32 messages the last 20 are:"
        assert lines[-1] == "  'room/1'  '29'"
        assert len(lines) == 21


def test_messages_that_were_too_many_to_be_recorded_are_told() -> None:
    with HubThread() as server:
        recorded = server.record()
        most = server.hub.limits.queued_packets
        server.call(server.hub.publish_many, [(b"k", b"")] * (most + 7))
        assert "; 7 messages were too many at once to be recorded" in failure(recorded, b"other")[0]


# -- The fixtures for users' tests, in a pytest of its own, and what loading them costs every other run of pytest

EXAMPLE = """
import os
from sbuslib.blocking import Client

def test_one(sbus_hub, sbus_published):
    assert os.environ["SBUS_ADDRESS"] == sbus_hub.address
    with Client() as client:
        client.publish(b"room/1", b"21")
    sbus_published.assert_published(b"room/1", b"21")
    sbus_published.assert_not_published(b"alarm/")

def test_other(sbus_published):
    assert sbus_published.messages == []
    assert "SBUS_ADDRESS" in os.environ

def test_none():
    assert "SBUS_ADDRESS" not in os.environ
"""

WITH_PLUGIN = {
    "PYTEST_ADDOPTS": "-p no:cacheprovider",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}


def test_each_test_has_a_hub_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(EXAMPLE)
    for block in blocks(DOCS / "how-to" / "testing.md"):
        if block.what == "file":
            (tmp_path / block.name).write_text(block.text)
    assert "4 passed" in python("-m", "pytest", "-q", str(tmp_path), **WITH_PLUGIN)


def test_loading_the_plugin_loads_nothing_else() -> None:
    code = "import pytest, sys; old = {*sys.modules}; import sbuslib.pytest_plugin; print(*{*sys.modules} - old)"
    assert {*python("-c", code).split()} == {"sbuslib", "sbuslib._lazy", "sbuslib.pytest_plugin"}


def test_pytest_loads_the_plugin_only_where_it_is_named() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert "pytest11" not in setup["options.entry_points"], "with it, pytest would rewrite all modules of the package"
