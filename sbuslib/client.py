"""The client for gevent applications: it blocks the calling greenlet, and any number may share it."""

from __future__ import annotations

import os
import select
import socket
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NoReturn

import gevent
from gevent.event import Event
from gevent.lock import RLock
from gevent.socket import wait_write
from gevent.timeout import Timeout

from .batches import pack
from .channel import WaitableCondition
from .endpoint import Endpoint
from .errors import DisconnectedError
from .limits import PACKET_BYTES
from .packets import check_key, encode_message
from .seqpacket import ONE_PACKET_FLAGS

__all__ = ["Client"]


class _Condition:
    """As much of a condition variable as greenlets of one thread need: there is nothing to lock."""

    def __init__(self) -> None:
        self._changed = Event()

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def wait(self, timeout: float | None = None) -> bool:
        return bool(self._changed.wait(timeout))

    def notify_all(self) -> None:
        self._changed.set()
        self._changed = Event()


class _WaitTimeoutError(Exception):
    """Ours, so that it cannot be taken for a timeout of the caller's."""


class Client(Endpoint):
    """A client of a hub that blocks the calling greenlet. See :class:`~sbuslib.endpoint.Endpoint`.

    Belongs to the thread that made it. A :class:`gevent.Timeout` of the caller's passes through every
    method and leaves the client usable.
    """

    _watcher: Any = None
    _gathered: list[tuple[bytes, bytes]]
    _room = 0  # for how many bytes more there is room before they have to be sent
    _apiece = 0  # as how many bytes a message counts beside its payload
    _known_key: object = object()  # the last that was checked
    _longest = 0  # payload that goes with it
    _failure: DisconnectedError | None = None
    _flusher: object = None  # the greenlet that sends what was gathered
    _later: object = None  # the greenlet that will

    # -- gathering ----------------------------------------------------------------------------------

    def gather(self, on: bool = True) -> None:
        """Whether :meth:`publish` gathers what one turn of the event loop publishes, and sends it together at its end.

        Then it waits only once so much was gathered that it has to be sent (``ClientLimits.batch_messages``,
        ``batch_bytes``), and an error shows in a later call: in the next :meth:`publish`, :meth:`flush` or
        :meth:`close`. What any other method sends comes after what was gathered. A program that does not let the
        event loop run, or is about to end, calls :meth:`flush` or :meth:`close`.
        """
        if not self._gathers:
            self._gathered = []
            self._lock = RLock()
            self._process = os.getpid()
            self._room = self.limits.batch_bytes
            self._apiece = max(1, self.limits.batch_bytes // self.limits.batch_messages)
        self.flush()
        self._forget_key()
        self._gathers = on

    def publish(self, key: bytes, payload: bytes = b"", *, flags: int = 0) -> None:
        """Publish one message; waits while the hub has no room for it. See :meth:`gather`.

        ``flags`` are those of send(2), and send it at once. Raises :exc:`~sbuslib.errors.KeyFormatError`,
        :exc:`~sbuslib.errors.PayloadError`, :exc:`~sbuslib.errors.DisconnectedError`, :exc:`TimeoutError`,
        and :exc:`BlockingIOError` with ``MSG_DONTWAIT``.
        """
        # Whoever publishes in a loop has the key at hand that was looked at before.
        if key is not self._known_key or flags or type(payload) is not bytes or len(payload) > self._longest:
            if flags or not self._gathers:
                super().publish(key, payload, flags=flags)
                return
            payload = self._check_gathered(key, payload)
        if self._room < 0:
            self.flush()
        if not self._gathered:
            gevent.get_hub().loop.run_callback(self._on_end_of_turn)
        self._gathered.append((key, payload))
        self._room -= len(payload) + self._apiece

    def _check_gathered(self, key: bytes, payload: bytes) -> bytes:
        """Raise what publishing this would, now rather than later; the payload for keeps."""
        packet = encode_message(key, payload)
        self._session.check_publishable(key)
        if self._closed or self._failure is not None:
            self._raise_failure()
        self._known_key = key
        start = packet.index(b"\0") + 1
        self._longest = PACKET_BYTES - start
        return packet[start:]

    def flush(self) -> None:
        """Send at once what was gathered; waits while the hub has no room for it.

        Raises :exc:`TimeoutError`, after which the rest is still there to be sent, and
        :exc:`~sbuslib.errors.DisconnectedError`, whose text tells how many messages were lost.
        """
        if self._gathers:
            self._flush()
            if self._failure is not None:
                self._raise_failure()

    def _flush(self) -> None:
        with self._lock:
            flusher, self._flusher = self._flusher, gevent.getcurrent()
            try:
                while self._gathered:
                    packets, counts = self._next_gathered()
                    for packet, count in zip(packets, counts, strict=True):
                        if not self._send(packet, is_batch=count > 1):
                            break
                        self._sent_gathered(count)
            except DisconnectedError as error:
                lost = len(self._gathered)
                self._sent_gathered(lost)
                self._forget_key()
                self._failure = DisconnectedError(f"{error}; messages that were gathered and are lost: {lost}")
            finally:
                self._flusher = flusher
                if self._gathered:
                    self._flush_soon()

    def _next_gathered(self) -> tuple[list[bytes], list[int]]:
        """The packets to send next, and how many of the messages gathered are in each."""
        if self._session.batches:
            packed = pack(self._gathered[: self.limits.batch_messages], check_key, self.limits.batch_bytes)
            some, counts = zip(*packed, strict=True)
            return list(some), list(counts)
        packets = [encode_message(key, payload) for key, payload in self._gathered[: self.limits.batch]]
        return packets, [1] * len(packets)

    def _sent_gathered(self, count: int) -> None:
        self._room += sum([len(payload) for _, payload in self._gathered[:count]]) + count * self._apiece
        del self._gathered[:count]

    def _forget_key(self) -> None:
        """Have the next message looked at."""
        self._known_key = object()

    def _flush_first(self) -> None:
        if self._gathered and self._flusher is not gevent.getcurrent():
            self.flush()

    def _on_end_of_turn(self) -> None:
        """Send what was gathered. In the event loop nothing may wait: what would have to is left to a greenlet."""
        if not self._gathered or self._process != os.getpid():
            return
        if self._flusher is None:
            with suppress(OSError):
                packets, counts = self._next_gathered()
                for packet, count in zip(packets, counts, strict=True):
                    self._socket.send(packet, ONE_PACKET_FLAGS)
                    self._sent_gathered(count)
        if self._gathered:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self._later is None and not self._closed:
            self._later = gevent.spawn(self._flush_later)

    def _flush_later(self) -> None:
        try:
            while self._gathered and not self._closed:
                with suppress(TimeoutError):
                    self._flush()
                gevent.sleep(0)  # whoever waits to flush has the next try
        finally:
            self._later = None

    def _raise_failure(self) -> NoReturn:
        failure, self._failure = self._failure, None
        raise failure if failure is not None else self._disconnected()

    def close(self) -> None:
        """Close the connection. What was published before is still delivered. What was gathered is sent first.

        Raises as :meth:`flush`, once it is closed.
        """
        try:
            if not self._closed:
                self.flush()
        finally:
            self._forget_key()
            super().close()

    # -- how to wait --------------------------------------------------------------------------------

    def _make_condition(self) -> WaitableCondition:
        return _Condition()

    def _make_lock(self) -> AbstractContextManager[object]:
        return nullcontext()

    def _wait(self, sock: socket.SocketType, events: int, timeout: float | None) -> bool:
        try:
            if events == select.POLLIN:
                # One greenlet reads at a time, so one watcher serves for as long as the socket does.
                hub = gevent.get_hub()
                if self._watcher is None:
                    self._watcher = hub.loop.io(sock.fileno(), 1)
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
