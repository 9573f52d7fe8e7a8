"""Constructor and state of a client, the same for all kinds."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from ..errors import DisconnectedError, StateError, UsageError
from ..kernel.dialer import Dialer
from ..limits import ClientLimits, check_seconds
from ..wire import control
from ..wire.modes import Hard, Order, Soft, mode_keys
from .connection import ClientConnection, Event
from .operations import Operations
from .runtime import Runtime
from .session import Session

logger = logging.getLogger("sbuslib.clients")


class ClientFace:
    """One client, apart from its verbs. The parameters are those of :class:`sbuslib.Client`."""

    _RUNTIME: ClassVar[type[Runtime]]
    """How clients of this kind wait."""

    def __init__(
        self,
        address: str | os.PathLike[str] | None = None,
        *,
        timeout: float | None = 10.0,
        reconnect: bool | None = None,
        senders: bool = False,
        notices: bool = True,
        echo: bool = True,
        monitor: bool = False,
        soft: Soft | None = None,
        hard: Hard | None = None,
        order: Order | None = None,
        hub_user: int | str | None = None,
        on_reconnect: Callable[[Any], object] | None = None,
        on_disconnect: Callable[[Any, DisconnectedError], object] | None = None,
        on_notice: Callable[[control.Notice], object] | None = None,
        descriptor_folder: str | os.PathLike[str] | None = None,
        limits: ClientLimits | None = None,
    ) -> None:
        # 1. Wrong arguments.
        timeout = check_seconds(timeout, "timeout")
        if limits is not None and not isinstance(limits, ClientLimits):
            raise UsageError(f"limits are ClientLimits, not {limits!r}")
        for name, path in ("address", address), ("descriptor_folder", descriptor_folder):
            if not isinstance(path, str | bytes | os.PathLike | None):
                raise UsageError(f"{name} is a path, or None, not {path!r}")
        for callback in on_reconnect, on_disconnect, on_notice:
            if not (callback is None or callable(callback)):
                raise UsageError(f"a callback is a function, or None, not {callback!r}")

        # 2. Its parts.
        bounds = limits if limits is not None else ClientLimits()
        self._on_reconnect = on_reconnect  # of the application
        self._on_disconnect = on_disconnect  # of the application, too
        # Its connection, whose session has its state.
        self._connection = ClientConnection(
            self._RUNTIME(),
            Dialer(address, hub_user, bounds),
            Session(mode_keys(soft, hard, order), senders=senders, notices=notices, echo=echo, monitor=monitor),
            bounds,
            timeout,
            reconnect=reconnect,
            call_back=self._call_back,
            on_notice=on_notice,
        )
        # its verbs
        self._core = Operations(
            self._connection, None if descriptor_folder is None else os.path.abspath(descriptor_folder)
        )
        self._headers = self._connection.session.headers  # the session's own, by key
        self._inbox = self._connection.session.inbox  # the session's own
        self._begin()

    def __reduce__(self) -> NoReturn:
        raise StateError(
            f"{self.address}: a client is of its process: give another one, which begins by spawn or forkserver, the "
            "address, or a sbuslib.Connector, and make the client there"
        )

    def _begin(self) -> None:
        """Connect, where that may wait."""

    def _call_back(self, event: Event) -> object:
        """Tell the application what became of the connection; what its callback returned."""
        if event == "connected":
            logger.info("client of %s: connected again", self.address)
            return self._on_reconnect(self) if self._on_reconnect is not None else None
        error = self._connection.disconnected()
        logger.info("client of %s", error)
        return self._on_disconnect(self, error) if self._on_disconnect is not None else None

    @property
    def address(self) -> str:
        """The address of the hub."""
        return self._connection.address

    @property
    def timeout(self) -> float | None:
        """Seconds that connecting, sending and questions to the hub may take; ``None``: for ever."""
        return self._connection.timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._connection.timeout = check_seconds(seconds, "timeout")

    @property
    def epoch(self) -> int:
        """The number of the connection: 0 before the first, one more for each.

        If it is the same before a ``sync`` and after, the hub has taken all that was published in between.
        """
        return self._connection.epoch

    @property
    def connected(self) -> bool:
        """Whether there is a connection, and the hub knows all that this client said.

        A client learns that the hub has gone when it reads or sends.
        """
        return self._connection.is_up

    @property
    def credentials(self) -> bytes:
        """The newest credential key from the hub."""
        return self._connection.session.credentials

    @property
    def lost(self) -> dict[str, int]:
        """Messages for this client that the hub lost, by cause, as far as it reported them."""
        return dict(self._connection.session.lost)

    @property
    def socket(self) -> socket.SocketType:
        """The connection's socket, non-blocking, to set options on; a reconnection makes another."""
        return self._connection.here()

    def fileno(self) -> int:
        """A descriptor to poll: readable while messages wait in the connection or inside of this client.

        Then ``receive_many(timeout=0)`` until it returns nothing, of the client and of its subscriptions. It stays the
        same over reconnections. Raises :exc:`~sbuslib.errors.DisconnectedError` once the client is closed.
        """
        return self._connection.fileno()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} of {self.address}>"
