"""A consumer beside a plain model: rows are written, deleted, read, acknowledged and read again in any order."""

from __future__ import annotations

import os
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st
from journal.format.journals import block, gap, message, segment_of

from sbuslib.journal.consume import Consumer, consume
from sbuslib.journal.format.encoding import encode_end
from sbuslib.journal.format.layout import Record, segment_name
from sbuslib.matcher import matches

PATTERN = b"a/"
SALT = 0x1BADB002


class Writer:
    """A recorder: it appends blocks to the last segment, ends it, and deletes the oldest one."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.rows: list[Record] = []
        self.firsts: list[int] = []  # of the segments that are there
        self.ended = True

    @property
    def next(self) -> int:
        return len(self.rows) + 1

    @property
    def oldest(self) -> int:
        """The number of the first row that is still there."""
        return self.firsts[0] if self.firsts else self.next

    def _append(self, data: bytes | bytearray) -> None:
        with open(os.path.join(self.directory, segment_name(self.firsts[-1])), "ab") as file:
            file.write(data)

    def write(self, keys: list[bytes | None]) -> None:
        """Write a block of messages under these keys, or of gaps."""
        rows = [
            gap(self.next + n, "overflow", n) if key is None else message(self.next + n, key, b"%d" % n)
            for n, key in enumerate(keys)
        ]
        if self.ended:
            self.firsts.append(self.next)
            self._append(segment_of([rows], ended=False))
        else:
            self._append(block(rows))
        self.ended = False
        self.rows += rows

    def end(self) -> None:
        if not self.ended:
            self._append(encode_end(SALT, self.next))
            self.ended = True

    def delete(self) -> None:
        if len(self.firsts) > 1:
            os.unlink(os.path.join(self.directory, segment_name(self.firsts.pop(0))))


class Reader:
    """A consumer, and what the model knows of it: the next row, and the one after the last acknowledged one."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.next: int | None = None
        self.acknowledged: int | None = None
        self.consumer = self.open()

    def open(self) -> Consumer:
        self.next = self.acknowledged
        return consume("a", [PATTERN], self.writer.directory, follow=False)

    def reopen(self) -> None:
        """As after a crash: what was not acknowledged comes again."""
        self.consumer.close()
        self.consumer = self.open()

    def acknowledge(self) -> None:
        self.consumer.acknowledge()
        self.acknowledged = self.next

    def wanted(self, start: int, stop: int) -> list[Record]:
        """The rows with these numbers that have to be handed over."""
        return [row for row in self.writer.rows[start - 1 : stop - 1] if row.key is None or matches(PATTERN, row.key)]

    def read(self, most: int) -> None:
        """Read up to so many rows, and hold each against the model."""
        ends = 0
        for _ in range(most):
            oldest = self.writer.oldest
            try:
                row = self.consumer.get()
            except StopIteration:
                ends += 1
                if ends == 1:
                    continue  # it was the end of the journal as it was when this look began
                if self.next is not None:
                    assert self.wanted(self.next, self.writer.next) == [], "rows are there, and were not handed over"
                return
            first = row.sequence - (row.lost or 0) + 1 if row.cause == "deleted" else row.sequence
            if self.next is None:
                self.next = min(oldest, first)
            assert self.wanted(self.next, first) == [], "a row was left out"
            assert first >= self.next, "a row came twice"
            if row.cause == "deleted":
                assert row.sequence < oldest, "rows that are there were told to be deleted"
            else:
                assert row == self.writer.rows[row.sequence - 1]
            self.next = row.sequence + 1


KEYS = st.sampled_from([b"a/1", b"a/2", b"b", None])
BLOCK = st.lists(KEYS, min_size=1, max_size=4).map(
    lambda keys: [None] * len(keys) if keys[0] is None else [key or b"b" for key in keys]
)
STEPS = st.one_of(
    st.tuples(st.just("write"), BLOCK),
    st.tuples(st.just("end")),
    st.tuples(st.just("delete")),
    st.tuples(st.just("read"), st.integers(1, 6)),
    st.tuples(st.just("read"), st.just(1_000)),
    st.tuples(st.just("acknowledge")),
    st.tuples(st.just("reopen")),
)


@settings(max_examples=60)
@given(st.lists(STEPS, max_size=40))
def test_every_row_is_handed_over_or_told_to_be_deleted(steps: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        writer = Writer(directory)
        reader = Reader(writer)
        try:
            for name, *arguments in steps:
                of = writer if hasattr(writer, str(name)) else reader
                getattr(of, str(name))(*arguments)
            reader.read(1_000)
        finally:
            reader.consumer.close()
