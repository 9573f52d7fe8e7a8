"""Publishing many messages with one packet, for a client whose caller publishes them one by one.

What one turn of the event loop publishes travels together. The rule, which costs nobody who publishes now and then:

- A message that finds nothing waiting goes at once, and what is wrong shows at once.
- Those that are published after it in the same turn are *gathered*. They go together at the end of the turn; before
  that when there are as many as one packet takes, when one comes later than ``ClientLimits.gather_time``, and ahead of
  whatever else the client sends.
- Where the hub has no room, whoever publishes next waits until all that was gathered has gone. So no more is ever kept
  than one packet takes.

At the end of a turn nothing may wait, since that is in the event loop itself: what finds no room there is left to a
greenlet, and what that meets is raised by the next :meth:`GatheringEndpoint.publish`, ``flush`` or ``close``.

A program that ends sends what its clients gathered, and so does a client that nobody has any more. In the child of a
fork a client forgets what its parent will send, and gathers no more.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import select
import socket
import sys
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from itertools import repeat
from time import monotonic

from ..errors import DisconnectedError
from ..kernel.areas import ONE_PACKET_FLAGS
from ..kernel.dialer import NO_MEMORY
from ..kernel.sockets import wait
from ..wire.batches import Bundle, pack
from ..wire.packets import check_key
from .endpoint import Endpoint

__all__ = ["GatheringEndpoint"]

logger = logging.getLogger("sbuslib")

_NO_ROOM = frozenset({errno.EAGAIN, *NO_MEMORY})


class GatheringEndpoint(Endpoint):
    """A client that gathers, of one thread and of an event loop: see the module."""

    _publish_now = Endpoint.publish
    _wanted = True
    _room = -1  # in bytes, for what may still be gathered; below zero where nothing may
    _room_until = 0.0  # when to gather no more, as monotonic() tells
    _apiece = 0  # as how many bytes a message counts beside its payload
    _in_turn = False  # whether the end of this turn will be told
    _packed: tuple[bool, list[bytes], list[int]]  # for a hub that takes batches?; packets, and their messages
    _sent: list[int]  # of those packets, one for each that was sent
    _failure: Exception | None = None
    _has_flusher = False

    # -- the event loop -----------------------------------------------------------------------------

    @abstractmethod
    def _at_end_of_turn(self, function: Callable[[], object]) -> None:
        """Have a function called, which never waits, once the event loop has its turn."""

    @abstractmethod
    def _in_background(self, function: Callable[[], object]) -> None:
        """Have a function called that may wait."""

    # -- gathering ----------------------------------------------------------------------------------

    def gather(self, on: bool = True) -> None:
        """Whether :meth:`publish` gathers where the hub takes many messages in one packet, which it does by itself.

        ``False`` is for a program that wants every error from the very call that is at fault, or that publishes and
        then does not let the event loop run for long. Raises as :meth:`flush`.
        """
        self._wanted = on
        self._room = -1
        self.flush()

    def publish(self, key: bytes, payload: bytes = b"", *, flags: int = 0) -> None:
        """Publish one message; waits while the hub has no room for it.

        Where the hub takes many messages in one packet, a message goes at once if it is the first of this turn of the
        event loop, and those that follow go together, at the end of the turn at the latest: see :meth:`gather` and
        :meth:`flush`. An error of theirs shows in the next call of this, :meth:`flush` or :meth:`close`.

        ``flags`` are those of send(2), and send it at once. Raises :exc:`~sbuslib.errors.KeyFormatError`,
        :exc:`~sbuslib.errors.PayloadError`, :exc:`~sbuslib.errors.DisconnectedError`, :exc:`TimeoutError`,
        and :exc:`BlockingIOError` with ``MSG_DONTWAIT``. This message was not published then.
        """
        if self._room >= 0 and type(payload) is bytes and not flags:
            room = self._room - len(payload) - self._apiece
            try:
                if room >= 0 and key in self._headers and monotonic() < self._room_until:
                    self._gathered.append((key, payload))
                    self._room = room
                    return
            except TypeError:
                pass
        self._publish_first(key, payload, flags)

    def _publish_first(self, key: bytes, payload: bytes, flags: int) -> None:
        """Publish what has to be looked at, or cannot be gathered: after what was gathered before."""
        if self._room >= 0 or self._gathered or self._failure is not None:
            packet = self._session.encode(key, payload)  # what is wrong with it does not wait for what was before
            room = self._room - len(packet) - self._apiece
            if room >= 0 and not flags and monotonic() < self._room_until:
                self._gathered.append((key, packet[packet.index(b"\0") + 1 :]))
                self._room = room
                return
            self._flush_first(flags)
        self._publish_now(key, payload, flags=flags)
        if self._wanted and self._session.batches:
            self._begin_to_gather()

    def _begin_to_gather(self) -> None:
        """Something was sent just now: what follows in this turn is gathered."""
        if not self._apiece:
            self._packed = (False, [], [])
            self._sent = []
            self._apiece = -(-self.limits.batch_bytes // self.limits.batch_messages)
            _remember(self)
        if not self._in_turn:
            self._at_end_of_turn(self._end_turn)
            self._in_turn = True
        self._room_until = monotonic() + self.limits.gather_time
        self._room = self.limits.batch_bytes

    def _end_turn(self) -> None:
        self._in_turn = False
        self._room = -1
        if self._gathered:
            try:
                self._send_gathered()
            except OSError:
                if not self._has_flusher:
                    self._has_flusher = True
                    self._in_background(self._flush_in_background)

    def _flush_in_background(self) -> None:
        try:
            while self._gathered:
                with suppress(TimeoutError):
                    self._flush()
                self._sleep(0)  # whoever waits to flush has the next try
        except Exception as error:
            self._failure = error
        finally:
            self._has_flusher = False

    # -- sending it ---------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send at once what was gathered; waits while the hub has no room for it.

        Raises :exc:`TimeoutError`, after which the rest is still there to be sent, and
        :exc:`~sbuslib.errors.DisconnectedError`, whose text tells how many messages were lost.
        """
        if self._gathered:
            self._flush()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _flush_first(self, flags: int = 0) -> None:
        if flags & socket.MSG_DONTWAIT and self._gathered:
            try:
                self._send_gathered()
            except OSError as error:
                if error.errno in _NO_ROOM:
                    raise BlockingIOError(errno.EAGAIN, error.strerror) from error
        self.flush()

    def _flush(self) -> None:
        deadline: float | None = None
        started = False
        while self._gathered:
            epoch = self.epoch
            try:
                self._send_gathered()
            except OSError as error:
                if not started:
                    deadline, started = self._deadline(self.timeout), True
                if error.errno in _NO_ROOM:
                    self._wait_for_room(error, deadline)
                    continue
                try:
                    self._broken(error, epoch)
                except OSError as final:
                    if isinstance(final, TimeoutError):
                        raise
                    raise DisconnectedError(self._lost(final)) from error

    def _lost(self, why: object) -> str:
        """What was gathered cannot be sent any more: the words that tell so."""
        self._note_sent()
        lost = len(self._gathered)
        self._forget()
        return f"{why}; messages that were gathered and are lost: {lost}"

    def _send_gathered(self) -> None:
        """Send what was gathered, without waiting. Raises :exc:`OSError` when not all of it goes."""
        self._note_sent()
        while self._gathered:
            batches, packets, counts = self._packed
            if not packets or batches is not self._session.batches:
                _, packets, counts = self._packed = self._pack()
            try:
                # In one call that notes what went, as a signal may raise after any: none goes twice, and none is lost.
                self._sent.extend(map(self._socket.send, packets, repeat(ONE_PACKET_FLAGS)))
            except OSError as error:
                self._note_sent()
                if error.errno != errno.EMSGSIZE:
                    raise
                # The caller gave the socket a small buffer, which single messages may still fit.
                if counts[0] > 1:
                    plain = Bundle.parse(packets[0]).plain
                    packets[:1], counts[:1] = plain, [1] * len(plain)
                else:
                    self._failure = error
                    self._sent.append(0)  # which never will be
            self._note_sent()
        self._room = -1  # what comes next finds nothing waiting

    def _note_sent(self) -> None:
        """What was sent does not wait any more."""
        _, packets, counts = self._packed
        sent = len(self._sent)
        done = sum(counts[:sent])
        del packets[:sent], counts[:sent], self._gathered[:done], self._sent[:]

    def _pack(self) -> tuple[bool, list[bytes], list[int]]:
        """What was gathered as packets, for a hub that takes batches or for one that does not, with their counts."""
        batches, count = self._session.batches, len(self._gathered)
        if batches and count >= self.limits.gathered:
            packed = list(pack(self._gathered, check_key, self.limits.batch_bytes))
            return True, [packet for packet, _ in packed], [count for _, count in packed]
        headers = self._headers
        packets = [(headers.get(key) or b"MSG %b\0" % key) + payload for key, payload in self._gathered]
        return batches, packets, [1] * count

    def _forget(self) -> None:
        self._room = -1
        self._gathered.clear()
        self._sent.clear()
        self._packed = (False, [], [])

    # -- ends ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection. What was published before is still delivered. What was gathered is sent first.

        Raises as :meth:`flush`, once it is closed; then what was gathered is lost.
        """
        try:
            if not self._closed:
                self.flush()
        except TimeoutError as error:
            raise TimeoutError(self._lost(error)) from error
        finally:
            self._room = -1
            self._tell_lost()
            super().close()

    def _send_rest(self, timeout: float | None) -> None:
        """Send what was gathered where there may be no event loop any more; tell what is lost."""
        deadline = self._deadline(timeout)
        with suppress(OSError):
            while self._gathered:
                try:
                    self._send_gathered()
                except OSError as error:
                    if error.errno not in _NO_ROOM or self._left(deadline) == 0:
                        raise
                    if error.errno in NO_MEMORY:
                        time.sleep(self.limits.connect_pause)
                    wait(self._socket, select.POLLOUT, self._left(deadline))
        self._tell_lost()

    def _tell_lost(self) -> None:
        """Nobody will ask any more: log what was not raised."""
        if self._gathered:
            logger.warning(self._lost(f"{self.address}: it ends"))
        if self._failure is not None:
            logger.warning("%s", self._failure)
            self._failure = None

    def __del__(self) -> None:
        if self._apiece and (self._gathered or self._failure is not None):
            self._send_rest(0)


_clients: set[weakref.ref[GatheringEndpoint]] = set()
"""Those that gather or did so, of this process."""


_exit_told = False
"""Whether this process will say that it ends, if it is one of :mod:`multiprocessing`'s."""


def _remember(client: GatheringEndpoint) -> None:
    global _exit_told
    _clients.add(weakref.ref(client, _clients.discard))
    if not _exit_told:
        _exit_told = True
        if (util := sys.modules.get("multiprocessing.util")) is not None:
            util.Finalize(None, _on_exit, exitpriority=0)  # for a child process, which ends without those of atexit


def _living() -> list[GatheringEndpoint]:
    return [client for client in [reference() for reference in list(_clients)] if client is not None]


@atexit.register
def _on_exit() -> None:
    for client in _living():
        client._send_rest(client.timeout)


def _on_fork() -> None:
    global _exit_told
    _exit_told = False
    for client in _living():
        client._forget()
        client._wanted = False
        client._failure = None
        client._apiece = 0
        client._in_turn = client._has_flusher = False
    _clients.clear()


os.register_at_fork(after_in_child=_on_fork)
