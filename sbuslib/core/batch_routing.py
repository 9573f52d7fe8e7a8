"""The routing of batches, which are many messages in one packet.

The hub looks each distinct key of a batch up once. Where all keys go to the same receivers, those that asked for
batches are handed the packet as it came, and none of its messages is touched. Otherwise each receiver is handed a
batch of the messages that go to it, made once for all receivers of the same messages. A receiver that did not ask for
batches gets plain packets.

All of a batch is checked, with each of its keys, before any of it is delivered. So a batch with a violation delivers
nothing. If a batch is too much for one turn, the next turns go on: with the receivers that did not get theirs yet, and
then with the messages whose keys were not looked up, which are a batch again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeAlias

from ..errors import PacketError
from ..kernel.packet_writer import PacketWriter
from ..wire.batches import Batch
from .messages import Batched
from .protocols import Receiver, Routes, Sender
from .publisher import PLANNED, Publisher, Undelivered, affordable, by_receiver

if TYPE_CHECKING:
    from mmap import mmap

_AT_ONCE: Final = 512
"""Most messages of a batch that go in one piece, where a receiver does not get all of them in one packet."""

_Which: TypeAlias = tuple[int, ...] | range | None
"""Messages of a batch: those whose keys have these numbers, those in these places, or all."""

_Plan: TypeAlias = Sequence[tuple[_Which, Sequence[Receiver]]]


def take_batch(
    publisher: Publisher,
    data: bytes | mmap,
    sender: Sender,
    wrapper: bytes = b"",
    start: int = 0,
    length: int | None = None,
) -> None:
    """Route a batch that was published by ``sender``; messages beyond this turn are put off.

    The batch is ``length`` bytes of ``data`` from ``start`` on. If ``authorize=`` has to be asked, do not call this
    while the hub's receive buffer is in use. Raises :exc:`~sbuslib.errors.PacketError` for a violation: nothing of the
    batch is delivered then.
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
    rest: Batch | None = batch
    while rest is not None:
        some, found = _look_up_some(publisher, rest, routes)
        some, spreading = _plan(publisher, some, found, sender)
        rest = rest.part(some.count, rest.count) if some.count < rest.count else None

        publisher.received += some.count
        is_cut = publisher.spread(spreading)
        if rest is not None and publisher.is_over:
            publisher.put_off_first(wrapper + rest.packet)
            rest = None
        if is_cut:
            spreading.keep()
            publisher.put_off_first(spreading)


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


def _look_up_some(publisher: Publisher, batch: Batch, routes: dict[bytes, Routes | None]) -> tuple[Batch, list[Routes]]:
    """Look keys up until that has taken too long. Returns the messages up to there, and the routes of their keys."""
    if None in routes.values():
        keys, numbers = batch.keys, batch.numbers
        used = batch.used()
        stop = batch.count
        until = publisher.until

        for position, number in enumerate(used):
            key = keys[number]
            if routes[key] is None:
                if position and monotonic() > until:
                    assert numbers is not None
                    stop = numbers.index(number)
                    publisher.spent = max(publisher.spent, publisher.most)
                    break
                routes[key] = publisher.look_up(b"MSG %b\0" % key, batch.times(number))

        if stop < batch.count or len(used) < len(keys):
            batch = batch.part(0, stop)
    return batch, [found for key in batch.keys if (found := routes[key]) is not None]


def _plan(publisher: Publisher, batch: Batch, routes: list[Routes], sender: Sender) -> tuple[Batch, _Spreading]:
    """Plan the receivers of a batch's messages, or of its beginning; and that part. ``routes`` has those of each
    key.
    """
    # 1. No more than may be planned at once.
    most = PLANNED * publisher.most
    if batch.numbers is not None and sum(map(len, routes)) > most and routes.count(routes[0]) < len(routes):
        used = batch.used()
        stops = used[affordable([routes[number] for number in used], most) :]
        if stops:
            batch, routes = _beginning(batch, routes, batch.numbers.index(stops[0]))
    grouped = publisher.fan_outs.routes_with_groups(routes, sender)
    in_order = grouped is not routes
    is_whole = grouped.count(grouped[0]) == len(grouped)
    if batch.count > _AT_ONCE and not (is_whole and all(receiver.takes_batches for receiver in grouped[0])):
        batch, grouped = _beginning(batch, grouped, _AT_ONCE)

    # 2. Who gets which.
    plan: _Plan
    if is_whole:
        plan = [(None, grouped[0])]
    elif in_order:
        plan = _in_order(batch, grouped)
    else:
        plan = by_receiver(((number,), found) for number, found in enumerate(grouped))
    return batch, _Spreading(publisher.running.writer, sender, batch, plan)


def _beginning(batch: Batch, routes: list[Routes], stop: int) -> tuple[Batch, list[Routes]]:
    """The messages before ``stop``, and the routes of their keys."""
    of = dict(zip(batch.keys, routes, strict=True))
    batch = batch.part(0, stop)
    return batch, [of[key] for key in batch.keys]


def _in_order(batch: Batch, routes: list[Routes]) -> _Plan:
    """Messages in the order in which they came: once one is in a fan-out queue, the next have to follow it."""
    plan: list[tuple[_Which, Routes]] = []
    start = 0
    for receivers, some in groupby(map(routes.__getitem__, batch.numbers or bytes(batch.count))):
        stop = start + len(list(some))
        plan.append((range(start, stop), receivers))
        start = stop
    return plan


class _Spreading(Undelivered[_Which]):
    """The messages of one batch."""

    def __init__(self, writer: PacketWriter, sender: Sender, batch: Batch, plan: _Plan) -> None:
        super().__init__(sender, plan)
        self._writer = writer
        self._batch = batch

    def messages(self, which: _Which) -> Batched:
        batch = self._batch
        if isinstance(which, range):
            batch = batch.part(which.start, which.stop)
        elif which is not None and len(which) < len(batch.keys):
            batch = batch.select(which)
        return Batched(self._writer, batch)

    def keep(self) -> None:
        self._batch = self._batch.copy()
