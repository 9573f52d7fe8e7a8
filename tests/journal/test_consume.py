"""Named readers of a journal: they go on where they stopped, follow the recorder, and tell of rows that are missing."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import gevent
import pytest
from journal.format.journals import EXAMPLE, SALT, block, gap, message, records_of, segment_of, write
from support import PATIENCE, ROOT, TESTS

from sbuslib import Hub
from sbuslib.errors import JournalError, JournalInUseError, StateError, UsageError
from sbuslib.journal import consume as consuming
from sbuslib.journal.consume import consume
from sbuslib.journal.format.directory import DirectoryLock, list_segments
from sbuslib.journal.format.encoding import encode_end
from sbuslib.journal.format.layout import Record, segment_name
from sbuslib.journal.format.recovery import NUMBERS_LEFT_OUT
from sbuslib.journal.limits import JournalLimits
from sbuslib.journal.read.sealing import seal
from sbuslib.journal.recorder import Recorder
from sbuslib.journal.writer import Durability

ROWS = [row for blocks in EXAMPLE for rows in blocks for row in rows]
OTHER_JOURNAL = b"fedcba98fedcba98"


def told(rows: list[Record]) -> list[tuple[int, object]]:
    """Each row's number, with its payload, or the cause and the count of a gap."""
    return [(row.sequence, row.payload if row.kind == "message" else (row.cause, row.lost)) for row in rows]


def rest(name: str, directory: str, *patterns: bytes) -> list[Record]:
    """What a consumer is handed to the end of the journal; it acknowledges all."""
    with consume(name, patterns or [b""], directory, follow=False) as consumer:
        rows = list(consumer)
        consumer.acknowledge()
        return rows


@pytest.mark.promise("journal.md", "What was handed over and not acknowledged comes again")
def test_a_consumer_gets_each_row_once_if_it_acknowledges(journal: str) -> None:
    write(journal, *EXAMPLE)
    with consume("a", [b""], journal) as consumer:
        assert [*islice(consumer, 4)] == ROWS[:4]
        consumer.acknowledge()
        assert [*islice(consumer, 2)] == ROWS[4:6]
    assert rest("a", journal) == ROWS[4:], "what was not acknowledged comes again"
    assert rest("a", journal) == []
    assert rest("b", journal) == ROWS, "another consumer has its own position"


def test_patterns_choose_messages_and_gaps_always_come(journal: str) -> None:
    write(journal, *EXAMPLE)
    assert rest("a", journal, b"room/*/temp") == [ROWS[0], *ROWS[2:8]]
    assert rest("b", journal, b"nobody/") == ROWS[4:7]


def test_rows_that_nobody_wanted_are_not_read_again(journal: str) -> None:
    write(journal, *EXAMPLE)
    with consume("a", [b"log/"], journal) as consumer:
        assert next(consumer) == ROWS[1]
        consumer.acknowledge()
        assert [next(consumer) for _ in range(3)] == ROWS[4:7]
        consumer.acknowledge()
        with pytest.raises(TimeoutError):
            consumer.get(timeout=0)
    os.unlink(os.path.join(journal, segment_name(1)))
    os.unlink(os.path.join(journal, segment_name(4)))
    write(journal, [[message(10, b"log/b", b"z")]])
    assert rest("a", journal, b"log/") == [message(10, b"log/b", b"z")], "no gap is told of rows that it had passed"


@pytest.mark.parametrize("durability", ["block", "none"])
def test_a_consumer_follows_a_recorder_over_segments(
    folder: str, journal: str, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "_PAUSE", 0.001)
    limits = JournalLimits(block_records=8, block_seconds=0.001, segment_bytes=4_000)
    os.mkdir(journal)
    got = []
    with Hub(folder + "/bus") as hub, consume("a", [b"run/"], journal, wait=gevent.sleep) as consumer:
        with Recorder(hub, journal, durability=durability, limits=limits):
            for number in range(0, 200, 10):
                for one in range(number, number + 10):
                    hub.publish(b"run/%d" % (one % 3), b"%d" % one)
                    hub.publish(b"other", b"")
                got += [consumer.get(PATIENCE) for _ in range(10)]
            with pytest.raises(TimeoutError, match="no row came within 0 s"):
                consumer.get(timeout=0)
        assert len(list_segments(journal)) > 2
        with Recorder(hub, journal):
            hub.publish(b"run/9", b"of the next recorder")
            got += [consumer.get(PATIENCE), consumer.get(PATIENCE)]
    assert [row.payload for row in got] == [*(b"%d" % number for number in range(200)), None, b"of the next recorder"]
    assert got[-2].cause == "outage"
    assert [row.sequence for row in got] == sorted({row.sequence for row in got})


def test_a_row_of_a_recorder_at_work_is_handed_over_once_it_is_durable(journal: str) -> None:
    (path,) = write(journal, EXAMPLE[0])
    rows = [[row] for row in ROWS[:3]]
    Path(path).write_bytes(segment_of(rows, ended=False))
    lock = DirectoryLock(journal)
    with consume("a", [b""], journal) as consumer:
        lock.write_note(b"%020d" % 2)
        assert [next(consumer), next(consumer)] == ROWS[:2]
        with pytest.raises(TimeoutError):
            consumer.get(timeout=0)
        lock.write_note(b"%020d" % 3)
        assert consumer.get(PATIENCE) == ROWS[2]
        Path(path).write_bytes(segment_of([*rows, [message(4, b"k", b"")]], ended=False))
        with pytest.raises(TimeoutError):
            consumer.get(timeout=0)
        lock.close()
        assert consumer.get(PATIENCE).sequence == 4, "its recorder was killed, and had written it"


def test_numbers_that_were_left_out_after_a_crash_are_no_gap(journal: str) -> None:
    (path,) = write(journal, EXAMPLE[0])
    after = NUMBERS_LEFT_OUT + 4
    ended = segment_of([ROWS[:3]], ended=False) + encode_end(SALT, 4, after)
    Path(path).write_bytes(ended)
    write(journal, [[message(after, b"k", b"new")]])
    assert told(rest("a", journal)) == [*told(ROWS[:3]), (after, b"new")]
    with consume("b", [b""], journal, follow=False) as consumer:
        next(consumer)
        consumer.acknowledge()
    os.unlink(path)
    assert told(rest("b", journal)) == [(after - 1, ("deleted", None)), (after, b"new")]
    assert told(rest("new", journal)) == [(after, b"new")], "a new consumer has lost nothing"


def test_rows_whose_segments_were_deleted_once_they_were_sealed_are_read_all_the_same(journal: str) -> None:
    paths = write(journal, *EXAMPLE, [[message(10, b"k", b"ten")]])
    seal(journal)
    with consume("a", [b""], journal, follow=False) as consumer:
        assert [next(consumer) for _ in range(2)] == ROWS[:2]
        consumer.acknowledge()
    assert [one.path for one in list_segments(journal)] == paths[2:]
    assert told(rest("a", journal)) == [*told(ROWS[2:]), (10, b"ten")]
    assert told(rest("a", journal)) == []
    assert rest("new", journal, b"room/1/") == [ROWS[0], ROWS[2], *ROWS[4:7]], "also by a new consumer"
    with consume("b", [b"k"], journal, follow=False) as consumer:
        assert consumer.get() == ROWS[4]
        consumer.acknowledge()
    shutil.rmtree(os.path.join(journal, "sealed"))
    assert told(rest("b", journal)) == [(9, ("deleted", 4)), (10, b"ten")]


def test_another_journal_in_the_place_of_the_one_that_was_read_is_told(folder: str, journal: str) -> None:
    write(journal, *EXAMPLE)
    with consume("a", [b""], journal, positions=folder) as consumer:
        list(islice(consumer, 9))
        consumer.acknowledge()
        before = consumer.journal
        shutil.rmtree(journal)
        other = segment_of([[message(3, b"k", b"three")], [message(4, b"k", b"four")]], journal=OTHER_JOURNAL.decode())
        os.mkdir(journal)
        Path(journal, segment_name(3)).write_bytes(other)
        assert told([consumer.get(PATIENCE), consumer.get(PATIENCE)]) == [(0, ("replaced", None)), (2, ("deleted", 2))]
        consumer.acknowledge()
        assert told([consumer.get(PATIENCE)]) == [(3, b"three")]
        assert consumer.journal == OTHER_JOURNAL.decode() != before
    with consume("a", [b""], journal, positions=folder) as consumer:
        assert told([next(consumer), next(consumer)]) == [(3, b"three"), (4, b"four")]


def test_an_older_copy_of_the_journal_is_an_error(journal: str) -> None:
    paths = write(journal, *EXAMPLE)
    rest("a", journal)
    os.unlink(paths[1])
    with pytest.raises(JournalError, match="ends at row 3, but a has acknowledged row 9: an older copy"):
        rest("a", journal)


@pytest.mark.promise("journal.md", "A name has one consumer at a time")
def test_a_name_has_one_consumer_at_a_time(journal: str) -> None:
    write(journal, *EXAMPLE)
    with consume("a", [b""], journal) as consumer:
        next(consumer)
        with pytest.raises(JournalInUseError, match="another consumer of this name is at work"):
            consume("a", [b""], journal)
        consumer.acknowledge()
    assert rest("a", journal) == ROWS[1:]


def test_positions_may_be_kept_elsewhere(folder: str, journal: str) -> None:
    write(journal, *EXAMPLE)
    before = sorted(os.listdir(journal))
    with consume("a.b", [b""], journal, positions=folder) as consumer:
        next(consumer)
        consumer.acknowledge()
    assert sorted(os.listdir(journal)) == before
    position = Path(folder, "consumer-a.b.position")
    assert position.read_text().splitlines()[1:] == ["0123456789abcdef 00000000000000000001"]
    assert position.stat().st_mode & 0o777 == 0o600


def test_positions_that_cannot_be_read_are_an_error(folder: str, journal: str) -> None:
    write(journal, *EXAMPLE)
    Path(folder, "consumer-a.position").write_bytes(b"4711\nno position\n")
    with pytest.raises(JournalError, match="this is no position of a consumer"):
        consume("a", [b""], journal, positions=folder)
    with pytest.raises(FileNotFoundError):
        consume("a", [b""], journal, positions=folder + "/nowhere")
    with pytest.raises(JournalError, match="no such directory"):
        consume("a", [b""], folder + "/nowhere")


@pytest.mark.parametrize("name", ["", ".", "a/b", "../a", "a b", "ä", "a" * 101])
def test_a_name_that_is_no_file_name_is_refused(journal: str, name: str) -> None:
    with pytest.raises(UsageError, match="the name of a consumer"):
        consume(name, [b""], journal)


def test_closing_ends_the_iteration(journal: str) -> None:
    write(journal, *EXAMPLE)
    consumer = consume("a", [b""], journal, wait=lambda seconds: consumer.close())
    assert [row.sequence for row in islice(consumer, 9)] == list(range(1, 10))
    with pytest.raises(StateError, match="closed"):
        next(consumer)
    assert list(consumer) == []
    with pytest.raises(StateError, match="closed"):
        consumer.acknowledge()
    consumer.close()


def test_a_timeout_of_gevent_leaves_the_consumer_usable(journal: str) -> None:
    write(journal, [[message(1, b"k", b"1")]])
    with consume("a", [b""], journal, wait=gevent.sleep) as consumer:
        next(consumer)
        with pytest.raises(gevent.Timeout), gevent.Timeout(0.01):
            next(consumer)
        write(journal, [[message(2, b"k", b"2")]])
        assert consumer.get(PATIENCE).payload == b"2"


def test_a_block_that_is_being_written_is_not_handed_over(journal: str) -> None:
    (path,) = write(journal, [[message(1, b"k", b"1")]])
    whole = Path(path).read_bytes()[: -len(encode_end(SALT, 2))]
    more = bytes(block([gap(2, "overflow", 3)]))
    with consume("a", [b""], journal) as consumer:
        for size in range(0, len(more), 8):
            Path(path).write_bytes(whole + more[:size])
            if size == 0:
                assert next(consumer).payload == b"1"
            with pytest.raises(TimeoutError):
                consumer.get(timeout=0)
        Path(path).write_bytes(whole + more)
        assert told([consumer.get(PATIENCE)]) == [(2, ("overflow", 3))]
    assert len(records_of(journal)) == 3


# -- kills, with real processes ---------------------------------------------------------------------


def consume_and_kill(journal: str, seconds: float, until: int | None = None) -> list[bytes]:
    """What a consumer told that is killed so long after its start, or when it has told the row ``until``."""
    program = str(Path(__file__).parent / "consumed.py")
    with subprocess.Popen(
        [sys.executable, program, journal], env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        lines: list[bytes] = []
        time.sleep(seconds)
        while until is not None and not (lines and lines[-1].startswith(b"%d " % until)):
            lines.append(process.stdout.readline())
            assert lines[-1], "the consumer ended by itself"
        process.kill()
        return lines + process.stdout.read().splitlines(keepends=True)


def test_a_consumer_and_recorders_that_are_killed_lose_no_row(folder: str) -> None:
    moments = random.Random()
    recorders = [f"{moments.random() * 0.05:.6f}" for _ in range(4)]
    killed = str(Path(__file__).parent / "killed.py")
    lives: list[list[bytes]] = []
    with subprocess.Popen(
        [sys.executable, killed, folder, *recorders],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{TESTS}"},
        stdout=subprocess.DEVNULL,
    ) as recording:
        while recording.poll() is None:
            lives.append(consume_and_kill(folder, moments.random() * 0.1))
    with Hub(folder + "/bus") as hub, Recorder(hub, folder):
        hub.publish(b"run/end", b"end")
    rows = [row for row in records_of(folder) if row.key is None or row.key.startswith(b"run/")]
    expected = [b"%d %b\n" % (row.sequence, row.payload.partition(b" ")[0] if row.payload else b"gap") for row in rows]
    lives.append(consume_and_kill(folder, 0, rows[-1].sequence))
    first = last = 0  # the rows with which a life may begin: after one that was, or may have been, acknowledged
    for told_by_one in filter(None, lives):
        if told_by_one[0] == b"acknowledged\n":
            raise AssertionError("a row that nobody told was acknowledged")
        at = expected.index(told_by_one[0])
        assert first <= at <= last, "no acknowledged row comes again, and none is left out"
        first = at
        for line in told_by_one:
            if line == b"acknowledged\n":
                first = at
            else:
                assert line == expected[at], "every row comes in its order"
                at += 1
        last = at
    assert last == len(expected)
