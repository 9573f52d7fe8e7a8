"""Accepts clients: decides which users may connect, and pauses when the machine cannot take more clients."""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
from contextlib import suppress
from functools import partial
from time import thread_time
from typing import Any, Final

from ..errors import StateError
from ..kernel.closers import is_behind
from ..kernel.descriptors import GuardedSocket
from ..kernel.peers import peer_credentials
from ..kernel.sockets import Listener, accept
from ..kernel.vectors import ONE_PACKET_FLAGS
from ..limits import Limits
from ..reasons import Reason
from ..secrets import Credentials
from ..wire import control
from .callback_errors import log
from .clients import Clients
from .context import Context
from .outbound import READ
from .publisher import Role
from .quotas import Account
from .scheduler import ACCEPTOR

ACCEPT_PAUSE: Final = 0.1
"""Seconds without accepting after the kernel ran out of descriptors or memory. Trying again sooner would use up the
processor, and a client in the listen backlog loses nothing."""

_ACCEPTS: Final = 8
"""Connections accepted in a turn: a tenth of a millisecond, or up to one where much was sent on them already."""

_FEWEST_CLIENTS: Final = 16
"""A hub that can hold fewer clients does not start: shared out among users, there would soon be none for each."""

# accept(2): over at once, and not our doing.
_TRANSIENT = {errno.ECONNABORTED, errno.EINTR, errno.EPROTO, errno.EPERM}


class Acceptor:
    """A watcher of the listening socket.

    The kernel has one queue for all connections. So that nobody can make others wait in it, accepting does little more
    than to take a connection out of it and charge it to its user, which takes some microseconds. For the scheduler that
    is the work of one more user, and its time is charged to the user that connects as well. The costlier step, to make
    a client of the connection, is a turn of its own user. So a user that connects without pause delays only itself. No
    more connections of a user wait to be served than it may have: others are closed at once, and counted.

    :param role: the role with which each client begins.
    :param users: the ids that may connect; ``None``: all that the socket lets in.
    """

    def __init__(
        self, context: Context, clients: Clients, role: Role, listener: Listener, mode: int, users: set[int] | None
    ) -> None:
        self._context = context
        self._running = context.running  # as long as it accepts
        self._clients = clients
        self._role = role
        self.closed = False  # whether the hub accepts nobody any more
        self._accepted: dict[socket.SocketType, tuple[Credentials, Account]] = {}
        """Connections that are charged to their user and not served yet."""
        self._listener = listener
        self._mode = mode
        self._users = users
        self._pause: Any = None  # the timer of a pause, during one
        self._watcher: Any = self._running.loop.io(listener.socket.fileno(), READ)  # stopped while others have turns
        self._watcher.start(self._on_acceptable)

    @property
    def has_accepted(self) -> bool:
        """Whether connections were accepted that are not served yet."""
        return bool(self._accepted)

    def close(self) -> None:
        self.closed = True
        self._watcher.stop()
        self._watcher.close()
        self._end_pause()
        for sock, (_, account) in self._accepted.items():
            sock.close()
            self._context.quotas.close(account)
        self._accepted.clear()

    def accept_rest(self) -> None:
        """The hub is about to stop: accept and serve the clients that wait, which may have sent packets already."""
        self._accept(self._context.limits.backlog)
        self.serve_accepted()

    def serve_accepted(self) -> None:
        """Serve now all whose connections were accepted."""
        for sock in list(self._accepted):
            self._serve(sock)

    def _on_acceptable(self) -> None:
        scheduler = self._running.scheduler
        if scheduler.may_go():
            self._accept(_ACCEPTS)
        else:
            self._watcher.stop()
            scheduler.postpone(ACCEPTOR, self._resume)

    def _resume(self) -> None:
        if self._pause is None and not self.closed:
            self._watcher.start(self._on_acceptable)
            self._accept(_ACCEPTS)

    def _accept(self, most: int) -> None:
        """Accept connections, and charge the time to the users that connect, beside the acceptor's own share."""
        scheduler, began = self._running.scheduler, thread_time()
        for _ in range(most):
            try:
                uid = self._accept_one()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _TRANSIENT:
                    continue
                self._begin_pause(error)  # also where it is no lack: gevent would stop a watcher whose callback raises
                return
            now = thread_time()
            scheduler.charge(uid, now - began)
            began = now

    def _accept_one(self) -> int:
        """Take one connection from the backlog; the id of its user. Raises :exc:`OSError`."""
        context, clients = self._context, self._clients
        sock = accept(self._listener.socket, context.limits.idle_send_buffer)
        credentials = peer_credentials(sock)

        # A user whose descriptors do not close could keep more of ours open with each connection.
        if not self._may_connect(credentials):
            _turn_away(sock, Reason.NOT_ALLOWED)
            clients.report(Reason.NOT_ALLOWED, credentials)
        elif isinstance(sock, GuardedSocket) and is_behind(credentials.uid):
            _turn_away(sock, Reason.DESCRIPTORS_SENT)
            clients.report(Reason.DESCRIPTORS_SENT, credentials)
        elif (account := context.quotas.open(credentials.uid)) is None:
            _turn_away(sock, Reason.TOO_MANY_CONNECTIONS)
            clients.report(Reason.TOO_MANY_CONNECTIONS, credentials)
        else:
            self._accepted[sock] = credentials, account
            self._running.scheduler.several = context.quotas.several()
            self._running.scheduler.postpone(account.uid, partial(self._serve, sock))
        return credentials.uid

    def _serve(self, sock: socket.SocketType) -> None:
        if sock in self._accepted:
            self._clients.admit(sock, *self._accepted.pop(sock), self._role)

    def set_users(self, users: set[int] | None) -> None:
        """From now on only these users may connect. Those who are connected and may not are disconnected."""
        self._users = users
        self.serve_accepted()
        self.turn_away()

    def turn_away(self) -> None:
        """Disconnect those who may not connect."""
        for client, connection in list(self._clients.connections.items()):
            if not self._may_connect(connection.credentials):
                self._clients.kick(client, Reason.NOT_ALLOWED)

    def _may_connect(self, credentials: Credentials) -> bool:
        if self._users is not None:
            return credentials.uid in self._users
        if not self._listener.is_abstract or self._mode & 0o007:
            return True
        if self._mode & 0o070 and credentials.gid == os.getgid():
            return True
        return credentials.uid in (os.getuid(), 0)

    def _begin_pause(self, error: OSError) -> None:
        """Mostly out of descriptors or memory: those that connect wait in the listen backlog meanwhile."""
        counts = self._clients.violations.counts
        counts[Reason.ACCEPT_FAILED] += 1
        if counts[Reason.ACCEPT_FAILED] == 1:
            text = "sbus hub at %s cannot accept clients: %s"
            log(logging.ERROR, text, self._context.address(), error.strerror)
        self._watcher.stop()
        self._end_pause()  # there is one if the hub is about to stop, which does not wait for its end
        self._pause = self._running.loop.timer(ACCEPT_PAUSE)
        self._pause.start(self._accept_again)

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._pause.close()
            self._pause = None

    def _accept_again(self) -> None:
        self._end_pause()
        self._watcher.start(self._on_acceptable)


def _turn_away(sock: socket.SocketType, reason: Reason) -> None:
    """Close an accepted connection and send the reason: its client could not ask for notices yet."""
    with suppress(OSError):
        sock.send(control.Kicked(reason).encode(), ONE_PACKET_FLAGS)
    sock.close()


def most_connections(limits: Limits) -> int:
    """For how many clients there are descriptors.

    Raises :exc:`~sbuslib.errors.StateError` if there are too few to share out.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = limits.spare_descriptors + _FEWEST_CLIENTS
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise StateError(
            f"this process may open {soft} files, and a hub needs {needed}: raise the limit with "
            f"`ulimit -n {max(needed, 1024)}`, or LimitNOFILE= in a systemd unit"
        )
    return (soft if soft != resource.RLIM_INFINITY else 2**20) - limits.spare_descriptors
