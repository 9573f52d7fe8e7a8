"""``ClientRecorder``: records the messages of a hub in another process, as its client.

It subscribes to everything, so that all messages of a tree of hubs come here, and asks for senders. When the disk does
not keep up, it stops reading. The hub then queues messages as for any client, and when the queue is full it pauses
publishers, if this user may ask for that (``hard`` mode ``block``). Losses that the hub reports, and times without a
connection, become gap rows.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, suppress
from functools import partial
from time import monotonic, time_ns

from ..blocking import Client
from ..clients.endpoint import Endpoint
from ..errors import DisconnectedError, JournalError
from ..keys.own_keys import JOURNAL
from ..matcher import SEPARATOR
from ..secrets import Namespace, answerable
from ..wire import control
from ..wire.events import HubEvent
from ..wire.packets import Message, encode_message
from ..wire.text import plainly
from .chunks import Chunk, own_users
from .format.recovery import OUTAGE
from .limits import JournalLimits
from .writer import Durability, Gap, Writer

_SENDERS_KEPT = 1_024
_SENDER_BYTES = 512
"""Longest sender that is cached. It is enough for a tree of many levels."""


class ClientRecorder:
    """A client of the hub at ``address`` that records into ``directory``. Blocks the thread that runs it.

    :param patterns: patterns of the keys to record; everything unless given.
    :param hold: ask the hub to pause publishers rather than lose a message.
    :param events: record events of the hub, too, as far as this user gets them: as gap rows of no message.
    :param notices: the key above ``stopped``, under which an error is published.

    The other parameters are those of :class:`.writer.Writer`. Raises as :class:`sbuslib.blocking.Client`, and
    :exc:`~sbuslib.errors.JournalInUseError`, :exc:`~sbuslib.errors.CorruptJournalError` and :exc:`OSError`.
    """

    def __init__(
        self,
        address: str | os.PathLike[str] | None,
        directory: str | os.PathLike[str],
        *,
        patterns: tuple[bytes, ...] = (b"",),
        hold: bool = True,
        events: bool = False,
        durability: Durability = "block",
        notices: bytes = JOURNAL,
        keep_bytes: int | None = None,
        keep_seconds: float | None = None,
        seal: bool = False,
        limits: JournalLimits | None = None,
    ) -> None:
        self.directory = os.path.abspath(directory)  # of the journal; a process may change its working directory
        self.limits = limits if limits is not None else JournalLimits()  # those of the recorder
        #: Messages that have come, those that are not recorded included.
        self.received = 0
        self._notices = notices
        self._records_events = events

        #: Losses without a gap row yet.
        self._gaps: list[Gap] = []
        #: Time of the last recorded event: a client that reconnects gets the latest again.
        self._event_time = 0.0
        #: Messages that wait to be handed to the writer.
        self._chunks: list[Chunk] = []
        #: Their number, and their bytes.
        self._waiting = self._waiting_bytes = 0
        #: When the last messages came, in nanoseconds since the epoch.
        self._heard_ns = time_ns()
        #: When the messages that wait are handed over, by the monotonic clock.
        self._due = 0.0
        #: Set when the writer has written something.
        self._room = threading.Event()
        #: Cache of :meth:`_vouched`, by sender.
        self._ids: dict[bytes | None, tuple[int | None, int | None, int | None]] = {}
        #: Set by :meth:`stop`.
        self._stopping = False
        #: Makes a writer, given the identity of the hub and the separator of its keys.
        self._make_writer = partial(
            Writer,
            self.directory,
            durability=durability,
            keep_bytes=keep_bytes,
            keep_seconds=keep_seconds,
            seal=seal,
            limits=self.limits,
            wake=self._room.set,
        )

        #: Its own client, for no other use.
        self.client = Client(
            address,
            reconnect=True,
            senders=True,
            echo=False,
            monitor=True,
            hard="block" if hold else None,
            on_notice=self._on_notice,
            on_reconnect=self._on_reconnect,
        )
        with ExitStack() as undo:
            undo.callback(self.client.close)
            #: Another one for each hub that serves the address.
            self._writer = self._open_writer()
            undo.callback(self._writer.join, self.limits.stop_seconds)
            undo.callback(self._writer.end)
            self._learn_namespace()
            #: The subscription whose messages it records.
            self._recorded = self.client.subscribe(*patterns)
            undo.pop_all()

    def _open_writer(self, since_ns: int | None = None) -> Writer:
        """Make a writer for the hub that the client is connected to; nothing was recorded since then."""
        #: The identity of the hub that is recorded.
        self._hub = self._hub_id()
        features = self.client.hub.features
        separator = features.separator if features is not None else SEPARATOR
        writer = self._make_writer(hub=self._hub.decode(errors="replace"), separator=separator)
        writer.open(since_ns)
        return writer

    @property
    def durable_sequence(self) -> int:
        """The number of the last row that is durable; 0 when none is."""
        return self._writer.durable_sequence

    def stop(self) -> None:
        """Let :meth:`run` return once earlier messages are durable. It may be called by a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Record until :meth:`stop`. Raises :exc:`~sbuslib.errors.JournalError` when the disk is full or fails."""
        try:
            while not self._stopping:
                self._receive(self.limits.block_seconds if self._waiting else 5 * self.limits.block_seconds)
                if self._writer.finished:
                    self._check()

            # Record messages that were published before the end, too: sync() waits for them.
            with suppress(TimeoutError, DisconnectedError):  # a hub that is gone sends no more
                self.client.timeout = 1.0
                self._recorded.unsubscribe()
                self.client.sync()
                self._receive(0)
        finally:
            self._hand_over()
            self._end_writer()
            with suppress(Exception):
                if self._writer.error is not None:
                    key = self._notices + self._namespace.separator + b"stopped"
                    self.client.publish(key, f"{self._writer.queued_records} {self._writer.error}".encode())
            self.client.close()
        self._check()

    def _receive(self, timeout: float) -> None:
        """Take messages that wait already or come within ``timeout`` seconds."""
        try:
            messages = self.client.receive_many(timeout=timeout)
        except TimeoutError:
            messages = []
        if not messages:
            self._hand_over()
            return

        # 1. Each run of messages of one sender is a chunk.
        now = time_ns()
        first = 0
        for number in range(1, len(messages) + 1):
            if number == len(messages) or messages[number].sender != messages[first].sender:
                self._keep(now, messages[first:number])
                first = number
        self.received += len(messages)
        self._heard_ns = now

        # 2. Hand them over once they fill a block, or have waited long enough.
        limits = self.limits
        if (
            self._waiting >= limits.block_records
            or self._waiting_bytes >= limits.block_bytes
            or monotonic() >= self._due
        ):
            self._hand_over()

    def _keep(self, now: int, messages: list[Message]) -> None:
        packets = [encode_message(message.key, message.payload) for message in messages]
        sender = messages[0].sender
        if not self._waiting:
            self._due = monotonic() + self.limits.block_seconds
        self._chunks.append(Chunk(now, sender or b"", *self._vouched(sender), packets))
        self._waiting += len(packets)
        self._waiting_bytes += sum(map(len, packets))

    def _vouched(self, sender: bytes | None) -> tuple[int | None, int | None, int | None]:
        """The gid, uid and pid of the process that is responsible for a sender's messages, as the hub sees it."""
        ids = self._ids.get(sender)
        if ids is None:
            ids = self._parse(sender)
            if len(sender or b"") <= _SENDER_BYTES:
                if len(self._ids) >= _SENDERS_KEPT:
                    self._ids.clear()
                self._ids[sender] = ids
        return ids

    def _parse(self, sender: bytes | None) -> tuple[int | None, int | None, int | None]:
        if sender is None or not sender.startswith(self._prefix):
            return None, None, None
        return answerable(self._namespace.chain(sender[len(self._prefix) :]), own_users()).known()

    def _learn_namespace(self) -> None:
        features = self.client.hub.features
        self._namespace = Namespace(features.separator if features is not None else SEPARATOR)
        self._prefix = self._namespace.prefix_of(self.client.credentials)
        self._ids.clear()

    def _hub_id(self) -> bytes:
        return self.client.hub.features.hub_id if self.client.hub.features is not None else b""

    # -- notices of the hub -------------------------------------------------------------------------

    def _on_notice(self, notice: control.Notice) -> None:
        if isinstance(notice, HubEvent):
            if self._records_events and notice.time > self._event_time:
                self._event_time = notice.time
                # Its own time is in the text: the hub may have started long before the recording.
                self._heard_ns = time_ns()
                self._gaps.append(Gap(self._heard_ns, notice.row, 0))
        elif isinstance(notice, control.Lost):
            self._gaps.append(Gap(int(notice.since * 1e9), notice.cause, notice.count))
        elif isinstance(notice, control.Away):
            self._gaps.append(Gap(int(notice.since * 1e9), "away", None))
        elif isinstance(notice, control.Withdrawn):
            self._gaps.append(Gap(time_ns(), "withdrawn", None))
        elif isinstance(notice, control.NewCredentials):
            self._learn_namespace()

    def _on_reconnect(self, client: Endpoint) -> None:
        """Note a gap. The number of messages lost during the outage is unknown."""
        if self._hub_id() == self._hub:
            self._gaps.append(Gap(self._heard_ns, OUTAGE, None))
            self._hand_over()
        else:  # it is another hub, which needs another segment; that begins with a gap
            self._hand_over()
            self._end_writer()
            self._check()
            self._writer = self._open_writer(self._heard_ns)
            self._event_time = 0.0  # its clock may be another
        self._learn_namespace()

    # -- the writer ---------------------------------------------------------------------------------

    def _hand_over(self) -> None:
        if self._waiting or self._gaps:
            self._writer.put(self._chunks, self._gaps, self._waiting, self._waiting_bytes)
            self._chunks, self._gaps = [], []
            self._waiting = self._waiting_bytes = 0
        writer = self._writer
        if writer.fill > 1:
            writer.wakes = (
                True  # before looking again: the writer does not wake this thread for room that it made before
            )
            while not writer.finished and writer.fill > 1:
                self._room.wait(self.limits.stop_seconds)
                self._room.clear()
            writer.wakes = False

    def _end_writer(self) -> None:
        self._writer.end()
        if not self._writer.join(self.limits.stop_seconds):
            raise JournalError(f"{self.directory}: the disk took nothing for {self.limits.stop_seconds} s")

    def _check(self) -> None:
        error = self._writer.error
        if error is not None:
            raise JournalError(f"recording into {self.directory} ended: {plainly(error)}") from error
