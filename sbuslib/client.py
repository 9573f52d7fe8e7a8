"""The client for gevent applications: it blocks the calling greenlet, and greenlets of one thread may share it."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import gevent
from gevent.hub import Waiter
from gevent.socket import wait_write
from gevent.timeout import Timeout

from .clients.batch import Pair
from .clients.endpoint import Endpoint
from .clients.patterns import Running
from .errors import SbusError

__all__ = ["Client"]


class _Waiter:
    """What one greenlet waits with, once: the event loop switches to it directly."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: Any = Waiter()

    def wait(self, timeout: float | None) -> bool:
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
    """The timeout of a client itself, which is told apart from a timeout of the caller."""


class Client(Endpoint):
    """A client of a hub. It blocks the calling greenlet, and any greenlets of the thread that made it may share it.

    ::

        with Client("/tmp/bus") as client:
            client.subscribe(b"room/*/temp")          # in force when it returns
            client.publish(b"room/1/temp", b"21.5")   # the kernel has it when it returns
            message = client.receive(timeout=5)       # or: for message in client: ...
            print(message.key, message.payload)

    In another thread, and in the child of a fork, every verb raises :exc:`~sbuslib.errors.StateError`: make another
    client there, or take :class:`sbuslib.blocking.Client`. A :class:`gevent.Timeout` of the caller passes through every
    method, and leaves the client usable.

    :param address: where the hub listens; without one, ``SBUS_ADDRESS``, ``$XDG_RUNTIME_DIR/sbus/bus`` and
        ``/run/sbus.socket`` are tried in this order.
    :param timeout: seconds that connecting, sending and questions to the hub may take before :exc:`TimeoutError`;
        ``None``: for ever. How long to wait for a message is said to :meth:`receive`.
    :param reconnect: when the hub goes away, look for it until it is back, and subscribe again; verbs wait for it
        meanwhile, ``publish`` too, for ``timeout``. When it is not there yet, look for it for ``timeout``. What others
        publish meanwhile is gone, and so is what a hub had and did not pass on when it was killed. Secrets are
        subscribed to anew under the credentials that the hub then tells. Without ``reconnect``, a verb raises
        :exc:`~sbuslib.errors.DisconnectedError` when the hub has gone.
    :param hub_user: name or id of the user that the hub must run as, else
        :exc:`~sbuslib.errors.HubIdentityError`: whoever can make a socket at the address could pretend to be the hub.
        With socket activation that is the user of the service manager.
    :param on_reconnect: called with this client after each reconnection; may use it.
    :param on_disconnect: called with this client and a :exc:`~sbuslib.errors.DisconnectedError` that says why, when it
        has found that the hub has gone.
    :param on_error: called with the exception and the message when a callback fails; without it, the exception leaves
        :meth:`run`.
    :param on_notice: called with what the hub notices about this client (a
        :class:`~sbuslib.wire.control.Lost`, :class:`~sbuslib.wire.control.Kicked` or
        :class:`~sbuslib.wire.control.NewCredentials`), whenever the client waits for something.
    :param limits: see :class:`~sbuslib.limits.ClientLimits`.

    Raises :exc:`~sbuslib.errors.NoHubError`, which lists where it looked, :exc:`~sbuslib.errors.AddressError`,
    :exc:`~sbuslib.errors.HubIdentityError` and :exc:`TimeoutError`.
    """

    _WAITS_IN_GEVENT = True
    _watcher: Any = None

    def _make_locks(self) -> None:
        super()._make_locks()
        self._posted: list[Pair] = []

    def _find_caller(self) -> object:
        return gevent.get_hub()

    def spawn(self, function: Callable[[], object]) -> Running:
        return gevent.spawn(function)

    def publish(self, key: bytes, payload: bytes = b"", *, flags: int = 0) -> None:
        """Publish one message; waits while the hub has no room for it. When it returns, the kernel has the message.

        ``flags`` are those of send(2). Raises :exc:`~sbuslib.errors.KeyFormatError`,
        :exc:`~sbuslib.errors.PayloadError`, :exc:`~sbuslib.errors.DisconnectedError`, :exc:`TimeoutError`,
        and :exc:`BlockingIOError` with ``MSG_DONTWAIT``.
        """
        if gevent.get_hub() is not self._owner:
            self._check_caller()
        super().publish(key, payload, flags=flags)

    def post(self, key: bytes, payload: bytes) -> None:
        """Publish a message in one packet with what other greenlets post before anybody reads."""
        if not self._lead.is_wanted:
            self.publish(key, payload)
            return
        self._check_caller()
        self._session.encode(key, payload)  # what cannot be published is told to its caller
        self._posted.append((key, payload))
        if len(self._posted) == 1:
            gevent.spawn(self._send_posted)

    def _send_posted(self) -> None:
        pairs, self._posted = self._posted, []
        with suppress(OSError, SbusError):  # who waits for an answer finds out that there is no connection
            self.publish_many(pairs)

    def _make_waiter(self) -> _Waiter:
        return _Waiter()

    def _make_lock(self) -> AbstractContextManager[object]:
        return nullcontext()

    def _wait(self, sock: socket.SocketType, events: int, timeout: float | None) -> bool:
        try:
            if events == select.POLLIN:
                # One greenlet reads at a time, so one watcher serves for as long as the socket does.
                hub = gevent.get_hub()
                if self._watcher is None:
                    self._watcher = hub.loop.io(sock.fileno(), 1)
                if timeout is None:
                    hub.wait(self._watcher)
                    return True
                with Timeout(timeout, _WaitTimeoutError):
                    hub.wait(self._watcher)
            else:
                wait_write(sock.fileno(), timeout, _WaitTimeoutError())
        except _WaitTimeoutError:
            return False
        return True

    def _sleep(self, seconds: float) -> None:
        gevent.sleep(seconds)

    def _release_socket(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher.close()
            self._watcher = None
        super()._release_socket()
