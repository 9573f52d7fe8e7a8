"""The clients of a hub: how they come and go, what is logged of them, and errors in callbacks of the event loop."""

from __future__ import annotations

import logging
import os

import gevent
import pytest
from accounting import called_by_logging, numbers
from flooding import flood, slow
from support import PATIENCE, Bus, Connect, HubThread, MakeHub, eventually

from sbuslib import Hub, blocking
from sbuslib.core.client_role import ClientRole
from sbuslib.core.violations import Violations
from sbuslib.errors import DisconnectedError
from sbuslib.wire.control import Kicked


def test_a_violation_is_logged_once_and_counted_after(
    hub: Hub, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        peer = connect()
        peer.send(b"nonsense")
        assert peer.is_disconnected()
    assert hub.statistics().violations == {"unknown verb": 5}
    told = [record for record in caplog.records if record.name == "sbuslib"]
    assert len(told) == 1
    assert told[0].levelno == logging.WARNING
    text = told[0].getMessage()
    assert str(os.getpid()) in text
    assert "unknown verb" in text


def test_good_behaviour_is_not_logged(hub: Hub, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    peer = connect()
    peer.subscribe(b"a")
    peer.publish(b"a", b"x")
    peer.barrier()
    peer.close()
    eventually(lambda: hub.statistics().clients == 0)
    assert caplog.records == []


def test_secrets_are_not_logged(hub: Hub, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for packet in (b"MSG !/cred/x/y/hunter2\0hunter2", b"SUB !/cred/9/9/9/hunter2", b"hunter2", b"MSG !/hunter2\0"):
        peer = connect()
        peer.send(packet)
        assert peer.is_disconnected()
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(("modes", "reason"), [
    ((b"blocking/soft/error",), b"does not keep up, and asked for error"),
    ((b"blocking/soft/block",), b"held publishers back for too long"),
])  # fmt: skip
def test_a_client_that_does_not_keep_up_is_told_why(
    bus: Bus, connect: Connect, modes: tuple[bytes, ...], reason: bytes
) -> None:
    """Although what was sent to it has filled the kernel's buffer."""
    hub = bus(block_timeout=0.01)
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"notices/on", *modes)
    flood(publisher, 0, 3)
    eventually(lambda: receiving.outbound.closed)
    assert numbers([reader.receive()]) == [0]
    assert reader.receive() == b"CMSG notice/kicked\0" + reason
    assert reader.is_disconnected()


def test_a_client_knows_why_it_was_kicked(address: str) -> None:
    told: list[object] = []
    with HubThread(address), blocking.Client(address, on_notice=told.append) as client:
        client.socket.send(b"nonsense")
        with pytest.raises(DisconnectedError, match="unknown verb"):
            client.receive(timeout=PATIENCE)
        assert told == [Kicked("unknown verb")]


def test_remembered_violations_are_bounded_and_others_are_logged_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    violations = Violations(3, is_named=lambda uid: uid == 7, clock=lambda: 1_000.0)
    assert [violations.note("x", uid) for uid in range(6)] == [True, True, True, True, False, False]
    assert [violations.note("x", 7), violations.note("x", 7)] == [True, False], "a user whom the owner named"
    assert violations.counts["x"] == 8
    monkeypatch.setattr("sbuslib.core.violations.OTHERS_PAUSE", 0.0)
    assert violations.note("x", 8), "a minute later"
    assert violations.repeats["x", None] == 4


@pytest.mark.parametrize("fails", [ValueError, gevent.Timeout, None])
def test_a_logging_handler_that_fails_stops_no_hub_and_saves_no_client(
    make_hub: MakeHub, connect: Connect, capsys: pytest.CaptureFixture[str], fails: type[BaseException] | None
) -> None:
    """It is called where clients are accepted, and in a client's turn. There, whoever tries to yield fails, too."""

    def fail() -> None:
        if fails is None:
            gevent.sleep(0)
        else:
            raise fails("the log is full")

    with called_by_logging(fail):
        hub = make_hub(users=[])
        hub._here.acceptor._users = set()
        refused = connect()
        assert refused.receive() == b"CMSG notice/kicked\0user not allowed"
        assert refused.is_disconnected()
        hub._here.acceptor._users = None
        witness, offender = connect(), connect()
        witness.subscribe(b"k")
        offender.send(b"MSG k\0x", b"nonsense", b"MSG k\0y")
        assert offender.is_disconnected()
    assert witness.pending() == [b"MSG k\0x"]
    assert hub.statistics().violations == {"user not allowed": 1, "unknown verb": 1}
    assert ("the log is full" if fails else "BlockingSwitchOutError") in capsys.readouterr().err


def test_an_error_in_the_hub_lets_the_client_go(
    make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bug of ours must not leave a client that is never read from."""
    hub = make_hub()
    bad, good = connect(), connect()
    good.subscribe(b"a")

    def fails(self: object, publisher: object, packet: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(ClientRole, "act_on", fails)
        bad.send(b"SUB x")
        assert bad.is_disconnected()
    assert hub.statistics().violations == {"error in the hub": 1}
    good.publish(b"a", b"x")
    assert good.receive() == b"MSG a\0x"
    assert "RuntimeError: a bug" in capsys.readouterr().err
