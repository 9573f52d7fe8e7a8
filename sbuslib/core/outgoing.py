"""What a hub sends to one client: at once, later or not at all. The sending half of a connection.

The table of what happens to a message that cannot be sent at once stands in :mod:`sbuslib.core.outbox`; this
module acts on it. A socket that would block is watched until it is writable; a publisher that is to be
held has its own reading stopped, by nothing more than stopping a watcher, so it alone waits.

Deliveries happen in the middle of the turn of another client, while the hub's area is in use. So nothing
here logs, calls a stranger's code or closes anything: a receiver that has to go is *condemned*, which the hub
carries out when the turn has ended.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from contextlib import suppress
from time import time
from typing import TYPE_CHECKING, Any, cast

from ..secrets import Credentials
from ..wire.batches import Bundle, Parcel
from ..wire.control import Lost
from .outbox import Action, Cause, Outbox
from .parties import Batch, Holdable, Sender
from .quotas import Account

if TYPE_CHECKING:
    from ..hub import Hub

__all__ = ["READ", "WRITE", "Delivery"]

READ, WRITE = 1, 2  # gevent's names for libev's EV_READ and EV_WRITE


class Delivery:
    """The sending half of a client. Implements :class:`~sbuslib.core.parties.Receiver` and ``Holder``."""

    __slots__ = (
        "__weakref__",
        "_batches",
        "_block_timer",
        "_direct",
        "_doomed",
        "_echo",
        "_held",
        "_held_for_room",
        "_hub",
        "_mute",
        "_notices",
        "_outbox",
        "_refusal",
        "_refused",
        "_refused_since",
        "_retry",
        "_senders",
        "_standing_answers",
        "_writer",
        "account",
        "closed",
        "credentials",
        "delivered",
        "grown",
        "routed",
        "socket",
    )

    def __init__(self, hub: Hub, sock: socket.SocketType, credentials: Credentials, account: Account) -> None:
        self._hub = hub
        self.socket = sock
        self.credentials = credentials
        self.account = account
        self.closed = False
        self.grown = False  # whether the kernel was asked for the full send buffer
        self.routed = 0
        self.delivered = 0
        self._echo = True
        self._senders = False
        self._batches = False
        self._notices = False
        self._mute = False  # the other end takes nothing any more, though what it sent may still be unread
        self._doomed = False  # it is to be let go when the turn has ended
        self._direct = True  # nothing waits, nothing is to be told, nothing is to be added: send straight on
        self._outbox: Outbox | None = None  # made when it is first needed: most clients keep up
        # Why messages of a user, from so many bytes on, are lost as long as nothing is released or sent, and the
        # account's count of releases: one that stopped reading costs those who publish next to nothing.
        self._refusal: tuple[int, int, int, Cause] | None = None
        self._refused = 0  # how many were lost so and are not counted in the outbox yet
        self._refused_since = 0.0
        self._writer: Any = None
        self._retry: Any = None
        self._held: set[Holdable] = set()
        self._held_for_room = False
        self._block_timer: Any = None
        self._standing_answers = 0  # in the line of this client's user

    # -- messages -----------------------------------------------------------------------------------

    def deliver(self, sender: Sender, batch: Batch, slots: Sequence[int]) -> None:
        """Send the packets in ``slots`` on, or do with them as the receiver chose."""
        if not self._echo and sender is cast(Sender, self):
            return
        line = self.account.standing
        if line is not None and not self._mute and line.takes(sender):
            line.add(self, sender, batch, slots)
            return
        if self._batches and len(slots) >= self._hub.limits.gathered:
            bundle = batch.bundle(slots, self._hub.limits.gathered_bytes)
            if bundle is not None:
                self._deliver_bundle(sender, bundle)
                return
        self.routed += len(slots)
        if self._refusal is not None:
            uid, shortest, releases, _ = self._refusal
            if sender.credentials.uid == uid and batch.shortest >= shortest and self.account.releases == releases:
                self._refused += len(slots)
                return
            self._end_refusal()
            self._update()
        if self._direct:
            sent = 0
            try:
                sent = batch.area.send(self.socket, slots, batch.lengths)
            except OSError as error:
                self._send_failed(error.errno)
            self.delivered += sent
            if sent == len(slots):
                return
            slots = slots[sent:]
            if self._grow():
                slots = self._send_now(sender, batch, slots)
        elif not self._waits():
            slots = self._send_now(sender, batch, slots)
            if slots and self._grow():
                slots = self._send_now(sender, batch, slots)
            if not (self._senders or self._batches):
                self._update()
        if slots and not self._refuse(sender, batch, slots):
            self._offer(sender, batch.packets(slots))

    def _end_refusal(self) -> None:
        """The reason for which the last messages were lost may not hold any more."""
        self._count_refused()
        self._refusal = None

    def _count_refused(self) -> None:
        """Count what was lost for the same reason as the message before it, which is put off to be cheap."""
        if self._refused and self._refusal is not None and self._outbox is not None:
            self._outbox.lose(self._refusal[3], self._refused, self._refused_since)
            self._refused = 0

    def _refuse(self, sender: Sender, batch: Batch, slots: Sequence[int]) -> bool:
        """Lose messages where that is certain before they are copied; whether it was."""
        outbox = self._outbox
        if outbox is None or self._mute:
            return False
        may_hold = sender.holdable_by(self) is not None
        cause = outbox.refuses(sender.credentials.uid, may_hold, batch.shortest)
        if cause is None:
            return False
        outbox.lose(cause, len(slots), time())
        # What block means is not the same for every publisher; and one that discards takes what it can at any time.
        if cause != "discard" and "block" not in (outbox.soft, outbox.hard):
            self._refusal = (sender.credentials.uid, batch.shortest, self.account.releases, cause)
            self._refused_since = time()
        if self._direct or self._notices:
            self._update()
        return True

    def _send_now(self, sender: Sender, batch: Batch, slots: Sequence[int]) -> Sequence[int]:
        """Send what the kernel takes; the slots of what it did not."""
        sent = 0
        try:
            if self._senders:
                sent = batch.area.send_wrapped(self.socket, sender.wrapper, slots, batch.lengths)
            else:
                sent = batch.area.send(self.socket, slots, batch.lengths)
        except OSError as error:
            self._send_failed(error.errno)
        self.delivered += sent
        return slots[sent:]

    def deliver_packet(self, sender: Sender, packet: bytes) -> None:
        """Send one packet, or do with it as the receiver chose."""
        if not self._echo and sender is cast(Sender, self):
            return
        line = self.account.standing
        if line is not None and not self._mute and line.takes(sender):
            line.add_packet(self, sender, packet)
            return
        self.routed += 1
        if not self._waits():
            wrapped = sender.wrapper + packet if self._senders else packet
            if self._send_one(wrapped) or (self._grow() and self._send_one(wrapped)):
                self.delivered += 1
                return
        self._offer(sender, [packet])

    def deliver_bundle(self, sender: Sender, bundle: Bundle) -> None:
        """Send messages that came together on, or do with each as the receiver chose."""
        if not self._echo and sender is cast(Sender, self):
            return
        line = self.account.standing
        if line is not None and not self._mute and line.takes(sender):
            line.add_bundle(self, sender, bundle)
            return
        if self._batches and bundle.count > 1:
            self._deliver_bundle(sender, bundle)
            return
        packets = bundle.plain
        self.routed += len(packets)
        if not self._waits():
            packets = self._send_several(sender, packets)
            if packets and self._grow():
                packets = self._send_several(sender, packets)
        if packets:
            self._offer(sender, packets)

    def _send_several(self, sender: Sender, packets: list[bytes]) -> list[bytes]:
        """Send what the kernel takes of packets that lie elsewhere; what it did not."""
        sent = 0
        try:
            wrapped = [sender.wrapper + packet for packet in packets] if self._senders else packets
            sent = self._hub.gather.send(self.socket, wrapped)
        except OSError as error:
            self._send_failed(error.errno)
        self.delivered += sent
        return packets[sent:]

    def _deliver_bundle(self, sender: Sender, bundle: Bundle) -> None:
        self.routed += bundle.count
        if not self._waits():
            packet = sender.wrapper + bundle.packet if self._senders else bundle.view
            if self._send_one(packet) or (self._grow() and self._send_one(packet)):
                self.delivered += bundle.count
                return
        if not (self._mute or self._doomed):
            publisher = sender.holdable_by(self)
            outbox, uid = self.outbox, sender.credentials.uid
            cause = outbox.refuses(uid, publisher is not None, bundle.least)
            if cause is not None:
                outbox.lose(cause, bundle.count, time())
                self._update()
                return
            parcel = Parcel.of(bundle, sender.wrapper if self._senders else b"")
            action = outbox.offer_parcel(parcel, uid, publisher is not None, time())
            if action is not None:
                self._carry(action, publisher)
                return
        self._offer(sender, bundle.plain)

    def _send_one(self, packet: bytes | memoryview) -> bool:
        """Send a packet that is no part of a turn's; ``False`` if the kernel does not take it."""
        try:
            return bool(self._hub.gather.send(self.socket, (packet,)))
        except OSError as error:
            self._send_failed(error.errno)
            return False

    def _grow(self) -> bool:
        """The kernel takes no more: whether it does after it was asked for the full buffer."""
        return not (self.grown or self._mute) and self._hub.buffers.grow(self)

    def _waits(self) -> bool:
        """Whether something has to go before the next message, or nothing goes at all."""
        return self._mute or bool(self._outbox) or not self._report()

    def _offer(self, sender: Sender, packets: list[bytes]) -> None:
        """Leave messages that cannot be sent at once to the table."""
        outbox = self.outbox
        if self._mute:
            # Of one that is closed only the index has not heard yet; it counts no more.
            if self.closed:
                self.routed -= len(packets)
            else:
                outbox.lose("outage", len(packets), time())
            return
        if self._doomed:
            outbox.lose("discard", len(packets), time())
            return
        if self._senders:
            packets = [sender.wrapper + packet for packet in packets]
        publisher = sender.holdable_by(self)
        self._carry(outbox.offer(packets, sender.credentials.uid, publisher is not None, time()), publisher)

    def _carry(self, action: Action, publisher: Holdable | None) -> None:
        """Do what the table said."""
        if action is Action.HOLD:
            assert publisher is not None
            self._hold(publisher)
        elif action is Action.DISCONNECT:
            self._doomed = True
            self._hub.condemn(self, "does not keep up, and asked for error")
        self._update()

    # -- answers ------------------------------------------------------------------------------------

    def answer(self, packet: bytes) -> None:
        """Send or queue an answer or a notice: never lost while the client is there."""
        if self._mute:
            return
        if self.account.standing is not None:
            stands = self.account.standing.add_answer(self, packet)
            self._standing_answers += stands
            if not stands or self.answers > self._hub.limits.queued_answers:
                self._hub.condemn(self, "too many unread answers")
            return
        if len(packet) > self._hub.limits.idle_send_buffer:
            self._hub.buffers.grow(self, for_good=True)  # only those who are trusted get such
        if not self._waits() and self._send_one(packet):  # after what was lost: that is told first
            return
        if not self._mute and not self.outbox.push_answer(packet):
            self._hub.condemn(self, "too many unread answers")
        self._update()

    def answer_from_line(self, packet: bytes) -> None:
        """The line of this client's user has come to an answer."""
        self._standing_answers -= 1
        self.answer(packet)

    def miss(self, cause: Cause, count: int, since: float) -> None:
        """Count messages as lost that were never offered to this client."""
        if self.closed:
            self._hub.count_lost(cause, count)
            return
        self.routed += count
        self.outbox.lose(cause, count, since)
        self._update()

    def _report(self) -> bool:
        """Tell what was lost, to a client that asked for notices; ``False`` when the kernel does not take it now."""
        self._count_refused()
        outbox = self._outbox
        if outbox is None or not (self._notices and outbox.has_report):
            return True
        report = outbox.take_report()
        sent = 0
        try:
            sent = self._hub.gather.send(self.socket, [Lost(*each).encode() for each in report])
        except OSError as error:
            self._send_failed(error.errno)
        outbox.put_report_back(report[sent:])
        return sent == len(report)

    # -- state --------------------------------------------------------------------------------------

    @property
    def outbox(self) -> Outbox:
        """What waits, and the modes."""
        if self._outbox is None:
            self._outbox = Outbox(self._hub.limits, self.account)
            self._outbox.tells = self._notices
        self._count_refused()
        return self._outbox

    @property
    def refuses(self) -> bool:
        """Whether the last messages for this client were lost, and the next will be."""
        return self._refusal is not None

    @property
    def answers(self) -> int:
        """Answers and notices that wait for this client."""
        return self._standing_answers + (self._outbox.answers if self._outbox is not None else 0)

    @property
    def wants_notices(self) -> bool:
        """Whether this client asked for notices."""
        return self._notices

    @property
    def queued(self) -> int:
        """Messages that wait for this client."""
        return self._outbox.messages if self._outbox is not None else 0

    @property
    def hands_on(self) -> bool:
        """What leaves it is with the kernel. Implements :class:`~sbuslib.tree.unsent.Behind`."""
        return False

    @property
    def in_order(self) -> bool:
        """Whether messages that wait are sent oldest first. Implements :class:`~sbuslib.tree.unsent.Behind`."""
        return self._outbox is None or self._outbox.order == "queue"

    @property
    def lost(self) -> dict[str, int]:
        """Messages lost, by cause."""
        self._count_refused()
        return dict[str, int](self._outbox.lost.items()) if self._outbox is not None else {}

    def _update(self) -> None:
        """Bring the watcher and the shortcut into line with what waits."""
        outbox = self._outbox
        waits = outbox is not None and (
            bool(outbox) or self._refusal is not None or (self._notices and outbox.has_report)
        )
        self._direct = not (waits or self._mute or self._senders or self._batches)
        self._hub.tree.backlog.note(self, waits and not self._mute)
        if waits and not self._mute:
            if self._writer is None:
                self._writer = self._hub.loop.io(self.socket.fileno(), WRITE)
                self._writer.start(self._on_writable)
        else:
            self._stop_writer()

    def set_senders(self, on: bool) -> None:
        """Whether messages are delivered with their sender."""
        if on is not self._senders:
            self._hub.tree.count_senders(1 if on else -1)
        self._senders = on
        self._update()

    @property
    def takes_batches(self) -> bool:
        """Whether this client asked for many messages in one packet."""
        return self._batches

    def set_batches(self, on: bool) -> None:
        """Whether messages may be delivered many in one packet. When not, those that wait so are taken apart."""
        self._batches = on
        if not on and self._outbox is not None:
            self._outbox.open_parcels()
        self._update()

    def set_notices(self, on: bool) -> None:
        """Whether losses and such are told."""
        self._notices = on
        if self._outbox is not None:
            self._outbox.tells = on
        self._update()

    def notify(self, packet: bytes) -> None:
        """Send a notice to a client that asked for them."""
        if self._notices:
            self.answer(packet)

    def notify_last(self, packet: bytes) -> None:
        """Send a notice to a client that is about to be let go, ahead of what waits for it.

        Such a client has often filled its buffer, so that is made larger, as far as the kernel allows.
        """
        if self._notices and not self._mute:
            with suppress(OSError):
                if not self._hub.gather.send(self.socket, (packet,)):
                    size = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
                    self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)  # of which it makes twice that
                    self._hub.gather.send(self.socket, (packet,))

    # -- the socket ---------------------------------------------------------------------------------

    def _on_writable(self) -> None:
        scheduler = self._hub.scheduler
        if scheduler.may_go(self.account):
            self._send_on()
            scheduler.went()
        else:
            self._writer.stop()
            scheduler.postpone(self.account, self._watch_again)

    def _watch_again(self) -> None:
        """What waits for this client may be sent on now."""
        if self._writer is not None and self._retry is None:
            self._writer.start(self._on_writable)
            self._on_writable()

    def _send_on(self) -> None:
        """Send on what waits, one batch of it."""
        self._end_refusal()
        outbox = self._outbox
        assert outbox is not None
        if not outbox:
            told = self._report()
            self._update()
            if not told and not self._mute:
                self._pause_sending()
            return
        packets = outbox.take(self._hub.limits.batch)
        sent = failure = 0
        try:
            sent = self._hub.gather.send(self.socket, packets)
        except OSError as error:
            # Its number alone: the error knows this frame, and would keep the client until garbage is collected.
            failure = error.errno or errno.EIO
        grew = sent < len(packets) and self._grow()
        if failure == errno.EMSGSIZE and not grew and isinstance(packets[0], Parcel):
            outbox.settle(0)
            outbox.open_parcels()  # each alone may fit
        elif failure == errno.EMSGSIZE and not grew:
            outbox.lose("oversize" if self.grown else "quota", outbox.settle(1), time())
        else:
            self.delivered += outbox.settle(sent)
            if failure and not grew and not self._send_failed(failure):
                self._pause_sending()
                return
        self._release_held()
        self._update()
        self._hub.tree.backlog.check()
        if not outbox:
            self._flushed(outbox)
        self._hub.carry_out()

    def _send_failed(self, code: int | None) -> bool:
        """A send failed for another reason than that the receiver is slow; whether for good."""
        if code in (errno.ENOBUFS, errno.ENOMEM, errno.EMSGSIZE):
            return False  # the packet is queued, and the queue's own sending tells these apart
        # Such as EPIPE or ECONNRESET: the other end is gone, or takes nothing. Whatever it sent before is
        # still read, up to the packet of length zero that ends it.
        self._mute = True
        if self._outbox is not None:
            self._outbox.clear("outage", time())
            self._flushed(self._outbox)
        self._release_held()
        self._update()
        return True

    def _flushed(self, outbox: Outbox) -> None:
        """Nothing waits any more."""
        self._end_refusal()
        self._hub.flushed(outbox.freed)
        outbox.freed = 0

    def _pause_sending(self) -> None:
        """The kernel had no memory: it would call the socket writable all the same, so let time pass."""
        self._writer.stop()
        self._retry = self._hub.loop.timer(self._hub.limits.send_retry)
        self._retry.start(self._resume_sending)

    def _resume_sending(self) -> None:
        self._stop_writer()
        self._update()

    def _stop_writer(self) -> None:
        for watcher in (self._writer, self._retry):
            if watcher is not None:
                watcher.stop()
                watcher.close()
        self._writer = self._retry = None

    # -- holding publishers back --------------------------------------------------------------------

    def _hold(self, publisher: Holdable) -> None:
        self._held_for_room = self.outbox.soft != "block"
        self._held.add(publisher)
        publisher.hold(self)
        if self._block_timer is None:
            self._block_timer = self._hub.loop.timer(self._hub.limits.block_timeout)
            self._block_timer.start(self._on_block_timeout)

    def _on_block_timeout(self) -> None:
        self._hub.condemn(self, "held publishers back for too long")
        self._hub.carry_out()

    def _release_held(self, anyway: bool = False) -> None:
        """Let publishers go on for whom there is room, or all once this receiver is none to wait for."""
        for publisher in [*self._held]:
            if anyway or self._mute or self._has_room(publisher):
                self.forget_held(publisher)
                publisher.let_go(self)

    def _has_room(self, publisher: Holdable) -> bool:
        """Whether what a held publisher waits for has come."""
        outbox = self.outbox
        if not outbox:
            return True
        uid = publisher.credentials.uid
        return self._held_for_room and outbox.is_half_empty() and self.account.has_room(uid)

    def forget_held(self, publisher: Holdable) -> None:
        """A publisher that was held has gone."""
        self._held.discard(publisher)
        if not self._held and self._block_timer is not None:
            self._block_timer.stop()
            self._block_timer.close()
            self._block_timer = None

    def changed_modes(self) -> None:
        """The receiver chose another mode: whoever is held is held anew, if the new one says so."""
        self._end_refusal()
        self._release_held(anyway=True)

    def _close_sending(self) -> None:
        self.set_senders(False)
        self.closed = self._mute = True
        self._hub.buffers.release(self)
        if self._outbox is not None:
            self._outbox.clear("outage", time())
            self._flushed(self._outbox)
        self._release_held()
        self._update()
