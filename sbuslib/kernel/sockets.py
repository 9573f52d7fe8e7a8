"""Unix-domain sequenced-packet sockets: the only module that knows ``AF_UNIX``.

Sockets here are :class:`socket.SocketType`, the plain C class under :class:`socket.socket`, and always non-blocking:
the callers wait in their own way. An application that has monkey-patched :mod:`socket` gets the same sockets. They
refuse file descriptors, see :mod:`~sbuslib.kernel.descriptors`. To receive and send many packets with one call, see
:mod:`~sbuslib.kernel.receive_buffer` and :mod:`~sbuslib.kernel.packet_writer`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import stat
import termios
from _socket import SocketType  # in the socket module it is gevent's, where gevent has patched that
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Final, Protocol, runtime_checkable

from ..errors import AddressError, AddressInUseError
from ..limits import Limits
from ..wire.addresses import SUN_PATH_BYTES, AbstractAddress, Address, DescriptorAddress, PathAddress
from .descriptors import GuardedSocket, refuse_descriptors
from .peers import peer_credentials
from .threads import unpatched

_LOCK_SECONDS: Final = 1.0
"""Seconds that a starting hub waits for others that start at its address; each takes a millisecond."""
_LOCK_PAUSE: Final = 0.002
POLL_SECONDS: Final = 2_000_000.0
"""Seconds of the longest ``poll(2)``, rounded down: it takes an int of milliseconds, 24.8 days."""


@runtime_checkable
class HasFileno(Protocol):
    """A socket of any library: an object with a descriptor."""

    def fileno(self) -> int: ...


def _new_socket() -> socket.SocketType:
    sock = SocketType(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    refuse_descriptors(sock)
    return sock


def _guarded(sock: socket.SocketType) -> socket.SocketType:
    """Wrap a connected socket; guarded, unless no descriptor can come over it."""
    if refuse_descriptors(sock):
        return sock
    return GuardedSocket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, sock.detach())


def anchored(address: Address) -> Address:
    """Return an address that a later ``chdir`` does not change: a path from the root on.

    A relative path stays where the one from the root on is longer than a socket's may be.
    """
    if not isinstance(address, PathAddress) or os.path.isabs(address.path):
        return address
    try:
        # Not abspath: it takes "a/.." away, which leads elsewhere where "a" is a link.
        path = os.path.join(os.getcwd(), address.path)
    except FileNotFoundError:
        return address  # the working directory was removed
    return PathAddress(path) if len(os.fsencode(path)) < SUN_PATH_BYTES else address


def _sockaddr(address: PathAddress | AbstractAddress) -> bytes:
    return os.fsencode(address.path) if isinstance(address, PathAddress) else address.name


def _adopt(fd: int) -> socket.SocketType:
    """Make a socket of a copy of a descriptor that was passed to this process."""
    try:
        copy = os.dup(fd)
        try:
            sock = SocketType(fileno=copy)
        except OSError:
            os.close(copy)
            raise
    except OSError as error:
        raise AddressError(f"/dev/fd/{fd}: no socket: {error.strerror}") from error

    # It may be any socket: the parent process chose it.
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_SEQPACKET:
        sock.close()
        raise AddressError(f"/dev/fd/{fd}: not a Unix-domain sequenced-packet socket")
    os.set_inheritable(sock.fileno(), False)
    sock.setblocking(False)
    return sock


def grow_send_buffer(sock: socket.SocketType, size: int) -> None:
    """Enlarge the buffer for packets of the protocol's full length: the default stops at 212,960 bytes."""
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < size:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)


def set_send_buffer(sock: socket.SocketType, size: int) -> None:
    """Let about ``size`` bytes of packets, and of the kernel's bookkeeping for them, wait for the other end."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)


def unread_bytes(sock: socket.SocketType) -> int:
    """Number of bytes that the other end has not read yet, with the kernel's bookkeeping."""
    size = array("i", [0])
    fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, size)  # SIOCOUTQ of unix(7)
    return size[0]


def connect(address: Address, send_buffer: int, *, descriptors: bool = False) -> socket.SocketType:
    """Connect to the hub at ``address``. With ``descriptors``, the socket can receive them, and is guarded.

    Raises :exc:`BlockingIOError` when the hub's backlog is full, and :exc:`OSError`.
    """
    if isinstance(address, DescriptorAddress):
        sock = _adopt(address.fd)
    else:
        sock = GuardedSocket(socket.AF_UNIX, socket.SOCK_SEQPACKET) if descriptors else _new_socket()
        try:
            sock.connect(_sockaddr(address))
        except BaseException:
            sock.close()
            raise
    grow_send_buffer(sock, send_buffer)
    return sock if descriptors else _guarded(sock)


def accept(listener: socket.SocketType, send_buffer: int) -> socket.SocketType:
    """Accept the next connection, with this send buffer.

    Raises :exc:`BlockingIOError` when there is none, and :exc:`OSError`.
    """
    fd, _ = listener._accept()  # type: ignore[attr-defined]
    # With its kind, or Python asks the kernel for it with three calls.
    sock = _guarded(SocketType(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fd))
    sock.setblocking(False)
    set_send_buffer(sock, send_buffer)
    return sock


def take_connection(sock: socket.SocketType, guarded: bool) -> socket.SocketType:
    """Wrap a connection that another process has accepted; ``guarded``: descriptors may still come over it."""
    if guarded:
        return GuardedSocket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, sock.detach())
    sock = _guarded(sock)
    sock.setblocking(False)
    return sock


def bound_address(address: Address | HasFileno) -> Address:
    """The address for clients of a listener at ``address``: for a descriptor, the name that its socket is bound to."""
    if isinstance(address, HasFileno):
        address = DescriptorAddress(address.fileno())
    if not isinstance(address, DescriptorAddress):
        return address
    try:
        sock = _adopt(address.fd)
    except AddressError:
        return address  # the error is raised when the hub starts
    name = sock.getsockname()
    sock.close()
    if isinstance(name, bytes):
        return AbstractAddress(name)
    return PathAddress(name) if name else address


class Listener:
    """A listening socket and, for a path, the file that it created.

    ``mode`` is the permission bits of the file. A socket without a listener is replaced, and with ``reuse`` an empty
    file, too. Raises :exc:`~sbuslib.errors.AddressInUseError` when the address is in use,
    :exc:`~sbuslib.errors.AddressError` for a descriptor that is no listening socket, and :exc:`OSError`.
    """

    def __init__(
        self, address: Address | HasFileno, *, mode: int = 0o700, reuse: bool = False, backlog: int = Limits().backlog
    ) -> None:
        #: The file of the socket that was made: path, device and inode, so that no other is removed.
        self._file: tuple[str, int, int] | None = None
        if isinstance(address, HasFileno):
            address = DescriptorAddress(address.fileno())
        address = anchored(address)

        #: The address for clients: for a passed descriptor its path or name, if it has one.
        self.address: Address = bound_address(address)
        self.passed = address if isinstance(address, DescriptorAddress) else None
        """The descriptor that was passed; :attr:`socket` is a copy of it."""
        if isinstance(address, DescriptorAddress):
            self.socket = _adopt(address.fd)
            refuse_descriptors(self.socket)
            self.is_abstract = _is_abstract(self.socket)
        else:
            self.is_abstract = isinstance(address, AbstractAddress)
            self.socket = _new_socket()
            try:
                self._bind(address, mode, reuse, backlog)
            except BaseException:
                self.socket.close()
                raise

        # The process that passed a descriptor may have called ``listen`` already.
        if not self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            try:
                self.socket.listen(backlog)
            except OSError as error:
                self.close()
                raise AddressError(f"{self.address}: cannot listen: {error.strerror}") from error

    def _bind(self, address: PathAddress | AbstractAddress, mode: int, reuse: bool, backlog: int) -> None:
        if isinstance(address, AbstractAddress):
            try:
                self.socket.bind(address.name)
            except OSError as error:
                raise _bind_error(error, f"{address}: address in use") from error
            return
        path = address.path
        # The kernel gives the file the mode of the socket less the umask. So it never has more than was asked for, not
        # even for a moment. What the umask took away is added below.
        os.fchmod(self.socket.fileno(), mode)
        with _alone_at(path) as is_alone:
            if reuse:
                _remove_empty_file(path)
            if is_alone or reuse:
                _remove_dead_socket(path)
            try:
                self.socket.bind(_sockaddr(address))
            except OSError as error:
                raise _bind_error(error, f"{address}: address in use{_who_is_there(path)}") from error
            status = os.lstat(path)
            self._file = (os.path.abspath(path), status.st_dev, status.st_ino)
            if stat.S_IMODE(status.st_mode) != mode:
                _change_mode(path, status, mode)
            self.socket.listen(backlog)

    def close(self) -> None:
        """Stop listening, and remove the file unless it is no longer the one that was put there.

        The file goes first: no hub replaces it while its socket listens, and no other file can have its inode.
        """
        try:
            if self._file is not None:
                path, device, inode = self._file
                self._file = None
                with suppress(FileNotFoundError):
                    status = os.lstat(path)
                    if (status.st_dev, status.st_ino) == (device, inode):
                        os.unlink(path)
        finally:
            self.socket.close()

    @property
    def owns_file(self) -> bool:
        """Whether it removes the file of its socket."""
        return self._file is not None

    def listen_again(self, backlog: int) -> None:
        """Let new clients see this process as their hub, unless another user made the socket listen.

        Connections in the backlog stay there.
        """
        with suppress(OSError):
            if peer_credentials(self.socket).uid == os.getuid():
                self.socket.listen(backlog)

    def take_file(self, path: str, mode: int) -> None:
        """Take the file of the socket over from the process that made it."""
        path = os.path.abspath(path)
        with suppress(OSError):  # it is gone, or another user's
            status = os.lstat(path)
            if stat.S_ISSOCK(status.st_mode):
                self._file = (path, status.st_dev, status.st_ino)
                if status.st_uid == os.getuid():  # else it is not ours to change
                    _change_mode(path, status, mode)

    def release(self) -> None:
        """Close the descriptor and nothing else: another process listens at it."""
        self._file = None
        self.socket.close()


def _change_mode(path: str, status: os.stat_result, mode: int) -> None:
    """Change the mode of a socket's file if it is still the one of this status.

    The owner of its folder could put a link there at any time, and chmod(2) follows links.
    """
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.path.samestat(os.fstat(descriptor), status):
            os.chmod(f"/proc/self/fd/{descriptor}", mode)
    finally:
        os.close(descriptor)


def _bind_error(error: OSError, in_use: str) -> OSError:
    if error.errno == errno.EADDRINUSE:
        return AddressInUseError(error.errno, in_use)
    return error


def _is_abstract(sock: socket.SocketType) -> bool:
    name = sock.getsockname()
    return isinstance(name, bytes) and name.startswith(b"\0")


def _is_empty_file(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_size == 0


@contextmanager
def _alone_at(path: str) -> Iterator[bool]:
    """Hold a lock against other hubs that begin to listen at a path; yields whether that is certain.

    A hub that has bound its socket, and does not listen yet, looks as one that was killed; and a socket that was dead a
    moment ago may have been replaced. So hubs begin one after another, each with a lock on a file beside the socket,
    which goes when it has begun. A process that waited for that file opens a new one.
    """
    place, until, fd = f"{path}.lock", monotonic() + _LOCK_SECONDS, -1
    try:
        # 1. The lock; another user who may make files here could hold it for ever.
        is_alone = False
        with suppress(OSError):
            while not is_alone and monotonic() < until:
                if fd >= 0:
                    os.close(fd)
                fd = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                is_alone = _locks(fd, place)
                if not is_alone:
                    unpatched("time", "sleep")(_LOCK_PAUSE)

        # 2. The start, and the end of the lock.
        try:
            yield is_alone
        finally:
            if is_alone:
                with suppress(OSError):
                    os.unlink(place)
    finally:
        if fd >= 0:
            os.close(fd)


def _locks(fd: int, place: str) -> bool:
    """Lock a file, unless another process does. Returns whether it is locked, and still the file at its path."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(fd), os.lstat(place))
    except (BlockingIOError, FileNotFoundError):
        return False


def _remove_empty_file(path: str) -> None:
    """Remove an empty regular file, which holds nothing that could be lost, as the C daemon does."""
    with suppress(FileNotFoundError):
        status = os.lstat(path)
        if _is_empty_file(status):
            os.unlink(path)
        elif not stat.S_ISSOCK(status.st_mode):
            raise AddressInUseError(
                errno.EADDRINUSE, f"{path}: neither a socket nor an empty file, so it is not replaced"
            )


def _remove_dead_socket(path: str) -> None:
    """Remove a socket without a listener, if that is allowed.

    The caller holds the lock, or is asked to.
    """
    with suppress(FileNotFoundError, PermissionError):
        if stat.S_ISSOCK(os.lstat(path).st_mode) and _is_dead(path):
            os.unlink(path)


def _is_dead(path: str) -> bool:
    """Whether a socket has no listener, by a connection attempt."""
    probe = _new_socket()
    try:
        probe.connect(os.fsencode(path))
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    finally:
        probe.close()
    return False


def _who_is_there(path: str) -> str:
    """Make a clause for the error: whether the file at an address is a socket, and has a listener."""
    with suppress(OSError):
        status = os.lstat(path)
        if _is_empty_file(status):
            return " by an empty file (reuse, or -r, replaces it)"
        if not stat.S_ISSOCK(status.st_mode):
            return " by something that is no socket"
        if _is_dead(path):
            return f" by a socket that nobody listens at: it is another user's, or a process has {path}.lock; see -r"
    return ""


def wait(sock: HasFileno | int, events: int, timeout: float | None) -> bool:
    """Wait with ``poll(2)``, without gevent, for ``select.POLLIN`` or ``POLLOUT``; ``False`` on timeout."""
    poll = select.poll()
    poll.register(sock, events)
    if timeout is None:
        return bool(poll.poll())
    return in_pieces(lambda seconds: poll.poll(seconds * 1000), max(0.0, timeout), POLL_SECONDS)


def in_pieces(wait: Callable[[float], object], timeout: float, most: float) -> bool:
    """Wait for ``timeout`` seconds by waits of at most ``most``; ``False`` when all of them ended without a result."""
    if timeout <= most:
        return bool(wait(timeout))
    until = monotonic() + timeout
    while (rest := until - monotonic()) > 0:
        if wait(min(rest, most)):
            return True
    return False


def send_datagram(address: str, data: bytes, wait: float = 0.0) -> None:
    """Send one datagram to a Unix-domain socket; ``@`` at the start of ``address`` means the abstract namespace.

    Waits for at most ``wait`` seconds for room in its queue. Raises :exc:`OSError`.
    """
    sock = SocketType(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sock.settimeout(wait)
        sock.connect("\0" + address[1:] if address.startswith("@") else address)
        sock.send(data, socket.MSG_NOSIGNAL)
    finally:
        sock.close()
