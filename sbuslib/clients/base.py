"""What all clients share, with or without asyncio: whose they are, what they know, and how they take packets in.

A fork copies a client. If the child used the copy, parent and child would each lose what the other one reads. So in the
child every verb raises :exc:`~sbuslib.errors.StateError`, and nothing that the child does, such as closing the client,
affects the parent.
"""

from __future__ import annotations

import logging
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import monotonic
from typing import Any, ClassVar, Literal, TypeAlias

from ..errors import DisconnectedError, PeerError, StateError, UsageError
from ..kernel.areas import PlainArea, make_area
from ..kernel.descriptors import WITH_DESCRIPTORS
from ..kernel.dialer import BROKEN, Dialer
from ..kernel.forks import abandon_in_child, disconnect_copy
from ..kernel.packet_writer import PacketWriter
from ..limits import ClientLimits, check_seconds
from ..wire import control
from ..wire.modes import Hard, Order, Soft, mode_keys
from ..wire.packets import Message
from .reconnect import Reconnecting
from .session import Session

__all__ = ["ClientBase", "Event"]

logger = logging.getLogger("sbuslib.clients")

Event: TypeAlias = Literal["connected", "disconnected"] | None
"""What became of the connection while one caller read: it is the next one, it has ended, or nothing."""


class ClientBase(ABC):
    """One client, apart from how it waits and sends. The parameters are those of :class:`sbuslib.Client`."""

    _OWNER: ClassVar[str]
    """How an error names the caller to whom a client belongs."""

    def __init__(
        self,
        address: str | os.PathLike[str] | None = None,
        *,
        timeout: float | None = 10.0,
        reconnect: bool | None = None,
        senders: bool = False,
        notices: bool = True,
        echo: bool = True,
        soft: Soft | None = None,
        hard: Hard | None = None,
        order: Order | None = None,
        hub_user: int | str | None = None,
        on_reconnect: Callable[[Any], object] | None = None,
        on_disconnect: Callable[[Any, DisconnectedError], object] | None = None,
        on_notice: Callable[[control.Notice], object] | None = None,
        door_folder: str | os.PathLike[str] | None = None,
        limits: ClientLimits | None = None,
    ) -> None:
        check_seconds(timeout, "timeout")
        if limits is not None and not isinstance(limits, ClientLimits):
            raise UsageError(f"limits are ClientLimits, not {limits!r}")
        for name, path in ("address", address), ("door_folder", door_folder):
            if not isinstance(path, str | bytes | os.PathLike | None):
                raise UsageError(f"{name} is a path, or None, not {path!r}")
        for callback in on_reconnect, on_disconnect, on_notice:
            if not (callback is None or callable(callback)):
                raise UsageError(f"a callback is a function, or None, not {callback!r}")

        self.timeout = timeout
        """Seconds that connecting, sending and questions to the hub may take; ``None``: for ever."""
        self.epoch = 0
        """The number of the connection: 0 before the first, one more for each.

        If it is the same before a ``sync`` and after, the hub has taken all that was published in between.
        """
        self._limits = limits if limits is not None else ClientLimits()  # the bounds of this client
        self._socket: socket.SocketType | None = None  # non-blocking; None before the first connection
        self._area: PlainArea | None = None  # made by the first receive
        self._dialer = Dialer(address, hub_user, self._limits)  # finds the hub
        self._reconnect = reconnect  # None: from the first thing on that serves or watches
        self._on_reconnect = on_reconnect
        self._on_disconnect = on_disconnect
        self._on_notice = on_notice
        # What the hub was told and has answered.
        self._session = Session(mode_keys(soft, hard, order), senders=senders, notices=notices, echo=echo)
        self._headers = self._session.headers  # the session's own, by key
        self._inbox = self._session.inbox  # the session's own
        self._packet_writer = PacketWriter()  # sends many packets with one call
        self._reconnecting = Reconnecting(self._limits.reconnect_pause, self._limits.reconnect_pause_most)
        self._up = False  # whether there is a connection, and the hub knows the session's state
        self._closed = False  # whether close() was called
        self._owner: object = None  # the event loop to which the client belongs; None: any caller may use it
        self._process = os.getpid()
        self._is_copy = False  # whether this is the child of a fork
        self._door_folder = None if door_folder is None else os.fspath(door_folder)  # see Doors
        self._make_locks()
        abandon_in_child(self, lambda client: client._abandon())
        self._set_up()

    @abstractmethod
    def _set_up(self) -> None:
        """Make the verbs of this client, and connect where that may wait."""

    @property
    def address(self) -> str:
        """The address of the hub."""
        return self._dialer.address

    @property
    def connected(self) -> bool:
        """Whether there is a connection, and the hub knows all that this client said.

        A client learns that the hub has gone when it reads or sends.
        """
        return self._up and not self._closed

    @property
    def credentials(self) -> bytes:
        """The credential key that the hub told last."""
        return self._session.credentials

    @property
    def lost(self) -> dict[str, int]:
        """Messages for this client that the hub lost, by cause, as far as it told of them."""
        return dict(self._session.lost)

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} of {self.address}>"

    # -- its owner ----------------------------------------------------------------------------------

    def _find_caller(self) -> object:
        """The caller's event loop, if clients of this kind belong to one."""
        return None

    def _check_caller(self) -> None:
        """Raise :exc:`~sbuslib.errors.StateError` if the caller may not use this client."""
        caller = self._find_caller()
        if self._is_copy:
            owner = f"process {self._process}, and this process is its fork"
        elif self._owner is not None and caller is not self._owner:
            owner = self._OWNER
        else:
            return
        raise StateError(f"{self.address}: this client belongs to {owner}: make another one here")

    def _abandon(self) -> None:
        """In the child of a fork: leave the connection, and the packets that came over it, to the parent."""
        self._is_copy = True
        if self._socket is not None:
            disconnect_copy(self._socket)
        self._session.inbox.clear()
        self._session.notices.clear()
        self._session.mailboxes = None
        for mailbox in self._session.named:
            mailbox.clear()

    @abstractmethod
    def _make_locks(self) -> None:
        """Make what callers wait with."""

    # -- its connection -----------------------------------------------------------------------------

    @staticmethod
    def _deadline(timeout: float | None) -> float | None:
        """When so many seconds are over, by ``time.monotonic``; ``None`` for never.

        Raises :exc:`~sbuslib.errors.UsageError` for what is no number.
        """
        try:
            return None if timeout is None else monotonic() + timeout
        except TypeError:
            raise UsageError(f"timeout is seconds, or None, not {timeout!r}") from None

    def _restore(self) -> list[bytes]:
        """The connection is good from here on: the packets that tell the hub the session's state."""
        packets = self._session.restore()
        self.epoch += 1
        self._up = True
        self._reconnecting.was_useful = False
        return packets

    def _get_area(self) -> PlainArea:
        if self._area is None:
            self._area = make_area(self._limits.batch)
        return self._area

    def _receive(self) -> bool | None:
        """Put the packets that are here into the session; whether the connection ended, ``None`` without any.

        Raises :exc:`~sbuslib.errors.PeerError` for what no hub sends, and :exc:`OSError`.
        """
        if self._socket is None:
            return True
        area = self._area or self._get_area()
        try:
            lengths = area.receive(self._socket)
        except OSError as error:
            if error.errno not in BROKEN:
                raise
            return True
        if not lengths:
            return None
        return self._take(area, lengths)

    def _take(self, area: PlainArea, lengths: list[int]) -> bool:
        """Put received packets into the session; ``True`` when the connection ended."""
        if lengths[-1] == WITH_DESCRIPTORS:
            raise PeerError("the hub sent file descriptors")
        if self._up and lengths[0]:
            self._reconnecting.was_useful = True
        return self._session.take(area.data, area.offsets, lengths)

    def _pop(self) -> Message | None:
        """The oldest message in the inbox; ``None`` without one."""
        try:
            return self._inbox.popleft()
        except IndexError:
            return None

    def _disconnected(self) -> DisconnectedError:
        return DisconnectedError("the client is closed") if self._closed else self._session.disconnected(self.address)

    def _call_back(self, event: Event) -> object:
        """Tell the application what became of the connection; what its callback returned."""
        if event == "connected":
            logger.info("client of %s: connected again", self.address)
            return self._on_reconnect(self) if self._on_reconnect is not None else None
        if event == "disconnected" and not self._closed:
            error = self._disconnected()
            logger.info("client of %s", error)
            return self._on_disconnect(self, error) if self._on_disconnect is not None else None
        return None

    def _wait_for_hub(self, error: OSError, left: float | None) -> float:
        """There is no hub yet: how long to wait before the next attempt. Raises ``error`` where nobody waits for it.

        ``left`` is the time that is left of the timeout.
        """
        if self._closed:
            raise self._disconnected()
        if not self._reconnect or left == 0:
            raise self._dialer.advised(error) from None
        logger.info("client of %s: waiting for a hub: %s", self.address, error)
        pause = self._reconnecting.pause()
        return pause if left is None else min(pause, left)

    def _hand_out_notices(self) -> None:
        notices = self._session.notices
        while notices:
            notice = notices.popleft()
            logger.info("client of %s: %s", self.address, notice)
            if self._on_notice is not None:
                self._on_notice(notice)
