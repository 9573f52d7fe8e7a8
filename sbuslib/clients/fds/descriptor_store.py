"""Descriptor store of one client: a socket at which a thread hands out descriptors for the tokens of offers.

The thread runs none of the application's code and waits for nobody. So neither the client nor other connections delay
an answer by more than the interpreter's turns. Resources are bounded by user: connections and time in
:mod:`.store_connections`, descriptors that were requested and not yet read in :mod:`.in_flight`. A connection that asks
again before it has read the last answer is closed. A user with too many connections loses the one that was silent for
longest, and its process connects anew.
"""

from __future__ import annotations

import atexit
import os
import socket
from array import array
from collections import Counter
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import Final

import msgspec

from ...errors import PayloadError, StateError
from ...kernel.closers import close_later
from ...kernel.forks import abandon_in_child
from ...kernel.sockets import Listener
from ...kernel.threads import unpatched
from ...limits import ClientLimits
from ...wire.addresses import AbstractAddress, PathAddress
from ...wire.offers import ASK, BUSY, GIVEN, GONE, TOKEN_BYTES, Offer, decode_saying
from .in_flight import in_flight
from .memory import Memory
from .store_connections import USER_CONNECTIONS, StoreConnection, StoreConnections
from .transfers import Transfer

LINGER: Final = 1.0
"""Seconds for which the last offers are still handed out after their client was closed, or while the program ends."""
MOST_SPARE: Final = 4
"""Frames whose memory is kept for the next ones: one for each that ends, and some that receivers still have."""
MOST_COUNTED: Final = 1_024
"""Users whose fetches one offer counts."""

_LONGEST: Final = 1_024  # bytes of a packet on a connection


def store_address(name: bytes, folder: str | None) -> AbstractAddress | PathAddress:
    """Return the address of the descriptor store with this random name: in a folder, or in the abstract namespace."""
    if folder is not None:
        return PathAddress(os.path.join(folder, f"fds-{name.hex()}"))
    return AbstractAddress(b"\0sbus-fds/" + name.hex().encode())


class _Offered:
    """A descriptor that is offered for a time."""

    __slots__ = ("fd", "memory", "since", "size", "taken", "until")

    def __init__(self, fd: int, memory: Memory | None, seconds: float) -> None:
        self.fd = fd
        self.memory = memory  # the memory behind the descriptor, if it is memory
        self.size = 0 if memory is None else memory.size  # in bytes
        self.since = monotonic()  # time of the offer
        self.until = self.since + seconds  # its end
        self.taken = Counter[int]()  # how often, by user other than ours

    def close(self) -> None:
        """Close it. Anything but memory may take seconds: a socket with ``SO_LINGER`` does."""
        if self.memory is None:
            close_later(os.geteuid(), partial(os.close, self.fd), 1)
        else:
            os.close(self.fd)
            self.memory.close()


class DescriptorStore:
    """Hands out the descriptors offered here, until :meth:`close` or the end of the program; not in the child of a
    fork.

    Its socket is made by the first offer, which raises :exc:`OSError` if there can be none.

    :param folder: the folder of the socket; the abstract namespace without one.
    """

    def __init__(self, folder: str | None, limits: ClientLimits) -> None:
        self.name = os.urandom(TOKEN_BYTES)  # which nobody can guess
        self.in_folder = folder is not None  # and not in the abstract namespace
        self._folder = folder
        self._limits = limits
        self._lock = unpatched("_thread", "allocate_lock")()  # over the next six, and each descriptor in them
        self._offered: dict[bytes, _Offered] = {}  # by token, oldest first
        self._bytes = 0  # of memory in them
        self._spare: list[Memory] = []  # no longer offered, to be used again, oldest first
        self._transfers: dict[bytes, Transfer] = {}  # by token
        self._is_open = False  # the thread runs
        self._closing = False  # no more offers
        self._said = bytearray(_LONGEST)  # buffer for packets, the thread's alone
        self._ended = unpatched("_thread", "allocate_lock")()  # held while the thread runs

    def _open(self) -> None:
        """Begin to hand out. Called with the lock."""
        if self._closing:
            raise StateError("the client is closed")
        if self._is_open:
            return
        self._listener = Listener(store_address(self.name, self._folder), mode=0o777)
        try:
            self._connections = StoreConnections(self._listener.socket, os.geteuid(), self._hear, self._forget)
        except OSError:  # no descriptor is left
            self._listener.close()
            raise

        self._is_open = True
        abandon_in_child(self, DescriptorStore._abandon)
        _open.add(self)
        self._ended.acquire()
        unpatched("_thread", "start_new_thread")(self._serve, ())

    # -- the client's side --------------------------------------------------------------------------

    def offer_frame(self, view: memoryview) -> bytes:
        """Offer a copy of some bytes for a time; return the token.

        Raises :exc:`~sbuslib.errors.PayloadError` for more than the descriptor store keeps, and :exc:`OSError`.
        """
        most = self._limits.offered_bytes
        if view.nbytes > most:
            raise PayloadError(f"{view.nbytes:,} bytes are more than ClientLimits.offered_bytes, {most:,}")

        with self._lock:
            fits = (memory for memory in self._spare if memory.size == view.nbytes and memory.is_free())
            if (memory := next(fits, None)) is not None:
                self._spare.remove(memory)
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
        """Offer a copy of a descriptor for a time; return the token. Raises :exc:`OSError`."""
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
                self._connections.wake()

        # Without the lock, as closing many takes long.
        for one in late:
            one.close()
        return token

    def lend(self, transfer: Transfer) -> bytes:
        """Offer a file until :meth:`take_back`; return the token."""
        token = os.urandom(TOKEN_BYTES)
        with self._lock:
            self._open()
            self._transfers[token] = transfer
        return token

    def named(self, offer: Offer, token: bytes) -> Offer:
        """Return an offer that names this descriptor store and a token."""
        return msgspec.structs.replace(offer, store=self.name, token=token, in_folder=self.in_folder)

    def take_back(self, token: bytes) -> None:
        """End an offer; processes that fetched it keep it."""
        with self._lock:
            self._transfers.pop(token, None)
            offered = self._offered.pop(token, None)
            if offered is not None:
                self._bytes -= offered.size
        if offered is not None:
            offered.close()

    def close(self) -> None:
        """Accept no more offers. The last ones are still handed out for :data:`LINGER` seconds; without any, the
        descriptor store ends at once.
        """
        with self._lock:
            if self._is_open:
                self._connections.wake()
            self._closing = True
            for offered in self._offered.values():
                offered.until = min(offered.until, offered.since + LINGER)
            late, lingers = self._take_late(), bool(self._offered)
        for one in late:
            one.close()
        if not lingers:
            self.wait()

    def wait(self) -> None:
        """Wait for the end of a descriptor store that was closed."""
        with self._ended:
            pass

    def _abandon(self) -> None:
        """Close the copies of the descriptors in the child of a fork, where the thread does not run."""
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
            self._connections.abandon()
            self._release()

    def _release(self) -> None:
        for memory in self._spare:
            memory.close()
        self._offered.clear()
        self._spare.clear()

    # -- the thread ---------------------------------------------------------------------------------

    def _serve(self) -> None:
        goes_on = True
        while goes_on:
            self._connections.wait(self._next_end())

            # Remove late offers. Once the client is closed, the thread ends with the last of them.
            with self._lock:
                late = self._take_late()
                goes_on = self._is_open = bool(self._offered) or not self._closing
            for one in late:
                one.close()
        _open.discard(self)
        self._connections.close()
        self._listener.close()
        self._release()
        self._ended.release()

    def _next_end(self) -> float:
        """Return the time at which the oldest offer ends."""
        with self._lock:
            return next((offered.until for offered in self._offered.values()), inf)

    def _take_late(self) -> list[_Offered | Memory]:
        """Remove offers whose time is over, and the oldest beyond the maximum. Returns them, to be closed."""
        late, limits, now = list[_Offered | Memory](), self._limits, monotonic()
        while self._offered:
            token, oldest = next(iter(self._offered.items()))
            is_too_much = len(self._offered) > limits.offered or self._bytes > limits.offered_bytes
            if oldest.until > now and not is_too_much:
                break
            del self._offered[token]
            self._bytes -= oldest.size
            if oldest.memory is None or oldest.memory.is_sealed or oldest.size * MOST_SPARE > limits.offered_bytes:
                late.append(oldest)
            else:
                os.close(oldest.fd)
                self._spare.append(oldest.memory)

        kept = MOST_SPARE if self._offered else 0  # once the last offer expired, free the cached memory
        late += self._spare[: len(self._spare) - kept]
        del self._spare[: len(self._spare) - kept]
        return late

    def _hear(self, connection: StoreConnection) -> bool:
        """Act on one packet of a connection. Returns whether it was about a published offer."""
        try:
            size = connection.sock.recv_into(self._said)
        except BlockingIOError:
            return False
        except OSError:
            size = 0
        said = decode_saying(bytes(self._said[:size]))
        if said is None:  # it left, sent descriptors, or sent an unknown packet
            self._connections.end(connection)
            return False

        self._connections.spoke(connection)
        if said.word == ASK:
            return self._answer(connection, said.tokens)
        with self._lock:
            if (transfer := self._transfers.get(said.tokens[0])) is not None:
                transfer.hear(connection.number, said.word, said.text, connection.is_ours, monotonic())
        return False

    def _answer(self, connection: StoreConnection, tokens: list[bytes]) -> bool:
        """Hand out as many offers as there is room for. Returns whether any was, to a user that has not fetched it too
        often.
        """
        if not in_flight.has_read(connection.sock):  # it asks again, and does not read
            self._connections.end(connection)
            return False
        with self._lock, in_flight.lock:  # nobody closes a descriptor before it is sent
            room = in_flight.room(connection.user, connection.is_trusted)
            words, found = self._pick(connection, tokens, room)
            given = array("i", [one.fd for one in found])
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)] if given else []
            try:
                connection.sock.sendmsg([words], rights, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            except OSError:  # mostly ETOOMANYREFS: our user has as many in flight as the kernel allows
                with suppress(OSError):
                    connection.sock.send(bytes([BUSY]) * len(words), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
                return False
            if given:
                in_flight.sent(connection.sock, connection.user, connection.is_trusted, len(given))

            is_meant = False
            for one in found:
                if isinstance(one, Transfer):
                    one.hear(connection.number, ASK, "", connection.is_ours, monotonic())
                elif not connection.is_trusted:
                    is_meant |= self._count(one, connection.user)
        return is_meant

    def _pick(
        self, connection: StoreConnection, tokens: list[bytes], room: int
    ) -> tuple[bytes, list[_Offered | Transfer]]:
        """Choose an answer that hands out no more than this: its bytes, and the offers."""
        words, found = bytearray(), list[_Offered | Transfer]()
        for token in tokens:
            one = self._find(token, connection)
            if one is not None and len(found) >= room:
                break
            words.append(GONE if one is None else GIVEN)
            found += [one] if one is not None else []
        return bytes(words).ljust(len(tokens), bytes([BUSY])), found

    @staticmethod
    def _count(one: _Offered, user: int) -> bool:
        """Count a fetch by a user. Returns whether that is no more often than it may have connections here."""
        if len(one.taken) > MOST_COUNTED:
            one.taken.clear()
        one.taken[user] += 1
        return one.taken[user] <= USER_CONNECTIONS

    def _find(self, token: bytes, connection: StoreConnection) -> _Offered | Transfer | None:
        """Return the offer of a token, if the connection may have it. Memory is sealed before a stranger has it."""
        offered = self._offered.get(token)
        if offered is None:
            return self._transfers.get(token)
        if offered.memory is not None and not connection.is_ours:
            try:
                offered.memory.seal()
            except OSError:  # a process of our own user made it writable for itself
                return None
        return offered

    def _forget(self, connection: StoreConnection) -> None:
        """Forget a descriptor store that is gone."""
        with self._lock:
            for transfer in self._transfers.values():
                transfer.leave(connection.number, connection.is_ours)


_open: set[DescriptorStore] = set()  # those of this process whose threads run


@atexit.register
def _linger() -> None:
    """Wait at the end of the program, so that earlier offers can still be fetched."""
    for store in (stores := list(_open)):
        store.close()
    for store in stores:
        store.wait()
