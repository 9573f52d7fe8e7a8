"""``Consumer``: a named reader of a journal, which goes on after its last acknowledged row, and follows the recorder.

It reads the journal alone. A recorder writes messages within ``JournalLimits.block_seconds``, so the end of the journal
is the live bus a moment later: two sources need not be joined, and no row can be missed or come twice.

While a recorder is at work only durable rows are handed over, so a crash of the machine cannot undo any of them. The
stored position is the identity of the journal and the number of the last acknowledged row: files may be deleted, or
replaced by sealed ones, meanwhile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from time import monotonic, sleep, time_ns
from typing import Final, Self

from ..errors import CorruptJournalError, JournalError, JournalInUseError, StateError, UsageError
from ..limits import check_seconds
from .format.decoding import OnCorrupt
from .format.directory import DirectoryLock, durable_sequence, is_recorded
from .format.layout import GAP, Block, Record, SegmentHeader
from .read.blocks import blocks
from .read.journal_files import absolute
from .read.read_plan import RowRange, contents, measure, plan
from .read.selection import Selection

_PAUSE: Final = 0.05
"""Polling interval at the end of a journal: as long as a recorder delays messages."""

_READ_ANYWAY: Final = 0.25
"""Seconds after which the journal is read on though nothing seems to have changed. The clock of a file system ticks
every few milliseconds, and a recorder that was killed leaves no sign."""

_POSITION: Final = re.compile(rb"([\x21-\x7e]{16}) (\d{20})")

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Consumer:
    """A reader called ``name`` of the journal in ``directory``; the first time, it begins with the oldest row.

    Iterating yields each row, a :class:`~sbuslib.journal.format.layout.Record`: messages whose keys match one of
    ``patterns``, and all gaps. There are three causes of gaps that no recorder writes: ``deleted``, for rows that
    retention removed before they were read; ``replaced``, for another journal in the place of the one that was read;
    and ``damaged``.

    One thread or greenlet at a time uses it. ``with`` closes it.

    :param positions: the folder where the acknowledged position is kept, in ``consumer-NAME.position``; ``directory``
        unless given.
    :param follow: wait for more at the end of the journal; else the iteration ends there.
    :param on_corrupt: with ``"skip"``, damage comes as a gap; else it raises
        :exc:`~sbuslib.errors.CorruptJournalError`.
    :param wait: for other event loops: gevent's is ``gevent.sleep``.

    Raises :exc:`~sbuslib.errors.JournalInUseError` while another consumer has this name,
    :exc:`~sbuslib.errors.UsageError` for a name that is not made of letters, digits and ``._-``,
    :exc:`~sbuslib.errors.JournalError`, and :exc:`OSError`.
    """

    def __init__(
        self,
        name: str,
        patterns: Iterable[bytes],
        directory: str | os.PathLike[str],
        *,
        positions: str | os.PathLike[str] | None = None,
        follow: bool = True,
        on_corrupt: OnCorrupt = "error",
        wait: Callable[[float], object] = sleep,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise UsageError(f"the name of a consumer is letters, digits and ._-, at most 100, not {name!r}")
        self.name = name
        self.directory = absolute(directory)  # of the journal
        self.journal: str | None = None
        """The identity of the journal whose rows are handed over; ``None`` before the first."""
        #: Selects the rows that are handed over.
        self._selection = Selection(patterns=tuple(patterns))
        self._follow = follow
        self._on_corrupt: OnCorrupt = on_corrupt
        self._wait = wait

        #: The number of the next row; ``None``: of the first that there is.
        self._next: int | None = None
        #: Of the segment that was read last: where to read on.
        self._known: dict[str, tuple[int, int]] = {}
        #: Until when :meth:`get` waits, by the monotonic clock; ``None``: for ever.
        self._deadline: float | None = None
        #: Whether all rows that were handed over are acknowledged.
        self._done = True
        #: The process that has the name; not a fork of it.
        self._pid = os.getpid()
        contents(self.directory)  # raises where there is no directory
        folder = os.fspath(self.directory if positions is None else positions)
        #: ``None`` once closed.
        self._position: _Position | None = _Position(folder, f"consumer-{name}.position")
        if self._position.saved is not None:
            self.journal, last = self._position.saved
            self._next = last + 1
        #: The rows from the next one on; it waits for them where the consumer follows.
        self._rows = self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading, and release the name. Rows that were not acknowledged are handed over again."""
        if self._position is not None:
            self._position.close()
            self._position = None
            with suppress(ValueError):  # another thread is reading, and will see the end
                self._rows.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        if self._position is None:
            raise StopIteration
        return self.get()

    def get(self, timeout: float | None = None) -> Record:
        """Wait for the next row. Raises :exc:`TimeoutError` when none comes within ``timeout`` seconds.

        At the end of a journal that is not followed it raises :exc:`StopIteration`. After any error, the next call goes
        on where this one was.
        """
        self._check()
        seconds = check_seconds(timeout, "timeout")
        self._deadline = None if seconds is None else monotonic() + seconds
        try:
            row = next(self._rows)
        except BaseException:
            self._rows = self._read()  # a generator that has raised is over
            raise
        if row is None:
            self._check()
            raise TimeoutError(f"{self.directory}: no row came within {timeout} s")
        self._done = False
        return row

    def acknowledge(self) -> None:
        """Acknowledge all rows that were handed over: none of them is handed over again.

        A kill of this process cannot undo that; a crash of the machine may, for the last rows.
        """
        self._check().save(self.journal, self._next)
        self._done = True

    def _check(self) -> _Position:
        if self._position is None or self._pid != os.getpid():
            raise StateError(f"the consumer {self.name} is closed, or this is a fork of its process")
        return self._position

    def _read(self) -> Generator[Record | None]:
        """Yield rows; ``None`` when the time for one is over."""
        while True:
            seen = self._state()
            yield from self._new_rows()
            if self._done and self._position is not None:
                self._position.save(self.journal, self._next)  # the rows after it are for others
            if not self._follow:
                return
            again = monotonic() + _READ_ANYWAY
            while self._state() == seen and monotonic() < again:
                remaining = None if self._deadline is None else self._deadline - monotonic()
                if self._position is None or (remaining is not None and remaining <= 0):
                    yield None
                self._wait(_PAUSE if remaining is None else max(0.0, min(_PAUSE, remaining)))

    def _state(self) -> tuple[int, int]:
        """State of the journal that changes when there are new rows."""
        return durable_sequence(self.directory), os.stat(self.directory).st_mtime_ns

    def _new_rows(self) -> Iterator[Record]:
        """Yield rows that exist already, from the next one on."""
        place = self.directory
        while True:
            first = {self.journal: self._next} if self.journal is not None and self._next is not None else {}
            durable_only = is_recorded(self.directory)  # a recorder that is gone makes no more rows durable
            plans = plan([place], durable_only=durable_only, first=first, known=self._known)
            if self.journal in plans:
                yield from self._rows_of(plans[self.journal])

            # Another journal may be in its place: that of the segments, or the only one.
            current = contents(place).journal or next(iter(plans), None)
            if current in (None, self.journal):
                return
            former, self.journal, self._known = self.journal, current, {}
            if former is not None:
                self._next = 1
                yield Record(time_ns(), 0, GAP, None, None, None, None, None, None, None, "replaced")

    def _rows_of(self, row_ranges: list[RowRange]) -> Iterator[Record]:
        """Yield the wanted rows of some ranges. No gap row for a kill: the next recorder writes that."""
        row_ranges = [row_range._replace(is_killed=False) for row_range in row_ranges]
        self._check_end(row_ranges)
        if row_ranges:
            self._next = self._next or row_ranges[0].first
        for header, path, block in blocks(row_ranges, on_corrupt=self._on_corrupt):
            yield from self._wanted(header, path, block)
            self._next = max(self._next or 0, block.next_sequence)
            if block.position:  # it stands in a segment
                self._known = {path: (block.next_sequence, block.end)}

    def _check_end(self, row_ranges: list[RowRange]) -> None:
        """Raise :exc:`~sbuslib.errors.JournalError` if the journal ends before the last acknowledged row."""
        if self._next is None or self.journal is None or (row_ranges and row_ranges[-1].known is not None):
            return
        for last in (row_ranges or plan([self.directory]).get(self.journal, []))[-1:]:
            end = last.before if last.before is not None else measure(last, on_corrupt=self._on_corrupt)[0]
            if end < self._next:
                raise JournalError(
                    f"{self.directory}: ends at row {end - 1:,}, but {self.name} has acknowledged row "
                    f"{self._next - 1:,}: an older copy of the journal is in its place"
                )

    def _wanted(self, header: SegmentHeader, path: str, block: Block) -> Iterator[Record]:
        """Yield the wanted rows of a block."""
        least = self._next or 0
        keys = {name for name in block.name_list() if self._selection.wants(name, header.separator)}
        if not keys and block.kind != GAP:
            return
        try:
            for row in block.records():
                if row.sequence >= least and (row.key is None or row.key in keys):
                    self._next = row.sequence + 1
                    yield row
        except CorruptJournalError as error:
            raise CorruptJournalError(error.reason, error.position, path) from None


consume = Consumer
"""``for row in consume("billing", [b"order/"], journal): ...; consumer.acknowledge()``"""


class _Position:
    """The acknowledged position of one consumer, in a file that is locked while the consumer is there."""

    def __init__(self, folder: str, name: str) -> None:
        path = os.path.join(folder, name)
        try:
            #: Its note has the journal and the number of the last acknowledged row.
            self._lock = DirectoryLock(folder, name)
        except JournalInUseError:
            raise JournalInUseError(f"{path}: another consumer of this name is at work") from None
        match = _POSITION.fullmatch(self._lock.note)
        if match is None and self._lock.note:
            self._lock.close()
            raise JournalError(f"{path}: this is no position of a consumer")
        self.saved = None if match is None else (match[1].decode(), int(match[2]))
        """The journal and the number of its last acknowledged row."""

    def save(self, journal: str | None, following: int | None) -> None:
        """Store that rows before ``following`` are acknowledged."""
        if journal is not None and following is not None and (journal, following - 1) != self.saved:
            self._lock.write_note(b"%b %020d" % (journal.encode(), following - 1))
            self.saved = journal, following - 1

    def close(self) -> None:
        self._lock.close()
