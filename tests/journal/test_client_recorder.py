"""Recording a hub as its client."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import time_ns
from typing import Any

import gevent
import pytest
from journal.format.journals import records_of
from support import PATIENCE, FakeHub, HubThread, Peer, eventually

from sbuslib import Limits
from sbuslib.blocking import Client
from sbuslib.errors import JournalInUseError
from sbuslib.journal.client_recorder import ClientRecorder
from sbuslib.journal.format.directory import is_recorded, list_segments, read_header
from sbuslib.journal.limits import JournalLimits
from sbuslib.journal.writer import Writer
from sbuslib.wire.control import Away
from sbuslib.wire.events import event_of


@contextmanager
def recording(address: str, journal: str, **options: Any) -> Iterator[ClientRecorder]:
    """A recorder in a thread of its own; the thread has ended when the block ends."""
    recorder = ClientRecorder(address, journal, **options)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            recorder.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield recorder
    finally:
        recorder.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def test_all_messages_of_a_hub_are_recorded(address: str, journal: str) -> None:
    mine = (os.getgid(), os.getuid(), os.getpid())
    with HubThread(address) as bus, Client(address) as publisher:
        with recording(address, journal) as recorder:
            publisher.publish_many((b"room/%d" % (n % 3), b"%d" % n) for n in range(1000))
            publisher.publish(publisher.credentials + b"/secret", b"secret")
            eventually(lambda: recorder.durable_sequence == 1000)
        hub_id = bus.hub.hub_id.decode()
        key = publisher.credentials
    assert recorder.received == 1000
    records = records_of(journal)
    assert [(record.key, record.payload) for record in records] == [
        (b"room/%d" % (n % 3), b"%d" % n) for n in range(1000)
    ]
    assert {(record.gid, record.uid, record.pid, record.sender) for record in records} == {(*mine, key)}
    (one,) = list_segments(journal)
    assert read_header(one.path).hub == hub_id
    assert not is_recorded(journal)


def test_a_directory_in_use_is_refused(address: str, journal: str) -> None:
    with HubThread(address) as bus, recording(address, journal):
        with pytest.raises(JournalInUseError):
            ClientRecorder(address, journal)
        while bus.call(lambda: bus.hub.statistics().clients) != 1:
            gevent.sleep(0.001)


def test_an_event_before_the_recording_has_a_row_of_the_time_when_it_came(address: str, journal: str) -> None:
    with HubThread(address):
        began = time_ns()
        with recording(address, journal, events=True, limits=JournalLimits(block_seconds=0.005)):
            eventually(lambda: records_of(journal))
    (row,) = records_of(journal)
    event = event_of(row.cause, row.lost)
    assert event is not None
    assert event.kind == "serves"
    assert event.time * 1e9 < began <= row.time_ns


def test_a_hub_above_that_was_away_becomes_a_gap(address: str, journal: str) -> None:
    with HubThread(address) as bus, recording(address, journal, limits=JournalLimits(block_seconds=0.005)):
        while bus.call(lambda: bus.hub.statistics().patterns) != 1:
            gevent.sleep(0.001)
        bus.call(lambda: bus.hub.tree.pass_notice(Away(1_750_000_001.0, 1_750_000_002.0), None))
        with Client(address) as publisher:
            publisher.publish(b"k")
            publisher.sync()
        while not any(record.kind == "message" for record in records_of(journal)):
            gevent.sleep(0.001)
    (gap,) = (record for record in records_of(journal) if record.kind == "gap")
    assert (gap.cause, gap.lost, gap.time_ns) == ("away", None, 1_750_000_001_000_000_000)


def test_an_outage_becomes_a_gap_and_another_hub_another_segment(address: str, journal: str) -> None:
    limits = JournalLimits(block_seconds=0.005)
    with HubThread(address) as bus, Client(address) as publisher, recording(address, journal, limits=limits):
        publisher.publish(b"k", b"before")
        publisher.sync()
        first = bus.hub.hub_id.decode()
        bus.stop()
        with HubThread(address) as other, Client(address) as again:
            while other.call(lambda: other.hub.statistics().patterns) != 1:
                gevent.sleep(0.001)
            second = other.hub.hub_id.decode()
            again.publish(b"k", b"after")
            again.sync()
            while len(list_segments(journal)) < 2:
                gevent.sleep(0.001)
    records = records_of(journal)
    assert [(record.kind, record.payload, record.cause, record.lost) for record in records] == [
        ("message", b"before", None, None),
        ("gap", None, "outage", None),
        ("message", b"after", None, None),
    ]
    assert [read_header(one.path).hub for one in list_segments(journal)] == [first, second]


def test_what_waits_when_another_hub_is_there_is_of_the_one_before(address: str, journal: str) -> None:
    limits = JournalLimits(block_seconds=600)
    with HubThread(address) as bus, Client(address) as publisher:
        recorder = ClientRecorder(address, journal, limits=limits)
        first = bus.hub.hub_id.decode()
        publisher.publish(b"k", b"before")
        recorder._receive(PATIENCE)
        bus.stop()
    with HubThread(address) as other, ThreadPoolExecutor(1) as pool:
        received = pool.submit(recorder._receive, PATIENCE)
        while other.call(lambda: other.hub.statistics().patterns) != 1:
            gevent.sleep(0.001)
        with Client(address) as publisher:
            publisher.publish(b"k", b"after")
        received.result(PATIENCE)
        recorder.stop()
        recorder.run()
        hubs = [read_header(one.path).hub for one in list_segments(journal)]
        assert hubs == [first, other.hub.hub_id.decode()]
    assert [(record.payload, record.cause) for record in records_of(journal)] == [
        (b"before", None),
        (None, "outage"),
        (b"after", None),
    ]
    assert list_segments(journal)[1].first_sequence == 2


def test_a_connection_that_broke_is_a_gap_from_the_last_message_on(address: str, journal: str) -> None:
    limits = JournalLimits(block_seconds=0.005)
    with (
        HubThread(address) as bus,
        Client(address) as publisher,
        recording(address, journal, limits=limits) as recorder,
    ):
        publisher.publish(b"k", b"before")
        publisher.sync()
        while not records_of(journal):
            gevent.sleep(0.001)

        def cut() -> None:
            for connection in [*bus.hub.clients.connections.values()]:
                connection.outbound.socket.shutdown(socket.SHUT_RDWR)

        bus.call(cut)
        eventually(lambda: recorder.client.epoch == 2)
        recorder.client.sync()
        with Client(address) as again:
            again.publish(b"k", b"after")
            again.sync()
        while len(records_of(journal)) < 3:
            gevent.sleep(0.001)
    message, gap, after = records_of(journal)
    assert after.payload == b"after"
    assert (gap.cause, gap.lost, gap.time_ns) == ("outage", None, message.time_ns)


def test_a_hub_without_extensions_is_recorded_without_senders(folder: str, journal: str) -> None:
    """A daemon like the C one tells no senders and no identity."""
    address = os.path.join(folder, "bus")
    with FakeHub(address) as fake:
        made: list[ClientRecorder] = []
        thread = threading.Thread(target=lambda: made.append(ClientRecorder(address, journal)))
        thread.start()
        peer = fake.greet()
        gone = gevent.spawn(_answer, peer)
        eventually(lambda: made)
        thread.join()
        running = threading.Thread(target=made[0].run)
        running.start()
        peer.send(b"MSG k\0v")
        eventually(lambda: made[0].durable_sequence == 1)
        made[0].stop()
        eventually(lambda: not running.is_alive())
        gone.kill()
    (record,) = records_of(journal)
    assert (record.key, record.payload, record.sender, record.uid) == (b"k", b"v", b"", None)


def _answer(peer: Peer) -> None:
    """Answer each whoami, and nothing else."""
    while packet := peer.receive():
        if packet.startswith(b"CMSG !/cred/whoami"):
            peer.send(b"CMSG !/cred/whoami\0!/cred/1/2/3")


def test_ids_are_those_of_the_process_that_answers_for_a_message(address: str, journal: str) -> None:
    with HubThread(address):
        recorder = ClientRecorder(address, journal)
        for prefix, sender, ids in (
            (b"", b"!/cred/1/2/3", (1, 2, 3)),
            (b"", b"!/cred/1/2/3/!/cred/4/5/6", (1, 2, 3)),  # a stranger's hub could name anybody
            (b"", b"!/cred/0/0/3/!/cred/0/%d/5/!/cred/4/2201/6" % os.getuid(), (4, 2201, 6)),
            (b"", b"!/cred/0/0/3/!/cred/65534/65534/0", (None, None, None)),
            (b"", b"!/cred/65534/65534/0", (None, None, None)),
            (b"!/cred/7/8/9/", b"!/cred/7/8/9/!/cred/1/2/3", (1, 2, 3)),
            (b"!/cred/7/8/9/", b"!/cred/1/2/3", (None, None, None)),
            (b"", b"nonsense", (None, None, None)),
            (b"", b"!/cred/x/y", (None, None, None)),
            (b"", b"!/cred/1/2", (None, None, None)),
            (b"", b"!/cred/4294967295/2/3", (4294967295, 2, 3)),
            (b"", b"!/cred/4294967296/2/3", (None, None, None)),
            (b"", b"!/cred/1/2/" + b"9" * 5_000, (None, None, None)),
            (b"", b"!/cred/-1/2/3", (None, None, None)),
            (b"", b"!/cred/1_0/2/3", (None, None, None)),
            (b"", None, (None, None, None)),
        ):
            recorder._prefix = prefix
            assert recorder._parse(sender) == ids
            recorder._vouched(sender)
        assert sum(map(len, filter(None, recorder._ids))) < 1_000, "long ones are not remembered"
        recorder.stop()
        recorder.run()


def test_a_client_recorder_stops_reading_when_its_queue_is_full(
    address: str, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a slow disk, the recorder stops reading, so the hub holds publishers, and no message is lost."""
    taking = threading.Event()

    def sync(descriptor: int) -> None:
        assert taking.wait(PATIENCE)

    monkeypatch.setattr(os, "fdatasync", sync)
    small = JournalLimits(block_records=8, queued_records=16)
    limits = Limits(queued_packets=50)
    count = 3000  # of a kilobyte, so that the kernel does not take them all: some hundred are one packet
    messages = [(b"k", b"%d" % n + bytes(1_000)) for n in range(count)]
    with (
        HubThread(address, limits=limits),
        Client(address) as publisher,
        Client(address) as other,
        recording(address, journal, limits=small) as recorder,
    ):
        sending = threading.Thread(target=publisher.publish_many, args=(messages,))
        sending.start()
        try:
            while not recorder._writer.wakes:  # it waits for room
                gevent.sleep(0.001)
            received = recorder.received
            other.sync()
            other.publish(b"other", b"")  # for which it may be held, too
            assert recorder.received == received  # and does not read meanwhile
        finally:
            taking.set()
        sending.join()
        publisher.sync()
        other.sync()
    records = records_of(journal)
    assert [(record.key, record.payload) for record in records if record.key == b"k"] == messages
    assert sum(record.key == b"other" for record in records) == 1


def test_a_client_recorder_does_not_miss_room_that_comes_before_it_waits(
    address: str, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer takes all messages between two looks of the recorder, and does not tell of room later."""
    with HubThread(address), recording(address, journal) as recorder:
        looks = [True]
        monkeypatch.setattr(Writer, "fill", property(lambda self: 2.0 if looks and looks.pop() else 0.0))
        monkeypatch.setattr(recorder._room, "wait", lambda timeout: pytest.fail("it waits for what has come"))
        recorder._hand_over()
        assert not looks
