"""What goes to the hub above: :class:`Up`.

It is one of the hub's receivers, and stays so when the link breaks: what it cannot send it keeps
(:mod:`sbuslib.tree.outage`). What comes from above is in :mod:`sbuslib.tree.above_role`.
"""

from __future__ import annotations

import errno
import socket
from collections import deque
from contextlib import suppress
from time import time
from typing import Any, Final, Protocol

from ..core.messages import COALESCED, COALESCED_BYTES, Messages
from ..core.protocols import Sender
from ..core.quotas import Account
from ..core.send_watcher import SEND_RETRY, WRITE
from ..errors import ReservedKeyError
from ..kernel.dialer import NO_MEMORY
from ..limits import BATCH_KEYS
from ..wire import control
from ..wire.batches import coalesce
from ..wire.packets import MSG
from .acknowledgements import Acknowledgements
from .losses import LinkLosses
from .outage import Item, Kept
from .tree import Tree

__all__ = ["ACK_MESSAGES", "ACK_PAUSE", "Up", "Uplink"]

ACK_MESSAGES: Final = 256
"""Messages sent to the hub above before it is asked to acknowledge that it passed them on. When the link breaks, those
that were not acknowledged count as uncertain; an acknowledgement costs about as much as a message."""

ACK_PAUSE: Final = 0.02
"""Seconds after which an acknowledgement of fewer messages is asked for."""

_OPEN_QUESTIONS: Final = 64
"""Questions for an acknowledgement that may be open at a time. While there are so many, the next question waits, and is
about more messages."""


class Uplink(Protocol):
    """What decides what goes to the hub above."""

    tree: Tree

    @property
    def has_features(self) -> bool:
        """Whether the hub above knows more than the plain protocol."""

    def tell_loss(self, lost: control.Lost) -> None:
        """Tell all others of messages that were lost on their way up."""


_BATCHES: Final = 8
"""How many times as many messages are taken at once where many go into one packet."""


class Up:
    """What goes to the hub above. Implements :class:`~sbuslib.core.protocols.Receiver`."""

    def __init__(self, uplink: Uplink) -> None:
        self._uplink = uplink
        self._tree = uplink.tree
        self._context = self._tree.context
        self.credentials = self._context.credentials
        self.account = Account(self.credentials.uid, self._context.limits)
        """What the hub above wants is charged to itself: neither it nor the clients here take the other's room."""
        self.closed = False
        self.socket: socket.SocketType | None = None
        self.wrap = False  # whether the hub above wants messages with their sender
        self.takes_batches = False  # whether the hub above was told that many messages may be in one packet
        self.open = False  # whether messages may be sent
        self.offered = self.forwarded = self.suppressed = 0
        self.waiting = Kept(self._context.limits.link_packets, self._context.limits.link_buffer)
        self.losses = LinkLosses(self._context, self._tell_loss)
        self._controls: deque[bytes] = deque()
        self._writer: Any = None
        self._acknowledgements = Acknowledgements()
        self._asks_later = False
        self._resumed = False  # whether all that was kept was sent since the link joined

    # -- messages -----------------------------------------------------------------------------------

    @property
    def refuses(self) -> bool:
        """Never. Implements :class:`~sbuslib.core.protocols.Receiver`."""
        return False

    def deliver(self, sender: Sender, messages: Messages) -> None:
        """Send messages up, or keep them."""
        if self.takes_batches:
            messages = messages.as_batch() or messages
        elif messages.is_batch:
            messages = messages.as_packets()
        count, sent = messages.count, 0
        self.offered += count
        if self.open and not self.waiting and not self._controls:
            assert self.socket is not None
            with suppress(OSError):  # the queue's own sending tells why
                wrapper = sender.wrapper if self.wrap else None
                sent = messages.send(self.socket) if wrapper is None else messages.send_wrapped(self.socket, wrapper)
            self._sent(sent)
        if sent < count:
            for packet in (messages.after(sent) if sent else messages).packets():
                self._keep(sender, packet)

    def _keep(self, sender: Sender, packet: bytes) -> None:
        if self.waiting.add(sender, packet):
            self._update()
        else:
            self.losses.note("upstream", 1, time())

    def _tell_loss(self, lost: control.Lost) -> None:
        self._uplink.tell_loss(lost)
        self._settled()

    def _sent(self, count: int) -> None:
        if count:
            first = self.forwarded == self._acknowledgements.acknowledged
            self.forwarded += count
            if first:
                self._context.unsent.note(self, True)
            self._consider_asking()

    # -- acknowledgements ---------------------------------------------------------------------------

    @property
    def acknowledged(self) -> int:
        """Messages that the hub above passed on, as far as it is known."""
        return self._acknowledgements.acknowledged

    @property
    def lag(self) -> float:
        """For how many seconds the hub above has owed an acknowledgement."""
        return self._acknowledgements.lag

    @property
    def open_questions(self) -> int:
        """How many questions for an acknowledgement are open."""
        return len(self._acknowledgements)

    def _consider_asking(self, waited: bool = False) -> None:
        """Ask for an acknowledgement, now or in a while, if there is anything to acknowledge."""
        count = self.forwarded - self._acknowledgements.asked
        if self.socket is None or not count or len(self._acknowledgements) >= _OPEN_QUESTIONS:
            return
        if waited or count >= ACK_MESSAGES:
            packet = self._acknowledgements.ask(self.forwarded, self._uplink.has_features)
            self.waiting.ask(packet)  # before what waits, since it speaks of what was sent
            self._flush()
        elif not self._asks_later:
            self._asks_later = True
            self._context.after(ACK_PAUSE, self._on_pause_over)

    def _on_pause_over(self) -> None:
        self._asks_later = False
        self._consider_asking(waited=True)

    def take_answer(self, token: bytes) -> None:
        """The hub above answered a question for an acknowledgement."""
        self._acknowledgements.answered(token)
        self._settled()
        self._consider_asking()

    def _settled(self) -> None:
        """Messages were acknowledged, or told as lost: so those below may be told that theirs were passed on."""
        self._context.unsent.note(self, bool(self.queued))
        self._context.unsent.check()

    # -- control ------------------------------------------------------------------------------------

    def say(self, *packets: bytes) -> None:
        """Send control packets and subscriptions, ahead of messages that wait."""
        if self.socket is not None:
            self._controls.extend(packets)
            self._flush()

    @property
    def room(self) -> int:
        """How many more control packets may wait."""
        return self._context.limits.queued_answers - len(self._controls)

    # -- the socket ---------------------------------------------------------------------------------

    def set_senders(self, on: bool) -> None:
        """The hub above wants messages with their sender, or no more: so the hubs below have to tell it, too."""
        if on is not self.wrap:
            self.wrap = on
            self._context.count_senders(1 if on else -1)

    def connect(self, sock: socket.SocketType) -> None:
        """A new connection; messages wait until :meth:`let_through`."""
        self.socket = sock
        self.open = self.takes_batches = False
        self._controls.clear()

    def let_through(self) -> None:
        """The hub above said what it wants: send what was kept, and what comes."""
        if not self.open:
            self.open = True
            self._flush()

    def hold(self) -> None:
        """Keep messages from now on, and ask about those that were sent."""
        self.open = False
        self._consider_asking(waited=True)

    # The next five implement Waiting of sbuslib.core.unsent. A hub below is told that its messages were passed on when
    # the hub above has acknowledged them. Those that were lost on the way were told then.

    @property
    def queued(self) -> int:
        """Messages that wait, were not acknowledged, or were lost and not told yet."""
        return self.waiting.messages + self.forwarded - self._acknowledgements.acknowledged + self.losses.untold

    @property
    def delivered(self) -> int:
        """Messages that are none of these any more."""
        return self._acknowledgements.acknowledged + self.suppressed + self.losses.lost - self.losses.untold

    @property
    def hands_on(self) -> bool:
        """Never: the hub above acknowledges what it has handed on."""
        return False

    @property
    def is_hub(self) -> bool:
        """Always: the hub above is waited for however long it takes."""
        return True

    @property
    def in_order(self) -> bool:
        """Always: messages that wait are sent oldest first."""
        return True

    def disconnect(self) -> None:
        """The connection has ended."""
        self._stop_writer()
        self.socket = None
        self.set_senders(False)
        self.open = self.takes_batches = self._resumed = False
        self._controls.clear()
        self.waiting.forget_questions()
        self.losses.add(control.UNCERTAIN, self._acknowledgements.end(self.forwarded), time())
        self.losses.report()
        self._settled()

    def _flush(self) -> None:
        """Send what the kernel takes, and watch for room if there is more."""
        context = self._context
        while self.socket is not None and (self._controls or (self.waiting and self._may_send())):
            items: list[Item] = []
            try:
                if self._controls:
                    if self._send_controls(self.socket):
                        continue
                    break
                items = self._take()
                packets, counts = self._coalesce(items)
                sent = sum(counts[: context.writer.send(self.socket, packets)]) if packets else 0
            except OSError as error:
                self.waiting.put_back(items)
                if error.errno == errno.EMSGSIZE and items and self.takes_batches:
                    self.takes_batches = False  # each alone may fit
                    continue
                if error.errno == errno.EMSGSIZE and items:
                    sender, _ = self.waiting.take()
                    if sender is not None:
                        self.losses.note("upstream", 1, time())
                    continue
                if error.errno in NO_MEMORY:
                    self._context.after(SEND_RETRY, self._flush)
                    return
                break  # the reading half learns of the end
            self.waiting.put_back(items[sent:])
            self._sent(sum(sender is not None for sender, _ in items[:sent]))
            if sent < len(items):
                break
        self._update()

    def _send_controls(self, sock: socket.SocketType) -> bool:
        """Send the next control packets; whether the kernel took all of these. Raises :exc:`OSError`."""
        packets = [self._controls.popleft() for _ in range(min(self._context.limits.batch, len(self._controls)))]
        sent = 0
        try:
            sent = self._context.writer.send(sock, packets)
        finally:
            self._controls.extendleft(reversed(packets[sent:]))
        return sent == len(packets)

    def _coalesce(self, items: list[Item]) -> tuple[list[bytes], list[int]]:
        """The packets to send for these items, and how many of them each is."""
        if not self.takes_batches:
            packets = [sender.wrapper + one if sender is not None and self.wrap else one for sender, one in items]
            return packets, [1] * len(items)
        packets, counts = [], []
        start = 0
        while start < len(items):
            sender, packet = items[start]
            stop, size = start + 1, len(packet)
            if sender is not None:
                for other, packet in items[stop : start + BATCH_KEYS]:
                    size += len(packet)
                    if other is None or (self.wrap and other is not sender) or size > COALESCED_BYTES:
                        break
                    stop += 1
            some = [packet for _, packet in items[start:stop]]
            batch = coalesce(some) if len(some) >= COALESCED else None
            if batch is not None:
                some = [batch.packet]
            wrapper = sender.wrapper if self.wrap and sender is not None else b""
            packets += [wrapper + packet for packet in some] if wrapper else some
            counts += [stop - start] if batch is not None else [1] * len(some)
            start = stop
        return packets, counts

    def _may_send(self) -> bool:
        return self.open or self.waiting.begins_with_question

    def _take(self) -> list[Item]:
        """Take the next messages that wait, and leave out what nobody above wants any more."""
        items: list[Item] = []
        most = self._context.limits.batch * (_BATCHES if self.takes_batches else 1)
        while self.waiting and len(items) < most and self._may_send():
            sender, packet = self.waiting.take()
            if sender is not None:
                header = packet[: packet.find(b"\0") + 1]
                if not self._is_wanted(header):
                    secret = header[len(MSG) :].startswith(self._context.router.namespace.start)
                    if not secret and not self._resumed:  # it may have been for somebody who has not come back
                        self.losses.note("unwanted", 1, time())
                    else:
                        self.suppressed += 1
                    continue
            items.append((sender, packet))
        return items

    def _is_wanted(self, header: bytes) -> bool:
        try:
            return self in self._context.router.route(header)
        except ReservedKeyError:
            return False

    def _update(self) -> None:
        if self.open and not self._resumed and not self.waiting.messages:
            self._resumed = True
        self._context.unsent.note(self, bool(self.queued))
        wants = self.socket is not None and bool(self._controls or (self.waiting and self._may_send()))
        if not wants:
            self._stop_writer()
        elif self._writer is None:
            assert self.socket is not None
            self._writer = self._context.loop.io(self.socket.fileno(), WRITE)
            self._writer.start(self._on_writable)

    def _on_writable(self) -> None:
        self._flush()
        self._context.unsent.check()
        if not self.waiting:
            self._context.members.on_outbox_empty()

    def _stop_writer(self) -> None:
        if self._writer is not None:
            self._writer.stop()
            self._writer.close()
            self._writer = None
