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
from time import time_ns
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import gevent
import msgspec
from gevent.event import Event

from ..core.inbox import Inbox
from ..errors import JournalError, StateError, UsageError
from ..statistics import ClientStatistics
from ..wire.packets import check_key
from .limits import JournalLimits
from .parcels import Parcel
from .writer import Durability, Gap, Writer

if TYPE_CHECKING:
    from types import TracebackType

    from ..core.messages import Messages
    from ..core.protocols import Holdable, Sender
    from ..hub import Hub
    from ..wire.control import Lost

__all__ = ["Intake", "Recorder", "RecorderStatistics", "Scope"]

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
        self._intake = Intake(self.hub, writer, self.limits, hold=self._hold, tells=self._publish_durable)
        self._intake.on_close = self._end
        waker.start(self._on_wake)
        self.hub.attach(self._intake, tap=self._scope == "hub")
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


class Intake(Inbox):
    """What the hub sees of a recorder: takes messages in its turns, and hands them to the writer, many at once.

    Implements :class:`~sbuslib.core.protocols.Receiver` and :class:`~sbuslib.core.protocols.Holder`.
    """

    def __init__(self, hub: Hub, writer: Writer, limits: JournalLimits, *, hold: bool, tells: bool) -> None:
        super().__init__(hub.context, hub.embedder.credentials)
        self.waiting = 0
        self.waiting_bytes = 0
        self.held: set[Holdable] = set()
        self.is_muted = False
        self.ended = Event()
        self.on_close: Callable[[], None] = lambda: None
        self._namespace = hub.context.router.namespace
        self._writer = writer
        self._bounds = limits
        self._hold = hold
        self._tells = tells
        self._parcels: list[Parcel] = []
        self._gaps: dict[str, Gap] = {}
        self._timer = hub.context.loop.timer(limits.block_seconds, limits.block_seconds)
        self._is_timing = False
        self._block_timer: Any = None
        self._is_full = False
        self._held_too_long = False
        self._sender: Sender | None = None
        self._prefix = b""
        self._ids: tuple[bytes, int | None, int | None, int | None] = (b"", None, None, None)

    # -- messages -----------------------------------------------------------------------------------

    def deliver(self, sender: Sender, messages: Messages) -> None:
        """Keep copies of messages, or what was made of them for clients that take batches."""
        if self.closed or self.is_muted:
            return
        count, size = messages.count, messages.size
        self.routed += count
        if self._is_full and not self._has_room_for(sender, count):
            return
        if sender is not self._sender or self._namespace.prefix is not self._prefix:
            self._sender, self._prefix = sender, self._namespace.prefix
            key = sender.key
            # Of who is above us the kernel said nothing to us, but of the hub that hands their messages down.
            is_ours = key.startswith(self._prefix + self._namespace.start)
            self._ids = (key, *(sender.credentials.known() if is_ours else (None, None, None)))
        self._parcels.append(Parcel(time_ns(), *self._ids, messages.columns()))
        if not self._is_timing:
            self._is_timing = True
            self._timer.start(self._on_time)
        self.waiting += count
        self.waiting_bytes += size
        if self.waiting >= self._bounds.block_records or self.waiting_bytes >= self._bounds.block_bytes:
            self.hand_over()

    def _on_time(self) -> None:
        """Time has passed, in which many hands full may have gone, or none: the timer goes on while anything comes."""
        if self.waiting:
            self.hand_over()
        else:
            self._timer.stop()
            self._is_timing = False

    def hand_over(self) -> None:
        """Give what waits to the writer."""
        gaps = [*self._gaps.values()] if not self._is_full else []
        if self.waiting or gaps:
            self._writer.put(self._parcels, gaps, self.waiting, self.waiting_bytes)
        if gaps:
            self._gaps.clear()
        self._parcels = []
        self.waiting = self.waiting_bytes = 0
        self._sender = None  # it may have gone
        writer, bounds = self._writer, self._bounds
        if writer.queued_records > bounds.queued_records or writer.queued_bytes > bounds.queued_bytes:
            self._is_full = writer.tells = True

    def notify(self, notice: Lost) -> None:
        """Messages were lost between two hubs of the tree: they will be missed here."""
        self._note_gap(notice.cause, notice.count, int(notice.since * 1e9))
        if not self._is_full:
            self.hand_over()

    def _note_gap(self, cause: str, count: int, since: int) -> None:
        gap = self._gaps.get(cause)
        if gap is not None:
            since, count = min(gap.time_ns, since), (gap.lost or 0) + count
        self._gaps[cause] = Gap(since, cause, count)

    # -- when the writer does not keep up -----------------------------------------------------------

    def _has_room_for(self, sender: Sender, count: int) -> bool:
        """Whether to keep messages though the queue is full, as their publisher is held back from now on."""
        writer, bounds = self._writer, self._bounds
        self.relieve()
        if not self._is_full:
            return True
        publisher = sender.holdable_by(self) if self._hold and not self._held_too_long else None
        # Of one that is held no more comes than was read already; but a hub that stops reads from all.
        flooded = writer.queued_records >= 2 * bounds.queued_records or writer.queued_bytes >= 2 * bounds.queued_bytes
        if publisher is not None and not (flooded and publisher in self.held):
            self.held.add(publisher)
            publisher.hold(self)
            if self._block_timer is None:
                self._block_timer = self._context.loop.timer(self._limits.block_timeout)
                self._block_timer.start(self._on_block_timeout)
            return True
        cause = "timeout" if self._held_too_long else "overflow"
        self.lost[cause] = self.lost.get(cause, 0) + count
        self._note_gap(cause, count, time_ns())
        return False

    def _on_block_timeout(self) -> None:
        self._held_too_long = True
        self._let_go()

    def relieve(self) -> None:
        """The writer has got further: go on as before once half of what may wait has gone."""
        writer, bounds = self._writer, self._bounds
        if (
            self._is_full
            and writer.queued_records <= bounds.queued_records // 2
            and writer.queued_bytes <= bounds.queued_bytes // 2
        ):
            self._is_full = self._held_too_long = False
            writer.tells = self._tells
            self.hand_over()
            self._let_go()

    def _let_go(self) -> None:
        if self._block_timer is not None:
            self._block_timer.stop()
            self._block_timer.close()
            self._block_timer = None
        while self.held:
            self.held.pop().let_go(self)

    def forget_held(self, publisher: Holdable) -> None:
        """A publisher that was held has gone. Implements :class:`~sbuslib.core.protocols.Holder`."""
        self.held.discard(publisher)

    # -- the end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Take no more, and return once the writer has ended."""
        if not self.closed:
            self._leave()
            self.on_close()
            self._context.members.forget_inbox(self)
        elif not self._writer.is_abandoned:
            self.ended.wait()

    def give_up(self) -> int:
        """Take no more, since the writer has ended; how many messages were on their way to it, or missed before."""
        was_closed = self.closed
        if not was_closed:
            self._leave()
        if stopped := self._writer.queued_records:
            self.lost["stopped"] = stopped
        if not was_closed:
            self._context.members.forget_inbox(self)
        return sum(self.lost.values())

    def _leave(self) -> None:
        if self._context.is_serving:
            self._context.check_here()
        self._is_full = False
        self.hand_over()
        self.closed = True
        self._timer.close()
        self._let_go()
        self._ready.set()

    # -- what others see ----------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many messages can be taken: none, as the writer takes them."""
        return 0

    @property
    def queued(self) -> int:
        """Messages that are not written yet, nor lost."""
        return self.waiting + self._writer.queued_records if not self._writer.finished else 0

    @property
    def delivered(self) -> int:
        """Messages taken by the writer; once closed, all that were not lost."""
        return self.routed - sum(self.lost.values()) - (0 if self.closed else self.queued)

    def statistics(self) -> ClientStatistics:
        """This recorder as a receiver, at this instant."""
        queued = self.queued
        return msgspec.structs.replace(
            super().statistics(),
            delivered=self.routed - sum(self.lost.values()) - queued,
            queued=queued,
            soft="queue",
            hard="block" if self._hold else "discard",
        )
