"""The door of one client: a socket at which a thread hands out descriptors to those who have the token of an offer.

The thread runs none of the application's code and waits for nobody, so neither what the client does nor what others do
at the door delays an answer by more than the interpreter's turns. What visitors make us hold is bounded by user:
connections, and descriptors that were asked for and not yet read, which the kernel counts as *ours*. A visitor that
asks again before it has read its last answer is cut off. A user that has its share of descriptors under way is asked
to come again; one with too many connections loses the one that was silent for longest, and its process connects anew.
"""

from __future__ import annotations

import os
import select
import socket
from array import array
from collections import Counter
from contextlib import suppress
from time import monotonic
from typing import Any, Final

import msgspec

from ..errors import PayloadError, StateError
from ..kernel.descriptors import in_a_thread
from ..kernel.forks import abandon_in_child
from ..kernel.sockets import Listener, accept, peer_credentials, unread_bytes
from ..kernel.threads import unpatched
from ..limits import ClientLimits
from ..wire.addresses import AbstractAddress, PathAddress
from ..wire.offers import ASK, BUSY, GIVEN, GONE, MOST_TOKENS, TOKEN_BYTES, Offer, decode_saying
from .transfers import Transfer

__all__ = ["Door", "door_address"]

USER_VISITORS: Final = 64
"""Connections of one user. Each process keeps one; if there are more processes, they take turns."""
MOST_VISITORS: Final = 256
"""Connections of all users: a quarter of the descriptors that a process may have, where nobody raised that."""
USER_UNREAD: Final = 8 * MOST_TOKENS
"""Descriptors under way to one user."""
MOST_UNREAD: Final = 32 * MOST_TOKENS
"""Descriptors under way to all: half of what the kernel allows our user, where nobody raised that."""
PAUSE: Final = 0.01
"""Seconds without accepting, where the process can have no more descriptors."""

_LONGEST: Final = 1_024  # bytes of what a visitor says
_SEND_BUFFER: Final = 4_096  # an answer is a byte for each token


def door_address(name: bytes, folder: str | None) -> AbstractAddress | PathAddress:
    """Where the door with this random name is: in a folder, or in the abstract namespace."""
    if folder is not None:
        return PathAddress(os.path.join(folder, f"door-{name.hex()}"))
    return AbstractAddress(b"\0sbus-door/" + name.hex().encode())


class _Visitor:
    """One connection to a door."""

    __slots__ = ("is_ours", "sock", "unread", "user")

    def __init__(self, sock: socket.SocketType) -> None:
        self.sock = sock
        self.user = peer_credentials(sock).uid  # the kernel's word
        self.is_ours = self.user == os.geteuid()
        self.unread = 0  # descriptors of the last answer, until the visitor is seen to have read it

    def count_unread(self) -> int:
        """Descriptors under way to it."""
        if self.unread and not unread_bytes(self.sock):
            self.unread = 0
        return self.unread


class _Offered:
    """A descriptor that is handed out for a time."""

    __slots__ = ("fd", "is_memory", "size", "until")

    def __init__(self, fd: int, size: int, until: float, is_memory: bool) -> None:
        self.fd = fd
        self.size = size  # bytes of memory
        self.until = until  # by time.monotonic
        self.is_memory = is_memory

    def close(self) -> None:
        """Let go of it. What is no memory may take seconds, as a socket with ``SO_LINGER`` does."""
        if self.is_memory:
            os.close(self.fd)
        else:
            in_a_thread(os.close, self.fd)


class Door:
    """Hands out what is offered here. Open until :meth:`close`, or until the process forks: the child has none.

    :param folder: where its socket is made; the abstract namespace without one.

    Raises :exc:`OSError` if there can be no such socket.
    """

    def __init__(self, folder: str | None, limits: ClientLimits) -> None:
        self.name = os.urandom(TOKEN_BYTES)
        self.in_folder = folder is not None
        self._limits = limits
        self._lock = unpatched("_thread", "allocate_lock")()  # over the next four, and each descriptor in them
        self._offered: dict[bytes, _Offered] = {}  # by token, oldest first
        self._bytes = 0  # of memory in them
        self._transfers: dict[bytes, Transfer] = {}  # by token
        self._closing = False
        self._visitors: dict[int, _Visitor] = {}  # by descriptor, the longest silent first; the thread's alone
        self._said = bytearray(_LONGEST)  # what a visitor says, the thread's alone
        self._ended = unpatched("_thread", "allocate_lock")()  # held while the thread runs
        self._listener = Listener(door_address(self.name, folder), mode=0o777)
        self._wakes = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # tells the thread to look
        self._poll: Any = unpatched("select", "epoll")()
        for fd in (self._listener.socket.fileno(), self._wakes):
            self._poll.register(fd, select.EPOLLIN)
        abandon_in_child(self, Door._abandon)
        self._ended.acquire()
        unpatched("_thread", "start_new_thread")(self._serve, ())

    # -- the client's side --------------------------------------------------------------------------

    def offer(self, fd: int, size: int, *, is_memory: bool) -> bytes:
        """Hand out a descriptor for a time; the token. The door closes it, whatever happens.

        Raises :exc:`~sbuslib.errors.PayloadError` for more bytes than the door keeps.
        """
        offered = _Offered(fd, size, monotonic() + self._limits.offered_seconds, is_memory)
        if size > self._limits.offered_bytes:
            offered.close()
            raise PayloadError(
                f"{size:,} bytes are more than ClientLimits.offered_bytes, {self._limits.offered_bytes:,}"
            )
        token = os.urandom(TOKEN_BYTES)

        with self._lock:
            if closing := self._closing:
                late = [offered]
            else:
                self._offered[token] = offered
                self._bytes += size
                late = self._take_late()
                if len(self._offered) == 1:  # the thread waits for no time yet
                    os.eventfd_write(self._wakes, 1)

        for one in late:
            one.close()
        if closing:
            raise StateError("the client is closed")
        return token

    def lend(self, transfer: Transfer) -> bytes:
        """Hand out a file until :meth:`take_back`; the token."""
        token = os.urandom(TOKEN_BYTES)
        with self._lock:
            if self._closing:
                raise StateError("the client is closed")
            self._transfers[token] = transfer
        return token

    def named(self, offer: Offer, token: bytes) -> Offer:
        """An offer that names this door and a token."""
        return msgspec.structs.replace(offer, door=self.name, token=token, in_folder=self.in_folder)

    def take_back(self, token: bytes) -> None:
        """Hand out something no more; who has it keeps it."""
        with self._lock:
            self._transfers.pop(token, None)
            offered = self._offered.pop(token, None)
            if offered is not None:
                self._bytes -= offered.size
        if offered is not None:
            offered.close()

    def close(self) -> None:
        """Hand out nothing any more. Waits for the thread, which waits for nobody."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        os.eventfd_write(self._wakes, 1)
        self._ended.acquire()
        self._listener.close()
        for offered in self._offered.values():
            offered.close()
        self._release()

    def _abandon(self) -> None:
        """In the child of a fork, which has no such thread: close the copies of what the door has."""
        self._lock = unpatched(
            "_thread", "allocate_lock"
        )()  # the thread, which the child has not, may hold the old one
        if self._closing:
            return
        self._closing = True
        self._listener.release()
        for offered in self._offered.values():
            os.close(offered.fd)  # which the parent has, too
        self._release()

    def _release(self) -> None:
        for visitor in self._visitors.values():
            visitor.sock.close()
        self._visitors.clear()
        self._offered.clear()
        self._poll.close()
        os.close(self._wakes)

    # -- the thread ---------------------------------------------------------------------------------

    def _serve(self) -> None:
        listener = self._listener.socket.fileno()
        while not self._closing:
            for fd, _ in self._poll.poll(self._time_left()):
                if fd == self._wakes:
                    with suppress(BlockingIOError):
                        os.eventfd_read(fd)
                elif fd == listener:
                    self._accept()
                elif (visitor := self._visitors.get(fd)) is not None:
                    self._hear(visitor)
            with self._lock:
                late = self._take_late()
            for offered in late:
                offered.close()
        self._ended.release()

    def _time_left(self) -> float | None:
        """Seconds until the oldest offer ends."""
        with self._lock:
            oldest = next(iter(self._offered.values()), None)
        return None if oldest is None else max(0.0, oldest.until - monotonic())

    def _take_late(self) -> list[_Offered]:
        """Take out what is offered for too long, and the oldest of what is too much."""
        late, limits, now = [], self._limits, monotonic()
        while self._offered:
            token, oldest = next(iter(self._offered.items()))
            is_too_much = len(self._offered) > limits.offered or self._bytes > limits.offered_bytes
            if oldest.until > now and not is_too_much:
                break
            del self._offered[token]
            self._bytes -= oldest.size
            late.append(oldest)
        return late

    def _accept(self) -> None:
        try:
            visitor = _Visitor(accept(self._listener.socket, _SEND_BUFFER))
        except BlockingIOError:
            return
        except OSError:  # no descriptor is left
            unpatched("time", "sleep")(PAUSE)
            return
        if not self._make_place(visitor.user):
            visitor.sock.close()
            return
        number = visitor.sock.fileno()
        self._visitors[number] = visitor
        self._poll.register(number, select.EPOLLIN)

    def _make_place(self, user: int) -> bool:
        """Whether a user may have one more connection; for that, one that has been silent may have to go."""
        visitors = Counter(visitor.user for visitor in self._visitors.values())
        if visitors[user] < USER_VISITORS:
            if len(self._visitors) < MOST_VISITORS:
                return True
            ((user, _),) = visitors.most_common(1)
        for visitor in self._visitors.values():
            if visitor.user == user and not visitor.count_unread():
                self._end(visitor)
                return True
        return False

    def _hear(self, visitor: _Visitor) -> None:
        """Act on one packet of a visitor, so that each has its turn."""
        try:
            size = visitor.sock.recv_into(self._said)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        said = decode_saying(bytes(self._said[:size])) if 0 < size <= _LONGEST else None
        if said is None:  # it left, sent descriptors, or does not know what is said here
            self._end(visitor)
            return

        number = visitor.sock.fileno()
        self._visitors[number] = self._visitors.pop(number)
        if said.word == ASK:
            self._answer(visitor, said.tokens)
        else:
            with self._lock:
                if (transfer := self._transfers.get(said.tokens[0])) is not None:
                    transfer.hear(number, said.word, said.text, visitor.is_ours, monotonic())

    def _answer(self, visitor: _Visitor, tokens: list[bytes]) -> None:
        if visitor.count_unread():  # it asks, and does not read
            self._cut_off(visitor)
            return
        is_busy = self._has_too_much(visitor.user)

        with self._lock:  # nobody closes a descriptor before it is sent
            found = [self._offered.get(token) or self._transfers.get(token) for token in tokens]
            words = bytes(GONE if one is None else BUSY if is_busy else GIVEN for one in found)
            given = [] if is_busy else [one.fd for one in found if one is not None]
            try:
                _send(visitor.sock, words, given)
            except OSError:  # mostly ETOOMANYREFS: our user has as many under way as the kernel allows
                given = []
                with suppress(OSError):
                    _send(visitor.sock, words.replace(bytes([GIVEN]), bytes([BUSY])), [])

            visitor.unread = len(given)
            for one in found:
                if isinstance(one, Transfer) and given:
                    one.hear(visitor.sock.fileno(), ASK, "", visitor.is_ours, monotonic())

    def _has_too_much(self, user: int) -> bool:
        """Whether a user has its share of descriptors under way, or has any where all have theirs together."""
        unread = Counter[int]()
        for visitor in self._visitors.values():
            unread[visitor.user] += visitor.count_unread()
        return unread[user] >= USER_UNREAD or (unread[user] > 0 and unread.total() >= MOST_UNREAD)

    def _cut_off(self, visitor: _Visitor) -> None:
        """Hear a visitor no more. Its connection stays until it has read what is under way, which only so is known."""
        self._poll.unregister(visitor.sock.fileno())
        visitor.sock.shutdown(socket.SHUT_RDWR)

    def _end(self, visitor: _Visitor) -> None:
        number = visitor.sock.fileno()
        del self._visitors[number]
        visitor.sock.close()  # which ends its part in the poll, too
        with self._lock:
            for transfer in self._transfers.values():
                transfer.leave(number, visitor.is_ours)


def _send(sock: socket.SocketType, words: bytes, descriptors: list[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
    sock.sendmsg([words], rights, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
