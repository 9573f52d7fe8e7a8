"""The writer: what is durable, full disks, and retention."""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path

import pytest
from journal.disks import Disk, file_size, has_come_to
from journal.format.journals import flip, message, records_of, write
from support import MakeClient, MakeHub, eventually

from sbuslib import Hub
from sbuslib.core.messages import Batched, Copied
from sbuslib.errors import CorruptJournalError, JournalError
from sbuslib.journal import writer
from sbuslib.journal.format.decoding import end_mark
from sbuslib.journal.format.directory import Segment, is_recorded, list_segments, read_header
from sbuslib.journal.limits import JournalLimits
from sbuslib.journal.read.blocks import blocks, everything
from sbuslib.journal.recorder import Recorder
from sbuslib.journal.summary import summarize
from sbuslib.wire.batches import coalesce
from sbuslib.wire.packets import encode_message


@pytest.mark.promise("journal.md", "Secrets are never recorded")
def test_the_writer_leaves_out_secret_messages_too(hub: Hub, journal: str) -> None:
    with Recorder(hub, journal) as recorder:
        intake, writer = recorder._intake, hub.context.running.writer
        assert intake is not None
        for key in (b"!/cred/1/2/3/x", b"a/!/cred/1/2/3/x", b"a!/b"):
            intake.deliver(hub._here.me, Copied(writer, [encode_message(key, b"v")]))
        several = [(b"k", b"1"), (b"!/cred/1/2/3/x", b"2"), (b"k", b"3"), (b"!/cred/1/2/3/x", b"4"), (b"l", b"5")]
        for pairs in (several, several[1::2]):
            batch = coalesce([encode_message(key, payload) for key, payload in pairs])
            assert batch is not None
            intake.deliver(hub._here.me, Batched(writer, batch))
    found = [(record.key, record.payload) for record in records_of(journal)]
    assert found == [(b"a!/b", b"v"), *several[::2]]


def test_a_row_is_durable_once_fdatasync_has_returned(hub: Hub, journal: str, disk: Disk) -> None:
    with Recorder(hub, journal) as recorder:
        hub.publish(b"k", b"v")
        eventually(lambda: disk.syncs == 1)
        assert (recorder.written_sequence, recorder.durable_sequence) == (1, 0)
        disk.open.set()
        eventually(lambda: recorder.durable_sequence == 1)
    assert [record.key for record in records_of(journal)] == [b"k"]


def test_durability_none_never_syncs_and_interval_syncs_by_time(
    hub: Hub, journal: str, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[str] = []
    monkeypatch.setattr(writer, "sync_directory", folders.append)
    with Recorder(hub, journal, durability="none") as recorder:
        hub.publish(b"k", b"v")
        eventually(lambda: recorder.durable_sequence == 1)
        assert (disk.syncs, folders) == (0, [])
    disk.open.set()
    limits = JournalLimits(sync_seconds=0.02)
    with Recorder(hub, journal, durability="interval", limits=limits) as recorder:
        hub.publish(b"k", b"v")
        eventually(lambda: recorder.durable_sequence == 3)
        assert disk.syncs <= 2  # the row of the restart may have had one to itself
    assert folders == [journal], "the name of the new segment is durable"
    assert [one.cause for one in records_of(journal)] == [None, "outage", None]


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
    received = [subscriber.receive(timeout=10) for _ in range(31)]  # the hub went on
    (notice,) = [message for message in received if message.key == b"journal/stopped"]
    assert b"File too large" in notice.payload
    written = recorder.statistics().written
    assert recorder.statistics().lost == {"stopped": 1}
    assert len(records_of(journal)[:written]) == written == recorder.durable_sequence < 30
    with recorder:  # the disk has room again
        publisher.publish(b"k", b"more")
        publisher.sync()
    *before, cut, outage, more = records_of(journal)
    assert ([one.sequence for one in before], more.sequence) == ([*range(1, written + 1)], written + 3)
    assert (cut.cause, cut.lost, outage.cause, outage.lost, more.payload) == (("cut", None, "outage", None, b"more"))


def test_what_was_whole_when_the_disk_became_full_is_durable_and_nothing_follows_it(hub: Hub, journal: str) -> None:
    recorder = Recorder(hub, journal, durability="interval", limits=JournalLimits(sync_seconds=3_600))

    def is_written(number: int) -> bool:
        return recorder.written_sequence == number or not recorder.recording

    with file_size(20_000):
        recorder.start()
        for number in range(1, 15):  # each is a block of its own
            hub.publish(b"k", b"x" * 2_000)
            recorder.flush()
            eventually(partial(is_written, number))
    recorder.close()
    assert 0 < recorder.written_sequence == recorder.durable_sequence
    (segment,) = list_segments(journal)
    ends = [found.block.end for found in blocks(everything(journal)) if found.block.position]
    assert segment.size == ends[-1]


def test_a_journal_that_nobody_can_go_on_with_is_an_error_and_stays_free(hub: Hub, journal: str) -> None:
    (path,) = write(journal, [[message(1, b"k", b"v")]])
    flip(Path(path), 20)
    for _ in range(2):
        with pytest.raises(CorruptJournalError, match=path):
            Recorder(hub, journal).start()
    assert not is_recorded(journal)


def test_stop_gives_up_on_a_disk_that_never_answers(make_hub: MakeHub, journal: str, disk: Disk) -> None:
    hub = make_hub()
    recorder = Recorder(hub, journal, limits=JournalLimits(stop_seconds=0.05)).start()
    hub.publish(b"k", b"v")
    with pytest.raises(JournalError, match=r"took nothing for 0\.05 s"):
        recorder.stop()
    disk.open.set()
    eventually(lambda: not is_recorded(journal))


def _end_of(segment: Segment) -> int:
    """The number of the next row, by the mark at the end."""
    data = Path(segment.path).read_bytes()
    mark = end_mark(lambda at, size: data[at : at + size], len(data), read_header(segment.path).salt)
    assert mark is not None
    return mark.next_sequence


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
    assert [*map(_end_of, segments)] == [*(one.first_sequence for one in segments[1:]), 41]


def test_retention_by_age_keeps_the_last_segment(hub: Hub, journal: str) -> None:
    for number in range(3):
        with Recorder(hub, journal):
            hub.publish(b"k", b"%d" % number)
    for one in list_segments(journal):
        os.utime(one.path, (1, 1))
    with Recorder(hub, journal, keep_seconds=3_600):
        hub.publish(b"k", b"3")
    assert [record.payload for record in records_of(journal)] == [None, b"3"]
    with Recorder(hub, journal, keep_seconds=0.000_001):
        pass
    assert [record.cause for record in records_of(journal)] == ["outage"]


def states(journal: str) -> set[str]:
    return {file.state for found in summarize(journal) for file in found.files}


def test_a_segment_ends_at_midnight(hub: Hub, journal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "time", lambda: 86_400 * 3 - 0.05)
    with Recorder(hub, journal, limits=JournalLimits(block_seconds=0.001)):
        hub.publish(b"k", b"1")
        eventually(lambda: states(journal) == {"ended"})


def test_a_journal_stays_where_it_is_when_the_process_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    written = writer.Writer("journal", hub="hub", separator=b"/")
    monkeypatch.chdir("elsewhere")
    written.open()
    written.end()
    assert written.join(60)
    assert written.directory == str(tmp_path / "journal")
    assert [*(tmp_path / "elsewhere").iterdir()] == []
    assert (tmp_path / "journal" / "recorder.lock").exists()
