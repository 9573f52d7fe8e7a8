"""State that the connections of one process share: a client of the bus, the queues kept here, and bindings.

Celery declares the queue of its results with one connection and receives from it with another.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from secrets import token_bytes
from typing import Any, Final, Protocol, TypeVar

from kombu.exceptions import ChannelError
from kombu.transport import virtual

from ..clients.endpoint import Endpoint, HeldJob, JobQueue, Worker
from ..clients.recipes.queue import LONGEST_SECONDS, NOT_TRUSTED, PEEKED, Job
from ..connecting import BusUrl, connect
from ..errors import DisconnectedError, NoServerError, ReplyError
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
_TOLD_WITHIN: Final = 1.0
"""Seconds that each question has at least, however short the timeout: in less the hub cannot say that there is no
service."""
_MOST_KNOWN: Final = 4_096
"""Queues of other processes that are remembered."""

T = TypeVar("T")


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
        self.workers: dict[Worker, tuple[KombuConnection, deque[HeldJob]]] = {}  # of all connections
        self.connections: set[KombuConnection] = set()  # that are open
        self._timeout = url.timeout  # seconds that a message waits for a hub and a service
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
        elif name in self.shared or message["properties"].get("delivery_mode") != 1 or self._is_there(name):
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
        while len(self._elsewhere) >= _MOST_KNOWN:
            del self._elsewhere[next(iter(self._elsewhere))]
        self._elsewhere[name] = None
        return True

    def _is_there(self, name: str) -> bool:
        """Return whether there is a service that has this queue. A transient message makes no new one."""
        with suppress(NoServerError):
            state = self.queue(name).status()
            return state.waiting + state.held + state.workers > 0
        return False

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
                return ask(timeout=max(min(left, _ANSWERED_WITHIN), _TOLD_WITHIN))
            except NoServerError as error:
                failure = error
                time.sleep(_PAUSE)
            except TimeoutError as error:  # a service that was just started again does not know it
                failure = failure or error
        raise failure or TimeoutError("there was no time to ask the service of queues")

    # -- bindings -----------------------------------------------------------------------------------

    def bind(self, name: str, exchange: str, kind: Kind, routing_key: str) -> None:
        """Bind a queue to an exchange, for messages from all processes."""
        if name in self.kept:
            self.client.subscribe(exchange_pattern(exchange, kind, routing_key, self.separator))
            return
        binding, bound = Binding(kind, routing_key, name), self._bindings(exchange)
        if len(bound) >= PEEKED // 2:
            raise ChannelError(f"exchange {exchange}: it has {len(bound)} bindings, and takes no more")
        if self._may_look and binding not in bound.values():
            queue, payload = self.client.queue(bindings_name(exchange, self.separator)), encode(binding)
            self._ask(partial(queue.submit, "binding", payload, expires=LONGEST_SECONDS, id=token_bytes(16)))

    def unbind(self, name: str, exchange: str, kind: Kind, routing_key: str) -> None:
        """Remove a binding to a shared queue."""
        if name in self.kept:
            return
        queue = self.client.queue(bindings_name(exchange, self.separator))
        for number, binding in self._bindings(exchange).items():
            if binding == Binding(kind, routing_key, name):
                self._ask(partial(queue.purge, number=number))

    def _bindings(self, exchange: str) -> dict[int, Binding]:
        """Return the bindings of an exchange to shared queues, made by users whose messages are taken.

        A user who may only put messages in is shown none: its process knows those that it declared itself.
        """
        queue, jobs = self.client.queue(bindings_name(exchange, self.separator)), list[Job]()
        try:
            if self._may_look:
                jobs = self._ask(queue.peek)
        except ReplyError as error:
            if NOT_TRUSTED not in str(error):  # it is busy
                raise
            self._may_look = False
        found = ((job.number, decode_binding(job.payload)) for job in jobs if not self._is_of_a_stranger(job.sender))
        return {number: binding for number, binding in found if binding is not None}

    def shared_queues(self, exchange: str, routing_key: str, *, is_kept: bool) -> set[str]:
        """Return the shared queues for a message; those that other processes bound only if it ``is_kept``."""
        found = {name for name in self.find(exchange, routing_key) if name in self.shared}
        known = self.state.exchanges.get(exchange)
        if is_kept and (known is None or known["durable"]):
            for kind, key, name in self._bindings(exchange).values():
                found.update(_lookup(kind, [(key, name)], exchange, routing_key))
        return found

    # -- receiving ----------------------------------------------------------------------------------

    def keep(self, name: str) -> None:
        """Keep a queue in this process."""
        if name not in self.kept:
            self.kept[name] = KeptQueue()
            self.client.subscribe(queue_key(name, self.separator))

    def pull(self, mine: KombuConnection) -> None:
        """Put received messages into the queues, and wake other connections that have consumers of those."""
        with self._pulling:
            filled = {owner for worker, (owner, jobs) in [*self.workers.items()] if _fill(jobs, worker)}
            names: set[str] = set()
            while messages := self.client.receive_many(timeout=0):
                for message in messages:
                    names.update(self._sort(message))
        for other in [*self.connections]:
            if other is not mine and (other in filled or not names.isdisjoint(other.consumed())):
                other.wake()

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


def _lookup(kind: str, bound: list[tuple[str, str]], exchange: str, routing_key: str) -> set[str]:
    """Return the queues, bound by these routing keys to an exchange of this kind, that are to get a message."""
    exchange_type = virtual.exchange.STANDARD_EXCHANGE_TYPES[kind](None)
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


def _fill(jobs: deque[HeldJob], worker: Worker) -> bool:
    """Put the received jobs into a queue; return whether there were any."""
    before = len(jobs)
    with suppress(DisconnectedError):  # the worker was stopped
        while some := worker.receive_many(timeout=0):
            jobs.extend(some)
    return len(jobs) > before
