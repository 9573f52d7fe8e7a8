"""State that the connections of one process share: a client of the bus, the queues kept here, and bindings.

Celery declares the queue of its results with one connection and receives from it with another.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from secrets import token_bytes
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from kombu.exceptions import ChannelError
from kombu.transport import virtual

from ..clients.endpoint import ClientSubscription, Endpoint, JobQueue, Worker
from ..clients.recipes.queue import LONGEST_SECONDS, NOT_TRUSTED, PEEKED, PEEKED_BYTES, QueueState
from ..connecting import BusUrl, connect
from ..errors import NoServerError, ReplyError, SbusError
from ..wire.packets import Message
from .kombu_messages import (
    Binding,
    KeptQueue,
    Kind,
    Raw,
    dated,
    decode,
    decode_binding,
    delay_of,
    encode,
    encode_message,
    expiry_of,
    priority_of,
    submit_id,
)
from .kombu_names import bindings_name, exchange_key, exchange_pattern, queue_key, queue_name
from .trust import TrustedUsers

logger = logging.getLogger("sbuslib.integrations")

_PAUSE: Final = 0.1
"""Seconds until a task is submitted again, where no service of queues is there."""
_ANSWERED_WITHIN: Final = 2.0
"""Seconds after which a task is submitted again that was not answered. It is in the queue once."""
_REFUSED_WITHIN: Final = 1.0
"""Seconds that each question has at least, however short the timeout: in less the hub cannot say that there is no
service."""
_MOST_KNOWN: Final = 4_096
"""Queues of other processes, and exchanges, that are remembered."""
MOST_BINDINGS: Final = PEEKED // 2
"""Bindings of an exchange to shared queues. Several processes that bind at the same time may make some more."""
_BINDINGS_BYTES: Final = PEEKED_BYTES // 4
"""Bytes of those: all have to fit one answer of the service, with what it says of each."""

T = TypeVar("T")


class Bindings(NamedTuple):
    """The bindings of an exchange to shared queues, by the numbers of their jobs, in one version of their queue."""

    version: bytes
    by_number: dict[int, Binding]


class Consumed:
    """A shared queue that a connection takes jobs of."""

    def __init__(self, connection: KombuConnection, queue: str) -> None:
        self.connection = connection
        self.queue = queue
        self.service = b""  # that has the bindings of the queue


class KombuConnection(Protocol):
    """A connection of kombu."""

    def consumed(self) -> set[str]:
        """The queues that it has consumers of."""

    def wake(self) -> None:
        """End a wait of this connection, in any thread."""


class Bus:
    """State that the connections of one process share: a client, the queues that it keeps, and bindings."""

    def __init__(self, url: BusUrl, users: frozenset[int]) -> None:
        self.users = users  # whose messages are taken, besides those of the own user and root
        self.process = os.getpid()  # it cannot be used in a child
        self.state = virtual.BrokerState()  # exchanges and bindings that this process declared
        self.kept: dict[str, KeptQueue] = {}  # queues of this process
        self.shared: set[str] = set()  # queues of the service that this process declared
        self.workers: dict[Worker, Consumed] = {}  # of all connections
        self.connections: set[KombuConnection] = set()  # that are open
        self._timeout = url.timeout  # seconds that a message waits for a hub and a service
        self._changing = threading.RLock()  # held while queues or bindings of this process change
        self._subscriptions: dict[str, ClientSubscription] = {}  # by name, of the queues of this process
        self._bindings: dict[str, Bindings] = {}  # by exchange, as they were seen last
        self._unrouted: set[str] = set()  # exchanges of messages that no queue got, as far as that was logged
        self._elsewhere: dict[str, None] = {}  # queues known to be kept in other processes
        self._may_look = True  # whether the service shows other users' messages to this user
        self._pulling = threading.Lock()  # one connection at a time sorts messages
        options = {**url.options, "reconnect": True, "senders": True}
        #: The client of all connections.
        self.client: Endpoint = connect(url.address or "", threads=True, **options)
        self.separator = self.client.hub.separator  # of keys
        self._trusted = TrustedUsers("messages", users, self.separator)

    # -- sending ------------------------------------------------------------------------------------

    def queue(self, name: str) -> JobQueue:
        """Return the shared queue for a queue of kombu. Raises :exc:`~sbuslib.errors.UsageError`."""
        return self.client.queue(queue_name(name, self.separator))

    def put(self, name: str, message: Raw) -> None:
        """Put a message into a queue of any process or of the service."""
        if name in self.kept or (name not in self.shared and self._is_kept_elsewhere(name)):
            self.client.publish(queue_key(name, self.separator), encode_message(dated(message)))
        elif name in self.shared or message["properties"].get("delivery_mode") != 1 or self._is_served(name):
            self._submit(name, message)
        else:  # as of a process that has ended
            self.client.publish(queue_key(name, self.separator), encode_message(dated(message)))

    def publish(self, exchange: str, routing_key: str, message: Raw) -> None:
        """Send a message to all queues that processes keep and have bound to an exchange."""
        self.client.publish(exchange_key(exchange, routing_key, self.separator), encode_message(dated(message)))

    def waiting(self, name: str) -> int:
        """Return how many messages wait in a shared queue."""
        return self._ask(self.queue(name).status).waiting

    def purge(self, name: str) -> int:
        """Forget the messages that wait in a shared queue; return how many there were."""
        return self._ask(self.queue(name).purge)

    def _is_kept_elsewhere(self, name: str) -> bool:
        """Return whether another process keeps a queue that this one did not declare."""
        if name in self._elsewhere:
            return True
        if not self.client.hub.is_wanted(queue_key(name, self.separator)):
            return False
        _remember(self._elsewhere, name, None)
        return True

    def _is_served(self, name: str) -> bool:
        """Return whether there is a service that has this queue. A transient message makes no new one."""
        with suppress(NoServerError):
            return self._has_any(self.queue(name).status())
        return False

    def is_there(self, name: str) -> bool:
        """Return whether the service has messages or consumers of a queue."""
        return self._has_any(self._ask(self.queue(name).status))

    @staticmethod
    def _has_any(state: QueueState) -> bool:
        return state.waiting + state.held + state.workers > 0

    def _submit(self, name: str, message: Raw) -> None:
        """Have the service accept a message."""
        submit, key, payload = self.queue(name).submit, name.encode(), encode_message(message)
        delay, expires, priority = delay_of(message), expiry_of(message), priority_of(message)
        options: dict[str, Any] = {"delay": delay, "expires": expires, "priority": priority, "id": submit_id(message)}
        self._ask(partial(submit, key, payload, **options))

    def _ask(self, ask: Callable[..., T]) -> T:
        """Ask the service, with a timeout, and wait for it as long as for a hub."""
        deadline = time.monotonic() + self._timeout
        failure: Exception | None = None
        while (left := deadline - time.monotonic()) > 0:
            try:
                return ask(timeout=max(min(left, _ANSWERED_WITHIN), _REFUSED_WITHIN))
            except NoServerError as error:
                failure = error
                time.sleep(_PAUSE)
            except TimeoutError as error:  # a service that was just started again does not know it
                failure = failure or error
        raise failure or TimeoutError("there was no time to ask the service of queues")

    # -- bindings -----------------------------------------------------------------------------------

    def bind(self, name: str, exchange: str, routing_key: str, arguments: Any) -> None:
        """Bind a queue to an exchange, for messages from all processes. After an error it is not bound."""
        with self._changing:
            if self.state.has_binding(name, exchange, routing_key):
                return
            if (known := self.state.exchanges.get(exchange)) is None:
                raise ChannelError(f"exchange {exchange}: this process has not declared it")
            kind = known["type"]
            if name in self.kept:
                self._subscriptions[name].add(exchange_pattern(exchange, kind, routing_key, self.separator))
            else:
                self._bind_shared(exchange, Binding(kind, routing_key, name))
            self.state.binding_declare(name, exchange, routing_key, arguments)
            known["table"].append(_exchange_type(kind).prepare_bind(name, exchange, routing_key, arguments))

    def _bind_shared(self, exchange: str, binding: Binding) -> None:
        bound = self._bound(exchange).values()
        if not self._may_look or binding in bound:
            return
        payload = encode(binding)
        if len(bound) >= MOST_BINDINGS or sum(map(len, map(encode, bound))) + len(payload) > _BINDINGS_BYTES:
            raise ChannelError(f"exchange {exchange}: it has {len(bound)} bindings to stored queues, and takes no more")
        queue = self.client.queue(bindings_name(exchange, self.separator))
        self._ask(partial(queue.submit, "binding", payload, expires=LONGEST_SECONDS, id=token_bytes(16)))

    def unbind(self, name: str, exchange: str, routing_key: str) -> None:
        """Remove a binding of a queue."""
        kind = self._kind(exchange)
        with self._changing:
            is_ours = self.state.has_binding(name, exchange, routing_key)
            self.state.binding_delete(name, exchange, routing_key)
            self._drop(name, exchange, routing_key)
            subscription = self._subscriptions.get(name)
        if subscription is None:
            self._unbind_shared(exchange, Binding(kind, routing_key, name))
        elif is_ours:
            subscription.remove(exchange_pattern(exchange, kind, routing_key, self.separator))

    def _drop(self, name: str, exchange: str, routing_key: str) -> None:
        """Drop a row of an exchange's table: in a new one, as others may be walking through this."""
        if (known := self.state.exchanges.get(exchange)) is not None:
            known["table"] = [row for row in known["table"] if (row[0], row[2]) != (routing_key, name)]

    def _unbind_shared(self, exchange: str, binding: Binding) -> None:
        queue = self.client.queue(bindings_name(exchange, self.separator))
        for number, other in self._bound(exchange).items():
            if other == binding:
                self._ask(partial(queue.purge, number=number))

    def _kind(self, exchange: str) -> Kind:
        known = self.state.exchanges.get(exchange)
        kind: Kind = "direct" if known is None else known["type"]
        return kind

    def _bind_again(self, consumed: Consumed, service: bytes) -> None:
        """Bind a shared queue again, as another service may have lost its bindings."""
        name = consumed.queue
        try:
            for exchange, routing_key, _ in [*self.state.queue_bindings(name)]:
                self._bind_shared(exchange, Binding(self._kind(exchange), routing_key, name))
        except (SbusError, TimeoutError, ChannelError) as error:
            logger.error("queue %s: it could not be bound again at a service that was started: %s", name, error)
        else:
            consumed.service = service

    def _bound(self, exchange: str) -> dict[int, Binding]:
        """Return the bindings of an exchange to shared queues, made by users whose messages are taken.

        A user who may only put messages in is shown none: its process knows those that it declared itself.
        """
        if not self._may_look:
            return {}
        queue = self.client.queue(bindings_name(exchange, self.separator))
        state = self._ask(queue.status)
        if not (state.waiting or state.held):
            return {}
        seen = self._bindings.get(exchange)
        if seen is not None and state.version == seen.version:
            return seen.by_number
        try:
            jobs = self._ask(queue.peek)
        except ReplyError as error:
            if NOT_TRUSTED not in str(error):  # it is busy
                raise
            self._may_look = False
            return {}

        read = ((job.number, decode_binding(job.payload)) for job in jobs if not self._is_of_a_stranger(job.sender))
        bindings = {number: binding for number, binding in read if binding is not None}
        if state.version:
            _remember(self._bindings, exchange, Bindings(state.version, bindings))
        return bindings

    def shared_queues(self, exchange: str, routing_key: str, *, is_kept: bool) -> set[str]:
        """Return the shared queues for a message; those that other processes bound only if it ``is_kept``."""
        queues = {name for name in self.find(exchange, routing_key) if name in self.shared}
        known = self.state.exchanges.get(exchange)
        if is_kept and (known is None or known["durable"]):
            for kind, key, name in self._bound(exchange).values():
                queues.update(_lookup(kind, [(key, name)], exchange, routing_key))
            if not queues:
                self._note_unrouted(exchange, routing_key)
        return queues

    def _note_unrouted(self, exchange: str, routing_key: str) -> None:
        """Log that a message is lost as no queue is bound for it, once for each exchange."""
        if exchange in self._unrouted or len(self._unrouted) >= _MOST_KNOWN:
            return
        if self.client.hub.is_wanted(exchange_key(exchange, routing_key, self.separator)) is False:
            self._unrouted.add(exchange)
            logger.warning("exchange %s: no queue is bound for a persistent message, which is lost", exchange)

    # -- receiving ----------------------------------------------------------------------------------

    def keep(self, name: str, *, auto_delete: bool) -> None:
        """Keep a queue in this process; one with ``auto_delete`` until its last consumer here goes."""
        with self._changing:
            if name not in self.kept:
                self._subscriptions[name] = self.client.subscribe(queue_key(name, self.separator))
                self.kept[name] = KeptQueue(auto_delete=auto_delete)

    def delete(self, name: str) -> None:
        """Delete a queue, with its messages and the bindings that this process made."""
        # 1. In this process.
        with self._changing:
            bound = [
                (exchange, Binding(self._kind(exchange), key, name))
                for exchange, key, _ in self.state.queue_bindings(name)
            ]
            for exchange, binding in bound:
                self._drop(name, exchange, binding.routing_key)
            self.state.queue_bindings_delete(name)
            kept, subscription = self.kept.pop(name, None), self._subscriptions.pop(name, None)
            self.shared.discard(name)

        # 2. At the hub, or at the service.
        if subscription is not None:
            subscription.unsubscribe()
        elif kept is None:
            for exchange, binding in bound:
                self._unbind_shared(exchange, binding)
            self.purge(name)

    def pull(self, mine: KombuConnection) -> None:
        """Put received messages into the queues, and wake other connections that have consumers of those."""
        with self._pulling:
            names: set[str] = set()
            while messages := self.client.receive_many(timeout=0):
                for message in messages:
                    names.update(self._sort(message))
        working = [*self.workers.items()]
        filled = {each.connection for worker, each in working if worker.ready}
        for other in [*self.connections]:
            if other is not mine and (other in filled or not names.isdisjoint(other.consumed())):
                other.wake()
        for worker, each in working:
            if (service := worker.service) and each.service != service:
                self._bind_again(each, service)

    def _sort(self, message: Message) -> Iterator[str]:
        """Put a message into the queues of this process that are to get it; return their names."""
        if (raw := self.read(message.payload, message.sender)) is None:
            return
        info = raw["properties"]["delivery_info"]
        for name in self.find(info["exchange"], info["routing_key"]):
            if (queue := self.kept.get(name)) is None:
                continue
            if queue.put(raw):
                yield name
            elif queue.lost == 1:
                logger.error("queue %s: nobody reads it, and messages are lost from now on", name)

    def find(self, exchange: str, routing_key: str) -> set[str]:
        """Return the queues that this process bound to an exchange for this routing key."""
        if not exchange:
            return {routing_key}
        known = self.state.exchanges.get(exchange)
        if known is None:
            return set()
        return _lookup(known["type"], [(key, name) for key, _, name in known["table"]], exchange, routing_key)

    def read(self, payload: bytes, sender: bytes | None) -> Raw | None:
        """Decode a message; ``None`` if it is none, or of a user whose messages are not taken."""
        if self._is_of_a_stranger(sender):
            return None
        if (raw := decode(payload)) is None:
            logger.error("what came is no message of kombu")
        return raw

    def _is_of_a_stranger(self, sender: bytes | None) -> bool:
        return self._trusted.why_refused(sender, self.client.credentials) is not None


def _exchange_type(kind: str) -> Any:
    return virtual.exchange.STANDARD_EXCHANGE_TYPES[kind](None)


def _remember(known: dict[str, T], name: str, value: T) -> None:
    """Remember a value as the newest, and forget the oldest ones beyond a bound."""
    known.pop(name, None)
    while len(known) >= _MOST_KNOWN:
        del known[next(iter(known))]
    known[name] = value


def _lookup(kind: str, bound: list[tuple[str, str]], exchange: str, routing_key: str) -> set[str]:
    """Return the queues, bound by these routing keys to an exchange of this kind, that are to get a message."""
    exchange_type = _exchange_type(kind)
    table = [exchange_type.prepare_bind(name, exchange, key, None) for key, name in bound]
    found: set[str] = exchange_type.lookup(table, exchange, routing_key, None)
    return found


_buses: Final[dict[tuple[BusUrl, frozenset[int]], Bus]] = {}
_joining: Final = threading.RLock()  # for changes of it


def join(connection: KombuConnection, url: BusUrl, users: frozenset[int]) -> Bus:
    """Return the bus of this process for a connection. Raises as :class:`sbuslib.Client`."""
    with _joining:
        bus = _buses.get((url, users))
        if bus is None or bus.process != os.getpid():
            bus = _buses[url, users] = Bus(url, users)
        bus.connections.add(connection)
        return bus


def leave(connection: KombuConnection, bus: Bus) -> None:
    """Note the end of a connection: the last one closes the client."""
    with _joining:
        bus.connections.discard(connection)
        if bus.connections or bus.process != os.getpid():
            return
        for key in [key for key, other in _buses.items() if other is bus]:
            del _buses[key]
    bus.client.close()
