"""The door of one client: a socket at which a thread hands out descriptors to those who have the token of an offer.

The thread runs none of the application's code and waits for nobody, so neither what the client does nor what others do
at the door delays an answer by more than the interpreter's turns. What visitors make us hold is bounded by user: the
connections, and so the descriptors that were asked for and not yet read, which the kernel counts as *ours*: no more
than one answer is under way over each connection, as a visitor that asks again before it has read the last one is cut
off. A user with too many connections loses the one that was silent for longest, and its process connects anew.
"""

from __future__ import annotations

import atexit
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
from ..wire.offers import ASK, BUSY, GIVEN, GONE, TOKEN_BYTES, Offer, decode_saying
from .memory import Memory
from .transfers import Transfer

__all__ = ["Door", "door_address"]

USER_VISITORS: Final = 32
"""Connections of one user. Each client keeps one; if there are more, they take turns."""
MOST_VISITORS: Final = 128
"""Connections of all others. With :data:`~sbuslib.wire.offers.MOST_TOKENS` descriptors to each, half of those that the
kernel lets be under way for our user, where nobody raised that."""
LINGER: Final = 1.0
"""Seconds for which the last offers are handed out though their client was closed, or the program ends."""
MOST_RESTING: Final = 4
"""Frames whose memory is kept for the next ones: one for each that ends, and some that receivers still have."""
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

    __slots__ = ("is_answered", "is_ours", "sock", "user")

    def __init__(self, sock: socket.SocketType, owner: int) -> None:
        self.sock = sock
        self.user = peer_credentials(sock).uid  # the kernel's word
        self.is_ours = self.user == owner
        self.is_answered = False  # with descriptors, and was not seen yet to have read that answer

    def has_unread(self) -> bool:
        """Whether descriptors are under way to it."""
        self.is_answered = self.is_answered and unread_bytes(self.sock) > 0
        return self.is_answered


class _Offered:
    """A descriptor that is handed out for a time."""

    __slots__ = ("fd", "memory", "since", "size", "until")

    def __init__(self, fd: int, memory: Memory | None, seconds: float) -> None:
        self.fd = fd
        self.memory = memory  # what the descriptor stands for, if that is memory
        self.size = 0 if memory is None else memory.size  # in bytes
        self.since = monotonic()  # it was offered
        self.until = self.since + seconds  # when it is handed out no more

    def close(self) -> None:
        """Let go of it. Anything but memory may take seconds: a socket with ``SO_LINGER`` does."""
        if self.memory is None:
            in_a_thread(os.close, self.fd)
        else:
            os.close(self.fd)
            self.memory.close()


class Door:
    """Hands out what is offered here, until :meth:`close` or the end of the program; not in the child of a fork.

    Its socket is made by the first offer, which raises :exc:`OSError` if there can be none.

    :param folder: where that is made; the abstract namespace without one.
    """

    def __init__(self, folder: str | None, limits: ClientLimits) -> None:
        self.name = os.urandom(TOKEN_BYTES)  # which nobody can guess
        self.in_folder = folder is not None  # and not in the abstract namespace
        self._folder = folder
        self._limits = limits
        self._lock = unpatched("_thread", "allocate_lock")()  # over the next six, and each descriptor in them
        self._offered: dict[bytes, _Offered] = {}  # by token, oldest first
        self._bytes = 0  # of memory in them
        self._resting: list[Memory] = []  # that is offered no more, to be used again, oldest first
        self._transfers: dict[bytes, Transfer] = {}  # by token
        self._is_open = False  # the thread runs
        self._closing = False  # nothing more is offered
        self._owner = -1  # the user whose door it is to visitors, also if this process takes another later
        self._visitors: dict[int, _Visitor] = {}  # by descriptor, the longest silent first; the thread's alone
        self._said = bytearray(_LONGEST)  # what a visitor says, the thread's alone
        self._ended = unpatched("_thread", "allocate_lock")()  # held while the thread runs

    def _open(self) -> None:
        """With the lock: begin to hand out."""
        if self._closing:
            raise StateError("the client is closed")
        if self._is_open:
            return
        self._listener = Listener(door_address(self.name, self._folder), mode=0o777)
        try:
            self._poll: Any = unpatched("select", "epoll")()
            self._wakes = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # tells the thread to look
        except OSError:  # no descriptor is left
            self._listener.close()
            raise
        for fd in (self._listener.socket.fileno(), self._wakes):
            self._poll.register(fd, select.EPOLLIN)
        self._is_open, self._owner = True, os.geteuid()
        abandon_in_child(self, Door._abandon)
        _open.add(self)
        self._ended.acquire()
        unpatched("_thread", "start_new_thread")(self._serve, ())

    # -- the client's side --------------------------------------------------------------------------

    def offer_frame(self, view: memoryview) -> bytes:
        """Hand out a copy of some bytes for a time; the token.

        Raises :exc:`~sbuslib.errors.PayloadError` for more than the door keeps, and :exc:`OSError`.
        """
        most = self._limits.offered_bytes
        if view.nbytes > most:
            raise PayloadError(f"{view.nbytes:,} bytes are more than ClientLimits.offered_bytes, {most:,}")

        with self._lock:
            fits = (memory for memory in self._resting if memory.size == view.nbytes and memory.is_free())
            if (memory := next(fits, None)) is not None:
                self._resting.remove(memory)
        if memory is None:
            memory = Memory(view)
        else:
            memory.write(view)
        try:
            fd = memory.open()
        except OSError:  # no descriptor is left
            memory.close()
            raise
        return self._offer(fd, memory)

    def offer_descriptor(self, fd: int) -> bytes:
        """Hand out a copy of a descriptor for a time; the token. Raises :exc:`OSError`."""
        return self._offer(os.dup(fd), None)

    def _offer(self, fd: int, memory: Memory | None) -> bytes:
        token, offered = os.urandom(TOKEN_BYTES), _Offered(fd, memory, self._limits.offered_seconds)
        with self._lock:
            try:
                self._open()
            except BaseException:
                offered.close()
                raise
            self._offered[token] = offered
            self._bytes += offered.size
            late = self._take_late()
            if len(self._offered) == 1:  # the thread waits for no time yet
                os.eventfd_write(self._wakes, 1)
        for one in late:
            one.close()
        return token

    def lend(self, transfer: Transfer) -> bytes:
        """Hand out a file until :meth:`take_back`; the token."""
        token = os.urandom(TOKEN_BYTES)
        with self._lock:
            self._open()
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
        """Offer nothing more. What was offered last is handed out for :data:`LINGER` seconds, else the door is gone."""
        with self._lock:
            if self._is_open:
                os.eventfd_write(self._wakes, 1)
            self._closing = True
            for offered in self._offered.values():
                offered.until = min(offered.until, offered.since + LINGER)
            late, lingers = self._take_late(), bool(self._offered)
        for one in late:
            one.close()
        if not lingers:
            self.wait()

    def wait(self) -> None:
        """Wait until a door that was closed is gone."""
        with self._ended:
            pass

    def _abandon(self) -> None:
        """In the child of a fork, which has no such thread: close the copies of what the door has."""
        # The thread may hold the old one.
        self._lock = unpatched("_thread", "allocate_lock")()
        self._closing = True
        if self in _open:
            _open.discard(self)
            self._listener.release()
            for offered in self._offered.values():
                os.close(offered.fd)  # which the parent has, too
                if offered.memory is not None:
                    offered.memory.close()
            self._release()

    def _release(self) -> None:
        for visitor in self._visitors.values():
            visitor.sock.close()
        for memory in self._resting:
            memory.close()
        self._visitors.clear()
        self._offered.clear()
        self._resting.clear()
        self._poll.close()
        os.close(self._wakes)

    # -- the thread ---------------------------------------------------------------------------------

    def _serve(self) -> None:
        listener, goes_on = self._listener.socket.fileno(), True
        while goes_on:
            for fd, _ in self._poll.poll(self._time_left()):
                if fd == self._wakes:
                    with suppress(BlockingIOError):
                        os.eventfd_read(fd)
                elif fd == listener:
                    self._accept()
                elif (visitor := self._visitors.get(fd)) is not None:
                    self._hear(visitor)

            # What nobody asked for in time; it ends with the last of it once the client is closed.
            with self._lock:
                late = self._take_late()
                goes_on = self._is_open = bool(self._offered) or not self._closing
            for one in late:
                one.close()
        _open.discard(self)
        self._listener.close()
        self._release()
        self._ended.release()

    def _time_left(self) -> float | None:
        """Seconds until the oldest offer ends."""
        with self._lock:
            oldest = next(iter(self._offered.values()), None)
        return None if oldest is None else max(0.0, oldest.until - monotonic())

    def _take_late(self) -> list[_Offered | Memory]:
        """Take out what was offered for too long, and the oldest beyond the maximum. Returns what to close."""
        late, limits, now = list[_Offered | Memory](), self._limits, monotonic()
        while self._offered:
            token, oldest = next(iter(self._offered.items()))
            is_too_much = len(self._offered) > limits.offered or self._bytes > limits.offered_bytes
            if oldest.until > now and not is_too_much:
                break
            del self._offered[token]
            self._bytes -= oldest.size
            if oldest.memory is None or oldest.memory.is_sealed or oldest.size * MOST_RESTING > limits.offered_bytes:
                late.append(oldest)
            else:
                os.close(oldest.fd)
                self._resting.append(oldest.memory)

        kept = MOST_RESTING if self._offered else 0  # who publishes nothing any more keeps no memory
        late += self._resting[: len(self._resting) - kept]
        del self._resting[: len(self._resting) - kept]
        return late

    def _accept(self) -> None:
        try:
            visitor = _Visitor(accept(self._listener.socket, _SEND_BUFFER), self._owner)
        except BlockingIOError:
            return
        except OSError:  # no descriptor is left
            unpatched("time", "sleep")(PAUSE)
            return
        if not self._make_place(visitor):
            visitor.sock.close()
            return
        number = visitor.sock.fileno()
        self._visitors[number] = visitor
        self._poll.register(number, select.EPOLLIN)

    def _make_place(self, newcomer: _Visitor) -> bool:
        """Whether there may be one more connection; for that, one that has been silent may have to go."""
        visitors, user = Counter(visitor.user for visitor in self._visitors.values()), newcomer.user
        if visitors[user] < USER_VISITORS:
            if newcomer.is_ours or visitors.total() < MOST_VISITORS:
                return True
            ((user, _),) = visitors.most_common(1)
        for visitor in self._visitors.values():
            if visitor.user == user and not visitor.has_unread():
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
        if visitor.has_unread():  # it asks, and does not read
            self._cut_off(visitor)
            return
        with self._lock:  # nobody closes a descriptor before it is sent
            found = [self._find(token, visitor) for token in tokens]
            words = bytes(GONE if one is None else GIVEN for one in found)
            given = array("i", [one.fd for one in found if one is not None])
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)] if given else []
            try:
                visitor.sock.sendmsg([words], rights, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            except OSError:  # mostly ETOOMANYREFS: our user has as many under way as the kernel allows
                with suppress(OSError):
                    visitor.sock.send(bytes([BUSY]) * len(words), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
                return

            visitor.is_answered = bool(given)
            for one in found:
                if isinstance(one, Transfer):
                    one.hear(visitor.sock.fileno(), ASK, "", visitor.is_ours, monotonic())

    def _find(self, token: bytes, visitor: _Visitor) -> _Offered | Transfer | None:
        """What a token stands for, if the visitor may have it. Memory is sealed before a stranger has it."""
        offered = self._offered.get(token)
        if offered is None:
            return self._transfers.get(token)
        if offered.memory is not None and not visitor.is_ours:
            try:
                offered.memory.seal()
            except OSError:  # a process of our own user made it writable for itself
                return None
        return offered

    def _cut_off(self, visitor: _Visitor) -> None:
        """Hear a visitor no more. Its connection stays until it has read what is under way: nothing else tells."""
        self._poll.unregister(visitor.sock.fileno())
        visitor.sock.shutdown(socket.SHUT_RDWR)

    def _end(self, visitor: _Visitor) -> None:
        number = visitor.sock.fileno()
        del self._visitors[number]
        visitor.sock.close()  # which ends its part in the poll, too
        with self._lock:
            for transfer in self._transfers.values():
                transfer.leave(number, visitor.is_ours)


_open: set[Door] = set()  # those of this process whose threads run


@atexit.register
def _linger() -> None:
    """At the end of the program: what was published before still arrives."""
    for door in (doors := list(_open)):
        door.close()
    for door in doors:
        door.wait()
