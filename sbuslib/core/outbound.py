"""Sending to one client: at once, later or not at all.

The table in :mod:`.outbox` decides about a message that cannot be sent at once; this module acts on it. A
socket that would block is watched until it is writable. :mod:`.backpressure` pauses publishers.

A packet that was sent waits in the kernel until the client reads it, in memory that is charged to the hub's process and
not to the client's. So each connection begins with a small send buffer, which is enough for a client that is idle or
keeps up. When a client falls behind, or a packet is longer, it gets the full one, charged to its user, of
``Limits.send_buffers`` bytes in all. When its user's share is used up, it goes on with the small one. It queues in the
hub sooner, and a message that is longer than the small buffer is lost (cause ``quota``).

Messages are delivered in the middle of the turn of another client, while the hub's receive buffer is in use. So nothing
here logs, calls a stranger's code or closes anything: a receiver that has to go is kicked when the turn has ended
(:meth:`.Running.kick_later`).
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from socket import SO_SNDBUF, SOL_SOCKET, SocketType
from time import time
from typing import ClassVar, Final, assert_never

from ..kernel.sockets import set_send_buffer
from ..reasons import Reason
from ..secrets import OVERFLOW_ID, Credentials
from ..wire.batches import QueuedBatch
from ..wire.control import Lost
from .backpressure import Backpressure
from .context import Context
from .losses import Cause, DropCache
from .messages import Batched, Messages
from .outbox import Action, Outbox
from .protocols import Pausable, Queue, Sender
from .quotas import Account
from .records import ClientRecord, OutboxRecord, Totals
from .running import Running
from .send_watcher import SendWatcher

READ: Final = 1
"""gevent's name for libev's EV_READ."""


_OUTCOMES: Final = {Action.KEEP: "waits", Action.HOLD: "held", Action.LOSE: "lost", Action.DISCONNECT: "kicked"}


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Outbound:
    """The sending half of a client. Routes hold this object.

    Implements :class:`~.protocols.Receiver`, :class:`~.protocols.Pauser` and :class:`~.delivery_barrier.Pending`.
    """

    hands_on: ClassVar = False  # what leaves the outbox is with the kernel

    _context: Context
    socket: SocketType
    credentials: Credentials
    account: Account
    _running: Running = field(init=False)
    closed: bool = False
    is_link: bool = False  # whether the client is a child
    takes_batches: bool = False
    wants_notices: bool = False
    kicked: bool = False  # by its hub
    is_monitor: bool = False  # its subscriptions make it no addressee
    grown: bool = False  # whether the kernel was asked for the full send buffer
    routed: int = 0
    delivered: int = 0
    _owner: Sender | None = None  # its messages are not sent to this client: set by echo/off
    _senders: bool = False
    _mute: bool = False  # the other end takes nothing any more; packets from it may still be unread
    _doomed: bool = False  # it will be kicked when the turn has ended
    _direct: bool = True  # nothing waits, no notice is due, no wrapper is added: send straight on
    _outbox: Outbox | None = None  # made when first needed: most clients keep up
    _drop_cache: DropCache | None = None  # why the next messages will be lost as well
    _watcher: SendWatcher | None = None  # while anything waits
    _backpressure: Backpressure | None = None
    _queued_answers: int = 0  # answers in the fan-out queue of this client's user

    def __post_init__(self) -> None:
        self._running = self._context.running

    # -- messages -----------------------------------------------------------------------------------

    def deliver(self, sender: Sender, messages: Messages) -> None:
        """Send messages. If that is not possible at once, do what the receiver chose."""
        # 1. Not for this client, or not now: its user's fan-out queue goes first.
        if sender is self._owner:
            return
        queue: Queue | None = self.account.queue
        if queue is not None and not self._mute and queue.takes(sender):
            queue.add(self, sender, messages)
            return

        # 2. In the form that this client takes.
        if self.takes_batches:
            messages = messages.as_batch() or messages
        elif messages.is_batch:
            messages = messages.as_packets()
        count = messages.count
        self.routed += count

        # 3. What was lost a moment ago is lost again, at next to no cost.
        if self._drop_cache is not None:
            if self._drop_cache.loses(sender.credentials.uid, messages.shortest, self.account.releases, count):
                return
            self._drop_cache = None
            self._update()

        # 4. Straight on while nothing waits; else the order is kept.
        sent = 0
        if self._direct:
            try:
                sent = messages.send(self.socket)
            except OSError as error:
                self._send_failed(error.errno)
            self.delivered += sent
        elif self._waits():
            self._queue(sender, messages)
            return
        else:
            sent = self._send_now(sender, messages)
            if not self._senders:
                self._update()

        # 5. The kernel took not all: once more with the full buffer, and the rest waits or is lost.
        if sent < count and self.grow():
            messages = messages.after(sent) if sent else messages
            count -= sent
            sent = self._send_now(sender, messages)
        if sent < count:
            self._queue(sender, messages.after(sent) if sent else messages)

    def _send_now(self, sender: Sender, messages: Messages) -> int:
        """Send what the kernel takes. Returns how many messages it took."""
        sent = 0
        try:
            wrapper = sender.wrapper if self._senders else None
            sent = messages.send(self.socket) if wrapper is None else messages.send_wrapped(self.socket, wrapper)
        except OSError as error:
            self._send_failed(error.errno)
        self.delivered += sent
        return sent

    def foresee(self, sender: Sender | None, uid: int, size: int) -> tuple[str, str]:
        """Return the outcome of :meth:`deliver` for a message of so many bytes now, and the reason if it would be lost.

        Nothing changes. The words are those of :class:`~sbuslib.statistics.ExplainedReceiver`. Without a sender, it is
        from some client of user ``uid``.
        """
        if sender is not None and sender is self._owner:
            return "echo", ""
        if self._mute or self._doomed:
            return "gone", ""
        if self.account.queue is not None and uid != self.account.uid:
            return ("waits", "") if self.account.fan_out.has_room(uid, size) else ("lost", "quota")
        if not self._outbox:
            return "sent", ""
        if sender is not None:
            may_hold = sender.holdable_by(self) is not None
        else:
            may_hold = self._context.may_hold(Credentials(gid=OVERFLOW_ID, uid=uid, pid=0), self.credentials)
        action, cause = self._outbox.foresee(size, uid, may_hold)
        return _OUTCOMES[action], cause or ""

    def _queue(self, sender: Sender, messages: Messages) -> None:
        """Do with messages that cannot be sent at once what the table says."""
        outbox, count = self.outbox, messages.count
        if self._mute:
            # A client that is closed may still stand in routes for a moment. Its messages are not counted.
            if self.closed:
                self.routed -= count
            else:
                outbox.losses.add("outage", count, time())
            return
        if self._doomed:
            outbox.losses.add("discard", count, time())
            return
        publisher, uid = sender.holdable_by(self), sender.credentials.uid
        # Messages that are certain to be lost are not copied first.
        cause = outbox.why_lost(uid, publisher is not None, messages.shortest)
        if cause is not None:
            self._refuse(cause, uid, messages)
            return
        wrapper = sender.wrapper if self._senders else b""
        if isinstance(messages, Batched):
            batch = QueuedBatch.of(messages.batch, wrapper)
            action = outbox.offer_batch(batch, uid, publisher is not None)
            if action is not None:
                self._carry_out(action, publisher)
                return
        packets = messages.packets()
        if wrapper:
            packets = [wrapper + packet for packet in packets]
        self._carry_out(outbox.offer(packets, uid, publisher is not None, time()), publisher)

    def _refuse(self, cause: Cause, uid: int, messages: Messages) -> None:
        """Lose messages, and remember why."""
        now = time()
        self.outbox.losses.add(cause, messages.count, now)
        # ``block`` does not mean the same for every publisher. A receiver that discards may take the next message.
        if cause != "discard" and "block" not in (self.outbox.soft, self.outbox.hard):
            drop_cache = DropCache(cause, uid, messages.shortest, self.account.releases, now)
            self._drop_cache = self.outbox.losses.refuse(drop_cache)
        if self._direct or self.wants_notices:
            self._update()

    def grow(self, anyway: bool = False) -> bool:
        """The kernel takes no more: ask it for the full send buffer. Returns whether it may take more now.

        It may not if the client has that buffer, or if its user's share is used up; ``anyway``: beyond the share, too.
        """
        context, uid = self._context, self.account.uid
        if self.grown or self._mute:
            return False
        size = 2 * context.limits.send_buffer  # which is what the kernel makes of it
        if anyway:
            context.quotas.send_buffers.force(uid, size)
        elif not context.quotas.send_buffers.take(uid, size):
            return False

        self.grown = True
        set_send_buffer(self.socket, context.limits.send_buffer)
        return True

    def _waits(self) -> bool:
        """Whether the next message cannot be sent at once: something goes before it, or the client takes nothing."""
        return self._mute or bool(self._outbox) or not self._report()

    def _carry_out(self, action: Action, publisher: Pausable | None) -> None:
        match action:
            case Action.KEEP | Action.LOSE:
                pass  # the outbox did it
            case Action.HOLD:
                assert publisher is not None
                self.pause(publisher)
            case Action.DISCONNECT:
                self._doomed = True
                self._running.kick_later(self, Reason.DOES_NOT_KEEP_UP)
            case _:
                assert_never(action)
        self._update()

    def miss(self, cause: Cause, count: int, since: float) -> None:
        """Count messages that were lost before they reached this client's queue."""
        if self.closed:
            self._context.counts.add(self.account.uid, Totals(routed=count, lost={cause: count}))
            return
        self.routed += count
        self.outbox.losses.add(cause, count, since)
        if self.wants_notices:
            self._update()

    # -- answers ------------------------------------------------------------------------------------

    def answer(self, *packets: bytes) -> None:
        """Send or queue answers or notices: never lost while the client is there."""
        if self._mute:
            return

        # 1. Its user's fan-out queue goes first.
        context = self._context
        queue: Queue | None = self.account.queue
        if queue is not None:
            for packet in packets:
                queued = queue.add_answer(self, packet)
                self._queued_answers += queued
                if not queued or self.answers > context.limits.queued_answers:
                    self._running.kick_later(self, Reason.UNREAD_ANSWERS)
            return

        # 2. At once, or in order.
        if max(map(len, packets), default=0) > context.limits.idle_send_buffer:
            self.grow(anyway=True)  # only trusted clients get answers that long
        sent = 0 if self._waits() else self._send_answers(packets)  # _waits sends the notices of losses first
        if sent == len(packets):
            return
        for packet in packets[sent:]:
            if not self._mute and not self.outbox.push_answer(packet):
                self._running.kick_later(self, Reason.UNREAD_ANSWERS)
        self._update()

    def _send_answers(self, packets: Sequence[bytes]) -> int:
        """Send packets that are no messages. Returns how many the kernel took."""
        try:
            return self._running.writer.send(self.socket, packets)
        except OSError as error:
            self._send_failed(error.errno)
            return 0

    def answer_from_queue(self, packet: bytes) -> None:
        """The fan-out queue of this client's user has come to an answer."""
        self._queued_answers -= 1
        self.answer(packet)

    def notify(self, packet: bytes) -> None:
        """Send a notice to a client that asked for them."""
        if self.wants_notices:
            self.answer(packet)

    def notify_last(self, packet: bytes) -> None:
        """Send a notice to a client that is about to be kicked, ahead of the messages that wait for it.

        The buffer of this client is often full, so it is made larger, as far as the kernel allows.
        """
        if self.wants_notices and not self._mute:
            with suppress(OSError):
                if not self._running.writer.send(self.socket, (packet,)):
                    size = self.socket.getsockopt(SOL_SOCKET, SO_SNDBUF)
                    self.socket.setsockopt(SOL_SOCKET, SO_SNDBUF, size)  # the kernel doubles it
                    self._running.writer.send(self.socket, (packet,))

    def _report(self) -> bool:
        """Send notices of losses to a client that asked for them. ``False``: the kernel does not take all of them
        now.
        """
        outbox = self._outbox
        if outbox is None or not (self.wants_notices and outbox.losses.unreported):
            return True
        report = outbox.losses.take_report()
        sent = self._send_answers([Lost(*each).encode() for each in report])
        outbox.losses.put_report_back(report[sent:])
        return sent == len(report)

    # -- waiting messages ---------------------------------------------------------------------------

    @property
    def outbox(self) -> Outbox:
        """The packets that wait for this client, and its modes."""
        if self._outbox is None:
            self._outbox = Outbox(self._context.limits, self.account)
            self._outbox.has_notices = self.wants_notices
        return self._outbox

    @property
    def has_outbox(self) -> bool:
        """Whether the outbox was ever needed: something waited, or the client chose a mode."""
        return self._outbox is not None

    @property
    def answers(self) -> int:
        return self._queued_answers + (self._outbox.answers if self._outbox is not None else 0)

    @property
    def queued(self) -> int:
        return self._outbox.messages if self._outbox is not None else 0

    @property
    def is_hub(self) -> bool:
        """Whether this is a child that may be waited for. Implements :class:`~.delivery_barrier.Pending`."""
        return self.is_link and self.credentials.uid in self._context.trusted

    @property
    def in_order(self) -> bool:
        return self._outbox is None or self._outbox.order == "queue"

    @property
    def lost(self) -> dict[str, int]:
        return dict(self._outbox.losses.total) if self._outbox is not None else {}

    def _update(self) -> None:
        """Watch the socket if anything waits, and send straight on if nothing does."""
        outbox = self._outbox
        waits = outbox is not None and (
            bool(outbox) or self._drop_cache is not None or bool(self.wants_notices and outbox.losses.unreported)
        )
        self._direct = not (waits or self._mute or self._senders)
        self._running.delivery_barrier.note(self, waits and not self._mute)
        if waits and not self._mute:
            if self._watcher is None:
                self._watcher = SendWatcher(self._running, self.account.uid, self.socket, self._send_on)
        elif self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    @property
    def key(self) -> bytes:
        return self._context.router.namespace.credential_key(self.credentials)

    def become_link(self, owner: Sender) -> None:
        """This client is a child: what ``owner`` publishes never comes back, and it gets the full buffer."""
        self.is_link = True
        self.set_echo(owner)
        self.grow(anyway=True)

    # -- for a hub that takes over ------------------------------------------------------------------

    def outbox_record(self) -> OutboxRecord | None:
        return self.outbox.record() if self._outbox is not None else None

    def restore(self, record: ClientRecord, owner: Sender) -> None:
        """Be what this client's connection was on the hub before; ``owner`` is the client as a publisher."""
        self.routed, self.delivered = record.routed, record.delivered
        self.takes_batches, self.wants_notices = record.batches, record.notices
        self.is_monitor = record.monitor
        self._owner = None if record.echo else owner
        if record.grown:
            self._context.quotas.send_buffers.force(self.account.uid, 2 * self._context.limits.send_buffer)
            self.grown = True
        if record.outbox is not None:
            self.outbox.restore(record.outbox)
        self.set_senders(record.senders)

    # -- what the client chose ----------------------------------------------------------------------

    def set_echo(self, owner: Sender | None) -> None:
        """Send nothing from this sender to this client; ``None``: send from all."""
        self._owner = owner

    def set_senders(self, on: bool) -> None:
        self._senders = on
        self._update()

    @property
    def has_echo(self) -> bool:
        """Whether its own messages are sent to it."""
        return self._owner is None

    @property
    def wants_senders(self) -> bool:
        """Whether this client asked for messages with their sender."""
        return self._senders

    def set_batches(self, on: bool) -> None:
        """Choose whether messages may be delivered in batches. If not, waiting batches are taken apart."""
        self.takes_batches = on
        if not on and self._outbox is not None:
            self._outbox.open_batches()
        self._update()

    def set_notices(self, on: bool) -> None:
        self.wants_notices = on
        if self._outbox is not None:
            self._outbox.has_notices = on
        self._update()

    def changed_modes(self) -> None:
        """The receiver chose another mode. Release all publishers: the new mode may hold them again."""
        self._drop_cache = None
        self._resume_paused(anyway=True)

    # -- the socket ---------------------------------------------------------------------------------

    def _send_on(self) -> None:
        """Send waiting packets: as many as one call takes."""
        self._drop_cache = None  # the reason why the last messages were lost may no longer hold
        outbox = self._outbox
        assert outbox is not None
        if not outbox:
            told = self._report()
            self._update()
            if not told and self._watcher is not None:
                self._watcher.wait_for_memory()
            return
        packets = outbox.take(self._context.limits.batch)
        sent = failure = 0
        try:
            sent = self._running.writer.send(self.socket, packets)
        except OSError as error:
            # The number alone: the error refers to this frame, and would keep the client until garbage is collected.
            failure = error.errno or errno.EIO
        grew = sent < len(packets) and self.grow()
        if failure == errno.EMSGSIZE and not grew and isinstance(packets[0], QueuedBatch):
            outbox.settle(0)
            outbox.open_batches()  # each message alone may fit
        elif failure == errno.EMSGSIZE and not grew:
            outbox.losses.add("oversize" if self.grown else "quota", outbox.settle(1), time())
        else:
            self.delivered += outbox.settle(sent)
            if failure and not grew and not self._send_failed(failure):
                if self._watcher is not None:
                    self._watcher.wait_for_memory()
                return
        self._resume_paused()
        self._update()
        self._running.delivery_barrier.check()
        if not outbox:
            self._on_empty()

    def _send_failed(self, code: int | None) -> bool:
        """A send failed, and not because the receiver is slow. Returns whether nothing can ever be sent again."""
        if code in (errno.ENOBUFS, errno.ENOMEM, errno.EMSGSIZE):
            return False  # the packet is queued, and _send_on distinguishes these
        # Such as EPIPE or ECONNRESET: the other end has gone, or takes nothing. Packets that it sent before are still
        # read, up to the packet of length zero that ends the connection.
        self._mute = True
        self._lose_all()
        return True

    def _lose_all(self) -> None:
        """Nothing will be sent any more."""
        if self._outbox is not None:
            self._outbox.clear("outage", time())
            self._on_empty()
        self._resume_paused()
        self._update()

    def _on_empty(self) -> None:
        self._drop_cache = None
        self._running.emptied.set()

    def close(self) -> None:
        """Lose all waiting messages. The connection closes the socket."""
        self.closed = self._mute = True
        self._owner = None
        if self.grown:
            self._context.quotas.send_buffers.give(self.account.uid, 2 * self._context.limits.send_buffer)
            self.grown = False
        self._lose_all()
        self._backpressure = None

    # -- holding publishers back --------------------------------------------------------------------

    def pause(self, publisher: Pausable, since: float | None = None) -> None:
        """Hold a publisher back, or hold it as since a time of the monotonic clock."""
        if self._backpressure is None:
            self._backpressure = Backpressure(self, self._context, self._on_block_timeout)
        self._backpressure.pause(publisher, since)

    @property
    def held(self) -> Mapping[Pausable, float]:
        """The publishers that it holds back, and since when."""
        return self._backpressure.publishers if self._backpressure is not None else {}

    def _on_block_timeout(self) -> None:
        self._running.kick_later(self, Reason.HELD_TOO_LONG)

    def _resume_paused(self, anyway: bool = False) -> None:
        """Let those held publishers go on that have room; with ``anyway``, or if the client takes nothing, all."""
        if self._backpressure is not None:
            self._backpressure.resume(lambda held: anyway or self._mute or self.outbox.lets_go(held.credentials.uid))

    def forget_paused(self, publisher: Pausable) -> None:
        if self._backpressure is not None:
            self._backpressure.forget(publisher)
