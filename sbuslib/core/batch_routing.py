"""The routing of batches, which are many messages in one packet.

The hub looks each distinct key of a batch up once. Where all keys go to the same receivers, those that asked for
batches are handed the packet as it came, and none of its messages is touched. Otherwise each receiver is handed a
batch of the messages that go to it, made once for all receivers of the same messages. A receiver that did not ask for
batches gets plain packets.

All of a batch is checked, with each of its keys, before any of it is delivered. So a batch with a violation delivers
nothing. If a batch is too much for one turn, its rest, again a batch, is routed in the next turn.
"""

from __future__ import annotations

from itertools import groupby
from time import monotonic
from typing import TYPE_CHECKING, Final

from ..errors import PacketError
from ..wire.batches import Batch
from .messages import Batched
from .protocols import Receiver, Routes, Sender
from .publisher import Publisher

if TYPE_CHECKING:
    from mmap import mmap

__all__ = ["take_batch"]

_AT_ONCE: Final = 512
"""Most messages of a batch that are regrouped in one go: for each group of receivers, all of them are looked at."""

_CHEAP: Final = 16
"""How many messages of a batch cost as much to pick out as one costs to deliver by itself."""


def take_batch(
    publisher: Publisher,
    data: bytes | mmap,
    sender: Sender,
    wrapper: bytes = b"",
    start: int = 0,
    length: int | None = None,
) -> None:
    """Route a batch that was published by ``sender``; what is too much for this turn is put off.

    The batch is ``length`` bytes of ``data`` from ``start`` on. If ``authorize=`` has to be asked, do not call this
    while the hub's area is in use. Raises :exc:`~sbuslib.errors.PacketError` for a violation: nothing of the batch is
    delivered then.
    """
    try:
        batch = Batch.parse(data, start, length)
    except PacketError as error:
        if not publisher.role.is_link:
            raise
        publisher.role.drop(error.reason)
        return
    publisher.refresh()
    get = publisher.routes.get
    routes = {key: get(b"MSG %b\0" % key) for key in batch.keys}
    if None in routes.values():
        _check_keys(publisher, batch, routes)
        if publisher.closed:
            return  # authorize= had it closed
    left = _look_up_some(publisher, batch, routes, sender)
    while left is not None:
        if publisher.is_over:
            publisher.put_off_first(wrapper + left.packet)
            return
        left = _look_up_some(publisher, left, routes, sender)


def _check_keys(publisher: Publisher, batch: Batch, routes: dict[bytes, Routes | None]) -> None:
    """Raise :exc:`~sbuslib.errors.PacketError` unless this client may publish under each of these keys.

    For a link this drops and counts the messages instead, here or when their key is looked up.
    """
    check_key = publisher.context.router.namespace.check_key
    for number, key in enumerate(batch.keys):
        if routes[key] is not None:
            continue
        header = b"MSG %b\0" % key
        if not publisher.knows_allowed(header):
            if not publisher.may_publish(header, batch.times(number)):
                routes[key] = ()
        elif not publisher.role.is_link:
            check_key(key)


def _look_up_some(
    publisher: Publisher, batch: Batch, routes: dict[bytes, Routes | None], sender: Sender
) -> Batch | None:
    """Deliver messages until looking their keys up has taken too long. Returns the rest."""
    if None not in routes.values():
        return _spread(publisher, batch, [found for key in batch.keys if (found := routes[key]) is not None], sender)
    keys, numbers = batch.keys, batch.numbers
    used = batch.used()
    stop = batch.count
    until = monotonic() + publisher.context.limits.turn_time
    for position, number in enumerate(used):
        key = keys[number]
        if routes[key] is None:
            if position and monotonic() > until:
                assert numbers is not None
                stop = numbers.index(number)
                break
            routes[key] = publisher.look_up(b"MSG %b\0" % key, batch.times(number))
    now, rest = batch, None
    if stop < batch.count:
        now, rest = batch.part(0, stop), batch.part(stop, batch.count)
    elif len(used) < len(keys):
        now = batch.part(0, stop)
    more = _spread(publisher, now, [found for key in now.keys if (found := routes[key]) is not None], sender)
    if rest is not None:
        publisher.spent = max(publisher.spent, publisher.context.limits.turn_deliveries)
    return rest if more is None else batch.part(stop - more.count, batch.count)


def _spread(publisher: Publisher, batch: Batch, routes: list[Routes], sender: Sender) -> Batch | None:
    """Hand each receiver its messages. Returns the rest, if that is too much for one go. ``routes``: of each key."""
    grouped = publisher.context.fan_out.routes_with_groups(routes, sender)
    one_by_one = grouped is not routes
    routes = grouped
    room = max(1, publisher.context.limits.turn_deliveries - publisher.spent)
    rest: Batch | None = None
    if routes.count(routes[0]) == len(routes):
        return _spread_whole(publisher, batch, routes[0], sender, room)
    fits = min(_AT_ONCE, max(1, room // max(map(len, routes))))
    if fits < batch.count:
        rest = batch.part(fits, batch.count)
    of = dict(zip(batch.keys, routes, strict=True))
    batch = batch.part(0, fits)
    routes = [of[key] for key in batch.keys]
    publisher.received += batch.count
    if one_by_one:
        _spread_in_order(publisher, batch, routes, sender)
    else:
        _spread_by_receiver(publisher, batch, routes, sender)
    return rest


def _spread_whole(publisher: Publisher, batch: Batch, receivers: Routes, sender: Sender, room: int) -> Batch | None:
    """Hand a batch to receivers that all get all of it. Returns the rest, if that is too much for one go."""
    rest: Batch | None = None
    opened = [receiver.takes_batches for receiver in receivers].count(False)
    fits = max(1, room // opened) if opened else batch.count
    if fits < batch.count:
        batch, rest = batch.part(0, fits), batch.part(fits, batch.count)
    publisher.received += batch.count
    publisher.spent += len(receivers) - opened + opened * batch.count
    messages = Batched(publisher.context.writer, batch)
    for receiver in receivers:
        receiver.deliver(sender, messages)
    return rest


def _spread_by_receiver(publisher: Publisher, batch: Batch, routes: list[Routes], sender: Sender) -> None:
    """Hand each receiver its messages, as a batch that is made once for all receivers of the same messages."""
    writer = publisher.context.writer
    mine: dict[Receiver, list[int]] = {}
    for number, found in enumerate(routes):
        for receiver in found:
            mine.setdefault(receiver, []).append(number)
    parts: dict[tuple[int, ...], Batched] = {}
    for receiver, numbers in mine.items():
        wanted = tuple(numbers)
        part = parts.get(wanted)
        if part is None:
            whole = len(wanted) == len(routes)
            part = parts[wanted] = Batched(writer, batch if whole else batch.select(wanted))
            publisher.spent += 0 if whole else batch.count // _CHEAP
        publisher.spent += 1 if receiver.takes_batches else part.count
        receiver.deliver(sender, part)


def _spread_in_order(publisher: Publisher, batch: Batch, routes: list[Routes], sender: Sender) -> None:
    """Hand on messages in the order in which they came: once one is in a fan-out queue, the next have to follow it."""
    start = 0
    for receivers, some in groupby(map(routes.__getitem__, batch.numbers or bytes(batch.count))):
        stop = start + len(list(some))
        part = Batched(publisher.context.writer, batch.part(start, stop))
        start = stop
        for receiver in receivers:
            publisher.spent += 1 if receiver.takes_batches else part.count
            receiver.deliver(sender, part)
