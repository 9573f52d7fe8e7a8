"""The hot path: from the packets of one receive call to the receivers of each packet.

Neighbouring packets for the same receivers form a *run*, which is delivered to each receiver at once, from where it
lies. Nothing here yields, calls a stranger's code or logs while the receive buffer is in use. Packets that have to wait
are copied out.

The packets of a turn go to each receiver in the order in which they came. A packet that is no message is acted on only
after all packets before it were sent, so an answer never overtakes messages that came before the question.

A few packets can make a long turn: one may go to thousands of receivers, or have a key that takes long to look up. So
a turn ends early if it has too many deliveries, or lasts too long. The rest (see :mod:`.publisher`, and packets whose
receivers were not looked up) is copied out, and a later turn goes on with it before anything else is received.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Final

from ..errors import PacketError
from ..kernel.receive_buffer import LONGEST_HEAD, PlainReceiveBuffer
from ..limits import PACKET_BYTES
from ..wire.batches import BATCH
from ..wire.control import WRAPPER
from ..wire.packets import MSG
from .batch_routing import take_batch
from .messages import Copied, InBuffer, Received, Single
from .protocols import Receiver, Routes, Run, Sender
from .publisher import FEW, PLANNED, Publisher, Undelivered, affordable, by_receiver

_QUICK: Final = 1_024
"""So many deliveries, to at most :data:`FEW` receivers, are made without a look at the clock."""

_COPIED_BYTES: Final = 8_192
"""Longest single packet that is copied out of the receive buffer: to send a longer one from where it lies costs
less.
"""

_MANY: Final = 8
"""With at least so many packets from one receive call, it pays to look at all of them at once."""


def route_one(publisher: Publisher, buffer: PlainReceiveBuffer, length: int) -> bool:
    """Hand on the only packet of a receive call. Returns whether it was a short message with known receivers."""
    publisher.refresh()
    if length > _COPIED_BYTES:
        return False
    packet = buffer.data[:length]
    receivers = publisher.routes.get(packet[: packet.find(b"\0") + 1])
    if receivers is not None:
        publisher.deliver(receivers, publisher, Single(packet))
        return True

    # Over a link it comes with its sender.
    wrapped = _look_into(publisher, buffer, 0, length) if publisher.role.senders else None
    if wrapped is None:
        return False
    sender, start, body = wrapped
    receivers = publisher.routes.get(packet[start:body])
    if receivers is None:
        return False
    publisher.deliver(receivers, sender, Single(packet[start:]))
    return True


def route(publisher: Publisher, received: Received) -> list[bytes]:
    """Find the runs of packets that go to the same receivers, and forward them.

    Returns copies of the packets that are left: those that are too much for this turn, and all from the first packet
    on about which ``authorize=`` has to be asked: that is a stranger's code, and has to wait until the receive buffer
    is free. Raises :exc:`~sbuslib.errors.PacketError` for a violation, after the packets before it were handed on.
    """
    publisher.refresh()
    if len(received.lengths) >= _MANY:
        known = _known_runs(publisher, received)
        if known is not None:
            return _left_from(received, _forward(publisher, received, known))
    if publisher.role.senders:
        handed_on = _route_wrapped(publisher, received)
        if handed_on:
            return _left_from(received, handed_on)
    publisher.misses = False
    return _route_each(publisher, received)


def _left_from(received: Received, slot: int | None, stop: int | None = None) -> list[bytes]:
    stop = len(received.lengths) if stop is None else stop
    return received.packets(range(slot, stop)) if slot is not None and slot < stop else []


def _look_into(
    publisher: Publisher, buffer: PlainReceiveBuffer, offset: int, end: int
) -> tuple[Sender, int, int] | None:
    """Return the sender of a packet that comes with one, and where that packet and the rest after its header begin.

    ``None`` for any other packet, for a sender that is not known yet, and for a key that is too long.
    """
    data, named = buffer.data, offset + len(WRAPPER)
    start = data.find(b"\0", named, end) + 1
    body = data.find(b"\0", start, end) + 1
    if not (start and body) or data[offset:named] != WRAPPER or end - start > PACKET_BYTES:
        return None
    sender = publisher.role.senders.get(data[named : start - 1])
    return (sender, start, body) if sender is not None else None


def _route_wrapped(publisher: Publisher, received: Received) -> int:
    """Deliver the messages with senders at the beginning of a link's receive call.

    Neighbours of one sender, under one key, go together. Returns the first slot of the rest: of a sender or a key that
    is not known yet, no message, or too much for this turn.
    """
    buffer, lengths = received.buffer, received.lengths
    data, offsets = buffer.data, buffer.offsets
    slot, count = 0, len(lengths)
    while slot < count and not publisher.is_over and not publisher.backlog:
        offset = offsets[slot]
        end = offset + lengths[slot]
        wrapped = _look_into(publisher, buffer, offset, end)
        if wrapped is None:
            break
        sender, start, body = wrapped
        header = data[start:body]

        # 1. A batch.
        if header == BATCH and publisher.batches and not publisher.asks:
            take_batch(publisher, data, sender, data[offset:start], start, end - start)
            slot += 1
            continue

        # 2. A message, and those that begin alike.
        receivers = publisher.routes.get(header)
        if receivers is None:
            break
        head, size, inner = data[offset:body], body - offset, start - offset
        packets = [data[start:end]]
        for offset, length in zip(offsets[slot + 1 : count], lengths[slot + 1 :], strict=True):
            if not size <= length <= inner + PACKET_BYTES or data[offset : offset + size] != head:
                break
            packets.append(data[offset + inner : offset + length])
        publisher.deliver(receivers, sender, Copied(received.writer, packets))
        slot += len(packets)
        if monotonic() > publisher.until:
            break
    return slot


def _route_each(publisher: Publisher, received: Received) -> list[bytes]:
    """Look at each packet, as :func:`route`."""
    # One long loop: its parts share nearly all of these variables, and calls would slow it down.
    buffer, lengths = received.buffer, received.lengths
    data = buffer.data
    find = data.find
    get = publisher.routes.get
    looked_up = False
    stop = len(lengths)  # the first packet that is left
    runs: list[Run] = []
    receivers: Routes = ()
    header: bytes | None = None
    size = start = 0
    slot = -1
    try:
        for offset, length in zip(buffer.offsets, lengths, strict=False):
            slot += 1
            if length >= size and data[offset : offset + size] == header:
                continue
            end = find(b"\0", offset, offset + length) + 1
            new_header = data[offset:end]
            found = get(new_header)
            if found is None:
                publisher.misses = True
                if not publisher.knows_allowed(new_header):
                    stop = slot
                    break
                if not (end and new_header.startswith(MSG)):
                    if slot > start:
                        runs.append((start, slot, receivers))
                    start = slot + 1
                    header, size = None, 0
                    cut = _forward(publisher, received, runs)
                    runs = []
                    if cut is None and _act(publisher, received, slot, new_header):
                        cut = start
                    if publisher.closed:
                        return []  # the command had it closed
                    if cut is not None:
                        return _left_from(received, cut)
                    continue
                if looked_up and monotonic() > publisher.until:
                    publisher.spent = publisher.most
                    stop = slot
                    break
                looked_up = bool(publisher.until)  # the first time this reads the clock
                found = publisher.look_up(new_header)
            if header is None:
                start = slot
            elif found is not receivers:
                runs.append((start, slot, receivers))
                start = slot
            header, size, receivers = new_header, len(new_header), found
    except PacketError:
        # Packets before a violation were accepted, and go out first.
        if header is not None and slot > start:
            runs.append((start, slot, receivers))
        cut = _forward(publisher, received, runs)
        if cut is None:
            raise
        return _left_from(received, cut, slot + 1)
    if header is not None and stop > start:
        runs.append((start, stop, receivers))
    cut = _forward(publisher, received, runs)
    return _left_from(received, stop if cut is None else cut)


def _act(publisher: Publisher, received: Received, slot: int, header: bytes) -> bool:
    """Act on a packet that is no message. Returns whether the packets after it have to wait for a later turn."""
    if publisher.batches and header == BATCH:
        buffer = received.buffer
        take_batch(publisher, buffer.data, publisher, b"", buffer.offsets[slot], received.lengths[slot])
        # Many batches would be more than there is room for.
        return bool(publisher.pausers or publisher.backlog)
    publisher.commands += 1
    publisher.role.command(publisher, received.packet(slot))
    return bool(publisher.backlog) or monotonic() > publisher.until


def _known_runs(publisher: Publisher, received: Received) -> list[Run] | None:
    """The runs, if all packets are messages whose receivers are remembered; else ``None``.

    Most receive calls bring only these. So all packets are looked at in few calls, which takes a third of the time of
    looking at each.
    """
    buffer, lengths = received.buffer, received.lengths
    count = len(lengths)
    get = publisher.routes.get
    data, offsets = buffer.data, buffer.offsets
    size = data.find(b"\0", 0, lengths[0]) + 1
    header = data[:size]
    receivers = get(header)
    if receivers is None or size > LONGEST_HEAD or received.shortest < size:
        return None
    heads = buffer.heads(count, size)
    if heads[-1] == header and heads.count(header) == count:
        return [(0, count, receivers)]
    if publisher.misses:
        return None
    # A head that is longer or shorter than its packet's header equals no header: these packets are looked up singly.
    found = list(map(get, heads))
    if None in found:
        for slot, others in enumerate(found):
            if others is None:
                offset = offsets[slot]
                found[slot] = get(data[offset : data.find(b"\0", offset, offset + lengths[slot]) + 1])
    runs: list[Run] = []
    start = 0
    for slot, others in enumerate(found):
        if others is not receivers:
            if others is None:
                return None
            runs.append((start, slot, receivers))
            start, receivers = slot, others
    runs.append((start, count, receivers))
    return runs


def _forward(publisher: Publisher, received: Received, runs: list[Run]) -> int | None:
    """Hand each receiver its packets. Returns the first slot that is left, if they are too much for one turn."""
    most, sender = publisher.most, publisher
    while runs:
        # 1. No more than may be planned at once.
        routes = [receivers for _, _, receivers in runs]
        if len(runs) > 1:
            del routes[affordable(routes, PLANNED * most) :]
        some, runs = runs[: len(routes)], runs[len(routes) :]

        # 2. Who gets which packets.
        grouped = publisher.fan_outs.routes_with_groups(routes, sender)
        if grouped is not routes:
            some = [(start, end, receivers) for (start, end, _), receivers in zip(some, grouped, strict=True)]
        plan: list[tuple[InBuffer, Sequence[Receiver]]]
        if len(some) == 1 or grouped is not routes:
            # Once one run went into a fan-out queue, the next have to follow it.
            plan = [(received.slice(range(start, end)), receivers) for start, end, receivers in some]
        else:
            slots = [(range(start, end), receivers) for start, end, receivers in some]
            plan = [(InBuffer(received, mine), who) for mine, who in by_receiver(slots)]

        # 3. A few deliveries are made without a look at the clock.
        publisher.received += sum(end - start for start, end, _ in some)
        deliveries = sum((end - start) * len(receivers) for start, end, receivers in some)
        if deliveries <= min(_QUICK, most) and sum(len(receivers) for _, receivers in plan) <= FEW:
            publisher.spent += deliveries
            for messages, receivers in plan:
                for receiver in receivers:
                    receiver.deliver(sender, messages)
        elif publisher.hand_on(Undelivered(sender, plan)):
            return some[-1][1]
    return None


def route_copies(publisher: Publisher) -> None:
    """Go on with the rest of the last receive call, for the length of a turn.

    Raises :exc:`~sbuslib.errors.PacketError` for a violation.
    """
    while publisher.backlog and not publisher.closed:
        rest = publisher.backlog.popleft()
        if isinstance(rest, bytes):
            _route_copy(publisher, rest)
        else:
            publisher.hand_on(rest)
        if publisher.is_over or monotonic() > publisher.until:
            break


def _route_copy(publisher: Publisher, packet: bytes) -> None:
    """Act on one packet that was copied out. ``authorize=`` is asked about a key that it did not decide yet."""
    header = packet[: packet.find(b"\0") + 1]
    if publisher.batches and packet.startswith(BATCH):
        take_batch(publisher, packet, publisher)
    elif not header.startswith(MSG):
        publisher.commands += 1
        publisher.role.command(publisher, packet)
    elif publisher.knows_allowed(header) or publisher.may_publish(header):
        publisher.deliver(publisher.look_up(header), publisher, Single(packet))
