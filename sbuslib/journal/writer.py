"""Writer of a journal: one native thread makes blocks of messages, writes them and syncs the file.

A slow disk must not stall an event loop, so only this thread uses the files while it runs. It is a native thread even
where gevent has patched ``threading``. Messages come to it through one queue, in portions of some thousand. Its
results are counts in plain attributes, and calls of a function.

It knows nothing of hubs and clients: :mod:`.recorder` and :mod:`.client_recorder` give it messages.
"""

from __future__ import annotations

import errno
import os
import secrets
import weakref
from collections.abc import Callable
from time import monotonic, time, time_ns
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from ..errors import UsageError
from ..kernel.regular_files import make_folder, open_regular
from ..kernel.threads import unpatched
from ..secrets import RESERVED
from .chunks import Chunk, columns_of, spread, without_secrets
from .format.directory import DirectoryLock, boot_id, sync_directory
from .format.encoding import encode_block, encode_end, encode_gaps
from .format.layout import Buffer, SegmentHeader, segment_name
from .format.recovery import OUTAGE, recover
from .limits import JournalLimits
from .read.journal_files import absolute
from .read.retention import retain
from .sealer import Sealer

_MERGED_RECORDS: Final = 4_096
"""Most rows of one block. On a slow disk several portions wait, and are put into one block, for one sync.
Encoding so many rows holds the interpreter's lock for a few milliseconds."""

_MERGED_BYTES: Final = 8_388_608
"""Most bytes of messages in one block, for the same reason."""

_DAY_SECONDS: Final = 86_400
"""A segment ends at midnight, in UTC, so that sealed files have the rows of one day."""

Durability: TypeAlias = Literal["block", "interval", "none"]


class Gap(NamedTuple):
    """Messages that are not in the journal: time of the first, cause, and number (``None``: unknown)."""

    time_ns: int
    cause: str
    lost: int | None


Portion: TypeAlias = tuple[list[Chunk], list[Gap], int, int]
"""Chunks, gaps after them, the number of packets, and their bytes."""

_writers: weakref.WeakSet[Writer] = weakref.WeakSet()


class Writer:
    """Writes one journal. One thread uses it, beside its own.

    :param directory: made when it is not there.
    :param hub: the identity of the hub that is recorded.
    :param separator: the separator of its keys.
    :param durability: the event that makes a block count as durable: ``"block"``, fdatasync(2) after each block;
        ``"interval"``, fdatasync(2) once in :attr:`JournalLimits.sync_seconds`; ``"none"``, the write: a crash of this
        process does not undo it, but a crash of the machine may.
    :param keep_bytes: delete the oldest files, sealed or not, while all together are larger.
    :param keep_seconds: delete files whose last row is older.
    :param seal: seal each segment when it ends: see :mod:`.sealer`.
    :param wake: called from the writer's thread after each portion while :attr:`wakes` is set, and when the thread
        has ended. It must not block.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        hub: str,
        separator: bytes,
        durability: Durability = "block",
        keep_bytes: int | None = None,
        keep_seconds: float | None = None,
        seal: bool = False,
        limits: JournalLimits | None = None,
        wake: Callable[[], object] = lambda: None,
    ) -> None:
        _check(durability, keep_bytes, keep_seconds)
        self.directory = os.path.abspath(directory)  # of the journal; a process may change its working directory
        self.limits = limits if limits is not None else JournalLimits()  # those of the recorder

        self.wakes = False
        """Whether ``wake`` is to be called after each portion."""
        #: The error that ended the thread, if one did.
        self.error: Exception | None = None
        #: Whether the thread has ended. The thread sets this and all counts but those of ``put``.
        self.finished = False
        #: The number of the last row that is durable, and of the last that is written; 0 where there is none.
        self.durable_sequence = self.written_sequence = 0
        #: Bytes of blocks, without headers and marks of segments.
        self.written_bytes = 0
        #: Packets that were ever put into the queue, and those that the thread has written.
        self.put_records = self.taken_records = 0
        #: Their bytes.
        self.put_bytes = self.taken_bytes = 0
        self._hub = hub
        self._separator = separator
        self._durability = durability
        self._keep_bytes = keep_bytes
        self._keep_seconds = keep_seconds
        #: After this time a segment ends: rows can only be deleted by whole segments.
        self._roll_seconds = self.limits.segment_seconds
        if keep_seconds is not None:
            self._roll_seconds = min(self._roll_seconds, keep_seconds / 4)
        self._wake = wake

        #: Only the thread uses it.
        self._sealer = Sealer(self.directory, is_wanted=seal)
        #: Portions for the thread; ``None`` ends it.
        self._queue: Any = unpatched("queue", "SimpleQueue")()
        #: A portion out of the queue that did not fit the last block.
        self._next_portion: Portion | None = None
        #: Held from :meth:`open` to the thread's end.
        self._lock: DirectoryLock | None = None
        #: The process that opened the journal; 0 before.
        self._pid = 0
        #: The open segment; -1 while there is none.
        self._descriptor = -1
        #: The byte at which its next block begins.
        self._offset = 0
        #: Start value of the CRCs of its blocks.
        self._salt = 0
        #: When it ends, by the monotonic clock.
        self._ends_at = 0.0
        #: When it was last synced, by that clock.
        self._synced_at = 0.0
        #: Whether it has blocks that are not synced.
        self._dirty = False
        #: Whether the thread was asked to end.
        self._ending = False
        self.journal = ""
        """The identity of the directory: 16 hexadecimal digits."""

    # -- the feeding side ---------------------------------------------------------------------------

    def open(self, since_ns: int | None = None) -> None:
        """Lock the directory, repair what a crash has left, and start the thread.

        A journal that is not new goes on with a gap row: from ``since_ns`` on, or from when it was last written.
        After a crash this reads the last segment. Raises :exc:`~sbuslib.errors.JournalInUseError`,
        :exc:`~sbuslib.errors.CorruptJournalError` where the number of the next row cannot be found, and
        :exc:`OSError`.
        """
        make_folder(self.directory)
        self._lock = DirectoryLock(self.directory)
        try:
            # 1. The existing rows; a gap row stands for the time since the last one.
            self.journal, next_sequence, written_ns = recover(self.directory)
            self.written_sequence = next_sequence - 1
            self._set_durable()
            if written_ns is not None:
                self.put([], [Gap(since_ns or written_ns, OUTAGE, None)], 0, 0)

            # 2. The thread. It holds ``_done`` until it has ended.
            self._done = unpatched("_thread", "allocate_lock")()
            self._done.acquire()
            self._pid = os.getpid()
            unpatched("_thread", "start_new_thread")(self._run, ())
        except BaseException:
            self._lock.close()
            raise
        _writers.add(self)

    def put(self, chunks: list[Chunk], gaps: list[Gap], records: int, size: int) -> None:
        """Queue ``records`` packets of ``size`` bytes, and gaps that come after them. Never blocks."""
        self.put_records += records
        self.put_bytes += size
        self._queue.put((chunks, gaps, records, size))

    @property
    def queued_records(self) -> int:
        """Packets that are queued and not written yet."""
        return self.put_records - self.taken_records

    @property
    def queued_bytes(self) -> int:
        """Bytes of those packets."""
        return self.put_bytes - self.taken_bytes

    @property
    def fill(self) -> float:
        """Filled share of the queue, by packets or by bytes, whichever is more: beyond 1 it is full."""
        limits = self.limits
        return max(self.queued_records / limits.queued_records, self.queued_bytes / limits.queued_bytes)

    def end(self) -> None:
        """Let the thread write the queue, close the segment, sync, unlock the directory, and end."""
        self._queue.put(None)

    def join(self, timeout: float) -> bool:
        """Wait until the thread has ended, blocking the calling thread; ``False`` after ``timeout`` seconds."""
        if self._done.acquire(timeout=timeout):
            self._done.release()
            return True
        return False

    def abandon(self) -> None:
        """In the child of a fork: close the files, which the parent goes on using."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self.finished = True

    @property
    def is_abandoned(self) -> bool:
        """Whether this is the child of a fork of the process that writes."""
        return self._pid not in (0, os.getpid())

    # -- the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._retain()
            self._sealer.start()
            while not self._ending:
                self._step()
            self._close_segment()
        except Exception as error:  # any error has to reach the recorder
            self.error = error
            self._cut_back()
        finally:
            # The next recorder may begin as soon as the lock is free: nothing is written or sealed any more then.
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
            self._sealer.stop()
            assert self._lock is not None
            self._lock.close()
            self.finished = True
            self._wake()
            self._done.release()  # from now on ``wake`` is not called any more

    def _step(self) -> None:
        """Write one portion; sync and end the segment when due."""
        # 1. Write the portion, and make it durable.
        portion = self._take()
        if portion is not None:
            chunks, gaps, records, size = portion
            if chunks:
                self._write_messages(chunks)
            if gaps:
                self._write_block(encode_gaps(self._begin(), self.written_sequence + 1, gaps), len(gaps))
            if self._durability == "block":
                self._sync()
            elif self._durability == "none":
                self._set_durable()
            self.taken_records += records
            self.taken_bytes += size

        # 2. Sync, or end the segment, if that is due.
        now = monotonic()
        if self._dirty and self._durability == "interval" and now - self._synced_at >= self.limits.sync_seconds:
            self._sync()
        if self._descriptor >= 0 and (self._offset >= self.limits.segment_bytes or now >= self._ends_at):
            self._close_segment()
            self._sealer.start()
        else:
            self._sealer.look()

        # 3. Wake the feeding side last, so that it sees all counts.
        if self.wakes:
            self._wake()

    def _take(self) -> Portion | None:
        """Take as many portions as fit one block; ``None`` when a sync or the segment's end is due before one comes."""
        portion = self._next_portion or self._wait()
        self._next_portion = None
        if portion is None:
            return None

        # On a slow disk several wait. Gaps end a block, as they come after all messages of their portion.
        chunks, gaps, records, size = portion
        while not gaps and records < _MERGED_RECORDS and size < _MERGED_BYTES and not self._queue.empty():
            more: Portion | None = self._queue.get()
            if more is None:
                self._ending = True
                break
            if records + more[2] > _MERGED_RECORDS or size + more[3] > _MERGED_BYTES:
                self._next_portion = more
                break
            chunks = chunks + more[0]
            gaps, records, size = more[1], records + more[2], size + more[3]
        return chunks, gaps, records, size

    def _wait(self) -> Portion | None:
        due = self._roll_seconds if self._descriptor < 0 else self._ends_at - monotonic()
        if self._dirty and self._durability == "interval":
            due = min(due, self._synced_at + self.limits.sync_seconds - monotonic())
        try:
            portion: Portion | None = self._queue.get(timeout=max(0.0, due))
        except unpatched("queue", "Empty"):
            return None
        if portion is None:
            self._ending = True
        return portion

    def _write_messages(self, chunks: list[Chunk]) -> None:
        # 1. The columns of keys and payloads. One search shows that none of the keys is secret.
        names, keys, sizes, payloads = columns_of(chunks)
        if RESERVED in b"\0".join(names):
            chunks = without_secrets(chunks, self._separator)
            if not chunks:
                return
            names, keys, sizes, payloads = columns_of(chunks)

        # 2. Those with one value for each chunk. Senders come after the keys among the block's names.
        counts = [len(chunk.messages) for chunk in chunks]
        rows = sum(counts)
        places = {sender: number for number, sender in enumerate({chunk.sender: None for chunk in chunks}, len(names))}
        columns: dict[str, Buffer] = {
            "times": spread("q", [chunk.time_ns for chunk in chunks], counts, rows),
            "gids": spread("q", [chunk.gid for chunk in chunks], counts, rows),
            "uids": spread("q", [chunk.uid for chunk in chunks], counts, rows),
            "pids": spread("q", [chunk.pid for chunk in chunks], counts, rows),
            "keys": keys,
            "senders": spread("i", [places[chunk.sender] for chunk in chunks], counts, rows),
        }

        # 3. The block.
        first = self.written_sequence + 1
        self._write_block(encode_block(self._begin(), first, columns, [*names, *places], payloads, sizes), rows)

    # -- files --------------------------------------------------------------------------------------

    def _begin(self) -> int:
        """The salt of the open segment. Opens a new segment where none is open."""
        if self._descriptor < 0:
            first = self.written_sequence + 1
            self._salt = secrets.randbits(32)
            header = SegmentHeader(self.journal, self._hub, self._separator, time_ns(), first, self._salt, boot_id())
            path = os.path.join(self.directory, segment_name(first))
            self._descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            self._offset = 0
            until_midnight = _DAY_SECONDS - time() % _DAY_SECONDS
            self._ends_at = monotonic() + min(self._roll_seconds, until_midnight)
            self._write(header.encode())
            if self._durability != "none":
                sync_directory(self.directory)
        return self._salt

    def _write_block(self, block: Buffer, rows: int) -> None:
        self._write(block)
        self._dirty = True
        self.written_bytes += len(block)
        self.written_sequence += rows

    def _write(self, data: Buffer) -> None:
        view = memoryview(data)
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, view[done:], self._offset + done)
        self._offset += len(data)

    def _sync(self) -> None:
        if self._dirty:
            os.fdatasync(self._descriptor)
            self._dirty = False
            self._synced_at = monotonic()
        self._set_durable()

    def _set_durable(self) -> None:
        """Note that all written rows are durable, for this process and for others."""
        self.durable_sequence = self.written_sequence
        assert self._lock is not None
        self._lock.write_note(b"%020d" % self.durable_sequence)

    def _close_segment(self) -> None:
        if self._descriptor >= 0:
            self._write(encode_end(self._salt, self.written_sequence + 1))
            if self._durability != "none":
                os.fdatasync(self._descriptor)
            self._dirty = False
            self._set_durable()
            os.close(self._descriptor)
            self._descriptor = -1
            self._retain()

    def _cut_back(self) -> None:
        """After writing failed: cut off the part of a block, and sync the whole blocks if the disk still can."""
        if self._descriptor < 0:
            return
        try:
            os.ftruncate(self._descriptor, self._offset)
            if self._dirty and self._durability != "none":
                self._sync()
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                raise

    def _retain(self) -> None:
        retain(absolute(self.directory), self._keep_bytes, self._keep_seconds)


def _check(durability: Durability, keep_bytes: int | None, keep_seconds: float | None) -> None:
    """Raise :exc:`~sbuslib.errors.UsageError` for an argument that cannot be right."""
    if durability not in get_args(Durability):
        raise UsageError(f"durability is one of {', '.join(get_args(Durability))}, not {durability!r}")
    for name, value in (("keep_bytes", keep_bytes), ("keep_seconds", keep_seconds)):
        if value is not None and not value > 0:
            raise UsageError(f"{name} is positive, or None, not {value!r}")


def _abandon_all() -> None:
    for writer in list(_writers):
        writer.abandon()
    _writers.clear()


os.register_at_fork(after_in_child=_abandon_all)
