"""``Recorder``: records the messages of a hub in this process.

The recorder is a receiver of the hub without a socket. Each message is copied once, in the turn in which it comes.
Messages that came in one batch, or were put into one for another client, stay together and are never parsed. The writer
does the rest, in a thread of its own.

**When the disk does not keep up**, the recorder does what any receiver in ``block`` mode does: each client that
publishes is paused, until the writer has written half of the queue. Some messages cannot be delayed: those of the
embedder, whose ``publish`` never blocks; those of relays, behind which other clients wait; and all messages once a
client was paused for longer than :attr:`~sbuslib.limits.Limits.block_timeout`. These are left out and counted, in a gap
row.

The callbacks of the event loop run under :class:`~sbuslib.core.supervision.Supervisor`: an unforeseen error in one of
them ends the recording, and is reported as any other error that ends it.

For recording a hub of another process, see :mod:`.client_recorder`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import msgspec

from ..core.supervision import Supervisor
from ..errors import JournalError, StateError, UsageError
from ..keys.own_keys import JOURNAL
from ..wire.packets import check_key
from ..wire.text import plainly
from .intake import Intake
from .limits import JournalLimits
from .writer import Durability, Writer

if TYPE_CHECKING:
    from ..hub import Hub

logger = logging.getLogger("sbuslib")

Scope: TypeAlias = Literal["hub", "tree"]


class RecorderStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A recorder at one instant; counts are since it was started.

    Each ``received`` message is ``written``, ``waiting``, or ``lost``, by cause. ``held`` is the number of publishers
    that wait for it, ``written_bytes`` the size of all blocks, and ``durable_sequence`` the number of the last durable
    row.
    """

    received: int
    written: int
    waiting: int
    waiting_bytes: int
    lost: dict[str, int]
    held: int
    written_bytes: int
    durable_sequence: int


class Recorder:
    """Records everything that a hub carries, secrets left out, into a directory.

    ::

        with Hub("/tmp/bus") as hub, Recorder(hub, "/var/lib/app/journal"):
            ...

    Recording ends with :meth:`stop`, with the hub, or with an error: the disk is full or fails, or an error that was
    not foreseen. After an error, :attr:`error` has it, the log has a line, a message is published under
    ``<notices>/stopped``, and the hub goes on.

    :param directory: the journal; made when it is not there. One recorder at a time.
    :param scope: ``"hub"`` records messages that pass this hub anyway; ``"tree"`` subscribes to everything, so that
        each message of the whole tree of hubs comes here.
    :param hold: when the disk does not keep up, pause publishers rather than lose a message.
    :param durability: ``"block"``, ``"interval"`` or ``"none"``: see :class:`.writer.Writer`.
    :param notices: the key above that message, which is not recorded.
    :param keep_bytes: delete the oldest files, sealed or not, while all together are larger.
    :param keep_seconds: delete files whose last row is older.
    :param seal: rewrite each segment as a Parquet file when it ends, in a process of its own, where pyarrow is.
    :param on_stop: called with the error when recording has ended with one.

    **Greenlets:** none; a native thread. The methods are for the thread of the hub.
    Raises :exc:`~sbuslib.errors.UsageError` for an argument that cannot be right.
    """

    def __init__(
        self,
        hub: Hub,
        directory: str | os.PathLike[str],
        *,
        scope: Scope = "hub",
        hold: bool = True,
        durability: Durability = "block",
        notices: bytes = JOURNAL,
        keep_bytes: int | None = None,
        keep_seconds: float | None = None,
        seal: bool = False,
        on_stop: Callable[[Exception], object] | None = None,
        limits: JournalLimits | None = None,
    ) -> None:
        if scope not in get_args(Scope):
            raise UsageError(f"scope is one of {', '.join(get_args(Scope))}, not {scope!r}")
        check_key(notices)
        self.hub = hub
        self.directory = os.path.abspath(directory)  # of the journal; a process may change its working directory
        self.limits = limits if limits is not None else JournalLimits()  # those of the recorder
        #: The error that ended the recording, if one did.
        self.error: Exception | None = None
        self._scope = scope
        self._hold = hold
        self._notices = notices
        self._on_stop = on_stop
        #: Makes another writer at each start, given the functions that it calls from its thread.
        self._make_writer = partial(
            Writer,
            self.directory,
            hub=hub.hub_id.decode(),
            separator=hub.context.router.namespace.separator,
            durability=durability,
            keep_bytes=keep_bytes,
            keep_seconds=keep_seconds,
            seal=seal,
            limits=self.limits,
        )

        #: The receiver at the hub; another one at each start.
        self._intake: Intake | None = None
        #: The greenlets of this recorder; others at each start, as the writer.
        self._service = self._make_service()
        #: It is not open before the start.
        self._writer = self._make_writer()

    def _make_service(self) -> Supervisor:
        return Supervisor(f"recording into {self.directory}", self._end_with_service)

    def __repr__(self) -> str:
        return f"<Recorder of {self.hub!r} into {self.directory}: {'recording' if self.recording else 'stopped'}>"

    @property
    def recording(self) -> bool:
        """Whether the messages of the hub are being recorded."""
        return self._intake is not None and not self._intake.closed

    @property
    def journal(self) -> str:
        """The identity of the journal, once started: 16 hexadecimal digits."""
        return self._writer.journal

    @property
    def durable_sequence(self) -> int:
        """The number of the last row that is durable; 0 when none is. Rows are numbered from 1 on."""
        return self._writer.durable_sequence

    @property
    def written_sequence(self) -> int:
        """The number of the last row that is written; 0 when none is."""
        return self._writer.written_sequence

    def start(self) -> Recorder:
        """Lock the directory and record from now on. After a crash it reads the last segment, which blocks the thread.

        Raises :exc:`~sbuslib.errors.StateError` when it records already or the hub is not started,
        :exc:`~sbuslib.errors.JournalInUseError`, :exc:`~sbuslib.errors.CorruptJournalError` and :exc:`OSError`.
        """
        self.hub.context.check_here()
        if self._intake is not None and not self._intake.ended.is_set():
            raise StateError(f"{self!r}: it is started already")

        # 1. The writer: it locks the directory, and repairs what a crash has left.
        waker = self.hub.context.running.loop.async_()
        try:
            writer = self._make_writer(wake=waker.send)
            writer.open()
        except BaseException:
            waker.close()
            raise

        # 2. The waker: the writer's thread sends through it to the event loop.
        self.error = None
        self._writer, self._waker = writer, waker

        # 3. From now on messages come.
        self._service = service = self._make_service()
        self._intake = Intake(self.hub.context, self.hub.clients, writer, self.limits, hold=self._hold, run=service.run)
        self._intake.on_close = self._end
        waker.start(service.run, self._on_wake)
        self._intake.attach(tap=self._scope == "hub")
        return self

    def stop(self) -> None:
        """Stop recording, and return once earlier messages are durable. Stopping twice does nothing.

        Other greenlets run meanwhile. Raises :exc:`~sbuslib.errors.JournalError` when recording had ended with an
        error, or does so now.
        """
        self.close()
        if self.error is not None:
            raise JournalError(f"recording into {self.directory} ended: {self.error}") from self.error

    def close(self) -> None:
        """As :meth:`stop`, but raises no error: :attr:`error` has it."""
        if self._intake is not None:
            self._intake.unsubscribe()

    def _end_with_service(self) -> None:
        """End the recording because a callback raised an error that was not foreseen."""
        error = self._service.error
        assert error is not None
        try:
            self.close()
        finally:
            if self.error is None:
                self._fail(error)

    def _end(self) -> None:
        """Wait until the thread has ended, after the intake was closed by the recorder or with the hub."""
        assert self._intake is not None
        self._writer.end()
        if not self._intake.ended.wait(self.limits.stop_seconds):
            self._fail(TimeoutError(f"the disk took nothing for {self.limits.stop_seconds} s"))
            self._intake.ended.set()

    def _on_wake(self) -> None:
        """Handle, in the event loop, that the writer has written something, or has ended."""
        writer, intake = self._writer, self._intake
        assert intake is not None
        if writer.finished:
            writer.join(self.limits.stop_seconds)  # calling us was the last thing that it did
            self._waker.stop()
            self._waker.close()
            if writer.error is not None:
                self._fail(writer.error)
            intake.ended.set()
            return
        intake.relieve()

    def _fail(self, error: Exception) -> None:
        """Report the error that ended the recording: in the log, on the bus, and to ``on_stop``."""
        intake = self._intake
        assert intake is not None
        self.error = error
        lost, why = intake.give_up(), plainly(error)
        logger.error("recording into %s ended, %d messages are not in it: %s", self.directory, lost, why)
        if self.hub.started:
            key = self._notices + self.hub.context.router.namespace.separator + b"stopped"
            self.hub.publish(key, f"{lost} {why}".encode())
        if self._on_stop is not None:
            self._service.spawn(self._on_stop, error)

    def __enter__(self) -> Recorder:
        return self.start()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.stop()
        else:
            self.close()

    def flush(self) -> None:
        """Hand messages to the writer without waiting for more. They are durable a little later."""
        if self._intake is not None and not self._intake.closed:
            self._intake.hand_over()

    def statistics(self) -> RecorderStatistics:
        """Return the counts of this recorder at this instant."""
        writer, intake = self._writer, self._intake
        lost = dict(intake.lost) if intake is not None else {}
        waiting = intake.queued if intake is not None else 0
        received = intake.routed if intake is not None else 0
        return RecorderStatistics(
            received=received,
            written=received - waiting - sum(lost.values()),
            waiting=waiting,
            waiting_bytes=writer.queued_bytes + (intake.waiting_bytes if intake is not None else 0),
            lost=lost,
            held=len(intake.held) if intake is not None else 0,
            written_bytes=writer.written_bytes,
            durable_sequence=writer.durable_sequence,
        )
