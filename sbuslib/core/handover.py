"""Protocol of a handover: a hub's record, listening socket and connections, for the process that takes it over.

The new process connects as a client does, and asks. All packets between the two are ``CMSG hub/take-over`` with a word:

===========  =======================  ====================================================================
who          says                     and means
===========  =======================  ====================================================================
new process  the record's version,    take me: these are the fields that I know
             and fields of it
old hub      ``no``, and why          not now, or not you
old hub      ``here``, and a size     with the listening socket, and the record in sealed memory
new process  ``next``                 send more connections
old hub      ``more``                 with up to :data:`LOT` connections
new process  ``ready``                I have all of them, and serve from now on
old hub      ``abort``                it took too long: I go on
===========  =======================  ====================================================================

``ready`` decides. Before it the old hub serves, which does nothing else meanwhile, so packets of clients wait in their
sockets. After it the new process serves, and the old hub only closes its copies. Where ``ready`` does not come in time,
the old hub shuts its end for reading, and looks once more: either it is there now, or it can never be sent. So a new
process that cannot send it waits for the reason. The end of the connection: the old hub is dead, and all is the new
one's. ``abort``, or nothing for :data:`ANSWER_WAIT` seconds: the old hub goes on.

Nothing here reads or writes the state of the hub: see :mod:`.replacement`.
"""

from __future__ import annotations

import mmap
import os
import socket
from _socket import SocketType  # in the socket module it is gevent's, where gevent has patched that
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ..clients.fds.memory import Memory, check_memory
from ..errors import DescriptorError, NoHubError, PacketError, SbusError, StateError
from ..kernel.descriptors import CONTROL_BYTES, descriptors_in
from ..kernel.own_hub import serving
from ..kernel.peers import peer_credentials
from ..kernel.sockets import Listener, connect
from ..kernel.users import name_of_user
from ..limits import ClientLimits
from ..wire import control
from ..wire.addresses import AbstractAddress, DescriptorAddress, PathAddress
from ..wire.packets import Control, encode_control, parse
from .records import VERSION, HubRecord, decode_record, encode_record, known_fields

LOT: Final = 200
"""Connections sent with one packet; the kernel takes 253. Each lot is asked for, as it counts those that are under way,
and refuses more than a process may have open."""

ANSWER_WAIT: Final = 10.0
"""Seconds that the new process waits for each thing that the old hub says: longer than that one may take."""

LEAST_WAIT: Final = 1.0
"""Seconds that the old hub waits at least for ``next`` and for ``ready``. All clients wait meanwhile."""

MOST_RECORD_BYTES: Final = 1 << 32
"""Longest record that is read."""

_WORD_BYTES: Final = 1_024
"""Longest packet between the two."""


class HandoverError(StateError):
    """A hub was not taken over: it goes on as before, or is dead."""


def refuse(why: str) -> bytes:
    """Encode the reason why a hub is not handed over."""
    return _encode(b"no " + why.encode())


def hand_over(sock: SocketType, record: HubRecord, listener: SocketType, connections: Sequence[SocketType]) -> None:
    """Give a hub to the process at the other end of ``sock``. The caller does nothing else until this returns.

    Raises :exc:`HandoverError` where the other process did not take it: then nothing has changed.
    """
    encoded = encode_record(record)
    memory = Memory(memoryview(encoded))
    try:
        memory.seal()
        sock.settimeout(_patience(record, len(encoded)))
        _give(sock, memory.fd, len(encoded), listener, connections)
        _await_ready(sock)
    except (OSError, PacketError, HandoverError, KeyboardInterrupt) as error:
        with suppress(OSError):
            _send(sock, b"abort")
        raise HandoverError(f"the process that asked did not take the hub over: {error}") from None
    finally:
        memory.close()
        sock.setblocking(False)


def _give(sock: SocketType, memory: int, size: int, listener: SocketType, connections: Sequence[SocketType]) -> None:
    _send(sock, b"here %d" % size, [listener.fileno(), memory])
    for start in range(0, len(connections), LOT):
        said, _ = _receive(sock)
        if said != b"next":
            raise HandoverError("it went away")
        _send(sock, b"more", [one.fileno() for one in connections[start : start + LOT]])


def _await_ready(sock: SocketType) -> None:
    why = "it went away"
    try:
        said, _ = _receive(sock)
    except (TimeoutError, KeyboardInterrupt):  # of a program that serves the hub: the user types it once more
        why = "it was not ready in time"
        sock.shutdown(socket.SHUT_RD)  # from here on it cannot be sent; it may have been
        said, _ = _receive(sock)
    if said != b"ready":
        raise HandoverError(why)


def _patience(record: HubRecord, size: int) -> float:
    """Seconds to wait for each thing that the new process says.

    That is some thirty times what the process needs on a machine that is idle.
    """
    patterns = sum(len(client.patterns) for client in record.clients)
    return LEAST_WAIT + 1e-3 * len(record.clients) + 2e-4 * patterns + 1e-7 * size


def ask_for(address: PathAddress | AbstractAddress, separator: bytes) -> HandoverSource:
    """Ask the hub at this address, which has to cut keys at ``separator``, for all that it has, and wait for it.

    Raises :exc:`~sbuslib.errors.NoHubError` and :exc:`HandoverError`.
    """
    try:
        sock = connect(address, ClientLimits().send_buffer, descriptors=True)
    except OSError as error:
        raise NoHubError(f"{address}: no hub that could be taken over: {error.strerror}") from None

    # Its connections would be served under our name.
    owner = peer_credentials(sock).uid
    if owner not in (os.getuid(), 0) and os.getuid() != 0:
        sock.close()
        raise HandoverError(f"{address}: the hub belongs to user {name_of_user(owner)}")
    if serving(sock) is not None:
        sock.close()
        raise HandoverError(f"{address}: this process serves it already")
    source = HandoverSource(address, sock)
    theirs = source.record.separator
    if theirs != separator:
        source.close()
        raise HandoverError(f"{address}: the hub cuts keys at {theirs!r}, and this one would at {separator!r}")
    return source


class HandoverSource:
    """A hub that its process is about to hand over: its record, its listening socket and its connections, as received.

    Making one asks the hub at the other end of ``sock``, and waits. Raises :exc:`HandoverError` where that does not
    hand it over.
    """

    record: HubRecord

    def __init__(self, address: PathAddress | AbstractAddress, sock: SocketType) -> None:
        self.address = address
        self._sock = sock
        self._descriptors: list[int] = []  # the listening socket first, then the connections that are not taken yet

        # Nothing of it counts before the commit: with any error, all that came is closed.
        sock.settimeout(ANSWER_WAIT)
        try:
            _send(sock, b"%d %b" % (VERSION, known_fields()))
            self._take_record()
            while len(self._descriptors) <= len(self.record.clients):
                _send(sock, b"next")
                self._take_more()
        except BaseException as error:
            self.close()
            if isinstance(error, (OSError, SbusError)) and not isinstance(error, HandoverError):
                raise HandoverError(f"the hub was not handed over: {error}") from None
            raise

    def _take_record(self) -> None:
        # 1. Whether there is one.
        said, descriptors = self._hear()
        self._descriptors += descriptors
        word, _, rest = said.partition(b" ")
        if word == b"no":
            raise HandoverError(f"the hub is not handed over: {rest.decode(errors='replace')}")
        if word != b"here" or not rest.isdigit() or len(descriptors) != 2:
            raise HandoverError("the hub sent an unknown packet")
        if not 0 < int(rest) <= MOST_RECORD_BYTES:
            raise HandoverError("the record of the hub is too long")

        # 2. Nobody can change it while it is read.
        memory = self._descriptors.pop()
        try:
            check_memory(memory, int(rest), is_ours=False)
            with mmap.mmap(memory, int(rest), prot=mmap.PROT_READ) as mapped:
                self.record = decode_record(mapped)
        except DescriptorError as error:
            raise HandoverError(f"the record of the hub is {error}") from None
        finally:
            os.close(memory)

    def _take_more(self) -> None:
        said, descriptors = self._hear()
        self._descriptors += descriptors
        if said != b"more" or not descriptors or len(self._descriptors) > 1 + len(self.record.clients):
            raise HandoverError("the hub stopped handing over")

    def _hear(self) -> tuple[bytes, list[int]]:
        said, descriptors = _receive(self._sock)
        if not said:
            raise HandoverError("the hub ended")
        return said, descriptors

    def take_listener(self) -> Listener:
        """Take the listening socket. Raises :exc:`~sbuslib.errors.AddressError` where the hub gave anything else."""
        return Listener(DescriptorAddress(self._descriptors[0]))

    def take_connections(self) -> list[SocketType]:
        """The connections, in the order of the record. Raises :exc:`HandoverError` where one is of another kind."""
        sockets = []
        while len(self._descriptors) > 1:
            sock = SocketType(fileno=self._descriptors[-1])
            self._descriptors.pop()
            sockets.append(sock)
            if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_SEQPACKET:
                raise HandoverError("the hub handed over a descriptor that is no connection")
        return sockets[::-1]

    def commit(self) -> None:
        """Serve from now on. Raises :exc:`HandoverError` where the old hub went on: nothing may have been done yet."""
        try:
            _send(self._sock, b"ready")
        except OSError:
            if not self._is_dead():
                raise HandoverError("the hub went on by itself: this process took too long") from None

    def _is_dead(self) -> bool:
        """Return whether the hub is dead, after ``ready`` could not be sent to it.

        Else it goes on, and sends that. It does, too, if it sends nothing: a stopped process goes on later.
        """
        while True:
            try:
                return not _receive(self._sock)[0]
            except ConnectionResetError:
                continue  # the kernel reports this once, before the packets
            except TimeoutError:
                return False

    def close(self) -> None:
        """Close the connection to the old hub, and everything that was not taken."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
        self._sock.close()


def _encode(word: bytes) -> bytes:
    return encode_control(control.TAKE_OVER, word)


def _send(sock: SocketType, word: bytes, descriptors: Sequence[int] = ()) -> None:
    with_it = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
    sock.sendmsg([_encode(word)], with_it, socket.MSG_NOSIGNAL)


def _receive(sock: SocketType) -> tuple[bytes, list[int]]:
    """The next word, and the descriptors that came with it; empty at the end of the connection.

    Raises :exc:`HandoverError` where this process can have no more descriptors.
    """
    data, with_it, flags, _ = sock.recvmsg(_WORD_BYTES, CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC)
    _, descriptors = descriptors_in(with_it, flags)

    try:
        if flags & socket.MSG_CTRUNC:
            raise HandoverError("this process may open too few files for all connections")
        packet = parse(data) if data else None
        if packet is None:
            return b"", descriptors
        if not isinstance(packet, Control) or packet.key != control.TAKE_OVER:
            raise HandoverError("the other end sent an unknown packet")
    except (HandoverError, PacketError):
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return packet.payload or b"", descriptors
