"""The recorder in the process of a hub: it records each message, and ends when the hub or the disk does."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gevent
import pytest
from accounting import acting_as
from hypothesis import given, settings
from hypothesis import strategies as st
from journal.disks import file_size
from journal.format.journals import records_of
from programs import Programs
from support import PATIENCE, Connect, MakeClient, MakeHub, Peer, eventually, own_key

import sbuslib
from sbuslib import Hub, Limits, Relay
from sbuslib.errors import JournalError, JournalInUseError, ServiceError, StateError, UsageError
from sbuslib.journal.format.directory import is_recorded, list_segments
from sbuslib.journal.intake import Intake
from sbuslib.journal.limits import JournalLimits
from sbuslib.journal.recorder import Recorder
from sbuslib.journal.replay import Replayed, from_journal, replay
from sbuslib.limits import PACKET_BYTES
from sbuslib.wire.batches import pack
from sbuslib.wire.packets import check_key, encode_message


def test_all_messages_are_recorded_with_their_senders(hub: Hub, client: MakeClient, journal: str) -> None:
    mine = (os.getgid(), os.getuid(), os.getpid())
    with Recorder(hub, journal) as recorder:
        publisher = client()
        publisher.publish_many((b"room/%d/temp" % (n % 3), b"%d" % n) for n in range(1000))
        publisher.publish(b"large", b"x" * 300_000)
        publisher.sync()
        hub.publish(b"own", b"")
        recorder.flush()
        eventually(lambda: recorder.durable_sequence == recorder.statistics().written == 1002)
        assert recorder.statistics().received == 1002
    records = records_of(journal)
    assert [record.sequence for record in records] == list(range(1, 1003))
    assert [record.payload for record in records] == [*(b"%d" % n for n in range(1000)), b"x" * 300_000, b""]
    assert [record.key for record in records[:4]] == [b"room/0/temp", b"room/1/temp", b"room/2/temp", b"room/0/temp"]
    assert {(record.gid, record.uid, record.pid) for record in records} == {mine}
    assert {record.sender for record in records} == {own_key()}
    times = [record.time_ns for record in records]
    assert times == sorted(times)
    assert {os.stat(one.path).st_mode & 0o777 for one in list_segments(journal)} == {0o600}
    assert os.stat(journal).st_mode & 0o777 == 0o700


PAIRS = st.lists(
    st.tuples(st.sampled_from([b"a/1", b"a/2", b"b", b""]), st.binary(max_size=9)), min_size=1, max_size=40
)
SAID = st.lists(
    st.tuples(st.sampled_from(["batch", "one by one", "embedder", "secret"]), st.integers(0, 1), PAIRS), max_size=6
)


@settings(max_examples=20)
@given(SAID, st.booleans(), st.sampled_from([3, 64, 4096]))
def test_what_is_recorded_and_played_back_is_what_was_published(
    said: list[tuple[str, int, list[tuple[bytes, bytes]]]], is_plain: bool, block: int
) -> None:
    """Each message is recorded once, in order and with its sender, however it came, also beside other receivers."""
    with TemporaryDirectory(prefix="sbus-") as folder, Hub(f"{folder}/bus") as hub, Hub(f"{folder}/other") as other:
        expected: list[tuple[bytes, bytes]] = []
        with (
            Recorder(hub, f"{folder}/journal", limits=JournalLimits(block_records=block)),
            sbuslib.Client(f"{folder}/bus") as subscriber,
            closing(Peer(f"{folder}/bus")) as plain,
            closing(Peer(f"{folder}/bus")) as first,
            closing(Peer(f"{folder}/bus")) as second,
        ):
            subscriber.subscribe(b"a/1" if is_plain else b"")  # a receiver of a part of a batch gets a new batch
            if is_plain:
                plain.subscribe(b"")
            for peer in (first, second):
                peer.send(b"CMSG batch/on")
                peer.barrier()
            for how, who, pairs in said:
                peer = (first, second)[who]
                if how == "secret":
                    hub.publish(own_key() + b"/x", b"secret")
                    continue
                expected += pairs
                if how == "embedder":
                    for key, payload in pairs:
                        hub.publish(key, payload)
                elif how == "batch":
                    peer.send(*(packet for packet, _ in pack(pairs, check_key, PACKET_BYTES)))
                else:
                    peer.send(*(encode_message(key, payload) for key, payload in pairs))
                peer.barrier()
        records = records_of(f"{folder}/journal")
        assert [(record.key, record.payload) for record in records] == expected
        assert [record.sequence for record in records] == list(range(1, len(expected) + 1))
        assert {record.sender for record in records} <= {own_key()}
        inbox = other.subscribe(b"")
        with sbuslib.Client(f"{folder}/other") as player:
            done = replay(from_journal(f"{folder}/journal"), player, speed=None, wait=gevent.sleep)
            player.sync()
        assert done == Replayed(len(expected), 0)
        assert [(message.key, message.payload) for message in (inbox.receive(timeout=0) for _ in expected)] == expected
        assert len(inbox) == 0


@pytest.mark.promise("journal.md", "Secrets are never recorded")
@pytest.mark.parametrize("scope", ["hub", "tree"])
def test_secrets_are_not_recorded(hub: Hub, client: MakeClient, journal: str, scope: Any) -> None:
    with Recorder(hub, journal, scope=scope):
        publisher = client()
        holder = client()
        holder.subscribe(holder.credentials + b"/x")
        publisher.publish(holder.credentials + b"/x", b"secret")
        publisher.publish(b"k", b"plain")
        assert holder.receive(timeout=10).payload == b"secret"
    assert [record.payload for record in records_of(journal)] == [b"plain"]
    assert b"secret" not in b"".join(Path(one.path).read_bytes() for one in list_segments(journal))


def test_a_restart_goes_on_in_a_new_segment(hub: Hub, journal: str) -> None:
    recorder = Recorder(hub, journal)
    for number in range(3):
        with recorder:
            hub.publish(b"k", b"%d" % number)
            with pytest.raises(StateError, match="started already"):
                recorder.start()
        recorder.stop()
        assert not recorder.recording
    hub.publish(b"k", b"not recorded")
    assert [one.first_sequence for one in list_segments(journal)] == [1, 2, 4]
    assert [record.payload for record in records_of(journal)] == [b"0", None, b"1", None, b"2"]


def test_recording_ends_when_the_hub_stops(hub: Hub, connect: Connect, journal: str) -> None:
    recorder = Recorder(hub, journal).start()
    connect().publish(b"k", b"sent before the end")
    hub.stop()
    assert not recorder.recording
    assert not is_recorded(journal)
    assert [record.payload for record in records_of(journal)] == [b"sent before the end"]
    with pytest.raises(StateError):
        recorder.start()
    hub.start()
    with recorder:
        hub.publish(b"k", b"again")
    assert [(record.payload, record.lost) for record in records_of(journal)][1:] == [(None, None), (b"again", None)]


@pytest.mark.promise("journal.md", "One recorder a directory")
def test_two_recorders_cannot_share_a_directory(hub: Hub, journal: str) -> None:
    with Recorder(hub, journal) as recorder:
        with pytest.raises(JournalInUseError, match=str(os.getpid())):
            Recorder(hub, journal).start()
        hub.publish(b"k", b"v")
        with Recorder(hub, journal + "-2"):
            hub.publish(b"k", b"v")
    assert recorder.error is None
    assert (len(records_of(journal)), len(records_of(journal + "-2"))) == (2, 1)


def test_wrong_arguments_are_refused(hub: Hub, journal: str) -> None:
    for wrong in ({"scope": "all"}, {"durability": "always"}, {"keep_bytes": 0}, {"keep_seconds": -1.0}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            Recorder(hub, journal, **wrong)
    assert not os.path.exists(journal)


def test_a_recorder_of_scope_tree_records_messages_of_all_hubs(
    make_hub: MakeHub, client: MakeClient, folder: str, journal: str
) -> None:
    limits = Limits(settle=0.01)
    top = make_hub(limits=limits)
    below = make_hub(os.path.join(folder, "below"), limits=limits)
    leaf = make_hub(os.path.join(folder, "leaf"), limits=limits)
    Relay(below, top.address).start().wait(10)
    Relay(leaf, below.address).start().wait(10)
    here = client(below.address)
    others = [client(top.address), client(leaf.address)]
    with Recorder(below, journal, scope="tree") as recorder:
        assert here.sync("tree") == "tree"
        for one in (here, *others):
            one.publish(b"k", one.credentials)
            assert one.sync("tree") == "tree"
        eventually(lambda: recorder.statistics().received == 3)
    triple = (os.getgid(), os.getuid(), os.getpid())
    records = records_of(journal)
    assert {record.sender: record.payload for record in records} == {
        one.credentials: one.credentials for one in (here, *others)
    }
    # Children of our own user and root are taken at their word. Who is above is not for the kernel here to tell.
    assert [(record.gid, record.uid, record.pid) for record in records] == [triple, (None, None, None), triple]


def test_a_row_has_the_ids_of_who_published_and_not_those_of_the_link(
    make_hub: MakeHub, client: MakeClient, folder: str, journal: str
) -> None:
    os.chmod(folder, 0o755)
    top, below = make_hub(), make_hub(os.path.join(folder, "below"), mode=0o777)
    Relay(below, top.address).start().wait(10)
    with acting_as(2201):
        publisher = client(below.address)
    with Recorder(top, journal, scope="tree") as recorder:
        publisher.sync("tree")
        publisher.publish(b"k")
        eventually(lambda: recorder.statistics().received == 1)
    (record,) = records_of(journal)
    assert (record.gid, record.uid, record.sender) == (2201, 2201, publisher.credentials)


# -- when the disk does not keep up -------------------------------------------------------------------

SMALL = JournalLimits(block_records=4, queued_records=40)


@pytest.mark.parametrize("broken", ["_on_wake", "_on_time", "_on_block_timeout"])
def test_an_unforeseen_error_in_a_callback_ends_the_recording_and_not_the_hub(
    make_hub: MakeHub,
    connect: Connect,
    journal: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    broken: str,
) -> None:
    raised: list[str] = []

    def fail_once(place: type, name: str) -> None:
        works = getattr(place, name)

        def method(self: Any) -> None:
            if not raised:
                raised.append(name)
                raise ValueError("not foreseen")
            works(self)

        monkeypatch.setattr(place, name, method)

    fail_once(Recorder if broken == "_on_wake" else Intake, broken)
    told: list[Exception] = []
    hub = make_hub(limits=Limits(block_timeout=0.01))
    recorder = Recorder(hub, journal, limits=SMALL, on_stop=told.append)
    publisher, inbox = connect(), hub.subscribe(b"journal/stopped")
    with caplog.at_level(logging.ERROR, "sbuslib"):
        recorder.start()
        if broken != "_on_time":  # it is called when the queue is full
            hold_until = threading.Event()
            monkeypatch.setattr(os, "fdatasync", lambda descriptor: hold_until.wait(PATIENCE))
            for number in range(200):
                publisher.publish(b"k", b"%d" % number)
            eventually(lambda: raised if broken == "_on_block_timeout" else recorder._writer.wakes)
            hold_until.set()
        else:
            publisher.publish(b"k", b"v")
        eventually(lambda: told)
    assert raised == [broken]
    assert not recorder.recording
    assert isinstance(recorder.error, ServiceError)
    assert told == [recorder.error]
    assert b"not foreseen" in inbox.receive(timeout=PATIENCE).payload
    assert caplog.text.count("Traceback") == 1
    with pytest.raises(JournalError, match="not foreseen"):
        recorder.stop()
    publisher.barrier()  # the hub serves, and holds no publisher
    assert not is_recorded(journal)
    statistics = recorder.statistics()
    assert (statistics.held, statistics.waiting) == (0, 0)
    # A slow machine has gap rows of those that were lost in time, as well.
    assert [record.kind for record in records_of(journal)].count("message") == statistics.written
    with recorder:
        hub.publish(b"k", b"again")
    assert records_of(journal)[-1].payload == b"again"


def test_an_error_of_on_stop_is_logged(hub: Hub, journal: str, caplog: pytest.LogCaptureFixture) -> None:
    def on_stop(error: Exception) -> None:
        raise ValueError("the caller's own mistake")

    recorder = Recorder(hub, journal, on_stop=on_stop)
    with file_size(2_000), caplog.at_level(logging.ERROR, "sbuslib"):
        recorder.start()
        hub.publish(b"k", b"x" * 3_000)
        eventually(lambda: "the caller's own mistake" in caplog.text)
    assert isinstance(recorder.error, OSError)


def test_recording_ends_when_another_process_takes_the_hub_over(
    make_hub: MakeHub, programs: Programs, journal: str
) -> None:
    hub = make_hub(programs.address("bus"), replaceable=True)
    with Recorder(hub, journal):
        hub.publish(b"k", b"v")
        gevent.get_hub().threadpool.spawn(programs.start, "bus", None, "--take-over").get()
        eventually(lambda: hub.closed)
        eventually(lambda: not is_recorded(journal))
    assert [(row.key, row.payload) for row in records_of(journal)] == [(b"k", b"v")]
