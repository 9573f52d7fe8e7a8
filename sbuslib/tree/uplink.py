"""The two halves of a relay's link to the hub above: what comes down, and what goes up.

:class:`Down` is the role of the connection on its reading half: to this hub it is a connection like any other, so what
comes from above takes the same path as what comes from any client. :class:`Up` is the sending half. It receives what
has to go up, and stays among the hub's receivers when the link breaks: what it cannot send it keeps
(:mod:`sbuslib.tree.outage`). :class:`Uplink` is what both ask of whoever holds them.
"""

from __future__ import annotations

import errno
import socket
from collections import Counter, deque
from contextlib import suppress
from typing import Any, Final, Protocol

from ..core.batch_routing import take_batch
from ..core.connection import Connection
from ..core.messages import COALESCED, COALESCED_BYTES, Copied, Messages
from ..core.protocols import Routes, Sender
from ..core.router import CACHED_HEADER_BYTES
from ..core.send_watcher import SEND_RETRY, WRITE
from ..core.turn import Turn
from ..errors import PacketError, ReservedKeyError
from ..kernel.dialer import NO_MEMORY
from ..kernel.sockets import peer_credentials
from ..limits import BATCH_KEYS, CONTROL_EXTRA, PACKET_BYTES
from ..secrets import Credentials
from ..wire import control
from ..wire.batches import BATCH, coalesce
from ..wire.packets import MSG, Control, encode_control, parse
from .downlink import VOUCHERS, Voucher
from .outage import Item, Kept, Losses
from .tree import Tree

__all__ = ["ACK_MESSAGES", "ACK_PAUSE", "Down", "Up", "Uplink"]

ACK_MESSAGES: Final = 256
"""Messages sent to the hub above before it is asked to acknowledge that it passed them on. When the link breaks, those
that were not acknowledged count as uncertain; an acknowledgement costs about as much as a message."""

ACK_PAUSE: Final = 0.1
"""Seconds after which an acknowledgement of fewer messages is asked for."""

_OPEN_QUESTIONS: Final = 64
"""Questions for an acknowledgement that may be open at a time. While there are so many, the next question waits, and is
about more messages."""


class Uplink(Protocol):
    """The link to the hub above, as its two halves know it."""

    tree: Tree
    dropped: Counter[str]
    """Packets from above that should not have come, by reason."""

    def take_control(self, packet: Control) -> None:
        """Act on a control packet from above."""
        ...

    def link_ended(self, down: Down, why: str) -> None:
        """The connection ended."""
        ...

    def may_come(self, key: bytes) -> bool:
        """Whether a message may come down."""
        ...

    def wants(self, key: bytes, secret: bool) -> bool:
        """Whether a message goes up."""
        ...

    @property
    def has_features(self) -> bool:
        """Whether the hub above knows more than the plain protocol."""
        ...

    def tell_losses(self) -> None:
        """Tell what was lost on its way up, if anybody can be told now."""
        ...


class Down:
    """The role of what comes from the hub above, on one connection. Implements :class:`~sbuslib.core.turn.Role`.

    Control packets are acted on after the turn they came in, since that may end the connection.
    """

    asks = False  # the hub above has asked already
    is_link = True
    longest = PACKET_BYTES + CONTROL_EXTRA

    def __init__(self, uplink: Uplink, up: Up) -> None:
        self._uplink = uplink
        self._context = uplink.tree.context
        self._up = up
        self._controls: deque[Control] = deque()
        self._vouchers: dict[bytes, Voucher] = {}

    def connect(self, sock: socket.SocketType) -> Connection:
        """Read from a connection to the hub above."""
        credentials = peer_credentials(sock)
        account = self._context.quotas.account(credentials.uid)
        return Connection(self._context, sock, credentials, account, self)

    def key_of(self, credentials: Credentials) -> bytes:
        """Nobody's: who published is known only where the hub above tells."""
        return b""

    def after_turn(self, turn: Turn) -> None:
        """Act on what was not a message, as the hub's area is free again."""
        while self._controls and not turn.closed:
            self._uplink.take_control(self._controls.popleft())

    def violated(self, turn: Turn, reason: str) -> None:
        """It did what no hub does."""
        self._uplink.link_ended(self, reason)

    def ended(self, turn: Turn, why: str) -> None:
        """The hub above has gone."""
        self._uplink.link_ended(self, why)

    def drop(self, reason: str, times: int = 1) -> None:
        """Count what should not have come."""
        self._uplink.dropped[reason] += times

    def look_up(self, turn: Turn, header: bytes, times: int) -> Routes:
        """The receivers here: never the relay, and nobody for what was not asked for."""
        router, uplink, routes = self._context.router, self._uplink, turn.routes
        try:
            found = router.routes.get(header)
            if found is None:
                found = router.route(header)
        except ReservedKeyError as error:
            self.drop(error.reason, times)
            return ()
        if not uplink.may_come(header[len(MSG) : -1]):
            self.drop("not asked for", times)
            return ()
        up = self._up
        found = tuple(receiver for receiver in found if receiver is not up)
        if len(header) <= CACHED_HEADER_BYTES:  # else the router forgets it unsaid
            if len(routes) >= self._context.limits.cached_keys:
                routes.clear()
            routes[header] = found
        return found

    def command(self, turn: Turn, data: bytes) -> None:
        """Act on a packet that is no message of an unknown sender."""
        if data.startswith(BATCH):
            take_batch(turn, data, turn.sender)
            return
        try:
            packet = parse(data)
            if not isinstance(packet, Control):
                raise PacketError("not for a relay")
            if packet.key != control.FROM:
                self._controls.append(packet)
                return
            sender, inner = control.unwrap_from(packet.payload or b"")
            header = inner[: inner.find(b"\0") + 1]
            if (header != BATCH and not header.startswith(MSG)) or len(inner) > PACKET_BYTES:
                raise PacketError("wrapped packet is no message")
        except PacketError as error:
            self.drop(error.reason)
            return
        voucher = self._voucher(turn, sender)
        if header == BATCH:
            take_batch(turn, inner, voucher, control.wrapper_from(sender))
            return
        receivers = turn.routes.get(header) or turn.look_up(header)
        turn.deliver(receivers, voucher, Copied(self._context.writer, [inner]))

    def _voucher(self, turn: Turn, sender: bytes) -> Voucher:
        voucher = self._vouchers.get(sender)
        if voucher is None:
            if len(self._vouchers) >= VOUCHERS:
                self._vouchers.clear()
            voucher = self._vouchers[sender] = Voucher(bytes, turn.outgoing.credentials, sender)
        return voucher


_BATCHES: Final = 8
"""How many times as many messages are taken in one go where they can be sent together."""


class Up:
    """What goes to the hub above. Implements :class:`~sbuslib.core.protocols.Receiver`."""

    def __init__(self, uplink: Uplink) -> None:
        self._uplink = uplink
        self._tree = uplink.tree
        self._context = self._tree.context
        self.credentials = self._context.credentials
        self.socket: socket.SocketType | None = None
        self.wrap = False
        self.takes_batches = False  # whether the hub above was told that many messages may be in one packet
        self.open = False  # whether messages may be sent
        self.offered = self.forwarded = self.suppressed = 0
        self.waiting = Kept(self._context.limits.link_packets, self._context.limits.link_buffer)
        self.losses = Losses(lambda: self._context.after(self._context.limits.link_notices, self._tell_losses))
        self._controls: deque[bytes] = deque()
        self._writer: Any = None
        self._marks: deque[tuple[bytes, int]] = deque()  # what was asked, and how many had been sent by then
        self._marked = self._acknowledged = 0
        self._mark_timer = False
        self._tokens = 0

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
            self.losses.lose()

    def _tell_losses(self) -> None:
        self.losses.told_later()
        self._uplink.tell_losses()

    def _sent(self, count: int) -> None:
        if not count:
            return
        self.forwarded += count
        self._consider_mark()

    def _consider_mark(self) -> None:
        """Ask for an acknowledgement, now or in a while, if there is anything to acknowledge."""
        if self.socket is None or self.forwarded == self._marked or len(self._marks) >= _OPEN_QUESTIONS:
            return
        if self.forwarded - self._marked >= ACK_MESSAGES:
            self.mark()
        elif not self._mark_timer:
            self._mark_timer = True
            self._context.after(ACK_PAUSE, self._on_mark_timer)

    def _on_mark_timer(self) -> None:
        self._mark_timer = False
        if self.socket is not None and self.forwarded > self._marked and len(self._marks) < _OPEN_QUESTIONS:
            self.mark()

    # -- acknowledgements ---------------------------------------------------------------------------

    def mark(self) -> None:
        """Ask the hub above to answer once it has passed on all that was sent until now."""
        if self._uplink.has_features:
            self._tokens += 1
            token = b"a%x" % self._tokens
            packet = encode_control(control.SYNC, token + b"\0passed")
        else:
            token, packet = control.WHOAMI, encode_control(control.WHOAMI)
        self._marks.append((token, self.forwarded))
        self._marked = self.forwarded
        self.waiting.ask(packet)  # before what waits, since it speaks of what was sent
        self._flush()

    def acknowledged(self, token: bytes) -> None:
        """The hub above answered."""
        while self._marks:
            asked, count = self._marks[0]
            if token not in (asked, *(mark[0] for mark in self._marks)):
                return
            self._marks.popleft()
            self._acknowledged = count
            if asked == token:
                break
        self._consider_mark()

    # -- control ------------------------------------------------------------------------------------

    def say(self, *packets: bytes) -> None:
        """Send control packets and subscriptions, ahead of messages that wait."""
        if self.socket is not None:
            self._controls.extend(packets)
            self._flush()

    @property
    def room(self) -> int:
        """How many more of them may wait."""
        return self._context.limits.queued_answers - len(self._controls)

    # -- the socket ---------------------------------------------------------------------------------

    def connect(self, sock: socket.SocketType) -> None:
        """A new connection; messages wait until :meth:`let_through`."""
        self.socket = sock
        self.wrap = self.open = self.takes_batches = False
        self._controls.clear()

    def let_through(self) -> None:
        """The hub above knows what it wants: send what was kept, and what comes."""
        if not self.open:
            self.open = True
            self._flush()

    @property
    def queued(self) -> int:
        """Messages that wait. With those below, implements :class:`~sbuslib.core.unsent.Waiting`."""
        return self.waiting.messages

    @property
    def delivered(self) -> int:
        """Messages handed to the kernel."""
        return self.forwarded

    @property
    def hands_on(self) -> bool:
        """What leaves it is with the kernel. Implements :class:`~sbuslib.core.unsent.Waiting`."""
        return False

    @property
    def in_order(self) -> bool:
        """Those that wait are sent oldest first."""
        return True

    def disconnect(self) -> None:
        """The connection has gone: what was sent and not acknowledged is uncertain, and never sent again."""
        self._stop_writer()
        self.socket = None
        self.open = self.takes_batches = False
        self._controls.clear()
        self.waiting.forget_questions()
        self.losses.add_uncertain(self.forwarded - self._acknowledged)
        self._marks.clear()
        self._marked = self._acknowledged = self.forwarded

    def _flush(self) -> None:
        """Send what the kernel takes, and watch for room if there is more."""
        context = self._context
        while self.socket is not None and (self._controls or (self.waiting and self._may_send())):
            items: list[Item] = []
            try:
                if self._controls:
                    packets = [self._controls.popleft() for _ in range(min(context.limits.batch, len(self._controls)))]
                    sent = 0
                    try:
                        sent = context.writer.send(self.socket, packets)
                    finally:
                        self._controls.extendleft(reversed(packets[sent:]))
                    if sent < len(packets):
                        break
                    continue
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
                        self.losses.lose()
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
        """The next of what waits, without what nobody above wants any more."""
        items: list[Item] = []
        most = self._context.limits.batch * (_BATCHES if self.takes_batches else 1)
        while self.waiting and len(items) < most and self._may_send():
            sender, packet = self.waiting.take()
            if sender is not None:
                key = packet[len(MSG) : packet.find(b"\0")]
                if not self._uplink.wants(key, key.startswith(self._context.router.namespace.start)):
                    self.suppressed += 1
                    continue
            items.append((sender, packet))
        return items

    def _update(self) -> None:
        self._context.unsent.note(self, bool(self.waiting.messages))
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
