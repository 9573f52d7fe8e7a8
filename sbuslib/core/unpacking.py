"""Batches on their way through a hub: the part of a connection that routes many messages at once.

The hub looks each distinct key of a batch up once. Where all keys go to the same receivers, those that asked for
batches are handed the packet as it came, and not one of its messages is touched. Else each receiver is handed a batch
of what goes to it, made once for all who get the same; and one that did not ask gets plain packets.

A batch is checked whole, each of its keys included, before any of it goes anywhere: what is refused is refused
whole. A batch that is too much for one turn goes on in the next with the rest of it, as plain packets do; the rest
of a batch is a batch.
"""

from __future__ import annotations

import socket
from abc import abstractmethod
from collections import deque
from itertools import groupby
from time import monotonic
from typing import TYPE_CHECKING, Final

from ..errors import PacketError
from ..secrets import Credentials
from ..wire.batches import Bundle
from .outgoing import Delivery
from .parties import Holder, Receiver, Routes, Sender
from .quotas import Account

if TYPE_CHECKING:
    from mmap import mmap

    from ..hub import Hub

__all__ = ["Unpacking"]

_AT_ONCE: Final = 512
"""Messages of a batch that are regrouped in one go. For each group of receivers all of them are looked at."""

_CHEAP: Final = 16
"""How many messages of a batch cost as much to pick out as one costs to deliver by itself."""


class Unpacking(Delivery):
    """The part of a connection that routes batches."""

    __slots__ = (
        "_allowed",
        "_allowed_bytes",
        "_asks",
        "_holders",
        "_left",
        "_routes",
        "_spent",
        "_version",
        "received",
    )

    def __init__(self, hub: Hub, sock: socket.SocketType, credentials: Credentials, account: Account) -> None:
        super().__init__(hub, sock, credentials, account)
        self.received = 0
        self._asks = hub.authorize is not None
        # Without authorize= every connection reads the router's own cache; with it an empty one, so that each new
        # header is looked for among those that it said yes to.
        self._routes: dict[bytes, Routes] = {} if hub.authorize else hub.router.routes
        self._allowed: set[bytes] = set()
        self._allowed_bytes = 0
        self._version = hub.router.version
        self._spent = 0  # deliveries of the turn at hand
        self._left: deque[bytes] = deque()  # of the last batch, when it was too much for one turn
        self._holders: set[Holder] = set()

    @property
    def _is_excused(self) -> bool:
        """Whether what others would be let go for is only counted: a link speaks for many."""
        return False

    @abstractmethod
    def _look_up(self, header: bytes, times: int = 1) -> Routes:
        """The receivers of a message, or of as many as this counts as where it is refused."""

    @abstractmethod
    def _may_publish(self, header: bytes, times: int = 1) -> bool:
        """Ask ``authorize=`` about the key of so many messages."""

    @abstractmethod
    def _refresh(self) -> None: ...

    @abstractmethod
    def _excuse(self, reason: str) -> None:
        """Count what the other end did, which others would be let go for."""

    def take_batch(
        self, data: bytes | mmap, sender: Sender, wrapper: bytes = b"", start: int = 0, length: int | None = None
    ) -> None:
        """Route a batch that was published by ``sender``; what is too much for this turn waits in ``_left``.

        It is ``length`` bytes of ``data`` from ``start`` on. Not while the hub's area is in use where ``authorize=``
        has to be asked. Raises :exc:`~sbuslib.errors.PacketError` for a violation, of which nothing has gone
        anywhere then.
        """
        try:
            bundle = Bundle.parse(data, start, length)
        except PacketError as error:
            if not self._is_excused:
                raise
            self._excuse(error.reason)
            return
        routes = self._known_routes(bundle)
        if None in routes.values():
            self._check_keys(bundle, routes)
            if self.closed:
                return  # by what authorize= did
        left = self._look_up_some(bundle, routes, sender)
        while left is not None:
            if self._holders or self._spent >= self._hub.limits.turn_deliveries:
                self._left.appendleft(wrapper + left.packet)
                return
            left = self._look_up_some(left, routes, sender)

    def _known_routes(self, bundle: Bundle) -> dict[bytes, Routes | None]:
        """The receivers of each key, as far as they are remembered."""
        if self._version != self._hub.router.version:
            self._refresh()
        get = self._routes.get
        return {key: get(b"MSG %b\0" % key) for key in bundle.keys}

    def _check_keys(self, bundle: Bundle, routes: dict[bytes, Routes | None]) -> None:
        """Raise :exc:`~sbuslib.errors.PacketError` unless this client may publish under each of these keys.

        Of a link, what it may not is dropped and counted instead, here or when it is looked up.
        """
        check_key = self._hub.router.namespace.check_key
        for number, key in enumerate(bundle.keys):
            if routes[key] is not None:
                continue
            header = b"MSG %b\0" % key
            if self._asks and header not in self._allowed:
                if not self._may_publish(header, bundle.times(number)):
                    routes[key] = ()
            elif not self._is_excused:
                check_key(key)

    def _look_up_some(self, bundle: Bundle, routes: dict[bytes, Routes | None], sender: Sender) -> Bundle | None:
        """Deliver messages from the first on whose keys can be looked up without this taking long; the rest."""
        if None not in routes.values():
            return self._spread(bundle, [found for key in bundle.keys if (found := routes[key]) is not None], sender)
        keys, numbers = bundle.keys, bundle.numbers
        used = bundle.used()
        stop = bundle.count
        until = monotonic() + self._hub.limits.turn_time
        for position, number in enumerate(used):
            key = keys[number]
            if routes[key] is None:
                if position and monotonic() > until:
                    assert numbers is not None
                    stop = numbers.index(number)
                    break
                routes[key] = self._look_up(b"MSG %b\0" % key, bundle.times(number))
        now, rest = bundle, None
        if stop < bundle.count:
            now, rest = bundle.part(0, stop), bundle.part(stop, bundle.count)
        elif len(used) < len(keys):
            now = bundle.part(0, stop)
        more = self._spread(now, [found for key in now.keys if (found := routes[key]) is not None], sender)
        if rest is not None:
            self._spent = max(self._spent, self._hub.limits.turn_deliveries)
        return rest if more is None else bundle.part(stop - more.count, bundle.count)

    def _spread(self, bundle: Bundle, routes: list[Routes], sender: Sender) -> Bundle | None:
        """Hand each receiver what goes to it; the rest where that is too much for one go. ``routes``: of each key."""
        routes, one_by_one = self._hub.fanouts.near_routes(routes, sender)
        room = max(1, self._hub.limits.turn_deliveries - self._spent)
        most = max(map(len, routes))
        first = routes[0]
        rest: Bundle | None = None
        if routes.count(first) == len(routes):
            opened = [receiver.takes_batches for receiver in first].count(False)
            fits = max(1, room // opened) if opened else bundle.count
            if fits < bundle.count:
                bundle, rest = bundle.part(0, fits), bundle.part(fits, bundle.count)
            self.received += bundle.count
            self._spent += len(first) - opened + opened * bundle.count
            for receiver in first:
                receiver.deliver_bundle(sender, bundle)
            return rest
        fits = min(_AT_ONCE, max(1, room // most))
        if fits < bundle.count:
            rest = bundle.part(fits, bundle.count)
        of = dict(zip(bundle.keys, routes, strict=True))
        bundle = bundle.part(0, fits)
        routes = [of[key] for key in bundle.keys]
        self.received += bundle.count
        if one_by_one:
            self._spread_in_order(bundle, routes, sender)
            return rest
        mine: dict[Receiver, list[int]] = {}
        for number, found in enumerate(routes):
            for receiver in found:
                mine.setdefault(receiver, []).append(number)
        parts: dict[tuple[int, ...], Bundle] = {}
        for receiver, numbers in mine.items():
            wanted = tuple(numbers)
            part = bundle if len(wanted) == len(routes) else parts.get(wanted)
            if part is None:
                part = parts[wanted] = bundle.select(wanted)
                self._spent += bundle.count // _CHEAP
            self._spent += 1 if receiver.takes_batches else part.count
            receiver.deliver_bundle(sender, part)
        return rest

    def _spread_in_order(self, bundle: Bundle, routes: list[Routes], sender: Sender) -> None:
        """Hand on messages in the order in which they came: what goes into a line, others may have to follow."""
        start = 0
        for receivers, some in groupby(map(routes.__getitem__, bundle.numbers or bytes(bundle.count))):
            stop = start + len(list(some))
            part = bundle.part(start, stop)
            start = stop
            for receiver in receivers:
                self._spent += 1 if receiver.takes_batches else part.count
                receiver.deliver_bundle(sender, part)
