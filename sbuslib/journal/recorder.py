"""Records what a hub of this process carries.

The recorder is one more receiver of the hub's, without a socket. In the turn in which a message comes it is copied
once, beside its neighbours; messages that travel together, or were put together for a client, stay so, and none of them
is looked at here or later. All else is the writer's, in its own thread. **What happens when the disk does not keep
up** is the rule of any receiver in ``block`` mode: the clients that publish are held back, each as it publishes, until
the writer has caught up by half. What cannot be held back is left out, counted, and becomes a gap row: messages of the
embedder, whose ``publish`` never blocks, those of relays, behind which others wait, and all that comes once somebody
was held for longer than :attr:`~sbuslib.limits.Limits.block_timeout`.

For recording a hub of another process, see :mod:`.follower`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import gevent
import msgspec

from ..errors import JournalError, StateError, UsageError
from ..wire.packets import check_key
from .intake import Intake
from .limits import JournalLimits
from .writer import Durability, Writer

if TYPE_CHECKING:
    from types import TracebackType

    from ..hub import Hub

__all__ = ["Recorder", "RecorderStatistics", "Scope"]

logger = logging.getLogger("sbuslib")

Scope: TypeAlias = Literal["hub", "tree"]


class RecorderStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A recorder at one instant; counts are since it was started.

    Of the messages that it ``received``, each is ``written``, ``queued``, or ``lost``, by cause. ``held`` is how many
    publishers wait for it, ``written_bytes`` what the blocks came to, and ``durable_sequence`` the number of the last
    row that is durable.
    """

    received: int
    written: int
    queued: int
    queued_bytes: int
    lost: dict[str, int]
    held: int
    written_bytes: int
    durable_sequence: int


class Recorder:
    """Records everything that a hub carries, secrets left out, into a directory.

    ::

        with Hub("/tmp/bus") as hub, Recorder(hub, "/var/lib/app/journal"):
            ...

    It ends with :meth:`stop`, with the hub, or when the disk is full or fails: then :attr:`error` says why, the log
    has a line, a message goes out under ``<notices>/stopped``, and the hub goes on.

    :param directory: the journal; made when it is not there. One recorder at a time.
    :param scope: ``"hub"`` records what passes this hub anyway; ``"tree"`` subscribes to everything, so that all that
        is published anywhere in a tree of hubs is drawn here.
    :param hold: hold publishers back rather than lose a message when the disk does not keep up.
    :param durability: ``"block"``, ``"interval"`` or ``"none"``: see :class:`.writer.Writer`.
    :param publish_durable: publish :attr:`durable_sequence`, in decimal digits, under ``<notices>/durable`` when it
        has changed.
    :param notices: the key above those two. They are not recorded.
    :param keep_bytes: delete the oldest segments while all together are larger.
    :param keep_seconds: delete segments whose last row is older.
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
        publish_durable: bool = False,
        notices: bytes = b"journal",
        keep_bytes: int | None = None,
        keep_seconds: float | None = None,
        on_stop: Callable[[Exception], object] | None = None,
        limits: JournalLimits | None = None,
    ) -> None:
        if scope not in get_args(Scope):
            raise UsageError(f"scope is one of {', '.join(get_args(Scope))}, not {scope!r}")
        check_key(notices)
        self.hub = hub
        self.directory = os.fspath(directory)
        self.limits = limits if limits is not None else JournalLimits()
        self.error: Exception | None = None
        self._scope = scope
        self._hold = hold
        self._durability: Durability = durability
        self._publish_durable = publish_durable
        self._notices = notices
        self._keep_bytes = keep_bytes
        self._keep_seconds = keep_seconds
        self._on_stop = on_stop
        self._intake: Intake | None = None
        self._writer = self._make_writer(lambda: None)

    def _make_writer(self, wake: Callable[[], object]) -> Writer:
        return Writer(
            self.directory,
            hub=self.hub.hub_id.decode(),
            separator=self.hub.context.router.namespace.separator,
            durability=self._durability,
            keep_bytes=self._keep_bytes,
            keep_seconds=self._keep_seconds,
            limits=self.limits,
            wake=wake,
        )

    def __repr__(self) -> str:
        return f"<Recorder of {self.hub!r} into {self.directory}: {'recording' if self.recording else 'stopped'}>"

    @property
    def recording(self) -> bool:
        """Whether what the hub carries is being recorded."""
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
        """Take the directory and record from now on. After a crash it reads the last segment, which blocks the thread.

        Raises :exc:`~sbuslib.errors.StateError` when it records already or the hub is not started,
        :exc:`~sbuslib.errors.JournalInUseError`, :exc:`~sbuslib.errors.CorruptJournalError` and :exc:`OSError`.
        """
        self.hub.context.check_here()
        if self._intake is not None and not self._intake.ended.is_set():
            raise StateError(f"{self!r}: it is started already")
        waker = self.hub.context.loop.async_()
        try:
            writer = self._make_writer(waker.send)
            writer.open()
        except BaseException:
            waker.close()
            raise
        self.error = None
        self._writer, self._waker, self._told = writer, waker, writer.durable_sequence
        writer.tells = self._publish_durable
        self._intake = Intake(self.hub.context, writer, self.limits, hold=self._hold, tells=self._publish_durable)
        self._intake.on_close = self._end
        waker.start(self._on_wake)
        self._intake.attach(tap=self._scope == "hub")
        return self

    def stop(self) -> None:
        """Record no more, and return once what came before is durable. Stopping twice does nothing.

        Other greenlets run meanwhile. Raises :exc:`~sbuslib.errors.JournalError` when recording had ended with an
        error, or does so now.
        """
        self.close()
        if self.error is not None:
            raise JournalError(f"recording into {self.directory} ended: {self.error}") from self.error

    def close(self) -> None:
        """As :meth:`stop`, but raises no error: :attr:`error` tells."""
        if self._intake is not None:
            self._intake.close()

    def _end(self) -> None:
        """The intake was closed, by us or with the hub: wait until the thread has ended."""
        assert self._intake is not None
        self._writer.end()
        if not self._intake.ended.wait(self.limits.stop_seconds):
            self._fail(TimeoutError(f"the disk took nothing for {self.limits.stop_seconds} s"))
            self._intake.ended.set()

    def _on_wake(self) -> None:
        """The writer has got further: in the event loop."""
        writer, intake = self._writer, self._intake
        assert intake is not None
        if writer.finished:
            writer.join(self.limits.stop_seconds)  # its last act was to wake us
            self._waker.stop()
            self._waker.close()
            if writer.error is not None:
                self._fail(writer.error)
            intake.ended.set()
            return
        intake.relieve()
        if self._publish_durable and writer.durable_sequence != self._told:
            self._told = writer.durable_sequence
            self._publish(b"durable", b"%d" % self._told)

    def _fail(self, error: Exception) -> None:
        """Recording has ended with an error: say so to everybody who may care, and let the hub go on."""
        intake = self._intake
        assert intake is not None
        self.error = error
        lost = intake.give_up()
        logger.error("recording into %s ended, %d messages are not in it: %s", self.directory, lost, error)
        self._publish(b"stopped", f"{lost} {error}".encode())
        if self._on_stop is not None:
            gevent.spawn(self._on_stop, error)

    def _publish(self, what: bytes, payload: bytes) -> None:
        """Publish about ourselves, which is not recorded: or each word would be the reason for another."""
        assert self._intake is not None
        if self.hub.started:
            self._intake.is_muted = True
            try:
                self.hub.publish(self._notices + self.hub.context.router.namespace.separator + what, payload)
            finally:
                self._intake.is_muted = False

    def __enter__(self) -> Recorder:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self.close()

    def flush(self) -> None:
        """Hand over what has come without waiting for more. It is durable a little later."""
        if self._intake is not None and not self._intake.closed:
            self._intake.hand_over()

    def statistics(self) -> RecorderStatistics:
        """What this recorder did and holds at this instant."""
        writer, intake = self._writer, self._intake
        lost = dict(intake.lost) if intake is not None else {}
        queued = intake.queued if intake is not None else 0
        received = intake.routed if intake is not None else 0
        return RecorderStatistics(
            received=received,
            written=received - queued - sum(lost.values()),
            queued=queued,
            queued_bytes=writer.queued_bytes + (intake.waiting_bytes if intake is not None else 0),
            lost=lost,
            held=len(intake.held) if intake is not None else 0,
            written_bytes=writer.written_bytes,
            durable_sequence=writer.durable_sequence,
        )
