"""Dialer of clients: tries addresses in order, and checks that the hub there runs as the expected user."""

from __future__ import annotations

import errno
import os
import socket

from ..errors import HubIdentityError, NoHubError
from ..limits import ClientLimits
from ..wire.addresses import parse_address
from .defaults import default_addresses
from .peers import peer_credentials
from .sockets import anchored, connect
from .users import resolve_user

BROKEN = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ESHUTDOWN, errno.EBADF})
"""Errors of send(2) and recv(2): the other end has gone, or we have."""

NO_MEMORY = frozenset({errno.ENOBUFS, errno.ENOMEM})
"""Errors of send(2): the kernel has no memory just now."""


class Dialer:
    """Connects to the first of a client's addresses that accepts.

    Raises :exc:`~sbuslib.errors.AddressError` for an address that cannot be one, and
    :exc:`~sbuslib.errors.UsageError` for a user that does not exist.
    """

    def __init__(
        self, address: str | os.PathLike[str] | None, hub_user: int | str | None, limits: ClientLimits
    ) -> None:
        self._given = None if address is None else os.fspath(address)  # None: the default ones
        self._candidates = default_addresses() if address is None else [os.fspath(address)]
        #: Where each of them leads, also after a change of the working directory.
        self._resolved = [anchored(parse_address(candidate)) for candidate in self._candidates]
        #: User that the hub has to be of; ``None``: any.
        self._hub_user = None if hub_user is None else resolve_user(hub_user)
        self._limits = limits
        self.address = self._candidates[0]
        """The address of the last connection; before the first one, the address that is tried first."""

    def dial(self) -> socket.SocketType:
        """Connect a socket.

        Raises :exc:`BlockingIOError` when the backlog of a hub is full, which passes;
        :exc:`~sbuslib.errors.NoHubError`, which lists the addresses tried; and :exc:`~sbuslib.errors.HubIdentityError`.
        """
        tried, refused, busy = [], [], False
        for candidate, address in zip(self._candidates, self._resolved, strict=True):
            try:
                sock = connect(address, self._limits.send_buffer)
            except BlockingIOError:
                busy = True
                tried.append(f"{candidate}: its backlog is full")
            except PermissionError as error:
                refused.append(f"{candidate} refuses this user: {error.strerror}")
            except OSError as error:
                tried.append(f"{candidate}: {error.strerror or error}")
            else:
                self.address = candidate
                self._check_user(sock)
                return sock

        # A full backlog is a passing condition, so it has an error of its own.
        nobody = ["no hub at " + "; nor at ".join(tried)] if tried else []
        message = "; ".join(refused + nobody)
        if busy:
            raise BlockingIOError(errno.EAGAIN, message)
        raise NoHubError(message)

    def advised(self, error: OSError) -> OSError:
        """Return the error, with advice added if no hub is there."""
        if not isinstance(error, NoHubError):
            return error
        from .advice import advise_address  # only programs that fail need it

        text = f"{error}; {advise_address(self._given)}"
        advised = NoHubError(text)
        advised.is_advised = True
        return advised

    def hint(self, sock: socket.SocketType) -> str:
        """Explain why the hub at the other end does not answer, as an addition to an error; mostly empty."""
        if peer_credentials(sock).pid != os.getpid():
            return ""
        return (
            "; this hub is in this process, and its event loop does not run: let the thread that started it wait in "
            "gevent, such as in hub.serve_forever()"
        )

    def _check_user(self, sock: socket.SocketType) -> None:
        if self._hub_user is not None:
            uid = peer_credentials(sock).uid
            if uid != self._hub_user:
                sock.close()
                raise HubIdentityError(f"{self.address}: its hub runs as user {uid}, not {self._hub_user}")
