"""The recorder in the process of a hub: it records each message, holds publishers back, and counts what is lost."""

from __future__ import annotations

import logging
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gevent
import pytest
from accounting import acting_as
from hypothesis import given, settings
from hypothesis import strategies as st
from segments.journals import records_of
from support import PATIENCE, Peer, eventually, own_key

import sbuslib
from sbuslib import Hub, Limits, Relay
from sbuslib.core.messages import Batched, Copied
from sbuslib.errors import JournalError, JournalInUseError, ServiceError, StateError, UsageError
from sbuslib.journal.intake import Intake
from sbuslib.journal.limits import JournalLimits
from sbuslib.journal.recorder import Recorder
from sbuslib.journal.replay import Replayed, from_journal, replay
from sbuslib.limits import PACKET_BYTES
from sbuslib.segments.directory import end_of, is_recorded, list_segments
from sbuslib.wire.batches import coalesce, pack
from sbuslib.wire.control import Lost
from sbuslib.wire.packets import check_key, encode_message

MakeHub = Callable[..., Hub]
MakeClient = Callable[..., sbuslib.Client]
Connect = Callable[..., Peer]


class Disk:
    """A disk on which fdatasync(2) waits until ``open`` is set."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.syncs = 0

    def sync(self, descriptor: int) -> None:
        self.syncs += 1
        assert self.open.wait(60)


def has_come_to(recorder: Recorder, number: int) -> bool:
    """Whether so many rows are durable, or recording has ended."""
    return recorder.durable_sequence == number or not recorder.recording


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    slow = Disk()
    monkeypatch.setattr(os, "fdatasync", slow.sync)
    yield slow
    slow.open.set()


@contextmanager
def file_size(most: int) -> Iterator[None]:
    """Let no file become larger than ``most`` bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_all_that_passes_is_recorded(hub: Hub, client: MakeClient, journal: str) -> None:
    mine = (os.getgid(), os.getuid(), os.getpid())
    with Recorder(hub, journal) as recorder:
        publisher = client()
        publisher.publish_many((b"room/%d/temp" % (n % 3), b"%d" % n) for n in range(1000))
        publisher.publish(b"large", b"x" * 300_000)
        publisher.sync()
        hub.publish(b"own", b"")
        recorder.flush()
        eventually(lambda: recorder.durable_sequence == 1002)
        assert recorder.statistics().written == recorder.statistics().received == 1002
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


@settings(max_examples=40)
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
        assert [(message.key, message.payload) for message in (inbox.get(0) for _ in expected)] == expected
        assert len(inbox) == 0


@pytest.mark.parametrize("how", ["one by one", "batches"])
@pytest.mark.parametrize("reads", ["batches", "plain", "nothing"])
def test_many_keys(hub: Hub, connect: Connect, client: MakeClient, journal: str, how: str, reads: str) -> None:
    """More keys than a batch may have, and payloads of many lengths."""
    count = 3_000
    pairs = [(b"room/%d/temp" % (n * 7 % 700), b"%d" % n * (n % 5 or n % 97)) for n in range(count)]
    pairs += [(b"large/%d" % n, bytes([n]) * 200_000) for n in range(4)]
    reader = client()
    reader.flood_control(soft="block")
    with Recorder(hub, journal) as recorder:
        if reads != "nothing":
            reader.subscribe(b"")
        if reads == "plain":
            reader.socket.send(b"CMSG batch/off")
            reader.sync()
        publisher = client()

        def publish() -> None:
            if how == "batches":
                publisher.publish_many(pairs)
            else:
                for key, payload in pairs:
                    publisher.publish(key, payload)
            publisher.sync()

        publishing = gevent.spawn(publish)
        received: list[tuple[bytes, bytes]] = []
        while reads != "nothing" and len(received) < len(pairs):
            received += [(message.key, message.payload) for message in reader.receive_many(timeout=PATIENCE)]
        publishing.get()
        assert recorder.statistics().received == len(pairs)
    assert received == (pairs if reads != "nothing" else [])
    assert [(record.key, record.payload) for record in records_of(journal)] == pairs


def test_many_publishers_in_one_block(hub: Hub, connect: Connect, journal: str) -> None:
    with Recorder(hub, journal):
        peers = [connect() for _ in range(3)]
        for number in range(5):
            for who, peer in enumerate(peers):
                peer.publish(b"p/%d" % who, b"%d" % number)
        for peer in peers:
            peer.barrier()
    records = records_of(journal)
    for who in range(3):
        assert [record.payload for record in records if record.key == b"p/%d" % who] == [b"%d" % n for n in range(5)]


def test_messages_too_few_for_a_block_are_written_after_some_time(hub: Hub, journal: str) -> None:
    with Recorder(hub, journal) as recorder:
        for number in range(1, 4):
            hub.publish(b"k", b"v")
            eventually(partial(has_come_to, recorder, number))


def test_a_recorder_of_scope_hub_holds_no_pattern_and_one_of_scope_tree_holds_one(hub: Hub, journal: str) -> None:
    with Recorder(hub, journal):
        assert hub.statistics().patterns == 0
    with Recorder(hub, journal, scope="tree"):
        assert hub.statistics().patterns == 1
        hub.publish(b"k", b"v")
    assert [record.key for record in records_of(journal)] == [b"k"]


@pytest.mark.parametrize("scope", ["hub", "tree"])
def test_secrets_are_not_recorded(hub: Hub, client: MakeClient, journal: str, scope: Any) -> None:
    with Recorder(hub, journal, scope=scope):
        publisher = client()
        holder = client()
        holder.subscribe(holder.credentials + b"/x")
        publisher.publish(holder.credentials + b"/x", b"secret")
        publisher.publish(b"k", b"plain")
        assert holder.receive(10).payload == b"secret"
    assert [record.payload for record in records_of(journal)] == [b"plain"]
    assert b"secret" not in b"".join(Path(one.path).read_bytes() for one in list_segments(journal))


def test_the_writer_leaves_out_secret_messages_too(hub: Hub, journal: str) -> None:
    with Recorder(hub, journal) as recorder:
        intake, writer = recorder._intake, hub.context.writer
        assert intake is not None
        for key in (b"!/cred/1/2/3/x", b"a/!/cred/1/2/3/x", b"a!/b"):
            intake.deliver(hub._me, Copied(writer, [encode_message(key, b"v")]))
        several = [(b"k", b"1"), (b"!/cred/1/2/3/x", b"2"), (b"k", b"3"), (b"!/cred/1/2/3/x", b"4"), (b"l", b"5")]
        for pairs in (several, several[1::2]):
            batch = coalesce([encode_message(key, payload) for key, payload in pairs])
            assert batch is not None
            intake.deliver(hub._me, Batched(writer, batch))
    found = [(record.key, record.payload) for record in records_of(journal)]
    assert found == [(b"a!/b", b"v"), *several[::2]]
    assert recorder._writer.secrets_left_out == 6


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
    assert [one.first_sequence for one in list_segments(journal)] == [1, 2, 3]
    assert [record.payload for record in records_of(journal)] == [b"0", b"1", b"2"]
    with recorder:
        pass  # nothing comes, so no segment is made
    assert len(list_segments(journal)) == 3


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
    assert len(records_of(journal)) == 2


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


def test_a_directory_that_cannot_be_made_is_an_error_at_start(hub: Hub, folder: str) -> None:
    Path(folder, "file").write_text("")
    recorder = Recorder(hub, os.path.join(folder, "file", "journal"))
    with pytest.raises(OSError, match="Not a directory"):
        recorder.start()
    assert len(hub._clients.inboxes) == 0


def test_a_recorder_is_in_the_statistics_of_the_hub(hub: Hub, journal: str, disk: Disk) -> None:
    with Recorder(hub, journal):
        hub.publish(b"k", b"v")
        (mine,) = hub.statistics().per_client
        assert (mine.routed, mine.queued, mine.delivered, mine.soft, mine.hard) == (1, 1, 0, "queue", "block")
        disk.open.set()
    statistics = hub.statistics()
    assert (statistics.routed, statistics.delivered, statistics.queued, statistics.lost) == (1, 1, 0, {})


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
    # The kernel has told the recording hub of its own clients, one of which is the relay of the hub below.
    assert [(record.gid, record.uid, record.pid) for record in records] == [triple, (None, None, None), triple]


# -- durability ---------------------------------------------------------------------------------------


def test_a_row_is_durable_once_fdatasync_has_returned(hub: Hub, journal: str, disk: Disk) -> None:
    with Recorder(hub, journal, publish_durable=True) as recorder:
        inbox = hub.subscribe(b"journal/durable")
        hub.publish(b"k", b"v")
        eventually(lambda: disk.syncs == 1)
        assert (recorder.written_sequence, recorder.durable_sequence) == (1, 0)
        disk.open.set()
        message = inbox.get(timeout=20)
        assert (message.key, message.payload, recorder.durable_sequence) == (b"journal/durable", b"1", 1)
    assert [record.key for record in records_of(journal)] == [b"k"]  # the recorder's own notices are not recorded


def test_durability_none_never_syncs_and_interval_syncs_by_time(hub: Hub, journal: str, disk: Disk) -> None:
    with Recorder(hub, journal, durability="none") as recorder:
        hub.publish(b"k", b"v")
        eventually(lambda: recorder.durable_sequence == 1)
        assert disk.syncs == 0
    disk.open.set()
    limits = JournalLimits(sync_seconds=0.02)
    with Recorder(hub, journal, durability="interval", limits=limits) as recorder:
        hub.publish(b"k", b"v")
        eventually(lambda: recorder.durable_sequence == 2)
        assert disk.syncs == 1
    assert len(records_of(journal)) == 2


# -- when the disk does not keep up -------------------------------------------------------------------

SMALL = JournalLimits(block_records=4, queued_records=40)


def test_publishers_are_held_back_and_no_message_is_lost(
    make_hub: MakeHub, connect: Connect, journal: str, disk: Disk
) -> None:
    hub = make_hub()
    with Recorder(hub, journal, limits=SMALL) as recorder:
        publisher = connect()
        sending = gevent.spawn(publisher.send, *(b"MSG k\0%d" % n for n in range(3000)))
        eventually(lambda: recorder.statistics().held == 1)
        received = recorder.statistics().received
        gevent.sleep(0.02)
        assert recorder.statistics().received == received < 3000  # nothing more is read from it
        assert recorder.statistics().queued <= 2 * 64  # the turn that filled the queue, and the one that found it full
        connect().publish(
            b"other", b"one more"
        )  # another publisher is read until it publishes into the full queue itself
        eventually(lambda: recorder.statistics().held == 2)
        disk.open.set()
        sending.join()
        publisher.barrier()
        assert recorder.statistics().lost == {}
    records = records_of(journal)
    assert [record.payload for record in records if record.key == b"k"] == [b"%d" % n for n in range(3000)]
    assert sum(record.key == b"other" for record in records) == 1


def test_publisher_below_its_share_is_not_held_beside_a_flood(
    make_hub: MakeHub, connect: Connect, folder: str, journal: str, disk: Disk
) -> None:
    """Another user's flood has filled the queue of 40 messages: of two users, each may have 20 there."""
    hub = make_hub(mode=0o777)
    os.chmod(folder, 0o755)
    with Recorder(hub, journal, limits=SMALL) as recorder:
        with acting_as(1001):
            flooding = connect()
        with acting_as(1002):
            modest = connect()
        sending = gevent.spawn(flooding.send, *(b"MSG flood\0%d" % n for n in range(1000)))
        eventually(lambda: recorder.statistics().held == 1)
        for n in range(20):
            modest.publish(b"modest", b"%d" % n)
            modest.barrier()
            assert recorder.statistics().held == 1
        modest.publish(b"modest", b"20")
        eventually(lambda: recorder.statistics().held == 2)
        disk.open.set()
        sending.join()
        flooding.barrier()
        modest.barrier()
        assert recorder.statistics().lost == {}
    payloads = [record.payload for record in records_of(journal) if record.key == b"modest"]
    assert payloads == [b"%d" % n for n in range(21)]


def test_messages_of_a_publisher_that_leaves_while_held_are_recorded(
    make_hub: MakeHub, connect: Connect, journal: str, disk: Disk
) -> None:
    hub = make_hub()
    with Recorder(hub, journal, limits=SMALL) as recorder:
        publisher = connect()
        for n in range(200):
            publisher.publish(b"k", b"%d" % n)
        eventually(lambda: recorder.statistics().held == 1)
        publisher.close()
        disk.open.set()
        eventually(lambda: hub.statistics().clients == 0)
        assert recorder.statistics().held == 0
    assert [record.payload for record in records_of(journal)] == [b"%d" % n for n in range(200)]


def test_lost_messages_of_the_embedder_become_a_gap_row(make_hub: MakeHub, journal: str, disk: Disk) -> None:
    hub = make_hub()
    with Recorder(hub, journal, limits=SMALL) as recorder:
        for number in range(100):
            hub.publish(b"k", b"%d" % number)
        lost = recorder.statistics().lost["overflow"]
        assert 50 <= lost < 60
        disk.open.set()
        eventually(lambda: recorder.durable_sequence == 100 - lost + 1)
        hub.publish(b"k", b"after")
        statistics = recorder.statistics()
        assert (statistics.received, statistics.lost) == (101, {"overflow": lost})
    records = records_of(journal)
    kinds = [(record.kind, record.lost, record.cause) for record in records]
    assert kinds == [("message", None, None)] * (100 - lost) + [("gap", lost, "overflow"), ("message", None, None)]
    assert records[0].time_ns < records[-2].time_ns < records[-1].time_ns


def test_no_publisher_is_held_longer_than_block_timeout(
    make_hub: MakeHub, connect: Connect, journal: str, disk: Disk
) -> None:
    hub = make_hub(limits=Limits(block_timeout=0.05))
    with Recorder(hub, journal, limits=SMALL) as recorder:
        publisher = connect()
        for n in range(1000):
            publisher.publish(b"k", b"%d" % n)
        publisher.barrier()  # the publisher was let go
        assert recorder.statistics().held == 0
        lost = recorder.statistics().lost["timeout"]
        disk.open.set()
        eventually(lambda: recorder.durable_sequence == 1001 - lost)
    records = records_of(journal)
    assert [record.lost for record in records if record.kind == "gap"] == [lost]
    assert len(records) == 1001 - lost


def test_a_recorder_with_hold_off_loses_messages_and_counts_them(
    make_hub: MakeHub, connect: Connect, journal: str, disk: Disk
) -> None:
    hub = make_hub()
    with Recorder(hub, journal, limits=SMALL, hold=False) as recorder:
        publisher = connect()
        for n in range(500):
            publisher.publish(b"k", b"%d" % n)
        publisher.barrier()
        assert recorder.statistics().lost["overflow"] > 300
        disk.open.set()
    records = records_of(journal)
    assert sum(record.lost or 0 for record in records) + sum(record.kind == "message" for record in records) == 500


def test_messages_lost_between_hubs_become_a_gap_row(hub: Hub, journal: str) -> None:
    with Recorder(hub, journal):
        hub.publish(b"k", b"before")
        hub.tree.pass_notice(Lost("uncertain", 12, 1_750_000_000.5), None)
        hub.publish(b"k", b"after")
    records = records_of(journal)
    assert [(record.payload, record.lost, record.cause) for record in records] == [
        (b"before", None, None),
        (None, 12, "uncertain"),
        (b"after", None, None),
    ]
    assert records[1].time_ns == 1_750_000_000_500_000_000


def test_impossible_counts_of_lost_messages_are_refused_and_large_ones_fit_the_journal(
    hub: Hub, connect: Callable[[], Peer], journal: str
) -> None:
    most = 10**15 - 1
    link = connect()
    link.send(b"CMSG interest/on")
    with Recorder(hub, journal) as recorder:
        for said in (b"%d 1.0" % 10**30, b"9" * 4_300 + b" 1.0", b"-5 1.0", b"1 inf", b"1 nan", b"1 1e300"):
            link.send(b"CMSG notice/lost\0upstream " + said, b"CMSG notice/lost\0upstream " + said)
        link.barrier()
        for _ in range(3):
            hub.tree.pass_notice(Lost("upstream", most, 2.0**33 - 1), None)
        hub.publish(b"k", b"after")
        recorder.flush()
        assert recorder.error is None
    records = records_of(journal)
    assert [record.lost for record in records if record.kind == "gap"] == [most] * 3
    assert records[-1].payload == b"after"
    assert hub.statistics().dropped == {"notice that no link gives": 12}


# -- when the disk fails ------------------------------------------------------------------------------


def test_a_full_disk_ends_the_recording_and_the_hub_goes_on(
    hub: Hub, client: MakeClient, journal: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Exception] = []
    recorder = Recorder(hub, journal, on_stop=told.append)
    publisher, subscriber = client(), client()
    subscriber.subscribe(b"journal/", b"k")
    with file_size(20_000), caplog.at_level(logging.ERROR, "sbuslib"):
        recorder.start()
        for number in range(30):
            publisher.publish(b"k", b"%d" % number + b"x" * 2000)
            eventually(partial(has_come_to, recorder, number + 1))
        eventually(lambda: told)
    assert not recorder.recording
    assert isinstance(recorder.error, OSError)
    assert told == [recorder.error]
    with pytest.raises(JournalError, match="File too large"):
        recorder.stop()
    recorder.close()
    assert "ended, 1 messages are not in it" in caplog.text
    received = [subscriber.receive(10) for _ in range(31)]  # the hub went on
    (notice,) = [message for message in received if message.key == b"journal/stopped"]
    assert b"File too large" in notice.payload
    written = recorder.statistics().written
    assert recorder.statistics().lost == {"stopped": 1}
    assert len(records_of(journal, growing=True)) == written == recorder.durable_sequence < 30
    with recorder:  # the disk has room again
        publisher.publish(b"k", b"more")
        publisher.sync()
    assert [record.sequence for record in records_of(journal)] == list(range(1, written + 2))


def test_publishers_are_let_go_when_the_disk_fails(
    make_hub: MakeHub, connect: Connect, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = threading.Event()

    def sync(descriptor: int) -> None:
        assert failing.wait(60)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", sync)
    hub = make_hub()
    recorder = Recorder(hub, journal, limits=SMALL).start()
    publisher = connect()
    for n in range(200):
        publisher.publish(b"k", b"%d" % n)
    eventually(lambda: recorder.statistics().held == 1)
    failing.set()
    publisher.barrier()
    assert not recorder.recording
    statistics = recorder.statistics()
    assert statistics.written + statistics.lost["stopped"] == statistics.received
    monkeypatch.undo()
    with pytest.raises(JournalError, match="Input/output error"):
        recorder.stop()


def test_stop_gives_up_on_a_disk_that_never_answers(make_hub: MakeHub, journal: str, disk: Disk) -> None:
    hub = make_hub()
    recorder = Recorder(hub, journal, limits=JournalLimits(stop_seconds=0.05)).start()
    hub.publish(b"k", b"v")
    with pytest.raises(JournalError, match=r"took nothing for 0\.05 s"):
        recorder.stop()
    disk.open.set()
    eventually(lambda: not is_recorded(journal))


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
    recorder = Recorder(hub, journal, limits=SMALL, publish_durable=True, on_stop=told.append)
    publisher, inbox = connect(), hub.subscribe(b"journal/stopped")
    with caplog.at_level(logging.ERROR, "sbuslib"):
        recorder.start()
        if broken == "_on_block_timeout":
            hold_until = threading.Event()
            monkeypatch.setattr(os, "fdatasync", lambda descriptor: hold_until.wait(PATIENCE))
            for number in range(200):
                publisher.publish(b"k", b"%d" % number)
            eventually(lambda: raised)
            hold_until.set()
        else:
            publisher.publish(b"k", b"v")
        eventually(lambda: told)
    assert raised == [broken]
    assert not recorder.recording
    assert isinstance(recorder.error, ServiceError)
    assert told == [recorder.error]
    assert b"not foreseen" in inbox.get(PATIENCE).payload
    assert caplog.text.count("Traceback") == 1
    with pytest.raises(JournalError, match="not foreseen"):
        recorder.stop()
    publisher.barrier()  # the hub serves, and holds no publisher
    assert not is_recorded(journal)
    statistics = recorder.statistics()
    assert (statistics.held, statistics.queued) == (0, 0)
    assert len(records_of(journal)) == statistics.written
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


# -- segments -----------------------------------------------------------------------------------------


def test_segments_are_closed_at_a_size_and_the_oldest_deleted(hub: Hub, journal: str) -> None:
    limits = JournalLimits(segment_bytes=10_000)
    with Recorder(hub, journal, limits=limits, keep_bytes=25_000) as recorder:
        for number in range(1, 41):
            hub.publish(b"k", b"%d" % number + b"x" * 2_000)
            recorder.flush()
            eventually(partial(has_come_to, recorder, number))
    segments = list_segments(journal)
    assert segments[0].first_sequence > 1
    assert len(segments) >= 2
    assert sum(one.size for one in segments) < 25_000 + 13_000
    records = records_of(journal)
    assert [record.sequence for record in records] == list(range(segments[0].first_sequence, 41))


def test_retention_by_age_keeps_the_last_segment(hub: Hub, journal: str) -> None:
    for number in range(3):
        with Recorder(hub, journal):
            hub.publish(b"k", b"%d" % number)
    for one in list_segments(journal):
        os.utime(one.path, (1, 1))
    with Recorder(hub, journal, keep_seconds=3_600):
        hub.publish(b"k", b"3")
    assert [record.payload for record in records_of(journal)] == [b"3"]
    with Recorder(hub, journal, keep_seconds=0.000_001):
        pass
    assert len(records_of(journal)) == 1


def test_a_segment_is_closed_at_its_maximum_age(hub: Hub, journal: str) -> None:
    with Recorder(hub, journal, limits=JournalLimits(segment_seconds=0.02, block_seconds=0.001)):
        hub.publish(b"k", b"1")
        eventually(lambda: [end_of(one)[1] for one in list_segments(journal)] == [True])
        hub.publish(b"k", b"2")
        eventually(lambda: len(list_segments(journal)) == 2)
    assert len(records_of(journal)) == 2


# -- other processes, threads and crashes -------------------------------------------------------------


def test_the_child_of_a_fork_does_not_touch_the_journal_of_its_parent(hub: Hub, journal: str) -> None:
    with Recorder(hub, journal) as recorder:
        hub.publish(b"k", b"1")
        recorder.flush()
        eventually(lambda: recorder.durable_sequence == 1)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                recorder.stop()
                status = 0 if not recorder.recording and not os.listdir("/proc/self/fd").count("journal") else 2
                status |= 4 * any(
                    os.readlink(f"/proc/self/fd/{fd}").startswith(journal)
                    for fd in os.listdir("/proc/self/fd")
                    if os.path.exists(f"/proc/self/fd/{fd}")
                )
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        hub.publish(b"k", b"2")
    assert [record.payload for record in records_of(journal)] == [b"1", b"2"]


@pytest.mark.parametrize("torn", [0, 1, 23, 24, 100])
def test_start_repairs_the_segment_that_a_crash_left(
    hub: Hub, journal: str, torn: int, caplog: pytest.LogCaptureFixture
) -> None:
    with Recorder(hub, journal):
        hub.publish(b"k", b"1")
    (one,) = list_segments(journal)
    data = Path(one.path).read_bytes()
    Path(one.path).write_bytes(data[:-32] + data[112 : 112 + torn])  # no end mark, and a part of another block
    with caplog.at_level(logging.WARNING, "sbuslib"), Recorder(hub, journal) as recorder:
        assert recorder.durable_sequence == 1
        hub.publish(b"k", b"2")
    assert (f"cut {torn} bytes at {len(data) - 32}" in caplog.text) is (torn > 0)
    assert [record.payload for record in records_of(journal)] == [b"1", b"2"]
    assert Path(one.path).read_bytes() == data


@pytest.mark.parametrize("size", [0, 50, 112])
def test_start_after_a_crash_that_came_right_after_a_segment_was_made(hub: Hub, journal: str, size: int) -> None:
    recorder = Recorder(hub, journal)
    for _ in range(2):
        with recorder:
            hub.publish(b"k", b"v")
        identity = recorder.journal
    last = list_segments(journal)[-1]
    Path(last.path).write_bytes(Path(last.path).read_bytes()[:size])
    with recorder:
        assert recorder.journal == identity
        hub.publish(b"k", b"again")
    assert [record.payload for record in records_of(journal)] == [b"v", b"again"]


def test_start_leaves_damage_before_the_end_as_it_is(hub: Hub, journal: str, caplog: pytest.LogCaptureFixture) -> None:
    with Recorder(hub, journal) as recorder:
        for number in range(1, 4):
            hub.publish(b"k", b"%d" % number)
            recorder.flush()
            eventually(partial(has_come_to, recorder, number))
    (one,) = list_segments(journal)
    data = bytearray(Path(one.path).read_bytes()[:-32])
    data[130] ^= 1
    Path(one.path).write_bytes(data)
    with caplog.at_level(logging.WARNING, "sbuslib"), Recorder(hub, journal) as recorder:
        assert recorder.durable_sequence == 3
    assert "damaged bytes at 112" in caplog.text
    assert Path(one.path).read_bytes()[:-32] == data


def test_start_is_refused_where_the_header_of_the_last_segment_is_damaged(hub: Hub, journal: str) -> None:
    with Recorder(hub, journal):
        hub.publish(b"k", b"v")
    (one,) = list_segments(journal)
    data = bytearray(Path(one.path).read_bytes())
    data[20] ^= 1
    Path(one.path).write_bytes(data)
    with pytest.raises(JournalError, match=one.path):
        Recorder(hub, journal).start()
    assert not is_recorded(journal)
    assert Path(one.path).read_bytes() == data
