"""The client for gevent applications: it blocks the calling greenlet, and greenlets of one thread may share it."""

from __future__ import annotations

import select
from collections.abc import Callable, Coroutine
from typing import Any

import gevent
from gevent.hub import Waiter
from gevent.socket import wait_read, wait_write
from gevent.timeout import Timeout

from .clients.endpoint import Endpoint
from .clients.leadership import time_left
from .clients.runtime import Runtime, run
from .errors import StateError
from .kernel.threads import runs_asyncio
from .wire.packets import Key, Message

__all__ = ["Client"]


class _Waiter:
    """Waiter of one greenlet, used once: the event loop switches to the greenlet directly."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: Any = Waiter()  # gevent's own

    async def wait(self, timeout: float | None) -> bool:
        waiter = self._waiter
        if timeout is None:
            return bool(waiter.get())
        timer = waiter.hub.loop.timer(timeout)
        timer.start(waiter.switch, False)
        try:
            return bool(waiter.get())
        finally:
            timer.stop()
            timer.close()

    def wake(self) -> None:
        self._waiter.hub.loop.run_callback(self._waiter.switch, True)


class _WaitTimeoutError(Exception):
    """Raised by the client's own timers; not a :class:`gevent.Timeout` of the caller."""


class _Runtime(Runtime):
    """Runtime of greenlets."""

    OWNER = "the thread that made it, and others take sbuslib.blocking.Client"
    IN_GEVENT = True

    def __init__(self) -> None:
        if runs_asyncio():
            raise StateError("this client would stop the event loop of asyncio that runs here: take sbuslib.aio.Client")
        self._watcher: Any = None  # watches whether the connection can be read

    def find_caller(self) -> object:
        return gevent.get_hub()

    def start(self, work: Coroutine[Any, Any, None]) -> Any:
        return gevent.spawn(run, work)

    async def in_time(self, function: Callable[[Any], Any], argument: Any, until: float | None) -> Any:
        with Timeout(time_left(until)) as mine:
            try:
                return function(argument)
            except Timeout as timeout:
                if timeout is mine:
                    raise TimeoutError("ended, as its caller has given up") from None
                raise

    async def join(self, running: Any, timeout: float | None = None) -> None:
        if running is not gevent.getcurrent():
            running.join(timeout)

    def make_waiter(self) -> _Waiter:
        return _Waiter()

    async def wait(self, fd: int, events: int, timeout: float | None) -> bool:
        try:
            (wait_read if events == select.POLLIN else wait_write)(fd, timeout, _WaitTimeoutError())
        except _WaitTimeoutError:
            return False
        return True

    async def read(self, fd: int, receive: Callable[[], bool | None], deadline: float | None) -> bool | None:
        # One greenlet reads at a time, so one watcher serves for as long as the connection does.
        hub = gevent.get_hub()
        if self._watcher is None:
            self._watcher = hub.loop.io(fd, 1)

        ended = None
        try:
            while ended is None:
                if deadline is None:
                    hub.wait(self._watcher)
                else:
                    with Timeout(time_left(deadline), _WaitTimeoutError):
                        hub.wait(self._watcher)
                ended = receive()
        except _WaitTimeoutError:
            return None
        return ended

    async def sleep(self, seconds: float) -> None:
        gevent.sleep(seconds)

    def let_go(self, fd: int) -> None:
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher.close()
            self._watcher = None


class Client(Endpoint):
    """A client of a hub. It blocks the calling greenlet, and any greenlets of the thread that made it may share it.

    ::

        with Client("/tmp/bus") as client:
            with client.subscribe("room/*/temp") as rooms:  # in force when it returns
                client.publish("room/1/temp", b"21.5")      # the kernel has it when it returns
                message = rooms.receive(timeout=5)          # or: for message in rooms: ...
                print(message.key, message.payload)

    In another thread, and in the child of a fork, every verb raises :exc:`~sbuslib.errors.StateError`: make another
    client there, or take :class:`sbuslib.blocking.Client`. A :class:`gevent.Timeout` of the caller passes through every
    method, and leaves the client usable.

    :param address: where the hub listens; without one, ``SBUS_ADDRESS``, or ``$XDG_RUNTIME_DIR/sbus/bus``, if the
        effective user owns that folder, and then ``/run/sbus.socket``.
    :param timeout: seconds that connecting, sending and questions to the hub may take before :exc:`TimeoutError`;
        ``None``: for ever. :meth:`receive` has a timeout of its own.
    :param reconnect: when the hub goes away, look for it until it is back, and subscribe again; verbs wait for it
        meanwhile, ``publish`` too, for ``timeout``. When it is not there yet, look for it for ``timeout``. Messages
        that others publish meanwhile are lost, and so are messages that a killed hub had not passed on. Secrets are
        subscribed to anew under the credentials that the hub then sends. With ``False``, a verb raises
        :exc:`~sbuslib.errors.DisconnectedError` when the hub has gone. ``None`` is ``False`` until the client serves,
        works or subscribes with ``on_message``, and ``True`` from then on.
    :param senders: have messages carry their sender, as the hub vouches for it, where it can: see ``hub.can``.
    :param notices: have the hub report lost messages, and the reason when it kicks this client, where it can.
    :param echo: receive this client's own messages, where they match its patterns.
    :param monitor: receive as any other subscriber, but be no addressee: where only monitors subscribed to a key,
        nobody serves it and it is not wanted. For programs that record or show messages.
    :param soft: the hub's action for messages that this client does not read in time, while its queue has room:
        ``"queue"``, ``"discard"``, ``"block"`` or ``"error"``; see ``docs/flood-control.md``.
    :param hard: the same while the queue is full: ``"discard"``, ``"block"`` or ``"error"``.
    :param order: which waiting message comes next: ``"queue"``, ``"stack"`` or ``"random"``.
    :param hub_user: name or id of the user that the hub must run as, else :exc:`~sbuslib.errors.HubIdentityError`:
        other users that can make a socket at the address could pretend to be the hub. With socket activation that is
        the user of the service manager.
    :param on_reconnect: called with this client after each reconnection; may use it.
    :param on_disconnect: called with this client and a :exc:`~sbuslib.errors.DisconnectedError` that has the reason,
        when it has found that the hub has gone.
    :param on_notice: called with each notice of the hub about this client (a :class:`~sbuslib.wire.control.Lost`,
        :class:`~sbuslib.wire.control.Kicked` or :class:`~sbuslib.wire.control.NewCredentials`), whenever the client
        waits for something.
    :param descriptor_folder: a folder for the client's descriptor store, in place of the abstract namespace: clients in
        several network namespaces have to share one. See ``docs/frames.md``.
    :param limits: see :class:`~sbuslib.limits.ClientLimits`.

    Raises :exc:`~sbuslib.errors.NoHubError`, which lists where it looked, :exc:`~sbuslib.errors.AddressError`,
    :exc:`~sbuslib.errors.HubIdentityError` and :exc:`TimeoutError`.
    """

    _RUNTIME = _Runtime

    def _begin(self) -> None:
        self._owner = gevent.get_hub()  # the event loop of the thread that made it
        super()._begin()

    def publish(self, key: Key, payload: bytes = b"", *, flags: int = 0) -> None:
        if gevent.get_hub() is not self._owner:
            self._connection.check_caller()
        super().publish(key, payload, flags=flags)

    publish.__doc__ = Endpoint.publish.__doc__

    def receive(self, *, timeout: float | None = None, flags: int = 0) -> Message:
        if gevent.get_hub() is not self._owner:
            self._connection.check_caller()
        return super().receive(timeout=timeout, flags=flags)

    receive.__doc__ = Endpoint.receive.__doc__
