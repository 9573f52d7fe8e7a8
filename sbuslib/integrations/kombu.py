"""A transport of kombu, for Celery and other users of kombu: ``broker_url = "sbus://"``.

::

    import sbuslib.integrations.kombu                       # makes sbus:// known to kombu

    app = Celery("tasks", broker="sbus://", backend="rpc://")

A queue that outlives its process is a shared queue of the bus, ``kombu.NAME``, which ``sbus queue 'kombu.*'`` keeps. A
queue that is declared with ``auto_delete`` or ``exclusive`` is kept in the process that declared it: a message for it,
or for an exchange to which it is bound, is one message of the bus. Celery has its tasks in queues of the former kind;
events, remote control and results of ``rpc://`` come into those of the latter.

All connections of a process share one client, and those queues: see :mod:`.kombu_bus`. Source: kombu's virtual
transports.
"""

from __future__ import annotations

import os
import select
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from queue import Empty
from typing import Any, TypeAlias
from weakref import finalize

from kombu.transport import TRANSPORT_ALIASES, virtual

from .. import __version__
from ..clients.endpoint import HeldJob, Worker
from ..clients.recipes.queue import MOST_PREFETCH
from ..connecting import SCHEME, BusUrl, parse_url
from ..errors import DisconnectedError, NoHubError, NoServerError
from ..kernel.sockets import POLL_SECONDS
from .kombu_bus import Bus, Consumed, join, leave
from .kombu_messages import Raw

TRANSPORT_ALIASES[SCHEME] = f"{__name__}:Transport"

_End: TypeAlias = Callable[[HeldJob], bool]


class QoS(virtual.QoS):  # type: ignore[misc]  # kombu has no types
    """Messages that a channel has delivered and that are not acknowledged. A job of the service is ended there."""

    restore_at_shutdown = False

    def ack(self, delivery_tag: str) -> None:
        self.channel.end(delivery_tag, HeldJob.done)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue:
            self.channel.put_back(delivery_tag)
        else:
            self.channel.end(delivery_tag, HeldJob.reject)
        self._quick_ack(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        for delivery_tag in [*self._delivered]:
            self.reject(delivery_tag, requeue=True)
        return []


class Channel(virtual.Channel):  # type: ignore[misc]  # kombu has no types
    """A channel: declares, publishes and consumes."""

    QoS = QoS
    do_restore = False  # the service gives unacknowledged jobs again
    supports_fanout = True
    body_encoding = None  # bytes travel as they are

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        self._bus = connection.bus  # that of its connection
        self._workers: dict[str, Worker] = {}  # by queue
        self._out: dict[str, tuple[str, Raw, HeldJob | None]] = {}  # by tag: queue, message, job
        self._tags = count(1)  # of deliveries
        self._no_ack: set[str] = set()  # queues whose messages are done when they are delivered
        self._is_full = False  # whether nothing more may be delivered until some of those are acknowledged
        super().__init__(connection, **kwargs)

    # -- queues and exchanges -----------------------------------------------------------------------

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return queue in self._bus.kept or queue in self._bus.shared or self._bus.is_there(queue)

    def _new_queue(self, queue: str, *, auto_delete: bool = False, exclusive: bool = False, **_: Any) -> None:
        if queue in self._bus.kept or queue in self._bus.shared:
            return
        if auto_delete or exclusive:
            self._bus.keep(queue, auto_delete=auto_delete)
        else:
            self._bus.shared.add(queue)
        if exclusive:
            self.connection.exclusive.add(queue)

    def _size(self, queue: str) -> int:
        kept = self._bus.kept.get(queue)
        return len(kept) if kept is not None else self._bus.waiting(queue)

    def _purge(self, queue: str) -> int:
        kept = self._bus.kept.get(queue)
        return kept.clear() if kept is not None else self._bus.purge(queue)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> None:
        if if_empty and self._size(queue):
            return
        if (worker := self._workers.pop(queue, None)) is not None:
            self._stop(worker)
        self._bus.delete(queue)

    def queue_bind(
        self, queue: str, exchange: str = "", routing_key: str = "", arguments: Any = None, **_: Any
    ) -> None:
        self._bus.bind(queue, exchange or "amq.direct", routing_key, arguments)

    def queue_unbind(self, queue: str, exchange: str = "", routing_key: str = "", *_: Any, **__: Any) -> None:
        self._bus.unbind(queue, exchange, routing_key)

    def basic_publish(self, message: Raw, exchange: str, routing_key: str, **_: Any) -> None:
        self._inplace_augment_message(message, exchange, routing_key)
        if not exchange:
            self._bus.put(routing_key, message)
            return
        is_kept = message["properties"].get("delivery_mode") != 1
        for queue in self._bus.shared_queues(exchange, routing_key, is_kept=is_kept):
            self._bus.put(queue, message)
        self._bus.publish(exchange, routing_key, message)

    # -- consuming ----------------------------------------------------------------------------------

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self._share_room()

    def _room(self) -> int:
        """Return how many more messages may be delivered: the prefetch count is of all queues together."""
        return min(self.qos.prefetch_count or MOST_PREFETCH, MOST_PREFETCH) - len(self._out)

    def _share_room(self) -> None:
        """Have each worker hold what was delivered and what there is room for; the rest is given back, for others."""
        room = max(self._room(), 0)
        self._is_full = not room
        if not self._is_ours():
            return
        out = Counter(queue for queue, *_ in [*self._out.values()])
        for queue in {*self._active_queues} & self._workers.keys():
            worker, prefetch = self._workers[queue], min(out[queue] + room, MOST_PREFETCH)
            if not prefetch:
                worker.pause()
            elif prefetch != worker.prefetch:
                worker.set_prefetch(prefetch)

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> None:
        super().basic_consume(queue, no_ack, *args, **kwargs)
        if no_ack:
            self._no_ack.add(queue)
        if (kept := self._bus.kept.get(queue)) is not None:
            kept.consumers += 1
        else:
            self._work(queue, max(self._room(), 1))
            self._share_room()

    def _work(self, queue: str, prefetch: int) -> None:
        """Take jobs of a shared queue."""
        if queue in self._workers:
            self._workers[queue].set_prefetch(prefetch)
        else:
            worker = self._bus.queue(queue).take(prefetch=prefetch, trusted=self._bus.users)
            self._workers[queue] = worker
            self._bus.workers[worker] = Consumed(self.connection, queue)

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None or not self._is_ours():
            return
        if (kept := self._bus.kept.get(queue)) is not None:
            kept.consumers -= 1
            if kept.auto_delete and not kept.consumers:
                self._bus.delete(queue)
        if queue not in self._active_queues:
            self._no_ack.discard(queue)
            self._pause(queue)

    def _pause(self, queue: str) -> None:
        """Stop taking jobs of a queue. Those that were delivered can still be acknowledged."""
        if queue in self._workers and self._is_ours():
            self._workers[queue].pause()

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        if queue in self._bus.kept or queue in self._active_queues:
            self._bus.pull(self.connection)
            return self._get_one(queue, no_ack)

        # A worker with room for one more. Its jobs from the service come before the second answer.
        out = sum(name == queue for name, *_ in [*self._out.values()])
        self._work(queue, out + 1)
        try:
            if self._bus.waiting(queue):
                self._bus.waiting(queue)
            self._bus.pull(self.connection)
            return self._get_one(queue, no_ack)
        finally:
            self._pause(queue)

    def _get_one(self, queue: str, no_ack: bool) -> Any:
        try:
            raw = self._get(queue)
        except Empty:
            return None
        message = self.Message(raw, channel=self)
        if no_ack:
            self.end(message.delivery_tag, HeldJob.done)
        else:
            self.qos.append(message, message.delivery_tag)
        return message

    def _get(self, queue: str, timeout: float | None = None) -> Raw:
        """Return the next message that is here. Raises :exc:`queue.Empty`."""
        raw: Raw | None = None
        job: HeldJob | None = None
        while raw is None:
            if (kept := self._bus.kept.get(queue)) is not None:
                if (raw := kept.take()) is None:
                    raise Empty
                break
            if (worker := self._workers.get(queue)) is None or not worker.ready:
                raise Empty
            try:
                (job,) = worker.receive_many(most=1, timeout=0)
            except (ValueError, DisconnectedError):  # it was no job, or the worker was stopped
                raise Empty from None
            if (raw := self._bus.read(job.payload, job.sender)) is None:
                job.reject()

        # Each receiver has its own copy of the delivery information.
        tag, properties = str(next(self._tags)), raw["properties"]
        info = properties["delivery_info"] | ({"redelivered": True} if job is not None and job.again else {})
        raw = {**raw, "properties": {**properties, "delivery_tag": tag, "delivery_info": info}}
        self._out[tag] = queue, raw, job
        return raw

    def deliver(self) -> int:
        """Deliver waiting messages, one of each queue in turn, as far as the prefetch count allows; return how many."""
        number, is_any = 0, True
        if self._is_full and self._room() > 0:
            self._share_room()
        while is_any:
            is_any = False
            for queue in dict.fromkeys(self._active_queues):
                if self.closed or self._is_full:
                    return number
                with suppress(Empty):
                    raw = self._get(queue)
                    if queue in self._no_ack:
                        self.end(raw["properties"]["delivery_tag"], HeldJob.done)
                    elif self._room() <= 0:
                        self._share_room()  # before the message, which may take its consumer an hour
                    self.connection._deliver(raw, queue)
                    number += 1
                    is_any = True
        return number

    def end(self, delivery_tag: str, how: _End) -> None:
        """End a delivered message. This may be called by any thread."""
        out = self._out.pop(delivery_tag, None)
        if out is None:
            return
        if (job := out[2]) is not None and self._is_ours():
            how(job)
        if self._is_full and self.connection is not None:
            self.connection.wake()  # there may be room for waiting messages

    def put_back(self, delivery_tag: str) -> None:
        """Put a delivered message back, to be delivered again."""
        if (out := self._out.get(delivery_tag)) is None:
            return
        queue, raw, job = out
        self.end(delivery_tag, HeldJob.give_back)
        if job is None and queue in self._bus.kept:
            raw["properties"]["delivery_info"]["redelivered"] = True
            self._bus.kept[queue].put_back(raw)

    def _is_ours(self) -> bool:
        """Return whether this is the process that made the channel, and no child of it."""
        return self._bus.process == os.getpid()

    def close(self) -> None:
        super().close()
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            self._stop(worker)

    def _stop(self, worker: Worker) -> None:
        """Stop taking jobs, and give back those that are not acknowledged."""
        self._bus.workers.pop(worker, None)
        if self._is_ours():
            worker.stop()


class Transport(virtual.Transport):  # type: ignore[misc]  # kombu has no types
    """A connection of kombu, on the client that all of this process share.

    Of ``broker_transport_options`` it takes ``users``: names or ids of users whose messages are taken, besides the own
    user and root. The kernel proves the user of a message.
    """

    Channel = Channel
    can_parse_url = True
    polling_interval = None
    default_port = None
    driver_type = driver_name = SCHEME
    connection_errors = (DisconnectedError, NoHubError, NoServerError, OSError)
    recoverable_connection_errors = connection_errors  # without this, kombu tries once more, and not as it was asked to
    recoverable_channel_errors = ()
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.bus: Bus = None  # type: ignore[assignment]  # while it is connected
        self.exclusive: set[str] = set()  # queues that go when it is closed
        self._loop: Any = None  # the event loop that watches it
        self._watched: list[int] = []  # descriptors there
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # readable once others have put something here
        finalize(self, os.close, self._woken)

    def driver_version(self) -> str:
        return __version__

    def url(self) -> BusUrl:
        """The address of the bus. Raises :exc:`~sbuslib.errors.UsageError`."""
        where = self.client.hostname or ""
        if "://" not in where:  # kombu has parsed it
            where = f"{SCHEME}:///{(self.client.virtual_host or '').strip('/')}".removesuffix("/")
        return parse_url(where)

    @property
    def default_connection_params(self) -> dict[str, Any]:
        return {}

    def establish_connection(self) -> Any:
        url = self.url()
        self.bus = join(self, url, url.user_ids(self.client.transport_options.get("users", ())))
        self.state = self.bus.state
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        self.unregister_from_event_loop(connection, self._loop)
        bus = self.bus
        try:
            super().close_connection(connection)
            while bus is not None and self.exclusive and bus.process == os.getpid():
                bus.delete(self.exclusive.pop())
        finally:
            if bus is not None:
                leave(self, bus)

    def consumed(self) -> set[str]:
        """The queues that it has consumers of."""
        return {*self._callbacks}

    # -- waiting ------------------------------------------------------------------------------------

    def wake(self) -> None:
        """End a wait of this connection, in any thread."""
        os.eventfd_write(self._woken, 1)

    def _deliver_all(self) -> bool:
        """Deliver waiting messages; return whether there were any."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._woken)
        self.bus.pull(self)
        return any(number > 0 for number in [channel.deliver() for channel in [*self.channels]])

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        poll = None
        while not self._deliver_all():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            if poll is None:
                poll = select.poll()  # gevent may have put another in its place
                poll.register(self.bus.client.fileno(), select.POLLIN)
                poll.register(self._woken, select.POLLIN)
            poll.poll(None if left is None else min(left, POLL_SECONDS) * 1000)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self._loop, self._watched = loop, [self.bus.client.fileno(), self._woken]
        for fd in self._watched:
            loop.add_reader(fd, self._deliver_all)
        loop.on_tick.add(self._tick)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        if self._loop is None:
            return
        for fd in self._watched:
            self._loop.remove_reader(fd)
        self._loop.on_tick.discard(self._tick)
        self._loop = None

    def _tick(self) -> None:
        for channel in [*self.channels]:
            channel.deliver()
