"""The two halves of a relay's link to the hub above: what comes down, and what goes up.

:class:`Down` is the reading half of one connection: a :class:`~.Connection` whose client is the hub
above, so what comes from there takes the hub's own path. :class:`Up` is the sending half: it is among the receivers
of what has to go up, and stays there when the link breaks, as the place where that is kept. What both are told to
do, :class:`sbuslib.relay.Relay` decides.
"""

from __future__ import annotations

import errno
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..core.connection import Connection
from ..core.outgoing import WRITE
from ..core.parties import Batch, Receiver, Sender
from ..errors import PacketError, ReservedKeyError
from ..kernel.dialer import NO_MEMORY
from ..kernel.sockets import peer_credentials
from ..limits import BATCH_KEYS, CONTROL_EXTRA, PACKET_BYTES
from ..wire import control
from ..wire.batches import BATCH, Bundle, gather
from ..wire.packets import MSG, Control, encode_control, parse
from .downlink import Voucher

if TYPE_CHECKING:
    from ..relay import Relay

__all__ = ["Down", "Up"]


class Down(Connection):
    """What comes from the hub above, on one connection. Its packets are taken apart in the turn, acted on after it."""

    __slots__ = ("_controls", "_relay", "_vouchers")

    def __init__(self, relay: Relay, sock: socket.SocketType) -> None:
        hub = relay.hub
        credentials = peer_credentials(sock)
        self._relay = relay
        self._controls: deque[Control] = deque()
        self._vouchers: dict[bytes, Voucher] = {}
        super().__init__(hub, sock, credentials, hub.quotas.account(credentials.uid))
        self._asks = False  # the hub above has asked already
        self._longest = PACKET_BYTES + CONTROL_EXTRA
        self._routes = {}

    @property
    def key(self) -> bytes:
        """Nobody's: who published is known only where the hub above tells."""
        return b""

    def holdable_by(self, receiver: Receiver) -> None:
        """A link is never held back."""
        return

    def turn(self) -> bool:
        """Take one batch; then act on what was not a message, as the hub's area is free again."""
        had = super().turn()
        while self._controls and not self.closed:
            self._relay.take_control(self._controls.popleft())
        return had

    def _misbehaved(self, reason: str) -> None:
        self._relay.link_ended(self, reason)

    def _ended(self, why: str) -> None:
        self._relay.link_ended(self, why)

    def _look_up(self, header: bytes, times: int = 1) -> tuple[Receiver, ...]:
        """The receivers here: never the relay, and nobody for what was not asked for."""
        router, relay = self._hub.router, self._relay
        key = header[len(MSG) : -1]
        try:
            found = router.routes.get(header)
            if found is None:
                found = router.route(header)
        except ReservedKeyError as error:
            relay.dropped[error.reason] += times
            return ()
        if not relay.may_come(key):
            relay.dropped["not asked for"] += times
            return ()
        up = relay.up
        found = tuple(receiver for receiver in found if receiver is not up)
        if len(header) <= self._hub.limits.cached_key_bytes:  # or the router has not remembered it, and will not tell
            if len(self._routes) >= self._hub.limits.cached_keys:
                self._routes.clear()
            self._routes[header] = found
        return found

    @property
    def _is_excused(self) -> bool:
        return True

    def _excuse(self, reason: str) -> None:
        self._relay.dropped[reason] += 1

    def _command(self, data: bytes) -> None:
        if data.startswith(BATCH):
            self.take_batch(data, self)
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
            self._relay.dropped[error.reason] += 1
            return
        voucher = self._vouchers.get(sender)
        if voucher is None:
            if len(self._vouchers) >= self._hub.limits.voucher_keys:
                self._vouchers.clear()
            voucher = self._vouchers[sender] = Voucher(bytes, self.credentials, sender)
        if header == BATCH:
            self.take_batch(inner, voucher, control.wrapper_from(sender))
            return
        self.deliver_to(self._routes.get(header) or self._look_up(header), voucher, inner)


Item: TypeAlias = tuple[Sender | None, bytes]

_BATCHES: Final = 8
"""How many times as many messages are taken in one go where they can be sent together."""


class Up:
    """What goes to the hub above. Implements :class:`~sbuslib.core.parties.Receiver`."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._hub = relay.hub
        self.credentials = self._hub.embedder_credentials
        self.socket: socket.SocketType | None = None
        self.wrap = False
        self.takes_batches = False  # whether the hub above was told that many messages may be in one packet
        self.open = False  # whether messages may be sent
        self.offered = self.forwarded = self.suppressed = self.lost = self.uncertain = 0
        self.waiting: deque[Item] = deque()
        self.bytes = 0
        self.messages = 0
        self._controls: deque[bytes] = deque()
        self._writer: Any = None
        self._marks: deque[tuple[bytes, int]] = deque()  # what was asked, and how many had been sent by then
        self._marked = self._acknowledged = 0
        self._mark_timer = False
        self._tokens = 0
        self._untold_lost = self._untold_uncertain = 0
        self._lost_since = 0.0
        self._telling = False

    # -- messages -----------------------------------------------------------------------------------

    @property
    def refuses(self) -> bool:
        """Never. Implements :class:`~sbuslib.core.outgoing.Receiver`."""
        return False

    def deliver(self, sender: Sender, batch: Batch, slots: Sequence[int]) -> None:
        """Send the packets in ``slots`` up, or keep copies."""
        if self.takes_batches and len(slots) >= self._hub.limits.gathered:
            bundle = batch.bundle(slots, self._hub.limits.gathered_bytes)
            if bundle is not None:
                self.deliver_bundle(sender, bundle)
                return
        self.offered += len(slots)
        if self.open and not self.waiting and not self._controls:
            assert self.socket is not None
            sent = 0
            try:
                if self.wrap:
                    sent = batch.area.send_wrapped(self.socket, sender.wrapper, slots, batch.lengths)
                else:
                    sent = batch.area.send(self.socket, slots, batch.lengths)
            except OSError:
                pass  # the queue's own sending tells why
            self._sent(sent)
            if sent == len(slots):
                return
            slots = slots[sent:]
        for slot in slots:
            self._keep(sender, batch.packet(slot))

    def deliver_packet(self, sender: Sender, packet: bytes) -> None:
        """Send one packet up, or keep it."""
        self.offered += 1
        if self.open and not self.waiting and not self._controls:
            assert self.socket is not None
            with suppress(OSError):
                if self._hub.gather.send(self.socket, (sender.wrapper + packet if self.wrap else packet,)):
                    self._sent(1)
                    return
        self._keep(sender, packet)

    def deliver_bundle(self, sender: Sender, bundle: Bundle) -> None:
        """Send messages that came together up, or keep each."""
        self.offered += bundle.count
        done = 0
        if self.open and not self.waiting and not self._controls:
            assert self.socket is not None
            wrapper = sender.wrapper if self.wrap else b""
            whole = self.takes_batches and bundle.count > 1
            packets = [bundle.packet] if whole else bundle.plain
            with suppress(OSError):
                done = self._hub.gather.send(self.socket, [wrapper + packet for packet in packets])
            if whole:
                done *= bundle.count
            self._sent(done)
        if done < bundle.count:
            for packet in bundle.plain[done:]:
                self._keep(sender, packet)

    def _keep(self, sender: Sender, packet: bytes) -> None:
        limits = self._hub.limits
        if self.bytes + len(packet) > limits.link_buffer or self.messages >= limits.link_packets:
            self._lose()
            return
        self.bytes += len(packet)
        self.messages += 1
        self.waiting.append((sender, packet))
        self._update()

    def _lose(self) -> None:
        if not self._untold_lost:
            self._lost_since = time()
        self.lost += 1
        self._untold_lost += 1
        if not self._telling:
            self._telling = True
            self._hub.tree.after(self._hub.limits.link_notices, self._tell)

    def _tell(self) -> None:
        self._telling = False
        self._relay.tell_losses()

    def _sent(self, count: int) -> None:
        if not count:
            return
        self.forwarded += count
        self._consider_mark()

    def _consider_mark(self) -> None:
        """Ask for an acknowledgement, now or in a while, if there is anything to acknowledge."""
        limits = self._hub.limits
        if self.socket is None or self.forwarded == self._marked or len(self._marks) >= limits.link_asked:
            return
        if self.forwarded - self._marked >= limits.link_acks:
            self.mark()
        elif not self._mark_timer:
            self._mark_timer = True
            self._hub.tree.after(limits.link_ack_pause, self._on_mark_timer)

    def _on_mark_timer(self) -> None:
        self._mark_timer = False
        if self.socket is not None and self.forwarded > self._marked and len(self._marks) < self._hub.limits.link_asked:
            self.mark()

    # -- acknowledgements ---------------------------------------------------------------------------

    def mark(self) -> None:
        """Ask the hub above to answer once it has passed on all that was sent until now."""
        if self._relay.has_features:
            self._tokens += 1
            token = b"a%x" % self._tokens
            packet = encode_control(control.SYNC, token + b"\0passed")
        else:
            token, packet = control.WHOAMI, encode_control(control.WHOAMI)
        self._marks.append((token, self.forwarded))
        self._marked = self.forwarded
        if self.waiting:
            self.waiting.appendleft((None, packet))  # it speaks of what was sent, not of what waits
        else:
            self.waiting.append((None, packet))
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
        return self._hub.limits.queued_answers - len(self._controls)

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
        """Messages that wait. With those below, implements :class:`~sbuslib.tree.unsent.Behind`."""
        return self.messages

    @property
    def delivered(self) -> int:
        """Messages handed to the kernel."""
        return self.forwarded

    @property
    def hands_on(self) -> bool:
        """What leaves it is with the kernel. Implements :class:`~sbuslib.tree.unsent.Behind`."""
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
        self.waiting = deque(item for item in self.waiting if item[0] is not None)
        uncertain = self.forwarded - self._acknowledged
        self.uncertain += uncertain
        self._untold_uncertain += uncertain
        self._marks.clear()
        self._marked = self._acknowledged = self.forwarded

    def take_report(self) -> list[control.Lost]:
        """What was lost and what is uncertain, and was not told yet."""
        report = []
        if self._untold_lost:
            report.append(control.Lost("upstream", self._untold_lost, self._lost_since))
        if self._untold_uncertain:
            report.append(control.Lost("uncertain", self._untold_uncertain, time()))
        self._untold_lost = self._untold_uncertain = 0
        return report

    def _flush(self) -> None:
        """Send what the kernel takes, and watch for room if there is more."""
        hub = self._hub
        while self.socket is not None and (self._controls or (self.waiting and self._may_send())):
            items: list[Item] = []
            try:
                if self._controls:
                    packets = [self._controls.popleft() for _ in range(min(hub.limits.batch, len(self._controls)))]
                    sent = 0
                    try:
                        sent = hub.gather.send(self.socket, packets)
                    finally:
                        self._controls.extendleft(reversed(packets[sent:]))
                    if sent < len(packets):
                        break
                    continue
                items = self._take()
                packets, counts = self._gather(items)
                sent = sum(counts[: hub.gather.send(self.socket, packets)]) if packets else 0
            except OSError as error:
                self._put_back(items)
                if error.errno == errno.EMSGSIZE and items and self.takes_batches:
                    self.takes_batches = False  # each alone may fit
                    continue
                if error.errno == errno.EMSGSIZE and items:
                    sender, packet = self.waiting.popleft()
                    if sender is not None:
                        self.bytes -= len(packet)
                        self.messages -= 1
                        self._lose()
                    continue
                if error.errno in NO_MEMORY:
                    hub.tree.after(hub.limits.send_retry, self._flush)
                    return
                break  # the reading half learns of the end
            self._put_back(items[sent:])
            self._sent(sum(sender is not None for sender, _ in items[:sent]))
            if sent < len(items):
                break
        self._update()

    def _gather(self, items: list[Item]) -> tuple[list[bytes], list[int]]:
        """The packets to send for these items, and how many of them each is."""
        if not self.takes_batches:
            packets = [sender.wrapper + one if sender is not None and self.wrap else one for sender, one in items]
            return packets, [1] * len(items)
        limits = self._hub.limits
        packets, counts = [], []
        start = 0
        while start < len(items):
            sender, packet = items[start]
            stop, size = start + 1, len(packet)
            if sender is not None:
                for other, packet in items[stop : start + BATCH_KEYS]:
                    size += len(packet)
                    if other is None or (self.wrap and other is not sender) or size > limits.gathered_bytes:
                        break
                    stop += 1
            some = [packet for _, packet in items[start:stop]]
            bundle = gather(some) if len(some) >= limits.gathered else None
            if bundle is not None:
                some = [bundle.packet]
            wrapper = sender.wrapper if self.wrap and sender is not None else b""
            packets += [wrapper + packet for packet in some] if wrapper else some
            counts += [stop - start] if bundle is not None else [1] * len(some)
            start = stop
        return packets, counts

    def _may_send(self) -> bool:
        return self.open or self.waiting[0][0] is None

    def _take(self) -> list[Item]:
        """The next of what waits, without what nobody above wants any more."""
        items: list[Item] = []
        relay = self._relay
        most = self._hub.limits.batch * (_BATCHES if self.takes_batches else 1)
        while self.waiting and len(items) < most and self._may_send():
            sender, packet = self.waiting.popleft()
            if sender is not None:
                self.bytes -= len(packet)
                self.messages -= 1
                key = packet[len(MSG) : packet.find(b"\0")]
                if not relay.wants(key, key.startswith(self._hub.router.namespace.start)):
                    self.suppressed += 1
                    continue
            items.append((sender, packet))
        return items

    def _put_back(self, items: list[Item]) -> None:
        for sender, packet in reversed(items):
            self.waiting.appendleft((sender, packet))
            if sender is not None:
                self.bytes += len(packet)
                self.messages += 1

    def _update(self) -> None:
        self._hub.tree.backlog.note(self, bool(self.messages))
        wants = self.socket is not None and bool(self._controls or (self.waiting and self._may_send()))
        if not wants:
            self._stop_writer()
        elif self._writer is None:
            assert self.socket is not None
            self._writer = self._hub.loop.io(self.socket.fileno(), WRITE)
            self._writer.start(self._on_writable)

    def _on_writable(self) -> None:
        self._flush()
        self._hub.tree.backlog.check()
        if not self.waiting:
            self._hub.flushed()

    def _stop_writer(self) -> None:
        if self._writer is not None:
            self._writer.stop()
            self._writer.close()
            self._writer = None
