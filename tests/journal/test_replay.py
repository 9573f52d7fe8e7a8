"""Playing back: which messages, in which order, and when."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal.format.journals import EXAMPLE, SALT, block, flip, gap, message, segment_of, write

from sbuslib.errors import CorruptJournalError, UsageError
from sbuslib.journal.format.decoding import decode_block
from sbuslib.journal.format.layout import Block, Record, Skipped, segment_name
from sbuslib.journal.read.selection import Selection
from sbuslib.journal.replay import Replayed, Stretch, from_journal, replay
from sbuslib.matcher import matches
from sbuslib.wire.columns import Columns

SECOND = 1_000_000_000


class Stage:
    """A publisher with a clock that moves only while replay waits. It notes the time of each message."""

    def __init__(self, slow: float = 0.0) -> None:
        self.now = 100.0
        self.slow = slow
        self.published: list[tuple[float, bytes]] = []

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds

    def publish_many(self, columns: Columns, /) -> None:
        self.published += [(round(self.now - 100.0, 6), packet) for packet in columns.packets()]
        self.now += self.slow


def at(sequence: int, seconds: float, key: bytes = b"k") -> Record:
    return message(sequence, key, b"%d" % sequence)._replace(time_ns=int(seconds * SECOND))


def play(runs: Sequence[Stretch], speed: float | None = 1.0, slow: float = 0.0) -> list[tuple[float, bytes]]:
    stage = Stage(slow)
    replay(runs, stage, speed=speed, clock=stage.clock, wait=stage.wait)
    return stage.published


def test_messages_keep_their_distance_from_the_first(journal: str) -> None:
    write(journal, [[at(1, 50), at(2, 50.25), at(3, 50.25)], [at(4, 53), at(5, 60)]])
    runs = list(from_journal(journal))
    expected = [(0.0, 1), (0.25, 2), (0.25, 3), (3.0, 4), (10.0, 5)]
    for speed in (1.0, 2.0, 0.5):
        assert play(runs, speed) == [(time / speed, b"MSG k\0%d" % number) for time, number in expected]
    assert play(runs, None) == [(0.0, b"MSG k\0%d" % number) for _, number in expected]


def test_a_late_message_is_published_at_once_and_delays_no_other(journal: str) -> None:
    write(journal, [[at(1, 0), at(2, 0.1), at(3, 0.2), at(4, 5)]])
    assert [time for time, _ in play(list(from_journal(journal)), slow=1.0)] == [0.0, 1.0, 1.0, 5.0]


def test_a_clock_that_was_set_back_counts_as_stopped(journal: str) -> None:
    write(journal, [[at(1, 50), at(2, 51), at(3, 20)], [at(4, 20.5), at(5, 52)]])
    assert [time for time, _ in play(list(from_journal(journal)))] == [0.0, 1.0, 1.0, 1.0, 2.0]


@pytest.mark.parametrize("speed", [0, -1, float("inf"), float("nan")])
def test_wrong_speeds_are_refused(speed: float) -> None:
    with pytest.raises(UsageError, match="speed"):
        replay([], Stage(), speed=speed)


def test_damage_is_an_error_or_skipped(journal: str) -> None:
    _, path = write(journal, *EXAMPLE)
    flip(path, 200)
    with pytest.raises(CorruptJournalError, match=path):
        list(from_journal(journal))
    skipped: list[Skipped] = []
    runs = from_journal(journal, on_corrupt="skip", on_skip=lambda path, one: skipped.append(one))
    done = replay(runs, Stage(), speed=None)
    assert done == Replayed(messages=5, lost=8)
    assert [one.rows for one in skipped] == [1]


KEYS = st.sampled_from([b"a/1", b"a/2", b"b", b"", b"!/cred/1/2/3/x", b"a/!/b", b"no\0key"])
ROWS = st.lists(st.tuples(KEYS, st.binary(max_size=9), st.integers(0, 30)) | st.integers(0, 5), min_size=1, max_size=60)
BOUND = st.none() | st.integers(0, 31).map(lambda seconds: seconds * SECOND)


@settings(max_examples=40)
@given(ROWS, st.lists(st.integers(1, 59)), st.sampled_from([(b"",), (b"a/",), (b"b", b"a/2")]), BOUND, BOUND)
def test_played_back_messages_equal_the_recorded_ones(
    rows: list[tuple[bytes, bytes, int] | int],
    cuts: list[int],
    patterns: tuple[bytes, ...],
    start: int | None,
    end: int | None,
) -> None:
    """For any selection, any division into blocks and any pace."""
    records: list[Record] = []
    for number, row in enumerate(rows, 1):
        if isinstance(row, int):
            records.append(gap(number, "overflow", row)._replace(time_ns=15 * SECOND))
        else:
            records.append(message(number, row[0], row[1])._replace(time_ns=row[2] * SECOND))
    blocks: list[list[Record]] = []
    for record in records:
        if not blocks or record.sequence in cuts or record.kind != blocks[-1][-1].kind:
            blocks.append([])
        blocks[-1].append(record)
    within = [one for one in records if (start is None or one.time_ns >= start) and (end is None or one.time_ns < end)]
    chosen = [
        b"MSG %b\0%b" % (one.key, one.payload or b"")
        for one in within
        if one.key in (b"a/1", b"a/2", b"b", b"") and any(matches(pattern, one.key) for pattern in patterns)
    ]
    lost = sum(one.lost or 0 for one in within)
    with TemporaryDirectory() as journal:
        write(journal, blocks)
        for speed in (None, 1.0):
            stage = Stage()
            runs = from_journal(journal, Selection(start, end, patterns=patterns))
            done = replay(runs, stage, speed=speed, clock=stage.clock, wait=stage.wait)
            assert [packet for _, packet in stage.published] == chosen
            assert done == Replayed(len(chosen), lost)


@pytest.mark.parametrize("speed", [None, 1.0])
def test_messages_before_damage_are_played_back(journal: str, speed: float | None) -> None:
    rows = [message(number, b"k", b"%d" % number)._replace(time_ns=number * SECOND) for number in range(1, 1_001)]
    (path,) = write(journal, [rows[start : start + 10] for start in range(0, 1_000, 10)])
    flip(path, -100)
    stage = Stage()
    with pytest.raises(CorruptJournalError, match=path):
        replay(from_journal(journal), stage, speed=speed, clock=stage.clock, wait=stage.wait)
    assert [packet for _, packet in stage.published] == [b"MSG k\0%d" % number for number in range(1, 991)]


def test_an_error_of_the_publisher_ends_it_at_once(journal: str) -> None:
    write(journal, [[message(number, b"k", bytes(100)) for number in range(1, 3_001)]] * 1)
    calls = 0

    class Broken:
        def publish_many(self, columns: Columns, /) -> None:
            nonlocal calls
            calls += 1
            raise TimeoutError

    with pytest.raises(TimeoutError):
        replay(from_journal(journal), Broken(), speed=None)
    assert calls == 1


def test_a_block_whose_columns_do_not_agree_is_an_error(journal: str) -> None:
    """The CRC is right, but no recorder writes these columns."""
    good = [message(1, b"a", b"one"), message(2, b"b", b"two")]
    sound = block(good)
    read = decode_block(sound, 0, SALT)
    assert isinstance(read, Block)
    for column in (read.keys, read.payload_offsets):
        assert isinstance(column, memoryview)
        for wrong in (-1, 7, 256):
            spoilt = bytearray(sound)
            at = spoilt.index(bytes(column))
            spoilt[at + 4 : at + 8] = wrong.to_bytes(4, "little", signed=True)
            spoilt[8:12] = bytes(4)
            spoilt[8:12] = crc32(spoilt, SALT).to_bytes(4, "little")
            (path,) = write(journal, [good])
            data = Path(path).read_bytes()
            Path(path).write_bytes(data.replace(bytes(sound), bytes(spoilt)))
            stage = Stage()
            with pytest.raises(CorruptJournalError, match="do not agree"):
                replay(from_journal(journal), stage, speed=None)
            assert stage.published == []


def test_a_lake_is_played_back_in_order(tmp_path: Path) -> None:
    from sbuslib.journal.read.sealing import ingest

    day = 86_400
    lost = gap(4, "overflow", 5)._replace(time_ns=(2 * day + 1) * SECOND)
    one = [at(1, day + 1, b"k"), at(2, day + 2, b"k"), at(3, 2 * day, b"k")]
    write(f"{tmp_path}/one", [[one[0]._replace(payload=b"a")], [one[1]._replace(payload=b"b")]])
    write(f"{tmp_path}/one", [[one[2]._replace(payload=b"d")], [lost]])
    os.makedirs(f"{tmp_path}/other")
    other = segment_of([[at(1, day + 2, b"k")._replace(payload=b"c")]], journal="1123456789abcdef")
    Path(f"{tmp_path}/other", segment_name(1)).write_bytes(other)
    ingest([f"{tmp_path}/one", f"{tmp_path}/other"], f"{tmp_path}/lake")
    stage = Stage()
    done = replay(from_journal(f"{tmp_path}/lake"), stage, clock=stage.clock, wait=stage.wait)
    assert done == Replayed(messages=4, lost=5)
    assert stage.published == [
        (time, b"MSG k\0" + payload)
        for time, payload in zip((0.0, 1.0, 1.0, float(day - 1)), (b"a", b"b", b"c", b"d"), strict=True)
    ]
    assert replay(from_journal(f"{tmp_path}/lake", Selection(patterns=(b"x",))), Stage(), speed=None) == Replayed(
        messages=0, lost=5
    )
    bounded = Selection((day + 2) * SECOND, 2 * day * SECOND)
    assert replay(from_journal(f"{tmp_path}/lake", bounded), Stage(), speed=None) == Replayed(messages=2, lost=0)
