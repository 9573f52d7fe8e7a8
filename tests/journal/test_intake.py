"""The recorder's receiver: how it holds publishers back, and how it loses and counts messages."""

from __future__ import annotations

import os
import threading

import gevent
import pytest
from accounting import acting_as
from journal.disks import Disk
from journal.format.journals import records_of
from support import Connect, MakeHub, eventually

from sbuslib import Hub, Limits
from sbuslib.errors import JournalError
from sbuslib.journal.limits import JournalLimits
from sbuslib.journal.recorder import Recorder
from sbuslib.wire.control import Away, Lost

SMALL = JournalLimits(block_records=4, queued_records=40)


@pytest.mark.promise("journal.md", "Nothing is lost silently")
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
        assert recorder.statistics().waiting <= 2 * 64  # the turn that filled the queue, and the one that found it full
        # Another publisher is read until it publishes into the full queue itself.
        connect().publish(b"other", b"one more")
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


@pytest.mark.promise("journal.md", "Nothing is lost silently")
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


@pytest.mark.parametrize("bound", [{"queued_records": 40}, {"queued_bytes": 40_000}])
def test_a_hub_that_stops_queues_no_more_than_twice_the_bound_of_what_held_publishers_sent(
    make_hub: MakeHub, connect: Connect, journal: str, disk: Disk, bound: dict[str, int]
) -> None:
    """It reads all that they have sent. A publisher that is held otherwise sends only what was read already."""
    hub = make_hub()
    with Recorder(hub, journal, limits=JournalLimits(block_records=4, **bound)) as recorder:
        publisher = connect()
        for n in range(300):
            publisher.publish(b"k", b"%d" % n + bytes(1_000))
        eventually(lambda: recorder.statistics().held == 1)
        stopping = gevent.spawn(hub.stop)
        eventually(lambda: recorder.statistics().received == 300)
        waiting = recorder.statistics().waiting
        assert waiting < 2 * 40 + 64  # with the turn that found it so
        disk.open.set()
        stopping.get()
    records = records_of(journal)
    assert [record.kind for record in records] == ["message"] * waiting + ["gap"]
    assert (records[-1].lost, records[-1].cause) == (300 - waiting, "overflow")


def test_messages_lost_between_hubs_become_a_gap_row(hub: Hub, journal: str) -> None:
    with Recorder(hub, journal):
        hub.publish(b"k", b"before")
        hub.tree.pass_notice(Lost("uncertain", 12, 1_750_000_000.5), None)
        hub.publish(b"k", b"after")
        hub.tree.pass_notice(Away(1_750_000_001.0, 1_750_000_002.0), None)
    records = records_of(journal)
    assert [(record.payload, record.lost, record.cause) for record in records] == [
        (b"before", None, None),
        (None, 12, "uncertain"),
        (b"after", None, None),
        (None, None, "away"),
    ]
    assert records[3].time_ns == 1_750_000_001_000_000_000
    assert records[1].time_ns == 1_750_000_000_500_000_000


def test_impossible_counts_of_lost_messages_are_refused_and_large_ones_fit_the_journal(
    hub: Hub, connect: Connect, journal: str
) -> None:
    most = 10**15 - 1
    link = connect()
    link.send(b"CMSG interest/on")
    with Recorder(hub, journal) as recorder:
        for said in (b"%d 1.0" % 10**30, b"9" * 4_300 + b" 1.0", b"-5 1.0", b"1 inf", b"1 nan", b"1 1e300"):
            link.send(*[b"CMSG interest/lost\0hub upstream 0 0 " + said] * 2)
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
    assert not hub.clients.inboxes
    monkeypatch.undo()
    with pytest.raises(JournalError, match="Input/output error"):
        recorder.stop()


def test_a_recorder_is_in_the_statistics_of_the_hub(hub: Hub, journal: str, disk: Disk) -> None:
    with Recorder(hub, journal):
        hub.publish(b"k", b"v")
        (mine,) = hub.statistics().per_client
        assert (mine.routed, mine.waiting, mine.delivered, mine.soft, mine.hard) == (1, 1, 0, "queue", "block")
        disk.open.set()
    statistics = hub.statistics()
    assert (statistics.routed, statistics.delivered, statistics.waiting, statistics.lost) == (1, 1, 0, {})
