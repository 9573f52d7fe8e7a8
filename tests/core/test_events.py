"""What happens to a hub: what a line of its log has, that nobody can fill it, and who is told besides."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import PATIENCE, Connect, ConnectAs, HubThread, MakeHub

from sbuslib import Hub
from sbuslib.cli.log import QUIET_SECONDS, HubLog, JournalHandler
from sbuslib.core import event_log
from sbuslib.core.event_log import MOST
from sbuslib.errors import PacketError
from sbuslib.kernel.users import name_of_user, program_of
from sbuslib.reasons import Reason
from sbuslib.secrets import Credentials
from sbuslib.wire.events import LONGEST_TEXT, MOST_USERS, HubEvent, event_of, first_segments, shown

STRANGER = 4_321


@contextmanager
def called(name: bytes) -> Iterator[None]:
    """This process calls itself so meanwhile."""
    with open("/proc/self/comm", "rb+", buffering=0) as file:
        before = file.read().rstrip(b"\n")
        file.write(name)
        try:
            yield
        finally:
            file.write(before)


def test_a_line_about_a_client_names_user_process_program_and_what_it_is_about(
    make_hub: MakeHub, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    hub = make_hub(authorize=lambda credentials, verb, key: not key.startswith(b"room/1/"))
    peer = connect()
    peer.publish(b"room/1/temp/inside", b"payload")
    assert peer.is_disconnected()
    uid, pid = os.getuid(), os.getpid()
    whose = f"user {name_of_user(uid)} ({uid}), process {pid} ({program_of(pid)}), at room/1/..."
    line = f"sbus hub at {hub.address}: disconnected (repeats are summed up): publishing refused; {whose}"
    assert caplog.messages == [line]


@pytest.mark.promise("how-to/service.md", "A client cannot write a line")
def test_no_line_can_be_written_by_a_client(hub: Hub, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    with called(b"x\nsbus: \x1b[2J"):
        peer = connect()
        peer.send(b"nonsense")
        assert peer.is_disconnected()
    (line,) = caplog.messages
    assert line.isprintable()
    assert r"(x\nsbus: \x1b[2J)" in line


@given(st.binary(max_size=500))
def test_what_a_stranger_chose_is_short_and_prints_and_secrets_are_not_shown(name: bytes) -> None:
    for text in (shown(name), first_segments(name, b"/")):
        assert text.isprintable()
        assert len(text) <= 4 * 80 + 3
    assert first_segments(b"!/cred/1/2/3/" + name, b"/") == "a secret key"
    assert first_segments(b"a.!.cred.1.2.3." + name, b".") == "a secret key"


@given(
    st.binary(max_size=200)
    | st.text(max_size=100).map(lambda text: b'{"kind":"a","time":1,"user":"%b"}' % text.encode())
)
def test_what_is_no_event_is_refused_and_no_row_of_a_journal_is_an_error(payload: bytes) -> None:
    try:
        assert HubEvent.decode(payload).text.isprintable()
    except PacketError:
        assert event_of("hub " + payload.decode("utf-8", "replace"), 0) is None


@pytest.mark.promise("how-to/service.md", "A client cannot fill the log")
def test_a_user_cannot_fill_the_log_and_is_told_how_much_was_left_out(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    events, flooder = hub.context.events, Credentials(gid=1, uid=STRANGER, pid=0)
    for _ in range(10_000):
        events.emit("refused", flooder, cause="too many connections")
    events.emit("refused", Credentials(gid=1, uid=STRANGER + 1, pid=0), cause="others have their own share")
    assert len(caplog.messages) == MOST + 1
    for uid in range(STRANGER, STRANGER + 5_000):  # and many users not the memory
        events.emit("refused", Credentials(gid=1, uid=uid, pid=0))
    assert len(events._of_others) <= 257
    events.sum_up(ends=True)
    assert f"{10_001 - MOST:,} more events of one user were left out; user {STRANGER} ({STRANGER})" in caplog.text
    assert not events._of_others


def test_a_stranger_with_many_user_ids_keeps_nobody_out_of_the_log(
    make_hub: MakeHub, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = make_hub(trusted=[STRANGER - 1], relays=[STRANGER - 2])
    events, now = hub.context.events, [1_000.0]
    monkeypatch.setattr(event_log, "monotonic", lambda: now[0])
    many = range(STRANGER, STRANGER + 1_000)
    for _ in range(3):
        for uid in many:
            events.emit("refused", Credentials(gid=1, uid=uid, pid=0), cause="too many connections")

    # Of losses, the owner's users and relays all is logged.
    caplog.clear()
    victim = many.stop
    for uid in (victim, many.stop + 1):
        events.emit("loses", Credentials(gid=1, uid=uid, pid=0), cause="overflow")
        events.emit("lost", Credentials(gid=1, uid=uid, pid=0), cause="overflow", count=4_464)
    for uid in (0, os.getuid(), STRANGER - 1, STRANGER - 2):
        events.emit("refused", Credentials(gid=1, uid=uid, pid=0), cause="unknown verb")
    assert len(caplog.messages) == 8

    # Of others, one event a minute, and a sum that says of how many users.
    for _ in range(10):
        events.emit("refused", Credentials(gid=1, uid=victim, pid=0), cause="unknown verb")
    assert len(caplog.messages) == 8
    now[0] += event_log.COMMON_PAUSE
    events.emit("refused", Credentials(gid=1, uid=victim, pid=0), cause="unknown verb")
    assert len(caplog.messages) == 9
    assert f"user {victim}" in caplog.messages[-1]
    now[0] += event_log.SPAN
    events.sum_up()
    users = len(many) - 256 + 1
    assert f"{3 * (users - 1) - 1 + 10:,} more events of {users:,} users were left out" in caplog.messages[-1]


def test_losses_of_more_users_than_are_counted_separately_are_summed_up(
    hub: Hub, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub.context.events._of_losses, "_most", 2)
    monkeypatch.setattr(event_log, "MOST_USERS", 3)
    for uid in range(STRANGER, STRANGER + 10):
        hub.context.events.emit("loses", Credentials(gid=1, uid=uid, pid=0), cause="overflow")
    assert len(caplog.messages) == 3
    hub.context.events.sum_up(ends=True)
    assert "7 more events of 3 users were left out" in caplog.messages[-1]
    assert HubEvent("more", 1.0, count=7, users=MOST_USERS).summary.startswith("7 more events of at least 65,536 users")
    assert HubEvent("more", 1.0, count=7).summary == "7 more events of some users were left out", "of an older hub"


def test_repeats_are_summed_up_when_they_end_and_told_anew(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with HubThread(address, users=[]) as bus, caplog.at_level(logging.INFO, "sbuslib"):
        log = bus.call(lambda: HubLog(bus.hub))
        log._timer.stop()

        def refuse(now: float) -> None:
            for _ in range(5):
                bus.call(lambda: bus.hub.clients.report(reason, stranger))
            log._not_before = 0.0
            bus.call(lambda: log.look(now))

        reason, stranger = Reason.NOT_ALLOWED, Credentials(gid=1, uid=STRANGER, pid=0)
        refuse(1.0)
        refuse(2.0)
        log._not_before = 0.0
        bus.call(lambda: log.look(2.0 + QUIET_SECONDS))
        refuse(20.0)
        bus.call(log.close)
    texts = [message.removeprefix(f"sbus hub at {address}: ") for message in caplog.messages]
    whose = f"user not allowed; user {STRANGER} ({STRANGER})"
    first = f"disconnected (repeats are summed up): {whose}"
    assert texts == [
        first, f"10 were disconnected in 1 s: {whose}", first, f"5 were disconnected in 0 s: {whose}"
    ]  # fmt: skip


def test_events_are_for_the_hubs_user_root_and_the_trusted_alone(
    make_hub: MakeHub, connect: Connect, connect_as: ConnectAs
) -> None:
    hub = make_hub(mode=0o777, trusted=[STRANGER + 1])
    peers = [connect(), connect_as(STRANGER + 1), connect_as(STRANGER)]
    for peer in peers:
        peer.send(b"CMSG notices/on", b"CMSG monitor/on")
        peer.barrier()
    offender = connect()
    offender.send(b"nonsense")
    assert offender.is_disconnected()
    owner, trusted, stranger = ([HubEvent.decode(one.partition(b"\0")[2]) for one in peer.pending()] for peer in peers)
    assert [event.kind for event in owner] == ["serves", "refused"]  # the first was before it came
    assert trusted == owner
    assert stranger == []
    assert len({event.time for event in owner}) == 2
    assert owner[1].hub == hub.address
    assert {*owner[0].fields} == {"SBUS_EVENT", "SBUS_HUB"}, "only what is known"

    # The longest line can be read, too: else a recorder would end its connection.
    hub.context.events.emit("loses", cause="x" * 5_000, key="y" * 5_000)
    (packet,) = peers[0].pending()
    assert len(HubEvent.decode(packet.partition(b"\0")[2]).key) == LONGEST_TEXT


def test_systemd_gets_each_event_in_fields() -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(f"{folder}/socket")
        journal.settimeout(PATIENCE)
        handler = JournalHandler("sbusd", f"{folder}/socket")
        record = logging.LogRecord("sbuslib", logging.WARNING, "", 0, "a line\nand another", (), None)
        record.sbus_event = HubEvent("lost", 1.0, "/bus", 7, "bob", 12, "camera", "overflow", "room/1", 5, 2.0)
        handler.emit(record)
        entry, fields = journal.recv(65_536), {}
        handler._socket.close()
    while entry:
        name, _, entry = entry.partition(b"\n")
        size = int.from_bytes(entry[:8], "little")
        fields[name.decode()] = entry[8 : 8 + size].decode()
        assert entry[8 + size : 9 + size] == b"\n"
        entry = entry[9 + size :]
    assert fields == {
        "MESSAGE": "a line\nand another",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "sbusd",
        "SBUS_EVENT": "lost",
        "SBUS_HUB": "/bus",
        "SBUS_UID": "7",
        "SBUS_USER": "bob",
        "SBUS_PROCESS": "12",
        "SBUS_PROGRAM": "camera",
        "SBUS_CAUSE": "overflow",
        "SBUS_KEY": "room/1",
        "SBUS_COUNT": "5",
        "SBUS_SECONDS": "2.0",
    }
